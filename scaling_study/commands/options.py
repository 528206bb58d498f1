"""Options of the commands, the plan that they select, and how a command ends: exit codes, one line an error."""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from scaling_study import datasets, sweep, variables
from scaling_study.commands import doctor
from scaling_study.errors import HostError, StudyError, quoted, shown_in_any_locale
from scaling_study.hosts import hosts as host_names
from scaling_study.hosts.hosts import Host
from scaling_study.machine import Machine, this_machine
from scaling_study.processes import process
from scaling_study.records import schema
from scaling_study.study import machine_file, plan, study
from scaling_study.study.machine_file import MachineFile
from scaling_study.study.plan import Plan, Planned
from scaling_study.study.support import ALONE, Cluster
from scaling_study.trial import RENAMED, Trial

if TYPE_CHECKING:
    from analysis.compare.explained import Explained
    from analysis.compare.side_by_side import SideBySide, Whole

OK, SOME_FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130  # exit codes


def call(app: Callable[[], typer.Typer], name: str, words: Sequence[str] | None = None) -> int:
    """Run the command of `app()` that `words` (None: those of this process) ask for; its exit code.

    `app` imports what its commands need: Ctrl-C meanwhile ends the process without a word, as nothing has begun. The
    options are parsed by typer. What it finds wrong with them is one line, and the code WRONG.
    """
    try:
        shown_in_any_locale()
        return int(app()(args=words, prog_name=name, standalone_mode=False) or OK)
    except (KeyboardInterrupt, typer.Abort):  # typer's word for the same
        return INTERRUPTED
    except typer.TyperException as error:
        return show_errors([error.format_message()])
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def exit_code(command: Callable[[], int]) -> int:
    """The exit code of `command()`, with the errors that it raises shown to the user."""
    try:
        return command()
    except StudyError as error:
        return show_errors(error.problems)
    except HostError as error:
        return show_errors(error.problems, SOME_FAILED)
    except OSError as error:
        if error.errno == errno.EIO and not error.filename:  # the terminal is closed: a message would not be seen
            process.detach_from_terminal()
            return INTERRUPTED
        place = f"{error.filename}: " if error.filename else ""
        kept = "finished trials are kept; the same command resumes"
        return show_errors([f"{place}{error.strerror}; {kept}"], SOME_FAILED)


def show_errors(problems: Sequence[str], code: int = WRONG) -> int:
    """Print each on a line of standard error; returns `code`."""
    for problem in problems:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(problem)}")
    return code


class Command(TyperCommand):
    """A command whose `--help` is plain text: its options by group, without types of Python, and an example."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            argument = parameter.param_type_name == "argument"
            named = getattr(parameter, "rich_help_panel", None) or ("Arguments" if argument else "Options")
            if parameter.name != "help" and (record := parameter.get_help_record(ctx)):
                name = str(parameter.metavar) if argument else record[0]  # typer's own has `<path>`
                groups.setdefault(named, []).append((name, record[1]))
        pieces = (piece.replace("...}...", "...").strip("{}") for piece in self.collect_usage_pieces(ctx))  # {RESULTS}
        formatter.write_usage(ctx.command_path, " ".join(pieces))
        for paragraph in (self.help or "").split("\n\n"):
            formatter.write_paragraph()
            formatter.write_text(" ".join(paragraph.split()))
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)
        formatter.write_paragraph()
        formatter.write(self.epilog or "")


class Group(TyperGroup):
    """Commands, listed with one line each, so that `--help` fits a screen."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, dict[str, list[str]]] = {}  # panel -> summary -> names
        for name, command in self.commands.items():
            if not command.hidden:
                panel = panels.setdefault(str(getattr(command, "rich_help_panel", None) or "Commands"), {})
                panel.setdefault(command.get_short_help_str(66), []).append(name)
        width = max(len(", ".join(names)) for panel in panels.values() for names in panel.values())
        formatter.write(f"Usage: {ctx.command_path} COMMAND [OPTIONS]   (COMMAND --help: its options)\n{self.help}\n\n")
        for title, panel in panels.items():
            formatter.write(f"{title}\n")
            for summary, names in panel.items():
                formatter.write(f"  {', '.join(names):<{width}}  {summary}\n")
        formatter.write(self.epilog or "")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and args[0][:1] != "-":
            raise self.unknown(args[0])
        return super().resolve_command(ctx, args)

    def unknown(self, word: str, more: str = "") -> typer.TyperException:
        """The refusal of a word that is no command. `more`: what it is not either."""
        hint = study.nearest(word, [*self.commands]) or f"{more}; --help lists the commands"
        return typer.TyperException(f"no command {quoted(word)}{hint}")


