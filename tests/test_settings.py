"""Settings come from the environment, then from `.env`, then from a default."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling_study import settings
from scaling_study.settings import data_path, data_root, setting


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """An empty current folder and an empty checkout."""
    found = {name: tmp_path / name for name in ("here", "checkout")}
    for path in found.values():
        path.mkdir()
    monkeypatch.chdir(found["here"])
    monkeypatch.setattr(settings, "CHECKOUT", found["checkout"])
    for name in ("DATA_PATH", "DATA_ROOT", "THING"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_the_environment_wins_then_the_current_folder_then_the_checkout(places, monkeypatch):
    (places["checkout"] / ".env").write_text("THING=checkout\n")
    assert setting("THING", "default") == "checkout"
    (places["here"] / ".env").write_text("THING=here\n")
    assert setting("THING", "default") == "here"
    monkeypatch.setenv("THING", "environment")
    assert setting("THING", "default") == "environment"
    monkeypatch.setenv("THING", "")
    assert setting("THING", "default") == "here", "an empty variable says nothing"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("# a comment\n\nOTHER=x\nTHING=/a/b\n", "/a/b"),
        ("THING = /a b \n", "/a b"),
        ("export THING=/a", "/a"),
        ("THING='/a b'", "/a b"),
        ('THING="/a=b"', "/a=b"),
        ("THING=/a\r\n", "/a"),
        ("# THING=/no", "default"),
        ("THINGS=/no\nTHING", "default"),
    ],
)
def test_a_line_of_the_env_file(places, text, value):
    (places["here"] / ".env").write_bytes(text.encode())
    assert setting("THING", "default") == value


def test_data_lies_in_the_checkout_unless_told_otherwise(places, monkeypatch):
    assert data_root() == places["checkout"] / "data"
    (places["here"] / ".env").write_text("DATA_ROOT=/big/disk\n")
    assert data_root() == Path("/big/disk")
    monkeypatch.setenv("DATA_ROOT", "~/data")
    monkeypatch.setenv("HOME", "/home/me")
    assert data_root() == Path("/home/me/data")


def test_a_tree_of_images_is_where_it_is_said_to_be_and_nowhere_else(places, monkeypatch):
    assert data_path() is None
    (places["here"] / ".env").write_text("DATA_PATH=/big/images\n")
    assert data_path() == Path("/big/images")
    monkeypatch.setenv("DATA_PATH", "~/images")
    monkeypatch.setenv("HOME", "/home/me")
    assert data_path() == Path("/home/me/images")
