"""A study edited between two runs: what changed, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.records import manifest
from scaling_study.records.manifest import Manifest
from scaling_study.records.store import UnreadableRecord

KEYS: dict[str, Any] = {
    "scaling": "weak", "baseline": {"framework": "single"}, "order_seed": 0,
    "measure": {"warmup_steps": [5], "max_steps": [None], "repeats": [3], "timeout_seconds": [600.0], "retries": [2]},
    "configurations": ["a", "b", "c"],
}  # fmt: skip


def study(**keys: Any) -> Manifest:
    return Manifest.parse({"schema": 1, "study": "s", **keys}, Path("study.json"))


NOW = study(**KEYS)


def changed(**keys: Any) -> Manifest:
    return study(**{**KEYS, **keys})


def measured(**changes: list[Any]) -> dict[str, Any]:
    return {**KEYS["measure"], **changes}


def test_the_same_study_says_nothing() -> None:
    assert manifest.changes(NOW, NOW, {"a", "b", "c"}) == []


def test_another_window_makes_other_trials() -> None:
    before = changed(measure=measured(warmup_steps=[10], max_steps=[20, None]), configurations=["x", "y", "z"])
    assert manifest.changes(before, NOW, {"x", "y"}) == [
        "The study has changed since its last run here: warmup_steps 10 -> 5, max_steps 20 and None -> None.",
        "What was measured with other warmup_steps, max_steps is kept and measured again.",
        "3 configurations are new since the last run.",
        "3 configurations are no longer in the study: the records of 2 of them are kept, but appear in no table.",
    ]


ADDED, GONE = "1 configuration is new since the last run.", "1 configuration is no longer in the study."
LONGER = "Trials that timed out keep that status; --retry timeout runs them again."


@pytest.mark.parametrize(
    ("before", "last"),
    [
        ({"measure": measured(timeout_seconds=[60.0])}, LONGER),
        ({"configurations": ["a", "b"]}, ADDED),
        ({"configurations": ["a", "b", "c", "d"]}, GONE),
    ],
)
def test_each_edit_is_a_line(before: dict[str, Any], last: str) -> None:
    assert manifest.changes(changed(**before), NOW, ())[-1] == last


@pytest.mark.parametrize("missing", list(KEYS))
def test_a_study_json_of_an_older_version_says_nothing_of_what_it_lacks(missing: str) -> None:
    assert manifest.changes(study(**{key: value for key, value in KEYS.items() if key != missing}), NOW, {"a"}) == []


words = st.text(max_size=3)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from(list(KEYS)), json))
def test_any_shape_of_it_is_read_or_refused_in_one_line(keys: dict[str, Any]) -> None:
    try:
        before = study(**keys)
    except UnreadableRecord as error:
        assert str(error).startswith("study.json is not whole: ") and "\n" not in str(error)
    else:
        assert all(isinstance(line, str) for line in manifest.changes(before, NOW, {"a"}))
