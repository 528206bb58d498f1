"""Hosts compared with each other: their descriptions are made up here, and real in tests/cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaling_study.errors import HostError
from scaling_study.hosts.hosts import Host
from scaling_study.launch import inspection
from scaling_study.launch.inspection import HostReport, Requirements
from scaling_study.machine import Machine
from scaling_study.study import plan
from scaling_study.study.machine_file import MachineFile
from scaling_study.study.study import Study
from scaling_study.study.support import Cluster

RESULTS = Path("results/a")
NEEDS = Requirements(frozenset({"torch"}), "eth0", cores=2, data=("/data",), models=("/a/my.py",))


def host(name: str, ahead: float = 0.0, **changes: Any) -> HostReport:
    machine = {"cores": 2, "cpu": "Xeon", "gpus": [], "libraries": {"torch": "2.15.0", "horovod": "0.28.1"}}
    facts = {
        "name": changes.pop("calls_itself", name), "package": "/repo/scaling_study/__init__.py", "commit": "abc",
        "python": "3.11.7",
        "code": {"a.py": "1", "b.py": "2"}, "interfaces": {"lo": "127.0.0.1", "eth0": "10.0.0.1"}, "missing_paths": [],
        "own_address": "10.0.0.1", "machine": {**machine, **changes.pop("machine", {})},
    }  # fmt: skip
    return HostReport(name, {**facts, **changes}, ahead, 0.001)


def problems(second: HostReport, needs: Requirements = NEEDS) -> list[str]:
    return list(inspection.problems([host("h1"), second], needs, RESULTS))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"python": "3.12.1"}, "h2: Python 3.12.1, h1 has 3.11.7: make setup with the same"),
        ({"machine": {"libraries": {"torch": "2.14.0"}}}, "h2: torch 2.14.0, h1 has 2.15.0: make setup"),
        ({"machine": {"libraries": {}}}, "h2: torch is missing, h1 has 2.15.0: make setup"),
        ({"package": ""}, "h2: imports scaling_study from nowhere, h1 from /repo/scaling_study: "
                        "make setup, or PYTHONPATH"),
        ({"interfaces": {"lo": "127.0.0.1"}}, "h2: no interface eth0 with an address, only none that is up "
                                              "(machine file: interface)"),
        ({"missing_paths": ["/.seen-x"]}, "h2: has no results/a: --results must be a folder that all hosts share"),
        ({"missing_paths": ["/data"]}, "h2: has no /data: the data must be at the same DATA_ROOT on every host"),
        ({"missing_paths": ["/a/my.py"]}, "h2: has no /a/my.py: the file of a model must be at the same path on "
                                          "every host"),
        ({"machine": {"cores": 1}}, "h2: has 1 cores, but its workers need 2: give it fewer slots"),
        ({"calls_itself": "h1"}, "h2: its hostname is h1, as is that of h1: list a host once, with all its slots; "
                                 "different hosts need different hostnames"),
        ({"ahead": 3.21}, "h2: its clock is 3.2 s ahead of this host's, so that errors cannot be ordered: "
                          "start chrony or ntpd there"),
        ({"ahead": -0.6}, "h2: its clock is 0.6 s behind this host's, so that errors cannot be ordered: "
                          "start chrony or ntpd there"),
    ],
)  # fmt: skip
def test_each_trouble_is_one_line_with_the_host_and_what_helps(changes: dict[str, Any], said: str) -> None:
    assert problems(host("h2", **changes)) == [said]


def test_other_code_is_named_by_its_files() -> None:
    (line,) = problems(host("h2", code={"a.py": "1", "b.py": "3", "c.py": "4", "d.py": "5", "e.py": "6"}, commit=""))
    assert line.startswith("h2: its code differs from h1's: b.py, c.py, d.py and 1 more (no commit, abc): update ")


def test_without_an_interface_a_hosts_own_name_must_lead_to_it() -> None:
    by_name = Requirements(frozenset(), "", 1)
    assert problems(host("h2"), by_name) == []
    for address in ("127.0.1.1", ""):
        (line,) = problems(host("h2", own_address=address), by_name)
        assert line.startswith(f"h2: its hostname resolves to {address or 'nothing'} there, ")


def test_unlike_hardware_is_a_note() -> None:
    other = host("h2", machine={"cpu": "EPYC", "cores": 4})
    assert problems(other) == []
    assert list(inspection.hardware_differences([host("h1"), other])) == [
        "h1 and h2 have different hardware (cpu Xeon and EPYC; cores 2 and 4): the slower one sets the pace"
    ]


def test_what_trials_need_of_each_host(study_of: Callable[..., Study], machine: Callable[..., Machine]) -> None:
    text = "study: a\nparity: false\nsweeps:\n  - framework: horovod\n    matrix: {model: [resnet8], %s}\n"
    cluster = Cluster((Host("h1", 8), Host("h2", 8)), MachineFile(interface="ib0"))
    made = plan.make(study_of(text % "workers: [2, 4], hosts: [2]"), machine(cores=4), cluster=cluster)
    needs = inspection.requirements(made, [planned.trial for planned in made.configurations])
    assert needs == Requirements(frozenset({"horovod", "torch", "torchvision"}), "ib0", cores=4, gpus=0)


def test_this_host_under_a_name_that_it_does_not_know_is_refused_with_one_that_it_does() -> None:
    alias = host("pub", calls_itself="h1.org")._replace(is_this=True)
    assert problems(alias) == [inspection.same_host("pub")]
    assert problems(alias._replace(facts={**alias.facts, "name": "h1"})) == [
        "pub: its hostname is h1, as is that of h1: list a host once, with all its slots; "
        "different hosts need different hostnames"
    ]


def test_this_host_twice_is_refused_before_anything_is_asked(
    study_of: Callable[..., Study], machine: Callable[..., Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "study: a\nparity: false\nsweeps:\n  - framework: torch_ddp\n    matrix: {model: [resnet8], %s}\n"
    monkeypatch.setattr(inspection, "_report", lambda *_: pytest.fail("asked"))

    def inspected(*hosts: str) -> list[str]:
        cluster = Cluster(tuple(Host(name, 2) for name in hosts))
        made = plan.make(study_of(text % f"workers: [6], hosts: [{len(hosts)}]"), machine(cores=8), cluster=cluster)
        return inspection.inspect_hosts(made, [planned.trial for planned in made.configurations], tmp_path)

    assert inspected("localhost") == []
    for names in (("localhost", "127.0.1.1"), ("localhost", "h2.example", "127.0.1.1")):
        with pytest.raises(HostError) as refused:
            inspected(*names)
        assert refused.value.problems == [
            "127.0.1.1: is this host, as is localhost: list a host once, with all its slots"
        ]
