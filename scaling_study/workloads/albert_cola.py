"""ALBERT on CoLA: is a sentence acceptable English? As the published studies fine-tuned it.            [torch]

    (batch, 128) token ids --embed--> 128 wide --map--> 768 wide --12 x the same layer--> [CLS] --pool--> 2 logits

albert_base_v2 is transformers' AlbertForSequenceClassification: 11,685,122 parameters. One layer's 7.1 million weights
are used twelve times (Lan et al., arXiv 1909.11942): it computes like BERT-base and reduces a tenth of its gradients.

Published: sentences padded to 128 tokens, AdamW at 2e-5 x workers, batch 2 to 64. A sentence has some 11 tokens, so
most of what is computed is padding: `tokens` counts the real ones, `padding: dynamic` does without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import cola
from scaling_study.workloads.cola import trained_sentences
from scaling_study.workloads.feed import Batch, Data, Feed, Order, found, random_batches, to_train_on
from scaling_study.workloads.held_out import Logits
from scaling_study.workloads.workload import Chain, Workload, autocast


def chain(model: Any, label_smoothing: float = 0.0) -> Chain:
    """Embeddings, each repeat of the layer, head: transformers' forward in the same order.

    All layers read the mask of padding. All repeats are one layer with one set of weights: stages that hold some of the
    repeats each hold all its weights, and must train them as the one thing they are.
    """
    albert = model.albert
    (shared,) = albert.encoder.albert_layer_groups
    repeats = {f"layer.{number}": Repeat(shared) for number in range(model.config.num_hidden_layers)}
    return Chain(
        layers={
            "embeddings": Embeddings(albert.embeddings, albert.encoder.embedding_hidden_mapping_in),
            **repeats,
            "head": Head(albert.pooler, albert.pooler_activation, model.dropout, model.classifier),
        },
        target=lambda batch: batch[2],
        loss=partial(F.cross_entropy, label_smoothing=label_smoothing),
        extras=lambda batch: {"mask": as_attention_takes_it(batch[1])},
    )


def as_attention_takes_it(mask: torch.Tensor) -> torch.Tensor:
    """(batch, width) 1 for a token, 0 for padding -> (batch, 1, 1, width) bool, over all heads and queries.

    transformers would look at a flat one on the host, to see whether there is anything to mask: a wait for the GPU in
    every step, and less work where there is not. Of this shape it is taken as it is.
    """
    return mask[:, None, None, :].bool()


class Embeddings(nn.Module):
    """(b, width) token ids -> (b, width, hidden)."""

    def __init__(self, embeddings: nn.Module, mapping_in: nn.Module) -> None:
        super().__init__()
        self.embeddings, self.mapping_in = embeddings, mapping_in

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.mapping_in(self.embeddings(ids))  # type: ignore[no-any-return]


class Repeat(nn.Module):
    """(b, width, hidden) -> the same: one more pass through the layer that all repeats share."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.shared(x, mask)  # type: ignore[no-any-return]


