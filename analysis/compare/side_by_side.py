"""Commands of a user's own side by side: how fast each is, how it compares with the first, and which part changed.

A       812 samples/s     39.4 ms a step of 32 samples in 2 processes
B     1,063 samples/s     30.1 ms a step of 32 samples in 2 processes
B is 1.31x [1.28, 1.34] as fast as A (95 %, 3 launches).
  backward 20.1 -> 12.3 ms, forward 12.1 -> 10.9 ms
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.frames import configurations, results
from analysis.frames.measured import PHASES
from analysis.frames.rows import ConfigurationRow
from analysis.text import number
from analysis.views import steps
from scaling_study.stats.intervals import Interval

SHOWN = 0.05  # of a step, by which a part must have changed to be named
MOST_PARTS = 3


@dataclass(frozen=True)
class Side:
    """One command. `parts`: phase -> its seconds of a step."""

    label: str
    row: ConfigurationRow
    step_seconds: float
    parts: Mapping[str, float]

    @property
    def step_samples(self) -> int:
        """Of all processes."""
        return int(self.row["global_batch"])


@dataclass(frozen=True)
class Pair:
    """A command over the first one, in samples a second."""

    side: Side
    first: Side
    ratio: Interval

    def is_resolved(self, margin: float) -> bool:
        """True where it is faster, slower, or as fast to `margin`."""
        low, high = self.ratio.low, self.ratio.high
        if low is None or high is None:
            return False
        return not low <= 1 <= high or (1 / (1 + margin) <= low and high <= 1 + margin)

    def sentence(self, margin: float) -> str:
        a, b, ratio = self.first.label, self.side.label, self.ratio
        if ratio.low is None or ratio.high is None:
            return f"{b} over {a}: {ratio.mean:.2f}x; {self.ratio.n} launches say nothing of how sure that is."
        said = f"{ratio.mean:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"
        if not ratio.low <= 1 <= ratio.high:
            found = f"{b} is {said} as fast as {a}"
        elif self.is_resolved(margin):
            found = f"{b} is as fast as {a} to {100 * margin:g} %: {said}"
        else:
            found = f"Not resolved whether {b} is faster than {a}: {said}"
        return f"{found} (95 %, {ratio.n} launches)."

    def caveats(self) -> Iterator[str]:
        """Reasons why the ratio is not one of like work."""
        if self.side.step_samples != self.first.step_samples:
            yield (
                f"unlike work: a step of {self.first.label} has {self.first.step_samples} samples, of "
                f"{self.side.label} {self.side.step_samples}; the ratio is one of samples a second"
            )

    def changes(self) -> list[str]:
        """Parts of a step that take longer or shorter, the most first."""
        whole = self.first.step_seconds
        both = [(name, self.first.parts[name], self.side.parts.get(name, 0.0)) for name in self.first.parts]
        changed = [each for each in both if abs(each[2] - each[1]) > SHOWN * whole]
        changed.sort(key=lambda each: -abs(each[2] - each[1]))
        return [f"{name} {1e3 * a:.1f} -> {1e3 * b:.1f} ms" for name, a, b in changed[:MOST_PARTS]]


@dataclass(frozen=True)
class SideBySide:
    """All commands of one comparison. `failed`: label -> why it has no throughput."""

    sides: Sequence[Side]
    pairs: Sequence[Pair]
    failed: Mapping[str, str]

    def lines(self, margin: float) -> Iterator[str]:
        """For a terminal."""
        for side in self.sides:
            rate = number(float(side.row["samples_per_second"]))
            step = f"{1e3 * side.step_seconds:.1f} ms a step of {side.step_samples} samples"
            processes = f"{side.row['workers']} process{'es' * (int(side.row['workers']) > 1)}"
            yield f"{side.label}  {rate:>9} samples/s   {step} in {processes}"
        for label, why in self.failed.items():
            yield f"{label}  {why}"
        for pair in self.pairs:
            yield pair.sentence(margin)
            yield from (f"  {caveat}" for caveat in pair.caveats())
            if changes := pair.changes():
                yield f"  {', '.join(changes)}"

    def to_dict(self, margin: float) -> dict[str, Any]:
        return {
            "commands": [
                {
                    "label": side.label,
                    "command": side.row["command"],
                    "samples_per_second": float(side.row["samples_per_second"]),
                    "step_seconds": side.step_seconds,
                    "parts": dict(side.parts),
                    "processes": int(side.row["workers"]),
                    "step_samples": side.step_samples,
                }
                for side in self.sides
            ],
            "ratios": [
                {
                    "of": pair.side.label,
                    "over": pair.first.label,
                    "ratio": pair.ratio.mean,
                    "low": pair.ratio.low,
                    "high": pair.ratio.high,
                    "launches": pair.ratio.n,
                    "resolved": pair.is_resolved(margin),
                }
                for pair in self.pairs
            ],
            "failed": dict(self.failed),
        }


def read(folder: Path, labels: Mapping[str, str]) -> SideBySide:
    """A comparison from its results folder; `labels`: value of the key `arguments` -> how the command is called."""
    read = results.read(folder)
    known = steps.steps(read)
    rows = {labels[str(row["arguments"])]: row for row in read.rows if row["arguments"] in labels}
    failed = {label: f"{row['failures']}: {row['reason']}" for label, row in rows.items() if not row["n"]}
    sides = [side_of(label, rows[label], known) for label in labels.values() if label in rows and label not in failed]
    pairs = [Pair(side, sides[0], configurations.over(side.row, sides[0].row)) for side in sides[1:]]
    return SideBySide(sides, pairs, failed)


def side_of(label: str, row: ConfigurationRow, known: Mapping[str, steps.Steps]) -> Side:
    seconds = float(row["global_batch"]) / float(row["samples_per_second"])
    parts: dict[str, float] = {}
    if seen := known.get(str(row["configuration"])):
        parts = {name: float(share) * seconds for name, share in zip(PHASES, seen.mean().shares, strict=True)}
    return Side(label, row, seconds, parts)
