"""What the observer's lines say, as reports of ranks; and what no report can be made of."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaling_study.launch.launchers import command
from scaling_study.launch.observed import (
    NotObserved,
    Turn,
    judge,
    lateness,
    reports,
    steps_told,
    watched,
    write_reports,
)
from scaling_study.observe import FOLDER, SITE
from scaling_study.processes.process import Exit
from scaling_study.records import store
from scaling_study.records.outcome import first_problem
from scaling_study.records.schema import Lateness, WaitedFor, samples_per_second, waited_for
from scaling_study.trial import Trial, Window

TRIAL = Trial(
    framework="command", command="python t.py", device="cpu", workers=2, batch_per_worker=4, window=Window(2, 2, 0.0)
)


def process(
    rank: int, world: int = 2, steps: int = 8, samples: int | None = 4, looked_at: int = 0, **end: Any
) -> list[dict[str, Any]]:
    about = {"kind": "process", "rank": rank, "world": world, "pid": 10 + rank, "host": "h", "device": "cpu"}
    parts = {"data": 0.1, "forward": 0.2, "backward": 0.3, "optimizer": 0.1, "evaluation": 0, "saving": 0, "rest": 0.3}
    lines = [
        {
            "kind": "step",
            "step": n,
            "ended": 100.0 + n,
            "seconds": n,
            "parts": parts,
            "loss": 1 / n,
            "learning_rate": 0.1,
            "looked_at": n == looked_at,
        }
        for n in range(1, steps + 1)
    ]
    return [about, *lines, {"kind": "so far", "samples_per_step": samples, "samples_unknown": "two rates", **end}]


def test_another_attempt_begins_with_empty_folders(tmp_path: Path) -> None:
    for _ in range(2):
        assert watched(TRIAL, tmp_path, {})["PYTHONPATH"] and not list((tmp_path / "run").iterdir())
        (tmp_path / "run" / "left").touch()


def test_a_start_has_the_variables_of_its_study_and_the_observer_before_their_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    trial = dataclasses.replace(TRIAL, env="OUT={run_dir} PYTHONPATH=src:${PYTHONPATH} TOKEN=${HF_TOKEN}")
    told = watched(trial, tmp_path, {**command(trial).env, "OF_THE_MACHINE": "${HOME}"})
    assert told["PYTHONPATH"] == f"{SITE}:src:/theirs" and told[FOLDER] == str(tmp_path / "observed")
    assert (told["OUT"], told["TOKEN"]) == (str(tmp_path / "run"), "s3cret")
    assert told["OF_THE_MACHINE"] == "${HOME}", "only a study's own are taken from here"


def test_reports_of_a_command_are_those_of_any_trial() -> None:
    both = reports(TRIAL, [process(0), process(1)], ())
    assert first_problem(TRIAL, both) == ""
    assert [report.warmup_seconds for report in both] == [[1, 2], [1, 2]]
    assert both[0].step_seconds == [3, 4, 5, 6, 7, 8] and both[0].samples_seen == 24
    assert both[0].phases and both[0].phases.backward_seconds == pytest.approx(0.3)
    assert both[0].loss_first == 1.0 and both[0].first_step_at == 100.0


def test_what_observing_took_is_reported_beside_the_steps_that_it_observed() -> None:
    first, second = reports(TRIAL, [process(0, own_seconds=0.36), process(1)], ())
    assert first.backend == {"observer_seconds": 0.36, "observed_seconds": 36.0}
    assert second.backend["observer_seconds"] is None


def test_blocks_are_the_steps_of_their_turns() -> None:
    turns = [Turn(0, 3, 2, 50.0), Turn(1, 6, 2, 60.0)]
    first = reports(TRIAL, [process(0), process(1)], turns)[0]
    assert first.step_seconds == [4, 5, 7, 8]
    assert [(block.round, block.steps, block.at) for block in first.blocks] == [(0, 2, 50.0), (1, 2, 60.0)]
    assert first.warmup_seconds == [1, 2, 3]


def test_other_samples_than_the_study_says_are_a_contradiction() -> None:
    seen = reports(TRIAL, [process(0, samples=8), process(1, samples=8)], ())
    assert "asked for 4 samples a step, rank 0 took 8" in first_problem(TRIAL, seen)


def taking(rank: int, rows: Sequence[int], samples: int, **end: Any) -> list[dict[str, Any]]:
    """A process whose steps take so many rows, by forward passes."""
    lines = process(rank, steps=len(rows), samples=samples, samples_by="forward_rows", **end)
    for line, each in zip(lines[1:], rows, strict=False):
        line["forward_rows"] = each
    return lines


def test_a_last_batch_that_is_shorter_counts_with_the_samples_that_it_has() -> None:
    both = reports(TRIAL, [taking(rank, [4, 4, 4, 4, 1, 4, 4, 4], 4) for rank in (0, 1)], ())
    assert first_problem(TRIAL, both) == ""
    assert [(report.samples_per_step, report.samples_seen) for report in both] == [(4, 21)] * 2, "of six steps"
    turns = [Turn(0, 2, 2, 50.0), Turn(1, 4, 2, 60.0)]
    held = reports(TRIAL, [taking(rank, [4, 4, 4, 4, 1, 4, 4, 1], 4) for rank in (0, 1)], turns)
    assert first_problem(TRIAL, held) == ""
    assert [report.samples_seen for report in held] == [4 + 4 + 1 + 4] * 2
    windows = [report.window_seconds for report in held]
    assert samples_per_second((report.samples_seen for report in held), windows) == 2 * 13 / (3 + 4 + 5 + 6)


def test_most_steps_of_other_samples_than_the_study_says_are_a_contradiction() -> None:
    seen = reports(TRIAL, [taking(rank, [4, 2, 2, 2, 4, 2, 2, 2], 2) for rank in (0, 1)], ())
    assert first_problem(TRIAL, seen) == "asked for 4 samples a step, rank 0 took 2"


def test_flops_of_a_sample_are_of_those_in_the_step_that_was_looked_into() -> None:
    lines = [taking(rank, [4, 4, 2, 4, 4, 2, 4, 4], 4, **inside()) for rank in (0, 1)]
    lines[0][3]["looked_at"] = True
    first, second = reports(TRIAL, lines, ())
    assert (first.forward_flops_per_sample, second.forward_flops_per_sample) == (200, 100)


def test_samples_that_cannot_be_told_are_those_of_the_study_and_said_so() -> None:
    seen = reports(TRIAL, [process(0, samples=None), process(1)], ())
    assert seen[0].samples_per_step == 4 and "two rates" in seen[0].notes[0] and not seen[1].notes


@pytest.mark.parametrize(
    "processes, fact",
    [
        ([], "PYTHONPATH"),
        ([[{"kind": "process", "rank": None}, {"kind": "not observed", "why": "torch 1.9 is older"}]], "torch 1.9"),
        ([process(0)], "1 processes trained, in a world of 2"),
        ([process(0, world=1)], "workers=2"),
        ([process(0, steps=0), process(1, steps=0)], "PYTHONPATH"),
    ],
)
def test_no_report_is_made_of_what_was_not_seen(processes: Any, fact: str) -> None:
    with pytest.raises(NotObserved) as why:
        reports(TRIAL, processes, ())
    assert fact in str(why.value)


@pytest.mark.parametrize(
    "processes, facts",
    [
        ([process(0, steps=3), process(1, steps=3)], ["3 steps were seen", "ask for 4"]),
        ([process(0, steps=9), process(1, steps=5)], ["rank 0 was ended after 9 steps, and 5 were seen of rank 1"]),
        ([[*process(0), {"kind": "not observed", "why": "OSError: no room"}], process(1)], ["OSError: no room"]),
    ],
)
def test_a_command_alone_made_all_of_its_steps_on_every_rank(processes: Any, facts: list[str]) -> None:
    with pytest.raises(NotObserved) as why:
        reports(TRIAL, processes, ())
    assert all(fact in str(why.value) for fact in facts)


ALONE = dataclasses.replace(TRIAL, workers=1)
LEFT = [process(0, world=1, steps=6)]  # of 9 that were asked for; 4 are the least
LOST = [{"kind": "process", "rank": None}, {"kind": "not observed", "why": "torch 1.9 is older"}]


@pytest.mark.parametrize(
    "processes, exit, log, status, facts",
    [
        (LEFT, Exit(0, 9.0), "", "ok", []),
        (LEFT, Exit(-15, 9.0, timed_out=True), "", "ok", []),
        (LEFT, Exit(1, 9.0), "ValueError: bad\n", "failed", ["exit code 1: ValueError: bad; it ended after 6 of 9"]),
        (LEFT, Exit(-15, 9.0, interrupted=True), "", "cancelled", ["interrupted"]),
        ([process(0, world=1, steps=9, looked_at=4)], Exit(1, 9.0), "at exit\n", "ok", []),
        ([], Exit(-9, 9.0), "", "failed", ["signal 9: it printed nothing"]),
        ([], Exit(3, 9.0), "one\nno such file\n", "failed", ["exit code 3: no such file"]),
        ([], Exit(1, 9.0), "EOFError: EOF when reading a line", "failed", ["/dev/null as its input"]),
        ([], Exit(-15, 9.0, timed_out=True), "", "timeout", ["not finished after 9 s", "PYTHONPATH"]),
        ([], Exit(0, 9.0), "KeyError: no data\nof tee\n", "failed", ["PYTHONPATH", "its log has KeyError: no data"]),
        ([], Exit(0, 9.0), "scaling-study: not observed: OSError: full\nb\n", "failed", ["observed: OSError: full"]),
        ([], Exit(0, 9.0, left_behind=1), "", "failed", ["left 1 process behind", "daemon"]),
        ([], Exit(None, 0.0, error="x: not found"), "", "failed", ["could not be started"]),
        ([LOST], Exit(-15, 2.0, lost_sight=True), "epoch 1\n", "failed", ["not observed: torch 1.9 is older"]),
        (["garbage\n"], Exit(0, 9.0), "", "failed", ["line 1 of 0.jsonl is none of ours"]),
        (['[]\n{"kind": "step"}\n'], Exit(0, 9.0), "", "failed", ["line 1"]),
        (['{"kind": "process"}\n{"kind": "step"}\n'], Exit(0, 9.0), "", "failed", ["steps were seen"]),
        (None, Exit(0, 9.0), "", "failed", ["the command deleted the folder"]),
    ],
)  # fmt: skip
def test_how_a_command_ended_is_its_reason(
    processes: Any, exit: Exit, log: str, status: str, facts: list[str], tmp_path: Path
) -> None:
    if processes is not None:
        (tmp_path / "observed").mkdir()
        for number, lines in enumerate(processes):
            text = lines if isinstance(lines, str) else "".join(f"{json.dumps(line)}\n" for line in lines)
            (tmp_path / "observed" / f"{number}.jsonl").write_text(text)
    (tmp_path / "log.txt").write_text(log)
    result = judge(ALONE, tmp_path, exit)
    assert (result.status, [fact for fact in facts if fact not in result.reason]) == (status, []), result.reason
    assert not exit.lost_sight or result.reason == facts[0], "what the command printed last says nothing"


def test_a_loss_that_is_no_number_has_a_note_and_no_value(tmp_path: Path) -> None:
    lines = process(0, world=1)
    lines[-2]["loss"] = lines[-2]["learning_rate"] = float("nan")
    (tmp_path / "observed").mkdir()
    (tmp_path / "observed" / "0.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    result = judge(ALONE, tmp_path, Exit(0, 9.0))
    assert (result.status, result.ranks[0].loss_last, result.ranks[0].learning_rate) == ("ok", None, None)
    assert result.ranks[0].notes == ["the loss is not finite"]


def test_first_losses_and_learning_rates_are_kept_and_what_is_no_number_is_none(tmp_path: Path) -> None:
    alone = dataclasses.replace(TRIAL, workers=1, window=Window(2, 2, 0.0, max_steps=10))
    lines = process(0, world=1, steps=12)
    first = reports(alone, [lines], ())[0]
    assert first.first_losses == [1 / n for n in range(1, 9)] and first.first_learning_rates == [0.1] * 8
    lines[2]["loss"] = lines[-2]["loss"] = float("nan")
    (tmp_path / "h-10.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    write_reports(alone, tmp_path, tmp_path)
    (report,) = store.read_ranks(tmp_path, 1)
    assert (report.first_losses[:3], report.loss_last) == ([1.0, None, 1 / 3], None)
    assert report.notes == ["the loss is not finite"]


def test_what_is_said_of_the_ranks_is_a_note_of_the_first() -> None:
    both = [process(0), process(1)]
    for lines in both:
        lines[1]["input"] = 7
    first, second = reports(TRIAL, both, ())
    assert (
        first.notes == ["doubt: all ranks train on the same data: is a DistributedSampler missing?"]
        and not second.notes
    )


def test_steps_that_a_scaler_left_out_are_counted_apart_from_those_of_the_warm_up() -> None:
    both = [process(0), process(1)]
    for number, line in enumerate(line for line in both[0] if line["kind"] == "step"):
        line["skipped"] = number in (0, 1, 5)
    first, second = reports(TRIAL, both, ())
    assert (first.warmup_skipped_steps, first.skipped_steps) == (2, 1)
    assert second.warmup_skipped_steps is second.skipped_steps is None, "a fused optimizer knows alone"


def test_a_program_is_known_again_by_what_its_files_hold() -> None:
    def code(files: dict[str, str]) -> Any:
        lines = process(0, world=1)
        lines[0]["code"] = files
        return reports(ALONE, [lines], ())[0].backend.get("code")

    here = code({"/a/train.py": "1", "/a/data.py": "2"})
    assert here == code({"/b/data.py": "2", "/b/train.py": "1"}), "a copy of it"
    assert len({here, code({"/a/train.py": "1", "/a/data.py": "3"}), code({"/a/train.py": "1"}), code({})}) == 4
    assert code({}) is None


def test_bytes_that_are_a_mean_are_said_to_be_one() -> None:
    first, _ = reports(TRIAL, [process(0, **inside(sent_in=[2, 8])), process(1, **inside())], ())
    assert first.communication_bytes == {"allreduce": 40, "broadcast": 8}
    assert "bytes of collectives are a mean: 2 of 8 steps communicate" in first.notes


def inside(**more: Any) -> dict[str, Any]:
    return {
        "inside": {
            "flops": 900,
            "forward_flops": 400,
            "communication_bytes": {"allreduce": 40, "broadcast": 8},
            "allreduce_bytes": 40,
            "parameters": 10,
            "backend": "gloo",
            "unknown": {},
            **more,
        }
    }


def test_what_a_step_held_is_in_the_fields_of_any_trial_and_what_is_not_known_is_null_and_said() -> None:
    peak = {"peak_memory_bytes": 5, "peak_memory_of": "the process, resident, while it stepped"}
    first = reports(TRIAL, [process(0, **inside(), **peak), process(1, **inside())], ())[0]
    assert (first.forward_flops_per_sample, first.step_flops_per_sample, first.parameters) == (100, 225, 10)
    assert (first.allreduce_bytes, first.communication_bytes) == (40, {"allreduce": 40, "broadcast": 8})
    assert (first.peak_memory_bytes, first.backend["backend"]) == (5, "gloo")
    assert first.notes[0] == "peak memory is of the process, resident, while it stepped"
    whys = dict.fromkeys(("flops", "forward_flops", "communication_bytes"), "it is compiled")
    none = reports(TRIAL, [process(0, inside={"unknown": whys}), process(1)], ())
    for report in none:
        assert report.forward_flops_per_sample is report.step_flops_per_sample is None
        assert report.allreduce_bytes is report.peak_memory_bytes is None
        assert not report.communication_bytes and "backend" not in report.backend
    assert none[0].notes[:2] == [
        "FLOPs are not known: it is compiled",
        "bytes of collectives are not known: it is compiled",
    ]
    assert not none[1].notes


def test_a_step_that_a_rank_looked_into_is_timed_on_none() -> None:
    both = [process(0), process(1)]
    both[1][4]["looked_at"] = True  # the fourth
    seen = reports(TRIAL, both, ())
    assert [report.step_seconds for report in seen] == [[3, 5, 6, 7, 8]] * 2
    assert first_problem(TRIAL, seen) == ""
    one_more = [process(0, steps=9), process(1, steps=9, looked_at=4)]
    assert [report.step_seconds for report in reports(TRIAL, one_more, ())] == [[3, 5, 6, 7, 8, 9]] * 2
    held = reports(TRIAL, both, [Turn(0, 2, 3, 50.0)])  # where turns are, none is looked into
    assert held[0].step_seconds == [3, 4, 5]


def test_one_step_more_is_made_where_one_may_be_looked_into() -> None:
    windows = {warm: Window(warm, 2, 0.0, max_steps=3) for warm in (0, 1, 4, 5)}
    told = {warm: steps_told(replace(TRIAL, window=window)) for warm, window in windows.items()}
    assert told == {0: 4, 1: 5, 4: 8, 5: 8}


def before(ranks: int, steps: int, seed: int, late: Mapping[int, float], correlated: float = 0.5) -> Any:
    """Seconds before backward of ranks that are alike (10 ms, noise of 5 % that lasts, spells of other work), and what
    some take longer."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=(ranks, steps))
    for step in range(1, steps):
        noise[:, step] = correlated * noise[:, step - 1] + (1 - correlated**2) ** 0.5 * noise[:, step]
    own = 0.01 * (1 + 0.05 * noise) + 0.05 * (random.random((ranks, steps)) < 0.02)
    return (own + np.array([[late.get(rank, 0.0)] for rank in range(ranks)])).tolist()


