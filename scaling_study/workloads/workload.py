"""The shape every workload has: its chain of layers, FLOPs, parts of its loss, optimiser.                 [torch]"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from scaling_study import models
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads.feed import Batch, Data, Feed, HeldOut


def first(batch: Batch) -> torch.Tensor:
    return batch[0]


@dataclass(frozen=True)
class Chain:
    """Layers that a pipeline cuts into stages; in order they compute what `Workload.loss(model, batch)` does.

        batch --inputs--> layer 1 --> layer 2 --> ... --> layer n --output--> loss(output, target)
                            ^           ^                    ^
                            +-----------+--- extras(batch) --+      the same for every layer, as keyword arguments

    Each layer takes one tensor, whose first dimension is the sample, and gives one to the next. The layers hold the
    model's own parameters. One that no layer holds would never be trained (F15): scaling_study/stages refuses that.
    """

    layers: Mapping[str, nn.Module]  # in order, by a name that a person recognises: "stem", "layer1.0"
    inputs: Callable[[Batch], torch.Tensor] = first  # what the first layer is fed, (batch, ...)
    target: Callable[[Batch], torch.Tensor] = lambda batch: batch[1]  # what the loss compares with, (batch, ...)
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy  # (output, target) -> scalar mean
    extras: Callable[[Batch], dict[str, torch.Tensor]] = (
        lambda batch: {}
    )  # each (batch, ...): cut into micro-batches too

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The loss of a batch by the unsplit chain: equal to the workload's own, bit by bit."""
        output, extras = self.inputs(batch), self.extras(batch)
        for layer in self.layers.values():
            output = layer(output, **extras)
        return self.loss(output, self.target(batch))


SAMPLES = 2  # of one, BatchNorm could make no statistics


def forward_flops_per_sample(workload: Workload) -> float | None:
    """FLOPs of the model's forward pass, by the first samples of the next batch; None where they cannot be counted.

    torch's FlopCounterMode counts matrix products, convolutions and attention, two FLOPs for each multiply-add, of the
    unsplit model. A step of training is taken to need three times as much (Chowdhery et al., arXiv 2204.02311, appendix
    B); what a framework computes again, as with checkpointing, is no model FLOP. Nothing is left behind: random numbers
    are drawn from a fork, running statistics are put back.
    """
    from torch.utils import flop_counter  # brings triton, as the first optimiser does: not for --help

    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    missing = {attention} - flop_counter.flop_registry.keys()  # in torch 2.8
    formulas = {
        each: lambda query, key, value, *_, **__: flop_counter.sdpa_flop_count(query, key, value) for each in missing
    }
    batch = tuple(tensor[:SAMPLES] for tensor in workload.batches.peek())
    kept = [(buffer, buffer.clone()) for buffer in workload.model.buffers()]
    devices = {tensor.device for tensor in batch if tensor.device.type == "cuda"}
    counter = flop_counter.FlopCounterMode(display=False, custom_mapping=formulas)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices), counter:
            workload.loss(workload.model, batch)
    except RuntimeError:  # a user's model that takes no part of a batch: then this one number is unknown
        return None
    finally:
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)
    return counter.get_total_flops() / len(batch[0]) or None


