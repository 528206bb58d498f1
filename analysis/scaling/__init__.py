"""What next: laws fitted over worker counts, what they say of counts not run, what it costs, what to measure.

    families.py      configurations that differ in their workers only
    nonnegative.py   least squares whose coefficients are not below zero, for many right-hand sides at once
    laws.py          compute + alpha-beta communication, Amdahl, the universal scalability law, Extra-P's terms
    fit.py           all of them on one family, compared by the error on a worker count left out; or why not
    extrapolate.py   throughput at counts not run, with intervals over all laws that are not told apart
    knee.py          beyond which count another worker returns less than a share; returns as measured
    cost.py          worker-hours and money for a million samples
    pareto.py        which configurations no other beats in cost and time
    next.py          the configuration most worth measuring
    frame.py         all of it, as frames

These laws are fitted to several worker counts that were run. What one worker's steps and a network say of more is
another question, and another package: analysis/prediction simulates it, gradient by gradient.
"""
