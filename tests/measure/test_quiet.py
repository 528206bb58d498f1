"""CPU time that is the rank's own: its loader's processes are."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable

import pytest

from scaling_study.measure.surroundings import QuietMeter


def busy(seconds: float, done: multiprocessing.synchronize.Event, end: multiprocessing.synchronize.Event) -> None:
    while time.process_time() < seconds:
        pass
    done.set()
    end.wait()


def busy_below(seconds: float, done: multiprocessing.synchronize.Event, end: multiprocessing.synchronize.Event) -> None:
    below = multiprocessing.get_context("fork").Process(target=busy, args=(seconds, done, end))
    below.start()
    below.join()


@pytest.mark.parametrize("who", [busy, busy_below])
def test_processes_that_it_started_are_its_own_and_those_that_they_started(who: Callable[..., None]) -> None:
    context = multiprocessing.get_context("fork")
    done, end = context.Event(), context.Event()
    meter = QuietMeter()
    meter.start()
    loader = context.Process(target=who, args=(0.2, done, end))
    loader.start()
    done.wait()
    meter.stop()
    end.set()
    loader.join()
    assert meter.own_cpu_seconds >= 0.19  # the kernel counts in hundredths
