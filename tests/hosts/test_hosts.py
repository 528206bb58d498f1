"""Hosts as people and Slurm write them, which of them a trial takes, and how another one is reached."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scaling_study.errors import StudyError
from scaling_study.hosts import hosts
from scaling_study.hosts.hosts import Allocation, Host, current, expand

FOUR = (Host("h1", 4), Host("h2", 4), Host("h3", 4), Host("h4", 2))


def refused(read: Callable[[], object]) -> list[str]:
    with pytest.raises(StudyError) as wrong:
        read()
    return wrong.value.problems


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h1:2,h2:2", (Host("h1", 2), Host("h2", 2))),
        (" gpu-01.cluster.org:8 , 10.0.0.17", (Host("gpu-01.cluster.org", 8), Host("10.0.0.17", 1))),
    ],
)
def test_an_option_names_hosts_with_their_slots(text, said):
    assert hosts.parse_option(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h1:0", "'h1:0': slots=0; the range is 1 to 1,024"),
        ("h1:two", "'h1:two': 'two' is not a number of slots; expected "),
        ("h1:", "'h1:': '' is not a number of slots; expected "),
        ("", "'' is not a host name; expected "),
        ("me@h1:2", "'me@h1:2': set the user in ~/.ssh/config "),
        ("-oProxyCommand=reboot:1", "'-oProxyCommand=reboot' is not a host name"),
        ("_h1", "'_h1' is not a host name"),
        ("10.0.0.256:1", "'10.0.0.256' is not a host name"),
        ("fe80::1", "'fe80::1': ':1' is not a number of slots"),
        ("h1:2,H1:3", "host H1 is listed twice; list it once, with all its slots"),
    ],
)
def test_what_is_no_host_is_refused_with_what_would_be_right(text, said):
    (problem,) = refused(lambda: hosts.parse_option(text))
    assert problem.startswith(f"--hosts: {said}")


@pytest.mark.parametrize(
    "text", ["h1 slots=2\nh2 slots=2\n", "# two\n\n  h1:2 # the first\nh2:2", "h1 slots=2 max_slots=4\nh2 slots=2\r\n"]
)
def test_a_hostfile_of_any_launcher_is_understood(text, tmp_path):
    file = tmp_path / "hostfile"
    file.write_bytes(text.encode())
    assert hosts.read_hostfile(file) == (Host("h1", 2), Host("h2", 2))


def test_what_is_wrong_in_a_hostfile_is_said_with_its_line(tmp_path):
    text = "h1 slots=2\nh2 slot=2\n# nothing\nh3 slots=0\nh1:4\nh4:2 slots=3\n"
    assert refused(lambda: hosts.parse_hostfile(text, "hostfile")) == [
        "hostfile:2: 'slot=2' is not understood; expected `h1 slots=2` or `h1:2`",
        "hostfile:4: 'h3 slots=0': slots=0; the range is 1 to 1,024",
        "hostfile:6: 'slots=3' is not understood; expected `h1 slots=2` or `h1:2`",
        "hostfile:5: host h1 is listed twice (first hostfile:1); list it once, with all its slots",
    ]
    (tmp_path / "bytes").write_bytes(b"h1 slots=\xff")
    (tmp_path / "empty").write_text("# nobody\n")
    for name, said in (("none", "cannot be read: No such"), ("bytes", "not UTF-8"), ("empty", "lists no hosts")):
        (problem,) = refused(lambda name=name: hosts.read_hostfile(tmp_path / name))  # type: ignore[misc]
        assert problem.startswith(f"{tmp_path / name}: {said}")


@given(st.text(max_size=60))
@example(":")
@example(":2")
def test_any_text_gives_hosts_that_every_shell_takes_or_a_problem(text):
    for read in (hosts.parse_option, lambda said: hosts.parse_hostfile(said, "f")):
        try:
            for host in read(text):
                assert hosts.HOST_NAME.fullmatch(host.name) and 1 <= host.slots <= hosts.MOST_SLOTS
        except StudyError as wrong:
            assert wrong.problems


def test_a_study_names_its_hosts(study_of, problems_of):
    sweeps = "sweeps: [{framework: single, model: resnet8}]\n"
    assert study_of(f"study: a\nhosts: [h1:2, h2:2]\n{sweeps}").hosts == (Host("h1", 2), Host("h2", 2))
    assert problems_of(f"study: a\nhosts:\n  - h1:2\n  - h1:3\n  - h 2\n{sweeps}") == [
        "study.yaml:5: 'h 2' is not a host name; expected a name or IPv4 address with its slots, like h1:2",
        "study.yaml:4: host h1 is listed twice (first study.yaml:3); list it once, with all its slots",
    ]


@pytest.mark.parametrize(
    ("count", "workers", "why"),
    [
        (4, 8, ""),
        (4, 16, "hosts=4 needs 4 slots on each, but h4 has slots=2"),
        (5, 5, "hosts=5, but 4 are listed (h1:4, h2:4, h3:4, h4:2)"),
    ],
)
def test_too_few_hosts_or_slots_are_said(count, workers, why):
    assert hosts.capacity_problem(FOUR, count, workers) == why
    assert "but no hosts are listed" in hosts.capacity_problem((), count, workers)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node1", ["node1"]),
        ("gpu[08-10,7],login", ["gpu08", "gpu09", "gpu10", "gpu7", "login"]),
        ("rack[1-2]node[01-02]", ["rack1node01", "rack1node02", "rack2node01", "rack2node02"]),
        ("a-[9-11].b,c", ["a-9.b", "a-10.b", "a-11.b", "c"]),
    ],
)
def test_a_list_of_slurms_is_written_out(text, said):
    assert expand(text) == said


@pytest.mark.parametrize("text", ["", "node[1-3", "node1]", "node[a-c]", "node[]", "a,,b", "no de", "n[[1]]", "$(id)"])
def test_what_is_no_list_is_refused(text):
    with pytest.raises(ValueError, match=r"host|expected numbers"):
        expand(text)


@pytest.mark.parametrize("text", ["n[0-999999999]", "n[0-999][0-999]", "n[0-99999],m[0-99999]"])
def test_a_few_letters_do_not_fill_the_memory(text):
    with pytest.raises(ValueError, match="more than 100,000 hosts"):
        expand(text)


@pytest.mark.skipif(not shutil.which("scontrol"), reason="no scontrol on this machine")
@pytest.mark.parametrize("text", ["node[1-3]", "gpu[08-11,7],login", "r[1-2]n[01-02]", "n[099-101]"])
def test_scontrol_says_the_same(text, tmp_path):
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=x\nSlurmctldHost=localhost\nAuthType=auth/none\nCredType=cred/none\n"
        "NodeName=x\nPartitionName=x Nodes=x\n"
    )
    asked, conf = ["scontrol", "show", "hostnames", text], {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    done = subprocess.run(asked, env=conf, capture_output=True, text=True, check=False)
    assert done.stdout.split() == expand(text), done.stderr


JOB = {  # of a real one (Slurm 22.05)
    "SLURM_CLUSTER_NAME": "planted", "SLURM_JOB_CPUS_PER_NODE": "1(x2)", "SLURM_JOB_ID": "41",
    "SLURM_JOB_NAME": "tiny.fcea7bd1", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_PARTITION": "main",
}  # fmt: skip


def test_the_job_around_a_process_is_known_by_its_variables():
    found = current(JOB)
    assert found == Allocation("41", "tiny.fcea7bd1", "planted", "main", ("node1", "node2"), (1, 1))
    assert found.to_dict() == {
        "job": "41", "name": "tiny.fcea7bd1", "cluster": "planted", "partition": "main", "hosts": ["node1", "node2"],
    }  # fmt: skip
    assert current({}) is None and current({"SLURM_CONF": "/etc/slurm/slurm.conf"}) is None
    assert current({**JOB, "SLURM_JOB_NODELIST": "node[1-"}).hosts == ()  # type: ignore[union-attr]


@pytest.mark.parametrize(("said", "cores"), [("4(x2)", (4, 4)), ("16,8", (16, 8)), ("2(x9)", (2, 2)), ("many", ())])
def test_cores_on_each_host(said, cores):
    assert current({**JOB, "SLURM_JOB_CPUS_PER_NODE": said}).cores == cores  # type: ignore[union-attr]


def test_a_host_of_the_job_is_reached_by_srun_and_every_other_by_ssh():
    assert hosts.command("node2", ["python", "-c", "print('a b')"], JOB) == [
        "srun", "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--mem=0", "--unbuffered", "--quiet",
        "--nodelist=node2", "python", "-c", "print('a b')",
    ]  # fmt: skip
    assert (
        hosts.command("node3", ["true"], JOB)
        == hosts.command("node3", ["true"], {})
        == hosts.ssh_command("node3", ["true"])
    )


def test_what_went_wrong_is_said_in_the_words_of_what_was_used():
    said = "srun: error: Unable to create step for job 41: Invalid node name specified\n"
    assert hosts.failure("node2", 1, said, JOB) == "srun: Unable to create step for job 41: Invalid node name specified"
    assert hosts.failure("node2", 1, "first\nlast\n", JOB) == "last"
    assert hosts.failure("node3", 255, "ssh: Connection refused", JOB).startswith("ssh: Connection refused: ")


def test_nothing_is_asked_of_a_person_and_the_shell_there_gets_one_command():
    made = hosts.ssh_command("h2", ["/venv/bin/python", "-c", "print('a b')", "$HOME"])
    assert made[0] == "ssh" and made[-2] == "h2"
    assert "BatchMode=yes" in made and not any("StrictHostKeyChecking" in word for word in made)
    assert shlex.split(made[-1]) == ["exec", "/venv/bin/python", "-c", "print('a b')", "$HOME"]


@pytest.mark.parametrize(
    ("code", "said", "line", "remedy"),
    [
        (255, "Host key verification failed.\n", "ssh: Host key verification failed", "known_hosts has no key for it"),
        (255, "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\nHost key verification failed.\n",
              "ssh: Host key verification failed", "known_hosts has no key for it"),
        (255, "root@h2: Permission denied (publickey).\n",
              "ssh: root@h2: Permission denied (publickey)", "it does not accept this user's key: ssh-copy-id h2"),
        (255, "Timeout, server h2 not responding.\n", "ssh: Timeout, server h2 not responding", "the host, or the"),
        (255, "", "ssh: the connection was lost", "try `ssh h2 true` by hand"),
        (127, "bash: line 1: python: No such file\n", "bash: line 1: python: No such file", "every host needs"),
        (1, "Traceback\n  File x\nNameError: no 'x'\n", "NameError", "no 'x'"),
        (3, "", "ended with exit code 3", ""),
    ],
)  # fmt: skip
def test_each_failure_is_one_clause_with_what_helps(code, said, line, remedy):
    assert hosts.ssh_failure("h2", code, said).startswith(f"{line}: {remedy}" if remedy else line)