class LossParts:
    """The parts of a loss that is a sum, averaged over all steps since they were last asked for.

    A loss of the last batch alone says nothing of an epoch (F12). Values are added up on the device: nothing waits."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)  # of the columns of a row: loss_i
        self.forget()

    def forget(self) -> None:
        """Also what was noted before a training began."""
        self._sums: torch.Tensor | None = None
        self._batches = 0

    def note(self, values: torch.Tensor) -> None:
        own = values.detach().double()
        self._sums = own if self._sums is None else self._sums + own
        self._batches += 1

    def means(self, ranks: Ranks) -> dict[str, float]:
        """Their means over all batches and all ranks since the last time. Called by all ranks."""
        own = [0.0] * len(self.names) if self._sums is None else self._sums.tolist()
        *sums, batches = ranks.total([*own, float(self._batches)])
        self.forget()
        return {name: total / batches for name, total in zip(self.names, sums, strict=True)} if batches else {}


Make = Callable[[Iterable[Any]], torch.optim.Optimizer]  # of parameters, or of groups of them
Loss = Callable[[Any, Batch], torch.Tensor]  # (model, batch) -> scalar mean over the batch
MOMENTUM = 0.9
NAME = "name"  # of a group, beside what torch has in it
MUON, ADAMW = "muon", "adamw"  # names of groups


def recipe(trial: Trial, own: Make, multiplied_by: int, model: nn.Module) -> Make:
    """The optimiser that a recipe names, or the workload's own, at the recipe's learning rate.

    The rate is never multiplied by workers: what `own` was `multiplied_by` is divided again.
    """
    outer = outer_layers(model)
    if trial.train_optimizer == MUON and by_kind(model.parameters(), outer)[0][NAME] != MUON:
        raise SystemExit(f"--train-optimizer muon: {trial.model} has no hidden matrices: adamw would step all of it")

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = named(trial, parameters, outer) or own(parameters)
        for group in optimizer.param_groups:
            group["lr"] = (trial.learning_rate or group["lr"] / multiplied_by) * rate_scale(trial)
        return optimizer

    return make


def by_part(trial: Trial, model: nn.Module, own: Make) -> Make:
    """Let `own` make the optimiser with a group for each part of the model, at the part's own rate where given.

    A parameter that asks for no gradient is in none. Groups that are made already (grouped) stay as they are.
    """
    rates = models.rates(trial.part_learning_rates)

    def make(parameters: Iterable[Any]) -> torch.optim.Optimizer:
        optimizer = own(grouped(model, parameters))
        for group in optimizer.param_groups:
            if (rate := rates.get(group.get(NAME, ""))) is not None:
                group["lr"] = rate * rate_scale(trial)
        return optimizer

    return make


def grouped(model: nn.Module, parameters: Iterable[Any]) -> list[dict[str, Any]]:
    """Groups of a model's parameters by its parts, in the order of models.PARTS; groups are returned as they are.

    Raises SystemExit for parameters that are not the model's own: a framework that makes others of them (FairScale's
    FSDP) can treat no part otherwise than another.
    """
    given = list(parameters)
    if given and isinstance(given[0], Mapping):
        return given
    part_of = {id(parameter): name.partition(".")[0] for name, parameter in model.named_parameters()}
    groups: dict[str, list[nn.Parameter]] = {part: [] for part in models.PARTS}
    for parameter in given:
        if id(parameter) not in part_of:
            raise SystemExit("this framework flattens weights: no part of them can be frozen or have a rate of its own")
        if parameter.requires_grad:
            groups[part_of[id(parameter)]].append(parameter)
    return [{"params": held, NAME: part} for part, held in groups.items() if held]


def rate_scale(trial: Trial) -> float:
    """The factor of the learning rate: (global batch / reference batch), its root, or 1."""
    ratio = trial.global_batch / (trial.train_reference_batch or trial.global_batch)
    return {"linear": ratio, "sqrt": math.sqrt(ratio)}.get(trial.train_scale_learning_rate or "none", 1.0)


def named(trial: Trial, parameters: Iterable[nn.Parameter], outer: Sequence[nn.Module]) -> torch.optim.Optimizer | None:
    """The optimiser that the trial names; None for the workload's own. `outer`: as outer_layers(model)."""
    rate, decay = trial.learning_rate or 1.0, trial.train_weight_decay or 0.0
    momentum = MOMENTUM if trial.train_momentum is None else trial.train_momentum
    match trial.train_optimizer:
        case "sgd" | "nesterov" as name:
            nesterov = name == "nesterov" and momentum > 0
            return torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=decay, nesterov=nesterov)
        case "adam":
            return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
        case "adamw":
            return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)
        case "muon":
            return MuonAndAdamW(by_kind(parameters, outer), lr=rate, weight_decay=decay)
    return None


def fused(own: Make) -> Make:
    """Let `own` make the optimiser, and have it update by torch's fused kernel: all weights of a group at once.

    A gradient scaler still divides the gradients before the step, not within it: clipping and noise read them there.
    Raises SystemExit for an optimiser that has no such kernel.
    """

    def make(parameters: Iterable[Any]) -> torch.optim.Optimizer:
        optimizer = own(parameters)
        if "fused" not in optimizer.defaults:
            raise SystemExit(f"torch has no fused {type(optimizer).__name__}: leave optimizer_kernels out")
        for settings in (optimizer.defaults, *optimizer.param_groups):
            settings.update(foreach=False, fused=True)
        return optimizer

    return make


