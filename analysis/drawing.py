"""Figures, drawn and written: of a large study several kinds at once, each by a process of its own.

Drawing is most of the work on thousands of trials, and one process draws with one core. The processes are forked, so
they begin with everything that was read and derived (once.py); what comes back is words and paths, as the figures
themselves are on disk by then. Where a process dies, the others' work stays and the rest is drawn here.
"""

from __future__ import annotations

import gc
import io
import math
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import RawIOBase
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from matplotlib.figure import Figure

from analysis import figures, garbage
from analysis.figures import captions, style
from analysis.files import replaced
from analysis.results import Results
from analysis.salvage import NOTHING, Salvage

UNDATED = {"Date": None}  # the same results are the same file
MOST_PROCESSES = 8  # each holds what it changes of the results
SEVERAL_FROM = 500  # trials; of fewer, drawing takes less than it would take to share it out
DPI, MOST_PIXELS = 200, 8_000_000  # of a PNG; whoever looks closer at a poster has the SVG
TAG = re.compile(rb"<[^>]+>")  # matplotlib writes no > in an attribute
GEOMETRY = re.compile(rb'\b(?:d|x|y|x1|x2|y1|y2|width|height|points|transform)="[^"]*"')
FURTHER = re.compile(rb"(\.\d\d)\d+")
FAST = {"compress_level": 3}  # of PNG: figures are no larger for it than with the usual 6
Kind = tuple[str, Callable[[], figures.Made]]


@dataclass(frozen=True)
class Drawn:
    """One figure on disk: its name, its files, its title, and all that is written around its panels."""

    name: str
    paths: tuple[Path, ...]
    title: str
    text: str


def write(results: Results, folder: Path, salvage: Salvage = NOTHING, processes: int = 1) -> list[Drawn]:
    """Every figure of the study, in the order in which they are looked at. Raises OSError."""
    kinds = list(figures.kinds(results))
    several = processes > 1 and len(results.trials) > SEVERAL_FROM and sys.platform == "linux"
    drawn: list[Drawn] = []
    with garbage.only_new():
        made = _at_once(results, folder, kinds, salvage.strict, processes) if several else {}
        for index, kind in enumerate(kinds):
            if index not in made:
                drawn += _kind(results, folder, kind, salvage)
            else:
                some, lost = made[index]
                drawn += some
                salvage.lost += [said for said in lost if said not in salvage.lost]
    return drawn


def processes() -> int:
    """How many may be at work on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def _at_once(
    results: Results, folder: Path, kinds: Sequence[Kind], strict: bool, processes: int
) -> dict[int, tuple[list[Drawn], list[str]]]:
    """Place in `kinds` -> its figures, and what was lost; without those that a process died over. Raises what one of
    them raised.

    Tasks wait in a pipe that is full before the first fork, and each process takes the next: no lock that a process
    could die with, and nobody waits for a process that was never made.
    """
    context = multiprocessing.get_context("fork")
    made: dict[int, tuple[list[Drawn], list[str]]] = {}
    tasks, filled = os.pipe()
    with open(tasks, "rb", buffering=0) as queue, open(filled, "wb", buffering=0) as end:
        end.write(bytes(reversed(range(min(len(kinds), 256)))))  # last ones first: those draw a figure of every model
        end.close()
        work = partial(_work, results, folder, kinds, strict, queue)
        drawing: dict[Connection, Any] = {}
        try:
            for _ in range(min(processes, len(kinds))):
                ours, theirs = context.Pipe(duplex=False)
                with theirs:
                    process = context.Process(target=work, args=(theirs,), daemon=True)
                    try:
                        process.start()
                    except OSError:  # no room for another process: those that there are draw
                        ours.close()
                        break
                drawing[ours] = process
            for index, said in _heard(list(drawing)):
                if isinstance(said, Exception):
                    raise said
                made[index] = said
        finally:
            for ours, process in drawing.items():
                ours.close()
                if process.is_alive() and len(made) < len(kinds):
                    process.terminate()
                process.join()
    if any(process.exitcode for process in drawing.values()):
        for kind in ("png", "svg"):  # what one of them was writing
            for half in folder.glob(f".*.{kind}.????????"):
                half.unlink(missing_ok=True)
    return made


def _heard(ours: list[Connection]) -> Iterator[tuple[int, Any]]:
    """What processes say, until the last of them is done or dead."""
    while ours:
        for one in cast("list[Connection]", wait(ours)):
            try:
                yield one.recv()
            except (EOFError, OSError):
                ours.remove(one)


def _work(
    results: Results, folder: Path, kinds: Sequence[Kind], strict: bool, queue: RawIOBase, theirs: Connection
) -> None:
    """What a forked process does: one task after the other, as long as there are some."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who began it ends it
    while taken := queue.read(1):
        salvage, index = Salvage(strict=strict), taken[0]
        try:
            theirs.send((index, (_kind(results, folder, kinds[index], salvage), salvage.lost)))
        except Exception as error:
            theirs.send((index, error))


def _kind(results: Results, folder: Path, kind: Kind, salvage: Salvage) -> list[Drawn]:
    name, make = kind
    with garbage.ignored(), style.applied():
        made = figures.of_kind(name, make, results, salvage)
        drawn = [save(name, figure, folder) for name, figure in made.items()]
        del made
        gc.collect(0)  # what is young: the figures, and none of what was derived for those before
    return drawn


def save(name: str, figure: Figure, folder: Path) -> Drawn:
    """As PNG, for looking at, and as SVG, for a paper."""
    with style.applied():
        across, up = figure.get_size_inches()
        dpi = min(DPI, math.sqrt(MOST_PIXELS / (across * up)))
        png = partial(figure.savefig, format="png", dpi=dpi, pil_kwargs=FAST)
        paths = replaced(folder / f"{name}.png", png), replaced(folder / f"{name}.svg", partial(_vectors, figure))
    return Drawn(name, paths, *captions.words(figure))


def _vectors(figure: Figure, path: Path) -> None:
    """SVG to a hundredth of a point: of the six digits that matplotlib writes nobody sees the last four."""
    whole = io.BytesIO()
    figure.savefig(whole, format="svg", metadata=UNDATED)
    path.write_bytes(TAG.sub(_rounded, whole.getvalue()))


def _rounded(tag: re.Match[bytes]) -> bytes:
    return GEOMETRY.sub(lambda place: FURTHER.sub(rb"\1", place[0]), tag[0])


def paths(drawn: Iterable[Drawn]) -> list[Path]:
    return [path for one in drawn for path in one.paths]
