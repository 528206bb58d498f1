"""Triplets of instrument, verb and target: the classes of CholecT45, in its numbering, and how often each is drawn.

A triplet's number is its place when instruments come in the order of INSTRUMENTS, and verbs and targets of each by
name; an instrument that does nothing comes last. Source: Nwoye et al., Medical Image Analysis 78 (2022) 102433.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

Triplet = tuple[int, int, int]  # instrument, verb, target

INSTRUMENTS = ("grasper", "bipolar", "hook", "scissors", "clipper", "irrigator")
VERBS = ("grasp", "retract", "dissect", "coagulate", "clip", "cut", "aspirate", "irrigate", "pack", "null_verb")
TARGETS = (
    "gallbladder",
    "cystic_plate",
    "cystic_duct",
    "cystic_artery",
    "cystic_pedicle",
    "blood_vessel",
    "fluid",
    "abdominal_wall_cavity",
    "liver",
    "adhesion",
    "omentum",
    "peritoneum",
    "gut",
    "specimen_bag",
    "null_target",
)
NULL_VERB, NULL_TARGET = VERBS.index("null_verb"), TARGETS.index("null_target")

VALID: Mapping[str, Mapping[str, str]] = {
    "grasper": {
        "dissect": "cystic_plate gallbladder omentum",
        "grasp": "cystic_artery cystic_duct cystic_pedicle cystic_plate gallbladder gut liver omentum peritoneum"
        " specimen_bag",
        "pack": "gallbladder",
        "retract": "cystic_duct cystic_pedicle cystic_plate gallbladder gut liver omentum peritoneum",
    },
    "bipolar": {
        "coagulate": "abdominal_wall_cavity blood_vessel cystic_artery cystic_duct cystic_pedicle cystic_plate"
        " gallbladder liver omentum peritoneum",
        "dissect": "adhesion cystic_artery cystic_duct cystic_plate gallbladder omentum",
        "grasp": "cystic_plate liver specimen_bag",
        "retract": "cystic_duct cystic_pedicle gallbladder liver omentum",
    },
    "hook": {
        "coagulate": "blood_vessel cystic_artery cystic_duct cystic_pedicle cystic_plate gallbladder liver omentum",
        "cut": "blood_vessel peritoneum",
        "dissect": "blood_vessel cystic_artery cystic_duct cystic_plate gallbladder omentum peritoneum",
        "retract": "gallbladder liver",
    },
    "scissors": {
        "coagulate": "omentum",
        "cut": "adhesion blood_vessel cystic_artery cystic_duct cystic_plate liver omentum peritoneum",
        "dissect": "cystic_plate gallbladder omentum",
    },
    "clipper": {"clip": "blood_vessel cystic_artery cystic_duct cystic_pedicle cystic_plate"},
    "irrigator": {
        "aspirate": "fluid",
        "dissect": "cystic_duct cystic_pedicle cystic_plate gallbladder omentum",
        "irrigate": "abdominal_wall_cavity cystic_pedicle liver",
        "retract": "gallbladder liver omentum",
    },
}


def _triplets() -> Iterator[Triplet]:
    for instrument, verbs in VALID.items():
        for verb, targets in verbs.items():
            for target in targets.split():
                yield INSTRUMENTS.index(instrument), VERBS.index(verb), TARGETS.index(target)
    for number in range(len(INSTRUMENTS)):
        yield number, NULL_VERB, NULL_TARGET


TRIPLETS: tuple[Triplet, ...] = tuple(_triplets())


def weights() -> list[float]:
    """How likely each triplet is to be drawn, up to a factor: rare verbs and instruments more often than by their
    number of triplets, frequent ones less, by its root. CholecT45 itself is far less even."""
    instruments = Counter(i for i, _, _ in TRIPLETS)
    pairs = Counter((i, v) for i, v, _ in TRIPLETS)
    spread = {i: sum(math.sqrt(n) for (other, _), n in pairs.items() if other == i) for i in instruments}
    return [math.sqrt(instruments[i]) * math.sqrt(pairs[i, v]) / spread[i] / pairs[i, v] for i, v, _ in TRIPLETS]


def maps() -> str:
    """The text of maps.txt: triplet, instrument, verb, target, and the pairs instrument-verb and instrument-target."""
    rows = [
        f"{number},{i},{v},{t},{i * len(VERBS) + v},{i * len(TARGETS) + t}" for number, (i, v, t) in enumerate(TRIPLETS)
    ]
    return "\n".join(["# triplet, instrument, verb, target, instrument-verb, instrument-target", *rows, ""])


def named(number: int) -> str:
    """`grasper,retract,gallbladder`."""
    i, v, t = TRIPLETS[number]
    return f"{INSTRUMENTS[i]},{VERBS[v]},{TARGETS[t]}"
