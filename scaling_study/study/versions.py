"""What a trial asks that an installed library is too old for: `unsupported`, never an AttributeError."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.version import Version

from scaling_study.trial import Trial

V_SCHEDULES = ("zbv_zero_bubble", "dualpipev")  # before, a worker sends to itself what its next stage is to take
OLDEST = {("schedule", name): ("torch", "2.10") for name in V_SCHEDULES}  # key, value -> library, oldest that was tried


def too_old(trial: Trial, libraries: Mapping[str, str]) -> str:
    """Which library (name -> version) is too old for what the trial asks; empty if none is.

    A container's build of a version before its release (2.10.0a0+nv25.11) counts as that version.
    """
    for (key, value), (library, oldest) in OLDEST.items():
        if getattr(trial, key) == value and Version(libraries[library]).release < Version(oldest).release:
            return f"{key}={value} needs {library} {oldest} or newer: {libraries[library]} is installed"
    return ""
