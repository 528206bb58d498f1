"""A vision transformer for small data sets on CIFAR-10, as the published DeepSpeed study had it.            [torch]

    model                     patch  width  depth  heads  MLP   parameters
    vit_small_dataset           4     512     4      6    256    4,371,438
    vit_small_dataset_tiny      8     128     2      2    128      327,180    for tests

The network is in small_vision_transformer.py: no BatchNorm and no pooling, so that no sample sees another's and a
rounding stays one. Dropout 0.1 unless the trial says otherwise, none where parity is asked for.

Published: AdamW with betas 0.8 and 0.999 and weight decay 3e-7 at 1e-4, the same for any number of workers (F19), from
which a one-cycle schedule went to 4e-3: studies/cifar10deepspeed.yaml asks for that with `train`.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10
from scaling_study.workloads.chain import Chain
from scaling_study.workloads.feed import Batch
from scaling_study.workloads.resnet_cifar10 import image_data, laid_out
from scaling_study.workloads.small_vision_transformer import SMALL, TINY, Block, SmallVisionTransformer
from scaling_study.workloads.workload import Workload, autocast

SIZES = {"vit_small_dataset": SMALL, "vit_small_dataset_tiny": TINY}
DROPOUT = 0.1
LEARNING_RATE, BETAS, WEIGHT_DECAY = 1e-4, (0.8, 0.999), 3e-7  # the rate not x workers


def load(trial: Trial, ranks: Ranks) -> Workload:
    """Model and data on this rank's device; the same weights on every rank. Raises SystemExit."""
    side = trial.image_size or cifar10.SIDE
    asked = DROPOUT if trial.dropout is None else trial.dropout
    dropout = 0.0 if trial.find == "parity" else asked  # nothing random in what is compared
    try:
        model = SmallVisionTransformer(SIZES[trial.model], cifar10.CLASSES, side, dropout)
    except ValueError as error:
        raise SystemExit(f"--model {trial.model}: {error}") from error
    rate = trial.learning_rate or LEARNING_RATE
    dtype = torch.float64 if trial.precision == "fp64" else torch.float32

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        images, labels = batch  # (batch_per_worker, 3, side, side) float32, (batch_per_worker,) int64
        with autocast(ranks.device, trial.precision):
            return F.cross_entropy(model(images), labels, label_smoothing=trial.train_label_smoothing or 0.0)

    data = image_data(trial, ranks, lambda batch: laid_out(batch, side, torch.contiguous_format, dtype))
    return Workload(
        model=model.to(ranks.device),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=rate, betas=BETAS, weight_decay=WEIGHT_DECAY),
        batches=data.feed,
        samples_per_step=trial.batch_per_worker,
        steps_per_epoch=data.steps_per_epoch,
        data_source=data.source,
        held_out=data.held_out,
        blocks=(Block,),
        scales_rate=False,
        chain=lambda model: chain(model, trial.train_label_smoothing or 0.0),
    )


def chain(model: nn.Module, label_smoothing: float = 0.0) -> Chain:
    """Embedding, blocks, head: the model is a Sequential of just these."""
    return Chain(
        layers=dict(model.named_children()),
        inputs=lambda batch: batch[0],
        target=lambda batch: batch[1],
        loss=partial(F.cross_entropy, label_smoothing=label_smoothing),
    )
