"""Was the right thing timed, often enough, by one program, and is all of it here?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from analysis import findings
from analysis.findings import (
    DOUBT,
    FALSE_ALARMS,
    MOST_NAMES,
    NOTE,
    WRONG,
    Evidence,
    Finding,
    Row,
    count,
    grouped,
    simultaneous,
)
from analysis.frames.configurations import KEYS, known, over, values_of
from analysis.frames.measured import phase_seconds, samples_of_step
from analysis.statistics.ranking import holm
from analysis.text import first_few
from analysis.views.view import View
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.settings import NO_COMMIT
from scaling_study.stats.intervals import FEWEST_REPEATS

# Was the right thing timed, and often enough?
#
#     F1  no warm-up: loader start, autotuning, the first negotiation are inside
#     F2  one run each, and conclusions from single points
#     F8  launch, wrapping and a checkpoint inside the time: of epochs, epochs.py says it
#
# What is timed here never holds the launch (measure/clock.py), but a warm-up can be left out, or be too short. Steps
# may also become faster or slower within the window: Student's test of the mean of log(1 + trend) over the repeats,
# which are independent while the steps of one run are not; over all configurations at most 5 % of studies (Holm).

STILL_WARMING = 2.0  # of the usual step: a first one as slow as this belongs to the warm-up
NOT_FINITE = "the loss is not finite"


def timing_flaws(evidence: Evidence) -> Iterator[Finding]:
    few = [row for row in evidence.rows if row["n"] < FEWEST_REPEATS]
    if few:
        text = (
            f"{len(few)} of {findings.count(len(evidence.rows), 'configuration')} had fewer than {FEWEST_REPEATS} "
            f"repeats that are ok, and so no interval: {findings.named(few, evidence.rows)}. Conclude nothing from a "
            f"difference to them, and set repeats to {FEWEST_REPEATS} or more."
        )
        yield findings.about("F2", "Too few repeats", text, DOUBT, few)
    notes = evidence.results.details.notes
    if rows := evidence.among({*notes[notes.note == NOT_FINITE].configuration}):
        text = (
            f"The loss is not finite, and arithmetic on such numbers may take another time: {findings.named(rows)}. "
            "Lower the learning rate, and run these again."
        )
        yield findings.about("loss", "A loss that is no number", text, DOUBT, rows)


def unequal_launches(evidence: Evidence) -> Iterator[Finding]:
    """Launches in rounds of which some ended before the others: each counts once, however long it was."""
    blocks = evidence.results.details.blocks
    ours = blocks[blocks.configuration.isin([row["configuration"] for row in evidence.rows])]
    rounds = ours.groupby("together")["round"].nunique()
    if rounds.nunique() < 2:
        return
    each = ", ".join(map(str, sorted(rounds, reverse=True)))
    short = ours[ours.together.isin(rounds.index[rounds < rounds.max()])]
    rows = evidence.among({*short.configuration})
    text = (
        f"The interleaved launches had {each} blocks of each configuration. Each launch counts once in a mean and its "
        "interval; the shorter ones vary more, which the interval between launches includes."
    )
    yield findings.about("short-launch", "Launches of unequal length", text, NOTE, rows)


def trends_of_steps(evidence: Evidence) -> Iterator[Finding]:
    """Configurations whose steps became faster, or slower, by more than the study's target, beyond chance."""
    runs = evidence.runs[(evidence.runs.status == "ok") & evidence.runs.step_trend.notna()]
    trends = {str(name): np.log1p(own.to_numpy(float)) for name, own in runs.groupby("configuration").step_trend}
    tested = [
        (row, trends[name]) for row in evidence.rows if len(trends.get(name := str(row["configuration"]), ())) > 2
    ]
    corrected = holm([_p_value(logs) for _, logs in tested])
    for rises, flaw, title, cause in (
        (False, "F1", "Steps that still become faster", "Something still warms up: raise warmup_steps"),
        (True, "slowing", "Steps that become slower", "A clock that throttles, or memory that fills, is in the mean"),
    ):
        changes = [
            (row, float(np.expm1(logs.mean())))
            for (row, logs), p in zip(tested, corrected, strict=True)
            if p <= FALSE_ALARMS and (logs.mean() > 0) == rises
        ]
        if moved := [pair for pair in changes if abs(pair[1]) > evidence.results.study.target_interval]:
            rows, most = [row for row, _ in moved], max((change for _, change in moved), key=abs)
            text = (
                f"From the first third of the timed steps to the last, steps become {'slower' if rises else 'faster'} "
                f"by up to {100 * abs(most):.1f} % in {findings.count(len(rows), 'configuration')} (Student's test "
                f"over repeats, Holm): {findings.named(rows, evidence.rows)}. {cause}, or make the window longer."
            )
            yield findings.about(flaw, title, text, DOUBT, rows)


