"""Reproducible scaling studies of distributed training."""

__version__ = "0.1.0"
