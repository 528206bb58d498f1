"""What of the environment travels, and what stays at home."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study import variables

HERE = {
    "PATH": "/bin", "HOME": "/root", "DATA_ROOT": "/data", "OMP_NUM_THREADS": "1", "NCCL_DEBUG": "WARN",
    "AWS_SECRET_ACCESS_KEY": "s3cret", "WANDB_API_KEY": "s3cret", "MY_SETTING": "1", "PYTHONPATH": "/repo",
    "SCALING_STUDY_RESULTS": "/r", "SSH_AUTH_SOCK": "/tmp/agent",
}  # fmt: skip


def test_what_decides_speed_and_where_things_are_travels() -> None:
    travels = ["DATA_ROOT", "NCCL_DEBUG", "OMP_NUM_THREADS", "PYTHONPATH", "SCALING_STUDY_RESULTS"]
    assert variables.exported_names(HERE) == travels
    assert variables.exported_names(HERE, also=["MY_SETTING", "NOT_SET"]) == sorted([*travels, "MY_SETTING"])


def test_a_launcher_is_started_without_what_is_nobodys_business() -> None:
    without = ["env", "-u", "AWS_SECRET_ACCESS_KEY", "-u", "MY_SETTING", "-u", "WANDB_API_KEY"]
    assert variables.env_without_private(HERE) == without
    without = ["env", "-u", "AWS_SECRET_ACCESS_KEY", "-u", "WANDB_API_KEY"]
    assert variables.env_without_private(HERE, also=["MY_SETTING"]) == without
    assert variables.env_without_private({"PATH": "/bin"}) == []


def test_a_command_really_sees_nothing_else() -> None:
    seen = subprocess.run(
        [*variables.env_without_private(HERE), "env"], env=HERE, capture_output=True, text=True, check=True
    ).stdout
    assert "s3cret" not in seen and "DATA_ROOT=/data" in seen and "SSH_AUTH_SOCK" in seen


@given(st.dictionaries(st.text(st.characters(exclude_characters="=\0"), min_size=1), st.just("1")))
def test_a_variable_travels_stays_or_is_left_out(environment: dict[str, str]) -> None:
    travels, left_out = variables.exported_names(environment), variables.env_without_private(environment)[2::2]
    assert not set(travels) & set(left_out)


@pytest.mark.parametrize(
    "name",
    ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "PET_NNODES", "TORCHELASTIC_RUN_ID", "ACCELERATE_USE_FSDP",
     "HOROVOD_RANK", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK",
     "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "SLURM_JOB_ID", "SLURMD_NODENAME"],
)  # fmt: skip
def test_a_trial_here_does_not_get_what_would_decide_its_ranks_or_cores(name: str) -> None:
    environment = {"PATH": "/bin", "MY_SETTING": "1", name: "1"}
    assert list(variables.removed(environment)) == [name]
    assert variables.removed(environment)[name], "the source is named"
    assert not variables.removed(environment, given=[name]), "its own launcher or machine file sets it"
    assert variables.env_without(variables.removed(environment)) == ["env", "-u", name]


@pytest.mark.parametrize(
    "name",
    ["OMP_NUM_THREADS", "HOROVOD_FUSION_THRESHOLD", "HOROVOD_GLOO_TIMEOUT_SECONDS",
     "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "SLURM_CONF", "MASTERPIECE",
     "PMIX_MCA_gds", "PYTHONPATH", "RANKING", "OMPI_MCA_btl"],
)  # fmt: skip
def test_every_other_variable_passes(name: str) -> None:
    assert not variables.removed({name: "1"})


def test_what_srun_starts_keeps_its_job() -> None:
    environment = {"SLURM_JOB_ID": "41", "RANK": "0"}
    assert list(variables.removed(environment, in_job=True)) == ["RANK"]
    assert variables.env_without([]) == []


def test_ranks_of_another_launch_do_not_travel_to_other_hosts() -> None:
    assert variables.exported_names({"HOROVOD_RANK": "0", "OMP_PLACES": "cores", "HOROVOD_CYCLE_TIME": "1"}) == [
        "HOROVOD_CYCLE_TIME"
    ]


@pytest.mark.parametrize(
    "name", ["HOROVOD_SECRET_KEY", "TORCH_HUB_TOKEN", "NCCL_PASSWORD", "CUDA_API_KEY", "OMP_ACCESS_KEY", "HF_TOKEN"]
)
def test_the_value_of_a_possible_secret_is_in_no_record(name: str) -> None:
    environment = {name: "s3cret", "OMP_NUM_THREADS": "1", "HF_HOME": "/h"}
    kept = variables.recorded(environment, {name: "s3cret"})
    assert "s3cret" not in kept.values() and name in kept
    assert kept["OMP_NUM_THREADS"] == "1" and "HF_HOME" not in kept


def test_ordinary_names_are_no_secrets() -> None:
    names = ("KMP_BLOCKTIME", "NCCL_IB_PKEY", "OMP_STACKSIZE", "TORCH_MONKEY", "TOKENIZERS_PARALLELISM")
    plain = dict.fromkeys(names, "1")
    assert variables.without_secrets(plain) == plain
