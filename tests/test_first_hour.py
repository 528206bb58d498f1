"""`python -m benchmarks gpu`: its steps on a CPU at toy size, really run; what it keeps and names."""

from __future__ import annotations

import pytest

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