class Head(nn.Module):
    """(b, width, hidden) -> (b, 2) logits, from the first token only."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layers(x[:, 0])  # type: ignore[no-any-return]


LEARNING_RATE = 2e-5  # published: x workers
SEQUENCE_LENGTH = 128  # published
POSITIONS = 512  # sentences can be no longer: each place has a learned vector

# All sizes are given: AlbertConfig() alone is xxlarge, of 223 million parameters.
SHAPE: dict[str, Any] = {
    "vocab_size": cola.VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "type_vocab_size": 2,
    "num_labels": cola.CLASSES,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "attn_implementation": "sdpa",
}
KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "embedding_size")
SIZES: dict[str, dict[str, Any]] = {
    "albert_base_v2": dict(zip(KEYS, (768, 12, 12, 3072, 128), strict=True)),
    "albert_tiny": dict(zip(KEYS, (64, 2, 2, 128, 32), strict=True)),
}
CLASSIFIER_DROPOUT = 0.1  # the only dropout that albert-base-v2 has


def load(trial: Trial, ranks: Ranks) -> Workload:
    width = trial.sequence_length or SEQUENCE_LENGTH
    if width > POSITIONS:
        raise SystemExit(f"--sequence-length {width}: ALBERT has {POSITIONS} positions")
    rate = trial.learning_rate or LEARNING_RATE * ranks.world_size
    smoothing = trial.train_label_smoothing or 0.0

    def logits(model: nn.Module, batch: Batch) -> torch.Tensor:
        ids, mask, _ = batch  # (batch_per_worker, width) int64 twice, (batch_per_worker,) int64
        with autocast(ranks.device, trial.precision):
            return model(ids, as_attention_takes_it(mask), return_dict=False)[0]  # type: ignore[no-any-return]

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        with autocast(ranks.device, trial.precision):
            return F.cross_entropy(logits(model, batch), batch[2], label_smoothing=smoothing)

    data = sentence_data(trial, ranks, width, logits)
    model, origin = network(trial, pretrained=cola.ITS_OWN in data.notes)  # or its ids mean nothing to them

    return Workload.of(
        trial,
        data,
        model=model.to(ranks.device),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=rate),
        sample="sentence",
        tokens=lambda batch: batch[1].sum(),
        blocks=blocks(),
        chain=partial(chain, label_smoothing=smoothing),
        notes=origin,
    )


def blocks() -> tuple[type[nn.Module], ...]:
    """The encoder as a whole: a sharded framework gathers its one layer once for all twelve repeats.

    Wrapped one by one, as the layers of other transformers are, the same weights would be gathered at each repeat.
    """
    from transformers.models.albert.modeling_albert import AlbertTransformer

    return (AlbertTransformer,)


def network(trial: Trial, pretrained: bool = False) -> tuple[nn.Module, list[str]]:
    """(the model, where its weights come from). `pretrained` ones are taken only where they lie on this machine.

    Attention is torch's scaled_dot_product_attention, transformers' own choice: it takes a mask of any kind and float64
    on every device (without a fused kernel for it, by the plain formula), so that parity can be shown.
    """
    from transformers.models.albert.configuration_albert import AlbertConfig
    from transformers.models.albert.modeling_albert import AlbertForSequenceClassification

    parity = trial.find == "parity"  # nothing random in what is compared
    dropout = 0.0 if parity else CLASSIFIER_DROPOUT
    config = AlbertConfig(**SHAPE, **SIZES[trial.model], classifier_dropout_prob=dropout)
    if pretrained and trial.model == "albert_base_v2" and not parity:
        for name in cola.PRETRAINED:
            try:
                model = AlbertForSequenceClassification.from_pretrained(
                    name, config=config, local_files_only=True, dtype=torch.float32
                )
            except OSError:
                continue
            return model.train(), ["weights of albert-base-v2, but for the classifier"]
    return AlbertForSequenceClassification(config), []


def sentence_data(trial: Trial, ranks: Ranks, width: int, logits: Logits) -> Data:
    """CoLA, or what stands in for it. `auto` falls back to synthetic data by name, never silently.

    Raises SystemExit where a training to a result has no real data.
    """
    if trial.trained:
        train, test = to_train_on(trial, lambda: (cola.sentences(), cola.development_sentences()))
        data = trained_sentences(train, test, width, logits, trial, ranks)
        return replace(data, notes=[*noted(train, width), *data.notes])
    padding = trial.padding or "fixed"
    order = Order(cola.SAMPLES, trial, ranks)
    sentences, source = found(trial, "cola", cola.sentences, "CoLA not found")
    if sentences is None:
        return Data(Feed(order, synthetic(trial, ranks, width, padding)), source, order.steps)
    feed = Feed(order, cola.gathered(sentences, ranks.device, width, padding))
    return Data(feed, source, order.steps, notes=noted(sentences, width))


def noted(sentences: cola.Sentences, width: int) -> list[str]:
    """Notes for the record: which tokeniser, and how many sentences are cut."""
    cut = int((sentences.lengths > width).sum())
    more = [f"{cut:,} of {cola.SAMPLES:,} sentences are cut to {width} tokens"] if cut else []
    return [sentences.note, *more]


def synthetic(trial: Trial, ranks: Ranks, width: int, padding: str) -> Callable[[torch.Tensor], Batch]:
    """Seeded random sentences of the data's shape, as long as CoLA's: 4 to 24 tokens with [CLS] and [SEP]."""

    def drawn(seed: int, samples: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(4, min(width, 24) + 1, (samples, 1), generator=generator)
        ids = torch.randint(len(cola.SPECIAL), cola.VOCABULARY, (samples, width), generator=generator)
        places = torch.arange(width)
        ids = ids.masked_fill(places == 0, cola.CLS).masked_fill(places == lengths - 1, cola.SEP)
        mask = (places < lengths).long()
        return ids * mask, mask, torch.randint(cola.CLASSES, (samples,), generator=generator)  # the pad is 0

    def placed(batch: Batch) -> Batch:
        ids, mask, labels = batch
        longest = int(mask.sum(dim=1).max()) if padding == "dynamic" else width
        return tuple(tensor.to(ranks.device) for tensor in (ids[:, :longest], mask[:, :longest], labels))

    return random_batches(trial, ranks, drawn, placed)
