"""`scaling-study init`: a first study for this machine, with comments, that runs as it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from scaling_study.commands import options
from scaling_study.commands.options import OK, TRIALS, exit_code
from scaling_study.errors import StudyError
from scaling_study.machine import Machine, this_machine
from scaling_study.study import plan, study
from scaling_study.study.defaults import YEAR

FILE = "The study file to write. A file that exists is not replaced."
MODEL = "The model to train; my_model.py:load is your own, a file beside the study and a function in it."
FRAMEWORKS = "The frameworks to compare with one process."
WORKERS = "Numbers of workers; default: 1, 2, 4, ... up to the number of GPUs, or 1 and 2 on a CPU."
OPTIONS = {"model": "--model", "framework": "--frameworks", "workers": "--workers"}  # of keys of the study
TEXT = """\
# {model} on {machine}.
#
#     scaling-study run {file} --dry-run    show the plan and its time, start nothing
#     scaling-study run {file}              run it: tables, figures and a report; the same command resumes
#
# Remove the `#` before a key to use it; docs/reference/study-file.md has every key.
study: {name}
defaults: {year}                    # on a GPU: bf16, channels_last and torch.compile, where a sweep says nothing else
scaling: weak                     # each worker keeps its batch; strong: the batch of all workers stays the same
baseline: {{framework: single}}     # what a speed-up is relative to: one process
# measure: {{launches: 6}}          # more launches give narrower intervals (default: 3)
# parity: false                   # do not check first that each framework trains what one process trains
# train: {{epochs: 1}}              # run to a result, in place of timing some steps
sweeps:                           # a matrix is every combination of its values
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
    """Write a first study for this machine, with comments. It asks nothing, and the study runs as it is.

    Exit codes: 0 written; 2 refused: the file exists, or no study has such a model or framework.
    """

    def command() -> int:
        machine, path = this_machine(), shlex.quote(str(file))
        text = TEXT.format(model=model, machine=machine, file=path, name=file.stem, year=YEAR)
        for framework in filter(None, (name.strip() for name in frameworks.split(","))):
            text += SWEEP.format(framework=framework, model=model, workers=workers or counts(machine))
        try:
            with file.open("x", encoding="utf-8") as written:
                written.write(text)
        except FileExistsError:
            raise StudyError([f"{file} exists: name another file, or remove it"]) from None
        try:
            planned = plan.make(study.load(file), machine)
        except StudyError as error:
            file.unlink()
            raise StudyError(of_options(error.problems)) from None
        print(f"{file}: {len(planned.configurations)} configurations of {model} on {machine}")
        for why in dict.fromkeys(each.unsupported for each in planned.configurations if each.unsupported):
            print(f"some of them cannot run here: {why}")
        print(f"Next: scaling-study run {path} --dry-run")
        return OK

    return exit_code(command)


def of_options(problems: Iterable[str]) -> list[str]:
    """Problems of a study, each once, with the option that gave a key in place of the line of a file."""
    said = (re.sub(r"^.*?:\d+: ", "", problem) for problem in problems)
    return study.without_shorter(
        re.sub(r"^(model|framework|workers)(?=:| \S+\.py:)", lambda key: OPTIONS[key[0]], each) for each in said
    )


def counts(machine: Machine) -> str:
    """`1, 2, 4`: the powers of two that the machine has GPUs for; without GPUs at most 2, of its cores."""
    most = len(machine.gpus) or min(2, machine.cores)
    return ", ".join(str(2**power) for power in range(most.bit_length()))
