"""The one command line, `scaling-study COMMAND`, and the doors that lead to single commands of it.

    scaling-study run STUDY           python run_sweep.py STUDY
    scaling-study doctor              python run_sweep.py --doctor
    scaling-study parity STUDY        python -m scaling_study.parity --study STUDY
    scaling-study evaluate RUN        python -m scaling_study.evaluate RUN
    scaling-study maps RUN            python -m scaling_study.maps RUN
    scaling-study slurm submit STUDY  python run_sweep.py STUDY --slurm ...
    scaling-study report RESULTS      python -m analysis report RESULTS
    scaling-study pack RESULTS        python -m analysis pack RESULTS

Each door loads only what its commands need: none imports torch, and planning needs no pandas.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from scaling_study.commands import options


class Entry(NamedTuple):
    """A command in the list of `scaling-study --help`. Commands with the same summary share a line."""

    panel: str
    summary: str  # one line of 80 columns, beside the name
    example: str
    hidden: bool = False  # it works, and is not listed


MEASURE, READ, SHARE = "Measure", "Read results", "Repeat and share"
ENTRIES = {
    "init": Entry(MEASURE, "Write a first study for this machine.", "init study.yaml --model resnet18 --workers 1,2"),
    "run": Entry(MEASURE, "Run a study; the same command resumes it.", "run study.yaml --dry-run"),
    "bench": Entry(
        MEASURE, "Compare your own training commands: which is faster, and why.", "bench 'python a.py' 'python b.py'"
    ),
    "explain": Entry(MEASURE, "Show where the time of one training command goes.", "explain 'python train.py'"),
    "doctor": Entry(MEASURE, "Try every framework and launcher on this machine.", "doctor"),
    "parity": Entry(MEASURE, "Check that each framework trains what one process trains.", "parity study.yaml"),
    "slurm": Entry(MEASURE, "Submit a study to Slurm; show and collect its jobs.", "slurm submit study.yaml"),
    "evaluate": Entry(
        MEASURE, "Test the best model of a training.", "evaluate results/time-to-accuracy/trials/single-resnet8-..."
    ),
    "maps": Entry(
        MEASURE, "Draw what a trained Tripnet looks at.", "maps results/distributed_dl_tripnet --frames 50", hidden=True
    ),
    "report": Entry(READ, "Write the report, answer first, as a page and as text.", "report results/cifar10-scaling"),
    "tables": Entry(READ, "Print the tables; write tables and figures.", "tables results/cifar10-scaling"),
    "compare": Entry(READ, "Show what became slower from one result to another.", "compare results/A results/B"),
    "predict": Entry(
        READ,
        "Predict the speed of more workers than were measured.",
        "predict results/cifar10-scaling --workers 8,64 --bandwidth 25Gbit --latency 5us",
    ),
    "estimate": Entry(
        READ, "Estimate which split of a Llama fits into GPUs, and its speed.", "estimate llama_3_1_8b --workers 8,64"
    ),
    "export": Entry(
        READ, "Write results for TensorBoard, MLflow or W&B.", "export results/cifar10-scaling --tensorboard runs"
    ),
    "references": Entry(READ, "List published speeds with their sources.", "references --device H100"),
    "command": Entry(
        SHARE, "Print the shell command that repeats a trial.", "command results/cifar10-scaling horovod-resnet18"
    ),
    "pack": Entry(SHARE, "Make one file of a results folder, and the folder again.", "pack results/cifar10-scaling"),
    "unpack": Entry(
        SHARE, "Make one file of a results folder, and the folder again.", "unpack cifar10-scaling.study.zip"
    ),
}
TITLE = "Reproducible scaling studies of distributed training."
FIRST = "Example: scaling-study init && scaling-study run study.yaml --dry-run"


def program() -> typer.Typer:
    """All commands of `scaling-study`."""
    from scaling_study.commands import bench, explain, init, pack, parity, run, slurm

    commands: dict[str, Callable[..., int]] = {
        "init": init.init,
        "run": run.run,
        "bench": bench.bench,
        "explain": explain.explain,
        "doctor": _doctor,
        "parity": parity.parity,
        "evaluate": _evaluate,
        "maps": _maps,
        **options.commands(),
        "command": pack.command,
        "pack": pack.pack,
        "unpack": pack.unpack,
    }
    group = _group("run", TITLE, FIRST, commands)
    about = ENTRIES["slurm"]
    group.add_typer(slurm.app, name="slurm", rich_help_panel=about.panel, short_help=about.summary)
    return group


def main(words: Sequence[str] | None = None) -> int:
    """`scaling-study COMMAND`; without a command, `run`."""
    return options.call(program, "scaling-study", words)


def run_sweep(words: Sequence[str] | None = None) -> int:
    """`python run_sweep.py STUDY`."""
    return options.call(lambda: _single("run"), "run_sweep.py", words)


def parity(words: Sequence[str] | None = None) -> int:
    """`python -m scaling_study.parity --study STUDY`."""
    return options.call(lambda: _single("parity"), "python -m scaling_study.parity", words)


def analysis(words: Sequence[str] | None = None) -> int:
    """`python -m analysis COMMAND RESULTS`; without a command, `tables`."""

    def app() -> typer.Typer:
        from scaling_study.commands import pack

        title = "Tables, figures and a report of a study's results."
        example = "Example: python -m analysis report results/cifar10-scaling"
        return _group("tables", title, example, {**options.commands(), "pack": pack.pack, "unpack": pack.unpack})

    return options.call(app, "python -m analysis", words)


def _doctor(as_json: options.Json = False) -> int:
    """Try every framework and launcher on this machine: one training step, with two processes where it can have them.

    Exit codes: 0 all that was tried works; 1 something fails, or nothing could be tried.
    """
    from scaling_study.commands import doctor

    return doctor.main(as_json)


RUN = "The folder of a trial, such as results/<study>/trials/<id>."
RUNS = "The folder of a trial, or of a study's results: all of its trials that kept their best model."
FRAMES = "Frames of each test video that are scored, evenly spaced; 0: all."
PICTURES = "Pictures of each instrument, for the figures."
AGAIN = "Draw again where there are maps of this model already."


def _evaluate(run: Annotated[Path, typer.Argument(metavar="RUN", help=RUN, show_default=False)]) -> int:
    """Print loss and accuracy of a training's best model on the test set.

    The training needs `keep: best` in its study. The command works while it runs, too.
    """
    return _with_torch("scaling_study.evaluate", str(run))


def _maps(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help=RUNS, show_default=False)],
    frames: Annotated[int, typer.Option(metavar="N", help=FRAMES, min=0)] = 100,
    pictures: Annotated[int, typer.Option(metavar="N", help=PICTURES, min=0)] = 4,
    again: Annotated[bool, typer.Option("--again", help=AGAIN)] = False,
) -> int:
    """Draw class-activation maps of a Tripnet's best model, and score whether they show the instrument."""
    options = ["--frames", str(frames), "--pictures", str(pictures), *(["--again"] if again else [])]
    return _with_torch("scaling_study.maps", *map(str, runs), *options)


