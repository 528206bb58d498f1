"""Where targets and instruments are in a frame, so that none hides another's.

    |  target |  target |  target |     each in a part of the frame of its own, in random order; shafts come in from the
     \\            |          /          sides and from below, seldom from above, and lie over nobody else's tip

Lengths are in units of the frame's height.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling_study.workloads.surgical_scenes.canvas import Point
from scaling_study.workloads.surgical_scenes.triplets import TARGETS, TRIPLETS, VERBS

MARGIN = 0.2  # that a tip stays away from the edge
APART, CLEAR = 0.46, 0.24  # of two targets; of a shaft and another's target or tip
TRIES = 24
SIZES = (0.215, 0.28)  # of a target, to either side of its centre
LARGER = (1.2, 1.05, 1.0)  # where there are one, two and three
PULLED = 0.11  # that a tip is away from the edge of what it retracts
SPRAY = 0.16  # that water flies


@dataclass(frozen=True)
class Place:
    """Of one triplet."""

    triplet: int
    centre: Point  # of the target
    size: float  # of the target, to either side
    contact: Point  # where the target is acted on
    tip: Point  # of the instrument
    angle: float  # from its shaft towards its tip

    @property
    def entry(self) -> Point:
        """A point of its shaft outside of any frame."""
        return self.tip[0] - 4 * math.cos(self.angle), self.tip[1] - 4 * math.sin(self.angle)


def placed(random: np.random.Generator, chosen: Sequence[int], aspect: float) -> list[Place]:
    """Of each triplet. `aspect`: width of the frame over its height."""
    best, most = [], -1.0
    for _ in range(TRIES):
        places = _drawn(random, chosen, aspect)
        if (found := _room(places)) > most:
            best, most = places, found
        if most >= 1:
            break
    return best


def _drawn(random: np.random.Generator, chosen: Sequence[int], aspect: float) -> list[Place]:
    wide, places = aspect / len(chosen), []
    for slot, triplet in zip(random.permutation(len(chosen)), chosen, strict=True):
        free = max(0.0, wide / 2 - 0.24)
        x = (slot + 0.5) * wide + float(random.uniform(-free, free))
        centre = (min(max(x, MARGIN), aspect - MARGIN), float(random.uniform(0.32, 0.7)))
        from_below = random.random() < 0.88
        turn = float(random.uniform(-0.35, math.pi + 0.35) if from_below else random.uniform(-2.4, -0.7))
        size = LARGER[len(chosen) - 1] * float(random.uniform(*SIZES))
        places.append(_stood(random, triplet, centre, turn + math.pi, size, aspect))
    return places


def _stood(random: np.random.Generator, triplet: int, centre: Point, angle: float, size: float, aspect: float) -> Place:
    """How the verb has it: at the target, away from it, or before it."""
    _, verb, target = TRIPLETS[triplet]
    contact = (centre[0] + float(random.normal(0, 0.02)), centre[1] + float(random.normal(0, 0.02)))
    pulled = (0.0, 0.0)
    if VERBS[verb] == "retract":
        away = angle + math.pi + float(random.uniform(-0.4, 0.4))
        reach = PULLED + size * (1.2 if TARGETS[target] == "liver" else 0.9)
        pulled = (reach * math.cos(away), reach * math.sin(away))
        contact = (centre[0] + pulled[0], centre[1] + pulled[1])
    contact = (min(max(contact[0], MARGIN), aspect - MARGIN), min(max(contact[1], MARGIN), 1 - MARGIN))
    if VERBS[verb] == "retract":  # at the edge of the frame the target gives way, and not the tip
        centre = (contact[0] - pulled[0], contact[1] - pulled[1])
    back = SPRAY if VERBS[verb] == "irrigate" else 0.0
    tip = (contact[0] - back * math.cos(angle), contact[1] - back * math.sin(angle))
    return Place(triplet, centre, size, contact, tip, angle)


def _room(places: Sequence[Place]) -> float:
    """1 and more where all keep their distances."""
    room = [2.0]
    for one in places:
        for other in places:
            if one is not other:
                apart = math.dist(one.centre, other.centre) / APART
                free = min(_distance(other.tip, one), _distance(other.centre, one)) / CLEAR
                room.append(min(apart, free))
    return min(room)


def _distance(point: Point, place: Place) -> float:
    """From a point to a shaft."""
    (x, y), (dx, dy) = place.tip, (place.entry[0] - place.tip[0], place.entry[1] - place.tip[1])
    share = min(1.0, max(0.0, ((point[0] - x) * dx + (point[1] - y) * dy) / (dx * dx + dy * dy)))
    return math.hypot(point[0] - x - share * dx, point[1] - y - share * dy)
