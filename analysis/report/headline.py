"""The answer in a few sentences, made of what a study varies.

    targets            the configuration that reaches each target first
    pre-training       the gain of the weights that a training begins with, and of training the backbone
    workers            the speed-up of a second worker, and of the most workers
    three ways or more the best and the worst split of the same workers, what fits, and where efficiency goes
    any other axis     what each value gains over the first one, all else equal
    models             the fastest configuration of each

`facts` gathers plain values of a study; `sentences` is a pure function of them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from analysis import findings
from analysis.frames import configurations
from analysis.frames.configurations import MESH_KEYS, PIPELINE_KEYS, failed, known, over, values_of
from analysis.frames.results import Results, once, unit, without_kind, words
from analysis.frames.rows import ConfigurationRow, as_rows, grouped
from analysis.frames.study import workers_text
from analysis.frames.training import SHOWN
from analysis.report import changes, extent
from analysis.report.changes import MOST_CHANGES, Change
from analysis.statistics import ranking
from analysis.statistics.estimates import widths
from analysis.statistics.ranking import FALSE_ALARMS
from analysis.text import bracketed, first_few, megabytes, number, percent, span, two_figure_percentage, with_interval
from analysis.views import attribution, roofline, transfer
from analysis.views.pipelines import pipelines_table
from analysis.views.target import BEST, NOT_RESOLVED, SLOWER, TIED, TOO_FEW, trained_configurations
from analysis.views.tasks import not_tested, tasks
from scaling_study.frameworks import COMMAND
from scaling_study.models import MODELS
from scaling_study.targets import METRICS

MOST_MODELS, MOST_NAMES = 3, 3  # in the sentences
FEWEST_WAYS = 3  # to use the same workers, from which on they are compared with each other
OF_WAYS = ("framework", *PIPELINE_KEYS, *MESH_KEYS)
FEW_REPEATS = f"fewer than {ranking.FEWEST_REPEATS} repeats"
KIND = ("verdict", "ratio", "ratio_low", "ratio_high")  # of a ranking: ranking.kind_of
Row = Mapping[Any, Any]


@dataclass(frozen=True)
class Way:
    """A configuration against its baseline, whose workers are `base`: the speed-up of its table. `loss`: its largest,
    in words. `faster`: shown to be so among all ways. `unlike`: its batches are others than the baseline's
    (configurations.unlike_work). `reworded`: a command whose own words are others than the baseline's."""

    model: str
    name: str
    workers: int
    base: int
    speedup: float
    low: float | None
    high: float | None
    loss: str = ""
    faster: bool = False
    unlike: bool = False
    reworded: bool = False

    @property
    def scaled(self) -> bool:
        """True where the ratio is one of more workers at like work, and of nothing else that a command's words say."""
        return self.workers > self.base and not self.unlike and not self.reworded

    @property
    def text(self) -> str:
        """`0.94x [0.78, 1.14]`."""
        return f"{self.speedup:.2f}x{bracketed(self.low, self.high, '{:.2f}'.format)}"


@dataclass(frozen=True)
class Fastest:
    """The highest mean of a model. `others`: too close to call, the best of them faster by `room` at most. `untested`:
    of the others, those with too few repeats to be told from it."""

    model: str
    value: str
    name: str
    repeats: int
    among: int
    others: int = 0
    room: float = 0.0
    probably: int = 0  # slower, which is not proven
    more: str = ""
    untested: int = 0


@dataclass(frozen=True)
class Reached:
    """The configuration that reaches a target with the fewest seconds on average; `name` is empty where none is shown
    to. `span`: its mean and those too close to it to call, `4.99 to 17.0`."""

    model: str
    target: str
    name: str
    seconds: str = ""
    seeds: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)  # of the others: how many have each
    span: str = ""
    slower: Sequence[str] = ()  # names
    lower: Sequence[str] = ()  # names of those with too few seeds, and a lower mean


