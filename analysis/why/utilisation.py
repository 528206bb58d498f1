"""Model FLOP/s against the device's measured peak, and where that leaves the step on a roofline.

    model FLOP/s       3 x forward FLOPs of a sample x samples a second of one worker        (workloads/flops.py)
    utilisation        that / the fastest matrix product of the same kind of device           (measure/peak.py)
    intensity          model FLOPs of a step / bytes that it moves at least                   FLOP/byte
    roof               min(peak FLOP/s, intensity x peak bytes/s)      Williams, Waterman, Patterson, CACM 52(4), 2009

Bytes moved are counted as if each kind of tensor passed through memory once for each use, and caches kept nothing else:
activations written and read (2), parameters read by forward, backward and update and written by it (4), gradients
written and read (2), optimiser state read and written (2). So the intensity is an estimate, good to a factor, not a
measurement; where a model fits into caches it is too low.

The peak is the highest that any run of the study measured on such a device, with as many cores and in this precision
(fp32 and TF32 apart): noise can only make a measured roof too low.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from analysis.frames.baseline import known, values_of
from analysis.frames.cache import once
from analysis.frames.results import Results
from analysis.frames.rounds import of_peers, samples_of_step
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.rows import as_rows
from analysis.resources.memory import stage_of
from analysis.why.steps import cut

PASSES = 3  # a step's FLOPs over forward's
USES = {"activations_bytes": 2, "parameters_bytes": 4, "gradients_bytes": 2, "optimizer_bytes": 2}
DEVICE = ("machine", "device", "cores_per_worker", "precision", "tf32")
PEAKS = ("peak_flops_per_second", "peak_bytes_per_second")
NOT_COUNTED, NOT_MEASURED = "its FLOPs were not counted", "its device's peak was not measured"
Row = ConfigurationRow


@dataclass(frozen=True)
class Utilisation:
    """Of one worker of a configuration. What is None is unknown, and `why` says what was not measured."""

    row: Row
    flops_per_second: float | None
    peak_flops_per_second: float | None
    peak_bytes_per_second: float | None
    bytes_per_step: float | None
    flops_per_step: float | None
    why: str = ""

    @property
    def share(self) -> float | None:
        """Of the peak."""
        if self.flops_per_second is None or self.peak_flops_per_second is None:
            return None
        return self.flops_per_second / self.peak_flops_per_second

    @property
    def intensity(self) -> float | None:
        """FLOP/byte."""
        return self.flops_per_step / self.bytes_per_step if self.flops_per_step and self.bytes_per_step else None

    @property
    def ridge(self) -> float | None:
        """FLOP/byte below which memory is the lower roof."""
        if self.peak_flops_per_second is None or self.peak_bytes_per_second is None:
            return None
        return self.peak_flops_per_second / self.peak_bytes_per_second

    @property
    def roof(self) -> float | None:
        """FLOP/s that this intensity allows."""
        if self.intensity is None or self.peak_bytes_per_second is None or self.peak_flops_per_second is None:
            return None
        return min(self.peak_flops_per_second, self.intensity * self.peak_bytes_per_second)

    @property
    def under_memory(self) -> bool:
        """Whether memory is the lower roof."""
        return self.intensity is not None and self.ridge is not None and self.intensity < self.ridge


@once
def utilisations(results: Results) -> list[Utilisation]:
    """Of every configuration that was measured, in the order of results.configurations."""
    ranks = results.details.ranks.groupby("configuration")
    numbers = ranks[["forward_flops_per_sample", "tf32", *PEAKS]].max()
    numbers = numbers.where(numbers > 0)
    measured = results.configurations[results.configurations.n > 0].join(numbers, on="configuration")
    kind = [measured[key].map(lambda value: str(value) if known(value) else "") for key in DEVICE]
    roofs = measured.groupby(kind)[list(PEAKS)].transform("max") if len(measured) else measured[list(PEAKS)]
    rows = as_rows(measured.assign(**{name: roofs[name] for name in PEAKS}))
    return [_utilisation(row) for row in cast("list[Row]", rows)]


def _utilisation(row: Row) -> Utilisation:
    forward, peak, bandwidth = values_of(row, ("forward_flops_per_sample", *PEAKS))
    samples = samples_of_step(row) / int(row["workers"])  # that a worker's share of a step amounts to
    each = None if forward is None else PASSES * forward
    why = [text for value, text in ((forward, NOT_COUNTED), (peak, NOT_MEASURED)) if value is None]
    return Utilisation(
        row,
        None if each is None else each * float(row["samples_per_second"]) / int(row["workers"]),
        peak, bandwidth, _bytes(row), None if each is None else each * samples, " and ".join(why),
    )  # fmt: skip


def _bytes(row: Row) -> float | None:
    """That a worker moves in a step, at least; None where memory was not counted by kind, or where what was counted is
    not all that passes: activations of one of several micro-batches, a shard of the weights."""
    kinds = values_of(row, USES)
    gathers = stage_of(row) == 3 and int(row["workers"]) > 1  # what passes through memory is more than its shard
    several = (known(row["accumulation"]) and int(row["accumulation"]) > 1) or of_peers(str(row["framework"]))
    if cut(row) or gathers or several or not all(known(value) for value in kinds):
        return None
    moved = float(np.dot([float(value) for value in kinds], list(USES.values())))
    return moved if moved > 0 else None