def named(seconds: Any, hosts: Sequence[str]) -> int | None:
    """The rank that is waited for, of steps of 30 ms."""
    ranks = len(hosts)
    trial = replace(TRIAL, workers=ranks)
    many = [process(rank, ranks, 8) for rank in range(ranks)]
    made = reports(trial, many, ())
    late = lateness(seconds, hosts)
    ours = [
        replace(report, host=host, late=behind, step_seconds=[0.03])
        for report, host, behind in zip(made, hosts, late, strict=True)
    ]
    found = waited_for(ours)
    return found.rank if found else None


def test_the_one_rank_that_is_waited_for_is_named_and_ranks_that_are_alike_are_not() -> None:
    """99 % intervals: of 300 pairs alike about three would be named, were it not for the least that counts as late."""
    alike = [named(before(2, 60, seed, {}), ["h", "h"]) for seed in range(300)]
    assert sum(rank is not None for rank in alike) <= 9
    assert [named(before(4, 60, seed, {}), ["h"] * 4) for seed in range(50)].count(None) == 50
    assert {named(before(2, 60, seed, {1: 0.005}), ["h", "h"]) for seed in range(50)} == {1}
    assert {named(before(4, 60, seed, {2: 0.005}), ["a", "a", "b", "b"]) for seed in range(50)} == {2}


