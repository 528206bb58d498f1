"""How many repeats are added, of records whose speeds are given: launches that were shared, and others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from scaling_study.launch import repeats
from scaling_study.records.summary import Summary
from scaling_study.stats import launches
from scaling_study.stats.intervals import repeats_for
from scaling_study.study import groups
from scaling_study.study.plan import Planned
from scaling_study.study.study import Measure
from scaling_study.trial import Trial

MEASURE = Measure(warm=True, repeats=3, max_repeats=50, target_interval=0.02)
SINGLE = Trial(model="resnet8", allreduce="none")
HALF = replace(SINGLE, batch_per_worker=64)
DDP = replace(SINGLE, framework="torch_ddp", workers=2, launcher="torchrun", allreduce="fp32")
ALL = [SINGLE, HALF, DDP, replace(DDP, allreduce="fp16"), replace(DDP, batch_per_worker=64)]
DRIFT = (100.0, 130.0, 80.0)  # samples per second: what came over all in three launches
QUIET = [(1.0, 1.0002, 0.9999)] * len(ALL)  # beside that


def counts(
    speeds: Sequence[Sequence[float]], baseline: Sequence[Trial] = (SINGLE, HALF), warm: bool = True,
    measure: Measure = MEASURE, target: float | None = None,
) -> list[int]:  # fmt: skip
    """Repeats of each of ALL, in all; with a `target`, those that would bring them there."""
    planned = [Planned(groups.warmed(trial, measure) if warm else trial, measure) for trial in ALL]
    place = {each.trial.configuration: at for at, each in enumerate(planned)}

    def known(of: Planned, repeat: int) -> Summary | None:
        trial, own = of.at(repeat), speeds[place[of.trial.configuration]]
        if repeat > len(own):
            return None
        group = f"{repeat}/0-{trial.workers}-{trial.framework}" if warm else ""
        return summary(trial, own[repeat - 1] * DRIFT[repeat - 1], group)

    names = {trial: each.trial.configuration for trial, each in zip(ALL, planned, strict=True)}
    against = repeats.Against([names[trial] for trial in baseline])
    if target is None:
        found = repeats.totals(planned, known, against)
    else:
        found = repeats.wanted(planned, known, against, target)
    return [found[names[trial]] for trial in ALL]


def summary(trial: Trial, speed: float, launch: str) -> Summary:
    return Summary(trial.id, trial.configuration, trial, "ok", "", "", 1.0, speed or None, None, launch)


def test_a_machine_that_drifts_asks_for_no_more_launches() -> None:
    assert counts(QUIET) == [3] * len(ALL)


def test_alone_it_does() -> None:
    assert counts(QUIET, warm=False) == [min(50, repeats_for([100.0, 130.02, 79.992], 0.02))] * len(ALL)
    assert counts(QUIET, baseline=())[0] == 50, "nor is there anything to hold them against"


def test_a_noisy_one_has_more_and_what_it_is_held_against_too() -> None:
    noisy = [*QUIET[:4], (1.0, 1.02, 0.96)]
    found = counts(noisy)
    assert found[4] > 3 and found[1] == found[4]
    assert all(count <= 4 for count in counts(noisy, measure=MEASURE.model_copy(update={"max_repeats": 4})))


def test_what_narrower_intervals_would_cost_is_known_beyond_max_repeats() -> None:
    """As --dry-run says it, of ratios, which a drift leaves alone."""
    unlike = [(1.0, 1.003, 0.996), (1.0, 1.01, 0.99), (1.0, 0.995, 1.004), (1.0, 0.99, 1.02), (1.0, 1.02, 0.99)]
    narrow, wide = (counts(unlike, target=target) for target in (0.001, 0.05))
    assert min(narrow) > 50 and max(wide) < 10 and max(narrow) > 20 * max(wide)
    assert max(wide) < min(counts(unlike, warm=False, target=0.05)), "alone the drift counts"


def test_only_what_has_its_batch_is_held_against_the_baseline() -> None:
    """The others' own speeds count then, over which the machine's drift came."""
    drifting = min(50, repeats_for([100.0, 130.02, 79.992], 0.02))
    assert counts(QUIET, baseline=(SINGLE,)) == [3, drifting, 3, 3, drifting]


def test_what_failed_has_no_more() -> None:
    failed = [*QUIET[:4], (1.0, 0.0, 1.1)]
    assert counts(failed)[4] == 3
    assert counts([*QUIET[:4], (1.0,)])[4] == 3, "nor what is not finished"


def test_launches_are_as_many_as_bring_the_interval_to_its_target() -> None:
    variance, freedom = 0.03**2, 20.0
    count = launches.needed(variance, freedom, 0.02)
    assert count == math.ceil(variance * (2.086 / math.log(1.02)) ** 2) == 10
    assert launches.needed(variance, 0.0, 0.02) == 0


@pytest.mark.parametrize(("launch", "name"), [("3/0-1-horovod", "3/0"), ("12/2-0-single", "12/2")])
def test_groups_that_were_alive_at_once_have_a_name(launch: str, name: str) -> None:
    assert launches.together(launch) == name
