"""Tripnets on operations, frame by frame: instrument, verb, target, and their triplet.                      [torch]

    frames (b, 3, height, width)
      | backbone                features (b, channels, h, w)
      |   instrument            class maps (b, 6, h, w) --global max--> (b, 6)      where it looks: weakly supervised
      |   verb, target          features and class maps -> (b, 10), (b, 15)         guided by where the instruments are
      |   triplet               a matrix for each, outer product (6, 10, 15), its 100 valid entries -> (b, 100)
      v
    logits (b, 131): instrument, verb, target, triplet

    backbone             channels   features of 256 x 448   pixels                   weights: imagenet
    resnet18, resnet50   512, 2048  8 x 14                  ImageNet's mean and      torchvision's (version 1), in
    squeezenet           512        15 x 27                 deviation                DATA_ROOT/weights
    mobilenet_v2         320        8 x 14
    efficientnet_lite0   320        8 x 14                  (x - 127) / 128          an installed package

Nwoye et al., MICCAI 2020 (arXiv 2007.05405); tripnet_resnet18 has 12,261,330 parameters at 256 x 448, and verb and
target heads as large as the frames. The loss is the sum of four: binary cross-entropy with logits of each head, mean
over its classes. Layers that no head reads are not there: DDP and Horovod would wait for their gradients. With frames
of less than 256 pixels the last halving is left out, so that maps stay fine (SqueezeNet has one less anyway).

Published: learning rates of 0 for the backbone and the instrument head, unless one gave others (F11). Ours: Adam at
1e-3, the same for any number of workers; `freeze: backbone` says what does not train.
"""

from __future__ import annotations

import copy
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from scaling_study.errors import first_line
from scaling_study.models import BACKBONE, IMAGENET, PARTS
from scaling_study.ranks import Ranks
from scaling_study.targets import HEADS
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10, efficientnet_lite0, metrics, weights
from scaling_study.workloads.efficientnet_lite0 import EfficientNetLite0
from scaling_study.workloads.feed import Batch, HeldOut
from scaling_study.workloads.held_out import origins
from scaling_study.workloads.resnet_cifar10 import convolved_on
from scaling_study.workloads.surgical_data import SurgicalData, surgical_data
from scaling_study.workloads.surgical_scenes.triplets import TRIPLETS
from scaling_study.workloads.weights import LITE0, PREFIX, TORCHVISION
from scaling_study.workloads.workload import LossParts, Workload, autocast, memory_layout, weights_dtype

INSTRUMENTS, VERBS, TARGETS, VALID_TRIPLETS = 6, 10, 15, 100
SIZES = (INSTRUMENTS, VERBS, TARGETS, VALID_TRIPLETS)  # columns of logits and labels
WIDTH = 64  # channels inside a head


class Instrument(nn.Module):
    """Class maps of the instruments: (b, channels, h, w) -> (b, 6, h, w)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, WIDTH, 3, padding=1),
            nn.BatchNorm2d(WIDTH),
            nn.ELU(),
            nn.Conv2d(WIDTH, INSTRUMENTS, 1),
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layers(features)  # type: ignore[no-any-return]


class Guided(nn.Module):
    """Verbs, or targets: (b, channels, h, w) and the instruments' class maps (b, 6, h, w) -> (b, classes)."""

    def __init__(self, channels: int, places: int, classes: int) -> None:
        super().__init__()
        self.context = nn.Conv2d(channels, WIDTH, 3, padding=1)
        self.layers = nn.Sequential(
            nn.BatchNorm2d(WIDTH + INSTRUMENTS),
            nn.ELU(),
            nn.Conv2d(WIDTH + INSTRUMENTS, WIDTH, 1),
            nn.BatchNorm2d(WIDTH),
            nn.ELU(),
            nn.Flatten(),
            nn.Linear(WIDTH * places, classes),
        )

    def forward(self, features: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([self.context(features), maps], dim=1))  # type: ignore[no-any-return]


class Triplet(nn.Module):
    """Triplets from the scores of their components: (b, 6), (b, 10), (b, 15) -> (b, 100)."""

    valid: torch.Tensor

    def __init__(self, triplets: torch.Tensor, normalised: bool = True) -> None:
        super().__init__()
        sizes = SIZES[:3]
        self.matrices = nn.ParameterList(nn.Parameter(torch.randn(size, size) * size**-0.5) for size in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) if normalised else nn.Identity() for size in sizes)
        self.linear = nn.Linear(VALID_TRIPLETS, VALID_TRIPLETS)
        instruments, verbs, targets = triplets.T
        self.register_buffer("valid", (instruments * VERBS + verbs) * TARGETS + targets)  # (100,) places in the product

    def forward(self, *scores: torch.Tensor) -> torch.Tensor:
        projected = (
            norm(score @ matrix) for norm, score, matrix in zip(self.norms, scores, self.matrices, strict=True)
        )
        product = torch.einsum("bi,bv,bt->bivt", *projected).flatten(1)
        return self.linear(product[:, self.valid])  # type: ignore[no-any-return]


