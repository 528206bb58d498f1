"""Plans for GPUs that are not here: seconds and memory by estimate, batches that cannot fit, groups in turns."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from scaling_study import cli
from scaling_study.hosts.hosts import parse_hosts
from scaling_study.machine import Machine
from scaling_study.settings import CHECKOUT
from scaling_study.study import groups, machine_file, on_gpus, plan, study
from scaling_study.study.on_gpus import CONTEXT_BYTES, GIB, NCCL_BYTES
from scaling_study.study.study import Measure
from scaling_study.study.support import Cluster
from scaling_study.trial import Trial

GPT2 = Trial(model="gpt2", batch_per_worker=32, device="cuda", precision="bf16")
RESNET = replace(GPT2, model="resnet50", image_size=224, batch_per_worker=792)
DDP = replace(GPT2, framework="torch_ddp", launcher="torchrun", workers=8)
H200 = Machine(16, "Xeon", 2**37, ("NVIDIA H200",), gpu_memory_bytes=140 * GIB, gpu_tflops=989)
A100 = Machine(16, "Xeon", 2**37, ("A100",), gpu_memory_bytes=40 * GIB, gpu_tflops=312)


def test_on_the_gpu_of_which_the_figures_are_the_estimate_is_what_was_measured() -> None:
    """The stored record: 6,320 images/s and a peak of 36,236 MB; 160.4 sequences/s and 44,467 MB."""
    for trial, rate, peak in ((RESNET, 6320, 36_236e6), (GPT2, 160.4, 44_467e6)):
        assert trial.batch_per_worker / (on_gpus.step_seconds(trial, H200) or 0) == pytest.approx(rate)
        assert (on_gpus.group_bytes([trial]) or 0) - CONTEXT_BYTES == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "seconds", "activations"),
    [
        ({"batch_per_worker": 396}, 0.5, 0.5),
        ({"image_size": 112}, 0.25, 0.25),
        ({"precision": "fp32"}, 2.0, 2.0),
        ({"accumulation": 4}, 1.0, 0.25),
    ],
)
def test_an_estimate_goes_with_samples_pixels_and_precision(changes, seconds, activations):
    other = replace(RESNET, **changes)
    assert on_gpus.step_seconds(other, H200) == pytest.approx(seconds * (on_gpus.step_seconds(RESNET, H200) or 0))
    small, large = ((on_gpus.group_bytes([each]) or 0) for each in (replace(RESNET, batch_per_worker=1), RESNET))
    fixed = large - (large - small) * 792 / 791
    assert (on_gpus.group_bytes([other]) or 0) - fixed == pytest.approx(activations * (large - fixed))


def test_a_slower_gpu_takes_longer_by_its_peak_and_one_of_no_known_peak_counts_as_an_h200() -> None:
    slow, unknown = on_gpus.step_seconds(GPT2, A100), on_gpus.step_seconds(GPT2, replace(A100, gpu_tflops=0.0))
    assert slow == pytest.approx(989 / 312 * (unknown or 0)) and unknown == on_gpus.step_seconds(GPT2, H200)


def test_states_of_a_group_add_up_and_its_activations_take_turns() -> None:
    one, two = (on_gpus.group_bytes(each) or 0 for each in ([DDP], [DDP, replace(DDP, batch_per_worker=16)]))
    assert two - one == pytest.approx(on_gpus.SAMPLES["gpt2"].state_bytes)
    assert one - (on_gpus.group_bytes([GPT2]) or 0) == NCCL_BYTES
    assert on_gpus.group_bytes([DDP, replace(DDP, model="resnet18")]) is None, "nothing is known of it"
    assert on_gpus.step_seconds(replace(DDP, model="resnet18"), H200) is None


def test_a_batch_that_cannot_fit_is_unsupported_with_one_that_would(plan_of, machine):
    text = "study: a\nparity: false\nsweeps:\n  - {framework: single, device: cuda, precision: bf16, model: gpt2, "
    small = replace(machine(), gpus=("A100",), gpu_memory_bytes=40 * GIB, libraries=LIBRARIES)
    reasons = {}
    for batch in (16, 32, 64):
        [planned] = plan_of(f"{text}batch_per_worker: {batch}}}\n", small).configurations
        reasons[batch] = planned.unsupported
    assert reasons[16] == reasons[32] == "", "42 GiB by estimate, which may be a quarter too much"
    said = "batch_per_worker=64 of gpt2 needs some 82 GiB of a GPU by estimate, and has 40: about "
    assert reasons[64].startswith(said)
    fits = int(reasons[64].partition(": about ")[2].split()[0])
    assert (on_gpus.group_bytes([replace(GPT2, batch_per_worker=fits)]) or 0) <= 40 * GIB
    assert (on_gpus.group_bytes([replace(GPT2, batch_per_worker=fits + 1)]) or 0) > 40 * GIB
    [unknown] = plan_of(f"{text}batch_per_worker: 64}}\n", replace(small, gpu_memory_bytes=0)).configurations
    assert unknown.unsupported == ""
    asked = plan_of(f"{text}batch_per_worker: 64, find: max_batch}}\n", small)
    assert asked.configurations[0].unsupported == "", "a search goes as far as it comes"
    tiny = replace(A100, gpu_memory_bytes=GIB)
    assert "no batch does" in on_gpus.why_too_large(GPT2, tiny)
    for less in (  # than the figures, which are of a whole model that is not compiled
        {"framework": "torch_pipeline", "workers": 8, "stages": 8, "micro_batches": 32},
        {"compile": True},
        {"cross_entropy": "chunked"},
        {"dropout": 0.0},
    ):
        assert on_gpus.why_too_large(replace(GPT2, **less), tiny) == ""


TURNS = """study: a
parity: false
baseline: {framework: single}
measure: {warm: true%s}
sweeps:
  - {framework: single, device: cuda, precision: bf16, model: resnet50, image_size: 224, batch_per_worker: 256}
  - framework: torch_ddp
    device: cuda
    precision: bf16
    model: resnet50
    image_size: 224
    batch_per_worker: 256
    matrix: {workers: [2, 4, 8]}
