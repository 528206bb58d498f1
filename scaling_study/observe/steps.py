"""What was seen of a training, folded into steps and written as JSON lines: one file a process.

Time has one owner at any moment: what is entered last. So the parts of a step sum to it.

    data | forward | backward | optimizer | evaluation | saving | rest

Evaluation begins with a forward pass that does not train and lasts until the next that does. A pass without gradients
that comes in each step is not one: a teacher's, a reference model's. Evaluation and saving are pauses:
`seconds` of a step is without them, and `pause_seconds` has them.

    {"kind": "steps", "first", "rows"}     as it is written: a row a step, which is read as a line
    {"kind": "process", "pid", "host", "rank", "world", "by", "torch", "device", "script", "code"}
    {"kind": "step", "step", "ended", "seconds", "pause_seconds", "parts", "loader_rows", "forward_rows", "samples",
     "backwards", "before_backward", "looked_at", "loss", "learning_rate", "optimizer", "skipped"}
                        of the first also what checks.py looks at; "loss" is null where it could not be read later
    {"kind": "anew"}    what was written of steps before this line were none (observe.read leaves them out)
    {"kind": "not observed", "why"}
    {"kind": "end", "why", "steps", "samples_per_step", "samples_by", "samples_unknown", "optimizers",
     "peak_memory_bytes", ...,
     "inside",          what one step held: FLOPs, bytes of collectives (inside.py)
     "own_seconds"}     in which the observer itself ran; no step contains those in which it folds and writes
    {"kind": "so far", ...}     the same of a run that a driver holds

`before_backward`: the seconds of a step before its last backward pass, without backward passes. A rank of data-parallel
training waits for no other in them, so they tell who comes last.

A value that was not seen is null. Steps are written every two seconds at most, and at the end.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

PARTS = ("data", "forward", "backward", "optimizer", "evaluation", "saving", "rest")
SEEN = (
    "loader_rows", "forward_rows", "samples", "backwards", "before_backward", "looked_at", "loss", "learning_rate",
    "optimizer", "skipped",
)  # fmt: skip
ROWS = ("forward_rows", "loader_rows", "samples")  # what of a line may be the samples of its step
FLUSH_SECONDS = 2.0
LEARNING = 32  # optimiser steps after which it is settled whose are the training's, where several take turns
SETTLED_ALONE = 8  # likewise, where there is one optimiser
PATIENCE = 128  # likewise, where another has yet to step: a WGAN's critic makes 100 before its generator's first
WITHOUT_OPTIMIZER = 32  # backward passes without an optimiser after which each training forward begins a step
MOST_ACCUMULATED = 1024  # likewise, where there is an optimiser: it may step once their gradients have added up
OFTEN = 2  # optimiser steps between two calls of a teacher, or of a generator whose critic steps; evaluations are rarer


class UpTo:
    """May a rank go on? `go_on` is asked between two steps, on every rank, once `until` steps are done (None: never).

    A driver that holds all ranks of a command at one step answers late, and with a later `until` (held.py).
    """

    timed = 0  # of the steps that lead to `until`, the last ones that are timed

    def __init__(self, until: int | None, lost: str = "") -> None:
        self.until, self.lost = until, lost
        self.waited_seconds = 0.0  # for a driver

    def go_on(self, done: int) -> bool:
        """False: end the run."""
        return self.until is None or done < self.until

    def anew(self) -> None:
        """What was counted as steps were none. Raises RuntimeError where a driver has measured some."""

    def give_up(self, why: str) -> None:
        """Steps are not seen any more: make the file `lost`, for a driver that would wait for the last of them."""
        if self.until is not None and self.lost:
            with open(self.lost, "a", encoding="utf-8") as stream:
                stream.write(f"{why}\n")


class Piece:
    """What was seen since the last optimiser step that counts."""

    loader_rows = forward_rows = backwards = forwards = 0
    before_backward = 0.0  # seconds before its last backward pass, without backward passes and pauses
    looked_at = False  # it took longer for it (inside.py)
    explicit: int | None = None
    loss: Any = None  # a tensor until it is written (hooks.number)
    learning_rate: float | None = None
    skipped: bool | None = False
    optimizer, ended = "", 0.0

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.checks: dict[str, Any] = {}  # checks.py

    def add(self, other: Piece) -> None:
        """The other piece follows, and ends the step."""
        for part, seconds in other.seconds.items():
            self.seconds[part] += seconds
        self.loader_rows += other.loader_rows
        self.forward_rows += other.forward_rows
        self.backwards += other.backwards
        self.checks = {**other.checks, **self.checks}
        self.before_backward += other.before_backward
        self.looked_at |= other.looked_at
        for name in ("explicit", "loss", "learning_rate", "optimizer", "skipped", "ended"):
            setattr(self, name, getattr(other, name))

    def pause_seconds(self) -> float:
        return self.seconds["evaluation"] + self.seconds["saving"]

    def step_seconds(self) -> float:
        """Without pauses."""
        return sum(self.seconds.values()) - self.pause_seconds()

    def row(self) -> list[Any]:
        """What `line` makes a line of. Names in each step, and rounding, would be the training's time."""
        before = self.before_backward if self.backwards else None
        about = (self.explicit, self.backwards, before, self.looked_at, self.loss, self.learning_rate)
        counted = (self.loader_rows, self.forward_rows)
        return [*self.seconds.values(), self.ended, *counted, *about, self.optimizer, self.skipped, self.checks]