@dataclass(frozen=True)
class Facts:
    """All that sentences() says of a study."""

    baseline: str = ""
    ways: Sequence[Way] = ()
    several: bool = False  # whether they are ways to use the same workers
    changes: Sequence[Change] = ()
    fastest: Sequence[Fastest] = ()
    reached: Sequence[Reached] = ()
    helped: Sequence[str] = ()  # what pre-training, or training a backbone, brought
    ended: Sequence[str] = ()  # of trainings without a target
    bubble: str = ""
    held: Mapping[str, float] = field(default_factory=dict)  # bytes of a worker, where there are several ways
    out_of_memory: Sequence[str] = ()
    lost: str = ""  # where more workers lose most, unless the ways say it
    batches: Sequence[str] = ()  # more workers, and a larger batch, on the way to a target
    small: str = ""  # the models, where no large one is among them


def sentences(facts: Facts) -> list[str]:
    """What the study shows, the most important first, which is bold."""
    fastest = _fastest(facts.fastest)
    models = {one.model for one in facts.fastest} | {change.model for change in facts.changes}
    asked = facts.reached or facts.ended or facts.ways or facts.held
    every = [
        *([] if asked else [fastest]),
        *itertools.chain(*map(_reached, facts.reached[:MOST_MODELS])),
        *facts.helped[:MOST_MODELS],
        *facts.ended[:MOST_MODELS],
        *facts.batches[:MOST_CHANGES],
        *(_ways(facts) if facts.several else [_scaling(facts), facts.lost]),
        *changes.sentences(facts.changes, several=len(models) > 1),
        _memory(facts),
        facts.bubble,
        *([fastest] if asked else []),
        facts.small,
    ]
    said = [text for text in every if text]
    return [f"**{said[0]}**", *said[1:]] if said else []


def _reached(one: Reached) -> Iterator[str]:
    if not one.name:
        yield f"{one.model}: no configuration is shown to reach {one.target} with three seeds or more."
        return
    tied, unsure, few = (one.verdicts.get(verdict, 0) for verdict in (TIED, NOT_RESOLVED, TOO_FEW))
    slower = f"Shown to be slower: {first_few(one.slower, MOST_NAMES)}." if one.slower else ""
    lowest, untested = f"lowest mean{' with three seeds or more' * bool(few)}", not_tested(few, one.lower)
    if not tied and not unsure:
        took = f"{one.seconds} s of training, {one.seeds} seeds"
        soonest = f"{one.model} reaches {one.target} soonest with {one.name}: {took}."
        yield f"{one.model} to {one.target}: {lowest}: {one.name}, {took}; {untested}." if few else soonest
        yield slower
        return
    of = f"{1 + tied} of {1 + sum(one.verdicts.values())} configurations"
    apart = f"{one.seeds} seeds do not tell them apart"
    told = "; ".join([*[apart] * bool(tied), *[f"not resolved: {unsure} more"] * bool(unsure), *[untested] * bool(few)])
    yield f"{one.model} reaches {one.target} in {one.span} s of training with {of}; {told}."
    yield f"{lowest.capitalize()}: {one.name}, {one.seconds} s, {one.seeds} seeds. {slower}".rstrip()


def _scaling(facts: Facts) -> str:
    """Speed-ups with their intervals; of one worker count, each configuration against the baseline."""
    more = [way for way in facts.ways if way.scaled]
    counts = sorted({way.workers for way in more})
    said = []
    for count in dict.fromkeys([*counts[:1], *counts[-1:]]):
        ours = [way for way in more if way.workers == count]
        second = count == 2 and {way.base for way in ours} == {1}
        who = "A second worker gives" if second else f"{count} workers give"
        said.append(f"{who} {_of_models(ours)}")
    said = said or [
        f"{way.name}: {way.text} the throughput of {facts.baseline}{', at unlike work' * way.unlike}"
        for way in facts.ways[:MOST_NAMES]
    ]
    return f"{'; '.join(said)}." if said else ""


