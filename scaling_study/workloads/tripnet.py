"""Tripnets on operations, frame by frame: instrument, verb, target, and their triplet.                      [torch]

    model                        backbone                  parameters at 256 x 448
    tripnet_resnet18             ResNet-18                 12,261,330
    tripnet_resnet50, tripnet_squeezenet, tripnet_mobilenet_v2, tripnet_efficientnet_lite0    (backbones.py)

The loss is the sum of four: binary cross-entropy with logits of each head, mean over its classes. Each head's own mean
is in every row of a training, as loss_i, loss_v, loss_t, loss_ivt. Frames are `image_size` pixels high (256), and 7/4
as wide unless `image_width` says otherwise. Weights are random, or ImageNet's, or a file's (`weights`).

Published: learning rates of 0 for the backbone and the instrument head, unless one gave others (F11): two frozen
networks were compared. Ours: Adam at 1e-3, the same for any number of workers; `freeze: backbone` says what does not
train.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from scaling_study.parts import BACKBONE, PARTS
from scaling_study.ranks import Ranks
from scaling_study.targets import HEADS
from scaling_study.trial import Trial
from scaling_study.workloads import average_precision, backbones, weights
from scaling_study.workloads.feed import Batch
from scaling_study.workloads.frozen_features import FrozenFeatures
from scaling_study.workloads.held_out import HeldOut
from scaling_study.workloads.loss_parts import LossParts
from scaling_study.workloads.resnet_cifar10 import on_this_gpu
from scaling_study.workloads.surgical_data import SurgicalData, surgical_data
from scaling_study.workloads.surgical_scenes.triplets import TRIPLETS
from scaling_study.workloads.trained_images import origins
from scaling_study.workloads.tripnet_model import Guided, Instrument, Triplet, Tripnet
from scaling_study.workloads.workload import Workload, autocast

HEIGHT, WIDER = 256, 7 / 4  # pixels; published were 256 x 448
LEARNING_RATE = 1e-3  # not x workers
LOSSES = tuple(name.replace("ap_", "loss_") for name in HEADS)
EVALUATED_AT_ONCE = 64  # frames of a rank
Shaped = Callable[[torch.Tensor, Callable[[torch.Tensor], Batch]], Batch]  # ids, and who reads them -> a batch


def load(trial: Trial, ranks: Ranks) -> Workload:
    """Model and data on this rank's device; the same weights on every rank. Raises SystemExit."""
    height = trial.image_size or HEIGHT
    width = trial.image_width or round(WIDER * height)
    name, frozen = trial.model.removeprefix(backbones.PREFIX), trial.freeze == BACKBONE
    network = backbones.backbone(name, height)
    try:
        places = backbones.places(network.layers, height, width)
    except ValueError as error:
        raise SystemExit(f"--model {trial.model}: {error}") from error
    begun = backbones.begin(network.layers, name, trial.weights) if trial.weights else {}
    layout = torch.channels_last if trial.memory_format == "channels_last" else torch.contiguous_format
    dtype = torch.float64 if trial.precision == "fp64" else torch.float32
    rate = trial.learning_rate or LEARNING_RATE
    data = surgical_data(trial, ranks, height, width, normalising(network.pixels, ranks.device, dtype, layout))
    triplets = torch.tensor(TRIPLETS) if data.surgery is None else torch.from_numpy(data.surgery.triplets)
    model = Tripnet(network.layers, network.channels, places, triplets, frozen)
    model = model.to(ranks.device).to(memory_format=layout)
    torch.backends.cudnn.benchmark = True  # shapes never change: let cuDNN try its algorithms in the warm-up
    parts = LossParts(LOSSES)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, labels = batch[:2]  # frames (b, 3, height, width), or features; (b, 131) float32
        with autocast(ranks.device, trial.precision):
            logits = model(x)
        each = average_precision.losses(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels.to(dtype))
        own = each.mean(0)
        parts.note(own)
        return own.sum()

    shaped: Shaped = lambda ids, fetch: fetch(ids)  # noqa: E731
    if frozen and trial.trained:
        shaped = from_memory(data, FrozenFeatures(model.backbone.to(dtype), trial.precision, ranks))
    return Workload(
        model=model,
        loss=loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=rate),
        batches=data.feed,
        samples_per_step=trial.batch_per_worker,
        steps_per_epoch=data.steps_per_epoch,
        data_source=data.source,
        sample="frame",
        held_out=held_out(data, shaped, trial, ranks),
        blocks=(*network.blocks, Instrument, Guided, Triplet),
        scales_rate=False,
        weights=begun,
        loss_parts=parts,
        parts=PARTS,
        frozen=BACKBONE if frozen else "",
        notes=[*data.notes, *weights.notes(begun), *on_this_gpu(ranks.device)],
    )


def normalising(
    pixels: tuple[tuple[float, ...], tuple[float, ...]], device: torch.device, dtype: torch.dtype,
    layout: torch.memory_format,
) -> Callable[[torch.Tensor], torch.Tensor]:  # fmt: skip
    """(b, 3, height, width) uint8 -> the same less a mean, over a deviation, as one multiply-add."""
    mean, deviation = (torch.tensor(values, dtype=dtype).view(1, 3, 1, 1) for values in pixels)
    shift, scale = (-mean / deviation).to(device), (1 / deviation).to(device)
    return lambda frames: torch.addcmul(shift, frames.to(dtype=dtype, memory_format=layout), scale)


def from_memory(data: SurgicalData, features: FrozenFeatures) -> Shaped:
    """Let the feed hand out features of a frozen backbone; what is held out is read by what is returned."""
    feed, read, read_notes = data.feed, data.feed.fetch, data.feed.notes
    feed.fetch = lambda ids: features.batch(ids, read)
    feed.notes = lambda: [*read_notes(), *features.notes()]
    feed.computing = lambda: features.seconds
    return features.batch


def held_out(data: SurgicalData, shaped: Shaped, trial: Trial, ranks: Ranks) -> HeldOut | None:
    """What a training is evaluated on; None where nothing is trained to a result, and for random frames."""
    read = data.read
    if not trial.trained or data.surgery is None or data.splits is None or read is None:
        return None
    ids = {split: torch.from_numpy(data.splits.ids[split]) for split in ("validation", "test")}
    return average_precision.held_out(
        data.surgery, ids, lambda frames: shaped(frames, read), trial, ranks,
        published=origins(data.sizes), in_both=data.in_both, batch=EVALUATED_AT_ONCE,
    )  # fmt: skip
