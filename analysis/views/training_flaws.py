"""Runs that were trained to a result: what the flaws of published ones look like in a record.

F11 a frozen network            F12 the loss of the last batch alone, maps of hidden channels and an unlikely class
F18 the test set selects        F20 a checkpoint of another     F22 train and test set joined
F23 unlike steps (work.py)      F25 every epoch in one order    F27 a part of the validation set alone
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from analysis import findings
from analysis.findings import DOUBT, WRONG, Evidence, Finding, grouped
from analysis.views.view import View
from scaling_study.errors import printable
from scaling_study.records.maps import RIGHT
from scaling_study.records.schema import TrainingReport

Ranks = tuple[TrainingReport, ...]  # of one run
TEST = "test"
CHANCE = 0.01  # of published texts some passages recur: 2 of WikiText-2's 6,127 windows


def training_flaws(evidence: Evidence) -> Iterator[Finding]:
    """Each flaw once, with all configurations that have it."""
    for flaw, title, severity, look, remedy in LOOKS:
        runs = [(row, ranks) for row in evidence.rows for ranks in evidence.fact(row, "training") if ranks]
        seen = ((text, row) for row, ranks in runs if (text := printable(look(ranks))))
        for text, ours in grouped(seen, lambda pair: pair[0]).items():
            rows = [row for _, row in ours]
            yield findings.about(flaw, title, f"{text} ({findings.named(rows)}). {remedy}", severity, rows)


def _frozen(ranks: Ranks) -> str:
    groups = [each for each in ranks[0].groups if each.learning_rate == 0 and each.parameters and not each.asked]
    still = ", ".join(f"{each.name} ({each.parameters:,} parameters)" for each in groups)
    return f"Frozen networks are compared, at a learning rate of 0: {still}" if still else ""


def _unmoved(ranks: Ranks) -> str:
    """A part that is said to train and did not, or the other way round."""
    first = ranks[0]
    rates = {each.name: each.learning_rate for each in first.groups}
    if still := [name for name, moved in first.moved.items() if moved == 0 and rates.get(name)]:
        each = ", ".join(f"{name} (learning rate {rates[name]:g})" for name in still)
        return f"Weights are said to be trained, and did not move: {each}"
    moving = [each.name for each in first.groups if each.asked and first.moved.get(each.name)]
    return f"Weights are said to be frozen, and moved: {', '.join(moving)}" if moving else ""


def _last_batch(ranks: Ranks) -> str:
    logged = ranks[0].logged_loss
    whole = logged in ("", "epoch", "interval")
    return "" if whole else f"The logged loss is that of the {logged}, not of an epoch"


def _another_map(ranks: Ranks) -> str:
    channels, shown = (ranks[0].shown_maps.get(key, right) for key, right in RIGHT.items())
    if (channels, shown) == (RIGHT["channels"], RIGHT["class"]):
        return ""
    return f"The activation maps shown are of {channels} channels and of the {shown} class"


def _shared(rank: TrainingReport, a: str, b: str) -> int:
    """Samples that are in both of these sets."""
    return max(rank.in_both.get(f"{a}/{b}", 0), rank.in_both.get(f"{b}/{a}", 0))


def _selected_on_test(ranks: Ranks) -> str:
    for rank in ranks:
        if rank.selected_on == TEST:
            return "The test set selects the model: its accuracy there is the best of many tries, and no test"
        if shared := _shared(rank, rank.selected_on, TEST):
            return f"{shared:,} samples of the test set are in the {rank.selected_on} set, which selects the model"
    return ""


def _joined(ranks: Ranks) -> str:
    for rank in ranks:
        trained = {"train", *rank.splits.get("train", {})}  # published sets that training draws from
        foreign = any(s != TEST and s in trained and count for s, count in rank.splits.get(TEST, {}).items())
        if foreign or rank.splits.get("train", {}).get(TEST):
            return "Train and test set were joined and split anew: no figure here compares with a published one"
        if shared := _shared(rank, "train", TEST):
            return f"{shared:,} samples of the test set are trained on"
    return ""


def _validated_on_training(ranks: Ranks) -> str:
    for rank in ranks:
        size = sum(rank.splits.get(rank.selected_on, {}).values())
        if (shared := _shared(rank, "train", rank.selected_on)) > CHANCE * size:
            return f"{shared:,} of the {size:,} samples of the {rank.selected_on} set are trained on"
    return ""


def _another_checkpoint(ranks: Ranks) -> str:
    unlike = any(rank.resumed_layout and rank.resumed_layout != rank.layout for rank in ranks)
    return "Went on from a checkpoint whose weights have other names or shapes than the model's" if unlike else ""


def _one_order(ranks: Ranks) -> str:
    same = [rank for rank in ranks if len(rank.orders) > len(set(rank.orders)) and not rank.one_order]
    if not same:
        return ""
    different, epochs = len(set(same[0].orders)), len(same[0].orders)
    return f"{epochs} epochs read their samples in {findings.count(different, 'order')}, not shuffled anew"


def _unreduced(ranks: Ranks) -> str:
    for what in ("evaluated", "validated"):
        claims: list[Mapping[str, Any]] = [getattr(rank, what) for rank in ranks]
        for rank, claim in zip(ranks, claims, strict=True):
            size = sum(rank.splits.get(str(claim.get("split")), {}).values())
            samples = claim.get("samples")
            if isinstance(samples, int | float) and size and samples != size:
                return f"Figures are over {samples:,.0f} of the {size:,} samples of the {claim['split']} set"
        figures = [repr({k: v for k, v in claim.items() if k not in ("split", "samples")}) for claim in claims]
        if len(set(figures)) > 1:
            return "Ranks claim unlike figures of one evaluation: they were not reduced over the ranks"
    return ""


LOOKS: tuple[tuple[str, str, str, Callable[[Ranks], str], str], ...] = (
    ("F11", "Frozen networks", WRONG, _frozen, "Give it a rate, or say that it is frozen."),
    (
        "F11",
        "Weights that did not do as is said",
        WRONG,
        _unmoved,
        "Find out why: what is compared is another training.",
    ),
    ("F12", "The loss of a few samples", DOUBT, _last_batch, "Log its mean over the epoch."),
    ("F12", "Maps of something else", WRONG, _another_map, "Show class maps, of the most likely class."),
    ("F18", "The test set selects the model", WRONG, _selected_on_test, "Hold out a part of the training set."),
    ("F22", "Train and test set joined", WRONG, _joined, "Keep the published test set apart."),
    ("F22", "Validation data is trained on", WRONG, _validated_on_training, "Hold out what is not trained on."),
    ("F20", "A checkpoint of another architecture", WRONG, _another_checkpoint, "Train it anew, from its own weights."),
    ("F25", "Every epoch in the same order", DOUBT, _one_order, "Tell the sampler the epoch (set_epoch)."),
    ("F27", "Validation of a part", WRONG, _unreduced, "Reduce over the ranks, and count each sample once."),
)


VIEW = View("Does a training learn what it claims?", detectors=(training_flaws,))
