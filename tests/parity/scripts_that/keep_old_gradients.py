"""A step without zero_grad: each gradient is added to all that came before it."""

from functools import partial

from train_rightly import train

from scaling_study.worker.script import run

run("torch_ddp", partial(train, forget=lambda optimizer: None))
