"""Bytes handed to collectives, counted at the call, and bytes that sockets sent.                        [torch]

Collectives of torch.distributed are operators of torch's dispatcher, whoever calls them: DDP's reducer in C++,
FSDP, DeepSpeed, FairScale. During one step that is not timed, and only then, they pass through here on their way.
A library with collectives of its own names the function through which it hands over tensors:

    wire.watch(horovod.torch.optimizer, "allreduce_async_", "allreduce")

Counted is the size of the whole tensor that a collective works on: what goes into an allreduce or a reduce-scatter,
what comes out of an all-gather. This is the payload. What a library's algorithm sends for it is
`scaling_study.stats.network.sent_share`; what left through TCP sockets, `sent_by_sockets` counts.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from scaling_study.observe.inside import KINDS, REDUCTIONS, tensor_bytes


class Wire:
    """Counts while it is entered as a context: `with wire: step()`."""

    def __init__(self) -> None:
        self.bytes: defaultdict[str, int] = defaultdict(int)  # by kind of collective
        self.largest: defaultdict[str, int] = defaultdict(int)  # bytes of the largest call, by kind
        self.unknown = False  # the framework hands over its gradients where they cannot be counted
        self._watched: list[tuple[Any, str, str, Callable[[Any], bool] | None]] = []
        self._originals: list[tuple[Any, str, Any]] = []
        self._dispatched = Dispatched(self.count)

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
    """Tells every collective that passes torch's dispatcher on this thread (backward's threads inherit it)."""

    def __init__(self, count: Any) -> None:
        super().__init__()
        self.count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # it comes back as the plain operators, and the collectives, that it is made of
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func.name().partition("::")[2]
            kind = next((kind for word, kind in KINDS.items() if word in name), None)
            if kind:  # gathering and scattering name both the whole and its parts: the whole is the larger
                sizes = [tensor_bytes(value) for value in args]
                self.count(kind, max(sizes, default=0))
        return func(*args, **(kwargs or {}))


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