def _p_value(logs: Any) -> float:
    """Two-sided, of a mean that is 0. logs: (n,), n > 2."""
    from scipy.special import stdtr

    error = logs.std(ddof=1) / np.sqrt(len(logs))
    if not error:
        return float(logs.mean() == 0.0)
    return float(2 * stdtr(len(logs) - 1, -abs(logs.mean()) / error))


def warm_ups(evidence: Evidence) -> Iterator[Finding]:
    cold = [row for row in evidence.rows if 0 in evidence.fact(row, "warmup_steps")]
    if cold:
        who = findings.named(cold, evidence.rows)
        text = (
            f"Timed from the first step on, with the costs of first steps and no warm-up: {who}. Set warmup_steps, and "
            "run these again."
        )
        yield findings.about("F1", "No warm-up", text, WRONG, cold)
    first = {row["configuration"]: min(evidence.fact(row, "first_step"), default=1.0) for row in evidence.rows}
    slow = [row for row in evidence.rows if first[row["configuration"]] > STILL_WARMING and row not in cold]
    if slow:
        worst = max(first[row["configuration"]] for row in slow)
        text = (
            f"In every repeat the first timed step takes more than {STILL_WARMING:g} x the usual one, up to "
            f"{worst:.1f} x: {findings.named(slow)}. Something still warms up: raise warmup_steps."
        )
        yield findings.about("F1", "A warm-up that is too short", text, DOUBT, slow)


# Is a loader measured instead of a framework, or unlike shares of the machine?
#
# F6   one loader process capped every large batch at 4,800 samples/s
# F17  the share of data-loading grew from row to row, and CPU cores were 4 here and 16 there
# F28  a baseline that waited for data most of its time, and so made "1.93x"

MOST = 0.1  # of a step spent waiting for its batch; a hair more is still that


def share(evidence: Evidence, row: Row) -> float | None:
    """The share of time that went into getting batches, in instrumented steps or trainings to a result. None: not
    known."""
    seconds = phase_seconds(row)
    whole = sum(seconds.values())
    if "data" in seconds and whole > 0:
        return seconds["data"] / whole
    trained = [rank.data_share for ranks in evidence.fact(row, "training") for rank in ranks]
    known = [at for at in trained if at is not None]
    return fmean(known) if known else None


def loader_limits(evidence: Evidence) -> Iterator[Finding]:
    shares = ((str(row["configuration"]), share(evidence, row)) for row in evidence.rows)
    slow = {name: at for name, at in shares if at is not None and at > MOST + 1e-9}
    bound = evidence.among(slow)
    held = [(row, base) for row, base in evidence.pairs if base["configuration"] in slow]
    for pairs in grouped(held, lambda pair: str(pair[1]["configuration"])).values():
        base = pairs[0][1]
        at, rows = slow[base["configuration"]], [row for row, _ in pairs]
        text = (
            f"The baseline ({findings.named([base])}) waits {100 * at:.0f} % of a step for its batch, so speed-ups "
            f"over it are in part those of its loader ({findings.named(rows)}). Mend its loader before they are quoted."
        )
        yield findings.about("F28", "A baseline that waits for data", text, DOUBT, [base, *rows])
    if bound:
        worst = max(bound, key=lambda row: slow[row["configuration"]])
        text = (
            f"More than {100 * MOST:.0f} % of a step goes into waiting for its batch in "
            f"{findings.count(len(bound), 'configuration')}: {findings.named(bound)}; most, "
            f"{100 * slow[worst['configuration']]:.0f} %, in {findings.named([worst])}. A loader is measured there as "
            "much as a framework: give it more workers, or hold the data in memory."
        )
        yield findings.about("F6", "A loader is measured", text, DOUBT, bound)


