"""Every way in which a trial can end, and the one word that it is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scaling_study.processes.process import Exit
from scaling_study.records.outcome import TAIL_BYTES, Outcome, errors, judge, tail
from scaling_study.records.store import RankReport, write_rank
from scaling_study.trial import Trial

Report = Callable[..., RankReport]
TWO = Trial(framework="horovod", workers=2, launcher="horovodrun", controller="mpi", device="cpu")
CLEAN = Exit(0, 12.5)


def leave_reports(folder: Path, rank_report: Report, world_size: int = 2, **changes: Any) -> list[RankReport]:
    reports = [rank_report(rank=rank, world_size=world_size, **changes) for rank in range(world_size)]
    for report in reports:
        write_rank(folder, report)
    return reports


def leave_error(folder: Path, rank: int, at: float, message: str, oom: bool = False) -> None:
    said = {"rank": rank, "at": at, "type": "RuntimeError", "message": message, "oom": oom}
    (folder / "ranks").mkdir(exist_ok=True)
    (folder / "ranks" / f"error-{rank}.json").write_text(json.dumps({**said, "traceback": f"Traceback of {rank}"}))


# --- a whole measurement stands ---


def test_whole_reports_and_a_clean_exit_are_ok(tmp_path: Path, rank_report: Report) -> None:
    reports = leave_reports(tmp_path, rank_report)
    assert judge(TWO, tmp_path, CLEAN) == Outcome("ok", ranks=tuple(reports))


@pytest.mark.parametrize(
    ("exit", "note"),
    [
        (Exit(1, 9.0), "complete; its processes then exited with 1"),
        (Exit(-6, 9.0), "complete; its processes then exited with -6"),
        (Exit(-9, 9.0, killed_for_memory=True), "complete; its processes then exited with -9"),
        (
            Exit(-15, 600.0, timed_out=True),
            "complete, but its processes did not exit and were terminated",
        ),
        (
            Exit(-15, 9.0, interrupted=True),
            "complete, but its processes did not exit and were terminated",
        ),
    ],
)
def test_a_crash_after_the_measurement_is_ok_with_a_note(
    tmp_path: Path, rank_report: Report, exit: Exit, note: str
) -> None:
    reports = leave_reports(tmp_path, rank_report)
    assert judge(TWO, tmp_path, exit) == Outcome("ok", ranks=tuple(reports), notes=(note,))


def test_a_ranks_complaint_at_exit_does_not_take_its_measurement_away(tmp_path: Path, rank_report: Report) -> None:
    leave_reports(tmp_path, rank_report)
    leave_error(tmp_path, 1, 5.0, "terminate called without an active exception")
    assert judge(TWO, tmp_path, Exit(1, 9.0)).status == "ok"


# --- a whole measurement of something else ---


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"world_size": 3}, "asked for 2 workers, rank 0 saw 3"),
        ({"device": "cuda:0"}, "asked for device cpu, rank 0 ran on cuda:0"),
        ({"samples_per_step": 16}, "asked for 32 samples a step, rank 0 took 16"),
        ({"backend": {"controller": "gloo"}}, "asked for controller mpi, Horovod reports gloo"),
        ({"step_seconds": []}, "rank 0 timed 0 steps, rank 0 0"),
        ({"step_seconds": [0.5, 0.0]}, "rank 0 reports step times that are not positive numbers"),
        ({"step_seconds": [0.5, -0.1]}, "rank 0 reports step times that are not positive numbers"),
        ({"warmup_seconds": [-1.0]}, "rank 0 reports step times that are not positive numbers"),
        ({"step_seconds": [1e308, 1e308]}, "rank 0 reports step times whose sum is no number"),
        ({"samples_seen": 1_000_000}, "rank 0 reports 1000000 samples in 2 steps of 32"),
        ({"parameters": -1}, "rank 0 reports parameters: -1"),
        ({"peak_memory_bytes": -5}, "rank 0 reports peak_memory_bytes: -5"),
        ({"energy_joules": -0.5}, "rank 0 reports energy_joules: -0.5"),
        ({"communication_bytes": {"allreduce": -8}}, "rank 0 reports communication_bytes of allreduce: -8"),
        ({"memory": {"optimizer": -8}}, "rank 0 reports memory of optimizer: -8"),
    ],
)
def test_reports_that_contradict_what_was_asked_are_a_failure(
    tmp_path: Path, rank_report: Report, changes: dict[str, Any], reason: str
) -> None:
    for rank in range(2):
        write_rank(tmp_path, rank_report(rank=rank, **{"world_size": 2, **changes}))
    result = judge(TWO, tmp_path, CLEAN)
    assert (result.status, result.reason) == ("failed", reason)
    assert len(result.ranks) == 2, "what was measured is kept for whoever looks into it"


SHARED_CORES = "rank 0 and rank 1 of here share cores 2, 3"
SHARED_GPU = "rank 0 and rank 1 of here share GPU-b"


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ({"cores": [0, 1]}, {"cores": [2, 3]}, ""),
        ({"cores": [1, 2, 3]}, {"cores": [2, 3, 4]}, SHARED_CORES),
        ({"cores": [0]}, {"cores": [0], "host": "there"}, ""),  # each host numbers its own
        ({"cores": []}, {"cores": []}, ""),  # not pinned
        ({"cores": [], "gpu_uuids": ["GPU-a"]}, {"cores": [], "gpu_uuids": ["GPU-b"]}, ""),
        ({"cores": [], "gpu_uuids": ["GPU-b"]}, {"cores": [], "gpu_uuids": ["GPU-a", "GPU-b"]}, SHARED_GPU),
    ],
)
def test_workers_of_a_host_must_not_share_what_they_compute_on(
    tmp_path: Path, rank_report: Report, first: dict[str, Any], second: dict[str, Any], reason: str
) -> None:
    for rank, changes in enumerate((first, second)):
        write_rank(tmp_path, rank_report(rank=rank, world_size=2, **changes))
    result = judge(TWO, tmp_path, CLEAN)
    why = f"{reason}: only a trial with oversubscribe may" if reason else ""
    assert (result.status, result.reason) == (("failed", why) if reason else ("ok", ""))
    assert judge(replace(TWO, oversubscribe=True), tmp_path, CLEAN).status == "ok"


def test_the_rank_that_contradicts_is_named(tmp_path: Path, rank_report: Report) -> None:
    write_rank(tmp_path, rank_report(world_size=2))
    write_rank(tmp_path, rank_report(rank=1, world_size=2, step_seconds=[0.5]))
    result = judge(TWO, tmp_path, CLEAN)
    assert (result.status, result.reason) == ("failed", "rank 1 timed 1 steps, rank 0 2")


def test_two_reports_of_one_rank_are_not_two_ranks(tmp_path: Path, rank_report: Report) -> None:
    leave_reports(tmp_path, rank_report)
    (tmp_path / "ranks" / "rank-1.json").write_bytes((tmp_path / "ranks" / "rank-0.json").read_bytes())
    assert judge(TWO, tmp_path, CLEAN).status == "failed"


@pytest.mark.parametrize("word", ["NaN", "Infinity", "1e999"])
def test_step_times_that_are_no_numbers_are_a_failure(tmp_path: Path, rank_report: Report, word: str) -> None:
    leave_reports(tmp_path, rank_report, step_seconds=[0.5, 0.123456])
    path = tmp_path / "ranks" / "rank-1.json"
    path.write_text(path.read_text().replace("0.123456", word))
    result = judge(TWO, tmp_path, CLEAN)
    assert result.status == "failed"
    assert result.reason.startswith(f"ranks/rank-1.json cannot be read: {word} is ")


def test_a_controller_is_only_compared_where_one_was_asked_for_and_reported(
    tmp_path: Path, rank_report: Report
) -> None:
    leave_reports(tmp_path, rank_report, backend={"controller": "mpi"})
    assert judge(TWO, tmp_path, CLEAN).status == "ok"
    single = Trial(framework="single", allreduce="none", device="cpu")
    leave_reports(tmp_path, rank_report, world_size=1, backend={"controller": "gloo"})
    assert judge(single, tmp_path, CLEAN).status == "ok"


def test_a_gpu_trial_may_run_on_any_gpu(tmp_path: Path, rank_report: Report) -> None:
    trial = Trial(framework="single", allreduce="none", device="cuda")
    leave_reports(tmp_path, rank_report, world_size=1, device="cuda:3")
    assert judge(trial, tmp_path, CLEAN).status == "ok"


# --- no whole measurement ---


def test_a_launcher_that_is_not_there_is_a_failure_with_its_error(tmp_path: Path) -> None:
    exit = Exit(None, 0.0, error="/venv/bin/horovodrun: No such file or directory")
    assert judge(TWO, tmp_path, exit) == Outcome(
        "failed", "the launcher could not be started", "/venv/bin/horovodrun: No such file or directory"
    )


def test_an_interrupted_trial_is_cancelled_whatever_its_ranks_then_said(tmp_path: Path) -> None:
    leave_error(tmp_path, 0, 1.0, "Connection closed by peer")
    exit = Exit(-15, 3.0, interrupted=True, killed_for_memory=True)
    assert judge(TWO, tmp_path, exit) == Outcome("cancelled", "interrupted")


def test_a_rank_that_says_so_ran_out_of_memory(tmp_path: Path) -> None:
    leave_error(tmp_path, 1, 1.0, "CUDA out of memory. Tried to allocate 2 GiB\nmore words", oom=True)
    leave_error(tmp_path, 0, 2.0, "Connection closed by peer [127.0.0.1]")
    assert judge(TWO, tmp_path, Exit(1, 3.0)) == Outcome(
        "oom", "rank 1: CUDA out of memory. Tried to allocate 2 GiB", "Traceback of 1"
    )


def test_a_process_that_the_kernel_killed_ran_out_of_memory(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("Killed\n")
    reason = "the kernel killed a process for memory"
    assert judge(TWO, tmp_path, Exit(137, 3.0, killed_for_memory=True)) == Outcome("oom", reason, "Killed")
    leave_error(tmp_path, 0, 1.0, "Connection closed by peer")  # kernels count for the whole machine: both are said
    result = judge(TWO, tmp_path, Exit(1, 3.0, killed_for_memory=True))
    assert (result.status, result.reason) == ("oom", f"{reason}; rank 0: Connection closed by peer")


def test_out_of_memory_that_then_hung_is_out_of_memory(tmp_path: Path) -> None:
    leave_error(tmp_path, 0, 1.0, "out of memory", oom=True)
    assert judge(TWO, tmp_path, Exit(-9, 600.0, timed_out=True)).status == "oom"


def test_a_peer_that_ran_out_of_memory_after_the_first_error_is_not_the_cause(tmp_path: Path) -> None:
    leave_error(tmp_path, 0, 2.0, "out of memory", oom=True)
    leave_error(tmp_path, 1, 1.0, "shapes do not match")
    result = judge(TWO, tmp_path, Exit(1, 3.0))
    assert (result.status, result.reason) == ("failed", "rank 1: shapes do not match")


def test_a_trial_that_hangs_timed_out(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("Steps 1-10\n")
    assert judge(TWO, tmp_path, Exit(-9, 600.4, timed_out=True)) == Outcome(
        "timeout", "not finished after 600 s", "Steps 1-10"
    )


def test_the_first_error_by_time_wins(tmp_path: Path) -> None:
    leave_error(tmp_path, 0, 10.25, "Connection closed by peer")
    leave_error(tmp_path, 1, 10.125, "\n\n  division by zero  \nsecond line")
    leave_error(tmp_path, 2, 99.0, "me too")
    assert judge(TWO, tmp_path, Exit(1, 3.0)) == Outcome("failed", "rank 1: division by zero", "Traceback of 1")


def test_a_long_message_is_cut_in_the_reason_and_kept_in_the_error(tmp_path: Path) -> None:
    leave_error(tmp_path, 0, 1.0, "x" * 500)
    result = judge(TWO, tmp_path, Exit(1, 3.0))
    assert result.reason == "rank 0: " + "x" * 197 + "..."
    assert result.error == "Traceback of 0"


def test_a_success_without_reports_is_a_failure_that_names_the_missing_file(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("all fine\n")
    result = judge(TWO, tmp_path, CLEAN)
    assert (result.status, result.reason) == ("failed", "exited with 0 but left no whole report")
    assert result.error == f"{tmp_path / 'ranks' / 'rank-0.json'} is missing\nall fine"


def test_one_missing_rank_is_missing_all(tmp_path: Path, rank_report: Report) -> None:
    write_rank(tmp_path, rank_report(world_size=2))
    result = judge(TWO, tmp_path, CLEAN)
    assert (result.status, result.ranks) == ("failed", ())
    assert "rank-1.json is missing" in result.error


def test_a_report_that_is_cut_off_is_no_report(tmp_path: Path, rank_report: Report) -> None:
    leave_reports(tmp_path, rank_report)
    path = tmp_path / "ranks" / "rank-1.json"
    path.write_bytes(path.read_bytes()[:-10])
    result = judge(TWO, tmp_path, CLEAN)
    assert result.status == "failed"
    assert result.reason.startswith("ranks/rank-1.json cannot be read: ")
    assert str(tmp_path / "ranks" / "rank-1.json") in result.error


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (1, "exit code 1 and no report from any rank"),
        (134, "exit code 134 and no report from any rank"),
        (-9, "signal 9 and no report from any rank"),
        (-11, "signal 11 and no report from any rank"),
    ],
)
def test_a_silent_death_is_a_failure_with_the_end_of_the_log(tmp_path: Path, code: int, reason: str) -> None:
    assert judge(TWO, tmp_path, Exit(code, 3.0)) == Outcome("failed", reason, "")
    (tmp_path / "log.txt").write_text("first\nlast words\n")
    assert judge(TWO, tmp_path, Exit(code, 3.0)) == Outcome("failed", reason, "first\nlast words")


@pytest.mark.parametrize("garbage", ["{", '{"rank": 0}'])
def test_a_report_that_is_garbage_is_named_without_the_folders_of_this_machine(tmp_path: Path, garbage: str) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "rank-0.json").write_text(garbage)
    outcome = judge(Trial(), tmp_path, CLEAN)
    assert outcome.status == "failed" and "rank" in outcome.reason and str(tmp_path) not in outcome.reason


@pytest.mark.parametrize(
    "garbage",
    ["", "{", "[]", "null", "{}", '{"at": 1.0}', '{"rank": 1, "at": NaN, "type": "", "message": "", "traceback": ""}',
     '{"rank": "1", "at": 1.0, "type": "", "message": "", "traceback": ""}',
     '{"rank": 1, "at": 1.0, "type": "", "message": null, "traceback": ""}'],
)  # fmt: skip
def test_garbled_words_of_a_rank_are_passed_over(tmp_path: Path, garbage: str) -> None:
    leave_error(tmp_path, 0, 7.0, "the real one")
    (tmp_path / "ranks" / "error-1.json").write_text(garbage)
    assert judge(TWO, tmp_path, Exit(1, 3.0)).reason == "rank 0: the real one"


def test_no_word_is_no_error(tmp_path: Path) -> None:
    assert errors(tmp_path) == []


def test_the_end_of_a_long_log_is_quoted_and_odd_bytes_survive(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert tail(log) == ""
    log.write_bytes(b"x" * 100_000 + b"\xff last")
    assert tail(log) == "x" * (TAIL_BYTES - 6) + "\ufffd last"
