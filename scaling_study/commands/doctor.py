"""Checks of this machine, made by trying: what works, what it lacks, and what a record made here depends on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from scaling_study import datasets, settings, variables
from scaling_study.errors import HostError
from scaling_study.frameworks import FRAMEWORKS, Framework
from scaling_study.hosts import hosts as allocation
from scaling_study.launch import attempts, launchers
from scaling_study.launch.attempts import Attempts
from scaling_study.launch.supervisor import SupervisorClient
from scaling_study.machine import DALI, Machine, installed, this_machine
from scaling_study.models import NO_MODEL, model_named
from scaling_study.processes import process
from scaling_study.records.outcome import Outcome
from scaling_study.settings import CHECKOUT, data_root
from scaling_study.study import rules
from scaling_study.study.support import ALONE, Cluster, unsupported
from scaling_study.trial import Trial, Window

PACKAGES = {"mpirun": "openmpi-bin", "srun": "slurm-client"}  # of Debian and Ubuntu
LEFT_OUT = ("accelerate",)  # by make setup: `unsupported` says how it is installed


def reason(trial: Trial, machine: Machine, cluster: Cluster) -> str:
    """Why the trial cannot be tried here, and what would bring it; empty if it can."""
    table = FRAMEWORKS[trial.framework]
    needed = (*table.needs, *table.launcher_needs.get(trial.launcher, ()), *model_named(trial.model).needs)
    missing = (name for name in needed if name not in (*machine.libraries, *LEFT_OUT))
    if library := next(missing, ""):
        return f"{library} is not installed: {_source(library)}"
    if trial.launcher == "srun" and not cluster.in_job:
        how = "salloc -n 2 scaling-study doctor" if shutil.which("srun") else f"apt install {PACKAGES['srun']}"
        return f"needs a Slurm job{'' if shutil.which('srun') else ', and there is no srun'}: {how}"
    if trial.device == "cuda" and not machine.gpus:
        return f"needs a GPU: {table.needs_gpu}"
    if why := unsupported(trial, machine, cluster):
        return why
    program = launchers.command(trial)
    program_path = shutil.which(program.argv[0], path=attempts.launch_environment(program)["PATH"])
    if program_path:
        return ""
    package = PACKAGES.get(trial.launcher)
    return f"no {trial.launcher} on PATH: make setup{f', or apt install {package}' if package else ''}"


def require_scripts() -> None:
    """Raises HostError where this package was installed without the scripts that trials run: as a wheel."""
    if not (CHECKOUT / FRAMEWORKS["single"].script).is_file():
        raise HostError(
            "trials are run from a checkout: clone the project and `pip install -e .` in it. This installation can "
            "only plan (--dry-run) and analyse"
        )


def libraries(machine: Machine) -> list[str]:
    """The frameworks' libraries that are not installed."""
    names = (name for table in FRAMEWORKS.values() for name in table.needs)
    return [name for name in dict.fromkeys(names) if name not in machine.libraries]


def _source(library: str) -> str:
    """The command that installs a library: `make setup`, or pip with the extra that has it."""
    try:
        requirements = metadata.requires("scaling-study") or []
    except metadata.PackageNotFoundError:  # run from a checkout
        requirements = []
    for requirement in requirements:
        if match := re.match(rf"{re.escape(library)}\b.*extra == [\"']([\w-]+)[\"']", requirement):
            return f"make setup, or pip install '.[{match[1]}]'"
    return "make setup"


SECONDS = 120.0  # for what imports torch


def print_environment() -> int:
    print(json.dumps(surroundings(), indent=2))
    return 0


