"""PowerSGD in DDP: the same as in one process, exact where a gradient has no more rank, and it remembers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import forked
import pytest
import torch
import torch.distributed as dist
from low_rank import RATE, SEED, batches, by_hook, by_reference, model, off
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scaling_study import train
from scaling_study.parity.reference import LowRank, Together
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.worker import powersgd

BOUND = 1e-12  # of rounding: 6 steps in fp64


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.usefixtures("alone")
def test_one_worker_trains_what_the_reference_does_and_what_forgets_does_not(rank: int) -> None:
    data = batches(1)
    right = by_reference(LowRank([model()], 1, RATE, rank, SEED), data)
    ours, buckets, _ = by_hook(rank, data)
    assert buckets > 2 and off(ours, right) < BOUND
    assert off(by_hook(rank, data, "forget")[0], right) > 1e-4, "error feedback was dropped"
    exact = by_reference(Together([model()], 1, RATE), data)
    assert off(right, exact) > 1e-4, "it is another training than plain SGD's"


@pytest.mark.slow
def test_two_workers_with_several_buckets_train_what_one_process_simulates() -> None:
    """torch's own hook hangs here."""
    script = Path(__file__).with_name("low_rank.py")
    done = forked.run(["torchrun", "--standalone", "--nproc-per-node", "2", script, "2"])
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert said["buckets"] > 2 and said["off"] < BOUND and said["forgetful"] > 1e-4


@pytest.mark.usefixtures("alone")
def test_where_a_gradient_has_no_more_rank_it_trains_as_plain_sgd_does() -> None:
    """A matrix's gradient over four samples in all has rank 4 at most."""
    data = batches(2, samples=1)
    exact = by_reference(Together([model()], 2, RATE), data)
    assert off(by_reference(LowRank([model()], 2, RATE, 4, SEED), data), exact) < 1e-9
    assert off(by_reference(LowRank([model()], 2, RATE, 2, SEED), data), exact) > 1e-4
    data = batches(1, samples=2)
    assert off(by_hook(4, data)[0], by_reference(Together([model()], 1, RATE), data)) < 1e-9


@pytest.mark.usefixtures("alone")
def test_only_matrices_that_shrink_are_compressed_and_all_of_it_is_held() -> None:
    _, _, state = by_hook(4, batches(1))
    shapes = [(24, 20), (16, 24), (12, 16)]
    assert [tuple(matrix.shape) for matrix in state.left_out.values()] == shapes
    assert [tuple(q.shape) for q in state.right.values()] == [(columns, 4) for _, columns in shapes]
    numbers = sum(rows * columns + 4 * columns for rows, columns in shapes)
    assert sum(map(torch.numel, state.held()["compression"])) == numbers
    odd = nn.ParameterList([torch.zeros(3, 9), torch.zeros(()), torch.zeros(1, 50), torch.zeros(2, 3, 4, 4)])
    assert [len(p) for p in powersgd.PowerSGD(odd, 2, SEED).right] == [3], "3 x 9 > 2 x (3 + 9); 2 x 48 < 2 x (2 + 48)"


@pytest.mark.usefixtures("alone")
def test_a_checkpoint_has_what_each_rank_keeps_for_itself(tmp_path: Path) -> None:
    _, _, state = by_hook(2, batches(1))
    ours = model()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    saved = train.Distributed(ours, optimizer, state)
    assert not saved.portable and train.Distributed(ours, optimizer).portable
    saved.save(tmp_path, Ranks())
    again = powersgd.PowerSGD(ours.parameters(), 2, SEED + 1)
    train.Distributed(ours, optimizer, again).load(tmp_path, Ranks())
    for kept, read in ((state.right, again.right), (state.left_out, again.left_out)):
        assert all(a.equal(b) for a, b in zip(kept.values(), read.values(), strict=True)) and len(read) == 3


@pytest.mark.usefixtures("alone")
def test_a_scaler_of_losses_is_refused_and_other_wires_need_no_state() -> None:
    wrapped = DistributedDataParallel(model())
    assert powersgd.attached(wrapped, Trial(framework="torch_ddp", allreduce="fp16")) is None
    with pytest.raises(SystemExit, match="precision=bf16 or fp32"):
        powersgd.attached(wrapped, Trial(framework="torch_ddp", allreduce="powersgd1", precision="fp16"))
