"""Joining by MPI. Imported only by scripts whose framework needs mpi4py.                              [torch]"""

from __future__ import annotations

import mpi4py
import numpy as np

from scaling_study.ranks import Ranks, as_claimed, claim_cores, claim_device
from scaling_study.trial import Trial

mpi4py.rc(initialize=False, finalize=False)  # else the import starts MPI, before the cores are claimed
from mpi4py import MPI  # noqa: E402


def join_mpi(trial: Trial) -> Ranks:
    """Join by `MPI.Init`, once the cores are claimed. Who else is on this host is known to MPI, not to us.

    MPI is left only where nothing failed: after an error it would wait for ranks that wait for us; mpirun ends those.
    """
    cores = claim_cores(trial)
    MPI.Init()
    world = MPI.COMM_WORLD
    local_rank = as_claimed(world.Split_type(MPI.COMM_TYPE_SHARED).Get_rank())
    backend = {"version": mpi4py.__version__, "operations": "MPI", "library": MPI.Get_library_version().split(",")[0]}
    device = claim_device(trial, local_rank)
    here = world.Get_rank(), world.Get_size(), local_rank
    return Ranks(
        *here,
        device,
        cores,
        world.bcast,
        backend,
        MPI.Finalize,
        lambda values: list(world.allreduce(np.array(values, dtype=np.float64)).tolist()),
    )
