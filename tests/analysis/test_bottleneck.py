"""The bottleneck is what was planted, with its numbers; what cannot be told is not named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planted import Planted, plant
from planted_phases import STEP, Phased, grown, plant_phased

from analysis.frames import results
from analysis.views import bottleneck
from analysis.views.bottleneck import Bottleneck, bottlenecks

ONE = Planted("single")
TWO = Planted("horovod", workers=2, allreduce="fp32")
BASE = Phased(ONE, STEP)
MEMORY = {"parameters": 40_000_000, "gradients": 40_000_000, "optimizer": 80_000_000, "buffers": 0,
          "activations": 100_000_000, "resident": 0}  # fmt: skip


def found(folder: Path, *phased: Phased, framework: str | None = None) -> Bottleneck:
    made = bottlenecks(results.read(plant_phased(folder, phased)))
    return next(one for one in made if one.row["framework"] == (framework or phased[-1].one.framework))


@pytest.mark.parametrize(
    ("phases", "kind", "said"),
    [
        (STEP, "compute", "90 % of a step of 100 ms"),
        (grown(data=0.2), "input", "67 % of a step of 300 ms"),
        (grown(optimizer=0.2), "memory", "68 % of a step of 300 ms"),
    ],
)
def test_one_worker(tmp_path: Path, phases: dict[str, float], kind: str, said: str) -> None:
    made = found(tmp_path, Phased(ONE, phases))
    assert made.kind == kind and made.evidence.startswith(said)
    assert sum(made.shares.values()) == pytest.approx(1)


def test_waiting_inside_backward_is_communication_too(tmp_path: Path) -> None:
    ddp = Phased(replace(TWO, framework="torch_ddp"), grown(backward=0.2))
    made = found(tmp_path, BASE, ddp)
    assert made.kind == "communication" and made.shares["communication"] == pytest.approx(2 / 3)
    assert made.shares["compute"] == pytest.approx(0.3)


def test_what_nothing_tells_apart_is_not_named(tmp_path: Path) -> None:
    sharded = Phased(replace(TWO, framework="torch_fsdp2"), grown(backward=0.2))
    made = found(tmp_path, BASE, sharded)
    assert made.kind == "not known" and "both computes and communicates" in made.evidence
    assert made.shares["compute or communication"] == pytest.approx(0.29 / 0.3)


def test_what_it_is_either_way_is_named(tmp_path: Path) -> None:
    sharded = Phased(replace(TWO, framework="torch_fsdp2"), grown(data=0.3))
    assert found(tmp_path, BASE, sharded).kind == "input"


def test_a_cost_that_no_batch_size_changes_is_launching(tmp_path: Path) -> None:
    def step(batch: int) -> Phased:
        phases = {"forward": 0.010 + 0.00001 * batch, "backward": 0.020 + 0.00002 * batch, "optimizer": 0.002}
        return Phased(replace(ONE, batch_per_worker=batch), phases)

    made = bottlenecks(results.read(plant_phased(tmp_path, [step(batch) for batch in (8, 16, 32)])))
    assert {one.kind for one in made} == {"launch"}
    waits = Phased(replace(ONE, batch_per_worker=64), grown(data=0.5))
    alike, mixed = (
        bottleneck.listing(results.read(plant_phased(tmp_path / name, planted)))
        for name, planted in (("alike", [step(8), step(16), step(32)]), ("mixed", [Phased(ONE, STEP), waits]))
    )
    assert alike and alike.nothing == "launch takes the largest share of a step in all 3 configurations"
    assert mixed and not mixed.nothing
    assert made[0].shares["launch"] == pytest.approx(0.030 / (0.032 + 0.00003 * 8), rel=1e-3)
    assert "the fixed part of computing" in made[0].evidence


def test_computing_under_the_roof_of_memory_is_memory(tmp_path: Path) -> None:
    slow = {"forward_flops_per_sample": 1e6, "peak_flops_per_second": 1e12, "peak_bytes_per_second": 1e10}
    made = found(tmp_path, Phased(ONE, STEP, report=slow | {"memory": MEMORY}))
    assert made.kind == "memory" and "memory is the lower roof" in made.evidence
    dense = found(
        tmp_path / "dense", Phased(ONE, STEP, report={**slow, "forward_flops_per_sample": 1e10, "memory": MEMORY})
    )
    assert dense.kind == "compute" and "of the device's measured peak" in dense.evidence


@pytest.mark.parametrize(
    ("share", "moved", "kind", "said"),
    [
        (0.37, None, "compute", "37 % of the device's measured peak."),  # in 90 % of the step: 41 % while it computes
        (
            0.35,
            None,
            bottleneck.FAR,
            "35 % of the device's measured peak; while it computes it reaches 39 %",
        ),
        (0.01, 8e8, "memory", "memory is the lower roof (below 1,000)."),
        (
            0.01,
            2e8,
            bottleneck.FAR,
            "memory is the lower roof (below 1,000); while it computes it reaches 22 %",
        ),
    ],
)
def test_computing_far_from_its_roof_is_not_called_compute(
    tmp_path: Path, share: float, moved: float | None, kind: str, said: str
) -> None:
    """`moved`: bytes that operators were counted to move in a step of 0.1 s, where a copy reaches 1e10 a second."""
    peaks = {"peak_flops_per_second": 1e13, "peak_bytes_per_second": 1e10}
    report = {"forward_flops_per_sample": share * 1e13 / 960, **peaks, "moved_bytes": moved and int(moved)}
    made = found(tmp_path, Phased(ONE, STEP, report=report | ({} if moved else {"peak_bytes_per_second": None})))
    assert made.kind == kind and made.evidence.removesuffix(" of its roof.").endswith(said), made.evidence


def test_what_did_not_run_says_what_became_of_it(tmp_path: Path) -> None:
    lost = {"speed": None, "repeats": 1, "reason": "planted"}
    planted = [ONE, replace(TWO, status="oom", **lost), replace(TWO, allreduce="fp16", status="timeout", **lost)]
    made = {str(one.row["allreduce"]): one for one in bottlenecks(results.read(plant(tmp_path, planted)))}
    assert (made["fp32"].kind, made["fp32"].evidence) == ("memory", "Out of memory.")
    assert (made["fp16"].kind, made["fp16"].evidence) == ("not known", "Not measured: timeout.")
    assert not made["fp32"].shares


@pytest.mark.parametrize(
    ("shares", "kind"),
    [
        ({"compute": 0.4, "communication": 0.3, bottleneck.MIXED: 0.3}, None),
        ({"compute": 0.6, "communication": 0.1, bottleneck.MIXED: 0.3}, "compute"),
        ({"communication": 0.7, bottleneck.MIXED: 0.3}, "communication"),
        ({"input": 0.6, bottleneck.MIXED: 0.4}, "input"),
        ({"input": 0.4, bottleneck.OTHER: 0.6}, "input"),
    ],
)
def test_the_rule(shares: dict[str, float], kind: str | None) -> None:
    assert bottleneck.named(shares) == kind


# --- what would help ---


def helped(folder: Path, *phased: Phased) -> dict[str, float]:
    """Of the last of these: remedy -> percent at most."""
    read = results.read(plant_phased(folder, phased))
    ours = [row for row in read.configurations.to_dict("records") if row["framework"] == phased[-1].one.framework]
    return {one.name: round(100 * one.gain, 2) for one in bottleneck.remedies(read)[str(ours[-1]["configuration"])]}


def test_bounds_are_amdahls(tmp_path: Path) -> None:
    made = helped(tmp_path, BASE, Phased(TWO, grown(communication=0.025)))  # a fifth of the step
    assert made["Hiding all communication behind computing"] == pytest.approx(25.0)
    assert made["Halving the bytes of the gradients (16 bits)"] == pytest.approx(11.11)
    assert made["Computing in half the time"] == pytest.approx(100 * (1 / (1 - 0.36) - 1), abs=0.01)
    assert "Input that never keeps a step waiting" in made and "A pipeline without a bubble" not in made
    assert list(made.values()) == sorted(made.values(), reverse=True)


def test_halving_bytes_does_not_make_a_slow_rank_faster(tmp_path: Path) -> None:
    made = helped(tmp_path, BASE, Phased(TWO, grown(communication=0.010), lags=(0.0, 0.020)))
    assert made["Halving the bytes of the gradients (16 bits)"] == pytest.approx(
        100 * (1 / (1 - 0.005 / 0.13) - 1), abs=0.05
    )
    assert made["Ranks that are equally fast"] == pytest.approx(100 * (1 / (1 - 0.01 / 0.13) - 1), abs=0.05)


def test_a_bound_stands_beside_what_was_measured(tmp_path: Path) -> None:
    phased = [
        BASE,
        Phased(replace(TWO, allreduce="fp16"), grown(communication=0.0125)),
        Phased(TWO, grown(communication=0.025)),
    ]
    read = results.read(plant_phased(tmp_path, phased))
    row = next(r for r in read.configurations.to_dict("records") if r["allreduce"] == "fp32")
    said = [one.sentence for one in bottleneck.remedies(read)[str(row["configuration"])]]
    assert any("at most +11 % (fp16 was measured: +11 % [+11, +11])" in sentence for sentence in said)


def test_a_larger_batch_is_not_recommended_where_it_was_out_of_memory(tmp_path: Path) -> None:
    folder = plant_phased(tmp_path, [Phased(ONE, grown(optimizer=0.1))])
    plant(tmp_path / "out", [replace(ONE, batch_per_worker=64, status="oom", speed=None, repeats=1)])
    for trial in (tmp_path / "out" / "trials").iterdir():
        trial.rename(folder / "trials" / trial.name)
    made = next(iter(bottleneck.remedies(results.read(folder)).values()))
    larger = next(one for one in made if one.name == "Twice the batch on each worker")
    assert larger.but == "batch 64 was out of memory"
