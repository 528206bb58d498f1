"""Average precision of multi-label scores, per video and then over videos, as surgical triplets are judged.

    scores, labels  (frames, classes)    video  (frames,)
    average precision of each class in each video that has it
      -> mean over these videos, of each class  -> mean over the classes that any video has

A class that no frame of a video has says nothing of that video, and is left out: counted as 0 it would make the figure
one of how many classes are absent. The average precision of one class is the area under its precision-recall curve as
steps, sum over thresholds of (R_n - R_n-1) P_n, without interpolation; frames with one score are one threshold.

Pure functions of numpy's arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.floating[Any]]  # (frames, classes), of any scale: only their order counts
Labels = NDArray[Any]  # (frames, classes) of 0 and 1
Numbers = NDArray[np.float64]


def of_classes(scores: Scores, labels: Labels) -> Numbers:
    """(classes,): the average precision of each class; nan of one that no frame has."""
    order = np.argsort(-scores, axis=0, kind="stable")
    ranked, true = (np.take_along_axis(table, order, axis=0) for table in (scores, labels.astype(np.float64)))
    frames = len(scores)
    precision = true.cumsum(axis=0) / np.arange(1, frames + 1)[:, None]
    ends = np.ones(scores.shape, bool)  # where a threshold's last frame is
    ends[:-1] = ranked[1:] != ranked[:-1]
    place = np.where(ends, np.arange(frames)[:, None], frames)
    end = np.minimum.accumulate(place[::-1], axis=0)[::-1]  # of the threshold that each frame has
    present = true.sum(axis=0)
    areas = (true * np.take_along_axis(precision, end, axis=0)).sum(axis=0)
    return np.where(present > 0, areas / np.maximum(present, 1), np.nan)


def of_videos(scores: Scores, labels: Labels, video: NDArray[Any]) -> Numbers:
    """(videos, classes): the same within each video, in the order of their numbers."""
    return np.stack([of_classes(scores[video == one], labels[video == one]) for one in np.unique(video)])


def mean(scores: Scores, labels: Labels, video: NDArray[Any]) -> float:
    """Of each class over the videos that have it, then over the classes; nan where no frame has any class."""
    each = of_videos(scores, labels, video)
    there = ~np.isnan(each)
    of_class = np.where(there, each, 0.0).sum(axis=0)[there.any(axis=0)] / there.sum(axis=0)[there.any(axis=0)]
    return float(of_class.mean()) if len(of_class) else float("nan")


def in_top(scores: Scores, labels: Labels, most: int) -> float:
    """The share of all labels that are among the `most` highest scores of their frame; nan where there is no label."""
    highest = np.argpartition(-scores, most - 1, axis=1)[:, :most]
    count = float(labels.sum())
    return float(np.take_along_axis(labels, highest, axis=1).sum()) / count if count else float("nan")


def grouped(triplets: Labels, members: Sequence[Sequence[int]]) -> Labels:
    """(frames, groups) of (frames, triplets): the highest of each group's members, as the field derives components."""
    return np.stack([triplets[:, list(group)].max(axis=1) for group in members], axis=1)
