"""Every framework: two workers train what one process would, and a step hands over the bytes that its scheme says.

A case is a parity gate (scaling_study/parity): ten steps in fp64, or one in 16 bits, trained by ranks that are forked
or started by MPI, and judged. A new framework gets its rows in CASES. What only one framework does is tested in its own
file in this folder, and trainings to a result in train/test_frameworks.py.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import forked
import in_turn
import pytest
from trained import BLOCKS, LAST_BLOCK, ON_CPU, OUTSIDE, P, ask_for, by_mpi, ran, skip_where_missing, started

from analysis.frames import measured
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.ranks import in_full
from scaling_study.records import store
from scaling_study.records.schema import RankReport
from scaling_study.settings import CHECKOUT
from scaling_study.study import meshes, support
from scaling_study.trial import Trial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first case of a framework trains all of them
VECTORS = 682  # parameters of normalisation, and biases: what stays in fp32 where matrices are computed in 16 bits
LARGEST_LAYER = 36_864
SIDES, COLUMNS = 2_069, 1_723  # of its matrices: rows and columns added up, and the columns alone
BUFFERS = 336 * 2  # values of its BatchNorms: two statistics of 336 channels; and nine counters of eight bytes
FLAT = P + 2  # as one tensor, padded to a multiple of four
ZERO_2 = {"allreduce": 4 * P + 4, "all_gather": 4 * FLAT}  # 4: the norm of the gradients
# Of llama_tiny, that a gate in fp64 trains on 64 tokens: 2 layers of width 64, 512 tokens known.
SUMS, SCORES = 10 * 64 * 64 * 8, 64 * 512 * 8  # bytes: (4 L + 2) times all activations between layers; all scores
LOSS, NORMS = 3 * 64 * 8, 5 * 64 * 8
HALF = (164_160 - 5 * 64) // 2 + 5 * 64  # weights of one of two workers that share matrices; norms are whole
HALF_OUTSIDE = 512 * 64 + 64  # of these, outside the layers
LLAMA = 164_160  # parameters of llama_tiny: 2 layers, width 64, 2 heads of 16 for keys and values; of 8 x 8 tokens here


@dataclass(frozen=True)
class Case:
    """A configuration with a gate. `moved`: bytes that each rank hands over in a step, by collective (None: they differ
    by rank, or by the model's cut). `kept`: bytes that each rank holds, of some kinds."""

    framework: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    moved: Mapping[str, int] | None = None
    kept: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.framework, *(f"{key}={value}" for key, value in self.keys.items())])

    def gate(self) -> Trial:
        """The gate in 16 bits, where a precision is asked for; else the first, in fp64 where the framework has it."""
        known = FRAMEWORKS[self.framework].launchers
        launcher = "torchrun" if "torchrun" in known else known[0]
        keys = {"model": "resnet8", "workers": 2, "launcher": launcher, **self.keys}
        keys |= {"batch_per_worker": 8} | ({} if by_mpi(self.framework) else {"cores_per_worker": 1})
        asked = Trial(framework=self.framework, device="cpu", data="synthetic", **keys)
        first, *others = support.gates_of(in_full(asked) if FRAMEWORKS[self.framework].shares_batches else asked)
        return [first, *others][-1 if {"allreduce", "precision"} & set(self.keys) else 0]


