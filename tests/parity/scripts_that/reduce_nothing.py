"""Every worker trains for itself: the model was never wrapped."""

from train_rightly import train_by

train_by(wrap=lambda model: model)
