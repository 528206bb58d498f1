"""Lists of hosts as Slurm writes them; with a Slurm here, held against its own `scontrol show hostnames`."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.hosts.hosts import expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("gpu[08-10,7],login", ["gpu08", "gpu09", "gpu10", "gpu7", "login"]),
        ("rack[1-2]node[01-02]", ["rack1node01", "rack1node02", "rack2node01", "rack2node02"]),
        ("a-[9-11].b,c", ["a-9.b", "a-10.b", "a-11.b", "c"]),
    ],
)
def test_it_is_written_out(text, hosts):
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text", ["", "node[1-3", "node1]", "node[a-c]", "node[]", "a,,b", ",a", "no de", "node[1-", "n[[1]]", "$(id)"]
)
def test_what_is_no_list_is_refused(text):
    with pytest.raises(ValueError, match=r"host|expected numbers"):
        expand(text)


@pytest.mark.parametrize("text", ["n[0-999999999]", "n[0-999][0-999]", "n[0-99999],m[0-99999]"])
def test_a_few_letters_do_not_fill_the_memory(text):
    with pytest.raises(ValueError, match="more than 100,000 hosts"):
        expand(text)


RANGES = st.tuples(st.integers(0, 30), st.integers(0, 9), st.integers(1, 3)).map(
    lambda r: f"{r[0]:0{r[2]}}-{r[0] + r[1]:0{r[2]}}"
)
PARTS = st.tuples(
    st.sampled_from(["n", "gpu-", "rack1."]), st.lists(RANGES, min_size=1, max_size=3), st.sampled_from(["", "-ib"])
).map(lambda p: f"{p[0]}[{','.join(p[1])}]{p[2]}")


@given(st.lists(PARTS | st.sampled_from(["login", "a1"]), min_size=1, max_size=3).map(",".join))
def test_as_many_as_there_are_and_none_with_brackets(text):
    hosts = expand(text)
    assert hosts and not set("[],") & set("".join(hosts))
    assert expand(",".join(hosts)) == hosts


@pytest.mark.skipif(not shutil.which("scontrol"), reason="no scontrol on this machine")
@pytest.mark.parametrize("text", ["node[1-3]", "gpu[08-11,7],login", "r[1-2]n[01-02]", "n[099-101]"])
def test_scontrol_says_the_same(text, tmp_path):
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=x\nSlurmctldHost=localhost\nAuthType=auth/none\nCredType=cred/none\n"
        "NodeName=x\nPartitionName=x Nodes=x\n"
    )
    asked = ["scontrol", "show", "hostnames", text]
    done = subprocess.run(asked, env={"SLURM_CONF": str(tmp_path / "slurm.conf")}, capture_output=True, text=True)
    assert done.stdout.split() == expand(text), done.stderr
