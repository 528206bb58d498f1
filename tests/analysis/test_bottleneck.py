"""The bottleneck is what was planted, with its numbers; what cannot be told is not named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planted import Planted, plant
from planted_phases import STEP, Phased, grown, plant_phased

from analysis.frames import results
from analysis.views import bottleneck
from analysis.views.bottleneck import Bottleneck, Remedy, bottlenecks, remedies

ONE = Planted("single")
TWO = Planted("horovod", workers=2, allreduce="fp32")
DDP, FSDP = (replace(TWO, framework=name) for name in ("torch_ddp", "torch_fsdp2"))
BASE = Phased(ONE, STEP)
MEMORY = {"parameters": 40_000_000, "gradients": 40_000_000, "optimizer": 80_000_000, "buffers": 0,
          "activations": 100_000_000, "resident": 0}  # fmt: skip


def found(folder: Path, *phased: Phased) -> Bottleneck:
    """Of the last of these."""
    made = bottlenecks(results.read(plant_phased(folder, phased)))
    return next(one for one in made if one.row["framework"] == phased[-1].one.framework)


@pytest.mark.parametrize(
    ("one", "phases", "kind", "said", "shares"),
    [
        (ONE, STEP, "compute", "90 % of a step of 100 ms", {"compute": 0.9}),
        (ONE, grown(data=0.2), "input", "67 % of a step of 300 ms", {}),
        (ONE, grown(optimizer=0.2), "memory", "68 % of a step of 300 ms", {}),
        # Waiting inside backward is communication too.
        (DDP, grown(backward=0.2), "communication", "67 % of a", {"communication": 2 / 3, "compute": 0.3}),
        # What nothing tells apart is not named, but where it is the same either way.
        (FSDP, grown(backward=0.2), "not known", "97 % of a", {"compute or communication": 0.29 / 0.3}),
        (FSDP, grown(data=0.3), "input", "", {}),
    ],
)
def test_what_takes_the_largest_share_of_a_step_is_named(
    tmp_path: Path, one: Planted, phases: dict[str, float], kind: str, said: str, shares: dict[str, float]
) -> None:
    made = found(tmp_path, BASE, Phased(one, phases))
    assert made.kind == kind and made.evidence.startswith(said), made.evidence
    assert ("tells the two apart" in made.evidence) == (kind == "not known")
    assert {name: made.shares[name] for name in shares} == pytest.approx(shares)
    assert sum(made.shares.values()) == pytest.approx(1)


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
    dense = slow | {"forward_flops_per_sample": 1e10, "memory": MEMORY}
    assert found(tmp_path / "dense", Phased(ONE, STEP, report=dense)).kind == "compute"


@pytest.mark.parametrize(
    ("share", "moved", "kind", "said"),
    [
        (0.37, None, "compute", "37 % of the device's measured peak."),  # in 90 % of the step: 41 % while it computes
        (0.35, None, bottleneck.FAR, "35 % of the device's measured peak; while it computes it reaches 39 %"),
        (0.01, 8e8, "memory", "memory is the lower roof (below 1,000)."),
        (0.01, 2e8, bottleneck.FAR, "memory is the lower roof (below 1,000); while it computes it reaches 22 %"),
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


def helped(folder: Path, *phased: Phased) -> list[Remedy]:
    """What would help the last of these."""
    return remedies(results.read(plant_phased(folder, phased)))[phased[-1].one.trial().configuration]


def gains(helping: list[Remedy]) -> dict[str, float]:
    """Percent at most."""
    return {one.name: 100 * one.gain for one in helping}


def test_bounds_are_amdahls(tmp_path: Path) -> None:
    made = gains(helped(tmp_path, BASE, Phased(TWO, grown(communication=0.025))))  # a fifth of the step
    assert made["Hiding all communication behind computing"] == pytest.approx(25.0)
    assert made["Halving the bytes of the gradients (16 bits)"] == pytest.approx(100 / 9)
    assert made["Computing in half the time"] == pytest.approx(100 * (1 / (1 - 0.36) - 1), abs=0.01)
    assert "Input that never keeps a step waiting" in made and "A pipeline without a bubble" not in made
    assert list(made.values()) == sorted(made.values(), reverse=True)


def test_halving_bytes_does_not_make_a_slow_rank_faster(tmp_path: Path) -> None:
    made = gains(helped(tmp_path, BASE, Phased(TWO, grown(communication=0.010), lags=(0.0, 0.020))))
    for name, saved in (("Halving the bytes of the gradients (16 bits)", 0.005), ("Ranks that are equally fast", 0.01)):
        assert made[name] == pytest.approx(100 * (1 / (1 - saved / 0.13) - 1), abs=0.05)


def test_a_bound_stands_beside_what_was_measured(tmp_path: Path) -> None:
    narrow = Phased(replace(TWO, allreduce="fp16"), grown(communication=0.0125))
    made = helped(tmp_path, BASE, narrow, Phased(TWO, grown(communication=0.025)))
    assert any("at most +11 % (fp16 was measured: +11 % [+11, +11])" in one.sentence for one in made)


def test_a_larger_batch_is_not_recommended_where_it_was_out_of_memory(tmp_path: Path) -> None:
    plant(tmp_path, [replace(ONE, batch_per_worker=64, status="oom", speed=None, repeats=1)])
    made = helped(tmp_path, Phased(ONE, grown(optimizer=0.1)))
    larger = next(one for one in made if one.name == "Twice the batch on each worker")
    assert larger.but == "batch 64 was out of memory"
