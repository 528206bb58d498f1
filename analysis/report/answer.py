"""The answer: what to run, in the time it takes to read four numbers.

Model by model the fastest, the cheapest, the most efficient, the knee, and what reaches a target soonest, each with its
interval and with what is tied with it; or with the reason why there is no answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from statistics import median
from typing import Any

from analysis.findings import DOUBT, WRONG, Finding, count
from analysis.frames.configurations import known
from analysis.frames.results import Results, unit
from analysis.frames.rows import as_rows
from analysis.published import references
from analysis.report import page
from analysis.report.page import Card, Cards, Material, Part, Section, Text, of_rows
from analysis.statistics import ranking
from analysis.statistics.estimates import said_of, widths
from analysis.statistics.knee import SHARE, Returned, returns
from analysis.statistics.scaling_laws import comparisons
from analysis.text import first_of, number
from analysis.views import cost, roofline
from analysis.views.scaling import knees
from analysis.views.target import BEST, TIED, trained_configurations
from scaling_study.models import MODELS

SOONEST = "soonest to "
CHEAPEST = "cheapest for a million samples"
NOTHING_COMPARABLE = "no comparable configuration was measured"
MOST_ALIKE = 4  # names under an answer; the rest are counted
MOST_TITLES = 4  # of findings, before the next section
MOST_CARDS = 4  # models with cards of their own; more are rows of a table
MOST_MODELS = 3  # in the sentences above them
HEADER = ("model", "", "value", "95 % interval", "configuration", "tied (95 %)", "note")
Row = Mapping[Any, Any]


def section(material: Material) -> Section:
    results = material.results
    title = "The answer"
    if results.nothing_yet or results.configurations.empty:
        why = results.nothing_yet or "only the network was probed"
        return Section("answer", title, f"There is none: {why}.", ())
    answers: dict[str, tuple[Card, ...]] = {}
    unknown: list[Part] = []

    def answer(model: str) -> list[Part]:
        answers[model] = cards_of(results, model)
        return []

    for model in results.without_plumbing().models:
        unknown += material.parts(f"the answer for {model}", partial(answer, model))
    parts = [*material.parts("the warnings in a line", lambda: [trust(material.findings, results)]), *unknown]
    if len(answers) <= MOST_CARDS:
        parts += [Cards(model, cards) for model, cards in answers.items()]
    else:
        rows: list[tuple[str, ...]] = [
            (model, card.label, card.value or "none", card.interval, card.name, "; ".join(card.alike), card.note)
            for model, cards in answers.items()
            for card in cards
        ]
        parts.append(of_rows("Answers, model by model", HEADER, rows, file="answers.csv"))
    parts.append(
        Text(
            "Tied (95 %): the simultaneous 95 % interval of the ratio contains 1. Where all are equally fast, any is "
            "called slower in at most 5 % of studies. The highest of many means is partly chance. Overlapping "
            "intervals are not a test and are not used as one."
        )
    )
    sentences = [lead({model: cards[0] for model, cards in answers.items()}), *answer_soonest(answers)]
    return Section("answer", title, " ".join(filter(None, sentences)), tuple(parts))


def cards_of(results: Results, model: str) -> tuple[Card, ...]:
    """Fastest, cheapest, best efficiency, knee; then the soonest to each target."""
    speeds = fastest(results, model), cheapest(results, model), efficient(results, model), knee(results, model)
    return (*speeds, *soonest(results, model))


def soonest(results: Results, model: str) -> tuple[Card, ...]:
    """Cards of a model's trainings to a result: seconds of training to each of its targets."""
    rows = trained_configurations(results)
    ours = rows[(rows.model == model) & (rows.target != "")]
    cards = []
    for target, group in ours.groupby("target", sort=False):
        label, best = f"{SOONEST}{target}", group[group.soonest == BEST]
        if best.empty:
            cards.append(Card(label, "", note="no configuration reached it with three seeds or more"))
            continue
        first, alike = best.iloc[0], group[group.soonest == TIED]
        names = [f"{row.series}, global batch {row.global_batch}" for row in alike.itertuples()]
        low, high = number(first.seconds_to_target_low), number(first.seconds_to_target_high)
        cards.append(
            Card(
                label,
                f"{number(first.seconds_to_target)} s of training",
                f"95 %: {low} to {high}, {first.reached} seeds",
                f"{first.series}, global batch {first.global_batch}",
                first_of(names, MOST_ALIKE),
                "evaluation and checkpoints apart",
                tied=len(names),
            )
        )
    return tuple(cards)


