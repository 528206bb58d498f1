"""The answer in a few sentences, made of what a study varies.

    targets            the configuration that reaches each target first
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from analysis.frames import configurations
from analysis.frames.configurations import BATCH_KEYS, KEYS, MESH_KEYS, PIPELINE_KEYS, known, over, values_of
from analysis.frames.results import MAIN_KEYS, Results, carried, once, unit, without_kind, words
from analysis.frames.rows import ConfigurationRow, as_rows
from analysis.frames.study import workers_text
from analysis.frames.training import SHOWN
from analysis.report import extent
from analysis.statistics import ranking
from analysis.statistics.estimates import widths
from analysis.statistics.ranking import FALSE_ALARMS, Uncertainty, steps
from analysis.text import bracketed, first_few, megabytes, number, percent, two_figure_percentage, with_interval
from analysis.views import allreduce_gain, attribution, roofline
from analysis.views.pipelines import pipelines_table
from analysis.views.target import BEST, NOT_RESOLVED, SLOWER, TIED, trained_configurations
from scaling_study.models import MODELS
from scaling_study.targets import METRICS
from scaling_study.trial import Trial

MOST_MODELS, MOST_CHANGES, MOST_NAMES = 3, 4, 3  # in the sentences
FEWEST_WAYS = 3  # to use the same workers, from which on they are compared with each other
OF_WAYS = ("framework", *PIPELINE_KEYS, *MESH_KEYS)
NO_AXIS = ("seed", "warm", "learning_rate", "epochs", "warmup_epochs", "hosts", "command", "workdir")  # of speed
RESOLVED, NO_DIFFERENCE = "resolved", allreduce_gain.NO_DIFFERENCE  # beside NOT_RESOLVED: effects of a change
Row = Mapping[Any, Any]
Judged = tuple[float, float, float, str]  # of a pair: the ratio, its bounds and its effect


@dataclass(frozen=True)
class Way:
    """A configuration against its baseline, whose workers are `base`. `loss`: its largest, in words."""

    model: str
    name: str
    workers: int
    base: int
    speedup: float
    low: float | None
    high: float | None
    loss: str = ""

    @property
    def text(self) -> str:
        """`0.94x [0.78, 1.14]`."""
        return f"{self.speedup:.2f}x{bracketed(self.low, self.high, '{:.2f}'.format)}"


@dataclass(frozen=True)
class Change:
    """One key at another value, all else equal: the ratio of throughputs with its interval (95 %). `effect`: RESOLVED,
    NOT_RESOLVED or NO_DIFFERENCE. 16-bit gradients have interval and effect of the view allreduce_gain, corrected for
    all pairs of them; other changes are corrected for all of these."""

    model: str
    what: str
    ratio: float
    low: float
    high: float
    effect: str
    name: str = ""


@dataclass(frozen=True)
class Fastest:
    """The highest mean of a model. `others`: too close to call, the best of them faster by `room` at most."""

    model: str
    value: str
    name: str
    repeats: int
    among: int
    others: int = 0
    room: float = 0.0
    probably: int = 0  # slower, which is not proven
    more: str = ""


@dataclass(frozen=True)
class Reached:
    """The configuration that reaches a target first; `name` is empty where none is shown to."""

    model: str
    target: str
    name: str
    seconds: str = ""
    seeds: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)  # of the others: how many have each


@dataclass(frozen=True)
class Facts:
    """All that sentences() says of a study."""

    baseline: str = ""
    ways: Sequence[Way] = ()
    several: bool = False  # whether they are ways to use the same workers
    changes: Sequence[Change] = ()
    fastest: Sequence[Fastest] = ()
    reached: Sequence[Reached] = ()
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
        *facts.ended[:MOST_MODELS],
        *facts.batches[:MOST_CHANGES],
        *(_ways(facts) if facts.several else [_scaling(facts), facts.lost]),
        *_changes(facts.changes, several=len(models) > 1),
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
    yield f"{one.model} reaches {one.target} soonest with {one.name}: {one.seconds} s of training, {one.seeds} seeds."
    said = {TIED: "too close to call", SLOWER: "slower", NOT_RESOLVED: "not resolved"}
    others = [f"{text}: {one.verdicts[verdict]}" for verdict, text in said.items() if one.verdicts.get(verdict)]
    if others:
        yield f"Of the others, {', '.join(others)}."


def _scaling(facts: Facts) -> str:
    """Speed-ups with their intervals; of one worker count, each configuration against the baseline."""
    more = [way for way in facts.ways if way.workers > way.base]
    counts = sorted({way.workers for way in more})
    said = []
    for count in dict.fromkeys([*counts[:1], *counts[-1:]]):
        ours = [way for way in more if way.workers == count]
        second = count == 2 and {way.base for way in ours} == {1}
        who = "A second worker gives" if second else f"{count} workers give"
        said.append(f"{who} {_of_models(ours)}")
    said = said or [f"{way.name}: {way.text} the throughput of {facts.baseline}" for way in facts.ways[:MOST_NAMES]]
    return f"{'; '.join(said)}." if said else ""


def _of_models(ways: Sequence[Way]) -> str:
    """`1.77x [1.71, 1.83] (resnet8) and 1.45 to 1.62x (resnet18, each within ±0.08)`."""
    by_model: dict[str, list[Way]] = {}
    for way in ways:
        by_model.setdefault(way.model, []).append(way)
    said = [_speedups(model, own) for model, own in by_model.items()]
    more = [f"{len(said) - MOST_MODELS} more models"] if len(said) > MOST_MODELS else []
    *before, last = [*said[:MOST_MODELS], *more]
    return f"{', '.join(before)} and {last}" if before else last


def _speedups(model: str, own: Sequence[Way]) -> str:
    if len(own) == 1:
        return f"{own[0].text} ({model})"
    ends = _span(*(f"{end(way.speedup for way in own):.2f}" for end in (min, max)))
    bounds = [(way.speedup, way.low, way.high) for way in own]
    known_bounds = [(value, low, high) for value, low, high in bounds if low is not None and high is not None]
    if len(known_bounds) < len(own):
        return f"{ends}x ({model}, too few repeats for intervals)"
    return f"{ends}x ({model}, each within ±{_widest(known_bounds) / 100:.2f})"


def _widest(bounds: Iterable[tuple[float, float, float]]) -> int:
    """The farthest that a bound lies from its value, of (value, low, high), in hundredths, rounded up."""
    farthest = max(max(value - low, high - value) for value, low, high in bounds)
    return math.ceil(round(100 * farthest, 6))


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _ways(facts: Facts) -> Iterator[str]:
    """For each model the best and the worst of the ways to use the same workers, and where they lose."""
    models = list(dict.fromkeys(way.model for way in facts.ways))
    for model in models[:MOST_MODELS]:
        ours = _of_same_workers([way for way in facts.ways if way.model == model])
        best, last, workers = ours[0], ours[-1], ours[0].workers
        whose = f" ({model})" if len(models) > 1 else ""
        if best is last:
            yield f"{best.name}{whose}: {best.text} the throughput of {facts.baseline}."
            continue
        verdict = f"it is faster than {facts.baseline}" if (best.low or 0.0) > 1 else "no way is shown to be faster"
        verdict = "too few repeats to tell" if best.low is None else f"{verdict} (95 %, corrected for all ways)"
        yield (
            f"Of {len(ours)} ways to use {workers_text(workers)}{whose} the best is {best.name}: {best.text} the "
            f"throughput of {facts.baseline}; {verdict}."
        )
        yield f"The slowest is {last.name}: {last.text}."
        losses = [f"{way.name} loses {way.loss}." for way in dict.fromkeys((best, last)) if way.loss]
        yield " ".join(losses)


def _of_same_workers(ways: Sequence[Way]) -> list[Way]:
    """Those with the worker count that most of them have, the fastest first."""
    counts = Counter(way.workers for way in ways)
    workers = max(counts, key=lambda count: (counts[count], count))
    return sorted((way for way in ways if way.workers == workers), key=lambda way: -way.speedup)


def _changes(changes: Sequence[Change], several: bool) -> list[str]:
    """A sentence for each key and value: `fp16 gradients: +4 % [+0.3, +7] with resnet18; not resolved with resnet8 [-5,
    +6] %.` `several`: models, of which those with a resolved effect come first."""
    said = []
    for what in list(dict.fromkeys(change.what for change in changes))[:MOST_CHANGES]:
        by_model: dict[str, list[Change]] = {}
        for change in changes:
            if change.what == what:
                by_model.setdefault(change.model, []).append(change)
        if len(by_model) > 1 and {change.effect for own in by_model.values() for change in own} == {NOT_RESOLVED}:
            by_model = {"": [change for own in by_model.values() for change in own]}
        ordered = sorted(by_model.items(), key=lambda of: all(change.effect != RESOLVED for change in of[1]))
        each = [_effect(own, f" with {model}" * (several and model != "")) for model, own in ordered[:MOST_MODELS]]
        said.append(f"{what}: {'; '.join(each)}.")
    return said


def _effect(own: Sequence[Change], of_model: str) -> str:
    """`+4 % [+0.3, +7]`, `+24 to +36 % (each within ±5 %)`, `not resolved [-5, +6] %`, or `-1 to +7 % (each within
    ±6 %), resolved in 2 of 4 comparisons`. Brackets hold every interval of these."""
    gains = [_gain(end(change.ratio for change in own)) for end in (min, max)]
    outermost = f"[{_gain(min(change.low for change in own))}, {_gain(max(change.high for change in own))}]"
    resolved = sum(change.effect == RESOLVED for change in own)
    if not resolved:
        alike = all(change.effect == NO_DIFFERENCE for change in own)
        return f"{NO_DIFFERENCE if alike else NOT_RESOLVED}{of_model} {outermost} %"
    within = _widest((change.ratio, change.low, change.high) for change in own)
    margin = outermost if gains[0] == gains[1] else f"(each within ±{within} %)"
    counted = "" if resolved == len(own) else f", resolved in {resolved} of {len(own)} comparisons"
    return f"{_span(*gains)} % {margin}{of_model}{counted}"


def _gain(ratio: float) -> str:
    """`+4`, `-0.3` or `0`: percent, of which a small one keeps its first figure."""
    value = 100 * (ratio - 1)
    if abs(value) < 0.005:
        return "0"
    return f"{value:+.0f}" if abs(value) >= 0.95 else f"{value:+.1g}"


def _memory(facts: Facts) -> str:
    """What fits, where that was asked: something did not, or the same workers were used in several ways."""
    if facts.out_of_memory:
        return f"Out of memory: {first_few(list(facts.out_of_memory), MOST_NAMES)}."
    if len(facts.held) < 2:
        return ""
    least, most = (end(facts.held, key=lambda name: facts.held[name]) for end in (min, max))
    least_bytes, most_bytes = megabytes(facts.held[least]), megabytes(facts.held[most])
    return f"All fit: {least_bytes} MB a worker ({least}) to {most_bytes} MB ({most})."


def _fastest(fastest: Sequence[Fastest]) -> str:
    each = []
    for one in fastest[:MOST_MODELS]:
        about = [one.name]
        if one.repeats < ranking.FEWEST_REPEATS:
            about.append(f"too few repeats ({one.repeats}) to call it the fastest")
        elif one.others:
            room = f"up to +{two_figure_percentage(one.room)} %" if one.room <= 1 else "twice as fast is not excluded"
            about.append(f"too close to call: {one.others} of {one.among - 1} others, {room}")
        if one.probably:
            about.append(f"probably slower: {one.probably}")
        each.append(f"{one.model} {one.value} ({'; '.join(filter(None, (*about, one.more)))})")
    if not each:
        return ""
    more = f"; {len(fastest) - MOST_MODELS} more models below" if len(fastest) > MOST_MODELS else ""
    return f"{'Fastest' if any(one.among > 1 for one in fastest) else 'Measured'}: {'; '.join(each)}{more}."


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
    return Facts(
        baseline=_baseline(results),
        ways=tuple(_against_baselines(compared, results, len(compared) if several else 1)),
        several=several,
        changes=tuple(changes(rows, results, MESH_KEYS + PIPELINE_KEYS if several else ())),
        fastest=tuple(_fastest_of(results)),
        reached=tuple(_soonest(results)),
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
    """`horovod, fp16, batch 64`: what varies in this study, and the batch where its model has several; of a training
    its `global_batch`, without the words that tell it from timed runs."""
    several = str(row["model"]) in _of_several(results, key)
    name = results.named.get(str(row["series"]), str(row["series"])).replace(_same_workers(results), "")
    name = without_kind(name) if key == "global_batch" else name
    return name + f", {key.replace('_', ' ')} {row[key]}" * several


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
    """`tests`: how many are compared at once, for which intervals are corrected."""
    lost = {str(one.row["configuration"]): one for one in attribution.attributions(results)}
    for row in rows:
        base = results.by_name[str(row["baseline"])]
        gain = over(row, base, 1 - FALSE_ALARMS / tests)
        yield Way(
            str(row["model"]),
            named(row, results),
            int(row["workers"]),
            int(base["workers"]),
            gain.mean,
            gain.low,
            gain.high,
            attribution.in_words(of) if (of := lost.get(str(row["configuration"]))) else "",
        )


def _most_lost(results: Results) -> str:
    """The configuration of more workers that loses most, and its causes; empty where none loses much."""
    if not (losers := attribution.losers(results)):
        return ""
    most = "most, " * (len(losers) > 1)
    return f"{_of_model(losers[0].row, results)} loses {most}{attribution.in_words(losers[0])}."


def changes(rows: Sequence[ConfigurationRow], results: Results, but: Sequence[str] = ()) -> Iterator[Change]:
    """Of every pair that differs in one key alone, but for these keys; a batch is held against the smallest."""
    keys = [key for key in results.series_keys if key not in (*MAIN_KEYS, *NO_AXIS, *but)]
    keys = ["allreduce", *(key for key in keys if not key.startswith("train_")), results.study.batch_key]
    sure = Uncertainty.of_rows([row for row in results.rows if row["n"]], over_baselines=False)
    fit = [row for row in rows if sure.knows(row)]
    pairs = [pair for key in keys for pair in _pairs(fit, key)]
    judged = _gains(results)
    judged |= _tested([(row, other) for row, other, _ in pairs if _ids(row, other) not in judged], sure)
    order = {model: at for at, model in enumerate(results.models)}
    for row, other, what in sorted(pairs, key=lambda pair: order[str(pair[0]["model"])]):
        yield Change(str(row["model"]), what, *judged[_ids(row, other)], named(row, results))


def _ids(row: ConfigurationRow, other: ConfigurationRow) -> tuple[str, str]:
    return str(row["configuration"]), str(other["configuration"])


def _gains(results: Results) -> dict[tuple[str, str], Judged]:
    """What the view of 16-bit gradients says of its pairs, where it claims an interval."""
    said = {
        allreduce_gain.FASTER: RESOLVED,
        allreduce_gain.SLOWER: RESOLVED,
        allreduce_gain.NOT_RESOLVED: NOT_RESOLVED,
        allreduce_gain.NO_DIFFERENCE: NO_DIFFERENCE,
    }
    return {
        (str(pair["configuration"]), str(pair["reference"])): (
            float(pair["gain"]),
            float(pair["gain_low"]),
            float(pair["gain_high"]),
            said[str(pair["verdict"])],
        )
        for pair in as_rows(allreduce_gain.gains(results))
        if pair["verdict"] in said
    }


def _tested(
    both: Sequence[tuple[ConfigurationRow, ConfigurationRow]], sure: Uncertainty
) -> dict[tuple[str, str], Judged]:
    """Of these pairs, corrected for as many (Holm)."""
    if not both:
        return {}
    shared = [configurations.p_value(row, other) for row, other in both]
    p_values = [p if own is None else own for p, own in zip(sure.p_values(both), shared, strict=True)]
    resolved, tests = steps(p_values, FALSE_ALARMS)
    found = {}
    for at, half in enumerate(sure.half_widths(both, 1 - FALSE_ALARMS / tests).tolist()):
        ratio, within = over(*both[at]).mean, configurations.launches_ratio(*both[at], 1 - FALSE_ALARMS / tests[at])
        low, high = ratio * math.exp(-half), ratio * math.exp(half)
        if within and within.low is not None and within.high is not None:
            low, high = within.low, within.high
        found[_ids(*both[at])] = (ratio, low, high, RESOLVED if resolved[at] else NOT_RESOLVED)
    return found


def _pairs(rows: Sequence[ConfigurationRow], key: str) -> Iterator[tuple[ConfigurationRow, ConfigurationRow, str]]:
    """(a row, the one that differs from it in `key` alone and has the first value, the change in words)."""
    batch = key in BATCH_KEYS
    alike = [name for name in KEYS if name != key and not (batch and name in BATCH_KEYS)]
    usual = "fp32" if key == "allreduce" else getattr(Trial, key, None)
    groups: dict[tuple[Any, ...], dict[Any, ConfigurationRow]] = {}
    for row in rows:
        if known(row[key]) and not (key == "allreduce" and row[key] == "none"):
            groups.setdefault(values_of(row, alike), {})[row[key]] = row
    for of_values in groups.values():
        first, *others = sorted(of_values, key=lambda value: (value != usual and not batch, value))
        if key == "allreduce" and first != usual:
            continue
        for value in others[-1:] if batch else others:
            yield of_values[value], of_values[first], _in_words(of_values[value], of_values[first], key)


def _in_words(row: ConfigurationRow, other: ConfigurationRow, key: str) -> str:
    if key in BATCH_KEYS:
        return f"Batch {row[key]} instead of {other[key]}"
    if key == "allreduce":
        text = carried(row[key])
        return f"{row[key]} gradients" if text.startswith("in ") else f"Gradients {text}"
    mine, its = (" ".join(words(side, [key])) for side in (row, other))
    return f"{mine} instead of {its}" if mine and its else mine or f"Without {its}"


def _fastest_of(results: Results) -> Iterator[Fastest]:
    """Of each model, among the configurations that do the work that most of them do."""
    every = as_rows(ranking.ranking(results, "samples_per_second"))
    for model in results.models:
        ours = [row for row in every if row["model"] == model]
        ours = [row for row in ours if row["work"] == ours[0]["work"]]
        if not ours:
            continue
        row = results.by_name[str(ours[0]["configuration"])]
        judged = [ranking.kind_of(other["verdict"], other["ratio"], other["ratio_high"]) for other in ours[1:]]
        close = [other["ratio_high"] - 1 for other, kind in zip(ours[1:], judged, strict=True) if kind == ranking.CLOSE]
        speed = f"{number(row['samples_per_second'])} {samples(results, model)}/s"
        peak = roofline.sentence(results, str(row["configuration"])).partition(",")[0].partition(":")[0]
        yield Fastest(
            model,
            speed + bracketed(row["interval_low"], row["interval_high"]),
            named(row, results),
            int(row["n"]),
            len(ours),
            len(close),
            max(close, default=0.0),
            judged.count(ranking.PROBABLY),
            peak,
        )


def samples(results: Results, model: str) -> str:
    """`images`, `sequences` or `samples`: the unit of a model's throughput."""
    kind = unit(results.frame_of(model))
    return "images" if kind == "samples" and model in MODELS and MODELS[model].data == "cifar10" else kind


