"""Fifteen minutes on a GPU: `python -m benchmarks gpu --out DIR [--minutes 12]`, the most valuable figures first.

    setup     environment.offline, of what --carried holds: no network is asked for anything      DIR/setup.txt
    checks    the tests marked gpu: copies, memory, energy, peaks, clocks                         DIR/checks.txt
    study-N   studies/one_gpu.yaml part by part (PARTS): eager beside compiled, three launches    DIR/one-gpu/
              of each in turn, with peaks, the bytes that operators move, phases, and memory
    rounds    python -m benchmarks warm: are interleaved configurations as fast as separate?      DIR/rounds/
    doctor    every framework by every launcher trains one step                                   DIR/doctor.txt
    page      targets, what works, what does not, the figures                                     DIR/README.md

A step gets the time that is left, less RESERVED for the page, and is ended then as by Ctrl-C, which loses no finished
trial. What passed is not run again: the same command goes on where it was. `--device cpu` runs all of it at toy size on
a machine without a GPU: its figures say nothing, but that it runs is known before anybody pays for a GPU.

Only the standard library is imported before the set-up: a container with torch may lack all else.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
STUDY = CHECKOUT / "studies" / "one_gpu.yaml"
RESULTS = "one-gpu"  # the study's name
KEPT = CHECKOUT / ".cache" / "benchmarks" / "warm-on-a-gpu"  # records of the interleaved comparison (warm.py)
RESERVED = 45.0  # seconds for tables, figures and the page; of a short run a fifth of it
STOP_SECONDS = 30.0  # for a step that is ended to end what it started
LEAST_SECONDS = 20.0  # a step that has less is not begun: a launch takes as long
PARTS = {  # `--where` of the study, the most valuable first; `find=`: nothing is searched
    "cuda": (
        "model=gpt2,batch_per_worker=32,find=",
        "model=resnet50,batch_per_worker=776,find=",
        "model=timm:vit_small_patch16_224,find=",
        "model=gpt2,batch_per_worker=64,find=",
        "model=resnet50,batch_per_worker=256,find=",
    ),
    "cpu": ("model=gpt2_tiny,find=", "model=vit_small_dataset_tiny,find="),
}
LAST = ("find=max_batch", "model=vit_small_dataset", "framework=mpi_allreduce,find=")  # after that comparison
LAST_ON_A_CPU = ("framework=mpi_allreduce,find=",)
# docs/internals/claims.md: model, column of configurations.csv, unit, at least so many on one H100 or H200.
TARGETS = (
    ("gpt2", "tokens_per_second", "tokens/s", 400_000.0),
    ("resnet50", "samples_per_second", "images/s", 6_980.0),
    ("timm:vit_small_patch16_224", "samples_per_second", "images/s", 7_716.0),
)
PAGES = (
    *(f"{RESULTS}/tables/{name}" for name in ("utilisation.md", "bottleneck.md", "throughput-*.md", "memory-*.md")),
    f"{RESULTS}/tables/frontier.md",
    "rounds/README.md",
)
CHECKS = ("-m", "pytest", "-m", "gpu", "-rA", "-p", "no:cacheprovider", str(CHECKOUT / "tests" / "gpu"))
STEPS = ("setup", "checks", "study", "rounds", "doctor")


@dataclass(frozen=True)
class Step:
    """A command of this Python, with what it is called. `most`: seconds that it may take, however many are left."""

    name: str
    argv: tuple[str, ...]
    most: float = float("inf")


def main(argv: Sequence[str]) -> int:
    """0: nothing that was tried failed, though time may have been over; 1: something failed, which the page names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for everything; the same one goes on")
    parser.add_argument("--minutes", type=float, default=12.0, help="for all of it, the page included (default: 12)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: all of it at toy size")
    parser.add_argument("--carried", type=Path, help="what `python -m environment.offline fetch` made, to set up from")
    parser.add_argument("--pairs", type=int, default=3, help="of interleaved and separate launches (default: 3)")
    parser.add_argument("--skip", action="append", default=[], choices=STEPS, help="leave this step out")
    asked = parser.parse_args(argv)
    if not asked.minutes > 0:
        parser.error(f"--minutes {asked.minutes:g}: it takes some time")
    if asked.device == "cuda" and not has_gpu():
        parser.error("this machine has no GPU: --device cpu runs the same steps at toy size")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, and so would its children
    reserved = min(RESERVED, 60 * asked.minutes / 5)
    until = time.monotonic() + 60 * asked.minutes - reserved
    asked.out = asked.out.resolve()  # steps run in the checkout
    asked.out.mkdir(parents=True, exist_ok=True)
    said = {
        each.name: run(each, asked.out, until) for each in steps(asked) if each.name.split("-")[0] not in asked.skip
    }
    if asked.device == "cuda" and KEPT.exists():
        shutil.copytree(KEPT, asked.out / "rounds" / "kept", dirs_exist_ok=True)
    if (asked.out / RESULTS / "study.json").exists():
        tables = Step("tables", ("-m", "analysis", str(asked.out / RESULTS)))
        said["tables"] = run(tables, asked.out, time.monotonic() + reserved, again=True)
    (asked.out / "README.md").write_text(page(asked.out, asked.device, said), encoding="utf-8")
    print(f"Page: {asked.out / 'README.md'}; report: {asked.out / RESULTS / 'report.html'}")
    return int(any(word.startswith("failed") for word in said.values()))


