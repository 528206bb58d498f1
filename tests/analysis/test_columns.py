"""One line in the registry of columns is all that a new column needs, and its page says what the registry says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from planted import Planted, plant

import analysis
from analysis.frames import columns, results
from analysis.frames.columns import Column, Listed
from analysis.report import page
from environment import reference
from scaling_study.records import store


def test_a_column_declared_once_is_in_both_files_the_list_and_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Listed("setup", unit="MB", factor=1e-6)
    setup = Column("setup_peak_memory_bytes", int, "B", ranks=max, repeats=max, listed=listed)
    monkeypatch.setattr(columns, "TRIALS", (*columns.TRIALS, setup))

    for name in plant(tmp_path, [Planted("horovod", workers=2, repeats=3)]).glob("trials/*"):
        record = store.read_trial(name)
        peaks = (5_000_000 * record.trial.repeat, 4_000_000)
        ranks = [replace(r, setup_peak_memory_bytes=n) for r, n in zip(record.ranks, peaks, strict=True)]
        store.write_record(name, replace(record, ranks=ranks))
    analysis.write(tmp_path)
    assert list(pd.read_csv(tmp_path / "results.csv")[setup.name]) == [5_000_000, 10_000_000, 15_000_000]
    assert list(pd.read_csv(tmp_path / "configurations.csv")[setup.name]) == [15_000_000]
    read = results.read(tmp_path)
    for listing, shown in ((page.trials(read), (5.0, 10.0, 15.0)), (page.configurations(read), (15.0,))):
        assert listing.values[listing.columns.index("setup (MB)")] == shown
    assert "| `setup_peak_memory_bytes` | integer | B | maximum |" in reference.pages()["columns.md"]


def test_what_no_rank_knows_is_unknown() -> None:
    assert Column("host", str, ranks=max).of_ranks([]) is None