def fastest(results: Results, model: str) -> Card:
    """The highest throughput of a model; on a GPU with its share of the peaks; with published speeds where some are
    comparable."""
    kind = unit(results.frame_of(model))
    if kind == "samples" and model in MODELS and MODELS[model].data == "cifar10":
        kind = "images"
    card = _ranked(results, model, "fastest", "samples_per_second", number, f" {kind}/s")
    top = _top(results, model, "samples_per_second")
    if top is None:
        return card
    name = str(top["configuration"])
    more = card.note, roofline.sentence(results, name), references.sentence(results, name)
    return replace(card, note="; ".join(filter(None, more)))


def efficient(results: Results, model: str) -> Card:
    card = _ranked(results, model, "best efficiency", "efficiency", lambda value: f"{100 * value:.0f}", " %")
    if card.value:
        return card
    why = "no configuration of more than one worker has a speed-up"
    return Card(card.label, "", note=why if results.study.baseline is not None else "the study declares no baseline")


def cheapest(results: Results, model: str) -> Card:
    """In money where every worker has a price; else in worker-hours, and says so."""
    ours = [point.of for point in cost.points(results, model)]
    prices = {priced.price for priced in ours}
    if len(prices) > 1:  # a ratio of throughputs is then not one of costs
        return _cheapest_of_several(ours)
    price = prices.pop() if prices else None
    unit_of = " worker-hours" if price is None else ""
    per_hour = 1.0 if price is None else price
    card = _ranked(
        results,
        model,
        CHEAPEST,
        "samples_per_worker_second",
        lambda rate: number(per_hour * cost.SAMPLES / 3600 / rate),
        unit_of,
    )
    if not card.value:
        return card
    why = (
        f"at {number(price)} a worker-hour"
        if price is not None
        else "no price is set (`price_per_worker_hour` in a machine file): every worker is assumed to cost the same"
    )
    return replace(card, note="; ".join(filter(None, (why, card.note))))


def _cheapest_of_several(ours: list[cost.Cost]) -> Card:
    best = cost.cheapest(ours)
    if best is None:
        return Card(CHEAPEST, "", note=NOTHING_COMPARABLE)
    value = number(best.money) if best.money is not None else f"{number(best.worker_hours)} worker-hours"
    interval = "" if best.bounds is None else f"95 %: {number(best.bounds[0])} to {number(best.bounds[1])}"
    why = "workers have different prices: ties were not computed"
    return Card(CHEAPEST, value, interval, name_of(best.row), (), why)


def knee(results: Results, model: str) -> Card:
    """The card of the knee: of the family with the fastest configuration, else of the first that has a law."""
    label = f"knee at {100 * SHARE:.0f} %"
    top = _top(results, model, "samples_per_second")
    fastest = None if top is None else top["configuration"]
    ours = [(beyond.compared.family, at) for beyond, at in knees(results) if beyond.compared.family.model == model]
    if not ours:
        return Card(label, "", note=_no_knee(results, model))
    family, at = max(ours, key=lambda pair: fastest in [row["configuration"] for row in pair[0].rows])
    value, _, bounds = at.text.partition(" [")
    interval = f"95 %: {bounds.removesuffix(']').replace(', ', ' to ')}" if bounds else ""
    why = f"beyond it the marginal efficiency of a worker is below {100 * at.share:.0f} %"
    if at.workers >= at.looked:
        why = f"no knee up to here: the marginal efficiency of every worker is {100 * at.share:.0f} % or more"
    return Card(label, value, interval, family.label, (), why)


def _no_knee(results: Results, model: str) -> str:
    """Why there is none, and the marginal efficiencies that were measured."""
    for priced in comparisons(results):
        if priced.family.model == model and priced.why:
            steps = [_marginal(step) for step in returns(priced.family)]
            return f"{priced.why} ({priced.family.label})" + (f"; measured: {'; '.join(steps)}" if steps else "")
    return "no configuration was measured at several worker counts, all else equal"


def _marginal(step: Returned) -> str:
    """`marginal efficiency of the second worker: 98 %`; `of workers 3 to 4`."""
    which = f"workers {step.before + 1} to {step.after}" if step.after - step.before > 1 else f"worker {step.after}"
    which = "the second worker" if (step.before, step.after) == (1, 2) else which
    return f"marginal efficiency of {which}: {100 * step.share:.0f} %"


def name_of(row: Row) -> str:
    """`horovod, 2 workers, fp16, batch 64`."""
    return f"{row['series']}, batch {row['batch']}"


