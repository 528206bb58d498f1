"""What stands behind --slurm: what is right becomes a directive, what is not is said with what would be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.errors import StudyError
from scaling_study.slurm.options import KEYS, directives, gpus, parse


def problems(text: str, **defaults: object) -> list[str]:
    with pytest.raises(StudyError) as wrong:
        parse(text, defaults, "machines/x.yaml")
    return wrong.value.problems


def test_the_example_of_the_docs():
    given = parse("partition=gpu,nodes=4,gpus_per_node=4,time=2:00:00,account=abc123")
    assert directives(given) == [
        "--partition=gpu", "--account=abc123", "--nodes=4", "--gpus-per-node=4", "--time=2:00:00",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", {}),
        ("partition=gpu,long,nodes=2", {"partition": "gpu,long", "nodes": "2"}),
        ("nodelist=n[1-3,7],m2,time=30", {"nodelist": "n[1-3,7],m2", "time": "30"}),
        ("constraint=a100|h100,mem=64G", {"constraint": "a100|h100", "mem": "64G"}),
        ("gpus_per_node=a100:4,time=1-12:00:00", {"gpus_per_node": "a100:4", "time": "1-12:00:00"}),
        ("exclusive=yes", {"exclusive": "yes"}),
        ("exclusive=no", {}),
        ("partition=no", {"partition": "no"}),
    ],
)
def test_commas_inside_of_values_stay(text, options):
    assert parse(text) == options


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("partiton=gpu", "--slurm 'partiton' is no option of Slurm that can be given here; did you mean 'partition'?"),
        ("nodes=0", "--slurm 'nodes=0': expected a whole number above 0, like 4"),
        ("nodes=2-4", "--slurm 'nodes=2-4': expected a whole number above 0, like 4"),
        ("time=2h", "--slurm 'time=2h': expected minutes, hours:minutes:seconds or days-hours, like 2:00:00"),
        ("time=0", "--slurm 'time=0': expected minutes, hours:minutes:seconds or days-hours, like 2:00:00"),
        ("mem=64 GB", "--slurm 'mem=64 GB': expected a size with its unit, like 64G (0: all of a node's)"),
        ("gpu", "--slurm 'gpu': expected key=value, like partition=gpu"),
        ("nodes=1,nodes=2", "--slurm nodes=2: nodes is given already, as 1"),
        ("exclusive=true", "--slurm 'exclusive=true': expected yes or no"),
    ],
)
def test_what_is_wrong_is_said_with_what_would_be_right(text, said):
    assert problems(text) == [said]


def test_all_problems_at_once():
    assert len(problems("nodes=x,tiem=1,partition=a b")) == 3


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "value", ["a b", 'a"b', "a'b", "a;b", "$(id)", "`id`", "a\nb", "a#b", "a\\b", "-x y", "", "%j"]
)
def test_nothing_that_a_shell_or_a_directive_would_obey_gets_through(key, value):
    assert len(problems(f"{key}={value}")) == 1


@given(st.text(max_size=30))
def test_whatever_gets_through_is_one_plain_word(text):
    for key in KEYS:
        if KEYS[key].fits(text):
            assert text and not set(text) & set(" \t\r\n\"'`$;\\#<>%!{}"), (key, text)


def test_the_machine_file_is_overruled_and_checked_too():
    usual = {"partition": "gpu", "nodes": 2, "exclusive": True}
    assert parse("nodes=4,exclusive=no", usual) == {"partition": "gpu", "nodes": "4"}
    assert problems("", tiem=5) == [
        "machines/x.yaml: slurm: 'tiem' is no option of Slurm that can be given here; did you mean 'time'?"
    ]


@pytest.mark.parametrize(
    ("text", "count"), [("gpus_per_node=4", 4), ("gpus_per_node=a100:2", 2), ("gres=gpu:a100:3", 3), ("gres=gpu", 1),
                        ("gres=nvme:2", 0), ("nodes=3", 0)],
)  # fmt: skip
def test_gpus_of_a_node(text, count):
    assert gpus(parse(text)) == count
