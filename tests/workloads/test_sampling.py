"""Sharding proved: no sample twice in an epoch, ranks disjoint and even, reshuffled, complete but the tail."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.workloads.feed import batches_of_indices, shard, steps_per_epoch

SIZES = st.tuples(st.integers(1, 400), st.integers(1, 5), st.integers(1, 17)).filter(lambda s: s[0] >= s[1] * s[2])


@given(sizes=SIZES, epoch=st.integers(0, 100), seed=st.integers(0, 2**31))
def test_an_epoch_reads_every_sample_at_most_once(sizes, epoch, seed):
    samples, world, batch = sizes
    shards = [shard(samples, epoch, seed, rank, world, batch) for rank in range(world)]
    read = torch.cat(shards).tolist()
    assert len(set(read)) == len(read)
    assert set(read) <= set(range(samples))
    assert len(read) == steps_per_epoch(samples, world, batch) * world * batch > samples - world * batch
    assert len({len(s) for s in shards}) == 1


def test_one_worker_and_two_read_the_same_global_batches():
    """Weak scaling changes who reads a sample, not which samples make a step (given the same global batch)."""
    alone = batches_of_indices(100, 7, 0, 1, 20)
    pair = [batches_of_indices(100, 7, rank, 2, 10) for rank in range(2)]
    for _ in range(12):  # two epochs and more
        assert set(next(alone).tolist()) == {i for rank in pair for i in next(rank).tolist()}


def test_batches_go_on_into_the_next_epoch_with_whole_batches():
    batches = list(itertools.islice(batches_of_indices(25, 0, 0, 1, 10), 5))
    assert [len(b) for b in batches] == [10] * 5
    assert len(set(torch.cat(batches[:2]).tolist())) == 20


def test_a_batch_larger_than_the_data_is_one_clear_sentence():
    with pytest.raises(
        SystemExit, match=r"a global batch of 40 samples is more than the 39 samples .* \(20\) .* \(2\)"
    ):
        next(batches_of_indices(39, 0, 0, 2, 20))
