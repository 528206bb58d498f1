"""What would help most: how much faster a configuration could be at most, if one part of its step were less.

    gain <= 1 / (1 - saved share of the step) - 1        Amdahl, AFIPS 30, 1967

Upper bounds, each by itself: nothing else gets worse for it, latency shrinks with the bytes, and what was hidden behind
the part does not come to light. Real gains are smaller. Shares are those of bottleneck.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from analysis.frames.baseline import known
from analysis.frames.cache import once
from analysis.frames.configurations import over
from analysis.frames.results import Results
from analysis.frames.rounds import of_peers
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.rows import as_rows
from analysis.statistics import allreduce_gain as gain
from analysis.text.number_formats import percent
from analysis.why import attribution, bottleneck
from analysis.why.attribution import Attribution
from analysis.why.bottleneck import (
    AVERAGE,
    BUBBLE,
    COMMUNICATE,
    COMPUTE,
    FIND,
    INPUT,
    LAUNCH,
    MEMORY,
    OF_PEERS,
    OTHER,
    Bottleneck,
)
from analysis.why.frontier import Family, families

LEAST = 0.005  # of a gain: what is less is not worth a line
MOST_GAIN = 10.0  # beyond it the bound says nothing: almost all of the step is that part


@dataclass(frozen=True)
class Remedy:
    """`saved`: share of the step; `gain`: of throughput, at most (0.04: 4 %). `but`: what stands against it."""

    row: ConfigurationRow
    name: str
    saved: float
    gain: float
    but: str = ""
    way: int = -1  # its place in WAYS

    @property
    def sentence(self) -> str:
        """`Halving the bytes of the allreduce would give at most +4.0 %.`"""
        more = f" ({self.but})" if self.but else ""
        if self.gain > MOST_GAIN:
            return f"{self.name} takes almost all of the step away{more}."
        return f"{self.name} would give at most +{percent(self.gain)}{more}."


@dataclass(frozen=True)
class Known:
    """What a remedy is judged by: shares of the step, and of waiting for the slowest rank in it."""

    shares: Mapping[str, float]
    lag: float
    row: ConfigurationRow

    def __getitem__(self, name: str) -> float:
        return self.shares.get(name, 0.0)


OF_A_ROUND = (*OF_PEERS, MEMORY)  # shares that a larger target batch spreads over more samples
HALVED = {"fp32": "Halving the bytes of the allreduce (16 bits)", "fp16": "Halving the bytes of the allreduce again",
          "bf16": "Halving the bytes of the allreduce again"}  # fmt: skip
FIXED_SHARES = (COMMUNICATE, LAUNCH, MEMORY, OTHER)  # that a larger batch spreads over more samples


def _of_peers(known: Known) -> bool:
    return of_peers(str(known.row["framework"]))


WAYS: tuple[tuple[Callable[[Known], str], Callable[[Known], float]], ...] = (
    (lambda k: HALVED.get(str(k.row["allreduce"]), ""), lambda k: max(0.0, k[COMMUNICATE] + k[AVERAGE] - k.lag) / 2),
    (lambda k: "Hiding all communication behind computing", lambda k: k[COMMUNICATE] + k[FIND] + k[AVERAGE]),
    (lambda k: "Ranks that are equally fast", lambda k: k.lag),
    (lambda k: "Input that never keeps a step waiting", lambda k: k[INPUT]),
    (
        lambda k: "" if _of_peers(k) else "Twice the batch on each worker",
        lambda k: sum(k[name] for name in FIXED_SHARES) / 2,
    ),
    (lambda k: "Computing in half the time", lambda k: (k[COMPUTE] + k[LAUNCH]) / 2),
    (lambda k: "Computing without its fixed part (fewer, larger kernels)", lambda k: k[LAUNCH]),
    (lambda k: "Updating weights at no cost", lambda k: k[MEMORY]),
    (lambda k: "A pipeline without a bubble", lambda k: k[BUBBLE]),
    (lambda k: "Twice the target batch of a round" * _of_peers(k), lambda k: sum(k[name] for name in OF_A_ROUND) / 2),
    (lambda k: "Peers that find each other at once" * _of_peers(k), lambda k: k[FIND]),
)
HALVE, LARGER_BATCH = 0, 4  # of WAYS


@once
def remedies(results: Results) -> dict[str, list[Remedy]]:
    """Configuration -> what would help it, the most first; of those whose phases are known."""
    lost = {str(attributed.row["configuration"]): attributed for attributed in attribution.attributions(results)}
    memory = {str(row["configuration"]): family for family in families(results) for row in family.rows}
    gains = gain.gains(results).dropna(subset="gain")
    narrow = {str(pair["reference"]): _measured(pair["gain"], pair["gain_low"], pair["gain_high"], pair["allreduce"])
              for pair in as_rows(gains)}  # fmt: skip
    by_configuration = {}
    for limit in bottleneck.bottlenecks(results):
        name = str(limit.row["configuration"])
        if limit.shares:
            tried = {HALVE: narrow.get(name, ""), LARGER_BATCH: _larger(limit.row, memory.get(name))}
            by_configuration[name] = of(limit, lost.get(name), tried)
    return by_configuration


def of(bottleneck: Bottleneck, lost: Attribution | None = None, tried: Mapping[int, str] | None = None) -> list[Remedy]:
    """Of one configuration, the most first. `tried`: place in WAYS -> what the study itself has measured of it."""
    judged = Known(bottleneck.shares, max(0.0, lost.part("stragglers")) if lost else 0.0, bottleneck.row)
    remedies_of = []
    for index, (name, saved) in enumerate(WAYS):
        share = min(saved(judged), 1.0 - 1e-9)
        most = 1 / (1 - share) - 1
        if (judged_name := name(judged)) and most >= LEAST:
            remedies_of.append(Remedy(bottleneck.row, judged_name, share, most, (tried or {}).get(index, ""), index))
    return sorted(remedies_of, key=lambda remedy: remedy.gain, reverse=True)


def _larger(row: ConfigurationRow, memory: Family | None) -> str:
    """What became of twice the batch, where it was tried."""
    if memory is None:
        return ""
    twice, out = 2 * int(row["batch_per_worker"]), memory.smallest_out
    if out is not None and out <= twice:
        return f"batch {out} was out of memory"
    larger = [larger_batch for larger_batch in memory.rows if int(larger_batch["batch_per_worker"]) == twice]
    if not larger:
        return ""
    measured = over(larger[0], row)
    return _measured(measured.mean, measured.low, measured.high, f"batch {twice}")


def _measured(ratio: float, low: float | None, high: float | None, what: str) -> str:
    """`fp16 was measured: -10 % [-14, -7]`."""
    bounds = f" [{100 * (low - 1):+.0f}, {100 * (high - 1):+.0f}]" if known(low) and known(high) else ""
    return f"{what} was measured: {100 * (ratio - 1):+.0f} %{bounds}"
