"""GPT-2 is transformers' GPT-2, of the published size; its text is WikiText-2 in byte pairs."""

from __future__ import annotations

from pathlib import Path

import gated
import numpy as np
import pytest
import torch

from scaling_study import datasets
from scaling_study.ranks import Ranks
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial
from scaling_study.workloads import gpt2, load, wikitext2
from scaling_study.workloads.workload import Workload

pytest.importorskip("transformers")
TINY = {"model": "gpt2_tiny", "data": "synthetic", "batch_per_worker": 2, "sequence_length": 8}
TINY_PARAMETERS = 3_382_080
ROOT = datasets.data_root()
real_data = pytest.mark.skipif(datasets.wikitext2_file() is None, reason=f"needs WikiText-2 in {ROOT}; set DATA_ROOT")


def workload(**keys: object) -> Workload:
    return load(Trial(**{**TINY, **keys}), Ranks())


# --- the model ---


@pytest.mark.slow
@pytest.mark.parametrize(("model", "parameters"), [("gpt2", 124_439_808), ("gpt2_tiny", TINY_PARAMETERS)])
def test_parameters_and_blocks_are_as_published(model: str, parameters: int) -> None:
    loaded = workload(model=model)
    assert loaded.parameters == parameters
    blocks = [module for module in loaded.model.modules() if isinstance(module, loaded.blocks)]
    assert len(blocks) == {"gpt2": 12, "gpt2_tiny": 2}[model], "what sharded frameworks wrap"


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


def test_no_token_sees_a_later_one() -> None:
    loaded = workload(find="parity")
    tokens, _ = next(loaded.batches)
    changed = tokens.clone()
    changed[:, 5] = (tokens[:, 5] + 1) % wikitext2.PAIR_VOCABULARY
    with torch.no_grad():
        before, after = loaded.model(tokens), loaded.model(changed)
    assert after[:, :5].equal(before[:, :5]) and not after[:, 5:].equal(before[:, 5:])


def forward_flops_per_token(layers: int, width: int, length: int) -> int:
    """As docs/report.md has it: two for each weight of a matrix, scores included, and attention over all places."""
    weights = layers * 12 * width**2 + wikitext2.PAIR_VOCABULARY * width
    return 2 * weights + layers * 4 * length * width


def test_shares_of_the_multiplications_are_as_the_module_says() -> None:
    whole, without_blocks = (forward_flops_per_token(layers, width=768, length=1024) for layers in (12, 0))
    each_block = (whole - without_blocks) / 12
    assert f"{100 * without_blocks / whole:.0f} % scores, {100 * each_block / whole:.1f} % each" in str(gpt2.__doc__)


def test_flops_are_those_of_its_matrices_and_of_attention() -> None:
    counted = workload(sequence_length=16).forward_flops_per_sample
    assert counted == 16 * forward_flops_per_token(layers=2, width=64, length=16)
    page = " ".join((CHECKOUT / "docs" / "report.md").read_text(encoding="utf-8").split())
    flops = 3 * forward_flops_per_token(layers=12, width=768, length=1024)
    assert f"{flops / 1e6:.0f} million FLOP a token" in page and f"{6 * 124_439_808 / 1e6:.0f} million" in page


def test_a_longer_sequence_than_it_has_positions_is_refused() -> None:
    with pytest.raises(SystemExit, match="--sequence-length 1025: GPT-2 has 1024 positions"):
        workload(sequence_length=1025)


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


@pytest.mark.slow
def test_the_same_text_gives_the_same_pairs(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("the cat sat on the mat \n and the other cat sat on that cat\n" * 3)
    (first, _), (again, tokenizer) = (wikitext2.encoded_pairs(tmp_path / "text") for _ in range(2))
    assert first.tolist() == again.tolist()
    assert tokenizer.decode(first.tolist()) == (tmp_path / "text").read_text()
    assert len(first) < len((tmp_path / "text").read_text()) / 2, "pairs, not bytes"


# --- for real ---


@pytest.mark.slow
@pytest.mark.parametrize(
    "framework",
    [*(pytest.param(name, marks=pytest.mark.long) for name in ("torch_fsdp2", "deepspeed_zero")), "torch_pipeline"],
)
def test_its_gate_is_passed_with_one_tensor_at_both_ends(framework: str, tmp_path: Path) -> None:
    keys = {"zero_stage": 3} if framework == "deepspeed_zero" else {}
    trial = Trial(
        framework=framework, model="gpt2", workers=2, launcher="torchrun", device="cpu", data="synthetic", **keys
    )
    assert gated.gate_of(trial).model == "gpt2_tiny"
    judged = gated.judged(trial, tmp_path)
    assert judged["verdict"] == "passed", judged
