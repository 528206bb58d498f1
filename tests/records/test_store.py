"""The record on disk: either it is whole, or there is none."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.records import results, store
from scaling_study.records.schema import RankReport, Record, busy_elsewhere_cores
from scaling_study.records.store import UnreadableRecord, read_record, read_study, write_json, write_record
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial

Report = Callable[..., RankReport]


def a_record(**changes: Any) -> Record:
    trial = Trial()
    said: dict[str, Any] = {
        "study": "a", "id": trial.id, "configuration": trial.configuration, "trial": trial,
        "status": "ok", "started_at": "2026-01-31T10:00:00+00:00",
        "launch_seconds": 2.5, "total_seconds": 10.25, "exit_code": 0, "command": "python 'x y.py'",
        "commit": "abc+changes", "machine": {"cores": 2}, "notes": ["one"],
    }  # fmt: skip
    return Record(**{**said, **changes})


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path, rank_report: Report) -> None:
    made = a_record(ranks=[rank_report(), rank_report(rank=1, phases=None, loss_last=None)], error="Zeile\n\u2028 ü")
    write_record(tmp_path, made)
    assert read_record(tmp_path / "record.json") == made
    assert os.listdir(tmp_path) == ["record.json"], "no temporary file is left"


def test_a_byte_that_is_no_utf8_is_written_out(tmp_path: Path) -> None:
    """Of a variable or a path: Python keeps it as half a surrogate pair, which no reader of JSON takes."""
    write_record(tmp_path, a_record(environment={"TORCH_HOME": os.fsdecode(b"/home/ren\xe9")}, error="\\udce9 ü 😀"))
    read = read_record(tmp_path / "record.json")
    assert read.environment == {"TORCH_HOME": "/home/ren\\udce9"} and read.error == "\\udce9 ü 😀"


numbers = st.floats(allow_nan=False, allow_infinity=False)
whole_numbers = st.integers(1 - store.MOST, store.MOST - 1)


@given(
    steps=st.lists(numbers, max_size=20),
    loss=st.none() | numbers,
    error=st.text(st.characters(exclude_categories=["Cs"])),
    backend=st.dictionaries(st.text(max_size=3), st.none() | whole_numbers | st.text(max_size=3), max_size=3),
)
def test_any_numbers_and_words_survive(tmp_path_factory, rank_report, steps, loss, error, backend):
    folder = tmp_path_factory.getbasetemp() / "survive"
    made = a_record(ranks=[rank_report(step_seconds=steps, loss_first=loss, backend=backend)], error=error)
    write_record(folder, made)
    assert read_record(folder / "record.json") == made


def test_a_study_is_read_by_trial_id_and_unfinished_trials_are_passed_over(tmp_path: Path) -> None:
    for id in ("b", "a", "c"):
        write_record(tmp_path / "trials" / id, a_record(id=id))
    (tmp_path / "trials" / "unfinished").mkdir()
    (tmp_path / "trials" / "crashed").mkdir()
    (tmp_path / "trials" / "crashed" / ".record.json.x1y2").write_text("{")
    assert [record.id for record in read_study(tmp_path)] == ["a", "b", "c"]
    assert list(read_study(tmp_path / "absent")) == []


# --- what is not a whole record of ours ---


def whole(rank_report: Report) -> dict[str, Any]:
    return a_record(ranks=[rank_report()]).to_dict()


def unreadable(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(UnreadableRecord) as wrong:
        read_record(path)
    assert str(path) in str(wrong.value)


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"{}", b'{"schema": 1}', b'{"schema": 2}', b"\x00" * 4096, b"\xff\xfe{}", b"[" * 200_000],
)
def test_garbage_is_unreadable_and_the_file_is_named(tmp_path: Path, data: bytes) -> None:
    unreadable(tmp_path / "record.json", data)


def test_a_record_cut_off_anywhere_is_unreadable(tmp_path: Path, rank_report: Report) -> None:
    text = json.dumps(whole(rank_report), indent=1).encode()
    for length in {*range(0, len(text), 37), len(text) - 1}:
        unreadable(tmp_path / "record.json", text[:length])


def test_keys_that_a_later_version_added_are_passed_over(tmp_path: Path, rank_report: Report) -> None:
    record = whole(rank_report)
    (tmp_path / "record.json").write_text(json.dumps({**record, "later": 1}))
    assert read_record(tmp_path / "record.json") == a_record(ranks=[rank_report()])


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda v: st.lists(v, max_size=3)
       | st.dictionaries(st.sampled_from([f.name for f in fields(Record)]), v, max_size=6), max_leaves=10))  # fmt: skip
def test_any_json_is_a_record_or_unreadable(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps({"schema": 1, **value} if isinstance(value, dict) else value))
    try:
        read_record(path)
    except UnreadableRecord as error:
        assert str(path) in str(error)


# --- crashes while writing ---


@pytest.mark.parametrize("name", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "ctrl-c"])
def test_a_failure_while_writing_leaves_neither_a_record_nor_a_temporary_file(tmp_path, monkeypatch, name, error):
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(store.os, name, fail)
    with pytest.raises(type(error)):
        write_record(tmp_path, a_record())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_never_written(tmp_path: Path, number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_record(tmp_path, a_record(total_seconds=number))
    assert os.listdir(tmp_path) == []


def test_a_record_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(store.os, "fsync", lambda handle: (said.append("fsync"), sync(handle))[1])
    monkeypatch.setattr(store.os, "replace", lambda a, b: (said.append("rename"), rename(a, b))[1])
    write_json(tmp_path / "record.json", {})
    assert said == ["fsync", "rename", "fsync"], "the file, its name, the folder"


WRITES_UNTIL_KILLED = """
import sys
from pathlib import Path
from scaling_study.records.schema import Record
from scaling_study.records.store import write_record
from scaling_study.trial import Trial
folder, n = Path(sys.argv[1]), 0
record = Record(study="a", id="", configuration="", trial=Trial(), status="ok", reason="y" * 20000)
while True:
    write_record(folder / str(n % 5), record)  # new records, and records that replace one
    if not n:
        print("writing", flush=True)
    n += 1
