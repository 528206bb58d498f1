"""How a script joins Hivemind's peers, and leaves them. Imported only by scripts that need Hivemind.      [torch]

torchrun, srun or a person start the processes      each is a peer, with three children and a daemon of its own
a store at MASTER_ADDR:MASTER_PORT                  has the first peer's addresses, and what the clock agrees on
Hivemind's DHT                                      has all else: who takes part in a round, how far each one is
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import hivemind
import psutil
import torch.distributed as dist
from hivemind.p2p import P2P

from scaling_study.ranks import Ranks, claim_cores, claim_device, local_rank, told_to_meet
from scaling_study.trial import Trial

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
MOST_BYTES = 1 << 20  # of one value at the store; it refuses some 8 MiB
LONGEST_WAIT = timedelta(hours=1)  # for another rank; launchers end us where one has died
LONGEST_FOLDER = 60  # characters before the name of a socket, which may have some hundred in all
if len(folder := tempfile.gettempdir()) > LONGEST_FOLDER:
    # Where nobody removes them after a kill. torch and multiprocessing have such sockets too.
    os.environ["TMPDIR"] = tempfile.tempdir = folder = "/tmp"
P2P._UNIX_SOCKET_PREFIX = f"/unix{folder}/hivemind-"
TRIES, UNANSWERED = 4, "none of the initial_peers responded"  # of some seconds each; Hivemind's words for a try in vain
NO_INTERNET = {"use_ipfs": False, "use_relay": False, "use_auto_relay": False}


def first_answered(**options: Any) -> hivemind.DHT:
    """A node of the DHT. On a busy machine those that are there miss Hivemind's 3 s: they are asked TRIES times.

    Raises RuntimeError, as Hivemind does.
    """
    for _ in range(TRIES - 1):
        try:
            return hivemind.DHT(**options)
        except RuntimeError as error:
            if UNANSWERED not in str(error):
                raise
    return hivemind.DHT(**options)


@dataclass
class Swarm:
    """This process among its peers."""

    board: Board
    dht: Any = None  # this peer's node of it, once it is started

    def node(self) -> Any:
        """This peer's node of the DHT, started by the first call: rank 0's first, and the others by its addresses.

        Not as ranks join: what fails here fails where `abandon` is known.
        """
        if self.dht is None:
            known = self.board.of_first(list) if self.board.rank else None
            with ending_with_this_process():
                address = f"/ip4/{own_address()}/tcp/0"
                self.dht = first_answered(initial_peers=known, host_maddrs=[address], start=True, **NO_INTERNET)
            if known is None:
                self.board.of_first(lambda: [str(address) for address in self.dht.get_visible_maddrs()])
        return self.dht

    def name(self) -> str:
        """A new name, the same on every rank."""
        return str(self.board.of_first(lambda: uuid.uuid4().hex))

    def leave(self) -> None:
        """End this process, once every rank is here: one that leaves early stalls the others.

        All that it started ends with it. Hivemind's own way would wait for averagings that are under way, for up to
        their time-out where a peer has left already, and the interpreter's for threads that never end.
        """
        self.board.total([0.0])
        self.board.close()
        _exit(0)


@dataclass(frozen=True)
class PeerRanks(Ranks):
    """One process's place, with its peers."""

    swarm: Swarm = field(kw_only=True)


class Board:
    """What ranks tell each other beside Hivemind, the clock's numbers first of all, at the launcher's store."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self.store, self.rank, self.size, self.count = store, rank, size, 0
        store.set_timeout(LONGEST_WAIT)

    def of_first(self, make: Callable[[], Any]) -> Any:
        """What rank 0 makes, on every rank; anything that JSON holds."""
        self.count += 1
        key = f"first/{self.count}"
        if self.rank == 0:
            self.store.set(key, json.dumps(make()))
        return json.loads(self.store.get(key))

    def bytes_of_first(self, data: bytes) -> bytes:
        """Rank 0's, on every rank. All give equally many. In parts: the store closes a connection that sends more."""
        self.count += 1
        parts = []
        for start in range(0, len(data), MOST_BYTES):
            key = f"bytes/{self.count}/{start}"
            if self.rank == 0:
                self.store.set(key, data[start : start + MOST_BYTES])  # type: ignore[arg-type]  # it takes bytes too
            parts.append(bytes(self.store.get(key)))
        return b"".join(parts)

    def close(self) -> None:
        """The last call of every rank: the first, which may hold the store, stays until the others need it no more."""
        if self.rank:
            self.store.set(f"closed by {self.rank}", "")
        else:
            self.store.wait([f"closed by {rank}" for rank in range(1, self.size)])

    def agree(self, value: float) -> float:
        """Rank 0's number, on every rank."""
        return float(self.of_first(lambda: value))

    def total(self, values: Sequence[float]) -> list[float]:
        """Every rank's numbers, added up place by place."""
        self.count += 1
        self.store.set(f"of {self.rank}/{self.count}", json.dumps(list(values)))
        rows = [json.loads(self.store.get(f"of {rank}/{self.count}")) for rank in range(self.size)]
        return [sum(column) for column in zip(*rows, strict=True)]