def test_of_a_slow_host_with_several_slow_ranks_one_is_named() -> None:
    assert {named(before(4, 60, seed, {2: 0.005, 3: 0.005}), ["a", "a", "b", "b"]) for seed in range(50)} <= {2, 3}
    assert named(before(4, 60, 0, {2: 0.005, 3: 0.005}), ["h"] * 4) is None, "two that are as late as each other"


def test_how_late_is_said_with_an_interval_and_not_of_too_few_or_unlike_steps() -> None:
    first, second = lateness(before(2, 100, 0, {1: 0.005}), ["h", "h"])
    assert first and second and first.seconds == -second.seconds
    assert second.low < 0.005 < second.high and second.high - second.low < 0.002
    assert lateness([[1.0] * 5] * 2, ["h", "h"]) == [None, None]
    assert lateness([[1.0] * 9, [1.0] * 8], ["h", "h"]) == [None, None]
    assert lateness([[1.0] * 9, [None] * 9], ["h", "h"]) == [None, None]
    assert lateness([[1.0] * 9], ["h"]) == [None]


def test_stages_of_a_pipeline_are_not_late() -> None:
    both = [process(rank, steps=40, **inside(part_of_model=True)) for rank in range(2)]
    for rank, lines in enumerate(both):
        for line in lines[1:-1]:
            line["before_backward"] = 1.0 + rank
    assert [report.late for report in reports(TRIAL, both, ())] == [None, None]
    for lines in both:
        lines[-1]["inside"]["part_of_model"] = False
    assert waited_for(reports(TRIAL, both, ())) == WaitedFor(1, "h", Lateness(1.0, 1.0, 1.0), 5.5)
