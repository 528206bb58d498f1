"""Public training scripts, unmodified: does the observer see what they print?

    python -m benchmarks public_scripts --folder CHECKOUTS            those that data/public_scripts.csv lacks
    python -m benchmarks public_scripts --folder CHECKOUTS --fresh    all of them

CHECKOUTS/OWNER+NAME is a clone of github.com/OWNER/NAME; CHECKOUTS/site holds packages that this environment lacks
(pip install --target). Nothing of them is part of this project.

Claimed: of the scripts in public_recipes.py at least 15 run as they are, and are seen as they print.

Measured: each is started twice. Observed, it is ended after some steps, or runs to its end: processes, steps, samples
of a step and exit code must be what its arguments say, and each printed loss must be the one that was given to
backward, up to the digits that are printed. Not observed, it must print the same losses, where it sets a seed.

Not shown: GPUs, more than two processes, and speed, which other benchmarks hold.
"""

from __future__ import annotations

import csv
import math
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from benchmarks.options import Options, Unavailable
from benchmarks.paired import Bar, Finding, exact
from benchmarks.public_recipes import DATA, SCRIPTS, Script
from scaling_study import observe
from scaling_study.processes import process
from scaling_study.records import outcome
from scaling_study.settings import data_root

TABLE = Path(__file__).with_name("data") / "public_scripts.csv"
LEAST = 15
SECONDS = 300.0  # that a script is given
FIGURES = ("processes", "steps", "samples", "losses", "without")
COLUMNS = ("repository", "script", "commit", "command", *FIGURES, "verdict", "why")
EQUAL, UNLIKE, DID_NOT_RUN = "equal", "unlike", "did not run"
QUICK = Script(
    "scaling-study/quick", "train.py", "{python} train.py", samples=8, steps=4,
    prints=r"step (?P<step>\d+) loss (?P<loss>[\d.]+)",
)  # fmt: skip
QUICK_SOURCE = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, x in enumerate(torch.randn(64, 4).split(8)):
    optimizer.zero_grad()
    loss = (model(x) ** 2).mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
