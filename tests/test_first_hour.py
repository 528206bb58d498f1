"""`python -m benchmarks gpu`: its steps on a CPU at toy size, really run; its time, its order, and what it keeps."""

from __future__ import annotations

import csv
import time

import pytest

from benchmarks import gpu
from benchmarks.__main__ import main
from benchmarks.gpu import Step
from scaling_study.commands.options import trial_keys
from scaling_study.machine import Machine
from scaling_study.records import store
from scaling_study.study import plan, study


@pytest.mark.long
@pytest.mark.usefixtures("forked_starts")
def test_all_steps_run_on_a_cpu(tmp_path, capfd):
    # test_launches.py runs the doctor, and test_benchmarks.py rounds.
    code = main(["gpu", "--out", str(tmp_path), "--device", "cpu", "--skip", "doctor", "--skip", "rounds"])
    printed = capfd.readouterr().out
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert code == 0, printed
    assert "at toy size" in page and "doctor" not in page
    assert all(model in page for model in ("resnet8_groupnorm", "gpt2_tiny", "vit_small_dataset_tiny"))
    records = list(tmp_path.glob("one-gpu/trials/*/record.json"))
    assert {store.load(path)["status"] for path in records} == {"ok"} and len(records) == 3
    assert (tmp_path / "one-gpu" / "report.html").exists()


@pytest.mark.slow
def test_what_there_is_no_time_for_is_named_and_the_next_run_goes_on_where_it_was(tmp_path, monkeypatch, capfd):
    """A study gets an hour or is not begun; the checks, which have two minutes at the most, are."""
    monkeypatch.setattr(gpu, "LEAST_SECONDS", 3600.0)
    argv = ["--out", str(tmp_path), "--device", "cpu", "--minutes"]
    code, page = gpu.main([*argv, "3"]), (tmp_path / "README.md").read_text(encoding="utf-8")
    assert code == 0, page + capfd.readouterr().out
    assert "checks: passed" in page and "study-1: not run" in page and "doctor: not run: no time was left" in page
    passed = (tmp_path / "checks.json").stat().st_mtime_ns
    assert gpu.main([*argv, "0.01"]) == 0 and (tmp_path / "checks.json").stat().st_mtime_ns == passed
    assert "checks: passed before" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_a_step_that_takes_too_long_is_ended_and_what_it_said_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "STOP_SECONDS", 0.3)
    deaf = (
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('begun', flush=True); time.sleep(60)"
    )
    began = time.monotonic()
    assert gpu.run(Step("deaf", ("-c", deaf), 1.0), tmp_path, began + 5.0).startswith("stopped: 1 s were over")
    assert time.monotonic() - began < 10
    assert (tmp_path / "deaf.txt").read_text() == "begun\n" and not (tmp_path / "deaf.json").exists()
    quick = Step("quick", ("-c", "print('done')"))
    assert gpu.run(quick, tmp_path, time.monotonic() + 1).startswith("not run")
    assert gpu.run(quick, tmp_path, time.monotonic() + 60) == "passed"
    assert gpu.run(quick, tmp_path, time.monotonic() + 60) == "passed before"
    assert gpu.run(Step("bad", ("-c", "raise SystemExit(3)")), tmp_path, time.monotonic() + 60) == "failed: exit code 3"


def test_every_part_of_the_study_has_trials_and_the_first_have_eager_beside_compiled():
    planned = [
        each.trial
        for each in plan.make(study.load(gpu.STUDY), Machine(16, "Xeon", 128 << 30, ("NVIDIA H200",), {})).trials()
    ]
    for where in (*gpu.PARTS["cuda"], *gpu.LAST):
        keys = trial_keys(where)
        ours = [trial for trial in planned if all(getattr(trial, key) == value for key, value in keys.items())]
        assert ours, where
        if where in gpu.PARTS["cuda"]:
            assert {trial.compile for trial in ours} == {True, False}, where
    models = [trial_keys(where)["model"] for where in gpu.PARTS["cuda"]]
    assert tuple(dict.fromkeys(models)) == tuple(model for model, *_ in gpu.TARGETS)


@pytest.mark.parametrize(
    ("tokens", "low", "high", "verdict"),
    [(410_000.0, 396.0, 404.8, "met"), (380_000.0, 366.0, 376.0, "missed"), (400_500.0, 385.0, 397.2, "not resolved")],
)
def test_a_target_is_met_by_the_whole_interval(tmp_path, tokens, low, high, verdict):
    rows = [
        {"model": "gpt2", "samples_per_second": tokens / 1024, "tokens_per_second": tokens, "interval_low": low,
         "interval_high": high, "series": "single, compiled", "batch_per_worker": 32},
        {"model": "gpt2", "samples_per_second": 160.0, "tokens_per_second": 163_840.0, "interval_low": "",
         "interval_high": "", "series": "single", "batch_per_worker": 32},
    ]  # fmt: skip
    with (tmp_path / "configurations.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    said, *others = gpu.targets(tmp_path / "configurations.csv")
    assert said.endswith(f"single, compiled, batch 32 | {verdict} |") and f"{tokens:,.0f} tokens/s" in said
    assert all(line.endswith("not measured | | | open |") for line in others)
