"""The network of a prediction: hosts with some workers each, a link between them, and perhaps another one within.

    host 0 [w w w w]--.                 Link.latency_seconds   alpha: of a message of no bytes
    host 1 [w w w w]--+-- between       Link.seconds_per_byte  beta: what each byte adds
    host 2 [w w w w]--'                 within: between two workers of one host

A message of b bytes takes alpha + beta b (Hockney's model). `busy` is the same network while the cores that also
compute are computing. Where communication needs the cores, both suffer. Of an allreduce that takes t seconds on idle
cores and t' on busy ones, t' - t was waiting for a core, and a fair scheduler gives at most as much as it lets wait;
nor can it have needed more than t. So of these t' seconds computing loses the smaller of the two. With a GPU and a
network card that work by themselves t' = t, and it loses nothing; where copying on a loopback is all there is,
t' = 2 t, and it loses one half; where a call waits long for its turn, t' is much more than t, and it loses little.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

GIVEN = "given"


class CannotPredict(Exception):
    """One clear sentence: what is missing, and what would be right."""


@dataclass(frozen=True)
class Link:
    """`latency_spread` and `byte_spread`: relative standard errors of the two, where they were fitted; 0: given."""

    latency_seconds: float
    seconds_per_byte: float
    latency_spread: float = 0.0
    byte_spread: float = 0.0

    def __post_init__(self) -> None:
        if self.latency_seconds < 0 or self.seconds_per_byte < 0:
            raise ValueError(f"a link takes no time back: alpha {self.latency_seconds}, beta {self.seconds_per_byte}")

    def scaled(self, latency: float, byte: float) -> Link:
        """The same link with both of its times multiplied."""
        return replace(
            self, latency_seconds=self.latency_seconds * latency, seconds_per_byte=self.seconds_per_byte * byte
        )


def slower(a: Link, b: Link) -> Link:
    """What is left of two links that a message may have to pass: the worse of each."""
    return Link(max(a.latency_seconds, b.latency_seconds), max(a.seconds_per_byte, b.seconds_per_byte))


@dataclass(frozen=True)
class Network:
    """Hosts of `workers_per_host`, filled one after the other. Without `within` each worker is a host of its own."""

    between: Link
    within: Link | None = None
    workers_per_host: int = 1
    busy: Network | None = None  # the same while every worker's cores compute; None: it makes no difference
    source: str = field(default=GIVEN, compare=False)  # where it is from, in words

    def __post_init__(self) -> None:
        if self.workers_per_host < 1:
            raise ValueError(f"a host has at least one worker, not {self.workers_per_host}")
        if self.workers_per_host > 1 and self.within is None:
            raise ValueError(f"{self.workers_per_host} workers a host, and no link between them")

    def hosts(self, workers: int) -> int:
        return -(-workers // self.workers_per_host)

    def local(self, workers: int) -> int:
        """Workers on the fullest host."""
        return min(workers, self.workers_per_host)

    @property
    def inside(self) -> Link:
        """The link between two workers of one host."""
        return self.within or self.between

    def across(self, workers: int) -> Link:
        """The link that an algorithm is held to which knows nothing of hosts."""
        if self.hosts(workers) == 1:
            return self.inside
        return self.between if self.local(workers) == 1 else slower(self.between, self.inside)

    def placed(self, workers: int, hosts: int) -> Network:
        """The same with so many workers spread over so many hosts, where links within and between them are known."""
        if self.within is None:
            return self
        busy = self.busy.placed(workers, hosts) if self.busy else None
        return replace(self, workers_per_host=-(-workers // hosts), busy=busy)

    def scaled(self, latency: float, byte: float) -> Network:
        """Every link with its times multiplied, busy ones likewise."""
        return replace(
            self,
            between=self.between.scaled(latency, byte),
            within=self.within.scaled(latency, byte) if self.within else None,
            busy=self.busy.scaled(latency, byte) if self.busy else None,
        )
