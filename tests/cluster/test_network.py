"""The hosts that all other tests here are about are what they say, and go with the test that made them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from eventually import gone
from network import Network


def of_this_machine() -> tuple[str, str, str]:
    """Interfaces, mounts and named namespaces, as everybody sees them."""
    interfaces = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    named = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return interfaces, Path("/proc/self/mounts").read_text(), named


def test_four_hosts_are_up_in_two_seconds_and_leave_nothing(
    may_make_hosts: None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before, taken = of_this_machine(), list[float]()
    while len(taken) < 5 and min(taken, default=9.0) >= 2.0:  # the first time, unless the machine is busy
        folder, start = tmp_path_factory.mktemp("hosts"), time.monotonic()
        with Network(4, folder):
            taken.append(time.monotonic() - start)
    assert min(taken) < 2.0, taken
    with Network(4, tmp_path) as network:
        h4 = network["h4"].pid
        assert of_this_machine() == before, "nothing of them is seen outside"
        for host in network:
            assert host.run("hostname").stdout.strip() == host.name
        said = network["h1"].run("sh", "-c", "for h in h2 h3 h4; do ssh $h hostname; done; touch /tmp/mine; ls /tmp")
        assert said.stdout.split()[:3] == ["h2", "h3", "h4"], said.stderr
        assert "mine" not in network["h2"].run("ls", "/tmp").stdout, "/tmp is a host's own"
        assert network["h3"].run("ls", str(tmp_path)).stdout.split() == ["network"], "this folder is everybody's"
    assert of_this_machine() == before and not psutil.pid_exists(h4)


def test_hosts_go_with_a_test_that_is_killed(may_make_hosts: None, tmp_path: Path) -> None:
    program = (
        f"import sys, time; sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]!r}\n"
        "from pathlib import Path; from eventually import until; from network import Network\n"
        f"with Network(2, Path({str(tmp_path)!r})) as network:\n"
        "    nsenter = network['h2'].start('sleep', '600')\n"
        "    until(network['h2'].processes)  # nsenter enters first, and then starts it\n"
        "    print(*[host.pid for host in network], network['h2'].processes()[0].pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    tester = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert tester.stdout
    theirs = [int(word) for word in tester.stdout.readline().split()]
    assert len(theirs) == 3 and all(map(psutil.pid_exists, theirs))
    tester.send_signal(signal.SIGKILL)
    tester.wait()
    assert not gone(theirs)
