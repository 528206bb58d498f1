"""The network as the study's own probes measured it, taken apart into links.

    probe: seconds = A + B bytes, an allreduce of n workers        link: alpha = A / (2 (n-1))
                                                                         beta  = B n / (2 (n-1))

as if the probe had run a ring. Of n = 2 any algorithm gives the same beta; the bus bandwidth of nccl-tests is 1 / beta.
Horovod's calls wait for its background thread, half a cycle on average: simulate.py counts that by itself, so here it
is taken off A. On a CPU every probe measures twice, with the cores idle and busy; network.py says what for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.network import fit
from analysis.network.fit import Probe
from analysis.prediction.fusion import HOROVOD
from analysis.prediction.network import Link, Network
from scaling_study.stats.alpha_beta import AlphaBeta

IDLE, BUSY = ("allreduce", False), ("allreduce", True)
LAUNCHER = {  # whose collectives a framework calls -> the probe that called the same
    "horovod": "horovodrun", "torch_ddp": "torchrun", "lightning_ddp": "torchrun", "mpi_allreduce": "mpirun",
}  # fmt: skip
CARRIES = {"mpi": "mpirun", "gloo": "torchrun"}  # the probe that used what this controller of Horovod's uses
NORMAL_95 = 1.96
MOST_SPREAD = 1.0  # of a logarithm: what is known no better than this is known not at all
Row = ConfigurationRow


@dataclass(frozen=True)
class Probed:
    """A probe, and on how many hosts it ran."""

    probe: Probe
    hosts: int

    @property
    def name(self) -> str:
        return f"{self.probe.name} ({self.probe.configuration})"

    def link(self, kind: tuple[str, bool]) -> Link:
        """What it says of a link, the wait for Horovod's background thread taken off."""
        waits = HOROVOD.cycle_seconds / 2 if self.probe.launcher == "horovodrun" else 0.0
        return link(self.probe.fits[kind], self.probe.workers, waits)


def probes(results: Results) -> list[Probed]:
    """Those of the study's probes that say what an allreduce takes."""
    trials = results.trials.drop_duplicates("configuration").set_index("configuration", drop=False)
    return [
        Probed(probe, hosts_of({"hosts": trials.loc[probe.configuration, "hosts"]}))
        for probe in fit.probes(results)
        if IDLE in probe.fits and probe.workers > 1
    ]


def hosts_of(row: Mapping[str, object]) -> int:
    """How many hosts a trial's workers were on: its `hosts`, a number or as in h1:2,h2:2; without any, one."""
    hosts = row.get("hosts")
    if isinstance(hosts, int | float):
        return int(float(hosts)) if float(hosts) >= 1 else 1  # what is no number is below
    if isinstance(hosts, str):
        return max(1, len([part for part in hosts.split(",") if part.strip()]))
    return max(1, len(hosts)) if isinstance(hosts, list | tuple) else 1


def network_of(row: Row, among: Sequence[Probed]) -> Network:
    """The network that a framework's configuration runs on, from probes(), of which there is at least one.

    Each link is that of the nearest probe: within a host of one that ran on one host, between hosts of one that ran on
    several. Where only the first was measured, the second is taken to be the same.
    """
    ranked = sorted(among, key=lambda probed: _nearness(probed.probe, row), reverse=True)
    local = next((probed for probed in ranked if probed.hosts == 1), None)
    wide = next((probed for probed in ranked if probed.hosts > 1), None)
    if local is None or wide is None:
        only = local or wide
        assert only is not None
        share = only.probe.workers if only is local else 1
        return _joined(only, only if share > 1 else None, share)
    return _joined(wide, local, local.probe.workers)


def _joined(between: Probed, within: Probed | None, workers_per_host: int) -> Network:
    sources = [f"between hosts by {between.name}", f"within a host by {within.name}" if within else ""]
    if within is between:
        sources = [f"by {between.name} on one host; other hosts are taken to be no farther"]
    idle, busy = (
        None
        if any(kind not in part.probe.fits for part in (between, within) if part)
        else Network(between.link(kind), within.link(kind) if within else None, workers_per_host)
        for kind in (IDLE, BUSY)
    )
    assert idle is not None
    return replace(idle, busy=busy, source=f"measured {', '.join(filter(None, sources))}")


def link(fitted: AlphaBeta, workers: int, waits_seconds: float = 0.0) -> Link:
    """What each of the 2 (n-1) steps of a ring takes, with the relative errors of the fit."""
    steps = 2 * (workers - 1)
    alpha, beta = max(0.0, fitted.alpha_seconds - waits_seconds), fitted.beta_seconds_per_byte
    return Link(
        alpha / steps, beta * workers / steps,
        _spread(alpha, fitted.alpha_low, fitted.alpha_high), _spread(beta, fitted.beta_low, fitted.beta_high),
    )  # fmt: skip


def _spread(value: float, low: float | None, high: float | None) -> float:
    """Relative standard error from a 95 % interval; 0 where none is claimed or nothing is there."""
    if low is None or high is None or value <= 0:
        return 0.0
    return min(MOST_SPREAD, (high - low) / 2 / NORMAL_95 / value)


def _nearness(probe: Probe, row: Row) -> tuple[bool, bool, bool, int]:
    """The same library and controller; else what carries its bytes; else the probe of most workers."""
    same_library = probe.launcher == LAUNCHER.get(str(row["framework"]))
    controller = row.get("controller")
    carried = known(controller) and probe.launcher == CARRIES.get(str(controller))
    same_controller = not known(controller) or probe.controller == controller
    return same_library and same_controller, carried, same_library, probe.workers
