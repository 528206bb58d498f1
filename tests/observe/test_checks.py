"""Ranks that do not train one model on data of their own are seen; those that rightly do something else are not.

The judgement is tried on lines; what is seen, on small scripts of two ranks that run one after the other in one fork.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forked
import pytest

from analysis.compare.like_work import FirstSteps, Work, caveats
from observe import scripts
from scaling_study import observe
from scaling_study.launch import observed
from scaling_study.observe.checks import doubts
from scaling_study.observe.held import WARM_STEPS
from scaling_study.observe.steps import Steps, UpTo
from scaling_study.records.schema import DOUBT
from scaling_study.trial import Trial, Window

SAME = "all ranks train on the same data: is a DistributedSampler missing?"
NOT_AVERAGED = "gradients are not averaged: weights of ranks differ after step 4"

# --- judged from lines ---

START, TWO, FOUR = [1.0, 2.0, 3.0], [1.1, 2.1, 3.1], [1.2, 2.2, 3.2]


def rank(inputs: list[int | None], *norms: list[float], layout: int = 7, model_parallel: int = 1) -> list[Any]:
    """Lines of a rank: its inputs of steps 1, 2, ...; norms of its weights after steps 0, 2 and 4."""
    lines: list[dict[str, Any]] = [{"kind": "process"}]
    for step, value in enumerate(inputs, start=1):
        lines.append({"kind": "step", "step": step, "input": value})
    for step, each in zip((1, 3, 5), norms, strict=False):
        lines[step]["weights"] = {"norms": each, "layout": layout, "model_parallel": model_parallel}
    return lines


def off(norms: list[float], by: float = 0.05, of: int = 3) -> list[float]:
    return [value + by * (place < of) for place, value in enumerate(norms)]


A, B, C, D = [1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14, 15], [16, 17, 18, 19, 20]
SOUND = rank(A, START, TWO, FOUR)
APART = rank(B, START, off(TWO), off(FOUR))


def sent(sent_in: list[int] | None, allreduce_bytes: int) -> dict[str, Any]:
    """The last line of a rank with 200 parameters: in some of so many steps it exchanged bytes, here as their mean."""
    inside = {"parameters": 200, "allreduce_bytes": allreduce_bytes, **({"sent_in": sent_in} if sent_in else {})}
    return {"kind": "end", "inside": inside}


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        pytest.param([SOUND], [], id="one rank"),
        pytest.param([SOUND, rank(B, START, TWO, FOUR)], [], id="sound"),
        pytest.param([SOUND, SOUND], [SAME], id="no sampler"),
        pytest.param([SOUND, rank(A[:1] + B[1:], START, TWO, FOUR)], [], id="one batch in common"),
        pytest.param([rank([None] * 5), rank([None] * 5)], ["not checked whether all ranks"], id="constant inputs"),
        pytest.param([rank([1] * 5), rank([1] * 5)], ["a fixed batch"], id="one batch for all"),
        pytest.param([rank([1] * 5), rank([2] * 5)], [], id="a batch of its own for each"),
        pytest.param([rank(A), rank(B), rank(A), rank(B)], ["ranks 0 and 2 train on the same data"], id="local ranks"),
        pytest.param([SOUND, rank(B, START, off(TWO), off(FOUR))], [NOT_AVERAGED], id="no averaging"),
        pytest.param([SOUND, rank(A, START, off(TWO), off(FOUR))], [SAME, NOT_AVERAGED], id="neither"),
        pytest.param([SOUND, rank(B, START, off(TWO), FOUR)], [], id="local SGD, every four"),
        pytest.param([SOUND, rank(B, START, TWO, off(FOUR))], [], id="local SGD, every two or three"),
        pytest.param([SOUND, [*APART, sent([2, 16], 100)]], [], id="local SGD, every eight"),
        pytest.param([SOUND, [*APART, sent([2, 16], 1)]], [NOT_AVERAGED], id="a loss, every eight"),
        pytest.param([SOUND, [*APART, sent(None, 800)]], [NOT_AVERAGED], id="as much in every step"),
        pytest.param([SOUND, rank(B, START, off(TWO))], ["differ after step 2"], id="ended after step 3"),
        pytest.param([SOUND, rank(B, START)], [], id="ended before it moved"),
        pytest.param([SOUND, rank(B, off(START), off(TWO), off(FOUR))], ["broadcast?"], id="not broadcast"),
        pytest.param([SOUND, rank(B, off(START), off(TWO), FOUR)], [], id="averaged by and by"),
        pytest.param([SOUND, rank(A, off(START), off(TWO), off(FOUR))], ["tensor parallel), or are"], id="not told"),
        pytest.param([SOUND, rank(B, START, off(TWO, of=1), off(FOUR, of=1))], ["1 of 3"], id="experts"),
        pytest.param([SOUND, rank(B, START, off(TWO, 1e-4), off(FOUR, 1e-4))], [], id="rounding"),
        pytest.param([rank(A, START, START, START), rank(B, START, START, START)], [], id="nothing moved"),
        pytest.param(
            [rank(A, START, START, FOUR), rank(B, START, START, off(FOUR))], [NOT_AVERAGED], id="a rate from zero"
        ),
        pytest.param([rank(A, [], [], []), rank(B, [], [], [])], [], id="shards"),
        pytest.param([rank(A, [], [], []), rank(A, [], [], [])], [SAME], id="shards of the same data"),
        pytest.param([rank(A, [], model_parallel=2), rank(A, [], model_parallel=2)], [], id="tensor parallel"),
        pytest.param([rank(A, [], model_parallel=2)] * 4, [SAME], id="tensor parallel, two copies of it"),
        pytest.param([rank(row, [], model_parallel=2) for row in (A, A, B, B)], [], id="copies on their own data"),
        pytest.param([rank(A, START, layout=1), rank([None] * 5, FOUR, layout=2)], [], id="stages of a pipeline"),
        pytest.param(
            [rank(A, START, layout=stage) for stage in (1, 2, 1, 2)],
            ["ranks 0 and 2 train", "ranks 1 and 3 train"],
            id="copies of a pipeline on the same data",
        ),
        pytest.param([[*SOUND[:2], {"step": 2, "unchecked": "X: y"}]] * 2, ["only in part", SAME], id="a fault"),
        pytest.param([rank(A, [float("nan")] * 3, [1.0] * 3), rank(B, START, TWO)], [], id="diverged"),
    ],
)  # fmt: skip
def test_ranks_are_doubted_for_a_reason(ranks: Any, said: list[str]) -> None:
    found = list(doubts(ranks))
    assert len(found) == len(said) and all(map(str.__contains__, found, said)), found


# --- seen in scripts ---

RANKS = """
import torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group("gloo")
own = torch.utils.data.DistributedSampler(data, shuffle=False)
def train(sampler=None, after=lambda index: None):
    for index, (x, y) in enumerate(DataLoader(data, 8, sampler=sampler)):
        step(x, y)
        after(index)
        if index == 5:
            break
