"""Can you trust it: parity, warnings, the machine's noise, what failed and why, what is not compared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

import pandas as pd

from analysis.findings import DOUBT, MOST_NAMES, NOTE, Evidence, Finding, count, grouped, name_of
from analysis.findings import WORDS as SEVERITIES
from analysis.frames import configurations
from analysis.frames.configurations import BATCH_KEYS, KEYS, values_of
from analysis.frames.results import Results, words
from analysis.frames.rows import ConfigurationRow, as_rows
from analysis.frames.trials import NOT_CHECKED, PASSED
from analysis.published import ratios
from analysis.report.page import (
    CONCERNED,
    Bullets,
    Material,
    Part,
    Section,
    Text,
    figures_of,
    folded,
    of_rows,
)
from analysis.show import notes
from analysis.statistics import ranking
from analysis.statistics.estimates import said_of, widths
from analysis.text import first_few, first_of, two_figure_percentage
from analysis.views import catalog, noise
from scaling_study.errors import shortened
from scaling_study.frameworks import COMMAND
from scaling_study.models import MODELS
from scaling_study.study import support

MOST_PLACES, MOST_CONCERNED, MOST_SKIPPED, MOST_WORDS = 6, 40, 50, 600
MOST_WARNINGS = 8  # that stand open
CHECKED = ("framework", "model", "workers", "allreduce", "precision")  # columns of the table of parity checks


def section(material: Material) -> Section:
    results = material.results
    parts = []
    for what, make in (
        ("warnings", lambda: _warnings(material.findings, results)),
        ("records that could not be read", lambda: _skipped(material)),
        ("parity", lambda: _parity(results)),
        ("the machine's noise and drift", lambda: _machine(material)),
        ("what failed", lambda: folded("What failed, and why", _failed(results), "failed")),
        ("what is not compared", lambda: folded("Not compared", _compared(results), "compared")),
        (
            "which flaws were looked for",
            lambda: folded("Published flaws that were looked for", _scope(results), "flaws"),
        ),
    ):
        parts += material.parts(what, make)
    summary = material.text("what can be said of it in a line", lambda: lead(material.findings, results))
    return Section("trust", "Can you trust it", summary, tuple(parts))


def lead(findings: list[Finding], results: Results) -> str:
    counts = Counter(finding.severity for finding in findings)
    counted = ", ".join(count(counts[kind], word) for kind, word in SEVERITIES.items() if counts[kind])
    none = "No warnings." if (results.configurations.n > 0).any() else "Nothing was measured."
    warnings = f"{counted.replace('infos', 'info')}." if findings else none
    return " ".join(filter(None, (warnings, parity_text(results), trials_text(results), precision(results))))


def trials_text(results: Results) -> str:
    """How many trials are not ok, and of how many nothing is known."""
    bad = results.runs[(results.runs.status != "ok") & (results.runs.status != "unsupported")]
    sentences = (
        f"{len(bad)} of {len(results.runs)} trials are not ok." * bool(len(bad)),
        f"{count(len(results.skipped), 'record')} could not be read." * bool(results.skipped),
        f"{count(len(results.unseen), 'configuration')} of the study without a record." * bool(results.unseen),
    )
    none = "Every trial that could run is ok." if len(results.runs) else "No trial was run."
    return " ".join(filter(None, sentences)) or none


NO_GATES = "was not checked (`scaling-study parity STUDY` does)"
WITHOUT_GATES = "is not known: no check can run before a command of your own; what its processes do is observed instead"


def parity_text(results: Results) -> str:
    gates, frameworks = results.gates, set(results.configurations.framework)
    if gates.empty:
        return f"Parity {WITHOUT_GATES if frameworks == {COMMAND} else NO_GATES}."
    bad, good = _gates(results)
    return f"Parity: {good} of {len(gates)} checks passed{f', {bad} FAILED' if bad else ''}."


def parity_words(results: Results) -> str:
    """`parity passed (5 checks)`."""
    if results.gates.empty:
        return "parity not checked"
    (bad, good), every = _gates(results), len(results.gates)
    return f"parity FAILED in {bad} of {every} checks" if bad else f"parity passed ({count(good, 'check')})"


def _gates(results: Results) -> tuple[int, int]:
    """(how many failed, how many passed)."""
    verdicts = results.gates.parity
    return int((~verdicts.isin((PASSED, NOT_CHECKED))).sum()), int((verdicts == PASSED).sum())


def precision(results: Results) -> str:
    """A sentence about intervals that are too wide or not claimed; empty where each reaches the study's target."""
    asked, target = widths(results), results.study.target_interval
    claimed = [width.half for width in asked if not math.isnan(width.half)]
    if not claimed:
        return "No interval is claimed: every configuration has fewer than 3 repeats." if asked else ""
    wide = sum(half > target for half in claimed)
    if not wide:
        return ""
    return (
        f"{wide} of {len(asked)} intervals{said_of(asked)} are wider than the target of "
        f"±{100 * target:.2g} % (median ±{two_figure_percentage(median(claimed))} %, widest "
        f"±{two_figure_percentage(max(claimed))} %): smaller differences are not resolved."
    )


def _warnings(findings: list[Finding], results: Results) -> Iterator[Part]:
    """The first errors and warnings; the others, and what is only to be known, folded."""
    names = {str(row["configuration"]): name_of(row) for row in results.rows}
    notes = [finding for finding in findings if finding.severity == NOTE]
    severe = [finding for finding in findings if finding.severity != NOTE]
    for finding in severe[:MOST_WARNINGS]:
        yield from _warning(finding, names)
    for kind, others, key in (("More warnings", severe[MOST_WARNINGS:], "warnings"), ("Info", notes, "info")):
        titles = "; ".join(dict.fromkeys(finding.title for finding in others))
        yield from folded(f"{kind}: {titles}", (part for one in others for part in _warning(one, names)), key)


