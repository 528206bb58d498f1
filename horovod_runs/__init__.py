"""Allreduce data parallelism with Horovod and MPI. Run as scripts, not imported."""
