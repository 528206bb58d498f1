"""The training loop that all frameworks share: steps, evaluations, checkpoints, and when it is over.      [torch]"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from scaling_study.measure import surroundings
from scaling_study.measure.clock import Console, Stopwatch
from scaling_study.measure.surroundings import described, with_backend
from scaling_study.measure.training import Norm, Training, now, share_buffers
from scaling_study.ranks import Ranks
from scaling_study.records import store
from scaling_study.records.schema import GradientNoise, RankReport, TrainingReport
from scaling_study.study.rules import no_native_loop
from scaling_study.targets import better
from scaling_study.train.checkpoints import Best, Checkpoints, Replicated, layout_of, name
from scaling_study.train.log import (
    AS_IT_RUNS,
    SIGNS,
    Log,
    Moved,
    Resources,
    TrainingProgress,
    finite,
    groups,
    last_sign,
    logged_loss,
    recordable,
)
from scaling_study.train.noise import Noise
from scaling_study.train.recipe import Recipe
from scaling_study.trial import Trial
from scaling_study.workloads import Batch, Workload
from scaling_study.workloads.feed import HeldOut, Metrics


def mean_loss(losses: Sequence[torch.Tensor], ranks: Ranks) -> tuple[float, int]:
    """(mean of the losses, the steps of a rank that it is over), of all ranks that have any: in a pipeline those with
    its last stage. Called by all."""
    own = float(torch.stack(list(losses)).double().sum()) if losses else 0.0
    loss_sum, count, having = ranks.total([own, float(len(losses)), float(bool(losses))])
    return loss_sum / count, round(count / having)


def clip(optimizer: torch.optim.Optimizer, max_norm: float, norm: Norm | None = None) -> None:
    """Clip the norm of all gradients before each step of an optimiser that holds them all; else `norm` knows it.

    Once a step: Horovod's optimiser calls both hooks twice, one pair inside the other, and a second clipping by torch's
    max_norm / (norm + 1e-6) takes another 1e-6 away.
    """
    clipped = False

    def before(*_: Any) -> None:
        nonlocal clipped
        if not clipped:
            held = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            total = norm(held) if norm else torch.nn.utils.get_total_norm([p.grad for p in held])
            meshes = {getattr(p.grad, "device_mesh", None) for p in held}  # tensors of one operation must lie on one
            torch.nn.utils.clip_grads_with_norm_(held, max_norm, total, foreach=None if len(meshes) == 1 else False)
        clipped = True

    def after(*_: Any) -> None:
        nonlocal clipped
        clipped = False

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def schedule(
    trial: Trial, workload: Workload, one_cycle: Callable[..., Any] | None = None, steps: int = 0
) -> Callable[[Optimizer], Any] | None:
    """A maker of schedulers for a library's own loop, of an optimiser that has made `steps`; None for our loop.

    Rates are those that our loop sets itself. The scheduler is torch's, or DeepSpeed's own `one_cycle` where that is
    the recipe's: without the betas that it would move too.
    """
    if trial.train_loop != "native":
        return None
    recipe = Recipe.of(trial, workload.steps_per_epoch, "")
    if one_cycle is None or recipe.schedule != "triangular":
        return lambda optimizer: LambdaLR(optimizer, recipe.rate, last_epoch=steps - 1)

    def own(optimizer: Optimizer) -> Any:
        (group,) = optimizer.param_groups
        largest = group["initial_lr"] = group["lr"]  # as torch's schedulers note it: this one begins with another
        half = (recipe.cycle_steps or 0) / 2
        return one_cycle(optimizer, recipe.start * largest, largest, cycle_first_step_size=half, cycle_momentum=False)

    return own


BLOCK_SECONDS = 5.0  # of steps, between two looks at the clock and two signs of life
WARMUP_STEPS = 4  # of throughput, as the clock's; seconds to a target have them too
SAVING_SHARE = 0.02  # of the time that saving may take
ON, STEPS, TARGET, PATIENCE, SECONDS, DIVERGED = range(6)
ENDED_BY = ("", "steps", "target", "patience", "seconds", "diverged")


def train(training: Training, trial: Trial, ranks: Ranks, record: str | None = None) -> RankReport:
    """Train to the end that the trial names, and return what came of it; called by all ranks with the same trial."""
    return Loop(training, trial, ranks, Path(record) if record else None).run()


class Loop:
    def __init__(self, training: Training, trial: Trial, ranks: Ranks, folder: Path | None) -> None:
        workload = training.workload
        assert workload.held_out is not None  # workloads.load sees to it
        self.training, self.trial, self.ranks, self.folder = training, trial, ranks, folder
        self.workload, self.held_out = workload, workload.held_out
        metrics = tuple(self.held_out.metrics())
        self.recipe = Recipe.of(trial, workload.steps_per_epoch, metrics[0])
        if self.recipe.metric not in metrics:
            raise SystemExit(f"model {trial.model} has no {self.recipe.metric}; it has {', '.join(metrics)}")
        self.native = training.native if trial.train_loop == "native" else None  # it sets the rates, and clips
        if trial.train_loop == "native" and (why := no_native_loop(trial.framework)):
            raise SystemExit(why)
        self.rates = [group.get("initial_lr", group["lr"]) for group in training.optimizer.param_groups]
        self.progress, self.step_seconds = TrainingProgress(), list[float]()
        self.losses: list[torch.Tensor] = []  # since the last evaluation, on the device
        self.orders, self.reading = list[str](), hashlib.sha256()  # of whole epochs, and of the one that is read
        self.layout = training.layout or layout_of(training.whole() if training.whole else workload.model)
        self.resumed_layout, self.validated = "", dict[str, float]()  # the latter by the last evaluation
        self.console, self.log = Console(trial, with_backend(ranks, training), workload), Log(folder, ranks.rank, trial)
        state = training.state or Replicated(workload.model, training.optimizer)
        self.checkpoints = Checkpoints(folder, state, trial, self.layout, ranks) if folder else None
        self.best = Best(folder, training, trial, ranks)
        self.saved_at, self.saving = time.monotonic(), 0.0
        self.validates = "validation" in self.held_out.sizes
        self.noise = Noise(training, trial, ranks)  # reads gradients before they are clipped
        self.resources, self.moved = Resources(training, trial, ranks), Moved(training)
        if workload.loss_parts:
            workload.loss_parts.forget()
        if trial.train_clip_norm and not self.native:
            clip(training.optimizer, trial.train_clip_norm, training.norm)

    def run(self) -> RankReport:
        """Every step, then the test set, once."""
        began = time.time()
        self.resume()
        if not self.native:  # which has loggers of its own
            self.timed("log", lambda: self.log.open(self.progress.steps))
        self.log.progress(**self.signs())
        self.resources.start()
        with surroundings.settled():
            ended = self.native(self) if self.native else self.fit()
        self.resources.stop()
        tested = self.take_best()
        if tested == self.progress.best_step:
            self.keep_best()
        test = self.timed("test", lambda: self.scored("test"))
        self.timed("log", self.log.close)
        report = self.report(began, ENDED_BY[ended], {"step": tested, **test})
        if self.folder:
            store.write_rank(self.folder, report)
        if self.checkpoints:
            self.checkpoints.remove()
        self.log.progress(**self.signs(), over=True)
        reached = f"; {self.trial.train_target} {'reached' if ended == TARGET else 'not reached'}"
        self.log.print(
            f"Trained {self.progress.steps} steps in {self.progress.seconds['train']:.1f} s, ended by "
            f"{ENDED_BY[ended]}{reached if self.trial.train_target else ''}. "
            f"Test of the model after step {tested}: {shown(test)}"
        )
        return report

    def fit(self) -> int:
        """Make steps, evaluations and checkpoints until the training is over; by what it ended."""
        ended = self.verdict() if self.progress.rows else ON
        while ended == ON:
            stop = self.recipe.next_stop(self.progress.steps)
            while self.progress.steps < stop and ended == ON:
                self.block(stop)
                ended = self.out_of_time()
            with self.training.paused():
                self.evaluate()
                ended = self.over(ended)
                self.save(ended)
        return ended

    def count(self, stop: int) -> int:
        """Steps to the next look at the clock, agreed: about BLOCK_SECONDS of them, and none beyond `stop`."""
        mean = sum(self.step_seconds[-20:]) / len(self.step_seconds[-20:]) if self.step_seconds else BLOCK_SECONDS
        return int(self.ranks.agree(min(stop - self.progress.steps, max(1, int(BLOCK_SECONDS / mean)))))

    def block(self, stop: int) -> None:
        count = self.count(stop)
        watch, batches = Stopwatch(*self.ranks.devices), self.workload.batches
        watch.start()
        for _ in range(count):
            if not self.native:
                factor = self.recipe.rate(self.progress.steps)
                for group, rate in zip(self.training.optimizer.param_groups, self.rates, strict=True):
                    group["lr"] = rate * factor
            fetching, computing = time.perf_counter(), batches.computing()
            batch = next(batches)
            self.progress.data_seconds += time.perf_counter() - fetching - (batches.computing() - computing)
            with self.resources.watching():
                loss = self.noise.step(batch, self.progress.steps + 1)
            if loss is not None:
                self.losses.append(loss)
            self.progress.steps += 1
            self.note_order(batches.ids, self.progress.steps)
            watch.lap()
        self.made(watch.seconds())

    def made(self, seconds: list[float]) -> None:
        """Count in the seconds of the steps since the last look at the clock, and give a sign of life."""
        self.step_seconds += seconds
        self.progress.seconds["train"] += sum(seconds)
        self.noise.settle(self.step_seconds, self.recipe)
        if self.progress.steps == len(seconds):
            self.progress.loss_first = finite(mean_loss(self.losses[:1], self.ranks)[0])
        left = self.recipe.steps and (self.recipe.steps - self.progress.steps) * sum(seconds) / len(seconds)
        self.log.progress(
            **self.signs(),
            of=self.recipe.steps,
            seconds_left=left,
            last=(self.progress.rows or [{}])[-1],
            epoch=self.progress.epochs(self.recipe.steps_per_epoch),
            seconds=self.progress.seconds["train"],
        )

    def note_order(self, ids: torch.Tensor, step: int) -> None:
        """Add the samples of a step, from 1, to the digest of its epoch. Of rounds, with several batches each, none."""
        if self.training.rounds:
            return
        self.reading.update(ids.numpy().data)
        if step % self.recipe.steps_per_epoch == 0:
            self.orders.append(self.reading.hexdigest()[:16])
            self.reading = hashlib.sha256()

    def signs(self) -> dict[str, int]:
        return {key: getattr(self.progress, key) for key in SIGNS}

    def out_of_time(self) -> int:
        """SECONDS once rank 0 has trained for as long as it may."""
        most = self.recipe.max_seconds
        return ON if most is None else int(self.ranks.agree(SECONDS if self.progress.seconds["train"] >= most else ON))

    def evaluate(self) -> None:
        """A row of the loss of the steps since the last one, and of the metrics on the validation split."""
        self.row(self.timed("evaluate", lambda: self.scored("validation")) if self.validates else {})

    def row(self, scores: dict[str, float]) -> None:
        """Log an evaluation with these figures of the validation split; called by all ranks."""
        samples = self.progress.steps * self.trial.global_batch
        if self.training.rounds:  # what all ranks really gave to averaging rounds
            self.progress.samples += int(self.ranks.total([self.training.rounds.uncounted()])[0])
            samples = self.progress.samples
        (train_loss, loss_steps), parts = mean_loss(self.losses, self.ranks), self.workload.loss_parts
        self.losses.clear()
        self.validated, self.progress.noise = scores, self.noise.record()
        row = {
            "steps": self.progress.steps,
            "samples": samples,
            "epoch": samples / self.trial.global_batch / self.recipe.steps_per_epoch,  # a round may be of more
            "seconds": self.progress.seconds["train"],
            "all_seconds": sum(self.progress.seconds.values()),
            "learning_rate": self.rates[0] * self.recipe.rate(self.progress.steps - 1),  # of the last step
            "train_loss": train_loss,
            "loss_steps": loss_steps,
            **(parts.means(self.ranks) if parts else {}),
            **self.progress.step_means(),
            **{name: value for name, value in scores.items() if name != "samples"},
        }
        self.progress.rows.append(row)
        self.progress.data_seconds_logged = self.progress.data_seconds
        value = row.get(self.recipe.metric)
        if value is not None and better(self.recipe.metric, value, self.progress.best):
            self.progress.best, self.progress.best_step = value, self.progress.steps
            self.keep_best()
        self.timed("log", lambda: self.log.rows(self.progress.rows))
        self.log.print(
            f"Epoch {row['epoch']:.2f}, {row['seconds']:.1f} s: training loss {row['train_loss']:.4f}, "
            f"validation {shown(scores) or 'none'}"
        )

    def scored(self, split: str) -> dict[str, float]:
        forward = self.training.whole() if self.training.whole else self.training.forward
        return evaluate(self.held_out, split, self.workload, forward, self.ranks)

    def verdict(self) -> int:
        """The reason why the training is over after its last evaluation, or ON."""
        recipe, row = self.recipe, self.progress.rows[-1]
        value = row.get(recipe.metric)
        if not math.isfinite(row["train_loss"]):
            return DIVERGED
        if recipe.target and value is not None and recipe.target.reached(value):
            return TARGET
        if recipe.patience and self.since_best() >= recipe.patience:
            return PATIENCE
        return STEPS if recipe.steps is not None and self.progress.steps >= recipe.steps else ON

    def over(self, ended: int) -> int:
        """The reason why the training is over after an evaluation, or ON, agreed; `ended`: what it was before.

        A target that is met, or a loss that is no number, counts also where the time is over.
        """
        verdict = self.verdict()
        return int(self.ranks.agree(verdict if verdict in (TARGET, DIVERGED) else ended or verdict))

    def since_best(self) -> int:
        return sum(row["steps"] > (self.progress.best_step or 0) for row in self.progress.rows)

    def save(self, ended: int) -> None:
        """A checkpoint, unless saving took too much of the time so far; none of what is over but for the test.

        With patience also of each model that is the best so far, whatever it takes: it may be the one that is tested.
        """
        due = self.saving <= SAVING_SHARE * (time.monotonic() - self.saved_at)
        due |= bool(self.recipe.patience) and self.progress.best_step == self.progress.steps
        if not self.checkpoints or ended != ON or not self.ranks.agree(due):
            return
        start, more = (
            time.monotonic(),
            {"progress": recordable(vars(self.progress)), "best_step": self.progress.best_step},
        )
        write = partial(self.checkpoints.save, self.progress.steps, more, self.step_seconds, self.training.scaler)
        self.timed("save", write)
        self.saved_at, self.saving = time.monotonic(), time.monotonic() - start

    def keep_best(self) -> None:
        """Leave the weights as they are now in a file, where the trial asks for that."""
        progress, epoch = self.progress, (self.progress.best_step or 0) / self.recipe.steps_per_epoch
        self.timed("save", lambda: self.best.keep(progress.best_step, epoch, self.recipe.metric, progress.best))

    def take_best(self) -> int:
        """Make the model that is tested the best on validation data, with patience; the step that it was made by."""
        if self.training.best:
            return self.training.best()
        best, last = self.progress.best_step, self.progress.steps
        if not self.recipe.patience or not self.checkpoints or best is None or best == last:
            return last
        self.checkpoints.state.load(self.checkpoints.folder / name(best), self.ranks)
        return best

    def resume(self) -> None:
        """Go on from the last whole checkpoint, or begin anew; count that, and the steps that are made again."""
        if not self.checkpoints or self.folder is None:
            return
        before = last_sign(self.folder)
        self.log.progress(**(before or self.signs()))  # it may be killed while it waits for the others, or loads
        latest = self.checkpoints.latest()
        path, saved = latest or (None, {"progress": {}})
        at, resumed, lost = (saved["progress"].get(key, 0) for key in SIGNS)
        if self.ranks.agree(bool(before or latest)):  # as rank 0 saw it: the others may see its next sign already
            furthest, *signed = (int(self.ranks.agree(before.get(key, 0))) for key in SIGNS)
            resumed, lost = max(signed[0], resumed) + 1, max(signed[1], lost) + max(0, furthest - at)
            self.log.progress(**dict(zip(SIGNS, (at, resumed, lost), strict=True)))
        if not path:
            self.best.begin()
        else:
            self.step_seconds, self.resumed_layout = self.checkpoints.load(path), saved["about"]["weights"]
            self.progress = TrainingProgress(**saved["progress"])
            self.noise.go_on(self.progress.noise)
            if self.training.scaler and saved["scaler"]:
                self.training.scaler.load_state_dict(saved["scaler"])
            for step in range(1, self.progress.batches(self.trial.batch_per_worker * self.ranks.world_size) + 1):
                self.note_order(self.workload.batches.skip(), step)
            self.log.print(f"Going on from {path.name}, {self.progress.seconds['train']:.1f} s of training")
        self.progress.resumed, self.progress.lost_steps = resumed, lost

    def timed(self, what: str, action: Callable[[], Any]) -> Any:
        start = now(*self.ranks.devices)
        result = action()
        self.progress.seconds[what] += now(*self.ranks.devices) - start
        return result

    def report(self, began: float, ended: str, test: dict[str, float]) -> RankReport:
        """This rank's report, without what only the clock measures; its `training` is in docs/reference/record.md."""
        progress, held_out, seconds, workload = self.progress, self.held_out, self.step_seconds, self.workload
        training = {
            "loop": "native" if self.native else "ours",
            "ended_by": ended,
            "target": self.trial.train_target or "",
            "reached": progress.rows[-1] if ended == "target" else None,
            "rows": progress.rows,
            "best_step": progress.best_step,
            "seconds": progress.seconds,
            "steps": progress.steps,
            "resumed": progress.resumed,
            "lost_steps": progress.lost_steps,
            "groups": groups(self.training.optimizer, self.rates, workload.model, workload.frozen, workload.part_sizes),
            "moved": self.moved.by_part(),
            "logged_loss": logged_loss(progress.rows),
            "splits": held_out.published,
            "in_both": held_out.in_both,
            "selected_on": "validation" if self.validates else "",
            "layout": self.layout,
            "resumed_layout": self.resumed_layout,
            "data_seconds": progress.data_seconds or None,  # unknown in Lightning's loop
            "orders": self.orders,
            "one_order": "" if workload.reshuffles else AS_IT_RUNS,
            "evaluated": {"split": "test", **test},
            "validated": {"split": "validation", **self.validated} if self.validated else {},
        }
        warm = min(WARMUP_STEPS, len(seconds) // 2)
        # Rounds are since the training was last gone on from; of those before, a step's share is what it was to be.
        rounds, steps = self.training.rounds.since(0) if self.training.rounds else [], len(seconds) - warm
        seen = [each.samples for each in rounds[-steps:]]
        return RankReport(
            **{**described(self.training, self.trial, self.ranks), "learning_rate": self.rates[0]},
            first_step_at=began,
            warmup_seconds=seconds[:warm],
            step_seconds=seconds[warm:],
            samples_seen=sum(seen) + (steps - len(seen)) * workload.samples_per_step,
            rounds=rounds,
            tokens_seen=None,
            phases=None,
            allreduce_bytes=None,
            communication_bytes={},
            loss_first=progress.loss_first,
            loss_last=finite(progress.rows[-1]["train_loss"]) if progress.rows else None,
            notes=[*workload.notes, *workload.batches.notes()],
            training=TrainingReport(**recordable(training), noise=GradientNoise(**recordable(progress.noise))),
            **self.resources.report(),
        )


def shown(scores: dict[str, float]) -> str:
    """`accuracy 0.4512, loss 1.5302`."""
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items() if name != "samples")


