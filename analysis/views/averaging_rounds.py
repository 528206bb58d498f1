"""The table of rounds of decentralised training: what a round had, what it waited for, and which ones failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from analysis.findings import DOUBT, Evidence, Finding, about, count, named
from analysis.frames import configurations
from analysis.frames.configurations import known, trains
from analysis.frames.measured import NUMBERS, SECONDS
from analysis.frames.results import Results
from analysis.frames.rows import as_rows, by_configuration
from analysis.show import notes
from analysis.show.layout import Listing
from analysis.text import megabytes, number, percent, with_interval
from analysis.views.view import StudyTable, View
from scaling_study.stats.intervals import between_repeats

FEWEST_ROUNDS = 10  # that a launch times


def rounds_table(results: Results) -> pd.DataFrame:
    """A row for each configuration that has rounds. `rounds`: timed, of the `runs` that are ok; `failed` and `local`:
    of all runs, as one in which a round failed is not ok. Seconds are means over ranks, rounds and runs.

    `blocked_share`: of a round, in which it did nothing but look for peers and average.
    """
    runs = by_configuration(results.details.rounds)
    return pd.DataFrame([_row(row, runs[row["configuration"]]) for row in results.rows if row["configuration"] in runs])


def _row(row: Mapping[str, Any], runs: pd.DataFrame) -> dict[str, Any]:
    good = runs[runs.ok]
    means = {name: float(good[name].mean()) if len(good) else None for name in NUMBERS}
    achieved = between_repeats(good.achieved_over_target.tolist()) if len(good) else None
    blocked = sum(means[f"{part}_blocked_seconds"] or 0.0 for part in ("matchmaking", "averaging"))
    return {
        **{key: row[key] for key in notes.ABOUT},
        "target_batch": row["global_batch"],
        "runs": len(good),
        "achieved_over_target": means["achieved_over_target"],
        "achieved_low": achieved and achieved.low,
        "achieved_high": achieved and achieved.high,
        "achieved_most": float(good.achieved_most.max()) if len(good) else None,
        "rounds": int(good.rounds.sum()),
        "failed": int(runs.failed.sum()),
        "local": int(runs.local.sum()),
        "peers": int(runs.peers.min()),
        "round_seconds": means["round_seconds"],
        **{name: means[name] for name in SECONDS},
        "blocked_share": blocked / means["round_seconds"] if means["round_seconds"] else None,
        "weights_share": means["weights_share"],
        "communication_bytes": row["communication_bytes"],
        "sent_bytes": means["sent_bytes"],
        "failure": next((str(why) for why in runs.failure if why), ""),
    }


def listing(results: Results) -> Listing | None:
    """A row for each configuration that has rounds; None where none has."""
    rows = rounds_table(results)
    if rows.empty:
        return None
    cells = [_cells(row, results) for row in as_rows(rows)]
    return Listing.from_rows(f"Rounds of decentralised training ({results.heading})", cells, _lines(results, rows))


def _cells(row: Mapping[Any, Any], results: Results) -> dict[str, str]:
    name, batch = notes.series_and_batch(results.by_name[row["configuration"]], results)
    achieved, low, high = (row[f"achieved_{of}"] for of in ("over_target", "low", "high"))
    shown = {key: number(row[key]) if known(row[key]) else "" for key in ("round_seconds", *SECONDS)}
    return {
        "configuration": name,
        "batch": batch,
        "target batch": f"{row['target_batch']:,}",
        "achieved / target": with_interval(achieved, low, high, "{:.3f}".format),
        "rounds": str(row["rounds"]),
        "failed": f"{row['failed']}" + (f" ({row['local']} alone)" if row["local"] else ""),
        "peers": f"{row['peers']} of {row['workers']}",
        "round s": shown["round_seconds"],
        "matchmaking s": shown["matchmaking_seconds"],
        "of it blocked": shown["matchmaking_blocked_seconds"],
        "averaging s": shown["averaging_seconds"],
        "blocked": shown["averaging_blocked_seconds"],
        "both of a round": percent(row["blocked_share"]),
        "weights averaged": percent(row["weights_share"]),
        "MB a round": megabytes(row["communication_bytes"]),
        "MB sent": megabytes(row["sent_bytes"]),
    }


def _lines(results: Results, rows: pd.DataFrame) -> Iterator[str]:
    yield from configurations.sentences(results.among(rows.configuration))
    yield (
        "A step is a round: peers read batches until they together have the target, then average. Achieved: samples of "
        "all peers over the target, mean of the timed rounds [95 % between runs]; warm-up rounds are apart. Each peer "
        "ends the batch that it is in, and estimates what others have read: a round has more than its target, or less."
    )
    yield (
        "Seconds a round, means over peers: looking for each other (matchmaking) and exchanging gradients (averaging); "
        "blocked: in which the step did nothing else, waiting for gradients or for the weights of the round before. "
        "Weights averaged: after so many of the rounds; Hivemind leaves out a round that ends while others' still are. "
        "MB: gradients and weights that one peer hands to averaging; sent: what it packed for others, in theory "
        "2(n-1)/n times that, with two peers as much."
    )
    failed = rows[rows.failed > 0]
    for row in failed.itertuples():
        yield (
            f"{row.series}, batch {row.batch}: {row.failed} round{'s' * (row.failed != 1)} failed, {row.local} of them "
            f"applied with a peer's own gradients alone; first: {row.failure}. Runs with such a round count as failed."
        )
    if failed.empty:
        yield "Every round was averaged over all peers."
    yield notes.source(results)


def few_rounds(evidence: Evidence) -> Iterator[Finding]:
    """Launches that timed too few rounds for their mean to be one."""
    runs = evidence.results.details.rounds
    fewest = runs[runs.ok].groupby("configuration").rounds.min()
    timed = (row for row in evidence.rows if not trains(row))
    if few := [row for row in timed if fewest.get(row["configuration"], FEWEST_ROUNDS) < FEWEST_ROUNDS]:
        least = min(int(fewest[row["configuration"]]) for row in few)
        text = (
            f"A launch timed only {count(least, 'averaging round')} ({named(few)}). Rounds of a launch are unlike, as "
            f"they follow clocks: time {FEWEST_ROUNDS} or more (min_steps, and max_seconds long enough for them)."
        )
        yield about("rounds", "Few averaging rounds", text, DOUBT, few)


VIEW = View(
    "What happens in a round of averaging?",
    (StudyTable("rounds", listing, rounds_table),),
    detectors=(few_rounds,),
)
