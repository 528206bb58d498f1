"""Why a configuration is as fast as it is: where its steps went, what they lost, and what would help most.

    steps.py         a configuration's mean step, phase by phase, as long as its timed steps were
    idle.py          what ranks of a pipeline wait for other stages, taken out of the phases they stood in
    kernels.py       how much longer the same computing takes beside others, and what of it no batch size changes
    attribution.py   where each lost percent of efficiency went: parts that add up to the whole
    bottleneck.py    what takes most of a step, with the numbers that say so
    remedies.py      the most that could be gained, part by part (Amdahl)
    utilisation.py   model FLOP/s against the device's measured peak, and the roofline
    frontier.py      memory against batch, and where it ends
    frame.py         all of it, as frames

Ranks are read by analysis/frames/ranks.py. The tables: analysis/tables/reasons.py; the pictures: analysis/figures/.
"""
