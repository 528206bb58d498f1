"""ALBERT is what its name says, counts what it says, and the published study is the published one."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import forked
import in_turn
import pytest
import torch

from scaling_study import datasets
from scaling_study.estimate import Estimate
from scaling_study.machine import Machine
from scaling_study.ranks import Ranks
from scaling_study.records import store
from scaling_study.settings import CHECKOUT
from scaling_study.study import plan, study
from scaling_study.trial import Trial, Window
from scaling_study.workloads import albert_cola, cola, load

pytest.importorskip("transformers")

TINY = {"model": "albert_tiny", "data": "synthetic", "batch_per_worker": 4}
STUDY = CHECKOUT / "studies" / "distributed_dl_albert_horovod.yaml"
LIBRARIES = {"horovod": "0.28.1", "torch": "2.15.0", "transformers": "5.23.0", "tokenizers": "0.23.3"}
BIN = Path(sys.executable).parent


def workload(**keys):
    return load(Trial(**{**TINY, **keys}), Ranks())


# --- the model ---


@pytest.mark.slow
def test_all_repeats_of_base_share_one_layer_and_are_sharded_as_one():
    model = workload(model="albert_base_v2").model
    whole = [module for module in model.modules() if isinstance(module, albert_cola.blocks())]
    assert len(whole) == 1 and model.config.num_hidden_layers == 12
    assert sum(p.numel() for p in whole[0].albert_layer_groups.parameters()) == 7_087_872  # one layer's


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


def test_adamw_whose_rate_grows_with_the_workers_unless_it_is_given():
    def optimizer(world, **keys):
        one = load(Trial(**TINY, **keys), Ranks(0, world))
        return one.optimizer(one.model.parameters())

    assert isinstance(optimizer(1), torch.optim.AdamW)
    rates = [optimizer(1), optimizer(2), optimizer(2, learning_rate=0.3)]
    assert [one.param_groups[0]["lr"] for one in rates] == [2e-5, 4e-5, 0.3]


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


@pytest.mark.parametrize("data", ["synthetic", "auto"])
@pytest.mark.parametrize("find", [None, "parity"])
def test_dynamic_padding_ends_at_the_longest_sentence(data, find):
    ids, mask, _ = next(workload(data=data, padding="dynamic", find=find).batches)
    assert ids.shape[1] == mask.shape[1] == mask.sum(dim=1).max() < 128


def test_sequence_length_reaches_the_batch_and_has_a_limit():
    assert next(workload(sequence_length=16).batches)[0].shape == (4, 16)
    with pytest.raises(SystemExit, match="--sequence-length 513: ALBERT has 512 positions"):
        workload(sequence_length=513)


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


@pytest.mark.slow
def test_transformers_is_imported_by_nobody_else():
    program = (
        "import sys\nfrom scaling_study.workloads import load\nfrom scaling_study.trial import Trial\n"
        "from scaling_study.ranks import Ranks\n"
        "load(Trial(model='resnet8', data='synthetic'), Ranks())\n"
        "assert not {'transformers', 'tokenizers', 'huggingface_hub'} & set(sys.modules)\n"
    )
    done = forked.alone([sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr


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


def test_the_published_study_in_small_is_estimated_at_under_10_minutes_on_2_cores():
    made = plan.make(study.load(STUDY, small=True), Machine(2, "Xeon", 8 << 30, (), LIBRARIES))
    estimate = Estimate()
    assert 60 < sum(estimate(trial, planned) for trial, planned in made.trials()) < 600


# --- for real ---


def started(argv: list[str]) -> str:
    done = forked.launch(argv)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


SCRIPTS = {"single": "data_parallel/single.py", "horovod": "horovod_runs/resnet_cifar10.py",
           "torch_ddp": "data_parallel/torch_ddp.py"}  # fmt: skip
LAUNCHERS = {
    "single": [sys.executable],
    "horovod": ["horovodrun", "-np", "2", "--gloo"],
    "torch_ddp": ["torchrun", "--nproc-per-node", "2"],
}
GATES = [("single", "fp64", "none"), ("horovod", "fp64", "fp32"), ("torch_ddp", "fp64", "fp32")]


def gate_of(framework: str, precision: str, allreduce: str) -> Trial:
    steps = 10 if precision == "fp64" else 1
    return Trial(
        framework=framework, model="albert_tiny", workers=1 if framework == "single" else 2, allreduce=allreduce,
        precision=precision, batch_per_worker=8, sequence_length=32, device="cpu", cores_per_worker=1, find="parity",
        window=Window(0, steps, 0.0, None, steps),
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Trial], Path]:
    """trained(gate): what its ranks left. Horovod's gates have their turns in one launch."""
    folder = tmp_path_factory.mktemp("gates")
    launched = []

    def case(gate: Trial) -> list[str]:
        record = folder / gate.id
        store.write_json(record / "trial.json", {**gate.to_dict(), "window": vars(gate.window)})
        return [str(CHECKOUT / SCRIPTS[gate.framework]), *gate.to_argv(), "--record", str(record)]

    def run(gate: Trial) -> Path:
        argv = LAUNCHERS[gate.framework]
        if gate.framework != "horovod":
            done = forked.run([*argv, *case(gate)])
            assert done.returncode == 0, done.stdout + done.stderr
        elif not launched:
            launched.extend(case(gate_of(*gate)) for gate in GATES if gate[0] == "horovod")
            out = started([*argv, *in_turn.program(folder, *launched)])
            assert "Model: albert_tiny, 1,016,386 parameters, fp64" in out
            assert "Total sentences/sec on 2 worker(s)" in out
        return folder / gate.id

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "precision", "allreduce"), GATES)
def test_every_gate_of_albert_is_passed(trained, framework, precision, allreduce):
    """Ten steps in float64 as one process trains them."""
    gate = gate_of(framework, precision, allreduce)
    record = trained(gate)
    assert forked.run([sys.executable, "-m", "scaling_study.parity.compare", record]).returncode == 0
    judged = store.load(record / "parity.json")
    assert judged["verdict"] == "passed", judged
    print([f"{check['name']}: {check['detail']}" for check in judged["checks"] if "off by" in check["detail"]])
    ranks = store.read_ranks(record, gate.workers)
    each = {"none": 0, "fp32": 8}[allreduce]  # bytes of a value on the wire: float64 as it is
    assert {rank.allreduce_bytes for rank in ranks} == {each * 1_016_386}
    assert all(0 < rank.tokens_seen <= 8 * 32 * gate.window.max_steps for rank in ranks)
