"""Is a difference between frameworks really one of precision? F7: "fp16" of compute here and of the wire there; F21:
DDP in fp32 against FSDP in fp16.

A speed-up is only ever taken at one precision of compute (baseline.py), and the two kinds of fp16 are two columns. What
is left is a study whose frameworks have no precision in common, where whoever ranks them ranks precisions; and one in
which 16 bits are computed in by one framework and sent by another, where whoever sets the two gains side by side does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from analysis.findings import finding
from analysis.findings.evidence import Evidence, grouped
from analysis.findings.finding import DOUBT, WRONG, Finding, Row
from analysis.frames.baseline import values_of

TITLES = {
    "precision": ("F21", "Frameworks at unlike precision", "compute in"),
    "allreduce": ("F7", "Frameworks with unlike precision on the wire", "reduce gradients in"),
}


NARROW = ("fp16", "bf16")
MEANINGS = "two meanings"


def mixed_precisions(evidence: Evidence) -> Iterator[Finding]:
    """For each model and number of workers, and each of the two precisions, once."""
    seen = set()
    for (model, workers), rows in grouped(evidence.rows, lambda row: (str(row["model"]), row["workers"])).items():
        for key in TITLES:
            on = finding.count(int(workers), "worker")
            if (model, key) not in seen and (mixed := _unlike(rows, key, f"{model} on {on}")):
                seen.add((model, key))
                yield mixed
        if (model, MEANINGS) not in seen and (mixed := _two_meanings(rows, model, int(workers))):
            seen.add((model, MEANINGS))
            yield mixed
    trained = [row for row in evidence.rows if any(evidence.fact(row, "training"))]
    for model, rows in grouped(trained, lambda row: str(row["model"])).items():
        if (model, "precision") not in seen and (mixed := _unlike(rows, "precision", f"{model}, trained to a result,")):
            yield mixed


def _two_meanings(rows: list[Row], model: str, workers: int) -> Finding | None:
    """Frameworks that only ever compute in 16 bits, beside others that only ever send them."""
    computed, sent = (
        {name for name, of in grouped(rows, lambda row: str(row["framework"])).items() if any(map(narrow, of))}
        for narrow in (_computes, _sends)
    )
    compute, wire = sorted(computed - sent), sorted(sent - computed)
    if not compute or not wire:
        return None
    text = (
        f"With {model} on {finding.count(workers, 'worker')} 16 bits mean computing in them in {', '.join(compute)}, "
        f"and fp32 computing with 16-bit gradients on the wire in {', '.join(wire)}: two gains, two questions. "
        "Run each framework both ways, or set like beside like."
    )
    concerned = [
        row for row in rows
        if (row["framework"] in compute and _computes(row)) or (row["framework"] in wire and _sends(row))
    ]  # fmt: skip
    return finding.about("F7", "Two meanings of 16 bits", text, DOUBT, concerned)


def _computes(row: Row) -> bool:
    return str(row["precision"]) in NARROW


def _sends(row: Row) -> bool:
    return str(row["allreduce"]) in NARROW and not _computes(row)


def _unlike(rows: list[Row], key: str, of: str) -> Finding | None:
    """Two frameworks that share no value of this key."""
    had = {
        name: {value for row in of for value in map(str, values_of(row, [key])) if value != "none"}
        for name, of in grouped(rows, lambda row: str(row["framework"])).items()
    }
    apart = [(a, b) for a, b in itertools.combinations(sorted(had), 2) if had[a] and had[b] and not had[a] & had[b]]
    if not apart:
        return None
    flaw, title, does = TITLES[key]
    names = sorted({name for pair in apart for name in pair})
    each = "; ".join(f"{name} in {' and '.join(sorted(had[name]))}" for name in names)
    text = (
        f"With {of} frameworks {does} unlike precisions, so their difference "
        f"is one of precision, whatever else it is: {each}. Run them in one that they have in common."
    )
    return finding.about(flaw, title, text, WRONG, [row for row in rows if row["framework"] in names])
