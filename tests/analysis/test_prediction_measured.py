"""From records to predictions: steps and gradients as they were measured, networks as they were probed."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planted import Planted, changed_ranks, plant

from analysis.frames import results
from analysis.prediction import inputs
from analysis.prediction import predict as forecast
from analysis.prediction.inputs import OneWorker, TrainingTarget
from analysis.prediction.network import Link, ModelledNetwork
from analysis.prediction.predict import Asked, forecast_table, predict
from analysis.prediction.simulate import AFTERWARDS, BUCKETS, DDP, HOROVOD
from analysis.statistics.network import Probe
from scaling_study.stats.network import AlphaBeta

GIVEN = ModelledNetwork(Link(5e-6, 1 / 3.125e9))
ONE, TWO = Planted("horovod", speed=320.0), Planted("horovod", workers=2, allreduce="fp32", speed=600.0)
GRADIENTS = [[4_000_000.0, 0.010], [1_000_000.0, 0.020], [100.0, 0.040]]


def targets(folder: Path, *asked: str) -> tuple[list[TrainingTarget], list[str]]:
    return inputs.targets(results.read(folder), folder, asked)


def noted(folder: Path, **phases: float | None) -> Path:
    """The planted records, with what their ranks say of gradients and phases."""
    return changed_ranks(folder, lambda rank: rank.update(gradients=GRADIENTS, phases=rank["phases"] | phases))


def test_a_step_is_the_timed_one_in_the_proportions_of_the_instrumented_one(tmp_path: Path) -> None:
    """Planted: phases of 0.1 data, 0.3 forward, 0.4 backward of a step; a gradient's time is its share of backward."""
    (one,), wrong = targets(noted(plant(tmp_path, [replace(ONE, noise=0.0)])))
    step = one.alone.step
    assert wrong == []
    assert step.seconds == pytest.approx(0.1)
    assert (step.before_seconds, step.backward_seconds) == pytest.approx((0.04, 0.04))
    assert step.after_seconds == pytest.approx(0.02)
    assert [size for size, _ in step.gradients] == [4e6, 1e6, 100]
    assert [seconds for _, seconds in step.gradients] == pytest.approx([0.01, 0.02, 0.04])
    assert one.alone.noted and one.alone.repeats == 3 and one.alone.samples == 32
    assert one.alone.variation == pytest.approx(0.02, rel=0.5)


def test_of_a_step_that_accumulates_only_the_last_backward_sends(tmp_path: Path) -> None:
    four = replace(ONE, noise=0.0, keys=(("accumulation", 4),))
    (one,), _ = targets(noted(plant(tmp_path, [four])))
    assert one.alone.step.backward_seconds == pytest.approx(0.01)
    assert one.alone.step.before_seconds == pytest.approx(0.07)
    assert one.alone.step.gradients[-1][1] == pytest.approx(0.01)


def test_older_records_are_taken_to_make_their_gradients_evenly(tmp_path: Path) -> None:
    (one,), _ = targets(plant(tmp_path, [ONE]))
    sizes, seconds = zip(*one.alone.step.gradients, strict=True)
    assert not one.alone.noted and sum(sizes) == pytest.approx(4 * 11_181_642)
    gaps = [b - a for a, b in itertools.pairwise((0.0, *seconds))]
    assert max(gaps) == pytest.approx(min(gaps)) and seconds[-1] == pytest.approx(one.alone.step.backward_seconds)


def test_whose_step_stands_for_a_frameworks_worker(tmp_path: Path) -> None:
    plain = Planted("single", speed=300.0)
    ddp = Planted("torch_ddp", workers=2, allreduce="fp16", speed=500.0)
    found, wrong = targets(plant(tmp_path, [plain, ONE, TWO, ddp]))
    bases = {target.row["framework"]: target.alone.configuration for target in found}
    assert bases["horovod"].startswith("horovod-") and bases["torch_ddp"].startswith("single-") and not wrong
    assert {t.row["framework"]: t.fusion for t in found} == {"horovod": HOROVOD, "torch_ddp": DDP}
    assert {t.row["framework"]: t.wires for t in found} == {"horovod": ("fp32",), "torch_ddp": ("fp16",)}
    assert [t.wire("fp16") for t in found] == [0.5, 0.5]


