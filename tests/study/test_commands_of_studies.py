"""Commands of a user's own in a study: their words, free axes, and what is refused before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from scaling_study.errors import StudyError
from scaling_study.study import command, plan, study
from scaling_study.trial import Trial
from tests.planted_sweeps import MACHINE

TORCHRUN = "torchrun --nproc-per-node {workers} 'my train.py' --batch={batch_per_worker} {amp}"


def planned(tmp_path: Path, **keys: Any) -> list[Trial]:
    sweep = {"framework": "command", "command": TORCHRUN, "batch_per_worker": 16, **keys}
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump({"study": "mine", "sweeps": [{k: v for k, v in sweep.items() if v is not None}]}))
    return [each.trial for each in plan.make(study.load(file), MACHINE).configurations]


def words(trial: Trial) -> list[str]:
    return command.words(trial, "{port}", "/run")


def test_keys_and_free_axes_fill_the_words_of_a_command(tmp_path: Path) -> None:
    trials = planned(tmp_path, matrix={"workers": [1, 2], "amp": ["", "--amp 'O 1'"]})
    assert [(trial.workers, trial.arguments) for trial in trials] == [
        *((1, "amp="), (1, "'amp=--amp '\"'\"'O 1'\"'\"''")),
        *((2, "amp="), (2, "'amp=--amp '\"'\"'O 1'\"'\"''")),
    ]
    assert words(trials[0]) == ["torchrun", "--nproc-per-node", "1", "my train.py", "--batch=16"]
    assert words(trials[3])[-2:] == ["--amp", "O 1"]
    assert len({trial.configuration for trial in trials}) == 4
    assert {trial.model for trial in trials} == {"script:my-train.py"}
    assert {trial.cores_per_worker for trial in trials} == {None}


def test_a_value_is_never_a_second_command() -> None:
    trial = Trial(
        framework="command", command="python train.py --name {name}x {port} {run_dir}/a", arguments="'name=a; rm b'"
    )
    assert words(trial) == ["python", "train.py", "--name", "a; rm bx", "{port}", "/run/a"]


@pytest.mark.parametrize(
    "keys, fact",
    [
        ({"command": None}, "needs a command"),
        ({"command": "python 'train.py"}, "No closing quotation"),
        ({"command": "python {train}"}, "{train}"),
        ({"command": "python t.py {learning_rate}"}, "give learning_rate"),
        ({"batch_per_worker": None}, "batch_per_worker or global_batch"),
        ({"zero_stage": 3}, "no 'zero_stage'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(tmp_path: Path, keys: dict[str, Any], fact: str) -> None:
    with pytest.raises(StudyError) as refused:
        planned(tmp_path, **{"command": "python t.py", **keys})
    assert fact in str(refused.value.problems) and "study.yaml:" in refused.value.problems[0]


def test_an_axis_that_no_placeholder_names_is_no_free_axis(tmp_path: Path) -> None:
    with pytest.raises(StudyError) as refused:
        planned(tmp_path, matrix={"wrokers": [1]})
    assert "wrokers" in refused.value.problems[0] and "workers" in refused.value.problems[0]
