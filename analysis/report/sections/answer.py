"""The answer: what to run, in the time it takes to read four numbers."""

from __future__ import annotations

from functools import partial

from analysis.findings.finding import DOUBT, WRONG, Finding, count
from analysis.frames.results import Results
from analysis.report import answers, content
from analysis.report.content import Card, Cards, Part, Section, Text
from analysis.report.grids import of_rows
from analysis.report.material import Material

MOST_TITLES = 4  # of findings, before the next section
MOST_CARDS = 4  # models with cards of their own; more are rows of a table
HEADER = ("model", "", "value", "95 % interval", "configuration", "tied (95 %)", "note")


def section(material: Material) -> Section:
    results = material.results
    title = "The answer"
    if results.nothing_yet or results.configurations.empty:
        why = results.nothing_yet or "only the network was probed"
        return Section("answer", title, f"There is none: {why}.", ())
    by_title: dict[str, tuple[Card, ...]] = {}
    unknown: list[Part] = []
    for model in results.models:
        unknown += material.parts(f"the answer for {model}", partial(_answer, results, model, by_title))
    parts = [*material.parts("the warnings in a line", lambda: [trust(material.findings, results)]), *unknown]
    if len(by_title) <= MOST_CARDS:
        parts += [Cards(model, cards) for model, cards in by_title.items()]
    else:
        rows: list[tuple[str, ...]] = [
            (model, card.label, card.value or "none", card.interval, card.name, "; ".join(card.alike), card.note)
            for model, cards in by_title.items()
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
    first = lead({model: cards[0] for model, cards in by_title.items()})
    return Section("answer", title, " ".join(filter(None, (first, *soonest(by_title)))), tuple(parts))


def soonest(by_title: dict[str, tuple[Card, ...]]) -> list[str]:
    """A sentence for each target of the first models that some configuration reached."""
    sentences = []
    for model, cards in list(by_title.items())[:3]:
        for card in cards:
            if card.label.startswith(answers.SOONEST) and card.value:
                tied = f"; {card.tied} tied (95 %)" if card.tied else ""
                sentences.append(f"{model} is {card.label} with **{card.name}**: {card.value} [{_bounds(card)}]{tied}.")
    return sentences


def _bounds(card: Card) -> str:
    """`1, 2` of `95 %: 1 to 2, 3 repeats`."""
    return card.interval.removeprefix("95 %: ").rpartition(",")[0].replace(" to ", ", ")


def _answer(results: Results, model: str, into: dict[str, tuple[Card, ...]]) -> list[Part]:
    into[model] = answers.of(results, model)
    return []


def lead(fastest: dict[str, content.Card]) -> str:
    """One sentence for each of the first models."""
    sentences = []
    for model, card in list(fastest.items())[:3]:
        if not card.value:
            sentences.append(f"{model}: no answer, {card.note}.")
            continue
        if not card.interval.startswith("95 %"):
            sentences.append(
                f"{model} measured highest with **{card.name}**: {card.value} ({card.interval.rpartition(': ')[2]}, "
                "too few repeats to call it the fastest)."
            )
            continue
        value = f"**{card.name}**: {card.value} [{_bounds(card)}]"
        others = f"{card.untested} other{'s' * (card.untested != 1)} with fewer than 3 repeats"
        alone = f", {others} not ranked" if card.untested else ""
        sentences.append(
            f"{model}: no single fastest; {card.tied + 1} configurations are tied (95 %), the highest mean is {value}."
            if card.tied
            else f"{model} is fastest with {value}{alone}."
        )
    return " ".join([*sentences, f"{count(len(fastest) - 3, 'more model')} below."] if len(fastest) > 3 else sentences)


def trust(findings: list[Finding], results: Results) -> Text:
    """The warnings in a line that leads to the next section."""
    if not (results.configurations.n > 0).any():
        return Text("No trial is ok, so there are no results. The next section states why.", content.WRONG)
    severities = [finding.severity for finding in findings]
    wrong, doubts = severities.count(WRONG), severities.count(DOUBT)
    titles = list(
        dict.fromkeys(finding.title for finding in findings if finding.severity in (WRONG, DOUBT) or not wrong + doubts)
    )
    more = [f"{len(titles) - MOST_TITLES} more"] if len(titles) > MOST_TITLES else []
    named = "; ".join([*titles[:MOST_TITLES], *more])
    if not wrong + doubts:
        text = f"No warnings. Notes: {named}." if named else "No warnings."
        wide = answers.precision(results)
        return Text(f"{text} {wide}".strip(), "note" if wide else "good")
    counts = [f"{wrong} wrong"] * bool(wrong)
    counts += [f"{doubts} doubt{'s' * (doubts != 1)}"] * bool(doubts)
    tone = content.WRONG if wrong else content.DOUBT
    return Text(f"Read the next section before you use these numbers: {' and '.join(counts)} ({named}).", tone)
