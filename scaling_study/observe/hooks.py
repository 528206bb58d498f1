"""Sees the events of a training in torch, and hands them to `steps`. Torch is imported by the script, never here.

    optimiser steps     torch's global hooks: nested ones count once, closures are counted; those in one backward
                        pass, as of an optimiser for each parameter, are one step, which ends with that pass
    scaler              GradScaler.step, which may leave the optimiser out, and GradScaler.scale, which has the loss
    forward             the outermost Module.__call__; it trains if gradients are on and a submodule is in training mode
    backward            torch.autograd.backward, which Tensor.backward calls; also in a forward, as Lightning's with DDP
    batches             the iterators of DataLoader, on the thread that trains or on one that prepares batches
    saving              torch.save

A fault in here ends the observation, never the training. The run is ended, where that was asked for, by SystemExit(0)
between two steps, after the record is written: launchers report 0 then.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
import socket
import sys
import time
from collections.abc import Callable
from threading import get_ident, main_thread
from typing import Any
from weakref import WeakKeyDictionary, ref

from scaling_study.observe import DRIVER, IMPORTED_AT, LOST, STEPS, code
from scaling_study.observe.checks import Checks
from scaling_study.observe.held import Held
from scaling_study.observe.inside import (
    StepInspection,
    kind_of,
    methods_of,
    peak_memory,
    peak_resident_bytes,
    tensor_bytes,
    wait_for_gpus,
)
from scaling_study.observe.objects import (
    NoTorch,
    Outermost,
    first_tensor,
    is_another,
    number,
    rate_of,
    rows_among,
    rows_of_batch,
    value_of,
)
from scaling_study.observe.steps import FLUSH_SECONDS, SETTLED_ALONE, Steps, StepsFile, UpTo

OLDEST = (2, 1)
MOST_KEPT = 1536  # entries of events, three an event: some fifty steps of a small model
FOUND: list[Observer] = []  # the one of this process
MOST_ENDS = 3  # times that a run is asked to end, before its process is ended
WITHOUT_TORCH = "the script trains without torch"


class Observer:
    """What one process has seen, and its record.

    An event is folded into steps at once until nothing more is looked at and it is known which optimizer ends a step.
    From then on it is kept with its time, since in the middle of a training each line of Python that runs costs ten
    times what it costs in a loop. What is kept is folded before a step after which the run may be held or ended, and
    every two seconds. For the same reason a hook is one function, and a kept event no call of another.
    """

    def __init__(self, torch: Any, folder: str) -> None:
        self.torch, self.folder = torch, folder
        self.clock = time.perf_counter
        self.tensor = getattr(torch, "Tensor", None)
        self.is_grad_enabled: Any = getattr(torch, "is_grad_enabled", None)
        self.look = self.looking()
        self.begin()

    def begin(self) -> None:
        """Anew: in a process that was forked, what its parent saw is not its own."""
        wanted, driver = os.environ.get(STEPS, ""), os.environ.get(DRIVER, "")
        lost = os.path.join(self.folder, LOST)
        goal = Held(driver, self.who, self.tell) if driver else UpTo(int(wanted) if wanted else None, lost)
        self.look.leave()
        self.look = self.looking()
        self.names: Any = WeakKeyDictionary()  # of optimisers
        waits = functools.partial(is_another, self.names), functools.partial(is_another, ())
        self.steps = Steps(self.clock, goal, self.look.end, *waits, self.anew)
        self.events: list[Any] = []  # to be folded: name of a function of `steps`, its time, its arguments, and so on
        self.keep: Any  # is given each event: `see`, or what adds it to `events`
        self.record = StepsFile(self.folder, self.about)
        self.checks = Checks(self.torch)
        self.dead = self.finished = False
        self.depth = 0  # of nested optimiser steps
        self.stepped = False  # an optimiser stepped since a scaler was asked to
        self.calls = 0  # of the closure of the outermost optimiser step
        self.has_closure = False
        self.inside = ""  # forward, backward or data, while one runs: what is in there is not outermost
        self.within: tuple[Any, ...] | None = None  # (name, rate) of the first optimiser that stepped in a backward
        self.thread = main_thread().ident  # that trains
        self.named: Any = (lambda: None, "")  # the one that stepped last, weakly, and its name
        self.watched = False  # whether the end of a process of multiprocessing is
        self.modules: Any = WeakKeyDictionary()  # module -> Outermost
        self.called: Outermost | None = None  # the last of them
        self.scaled: Any = None  # (result of a scaler, its input)
        self.own_seconds = 0.0  # spent in here
        self.left_times = 0  # how often the run was asked to end here
        self.identity: dict[str, Any] = {}
        self.left = sys.maxsize  # optimizer steps up to the first after which the run may be held or ended
        self.fold_at_once(True)
        self.plan()

    def looking(self) -> StepInspection:
        def trained() -> list[Any]:
            return [module for module, about in self.modules.items() if about.trainable() is not None]

        look = StepInspection(lambda: self.steps.part(), self.who, trained)
        if self.torch is NoTorch:
            look.give_up(WITHOUT_TORCH)
        return look

    def anew(self) -> None:
        """What was seen of steps was none: it is looked at, and written, anew."""
        self.record.anew()
        self.look.leave()
        before, self.look, self.checks = self.look, self.looking(), Checks(self.torch)
        self.look.seconds, self.look.resident, self.look.exchanges.step = before.seconds, before.resident, 1
        self.steps.look = self.look.end

    # --- events, and the steps that they make ---

    def happened(self, what: str, *args: Any) -> None:
        """An event, which the function `what` of the steps is to fold, given these arguments."""
        began = self.clock()
        self.keep((what, began, args))
        self.own_seconds += self.clock() - began

    def see(self, event: tuple[Any, ...]) -> Any:
        """Fold an event at once. Returns what its function does."""
        what, _, args = event
        try:
            return getattr(self.steps, what)(*args)
        except Exception as error:
            self.broke(error)
            return None

    def fold(self) -> Any:
        """All that is kept, in its order. Returns the result of the last. No step contains the time that it takes."""
        events, steps, began = self.events, self.steps, self.clock()
        self.events, result = [], None
        self.fold_at_once(self.at_once)
        try:
            for place in range(0, len(events), 3):
                what, steps.at, args = events[place : place + 3]
                result = getattr(steps, what)(*args)
        except Exception as error:
            result = None
            self.broke(error)
        finally:
            steps.at = None
            steps.mark += self.clock() - began
        return result

    def fold_at_once(self, at_once: bool) -> None:
        """Fold events as they come from here on, or keep them; where nothing is seen any more, neither."""
        self.at_once = at_once or self.dead
        self.keep = ignored if self.dead else self.see if at_once else self.events.extend

    def ended(self, began: float, what: str, *step: Any) -> Any:
        """An optimizer step has ended (`what`: `optimized` or `stepped` of Steps). Returns False where the run ends
        here, and None where events are kept on."""
        self.look.exchanges.step += 1
        self.left -= 1
        if self.left <= 0 or self.left == self.steps.goal.timed:
            asked = self.clock()
            self.wait_for_gpu()
            began = self.clock()
            self.own_seconds -= began - asked  # the training's
        told = self.keep((what, began, step))
        if self.at_once:
            return told
        over = self.left <= 0 or began - self.record.written_at > FLUSH_SECONDS or len(self.events) > MOST_KEPT
        return self.fold() if over else None

    def plan(self) -> None:
        """Fold at once, or later, from here on."""
        steps, until = self.steps, self.steps.goal.until
        done = len(steps.pending) if steps.anchor is None else steps.done
        self.left = sys.maxsize if until is None else until - done
        looks_on = (self.checks.left and steps.done < SETTLED_ALONE) or not self.look.is_over(steps.done)
        self.fold_at_once(looks_on or steps.is_explicit or not steps.anchor)

    def wait_for_gpu(self) -> None:
        """Wait until the GPUs have computed the steps so far. While a CUDA graph is recorded they may not be asked."""
        cuda = self.torch.cuda
        with contextlib.suppress(Exception):  # of the training, which will see it
            if cuda.is_initialized() and not self.checks.recording():
                wait_for_gpus(cuda)

    # --- identity and endings ---

    def jax(self) -> Any:
        """JAX, where a process trains with it and without torch. Asking a JAX that is not used would start it."""
        return sys.modules.get("jax") if self.torch is NoTorch else None

    def about(self) -> dict[str, Any]:
        jax = self.jax()
        on_gpu = self.torch.cuda.is_initialized()  # not is_available, which looks for a driver each time
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            **(self.identity or self.who()),
            "torch": str(self.torch.__version__),
            "jax": str(getattr(jax, "__version__", "")),
            "python": sys.version.split()[0],
            "device": "cuda" if on_gpu or (jax is not None and jax.default_backend() == "gpu") else "cpu",
            "script": sys.argv[0],  # without its arguments, which may hold a secret
            "code": self.code(),
        }

    def code(self) -> dict[str, str]:
        began = self.clock()
        found = code()
        self.steps.aside_seconds += self.clock() - began  # once, and in no step
        return found

    def who(self) -> dict[str, Any]:
        """Rank and number of processes, by what is alive now; by the environment alone only where nothing is."""
        distributed = self.torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return {"rank": distributed.get_rank(), "world": distributed.get_world_size(), "by": "torch.distributed"}
        horovod = sys.modules.get("horovod.torch")
        if horovod is not None and horovod.is_initialized():
            return {"rank": horovod.rank(), "world": horovod.size(), "by": "horovod"}
        mpi = getattr(sys.modules.get("mpi4py.MPI"), "MPI", None) or sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
            return {"rank": mpi.COMM_WORLD.Get_rank(), "world": mpi.COMM_WORLD.Get_size(), "by": "mpi4py"}
        jax = self.jax()
        if jax is not None and jax.process_count() > 1:
            return {"rank": jax.process_index(), "world": jax.process_count(), "by": "jax"}
        rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        if rank.isdigit() and world.isdigit():
            return {"rank": int(rank), "world": int(world), "by": "environment"}
        return {"rank": None, "world": None, "by": ""}

    def broke(self, error: BaseException, at_once: bool = False) -> None:
        """Something in here failed: say so in the record, and look no further. `at_once`: before anything was seen."""
        self.dead = True
        self.look.leave()
        why = f"{type(error).__name__}: {error}"
        with contextlib.suppress(Exception):  # nothing of it may reach the training
            with contextlib.suppress(Exception):
                self.fold()
            try:
                self.write()
                self.record.write({"kind": "not observed", "why": why})
            except Exception:  # there is no room, or the folder is gone
                print(f"scaling-study: not observed: {why}", file=sys.stderr, flush=True)
        self.fold_at_once(True)
        if self.steps.backwards or self.steps.counts or at_once:  # a helper that does not train ends no run
            with contextlib.suppress(Exception):
                self.steps.goal.give_up(f"not observed: {why}")

    def note(self, go_on: bool) -> None:
        """After a step; leaves the process where the run shall end here."""
        if not self.watched:  # processes of multiprocessing end without atexit
            finalize = getattr(sys.modules.get("multiprocessing.util"), "Finalize", None)
            if finalize is not None:
                finalize(None, self.finish, exitpriority=100)
                self.watched = True
        self.identity = self.identity or self.who()  # at a step: by its end a script may have left its ranks
        began = self.clock()
        if not go_on or (self.record.is_due(self.steps) and not self.checks.recording()):
            self.write()
        self.steps.mark += self.clock() - began  # no step's
        if not go_on:
            self.finish(f"ended by scaling-study after {self.steps.done} steps")
        self.plan()

    def finish(self, why: str = "") -> None:
        """The last lines, once."""
        if self.finished or self.dead:
            return
        self.finished = self.dead = True
        self.look.leave()
        began = self.clock()
        try:
            self.fold()
            self.fold_at_once(True)
            self.steps.finish()
            if not (self.steps.done or self.steps.backwards):
                return
            self.write()
            self.own_seconds += self.clock() - began
            crashed = getattr(sys, "last_type", None)
            why = why or (f"{crashed.__name__}: {sys.last_value}" if crashed else "the script ended")
            self.record.write({"kind": "end", "why": why, **self.summary()})
        except Exception as error:
            print(f"scaling-study: not observed: {error!r}", file=sys.stderr)

    def summary(self) -> dict[str, Any]:
        steps = self.steps
        inside = self.look.summary(steps.anchor, steps.counts)
        own = self.own_seconds - steps.goal.waited_seconds - self.look.seconds - steps.aside_seconds
        memory = peak_memory(self.torch, self.look.resident)
        return {**steps.summary(), **memory, "inside": inside, "own_seconds": own}

    def tell(self) -> list[float]:
        """Write all that was seen so far, for a driver that reads it now; seconds of each step."""
        self.write()
        self.record.write({"kind": "so far", **self.summary()})
        return self.steps.seconds

    def write(self) -> None:
        """The steps that have ended. While a CUDA graph is recorded no loss can be read."""
        recording = self.checks.recording()
        for piece in self.steps.lines:
            piece.loss = number(piece.loss, not recording)
        self.record.take(self.steps)

    def guarded(self, see: Callable[..., Any], *args: Any) -> Any:
        """What `see` returns; None where it fails, and nothing is seen from then on."""
        if self.dead:
            return None
        began = self.clock()
        try:
            return see(*args)
        except Exception as error:
            self.broke(error)
            return None
        finally:
            self.own_seconds += self.clock() - began

    def after_step(self, go_on: Any) -> None:
        """`go_on`: False ends the process here. None: it is not known yet, or nothing is seen any more.

        A script that catches all exceptions, this one too, trains on: it is told again after its next steps.
        """
        if go_on is not None:
            if self.record.is_due(self.steps):
                self.wait_for_gpu()
            self.guarded(self.note, go_on)
        if go_on is False:
            self.at_end(self.leave_gloo)
        if go_on is False or self.left_times:
            self.left_times += 1
            if self.left_times > MOST_ENDS:
                with contextlib.suppress(Exception):
                    sys.stdout.flush()
                os._exit(0)
            raise SystemExit(0)

    def at_end(self, call: Callable[[], None]) -> None:
        """Have this called once the script's own endings ran: on the way out it may average, and leave its group."""
        finalize = getattr(sys.modules.get("multiprocessing.util"), "Finalize", None)
        if finalize is None:
            atexit.register(call)
        else:  # processes of multiprocessing end without atexit
            finalize(None, call, exitpriority=0)

    def leave_gloo(self) -> None:
        """Its threads abort a process that ends while they hold a tensor (pytorch/pytorch#117762): they end first."""
        with contextlib.suppress(Exception):
            ranks = self.torch.distributed
            if ranks.is_available() and ranks.is_initialized() and "gloo" in ranks.get_backend():
                ranks.destroy_process_group()
                time.sleep(0.3)

    # --- optimisers ---

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Torch's hook before an optimiser step; `args` begin with the optimiser. A closure's calls are counted."""
        if self.dead:
            return None
        self.depth += 1
        if self.depth > 1:
            return None
        self.calls = 0
        began = self.clock()
        self.keep(("enter", began, ("optimizer",)))
        self.own_seconds += self.clock() - began
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self.has_closure = callable(closure)
        if not self.has_closure:
            return None

        @functools.wraps(closure)
        def counted(*given: Any, **named: Any) -> Any:
            self.calls += 1
            return closure(*given, **named)

        return ((args[0], counted, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": counted})

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Torch's hook after an optimiser step."""
        if self.dead:
            self.after_step(None)
            return
        began = self.clock()
        self.depth = max(0, self.depth - 1)
        self.stepped = True
        if self.depth:
            return
        try:
            last, name = self.named
            name = name if last() is optimizer else self.name(optimizer)
            rate = rate_of(optimizer, self.torch)
        except Exception as error:
            self.broke(error)
            return
        go_on = None
        if self.inside == "backward":
            self.keep(("leave", began, ()))
            self.within = self.within or (name, rate)
        else:
            go_on = self.ended(began, "stepped", name, rate, False, self.calls or 1)
        self.own_seconds += self.clock() - began
        self.after_step(go_on)

    def name(self, optimizer: Any) -> str:
        """`SGD`, and of the next of that class `SGD 2`."""
        name: str | None = self.names.get(optimizer)
        if name is None:
            kind = type(optimizer).__name__
            others = sum(name.split()[0] == kind for name in self.names.values())
            name = self.names[optimizer] = f"{kind} {others + 1}" if others else kind
        self.named = (ref(optimizer), name)
        return name

    def attempts(self, original: Any) -> Any:
        """A scaler's step, in which the optimiser's own is nested, or left out."""

        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            nested = self.depth > 0
            self.has_closure &= nested
            self.stepped = False
            self.depth += 1
            self.happened("enter", "optimizer")
            try:
                result = original(scaler, optimizer, *args, **kwargs)
            finally:
                self.depth = max(0, self.depth - 1)
                self.happened("leave")
            if not nested:
                self.after_step(self.guarded(self._attempted, scaler, optimizer))
            return result

        return step

    def _attempted(self, scaler: Any, optimizer: Any) -> Any:
        skips_itself = scaler.is_enabled() and getattr(optimizer, "_step_supports_amp_scaling", False)
        skipped = None if skips_itself else not self.stepped  # a fused one is always called, and knows alone
        name, rate = self.name(optimizer), rate_of(optimizer, self.torch)
        return self.ended(self.clock(), "optimized", name, rate, skipped)

    def scales(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, outputs, *args, **kwargs)
            if not self.dead:
                self.scaled = (result, outputs)
            return result

        return scale

    # --- forward, backward, batches ---

    def forward(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """The outermost call of a module."""
        began, rows = self.clock(), 0
        trains: bool | None = None
        called: Outermost | None = None
        if self.depth and not self.has_closure:  # the optimiser's step raised an error
            self.depth = 0
            self.happened("leave")
        try:
            is_plain = bool(args) and type(args[0]) is self.tensor
            first = args[0] if is_plain else first_tensor((*args, *kwargs.values()))
            if first is None or not first.requires_grad:
                about = self.called
                if about is None or about.module() is not module:
                    about = self.called = self._about(module)
                trains = about.trains(module, self.is_grad_enabled)
                if trains:
                    is_plain = is_plain and first.dim() > 0
                    rows = first.size(0) if is_plain else rows_among((*args, *kwargs.values()), first)
                    if self.at_once:
                        self._training_begins(module, first, about)
                elif trains is False and (module.training or not about.has_trained):
                    called = about
        except Exception as error:
            self.broke(error)
        if self.keep(("forward", began, (trains, rows, called))):
            self.look.put_off()
        if len(self.events) > MOST_KEPT:
            self.fold()
        self.own_seconds += self.clock() - began
        self.inside = "forward"
        try:
            return original(module, *args, **kwargs)
        finally:
            self.inside = ""
            began = self.clock()
            self.keep(("leave", began, ()))
            self.own_seconds += self.clock() - began

    def _about(self, module: Any) -> Outermost:
        about: Outermost | None = self.modules.get(module)
        if about is None:
            about = self.modules[module] = Outermost(module)
        return about

    def _training_begins(self, module: Any, first: Any, about: Outermost) -> None:
        """A training forward begins, as long as steps are looked at."""
        self.thread, about.has_trained = get_ident(), True
        self.after_step(self.steps.next_begins())
        self.look.resident = self.look.resident or peak_resident_bytes()
        if self.checks.left:
            self.steps.aside(self.checks.look, module, first)
        self.steps.sequence_first |= about.sequence_first

    def backwards(self, original: Any) -> Any:
        """torch.autograd.backward; one inside another is a part of that."""

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            inside = self.inside
            if self.dead or inside in ("backward", "data"):
                return original(tensors, *args, **kwargs)
            began, scaled, self.scaled = self.clock(), self.scaled, None
            try:
                is_plain = scaled is None and type(tensors) is self.tensor and tensors.is_cpu
                loss = tensors.item() if is_plain else value_of(tensors, scaled)
            except Exception:  # the loss is not known
                loss = None
            self.keep(("backward", began, (loss,)))
            self.own_seconds += self.clock() - began
            self.inside, self.within = "backward", None
            try:
                result = original(tensors, *args, **kwargs)
            finally:
                self.inside = inside
                began = self.clock()
                self.keep(("leave", began, ()))
                self.own_seconds += self.clock() - began
            if self.within is not None:
                self.after_step(self.guarded(self.ended, self.clock(), "optimized", *self.within, False))
            return result

        return backward

    def batches(self, original: Any) -> Any:
        """`__next__` of a DataLoader's iterator. One inside another makes that one's batch."""

        def following(iterator: Any) -> Any:
            inside, is_ours = self.inside, get_ident() == self.thread
            if is_ours and inside == "data":
                return original(iterator)
            if is_ours:
                self.inside, began = "data", self.clock()
                self.keep(("enter", began, ("data",)))
                self.own_seconds += self.clock() - began
            try:
                batch = original(iterator)
            except BaseException:  # there are no more
                if is_ours:
                    self.happened("leave")
                raise
            finally:
                if is_ours:
                    self.inside = inside
            began, rows = self.clock(), 0
            try:
                is_plain = type(batch) in (list, tuple) and bool(batch) and type(batch[0]) is self.tensor
                rows = batch[0].size(0) if is_plain and batch[0].dim() else rows_of_batch(batch)
            except Exception:  # an object that cannot be asked
                rows = 0
            self.keep(("fetched" if is_ours else "given", began, (rows,)))
            if is_ours and len(self.events) > MOST_KEPT:
                self.fold()
            self.own_seconds += self.clock() - began
            return batch

        return following

    def saves(self, original: Any) -> Any:
        def save(*args: Any, **kwargs: Any) -> Any:
            self.happened("enter", "saving")
            try:
                return original(*args, **kwargs)
            finally:
                self.happened("leave")

        return save

    def exchanged(self, kind: str, given: Any) -> None:
        """Python hands this to a collective."""
        self.look.exchanges.saw(kind, max(map(tensor_bytes, given), default=0))

    def say(self, samples: int | None, loss: Any) -> Any:
        """The script says that a step has ended: from now on it says all of them."""
        self.fold()
        self.fold_at_once(True)
        self.look.exchanges.step += 1
        self.look.resident = self.look.resident or peak_resident_bytes()
        return self.steps.say(samples, loss)


def ignored(event: tuple[Any, ...]) -> None:
    """What becomes of an event once nothing is seen any more."""


def explicit_step(samples: int | None, loss: Any) -> None:
    """What `scaling_study.observe.step` does in a process that is observed."""
    for observer in FOUND:
        observer.after_step(observer.guarded(observer.say, samples, loss))


def attach(torch: Any, folder: str) -> None:
    """Have `torch`, just imported, tell an observer what happens in this process. None: its script says its steps."""
    if any(each.torch is NoTorch for each in FOUND):  # which says them already
        return
    observer = Observer(torch or NoTorch, folder)
    FOUND.append(observer)
    try:
        if torch is None:
            observer.steps.mark = IMPORTED_AT
        else:
            hook(torch, observer)
    except Exception as error:
        observer.broke(error, at_once=True)
        return
    atexit.register(observer.finish)
    os.register_at_fork(after_in_child=observer.begin)


def hook(torch: Any, observer: Observer) -> None:
    """Put the observer into torch. Raises RuntimeError where that is too old."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        raise RuntimeError(f"torch {torch.__version__} is older than {'.'.join(map(str, OLDEST))}")
    optimizers = sys.modules["torch.optim.optimizer"]
    with contextlib.suppress(OSError):
        keep_hooks(optimizers.Optimizer, os.path.join(os.path.dirname(torch.__file__), "_dynamo", "eval_frame.py"))
    optimizers.register_optimizer_step_pre_hook(observer.before)
    optimizers.register_optimizer_step_post_hook(observer.after)
    replace_call(torch.nn.Module, observer)
    scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    replace(scaler, "step", observer.attempts)
    replace(scaler, "scale", observer.scales)
    replace(torch.autograd, "backward", observer.backwards)
    replace(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", observer.batches)
    replace(torch, "save", observer.saves)
    for owner, name in methods_of(getattr(torch.distributed, "ProcessGroup", None)):
        watch(owner, name, observer)


def keep_hooks(optimizer: Any, compiler: str) -> None:
    """An older torch takes the hooks off its optimizers once it compiles: it puts what their hooked `step` wraps in its
    place, as `__wrapped__` says. So it must not say. `compiler`: the source of the part that does."""
    with open(compiler, encoding="utf-8") as stream:
        if "unwrapped_step" not in stream.read():
            return
    original = optimizer.profile_hook_step

    def hooked(step: Any) -> Any:
        result = original(step)
        result.__signature__ = inspect.signature(step)
        vars(result).pop("__wrapped__", None)
        return result

    optimizer.profile_hook_step = staticmethod(hooked)


def replace(owner: Any, name: str, seen: Callable[[Any], Any]) -> None:
    """Have `owner.name` be what `seen` makes of the original."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(seen(original)))


def watch(group: Any, name: str, observer: Observer) -> None:
    """Have a method by which Python hands tensors to a collective tell so first."""
    original, kind = getattr(group, name), kind_of(name)

    @functools.wraps(original)
    def told(*args: Any, **kwargs: Any) -> Any:
        observer.guarded(observer.exchanged, kind, (*args[1:], *kwargs.values()))
        return original(*args, **kwargs)

    setattr(group, name, told)


def replace_call(module: Any, observer: Observer) -> None:
    """The same for Module.__call__, at the least cost for the modules inside another."""
    original = module.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if observer.inside or observer.dead:
            return original(self, *args, **kwargs)
        return observer.forward(original, self, args, kwargs)

    module.__call__ = call
