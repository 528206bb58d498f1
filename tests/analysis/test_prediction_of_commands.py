"""A user's command is predicted where its collectives were seen to share gradients as something that is simulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from planted import Planted
from planted_phases import STEP, Phased, plant_phased

from analysis.__main__ import main
from analysis.frames import results
from analysis.prediction import inputs
from analysis.prediction.simulate import AFTERWARDS, DDP, HOROVOD, Fusion

ONE = Planted("command", "script:train.py", keys=(("command", "torchrun --nproc-per-node {workers} train.py"),))
TWO = replace(ONE, workers=2, allreduce="fp32")
SEEN = {"backend": "gloo", "reduced_by": "torch.distributed", "reduced_in": "backward", "reduced_calls": 2}
BYTES = 4000  # of the planted gradients


def targets(folder: Path, one: dict[str, Any], *two: dict[str, Any]) -> tuple[list[inputs.TrainingTarget], list[str]]:
    phased = [Phased(ONE, STEP, report=one), *(Phased(TWO, STEP, report=report) for report in two)]
    plant_phased(folder, phased)
    return inputs.targets(results.read(folder), folder)


@pytest.mark.parametrize(
    ("backend", "fusion"),
    [
        (SEEN, DDP),
        ({**SEEN, "reduced_by": "horovod"}, HOROVOD),
        ({**SEEN, "reduced_in": "rest"}, replace(AFTERWARDS, most_bytes=BYTES / 2)),
    ],
)
def test_a_command_shares_gradients_as_its_collectives_show(
    backend: dict[str, Any], fusion: Fusion, tmp_path: Path
) -> None:
    (target,), wrong = targets(tmp_path, {}, {"backend": backend})
    assert (target.fusion, target.wires, wrong) == (fusion, ("fp32",), [])
    assert target.alone.step.backward_seconds == pytest.approx(STEP["backward"], rel=0.01)


def test_of_several_backward_passes_only_the_last_sends(tmp_path: Path) -> None:
    (target,), _ = targets(tmp_path, {"backend": {"backwards": 4}}, {"backend": {**SEEN, "backwards": 4}})
    assert target.alone.step.backward_seconds == pytest.approx(STEP["backward"] / 4, rel=0.01)


@pytest.mark.parametrize(
    ("reports", "said"),
    [
        ([], "it was not run with several workers and this batch"),
        ([{}], "its records do not say in which part of a step it sends them, as newer ones do"),
        ([{"communication_bytes": {}, "backend": SEEN}], "collectives and parameters of a step were not both counted"),
        ([{"parameters": 0, "backend": SEEN}], "collectives and parameters of a step were not both counted"),
        ([{"communication_bytes": {"allreduce": 2000}, "backend": SEEN}], "a step hands 0.0020 MB to allreduce, and"),
        (
            [{"communication_bytes": {"all_gather": 8000, "reduce_scatter": BYTES}, "backend": SEEN}],
            "a step hands 0.0080 MB to all_gather, 0.0040 MB to reduce_scatter, and not its 0.0040 MB of gradients",
        ),
    ],
)
def test_where_they_show_nothing_that_is_simulated_it_says_why(
    reports: list[dict[str, Any]], said: str, tmp_path: Path
) -> None:
    chosen, (wrong,) = targets(tmp_path, {}, *reports)
    assert not chosen and f"command, batch 32: how it shares its gradients is not known: {said}" in wrong


def test_more_workers_of_a_command_are_predicted_and_held_against_its_own(tmp_path: Path) -> None:
    targets(tmp_path, {}, {"backend": SEEN})
    assert main(["predict", str(tmp_path), "--workers", "2,8", "--bandwidth", "25Gbit", "--latency", "5us",
                 "--algorithm", "ring", "--check", "-q"]) == 0  # fmt: skip
    frame = pd.read_csv(tmp_path / "tables" / "prediction.csv")
    assert list(zip(frame.framework, frame.workers, strict=True)) == [("command", 2), ("command", 8)]
    assert frame.measured_samples_per_second.notna().tolist() == [True, False]
    assert (frame.efficiency > 0.5).all()
