"""Closed forms of an allreduce: known values, bounds that nothing can beat, and growth with everything that costs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.prediction.network import ALGORITHMS, Link, ModelledNetwork, seconds, slower

ALPHA, BETA = 5e-6, 1e-9
FLAT = ModelledNetwork(Link(ALPHA, BETA))
HOSTS = ModelledNetwork(Link(ALPHA, BETA), Link(1e-6, 1e-10), 4)

workers = st.integers(1, 100_000)
# Nothing at all, or what a link can have: next to zero the products of floating point lose their digits.
sizes = st.just(0.0) | st.floats(1e-3, 1e10)
alphas = st.just(0.0) | st.floats(1e-12, 1e-2)
betas = st.just(0.0) | st.floats(1e-15, 1e-6)
links = st.builds(Link, alphas, betas)
networks = st.one_of(
    st.builds(ModelledNetwork, links), st.builds(ModelledNetwork, links, links, st.sampled_from([1, 2, 4, 8]))
)  # fmt: skip
algorithms = st.sampled_from(list(ALGORITHMS))


A, B = ALPHA, 1e6 * BETA


@pytest.mark.parametrize(
    ("network", "algorithm", "n", "expected"),
    [
        (FLAT, "ring", 2, 2 * A + B),
        (FLAT, "ring", 3, 4 * A + 4 / 3 * B),
        (FLAT, "ring", 8, 14 * A + 14 / 8 * B),
        (FLAT, "halving_doubling", 2, 2 * A + B),
        (FLAT, "halving_doubling", 8, 6 * A + 14 / 8 * B),
        (FLAT, "halving_doubling", 3, 2 * A + B + 2 * (A + B)),  # the third hands all to a partner
        (FLAT, "tree", 8, 2 * (B + 6 * A + math.sqrt(8 * 3 * A * B))),
        (FLAT, "hierarchical", 8, 14 * A + 14 / 8 * B),  # a worker a host: the ring
        (HOSTS, "ring", 4, 6e-6 + 6 / 4 * 1e6 * 1e-10),  # one host
        (HOSTS, "ring", 8, 14 * A + 14 / 8 * B),  # the slowest link of a ring decides
        (HOSTS, "hierarchical", 4, 6e-6 + 6 / 4 * 1e6 * 1e-10),
        (HOSTS, "hierarchical", 8, 6e-6 + 6 / 4 * 1e6 * 1e-10 + 2 * A + B),
        (HOSTS, "halving_doubling", 8, 4e-6 + 6 / 4 * 1e6 * 1e-10 + 2 * A + B),
    ],
)
def test_known_values(network: ModelledNetwork, algorithm: str, n: int, expected: float) -> None:
    assert seconds(algorithm, n, 1e6, network) == pytest.approx(expected)


def test_the_trees_segments_are_the_best_there_are() -> None:
    """The closed form is the minimum over the number of segments, each tree carrying half of the data."""
    n, size = 64, 4e6
    height = 6

    def with_segments(k: int) -> float:
        return 2 * (2 * k + 2 * height) * (ALPHA + size * BETA / (2 * k))

    best = min(with_segments(k) for k in range(1, 2000))
    assert seconds("tree", n, size, FLAT) <= best <= seconds("tree", n, size, FLAT) * 1.001


@given(algorithms, workers, sizes, networks, st.floats(1, 10))
def test_more_bytes_alpha_or_beta_never_cost_less(
    algorithm: str, n: int, size: float, network: ModelledNetwork, factor: float
) -> None:
    base = seconds(algorithm, n, size, network)
    for more in (
        seconds(algorithm, n, size * factor, network),
        seconds(algorithm, n, size, network.scaled(factor, 1)),
        seconds(algorithm, n, size, network.scaled(1, factor)),
    ):
        assert more >= base * (1 - 1e-9)


@given(algorithms, st.integers(2, 100_000), sizes, links)
def test_nothing_beats_the_bounds(algorithm: str, n: int, size: float, link: Link) -> None:
    least = max(2 * (n - 1) / n * size * link.seconds_per_byte, math.ceil(math.log2(n)) * link.latency_seconds)
    assert seconds(algorithm, n, size, ModelledNetwork(link)) >= least * (1 - 1e-9)


@given(st.integers(1, 16), st.sampled_from([1, 2, 4, 8]), st.floats(1, 1e9), links)
def test_hierarchy_over_links_that_are_alike_is_no_better_than_the_ring_in_bytes(
    hosts: int, per_host: int, size: float, link: Link
) -> None:
    beta = Link(0.0, link.seconds_per_byte)
    n, network = hosts * per_host, ModelledNetwork(beta, beta, per_host)
    assert seconds("hierarchical", n, size, network) >= seconds("ring", n, size, ModelledNetwork(beta)) * (1 - 1e-9)


@given(algorithms, st.integers(2, 1000), sizes, links, links, st.sampled_from([2, 4, 8]))
def test_a_faster_link_within_hosts_never_hurts(
    algorithm: str, n: int, size: float, between: Link, within: Link, per_host: int
) -> None:
    slow = ModelledNetwork(between, slower(within, between), per_host)
    fast = ModelledNetwork(between, within, per_host)
    assert seconds(algorithm, n, size, fast) <= seconds(algorithm, n, size, slow) * (1 + 1e-9)


def test_a_link_takes_no_time_back() -> None:
    with pytest.raises(ValueError, match="a link takes no time back"):
        Link(-1e-6, 0)


def test_hosts_are_filled_one_after_the_other() -> None:
    assert [HOSTS.hosts(n) for n in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]
    assert [HOSTS.local(n) for n in (1, 3, 4, 9)] == [1, 3, 4, 4]
    assert HOSTS.across(4) == HOSTS.within and HOSTS.across(5) == Link(ALPHA, BETA)
    assert ModelledNetwork(Link(1e-6, 1e-10), Link(ALPHA, 1e-12), 4).across(8) == Link(ALPHA, 1e-10)
