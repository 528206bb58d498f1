"""Study files: what is right is understood, and everything that is wrong is said at once, with its line."""

from __future__ import annotations

from dataclasses import fields

import pytest

from scaling_study.study.study import KEYS, NOT_FOR_STUDIES, Measure
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


def test_a_whole_study_is_understood(study_of):
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


def test_every_trial_key_is_a_study_key_but_those_that_no_study_sets():
    assert set(KEYS) == {f.name for f in fields(Trial)} - set(NOT_FOR_STUDIES) | {"global_batch"}
    assert NOT_FOR_STUDIES == ("framework", "machine", "repeat", "warm", "window")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{SINGLE}modle: x\n", "5: unknown key 'modle'"),
        (f"{SINGLE}mesure: {{}}\n", "5: unknown key 'mesure'; did you mean 'measure'?"),
        (SINGLE.replace("model:", "wrkers:"), "4: unknown key 'wrkers'; did you mean 'workers'?"),
        (SINGLE.replace("model:", "batch:"), "4: unknown key 'batch'; did you mean 'batch_per_worker'?"),
        (f"{SINGLE}    exlude: [{{model: resnet8}}]\n", "5: unknown key 'exlude'; did you mean 'exclude'?"),
        (f"{SINGLE}'a[b': 3\n", "5: unknown key 'a[b'"),
        (f"{SINGLE}<<: {{order_seed: 3}}\n", "5: <<, YAML's merge of mappings, is not read: write the keys out"),
    ],
)
def test_an_unknown_word_is_refused_with_the_nearest_known_one(problems_of, text, said):
    (problem,) = problems_of(text)
    assert problem.startswith(f"study.yaml:{said}")


@pytest.mark.parametrize(
    ("word", "key", "said"),
    [
        ("horovdo", "3: framework", "; did you mean 'horovod'? Input should be 'single', "),
        ("resnet88", "4: model", "; did you mean 'resnet8' or 'resnet18'? Input should be 'resnet8', "),
        ("torch_dpp", "3: framework", "; did you mean 'torch_dp' or 'torch_ddp'? Input should be "),
        ("zzz", "4: model", ": input should be 'resnet8', "),
    ],
)
def test_an_unknown_value_is_refused_with_those_that_are_near(problems_of, word, key, said):
    (problem,) = problems_of(SINGLE.replace("single" if "framework" in key else "resnet8", word))
    assert problem.startswith(f"study.yaml:{key}: {word!r} is not right{said}")


def test_a_long_list_of_choices_is_given_once(problems_of):
    sweep = "  - {framework: single, model: %s}\n"
    problems = problems_of("study: a\nsweeps:\n" + sweep % "resnet88" + sweep % "resnet88" + sweep % "zzz")
    assert [problem.count("'gpt2'") for problem in problems] == [1, 0, 0]
    near, far = "'resnet88' is not right; did you mean 'resnet8' or 'resnet18'?", "'zzz' is not right"
    assert problems[1:] == [f"study.yaml:4: model: {near}", f"study.yaml:5: model: {far}"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("batch_per_worker: '32'", "batch_per_worker: '32' is not right: input should be a valid integer"),
        ("batch_per_worker: true", "batch_per_worker: True is not right: input should be a valid integer"),
        ("seed: -32", "seed: -32 is not right: input should be greater than or equal to 0"),
        ("learning_rate: 0", "learning_rate: 0 is not right: input should be greater than 0"),
        ("oversubscribe: 1", "oversubscribe: 1 is not right: input should be a valid boolean"),
        ("exclude: {model: resnet8}", "exclude: Input should be a valid list"),
        ("matrix: [model]", "'matrix' is given twice (first on line 4)"),
    ],
)
def test_a_wrong_type_or_value_is_said_with_the_key_and_the_value(problems_of, line, said):
    assert problems_of(f"{SINGLE}    {line}\n") == [f"study.yaml:5: {said}"]


