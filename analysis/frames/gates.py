"""What the gates behind a trial say of it: `passed`, the first fault, or `not checked`.

A gate (scaling_study/study/gates.py) is a trial with a record of its own. It measures nothing: it is a row of
results.csv and of nothing else, and its verdict is a column of every trial whose numbers stand or fall with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from scaling_study.records.store import Record
from scaling_study.study import gates
from scaling_study.trial import LATER, Trial, Window

PASSED, NOT_CHECKED = "passed", "not checked"
GATE = "parity"  # what such a trial is to `find`
KEYS, TIMES = ({f.name for f in fields(kind)} for kind in (Trial, Window))


def own(record: Record) -> str:
    """A gate's own verdict. One that broke down has shown nothing, so it has not passed."""
    if record.parity:
        return record.parity
    if record.status in ("ok", "unsupported", "cancelled"):
        return NOT_CHECKED
    return f"its gate ended with {record.status}" + (f" ({record.reason})" if record.reason else "")


def asked(record: Record) -> Trial:
    """The trial of a record, whichever version wrote it: keys that it did not know yet are as they were then."""
    trial = {**LATER, **{key: value for key, value in record.trial.items() if key in KEYS}}
    window = {key: value for key, value in record.window.items() if key in TIMES}
    return Trial.from_dict({**trial, "window": window})


def behind(record: Record, known: Mapping[str, str]) -> dict[str, Any]:
    """`parity` and `parity_gates` (ids, separated by `;`) of a trial; `known` maps a gate's id to its verdict."""
    try:
        trial = asked(record)
        if not gates.gate_ids(trial):  # it trains nothing
            return {"parity": "", "parity_gates": ""}
        return {"parity": gates.verdict(trial, known), "parity_gates": ";".join(gates.gate_ids(trial))}
    except (AttributeError, KeyError, TypeError):  # a framework or model that this version does not have
        return {"parity": NOT_CHECKED, "parity_gates": ""}
