"""Texts that others published: found, downloaded, kept once numbered, and never replaced where they are damaged."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scaling_study import datasets
from scaling_study.datasets import NoData
from scaling_study.workloads import cola, wikitext2

pytest.importorskip("tokenizers")


@dataclass(frozen=True)
class Text:
    """A published text, in a world where it is a few words long."""

    module: Any
    layouts: tuple[str, ...]  # the places of its file below DATA_ROOT
    text: str
    sizes: dict[str, int]  # of the module, in that world
    pack: Callable[[], Path]
    read: Callable[[], list[int]]
    damaged: dict[str, str]  # a text that is another -> the fact that its error names
    members: tuple[str, ...]  # of the published archive


TEXTS = {
    "CoLA": Text(
        cola,
        datasets.COLA_FILES,
        "gj04\t1\t\tA cat sat.\ngj04\t0\t*\tCat a \"isn't.\n",
        {"SAMPLES": 2},
        datasets.packed_cola,
        lambda: cola.sentences().labels.tolist(),
        {
            "gj04\t1\t\tA cat sat.\n": "1 sentences, not 2",
            "gj04\t1\t\tA.\ngj04\t2\t\tTwo.\n": "line 2 is not: source, 0 or 1, mark, sentence",
            "gj04\t1\t\tA.\ngj04\t1\t\n": "line 2 is not",
            "\xff": "not UTF-8",
        },
        (cola.MEMBER, *cola.DEVELOPMENT),
    ),
    "WikiText-2": Text(
        wikitext2,
        datasets.WIKITEXT2_FILES,
        " \n = The <unk> = \n the cat . \n",
        {"TOKENS": 7, "VOCABULARY": 5},
        datasets.packed_wikitext2,
        lambda: wikitext2.tokens().tolist(),
        {" \n = The <unk> = \n the the . \n": "7 words, 4 of them different, not 7 and 5", "\xff": "0 words"},
        (wikitext2.MEMBER, *wikitext2.HELD_OUT),
    ),
}
NUMBERED = {"CoLA": [1, 0], "WikiText-2": [1, 2, 0, 1, 2, 4, 3]}


@pytest.fixture(params=TEXTS)
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty data root and an empty cache, from which no network can be reached."""
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    monkeypatch.setattr(datasets, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(cola, "_pretrained", lambda: None)
    text = TEXTS[request.param]
    monkeypatch.setattr(text.module, "ARCHIVE", "http://127.0.0.1:9/archive.zip")
    for key, size in text.sizes.items():
        monkeypatch.setattr(text.module, key, size)
    return str(request.param)


def put(root: Path, layout: str, text: str) -> Path:
    path = root / layout
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("latin-1"))
    return path


def test_every_layout_is_found(name: str, tmp_path: Path) -> None:
    text = TEXTS[name]
    for layout in text.layouts:
        path = put(tmp_path, layout, text.text)
        assert text.read() == NUMBERED[name]
        path.unlink()


def test_a_changed_file_is_numbered_anew(name: str, tmp_path: Path) -> None:
    text = TEXTS[name]
    path = put(tmp_path, text.layouts[0], text.text)
    text.read()
    before = text.pack()
    assert before.is_dir() and not list(before.parent.glob("*.tmp"))
    os.utime(path, ns=(1, 1))
    assert text.pack() != before


def test_a_read_only_cache_costs_time_and_not_the_data(name: str, tmp_path: Path) -> None:
    put(tmp_path, TEXTS[name].layouts[0], TEXTS[name].text)
    (tmp_path / "cache").write_text("a file where the folder should be", encoding="utf-8")
    assert TEXTS[name].read() == NUMBERED[name]


def test_missing_data_says_how_to_get_it(name: str) -> None:
    with pytest.raises(NoData, match=rf"^{name} .* could not be downloaded .*: unpack http.* or set DATA_ROOT to"):
        TEXTS[name].read()


def test_the_archive_is_downloaded_with_what_is_held_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, site = TEXTS[name], tmp_path / "site.zip"
    monkeypatch.setattr(text.module, "ARCHIVE", site.as_uri())
    with zipfile.ZipFile(site, "w") as archive:
        archive.writestr("something/else.txt", "")
    with pytest.raises(NoData):
        text.read()
    folder = (tmp_path / text.layouts[0]).parent
    assert not folder.exists()
    with zipfile.ZipFile(site, "w") as archive:
        for member in text.members:
            archive.writestr(member, text.text)
    assert text.read() == NUMBERED[name]
    assert {path.name for path in folder.iterdir()} == {Path(member).name for member in text.members}
    assert not list(tmp_path.glob(".*.tmp"))


def test_damaged_data_is_named_and_never_replaced_by_synthetic(name: str, tmp_path: Path) -> None:
    text = TEXTS[name]
    for other, why in text.damaged.items():
        put(tmp_path, text.layouts[0], other)
        with pytest.raises(SystemExit, match=rf"^{name} in .* is damaged.*{why}"):
            text.read()
        assert not text.pack().exists()


def test_a_folder_without_the_text_is_incomplete_and_nothing_is_put_there(name: str, tmp_path: Path) -> None:
    (tmp_path / TEXTS[name].layouts[0]).parent.mkdir()
    with pytest.raises(SystemExit, match=rf"^{name} in .* is incomplete"):
        TEXTS[name].read()