def outer_layers(model: nn.Module) -> list[nn.Module]:
    """The layers whose matrices are no hidden ones: embeddings, and the last linear layer, which makes the scores.

    Asked for before a framework wraps the model: layers stay, their parameters may become others.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return [*(module for module in model.modules() if isinstance(module, nn.Embedding)), *linear[-1:]]


def by_kind(parameters: Iterable[nn.Parameter], outer: Sequence[nn.Module]) -> list[dict[str, Any]]:
    """Two groups of parameters at most: hidden matrices, which Muon steps, and all others, which AdamW steps."""
    apart = {id(layer.weight) for layer in outer}
    groups: dict[str, list[nn.Parameter]] = {MUON: [], ADAMW: []}
    for parameter in parameters:
        groups[MUON if parameter.ndim == 2 and id(parameter) not in apart else ADAMW].append(parameter)
    return [{"params": held, NAME: kind} for kind, held in groups.items() if held]


class MuonAndAdamW(torch.optim.Optimizer):
    """torch's Muon of a model's hidden matrices, and its AdamW of everything else, in one optimiser.

    Muon steps along the nearest orthogonal matrix to the momentum of a gradient, found by five iterations in bf16. Its
    author leaves embeddings, the matrix of scores and vectors to AdamW (Jordan, kellerjordan.github.io/posts/muon). The
    step of an m x n matrix is multiplied by 0.2 sqrt(max(m, n)), the size of AdamW's steps, so that both take the
    learning rate and weight decay that suit AdamW (Liu et al., arXiv 2502.16982: torch's "match_rms_adamw").

    A matrix in shards (DTensor) is made orthogonal whole, on every rank: its momentum alone is gathered. Muon of torch
    2.15 on shards rounds in another order within the iterations, and was off by 3e-2 after ten steps.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float = 1e-3, weight_decay: float = 0.0) -> None:
        muon = partial(torch.optim.Muon, adjust_lr_fn="match_rms_adamw")
        kinds: dict[str, Any] = {MUON: muon, ADAMW: torch.optim.AdamW}
        self.parts = [kinds[group[NAME]]([group], lr=lr, weight_decay=weight_decay) for group in groups]
        super().__init__([part.param_groups[0] for part in self.parts], {"lr": lr, "weight_decay": weight_decay})

    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure else None
        for part, group in zip(self.parts, self.param_groups, strict=True):
            if group[NAME] == MUON and any(hasattr(p, "full_tensor") for p in group["params"]):
                self._step_shards(group)
            else:
                part.param_groups, part.state = [group], self.state  # of now: loading a state makes new ones
                part.step()
        return loss

    @torch.no_grad()
    def _step_shards(self, group: dict[str, Any]) -> None:
        from torch.distributed.tensor import DTensor, distribute_tensor

        momentum, rate = group["momentum"], group["lr"]
        for p in (p for p in group["params"] if p.grad is not None):
            state = self.state[p]
            mean = state.setdefault("momentum_buffer", torch.zeros_like(p.grad)).to_local()
            mean.lerp_(own := p.grad.to_local(), 1 - momentum)
            shard, where = own.lerp(mean, momentum), (p.device_mesh, p.placements)
            whole = DTensor.from_local(shard, *where, shape=p.shape, stride=p.stride()).full_tensor()
            moved = nn.Parameter(torch.zeros_like(whole))
            moved.grad = whole
            settings = {key: group[key] for key in ("ns_coefficients", "eps", "ns_steps", "adjust_lr_fn")}
            torch.optim.Muon([moved], lr=rate, weight_decay=0, momentum=0, nesterov=False, **settings).step()
            p.mul_(1 - rate * group["weight_decay"])
            p.add_(distribute_tensor(moved.detach(), *where, src_data_rank=None))


