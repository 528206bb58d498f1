"""A model cut into the stages of a pipeline.                                                            [torch]

stage.py   where layers are cut: even, balanced by measured time, by hand; one stage as a module, no parameter left out
parts.py   this rank's place among stages and replicas; its stages evaluated, clipped and saved as one model
"""

from scaling_study.stages.parts import Parts, Place
from scaling_study.stages.stage import Cut, cut, micro_batches

__all__ = ["Cut", "Parts", "Place", "cut", "micro_batches"]
