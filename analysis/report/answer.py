"""The answer: sentences made of what the study varies (headline.py), one figure, and the numbers behind it.

Model by model the fastest, the cheapest, the most efficient, the scaling limit, and what reaches a target soonest, each
with its interval and with what is too close to it to call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from analysis.findings import DOUBT, NOTE, WORDS, WRONG, Finding, count
from analysis.frames.configurations import batch_words, known
from analysis.frames.results import Results, without_kind
from analysis.frames.rows import as_rows
from analysis.published import references
from analysis.report import headline, page, trust, worth
from analysis.report.page import GOOD, Bullets, Card, Cards, Material, Part, Picture, Section, Text, folded, of_rows
from analysis.statistics import ranking
from analysis.statistics.knee import SHARE
from analysis.text import bracketed, first_of, number, two_figure_percentage, with_interval
from analysis.views import cost, roofline
from analysis.views.scaling import knees
from analysis.views.target import TIED, TOO_FEW
from analysis.views.tasks import not_tested, tasks

CHEAPEST = "cheapest for a million samples"
BEST_EFFICIENCY = "best efficiency of more workers"
FASTEST = "fastest"
NOT_TESTED = {  # how the best is called where some others have too few repeats to be told from it, or it has itself
    FASTEST: "highest mean throughput",
    CHEAPEST: "lowest mean cost of a million samples",
    BEST_EFFICIENCY: "highest mean efficiency of more workers",
}
NOTHING_COMPARABLE = "no comparable configuration was measured"
MOST_ALIKE = 4  # names under an answer; the rest are counted
MOST_TITLES = 4  # of findings, before the next section
MOST_CARDS = 4  # models with cards of their own; more are rows of a table
HEADER = ("model", "", "value", "95 % interval", "configuration", "too close to call", "note")
CHANGES = "One change at a time"
CLOSE = (
    "Too close to call: the 95 % interval of the ratio, corrected for all configurations of the study, holds 1; in "
    "brackets the ratio of means, and by how much one could be better at most. The highest of many means is partly "
    "chance. Overlapping intervals of single configurations decide nothing."
)
Row = Mapping[Any, Any]


def section(material: Material) -> Section:
    results = material.results
    title = "The answer"
    if results.nothing_yet or results.configurations.empty:
        why = results.nothing_yet or "only the network was probed"
        return Section("answer", title, f"There is none: {why}.", ())
    none = [f"There is none: {NOTHING_COMPARABLE}."]
    lead, *others = material.salvage.or_else(
        "the answer",
        lambda: headline.sentences(headline.facts(results)) or none,
        lambda why: [page.lost("the answer", why).text],
    )
    shown = picture(material)
    parts: list[Part] = [
        *([Bullets(tuple(others))] if others else []),
        *material.parts("the warnings in a line", lambda: [trusted(material.findings, results)]),
        *([shown] if shown else []),
        *_numbers(material),
        *material.parts("what single changes bring", lambda: _changes(results)),
    ]
    return Section("answer", title, lead, tuple(parts))


def facts_of(material: Material) -> headline.Facts | None:
    """None where nothing was measured, or where they could not be made."""
    if material.results.configurations.empty:
        return None
    return material.salvage.or_else("the answer", lambda: headline.facts(material.results), lambda _: None)


def picture(material: Material) -> Picture | None:
    """The figure that shows the answer: of targets, of ways to share the work, of workers, else of throughput."""
    if (facts := facts_of(material)) is None:
        return None
    names = (name for question in worth.questions(facts) for name in question.figures)
    return next((figure for name in names for figure in material.drawn(name)[-1:]), None)


def _numbers(material: Material) -> list[Part]:
    """Cards, or rows of a table where models are many, folded."""
    models = material.results.without_plumbing().models
    made: list[Part] = []
    for model in models:
        made += material.parts(f"the answer for {model}", partial(cards_of, material.results, model))
    answers = [part for part in made if isinstance(part, Cards)]
    lost = [part for part in made if not isinstance(part, Cards)]
    shown: list[Part] = [*answers]
    if len(models) > MOST_CARDS:
        rows = [
            (of.title, card.label, card.value, card.interval, card.name, "; ".join(card.alike), card.note)
            for of in answers
            for card in of.cards
        ]
        shown = [of_rows("Answers, model by model", HEADER, rows, file="answers.csv")] if rows else []
    close = [Text(CLOSE)] if any(card.alike for of in answers for card in of.cards) else []
    return [*lost, *folded("In numbers: fastest, cheapest, most efficient", [*shown, *close], "numbers")]


def _changes(results: Results) -> list[Part]:
    """A row for each pair that differs in one key alone."""
    rows = [
        (
            change.what,
            change.model,
            change.name,
            with_interval(change.ratio, change.low, change.high, "{:.2f}".format),
            f"{bracketed(*change.corrected, '{:.2f}'.format)} among {change.tests}".strip() if change.tests else "",
            change.effect,
        )
        for change in headline.facts(results).changes
    ]
    note = (
        "Ratio of throughputs, all else equal, with its own 95 % interval. Among pairs: corrected for so many, "
        "which are those of 16-bit gradients, or all other rows. Resolved: the corrected interval leaves out 1."
    )
    header = ("change", "model", "configuration", "ratio", "among pairs", "effect")
    return folded(
        CHANGES, [of_rows(CHANGES, header, rows, (note,), "changes.csv")] if rows else [], "changes", full=True
    )


def cards_of(results: Results, model: str) -> Iterator[Cards]:
    """Fastest, cheapest, most efficient, scaling limit; then the soonest to each target: those that are known."""
    speeds = fastest(results, model), cheapest(results, model), efficient(results, model), knee(results, model)
    if cards := tuple(card for card in (*speeds, *soonest(results, model)) if card.value):
        yield Cards(model, cards)


def soonest(results: Results, model: str) -> Iterator[Card]:
    """Cards of a model's trainings to a result: seconds of training to the target of each of its tasks."""
    for task in (task for task in tasks(results) if task.model == model):
        few, to = len(task.having(TOO_FEW)), task.target + f" ({task.words})" * bool(task.words)
        label = f"lowest mean with three seeds or more to {to}" if few else f"soonest to {to}"
        if (first := task.best) is None:
            yield Card(label, "", note="no configuration reached it with three seeds or more")
            continue
        names = [
            f"{_training(results.by_name[row['configuration']])} "
            f"(up to {two_figure_percentage(1 - row['soonest_low'])} % faster)"
            for row in task.having(TIED)
        ]
        ends = (first["seconds_to_target_low"], first["seconds_to_target_high"])
        low, high = (number(end) if known(end) else "?" for end in ends)
        lower = [_training(results.by_name[name]) for name in task.lower]
        yield Card(
            one_of(label, len(names)),
            f"{number(first['seconds_to_target'])} s of training",
            f"95 %: {low} to {high}, {first['reached']} seeds",
            _training(results.by_name[first["configuration"]]),
            first_of(names, MOST_ALIKE),
            "; ".join(filter(None, (not_tested(few, lower), "evaluation and checkpoints apart"))),
        )


