"""Studies on a real Slurm (22.05 or later), made here by slurm_daemons.py: submitted, hit, collected."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slurm_daemons
from faults import planted_checkout
from slurm_daemons import Slurm
from slurm_study import Study

WHY_NOT = slurm_daemons.why_not()
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]
LONG = 300.0  # seconds of a trial that is to be hit


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted_checkout.make(tmp_path_factory.mktemp("checkout") / "copy")


@pytest.fixture(scope="module")
def shared_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm_daemons.running(tmp_path_factory.mktemp("slurm"), nodes=4) as slurm:
        yield slurm


@pytest.fixture
def study(tmp_path: Path, checkout: Path, shared_slurm: Slurm) -> Iterator[Callable[..., Study]]:
    """study(seeds=1, seconds=0.2, ..., slurm=another): on four nodes with a core each."""
    made: list[Study] = []

    def make(slurm: Slurm = shared_slurm, **how: object) -> Study:
        made.append(Study(tmp_path, checkout, slurm, **how))  # type: ignore[arg-type]
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


# --- the Slurm of these tests


def test_it_is_up_in_no_time_and_gone_with_all_that_ran_in_it(tmp_path):
    start = time.monotonic()
    with slurm_daemons.running(tmp_path / "slurm", nodes=3) as slurm:
        assert time.monotonic() - start < 10.0  # 0.2 s where nothing else runs
        slurm.do("sbatch", "-o", str(tmp_path / "out"), "--wrap", "exec sleep 4242")
        slurm.until("1", "RUNNING")
        inside = slurm._namespace().children(recursive=True)
        assert sum(process.name() in ("slurmctld", "slurmd") for process in inside) == 4
    assert not [process for process in inside if process.is_running() and process.status() != "zombie"]


# --- submitting


def test_what_is_printed_is_what_would_be_submitted(study):
    one = study()
    done = one.run("--slurm", "partition=main,nodes=1,time=0:10:00", "--where", "seed=0", "--slurm-print")
    assert done.returncode == 0
    expected = f"""\