def test_knobs_are_those_that_were_run(tmp_path: Path) -> None:
    keyed = replace(TWO, keys=(("fusion_bytes", 1 << 20), ("cycle_seconds", 0.01)))
    ddp = Planted("torch_ddp", workers=2, allreduce="fp32", keys=(("bucket_bytes", 5 << 20),))
    mpi = Planted("mpi_allreduce", workers=2, allreduce="fp32", keys=(("fusion_bytes", 3 << 20),))
    found, _ = targets(plant(tmp_path, [Planted("single"), keyed, ddp, mpi]))
    fusions = {t.row["framework"]: t.fusion for t in found}
    assert (fusions["horovod"].most_bytes, fusions["horovod"].cycle_seconds) == (1 << 20, 0.01)
    assert (fusions["torch_ddp"].kind, fusions["torch_ddp"].most_bytes) == (BUCKETS, 5 << 20)
    assert fusions["torch_ddp"].first_bytes is None  # torch makes only its own default's first bucket smaller
    assert fusions["mpi_allreduce"] == replace(AFTERWARDS, most_bytes=3 << 20)


def test_what_cannot_be_predicted_says_why(tmp_path: Path) -> None:
    _, alone = targets(plant(tmp_path / "a", [TWO]))
    assert len(alone) == 1 and "no run with one worker and the same batch" in alone[0]
    _, blind = targets(noted(plant(tmp_path / "b", [ONE]), backward_seconds=None))
    assert len(blind) == 1 and blind[0].endswith("its records do not say how long forward and backward take")
    sharded = Planted("torch_fsdp2", workers=2, allreduce="fp32")
    none, (of_others,) = targets(plant(tmp_path / "c", [sharded]))
    assert not none and of_others.startswith("torch_fsdp2 of resnet18 is not predicted")
    failed = replace(ONE, speed=None, status="oom")
    assert targets(plant(tmp_path / "d", [failed])) == ([], [])


def one_worker(**changes: Any) -> OneWorker:
    step = inputs.Step(0.03, 0.06, 0.01, ((1e7, 0.03), (1e7, 0.06)))
    return replace(OneWorker("horovod-x", step, 32, 5, 0.01, 0.02, True), **changes)


def target(**changes: Any) -> TrainingTarget:
    row = {"framework": "horovod", "model": "resnet18", "precision": "fp32", "batch_per_worker": 32}
    return TrainingTarget(row, "horovod, batch 32", one_worker(**changes), HOROVOD, ("fp32",))


def test_one_worker_is_predicted_as_measured() -> None:
    made = predict(target(), "fp32", "ring", 1, GIVEN)
    assert made.samples_per_second.mean == pytest.approx(320) and made.efficiency.mean == pytest.approx(1)
    assert (made.efficiency.low, made.efficiency.high) == pytest.approx((1, 1))
    assert made.samples_per_second.low < 320 < made.samples_per_second.high


def test_an_interval_is_that_of_its_inputs() -> None:
    """With no network to speak of it is Student's t over the repeats: 2.776 standard errors with 5 of them."""
    free = ModelledNetwork(Link(0.0, 0.0))
    late = replace(target(), fusion=AFTERWARDS)  # no cycles, in which a step may end sooner or later by chance
    made = predict(late, "fp32", "ring", 1000, free, straggle=False).samples_per_second
    assert made.low == pytest.approx(made.mean * (1 - 2.776 * 0.01), rel=3e-3)
    assert made.high == pytest.approx(made.mean * (1 + 2.776 * 0.01), rel=3e-3)
    sure = predict(target(log_error=0.0), "fp32", "ring", 64, GIVEN).samples_per_second
    assert sure.low == pytest.approx(sure.mean) == pytest.approx(sure.high)
    vague = ModelledNetwork(Link(5e-6, 1e-8, 0.1, 0.1))
    unsure = predict(target(log_error=0.0), "fp32", "ring", 64, vague).samples_per_second
    assert unsure.high - unsure.low > 0.05 * unsure.mean


def test_no_interval_without_three_repeats() -> None:
    made = predict(target(repeats=2), "fp32", "ring", 64, GIVEN)
    assert made.efficiency.low is None and made.samples_per_second.high is None