"""
Row = dict[str, str]
Lines = list[dict[str, Any]]  # of one process, as observe.read gives them


def run(options: Options) -> list[Finding]:
    with tempfile.TemporaryDirectory(prefix="public-") as made, process.Interruption() as stop:
        if options.quick:
            return [finding([of_quick(Path(made), stop)])]
        if options.folder is None:
            raise Unavailable("--folder CHECKOUTS does not say where the clones are")
        kept = [] if options.fresh or not TABLE.exists() else read()
        rows = {(row["repository"], row["script"]): row for row in kept}
        for script in SCRIPTS:
            key = (script.repository, script.path)
            if key in rows and is_of(script, rows[key]):
                continue
            rows[key] = row_of(script, options.folder, Path(made), stop)
            if stop.signal is not None:
                raise KeyboardInterrupt
            print("  ".join(rows[key][name] for name in ("repository", "script", "verdict", "why")), flush=True)
            write([rows[s.repository, s.path] for s in SCRIPTS if (s.repository, s.path) in rows])
    found = [rows[script.repository, script.path] for script in SCRIPTS]
    write(found)
    return [finding(found)]


def of_quick(work: Path, stop: process.Interruption) -> Row:
    """The row of a script that needs no clone."""
    (work / folder_of(QUICK)).mkdir()
    (work / folder_of(QUICK) / QUICK.path).write_text(QUICK_SOURCE, encoding="utf-8")
    return row_of(QUICK, work, work, stop)


def finding(rows: Sequence[Mapping[str, str]]) -> Finding:
    """How many were seen as they print, of those that were tried."""
    equal = sum(row["verdict"] == EQUAL for row in rows)
    ran = sum(row["verdict"] != DID_NOT_RUN for row in rows)
    claim = f"public scripts, unmodified: {len(rows)} tried, {ran} ran; seen as they print"
    return exact(claim, equal, Bar(low=LEAST), "scripts", n=len(rows), rows=list(rows))


# --- starting one ---


@dataclass(frozen=True)
class Started:
    """A script that was started, and has ended."""

    text: str  # that it printed
    exit: process.Exit
    processes: Sequence[Lines] = ()  # that the observer saw


def row_of(script: Script, checkouts: Path, work: Path, stop: process.Interruption) -> Row:
    about = {"repository": script.repository, "script": script.path, "command": script.command}
    checkout = checkouts / folder_of(script)
    if why := script.cannot or ("" if checkout.is_dir() else f"{folder_of(script)} is not among the clones"):
        return {**dict.fromkeys(COLUMNS, ""), **about, "verdict": DID_NOT_RUN, "why": why}
    for name, place in script.needs:
        DATA[name](checkout / script.folder / place)
    observed = started(script, checkouts, work, stop)
    plain = started(script, checkouts, work, stop, 2 * observed.exit.seconds + 10) if script.seeded else None
    return {**about, "commit": commit_of(checkout), **judged(script, observed, plain)}


def folder_of(script: Script) -> str:
    return script.repository.replace("/", "+")


def started(
    script: Script, checkouts: Path, work: Path, stop: process.Interruption, plain_seconds: float | None = None
) -> Started:
    """Start a script, observed, or without the observer for so many seconds at most."""
    with tempfile.TemporaryDirectory(dir=work) as made, socket.socket() as free:
        new, seen, log = (Path(made) / name for name in ("new", "seen", "log.txt"))
        for folder in (new, seen):
            folder.mkdir()
        free.bind(("127.0.0.1", 0))
        values = {"python": sys.executable, "port": free.getsockname()[1], "data": data_root().resolve(), "new": new}
        free.close()
        env = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "PYTHONPATH": str((checkouts / "site").resolve()),  # in place of this checkout, whose packages they lack
            "PYTHONUNBUFFERED": "1",  # so that all is seen of what is ended
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        if plain_seconds is None:
            env |= observe.environment(env, seen, script.steps)
        words = shlex.split(re.sub(r"\{(\w+)\}", lambda found: str(values[found[1]]), script.command))
        argv = ["env", "-C", str((checkouts / folder_of(script) / script.folder).resolve()), *words]
        exit = process.run(argv, env, log, plain_seconds or SECONDS, stop)
        return Started(log.read_text(encoding="utf-8", errors="replace"), exit, observe.read(seen))


def commit_of(checkout: Path) -> str:
    if not (checkout / ".git").exists():
        return ""
    asked = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


# --- what it prints against what was seen ---


@dataclass(frozen=True)
class Line:
    """A printed loss: of which step (0: the first that the observer sees), and of which process if it says so."""

    step: int
    loss: str
    rank: str = ""
    pid: str = ""
    backwards: str = ""


def lines_of(script: Script, text: str) -> Iterator[Line]:
    for count, found in enumerate(re.finditer(script.prints, text) if script.prints else ()):
        said = {name: value for name, value in found.groupdict().items() if value is not None}
        step = int(said["step"]) - script.first if "step" in said else count
        if "rows" in said:
            step = int(said["rows"]) // int(script.samples or 1)
        yield Line(step, said.get("loss", ""), *(said.get(name, "") for name in ("rank", "pid", "backwards")))


def judged(script: Script, observed: Started, plain: Started | None) -> Row:
    """The row's figures, its verdict and why."""
    trained = [lines for lines in observed.processes if any(line["kind"] == "step" for line in lines)]
    if not trained:
        why = observed.exit.error or outcome.last_exception(observed.text) or last_line(observed.text)
        return {**dict.fromkeys(FIGURES, ""), "verdict": DID_NOT_RUN, "why": why}
    end = trained[0][-1]
    steps = min(sum(line["kind"] == "step" for line in lines) for lines in trained)
    worlds = {int(lines[0].get("world") or 1) for lines in trained}
    wanted = script.steps or script.makes or steps
    count, wrong = losses_compared(script, trained, lines_of(script, observed.text))
    same, apart = printed_alike(script, observed, plain) if plain else (0, "")
    checks = (
        (observed.exit.code == 0, f"it ended with {observed.exit.code}"),
        (len(trained) == script.processes, f"{len(trained)} processes trained, it starts {script.processes}"),
        (worlds == {script.world or script.processes}, f"worlds of {sorted(worlds)} processes were seen"),
        (steps == wanted, f"{steps} steps were seen, it makes {wanted}"),
        (end.get("samples_per_step") == script.samples, f"samples: by its arguments {script.samples or 'not known'}"),
        (bool(count) == bool(script.prints), "it printed no loss of a step that was seen"),
        (not wrong, wrong),
        (not apart, apart),
    )
    why = [said for holds, said in checks if not holds]
    said = [*why, *filter(None, [script.note, end.get("samples_unknown")])]
    shown_losses, alike = count if script.prints else None, same or None
    figures = (len(trained), steps, end.get("samples_per_step"), shown_losses, alike)
    shown = ("" if figure is None else f"{figure:g}" for figure in figures)
    verdict = {"verdict": UNLIKE if why else EQUAL, "why": "; ".join(said)}
    return {**dict(zip(FIGURES, shown, strict=True)), **verdict}