def line(step: int, row: Sequence[Any]) -> dict[str, Any]:
    """The line of a step of which this row was written. Raises TypeError, ValueError or LookupError for any other."""
    parts = {part: round(row[place], 7) for place, part in enumerate(PARTS)}
    ended, *others, checks = row[len(PARTS) :]
    pause = row[PARTS.index("evaluation")] + row[PARTS.index("saving")]
    seen = {name: others[place] for place, name in enumerate(SEEN)}
    before = seen["before_backward"]
    return {
        "kind": "step",
        "step": step,
        "ended": round(ended, 6),
        "seconds": round(sum(row[: len(PARTS)]) - pause, 7),
        "pause_seconds": round(pause, 7),
        "parts": parts,
        **seen,
        "before_backward": before if before is None else round(before, 7),
        **checks,
    }


def usual(counts: Counter[int], steps: int) -> int | None:
    """What at least half of so many steps took, the most of two numbers; None where there is none, or where some took
    nothing: a loader's batch may be of several steps."""
    often = [taken for taken, times in counts.items() if 2 * times >= steps]
    return max(often) if often and not counts[0] else None


def together(pieces: list[Piece]) -> Piece:
    whole = Piece()
    for piece in pieces:
        whole.add(piece)
    return whole


class Called:
    """Calls of one module without gradients. Those of a teacher are parts of training steps, and no evaluations."""

    asked, is_of_steps = -1 - OFTEN, False  # optimiser steps before the last of them

    def in_each_step(self, pieces: int) -> bool:
        """True where such a call also came up to OFTEN optimiser steps ago. `pieces`: how many have ended."""
        if pieces != self.asked:
            self.asked, self.is_of_steps = pieces, pieces - self.asked <= OFTEN
        return self.is_of_steps


