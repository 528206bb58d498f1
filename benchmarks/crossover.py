"""The crossover map: over which link and from which target batch on decentralised training is the faster one.

    python -m benchmarks.crossover home=results/decentralized        # a link's name, and what was measured over it

    rounds per second and samples a round, of each way, link and target batch      timed trials, one a repeat
    rounds to the loss at each target batch                                        trainings, one a seed
    seconds to the loss = rounds to the loss at the samples that a round had / rounds per second

In one cell, which is one link and one target batch, all are asked for the same batch, and not all keep to it: a round
of Hivemind ends with the batches that its peers are in, and may have twice its target. It then needs fewer of them. How
many is read off the measured curve, between two target batches on the straight line of their logarithms. Where nothing
was trained to the loss, ways are compared by samples per second, as if every sample brought the same.

Intervals are 95 % ones of products of independent means: each mean has the relative variance of its repeats or seeds,
those add up (delta method), and their degrees of freedom are Welch's. Pairs are not corrected for how many there are.

A trial of Hivemind is only ok where every round was averaged over all peers, so no cell counts a round of one peer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from scaling_study.records import store
from scaling_study.records.schema import Record
from scaling_study.stats.intervals import Interval, between_repeats, quotient
from scaling_study.trial import Trial

WINS, TIES, LOSES, OPEN = "wins", "ties", "loses", "not resolved"  # of decentralised training, in one cell
NEAR = 1.1  # times, by which a round may be beyond the trained target batches and be taken for one of them
TITLES = {"hivemind": "Hivemind", "torch_ddp": "DDP", "horovod": "Horovod"}
DECENTRALISED = ("hivemind",)


class Way(NamedTuple):
    """One way to train on two hosts: `Hivemind fp16+fp16/10` averages gradients, and weights every tenth round."""

    framework: str
    allreduce: str
    weights: str = ""  # their precision on the wire, where it is given
    every: int = 1  # rounds from one averaging of weights to the next

    @property
    def decentralised(self) -> bool:
        return self.framework in DECENTRALISED

    def __str__(self) -> str:
        return f"{self.title} {self.wire}"

    @property
    def title(self) -> str:
        return TITLES.get(self.framework, self.framework)

    @property
    def wire(self) -> str:
        weights = f"+{self.weights or 'fp32'}" if self.weights or self.every > 1 else ""
        return self.allreduce + weights + (f"/{self.every}" if self.every > 1 else "")

    @classmethod
    def of(cls, trial: Trial) -> Way:
        weights, every = trial.state_allreduce or "", trial.average_state_every or 1
        return cls(trial.framework, trial.allreduce, weights, every)


Place = tuple[str, int, Way]  # link, target batch, way


@dataclass
class Measured:
    """All that the map is drawn from."""

    rates: dict[str, dict[int, dict[Way, list[float]]]] = field(default_factory=dict)  # link, target: rounds/s, repeats
    rounds: dict[int, list[float]] = field(default_factory=dict)  # target -> rounds to the loss of each seed
    missed: dict[int, int] = field(default_factory=dict)  # target -> seeds that never reached it
    loss: str = ""  # as the studies have it: `loss=1.2`
    # As rates, samples of both machines in a round; what is not there kept to its target.
    samples: dict[str, dict[int, dict[Way, list[float]]]] = field(default_factory=dict)
    packed: dict[Way, list[tuple[float, float]]] = field(default_factory=dict)  # bytes a round of a peer, and in theory

    def add(self, link: str, records: Iterable[Record]) -> None:
        """What a study over a link found; trainings of it count whatever the link."""
        for record in records:
            trial = record.trial
            if record.status != "ok" or trial.find:
                continue
            target = trial.global_batch
            if training := record.ranks[0].training:
                self.loss = training.target
                if training.reached:
                    self.rounds.setdefault(target, []).append(float(training.reached["steps"] or 0))
                else:
                    self.missed[target] = self.missed.get(target, 0) + 1
            elif trial.framework in TITLES:
                way = Way.of(trial)
                self.rates.setdefault(link, {}).setdefault(target, {}).setdefault(way, []).append(
                    rounds_per_second(record)
                )
                if way.decentralised:
                    self.packed.setdefault(way, []).extend(packed_bytes(record))
                    self.samples.setdefault(link, {}).setdefault(target, {}).setdefault(way, []).append(
                        samples_of_a_round(record)
                    )

    def replace(self, link: str, target: int, records: Iterable[Record]) -> None:
        """As add, in place of all that was known of this cell: ways are compared within one sitting."""
        for known in (self.rates, self.samples):
            known.get(link, {}).pop(target, None)
        self.add(link, records)

    def samples_of(self, link: str, target: int, way: Way) -> float:
        """Samples of both machines in a round, mean of the repeats."""
        return fmean(self.samples.get(link, {}).get(target, {}).get(way, [target]))

    def rounds_to_loss(self, samples: float) -> dict[int, float] | None:
        """Rounds to the loss at so many samples a round, as powers of those at trained target batches: their product.

        None outside of these, where nothing is known, and beside one where some seed did not reach it.
        """
        trained = sorted({*self.rounds, *self.missed})
        if not trained or not trained[0] / NEAR <= samples <= trained[-1] * NEAR:
            return None
        low = max((target for target in trained if target <= samples), default=trained[0])
        high = min((target for target in trained if target >= samples), default=trained[-1])
        if self.missed.get(low) or self.missed.get(high):
            return None
        if low == high:
            return {low: 1.0}
        share = math.log(samples / low) / math.log(high / low)
        return {low: 1 - share, high: share}

    def paces(self, place: Place, by_loss: bool) -> list[float]:
        """Of each repeat: rounds per second, each weighted by how much of a mean round its samples are worth; without
        `by_loss` samples per second, as if every sample brought the same."""
        link, target, way = place
        rates = self.rates[link][target][way]
        samples = self.samples.get(link, {}).get(target, {}).get(way, [float(target)] * len(rates))
        if not by_loss:
            return [rate * count for rate, count in zip(rates, samples, strict=True)]
        mean, powers = self.samples_of(*place), self.rounds_to_loss(self.samples_of(*place)) or {}
        low, high = min(powers, default=target), max(powers, default=target)
        slope = math.log(fmean(self.rounds[low]) / fmean(self.rounds[high])) / math.log(high / low) if low < high else 0
        return [rate * (count / mean) ** slope for rate, count in zip(rates, samples, strict=True)]


@dataclass(frozen=True)
class Timed:
    """A way to train in one cell. `behind`: how many times as long as the fastest there takes; 1 of itself."""

    way: Way
    samples: float  # of both machines in a round
    rounds_per_second: Interval
    seconds: Interval | None  # to the loss; None: some seed never reached it, or nothing was trained
    behind: Interval


@dataclass(frozen=True)
class Cell:
    """One link and one target batch; `timed`: the fastest first."""

    link: str
    target: int
    timed: tuple[Timed, ...]
    missed: bool = False  # some seed did not reach the loss

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


def samples_of_a_round(record: Record) -> float:
    """Of all ranks, mean of its timed rounds."""
    return sum(rank.samples_seen / len(rank.step_seconds) for rank in record.ranks)


def packed_bytes(record: Record) -> list[tuple[float, float]]:
    """Of each rank that counted them: mean bytes that it packed for others in a timed round, and 2(n-1)/n times those
    that it handed over to be averaged."""
    share = 2 * (record.trial.workers - 1) / record.trial.workers
    counted = []
    for rank in record.ranks:
        sent = [each.sent_bytes for each in rank.rounds if each.sent_bytes is not None]
        if sent:
            counted.append((fmean(sent), share * sum(rank.communication_bytes.values())))
    return counted


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
    places = [(link, target, way) for way in ways]
    by_loss = all(measured.rounds_to_loss(measured.samples_of(*place)) for place in places)  # one rule for all
    places.sort(key=lambda place: longer(measured, place, (link, target, next(iter(ways))), by_loss).mean)
    itself = Interval(1.0, 1.0, 1.0, len(ways[places[0][2]]))
    timed = (
        Timed(
            place[2], measured.samples_of(*place), between_repeats(ways[place[2]]),
            seconds_to_loss(measured, place) if by_loss else None,
            itself if place == places[0] else longer(measured, place, places[0], by_loss),
        )
        for place in places
    )  # fmt: skip
    return Cell(link, target, tuple(timed), missed=bool(measured.missed.get(target)))


def seconds_to_loss(measured: Measured, place: Place) -> Interval:
    powers = measured.rounds_to_loss(measured.samples_of(*place)) or {}
    steps = [measured.rounds[trained] for trained in powers]
    return quotient(steps, [measured.paces(place, by_loss=True)], powers=[*powers.values(), -1.0])


def longer(measured: Measured, place: Place, other: Place, by_loss: bool) -> Interval:
    """How many times as long to the loss as another way or target batch takes; not `by_loss`: as long for a sample."""
    own_paces, other_paces = (measured.paces(each, by_loss) for each in (place, other))
    if not by_loss:
        return quotient([other_paces], [own_paces])
    own, others = (measured.rounds_to_loss(measured.samples_of(*each)) or {} for each in (place, other))
    powers = {trained: own.get(trained, 0.0) - others.get(trained, 0.0) for trained in {**own, **others}}
    powers = {trained: power for trained, power in powers.items() if power}  # what both have cancels
    steps = [measured.rounds[trained] for trained in powers]
    return quotient([*steps, other_paces], [own_paces], powers=[*powers.values(), 1.0, -1.0])


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
        behind = longer(measured, (link, other_cell.target, other.way), (link, cell.target, first.way), by_loss=True)
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
