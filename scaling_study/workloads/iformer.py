"""iFormer on images, as the published study trained it on CIFAR-10 at 224 pixels.                        [torch]

iformer_small is the paper's (inception_transformer.py): 19,485,194 parameters with CIFAR-10's 10 classes. The head is
as wide as the tree of images has classes, and the position embeddings as large as the images: both show in the record's
number of parameters. iformer_tiny is the test size, seconds on a CPU.

Published: AdamW at 1e-3, the same for 1 GPU and for 4, whose global batch was four times as large (F13): 128 images a
GPU in both. Weights from scratch, no drop path, no augmentation.

Between LayerNorms maps lie channels-last in memory, whatever `memory_format` says: it decides for the images, for the
stem and for the weights. With contiguous weights DDP warns of gradients whose strides are not its buckets'.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import images
from scaling_study.workloads.chain import Chain
from scaling_study.workloads.feed import Batch
from scaling_study.workloads.inception_transformer import SMALL, TINY, Block, InceptionTransformer
from scaling_study.workloads.resnet_cifar10 import on_this_gpu
from scaling_study.workloads.sampling import steps_per_epoch
from scaling_study.workloads.workload import Workload, autocast

LEARNING_RATE, BETAS, WEIGHT_DECAY = 1e-3, (0.9, 0.999), 0.01  # published: not x workers
MODELS = {"iformer_small": (SMALL, 224), "iformer_tiny": (TINY, 64)}  # stages, side of the images in pixels


def load(trial: Trial, ranks: Ranks) -> Workload:
    """Model and data on this rank's device; the same weights on every rank. Raises SystemExit."""
    stages, own_side = MODELS[trial.model]
    side = trial.image_size or own_side
    data = images.source(trial, ranks, side)
    try:
        model = InceptionTransformer(stages, data.classes, side)
    except ValueError as error:
        raise SystemExit(f"--model {trial.model}: {error}") from error
    layout = torch.channels_last if trial.memory_format == "channels_last" else torch.contiguous_format
    dtype = torch.float64 if trial.precision == "fp64" else torch.float32
    rate = trial.learning_rate or LEARNING_RATE
    torch.backends.cudnn.benchmark = True  # shapes never change: let cuDNN try its algorithms in the warm-up

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        pixels, labels = batch  # (batch_per_worker, 3, side, side), (batch_per_worker,) int64
        with autocast(ranks.device, trial.precision):
            return F.cross_entropy(model(pixels), labels)

    fetch = data.feed.fetch

    def shaped(ids: torch.Tensor) -> Batch:
        pixels, labels = fetch(ids)
        return pixels.to(dtype=dtype, memory_format=layout), labels

    data.feed.fetch = shaped
    return Workload(
        model=model.to(ranks.device).to(memory_format=layout),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=rate, betas=BETAS, weight_decay=WEIGHT_DECAY),
        batches=data.feed,
        samples_per_step=trial.batch_per_worker,
        steps_per_epoch=steps_per_epoch(data.samples, ranks.world_size, trial.batch_per_worker),
        data_source=data.name,
        blocks=(Block,),
        scales_rate=False,
        chain=chain,
        notes=[*data.notes, *on_this_gpu(ranks.device)],
    )


def chain(model: nn.Module) -> Chain:
    """Stem, blocks, what halves the side between stages, head: the model is a Sequential of just these."""
    return Chain(
        layers=dict(model.named_children()),
        inputs=lambda batch: batch[0],
        target=lambda batch: batch[1],
        loss=F.cross_entropy,
    )