def surroundings() -> dict[str, Any]:
    """Commit, machine, versions (of a process that imports torch), Horovod's build, launchers, data, variables."""
    not_passed = variables.removed(os.environ)
    return {
        "commit": settings.commit(),
        "checkout": str(CHECKOUT),
        "python": sys.executable,
        "machine": this_machine().to_dict(),
        "versions": asked_of("scaling_study.measure.surroundings"),  # as in a record
        "horovod": asked_of("scaling_study.worker.with_horovod") if installed("horovod") else {},
        "launchers": launcher_paths(),
        "data_root": str(data_root()),
        "variables": variables.recorded(os.environ, {}, not_passed),
        "variables_not_passed_to_trials": not_passed,
    }


def asked_of(module: str) -> dict[str, Any]:
    """The JSON that `python -m module` prints, in an interpreter like a trial's; `error` where it fails."""
    argv = [sys.executable, "-m", module]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": lines[-1]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def launcher_paths() -> dict[str, str]:
    """Launcher -> the program that a trial would start, "" where there is none."""
    path = attempts.launch_environment(launchers.Command((sys.executable,)))["PATH"]
    names = sorted({launcher for table in FRAMEWORKS.values() for launcher in table.launchers})
    return {name: shutil.which(name, path=path) or "" for name in names}


# The check by trying: every framework, by each of its launchers, trains one step on this machine.
#
#     works      it was tried here, and its record is one that a sweep would keep
#     fails      it was tried here as a sweep would start it; with the line of the log to look at
#     not here   it was not tried; with the reason, and what would bring it
#
# Most of what a trial costs is importing torch. Trials that are launched alike share one launch, whose ranks fork a
# process for each of them (worker/in_turn.py). Sharing can only confirm: what does not work there is started by
# itself.

WORKS, FAILS, NOT_HERE = "works", "fails", "not here"
COLORS = {WORKS: "green", FAILS: "bold red", NOT_HERE: "bright_black"}
TIMEOUT_SECONDS = 120.0  # of one trial
ONE_STEP = Window(warmup_steps=0, min_steps=1, max_steps=1, min_seconds=0.0)


@dataclass(frozen=True)
class Answer:
    """One line: what was asked, the answer, its reason, and of one that fails, the line of the log to look at."""

    what: str
    answer: str  # works, fails or not here
    detail: str
    version: str = ""
    log: str = ""  # file:line


def main(as_json: bool = False) -> int:
    """Print an answer a line as it is known; 0 if something was tried and all of it works, else 1."""
    try:
        require_scripts()
    except HostError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console = Console(stderr=as_json, highlight=False)
    machine, answers = this_machine(), list[Answer]()
    folder = Path(tempfile.mkdtemp(prefix="scaling-study-doctor-"))
    console.print(Text(f"Python {sys.version.split()[0]} ({sys.executable}); {machine}"), soft_wrap=True)
    try:
        with (
            process.Interruption() as interruption,
            SupervisorClient(folder, interruption) as supervisor,
            console.status("looking at the machine") as status,
        ):
            for answer in examine(machine, supervisor, folder, status):
                answers.append(answer)
                _print(console, answer)
            if interruption.signal is not None:
                return 130
    finally:
        if all(answer.answer != FAILS for answer in answers):
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print(json.dumps([asdict(answer) for answer in answers]))
    counts = ", ".join(f"{sum(a.answer == kind for a in answers)} {kind}" for kind in COLORS)
    console.print(Text(f"{counts}. Next: {next_command(answers, machine)}"), soft_wrap=True)
    tried = {answer.answer for answer in answers} - {NOT_HERE}
    return 0 if tried == {WORKS} else 1


def next_command(answers: Sequence[Answer], machine: Machine) -> str:
    """The command to run next, with the reason where it is not a sweep."""
    if failed := next((answer for answer in answers if answer.answer == FAILS), None):
        return f"look at {failed.log}" if failed.log else failed.detail
    if absent := libraries(machine):
        return f"make setup, which installs {', '.join(absent)}"
    return "scaling-study run sweeps.yaml"


