"""srun inside a Slurm job for its own hosts, ssh for all others."""

from __future__ import annotations

from scaling_study.hosts import hosts

JOB = {"SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "node[1-2]"}


def test_a_host_of_the_job_is_reached_by_srun():
    assert hosts.command("node2", ["python", "-c", "print('a b')"], JOB) == [
        "srun", "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--mem=0", "--unbuffered", "--quiet",
        "--nodelist=node2", "python", "-c", "print('a b')",
    ]  # fmt: skip


def test_every_other_host_by_ssh():
    assert (
        hosts.command("node3", ["true"], JOB)
        == hosts.command("node3", ["true"], {})
        == hosts.ssh_command("node3", ["true"])
    )


def test_what_went_wrong_is_said_in_the_words_of_what_was_used():
    said = "srun: error: Unable to create step for job 41: Invalid node name specified\n"
    assert hosts.failure("node2", 1, said, JOB) == "srun: Unable to create step for job 41: Invalid node name specified"
    assert hosts.failure("node2", 1, "first\nlast\n", JOB) == "last"
    assert hosts.failure("node2", 3, "", JOB) == "ended with exit code 3"
    assert hosts.failure("node3", 255, "ssh: Connection refused", JOB) == hosts.ssh_failure(
        "node3", 255, "ssh: Connection refused"
    )