def _of_models(ways: Sequence[Way]) -> str:
    """`1.77x [1.71, 1.83] (resnet8) and 1.45 to 1.62x (resnet18, each within ±0.08)`."""
    said = [_speedups(model, own) for model, own in grouped(ways, lambda way: way.model).items()]
    more = [f"{len(said) - MOST_MODELS} more models"] if len(said) > MOST_MODELS else []
    *before, last = [*said[:MOST_MODELS], *more]
    return f"{', '.join(before)} and {last}" if before else last


def _speedups(model: str, own: Sequence[Way]) -> str:
    if len(own) == 1:
        return f"{own[0].text} ({model})"
    ends = span(*(f"{end(way.speedup for way in own):.2f}" for end in (min, max)))
    bounds = [(way.speedup, way.low, way.high) for way in own if way.low is not None and way.high is not None]
    if len(bounds) < len(own):
        return f"{ends}x ({model}, too few repeats for intervals)"
    return f"{ends}x ({model}, each within ±{changes.widest(bounds) / 100:.2f})"


def _ways(facts: Facts) -> Iterator[str]:
    """For each model the best and the worst of the ways to use the same workers, and where they lose; the model with
    most ways first."""
    models = [model for model, _ in Counter(way.model for way in facts.ways).most_common()]
    for model in models[:MOST_MODELS]:
        ours = _of_same_workers([way for way in facts.ways if way.model == model])
        best, last, workers = ours[0], ours[-1], ours[0].workers
        whose = f" ({model})" if len(models) > 1 else ""
        if best is last:
            yield f"{best.name}{whose}: {best.text} the throughput of {facts.baseline}."
            continue
        verdict = f"it is faster than {facts.baseline}" if best.faster else "no way is shown to be faster"
        if best.low is None:
            verdict = "too few repeats to tell"
        elif (best.low > 1) != best.faster:  # its own interval, which is printed, says otherwise
            verdict = f"among all configurations {verdict}"
        yield (
            f"Of {len(ours)} ways to use {workers_text(workers)}{whose} the highest mean is that of {best.name}: "
            f"{best.text} the throughput of {facts.baseline}; {verdict}."
        )
        yield f"The lowest is that of {last.name}: {last.text}."
        losses = [f"{way.name} loses {way.loss}." for way in dict.fromkeys((best, last)) if way.loss]
        yield " ".join(losses)


def _of_same_workers(ways: Sequence[Way]) -> list[Way]:
    """Those with the worker count that most of them have, the fastest first."""
    counts = Counter(way.workers for way in ways)
    workers = max(counts, key=lambda count: (counts[count], count))
    return sorted((way for way in ways if way.workers == workers), key=lambda way: -way.speedup)


def _memory(facts: Facts) -> str:
    """What fits, where that was asked: something did not, or the same workers were used in several ways."""
    if facts.out_of_memory:
        return f"Out of memory: {first_few(list(facts.out_of_memory), MOST_NAMES)}."
    if len(facts.held) < 2:
        return ""
    least, most = (end(facts.held, key=lambda name: facts.held[name]) for end in (min, max))
    least_bytes, most_bytes = megabytes(facts.held[least]), megabytes(facts.held[most])
    return f"All {len(facts.held)} fit: {least_bytes} MB a worker ({least}) to {most_bytes} MB ({most})."


def _fastest(fastest: Sequence[Fastest]) -> str:
    each, shown = [], fastest[:MOST_MODELS]
    for one in shown:
        room = f"up to +{two_figure_percentage(one.room)} %" if one.room <= 1 else "twice as fast is not excluded"
        close = f"too close to call: {one.others} of {one.among - 1} others, {room}" * bool(one.others)
        if one.repeats < ranking.FEWEST_REPEATS:
            close = f"too few repeats ({one.repeats}) to call it the fastest"
        elif one.untested:
            untested = f"not tested against {findings.count(one.untested, 'other')}: {FEW_REPEATS}"
            close = "; ".join(filter(None, (close, untested)))
        about = (one.name, close, f"probably slower: {one.probably}" * bool(one.probably), one.more)
        each.append(f"{one.model} {one.value} ({'; '.join(filter(None, about))})")
    if not each:
        return ""
    more = f"; {len(fastest) - MOST_MODELS} more models below" if len(fastest) > MOST_MODELS else ""
    few = ranking.FEWEST_REPEATS
    unsure = any(one.others or one.probably or one.untested or one.repeats < few for one in shown)
    first = "Highest mean throughput" if unsure else "Fastest"
    return f"{first if any(one.among > 1 for one in fastest) else 'Measured'}: {'; '.join(each)}{more}."


