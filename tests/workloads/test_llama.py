"""The Llamas are what their names say: transformers' scores, the published numbers of weights, FLOPs by a formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from old_torch import skip_if_too_old_for
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from scaling_study.machine import Machine, installed
from scaling_study.measure.memory import Memory
from scaling_study.models import MODELS, OURS, Decoder
from scaling_study.ranks import Ranks
from scaling_study.study.support import unsupported
from scaling_study.trial import Trial
from scaling_study.workloads import Workload, llama, load
from scaling_study.workloads.llama import Llama, turned
from scaling_study.workloads.workload import checkpointed

PUBLISHED = {
    "llama_tiny": 164_160,
    "smollm2_135m": 134_515_008,
    "llama_3_2_1b": 1_235_814_400,
    "llama_3_1_8b": 8_030_261_248,
}
SMALL = Decoder(2, 48, 6, 2, 96, vocabulary=61, length=24, head_dim=8)
LIKE = {
    "tied": replace(SMALL, tied=True),
    "stretched": replace(SMALL, rope_theta=5e5, rope_factor=8.0),
}
TINY = {"model": "llama_tiny", "data": "synthetic", "batch_per_worker": 2, "sequence_length": 8}


def tiny(**keys: Any) -> Workload:
    torch.set_num_threads(1)
    trial = Trial(**{**TINY, **keys})
    skip_if_too_old_for(trial)
    return load(trial, Ranks())


def drawn(shape: Decoder) -> Llama:
    """In fp64, with weights large enough that each of them tells."""
    torch.manual_seed(1)
    return Llama(replace(shape, spread=0.2)).double()


def decoder(name: str) -> Decoder:
    shape = OURS[name].decoder
    assert shape
    return shape


# --- the model ---


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_has_the_published_number_of_weights(name: str) -> None:
    with torch.device("meta"):
        model = Llama(decoder(name))
    assert sum(p.numel() for p in model.parameters()) == decoder(name).parameters == PUBLISHED[name]


NAMES = {
    "tok_embeddings": "model.embed_tokens",
    "attention_norm": "input_layernorm",
    "attention.w": "self_attn.w",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "output": "lm_head",
    **{f"self_attn.w{letter}": f"self_attn.{letter}_proj" for letter in "qkvo"},
}


def theirs(shape: Decoder, weights: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    """transformers' model of the same shape and weights, in fp64 but for its norms and angles, which are fp32."""
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    stretch = {"factor": shape.rope_factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {"rope_type": "llama3", **stretch, "original_max_position_embeddings": 8192} if shape.rope_factor > 1 else {}
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.positions,
        rms_norm_eps=llama.EPSILON,
        tie_word_embeddings=shape.tied,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta, **rope},
    )
    model: torch.nn.Module = LlamaForCausalLM(config).double().eval()
    named = {}
    for name, weight in weights.items():
        for ours, other in NAMES.items():
            name = name.replace(ours, other)
        named[name if name.startswith(("model.", "lm_head")) else f"model.{name}"] = weight
    missing, beyond = model.load_state_dict(named, strict=False)
    assert not beyond and set(missing) <= {"lm_head.weight"} and bool(missing) is shape.tied
    return model


@pytest.mark.slow
@pytest.mark.skipif(not installed("transformers"), reason="transformers is not installed")
@pytest.mark.parametrize("kind", ["plain", *LIKE])
def test_its_scores_are_those_of_transformers(kind: str) -> None:
    shape = LIKE.get(kind, SMALL)
    ours = drawn(shape)
    other = theirs(shape, ours.state_dict())
    tokens = torch.randint(shape.vocabulary, (3, 24), generator=torch.Generator().manual_seed(0))
    places = 17 * torch.arange(24)  # so far apart that a stretched turn is another
    with torch.no_grad():
        assert off(ours(tokens), other(tokens).logits) < 2e-6
        right = other(tokens, position_ids=places[None], attention_mask=torch.ones_like(tokens)).logits
        ours.rotary.positions = places
        assert off(ours(tokens), right) < 1e-4, "theirs are angles in fp32"
        ours.rotary.factor = 1.0
        assert (off(ours(tokens), right) > 1e-3) is (kind == "stretched")


def off(scores: torch.Tensor, right: torch.Tensor) -> float:
    """The largest difference, as a share of the largest score."""
    return ((scores - right).abs().max() / right.abs().max()).item()


def test_no_token_sees_a_later_one() -> None:
    model, tokens = drawn(SMALL), torch.arange(16).reshape(2, 8)
    changed = tokens.clone()
    changed[:, 5] += 1
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert after[:, :5].equal(before[:, :5])
    assert not torch.isclose(after[:, 5:], before[:, 5:]).all(-1).any()