"""


def test_a_writer_killed_at_any_moment_leaves_whole_records_or_none(tmp_path: Path) -> None:
    moments, found = random.Random(0), 0
    for turn in range(10):
        folder = tmp_path / str(turn)
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITES_UNTIL_KILLED, str(folder)], stdout=subprocess.PIPE, cwd=CHECKOUT
        )
        assert writer.stdout and writer.stdout.readline() == b"writing\n"
        time.sleep(moments.uniform(0, 0.02))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        for path in folder.glob("*/record.json"):
            assert read_record(path).reason == "y" * 20000
            found += 1
    assert found >= 10


def test_cores_that_others_kept_busy(rank_report: Report) -> None:
    """Two ranks used 10 + 9 s of CPU in a window of 10 s; their host was busy for 24 s: half a core was others'."""
    window = [1.0] * 10
    first = replace(rank_report(), step_seconds=window, own_cpu_seconds=10.0, host_cpu_seconds=24.0)
    second = replace(first, rank=1, own_cpu_seconds=9.0)
    assert busy_elsewhere_cores([first, second]) == pytest.approx(0.5)
    quiet_host = replace(second, host="other", host_cpu_seconds=9.0)
    assert busy_elsewhere_cores([first, quiet_host]) == pytest.approx(1.4)
    one_machine = [replace(rank, boot_id="a") for rank in (first, replace(second, host="other"))]
    assert busy_elsewhere_cores(one_machine) == pytest.approx(0.5), "of two namespaces"
    assert busy_elsewhere_cores([first, replace(second, own_cpu_seconds=None)]) is None
    assert busy_elsewhere_cores([]) is None


# --- summaries, which the driver keeps in memory


def test_a_summary_of_an_ok_record_has_its_throughput(rank_report: Report) -> None:
    ranks = [rank_report(rank=rank, step_seconds=[0.5, 0.25 + rank]) for rank in (0, 1)]
    known = results.summarize(a_record(ranks=ranks))
    assert known.samples_per_second == pytest.approx(128 / 1.75)  # of both, over the slower one's window
    failed = results.summarize(a_record(status="failed", reason="a bug", ranks=[rank_report()]))
    assert (failed.reason, failed.samples_per_second, failed.busy_elsewhere_cores) == ("a bug", None, None)


@pytest.mark.parametrize(
    ("changes", "of_rank"),
    [
        ({"ranks": []}, {}),
        ({"status": "fine"}, {}),
        ({"id": "another"}, {}),
        ({"configuration": "another"}, {}),
        ({"trial": Trial(repeat=2)}, {}),
        ({}, {"step_seconds": [0.0]}),
        ({}, {"step_seconds": [1e308, 1e308]}),
        ({}, {"samples_seen": 0}),
        ({}, {"samples_seen": 2**62, "step_seconds": [5e-324]}),
    ],
)
def test_a_record_that_contradicts_itself_is_not_believed(rank_report, changes, of_rank):
    with pytest.raises(UnreadableRecord):
        results.summarize(a_record(**{"ranks": [replace(rank_report(), **of_rank)], **changes}))


# --- whatever lies where JSON should: a value, or one sentence with the file's name


def refused(path: Path) -> str:
    with pytest.raises(UnreadableRecord) as wrong:
        store.load(path)
    assert str(path) in str(wrong.value)
    return str(wrong.value)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 30, "-" + "9" * 4000])
def test_what_is_no_number_or_too_large_is_refused(tmp_path: Path, word: str) -> None:
    (tmp_path / "a.json").write_text(f'{{"a": [{word}]}}')
    assert "number" in refused(tmp_path / "a.json")


def test_a_link_is_not_followed_wherever_it_leads(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    for target in ("other.json", "nowhere", "/dev/zero", "."):
        link = tmp_path / "a.json"
        link.symlink_to(target)
        assert refused(link).endswith("it is a link")
        link.unlink()


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    assert "it is no file" in refused(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    refused(tmp_path / "folder.json")


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_at_all(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.json"
    path.write_bytes(data)
    try:
        value = store.load(path)
    except UnreadableRecord as error:
        assert str(path) in str(error)
    else:
        json.dumps(value, allow_nan=False)
