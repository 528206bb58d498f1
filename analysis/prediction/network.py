"""The network of a prediction: hosts, links, what a person types for them, and seconds of an allreduce."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

# Values typed for a network: `25Gbit`, `3GB/s`, `5us`, `64MiB`, `4,8,512`. Nonsense is one line that says so.
#
# Bits and bytes are told apart by what the field writes: Gbit, Gbps and Gb/s are bits, GB/s is bytes. Of `25gb` nobody
# knows which it is.

MOST_WORKERS = 100_000
NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*(.*?)\s*")
DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
A_BIT = re.compile(r"([kKMGT]?)(?:bits?(?:/s|ps)?|bps|b/s)")
A_BYTE = re.compile(r"([KMGT]i|[kKMGT]?)B(?:/s|ps)?")


def bandwidth(text: str) -> float:
    """Bytes a second, from `25Gbit`, `100 Mbit/s`, `10Gbps`, `3GB/s`, `800MiB/s`. Raises ValueError, saying why."""
    value, unit = _parted(text, "a bandwidth", "25Gbit or 3GB/s")
    if bit := A_BIT.fullmatch(unit):
        value *= DECIMAL[bit[1]] / 8
    elif byte := A_BYTE.fullmatch(unit):
        value *= {**DECIMAL, **BINARY}[byte[1]]
    elif re.fullmatch(r"[kmgt]?b(ps|/s)?", unit, re.IGNORECASE):
        raise ValueError(
            f"{text} may be bits or bytes: write {value:g}{unit[0].upper()}bit or {value:g}{unit[0].upper()}B/s"
        )
    else:
        raise ValueError(f"{text} is not a bandwidth, such as 25Gbit or 3GB/s")
    if not 0 < value < math.inf:
        raise ValueError(f"{text} is not a bandwidth: it must be above 0")
    return value


@dataclass(frozen=True)
class Rate:
    """Bytes a second, and `of`: the `card` or the `host` that has them, or nothing where the text names neither."""

    bytes_per_second: float
    of: str = ""


def rate(text: str) -> Rate:
    """`50GB/card`, `400Gbit/s/host`, `25Gbit`. Raises ValueError, saying why."""
    for of in ("card", "host"):
        if text.strip().endswith(f"/{of}"):
            return Rate(bandwidth(text.strip().removesuffix(f"/{of}")), of)
    return Rate(bandwidth(text))


def share(text: str) -> float:
    """A share from 0 to below 1, from `15%` or `0.15`. Raises ValueError, saying why."""
    number = text.strip().removesuffix("%")
    match = NUMBER.fullmatch(number)
    value = float(match[1]) / (100 if number != text.strip() else 1) if match and not match[2] else math.nan
    if not 0 <= value < 1:
        raise ValueError(f"{text} is no share from 0 to below 1, such as 15% or 0.15")
    return value


def duration(text: str) -> float:
    """Seconds, from `5us`, `0.1ms`, `2s`. Raises ValueError, saying why."""
    value, unit = _parted(text, "a time", "5us or 0.1ms")
    if unit not in SECONDS:
        raise ValueError(f"{text} is not a time, such as 5us or 0.1ms")
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a time: it must be finite")
    return value * SECONDS[unit]


def size(text: str) -> int:
    """Bytes, from `64MiB`, `25MB`, `1000000`. Raises ValueError, saying why."""
    value, unit = _parted(text, "a size", "64MiB or 25MB")
    byte = A_BYTE.fullmatch(unit or "B")
    if not byte or unit.endswith(("/s", "ps")):
        raise ValueError(f"{text} is not a size, such as 64MiB or 25MB")
    whole = value * {**DECIMAL, **BINARY}[byte[1]]
    if not 1 <= whole < 2**63:
        raise ValueError(f"{text} is not a size of a buffer: it must be at least 1 byte")
    return round(whole)


def workers(text: str) -> tuple[int, ...]:
    """Worker counts in ascending order, each once, from `4,8,64`. Raises ValueError, saying why."""
    counts = set()
    for word in text.split(","):
        if not re.fullmatch(r"\s*[0-9]{1,9}\s*", word):
            raise ValueError(f"{word.strip() or 'nothing'!s} in {text!r} is not a number of workers, as in 4,8,64")
        count = int(word)
        if not 1 <= count <= MOST_WORKERS:
            raise ValueError(f"{count:,} workers: it must be between 1 and {MOST_WORKERS:,}")
        counts.add(count)
    return tuple(sorted(counts))


def _parted(text: str, what: str, such_as: str) -> tuple[float, str]:
    """(`25`, `Gbit`). Raises ValueError for what begins with no number."""
    match = NUMBER.fullmatch(text)
    if not match:
        raise ValueError(f"{text or 'nothing'} is not {what}, such as {such_as}")
    return float(match[1]), match[2]


# Seconds of one allreduce in closed form: n workers, b bytes on each, links of alpha seconds and beta seconds a byte.
#
#     ring               2 (n-1) alpha + 2 (n-1)/n b beta                  [1]
#     halving_doubling   2 log2(n) alpha + 2 (n-1)/n b beta                [2]
#     tree               2 (b beta + 2 h alpha + sqrt(8 h alpha b beta))   [3], two binary trees of height h
#     hierarchical       a ring within each host, one between the hosts
#     nccl               the same, or a tree between the hosts, whichever takes less of these bytes   [4]
#
# [1] Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009. [2] Rabenseifner's, in Thakur, Rabenseifner and Gropp,
# doi 10.1177/1094342005051521, 2005. [3] Sanders, Speck and Traeff, Parallel Computing 35, 2009.
# [4] NCCL takes the algorithm that its own table of latencies and bandwidths holds fastest: src/graph/tuning.cc.
#
# No allreduce can take less than 2 (n-1)/n b beta, nor less than log2(n) alpha (Patarasuk and Yuan; Thakur): the ring
# meets the first, halving and doubling nearly both. Adding up is not counted apart: it is in a measured beta.
#
# tree: two binary trees over the same workers, each carrying half of the data in k segments, and inner nodes of one are
# leaves of the other, so that every worker sends and receives all the time. Steps are coloured such that each worker
# does one thing in each; a segment takes two. So reducing takes (2 k + 2 h) (alpha + b beta / (2 k)) with trees of
# height h = log2(n); the best k = sqrt(h b beta / (2 alpha)) gives the form above, and broadcasting the same again.
# (NCCL's tree lets the two overlap, which saves latency; what its segments cost instead nobody has published.)


def ring(workers: int, size: float, network: ModelledNetwork) -> float:
    """A host's link to the next carries each byte once each way, however many workers are on the host."""
    return around(workers, size, network.across(workers))


