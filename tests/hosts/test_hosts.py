"""Hosts as people write them: in an option, a study or a hostfile; and which of them a trial takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scaling_study.errors import StudyError
from scaling_study.hosts import hosts
from scaling_study.hosts.hosts import Host
from scaling_study.study.study import Study

FOUR = (Host("h1", 4), Host("h2", 4), Host("h3", 4), Host("h4", 2))


def refused(read: Callable[[], object]) -> list[str]:
    with pytest.raises(StudyError) as wrong:
        read()
    return wrong.value.problems


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h1:2,h2:2", (Host("h1", 2), Host("h2", 2))),
        ("h1", (Host("h1", 1),)),
        (" gpu-01.cluster.org:8 , 10.0.0.17:4", (Host("gpu-01.cluster.org", 8), Host("10.0.0.17", 4))),
        ("0.0.0.0:1024", (Host("0.0.0.0", 1024),)),
    ],
)
def test_an_option_names_hosts_with_their_slots(text: str, said: tuple[Host, ...]) -> None:
    assert hosts.parse_option(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h1:0", "--hosts: 'h1:0': slots=0; the range is 1 to 1,024"),
        ("h1:two", "--hosts: 'h1:two': 'two' is not a number of slots; expected "),
        ("h1:", "--hosts: 'h1:': '' is not a number of slots; expected "),
        ("", "--hosts: '' is not a host name; expected "),
        ("me@h1:2", "--hosts: 'me@h1:2': set the user in ~/.ssh/config "),
        ("-oProxyCommand=reboot:1", "--hosts: '-oProxyCommand=reboot' is not a host name"),
        ("h_1", "--hosts: 'h_1' is not a host name"),
        ("10.0.0.256:1", "--hosts: '10.0.0.256' is not a host name"),
        ("fe80::1", "--hosts: 'fe80::1': ':1' is not a number of slots"),
        ("a" * 254, "--hosts: 'aaaaaaaaaaaa"),
        ("h1:2,H1:3", "--hosts: host H1 is listed twice; list it once, with all its slots"),
    ],
)
def test_what_is_no_host_is_refused_with_what_would_be_right(text: str, said: str) -> None:
    (problem,) = refused(lambda: hosts.parse_option(text))
    assert problem.startswith(said)


@pytest.mark.parametrize("text", ["h1 slots=2\nh2 slots=2\n", "h1:2\nh2:2\n", "# two\n\n  h1 slots=2 # the first\nh2:2",
                                  "h1 slots=2 max_slots=4\nh2 slots=2 max-slots=4\r\n"])  # fmt: skip
def test_a_hostfile_of_any_launcher_is_understood(text: str, tmp_path: Path) -> None:
    file = tmp_path / "hostfile"
    file.write_bytes(text.encode())
    assert hosts.read_hostfile(file) == (Host("h1", 2), Host("h2", 2))


def test_what_is_wrong_in_a_hostfile_is_said_with_its_line() -> None:
    text = "h1 slots=2\nh2 slot=2\n# nothing\nh3 slots=0\nh1:4\nh4:2 slots=3\nh5 2\n"
    assert refused(lambda: hosts.parse_hostfile(text, "hostfile")) == [
        "hostfile:2: 'slot=2' is not understood; expected `h1 slots=2` or `h1:2`",
        "hostfile:4: 'h3 slots=0': slots=0; the range is 1 to 1,024",
        "hostfile:6: 'slots=3' is not understood; expected `h1 slots=2` or `h1:2`",
        "hostfile:7: '2' is not understood; expected `h1 slots=2` or `h1:2`",
        "hostfile:5: host h1 is listed twice (first hostfile:1); list it once, with all its slots",
    ]


def test_what_is_no_file_of_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"h1 slots=\xff")
    for name, said in (("none", "cannot be read: No such file"), ("bytes", "not UTF-8")):
        (problem,) = refused(lambda name=name: hosts.read_hostfile(tmp_path / name))  # type: ignore[misc]
        assert problem.startswith(f"{tmp_path / name}: {said}")


@given(st.text(max_size=60))
@example(":")
@example(":2")
def test_any_text_gives_hosts_that_every_shell_takes_or_a_problem(text: str) -> None:
    for read in (hosts.parse_option, lambda said: hosts.parse_hostfile(said, "f")):
        try:
            for host in read(text):
                assert hosts.HOST_NAME.fullmatch(host.name) and 1 <= host.slots <= hosts.MOST_SLOTS
        except StudyError as wrong:
            assert wrong.problems


def test_a_study_names_its_hosts(study_of: Callable[..., Study]) -> None:
    sweeps = "sweeps: [{framework: single, model: resnet8}]\n"
    assert study_of(f"study: a\nhosts: [h1:2, h2:2]\n{sweeps}").hosts == (Host("h1", 2), Host("h2", 2))
    assert study_of(f"study: a\n{sweeps}").hosts == ()


def test_a_wrong_host_of_a_study_is_said_with_its_line(problems_of: Callable[[str], list[str]]) -> None:
    text = "study: a\nhosts:\n  - h1:2\n  - h1:3\n  - h 2\nsweeps: [{framework: single, model: resnet8}]\n"
    assert problems_of(text) == [
        "study.yaml:5: 'h 2' is not a host name; expected a name or IPv4 address with its slots, like h1:2",
        "study.yaml:4: host h1 is listed twice (first study.yaml:3); list it once, with all its slots",
    ]
    assert problems_of("study: a\nhosts: h1\nsweeps: [{framework: single}]\n") == [
        "study.yaml:2: hosts: 'h1' is not right: input should be a valid list"
    ]


@pytest.mark.parametrize(
    ("count", "workers", "why"),
    [
        (4, 8, ""),
        (4, 16, "hosts=4 needs 4 slots on each, but h4 has slots=2"),
        (5, 5, "hosts=5, but 4 are listed (h1:4, h2:4, h3:4, h4:2)"),
    ],
)
def test_too_few_hosts_or_slots_are_said(count: int, workers: int, why: str) -> None:
    assert hosts.capacity_problem(FOUR, count, workers) == why
    assert "but no hosts are listed" in hosts.capacity_problem((), count, workers)
