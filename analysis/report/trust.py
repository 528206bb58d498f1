"""Can you trust it: parity, warnings, the machine's noise, what failed and why, what is not compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pandas as pd

from analysis.findings import Evidence, Finding, count, name_of
from analysis.frames import configurations
from analysis.frames.results import Results
from analysis.frames.rows import as_rows
from analysis.frames.trials import NOT_CHECKED, PASSED
from analysis.report import answer
from analysis.report.page import (
    DOUBT,
    GOOD,
    NOTE,
    WRONG,
    Bullets,
    Fold,
    Heading,
    Material,
    Part,
    Section,
    Text,
    figures_or_gaps,
    missing,
    of_rows,
)
from analysis.statistics import ranking
from analysis.text import first_few, first_of
from analysis.views import catalog, noise
from scaling_study.errors import shortened
from scaling_study.frameworks import COMMAND
from scaling_study.study import support

MOST_NAMES, MOST_CONCERNED, MOST_SKIPPED, MOST_WORDS = 6, 40, 50, 600


def section(material: Material) -> Section:
    results = material.results
    parts = []
    for what, make in (
        ("warnings", lambda: _warnings(material.findings, results)),
        ("which flaws were looked for", lambda: _scope(results)),
        ("parity", lambda: _parity(results)),
        ("the machine's noise and drift", lambda: _machine(material)),
        ("what failed", lambda: _failed(results)),
        ("what is not compared", lambda: _compared(results)),
        ("records that could not be read", lambda: _skipped(material)),
    ):
        parts += material.parts(what, make)
    summary = material.text("what can be said of it in a line", lambda: lead(material.findings, results))
    return Section("trust", "Can you trust it", summary, tuple(parts))


def lead(findings: list[Finding], results: Results) -> str:
    counts = Counter(finding.severity for finding in findings)
    counted = [f"{counts[WRONG]} wrong"] if counts[WRONG] else []
    counted += [count(counts[kind], kind) for kind in (DOUBT, NOTE) if counts[kind]]
    none = "No warnings." if (results.configurations.n > 0).any() else "Nothing was measured."
    warnings = f"Warnings: {', '.join(counted)}." if findings else none
    return f"{warnings} {parity_text(results)} {trials_text(results)}"


def trials_text(results: Results) -> str:
    """How many trials are not ok, and of how many nothing is known."""
    bad = results.runs[(results.runs.status != "ok") & (results.runs.status != "unsupported")]
    sentences = [f"{len(bad)} of {len(results.runs)} trials are not ok."] if len(bad) else []
    sentences += [f"{count(len(results.skipped), 'record')} could not be read."] if results.skipped else []
    sentences += (
        [f"{count(len(results.unseen), 'configuration')} of the study without a record."] if results.unseen else []
    )
    return " ".join(sentences) or ("Every trial that could run is ok." if len(results.runs) else "No trial was run.")


WITHOUT_GATES = "no gate can stand before a command of your own; what its processes do is observed instead"


def _only_commands(results: Results) -> bool:
    frameworks = results.configurations.framework
    return bool(len(frameworks) and (frameworks == COMMAND).all())


def parity_text(results: Results) -> str:
    gates = results.gates
    if gates.empty:
        why = f"is not known: {WITHOUT_GATES}" if _only_commands(results) else "was not checked: no gate was run"
        return f"Parity {why}."
    bad = gates[~gates.parity.isin((PASSED, NOT_CHECKED))]
    good = int((gates.parity == PASSED).sum())
    return f"Parity: {good} of {len(gates)} gates passed{f', {len(bad)} FAILED' if len(bad) else ''}."


def _warnings(findings: list[Finding], results: Results) -> Iterator[Part]:
    """Each with whom it concerns; one that concerns many, by name of the first."""
    yield Heading("Warnings")
    if not findings:
        none = not (results.configurations.n > 0).any()
        wide = "" if none else answer.precision(results)
        text = "Nothing was measured, so nothing was checked." if none else f"No warnings. {wide}".strip()
        yield Text(text, GOOD if not none and not wide else "note")
    names = {str(row["configuration"]): name_of(row) for row in results.rows}
    for finding in findings:
        yield Text(
            f"**{finding.title}.** {finding.text}",
            finding.severity,
            f"{finding.severity} {finding.flaw if finding.published else ''}".strip(),
        )
        if len(finding.configurations) > 1:
            known = [names.get(name, name) for name in finding.configurations]
            yield Fold(f"{count(len(known), 'configuration')} concerned", (Bullets(first_of(known, MOST_CONCERNED)),))


def _scope(results: Results) -> Iterator[Part]:
    """How many of the published flaws these records can show, and why not the others."""
    if (results.configurations.n > 0).any():
        yield Text(catalog.looked_for_sentence(Evidence(results)))


def _parity(results: Results) -> Iterator[Part]:
    yield Heading("Parity: does each framework train the same as one process?")
    gates = results.gates
    if gates.empty:
        how = "no parity gate was run; `python -m scaling_study.parity --study STUDY` runs them"
        yield missing("Not known", WITHOUT_GATES) if _only_commands(results) else missing("Not checked", how)
        return
    against = [support.reference_of(gate) for gate in as_rows(gates)]
    told = any(each != support.ONE_PROCESS for each in against)  # else all are held against the same
    columns = ["framework", "model", "workers", "allreduce", "precision", "parity", *["against"] * told]
    ordered = gates.assign(against=against).sort_values("parity", key=lambda said: said == PASSED, kind="stable")
    rows = [tuple(map(str, row.values())) for row in as_rows(ordered[columns])]
    header = (*columns[:5], "verdict", *["held against"] * told)
    grid = of_rows("Parity gates", header, rows, tuple(configurations.checked(results.configurations)), "parity.csv")
    yield Fold(parity_text(results), (grid,)) if len(rows) > MOST_NAMES else grid


def _machine(material: Material) -> Iterator[Part]:
    """The noise floor and drift; the picture where it was drawn."""
    yield Heading("The machine: noise and drift")
    yield Bullets(tuple(noise.machine(material.results)))
    yield from figures_or_gaps(material, "trust")


def _failed(results: Results) -> Iterator[Part]:
    """By cause: how many, where, and the message behind it."""
    yield Heading("What failed, and why")
    bad = results.runs[results.runs.status != "ok"]
    if bad.empty:
        yield Text("No trial failed.", GOOD)
        return
    names = {str(row["configuration"]): name_of(row) for row in results.rows}
    cause = configurations.words(bad) + bad.reason.fillna("").map(lambda reason: f": {reason}" if reason else "")
    rows, messages = [], []
    for why, group in bad.groupby(cause, sort=False):
        where = [names.get(str(name), str(name)) for name in group.configuration]
        rows.append((str(why), str(len(group)), first_few(list(dict.fromkeys(where)), MOST_NAMES)))
        first = next((str(text) for text in group.error if pd.notna(text) and text), "")
        if first:
            messages.append(f"{why}: {shortened(' '.join(first.split()), MOST_WORDS)}")
    yield of_rows("Trials that are not ok, by cause", ("cause", "trials", "where"), rows, file="failures.csv")
    if messages:
        yield Fold("The first message of each", (Bullets(tuple(messages)),))


def _compared(results: Results) -> Iterator[Part]:
    """Configurations whose speed is not comparable, and those without a speed-up."""
    yield Heading("Not compared")
    rows = results.configurations
    lines = list(configurations.sentences(rows))
    plumbing = rows[rows.oversubscribed.fillna(False).astype(bool)]
    if len(plumbing):
        shown = "" if len(plumbing) == len(rows) else ", and neither in the answer nor in figures"
        lines.append(
            "More workers than the machine has room for: it ran, and its speed is nothing to quote"
            f"{shown} ({configurations.names(plumbing, rows)})."
        )
    without = rows[(rows.status == "ok") & rows.speedup.isna() & (rows.not_comparable.fillna("") == "")]
    for why, group in without.groupby(without.speedup_reason.fillna("no reason given"), sort=False):
        lines.append(f"No speed-up: {why} ({configurations.names(group, rows)}).")
    for model in results.models:
        works = ranking.by_work(row for row in results.rows_of(model) if row["n"])
        if len(works) > 1:
            each = "; ".join(f"{ranking.name(ours[0])} ({len(ours)})" for ours in works)
            lines.append(f"{model} does different work: {each}. Each has a fastest of its own.")
    if results.older:
        lines.append(
            f"{count(results.older, 'configuration')} measured earlier and no longer in the study: in results.csv only."
        )
    if not (rows.n > 0).any():
        lines.append("No comparable configuration was measured.")
    yield Bullets(tuple(lines)) if lines else Text("All measured configurations are comparable.", GOOD)


def _skipped(material: Material) -> Iterator[Part]:
    skipped = material.results.skipped
    if skipped:
        yield Heading("Records that could not be read")
        yield Text("They are not used on this page.", DOUBT)
        yield Bullets(first_of(skipped, MOST_SKIPPED))
