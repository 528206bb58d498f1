"""One of leaving_peers.py's peers: trains by Hivemind as it comes, round after round, until told to stop. [torch]

    FOLDER/addresses      of the first peer; the others join by them
    FOLDER/NAME.jsonl     a line a round: {"at": seconds, "epoch": 4, "peers": 2}, and how long the state took to load
    FOLDER/stop           the round after which all stop; each then leaves its weights in FOLDER/NAME.pt

Hivemind is used as its documentation has it, with none of the script's watching: a peer that another waits for by other
means than Hivemind's could not leave. Times are of time.time(), which processes of one machine share.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import hivemind
import torch

from scaling_study import workloads
from scaling_study.ranks import Ranks
from scaling_study.records import store
from scaling_study.trial import Trial

NO_INTERNET = {"use_ipfs": False, "use_relay": False, "use_auto_relay": False}
MODEL, BATCH = "resnet8", 64


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--target", type=int, required=True)
    parser.add_argument("--matchmaking", type=float, required=True)
    parser.add_argument("--averaging-timeout", type=float, required=True)
    parser.add_argument("--expiration", type=float, required=True)
    parser.add_argument("--late", action="store_true", help="there is something to load")
    asked = parser.parse_args()
    os.sched_setaffinity(0, {asked.core})
    torch.set_num_threads(1)
    dht = swarm(asked.folder)
    trial = Trial(model=MODEL, batch_per_worker=BATCH, data="synthetic", device="cpu", cores_per_worker=1)
    workload = workloads.load(trial, Ranks(rank=asked.core % 2, world_size=2))
    optimizer = hivemind.Optimizer(
        dht=dht, run_id="leaving", target_batch_size=asked.target, batch_size_per_step=BATCH,
        optimizer=workload.optimizer(workload.model.parameters()), matchmaking_time=asked.matchmaking,
        averaging_timeout=asked.averaging_timeout, averager_opts={"request_timeout": asked.matchmaking / 2},
        tracker_opts={"metadata_expiration": asked.expiration},
    )  # fmt: skip
    with (asked.folder / f"{asked.name}.jsonl").open("w", buffering=1) as log:
        if asked.late:
            start = time.time()
            optimizer.load_state_from_peers()
            say(log, at=time.time(), epoch=optimizer.local_epoch, loaded_seconds=time.time() - start)
        train(workload, optimizer, log, asked.folder / "stop")
    optimizer.state_averager.step(wait_for_delayed_updates=True)
    weights = torch.cat([p.detach().reshape(-1) for p in workload.model.parameters()])
    torch.save(weights, asked.folder / f"{asked.name}.half")
    (asked.folder / f"{asked.name}.half").rename(asked.folder / f"{asked.name}.pt")
    time.sleep(3600)  # one that ended now would be missed by the others; all are killed together


def swarm(folder: Path) -> hivemind.DHT:
    """The table in which peers find each other: the first one's, or one that has joined it."""
    addresses = folder / "addresses"
    known = json.loads(addresses.read_text()) if addresses.exists() else None
    dht = hivemind.DHT(initial_peers=known, host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True, **NO_INTERNET)
    if known is None:
        store.write_json(addresses, [str(address) for address in dht.get_visible_maddrs()])
    return dht


def train(workload: workloads.Workload, optimizer: Any, log: Any, stop: Path) -> None:
    """Batch after batch, until the round that `stop` names is over."""
    epoch = optimizer.local_epoch
    while not stop.exists() or epoch < int(stop.read_text()):
        workload.loss(workload.model, next(workload.batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if optimizer.local_epoch != epoch:
            epoch = optimizer.local_epoch
            say(log, at=time.time(), epoch=epoch, peers=optimizer.tracker.global_progress.num_peers)


def say(log: Any, **what: float) -> None:
    log.write(json.dumps(what) + "\n")


if __name__ == "__main__":
    main()
