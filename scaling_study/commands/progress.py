"""The terminal display of a sweep: its beginning, its progress, its end."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scaling_study.errors import printable
from scaling_study.estimate import Estimate
from scaling_study.launch.shared_launch import Watch
from scaling_study.models import NO_MODEL
from scaling_study.processes.process import Interruption
from scaling_study.records import store
from scaling_study.records.results import Summary
from scaling_study.records.schema import BUSY_CORES
from scaling_study.stats.intervals import FEWEST_REPEATS, between_repeats
from scaling_study.study.plan import Plan, Planned
from scaling_study.sweep import Run
from scaling_study.trial import RENAMED, Trial


def print_before(console: Console, plan: Plan, wanted: Sequence[Planned], job: Run, estimate: Estimate) -> None:
    """One paragraph before the first trial."""
    left = [planned for planned in wanted if not job.kept(planned)]
    console.print(f"[bold]{plan.study.name}[/] on {escape(str(plan.machine))}", soft_wrap=True)
    for line in job.edits:
        console.print(escape(line), soft_wrap=True)
    for note in plan.notes:
        console.print(f"Note: {escape(note)}", soft_wrap=True)
    if finished := kept(len(wanted) - len(left), len(wanted)):
        console.print(finished)
    to_run = [planned for planned in left if planned.unsupported or not job.implied(planned.trial)]
    if len(to_run) < len(left):
        pruned = len(left) - len(to_run)
        console.print(f"Skipped because a smaller batch ran out of memory: {pruned} (--no-prune runs them).")
    console.print(cost(to_run, estimate), soft_wrap=True)


def print_after(
    console: Console,
    job: Run,
    mine: Sequence[Summary],
    remaining: Sequence[Planned],
    interruption: Interruption,
    again: str,
    quiet: bool,
    no_report: bool = False,
) -> None:
    """Print failures, the place of results and the command that goes on."""
    groups: dict[tuple[str, str], list[Summary]] = {}
    for record in mine:
        if record.status not in ("ok", "unsupported"):  # the tables list the latter, with their reasons
            groups.setdefault((record.status, record.reason), []).append(record)
    for (status, reason), group in groups.items():
        more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
        where = "not run; --no-prune runs it" if group[0].implied else f"its log: {_log(job.folder, group[0])}"
        line = f"{escape(group[0].id)}{more}: {escape(reason)}; {escape(where)}"
        console.print(f"[bold]{status}[/]: {line}", soft_wrap=True)
    if interruption.signal is not None or remaining:
        why = f"Stopped by {interruption.signal.name}" if interruption.signal is not None else "Stopped at --max-trials"
        remain = f", {len(remaining)} remain" if remaining else ""  # of those that were certain to run
        done = "1 finished trial is kept" if len(mine) == 1 else f"{len(mine)} finished trials are kept"
        console.print(f"{why}; {done}{remain}.")
        console.print(f"To resume: {escape(again)}", soft_wrap=True)
    if not quiet:
        later = f"Records: {job.folder}/; their tables and figures: scaling-study tables {job.folder}"
        drawn = any(record.trial.find != "parity" for record in job.records.values())
        there = f"{'Tables, figures and records' if drawn else 'Records and logs'}: {job.folder}/"
        console.print(escape(later if no_report else there), soft_wrap=True)


def _log(results: Path, record: Summary) -> Path:
    """The log that explains a record: of its own processes, of the launch that it shared, or of its run alone."""
    trial = results / "trials" / record.id
    if (shared := results / "launches" / record.launch / "log.txt").exists() and record.launch:
        return own if (own := trial / "log.txt").exists() else shared
    return alone if (alone := trial / "alone" / "log.txt").exists() else trial / "log.txt"


def kept(count: int, trials: int) -> str:
    """The trials that are not run again, in words; empty for none."""
    return f"{count} of {trials} trials are already finished and kept." if count else ""


def cost(wanted: Sequence[Planned], estimate: Estimate) -> str:
    """The estimated time, and what repeats for the target interval could add."""
    seconds = sum(estimate(planned) for planned in wanted)
    runnable = {p.trial.configuration: p for p in wanted if not p.unsupported and p.trial.model != NO_MODEL}
    widened = [p for p in runnable.values() if p.measure.repeats >= FEWEST_REPEATS]  # of fewer no spread is known
    most = sum(estimate(p) * (p.measure.max_repeats - p.measure.repeats) for p in widened)
    checks = sum(planned.trial.find == "parity" for planned in wanted)
    text = f"Estimated time: about {clock(seconds)} for {len(wanted) - checks} trials"
    text += f" and {checks} parity check{'s' * (checks > 1)}" if checks else ""
    if most:
        target = min(p.measure.target_interval for p in widened)
        text += f", up to {clock(most)} more for launches while a margin is above ±{100 * target:g}%"
    return f"{text}."


COLOURS: Mapping[str, str] = {
    "ok": "green",
    "failed": "red",
    "oom": "magenta",
    "timeout": "yellow",
    "unsupported": "bright_black",
    "cancelled": "yellow",
}

SHOWN = ("train_loss", "accuracy", "matthews", "perplexity")  # of a training's last evaluation
WIDEST = 0.3  # a wider margin says nothing of the next launch: it is no number to show
UNKNOWN = f"margin above ±{100 * WIDEST:g} %"
MAY_BE_ALIKE = ("model", "batch_per_worker", "allreduce", "workers", "hosts")  # in all configurations of a sweep
SAID = {  # keys that a line says in words of its own, or that set no two configurations apart
    *MAY_BE_ALIKE,
    *("framework", "global_batch", "command", "env", "workdir", "seed", "warm", "machine", "repeat"),
    *("schedule", "stages", "virtual_stages", "micro_batches", "stage_cut", "replicas", "shard_group"),
    *("tensor_parallel", "context_parallel", "sequence_parallel", "loss_parallel", "attention"),
}
REDRAWS_PER_SECOND = 0.2  # between events: drawing takes milliseconds of the very cores that are being measured


class Progress(Watch):
    """Shows `planned` configurations; the sweep tells it what starts and what has finished."""

    def __init__(
        self,
        console: Console,
        plan: Plan,
        trials: Sequence[Planned],
        estimate: Estimate,
        quiet: bool,
        results: Path | None = None,
    ) -> None:
        self.console, self.estimate, self.quiet, self.results = console, estimate, quiet, results
        self.pending: set[str] = set()  # ids
        self.waiting: Counter[str] = Counter()  # how many trials each configuration is still to have
        self.seconds: dict[str, float] = {}  # of one of them
        self.shown: dict[str, Trial] = {}
        self.total = self.done = 0
        self.expects(trials)
        configurations = {p.trial.configuration: p.trial for p in plan.configurations}  # as the study has them
        self.shown = {name: trial for name, trial in configurations.items() if name in self.waiting}
        own = list(self.shown.values())
        alike = (key for key in MAY_BE_ALIKE if len({getattr(trial, key) for trial in own} - {"none"}) == 1)
        self.alike = frozenset(alike if len(own) > 1 else ())
        self.more = [name for name in telling(own) if name not in SAID]
        self.width = max((len(self._named(trial)) for trial in own), default=0)
        self.rows: dict[str, list[Summary]] = {}
        self.running: Trial | None = None
        self.launch = ""  # how far one is that configurations share
        self.blocks: dict[str, list[float]] = {}  # of it, by configuration: samples per second of each
        self.since = self.started = time.monotonic()
        self._live = Live(
            console=console, get_renderable=self.render, refresh_per_second=REDRAWS_PER_SECOND, transient=True
        )

    def __enter__(self) -> Progress:
        if self.console.is_terminal and not self.quiet:
            self._live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live.is_started:
            self._live.stop()

    def starts(self, planned: Planned) -> None:
        self.running, self.since = planned.trial, time.monotonic()
        self._redraw()

    def building(self, trial: Trial) -> None:
        self.running, self.launch = trial, f"launch {trial.repeat}: building {self._named(trial)}"
        self._redraw()

    def alone(self, trial: Trial) -> None:
        self.running = trial
        self.launch = f"separate launch {trial.repeat}, as it failed beside others: {self._named(trial)}"
        self._redraw()

    def block_begins(self, launch: int, block: int, of: int) -> None:
        self.launch = f"launch {launch}: block {block} of {of}"
        if block == 1:
            self.blocks.clear()
        if not self.quiet and not self._live.is_started:
            left = clock(self.remaining_seconds())
            self.console.print(f"{self.launch}, {left} left{self._widths()}", highlight=False, soft_wrap=True)
        self._redraw()

    def _widths(self) -> str:
        """The intervals of this launch so far, `; ± 2.1% (5.0% at most) over its blocks`.

        No winner is named before all launches are over: whoever looks often finds something.
        """
        intervals = [between_repeats(rates) for rates in self.blocks.values() if len(rates) > 2]
        widths = [width for each in intervals if (width := each.relative_half_width) is not None]
        if widths and max(widths) > WIDEST:
            return f"; {UNKNOWN}"
        return f"; ± {median(widths):.1%} ({max(widths):.1%} at most) over its blocks" if widths else ""

    def expects(self, more: Sequence[Planned]) -> None:
        """Add trials that the spread of the planned ones asks for."""
        new = [planned for planned in more if planned.trial.id not in self.pending]
        self.pending |= {planned.trial.id for planned in new}
        self.waiting.update(planned.trial.configuration for planned in new)
        for planned in new:
            self.shown.setdefault(planned.trial.configuration, replace(planned.trial, repeat=1))
            self.seconds.setdefault(planned.trial.configuration, self.estimate(planned))
        self.total += len(new)

    def block_timed(self, trial: Trial, step_seconds: float) -> None:
        """One more block of a configuration: the mean seconds of its slowest rank's steps."""
        self.running = trial
        self.blocks.setdefault(trial.configuration, []).append(trial.global_batch / step_seconds)

    def finished(self, planned: Planned, record: Summary, again: bool) -> None:
        trial, name = planned.trial, planned.trial.configuration
        self.waiting[name] -= trial.id in self.pending
        self.pending.discard(trial.id)
        if not again:  # what was finished before, the estimate knew from the beginning
            self.estimate.learn(record)
        self.seconds[name] = self.estimate(planned)
        self.rows.setdefault(name, []).append(record)
        self.running, self.launch = None, ""
        self.blocks.pop(name, None)
        self.done += 1
        self.total = max(self.total, self.done + len(self.pending))
        if again:
            return
        self._redraw()
        if not self.quiet and not self._live.is_started:
            self.console.print(self._line(trial, record), highlight=False, soft_wrap=True)

    def _named(self, trial: Trial) -> str:
        """A configuration by the keys in which it differs from the others."""
        return describe(trial, self.alike, self.more)

    def _redraw(self) -> None:
        if self._live.is_started:
            self._live.refresh()

    def _line(self, trial: Trial, record: Summary) -> Text:
        result = f"{record.samples_per_second:9.1f} samples/s" if record.samples_per_second else record.status
        done, name = f"{self.done:>{len(str(self.total))}}/{self.total}", self._named(trial)
        line = Text(f"[{done}] {name:<{self.width}} launch {trial.repeat}  ")
        line.append(result, style=COLOURS[record.status])
        line.append(f"  {record.reason}" if record.reason else f"  ({record.total_seconds:.1f} s)")
        line.append(busy(record), style="yellow")
        return line

    def remaining_seconds(self) -> float:
        seconds = sum(count * self.seconds[name] for name, count in self.waiting.items())
        return max(0.0, seconds - (time.monotonic() - self.since if self.running else 0.0))

    def render(self) -> RenderableType:
        """The live table. Configurations that do not fit the screen's height are counted in the last row."""
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for title in ("framework", "model", "batch", "workers", "gradients", "launches", "samples/s", ""):
            table.add_column(title, justify="right" if title in ("batch", "workers", "samples/s") else "left")
        room, every, start = max(3, self.console.height - 6), list(self.shown), 0
        if len(every) > room and self.running and self.running.configuration in self.shown:  # rows near it
            start = max(0, min(every.index(self.running.configuration) - room // 2, len(every) - room))
        for name in every[start : start + room]:
            table.add_row(*self._cells(self.shown[name]))
        if len(every) > room:
            table.add_row(f"... and {len(every) - room} more", style="bright_black")
        elapsed, left = clock(time.monotonic() - self.started), clock(self.remaining_seconds())
        footer = Table.grid(padding=(0, 1))
        footer.add_row(
            ProgressBar(total=max(self.total, 1), completed=self.done, width=40),
            f"{self.done}/{self.total} trials, {elapsed} elapsed, about {left} left",
        )
        return Group(table, Text(""), Text(self.launch or self._training(), style="cyan"), footer)

    def _training(self) -> str:
        """The state of the training that runs: `epoch 3.20, accuracy 0.61, 42 s left`; empty for what is timed."""
        if not (self.running and self.running.trained and self.results):
            return ""
        with contextlib.suppress(store.UnreadableRecord, KeyError, TypeError):
            now = store.load(self.results / "trials" / self.running.id / store.PROGRESS)
            words = [self._named(self.running), f"epoch {now['epoch']:.2f}"]
            words += [f"{now['seconds']:.0f} s of training"]
            last = [(key.replace("train_", "training "), value) for key, value in now["last"].items() if key in SHOWN]
            words += [f"{key} {value:.4f}" for key, value in last]
            left = now.get("seconds_left")
            return ", ".join([*words, *([f"at most {clock(left)} left"] if left is not None else [])])
        return ""

    def _cells(self, trial: Trial) -> list[Text]:
        records = self.rows.get(trial.configuration, [])
        waiting = self.waiting[trial.configuration]
        running = self.running is not None and self.running.configuration == trial.configuration
        dots = Text()
        for record in records:
            dots.append("●" if record.status == "ok" else "✗", style=COLOURS[record.status])
        dots.append("◐" * running + "○" * (waiting - running), style="cyan" if running else "bright_black")
        rates = [record.samples_per_second for record in records if record.samples_per_second]
        if blocks := self.blocks.get(trial.configuration, []):
            rates.append(fmean(blocks))
        rate = Text(f"{sum(rates) / len(rates):.1f}" if rates else "", style="bold")
        trouble = next((r for r in records if r.status != "ok"), None)
        if trouble:
            note = Text(f"{trouble.status}: {trouble.reason}"[:60], style=COLOURS[trouble.status])
        else:
            width, over = between_repeats(rates).relative_half_width if len(rates) > 2 else None, ""
            if width is None and len(blocks) > 2:  # of this launch alone, which others may differ from
                width, over = between_repeats(blocks).relative_half_width, " over its blocks"
            margin = "" if width is None else f"± {width:.1%}{over}" if width <= WIDEST else UNKNOWN
            note = Text(margin, style="bright_black")
            note.append("  machine busy" if any(map(busy, records)) else "", style="yellow")
        words = [trial.framework, trial.model, str(trial.batch_per_worker), str(trial.workers), trial.allreduce]
        if trial.model == NO_MODEL:
            words = [trial.framework, f"by {trial.launcher}", "", str(trial.workers), ""]
        return [Text(word, style="bold cyan" if running else "") for word in words] + [dots, rate, note]


class Turns(Progress):
    """Commands that take turns: one line that renews itself on a terminal, elsewhere a line for each block.

    `label_of`: a trial's command; `expected`: about the seconds of one launch, by label; `later`: launches after those
    of this sweep.
    """

    def __init__(
        self, *given: Any, label_of: Callable[[Trial], str], expected: Mapping[str, float], later: int = 0
    ) -> None:
        console, plan, trials, estimate, _, *rest = given
        self.label_of, self.later, self.now = label_of, later, ""
        self.added: Sequence[Planned] = ()  # launches that the margin asks for, until the first of them starts
        super().__init__(console, plan, trials, estimate, False, *rest)
        self.seconds |= {name: expected[label_of(trial)] for name, trial in self.shown.items()}  # until one is over

    def expects(self, more: Sequence[Planned]) -> None:
        super().expects(more)
        self.added = [each for each in more if each.trial.repeat > each.measure.repeats]

    def starts(self, planned: Planned) -> None:
        if self.added and planned.trial.repeat > planned.measure.repeats:
            self.console.print(self._why_added(planned), highlight=False, soft_wrap=True)
            self.added = []
        super().starts(planned)

    def _why_added(self, planned: Planned) -> str:
        """`Launches 5 to 10 follow, about 40 s: after 4 launches the margin of B over A is ±12.3 %, and ±2 % is asked
        for.`"""
        first, *others = self.shown
        left, rates = [each for each in self.added if each.trial.id in self.pending], self._finished_rates()
        names, numbers = {each.trial.configuration for each in left}, {each.trial.repeat for each in left}
        held, own = [name for name in others if name in names], rates.get(first, [])
        halves = [_half_width(own, rates.get(name, [])) for name in held]
        halves = halves or [between_repeats(own).relative_half_width]  # one command: its throughput's
        known = [half for half in halves if half is not None]
        seen = f"±{100 * max(known):.1f} %" if max(known, default=0) <= WIDEST else f"above ±{100 * WIDEST:g} %"
        seen = seen if len(known) == len(halves) else "not yet known"
        labels = " and ".join(self.label_of(self.shown[name]) for name in held)
        whose = f" of {labels} over {self.label_of(self.shown[first])}" if held else ""
        last = f"es {min(numbers)} to {max(numbers)} follow" if len(numbers) > 1 else f" {min(numbers)} follows"
        return (
            f"Launch{last}, about {clock(self.remaining_seconds())}: after {len(own)} launches the margin{whose} is "
            f"{seen}, and ±{100 * planned.measure.target_interval:g} % is asked for."
        )

    def building(self, trial: Trial) -> None:
        self.running, self.launch, self.now = trial, f"launch {trial.repeat}: {self.label_of(trial)} warms up", ""
        self._redraw()

    def alone(self, trial: Trial) -> None:
        self.running, self.now = trial, ""
        self.launch = f"separate launch {trial.repeat}, as it failed beside others: {self.label_of(trial)}"
        self._redraw()

    def block_timed(self, trial: Trial, step_seconds: float) -> None:
        super().block_timed(trial, step_seconds)
        self.now = f"{self.label_of(trial)} {1000 * step_seconds:.1f} ms a step"
        self._redraw()

    def finished(self, planned: Planned, record: Summary, again: bool) -> None:
        self.now = ""
        super().finished(planned, record, again)

    def remaining_seconds(self) -> float:
        return super().remaining_seconds() + self.later * sum(self.seconds.values())

    def render(self) -> RenderableType:
        running = f"launch {self.running.repeat}: {self.label_of(self.running)}" if self.running else ""
        left = f"about {clock(self.remaining_seconds())} left{self._widths()}"
        return Text(
            ", ".join(filter(None, [self.launch or running, self.now, left])), no_wrap=True, overflow="ellipsis"
        )

    def _line(self, trial: Trial, record: Summary) -> Text:
        return Text(f"launch {trial.repeat}: {self.label_of(trial)} {record.status} {record.reason}".rstrip())

    def _widths(self) -> str:
        """The widest interval of a ratio to the first so far: over launches, or over blocks where these are too few."""
        first, *others = self.shown
        for what, rates in (("launches", self._finished_rates()), ("blocks", self.blocks)):
            halves = [_half_width(rates.get(first, []), rates.get(name, [])) for name in others]
            known = [half for half in halves if half is not None]
            if known and len(known) == len(others):
                if max(known) > WIDEST:
                    return f"; {UNKNOWN}"
                return f"; ±{100 * max(known):.1f} % over {len(rates[first])} {what}"
        return ""

    def _finished_rates(self) -> dict[str, list[float]]:
        """Configuration -> samples per second of each launch, 0 where it failed."""
        return {name: [record.samples_per_second or 0.0 for record in rows] for name, rows in self.rows.items()}


def _half_width(first: Sequence[float], other: Sequence[float]) -> float | None:
    """Half of the interval of a ratio; None of fewer than three, or where one has failed."""
    pairs = list(zip(first, other, strict=False))
    if len(pairs) < FEWEST_REPEATS or not all(map(all, pairs)):
        return None
    return between_repeats([math.log(b / a) for a, b in pairs]).half_width


def busy(record: Summary) -> str:
    """A warning if others used the machine while this trial was timed."""
    others = record.busy_elsewhere_cores
    return f"  other processes kept {others:.1f} cores busy" if others is not None and others > BUSY_CORES else ""


def describe(trial: Trial, alike: Collection[str] = (), more: Collection[str] = ()) -> str:
    """One configuration in words, for a line. `alike`: keys that it has in common with the others, left out; `more`:
    keys in which it differs from others, beside those that are always said."""
    workers = f"{trial.workers} worker{'s' if trial.workers > 1 else ''}"
    if trial.hosts:
        workers += f" on {trial.hosts} host{'s' if trial.hosts > 1 else ''}"
    if trial.model == NO_MODEL:
        through = f" over {trial.controller}" if trial.controller else ""
        return f"{trial.framework} by {trial.launcher}{through}, {workers}"
    if trial.find == "parity":
        words = [f"parity of {trial.framework} {trial.model}", workers, _wire(trial), trial.precision]
        return ", ".join(filter(None, words))
    named = {"model": trial.model, "batch_per_worker": f"batch {trial.batch_per_worker}"}
    first = " ".join([trial.framework, *(text for key, text in named.items() if key not in alike)])
    words = [first, "" if {"workers", "hosts"} <= {*alike} else workers, _wire(trial, "allreduce" not in alike)]
    for name in more:
        key = RENAMED.get(name, name.removeprefix("train_")).replace("_", " ")
        value = getattr(trial, name)
        words.append(key if value is True else f"{key} {printable(str(value))}" if value else "")
    return ", ".join(filter(None, words))


def _wire(trial: Trial, with_gradients: bool = True) -> str:
    """The parts of a pipeline or of a mesh, and gradients on the wire: `1f1b, m = 4, 2 replicas, fp16 gradients`."""
    parts = [
        trial.schedule,
        f"{trial.virtual_stages} stages each" if (trial.virtual_stages or 1) > 1 else "",
        f"m = {trial.micro_batches}" if trial.micro_batches else "",
        f"matrices over {trial.tensor_parallel}" if (trial.tensor_parallel or 1) > 1 else "",
        f"sequences over {trial.context_parallel}" if (trial.context_parallel or 1) > 1 else "",
        "sequence parallel" if trial.sequence_parallel else "",
        "loss parallel" if trial.loss_parallel else "",
        trial.attention,
        f"{trial.replicas} replicas" if (trial.replicas or 1) > 1 else "",
        f"shards over {trial.shard_group}" if trial.shard_group else "",
        f"cut {trial.stage_cut}" if trial.stage_cut else "",
        f"{trial.allreduce} gradients" if with_gradients and trial.allreduce != "none" else "",
    ]
    return ", ".join(filter(None, parts))


def clock(seconds: float) -> str:
    """`42 s`, `5 min 20 s`, `3 h 05 min`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def telling(trials: Sequence[Trial]) -> list[str]:
    """The keys in which two trials of one framework differ: unlike trials must look unlike."""
    values: dict[str, dict[str, set[Any]]] = {}  # key -> framework -> what its trials have
    for trial in trials:
        for name, value in trial.to_dict().items():
            values.setdefault(name, {}).setdefault(trial.framework, set()).add(value)
    return [name for name, by in values.items() if any(len(distinct) > 1 for distinct in by.values())]