def test_what_two_tokens_are_to_each_other_depends_on_their_distance() -> None:
    rotary, x = llama.Rotary(SMALL), torch.randn(1, 1, 4, 8, dtype=torch.float64)
    near = turned(x, *rotary(x))
    rotary.positions = torch.arange(4) + 1000
    far = turned(x, *rotary(x))
    torch.testing.assert_close(far @ far.transpose(2, 3), near @ near.transpose(2, 3))
    assert not torch.isclose(far, near).any(-1).all()
    torch.testing.assert_close(far.norm(dim=-1), x.norm(dim=-1))


def test_part_of_a_sequence_is_scored_by_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block's keys of a second half, at its places, are those of the whole sequence."""
    model, x, seen = drawn(SMALL), torch.randn(1, 12, 48, dtype=torch.float64), list[Any]()
    attention: Any = model.layers[0].attention
    monkeypatch.setattr(attention, "attend", lambda *qkv: (seen.append(qkv), qkv[0])[1])  # type: ignore[func-returns-value]
    attention(x)
    model.rotary.positions = torch.arange(6, 12)
    attention(x[:, 6:])
    whole, half = seen
    assert all(torch.allclose(a[:, :, 6:], b, rtol=1e-12) for a, b in zip(whole, half, strict=True))
    assert [part.shape[1] for part in half] == [6, 2, 2], "heads of queries, and of keys and values before they repeat"


def test_a_shared_matrix_is_one_tensor_under_one_name() -> None:
    model, other = drawn(LIKE["tied"]), Llama(LIKE["tied"]).double()
    assert model.output.weight is model.tok_embeddings.weight
    state = model.state_dict()
    assert "tok_embeddings.weight" in state and not any(name.startswith("output") for name in state)
    other.load_state_dict(state)
    assert other.output.weight is other.tok_embeddings.weight and other.output.weight.equal(model.output.weight)
    assert "output.weight" in drawn(SMALL).state_dict()


@pytest.mark.parametrize(("name", "length"), [("llama_tiny", 16), ("llama_3_2_1b", 2048), ("llama_3_1_8b", 8192)])
def test_its_flops_are_those_of_the_formula(name: str, length: int) -> None:
    with torch.device("meta"):
        model = Llama(decoder(name))
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.zeros(2, length, dtype=torch.int64))
    assert counter.get_total_flops() == 2 * length * decoder(name).forward_flops(length)


