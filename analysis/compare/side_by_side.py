"""Commands of a user's own side by side: how fast each is, how it compares with the first, and which part changed.

A       812 samples/s     39.4 ms a step of 32 samples in 2 processes
B     1,063 samples/s     30.1 ms a step of 32 samples in 2 processes
B is 1.31x [1.28, 1.34] as fast as A (95 %, 4 launches).
  backward 20.1 -> 12.3 ms, forward 12.1 -> 10.9 ms
The observer took 0.2 % of a step of A, 0.3 % of B.

Where the samples of a step are not known, rates and ratios are of steps. Whole runs are compared by their seconds.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis.compare import like_work
from analysis.compare.like_work import NOT_SEEN, FirstSteps, Work
from analysis.frames import configurations, results
from analysis.frames.details import Details
from analysis.frames.measured import PHASES
from analysis.frames.rows import ConfigurationRow
from analysis.text import number
from analysis.views import steps
from scaling_study.records import outcome, store
from scaling_study.records.schema import Record
from scaling_study.stats.intervals import Interval, between_repeats

SHOWN = 0.05  # of a step, by which a part must have changed to be named
MOST_PARTS = 3
NARROW = 0.05  # of an interval, below which it is written with one more digit
SLACK = 1e-9
WHOLE_LOG_BYTES = 16 * 2**20  # of which a metric is read


def is_resolved(ratio: Interval, margin: float) -> bool:
    """True where a ratio is above or below 1 for sure, or known to +-`margin` (0.02: 2 %)."""
    if ratio.low is None or ratio.high is None:
        return False
    return not ratio.low <= 1 <= ratio.high or math.sqrt(ratio.high / ratio.low) <= (1 + margin) * (1 + SLACK)


def sentence(b: str, a: str, ratio: Interval, margin: float, is_unlike: bool = False) -> str:
    """A ratio of speeds, b over a, in the words of people. `is_unlike`: at unlike work."""
    low, high = ratio.low, ratio.high
    if low is None or high is None:
        return f"{b} over {a}: {ratio.mean:.2f}x; {ratio.n} launches say nothing of how sure that is."
    said = figures(ratio.mean, low, high)
    if not low <= 1 <= high:
        found = f"{b} is {said} as fast as {a}"
    elif 1 / (1 + margin) <= low and high <= 1 + margin:
        found = f"{b} is as fast as {a} to {100 * margin:g} %: {said}"
    elif is_resolved(ratio, margin):
        found = f"{b} and {a} are too close to call, at a margin of at most ±{100 * margin:g} %: {said}"
    else:
        found = f"Not resolved whether {b} is faster than {a}: {said}"
    return f"{found}{', at unlike work' * is_unlike} (95 %, {ratio.n} launches)."


def stopped(b: str, a: str, ratio: Interval, margin: float, planned: int, is_unlike: bool = False) -> str:
    """The ratio where a comparison was stopped. Fewer launches than `planned` resolve nothing: a ratio that is looked
    at early often seems sure by chance."""
    work, after = ", at unlike work" * is_unlike, f"So far, after {ratio.n} launch{'es' * (ratio.n != 1)}"
    if ratio.low is None or ratio.high is None:
        return f"{after}: {b} over {a}: {ratio.mean:.2f}x{work}; not resolved."
    said = f"{after}: {b} is {figures(ratio.mean, ratio.low, ratio.high)} as fast as {a}{work} (95 %)"
    return f"{said}{'' if ratio.n >= planned and is_resolved(ratio, margin) else '; not resolved'}."


def figures(mean: float, low: float, high: float) -> str:
    """`1.31x [1.28, 1.34]`."""
    digits = 2 if high - low > NARROW else 3
    return f"{mean:.{digits}f}x [{low:.{digits}f}, {high:.{digits}f}]"


def verdict(b: str, a: str, ratio: Interval, margin: float, is_unlike: bool = False) -> dict[str, Any]:
    """The same for --json."""
    known = {"of": b, "over": a, "ratio": ratio.mean, "low": ratio.low, "high": ratio.high, "launches": ratio.n}
    return {**known, "resolved": is_resolved(ratio, margin), "sentence": sentence(b, a, ratio, margin, is_unlike)}


@dataclass(frozen=True)
class Side:
    """One command. `parts`: phase -> its seconds of a step, named as in explain. `observing`: share of its steps that
    the observer took."""

    label: str
    row: ConfigurationRow
    step_seconds: float
    parts: Mapping[str, float]
    observing: float | None = None
    first_steps: FirstSteps = NOT_SEEN

    @property
    def step_samples(self) -> int:
        """Of all processes."""
        return int(self.row["global_batch"])

    @property
    def work(self) -> Work:
        """As like_work compares it."""
        return Work(self.label, int(self.row["workers"]), self.step_samples, self.first_steps)


@dataclass(frozen=True)
class Pair:
    """A command over the first one, in samples a second, or in steps where samples are not known."""

    side: Side
    first: Side
    ratio: Interval
    in_steps: bool = False

    def is_resolved(self, margin: float) -> bool:
        return is_resolved(self.ratio, margin)

    def sentence(self, margin: float) -> str:
        return sentence(self.side.label, self.first.label, self.ratio, margin, self.is_unlike)

    def so_far(self, margin: float, planned: int) -> str:
        return stopped(self.side.label, self.first.label, self.ratio, margin, planned, self.is_unlike)

    @property
    def is_unlike(self) -> bool:
        return like_work.unlike(*self._works())

    def _works(self) -> tuple[Work, Work]:
        first, second = self.first.work, self.side.work
        if self.in_steps:
            first, second = (replace(work, step_samples=None) for work in (first, second))
        return first, second

    def caveats(self) -> Iterator[str]:
        """What is to be known of the work behind the ratio."""
        if self.in_steps:
            yield "the ratio is one of steps a second"
        yield from like_work.caveats(*self._works())

    def changes(self) -> list[str]:
        """Parts of a step that take longer or shorter, the most first; none where one of the two shows none (JAX)."""
        whole, theirs = self.first.step_seconds, self.side.parts
        both = [(name, self.first.parts[name], theirs.get(name, 0.0)) for name in self.first.parts if theirs]
        changed = [each for each in both if abs(each[2] - each[1]) > SHOWN * whole]
        changed.sort(key=lambda each: -abs(each[2] - each[1]))
        return [f"{name} {1e3 * a:.1f} -> {1e3 * b:.1f} ms" for name, a, b in changed[:MOST_PARTS]]


@dataclass(frozen=True)
class SideBySide:
    """All commands of one comparison. `failed`: label -> why it has no throughput; `unknown`: why its samples are not
    known."""

    sides: Sequence[Side]
    pairs: Sequence[Pair]
    failed: Mapping[str, str]
    unknown: Mapping[str, str] = field(default_factory=dict)

    def rate(self, side: Side) -> tuple[float, str]:
        return (1 / side.step_seconds, "steps") if self.unknown else (side.row["samples_per_second"], "samples")

    def notes(self) -> Iterator[str]:
        for label, why in self.unknown.items():
            yield f"The samples of a step of {label} are not known ({why}): --samples-per-step {label}=N says them."
        shares = [f"{100 * each.observing:.2g} % of a step of {each.label}" for each in self.sides if each.observing]
        if shares:
            yield f"The observer took {', '.join(shares)}."
        if any(not configurations.launches_names(each.row) for each in self.sides):
            yield "Not interleaved: measured in separate launches that alternate."

    def lines(self, margin: float) -> Iterator[str]:
        """For a terminal."""
        for side in self.sides:
            rate, unit = self.rate(side)
            samples = "" if self.unknown else f" of {side.step_samples} samples"
            processes = f"{side.row['workers']} process{'es' * (int(side.row['workers']) > 1)}"
            step = f"{1e3 * side.step_seconds:.1f} ms a step{samples} in {processes}"
            yield f"{side.label}  {number(float(rate)):>9} {unit}/s   {step}"
        for label, why in self.failed.items():
            yield f"{label}  {why}"
        said: set[str] = set()  # each once, as doubts about a command are those of each of its pairs
        for pair in self.pairs:
            yield pair.sentence(margin)
            fresh = [caveat for caveat in pair.caveats() if caveat not in said]
            said.update(fresh)
            yield from (f"  {caveat}" for caveat in fresh)
            if changes := pair.changes():
                yield f"  {', '.join(changes)}"
        yield from self.notes()

    def to_dict(self, margin: float) -> dict[str, Any]:
        return {
            "unit": "steps" if self.unknown else "samples",
            "commands": [
                {
                    "label": side.label,
                    "command": side.row["command"],
                    "samples_per_second": None if self.unknown else float(side.row["samples_per_second"]),
                    "step_seconds": side.step_seconds,
                    "parts": dict(side.parts),
                    "processes": int(side.row["workers"]),
                    "step_samples": None if self.unknown else side.step_samples,
                    "observer_share": side.observing,
                }
                for side in self.sides
            ],
            "ratios": [
                {
                    **verdict(pair.side.label, pair.first.label, pair.ratio, margin, pair.is_unlike),
                    "caveats": list(pair.caveats()),
                    "changes": pair.changes(),
                }
                for pair in self.pairs
            ],
            "failed": dict(self.failed),
            "said": list(self.notes()),
        }


def read(folder: Path, labels: Mapping[tuple[str, int, int], str], unknown: Mapping[str, str]) -> SideBySide:
    """A comparison from its results folder.

    `labels`: values of the keys arguments, workers and batch_per_worker -> how the command is called; `unknown`: why
    its samples are not known, by label.
    """
    observing: dict[str, list[tuple[float, float]]] = {}

    def collect(record: Record) -> None:
        for rank in record.ranks:
            own, whole = (rank.backend.get(name) for name in ("observer_seconds", "observed_seconds"))
            if own is not None and whole:
                observing.setdefault(record.configuration, []).append((float(own), float(whole)))

    read = results.read(folder, collect)
    known, rows = steps.steps(read), dict[str, ConfigurationRow]()
    for row in sorted(read.rows, key=lambda row: int(row["n"])):  # the one with most repeats, of two ways to measure
        key = (str(row["arguments"]), int(row["workers"]), int(row["batch_per_worker"]))
        if key in labels:
            rows[labels[key]] = row
    failed = {label: f"{row['failures']}: {row['reason']}" for label, row in rows.items() if not row["n"]}
    sides = [
        side_of(label, rows[label], known, observing, read.details)
        for label in dict.fromkeys(labels.values())
        if label in rows and label not in failed
    ]
    pairs = [pair_of(side, sides[0], bool(unknown)) for side in sides[1:]]
    return SideBySide(sides, pairs, failed, unknown)


def side_of(
    label: str,
    row: ConfigurationRow,
    known: Mapping[str, steps.MeasuredSteps],
    observing: Mapping[str, Sequence[tuple[float, float]]],
    details: Details,
) -> Side:
    seconds, name = float(row["global_batch"]) / float(row["samples_per_second"]), str(row["configuration"])
    parts: dict[str, float] = {}
    if seen := known.get(name):
        shares = zip(PHASES, seen.mean().shares, strict=True)
        parts = {name.replace("unattributed", "rest"): float(share) * seconds for name, share in shares}
    own, whole = (sum(part) for part in zip(*observing.get(name, [(0.0, 0.0)]), strict=True))
    share = own / whole if whole else None
    return Side(label, row, seconds, parts, share, like_work.first_steps(details, name))


def pair_of(side: Side, first: Side, in_steps: bool) -> Pair:
    by = first.step_samples / side.step_samples if in_steps else 1.0
    return Pair(side, first, configurations.over(side.row, first.row).mapped(lambda ratio: ratio * by), in_steps)


# Whole runs: `scaling-study bench --whole`.


@dataclass(frozen=True)
class Whole:
    """Runs of each command to its own end, from launch 1 on. `metric`: its best value, by label and launch."""

    runs: Mapping[str, Sequence[Mapping[str, Any]]]
    metric: Mapping[str, Sequence[float | None]]

    def ratio(self, label: str) -> Interval:
        """Speed of a command over that of the first: seconds of the first over its own, within each launch that both
        have ended. There must be one."""
        first = next(iter(self.runs.values()))
        both = zip(first, self.runs[label], strict=False)
        return between_repeats([math.log(a["seconds"] / b["seconds"]) for a, b in both]).mapped(math.exp)

    def is_resolved(self, margin: float) -> bool:
        return all(is_resolved(self.ratio(label), margin) for label in list(self.runs)[1:])

    def means(self, label: str) -> dict[str, float | None]:
        """Over launches: seconds, seconds of training, worker-seconds, metric; None where one is not known."""
        runs = self.runs[label]
        columns: dict[str, Sequence[float | None]] = {
            "seconds": [run["seconds"] for run in runs],
            "training_seconds": [run["training_seconds"] for run in runs],
            "worker_seconds": [run["seconds"] * run["processes"] if run["processes"] else None for run in runs],
            "metric": self.metric.get(label, [None]),
        }
        return {
            name: None if None in values else fmean(value for value in values if value is not None)
            for name, values in columns.items()
        }

    def totals(self) -> Iterator[str]:
        """A line for each command that has ended once or more."""
        for label in (label for label, runs in self.runs.items() if runs):
            mean = self.means(label)
            words = [f"{label}  {number(mean['seconds'] or 0.0)} s in all"]
            words += [f"{number(mean['training_seconds'])} s of training"] if mean["training_seconds"] else []
            words += [f"{number(mean['worker_seconds'])} s of all its processes"] if mean["worker_seconds"] else []
            words += [f"best metric {mean['metric']:.5g}"] if mean["metric"] is not None else []
            yield ", ".join(words)

    def lines(self, margin: float) -> Iterator[str]:
        yield from self.totals()
        yield from (sentence(label, next(iter(self.runs)), self.ratio(label), margin) for label in list(self.runs)[1:])
        if missing := [label for label, values in self.metric.items() if None in values]:
            yield f"The pattern of --metric matched nothing that {' and '.join(missing)} printed."

    def so_far(self, margin: float, planned: int) -> list[str]:
        """The ratios where the comparison was stopped; none where no launch of two commands has ended."""
        first, *others = self.runs
        ended = [label for label in others if self.runs[first] and self.runs[label]]
        return [stopped(label, first, self.ratio(label), margin, planned) for label in ended]

    def to_dict(self, margin: float) -> dict[str, Any]:
        first, *others = self.runs
        return {
            "unit": "whole runs",
            "commands": [
                {"label": label, "command": runs[0]["command"], **self.means(label), "runs": list(runs)}
                for label, runs in self.runs.items()
            ],
            "ratios": [verdict(label, first, self.ratio(label), margin) for label in others],
        }


def read_whole(folder: Path, commands: Mapping[str, str], metric: str = "", lowest: bool = False) -> Whole:
    """Whole runs of these commands, by label, from their results folder: from launch 1 to the last that has ended.

    `metric`: a pattern with one group, of which the best value is kept.
    """
    runs: dict[str, list[Mapping[str, Any]]] = {label: [] for label in commands}
    best: dict[str, list[float | None]] = {label: [] for label in commands if metric}
    for label, command in commands.items():
        for own in (folder / "whole" / f"{launch}-{label}" for launch in itertools.count(1)):
            try:
                run = store.load(own / "whole.json")
            except store.UnreadableRecord:
                break
            if run["command"] != command:  # another one was called so before
                break
            runs[label].append(run)
            if metric:
                found = map(as_number, re.findall(metric, outcome.tail(own / "log.txt", WHOLE_LOG_BYTES)))
                known = [value for value in found if value is not None]
                best[label].append((min if lowest else max)(known) if known else None)
    return Whole(runs, best)


def as_number(text: str) -> float | None:
    """The number that a command printed; None of what is none, NaN and infinity included."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
