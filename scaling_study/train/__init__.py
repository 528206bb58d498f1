"""Training to a result: the second owner of a script's step, beside the clock.

steps ... | evaluate  save  log | steps ... | evaluate  save  log | ...        then the test set, once
training seconds: the steps alone; what is between them is timed apart
"""

from scaling_study.train.checkpoints import Distributed, Own, PerRank, Replicated, layout_of
from scaling_study.train.loop import Loop, schedule, train

__all__ = ["Distributed", "Loop", "Own", "PerRank", "Replicated", "layout_of", "schedule", "train"]
