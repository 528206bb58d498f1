"""The command line of ssh, and what its failures mean: the messages are OpenSSH 9.2's own."""

from __future__ import annotations

import shlex

import pytest

from scaling_study.hosts import hosts


def test_nothing_is_asked_of_a_person_and_the_shell_there_gets_one_command() -> None:
    made = hosts.ssh_command("h2", ["/venv/bin/python", "-c", "print('a b')", "$HOME"])
    assert made[0] == "ssh" and made[-2] == "h2"
    assert "BatchMode=yes" in made and not any("StrictHostKeyChecking" in word for word in made)
    assert shlex.split(made[-1]) == ["exec", "/venv/bin/python", "-c", "print('a b')", "$HOME"]


@pytest.mark.parametrize(
    ("code", "said", "why"),
    [
        (255, "Host key verification failed.\n",
              "ssh: Host key verification failed: known_hosts has no key for it, "
              "or another one: check it, then `ssh h2` once"),
        (255, "root@h2: Permission denied (publickey).\n",
              "ssh: root@h2: Permission denied (publickey): it does not accept this user's key: ssh-copy-id h2"),
        (255, "ssh: Could not resolve hostname h2: Name or service not known\n",
              "ssh: Could not resolve hostname h2: Name or service not known: its name does not resolve here: "
              "check /etc/hosts or DNS"),
        (255, "ssh: connect to host h2 port 22: Connection refused\n",
              "ssh: connect to host h2 port 22: Connection refused: no sshd is listening there: start it"),
        (255, "Timeout, server h2 not responding.\n",
              "ssh: Timeout, server h2 not responding: the host, or the network to it, has failed"),
        (255, "kex_exchange_identification: read\n",
              "ssh: kex_exchange_identification: read: try `ssh h2 true` by hand"),
        (255, "", "ssh: the connection was lost: try `ssh h2 true` by hand"),
        (127, "bash: line 1: /venv/bin/python: No such file or directory\n",
              "bash: line 1: /venv/bin/python: No such file or directory: "
              "every host needs the same environment in the same place"),
        (1, "Traceback\n  File x\nModuleNotFoundError: No module named 'psutil'\n",
            "ModuleNotFoundError: No module named 'psutil'"),
        (3, "", "ended with exit code 3"),
    ],
)  # fmt: skip
def test_each_failure_is_one_clause_with_what_helps(code: int, said: str, why: str) -> None:
    assert hosts.ssh_failure("h2", code, said) == why


def test_the_remedy_stands_beside_the_line_it_belongs_to() -> None:
    said = "@@@@@@@@\nWARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\n@@@@@@@@\nHost key verification failed.\n"
    assert hosts.ssh_failure("h2", 255, said).startswith("ssh: Host key verification failed: ")
