"""The judge on testimonies made by hand: every question has an answer that fails it, and only what is wrong does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from scaling_study.parity import compare, reference
from scaling_study.parity.compare import compared
from scaling_study.parity.reference import forward_backward, run
from scaling_study.records import store
from scaling_study.trial import Trial, Window
from scaling_study.workloads import Workload
from scaling_study.workloads.feed import Feed

TEN = Trial(framework="torch_ddp", workers=2, precision="fp64", find="parity", device="cpu")
HALF = {"weight": (4, 3), "bias": (4,), "mean": (4,)}  # two parameters and a buffer


def right() -> reference.ParityTrace:
    """Two ranks, ten steps of two samples, two epochs of six; every number different from every other."""
    generator = torch.Generator().manual_seed(0)
    order = [torch.randperm(12, generator=generator) for _ in range(2)]
    weights = {
        moment: {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in HALF.items()}
        for moment in ("first", "one", "last")
    }
    return reference.ParityTrace(
        losses=[[2.0 + 0.1 * step + rank for step in range(10)] for rank in range(2)],
        ids=[torch.arange(20).view(10, 2) * 2 + rank for rank in range(2)],
        epochs=[torch.stack([epoch[rank::2] for epoch in order]) for rank in range(2)],
        frozen=[], weights=weights, trained=["weight", "bias"],
    )  # fmt: skip


def faults(seen: reference.ParityTrace, trial: Trial = TEN) -> list[str]:
    return [check.name for check in compared(trial, seen, right()) if not check.ok]


def fault(change: Callable[[reference.ParityTrace], object], trial: Trial = TEN) -> compare.Check:
    """The first check that fails once the testimony is changed: the one that names the fault."""
    seen = right()
    change(seen)
    return next(check for check in compared(trial, seen, right()) if not check.ok)


def test_the_right_testimony_passes_every_check_once():
    answers = list(compared(TEN, right(), right()))
    assert all(check.ok for check in answers)
    assert [check.name for check in answers] == [
        "names, shapes and number of weights", "every parameter is trained", "equally many samples on every rank",
        "epoch 1: no sample twice", "epoch 1: complete", "epoch 2: no sample twice", "epoch 2: complete",
        "a new order every epoch", "samples of every step", "weights before step 1", "loss of step 1",
        "weights after step 1", "loss of 10 steps", "weights after step 10",
    ]  # fmt: skip


def renamed(seen):
    for weights in seen.weights.values():
        weights["gamma"] = weights.pop("mean")


def unequal(seen):
    seen.epochs[0] = seen.epochs[0][:, :5]


def same_shard(seen):
    seen.epochs[1], seen.ids[1] = seen.epochs[0], seen.ids[0]


def incomplete(seen):
    seen.epochs = [epochs[:, :5] for epochs in seen.epochs]


def same_order(seen):
    seen.epochs = [torch.stack([epochs[0], epochs[0]]) for epochs in seen.epochs]


def another_seed(seen):
    seen.ids[1] = seen.ids[1].flip(0)


def loss(rank, step, value):
    def change(seen):
        seen.losses[rank][step] *= value

    return change


NAMES = "names, shapes and number of weights"
PLANTED = [  # (what is changed, the check that names it, its detail)
    (renamed, NAMES, "missing mean; foreign gamma"),
    (lambda seen: seen.weights["first"].update(weight=torch.zeros(3, 4)), NAMES, "another shape of weight"),
    (
        lambda seen: seen.weights["first"].update(bias=torch.zeros(5)),
        NAMES,
        "21 values, 20 are right; another shape of bias",
    ),
    (lambda seen: seen.frozen.append("bias"), "every parameter is trained", "frozen: bias"),
    (unequal, "equally many samples on every rank", "[5, 6] an epoch"),
    (same_shard, "epoch 1: no sample twice", "6 samples are read again"),
    (incomplete, "epoch 1: complete", "10 of 12 samples"),
    (same_order, "a new order every epoch", "rank 0 read both in the same"),
    (another_seed, "samples of every step", "rank 1 read other samples than its shard's"),
    (lambda seen: seen.weights["first"]["bias"][0].mul_(1 + 2**-52), "weights before step 1", "(bias)"),
    (loss(1, 0, 1 + 1e-8), "loss of step 1", "off by 1.0e-08 (rank 1, step 1)"),
    (loss(1, 6, 1 + 1e-8), "loss of 10 steps", "off by 1.0e-08 (rank 1, step 7)"),
    (lambda seen: seen.losses[1].pop(), "loss of step 1", ""),  # a missing step or weight is no crash
    (lambda seen: seen.weights.pop("last"), "weights after step 10", ""),
    (loss(0, 4, math.nan), "loss of 10 steps", ""),  # max() of figures drops a NaN: it is not larger than anything
    (lambda seen: seen.weights["one"]["bias"].fill_(math.nan), "weights after step 1", ""),
    (lambda seen: seen.weights["last"]["mean"].fill_(math.nan), "weights after step 10", ""),
]


@pytest.mark.parametrize(("change", "name", "detail"), PLANTED)
def test_each_fault_is_named_by_the_first_check_that_it_fails(change, name, detail):
    check = fault(change)
    assert check.name == name and detail in check.detail


def test_of_another_model_nothing_more_is_asked_and_what_the_model_freezes_itself_is_right():
    seen = right()
    seen.weights = {}
    assert faults(seen) == [NAMES]
    ours, theirs = right(), right()
    ours.frozen, theirs.frozen = ["embedding"], ["embedding"]
    assert all(check.ok for check in compared(TEN, ours, theirs))
    one_step = Trial(framework="torch_ddp", workers=2, precision="bf16", device="cpu")
    assert fault(lambda seen: seen.weights["one"]["bias"].fill_(math.nan), one_step).name == "the update of step 1"


@given(st.sampled_from(["weight", "bias"]), st.floats(1e-7, 1e3))
def test_any_weight_that_is_off_is_caught(name, size):
    assert fault(lambda seen: seen.weights["one"][name].view(-1)[-1].add_(size)).name == "weights after step 1"


def test_rounding_passes_and_so_does_a_gradient_that_is_nothing_but_rounding():
    seen = right()
    for weights in ("one", "last"):
        for value in seen.weights[weights].values():
            value *= 1 + 1e-12
    seen.losses = [[loss * (1 + 1e-12) for loss in losses] for losses in seen.losses]
    assert faults(seen) == []
    ours, theirs = right(), right()
    for side, noise in ((ours, 1e-18), (theirs, -3e-18)):  # a bias before a softmax: its true gradient is 0
        side.weights["first"]["bias"] = torch.zeros(4, dtype=torch.float64)
        side.weights["one"]["bias"] = torch.full((4,), noise, dtype=torch.float64)
    assert all(check.ok for check in compared(TEN, ours, theirs))


def of_rounding(*losses: float, weights: float = 0.0, moment: str = "last") -> reference.ParityTrace:
    """The right testimony, with these errors of rank 1's losses, step by step, and one of the weights."""
    trace = right()
    for step, error in enumerate(losses):
        trace.losses[1][step] *= 1 + error
    trace.weights[moment]["weight"] *= 1 + weights
    return trace


