"""Steps that are looked at: gradients as they arrive, what carried bytes, and overlap. Launches: tests/frameworks."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_measure import toy
from torch import nn

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.measure import Phase, Training, Wire, inspected, measure
from scaling_study.measure.inspected import RDMA, SHARED_MEMORY, TCP, Arrivals, Flights, Traffic, watchable
from scaling_study.ranks import Ranks
from scaling_study.records import store
from scaling_study.trial import Trial, Window

CPU = torch.device("cpu")


def watched(model: nn.Module, batches: int = 1) -> Arrivals:
    """One step of `batches` micro-batches under watch."""
    arrivals, phase = Arrivals(CPU), Phase(CPU)
    with arrivals.watching(model.parameters(), phase):
        for _ in range(batches):
            with phase("forward"):
                loss = model(torch.ones(4, 10)).square().mean()
            with phase("backward"):
                loss.backward()
    assert not phase.on and phase.entered is None
    return arrivals


def test_every_trained_parameter_comes_once_the_last_layer_first():
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5, bias=False))
    model[0].bias.requires_grad_(False)
    gradients = watched(model).gradients
    assert [size for size, _ in gradients] == [20 * 5 * 4, 10 * 20 * 4]
    seconds = [0.0, *(seconds for _, seconds in gradients)]
    assert all(a < b for a, b in itertools.pairwise(seconds))
    assert len(watched(nn.Linear(10, 5), batches=3).gradients) == 2, "of micro-batches the last counts"
    layer = nn.Linear(10, 10, bias=False)
    assert [size for size, _ in watched(nn.Sequential(layer, layer)).gradients] == [400]


def test_who_is_watched():
    said = {name for name in FRAMEWORKS if watchable(Trial(framework=name))}
    assert said == {"single", "torch_ddp", "horovod", "mpi_allreduce", "lightning_ddp"}
    assert not watchable(Trial(find="parity")) and not watchable(Trial(find="max_batch"))


@pytest.mark.slow
def test_nothing_that_is_timed_or_counted_runs_under_watch(tmp_path):
    """One step has the hooks; warm-up, timed and instrumented steps have none, nor has the one that is counted."""
    workload, phase = toy(), Phase(CPU)
    optimizer, watched_steps = workload.optimizer(workload.model.parameters()), []

    def step(batch):
        hooks = [parameter._post_accumulate_grad_hooks for parameter in workload.model.parameters()]
        watched_steps.append(any(hooks) or phase.entered is not None)
        with phase("forward"):
            loss = workload.loss(workload.model, batch)
        with phase("backward"):
            loss.backward()
        optimizer.step()
        return loss.detach()

    window = Window(warmup_steps=4, min_steps=20, max_steps=20, min_seconds=0)
    training = Training(step, workload, optimizer, phase, Wire())
    report = measure(training, Trial(window=window), Ranks(), str(tmp_path))
    assert watched_steps == [False] * (4 + 20 + 5) + [True, False]
    assert [size for size, _ in report.gradients] == [10 * 5 * 4]
    assert store.read_ranks(tmp_path, 1) == [report]
    assert report.phases is not None and report.phases.steps == 5


MB = 1_000_000


@pytest.mark.parametrize(
    ("interfaces", "ports", "handed_over", "way"),
    [
        (2 * MB, 0, MB, TCP),
        (MB // 2, 0, MB, TCP),  # one of two workers: half of an allreduce each
        (MB // 10, 0, MB, SHARED_MEMORY),  # what others sent meanwhile
        (0, 2 * MB, MB, RDMA),
        (2 * MB, 2 * MB, MB, RDMA),
        (2 * MB, 0, 1000, ""),  # too few to tell
        (0, 0, 0, ""),
    ],
)
def test_the_way_is_that_whose_counter_moved(
    monkeypatch: pytest.MonkeyPatch, interfaces: int, ports: int, handed_over: int, way: str
) -> None:
    sent = {"interfaces": iter((7 * MB, 7 * MB + interfaces)), "ports": iter((3 * MB, 3 * MB + ports))}
    monkeypatch.setattr(inspected, "sent_by_interfaces", lambda: next(sent["interfaces"]))
    monkeypatch.setattr(inspected, "sent_by_rdma", lambda: next(sent["ports"]))
    with Traffic() as traffic:
        pass
    assert traffic.carrier(handed_over) == way


def test_ports_count_words_of_four_bytes(tmp_path: Path) -> None:
    assert inspected.sent_by_rdma(tmp_path) == 0
    for device, words in (("mlx5_0", 100), ("mlx5_1", 5)):
        counters = tmp_path / device / "ports" / "1" / "counters"
        counters.mkdir(parents=True)
        (counters / "port_xmit_data").write_text(f"{words}\n")
    assert inspected.sent_by_rdma(tmp_path) == 4 * 105


@pytest.mark.parametrize(
    ("in_flight", "computing", "share"),
    [
        ([(0, 10)], [(0, 10)], 1.0),
        ([(0, 10)], [(10, 20)], 0.0),
        ([(0, 10), (5, 20)], [(0, 5), (3, 8), (15, 40)], 13 / 20),  # both overlap themselves: 8 + 5 of 20 in flight
        ([(0, 4), (10, 14)], [(2, 12)], 0.5),
        ([(0, 10)], [], 0.0),
        ([], [(0, 10)], None),
    ],
)
def test_overlap_is_the_share_of_the_time_in_flight(
    in_flight: list[tuple[int, int]], computing: list[tuple[int, int]], share: float | None
) -> None:
    assert inspected.overlap(in_flight, computing) == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("name", "collective"),
    [("gloo:all_reduce", True), ("nccl:all_gather", True), ("gloo:send", False), ("aten::mm", False)],
)
def test_names_of_collectives(name: str, collective: bool) -> None:
    assert inspected.is_collective(name) == collective


def test_a_blocking_call_is_its_own_flight_and_a_handle_one_until_it_is_complete() -> None:
    flights, ready = Flights(), time.monotonic() + 0.5
    assert flights.following(lambda: "result", None) == "result"

    def done(handle: int) -> bool:
        if handle == 2:
            raise ValueError("Handle 2 was not created or has been cleared.")  # as Horovod says of one waited for
        return time.monotonic() > ready

    assert [flights.following(lambda: 1, done), flights.following(lambda: 2, done)] == [1, 2]
    flights.settle()
    lasted = sorted(end - begin for begin, end in flights.spans)
    assert len(lasted) == 3 and lasted[-1] >= 0.25e9 > lasted[1]


@pytest.mark.parametrize(("computes_meanwhile", "least", "most"), [(True, 0.7, 1.0), (False, 0.0, 0.3)])
def test_a_step_is_observed_through_the_functions_that_a_library_names(
    computes_meanwhile: bool, least: float, most: float
) -> None:
    wire, complete_at = Wire(), [0.0]
    model, data = nn.Linear(512, 512), torch.ones(256, 512)

    def start() -> int:
        complete_at[0] = time.monotonic() + 0.1
        return 7

    library = SimpleNamespace(start=start)
    wire.watch(library, "start", "allreduce", done=lambda handle: time.monotonic() > complete_at[0])

    def step() -> None:
        library.start()
        while time.monotonic() < complete_at[0]:
            if computes_meanwhile:
                model(data)
            else:
                time.sleep(0.01)

    observed = inspected.observe(step, wire, torch.device("cpu"))
    assert library.start is start, "put back"
    assert observed.nccl_kernels is None
    assert observed.overlap is not None and least <= observed.overlap <= most


def test_what_is_counted_may_be_observed_in_the_same_step() -> None:
    """Each puts its own function in place of the library's."""
    wire, sent = Wire(), torch.ones(10)
    library = SimpleNamespace(reduce=lambda tensor: time.sleep(0.01))
    wire.watch(library, "reduce", "allreduce")
    original = library.reduce

    def step() -> None:
        with wire:
            library.reduce(sent)

    assert inspected.observe(step, wire, torch.device("cpu")).overlap is not None
    assert wire.bytes == {"allreduce": 40}
    assert library.reduce is original, "put back"