def around(n: int, size: float, link: Link) -> float:
    """A ring of n over links that are all alike: reduce-scatter, then all-gather."""
    return 2 * half_way(n, size, link)


def half_way(n: int, size: float, link: Link) -> float:
    """One of the two: n - 1 steps, each with an n-th of the data."""
    return (n - 1) * (link.latency_seconds + size / n * link.seconds_per_byte)


def halving_doubling(workers: int, size: float, network: ModelledNetwork) -> float:
    """Vectors halve while distances double: the nearest neighbours exchange the most, so hosts keep it to themselves.

    Workers beyond a power of two hand all they have to one of the others first, and are given the result.
    """
    local = 2 ** int(math.log2(network.local(workers)))
    hosts = 2 ** int(math.log2(network.hosts(workers)))
    seconds: float = sum(
        2 * (math.log2(n) * link.latency_seconds + (n - 1) / n * size * link.seconds_per_byte)
        for n, link in ((local, network.inside), (hosts, network.host_link(workers)))
    )
    if local * hosts != workers:
        link = network.across(workers)
        seconds += 2 * (link.latency_seconds + size * link.seconds_per_byte)
    return seconds


def tree(workers: int, size: float, network: ModelledNetwork) -> float:
    """Double binary tree: reduce, then broadcast. Neighbours in rank are neighbours in the tree, as in a ring."""
    return double_tree(workers, size, network.across(workers))


def double_tree(n: int, size: float, link: Link) -> float:
    """Two trees of n over links that are all alike."""
    height = math.ceil(math.log2(n))
    alpha, whole = link.latency_seconds, size * link.seconds_per_byte
    if height * whole < 2 * alpha:  # one segment is best
        return 2 * (2 + 2 * height) * (alpha + whole / 2)
    # s = sqrt(height whole / (2 alpha)) segments are, put into 2 (2 s + 2 height) (alpha + whole / (2 s))
    return 2 * (whole + 2 * height * alpha + 2 * math.sqrt(2 * height * alpha * whole))


def hierarchical(workers: int, size: float, network: ModelledNetwork) -> float:
    """Reduce-scatter within each host, a ring between the hosts for each share, all-gather within.

    The shares of a host's workers travel at the same time over the cards of the host: all of the data passes them.
    """
    inside = 2 * half_way(network.local(workers), size, network.inside)
    return inside + around(network.hosts(workers), size, network.host_link(workers))


