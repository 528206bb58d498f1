"""A Llama's matrices split over two workers train what one process would, and a fault shows where the gate looks.

One launch of two ranks trains every way of split_llamas.py; test_conformance.py does so by tensor/torch_tp.py itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import forked
import pytest
from split_llamas import RIGHT, WRONG

from scaling_study.parity.compare import FP64_BOUND

Off = dict[str, dict[str, float]]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
# Of the largest weight. The smallest fault is that of norms, 2e-2: they are few, and start alike.
LEAST = 1e-3


@pytest.fixture(scope="module")
def off(tmp_path_factory: pytest.TempPathFactory) -> Off:
    out = tmp_path_factory.mktemp("split") / "off.json"
    done = forked.run(["torchrun", "--nproc-per-node", "2", Path(__file__).parent / "split_llamas.py", out])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: Off = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("way", RIGHT)
def test_a_llama_that_is_split_trains_what_one_process_would(off: Off, way: str) -> None:
    assert off[way]["weights"] < FP64_BOUND and off[way]["norm"] < FP64_BOUND, off[way]
    assert off[way]["clipped"] < 1e-4, "torch divides by the norm and 1e-6"


@pytest.mark.parametrize("fault", WRONG)
def test_a_planted_fault_is_further_off_than_any_rounding(off: Off, fault: str) -> None:
    assert off[fault]["weights"] > LEAST, off[fault]
