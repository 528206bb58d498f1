"""Bytes of collectives: of the whole tensor, on whichever thread, by the ranks that they are of, and of whole periods.

The process group is torch's own fake one: four ranks, of which this process is the first, and nothing is sent. What
really crosses sockets: tests/frameworks/test_wire_bytes.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_measure import CPU, PEAK, toy
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _python_dispatch as modes

from scaling_study.measure import Phase, Training, Wire, inspected, measure
from scaling_study.measure.wire import Group
from scaling_study.observe.inside import Counts, counting, on_every_thread
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial, Window

RANKS = 4
SENT = torch.ones(8)  # 32 bytes


def functional(name: str, *given: Any, group: Any = None) -> None:
    """Call a functional collective, of all ranks or of a group, and wait for it."""
    group = group or dist.group.WORLD
    made = getattr(torch.ops._c10d_functional, name)(*given, group.group_name)
    for each in made if isinstance(made, list) else [made]:
        torch.ops._c10d_functional.wait_tensor(each)


@pytest.fixture(autouse=True)
def four_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def by_the_observer(step: Callable[[], object]) -> dict[str, int]:
    """Bytes by kind, as an observed command's are counted (observe/inside.py)."""
    counts = Counts({}, lambda: "rest")
    mode, replaced = counting(modes, counts), []
    for owner, name, function in on_every_thread(mode):
        replaced.append((owner, name, vars(owner)[name]))
        setattr(owner, name, function)
    with mode:
        step()
    for owner, name, original in replaced:
        setattr(owner, name, original)
    assert not counts.fault
    return dict(counts.bytes)


def by_the_clock(step: Callable[[], object]) -> dict[str, int]:
    wire = Wire()
    with wire:
        step()
    return dict(wire.bytes)


COUNTERS = pytest.mark.parametrize("counted", [by_the_clock, by_the_observer])


@COUNTERS
@pytest.mark.parametrize(
    ("collective", "bytes"),
    [
        (lambda: functional("all_gather_into_tensor", SENT, RANKS), {"all_gather": 32 * RANKS}),
        (lambda: functional("all_gather_into_tensor_coalesced", [SENT, SENT], RANKS), {"all_gather": 64 * RANKS}),
        (lambda: functional("reduce_scatter_tensor", SENT, "sum", RANKS), {"reduce_scatter": 32}),
        (lambda: functional("all_reduce", SENT, "sum"), {"allreduce": 32}),
        (lambda: dist.all_gather_into_tensor(torch.empty(8 * RANKS), SENT), {"all_gather": 32 * RANKS}),
        (
            lambda: dist.all_gather([torch.empty(8) for _ in range(RANKS)], SENT),
            {"all_gather": 32 * RANKS},
        ),
    ],
    ids=["all_gather", "coalesced", "reduce_scatter", "all_reduce", "in place", "list"],
)
def test_the_whole_tensor_counts_whether_a_collective_is_given_it_or_returns_it(
    counted: Callable[..., dict[str, int]], collective: Callable[[], object], bytes: dict[str, int]
) -> None:
    assert counted(collective) == bytes


def on_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_a_callback(register: str) -> None:
    """As Gloo completes a hook's future on a thread of its own."""
    future: torch.futures.Future[int] = torch.futures.Future()
    getattr(future, register)(lambda done: functional("all_reduce", SENT, "sum"))
    on_a_thread(lambda: future.set_result(1))


POOL = ThreadPoolExecutor(1)


