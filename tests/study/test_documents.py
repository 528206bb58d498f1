"""Reading YAML: values with their lines, and nothing that a hostile or broken file could do to us."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.errors import StudyError
from scaling_study.study.documents import Document, read


@pytest.fixture(scope="session")
def complaint(study_file: Callable[[str | bytes], Path]) -> Callable[[str | bytes], str]:
    """The one line that a text is refused with, with the file's folder cut off."""

    def refused(text: str | bytes) -> str:
        path = study_file(text)
        with pytest.raises(StudyError) as wrong:
            read(path)
        assert len(wrong.value.problems) == 1
        line = wrong.value.problems[0].replace(f"{path.parent}{os.sep}", "")
        assert "\n" not in line and len(line) < 500, "one clear line"
        return line

    return refused


@pytest.fixture(scope="session")
def document(study_file: Callable[[str | bytes], Path]) -> Callable[[str | bytes], Document]:
    return lambda text: read(study_file(text))


def test_values_come_with_the_line_on_which_each_stands(document):
    made = document(
        "study: a\n"  # 1
        "\n"
        "sweeps:\n"  # 3
        "  - framework: single\n"  # 4
        "    matrix:\n"  # 5
        "      workers: [1,\n"  # 6
        "        2]\n"  # 7
        "  # a comment\n"
        "  - {framework: horovod}\n"  # 9
    )
    assert made.value == {
        "study": "a",
        "sweeps": [{"framework": "single", "matrix": {"workers": [1, 2]}}, {"framework": "horovod"}],
    }
    assert made.lines == {
        (): 1,
        ("study",): 1,
        ("sweeps",): 3,
        ("sweeps", 0): 4,
        ("sweeps", 0, "framework"): 4,
        ("sweeps", 0, "matrix"): 5,
        ("sweeps", 0, "matrix", "workers"): 6,
        ("sweeps", 0, "matrix", "workers", 0): 6,
        ("sweeps", 0, "matrix", "workers", 1): 7,
        ("sweeps", 1): 9,
        ("sweeps", 1, "framework"): 9,
    }


def test_a_place_that_is_not_in_the_file_is_shown_as_what_surrounds_it(document):
    made = document("study: a\nmeasure:\n  repeats: 3\n")
    assert made.at(("measure", "repeats")) == f"{made.path}:3"
    assert made.at(("measure", "repeets", "x")) == f"{made.path}:2"
    assert made.at(("sweeps", 0)) == f"{made.path}:1"


def test_duplicate_keys_are_refused_with_both_lines(study_file):
    path = study_file("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\na: 2\n'a': 3\n")
    with pytest.raises(StudyError) as wrong:
        read(path)
    assert wrong.value.problems == [
        f"{path}:5: 'c' is given twice (first on line 3)",
        f"{path}:6: 'a' is given twice (first on line 1)",
        f"{path}:7: 'a' is given twice (first on line 1)",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "study.yaml: empty; a study needs at least `study:` and `sweeps:`"),
        (b"# only a comment\n", "study.yaml: empty; a study needs at least `study:` and `sweeps:`"),
        (b"study: \xe9t\xe9\n", "study.yaml: not UTF-8 text (byte 7)"),
        ("study: a\n".encode("utf-16"), "study.yaml: not UTF-8 text (byte 0)"),
        (b"study: a\n\tsweeps: []\n", "study.yaml:2: not YAML: found character '\\t' that cannot start any token"),
        (b"a: 1\nb: [1, 2\n", "study.yaml:3: not YAML: expected ',' or ']', but got '<stream end>'"),
        (b"a: 1\n---\nb: 2\n", "study.yaml:2: not YAML: but found another document"),
        (b"a: *nowhere\n", "study.yaml:1: not YAML: found undefined alias 'nowhere'"),
        (b"a: 1\n? [b, c]\n: 2\n", "study.yaml:2: a key must be a plain word"),
        (b"a: 1\nb: 2001-02-30\n", "study.yaml:2: '2001-02-30' cannot be read as tag:yaml.org,2002:timestamp"),
    ],
)
def test_what_is_not_yaml_is_one_clear_line(complaint, text, said):
    assert complaint(text) == said


