"""Tests on more than one host: real ones, made of namespaces where the machine allows it.

make test-cluster                     one test of each kind (SHORT)
make test-long PART=cluster-ssh       all of them; PART=cluster-slurm: all on a Slurm
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from network import Network, why_not

SHORT = {  # one of each kind; every launcher starts over hosts in one of the first four
    "test_without_a_machine_file_names_decide",
    "test_commands_over_hosts_by_every_launcher",
    "test_what_is_started_by_hand_on_each_node_finds_the_other[ranks]",
    "test_a_whole_study_over_the_hosts_of_its_job",
    "test_srun_starts_the_ranks_of_mpi_over_both_hosts",
    "test_everything_that_is_wrong_is_said_at_once",
    "test_hosts_go_with_a_test_that_is_killed",
    "test_everything_ends_when_the_driver_is_killed[torchrun]",
    "test_ranks_of_two_hosts_take_turns_with_all_others",
    "test_the_whole_study_in_one_job",
    "test_a_job_for_each_trial_needs_no_driver",
    "test_srun_starts_ranks_and_a_time_out_ends_them",
    "test_a_job_that_is_hit[cancelled]",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All are slow and marked `cluster`; all but those of SHORT are long."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            if item.name not in SHORT:
                item.add_marker(pytest.mark.long)
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(900))  # launches of several ranks, on machines that may be busy


@pytest.fixture(scope="session")
def may_make_hosts() -> None:
    if why := why_not():
        pytest.skip(why)


@pytest.fixture(scope="module")
def network(may_make_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Two hosts, h1 and h2, with a core each; the machine's own network is not theirs."""
    with Network(2, tmp_path_factory.mktemp("shared"), cores=("0", "1")) as made:
        yield made


@pytest.fixture
def hosts(may_make_hosts: None, tmp_path: Path) -> Iterator[Network]:
    """Two hosts that may be broken."""
    with Network(2, tmp_path, cores=("0", "1")) as network:
        yield network
