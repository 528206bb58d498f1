"""What of the environment travels, and what stays at home."""

from __future__ import annotations

import subprocess

from hypothesis import given
from hypothesis import strategies as st

from scaling_study.hosts import hosts

HERE = {
    "PATH": "/bin", "HOME": "/root", "DATA_ROOT": "/data", "OMP_NUM_THREADS": "1", "NCCL_DEBUG": "WARN",
    "AWS_SECRET_ACCESS_KEY": "s3cret", "WANDB_API_KEY": "s3cret", "MY_SETTING": "1", "PYTHONPATH": "/repo",
    "SCALING_STUDY_RESULTS": "/r", "SSH_AUTH_SOCK": "/tmp/agent",
}  # fmt: skip


def test_what_decides_speed_and_where_things_are_travels() -> None:
    travels = ["DATA_ROOT", "NCCL_DEBUG", "OMP_NUM_THREADS", "PYTHONPATH", "SCALING_STUDY_RESULTS"]
    assert hosts.exported_names(HERE) == travels
    assert hosts.exported_names(HERE, also=["MY_SETTING", "NOT_SET"]) == sorted([*travels, "MY_SETTING"])


def test_a_launcher_is_started_without_what_is_nobodys_business() -> None:
    without = ["env", "-u", "AWS_SECRET_ACCESS_KEY", "-u", "MY_SETTING", "-u", "WANDB_API_KEY"]
    assert hosts.env_without_private(HERE) == without
    assert hosts.env_without_private(HERE, also=["MY_SETTING"]) == [
        "env",
        "-u",
        "AWS_SECRET_ACCESS_KEY",
        "-u",
        "WANDB_API_KEY",
    ]
    assert hosts.env_without_private({"PATH": "/bin"}) == []


def test_a_command_really_sees_nothing_else() -> None:
    seen = subprocess.run(
        [*hosts.env_without_private(HERE), "env"], env=HERE, capture_output=True, text=True, check=True
    ).stdout
    assert "s3cret" not in seen and "DATA_ROOT=/data" in seen and "SSH_AUTH_SOCK" in seen


@given(st.dictionaries(st.text(st.characters(exclude_characters="=\0"), min_size=1), st.just("1")))
def test_a_variable_travels_stays_or_is_left_out(environment: dict[str, str]) -> None:
    travels, left_out = hosts.exported_names(environment), hosts.env_without_private(environment)[2::2]
    assert not set(travels) & set(left_out)
