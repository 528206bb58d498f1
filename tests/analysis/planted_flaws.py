"""Results folders with a flaw in them: planted records, of which something is then changed to what the flaw leaves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from planted import Planted, plant, plant_gates, record
from planted_pipelines import Pipeline, pipeline_record

from analysis.findings import Evidence, Finding
from analysis.frames import results
from analysis.frames.results import Results
from analysis.views import catalog
from scaling_study.records.schema import RankReport, Record
from scaling_study.records.store import write_record

Change = Callable[[RankReport], Mapping[str, Any]]
SINGLE = {"baseline": {"framework": "single"}}
GPUS = {"cores": 8, "cpu": "Xeon", "gpus": ["Tesla T4"] * 8, "memory_bytes": 60 << 30, "fingerprint": "abcd1234"}
CUDA = (("device", "cuda"),)
TRAINED: dict[str, Any] = {  # what a sound run to a result says of itself
    "groups": [{"name": "backbone", "parameters": 11_176_512, "learning_rate": 0.001}],
    "logged_loss": "epoch",
    "splits": {"train": {"train": 45_000}, "validation": {"train": 5_000}, "test": {"test": 10_000}},
    "in_both": {"train/validation": 0, "train/test": 0, "validation/test": 0},
    "selected_on": "validation", "layout": "9f3c", "resumed_layout": "9f3c", "orders": ["a1", "b2", "c3"],
    "evaluated": {"split": "test", "samples": 10_000, "accuracy": 0.84},
    "shown_maps": {"channels": "class", "class": "most likely"},
}  # fmt: skip


@dataclass(frozen=True)
class Flawed:
    """One configuration, and what every rank of its records says otherwise; or what each says, by a function of it."""

    of: Planted | Pipeline
    ranks: Mapping[str, Any] | Change = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def planted(self) -> Planted:
        return self.of.planted if isinstance(self.of, Pipeline) else self.of

    def whole(self, repeat: int, rng: np.random.Generator) -> Record:
        """Its record, still without a flaw."""
        if isinstance(self.of, Pipeline):
            return pipeline_record(self.of, repeat, rng)
        speed = None if self.of.speed is None else self.of.speed * (1 + self.of.noise * rng.normal())
        return record(self.of, self.of.trial(repeat), speed, "planted", rng)


def plant_flawed(folder: Path, flawed: Iterable[Flawed | Planted], **about: Any) -> Results:
    """Read back from disk, with gates that passed."""
    made = [one if isinstance(one, Flawed) else Flawed(one) for one in flawed]
    plant(folder, [], **{**SINGLE, **about})
    rng = np.random.default_rng(0)
    for one in made:
        for repeat in range(1, one.planted.repeats + 1):
            whole = one.whole(repeat, rng)
            change = one.ranks if callable(one.ranks) else lambda _, said=one.ranks: said
            ranks = [replace(rank, **change(rank)) for rank in whole.ranks]
            write_record(folder / "trials" / whole.id, replace(whole, **{"ranks": ranks, **one.record}))
    plant_gates(folder, [one.planted for one in made])
    return results.read(folder)


def flaws(done: Results) -> set[str]:
    return {one.flaw for one in catalog.all_findings(done)}


def found(done: Results, flaw: str) -> Finding:
    """The one finding of this flaw, in one or two sentences: what was seen, and what to do. It was looked for."""
    assert flaw not in catalog.not_looked_for(Evidence(done))
    (only,) = [one for one in catalog.all_findings(done) if one.flaw == flaw]
    assert only.text.endswith(".") and len(re.split(r"\. (?=[A-Z])", only.text)) <= 2, only.text
    return only
