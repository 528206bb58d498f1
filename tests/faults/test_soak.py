"""A long sweep of tiny trials: nothing of the driver grows with what it has done.

Memory and open files are read from /proc while it runs. Its own time for a trial is what lies between one record and
the next, less the trial's own seconds.
"""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import mean

import faulted_studies as studies
import numpy as np
import psutil
import survivors
from ledger import FORM, TIMES, Ledger
from scipy import stats
from sweeping import Driver, Sweep, SweepOf

MIB = 2**20
CONFIGURATIONS, REPEATS = (6, 10) if TIMES == 1 else (50, 10)
TRIALS = CONFIGURATIONS * REPEATS
EARLY, LATE = TRIALS // 10, TRIALS  # between these, memory grows by less than MOST_GROWTH_BYTES
MOST_GROWTH_BYTES = 20 * MIB
MOST_SLOPE_SECONDS = 10e-6  # of the driver's time a trial, for each record more: 10 ms after a thousand


def test_nothing_grows_with_the_number_of_trials(sweep_of: SweepOf, ledger: Ledger) -> None:
    sweep = sweep_of(studies.quick(CONFIGURATIONS, REPEATS), PLANTED_SECONDS="0.02")
    driver = sweep.start()
    trials, memory, *open_files = np.transpose(observed(sweep, driver))
    assert driver.code == 0, driver.said()[-2000:]
    assert len(sweep.finished()) == TRIALS
    own = own_seconds(sweep)
    fifth, part = TRIALS / 5, len(own) // 5
    slope = stats.theilslopes(own, alpha=0.95)  # of medians: a neighbour's moment on the machine does not bend it
    early = np.median(memory[(trials >= EARLY) & (trials <= 1.4 * EARLY)])
    late = np.median(memory[(trials >= 0.96 * LATE) & (trials < LATE)])
    ledger.soak = {
        "trials": TRIALS,
        f"driver's_memory_in_MiB_at_trial_{EARLY}": float(early) / MIB,
        f"driver's_memory_in_MiB_at_trial_{LATE}": float(late) / MIB,
    }
    for who, files in zip(("driver", "supervisor"), open_files, strict=True):  # a trial opens and closes some
        first, last = files[trials <= fifth], files[trials >= TRIALS - fifth]
        ledger.soak[f"most_files_open_in_the_{who},_first_and_last_fifth"] = [int(first.max()), int(last.max())]
        # What is left open stays open: the fewest, as whether a moment of many was seen is chance.
        assert last.min() <= first.max(), f"{who}: {first}, later {last}"
    means = [1e3 * mean(own[:part]), 1e3 * mean(own[-part:])]
    ledger.soak["driver's_own_ms_a_trial,_mean_of_the_first_and_last_fifth"] = means
    slopes = [1e6 * float(slope.low_slope), 1e6 * float(slope.high_slope)]
    ledger.soak["its_slope_in_µs_for_each_record_more,_95_%_interval"] = slopes
    assert late - early < MOST_GROWTH_BYTES
    if FORM == "long":  # sixty trials could not tell
        assert slope.low_slope <= MOST_SLOPE_SECONDS, "the driver's own time grows with the number of records"


def observed(sweep: Sweep, driver: Driver) -> list[tuple[int, int, int, int]]:
    """Some samples a second until the driver ends: trials finished by then, bytes of the driver, and files that are
    open in the driver and in the supervisor."""
    samples = []
    process, supervisor, trials = psutil.Process(driver.pid), None, 0
    while driver.code is None:
        try:
            if supervisor is None:
                supervisor = next(iter(survivors.supervisors(sweep.processes())), None)
            trials = sum(1 for _ in sweep.results.glob("trials/*/record.json"))
            if supervisor and trials < TRIALS:  # then it draws figures
                samples.append((trials, process.memory_info().rss, process.num_fds(), supervisor.num_fds()))
        except psutil.Error:
            break
        time.sleep(0.1)
    driver.wait(120)
    return samples


def own_seconds(sweep: Sweep) -> list[float]:
    """The driver's own time for each trial but the first, in their order."""
    ended = []
    for id, record in sweep.outcomes().items():
        written = (sweep.results / "trials" / id / "record.json").stat().st_mtime_ns
        ended.append((written / 1e9, record.total_seconds or 0.0))
    return [now - before - seconds for (before, _), (now, seconds) in pairwise(sorted(ended))]
