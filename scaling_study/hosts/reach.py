"""How another host is reached: by srun where it belongs to the surrounding Slurm job, else by ssh. Pure but for its
look at the environment.

Many clusters do not allow ssh to their nodes, or only with more setup; srun needs neither a key nor a name that
resolves, and what it starts is part of the job: it ends with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaling_study.hosts import allocation, ssh

# Beside the driver and other such steps, on the same cores and memory; ranks choose their cores themselves.
STEP = ("--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--mem=0", "--unbuffered", "--quiet")


def command(host: str, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
    """The command line that runs `argv` there, its input and output here."""
    if _in_job(host, environment):
        return ["srun", *STEP, f"--nodelist={host}", *argv]
    return ssh.command(host, argv)


def failure(host: str, code: int | None, stderr: str, environment: Mapping[str, str] | None = None) -> str:
    """What went wrong there, in one clause, from the command's exit code and stderr."""
    if not _in_job(host, environment):
        return ssh.failure(host, code, stderr)
    own = [line.partition("error: ")[2] for line in stderr.splitlines() if line.startswith("srun: error: ")]
    last = [line.strip() for line in stderr.splitlines() if line.strip()][-1:]
    return f"srun: {own[0]}" if own else "".join(last) or f"ended with exit code {code}"


def _in_job(host: str, environment: Mapping[str, str] | None) -> bool:
    job = allocation.current(environment)
    return job is not None and host in job.hosts