def test_stragglers_and_crowding_slow_all_of_computing() -> None:
    free, two = ModelledNetwork(Link(0.0, 0.0)), ModelledNetwork(Link(0.0, 0.0), Link(0.0, 0.0), 2)
    base = predict(target(), "fp32", "ring", 8, free, straggle=False)
    slow = predict(target(), "fp32", "ring", 8, free)
    assert slow.waiting_seconds == pytest.approx(0.1 * 0.02 * 1.4236, rel=1e-3)
    assert slow.step_seconds - base.step_seconds == pytest.approx(slow.waiting_seconds, rel=0.2)
    crowded = predict(target(), "fp32", "ring", 8, two, straggle=False, crowding=1.25)
    assert crowded.efficiency.mean == pytest.approx(0.8, rel=0.01)
    lonely = predict(target(), "fp32", "ring", 8, free, straggle=False, crowding=1.25)
    assert lonely.efficiency.mean == pytest.approx(base.efficiency.mean)


def test_crowding_is_forward_beside_others_over_forward_alone(tmp_path: Path) -> None:
    folder = plant(tmp_path, [replace(ONE, noise=0.0), replace(TWO, noise=0.0)])
    rows = results.read(folder).configurations.to_dict("records")
    (found,) = inputs.crowding_ratios(rows, 2)
    alone, beside = 32 / 320.0, 64 / 600.0  # seconds of a step, of which 0.3 are forward
    assert found == pytest.approx(beside / alone, rel=0.01)
    assert inputs.crowding_ratios(rows, 4) == [] and inputs.crowding([]) == 1
    assert inputs.crowding_ratios(rows, 2, without=[row["configuration"] for row in rows]) == []
    assert inputs.crowding([1.1, 1.1 * 1.21]) == pytest.approx(1.1 * 1.1)


# --- probes ---


def line(alpha: float, beta: float, spread: float | None = None) -> AlphaBeta:
    bounds = [(value * (1 - spread), value * (1 + spread)) if spread else (None, None) for value in (alpha, beta)]
    return AlphaBeta(alpha, *bounds[0], beta, *bounds[1], 0.0, 0.0, 0)


IDLE = line(100e-6, 4e-9, 0.196)


def probe(
    launcher: str = "mpirun", workers: int = 2, controller: str | None = None, hosts: int = 1, idle: AlphaBeta = IDLE
) -> Probe:
    name, fits = f"network_probe-{launcher}-{workers}", {inputs.IDLE: idle}
    return Probe(name, launcher, launcher, controller, workers, hosts, "cpu", fits)


@pytest.mark.parametrize(
    ("made", "latency_seconds", "spread"), [(probe(), 50e-6, 0.1), (probe(workers=4, idle=line(60e-6, 6e-9)), 10e-6, 0)]
)
def test_a_probe_is_taken_apart_into_the_steps_of_a_ring(made: Probe, latency_seconds: float, spread: float) -> None:
    link = inputs.link(made, inputs.IDLE)
    assert (link.latency_seconds, link.seconds_per_byte) == pytest.approx((latency_seconds, 4e-9))
    assert (link.latency_spread, link.byte_spread) == pytest.approx((spread, spread))


def test_horovods_wait_for_its_own_thread_is_not_the_networks() -> None:
    row = {"framework": "horovod", "controller": "mpi"}
    network = inputs.network_of(row, [probe("horovodrun", controller="mpi")])
    assert network.between.latency_seconds == 0  # of 100 us, half a cycle of 1 ms is more
    assert inputs.network_of(row, [probe("mpirun")]).between.latency_seconds == pytest.approx(50e-6)


@pytest.mark.parametrize(
    ("framework", "controller", "launcher"),
    [
        ("horovod", "mpi", "horovodrun"), ("torch_ddp", None, "torchrun"), ("lightning_ddp", None, "torchrun"),
        ("mpi_allreduce", None, "mpirun"), ("horovod", "gloo", "torchrun"),
    ],
)  # fmt: skip
def test_the_nearest_probe_is_taken(framework: str, controller: str | None, launcher: str) -> None:
    among = [probe("torchrun"), probe("mpirun"), probe("horovodrun", controller="mpi")]
    network = inputs.network_of({"framework": framework, "controller": controller}, among)
    assert launcher in network.source