def unlike_cores(evidence: Evidence) -> Iterator[Finding]:
    """Cores and threads that each worker really had, which must be the same wherever speeds are compared."""
    one_each = [row for row in evidence.rows if not _one_process(row)]
    for what in ("cores", "threads"):
        for (device, _), rows in grouped(one_each, lambda row: (row["device"], row["model"])).items():
            had = {id(row): {n for least, most in evidence.fact(row, what) for n in (least, most)} for row in rows}
            if what == "threads":  # a peer's core for its daemon computes nothing
                had = {id(row): {n + _of_its_daemon(row) for n in had[id(row)]} for row in rows}
            counts = set().union(*had.values())
            if len(counts) < 2:
                continue
            least, most = (next(row for row in rows if n in had[id(row)]) for n in (min(counts), max(counts)))
            text = (
                f"Workers had unlike CPU {what} on {device}, so their speeds are not those of their frameworks alone: "
                f"{min(counts) or 'no pinned ones'} in {findings.named([least])}, {max(counts)} in "
                f"{findings.named([most])}. Give all the same share, and run these again."
            )
            yield findings.about("F17", f"Unlike CPU {what}", text, WRONG, [least, most])


def _of_its_daemon(row: Row) -> int:
    """Cores of a worker that are there for Hivemind's own processes."""
    return int(row["daemon_cores"]) if known(row["daemon_cores"]) else 0


def _one_process(row: Row) -> bool:
    """True where one process drives all workers, and so has all their cores."""
    table = FRAMEWORKS.get(str(row["framework"]))
    return table is not None and table.one_process


# Throughput that falls as the batch grows. F4: 254, 446, 451 samples/s at batch 1024, and no cause was given.
#
# A larger batch does the same work for each sample with fewer launches and reductions, so it should not be slower.
# Intervals are simultaneous (Bonferroni over all steps from one batch to the next): at most 5 % of false alarms.

CLIFF = 0.9  # of the throughput at the next smaller batch
WITHOUT_INTERVAL = 0.75  # likewise, where there are too few repeats for an interval
CAUSES = {  # phases that are a cause by themselves, and what to do about it
    "data": "Its loader does not keep up: give it more, or quote smaller batches.",
    "communication": "Communication grew out of proportion: look at its sizes of buckets or fusion.",
    "matchmaking": "Peers looked for each other longer than batches computed: give the round a larger target batch.",
}
UNKNOWN = "Look for its cause (--profile) before this row is quoted."
BATCH_CLIFFS_MOST = 0.5  # of the added time: so much of it in one phase is a place to look


def batch_cliffs(evidence: Evidence) -> Iterator[Finding]:
    steps = list(_steps(evidence.rows))
    sure = sum(min(small["n"], large["n"]) >= FEWEST_REPEATS for small, large in steps)
    for small, large in steps:
        if not (fell := _fell(small, large, simultaneous(sure))):
            continue
        cause, where = _cause(small, large)
        text = (
            f"{findings.named([large])}: {fell} of the samples per second at batch {small['batch']}, {where}. "
            f"{CAUSES.get(cause, UNKNOWN)}"
        )
        title = "A cliff along the batch size" + ("" if cause else ", without a cause")
        yield findings.about("F4", title, text, NOTE if cause else DOUBT, [small, large])


def _fell(small: Row, large: Row, confidence: float) -> str:
    """`29 % (at most 31 %)` where the larger batch stands at the foot of a cliff; empty where it does not."""
    change = over(large, small, confidence)
    if change.high is None:
        few = change.mean < WITHOUT_INTERVAL
        return f"{100 * change.mean:.0f} % (too few repeats for an interval)" if few else ""
    return f"{100 * change.mean:.0f} % (at most {100 * change.high:.0f} %)" if change.high < CLIFF else ""


def _steps(rows: list[Row]) -> Iterator[tuple[Row, Row]]:
    """(one batch size, the next larger one) of everything that is otherwise the same."""
    alike = [key for key in KEYS if key not in ("batch_per_worker", "global_batch")]
    series = grouped(rows, lambda row: values_of(row, alike))
    for ours in series.values():
        yield from pairwise(sorted(ours, key=lambda row: int(row["global_batch"])))


def _cause(small: Row, large: Row) -> tuple[str, str]:
    """(the phase that is a cause by itself, if one is; where the time went, in a clause)."""

    before, after = (
        {phase: seconds / samples_of_step(row) for phase, seconds in phase_seconds(row).items()}
        for row in (small, large)
    )
    added = {phase: after[phase] - before[phase] for phase in before if phase in after}
    whole = sum(added.values())
    if whole <= 0:
        return "", "and its phases do not show where the time went"
    phase = max(added, key=lambda name: added[name])
    share = added[phase] / whole
    if share < BATCH_CLIFFS_MOST:
        return "", "and the time went into several phases"
    return phase * (phase in CAUSES), f"and {100 * min(share, 1):.0f} % of the time added to a sample is in {phase}"


