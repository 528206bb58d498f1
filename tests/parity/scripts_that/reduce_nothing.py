"""Every worker trains for itself: the model was never wrapped."""

from functools import partial

from train_rightly import train

from scaling_study.worker.script import run

run("torch_ddp", partial(train, wrap=lambda model: model))
