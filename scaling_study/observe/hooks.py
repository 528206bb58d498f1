"""Sees the events of a training in torch, and hands them to `steps`. Torch is imported by the script, never here.

    optimiser steps     torch's global hooks: nested ones count once, closures are counted
    scaler              GradScaler.step, which may leave the optimiser out, and GradScaler.scale, which has the loss
    forward             the outermost Module.__call__; it trains if gradients are on and a submodule is in training mode
    backward            torch.autograd.backward, which Tensor.backward calls
    batches             the iterators of DataLoader
    saving              torch.save

A fault in here ends the observation, never the training. The run is ended, where that was asked for, by SystemExit(0)
between two steps, after the record is written: launchers report 0 then.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import inspect
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary, ref

from scaling_study.observe import DRIVER, STEPS
from scaling_study.observe.checks import Checks
from scaling_study.observe.held import Held
from scaling_study.observe.inside import StepInspection, peak_memory
from scaling_study.observe.steps import Steps, StepsFile, UpTo

OLDEST = (2, 1)
FOUND: list[Observer] = []  # the one of this process


class Observer:
    """What one process has seen, and its record."""

    def __init__(self, torch: Any, folder: str) -> None:
        self.torch, self.folder = torch, folder
        self.look = self.looking()
        self.begin()

    def begin(self) -> None:
        """Anew: in a process that was forked, what its parent saw is not its own."""
        wanted, driver = os.environ.get(STEPS, ""), os.environ.get(DRIVER, "")
        goal = Held(driver, self.who, self.tell) if driver else UpTo(int(wanted) if wanted else None)
        self.look.leave()
        self.look = self.looking()
        self.steps = Steps(goal=goal, look=self.look.end, another=self.another_waits)
        self.record = StepsFile(self.folder, self.about)
        self.checks = Checks(self.torch)
        self.dead = self.finished = False
        self.depth = 0  # of nested optimiser steps
        self.stepped = False  # an optimiser stepped since a scaler was asked to
        self.calls = 0  # of the closure of the outermost optimiser step
        self.inside = False  # of a forward, a backward or a batch being made: what is in there is not outermost
        self.names: Any = WeakKeyDictionary()  # of optimisers
        self.watched = False  # whether the end of a process of multiprocessing is
        self.training: Any = WeakKeyDictionary()  # outermost module -> a submodule that was in training mode
        self.trainable: Any = WeakKeyDictionary()  # likewise -> a parameter that wants a gradient
        self.sequence_first: Any = WeakKeyDictionary()  # likewise -> whether a part of it is
        self.scaled: Any = None  # (result of a scaler, its input)
        self.own_seconds = 0.0  # spent in here
        self.identity: dict[str, Any] = {}

    def looking(self) -> StepInspection:
        return StepInspection(lambda: self.steps.part(), self.who, lambda: list(self.trainable))

    # --- identity and endings ---

    def about(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            **(self.identity or self.who()),
            "torch": str(self.torch.__version__),
            "python": sys.version.split()[0],
            "device": "cuda" if self.torch.cuda.is_available() and self.torch.cuda.is_initialized() else "cpu",
            "script": sys.argv[0],  # without its arguments, which may hold a secret
        }

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
        rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        if rank.isdigit() and world.isdigit():
            return {"rank": int(rank), "world": int(world), "by": "environment"}
        return {"rank": None, "world": None, "by": ""}

    def broke(self, error: BaseException) -> None:
        """Something in here failed: say so in the record, and look no further."""
        self.dead = True
        self.look.leave()
        why = f"{type(error).__name__}: {error}"
        with contextlib.suppress(Exception):  # nothing of it may reach the training
            try:
                self.record.take(self.steps, at_once=True)
                self.record.write({"kind": "not observed", "why": why})
            except Exception:  # there is no room, or the folder is gone
                print(f"scaling-study: not observed: {why}", file=sys.stderr, flush=True)
        if self.steps.backwards or self.steps.counts or not FOUND:  # a helper that does not train ends no run
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
        self.record.take(self.steps, at_once=not go_on or self.record.file is None)
        if not go_on:
            self.finish(f"ended by scaling-study after {self.steps.done} steps")

    def finish(self, why: str = "") -> None:
        """The last lines, once."""
        if self.finished or self.dead:
            return
        self.finished = self.dead = True
        self.look.leave()
        try:
            self.steps.finish()
            if not (self.steps.done or self.steps.backwards):
                return
            self.record.take(self.steps, at_once=True)
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
        self.record.take(self.steps, at_once=True)
        self.record.write({"kind": "so far", **self.summary()})
        return self.steps.seconds

    def guarded(self, see: Callable[..., Any], *args: Any) -> Any:
        """What `see` returns; None where it fails, and nothing is seen from then on."""
        if self.dead:
            return None
        began = time.perf_counter()
        try:
            return see(*args)
        except Exception as error:
            self.broke(error)
            return None
        finally:
            self.own_seconds += time.perf_counter() - began

    def after_step(self, go_on: Any) -> None:
        """`go_on`: False ends the process here. None: nothing is seen any more."""
        if go_on is not None:
            self.guarded(self.note, go_on)
            if go_on is False:
                self.at_end(self.leave_gloo)
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

    def step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Torch's hook before an optimiser step; `args` begin with the optimiser. A closure's calls are counted."""
        if self.depth == 0:
            self.calls = 0
            self.steps.enter("optimizer")
        self.depth += 1
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if self.depth > 1 or not callable(closure):
            return None

        @functools.wraps(closure)
        def counted(*given: Any, **named: Any) -> Any:
            self.calls += 1
            return closure(*given, **named)

        return ((args[0], counted, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": counted})

    def step_ends(self, optimizer: Any) -> Any:
        self.depth = max(0, self.depth - 1)
        self.stepped = True
        if self.depth:
            return None
        self.steps.leave()
        return self.steps.optimized(self.name(optimizer), rate_of(optimizer, self.torch), False, max(1, self.calls))

    def name(self, optimizer: Any) -> str:
        """`SGD`, and of the next of that class `SGD 2`."""
        name: str | None = self.names.get(optimizer)
        if name is None:
            kind = type(optimizer).__name__
            others = sum(name.split()[0] == kind for name in self.names.values())
            name = self.names[optimizer] = f"{kind} {others + 1}" if others else kind
        return name

    def another_waits(self) -> bool:
        """True where an optimizer that has not stepped yet updates parameters that none of the others does."""
        kind = sys.modules["torch.optim.optimizer"].Optimizer
        every = [each for each in gc.get_objects() if issubclass(type(each), kind)]
        known = {id(each) for optimizer in every if optimizer in self.names for each in parameters_of(optimizer)}
        waiting = (each for optimizer in every if optimizer not in self.names for each in parameters_of(optimizer))
        return any(id(each) not in known for each in waiting)

    def attempt(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """A scaler's step, in which the optimiser's own is nested, or left out."""
        nested = self.depth > 0
        self.stepped = False
        self.depth += 1
        self.guarded(self.steps.enter, "optimizer")
        try:
            result = original(scaler, optimizer, *args, **kwargs)
        finally:
            self.depth = max(0, self.depth - 1)
            self.guarded(self.steps.leave)
        if not nested:
            self.after_step(self.guarded(self._attempted, scaler, optimizer))
        return result

    def _attempted(self, scaler: Any, optimizer: Any) -> bool:
        skips_itself = scaler.is_enabled() and getattr(optimizer, "_step_supports_amp_scaling", False)
        skipped = None if skips_itself else not self.stepped  # a fused one is always called, and knows alone
        return self.steps.optimized(self.name(optimizer), rate_of(optimizer, self.torch), skipped)

    def scale(self, original: Any, scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scaler, outputs, *args, **kwargs)
        if not self.dead:
            self.scaled = (result, outputs)
        return result

    # --- forward, backward, batches ---

    def forward(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """The outermost call of a module."""
        entered = self.guarded(self._forward_begins, module, args, kwargs)
        self.inside = True
        try:
            return original(module, *args, **kwargs)
        finally:
            self.inside = False
            if entered:
                self.guarded(self.steps.leave)

    def _forward_begins(self, module: Any, args: Any, kwargs: Any) -> bool:
        first = first_tensor((*args, *kwargs.values()))
        part = "forward"
        if not (first is not None and first.requires_grad) and self._trainable(module):
            trains = self.torch.is_grad_enabled() and self._in_training(module)
            if trains:
                self.after_step(self.steps.next_begins())
                if self.checks.left:
                    self.steps.aside(self.checks.look, module, first)
            else:
                self.look.put_off()
            self.steps.sequence_first |= trains and self._sequence_first(module)
            part = self.steps.forward(trains, rows_of(first))
        self.steps.enter(part)
        return True

    def _trainable(self, module: Any) -> bool:
        return self._has(self.trainable, module, module.parameters, "requires_grad")

    def _in_training(self, module: Any) -> bool:
        """Whether any submodule is: some wrappers are not, whose model is."""
        return bool(module.training) or self._has(self.training, module, module.modules, "training")

    def _sequence_first(self, module: Any) -> bool:
        is_so: bool | None = self.sequence_first.get(module)
        if is_so is None:
            is_so = any(getattr(part, "batch_first", True) is False for part in module.modules())
            self.sequence_first[module] = is_so
        return is_so

    def _has(self, known: Any, module: Any, parts: Callable[[], Any], what: str) -> bool:
        """Whether one of the parts is so. The one that was, is looked at first; it is not kept alive."""
        kept = known.get(module)
        last = kept() if kept else None
        if last is None or not getattr(last, what):
            last = next((part for part in parts() if getattr(part, what)), None)
            if last is not None:
                known[module] = ref(last)
        return last is not None

    def backward(self, original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        inside, self.inside = self.inside, True
        if not inside:
            self.guarded(self._backward_begins, tensors)
        try:
            return original(tensors, *args, **kwargs)
        finally:
            self.inside = inside
            if not inside:
                self.guarded(self.steps.leave)

    def _backward_begins(self, tensors: Any) -> None:
        loss = first_tensor((tensors,))
        if self.scaled is not None and loss is self.scaled[0]:
            loss = first_tensor((self.scaled[1],))
        self.scaled = None
        self.steps.backward(loss.detach() if loss is not None and loss.numel() == 1 else None)
        self.steps.enter("backward")

    def batch(self, original: Any, iterator: Any) -> Any:
        inside, self.inside = self.inside, True
        self.guarded(self.steps.enter, "data")
        try:
            batch = original(iterator)
        finally:
            self.inside = inside
            self.guarded(self.steps.leave)
        self.guarded(self._batch, iterator, batch)
        return batch

    def _batch(self, iterator: Any, batch: Any) -> None:
        self.steps.fetch(id(getattr(iterator, "_dataset", iterator)), rows_of(first_tensor((batch,))))

    def saved(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self.guarded(self.steps.enter, "saving")
        try:
            return original(*args, **kwargs)
        finally:
            self.guarded(self.steps.leave)


def rate_of(optimizer: Any, torch: Any) -> float | None:
    """Of its first group of parameters; None where reading it would make a GPU wait."""
    rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    return None if rate is None or (torch.is_tensor(rate) and rate.is_cuda) else float(rate)


def parameters_of(optimizer: Any) -> list[Any]:
    return [each for group in getattr(optimizer, "param_groups", ()) for each in group.get("params", ())]


def first_tensor(values: Any) -> Any:
    """The first tensor in nested tuples, lists and mappings; None where there is none."""
    for value in values:
        if hasattr(value, "requires_grad") and hasattr(value, "shape"):
            return value
        inner = value.values() if isinstance(value, Mapping) else value if type(value) in (tuple, list) else ()
        found = first_tensor(inner) if inner else None
        if found is not None:
            return found
    return None


def rows_of(tensor: Any) -> int:
    return int(tensor.shape[0]) if tensor is not None and len(tensor.shape) else 0


def explicit_step(samples: int | None) -> None:
    """What `scaling_study.observe.step` does in a process that is observed."""
    for observer in FOUND:
        observer.after_step(observer.guarded(observer.steps.say, samples))


def attach(torch: Any, folder: str) -> None:
    """Have `torch`, just imported, tell an observer what happens in this process."""
    observer = Observer(torch, folder)
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        observer.broke(RuntimeError(f"torch {torch.__version__} is older than {'.'.join(map(str, OLDEST))}"))
        return
    FOUND.append(observer)
    atexit.register(observer.finish)
    os.register_at_fork(after_in_child=observer.begin)
    optimizers = sys.modules["torch.optim.optimizer"]

    def before(optimizer: Any, args: Any, kwargs: Any) -> Any:
        return observer.guarded(observer.step_begins, optimizer, args, kwargs)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        observer.after_step(observer.guarded(observer.step_ends, optimizer))

    with contextlib.suppress(OSError):
        keep_hooks(optimizers.Optimizer, os.path.join(os.path.dirname(torch.__file__), "_dynamo", "eval_frame.py"))
    optimizers.register_optimizer_step_pre_hook(before)
    optimizers.register_optimizer_step_post_hook(after)
    replace_call(torch.nn.Module, observer)
    scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    replace(scaler, "step", observer.attempt)
    replace(scaler, "scale", observer.scale)
    replace(torch.autograd, "backward", observer.backward)
    replace(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", observer.batch)
    replace(torch, "save", observer.saved)


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


def replace(owner: Any, name: str, seen: Callable[..., Any]) -> None:
    """Have `owner.name` go through `seen`, which is given the original first."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def through(*args: Any, **kwargs: Any) -> Any:
        return seen(original, *args, **kwargs)

    setattr(owner, name, through)


def replace_call(module: Any, observer: Observer) -> None:
    """The same for Module.__call__, at the least cost for the modules inside another."""
    original = module.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if observer.inside or observer.dead:
            return original(self, *args, **kwargs)
        return observer.forward(original, self, args, kwargs)

    module.__call__ = call
