"""A framework's testimony against the reference's, one question after the other.                        [torch]

The order is that of a diagnosis: the wrong model explains wrong weights, wrong samples explain a wrong loss. The first
answer that is no names the fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from scaling_study.measure.witness import Weights
from scaling_study.parity.reference import Testimony
from scaling_study.trial import Trial

TEN_STEPS_BOUND = 1e-9  # relative, in fp64: rounding alone comes to some 1e-12
# Of the update of one step (w1 - w0), as the norm of the difference over the norm: 16-bit rounding of each gradient
# is at most 2^-11 (fp16) or 2^-8 (bf16) of it, twice where ranks reduce in that format; in compute it adds up over layers.
WIRE_BOUND = {"none": 1e-4, "fp32": 1e-4, "fp16": 2e-3, "bf16": 1e-2}
COMPUTE_BOUND = {"fp32": 0.0, "fp16": 2e-2, "bf16": 1e-1}


@dataclass(frozen=True)
class Check:
    """One question, its answer, and the figure or name behind it."""

    name: str
    ok: bool
    detail: str = ""


def checks(trial: Trial, seen: Testimony, right: Testimony) -> Iterator[Check]:
    """Every check that applies to the trial, in order."""
    first, wanted = seen.weights.get("first", {}), right.weights["first"]
    yield same_names(first, wanted)
    yield Check("every parameter is trained", not seen.frozen, f"frozen: {', '.join(seen.frozen[:3])}" * bool(seen.frozen))
    if first.keys() == wanted.keys() and all(first[name].shape == wanted[name].shape for name in wanted):
        yield close("weights before step 1", first, wanted, 0.0)
    yield from samples(seen, right)
    if trial.precision == "fp64":
        worst = max(
            (abs(a - b) / max(abs(b), 1e-300), step) for ours, theirs in zip(seen.losses, right.losses, strict=True)
            for step, (a, b) in enumerate(zip(ours, theirs, strict=True), start=1)
        )  # fmt: skip
        yield Check("loss of every step", worst[0] <= TEN_STEPS_BOUND, f"off by {worst[0]:.1e} at step {worst[1]}")
        for moment, words in (("one", "after step 1"), ("last", f"after step {len(right.losses[0])}")):
            yield close(f"weights {words}", seen.weights.get(moment, {}), right.weights[moment], TEN_STEPS_BOUND)
    else:
        bound = max(WIRE_BOUND[trial.allreduce], COMPUTE_BOUND[trial.precision])
        off = update_error(seen.weights, right.weights)
        yield Check("the update of step 1", off <= bound, f"off by {off:.1e} of its norm, at most {bound:.0e} is right")


def same_names(first: Weights, wanted: Weights) -> Check:
    """Names, shapes and number of all weights and buffers."""
    count = sum(value.numel() for value in first.values())
    right = sum(value.numel() for value in wanted.values())
    missing, foreign = sorted(wanted.keys() - first.keys()), sorted(first.keys() - wanted.keys())
    shapes = [name for name in first.keys() & wanted.keys() if first[name].shape != wanted[name].shape]
    said = [f"{count:,} values, {right:,} are right"] if count != right else []
    said += [f"missing {missing[0]}"] * bool(missing) + [f"foreign {foreign[0]}"] * bool(foreign)
    said += [f"another shape of {shapes[0]}"] * bool(shapes)
    return Check("names, shapes and number of weights", not said, "; ".join(said) or f"{count:,} values")


def samples(seen: Testimony, right: Testimony) -> Iterator[Check]:
    """Who read what: step by step, and over two whole epochs."""
    for rank, (ours, theirs) in enumerate(zip(seen.ids, right.ids, strict=True)):
        if ours.shape != theirs.shape or not torch.equal(ours, theirs):
            yield Check("samples of every step", False, f"rank {rank} read other samples than its shard's")
            break
    else:
        yield Check("samples of every step", True)
    sizes = {tuple(epochs.shape) for epochs in seen.epochs}
    yield Check("equally many samples on every rank", len(sizes) == 1, f"(epochs, samples): {sorted(sizes)}")
    for epoch in range(len(right.epochs[0])):
        read = torch.cat([epochs[epoch] for epochs in seen.epochs])
        once, whole = len(torch.unique(read)), sum(len(epochs[epoch]) for epochs in right.epochs)
        yield Check(f"epoch {epoch}: no sample twice", once == len(read), f"{len(read) - once} read more than once")
        yield Check(f"epoch {epoch}: complete", once == whole, f"{once} of {whole} samples")
    again = all(torch.equal(epochs[0], epochs[1]) for epochs in seen.epochs)
    yield Check("a new order every epoch", not again, "two epochs in the same order" * again)


def close(name: str, ours: Weights, right: Weights, bound: float) -> Check:
    """Every weight and buffer within `bound` of its tensor's largest value."""
    if ours.keys() != right.keys():
        return Check(name, False, "other names")
    errors = {
        key: float((ours[key].double() - right[key].double()).abs().max() / right[key].double().abs().max().clamp(min=1e-300))
        for key in right
        if right[key].numel() and ours[key].shape == right[key].shape
    }  # fmt: skip
    worst = max(errors, key=lambda key: errors[key])
    return Check(name, errors[worst] <= bound, f"off by {errors[worst]:.1e} ({worst})")


def update_error(ours: dict[str, Weights], right: dict[str, Weights]) -> float:
    """How far the first step's update is off: |ours - right| / |right| over all floating weights."""
    difference = norm = 0.0
    for name, value in right["first"].items():
        if value.is_floating_point():
            should = right["one"][name].double() - value.double()
            did = ours["one"][name].double() - ours["first"][name].double()
            difference += float((did - should).square().sum())
            norm += float(should.square().sum())
    return (difference / norm) ** 0.5 if norm else float("inf")
