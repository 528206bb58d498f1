"""Which failure is tried again, which batch is not run at all, and which batch a search tries next. Pure.

    port in use, ranks that did not meet     tried again after a pause: `failure_kind`, `back_off_seconds`
    32 ok, 64 oom                            128 and 256 are implied by it: `Limits`
    32 ok, 64 ok, 128 ok, 256 oom            192 ok, 224 oom, 208 ok ... until they are 3 % apart: `largest_batch`

Transient failures are recognised by the exact messages of the libraries that report them. A rank that fails leaves its
exception's type and message as JSON (worker/script.py). A launcher that fails before any rank has started leaves an
exit code and a log, which decides whether to try once more; no number is taken from it. A wrong result is never tried
again, nor anything after the first step of the shared clock: whatever happened then is a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scaling_study.records.store import IMPLIED, implied
from scaling_study.trial import Trial

# Failures that are tried again.

PORT, RENDEZVOUS = "port", "rendezvous"
BACK_OFF_SECONDS = (1.0, 4.0, 16.0, 60.0)  # before the second attempt, the third, ...; the last for all beyond
LOG_BYTES = 1 << 16  # of the log's end that are looked at


@dataclass(frozen=True)
class Message:
    """The words of a message that appear when, and only when, this has happened; and which library prints them."""

    kind: str
    words: tuple[str, ...]  # all of them
    by: str  # library and version
    type: str = ""  # of the exception; for launchers, whose logs have none, empty


FROM_RANKS = (
    Message(
        PORT,
        ("The server socket has failed to listen on any local network address", "EADDRINUSE"),
        "torch 2.15, TCPStore",
        "DistNetworkError",
    ),
    Message(PORT, ("[Errno 98] Address already in use",), "Python 3.11 on Linux", "OSError"),
    Message(
        RENDEZVOUS,
        ("The client socket has timed out after ", " while trying to connect to "),
        "torch 2.15, TCPStore",
        "DistNetworkError",
    ),
    Message(RENDEZVOUS, ("Timed out after ", " waiting for clients. "), "torch 2.15, TCPStore", "DistStoreError"),
    Message(RENDEZVOUS, ("Gloo connectFullMesh failed with ",), "torch 2.15, Gloo", "RuntimeError"),
    Message(
        RENDEZVOUS,
        ("NCCL error in: ", ": connect to ", " failed : "),
        "NCCL 2.30; in its source, never seen",
        "DistBackendError",
    ),
)
FROM_LAUNCHERS = (
    Message(
        PORT,
        ("The server socket has failed to listen on any local network address", "EADDRINUSE"),
        "torch 2.15, torchrun",
    ),
    Message(RENDEZVOUS, ("The PMIx server's listener thread failed to start.",), "Open MPI 5.0, PMIx 5"),
    Message(
        RENDEZVOUS,
        ("HTTP GET request failed too many times, aborting.", "HTTP request failed."),
        "Horovod 0.28.1, Gloo",
    ),
)
PEERS = ("DistNetworkError", "DistStoreError", "DistBackendError")  # what the other ranks raise once one is missing


def failure_kind(errors: Sequence[Mapping[str, Any]], reports: bool, log: str) -> str:
    """`port`, `rendezvous`, or empty for every failure that is not transient.

    `errors`: of the ranks, the earliest first; `reports`: whether any rank left a measurement; `log`: its end.
    """
    if reports or any(error.get("stepping") is not False for error in errors):
        return ""
    if not errors:
        return next((message.kind for message in FROM_LAUNCHERS if all(words in log for words in message.words)), "")
    kinds = [_error_kind(error) for error in errors]
    others = [error["type"] for error, kind in zip(errors, kinds, strict=True) if not kind]
    if any(type not in PEERS for type in others):
        return ""  # a rank failed for another reason: it is the cause, and it would fail again
    return PORT if PORT in kinds else kinds[0]


def back_off_seconds(attempt: int) -> float:
    """How long to wait after the attempt-th attempt, counted from 1."""
    return BACK_OFF_SECONDS[min(attempt, len(BACK_OFF_SECONDS)) - 1]


def _error_kind(error: Mapping[str, Any]) -> str:
    for message in FROM_RANKS:
        if message.type == error["type"] and all(words in error["message"] for words in message.words):
            return message.kind
    return ""


# A batch that is larger than one without memory for it.


class Limits:
    """The batch sizes that were out of memory, and those that fitted, as far as trials have shown.

    Trials are of one family if they are the same in every key but the batch size and the repeat. An out-of-memory
    implies one for larger batches only as long as no batch of its size or more was ok.
    """

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


# The largest batch that fits.

RESOLUTION = 32  # the answer is exact to 1/32 of itself
MOST = 1_000_000


def largest_batch(fits: Callable[[int], bool], start: int) -> int | None:
    """The largest batch size that `fits`, to 1/RESOLUTION of it; None if not even one sample does.

    Doubles `start` until a size does not fit, then bisects between the two. `fits` is asked for each size at most once,
    and is taken to hold for everything below a size for which it holds. Each try is a new group of processes: an
    allocator that ran out of memory once is no longer representative, and ranks whose peer has died would wait.
    """
    good, bad = 0, None
    size = start
    while size and bad is None:
        if fits(size):
            good, size = size, min(2 * size, MOST)
            if good == MOST:
                return good
        else:
            bad = size
    while bad is not None and bad - good > max(1, good // RESOLUTION):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good or None
