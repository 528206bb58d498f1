"""Closed forms of a Llama's bytes over meshes: numbers counted on real ranks, and what must hold of all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.machine import Machine
from scaling_study.models import Decoder
from scaling_study.study import meshes, on_gpus
from scaling_study.study.meshes import SHAPES, STATE, Mesh, Work, memory, traffic
from scaling_study.trial import Trial

TINY, EIGHT = SHAPES["llama_tiny"], SHAPES["llama_3_1_8b"]
IN_FULL = Work(samples=2, length=64, precision="fp64")  # 128 tokens, as in what was counted


def handed(shape: Decoder, mesh: Mesh, work: Work) -> dict[tuple[str, str], float]:
    """(dimension, kind) -> bytes."""
    found: dict[tuple[str, str], float] = {}
    for one in traffic(shape, mesh, work):
        found[one.dimension, one.kind] = found.get((one.dimension, one.kind), 0) + one.bytes
    return found


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama_tiny", 164_160),
        ("smollm2_135m", 134_515_008),
        ("llama_3_2_1b", 1_235_814_400),
        ("llama_3_1_8b", 8_030_261_248),
    ],
)
def test_parameters_are_those_of_the_published_models(name: str, parameters: int) -> None:
    assert SHAPES[name].parameters == parameters


P = 164_160 * 8  # bytes of the tiny one in fp64
R = (2 * 512 * 64 + 64) * 8  # outside of its layers
ONCE = 128 * 64 * 8  # T d e
STAGE = (P - R) // 2 + (512 * 64 + 64) * 8  # of two: a layer and one end, with the last norm


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        (Mesh(), {}),
        (Mesh(replicas=4), {("replicas", "allreduce"): P}),
        (Mesh(shards=4), {("shards", "all_gather"): 2 * P - R, ("shards", "reduce_scatter"): P}),
        (Mesh(shards=4, zero_stage=2), {("shards", "all_gather"): P, ("shards", "reduce_scatter"): P}),
        (Mesh(shards=2, replicas=2), {("shards", "all_gather"): 2 * P - R, ("shards", "reduce_scatter"): P,
                                      ("replicas", "allreduce"): P / 2}),
        (Mesh(tensor=2), {("tensor", "allreduce"): 10 * ONCE, ("tensor", "all_gather"): 128 * 512 * 8}),
        (Mesh(tensor=2, loss_parallel=True), {("tensor", "allreduce"): 10 * ONCE + 3 * 128 * 8}),
        (Mesh(tensor=2, sequence_parallel=True, loss_parallel=True), {
            ("tensor", "reduce_scatter"): 10 * ONCE, ("tensor", "all_gather"): 10 * ONCE,
            ("tensor", "allreduce"): 5 * 64 * 8 + 3 * 128 * 8}),
        (Mesh(context=2), {("context", "all_to_all"): 4 * 2 * 64 * (64 + 32) * 8, ("replicas", "allreduce"): P + 8}),
        (Mesh(context=2, attention="all_gather"), {
            ("context", "all_gather"): 2 * 2 * 128 * 32 * 8, ("context", "reduce_scatter"): 2 * 2 * 128 * 32 * 8,
            ("replicas", "allreduce"): P + 8}),
        (Mesh(stages=2, micro_batches=4), {("stages", "send"): ONCE}),
        (Mesh(stages=2, micro_batches=4, shards=2, replicas=2, zero_stage=2), {
            ("stages", "send"): ONCE, ("shards", "all_gather"): STAGE, ("shards", "reduce_scatter"): STAGE,
            ("replicas", "allreduce"): STAGE / 2}),
    ],
)  # fmt: skip
def test_bytes_of_a_step_are_those_that_real_ranks_handed_over(mesh, expected):
    """Held against sockets and records of two and four ranks, in fp64."""
    assert handed(TINY, mesh, IN_FULL) == expected


def test_stages_add_up_the_gradients_of_a_table_that_both_ends_have() -> None:
    tied, table = replace(TINY, tied=True), 512 * 64 * 8
    for mesh, bytes in ((Mesh(stages=2), table), (Mesh(stages=2, shards=2), table / 2), (Mesh(replicas=2), None)):
        assert handed(tied, mesh, IN_FULL).get(("stages", "allreduce")) == bytes
    assert ("stages", "allreduce") not in handed(TINY, Mesh(stages=2), IN_FULL)


@pytest.mark.parametrize(("rank", "bytes"), [(1, 31_232), (2, 59_904), (4, 117_248)])
def test_powersgd_hands_over_two_factors_of_each_matrix(rank: int, bytes: int) -> None:
    work = replace(IN_FULL, allreduce=f"powersgd{rank}")
    assert handed(TINY, Mesh(replicas=2), work) == {("replicas", "allreduce"): bytes}


def test_16_bit_gradients_are_half_and_local_steps_are_rare() -> None:
    work = replace(IN_FULL, precision="fp32")
    two = Mesh(replicas=2)
    assert handed(TINY, two, replace(work, allreduce="fp16")) == {("replicas", "allreduce"): P / 4}
    assert handed(TINY, two, replace(work, sync_every=8, outer="average")) == {("replicas", "allreduce"): P / 16}


def test_sent_bytes_are_those_of_a_ring() -> None:
    (one,) = traffic(TINY, Mesh(replicas=4), IN_FULL)
    assert one.sent_bytes == 1.5 * P


def test_micro_batches_gather_again_and_reduce_once() -> None:
    found = handed(TINY, Mesh(shards=2), replace(IN_FULL, accumulation=2))
    assert found == {("shards", "all_gather"): 2 * (2 * P - R), ("shards", "reduce_scatter"): P}


def test_flops_of_a_token_are_those_that_torch_counts() -> None:
    products = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 192) + 512 * 64
    assert TINY.forward_flops(64) == 2 * products + 4 * 2 * 64 * 64


# --- memory ---


def state(mesh: Mesh, work: Work = IN_FULL) -> float:
    held = memory(TINY, mesh, work)
    return sum(held[kind] for kind in STATE)


@pytest.mark.parametrize("mesh", [Mesh(shards=4), Mesh(shards=4, replicas=2), Mesh(shards=4, zero_stage=2)])
def test_shards_divide_the_state(mesh: Mesh) -> None:
    """P + G + O, where O is two numbers of AdamW: 4 P."""
    assert state(Mesh(replicas=4)) == 4 * P and state(mesh) == P


def test_gradients_of_shards_are_whole_while_those_of_several_parts_add_up() -> None:
    assert memory(TINY, Mesh(shards=4), IN_FULL)["gradients"] == P / 4
    assert memory(TINY, Mesh(shards=4), replace(IN_FULL, accumulation=2))["gradients"] == P
    assert memory(TINY, Mesh(replicas=4), replace(IN_FULL, accumulation=2))["gradients"] == P


def test_tensor_parallelism_divides_matrices_but_not_norms() -> None:
    norms = 5 * 64 * 8
    assert state(Mesh(tensor=4)) == pytest.approx(4 * (norms + (P - norms) / 4))


def test_a_stage_has_its_layers_and_one_end() -> None:
    layer, table = (P - R) / 2, 512 * 64 * 8
    assert state(Mesh(stages=2, micro_batches=2)) == pytest.approx(4 * (layer + table + 64 * 8))


def test_a_stage_in_shards_has_its_weights_and_gradients_whole_in_a_step() -> None:
    held = memory(TINY, Mesh(stages=2, micro_batches=2, shards=2, zero_stage=2), IN_FULL)
    assert (held["parameters"], held["gradients"], held["optimizer"]) == (STAGE / 2, STAGE, STAGE)
    assert held["gathered"] == STAGE + (P - R) / 2, "and a layer's gradients, copied together"


def kept(mesh: Mesh, checkpoint: str = "none") -> float:
    return meshes.kept_elements(EIGHT, mesh, checkpoint)


def test_what_a_layer_keeps_of_a_token() -> None:
    """Four of width, attention's four, and four between the matrices; shared by those who share matrices."""
    d, kv, f = 4096, 1024, 14_336
    assert kept(Mesh()) == 6 * d + 2 * kv + 4 * f
    assert kept(Mesh(tensor=8)) == 4 * d + (2 * d + 2 * kv + 4 * f) / 8
    assert kept(Mesh(tensor=8, sequence_parallel=True)) == kept(Mesh()) / 8
    assert kept(Mesh(), "block") == d < kept(Mesh(), "selective") < kept(Mesh())


