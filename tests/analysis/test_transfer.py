"""Pre-trained against random weights, frozen against trained: each arm at its best rate, paired by seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import Planted, plant, record

from analysis.frames import results
from analysis.tables import transfer
from analysis.tables.layout import markdown
from scaling_study.records.store import write_record

SEEDS = (1, 2, 3, 4, 5)
LUCK = {1: 0.03, 2: -0.02, 3: 0.01, 4: 0.02, 5: -0.04}  # of a seed, in every arm: its own differences have none of it


def planted(folder: Path, arms: list[tuple[dict[str, Any], float, float, tuple[int, ...]]]) -> Path:
    """Arms: (keys, best value on validation data, ap_i on the test, seeds)."""
    plant(folder, [], study="transfer")
    rng = np.random.default_rng(0)
    for keys, validation, test, seeds in arms:
        one = Planted("single", "tripnet_resnet18", 8, speed=20.0, repeats=len(seeds),
                      keys=(("train_epochs", 2), *keys.items()))  # fmt: skip
        for repeat, seed in enumerate(seeds, start=1):
            trial = replace(one.trial(repeat), seed=seed)
            rows = [{"steps": at, "samples": 8 * at, "epoch": at / 9, "seconds": at / 2.0, "all_seconds": at / 1.9,
                     "learning_rate": 0.1, "train_loss": 1.0, "ap_heads": validation - 0.1 * (at == 9)}
                    for at in (9, 18)]  # fmt: skip
            said = {
                "ended_by": "steps",
                "target": "",
                "reached": None,
                "rows": rows,
                "best_step": 18,
                "steps": 18,
                "seconds": {"train": 9.0, "evaluate": 1.0, "save": 0.0, "test": 1.0},
                "resumed": 0,
                "lost_steps": 0,
                "evaluated": {"split": "test", "ap_i": test + LUCK[seed] + 0.002 * (seed - 3), "samples": 50},
            }
            made = record(one, trial, 20.0, "transfer", rng)
            ranks = [replace(rank, training=said, phases=None) for rank in made.ranks]
            write_record(folder / "trials" / trial.id, replace(made, ranks=ranks))
    return folder


def test_arms_are_compared_by_seed_at_the_rate_that_validation_chose(tmp_path: Path) -> None:
    frozen, trained = {"freeze": "backbone"}, {"weights": "imagenet"}
    read = results.read(planted(tmp_path, [
        ({**frozen, "learning_rate": 0.1}, 0.30, 0.26, SEEDS),
        ({**frozen, "learning_rate": 0.2}, 0.29, 0.99, (1, 2)),  # best on the test, and so not chosen
        ({**frozen, **trained, "learning_rate": 0.2}, 0.70, 0.66, SEEDS),
        ({**trained, "learning_rate": 0.1}, 0.80, 0.70, SEEDS),
    ]))  # fmt: skip
    rows = transfer.table(read)
    pairs = [(row.ours, row.theirs, row.fixed, row.ours_rate, row.theirs_rate) for row in rows.itertuples()]
    assert pairs == [
        ("weights imagenet", "random weights", "backbone frozen", 0.2, 0.1),
        ("all trained", "backbone frozen", "weights imagenet", 0.1, 0.2),
    ]
    first = rows.iloc[0]
    assert (first.metric, first.seeds, first.theirs_rates_tried, first.chosen_by) == ("ap_i", 5, 2, "ap_heads")
    assert first.difference == pytest.approx(0.40) and first.difference_high - first.difference_low < 1e-9
    assert first.theirs_mean == pytest.approx(0.26)
    shown = markdown(transfer.listing(read))
    assert "weights imagenet less random weights" in shown and "+0.400 [+0.400, +0.400] (0.260 → 0.660)" in shown


def test_two_seeds_claim_no_interval_and_one_arm_no_table(tmp_path: Path) -> None:
    arms = [({}, 0.3, 0.2, (1, 2)), ({"weights": "imagenet"}, 0.5, 0.6, (1, 2))]
    row = transfer.table(results.read(planted(tmp_path / "two", arms))).iloc[0]
    assert row.difference == pytest.approx(0.4) and row.difference_low is None
    assert transfer.listing(results.read(planted(tmp_path / "one", arms[:1]))) is None
