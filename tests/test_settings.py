"""Settings come from the environment, then from `.env`, then from a default."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from scaling_study import settings
from scaling_study.errors import HostError
from scaling_study.settings import commit, data_path, data_root, require_data_root, setting


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
        ("THING=/a  # where the data are", "/a"),
        ("THING='/a # b' # c", "/a # b"),
        ("THING=/a#b", "/a#b"),
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


@pytest.mark.parametrize(
    ("where", "name", "otherwise"), [(data_root, "DATA_ROOT", "data"), (data_path, "DATA_PATH", "")]
)
def test_data_lie_where_they_are_said_to_be(places, monkeypatch, where, name, otherwise):
    """Else in the checkout; a tree of images nowhere."""
    assert where() == (places["checkout"] / otherwise if otherwise else None)
    (places["here"] / ".env").write_text(f"{name}=/big/disk\n")
    assert where() == Path("/big/disk")
    monkeypatch.setenv(name, "~/data")
    monkeypatch.setenv("HOME", "/home/me")
    assert where() == Path("/home/me/data")


def test_a_data_root_that_is_named_and_not_there_is_an_error(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    require_data_root()  # none is named
    (places["here"] / ".env").write_bytes(b"# Daten f\xfcr alle\nDATA_ROOT=/no/such\n")
    with pytest.raises(HostError, match=r"\.env cannot be read: .*UTF-8"):
        require_data_root()
    (places["here"] / ".env").write_text("DATA_ROOT=/no/such\n")
    with pytest.raises(HostError, match=r"DATA_ROOT=/no/such \(.*\.env\): there is no such folder"):
        require_data_root()
    monkeypatch.setenv("DATA_ROOT", str(places["here"]))
    require_data_root()


def git(folder: Path, *words: str) -> str:
    settings_ = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", "-C", str(folder), *settings_, *words], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def repositories(places: dict[str, Path]) -> dict[str, Path]:
    """Both folders are checkouts with a commit of their own."""
    for name, folder in places.items():
        git(folder, "init", "-q")
        (folder / "file").write_text(name)
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", name)
    commit.cache_clear()
    return places


def test_a_commit_is_that_of_this_checkout_and_no_other(
    repositories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout, other = repositories["checkout"], repositories["here"]
    ours = git(checkout, "rev-parse", "--short=12", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert commit() == ours
    commit.cache_clear()
    (checkout / "file").write_text("changed")
    assert commit() == f"{ours}+changes"


def test_a_copy_without_git_inside_another_repository_has_no_commit(
    repositories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy := repositories["here"] / "copy").mkdir()
    monkeypatch.setattr(settings, "CHECKOUT", copy)
    assert commit() == "unknown: the program is no checkout of git"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give the checkout to somebody else")
def test_a_checkout_that_another_user_owns_has_its_commit(repositories: dict[str, Path]) -> None:
    ours = git(repositories["checkout"], "rev-parse", "--short=12", "HEAD")
    for path in (repositories["checkout"], *repositories["checkout"].rglob("*")):
        os.chown(path, 65_534, 65_534)
    assert commit() == ours


def test_a_machine_without_git_says_so(repositories: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repositories["here"]))
    assert commit() == "unknown: git: No such file or directory"
