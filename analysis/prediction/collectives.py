"""Seconds of one allreduce in closed form: n workers, b bytes on each, links of alpha seconds and beta seconds a byte.

    ring               2 (n-1) alpha + 2 (n-1)/n b beta                  [1]
    halving_doubling   2 log2(n) alpha + 2 (n-1)/n b beta                [2]
    tree               2 (b beta + 2 h alpha + sqrt(8 h alpha b beta))   [3], two binary trees of height h
    hierarchical       a ring within each host, one between the hosts

[1] Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009. [2] Rabenseifner's, in Thakur, Rabenseifner and Gropp,
doi 10.1177/1094342005051521, 2005. [3] Sanders, Speck and Traeff, Parallel Computing 35, 2009.

No allreduce can take less than 2 (n-1)/n b beta, nor less than log2(n) alpha (Patarasuk and Yuan; Thakur): the ring
meets the first, halving and doubling nearly both. Adding up is not counted apart: it is in a measured beta.

tree: two binary trees over the same workers, each carrying half of the data in k segments, and inner nodes of one are
leaves of the other, so that every worker sends and receives all the time. Steps are coloured such that each worker does
one thing in each; a segment takes two. So reducing takes (2 k + 2 h) (alpha + b beta / (2 k)) with trees of height
h = log2(n); the best k = sqrt(h b beta / (2 alpha)) gives the form above, and broadcasting the same again. (NCCL's tree
lets the two overlap, which saves latency; what its segments cost instead nobody has published.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from analysis.prediction.network import Link, Network


def ring(workers: int, size: float, network: Network) -> float:
    """A host's link to the next carries each byte once each way, however many workers are on the host."""
    return around(workers, size, network.across(workers))


def around(n: int, size: float, link: Link) -> float:
    """A ring of n over links that are all alike: reduce-scatter, then all-gather."""
    return 2 * half_way(n, size, link)


def half_way(n: int, size: float, link: Link) -> float:
    """One of the two: n - 1 steps, each with an n-th of the data."""
    return (n - 1) * (link.latency_seconds + size / n * link.seconds_per_byte)


def halving_doubling(workers: int, size: float, network: Network) -> float:
    """Vectors halve while distances double: the nearest neighbours exchange the most, so hosts keep it to themselves.

    Workers beyond a power of two hand all they have to one of the others first, and are given the result.
    """
    local = 2 ** int(math.log2(network.local(workers)))
    hosts = 2 ** int(math.log2(network.hosts(workers)))
    seconds: float = sum(
        2 * (math.log2(n) * link.latency_seconds + (n - 1) / n * size * link.seconds_per_byte)
        for n, link in ((local, network.inside), (hosts, network.between))
    )
    if local * hosts != workers:
        link = network.across(workers)
        seconds += 2 * (link.latency_seconds + size * link.seconds_per_byte)
    return seconds


def tree(workers: int, size: float, network: Network) -> float:
    """Double binary tree: reduce, then broadcast. Neighbours in rank are neighbours in the tree, as in a ring."""
    if workers == 1:
        return 0.0
    link, height = network.across(workers), math.ceil(math.log2(workers))
    alpha, whole = link.latency_seconds, size * link.seconds_per_byte
    if height * whole < 2 * alpha:  # one segment is best
        return 2 * (2 + 2 * height) * (alpha + whole / 2)
    # s = sqrt(height whole / (2 alpha)) segments are, put into 2 (2 s + 2 height) (alpha + whole / (2 s))
    return 2 * (whole + 2 * height * alpha + 2 * math.sqrt(2 * height * alpha * whole))


def hierarchical(workers: int, size: float, network: Network) -> float:
    """Reduce-scatter within each host, a ring between the hosts for each share, all-gather within.

    The shares of a host's workers travel at the same time over the one link of the host: all of the data passes it.
    """
    inside = 2 * half_way(network.local(workers), size, network.inside)
    return inside + around(network.hosts(workers), size, network.between)


ALGORITHMS: Mapping[str, Callable[[int, float, Network], float]] = {
    "ring": ring,
    "tree": tree,
    "halving_doubling": halving_doubling,
    "hierarchical": hierarchical,
}


def seconds(algorithm: str, workers: int, size: float, network: Network) -> float:
    """Of one allreduce of `size` bytes. Raises ValueError for an unknown algorithm, no workers, or a negative size."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"{algorithm} is no allreduce known here: {', '.join(ALGORITHMS)}")
    if workers < 1 or size < 0:
        raise ValueError(f"{workers} workers cannot reduce {size} bytes")
    return 0.0 if workers == 1 else ALGORITHMS[algorithm](workers, size, network)


def least(workers: int, size: float, link: Link) -> float:
    """No algorithm takes less over links that are all alike."""
    n = workers
    return max(2 * (n - 1) / n * size * link.seconds_per_byte, math.ceil(math.log2(n)) * link.latency_seconds)
