"""A framework's parity trace against the reference's, check by check; finished trials judged.          [torch]

    python -m scaling_study.parity.compare FOLDER...      writes parity.json into each trial's folder

The order is that of a diagnosis, and the first answer that is no names the fault: a wrong model explains all that
follows, wrong samples a wrong loss, a wrong loss of step 1 (forward) a wrong update (backward, reduction, optimiser),
and a wrong update every loss after it.
"""

from __future__ import annotations

import functools
import math
import shutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from scaling_study.measure.training import Weights
from scaling_study.parity import reference
from scaling_study.parity.reference import ParityTrace
from scaling_study.records import store
from scaling_study.study import support
from scaling_study.trial import Trial

FP64_BOUND = 1e-9  # relative: rounding comes to some 1e-14 (resnet8: 2e-15), any fault to 1e-6 and more
# Some models make more of a rounding with every step, as BatchNorm over few values does. Where ten steps are off by
# more than the bound, the reference is trained again from weights one unit in the last place away, and a framework,
# which rounds anew in every step by adding in another order, may be ten times as far from it. Steps in which that
# would be as much as a fault show nothing and are not asked; three must be left: in the third, gradients that were
# kept are seen.
TIMES_ROUNDING, LEAST_FAULT, FEWEST_STEPS = 10.0, 1e-6, 3
FLOOR = 1e-4  # of the model's largest weight: where a gradient is zero but for rounding, no digit of it means anything
# Of the update of one step (w1 - w0): the norm of the difference over the norm. Gradients that are summed, or are not
# reduced at all, are off by about 1. The figures "seen" are of resnet8_groupnorm; fp32 alone: 1.4e-5.
#
# On the wire every rank's gradient is rounded by at most u of it (2^-11 in fp16, 2^-8 in bf16), and their mean once
# more. Two ranks' gradients are some sqrt(2) times as long as their mean: at most (1 + sqrt(2)) u = 1.2e-3 and 9.4e-3.
# Seen: 3.4e-4 and 2.7e-3.
# Hivemind's 8 bits cut off what is more than three standard deviations from a tensor's mean, and gradients have long
# tails: quantised by themselves, outside any training, the mean of two ranks' is off by 0.13 to 0.21 (four seeds).
WIRE_BOUND = {"none": 1e-4, "fp32": 1e-4, "fp16": 2e-3, "bf16": 1e-2, "int8": 4e-1}
# In compute it is signs that weigh, not digits: where a unit's input is closer to zero than its error d, one ReLU cuts
# it off and the other does not. Of normal inputs that is a share of 2 d / pi of the active ones, and a gradient that
# differs in this share of its terms is off by the root of it. Seven layers make d about sqrt(7) u: 8e-2 in bf16, and
# sqrt(8) times less in fp16. Seen with five seeds: 4e-2 to 8.3e-2, and 1.5e-2 to 2.5e-2.
COMPUTE_BOUND = {"fp32": 0.0, "fp16": 7e-2, "bf16": 2e-1}


@dataclass(frozen=True)
class Check:
    """One check, whether it passed, and the figure or name behind it."""

    name: str
    ok: bool
    detail: str = ""


def compared(trial: Trial, seen: ParityTrace, right: ParityTrace, nudged: ParityTrace | None = None) -> Iterator[Check]:
    """Every check that applies to the trial, in order. `nudged`: the reference from weights one unit away, if asked."""
    first, wanted = seen.weights.get("first", {}), right.weights["first"]
    names = same_names(first, wanted)
    yield names
    frozen = sorted(set(seen.frozen) - set(right.frozen))
    yield Check("every parameter is trained", not frozen, f"frozen: {', '.join(frozen[:3])}" * bool(frozen))
    yield from same_samples(seen, right)
    if not names.ok:
        return  # of another model nothing more can be asked
    yield same_weights("weights before step 1", first, wanted, 0.0)
    if trial.precision == "fp64":
        steps = len(right.losses[0])
        yield same_losses("loss of step 1", seen, right, [FP64_BOUND])
        one = same_weights("weights after step 1", seen.weights.get("one", {}), right.weights["one"], FP64_BOUND)
        yield one if one.ok else replace(one, detail=one.detail + factor(*updates(seen, right)))
        if steps > 1:
            yield from same_steps(seen, right, nudged)
    else:
        bound = max(WIRE_BOUND[trial.allreduce], COMPUTE_BOUND[trial.precision])
        ours, theirs = updates(seen, right)
        off = number((ours - theirs).norm() / theirs.norm())
        detail = f"off by {off:.1e} of its norm, at most {bound:.0e} is rounding"
        yield Check("the update of step 1", off <= bound, detail + ("" if off <= bound else factor(ours, theirs)))