def examine(machine: Machine, supervisor: SupervisorClient, folder: Path, status: Status) -> Iterator[Answer]:
    """All answers: what needs no trial first. `folder`: for records and logs. Ends early once it is interrupted."""
    cluster = replace(ALONE, in_job=allocation.current() is not None)
    yield from _data(machine)
    hosts = "only this machine was tried; scaling-study run STUDY --hosts h1:2,h2:2 checks each host before it starts"
    yield Answer("several hosts", NOT_HERE, hosts)
    here: dict[object, list[Trial]] = {}
    for trial in cases(machine):
        if why := reason(trial, machine, cluster):
            yield Answer(_name(trial), NOT_HERE, why)
        else:
            here.setdefault(launchers.alike(trial), []).append(trial)
    if not machine.gpus:
        driver = "no GPU: NVIDIA's driver reports none (nvidia-smi, CUDA_VISIBLE_DEVICES)"
        blind = "GPUs cannot be seen without nvidia-ml-py: make setup"
        yield Answer("GPU", NOT_HERE, driver if installed("nvidia-ml-py") else blind)
    done, count = 0, sum(map(len, here.values()))
    gpus_work: list[bool] = []
    for number, trials in enumerate(here.values()):
        if supervisor.signal is not None:
            return
        names = f"{trials[0].launcher} ({', '.join(trial.framework for trial in trials)})"
        status.update(f"{done} of {count} tried; now {names}")
        for answer, trial in zip(_tried(trials, machine, supervisor, folder / str(number)), trials, strict=False):
            gpus_work += [answer.answer == WORKS] if trial.device == "cuda" else []
            yield answer
        done += len(trials)
    if machine.gpus:
        names = f"{len(machine.gpus)} x {machine.gpus[0]}"
        works = any(gpus_work)
        detail = f"{names}: {sum(gpus_work)} of {len(gpus_work)} trials on it work"
        yield Answer("GPU", WORKS if works else FAILS if gpus_work else NOT_HERE, detail)