def evaluate(
    held_out: HeldOut, split: str, workload: Workload, forward: nn.Module | None, ranks: Ranks
) -> dict[str, float]:
    """{metric: value, "samples": n} of a whole split, each sample once, on every rank; called by all.

        places   0 1 2 3 4 5 6        rank 0: 0 2 4 6       rank 1: 1 3 5 (0)      (0) fills a batch and does not count

    Ranks make equally many batches: sharded models gather their weights in each. What is reduced are the metrics'
    states, which are sums over samples, never the ranks' means (F27). `forward`: the model as it is to be called.
    """
    model = forward or workload.model
    share_buffers(model, ranks)
    metrics, counted = held_out.metrics(), 0
    model.eval()
    with torch.no_grad():
        for batch, real in batches(held_out, split, ranks):
            held_out.update(metrics, model, batch, real.to(ranks.device))
            counted += int(real.sum())
    model.train()
    (samples,) = ranks.total([float(counted)])
    return {**reduced(metrics, ranks), "samples": samples}


def batches(held_out: HeldOut, split: str, ranks: Ranks) -> Iterator[tuple[Batch, torch.Tensor]]:
    """This rank's share of a split: batches, and which samples of each, (b,) bool on the host, are to be counted."""
    size = held_out.sizes[split]
    most = -(-size // ranks.world_size)  # samples of the rank that has most
    for places in torch.arange(ranks.rank, most * ranks.world_size, ranks.world_size).split(min(held_out.batch, most)):
        real = places < size
        yield held_out.fetch(split, torch.where(real, places, 0)), real


def reduced(metrics: Metrics, ranks: Ranks) -> dict[str, float]:
    """Each metric over all ranks, from states that are added up. Called by all."""
    states = [
        (metric, state, torch.as_tensor(value))
        for metric in metrics.values()
        for state, value in metric.metric_state.items()
    ]
    flat = torch.cat([value.double().reshape(-1).cpu() for _, _, value in states])
    totals = torch.tensor(ranks.total(flat.tolist()), dtype=torch.float64).split([v.numel() for _, _, v in states])
    for (metric, state, value), total in zip(states, totals, strict=True):
        setattr(metric, state, total.to(value.dtype).view_as(value).to(value.device))
    for metric in metrics.values():
        metric._update_count = max(1, metric._update_count)  # a rank without a sample has the others' too
    return {name: float(metric.compute()) for name, metric in metrics.items()}
