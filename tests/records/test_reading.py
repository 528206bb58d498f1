"""Whatever lies where JSON should: a value, or one sentence with the file's name."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.records.store import UnreadableRecord, load, parsed
from scaling_study.trial import STRICT


@dataclass(frozen=True)
class Shape:
    """One field of each kind that records have."""

    __pydantic_config__ = STRICT

    count: int
    seconds: float
    name: str
    on: bool
    steps: list[float]
    sizes: dict[str, int]
    maybe: float | None
    anything: Any
    rows: list[dict[str, Any]]
    events: list[list[Any]]


WHOLE = Shape(1, 0.5, "a", True, [1, 0.5], {"a": 1}, None, 3, [{"a": None}], [[1, "b"]])


def unreadable(path: Path) -> str:
    with pytest.raises(UnreadableRecord) as wrong:
        load(path)
    assert str(path) in str(wrong.value)
    return str(wrong.value)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 30, "-" + "9" * 4000])
def test_what_is_no_number_or_too_large_is_unreadable(tmp_path: Path, word: str) -> None:
    (tmp_path / "a.json").write_text(f'{{"a": [{word}]}}')
    assert "number" in unreadable(tmp_path / "a.json")


def test_a_link_is_not_followed_wherever_it_leads(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    for target in ("other.json", "nowhere", "/dev/zero", "."):
        link = tmp_path / "a.json"
        link.symlink_to(target)
        assert unreadable(link).endswith("it is a link")
        link.unlink()


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    assert "it is no file" in unreadable(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    unreadable(tmp_path / "folder.json")


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_at_all(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.json"
    path.write_bytes(data)
    try:
        value = load(path)
    except UnreadableRecord as error:
        assert str(path) in str(error)
    else:
        json.dumps(value, allow_nan=False)


def read_with(field: str, value: Any) -> Shape:
    return parsed(json.dumps({**asdict(WHOLE), field: value}).encode(), Shape, Path("a.json"))


@given(st.sampled_from(sorted(WHOLE.__dataclass_fields__)), st.none() | st.booleans() | st.integers() | st.text()
       | st.lists(st.integers()) | st.dictionaries(st.text(), st.integers()))  # fmt: skip
def test_any_value_fits_or_is_named(field: str, value: Any) -> None:
    try:
        assert getattr(read_with(field, value), field) == value
    except UnreadableRecord as error:
        assert field in str(error) or "too large" in str(error)