@pytest.mark.parametrize("counts_attention", [True, False], ids=["this torch", "a torch without attention's formula"])
def test_the_record_has_the_flops_of_the_formula(counts_attention: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not counts_attention:
        monkeypatch.delitem(flop_registry, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, raising=False)
    assert tiny(sequence_length=16).forward_flops_per_sample == 16 * decoder("llama_tiny").forward_flops(16)


# --- the text ---


def test_rows_that_no_token_of_the_text_has_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    large = replace(MODELS["llama_tiny"], decoder=replace(decoder("llama_tiny"), vocabulary=60_000))
    monkeypatch.setattr(llama, "MODELS", {"llama_tiny": large})
    loaded = tiny(batch_per_worker=64)
    assert next(loaded.batches)[0].max() < 50_257
    assert loaded.notes == ["the text has no more than 50,257 of the model's 60,000 tokens"]
    monkeypatch.undo()
    loaded = tiny(batch_per_worker=64)
    assert not loaded.notes and 500 < next(loaded.batches)[0].max() < 512


def test_a_machine_without_room_for_it_says_so() -> None:
    laptop = Machine(2, "test", 16 * 2**30, libraries={"torch": "2.15.0", "tokenizers": "1"})
    asked = Trial(model="llama_3_1_8b", device="cpu", data="synthetic")
    why = "llama_3_1_8b needs 60 GiB at least, for 8,030,261,248 weights and their gradients, and this machine has 16"
    assert why in unsupported(asked, laptop)
    assert not unsupported(replace(asked, model="smollm2_135m"), laptop)
    assert not unsupported(asked, replace(laptop, memory_bytes=2**38))


# --- activation checkpointing ---


def of_a_block(shape: Decoder, kind: str, batch: int, length: int) -> int:
    """By hand: bytes that forward keeps of a block in fp32, the formulas of docs/internals/closed-forms.md."""
    heads, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    width, hidden = shape.width, shape.feed_forward
    if kind == "block":
        return 4 * batch * length * width
    if kind == "selective":
        return 4 * batch * length * (3 * width + 2 * heads + 2 * kv + 2 * hidden + shape.heads)
    numbers = 6 * width + 5 * heads + 4 * hidden + shape.heads + 2
    return 4 * batch * length * numbers + 4 * length * shape.head_dim  # and each place's cosines and sines


def watched(workload: Workload, backward: bool) -> int:
    """Bytes that are kept for backward, at most: after forward, or in a whole step."""
    memory = Memory(workload.model, None, torch.device("cpu"))
    with memory.watching():
        loss = workload.loss(workload.model, next(workload.batches))
        if backward:
            loss.backward()
    return memory.activations


def test_a_checkpoint_keeps_what_the_formula_says() -> None:
    """And the block whose backward runs has all of its own, which the step of most tokens shows."""
    shape, batch, length = decoder("llama_tiny"), 2, 8
    kinds = {kind: tiny(checkpoint=kind, find="parity") for kind in ("none", "block", "selective")}
    kept = {kind: watched(workload, backward=False) for kind, workload in kinds.items()}
    of = {kind: of_a_block(shape, kind, batch, length) for kind in kinds}
    beside = {kind: kept[kind] - shape.layers * of[kind] for kind in kinds}  # of norm, scores and loss
    assert len({*beside.values()}) == 1, beside
    peak = {kind: watched(workload, backward=True) for kind, workload in kinds.items()}
    assert peak["none"] == kept["none"]
    numbered = 8 * batch * length  # tokens, which the embedding keeps to the end
    again = numbered + of["none"] - of["block"]
    assert peak["block"] == shape.layers * of["block"] + max(beside["none"], again)


def test_counting_runs_nothing_that_a_replay_of_forward_would_look_for() -> None:
    """Whoever asks for the weights of FSDP2 looks at views of shards: an operation, in the midst of a replay."""
    workload = tiny(checkpoint="selective", find="parity")
    weights = [*workload.model.parameters()]
    memory = Memory(workload.model, None, torch.device("cpu"), lambda: {"parameters": [w.view_as(w) for w in weights]})
    with memory.watching():
        workload.loss(workload.model, next(workload.batches)).backward()
    assert memory.activations == watched(workload, backward=True)


def step_flops(workload: Workload) -> int:
    with FlopCounterMode(display=False) as counter:
        workload.loss(workload.model, next(workload.batches)).backward()
    return int(counter.get_total_flops())


def test_a_checkpoint_computes_again_what_the_formula_says() -> None:
    """Of a block all but its last product, whose result backward does not need; by `selective` no product."""
    shape, length = decoder("llama_tiny"), 8
    plain, block, selective = (step_flops(tiny(checkpoint=kind)) for kind in ("none", "block", "selective"))
    of_blocks = shape.forward_flops(length) - 2 * shape.of_vocabulary
    last = shape.layers * 2 * shape.width * shape.feed_forward
    assert block - plain == 2 * length * (of_blocks - last)
    assert selective == plain


@pytest.mark.parametrize("kind", ["block", "selective"])
@pytest.mark.parametrize(
    ("model", "keys"),
    [
        ("llama_tiny", {"sequence_length": 8}),
        ("llama_tiny", {"sequence_length": 8, "precision": "bf16", "accumulation": 2}),
        ("transformer_lm", {"sequence_length": 8}),
        pytest.param("gpt2_tiny", {"sequence_length": 8, "precision": "bf16"}, marks=pytest.mark.slow),
        ("vit_small_dataset_tiny", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value.values())),
)
def test_a_checkpoint_changes_no_bit_of_losses_and_gradients(model: str, keys: dict[str, Any], kind: str) -> None:
    """With dropout, where there is some: the same numbers are drawn again."""
    if absent := [name for name in OURS[model].needs if not installed(name)]:
        pytest.skip(f"{absent[0]} is not installed")
    torch.set_num_threads(1)
    trained = []
    for asked in (None, kind):
        trial = Trial(model=model, data="synthetic", batch_per_worker=2, checkpoint=asked, **keys)
        skip_if_too_old_for(trial)
        workload = load(trial, Ranks())
        torch.manual_seed(3)
        losses = []
        for part, _ in workload.micro_batches(next(workload.batches)):
            losses.append(workload.share(workload.model, part))
            losses[-1].backward()
        made = {n: p.grad for n, p in workload.model.named_parameters() if p.grad is not None}
        trained.append((torch.stack(losses), made))
    (losses_of, gradients), (again, same) = trained
    assert again.equal(losses_of) and gradients.keys() == same.keys()
    assert gradients and all(gradients[name].equal(same[name]) for name in gradients)


def test_blocks_that_cannot_be_computed_twice_are_refused() -> None:
    with pytest.raises(SystemExit, match="checkpoint=block: model resnet8 has no blocks to compute again"):
        load(Trial(model="resnet8", data="synthetic", checkpoint="block"), Ranks())
    of_a_user = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    for blocks in ((), (torch.nn.BatchNorm1d,), (torch.nn.Sequential,)):
        with pytest.raises(SystemExit, match="leave checkpoint=selective out"):
            checkpointed(of_a_user, blocks, "selective")


def test_forward_alone_counts_no_flop_twice() -> None:
    plain, twice = tiny(), tiny(checkpoint="selective")
    assert twice.forward_flops_per_sample == plain.forward_flops_per_sample
