"""Every way in which a trial can end, and the one word that it is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scaling_study.processes.process import Exit
from scaling_study.records import outcome
from scaling_study.records.outcome import TAIL_BYTES, Outcome, judge, tail
from scaling_study.records.schema import AveragingRound, Block, RankReport
from scaling_study.records.store import write_rank
from scaling_study.trial import Trial

Report = Callable[..., RankReport]
TWO = Trial(framework="horovod", workers=2, launcher="horovodrun", controller="mpi", device="cpu")
CLEAN = Exit(0, 12.5)
SILENT = "and no report from any rank"


def leave_reports(folder: Path, rank_report: Report, world_size: int = 2, **changes: Any) -> list[RankReport]:
    reports = [rank_report(rank=rank, **{"world_size": world_size, **changes}) for rank in range(world_size)]
    for report in reports:
        write_rank(folder, report)
    return reports


def leave_error(folder: Path, rank: int, at: float, message: str, oom: bool = False) -> None:
    said = {"rank": rank, "at": at, "type": "RuntimeError", "message": message, "oom": oom}
    (folder / "ranks").mkdir(exist_ok=True)
    (folder / "ranks" / f"error-{rank}.json").write_text(json.dumps({**said, "traceback": f"Traceback of {rank}"}))


# --- a whole measurement stands


@pytest.mark.parametrize(
    ("exit", "notes"),
    [
        (CLEAN, ()),
        (Exit(1, 9.0), ("complete; its processes then exited with 1",)),
        (Exit(-9, 9.0, killed_for_memory=True), ("complete; its processes then exited with -9",)),
        (Exit(-15, 600.0, timed_out=True), ("complete, but its processes did not exit and were terminated",)),
        (Exit(-15, 9.0, interrupted=True), ("complete, but its processes did not exit and were terminated",)),
    ],
)
def test_whole_reports_are_ok_however_the_processes_then_end(tmp_path, rank_report, exit, notes):
    reports = leave_reports(tmp_path, rank_report)
    leave_error(tmp_path, 1, 5.0, "terminate called without an active exception")
    assert judge(TWO, tmp_path, exit) == Outcome("ok", ranks=tuple(reports), notes=notes)


# --- a whole measurement of something else


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"world_size": 3}, "asked for 2 workers, rank 0 saw 3"),
        ({"device": "cuda:0"}, "asked for device cpu, rank 0 ran on cuda:0"),
        ({"samples_per_step": 16}, "asked for 32 samples a step, rank 0 took 16"),
        ({"backend": {"controller": "gloo"}}, "asked for controller mpi, Horovod reports gloo"),
        ({"step_seconds": []}, "rank 0 timed 0 steps, rank 0 0"),
        ({"step_seconds": [0.5, 0.0]}, "rank 0 reports step times that are not positive numbers"),
        ({"warmup_seconds": [-1.0]}, "rank 0 reports step times that are not positive numbers"),
        ({"step_seconds": [1e308, 1e308]}, "rank 0 reports step times whose sum is no number"),
        ({"samples_seen": 1_000_000}, "rank 0 reports 1000000 samples in 2 steps of 32"),
        ({"parameters": -1}, "rank 0 reports parameters: -1"),
        ({"energy_joules": -0.5}, "rank 0 reports energy_joules: -0.5"),
        ({"communication_bytes": {"allreduce": -8}}, "rank 0 reports communication_bytes of allreduce: -8"),
        ({"memory": {"optimizer": -8}}, "rank 0 reports memory of optimizer: -8"),
    ],
)
def test_reports_that_contradict_what_was_asked_are_a_failure(tmp_path, rank_report, changes, reason):
    leave_reports(tmp_path, rank_report, **changes)
    result = judge(TWO, tmp_path, CLEAN)
    assert (result.status, result.reason) == ("failed", reason)
    assert len(result.ranks) == 2, "what was measured is kept for whoever looks into it"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"samples_seen": 45}, ""),  # a batch that ended an epoch had 13
        ({"samples_seen": 0}, "rank 0 reports 0 samples in 2 steps of 32"),
        ({"samples_per_step": 16, "samples_seen": 64}, "asked for 32 samples a step, rank 0 took 16"),
    ],
)
def test_a_step_of_a_command_may_have_less_than_most(tmp_path, rank_report, changes, reason):
    leave_reports(tmp_path, rank_report, **changes)
    trial = Trial(framework="command", command="python t.py", workers=2, device="cpu")
    assert judge(trial, tmp_path, CLEAN).reason == reason


SHARED_CORES = "rank 0 and rank 1 of here share cores 2, 3"
SHARED_GPU = "rank 0 and rank 1 of here share GPU-b"


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ({"cores": [0, 1]}, {"cores": [2, 3]}, ""),
        ({"cores": [1, 2, 3]}, {"cores": [2, 3, 4]}, SHARED_CORES),
        ({"cores": [0]}, {"cores": [0], "host": "there"}, ""),  # each host numbers its own
        ({"cores": []}, {"cores": []}, ""),  # not pinned
        ({"cores": [], "gpu_uuids": ["GPU-b"]}, {"cores": [], "gpu_uuids": ["GPU-a", "GPU-b"]}, SHARED_GPU),
    ],
)
def test_workers_of_a_host_must_not_share_what_they_compute_on(tmp_path, rank_report, first, second, reason):
    for rank, changes in enumerate((first, second)):
        write_rank(tmp_path, rank_report(rank=rank, world_size=2, **changes))
    result = judge(TWO, tmp_path, CLEAN)
    why = f"{reason}: only a trial with oversubscribe may" if reason else ""
    assert (result.status, result.reason) == (("failed", why) if reason else ("ok", ""))
    assert judge(replace(TWO, oversubscribe=True), tmp_path, CLEAN).status == "ok"


def test_a_rank_that_contradicts_another_is_named(tmp_path: Path, rank_report: Report) -> None:
    write_rank(tmp_path, rank_report(world_size=2))
    write_rank(tmp_path, rank_report(rank=1, world_size=2, step_seconds=[0.5]))
    assert judge(TWO, tmp_path, CLEAN).reason == "rank 1 timed 1 steps, rank 0 2"
    (tmp_path / "ranks" / "rank-1.json").write_bytes((tmp_path / "ranks" / "rank-0.json").read_bytes())
    assert judge(TWO, tmp_path, CLEAN).reason == "the report of rank 1 is that of rank 0"


@pytest.mark.parametrize(
    ("trial", "changes"),
    [
        (TWO, {"backend": {"controller": "mpi"}}),
        (Trial(framework="single", allreduce="none", device="cpu"), {"backend": {"controller": "gloo"}}),
        (Trial(framework="single", allreduce="none", device="cuda"), {"device": "cuda:3"}),
    ],
)
def test_a_report_that_fits_is_ok(tmp_path: Path, rank_report: Report, trial: Trial, changes: dict[str, Any]) -> None:
    leave_reports(tmp_path, rank_report, world_size=trial.workers, **changes)
    assert judge(trial, tmp_path, CLEAN).status == "ok"


ROUND = AveragingRound(64, 2, 0.0, 0.0, 0.0, 0.0, "")
LEFT = "1 of 3 rounds were not averaged over all peers; round 1: a peer left"
APART = {"step_seconds": [0.1] * 3, "samples_per_step": 64, "samples_seen": 192}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"blocks": [Block(0, 2), Block(1, 1)]}, ""),
        ({"blocks": [Block(0, 2)]}, "reports 3 steps in blocks of [2]"),
        ({"blocks": [Block(0, 3), Block(1, 0)]}, "reports blocks of [3, 0] steps"),
        ({"blocks": [Block(0, 2), Block(0, 1)]}, "reports blocks of rounds [0, 0]"),
        ({"blocks": [Block(1, 2), Block(0, 1)]}, "reports blocks of rounds [1, 0]"),
        ({"rounds": [replace(ROUND, samples=48), ROUND, replace(ROUND, samples=80)]}, ""),
        ({"rounds": [replace(ROUND, samples=48), ROUND, ROUND]}, "reports 192 samples in rounds of 176"),
        ({"rounds": [replace(ROUND, samples=999), *[ROUND] * 3]}, ""),  # of a training that was warmed up
        ({"rounds": [ROUND]}, ""),  # of one that was gone on from: the others count as they were to be
        ({"rounds": [replace(ROUND, failure="a peer left"), ROUND, ROUND]}, LEFT),
        ({"rounds": [ROUND] * 3, "untimed_rounds_failure": "late"}, "a round beside the timed ones failed: late"),
    ],
)
def test_blocks_and_rounds_are_those_of_the_steps(rank_report: Report, changes: dict[str, Any], problem: str) -> None:
    report = replace(rank_report(rank=1), **APART, **changes)
    problems = list(outcome._with_itself(report))
    assert len(problems) == bool(problem) and all(each.startswith("rank 1") for each in problems)
    assert all(problem in each for each in problems)


# --- no whole measurement


def test_a_launcher_that_is_not_there_is_a_failure_with_its_error(tmp_path: Path) -> None:
    error = "/venv/bin/horovodrun: No such file or directory"
    expected = Outcome("failed", "the launcher could not be started", error)
    assert judge(TWO, tmp_path, Exit(None, 0.0, error=error)) == expected


LOST = "Connection closed by peer"


@pytest.mark.parametrize(
    ("errors", "exit", "status", "reason", "error"),
    [
        ([(0, 1.0, LOST, False)], {"interrupted": True, "killed_for_memory": True}, "cancelled", "interrupted", ""),
        ([(1, 1.0, "CUDA out of memory\nmore", True), (0, 2.0, LOST, False)], {},
         "oom", "rank 1: CUDA out of memory", "Traceback of 1"),
        ([], {"killed_for_memory": True}, "oom", "the kernel killed a process for memory", "Killed"),
        ([(0, 1.0, LOST, False)], {"killed_for_memory": True},
         "oom", f"the kernel killed a process for memory; rank 0: {LOST}", "Traceback of 0"),
        ([(0, 1.0, "out of memory", True)], {"timed_out": True}, "oom", "rank 0: out of memory", "Traceback of 0"),
        ([(0, 2.0, "out of memory", True), (1, 1.0, "shapes do not match", False)], {},
         "failed", "rank 1: shapes do not match", "Traceback of 1"),
        ([], {"timed_out": True}, "timeout", "not finished after 600 s", "Killed"),
        ([(0, 10.25, LOST, False), (1, 10.125, "\n\n  division by zero  \nmore", False)], {},
         "failed", "rank 1: division by zero", "Traceback of 1"),
        ([(0, 1.0, "x" * 500, False)], {}, "failed", f"rank 0: {'x' * 197}...", "Traceback of 0"),
        ([], {}, "failed", f"exit code 1 {SILENT}", "Killed"),
        ([], {"code": -11}, "failed", f"signal 11 {SILENT}", "Killed"),
        ([], {"code": 0}, "failed", "exited with 0 but left no whole report", "rank-0.json is missing\nKilled"),
    ],
)  # fmt: skip
def test_without_whole_reports_the_cause_is_named(tmp_path, errors, exit, status, reason, error):
    (tmp_path / "log.txt").write_text("Killed\n")
    for each in errors:
        leave_error(tmp_path, *each)
    result = judge(TWO, tmp_path, Exit(**{"code": 1, "seconds": 600.4, **exit}))
    assert (result.status, result.reason) == (status, reason) and result.error.endswith(error)


@pytest.mark.parametrize("spoil", ["NaN", "1e999", "cut", "gone"])
def test_one_report_that_is_not_whole_is_named_and_makes_a_failure(tmp_path, rank_report, spoil):
    leave_reports(tmp_path, rank_report, step_seconds=[0.5, 0.123456])
    path = tmp_path / "ranks" / "rank-1.json"
    text = path.read_text()
    path.write_text(text[:-10] if spoil == "cut" else text.replace("0.123456", spoil))
    if spoil == "gone":
        path.unlink()
    result = judge(TWO, tmp_path, CLEAN)
    assert (result.status, result.ranks) == ("failed", ()) and str(path) in result.error
    assert spoil == "gone" or result.reason.startswith("ranks/rank-1.json cannot be read: "), (
        "no folder of this machine"
    )


def test_garbled_errors_of_a_rank_are_passed_over(tmp_path: Path) -> None:
    leave_error(tmp_path, 0, 7.0, "the real one")
    whole = '{"rank": 1, "at": 1.0, "type": "", "message": "", "traceback": "", "stepping": true}'
    spoilt = [whole.replace(*change) for change in (("1.0", "NaN"), (": 1,", ': "1",'), ("true", '"no"'))]
    for garbage in ("{", "[]", '{"at": 1.0}', *spoilt):
        (tmp_path / "ranks" / "error-1.json").write_text(garbage)
        assert judge(TWO, tmp_path, Exit(1, 3.0)).reason == "rank 0: the real one", garbage


@pytest.mark.parametrize(
    ("model", "place"),
    [("my_model.py:load", " (my_model.py:7)"), ("models/my_model.py:load", ""), ("l.py:load", ""), ("resnet8", "")],
)
def test_an_error_in_a_model_of_ones_own_has_its_line(tmp_path: Path, model: str, place: str) -> None:
    leave_error(tmp_path, 0, 1.0, "name 'Trial' is not defined")
    path, frames = tmp_path / "ranks" / "error-0.json", [("a/my_model.py", 3), ("a/my_model.py", 7), ("torch.py", 9)]
    trace = "\n".join(f'  File "/home/{file}", line {line}, in load' for file, line in frames)
    path.write_text(json.dumps({**json.loads(path.read_text()), "traceback": trace}))
    said = judge(replace(TWO, model=model), tmp_path, Exit(1, 3.0)).reason
    assert said == f"rank 0: name 'Trial' is not defined{place}"


def test_the_end_of_a_long_log_is_quoted_and_odd_bytes_survive(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert tail(log) == ""
    log.write_bytes(b"x" * 100_000 + b"\xff last")
    assert tail(log) == "x" * (TAIL_BYTES - 6) + "\ufffd last"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("[rank0]: OSError: AF_UNIX path too long\nTraceback", "OSError: AF_UNIX path too long"),
        ("ValueError: first\nRuntimeError: second\n", "RuntimeError: second"),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n==\nx failed\n", ""),
        ("all is well", ""),
    ],
)
def test_the_last_exception_of_a_log_is_quoted(log: str, said: str) -> None:
    assert outcome.last_exception(log) == said


def test_a_rank_on_a_gpu_that_is_not_visible_is_named(rank_report):
    ranks = [rank_report(gpu_uuids=["GPU-a"]), rank_report(rank=1, gpu_uuids=["GPU-b", "MIG-c"])]
    assert outcome.foreign_gpus(ranks, {"GPU-a": "H100", "GPU-b": "H100"}) == outcome.foreign_gpus(ranks, {}) == ""
    said = outcome.foreign_gpus(ranks, {"GPU-a": "H100"})
    assert said == "rank 1 ran on GPU-b, which CUDA_VISIBLE_DEVICES does not name"
