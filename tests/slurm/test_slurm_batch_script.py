"""What a job asks of Slurm: options, the machine that jobs are planned for, what one trial needs, and the batch script,
letter by letter and run by a real bash: what it leaves however it ends."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.errors import StudyError
from scaling_study.machine import Machine
from scaling_study.slurm import jobs
from scaling_study.slurm.batch_script import (
    KEYS,
    Node,
    batch_script,
    node_machine,
    parse_nodes,
    parse_options,
    requested_gpus,
    trial_options,
)
from scaling_study.slurm.jobs import Job, ScriptExit
from scaling_study.trial import Trial

# sinfo -h -N -o '%P|%N|%c|%m|%G', as it really said it and as on a cluster with GPUs
SINFO = """\
main*|node1|1|8000|(null)
urgent|node1|1|8000|(null)
main*|node2|1|8000|(null)
urgent|node2|1|8000|(null)
gpu|gpu1|64|512000|gpu:a100:4(S:0-1)
gpu|gpu2|64|515000|gpu:a100:4(S:0-1),nvme:1
mixed|old|16|64000|gpu:2
mixed|node1|1|8000|(null)
"""
HERE = Machine(8, "a login node", 2**34, (), {"torch": "2.15.0"})
TRIAL = Trial(framework="torch_ddp", device="cpu", cores_per_worker=2, workers=4)
JOB = Job("name.1", "sweep-1", "2026-11-22T02:00:00+00:00", id="41")


def problems(text: str, **defaults: object) -> list[str]:
    with pytest.raises(StudyError) as wrong:
        parse_options(text, defaults, "machines/x.yaml")
    return wrong.value.problems


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", {}),
        ("partition=gpu,long,nodes=2", {"partition": "gpu,long", "nodes": "2"}),
        ("nodelist=n[1-3,7],m2,time=30", {"nodelist": "n[1-3,7],m2", "time": "30"}),
        ("gpus_per_node=a100:4,time=1-12:00:00", {"gpus_per_node": "a100:4", "time": "1-12:00:00"}),
        ("exclusive=yes", {"exclusive": "yes"}),
        ("exclusive=no", {}),
    ],
)
def test_commas_inside_of_values_stay(text, options):
    assert parse_options(text) == options


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("partiton=gpu", "--slurm 'partiton' is not a supported Slurm option; did you mean 'partition'?"),
        ("nodes=0", "--slurm 'nodes=0': expected a whole number above 0, like 4"),
        ("time=2h", "--slurm 'time=2h': expected minutes, hours:minutes:seconds or days-hours, like 2:00:00"),
        ("mem=64 GB", "--slurm 'mem=64 GB': expected a size with its unit, like 64G (0: all of a node's)"),
        ("gpu", "--slurm 'gpu': expected key=value, like partition=gpu"),
        ("nodes=1,nodes=2", "--slurm nodes=2: nodes is already set to 1"),
    ],
)
def test_what_is_wrong_is_said_with_what_would_be_right(text, problem):
    assert problems(text) == [problem]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", ["a b", 'a"b', "a;b", "$(id)", "a\nb", "a#b", "-x y", "", "%j"])
def test_nothing_that_a_shell_or_a_directive_would_obey_gets_through(key, value):
    assert len(problems(f"{key}={value}")) == 1


@given(st.text(max_size=30))
def test_whatever_gets_through_is_one_plain_word(text):
    for key in KEYS:
        if re.fullmatch(KEYS[key].pattern, text):
            assert text and not set(text) & set(" \t\r\n\"'`$;\\#<>%!{}"), (key, text)


def test_the_machine_file_is_overruled_and_checked_too():
    usual = {"partition": "gpu", "nodes": 2, "exclusive": True}
    assert parse_options("nodes=4,exclusive=no", usual) == {"partition": "gpu", "nodes": "4"}
    assert problems("", tiem=5) == [
        "machines/x.yaml: slurm: 'tiem' is not a supported Slurm option; did you mean 'time'?"
    ]


@pytest.mark.parametrize(
    ("text", "count"), [("gpus_per_node=4", 4), ("gpus_per_node=a100:2", 2), ("gres=gpu:a100:3", 3), ("gres=gpu", 1),
                        ("gres=nvme:2", 0), ("nodes=3", 0)],
)  # fmt: skip
def test_gpus_of_a_node(text, count):
    assert requested_gpus(parse_options(text)) == count


def test_the_nodes_of_a_partition_or_of_the_default_one():
    assert parse_nodes(SINFO) == [Node(1, (), 8000, "node1"), Node(1, (), 8000, "node2")]
    assert parse_nodes(SINFO, "gpu") == [
        Node(64, ("a100",) * 4, 512000, "gpu1"), Node(64, ("a100",) * 4, 515000, "gpu2"),
    ]  # fmt: skip
    assert len(parse_nodes(SINFO, "gpu,mixed")) == 4 and parse_nodes(SINFO, "nothing") == []
    assert parse_nodes("a line|of something else\n\n||||") == []


def test_a_node_is_the_machine_with_the_libraries_from_here():
    planned = node_machine(parse_nodes(SINFO, "gpu"), {"partition": "gpu", "gpus_per_node": "4"}, HERE)
    assert planned == Machine(64, "a node of partition gpu", 512000 << 20, ("a100",) * 4, {"torch": "2.15.0"})
    assert planned.device == "cuda"


def test_a_job_sees_only_gpus_that_it_asks_for():
    nodes = parse_nodes(SINFO, "gpu")
    assert node_machine(nodes, {"partition": "gpu"}, HERE).device == "cpu"
    assert node_machine(nodes, {"partition": "gpu", "gpus_per_node": "a100:2"}, HERE).gpus == ("a100", "a100")
    assert node_machine(parse_nodes(SINFO), {"gpus_per_node": "2"}, HERE).gpus == ("GPU", "GPU"), "sinfo may show none"


def test_unlike_nodes_are_not_mixed():
    with pytest.raises(StudyError, match=r"differ \(1 core; 16 cores and 2 x GPU\); a study needs equal ones"):
        node_machine(parse_nodes(SINFO, "mixed"), {"partition": "mixed"}, HERE)
    with pytest.raises(StudyError, match="sinfo lists no nodes of partition nothing"):
        node_machine([], {"partition": "nothing"}, HERE)


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, {"nodes": "1", "ntasks_per_node": "4", "cpus_per_task": "2"}),
        ({"hosts": 2}, {"nodes": "2", "ntasks_per_node": "2", "cpus_per_task": "2"}),
        ({"workers": 1, "framework": "single"}, {"nodes": "1", "ntasks_per_node": "1", "cpus_per_task": "2"}),
    ],
)
def test_a_job_asks_for_what_its_trial_can_use(changes, asked):
    trial = dataclasses.replace(TRIAL, **changes)
    assert trial_options(trial, {"partition": "main", "nodes": "16"}) == {"partition": "main", **asked}


def a_job(folder: Path, *command: str, setup: tuple[str, ...] = ()) -> str:
    return batch_script("a title", "name.1", folder, folder, command, {}, setup)


def test_its_directives_stand_at_its_head():
    options = {"exclusive": "yes", "partition": "gpu", "nodes": "4", "gpus_per_node": "a100:4", "time": "2:00:00"}
    files = Path("/home/me/my results/slurm/sweep-1")
    made = batch_script("all\nof it", "cifar10.0a1b", Path("/x"), files, ["true"], options, [])
    head, *lines = made.partition("\n\n")[0].splitlines()
    assert head == "#!/bin/bash" and lines[0] == "# all of it"
    assert [line.removeprefix("#SBATCH ") for line in lines[2:]] == [
        "--job-name=cifar10.0a1b", f'--output="{files}/output.txt"', "--open-mode=append", "--no-requeue",
        "--partition=gpu", "--nodes=4", "--gpus-per-node=a100:4", "--time=2:00:00", "--exclusive",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ['a"b', "a'b", "a\\b", "100%", "a\nb", "a\x1bb"])
def test_a_folder_that_slurm_would_misread_is_refused(name):
    with pytest.raises(StudyError, match="Slurm would misread the path"):
        a_job(Path("/x") / name, "true")


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1), min_size=1, max_size=4))
def test_words_reach_the_command_as_they_are(words):
    line = next(line for line in a_job(Path("/x"), *words).split("stage=study\n")[1:])
    assert shlex.split(line.rpartition(" &\nwait $!")[0]) == words


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of JOB, below results in tmp_path."""
    path = jobs.folder_of(tmp_path, JOB)
    path.mkdir(parents=True)
    return path


