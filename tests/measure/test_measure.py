"""The shared clock on a toy workload: what is counted is exact, what is timed is where it belongs."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scaling_study.measure import Phase, Training, Wire, ddp_buckets, inspected, measure
from scaling_study.measure.clock import Console, Stopwatch
from scaling_study.measure.memory import Memory, held_on
from scaling_study.measure.surroundings import Peak, PowerMeter, QuietMeter
from scaling_study.ranks import Ranks
from scaling_study.records import schema
from scaling_study.records.outcome import first_problem
from scaling_study.records.store import read_ranks
from scaling_study.trial import Trial, Window
from scaling_study.workloads import Batch, Feed, Workload

CPU = torch.device("cpu")


PEAK = Peak(5e9, 2e9)


@pytest.fixture(autouse=True)
def quick_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device could do at most takes longer to measure than a toy; test_surroundings.py does."""
    monkeypatch.setattr(inspected, "peak_of", lambda device, precision, tf32: PEAK)


def fed(batches: Iterator[Batch]) -> Feed:
    """What a workload hands out, of batches without ids."""
    return Feed(itertools.repeat(torch.empty(0, dtype=torch.int64)), lambda ids: next(batches))


def toy(steps_per_epoch: int = 7) -> Workload:
    torch.manual_seed(0)

    def batches():
        while True:
            yield (torch.ones(4, 10),)

    return Workload(
        model=nn.Linear(10, 5, bias=False),
        loss=lambda model, batch: model(batch[0]).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.5),
        batches=fed(batches()),
        samples_per_step=4,
        steps_per_epoch=steps_per_epoch,
        data_source="toy",
    )


def run(window: Window, *, sleep=0.0, epochs=None, ranks=None, record=None, calls=None, find=None, **changes):
    """The report of a toy with these `changes` of its workload, and for each step whether phases were timed."""
    workload, phase, wire = replace(toy(), **changes), Phase(CPU), Wire()
    optimizer = workload.optimizer(workload.model.parameters())
    calls: list[bool] = [] if calls is None else calls

    def step(batch):
        calls.append(phase.on)
        with phase("forward"):
            time.sleep(sleep)
            loss = workload.loss(workload.model, batch)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    trial = Trial(window=window, epochs=epochs, find=find)
    report = measure(Training(step, workload, optimizer, phase, wire), trial, ranks or Ranks(), record)
    return report, calls


def test_warm_up_timed_and_instrumented_steps_are_kept_apart(capsys):
    report, calls = run(Window(warmup_steps=6, min_steps=20, max_steps=20, min_seconds=0))
    assert len(report.warmup_seconds) == 6
    assert len(report.step_seconds) == 20
    assert report.phases.steps == 5  # a quarter of the timed ones
    assert calls == [False] * 26 + [True] * (5 + 1) + [False]  # phases; when gradients arrive; what is counted
    assert report.samples_seen == 20 * 4
    assert report.loss_last < report.loss_first
    assert Peak(report.peak_flops_per_second, report.peak_bytes_per_second) == PEAK


def test_where_steps_are_long_one_shows_phases_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaling_study.trial.LONG_STEP", 0.0)
    report, calls = run(Window(warmup_steps=4, min_steps=4, max_steps=4, min_seconds=0))
    assert calls == [False] * 8 + [True, False], "bytes have a step of their own"
    assert report.phases.steps == 1 and report.phases.forward_seconds > 0
    assert report.gradients and report.memory["activations"] > 0
    _, calls = run(Window(warmup_steps=4, min_steps=8, max_steps=8, min_seconds=0))
    assert calls == [False] * 12 + [True] * 3 + [False], "phases of more than one are not those of the gradients"


def test_three_steps_warm_up_after_the_first_unless_nothing_is_timed():
    asked = Window(warmup_steps=1, min_steps=2, max_steps=2, min_seconds=0)
    assert len(run(asked)[0].warmup_seconds) == 4
    assert len(run(asked, find="max_batch")[0].warmup_seconds) == 1


def test_step_seconds_are_seconds_of_steps():
    report, _ = run(Window(warmup_steps=1, min_steps=5, max_steps=5, min_seconds=0), sleep=0.02)
    assert min(report.step_seconds) >= 0.02, "seconds, not milliseconds: a step sleeps so long"
    assert min(report.step_seconds) < 2, "nor nanoseconds; the fastest, as any may be held up by the machine"
    assert 0.02 <= report.phases.forward_seconds <= report.phases.step_seconds
    phases = report.phases
    assert phases.communication_seconds is None  # this toy has none: unknown, not 0
    named = phases.data_seconds + phases.forward_seconds + phases.backward_seconds + phases.optimizer_seconds
    assert named + phases.unattributed_seconds == pytest.approx(phases.step_seconds)


def test_without_warm_up_nothing_is_lost():
    report, _ = run(Window(warmup_steps=0, min_steps=4, max_steps=4, min_seconds=0))
    assert report.warmup_seconds == [] and len(report.step_seconds) == 4
    assert report.loss_first is None  # no step before the window to take it from
    assert report.memory["activations"] > 0


