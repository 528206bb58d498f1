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
)
from scaling_study.observe.steps import FLUSH_SECONDS, Steps, StepsFile, UpTo

OLDEST = (2, 1)
MOST_KEPT = 1536  # entries of events, three an event: some fifty steps of a small model
FOUND: list[Observer] = []  # the one of this process
MOST_ENDS = 3  # times that a run is asked to end, before its process is ended
WITHOUT_TORCH = "the script trains without torch"


class NoTorch:
    """Stands for torch in a process that says its steps without it."""

    __version__ = ""

    class cuda:
        @staticmethod
        def is_available() -> bool:
            return False

    distributed = cuda


class Outermost:
    """A module that is called outermost, and what it was seen to be; it is not kept alive."""

    def __init__(self, module: Any) -> None:
        self.module = ref(module)
        self.trainable: Callable[[], Any] = lambda: None  # a parameter that wanted a gradient
        self.training: Callable[[], Any] = lambda: None  # a submodule that was in training mode
        self.sequence_first = any(getattr(part, "batch_first", True) is False for part in module.modules())

    def trains(self, module: Any, is_grad_enabled: Callable[[], bool]) -> bool | None:
        """Whether it is called to be trained; None where no parameter wants a gradient. What was so is looked at first.

        Any submodule in training mode is enough: some wrappers are not, whose model is.
        """
        parameter = self.trainable()
        if parameter is None or not parameter.requires_grad:
            parameter = next((each for each in module.parameters() if each.requires_grad), None)
            self.trainable = ref(parameter) if parameter is not None else lambda: None
        if parameter is None:
            return None
        if not is_grad_enabled():
            return False
        if module.training:
            return True
        part = self.training()
        if part is None or not part.training:
            part = next((each for each in module.modules() if each.training), None)
            self.training = ref(part) if part is not None else lambda: None
        return part is not None