def later(seen: reference.ParityTrace, nudged: reference.ParityTrace) -> list[compare.Check]:
    return [check for check in compared(TEN, seen, right(), nudged) if not check.ok]


def test_a_models_own_rounding_is_allowed_where_all_ten_steps_can_be_told_from_it():
    """As BatchNorm over few values makes it grow: the reference is as far from itself, begun one unit away."""
    seen = of_rounding(weights=4e-9)
    assert later(right(), right()) == []
    assert [check.name for check in later(seen, of_rounding(weights=1e-11))] == ["weights after step 10"]
    assert later(seen, of_rounding(weights=1e-9)) == []
    once = of_rounding(weights=4e-9, moment="one")
    assert [check.name for check in later(once, of_rounding(weights=1e-9))] == ["weights after step 1"]
    assert [check.name for check in later(of_rounding(weights=2e-6), of_rounding(weights=1e-3))] == [
        "weights after step 10"
    ]


def test_steps_in_which_rounding_is_as_much_as_a_fault_are_not_asked_and_three_must_be_left():
    chaotic = of_rounding(0, 1e-14, 1e-9, 1e-6, 1e-2)
    assert compare.bounds_of_rounding(right(), chaotic) == pytest.approx([1e-9, 1e-9, 1e-8], rel=1e-3)
    checks = list(compared(TEN, of_rounding(0, 0, 5e-9, 1e-2, weights=1.0), right(), chaotic))
    assert all(check.ok for check in checks) and checks[-1].name == "loss of 3 steps"
    (check,) = later(of_rounding(0, 0, 2e-8), chaotic)
    assert check.name == "loss of 3 steps" and check.detail.startswith(
        "off by 2.0e-08 (rank 1, step 3), at most 1.0e-08"
    )
    assert [check.detail for check in later(of_rounding(0, 2e-9), chaotic)] == ["off by 2.0e-09 (rank 1, step 2)"]
    assert [check.name for check in later(right(), of_rounding(0, 1e-6))] == ["3 steps that show a fault"]