def test_every_rank_runs_as_many_steps_as_rank_0_says():
    """Rank 1 would stop by its own clock after min_steps; rank 0 warms up no longer, and said 3 and 2 more."""
    said = iter([0, 3, 2, 0, 0.1])  # the last: seconds of its fastest step
    ranks = Ranks(rank=1, world_size=2, agree=lambda mine: float(next(said)))
    report, _ = run(Window(warmup_steps=1, min_steps=50, min_seconds=0), ranks=ranks)
    assert len(report.step_seconds) == 5


def test_the_printed_throughput_is_that_of_the_record_whichever_rank_was_slowest(capsys, rank_report):
    trial = Trial(workers=2, batch_per_worker=32)
    reports = [rank_report(rank=rank, world_size=2, step_seconds=[0.5] * 50 + [0.25 + rank]) for rank in (0, 1)]
    meeting, given = threading.Barrier(2), [[], []]

    def result(rank):
        def total(values):
            given[rank] = values
            meeting.wait()
            totals = [a + b for a, b in zip(*given, strict=True)]
            meeting.wait()
            return totals

        Console(trial, Ranks(rank=rank, world_size=2, total=total), toy()).result(reports[rank])

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(result, (0, 1)))
    speed = schema.throughput(SimpleNamespace(ranks=reports))
    assert speed == pytest.approx(51 * 64 / 26.25)
    assert f"Total images/sec on 2 worker(s): {speed:.1f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("keys", "rate"),
    [({}, 16.0), ({"framework": "hivemind", "target_batch_size": 2048}, 256.0), ({"workers": 4, "stages": 2}, 16.0)],
)
def test_the_printed_rate_of_a_block_is_that_of_the_samples_of_its_steps(capsys, keys, rate):
    """A round of averaging has several batches."""
    trial = Trial(**{"workers": 2, "batch_per_worker": 64, **keys})
    Console(trial, Ranks(), toy()).block([4.0] * 10, 10)
    assert f"Steps 1-10: {rate} images/sec" in capsys.readouterr().out


def test_memory_is_exact_for_a_known_model():
    report, _ = run(Window(warmup_steps=1, min_steps=2, max_steps=2, min_seconds=0))
    weights = 10 * 5 * 4
    kinds = {k: report.memory[k] for k in ("parameters", "gradients", "optimizer")}
    assert kinds == {"parameters": weights, "gradients": weights, "optimizer": weights}
    # backward keeps the input (4, 10) for the weights' gradient and the output (4, 5) for the square's
    assert report.memory["activations"] == (4 * 10 + 4 * 5) * 4
    assert report.peak_memory_bytes == sum(v for k, v in report.memory.items() if k != "resident")


def test_a_shared_storage_counts_once():
    model = nn.Linear(8, 8, bias=False)
    twice = nn.ModuleList([model, model])
    assert Memory(twice, None, CPU).by_kind()["parameters"] == 8 * 8 * 4


def test_samples_are_counted_in_the_batches_and_not_computed():
    """A feed that gives less than it says, in one step of three: nothing else would show it."""

    def uneven():
        for size in itertools.cycle((4, 4, 3)):
            yield (torch.ones(size, 10),)

    window = Window(warmup_steps=3, min_steps=6, max_steps=6, min_seconds=0)
    report, _ = run(window, batches=fed(uneven()))
    assert report.samples_seen == 2 * (4 + 4 + 3)
    trial = Trial(framework="single", batch_per_worker=4, allreduce="none", device="cpu")
    assert first_problem(trial, [report]) == "rank 0 reports 22 samples in 6 steps of 4"
    report, _ = run(window, batches=fed(uneven()), epochs=2)
    assert [epoch.samples for epoch in report.epochs] == [22, 22]
    right = replace(report, samples_seen=12 * 4)
    assert first_problem(trial, [right]) == "rank 0 reports an epoch of 22 samples in 6 steps of 4"


