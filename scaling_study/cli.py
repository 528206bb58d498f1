"""The one command line, `scaling-study COMMAND`, and the doors that lead to single commands of it.

    scaling-study init STUDY
    scaling-study run STUDY           python run_sweep.py STUDY
    scaling-study bench 'COMMAND' ...
    scaling-study explain 'COMMAND'
    scaling-study doctor              python run_sweep.py --doctor
    scaling-study parity STUDY        python -m scaling_study.parity --study STUDY
    scaling-study evaluate RUN        python -m scaling_study.evaluate RUN
    scaling-study maps RUN            python -m scaling_study.maps RUN
    scaling-study slurm submit STUDY  python run_sweep.py STUDY --slurm ...
    scaling-study report RESULTS      python -m analysis report RESULTS
    scaling-study references          python -m analysis references
    scaling-study pack RESULTS        python -m analysis pack RESULTS
    scaling-study command RESULTS TRIAL

Each door loads only what its commands need: none imports torch, and planning needs no pandas.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from scaling_study.commands import options


def main(words: Sequence[str] | None = None) -> int:
    """`scaling-study COMMAND`; without a command, `run`."""

    def app() -> typer.Typer:
        from scaling_study.commands import bench, explain, init, options, pack, parity, run, slurm

        group = _group("run", "Reproducible scaling studies of distributed training.")
        group.command("bench", rich_help_panel="Measure")(bench.bench)
        group.command("explain", rich_help_panel="Measure")(explain.explain)
        group.command("init", rich_help_panel="Measure")(init.init)
        group.command("run", rich_help_panel="Measure")(run.run)
        group.command("parity", rich_help_panel="Measure")(parity.parity)
        group.command("evaluate", rich_help_panel="Measure")(_evaluate)
        group.command("maps", rich_help_panel="Measure")(_maps)
        group.command("doctor", rich_help_panel="Measure")(_doctor)
        group.add_typer(slurm.app, name="slurm", rich_help_panel="Measure")
        for name, command in options.commands().items():
            group.command(name, rich_help_panel="Analyse")(command)
        group.command("command", rich_help_panel="Share")(pack.command)
        group.command("pack", rich_help_panel="Share")(pack.pack)
        group.command("unpack", rich_help_panel="Share")(pack.unpack)
        return group

    return options.call(app, "scaling-study", words)


def run_sweep(words: Sequence[str] | None = None) -> int:
    """`python run_sweep.py STUDY`."""
    return options.call(lambda: _single("run"), "run_sweep.py", words)


def parity(words: Sequence[str] | None = None) -> int:
    """`python -m scaling_study.parity --study STUDY`."""
    return options.call(lambda: _single("parity"), "python -m scaling_study.parity", words)


def analysis(words: Sequence[str] | None = None) -> int:
    """`python -m analysis COMMAND RESULTS`; without a command, `tables`."""

    def app() -> typer.Typer:
        from scaling_study.commands import options, pack

        group = _group("tables", "Tables, figures and a report of a study's results.")
        for name, command in options.commands().items():
            group.command(name)(command)
        group.command("pack")(pack.pack)
        group.command("unpack")(pack.unpack)
        return group

    return options.call(app, "python -m analysis", words)


def _doctor(as_json: options.Json = False) -> int:
    """Try every framework and launcher on this machine: one training step with two processes each."""
    from scaling_study.commands import doctor

    return doctor.main(as_json)


RUN = "A trial's folder, like results/<study>/trials/<id>."
RUNS = "A trial's folder, like results/<study>/trials/<id>; or a study's results: every trial that kept its best model."
FRAMES = "Of each test video that are scored, evenly spaced; 0: all."
PICTURES = "Of each instrument, for the figures."
AGAIN = "Also where there are maps of this model already."


def _evaluate(run: Annotated[Path, typer.Argument(metavar="RUN", help=RUN, show_default=False)]) -> int:
    """Loss and accuracy of a training's best model on the test set: of one that has `keep: best`, while it runs too."""
    return _with_torch("scaling_study.evaluate", str(run))


def _maps(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help=RUNS, show_default=False)],
    frames: Annotated[int, typer.Option(help=FRAMES, min=0)] = 100,
    pictures: Annotated[int, typer.Option(help=PICTURES, min=0)] = 4,
    again: Annotated[bool, typer.Option("--again", help=AGAIN)] = False,
) -> int:
    """Class-activation maps of a training's best model on test frames, and whether they show the instrument."""
    options = ["--frames", str(frames), "--pictures", str(pictures), *(["--again"] if again else [])]
    return _with_torch("scaling_study.maps", *map(str, runs), *options)


def _with_torch(module: str, *words: str) -> int:
    """The exit code of `python -m module`, in a process that may load torch."""
    return subprocess.run([sys.executable, "-m", module, *words], check=False).returncode


def _typer(**settings: Any) -> typer.Typer:
    return typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False, **settings)


def _single(name: str) -> typer.Typer:
    """The command of this name in its module of scaling_study.commands, alone."""
    app = _typer()
    app.command()(getattr(importlib.import_module(f"scaling_study.commands.{name}"), name))
    return app


def _group(default: str, help: str) -> typer.Typer:
    """Commands by name; words that begin with none of them are those of the `default` one."""

    class WithDefault(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            named = args[:1] and (args[0] in self.commands or args[0] == "--help")
            return super().parse_args(ctx, args if named else [default, *args])

    return _typer(cls=WithDefault, help=help)
