"""Ten answers about a command: planted loaders, networks, ranks, memory and laws are found, all else is not known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planted import Planted, changed, changed_ranks, plant
from planted_laws import ROOM
from planted_phases import STEP, Phased, grown, plant_phased

from analysis.compare import explained, side_by_side
from analysis.compare.explained import BEFORE_ITS_STEPS, HOW, NOT_KNOWN, QUESTIONS, Explained
from analysis.frames import results
from analysis.views import bottleneck

SPEED, PARTS, LOADER, NETWORK, EQUAL, SLOWEST, MFU, MEMORY, PAYS, FIRST = range(len(QUESTIONS))
COMMAND = (("command", "torchrun --nproc-per-node {workers} train.py"),)
BASELINE = {"framework": "command", "workers": 1}


def command(workers: int = 1, batch: int = 32, repeats: int = 5, **more: Any) -> Planted:
    wire = "none" if workers == 1 else "fp32"
    return Planted("command", "script:train.py", batch, workers, wire, repeats=repeats, keys=COMMAND, **more)


def page(folder: Path, *phased: Phased, **asked: Any) -> Explained:
    plant_phased(folder, phased, baseline=BASELINE, machine=ROOM)
    return explained.read(folder, **asked)


def two(phases: Mapping[str, float], **more: Any) -> Phased:
    return Phased(command(2), phases, noise=0.01, **more)


def late(folder: Path, phased: Sequence[Phased], seconds: float, part: str = "forward_seconds") -> Explained:
    """Of two ranks the second is late in this part of a step, in its forward until now."""

    def change(record: dict[str, Any]) -> None:
        for rank, by in zip(record["ranks"], (-seconds, seconds), strict=True):
            rank["late"] = {"seconds": by, "low": by, "high": by}
        phases = record["ranks"][1]["phases"]
        phases["forward_seconds"] -= seconds
        phases[part] += seconds

    plant_phased(folder, phased, baseline=BASELINE, machine=ROOM)
    return explained.read(changed(folder, change, only="-w2-"))


ONE = Phased(command(), STEP, noise=0.01)


def answer(of: Explained, place: int) -> tuple[str, str, Any]:
    return of.answers[place].text, of.answers[place].evidence, of.answers[place].numbers


# --- what was planted is found ---


def test_a_slow_loader_is_what_to_change_first(tmp_path: Path) -> None:
    said = page(tmp_path, ONE, two(grown(data=0.1)))
    text, evidence, numbers = answer(said, LOADER)
    truth = 0.2 / (0.2 - 0.102) - 1
    assert numbers["low"] < truth < numbers["high"] and text.startswith("at most +10") and "[" in evidence
    assert answer(said, FIRST)[0].startswith("Input that never keeps a step waiting would give at most +10")
    assert "num_workers" in answer(said, FIRST)[0]
    assert answer(said, PARTS)[2]["data_share"] == pytest.approx(0.51, abs=0.01)


def test_the_loader_of_one_rank_keeps_all_of_them_waiting(tmp_path: Path) -> None:
    """A mean over ranks would say that half of it is to be had."""
    said = late(tmp_path, [two({**STEP, "data": 0.0}, lags=(0.0, 0.05), waits_in="backward")], 0.05, "data_seconds")
    assert answer(said, LOADER)[2]["gain_at_most"] == pytest.approx(0.148 / 0.098 - 1, rel=0.05)
    assert "data 50" in answer(said, SLOWEST)[1] and answer(said, SLOWEST)[2]["rank"] == 1


def test_the_network_is_what_backward_takes_beyond_the_pace_of_forward(tmp_path: Path) -> None:
    crowded = {name: 1.1 * value for name, value in STEP.items()}
    said = page(tmp_path, ONE, two({**crowded, "backward": crowded["backward"] + 0.03}))
    numbers = answer(said, NETWORK)[2]
    assert numbers["low"] < 0.14 / 0.11 - 1 < numbers["high"] and numbers["high"] - numbers["low"] < 0.1
    apart = page(tmp_path / "none", ONE, two(crowded))
    assert answer(apart, NETWORK)[0].startswith("nothing that 5 launches resolve")


@pytest.mark.parametrize(
    "report", [{"device": "cuda:0"}, {"communication_bytes": {"all_gather": 1 << 20}}], ids=["on a GPU", "sharded"]
)
def test_where_forward_is_no_clock_the_network_is_all_that_is_beyond_one_process(
    tmp_path: Path, report: dict[str, Any]
) -> None:
    said = page(tmp_path, ONE, two(grown(forward=0.02, backward=0.03), report=report))
    _, evidence, numbers = answer(said, NETWORK)
    assert numbers["low"] < 0.5 < numbers["high"] and "all that a step takes beyond" in evidence


def test_a_slow_rank_is_named_with_its_host_and_like_ranks_name_nobody(tmp_path: Path) -> None:
    said = late(tmp_path, [ONE, two(STEP, lags=(0.0, 0.01), waits_in="backward")], 0.01)
    text, evidence, numbers = answer(said, SLOWEST)
    assert text.startswith(("rank 1 on planted, by 10", "rank 1 on planted, by 9.9")) and "forward" in evidence
    assert numbers == {"rank": 1, "host": "planted"}
    assert answer(said, EQUAL)[2]["gain_at_most"] == pytest.approx(0.1, rel=0.05)
    assert abs(answer(said, NETWORK)[2]["share"]) < 0.02, "waiting for a slow rank is not the network's"
    like = late(tmp_path / "like", [ONE, two(STEP)], 0.0)
    assert answer(like, SLOWEST)[0] == "none" and answer(like, SLOWEST)[2] == {"rank": None}
    assert answer(like, EQUAL)[0].startswith("nothing")
    stages = page(tmp_path / "stages", ONE, two(STEP))  # without `late`
    assert answer(stages, SLOWEST)[0] == NOT_KNOWN and "stages" in answer(stages, SLOWEST)[1]


def test_two_batches_tell_which_one_fits(tmp_path: Path) -> None:
    small, large = (
        Phased(command(1, batch), STEP, report={"peak_memory_bytes": peak})
        for batch, peak in ((32, 2 * 10**9), (64, 3 * 10**9))
    )
    text, evidence, numbers = answer(page(tmp_path, small, large), MEMORY)
    room = ROOM["memory_bytes"]
    assert numbers == {"peak_bytes": 2e9, "room_bytes": room, "next_batch": 128}
    assert f"up to {int((room - 1e9) / (1e9 / 32))}" in text and "3.00 GB at batch 64" in evidence
    text, evidence, numbers = answer(page(tmp_path / "one", small), MEMORY)
    assert "not known" in text and "--batch-per-worker" in evidence and numbers["next_batch"] is None
    notes = [f"peak memory is of the process, resident, {BEFORE_ITS_STEPS}: no step took more than what came before"]
    hidden = replace(small, report={**small.report, "notes": notes})
    text, evidence, numbers = answer(page(tmp_path / "hidden", hidden, large), MEMORY)
    assert "next batch that fits is not known" in text and numbers["next_batch"] is None
    assert "at batch 32 no step took more" in evidence and "--batch-per-worker" not in evidence


def test_utilisation_needs_flops_and_a_peak(tmp_path: Path) -> None:
    counted = Phased(command(), STEP, report={"forward_flops_per_sample": 1e9})  # 3 x 320 samples/s
    assert answer(page(tmp_path / "a", ONE), MFU)[:2] == (NOT_KNOWN, "the FLOPs of a step were not counted")
    text, evidence, _ = answer(page(tmp_path / "b", counted), MFU)
    assert text == NOT_KNOWN and "960 GFLOP/s" in evidence and "--peak-tflops" in evidence
    text, evidence, numbers = answer(explained.read(tmp_path / "b", peak_flops=4e12), MFU)
    assert text == "24 % of the peak" and numbers["mfu"] == pytest.approx(0.24) and "as given" in evidence
    assert evidence.endswith("; FLOPs of a step: 3 x those counted in forward")


def test_utilisation_takes_the_flops_of_a_step_where_they_were_counted(tmp_path: Path) -> None:
    """With a frozen backbone, 3 x forward would be up to three times what a process does."""
    counted = {"forward_flops_per_sample": 1e9, "step_flops_per_sample": 1.25e9}  # 320 samples/s
    page(tmp_path, Phased(command(), STEP, report=counted))
    text, evidence, numbers = answer(explained.read(tmp_path, peak_flops=4e12), MFU)
    assert text == "10 % of the peak" and numbers["mfu"] == pytest.approx(0.1)
    assert evidence.endswith("; FLOPs of a step: counted in all of one, with what is computed again")


@pytest.mark.parametrize("growth, truth", [(lambda n: 0.03 * (n - 1), 14), (lambda n: 0.25 * math.log2(n), 4)])
def test_the_last_worker_that_pays_lies_in_its_interval(
    tmp_path: Path, growth: Callable[[int], float], truth: int
) -> None:
    def rate(count: int) -> float:
        return 100.0 * count / (1 + growth(count))

    assert next(n for n in range(1, 99) if (rate(n + 1) - rate(n)) / rate(1) < 0.5) == truth
    measured = [command(count, speed=rate(count), noise=0.002) for count in (1, 2)]
    plant(tmp_path / "a", measured, baseline=BASELINE, machine=ROOM)
    text, evidence, numbers = answer(explained.read(tmp_path / "a"), PAYS)
    assert numbers["low"] <= truth <= numbers["high"] and "to more than 32 workers" in text
    assert "grows no faster" in evidence
    plant(tmp_path / "b", measured, baseline=BASELINE, machine={**ROOM, "cores": 2})
    text, evidence, _ = answer(explained.read(tmp_path / "b"), PAYS)
    assert text == "after none of up to 2 workers" and "this host has room" in evidence
    lost = [command(count, speed=100.0 / count, noise=0.002) for count in (1, 2)]
    plant(tmp_path / "lost", lost, baseline=BASELINE, machine=ROOM)
    assert answer(explained.read(tmp_path / "lost"), PAYS)[0] == "after 1 worker"
    four = [command(count, speed=rate(count), noise=0.002) for count in (1, 2, 4, 8)]
    plant(tmp_path / "c", four, baseline=BASELINE, machine=ROOM)
    narrow = answer(explained.read(tmp_path / "c"), PAYS)[2]
    assert narrow["low"] <= truth <= narrow["high"] and narrow["high"] - narrow["low"] < 30, "by the study's own laws"


# --- what is not known is said to be ---


def test_one_process_says_nothing_of_networks_and_ranks(tmp_path: Path) -> None:
    said = page(tmp_path, ONE)
    for place in (NETWORK, PAYS):
        assert answer(said, place)[0] == NOT_KNOWN and "--workers 1,N" in answer(said, place)[1]
    for place in (EQUAL, SLOWEST):
        assert answer(said, place)[:2] == (NOT_KNOWN, "one process trains: there is none to wait for")
    assert answer(said, FIRST)[0].startswith("Computing in half the time"), "one process only computes"


def test_computing_and_communication_are_not_told_apart_without_one_process(tmp_path: Path) -> None:
    said = page(tmp_path, two(STEP))
    assert answer(said, NETWORK)[0] == answer(said, FIRST)[0] == NOT_KNOWN
    assert "95 % of a step computes or communicates" in answer(said, FIRST)[1] and "--workers" in answer(said, FIRST)[1]
    (limit,) = bottleneck.bottlenecks(results.read(tmp_path))
    assert limit.kind == bottleneck.UNKNOWN, "nor does any table of the study call it computing"


def test_a_script_without_a_loader_has_no_ideal_one(tmp_path: Path) -> None:
    text, evidence, _ = answer(page(tmp_path, Phased(command(), {**STEP, "data": 0.0})), LOADER)
    assert text == NOT_KNOWN and "no torch DataLoader" in evidence


def test_a_record_that_says_nothing_makes_nothing_known_but_the_speed(tmp_path: Path) -> None:
    plant(tmp_path, [command(), command(2, speed=190.0)], baseline=BASELINE, machine=ROOM)
    said = explained.read(changed_ranks(tmp_path, lambda rank: rank.update(phases=None, peak_memory_bytes=None)))
    assert [one.text == NOT_KNOWN for one in said.answers] == [place not in (SPEED, PAYS) for place in range(10)]
    assert all(one.evidence for one in said.answers)


def test_what_failed_leaves_ten_reasons(tmp_path: Path) -> None:
    plant(tmp_path, [command(speed=None, status="failed", reason="no such data")], baseline=BASELINE)
    said = explained.read(tmp_path)
    assert [one.text for one in said.answers] == [NOT_KNOWN] * 10
    assert all("no such data" in one.evidence for one in said.answers) and len(said.failed) == 1
    plant(tmp_path / "nothing", [], baseline=BASELINE)
    assert {one.text for one in explained.read(tmp_path / "nothing").answers} == {NOT_KNOWN}


def test_too_few_launches_and_too_few_cores_are_reasons(tmp_path: Path) -> None:
    few = page(tmp_path, Phased(command(1, repeats=2), STEP), Phased(command(2, repeats=2), STEP))
    assert "2 launches" in answer(few, SLOWEST)[1] and answer(few, PAYS)[0] == NOT_KNOWN
    assert "[" not in answer(few, LOADER)[0], "two launches claim no interval"
    crowded = command(2, repeats=3)
    keys = Planted(**{**vars(crowded), "keys": (*COMMAND, ("oversubscribe", True))})
    plant_phased(tmp_path / "b", [ONE, Phased(keys, STEP)], baseline=BASELINE, machine={**ROOM, "cores": 1})
    assert "fewer cores" in answer(explained.read(tmp_path / "b"), NETWORK)[1]


# --- the page ---


def test_the_page_says_the_same_in_each_of_its_forms(tmp_path: Path) -> None:
    said = page(tmp_path, ONE, two(grown(backward=0.03)))
    (line, *lines), written, program = list(said.lines()), said.to_markdown(), json.loads(json.dumps(said.to_dict()))
    assert line == "torchrun --nproc-per-node {workers} train.py, workers=2, batch_per_worker=32"
    assert len(lines) == 30 and len(program["answers"]) == 10
    for place, (one, as_json) in enumerate(zip(said.answers, program["answers"], strict=True)):
        assert lines[3 * place : 3 * place + 3] == [f"{place + 1:>2}  {one.question}", f"    {one.text}",
                                                    f"    ({one.evidence})"]  # fmt: skip
        assert one.question in written and f"**{one.text}**" in written and one.evidence in written
        assert as_json["text"] == one.text and as_json["evidence"] == one.evidence
        assert as_json["known"] == (one.text != NOT_KNOWN)
    text, evidence, _ = answer(said, SPEED)
    assert "samples/s by 2 processes" in text and "for a step of 64 samples, 32 of each process" in text
    assert "with workers=1" in evidence


def test_a_page_that_is_stopped_has_the_answers_that_are_known(tmp_path: Path) -> None:
    said = page(tmp_path, Phased(command(repeats=1), STEP))
    first, *lines, last = said.so_far()
    assert first == f"So far: {said.about}" and f"    {NOT_KNOWN}" not in lines
    known = [one for one in said.answers if one.text != NOT_KNOWN]
    assert len(lines) == 3 * len(known) and lines[0].endswith(known[0].question)
    assert "(1 launch of " in lines[2] and "over 1 launch and" in lines[5]
    assert last == f"{10 - len(known)} of 10 questions have no answer so far." and 2 < len(known) < 10
    plant(tmp_path / "nothing", [], baseline=BASELINE)
    assert explained.read(tmp_path / "nothing").so_far() == []


def test_hints_are_of_changes_that_exist() -> None:
    named = {name for name, _ in bottleneck.ways({"framework": "command", "allreduce": "fp32"}, {}, 0.0)}
    assert set(HOW) <= named


def test_bench_and_explain_name_the_parts_of_a_step_alike(tmp_path: Path) -> None:
    said = page(tmp_path, ONE)
    (row,) = results.read(tmp_path).rows
    (side,) = side_by_side.read(tmp_path, {(str(row["arguments"]), 1, 32): "A"}, {}).sides
    named = {name.removesuffix("_share") for name in answer(said, PARTS)[2]}
    assert "rest" in named <= {*side.parts}


def test_a_precision_on_the_wire_that_nobody_has_seen_is_not_halved() -> None:
    ours, theirs = ({"framework": name, "allreduce": "fp32"} for name in ("command", "torch_ddp"))
    changes = [{name for name, _ in bottleneck.ways(row, {}, 0.0)} for row in (ours, theirs)]
    assert [bottleneck.HALVED["fp32"] in each for each in changes] == [False, True]


def test_a_doubt_about_its_ranks_stands_before_the_answers(tmp_path: Path) -> None:
    same = "all ranks train on the same data: is a DistributedSampler missing?"
    said = page(tmp_path, ONE, two(STEP, report={"notes": [f"doubt: {same}", "peak memory is of the process"]}))
    whole = f"workers=2, batch_per_worker=32: {same}"
    assert list(said.lines())[1] == f"Warning: {whole}" and said.to_dict()["doubts"] == [whole]
    assert said.to_markdown().index(same) < said.to_markdown().index("## 1.")
