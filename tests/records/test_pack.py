"""A study as one file: what is in it, what comes back, what is refused, and which names it carries."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import zipfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaling_study import cli
from scaling_study.records import maps, pack, store
from scaling_study.records.manifest import Manifest
from scaling_study.records.pack import PackError
from scaling_study.records.schema import RankReport, Record
from scaling_study.trial import Trial

Report = Callable[..., RankReport]


@pytest.fixture
def results(tmp_path: Path, rank_report: Report) -> Path:
    """Three trials, one with maps and one a gate, and what a sweep and an analysis leave beside them."""
    folder = tmp_path / "trials" / "tiny"
    Manifest(schema_version=1, study="tiny").write(folder)
    (folder / "study.yaml").write_text("study: tiny  # by alice@h1\nhosts: [h1:1, h2:1]\n")
    for name in ("results.csv", "report.md", ".driver", "tables/next.csv"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("process 1 since then\n")
    for repeat in (1, 2, 3):
        trial = Trial(repeat=repeat)
        ranks = [rank_report(rank=rank, host=f"h{rank + 1}") for rank in (0, 1)]
        write(
            folder,
            trial,
            hosts=["h1:1", "h2:1"],
            ranks=ranks,
            error="alice@h2: /home/alice/x.py fell",
            environment={"NCCL_SOCKET_IFNAME": "eth0", "OMP_PROC_BIND": "close", "HOROVOD_WIRE": "fp32"},
            command="OMP_PROC_BIND=close mpirun --if eth0 -H h1,h2 /home/alice/run --allreduce fp32",
        )
    first = folder / "trials" / Trial(repeat=1).id
    (first / "log.txt").write_text("h1")
    (first / "checkpoints").mkdir()
    (first / "checkpoints" / "1.pt").write_bytes(bytes(10))
    maps.write(first, {"step": 3, "source": "/home/alice/frames"}, [range(len(maps.COLUMNS))], {"a": np.zeros(3)})
    store.write_json(folder / "trials" / Trial(repeat=2).id / "parity.json", {"verdict": "passed", "checks": []})
    unfinished = folder / "trials" / Trial(repeat=4).id
    unfinished.mkdir()
    (unfinished / "trial.json").write_text("{}")
    return folder


def write(folder: Path, trial: Trial, **facts: Any) -> Path:
    """A finished trial as the sweep leaves it; its folder."""
    window, place = asdict(trial.window), folder / "trials" / trial.id
    record = Record(folder.name, trial.id, trial.configuration, trial, "ok", **facts)
    store.write_record(place, record)
    store.write_json(place / "trial.json", {**trial.to_dict(), "window": window})
    (place / "command.txt").write_text(record.command + "\n")
    return place


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def zipped(file: Path, content: dict[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return file


# --- what is in it, and what comes back ---


def test_records_maps_and_the_study_are_the_same_bytes_after_a_round_trip(results: Path, tmp_path: Path) -> None:
    packed = pack.pack(results)
    assert (packed.file, packed.trials) == (results.with_name("tiny.study.zip"), 3)
    back = files(pack.unpack(packed.file, tmp_path / "back"))
    assert back == {name: content for name, content in files(results).items() if name in back}
    first, second = (Trial(repeat=repeat).id for repeat in (1, 2))
    expected = {"study.json", "study.yaml", f"trials/{second}/parity.json"}
    expected |= {f"trials/{Trial(repeat=repeat).id}/record.json" for repeat in (1, 2, 3)}
    assert set(back) == expected | {f"trials/{first}/maps/{name}" for name in ("maps.json", "scores.csv", "panels.npz")}
    assert list(store.read_study(tmp_path / "back")) == list(store.read_study(results))


def test_the_same_results_are_the_same_bytes_whenever_and_from_wherever(results: Path, tmp_path: Path) -> None:
    before = pack.pack(results).file.read_bytes()
    for path in results.rglob("*"):
        os.utime(path, (1, 1))
    assert pack.pack(results).file.read_bytes() == before
    elsewhere = pack.unpack(results.with_name("tiny.study.zip"), tmp_path / "else where")
    assert pack.pack(elsewhere).file.read_bytes() == before
    with zipfile.ZipFile(results.with_name("tiny.study.zip")) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"null", b"\xff\xfe\x00", b'{"a": 1, "a": 2}', b'{"x": NaN}', b'{"id": "TRIAL", "schema": 1}'],
)
def test_a_record_of_whatever_bytes_comes_back_as_it_was(results: Path, tmp_path: Path, raw: bytes) -> None:
    place = results / "trials" / Trial(repeat=3).id
    raw = raw.replace(b"TRIAL", place.name.encode())
    (place / "record.json").write_bytes(raw)
    back = pack.unpack(pack.pack(results).file, tmp_path / "back")
    assert (back / "trials" / place.name / "record.json").read_bytes() == raw


def test_what_is_left_out_is_counted_by_kind(results: Path) -> None:
    packed = pack.pack(results)
    each = dict.fromkeys((".driver", "report.md", "results.csv", "tables/", "trials that are not finished"), 1)
    of_trials = {"trials/*/log.txt": 1, "trials/*/checkpoints/": 1, "trials/*/command.txt": 3, "trials/*/trial.json": 3}
    assert packed.left_out == each | of_trials
    assert packed.left_out_bytes["trials/*/checkpoints/"] == 10


def test_links_are_neither_followed_nor_carried(results: Path, tmp_path: Path) -> None:
    shutil.move(results / "trials" / Trial(repeat=3).id, tmp_path / "elsewhere")
    (results / "trials" / Trial(repeat=3).id).symlink_to(tmp_path / "elsewhere")
    record = results / "trials" / Trial(repeat=2).id / "record.json"
    record.rename(tmp_path / "record.json")
    record.symlink_to(tmp_path / "record.json")
    packed = pack.pack(results)
    assert packed.trials == 1 and packed.left_out["trials/"] == 1


# --- refusals ---


def test_a_folder_that_a_sweep_holds_is_not_packed(results: Path) -> None:
    with (results / ".driver").open("a+") as driver:
        fcntl.flock(driver, fcntl.LOCK_EX)
        with pytest.raises(PackError, match=r"in use by a sweep \(process 1 since then\)"):
            pack.pack(results)
    assert pack.pack(results).file.exists()


@pytest.mark.parametrize("name", ["study.json", "study.yaml", "trials"])
def test_nothing_is_unpacked_onto_what_exists(results: Path, tmp_path: Path, name: str) -> None:
    file = pack.pack(results).file
    back = tmp_path / "back"
    back.mkdir()
    (back / name).symlink_to("nowhere")
    with pytest.raises(PackError, match=f"{name} exists"):
        pack.unpack(file, back)
    (back / name).unlink()
    (back / "report.md").write_text("kept")
    assert pack.unpack(file, back) == back and (back / "report.md").read_text() == "kept"


def link(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


RECORDS = b'{"id":"a"}\n'
WRONG: dict[str, tuple[dict[str | zipfile.ZipInfo, bytes], str]] = {
    "absolute": ({"/trials/a/parity.json": b""}, "is absolute"),
    "above": ({"trials/../../parity.json": b""}, "contains '..'"),
    "a link": ({link("trials/a/parity.json"): b"/etc/passwd"}, "a link"),
    "unknown": ({"trials/a/run.sh": b""}, "none of a packed study"),
    "a record": ({"trials/b/record.json": RECORDS}, "none of a packed study"),
    "no trial": ({"records.jsonl": b'{"id":"../a"}\n'}, "a line of no trial"),
    "a number": ({"records.jsonl": b"3\n"}, "a line that is no record"),
    "no JSON": ({"records.jsonl": b"{\n"}, "cannot be unpacked"),
    "twice": ({"records.jsonl": RECORDS * 2}, "two records of one trial"),
    "large": ({"trials/a/parity.json": bytes(200_000)}, "expands to more than 100,000 bytes"),
    "many records": ({"records.jsonl": b"".join(b'{"id":"%d"}\n' % n for n in range(30))}, "more than 100,000"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_is_not_safe_is_refused_and_nothing_is_written(tmp_path, monkeypatch, what):
    monkeypatch.setattr(pack, "MOST_BYTES", 100_000)
    content, said = WRONG[what]
    whole: dict[str | zipfile.ZipInfo, bytes] = {"study.json": b"{}", "records.jsonl": RECORDS, **content}
    file = zipped(tmp_path / "a.study.zip", whole)
    with pytest.raises(PackError, match=said):
        pack.unpack(file)
    assert os.listdir(tmp_path) == ["a.study.zip"]


def test_other_files_and_damaged_ones_are_refused(results: Path, tmp_path: Path) -> None:
    whole = pack.pack(results).file.read_bytes()
    damaged = tmp_path / "a.study.zip"
    at = whole.index(b"records.jsonl") + 200
    for content in (b"", b"PK", whole[:-30], whole[:at] + bytes(50) + whole[at + 50 :]):
        damaged.write_bytes(content)
        with pytest.raises(PackError, match="cannot be unpacked"):
            pack.unpack(damaged)
    for missing in ("study.json", "records.jsonl"):
        zipped(damaged, {name: b"{}" for name in {"study.json", "records.jsonl"} - {missing}})
        with pytest.raises(PackError, match=f"it has no {missing}"):
            pack.unpack(damaged)


# --- names ---


def test_anonymous_replaces_them_by_the_same_words_everywhere(results: Path, tmp_path: Path) -> None:
    place = results / "trials" / Trial(repeat=3).id
    (place / "record.json").write_bytes((place / "record.json").read_bytes()[:-9])  # cut short: a text
    file = pack.pack(results, anonymous=True).file
    assert pack.pack(results, tmp_path / "again.zip", anonymous=True).file.read_bytes() == file.read_bytes()
    back = pack.unpack(file, tmp_path / "back")
    assert not [name for name, text in files(back).items() if any(word in text for word in (b"alice", b"h2", b"eth0"))]
    assert (back / "study.yaml").read_text() == "study: tiny  # by user1@host1\nhosts: [host1:1, host2:1]\n"
    record = store.read_trial(back / "trials" / Trial(repeat=1).id)
    assert (record.hosts, [rank.host for rank in record.ranks]) == (["host1:1", "host2:1"], ["host1", "host2"])
    assert record.environment == {"NCCL_SOCKET_IFNAME": "value2", "OMP_PROC_BIND": "value1", "HOROVOD_WIRE": "value3"}
    said = "OMP_PROC_BIND=value1 mpirun --if value2 -H host1,host2 /home/user1/run --allreduce fp32"
    assert (record.command, record.error) == (said, "user1@host2: /home/user1/x.py fell")
    before = store.read_trial(results / "trials" / Trial(repeat=1).id)
    facts = {"hosts": record.hosts, "environment": record.environment, "command": said, "error": record.error}
    assert record == replace(before, ranks=record.ranks, **facts), "nothing else is touched"


# --- the commands ---


def test_pack_says_what_it_leaves_out_and_carries(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pack", str(results)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{results}.study.zip: 3 trials, 0.0")
    for line in (
        "left out: trials/*/checkpoints/ (1 file, 0.00 MB)",
        "carried: user names: alice",
        "carried: host names: h1, h2",
        "carried: environment values: HOROVOD_WIRE=fp32, ",
    ):
        assert line in said
    assert cli.analysis(["pack", str(results), "--out", f"{results}.other", "--anonymous"]) == 0
    assert "replaced: host names: h1, h2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "folder"), [("a/X.study.zip", "a/X"), ("X.zip", "X.unpacked"), ("X", "X.unpacked"), (".study.zip", None)]
)
def test_where_a_file_is_unpacked_to(file: str, folder: str | None) -> None:
    assert str(pack.folder_of(Path(file))) == (folder or ".study.unpacked")
    assert pack.file_of(Path("a/X")) == Path("a/X.study.zip")
