"""Looks into one warm-up step: its FLOPs, and the bytes that it hands to collectives. And peak memory.

    steps   |  1  |  2  |  3  |  4  |       looked at: from the end of the second step until the same optimizer has
                        |=====|             stepped again; a step with an evaluation in it is not it

A mode of torch's dispatcher sees every operator meanwhile, those of backward and the collectives among them: DDP's
reducer in C++, FSDP and DeepSpeed call `c10d::allreduce_` and its like. It counts by shapes and passes everything on.
A collective or a callback on another thread enters the mode there, by methods of torch that are replaced meanwhile; so
are the functions of Python by which Horovod's optimizers hand gradients over. torch's profiler is left to the script.

FLOPs are those of torch.utils.flop_counter: matrix products, convolutions and attention, two a multiply-add. Bytes are
of a collective's whole tensor: of the input of an allreduce or a reduce-scatter, of the result of an all-gather. What
cannot be counted is null, and `unknown` says why.

A step takes longer while it is looked at, and its line says so (`looked_at`): no measurement may use it.

Local SGD averages weights in every H-th step only. So what Python hands to collectives is counted in all steps, by
methods of torch's ProcessGroup; where it is not in every step, bytes are a mean of whole periods.
"""

from __future__ import annotations

import functools
import importlib
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

AFTER = 2  # optimizer steps: the first makes an optimizer's state, and DDP makes its buckets anew in the second
BEFORE = 4  # steps, after which none begins to be looked at: of those to come some are timed (held.WARM_STEPS)
PARTS = ("forward", "backward", "optimizer", "rest")  # of a step, whose FLOPs are its own; data and pauses are not
KINDS = {  # a part of a collective's name -> how a record calls it; the first that fits
    "reduce_scatter": "reduce_scatter",
    "allreduce": "allreduce",
    "all_reduce": "allreduce",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
}
COLLECTIVES = ("c10d", "_c10d_functional", "_dtensor")  # libraries of torch that have some
REDUCTIONS = ("allreduce", "reduce_scatter", "reduce")  # of gradients
PRODUCT = re.compile(
    r"(?:^|_)(?:mm|bmm|addmm|baddbmm|matmul|linear|conv|convolution|attention|attn|rnn|lstm|gru)(?:_|$)"
)
HAND_OVER = ("allreduce_async_", "grouped_allreduce_async_")  # functions of horovod.torch.optimizer

COMPILED = "torch.compile made kernels of it, which are not seen"
OTHER_MODE = "the script has a mode of torch's dispatcher of its own"
TOO_SHORT = "fewer than three steps ran"
EVALUATED = "an evaluation lay in the step that was looked at"
NOT_ONE_STEP = "several optimizers alternate, and no whole cycle of them was observed"
NO_PRODUCT = "no matrix product, convolution or attention was seen: kernels of another library, or CUDA graphs"
A_PART = "this process computes a part of the model"
NOTHING_SENT = "no collective of torch.distributed was seen in the step that was looked at"
SENT_ONCE = "collectives were seen in one step alone: a run of more steps shows how often they come"
NOT_TORCHS = {
    "horovod": "Horovod was handed gradients otherwise than by its DistributedOptimizer",
    "mpi4py": "collectives of MPI are not seen",
    "environment": "the processes exchange gradients by other means than torch.distributed",
}