@pytest.mark.parametrize(("off", "passes", "nudges"), [(0.0, True, 0), (5e-9, True, 1), (2e-8, False, 1)])
def test_the_reference_is_asked_for_its_own_rounding_only_where_later_steps_are_off(
    tmp_path, monkeypatch, off, passes, nudges
):
    asked = []

    def run(trial: Trial, steps: int, nudge: int | None = None) -> reference.ParityTrace:
        asked.append(nudge)
        return of_rounding(0, 0, 1e-9 if nudge else 0)

    (tmp_path / "parity").mkdir()
    store.write_json(tmp_path / "trial.json", {**TEN.to_dict(), "window": asdict(TEN.window)})
    monkeypatch.setattr(reference, "run", run)
    monkeypatch.setattr(compare, "train_reference", run)
    monkeypatch.setattr(compare, "read_trace", lambda folder, processes: of_rounding(0, 0, off))
    compare.main(tmp_path)
    assert (store.load(tmp_path / "parity.json")["verdict"] == "passed") == passes
    assert asked == [None, *[1] * nudges]


@pytest.mark.parametrize("times", [2.0, 0.5, -1.0, 0.0])
def test_an_update_of_the_right_direction_and_the_wrong_length_says_how_long_it_is(times):
    def stretched(seen):
        for name in right().trained:
            first = seen.weights["first"][name]
            seen.weights["one"][name] = first + times * (seen.weights["one"][name] - first)

    said = f"the update is {times:.2f} times the right one"
    assert said in fault(stretched).detail
    half = Trial(framework="torch_ddp", workers=2, allreduce="fp16", device="cpu")
    check = fault(stretched, half)
    assert check.name == "the update of step 1" and said in check.detail


@pytest.mark.parametrize("bound", ["fp32", "fp16", "bf16"])
def test_the_wire_may_round_and_no_more(bound):
    trial = Trial(framework="torch_ddp", workers=2, device="cpu", allreduce=bound)

    def off_by(share: float) -> Callable[[reference.ParityTrace], None]:
        def change(seen: reference.ParityTrace) -> None:
            names = right().trained
            norm = sum(float((seen.weights["one"][n] - seen.weights["first"][n]).square().sum()) for n in names) ** 0.5
            seen.weights["one"]["bias"][0] += share * norm * compare.WIRE_BOUND[bound]

        return change

    seen = right()
    off_by(0.9)(seen)
    assert faults(seen, trial) == []
    assert fault(off_by(1.1), trial).name == "the update of step 1"


# --- the reference itself ---


class Tiny(nn.Module):
    """A BatchNorm between two layers: enough for one sample to see another."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.norm(self.into(x))))


def tiny(accumulation: int = 1) -> Workload:
    torch.manual_seed(1)
    return Workload(
        model=Tiny().double(), loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), batches=Feed(iter(()), lambda ids: ()),
        samples_per_step=16, steps_per_epoch=1, data_source="", accumulation=accumulation,
    )  # fmt: skip


BATCH = (torch.randn(16, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)), torch.arange(16) % 3)


def gradients(workload: Workload) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in workload.model.named_parameters()}


def test_one_process_with_two_gpus_is_two_processes_with_one():
    whole, parts = tiny(), tiny()
    loss = forward_backward(whole, BATCH, gpus=2, keep=True)
    halves = list(zip(*(tensor.chunk(2) for tensor in BATCH), strict=True))
    each = [forward_backward(parts, half, gpus=1, keep=rank == 0) for rank, half in enumerate(halves)]
    assert loss == pytest.approx(sum(each) / 2)
    assert all(torch.equal(a, b) for a, b in zip(gradients(whole).values(), gradients(parts).values(), strict=True))
    assert all(a.equal(b) for a, b in zip(whole.model.buffers(), parts.model.buffers(), strict=True))


def test_a_nudged_reference_says_it_began_where_the_other_did_and_ends_a_rounding_away():
    gate = replace(TEN, model="resnet8", batch_per_worker=4, data="synthetic", window=Window(0, 2, 0.0, None, 2))
    plain, nudged = run(gate, 2), run(gate, 2, nudge=1)
    assert all(value.equal(nudged.weights["first"][name]) for name, value in plain.weights["first"].items())
    assert not set(plain.ids[0].flatten().tolist()) & set(plain.ids[1].flatten().tolist())
    errors = compare.weight_errors(nudged.weights["last"], plain.weights["last"])
    assert 0 < max(errors.values()) < 1e-12
    assert compare.bounds_of_rounding(plain, nudged) == [compare.FP64_BOUND] * 2