# Facts of a study.


@once
def facts(results: Results) -> Facts:
    """Of the configurations that may be compared."""
    rows = [row for row in results.rows if row["n"] and not row["oversubscribed"] and not row["not_comparable"]]
    order = {model: at for at, model in enumerate(results.models)}
    rows.sort(key=lambda row: order[str(row["model"])])
    compared = [row for row in rows if known(row["speedup"]) and row["baseline"] != row["configuration"]]
    several = len({values_of(row, OF_WAYS) for row in compared}) >= FEWEST_WAYS
    shared = [row for row in rows if row["workers"] > 1 and known(row["peak_memory_bytes"])]
    split = len({values_of(row, OF_WAYS) for row in shared}) >= FEWEST_WAYS
    but = MESH_KEYS + PIPELINE_KEYS if several else ()
    return Facts(
        baseline=_baseline(results),
        ways=tuple(_against_baselines(compared, results, len(compared) if several else 1)),
        several=several,
        changes=tuple(changes.of(rows, results, partial(named, results=results), but)),
        fastest=tuple(_fastest_of(results)),
        reached=tuple(_soonest(results)),
        helped=tuple(transfer.answers(results)),
        ended=tuple(_ended(results)),
        bubble=_bubble(results),
        held={_of_model(row, results): float(row["peak_memory_bytes"]) for row in shared if split},
        out_of_memory=tuple(_of_model(row, results) for row in results.rows if row["status"] == "oom"),
        lost="" if several else _most_lost(results),
        batches=tuple(extent.to_targets(results)),
        small=extent.of_size(results),
    )


def _baseline(results: Results) -> str:
    """`single`, or `torch_ddp, 2 workers, fp32 gradients`."""
    keys = dict(results.study.baseline or {})
    first = [str(keys.pop("framework"))] if "framework" in keys else []
    first += [workers_text(int(keys.pop("workers")))] if "workers" in keys else []
    return ", ".join([*first, *words(keys, keys)])


def named(row: Row, results: Results, key: str = "batch") -> str:
    """`horovod, fp16, batch 64 per worker (128 global)`: the words that vary in this study, and the batch where its
    model has several; of a training, whose `key` is global_batch, without the words that tell it from timed runs."""
    several = str(row["model"]) in _of_several(results, key)
    name = results.named.get(str(row["series"]), str(row["series"])).replace(_same_workers(results), "")
    name = without_kind(name) if key == "global_batch" else name
    return name + f", {configurations.batch_words(row)}" * several


@once
def _of_several(results: Results, key: str) -> set[str]:
    """The models with several values of this key."""
    return {model for model in results.models if len({row[key] for row in results.rows_of(model)}) > 1}


def _of_model(row: Row, results: Results) -> str:
    return f"{row['model']}, " * (len(results.models) > 1) + named(row, results)


@once
def _same_workers(results: Results) -> str:
    """`, 2 workers`, where all that may be compared have one worker or so many; else words that no name has."""
    counts = {int(row["workers"]) for row in results.rows if row["n"] and not row["oversubscribed"]} - {1}
    return f", {workers_text(counts.pop())}" if len(counts) == 1 else "\0"