# --- bytes that operators move through memory ---


@pytest.mark.parametrize(
    ("step", "moved"),
    [
        (lambda x, i: x + 1.0, 2 * 400),  # read, written
        (lambda x, i: x.add_(1.0), 2 * 400),
        (lambda x, i: x.view(5, 20).t()[1:], 0),
        (lambda x, i: x.zero_(), 400),
        (lambda x, i: x.copy_(x.detach().clone()), 400 + 400 + 2 * 400),
        (lambda x, i: torch.mm(x, x, out=torch.empty(10, 10)), 3 * 400),
        (lambda x, i: torch.zeros(1).expand(100) * x.view(100), 4 + 4 + 400 + 400),  # made of one number, read as one
        (lambda x, i: nn.functional.embedding(i, x), 2 * 120 + 24),  # three rows of ten numbers, three places
        (lambda x, i: x.to(torch.bfloat16), 400 + 200),
    ],
)
def test_an_operator_reads_what_it_is_given_and_writes_what_it_makes(step, moved: int) -> None:
    wire, x, places = Wire(), torch.ones(10, 10), torch.tensor([1, 5, 5])
    with wire:
        step(x, places)
    assert wire.moved_bytes == moved


def test_a_step_moves_what_a_hand_counts() -> None:
    """A product, its two in backward, the gradients that are kept, and the update; n x n in fp32."""
    n, wire = 32, Wire()
    size, layer, batch = 4 * n * n, nn.Linear(n, n, bias=False), torch.ones(n, n)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=False)
    with wire:
        layer(batch).backward(torch.ones(n, n))
    # forward: weights and batch read, output written; backward: that of the output and the batch read, that of the
    # weights written. The ones are made (written).
    assert wire.moved_bytes == size + 3 * size + 3 * size
    with wire:
        optimizer.step()
    assert wire.moved_bytes == 7 * size + 3 * size  # weights and gradients read, weights written


def test_whose_operators_are_seen() -> None:
    seen = {name for name in FRAMEWORKS if inspected.operators_are_seen(Trial(framework=name, workers=2))}
    assert {"single", "torch_ddp", "torch_fsdp2", "deepspeed_zero"} <= seen
    assert not seen & {"torch_dp", "fairscale_pipe", "torch_pipeline", "hivemind", "network_probe"}
    assert not inspected.operators_are_seen(Trial(framework="single", compile=True))