CASES = [
    Case("single", {"workers": 1, "accumulation": 2}, {}),
    Case("torch_ddp", {}, {"allreduce": 8 * P}, {"buckets": 0}),
    Case("torch_ddp", {"buffers": "synced"}, {"broadcast": 8 * BUFFERS + 72, "allreduce": 8 * P}),
    Case("torch_ddp", {"allreduce": "fp16"}, {"allreduce": 2 * P}, {"buckets": 0}),
    Case("torch_ddp", {"allreduce": "bf16"}, {"allreduce": 2 * P}),
    Case("torch_ddp", {"precision": "bf16"}, {"allreduce": 4 * P}),
    Case("torch_ddp", {"model": "resnet8_groupnorm", "accumulation": 2}, {"allreduce": 8 * P}),
    Case("torch_ddp", {"allreduce": "powersgd4"}, {"allreduce": 8 * (4 * SIDES + VECTORS)},
         {"compression": 8 * (P - VECTORS + 4 * COLUMNS)}),
    Case("torch_ddp", {"model": "resnet8_groupnorm", "allreduce": "powersgd2", "accumulation": 2},
         {"allreduce": 8 * (2 * SIDES + VECTORS)}, {"compression": 8 * (P - VECTORS + 2 * COLUMNS)}),
    Case("diloco", {"outer": "average", "accumulation": 2}, {"allreduce": 8 * P // support.SYNC_EVERY}, {"outer": 0}),
    Case("diloco", {"outer": "nesterov"}, {"allreduce": 8 * P // support.SYNC_EVERY}, {"outer": 16 * P}),
    Case("horovod", {}, {"allreduce": 8 * P}, {"buckets": 8 * P}),
    Case("horovod", {"allreduce": "fp16"}, {"allreduce": 2 * P}, {"buckets": 2 * P}),
    Case("horovod", {"memory_format": "channels_last"}, {"allreduce": 8 * P}),
    Case("horovod", {"accumulation": 4}, {"allreduce": 8 * P}),
    Case("mpi_allreduce", {}, {"allreduce": 8 * P}, {"buckets": 8 * P}),
    Case("mpi_allreduce", {"allreduce": "fp16"}, {"allreduce": 2 * P}, {"buckets": 2 * P}),
    Case("mpi_allreduce", {"allreduce": "bf16"}, {"allreduce": 2 * P}),
    Case("mpi_allreduce", {"accumulation": 2}, {"allreduce": 8 * P}),
    Case("fairscale_oss", {}, {"reduce": 8 * P, "broadcast": 8 * P}),
    Case("fairscale_oss", {"accumulation": 2}, {"reduce": 8 * P, "broadcast": 8 * P}),
    Case("fairscale_oss", {"allreduce": "fp16"}, {"reduce": 2 * P, "broadcast": 4 * P}),
    Case("fairscale_fsdp", {"zero_stage": 3}, {"all_gather": 8 * (2 * BLOCKS + OUTSIDE), "reduce_scatter": 8 * P},
         {"parameters": 4 * P, "gradients": 4 * P}),
    Case("fairscale_fsdp", {"zero_stage": 2, "accumulation": 2}, {"all_gather": 8 * P, "reduce_scatter": 8 * P}),
    Case("torch_fsdp2", {"zero_stage": 2, "tuned_for": "memory"}, {"all_gather": 8 * P, "reduce_scatter": 8 * P},
         {"parameters": 4 * P, "gathered": 8 * P}),
    Case("torch_fsdp2", {"zero_stage": 3, "tuned_for": "memory"}, {"all_gather": 16 * P, "reduce_scatter": 8 * P},
         {"parameters": 4 * P, "gathered": 8 * (LAST_BLOCK + OUTSIDE), "buckets": 8 * LAST_BLOCK}),
    Case("torch_fsdp2", {"tuned_for": "speed"}, {"all_gather": 8 * (2 * P - OUTSIDE), "reduce_scatter": 8 * P}),
    Case("torch_fsdp2", {"allreduce": "fp16", "tuned_for": "memory"}, {"all_gather": 8 * P, "reduce_scatter": 2 * P}),
    Case("torch_fsdp2", {"reduce_scatter": "all_to_all", "tuned_for": "memory"},  # three units in place of four
         {"all_gather": 16 * P, "all_to_all": 8 * P}, {"parameters": 4 * P, "buckets": 16 * LAST_BLOCK}),
    Case("torch_fsdp2", {"workers": 4, "shard_group": 2},
         {"all_gather": 8 * (2 * P - OUTSIDE), "reduce_scatter": 8 * P, "allreduce": 4 * P},
         {"parameters": 4 * P, "gradients": 4 * P}),
    Case("torch_fsdp2", {"model": "llama_tiny", "accumulation": 2}),
    Case("torch_fsdp2", {"precision": "bf16", "allreduce": "bf16", "accumulation": 2, "tuned_for": "memory"},
         {"all_gather": 4 * (2 * (P - VECTORS) + 4 * VECTORS), "reduce_scatter": 2 * P}),
    Case("lightning_ddp", {}, {"allreduce": 8 * P}, {"buckets": 0}),
    Case("lightning_ddp", {"buffers": "synced"}, {"broadcast": 8 * BUFFERS + 72, "allreduce": 8 * P}),
    Case("lightning_ddp", {"accumulation": 2}, {"allreduce": 8 * P}),
    Case("lightning_ddp", {"allreduce": "fp16"}, {"allreduce": 2 * P}),
    Case("lightning_ddp", {"precision": "bf16"}, {"allreduce": 4 * P}),
    Case("lightning_fsdp", {}, {"all_gather": 4 * (2 * BLOCKS + OUTSIDE), "reduce_scatter": 4 * P}),
    Case("deepspeed_zero", {"zero_stage": 0, "tuned_for": "memory"}, {"allreduce": 4 * P},
         {"parameters": 4 * P, "gradients": 4 * P, "optimizer": 0, "buckets": 4 * P}),
    Case("deepspeed_zero", {"zero_stage": 1, "tuned_for": "memory"}, ZERO_2,
         {"parameters": 4 * FLAT, "gradients": 4 * FLAT, "optimizer": 2 * FLAT, "buckets": 4 * P}),
    Case("deepspeed_zero", {"zero_stage": 2, "tuned_for": "memory"}, ZERO_2,
         {"parameters": 4 * FLAT, "gradients": 2 * FLAT, "optimizer": 2 * FLAT, "buckets": 4 * P}),
    Case("deepspeed_zero", {"zero_stage": 3, "tuned_for": "memory"},
         {"reduce_scatter": 4 * P, "all_gather": 8 * P, "allreduce": 8},
         {"parameters": 2 * P, "gradients": 2 * P, "optimizer": 0, "buckets": 4 * P, "gathered": 4 * LARGEST_LAYER}),
    Case("deepspeed_zero", {"zero_stage": 2, "tuned_for": "speed"}, ZERO_2,
         {"parameters": 4 * FLAT, "buckets": 8 * P}),  # a second bucket fills while one travels
    Case("deepspeed_zero", {"zero_stage": 3, "tuned_for": "speed"},
         {"reduce_scatter": 4 * P, "all_gather": 4 * P, "allreduce": 8},
         {"parameters": 6 * P, "buckets": 4 * P}),  # below its threshold tensors are whole, beside the worker's half
    Case("deepspeed_zero", {"zero_stage": 3, "allreduce": "fp16", "accumulation": 2, "tuned_for": "memory"},
         {"reduce_scatter": 4 * P, "all_gather": 16 * P, "allreduce": 8}),
    Case("deepspeed_zero", {"precision": "bf16", "allreduce": "fp16", "tuned_for": "memory"},
         {"allreduce": 2 * P + 4, "all_gather": 4 * FLAT}),
    Case("torch_tp", {"model": "llama_tiny"}, {"allreduce": SUMS, "all_gather": SCORES}, {"parameters": 8 * HALF}),
    Case("torch_tp", {"model": "llama_tiny", "sequence_parallel": True, "loss_parallel": True},
         {"reduce_scatter": SUMS, "all_gather": SUMS, "allreduce": NORMS + LOSS}, {"parameters": 8 * HALF}),
    Case("torch_tp", {"model": "llama_tiny", "sequence_parallel": True, "loss_parallel": True, "workers": 4,
                      "tensor_parallel": 2, "replicas": 2, "accumulation": 2},
         {"reduce_scatter": SUMS + 8 * HALF, "all_gather": SUMS + 16 * (2 * HALF - HALF_OUTSIDE),
          "allreduce": NORMS + LOSS}, {"parameters": 4 * HALF}),
    Case("torch_pipeline", {"schedule": "gpipe"}),
    Case("torch_pipeline", {"model": "albert_tiny", "schedule": "interleaved_zero_bubble"}),  # shares weights
    Case("torch_pipeline", {"model": "iformer_tiny", "schedule": "zbv_zero_bubble"}),
    Case("torch_pipeline", {"schedule": "1f1b", "workers": 4, "replicas": 2, "allreduce": "fp16"}),
    Case("torch_pipeline", {"model": "llama_tiny", "schedule": "1f1b", "workers": 4, "tensor_parallel": 2}),
    Case("torch_pipeline", {"model": "llama_tiny", "precision": "bf16"}),  # what stages hand on is not rounded
    Case("torch_pipeline", {"model": "llama_tiny", "schedule": "1f1b", "workers": 4, "replicas": 2, "shard_group": 2}),
    Case("torch_pipeline", {"model": "albert_tiny", "workers": 4, "replicas": 2, "shard_group": 2}),  # in shards too
    Case("naive_model_parallel"),
    Case("fairscale_pipe", {}, {}),
    Case("torch_context", {"model": "llama_tiny", "attention": "all_to_all"},
         {"all_to_all": 8 * (4 * 2 * 8 * 4 * (64 + 32)), "allreduce": 8 * (LLAMA + 1)}, {"buckets": 0}),
    Case("torch_context", {"model": "llama_tiny", "attention": "all_gather", "workers": 4, "replicas": 2},
         {**dict.fromkeys(("all_gather", "reduce_scatter"), 8 * (2 * 2 * 8 * 8 * 32)), "allreduce": 8 * (LLAMA + 1)}),
    Case("torch_context", {"model": "llama_tiny", "attention": "all_gather", "precision": "bf16", "accumulation": 2}),
    Case("hivemind", {"target_batch_size": 256, "matchmaking_seconds": 1.5},
         {"allreduce": 8 * P, "weights": 8 * P}),
]  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """What the ranks of a gate report, and what is said of their training."""

    ranks: list[RankReport]
    verdict: str


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Judged]:
    """judged(case): all cases of its framework are trained at the first; one launch of MPI has them in turn."""

    @cache
    def of_framework(framework: str) -> dict[str, Judged]:
        cases = {str(case): case.gate() for case in CASES if case.framework == framework}
        folders = {name: tmp_path_factory.mktemp(framework) for name in cases}
        for name, gate in cases.items():
            ask_for(gate, folders[name])
        if by_mpi(framework):
            script = str(CHECKOUT / FRAMEWORKS[framework].script)
            lines = [[script, *gate.to_argv(), "--record", str(folders[name])] for name, gate in cases.items()]
            forked.ended(started(framework, 2, in_turn.program(tmp_path_factory.mktemp("turns"), *lines), {}))
        else:
            for name, gate in cases.items():
                forked.ended(ran(gate, folders[name], *ON_CPU.get(framework, ())))
        forked.ended(forked.run([sys.executable, "-m", "scaling_study.parity.compare", *folders.values()]))
        return {
            name: Judged(store.read_ranks(folder, cases[name].processes), store.load(folder / "parity.json")["verdict"])
            for name, folder in folders.items()
        }

    return lambda case: of_framework(case.framework)[str(case)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_trains_what_one_process_would_and_hands_over_what_its_scheme_says(
    case: Case, judged: Callable[[Case], Judged]
) -> None:
    skip_where_missing(case.framework)
    found = judged(case)
    assert found.verdict == "passed"
    if case.framework in ("torch_ddp", "torch_fsdp2"):  # over Gloo, whose sockets say what left; others wait for ranks
        sent = [rank.sent_bytes or 0 for rank in found.ranks]
        by_algorithm, crossed = measured.algorithm_bytes(found.ranks), sum(sent) / len(sent)
        assert by_algorithm and by_algorithm <= crossed < 1.05 * by_algorithm
    for rank in found.ranks:
        assert case.moved is None or rank.communication_bytes == case.moved
        assert {kind: rank.memory[kind] for kind in case.kept} == case.kept
        if case.framework == "torch_pipeline" and "shard_group" not in case.keys:
            # replicas average all gradients of a worker in one buffer
            assert rank.memory["buckets"] == (rank.memory["gradients"] if "replicas" in case.keys else 0)
        if case.framework == "torch_context":  # whose attention scatters gradients of keys and values, not of weights
            assert rank.allreduce_bytes == rank.communication_bytes["allreduce"]
        if case.framework == "deepspeed_zero":
            assert rank.backend["zero_stage"] == case.keys.get("zero_stage", 2)


LLAMAS = [case for case in CASES if case.keys.get("model") == "llama_tiny"]


@pytest.mark.parametrize("case", LLAMAS, ids=str)
def test_a_llama_hands_over_and_holds_what_its_closed_forms_say(case: Case, judged: Callable[[Case], Judged]) -> None:
    """Of the worker that has most: bytes of each kind of collective, of its weights, and of what FSDP2 gathers."""
    gate, ranks = case.gate(), judged(case).ranks
    known = meshes.of_trial(gate)
    assert known
    moved: Counter[str] = Counter()
    for one in meshes.traffic(meshes.SHAPES[gate.model], *known):
        moved[one.kind] += round(one.bytes)
    kinds = {kind for rank in ranks for kind in rank.communication_bytes}
    assert {kind: max(rank.communication_bytes.get(kind, 0) for rank in ranks) for kind in kinds} == moved
    held = meshes.memory(meshes.SHAPES[gate.model], *known)
    assert max(rank.memory["parameters"] for rank in ranks) == held["parameters"]
    if known[0].shards > 1:
        assert max(rank.memory["gradients"] for rank in ranks) == held["gradients"]
    if gate.shard_group:
        assert max(rank.memory["gathered"] + rank.memory["buckets"] for rank in ranks) == held["gathered"]


def test_every_framework_that_trains_on_a_cpu_has_a_case() -> None:
    needs_two_gpus = {"torch_dp"}
    trains = {name for name, entry in FRAMEWORKS.items() if entry.trains}
    assert {case.framework for case in CASES} == trains - needs_two_gpus
