"""Verdicts that are gathered over several runs: rows of a CSV, each a dataclass, and a loop that adds to them.

What is finished is a row, what was interrupted goes on with the next run, and `--minutes` bounds one.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.options import Options
from benchmarks.paired import Finding
from scaling_study.machine import this_machine
from scaling_study.settings import commit, utc_now

R = TypeVar("R")
Gather = Callable[[Path, Path, Options], None]
OF_TEXT: Mapping[Any, Callable[[str], Any]] = {  # by the type of a field, as it is written
    "int": int, "float": float, "str": str, "float | None": lambda text: float(text) if text else None,
}  # fmt: skip


def here(load: float) -> dict[str, Any]:
    """Columns of when and where; `load`: of the machine before it."""
    return {"commit": commit(), "date": utc_now(), "machine": str(this_machine()), "load": round(load, 2)}


def read(data: Path, kind: type[R]) -> list[R]:
    """All rows that were kept."""
    if not data.exists():
        return []
    types = {field.name: OF_TEXT[field.type] for field in fields(kind)}
    with data.open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    return [kind(**{name: types[name](text) for name, text in line.items()}) for line in lines]


def add(data: Path, rows: Sequence[R]) -> None:
    """These rows, all or none of them."""
    data.parent.mkdir(exist_ok=True)
    half, kind = data.with_suffix(".half"), type(rows[0])
    with half.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [field.name for field in fields(kind)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in [*read(data, kind), *rows])
    half.replace(data)


def findings(
    options: Options, data: Path, kept: Path, gather: Gather, judged: Callable[[list[Any]], Iterable[Finding]], row: Any
) -> list[Finding]:
    """Gather more rows, until there are enough or somebody stops it, and judge all. `kept`: the folder to work in."""
    with options.work(kept) as work:
        data = work / data.name if options.quick else data
        try:
            gather(work, data, options)
        except KeyboardInterrupt:
            print("  stopped: the same command goes on with this one", flush=True)
        return list(judged(read(data, row)))


class Patience:
    """Whether there is time for one more, which may take as long as the longest so far."""

    def __init__(self, minutes: float | None) -> None:
        self.minutes, self.longest, self.start = minutes, 0.0, time.monotonic()
        self.began = self.start

    def for_another(self) -> bool:
        """Where there is, it begins now."""
        self.began = time.monotonic()
        return self.minutes is None or self.began - self.start + self.longest <= 60 * self.minutes

    def ended(self) -> None:
        self.longest = max(self.longest, time.monotonic() - self.began)
