"""Scaling studies of distributed training that people can trust."""

__version__ = "0.1.0"
