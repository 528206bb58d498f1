"""Least squares with coefficients that are not below zero, exactly, for few coefficients and many fits at once.

The best such fit leaves some coefficients at zero and is the plain least-squares fit of the others (Lawson and Hanson,
Solving Least Squares Problems, 1974). Of three coefficients there are seven choices of those others: all are tried, for
all designs and all right-hand sides together, which is what a bootstrap needs.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def solve(designs: Array, targets: Array) -> tuple[Array, Array]:
    """(coefficients (designs, targets, k) >= 0, sums of squares (designs, targets)) of the best fits of designs
    (designs, m, k) to targets (targets, m)."""
    forms, _, k = designs.shape
    best = np.zeros((forms, len(targets), k))
    least = np.broadcast_to((targets**2).sum(axis=1), best.shape[:2]).copy()
    for size in range(1, k + 1):
        for chosen in combinations(range(k), size):
            part = designs[:, :, chosen]
            solutions = targets @ np.linalg.pinv(part).transpose(0, 2, 1)  # (designs, targets, size)
            squares = ((targets - solutions @ part.transpose(0, 2, 1)) ** 2).sum(axis=2)
            better = (solutions >= 0).all(axis=2) & (squares < least)
            whole = np.zeros_like(best)
            whole[:, :, chosen] = solutions
            least, best = np.where(better, squares, least), np.where(better[:, :, None], whole, best)
    return best, least
