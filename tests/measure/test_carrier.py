"""Which way a step's bytes went, by counters of this host. In real launches: tests/frameworks/test_launches.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling_study.measure import inspected
from scaling_study.measure.inspected import RDMA, SHARED_MEMORY, TCP, Traffic

MB = 1_000_000


@pytest.mark.parametrize(
    ("interfaces", "ports", "handed_over", "way"),
    [
        (2 * MB, 0, MB, TCP),
        (MB // 2, 0, MB, TCP),  # one of two workers: half of an allreduce each
        (MB // 10, 0, MB, SHARED_MEMORY),  # what others sent meanwhile
        (0, 2 * MB, MB, RDMA),
        (2 * MB, 2 * MB, MB, RDMA),
        (2 * MB, 0, 1000, ""),  # too few to tell
        (0, 0, 0, ""),
    ],
)
def test_the_way_is_that_whose_counter_moved(
    monkeypatch: pytest.MonkeyPatch, interfaces: int, ports: int, handed_over: int, way: str
) -> None:
    sent = {"interfaces": iter((7 * MB, 7 * MB + interfaces)), "ports": iter((3 * MB, 3 * MB + ports))}
    monkeypatch.setattr(inspected, "sent_by_interfaces", lambda: next(sent["interfaces"]))
    monkeypatch.setattr(inspected, "sent_by_rdma", lambda: next(sent["ports"]))
    with Traffic() as traffic:
        pass
    assert traffic.carrier(handed_over) == way


def test_ports_count_words_of_four_bytes(tmp_path: Path) -> None:
    assert inspected.sent_by_rdma(tmp_path) == 0
    for device, words in (("mlx5_0", 100), ("mlx5_1", 5)):
        counters = tmp_path / device / "ports" / "1" / "counters"
        counters.mkdir(parents=True)
        (counters / "port_xmit_data").write_text(f"{words}\n")
    assert inspected.sent_by_rdma(tmp_path) == 4 * 105
