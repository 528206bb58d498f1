"""Commands that are measured side by side: which they are, what each was seen to do, and how they are interleaved.

    expanded    each command with each of its values: A, B, ...
    looked_at   each is started once, for a few steps: processes, samples and seconds of a step, files it writes
    in_turns    launches of all, as a study of `framework: command` (bench.yaml), until the margin is met

`bench` and `explain` stand on it. All that is written lies in one folder, so the same command goes on where it was.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import math
import os
import re
import shlex
import shutil
import string
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape

from scaling_study import observe, variables
from scaling_study.commands import progress, run
from scaling_study.commands.options import OK, SOME_FAILED, Selection, Trials
from scaling_study.errors import HostError, StudyError
from scaling_study.frameworks import COMMAND
from scaling_study.launch import observed
from scaling_study.launch.launchers import PORT, PORTS
from scaling_study.launch.shared_launch import AMONG_OTHERS
from scaling_study.launch.supervisor import SupervisorClient
from scaling_study.machine import this_machine
from scaling_study.observe.held import WARM_STEPS
from scaling_study.processes import leftovers, process
from scaling_study.processes.process import Exit
from scaling_study.records import outcome, store
from scaling_study.records import results as results_folder
from scaling_study.study import command as placeholders
from scaling_study.study import groups
from scaling_study.study.support import ALONE
from scaling_study.trial import Trial

LOOK_STEPS, LOOK_SECONDS = 10, 600.0
LAUNCHES, MOST_LAUNCHES = 4, 10  # of three the spread would be so little known that the margin often took all ten
BLOCKS, BLOCK_SECONDS = 6, 0.5
LONG_BLOCKS, FEWEST_STEPS = 4, 4  # of a launch, where FEWEST_STEPS steps take longer than BLOCK_SECONDS; of a block
LEAST_TIMEOUT = 120.0
LABELS = string.ascii_uppercase
AXES = ("workers", "batch_per_worker")
LOOK = "look.json"
MODEL = "script:bench"  # of all trials: commands are compared whatever they train
NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")  # of results
PROGRAM = re.compile(r"""[^\s'"|;&<>()]+\.(?:py|sh)(?![\w.])""")  # files that a command names
AGAIN = "failed,timeout,oom"  # what is measured again by the same command: the script may be another now
QUIET = run.Output(quiet=True, no_report=True)
SHELL = "Start each command by `sh -c`: for pipes, redirections and variables."
MINE = "Show how often each command would start, and start nothing."
Key = tuple[str, int, int]  # of a candidate's trials: arguments, workers, batch_per_worker


@dataclass(frozen=True)
class Candidate:
    """One command with its values: what is compared."""

    label: str  # A, B, ...
    command: str
    values: Mapping[str, int]
    by_shell: bool = False
    of: str = ""  # the label of the first candidate of the same command

    @property
    def text(self) -> str:
        """The command with its values filled in, as it is shown."""
        return placeholders.substituted(self.command, self.values)

    def started(self, text: str) -> str:
        """The command that starts `text`."""
        return f"sh -c {shlex.quote(text)}" if self.by_shell else text


@dataclass(frozen=True)
class Look:
    """What a command was seen to do. Samples are of one process and step; None: not known, for the reason `unknown`."""

    processes: int
    samples: int | None
    step_seconds: float = 0.0
    start_seconds: float = 0.0  # to the end of the first step
    command: str = ""
    unknown: str = ""
    apart: str = ""  # why its processes cannot be held between two steps
    wrote: Sequence[str] = ()  # files outside {run_dir}
    code: Mapping[str, str] = field(default_factory=dict)  # digests of the files of its program, by path
    assumed: bool = False  # samples are what was said, and not seen
    device: str = ""  # that it trains on: cpu or cuda

    @property
    def shape(self) -> tuple[int, int]:
        """Workers and samples of its trials; of samples that nobody knows, 1."""
        return self.processes, self.samples or 1


# --- what is asked ---


def expanded(by: str, commands: Sequence[str], asked: Mapping[str, str], by_shell: bool = False) -> Iterator[Candidate]:
    """Every command with every value of the axes that it names. `by`: the command that was called, which errors name.

    Raises StudyError.
    """
    axes = {name: numbers(name, text) for name, text in asked.items()}
    found: list[tuple[int, str, dict[str, int]]] = []
    for place, each in enumerate(map(placeholders.joined, commands)):
        if secret := placeholders.secret_in(each):
            raise StudyError([f"command {place + 1} has {secret}, {placeholders.HIDDEN}"])
        names = placeholders.placeholders(each)
        for unknown in set(names) - {*AXES, *placeholders.OF_A_START}:
            known = ", ".join(f"{{{name}}}" for name in (*AXES, *placeholders.OF_A_START))
            raise StudyError([f"{each!r} has {{{unknown}}}: {by} fills in {known}"])
        own = [name for name in AXES if name in names]
        for name in own:
            if not axes[name]:
                raise StudyError([f"{each!r} has {{{name}}}: give --{name.replace('_', '-')}, like 1,2"])
        rows = itertools.product(*(axes[name] for name in own))
        found += [(place, each, dict(zip(own, row, strict=True))) for row in rows]
    if len(found) > len(LABELS):
        raise StudyError([f"{len(found)} commands with their values; {by} takes at most {len(LABELS)}"])
    first: dict[int, str] = {}
    for label, (place, each, values) in zip(LABELS, found, strict=False):
        candidate = Candidate(label, each, values, by_shell, first.setdefault(place, label))
        if not by_shell and (word := placeholders.for_a_shell(each)):
            what = "write `env` before it" if "=" in word else "quote it"
            why = f"which only a shell reads, and {by} starts commands without one"
            raise StudyError([f"{each!r} has {word}, {why}: give --shell, or {what}"])
        keys = {"command": candidate.started(each), **values, **dict.fromkeys(AXES, 1)}
        if wrong := [message for _, message in placeholders.problems(keys)]:
            raise StudyError(wrong)
        yield candidate


def numbers(name: str, text: str) -> list[int]:
    """`1,2` -> [1, 2], each once. Raises StudyError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if wrong := [word for word in words if not word.isdecimal() or int(word) < 1]:
        raise StudyError([f"--{name.replace('_', '-')} {text}: {wrong[0]!r} is no whole number above 0"])
    return list(dict.fromkeys(map(int, words)))


def samples_of(text: str, labels: Sequence[str]) -> dict[str, int]:
    """`32`, or `A=32,B=64` -> samples of a process and step, by label. Raises StudyError."""
    found: dict[str, int] = {}
    for word in (word.strip() for word in text.split(",") if word.strip()):
        label, equals, number = word.rpartition("=")
        if not number.isdecimal() or int(number) < 1 or (equals and label not in labels):
            right = f"like 32, or like {labels[0]}=32 with a label of {', '.join(labels)}"
            raise StudyError([f"--samples-per-step {text}: {word!r} must be {right}"])
        found |= dict.fromkeys([label] if equals else labels, int(number))
    return found


def folder_of(results: Path, by: str, name: str, candidates: Sequence[Candidate]) -> Path:
    """Where the results of the command `by` go. Raises StudyError for a name that no study may have."""
    if name and not NAME.fullmatch(name):
        raise StudyError([f"--name {name}: letters, digits, dots, dashes and underscores, at most 80"])
    return results / f"{by}-{name or digits(candidates)}"


def digits(candidates: Sequence[Candidate]) -> str:
    """The same for the same commands started in the same folder."""
    asked = json.dumps([os.getcwd(), [[each.started(each.command), dict(each.values)] for each in candidates]])
    return hashlib.sha256(asked.encode()).hexdigest()[:8]


def announce(console: Console, candidates: Sequence[Candidate], folder: Path, often: str = "") -> None:
    """Print what will be started, how often, for how long, and where. `often`: in words, where not interleaved."""
    for each in candidates:
        console.print(f"[bold]{each.label}[/]  {escape(each.text)}")
    look = f"once for a test run ({LOOK_STEPS} steps, at most {progress.clock(LOOK_SECONDS)})"
    often = often or f"{look}, then {LAUNCHES} to {MOST_LAUNCHES} times for some seconds of training"
    console.print(
        f"Each is started {often}, in {escape(os.getcwd())}, as typed and with your rights. "
        f"Results: {escape(str(folder))}"
    )


def say(console: Console, lines: Iterable[str]) -> None:
    """Print lines as they are."""
    for line in lines:
        console.print(escape(line))


def say_if_busy(console: Console) -> None:
    """Print a warning where other processes keep the machine busy: called before anything is started here."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1  # of the whole host, both
    if load > cores:
        busy = f"the machine is busy: load {load:.1f} on {cores} cores in the last minute, before any command started"
        console.print(f"[yellow]Warning:[/] {busy}. Margins and estimated times will be less sure.")


# --- the look ---


def looked_at(
    candidates: Sequence[Candidate], folder: Path, console: Console, given: Mapping[str, int] | None = None
) -> dict[str, Look]:
    """What each command does, from a start of its own or from an earlier one, by label.

    `given`: samples of a process and step by label, where they could not be seen. Raises HostError for a command that
    fails or does what was not asked for, KeyboardInterrupt where a signal ends it.
    """
    found: dict[str, Look] = {}
    say_if_busy(console)
    with started_here(folder) as supervisor:
        for each in candidates:
            own = folder / "looks" / each.label
            look = remembered(each, own)
            if look and changed_files(look.code):
                refuse_two_versions([each], {each.label: look}, folder)
                look = None  # nothing was measured of the other version
            if not look:
                console.print(f"test run of {each.label} ...")
                look = look_at(each, own, supervisor)
                store.write_json(own / LOOK, asdict(look))
            said = (given or {}).get(each.label)
            if said and look.samples not in (None, said):
                raise HostError(
                    f"{each.label}: --samples-per-step says {said}, and {look.samples} were seen. If {said} is right, "
                    f"the script can report it: scaling_study.observe.step({said})"
                )
            samples = look.samples or said or each.values.get("batch_per_worker")
            found[each.label] = look = replace(look, samples=samples, assumed=bool(samples and not look.samples))
            if (asked := each.values.get("workers", look.processes)) != look.processes:
                count = f"{look.processes} process{'es' * (look.processes > 1)} trained"
                raise HostError(f"{each.label}: --workers says {asked}, and {count}: {each.text}")
    for line in (*assumed_samples(found), *shared_files({label: look.wrote for label, look in found.items()})):
        console.print(f"[yellow]Warning:[/] {escape(line)}")
    return found


@contextlib.contextmanager
def started_here(folder: Path) -> Iterator[SupervisorClient]:
    """The one that starts commands whose records go to `folder`; a signal ends what it runs."""
    with (
        results_folder.locked(folder),
        process.Interruption() as interruption,
        SupervisorClient(folder, interruption) as supervisor,
    ):
        yield supervisor


def remembered(each: Candidate, own: Path) -> Look | None:
    """An earlier look at the same command."""
    with contextlib.suppress(TypeError, store.UnreadableRecord):
        look = Look(**store.load(own / LOOK))
        return look if look.command == each.started(each.text) else None
    return None


def program(each: Candidate, processes: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """Digests of the files of a command's program, by path: those that its processes imported, and those it names."""
    named = {os.path.abspath(name) for name in PROGRAM.findall(each.text) if os.path.isfile(name)}
    imported = {path for lines in processes for path in lines[0].get("code", {})}
    return observe.digests(imported | named)


def changed_files(code: Mapping[str, str]) -> list[str]:
    """The files that have other contents now than these digests say."""
    return [path for path, digest in observe.digests(code).items() if digest != code[path]]


def refuse_two_versions(candidates: Sequence[Candidate], looks: Mapping[str, Look], folder: Path) -> None:
    """Raises HostError where the program of a command is another than the one of which launches were measured."""
    measured = {each.trial.arguments for each in results_folder.finished(folder).values() if each.status == "ok"}
    for each in candidates:
        names = {placeholders.written({"command": label}) for label in (each.label, each.of or each.label)}
        if (changed := changed_files(looks[each.label].code)) and names & measured:
            raise HostError(two_versions(each.label, changed, folder))


def two_versions(label: str, changed: Sequence[str], folder: Path) -> str:
    """What to do where these files of a program changed between its launches."""
    return (
        f"{label}: {', '.join(changed)} changed since launches of it were measured, and those of two versions are not "
        f"compared: --name NEW measures again, or remove {folder} first"
    )


def look_at(each: Candidate, own: Path, supervisor: SupervisorClient) -> Look:
    """Start a command for a few steps. Raises HostError with its last words where it makes none."""
    began = time.time()
    with leftovers.files_written(own.parent.parent) as wrote:
        exit = start(each, own, supervisor, LOOK_STEPS, LOOK_SECONDS)
    trained, why = list[Sequence[Mapping[str, Any]]](), ""
    try:
        trained = observed.trained(observe.read(own / observed.SEEN))
    except observed.NotObserved as error:
        said = observed.reason_behind(error, exit, outcome.tail(own / "log.txt", observed.WHOLE_LOG))
        of_ours = exit.code == 0 or exit.lost_sight  # what the observer says explains it, and no exit code
        why = f" and no training step of it was observed{f' ({said})' if of_ours else ''}"
    steps = [[line for line in lines if line["kind"] == "step"] for lines in trained]
    fewest, most = min(map(len, steps), default=0), max(map(len, steps), default=0)
    last = last_words(exit, own)
    if why or (fewest < LOOK_STEPS and (exit.code or fewest == most)):
        how = "took too long" if exit.timed_out else f"ended with {exit.code}"
        how = "was ended" if exit.lost_sight else how
        hint = "" if exit.code else ", too few to interleave (scaling-study bench --whole compares whole runs)"
        needs = observed.needs_input(last[-1]) if exit.code else ""
        raise HostError(f"{each.label} {how}{why or f' after {fewest} steps{hint}'}{needs}: {each.text}", *last)
    if (world := max(int(lines[0].get("world") or 1) for lines in trained)) != len(trained):
        raise HostError(
            f"{each.label} trained in {len(trained)} processes, in a world of {world}, and only processes that train "
            f"together, joined by torch.distributed, Horovod or MPI, are measured: {each.text}"
        )
    ends = [lines[-1] for lines in trained]  # a stage of a pipeline may see no samples
    seen = sorted({round(end["samples_per_step"]) for end in ends if end.get("samples_per_step")})
    if len(seen) > 1:
        theirs = f"{' and '.join(map(str, seen))} samples a step in its processes"
        raise HostError(f"{each.label} takes {theirs}, and only like processes are measured: {each.text}")
    return Look(
        processes=len(trained),
        samples=next(iter(seen), None),
        step_seconds=max(median(step["seconds"] for step in (rank[WARM_STEPS:] or rank)) for rank in steps),
        start_seconds=max(0.0, max(rank[0]["ended"] for rank in steps) - began),
        command=each.started(each.text),
        unknown=ends[0].get("samples_unknown") or "it was ended from outside",
        apart=f"its processes made {fewest} and {most} steps" if fewest < most else "",
        wrote=sorted(wrote),
        code={path: digest for path, digest in program(each, trained).items() if path not in wrote},
        device=str(trained[0][0].get("device") or ""),
    )


def start(each: Candidate, own: Path, supervisor: SupervisorClient, steps: int | None, seconds: float) -> Exit:
    """Run a command, observed, in an empty folder `own`; `steps`: that end it.

    Raises KeyboardInterrupt where a signal ends it.
    """
    shutil.rmtree(own, ignore_errors=True)  # of a start that was interrupted
    seen, run_dir = own / observed.SEEN, own / "run"
    for made in (seen, run_dir):
        made.mkdir(parents=True)
    port, _ = leftovers.choose_port(PORTS[os.getpid() % len(PORTS)], PORTS, supervisor)  # another bench may run
    values = {**each.values, "run_dir": str(run_dir.resolve())}
    argv = [word.replace(PORT, str(port)) for word in placeholders.filled(each.started(each.command), values, {})]
    stale = variables.env_without(variables.removed(os.environ, {}))
    more = observe.environment(os.environ, seen.resolve(), steps)
    unseen = seen / observe.LOST if steps else None  # what runs to its own end does so without the observer too
    exit = supervisor.run([*stale, *argv], more, own / "log.txt", seconds, unseen=unseen)
    if exit.interrupted:
        raise KeyboardInterrupt
    return exit


def last_words(exit: Exit, own: Path) -> list[str]:
    """The last lines that a command printed, or why it did not start."""
    return (exit.error or outcome.tail(own / "log.txt", 600) or "it printed nothing").splitlines()[-6:]


def assumed_samples(looks: Mapping[str, Look]) -> Iterator[str]:
    """A warning for each command whose samples of a step are those that somebody said."""
    for label, look in looks.items():
        if look.assumed:
            each = f"{look.samples} of each process are taken, as the command line says"
            yield f"Samples of a step of {label} were not observed ({look.unknown}): {each}"


def _written_by(descriptor: int) -> str:
    """The file that a descriptor of this process writes; empty where it is none."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return ""


def shared_files(wrote: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A warning for each file that two commands or more were seen to write; `wrote`: the files of each, by label."""
    writers: dict[str, list[str]] = {}
    for label, names in wrote.items():
        for name in names:
            writers.setdefault(name, []).append(label)
    ours = {name for descriptor in (1, 2) if (name := _written_by(descriptor))}  # bench's own output, sent to a file
    for name, labels in writers.items():
        if len(labels) > 1 and name not in ours:
            yield f"{' and '.join(labels)} write the same file, {name}; {{run_dir}} is a fresh folder for each start"


# --- interleaved ---


def in_turns(
    candidates: Sequence[Candidate], looks: dict[str, Look], folder: Path, share: float, console: Console, again: str
) -> int:
    """Measure all commands; the exit code of the sweep.

    One that cannot be held between two steps shows in the first launch: then `looks` says so, and all commands are
    measured in alternating launches.
    """
    known = results_folder.finished(folder)
    say_how_long(console, looks, share)
    for where, later in (("repeat=1", LAUNCHES - 1), ("", 0)):
        file, keys, before = write_study(candidates, looks, folder, share), keys_of(candidates, looks), dict(looks)
        expected = {label: launch_seconds(look, *blocks_of(looks)) for label, look in looks.items()}
        shown = functools.partial(progress.Turns, label_of=label_of(keys), expected=expected, later=later)
        selection = Selection(file, Trials(where=where, retry=AGAIN), folder.parent)
        code = run.start_sweep(selection, ALONE, again, run.How(), QUIET, shown, console)
        if code not in (OK, SOME_FAILED):
            return code
        finished = results_folder.finished(folder)
        failed = [each for each in finished.values() if each.status == "failed" and each.trial.repeat == 1 and where]
        for trial, reason in ((each.trial, each.reason) for each in failed):
            if (label := keys.get(key_of(trial))) and reason.startswith(AMONG_OTHERS) and not why_apart(looks):
                looks[label] = replace(looks[label], apart=reason.removeprefix(AMONG_OTHERS))
                place = folder / "looks" / label / LOOK
                store.write_json(place, {**store.load(place), "apart": looks[label].apart})
        if looks != before:
            say_how_long(console, looks, share)
        elif code == SOME_FAILED:
            return code
    if finished == known:
        console.print(escape(f"Nothing was left to measure: --name NEW measures again, or remove {folder} first."))
    return code


def why_apart(looks: Mapping[str, Look]) -> dict[str, str]:
    """Label -> why a command cannot be interleaved with others."""
    found = {}
    for label, each in looks.items():
        have, what = places(each)
        crowd = f"its {each.processes} processes are more than {have} {what}" if each.processes > have else ""
        trial = Trial(framework=COMMAND, model=MODEL, command=each.command or None, device=each.device or "cpu")
        if why := each.apart or crowd or groups.why_cold(trial):
            found[label] = why
    return found


def places(look: Look) -> tuple[int, str]:
    """How many processes of a command this machine has places for, and of what kind they are."""
    machine = this_machine()
    if look.device != "cuda":
        return machine.cores, "cores"
    return len(machine.gpus), "GPU" if len(machine.gpus) == 1 else "GPUs"


def key_of(trial: Trial) -> Key:
    return trial.arguments or "", trial.workers, trial.batch_per_worker


def keys_of(candidates: Sequence[Candidate], looks: Mapping[str, Look]) -> dict[Key, str]:
    """The keys of each candidate's trials -> its label."""
    return {(spelled[1], *looks[label].shape): label for label, spelled in spellings(candidates, looks).items()}


def label_of(keys: Mapping[Key, str]) -> Callable[[Trial], str]:
    """How the command of a trial is called."""
    return lambda trial: keys[key_of(trial)]


def spellings(candidates: Sequence[Candidate], looks: Mapping[str, Look]) -> dict[str, tuple[str, str]]:
    """Label -> (command, arguments) in the study.

    Candidates of one command share both, braces and all, so that analyses see one command with several numbers of
    workers; where it takes other samples than its {batch_per_worker} says, each is filled in.
    """
    found = {}
    for _, group in itertools.groupby(candidates, key=lambda each: each.of or each.label):
        same = list(group)
        told = all(looks[c.label].samples == c.values.get("batch_per_worker", looks[c.label].samples) for c in same)
        together = told and len({looks[c.label].shape for c in same}) == len(same)
        for each in same:
            text, label = (each.command, same[0].label) if together else (each.text, each.label)
            found[each.label] = (each.started(text), placeholders.written({"command": label}))
    return found


def blocks_of(looks: Mapping[str, Look]) -> tuple[int, float]:
    """(blocks of a launch, seconds of a block): so long that the slowest command makes several steps in a block."""
    seconds = FEWEST_STEPS * max(look.step_seconds for look in looks.values())
    return (BLOCKS, BLOCK_SECONDS) if seconds <= BLOCK_SECONDS else (LONG_BLOCKS, round(seconds, 3))


def launch_seconds(look: Look, blocks: int, block_seconds: float) -> float:
    """About what a command takes of one launch."""
    step = look.step_seconds or block_seconds
    steps = WARM_STEPS + blocks * (1 + max(FEWEST_STEPS, round(block_seconds / step)))
    return look.start_seconds + steps * step


def say_how_long(console: Console, looks: Mapping[str, Look], share: float) -> None:
    """Print how the commands are measured, and about how long that takes."""
    blocks, seconds = blocks_of(looks)
    each = sum(launch_seconds(look, blocks, seconds) for look in looks.values())
    what = "each, alternating" if why_apart(looks) else f"{blocks} interleaved blocks of {seconds:g} s each"
    for label, why in why_apart(looks).items():
        console.print(escape(f"Not interleaved, but in separate launches that alternate: {label}: {why}."))
    console.print(
        f"Estimated by the test runs: about {progress.clock(LAUNCHES * each)} for {LAUNCHES} launches of {what}. More "
        f"launches follow if a margin of ±{100 * share:g} % needs them: at most {MOST_LAUNCHES} in all, about "
        f"{progress.clock(MOST_LAUNCHES * each)}. Ctrl-C stops earlier; the same command resumes."
    )


def study_of(candidates: Sequence[Candidate], looks: Mapping[str, Look], folder: Path, share: float) -> dict[str, Any]:
    """The study of these commands; its results lie in `folder`."""
    blocks, seconds = blocks_of(looks)
    spelled = spellings(candidates, looks)
    sweeps: list[dict[str, Any]] = [
        {
            "framework": "command",
            "model": MODEL,
            "command": spelled[each.label][0],
            "arguments": spelled[each.label][1],
            "workers": looks[each.label].processes,
            "batch_per_worker": looks[each.label].shape[1],
            "workdir": os.getcwd(),
            **({"device": looks[each.label].device} if looks[each.label].device else {}),
            **({"oversubscribe": True} if looks[each.label].processes > places(looks[each.label])[0] else {}),
        }
        for each in candidates
    ]
    longest = max(launch_seconds(look, blocks, seconds) for look in looks.values())
    measure: dict[str, Any] = {
        "interleave": not why_apart(looks),
        **{"blocks": blocks, "block_seconds": seconds, "min_steps": FEWEST_STEPS * blocks, "min_seconds": 0.0},
        **{"launches": LAUNCHES, "max_launches": MOST_LAUNCHES, "target_interval": share, "settled_by": "sign"},
        **{"timeout_seconds": float(max(LEAST_TIMEOUT, math.ceil(5 * longest))), "retries": 1},
    }
    baseline = {name: sweeps[0][name] for name in ("framework", "arguments", "workers", "batch_per_worker")}
    return {"study": folder.name, "baseline": baseline, "parity": False, "measure": measure, "sweeps": sweeps}


def write_study(candidates: Sequence[Candidate], looks: Mapping[str, Look], folder: Path, share: float) -> Path:
    """The study of these commands, as a file that a person can read and change."""
    file = folder / "bench.yaml"
    study = study_of(candidates, looks, folder, share)
    file.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    return file
