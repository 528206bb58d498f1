"""The bytes that really cross a socket, against the bytes counted at the call to the collective.

Each rank asks the kernel (TCP_INFO) how much its own sockets have sent (measure/wire.py). A ring allreduce of n workers
sends 2 (n-1)/n of the gradients from each: with two workers, exactly once their size, plus Gloo's and Horovod's
headers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import forked
import in_turn
import pytest

from scaling_study.stats.network import GLOO, sent_share

PROGRAM = """
import json, sys
import horovod.torch as hvd, torch
from scaling_study.measure import Wire
from scaling_study.measure.wire import sent_by_sockets

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
before = sent_by_sockets()
for _ in range(10):
    step()
crossed = (sent_by_sockets() - before) / 10
with wire:
    step()
hvd.barrier()
before = sent_by_sockets()
hvd.reducescatter(torch.ones(1_000_000), op=hvd.Sum, name="of a megabyte")
share = (sent_by_sockets() - before) / 4_000_000
hvd.barrier()
if hvd.rank() == 0:
    json.dump({"crossed": crossed, "counted": wire.bytes["allreduce"], "reduce_scatter": share}, open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module")
def bytes_by_compression(tmp_path_factory) -> dict[str, dict[str, float]]:
    """What crossed and what was counted with each compression, in one launch of two ranks."""
    folder = tmp_path_factory.mktemp("wire")
    (folder / "program.py").write_text(PROGRAM)
    out = {compression: folder / f"{compression}.json" for compression in ("none", "fp16")}
    program = in_turn.program(folder, *([folder / "program.py", name, path] for name, path in out.items()))
    argv = [str(Path(sys.executable).parent / "horovodrun"), "-np", "2", "--gloo", *program]
    forked.ended(forked.launch(argv))
    return {name: json.loads(path.read_text()) for name, path in out.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("compression", "size"), [("none", 4), ("fp16", 2)])
def test_counted_bytes_are_what_crosses_the_socket(bytes_by_compression, compression, size):
    bytes_ = bytes_by_compression[compression]
    assert bytes_["counted"] == 1_000_000 * size
    assert bytes_["counted"] <= bytes_["crossed"] < 1.02 * bytes_["counted"]
    assert bytes_["reduce_scatter"] == pytest.approx(sent_share("reduce_scatter", 2), rel=0.02), "unlike torch's"


COLLECTIVES = """
import json, sys
import torch, torch.distributed as dist
from scaling_study.measure.wire import sent_by_sockets

dist.init_process_group("gloo")
n = dist.get_world_size()
whole, part = torch.ones(1_048_576), torch.ones(1_048_576 // n)
sent = torch.zeros(7, dtype=torch.float64)
for index, call in enumerate([
    lambda: None,
    lambda: dist.all_reduce(whole),
    lambda: dist.reduce_scatter_tensor(part, whole),
    lambda: dist.all_gather_into_tensor(whole, part),
    lambda: dist.broadcast(whole, 0),
    lambda: dist.reduce(whole, 0),
    lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
]):
    dist.barrier()
    before = sent_by_sockets()
    call()
    dist.barrier()
    sent[index] = (sent_by_sockets() - before) / 4_194_304
dist.all_reduce(sent)
if dist.get_rank() == 0:
    json.dump((sent / n).tolist()[1:], open(sys.argv[1], "w"))
dist.barrier()
"""
KINDS = ("allreduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all")


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_gloo_sends_for_each_collective_is_what_its_algorithm_is_said_to_send(tmp_path, ranks):
    """Its reduce-scatter is an allreduce and a cut: twice what NCCL sends for it."""
    (tmp_path / "program.py").write_text(COLLECTIVES)
    argv = ["torchrun", "--nproc-per-node", str(ranks), tmp_path / "program.py", str(tmp_path / "out.json")]
    forked.ended(forked.run(argv))
    sent = dict(zip(KINDS, json.loads((tmp_path / "out.json").read_text()), strict=True))
    assert sent == pytest.approx({kind: sent_share(kind, ranks, GLOO) for kind in KINDS}, rel=0.02)
    assert sent["reduce_scatter"] == pytest.approx(2 * sent_share("reduce_scatter", ranks), rel=0.02)
