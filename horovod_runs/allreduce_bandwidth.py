"""The network that a study runs on: latency and bandwidth of four collectives, from 1 KB to 256 MB.

    mpirun -np 2 python horovod_runs/allreduce_bandwidth.py                           mpi4py's
    horovodrun -np 2 python horovod_runs/allreduce_bandwidth.py                       Horovod's
    torchrun --standalone --nproc-per-node 2 horovod_runs/allreduce_bandwidth.py      torch.distributed's

The launcher says whose collectives are measured, in place where they can. Sizes, bandwidths and the table are those
of nccl-tests (scaling_study/stats/collectives.py). Nothing is trained: the siblings send gradients through these calls.
"""

import os

import torch
import torch.distributed as dist

from scaling_study.measure.network import probe
from scaling_study.ranks import Ranks, as_launched, claim_cores, claim_device, join_torch, started_by
from scaling_study.records.store import RankReport
from scaling_study.trial import Trial
from scaling_study.worker.script import run


def main(trial: Trial, record: str | None = None) -> RankReport:
    # 1 join: by the library whose launcher started us
    library = LIBRARIES[started_by() if trial.launcher == "python" else trial.launcher](trial)
    trial = as_launched(trial, library.ranks)

    # 2 build: no model; what a call exchanges is made for each size (measure/payload.py)

    # 3 one call of one collective; its result may be a tensor of the library's own
    def call(collective: str, given: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        made = getattr(library, collective)(given, result)
        return result if made is None else made

    # 4 measure
    report = probe(call, library.barrier, trial, library.ranks, record)
    library.leave()
    return report


class TorchDistributed:
    """Gloo between CPUs, NCCL between GPUs."""

    def __init__(self, trial: Trial) -> None:
        self.ranks, self.barrier, self.leave = join_torch(trial), dist.barrier, lambda: None  # script.py leaves

    def allreduce(self, given: torch.Tensor, result: torch.Tensor) -> None:
        dist.all_reduce(result)

    def broadcast(self, given: torch.Tensor, result: torch.Tensor) -> None:
        dist.broadcast(result, 0)

    def reduce_scatter(self, given: torch.Tensor, result: torch.Tensor) -> None:
        dist.reduce_scatter_tensor(result, given)

    def all_gather(self, given: torch.Tensor, result: torch.Tensor) -> None:
        dist.all_gather_into_tensor(result, given)


class Horovod:
    """Its background thread looks for work once a cycle: of a small call, most of the seconds are that wait.
    A size has one name in all its calls, as a gradient has in every step: it is negotiated but once."""

    def __init__(self, trial: Trial) -> None:
        import horovod.torch as hvd

        cores = claim_cores(trial)
        if trial.cycle_seconds is not None:
            os.environ["HOROVOD_CYCLE_TIME"] = str(1000 * trial.cycle_seconds)  # milliseconds; init reads it
        hvd.init()
        device = claim_device(trial, hvd.local_rank())
        about = {"controller": "mpi" if hvd.mpi_enabled() else "gloo" if hvd.gloo_enabled() else "none"}
        about |= {"operations": "NCCL" if hvd.nccl_built() and device.type == "cuda" else "host"}
        self.ranks = Ranks(hvd.rank(), hvd.size(), hvd.local_rank(), device, cores, self.agree, about)
        self.hvd, self.barrier, self.leave = hvd, hvd.barrier, hvd.shutdown

    def agree(self, value: float) -> float:
        return float(self.hvd.broadcast(torch.tensor([value], dtype=torch.float64), root_rank=0, name="agree"))

    def allreduce(self, given: torch.Tensor, result: torch.Tensor) -> None:
        self.hvd.allreduce_(result, op=self.hvd.Sum, name=f"allreduce {result.shape}")

    def broadcast(self, given: torch.Tensor, result: torch.Tensor) -> None:
        self.hvd.broadcast_(result, root_rank=0, name=f"broadcast {result.shape}")

    def reduce_scatter(self, given: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        return self.hvd.reducescatter(given, op=self.hvd.Sum, name=f"reduce_scatter {given.shape}")

    def all_gather(self, given: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        return self.hvd.allgather(given, name=f"all_gather {given.shape}")


class Mpi:
    """mpi4py, in the host's memory: what lies on a GPU is copied there and back, as in mpi_allreduce.py."""

    def __init__(self, trial: Trial) -> None:
        import mpi4py

        mpi4py.rc(initialize=False, finalize=False)  # else the import starts MPI, before the cores are claimed
        from mpi4py import MPI

        cores = claim_cores(trial)
        MPI.Init()
        world, local_rank = MPI.COMM_WORLD, MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED).Get_rank()
        about = {"version": mpi4py.__version__, "library": MPI.Get_library_version().split(",")[0]}
        device = claim_device(trial, local_rank)
        self.ranks = Ranks(world.Get_rank(), world.Get_size(), local_rank, device, cores, world.bcast, about)
        self.world, self.barrier, self.leave, self.in_place = world, world.Barrier, MPI.Finalize, MPI.IN_PLACE

    def allreduce(self, given: torch.Tensor, result: torch.Tensor) -> None:
        self.world.Allreduce(self.in_place, (host := result.cpu()).numpy())  # on a CPU the tensor itself
        result.copy_(host)

    def broadcast(self, given: torch.Tensor, result: torch.Tensor) -> None:
        self.world.Bcast((host := result.cpu()).numpy())
        result.copy_(host)

    def reduce_scatter(self, given: torch.Tensor, result: torch.Tensor) -> None:
        self.world.Reduce_scatter_block(given.cpu().numpy(), (host := result.cpu()).numpy())
        result.copy_(host)

    def all_gather(self, given: torch.Tensor, result: torch.Tensor) -> None:
        self.world.Allgather(given.cpu().numpy(), (host := result.cpu()).numpy())
        result.copy_(host)


LIBRARIES = {"torchrun": TorchDistributed, "horovodrun": Horovod, "mpirun": Mpi}

if __name__ == "__main__":
    run("network_probe", main)
