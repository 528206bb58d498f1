"""Study files: what is right is understood, and everything that is wrong is said at once, with its line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path

import pytest

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import Machine
from scaling_study.models import MODELS
from scaling_study.settings import CHECKOUT
from scaling_study.study import plan, study
from scaling_study.study.study import KEYS, NOT_FOR_STUDIES, Measure, Study
from scaling_study.trial import Trial

WHOLE = """\
study: every-key
description: nothing is left out
scaling: strong
baseline: {framework: single, model: resnet8}
order_seed: 7
measure: {warmup_steps: 1, min_steps: 2, min_seconds: 0.5, max_seconds: 9, max_steps: 50, repeats: 4,
          max_repeats: 8, target_interval: 0.1, timeout_seconds: 60, retries: 1}
sweeps:
  - framework: single
    matrix: {global_batch: [64], model: [resnet8]}
    min_steps: 3
  - framework: horovod
    image_size: 64
    timeout_seconds: 90
    matrix: {global_batch: [64], model: [resnet8, resnet18], workers: [1, 2]}
    exclude: [{model: resnet18, workers: 2}]
    include: [{model: resnet50, global_batch: 8, workers: 4, allreduce: fp16}]
small:
  measure: {repeats: 1, max_repeats: 1}
"""
SINGLE = "study: a\nsweeps:\n  - framework: single\n    matrix: {model: [resnet8]}\n"


def test_a_whole_study_is_understood(study_of: Callable[..., Study]) -> None:
    made = study_of(WHOLE)
    assert (made.name, made.scaling, made.order_seed) == ("every-key", "strong", 7)
    assert made.baseline == {"framework": "single", "model": "resnet8"}
    measure = Measure(
        warmup_steps=1, min_steps=2, min_seconds=0.5, max_seconds=9.0, max_steps=50, repeats=4, max_repeats=8,
        target_interval=0.1, timeout_seconds=60.0, retries=1,
    )  # fmt: skip
    assert made.measure == measure
    single, horovod = made.sweeps
    assert (single.framework, single.fixed, single.exclude, single.include) == ("single", {}, [], [])
    assert single.matrix == {"global_batch": [64], "model": ["resnet8"]}
    assert single.measure == measure.model_copy(update={"min_steps": 3})
    assert (horovod.framework, horovod.fixed) == ("horovod", {"image_size": 64})
    assert horovod.matrix == {"global_batch": [64], "model": ["resnet8", "resnet18"], "workers": [1, 2]}
    assert horovod.exclude == [{"model": "resnet18", "workers": 2}]
    assert horovod.include == [{"model": "resnet50", "global_batch": 8, "workers": 4, "allreduce": "fp16"}]
    assert horovod.measure == measure.model_copy(update={"timeout_seconds": 90.0})


def test_every_trial_key_is_a_study_key_but_those_that_no_study_sets() -> None:
    assert set(KEYS) == {f.name for f in fields(Trial)} - set(NOT_FOR_STUDIES) | {"global_batch"}
    assert NOT_FOR_STUDIES == ("framework", "machine", "repeat", "warm", "window")


def either(names: Iterable[str]) -> str:
    """`'a', 'b' or 'c'`, as an error lists what would be right."""
    *most, last = (repr(name) for name in names)
    return f"{', '.join(most)} or {last}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{SINGLE}modle: x\n", ["study.yaml:5: unknown key 'modle'"]),
        (f"{SINGLE}mesure: {{}}\n", ["study.yaml:5: unknown key 'mesure'; did you mean 'measure'?"]),
        (
            "study: a\nsweeps:\n  - framework: single\n    matrix:\n      seed: [8]\n      batch_per_woker: [1]\n",
            ["study.yaml:6: unknown key 'batch_per_woker'; did you mean 'batch_per_worker'?"],
        ),
        (
            f"{SINGLE}    exlude: [{{model: resnet8}}]\n",
            ["study.yaml:5: unknown key 'exlude'; did you mean 'exclude'?"],
        ),
        (f"{SINGLE}'a[b': 3\n", ["study.yaml:5: unknown key 'a[b'"]),
        (
            SINGLE.replace("single", "horovdo"),
            [
                "study.yaml:3: sweeps.0.framework: 'horovdo' is not right: "
                f"input should be {either(FRAMEWORKS)}; did you mean 'horovod'?"
            ],
        ),
        (
            SINGLE.replace("resnet8", "resnet88"),
            [
                "study.yaml:4: sweeps.0.matrix.model.0: 'resnet88' is not right: "
                f"input should be {either(MODELS)}; did you mean 'resnet8'?"
            ],
        ),
    ],
)
def test_an_unknown_word_is_refused_with_the_nearest_known_one(
    problems_of: Callable[[str], list[str]], text: str, said: list[str]
) -> None:
    assert problems_of(text) == said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("batch_per_worker: '32'", "sweeps.0.batch_per_worker: '32' is not right: input should be a valid integer"),
        ("batch_per_worker: true", "sweeps.0.batch_per_worker: True is not right: input should be a valid integer"),
        (
            "batch_per_worker: -32",
            "sweeps.0.batch_per_worker: -32 is not right: input should be greater than or equal to 1",
        ),
        ("learning_rate: 0", "sweeps.0.learning_rate: 0 is not right: input should be greater than 0"),
        ("oversubscribe: 1", "sweeps.0.oversubscribe: 1 is not right: input should be a valid boolean"),
        ("exclude: {model: resnet8}", "sweeps.0.exclude: Input should be a valid list"),
        ("matrix: [model]", None),  # the key is there twice
    ],
)
def test_a_wrong_type_or_value_is_said_with_the_key_and_the_value(
    problems_of: Callable[[str], list[str]], line: str, said: str | None
) -> None:
    expected = f"study.yaml:5: {said}" if said else "study.yaml:5: 'matrix' is given twice (first on line 4)"
    assert problems_of(f"{SINGLE}    {line}\n") == [expected]


@pytest.mark.parametrize("key", ["min_seconds", "max_seconds", "target_interval", "timeout_seconds", "learning_rate"])
@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan"])
def test_what_is_not_a_finite_number_is_refused(problems_of: Callable[[str], list[str]], key: str, value: str) -> None:
    complaints = problems_of(f"{SINGLE}    {key}: {value}\n")
    assert len(complaints) == 1 and complaints[0].startswith(f"study.yaml:5: sweeps.0.{key}: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]\n", ["study.yaml:1: a study file is a mapping; it starts with `study: some-name`"]),
        ("description: x\n", ["study.yaml:1: 'study' is missing", "study.yaml:1: 'sweeps' is missing"]),
        (
            "study: a\nsweeps: []\n",
            ["study.yaml:2: sweeps: List should have at least 1 item after validation, not 0"],
        ),
        (
            "study: a\nsweeps:\n  - matrix: {model: [resnet8]}\n",
            ["study.yaml:3: 'sweeps.0.framework' is missing"],
        ),
        (
            "study: a\nsweeps:\n  - framework: single\n    matrix: {model: []}\n",
            ["study.yaml:4: sweeps.0.matrix.model: List should have at least 1 item after validation, not 0"],
        ),
    ],
)
def test_what_is_missing_or_empty_is_said(problems_of: Callable[[str], list[str]], text: str, said: list[str]) -> None:
    assert problems_of(text) == said


@pytest.mark.parametrize(
    "line",
    ["    matrix: {}", "    matrix:", "    matrix: {model: }", "baseline: {}", "    workers: ~", "    repeats: ~",
     "    include: [{workers: ~}]", "measure: {repeats: 2000}"],
)  # fmt: skip
def test_what_is_empty_or_too_much_is_refused_rather_than_passed_over(
    problems_of: Callable[[str], list[str]], line: str
) -> None:
    (complaint,) = problems_of(f"study: a\nsweeps:\n  - framework: single\n{line}\n")
    assert complaint.startswith("study.yaml:4: ")


def test_every_error_is_said_at_once_in_the_order_of_the_lines(problems_of: Callable[[str], list[str]]) -> None:
    text = (
        "study: my study\n"  # 1
        "scaling: sideways\n"  # 2
        "sede: 3\n"  # 3
        "measure:\n"
        "  repeats: -1\n"  # 5
        "  min_stepts: 4\n"  # 6
        "sweeps:\n"
        "  - framework: horovod\n"
        "    matrix:\n"
        "      batch_per_worker: ['32', 0]\n"  # 10, twice
        "      workers: []\n"  # 11
        "  - framework: singel\n"  # 12
        "    exclude: [{allreduce: fp8}]\n"  # 13
    )
    lines = [int(problem.split(":")[1]) for problem in problems_of(text)]
    assert lines == [1, 2, 3, 5, 6, 10, 10, 11, 12, 13]


def test_what_is_wrong_with_combinations_is_said_at_once_too(problems_of: Callable[[str], list[str]]) -> None:
    text = (
        "study: a\n"
        "sweeps:\n"
        "  - framework: single\n"
        "    matrix: {model: [resnet8], workers: [1, 2]}\n"  # 4: single has one
        "  - framework: horovod\n"
        "    matrix: {workers: [3], global_batch: [64, 32]}\n"  # 6: twice
        "  - framework: horovod\n"
        "    exclude: [{workers: 9}]\n"  # 8: matches nothing
    )
    assert sorted(problems_of(text)) == [
        "study.yaml:4: framework single has no workers=2; it has 1",
        "study.yaml:6: workers=3 does not divide global_batch=32",
        "study.yaml:6: workers=3 does not divide global_batch=64",
        "study.yaml:8: exclude {'workers': 9} matches nothing in the matrix",
    ]


def sweep(framework: str, keys: str) -> str:
    return f"study: a\nsweeps:\n  - framework: {framework}\n    {keys}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            sweep("horovod", "matrix: {global_batch: [96, 100], workers: [1, 2, 3]}"),
            "study.yaml:4: workers=3 does not divide global_batch=100",
        ),
        (
            sweep("horovod", "matrix: {global_batch: [96], batch_per_worker: [32], workers: [3]}"),
            "study.yaml:4: give global_batch or batch_per_worker, not both: one follows from the other",
        ),
        (
            sweep("single", "model: resnet8\n    matrix: {model: [resnet8, resnet18]}"),
            "study.yaml:4: 'model' is both fixed and in the matrix; give it once",
        ),
        (
            sweep("single", "matrix: {model: [resnet8]}\n    exclude: [{model: resnet18}]"),
            "study.yaml:5: exclude {'model': 'resnet18'} matches nothing in the matrix",
        ),
        (
            sweep("single", "matrix: {model: [resnet8]}\n    exclude: [{model: resnet8}]"),
            "study.yaml:3: this sweep of single has no trials left",
        ),
        (
            sweep("single", "matrix: {workers: [1, 2]}"),
            "study.yaml:4: framework single has no workers=2; it has 1",
        ),
        (
            sweep("single", "allreduce: fp16"),
            "study.yaml:4: framework single has no allreduce=fp16; it has none",
        ),
        (sweep("single", "controller: mpi"), "study.yaml:4: framework single has no 'controller'"),
        (
            sweep("horovod", "matrix: {allreduce: [none, fp32], workers: [2]}"),
            "study.yaml:4: allreduce=none with workers=2: more than one worker must reduce gradients",
        ),
        (
            sweep("horovod", "launcher: python"),
            "study.yaml:4: framework horovod is not started by python, but by horovodrun, mpirun or srun",
        ),
        (
            sweep("horovod", "launcher: mpirun\n    controller: gloo"),
            "study.yaml:5: launcher=mpirun carries Horovod's messages over MPI, not controller=gloo; use horovodrun",
        ),
        (
            f"{SINGLE}baseline: {{framework: horovod, workers: 1}}\n",
            "study.yaml:5: baseline workers=1, framework=horovod matches no trial of this study (frameworks: single)",
        ),
        (
            f"{SINGLE}measure: {{repeats: 5, max_repeats: 3}}\n",
            "study.yaml:5: measure: max_repeats=3 is less than repeats=5",
        ),
        (
            f"{SINGLE}measure: {{max_seconds: 1}}\n",
            "study.yaml:5: measure: max_seconds=1 is less than min_seconds=2",
        ),
        (
            f"{SINGLE}measure: {{max_steps: 5}}\n",
            "study.yaml:5: measure: max_steps=5 is less than min_steps=10",
        ),
        (
            f"{SINGLE}    max_steps: 5\n",
            "study.yaml:3: sweeps.0: max_steps=5 is less than min_steps=10",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_on_every_machine_is_one_line_with_both_values(
    problems_of: Callable[[str], list[str]], text: str, said: str
) -> None:
    assert problems_of(text) == [said]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("matrix: {seed: %s, batch_per_worker: %s}", "1,000,000 combinations; the limit is 50,000"),
        ("repeats: 1000, matrix: {seed: %s}", "1,000,000 trials, with every repeat; the limit is 200,000"),
    ],
)
def test_too_many_combinations_are_refused_before_they_are_made(
    problems_of: Callable[[str], list[str]], keys: str, said: str
) -> None:
    text = "study: a\nsweeps:\n  - {framework: single, " + keys.replace("%s", str(list(range(1, 1001)))) + "}\n"
    assert problems_of(text) == [f"study.yaml:3: {said}"]


def test_repeats_alone_raise_the_most_that_are_run(study_of: Callable[..., Study]) -> None:
    made = study_of(f"{SINGLE}measure: {{repeats: 12}}\n").measure
    assert (made.repeats, made.max_repeats) == (12, 12)


def test_a_sweep_may_ask_for_more_repeats_than_the_study(study_of: Callable[..., Study]) -> None:
    made = study_of("study: a\nmeasure: {repeats: 12}\nsweeps:\n  - framework: single\n    repeats: 20\n")
    assert (made.sweeps[0].measure.repeats, made.sweeps[0].measure.max_repeats) == (20, 20)


def test_small_overrides_are_merged_into_the_study(study_of: Callable[..., Study]) -> None:
    whole, small = study_of(WHOLE), study_of(WHOLE, small=True)
    assert (small.measure.repeats, small.measure.max_repeats) == (1, 1)
    assert small.measure.min_steps == whole.measure.min_steps == 2
    assert [s.matrix for s in small.sweeps] == [s.matrix for s in whole.sweeps]
    assert whole.measure.repeats == 4


def test_small_may_replace_the_sweeps(study_of: Callable[..., Study]) -> None:
    text = f"{SINGLE}small:\n  sweeps:\n    - framework: horovod\n      workers: 2\n"
    assert [s.framework for s in study_of(text).sweeps] == ["single"]
    assert [(s.framework, s.fixed) for s in study_of(text, small=True).sweeps] == [("horovod", {"workers": 2})]


def test_small_without_a_small_section_is_refused(problems_of: Callable[..., list[str]]) -> None:
    said = ["study.yaml: --small was asked for, but the study has no `small:` section"]
    assert problems_of(SINGLE, small=True) == said
    assert problems_of(f"{SINGLE}small: {{}}\n", small=True) == said


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("small: 3\n", "study.yaml:7: small: 3 is not right: input should be a valid dictionary"),
        (
            "small:\n  measure:\n    repeats: x\n",
            "study.yaml:9: measure.repeats: 'x' is not right: input should be a valid integer",
        ),
        ("small:\n  mesure: {}\n", "study.yaml:8: unknown key 'mesure'; did you mean 'measure'?"),
        (
            "small:\n  sweeps:\n    - framework: single\n      workers: -1\n",
            "study.yaml:10: sweeps.0.workers: -1 is not right: input should be greater than or equal to 1",
        ),
    ],
)
def test_wrong_overrides_are_said_with_their_own_line_even_when_they_are_not_asked_for(
    problems_of: Callable[..., list[str]], section: str, said: str, small: bool
) -> None:
    text = f"{SINGLE}measure:\n  repeats: 2\n{section}"
    assert problems_of(text, small=small) == [said]


@pytest.mark.parametrize("path", sorted([CHECKOUT / "sweeps.yaml", *(CHECKOUT / "studies").glob("*.yaml")]), ids=str)
def test_the_studies_that_are_shipped_are_right(path: Path, machine: Callable[..., Machine]) -> None:
    asked = study.load(path)
    assert plan.make(asked, machine()).configurations
    if "small" in asked.document.value:
        assert plan.make(study.load(path, small=True), machine()).configurations
