"""Asked for one network, trains another under its name (F5: a published ResNet-50 table was a ResNet-18)."""

from dataclasses import replace
from functools import partial

from train_rightly import train

from scaling_study import workloads
from scaling_study.worker.script import run

ANOTHER = "resnet8_groupnorm"
run("torch_ddp", partial(train, load=lambda trial, ranks: workloads.load(replace(trial, model=ANOTHER), ranks)))