@pytest.mark.parametrize(
    "tagged", ["!!python/object/apply:os.system ['touch {marker}']", "!!python/name:os.system", "!mine word"]
)
def test_tags_beyond_plain_yaml_are_refused_and_nothing_is_executed(complaint, tmp_path, tagged):
    marker = tmp_path / "executed"
    assert complaint(f"study: a\nsweeps: {tagged.format(marker=marker)}\n").startswith("study.yaml:2: ")
    assert not marker.exists()


LAUGHS = "a0: &a0 [lol, lol]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 60))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LAUGHS, "more than 50,000 values (keys and aliases count)"),
        (f"[{'1,' * 60_000}]", "more than 50,000 values (keys and aliases count)"),
        ("a: &a [*a]\n", "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ("# " + "x" * 1_000_000, "larger than 1,000,000 bytes; a study file is a page or two"),
        (f"a: {'9' * 101}", "cannot be read as tag:yaml.org,2002:int"),
    ],
    ids=["laughs", "values", "list of itself", "never closed", "a megabyte", "digits"],
)
def test_too_much_is_refused(complaint, text, said):
    assert complaint(text).endswith(said)


def test_a_missing_file_a_folder_and_a_file_used_as_one_are_said_by_name(tmp_path):
    file = tmp_path / "file"
    file.write_text("a: 1")
    os.mkfifo(tmp_path / "pipe.yaml")
    for path, said in [
        (tmp_path / "absent.yaml", "no such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (file / "study.yaml", "cannot be read: Not a directory"),
        (tmp_path / "pipe.yaml", "a pipe or device; a study is a file"),
    ]:
        with pytest.raises(StudyError) as wrong:
            read(path)
        assert wrong.value.problems == [f"{path}: {said}"]


def test_a_file_with_a_name_like_it_is_named(tmp_path):
    (tmp_path / "sweeps.yaml").write_text("study: a\n")
    with pytest.raises(StudyError) as wrong:
        read(tmp_path / "sweep.yaml")
    assert wrong.value.problems == [f"{tmp_path}/sweep.yaml: no such file; did you mean '{tmp_path}/sweeps.yaml'?"]


def test_aliases_within_reason_are_fine(document):
    assert document("a: &models [resnet8]\nb: *models\n").value == {"a": ["resnet8"], "b": ["resnet8"]}


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_plain_data_is_read_back_as_it_was_written(study_file, value):
    text = yaml.safe_dump(value)
    if value is None:
        assert read(study_file(text)).value is None
    else:
        made = read(study_file(text))
        assert made.value == value and type(made.value) is type(value)
        assert max(made.lines.values()) <= text.count("\n") + 1


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("032", "32"),
        ("-064", "-64"),
        ("00", "0"),
        ("1:00", "in base 60"),
        ("1:30:00", "in base 60"),
        ("1e-3", "1.0e-3"),
        ("1E6", "1.0e+6"),
        ("2.5e4", "2.5e+4"),
    ],
)
def test_a_number_that_yaml_reads_otherwise_is_refused_with_one_that_it_reads(complaint, written, instead):
    line = complaint(f"sweeps:\n  - matrix:\n      batch: [1, {written}]\n")
    assert line.startswith("study.yaml:3: ") and written in line and instead in line


@pytest.mark.parametrize(
    "text", ["0", "10", "0.5", "1.0e-3", "-7", "0x10", "1_000", "'032'", '"1:00"', "'1e-3'", "0.0"]
)
def test_every_other_number_and_all_text_in_quotes_is_read(document: Callable[[str], Document], text: str) -> None:
    assert document(f"x: {text}\n").value == yaml.safe_load(f"x: {text}\n")


def test_a_merge_of_mappings_is_refused_by_name(complaint: Callable[[str | bytes], str]) -> None:
    assert "merge" in complaint("base: &base {workers: 1}\nx:\n  <<: *base\n")
