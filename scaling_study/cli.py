"""The one command line, `scaling-study COMMAND`, and the doors that lead to single commands of it.

    scaling-study run STUDY           python run_sweep.py STUDY
    scaling-study doctor              python run_sweep.py --doctor
    scaling-study parity STUDY        python -m scaling_study.parity --study STUDY
    scaling-study evaluate RUN        python -m scaling_study.evaluate RUN
    scaling-study maps RUN            python -m scaling_study.maps RUN
    scaling-study slurm submit STUDY  python run_sweep.py STUDY --slurm ...
    scaling-study report RESULTS      python -m analysis report RESULTS
    scaling-study pack RESULTS        python -m analysis pack RESULTS
    scaling-study command RESULTS TRIAL

Each door loads only what its commands need: none imports torch, and planning needs no pandas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from scaling_study.commands import options


def main(words: Sequence[str] | None = None) -> int:
    """`scaling-study COMMAND`; without a command, `run`."""

    def app() -> typer.Typer:
        from scaling_study.commands import after_training, options, pack, parity, run, slurm

        group = _group("run", "Reproducible scaling studies of distributed training.")
        group.command("run", rich_help_panel="Measure")(run.run)
        group.command("parity", rich_help_panel="Measure")(parity.parity)
        group.command("evaluate", rich_help_panel="Measure")(after_training.evaluate)
        group.command("maps", rich_help_panel="Measure")(after_training.maps)
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

    def app() -> typer.Typer:
        from scaling_study.commands import run

        return _single(run.run)

    return options.call(app, "run_sweep.py", words)


def parity(words: Sequence[str] | None = None) -> int:
    """`python -m scaling_study.parity --study STUDY`."""

    def app() -> typer.Typer:
        from scaling_study.commands import parity

        return _single(parity.parity)

    return options.call(app, "python -m scaling_study.parity", words)


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


def _typer(**settings: Any) -> typer.Typer:
    return typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False, **settings)


def _single(command: Callable[..., int]) -> typer.Typer:
    app = _typer()
    app.command()(command)
    return app


def _group(default: str, help: str) -> typer.Typer:
    """Commands by name; words that begin with none of them are those of the `default` one."""

    class WithDefault(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            named = args[:1] and (args[0] in self.commands or args[0] == "--help")
            return super().parse_args(ctx, args if named else [default, *args])

    return _typer(cls=WithDefault, help=help)
