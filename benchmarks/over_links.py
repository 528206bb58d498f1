"""Studies over two hosts whose link is held to a rate, and the same study on one host.

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

from benchmarks import jobs
from benchmarks.options import Unavailable
from scaling_study import datasets
from scaling_study.settings import CHECKOUT
from scaling_study.study.study import contents
from tests.cluster.network import Network, why_not

RATES: Sequence[str | None] = ("100mbit", "1gbit", None)  # None: as fast as the hosts can
ONE_HOST = "one-host"
MODELS: Mapping[str, Sequence[int]] = {"resnet8": (16, 64), "resnet18": (16,)}  # and the batches of each
PROBED_BYTES = 32 * 2**20
STEPS = {"warmup_steps": 3, "min_steps": 6, "min_seconds": 3, "max_seconds": 60, "timeout_seconds": 900}
SPREAD = {"hosts": 2, "cores_per_worker": 1}
QUICK_MODEL = "resnet8"


def named(rate: str | None) -> str:
    """`100 Mbit/s`"""
    return f"{rate[:-4]} {rate[-4:].capitalize()}/s" if rate else "unlimited"


def require_hosts() -> None:
    """Raises Unavailable."""
    if why := why_not():
        raise Unavailable(f"hosts cannot be made here: {why}")


def require_cifar10() -> None:
    """Raises Unavailable."""
    if not (data := datasets.prepare(["cifar10"])["cifar10"]).name == "cifar10":
        raise Unavailable(f"CIFAR-10 is not here, and no loss can be trained to: {data.why}")


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


def timed_part(file: Path, name: str, quick: bool, repeats: int, parity: bool = False) -> dict[str, Any]:
    """What a study file times, over two hosts with a core each."""
    asked = _part(file, name, quick, trained=False)
    measure = {**asked["measure"], "repeats": repeats, "max_repeats": repeats}
    sweeps = [{**sweep, **SPREAD} for sweep in asked["sweeps"]]
    return {**asked, "parity": parity, "measure": measure, "sweeps": sweeps}


def trained_part(file: Path, name: str, quick: bool, parity: bool = False) -> dict[str, Any]:
    """What it trains to a loss, on this machine alone."""
    asked = _part(file, name, quick, trained=True)
    del asked["baseline"]  # which is timed
    return {**asked, "parity": parity}


def _part(file: Path, name: str, quick: bool, trained: bool) -> dict[str, Any]:
    document = contents(file).value
    small = document.pop("small")
    document |= {"study": name} | (small if quick else {})
    sweeps = [sweep for sweep in document["sweeps"] if ("train" in sweep) == trained]
    return {**document, "sweeps": [_tiny(sweep) for sweep in sweeps] if quick else sweeps}


def _tiny(sweep: dict[str, Any]) -> dict[str, Any]:
    """One configuration of it, with a model and a training of seconds."""
    small = {**sweep, "model": QUICK_MODEL}
    if "include" in sweep:
        small["include"] = sweep["include"][:1]
    else:
        small["matrix"] = {key: values[:1] for key, values in sweep["matrix"].items()}
    if "train" in sweep:
        return {**small, "train": {**sweep["train"], "seeds": [1], "epochs": 1}}
    return {**small, "data": "synthetic"}


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
    argv = [*before, sys.executable, str(CHECKOUT / "run_sweep.py"), str(file), "--results", str(folder), "--quiet"]
    how: dict[str, Any] = {"env": jobs.environment(), "stderr": subprocess.PIPE, "start_new_session": True}
    cut = False
    with subprocess.Popen([*argv, *words], **how) as running:
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
