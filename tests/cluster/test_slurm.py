"""Studies on a real Slurm (22.05 or later), made here by slurm_daemons.py: submitted, hit, collected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import copied
import pytest
import slurm_daemons
from over_hosts import words as words_of
from slurm_daemons import Slurm
from slurm_study import Planted

WHY_NOT = slurm_daemons.why_not()
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]
LONG = 300.0  # seconds of a trial that is to be hit


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied.planted(tmp_path_factory.mktemp("checkout") / "copy")


@pytest.fixture(scope="module")
def shared_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm_daemons.running(tmp_path_factory.mktemp("slurm"), nodes=4) as slurm:
        yield slurm


@pytest.fixture
def study(tmp_path: Path, checkout: Path, shared_slurm: Slurm) -> Iterator[Callable[..., Planted]]:
    """study(seeds=1, seconds=0.2, ..., slurm=another): on four nodes with a core each."""
    made: list[Planted] = []

    def make(slurm: Slurm = shared_slurm, **how: object) -> Planted:
        made.append(Planted(tmp_path, checkout, slurm, **how))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        if one.slurm is shared_slurm:  # any other ends with its test, and may have ended already
            one.end()


@pytest.fixture
def slurm_with(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Slurm]]:
    """slurm_with(nodes=2, forget_seconds=2, ...): one of the test's own, which it may break."""
    made: list[Slurm] = []

    def make(**how: object) -> Slurm:
        made.append(Slurm(tmp_path_factory.mktemp("slurm"), **how))  # type: ignore[arg-type]
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.stop()


# --- submitting


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ("partition=nowhere", 1, "sbatch: invalid partition specified: nowhere"),
        ("mem=900G", 1, "sbatch: Memory specification can not be satisfied"),
    ],
)
def test_options_that_are_wrong_leave_nothing(study, options, code, said):
    one = study()
    done = one.run("--slurm", options)
    assert done.returncode == code and said in done.stderr
    assert not list(one.results.glob("slurm/*")) and not one.slurm.ask("squeue", "-h").strip()


# --- the whole study in one job


def test_the_whole_study_in_one_job(study):
    one = study(seeds=2, repeats=2)
    (job,) = one.submit("time=0:05:00")
    one.slurm.until(job, "COMPLETED")
    assert one.outcomes() == [("ok", "")] * 4
    assert {record.job["job"] for record in one.records()} == {job}
    assert one.records()[0].job["hosts"] == ["node1"]
    assert (one.results / "results.csv").exists() and one.status()[0]["state"] == "ended: COMPLETED"
    assert one.collect() == (0, "Nothing to collect.\n")
    assert one.status()[0]["state"] == "finished"
    (again,) = one.submit()
    one.slurm.until(again, "COMPLETED")
    assert len(one.starts.read_text().splitlines()) == 4, "nothing was run twice"


def test_a_cancelled_sweep_keeps_what_is_finished_and_goes_on(study):
    one = study(seeds=3, book={0: "loop", 1: "loop", 2: "loop"})
    one.run("--max-trials", "0")
    (job,) = one.submit()
    one.until_started()
    one.slurm.do("scancel", job)
    one.slurm.until(job, "CANCELLED")
    code, said = one.collect()
    assert code == 1 and re.search(r"single-resnet8\S+  cancelled: cancelled: job \d+ after", said)
    assert [status for status, _ in one.outcomes()] == ["cancelled"]
    assert "cancelled" in (one.results / "results.csv").read_text()
    (one.folder / "book.json").write_text("{}")
    (again,) = one.submit()
    one.slurm.until(again, "COMPLETED")
    assert one.outcomes() == [("ok", "")] * 3, "what was cancelled is run again without being asked for"


def test_two_sweeps_of_a_study_are_not_run_at_once(study):
    one = study(seconds=LONG)
    (job,) = one.submit()
    one.until_started()
    for words in (("--slurm", ""), ()):
        done = one.run(*words)
        assert done.returncode == 1 and f"1 pending or running Slurm jobs ({job})" in done.stderr, done.stderr
    assert one.status()[0]["state"] == "running"
    assert one.collect() == (0, "Collected 0 trials; 1 job is pending or running.\n")


