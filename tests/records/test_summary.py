"""What stays in memory of a record, and which records are not to be believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from test_store import a_record

from scaling_study.records import results
from scaling_study.records.store import IMPLIED, RankReport, UnreadableRecord

Report = Callable[..., RankReport]


def test_an_ok_one_has_its_throughput_and_no_samples(rank_report: Report) -> None:
    ranks = [rank_report(rank=rank, step_seconds=[0.5, 0.25 + rank]) for rank in (0, 1)]
    known = results.summarize(a_record(ranks=ranks))
    assert known.samples_per_second == pytest.approx(128 / 1.75)  # of both, over the slower one's window
    assert (known.status, known.total_seconds, known.implied) == ("ok", 10.25, False)
    assert not hasattr(known, "ranks")


def test_one_that_failed_has_none(rank_report: Report) -> None:
    known = results.summarize(a_record(status="failed", reason="a bug", ranks=[rank_report()]))
    assert (known.status, known.reason, known.samples_per_second, known.busy_elsewhere_cores) == (
        "failed", "a bug", None, None,
    )  # fmt: skip


def test_one_that_was_implied_is_told_from_one_that_was_measured() -> None:
    assert results.summarize(a_record(status="oom", reason=f"{IMPLIED}x")).implied
    assert not results.summarize(a_record(status="oom", reason="rank 0: x")).implied


@pytest.mark.parametrize(
    "changes",
    [
        {"ranks": []},
        {"status": "fine"},
        {"id": "another"},
        {"configuration": "another"},
        {"trial": replace(a_record().trial, repeat=2)},
    ],
    ids=["no ranks", "no status", "id", "configuration", "repeat"],
)
def test_what_contradicts_itself_is_not_believed(rank_report: Report, changes: dict[str, Any]) -> None:
    with pytest.raises(UnreadableRecord):
        results.summarize(a_record(**{"ranks": [rank_report()], **changes}))


@pytest.mark.parametrize(
    "changes",
    [{"step_seconds": []}, {"step_seconds": [0.0]}, {"step_seconds": [-1.0]}, {"step_seconds": [1e308, 1e308]},
     {"samples_seen": 0}, {"samples_seen": -32}, {"samples_seen": 2**62, "step_seconds": [5e-324]}],
    ids=str,
)  # fmt: skip
def test_a_throughput_that_cannot_be_is_not_believed(rank_report: Report, changes: dict[str, Any]) -> None:
    with pytest.raises(UnreadableRecord):
        results.summarize(a_record(ranks=[replace(rank_report(), **changes)]))