def _soonest(results: Results) -> Iterator[Reached]:
    trained = trained_configurations(results)
    for (model, target), group in trained[trained.target != ""].groupby(["model", "target"], sort=False):
        best = as_rows(group[group.soonest == BEST])
        if not best:
            yield Reached(str(model), str(target), "")
            continue
        first, others = best[0], group[group.configuration != best[0]["configuration"]]
        seconds = with_interval(*(first[f"seconds_to_target{end}"] for end in ("", "_low", "_high")))
        name = named(first, results, "global_batch")
        yield Reached(str(model), str(target), name, seconds, int(first["reached"]), Counter(others.soonest))


def _ended(results: Results) -> Iterator[str]:
    """Where trainings have no target: whose result on the test set is best."""
    trained = trained_configurations(results)
    for model, group in trained[trained.target == ""].groupby("model", sort=False):
        best_first = sorted(SHOWN, key=lambda name: name in ("loss", "perplexity"))  # in the order of METRICS
        metric = next((name for name in best_first if group[f"test_{name}"].notna().any()), None)
        if metric is None:
            continue
        ordered = group.dropna(subset=f"test_{metric}").sort_values(f"test_{metric}", ascending=not METRICS[metric][0])
        best = as_rows(ordered)[0]
        mean, low, high = (best[f"test_{metric}{end}"] for end in ("", "_low", "_high"))
        value = with_interval(mean, low, high, "{:.3f}".format)
        among = f", the best of {len(ordered)}" if len(ordered) > 1 else ""
        yield (
            f"{model} ends at test {metric.replace('_', ' ')} {value} with {named(best, results, 'global_batch')}"
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
    """`Margin`; where the first sentence is of other intervals than these, `The answer is known to a factor of 1.9 (3
    seeds). Throughput: margin`."""
    said = facts(results)
    if said.reached or said.ended:
        return f"{extent.of_the_first_target(results)}Throughput: margin"
    if not (said.several and said.ways):
        return "Margin"
    model, _ = Counter(way.model for way in said.ways).most_common(1)[0]
    best, *_ = _of_same_workers([way for way in said.ways if way.model == model])
    return f"{extent.known_to(best.speedup, best.low, best.high, results.repeats)}Throughput: margin"