class ClippedSGD(torch.optim.SGD):
    """torch's SGD under gradients clipped to a norm: g <- g x min(1, max_norm / |g|) (Pascanu et al., arXiv 1211.5063).

    |g| is of the gradients that this optimiser holds: the whole model's in one process and in data parallelism, and of
    sharded tensors that know their shards. A pipeline's worker holds some stages: there `over` adds up the squares of
    all stages. It would count each copy of a weight that several stages share; no model that is clipped has one.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, max_norm: float) -> None:
        super().__init__(parameters, lr=lr)
        self.max_norm = max_norm
        self.over: Callable[[torch.Tensor], torch.Tensor] = lambda squares: squares

    def step(self, closure: Any = None) -> Any:
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in held])
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        norm = self.over(norm**2).sqrt()
        torch.nn.utils.clip_grads_with_norm_(held, self.max_norm, norm)
        return super().step(closure)


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


@dataclass
class Workload:
    """A model with its data, loss and optimiser, on one rank's device."""

    model: nn.Module
    loss: Callable[[nn.Module, Batch], torch.Tensor]  # scalar mean over the batch it is given, in the trial's precision
    optimizer: Make  # the published one; of parameters, or groups of them
    batches: Feed  # endless; this rank's shard, in a new order each epoch
    samples_per_step: int  # of this rank
    steps_per_epoch: int
    data_source: str  # "cifar10" or "synthetic (why)"
    sample: str = "image"  # what one sample is, in a report's words
    tokens: Callable[[Batch], int | torch.Tensor] | None = None  # real ones of a batch; a tensor: no sync
    blocks: tuple[type[nn.Module], ...] = ()  # the layers that a sharded framework wraps one by one (F24)
    chain: Callable[[nn.Module], Chain] | None = None  # the model, layer by layer, for what cuts it into stages
    scales_rate: bool = True  # its own learning rate is multiplied by workers, which a training to a result takes back
    reshuffles: bool = True  # every epoch reads the samples in a new order; text is read as it runs
    loss_parts: LossParts | None = None  # of a loss that is a sum: what each part of it is, noted by `loss`
    parts: tuple[str, ...] = ()  # of the model, by the first words of its weights' names: groups of the optimiser
    grouped: Callable[[Iterable[nn.Parameter]], Iterable[Any]] = iter  # parameters as `optimizer` has them, in groups
    frozen: str = ""  # which of them is not trained, as the trial asks
    weights: Mapping[str, Any] = field(default_factory=dict)  # of the file that it begins with (weights.py)
    padding: int = 0  # weights that fill a matrix up to a size: zeros that stay zero, and are not counted
    notes: list[str] = field(default_factory=list)
    accumulation: int = 1
    held_out: HeldOut | None = None  # what it is evaluated on; None: it can only be timed
    forward_flops_per_sample: float | None = None  # None: not counted
    parameters: int = field(init=False)
    parameters_all: int = field(init=False)
    part_sizes: Mapping[str, int] = field(init=False)  # of each of `parts`, in parameters

    def __post_init__(self) -> None:
        # Trainable ones, counted and not assumed: a ResNet-18 under the name of a ResNet-50 shows (F5). Counted
        # before any framework wraps the model: behind some wrappers a rank sees its own shard only.
        self.parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad) - self.padding
        self.parameters_all = sum(p.numel() for p in self.model.parameters()) - self.padding
        sizes = dict.fromkeys(self.parts, 0)
        for name, parameter in self.model.named_parameters() if self.parts else ():
            sizes[name.partition(".")[0]] += parameter.numel()
        self.part_sizes = sizes

    @classmethod
    def of(
        cls,
        trial: Trial,
        data: Data,
        model: nn.Module,
        loss: Callable[[nn.Module, Batch], torch.Tensor],
        optimizer: Make,
        notes: Iterable[str] = (),
        **others: Any,
    ) -> Workload:
        """A workload that trains on `data`, by the fields that follow from it; `notes` come after those of the data."""
        return cls(
            model=model,
            loss=loss,
            optimizer=optimizer,
            batches=data.feed,
            samples_per_step=trial.batch_per_worker,
            steps_per_epoch=data.steps_per_epoch,
            data_source=data.source,
            held_out=data.held_out,
            notes=[*data.notes, *notes],
            **others,
        )

    def samples_in(self, batch: Batch) -> int:
        """The samples that a batch really holds; 0 on a pipeline's ranks that leave counting to the last stage."""
        return len(batch[0]) if self.samples_per_step else 0

    def micro_batches(self, batch: Batch) -> Iterator[tuple[Batch, bool]]:
        """(micro-batch, whether it is the step's last) for each of `accumulation` equal parts of a batch."""
        if self.accumulation == 1:
            yield batch, True
            return
        parts = zip(*(tensor.chunk(self.accumulation) for tensor in batch), strict=True)
        for index, part in enumerate(parts, start=1):
            yield part, index == self.accumulation

    def share(self, model: nn.Module, micro_batch: Batch) -> torch.Tensor:
        """A micro-batch's share of the loss of its batch: the shares of a step sum up to the batch's mean."""
        loss = self.loss(model, micro_batch)
        return loss if self.accumulation == 1 else loss / self.accumulation


def autocast(device: torch.device, precision: str) -> Any:
    """The context in which forward and loss compute at `precision` (fp32, fp64: as they are)."""
    return torch.autocast(device.type, dtype=DTYPES[precision], enabled=precision in ("bf16", "fp16"))


