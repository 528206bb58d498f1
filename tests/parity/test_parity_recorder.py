"""What a rank leaves of a parity trial: no more than the steps that were asked for, and the weights once."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from scaling_study.measure.training import ParityRecorder, coming_epochs, share_buffers
from scaling_study.parity import compare
from scaling_study.ranks import Ranks
from scaling_study.study import support
from scaling_study.trial import Trial
from scaling_study.workloads import Workload
from scaling_study.workloads.feed import Feed

FULL, HALF = support.gates_of(Trial(framework="torch_ddp", workers=2, allreduce="fp16", device="cpu"))


def workload(steps_per_epoch: int = 7) -> Workload:
    """Batches of two; the ids count on, so that an id says in which epoch it was read."""
    order = (torch.tensor([2 * i, 2 * i + 1]) for i in range(10**6))
    return Workload(
        model=nn.Linear(2, 1, bias=False), loss=lambda model, batch: model(batch[0]).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batches=Feed(order, lambda ids: (ids.float().view(2, 1),)),
        samples_per_step=2, steps_per_epoch=steps_per_epoch, data_source="",
    )  # fmt: skip


def left(trial: Trial, folder, ranks: int = 2, steps: int = 13) -> list[dict]:
    for rank in range(ranks):
        mine = workload()
        recorder = ParityRecorder(mine, trial, Ranks(rank=rank), mine.model.state_dict)

        @recorder.recorded
        def step(batch, mine=mine):
            with torch.no_grad():
                mine.model.weight += 1
            return batch[0].sum()

        for _ in range(steps):  # the clock runs some more, to time phases
            step(next(mine.batches))
        recorder.write(folder)
    return [torch.load(folder / f"parity/rank-{rank}.pt", weights_only=True) for rank in range(ranks)]


def test_ten_steps_are_noted_and_the_weights_of_three_moments(tmp_path):
    zero, one = left(FULL, tmp_path)
    assert zero["losses"] == one["losses"] == [4.0 * i + 1 for i in range(10)]
    assert zero["ids"].tolist() == [[2 * i, 2 * i + 1] for i in range(10)]
    first, after, last = (zero["weights"][moment]["weight"] for moment in ("first", "one", "last"))
    assert torch.equal(after, first + 1) and torch.allclose(last, first + 10)  # copies, and not the weights themselves
    assert one["weights"] == {"first": {}, "one": {}, "last": {}}  # gathered by all, kept by rank 0


def test_a_batch_that_does_not_hold_what_its_ids_say_ends_the_gate():
    mine = workload()
    mine.batches.fetch = lambda ids: (ids[:1].float().view(1, 1),)
    recorder = ParityRecorder(mine, FULL, Ranks(), mine.model.state_dict)
    with pytest.raises(RuntimeError, match="step 1 has the ids of 2 samples and a batch of 1"):
        recorder.recorded(lambda batch: batch[0].sum())(next(mine.batches))


def test_all_ranks_take_rank_0s_buffers_before_weights_are_gathered():
    torch.manual_seed(0)
    models = [nn.BatchNorm1d(3) for _ in range(2)]
    for model in models:
        model(torch.randn(4, 3))
    ours = {name: value.clone() for name, value in models[0].named_buffers()}
    assert not torch.equal(models[1].running_mean, ours["running_mean"])
    added: list[list[float]] = []  # what rank 0 gave: rank 1 gives zeros

    def total(values):
        added.append(list(values))
        return [a + b for a, b in zip(added[0], values, strict=True)] if len(added) > 1 else list(values)

    for rank, model in enumerate(models):
        mine = replace(workload(), model=model)
        recorder = ParityRecorder(mine, FULL, Ranks(rank=rank, world_size=2, total=total), model.state_dict)
        assert bool(recorder.weights["first"]) == (rank == 0)
    assert set(added[1]) == {0.0}
    assert all(torch.equal(value, ours[name]) for name, value in models[1].named_buffers())


@pytest.mark.parametrize("taken", [0, 1, 6, 7, 13])
def test_the_epochs_are_the_next_whole_ones(taken):
    mine = workload(steps_per_epoch=7)
    for _ in range(taken):
        next(mine.batches)
    start = 14 * -(-taken // 7)  # samples of the epochs that have begun
    assert coming_epochs(mine).tolist() == [list(range(start, start + 14)), list(range(start + 14, start + 28))]


def test_complex_buffers_are_shared_and_compared_whole() -> None:
    """Such as the rotations of a rotary embedding."""
    mine = nn.Module()
    mine.register_buffer("turns", torch.polar(torch.ones(3), torch.tensor([0.1, 0.2, 0.3])))
    mine.register_buffer("count", torch.tensor([2**40 + 1]))
    before = {name: buffer.clone() for name, buffer in mine.named_buffers()}
    share_buffers(mine, SimpleNamespace(world_size=2, rank=0, total=lambda values: values))
    assert all(torch.equal(buffer, before[name]) for name, buffer in mine.named_buffers())
    floats = {"w": torch.ones(1), **before}
    off = compare.weight_errors({**floats, "turns": before["turns"].conj().resolve_conj()}, floats)
    assert off["turns"] > 0.1 and off["count"] == off["w"] == 0
