"""`scaling-study init`: a first study for this machine, with comments, that runs as it is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from scaling_study.commands import options
from scaling_study.commands.options import OK, TRIALS, exit_code
from scaling_study.errors import StudyError
from scaling_study.machine import Machine, this_machine
from scaling_study.study import plan, study
from scaling_study.study.defaults import YEAR

FILE = "The study file to write; one that is there stays."
MODEL = "What is trained; docs/reference/study-file.md lists the models."
FRAMEWORKS = "The frameworks that are compared with one process."
WORKERS = "Numbers of workers; default: 1, 2, 4, ... up to the GPUs, or 1 and 2 on a CPU."
TEXT = """\
# {model} on {machine}.
#
#     scaling-study run {file} --dry-run    show the plan, start nothing
#     scaling-study run {file}              run what is not finished, then write tables, figures and a report
#
# docs/reference/study-file.md has every key.
study: {name}
defaults: {year}                    # on a GPU: bf16, channels_last, compiled and more, where a sweep names nothing else
scaling: weak                     # the batch of one worker stays the same
baseline: {{framework: single}}     # speed-ups are over it
sweeps:
  - framework: single
    matrix: {{model: [{model}], batch_per_worker: [32]}}
"""
SWEEP = """\
  - framework: {framework}
    matrix: {{model: [{model}], batch_per_worker: [32], workers: [{workers}]}}
"""


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=FILE, show_default=False)] = Path("study.yaml"),
    model: Annotated[str, options.option("NAME", MODEL, TRIALS)] = "resnet18",
    frameworks: Annotated[str, options.option("NAME,…", FRAMEWORKS, TRIALS)] = "torch_ddp",
    workers: Annotated[str, options.option("N,…", WORKERS, TRIALS)] = "",
) -> int:
    """Write a first study for this machine, with comments. It asks nothing, and runs as it is."""

    def command() -> int:
        machine, path = this_machine(), shlex.quote(str(file))
        text = TEXT.format(model=model, machine=machine, file=path, name=file.stem, year=YEAR)
        for framework in filter(None, (name.strip() for name in frameworks.split(","))):
            text += SWEEP.format(framework=framework, model=model, workers=workers or counts(machine))
        try:
            with file.open("x", encoding="utf-8") as written:
                written.write(text)
        except FileExistsError:
            raise StudyError([f"{file} is there already: name another file, or remove it"]) from None
        try:
            planned = plan.make(study.load(file), machine)
        except StudyError:
            file.unlink()
            raise
        print(f"{file}: {len(planned.configurations)} configurations; scaling-study run {path} --dry-run shows them")
        return OK

    return exit_code(command)


def counts(machine: Machine) -> str:
    """`1, 2, 4`: the powers of two that the machine has GPUs for; without GPUs at most 2, of its cores."""
    most = len(machine.gpus) or min(2, machine.cores)
    return ", ".join(str(2**power) for power in range(most.bit_length()))