def run(folder: Path, text: str, term_once: str = "") -> tuple[int, ScriptExit | None]:
    """The script's exit code and how it ended, from a bash that believes to be a job; it gets a TERM once there
    is a file `term_once`."""
    (folder / "job.sh").write_text(text)
    env = {**os.environ, "SLURM_JOB_ID": "41", "SLURMD_NODENAME": "node1"}
    job = subprocess.Popen(["bash", str(folder / "job.sh")], env=env, stdout=subprocess.PIPE, start_new_session=True)
    if term_once:
        deadline = time.monotonic() + 300
        while not (folder / term_once).exists():
            assert time.monotonic() < deadline, "it never came so far"
            time.sleep(0.02)
        os.killpg(job.pid, signal.SIGTERM)  # as Slurm does it: to all of the job at once
    job.communicate(timeout=600)
    return job.returncode, jobs.script_exit(folder.parent.parent, JOB)


@pytest.mark.parametrize("code", [0, 1, 130])
def test_it_ends_as_its_command_and_says_so(folder, code):
    before = time.time()
    returned, ended = run(folder, a_job(folder, "sh", "-c", f"pwd > here; exit {code}"))
    assert returned == code and (folder / "here").read_text().strip() == str(folder)
    assert (ended.node, ended.stage, ended.code, ended.asked) == ("node1", "study", code, "")
    assert before < ended.at + 1 <= time.time() + 1


