"""GPT-2's keys change its kernels and bytes, and nothing of what it computes: losses and gradients are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from benchmarks.step_bytes import counted
from scaling_study.machine import installed
from scaling_study.models import PAIR_VOCABULARY
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import Workload, gpt2, load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not installed("transformers"), reason="transformers is not installed"),
]
TINY = {"model": "gpt2_tiny", "data": "synthetic", "batch_per_worker": 4, "sequence_length": 8}  # 32 tokens a batch
ROWS = 50_304
PADDED, CHUNKED = {"vocabulary": ROWS}, {"cross_entropy": "chunked"}
EXACT = {"rtol": 1e-11, "atol": 1e-14}


@pytest.fixture(autouse=True)
def uneven_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt2, "ROWS", 5)
    torch.set_num_threads(1)


def tiny(**keys: Any) -> Workload:
    return load(Trial(**{**TINY, "dropout": 0.0, "precision": "fp64", **keys}), Ranks())


def stepped(workload: Workload, scale: float = 1.0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(loss of the first batch, gradients of so many times the loss by weight; of the embedding, those of tokens)."""
    loss = workload.loss(workload.model, next(workload.batches))
    (scale * loss).backward()
    gradients = {name: weight.grad for name, weight in workload.model.named_parameters() if weight.grad is not None}
    words = "transformer.wte.weight"
    assert not gradients[words][PAIR_VOCABULARY:].any(), "of rows that are no tokens"
    return loss.detach(), gradients | {words: gradients[words][:PAIR_VOCABULARY]}


@pytest.mark.parametrize(
    "keys", [{"gelu": "tanh"}, PADDED, CHUNKED, PADDED | CHUNKED | {"gelu": "tanh"}], ids=lambda keys: " ".join(keys)
)
def test_it_computes_the_same_loss_and_gradients(keys: dict[str, Any]) -> None:
    loss, gradients = stepped(tiny(), scale=3.0)
    same, ours = stepped(tiny(**keys), scale=3.0)
    torch.testing.assert_close(same, loss, **EXACT)
    assert ours.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(ours[name], gradient, **EXACT, msg=lambda why, name=name: f"{name}: {why}")


def test_rows_beyond_the_tokens_stay_zero_are_not_counted_and_never_likely() -> None:
    plain, padded = tiny(), tiny(**PADDED)
    assert padded.parameters == plain.parameters == padded.parameters_all == 3_382_080
    assert any("3,008 zeros pad the embedding to 50,304 rows" in note for note in padded.notes)
    batch, losses = next(plain.batches), []
    for workload in (plain, padded):
        optimizer = workload.optimizer(workload.model.parameters())
        losses.append([])
        for _ in range(3):
            loss = workload.loss(workload.model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-11) and losses[0][2] < losses[0][0]
    words = padded.model.transformer.wte.weight
    assert words.shape == (ROWS, 64) and not words[PAIR_VOCABULARY:].any() and words[PAIR_VOCABULARY - 1].any()
    with torch.no_grad():
        assert not padded.model(batch[0]).softmax(-1)[..., PAIR_VOCABULARY:].any()
    assert padded.chain and padded.chain(padded.model)(batch).equal(padded.loss(padded.model, batch))


def test_in_16_bits_a_chunked_loss_is_fp32_and_its_gradients_are_no_rougher() -> None:
    exact_loss, exact = stepped(tiny())
    off = {}
    for kind in ("whole", "chunked"):
        loss, gradients = stepped(tiny(precision="bf16", cross_entropy=kind))
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss.double(), exact_loss, rtol=2e-3, atol=0)
        differences = [(gradients[name].double() - gradient).norm() for name, gradient in exact.items()]
        off[kind] = torch.stack(differences).norm().item()
    assert 0 < off["chunked"] < 1.5 * off["whole"]


def test_without_gradients_a_chunked_loss_is_the_whole_one_and_its_flops_are_those_of_forward() -> None:
    whole, chunked = tiny(), tiny(**CHUNKED)
    assert chunked.forward_flops_per_sample == whole.forward_flops_per_sample
    batch = next(whole.batches)
    with torch.no_grad():
        assert chunked.loss(chunked.model, batch).equal(whole.loss(whole.model, batch))


def test_gelu_tanh_is_one_kernel_and_the_formula_of_transformers() -> None:
    from transformers.activations import NewGELUActivation

    (form,) = {type(block.mlp.act) for block in tiny(gelu="tanh").model.transformer.h}
    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    torch.testing.assert_close(form()(x), NewGELUActivation()(x), **EXACT)
    assert form()(x).equal(F.gelu(x, approximate="tanh"))


def test_each_key_saves_bytes_or_kernels_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by torch's profiler: of 256 tokens the scores are 51 MB in fp32, of which a whole step holds three."""
    monkeypatch.setattr(gpt2, "ROWS", 32)
    keys: dict[str, Any] = {**TINY, "batch_per_worker": 32, "precision": "bf16"}
    scores = 32 * 8 * PAIR_VOCABULARY * 4
    plain = counted(keys)
    assert plain.kept_bytes > scores and plain.peak_bytes > 3 * scores
    dry = counted(keys | {"dropout": 0.0})
    assert dry.kernels < plain.kernels and dry.kept_bytes < plain.kept_bytes
    fewer = counted(keys | {"dropout": 0.0, "gelu": "tanh", "optimizer_kernels": "fused"})
    assert fewer.kernels < dry.kernels and fewer.kept_bytes < dry.kept_bytes
    assert fewer.update_kernels < plain.update_kernels / 5
    chunked = counted(keys | CHUNKED)
    weight = PAIR_VOCABULARY * 64 * 4  # whose gradient is made in forward
    assert chunked.kept_bytes < plain.kept_bytes - scores + 1.1 * weight
    assert chunked.peak_bytes < plain.peak_bytes - 2 * scores


@pytest.mark.parametrize("model", ["resnet8", "gpt2_tiny"])
def test_what_compiles_the_model_with_its_loss_has_both_in_one_graph(model: str) -> None:
    from scaling_study.workloads.workload import with_loss

    sizes = TINY if model == "gpt2_tiny" else {"data": "synthetic", "batch_per_worker": 2}
    plain, workload = (load(Trial(**{**sizes, "model": model, "precision": "bf16"}), Ranks()) for _ in range(2))
    for each in (plain, workload):
        each.model.eval()  # no dropout
    graphs = []

    def keep(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    together = with_loss(workload.model, workload.loss)
    assert isinstance(workload.model, type(plain.model)) and type(workload.model).__name__ == type(plain.model).__name__
    assert workload.model.state_dict().keys() == plain.model.state_dict().keys()
    batch = next(plain.batches)
    expected = plain.loss(plain.model, batch)
    assert together(workload.model, batch).equal(expected)
    assert workload.model(batch[0]).shape == plain.model(batch[0]).shape, "scores, where nothing asks for a loss"
    workload.model.compile(backend=keep, dynamic=False)
    together(workload.model, batch).backward()
    (graph,) = graphs
    assert any("cross_entropy" in str(node.target) for node in graph.graph.nodes)
    assert all(weight.grad is not None for weight in workload.model.parameters())