# Options that several commands have, with their help, by the group under which --help shows them.

TRIALS, HOSTS, OUTPUT, SLURM = "Which trials", "Where and how they run", "What is shown", "Slurm"


def flag(name: str, help: str, group: str, *shorter: str) -> Any:
    """An option without a value."""
    return typer.Option(*shorter, name, help=help, rich_help_panel=group)


def option(metavar: str, help: str, group: str, **limits: Any) -> Any:
    """An option with a value, named after its parameter."""
    return typer.Option(metavar=metavar, help=help, rich_help_panel=group, show_default=False, **limits)


Study = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.", show_default=False)]
StudyIfAny = Annotated[Path | None, typer.Argument(metavar="STUDY", help="The study file.", show_default=False)]
Small = Annotated[bool, flag("--small", "Apply the study's `small:` overrides.", TRIALS)]
Where = Annotated[str, option("K=V,…", "Run only trials with these keys, e.g. framework=horovod,workers=2.", TRIALS)]
Retry = Annotated[str, option("STATUS,…", "Run trials of these statuses again, e.g. failed,timeout or ok.", TRIALS)]
Hostfile = Annotated[Path | None, option("FILE", "Run over the hosts of FILE: lines such as `h1 slots=2`.", HOSTS)]
Results = Annotated[Path, option("DIR", "Write results to DIR/<study>; default: results.", OUTPUT)]
Json = Annotated[bool, flag("--json", "Print JSON instead of tables.", OUTPUT)]
PerTrial = Annotated[bool, flag("--per-trial", "Submit one job for each trial.", SLURM)]


def grouped(command: Callable[..., int]) -> Callable[..., int]:
    """`command` as typer takes it: in place of each parameter that is a dataclass, one for each field of that."""
    hints = get_type_hints(command, include_extras=True)
    types = {name: kind for name, kind in hints.items() if isinstance(kind, type)}
    groups: dict[str, type[Any]] = {name: kind for name, kind in types.items() if is_dataclass(kind)}
    flat: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if group := groups.get(parameter.name):
            own, kinds = list(inspect.signature(group).parameters.values()), get_type_hints(group, include_extras=True)
        else:
            own, kinds = [parameter], hints
        flat += [each.replace(kind=each.KEYWORD_ONLY, annotation=kinds[each.name]) for each in own]

    @functools.wraps(command)
    def from_words(**values: Any) -> int:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return command(**values)

    from_words.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    from_words.__annotations__ = {each.name: each.annotation for each in flat}
    return from_words


@dataclass(frozen=True)
class Trials:
    """The trials of a study that are run."""

    small: Small = False
    where: Where = ""
    retry: Retry = ""
    max_trials: Annotated[int | None, option("N", "Run at most N trials now.", TRIALS, min=0)] = None


@dataclass(frozen=True)
class PlaceOptions:
    """The hosts that trials run over."""

    hosts: Annotated[str, option("H:N,…", "Run over these hosts, e.g. h1:2,h2:2.", HOSTS)] = ""
    hostfile: Hostfile = None
    machine: Annotated[str, option("NAME|FILE", "Use machines/NAME.yaml: interface, variables, GPUs.", HOSTS)] = ""

    def cluster(self) -> Cluster:
        """The hosts, and the machine file. Raises StudyError."""
        if self.hosts and self.hostfile:
            raise StudyError(["--hosts and --hostfile exclude each other: give one"])
        named = host_names.parse_option(self.hosts) if self.hosts else ()
        named = host_names.read_hostfile(self.hostfile) if self.hostfile else named
        file = machine_file.load(machine_file.find(self.machine)) if self.machine else MachineFile()
        exports, job = tuple(variables.exported_names(os.environ)), host_names.current()
        allocated = tuple(map(Host, job.hosts, job.cores)) if job else ()  # a core has room for a worker
        usual = host_names.parse_hosts((f"--machine {self.machine}", word) for word in file.hosts)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return Cluster(named or allocated or usual, file, exports, visible, job is not None, frozenset(os.environ))