def steps(asked: argparse.Namespace) -> Iterator[Step]:
    """In their order."""
    on_cpu = asked.device == "cpu"
    if asked.carried:
        yield Step("setup", ("-m", "environment.offline", "install", "--without-horovod", str(asked.carried.resolve())))
    yield Step("checks", CHECKS, 120.0)
    sweep = (str(CHECKOUT / "run_sweep.py"), str(STUDY), "--results", str(asked.out), "--no-report")
    small = ("--small",) if on_cpu else ()
    first, last = PARTS[asked.device], LAST_ON_A_CPU if on_cpu else LAST
    for number, where in enumerate(first, start=1):
        yield Step(f"study-{number}", (*sweep, *small, "--where", where))
    quick = ("--quick",) if on_cpu else ()
    rounds = ("-m", "benchmarks", "warm", "--pairs", str(asked.pairs), "--results", str(asked.out / "rounds"), *quick)
    yield Step("rounds", rounds)
    for number, where in enumerate(last, start=len(first) + 1):
        yield Step(f"study-{number}", (*sweep, *small, "--where", where))
    yield Step("doctor", (str(CHECKOUT / "run_sweep.py"), "--doctor"))


def run(step: Step, folder: Path, until: float, again: bool = False) -> str:
    """Run a step until that moment at the latest, unless it has passed before. What it prints is kept.

    Returns `passed`, `passed before`, `stopped: ...`, `not run: ...` or `failed: ...`.
    """
    output, passed = folder / f"{step.name}.txt", folder / f"{step.name}.json"
    if passed.exists() and not again:
        return "passed before"
    seconds = min(step.most, until - time.monotonic())
    if seconds < min(LEAST_SECONDS, step.most) and not again:
        return "not run: no time was left"
    print(f"{step.name}: {' '.join(step.argv)}, for {seconds:.0f} s at most", flush=True)
    with output.open("w", encoding="utf-8") as stream:
        argv = [sys.executable, *step.argv]
        running = subprocess.Popen(
            argv, cwd=CHECKOUT, env=environment(), stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = running.wait(timeout=max(seconds, 1.0))
        except subprocess.TimeoutExpired:
            end(running)
            return f"stopped: {seconds:.0f} s were over; the same command goes on"
        except BaseException:
            end(running)
            raise
    if code:
        return f"failed: exit code {code}"
    passed.write_text(json.dumps({"argv": step.argv, "ended": time.time()}), encoding="utf-8")
    return "passed"


def end(running: subprocess.Popen[bytes]) -> None:
    """As by Ctrl-C, with time to write what is whole, then at once. Its process group is its own."""
    os.killpg(running.pid, signal.SIGINT)
    try:
        running.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def has_gpu() -> bool:
    try:
        return b"GPU" in subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).stdout
    except OSError:
        return False


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200"}


def page(folder: Path, device: str, said: dict[str, str]) -> str:
    """DIR/README.md: where it ran, targets, what failed, and the study's own tables."""
    from benchmarks import publish

    about = publish.surroundings()
    lines = [f"# {about['machine']}", ""]
    if device == "cpu":
        lines += ["**On a CPU, at toy size: this shows that it runs. No figure here says anything of a GPU.**", ""]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines += [f"{about['date']}, commit {about['commit']}; {versions}.", "", "## Targets", ""]
    lines += ["| model | target | highest measured | 95 % interval | configuration | verdict |", "|" + " --- |" * 6]
    lines += targets(folder / RESULTS / "configurations.csv")
    lines += ["", "## What ran", ""]
    lines += [f"- {name}: {word}; {last_line(folder / f'{name}.txt')}" for name, word in said.items()]
    failed = [f"{name}: {word}" for name, word in said.items() if word.startswith("failed")]
    failed += [line for name in ("checks", "doctor") for line in failures(folder / f"{name}.txt")]
    failed += failed_trials(folder / RESULTS / "results.csv")
    lines += ["", "## What does not work", "", *(f"    {line}" for line in failed or ["nothing that was tried"])]
    tables = [path for pattern in PAGES for path in sorted(folder.glob(pattern))]
    lines += ["", "## Figures", "", f"All of them: [{RESULTS}]({RESULTS}/report.html).", ""]
    return "\n".join([*lines, *("\n" + path.read_text(encoding="utf-8") for path in tables)])


def targets(file: Path) -> Iterator[str]:
    """A row for each target: the fastest configuration of its model. Met: the whole interval is."""
    every = rows_of(file)
    for model, column, unit, least in TARGETS:
        ours = [row for row in every if row["model"] == model and row[column]]
        wanted = f"| {model} | at least {least:,.0f} {unit} |"
        if not ours:
            yield f"{wanted} not measured | | | open |"
            continue
        best = max(ours, key=lambda row: float(row[column]))
        scale = float(best[column]) / float(best["samples_per_second"])  # tokens of a sample
        low, high = (scale * float(best[f"interval_{name}"] or "nan") for name in ("low", "high"))
        verdict = "met" if low >= least else "missed" if high < least else "not resolved"
        bounds = f"{low:,.0f} to {high:,.0f}" if low == low else "too few launches"
        name = f"{best['series']}, batch {best['batch_per_worker']}"
        yield f"{wanted} {float(best[column]):,.0f} {unit} | {bounds} | {name} | {verdict} |"


def last_line(file: Path) -> str:
    text = file.read_text(encoding="utf-8", errors="replace").strip() if file.exists() else ""
    return text.splitlines()[-1].strip("= ") if text else "it printed nothing"


def failures(file: Path) -> list[str]:
    """The lines of a step's output that name what failed."""
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    return [line.strip() for line in text.splitlines() if re.match(r"(fails|FAILED|ERROR)\b", line)]


def failed_trials(file: Path) -> list[str]:
    """The study's trials that are neither ok nor unsupported, with the reason."""
    rows = [row for row in rows_of(file) if row["status"] not in ("ok", "unsupported")]
    return [f"{row['trial']}: {row['status']} {row['reason']}".rstrip() for row in rows]


def rows_of(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))
