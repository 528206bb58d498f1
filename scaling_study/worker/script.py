"""The last line of every script: join, build, measure or train on this rank, and record an error if it fails. [torch]

A rank that fails writes what happened into `<record>/ranks/error-<rank>.json`, with the time: the first to
fail is the culprit, the others only lost their peer. A launcher's own "first process to fail" often names
an innocent one, and logs are for people.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import torch
from torch.nn.parallel import DistributedDataParallel

from scaling_study.errors import HostError
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.measure import measure, surroundings
from scaling_study.ranks import Ranks, as_launched, leave_torch, require_rendezvous
from scaling_study.records import store
from scaling_study.records.schema import RankError
from scaling_study.study.support import too_old
from scaling_study.train import train
from scaling_study.trial import Trial, add_rendezvous


def taken(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """(argv without the flags of a rendezvous, the variables that they mean). Raises SystemExit for what is missing.

        python data_parallel/torch_ddp.py --dist-url tcp://h1:29500 --world-size 2 --rank 0      on h1
        python data_parallel/torch_ddp.py --dist-url tcp://h1:29500 --world-size 2 --rank 1      on h2

    Ranks that a person starts find each other so. The variables are those that torch's launchers set, so that
    everything behind them joins as always. They are no trial keys: who starts a rank, and where, decides nothing about
    what is trained.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_rendezvous(parser)
    asked, rest = parser.parse_known_args(argv)
    given = vars(asked)
    if not given:
        return rest, {}
    url = given.pop("dist_url", None)
    if url is None:
        flags = " and ".join(f"--{name.replace('_', '-')} {value}" for name, value in given.items())
        raise SystemExit(f"{flags} without --dist-url: where do the ranks meet? --dist-url tcp://HOST:PORT")
    told = {"WORLD_SIZE": given.get("world_size"), "RANK": given.get("rank")}
    variables = {name: str(value) for name, value in told.items() if value is not None}
    if url != "env://":
        if missing := [f"--{name.lower().replace('_', '-')}" for name in told if name not in variables]:
            raise SystemExit(f"--dist-url {url} without {' and '.join(missing)}: each rank is told how many there are")
        variables |= _address(url)
    require_rendezvous({**environment, **variables}, f"--dist-url {url}")
    return rest, variables


def _address(url: str) -> dict[str, str]:
    """`tcp://h1:29500` as variables."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # of a port that is none
        host = port = None
    if not host or not port or parts.scheme != "tcp" or parts.path.strip("/"):
        raise SystemExit(f"--dist-url {url}: it is tcp://HOST:PORT, like tcp://h1:29500, or env://")
    return {"MASTER_ADDR": host, "MASTER_PORT": str(port)}


KNOWN = signature(DistributedDataParallel).parameters
SYNC = "forward_sync_buffers" if "forward_sync_buffers" in KNOWN else "broadcast_buffers"  # its name before torch 2.13
MIB = 2**20


def ddp_settings(trial: Trial, ranks: Ranks) -> dict[str, Any]:
    """The keywords of DistributedDataParallel for speed, as torch advises; docs/reference/settings.md has why.

    Gradients lie in their buckets (nothing is copied, and nothing kept twice), and what has to be copied into a bucket
    is copied at once, where this torch can (2.12). A lone worker has nobody to sync its buffers with.
    """
    settings = {
        "bucket_cap_mb": None if trial.bucket_bytes is None else trial.bucket_bytes / MIB,
        "gradient_as_bucket_view": True,
        SYNC: trial.buffers == "synced" and ranks.world_size > 1,
    }
    return settings | ({"batched_grad_copy": True} if "batched_grad_copy" in KNOWN else {})


def put_fairscale_on_cpu(wrapper: ModuleType, bucketer: ModuleType) -> None:
    """Have FairScale's FullyShardedDataParallel (0.4.13) train without a GPU: change two of its modules in place.

    It overlaps its collectives with compute on CUDA streams, names them as torch.cuda everywhere and has no switch.
    torch.cpu offers the same names, for streams that order nothing: a CPU does what it is told in the order of the
    program, an order that the streams allow. So it trains what it would on a GPU, and overlaps nothing: its speed says
    nothing of FairScale; its parity, bytes and memory do. `wrapper`: fairscale.nn.data_parallel.
    fully_sharded_data_parallel; `bucketer`: fairscale.internal.reduce_scatter_bucketer.
    """
    vars(wrapper)["torch"] = _CpuForCuda("torch")
    # Gradients of a bucket are the rows of a matrix. NCCL takes the matrix whole, Gloo a list of its rows.
    vars(bucketer)["enable_nccl_base_collectives"] = False
    # It tells CUDA's allocator which stream still reads a tensor. A CPU's has no such kernel and needs none.
    torch.Tensor.record_stream = lambda tensor, stream: None  # type: ignore[method-assign, assignment]


class _CpuForCuda(ModuleType):
    """The module torch, but that its `cuda` is torch.cpu: Stream, stream, current_stream, is_available, synchronize."""

    cuda = torch.cpu

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


RANK = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc", "Cannot allocate memory")


def run(
    framework: str,
    join: Callable[[Trial], Ranks],
    build: Callable[[Trial, Ranks], Any],
    measure: Callable[[Any, Trial, Ranks, str | None], object] = measure,
) -> None:
    """Parse the command line, join, build, measure or train what was built; the process exits with 1 if that raises.

    `build` may be called again after one `join`, with another trial: it changes nothing of the process as a whole.
    """
    argv, joining = sys.argv[1:], dict[str, str]()
    if "torchrun" in FRAMEWORKS[framework].launchers:
        argv, joining = taken(argv, os.environ)
    os.environ.update(joining)
    trial, record = Trial.from_argv(framework, argv)
    try:
        with joined(join, trial, Path(record) if record else None) as ranks:
            trial = as_launched(trial, ranks)
            (train if trial.trained else measure)(build(trial, ranks), trial, ranks, record)
    except HostError as error:  # the machine's: words for a person, and no traceback
        raise SystemExit(str(error)) from error


@contextmanager
def joined(join: Callable[[Trial], Ranks], trial: Trial, record: Path | None) -> Iterator[Ranks]:
    """This process among its peers, which it leaves at the end. What fails in here is written into `record`, unless
    that was done before."""
    ranks: Ranks | None = None
    try:
        if why := too_old(trial, {"torch": torch.__version__}):
            raise SystemExit(why)
        if trial.allocator == "fixed":
            surroundings.fix_thresholds()
        ranks = join(trial)
        yield ranks
        ranks.leave()
        leave_torch()
    except (Exception, SystemExit) as error:
        if record and not getattr(error, "written", False):
            write_error(record, error)
        if ranks:
            ranks.abandon()
        raise


def write_error(record: Path, error: BaseException) -> None:
    """Write this rank's error."""
    rank = next((int(os.environ[name]) for name in RANK if os.environ.get(name, "").isdigit()), 0)
    message = str(error) or type(error).__name__
    oom = isinstance(error, MemoryError | torch.OutOfMemoryError) or any(sign in message for sign in OUT_OF_MEMORY)
    below = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    stepping = any(module.startswith("scaling_study.measure.") for module in below)
    trace = "".join(traceback.format_exception(error))[-4000:]
    said = RankError(rank, time.time(), type(error).__name__, message[:2000], trace, oom, stepping)
    store.write_json(record / "ranks" / f"error-{rank}.json", asdict(said))
