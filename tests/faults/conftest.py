"""The fault suite: real sweeps, hit from outside, and what must hold afterwards (docs/internals/reliability.md).

    make test-faults                    each process fault once: minutes            FAULTS_SEED=7     other moments
    FAULTS=long pytest tests/faults     each 20 times, and what can befall          FAULTS_JSON=path  keep the counts
                                        disk and host: hours (make test-long runs it in parts)

The table of counts is printed at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import copied
import ledger as book
import pytest
from injection import Inject, injection
from ledger import FORM, Ledger, Row
from namespace import Namespace, why_not
from sweeping import Sweep, SweepOf

from scaling_study.machine import this_machine
from scaling_study.settings import CHECKOUT

HERE = Path(__file__).parent
LEDGER = Ledger(FORM)
TIMEOUT_SECONDS = {"short": 900, "long": 2400}  # of one test


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All are slow and marked `faults`."""
    for item in items:
        if item.path.is_relative_to(HERE):
            for mark in (pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(TIMEOUT_SECONDS[FORM])):
                item.add_marker(mark)


@pytest.fixture(scope="session")
def ledger() -> Ledger:
    return LEDGER


@pytest.fixture(scope="session")
def inject() -> Inject:
    """inject(sweep, "kill -9 of the driver", ...) as `injection`, noted in the ledger of all tests."""
    return partial(injection, LEDGER)


@pytest.fixture(scope="session")
def ground() -> Iterator[Path]:
    """A folder for all sweeps, which every user may pass through (pytest's own are closed to others)."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def checkout(ground: Path) -> Path:
    """The product with planted ranks."""
    return copied.planted(ground / "checkout")


@pytest.fixture(scope="session")
def shared_namespace(ground: Path) -> Iterator[Namespace | None]:
    """Where the sweeps run: nothing is out of order, but /dev/shm is theirs alone."""
    if why_not():
        yield None
        return
    with Namespace() as namespace:
        namespace.memory_disk(Path("/dev/shm"), "2g")
        yield namespace


@pytest.fixture
def sweep_of(ground: Path, checkout: Path, shared_namespace: Namespace | None) -> SweepOf:
    """sweep_of(study, namespace=..., file=..., results=..., VARIABLE="...") in a folder of its own."""

    def make(study: str, **how: object) -> Sweep:
        folder = Path(tempfile.mkdtemp(dir=ground))
        folder.chmod(0o755)
        return Sweep(folder, **{"checkout": checkout, "namespace": shared_namespace, **how}, study=study)  # type: ignore[arg-type]

    return make


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """One in which a test may put things out of order."""
    if why := why_not():
        skip(request, why)
    with Namespace() as made:
        made.memory_disk(Path("/dev/shm"), "2g")
        yield made


@pytest.fixture
def nobody(namespace: Namespace, request: pytest.FixtureRequest) -> Namespace:
    """One in which AS_NOBODY can start the interpreter."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        skip(request, "only root may become another user (setpriv)")
    for program in (Path(sys.executable), Path(sys.executable).resolve(), CHECKOUT / "run_sweep.py"):
        namespace.open_way(program)
    return namespace


@pytest.fixture
def a_gpu(request: pytest.FixtureRequest) -> None:
    if not this_machine().gpus:
        skip(request, "no GPU here", "out of memory (GPU)")


@pytest.fixture(scope="session")
def shim(ground: Path, request: pytest.FixtureRequest) -> Path:
    """shim.cpp, compiled."""
    if not shutil.which("g++"):
        skip(request, "no g++")
    library = ground / "shim.so"
    source = HERE / "shim.cpp"
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def skip(request: pytest.FixtureRequest, why: str, fault: str = "") -> None:
    """Skip a test, and say so in the table."""
    name = request.node.name.removeprefix("test_").replace("_", " ")
    LEDGER.rows.append(Row(fault or name, "environment", skipped=why))
    pytest.skip(why)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test fails at its end with everything that did not hold in its injections, and their seeds."""
    since = len(LEDGER.rows)
    yield
    rows = LEDGER.rows[since:]
    if bad := [str(row) for row in rows if row.faults]:
        pytest.fail("\n".join([f"{len(bad)} of {len(rows)} injections were not survived:", *bad]), pytrace=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = os.environ.get("FAULTS_JSON")
    if hasattr(session.config, "workeroutput"):  # one of several processes: the table is of all
        session.config.workeroutput["faults"] = LEDGER.to_json()
    elif path and LEDGER.rows:
        LEDGER.write(Path(path))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    LEDGER.add(getattr(node, "workeroutput", {}).get("faults", {}))  # nothing of a worker that crashed


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not LEDGER.rows:
        return
    said = LEDGER.to_json()
    terminalreporter.write_line(f"faults, {FORM} form\n\n{book.table(said)}\n{book.summary(said)}")
