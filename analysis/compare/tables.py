"""A comparison as a table and in sentences: the verdicts, and the doubts about them."""

from __future__ import annotations

from typing import Any

from analysis.compare import missing
from analysis.compare.compared import MOST_NAMES, Comparison, left_over
from analysis.compare.verdicts import (
    BROKEN,
    FAILING,
    FASTER,
    FOUND,
    LOST,
    NEITHER,
    NO_INTERVAL,
    NOT_COMPARABLE,
    POWER,
    SAME,
    SLOWER,
    SMALL,
    UNRESOLVED,
)
from analysis.frames.baseline import known
from analysis.frames.rows import as_rows
from analysis.tables.layout import Listing
from analysis.text.number_formats import number
from scaling_study.stats.intervals import FEWEST_REPEATS

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
}
COUNTED |= {FOUND: "run now", NO_INTERVAL: "without an interval"}


def listing(comparison: Comparison, only: tuple[str, ...] = ORDER) -> Listing:
    """A row for each pair with one of these verdicts, the worst first."""
    table = comparison.verdicts.having(*only)
    place = table.verdict.map(ORDER.index)
    table = table.assign(place=place).sort_values(["place", "ratio"], kind="stable")
    rows = tuple(row(pair) for pair in as_rows(table))
    return Listing(title(comparison), HEADER, rows, tuple(sentences(comparison)))


def title(comparison: Comparison) -> str:
    a, b = comparison.a.heading, comparison.b.heading
    return f"{a}, {comparison.a.dates} (A) and {comparison.b.dates} (B)" if a == b else f"{a} (A) and {b} (B)"


def row(pair: dict[Any, Any]) -> tuple[str, ...]:
    """One pair in the columns of HEADER."""
    speeds = [number(v) if known(v := pair[f"samples_per_second_{side}"]) else "" for side in ("a", "b")]
    low, high = pair["ratio_low"], pair["ratio_high"]
    interval = f" [{low:.3f}, {high:.3f}]" if known(low) else ""
    ratio = f"{pair['ratio']:.3f}{interval}" if known(pair["ratio"]) else ""
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
    common = (
        together.shared and abs(float(tested.ratio.median()) - 1) >= comparison.threshold
    )  # half of them at least, by so much
    if not common and len(comparison.verdicts.having(SLOWER, FASTER)):
        return []
    low, high = sorted(100 * abs(bound - 1) for bound in (together.low, together.high))
    overall_change = (
        f"all together {100 * abs(together.ratio - 1):.1f} % {'slower' if together.ratio < 1 else 'faster'}"
    )
    whose = "a common change, or the state of the machine" if common else "though not most of them"
    return [f"{overall_change} (95 %: {low:.1f} to {high:.1f}), {whose}"]


def sentences(comparison: Comparison) -> list[str]:
    """What stands under the table."""
    return [
        *absent(comparison),
        *overall(comparison),
        *_how(comparison),
        *different(comparison),
        *comparison.doubts,
        *left_over(comparison.pairing),
    ]


def absent(comparison: Comparison) -> list[str]:
    """What A measured and B should hold, and does not."""
    return list(missing.sentences(comparison.missing, MOST_NAMES))


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
    """What differs beside the numbers, those first that matter."""
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
            f"Each interval is 95 % by itself; verdicts are corrected for {tested} tests (Holm, 5 % in all). Repeats "
            f"differ by {100 * (comparison.verdicts.noise or 0):.1f} % (pooled standard deviation)."
        )
        lines.append(f"Threshold: changes below {100 * comparison.threshold:g} % are not reported.")
    lines += detectable(comparison)
    if len(few):
        lines.append(f"{len(few)} pairs have fewer than {FEWEST_REPEATS} repeats on a side: no verdict.")
    return lines
