"""ALBERT is what its name says, counts what it says, and the published study is the published one."""

from __future__ import annotations

import itertools
import sys

import forked
import pytest
import torch

from scaling_study import datasets
from scaling_study.machine import Machine, installed
from scaling_study.ranks import Ranks
from scaling_study.settings import CHECKOUT
from scaling_study.study import plan, study
from scaling_study.trial import Trial
from scaling_study.workloads import albert_cola, cola, load

pytestmark = pytest.mark.skipif(not installed("transformers"), reason="transformers is not installed")

TINY = {"model": "albert_tiny", "data": "synthetic", "batch_per_worker": 4}
STUDY = CHECKOUT / "studies" / "distributed_dl_albert_horovod.yaml"
LIBRARIES = {"horovod": "0.28.1", "torch": "2.15.0", "transformers": "5.23.0", "tokenizers": "0.23.3"}


def workload(**keys):
    return load(Trial(**{**TINY, **keys}), Ranks())


# --- the model ---


def test_padding_changes_nothing_but_the_work():
    """The mask is given and obeyed: the same sentences, padded to 24 and to 128, have the same logits."""
    one = workload(find="parity", precision="fp64")
    ids, mask, labels = next(one.batches)
    short = one.loss(one.model, (ids[:, :24], mask[:, :24], labels))
    assert one.loss(one.model, (ids, mask, labels)).item() == pytest.approx(short.item(), rel=1e-12)
    blind = one.loss(one.model, (ids, torch.ones_like(mask), labels))
    assert blind.item() != pytest.approx(short.item(), rel=1e-6)


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_attention_is_the_plain_formula(precision):
    """Whatever kernel torch takes for it: as transformers' own plain one, which materialises the scores."""
    one = workload(find="parity", precision=precision)
    ids, mask, labels = next(one.batches)
    fused = one.loss(one.model, (ids, mask, labels))
    one.model.set_attn_implementation("eager")
    plain = one.model(ids, mask, return_dict=False)[0]
    expected = torch.nn.functional.cross_entropy(plain, labels)
    assert fused.item() == pytest.approx(expected.item(), rel=1e-12 if precision == "fp64" else 1e-5)


# --- the data ---


@pytest.mark.parametrize("data", ["synthetic", "auto"])
def test_sentences_are_128_long_as_published_and_tokens_are_the_real_ones(data):
    one = workload(data=data)
    ids, mask, labels = next(one.batches)
    assert ids.shape == mask.shape == (4, 128) and labels.shape == (4,)
    assert ids.dtype == mask.dtype == labels.dtype == torch.int64
    assert one.tokens((ids, mask, labels)) == mask.sum() < 4 * 60
    assert (ids[:, 0] == cola.CLS).all() and not ids[mask == 0].any()
    assert all(row[length - 1] == cola.SEP for row, length in zip(ids, mask.sum(dim=1), strict=True))
    assert one.sample == "sentence"


@pytest.mark.slow
@pytest.mark.skipif(not datasets.cola_development(), reason="needs CoLA's development sentences")
def test_what_it_is_trained_and_scored_by_is_one_loss_but_for_smoothing():
    keys = {"data": "cola", "precision": "fp64", "padding": "dynamic", "train_steps": 1}
    rough, smooth = (workload(**keys, train_label_smoothing=share) for share in (None, 0.2))
    held_out, batch = rough.held_out, next(rough.batches)
    rough.model.eval(), smooth.model.eval()
    metrics = held_out.metrics()
    held_out.update(metrics, rough.model, batch, torch.ones(4, dtype=torch.bool))
    assert metrics["loss"].compute().item() == pytest.approx(rough.loss(rough.model, batch).item(), rel=1e-12)
    for one in (rough, smooth):
        assert one.chain(one.model)(batch).item() == pytest.approx(one.loss(one.model, batch).item(), rel=1e-9)
    assert smooth.loss(smooth.model, batch) != rough.loss(rough.model, batch)
    assert rough.steps_per_epoch == held_out.published["train"]["train"] // 4 and "test" in held_out.sizes
    assert any("sentences are left out: they are validation or test sentences too" in note for note in rough.notes)


