"""The language models are what their names say: no word sees the next, and GPT-2 is transformers' own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from scaling_study import datasets, settings
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import load, wikitext2
from scaling_study.workloads.workload import Workload

PUBLISHED = {"model": "transformer_lm", "data": "synthetic", "batch_per_worker": 20}
SMALL = {**PUBLISHED, "batch_per_worker": 2, "sequence_length": 8}
MODELS = ("transformer_lm", "transformer_lm_deep", "transformer_lm_unmasked", "gpt2_tiny")
ROOT = settings.data_root()
THERE = any((ROOT / name).is_file() for name in datasets.WIKITEXT2_FILES)
real_data = pytest.mark.skipif(not THERE, reason=f"needs WikiText-2 in {ROOT}; set DATA_ROOT")


def workload(**keys):
    return load(Trial(**{**SMALL, **keys}), Ranks())


# --- the model ---


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("model", MODELS)
def test_no_word_sees_a_later_one_but_in_the_model_without_a_mask(model, precision):
    one = workload(model=model, precision=precision, find="parity")
    words, _ = next(one.batches)
    changed = words.clone()
    changed[:, 5] = (words[:, 5] + 1) % wikitext2.VOCABULARY
    with torch.no_grad():
        before, after = one.model(words), one.model(changed)
    assert not after[:, 5:].equal(before[:, 5:])
    assert after[:, :5].equal(before[:, :5]) is (model != "transformer_lm_unmasked")
    assert any("NO CAUSAL MASK" in note for note in one.notes) is (model == "transformer_lm_unmasked")


def test_it_computes_what_the_published_model_computes():
    """Written out anew from the formulas, in float64: attention, post-norm, positions, scaled embedding."""
    one = workload(precision="fp64", find="parity")
    weights, (words, targets) = one.model.state_dict(), next(one.batches)
    width, heads, length = 200, 2, 8
    x = weights["embedding.words.weight"][words] * math.sqrt(width)
    for place in range(length):
        for i in range(0, width, 2):
            angle = place / 10_000 ** (i / width)
            x[:, place, i] += math.sin(angle)
            x[:, place, i + 1] += math.cos(angle)
    for number in range(2):
        w = {name.removeprefix(f"layers.{number}."): value for name, value in weights.items()}
        qkv = x @ w["self_attn.in_proj_weight"].T + w["self_attn.in_proj_bias"]
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        scores = q @ k.transpose(2, 3) / math.sqrt(width / heads)
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
        attended = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        attended = attended @ w["self_attn.out_proj.weight"].T + w["self_attn.out_proj.bias"]
        x = normal(x + attended, w["norm1.weight"], w["norm1.bias"])
        hidden = (x @ w["linear1.weight"].T + w["linear1.bias"]).relu()
        x = normal(x + hidden @ w["linear2.weight"].T + w["linear2.bias"], w["norm2.weight"], w["norm2.bias"])
    scores = x @ weights["decoder.weight"].T + weights["decoder.bias"]
    expected = -scores.log_softmax(-1).gather(-1, targets[..., None]).mean()
    # positions are made in float32, as published, and then cast
    assert one.loss(one.model, (words, targets)).item() == pytest.approx(expected.item(), rel=1e-7)


def normal(x, weight, bias):
    deviation = (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    return (x - x.mean(-1, keepdim=True)) / deviation * weight + bias


# --- the data ---


@pytest.mark.slow
@pytest.mark.parametrize("data", ["synthetic", pytest.param("wikitext2", marks=real_data)])
def test_a_batch_is_20_rows_of_35_words_and_the_ones_after_them(data):
    one = load(Trial(**{**PUBLISHED, "data": data}), Ranks())
    words, targets = next(one.batches)
    assert words.shape == targets.shape == (20, 35) and words.dtype == targets.dtype == torch.int64
    assert words[:, 1:].equal(targets[:, :-1])
    assert one.tokens((words, targets)) == 700
    assert (one.sample, one.samples_per_step, one.steps_per_epoch, one.reshuffles) == ("sequence", 20, 2_928, False)
    assert one.data_source == (data if data == "wikitext2" else "synthetic (asked for)")


TINY = {"model": "gpt2_tiny", "data": "synthetic", "batch_per_worker": 2, "sequence_length": 8}


def tiny(**keys: object) -> Workload:
    pytest.importorskip("transformers")
    return load(Trial(**{**TINY, **keys}), Ranks())


# --- the model ---


@pytest.mark.slow
def test_it_is_transformers_model_bit_by_bit() -> None:
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

    loaded = tiny(find="parity")
    tokens, targets = next(loaded.batches)
    theirs = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64)).eval()
    theirs.transformer.load_state_dict(loaded.model.transformer.state_dict())
    assert sum(p.numel() for p in theirs.parameters()) == loaded.parameters
    assert theirs(tokens).logits.equal(loaded.model(tokens))
    assert loaded.chain and loaded.chain(loaded.model)((tokens, targets)).equal(
        loaded.loss(loaded.model, (tokens, targets))
    )


# --- the data ---


@pytest.mark.slow
@real_data
def test_the_text_is_byte_pairs_of_all_of_it_and_reads_in_columns() -> None:
    from tokenizers import Tokenizer

    ids = wikitext2.pair_tokens()
    tokenizer = Tokenizer.from_file(str(datasets.packed_wikitext2_bpe() / "tokenizer.json"))
    assert ids.dtype == np.uint16 and tokenizer.get_vocab_size() <= wikitext2.PAIR_VOCABULARY
    file = datasets.wikitext2_file()
    assert file is not None and tokenizer.decode(ids.tolist(), skip_special_tokens=False) == file.read_text(
        encoding="utf-8"
    )
    loaded = tiny(data="wikitext2_bpe")
    tokens, targets = next(loaded.batches)
    assert tokens[0].tolist() == ids[:8].tolist() and targets[0].tolist() == ids[1:9].tolist()
    assert loaded.steps_per_epoch == (len(ids) // 2 - 1) // 8 and loaded.data_source == "wikitext2_bpe"
