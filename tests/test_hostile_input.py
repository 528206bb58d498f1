"""Whatever a study file holds, the answer is a plan or a few clear lines, soon and in little memory.

Nothing in one can run code, reach a shell, leave its results folder or write escape sequences to a terminal.
docs/internals/reliability.md lists the threats, each with the test that stands for it.
"""

from __future__ import annotations

import copy
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scaling_study import cli, errors
from scaling_study.commands.progress import clock, describe
from scaling_study.errors import StudyError
from scaling_study.estimate import Estimate
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch import launchers
from scaling_study.machine import Machine
from scaling_study.models import MODELS
from scaling_study.records import outcome, results
from scaling_study.records.results import manifest_of
from scaling_study.records.schema import Record
from scaling_study.settings import CHECKOUT
from scaling_study.study import plan, study
from scaling_study.study.study import KEYS, Measure
from scaling_study.trial import RENAMED, Trial

SHIPPED = sorted([CHECKOUT / "sweeps.yaml", *(CHECKOUT / "studies").glob("*.yaml")])
STUDIES = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in SHIPPED]
SECONDS = 5.0  # of CPU time, for any file at all


def answer(path: Path, machine: Machine, small: bool = False) -> list[str]:
    """Load, plan, and do with the plan what a dry run does: what was complained of; all else is a bug."""
    start = time.process_time()
    try:
        made = plan.make(study.load(path, small), machine)
    except StudyError as wrong:
        said = wrong.problems
        assert said and len(said) <= errors.MOST_PROBLEMS + 1
        assert all(line.startswith((f"{path}:", "... and ")) for line in said), "each names the file"
        assert all(len(line) <= errors.MOST_CHARACTERS and line.isprintable() for line in said)
    else:
        said = []
        assert made.study.name == Path(made.study.name).name and made.study.name[0] not in ".-", "it names a folder"
        json.dumps(manifest_of(made).model_dump(by_alias=True), allow_nan=False)
        for planned in (*made.configurations[:20], *made.gates[:20]):
            runs(planned)
    assert time.process_time() - start < SECONDS
    return said


def runs(planned: plan.Planned) -> None:
    """What is planned can be said, estimated, written down and put on a command line that its script understands."""
    trial = planned.trial
    assert describe(trial).isprintable() and len(clock(Estimate()(planned))) < 30
    assert trial.id == Path(trial.id).name and len(trial.id) < 200, "it names a folder"
    assert all(-(2**63) <= v < 2**63 for v in trial.to_dict().values() if isinstance(v, int)), "tables can hold it"
    json.dumps(trial.to_dict(), allow_nan=False)
    assert launchers.command(trial).shell().isprintable()
    if trial.window.max_seconds is not None:
        again, _ = Trial.from_argv(trial.framework, trial.to_argv())
        assert again.to_argv() == trial.to_argv()


words = st.sampled_from([
    *KEYS, *Measure.model_fields, *RENAMED.values(), *FRAMEWORKS, *MODELS,
    "matrix", "exclude", "small", "weak", "9,5", "9" * 30, "", "a\0b",
])  # fmt: skip
numbers = (
    st.integers(-2, 70)
    | st.sampled_from([2**31 - 1, 2**31, 2**63 - 1, 2**64, 10**30, -(2**63)])
    | st.floats()
    | st.sampled_from([5e-324, 1e300, 1e9, 1e7])
)
scalars = st.none() | st.booleans() | numbers | words | st.text(max_size=8) | st.binary(max_size=4)
scalars |= st.dates() | st.datetimes()
keys = words | st.text(max_size=4) | st.integers(-2, 3) | st.none() | st.booleans() | st.floats() | st.dates()


def dumped(value: Any) -> str:
    return yaml.safe_dump(value, allow_unicode=True, sort_keys=False)


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a nested value but the whole."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*place, key)
        yield from places(one, (*place, key))


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A study that ships, with a few of its values or keys replaced, removed, renamed, added, or given twice."""
    value = copy.deepcopy(draw(st.sampled_from(STUDIES)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.sampled_from(sorted(places(value), key=str) or [()]))
        if not place:
            return value
        around = value
        for part in place[:-1]:
            around = around[part]
        last, one = place[-1], around[place[-1]]
        do = draw(st.sampled_from(["replace", "replace", "remove", "rename", "add", "list", "twice"]))
        if do == "replace":
            around[last] = draw(scalars)
        elif do == "remove":
            del around[last]
        elif do == "list":
            around[last] = [one] if not isinstance(one, list) else [*one, draw(scalars)]
        elif isinstance(around, dict):
            around[draw(keys)] = around.pop(last) if do == "rename" else draw(scalars) if do == "add" else one
        else:
            around.append(copy.deepcopy(one))
    return value


@pytest.mark.slow
@given(mutated(), st.booleans(), st.sampled_from([(2, 0), (64, 0), (8, 2)]))
def test_any_mutated_study_gives_a_plan_or_a_few_clear_lines(study_file, machine, value, small, size):
    answer(study_file(dumped(value)), machine(*size), small)


SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NAMES = ["", "..", ".hidden", "-rf", "a/b", "/etc", "a b", "a\n", "$(id)", "a\x1b[2J", "\u202ea", "ä", "x" * 101]


@given(st.sampled_from(NAMES) | st.text(max_size=5) | st.from_regex(SAFE, fullmatch=True))
def test_a_study_is_named_like_a_folder_that_can_be_nowhere_else(study_file, name):
    text = dumped({"study": name, "sweeps": [{"framework": "single"}]})
    try:
        made = study.load(study_file(text)).name
    except StudyError as wrong:
        assert not SAFE.fullmatch(name)
        assert len(wrong.problems) == 1, "the name and nothing else"
    else:
        assert made == name and SAFE.fullmatch(name)
        assert (Path("results") / name).parent == Path("results") and name == os.path.normpath(name)


@given(st.sampled_from(NAMES) | st.text(max_size=200))
def test_a_trial_has_one_folder_of_its_own_whatever_users_call_their_model(model):
    trial = Trial(model=model)
    assert re.fullmatch(r"[\w.-]+", trial.id, re.ASCII) and len(trial.id) < 200 and trial.id[0].isalpha()
    assert trial.id != Trial(model=f"{model}.").id, "the hash tells apart what the words do not"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--where", "\x1b[2J=1"], "--where \\x1b[2J=1: expected key=value"),
        (["--retry", "[/]\x1b[2J"], "a status is one of"),
        (["--results", "/proc/[/]\x1b[2J\nb"], "cannot write results there"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_line_is_quoted_short_and_printable(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("study: a\nparity: false\nsweeps: [{framework: single, data: synthetic}]\n")
    assert cli.run_sweep(["a.yaml", *arguments]) in (1, 2)
    (line,) = filter(None, capsys.readouterr().err.splitlines())
    assert said in line and line.isprintable() and len(line) < 3000


def test_what_ranks_say_reaches_the_terminal_as_text_alone():
    said = "\x1b[2J\x1b]0;mine\x07[/red] a\rb\nc \u202e" + "x" * 10_000
    made = outcome.Outcome("failed", said, said)
    assert made.reason.isprintable() and len(made.reason) <= 500
    assert made.error.replace("\n", "").isprintable() and "\nc" in made.error
    trial = Trial()
    record = Record("a", trial.id, trial.configuration, trial, "failed", said, parity=said)
    again = results.summarize(record)  # a record from elsewhere
    assert again.reason.isprintable() and again.parity.isprintable()