@dataclass(frozen=True)
class Selection:
    """A study, which of its trials a command runs, and the folder of its results."""

    study_file: Path
    trials: Trials = Trials()
    results: Path = Path("results")

    def planned(self, dry_run: bool, cluster: Cluster = ALONE, machine: Machine | None = None) -> Plan:
        """The study on this machine, or on `machine`, with `data: auto` resolved once for all of it.

        Raises StudyError or HostError.
        """
        asked = study.load(self.study_file, self.trials.small)
        cluster = replace(cluster, hosts=cluster.hosts or asked.hosts)
        here = machine or this_machine()
        planned_for = cluster.file.machine(here, elsewhere=dry_run and machine is None)
        draft = plan.draft(asked, planned_for, cluster)
        if dry_run:
            made = draft.plan(datasets.available())
            other = f"planned for the hardware of the machine file; this machine has {here}"
            return made if planned_for.gpus == here.gpus else replace(made, notes=(*made.notes, other))
        doctor.require_scripts()
        data = datasets.prepare(sorted(draft.data_needed))
        for name, source in data.items():
            if name in draft.data_named and source.name != name:
                raise HostError(f"{self.study_file} requires data: {name}, but {source.why}")
        return draft.plan(data)

    def select(self, planned: Plan, prune: bool) -> tuple[sweep.Run, list[Planned]]:
        """(the run of these trials, those that are certain to be part of it). Raises StudyError if there are none."""
        folder, asked = self.results / planned.study.name, self.trials
        where, retry = trial_keys(asked.where), statuses(asked.retry)
        run = sweep.Run(planned, folder, where, retry, asked.max_trials, prune=prune)
        if selected := [each for each in planned.trials() if run.wanted(each.trial)]:
            return run, selected
        raise StudyError([f"--where {asked.where} matches no trial of {planned.study.document.path}"])


def trial_keys(text: str) -> dict[str, Any]:
    """`framework=horovod,workers=2` -> {"framework": "horovod", "workers": 2}. Raises StudyError."""
    known, chosen = Trial().to_dict(), {}
    for part in filter(None, text.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        key = next((older for older, name in RENAMED.items() if name == key), key)
        if not equals or key not in known:
            raise StudyError([f"--where {part}: expected key=value with a trial key{study.nearest(key, list(known))}"])
        if key in chosen:
            raise StudyError([f"--where: {key} is given twice"])
        chosen[key] = _value(value)
    return chosen


def _value(word: str) -> Any:
    """A command line's word as the value it stands for: 2, 0.001, true, or itself."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(word)
    return {"true": True, "false": False, "": None}.get(word.lower(), word)


def statuses(text: str) -> frozenset[str]:
    """`failed,timeout` -> both. Raises StudyError for what is no status."""
    asked = frozenset(filter(None, text.split(",")))
    if unknown := asked - set(schema.STATUSES):
        raise StudyError([f"--retry {', '.join(sorted(unknown))}: a status is one of {', '.join(schema.STATUSES)}"])
    return asked


def words_again(context: typer.Context, without: Collection[str] = ()) -> list[str]:
    """The words of a command line again, but for the parameters named in `without`."""
    words: list[str] = []
    for parameter in context.command.params:
        name, value = str(parameter.name), context.params.get(str(parameter.name))
        source = context.get_parameter_source(name)
        if name in without or source is None or source.name != "COMMANDLINE":
            continue
        if parameter.param_type_name == "argument":
            words += map(str, value) if isinstance(value, list | tuple) else [str(value)]
        else:
            words += [parameter.opts[-1]] if value is True else [parameter.opts[-1], str(value)]
    return words


# Parts of the analysis for the command line. They are imported when needed: pandas alone takes a second.


def render(folder: Path, console: Console | None) -> None:
    """Write the tables and figures of results/<study>, and print the tables on `console`, if there is one."""
    import analysis

    analysis.write(folder, console=console)


def side_by_side(folder: Path, labels: Mapping[Any, str], unknown: Mapping[str, str]) -> SideBySide:
    """The comparison of commands in results/bench-NAME."""
    from analysis.compare import side_by_side

    return side_by_side.read(folder, labels, unknown)


def whole_runs(folder: Path, commands: Mapping[str, str], metric: str, lowest: bool) -> Whole:
    """The comparison of whole runs in results/bench-NAME. `commands`: what each label started."""
    from analysis.compare import side_by_side

    return side_by_side.read_whole(folder, commands, metric, lowest)


def explained(folder: Path, peak_flops: float | None, device_bytes: int | None) -> Explained:
    """The ten answers about the command of results/explain-NAME."""
    from analysis.compare import explained

    return explained.read(folder, peak_flops, device_bytes)


def commands() -> dict[str, Callable[..., int]]:
    """The analysis's own commands, by name."""
    from analysis import commands

    return {
        "report": commands.report_command,
        "tables": commands.tables,
        "compare": commands.compare,
        "predict": commands.predict,
        "estimate": commands.estimate,
        "export": commands.export,
        "references": commands.references_command,
    }