class Observer:
    """What one process has seen, and its record.

    An event is folded into steps at once until nothing more is looked at and it is known which optimizer ends a step.
    From then on it is kept with its time, since in the middle of a training each line of Python that runs costs ten
    times what it costs in a loop. What is kept is folded before a step after which the run may be held or ended, and
    every two seconds.
    """

    def __init__(self, torch: Any, folder: str) -> None:
        self.torch, self.folder = torch, folder
        self.at: float | None = None  # the time of the event that is folded now; None: it has just happened
        self.look = self.looking()
        self.begin()

    def begin(self) -> None:
        """Anew: in a process that was forked, what its parent saw is not its own."""
        wanted, driver = os.environ.get(STEPS, ""), os.environ.get(DRIVER, "")
        lost = os.path.join(self.folder, LOST)
        goal = Held(driver, self.who, self.tell) if driver else UpTo(int(wanted) if wanted else None, lost)
        self.look.leave()
        self.look = self.looking()
        self.at = None
        self.steps = Steps(clock=self.now, goal=goal, look=self.look.end, another=self.another_waits)
        self.events: list[Any] = []  # to be folded: function of `steps`, its time, its arguments, and so on
        self.at_once = True  # events are folded as they come
        self.left = 0  # optimizer steps up to the first after which the run may be held or ended
        self.record = StepsFile(self.folder, self.about)
        self.checks = Checks(self.torch)
        self.dead = self.finished = False
        self.depth = 0  # of nested optimiser steps
        self.stepped = False  # an optimiser stepped since a scaler was asked to
        self.calls = 0  # of the closure of the outermost optimiser step
        self.inside = False  # of a forward, a backward or a batch being made: what is in there is not outermost
        self.names: Any = WeakKeyDictionary()  # of optimisers
        self.named: Any = (lambda: None, "")  # the one that stepped last, weakly, and its name
        self.watched = False  # whether the end of a process of multiprocessing is
        self.modules: Any = WeakKeyDictionary()  # module -> Outermost
        self.called: Outermost | None = None  # the last of them
        self.scaled: Any = None  # (result of a scaler, its input)
        self.own_seconds = 0.0  # spent in here
        self.left_times = 0  # how often the run was asked to end here
        self.identity: dict[str, Any] = {}

    def looking(self) -> StepInspection:
        def trained() -> list[Any]:
            return [module for module, about in self.modules.items() if about.trainable() is not None]

        look = StepInspection(lambda: self.steps.part(), self.who, trained)
        if self.torch is NoTorch:
            look.give_up(WITHOUT_TORCH)
        return look

    # --- events, and the steps that they make ---

    def now(self) -> float:
        return time.perf_counter() if self.at is None else self.at

    def happened(self, what: Callable[..., Any], *args: Any) -> None:
        """The same as `keep`, from outside of `guarded`."""
        if self.at_once:
            self.guarded(what, *args)
            return
        began = time.perf_counter()
        self.events += (what, began, args)
        if len(self.events) > MOST_KEPT:
            self.guarded(self.fold)
        else:
            self.own_seconds += time.perf_counter() - began

    def keep(self, what: Callable[..., Any], *args: Any) -> Any:
        """Have `what` of the steps, given these arguments, fold an event: now, whose result is returned, or later."""
        if self.at_once:
            return what(*args)
        self.events += (what, time.perf_counter(), args)
        return None

    def fold(self) -> Any:
        """All that is kept, in its order. Returns the result of the last. No step contains the time that it takes."""
        events, self.events = self.events, []
        began, result = time.perf_counter(), None
        try:
            for place in range(0, len(events), 3):
                what, self.at, args = events[place : place + 3]
                result = what(*args)
        finally:
            self.at = None
            self.steps.mark += time.perf_counter() - began
        return result

    def ended(self, *step: Any) -> Any:
        """An optimiser step has ended (`Steps.optimized`). Returns False where the run ends here, and None where events
        are kept on."""
        self.look.exchanges.step += 1
        if self.at_once:
            return self.steps.optimized(*step)
        now = time.perf_counter()
        self.events += (self.steps.optimized, now, step)
        self.left -= 1
        return self.fold() if self.left <= 0 or now - self.record.written_at > FLUSH_SECONDS else None

    def plan(self) -> None:
        """Fold at once, or later, from here on."""
        steps, until = self.steps, self.steps.goal.until
        self.left = sys.maxsize if until is None else until - steps.done
        looks_on = self.checks.left or not self.look.is_over(steps.done)
        self.at_once = self.dead or looks_on or steps.is_explicit or not steps.anchor

    # --- identity and endings ---

    def jax(self) -> Any:
        """JAX, where a process trains with it and without torch. Asking a JAX that is not used would start it."""
        return sys.modules.get("jax") if self.torch is NoTorch else None

    def about(self) -> dict[str, Any]:
        jax = self.jax()
        on_gpu = self.torch.cuda.is_available() and self.torch.cuda.is_initialized()
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            **(self.identity or self.who()),
            "torch": str(self.torch.__version__),
            "jax": str(getattr(jax, "__version__", "")),
            "python": sys.version.split()[0],
            "device": "cuda" if on_gpu or (jax is not None and jax.default_backend() == "gpu") else "cpu",
            "script": sys.argv[0],  # without its arguments, which may hold a secret
            "code": code(),
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
        jax = self.jax()
        if jax is not None and jax.process_count() > 1:
            return {"rank": jax.process_index(), "world": jax.process_count(), "by": "jax"}
        rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        if rank.isdigit() and world.isdigit():
            return {"rank": int(rank), "world": int(world), "by": "environment"}
        return {"rank": None, "world": None, "by": ""}

    def broke(self, error: BaseException, at_once: bool = False) -> None:
        """Something in here failed: say so in the record, and look no further. `at_once`: before anything was seen."""
        self.dead = self.at_once = True
        self.look.leave()
        why = f"{type(error).__name__}: {error}"
        with contextlib.suppress(Exception):  # nothing of it may reach the training
            with contextlib.suppress(Exception):
                self.fold()
            try:
                self.record.take(self.steps, at_once=True)
                self.record.write({"kind": "not observed", "why": why})
            except Exception:  # there is no room, or the folder is gone
                print(f"scaling-study: not observed: {why}", file=sys.stderr, flush=True)
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
        began = time.perf_counter()
        self.record.take(self.steps, at_once=not go_on or self.record.file is None)
        self.steps.mark += time.perf_counter() - began  # no step's
        if not go_on:
            self.finish(f"ended by scaling-study after {self.steps.done} steps")
        self.plan()

    def finish(self, why: str = "") -> None:
        """The last lines, once."""
        if self.finished or self.dead:
            return
        self.finished = self.dead = self.at_once = True
        self.look.leave()
        try:
            self.fold()
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
        """`go_on`: False ends the process here. None: it is not known yet, or nothing is seen any more.

        A script that catches all exceptions, this one too, trains on: it is told again after its next steps.
        """
        if go_on is not None:
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

    def step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Torch's hook before an optimiser step; `args` begin with the optimiser. A closure's calls are counted."""
        if self.depth == 0:
            self.calls = 0
            self.keep(self.steps.enter, "optimizer")
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
        self.keep(self.steps.leave)
        last, name = self.named
        name = name if last() is optimizer else self.name(optimizer)
        return self.ended(name, rate_of(optimizer, self.torch), False, self.calls or 1)

    def name(self, optimizer: Any) -> str:
        """`SGD`, and of the next of that class `SGD 2`."""
        name: str | None = self.names.get(optimizer)
        if name is None:
            kind = type(optimizer).__name__
            others = sum(name.split()[0] == kind for name in self.names.values())
            name = self.names[optimizer] = f"{kind} {others + 1}" if others else kind
        self.named = (ref(optimizer), name)
        return name

    def another_waits(self) -> bool:
        """True where an optimizer that has not stepped yet trains parameters that none of the others does."""
        kind = sys.modules["torch.optim.optimizer"].Optimizer
        every = [each for each in gc.get_objects() if issubclass(type(each), kind)]
        known = {id(each) for optimizer in every if optimizer in self.names for each in parameters_of(optimizer)}
        waiting = (each for optimizer in every if optimizer not in self.names for each in parameters_of(optimizer))
        return any(id(each) not in known and getattr(each, "requires_grad", False) for each in waiting)

    def attempt(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """A scaler's step, in which the optimiser's own is nested, or left out."""
        nested = self.depth > 0
        self.stepped = False
        self.depth += 1
        self.happened(self.steps.enter, "optimizer")
        try:
            result = original(scaler, optimizer, *args, **kwargs)
        finally:
            self.depth = max(0, self.depth - 1)
            self.happened(self.steps.leave)
        if not nested:
            self.after_step(self.guarded(self._attempted, scaler, optimizer))
        return result

    def _attempted(self, scaler: Any, optimizer: Any) -> Any:
        skips_itself = scaler.is_enabled() and getattr(optimizer, "_step_supports_amp_scaling", False)
        skipped = None if skips_itself else not self.stepped  # a fused one is always called, and knows alone
        return self.ended(self.name(optimizer), rate_of(optimizer, self.torch), skipped)

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
                self.happened(self.steps.leave)

    def _forward_begins(self, module: Any, args: Any, kwargs: Any) -> bool:
        first = args[0] if args and type(args[0]) is self.torch.Tensor else first_tensor((*args, *kwargs.values()))
        trains, rows = None, 0
        if first is None or not first.requires_grad:
            about = self.called
            if about is None or about.module() is not module:
                about = self.called = self._about(module)
            trains = about.trains(module, self.torch.is_grad_enabled)
            if trains:
                rows = rows_of(first)
                if self.at_once:
                    self._training_begins(module, first, about)
            elif trains is False:
                self.look.put_off()
        self.keep(self.steps.forward, trains, rows)
        return True

    def _about(self, module: Any) -> Outermost:
        about: Outermost | None = self.modules.get(module)
        if about is None:
            about = self.modules[module] = Outermost(module)
        return about

    def _training_begins(self, module: Any, first: Any, about: Outermost) -> None:
        """A training forward begins, as long as steps are looked at."""
        self.after_step(self.steps.next_begins())
        self.look.resident = self.look.resident or peak_resident_bytes()
        if self.checks.left:
            self.steps.aside(self.checks.look, module, first)
        self.steps.sequence_first |= about.sequence_first

    def backward(self, original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        inside, self.inside = self.inside, True
        if not inside:
            self.guarded(self._backward_begins, tensors)
        try:
            return original(tensors, *args, **kwargs)
        finally:
            self.inside = inside
            if not inside:
                self.happened(self.steps.leave)

    def _backward_begins(self, tensors: Any) -> None:
        loss = tensors if type(tensors) is self.torch.Tensor else first_tensor((tensors,))
        if self.scaled is not None:
            loss = first_tensor((self.scaled[1],)) if loss is self.scaled[0] else loss
            self.scaled = None
        self.keep(self.steps.backward, loss.detach() if loss is not None and loss.numel() == 1 else None)

    def batch(self, original: Any, iterator: Any) -> Any:
        inside, self.inside = self.inside, True
        self.happened(self.steps.enter, "data")
        try:
            batch = original(iterator)
        except BaseException:  # there are no more
            self.happened(self.steps.leave)
            raise
        finally:
            self.inside = inside
        self.guarded(self._batch, iterator, batch)
        return batch

    def _batch(self, iterator: Any, batch: Any) -> None:
        first = batch[0] if type(batch) in (list, tuple) and batch else batch
        first = first if type(first) is self.torch.Tensor else first_tensor((batch,))
        self.keep(self.steps.fetched, id(getattr(iterator, "_dataset", iterator)), rows_of(first))

    def saved(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self.happened(self.steps.enter, "saving")
        try:
            return original(*args, **kwargs)
        finally:
            self.happened(self.steps.leave)

    def exchanged(self, kind: str, given: Any) -> None:
        """Python hands this to a collective."""
        self.look.exchanges.saw(kind, max(map(tensor_bytes, given), default=0))

    def say(self, samples: int | None, loss: Any) -> Any:
        """The script says that a step has ended: from now on it says all of them."""
        self.fold()
        self.at_once = True
        self.look.exchanges.step += 1
        self.look.resident = self.look.resident or peak_resident_bytes()
        return self.steps.say(samples, loss)


def rate_of(optimizer: Any, torch: Any) -> float | None:
    """Of its first group of parameters; None where reading it would make a GPU wait."""
    rate: Any = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    if type(rate) is float:
        return rate
    is_on_gpu = torch.is_tensor(rate) and rate.is_cuda
    return None if rate is None or is_on_gpu else float(rate)


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
    shape = () if tensor is None else tensor.shape
    return int(shape[0]) if shape else 0


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


def replace(owner: Any, name: str, seen: Callable[..., Any]) -> None:
    """Have `owner.name` go through `seen`, which is given the original first."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def through(*args: Any, **kwargs: Any) -> Any:
        return seen(original, *args, **kwargs)

    setattr(owner, name, through)


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
