"""Epochs as people report them, beside what the same runs say per second, and what is wrong with comparing epochs.

    epoch ratio       baseline's running seconds / ours              what is published
    at equal work     our samples per second / the baseline's        what it means
    steady state      running seconds / (steps x mean timed step)    1, or one of the two clocks is wrong

Every fault that a published comparison had is looked for (faults.py). It is a mark in the row of the table (frame.py)
and a sentence beneath it (tables/epochs.py).
"""
