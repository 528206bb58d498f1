"""The shared clock: every framework is measured here, in the same way.                                 [torch]

warm-up       | timed window                        | instrumented window; in rounds before the timed one
S s s s s     | s s s s s s s s | s s s s s | s ... | S S S S S
seconds apart | blocks of steps; between two blocks | every phase timed, bytes and memory counted,
              | rank 0 decides whether to go on     | which disturbs what it measures
"""

from scaling_study.measure.clock import measure
from scaling_study.measure.memory import ddp_buckets
from scaling_study.measure.training import Phase, Timeline, Training
from scaling_study.measure.wire import Wire

__all__ = ["Phase", "Timeline", "Training", "Wire", "ddp_buckets", "measure"]
