"""Studies over two hosts whose link is held to a rate, and the same study on one host. For links.py and prediction.py.

    results/links-100mbit, links-1gbit, links-unlimited     h1 [core 0] ---- token bucket ---- h2 [core 1]
    results/links-one-host                                  one host, both cores, the loopback between them

Each holds every model and batch with one worker, with two over fp32 and over fp16, and a probe of the network that
they ran on, all by Horovod over Gloo, repeats in random order. The hosts are namespaces of this machine
(tests/cluster/network.py) with a core each; the traffic between them is real, and held by `tc tbf`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.options import Unavailable
from scaling_study.settings import CHECKOUT
from tests.cluster.network import Network

RATES: Sequence[str | None] = ("100mbit", "1gbit", None)  # None: as fast as the hosts can
ONE_HOST = "one-host"
MODELS: Mapping[str, Sequence[int]] = {"resnet8": (16, 64), "resnet18": (16,)}  # and the batches of each
PROBED_BYTES = 32 * 2**20
STEPS = {"warmup_steps": 3, "min_steps": 6, "min_seconds": 3, "max_seconds": 60, "timeout_seconds": 900}


def run(network: Network, rate: str | None, models: Mapping[str, Sequence[int]], repeats: int) -> Path:
    """One study with the link between the hosts held to this rate, run from the first of them; its results."""
    asked = study(f"links-{rate or 'unlimited'}", models, repeats, hosts=2)
    return swept_over(network, rate, asked, network.shared)


def run_on_one_host(folder: Path, models: Mapping[str, Sequence[int]], repeats: int) -> Path:
    """The same study with both workers on this machine; its results."""
    return swept(study(f"links-{ONE_HOST}", models, repeats), folder)


def study(name: str, models: Mapping[str, Sequence[int]], repeats: int, hosts: int | None = None) -> dict[str, Any]:
    """A study file's content."""
    fixed = {"framework": "horovod", "controller": "gloo", "data": "synthetic", "cores_per_worker": 1}
    spread = {"workers": 2} | ({"hosts": hosts} if hosts else {})
    sweeps: list[dict[str, Any]] = []
    for model, batches in models.items():
        matrix = {"batch_per_worker": list(batches)}
        sweeps += [
            {**fixed, "model": model, "workers": 1, "matrix": matrix},
            {**fixed, **spread, "model": model, "matrix": {**matrix, "allreduce": ["fp32", "fp16"]}},
        ]
    probe = {"framework": "network_probe", "launcher": "horovodrun", "controller": "gloo", "collective": "allreduce"}
    sweeps.append({**probe, **spread, "cores_per_worker": 1, "max_bytes": PROBED_BYTES})
    measure = {**STEPS, "repeats": repeats, "max_repeats": repeats}
    return {"study": name, "parity": False, "measure": measure, "sweeps": sweeps}


def swept_over(
    network: Network, rate: str | None, asked: Mapping[str, Any], folder: Path, seconds: float | None = None
) -> Path:
    """Run a study with the link held to this rate, from the first host; its results, in a folder that all hosts see."""
    for host in network:
        host.shape(rate)
    machine = network.shared / "machine.yaml"
    machine.write_text("interface: eth0\n", encoding="utf-8")
    before, words = network["h1"].into(CHECKOUT), ["--machine", str(machine), "--no-report"]
    return swept({**asked, "hosts": ["h1:1", "h2:1"]}, folder, before, words, seconds)


def swept(
    asked: Mapping[str, Any],
    folder: Path,
    before: Sequence[str] = (),
    words: Sequence[str] = ("--no-report",),
    seconds: float | None = None,
) -> Path:
    """Run a study, going on where its results are; `before`: what starts it on a host. After so many `seconds` it is
    ended, and the same call goes on another time. Raises Unavailable."""
    file = folder / f"{asked['study']}.yaml"
    file.write_text(yaml.safe_dump(dict(asked), sort_keys=False), encoding="utf-8")
    bin = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(CHECKOUT)}
    argv = [*before, sys.executable, str(CHECKOUT / "run_sweep.py"), str(file), "--results", str(folder), "--quiet"]
    cut = False
    with subprocess.Popen([*argv, *words], env=environment, stderr=subprocess.PIPE, start_new_session=True) as running:
        try:
            _, said = running.communicate(timeout=seconds)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as why:
            os.killpg(running.pid, signal.SIGTERM)  # not SIGINT, which a background job ignores
            _, said = running.communicate()
            if isinstance(why, KeyboardInterrupt):
                raise
            cut = True
    if running.returncode and not cut:
        raise Unavailable(f"the study {asked['study']} failed", said.decode(errors="replace"))
    return folder / str(asked["study"])
