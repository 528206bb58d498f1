"""Every framework by every launcher of its own, really started: what a rank cannot know unless its launcher told it.

The doctor starts them all, those of a launcher but MPI in one launch, and what it answers is asked of the same trials.
What a framework counts, keeps and trains is asked of ranks that are forked (tests/forked.py), in the other files here.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from analysis.frames import measured
from scaling_study.commands import doctor
from scaling_study.frameworks import FRAMEWORKS, Framework
from scaling_study.launch import launchers
from scaling_study.machine import Machine, this_machine
from scaling_study.measure.inspected import watchable
from scaling_study.processes.process import Exit
from scaling_study.records import outcome
from scaling_study.records.outcome import Outcome
from scaling_study.records.schema import RankReport, samples_per_second
from scaling_study.stats.network import COLLECTIVES
from scaling_study.study.support import ALONE
from scaling_study.trial import Trial, Window

ELSEWHERE = {  # started by tests of their own, or by none on a machine like this
    ("deepspeed_zero", "deepspeed"): "test_data_parallel.py",
    ("torch_dp", "python"): "test_data_parallel.py",  # needs two GPUs: a stand-in
    ("hivemind", "torchrun"): "test_hivemind.py",  # its steps are rounds of no fixed number of samples
    ("lightning_fsdp", "torchrun"): "test_data_parallel.py",  # needs a GPU: its check for one stepped over
}
BY_SLURM = "srun"  # tests/cluster
LAUNCHES = [
    (framework, launcher)
    for framework, entry in FRAMEWORKS.items()
    for launcher in entry.launchers
    if launcher != BY_SLURM and entry.trains and (framework, launcher) not in ELSEWHERE
]
PROBES = {  # what the probe's ranks report of their library
    ("torchrun", None): {"backend": "gloo"},
    ("mpirun", None): {"library": "Open MPI"},
    ("horovodrun", "mpi"): {"controller": "mpi", "operations": "host"},
    ("horovodrun", "gloo"): {"controller": "gloo", "operations": "host"},
}
CASES = [(*launch, None) for launch in LAUNCHES if launch != ("horovod", "horovodrun")] + [
    ("horovod", "horovodrun", "mpi"), ("horovod", "horovodrun", "gloo"),
]  # fmt: skip
CRASHES = """
from scaling_study.worker.script import run


def join(trial):
    raise ValueError("the planted bug")


if __name__ == "__main__":
    run("torch_ddp", join, build=None)
"""
STALE = {  # that a shell still holds; every trial here starts as if it did not
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "PET_NNODES": "2",
    "HOROVOD_RANK": "0", "HOROVOD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMP_PROC_BIND": "close",
    "SLURM_JOB_ID": "41", "SLURM_CPUS_ON_NODE": "1",
}  # fmt: skip
PARAMETERS, FIRST_LAYER = 78_042, 3 * 3 * 3 * 16  # of resnet8
STEPS, ROUNDS, CALLS = 8, 1, 3  # of a trial that trains; of each row of a probe, of which there are 48


def carrier(trial: Trial) -> str:
    """Of a step's gradients, of two ranks on this host."""
    if trial.processes == 1:
        return ""
    mpi = trial.controller == "mpi" or trial.launcher == "mpirun"
    return "MPI over shared memory" if mpi else "Gloo over TCP"


def test_none_is_forgotten() -> None:
    known = {(framework, launcher) for framework, entry in FRAMEWORKS.items() for launcher in entry.launchers}
    probes = {("network_probe", launcher) for launcher, _ in PROBES}
    assert known == {*LAUNCHES, *ELSEWHERE, *probes} | {launch for launch in known if launch[1] == BY_SLURM}
    assert len(CASES) >= 12


