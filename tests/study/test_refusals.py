"""What is wrong with a sweep on every machine: one line, with both values and what would be right."""

from __future__ import annotations

import pytest

PEERS = "hivemind, model: resnet8, workers: 2"
LLAMA = "model: llama_tiny, workers: 2"
SMOOTHED = "learning_rate: 0.1, train: {epochs: 1, label_smoothing: 0.1}"
WRONG = [
    ("horovod, global_batch: 96, batch_per_worker: 32", "give global_batch or batch_per_worker, not both"),
    ("single, model: resnet8, matrix: {model: [resnet18]}", "'model' is both fixed and in the matrix"),
    ("single, matrix: {model: [resnet8]}, exclude: [{model: resnet8}]", "this sweep of single has no trials left"),
    ("single, controller: mpi", "framework single has no 'controller'"),
    ("horovod, matrix: {allreduce: [none, fp32], workers: [2]}", "allreduce=none with workers=2"),
    ("horovod, launcher: python", "no launcher=python; it has horovodrun, mpirun or srun"),
    ("horovod, launcher: mpirun, controller: gloo", "launcher=mpirun needs controller=mpi, not gloo"),
    ("diloco, model: resnet8, workers: 2, launcher: accelerate", "no launcher=accelerate; it has torchrun or srun"),
    ("single, max_seconds: 1", "max_seconds=1 is less than min_seconds=2"),
    ("single, max_steps: 5", "max_steps=5 is less than min_steps=10"),
    ("torch_ddp, hosts: 2", "workers=1 cannot be spread evenly over hosts=2"),
    ("torch_ddp, workers: 3, hosts: 2", "workers=3 cannot be spread evenly over hosts=2"),
    # keys that a framework lacks, with the reason where there is one
    ("torch_ddp, model: resnet8, workers: 2, target_batch_size: 256", "torch_ddp has no 'target_batch_size'"),
    ("torch_ddp, model: resnet8, workers: 2, sync_every: 8", "framework torch_ddp has no 'sync_every'"),
    (f"torch_tp, {LLAMA}, compile: true", "no 'compile': torch 2.15 compiles only the forward pass"),
    (f"torch_context, {LLAMA}, compile: true", "no 'compile': torch.compile around the collectives"),
    (f"torch_pipeline, {LLAMA}, checkpoint: block", "no 'checkpoint': stages do not compute activations again"),
    ("torch_context, workers: 2", "needs a model: it has llama_tiny, smollm2_135m, llama_3_2_1b, llama_3_1_8b"),
    ("torch_context, model: resnet8, workers: 2", "no model=resnet8; it has llama_tiny, smollm2_135m, llama_3_2_1b, "),
    (f"torch_context, {LLAMA}, allreduce: none", "with workers=2: more than one worker must reduce gradients"),
    # with the names of keys that the file has
    ("single, gradients: fp16", "framework single has no gradients=fp16; it has none"),
    ("single, allreduce: fp16", "framework single has no allreduce=fp16; it has none"),
    ("single, batchnorm_buffers: local", "framework single has no 'batchnorm_buffers'"),
    ("single, launches: 5, max_launches: 3", "max_launches=3 is less than launches=5"),
    ("single, repeats: 5, max_repeats: 3", "max_repeats=3 is less than repeats=5"),
    ("single, launches: 0", "launches: 0 is not right: "),
    ("horovod, workers: 2, gradients: none", "gradients=none with workers=2"),
    ("horovod, matrix: {gradients: [fp8]}", "gradients: 'fp8' is not right: "),
    ("horovod, gradient: fp16", "unknown key 'gradient'; did you mean 'gradients'?"),
    ("horovod, alreduce: fp16", "unknown key 'alreduce'; did you mean 'gradients'?"),
    ("horovod, gradients: fp16, alreduce: fp16", "unknown key 'alreduce'; did you mean 'gradients'?"),
    ("horovod, exclude: [{gradients: fp16}]", "exclude {'gradients': 'fp16'} matches nothing"),
    ("command, command: 't.py {gradients}', batch_per_worker: 8", "{gradients}: give gradients=... in this sweep"),
    # values that follow the device
    ("single, precision: atuo", "precision: 'atuo' is not right"),
    ("single, compile: 1", "compile: 1 is not right: expected true, false or auto"),
    ("single, zero_stage: auto", "zero_stage: 'auto' is not right"),
    ("command, command: a b, batch_per_worker: 1, precision: auto", "no precision=auto; it has fp32, bf16, fp16, fp64"),
    # peers
    ("hivemind, model: resnet8, workers: 1", "hivemind needs 2 peers or more, not workers=1"),
    (f"{PEERS}, batch_per_worker: 64, target_batch_size: 96", "target_batch_size=96 is less than the 128 samples of"),
    (f"{PEERS}, target_batch_size: 129", "workers=2 does not divide target_batch_size=129"),
    (f"{PEERS}, matchmaking_seconds: 60", "matchmaking_seconds=60 must be less than averaging_timeout_seconds=60"),
    (f"{PEERS}, averaging_timeout_seconds: 2", "matchmaking_seconds=3 must be less than averaging_timeout_seconds=2"),
    (f"{PEERS}, allreduce: int4", "allreduce"),
    (f"{PEERS}, state_allreduce: bf16", "state_allreduce"),
    (f"{PEERS}, cores_per_worker: 2, daemon_cores: 2", "daemon_cores=2 leaves no core to compute on: a worker has 2"),
    (f"{PEERS}, updates: delayed, train: {{steps: 9}}", "updates=delayed can only be timed"),
    (f"{PEERS}, accumulation: 2", "framework hivemind has no 'accumulation'"),
    (f"{PEERS}, global_batch: 256, target_batch_size: 256", "give global_batch or target_batch_size, not both"),
    # kernels and synthetic data
    ("single, model: gpt2, vocabulary: 50000", "vocabulary=50000 is less than the 50257 tokens of GPT-2; 50304 pads"),
    ("single, model: gpt2, gelu: fast", "gelu: 'fast' is not right: input should be 'new' or 'tanh'"),
    ("single, model: resnet8, gelu: tanh", "model resnet8 has no 'gelu': it has image_size"),
    ("single, model: transformer_lm, vocabulary: 50304", "model transformer_lm has no 'vocabulary': it has sequence"),
    ("single, model: gpt2, compile_scope: model_and_loss", "=model_and_loss compiles nothing without compile"),
    ("single, model: tripnet_resnet18, compile: true, compile_scope: model_and_loss", "compile the loss of tripnet_"),
    ("single, model: gpt2, classes: 1000, data: synthetic", "model gpt2 has no 'classes': its samples have sequence"),
    ("single, model: resnet50, classes: 1000", "classes=1000 needs data: synthetic, not data=auto"),
    ("single, model: resnet50, classes: 1000, data: cifar10", "classes=1000 needs data: synthetic, not data=cifar10"),
    ("single, model: resnet50, classes: 1, data: synthetic", "classes: 1 is not right: input should be greater"),
    ("single, model: resnet8, resident_batches: 8, data: cifar10", "resident_batches=8 needs synthetic data: all of"),
    ("single, model: resnet8, resident_batches: 0", "resident_batches: 0 is not right: input should be"),
    ("single, optimizer_kernels: fusd", "did you mean 'fused'? Input should be 'default' or 'fused'"),
    (f"single, model: gpt2, vocabulary: 50304, {SMOOTHED}", "vocabulary=50304 cannot smooth labels (label_smoothing=0"),
    (f"single, model: gpt2, cross_entropy: chunked, {SMOOTHED}", "cross_entropy=chunked cannot smooth labels (label_"),
]


@pytest.mark.parametrize(("keys", "said"), WRONG)
def test_what_is_wrong_on_every_machine_is_one_line_with_both_values(problems_of, keys, said):
    (problem,) = problems_of(f"study: a\nsweeps:\n  - {{framework: {keys}}}\n")
    assert problem.startswith("study.yaml:3: ") and said in problem
