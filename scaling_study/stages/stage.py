"""Stages of a model: where its layers are cut, each stage as a module, gradients that stages share.      [torch]

    model    embedding  layers.0  layers.1  layers.2  decoder
    stage 0  [embedding  layers.0  layers.1]                      rank 0 drops the rest
    stage 1                                 [layers.2  decoder]   rank 1

A pipeline that moves weights about by hand can lose some: four position embeddings of a published one silently stopped
being parameters (F15). Here every parameter and buffer of the unsplit model must be in a stage, or nothing is trained.
One that several stages use (ALBERT's one layer, twelve times) is on each, and its gradients are added up.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations, pairwise
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from scaling_study.frameworks import SCHEDULES
from scaling_study.measure import Phase, Timeline
from scaling_study.measure.training import now
from scaling_study.records import schema
from scaling_study.study import rules
from scaling_study.trial import Trial
from scaling_study.workloads import Batch, Workload
from scaling_study.workloads.workload import Chain, autocast


def stages_of(worker: int, workers: int, virtual: int, schedule: str) -> tuple[int, ...]:
    """The stages of one worker, in order."""
    if SCHEDULES.get(schedule) == "two":
        return worker, 2 * workers - 1 - worker
    return tuple(worker + workers * index for index in range(virtual))


def even(layers: int, stages: int) -> list[int]:
    """Layers a stage, as even as can be; the first ones take what is left over. Raises ValueError.

    The costliest stage decides how fast a pipeline can be, whatever the schedule: throughput <= 1 / its share (F16).
    """
    _enough(layers, stages)
    return [layers // stages + (index < layers % stages) for index in range(stages)]


MANY = 100_000  # cuts to try one by one: a fraction of a second


def shared_out(costs: Sequence[float], workers: int, virtual: int) -> list[int]:
    """Layers a stage for workers with `virtual` stages each, such that a round costs as little. Raises ValueError.

    In a round every worker runs its k-th stage, and the slowest of them is waited for: the sum over k of the largest
    stage among stages k x workers ... (k + 1) x workers - 1. With one stage a worker that is `balanced`.
    """
    layers, stages = len(costs), workers * virtual
    if virtual == 1 or layers < stages or math.comb(layers - 1, stages - 1) > MANY:
        return balanced(costs, stages)
    before = [0.0, *accumulate(costs)]

    def rounds(edges: Iterable[int]) -> float:
        each = [before[end] - before[start] for start, end in pairwise(edges)]
        return sum(max(each[k : k + workers]) for k in range(0, stages, workers))

    cuts = ([0, *inner, layers] for inner in combinations(range(1, layers), stages - 1))
    return [end - start for start, end in pairwise(min(cuts, key=rounds))]


def balanced(costs: Sequence[float], stages: int) -> list[int]:
    """Layers a stage, in order, such that the costliest stage costs as little as it can. Raises ValueError.

    O(stages x layers^2), and layers are few. Of equally good cuts it takes the one whose early stages are longer: what
    they hold waits the longest for its backward anyway.
    """
    layers = len(costs)
    _enough(layers, stages)
    before = [0.0, *accumulate(costs)]

    @functools.cache
    def costliest(first: int, left: int) -> tuple[float, int]:
        """(cost of the costliest of `left` stages from layer `first` on, less where the first of them ends)"""
        if left == 1:
            return before[layers] - before[first], -layers
        ends = range(first + 1, layers - left + 2)
        return min((max(before[end] - before[first], costliest(end, left - 1)[0]), -end) for end in ends)

    edges = [0]
    for left in range(stages, 0, -1):
        edges.append(-costliest(edges[-1], left)[1])
    return [end - start for start, end in pairwise(edges)]


def _enough(layers: int, stages: int) -> None:
    if layers < stages:
        raise ValueError(f"{layers} layers cannot be cut into {stages} stages")


DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def own(tensor: torch.Tensor) -> torch.Tensor:
    """This worker's part of a matrix that is split (matrices.py); any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def assembled(tensor: torch.Tensor) -> torch.Tensor:
    """A matrix of which each worker has a part, put together; called by all of them. Any other tensor as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def average(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup, precision: str) -> None:
    """The mean of all gradients over the group of replicas, each of which had its own samples.

    Gradients travel at `precision` in one fused buffer after the pipeline has run dry, whatever the schedule.
    """
    gradients = [own(p.grad) for p in parameters if p.grad is not None]
    replicas = dist.get_world_size(group)
    if replicas == 1 or not gradients:
        return
    whole = torch.cat([gradient.reshape(-1) for gradient in gradients])
    wire = whole.div_(replicas).to(DTYPES.get(precision, whole.dtype))
    dist.all_reduce(wire, group=group)
    _handed_back(wire.to(whole.dtype), gradients)


def fused_bytes(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None) -> int:
    """Bytes of the buffer that `average` copies gradients into; 0 where there is one replica."""
    alone = dist.get_world_size(group) == 1
    return 0 if alone else sum(own(p).nbytes for p in parameters if p.requires_grad)


def add_up(mine: Sequence[nn.Parameter | None], like: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
    """The sum of each shared parameter's gradient over the workers of a pipeline, each of which had its own uses of it.

    `like` has the shape and type of each, on no device; `mine` this worker's copies, None where it has none.
    """
    if not like:
        return
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    parts = [
        torch.zeros_like(shape, device=device) if p is None or p.grad is None else own(p.grad)
        for p, shape in zip(mine, like, strict=True)
    ]
    whole = torch.cat([part.reshape(-1) for part in parts])
    dist.all_reduce(whole, group=group)
    _handed_back(whole, parts)


def _handed_back(whole: torch.Tensor, gradients: Sequence[torch.Tensor]) -> None:
    for gradient, value in zip(gradients, whole.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(value.view_as(gradient))


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def connected(schedule: Any, stages: Sequence[Any]) -> None:
    """Let torch agree on shapes and open its connections now, which it else does inside the first step.

    What it says to do so would be counted among that step's bytes.
    """
    for stage in stages:
        stage.has_backward = True
        if dist.get_backend() == "gloo":  # torch 2.9 to 2.12 open NCCL's connections so, one to a worker itself too
            stage._get_init_p2p_neighbors_ops = list
    (getattr(schedule, "_initialize_stage", None) or schedule._initialize_stages)((), None)


def watched(stages: Sequence[Any], loss: Loss, timeline: Timeline) -> Loss:
    """Wrap the methods of torch's PipelineStage objects, to note when each is called; the loss, wrapped too.

    The schedule waits for what it receives before it calls them, so that an event is computing and nothing else. The
    loss of a micro-batch is computed after its forward, outside the stage: it counts to that forward.
    """
    last = [0]

    def watch(stage: Any, kind: str) -> None:
        name = f"{kind}_one_chunk"
        method = getattr(stage, name)

        @functools.wraps(method)
        def noted(micro_batch: int, *args: Any, **kwargs: Any) -> Any:
            if kind == "forward":
                last[0] = micro_batch
            half = kind == "backward" and not kwargs.get("full_backward", True)
            with timeline("backward_input" if half else kind, stage.stage_index, micro_batch):
                return method(micro_batch, *args, **kwargs)

        setattr(stage, name, noted)

    for stage, kind in itertools.product(stages, ("forward", "backward", "backward_weight")):
        watch(stage, kind)
    final = max(stage.stage_index for stage in stages)

    def noted_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with timeline("forward", final, last[0]):
            return loss(output, target)

    return noted_loss


def reducing(stages: Sequence[Any], phase: Phase) -> None:
    """Mark as communication where a schedule, at its end, has FSDP2 scatter the gradients of torch's PipelineStages."""

    def marked(reduce: Callable[..., None]) -> Callable[..., None]:
        def reduced(*given: Any) -> None:
            with phase("communication"):
                reduce(*given)

        return reduced

    for stage in stages:
        stage.perform_reduce_grad = marked(stage.perform_reduce_grad)