def _against_baselines(rows: Sequence[ConfigurationRow], results: Results, tests: int) -> Iterator[Way]:
    """`tests`: how many are compared at once."""
    lost = attribution.by_name(results)
    for row in rows:
        base = results.by_name[str(row["baseline"])]
        gain = over(row, base)
        yield Way(
            str(row["model"]),
            named(row, results),
            int(row["workers"]),
            int(base["workers"]),
            gain.mean,
            gain.low,
            gain.high,
            attribution.in_words(of) if (of := lost.get(str(row["configuration"]))) else "",
            _faster(row, base, results, tests),
            configurations.unlike_work(row, base),
            row["framework"] == COMMAND and row["arguments"] != base["arguments"],
        )


def _faster(row: ConfigurationRow, base: ConfigurationRow, results: Results, tests: int) -> bool:
    """As the verdicts of the tables say it where the two stand in one row that this one leads; else by the interval
    that is corrected for so many tests."""
    its = ranking.standings(results).get(str(base["configuration"]))
    if its and its.beside == row["configuration"] and its.verdict != ranking.BEST:
        return its.kind == ranking.SLOWER
    return (over(row, base, 1 - FALSE_ALARMS / tests).low or 0.0) > 1


def _most_lost(results: Results) -> str:
    """The configuration of more workers that loses most, and its causes; empty where none loses much."""
    if not (losers := attribution.losers(results)):
        return ""
    most = "most, " * (len(losers) > 1)
    return f"{_of_model(losers[0].row, results)} loses {most}{attribution.in_words(losers[0])}."


def _fastest_of(results: Results) -> Iterator[Fastest]:
    """Of each model, among the configurations that do the work that most of them do."""
    for model in results.models:
        ours, close, probably, untested = contest(results, model, "samples_per_second")
        if not ours:
            continue
        row = results.by_name[str(ours[0]["configuration"])]
        speed = f"{number(row['samples_per_second'])} {samples(results, model)}/s"
        peak = roofline.sentence(results, str(row["configuration"])).partition(",")[0].partition(":")[0]
        yield Fastest(
            model,
            speed + bracketed(row["interval_low"], row["interval_high"]),
            named(row, results),
            int(row["n"]),
            len(ours),
            len(close),
            max((other["ratio_high"] - 1 for other in close), default=0.0),
            probably,
            peak,
            untested,
        )


class Contest(NamedTuple):
    """Rows of ranking.ranking: those of a model that do the work that most of its configurations do, the best first;
    those of them that are too close to it to call; how many others are probably worse, and how many not tested."""

    ours: list[ConfigurationRow]
    close: list[ConfigurationRow]
    probably: int
    untested: int


def contest(results: Results, model: str, by: str) -> Contest:
    ranked = ranking.ranking(results, by)
    every = as_rows(ranked[ranked.model == model])
    ours = [row for row in every if row["work"] == every[0]["work"]]
    kinds = [ranking.kind_of(*(row[key] for key in KIND)) for row in ours[1:]]
    close = [row for row, kind in zip(ours[1:], kinds, strict=True) if kind == ranking.CLOSE]
    return Contest(ours, close, kinds.count(ranking.PROBABLY), kinds.count(ranking.UNTESTED))


def samples(results: Results, model: str) -> str:
    """`images`, `sequences` or `samples`: the unit of a model's throughput."""
    kind = unit(results.frame_of(model))
    return "images" if kind == "samples" and model in MODELS and MODELS[model].data == "cifar10" else kind


def _soonest(results: Results) -> Iterator[Reached]:
    for task in tasks(results):
        if (best := task.best) is None:
            yield Reached(task.whose, task.target, "")
            continue
        names = {
            str(row["configuration"]): named(results.by_name[row["configuration"]], results, "global_batch")
            for row in task.rows
        }
        near = [row["seconds_to_target"] for row in task.having(BEST, TIED) if known(row["seconds_to_target"])]
        yield Reached(
            task.whose,
            task.target,
            names[best["configuration"]],
            with_interval(*(best[f"seconds_to_target{end}"] for end in ("", "_low", "_high"))),
            int(best["reached"]),
            Counter(row["soonest"] for row in task.rows if row is not best),
            span(number(min(near)), number(max(near))) if near else "?",
            [names[row["configuration"]] for row in task.having(SLOWER)],
            [names[name] for name in task.lower],
        )


