"""Test what works on this machine: every framework, with each of its launchers, trains two steps with two processes,
so that gradients are reduced. A library that can be imported may still fail to train.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scaling_study import datasets
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch import attempts, launchers
from scaling_study.machine import Machine, this_machine
from scaling_study.models import NO_MODEL
from scaling_study.processes import process
from scaling_study.records import outcome
from scaling_study.settings import data_root
from scaling_study.study.support import unsupported
from scaling_study.trial import Trial, Window

TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Finding:
    """One row: what was tried, its version, whether it works, and what to do if not."""

    what: str
    version: str
    works: bool
    detail: str


def main(as_json: bool = False) -> int:
    """Print the table; 0 if everything that is installed works, else 1."""
    console = Console(stderr=as_json, highlight=False)
    machine = this_machine()
    findings = []
    with process.Interruption() as interruption, console.status("testing every framework with two processes..."):
        for finding in examine(machine, interruption):
            if interruption.signal is not None:
                return 130
            findings.append(finding)
    if as_json:
        print(json.dumps([asdict(f) for f in findings]))
    else:
        console.print(table(machine, findings))
    return 0 if all(f.works for f in findings) else 1


def examine(machine: Machine, interruption: process.Interruption) -> Iterator[Finding]:
    """All findings: Python and torch first, then the device, data sets and frameworks."""
    yield Finding("python", sys.version.split()[0], sys.version_info >= (3, 11), sys.executable)
    version = machine.libraries.get("torch", "")
    yield Finding("torch", version, bool(version), "" if version else "run `make setup`")
    gpus = f"{len(machine.gpus)} x {machine.gpus[0]}" if machine.gpus else "no GPU: trials run on the CPU"
    yield Finding("device", "", True, gpus)
    for name, folder in datasets.FOLDERS.items():
        data = datasets.available().get(name)
        missing = f"no {folder}/ in {data_root()}: set DATA_ROOT; else downloaded, else synthetic data are used"
        yield Finding(f"data {name}", "", True, data.why if data else missing)
    for trial in cases(machine):
        yield attempt(trial, machine, interruption)


def cases(machine: Machine) -> Iterator[Trial]:
    """One small trial for every framework, launcher and controller."""
    window = Window(warmup_steps=1, min_steps=2, max_steps=2, min_seconds=0.0)
    for name, table in FRAMEWORKS.items():
        workers = 1 if table.axes["workers"] == (1,) else 2
        base = Trial(
            framework=name, model="resnet8" if table.trains else NO_MODEL, batch_per_worker=4, data="synthetic",
            device="cuda" if len(machine.gpus) >= workers else "cpu",
            workers=workers, allreduce="none" if workers == 1 else "fp32", max_bytes=None if table.trains else 1 << 20,
            cores_per_worker=max(1, machine.cores // 2), oversubscribe=machine.cores < 2, window=window,
        )  # fmt: skip
        for launcher in table.launchers:
            controllers = table.axes.get("controller", (None,)) if launcher == "horovodrun" else (None,)
            for controller in controllers:
                implied: Any = "mpi" if launcher == "mpirun" and table.has("controller", launcher) else controller
                needs_gpu = (table.needs_gpu and "cuda") or base.device
                yield replace(base, launcher=launcher, controller=implied, device=needs_gpu)


def attempt(trial: Trial, machine: Machine, interruption: process.Interruption) -> Finding:
    """Run one case."""
    table = FRAMEWORKS[trial.framework]
    through = f" --{trial.controller}" if trial.controller and trial.launcher == "horovodrun" else ""
    what = f"{trial.framework}: {trial.launcher}{through}, {trial.workers} process{'es' * (trial.workers > 1)}"
    version = machine.libraries.get(table.needs[0], "")
    if why := unsupported(trial, machine):
        remedy = "run `make setup`" if "not installed" in why else "nothing to install"
        return Finding(what, version, "not installed" not in why, f"{why}; {remedy}")
    with tempfile.TemporaryDirectory(prefix="scaling-study-doctor-") as name:
        folder = Path(name)
        command = launchers.command(trial, record=folder)
        env, log = attempts.launch_environment(command), folder / "log.txt"
        ended = process.run(command.argv, env, log, TIMEOUT_SECONDS, interruption)
        result = outcome.judge(trial, folder, ended)
    if result.status != "ok":
        lines = result.error.strip().splitlines()
        return Finding(what, version, False, f"{result.status}: {result.reason}{' | ' + lines[-1] if lines else ''}")
    reduced = result.ranks[0].allreduce_bytes
    proof = "trained" if not reduced else f"{reduced:,} bytes of gradients reduced per step"
    proof = proof if table.trains else f"all {len(result.ranks[0].network)} network measurements correct"
    backend = result.ranks[0].backend.get("controller")
    return Finding(what, version, True, f"{proof}{f', controller {backend}' if backend else ''}, {ended.seconds:.1f} s")


def table(machine: Machine, findings: list[Finding]) -> Table:
    result = Table(title=escape(f"This machine: {machine}"), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for title in ("what", "version", "works", "detail"):
        result.add_column(title, overflow="fold")
    for finding in findings:
        works = "[green]yes[/]" if finding.works else "[red]no[/]"
        result.add_row(finding.what, finding.version, works, escape(finding.detail))
    return result
