"""A step without zero_grad: each gradient is added to all that came before it."""

from train_rightly import train_by

train_by(forget=lambda optimizer: None)
