"""Seconds to a target with workers that were not trained with: samples at their global batch over their throughput.

Throughput is predicted from timed runs of one worker (predict.py), samples are those of the curve that was fitted to
the trainings of the same study (to_target/critical_batch.py). Where that global batch was trained, the curve is fitted
anew without it, so that no prediction uses what it is held against; where too little is left, it is held against
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.frames.baseline import same, value_of
from analysis.frames.results import Results
from analysis.prediction.predict import Prediction
from analysis.statistics.log_estimates import LogEstimate, between, exactly
from analysis.to_target import critical_batch
from analysis.to_target.critical_batch import Curve
from analysis.to_target.recipes import Recipe, recipes
from scaling_study.stats.intervals import FEWEST_REPEATS

ALIKE = ("model", "precision", "data", "input", "image_size", "image_width", "freeze", "sequence_length", "padding")


@dataclass(frozen=True)
class Expected:
    """`seconds` to the target; `measured`: of the same framework, workers and batch, where it was trained. `inside`:
    whether the global batch lies within those that the curve was fitted to."""

    prediction: Prediction
    recipe: Recipe
    batch: int
    samples: LogEstimate
    seconds: LogEstimate
    inside: bool
    measured: LogEstimate | None

    @property
    def hours(self) -> float:
        """Of all workers."""
        return self.seconds.value * self.prediction.workers / 3600

    @property
    def error(self) -> LogEstimate | None:
        """Predicted over measured."""
        return None if self.measured is None else self.seconds / self.measured


def expected(results: Results, predictions: Sequence[Prediction]) -> list[Expected]:
    """Of every prediction and each recipe that was trained with the same model and precisions; none where no curve
    could be fitted."""
    made = []
    for recipe in recipes(results):
        for prediction in predictions:
            if not _alike(recipe, prediction):
                continue
            batch = prediction.workers * prediction.target.alone.samples
            without = critical_batch.fit([one for one in recipe.needed if one.batch != batch])
            curve = without if isinstance(without, Curve) else recipe.curve
            if isinstance(curve, Curve):
                samples, speed = curve.samples(batch), _speed(prediction)
                inside = curve.batches[0] <= batch <= curve.batches[-1]
                measured = _measured(recipe, prediction, batch) if curve is without else None
                made.append(Expected(prediction, recipe, batch, samples, samples / speed, inside, measured))
    return made


def _alike(recipe: Recipe, prediction: Prediction) -> bool:
    row, other = recipe.trained[0].row, prediction.target.row
    narrow = [str(one.row["allreduce"]) for one in recipe.trained if one.row["allreduce"] not in ("none", "fp32")]
    wire = narrow[0] if narrow else "fp32"
    return wire == prediction.allreduce and all(same(value_of(row, key), value_of(other, key)) for key in ALIKE)


def _speed(prediction: Prediction) -> LogEstimate:
    """Without an interval where one worker was run too few times."""
    speed = prediction.samples_per_second
    if speed.low is None or speed.high is None or prediction.target.alone.repeats < FEWEST_REPEATS:
        return LogEstimate(exactly(speed.mean).log, float("nan"), float("nan"))
    return between(speed.mean, speed.low, speed.high, prediction.target.alone.repeats - 1)


def _measured(recipe: Recipe, prediction: Prediction, batch: int) -> LogEstimate | None:
    if batch not in recipe.samples:
        return None
    for one in recipe.trained:
        same_way = one.row["framework"] == prediction.target.row["framework"]
        if same_way and one.row["workers"] == prediction.workers and one.batch == batch:
            return recipe.samples[batch] / one.speed
    return None
