"""Sharding proved: no sample twice in an epoch, ranks disjoint and even; and no batch makes the host wait for a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10, cola, images, wikitext2
from scaling_study.workloads.feed import Feed, batches_of_indices, sent, shard, steps_per_epoch

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


def test_a_batch_larger_than_the_data_is_one_clear_sentence():
    with pytest.raises(
        SystemExit, match=r"a global batch of 40 samples is more than the 39 samples .* \(20\) .* \(2\)"
    ):
        next(batches_of_indices(39, 0, 0, 2, 20))


GPU = torch.device("cuda", 0)


class Copies(list[tuple[bool, bool]]):
    """(from pinned memory, asynchronous) of each copy to the GPU, which is the host's memory under another name."""


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    made, to, empty, arange = Copies(), torch.Tensor.to, torch.empty, torch.arange

    def pinned(tensor: torch.Tensor) -> Any:
        memory: Any = tensor.clone()
        memory.is_in_pinned_memory = True
        return memory

    def copied(tensor: Any, *args: Any, **options: Any) -> torch.Tensor:
        if args[:1] != (GPU,):
            return to(tensor, *args, **options)
        made.append((hasattr(tensor, "is_in_pinned_memory"), options.get("non_blocking", False)))
        return tensor

    def on_the_host(*shape: int, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return pinned(empty(*shape, **options)) if pin_memory else empty(*shape, **options)

    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    monkeypatch.setattr(torch.Tensor, "to", copied)
    monkeypatch.setattr(torch, "empty", on_the_host)
    monkeypatch.setattr(torch, "arange", lambda *ends, device=None, **options: arange(*ends, **options))
    return made


def in_order() -> Iterator[torch.Tensor]:
    return iter([torch.tensor([4, 1]), torch.tensor([0, 5]), torch.tensor([3, 2])])


def of_cifar10(folder: Path) -> Feed:
    pixels = torch.arange(6 * 3 * 4, dtype=torch.uint8).view(6, 3, 2, 2)
    return Feed(in_order(), cifar10.fetching(pixels, torch.arange(6), GPU))


def of_cola(folder: Path) -> Feed:
    sentences = cola.Sentences(
        ids=np.arange(18, dtype=np.uint16), lengths=np.full(6, 3), labels=np.arange(6), vocabulary=100, tokenizer="own"
    )
    return Feed(in_order(), cola.gathered(sentences, GPU, width=4, padding="dynamic"))


def of_wikitext2(folder: Path) -> Feed:
    return wikitext2.feed(np.arange(60, dtype=np.uint16), Ranks(device=GPU), batch=2, length=3)


def of_a_tree(folder: Path) -> Feed:
    for number in range(6):
        file = folder / "train" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(file)
    trial = Trial(model="iformer_tiny", data="images", batch_per_worker=2, image_size=32)
    return images.of_tree(images.listed(folder), trial, Ranks(device=GPU), 32).feed


@pytest.mark.parametrize("feed_of", [of_cifar10, of_cola, of_wikitext2, of_a_tree])
def test_no_batch_waits_for_the_gpu(copies: Copies, tmp_path: Path, feed_of: Callable[[Path], Feed]) -> None:
    feed = feed_of(tmp_path)
    copies.clear()  # what lies on the device from the start may be waited for
    batches = list(itertools.islice(feed, 3))
    assert len(batches) == 3 and all(len(batch[0]) == 2 for batch in batches)
    assert len(copies) >= 3, "of each batch its ids or its samples"
    assert set(copies) == {(True, True)}, "a copy from memory that can be paged waits for all that is queued"


def test_on_a_cpu_nothing_is_copied(copies: Copies) -> None:
    ids = torch.tensor([1, 2])
    assert sent(ids, torch.device("cpu")) is ids and not copies


@pytest.mark.parametrize("world", [1, 2, 3])
def test_each_epoch_has_a_new_order(world):
    orders = [tuple(shard(1000, epoch, 42, 0, world, 10).tolist()) for epoch in range(20)]
    assert len(set(orders)) == 20
