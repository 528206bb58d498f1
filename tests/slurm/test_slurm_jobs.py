"""Jobs on disk: written before sbatch, read again by whoever comes later, and never believed when broken."""

from __future__ import annotations

import dataclasses
import json

import pytest

from scaling_study.errors import HostError
from scaling_study.records import store
from scaling_study.records.store import Record, UnreadableRecord
from scaling_study.slurm import jobs
from scaling_study.slurm.jobs import Job
from scaling_study.trial import Trial

JOB = Job("tiny.0a1b2c3d", "sweep-1", "2026-11-22T02:00:00+00:00", id="41")


def test_written_and_read_again(tmp_path):
    path = jobs.prepare(tmp_path, JOB, "#!/bin/bash\n")
    assert path.read_text() == "#!/bin/bash\n" and path.stat().st_mode & 0o100
    assert jobs.all_jobs(tmp_path) == [JOB] == list(jobs.uncollected(tmp_path))
    jobs.write(tmp_path, dataclasses.replace(JOB, collected_at="2026-11-22T03:00:00+00:00"))
    assert list(jobs.uncollected(tmp_path)) == []


def test_what_an_earlier_job_of_the_trial_left_is_not_taken_for_the_next_ones(tmp_path):
    path = jobs.prepare(tmp_path, JOB, "first")
    path.with_name("exit.json").write_text("{}")
    assert not jobs.prepare(tmp_path, JOB, "second").with_name("exit.json").exists()


def test_sweeps_are_numbered(tmp_path):
    assert jobs.next_sweep(tmp_path) == "sweep-1"
    jobs.prepare(tmp_path, JOB, "")
    assert jobs.next_sweep(tmp_path) == "sweep-2"
    (tmp_path / "slurm" / "sweep-1").rename(tmp_path / "slurm" / "sweep-2")
    assert jobs.next_sweep(tmp_path) == "sweep-1"


@pytest.mark.parametrize(
    "changes", [{"id": 41}, {"folder": "sweep-2"}, {"trial": "../../elsewhere"}, {"extra": 1}, {"measure": []}]
)
def test_what_is_no_job_of_ours_is_refused(tmp_path, changes):
    path = jobs.prepare(tmp_path, JOB, "").with_name("job.json")
    path.write_text(json.dumps({**dataclasses.asdict(JOB), **changes}))
    with pytest.raises(UnreadableRecord, match=r"job\.json is not whole"):
        jobs.read(path)


def test_a_broken_job_json_is_one_clear_line(tmp_path):
    path = jobs.prepare(tmp_path, JOB, "").with_name("job.json")
    path.write_text("{")
    with pytest.raises(HostError, match=r"job\.json cannot be read.*; move its folder away"):
        jobs.all_jobs(tmp_path)


def test_a_trial_that_was_begun_is_a_whole_record_or_none(tmp_path):
    assert jobs.begun_record(tmp_path) is None
    (tmp_path / "begun.json").write_text('{"schema": 1, "status": "cancelled"}')
    assert jobs.begun_record(tmp_path) is None
    whole = Record("tiny", "x.r1", "x", Trial(), "cancelled", job={"job": "41"})
    (tmp_path / "begun.json").write_bytes(store.encoded(whole.to_dict()))
    assert jobs.begun_record(tmp_path) == whole
