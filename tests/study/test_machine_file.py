"""Machine files: what they may say, and what is refused with its line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.errors import StudyError
from scaling_study.machine import Machine
from scaling_study.settings import CHECKOUT
from scaling_study.study import machine_file
from scaling_study.study.machine_file import MachineFile


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[str], list[str]]:
    def problems(text: str) -> list[str]:
        (tmp_path / "m.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(StudyError) as wrong:
            machine_file.load(tmp_path / "m.yaml")
        return [problem.replace(f"{tmp_path}/", "") for problem in wrong.value.problems]

    return problems


def test_the_example_says_everything_that_can_be_said_of_hosts():
    example = machine_file.load(CHECKOUT / "machines" / "example.yaml")
    assert example.interface == "eth0"
    assert example.environment == {"OMP_WAIT_POLICY": "passive", "NCCL_DEBUG": "WARN"}
    assert example.flags == {"mpirun": ["--mca", "btl_tcp_links", "4"]}
    assert example.price_per_worker_hour == 1.2
    assert example.hardware and example.hardware.machine({}).gpus_text == "4 x NVIDIA A100-SXM4-80GB"
    assert example.hosts == ["h1:4", "h2:4"]


def test_numbers_stand_for_their_text(tmp_path):
    (tmp_path / "m.yaml").write_text('environment: {A: 1, B: "1", C: 0.5, D: two words}\n')
    assert machine_file.load(tmp_path / "m.yaml").environment == {"A": "1", "B": "1", "C": "0.5", "D": "two words"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("interfce: eth0\n", "m.yaml:1: unknown key 'interfce'; did you mean 'interface'?"),
        ("description: x\ninterface: eth 0\n", "m.yaml:2: interface: 'eth 0' is not right: an interface is named"),
        ("environment:\n  1A: x\n", "m.yaml:1: environment: '1A' is not a variable name: letters, digits and _"),
        ("environment: {RANK: 0}\n", "m.yaml:1: environment: RANK is set for each trial or rank"),
        ('environment:\n  A: x\n  B: "a\\nb"\n', "m.yaml:3: environment.B: 'a\\nb' is not right: must not"),
        ('environment: {B: "a\\0b"}\n', "m.yaml:1: environment.B: 'a\\x00b' is not right: must not"),
        ("environment: {B: true}\n", "m.yaml:1: environment.B: True is not right: input should be a valid string"),
        ("environment: [A]\n", "m.yaml:1: environment: Input should be a valid dictionary"),
        ("flags: {mpi: [x]}\n", "m.yaml:1: flags.mpi: 'mpi' is not right; did you mean 'mpirun'? Input should be"),
        ("flags: {mpirun: -v}\n", "m.yaml:1: flags.mpirun: '-v' is not right: input should be a valid list"),
        ("price_per_worker_hour: -1\n", "m.yaml:1: price_per_worker_hour: -1 is not right: input should be greater"),
        ("hardware: {cores: 8, cpu: x}\n", "m.yaml:1: 'hardware.memory_gib' is missing"),
        (
            "hardware:\n  cores: 8\n  cpu: x\n  memory_gib: 8\n  gpus: {count: 8, name: A, memory_gib: 80, tflop: 9}\n",
            "m.yaml:5: unknown key 'tflop'; did you mean 'tflops'?",
        ),
        ("hardware: {cores: 8, cpu: x, memory_gib: 0}\n", "m.yaml:1: hardware.memory_gib: 0 is not right: input"),
        ("description: x\nhosts: [h1:8, h1:8]\n", "m.yaml:2: host h1 is listed twice; list it once"),
        ("- interface\n", "m.yaml:1: a machine file is a mapping"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(refused, text, said):
    (problem,) = refused(text)
    assert problem.startswith(said)


@given(st.dictionaries(st.text(max_size=8), st.one_of(st.text(max_size=8), st.integers(), st.none()), max_size=3))
def test_whatever_stands_in_an_environment_can_be_put_into_one(said):
    try:
        kept = MachineFile.model_validate({"environment": said}).environment
    except ValueError:
        return
    for name, value in kept.items():
        assert name.isascii() and name.isidentifier() and not {"\0", "\n", "\r"} & set(value)


def test_only_what_decides_speed_changes_the_fingerprint():
    assert MachineFile().fingerprint == ""
    assert MachineFile(description="x", price_per_worker_hour=2.0).fingerprint == ""
    eth0, ib0 = MachineFile(interface="eth0"), MachineFile(interface="ib0")
    assert len({eth0.fingerprint, ib0.fingerprint, MachineFile(environment={"A": "1"}).fingerprint}) == 3
    assert eth0.fingerprint == MachineFile(interface="eth0", price_per_worker_hour=2.0).fingerprint


def test_a_name_means_a_file_of_machines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert machine_file.find("example") == CHECKOUT / "machines" / "example.yaml"
    (tmp_path / "machines").mkdir()
    (tmp_path / "machines" / "example.yaml").touch()
    assert machine_file.find("example") == tmp_path / "machines" / "example.yaml", "one's own comes first"
    assert machine_file.find("here/mine") == Path("here/mine")
    assert machine_file.find("mine.yaml") == Path("mine.yaml")


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(StudyError, match=r"--machine 'exmple': there is no .*; did you mean 'example'\?"):
        machine_file.find("exmple")
    with pytest.raises(StudyError, match=r"; there are .*example"):
        machine_file.find("cluster-of-ours")


def test_a_machine_file_says_what_a_gpu_computes_in_whose_name_does_not(tmp_path: Path) -> None:
    text = "hardware: {cores: 8, cpu: x, memory_gib: 8, gpus: {count: 2, name: NEW, memory_gib: 80, capability: 13}}\n"
    (tmp_path / "m.yaml").write_text(text)
    file, here = machine_file.load(tmp_path / "m.yaml"), Machine(2, "x", 8 << 30, ("NEW",) * 2)
    assert here.capability == 0.0
    assert {file.machine(each, elsewhere=True).capability for each in (here, replace(here, gpus=()))} == {13.0}
    assert file.machine(replace(here, gpu_capability=12.1), elsewhere=True).capability == 12.1, (
        "the driver's word counts"
    )
