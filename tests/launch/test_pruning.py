"""What an out-of-memory says of larger batches, and what it does not say."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.launch.decisions import Limits
from scaling_study.records.store import IMPLIED, STATUSES, implied
from scaling_study.trial import Trial, Window

BASE = Trial(framework="horovod", workers=2, launcher="horovodrun", controller="mpi", device="cpu")


def of(batch: int, repeat: int = 1) -> Trial:
    return replace(BASE, batch_per_worker=batch, repeat=repeat)


def seen(*known: tuple[Trial, str]) -> Limits:
    limits = Limits()
    for trial, status in known:
        limits.learn(trial, status, "rank 0: can't allocate memory" if status == "oom" else "")
    return limits


def test_a_larger_batch_of_any_repeat_is_implied_with_the_trial_that_shows_it() -> None:
    limits = seen((of(32), "oom"))
    for larger in (of(33), of(64), of(1024, repeat=3)):
        assert limits.implied(larger) == f"implied: batch_per_worker=32 was out of memory ({of(32).id})"
    for other in (of(31), of(1), of(32), of(32, repeat=2)):
        assert limits.implied(other) == ""


@pytest.mark.parametrize("status", [status for status in STATUSES if status != "oom"])
def test_no_other_outcome_implies_anything(status: str) -> None:
    assert seen((of(32), status)).implied(of(64)) == ""


OTHER: dict[str, Any] = {
    "framework": "single",
    "find": "max_batch",
    "window": Window(warmup_steps=1),
}  # of the rest, any other value


def test_every_other_key_makes_another_family() -> None:
    for key in {f.name for f in fields(Trial)} - {"batch_per_worker", "repeat"}:
        value = OTHER.get(key, "another")
        assert seen((replace(of(32), **{key: value}), "oom")).implied(of(64)) == "", key
        assert seen((of(32), "oom")).implied(replace(of(64), **{key: value})) == "", key


@pytest.mark.parametrize("find", ["parity", "max_batch"])
def test_what_looks_for_something_else_is_never_implied(find: str) -> None:
    assert seen((replace(of(32), find=find), "oom")).implied(replace(of(64), find=find)) == ""


def test_in_strong_scaling_the_larger_global_batch_is_the_larger_one_per_worker() -> None:
    """Equal workers: there is no other way for a global batch to be larger."""
    assert seen((of(32), "oom")).implied(of(64)) and of(64).global_batch > of(32).global_batch
    four = replace(of(16), workers=4)
    assert four.global_batch == of(32).global_batch
    assert seen((of(32), "oom")).implied(replace(four, batch_per_worker=64)) == ""


@pytest.mark.parametrize("fits", [32, 64, 128])
def test_an_out_of_memory_that_passed_implies_nothing(fits: int) -> None:
    """The same batch in another repeat, or a larger one, was ok."""
    limits = seen((of(32), "oom"), (of(fits, repeat=2), "ok"))
    assert limits.implied(of(256)) == ""
    limits.learn(of(256), "oom", "")
    assert f"batch_per_worker=256 was out of memory ({of(256).id})" in limits.implied(of(512))


def test_what_was_implied_implies_nothing_itself() -> None:
    limits = Limits()
    limits.learn(of(64), "oom", seen((of(32), "oom")).implied(of(64)))
    assert limits.implied(of(128)) == ""


def test_the_least_batch_that_failed_is_named_whatever_came_first() -> None:
    for order in ([64, 32, 128], [32, 64, 128], [128, 64, 32]):
        limits = seen(*((of(batch), "oom") for batch in order))
        assert limits.implied(of(256)).endswith(f"batch_per_worker=32 was out of memory ({of(32).id})")


events = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3), st.sampled_from(["ok", "oom", "failed"])), max_size=8)


@given(events, st.integers(1, 10))
def test_it_is_the_rule_in_one_line_whatever_the_order(events: list[tuple[int, int, str]], batch: int) -> None:
    limits = seen(*((of(b, repeat), status) for b, repeat, status in events))
    fitted = max((b for b, _, status in events if status == "ok"), default=0)
    expected = any(fitted < b < batch for b, _, status in events if status == "oom")
    assert bool(limits.implied(of(batch))) == expected
    again = seen(*((of(b, repeat), status) for b, repeat, status in reversed(events)))
    assert bool(again.implied(of(batch))) == expected


def test_only_the_reason_of_an_oom_can_be_implied() -> None:
    assert implied("oom", f"{IMPLIED}batch_per_worker=32 was out of memory (x)")
    assert not implied("oom", "rank 0: CUDA out of memory") and not implied("failed", f"{IMPLIED}x")