def losses_compared(script: Script, trained: Sequence[Lines], printed: Iterable[Line]) -> tuple[int, str]:
    """(printed losses of steps that were seen, the first of them that is not what was seen, in words)."""
    losses = [[as_number(line["loss"]) for line in lines if line["kind"] == "step"] for lines in trained]
    who = [(str(lines[0].get("rank")), str(lines[0]["pid"])) for lines in trained]
    made = max(lines[-1].get("backwards", 0) for lines in trained)
    count, wrong = 0, []
    for line in printed:
        if line.backwards:  # said at the end, with the loss of a step that nothing has ended
            count += 1
            if int(line.backwards) != made:
                wrong.append(f"it says {line.backwards} backward passes, {made} were seen")
            continue
        theirs = [seen for seen, whose in zip(losses, who, strict=True) if matches(line, *whose)]
        expected = [script.means(seen, line.step) for seen in theirs if 0 <= line.step < len(seen)]
        count += bool(expected)
        if expected and not any(abs(float(line.loss) - value) <= half_a_digit(line.loss) for value in expected):
            wrong.append(f"step {line.step}: it prints {line.loss}, {expected[0]:.6g} was seen")
    return count, next(iter(wrong), "")


def as_number(loss: float | None) -> float:
    return math.nan if loss is None else loss


def matches(line: Line, rank: str, pid: str) -> bool:
    return line.rank in ("", rank) and line.pid in ("", pid)


def half_a_digit(number: str) -> float:
    """The most by which a printed number is off: half of its last digit, and rounding of fp32."""
    exponent = Decimal(number).as_tuple().exponent
    assert isinstance(exponent, int)
    return 0.51 * 10.0**exponent + 2e-6 * abs(float(number))


def printed_alike(script: Script, observed: Started, plain: Started) -> tuple[int, str]:
    """(losses that both runs printed, the first that only the observed one did, in words)."""
    without = {(line.step, line.rank, line.loss) for line in lines_of(script, plain.text)}
    furthest = max((step for step, _, _ in without), default=0)  # of one that was ended, ranks may lack the last
    here = [line for line in lines_of(script, observed.text) if line.step < furthest or not plain.exit.timed_out]
    apart = [line for line in here if (line.step, line.rank, line.loss) not in without]
    said = f"step {apart[0].step}: without the observer it does not print {apart[0].loss}" if apart else ""
    return len(here) - len(apart), said


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it printed nothing"


# --- the table ---


def is_of(script: Script, row: Mapping[str, str]) -> bool:
    """Whether a row is what this recipe gives, and a later clone would change nothing of it."""
    if script.cannot:
        return row["why"] == script.cannot
    return bool(row["commit"]) and row["command"] == script.command


def read(file: Path = TABLE) -> list[Row]:
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def write(rows: Sequence[Mapping[str, str]]) -> None:
    with TABLE.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
