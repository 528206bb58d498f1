"""Tests on more than one host (make test-cluster): real ones, made of namespaces where the machine allows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from network import Network, why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
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