"""


@pytest.mark.parametrize(
    ("memory", "said"),
    [(80 * GIB, (3, 4, 37, 80)), (140 * GIB, (4, 4, 50, 140)), (16 * GIB, (1, 4, 12, 16)), (0, ())],
)
def test_groups_on_several_gpus_take_turns_where_the_study_says_so(plan_of, machine, memory, said):
    eight = replace(machine(cores=64), gpus=("A100",) * 8, gpu_memory_bytes=memory)
    alone = plan_of(TURNS % "", eight)
    assert {each.trial.warm for each in alone.configurations} == {None}
    assert any("interleave_gpus: true interleaves them too" in note for note in alone.notes)
    turns = plan_of(TURNS % ", interleave_gpus: true", eight)
    assert {each.trial.warm for each in turns.configurations} == {True}
    assert groups.UNTESTED in turns.notes
    start = "estimated: {} of {} groups of processes fit on the GPUs together, in {} of {} GiB of the fullest GPU "
    start = start.format(*said) if said else "groups share the GPUs as long as they have room"
    [note] = [note for note in turns.notes if note.startswith(start)]
    eight_alone, counted = "torch_ddp with 8 workers", "buffers counted)"
    own = {4: counted, 3: f"launches: {eight_alone}", 1: f"with 2 workers, torch_ddp with 4 workers, {eight_alone}"}
    assert note.endswith(own[said[0]] if said else "")
    two = plan_of(TURNS % ", interleave_gpus: true", replace(eight, gpus=eight.gpus[:1]))
    assert groups.UNTESTED not in two.notes, "what is left on one GPU is no group of several"


def test_turns_on_gpus_are_asked_for_in_rounds(problems_of: Callable[..., list[str]]) -> None:
    [problem] = problems_of(TURNS.replace("warm: true%s", "interleave_gpus: true"))
    assert problem == "study.yaml:4: measure: interleave_gpus=true needs interleave: true beside it"
    assert Measure(warm=True, interleave_gpus=True).interleave_gpus


# --- the shipped studies, for machines that are not here

EIGHT, TWO_HOSTS = "eight_gpus.yaml", "two_hosts.yaml"
LIBRARIES = dict.fromkeys(("torch", "torchvision", "horovod", "deepspeed", "transformers", "tokenizers"), "9")
HERE = Machine(2, "", 0, libraries=LIBRARIES)


def described(name: str) -> machine_file.MachineFile:
    return machine_file.load(CHECKOUT / "machines" / f"{name}.yaml")


def planned(name: str, machine: Machine, file: machine_file.MachineFile) -> plan.Plan:
    """A shipped study on a machine, and on the hosts of a machine file."""
    hosts = parse_hosts(("file", word) for word in file.hosts)
    return plan.make(study.load(CHECKOUT / "studies" / name), machine, cluster=Cluster(hosts, file))


@pytest.mark.parametrize("gpus", [0, 1, 2, 4, 8])
def test_eight_gpus_runs_as_far_as_there_are_gpus_and_says_why_not_beyond(gpus: int) -> None:
    file = described("dgx-h100")
    dgx = file.machine(HERE, elsewhere=True)
    made = planned(EIGHT, replace(dgx, gpus=dgx.gpus[:gpus]), file)
    able = [each.trial for each in made.configurations if not each.unsupported]
    assert {trial.workers for trial in able} == {n for n in (1, 2, 4, 8) if n <= gpus}
    assert {trial.device for trial in able} <= {"cuda"} and {trial.precision for trial in able} <= {"bf16"}
    kinds = {(trial.framework, trial.model) for trial in able}
    frameworks = ("single", "horovod", "torch_ddp", "torch_fsdp2", "deepspeed_zero")
    assert kinds == {(name, model) for name in frameworks if gpus for model in ("resnet50", "gpt2")}
    needs = [each.unsupported for each in made.configurations if each.trial.workers > max(1, gpus) and gpus]
    assert all(f"GPUs, this machine has {gpus}" in reason for reason in needs)
    if not gpus:
        (why,) = {each.unsupported for each in made.configurations}
        assert why == "device cuda: no GPU on this machine (plan for GPUs: --dry-run --machine FILE)"


def test_two_hosts_has_the_same_eight_gpus_on_one_host_and_on_two() -> None:
    file = described("two-dgx-h100")
    made = planned(TWO_HOSTS, file.machine(HERE, elsewhere=True), file)
    assert not [each.unsupported for each in made.configurations if each.unsupported]
    large = {(each.trial.workers, each.trial.hosts) for each in made.configurations if each.trial.model != "resnet18"}
    assert large == {(1, None), (2, 1), (2, 2), (4, 2), (8, 1), (8, 2), (16, 2)}
    runs = {each.trial.model for each in planned(TWO_HOSTS, HERE, file).configurations if not each.unsupported}
    assert runs == {"resnet18"}, "on hosts without GPUs it is what it was"


@pytest.mark.parametrize(("name", "gpus"), [("dgx-h100", 8), ("eight-dgx-h100", 64)])
def test_of_all_ways_to_split_a_llama_only_copies_of_the_large_one_have_no_room(name: str, gpus: int) -> None:
    file = described(name)
    here = file.machine(replace(HERE, libraries={**LIBRARIES, "torch": "2.15"}), elsewhere=True)
    made = planned("parallelism.yaml", here, file)
    placed = [each for each in made.configurations if each.trial.workers <= gpus]
    large = {each.trial: each.unsupported for each in placed if each.trial.model == "llama_3_1_8b"}
    assert {trial.framework for trial, why in large.items() if not why} == {"torch_fsdp2", "torch_tp"}
    refused = {(trial.framework, trial.workers): why for trial, why in large.items() if why and "GiB of a GPU" in why}
    assert {("torch_ddp", gpus)} <= refused.keys()
    assert not [each.unsupported for each in placed if each.trial.model == "llama_3_2_1b" and each.unsupported]
    for model in ("llama_3_2_1b", "llama_3_1_8b"):  # one global batch for all
        assert len({each.trial.global_batch for each in placed if each.trial.model == model}) == 1


MOST_SECONDS = 2 * 3600  # on eight H100


@pytest.mark.parametrize(("name", "machine"), [(EIGHT, "dgx-h100"), (TWO_HOSTS, "two-dgx-h100")])
def test_the_plan_for_a_machine_file_says_time_and_memory_anywhere(name, machine, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("COLUMNS", "300")
    words = [str(CHECKOUT / "studies" / name), "--dry-run", "--machine", machine]
    assert cli.run_sweep([*words, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    trials = whole["trials"]
    seconds = sum(row["estimated_seconds"] for row in (*trials, *whole["gates"]))
    assert 1800 < seconds < MOST_SECONDS, seconds
    sizes = {row["model"]: row["estimated_gpu_bytes"] for row in trials}
    room = described(machine).machine(HERE, elsewhere=True).gpu_memory_bytes
    assert sizes["gpt2"] and sizes["resnet50"] and max(size or 0 for size in sizes.values()) < room
    assert cli.run_sweep([*words, "--where", "framework=torch_ddp,model=gpt2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "GiB a GPU" in said and "Estimates for GPUs are from one H200" in said
    assert "8 x NVIDIA H100 80GB HBM3" in said
    assert "Note: planned for the hardware of the machine file; this machine has " in said


@pytest.mark.parametrize(("machine", "gpus"), [("dgx-h100", 8), ("eight-dgx-h100", 64)])
def test_the_plan_of_all_ways_to_split_a_llama_is_shown_on_any_machine(machine, gpus, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = [str(CHECKOUT / "studies" / "parallelism.yaml"), "--dry-run", "--machine", machine]
    assert cli.run_sweep([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["trials"]
    runs = [row for row in rows if not row["unsupported"]]
    assert max(row["workers"] for row in runs) == gpus
    assert all(row["command"] and row["estimated_seconds"] > 0 for row in runs)
    full = {row["framework"] for row in rows if "GiB of a GPU" in row["unsupported"]}
    assert full == {"torch_ddp"} and {row["model"] for row in rows} == {"llama_3_2_1b", "llama_3_1_8b"}
    assert cli.run_sweep(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "GiB of a GPU" in said and "8 x NVIDIA H100 80GB HBM3" in said


def test_a_machine_that_has_the_files_gpus_is_planned_for_as_it_is_and_one_gpu_missing_is_said() -> None:
    file = described("dgx-h100")
    dgx = file.machine(HERE, elsewhere=True)
    mine = replace(dgx, cores=100, gpu_tflops=0.0)
    assert file.machine(mine, elsewhere=True) == replace(mine, gpu_tflops=989.0)
    seven = replace(mine, gpus=mine.gpus[:7])
    assert file.machine(seven, elsewhere=True) == dgx and file.machine(seven, elsewhere=False) == seven
    made = planned(EIGHT, seven, file)
    said = "the machine file describes 8 x NVIDIA H100 80GB HBM3, this machine shows 7 x NVIDIA H100 80GB HBM3: "
    assert [note for note in made.notes if note.startswith(said)]
    eight = {each.unsupported for each in made.configurations if each.trial.workers == 8}
    assert eight == {"8 workers need 8 GPUs, this machine has 7"}
    assert not [note for note in planned(EIGHT, mine, file).notes if note.startswith("the machine file")]
