"""Two results side by side: who is paired with whom, what differs, what is said of each pair, and the exit code."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import Planted, changed, changed_ranks, default_study, plant, plant_gates
from scipy.special import stdtrit

from analysis import commands
from analysis.__main__ import main
from analysis.compare import differences, report, verdicts
from analysis.compare.report import Comparison, NothingToCompare
from analysis.compare.verdicts import (
    BROKEN,
    FAILING,
    FASTER,
    FOUND,
    LOST,
    NEITHER,
    NO_INTERVAL,
    NOT_COMPARABLE,
    SAME,
    SLOWER,
    SMALL,
    UNRESOLVED,
)
from analysis.statistics.ranking import holm
from tests.net import examples

TWO = Planted("horovod", workers=2, allreduce="fp32", speed=160.0, noise=0.004, repeats=5)
LARGER = replace(TWO, batch_per_worker=64)
QUIET = replace(TWO, noise=0.001)
OOM = replace(TWO, status="oom", speed=None)
Change = Callable[[dict[str, Any]], Any]
Capture = pytest.CaptureFixture[str]


def slowed(folder: Path, factor: float, only: str = "") -> Path:
    """What ran, as slow as this factor of its speed makes it."""
    return changed_ranks(
        folder, lambda rank: rank.update(step_seconds=[seconds / factor for seconds in rank["step_seconds"]]), only
    )


def broken(folder: Path, repeats: Iterable[int], status: str, reason: str) -> Path:
    """These repeats of everything in `folder`, as runs that were not ok."""

    def change(record: dict[str, Any]) -> None:
        if record["trial"]["repeat"] in repeats:
            record.update(status=status, reason=reason, ranks=[])

    return changed(folder, change)


def planned(folder: Path, configurations: Iterable[Planted]) -> Path:
    """The study in `folder`, saying that it plans these."""
    about = json.loads((folder / "study.json").read_text())
    about["configurations"] = [one.trial().configuration for one in configurations]
    (folder / "study.json").write_text(json.dumps(about))
    return folder


def two(tmp_path: Path, a: Iterable[Planted], b: Iterable[Planted], **about: Any) -> tuple[Path, Path]:
    return plant(tmp_path / "a", a, **about), plant(tmp_path / "b", b, seed=1, **about)


def verdict(made: Comparison) -> list[str]:
    return list(made.verdicts.table.verdict)


def compared(a: Path, b: Path, *options: str) -> int:
    return main(["compare", str(a), str(b), *options])


@pytest.fixture
def example(tmp_path: Path) -> Callable[[str], Path]:
    """example("name"): a copy of real results."""
    return lambda name: Path(shutil.copytree(examples.example("cifar10-scaling"), tmp_path / name))


# --- on real results ---


@pytest.mark.slow
def test_real_results_against_themselves_and_against_slower_ones(
    example: Callable[[str], Path], capsys: Capture
) -> None:
    a, b = example("a"), example("b")
    assert compared(a, b) == commands.NO_REGRESSION
    said = capsys.readouterr()
    assert "0 of 16 configurations slower, 0 faster; 16 not resolved" in said.out and said.err == ""
    assert "96 of the 96 runs of A are in B too" in " ".join(said.out.split())
    slowed(b, 0.7, only="resnet18-b64")
    assert compared(a, b, "--markdown", str(b / "comment.md")) == commands.REGRESSION
    assert "4 of 16 configurations slower, 0 faster" in capsys.readouterr().out
    shown, _, folded = (b / "comment.md").read_text().partition("<details>")
    assert shown.startswith("# 4 of 16 configurations slower") and shown.count("| slower |") == 4
    assert "not resolved |" not in shown and folded.count("| not resolved |") == 12
    assert compared(b, a) == commands.NO_REGRESSION, "the other way round it is a gain"
    assert "0 of 16 configurations slower, 4 faster" in capsys.readouterr().out
    assert compared(a, b, "--json") == commands.REGRESSION
    object_ = json.loads(capsys.readouterr().out)
    assert [object_[key] for key in ("regressed", "regressions", "gains")] == [True, 4, 0]
    assert len(object_["pairs"]) == 16 and object_["pairs"][0].keys() >= set(verdicts.KINDS)
    assert object_["overall"]["ratio"] == pytest.approx(0.7**0.25, rel=0.01)


@pytest.mark.slow
def test_another_machine_or_commit_is_refused_and_named(example: Callable[[str], Path], capsys: Capture) -> None:
    def elsewhere(record: dict[str, Any]) -> None:
        record["machine"] |= {"cpu": "Intel Xeon", "cores": 8}
        record["trial"] |= {"machine": "deadbeef", "cores_per_worker": 4}
        record["environment"]["OMP_NUM_THREADS"] = "4"
        for rank in record["ranks"]:
            rank["versions"] |= {"torch": "2.16.0", "transformers": "9.9"}

    a, b = example("a"), changed(example("b"), elsewhere)
    assert compared(a, b, "--markdown", str(b / "comment.md")) == commands.COMPARE_REFUSED
    said = capsys.readouterr()
    assert said.out == ""
    for line in (
        "machine: CPU: AMD EPYC in A, Intel Xeon in B",
        "machine: cores: 2 in A, 8 in B",
        "machine: cores_per_worker: 1 in A, 4 in B",
        "versions: torch: 2.15.0 in A, 2.16.0 in B",
        "environment: OMP_NUM_THREADS: not set in A, 4 in B",
        "--expect machine,versions,environment",
    ):
        assert line in said.err
    assert "transformers" not in said.err, "no ResNet uses it"
    assert "| machine | CPU | AMD EPYC | Intel Xeon |" in (b / "comment.md").read_text()
    assert compared(a, b, "--expect", "machine,torch") == commands.COMPARE_REFUSED
    assert compared(a, b, "--expect", "machine,Torch,environment") == commands.NO_REGRESSION
    assert compared(a, b, "--anyway") == commands.NO_REGRESSION
    assert "Differs: machine: CPU" in " ".join(capsys.readouterr().out.split())
    changed(b, lambda record: record.update(commit="0123456789ab"))
    assert compared(a, b, "--json", "--expect", "machine,versions,environment") == commands.COMPARE_REFUSED
    object_ = json.loads(capsys.readouterr().out)
    assert object_["refused"] and "commit" in [one["name"] for one in object_["differences"]]
    assert compared(a, b, "--expect", "machine,versions,environment,commit") == commands.NO_REGRESSION


# --- who is paired with whom ---


def test_pairs_are_found_by_keys_and_not_by_ids(tmp_path: Path) -> None:
    elsewhere = (("machine", "other"), ("cores_per_worker", 4))
    made = report.compare(*two(tmp_path, [TWO], [replace(TWO, keys=elsewhere)]), 0.01, anyway=True)
    (pair,) = made.pairing.pairs
    assert pair.a["configuration"] != pair.b["configuration"] and pair.differing == ["cores_per_worker"]
    assert [str(one) for one in made.differences] == ["cores_per_worker: 1 in A, 4 in B"]


def test_configurations_whose_keys_cannot_tell_them_apart_are_paired_by_id(tmp_path: Path) -> None:
    a = plant(tmp_path / "a", [TWO, replace(TWO, model="resnet8", speed=80.0)])
    changed(a, lambda record: record["trial"].update(model="other"))
    table = report.compare(a, a, 0.01).verdicts.table
    assert list(table.configuration_a) == list(table.configuration_b) and len(table) == 2


@pytest.mark.slow
def test_what_is_in_one_only_is_told_with_what_keeps_it_apart(tmp_path: Path) -> None:
    other = replace(TWO, keys=(("fusion_bytes", 1 << 20),))
    a, b = two(tmp_path, [TWO, LARGER, other], [TWO, replace(TWO, batch_per_worker=128)])
    made = report.compare(a, b, 0.01)
    assert len(made.pairing.pairs) == 1
    first, second = report.left_over(made.pairing)
    assert first.startswith("Only in A: 2 ") and second.startswith("Only in B: 1 ")
    with pytest.raises(NothingToCompare, match="1 but for fusion_bytes"):
        report.compare(plant(tmp_path / "c", [other]), plant(tmp_path / "d", [TWO]), 0.01)
    with pytest.raises(NothingToCompare, match="has no finished trial yet"):
        report.compare(a, plant(tmp_path / "e", []), 0.01)


def test_configurations_that_differ_in_their_window_only_are_paired_by_it(tmp_path: Path) -> None:
    """`--small` beside the whole study: the same keys twice, other ids."""

    def same_keys(record: dict[str, Any]) -> None:
        short = record["trial"]["learning_rate"] is not None
        record["trial"]["learning_rate"] = None
        record["window"] = {"min_steps": 5 if short else 50}

    both = [TWO, replace(TWO, keys=(("learning_rate", 0.1),), speed=80.0)]
    made = report.compare(*(changed(plant(tmp_path / name, both), same_keys) for name in "ab"), 0.01)
    assert sorted(made.verdicts.table.ratio.round(1)) == [1.0, 1.0] and made.differences == []


# --- what A measured and B should hold ---


@pytest.mark.slow
def test_what_is_deleted_in_b_though_it_is_planned_is_no_pass(example: Callable[[str], Path], capsys: Capture) -> None:
    a, b = example("a"), example("b")
    for folder in (b / "trials").glob("horovod-resnet18-b64-fp16-*"):
        shutil.rmtree(folder)
    assert compared(a, b, "--markdown", str(b / "comment.md")) == commands.CANNOT_TELL
    said = capsys.readouterr()
    assert "1 of A MISSING in B" in said.out and verdicts.ABSENT in " ".join(said.out.split())
    assert said.err == "not all was tested: 1 of A missing in B\n"
    shown, _, _ = (b / "comment.md").read_text().partition("<details>")
    assert "1 of A MISSING in B" in shown and verdicts.ABSENT in shown
    assert compared(a, b, "--json") == commands.CANNOT_TELL
    (one,) = json.loads(capsys.readouterr().out)["missing"]
    assert one["configuration"].startswith("horovod-resnet18-b64-fp16-") and one["why"] == verdicts.ABSENT
    assert compared(b, a) == commands.NO_REGRESSION, "what is new has nothing to be compared with"
    slowed(b, 0.5, only="resnet8")
    assert compared(a, b) == commands.REGRESSION, "what is known comes first"


HALVES = [replace(TWO, keys=(("precision", kind),)) for kind in ("bf16", "fp16")]
THERE = [replace(one, keys=(*one.keys, ("machine", "other"))) for one in (TWO, *HALVES)]
NEVER = replace(LARGER, status="oom", speed=None)


@pytest.mark.parametrize(
    ("a", "b", "plans", "missing"),
    [
        pytest.param([TWO, LARGER], [TWO], [TWO, LARGER], [verdicts.ABSENT], id="it was planned"),
        pytest.param([TWO, LARGER], [TWO], [TWO], [], id="it was taken out"),
        pytest.param([TWO, LARGER], [TWO], None, [verdicts.UNSAID], id="nothing says what was planned"),
        pytest.param([TWO, NEVER], [TWO], [TWO, NEVER], [], id="it never ran in A"),
        # Ids tell their kind by name, and all other keys by a digest.
        pytest.param([TWO, HALVES[0]], [TWO], [TWO, HALVES[1]], [], id="a sibling was not run"),
        pytest.param([TWO, *HALVES], THERE[:1], THERE[:2], [verdicts.PERHAPS], id="all ids are others"),
        pytest.param([TWO, *HALVES], THERE[:1], THERE[:1], [], id="all ids are others, and no more is planned"),
    ],
)
def test_what_a_measured_is_missing_where_b_plans_it(
    tmp_path: Path, a: list[Planted], b: list[Planted], plans: list[Planted] | None, missing: list[str]
) -> None:
    left, right = two(tmp_path, a, b)
    if plans is None:
        (right / "study.json").write_text(json.dumps({"schema": 1, "study": "planted"}))
    else:
        planned(right, plans)
    assert [one.why for one in report.compare(left, right, 0.01).missing] == missing


@pytest.mark.parametrize(("unreadable", "why"), [(5, verdicts.UNREADABLE), (3, verdicts.FEW), (2, "")])
def test_what_cannot_be_read_in_b_is_no_pass(tmp_path: Path, capsys: Capture, unreadable: int, why: str) -> None:
    """Of five repeats, as long as three are left it can be tested."""
    a, b = two(tmp_path, [TWO, LARGER], [TWO, LARGER])
    for path in sorted((planned(b, [TWO, LARGER]) / "trials").glob("*-b64-*/record.json"))[:unreadable]:
        path.write_text('{"half": ')
    assert compared(a, b) == (commands.CANNOT_TELL if why else commands.NO_REGRESSION)
    said = capsys.readouterr()
    assert f"batch 64 ({why})" in " ".join(said.out.split()) if why else "issing" not in said.out
    assert said.err.count("warning: skipped: ") == unreadable


# --- what differs ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda r: r["machine"].update(gpus=["Tesla T4"] * 2), "machine", "GPUs: none in A, 2 × Tesla T4 in B"),
        (lambda r: r["machine"].update(memory_bytes=64 << 30), "machine", "memory: 8 GiB in A, 64 GiB in B"),
        (lambda r: r["ranks"][0].update(threads=4), "machine", "threads of a rank: 1 in A, 1 and 4 in B"),
        (lambda r: r["environment"].update(NCCL_DEBUG="INFO"), "environment", "NCCL_DEBUG: not set in A, INFO in B"),
        (lambda r: r["ranks"][0]["backend"].update(operations="host"), "backend", "operations: nccl in A, host in B"),
        (lambda r: r["ranks"][0]["versions"].update(nvidia_driver="2"), "driver", "nvidia_driver: 1 in A, 2 in B"),
        (lambda r: r["ranks"][0]["versions"].pop("mpi4py"), "", ""),  # which nothing here uses
        (lambda r: r["ranks"][0]["versions"].pop("numpy"), "versions", "numpy: 2 in A, not installed in B"),
        (lambda r: r["window"].update(min_steps=10), "window", "min_steps: 50 in A, 10 in B"),
        (lambda r: r.update(model_code="3c4d"), "commit", "code of resnet18: 1a2b in A, 3c4d in B"),
        (lambda r: [k.update(data_source="synthetic (no data)") for k in r["ranks"]], "data",
         "data: cifar10 in A, synthetic in B"),
    ],
)  # fmt: skip
def test_every_difference_that_decides_speed_is_named(tmp_path: Path, change: Change, kind: str, text: str) -> None:
    def whole(record: dict[str, Any]) -> None:
        record |= {"window": {"min_steps": 50}, "model_code": "1a2b"}
        record["ranks"][0]["backend"] = {"operations": "nccl"}
        record["ranks"][0]["versions"] = {"python": "3.11", "numpy": "2", "mpi4py": "4", "nvidia_driver": "1"}

    a, b = (changed(folder, whole) for folder in two(tmp_path, [TWO], [TWO]))
    found = report.compare(a, changed(b, change), 0.01).refused
    assert [(one.kind, str(one)) for one in found] == ([(kind, text)] if kind else [])
    assert not kind or (kind in differences.EXPECTABLE and not report.compare(a, b, 0.01, expected=[kind]).refused)


def test_what_one_side_did_not_record_and_names_of_hosts_are_told_and_refuse_nothing(tmp_path: Path) -> None:
    a, b = two(tmp_path, [TWO], [TWO])
    changed(b, lambda record: record.update(commit="abc+changes"))
    changed_ranks(b, lambda rank: rank.update(host="h2"))
    made = report.compare(a, b, 0.01, expected=["comit"])
    assert not made.refused
    said = " ".join(report.sentences(made))
    assert "commit: not recorded in A, abc+changes in B" in said and "host: planted in A, h2 in B" in said
    assert "uncommitted" in said and "comit was expected" in said


def test_several_values_and_some_pairs_are_said(tmp_path: Path) -> None:
    a, b = two(tmp_path, [TWO, LARGER], [TWO, LARGER])
    changed(a, lambda record: record.update(commit="one"))
    changed(b, lambda record: record.update(commit="one"), only="-b32-")
    changed(b, lambda record: record.update(commit=f"c{record['trial']['repeat'] % 2}"), only="-b64-")
    (only,) = report.compare(a, b, 0.01).refused
    assert str(only) == "commit: one in A, c0 and c1 in B (1 of 2 pairs)"


@pytest.mark.slow
@pytest.mark.parametrize("side", ["a", "b"])
def test_what_failed_differs_only_in_what_its_records_say(example: Callable[[str], Path], side: str) -> None:
    folders = {name: example(name) for name in "ab"}
    changed(folders[side], lambda r: r.update(status="oom", reason="oom", ranks=[]), only="resnet18-b64-fp16")
    made = report.compare(folders["a"], folders["b"], 0.01)
    assert made.differences == []
    assert sum(made.verdicts.table.verdict.isin([LOST, FOUND])) == 1
    changed(folders[side], lambda r: r.update(commit="other"), only="resnet18-b64-fp16")
    (only,) = report.compare(folders["a"], folders["b"], 0.01).refused
    assert only.name == "commit" and (only.a if side == "a" else only.b) == "other" and only.pairs == 1


def test_of_what_ran_the_failed_repeats_say_nothing(tmp_path: Path) -> None:
    a, b = (changed(folder, lambda record: record.update(commit="one")) for folder in two(tmp_path, [TWO], [TWO]))

    def failed(record: dict[str, Any]) -> None:
        if record["trial"]["repeat"] == 5:
            record.update(status="failed", ranks=[], commit="two")

    assert report.compare(a, changed(b, failed), 0.01).differences == []


# --- what is said of a pair ---


@pytest.mark.slow
def test_verdicts_are_what_was_planted(tmp_path: Path) -> None:
    quiet = replace(TWO, noise=0.0005)
    cases = [
        (quiet, replace(quiet, speed=150.0), SLOWER),
        (quiet, replace(quiet, speed=170.0), FASTER),
        (quiet, replace(quiet, speed=159.2), SMALL),
        (quiet, quiet, SAME),
        (replace(TWO, noise=0.3), replace(TWO, noise=0.3), UNRESOLVED),
        (TWO, replace(TWO, repeats=2), NO_INTERVAL),
        (TWO, OOM, LOST),
        (replace(TWO, status="failed", speed=None), TWO, FOUND),
        (OOM, OOM, NEITHER),
    ]
    sides = [[replace(case[side], batch_per_worker=32 * (i + 1)) for i, case in enumerate(cases)] for side in (0, 1)]
    table = report.compare(*two(tmp_path, *sides), 0.01).verdicts.table.sort_values("batch")
    assert list(table.verdict) == [case[2] for case in cases]
    tested = table[table.p_value.notna()]
    assert len(tested) == 5 and (tested.p_corrected >= tested.p_value).all()
    assert (tested.ratio_low < tested.ratio).all() and (tested.ratio < tested.ratio_high).all()
    assert tested.ratio.iloc[0] == pytest.approx(150 / 160, rel=0.01)


@pytest.mark.slow
def test_what_failed_parity_or_is_another_model_is_not_compared(tmp_path: Path) -> None:
    a, b = two(tmp_path, [TWO, LARGER], [TWO, LARGER])
    changed_ranks(b, lambda rank: rank.update(parameters=123), only="-b64-")
    table = report.compare(a, b, 0.01).verdicts.table.set_index("batch")
    assert table.verdict[64] == NOT_COMPARABLE and "11,181,642 parameters in A, 123 in B" in table.reason[64]
    for folder in (a, b):
        plant_gates(folder, [TWO], {"horovod": "gradients: summed"})
    assert verdict(report.compare(a, b, 0.01)) == [NOT_COMPARABLE] * 2


def test_what_fails_parity_now_or_no_longer_runs_is_a_regression_however_fast_it_is(tmp_path: Path) -> None:
    a, b = two(tmp_path, [TWO], [replace(TWO, speed=500.0)])
    plant_gates(a, [TWO])
    plant_gates(b, [TWO], {"horovod": "gradients: summed"})
    made = report.compare(a, b, 0.01)
    assert made.regressed and verdict(made) == [BROKEN]
    assert made.verdicts.table.reason[0] == "gradients: summed" and made.verdicts.table.ratio.isna().all()
    assert report.headline(made).endswith("1 now fail parity")
    assert verdict(report.compare(b, a, 0.01)) == [NOT_COMPARABLE]
    lost = report.compare(a, plant(tmp_path / "c", [OOM]), 0.01)
    assert lost.regressed and verdict(lost) == [LOST] and "1 no longer run" in report.to_markdown(lost)


@pytest.mark.slow
@pytest.mark.parametrize("failed", [(2,), (2, 3), (2, 3, 4, 5)])
def test_runs_that_fail_now_are_a_regression_with_their_reason(
    tmp_path: Path, capsys: Capture, failed: tuple[int, ...]
) -> None:
    a, b = two(tmp_path, [TWO], [TWO])
    broken(b, failed, "failed", "rank 1 died")
    assert compared(a, b, "--json") == commands.REGRESSION
    said, good = json.loads(capsys.readouterr().out), 5 - len(failed)
    assert said["headline"].endswith("1 with runs that fail now") and said["regressions"] == 1
    (pair,) = said["pairs"]
    assert (pair["verdict"], pair["reason"]) == (FAILING, f"A: 5 of 5 ok, B: {good} of 5 ok; failed: rank 1 died")
    assert (pair["ratio_low"] is None) == (good < 3), "what can be tested still has its interval"
    assert "| runs fail now (A: 5 of 5 ok" in report.to_markdown(report.compare(a, b, 0.01)).partition("<details>")[0]
    assert compared(b, a) != commands.REGRESSION, "the other way round nothing fails"


@pytest.mark.slow
def test_only_what_did_not_fail_before_fails_now(tmp_path: Path) -> None:
    a, b = two(tmp_path, [TWO], [TWO])
    assert verdict(report.compare(a, broken(b, [1, 2, 3], "cancelled", "interrupted"), 0.01)) == [NO_INTERVAL]
    c, d = two(tmp_path / "flaky", [TWO], [TWO])
    broken(c, [5], "failed", "x")
    assert verdict(report.compare(c, broken(d, [4, 5], "failed", "x"), 0.01)) == [UNRESOLVED]
    assert verdict(report.compare(c, broken(d, [1, 2], "oom", "oom"), 0.01)) == [FAILING], "too few are left"
    (reason,) = report.compare(c, d, 0.01).verdicts.table.reason
    assert reason == "A: 4 of 5 ok, B: 1 of 5 ok; oom and failed: x"
    e, f = two(tmp_path / "slower", [QUIET], [replace(QUIET, speed=80.0)])
    made = report.compare(e, broken(f, [1], "timeout", "no step within 60 s"), 0.01)
    assert verdict(made) == [SLOWER] and "B: 4 of 5 ok; timeout" in made.verdicts.table.reason[0]


@pytest.mark.slow
def test_a_change_that_all_share_may_be_the_machines(tmp_path: Path) -> None:
    planted, about = default_study()
    a, b = two(tmp_path, planted, [replace(one, speed=0.95 * (one.speed or 0)) for one in planted], **about)
    made = report.compare(a, b, 0.01)
    overall = made.verdicts.overall
    assert overall is not None and overall.shared and overall.high < 1 and report.overall(made)
    assert f"all together {100 * (1 - overall.ratio):.1f} % slower" in report.headline(made)
    assert " % faster (95 %: " in report.headline(report.compare(b, a, 0.01))
    assert "all together" not in report.headline(report.compare(a, b, 0.2)), "below the threshold"


def test_what_came_over_a_launch_is_no_change_of_all(tmp_path: Path) -> None:
    """Three launches of a machine that drifts by 6 % are three values, however many configurations shared them."""
    quiet = [replace(QUIET, batch_per_worker=batch) for batch in (16, 32, 64, 128, 256, 512)]
    drifts = (0.06, 0.0, -0.06), (0.11, 0.05, -0.01)
    a, b = two(tmp_path, *([replace(one, repeats=3, drift=drift) for one in quiet] for drift in drifts))
    overall = report.compare(a, b, 0.01).verdicts.overall
    assert overall is not None and overall.ratio == pytest.approx(1.05, abs=0.01) and not overall.shared
    error, half = math.sqrt(2 * 0.06**2 / 3), math.log(overall.high / overall.ratio)
    assert half == pytest.approx(stdtrit(4, 0.975) * error, rel=0.05), "Student's t of three launches a side"


@pytest.mark.slow
def test_a_headline_says_nothing_of_all_where_a_few_are_named_or_nothing_changed(tmp_path: Path) -> None:
    quiet = [replace(QUIET, batch_per_worker=batch) for batch in (16, 32, 64, 128)]
    a, b = two(tmp_path, quiet, [replace(quiet[0], speed=100.0), *quiet[1:]])
    made = report.compare(a, b, 0.01)
    assert made.verdicts.overall is not None and made.verdicts.overall.high < 0.99
    assert report.headline(made) == "1 of 4 configurations slower, 0 faster; 3 unchanged to within the threshold"
    assert "all together" not in report.headline(report.compare(a, a, 0.0))


def test_what_could_have_been_found_is_said(tmp_path: Path) -> None:
    found = {}
    for noise in (0.05, 0.002):
        one = replace(TWO, noise=noise)
        found[noise] = report.compare(*two(tmp_path / str(noise), [one], [one]), 0.01).verdicts.detectable or 0.0
    assert found[0.05] > 0.05 and found[0.002] == 0.01, "never less than the threshold"


@pytest.mark.slow
def test_added_repeats_do_not_narrow_the_spread(tmp_path: Path) -> None:
    many = replace(TWO, repeats=10, noise=0.02)
    pairs = two(tmp_path / "all", [many], [many]), two(tmp_path / "staged", *[[replace(many, planned_repeats=3)]] * 2)
    plain, staged = (report.compare(*pair, 0.01).verdicts.table.iloc[0] for pair in pairs)
    assert plain.ratio == staged.ratio and plain.ratio_high != pytest.approx(staged.ratio_high)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_holm_is_between_the_p_value_and_bonferroni(p_values: list[float]) -> None:
    corrected, p = holm(p_values), np.array(p_values)
    assert (corrected >= p).all() and (corrected <= np.minimum(1, p * len(p)) + 1e-12).all()
    order = np.argsort(p)
    assert np.argsort(p[order], kind="stable").tolist() == np.argsort(corrected[order], kind="stable").tolist()


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


# --- the command line ---


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "{a}"], "nowhere does not exist"),
        (["{a}", "{empty}"], "is not a results folder"),
        (["{a}", "{a}", "--markdown", "{a}/study.json/x.md"], "cannot read or write: "),
        *((["{a}", "{a}", f"--threshold={text}"], f"{text} is no share") for text in ("much", "-1%", "100%", "nan")),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_exit_2(
    tmp_path: Path, capsys: Capture, arguments: list[str], said: str
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"a": str(plant(tmp_path / "a", [TWO])), "empty": str(tmp_path / "empty")}
    assert main(["compare", *(word.format(**places) for word in arguments)]) == commands.COMPARE_REFUSED
    error = capsys.readouterr().err
    assert error.startswith("error: ") and said in error and error.count("\n") == 1


def test_where_nothing_can_be_read_that_is_said(tmp_path: Path, capsys: Capture) -> None:
    a, b = two(tmp_path, [TWO], [TWO])
    for path in (b / "trials").glob("*/record.json"):
        path.write_text('{"half": ')
    assert compared(a, b) == commands.COMPARE_REFUSED
    said = capsys.readouterr().err
    assert f"error: {b} has no trial that can be read (5 cannot)\n" in said and said.count("warning: skipped: ") == 5


def test_a_check_that_could_never_fail_is_no_pass(tmp_path: Path, capsys: Capture) -> None:
    once = replace(TWO, repeats=1)
    assert compared(*two(tmp_path, [once], [replace(once, speed=50.0)])) == commands.CANNOT_TELL
    assert capsys.readouterr().err.startswith("nothing was tested")


@pytest.mark.slow
def test_a_comment_is_never_longer_than_a_comment_may_be(tmp_path: Path) -> None:
    made = report.compare(*two(tmp_path, [TWO], [OOM]), 0.01)
    many = replace(made.verdicts, table=pd.concat([made.verdicts.table] * 3000, ignore_index=True))
    text = report.to_markdown(replace(made, verdicts=many))
    assert len(text) < 65_536 and text.rstrip().endswith("</details>")
    assert text.count(" more rows are left out") == 2


def test_many_differences_are_counted(tmp_path: Path) -> None:
    a, b = two(tmp_path, [TWO], [TWO])
    changed(b, lambda record: record["environment"].update({f"NCCL_{n}": "1" for n in range(50)}))
    changed(a, lambda record: record["environment"].update(NCCL_0="1"))
    made = report.compare(a, b, 0.01)
    assert report.refusal(made).count("\n") < 25 and "and 29 more" in report.refusal(made)
    assert report.different(made)[-1].startswith("29 more")


def test_help_names_the_exit_codes_and_what_can_be_expected(capsys: Capture) -> None:
    assert main(["compare", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "Exit codes: 0 no regression; 1 a regression (slower" in said and "3 not tested: fewer than 3 launches" in said
    )
    assert commands.EXPECTABLE == differences.EXPECTABLE


def test_words_of_others_are_only_words(tmp_path: Path, capsys: Capture) -> None:
    evil = "[red]x[/red] <img src=x> | @someone \x1b[2J ](http://x)"
    a, b = two(tmp_path, [replace(TWO, model=evil)], [replace(OOM, model=evil)], study=evil)
    changed(b, lambda record: record.update(reason=evil))
    assert compared(a, b, "--markdown", str(tmp_path / "c.md")) == commands.REGRESSION
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown and "[red]" in shown
    comment = (tmp_path / "c.md").read_text()
    assert not any(word in comment for word in ("<img", "@someone", "](http", "\x1b"))
    assert all(line.count("|") == 8 for line in comment.splitlines() if line.startswith("|"))
