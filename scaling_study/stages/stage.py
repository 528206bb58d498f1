"""One stage of a model as a module, under the whole model's names.                                      [torch]

    model    embedding  layers.0  layers.1  layers.2  decoder
    stage 0  [embedding  layers.0  layers.1]                      rank 0 drops the rest
    stage 1                                 [layers.2  decoder]   rank 1

A pipeline that moves weights about by hand can lose some: four position embeddings of a published one silently stopped
being parameters (F15). Here every parameter and buffer of the unsplit model must be in a stage, or nothing is trained.
One that several stages use (ALBERT's one layer, twelve times) is on each, and its gradients are added up.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from scaling_study.stages import timing
from scaling_study.stages.cut import even, shared_out
from scaling_study.study import pipelines
from scaling_study.trial import Trial
from scaling_study.workloads import Batch, Workload
from scaling_study.workloads.chain import Chain
from scaling_study.workloads.workload import autocast


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
    about: list[dict[str, Any]]  # as recorded for each: layers, parameters, those that other stages share
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

    def module(self) -> nn.ModuleList:
        """All stages as one module: what a rank trains."""
        return nn.ModuleList(self.stages.values())

    def weights(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by the unsplit model's names."""
        return {self.whole[id(tensor)]: tensor for stage in self.stages.values() for tensor in tensors(stage)}

    def shared_parameters(self) -> list[nn.Parameter | None]:
        """Of each shared parameter this rank's copy, in one order for all ranks; None where it has none."""
        mine = self.weights()
        return [mine.get(name) for name in self.shared]  # type: ignore[misc]


def cut(workload: Workload, trial: Trial, device: torch.device, agree: Callable[[float], float]) -> Cut:
    """Cut the workload's model as the trial asks. Raises SystemExit where it cannot be.

    `agree` gives every rank rank 0's number: ranks that measured their own times would cut in different places.
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
    edges = list(pairwise([sum(sizes[:index]) for index in range(parts + 1)]))
    stages = [Stage(layers[start:end], device, trial.precision) for start, end in edges]

    plain = chain.loss  # not through the chain, which holds all layers: a rank keeps its own

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with autocast(device, trial.precision):
            return plain(output, target)

    whole = named(workload.model)
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
        {
            "stage": index, "of": parts, "layers": names[start:end],
            "parameters": sum(p.numel() for p in stage.parameters()),
            "shared_parameters": sum(p.numel() for p in stage.parameters() if whole[id(p)] in shared),
        }
        for index, (stage, (start, end)) in enumerate(zip(stages, edges, strict=True))
    ]  # fmt: skip
    shapes = _shapes(workload, trial, sizes)
    parameters = dict(workload.model.named_parameters())
    like = [torch.empty_like(parameters[name], device="meta", requires_grad=False) for name in shared]
    return Cut(
        dict(enumerate(stages)), about, shapes, whole, first_in, shared, like,
        chain.inputs, chain.target, chain.extras, loss,
    )  # fmt: skip


def micro_batches(workload: Workload, parts: int) -> list[str]:
    """What cutting a batch into `parts` changes about the training, in words."""
    if parts == 1 or not any(isinstance(module, _BatchNorm) for module in workload.model.modules()):
        return []
    size = workload.samples_per_step // parts
    return [f"BatchNorm sees micro-batches of {size} samples, not the batch of {workload.samples_per_step}"]


def tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and persistent buffers, as they are in a state dict."""
    return iter(module.state_dict(keep_vars=True).values())


def named(model: nn.Module) -> dict[int, str]:
    return {id(tensor): name for name, tensor in model.state_dict(keep_vars=True).items()}


def _sizes(
    chain: Chain, workload: Workload, trial: Trial, device: torch.device, parts: int, agree: Callable[[float], float]
) -> list[int]:
    asked = trial.stage_cut or "even"
    layers = list(chain.layers.values())
    if asked == "even":
        return even(len(layers), parts)
    if asked == "time":
        costs = timing.layer_seconds(chain, _part(workload.batches.peek(), trial), device, trial.precision)
        seconds = [agree(cost) for cost in costs]
        return shared_out(seconds, trial.stages or 1, trial.virtual_stages or 1)
    sizes = pipelines.by_hand(asked) or []
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
    for start, end in pairwise([sum(sizes[:index]) for index in range(len(sizes) + 1)]):
        edges.append(x)
        for layer in layers[start:end]:
            x = layer(x, **extras)
    return [tensor.detach().requires_grad_(index > 0) for index, tensor in enumerate([*edges, x])]