@COUNTERS
@pytest.mark.parametrize(
    "step",
    [
        lambda: in_a_callback("then"),
        lambda: in_a_callback("add_done_callback"),
        lambda: dist.all_reduce(SENT, async_op=True).get_future().then(lambda done: done.value()),
        lambda: on_a_thread(lambda: dist.all_reduce(SENT)),
        lambda: POOL.submit(dist.all_reduce, SENT).result(),
    ],
    ids=["then", "add_done_callback", "own thread", "thread", "thread of before"],
)
def test_a_collective_on_another_thread_counts_once(
    counted: Callable[..., dict[str, int]], step: Callable[[], object]
) -> None:
    POOL.submit(int).result()  # its thread is there
    methods = dict(vars(dist.ProcessGroup)), dict(vars(torch._C.Future))
    assert counted(step) == {"allreduce": 32}
    assert (dict(vars(dist.ProcessGroup)), dict(vars(torch._C.Future))) == methods, "put back"
    step()  # and works as before
    assert not modes._get_current_dispatch_mode_stack()


def test_what_operators_of_a_callback_move_counts_too() -> None:
    future: torch.futures.Future[int] = torch.futures.Future()
    wire = Wire()
    with wire:
        future.then(lambda done: SENT + 1)
        on_a_thread(lambda: future.set_result(1))
    assert wire.moved_bytes == 2 * 32


def test_bytes_of_a_mesh_are_told_apart_by_its_dimensions() -> None:
    mesh, wire = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")), Wire()
    with wire:
        functional("all_gather_into_tensor", SENT, 2, group=mesh["shard"].get_group())
        dist.all_reduce(SENT, group=mesh["replicate"].get_group())
        dist.all_reduce(SENT)
    assert wire.bytes == {"all_gather": 64, "allreduce": 64}
    assert wire.by_group == {
        ("all_gather", Group("shard", 2)): 64,
        ("allreduce", Group("replicate", 2)): 32,
        ("allreduce", Group("", RANKS)): 32,
    }
    told = inspected.within_groups(wire, 2, RANKS)
    assert [(each.kind, each.group, each.ranks, each.bytes) for each in told] == [
        ("all_gather", "shard", 2, 32), ("allreduce", "replicate", 2, 16), ("allreduce", "", RANKS, 16)
    ]  # fmt: skip
    del wire.by_group["all_gather", Group("shard", 2)], wire.by_group["allreduce", Group("replicate", 2)]
    assert inspected.within_groups(wire, 1, RANKS) == [], "communication_bytes says it all"


def test_a_framework_may_reduce_gradients_by_another_kind() -> None:
    for wire, reduced in ((Wire(), None), (Wire("all_to_all"), 32)):
        with wire:
            dist.all_to_all_single(torch.empty(8), SENT)
        assert wire.reduced_bytes(2) == reduced


def test_gradients_of_activations_are_not_counted_among_those_of_weights() -> None:
    for wire, reduced in ((Wire(), 12), (Wire(activations=("reduce_scatter",)), 4)):
        wire.count("allreduce", 4)
        wire.count("reduce_scatter", 8)
        assert wire.reduced_bytes(2) == reduced and sum(wire.bytes.values()) == 12


@pytest.mark.parametrize("period", [1, 4])
def test_what_happens_in_every_fourth_step_is_a_fourth_of_it_in_each(
    monkeypatch: pytest.MonkeyPatch, period: int
) -> None:
    """All that is looked at is of whole periods: bytes, phases, and the timed window."""
    monkeypatch.setattr(inspected, "peak_of", lambda device, precision, tf32: PEAK)
    workload, phase, wire, taken = toy(), Phase(CPU), Wire(), [0]
    optimizer = workload.optimizer(workload.model.parameters())

    def step(batch: Any) -> torch.Tensor:
        taken[0] += 1
        with phase("forward"):
            loss = workload.loss(workload.model, batch)
        with phase("communication"):
            if taken[0] % 4 == 0:
                dist.all_reduce(torch.ones(100))
        return loss.detach()

    window = Window(warmup_steps=5, min_steps=6, min_seconds=0)
    report = measure(Training(step, workload, optimizer, phase, wire, period=period), Trial(window=window), Ranks())
    assert len(report.step_seconds) == (6 if period == 1 else 8)
    assert report.phases is not None and report.phases.steps == (1 if period == 1 else 4)
    if period == 4:
        assert report.communication_bytes == {"allreduce": 100} and report.allreduce_bytes == 100
