"""The network that a study runs on: latency and bandwidth of four collectives, from 1 KB to 256 MB.

    mpirun -np 2 python horovod_runs/allreduce_bandwidth.py                           mpi4py's
    horovodrun -np 2 python horovod_runs/allreduce_bandwidth.py                       Horovod's
    torchrun --standalone --nproc-per-node 2 horovod_runs/allreduce_bandwidth.py      torch.distributed's

The launcher says whose collectives are measured, in place where they can. Sizes, bandwidths and the table are those
of nccl-tests (scaling_study/stats/network.py). Nothing is trained: the siblings send gradients through these calls.
"""

import torch
import torch.distributed as dist

from scaling_study.measure.network import Network, probe
from scaling_study.ranks import Ranks, join_torch, started_by
from scaling_study.trial import Trial
from scaling_study.worker.script import run


def join(trial: Trial) -> Ranks:
    # 1 join: by the library whose launcher started us
    return library_of(trial).join(trial)


def build(trial: Trial, ranks: Ranks) -> Network:
    # 2 build: no model; what a call exchanges is made for each size (measure/network.py)
    library = library_of(trial)()

    # 3 one call of one collective; its result may be a tensor of the library's own
    def call(collective: str, sent: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
        returned = getattr(library, collective)(sent, received)
        return received if returned is None else returned

    return Network(call, library.barrier)


class TorchDistributed:
    """Gloo between CPUs, NCCL between GPUs."""

    join, barrier = staticmethod(join_torch), staticmethod(dist.barrier)

    def allreduce(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        dist.all_reduce(received)

    def broadcast(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        dist.broadcast(received, 0)

    def reduce_scatter(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        dist.reduce_scatter_tensor(received, sent)

    def all_gather(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        dist.all_gather_into_tensor(received, sent)


class Horovod:
    """Its background thread looks for work once a cycle: of a small call, most of the seconds are that wait.
    A size has one name in all its calls, as a gradient has in every step: it is negotiated but once."""

    def __init__(self) -> None:
        import horovod.torch as hvd

        self.hvd, self.barrier = hvd, hvd.barrier

    @staticmethod
    def join(trial: Trial) -> Ranks:
        from scaling_study.worker.with_horovod import join_horovod

        return join_horovod(trial)

    def allreduce(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        self.hvd.allreduce_(received, op=self.hvd.Sum, name=f"allreduce {received.shape}")

    def broadcast(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        self.hvd.broadcast_(received, root_rank=0, name=f"broadcast {received.shape}")

    def reduce_scatter(self, sent: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
        return self.hvd.reducescatter(sent, op=self.hvd.Sum, name=f"reduce_scatter {sent.shape}")

    def all_gather(self, sent: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
        return self.hvd.allgather(sent, name=f"all_gather {sent.shape}")


class Mpi:
    """mpi4py, in the host's memory: what lies on a GPU is copied there and back, as in mpi_allreduce.py."""

    def __init__(self) -> None:
        from scaling_study.worker.with_mpi import MPI

        self.world, self.barrier, self.in_place = MPI.COMM_WORLD, MPI.COMM_WORLD.Barrier, MPI.IN_PLACE

    @staticmethod
    def join(trial: Trial) -> Ranks:
        from scaling_study.worker.with_mpi import join_mpi

        return join_mpi(trial)

    def allreduce(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        self.world.Allreduce(self.in_place, (host := received.cpu()).numpy())  # on a CPU the tensor itself
        received.copy_(host)

    def broadcast(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        self.world.Bcast((host := received.cpu()).numpy())
        received.copy_(host)

    def reduce_scatter(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        self.world.Reduce_scatter_block(sent.cpu().numpy(), (host := received.cpu()).numpy())
        received.copy_(host)

    def all_gather(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        self.world.Allgather(sent.cpu().numpy(), (host := received.cpu()).numpy())
        received.copy_(host)


LIBRARIES = {"torchrun": TorchDistributed, "horovodrun": Horovod, "mpirun": Mpi}


def library_of(trial: Trial) -> type[TorchDistributed | Horovod | Mpi]:
    return LIBRARIES[started_by() if trial.launcher == "python" else trial.launcher]


if __name__ == "__main__":
    # 4 measure: every call of every size, as nccl-tests does
    run("network_probe", join, build, measure=probe)
