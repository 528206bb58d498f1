"""Every prediction that a study allows: its one-worker steps on its network, at all the worker counts asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.prediction import against, predict, probed, targets
from analysis.prediction import contention as crowding
from analysis.prediction.against import Checked
from analysis.prediction.fusion import Fusion
from analysis.prediction.network import CannotPredict, Network
from analysis.prediction.predict import Prediction

NO_NETWORK = (
    "{results} holds no measured network. Give one: --bandwidth 25Gbit --latency 5us; or measure it: add a sweep with "
    "framework: network_probe to the study"
)
ONLY_TRAINED = (
    "only trainings to a result, which time no part of a step. Add a sweep of one worker with the same model and batch "
    "and without `train`"
)


@dataclass(frozen=True)
class Asked:
    """What a person wants to know; None and () leave it to the study."""

    workers: Sequence[int]
    algorithms: Sequence[str] = ()
    allreduce: Sequence[str] = ()
    network: Network | None = None
    fusion_bytes: int | None = None
    cycle_seconds: float | None = None
    straggle: bool = True
    crowding: float | None = None
    check: bool = False


@dataclass(frozen=True)
class Forecast:
    """`checked`: those that could be held against a measurement; `wrong`: what could not be predicted, and why."""

    predictions: tuple[Prediction, ...]
    checked: tuple[Checked, ...]
    wrong: tuple[str, ...]
    straggle: bool
    crowding: float
    crowding_pairs: int  # from which it was measured; 0: given, or none


def forecast(results: Results, folder: Path, asked: Asked) -> Forecast:
    """Raises CannotPredict where the study has no step to predict from, or no network is known."""
    chosen, wrong = targets.targets(results, folder, asked.allreduce)
    if not chosen:
        nothing = ONLY_TRAINED if len(results.details.trained) else "no finished trial"
        raise CannotPredict(f"{folder} has nothing to predict from: {'; '.join(wrong) or nothing}")
    probes = [] if asked.network else probed.probes(results)
    if not asked.network and not probes:
        raise CannotPredict(NO_NETWORK.format(results=folder))
    chosen = [replace(target, fusion=tuned(target.fusion, asked)) for target in chosen]
    on = [(target, asked.network or probed.network_of(target.row, probes)) for target in chosen]
    rows = results.rows
    per_host = max(network.workers_per_host for _, network in on)

    def crowded(without: Sequence[str] = ()) -> float:
        return asked.crowding or crowding.factor(crowding.pairs(rows, per_host, without))

    def again(prediction: Prediction, run: ConfigurationRow) -> Prediction:
        placed = prediction.network.placed(prediction.workers, probed.hosts_of(run))
        without = crowded([str(run["configuration"])])
        return predict.predict(
            prediction.target,
            prediction.allreduce,
            prediction.algorithm,
            prediction.workers,
            placed,
            asked.straggle,
            without,
        )

    predictions = tuple(predict.predictions(on, asked.workers, asked.algorithms, asked.straggle, crowded()))
    checked = against.check(predictions, rows, again) if asked.check or not asked.network else []
    pairs = 0 if asked.crowding else len(crowding.pairs(rows, per_host))
    return Forecast(predictions, tuple(checked), tuple(wrong), asked.straggle, crowded(), pairs)


def tuned(fusion: Fusion, asked: Asked) -> Fusion:
    """With the knobs that were asked for."""
    if asked.fusion_bytes is not None:
        fusion = replace(fusion, most_bytes=float(asked.fusion_bytes), first_bytes=None)
    return fusion if asked.cycle_seconds is None else replace(fusion, cycle_seconds=asked.cycle_seconds)