def same_names(first: Weights, wanted: Weights) -> Check:
    """Names, shapes and number of all weights and buffers."""
    count, right = (sum(value.numel() for value in weights.values()) for weights in (first, wanted))
    differences = [f"{count:,} values, {right:,} are right"] if count != right else []
    for what, names in {
        "missing": wanted.keys() - first.keys(),
        "foreign": first.keys() - wanted.keys(),
        "another shape of": {n for n in first.keys() & wanted.keys() if first[n].shape != wanted[n].shape},
    }.items():
        differences += [f"{what} {name}" for name in sorted(names)[:1]]
    return Check("names, shapes and number of weights", not differences, "; ".join(differences) or f"{count:,} values")


def same_samples(seen: ParityTrace, right: ParityTrace) -> Iterator[Check]:
    """The samples that each rank read: over two whole epochs, then step by step."""
    sizes = [epochs.shape[1] for epochs in seen.epochs]
    yield Check("equally many samples on every rank", len(set(sizes)) == 1, f"{sizes} an epoch")
    for epoch in range(len(right.epochs[0])):
        read = torch.cat([epochs[epoch] for epochs in seen.epochs])
        distinct, whole = len(torch.unique(read)), sum(len(epochs[epoch]) for epochs in right.epochs)
        name, again = f"epoch {epoch + 1}", len(read) - distinct
        yield Check(f"{name}: no sample twice", not again, f"{again:,} samples are read again")
        yield Check(f"{name}: complete", distinct == whole, f"{distinct:,} of {whole:,} samples")
    same = [f"rank {rank} read both in the same" for rank, (a, b) in enumerate(seen.epochs) if torch.equal(a, b)]
    if right.reshuffles:
        yield Check("a new order every epoch", not same, "".join(same[:1]))
    other = [
        f"rank {rank} read other samples than its shard's"
        for rank, (ours, theirs) in enumerate(zip(seen.ids, right.ids, strict=True))
        if not torch.equal(ours, theirs)
    ]
    yield Check("samples of every step", not other, "".join(other[:1]))


def same_weights(name: str, ours: Weights, right: Weights, bound: float) -> Check:
    """Every weight and buffer within `bound` of its tensor's largest value (which counts as FLOOR, if it is less)."""
    if ours.keys() != right.keys():
        return Check(name, False, "other names")
    errors = weight_errors(ours, right)
    worst = max(errors, key=lambda key: errors[key])
    detail = f"off by {errors[worst]:.1e}" + f" ({worst})" * (errors[worst] > 0)
    return Check(name, errors[worst] <= bound, detail + allowed(errors[worst], bound))


def weight_errors(ours: Weights, right: Weights) -> dict[str, float]:
    """How far each tensor is off, relative to its largest value or to FLOOR."""
    floats = [value for value in right.values() if value.is_floating_point() and value.numel()]
    floor = max(FLOOR * max(float(value.abs().max()) for value in floats), 1e-300)
    return {
        key: number((wide(ours[key]) - wide(value)).abs().max() / wide(value).abs().max().clamp(min=floor))
        for key, value in right.items()
        if value.numel()
    }


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in fp64; a complex one with its imaginary parts in a dimension of their own."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()


def same_losses(name: str, seen: ParityTrace, right: ParityTrace, bounds: Sequence[float]) -> Check:
    """Every rank's loss in each step that has a bound; names the first that is off, or the one that is off the most."""
    if [len(losses) for losses in seen.losses] != [len(losses) for losses in right.losses]:
        return Check(name, False, f"{[len(losses) for losses in seen.losses]} steps on the ranks")
    errors = loss_errors(seen, right, len(bounds))
    wrong = next((error for error in errors if error[0] > bounds[error[1] - 1]), None)
    off, step, rank = wrong or max(errors)
    detail = f"off by {off:.1e} (rank {rank}, step {step})"
    return Check(name, not wrong, detail + allowed(off, bounds[step - 1]))


def loss_errors(seen: ParityTrace, right: ParityTrace, steps: int) -> list[tuple[float, int, int]]:
    """(relative error, step, rank) of each rank's loss in each of the first `steps`."""
    return [
        (number(abs(ours[step] - theirs[step]) / max(abs(theirs[step]), 1e-300)), step + 1, rank)
        for step in range(steps)
        for rank, (ours, theirs) in enumerate(zip(seen.losses, right.losses, strict=True))
    ]


def same_steps(seen: ParityTrace, right: ParityTrace, nudged: ParityTrace | None) -> Iterator[Check]:
    """The losses of all steps and the weights after the last; with `nudged`, as far as rounding lets them be shown."""
    steps, bound = len(right.losses[0]), FP64_BOUND
    bounds = [bound] * steps
    if nudged:
        bounds = bounds_of_rounding(right, nudged)
        grown = max(weight_errors(nudged.weights["last"], right.weights["last"]).values())
        bound = min(max(TIMES_ROUNDING * grown, FP64_BOUND), LEAST_FAULT)
    if len(bounds) < min(FEWEST_STEPS, steps):
        lost = f"after step {len(bounds)} one unit in the last place of the weights is as much as a fault"
        yield Check(f"{FEWEST_STEPS} steps that show a fault", False, lost)
        return
    yield same_losses(f"loss of {len(bounds)} steps", seen, right, bounds)
    if len(bounds) == steps:
        last = seen.weights.get("last", {})
        yield same_weights(f"weights after step {steps}", last, right.weights["last"], bound)


