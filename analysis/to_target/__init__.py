"""How soon configurations reach their target, in seconds, samples and steps."""

from analysis.to_target.frame import table

__all__ = ["table"]
