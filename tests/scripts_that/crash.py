"""Fails like a script with a bug: an exception on the first step."""

from scaling_study.worker.script import run


def join(trial):
    raise ValueError("the planted bug")


run("single", join, build=None)