class Tripnet(nn.Module):
    """A backbone and the four heads. `triplets`: (100, 3) int64, instrument, verb and target of each. `frozen`: the
    backbone is not trained."""

    def __init__(
        self,
        backbone: nn.Module,
        channels: int,
        places: int,
        triplets: torch.Tensor,
        frozen: bool = False,
        normalised: bool = True,
    ) -> None:
        """`places`: of a map, h x w. `normalised`: the components' projected scores are, before their product."""
        super().__init__()
        self.backbone = backbone
        self.instrument = Instrument(channels)
        self.verb = Guided(channels, places, VERBS)
        self.target = Guided(channels, places, TARGETS)
        self.triplet = Triplet(triplets, normalised)
        self.frozen = frozen
        if frozen:
            backbone.requires_grad_(False)
            self.train()

    def train(self, mode: bool = True) -> Tripnet:
        """A frozen backbone stays in evaluation: BatchNorm's statistics are weights too."""
        super().train(mode)
        self.backbone.train(mode and not self.frozen)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Frames (b, 3, height, width), or the features (b, channels, h, w) of a frozen backbone -> (b, 131) logits."""
        features = self.features(x)
        maps = self.instrument(features)
        instrument = maps.amax(dim=(2, 3))
        verb, target = self.verb(features, maps), self.target(features, maps)
        return torch.cat([instrument, verb, target, self.triplet(instrument, verb, target)], dim=1)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """The backbone's features of frames; features stay as they are."""
        if x.shape[1] != 3:
            return x
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return self.backbone(x)  # type: ignore[no-any-return]

    def class_maps(self, x: torch.Tensor) -> torch.Tensor:
        """Frames, or features -> (b, 6, h, w) logits of the instrument head before its global maximum."""
        return self.instrument(self.features(x))  # type: ignore[no-any-return]


FINE_BELOW = 256  # pixels of a frame's height
UNCOUNTED = "num_batches_tracked"  # of BatchNorm: older files have none, and nothing reads it
OF_IMAGENET = (tuple(255 * value for value in cifar10.MEAN), tuple(255 * value for value in cifar10.STD))
OF_LITE0 = ((efficientnet_lite0.MEAN,) * 3, (efficientnet_lite0.DEVIATION,) * 3)


@dataclass(frozen=True)
class Backbone:
    """Untrained layers, and the pixels that they want."""

    layers: nn.Module  # (b, 3, height, width) -> (b, channels, h, w)
    channels: int
    blocks: tuple[type[nn.Module], ...]  # what a sharded framework wraps one by one
    pixels: tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation of each channel, of values from 0 to 255


def backbone(name: str, height: int) -> Backbone:
    """The backbone for frames of this height in pixels; `name`: the model's, without `tripnet_`."""
    fine = height < FINE_BELOW
    if name == LITE0:
        whole = EfficientNetLite0(fine)
        layers = nn.Sequential(OrderedDict(stem=whole.stem, blocks=whole.blocks))
        return Backbone(layers, efficientnet_lite0.LAST, (efficientnet_lite0.Block,), OF_LITE0)
    from torchvision import models
    from torchvision.models.mobilenetv2 import InvertedResidual
    from torchvision.models.resnet import BasicBlock, Bottleneck
    from torchvision.models.squeezenet import Fire

    network = models.get_model(TORCHVISION[name], weights=None)
    if name == "squeezenet":
        return Backbone(nn.Sequential(OrderedDict(features=network.features)), 512, (Fire,), OF_IMAGENET)
    if name == "mobilenet_v2":
        if fine:
            _not_halving(network.features[14])
        return Backbone(
            nn.Sequential(OrderedDict(features=network.features[:-1])), 320, (InvertedResidual,), OF_IMAGENET
        )
    if fine:
        _not_halving(network.layer4)
    kept = OrderedDict((part, layer) for part, layer in network.named_children() if part not in ("avgpool", "fc"))
    return Backbone(nn.Sequential(kept), network.fc.in_features, (BasicBlock, Bottleneck), OF_IMAGENET)


def _not_halving(layers: nn.Module) -> None:
    for layer in layers.modules():
        if isinstance(layer, nn.Conv2d):
            layer.stride = (1, 1)