@pytest.mark.parametrize(
    ("schedule", "virtual", "micro_batches", "alive"),
    [("gpipe", 1, 8, 8), ("1f1b", 1, 8, 2), ("1f1b", 1, 2, 2), ("interleaved_1f1b", 2, 8, 2.5),
     ("zbv_zero_bubble", 2, 8, 2)],
)  # fmt: skip
def test_a_first_stage_keeps_the_micro_batches_that_are_under_way(schedule, virtual, micro_batches, alive):
    mesh = Mesh(stages=2, schedule=schedule, virtual_stages=virtual, micro_batches=micro_batches)
    held = memory(EIGHT, mesh, Work(samples=micro_batches, length=8192))
    assert held["activations"] == pytest.approx(alive * 16 * 8192 * kept(Mesh()) * 2)  # 16 layers, bf16


def test_what_exchanges_weights_or_errors_keeps_them() -> None:
    work = replace(IN_FULL, precision="fp32")
    two, own = Mesh(replicas=2), P / 2
    assert memory(TINY, two, replace(work, sync_every=8, outer="nesterov"))["exchange"] == 2 * own
    assert memory(TINY, two, replace(work, sync_every=8, outer="average"))["exchange"] == 0
    matrices = own - 5 * 64 * 4
    assert (
        memory(TINY, two, replace(work, allreduce="powersgd2"))["exchange"] == matrices + 10_240 == 665_600
    )  # counted


