"""Batches, losses and modules of scripts as people write them: what is known of each, and what is not guessed."""

from __future__ import annotations

import io
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scaling_study import observe
from scaling_study.observe.hooks import Observer
from scaling_study.observe.inside import peak_memory
from scaling_study.observe.objects import first_tensor, number, rows_among, rows_of_batch, value_of
from scaling_study.observe.steps import FLUSH_SECONDS, Called, Steps, UpTo


class Tensor:
    """As torch's, by its sizes alone. A nested one has no shape, and says its first size."""

    requires_grad, is_cpu = False, True

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def dim(self) -> int:
        return len(self.sizes)

    def size(self, dimension: int) -> int:
        return self.sizes[dimension]


X, Y, OTHER = Tensor(16, 8), Tensor(16), Tensor(16, 3)
BOXES = [{"boxes": Tensor(count, 4), "id": Tensor()} for count in (2, 5)]
IMAGES = (Tensor(3, 32, 32), Tensor(3, 32, 40))
Pair = namedtuple("Pair", "x y")
Packed = namedtuple("Packed", "data batch_sizes")


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        pytest.param({"ids": X, "labels": Y}, 16, id="a dictionary"),
        pytest.param({"inputs": {"ids": X}, "labels": Y}, 16, id="dictionaries in it"),
        pytest.param(Pair(X, Y), 16, id="a named tuple"),
        pytest.param(["text", X], 16, id="what is no tensor first"),
        pytest.param([[X, OTHER], Y], 16, id="several inputs"),
        pytest.param(({"ids": X}, {"labels": Y}), 16, id="a dictionary of inputs, and one of labels"),
        pytest.param(({"ids": X}, Y), 16, id="a dictionary and labels"),
        pytest.param((IMAGES, tuple(BOXES)), 0, id="images of unlike sizes, each with its boxes"),
        pytest.param([{"image": image} for image in IMAGES], 0, id="a dictionary for each sample"),
        pytest.param([{"image": IMAGES[0]}], 0, id="a dictionary for the one sample"),
        pytest.param((Packed(Tensor(140, 8), Tensor(35)), Y), 16, id="a packed sequence"),
        pytest.param(SimpleNamespace(num_graphs=4), 4, id="graphs"),
        pytest.param(Tensor(), 0, id="a number"),
        pytest.param("text", 0, id="a text"),
        pytest.param(None, 0, id="nothing"),
    ],
)
def test_samples_of_a_batch_are_its_rows_where_these_can_be_samples(batch: Any, rows: int) -> None:
    assert rows_of_batch(batch) == rows


def test_samples_of_a_forward_pass_are_the_rows_of_its_first_input() -> None:
    for given, rows in [(([X, Y], 0), 16), ((list(IMAGES), BOXES), 0), (("text", X), 16), ((), 0), ((None,), 0)]:
        assert rows_among(given, first_tensor(given)) == rows


class Loss:
    """A loss on a GPU: a tensor of one number."""

    is_cpu = requires_grad = False

    def __init__(self, value: float | None, **more: Any) -> None:
        self.value = value
        vars(self).update(more)

    def dim(self) -> int:
        return 0

    def numel(self) -> int:
        return 1

    def detach(self) -> Loss:
        return self

    def item(self) -> float:
        return float(self)

    def to_local(self) -> Loss:
        return Loss(self.value)

    def __float__(self) -> float:
        if self.value is None:
            raise RuntimeError("accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run")
        return self.value


def test_a_loss_is_read_when_that_makes_nothing_wait() -> None:
    on_gpu = Loss(0.5)
    assert value_of(on_gpu) is on_gpu and value_of(Loss(0.5, is_cpu=True)) == 0.5 and value_of(None) is None
    assert value_of(Loss(64.0), scaled=(Loss(64.0), on_gpu)) is not on_gpu, "of another loss"
    assert value_of([scaled := Loss(64.0)], (scaled, [on_gpu])) is on_gpu
    whole, part = (SimpleNamespace(is_replicate=lambda answer=answer: answer) for answer in (True, False))
    assert number(value_of(Loss(0.5, placements=[whole]))) == 0.5
    assert value_of(Loss(0.5, placements=[whole, part])) is None, "its ranks would all have to read it"
    assert number(on_gpu) == 0.5 and number(on_gpu, is_readable=False) is None, "a graph is recorded"
    assert number(Loss(None)) is None and number(None) is None


# --- a GPU computes on while the script goes on ---


class Gpu:
    """A GPU that is five seconds behind, until it is waited for."""

    def __init__(self, now: list[float]) -> None:
        self.now, self.waits, self.is_recording = now, 0, False
        self.used = {0: 1}  # GPU -> bytes

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def is_current_stream_capturing(self) -> bool:
        return self.is_recording

    def device_count(self) -> int:
        return max(self.used) + 1

    def max_memory_allocated(self, device: int) -> int:
        return self.used.get(device, 0)

    def synchronize(self, device: int) -> None:
        assert not self.is_recording and self.used[device]
        self.waits += 1
        self.now[0] += 5


