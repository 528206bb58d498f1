"""A comparison worked out once, and put into words for the terminal, a pull request and a program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from analysis.compare.differences import WINDOW, Difference, Origins, differences, doubts, expected_by, origins
from analysis.compare.verdicts import (
    BROKEN,
    FAILING,
    FASTER,
    FOUND,
    GAINS,
    LOST,
    NEITHER,
    NO_INTERVAL,
    NOT_COMPARABLE,
    POWER,
    REGRESSIONS,
    SAME,
    SAYS_NOTHING,
    SLOWER,
    SMALL,
    UNRESOLVED,
    Missing,
    Pairing,
    Row,
    Verdicts,
    failed_trials,
    judge,
    missing_in,
    nearly,
    pair,
    with_failures,
)
from analysis.findings import count, name_of
from analysis.frames import results
from analysis.frames.configurations import known
from analysis.frames.results import Results
from analysis.frames.rows import as_rows
from analysis.show import layout, notes
from analysis.show.layout import Listing
from analysis.text import first_few, number, with_interval
from scaling_study.stats.intervals import FEWEST_REPEATS

MOST_NAMES = 3
RUN = ["trial", "started_at", "samples_per_second"]  # alike in two results: it is the same run


class NothingToCompare(Exception):
    """The two have no configuration in common. The message says what they have."""


@dataclass(frozen=True)
class Comparison:
    """`refused`: the differences that matter and were not expected; empty with `anyway`, where all were.

    `missing`: what A measured and B should hold, and does not.
    """

    a: Results
    b: Results
    pairing: Pairing
    differences: list[Difference]
    refused: list[Difference]
    verdicts: Verdicts
    threshold: float
    doubts: tuple[str, ...]
    missing: tuple[Missing, ...] = ()

    @property
    def heading(self) -> str:
        a, b = self.a.heading, self.b.heading
        return f"{a}, {self.a.dates} (A) and {self.b.dates} (B)" if a == b else f"{a} (A) and {b} (B)"

    @property
    def regressed(self) -> bool:
        return not self.verdicts.having(*REGRESSIONS).empty

    @property
    def says_nothing(self) -> bool:
        """True where not one pair could be tested."""
        return len(self.verdicts.having(*SAYS_NOTHING)) == len(self.verdicts.table)


def compare(a: Path, b: Path, threshold: float, expected: Sequence[str] = (), anyway: bool = False) -> Comparison:
    """`threshold`: the smallest relative change of interest. `expected`: kinds or names of differences that are meant.

    Raises NotResults for a folder that is none, NothingToCompare; warns SkippedRecord.
    """
    read_a, read_b = (results.read(folder) for folder in (a, b))
    from_a, from_b = (
        origins(folder, (str(row["configuration"]) for row in read.rows)) for folder, read in ((a, read_a), (b, read_b))
    )
    windows = {id(row): window(row, of) for read, of in ((read_a, from_a), (read_b, from_b)) for row in read.rows}
    pairing = pair(read_a.rows, read_b.rows, lambda row: windows[id(row)])
    if not pairing.pairs:
        raise NothingToCompare(_nothing((a, read_a), (b, read_b), pairing))
    found = differences(pairing.pairs, from_a, from_b)
    refused = [] if anyway else [one for one in found if one.matters and not expected_by(one, expected)]
    unmet = [word for word in expected if not any(expected_by(one, [word]) for one in found)]
    remarks = [f"{word} was expected to differ, and does not." for word in unmet]
    remarks += _the_same_runs(read_a, read_b)
    remarks += doubts(pairing.pairs, from_a, from_b)
    for side, read in (("A", read_a), ("B", read_b)):
        if busy := notes.busy(read.runs):
            remarks.append(f"The machine of {side} was not quiet: {busy}.")
    judged = judge(pairing.pairs, threshold)
    judged = with_failures(judged, pairing.pairs, failed_trials(read_a.runs), failed_trials(read_b.runs))
    lost = tuple(missing_in(pairing, read_b))
    return Comparison(read_a, read_b, pairing, found, refused, judged, threshold, tuple(remarks), lost)


def window(row: Row, known: Origins) -> frozenset[tuple[str, frozenset[str]]]:
    """The end of the timed window of a configuration, as its records give it."""
    facts = known.get(str(row["configuration"]), {})
    return frozenset((name, values) for (kind, name), values in facts.items() if kind == WINDOW)


def left_over(pairing: Pairing) -> list[str]:
    """A sentence for each side that has configurations which the other has not."""
    lines = []
    for side, left, others in (("A", pairing.only_a, pairing.only_b), ("B", pairing.only_b, pairing.only_a)):
        near = [f"{number} but for {key}" for key, number in nearly(left, others).most_common(MOST_NAMES)]
        counterpart = f" They would have a counterpart: {', '.join(near)}." if near else ""
        names = first_few(list(map(name_of, left)), MOST_NAMES)
        if left:
            lines.append(f"Only in {side}: {count(len(left), 'configuration')} ({names}).{counterpart}")
    return lines


def _nothing(a: tuple[Path, Results], b: tuple[Path, Results], pairing: Pairing) -> str:
    for (folder, read), rows in ((a, pairing.only_a), (b, pairing.only_b)):
        if not rows and read.skipped:
            return f"{folder} has no trial that can be read ({len(read.skipped)} cannot)"
        if not rows:
            return f"{folder} has no finished trial yet"
    return f"{a[0]} and {b[0]} have no configuration in common. {' '.join(left_over(pairing))}"


def _the_same_runs(a: Results, b: Results) -> list[str]:
    """Copied records say nothing about another run; somebody may have named the wrong folder."""
    ours, theirs = (set(read.runs.dropna(subset=RUN)[RUN].itertuples(index=False, name=None)) for read in (a, b))
    same = len(ours & theirs)
    return [f"{same} of the {len(ours)} runs of A are in B too: copies, not measured again."] if same else []


HEADER = ("configuration", "batch", "A samples/s", "B samples/s", "B / A [95 %]", "p, corrected", "verdict")
ORDER = (BROKEN, SLOWER, LOST, FAILING, FASTER, FOUND, SMALL, UNRESOLVED, SAME, NO_INTERVAL, NOT_COMPARABLE, NEITHER)
MOST_DIFFERENCES = 20  # that are listed
WORTH_SHOWING = (BROKEN, SLOWER, LOST, FAILING, FASTER, FOUND)
COUNTED = {
    SAME: "unchanged to within the threshold",
    SMALL: "changed by less than the threshold",
    LOST: "no longer run",
    FAILING: "with runs that fail now",
    BROKEN: "now fail parity",
    FOUND: "run now",
    NO_INTERVAL: "without an interval",
}


def listing(comparison: Comparison, only: tuple[str, ...] = ORDER) -> Listing:
    """A row for each pair with one of these verdicts, the worst first."""
    table = comparison.verdicts.having(*only)
    place = table.verdict.map(ORDER.index)
    table = table.assign(place=place).sort_values(["place", "ratio"], kind="stable")
    rows = tuple(map(_cells, as_rows(table)))
    return Listing(comparison.heading, HEADER, rows, tuple(sentences(comparison)))


def _cells(pair: dict[Any, Any]) -> tuple[str, ...]:
    """One pair in the columns of HEADER."""
    speeds = [number(v) if known(v := pair[f"samples_per_second_{side}"]) else "" for side in ("a", "b")]
    ratio = with_interval(pair["ratio"], pair["ratio_low"], pair["ratio_high"], "{:.3f}".format)
    reason = f" ({pair['reason']})" if known(pair["reason"]) and pair["reason"] else ""
    p = probability(pair["p_corrected"]) if known(pair["p_corrected"]) else ""
    return (f"{pair['model']}, {pair['series']}", str(pair["batch"]), *speeds, ratio, p, f"{pair['verdict']}{reason}")


def probability(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def headline(comparison: Comparison) -> str:
    """`2 of 16 configurations slower, 1 faster; 13 not resolved; 1 of A MISSING in B`, and what all share."""
    counts = comparison.verdicts.table.verdict.value_counts()
    total = len(comparison.verdicts.table)
    first = f"{counts.get(SLOWER, 0)} of {total} configurations slower, {counts.get(FASTER, 0)} faster"
    others = [
        f"{counts[name]} {COUNTED.get(name, name)}" for name in ORDER if name in counts and name not in (SLOWER, FASTER)
    ]
    gone = [f"{len(comparison.missing)} of A MISSING in B"] if comparison.missing else []
    return "; ".join([first, *others, *gone, *_all_together(comparison)])


def _all_together(comparison: Comparison) -> list[str]:
    """`all together 5.0 % slower (95 %: 2.4 to 7.5), ...`: a change of the mean beyond chance and the threshold.

    Where it is those of a few pairs that are named already, it is left to the sentence under the table.
    """
    together = comparison.verdicts.overall
    if together is None or together.low <= 1 <= together.high or abs(together.ratio - 1) < comparison.threshold:
        return []
    tested = comparison.verdicts.table[comparison.verdicts.table.p_value.notna()]
    # half of them at least, by so much
    common = together.shared and abs(float(tested.ratio.median()) - 1) >= comparison.threshold
    if not common and len(comparison.verdicts.having(SLOWER, FASTER)):
        return []
    low, high = sorted(100 * abs(bound - 1) for bound in (together.low, together.high))
    change = f"{100 * abs(together.ratio - 1):.1f} % {'slower' if together.ratio < 1 else 'faster'}"
    whose = "a common change, or the state of the machine" if common else "though not most of them"
    return [f"all together {change} (95 %: {low:.1f} to {high:.1f}), {whose}"]


def sentences(comparison: Comparison) -> list[str]:
    """The sentences under the table."""
    return [
        *absent(comparison),
        *overall(comparison),
        *_how(comparison),
        *different(comparison),
        *comparison.doubts,
        *left_over(comparison.pairing),
    ]


def absent(comparison: Comparison) -> list[str]:
    """A sentence that names what A measured and B should hold, and does not."""
    missing = comparison.missing
    if not missing:
        return []
    names = first_few(list(map(str, missing)), MOST_NAMES)
    counted = f"{count(len(missing), 'configuration')} that A measured: {names}"
    return [f"**Missing in B**: {counted}. They are not compared."]


def overall(comparison: Comparison) -> list[str]:
    """The change that all pairs share: a machine that is slower today slows them all."""
    together = comparison.verdicts.overall
    if together is None:
        return []
    interval = f"[{together.low:.3f}, {together.high:.3f}]"
    text = f"All together: B / A is {together.ratio:.3f} {interval}, geometric mean of {together.pairs} pairs."
    if together.shared:
        text += " A common change may be the machine's: the intervals cover the noise of repeats, not of days."
    return [text]


def different(comparison: Comparison) -> list[str]:
    """A sentence for each difference beside the numbers, first those that matter."""
    ordered = sorted(comparison.differences, key=lambda difference: not difference.matters)
    shown = [
        f"{'**Differs**' if difference.matters else 'Differs'}: {difference.kind}: {difference}."
        for difference in ordered[:MOST_DIFFERENCES]
    ]
    more = len(ordered) - len(shown)
    return [*shown, f"{more} more differences are not listed."] if more else shown


def detectable(comparison: Comparison) -> list[str]:
    """The smallest change that the comparison detects."""
    if comparison.verdicts.detectable is None:
        return []
    return [
        f"A change of {100 * comparison.verdicts.detectable:.2g} % in one configuration is detected with a power of "
        f"{100 * POWER:g} %; more repeats detect smaller ones."
    ]


def _how(comparison: Comparison) -> list[str]:
    tested = int(comparison.verdicts.table.p_value.notna().sum())
    few = comparison.verdicts.having(NO_INTERVAL)
    lines = []
    if tested:
        lines.append(
            f"Verdicts and their intervals are corrected for {tested} tests (Holm, 5 % in all); what is unchanged "
            "has one of 95 % by itself. Repeats "
            f"differ by {100 * (comparison.verdicts.noise or 0):.1f} % (pooled standard deviation)."
        )
        lines.append(f"Threshold: changes below {100 * comparison.threshold:g} % are not reported.")
    lines += detectable(comparison)
    if len(few):
        lines.append(f"{len(few)} pairs have fewer than {FEWEST_REPEATS} repeats on a side: no verdict.")
    return lines


STYLES = dict.fromkeys(REGRESSIONS, "bold red") | dict.fromkeys(GAINS, "bold green")
P_VALUE = HEADER.index("p, corrected")
WIDE = 110  # characters, from which on there is room for it
NO_MENTION = "@&#8203;"  # an @ that tells nobody
MOST_OF_A_COMMENT = 60_000  # characters; GitHub takes 65,536


def refusal(comparison: Comparison) -> str:
    """Lines that name the differences and the options that allow them; empty where nothing stands in the way."""
    if not comparison.refused:
        return ""
    lines = ["not compared: A and B differ in what affects speed"]
    lines += [f"  {difference.kind}: {difference}" for difference in comparison.refused[:MOST_DIFFERENCES]]
    if (more := len(comparison.refused) - MOST_DIFFERENCES) > 0:
        lines.append(f"  and {more} more")
    kinds = ",".join(dict.fromkeys(difference.kind for difference in comparison.refused))
    lines.append(f"--expect {kinds} if these are what is compared; --anyway to compare whatever differs")
    return "\n".join(lines)


def to_terminal(comparison: Comparison, console: Console) -> None:
    """The table, what came out of it, and what it rests on."""
    whole = listing(comparison)
    shown = [index for index in range(len(whole.header)) if index != P_VALUE or console.width >= WIDE]
    table = Table(title=escape(whole.title), title_justify="left", title_style="bold", box=None)
    for index in shown:
        words = index in (0, len(whole.header) - 1)
        table.add_column(whole.header[index], justify="left" if words else "right", no_wrap=not words)
    for row in whole.rows:
        style = next((style for verdict, style in STYLES.items() if row[-1].startswith(verdict)), "")
        table.add_row(*(escape(row[index]) for index in shown), style=style)
    console.print(table)
    console.print(Text(headline(comparison), style="bold"))
    for sentence in whole.notes:
        console.print(Text(f"  {sentence.replace('**', '')}", style="dim"))


def to_markdown(comparison: Comparison) -> str:
    """A comment for a pull request: what changed, and all the rest folded away."""
    title = comparison.heading
    if comparison.refused:
        differs = tuple((one.kind, one.name, one.a, one.b) for one in comparison.refused)
        refused = Listing(f"Not compared: {title}", ("differs", "in", "A", "B"), differs, ())
        return _commented(refused, MOST_OF_A_COMMENT)
    whole = listing(comparison)
    changed = listing(comparison, WORTH_SHOWING).rows
    sentences = (*absent(comparison), *overall(comparison), *detectable(comparison))
    short = Listing(f"{headline(comparison)}: {title}", whole.header, changed, sentences)
    opened = f"<details><summary>All {len(whole.rows)} pairs</summary>"
    shown = _commented(short, MOST_OF_A_COMMENT // 2)
    folded = _commented(Listing("All pairs", whole.header, whole.rows, whole.notes), MOST_OF_A_COMMENT - len(shown))
    return f"{shown}\n{opened}\n\n{folded}\n</details>\n"


def to_json(comparison: Comparison) -> str:
    """One object: `headline`, `refused`, `regressed`, `differences`, `overall`, `pairs` (verdicts.KINDS), `missing`,
    `only_a`, `only_b`."""
    overall, table = comparison.verdicts.overall, comparison.verdicts.table.astype(object)
    content = {
        "a": comparison.a.study.name,
        "b": comparison.b.study.name,
        "headline": headline(comparison),
        "threshold": comparison.threshold,
        "refused": bool(comparison.refused),
        "regressed": comparison.regressed,
        "regressions": len(comparison.verdicts.having(*REGRESSIONS)),
        "gains": len(comparison.verdicts.having(*GAINS)),
        "noise": comparison.verdicts.noise,
        "detectable": comparison.verdicts.detectable,
        "says_nothing": comparison.says_nothing,
        "overall": None if overall is None else vars(overall),
        "differences": [vars(difference) for difference in comparison.differences],
        "doubts": list(comparison.doubts),
        "pairs": as_rows(table.where(table.notna(), None)),
        "missing": [vars(absent) for absent in comparison.missing],
        "only_a": [str(row["configuration"]) for row in comparison.pairing.only_a],
        "only_b": [str(row["configuration"]) for row in comparison.pairing.only_b],
    }
    return json.dumps(content, indent=1, allow_nan=False)


def _commented(table: Listing, most: int) -> str:
    """Markdown of at most about `most` characters: the last rows are left out, and their number is named."""
    text, kept = _quiet(table), len(table.rows)
    while len(text) > most and kept:
        kept = min(kept - 1, int(kept * most / len(text)))
        left_out = f"{len(table.rows) - kept} more rows are left out: the limit of a comment."
        text = _quiet(Listing(table.title, table.header, table.rows[:kept], (left_out, *table.notes)))
    return text


def _quiet(table: Listing) -> str:
    """Markdown that mentions no user; a table without rows is only its title and notes."""
    text = layout.markdown(table)
    if not table.rows:
        text = "\n".join(line for line in text.splitlines(keepends=False) if not line.startswith("|"))
        text = text.replace("\n\n\n", "\n\n") + "\n"
    return text.replace("@", NO_MENTION)
