"""What configurations that shared launches are compared by: their ratios within each launch."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from planted import Planted, plant, planted_row, repeat_values
from scipy import stats
from simulations import Seen, times

from analysis.frames import configurations, results
from analysis.frames.configurations import over, values
from analysis.frames.results import Results
from analysis.statistics import ranking
from analysis.statistics.ranking import Uncertainty
from analysis.views import allreduce_gain
from scaling_study.records import store
from scaling_study.stats.intervals import ratio

DRIFT = (0.2, -0.1, 0.0)  # of the machine, launch by launch
SINGLE = Planted("single", speed=100.0, drift=DRIFT)
TWO = [
    Planted("horovod", workers=2, allreduce=wire, batch_per_worker=batch, speed=speed, drift=DRIFT)
    for batch in (32, 64) for wire, speed in (("fp32", 160.0), ("fp16", 150.0))
]  # fmt: skip
STUDY = [SINGLE, replace(SINGLE, batch_per_worker=64), *TWO]


def read(folder: Path, planted: list[Planted], **about: Any) -> Results:
    return results.read(plant(folder, planted, baseline={"framework": "single", "workers": 1}, **about))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return read(tmp_path_factory.mktemp("launches") / "planted", STUDY)


def row(study: Results, **keys: Any) -> dict[str, Any]:
    return next(dict(each) for each in study.rows if all(each[key] == value for key, value in keys.items()))  # type: ignore[literal-required]


def test_a_machine_that_drifts_does_not_widen_a_speedup(study: Results, tmp_path: Path) -> None:
    cold = read(tmp_path / "cold", [replace(each, drift=()) for each in STUDY])
    ours, theirs = (row(each, framework="horovod", batch_per_worker=32, allreduce="fp32") for each in (study, cold))
    assert ours["interval_high"] / ours["interval_low"] > 1.5, "its throughput did drift"
    assert ours["speedup_low"] < 1.6 < ours["speedup_high"]
    assert ours["speedup_high"] / ours["speedup_low"] < 1.08
    assert math.isnan(theirs["launch_spread"]) and theirs["repeat_launches"] == ""


def test_the_ratio_is_that_of_each_launch(study: Results) -> None:
    half, full = (row(study, batch_per_worker=64, allreduce=wire) for wire in ("fp16", "fp32"))
    each = [a / b for a, b in zip(values(half), values(full), strict=True)]
    gain = over(half, full)
    assert gain.mean == pytest.approx(math.prod(each) ** (1 / 3))
    assert gain.n == 3 and gain.low is not None and gain.high is not None
    wider = over(half, full, 0.99)
    assert wider.low is not None and wider.low < gain.low
    assert row(study, batch_per_worker=64, allreduce="fp16")["repeat_launches"] == ";".join(
        f"{launch}/0-0-horovod_2" for launch in (1, 2, 3)
    )


def test_whose_gain_is_decided_in_spite_of_the_drift(study: Results) -> None:
    assert set(allreduce_gain.gains(study).verdict) == {"slower"}


def test_the_start_of_their_processes_falls_on_both_alike(study: Results) -> None:
    both = [{**row(study, batch_per_worker=64, allreduce=wire), "processes_spread": 0.05} for wire in ("fp16", "fp32")]
    own = sum(each["launch_spread"] ** 2 for each in both)
    share = configurations.share_of_processes(*both)
    assert share == pytest.approx(math.sqrt(own / (2 * 0.05**2 + own * 3 / 4)))
    apart = [{**each, "repeat_launches": each["repeat_launches"].replace("horovod", name)}
             for each, name in zip(both, "ab", strict=True)]  # fmt: skip
    ours, theirs = (
        replace(Uncertainty.of_rows(rows, over_baselines=False), by_launch=np.empty((2, 0))).errors(rows)[0][0, 1]
        for rows in (both, apart)
    )
    assert ours == pytest.approx(theirs * share)
    wide, narrow = configurations.p_value(*apart), configurations.p_value(*both)
    assert wide and narrow and narrow < wide


def test_a_ratio_that_varies_more_than_the_others_has_an_interval_of_its_own() -> None:
    """As resnet18 at batch 32 in examples/results/cifar10-scaling, whose ratios vary by 6.3 % where all have 2.8 %."""
    rows = [dict(each) for each in equal(np.random.default_rng(3), 0, 0)]
    others = [over(each, rows[0]).relative_half_width or 0.0 for each in rows[7:]]
    first, second, third = values(rows[6])
    rows[6]["repeat_values"] = repeat_values((first * 1.06, second / 1.06, third))
    configurations.add(rows)
    halves = [over(each, rows[0]).relative_half_width or 0.0 for each in rows[6:]]
    logs = np.log([values(rows[at]) for at in (6, 0)])
    assert halves[0] > 0.7 * 4.303 * np.std(logs[0] - logs[1], ddof=1) / math.sqrt(3), "Student's t of its own three"
    assert max(halves[1:]) < 1.3 * max(others), "its noise is not put on the others"
    needed = [configurations.needed(each, rows[0], 0.02) or 0 for each in rows[6:]]
    assert needed[0] > 3 * max(needed[1:])


@pytest.mark.parametrize("shared", [True, False])
def test_the_interval_of_a_gain_is_that_of_its_verdict(shared: bool) -> None:
    """[0.4, 7.0] % and "not resolved" were two statements: one pair by itself, and one of four."""
    rng, seen = np.random.default_rng(8), set[str]()
    for _ in range(12):
        rows = equal(rng, 0, 0)
        for at, row in enumerate(rows):
            factor = 1.12 if at == 1 else 1.03 if at % 2 else 1.0
            speeds = [value * factor for value in values(row)]
            row |= {"repeat_values": repeat_values(speeds), "samples_per_second": float(np.mean(speeds))}
            row |= {} if shared else {"repeat_launches": ""} | dict.fromkeys(configurations.COLUMNS)
        configurations.add(rows)
        for gain in allreduce_gain.gains_of(pd.DataFrame(rows, dtype=object), 0.001).itertuples():
            holds = "faster" if gain.gain_low > 1 else "slower" if gain.gain_high < 1 else "not resolved"
            assert holds == gain.verdict and 1 <= gain.tests <= 6
            seen.add(holds)
    assert {"faster", "not resolved"} <= seen


@pytest.mark.parametrize("launch", ["", "1/0;2/0-0-x", "../../etc", "gates-1"])
def test_what_names_no_launch_shared_none(launch: str, tmp_path: Path) -> None:
    folder = plant(tmp_path / "planted", [SINGLE], baseline=None)
    record = next(iter(store.read_study(folder)))
    store.write_record(folder / "trials" / record.id, replace(record, launch=launch))
    (only,) = results.read(folder).rows
    assert only["n"] == 3 and only["repeat_launches"] == "" and not configurations.launches_names(only)


def test_launches_that_were_not_shared_say_nothing_of_a_ratio(study: Results) -> None:
    """Such as those of a sweep that was interrupted and went on."""
    half, full = (row(study, batch_per_worker=64, allreduce=wire) for wire in ("fp16", "fp32"))
    half["repeat_launches"] = "7/0-0-horovod_2;8/0-0-horovod_2;9/0-0-horovod_2"
    assert configurations.launches_ratio(half, full) is None
    assert over(half, full) == ratio(values(half), values(full), first=(3, 3))


def test_one_that_was_measured_elsewhere_takes_no_pairing_from_the_others(study: Results) -> None:
    rows = [dict(each) for each in study.rows]
    assert configurations.common(rows) == ["1/0", "2/0", "3/0"]
    rows[1]["repeat_launches"] = "7/0-0-single;8/0-0-single;9/0-0-single"
    assert configurations.common(rows) == ["1/0", "2/0", "3/0"]
    rows[2]["repeat_launches"] = "2/0-0-horovod_2;3/0-0-horovod_2;4/0-0-horovod_2"
    assert configurations.common(rows) == ["1/0", "2/0", "3/0"], "two shared launches are too few"
    for at, each in enumerate(rows):
        each["repeat_launches"] = ";".join(f"{3 * at + launch}/0-0-x" for launch in (1, 2, 3))
    assert configurations.common(rows) == configurations.common(rows[:1]) == configurations.common([]) == []


def test_two_commands_are_compared_within_the_launches_that_they_shared() -> None:
    """Each has processes of its own, though all that processes are told apart by elsewhere is alike."""
    drifts, alone = np.array([0.3, -0.2, 0.0, 0.1]), np.array([0.002, -0.001, 0.001, -0.002])
    rows = commands(drifts, drifts + alone)
    found = over(rows[1], rows[0])
    assert found.n == 4 and found.low is not None and found.high is not None
    assert found.low < 1 < found.high < 1.02 * found.low, "the drift of the machine is in both"


def commands(*logs: NDArray[np.float64]) -> list[dict[str, Any]]:
    """A row for each command, from its (n,) log throughputs in launches that all shared."""
    rows = [
        planted_row(
            np.exp(each), framework="command", model="command", configuration=f"command-{place}",
            samples_per_second=float(np.exp(each.mean())),
            repeat_launches=";".join(f"{at + 1}/0-{place}-command" for at in range(len(each))),
        )
        for place, each in enumerate(logs)
    ]  # fmt: skip
    configurations.add(rows)
    return rows


def test_of_two_that_are_alone_the_verdict_is_students() -> None:
    """Of two equal ones that are launched three times each, one in eleven was called slower where 5 % may be."""
    drift, apart = np.array([0.1, -0.2, 0.0]), 0.0202 + 0.01 * np.array([-1.0, 0.0, 1.0])
    rows = commands(drift + 4.0, drift + 4.0 - apart)
    student = stats.ttest_1samp(apart, 0.0)
    assert student.statistic == pytest.approx(3.5, rel=0.01) and 0.05 < student.pvalue < 0.08
    error, freedom = Uncertainty.of_rows(rows, over_baselines=False).errors(rows)
    assert apart.mean() / error[0, 1] == pytest.approx(student.statistic)
    assert freedom[0, 1] == freedom[1, 0] == pytest.approx(student.df)
    assert verdicts(rows) == {"command-0": "best", "command-1": "indistinguishable"}
    assert configurations.p_value(*rows) == pytest.approx(student.pvalue)
    assert most_freedom(commands(drift + 4.0, drift + 4.0 - apart, drift + 3.9)) <= 4
    pair = commands(drift, drift - apart, drift - apart + 0.01 * np.array([1.0, -1.0, 1.0]))
    for one in pair[1:]:  # as fp32 and fp16 of one set of processes beside a baseline
        one |= {"framework": "horovod", "repeat_launches": pair[1]["repeat_launches"]}
    configurations.add(pair)
    assert most_freedom(pair) < 3


def verdicts(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {name: standing.verdict for name, standing in ranking.row_standings(rows).items()}


def most_freedom(rows: list[dict[str, Any]]) -> float:
    """The most degrees of freedom of any difference of these."""
    _, freedom = Uncertainty.of_rows(rows, over_baselines=False).errors(rows)
    return float(freedom[~np.eye(len(rows), dtype=bool)].max())


def test_the_odd_one_out_of_pairs_without_a_difference_is_tested_among_them() -> None:
    """It was tested alone, so that of many equal pairs some was called faster in far more than 5 % of studies."""
    rows = equal(np.random.default_rng(8), 0, 0)
    pairs = list(zip(rows[1::2], rows[::2], strict=True))
    widths = [math.log(gain.high / gain.mean) for gain in itertools.starmap(over, pairs) if gain.high]
    odd = widths.index(max(widths))
    for at, (half, full) in enumerate(pairs):
        factor = math.exp(1.1 * widths[at] * (at == odd)) / over(half, full).mean
        half["repeat_values"] = repeat_values(value * factor for value in values(half))
    found = allreduce_gain.gains_of(pd.DataFrame(rows, dtype=object), 1.01 * math.expm1(max(widths)))
    assert found.verdict.tolist() == ["not resolved" if at == odd else "no difference" for at in range(len(pairs))]
    gain = found.iloc[odd]
    assert gain.gain_low < 1 < gain.gain_high and gain.tests == len(pairs)
    assert found.tests.notna().sum() == 1, "an interval without a difference is one by itself"


def test_a_launch_that_ended_early_is_one_by_itself(tmp_path: Path) -> None:
    """It is paired with nothing, and takes no pairing from the launches that both shared."""
    folder = plant(tmp_path / "planted", STUDY, baseline={"framework": "single", "workers": 1})
    for record in store.read_study(folder):
        if record.launch.startswith("2/0-0-horovod"):
            early = record.launch.replace("2/0-", "2/0.4-")
            store.write_record(folder / "trials" / record.id, replace(record, launch=early))
    rows = results.read(folder).rows
    early = [dict(each) for each in rows if "2/0.4-" in each["repeat_launches"]]
    whole = [dict(each) for each in rows if "2/0.4-" not in each["repeat_launches"]]
    assert early and len(whole) > 1 and all(each["n"] == 3 for each in (*early, *whole))
    assert configurations.launches_ratio(early[0], early[1]) is not None, (
        "those that ended together are paired in all three"
    )
    assert configurations.launches_ratio(whole[0], whole[1]) is not None
    assert configurations.launches_ratio(early[0], whole[0]) is None, "two launches are too few"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "elsewhere"), [(0, 0), (5, 0), (3, 2)], ids=["as many launches each", "some have more", "some have others"]
)
def test_of_equal_configurations_none_is_called_slower_in_95_percent_of_studies(more: int, elsewhere: int) -> None:
    """`more`: launches that one group has beside the others, on a machine that drifts; `elsewhere`: how many of that
    group have the last three alone."""
    studies, rng, alarms = times(200, 5_000), np.random.default_rng(3), {"ranking": 0, "gain": 0}
    for study in range(studies):
        rows = equal(rng, more, elsewhere)
        alarms["ranking"] += bool({"worse", "worst"} & {*verdicts(rows).values()})
        gains = allreduce_gain.gains_of(pd.DataFrame(rows, dtype=object), (0.001, 0.04)[study % 2])
        alarms["gain"] += bool({"faster", "slower"} & set(gains.verdict))
    assert {name: count for name, count in alarms.items() if not Seen(count, studies).keeps(most=0.05)} == {}


def equal(rng: np.random.Generator, more: int, elsewhere: int) -> list[dict[str, Any]]:
    """Rows of a study in which all are equally fast, and launches come over groups and over each."""
    rows, drifts = [], 0.05 * rng.standard_normal(3 + more)
    for framework, count in (("horovod", 3), ("torch_ddp", 3 + more)):
        group = 0.02 * rng.standard_normal(count)
        for number, (batch, wire) in enumerate(itertools.product((32, 64, 128), ("fp32", "fp16"))):
            alone = framework == "torch_ddp" and number >= 6 - elsewhere
            shared = range(count)[-3:] if alone else range(3 if elsewhere else count)
            speeds = [100 * np.exp(drifts[at] + group[at] + 0.01 * rng.standard_normal()) for at in shared]
            rows.append(planted_row(
                speeds, model="resnet18", framework=framework, workers=2, batch_per_worker=batch, batch=batch,
                configuration=f"{framework}-{batch}-{wire}", allreduce=wire, warm=True, planned=3,
                samples_per_second=float(np.exp(np.log(speeds).mean())),
                repeat_launches=";".join(f"{at + 1}/0-0-{framework}" for at in shared),
            ))  # fmt: skip
    configurations.add(rows)
    return rows
