"""Cut into its layers, a model computes what it computes whole, to the last bit, and loses nothing on the way (F15)."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from scaling_study.models import OURS
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import load
from scaling_study.workloads.workload import autocast

TOO_LARGE = ("iformer_small", "smollm2_135m", "llama_3_2_1b", "llama_3_1_8b")  # to be trained twice for a test
INSTALLED = [
    name
    for name, model in OURS.items()
    if all(map(importlib.util.find_spec, model.needs)) and not model.uncut and name not in TOO_LARGE
]
OTHER_PRECISIONS = ("resnet8", "iformer_tiny", "albert_tiny", "transformer_lm", "vit_small_dataset_tiny")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Sums in one order only."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def loaded(model: str, precision: str = "fp32"):
    """A workload of two small samples with nothing random in it."""
    keys = {"sequence_length": 12} if "sequence_length" in OURS[model].keys else {}
    keys = {"image_size": 32} if model == "iformer_tiny" else keys
    trial = Trial(model=model, precision=precision, batch_per_worker=2, data="synthetic", find="parity", **keys)
    return load(trial, Ranks())


def trained(model, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of a loss, by name; and none are left behind."""
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return gradients


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "precision"),
    [(model, "fp32") for model in INSTALLED]
    + [(m, p) for m in OTHER_PRECISIONS if m in INSTALLED for p in ("bf16", "fp64")],
)
def test_the_chain_computes_what_the_model_computes(model, precision):
    workload = loaded(model, precision)
    chain, batch = workload.chain(workload.model), next(workload.batches)
    whole = workload.loss(workload.model, batch)
    right = trained(workload.model, whole)
    with autocast(CPU, precision):
        cut = chain(batch)
    assert cut.equal(whole)
    for name, gradient in trained(workload.model, cut).items():
        assert gradient.equal(right[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("model", INSTALLED)
def test_every_parameter_and_buffer_is_in_a_layer(model):
    workload = loaded(model)
    layers = workload.chain(workload.model).layers.values()
    held = {id(tensor) for layer in layers for tensor in [*layer.parameters(), *layer.buffers()]}
    whole = [*workload.model.named_parameters(), *workload.model.named_buffers()]
    assert not [name for name, tensor in whole if id(tensor) not in held]
    assert len(held) == len(whole), "and nothing beside them"


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("resnet8", "stem blocks.0 blocks.1 blocks.2 head"),
        ("resnet18", "stem layer1.0 layer1.1 layer2.0 layer2.1 layer3.0 layer3.1 layer4.0 layer4.1 head"),
        ("mlp_wide", "layer0 layer1 layer2 layer3 layer4 head"),
        ("albert_tiny", "embeddings layer.0 layer.1 head"),
        ("transformer_lm", "embedding layers.0 layers.1 decoder"),
        ("llama_tiny", "tok_embeddings layers.0 layers.1 head"),
        ("vit_small_dataset_tiny", "embedding block1 block2 head"),
        (
            "iformer_tiny",
            "stem stage1_block1 downsampling2 stage2_block1 downsampling3 stage3_block1 stage3_block2 downsampling4 "
            "stage4_block1 head",
        ),
    ],
)
def test_layers_have_names_that_a_person_recognises(model, names):
    if model not in INSTALLED:
        pytest.skip(f"needs {' and '.join(OURS[model].needs)}")
    workload = loaded(model)
    assert list(workload.chain(workload.model).layers) == names.split()


@pytest.mark.slow
@pytest.mark.parametrize("model", INSTALLED)
def test_whatever_is_handed_on_can_be_cut_into_micro_batches(model):
    """One tensor from layer to layer, and in it, in targets and in extras, the sample comes first."""
    workload = loaded(model)
    chain, batch = workload.chain(workload.model), next(workload.batches)
    x, extras = chain.inputs(batch), chain.extras(batch)
    assert {len(tensor) for tensor in (x, chain.target(batch), *extras.values())} == {2}
    for layer in chain.layers.values():
        x = layer(x, **extras)
        assert isinstance(x, torch.Tensor) and len(x) == 2


@pytest.mark.skipif("albert_tiny" not in INSTALLED, reason="needs transformers")
def test_the_repeats_of_alberts_layer_are_one_layer():
    workload = loaded("albert_tiny")
    layers = workload.chain(workload.model).layers
    first, second = layers["layer.0"], layers["layer.1"]
    assert first is not second
    assert all(a is b for a, b in zip(first.parameters(), second.parameters(), strict=True))
