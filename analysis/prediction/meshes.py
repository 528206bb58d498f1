"""One training step over a mesh, in time: what its collectives add to computing, with links within and between hosts.

    compute   | f1 |t| f2 |t| ... | b2 |t| b1 |t| update     t: tensor, context: nothing hides them
    wire      |g2 |   |g3 |       |g1 | s2  |   | s1 |       g: weights gathered one unit ahead, s: gradients scattered

Bytes are those of scaling_study/study/meshes.py, seconds of a collective those of network.py. A **unit** is a layer, or
what is outside of the layers. Pipelines stretch all of it by their bubble (statistics/bubble.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.prediction.network import Link, ModelledNetwork, hierarchical, nccl
from analysis.prediction.simulate import Step
from analysis.statistics.bubble import bubble
from scaling_study.models import Decoder
from scaling_study.study import meshes
from scaling_study.study.meshes import Mesh, Traffic, Work

ORDER = ("tensor", "context", "stages", "shards", "replicas")  # neighbours in rank first
BLOCKING = ("tensor", "context")
NOTHING = 1e-9  # seconds, of rounding
PASSES: Mapping[str, float] = {"none": 2.0, "selective": 2.0, "block": 3.0}  # of backward, each as long as forward
Took = Mapping[tuple[str, str], float]  # (dimension, kind) -> seconds of its collectives, one after the other


def group_network(network: ModelledNetwork, members: int, apart: int) -> ModelledNetwork:
    """The network as a group sees it whose members are `apart` ranks from each other, beside the like groups.

    Its members on one host have their share of the host's cards: as many groups as there are others send too.
    """
    on_host = max(1, min(members, network.workers_per_host // apart))
    cards = network.cards_per_host * on_host / network.workers_per_host
    whole = max(1, int(cards))
    between = network.between.scaled(1.0, max(1.0, whole / cards))
    return replace(network, between=between, workers_per_host=on_host, cards_per_host=whole, busy=None)


def seconds(kind: str, size: float, members: int, network: ModelledNetwork) -> float:
    """Of one collective of `size` bytes (its payload) among `members`, on the group_network() of these."""
    if members == 1 or not size:
        return 0.0
    here = network.local(members)
    if kind == "send":
        return _message(size, network.inside if here > 1 else network.between)
    if kind == "allreduce":
        return nccl(members, size, network)
    if kind == "all_to_all":
        inside = (here - 1) * _message(size / members, network.inside)
        return inside + (members - here) * _message(here * size / members, network.host_link(members))
    return hierarchical(members, size, network) / 2  # one of the two halves of an allreduce


def _message(size: float, link: Link) -> float:
    return link.latency_seconds + size * link.seconds_per_byte


def costs(shape: Decoder, mesh: Mesh, work: Work, network: ModelledNetwork) -> Took:
    """Seconds of all collectives of a step, ranks placed in ORDER."""
    took: dict[tuple[str, str], float] = {}
    for one in meshes.traffic(shape, mesh, work):
        of_group, calls = group_network(network, one.workers, apart(mesh, one)), calls_of(one, shape, mesh, work)
        key = (one.dimension, one.kind)
        took[key] = took.get(key, 0.0) + calls * seconds(one.kind, one.bytes / calls, one.workers, of_group)
    return took


def apart(mesh: Mesh, one: Traffic) -> int:
    """Ranks between neighbours of the group of a collective. Workers that share sequences reduce with the replicas."""
    last = "context" if one.dimension == "replicas" and mesh.context > 1 else one.dimension
    between = 1
    for name in ORDER[: ORDER.index(last)]:
        between *= getattr(mesh, name)
    return between


def calls_of(one: Traffic, shape: Decoder, mesh: Mesh, work: Work) -> int:
    """Calls that a step makes, as far as their latency matters: of each layer and part, or of each layer."""
    layers, parts = -(-shape.layers // mesh.stages), work.parts(mesh)
    if one.kind == "send":
        return 2 * parts * mesh.virtual_stages
    if one.dimension == "stages":
        return 1
    return 4 * layers * parts if one.dimension in BLOCKING else layers


# Computing: of one worker and one part (a micro-batch) of a step.


@dataclass(frozen=True)
class Computing:
    """Seconds of a layer, and of what is outside of the layers, with what is computed again in backward."""

    layer_forward: float
    layer_backward: float
    outside_forward: float
    outside_backward: float
    update: float = 0.0  # of the step


def at_rate(shape: Decoder, mesh: Mesh, work: Work, flops_per_second: float) -> Computing:
    """Matrix products alone, at a rate that a worker keeps; shared by the workers of a tensor or context group."""
    tokens = work.tokens / work.parts(mesh) / mesh.context / mesh.tensor
    outside = 2 * shape.of_vocabulary * tokens / flops_per_second
    layer = (shape.forward_flops(work.length) * tokens / flops_per_second - outside) / shape.layers
    return Computing(layer, PASSES[work.checkpoint] * layer, outside, 2 * outside)


def as_alone(shape: Decoder, mesh: Mesh, work: Work, step: Step, samples: int) -> Computing:
    """By the measured step of one worker with so many `samples`, cut as FLOPs are: evenly, whatever a part's size."""
    share = 2 * shape.of_vocabulary / shape.forward_flops(work.length)  # outside of the layers
    part = work.samples / work.parts(mesh) / samples / mesh.context / mesh.tensor
    forward, backward = part * step.before_seconds, part * step.backward_seconds
    again = (PASSES[work.checkpoint] - 2) * forward
    layers = (1 - share) / shape.layers
    update = step.after_seconds / mesh.tensor / mesh.stages / mesh.shards
    return Computing(layers * forward, layers * (backward + again), share * forward, share * backward, update)


