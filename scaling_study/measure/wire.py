"""Bytes of one step: handed to collectives, sent by sockets, and moved through memory by operators.     [torch]

Collectives of torch.distributed are operators of torch's dispatcher, whoever calls them: DDP's reducer in C++,
FSDP, DeepSpeed, FairScale. During one step that is not timed, and only then, they pass through here on their way.
A library with collectives of its own names the function through which it hands over tensors:

    wire.watch(horovod.torch.optimizer, "allreduce_async_", "allreduce")

Counted is the size of the whole tensor that a collective works on: what goes into an allreduce or a reduce-scatter,
what comes out of an all-gather. This is the payload. What a library's algorithm sends for it is
`scaling_study.stats.network.sent_share`; what left through TCP sockets, `sent_by_sockets` counts.

In the same step every operator of torch passes, forward, backward and update: `moved_bytes` adds up what each of them
reads and writes, as if no cache kept anything (analysis/views/roofline.py).
"""

from __future__ import annotations

import functools
import math
import os
import socket
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scaling_study.observe.inside import KINDS, REDUCTIONS, tensor_bytes

# Operators of torch by what they leave alone. Anything else reads all that it is given.
MOVE_NOTHING = ("_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
LOOK_UP = {"embedding": "weight", "index": "self", "index_select": "self", "gather": "self", "nll_loss_forward": "self"}
OVERWRITE = ("copy_", "fill_", "zero_")
UNREAD = {"nll_loss_backward": "self"}  # an argument that only lends its shape


class Wire:
    """Counts while it is entered as a context: `with wire: step()`."""

    def __init__(self) -> None:
        self.bytes: defaultdict[str, int] = defaultdict(int)  # by kind of collective
        self.largest: defaultdict[str, int] = defaultdict(int)  # bytes of the largest call, by kind
        self.unknown = False  # the framework hands over its gradients where they cannot be counted
        self._watched: list[tuple[Any, str, str, Callable[[Any], bool] | None]] = []
        self._originals: list[tuple[Any, str, Any]] = []
        self._dispatched = Dispatched(self.count)

    @property
    def moved_bytes(self) -> int:
        """Through memory, by the operators that were called; those inside a compiled model are not."""
        return self._dispatched.moved_bytes

    def watch(self, owner: Any, name: str, kind: str, done: Callable[[Any], bool] | None = None) -> None:
        """Count the tensors in the arguments of `owner.name` as `kind` (allreduce, all_gather, ...).

        `done`: of a function that returns a handle at once, what tells whether that is complete.
        """
        self._watched.append((owner, name, kind, done))

    def count(self, kind: str, size: int) -> None:
        self.bytes[kind] += size
        self.largest[kind] = max(self.largest[kind], size)

    def reduced_bytes(self, data_parallel: int) -> int | None:
        """Gradient bytes handed to reductions in the counted step; None where that cannot be known.

        Workers that share the data and seem to hand over nothing do it where it cannot be counted.
        """
        reduced = sum(self.bytes.get(kind, 0) for kind in REDUCTIONS)
        return None if self.unknown or (data_parallel > 1 and not reduced) else reduced

    def __enter__(self) -> Wire:
        for owner, name, kind, _ in self._watched:
            self._replace(owner, name, self._counting(getattr(owner, name), kind))
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
        self._originals.append((owner, name, getattr(owner, name)))
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
    """Tells every collective that passes torch's dispatcher on this thread (backward's threads inherit it), and adds up
    the bytes that torch's own operators move."""

    def __init__(self, count: Any) -> None:
        super().__init__()
        self.count = count
        self.moved_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # it comes back as the plain operators, and the collectives, that it is made of
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func.name().partition("::")[2]
            kind = next((kind for word, kind in KINDS.items() if word in name), None)
            if kind:  # gathering and scattering name both the whole and its parts: the whole is the larger
                sizes = [tensor_bytes(value) for value in args]
                self.count(kind, max(sizes, default=0))
        made = func(*args, **(kwargs or {}))
        if func.namespace == "aten":
            self.moved_bytes += moved_bytes(func, args, kwargs or {}, made)
        return made


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
BYTES_SENT = 200  # offset of tcpi_bytes_sent in struct tcp_info (linux/tcp.h), a 64-bit count since Linux 4.19


def sent_by_sockets() -> int | None:
    """Bytes that this process's TCP sockets, those open now, have sent so far; None where the kernel does not say."""
    if not os.path.isdir(OPEN_FILES):
        return None
    total = 0
    for name in os.listdir(OPEN_FILES):
        with suppress(OSError):  # closed meanwhile, or not TCP
            if os.readlink(f"{OPEN_FILES}/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as ours:
                    info = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_SENT + 8)
                if len(info) < BYTES_SENT + 8:
                    return None
                total += struct.unpack_from("Q", info, BYTES_SENT)[0]
    return total