def weights_dtype(trial: Trial) -> torch.dtype:
    """The dtype of weights and of images before autocast."""
    return torch.float64 if trial.precision == "fp64" else torch.float32


def memory_layout(trial: Trial) -> torch.memory_format:
    return torch.channels_last if trial.memory_format == "channels_last" else torch.contiguous_format


CrossEntropy = Callable[..., torch.Tensor]  # (scores, targets, label_smoothing=) -> scalar mean


def classifier_loss(
    trial: Trial, ranks: Ranks, cross_entropy: CrossEntropy = F.cross_entropy
) -> Callable[[nn.Module, Batch], torch.Tensor]:
    """Mean cross-entropy of a model's scores for (inputs, targets), in the trial's precision and label smoothing."""
    smoothing = trial.train_label_smoothing or 0.0

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        inputs, targets = batch
        with autocast(ranks.device, trial.precision):
            return cross_entropy(model(inputs), targets, label_smoothing=smoothing)

    return loss


def classifier_chain(
    trial: Trial,
    layers: Callable[[Any], Mapping[str, nn.Module]] = lambda model: dict(model.named_children()),
    inputs: Callable[[Batch], torch.Tensor] = first,
    cross_entropy: CrossEntropy = F.cross_entropy,
) -> Callable[[nn.Module], Chain]:
    """`Workload.chain` of a model with classifier_loss(). `layers`: its own, by name; else its children."""
    loss = partial(cross_entropy, label_smoothing=trial.train_label_smoothing or 0.0)
    return lambda model: Chain(layers(model), inputs, loss=loss)


def with_loss(model: nn.Module, loss: Loss) -> Loss:
    """The same loss, computed within a call of the model: what compiles that compiles both. `model` changes in place.

    Called with inputs alone, the model gives scores as before. The scores of a compiled loss are intermediate results:
    torch writes their gradients over them, and makes no copy in fp32 of scores in 16 bits.
    """
    kind: Any = type(model)

    class WithLoss(kind):
        def forward(self, *inputs: Any, of: Batch | None = None, **named: Any) -> Any:
            if of is None:
                return kind.forward(self, *inputs, **named)
            return loss(lambda *inputs, **named: kind.forward(self, *inputs, **named), of)

    WithLoss.__name__, WithLoss.__qualname__ = kind.__name__, kind.__qualname__
    model.__class__ = WithLoss
    return lambda model, batch: model(of=batch)


# Operations of torch.ops whose results `checkpoint: selective` keeps: products of matrices, attention, and collectives,
# which all ranks would else call again.
KEPT: Mapping[str, tuple[str, ...]] = {
    "aten": (
        *("mm", "addmm", "bmm", "baddbmm"),
        *(f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn")),
        "_scaled_dot_product_flash_attention_for_cpu",
    ),
    "_c10d_functional": ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"),
}


def checkpointed(model: nn.Module, blocks: tuple[type[nn.Module], ...], kind: str) -> None:
    """Have each block drop what it computes and compute it again in backward; `model` changes in place.

        block       keeps each block's input                          Chen et al., arXiv 1604.06174
        selective   also the results of KEPT within it; what is cheap is computed again

    Losses and gradients stay as they are, to the bit: random numbers are drawn again too. Raises SystemExit for blocks
    that cannot be computed twice: BatchNorm would count a batch again.
    """
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    settings: dict[str, Any] = {"use_reentrant": False}
    if kind == "selective":
        known = [(getattr(torch.ops, library), name) for library, names in KEPT.items() for name in names]
        kept = [getattr(library, name).default for library, name in known if hasattr(library, name)]
        contexts = partial(create_selective_checkpoint_contexts, kept)
        settings |= {"context_fn": contexts, "respect_saved_tensors_hooks": True}  # so that their memory is counted

    def again(of: Any) -> Any:
        class Again(of):
            def forward(self, *inputs: Any, **named: Any) -> Any:
                return checkpoint(super().forward, *inputs, **settings, **named)

        Again.__name__, Again.__qualname__ = of.__name__, of.__qualname__
        return Again

    found = [module for module in model.modules() if isinstance(module, blocks)]
    if not found or any(isinstance(part, _BatchNorm) for block in found for part in block.modules()):
        raise SystemExit(f"this model has no blocks to compute again: leave checkpoint={kind} out")
    classes = {of: again(of) for of in {type(block) for block in found}}
    for block in found:
        block.__class__ = classes[type(block)]
