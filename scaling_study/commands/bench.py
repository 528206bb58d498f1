"""`scaling-study bench 'COMMAND' ...`: training commands side by side, without edits: which is faster, and why.

    compared.py   the commands, a test run of each, interleaved launches of all
    verdict       "B is 1.31x [1.28, 1.34] as fast as A", and which part of the step changed

Everything lies in results/bench-NAME, and every command of the analysis reads it. With `--whole` commands run to their
own end instead, in alternating launches.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from scaling_study import observe
from scaling_study.commands import compared, options, progress
from scaling_study.commands.compared import AXES, Candidate, Look
from scaling_study.commands.options import INTERRUPTED, OK, SOME_FAILED, exit_code
from scaling_study.errors import HostError, StudyError
from scaling_study.launch import observed
from scaling_study.launch.warm_group import LONGEST_SECONDS
from scaling_study.processes import leftovers
from scaling_study.processes.process import Exit
from scaling_study.records import manifest, store
from scaling_study.records import results as results_folder
from scaling_study.study import command as placeholders

NOT_RESOLVED = 3  # exit code
WHOLE_LAUNCHES = 3
OFTEN = f"{WHOLE_LAUNCHES} times, and runs to its own end"
WHOLE = "whole.json"
NOTHING_YET = "So far, no launch of two commands has ended: nothing is compared yet."
LOWEST = "min:"  # begins a pattern of a metric of which the lowest is the best

COMMANDS = "Training commands, each in quotes; {workers}, {batch_per_worker}, {port} and {run_dir} are filled in."
WORKERS = "Values of {workers}; every command is measured with each of them."
BATCHES = "Values of {batch_per_worker}; every command is measured with each of them."
SAMPLES = "Samples per step of one process, if they cannot be observed: 32 for all commands, or A=32,B=64."
EXPECT = "Expected global batch, e.g. '{workers} * {batch_per_worker}'; a command with another, or unseen, is refused."
MARGIN = "Add launches until the margin of every ratio is this small (default: 2%)."
TO_ITS_END = (
    f"Run each command to its own end, {WHOLE_LAUNCHES} times in alternating order; compare total and training time."
)
METRIC = "With --whole: the best value of a metric in the output, e.g. 'acc=([0-9.]+)'; min:REGEX if lower is better."
EXPORT = "Copy the results to FOLDER, with tables and figures; report, compare, predict and export read it."
NAME = "Results go to DIR/bench-NAME; default: a hash of the commands."


@dataclass(frozen=True)
class Asked:
    """Options that decide what is compared."""

    workers: Annotated[str, options.option("N,…", WORKERS, options.TRIALS)] = ""
    batch_per_worker: Annotated[str, options.option("N,…", BATCHES, options.TRIALS)] = ""
    samples_per_step: Annotated[str, options.option("N|A=N,…", SAMPLES, options.TRIALS)] = ""
    expect: Annotated[str, options.option("SAMPLES", EXPECT, options.TRIALS)] = ""
    margin: Annotated[str, options.option("P%", MARGIN, options.TRIALS)] = "2%"
    shell: Annotated[bool, options.flag("--shell", compared.SHELL, options.TRIALS)] = False
    whole: Annotated[bool, options.flag("--whole", TO_ITS_END, options.TRIALS)] = False
    metric: Annotated[str, options.option("REGEX", METRIC, options.TRIALS)] = ""
    name: Annotated[str, options.option("NAME", NAME, options.OUTPUT)] = ""
    export: Annotated[str, options.option("FOLDER", EXPORT, options.OUTPUT)] = ""


@options.grouped
def bench(
    context: typer.Context,
    commands: Annotated[list[str], typer.Argument(metavar="COMMAND...", help=COMMANDS, show_default=False)],
    asked: Asked,
    dry_run: Annotated[bool, options.flag("--dry-run", compared.MINE, options.TRIALS)] = False,
    results: options.Results = Path("results"),
    as_json: options.Json = False,
) -> int:
    """Compare training commands, without edits: which is faster, by how much, and why.

    Every command is started several times, as typed and with your rights. Exit codes: 0 verdict, 1 a command failed, 3
    not resolved, 130 stopped (run the same command again to resume).
    """

    def command() -> int:
        axes = {name: getattr(asked, name) for name in AXES}
        candidates = list(compared.expanded("bench", commands, axes, asked.shell))
        given = compared.samples_of(asked.samples_per_step, [each.label for each in candidates])
        share = margin_of(asked.margin)
        check(asked, candidates)
        refuse_other_samples(asked.expect, candidates)
        folder = compared.folder_of(results, "bench", asked.name, candidates)
        refuse_other_results(asked.export, folder)
        console = Console(stderr=as_json, highlight=False, soft_wrap=True)
        compared.announce(console, candidates, folder, OFTEN if asked.whole else "")
        if dry_run:
            return OK
        again = shlex.join(["scaling-study", "bench", *options.words_again(context)])
        try:
            if asked.whole:
                run_whole(candidates, folder, console)
                return whole_verdict(folder, candidates, share, console, as_json, asked.metric)
            looks = compared.looked_at(candidates, folder, console, given)
            refuse_other_samples(asked.expect, candidates, looks)
            code = compared.in_turns(candidates, looks, folder, share, console, again)
            if code in (OK, SOME_FAILED):
                compared.refuse_two_versions(candidates, looks, folder)
                code = verdict(folder, candidates, share, console, as_json, looks)
                if asked.export:
                    export(folder, Path(asked.export), console)
            elif code == INTERRUPTED:
                say_so_far(folder, candidates, share, console, looks)
            return code
        except KeyboardInterrupt:
            if asked.whole:
                with contextlib.suppress(KeyboardInterrupt):  # another Ctrl-C: how to resume is still said
                    say_whole_so_far(folder, candidates, share, console, asked.metric)
            console.print(f"Stopped; what is measured is kept. To resume: {escape(again)}")
            return INTERRUPTED

    return exit_code(command)


def margin_of(text: str) -> float:
    """`2%` -> 0.02. Raises StudyError."""
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0.001 <= share <= 0.5:
        raise StudyError([f"--margin {text}: give a share from 0.1% to 50%, like 2%"])
    return share


def check(asked: Asked, candidates: Sequence[Candidate]) -> None:
    """Raises StudyError for options that do not go together, or say nothing, and for less than two candidates."""
    if len(candidates) < 2:
        several = "several values of --workers or --batch-per-worker"
        raise StudyError([f"bench compares two commands or more, or one command with {several}"])
    try:
        groups = re.compile(asked.metric.removeprefix(LOWEST)).groups
    except re.error as error:
        raise StudyError([f"--metric {asked.metric}: {error}"]) from error
    if asked.metric and (groups != 1 or not asked.whole):
        raise StudyError([f"--metric {asked.metric}: give --whole, and a pattern with one group, like 'acc=([0-9.]+)'"])
    if asked.expect and asked.whole:
        raise StudyError(["--expect needs a test run, which --whole leaves out: give one of the two"])
    if asked.export and asked.whole:
        raise StudyError(["--export needs interleaved launches, which --whole leaves out: give one of the two"])


def refuse_other_results(export: str, folder: Path) -> None:
    """Raises StudyError where results in `folder` cannot be copied to `export`, since other files lie there."""
    place = Path(export)
    if not export or not place.exists():
        return
    if place.resolve() == folder.resolve():
        raise StudyError([f"--export {place}: the results lie there already"])
    with contextlib.suppress(store.UnreadableRecord):
        if manifest.Manifest.read(place).study == folder.name:
            return
    if not place.is_dir() or any(place.iterdir()):
        raise StudyError([f"--export {place}: it is not empty, and holds no results of {folder.name}"])


def refuse_other_samples(text: str, candidates: Sequence[Candidate], looks: Mapping[str, Look] | None = None) -> None:
    """Raises StudyError where `text` is no arithmetic, HostError where a step was seen with other samples than it says,
    or where nobody saw them: what somebody said says nothing about what the command does.

    `text`: samples of all processes, for every command; empty: nothing is expected.
    """
    for each in candidates if text else ():
        look = (looks or {}).get(each.label)
        try:
            expected = placeholders.expected(text, {"workers": look.processes if look else 1, **each.values})
        except ValueError as wrong:
            raise StudyError([f"--expect {wrong}"]) from wrong
        if look and (look.assumed or not look.samples):
            why = f"--expect cannot be checked, since samples of a step were not observed: {look.unknown}"
            what = "scaling_study.observe.step(samples) in the script reports them; or leave --expect out"
            raise HostError(f"{each.label}: {why}. {what}")
        if look and look.samples and (seen := look.processes * look.samples) != expected:
            what = f"--expect says {expected} samples per step, {look.processes} x {look.samples} = {seen} were seen"
            raise HostError(f"{each.label}: {what}: {each.text}")


def verdict(
    folder: Path,
    candidates: Sequence[Candidate],
    share: float,
    console: Console,
    as_json: bool,
    looks: Mapping[str, Look],
) -> int:
    """Print how fast each is, and how it compares with the first; the exit code."""
    said = side_by_side(folder, candidates, looks)
    alternated = [f"{label} cannot be interleaved: {why}" for label, why in compared.why_apart(looks).items()]
    shared = compared.shared_files({label: look.wrote for label, look in looks.items()})
    notes = [*alternated, *compared.assumed_samples(looks), *shared]
    show(said, notes, folder, share, console, as_json)
    if said.failed:
        return SOME_FAILED
    return OK if all(pair.is_resolved(share) for pair in said.pairs) else NOT_RESOLVED


def show(
    said: options.SideBySide | options.Whole,
    notes: Sequence[str],
    folder: Path,
    share: float,
    console: Console,
    as_json: bool,
) -> None:
    """Print a comparison with its notes."""
    if as_json:
        print(json.dumps({**said.to_dict(share), "notes": notes, "results": str(folder)}))
    else:
        compared.say(console, (*said.lines(share), *notes))


def say_so_far(
    folder: Path, candidates: Sequence[Candidate], share: float, console: Console, looks: Mapping[str, Look]
) -> None:
    """Print how each command compares with the first by the launches that had ended when bench was stopped."""
    pairs = side_by_side(folder, candidates, looks).pairs if results_folder.finished(folder) else ()
    compared.say(console, [pair.so_far(share, compared.LAUNCHES) for pair in pairs] or [NOTHING_YET])


def side_by_side(folder: Path, candidates: Sequence[Candidate], looks: Mapping[str, Look]) -> options.SideBySide:
    """The comparison of the launches of these commands that have ended."""
    unknown = {label: look.unknown for label, look in looks.items() if not look.samples}
    return options.side_by_side(folder, compared.keys_of(candidates, looks), unknown)


def export(folder: Path, place: Path, console: Console) -> None:
    """Copy the results, without what commands wrote themselves, and make their tables and figures."""
    without = shutil.ignore_patterns("looks", "run", observed.SEEN, ".driver")
    shutil.copytree(folder, place, ignore=without, dirs_exist_ok=True)
    options.render(place, None)
    console.print(escape(f"Records, tables and figures: {place}"))


# --- whole runs ---


def run_whole(candidates: Sequence[Candidate], folder: Path, console: Console) -> None:
    """Run each command to its end, WHOLE_LAUNCHES times, in alternating order; what has run is kept.

    Raises HostError for one that fails, KeyboardInterrupt where a signal ends it.
    """
    took: dict[str, float] = {}
    code: dict[str, Mapping[str, str]] = {}  # digests of each program, as its first launch ran it
    compared.say_if_busy(console)
    with compared.started_here(folder) as supervisor:
        for launch in range(1, WHOLE_LAUNCHES + 1):
            for each in candidates[:: 1 if launch % 2 else -1]:
                own = folder / "whole" / f"{launch}-{each.label}"
                done = kept_run(each, own)
                if changed := compared.changed_files(code.setdefault(each.label, done.get("code", {}))):
                    raise HostError(compared.two_versions(each.label, changed, folder))
                if done:
                    took[each.label] = done["seconds"]
                    continue
                left = (WHOLE_LAUNCHES - launch + 1) * sum(took.values())
                about = f", at most {progress.clock(left)} left" if len(took) == len(candidates) else ""
                console.print(f"launch {launch} of {WHOLE_LAUNCHES}: {each.label} runs to its end{about} ...")
                # To look at open files takes time, so it is done of the first launch alone, of all commands.
                watched: contextlib.AbstractContextManager[set[str]] = contextlib.nullcontext(set())
                if launch == 1:
                    watched = leftovers.files_written(folder)
                with watched as wrote:
                    exit = compared.start(each, own, supervisor, None, LONGEST_SECONDS)
                if exit.code != 0:
                    said = compared.last_words(exit, own)
                    raise HostError(f"{each.label} ended with {exit.code}: {each.text}", *said)
                done = ran(each, exit, observe.read(own / observed.SEEN), wrote)
                took[each.label], code[each.label] = exit.seconds, code[each.label] or done["code"]
                store.write_json(own / WHOLE, done)


def kept_run(each: Candidate, own: Path) -> dict[str, Any]:
    """What an earlier whole run of the same command was; empty where there is none."""
    with contextlib.suppress(store.UnreadableRecord):
        known: dict[str, Any] = store.load(own / WHOLE)
        return known if known["command"] == each.started(each.text) else {}
    return {}


def ran(
    each: Candidate, exit: Exit, processes: Sequence[Sequence[Mapping[str, Any]]], wrote: Collection[str]
) -> dict[str, Any]:
    """What a whole run was. `training_seconds`: from the first step to the last, evaluation and saving included; null
    where no step was observed. `wrote`: files outside {run_dir}; `code`: digests of its program."""
    steps = [[line for line in lines if line["kind"] == "step"] for lines in processes]
    trained = [lines for lines in steps if lines]
    spans = [lines[-1]["ended"] - lines[0]["ended"] + lines[0]["seconds"] for lines in trained]
    return {
        "command": each.started(each.text),
        "seconds": exit.seconds,
        "training_seconds": max(spans, default=None),
        "processes": len(trained) or None,
        "steps": max(map(len, trained), default=None),
        "wrote": sorted(wrote),
        "code": {path: digest for path, digest in compared.program(each, processes).items() if path not in wrote},
    }


def whole_verdict(
    folder: Path, candidates: Sequence[Candidate], share: float, console: Console, as_json: bool, metric: str
) -> int:
    """Print what whole runs took, and how they compare with the first; the exit code."""
    said = whole_runs(folder, candidates, metric)
    notes = list(compared.shared_files({label: runs[0].get("wrote", []) for label, runs in said.runs.items()}))
    show(said, notes, folder, share, console, as_json)
    return OK if said.is_resolved(share) else NOT_RESOLVED


def say_whole_so_far(
    folder: Path, candidates: Sequence[Candidate], share: float, console: Console, metric: str
) -> None:
    """Print the same of the whole runs that had ended when bench was stopped."""
    said = whole_runs(folder, candidates, metric)
    compared.say(console, (*said.totals(), *(said.so_far(share, WHOLE_LAUNCHES) or [NOTHING_YET])))


def whole_runs(folder: Path, candidates: Sequence[Candidate], metric: str) -> options.Whole:
    """The comparison of the whole runs of these commands that have ended."""
    started = {each.label: each.started(each.text) for each in candidates}
    return options.whole_runs(folder, started, metric.removeprefix(LOWEST), metric.startswith(LOWEST))