def test_links_within_and_between_hosts_are_told_apart_by_where_the_probes_ran() -> None:
    row = {"framework": "mpi_allreduce", "controller": None}
    here = inputs.network_of(row, [probe(workers=4)])
    assert here.workers_per_host == 4 and here.within == here.between and here.one_host
    assert "on one host" in here.source
    far = inputs.network_of(row, [probe(hosts=2)])
    assert far.within is None and far.workers_per_host == 1 and not far.one_host
    both = inputs.network_of(row, [probe(workers=4), probe(workers=2, hosts=2)])
    assert both.workers_per_host == 4 and both.within is not None
    assert both.within.seconds_per_byte == pytest.approx(4e-9 * 4 / 6) and both.between.seconds_per_byte == 4e-9
    assert both.source.startswith("measured between hosts by mpirun") and "within a host by" in both.source


def test_a_probe_on_busy_cores_says_what_communication_costs_computing() -> None:
    row = {"framework": "mpi_allreduce", "controller": None}
    of_both = probe()
    network = inputs.network_of(row, [replace(of_both, fits={**of_both.fits, inputs.BUSY: line(200e-6, 8e-9)})])
    assert network.busy is not None and network.busy.between.seconds_per_byte == pytest.approx(8e-9)
    assert network.scaled(1, 2).busy.between.seconds_per_byte == pytest.approx(16e-9)


# --- against measurements ---


def test_a_run_is_checked_on_as_many_hosts_as_it_had(tmp_path: Path) -> None:
    """Two workers on one host and on two: each beside its own prediction, and the table shows the first."""
    far = replace(TWO, speed=300.0, noise=0.0, keys=(("hosts", 2),))
    folder = noted(plant(tmp_path, [replace(ONE, noise=0.0), replace(TWO, noise=0.0), far]))
    slow = ModelledNetwork(Link(0.0, 5e-9), Link(0.0, 1e-12), 2)
    made = forecast.forecast(
        results.read(folder), folder, Asked((2,), ("ring",), network=slow, crowding=1.0, check=True)
    )
    here, there = sorted(made.checked, key=lambda one: one.hosts)
    assert (here.hosts, there.hosts) == (1, 2) and (here.as_shown, there.as_shown) == (True, False)
    assert here.samples_per_second == pytest.approx(600) and there.samples_per_second == pytest.approx(300)
    assert here.prediction is there.prediction
    assert there.samples_per_second * (1 + there.error) < here.samples_per_second * (1 + here.error)
    frame = forecast_table(made)
    assert frame.measured_samples_per_second.tolist() == pytest.approx([600])


def test_a_prediction_is_held_against_the_run_it_is_of(tmp_path: Path) -> None:
    folder = noted(plant(tmp_path, [ONE, TWO]))
    made = forecast.forecast(results.read(folder), folder, Asked((2, 4), ("ring",), network=GIVEN, check=True))
    (checked,) = made.checked
    assert checked.prediction.workers == 2
    assert checked.samples_per_second == pytest.approx(600, rel=0.03)
    assert checked.error == pytest.approx(checked.prediction.samples_per_second.mean / checked.samples_per_second - 1)
    assert 0 < checked.noise < 0.2
    assert checked.beyond_noise == max(0, abs(checked.error) - checked.noise)


def test_an_error_owes_nothing_to_the_run_it_is_measured_by(tmp_path: Path) -> None:
    """Crowding of the checked run itself would explain away its slowness."""
    slow = replace(TWO, speed=320.0, noise=0.0)
    folder = noted(plant(tmp_path, [replace(ONE, noise=0.0), slow]))
    shared = ModelledNetwork(Link(0.0, 0.0), Link(0.0, 0.0), 2)
    made = forecast.forecast(results.read(folder), folder, Asked((2,), ("ring",), network=shared, check=True))
    assert made.crowding == pytest.approx(2, rel=0.01) and made.crowding_pairs == 1
    assert made.predictions[0].samples_per_second.mean == pytest.approx(320, rel=0.05)  # it knows the run
    assert made.checked[0].error == pytest.approx(1, rel=0.05)  # this one does not