# Was one program measured, or several? A sweep that is resumed after an upgrade compares two of them.

MOST_VERSIONS = 4
OURS = "scaling_study"  # its version says less than the commit does


def mixed_versions(evidence: Evidence) -> Iterator[Finding]:
    """Libraries, models of the user's own and commits that differ between the trials of a study; libraries of one
    framework only are its own."""
    facts = [fact for row in evidence.rows for fact in evidence.facts.get(str(row["configuration"]), ())]
    words = (word for fact in facts for word in filter(None, str(fact["versions"] or "").split(", ")))
    versions = (word.partition(" ")[::2] for word in words)
    if each := _unlike((name, version) for name, version in versions if name != OURS):
        text = (
            f"The trials did not all have the same libraries, and a difference may be theirs: {each}. Run the older "
            "ones again: --retry ok."
        )
        yield Finding("versions", "Several versions of a library", text, DOUBT)
    if edited := [row for row in evidence.rows if len(set(evidence.fact(row, "code"))) > 1]:
        text = (
            f"The script of {findings.named(edited)} changed between launches, and its mean is of several versions. "
            "Run the older ones again: --retry ok."
        )
        yield findings.about("script", "A script that changed between launches", text, DOUBT, edited)
    if each := _unlike(str(fact["model_code"]).rpartition(" ")[::2] for fact in facts if fact["model_code"]):
        text = (
            f"The code of a model was edited between trials, and a difference may be the edit's: {each}. Run the older "
            "ones again: --retry ok."
        )
        yield Finding("model code", "An edited model", text, DOUBT)
    commits = Counter(str(fact["commit"]) for fact in facts if fact["commit"])
    if len(commits) > 1:
        text = (
            f"Measured by {findings.count(len(commits), 'commit')} of this program: {_counted(commits)}. Where they "
            "differ in what is timed, run the older trials again: --retry ok."
        )
        yield Finding("commits", "Several commits", text, NOTE)
    if unknown := {commit: count for commit, count in commits.items() if commit.startswith(NO_COMMIT)}:
        text = f"The program's commit is {_counted(Counter(unknown))}: which code was measured cannot be looked up."
        yield Finding("commit-unknown", "An unknown program", text, NOTE)


def _unlike(pairs: Iterable[tuple[str, str]]) -> str:
    """`torch 2.4.1 (30 trials), 2.5.0 (6 trials); ...` of (name, value) of each trial; those that all have alike are
    left out."""
    counts = {name: Counter(value for _, value in ours) for name, ours in grouped(pairs, lambda pair: pair[0]).items()}
    return "; ".join(f"{name} {_counted(values)}" for name, values in sorted(counts.items()) if len(values) > 1)


def _counted(counts: Counter[str]) -> str:
    """`2.4.1 (30 trials), 2.5.0 (6 trials)`."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name} ({findings.count(count, 'trial')})" for name, count in ranked[:MOST_VERSIONS]]
    return ", ".join(shown) + (", ..." if len(counts) > MOST_VERSIONS else "")


def missing_results(evidence: Evidence) -> Iterator[Finding]:
    """Records that were left out, and configurations that are planned and unknown: one finding of each."""
    skipped, unseen = evidence.results.skipped, evidence.results.unseen
    if skipped:
        text = (
            f"{count(len(skipped), 'record')} could not be read, and what they hold is in no number here: run those "
            "trials again (the sweep does so by itself), or take their folders away."
        )
        yield Finding("unreadable", "Records that cannot be read", text, DOUBT)
    if unseen:
        text = (
            f"{len(unseen)} of the {count(len(evidence.results.study.configurations or ()), 'configuration')} of the "
            f"study {'has' if len(unseen) == 1 else 'have'} no record that can be read: "
            f"{first_few(unseen, MOST_NAMES)}. The fastest may be among them; the sweep goes on where it "
            "stopped."
        )
        yield Finding("unmeasured", "Configurations without a record", text, DOUBT)


VIEW = View(
    "Was time measured as it should be?",
    detectors=(
        loader_limits,
        unlike_cores,
        warm_ups,
        trends_of_steps,
        timing_flaws,
        unequal_launches,
        batch_cliffs,
    ),
)
RECORDS = View("Are records whole, and of one program?", detectors=(mixed_versions, missing_results))
