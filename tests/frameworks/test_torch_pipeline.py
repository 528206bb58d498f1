"""Pipelines: what a schedule does when, what it sends and keeps, and what a gate says of broken ones."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from trained import a_trial, after_doing, judged, ran, ranks_of

from scaling_study.ranks import in_full
from scaling_study.records.schema import RankReport
from scaling_study.trial import Trial, Window

pytestmark = pytest.mark.slow
EDGE = 2 * 8 * 200 * 4  # bytes of one micro-batch between two stages: (2, 8, 200) fp32
PARAMETERS = 12_025_582  # of the unsplit transformer_lm


def a_pipeline(framework: str = "torch_pipeline", model: str = "resnet8", **keys: object) -> Trial:
    parts = {"torch_pipeline": {"micro_batches": 4}, "fairscale_pipe": {"micro_batches": 4, "launcher": "python"}}
    length = {"sequence_length": 8} if model == "transformer_lm" else {}
    known = {"window": Window(1, 4, 0.0, None, 4), **parts.get(framework, {}), **length}
    return in_full(a_trial(framework, model=model, **{**known, **keys}))


def orders(report: RankReport) -> str:
    """What a rank did in its first instrumented step: `F0 F1 B0 B1`."""
    letters = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
    return " ".join(f"{letters[kind]}{part}" for step, kind, _, part, *_ in report.timeline if step == 0)


def test_gpipe_keeps_all_micro_batches_and_1f1b_one_a_stage(tmp_path: Path) -> None:
    gpipe, steady = (
        ranks_of(a_pipeline(model="transformer_lm", schedule=schedule), tmp_path / schedule)
        for schedule in ("gpipe", "1f1b")
    )
    assert [orders(rank) for rank in gpipe] == ["F0 F1 F2 F3 B0 B1 B2 B3"] * 2
    assert [orders(rank) for rank in steady] == ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
    kept = [[rank.memory["activations"] for rank in ranks] for ranks in (gpipe, steady)]
    assert kept[0][0] > 1.8 * kept[1][0]  # four micro-batches against two
    assert kept[0][1] > 3 * kept[1][1]  # four against one, beside a buffer or two
    for first, last in (gpipe, steady):
        assert first.communication_bytes["send"] == last.communication_bytes["send"] == 4 * EDGE
        assert (first.samples_per_step, last.samples_per_step) == (0, 8)
        assert (first.tokens_seen, last.tokens_seen) == (None, 4 * 8 * 8)
        assert first.loss_first is None and last.loss_first is not None
        assert {first.parameters, last.parameters} == {PARAMETERS}  # on every rank
        assert sum(stage.parameters for rank in (first, last) for stage in rank.stages) == PARAMETERS
    assert gpipe[1].loss_first == pytest.approx(steady[1].loss_first, rel=1e-5)


def test_events_lie_on_one_clock_in_the_order_of_the_data_and_a_cut_by_time_loses_no_layer(tmp_path: Path) -> None:
    """A cut by time is the same on every rank."""
    first, last = ranks_of(a_pipeline(schedule="1f1b", stage_cut="time"), tmp_path)
    ended = {(kind, part): end for _, kind, _, part, _, end in first.timeline}
    for _, kind, stage, part, start, end in last.timeline:
        assert stage == 1 and 0 <= start < end
        if kind == "forward":
            assert ended["forward", part] <= start + 1e-4
        else:
            assert end <= ended["backward", part] + 1e-4
    assert any("BatchNorm sees micro-batches of 2 samples" in note for note in last.notes)
    layers = [layer for rank in (first, last) for stage in rank.stages for layer in stage.layers]
    assert layers == ["stem", "blocks.0", "blocks.1", "blocks.2", "head"]


AVERAGES, ADDS_UP = ("replicas.average = lambda *given: None", "replicas.add_up = lambda *given: None")
NEVER_STEPS = """
def optimizer(self, w):
    return w.optimizer([torch.nn.Parameter(torch.zeros(1))] if self.first else w.model.parameters())
place.Place.optimizer = optimizer
"""
SUMS = """
from torch.distributed.fsdp import FSDPModule
summed = FSDPModule.set_force_sum_reduction_for_comms
def not_divided(unit, enable):
    summed(unit, enable)
    unit.set_gradient_divide_factor(1.0)
FSDPModule.set_force_sum_reduction_for_comms = not_divided
"""
NAMES = "import torch\nfrom scaling_study.stages import parts as place, stage as replicas\n"


@pytest.mark.parametrize(
    ("fault", "shape"),
    [
        (AVERAGES, {"workers": 4, "replicas": 2}),
        (ADDS_UP, {"model": "albert_tiny"}),  # shares weights
        (NEVER_STEPS, {}),
        (SUMS, {"workers": 4, "replicas": 2, "shard_group": 2}),
    ],
    ids=[
        "replicas that do not average",
        "shared weights that are not added up",
        "a stage that never steps",
        "gradients of shards that nobody divides",
    ],
)
def test_the_gate_names_what_a_broken_pipeline_does_wrong(tmp_path: Path, fault: str, shape: dict[str, object]) -> None:
    answer = judged(a_trial("torch_pipeline", **shape), tmp_path, after_doing(tmp_path, NAMES + fault))
    assert "weights after step 1" in answer["verdict"]


@pytest.mark.long
def test_groups_of_replicas_that_shard_stages_average_with_each_other(tmp_path: Path) -> None:
    """Two groups of two pipelines of two stages."""
    assert judged(a_trial("torch_pipeline", workers=8, replicas=4, shard_group=2), tmp_path)["verdict"] == "passed"


def test_a_shape_that_cannot_be_is_one_clear_line(tmp_path: Path) -> None:
    done = ran(a_trial("torch_pipeline", batch_per_worker=10, micro_batches=4), tmp_path)
    assert done.returncode == 1
    assert "--micro-batches: micro_batches=4 does not divide batch_per_worker=10" in done.stderr


def test_naive_model_parallelism_never_overlaps(tmp_path: Path) -> None:
    ranks = ranks_of(a_pipeline("naive_model_parallel", "transformer_lm"), tmp_path)
    assert [orders(rank) for rank in ranks] == ["F0 B0", "F0 B0"]
    times = sorted(event[4:] for rank in ranks for event in rank.timeline if event[0] == 0)
    assert all(end <= start + 1e-4 for (_, end), (start, _) in pairwise(times))
    assert {rank.communication_bytes["send"] for rank in ranks} == {4 * EDGE}  # the whole batch at once


def test_fairscale_pipe_trains_in_one_process(tmp_path: Path) -> None:
    (report,) = ranks_of(a_pipeline("fairscale_pipe", "transformer_lm"), tmp_path)
    assert (report.samples_per_step, report.parameters) == (8, PARAMETERS)
    assert [stage.of for stage in report.stages] == [2, 2] and report.timeline == []
