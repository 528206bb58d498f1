"""What a command does once: a plan is made once, and tables are written and printed from one read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from scaling_study import cli, datasets
from scaling_study.study import combinations, plan

STUDY = """
study: tiny
baseline: {framework: single}
sweeps:
  - {framework: single, matrix: {model: [resnet8], batch_per_worker: [4, 8]}}
  - {framework: single, model: resnet8, data: synthetic}
"""


@pytest.mark.parametrize("words", [["--dry-run"], ["--where", "batch_per_worker=9"]], ids=["dry run", "sweep"])
def test_a_command_makes_its_plan_once(tmp_path, monkeypatch, capsys, words):
    calls: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            calls[name] += 1
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    counted(combinations, "combinations")  # once a sweep of the study
    counted(plan, "draft")
    counted(plan, "_gates")
    (tmp_path / "tiny.yaml").write_text(STUDY)
    monkeypatch.setattr(datasets, "prepare", lambda names: {name: datasets.Data(name, "here") for name in names})
    cli.run_sweep([str(tmp_path / "tiny.yaml"), *words])
    capsys.readouterr()
    assert calls == {"combinations": 2, "draft": 1, "_gates": 1}


def test_nothing_is_downloaded_for_a_study_whose_baseline_matches_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.yaml").write_text(STUDY.replace("{framework: single}\nsweeps", "{framework: horovod}\nsweeps"))
    monkeypatch.setattr(datasets, "prepare", lambda names: pytest.fail("data was prepared"))
    assert cli.run_sweep([str(tmp_path / "tiny.yaml")]) == 2
    assert "baseline framework=horovod matches no trial" in capsys.readouterr().err
