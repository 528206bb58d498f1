"""Failures whose cause passes by itself, told from all others by the exact words of the libraries that say them. Pure.

Only two kinds are tried again (attempts.py): a port that somebody else has, and ranks that did not find each other. A
wrong result never is, nor anything after the first step of the shared clock: whatever happened then is a result.

A rank that fails leaves its exception's type and message as JSON (script.py). A launcher that dies before any rank
could speak leaves an exit code and a log. Nothing else in this project looks into a log: here it decides whether to
try once more, and what to say of the failure, but no number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PORT, RENDEZVOUS = "port", "rendezvous"
BACK_OFF_SECONDS = (1.0, 4.0, 16.0, 60.0)  # before the second attempt, the third, ...; the last for all beyond
LOG_BYTES = 1 << 16  # of the log's end that are looked at


@dataclass(frozen=True)
class Sentence:
    """Words that stand in a message when, and only when, this has happened; and whose they are."""

    kind: str
    words: tuple[str, ...]  # all of them
    by: str
    type: str = ""  # of the exception; for launchers, whose logs have none, empty


FROM_RANKS = (
    Sentence(PORT, ("The server socket has failed to listen on any local network address", "EADDRINUSE"),
             "torch 2.15, TCPStore", "DistNetworkError"),
    Sentence(PORT, ("[Errno 98] Address already in use",), "Python 3.11 on Linux", "OSError"),
    Sentence(RENDEZVOUS, ("The client socket has timed out after ", " while trying to connect to "),
             "torch 2.15, TCPStore", "DistNetworkError"),
    Sentence(RENDEZVOUS, ("Timed out after ", " waiting for clients. "), "torch 2.15, TCPStore", "DistStoreError"),
    Sentence(RENDEZVOUS, ("Gloo connectFullMesh failed with ",), "torch 2.15, Gloo", "RuntimeError"),
    Sentence(RENDEZVOUS, ("NCCL error in: ", ": connect to ", " failed : "), "NCCL 2.30; in its library, never met",
             "DistBackendError"),
)  # fmt: skip
FROM_LAUNCHERS = (
    Sentence(PORT, ("The server socket has failed to listen on any local network address", "EADDRINUSE"),
             "torch 2.15, torchrun"),
    Sentence(RENDEZVOUS, ("The PMIx server's listener thread failed to start.",), "Open MPI 5.0, PMIx 5"),
    Sentence(RENDEZVOUS, ("HTTP GET request failed too many times, aborting.", "HTTP request failed."),
             "Horovod 0.28.1, Gloo"),
)  # fmt: skip
PEERS = ("DistNetworkError", "DistStoreError", "DistBackendError")  # what others say once one is missing


def kind(errors: Sequence[Mapping[str, Any]], reports: bool, log: str) -> str:
    """`port`, `rendezvous`, or empty for every failure that is to stand.

    `errors`: what ranks said, the earliest first; `reports`: whether any rank left a measurement; `log`: its end.
    """
    if reports or any(error.get("stepping") is not False for error in errors):
        return ""
    if not errors:
        return next((one.kind for one in FROM_LAUNCHERS if all(words in log for words in one.words)), "")
    said = [_said(error) for error in errors]
    others = [error["type"] for error, kind in zip(errors, said, strict=True) if not kind]
    if any(type not in PEERS for type in others):
        return ""  # a rank failed of something else: it is the cause, and it would fail again
    return PORT if PORT in said else said[0]


def back_off_seconds(attempt: int) -> float:
    """How long to wait after the attempt-th attempt, counted from 1."""
    return BACK_OFF_SECONDS[min(attempt, len(BACK_OFF_SECONDS)) - 1]


def _said(error: Mapping[str, Any]) -> str:
    found = (s for s in FROM_RANKS if s.type == error["type"] and all(words in error["message"] for words in s.words))
    return next((sentence.kind for sentence in found), "")
