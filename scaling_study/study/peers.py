"""What is wrong about peers that average once they together have a target batch, in one combination of keys. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.targets import trains

MATCHMAKING_SECONDS, AVERAGING_TIMEOUT_SECONDS = 3.0, 60.0  # where a trial names none; the latter is Hivemind's own


def problems(framework: str, workers: int, batch: int, keys: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, message) of everything that is wrong; nothing for a framework whose workers are no peers."""
    if not FRAMEWORKS[framework].has_rounds:
        return
    if workers < 2:
        yield "workers", f"workers={workers}: one peer has nobody to average with; {framework} needs two or more"
    if keys.get("updates") == "delayed" and trains(keys):
        yield (
            "updates",
            "updates=delayed can only be timed: its weights lie twice, and a checkpoint would have one of them",
        )
    target = keys.get("target_batch_size")
    if target is not None and batch and target < workers * batch:
        yield (
            "target_batch_size",
            f"target_batch_size={target} is less than the {workers * batch} samples of workers={workers} with "
            f"batch_per_worker={batch}: each peer gives a batch at least",
        )
    elif target is not None and target % workers:
        yield "target_batch_size", f"workers={workers} does not divide target_batch_size={target}"
    matchmaking = keys.get("matchmaking_seconds") or MATCHMAKING_SECONDS
    timeout = keys.get("averaging_timeout_seconds") or AVERAGING_TIMEOUT_SECONDS
    if matchmaking >= timeout:
        key = "matchmaking_seconds" if "matchmaking_seconds" in keys else "averaging_timeout_seconds"
        yield (
            key,
            f"matchmaking_seconds={matchmaking:g} leaves no time to average: averaging_timeout_seconds={timeout:g} "
            "counts from its beginning",
        )