def _ended(results: Results) -> Iterator[str]:
    """Where trainings have no target: whose result on the test set is best."""
    trained = trained_configurations(results)
    trained = trained[~trained.configuration.isin([row["configuration"] for row in results.rows if failed(row)])]
    for model, group in trained[trained.target == ""].groupby("model", sort=False):
        best_first = sorted(SHOWN, key=lambda name: name in ("loss", "perplexity"))  # in the order of METRICS
        metric = next((name for name in best_first if group[f"test_{name}"].notna().any()), None)
        if metric is None:
            continue
        ordered = group.dropna(subset=f"test_{metric}").sort_values(f"test_{metric}", ascending=not METRICS[metric][0])
        repeated = ordered[ordered.seeds >= ranking.FEWEST_REPEATS]  # one seed may have been a lucky one
        ordered = ordered if repeated.empty else repeated
        best = as_rows(ordered)[0]
        mean, low, high = (best[f"test_{metric}{end}"] for end in ("", "_low", "_high"))
        value = with_interval(mean, low, high, "{:.3f}".format)
        end = "highest" if METRICS[metric][0] else "lowest"
        among = f", the {end} mean of {len(ordered)}" if len(ordered) > 1 else ""
        name = named(results.by_name[best["configuration"]], results, "global_batch")
        few = f" ({findings.count(int(best['seeds']), 'seed')})" if repeated.empty else ""
        what = transfer.FIGURES.get(metric, metric.replace("_", " "))
        yield (
            f"{model} ends at test {what} {value}{few} with {name}"
            f"{among}, after {number(best['train_seconds'])} s of training."
        )


def _bubble(results: Results) -> str:
    """The bubble of the fastest pipeline that has one, beside theory and what its cut allows."""
    table = pipelines_table(results)
    measured = [] if table.empty else [row for row in as_rows(table[table.bubble.notna()]) if not row["not_comparable"]]
    measured = [row for row in measured if known(row["samples_per_second"])]
    if not measured:
        return ""
    row = max(measured, key=lambda row: float(row["speedup"]) if known(row["speedup"]) else 0.0)
    theory = f" ({percent(row['theory'])} in theory)" if known(row["theory"]) else ""
    cap = f"; its cut allows {row['cap']:.2f}x at most" if known(row["cap"]) else ""
    name = named(results.by_name[str(row["configuration"])], results)
    return f"Stages of {name} are idle for {percent(row['bubble'])} of a step{theory}{cap}."


def margin(results: Results) -> str:
    """`Margin ±3.5 %, 6 launches`: the median of the intervals that the study's target is asked of; and how many of
    these do not reach it. Where the answer is another number than a throughput, first how well that is known."""
    asked, target = widths(results), results.study.target_interval
    halves = [width.half for width in asked if not math.isnan(width.half)]
    if not halves:
        return f"No margin: {results.repeats}"
    widest = f" (up to ±{two_figure_percentage(max(halves))} %)" if max(halves) > 1.5 * median(halves) else ""
    wide = sum(half > target for half in halves)
    missed = f", target of ±{100 * target:.2g} % not reached by {wide} of {len(asked)} intervals" if wide else ""
    return f"{_whose(results)} ±{two_figure_percentage(median(halves))} %{widest}, {results.repeats}{missed}"


def _whose(results: Results) -> str:
    """`Margin`; where the first sentence is of other intervals than these, `The lowest mean is known to a factor of 1.9
    (3 seeds). Throughput: margin`."""
    said = facts(results)
    if said.reached or said.ended:
        return f"{extent.of_the_first_target(results)}Throughput: margin"
    if not (said.several and said.ways):
        return "Margin"
    model, _ = Counter(way.model for way in said.ways).most_common(1)[0]
    best, *_ = _of_same_workers([way for way in said.ways if way.model == model])
    return (
        f"{extent.known_to('The highest mean', best.speedup, best.low, best.high, results.repeats)}Throughput: margin"
    )
