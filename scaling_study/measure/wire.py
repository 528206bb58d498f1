"""Bytes of one step: handed to collectives, sent by sockets, and moved through memory by operators.     [torch]

Collectives of torch.distributed are operators of torch's dispatcher, whoever calls them: DDP's reducer in C++,
FSDP, DeepSpeed, FairScale, hooks on threads of Gloo. During one step that is not timed (one period of steps, where
communication is not in every step), and only then, they pass through here on their way.
A library with collectives of its own names the function through which it hands over tensors:

    wire.watch(horovod.torch.optimizer, "allreduce_async_", "allreduce")

Counted is the size of the whole tensor that a collective works on: what goes into an allreduce or a reduce-scatter,
what comes out of an all-gather. This is the payload. What a library's algorithm sends for it is
`scaling_study.stats.network.sent_share`; what left through TCP sockets, `sent_by_sockets` counts. Bytes of a collective
of some ranks are told apart by their number and by the dimension of the mesh that they are: `Wire.by_group`.

In the same step every operator of torch passes, forward, backward and update: `moved_bytes` adds up what each of them
reads and writes, as if no cache kept anything (analysis/views/roofline.py).
"""

from __future__ import annotations

import functools
import math
import os
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode

from scaling_study.observe.inside import COLLECTIVES, KINDS, REDUCTIONS, on_every_thread, tensor_bytes, whole_bytes