@dataclass
class Examined:
    """What the doctor printed, and what each trial that it started has left."""

    code: int
    answers: dict[str, dict[str, str]]  # by what was asked
    last_line: str
    outcomes: dict[str, Outcome]
    logs: dict[str, Path]


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> Examined:
    """One run of the doctor, with a few steps a trial and with two frameworks more, which do not work."""
    folder = tmp_path_factory.mktemp("examined")
    (folder / "crash.py").write_text(CRASHES)
    ddp, answer_of, cases = FRAMEWORKS["torch_ddp"], doctor._answer, doctor.cases
    outcomes: dict[str, Outcome] = {}
    logs: dict[str, Path] = {}

    def kept(trial: Trial, machine: Machine, outcome: Outcome, log: Path) -> doctor.Answer:
        outcomes[doctor._name(trial)], logs[doctor._name(trial)] = outcome, log
        return answer_of(trial, machine, outcome, log)

    def shortly(machine: Machine) -> Iterator[Trial]:
        for trial in cases(machine):
            table = FRAMEWORKS[trial.framework]
            steps = (ROUNDS if table.has_rounds else STEPS) if table.trains else CALLS
            yield replace(trial, window=Window(1, steps, 0.0, None, steps))

    printed, shown = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(shown):
        for name, value in STALE.items():
            patch.setenv(name, value)
        patch.setattr("tempfile.tempdir", str(folder))  # a failure's folder is kept
        patch.setattr(doctor, "cases", shortly)
        patch.setattr(doctor, "_answer", kept)
        crash = Framework("", str(folder / "crash.py"), ("torchrun",), ("torch",), ddp.axes)
        missing_library = replace(ddp, needs=("no-such-library", "torch"), launchers=("torchrun",))
        patch.setitem(FRAMEWORKS, "planted_crash", crash)  # type: ignore[arg-type]
        patch.setitem(FRAMEWORKS, "planted_missing", missing_library)  # type: ignore[arg-type]
        code = doctor.main(as_json=True)
        answers = {answer["what"]: answer for answer in json.loads(printed.getvalue())}
    return Examined(code, answers, shown.getvalue().splitlines()[-1], outcomes, logs)


def tried(examined: Examined, *asked: str | None) -> tuple[Trial, Sequence[RankReport], str]:
    """The doctor's trial of a framework, a launcher and a controller, what its ranks report and what was printed."""
    framework, launcher, controller = asked
    (trial,) = (
        trial
        for trial in doctor.cases(this_machine())
        if (trial.framework, trial.launcher, trial.input) == (framework, launcher, None)
        and controller in (None, trial.controller)
    )
    if why := doctor.reason(trial, this_machine(), ALONE):
        pytest.skip(why)
    result = examined.outcomes[doctor._name(trial)]
    assert (result.status, result.reason) == ("ok", "")
    return trial, result.ranks, examined.logs[doctor._name(trial)].read_text()


@pytest.mark.slow
def test_every_answer_of_the_doctor_is_true(examined: Examined) -> None:
    machine = this_machine()
    for trial in doctor.cases(machine):
        answer = examined.answers[doctor._name(trial)]
        here = trial.launcher != BY_SLURM and not doctor.reason(trial, machine, ALONE)
        assert answer["answer"] == (doctor.WORKS if here else doctor.NOT_HERE), answer
        assert here == (doctor._name(trial) in examined.outcomes), "nothing is answered untried"
    assert [what for what in examined.answers if BY_SLURM in what] and examined.code == 1
    absent = examined.answers["planted_missing: torchrun"]
    assert (absent["answer"], absent["detail"]) == (doctor.NOT_HERE, "no-such-library is not installed: make setup")
    crashed = examined.answers["planted_crash: torchrun"]
    file, _, line = crashed["log"].rpartition(":")
    assert crashed["answer"] == doctor.FAILS
    assert Path(file).parent.name == "alone", "what fails beside others is tried by itself"
    assert Path(file).read_text().splitlines()[int(line) - 1].endswith("ValueError: the planted bug")
    assert examined.last_line.endswith(f"Next: look at {file}:{line}")


def started_alone(trial: Trial, folder: Path) -> Outcome:
    """What a trial leaves that is started as a person starts it, with the command that a plan prints."""
    folder.mkdir(exist_ok=True)
    command = launchers.command(trial, record=folder)
    env = {**os.environ, **command.env, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command.argv, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False)
    return outcome.judge(trial, folder, Exit(done.returncode, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "launcher", "controller"), CASES)
