"""Hivemind's peers are killed at random moments, or end by themselves: none of their processes lives on.

A peer has three children and a daemon, in the end sessions of nobody's. As published, all of them outlive a peer that
is killed (docs/guide/pipelines-meshes-and-peers.md). Started by torchrun alone, without a supervisor of a sweep that
would end them.
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import eventually
import psutil
import pytest
import survivors
from ledger import SEED, TIMES, Ledger, Row

from scaling_study.machine import installed
from scaling_study.settings import CHECKOUT

pytestmark = pytest.mark.skipif(not installed("hivemind"), reason="hivemind is not installed")
LAUNCH = shlex.split("""torchrun --standalone --local-addr 127.0.0.1 --nproc-per-node 2
    decentralized/hivemind_peers.py --model resnet8 --data synthetic --cores-per-worker 1
    --batch-per-worker 16 --target-batch-size 64 --matchmaking-seconds 1""")
ENDED_SECONDS = 10  # after which nothing may be left
LATEST_SECONDS = 8.0  # from the first round's beginning to the kill
AT_LEAST = 8  # processes of two peers that train: each is one, with two averagers, a DHT and its daemon


def one_peer(launcher: psutil.Process, peers: list[psutil.Process]) -> None:
    peers[1].kill()


def all_at_once(launcher: psutil.Process, peers: list[psutil.Process]) -> None:
    launcher.kill()
    for peer in peers:
        peer.kill()


def asked_to_end(launcher: psutil.Process, peers: list[psutil.Process]) -> None:
    launcher.send_signal(signal.SIGTERM)


def by_itself(launcher: psutil.Process, peers: list[psutil.Process]) -> None:
    """It is over."""


@pytest.mark.parametrize("end", [one_peer, all_at_once, asked_to_end, by_itself], ids=lambda end: end.__name__)
def test_no_process_of_a_peer_lives_on(end: Callable[..., None], ledger: Ledger) -> None:
    moments = random.Random(f"{SEED} {end.__name__}")
    for _ in range(TIMES):
        mark, moment = uuid.uuid4().hex, moments.uniform(0, LATEST_SECONDS)
        steps = "2" if end is by_itself else "1000"
        with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log", "w+b") as log:
            launched = subprocess.Popen(
                [*LAUNCH, "--steps", steps, "--warmup-steps", "1" if end is by_itself else "5"], cwd=CHECKOUT,
                env={**os.environ, "PYTHONPATH": str(CHECKOUT), "TMPDIR": folder, survivors.MARK: mark},
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            launcher = psutil.Process(launched.pid)
            processes = in_a_round(launched, Path(folder) / "log")
            if end is by_itself:
                launched.wait(120)
            else:
                time.sleep(moment)
                end(launcher, [child for child in launcher.children() if child.ppid() == launched.pid])
            start = time.monotonic()
            left = eventually.gone(processes, ENDED_SECONDS)
            row = Row(
                f"Hivemind's peers: {end.__name__.replace('_', ' ')}", "rank", moment_seconds=moment, seed=SEED,
                orphans=[f"{process.name()} {process.pid}" for process in left],
                ended_seconds=time.monotonic() - start,
            )  # fmt: skip
            if len(processes) < AT_LEAST:
                row.wrong.append(f"only {len(processes)} processes were seen")
            survivors.end(left)
            launched.wait(60)
            if end is by_itself and launched.returncode != 0:
                row.wrong.append(f"exit code {launched.returncode}")
            ledger.rows.append(row)
            assert not row.faults, row


def in_a_round(launched: subprocess.Popen[bytes], log: Path) -> list[psutil.Process]:
    """All processes below a launcher, once its peers train."""
    deadline = time.monotonic() + 120
    while b"Running warm-up" not in log.read_bytes():
        assert launched.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)
    return [psutil.Process(launched.pid), *psutil.Process(launched.pid).children(recursive=True)]
