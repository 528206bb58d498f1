"""What these tests plant is read at once and then gone: nothing waits for a disk to have it for good."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest


@pytest.fixture(scope="module", autouse=True)
def in_no_need_of_a_disk() -> Iterator[None]:
    with patch("os.fsync"):
        yield