class Steps:
    """Folds events into steps, each at the time `at`: of one that is told later (hooks.py). None: when `clock` says.

    `look`: is told the optimizer of each piece that ends and how many whole steps came before, and says whether the
    piece was looked at (inside.py). `another`: does an optimizer that has not stepped yet train parameters of its own?
    `an_optimizer`: is there one at all? `anew`: is told that what was counted as steps were none.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        goal: UpTo | None = None,
        look: Callable[[str, int], bool] = lambda name, steps: False,
        another: Callable[[], bool] = lambda: False,
        an_optimizer: Callable[[], bool] = lambda: False,
        anew: Callable[[], None] = lambda: None,
    ) -> None:
        self.clock, self.goal, self.look = clock, goal or UpTo(None), look
        self.at: float | None = None  # the time of the event that is folded; None: it has just happened
        self.another, self.an_optimizer, self.anew = another, an_optimizer, anew
        self.entered: list[str] = []  # parts, the innermost last
        self.mark = clock()
        self.piece = Piece()
        self.aside_seconds = 0.0  # in looks that are no part of a step
        self.evaluating = self.worked = self.is_explicit = False
        self.sequence_first = False  # the rows of a trained module's input are no samples
        self.anchor: str | None = None
        self.counts: Counter[str] = Counter()  # pieces by optimiser
        self.idle: Counter[str] = Counter()  # steps of optimisers without a forward or backward before them
        self.backwards = self.largest = 0
        self.wait = WITHOUT_OPTIMIZER  # backward passes through which an optimizer is waited for
        self.unsure: Piece | None = None  # all pieces, while each training forward begins a step
        self.waiting = 0  # rows that loaders gave since the last forward
        self.begin()

    def begin(self) -> None:
        """No step is done."""
        self.pending: list[Piece] = []
        self.lines: list[Piece] = []
        self.seconds: list[float] = []  # of each step
        self.done = self.rows = self.forwards = self.skipped = self.explicit_rows = 0
        self.taken: dict[str, Counter[int]] = {name: Counter() for name in ROWS}  # samples of a step -> how many steps

    def enter(self, part: str) -> None:
        self._pass()
        self.entered.append(part)

    def leave(self) -> None:
        self._pass()
        if self.entered:
            self.entered.pop()

    def part(self) -> str:
        """The part that runs now."""
        part = self.entered[-1] if self.entered else "rest"
        return "evaluation" if self.evaluating and part in ("rest", "data") else part

    def _now(self) -> float:
        return self.clock() if self.at is None else self.at

    def _pass(self) -> None:
        now = self.clock() if self.at is None else self.at
        self.piece.seconds[self.part()] += now - self.mark
        self.mark = now

    def aside(self, look: Callable[..., dict[str, Any]], *seen: Any) -> None:
        """Keep what `look` finds, with the step that is under way, whose time it does not take."""
        self._pass()
        began = self.mark
        self.piece.checks.update(look(sum(self.counts.values()), *seen))
        self.mark = self._now()
        self.aside_seconds += self.mark - began

    def fetched(self, rows: int) -> None:
        """A loader has given a batch. Whether it feeds the training is known at the next forward."""
        self.leave()
        self.waiting += rows

    def given(self, rows: int) -> None:
        """The same on another thread, which prepares batches while the training goes on."""
        self.waiting += rows

    def forward(self, trains: bool | None, rows: int = 0, called: Called | None = None) -> bool:
        """An outermost forward pass begins, with so many rows of its first input. True: it evaluates.

        `trains`: None where the module has nothing to train, or its input is a result of another. `called`: of a module
        without gradients that may be a part of each step.
        """
        self._pass()
        often = called is not None and called.in_each_step(sum(self.counts.values()))
        if often and not self.evaluating:
            trains = None
        self.entered.append("evaluation" if trains is False else "forward")
        if trains is False:
            self.evaluating = True
            self.waiting = self.waiting if often else 0  # a teacher may be given the batch first
            return True
        self.piece.forwards += 1
        if trains:
            self.evaluating = False
            self._fed()
            self.piece.forward_rows += rows
            self.worked = True
        return False

    def _fed(self) -> None:
        """The batches that loaders gave are of the training."""
        self.largest = max(self.largest, self.waiting)
        self.piece.loader_rows += self.waiting
        self.waiting = 0

    def next_begins(self) -> bool:
        """Before a training forward: where no optimiser is seen for long, a step has ended. False: end the run here."""
        if self.backwards < self.wait or self.is_explicit or not self.piece.backwards:
            return True
        if self.unsure:
            self._pass()
            self.unsure.add(self.piece)
            return self.end("", None)
        if not self.counts and not self._waits():  # the first piece is all that came before
            self._pass()
            self.unsure, self.piece, self.counts[""] = self.piece, Piece(), 1
        return True

    def _waits(self) -> bool:
        """True where an optimizer is there, which may step after more backward passes."""
        if self.backwards >= MOST_ACCUMULATED:
            return False
        self._pass()
        there = bool(self._asked(self.an_optimizer))
        self.wait = min(2 * self.backwards, MOST_ACCUMULATED) if there else self.wait
        return there

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """What `ask` says, in no step's time."""
        began = self._now()
        answer = ask()
        self.mark = self._now()
        self.aside_seconds += self.mark - began
        return answer

    def backward(self, loss: Any) -> None:
        """A backward pass begins. Where no forward was seen, as of functions and of compiled ones, it is fed."""
        self._pass()
        if not self.piece.forwards:
            self.evaluating = False
            self._fed()
        spent = self.piece.seconds
        self.piece.before_backward = spent["data"] + spent["forward"] + spent["optimizer"] + spent["rest"]
        self.piece.backwards += 1
        self.backwards += 1
        self.piece.loss = loss
        self.worked = True
        self.entered.append("backward")

    def stepped(self, name: str, rate: float | None, skipped: bool | None, calls: int = 1) -> bool:
        """The part of the optimiser is left, and its step has ended."""
        self.leave()
        return self.optimized(name, rate, skipped, calls)

    def optimized(self, name: str, rate: float | None, skipped: bool | None, calls: int = 1) -> bool:
        """An outermost optimiser step has ended, whose closure was called so often; `skipped` by a scaler (None: not
        known). False: end the run here."""
        if self.is_explicit:
            return True
        if not self.worked:
            self.idle[name] += 1
            return True
        if self.unsure:  # it accumulates for longer than was waited for, or came late
            self.unsure.add(self.piece)
            self.piece, self.unsure, self.anchor = self.unsure, None, None
            self.counts.clear()
            self._begin_anew()
        if calls > 1:
            self.piece.forward_rows //= calls
        return self.end(name, rate, skipped)

    def say(self, samples: int | None, loss: Any = None) -> bool:
        """The script says that a step has ended. False: end the run here."""
        if not self.is_explicit:
            self.is_explicit, self.anchor = True, ""
            if self.done:
                self._begin_anew()
            self.pending = []
        self.piece.explicit = samples
        self.piece.loss = self.piece.loss if loss is None else loss
        return self.end("", self.piece.learning_rate)

    def _begin_anew(self) -> None:
        """What was counted as steps, and may be written and told, were none."""
        self._pass()
        self.goal.anew()
        self.begin()
        self._asked(self.anew)

    def end(self, name: str, rate: float | None, skipped: bool | None = False) -> bool:
        """A piece ends. Where several optimisers take turns, a step ends with the rarest of them."""
        self._pass()
        piece, self.piece, self.worked = self.piece, Piece(), False
        piece.optimizer, piece.learning_rate, piece.skipped = name, rate, skipped
        piece.ended = time.time() - (time.perf_counter() - self.mark)  # it may be told later than it ended
        self.counts[name] += 1
        whole = self.done if self.anchor is not None else len(self.pending) // len(self.counts)
        piece.looked_at |= self.look(name, whole)
        self.mark = self._now()
        self.pending.append(piece)
        if self.anchor is None and self._is_known():
            self._settle()
        if self.anchor is not None:
            self._fold()
        return self._may_go_on()

    def _may_go_on(self) -> bool:
        until = self.goal.until
        if until is None or self.done < until:
            return True
        going = self.goal.go_on(self.done)
        self.mark = self._now()  # the answer took a while that is no step's
        return going

    def _is_known(self) -> bool:
        """Is it known which optimiser ends a step? Of one alone, unless another waits; of several after some turns."""
        seen, pending, until = sum(self.counts.values()), len(self.pending), self.goal.until
        enough = until is not None and pending >= until  # nothing more is learnt
        if len(self.counts) > 1:
            return enough or seen >= LEARNING
        if seen >= PATIENCE:
            return True
        asked = pending == until or seen in (SETTLED_ALONE << doublings for doublings in range(4))
        return asked and self._are_all()

    def _are_all(self) -> bool:
        """False where a critic steps several times before its generator does for the first time."""
        return "" in self.counts or not self._asked(self.another)

    def _settle(self) -> None:
        """The rarest; of those that step equally often the last to come, which ends the cycle."""
        names = list(self.counts)
        self.anchor = min(names, key=lambda name: (self.counts[name], -names.index(name)))

    def _fold(self) -> None:
        begun: list[Piece] = []
        for piece in self.pending:
            begun.append(piece)
            if piece.optimizer == self.anchor or self.is_explicit:
                self._done(begun[0] if len(begun) == 1 else together(begun))
                begun = []
        self.pending = begun

    def _done(self, whole: Piece) -> None:
        self.done += 1
        self.rows += whole.loader_rows
        self.forwards += whole.forward_rows
        self.skipped += whole.skipped or 0
        self.explicit_rows += whole.explicit or 0
        taken = self.taken
        taken["forward_rows"][whole.forward_rows] += 1
        taken["loader_rows"][whole.loader_rows] += 1
        taken["samples"][whole.explicit or 0] += 1
        self.lines.append(whole)
        self.seconds.append(whole.step_seconds())

    def finish(self) -> None:
        """Nothing more comes: what is not settled is settled."""
        if self.anchor is None and self.counts:
            self._settle()
            self._fold()

    def samples(self) -> dict[str, Any]:
        """Samples of this process in one step, or why they are not known: those that at least half of the steps take,
        as the last batch of an epoch may be shorter. `samples_by`: what has them in each line. Empty: they are a mean.
        """
        known, why = self._samples()
        for name in known:
            value = usual(self.taken[name], self.done)
            if value:
                return {"samples_per_step": value, "samples_by": name, "samples_unknown": ""}
        return {"samples_per_step": self._mean(*known), "samples_by": "", "samples_unknown": why}

    def _samples(self) -> tuple[list[str], str]:
        """(which of ROWS are the samples, the best first; why none are)."""
        if not self.done:
            return [], "no step was seen"
        if self.is_explicit:
            return (["samples"], "") if self.explicit_rows else ([], "observe.step was not told how many")
        if not self.rows and not self.forwards:
            return [], "neither a DataLoader nor the input of a forward pass had rows"
        if not self.rows and self.sequence_first:
            return [], "no DataLoader was seen, and the model takes sequences first (batch_first=False)"
        if not self.rows or not self.forwards or abs(self.rows - self.forwards) <= self.largest:
            # A loader may be a batch ahead of the training, and a pipeline's stages pass a batch to learn their shapes.
            seen = {"forward_rows": self.forwards, "loader_rows": self.rows}
            return [name for name, rows in seen.items() if rows], ""
        loaded, taken = self.rows / self.done, self.forwards / self.done
        return [], f"DataLoaders gave {loaded:g} rows a step and forward passes took {taken:g}: say which are samples"

    def _mean(self, *known: str) -> float | None:
        """Samples of a step, of steps that are not alike; None where they are not known."""
        if not known:
            return None
        if self.is_explicit:
            return self.explicit_rows / self.done
        whole = self.rows if self.forwards % self.done else self.forwards
        return (whole or self.forwards or self.rows) / self.done

    def summary(self) -> dict[str, Any]:
        counted, idle = dict(self.counts), dict(self.idle)
        about = {"steps": self.done, "skipped_steps": self.skipped, "backwards": self.backwards, "step_of": self.anchor}
        return {**about, **self.samples(), "optimizers": counted, "optimizers_without_work": idle}