def _warning(finding: Finding, names: dict[str, str]) -> Iterator[Part]:
    """What it says; with all that it concerns where its text names only the first."""
    label = f"{SEVERITIES[finding.severity]} {finding.flaw if finding.published else ''}".strip()
    yield Text(f"**{finding.title}.** {finding.text}", finding.severity, label)
    if MOST_NAMES < len(finding.configurations) < len(names):
        known = [names.get(name, name) for name in finding.configurations]
        listed = [Bullets(first_of(known, MOST_CONCERNED))]
        yield from folded(f"{count(len(known), 'configuration')} concerned", listed, CONCERNED, full=True)


def _scope(results: Results) -> Iterator[Part]:
    """How many of the published flaws these records can show, and why not the others; and what those were."""
    if (results.configurations.n > 0).any():
        evidence = Evidence(results)
        missing = [f"{flaw} {ratios.FLAWS[flaw]}" for flaw in catalog.not_looked_for(evidence)]
        were = f" As published: {'; '.join(missing)}." if missing else ""
        yield Text(f"{catalog.looked_for_sentence(evidence)}{were}")


def _parity(results: Results) -> Iterator[Part]:
    gates = results.gates
    if gates.empty:
        return
    against, apart = [support.reference_of(gate) for gate in as_rows(gates)], _apart(as_rows(gates))
    names = dict(zip(CHECKED, CHECKED, strict=True)) | {"allreduce": "gradients"}
    names |= {"apart": "with"} if any(apart) else {}
    names |= {"parity": "verdict"}
    names |= {"against": "held against"} if any(each != support.ONE_PROCESS for each in against) else {}
    ordered = gates.assign(against=against, apart=apart)
    ordered = ordered.sort_values("parity", key=lambda said: said == PASSED, kind="stable")
    rows = [tuple(map(str, row.values())) for row in as_rows(ordered[[*names]])]
    notes = [*_smooth(results), *configurations.checked(results.configurations)]
    grid = of_rows("Parity checks", tuple(names.values()), rows, tuple(notes), "parity.csv")
    yield from folded("Parity: does each framework train the same as one process?", [grid], "parity")


def _apart(gates: Sequence[ConfigurationRow]) -> list[str]:
    """The words that tell apart checks which are alike in CHECKED: `1f1b, 4 micro-batches`; empty for any other."""
    alike, texts = grouped(gates, lambda gate: values_of(gate, CHECKED)), list[str]()
    keys = [key for key in KEYS if key not in (*CHECKED, *BATCH_KEYS)]
    for gate in gates:
        others = alike[values_of(gate, CHECKED)]
        texts.append(", ".join(words(gate, [key for key in keys if len({values_of(o, [key]) for o in others}) > 1])))
    return texts


def _smooth(results: Results) -> Iterator[str]:
    """Why a model is checked that the study does not train."""
    stand_ins = {model.smooth for model in MODELS.values()} - {"", *results.models}
    for name in sorted(stand_ins & {str(model) for model in results.gates.model}):
        yield (
            f"16-bit gradients, and frameworks that refuse fp64, are checked on {name}: without BatchNorm and max-pool "
            "it does not amplify rounding, so a fault stands out."
        )


def _machine(material: Material) -> Iterator[Part]:
    """The noise floor and drift; the picture where it was drawn."""
    lines = Bullets(tuple(noise.machine(material.results)))
    yield from folded("The machine: noise and drift", (lines, *figures_of(material, "trust")), "machine")


def _failed(results: Results) -> Iterator[Part]:
    """By cause: how many, where, and the message behind it."""
    bad = results.runs[results.runs.status != "ok"]
    if bad.empty:
        return
    names = {str(row["configuration"]): name_of(row) for row in results.rows}
    cause = configurations.words(bad) + bad.reason.fillna("").map(lambda reason: f": {reason}" if reason else "")
    rows, messages = [], []
    for why, group in bad.groupby(cause, sort=False):
        where = [names.get(str(name), str(name)) for name in group.configuration]
        rows.append((str(why), str(len(group)), first_few(list(dict.fromkeys(where)), MOST_PLACES)))
        first = next((str(text) for text in group.error if pd.notna(text) and text), "")
        if first:
            messages.append(f"{why}: {shortened(' '.join(first.split()), MOST_WORDS)}")
    yield of_rows("Trials that are not ok, by cause", ("cause", "trials", "where"), rows, file="failures.csv")
    if messages:
        yield from folded("The first message of each", [Bullets(tuple(messages))], "messages")


def _compared(results: Results) -> Iterator[Part]:
    """Configurations whose speed is not comparable, and those without a speed-up."""
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
    for why, group in without.groupby(notes.no_speedup(without, results), sort=False):
        lines.append(f"No speed-up: {why} ({configurations.names(group, rows)}).")
    for model in results.models:
        works = ranking.by_work(row for row in results.rows_of(model) if row["n"])
        if len(works) > 1:
            each = "; ".join(f"{ranking.name(ours[0])} ({len(ours)})" for ours in works)
            lines.append(f"{model} does different work: {each}. Each has a fastest of its own.")
    if results.older:
        lines.append(f"{count(results.older, 'configuration')} measured earlier and no longer in the study.")
    if not (rows.n > 0).any():
        lines.append("No comparable configuration was measured.")
    if lines:
        yield Bullets(tuple(lines))


def _skipped(material: Material) -> Iterator[Part]:
    skipped = material.results.skipped
    if skipped:
        yield Text(f"{count(len(skipped), 'record')} could not be read and are not used on this page.", DOUBT)
        yield from folded("Records that could not be read", [Bullets(first_of(skipped, MOST_SKIPPED))], "unread")