def one_of(label: str, others: int) -> str:
    """`fastest (one of 3)`, where so many others may be it as well."""
    return f"{label} (one of {others + 1})" if others else label


def _training(row: Row) -> str:
    """`torch_ddp, batch 32 per worker (64 global)`."""
    return without_kind(str(row["series"])) + f", {batch_words(row)}"


def fastest(results: Results, model: str) -> Card:
    """The highest throughput of a model; on a GPU with its share of the peaks; with published speeds where some are
    comparable."""
    card = _ranked(results, model, FASTEST, "samples_per_second", number, f" {headline.samples(results, model)}/s")
    top = _top(results, model, "samples_per_second")
    if top is None:
        return card
    name = str(top["configuration"])
    more = card.note, roofline.sentence(results, name), references.sentence(results, name)
    return replace(card, note="; ".join(filter(None, more)))


def efficient(results: Results, model: str) -> Card:
    """The highest efficiency; none where all have the workers of their baselines, as it then is the speed-up."""
    rows = [row for row in results.rows_of(model) if known(row["efficiency"])]
    if any(row["efficiency"] != row["speedup"] for row in rows):
        return _ranked(results, model, BEST_EFFICIENCY, "efficiency", lambda value: f"{100 * value:.0f}", " %")
    why = "no configuration with more workers than its baseline has a speed-up at like work"
    return Card(BEST_EFFICIENCY, "", note=why if results.study.baseline is not None else "no baseline is declared")


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
    why = "" if price is None else f"at {number(price)} a worker-hour"
    return replace(card, note="; ".join(filter(None, (why, card.note))))


