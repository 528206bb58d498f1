"""The gain of 16-bit gradients over fp32: ratios, figure, findings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis import findings
from analysis.findings import DOUBT, WRONG, Evidence, Finding, Row, grouped
from analysis.frames import configurations
from analysis.frames.configurations import KEYS, over, values_of
from analysis.frames.results import Results, carried, once, words
from analysis.frames.rows import ConfigurationRow, as_rows, numbers, typed
from analysis.frames.study import workers_text
from analysis.show import dots, notes, style
from analysis.show.style import RATIO
from analysis.statistics.ranking import Uncertainty
from analysis.text import bracketed
from analysis.views.view import Drawing, Gap, StudyTable, View
from scaling_study.frameworks import POWERSGD

# Faster and slower hold for all pairs of a study together: where nothing differs, any pair is called either in at most
# 5 % of studies (Holm). "No difference" is a test of equivalence: the whole 95 % interval of the ratio lies within the
# study's target_interval of 1. What is neither is not resolved.

REFERENCE = "fp32"
SIXTEEN_BITS = ("fp16", "bf16")
FASTER, SLOWER, NO_DIFFERENCE = "faster", "slower", "no difference"
NOT_RESOLVED, NO_INTERVAL, NOT_COMPARABLE = "not resolved", "no interval", "not comparable"


@once
def gains(results: Results) -> pd.DataFrame:
    """gains_of() a study."""
    return gains_of(results.configurations, results.study.target_interval)


def gains_of(every: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """One row for each pair of configurations that differ in allreduce precision only.

    `gain` is the compared throughput over that of fp32, with its bounds; `n` the smaller number of repeats. The bounds
    are of 95 %, corrected for `tests` pairs where the verdict is (Holm): faster, slower and "not resolved".
    `verdict` is faster, slower, "no difference" (within `threshold` of 1, 0.02: 2 %), "not resolved", "no interval"
    (fewer than 3 repeats), "not comparable", or, where one of the two was not measured, which and why: "fp16: oom".
    """
    rows = as_rows(every)
    alike = [key for key in KEYS if key != "allreduce"]
    references: dict[tuple[Any, ...], ConfigurationRow] = {}
    for row in rows:
        if row["allreduce"] == REFERENCE:
            references.setdefault(values_of(row, alike), row)
    candidates = ((row, references.get(values_of(row, alike))) for row in rows if row["allreduce"] in SIXTEEN_BITS)
    compared = [(row, reference) for row, reference in candidates if reference is not None]
    pairs = [_pair(row, reference, threshold) for row, reference in compared]
    _call_changes(pairs, compared, [row for row in rows if row["n"]])
    kinds: dict[str, Any] = {key: every[key].dtype for key in (*alike, "allreduce")}
    kinds |= numbers("gain", "gain_low", "gain_high") | {"n": "Int64", "tests": "Int64", "verdict": "string"}
    return typed(pairs, kinds | {"configuration": every.configuration.dtype, "reference": "string"})


def _pair(row: ConfigurationRow, reference: ConfigurationRow, threshold: float) -> dict[str, Any]:
    """All but what needs the other pairs: whether one is faster or slower."""
    pair: dict[str, Any] = dict(zip(KEYS, values_of(row, KEYS), strict=True)) | {"tests": None}
    pair |= {"configuration": row["configuration"], "reference": reference["configuration"]}
    missing = [
        f"{side['allreduce']}: {configurations.word(side)}" for side in (reference, row) if side["status"] != "ok"
    ]
    if missing:
        return pair | {"n": 0, "verdict": ", ".join(missing)}
    gain = over(row, reference)
    if row["not_comparable"] or reference["not_comparable"]:
        return pair | {"n": gain.n, "verdict": NOT_COMPARABLE}
    if gain.low is None or gain.high is None:
        verdict = NO_INTERVAL
    else:
        verdict = NO_DIFFERENCE if 1 - threshold <= gain.low and gain.high <= 1 + threshold else NOT_RESOLVED
    return pair | {"gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high, "n": gain.n, "verdict": verdict}


def _call_changes(
    pairs: list[dict[str, Any]], compared: list[tuple[ConfigurationRow, ConfigurationRow]], measured: list[Any]
) -> None:
    """Enter FASTER and SLOWER where a difference is more than chance among so many.

    Pairs that showed no difference are among these: else the odd one out of many equal ones would be tested alone.
    """
    tested = [at for at, pair in enumerate(pairs) if pair["verdict"] in (NOT_RESOLVED, NO_DIFFERENCE)]
    of_all = Uncertainty.of_rows(measured, over_baselines=False)
    for at, found in zip(tested, of_all.judged([compared[at] for at in tested]), strict=True):
        if pairs[at]["verdict"] == NO_DIFFERENCE:  # a test of its own, whose interval is of 95 %
            continue
        pairs[at] |= {"gain_low": found.low, "gain_high": found.high, "tests": found.tests}
        if found.changed:
            pairs[at]["verdict"] = FASTER if pairs[at]["gain"] > 1 else SLOWER


# The figure: a panel for each model, a row for each pair, with its ratio and interval.

SAID = {  # of the figure, where it has such a row
    "Filled: faster or slower, tested as a pair.": (FASTER, SLOWER),
    "Open grey: not resolved.": (NOT_RESOLVED,),
    "Open grey, within ±: no difference.": (NO_DIFFERENCE,),
    "Open green: fewer than 3 repeats.": (NO_INTERVAL,),
    "[ ]: 95 % interval among all pairs, corrected for their number.": (FASTER, SLOWER, NOT_RESOLVED),
}


def draw(results: Results) -> Figure | None:
    """The figure, or None where the study measured no pair that differs in allreduce precision only."""
    pairs = gains(results)
    if pairs.gain.isna().all():
        return None
    pairs = pairs.assign(name=_names(pairs, results)).sort_values(["workers", results.study.batch_key, "name"])
    rows = {model: as_rows(pairs[pairs.model == model]) for model in results.models}
    made = {model: [_dot(pair, results) for pair in of[: dots.MOST_ROWS]] for model, of in rows.items() if of}
    most = max(map(len, rows.values()))
    what = notes.holding(
        (True, "All else is equal."),
        *((pairs.verdict.isin(verdicts).any(), sentence) for sentence, verdicts in SAID.items()),
        (most > dots.MOST_ROWS, f"The first {dots.MOST_ROWS} of up to {most} pairs of a model; tables/ has all."),
    )
    sure = pairs[pairs.gain_low.notna()]
    both = [(results.by_name[a], results.by_name[b]) for a, b in zip(sure.configuration, sure.reference, strict=True)]
    ours, method = results.among([*pairs.configuration, *pairs.reference]), configurations.interval_of(both)
    precisions = " and ".join(sorted(pairs.allreduce.unique(), reverse=True))
    limits = dots.around([dot for of_model in made.values() for dot in of_model], 1.0)
    ticks, x = style.ticks_through(1.0, limits), f"throughput with {precisions} / with fp32"
    return dots.figure(
        f"Gain of {precisions} over fp32 gradients: {results.study.name}",
        [
            dots.DotPanel(model, x, of_model, limits, {1.0: "-"}, ticks, "{:.4g}".format)
            for model, of_model in made.items()
        ],
        style.footnote(results, ours, " ".join(what), RATIO, method, drawn="Grey text: not comparable."),
    )


def _dot(pair: ConfigurationRow, results: Results) -> dots.Dot:
    blue, orange, green = style.style_colours(3)
    looks = {FASTER: ("o", blue), SLOWER: ("s", orange), NO_INTERVAL: ("D", green)}
    looks |= dict.fromkeys((NO_DIFFERENCE, NOT_RESOLVED), ("o", style.GREY))
    name, verdict = pair["name"], str(pair["verdict"])
    if verdict == NOT_COMPARABLE:
        ours, reference = (configurations.sign(results.by_name[pair[key]]) for key in ("configuration", "reference"))
        return dots.Dot(name, f"{NOT_COMPARABLE} {ours or reference}", None, marker="", ink=style.GREY)
    if verdict not in looks:
        whole = all(part.endswith(configurations.IMPLIED) for part in verdict.split(", "))
        return dots.Dot(name, verdict, None, marker=dots.HOLLOW_CROSS if whole else dots.CROSS)
    marker, colour = looks[verdict]
    text, ends = _text(pair, results.study.target_interval), dots.interval(pair["gain_low"], pair["gain_high"])
    return dots.Dot(name, text, float(pair["gain"]), ends, colour, marker, hollow=verdict not in (FASTER, SLOWER))


def _names(pairs: pd.DataFrame, results: Results) -> list[str]:
    """`batch 32, 2 workers`, with whatever else tells the pairs of this study apart."""
    extra = [key for key in results.series_keys if key not in ("workers", "allreduce", "framework")]
    frameworks, precisions = pairs.framework.nunique() > 1, pairs.allreduce.nunique() > 1
    return [
        ", ".join(
            [
                f"batch {pair[results.study.batch_key]}",
                workers_text(int(pair["workers"])),
                *[str(pair["framework"])] * frameworks,
                *words(pair, extra),
                *[str(pair["allreduce"])] * precisions,
            ]
        )
        for pair in as_rows(pairs)
    ]


def _text(pair: ConfigurationRow, target: float) -> str:
    if pair["verdict"] == NO_DIFFERENCE:
        return f"{pair['gain']:.3f}, within ±{100 * target:.2g} %"
    bounds = bracketed(pair["gain_low"], pair["gain_high"], "{:.3f}".format)
    return f"{pair['gain']:.3f}{bounds or ' (no interval)'}"


# Is a difference between frameworks really one of precision? F7: "fp16" of compute here and of the wire there; F21: DDP
# in fp32 against FSDP in fp16. Either the frameworks have no precision in common, or one computes in 16 bits and
# another sends them: whoever sets the two side by side compares precisions.

TITLES = {
    "precision": ("F21", "Frameworks at unlike precision", "compute in"),
    "allreduce": ("F7", "Frameworks with unlike precision on the wire", "reduce gradients in"),
}


def mixed_precisions(evidence: Evidence) -> Iterator[Finding]:
    """For each model the first of each kind, of its numbers of workers in turn."""
    found: dict[tuple[str, str], Finding] = {}
    for (model, workers), rows in grouped(evidence.rows, lambda row: (str(row["model"]), row["workers"])).items():
        of = f"{model} on {findings.count(int(workers), 'worker')}"
        mixed = {key: _unlike(rows, key, of) for key in TITLES} | {"meanings": _two_meanings(rows, of)}
        for key, finding in mixed.items():
            if finding:
                found.setdefault((model, key), finding)
    trained = [row for row in evidence.rows if any(evidence.fact(row, "training"))]
    for model, rows in grouped(trained, lambda row: str(row["model"])).items():
        if finding := _unlike(rows, "precision", f"{model}, trained to a result,"):
            found.setdefault((model, "precision"), finding)
    yield from found.values()


def _two_meanings(rows: list[Row], of: str) -> Finding | None:
    """Frameworks that only ever compute in 16 bits, beside others that only ever send them."""
    computed, sent = ({str(row["framework"]) for row in rows if narrow(row)} for narrow in (_computes, _sends))
    compute, wire = sorted(computed - sent), sorted(sent - computed)
    if not compute or not wire:
        return None
    text = (
        f"With {of} 16 bits mean computing in them in {', '.join(compute)}, "
        f"and fp32 computing with 16-bit gradients on the wire in {', '.join(wire)}: two gains, two questions. "
        "Run each framework both ways, or set like beside like."
    )
    concerned = [
        row
        for row in rows
        if (row["framework"] in compute and _computes(row)) or (row["framework"] in wire and _sends(row))
    ]
    return findings.about("F7", "Two meanings of 16 bits", text, DOUBT, concerned)


def _computes(row: Row) -> bool:
    return str(row["precision"]) in SIXTEEN_BITS


def _sends(row: Row) -> bool:
    return str(row["allreduce"]) in SIXTEEN_BITS and not _computes(row)


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
    coded = any(value in POWERSGD for name in names for value in had[name])  # which is no precision
    unlike, one_of = ("unlike ways", "what is sent") if coded else ("unlike precisions", "precision")
    title = "Frameworks that send gradients in unlike ways" if coded else title
    if coded:
        each = "; ".join(f"{name} {' and '.join(map(carried, sorted(had[name])))}" for name in names)
    else:
        each = "; ".join(f"{name} in {' and '.join(sorted(had[name]))}" for name in names)
    text = (
        f"With {of} frameworks {does} {unlike}, so their difference "
        f"is one of {one_of}, whatever else it is: {each}. Run them in one that they have in common."
    )
    return findings.about(flaw, title, text, WRONG, [row for row in rows if row["framework"] in names])


def table(results: Results) -> pd.DataFrame | None:
    """gains(), or None where no pair differs in its allreduce alone."""
    pairs = gains(results)
    return pairs if len(pairs) else None


VIEW = View(
    "What do 16-bit gradients gain?",
    (StudyTable("allreduce-gain", None, table, section=""),),
    (
        Drawing(
            "allreduce-gain",
            draw,
            gap=Gap(
                "No figure of the 16-bit gain",
                "no pair of configurations differs in the precision of its gradients alone",
            ),
        ),
    ),
    (mixed_precisions,),
)