@pytest.mark.parametrize("key", ["min_seconds", "max_seconds", "target_interval", "timeout_seconds", "learning_rate"])
@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan"])
def test_what_is_not_a_finite_number_is_refused(problems_of, key, value):
    complaints = problems_of(f"{SINGLE}    {key}: {value}\n")
    assert len(complaints) == 1 and complaints[0].startswith(f"study.yaml:5: {key}: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]\n", ["1: a study file is a mapping; it starts with `study: some-name`"]),
        ("description: x\n", ["1: 'study' is missing", "1: 'sweeps' is missing"]),
        ("study: a\nsweeps: []\n", ["2: sweeps: List should have at least 1 item after validation, not 0"]),
        ("study: a\nsweeps:\n  - matrix: {model: [resnet8]}\n", ["3: 'framework' is missing"]),
    ],
)
def test_what_is_missing_or_empty_is_said(problems_of, text, said):
    assert problems_of(text) == [f"study.yaml:{line}" for line in said]


@pytest.mark.parametrize(
    "line",
    ["    matrix: {}", "    matrix:", "    matrix: {model: }", "baseline: {}", "    workers: ~", "    repeats: ~",
     "    include: [{workers: ~}]", "measure: {repeats: 2000}"],
)  # fmt: skip
def test_what_is_empty_or_too_much_is_refused_rather_than_passed_over(problems_of, line):
    (complaint,) = problems_of(f"study: a\nsweeps:\n  - framework: single\n{line}\n")
    assert complaint.startswith("study.yaml:4: ")


def test_every_error_is_said_at_once_in_the_order_of_the_lines(problems_of):
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


def test_what_is_wrong_with_combinations_is_said_at_once_too(problems_of):
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


def test_a_baseline_that_matches_no_trial_is_said_with_its_line(problems_of):
    assert problems_of(f"{SINGLE}baseline: {{framework: horovod, workers: 1}}\n") == [
        "study.yaml:5: baseline workers=1, framework=horovod matches no trial of this study (frameworks: single)"
    ]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("matrix: {seed: %s, batch_per_worker: %s}", "1,000,000 combinations; the limit is 50,000"),
        ("repeats: 1000, matrix: {seed: %s}", "1,000,000 trials, with every repeat; the limit is 200,000"),
    ],
)
def test_too_many_combinations_are_refused_before_they_are_made(problems_of, keys, said):
    text = "study: a\nsweeps:\n  - {framework: single, " + keys.replace("%s", str(list(range(1, 1001)))) + "}\n"
    assert problems_of(text) == [f"study.yaml:3: {said}"]


def test_repeats_alone_raise_the_most_that_are_run(study_of):
    made = study_of(f"{SINGLE}measure: {{repeats: 12}}\n").measure
    assert (made.repeats, made.max_repeats) == (12, 12)


def test_small_overrides_are_merged_into_the_study(study_of):
    whole, small = study_of(WHOLE), study_of(WHOLE, small=True)
    assert (small.measure.repeats, small.measure.max_repeats) == (1, 1)
    assert small.measure.min_steps == whole.measure.min_steps == 2
    assert [s.matrix for s in small.sweeps] == [s.matrix for s in whole.sweeps]
    assert whole.measure.repeats == 4


def test_small_without_a_small_section_is_refused(problems_of):
    said = ["study.yaml: the study has no `small:` section, which --small needs"]
    assert problems_of(SINGLE, small=True) == said
    assert problems_of(f"{SINGLE}small: {{}}\n", small=True) == said


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("small: 3\n", "7: small: 3 is not right: input should be a valid dictionary"),
        ("small:\n  measure:\n    repeats: x\n", "9: measure.repeats: 'x' is not right: "),
        ("small:\n  mesure: {}\n", "8: unknown key 'mesure'; did you mean 'measure'?"),
        ("small:\n  sweeps:\n    - framework: single\n      workers: -1\n", "10: workers: -1 is not right: "),
    ],
)
def test_wrong_overrides_are_said_with_their_line_even_when_they_are_not_asked_for(problems_of, section, said, small):
    (problem,) = problems_of(f"{SINGLE}measure:\n  repeats: 2\n{section}", small=small)
    assert problem.startswith(f"study.yaml:{said}")
