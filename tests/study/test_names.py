"""Older and newer names of keys: the same trials, with the same ids, and messages in the words of the file."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping

import pytest

from scaling_study.commands.options import trial_keys
from scaling_study.errors import StudyError
from scaling_study.settings import CHECKOUT
from scaling_study.study import plan
from scaling_study.study.plan import Plan
from scaling_study.study.study import Measure, Study
from scaling_study.trial import RENAMED, Trial
from tests.net.examples import EXAMPLES
from tests.net.frozen import DATA, MACHINES

OLDER = {name: older for older, name in RENAMED.items()}
SHIPPED = sorted([CHECKOUT / "sweeps.yaml", *(CHECKOUT / "studies").glob("*.yaml")])
PACKED = sorted(EXAMPLES.glob("*.study.zip"))


def spelled(text: str, names: Mapping[str, str]) -> str:
    """A study with other names of its keys, and in the placeholders of its commands."""
    written = "|".join(names)
    text = re.sub(rf"(?<![\w-])({written})(?=:)", lambda found: names[found[1]], text)
    return re.sub(rf"(?<=\{{)({written})(?=\}})", lambda found: names[found[1]], text)


def meant(asked: Study) -> tuple[list[tuple[str, Measure]], list[str], str]:
    """The ids of a study's trials, with their measurement, and of its gates; the drift check."""
    made = plan.make(asked, MACHINES["8 GPUs"], DATA)
    return [(p.trial.id, p.measure) for p in made.configurations], [p.trial.id for p in made.gates], made.sentinel


@pytest.mark.parametrize("path", [*SHIPPED, *PACKED], ids=lambda path: path.name.partition(".")[0])
def test_every_shipped_and_every_older_study_means_the_same_in_both_spellings(path, study_of):
    text = zipfile.ZipFile(path).read("study.yaml").decode() if path in PACKED else path.read_text(encoding="utf-8")
    for small in (False, True) if re.search("^small:", text, re.MULTILINE) else (False,):
        own, older, newer = (study_of(each, small) for each in (text, spelled(text, OLDER), spelled(text, RENAMED)))
        assert own.sweeps == older.sweeps == newer.sweeps and meant(older) == meant(newer)
        assert path in PACKED or not own.document.older_names, "shipped studies have the names of now"


ALL = """study: a
drift_check: {framework: torch_ddp, gradients: fp16, batchnorm_buffers: synced}
baseline: {framework: single}
measure: {interleave: true, blocks: 4, launches: 2, max_launches: 5}
sweeps:
  - framework: single
    launches: 1
    max_launches: 1
  - framework: torch_ddp
    workers: 2
    batchnorm_buffers: synced
    matrix: {gradients: [fp32, fp16], batch_per_worker: [32, 64]}
    exclude: [{gradients: fp32, batch_per_worker: 64}]
    include: [{gradients: bf16}]
  - framework: torch_fsdp2
    workers: 2
    library_settings: memory
    matrix: {wrapping_policy: [blocks, none]}
small:
  measure: {launches: 1, max_launches: 1}
"""


@pytest.mark.parametrize("small", [False, True])
def test_every_key_may_stand_under_either_name_wherever_it_may_stand(plan_of: Callable[..., Plan], small: bool) -> None:
    older, newer = plan_of(spelled(ALL, OLDER), small=small), plan_of(ALL, small=small)
    assert [each.trial.id for each in older.trials()] == [each.trial.id for each in newer.trials()]
    assert older.sentinel == newer.sentinel != ""
    assert {(each.trial.buffers, each.trial.tuned_for, each.trial.wrap) for each in newer.configurations} == {
        (None, None, None), ("synced", "speed", None), (None, "memory", None), (None, "memory", "none")
    }  # fmt: skip
    assert all(f"{old} (now {name})" in " ".join(older.notes) for old, name in RENAMED.items())
    assert sum("older names" in note for note in older.notes) == 1 and not any("older" in note for note in newer.notes)


def test_both_names_of_a_key_in_one_file_are_refused_with_both_lines(problems_of: Callable[..., list[str]]) -> None:
    text = ALL.replace("    launches: 1\n", "    repeats: 1\n").replace("{gradients: bf16}", "{allreduce: bf16}")
    assert problems_of(text) == [
        "study.yaml:7: 'repeats' and 'launches' (line 4) are two names of one key: write launches in both places",
        "study.yaml:14: 'allreduce' and 'gradients' (line 2) are two names of one key: write gradients in both places",
    ]
    assert problems_of("study: a\nmeasure: {warm: true, interleave: true}\nsweeps: [{framework: single}]\n") == [
        "study.yaml:2: 'interleave' and 'warm' (line 2) are two names of one key: write interleave in both places"
    ]


def test_a_drift_check_that_matches_nothing_is_said_by_that_name(problems_of: Callable[..., list[str]]) -> None:
    (problem,) = problems_of("study: a\ndrift_check: {workers: 3}\nsweeps: [{framework: single}]\n")
    assert problem.startswith("study.yaml:2: drift_check workers=3 matches no trial")


COMMANDS = """study: a
env: {WIRE: "{gradients}"}
sweeps:
  - framework: command
    command: python train.py --wire {gradients} {blocks}
    env: {}
    batch_per_worker: 8
    workers: 2
    gradients: fp16
    matrix: {blocks: ["", --blocks]}
"""


def test_placeholders_have_either_name_and_other_axes_keep_theirs(study_of: Callable[..., Study]) -> None:
    """`blocks` is a key of `measure` alone: in a matrix of a command it is an axis of the user's own."""
    (newer,), (older,) = (study_of(text).sweeps for text in (COMMANDS, COMMANDS.replace("{gradients}", "{allreduce}")))
    assert newer == older
    assert newer.fixed["command"] == "python train.py --wire {allreduce} {blocks}"
    assert newer.fixed["env"] == "'WIRE={allreduce}'" and newer.matrix == {"arguments": ["blocks=", "blocks=--blocks"]}


def test_options_take_either_name() -> None:
    assert trial_keys("gradients=fp16,repeat=1") == trial_keys("allreduce=fp16,repeat=1")
    with pytest.raises(StudyError, match="allreduce is given twice"):
        trial_keys("gradients=fp16,allreduce=fp32")
    by_older, by_newer = (Trial.from_argv("torch_ddp", [name, "fp16"])[0] for name in ("--allreduce", "--gradients"))
    assert by_older == by_newer and by_newer.allreduce == "fp16" and "--allreduce" in by_newer.to_argv()
