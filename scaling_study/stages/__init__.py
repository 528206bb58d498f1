"""A model cut into the stages of a pipeline.                                                            [torch]

cut.py     where: even by layers, balanced by measured time, by hand (pure)
timing.py  how long each layer takes, where the cut asks for it
stage.py   what: one stage as a module, the whole's names and weights, and that no parameter is left out
place.py   who: this rank's place among stages and replicas
parts.py   all of them: evaluated, clipped and saved as one model, in a training to a result
"""

from scaling_study.stages.parts import Parts, Place
from scaling_study.stages.stage import Cut, cut, micro_batches

__all__ = ["Cut", "Parts", "Place", "cut", "micro_batches"]