class StepsFile:
    """The file of one process. It is made with the first line, so that processes that do not train leave none."""

    def __init__(self, folder: str, about: Callable[[], dict[str, Any]]) -> None:
        self.folder, self.about = folder, about
        self.file: Any = None
        self.written_at = time.perf_counter()
        self.steps = 0

    def write(self, *lines: dict[str, Any]) -> None:
        if self.file is None:
            about = self.about()
            name = f"{about['host']}-{about['pid']}.jsonl"
            self.file = open(os.path.join(self.folder, name), "a", encoding="utf-8")  # noqa: SIM115
            lines = ({"kind": "process", **about}, *lines)
        self.file.write("".join(f"{json.dumps(line)}\n" for line in lines))
        self.file.flush()

    def is_due(self, steps: Steps) -> bool:
        """The first steps are written at once, and others every two seconds."""
        return bool(steps.lines) and (self.file is None or time.perf_counter() - self.written_at > FLUSH_SECONDS)

    def take(self, steps: Steps) -> None:
        """Write the steps that have ended."""
        pieces, steps.lines = steps.lines, []
        if pieces:
            self.write({"kind": "steps", "first": self.steps + 1, "rows": [piece.row() for piece in pieces]})
        self.steps += len(pieces)
        self.written_at = time.perf_counter()

    def anew(self) -> None:
        """The steps that were written were none."""
        if self.steps:
            self.write({"kind": "anew"})
        self.steps = 0