def test_its_ranks_meet_measure_and_report(
    examined: Examined, framework: str, launcher: str, controller: str | None, tmp_path: Path
) -> None:
    trial, ranks, log = tried(examined, framework, launcher, controller)
    total = re.search(rf"Total (?:image|sequence)s/sec on {trial.workers} worker\(s\): ([\d.]+)", log)
    assert f"95 % interval within this run of {STEPS} steps (too short to rely on)" in log

    speed = samples_per_second((rank.samples_seen for rank in ranks), (rank.window_seconds for rank in ranks))
    assert total and float(total[1]) == pytest.approx(speed, abs=0.06), "what is printed is what the record says"
    assert [rank.rank for rank in ranks] == list(range(trial.processes)) == [rank.local_rank for rank in ranks]
    assert {(rank.world_size, len(rank.step_seconds)) for rank in ranks} == {(trial.processes, STEPS)}
    if controller:
        assert {rank.backend["controller"] for rank in ranks} == {controller}, "what Horovod itself reports"
    seen = measured.carrier(ranks)
    for attempt in range(3):
        if seen != carrier(trial):  # another test's messages were sent in that moment
            seen = measured.carrier(started_alone(trial, tmp_path / str(attempt)).ranks)
    assert seen == carrier(trial)
    shares = [rank.overlap for rank in ranks if rank.overlap is not None]
    assert len(shares) == (0 if trial.processes == 1 or FRAMEWORKS[framework].cuts_model else 2)
    if framework == "mpi_allreduce":
        # Not 0: spans of calls are by time.time_ns, of operators by the profiler's converted ticks, microseconds apart.
        assert max(shares) < 0.05, "it computes nothing while it waits"
    elif framework == "horovod":  # DDP has one bucket for so small a model, and sends it when backward is over
        assert max(shares) > 0.05
    if len(ranks) == 2 and (os.cpu_count() or 1) >= 2:
        assert not set(ranks[0].cores) & set(ranks[1].cores)
    if not FRAMEWORKS[framework].shares_batches:
        assert len({rank.loss_last for rank in ranks}) == len(ranks), "each its own share of the data"
    for rank in ranks if watchable(trial) else ():
        assert rank.phases is not None and rank.phases.steps == 2, "the watched step is none of these"
        assert sum(size for size, _ in rank.gradients) == PARAMETERS * 4
        seconds = [seconds for _, seconds in rank.gradients]
        assert seconds == sorted(seconds) and seconds[0] > 0
        assert max(size for size, _ in rank.gradients[-3:]) == FIRST_LAYER * 4  # the first layers come last


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "controller"), PROBES)
def test_a_person_gets_the_table_of_the_network_that_they_know(
    examined: Examined, launcher: str, controller: str | None
) -> None:
    trial, ranks, log = tried(examined, "network_probe", launcher, controller)
    for name in COLLECTIVES:
        assert log.count(f"# {name}, cores idle") == log.count(f"# {name}, cores busy") == 1
    assert log.count("#       size        count    type  redop  root     time   algbw   busbw #wrong") == 8
    assert log.count("# Out of bounds values : 0 OK") == 8
    assert log.count("# latency ") == 8, "a fit for each"
    for key, value in PROBES[launcher, controller].items():
        assert str(ranks[0].backend[key]).startswith(value)
    sizes = [4**power for power in range(5, 11)]  # to trial.max_bytes
    asked = [(busy, name, size) for busy in (False, True) for name in COLLECTIVES for size in sizes]
    assert trial.max_bytes == sizes[-1] and len(ranks) == 2
    for rank in ranks:
        assert [(row.busy, row.collective, row.bytes) for row in rank.network] == asked
        assert all(row.correct and len(row.seconds) == CALLS for row in rank.network)
        assert len(rank.step_seconds) == len(asked) and rank.cores and rank.samples_seen == 0
    assert not set(ranks[0].cores) & set(ranks[1].cores) or os.cpu_count() == 1