REPEATS = 5  # after one that warms up


def layer_seconds(chain: Chain, micro_batch: Batch, device: torch.device, precision: str) -> list[float]:
    """Median seconds of each layer's forward and backward on this rank, the loss with the last one.

        x --layer 1--> x1 --detach--> layer 2 --> x2 ...     each by itself, so that each has its own time

    On one micro-batch, as in the pipeline. Buffers, gradients and random numbers are left as they were found.
    """
    layers = list(chain.layers.values())
    before = [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        rounds = [_once(chain, micro_batch, device, precision) for _ in range(1 + REPEATS)]
    for buffer, value in before:
        buffer.copy_(value)
    for layer in layers:
        layer.zero_grad(set_to_none=True)
    return [median(took[1:]) for took in zip(*rounds, strict=True)]


def _once(chain: Chain, micro_batch: Batch, device: torch.device, precision: str) -> list[float]:
    x, extras, seconds = chain.inputs(micro_batch), chain.extras(micro_batch), []
    last = len(chain.layers) - 1
    for index, layer in enumerate(chain.layers.values()):
        start = now(device)
        with autocast(device, precision):
            output = layer(x, **extras)
            loss = chain.loss(output, chain.target(micro_batch)) if index == last else None
        if loss is None:
            output.backward(torch.ones_like(output))
        else:
            loss.backward()
        seconds.append(now(device) - start)
        x = output.detach().requires_grad_(output.is_floating_point())
    return seconds


class Stage(nn.Module):
    """Some layers of a chain, one after the other: (micro-batch, ...) -> (micro-batch, ...), in the trial's precision.

    What it hands on is not rounded to 16 bits: the next layer would have read the same numbers in one process.
    """

    def __init__(self, layers: Sequence[nn.Module], device: torch.device, precision: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.device, self.precision = device, precision

    def forward(self, x: torch.Tensor, **extras: torch.Tensor) -> torch.Tensor:
        with autocast(self.device, self.precision):
            for layer in self.layers:
                x = layer(x, **extras)
        return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


@dataclass(frozen=True)
class Cut:
    """A model cut into stages, all of them or those that one rank keeps. Every rank cuts alike."""

    stages: dict[int, Stage]
    about: list[schema.StageRecord]  # as recorded for each
    shapes: list[torch.Tensor]  # what goes into each stage, and at last the output: of one micro-batch, on no device
    whole: dict[int, str]  # id of a parameter or buffer -> its name in the unsplit model
    first_in: dict[str, int]  # name of each parameter and buffer -> the first stage that has it
    shared: list[str]  # names of parameters in more than one stage
    shared_like: list[torch.Tensor]  # their shapes and types, on no device
    inputs: Callable[[Batch], torch.Tensor]
    target: Callable[[Batch], torch.Tensor]
    extras: Callable[[Batch], dict[str, torch.Tensor]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (output, target) of a micro-batch -> its mean

    def keep(self, mine: Sequence[int]) -> Cut:
        """Only the stages `mine`: the memory of the others is free as soon as nothing else references the model."""
        kept = {index: self.stages[index] for index in mine}
        ids = {id(tensor) for stage in kept.values() for tensor in tensors(stage)}
        whole = {key: name for key, name in self.whole.items() if key in ids}
        return replace(self, stages=kept, whole=whole, about=[self.about[index] for index in mine])

    def sharded(self, shard: Callable[[nn.Module], object], rank: int, ranks: int) -> Cut:
        """The stages once `shard` has put shards of their parameters in the place of each; `rank`: whose, of so many.

        A shard is a part of a tensor's first dimension: of equal length, but for the last ranks, which may have none.
        """
        names = {index: self._names(stage) for index, stage in self.stages.items()}
        for stage in self.stages.values():
            shard(stage)
        whole = {
            id(tensor): names[index][key]
            for index, stage in self.stages.items()
            for key, tensor in stage.state_dict(keep_vars=True).items()
        }
        parts = [[*like.chunk(ranks), *[like[:0]] * ranks][rank] for like in self.shared_like]
        return replace(self, whole=whole, shared_like=parts)

    def _names(self, stage: nn.Module) -> dict[str, str]:
        """Name of a tensor in the stage -> in the unsplit model."""
        return {key: self.whole[id(tensor)] for key, tensor in stage.state_dict(keep_vars=True).items()}

    def module(self) -> nn.ModuleList:
        """All stages as one module: what a rank trains."""
        return nn.ModuleList(self.stages.values())

    def weights(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by the unsplit model's names."""
        return {self.whole[id(tensor)]: tensor for stage in self.stages.values() for tensor in tensors(stage)}

    def shared_parameters(self) -> list[nn.Parameter | None]:
        """This rank's copy of each shared parameter, in one order for all ranks; None where it has none."""
        mine = self.weights()
        return [mine.get(name) for name in self.shared]  # type: ignore[misc]


def cut(
    workload: Workload,
    trial: Trial,
    device: torch.device,
    agree: Callable[[float], float],
    split: Callable[[nn.Module], object] | None = None,
) -> Cut:
    """Cut the workload's model as the trial asks. Raises SystemExit where it cannot be.

    `agree` gives every rank rank 0's number: ranks that measured their own times would cut in different places.
    `split`: of the whole model's matrices, once it is known where it is cut.
    """
    if workload.chain is None:
        raise SystemExit(f"--model {trial.model} cannot be cut into stages: its workload names no chain of layers")
    chain = workload.chain(workload.model)
    names, layers = list(chain.layers), list(chain.layers.values())
    parts = (trial.stages or 1) * (trial.virtual_stages or 1)
    try:
        sizes = _sizes(chain, workload, trial, device, parts, agree)
    except ValueError as error:
        raise SystemExit(f"--model {trial.model}: {error} ({', '.join(names)})") from error
    shapes = _shapes(workload, trial, sizes)
    if split:
        split(workload.model)
    edges = list(pairwise(accumulate(sizes, initial=0)))
    stages = [Stage(layers[start:end], device, trial.precision) for start, end in edges]

    plain = chain.loss  # not through the chain, which holds all layers: a rank keeps its own

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with autocast(device, trial.precision):
            return plain(output, target)

    whole = {id(tensor): name for name, tensor in workload.model.state_dict(keep_vars=True).items()}
    held = {id(tensor) for stage in stages for tensor in tensors(stage)}
    if lost := [name for tensor, name in whole.items() if tensor not in held]:
        raise RuntimeError(f"{len(lost)} tensors of {trial.model} are in no stage and would not be trained: {lost[:3]}")
    first_in: dict[str, int] = {}
    for index, stage in enumerate(stages):
        for tensor in tensors(stage):
            first_in.setdefault(whole[id(tensor)], index)
    uses = Counter(whole[id(p)] for stage in stages for p in stage.parameters())
    shared = [name for name, stages_with_it in uses.items() if stages_with_it > 1]
    about = [
        schema.StageRecord(
            index,
            parts,
            names[start:end],
            parameters=sum(p.numel() for p in stage.parameters()),
            shared_parameters=sum(p.numel() for p in stage.parameters() if whole[id(p)] in shared),
        )
        for index, (stage, (start, end)) in enumerate(zip(stages, edges, strict=True))
    ]
    parameters = dict(workload.model.named_parameters())
    like = [torch.empty_like(own(parameters[name]), device="meta", requires_grad=False) for name in shared]
    return Cut(
        stages=dict(enumerate(stages)),
        about=about,
        shapes=shapes,
        whole=whole,
        first_in=first_in,
        shared=shared,
        shared_like=like,
        inputs=chain.inputs,
        target=chain.target,
        extras=chain.extras,
        loss=loss,
    )


def micro_batches(workload: Workload, parts: int) -> list[str]:
    """Notes on what cutting a batch into `parts` changes about the training."""
    if parts == 1 or not any(isinstance(module, _BatchNorm) for module in workload.model.modules()):
        return []
    size = workload.samples_per_step // parts
    return [f"BatchNorm sees micro-batches of {size} samples, not the batch of {workload.samples_per_step}"]


def tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and persistent buffers, as they are in a state dict."""
    return iter(module.state_dict(keep_vars=True).values())


def _sizes(
    chain: Chain, workload: Workload, trial: Trial, device: torch.device, parts: int, agree: Callable[[float], float]
) -> list[int]:
    asked = trial.stage_cut or "even"
    layers = list(chain.layers.values())
    if asked == "even":
        return even(len(layers), parts)
    if asked == "time":
        costs = layer_seconds(chain, _part(workload.batches.peek(), trial), device, trial.precision)
        seconds = [agree(cost) for cost in costs]
        return shared_out(seconds, trial.stages or 1, trial.virtual_stages or 1)
    sizes = rules.by_hand(asked) or []
    if sum(sizes) != len(layers) or len(sizes) != parts:
        raise ValueError(
            f"--stage-cut {asked} is {sum(sizes)} layers in {len(sizes)} stages, not {len(layers)} in {parts}"
        )
    return sizes


def _part(batch: Batch, trial: Trial) -> Batch:
    """The first micro-batch of a batch."""
    return tuple(tensor.chunk(trial.micro_batches or 1)[0] for tensor in batch)


def _shapes(workload: Workload, trial: Trial, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Shapes and types at the stages' edges, from a copy of the model that has no values: nothing is computed."""
    assert workload.chain
    chain = workload.chain(copy.deepcopy(workload.model).to("meta"))
    part = tuple(tensor.to("meta") for tensor in _part(workload.batches.peek(), trial))
    layers = list(chain.layers.values())
    x, extras, edges = chain.inputs(part), chain.extras(part), []
    for start, end in pairwise(accumulate(sizes, initial=0)):
        edges.append(x)
        for layer in layers[start:end]:
            x = layer(x, **extras)
    return [tensor.detach().requires_grad_(index > 0) for index, tensor in enumerate([*edges, x])]
