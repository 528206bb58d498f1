"""The bytes that really cross a socket, against the bytes counted at the call to the collective.

Each rank asks the kernel (TCP_INFO) how much its own sockets have sent. A ring allreduce of n workers sends
2 (n-1)/n of the gradients from each: with two workers, exactly once their size, plus Gloo's and Horovod's headers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import forked
import in_turn
import pytest

PROGRAM = """
import json, os, socket, struct, sys
import horovod.torch as hvd, torch
from scaling_study.measure import Wire

TCP_INFO_BYTES_SENT = 200  # offset of tcpi_bytes_sent in struct tcp_info (linux/tcp.h), since Linux 4.19

def bytes_sent():
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as s:
                info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
            total += struct.unpack_from("Q", info, TCP_INFO_BYTES_SENT)[0] if len(info) >= 208 else 0
        except OSError:
            continue
    return total

hvd.init()
model = torch.nn.Linear(1000, 1000, bias=False)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=.1), model.named_parameters(),
                                     compression=getattr(hvd.Compression, sys.argv[1]))
wire = Wire()
wire.watch(hvd.optimizer, "allreduce_async_", "allreduce")
def step():
    model(torch.ones(2, 1000)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
step()
before = bytes_sent()
for _ in range(10):
    step()
crossed = (bytes_sent() - before) / 10
with wire:
    step()
if hvd.rank() == 0:
    json.dump({"crossed": crossed, "counted": wire.bytes["allreduce"]}, open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module")
def bytes_by_compression(tmp_path_factory) -> dict[str, dict[str, float]]:
    """What crossed and what was counted with each compression, in one launch of two ranks."""
    folder = tmp_path_factory.mktemp("wire")
    (folder / "program.py").write_text(PROGRAM)
    out = {compression: folder / f"{compression}.json" for compression in ("none", "fp16")}
    program = in_turn.program(folder, *([folder / "program.py", name, path] for name, path in out.items()))
    argv = [str(Path(sys.executable).parent / "horovodrun"), "-np", "2", "--gloo", *program]
    done = forked.launch(argv)
    assert done.returncode == 0, done.stderr
    return {name: json.loads(path.read_text()) for name, path in out.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("compression", "size"), [("none", 4), ("fp16", 2)])
def test_counted_bytes_are_what_crosses_the_socket(bytes_by_compression, compression, size):
    bytes_ = bytes_by_compression[compression]
    assert bytes_["counted"] == 1_000_000 * size
    assert bytes_["counted"] <= bytes_["crossed"] < 1.02 * bytes_["counted"]