meshes_of_64 = st.sampled_from([mesh for _, mesh in meshes.made_of(EIGHT, 64)])


@given(meshes_of_64, st.sampled_from(["none", "selective", "block"]), st.integers(40, 400))
def test_the_most_that_fits_fits_and_one_more_does_not(mesh: Mesh, checkpoint: str, gib: int) -> None:
    work = Work(length=8192, checkpoint=checkpoint)
    most = meshes.most_samples(EIGHT, mesh, work, gib * 2**30)
    parts = work.parts(mesh)
    bytes = [meshes.held_bytes(EIGHT, mesh, replace(work, samples=parts * n)) for n in (most, most + 1)]
    assert bytes[1] > gib * 2**30 and (most == 0 or bytes[0] <= gib * 2**30)


@given(st.sampled_from([8, 16, 64]), st.sampled_from(list(SHAPES)))
def test_meshes_have_all_workers_and_cut_what_can_be_cut(workers: int, name: str) -> None:
    made = list(meshes.made_of(SHAPES[name], workers))
    assert all(mesh.workers == workers and not meshes.refused(SHAPES[name], mesh) for _, mesh in made)
    assert len(set(made)) == len(made)


def test_stages_are_made_with_matrices_that_are_shared_and_with_shards() -> None:
    made = [mesh for framework, mesh in meshes.made_of(EIGHT, 64) if framework == "torch_pipeline"]
    shapes = {(mesh.stages, mesh.tensor, mesh.shards, mesh.replicas) for mesh in made}
    assert {(2, 1, 1, 32), (2, 4, 1, 8), (4, 1, 8, 2), (8, 8, 1, 1)} <= shapes
    assert not [mesh for mesh in made if mesh.tensor > 1 and mesh.shards > 1], "which no script does"


def test_both_numbers_stand_in_a_refusal() -> None:
    assert meshes.refused(TINY, Mesh(tensor=4)) == "tensor_parallel=4 does not divide kv_heads=2"
    assert meshes.refused(TINY, Mesh(context=4)) == "context_parallel=4 does not divide kv_heads=2"
    assert not meshes.refused(TINY, Mesh(context=4, attention="all_gather"))
    assert meshes.refused(TINY, Mesh(stages=4)) == "stages=4 is more than layers=2"


# --- trials ---

H100 = Machine(224, "", 0, ("H100",) * 8, gpu_memory_bytes=int(79.6 * 2**30), gpu_tflops=989.0)


def trial(framework: str, workers: int, **keys: object) -> Trial:
    return Trial(framework, "llama_3_1_8b", 1, precision="bf16", workers=workers, device="cuda", **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "mesh"),
    [
        (trial("torch_ddp", 8), Mesh(replicas=8)),
        (trial("torch_fsdp2", 8), Mesh(shards=8)),
        (trial("torch_fsdp2", 8, shard_group=4, zero_stage=2), Mesh(shards=4, replicas=2, zero_stage=2)),
        (trial("torch_tp", 8, tensor_parallel=4, sequence_parallel=True),
         Mesh(tensor=4, shards=2, sequence_parallel=True)),
        (trial("torch_context", 8, context_parallel=8), Mesh(context=8)),
        (trial("torch_pipeline", 8, stages=4, replicas=2, micro_batches=8),
         Mesh(stages=4, replicas=2, micro_batches=8)),
        (trial("torch_pipeline", 8, stages=2, replicas=4, shard_group=2, micro_batches=8),
         Mesh(stages=2, shards=2, replicas=2, zero_stage=2, micro_batches=8)),
    ],
)  # fmt: skip
def test_a_trial_is_a_mesh(asked: Trial, mesh: Mesh) -> None:
    if asked.framework in meshes.FRAMEWORKS:
        found = meshes.of_trial(asked)
        assert found and found[0] == mesh and found[1].samples == 1
    assert meshes.of_trial(replace(asked, model="gpt2")) is None


def test_a_plan_says_which_llama_has_no_room() -> None:
    """16 bytes of each of 8 billion parameters, copies and a sequence, for a GPU of 80 GB."""
    why = on_gpus.why_too_large(trial("torch_ddp", 8, sequence_length=8192), H100)
    assert "batch_per_worker=1 of llama_3_1_8b needs some " in why and why.endswith("no batch does")
    assert not on_gpus.why_too_large(trial("torch_fsdp2", 8, sequence_length=2048), H100)
    seconds = on_gpus.step_seconds(trial("torch_fsdp2", 8, sequence_length=8192), H100)
    assert seconds == pytest.approx(3 * EIGHT.forward_flops(8192) * 8192 / 0.4 / 989e12)