# --- a job for each trial


def test_a_job_for_each_trial_needs_no_driver(study):
    one = study(seeds=3)
    numbers = one.submit("", "--per-trial")
    assert len(numbers) == 3
    one.until(lambda: len(one.records()) == 3)
    assert [(record.status, record.job["job"]) for record in one.records()] == [("ok", job) for job in numbers]
    one.until(lambda: all(one.slurm.state(job) == "COMPLETED" for job in numbers))
    code, said = one.collect()
    assert code == 0 and said.count(" ok") == 3 and "Collected 3 trials; 0 jobs are pending or running." in said
    assert len((one.results / "results.csv").read_text().splitlines()) == 4
    assert one.submit("", "--per-trial") == []


def test_a_trial_that_was_submitted_again_and_cancelled_has_its_earlier_result_back(study):
    one = study()
    one.submit("", "--per-trial")
    one.until(lambda: one.outcomes() == [("ok", "")])
    one.until(lambda: "finished" in one.status()[0]["state"])
    one.collect()
    (job,) = one.submit("", "--per-trial", "--retry", "ok", PLANTED_SECONDS=str(LONG))
    assert one.outcomes() == []
    one.until_started(2)
    one.slurm.do("scancel", job)
    one.slurm.until(job, "CANCELLED")
    one.collect()
    assert one.outcomes() == [("ok", "")]


# --- srun as a launcher


BY_SRUN = "framework: torch_ddp, launcher: srun, workers: 2, cores_per_worker: 1"


def test_srun_starts_ranks_and_a_time_out_ends_them(study, slurm_with):
    """They are no children of ours: srun has them started by the node's slurmd."""
    one = study(slurm=slurm_with(nodes=1, cpus=2), sweep=BY_SRUN, seeds=2, timeout=8.0, book={1: "loop"})
    (job,) = one.submit("ntasks_per_node=2")
    one.until(lambda: len(one.outcomes()) == 2, seconds=90)
    assert one.outcomes() == [("ok", ""), ("timeout", "not finished after 8 s")]
    one.until(lambda: not any("torch_ddp.py" in " ".join(words_of(process)) for process in one.slurm.processes(job)))
    one.slurm.until(job, "FAILED", seconds=120)  # a sweep with a trial that is not ok exits with 1


# --- what happens to jobs


def cancel(slurm: Slurm, job: str) -> None:
    slurm.do("scancel", job)


def preempt(slurm: Slurm, job: str) -> None:
    slurm.do("sbatch", "--partition=urgent", "--nodes=4", "--output=/dev/null", "--wrap", "sleep 1")


def take_the_node(slurm: Slurm, job: str) -> None:
    node = slurm.do("squeue", "-h", "-j", job, "-o", "%N").strip()
    slurm.do("scontrol", "update", f"nodename={node}", "state=down", "reason=test")


@pytest.mark.parametrize(
    ("how", "state", "status", "reason"),
    [
        (cancel, "CANCELLED", "cancelled", r"cancelled: job N after \d+:\d\d"),
        (preempt, "PREEMPTED", "cancelled", r"preempted: job N after \d+:\d\d"),
        (take_the_node, "NODE_FAIL", "failed", r"node_failed: node\d, job N after \d+:\d\d"),
    ],
    ids=["cancelled", "preempted", "its node taken away"],
)
def test_a_job_that_is_hit(study, how, state, status, reason):
    one = study(seconds=LONG)
    job = one.running()
    how(one.slurm, job)
    one.slurm.until(job, state)
    assert one.collect()[0] == 1
    ((said, why),) = one.outcomes()
    assert said == status and re.fullmatch(reason, why.replace(f"job {job}", "job N"))
    assert one.records()[0].job["job"] == job


def test_a_node_loses_its_power(study, slurm_with):
    one = study(slurm=slurm_with(nodes=1), seconds=LONG)
    job = one.running()
    one.slurm.kill("slurmd", "node1")
    one.slurm.until(job, "NODE_FAIL", seconds=60)  # Slurm takes some 28 s to be sure
    status, reason = one.collected()
    assert status == "failed" and reason.startswith("node_failed: node1, job 1 after")