def cases(machine: Machine) -> Iterator[Trial]:
    """One small trial for every framework, launcher and controller, and one with DALI."""
    for name, table in FRAMEWORKS.items():
        workers = 1 if table.axes["workers"] == (1,) else 2
        device = "cuda" if table.needs_gpu or len(machine.gpus) >= workers else "cpu"
        base = Trial(
            framework=name,
            model=_smallest(table) if table.trains else NO_MODEL,
            batch_per_worker=4,
            data="synthetic",
            device=device,
            workers=workers,
            allreduce="none" if workers == 1 else "fp32",
            max_bytes=None if table.trains else 1 << 20,
            cores_per_worker=max(1, machine.cores // 2),
            oversubscribe=machine.cores < 2,
            window=ONE_STEP,
        )
        base = replace(base, **rules.resolved(name, workers, {}))
        if table.cuts_model:  # one batch for all its workers, and no gradients to reduce
            base = replace(base, allreduce="none")
        for launcher in table.launchers:
            controllers = table.axes.get("controller", (None,)) if launcher == "horovodrun" else (None,)
            for controller in controllers:
                implied: Any = "mpi" if launcher == "mpirun" and table.has("controller", launcher) else controller
                yield replace(base, launcher=launcher, controller=implied)
        if name == "single":  # what else reads images, of which any framework's trials ask
            yield replace(base, input="dali")


def _smallest(table: Framework) -> str:
    """The smallest model that a framework trains."""
    return next(name for name in ("resnet8", "llama_tiny") if name in table.axes["model"])


def _tried(trials: list[Trial], machine: Machine, supervisor: SupervisorClient, folder: Path) -> Iterator[Answer]:
    """An answer for each trial: of a launch that they share, or where that says nothing, of one for itself."""
    attempts = Attempts(supervisor)
    folders = [folder / "-".join(filter(None, (trial.framework, trial.input))) for trial in trials]
    for each in folders:
        each.mkdir(parents=True)
    shared: list[Outcome | None] = [None] * len(trials)
    if len(trials) > 1:
        shared = [attempt.outcome for attempt in attempts.run_together(trials, folders, TIMEOUT_SECONDS, folder)]
    for trial, each, outcome in zip(trials, folders, shared, strict=True):
        log = each / "log.txt"
        if supervisor.signal is None and (outcome is None or outcome.status != "ok"):
            alone = each / "alone"
            alone.mkdir()
            outcome, log = attempts.run_once(trial, alone, TIMEOUT_SECONDS).outcome, alone / "log.txt"
        if supervisor.signal is not None or outcome is None:
            return
        yield _answer(trial, machine, outcome, log)


def _answer(trial: Trial, machine: Machine, outcome: Outcome, log: Path) -> Answer:
    table = FRAMEWORKS[trial.framework]
    libraries = DALI if trial.input == "dali" else table.needs[:1]
    version = next((machine.libraries[name] for name in libraries if name in machine.libraries), "")
    if outcome.status != "ok":
        return Answer(_name(trial), FAILS, f"{outcome.status}: {outcome.reason}", version, line_of(log, outcome.reason))
    first, processes = outcome.ranks[0], f"{trial.processes} process{'es' * (trial.processes > 1)}"
    proof = f"{processes} trained on {trial.device}"
    if not table.trains:
        proof = f"{processes}, all {len(first.network)} network measurements are correct"
    elif first.allreduce_bytes:
        proof += f", {first.allreduce_bytes:,} bytes of gradients reduced a step"
    return Answer(_name(trial), WORKS, proof, version)


def line_of(log: Path, reason: str) -> str:
    """`file:line` of the last line of a log that holds the reason, else of the last line with text."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = {number: line for number, line in enumerate(text.splitlines(), 1) if line.strip()}
    message = reason.partition(": ")[2] or reason  # after `rank 1: `
    numbers = [number for number, line in lines.items() if message.removesuffix("...") in line]
    return f"{log}:{max(numbers or lines, default=1)}"


def _name(trial: Trial) -> str:
    through = f" --{trial.controller}" if trial.controller and trial.launcher == "horovodrun" else ""
    read = f", input {trial.input}" if trial.input else ""
    return f"{trial.framework}: {trial.launcher}{through}{read}"


def _data(machine: Machine) -> Iterator[Answer]:
    """Check that each data set is there and whole; none is downloaded for that."""
    there = [name for name in datasets.FOLDERS if name in datasets.available()]
    ready: dict[str, datasets.DataSource] = {}
    if "torch" in machine.libraries:
        with contextlib.suppress(HostError):  # one process looks at all; what is wrong is then found one by one
            ready = datasets.prepare(there)
    for name, folder in datasets.FOLDERS.items():
        what = f"data {name}"
        if name not in there:
            absent = f"not in {data_root() / folder}: set DATA_ROOT; else it is downloaded, or data are synthetic"
            yield Answer(what, NOT_HERE, absent)
        elif "torch" not in machine.libraries:
            yield Answer(what, NOT_HERE, "torch is not installed, so nothing can read it: make setup")
        else:
            try:
                data = ready[name] if name in ready else datasets.prepare([name])[name]
                whole = data.name == name
                yield Answer(what, WORKS if whole else FAILS, f"{'verified, ' if whole else ''}{data.why}")
            except HostError as error:
                yield Answer(what, FAILS, str(error))


def _print(console: Console, answer: Answer) -> None:
    """One line, cut by a terminal's width only."""
    version = f"{answer.version}  " if answer.version else ""
    log = f" ({answer.log})" if answer.log else ""
    words = f"  {answer.what:<32}  {version}{answer.detail}{log}".replace("\n", " ")
    line = Text.assemble((f"{answer.answer:<8}", COLORS[answer.answer]), words)
    if console.is_terminal:
        console.print(line, no_wrap=True, overflow="ellipsis")
    else:
        console.print(line, soft_wrap=True)