def bounds_of_rounding(right: ParityTrace, nudged: ParityTrace) -> list[float]:
    """Relative errors that rounding allows in each step's losses, as far as they are less than a fault is."""
    errors, grown, bounds = loss_errors(nudged, right, len(right.losses[0])), 0.0, []
    for step in range(1, len(right.losses[0]) + 1):
        grown = max(grown, *(error for error, at, _ in errors if at == step))
        if TIMES_ROUNDING * grown > LEAST_FAULT:
            break
        bounds.append(max(TIMES_ROUNDING * grown, FP64_BOUND))
    return bounds


def allowed(off: float, bound: float) -> str:
    """A remark on an error beyond FP64_BOUND that is held to another bound."""
    return f", at most {bound:.1e} is this model's rounding" if off > FP64_BOUND and bound > FP64_BOUND else ""


def updates(seen: ParityTrace, right: ParityTrace) -> tuple[torch.Tensor, torch.Tensor]:
    """The updates of all trained weights by step 1, ours and the right one, each as one vector."""
    ours, theirs = (
        torch.cat([(w["one"][name].double() - w["first"][name].double()).reshape(-1) for name in right.trained])
        for w in (seen.weights, right.weights)
    )
    return ours, theirs


def factor(ours: torch.Tensor, right: torch.Tensor) -> str:
    """`; the update is 2.00 times the right one`, if that explains it to a per cent."""
    times = number(ours @ right / (right @ right))
    explained = float((ours - times * right).norm()) <= 0.01 * float(ours.norm())
    return f"; the update is {times:.2f} times the right one" if explained and abs(times - 1) > 0.01 else ""


def number(value: torch.Tensor | float) -> float:
    """As a float; what is not a number is infinitely wrong, and never the smaller of two."""
    plain = float(value)
    return math.inf if math.isnan(plain) else plain


train_reference = functools.lru_cache(maxsize=1)(reference.run)  # for several trials of one kind, trained once


def main(folder: Path) -> None:
    """Write the verdict on one finished trial: {"verdict": "passed" or the first fault, "reference": what it is held
    against, in words, "checks": [...]}.

    It reads what was asked (not what a script made of it) and the ranks' traces, and trains the reference.
    The traces are removed after a pass: they are as large as the model, three times.
    """
    trial = store.asked_of(folder)
    torch.set_num_threads(trial.cores_per_worker or 1)  # as a rank had: layers this small gain little from more
    asked = trial if trial.precision == "fp64" else replace(trial, precision="fp32", allreduce="fp32")
    seen = read_trace(folder, trial.processes)
    steps = len(seen.losses[0])
    right = train_reference(asked, steps)
    results = list(compared(trial, seen, right))
    wrong = [check for check in results if not check.ok]
    if wrong and wrong[0] in results[-2:] and trial.precision == "fp64" and steps > 1:  # where rounding can have grown
        results = list(compared(trial, seen, right, reference.run(asked, steps, nudge=1)))
        wrong = [check for check in results if not check.ok]
    verdict = f"{wrong[0].name}: {wrong[0].detail}" if wrong else "passed"
    about = {"verdict": verdict, "reference": support.reference_of(vars(trial))}
    store.write_json(folder / "parity.json", {**about, "checks": [asdict(check) for check in results]})
    if not wrong:
        shutil.rmtree(folder / "parity")


def read_trace(folder: Path, processes: int) -> ParityTrace:
    """The records of a trial's ranks as one trace."""
    traces: list[dict[str, Any]] = [
        torch.load(folder / "parity" / f"rank-{rank}.pt", weights_only=True) for rank in range(processes)
    ]
    with_loss = [trace for trace in traces if trace["losses"]]  # of a pipeline's ranks only those with the last stage
    return ParityTrace(
        losses=[trace["losses"] for trace in with_loss],
        ids=[trace["ids"].long() for trace in with_loss],
        epochs=[trace["epochs"].long() for trace in with_loss],
        frozen=[name for trace in traces for name in trace["frozen"]],
        weights=traces[0]["weights"],
    )


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        try:
            main(Path(argument))
        except Exception as error:
            traceback.print_exception(error)
            verdict = f"could not be judged: {type(error).__name__}: {error}"  # so it has not passed
            store.write_json(Path(argument) / "parity.json", {"verdict": verdict, "checks": []})