@pytest.mark.long
def test_pretrained_weights_are_taken_where_they_lie_beside_their_tokeniser(tmp_path):
    """A hub cache as transformers keeps it, with a masked language model of our own in it."""
    from transformers.models.albert.configuration_albert import AlbertConfig
    from transformers.models.albert.modeling_albert import AlbertForMaskedLM

    snapshot = tmp_path / "hub" / "models--albert--albert-base-v2" / "snapshots" / "0"
    theirs = AlbertForMaskedLM(AlbertConfig(**albert_cola.SHAPE, **albert_cola.SIZES["albert_base_v2"]))
    theirs.save_pretrained(snapshot)
    cola._trained(["A sentence."] * 4).save(str(snapshot / "tokenizer.json"))
    refs = snapshot.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("0", encoding="utf-8")
    (tmp_path / "cola").mkdir()
    rows = [f"gj04\t{number % 2}\t\tSentence {number}." for number in range(cola.SAMPLES)]
    (tmp_path / "cola" / "in_domain_train.tsv").write_text("\n".join(rows), encoding="utf-8")
    program = (
        "import sys, torch\nfrom pathlib import Path\nfrom scaling_study import datasets\n"
        "datasets.CACHE = Path(sys.argv[1])\n"
        "from scaling_study.workloads import load\nfrom scaling_study.trial import Trial\n"
        "from scaling_study.ranks import Ranks\n"
        "a, b, parity = (load(Trial(model='albert_base_v2', data='cola', find=find), Ranks())\n"
        "                for find in (None, None, 'parity'))\n"
        "print(a.notes, parity.notes, a.model.training)\n"
        "assert a.model.classifier.weight.equal(b.model.classifier.weight), 'seeded'\n"
        "print(float(a.model.albert.embeddings.word_embeddings.weight.double().sum()))\n"
    )
    env = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "DATA_ROOT": str(tmp_path)}
    done = forked.alone([sys.executable, "-c", program, tmp_path / "cache"], env)
    assert done.returncode == 0, done.stderr
    notes, total = done.stdout.splitlines()
    ours = [cola.ITS_OWN, "weights of albert-base-v2, but for the classifier"]
    assert notes == f"{ours} {ours[:1]} True"
    assert float(total) == pytest.approx(theirs.albert.embeddings.word_embeddings.weight.double().sum().item())


# --- the published study ---

PUBLISHED = sorted(
    (batch, allreduce, workers)
    for batch, (allreduce, workers) in itertools.product([2, 4, 8, 16, 32, 64], [("none", 1), ("fp32", 2), ("fp16", 2)])
)


@pytest.mark.parametrize(("small", "model"), [(False, "albert_base_v2"), (True, "albert_tiny")])
def test_the_published_study_has_exactly_the_18_published_configurations(small, model):
    made = plan.make(study.load(STUDY, small), Machine(2, "Xeon", 8 << 30, ("Tesla T4",) * 2, LIBRARIES))
    trials = [planned.trial for planned in made.configurations]
    assert sorted((t.batch_per_worker, t.allreduce, t.workers) for t in trials) == PUBLISHED
    assert {(t.framework, t.model, t.precision, t.sequence_length, t.padding, t.seed) for t in trials} == {
        ("horovod", model, "fp32", 128, "fixed", 42)
    }
    assert not any(planned.unsupported for planned in made.configurations)
    assert made.study.baseline == {"framework": "horovod", "workers": 1}


@pytest.mark.parametrize("data", ["synthetic", "auto"])
@pytest.mark.parametrize("find", [None, "parity"])
def test_dynamic_padding_ends_at_the_longest_sentence(data, find):
    ids, mask, _ = next(workload(data=data, padding="dynamic", find=find).batches)
    assert ids.shape[1] == mask.shape[1] == mask.sum(dim=1).max() < 128