def join_hivemind(trial: Trial) -> Ranks:
    """Meet at the store; Hivemind's own network begins with the first peer that is built.

    Raises SystemExit where there is one process: it would have nobody to average with.
    """
    size = _world_size() if told_to_meet("Hivemind") else 1
    if size < 2:
        raise SystemExit("one worker has no peers, and Hivemind needs two: torchrun --nproc-per-node 2 starts them")
    cores, device = claim_cores(trial), claim_device(trial)
    store, rank, size = next(iter(dist.rendezvous("env://")))
    swarm = Swarm(Board(store, rank, size))
    return PeerRanks(
        rank, size, local_rank(), device, cores, swarm.board.agree,
        {"version": hivemind.__version__, "transport": "libp2p"}, swarm.leave, swarm.board.total,
        abandon=abandon, swarm=swarm,
    )  # fmt: skip


def own_address() -> str:
    """This host's address in the network that the frameworks are told to use; without one, that from which the store's
    is reached. Nothing is sent. Raises RuntimeError where other hosts cannot reach it."""
    named = psutil.net_if_addrs().get(os.environ.get("GLOO_SOCKET_IFNAME", ""), ())
    ours = [address.address for address in named if address.family == socket.AF_INET]
    address = ours[0] if ours else _towards_the_store()
    if address.startswith("127.") and int(os.environ.get("LOCAL_WORLD_SIZE", 0)) not in (0, _world_size()):
        raise RuntimeError(
            f"other hosts cannot reach this one at {address}, where {os.environ['MASTER_ADDR']} leads: "
            "give the machine file an interface, or the host another address (docs/clusters.md)"
        )
    return address


def _world_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def _towards_the_store() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((socket.gethostbyname(os.environ["MASTER_ADDR"]), 9))
        return str(probe.getsockname()[0])


@contextlib.contextmanager
def ending_with_this_process() -> Iterator[None]:
    """What is started meanwhile dies with this process, however that ends (Linux: PR_SET_PDEATHSIG).

    Hivemind forks a process for its DHT and for each averager, and the first of them starts its daemon. All of them
    outlive a killed parent by themselves. It also makes this process deaf to Ctrl-C, which is taken back.
    """
    interrupt, start = signal.getsignal(signal.SIGINT), asyncio.subprocess.create_subprocess_exec
    _forking.append(True)

    async def started(*words: Any, **options: Any) -> Any:
        return await start(*words, **{**options, "preexec_fn": die_with_parent})

    asyncio.subprocess.create_subprocess_exec = started
    try:
        yield
    finally:
        _forking.pop()
        asyncio.subprocess.create_subprocess_exec = start
        signal.signal(signal.SIGINT, interrupt)


def die_with_parent() -> None:
    """Be killed once the parent is dead."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


_forking: list[bool] = []  # not empty while what this process forks is to end with it; its children keep it so
os.register_at_fork(after_in_child=lambda: die_with_parent() if _forking else None)


def abandon() -> None:
    """Say what went wrong and end this process at once: Hivemind's own threads would keep a failed one."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        print(error, file=sys.stderr)
    else:
        traceback.print_exc()
    _exit(1)


def give_up(why: str) -> None:
    """Say why and end this process at once, from any thread."""
    print(why, file=sys.stderr)
    _exit(1)


def _exit(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