def _with_torch(module: str, *words: str) -> int:
    """The exit code of `python -m module`, in a process that may load torch."""
    return subprocess.run([sys.executable, "-m", module, *words], check=False).returncode


def _typer(**settings: Any) -> typer.Typer:
    return typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False, **settings)


def _add(app: typer.Typer, name: str, command: Callable[..., int]) -> None:
    """Give a command to an app, with its line of the list and its example."""
    panel, summary, example, hidden = ENTRIES[name]
    app.command(
        name,
        cls=options.Command,
        rich_help_panel=panel,
        short_help=summary,
        epilog=f"Example: scaling-study {example}",
        hidden=hidden,
    )(command)


def _single(name: str) -> typer.Typer:
    """The command of this name in its module of scaling_study.commands, alone."""
    app = _typer()
    _add(app, name, getattr(importlib.import_module(f"scaling_study.commands.{name}"), name))
    return app


def _group(default: str, help: str, example: str, commands: Mapping[str, Callable[..., int]]) -> typer.Typer:
    """Commands by name; words that begin with a file or an option are those of the `default` one."""

    class WithDefault(options.Group):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if args[:1] == ["help"]:
                args = [*args[1:], "--help"]
            first = args[0] if args else ""
            if first in self.commands or first == "--help":
                return super().parse_args(ctx, args)
            if first and first[0] != "-" and not {"/", "."} & {*first} and not os.path.exists(first):
                raise self.unknown(first, ", and no file or folder has this name")
            return super().parse_args(ctx, [default, *args])

    group = _typer(cls=WithDefault, help=help, epilog=example)
    for name, command in commands.items():
        _add(group, name, command)
    return group
