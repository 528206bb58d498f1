"""Folders and records that earlier programs left are still understood: nothing is measured twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forked
import pytest
from planted_sweeps import Seen, run

from analysis import outputs
from scaling_study.records import store
from scaling_study.study import plan, study
from tests.net.folders import MACHINE, unpacked


def records_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Trial -> its record.json and the time at which that was written."""
    paths = folder.glob("trials/*/record.json")
    return {path.parent.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def resumed(folder: Path) -> tuple[Seen, set[str], dict[str, tuple[bytes, int]]]:
    """Run what is left of the study. (What a display was told, ids of all planned trials, records of before)."""
    before = records_of(folder)
    made = plan.make(study.load(folder / "study.yaml"), MACHINE)
    with forked.starts():
        seen, _ = run(made, folder)
    after = records_of(folder)
    planned = {planned.trial.id for planned in made.trials()}
    assert after.keys() == planned
    assert {name: after[name] for name in before} == before
    assert {store.read_trial(folder / "trials" / name).status for name in planned} == {"ok"}
    return seen, planned, before


@pytest.mark.slow
def test_a_study_that_was_killed_between_separate_launches_resumes(tmp_path: Path) -> None:
    folder = unpacked("separate", tmp_path)
    (unfinished,) = (path.name for path in folder.glob("trials/*") if not is_finished(path))
    assert ranks_of(folder / "trials" / unfinished)
    seen, planned, before = resumed(folder)
    assert len(planned) == 4 and len(before) == 2
    assert set(seen.kept) == before.keys()
    assert set(seen.started) == planned - before.keys() and unfinished in seen.started


@pytest.mark.slow
def test_a_study_that_was_killed_in_a_shared_launch_resumes_and_keeps_the_blocks_of_that_launch(tmp_path: Path) -> None:
    folder = unpacked("shared", tmp_path)
    begun = {path.stem for path in folder.glob("launches/2/begun/*.json")}
    reports = {name: ranks_of(folder / "trials" / name) for name in begun}
    seen, planned, before = resumed(folder)
    assert (len(planned), len(before), len(begun)) == (11, 5, 3)
    assert set(seen.kept) == before.keys() | begun, "two gates, the first launch, and the second as it was"
    assert set(seen.started) == planned - before.keys() - begun
    for name in begun:
        record = json.loads((folder / "trials" / name / "record.json").read_text())
        assert record["launch"].startswith("2/")
        for rank, report in zip(record["ranks"], reports[name], strict=True):
            assert rank["step_seconds"] == report["step_seconds"][: len(rank["step_seconds"])]
            assert 2 <= len(rank["blocks"]) <= len(report["blocks"]) < 30


def is_finished(trial: Path) -> bool:
    return (trial / "record.json").exists()


def ranks_of(trial: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(trial.glob("ranks/rank-*.json"))]


def test_every_older_record_is_read(tmp_path: Path) -> None:
    """What their rows say is in the net (test_net.py)."""
    folder = unpacked("older", tmp_path)
    assert len(list(store.read_study(folder))) == len(list(folder.glob("trials/*"))) == 15


def test_every_older_study_json_is_read(tmp_path: Path) -> None:
    folders = sorted(unpacked("studies", tmp_path).iterdir())
    assert len(folders) == 5
    for folder in folders:
        (folder / "trials").mkdir()
        said = json.loads((folder / "study.json").read_text())
        read, _ = outputs.read_folder(folder)
        assert (read.study.name, read.study.scaling) == (said["study"], said["scaling"])
        assert list(read.study.configurations or ()) == said.get("configurations", [])
