"""Decentralised training with Hivemind: peers that find each other, and average once all have a target batch.

    torchrun --nproc-per-node 2 decentralized/hivemind_peers.py --model resnet18 --target-batch-size 2048

A diff against data_parallel/single.py shows what it asks for. One step is a round: every peer reads batch after batch
until all of them together have read the target (Ryabinin et al., arXiv 2103.03239; Diskin et al., arXiv 2106.10207). A
round takes at least as long as peers look for each other, and that is hidden only while batches still compute.
"""

from functools import partial

import torch

from scaling_study import workloads
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.worker.script import run
from scaling_study.worker.with_hivemind import Peer, join_hivemind, one_round_a_step


def join(trial: Trial) -> Ranks:
    # 1 join: at the launcher's store, where the first peer will leave its address
    return join_hivemind(trial)


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: an optimiser that steps once the peers together have the target batch
    workload = one_round_a_step(workloads.load(trial, ranks), trial, ranks)
    model, phase, wire = workload.model, Phase(ranks.device), Wire()
    optimizer = workload.optimizer(p for p in model.parameters() if p.requires_grad)
    peer = Peer(trial, ranks, optimizer, phase)
    wire.watch(peer, "gradients_sent", "allreduce")
    wire.watch(peer, "weights_sent", "weights")

    # 3 one optimiser step: batches of this peer, until the round is over
    def step(batch: workloads.Batch) -> torch.Tensor:
        losses = []
        while True:
            with phase("forward"):
                loss = workload.loss(model, batch)
            with phase("backward"):
                loss.backward()
            losses.append(loss.detach())
            over = peer.contribute(len(batch[0]))
            model.zero_grad()
            if over:
                return torch.stack(losses).mean()
            with phase("data"):
                batch = next(workload.batches)

    weights = partial(peer.checked_weights, model) if trial.find == "parity" else None
    return Training(step, workload, peer.opt, phase, wire, weights=weights, rounds=peer.rounds, paused=peer.paused)


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("hivemind", join, build)