"""
WRAPPED = "model = nn.parallel.DistributedDataParallel(model)\n"
FSDP2 = """
from torch.distributed.fsdp import fully_shard
fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
"""
TENSOR_PARALLEL = """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
parallelize_module(model, dist.init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "3": RowwiseParallel()})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train()
"""
ZERO = """
from torch.distributed.optim import ZeroRedundancyOptimizer
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
train(own)
"""
LOCAL_SGD = """
def average(index):
    if index % 4 == 3:
        for weights in model.parameters():
            dist.all_reduce(weights.data)
            weights.data /= 2
train(own, average)
"""
NOT_BROADCAST = """
torch.manual_seed(dist.get_rank())
model[0] = nn.Linear(8, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(x, y):
    optimizer.zero_grad()
    loss_of(x, y).backward()
    for weights in model.parameters():
        dist.all_reduce(weights.grad)
        weights.grad /= 2
    optimizer.step()
train(own)
"""
ANOTHER_SEED = """
torch.manual_seed(1)
model[0] = nn.Linear(8, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
FIXED = "x, y = data[:8]\nfor _ in range(6):\n    step(x, y)\n"
SCALED = 'optimizer.param_groups[0]["lr"] *= dist.get_world_size()\ntrain(own)\n'
CASES = {
    "sound": (f"{WRAPPED}train(own)", []),
    "sound again": (f"{WRAPPED}train(own)", []),
    "another seed": (f"{ANOTHER_SEED}{WRAPPED}train(own)", []),
    "scaled": (f"{WRAPPED}{SCALED}", []),
    "no sampler": (f"{WRAPPED}train()", [SAME]),
    "no averaging": ("train(own)", [NOT_AVERAGED]),
    "no averaging, no sampler": ("torch.manual_seed(dist.get_rank())\ntrain()", [SAME, NOT_AVERAGED]),
    "not broadcast": (NOT_BROADCAST, ["weights of ranks differ from the start"]),
    "local SGD": (LOCAL_SGD, []),
    "FSDP2": (f"{FSDP2}train(own)", []),
    "FSDP2, no sampler": (f"{FSDP2}train()", [SAME]),
    "ZeRO": (f"{WRAPPED}{ZERO}", []),
    "tensor parallel": (TENSOR_PARALLEL, []),
    "a fixed batch": (f"{WRAPPED}{FIXED}", ["a fixed batch"]),
}
PROGRAM = """
import os, torch
from scaling_study.observe import hooks
folder = os.environ["SCALING_STUDY_OBSERVE"]
hooks.attach(torch, folder)
observer = hooks.FOUND[0]
for name, text in CASES.items():
    observer.folder = os.path.join(folder, name)
    observer.begin()
    exec(text, {})
    observer.finish()
torch.distributed.barrier()
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[dict[str, Any]]]]:
    """The lines of both ranks of each case."""
    folder = tmp_path_factory.mktemp("checks")
    for name in CASES:
        (folder / name).mkdir()
    texts = {name: f"{scripts.HEAD}{RANKS}{text}" for name, (text, _) in CASES.items()}
    program = folder / "cases.py"
    program.write_text(f"CASES = {texts!r}\n{PROGRAM}")
    done = forked.run(["torchrun", "--nproc-per-node", "2", program], {observe.FOLDER: str(folder)})
    assert done.returncode == 0, done.stderr
    return {name: observe.read(Path(folder, name)) for name in CASES}


def reports(lines: list[list[dict[str, Any]]]) -> Any:
    trial = Trial(framework="command", command="x", workers=2, batch_per_worker=8, window=Window(2, 2, 0.0))
    return observed.reports(trial, lines, ())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_planted_fault_of_ranks_is_a_note_and_its_sound_sibling_none(
    name: str, seen: dict[str, list[list[dict[str, Any]]]]
) -> None:
    said = CASES[name][1]
    first, second = reports(seen[name])
    found, others = ([note for note in each.notes if note.startswith(DOUBT)] for each in (first, second))
    assert len(found) == len(said) and all(map(str.__contains__, found, said)), found
    assert not others


@pytest.mark.slow
def test_seeds_decide_losses_and_a_scaled_learning_rate_is_said(seen: dict[str, list[list[dict[str, Any]]]]) -> None:
    def first_steps(name: str) -> Work:
        ranks = reports(seen[name])
        both = zip(*(each.first_losses for each in ranks), strict=True)
        losses = tuple(sum(each) / 2 for each in both)
        return Work(name, 2, 16, FirstSteps((losses,), ranks[0].first_learning_rates))

    sound = first_steps("sound")
    assert list(caveats(sound, first_steps("sound again"))) == [
        "losses of the first 6 steps are equal bit for bit in sound and sound again"
    ]
    assert "are apart from step 1 on" in next(caveats(sound, first_steps("another seed")))
    assert next(caveats(sound, first_steps("scaled"))) == "learning rates differ: 0.1 in sound, 0.2 in scaled"


@pytest.mark.slow
def test_what_is_looked_at_is_small(seen: dict[str, list[list[dict[str, Any]]]]) -> None:
    (_, *steps, _), _ = seen["sound"]
    assert ["input" in step for step in steps] == [True] * 5 + [False]
    assert [len(step["weights"]["norms"]) if "weights" in step else 0 for step in steps] == [4, 0, 4, 0, 4, 0]
    assert len(json.dumps([[step.get("input"), step.get("weights")] for step in steps])) < 1000


def test_looking_takes_no_time_of_a_step() -> None:
    now = [0.0]
    steps = Steps(lambda: now[0])

    def look(done: int) -> dict[str, Any]:
        now[0] += 5
        return {"input": done}

    for _ in range(2):
        now[0] += 1
        steps.aside(look)
        steps.forward(True, 4)
        now[0] += 2
        steps.optimized("SGD", 0.1, False)
    steps.finish()
    assert steps.seconds == [3, 3] and [piece.checks["input"] for piece in steps.lines] == [0, 1]


def test_ranks_are_held_after_whole_steps_of_a_critic_and_its_generator() -> None:
    held: list[tuple[int, str]] = []

    class Driver(UpTo):
        def go_on(self, done: int) -> bool:
            held.append((done, steps.lines[-1].optimizer))
            self.until = done + 2
            return True

    steps = Steps(goal=Driver(WARM_STEPS), another=lambda: "generator" not in steps.counts)
    for turn in range(10 * 6):
        steps.forward(True, 8)
        steps.backward(None)
        steps.optimized("generator" if turn % 6 == 5 else "critic", 0.1, False)
    assert held == [(done, "generator") for done in (5, 7, 9)]
    assert {piece.backwards for piece in steps.lines} == {6}
