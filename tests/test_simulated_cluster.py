"""The truth that predictions are held against: without noise it is what can be added up by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis.prediction import network as collectives
from analysis.prediction.network import Link, ModelledNetwork
from benchmarks import published_512, published_scaling
from benchmarks.prediction_on_clusters import WORKERS, case, drawn_for, predicted
from benchmarks.simulated_cluster import Cluster, Run, Wire
from scaling_study.settings import CHECKOUT

QUIET = Cluster(
    workers=4, forward=0.03, backward=0.06, after=0.01, gradients=((1e7, 0.02), (1e7, 0.04), (1e7, 0.06)),
    between=Wire(1e-5, 1e-9), within=Wire(1e-6, 1e-10), process_noise=0.0, step_noise=0.0, message_noise=0.0,
)  # fmt: skip


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "hierarchical"])
@pytest.mark.parametrize(("workers", "per_host"), [(2, 1), (8, 1), (8, 4), (64, 4), (4, 4)])
def test_messages_that_do_not_vary_add_up_to_the_closed_form(algorithm: str, workers: int, per_host: int) -> None:
    cluster = replace(QUIET, workers=workers, workers_per_host=per_host, algorithm=algorithm)
    between, within = Link(1e-5, 1e-9), Link(1e-6, 1e-10)
    network = ModelledNetwork(between, within, per_host) if per_host > 1 else ModelledNetwork(between)
    took = Run(cluster, 0).reduced(np.zeros(workers), 1e7)
    # A ring over hosts waits for its slowest link in every step; what is on the fast ones is there already.
    assert float(took.max()) == pytest.approx(collectives.seconds(algorithm, workers, 1e7, network), rel=1e-9)


@pytest.mark.parametrize(("policy", "most", "expected"), [
    ("whole", 1e9, 0.1 + 6e-5 + 1.5 * 0.03),
    ("buckets", 1e7, 0.1 + 6e-5 + 1.5 * 0.01),
])  # fmt: skip
def test_what_backward_does_not_hide_is_exposed(policy: str, most: float, expected: float) -> None:
    assert Run(replace(QUIET, policy=policy, most_bytes=most), 0).steps(3) == pytest.approx([expected] * 3)


def test_cycles_wait_at_most_one_cycle_more() -> None:
    steps = Run(replace(QUIET, policy="cycles"), 0).steps(200)
    least = 0.1 + 1.5 * 0.01 + 6e-5
    assert least < min(steps) and max(steps) < least + 0.001 + 1e-4
    assert max(steps) - min(steps) > 0.0005  # when the first cycle falls is chance


@pytest.mark.slow
def test_predictions_hold_on_clusters_of_every_size() -> None:
    """A few of what `python -m benchmarks prediction` runs many of."""
    for index in range(len(WORKERS)):
        made = case(replace(drawn_for(index), message_noise=0.0), index)
        assert abs(made.error) < 0.03, made.said()


def test_published_inputs_give_the_published_order() -> None:
    """VGG-16 sends five times what Inception V3 does, and 512 GPUs lose more than 128."""
    found = {key: published_512.efficiency(*key) for key in published_512.PUBLISHED}
    for gpus in (128, 512):
        assert found["VGG-16", gpus] < min(found["Inception V3", gpus], found["ResNet-101", gpus])
    for model in published_512.IMAGES_PER_SECOND:
        assert found[model, 512] < found[model, 128] <= 1
        assert sum(size for size, _ in published_512.layers(model)) == {
            "Inception V3": 4 * 23_834_568, "ResNet-101": 4 * 44_549_160, "VGG-16": 4 * 138_357_544,
        }[model]  # fmt: skip


def test_published_scaling_is_predicted_blind() -> None:
    """Other published results leave the predictions alone; the page holds every figure."""
    page = (CHECKOUT / "docs" / "internals" / "predictions.md").read_text(encoding="utf-8")
    for study, every in published_scaling.rows().items():
        made = published_scaling.predicted(study, every)
        others = [row if row.given else replace(row, images_per_second=1.0) for row in every]
        blind = published_scaling.predicted(study, others)
        assert [one.images_per_second for one in blind] == [one.images_per_second for one in made]
        assert [one.linear for one in blind] == [one.linear for one in made]
        for one in made:
            row = one.row
            published = f"{row.gpus:,} | {row.batch_per_gpu:,} | {row.images_per_second:,.0f}"
            assert f"| {published} | {' | '.join(one.cells)} |" in page


def test_fixed_seconds_of_a_step_come_from_two_batches() -> None:
    """Planted: 4 ms and 0.1 ms an image."""
    given = [published_scaling.Row(4, batch, 4 * batch / (0.004 + 1e-4 * batch), True) for batch in (800, 400)]
    assert published_scaling.one_gpu(given, 16).seconds == pytest.approx(0.0056)
    assert published_scaling.one_gpu(given[:1], 800).seconds == pytest.approx(0.084)


def test_hosts_that_are_slow_for_good_are_predicted() -> None:
    """64 workers on 16 hosts that differ by 5 %: told of it, a prediction is right over drawn clusters."""
    slow = replace(QUIET, workers=64, workers_per_host=4, host_noise=0.05, between=Wire(1e-6, 1e-12), cycle=1e-4)
    truth = 32 * 64 / np.mean([Run(slow, seed).steps(1) for seed in range(100)])
    told, untold = (predicted(replace(slow, host_noise=noise), 0).samples_per_second.mean for noise in (0.05, 0.0))
    assert told / truth == pytest.approx(1, abs=0.01) and untold / truth > 1.07
