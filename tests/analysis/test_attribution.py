"""Where lost percent went: planted parts come back, and whatever is measured adds up to the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import Planted, changed, changed_ranks
from planted_phases import STEP, Phased, grown, plant_phased
from planted_pipelines import Pipeline, plant_pipelines

from analysis.frames import results
from analysis.frames.details import PHASE_COLUMNS
from analysis.frames.measured import PHASES
from analysis.frames.results import Results
from analysis.views import attribution, bottleneck, steps
from analysis.views.attribution import Attribution, LossEvidence, attribute, attributions, in_words, losers
from analysis.views.bottleneck import bottlenecks
from analysis.views.steps import MeasuredSteps

ONE = Planted("single")
TWO = Planted("horovod", workers=2, allreduce="fp32")
BASE = Phased(ONE, STEP)


def only(folder: Path, *phased: Phased) -> Attribution:
    """The attribution of the last of these, against single."""
    return of(results.read(plant_phased(folder, [BASE, *phased])), phased[-1].one.framework)


def of(read: Results, framework: str = "horovod") -> Attribution:
    return next(one for one in attributions(read) if one.row["framework"] == framework)


def without_phases(folder: Path, framework: str = "", after: int = 0) -> Results:
    """Of repeats after this one."""

    def forget(record: dict[str, Any]) -> None:
        for rank in record["ranks"] if record["trial"]["repeat"] > after else ():
            rank["phases"] = None

    return results.read(changed(folder, forget, framework))


def shares(one: Attribution) -> dict[str, float]:
    """Percent lost, of parts that are not nothing."""
    return {part.name: round(100 * part.lost, 3) for part in one.parts if abs(part.lost) > 1e-6}


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        (grown(data=0.025), {"input": 20.0}),
        (grown(communication=0.025), {"exposed": 20.0}),
        (grown(optimizer=0.025), {"optimizer": 20.0}),
        (grown(unattributed=0.025), {"unattributed": 20.0}),
        (grown(backward=0.025), {"within": 20.0}),
        (grown(forward=0.010, backward=0.020), {"kernels": 23.077}),
        (grown(forward=-0.003, backward=-0.006), {"kernels": -9.89}),
        (grown(forward=0.003, backward=0.006, communication=0.016), {"kernels": 7.2, "exposed": 12.8}),
    ],
)  # fmt: skip
def test_a_planted_loss_is_found_where_it_was_planted(
    tmp_path: Path, phases: dict[str, float], expected: dict[str, float]
) -> None:
    made = only(tmp_path, Phased(TWO, phases))
    assert shares(made) == expected
    assert made.lost == pytest.approx(1 - 0.1 / sum(phases.values()))
    assert made.efficiency == pytest.approx(made.row["efficiency"])


def test_causes_are_said_with_all_of_communication_as_one(tmp_path: Path) -> None:
    made = only(tmp_path, Phased(TWO, grown(backward=0.015, communication=0.010)))
    first = made.causes[0]
    assert (first.name, first.lost) == ("communication", pytest.approx(0.2)) and made.clear
    assert in_words(made) == "20 % of linear speed-up: communication 20.0 ± 0.0 (exposed 8.0, overlapped 12.0)"
    (most,) = losers(results.read(tmp_path))
    assert most.causes == made.causes and in_words(replace(made, efficiency=0.96)) == "", "4 % are not worth a word"
    few = only(tmp_path / "few", Phased(replace(TWO, repeats=2), grown(communication=0.025)))
    assert in_words(few) == "20 % of linear speed-up: exposed communication 20.0; no intervals"


@pytest.mark.parametrize(("forward", "tied"), [(0.006, True), (0.001, False)])
def test_of_two_causes_that_differ_by_no_more_than_noise_neither_is_called_the_larger(
    tmp_path: Path, forward: float, tied: bool
) -> None:
    slower = grown(forward=forward, backward=2 * forward, communication=0.018)
    made = only(tmp_path, Phased(TWO, slower, noise=0.02))
    names = {cause.name for cause in made.causes[:2]}
    assert names == {"kernels", "communication"} and made.clear != tied
    assert ("(too close to call)" in in_words(made)) == tied and all(cause.half for cause in made.causes[:2])


def test_waiting_for_a_slow_rank_is_told_apart_from_the_network(tmp_path: Path) -> None:
    slow = Phased(TWO, grown(communication=0.010), lags=(0.0, 0.020))  # a step of 130 ms; rank 0 waits 20 of it
    made = only(tmp_path, slow)
    # Of 2 x 130 ms: rank 1 computes 20 ms longer (kernels), rank 0 waits as long (stragglers), both reduce 10 ms.
    assert shares(made) == {
        "kernels": pytest.approx(100 * (0.01 + 0.01 / 0.03 * 0.06) / 0.13, abs=0.01),
        "within": pytest.approx(-100 * 0.01 / 0.03 * 0.06 / 0.13, abs=0.01),
        "exposed": pytest.approx(100 * 0.01 / 0.13, abs=0.01),
        "stragglers": pytest.approx(100 * 0.01 / 0.13, abs=0.01),
    }


def test_stragglers_are_never_more_than_what_was_waited(tmp_path: Path) -> None:
    unseen = Phased(replace(TWO, framework="torch_ddp"), grown(), lags=(0.0, 0.020), waits_in="optimizer")
    assert only(tmp_path, unseen).part("stragglers") == 0.0, "backward, where DDP waits, did not grow for it"


def test_a_framework_that_communicates_in_forward_borrows_a_neighbours_computing(tmp_path: Path) -> None:
    sharded = Phased(replace(TWO, framework="torch_fsdp2"), grown(forward=0.013, backward=0.026))
    alone = only(tmp_path / "alone", sharded)
    assert shares(alone) == {"mixed": pytest.approx(100 * 0.039 / 0.139, abs=0.01)}
    crowded = Phased(TWO, grown(forward=0.003, backward=0.006))  # computing is 10 % slower beside another worker
    helped = only(tmp_path / "helped", crowded, sharded)
    assert shares(helped) == {
        "kernels": pytest.approx(100 * 0.009 / 0.139, abs=0.01),
        "within": pytest.approx(100 * 0.030 / 0.139, abs=0.01),
    }


def test_forward_communicates_where_it_synchronises_buffers(tmp_path: Path) -> None:
    def shares_with(buffers: str | None) -> dict[str, Any]:
        ddp = replace(TWO, framework="torch_ddp", keys=(*TWO.keys, ("buffers", buffers)))
        return shares(only(tmp_path / str(buffers), Phased(ddp, grown(forward=0.013, backward=0.026))))

    # As slower kernels only where nothing else happens in forward. A record of before the key did synchronise.
    assert "kernels" in shares_with("local")
    assert set(shares_with("synced")) == set(shares_with(None)) == {"mixed"}


def test_smaller_batches_pay_the_fixed_cost_more_often(tmp_path: Path) -> None:
    def computing(batch: int) -> dict[str, float]:
        return {"forward": 0.006 + 0.001 * batch, "backward": 0.012 + 0.002 * batch}

    base = [Phased(replace(ONE, batch_per_worker=batch), computing(batch)) for batch in (32, 64)]
    halved = Phased(replace(TWO, batch_per_worker=32), computing(32))
    made = of(results.read(plant_phased(tmp_path, [*base, halved], scaling="strong")))
    # 64 samples: 2 x 114 ms of work where one worker needs 210 ms, all of it the fixed 18 ms again.
    assert shares(made) == {"fixed": pytest.approx(100 * 18 / 228, abs=0.01)}


def test_a_baseline_that_accumulates_pays_its_fixed_cost_for_each_micro_batch(tmp_path: Path) -> None:
    def computing(batch: int, micro_batches: int) -> dict[str, float]:
        return {
            name: part * (0.006 * micro_batches + 0.001 * batch) for name, part in (("forward", 1), ("backward", 2))
        }

    two = (("accumulation", 2),)
    base = [Phased(replace(ONE, batch_per_worker=batch, keys=two), computing(batch, 2)) for batch in (64, 128)]
    crowded = {name: 1.5 * seconds for name, seconds in computing(64, 2).items()}
    halved = Phased(replace(TWO, batch_per_worker=64, keys=two), crowded)
    made = of(results.read(plant_phased(tmp_path, [*base, halved], scaling="strong")))
    # 128 samples: 2 x 342 ms of work where one worker needs 420 ms; its fixed 18 ms of a micro-batch come four times
    # and not twice. All else is slower kernels.
    assert shares(made) == {
        "fixed": pytest.approx(100 * 36 / 684, abs=0.01),
        "kernels": pytest.approx(100 * (264 - 36) / 684, abs=0.01),
    }


def test_what_no_phase_covers_of_a_baseline_is_no_gain_of_a_pipelines_bubble(tmp_path: Path) -> None:
    planted = [Pipeline("gpipe", p=2, m=4, batch=32, update=0.0, waits_in=None)]
    single = [Planted("single", "transformer_lm", 32, speed=80.0)]
    read = results.read(plant_pipelines(tmp_path, planted, single, baseline={"framework": "single"}))
    made, before = of(read, "torch_pipeline"), 100 / 80 / 2  # of the pipeline's two workers' seconds, the baseline's
    assert made.part("bubble") == pytest.approx(0.2), "1 / (4 + 1) of the makespan, which here is all of the step"
    assert made.part("unattributed") == pytest.approx(-0.1 * before, rel=0.02)
    assert not {part.name for part in made.parts} & {"within", "stragglers"}


@pytest.mark.parametrize("nothing", [None, 0.0])
def test_phases_that_are_all_nothing_are_not_phases(tmp_path: Path, nothing: float | None) -> None:
    """As a record of another program, or of an older one, may have them: no share of them is any number."""
    empty = dict.fromkeys(PHASE_COLUMNS, nothing)
    folder = changed_ranks(plant_phased(tmp_path, [BASE]), lambda rank: rank["phases"].update(empty))
    (one,) = bottlenecks(results.read(folder))
    assert (one.evidence, one.shares) == ("Its phases were not measured.", {})


def test_without_phases_nothing_is_attributed_and_it_says_why(tmp_path: Path) -> None:
    read = without_phases(plant_phased(tmp_path, [BASE, Phased(TWO, {"unattributed": 0.125})]), "horovod")
    made = of(read)
    assert (shares(made), made.why) == ({"unattributed": 20.0}, "its phases were not measured")
    assert attribution.listing(read).nothing == "of no pair were the phases of both sides measured"
    assert [row[0] for row in bottleneck.listing(read).rows] == ["single"], "a row without information is a note"
    assert "Not known of 1 configuration, whose phases were not measured." in bottleneck.listing(read).notes


def test_in_rounds_one_launch_that_was_looked_at_stands_for_all_and_claims_no_interval(tmp_path: Path) -> None:
    base, slower = (replace(one, keys=(("warm", True),)) for one in (ONE, TWO))
    planted = [Phased(base, STEP), Phased(slower, grown(communication=0.025))]
    read = without_phases(plant_phased(tmp_path, planted), after=1)
    made = of(read)
    assert made.row["n"] == 3 and shares(made) == {"exposed": 20.0}
    assert all(part.low is None for part in made.parts)
    assert any("one launch was looked at" in note for note in attribution.listing(read).notes)
    assert {one.kind for one in bottlenecks(read)} == {"compute"}


def test_a_baseline_of_several_workers_counts_by_the_worker(tmp_path: Path) -> None:
    planted = [Phased(TWO, STEP), Phased(replace(TWO, workers=4), grown(communication=0.025))]
    made = of(results.read(plant_phased(tmp_path, planted, baseline={"framework": "horovod", "workers": 2})))
    assert made.efficiency == pytest.approx(0.8) and made.row["efficiency"] == pytest.approx(0.8)
    assert shares(made) == {"exposed": 20.0}


def test_a_failed_repeat_says_nothing(tmp_path: Path) -> None:

    def fail(record: dict[str, Any]) -> None:
        if record["trial"]["repeat"] == 3:
            record |= {"status": "failed", "reason": "planted", "ranks": []}

    folder = plant_phased(tmp_path, [BASE, Phased(TWO, grown(communication=0.025))])
    read = results.read(changed(folder, fail, "horovod"))
    assert read.configurations.set_index("framework").n["horovod"] == 2
    assert shares(of(read)) == {"exposed": 20.0}
    assert all(part.low is None for part in of(read).parts), "two repeats bound nothing"


# --- properties ---

POSITIVE = st.floats(0.001, 1.0)


def measured(framework: str, workers: int, rates: Any, shares: Any, lags: Any) -> MeasuredSteps:
    row = {"framework": framework, "workers": workers, "zero_stage": None, "configuration": framework,
           "tensor_parallel": None, "shard_group": None, "global_batch": 32 * workers, "batch_per_worker": 32,
           "accumulation": 1, "micro_batches": None, "buffers": "local", "buffers_bytes": 0}  # fmt: skip
    return MeasuredSteps(row, rates, shares, np.ones(len(PHASES), dtype=bool), lags, 0.0)


@st.composite
def a_configuration(draw: st.DrawFn, framework: str, workers: int) -> MeasuredSteps:
    repeats = draw(st.integers(1, 4))
    shares = np.array([[draw(POSITIVE) for _ in PHASES] for _ in range(repeats)])
    lags = np.array([draw(st.floats(0, 0.3)) for _ in range(repeats)]) if workers > 1 else np.zeros(repeats)
    rates = np.array([draw(st.floats(1.0, 1000.0)) for _ in range(repeats)])
    return measured(framework, workers, rates, shares / shares.sum(axis=1, keepdims=True), lags)


@given(
    base=a_configuration("single", 1),
    ours=st.sampled_from(
        ["horovod", "torch_ddp", "torch_fsdp2", "deepspeed_zero", "torch_dp", "torch_pipeline", "hivemind", "theirs"]
    ).flatmap(lambda name: a_configuration(name, 4)),
    slower=st.none() | st.floats(0.5, 2.0),
)
def test_parts_add_up_to_what_was_lost(base: MeasuredSteps, ours: MeasuredSteps, slower: float | None) -> None:
    made = attribute(ours, base, LossEvidence(ours.row, slower, 0.0, (32.0, 32.0)))
    scale = 1 + sum(abs(part.lost) for part in made.parts)
    assert sum(part.lost for part in made.parts) == pytest.approx(made.lost, abs=1e-12 * scale)
    for part in made.parts:
        assert part.low is None or part.high is None or part.low <= part.lost <= part.high
    assert made.part("stragglers") >= 0.0


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    truth, hits = 0.02 / 0.12, 0
    parts = np.array([0.002, 0.030, 0.060, 0.0, 0.0, 0.0, 0.005, 0.003])

    def drawn(more: float, workers: int) -> MeasuredSteps:
        phases = np.tile(parts, (5, 1)) * (1 + 0.01 * rng.standard_normal((5, len(PHASES))))
        phases[:, steps.COMMUNICATION] += more * (1 + 0.05 * rng.standard_normal(5))
        whole = phases.sum(axis=1)
        return measured("horovod", workers, 32 * workers / whole, phases / whole[:, None], np.zeros(5))

    count = 400
    for _ in range(count):
        ours, base = drawn(0.02, 2), drawn(0.0, 1)
        made = attribute(ours, base, LossEvidence(ours.row, None, 0.0, (32.0, 32.0)))
        part = next(part for part in made.parts if part.name == "exposed")
        assert part.low is not None and part.high is not None
        hits += part.low <= truth <= part.high
    assert 0.91 <= hits / count <= 0.985
