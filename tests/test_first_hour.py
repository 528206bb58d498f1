"""`python -m benchmarks gpu`: its steps on a CPU at toy size, really run; what it keeps and names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu
from benchmarks.__main__ import main
from scaling_study.records import store


@pytest.mark.long
@pytest.mark.usefixtures("forked_starts")
def test_all_steps_run_on_a_cpu(tmp_path, capfd):
    # test_launches.py runs the doctor, and test_benchmarks.py rounds.
    code = main(["gpu", "--out", str(tmp_path), "--device", "cpu", "--skip", "doctor", "--skip", "rounds"])
    printed = capfd.readouterr().out
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert code == 0, printed
    assert "at toy size" in page and "doctor: not run" in page
    assert all(model in page for model in ("resnet8_groupnorm", "gpt2_tiny", "vit_small_dataset_tiny"))
    records = list(tmp_path.glob("one-gpu/trials/*/record.json"))
    assert {store.load(path)["status"] for path in records} == {"ok"} and len(records) == 6, "three gates among them"
    assert (tmp_path / "one-gpu" / "report.html").exists()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_rounds_are_held_against_launches_of_their_own(device, tmp_path, monkeypatch):
    steps: dict[str, list[str]] = {}

    def planted(name: str, folder: Path, argv: Sequence[str]) -> int:
        steps[name] = list(argv)
        return int(name == "rounds")

    monkeypatch.setattr(gpu, "step", planted)
    monkeypatch.setattr(gpu, "study", lambda folder, device, seconds: 0)
    monkeypatch.setattr(gpu, "this_machine", lambda: SimpleNamespace(gpus=("an NVIDIA",)))
    assert main(["gpu", "--out", str(tmp_path), "--device", device, "--pairs", "5"]) == 1, "a step has failed"
    assert list(steps) == list(gpu.STEPS)
    assert steps["rounds"][2:] == [
        "benchmarks", "warm", "--pairs", "5", "--results", str(tmp_path / "rounds"),
        *(["--quick"] if device == "cpu" else []),
    ]  # fmt: skip


def test_a_step_that_has_passed_is_not_run_again_and_one_that_failed_is(tmp_path, capsys):
    """It fails the first time, passes the second, and would fail the third."""
    ran = str(tmp_path / "ran")
    program = f"import os; n = os.path.exists({ran!r}) and len(open({ran!r}).read()); open({ran!r}, 'a').write('x')"
    argv = [sys.executable, "-c", f"{program}; raise SystemExit(0 if n == 1 else 3)"]
    assert [gpu.step("checks", tmp_path, argv) for _ in range(3)] == [3, 0, 0]
    assert "checks: passed before" in capsys.readouterr().out


def test_what_fails_is_named_on_the_page(tmp_path):
    (tmp_path / "doctor.txt").write_text("a machine\nworks     single: python\nfails     horovod: mpirun  why\n1 works")
    (tmp_path / "checks.txt").write_text("FAILED tests/gpu/test_on_a_gpu.py::test_energy - AssertionError\n1 failed")
    (tmp_path / "one-gpu").mkdir()
    (tmp_path / "one-gpu" / "results.csv").write_text("trial,status\nsingle-gpt2.r1,oom\nsingle-gpt2.r2,ok\n")
    (tmp_path / "rounds.txt").write_text("repeat 1: done\nwarm: the study warm failed\n")
    page = gpu.page(tmp_path, "cuda")
    assert "    single-gpt2.r1: oom" in page and "gpt2.r2" not in page
    assert "    rounds: warm: the study warm failed" in page
    assert "    fails     horovod: mpirun  why" in page and "    FAILED tests/gpu" in page
    assert "toy size" not in page and "- doctor: 1 works" in page
