"""Counts of injections and of what did not hold after each: one JSON, one table, one bound.

    python tests/faults/ledger.py docs/reliability/*.json     # docs/reliability/counts.csv, and the sums in the page

Of several files the faults of one counted later replace those of an earlier: what was mended is counted anew.

Nothing seen in n tries bounds the probability by 1 - 0.05^(1/n) at 95 %: about 3/n (Hanley & Lippman-Hand,
"If nothing goes wrong, is everything all right?", JAMA 249, 1983).
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORM = os.environ.get("FAULTS", "short")  # how often each process fault is injected, and at which random moments
SEED = os.environ.get("FAULTS_SEED", "1")
if FORM not in ("short", "long"):
    raise SystemExit(f"FAULTS={FORM}: short or long")
TIMES = {"short": 1, "long": 20}[FORM]
FEWEST = 50  # injections that a bound says anything about
COUNTED = ("lost", "repeated", "half_written", "orphans", "leftovers", "wrong")
TITLES = (
    "fault", "injections", "lost", "run twice", "half-written", "orphans", "left behind", "wrong", "slowest end, s",
    "skipped",
)  # fmt: skip
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, COUNTS = DOCS / "internals" / "reliability.md", DOCS / "reliability" / "counts.csv"
BEGIN, END = "<!-- counted: begin -->", "<!-- counted: end -->"


@dataclass
class Row:
    """One injection. Each list names what did not hold; all empty: it was survived."""

    fault: str
    family: str  # process, rank or environment
    detail: str = ""  # which launcher, which garbage
    moment_seconds: float | None = None  # after the driver's start, or the trial's
    seed: str = ""
    lost: list[str] = field(default_factory=list)  # finished trials whose record is gone or changed
    repeated: list[str] = field(default_factory=list)  # finished trials that were started again
    half_written: list[str] = field(default_factory=list)  # records that are not whole and were taken as good
    orphans: list[str] = field(default_factory=list)  # processes alive after 10 s
    leftovers: list[str] = field(default_factory=list)  # temporary files, segments of shared memory
    wrong: list[str] = field(default_factory=list)  # exit code, status, message, result
    ended_seconds: float | None = None  # until the last process was gone
    skipped: str = ""

    @property
    def faults(self) -> list[str]:
        return [f"{name}: {what}" for name in COUNTED for what in getattr(self, name)]

    def __str__(self) -> str:
        place = " ".join(filter(None, [self.fault, self.detail]))
        when = f" at {self.moment_seconds:.3f} s" if self.moment_seconds is not None else ""
        return f"{place}{when} (seed {self.seed}): {self.skipped or '; '.join(self.faults) or 'held'}"


@dataclass
class Ledger:
    form: str
    rows: list[Row] = field(default_factory=list)
    soak: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        injected = [row for row in self.rows if not row.skipped]
        pooled = [row for row in injected if row.family != "environment"]
        return {
            "form": self.form,
            "injections": len(injected),
            **{name: sum(len(getattr(row, name)) for row in injected) for name in COUNTED},
            "process_injections": len(pooled),
            "process_injections_with_a_fault": sum(bool(row.faults) for row in pooled),
            "bound": bound(len(pooled)) if len(pooled) >= FEWEST and not any(row.faults for row in pooled) else None,
            "rows": [asdict(row) for row in self.rows],
            "soak": self.soak,
        }

    def add(self, said: Mapping[str, Any]) -> None:
        """Add what another process has counted (its `to_json`)."""
        self.rows += [Row(**row) for row in said.get("rows", ())]
        self.soak = self.soak or said.get("soak", {})

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text({**about(), **self.to_json()}), encoding="utf-8")


def text(said: Mapping[str, Any]) -> str:
    """JSON: one line a count, then one line an injection, which has only what a Row does not say by default."""
    rows = [
        json.dumps({name: value for name, value in row.items() if value not in ([], None, "")}) for row in said["rows"]
    ]
    head = json.dumps({name: value for name, value in said.items() if name != "rows"}, indent=1)
    return head.removesuffix("\n}") + ',\n "rows": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"


def bound(injections: int) -> float:
    """The probability of a failure that zero of so many exclude at 95 %."""
    return 1 - 0.05 ** (1 / injections)


def about() -> dict[str, Any]:
    """When and where: what a count without it would not be worth."""
    from scaling_study.machine import this_machine
    from scaling_study.settings import commit, utc_now

    return {
        "date": utc_now(), "commit": commit(), "machine": str(this_machine()), "python": platform.python_version(),
        "kernel": platform.release(), "load_after": os.getloadavg()[0],
        "user": "root" if os.geteuid() == 0 else "a user without rights",
    }  # fmt: skip


def table(said: Mapping[str, Any]) -> str:
    """CSV: one line a fault, its injections pooled."""
    lines = io.StringIO()
    out = csv.writer(lines, lineterminator="\n")
    out.writerow(TITLES)
    for fault in dict.fromkeys(row["fault"] for row in said["rows"]):
        rows = [row for row in said["rows"] if row["fault"] == fault]
        done = [row for row in rows if not row["skipped"]]
        ended = [row["ended_seconds"] for row in done if row["ended_seconds"] is not None]
        counts = [sum(len(row[name]) for row in done) for name in COUNTED] if done else [""] * len(COUNTED)
        skipped = "" if done else rows[0]["skipped"]
        out.writerow([fault, len(done), *counts, f"{max(ended):.1f}" if ended else "", skipped])
    return lines.getvalue()


def summary(said: Mapping[str, Any]) -> str:
    """The sums over all faults, the bound that they give, and the soak."""
    sums = (
        f"{said['injections']} injections: {said['lost']} records lost, {said['repeated']} trials run twice, "
        f"{said['half_written']} half-written records believed, {said['orphans']} orphans, {said['leftovers']} things "
        f"left behind, {said['wrong']} wrong outcomes."
    )
    if said["bound"] is not None:
        n = said["process_injections"]
        sums += (
            f" All {n} process faults were survived: at 95 % confidence fewer than {said['bound']:.2%} are not "
            f"(1 - 0.05^(1/{n}))."
        )
    soak = [f"{name.replace('_', ' ')} {shown(value)}" for name, value in said["soak"].items()]
    return f"{sums} The soak: {'; '.join(soak)}." if soak else sums


def joined(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The counts of several, by their dates, whatever they are called."""
    files = sorted(files, key=lambda said: str(said["date"]))
    rows: list[Mapping[str, Any]] = []
    ledger = Ledger(files[0]["form"])
    for said in files:
        anew = {row["fault"] for row in said["rows"]}
        rows = [row for row in rows if row["fault"] not in anew] + said["rows"]
        ledger.soak = said["soak"] or ledger.soak
    ledger.rows = [Row(**row) for row in rows]
    return ledger.to_json()


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(shown(one) for one in value) if isinstance(value, list) else str(value)


def main(paths: Sequence[str]) -> None:
    """Write docs/reliability/counts.csv, and the sums into docs/internals/reliability.md."""
    said = joined([json.loads(Path(path).read_text(encoding="utf-8")) for path in paths])
    COUNTS.write_text(table(said), encoding="utf-8")
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n{summary(said)}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
