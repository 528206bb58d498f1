"""The batch script, letter by letter, and run by a real bash: what it leaves however it ends."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.errors import StudyError
from scaling_study.slurm import script, words
from scaling_study.slurm.script import Job

PRINTED = """\
#!/bin/bash
# cifar10: all of its trials in one job
# Made by `run_sweep.py --slurm`, which hands it to sbatch. It may be edited, and handed to sbatch by hand.
#SBATCH --job-name=cifar10.0a1b2c3d
#SBATCH --output="/home/me/my results/cifar10/slurm/sweep-1/output.txt"
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --partition=gpu
#SBATCH --nodes=4
#SBATCH --gpus-per-node=4
#SBATCH --time=2:00:00
#SBATCH --exclusive

# How this script ends stays in a file: Slurm forgets its jobs after a while, and tells not everything.
word='/home/me/my results/cifar10/slurm/sweep-1/exit.json'
stage=setup asked=""
leave_word() {
    printf '{"job": "%s", "node": "%s", "stage": "%s", "code": %d, "asked": "%s", "at": %d}\\n' \\
        "$SLURM_JOB_ID" "${SLURMD_NODENAME:-}" "$stage" "$1" "$asked" "$(date +%s)" > "$word.new"
    mv "$word.new" "$word"
}
trap 'leave_word $?' EXIT
trap 'asked=TERM' TERM
cd '/home/me/my studies' || exit

# Setup, from the machine file; the first line that fails ends the job.
set -e
module load cuda/12.4
export OMP_PROC_BIND=close
set +e

# The study.
[ -z "$asked" ] || exit 143
stage=study
apptainer exec --nv '/images/a b.sif' python run_sweep.py 'it'"'"'s.yaml' &
wait $!
code=$?
while kill -0 $! 2> /dev/null; do # the wait was cut short by a TERM, which Slurm also sends to what is waited for
    wait $!
    code=$?
done
exit "$code"
"""


def a_job(folder: Path, *command: str, setup: tuple[str, ...] = ()) -> Job:
    return Job("a title", "name.1", folder, folder, command, {}, setup)


def test_every_letter():
    options = {"exclusive": "yes", "partition": "gpu", "nodes": "4", "gpus_per_node": "4", "time": "2:00:00"}
    job = Job(
        "cifar10: all of its trials in one job", "cifar10.0a1b2c3d", Path("/home/me/my studies"),
        Path("/home/me/my results/cifar10/slurm/sweep-1"), ["python", "run_sweep.py", "it's.yaml"], options,
        ["module load cuda/12.4", "export OMP_PROC_BIND=close"], ["apptainer", "exec", "--nv", "/images/a b.sif"],
    )  # fmt: skip
    assert script.text(job) == PRINTED


@pytest.mark.parametrize("name", ['a"b', "a'b", "a\\b", "100%", "a\nb", "a\x1bb"])
def test_a_folder_that_slurm_would_misread_is_refused(name):
    with pytest.raises(StudyError, match="Slurm would misread the path"):
        script.text(a_job(Path("/x") / name, "true"))


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1), min_size=1, max_size=4))
def test_words_reach_the_command_as_they_are(words):
    line = next(line for line in script.text(a_job(Path("/x"), *words)).split("stage=study\n")[1:])
    assert shlex.split(line.rpartition(" &\nwait $!")[0]) == words


def run(folder: Path, text: str, term_once: str = "") -> tuple[int, words.Word | None]:
    """The script's exit code and its word, from a bash that is a job as far as it can see; asked to end once there is
    a file `term_once`."""
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
    return job.returncode, words.read(folder, "41")


@pytest.mark.parametrize("code", [0, 1, 130])
def test_it_ends_as_its_command_and_says_so(tmp_path, code):
    returned, word = run(tmp_path, script.text(a_job(tmp_path, "sh", "-c", f"pwd > here; exit {code}")))
    assert returned == code and (tmp_path / "here").read_text().strip() == str(tmp_path)
    assert (word.node, word.stage, word.code, word.asked) == ("node1", "study", code, "")
    assert time.time() - 30 < word.at <= time.time() + 1


def test_asked_to_end_it_waits_for_its_command_to_do_so(tmp_path):
    command = "trap 'sleep 0.5; echo kept > kept; exit 130' TERM; touch ready; sleep 30 & wait"
    returned, word = run(tmp_path, script.text(a_job(tmp_path, "sh", "-c", command)), term_once="ready")
    assert returned == 130 and (word.code, word.asked) == (130, "TERM")
    assert (tmp_path / "kept").exists()


def test_setup_reaches_the_command(tmp_path):
    job = a_job(tmp_path, "sh", "-c", 'echo "$GREETING" > said', setup=("export GREETING='hello there'",))
    assert run(tmp_path, script.text(job))[0] == 0
    assert (tmp_path / "said").read_text() == "hello there\n"


@pytest.mark.parametrize("line", ["false", "no_such_command_here", "cd /no/such/folder", "exit 3"])
def test_a_setup_that_fails_ends_the_job_and_starts_nothing(tmp_path, line):
    returned, word = run(tmp_path, script.text(a_job(tmp_path, "touch", "started", setup=(line, "true"))))
    assert returned != 0 and (word.stage, word.code) == ("setup", returned)
    assert not (tmp_path / "started").exists()


def test_asked_to_end_during_setup_it_starts_nothing(tmp_path):
    job = a_job(tmp_path, "touch", "started", setup=("touch ready", "sleep 5 || true"))
    returned, word = run(tmp_path, script.text(job), term_once="ready")
    assert returned == 143 and (word.stage, word.asked) == ("setup", "TERM")
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    "said",
    ["", "{", "[]", '{"job": "41"}', '{"job": 41, "node": "", "stage": "", "code": 0, "asked": "", "at": 0}',
     '{"job": "7", "node": "", "stage": "", "code": 0, "asked": "", "at": 0}'],
)  # fmt: skip
def test_a_word_that_is_broken_or_of_another_job_is_none(tmp_path, said):
    (tmp_path / words.FILE).write_text(said)
    assert words.read(tmp_path, "41") is None


def test_a_whole_word(tmp_path):
    said = {"job": "41", "node": "n", "stage": "study", "code": 0, "asked": "", "at": 5}
    (tmp_path / words.FILE).write_text(json.dumps(said))
    assert words.read(tmp_path, "41") == words.Word(**said)