#!/bin/bash
# tiny: all of its trials in one job
# Written by `run_sweep.py --slurm`, which submits it with sbatch. It can also be edited and submitted by hand.
#SBATCH --job-name=tiny.HEX
#SBATCH --output="{one.results}/slurm/sweep-1/output.txt"
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --partition=main
#SBATCH --nodes=1
#SBATCH --time=0:10:00
"""
    said = re.sub(r"tiny\.[0-9a-f]{8}", "tiny.HEX", done.stdout)
    assert said.startswith(expected)
    assert f"cd {one.folder} || exit\n" in said
    assert f"{' '.join(one._door)} --where seed=0 &\n" in said
    assert not one.results.exists() and not one.slurm.ask("squeue", "-h").strip()


def test_a_printed_script_can_be_edited_and_submitted_by_hand(study, tmp_path):
    one = study()
    text = one.run("--slurm", "", "--slurm-print").stdout.replace("set -e\n", "set -e\necho mine\n")
    (tmp_path / "mine.sh").write_text(text)
    (one.results / "slurm" / "sweep-1").mkdir(parents=True)
    job = one.by_hand("sbatch", "--parsable", str(tmp_path / "mine.sh"))
    one.slurm.until(job, "COMPLETED")
    assert one.outcomes() == [("ok", "")]
    assert "mine\n" in (one.results / "slurm" / "sweep-1" / "output.txt").read_text()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ("partiton=main", 2, "did you mean 'partition'?"),
        ("time=2h", 2, "like 2:00:00"),
        ("partition=nowhere", 1, "sbatch: invalid partition specified: nowhere"),
        ("mem=900G", 1, "sbatch: Memory specification can not be satisfied"),
    ],
)
def test_options_that_are_wrong_leave_nothing(study, options, code, said):
    one = study()
    done = one.run("--slurm", options)
    assert done.returncode == code and said in done.stderr
    assert not list(one.results.glob("slurm/*")) and not one.slurm.ask("squeue", "-h").strip()


def test_a_study_that_is_wrong_is_not_submitted(study):
    one = study()
    (one.folder / "study.yaml").write_text("study: tiny\nsweeps: [{framework: singel}]\n")
    assert one.run("--slurm", "").returncode == 2 and not one.results.exists()


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


def test_each_job_asks_for_what_its_trial_needs(study):
    one = study()
    text = one.run("--slurm", "nodes=4,time=0:05:00", "--per-trial", "--slurm-print").stdout
    assert "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=1\n" in text


def test_a_table_of_what_waits_and_runs(study):
    one = study(seeds=5, seconds=LONG)
    numbers = one.submit("", "--per-trial")
    one.until_started(4)
    rows = {row["job"]: row for row in one.status()}
    assert sorted(row["state"] for row in rows.values()) == ["queued"] + ["running"] * 4
    assert {rows[job]["nodes"] for job in numbers[:4]} == {"node1", "node2", "node3", "node4"}
    one.until(lambda: {row["job"]: row["reason"] for row in one.status()}[numbers[-1]] == "Resources")
    shown = one.run("--status").stdout
    assert re.search(rf"{numbers[-1]}\s+queued\s+Resources\s+0:00\s+single-resnet8", shown)


def test_trials_fail_time_out_and_are_tried_as_in_any_sweep(study):
    one = study(seeds=3, timeout=1.0, book={0: "silence", 1: "loop"})
    one.submit("", "--per-trial")
    one.until(lambda: len(one.records()) == 3)
    assert one.outcomes() == [
        ("failed", "exited with 0 but left no whole report"), ("timeout", "not finished after 1 s"), ("ok", ""),
    ]  # fmt: skip


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
    ranks = [process for process in one.slurm.processes(job) if "torch_ddp.py" in " ".join(process.cmdline())]
    assert ranks == []
    one.slurm.until(job, "FAILED", seconds=120)  # a sweep with a trial that is not ok exits with 1


def test_outside_of_a_job_srun_is_unsupported(study):
    one = study(sweep=BY_SRUN)
    assert one.run().returncode == 0
    assert one.outcomes() == [("unsupported", "launcher=srun needs a Slurm job: --slurm submits one")]


# --- what happens to jobs


def hit(one: Study, how: Callable[[str], object], ends: str) -> tuple[str, str]:
    """The outcome of a trial whose job is hit while it runs."""
    (job,) = one.submit("", "--per-trial")
    one.until_started()
    how(job)
    one.slurm.until(job, ends)
    code, _ = one.collect()
    assert code == 1
    ((status, reason),) = one.outcomes()
    assert one.records()[0].job["job"] == job
    return status, re.sub(r" \d+:\d\d\b", " M:SS", reason.replace(f"job {job}", "job N"))


def test_cancelled(study):
    one = study(seconds=LONG)
    assert hit(one, lambda job: one.slurm.do("scancel", job), "CANCELLED") == (
        "cancelled", "cancelled: job N after M:SS",
    )  # fmt: skip


def test_what_was_cancelled_is_submitted_again_without_being_asked_for(study):
    one = study()
    (job,) = one.submit("", "--per-trial", PLANTED_SECONDS=str(LONG))
    one.until_started()
    one.slurm.do("scancel", job)
    one.slurm.until(job, "CANCELLED")
    (again,) = one.submit("", "--per-trial")  # which collects first
    one.slurm.until(again, "COMPLETED")
    assert [(record.status, record.job["job"]) for record in one.records()] == [("ok", again)]


def test_cancelled_before_it_started(study):
    one = study(seconds=LONG)
    one.slurm.do("sbatch", "--exclusive", "--nodes=4", "--output=/dev/null", "--wrap", "sleep 100")
    (job,) = one.submit("", "--per-trial")
    one.slurm.until(job, "PENDING")
    one.slurm.do("scancel", job)
    one.collect()
    assert one.outcomes() == [("cancelled", f"cancelled: job {job}, before it started")]
    assert not one.starts.exists()


def test_preempted(study):
    one = study(seconds=LONG)

    def urgent(job: str) -> None:
        one.slurm.do("sbatch", "--partition=urgent", "--nodes=4", "--output=/dev/null", "--wrap", "sleep 1")

    assert hit(one, urgent, "PREEMPTED") == ("cancelled", "preempted: job N after M:SS")


def test_an_administrator_takes_the_node_away(study):
    one = study(seconds=LONG)

    def down(job: str) -> None:
        node = one.slurm.do("squeue", "-h", "-j", job, "-o", "%N").strip()
        one.slurm.do("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    status, reason = hit(one, down, "NODE_FAIL")
    assert status == "failed" and re.fullmatch(r"node_failed: node\d, job N after M:SS", reason)


def test_a_node_loses_its_power(study, slurm_with):
    one = study(slurm=slurm_with(nodes=1), seconds=LONG)
    (job,) = one.submit("", "--per-trial")
    one.until_started()
    one.slurm.kill_node("node1")
    one.slurm.until(job, "NODE_FAIL", seconds=60)  # Slurm takes some 28 s to be sure
    one.collect()
    ((status, reason),) = one.outcomes()
    assert status == "failed" and reason.startswith("node_failed: node1, job 1 after")


def test_a_time_limit_ends_a_trial_and_a_sweep(study, slurm_with):
    """The shortest limit is a minute, and Slurm looks every half."""
    one = study(slurm=slurm_with(nodes=1), seconds=LONG)
    (job,) = one.submit("time=1", "--per-trial")
    one.slurm.until(job, "TIMEOUT", seconds=120)
    one.collect()
    ((status, reason),) = one.outcomes()
    assert status == "timeout" and re.fullmatch(r"time limit: job 1 was ended after 1:\d\d", reason)


def test_more_memory_than_was_asked_for(study, slurm_with):
    """Without cgroups Slurm kills the whole job, its driver included."""
    one = study(slurm=slurm_with(nodes=1), book={0: "hold:1500"})
    (job,) = one.submit("mem=1000M", "--per-trial")
    one.slurm.until(job, "FAILED")
    one.collect()
    assert one.outcomes() == [("oom", "job 1 exceeded its memory limit")]
    assert "Exceeded job memory limit" in one.records()[0].error


def test_more_memory_than_a_cgroup_allows(study, slurm_with):
    """With cgroups the kernel kills the rank alone, and the driver in the job lives to say so."""
    if not Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists():
        pytest.skip("no cgroup of version 1 limits memory here")
    one = study(slurm=slurm_with(nodes=1, cgroups=True), book={0: "hold:1500"})
    (job,) = one.submit("mem=1000M", "--per-trial")
    one.slurm.until(job, "OUT_OF_MEMORY", "COMPLETED")
    assert one.outcomes() == [("oom", "the kernel killed a process for memory")]


def test_setup_that_fails_is_said_to_have_failed(study, tmp_path):
    one = study()
    (tmp_path / "there.yaml").write_text("setup: ['module load no/such/thing']\nslurm: {partition: main}\n")
    (job,) = one.submit("", "--per-trial", "--machine", "./there.yaml")
    one.slurm.until(job, "FAILED")
    one.collect()
    ((status, reason),) = one.outcomes()
    assert (status, reason) == ("failed", "setup: the machine file's lines ended with exit code 127")
    assert "module: command not found" in one.records()[0].error


# --- a Slurm that loses its memory, or does not answer


def test_the_controller_is_restarted(study, slurm_with):
    one = study(slurm=slurm_with(nodes=1), seconds=5.0)
    (job,) = one.submit("", "--per-trial")
    one.until_started()
    one.slurm.restart_controller()
    one.slurm.until(job, "COMPLETED")
    assert one.outcomes() == [("ok", "")]


def test_the_controller_does_not_answer_for_a_while(study, slurm_with):
    one = study(slurm=slurm_with(nodes=1), seconds=LONG)
    (job,) = one.submit("", "--per-trial")
    one.until_started()
    one.slurm.kill_controller()
    status = one.run("--status")
    assert (
        status.returncode == 1
        and "Unable to contact slurm controller" in status.stdout
        and " unknown " in status.stdout
    )
    for words in (("--collect",), ("--slurm", ""), ("--slurm", "", "--per-trial"), ()):
        done = one.run(*words)
        assert done.returncode == 1 and "Unable to contact slurm controller" in done.stderr, words
    assert one.outcomes() == []
    one.slurm.start_controller()
    one.slurm.until(job, "RUNNING")
    assert one.collect() == (0, "Collected 0 trials; 1 job is pending or running.\n")


def test_slurm_has_forgotten_a_job_that_its_file_of_ended_jobs_knows(study, slurm_with):
    one = study(slurm=slurm_with(nodes=1, forget_seconds=2), seconds=LONG)
    (job,) = one.submit("", "--per-trial")
    one.until_started()
    one.slurm.do("scancel", job)
    one.until(lambda: not one.slurm.state(job), seconds=90)
    one.collect()
    ((status, reason),) = one.outcomes()
    assert status == "cancelled" and reason.startswith("cancelled: job 1 after")


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
    (job,) = one.submit("", "--per-trial")
    one.until_started()
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