def places_of_map(layers: nn.Module, height: int, width: int) -> int:
    """The places in the map of a frame, h x w. Raises ValueError where a frame is too small."""
    layers.eval()
    try:
        with torch.no_grad():
            features: torch.Tensor = layers(torch.zeros(1, 3, height, width))
    except RuntimeError as error:
        raise ValueError(f"frames of {height} x {width} pixels are too small: {first_line(error)}") from error
    layers.train()
    return features.shape[2] * features.shape[3]


def begin(layers: nn.Module, name: str, asked: str) -> dict[str, Any]:
    """Put the weights that a trial asks for, `imagenet` or a file's, into a backbone; what the record says of them.

    A file has a backbone's weights by torchvision's names, or those of a whole Tripnet (best.pt of a training), of
    which the backbone is taken. Raises SystemExit where it is not there, or of another model.
    """
    path = weights.imagenet_file(name) if asked == IMAGENET else weights.path_of(asked)
    if not path.is_file():
        how = f"python -m scaling_study.workloads.weights {PREFIX}{name} fetches it" if asked == IMAGENET else ""
        raise SystemExit(f"--weights {asked}: there is no {path}" + (f"; {how}" if how else ""))
    read = weights.read(path, asked)
    if name == LITE0 and asked == IMAGENET:
        read = efficientnet_lite0.by_our_names(read)
    of_tripnet = {k.removeprefix(f"{BACKBONE}."): v for k, v in read.items() if k.startswith(f"{BACKBONE}.")}
    ours, theirs = layers.state_dict(), of_tripnet or {k: v for k, v in read.items() if not _dropped(name, k)}
    theirs.update({key: value for key, value in ours.items() if key.endswith(UNCOUNTED) and key not in theirs})
    weights.refuse_another(ours, theirs, asked, PREFIX + name)
    layers.load_state_dict(theirs)
    return {"file": asked, "sha256": weights.digest(path), "classifier": "left out"}


def _dropped(name: str, key: str) -> bool:
    """True for a weight of the classifier whose layer the backbone does not have."""
    last = {"mobilenet_v2": ("classifier.", "features.18."), LITE0: ("classifier.", "head.")}
    return key.startswith(last.get(name, ("fc.", "classifier.")))


MOST_BYTES = 4 * 2**30  # that a rank keeps; what is beyond is computed again in each epoch
AT_ONCE = 32  # frames


class FrozenFeatures:
    """Features of a backbone that is not trained: computed once a training, and read from memory afterwards.

        frames of ids --backbone, once--> features, kept by id      a batch whose ids are all kept reads no frame

    A trial that is timed has the backbone in every step. The backbone is a copy of the model's own, which sharded
    frameworks split up. The seconds are the training's, of steps; they are no waiting for data. Ids name frames of all
    splits.
    """

    def __init__(self, backbone: nn.Module, precision: str, ranks: Ranks) -> None:
        self.backbone = copy.deepcopy(backbone).eval()
        self.precision, self.ranks = precision, ranks
        self.kept: dict[int, torch.Tensor] = {}  # id -> (channels, h, w)
        self.rest: dict[int, Batch] = {}  # id -> the other tensors of its row
        self.bytes, self.computed, self.seconds = 0, 0, 0.0  # the second: frames, counted each time

    def batch(self, ids: torch.Tensor, fetch: Callable[[torch.Tensor], Batch]) -> Batch:
        """The batch of ids, with features in the place of frames. `fetch`: ids -> a batch whose first tensor are the
        frames, (b, 3, height, width), on the device."""
        numbers = ids.tolist()
        if all(number in self.kept for number in numbers):
            rows = [(self.kept[number], *self.rest[number]) for number in numbers]
            return tuple(torch.stack(column) for column in zip(*rows, strict=True))
        frames, *rest = fetch(ids)
        missing = [place for place, number in enumerate(numbers) if number not in self.kept]
        computed = dict(zip(missing, self.of(frames[missing]), strict=True))
        features = [computed[at] if at in computed else self.kept[number] for at, number in enumerate(numbers)]
        for place in missing:
            if self.bytes < MOST_BYTES and numbers[place] not in self.kept:
                self.kept[numbers[place]] = features[place].clone()
                self.rest[numbers[place]] = tuple(tensor[place] for tensor in rest)
                self.bytes += features[place].nbytes
        return torch.stack(features), *rest

    def of(self, frames: torch.Tensor) -> torch.Tensor:
        """Frames (b, 3, height, width) -> their features (b, channels, h, w)."""
        began = time.perf_counter()
        with torch.no_grad(), autocast(self.ranks.device, self.precision):
            features = torch.cat([self.backbone(some) for some in frames.split(AT_ONCE)])
        self.computed += len(frames)
        self.seconds += time.perf_counter() - began
        return features

    def notes(self) -> list[str]:
        again = self.computed - len(self.kept)
        more = f"; {again:,} times of frames that were not kept" if again else ""
        return [
            f"features of the frozen backbone: of {len(self.kept):,} frames, computed once in {self.seconds:.1f} s and "
            f"kept in {self.bytes / 2**20:,.0f} MiB of a rank{more}"
        ]


