"""Transient failures, recognised by the exact messages of the libraries that report them. Pure.

Only two kinds are tried again (attempts.py): a port that is in use, and ranks that did not find each other. A wrong
result never is, nor anything after the first step of the shared clock: whatever happened then is a result.

A rank that fails leaves its exception's type and message as JSON (script.py). A launcher that fails before any rank
has started leaves an exit code and a log. The log decides whether to try once more and how to describe the failure; no
number is taken from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    Message(PORT, ("The server socket has failed to listen on any local network address", "EADDRINUSE"),
             "torch 2.15, TCPStore", "DistNetworkError"),
    Message(PORT, ("[Errno 98] Address already in use",), "Python 3.11 on Linux", "OSError"),
    Message(RENDEZVOUS, ("The client socket has timed out after ", " while trying to connect to "),
             "torch 2.15, TCPStore", "DistNetworkError"),
    Message(RENDEZVOUS, ("Timed out after ", " waiting for clients. "), "torch 2.15, TCPStore", "DistStoreError"),
    Message(RENDEZVOUS, ("Gloo connectFullMesh failed with ",), "torch 2.15, Gloo", "RuntimeError"),
    Message(RENDEZVOUS, ("NCCL error in: ", ": connect to ", " failed : "), "NCCL 2.30; in its source, never seen",
             "DistBackendError"),
)  # fmt: skip
FROM_LAUNCHERS = (
    Message(PORT, ("The server socket has failed to listen on any local network address", "EADDRINUSE"),
             "torch 2.15, torchrun"),
    Message(RENDEZVOUS, ("The PMIx server's listener thread failed to start.",), "Open MPI 5.0, PMIx 5"),
    Message(RENDEZVOUS, ("HTTP GET request failed too many times, aborting.", "HTTP request failed."),
             "Horovod 0.28.1, Gloo"),
)  # fmt: skip
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
