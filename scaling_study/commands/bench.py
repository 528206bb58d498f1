"""`scaling-study bench 'COMMAND' ...`: training commands side by side, without edits, in turns.

    look        each command is started once, for a few steps: how many processes, how many samples a step
    study.yaml  what was seen, as a study of `framework: command`
    sweep       launches of all commands, which take turns; more of them until the margin is met
    verdict     "B is 1.31x [1.28, 1.34] as fast as A", and which part of the step changed

Everything lies in results/bench-NAME, so the same command goes on where it was, and every command of the analysis reads
it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shlex
import shutil
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.markup import escape

from scaling_study import observe, variables
from scaling_study.commands import options, run
from scaling_study.commands.options import OK, SOME_FAILED, Selection, exit_code
from scaling_study.errors import HostError, StudyError
from scaling_study.launch import observed
from scaling_study.launch.launchers import PORT, PORTS
from scaling_study.launch.supervisor import SupervisorClient
from scaling_study.machine import this_machine
from scaling_study.processes import leftovers, process
from scaling_study.records import outcome, store
from scaling_study.study import command as placeholders
from scaling_study.study.support import ALONE

NOT_RESOLVED = 3  # exit code
LOOK_STEPS, LOOK_SECONDS = 10, 600.0
LAUNCHES, MOST_LAUNCHES, BLOCKS, BLOCK_SECONDS = 3, 10, 6, 0.5
LABELS = string.ascii_uppercase
AXES = ("workers", "batch_per_worker")
LOOK = "look.json"

COMMANDS = "Training commands, each in quotes; {workers}, {batch_per_worker}, {port} and {run_dir} are filled in."
WORKERS = "Values of {workers}: every command once with each."
BATCHES = "Values of {batch_per_worker}: every command once with each."
MARGIN = "Half of the interval at which a verdict is sure enough, e.g. 2%; more launches are added until then."
NAME = "Results go to DIR/bench-NAME; default: digits made from the commands."
MINE = "Show how often each command would start, and start nothing."


@dataclass(frozen=True)
class Candidate:
    """One command with its values: what is compared."""

    label: str  # A, B, ...
    command: str
    values: Mapping[str, int]

    @property
    def text(self) -> str:
        """The command with its values filled in, as it is shown."""
        return placeholders.substituted(self.command, self.values)


@dataclass(frozen=True)
class Look:
    """What a command was seen to do. Samples are of one process and step."""

    processes: int
    samples: int


def bench(
    commands: Annotated[list[str], typer.Argument(metavar="COMMAND...", help=COMMANDS, show_default=False)],
    workers: Annotated[str, options.option("N,…", WORKERS, options.TRIALS)] = "",
    batch_per_worker: Annotated[str, options.option("N,…", BATCHES, options.TRIALS)] = "",
    margin: Annotated[str, options.option("P%", MARGIN, options.TRIALS)] = "2%",
    name: Annotated[str, options.option("NAME", NAME, options.OUTPUT)] = "",
    dry_run: Annotated[bool, options.flag("--dry-run", help=MINE, group=options.TRIALS)] = False,
    results: options.Results = Path("results"),
    as_json: options.Json = False,
) -> int:
    """Compare training commands, without edits: which is faster, by how much, and why.

    The commands are started with your rights, as typed, without a shell, several times each. Exit codes: 0 a verdict,
    1 a command failed, 3 not resolved.
    """

    def asked() -> int:
        candidates = list(expanded(commands, {"workers": workers, "batch_per_worker": batch_per_worker}))
        share = margin_of(margin)
        folder = results / f"bench-{name or digits(candidates)}"
        console = Console(stderr=as_json, highlight=False, soft_wrap=True)
        announce(console, candidates, folder)
        if dry_run:
            return OK
        looks = looked_at(candidates, folder, console)
        file = write_study(candidates, looks, folder, share)
        given = {"workers": workers, "batch-per-worker": batch_per_worker, "margin": margin, "name": name}
        chosen = [word for option, value in given.items() if value for word in (f"--{option}", value)]
        again = shlex.join(["scaling-study", "bench", *commands, *chosen, "--results", str(results)])
        output = run.Output(as_json=False, quiet=True, no_report=True)
        code = run.start_sweep(Selection(file, results=results), ALONE, again, run.How(), output)
        if code not in (OK, SOME_FAILED):
            return code
        return verdict(folder, candidates, share, console, as_json)

    return exit_code(asked)


def expanded(commands: Sequence[str], asked: Mapping[str, str]) -> Iterator[Candidate]:
    """Every command with every value of the axes that it names. Raises StudyError."""
    axes = {name: numbers(name, text) for name, text in asked.items()}
    found: list[tuple[str, dict[str, int]]] = []
    for each in commands:
        names = placeholders.placeholders(each)
        for unknown in set(names) - {*AXES, *placeholders.OF_A_START}:
            known = ", ".join(f"{{{name}}}" for name in (*AXES, *placeholders.OF_A_START))
            raise StudyError([f"{each!r} has {{{unknown}}}: bench fills in {known}"])
        own = [name for name in AXES if name in names]
        for name in own:
            if not axes[name]:
                raise StudyError([f"{each!r} has {{{name}}}: give --{name.replace('_', '-')}, like 1,2"])
        found += [(each, dict(zip(own, row, strict=True))) for row in itertools.product(*(axes[name] for name in own))]
    if len(found) < 2:
        raise StudyError(["bench compares two commands or more, or one with two values of --workers or the batch"])
    if len(found) > len(LABELS):
        raise StudyError([f"{len(found)} commands with their values; bench compares at most {len(LABELS)}"])
    for label, (each, values) in zip(LABELS, found, strict=False):
        keys = {"command": each, **values, **dict.fromkeys(AXES, 1)}
        if wrong := [message for _, message in placeholders.problems(keys)]:
            raise StudyError(wrong)
        yield Candidate(label, each, values)


def numbers(name: str, text: str) -> list[int]:
    """`1,2` -> [1, 2]. Raises StudyError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if wrong := [word for word in words if not word.isdecimal() or int(word) < 1]:
        raise StudyError([f"--{name.replace('_', '-')} {text}: {wrong[0]!r} is no whole number above 0"])
    return [int(word) for word in words]