HEIGHT, WIDER = 256, 7 / 4  # pixels; published were 256 x 448
LEARNING_RATE = 1e-3  # not x workers
LOSSES = tuple(name.replace("ap_", "loss_") for name in HEADS)
EVALUATED_AT_ONCE = 64  # frames of a rank


def load(trial: Trial, ranks: Ranks) -> Workload:
    """Model and data on this rank's device; the same weights on every rank. Raises SystemExit."""
    height = trial.image_size or HEIGHT
    width = trial.image_width or round(WIDER * height)
    name, frozen = trial.model.removeprefix(PREFIX), trial.freeze == BACKBONE
    network = backbone(name, height)
    try:
        places = places_of_map(network.layers, height, width)
    except ValueError as error:
        raise SystemExit(f"--model {trial.model}: {error}") from error
    begun = begin(network.layers, name, trial.weights) if trial.weights else {}
    layout, dtype, rate = memory_layout(trial), weights_dtype(trial), trial.learning_rate or LEARNING_RATE
    data = surgical_data(trial, ranks, height, width, normalising(network.pixels, ranks.device, dtype, layout))
    triplets = torch.tensor(TRIPLETS) if data.surgery is None else torch.from_numpy(data.surgery.triplets)
    model = Tripnet(network.layers, network.channels, places, triplets, frozen)
    model = model.to(ranks.device).to(memory_format=layout)
    parts = LossParts(LOSSES)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, labels = batch[:2]  # frames (b, 3, height, width), or features; (b, 131) float32
        with autocast(ranks.device, trial.precision):
            logits = model(x)
        each = metrics.losses(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels.to(dtype))
        own = each.mean(0)
        parts.note(own)
        return own.sum()

    if frozen and trial.trained:
        data = from_memory(data, FrozenFeatures(model.backbone.to(dtype), trial.precision, ranks))
    return Workload.of(
        trial,
        replace(data, held_out=held_out(data, trial, ranks)),
        model=model,
        loss=loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=rate),
        sample="frame",
        blocks=(*network.blocks, Instrument, Guided, Triplet),
        scales_rate=False,
        weights=begun,
        loss_parts=parts,
        parts=PARTS,
        frozen=BACKBONE if frozen else "",
        notes=[*weights.notes(begun), *convolved_on(ranks.device)],
    )


def normalising(
    pixels: tuple[tuple[float, ...], tuple[float, ...]],
    device: torch.device,
    dtype: torch.dtype,
    layout: torch.memory_format,
) -> Callable[[torch.Tensor], torch.Tensor]:
    """(b, 3, height, width) uint8 -> the same less a mean, over a deviation, as one multiply-add."""
    mean, deviation = (torch.tensor(values, dtype=dtype).view(1, 3, 1, 1) for values in pixels)
    shift, scale = (-mean / deviation).to(device), (1 / deviation).to(device)
    return lambda frames: torch.addcmul(shift, frames.to(dtype=dtype, memory_format=layout), scale)


def from_memory(data: SurgicalData, features: FrozenFeatures) -> SurgicalData:
    """The data with features of a frozen backbone in the place of frames; its feed is changed in place."""
    feed, fetch, notes, read = data.feed, data.feed.fetch, data.feed.notes, data.read
    feed.fetch = lambda ids: features.batch(ids, fetch)
    feed.notes = lambda: [*notes(), *features.notes()]
    feed.computing = lambda: features.seconds
    return replace(data, read=lambda ids: features.batch(ids, read)) if read else data


def held_out(data: SurgicalData, trial: Trial, ranks: Ranks) -> HeldOut | None:
    """The frames that a training is evaluated on; None where nothing is trained to a result, and for random frames."""
    if not trial.trained or data.surgery is None or data.splits is None or data.read is None:
        return None
    ids = {split: torch.from_numpy(data.splits.ids[split]) for split in ("validation", "test")}
    return metrics.held_out(
        data.surgery,
        ids,
        data.read,
        trial,
        ranks,
        published=origins(data.sizes),
        in_both=data.in_both,
        batch=EVALUATED_AT_ONCE,
    )