def test_asked_to_end_it_waits_for_its_command_to_do_so(folder):
    command = "trap 'sleep 0.5; echo kept > kept; exit 130' TERM; touch ready; sleep 30 & wait"
    returned, ended = run(folder, a_job(folder, "sh", "-c", command), term_once="ready")
    assert returned == 130 and (ended.code, ended.asked) == (130, "TERM")
    assert (folder / "kept").exists()


def test_setup_reaches_the_command(folder):
    job = a_job(folder, "sh", "-c", 'echo "$GREETING" > said', setup=("export GREETING='hello there'",))
    assert run(folder, job)[0] == 0
    assert (folder / "said").read_text() == "hello there\n"


@pytest.mark.parametrize("line", ["false", "no_such_command_here", "cd /no/such/folder", "exit 3"])
def test_a_setup_that_fails_ends_the_job_and_starts_nothing(folder, line):
    returned, ended = run(folder, a_job(folder, "touch", "started", setup=(line, "true")))
    assert returned != 0 and (ended.stage, ended.code) == ("setup", returned)
    assert not (folder / "started").exists()


@pytest.mark.parametrize(
    "said",
    ["", "{", "[]", '{"job": "41"}', '{"job": 41, "node": "", "stage": "", "code": 0, "asked": "", "at": 0}',
     '{"job": "7", "node": "", "stage": "", "code": 0, "asked": "", "at": 0}'],
)  # fmt: skip
def test_a_word_that_is_broken_or_of_another_job_is_none(folder, said):
    (folder / jobs.EXIT).write_text(said)
    assert jobs.script_exit(folder.parent.parent, JOB) is None
