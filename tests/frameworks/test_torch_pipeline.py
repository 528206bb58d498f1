"""Pipelines: what a schedule does when, what it sends and keeps, and what a gate says of broken ones."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import forked
import pytest

from scaling_study.launch import launchers
from scaling_study.ranks import as_pipelined
from scaling_study.records import store
from scaling_study.settings import CHECKOUT
from scaling_study.study import support
from scaling_study.trial import Trial

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent
SCRIPT = CHECKOUT / "pipeline/torch_pipeline.py"
QUICK = ["--data=synthetic", "--batch-per-worker=8", "--micro-batches=4", "--steps=4", "--warmup-steps=1",
         "--cores-per-worker=1", "--device=cpu"]  # fmt: skip
LANGUAGE = ["--model=transformer_lm", "--sequence-length=8"]
EDGE = 2 * 8 * 200 * 4  # bytes of one micro-batch between two stages: (2, 8, 200) fp32


def run(argv: list[str] | tuple[str, ...], returncode: int = 0) -> str:
    done = forked.run(argv)
    assert done.returncode == returncode, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def trained(folder: Path, *flags: str, script: Path = SCRIPT, workers: int = 2) -> list[store.RankReport]:
    trial = Trial(framework="torch_pipeline", workers=workers)
    program = [sys.executable, str(script), *flags, "--record", str(folder)]
    run(launchers.torchrun(trial, program, BIN).argv)
    return store.read_ranks(folder, workers)


def orders(report: store.RankReport) -> str:
    """What a rank did in its first instrumented step: `F0 F1 B0 B1`."""
    letters = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
    return " ".join(f"{letters[kind]}{part}" for step, kind, _, part, *_ in report.timeline if step == 0)


def test_gpipe_keeps_all_micro_batches_and_1f1b_one_a_stage(tmp_path):
    gpipe = trained(tmp_path / "gpipe", *LANGUAGE, *QUICK, "--schedule", "gpipe")
    steady = trained(tmp_path / "1f1b", *LANGUAGE, *QUICK, "--schedule", "1f1b")
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
        assert {first.parameters, last.parameters} == {12_025_582}  # of the unsplit model, on every rank
        assert sum(stage.parameters for rank in (first, last) for stage in rank.stages) == 12_025_582
    assert gpipe[1].loss_first == pytest.approx(steady[1].loss_first, rel=1e-5)


def test_events_lie_on_one_clock_and_in_the_order_of_the_data(tmp_path):
    first, last = trained(tmp_path, "--model=resnet8", *QUICK, "--schedule", "1f1b")
    ended = {(kind, part): end for _, kind, _, part, _, end in first.timeline}
    for _, kind, stage, part, start, end in last.timeline:
        assert stage == 1 and 0 <= start < end
        if kind == "forward":
            assert ended["forward", part] <= start + 1e-4
        else:
            assert end <= ended["backward", part] + 1e-4
    assert any("BatchNorm sees micro-batches of 2 samples" in note for note in last.notes)


def test_a_cut_by_time_is_the_same_on_every_rank_and_no_layer_is_lost(tmp_path):
    ranks = trained(tmp_path, "--model=resnet8", *QUICK, "--stage-cut", "time")
    assert [layer for rank in ranks for stage in rank.stages for layer in stage.layers] == [
        "stem", "blocks.0", "blocks.1", "blocks.2", "head",
    ]  # fmt: skip


def judged(folder: Path, gate: Trial, script: Path) -> dict[str, Any]:
    store.write_json(folder / "trial.json", {**gate.to_dict(), "window": asdict(gate.window)})
    program = [sys.executable, str(script), *gate.to_argv(), "--record", str(folder)]
    run(launchers.torchrun(gate, program, BIN).argv)
    run([sys.executable, "-m", "scaling_study.parity.compare", str(folder)])
    return json.loads((folder / "parity.json").read_text())


FAULTS = {  # what is broken -> what the gate says of it
    "replicas_that_do_not_average": ("replicas.average = lambda *given: None", "weights after step 1"),
    "shared_weights_that_are_not_added_up": ("replicas.add_up = lambda *given: None", "weights after step 1"),
    "a_stage_that_never_steps": (
        "place.Place.optimizer = lambda self, w: w.optimizer([torch.nn.Parameter(torch.zeros(1))]) if self.first else "
        "w.optimizer(w.model.parameters())", "weights after step 1"
    ),
}  # fmt: skip
BROKEN = """
import runpy, sys, torch
from scaling_study import stages
from scaling_study.stages import parts as place, stage as replicas
{fault}
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_names_what_a_broken_pipeline_does_wrong(tmp_path, fault):
    line, said = FAULTS[fault]
    model = "albert_tiny" if "shared" in fault else "resnet8"
    (tmp_path / "broken.py").write_text(BROKEN.format(fault=line, script=str(SCRIPT)))
    shape = {"workers": 4, "replicas": 2} if "replicas" in fault else {"workers": 2}
    asked = Trial(framework="torch_pipeline", launcher="torchrun", model=model, batch_per_worker=8, **shape)
    gate, *_ = support.gates_of(replace(as_pipelined(asked), device="cpu", data="synthetic"))
    assert said in judged(tmp_path, gate, tmp_path / "broken.py")["verdict"]


def test_a_shape_that_cannot_be_is_one_clear_line():
    launcher = launchers.torchrun(Trial(framework="torch_pipeline", workers=2), [sys.executable, str(SCRIPT)], BIN)
    said = run([*launcher.argv, "--batch-per-worker=10", "--micro-batches=4"], returncode=1)
    assert "--micro-batches: micro_batches=4 does not divide batch_per_worker=10" in said


# --- the siblings ---


def test_naive_model_parallelism_never_overlaps(tmp_path):
    flags = [flag for flag in QUICK if "micro" not in flag]
    ranks = trained(tmp_path, *LANGUAGE, *flags, script=CHECKOUT / "pipeline/naive_model_parallel.py")
    assert [orders(rank) for rank in ranks] == ["F0 B0", "F0 B0"]
    step = [event for rank in ranks for event in rank.timeline if event[0] == 0]
    times = sorted(event[4:] for event in step)
    assert all(end <= start + 1e-4 for (_, end), (start, _) in pairwise(times))
    assert {rank.communication_bytes["send"] for rank in ranks} == {4 * EDGE}  # the whole batch at once


def test_fairscale_pipe_trains_in_one_process(tmp_path):
    run([sys.executable, str(CHECKOUT / "pipeline/fairscale_pipe.py"), *LANGUAGE, *QUICK, "--workers", "2",
         "--record", str(tmp_path)])  # fmt: skip
    (report,) = store.read_ranks(tmp_path, 1)
    assert (report.samples_per_step, report.parameters) == (8, 12_025_582)
    assert [stage.of for stage in report.stages] == [2, 2] and report.timeline == []
