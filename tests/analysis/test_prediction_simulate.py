"""One simulated step: literals that can be added up by hand, and what must hold whatever the numbers are."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.prediction import simulate as fusion
from analysis.prediction import simulate as stragglers
from analysis.prediction.network import ALGORITHMS, Link, ModelledNetwork
from analysis.prediction.simulate import AFTERWARDS, BUCKETS, CYCLES, DDP, HOROVOD, WHOLE, Fusion, Step, simulate

MB = 1e6
STEP = Step(0.030, 0.060, 0.010, ((10 * MB, 0.020), (10 * MB, 0.040), (10 * MB, 0.060)))
TEN_MS = ModelledNetwork(Link(0.0, 1e-9))  # of two workers: 10 MB take 10 ms
NOW = Fusion(CYCLES, 1, cycle_seconds=0.0)  # each gradient by itself, at once


@st.composite
def steps(draw: st.DrawFn) -> Step:
    before, backward, after = (draw(st.just(0.0) | st.floats(1e-9, 1)) for _ in range(3))
    shares = sorted(draw(st.lists(st.just(0.0) | st.floats(1e-9, 1), min_size=1, max_size=30)))
    sizes = draw(st.lists(st.floats(1, 1e9), min_size=len(shares), max_size=len(shares)))
    return Step(before, backward, after, tuple((b, s * backward) for b, s in zip(sizes, shares, strict=True)))


fusions = st.one_of(
    st.builds(
        Fusion, st.sampled_from([CYCLES, BUCKETS, WHOLE]), st.floats(1, 1e9), st.none() | st.floats(1, 1e7),
        st.sampled_from([0.0, 0.001, 0.02]), st.booleans(),
    ),
    st.sampled_from([HOROVOD, DDP, AFTERWARDS]),
)  # fmt: skip
networks = st.builds(
    ModelledNetwork, st.builds(Link, st.just(0.0) | st.floats(1e-12, 1e-3), st.just(0.0) | st.floats(1e-15, 1e-8))
)
counts = st.integers(1, 100_000)
algorithms = st.sampled_from(list(ALGORITHMS))


def link(beta: float) -> ModelledNetwork:
    """Of two workers, seconds a byte: with 1e-9 10 MB take 10 ms."""
    return ModelledNetwork(Link(0.0, beta))


@pytest.mark.parametrize(
    ("network", "policy", "exposed", "calls"),
    [
        # Three gradients of 10 ms each at 20, 40 and 60 ms of 60: the first two are hidden, the last is not.
        pytest.param(TEN_MS, NOW, 0.010, 3, id="backward hides what it can"),
        # At 30 ms each they queue: 20 to 50, 50 to 80, 80 to 110, of which 60 lie in backward.
        pytest.param(link(3e-9), NOW, 0.050, 3, id="one collective at a time"),
        # 20 MB at 40 ms, hidden; the last 10 MB at 60 ms.
        pytest.param(TEN_MS, Fusion(BUCKETS, 20 * MB), 0.010, 2, id="buckets leave when they are full"),
        # Cycles at 15, 45 and 75 ms: two gradients are found at 45, the last at 75, and each call takes its 10 ms.
        pytest.param(TEN_MS, Fusion(CYCLES, 100 * MB, cycle_seconds=0.030), 0.015 + 0.010, 2, id="once in a cycle"),
        # At 100 ms all are found: 30 MB travel together, unless it is too much.
        pytest.param(TEN_MS, Fusion(CYCLES, 100 * MB, cycle_seconds=0.200), 0.040 + 0.030, 1, id="together"),
        pytest.param(TEN_MS, Fusion(CYCLES, 20 * MB, cycle_seconds=0.200), 0.040 + 0.030, 2, id="too much"),
        # On cores that compute a call takes twice its time, half of which computing loses: as if it came afterwards.
        pytest.param(replace(TEN_MS, busy=link(2e-9)), NOW, 0.030, 3, id="what needs the cores gains nothing"),
        # As slow on busy cores as on idle ones: it was the network's time, not the cores'.
        pytest.param(replace(link(2e-9), busy=link(2e-9)), NOW, 0.020, 3, id="what leaves the cores alone is hidden"),
    ],
)
def test_a_step_that_can_be_added_up_by_hand(
    network: ModelledNetwork, policy: Fusion, exposed: float, calls: int
) -> None:
    made = simulate(STEP, 2, "ring", network, policy)
    assert made.exposed_seconds == pytest.approx(exposed) and made.step_seconds == pytest.approx(0.100 + exposed)
    assert made.calls == calls


def test_the_wire_is_in_use_for_all_that_travels() -> None:
    assert simulate(STEP, 2, "ring", TEN_MS, NOW).communication_seconds == pytest.approx(0.030)


def test_ddp_fills_its_buckets_with_gradients_not_with_what_it_makes_of_them() -> None:
    gradients = ((20 * MB, 0.01), (20 * MB, 0.02))
    assert fusion.buckets(gradients, replace(DDP, first_bytes=None), 0.5) == [(20 * MB, 0.02)]
    assert fusion.buckets(gradients, DDP, 0.5) == [(10 * MB, 0.01), (10 * MB, 0.02)]  # the first limit is 1 MiB
    counts_wire = replace(DDP, first_bytes=None, counts_wire_bytes=True)
    assert len(fusion.buckets((*gradients, *gradients), replace(DDP, first_bytes=None), 0.5)) == 2
    assert len(fusion.buckets((*gradients, *gradients), counts_wire, 0.5)) == 2
    assert len(fusion.buckets(gradients, replace(counts_wire, most_bytes=10 * MB), 0.5)) == 2


def test_communication_that_only_waits_its_turn_takes_little_from_computing() -> None:
    """Ten times as slow on busy cores, of which it needs a tenth: the first call takes 10 ms from backward, the second
    comes when the cores are idle."""
    step = replace(STEP, backward_seconds=0.300, gradients=((10 * MB, 0.020), (10 * MB, 0.300)))
    waiting = replace(TEN_MS, busy=ModelledNetwork(Link(0.0, 10e-9)))
    made = simulate(step, 2, "ring", waiting, NOW)
    assert made.exposed_seconds == pytest.approx(0.010 + 0.010)
    assert made.communication_seconds == pytest.approx(0.100 + 0.010)


@given(steps(), st.integers(2, 100_000), algorithms, st.sampled_from([BUCKETS, WHOLE]))
def test_with_no_cost_of_communication_the_step_is_its_computing(step: Step, n: int, algorithm: str, kind: str) -> None:
    free = ModelledNetwork(Link(0.0, 0.0))
    assert simulate(step, n, algorithm, free, Fusion(kind)).step_seconds == pytest.approx(step.seconds)
    assert simulate(step, n, algorithm, free, NOW).step_seconds == pytest.approx(step.seconds)
    late = simulate(step, n, algorithm, free, HOROVOD).step_seconds - step.seconds
    assert -1e-9 <= late <= HOROVOD.cycle_seconds + 1e-9


@given(steps(), counts, algorithms, networks, fusions, st.sampled_from([0.5, 1.0]))
def test_exposed_is_part_of_what_was_on_the_wire(
    step: Step, n: int, algorithm: str, network: ModelledNetwork, policy: Fusion, wire: float
) -> None:
    made = simulate(step, n, algorithm, network, policy, wire)
    waits = policy.cycle_seconds if policy.kind == CYCLES else 0.0
    room = 1e-9 * (1 + made.step_seconds)
    assert -room <= made.exposed_seconds <= made.communication_seconds + waits + room
    assert made.step_seconds >= step.seconds - room
    assert made.step_seconds == pytest.approx(step.seconds + made.exposed_seconds)


@given(steps(), st.integers(2, 1000), st.sampled_from(["ring", "hierarchical"]), networks, st.floats(1, 10))
def test_a_slower_network_never_makes_a_faster_step(
    step: Step, n: int, algorithm: str, network: ModelledNetwork, factor: float
) -> None:
    """Of buckets and of calls after backward. (Horovod's cycles may find more to fuse, and gain by being late.)"""
    for policy in (DDP, AFTERWARDS):
        fast = simulate(step, n, algorithm, network, policy).step_seconds
        slow = simulate(step, n, algorithm, network.scaled(factor, factor), policy).step_seconds
        assert slow >= fast * (1 - 1e-9)


@given(steps(), st.integers(2, 1000), networks, fusions, st.floats(1, 3))
def test_cores_that_are_shared_never_help(
    step: Step, n: int, network: ModelledNetwork, policy: Fusion, factor: float
) -> None:
    shared = replace(network, busy=network.scaled(factor, factor))
    apart, together = (simulate(step, n, "ring", net, policy) for net in (network, shared))
    if policy.kind != CYCLES:
        assert together.step_seconds >= apart.step_seconds * (1 - 1e-9)
    assert together.exposed_seconds >= -1e-9


@given(steps(), counts, algorithms, networks)
def test_every_byte_is_sent_once(step: Step, n: int, algorithm: str, network: ModelledNetwork) -> None:
    total = sum(size for size, _ in step.gradients)
    for most in (1.0, 1e6, 1e12):
        assert sum(fusion.fused((size for size, _ in step.gradients), most)) == pytest.approx(total)
        sent = fusion.buckets(step.gradients, Fusion(BUCKETS, most))
        assert sum(size for size, _ in sent) == pytest.approx(total)
        assert sent[-1][1] == step.gradients[-1][1]


def test_the_slowest_of_n() -> None:
    """Against the exact values of the normal order statistic (Teichroew, Ann. Math. Stat. 27, 1956)."""
    known = {1: 0.0, 2: 1 / math.sqrt(math.pi), 3: 0.8462843753, 10: 1.5387527308, 100: 2.5075936, 1000: 3.2414358}
    for n, expected in known.items():
        assert stragglers.expected_maximum(n) == pytest.approx(expected, abs=2e-3)
    drawn = np.random.default_rng(0).standard_normal((200, 100_000)).max(axis=1)
    assert stragglers.expected_maximum(100_000) == pytest.approx(float(drawn.mean()), abs=0.1)
    assert stragglers.slowdown(10, 0.02) == pytest.approx(1 + 0.02 * 1.5387527, abs=1e-4)
    assert stragglers.slowdown(1, 0.5) == 1.0
