"""What need not be run: a batch larger than one that was out of memory. Pure.

    batch 32 ok    64 out of memory    128 implied    256 implied

Trials are of one family if they are the same in every key but the batch size and the repeat. An out-of-memory speaks
for larger batches only as long as nothing of its size or more was ok: then it passed, and implies nothing.
"""

from __future__ import annotations

from dataclasses import replace

from scaling_study.records.store import IMPLIED, implied
from scaling_study.trial import Trial


class Limits:
    """Which batch sizes were out of memory, and which fitted, as far as trials have shown."""

    def __init__(self) -> None:
        self._fitted: dict[Trial, int] = {}  # family -> the largest batch that was ok
        self._failed: dict[Trial, dict[int, str]] = {}  # family -> batch -> the trial that was out of memory

    def learn(self, trial: Trial, status: str, reason: str) -> None:
        """Take note of a finished trial. One that was itself implied shows nothing."""
        family, batch = _family(trial), trial.batch_per_worker
        if status == "ok":
            self._fitted[family] = max(batch, self._fitted.get(family, 0))
        elif status == "oom" and not implied(status, reason):
            self._failed.setdefault(family, {}).setdefault(batch, trial.id)

    def implied(self, trial: Trial) -> str:
        """Why the trial would be out of memory, as the reason of its record; empty if nothing says so."""
        family = _family(trial)
        fitted, failed = self._fitted.get(family, 0), self._failed.get(family, {})
        least = min((batch for batch in failed if batch > fitted), default=trial.batch_per_worker)
        if trial.find is not None or least >= trial.batch_per_worker:
            return ""
        return f"{IMPLIED}batch_per_worker={least} was out of memory ({failed[least]})"


def _family(trial: Trial) -> Trial:
    """Equal workers make global_batch grow with batch_per_worker: strong scaling needs no rule of its own."""
    return replace(trial, batch_per_worker=1, repeat=1)