def nccl(workers: int, size: float, network: ModelledNetwork) -> float:
    """The hierarchy with a ring or a double binary tree between the hosts, whichever is faster for so many bytes."""
    if (hosts := network.hosts(workers)) == 1:
        return hierarchical(workers, size, network)
    inside = 2 * half_way(network.local(workers), size, network.inside)
    trees = double_tree(hosts, size, network.host_link(workers))
    return min(hierarchical(workers, size, network), inside + trees)


ALGORITHMS: Mapping[str, Callable[[int, float, ModelledNetwork], float]] = {
    "ring": ring,
    "tree": tree,
    "halving_doubling": halving_doubling,
    "hierarchical": hierarchical,
    "nccl": nccl,
}


def seconds(algorithm: str, workers: int, size: float, network: ModelledNetwork) -> float:
    """Seconds of one allreduce of `size` bytes, by one of ALGORITHMS."""
    return 0.0 if workers == 1 else ALGORITHMS[algorithm](workers, size, network)


# The network of a prediction: hosts with some workers each, a link between them, and perhaps another one within.
#
#     host 0 [w w w w]==.                 Link.latency_seconds   alpha: of a message of no bytes
#     host 1 [w w w w]==+== between       Link.seconds_per_byte  beta: what each byte adds
#     host 2 [w w w w]=='                 within: between two workers of one host
#
# `between` is the link of one card. A host with several (`cards_per_host`) spreads what leaves it over them, but over
# no more than it has workers: NCCL gives each ring a card of its own. A network that was probed on one host alone has
# `one_host`: its links say nothing of several hosts, and predictions over several are refused.
#
# A message of b bytes takes alpha + beta b (Hockney's model). `busy` is the same network while the cores that also
# compute are computing. Where communication needs the cores, both suffer. Of an allreduce that takes t seconds on idle
# cores and t' on busy ones, t' - t was waiting for a core, and a fair scheduler gives at most as much as it lets wait;
# nor can it have needed more than t. So of these t' seconds computing loses the smaller of the two. With a GPU and a
# network card that work by themselves t' = t, and it loses nothing; where copying on a loopback is all there is,
# t' = 2 t, and it loses one half; where a call waits long for its turn, t' is much more than t, and it loses little.
#
# On a GPU nothing measures that yet, and NCCL's kernels do take some of its multiprocessors: computing loses the share
# `gpu_share` of the time that a collective takes. GPU_SHARE stands where nobody gave another: DeepSeek-V3 keeps 20 of
# an H800's 132 multiprocessors for communication, enough to fill NVLink and InfiniBand (arXiv 2412.19437, 3.5.1).

GIVEN = "given"
GPU_SHARE = 20 / 132


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
        """A link with both times multiplied."""
        return replace(
            self, latency_seconds=self.latency_seconds * latency, seconds_per_byte=self.seconds_per_byte * byte
        )


def slower(a: Link, b: Link) -> Link:
    """The worse latency and the worse bandwidth of two links that a message may have to pass."""
    return Link(max(a.latency_seconds, b.latency_seconds), max(a.seconds_per_byte, b.seconds_per_byte))


@dataclass(frozen=True)
class ModelledNetwork:
    """Hosts of `workers_per_host`, filled one after the other. Without `within` each worker is a host of its own."""

    between: Link  # of one card
    within: Link | None = None
    workers_per_host: int = 1
    busy: ModelledNetwork | None = None  # the same while every worker's cores compute; None: it makes no difference
    cards_per_host: int = 1
    gpu_share: float = 0.0  # of a GPU's computing, taken while a collective runs
    one_host: bool = False  # nothing is known of a second
    source: str = field(default=GIVEN, compare=False)  # where it is from, in words

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
        between = self.host_link(workers)
        return between if self.local(workers) == 1 else slower(between, self.inside)

    def host_link(self, workers: int) -> Link:
        """All cards of the fullest host together."""
        cards = min(self.cards_per_host, self.local(workers))
        return replace(self.between, seconds_per_byte=self.between.seconds_per_byte / cards)

    def placed(self, workers: int, hosts: int) -> ModelledNetwork:
        """The network with so many workers spread over so many hosts, where links within and between them are known."""
        if self.within is None:
            return self
        busy = self.busy.placed(workers, hosts) if self.busy else None
        return replace(self, workers_per_host=-(-workers // hosts), busy=busy)

    def scaled(self, latency: float, byte: float) -> ModelledNetwork:
        """Every link with its times multiplied, busy ones likewise."""
        return replace(
            self,
            between=self.between.scaled(latency, byte),
            within=self.within.scaled(latency, byte) if self.within else None,
            busy=self.busy.scaled(latency, byte) if self.busy else None,
        )
