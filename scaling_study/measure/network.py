"""The network that a study runs on: seconds of every call of a collective, size by size.              [torch]

    idle, then busy  >  allreduce, broadcast, reduce_scatter, all_gather  >  1 KiB, 4 KiB, ... 256 MiB     a row each

On a CPU everything is done twice, the second time with the cores computing meanwhile (busy.py). The trial's window is
that of the whole probe: min_seconds and max_seconds are shared out over the rows (calls.py), so small sizes are called
often and large ones seldom; min_steps, max_steps and warmup_steps are of each row.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from scaling_study.measure import collector
from scaling_study.measure.busy import cores_busy
from scaling_study.measure.calls import MOST_CALLS, Budget, Call, Calls
from scaling_study.measure.described import device_name
from scaling_study.measure.network_console import Table
from scaling_study.measure.payload import Payload, pattern
from scaling_study.measure.quiet import QuietMeter
from scaling_study.measure.versions import versions
from scaling_study.ranks import Ranks
from scaling_study.records import store
from scaling_study.records.store import RankReport
from scaling_study.stats import collectives
from scaling_study.trial import Trial, Window


@dataclass(frozen=True)
class Network:
    """A library's collectives."""

    call: Call  # runs a collective, in place where it can
    barrier: Callable[[], object]  # returns once every rank has come to it


def probe(network: Network, trial: Trial, ranks: Ranks, record: str | None = None) -> RankReport:
    """Measure on this rank; leave the report in the folder `record`, if there is one. All ranks call it alike."""
    names = (trial.collective,) if trial.collective else collectives.COLLECTIVES
    sizes = asked_sizes(trial, ranks)
    groups = [(busy, name) for busy in ((False, True) if ranks.device.type == "cpu" else (False,)) for name in names]
    window = window_of_a_row(trial.window, len(groups) * len(sizes))
    whole = pattern(max(elements(name, sizes[-1], ranks.world_size) for name in names), ranks.device)
    table, quiet = Table(ranks), QuietMeter()
    rows: list[dict[str, Any]] = []
    row_seconds: list[float] = []
    first_step_at, budget = time.time(), Budget.within(trial.window.max_seconds)
    quiet.start()
    with collector.settled():
        for index, (busy, name) in enumerate(groups):
            group = Budget.within(budget.share(len(groups) - index))
            table.begin(name, busy)
            for size in sizes:
                begun, share = time.monotonic(), group.share(sum(larger >= size for larger in sizes))
                payload = Payload(name, size, ranks.rank, ranks.world_size, whole)
                with cores_busy(busy):
                    calls = Calls(network.call, network.barrier, payload, ranks).run(replace(window, max_seconds=share))
                table.row(payload.bytes, *calls.of_all_ranks())
                rows.append({"collective": name, "bytes": payload.bytes, "busy": busy, **calls.row()})
                row_seconds.append(time.monotonic() - begun)
            table.end()
    quiet.stop()
    report = network_report(rows, row_seconds, first_step_at, quiet, ranks)
    if record:
        store.write_rank(Path(record), report)
    return report


def asked_sizes(trial: Trial, ranks: Ranks) -> Sequence[int]:
    """The sizes of a trial in bytes, what is left open as collectives.py has it. Raises SystemExit where none is."""
    if ranks.world_size == 1:
        raise SystemExit("a network probe needs two or more ranks: for example, start it with mpirun -np 2")
    if none := collectives.no_size(trial.min_bytes, trial.max_bytes):
        raise SystemExit(none)
    least, most = trial.min_bytes or collectives.MIN_BYTES, trial.max_bytes or collectives.MAX_BYTES
    return list(collectives.sizes(least, most, trial.size_factor or collectives.SIZE_FACTOR))


def elements(collective: str, bytes: int, ranks: int) -> int:
    """Of the whole of this size, parts and all."""
    part = collectives.part_elements(collective, bytes, ranks)
    return collectives.whole_bytes(collective, part, ranks) // collectives.ELEMENT_BYTES


def window_of_a_row(window: Window, rows: int) -> Window:
    """The window of one row of so many, but for its max_seconds."""
    most = window.max_steps or max(MOST_CALLS, window.min_steps)
    return replace(window, min_seconds=window.min_seconds / rows, max_steps=most)


def network_report(
    rows: list[dict[str, Any]], row_seconds: list[float], first_step_at: float, quiet: QuietMeter, ranks: Ranks
) -> RankReport:
    """A report whose steps are the rows, each with its barriers and checks; nothing was trained in them."""
    return RankReport(
        rank=ranks.rank, world_size=ranks.world_size, local_rank=ranks.local_rank,
        host=socket.gethostname(), pid=os.getpid(), device=str(ranks.device), device_name=device_name(ranks.device),
        cores=list(ranks.cores), threads=torch.get_num_threads(), first_step_at=first_step_at,
        warmup_seconds=[], step_seconds=row_seconds, samples_per_step=0, samples_seen=0, tokens_seen=None,
        phases=None, parameters=0, allreduce_bytes=None, communication_bytes={}, peak_memory_bytes=None, memory={},
        loss_first=None, loss_last=None, data_source="none", steps_per_epoch=0,
        gpu_utilization_percent=None, energy_joules=None, backend=dict(ranks.backend), versions=versions(),
        own_cpu_seconds=quiet.own_cpu_seconds, host_cpu_seconds=quiet.host_cpu_seconds, network=rows,
    )  # fmt: skip
