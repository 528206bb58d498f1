"""One worker's step as a study measured it: its parts, when its gradients are there, and how much all of it varies.

    timed steps          their mean, how it varies between repeats and from step to step
    instrumented steps   data, forward, backward, the rest: scaled to the timed mean, since timing them disturbs
    the step after       which gradient came when: scaled to backward

Gradients that nobody noted, as in older records, are taken to come evenly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.frames.baseline import known
from analysis.frames.row_types import ConfigurationRow
from analysis.prediction.fusion import Gradient
from analysis.prediction.simulate import Step
from scaling_study.records import store
from scaling_study.records.store import RankReport, UnreadableRecord

EVEN_PARTS = 64  # of a backward whose gradients nobody noted
Row = ConfigurationRow


@dataclass(frozen=True)
class OneWorker:
    """`log_error`: standard error of the logarithm of its mean step, between `repeats`; `variation`: deviation of one
    timed step over the mean. `noted`: whether gradients were seen to arrive, or are taken to come evenly."""

    configuration: str
    step: Step
    samples: int
    repeats: int
    log_error: float
    variation: float
    noted: bool

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.step.seconds


def one_worker(base: Row, trials: pd.DataFrame, folder: Path) -> OneWorker | str:
    """What the repeats of a configuration with one worker say, or why they do not say it."""
    ours = trials[(trials.configuration == base["configuration"]) & (trials.status == "ok")]
    reports = [report for trial in ours.trial if (report := _report(folder / "trials" / str(trial)))]
    micro_batches = int(base["accumulation"]) if known(base["accumulation"]) else 1
    return of_reports(str(base["configuration"]), reports, micro_batches)


def of_reports(configuration: str, reports: Sequence[RankReport], micro_batches: int = 1) -> OneWorker | str:
    """The same from the reports themselves, one a repeat."""
    if not reports:
        return "none of its records can be read"
    phases = [report.phases for report in reports]
    if any(p is None or p.forward_seconds is None or p.backward_seconds is None for p in phases):
        return "its records do not say how long forward and backward take"
    means = np.array([np.mean(report.step_seconds) for report in reports])
    varied = [float(np.std(report.step_seconds) / np.mean(report.step_seconds)) for report in reports]
    spread = float(np.std(np.log(means), ddof=1)) if len(reports) > 1 else 0.0
    gradients, noted = arrivals(reports)
    return OneWorker(
        configuration, _step(reports, gradients, micro_batches),
        reports[0].samples_per_step, len(reports), spread / math.sqrt(len(reports)), float(np.mean(varied)), noted,
    )  # fmt: skip


def _step(reports: Sequence[RankReport], gradients: Sequence[Gradient], micro_batches: int) -> Step:
    """Means over the repeats. `gradients`: arrivals as shares of the last micro-batch's backward, which sends them."""
    before, backward, whole = [], [], []
    for report in reports:
        phases, seconds = report.phases, float(np.mean(report.step_seconds))
        assert phases is not None and phases.forward_seconds is not None and phases.backward_seconds is not None
        undisturbed = seconds / phases.step_seconds
        last = phases.backward_seconds / micro_batches
        earlier = (phases.data_seconds or 0.0) + phases.forward_seconds + phases.backward_seconds - last
        before.append(earlier * undisturbed)
        backward.append(last * undisturbed)
        whole.append(seconds)
    seconds, half, rest = (float(np.mean(values)) for values in (backward, before, whole))
    return Step(half, seconds, rest - half - seconds, tuple((size, share * seconds) for size, share in gradients))


def arrivals(reports: Sequence[RankReport]) -> tuple[list[Gradient], bool]:
    """(bytes, share of backward after which it is there) of each gradient, and whether it was noted.

    The last gradient ends backward: autograd runs nothing that leads to none. Repeats that came in one order are
    averaged. Without notes (older records) the parameters' bytes come evenly.
    """
    noted = [report.gradients for report in reports if report.gradients and report.gradients[-1][1] > 0]
    if not noted:
        total = 4.0 * reports[0].parameters
        return [(total / EVEN_PARTS, (part + 1) / EVEN_PARTS) for part in range(EVEN_PARTS)], False
    sizes = [size for size, _ in noted[0]]
    alike = [moments for moments in noted if [size for size, _ in moments] == sizes]
    shares = np.mean([[seconds / moments[-1][1] for _, seconds in moments] for moments in alike], axis=0)
    return list(zip(sizes, map(float, shares), strict=True)), True


def _report(trial: Path) -> RankReport | None:
    try:
        return store.read_trial(trial).ranks[0]
    except (UnreadableRecord, IndexError):
        return None
