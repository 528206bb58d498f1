"""What these tests plant is read at once and then gone: nothing waits for a disk to have it for good."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest

from analysis.views import figures


@pytest.fixture(scope="module", autouse=True)
def in_no_need_of_a_disk() -> Iterator[None]:
    with patch("os.fsync"):
        yield


@pytest.fixture
def draw_only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """draw_only("throughput", "drift"): of all kinds of figures only these, as drawing takes most of the time."""
    kinds = figures.figure_kinds

    def patched(*names: str) -> None:
        monkeypatch.setattr(figures, "figure_kinds", lambda read: [kind for kind in kinds(read) if kind[0] in names])

    return patched
