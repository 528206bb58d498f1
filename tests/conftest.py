"""What several test files share: machines, study files, plans and reports, made in one line each."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import forked
import planted_sweeps
import pytest
from hypothesis import HealthCheck, settings

from scaling_study.errors import StudyError
from scaling_study.machine import Machine
from scaling_study.records.schema import Phases, RankReport
from scaling_study.study import plan, study
from scaling_study.study.plan import Plan
from scaling_study.study.study import Study

# The same examples in every run; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Under nohup SIGHUP is ignored, and so it is in all that is started: sweeps would be right not to hear it. What has a
# handler here is as usual there.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # likewise in a script's background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """A table or figure that could not be made is named and passed over in real life; here it is an error."""
    config.addinivalue_line("filterwarnings", "error::analysis.execution.LostPart")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting only adds objects: looking through them all for garbage, again and again, is a sixth of its time.
    They stay to the end, so no later look is at them: each measurement of a step looks twice. What is measured thaws
    all objects when it ends; here it does not."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.unfreeze = lambda: None
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark long tests slow too. Files with the most slow tests go first: two workers (make test) then end together."""
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker("slow")
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])  # stable: each file in its own order


@pytest.fixture(scope="session", autouse=True)
def forks_end() -> Iterator[None]:
    """The process that tests fork ranks from ends with them."""
    yield
    forked.template.end()


@pytest.fixture
def forked_starts() -> Iterator[None]:
    """For a test that asks what is trained and not how it is started: what launchers start is forked (forked.py)."""
    with forked.starts():
        yield


LIBRARIES = {"horovod": "0.28.1", "torch": "2.15.0", "torchmetrics": "1.9.0", "torchvision": "0.29.2"}


def a_machine(cores: int = 2, gpus: int = 0, without: str = "") -> Machine:
    libraries = {name: version for name, version in LIBRARIES.items() if name != without}
    return Machine(cores, "Xeon", 8 << 30, ("Tesla T4",) * gpus, libraries)


@pytest.fixture(scope="session")
def machine() -> Callable[..., Machine]:
    """machine(cores=2, gpus=0, without="horovod")."""
    return a_machine


@pytest.fixture(scope="session")
def study_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | bytes], Path]:
    """study_file(text) writes study.yaml; the next call overwrites it."""
    path = tmp_path_factory.mktemp("study") / "study.yaml"

    def write(text: str | bytes) -> Path:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture(scope="session")
def study_of(study_file: Callable[[str | bytes], Path]) -> Callable[..., Study]:
    """study_of(text, small=False)."""
    return lambda text, small=False: study.load(study_file(text), small)


@pytest.fixture(scope="session")
def plan_of(study_of: Callable[..., Study]) -> Callable[..., Plan]:
    """plan_of(text, machine=two cores and no GPU, small=False, data=None)."""

    def make(text: str, machine: Machine | None = None, small: bool = False, data: Any = None) -> Plan:
        return plan.make(study_of(text, small), machine or a_machine(), data)

    return make


@pytest.fixture(scope="session")
def problems_of(plan_of: Callable[..., Plan], study_file: Callable[[str | bytes], Path]) -> Callable[..., list[str]]:
    """What loading and planning a text complains of, line by line, with the file's folder cut off."""

    def complaints(text: str | bytes, small: bool = False) -> list[str]:
        folder = f"{study_file(text).parent}{os.sep}"
        try:
            plan_of(text, small=small)
        except StudyError as wrong:
            return [problem.replace(folder, "") for problem in wrong.problems]
        return []

    return complaints


@pytest.fixture
def plan_for(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """A plan of planted scripts: `plan_for("crash", "take_a_second", repeats=2)`."""

    def make(*scripts: str, **options: Any) -> Plan:
        for script in scripts:
            monkeypatch.setitem(planted_sweeps.TABLE, script, planted_sweeps.framework(script))
        return planted_sweeps.plan(*scripts, **options)

    monkeypatch.setenv("SLEEP_SECONDS", "0")
    return make


@pytest.fixture(scope="session")
def rank_report() -> Callable[..., RankReport]:
    """rank_report(rank=0, world_size=1, ...): a whole report of one rank, any field changed by name."""

    def report(**changes: Any) -> RankReport:
        rank, steps = changes.get("rank", 0), changes.get("step_seconds", [0.5, 0.25])
        said: dict[str, Any] = {
            "rank": rank, "world_size": 1, "local_rank": rank, "host": "here", "pid": 100 + rank,
            "device": "cpu", "device_name": "Xeon", "cores": [rank], "threads": 1, "first_step_at": 1_700_000_000.5,
            "warmup_seconds": [1.5], "step_seconds": steps, "samples_per_step": 32, "samples_seen": 32 * len(steps),
            "tokens_seen": None, "phases": Phases(2, 0.5, 0.01, 0.2, 0.25, None, 0.03, 0.01),
            "parameters": 11_181_642, "allreduce_bytes": 44_726_568, "communication_bytes": {"allreduce": 44_726_568},
            "peak_memory_bytes": 1 << 28, "memory": {"parameters": 44_726_568}, "loss_first": 2.3, "loss_last": 2.1,
            "data_source": "cifar10", "steps_per_epoch": 1562, "gpu_utilization_percent": None, "energy_joules": None,
            "backend": {}, "versions": {"python": "3.11"}, "notes": [],
        }  # fmt: skip
        return RankReport(**{**said, **changes})

    return report