def _ranked(results: Results, model: str, label: str, by: str, text_of: Callable[[float], str], unit_of: str) -> Card:
    """The best of a model by a column of ranking.best; `text_of` a value, without its unit."""
    top = _top(results, model, by)
    if top is None:
        return Card(label, "", note=NOTHING_COMPARABLE)
    names = {row["configuration"]: name_of(row) for row in results.rows_of(model)}
    alike = [names[name] for name in top["indistinguishable"]]
    lone = len(top["without_interval"])
    low, high = (text_of(top[f"value_{end}"]) if known(top[f"value_{end}"]) else "" for end in ("low", "high"))
    if by == "samples_per_worker_second":  # the more samples, the less they cost
        low, high = high, low
    why = [f"{lone} other{'s' * (lone != 1)} not ranked (fewer than 3 repeats)"] if lone else []
    why += [f"among {top['work']}: the model's other rows do different work"] if top["work"] else []
    return Card(
        label,
        text_of(top["value"]) + unit_of,
        f"95 %: {low} to {high}, {top['n']} repeats" if low else f"no interval: n = {top['n']}",
        name_of(top),
        first_of(alike, MOST_ALIKE),
        "; ".join(why),
        lone,
        len(alike),
    )


def _top(results: Results, model: str, by: str) -> Row | None:
    best = ranking.best(results, by)
    return next(iter(as_rows(best[best.model == model])), None)


def precision(results: Results) -> str:
    """A sentence about intervals that are too wide or not claimed; empty where each reaches the study's target."""
    asked, target = widths(results), results.study.target_interval
    claimed = [width.half for width in asked if not math.isnan(width.half)]
    if not claimed:
        return "No interval is claimed: every configuration has fewer than 3 repeats."
    wide = sum(half > target for half in claimed)
    if not wide:
        return ""
    return (
        f"But {wide} of {len(asked)} intervals{said_of(asked)} are wider than the target of "
        f"±{100 * target:.2g} % (median ±{100 * median(claimed):.2g} %, widest ±{100 * max(claimed):.2g} %): smaller "
        "differences are not resolved."
    )


def answer_soonest(answers: dict[str, tuple[Card, ...]]) -> list[str]:
    """A sentence for each target of the first models that some configuration reached."""
    sentences = []
    for model, cards in islice(answers.items(), MOST_MODELS):
        for card in cards:
            if card.label.startswith(SOONEST) and card.value:
                tied = f"; {card.tied} tied (95 %)" if card.tied else ""
                sentences.append(f"{model} is {card.label} with {_value(card)}{tied}.")
    return sentences


def _value(card: Card) -> str:
    """`**name**: value [1, 2]` of a card with an interval `95 %: 1 to 2, 3 repeats`."""
    return f"**{card.name}**: {card.value} [{_bounds(card)}]"


def _bounds(card: Card) -> str:
    return card.interval.removeprefix("95 %: ").rpartition(",")[0].replace(" to ", ", ")


def lead(fastest: dict[str, Card]) -> str:
    """One sentence for each of the first models."""
    sentences = [_fastest(model, card) for model, card in islice(fastest.items(), MOST_MODELS)]
    more = len(fastest) - MOST_MODELS
    return " ".join([*sentences, f"{count(more, 'more model')} below."] if more > 0 else sentences)


def _fastest(model: str, card: Card) -> str:
    if not card.value:
        return f"{model}: no answer, {card.note}."
    if not card.interval.startswith("95 %"):
        repeats = card.interval.rpartition(": ")[2]
        return (
            f"{model}: **{card.value}** by {card.name} is the highest measured ({repeats}, too few repeats to call it "
            "the fastest)."
        )
    bounds = _bounds(card)
    if card.tied:
        tied = f"{card.tied + 1} configurations are tied (95 %)"
        return f"{model}: no single fastest; {tied}, the highest mean is **{card.value}** [{bounds}] by {card.name}."
    others = f"; {count(card.untested, 'other')} with fewer than 3 repeats not ranked" if card.untested else ""
    return f"{model}: **{card.value}** [{bounds}] by {card.name} is the fastest{others}."


def trust(findings: list[Finding], results: Results) -> Text:
    """The warnings in a line that leads to the next section."""
    if not (results.configurations.n > 0).any():
        return Text("No trial is ok, so there are no results. The next section states why.", page.WRONG)
    severe = [finding for finding in findings if finding.severity in (WRONG, DOUBT)]
    titles = list(dict.fromkeys(finding.title for finding in severe or findings))
    more = [f"{len(titles) - MOST_TITLES} more"] if len(titles) > MOST_TITLES else []
    named = "; ".join([*titles[:MOST_TITLES], *more])
    if not severe:
        text = f"No warnings. Notes: {named}." if named else "No warnings."
        wide = precision(results)
        return Text(f"{text} {wide}".strip(), "note" if wide else "good")
    wrong = sum(finding.severity == WRONG for finding in severe)
    doubts = len(severe) - wrong
    counts = [f"{wrong} wrong"] * bool(wrong) + [count(doubts, "doubt")] * bool(doubts)
    tone = page.WRONG if wrong else page.DOUBT
    return Text(f"Read the next section before you use these numbers: {' and '.join(counts)} ({named}).", tone)
