"""What one rank of a training reports of it.                                                               [torch]"""

from __future__ import annotations

from typing import Any, Protocol

from scaling_study.measure.described import described
from scaling_study.measure.rounds import Rounds
from scaling_study.measure.training import Training
from scaling_study.ranks import Ranks
from scaling_study.records.store import RankReport
from scaling_study.train import facts
from scaling_study.train.moved import Moved
from scaling_study.train.progress import Progress, finite
from scaling_study.train.resources import Resources
from scaling_study.trial import Trial
from scaling_study.workloads import Workload
from scaling_study.workloads.held_out import HeldOut

WARMUP_STEPS = 4  # of throughput, as the clock's; seconds to a target have them too


class Trained(Protocol):
    """A training that is over, as loop.py has it."""

    training: Training
    trial: Trial
    ranks: Ranks
    workload: Workload
    held_out: HeldOut
    progress: Progress
    resources: Resources
    step_seconds: list[float]
    moved: Moved
    rates: list[Any]  # of the optimiser's groups, before any schedule
    native: Any  # the library's own loop; None: ours
    validates: bool
    validated: dict[str, float]  # by the last evaluation
    layout: str
    resumed_layout: str
    orders: list[str]


def samples_so_far(progress: Progress, rounds: Rounds | None, trial: Trial, ranks: Ranks) -> int:
    """Of all ranks, called by all: steps x global batch, or what they really gave to rounds."""
    if not rounds:
        return progress.steps * trial.global_batch
    progress.samples += int(ranks.total([rounds.uncounted()])[0])
    return progress.samples


def rank_report(loop: Trained, began: float, ended: str, test: dict[str, float]) -> RankReport:
    """As the clock's, without what only it measures; `training` has what came of it (docs/record.md)."""
    progress, held_out, seconds, workload = loop.progress, loop.held_out, loop.step_seconds, loop.workload
    waited = {"data_seconds": progress.data_seconds} if progress.data_seconds else {}  # unknown in Lightning's own loop
    training = {
        "loop": "native" if loop.native else "ours", "ended_by": ended, "target": loop.trial.train_target or "",
        "reached": progress.rows[-1] if ended == "target" else None, "rows": progress.rows,
        "best_step": progress.best_step, "seconds": progress.seconds, "steps": progress.steps,
        "resumed": progress.resumed, "lost_steps": progress.lost_steps,
        "groups": facts.groups(
            loop.training.optimizer, loop.rates, workload.model, workload.frozen, workload.part_sizes
        ),
        **({"moved": moved} if (moved := loop.moved.by_part()) else {}),
        "logged_loss": facts.logged_loss(progress.rows), "splits": held_out.published,
        "in_both": held_out.in_both, "selected_on": "validation" if loop.validates else "",
        "layout": loop.layout, "resumed_layout": loop.resumed_layout, **waited,
        "noise": progress.noise, "orders": loop.orders,
        "one_order": "" if loop.workload.reshuffles else facts.AS_IT_RUNS, "evaluated": {"split": "test", **test},
        "validated": {"split": "validation", **loop.validated} if loop.validated else {},
    }  # fmt: skip
    warm = min(WARMUP_STEPS, len(seconds) // 2)
    # Rounds are those since the training was last gone on from; of those before, a step's share is what it was to be.
    rounds, steps = loop.training.rounds.since(0) if loop.training.rounds else [], len(seconds) - warm
    seen = [each["samples"] for each in rounds[-steps:]]
    return RankReport(
        **{**described(loop.training, loop.trial, loop.ranks), "learning_rate": loop.rates[0]}, first_step_at=began,
        warmup_seconds=seconds[:warm], step_seconds=seconds[warm:],
        samples_seen=sum(seen) + (steps - len(seen)) * loop.workload.samples_per_step, rounds=rounds,
        tokens_seen=None, phases=None, allreduce_bytes=None, communication_bytes={}, loss_first=progress.loss_first,
        loss_last=finite(progress.rows[-1]["train_loss"]) if progress.rows else None,
        notes=[*loop.workload.notes, *loop.workload.batches.notes()], training=facts.recordable(training),
        **loop.resources.report(),
    )  # fmt: skip