class Counts:
    """FLOPs by part of the step and bytes by kind of collective, of the operators that were seen."""

    def __init__(self, formulas: Mapping[Any, Any], part: Callable[[], str]) -> None:
        self.formulas, self.part = formulas, part
        self.flops: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.reduced: Counter[str] = Counter()  # bytes handed to allreduces, by part of the step
        self.calls = 0  # of these
        self.unknown: set[str] = set()  # products without a formula
        self.cut = False  # products of sharded tensors, or tensors sent to another process
        self.fault = ""

    def saw(self, operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        """A fault in here is none of the training."""
        try:
            self._saw(operator, args, kwargs, result)
        except Exception as error:
            self.fault = self.fault or f"{type(error).__name__}: {error}"

    def _saw(self, operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        library, _, name = str(operator.name()).partition("::")
        if library in COLLECTIVES:
            kind = kind_of(name)
            self.cut |= kind == "send" or name.startswith("recv")
            size = whole_bytes(args, kwargs, result)
            if kind == "allreduce":
                self.reduces(size)
            elif kind:
                self.bytes[kind] += size
            return
        part = self.part()
        formula = self.formulas.get(getattr(operator, "_overloadpacket", operator)) if part in PARTS else None
        if formula is not None:
            self.flops[part] += int(formula(*args, **kwargs, out_val=result))
        elif part in PARTS and PRODUCT.search(name) and not name.endswith("_cell"):  # whose products are apart
            self.unknown.add(name)

    def reduces(self, size: int) -> None:
        """An allreduce is handed so many bytes, in the part of the step that runs now."""
        self.bytes["allreduce"] += size
        self.reduced[self.part()] += size
        self.calls += 1

    def of_shards(self, operator: Any) -> None:
        """An operator on DTensors. It comes back as the operators on its shards, and the collectives, that it is."""
        self.cut |= getattr(operator, "_overloadpacket", operator) in self.formulas


class Exchanges:
    """Bytes that Python hands to collectives, in all steps of a process.

    What C++ hands over by itself, as DDP its buckets, is not seen here, and is alike in all steps.
    """

    def __init__(self) -> None:
        self.step = 0  # optimizer steps that have ended
        self.first: int | None = None  # the step with the first call
        self.last = self.steps = 0  # the step with the last; how many after the first had calls
        self.bytes: Counter[str] = Counter()  # by kind, after the first
        self.looked_at: Counter[str] = Counter()  # by kind, in the step that was looked at
        self.looking = False

    def saw(self, kind: str, size: int) -> None:
        if not size:
            return
        if self.looking:
            self.looked_at[kind] += size
        if self.first is None:
            self.first = self.last = self.step
        if self.step > self.first:
            self.bytes[kind] += size
            self.steps += self.step > self.last
        self.last = self.step

    def in_a_step(self, found: dict[str, Any], ends: float) -> dict[str, Any]:
        """`found` in the step that was looked at, with the mean of what Python hands over in some steps alone.

        `ends`: how many optimizer steps a step has.
        """
        if self.first is None:
            return found
        sent, unknown = found["communication_bytes"], found["unknown"]
        if sent is None and unknown["communication_bytes"] != NOTHING_SENT:
            return found
        span = self.last - self.first
        if span == self.steps:  # calls in all steps; or in one, of which there may be more
            if span or not self.first or self.step - self.first < 2 or sent != dict(self.looked_at):
                return found
            whys = {**unknown, "communication_bytes": SENT_ONCE}
            return {**found, "communication_bytes": None, "allreduce_bytes": None, "unknown": whys}
        mean = Counter({kind: round(ends * size / span) for kind, size in self.bytes.items()})
        whole = {kind: (sent or {}).get(kind, 0) - self.looked_at[kind] + mean[kind] for kind in {*(sent or {}), *mean}}
        return {
            **found,
            "communication_bytes": {kind: size for kind, size in sorted(whole.items()) if size > 0},
            "allreduce_bytes": sum(max(0, whole.get(kind, 0)) for kind in REDUCTIONS),
            "sent_in": [self.steps, span],
            "unknown": {name: why for name, why in unknown.items() if name != "communication_bytes"},
        }


def kind_of(name: str) -> str:
    """The kind of a collective of this name, as a record calls it; empty for anything else."""
    return next((kind for word, kind in KINDS.items() if word in name), "")


def methods_of(group: Any) -> list[tuple[Any, str]]:
    """(the class, name) of each method of ProcessGroup by which Python hands tensors to a collective."""
    names = [name for name in vars(group) if not name.startswith("__") and kind_of(name)] if group else []
    return [(group, name) for name in names if callable(getattr(group, name))]


def of_shapes(formula: Callable[..., int]) -> Callable[..., int]:
    """A formula of torch 2.1, which is given shapes, as those of later ones, which are given tensors."""

    def of_tensors(*args: Any, out_val: Any, **kwargs: Any) -> int:
        return formula(*shapes(args), out_shape=shapes(out_val), **kwargs)

    return of_tensors


def shapes(value: Any) -> Any:
    """The shape of a tensor, or a tuple of those of the tensors in it; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return tuple(map(shapes, value))
    return value.shape if hasattr(value, "element_size") else value


def tensor_bytes(value: Any) -> int:
    """Bytes of a tensor, or of the tensors in a list or tuple; 0 for anything else."""
    if hasattr(value, "element_size"):
        return int(value.numel() * value.element_size())
    return sum(map(tensor_bytes, value)) if isinstance(value, (list, tuple)) else 0


def whole_bytes(args: Iterable[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Bytes of the whole tensor of a collective: the largest value among its arguments and results.

    Gathering and scattering name the whole and its parts. A functional all-gather is given a part, and returns the
    whole.
    """
    results = result if isinstance(result, tuple) else (result,)
    return max(map(tensor_bytes, (*args, *kwargs.values(), *results)), default=0)


def on_every_thread(mode: Any) -> list[tuple[Any, str, Any]]:
    """(owner, name, function): what is to replace torch's own while `mode` is on.

    A mode of the dispatcher is of the thread that entered it, and of the threads of its backward. A callback of a
    future runs in the thread that completes the future, such as one of Gloo's: PowerSGD and other hooks of DDP
    communicate there. So do threads of a script.
    """
    torch = sys.modules["torch"]
    future, methods = torch._C.Future, methods_of(getattr(torch.distributed, "ProcessGroup", None))
    return [
        *((future, name, calling_back(getattr(future, name), mode)) for name in ("then", "add_done_callback")),
        *((group, name, entering(getattr(group, name), mode)) for group, name in methods),
    ]


def calling_back(register: Callable[..., Any], mode: Any) -> Callable[..., Any]:
    """A method that registers a callback with a future; the callback runs under the mode."""
    return lambda future, callback: register(future, entering(callback, mode))


def entering(function: Callable[..., Any], mode: Any) -> Callable[..., Any]:
    """The function, under the mode in a thread that has not entered it."""
    modes = sys.modules["torch.utils._python_dispatch"]

    @functools.wraps(function)
    def entered(*args: Any, **kwargs: Any) -> Any:
        if any(each is mode for each in modes._get_current_dispatch_mode_stack()):
            return function(*args, **kwargs)
        modes._push_mode(mode)
        try:
            return function(*args, **kwargs)
        finally:
            modes._pop_mode()

    return entered


class StepInspection:
    """The look of one process into a step of its training; `end` is told of every optimizer step.

    `part`: the part of the step that runs now. `who`: rank and world. `modules`: those that are trained.
    """

    def __init__(
        self, part: Callable[[], str], who: Callable[[], Mapping[str, Any]], modules: Callable[[], Iterable[Any]]
    ) -> None:
        self.part, self.who, self.modules = part, who, modules
        self.names: set[str] = set()  # of optimizers
        self.ends = 0
        self.due = True
        self.begun = ""  # the optimizer after whose step the look began
        self.mode: Any = None  # while it lasts
        self.touched = False  # it began, or went on, in what runs now
        self.counts: Counts | None = None
        self.replaced: list[tuple[Any, str, Any]] = []
        self.found: dict[str, Any] = {}
        self.why = TOO_SHORT
        self.seconds = 0.0  # spent in `end`: no step's
        self.resident: int | None = None  # the peak when the first step began, or of a script without modules ended
        self.exchanges = Exchanges()
        self.is_given_up = False

    def give_up(self, why: str) -> None:
        """Look at nothing."""
        self.is_given_up, self.why = True, why

    def end(self, name: str, steps: int) -> bool:
        """The optimizer of this name has stepped, which ends a step or a part of one, after so many whole steps.

        Begins or ends the look. True: what has ended was looked at.
        """
        if self.is_given_up or (not (self.due or self.touched) and name in self.names):
            return False  # it was seen
        looked_at, began = self.touched, time.perf_counter()
        try:
            self._end(name, steps)
        except Exception as error:
            self.leave()
            self.due, self.why = False, f"{type(error).__name__}: {error}"
        self.touched = self.mode is not None
        self.seconds += time.perf_counter() - began
        return looked_at

    def _end(self, name: str, steps: int) -> None:
        self.ends += 1
        self.resident = self.resident or peak_resident_bytes()
        fresh = name not in self.names
        self.names.add(name)
        if self.mode is not None and name == self.begun:
            self.leave()
            self._take()
        elif fresh:  # a look without this optimizer's work is not of a whole step
            self.leave()
            self.due = True
        if self.due and self.mode is None and self.ends >= AFTER and steps < BEFORE:
            self._begin(name)

    def _begin(self, name: str) -> None:
        modes = importlib.import_module("torch.utils._python_dispatch")
        flops = importlib.import_module("torch.utils.flop_counter")
        hindrance = COMPILED if compiled(modes) else OTHER_MODE if modes._get_current_dispatch_mode() else ""
        if hindrance:
            self.due, self.why = False, hindrance
            return
        self.begun = name
        formulas = getattr(flops, "flop_registry", None)
        formulas = formulas or {each: of_shapes(formula) for each, formula in flops.flop_mapping.items()}
        self.counts = Counts(formulas, self.part)
        self._watch_horovod(self.counts)
        self.mode = counting(modes, self.counts)
        for owner, function, replacement in on_every_thread(self.mode):
            self._replace(owner, function, replacement)
        self.exchanges.looking = True
        self.exchanges.looked_at.clear()
        self.mode.__enter__()

    def _take(self) -> None:
        """Keep what was counted."""
        assert self.counts
        counts, self.due = self.counts, False
        modes = importlib.import_module("torch.utils._python_dispatch")
        unknown: dict[str, str] = {}
        flops = sum(counts.flops.values())
        why = counts.fault or (COMPILED if compiled(modes) else "")
        if counts.unknown:
            why = why or f"torch has no formula for {', '.join(sorted(counts.unknown))}"
        if not flops:
            why = why or NO_PRODUCT
        if why:
            unknown["flops"] = unknown["forward_flops"] = why
        elif counts.cut:
            unknown["forward_flops"] = A_PART
        sent, backend = self._sent(counts, unknown)
        reduced: dict[str, Any] = {}
        if counts.reduced:
            part = counts.reduced.most_common(1)[0][0]
            reduced = {"reduced_by": self.who()["by"], "reduced_in": part, "reduced_calls": counts.calls}
        self.found = {
            "of": self.begun,
            "flops": None if "flops" in unknown else flops,
            "forward_flops": None if unknown.get("forward_flops") else counts.flops["forward"] + counts.flops["rest"],
            "communication_bytes": sent,
            "allreduce_bytes": None if sent is None else sum(sent.get(kind, 0) for kind in REDUCTIONS),
            "parameters": parameters(self.modules()),
            "part_of_model": counts.cut,
            **reduced,
            "backend": backend,
            "unknown": unknown,
        }

    def _sent(self, counts: Counts, unknown: dict[str, str]) -> tuple[dict[str, int] | None, str]:
        """(bytes by kind of collective, the backend of torch.distributed)."""
        who, backend = self.who(), ""
        by = str(who["by"])
        if by == "torch.distributed":
            backend = str(sys.modules["torch.distributed"].get_backend())
        why = counts.fault or (NOT_TORCHS.get(by, NOTHING_SENT) if (who["world"] or 1) > 1 and not counts.bytes else "")
        if why:
            unknown["communication_bytes"] = why
            return None, backend
        return dict(counts.bytes), backend

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        self.replaced.append((owner, name, vars(owner)[name]))  # as it lies there: a method of C++ is no function
        setattr(owner, name, function)

    def _watch_horovod(self, counts: Counts) -> None:
        optimizers = sys.modules.get("horovod.torch.optimizer")
        for name in HAND_OVER:
            original = getattr(optimizers, name, None)
            if original is not None:
                self._replace(optimizers, name, handing_over(original, counts))

    def is_over(self, steps: int) -> bool:
        """After so many whole steps, none is looked at, nor will any be."""
        return self.mode is None and not self.touched and steps >= BEFORE

    def put_off(self) -> None:
        """An evaluation begins: the step that is looked at is no usual one. The next may be."""
        if self.mode is not None:
            self.leave()
            self.why = EVALUATED

    def leave(self) -> None:
        """End the look, if one lasts; never raises. Also in a process that was forked meanwhile."""
        mode, self.mode, self.exchanges.looking = self.mode, None, False
        for owner, name, original in self.replaced:
            setattr(owner, name, original)
        self.replaced = []
        if mode is not None:
            modes = sys.modules["torch.utils._python_dispatch"]
            mode.counts = None  # where another mode lies above it, it stays, and counts no more
            if modes._get_current_dispatch_mode() is mode:
                mode.__exit__(None, None, None)

    def summary(self, step_of: str | None, ended: Mapping[str, int]) -> dict[str, Any]:
        """What a step holds. `step_of`: the optimizer that ends a step; `ended`: how often each has stepped."""
        found = self.found
        if found and ended.get(found["of"], 0) <= ended.get(step_of or "", 0) + 1:
            ends = sum(ended.values()) / max(1, ended.get(step_of or "", 0))
            return self.exchanges.in_a_step({name: value for name, value in found.items() if name != "of"}, ends)
        why = NOT_ONE_STEP if found else self.why
        return {"unknown": dict.fromkeys(("flops", "forward_flops", "communication_bytes"), why)}


def counting(modes: Any, counts: Counts) -> Any:
    """A mode of torch's dispatcher that tells `counts` of every operator, those of backward's threads included."""

    class Counting(modes.TorchDispatchMode):
        supports_higher_order_operators = True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True  # else what is first compiled meanwhile would not be

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen = self.counts
            if any(kind.__name__ == "DTensor" for kind in types):
                if seen is not None:
                    seen.of_shards(func)
                return NotImplemented
            result = func(*args, **(kwargs or {}))
            if seen is not None:
                seen.saw(func, args, kwargs or {}, result)
            return result

    mode = Counting()
    mode.counts = counts
    return mode


def handing_over(original: Callable[..., Any], counts: Counts) -> Callable[..., Any]:
    """A function of Horovod that counts what it is given first as handed to an allreduce."""

    def through(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        counts.reduces(tensor_bytes(tensors))
        return original(tensors, *args, **kwargs)

    return through


def compiled(modes: Any) -> bool:
    """Whether torch.compile made kernels in this process; of an older torch, also whether it was asked to: there, code
    that is first met while a mode is on is never compiled."""
    frames = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {}).get("stats")
    asked = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {}).values()
    return bool(frames) or (
        not hasattr(modes.TorchDispatchMode, "ignore_compile_internals") and any(map(callable, asked))
    )


def parameters(modules: Iterable[Any]) -> int | None:
    """Trainable parameters of the modules, each once; None where a process sees shards of them alone."""
    found = {id(each): each for module in modules for each in module.parameters() if each.requires_grad}
    if any(type(each).__name__ == "FlatParameter" or hasattr(each, "_is_sharded") for each in found.values()):
        return None
    return sum(int(getattr(each, "ds_numel", None) or each.numel()) for each in found.values()) or None


def peak_resident_bytes() -> int:
    """Of this process, since its program began; ru_maxrss may be that of the process that started it."""
    try:
        with open("/proc/self/status", encoding="ascii") as stream:
            return next(int(line.split()[1]) * 1024 for line in stream if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def used_gpus(cuda: Any) -> list[int]:
    """The GPUs that this process has memory on, whichever is its current one: asking another would start on that."""
    count = cuda.device_count()
    return [device for device in range(count) if count == 1 or cuda.max_memory_allocated(device)]


def wait_for_gpus(cuda: Any) -> None:
    """Return when this process's GPUs have computed what they were given."""
    for device in used_gpus(cuda):
        cuda.synchronize(device)


def peak_memory(torch: Any, before: int | None) -> dict[str, Any]:
    """Peak memory and its kind. `before`: the resident peak when the first step began."""
    cuda = torch.cuda
    of_gpu = sum(map(cuda.max_memory_allocated, used_gpus(cuda))) if cuda.is_initialized() else 0
    if of_gpu:
        return {"peak_memory_bytes": of_gpu, "peak_memory_of": "the GPU's allocator, since the process began"}
    resident = peak_resident_bytes()
    while_stepping = before is not None and resident > before
    since = "while it stepped" if while_stepping else "of its whole life: no step took more than what came before"
    return {"peak_memory_bytes": resident, "peak_memory_of": f"the process, resident, {since}"}
