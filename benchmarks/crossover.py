"""The crossover map: over which link and from which target batch on decentralised training is the faster one.

    python -m benchmarks.crossover home=results/decentralized        # a link's name, and what was measured over it

    rounds per second of each way to train, over each link, at each target batch      timed trials, one a repeat
    rounds to the loss at each target batch                                           trainings, one a seed
    seconds to the loss = rounds to the loss / rounds per second

In one cell, which is one link and one target batch, all ways take the same rounds to the loss: who is faster there is a
ratio of rounds per second alone. Cells of unlike target batches are compared by their seconds, and there both count.
Intervals are 95 % ones of ratios of independent means: each mean has the relative variance of its repeats or seeds,
those add up (delta method), and their degrees of freedom are Welch's. Pairs are not corrected for how many there are.

A trial of Hivemind is only ok where every round was averaged over all peers, so no cell counts a round of one peer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from scaling_study.records import store
from scaling_study.records.store import Record
from scaling_study.stats.intervals import Interval, between_repeats, quotient
from scaling_study.targets import trains

WINS, TIES, LOSES, OPEN = "wins", "ties", "loses", "not resolved"  # of decentralised training, in one cell
TITLES = {"hivemind": "Hivemind", "torch_ddp": "DDP", "horovod": "Horovod"}
DECENTRALISED = ("hivemind",)


class Way(NamedTuple):
    """One way to train on two hosts."""

    framework: str
    allreduce: str

    @property
    def decentralised(self) -> bool:
        return self.framework in DECENTRALISED

    def __str__(self) -> str:
        return f"{TITLES.get(self.framework, self.framework)} {self.allreduce}"


@dataclass
class Measured:
    """All that the map is drawn from."""

    rates: dict[str, dict[int, dict[Way, list[float]]]] = field(default_factory=dict)  # link, target: rounds/s, repeats
    rounds: dict[int, list[float]] = field(default_factory=dict)  # target -> rounds to the loss of each seed
    missed: dict[int, int] = field(default_factory=dict)  # target -> seeds that never reached it
    loss: str = ""  # as the studies have it: `loss=1.2`

    def add(self, link: str, records: Iterable[Record]) -> None:
        """What a study over a link found; trainings of it count whatever the link."""
        for record in records:
            keys = record.trial
            if record.status != "ok" or keys.get("find"):
                continue
            target = int(keys["global_batch"])
            if trains(keys):
                training = record.ranks[0].training
                self.loss = str(training["target"])
                if training["reached"]:
                    self.rounds.setdefault(target, []).append(float(training["reached"]["steps"]))
                else:
                    self.missed[target] = self.missed.get(target, 0) + 1
            elif keys["framework"] in TITLES:
                way = Way(keys["framework"], keys["allreduce"])
                ways = self.rates.setdefault(link, {}).setdefault(target, {})
                ways.setdefault(way, []).append(rounds_per_second(record))


@dataclass(frozen=True)
class Timed:
    """A way to train in one cell. `behind`: how many times as long as the fastest there takes; 1 of itself."""

    way: Way
    rounds_per_second: Interval
    seconds: Interval | None  # to the loss; None: some seed never reached it, or nothing was trained
    behind: Interval


@dataclass(frozen=True)
class Cell:
    """One link and one target batch; `timed`: the fastest first."""

    link: str
    target: int
    timed: tuple[Timed, ...]

    @property
    def fastest(self) -> Timed:
        return self.timed[0]

    @property
    def tied(self) -> tuple[Timed, ...]:
        """The fastest, and all that are not told from it."""
        return (self.fastest, *(other for other in self.timed[1:] if not above_one(other.behind)))

    @property
    def winner(self) -> Way | None:
        return self.fastest.way if len(self.tied) == 1 else None

    @property
    def decentralised(self) -> str:
        """Whether decentralised training wins here."""
        if any(other.behind.low is None for other in self.timed[1:]):
            return OPEN
        peers = [one.way.decentralised for one in self.tied]
        return WINS if all(peers) else TIES if any(peers) else LOSES

    def best(self, decentralised: bool) -> Timed | None:
        """The faster of the decentralised ways, or of the others."""
        return next((one for one in self.timed if one.way.decentralised == decentralised), None)


def rounds_per_second(record: Record) -> float:
    """Of the slowest rank. A round is a step."""
    return min(len(rank.step_seconds) / rank.window_seconds for rank in record.ranks)


def above_one(ratio: Interval) -> bool:
    """Whether all of its interval is: without one, nothing is claimed."""
    return ratio.low is not None and ratio.low > 1


def cells(measured: Measured) -> list[Cell]:
    """Links in the order in which they were added, target batches from the smallest on."""
    return [
        _cell(measured, link, target, ways)
        for link, targets in measured.rates.items()
        for target, ways in sorted(targets.items())
    ]


def _cell(measured: Measured, link: str, target: int, ways: Mapping[Way, list[float]]) -> Cell:
    ordered = sorted(ways, key=lambda way: -sum(ways[way]) / len(ways[way]))
    best, steps = ways[ordered[0]], rounds_to_loss(measured, target)
    itself = Interval(1.0, 1.0, 1.0, len(best), float(len(best)))
    timed = (
        Timed(
            way, between_repeats(rates), quotient([steps], [rates]) if steps else None,
            itself if rates is best else quotient([best], [rates]),
        )
        for way, rates in ((way, ways[way]) for way in ordered)
    )  # fmt: skip
    return Cell(link, target, tuple(timed))


def rounds_to_loss(measured: Measured, target: int) -> list[float]:
    """Of each seed; empty where one of them never reached it: a mean of the others would be too small."""
    return [] if measured.missed.get(target) else measured.rounds.get(target, [])


@dataclass(frozen=True)
class Choice:
    """The soonest cell of a link, and how much longer the soonest of the other kind takes there."""

    cell: Cell
    timed: Timed
    other_cell: Cell | None
    other: Timed | None
    behind: Interval | None


def choices(measured: Measured, found: Sequence[Cell]) -> list[Choice]:
    """Of each link where seconds to the loss are known."""
    chosen = []
    for link in dict.fromkeys(cell.link for cell in found):
        timed = [(cell, one) for cell in found if cell.link == link for one in cell.timed if one.seconds]
        timed.sort(key=lambda pair: _mean_seconds(pair[1]))
        if not timed:
            continue
        cell, first = timed[0]
        others = [pair for pair in timed if pair[1].way.decentralised != first.way.decentralised]
        if not others:
            chosen.append(Choice(cell, first, None, None, None))
            continue
        other_cell, other = others[0]
        rates = measured.rates[link]
        steps = ([], []) if other_cell.target == cell.target else (
            [rounds_to_loss(measured, other_cell.target)], [rounds_to_loss(measured, cell.target)]
        )  # fmt: skip
        behind = quotient([*steps[0], rates[cell.target][first.way]], [*steps[1], rates[other_cell.target][other.way]])
        chosen.append(Choice(cell, first, other_cell, other, behind))
    return chosen


def _mean_seconds(timed: Timed) -> float:
    return timed.seconds.mean if timed.seconds else math.inf


def read(links: Mapping[str, Path]) -> Measured:
    """From results folders, one a link."""
    measured = Measured()
    for link, folder in links.items():
        measured.add(link, store.read_study(folder))
    return measured


def main(words: Sequence[str]) -> int:
    """Print the table and the advice of LINK=RESULTS ..."""
    from benchmarks import crossover_text

    links = {name: Path(folder) for name, _, folder in (word.partition("=") for word in words)}
    if not links or not all(folder.is_dir() for folder in links.values()):
        print("python -m benchmarks.crossover LINK=RESULTS ...   (folders of results of studies/decentralized.yaml)")
        return 2
    print(crossover_text.page(read(links)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