def test_a_time_limit_ends_a_trial_and_a_sweep(study, slurm_with):
    """The shortest limit is a minute, and Slurm looks every half."""
    one = study(slurm=slurm_with(nodes=1), seconds=LONG)
    (job,) = one.submit("time=1", "--per-trial")
    one.slurm.until(job, "TIMEOUT", seconds=120)
    status, reason = one.collected()
    assert status == "timeout" and re.fullmatch(r"time limit: job 1 was ended after 1:\d\d", reason)


def test_more_memory_than_was_asked_for(study, slurm_with):
    """Without cgroups Slurm kills the whole job, its driver included."""
    one = study(slurm=slurm_with(nodes=1), book={0: "hold:1500"})
    (job,) = one.submit("mem=1000M", "--per-trial")
    one.slurm.until(job, "FAILED")
    one.collect()
    assert one.outcomes() == [("oom", "job 1 exceeded its memory limit")]
    assert "Exceeded job memory limit" in one.records()[0].error


def test_setup_that_fails_is_said_to_have_failed(study, tmp_path):
    one = study()
    (tmp_path / "there.yaml").write_text("setup: ['module load no/such/thing']\nslurm: {partition: main}\n")
    (job,) = one.submit("", "--per-trial", "--machine", "./there.yaml")
    one.slurm.until(job, "FAILED")
    status, reason = one.collected()
    assert (status, reason) == ("failed", "setup: the machine file's lines ended with exit code 127")
    assert "module: command not found" in one.records()[0].error


# --- a Slurm that loses its memory, or does not answer


def test_the_controller_does_not_answer_for_a_while(study, slurm_with):
    one = study(slurm=slurm_with(nodes=1), seconds=LONG)
    job = one.running()
    one.slurm.kill("slurmctld")
    status = one.run("--status")
    assert status.returncode == 1 and " unknown " in status.stdout
    assert "Unable to contact slurm controller" in status.stdout
    for words in (("--collect",), ("--slurm", ""), ("--slurm", "", "--per-trial"), ()):
        done = one.run(*words)
        assert done.returncode == 1 and "Unable to contact slurm controller" in done.stderr, words
    assert one.outcomes() == []
    one.slurm.start_controller()
    one.slurm.until(job, "RUNNING")
    assert one.collect() == (0, "Collected 0 trials; 1 job is pending or running.\n")


def test_slurm_has_forgotten_a_job_altogether(study, slurm_with):
    """Its script's last word has to do; where there is none, that is said."""
    one = study(slurm=slurm_with(nodes=1, forget_seconds=2, completions=False), seeds=2, seconds=LONG)
    cancelled, killed = one.submit("", "--per-trial")
    one.until_started()
    one.slurm.do("scancel", cancelled)
    one.until_started(2)
    one.slurm.kill_job(killed)
    one.until(lambda: not one.slurm.ask("squeue", "-h", "-t", "all").strip(), seconds=90)
    assert {row["state"] for row in one.status()} == {"ended: forgotten"}
    one.collect()
    assert one.outcomes() == [
        ("cancelled", "job 1 received SIGTERM; Slurm no longer reports why"),
        ("failed", "vanished: Slurm no longer knows job 2, and its script left no exit status"),
    ]


def test_a_number_that_slurm_has_given_again_is_not_taken_for_ours(study):
    """A controller that is killed before it has written down a job gives its number to the next."""
    one = study(seconds=LONG)
    other = one.slurm.do("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 100").strip()
    job = one.running()
    (path,) = one.results.glob("slurm/*/job.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"id": other}))
    assert one.status()[0]["state"] == "ended: forgotten"
    one.slurm.do("scancel", job)


def test_a_submitter_that_is_killed_before_it_knows_the_number_loses_no_job(study):
    one = study(seconds=LONG)
    (job,) = one.submit("", "--per-trial")
    (path,) = one.results.glob("slurm/*/job.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"id": ""}))
    one.until_started()
    assert one.status()[0]["job"] == job
    assert one.submit("", "--per-trial") == [], "it is not submitted again"