@dataclass(frozen=True)
class MeshStep:
    """One predicted step. `exposed_seconds`: what each dimension of the mesh adds; of stages, the bubble too."""

    step_seconds: float
    computing_seconds: float
    exposed_seconds: Mapping[str, float]


def simulate(shape: Decoder, mesh: Mesh, work: Work, network: ModelledNetwork, computing: Computing) -> MeshStep:
    """One step of `mesh.workers`, all alike."""
    took, parts = costs(shape, mesh, work, network), work.parts(mesh)
    blocked = {name: sum(s for (of, _), s in took.items() if of == name) for name in BLOCKING}
    wire, now = Wire(), 0.0
    for index in range(parts):
        forward, backward = units(shape, mesh, work, computing, took, index == 0, index == parts - 1)
        now = wire.along(wire.along(now, forward), backward)
    ended = max(now, wire.free)
    alone = sum(unit.seconds for unit in (*forward, *backward)) * parts - sum(blocked.values())
    over = ended - alone - sum(blocked.values())
    over += network.gpu_share * max(0.0, wire.busy - over)  # what is hidden takes some of a GPU
    exposed = blocked | {"shards" if mesh.shards > 1 else "replicas": over}
    step = alone + sum(exposed.values())
    if mesh.stages > 1:
        idle = bubble(mesh.schedule, mesh.stages, mesh.micro_batches, mesh.virtual_stages).bubble or 0.0
        filling = (mesh.stages - 1) * took[("stages", "send")] / parts / mesh.virtual_stages  # there and back
        filling += took.get(("stages", "allreduce"), 0.0)
        exposed["stages"] = (alone + sum(blocked.values())) * idle / (1 - idle) + filling
        step += exposed["stages"]
    seen = {name: seconds for name, seconds in exposed.items() if seconds > NOTHING}
    return MeshStep(step + computing.update, alone + computing.update, seen)


@dataclass(frozen=True)
class Unit:
    """Seconds of computing, of the gather that must come before, and of the reduction that comes after."""

    seconds: float
    gather: float = 0.0
    reduce: float = 0.0


def units(
    shape: Decoder, mesh: Mesh, work: Work, computing: Computing, took: Took, first: bool, last: bool
) -> tuple[list[Unit], list[Unit]]:
    """(forward, backward) of one part in order; gradients travel in the `last`, weights of a stage in the `first`."""
    here, outside = meshes.part(shape, mesh), meshes.outermost(shape, mesh)
    layers, parts = here.layers, work.parts(mesh)
    # A layer's share of what is gathered and of what is reduced; the rest is outside of the layers.
    whole, kept = (each.bytes(work.element, work.own) for each in (here, outside))
    again, gathers = mesh.zero_stage == 3, mesh.stages == 1 or first
    gathered = took.get(("shards", "all_gather"), 0.0) / work.accumulation / (2 * whole - kept if again else whole)
    gathered *= gathers
    layer_gather, outside_gather = gathered * (whole - kept) / layers, gathered * kept
    reduced = sum(took.get(key, 0.0) for key in (("shards", "reduce_scatter"), ("replicas", "allreduce"))) * last
    outside_reduce = reduced * outside.elements / here.elements
    layer_reduce = (reduced - outside_reduce) / layers
    waits = sum(s for (of, _), s in took.items() if of in BLOCKING) / parts / layers / 2  # as long in both directions
    before, behind = computing.outside_forward / mesh.stages, computing.outside_backward / mesh.stages
    forward = Unit(computing.layer_forward + waits, layer_gather)
    backward = Unit(computing.layer_backward + waits, layer_gather * again, layer_reduce)
    return (
        [Unit(0.0, outside_gather), *[forward] * layers, Unit(before)],
        [Unit(behind), *[backward] * layers, Unit(0.0, reduce=outside_reduce)],
    )


class Wire:
    """Carries one collective at a time, in the order in which they are asked for."""

    def __init__(self) -> None:
        self.free = self.busy = 0.0

    def carry(self, ready: float, took: float) -> float:
        """When a collective is over that may begin at `ready`."""
        if not took:
            return ready
        self.free = max(self.free, ready) + took
        self.busy += took
        return self.free

    def along(self, now: float, units: Sequence[Unit]) -> float:
        """When all units have computed. Each waits for its weights, which travel while the one before computes."""
        there = self.carry(now, units[0].gather)
        for unit, following in zip(units, [*units[1:], Unit(0.0)], strict=True):
            now = max(now, there)
            there = self.carry(now, following.gather)
            now += unit.seconds
            self.carry(now, unit.reduce)
        return now
