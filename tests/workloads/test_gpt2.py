"""GPT-2 is transformers' GPT-2, of the published size; its text is WikiText-2 in byte pairs."""

from __future__ import annotations

import numpy as np
import pytest

from scaling_study import datasets
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import load, wikitext2
from scaling_study.workloads.workload import Workload

pytest.importorskip("transformers")
TINY = {"model": "gpt2_tiny", "data": "synthetic", "batch_per_worker": 2, "sequence_length": 8}
ROOT = datasets.data_root()
real_data = pytest.mark.skipif(datasets.wikitext2_file() is None, reason=f"needs WikiText-2 in {ROOT}; set DATA_ROOT")


def workload(**keys: object) -> Workload:
    return load(Trial(**{**TINY, **keys}), Ranks())


# --- the model ---


@pytest.mark.slow
def test_it_is_transformers_model_bit_by_bit() -> None:
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

    loaded = workload(find="parity")
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
    loaded = workload(data="wikitext2_bpe")
    tokens, targets = next(loaded.batches)
    assert tokens[0].tolist() == ids[:8].tolist() and targets[0].tolist() == ids[1:9].tolist()
    assert loaded.steps_per_epoch == (len(ids) // 2 - 1) // 8 and loaded.data_source == "wikitext2_bpe"
