"""Any classifier of timm on CIFAR-10, resized on the device to the side that the model wants.             [torch]

    model            what it is                                                          side   parameters
    timm:NAME        timm's model of that name, with 10 classes                           its own
                     timm:vit_base_patch32_224, which the published study trained           224   87,462,922
    timm_vit_tiny    its VisionTransformer: patch 8, width 96, depth 2, 3 heads              32      245,098   for tests

Weights are random, or of a file (weights.py); no hub is ever asked. Images have the mean and deviation that the model
was trained with, where timm knows them. Published: Adam at 1e-3, the same for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from scaling_study.errors import first_line
from scaling_study.models import CLASSES, TIMM
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10, weights
from scaling_study.workloads.feed import Batch
from scaling_study.workloads.images import image_data, laid_out
from scaling_study.workloads.resnet_cifar10 import convolved_on
from scaling_study.workloads.workload import Workload, classifier_chain, classifier_loss, memory_layout, weights_dtype


def chain_of(model: Any) -> dict[str, nn.Module]:
    """timm's vision transformer as layers by name, in order, which hold its own parameters.

        images --patches, class token, positions--> (b, 1 + patches, width) --blocks--> norm, class token, linear

    Empty for a model that computes otherwise than Embedding and Head do.
    """
    from timm.models.vision_transformer import VisionTransformer

    plain = type(model) is VisionTransformer and model.cls_token is not None and model.pos_embed is not None
    if not plain or model.reg_token is not None or model.no_embed_class or model.dynamic_img_size:
        return {}
    if model.attn_pool is not None or model.global_pool != "token":
        return {}
    blocks = {f"block{number}": block for number, block in enumerate(model.blocks, start=1)}
    return {"embedding": Embedding(model), **blocks, "head": Head(model)}


class Embedding(nn.Module):
    """(b, 3, side, side) images -> (b, 1 + patches, width)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.patch_embed, self.cls_token, self.pos_embed = model.patch_embed, model.cls_token, model.pos_embed
        self.after = nn.Sequential(model.pos_drop, model.patch_drop, model.norm_pre)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patch_embed(images)
        tokens = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1) + self.pos_embed
        return self.after(tokens)  # type: ignore[no-any-return]


class Head(nn.Module):
    """(b, 1 + patches, width) -> (b, classes), of the class token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.norm, self.after = model.norm, nn.Sequential(model.fc_norm, model.head_drop, model.head)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.after(self.norm(tokens)[:, 0])  # type: ignore[no-any-return]


LEARNING_RATE = 1e-3  # not x workers
TINY: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 96, "depth": 2, "num_heads": 3}
OF_VITS = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "classifier": "head"}


def load(trial: Trial, ranks: Ranks) -> Workload:
    """Model and data on this rank's device; the same weights on every rank. Raises SystemExit."""
    model, side = network(trial.model, trial.image_size, trial.classes or CLASSES)
    about = {**OF_VITS, **(getattr(model, "pretrained_cfg", None) or {})}
    begun = weights.load(model, trial.weights, about["classifier"], trial.model) if trial.weights else {}
    layout, dtype = memory_layout(trial), weights_dtype(trial)
    rate = trial.learning_rate or LEARNING_RATE
    renormalised = renormalising(about["mean"], about["std"], ranks.device)
    data = image_data(trial, ranks, lambda batch: laid_out(renormalised(batch), side, layout, dtype))
    return Workload.of(
        trial,
        data,
        model=model.to(ranks.device).to(memory_format=layout),
        loss=classifier_loss(trial, ranks),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=rate),
        blocks=blocks(model),
        scales_rate=False,
        chain=classifier_chain(trial, chain_of) if chain_of(model) else None,
        weights=begun,
        notes=[*convolved_on(ranks.device), *weights.notes(begun)],
    )


def network(name: str, image_size: int | None = None, classes: int = CLASSES) -> tuple[nn.Module, int]:
    """(an untrained model, the side of its images in pixels). Raises SystemExit."""
    import timm  # seconds: only for its own models

    if not name.startswith(TIMM):
        from timm.models.vision_transformer import VisionTransformer

        side = image_size or TINY["img_size"]
        if side % TINY["patch_size"]:
            raise SystemExit(f"--model {name}: image size {side}: it must be a multiple of {TINY['patch_size']}")
        return VisionTransformer(**{**TINY, "img_size": side}, num_classes=classes), side
    asked = name.removeprefix(TIMM)
    try:
        about = timm.get_pretrained_cfg(asked) or timm.get_pretrained_cfg(asked.partition(".")[0])
        own: int = about.input_size[-1] if about else 224
        side = image_size or own
        fixed: dict[str, Any] = {"img_size": side} if about and about.fixed_input_size and side != own else {}
        model = timm.create_model(asked, pretrained=False, num_classes=classes, **fixed)
        takes(model, side, classes)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        sized = f" --image-size {image_size}" if image_size else ""
        raise SystemExit(f"--model {name}{sized}: {first_line(error)}") from error
    return model, side


def takes(model: nn.Module, side: int, classes: int = CLASSES) -> None:
    """Raises ValueError, or what the model raises, where it makes no row of logits of an image of this side."""
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", 1)
    patch = patch if isinstance(patch, int) else max(patch)
    if side % patch:  # timm would leave the rest of the image unseen
        raise ValueError(f"image size {side}: it must be a multiple of {patch}, the side of a patch")
    model.eval()
    with torch.no_grad(), torch.random.fork_rng():
        logits = model(torch.zeros(1, 3, side, side, device=next(model.parameters()).device))
    model.train()
    if not isinstance(logits, torch.Tensor) or logits.shape != (1, classes):
        raise ValueError("it is no classifier: of an image it makes something else than a row of logits")


def renormalising(mean: Any, std: Any, device: torch.device) -> Callable[[Batch], Batch]:
    """Images without CIFAR-10's usual mean and deviation -> the same without those that a model wants."""
    ours, theirs = ((torch.tensor(m), torch.tensor(s)) for m, s in ((cifar10.MEAN, cifar10.STD), (mean, std)))
    scale, shift = (
        value.view(1, 3, 1, 1).to(device) for value in (ours[1] / theirs[1], (ours[0] - theirs[0]) / theirs[1])
    )
    return lambda batch: (torch.addcmul(shift, batch[0], scale), batch[1])


def blocks(model: nn.Module) -> tuple[type[nn.Module], ...]:
    """The kinds of layers that stand in a row in it, and have no such layer in them: timm names no others as blocks."""
    rows = [module for module in model.modules() if isinstance(module, nn.Sequential | nn.ModuleList)]
    layers = [layer for row in rows for layer in row if type(layer).__module__.startswith("timm.models.")]
    kinds = {type(layer) for layer in layers if next(layer.parameters(), None) is not None}
    holding = {type(layer) for layer in layers if kinds & {type(inner) for inner in [*layer.modules()][1:]}}
    return tuple(sorted(kinds - holding, key=lambda kind: kind.__name__))