# Operators of torch by what they leave alone. Anything else reads all that it is given.
MOVE_NOTHING = ("_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
LOOK_UP = {"embedding": "weight", "index": "self", "index_select": "self", "gather": "self", "nll_loss_forward": "self"}
OVERWRITE = ("copy_", "fill_", "zero_")
UNREAD = {"nll_loss_backward": "self"}  # an argument that only lends its shape


class Group(NamedTuple):
    """The ranks that a collective is of."""

    name: str = ""  # a dimension of a mesh, as in init_device_mesh; empty: it has none
    ranks: int = 0  # 0: not known


UNKNOWN = Group()
OF_MESH = "mesh_"  # what torch describes the group of a mesh's dimension by, and the dimension


class Wire:
    """Counts while it is entered as a context: `with wire: step()`."""

    def __init__(self, *reductions: str, activations: Sequence[str] = ()) -> None:
        """`reductions`: kinds by which this framework reduces gradients of weights, beside REDUCTIONS; `activations`:
        those of REDUCTIONS by which it reduces gradients of activations alone."""
        self.reductions = (*(kind for kind in REDUCTIONS if kind not in activations), *reductions)
        self.bytes: defaultdict[str, int] = defaultdict(int)  # by kind of collective
        self.by_group: defaultdict[tuple[str, Group], int] = defaultdict(int)  # likewise, and by its ranks
        self.largest: defaultdict[str, int] = defaultdict(int)  # bytes of the largest call, by kind
        self.unknown = False  # the framework hands over its gradients where they cannot be counted
        self.moved_bytes = 0  # through memory, by operators that were called; not by those inside a compiled model
        self._watched: list[tuple[Any, str, str, Callable[[Any], bool] | None]] = []
        self._originals: list[tuple[Any, str, Any]] = []
        self._dispatched = Dispatched(self)
        self._lock = threading.Lock()

    def watch(self, owner: Any, name: str, kind: str, done: Callable[[Any], bool] | None = None) -> None:
        """Count the tensors in the arguments of `owner.name` as `kind` (allreduce, all_gather, ...).

        `done`: of a function that returns a handle at once, what tells whether that is complete.
        """
        self._watched.append((owner, name, kind, done))

    def count(self, kind: str, size: int, group: Group = UNKNOWN) -> None:
        with self._lock:  # hooks may communicate on threads of their own
            self.bytes[kind] += size
            self.by_group[kind, group] += size
            self.largest[kind] = max(self.largest[kind], size)

    def move(self, size: int) -> None:
        with self._lock:
            self.moved_bytes += size

    def reduced_bytes(self, data_parallel: int) -> int | None:
        """Gradient bytes handed to reductions in the counted step; None where that cannot be known.

        Workers that share the data and seem to hand over nothing do it where it cannot be counted.
        """
        reduced = sum(self.bytes.get(kind, 0) for kind in self.reductions)
        return None if self.unknown or (data_parallel > 1 and not reduced) else reduced

    def __enter__(self) -> Wire:
        for owner, name, kind, _ in self._watched:
            self._replace(owner, name, self._counting(getattr(owner, name), kind))
        for owner, name, function in on_every_thread(self._dispatched):
            self._replace(owner, name, function)
        self._dispatched.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._dispatched.__exit__(*error)
        self._restore()

    @contextmanager
    def around(self, follow: Callable[[Callable[[], Any], Callable[[Any], bool] | None], Any]) -> Iterator[None]:
        """Meanwhile every call of a watched function is `follow(call, done)`."""
        for owner, name, _, done in self._watched:
            original = getattr(owner, name)

            @functools.wraps(original)
            def followed(*args: Any, original: Any = original, done: Any = done, **kwargs: Any) -> Any:
                return follow(functools.partial(original, *args, **kwargs), done)

            self._replace(owner, name, followed)
        try:
            yield
        finally:
            self._restore()

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        original = vars(owner).get(name, getattr(owner, name))  # as it lies there: a method of C++ is no function
        self._originals.append((owner, name, original))
        setattr(owner, name, function)

    def _restore(self) -> None:
        for owner, name, original in reversed(self._originals):  # one may have been replaced twice
            setattr(owner, name, original)
        self._originals.clear()

    def _counting(self, original: Any, kind: str) -> Any:
        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count(kind, sum(map(tensor_bytes, (*args, *kwargs.values()))))
            return original(*args, **kwargs)

        return counted


class Dispatched(TorchDispatchMode):
    """Tells a wire of every collective that passes torch's dispatcher on this thread, those of backward's threads
    included, and of the bytes that torch's own operators move. Other threads enter it by `on_every_thread`."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self.wire = wire

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # it comes back as the plain operators, and the collectives, that it is made of
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if func.namespace in COLLECTIVES:
            name = func.name().partition("::")[2]
            if kind := next((kind for word, kind in KINDS.items() if word in name), None):
                self.wire.count(kind, whole_bytes(args, kwargs, made), group_of(func, args, kwargs))
        elif func.namespace == "aten":
            self.wire.move(moved_bytes(func, args, kwargs, made))
        return made


def group_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Group:
    """The ranks that one call of a collective is of. `func`: an OpOverload."""
    given = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | dict(kwargs)
    group = given.get("process_group", given.get("group_name"))
    if isinstance(group, str):
        group = _resolve_process_group(group)  # type: ignore[arg-type]
    elif isinstance(group, torch.ScriptObject):
        group = ProcessGroup.unbox(group)
    if not isinstance(group, ProcessGroup):
        return UNKNOWN
    whole = group.size() == torch.distributed.get_world_size()
    name = "" if whole else str(group.group_desc)
    return Group(name.removeprefix(OF_MESH) if name.startswith(OF_MESH) else "", group.size())


def moved_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> int:
    """Bytes that one call of an operator reads and writes where no cache keeps anything.

    Tensors that it is given are read once, those that it makes or changes are written once; a view moves nothing. Of
    the table of a lookup no more is read than its result has bytes, or its indices. `func`: an OpOverload.
    """
    name, schema = func.overloadpacket.__name__, func._schema
    if func.is_view or name in MOVE_NOTHING:
        return 0
    given = {a.name: value for a, value in zip(schema.arguments, args, strict=False)} | dict(kwargs)
    reads = {key: footprint(value) for key, value in given.items()}
    results = made if isinstance(made, tuple) else (made,)
    written = sum(footprint(one) for told, one in zip(schema.returns, results, strict=False) if told.alias_info is None)
    if (table := LOOK_UP.get(name, "")) in reads:
        reads[table] = min(reads[table], max(written, sum(size for key, size in reads.items() if key != table)))
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in reads:
            written += reads[argument.name]
            if argument.kwarg_only or name in OVERWRITE:
                reads[argument.name] = 0
    reads.pop(UNREAD.get(name, ""), None)
    return written + sum(reads.values())


def footprint(value: Any) -> int:
    """Bytes in memory of the tensors in a value: of one that is repeated along a dimension (a stride of 0), once."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            return 0
        sides = zip(value.shape, value.stride(), strict=True)
        return value.element_size() * math.prod(side for side, stride in sides if stride)
    return sum(map(footprint, value)) if isinstance(value, list | tuple) else 0


OPEN_FILES = "/proc/self/fd"
BYTES_SENT = 200  # tcpi_bytes_sent, then tcpi_bytes_retrans, in struct tcp_info (linux/tcp.h): 64 bits since Linux 4.19


def sent_by_sockets() -> int | None:
    """Bytes that this process's TCP sockets, those open now, have sent so far, without what a busy kernel sent again;
    None where the kernel does not say."""
    if not os.path.isdir(OPEN_FILES):
        return None
    total = 0
    for name in os.listdir(OPEN_FILES):
        with suppress(OSError):  # closed meanwhile, or not TCP
            if os.readlink(f"{OPEN_FILES}/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as ours:
                    info = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_SENT + 16)
                if len(info) < BYTES_SENT + 16:
                    return None
                sent, again = struct.unpack_from("QQ", info, BYTES_SENT)
                total += sent - again
    return total