def _cheapest_of_several(ours: list[cost.Cost]) -> Card:
    best = cost.cheapest(ours)
    if best is None:
        return Card(CHEAPEST, "", note=NOTHING_COMPARABLE)
    value = number(best.money) if best.money is not None else f"{number(best.worker_hours)} worker-hours"
    interval = "" if best.bounds is None else f"95 %: {number(best.bounds[0])} to {number(best.bounds[1])}"
    why = "workers have different prices: what is too close to call was not computed"
    return Card(CHEAPEST, value, interval, name_of(best.row), (), why)


def knee(results: Results, model: str) -> Card:
    """The scaling limit of the family with the fastest configuration, else of the first that has a law."""
    label = f"scaling limit at {100 * SHARE:.0f} %"
    top = _top(results, model, "samples_per_second")
    fastest = None if top is None else top["configuration"]
    ours = [(beyond.compared.family, at) for beyond, at in knees(results) if beyond.compared.family.model == model]
    if not ours:
        return Card(label, "")
    family, at = max(ours, key=lambda pair: fastest in [row["configuration"] for row in pair[0].rows])
    value, _, bounds = at.text.partition(" [")
    interval = f"95 %: {bounds.removesuffix(']').replace(', ', ' to ')}" if bounds else ""
    why = f"beyond it the marginal efficiency of a worker is below {100 * at.share:.0f} %"
    if at.workers >= at.looked:
        why = f"no limit up to here: the marginal efficiency of every worker is {100 * at.share:.0f} % or more"
    return Card(label, value, interval, family.label, (), why)


def name_of(row: Row) -> str:
    """`horovod, 2 workers, fp16, batch 64 per worker (128 global)`."""
    return f"{row['series']}, {batch_words(row)}"


def _ranked(results: Results, model: str, label: str, by: str, text_of: Callable[[float], str], unit_of: str) -> Card:
    """The best of a model by a column of ranking.best; `text_of` a value, without its unit."""
    top = _top(results, model, by)
    if top is None:
        return Card(label, "", note=NOTHING_COMPARABLE)
    ours, close, probably, untested = headline.contest(results, model, by)
    better, worse = ranking.WORDS[by]
    alike = [
        f"{name_of(results.by_name[row['configuration']])} ({row['ratio']:.2f}, up to "
        f"{two_figure_percentage(row['ratio_high'] - 1)} % {better})"
        for row in close
    ]
    lone = len(top["without_interval"])
    label = NOT_TESTED[label] if untested or (len(ours) > 1 and top["n"] < ranking.FEWEST_REPEATS) else label
    low, high = (text_of(top[f"value_{end}"]) if known(top[f"value_{end}"]) else "" for end in ("low", "high"))
    if by == "samples_per_worker_second":  # the more samples, the less they cost
        low, high = high, low
    why = (
        f"{count(lone, 'other')} not ranked ({headline.FEW_REPEATS})" * bool(lone),
        f"{count(probably, 'other')} probably {worse}, which is not proven" * bool(probably),
        f"among {top['work']}: the model's other rows do different work" * bool(top["work"]),
    )
    return Card(
        one_of(label, len(close) + probably),
        text_of(top["value"]) + unit_of,
        f"95 %: {low} to {high}, {results.counted(top['n'])}" if low else f"no interval: n = {top['n']}",
        name_of(results.by_name[top["configuration"]]),
        first_of(alike, MOST_ALIKE),
        "; ".join(filter(None, why)),
    )


def _top(results: Results, model: str, by: str) -> Row | None:
    best = ranking.best(results, by)
    return next(iter(as_rows(best[best.model == model])), None)


def trusted(findings: list[Finding], results: Results) -> Text:
    """Margin, repeats, parity and warnings in a line."""
    if not (results.configurations.n > 0).any():
        return Text("No trial is ok, so there are no results. The next section states why.", WRONG)
    severe = [finding for finding in findings if finding.severity in (WRONG, DOUBT)]
    titles = list(dict.fromkeys(finding.title for finding in severe))
    more = [f"{len(titles) - MOST_TITLES} more"] if len(titles) > MOST_TITLES else []
    numbers = Counter(finding.severity for finding in severe)
    counts = " and ".join(count(numbers[kind], WORDS[kind]) for kind in (WRONG, DOUBT) if numbers[kind])
    warned = f"{counts}: {'; '.join([*titles[:MOST_TITLES], *more])}" if severe else "no warnings"
    calm = NOTE if trust.precision(results) else GOOD
    tone = next((kind for kind in (WRONG, DOUBT) if numbers[kind]), calm)
    return Text(f"{headline.margin(results)}, {trust.parity_words(results)}, {warned}.", tone)
