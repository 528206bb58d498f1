"""The device's peak: a number of the right size, the same the next time, and never the end of a trial."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import forked
import pytest
import torch
from torch import nn

from scaling_study.measure import surroundings
from scaling_study.measure.surroundings import Peak, copy, fastest, matrix_product, may_round_to_tf32, measure_peak
from scaling_study.records.store import read_ranks
from scaling_study.settings import CHECKOUT

CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16"])
def test_every_precision_has_a_peak(precision: str) -> None:
    made = measure_peak(CPU, precision, False, seconds=0.02)
    assert made.flops_per_second is not None and 1e6 < made.flops_per_second < 1e14  # a loaded machine too
    assert made.bytes_per_second is not None and 1e6 < made.bytes_per_second < 1e13


@pytest.mark.slow
def test_it_is_the_fastest_call_that_counts() -> None:
    pauses = iter([0.001, 0.4, 0.05, *[0.4] * 1000])
    assert 0.05 <= fastest(lambda: time.sleep(next(pauses)), CPU, 0.0) < 0.4, "the first, 1 ms, is not counted"


def test_a_copy_takes_a_small_share_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "fastest", lambda call, device, seconds: 0.5)
    little = type("Memory", (), {"available": 1 << 30})
    monkeypatch.setattr(surroundings.psutil, "virtual_memory", lambda: little)
    assert copy(CPU) == 2 * (1 << 22) / 0.5, "64 ranks of a host do this at once"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_numbers_are_random_as_those_of_training_are(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """A GPU draws less power for zeros and ones, and so runs at a higher clock than it holds in training."""
    monkeypatch.setattr(surroundings, "SIDES", {"cpu": (64, 64)})
    monkeypatch.setattr(surroundings, "COPY_BYTES", {"cpu": 8 << 20})
    seen: list[torch.Tensor] = []

    def called(call: Callable[[], object], device: torch.device, seconds: float) -> float:
        seen.append(call())
        return 0.5

    monkeypatch.setattr(surroundings, "fastest", called)
    assert matrix_product(CPU, dtype) == 2 * 64**3 / 0.5
    assert copy(CPU) == 2 * (8 << 20) / 0.5, "read and written"
    product, copied = seen
    assert product.dtype == dtype and len(product.unique()) > product.numel() / 10
    assert copied.nbytes == 8 << 20 and len(copied.unique()) > 1000


@pytest.fixture
def torch_allows_tf32() -> Iterator[Callable[[bool, bool], None]]:
    """torch_allows_tf32(in convolutions, in matrix products); as before once the test is over."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32

    def set_both(convolutions: bool, products: bool) -> None:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = convolutions, products

    yield set_both
    set_both(*before)


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("model", "precision", "convolutions", "products", "rounded"),
    [
        (convolutional(), "fp32", True, False, True),
        (convolutional(), "fp32", False, False, False),
        (nn.Linear(4, 4), "fp32", True, False, False),
        (nn.Linear(4, 4), "fp32", True, True, True),
        (convolutional(), "bf16", True, True, False),
    ],
)
def test_fp32_is_tf32_where_the_model_computed_in_it(
    torch_allows_tf32: Callable[[bool, bool], None],
    model: nn.Module, precision: str, convolutions: bool, products: bool, rounded: bool,
) -> None:  # fmt: skip
    torch_allows_tf32(convolutions, products)
    assert may_round_to_tf32(model, precision, torch.device("cuda", 0)) == rounded
    assert not may_round_to_tf32(model, precision, CPU)


@pytest.mark.parametrize("tf32", [True, False])
def test_the_product_computes_as_the_run_did(
    monkeypatch: pytest.MonkeyPatch, torch_allows_tf32: Callable[[bool, bool], None], tf32: bool
) -> None:
    allowed: list[bool] = []

    def noted(call: object, device: torch.device, seconds: float) -> float:
        allowed.append(torch.backends.cuda.matmul.allow_tf32)
        return 0.5

    monkeypatch.setattr(surroundings, "fastest", noted)
    torch_allows_tf32(not tf32, not tf32)
    measure_peak(CPU, "fp32", tf32)
    assert allowed[0] == tf32 and torch.backends.cuda.matmul.allow_tf32 != tf32


def test_a_full_memory_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "randn", full)
    assert measure_peak(CPU, "fp32", False) == Peak(None, None)


@pytest.mark.slow
def test_a_trial_keeps_what_its_device_reached(tmp_path: Path) -> None:
    """By the product itself: in the report of every rank, and so in the record."""
    flags = ["--model", "resnet8", "--batch-per-worker", "8", "--data", "synthetic", "--steps", "4",
             "--cores-per-worker", "1"]  # fmt: skip
    program = [sys.executable, str(CHECKOUT / "data_parallel/single.py"), *flags, "--record", str(tmp_path)]
    done = forked.run(program)
    assert done.returncode == 0, done.stderr
    (report,) = read_ranks(tmp_path, 1)
    assert report.peak_flops_per_second is not None and report.peak_flops_per_second > 1e8
    assert report.peak_bytes_per_second is not None and report.peak_bytes_per_second > 1e8
    assert report.forward_flops_per_sample == 25_003_264