@pytest.mark.parametrize(("precision", "expected"), [("fp16", (1, 2)), ("fp32", (None, None))])
def test_steps_that_the_scaler_left_out_are_counted_apart_in_warm_up_and_window(precision, expected):
    """Inputs too large for their gradients in the second step, and in the fifth and sixth: the scaler skips those."""
    workload, phase, wire = toy(), Phase(CPU), Wire()
    optimizer, scaler = workload.optimizer(workload.model.parameters()), torch.amp.GradScaler("cpu")
    sizes = (math.inf if index in (1, 4, 5) else 1.0 for index in itertools.count())
    workload.batches = fed((torch.full((4, 10), size),) for size in sizes)

    def step(batch):
        loss = workload.loss(workload.model, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    window = Window(warmup_steps=4, min_steps=3, max_steps=3, min_seconds=0)
    report = measure(
        Training(step, workload, optimizer, phase, wire), Trial(window=window, precision=precision), Ranks()
    )
    assert (report.warmup_skipped_steps, report.skipped_steps) == expected


class Allocator:
    """What torch.cuda says of its allocator: `allocated` bytes now, and the peak since it was last reset."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.peaks: dict[torch.device, int] = {}
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.peaks[device])
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.now[device])
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)
        monkeypatch.setattr(torch.cuda, "init", lambda: None)
        self.now: dict[torch.device, int] = {}

    def allocated(self, device: torch.device, size: int) -> None:
        self.peaks[device], self.now[device] = max(self.peaks.get(device, 0), size), size

    def reset(self, device: torch.device) -> None:
        self.peaks[device] = self.now[device]


def test_peak_memory_of_a_gpu_is_that_of_the_window(monkeypatch):
    """Neither the unsharded model nor cuDNN's trials before it, nor what is looked at after it."""
    allocator, gpu = Allocator(monkeypatch), torch.device("cuda", 0)
    memory = Memory(nn.Linear(8, 8), None, gpu)
    for size in (900, 100):
        allocator.allocated(gpu, size)
    memory.start()
    allocator.allocated(gpu, 300)
    memory.stop()
    allocator.allocated(gpu, 700)
    assert (memory.peak_bytes(), memory.setup_peak_bytes) == (300, 900)


def test_what_others_of_the_process_hold_on_a_gpu_is_in_no_peak(monkeypatch):
    """What they hold may grow or shrink between two blocks of this one."""
    allocator, gpu = Allocator(monkeypatch), torch.device("cuda", 0)
    allocator.allocated(gpu, 5000)  # while another one was built
    allocator.allocated(gpu, 1000)  # what it keeps
    others = held_on([CPU, gpu])
    memory = Memory(nn.Linear(8, 8), None, gpu)
    memory.beside(others)
    allocator.allocated(gpu, 1000 + 900)
    memory.note_setup()
    allocator.allocated(gpu, 1000 + 100)
    memory.settle()
    for others_hold, peak in ((1000, 300), (4000, 350), (500, 200)):
        allocator.allocated(gpu, others_hold + 100)
        memory.start()
        allocator.allocated(gpu, others_hold + peak)
        memory.stop()
    assert (memory.peak_bytes(), memory.setup_peak_bytes) == (350, 900)


def test_energy_is_read_next_to_the_steps(monkeypatch):
    """Looking at other processes takes a tenth of a short block, in which a device uses energy too."""
    order = []
    for meter in (PowerMeter, QuietMeter):
        monkeypatch.setattr(meter, "start", lambda _, name=meter.__name__: order.append(f"{name} starts"))
        monkeypatch.setattr(meter, "stop", lambda _, name=meter.__name__: order.append(f"{name} stops"))
    run(Window(warmup_steps=1, min_steps=1, max_steps=1, min_seconds=0))
    assert order == ["QuietMeter starts", "PowerMeter starts", "PowerMeter stops", "QuietMeter stops"]


@pytest.mark.parametrize(("views", "beside_gradients"), [(False, 10 * 5 * 4), (True, 0)])
def test_gradients_that_are_views_of_ddp_buckets_count_once(views, beside_gradients):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(nn.Linear(10, 5, bias=False), gradient_as_bucket_view=views)
        memory = Memory(wrapped, None, CPU, lambda: {"buckets": ddp_buckets(wrapped)})
        for _ in range(2):  # after the first step DDP makes its buckets anew
            wrapped(torch.ones(4, 10)).sum().backward()
            kinds = memory.by_kind()
            assert (kinds["gradients"], kinds["buckets"]) == (10 * 5 * 4, beside_gradients)
    finally:
        dist.destroy_process_group()


def test_a_loss_that_is_not_finite_is_noted_and_still_json(tmp_path):
    window = Window(warmup_steps=1, min_steps=1, max_steps=1, min_seconds=0)
    report, _ = run(window, record=str(tmp_path), batches=fed(itertools.repeat((torch.full((4, 10), math.nan),))))
    assert report.loss_last is None and "the loss is not finite" in report.notes
    assert read_ranks(tmp_path, 1) == [report]


def test_wire_counts_only_while_entered_and_puts_the_original_back():
    class Library:
        @staticmethod
        def reduce(*args, **kwargs):
            return "original"

    wire, original = Wire(), Library.reduce
    wire.watch(Library, "reduce", "allreduce")
    half = torch.zeros(100, dtype=torch.float16)
    Library.reduce(half)
    with wire:
        assert Library.reduce(half, name="x") == "original"
        Library.reduce([half, half.float()], op=1)
    assert wire.bytes == {"allreduce": 200 + 200 + 400}
    assert Library.reduce is original


def test_one_worker_reduces_nothing_and_an_unwatched_library_is_unknown():
    window = Window(warmup_steps=1, min_steps=1, max_steps=1, min_seconds=0)
    assert run(window)[0].allreduce_bytes == 0
    assert run(window, ranks=Ranks(0, 2))[0].allreduce_bytes is None


def test_stopwatch_has_no_gap_between_laps():
    watch = Stopwatch(CPU)
    before = time.perf_counter()
    watch.start()
    started = time.perf_counter()
    for _ in range(49):
        watch.lap()
        time.sleep(0.001)
    ending = time.perf_counter()
    watch.lap()
    assert len(watch.seconds()) == 50
    assert ending - started <= sum(watch.seconds()) <= time.perf_counter() - before
