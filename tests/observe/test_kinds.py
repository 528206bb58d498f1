"""Training scripts of each kind are seen as they are, train what they train without, and end where they are asked to.

Ranks are forked and attach themselves (tests/forked.py); how a process comes to be observed is in test_observed.py.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forked
import pytest

from observe import scripts
from scaling_study import observe

pytestmark = pytest.mark.slow
ATTACH = """
import os, torch
from scaling_study.observe import hooks
hooks.attach(torch, os.environ["SCALING_STUDY_OBSERVE"])
"""
FINISH = "\nhooks.FOUND[0].finish()\n"  # a fork ends without what a Python that exits would call


@dataclass(frozen=True)
class Kind:
    """A script, how many steps it takes, and what one step holds on each rank; a list has a value a rank.

    `samples` (None: not to be known), `parts` that take time, FLOPs of its forward passes and of all of it, and bytes
    by kind of collective. WHY: not to be known, for a reason that has these words. None: looked at, of no matter.
    """

    name: str
    script: str
    steps: int
    samples: Any = 16
    ranks: int = 1
    optimizer: str = "SGD"
    parts: tuple[str, ...] = ("data", "forward", "backward", "optimizer", "rest")
    flops: Any = (5120, 11264)  # 2 x 16 x (8 x 16 + 16 x 2), and as much for weights, and 2 x 16 x 16 x 2 for ReLU's
    bytes: Any = field(default_factory=dict)
    needs: str = ""  # a library that need not be here


MODEL_BYTES = 4 * (8 * 16 + 16 + 16 * 2 + 2)
NO_LOADER = ("forward", "backward", "optimizer", "rest")
BY_HAND = ("data", "forward", "backward", "rest")
PAUSED = ("forward", "backward", "evaluation", "saving")
LONGER = "accumulation of 48 batches"
KINDS = [
    Kind("plain", scripts.PLAIN, 6),
    Kind("without a loader", scripts.WITHOUT_LOADER, 6, parts=NO_LOADER),
    Kind("loader with workers", scripts.WORKERS, 6),
    Kind("scaler", scripts.SCALER, 6),
    Kind("accumulation", scripts.ACCUMULATION, 4, 24, flops=(7680, 16896)),
    Kind(LONGER, scripts.LONG_ACCUMULATION, 4, 96, flops=(30720, 67584)),
    Kind("a short last batch", scripts.SHORT_LAST, 6, 36, flops=(7680, 16896)),  # of the third step, which is one
    Kind("two optimisers", scripts.TWO_OPTIMIZERS, 4, None, flops=(3 * 128 + 2560, 3 * 256 + 5632)),
    Kind("an optimiser for each group", scripts.PER_GROUP, 6),
    Kind("LBFGS", scripts.LBFGS, 6, optimizer="LBFGS", flops=None),
    Kind("no optimiser", scripts.NO_OPTIMIZER, 27, optimizer="", parts=BY_HAND),
    Kind("explicit", scripts.EXPLICIT, 6, optimizer="", parts=BY_HAND),
    Kind("without a module", scripts.FUNCTION, 6, parts=("data", "backward", "optimizer", "rest"), flops=(512, 1024)),
    Kind(
        "an optimiser for each parameter in backward, batches of a thread, a teacher", scripts.IN_BACKWARD, 6,
        parts=NO_LOADER, flops=(5120 + 512, 11264 + 512),
    ),
    Kind("a step inside a forward pass, nested tensors", scripts.IN_FORWARD, 6),
    Kind("evaluation in the middle", scripts.EVALUATION, 6, parts=PAUSED),
    Kind("sequence first", scripts.SEQUENCE_FIRST, 6, None, flops=None),
    Kind("without a loader, sequence first", scripts.SEQUENCE_ALONE, 6, None, parts=NO_LOADER, flops=None),
    Kind("a process of multiprocessing, while an error is handled", scripts.FORKED, 6),
    Kind("compiled", scripts.COMPILED, 6, flops="torch.compile", bytes="torch.compile"),
    Kind("DDP", scripts.DDP + scripts.LEFT, 3, ranks=2, bytes={"allreduce": MODEL_BYTES}),
    Kind("local SGD", scripts.LOCAL_SGD, 12, ranks=2, bytes={"allreduce": MODEL_BYTES // 4}),  # in every fourth step
    Kind("FSDP2", scripts.FSDP2, 3, ranks=2, optimizer="AdamW", bytes={"all_gather": 1288, "reduce_scatter": 712}),
    Kind(
        "ZeRO-1", scripts.ZERO_1, 3, ranks=2, optimizer="ZeroRedundancyOptimizer",
        bytes={"allreduce": MODEL_BYTES, "broadcast": MODEL_BYTES},
    ),
    Kind(
        "FairScale", scripts.FAIRSCALE, 3, ranks=2, optimizer="OSS",
        bytes={"reduce": MODEL_BYTES, "broadcast": MODEL_BYTES},
    ),
    Kind(
        "pipeline", scripts.PIPELINE, 6, [16, None], ranks=2, flops="a part of the model",
        bytes={"send": 16 * 16 * 4}, parts=NO_LOADER,
    ),
    Kind("Lightning", scripts.LIGHTNING, 6),
    Kind("Accelerate", scripts.ACCELERATE, 6, needs="accelerate"),
    Kind("HF Trainer", scripts.TRAINER, 6, needs="accelerate"),
    Kind("DeepSpeed", scripts.DEEPSPEED, 3, ranks=2, optimizer="AdamW", bytes=None),
]  # fmt: skip
LONG = ("DeepSpeed", "Accelerate", "HF Trainer")
TIMED = ("[20", "{'train_runtime'")
OTHER_LOSS = (  # that backward gets
    "accumulation", LONGER, "sequence first", "compiled", "pipeline", "Accelerate", "DeepSpeed",
)  # fmt: skip
Run = Callable[..., tuple[subprocess.CompletedProcess[str], list[list[dict[str, Any]]]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """run(kind): without the observer; run(kind, folder, steps): with it, and what it wrote."""

    def runs(script: str, ranks: int = 1, folder: str = "", steps: int | None = None) -> Any:
        program, out = tmp_path / "train.py", tmp_path / (folder or "none")
        out.mkdir(exist_ok=True)
        text = scripts.HEAD + script
        program.write_text(f"{ATTACH}{text}{FINISH}" if folder else text)
        env = observe.environment({}, out, steps) if folder else {}
        env.pop("PYTHONPATH", None)
        start = ["torchrun", "--nproc-per-node", str(ranks)] if ranks > 1 else [sys.executable]
        done = forked.run([*start, program], env)
        assert done.returncode == 0, done.stderr
        return done, observe.read(out)

    return runs


def marks(kind: Kind) -> list[pytest.MarkDecorator]:
    missing = bool(kind.needs) and importlib.util.find_spec(kind.needs) is None
    return [pytest.mark.long] * (kind.name in LONG) + [pytest.mark.skip(f"{kind.needs} is not here")] * missing


def of_rank(value: Any, rank: int) -> Any:
    return value[rank] if isinstance(value, list) else value


def check_inside(kind: Kind, inside: dict[str, Any]) -> None:
    """What one step was seen to hold is what it must hold in theory, or its reason is given."""
    unknown = inside["unknown"]
    if isinstance(kind.flops, str):
        assert inside.get("forward_flops") is None and kind.flops in unknown["forward_flops"]
    elif kind.flops:
        assert (inside["forward_flops"], inside["flops"]) == kind.flops
    else:
        assert 0 < inside["forward_flops"] < inside["flops"]
    if isinstance(kind.bytes, str):
        assert inside.get("communication_bytes") is None and kind.bytes in unknown["communication_bytes"]
    else:
        seen = inside["communication_bytes"]
        assert seen == kind.bytes if kind.bytes is not None else seen["allreduce"] > 0
        assert inside["backend"] == ("gloo" if kind.ranks > 1 else "")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks(kind), id=kind.name) for kind in KINDS])
def test_a_script_is_seen_as_it_is_and_its_losses_stay_bit_for_bit(kind: Kind, run: Run) -> None:
    plain, _ = run(kind.script, kind.ranks)
    began = time.perf_counter()
    done, processes = run(kind.script, kind.ranks, "seen")
    took = time.perf_counter() - began
    seen, without = (
        sorted(line for line in each.stdout.split("\n") if not line.startswith(TIMED)) for each in (done, plain)
    )
    assert seen == without, "but for a library's own lines that have the time"
    assert len(processes) == kind.ranks
    for rank, (about, *steps, end) in enumerate(processes):
        assert (about["world"] or 1) == kind.ranks and about["rank"] in (rank, None)
        assert (end["kind"], end["why"], end["steps"], len(steps)) == (
            "end",
            "the script ended",
            kind.steps,
            kind.steps,
        )
        samples = of_rank(kind.samples, rank)
        assert end["samples_per_step"] == samples
        assert bool(end["samples_unknown"]) == (samples is None)
        assert 0 < end["own_seconds"] < took
        assert {step["optimizer"] for step in steps} == {kind.optimizer}
        spent = {part: sum(step["parts"][part] for step in steps) for part in steps[0]["parts"]}
        assert all(spent[part] > 0 for part in kind.parts), spent
        for step in steps:
            assert step["seconds"] + step["pause_seconds"] == pytest.approx(sum(step["parts"].values()), abs=1e-5)
            assert 0 < step["before_backward"] < step["seconds"] - step["parts"]["backward"]
        looked_at = {"compiled": 0, "two optimisers": 2}.get(kind.name, 1)  # two: the critic's alone is no step
        assert sum(step["looked_at"] for step in steps) == looked_at
        check_inside(kind, end["inside"])
        assert "process" in end["peak_memory_of"] and end["peak_memory_bytes"] > 2**20
        printed = {float(line) for line in done.stdout.split("\n") if line.replace(".", "").isdigit()}
        if kind.name not in OTHER_LOSS:
            assert {step["loss"] for step in steps} <= printed


def test_what_a_scaler_left_out_and_what_waits_are_told_apart(run: Run) -> None:
    _, [[_, *steps, end]] = run(scripts.SCALER, 1, "scaler")
    assert [step["skipped"] for step in steps] == [index in (1, 4) for index in range(6)]
    assert end["skipped_steps"] == 2
    _, [[_, *steps, _]] = run(scripts.EVALUATION, 1, "evaluation")
    assert [step["pause_seconds"] > 0.1 for step in steps] == [index == 3 for index in range(6)], "before the fourth"


def test_optimisers_are_named_and_the_rarest_ends_a_step(run: Run) -> None:
    _, [[_, *steps, end]] = run(scripts.TWO_OPTIMIZERS, 1, "two")
    assert (end["optimizers"], end["step_of"]) == ({"Adam": 12, "SGD": 4}, "SGD")
    assert [(step["loader_rows"], step["backwards"]) for step in steps] == [(24, 4)] * 4
    _, [[_, *_, end]] = run(scripts.PER_GROUP, 1, "groups")
    assert (end["optimizers"], end["optimizers_without_work"]) == ({"SGD": 6}, {"Adam": 6})


def test_a_step_that_raised_an_error_ends_with_the_next(run: Run) -> None:
    _, [[_, *steps, end]] = run(scripts.FAILS_ONCE, 1, "fails")
    assert (end["optimizers"], [step["backwards"] for step in steps]) == ({"Careful": 5}, [1, 1, 2, 1, 1])


def test_a_critic_that_steps_five_times_before_its_generator_ends_no_step(run: Run) -> None:
    _, [[_, *steps, end]] = run(scripts.CRITIC, 1, "critic", steps=2)
    assert (end["why"], end["step_of"]) == ("ended by scaling-study after 2 steps", "SGD")
    assert [step["backwards"] for step in steps] == [6, 6]


def test_an_optimizer_that_is_made_late_is_the_one_whose_steps_are_seen(run: Run) -> None:
    _, [[_, *steps, end]] = run(scripts.LATE_OPTIMIZER, 1, "late")
    assert [(step["step"], step["backwards"]) for step in steps] == [(1, 61), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]
    assert (end["steps"], end["step_of"], end["samples_per_step"]) == (6, "SGD", 16)
    assert [step["looked_at"] for step in steps] == [False, False, True, False, False, False]
    assert (end["inside"]["forward_flops"], end["inside"]["flops"]) == (5120, 11264)
    assert ["input" in step for step in steps] == [True] * 5 + [False]


ENDED = [kind for kind in KINDS if kind.name in ("scaler", "explicit", "no optimiser", "DDP", LONGER)]
ENDED += [Kind("a loader that is a batch ahead", scripts.FETCHES_AHEAD, 5)]
ENDED += [Kind("models averaged on the way out", scripts.AVERAGED_ON_ITS_WAY_OUT, 3, ranks=2)]


@pytest.mark.parametrize("kind", ENDED, ids=lambda kind: kind.name)
def test_a_run_ends_at_the_same_step_on_every_rank_with_exit_code_0(kind: Kind, run: Run) -> None:
    _, processes = run(kind.script, kind.ranks, "ended", steps=2)
    assert [end["why"] for *_, end in processes] == ["ended by scaling-study after 2 steps"] * kind.ranks
    assert [sum(line["kind"] == "step" for line in lines) for lines in processes] == [2] * kind.ranks
    assert [end["samples_per_step"] for *_, end in processes] == [kind.samples] * kind.ranks


def test_a_fault_in_the_observer_is_said_and_the_training_goes_on(run: Run) -> None:
    plain, _ = run(scripts.PLAIN)
    broken = "hooks.rate_of = lambda *_: 1 / 0\n" + scripts.PLAIN
    done, [[about, said]] = run(broken, 1, "broken")
    assert done.stdout == plain.stdout
    assert about["kind"] == "process"
    assert said == {"kind": "not observed", "why": "ZeroDivisionError: division by zero"}
