"""`python -m benchmarks gpu`: its steps on a CPU at toy size, really run; what it keeps and names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.__main__ import main
from scaling_study.machine import this_machine
from scaling_study.records import store


@pytest.mark.slow
def test_all_steps_run_on_a_cpu(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ["gpu", "--out", str(tmp_path), "--device", "cpu", "--skip-doctor"]  # test_launches.py runs the doctor
    code = main(asked)
    printed = capfd.readouterr().out
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert code == 0, printed
    assert "at toy size" in page and "doctor: not run" in page and "gpt2_tiny" in page
    records = list(tmp_path.glob("one-gpu/trials/*/record.json"))
    assert {store.load(path)["status"] for path in records} == {"ok"} and len(records) >= 4, "with gates"
    assert (tmp_path / "one-gpu" / "report.html").exists()


def test_a_step_that_has_ended_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'x'); raise SystemExit(3)"]
    assert gpu.step("checks", tmp_path, argv) == 3 and gpu.step("checks", tmp_path, argv) == 3
    assert "checks: done before" in capsys.readouterr().out
    assert "FileExistsError" not in (tmp_path / "checks.txt").read_text()


def test_what_fails_is_named_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "doctor.txt").write_text("a machine\nworks     single: python\nfails     horovod: mpirun  why\n1 works")
    (tmp_path / "checks.txt").write_text("FAILED tests/gpu/test_on_a_gpu.py::test_energy - AssertionError\n1 failed")
    page = gpu.page(tmp_path, "cuda")
    assert "    fails     horovod: mpirun  why" in page and "    FAILED tests/gpu" in page
    assert "toy size" not in page and "- doctor: 1 works" in page


@pytest.mark.skipif(bool(this_machine().gpus), reason="this machine has a GPU")
def test_without_a_gpu_it_says_how_to_try_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["gpu", "--out", str(tmp_path)])
    assert "this machine has no GPU: --device cpu runs the same steps at toy size" in capsys.readouterr().err
