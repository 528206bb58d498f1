"""The table of rounds of decentralised training: what a round had, what it waited for, and which ones failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from analysis.frames import configurations
from analysis.frames.configurations import known
from analysis.frames.measured import NUMBERS, SECONDS
from analysis.frames.results import Results
from analysis.frames.rows import as_rows
from analysis.show import notes
from analysis.show.layout import Listing
from analysis.text import megabytes, number, percent
from analysis.views.view import StudyTable, View
from scaling_study.stats.intervals import between_repeats

COLUMNS = (
    "configuration",
    "model",
    "series",
    "batch",
    "workers",
    "target_batch",
    "runs",
    "achieved_over_target",
    "achieved_low",
    "achieved_high",
    "achieved_most",
    "rounds",
    "failed",
    "local",
    "peers",
    "round_seconds",
    *SECONDS,
    "blocked_share",
    "weights_share",
    "communication_bytes",
    "failure",
)
HEADER = (
    "configuration",
    "batch",
    "target batch",
    "achieved / target",
    "rounds",
    "failed",
    "peers",
    "round s",
    "matchmaking s",
    "of it blocked",
    "averaging s",
    "blocked",
    "both of a round",
    "weights averaged",
    "MB a round",
)


def table(results: Results) -> pd.DataFrame:
    """COLUMNS, a row for each configuration that has rounds. `rounds`: timed, of the `runs` that are ok; `failed` and
    `local`: of all runs, as one in which a round failed is not ok. Seconds are means over ranks, rounds and runs.

    `blocked_share`: of a round, in which it did nothing but look for peers and average.
    """
    details = results.details.rounds
    by_name = {str(name): rows for name, rows in details.groupby("configuration", sort=False)}
    rows = [_row(row, by_name[row["configuration"]]) for row in results.rows if row["configuration"] in by_name]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(row: Mapping[str, Any], runs: pd.DataFrame) -> dict[str, Any]:
    good = runs[runs.ok]
    means = {name: float(good[name].mean()) if len(good) else None for name in NUMBERS}
    achieved = between_repeats(good.achieved_over_target.tolist()) if len(good) else None
    blocked = sum(means[f"{part}_blocked_seconds"] or 0.0 for part in ("matchmaking", "averaging"))
    return {
        **{key: row[key] for key in ("configuration", "model", "series", "batch", "workers", "communication_bytes")},
        **means,
        "target_batch": row["global_batch"],
        "runs": len(good),
        "achieved_low": achieved and achieved.low,
        "achieved_high": achieved and achieved.high,
        "achieved_most": float(good.achieved_most.max()) if len(good) else None,
        "rounds": int(good.rounds.sum()),
        "failed": int(runs.failed.sum()),
        "local": int(runs.local.sum()),
        "peers": int(runs.peers.min()),
        "blocked_share": blocked / means["round_seconds"] if means["round_seconds"] else None,
        "failure": next((str(why) for why in runs.failure if why), ""),
    }


def listing(results: Results) -> Listing | None:
    """A row for each configuration that has rounds; None where none has."""
    rows = table(results)
    if rows.empty:
        return None
    several = len(results.models) > 1
    signs = {row["configuration"]: configurations.sign(row) for row in results.rows}
    cells = tuple(_cells(row, several, signs[row["configuration"]]) for row in as_rows(rows))
    title = f"Rounds of decentralised training ({results.heading})"
    return Listing(title, HEADER, cells, tuple(_lines(results, rows)))


def _cells(row: Mapping[Any, Any], several: bool, sign: str) -> tuple[str, ...]:
    model = f"{row['model']}, " if several else ""
    bounds = f" [{row['achieved_low']:.3f}, {row['achieved_high']:.3f}]" if known(row["achieved_low"]) else ""
    achieved = f"{row['achieved_over_target']:.3f}{bounds}" if known(row["achieved_over_target"]) else ""
    failed = f"{row['failed']}" + (f" ({row['local']} alone)" if row["local"] else "")
    return (
        f"{model}{row['series']} {sign}".rstrip(),
        str(row["batch"]),
        f"{row['target_batch']:,}",
        achieved,
        str(row["rounds"]),
        failed,
        f"{row['peers']} of {row['workers']}",
        *(number(row[name]) if known(row[name]) else "" for name in ("round_seconds", *SECONDS)),
        *(percent(row[name]) if known(row[name]) else "" for name in ("blocked_share", "weights_share")),
        megabytes(row["communication_bytes"]),
    )


def _lines(results: Results, rows: pd.DataFrame) -> Iterator[str]:
    ours = results.configurations[results.configurations.configuration.isin(rows.configuration)]
    yield from configurations.sentences(ours)
    yield (
        "A step is a round: peers read batches until they together have the target, then average. Achieved: samples of "
        "all peers over the target, mean of the timed rounds [95 % between runs]; warm-up rounds are apart. Each peer "
        "ends the batch that it is in, and estimates what others have read: a round has more than its target, or less."
    )
    yield (
        "Seconds a round, means over peers: looking for each other (matchmaking) and exchanging gradients (averaging); "
        "blocked: in which the step did nothing else, waiting for gradients or for the weights of the round before. "
        "Weights averaged: after so many of the rounds; Hivemind leaves out a round that ends while others' still are. "
        "MB: gradients and weights that one peer hands to averaging."
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


VIEW = View("What happens in a round of averaging?", (StudyTable("rounds", listing, table),))