def margin_of(text: str) -> float:
    """`2%` -> 0.02. Raises StudyError."""
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0.001 <= share <= 0.5:
        raise StudyError([f"--margin {text}: a share from 0.1% to 50%, like 2%"])
    return share


def digits(candidates: Sequence[Candidate]) -> str:
    """The same for the same commands started in the same folder."""
    asked = json.dumps([os.getcwd(), [[each.command, dict(each.values)] for each in candidates]])
    return hashlib.sha256(asked.encode()).hexdigest()[:8]


def announce(console: Console, candidates: Sequence[Candidate], folder: Path) -> None:
    """Print what will be started, how often, and where."""
    for each in candidates:
        console.print(f"[bold]{each.label}[/]  {escape(each.text)}")
    console.print(
        f"Each starts once to be looked at and then {LAUNCHES} to {MOST_LAUNCHES} times, with your rights, in "
        f"{escape(os.getcwd())}. Each start is ended after some seconds of training. Results: {escape(str(folder))}"
    )


def looked_at(candidates: Sequence[Candidate], folder: Path, console: Console) -> dict[str, Look]:
    """What each command does, from a start of its own or from an earlier one. Raises HostError for one that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Look] = {}
    with process.Interruption() as interruption, SupervisorClient(folder, interruption) as supervisor:
        for each in candidates:
            own = folder / "looks" / each.label
            if (own / LOOK).exists():
                found[each.label] = Look(**store.load(own / LOOK))
                continue
            console.print(f"looking at {each.label} ...")
            found[each.label] = look = look_at(each, own, supervisor)
            store.write_json(own / LOOK, vars(look))
    for each in candidates:
        look = found[each.label]
        if (asked := each.values.get("workers", look.processes)) != look.processes:
            raise HostError(f"{each.label}: asked for {asked} workers, {look.processes} processes trained: {each.text}")
    return found


def look_at(each: Candidate, own: Path, supervisor: SupervisorClient) -> Look:
    """Start a command for a few steps. Raises HostError with its last words where it makes none."""
    shutil.rmtree(own, ignore_errors=True)  # of a look that was interrupted
    seen, run_dir = own / observed.SEEN, own / "run"
    for made in (seen, run_dir):
        made.mkdir(parents=True)
    port, _ = leftovers.choose_port(PORTS[0], PORTS, supervisor)
    trial_words = placeholders.filled(each.command, {**each.values, "run_dir": str(run_dir.resolve())}, {})
    argv = [word.replace(PORT, str(port)) for word in trial_words]
    watched = observe.environment(os.environ, seen.resolve(), LOOK_STEPS)
    more = {name: value for name, value in watched.items() if os.environ.get(name) != value}
    stale = variables.env_without(variables.removed(os.environ, {}))
    exit = supervisor.run([*stale, *argv], more, own / "log.txt", LOOK_SECONDS)
    if exit.interrupted:
        raise HostError("interrupted; the same command goes on")
    processes = [lines for lines in observe.read(seen) if any(line["kind"] == "step" for line in lines)]
    if not processes:
        why = exit.error or outcome.tail(own / "log.txt", 600) or "it printed nothing"
        how = "took too long" if exit.timed_out else f"ended with {exit.code}"
        raise HostError(
            f"{each.label} {how} and no training step of it was observed: {each.text}",
            *(line for line in why.splitlines()[-6:]),
        )
    end = processes[0][-1]
    samples = end.get("samples_per_step") or each.values.get("batch_per_worker")
    if not samples:  # one taken for another would make a ratio of anything
        why = end.get("samples_unknown") or "it was ended from outside"
        raise HostError(
            f"{each.label}: the samples of its step were not seen ({why}): name them by {{batch_per_worker}} in it"
        )
    return Look(len(processes), round(samples))


def write_study(candidates: Sequence[Candidate], looks: Mapping[str, Look], folder: Path, share: float) -> Path:
    """The study of these commands, as a file that a person can read and change."""
    sweeps = [
        {
            "framework": "command",
            "model": "script:bench",
            "command": each.command,
            "arguments": placeholders.written({"command": each.label}),
            "workers": looks[each.label].processes,
            "batch_per_worker": looks[each.label].samples,
            "workdir": os.getcwd(),
            **({"oversubscribe": True} if looks[each.label].processes > this_machine().cores else {}),
        }
        for each in candidates
    ]
    measure = {
        **{"warm": True, "rounds": BLOCKS, "block_seconds": BLOCK_SECONDS, "min_steps": 2 * BLOCKS, "min_seconds": 0.0},
        **{"repeats": LAUNCHES, "max_repeats": MOST_LAUNCHES, "target_interval": share},
    }
    baseline = {"framework": "command", "arguments": placeholders.written({"command": LABELS[0]})}
    study = {"study": folder.name, "baseline": baseline, "parity": False, "measure": measure, "sweeps": sweeps}
    file = folder / "bench.yaml"
    file.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    return file


def verdict(folder: Path, candidates: Sequence[Candidate], share: float, console: Console, as_json: bool) -> int:
    """Print how fast each is, and how it compares with the first; the exit code."""
    labels = {placeholders.written({"command": each.label}): each.label for each in candidates}
    said = options.side_by_side(folder, labels)
    if as_json:
        print(json.dumps(said.to_dict(share)))
    else:
        for line in said.lines(share):
            console.print(escape(line))
    if said.failed:
        return SOME_FAILED
    return OK if all(pair.is_resolved(share) for pair in said.pairs) else NOT_RESOLVED