@pytest.fixture
def on_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Observer:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    missing = SimpleNamespace(is_available=lambda: False)
    observer = Observer(SimpleNamespace(__version__="2.1", cuda=Gpu(now), distributed=missing), str(tmp_path))
    observer.watched, observer.checks.left = True, False
    observer.look.give_up("of no matter")
    observer.steps.another = lambda: False
    return observer


def held_by(observer: Observer, driver: UpTo) -> None:
    observer.steps.goal = driver
    observer.record.written_at = 1e9  # nothing is written meanwhile
    observer.record.file = io.StringIO()


def train(observer: Observer, steps: int, loss: Any = None) -> None:
    now = observer.torch.cuda.now
    for _ in range(steps):
        now[0] += 1
        observer.happened("backward", loss)
        observer.happened("leave")
        observer.after_step(observer.ended(now[0], "optimized", "SGD", 0.1, False))


def test_steps_contain_what_a_gpu_still_computes_when_they_are_held(on_gpu: Observer) -> None:
    class Driver(UpTo):
        def go_on(self, done: int) -> bool:
            self.until = done + 10
            return True

    held_by(on_gpu, Driver(20))
    train(on_gpu, 40)
    assert on_gpu.torch.cuda.waits == 3
    on_gpu.fold()
    assert [at for at, seconds in enumerate(on_gpu.steps.seconds, start=1) if seconds == 6] == [20, 30, 40]
    assert sum(on_gpu.steps.seconds) == 40 + 3 * 5


def test_timed_steps_contain_nothing_of_what_a_gpu_computes_of_the_untimed_one(on_gpu: Observer) -> None:
    class Driver(UpTo):
        timed = 4

        def go_on(self, done: int) -> bool:
            self.until = done + 5
            return True

    held_by(on_gpu, Driver(10))
    on_gpu.plan()
    train(on_gpu, 21)
    on_gpu.fold()
    assert on_gpu.steps.seconds[10:20] == [6, 1, 1, 1, 6, 6, 1, 1, 1, 6]


@pytest.mark.parametrize(("used", "peak"), [({0: 7}, 7), ({1: 5}, 5), ({0: 3, 2: 4}, 7)])
def test_only_gpus_that_the_process_uses_are_waited_for_and_their_memory_adds_up(
    on_gpu: Observer, used: dict[int, int], peak: int
) -> None:
    """Whichever is its current one: asking another would put a context there."""
    on_gpu.torch.cuda.used = used
    on_gpu.wait_for_gpu()
    assert on_gpu.torch.cuda.waits == len(used)
    assert peak_memory(on_gpu.torch, None)["peak_memory_bytes"] == peak


def test_losses_on_a_gpu_are_read_after_it_was_waited_for_and_never_while_a_graph_is_recorded(
    on_gpu: Observer, tmp_path: Path
) -> None:
    gpu, lost = on_gpu.torch.cuda, Loss(None)
    train(on_gpu, 10, Loss(0.5))
    waits = gpu.waits
    gpu.is_recording = True
    train(on_gpu, 10, lost)
    assert gpu.waits == waits
    gpu.is_recording = False
    train(on_gpu, 11, Loss(0.25))
    on_gpu.finish()
    [[_, *lines, end]] = observe.read(tmp_path)
    assert [line["loss"] for line in lines] == [0.5] * 10 + [None] * 10 + [0.25] * 11
    assert waits < gpu.waits <= 31 / FLUSH_SECONDS
    assert sum(line["seconds"] for line in lines) == 31 + 5 * gpu.waits
    assert end["why"] == "the script ended" and end["own_seconds"] < 5, "waiting is the training's"


# --- a pass without gradients, and a training without a module ---


def test_a_pass_without_gradients_in_each_step_is_a_part_of_it_and_an_evaluation_is_none() -> None:
    now, teacher, averaged = [0.0], Called(), Called()
    steps = Steps(lambda: now[0])

    def call(seconds: float, *forward: Any) -> bool:
        evaluates = steps.forward(*forward)
        now[0] += seconds
        steps.leave()
        return evaluates

    for step in range(12):
        steps.enter("data")
        steps.fetched(16)
        evaluates = call(1, False, 0, teacher)
        call(2, True, 16)
        assert evaluates == (step in (0, 4, 8)), "at first, and after an evaluation, it may be one"
        steps.backward(None)
        steps.leave()
        steps.optimized("SGD", 0.1, False)
        if step % 4 == 3:
            assert call(7, False, 0, averaged)
    steps.finish()
    assert [piece.pause_seconds() for piece in steps.lines] == [1, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0]
    assert {piece.step_seconds() for piece in steps.lines[1:4]} == {3}
    assert {piece.loader_rows for piece in steps.lines[1:4]} == {16}


def test_batches_feed_a_training_without_modules_and_one_whose_input_has_no_rows() -> None:
    for forward in (False, True):
        steps = Steps()
        for _ in range(9):
            steps.given(16)
            if forward:
                steps.forward(True)
                steps.leave()
            steps.backward(None)
            steps.leave()
            steps.optimized("SGD", 0.1, False)
        assert steps.samples() == {"samples_per_step": 16, "samples_by": "loader_rows", "samples_unknown": ""}
