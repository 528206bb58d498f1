"""One frame: which triplets it shows, where they are, and how it is lit, seen and spoilt.

    tissue of the operation --> targets --> what verbs leave --> light --> shadows, instruments --> glow, jets, smoke,
    folds in front, drops on the lens --> dark rim, grain of the camera

Everything depends on (seed, video, frame) alone. Frames of a video share its patient's colours, lamp and camera; each
is a scene of its own, so that no frame can be recognised by the one before it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from scaling_study.workloads.surgical_scenes import instruments
from scaling_study.workloads.surgical_scenes.canvas import FINER, Canvas, Colour, Point, blob, cavity
from scaling_study.workloads.surgical_scenes.targets import LOOKS, OPENING, OVER, UNDER
from scaling_study.workloads.surgical_scenes.triplets import NULL_TARGET, TARGETS, TRIPLETS, VERBS, weights

MARGIN = 0.2  # that a tip stays away from the edge
APART, CLEAR = 0.46, 0.24  # of two targets; of a shaft and another's target or tip
TRIES = 24
SIZES = (0.215, 0.28)  # of a target, to either side of its centre
LARGER = (1.2, 1.05, 1.0)  # where there are one, two and three
PULLED = 0.11  # that a tip is away from the edge of what it retracts
SPRAY = 0.16  # that water flies


@dataclass(frozen=True)
class ScenePlace:
    """The place of one triplet, in units of the frame's height."""

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


def placed(random: np.random.Generator, chosen: Sequence[int], aspect: float) -> list[ScenePlace]:
    """A place for each triplet, such that none hides another's. `aspect`: width of the frame over its height.

    |  target |  target |  target |     each in a part of the frame of its own, in random order; shafts come in from
     \\            |          /          the sides and from below, seldom from above, and lie over nobody else's tip
    """
    best, most = [], -1.0
    for _ in range(TRIES):
        places = _drawn(random, chosen, aspect)
        if (found := _room(places)) > most:
            best, most = places, found
        if most >= 1:
            break
    return best


def _drawn(random: np.random.Generator, chosen: Sequence[int], aspect: float) -> list[ScenePlace]:
    wide, places = aspect / len(chosen), []
    for slot, triplet in zip(random.permutation(len(chosen)), chosen, strict=True):
        free = max(0.0, wide / 2 - 0.24)
        x = (slot + 0.5) * wide + random.uniform(-free, free)
        centre = (min(max(x, MARGIN), aspect - MARGIN), random.uniform(0.32, 0.7))
        from_below = random.random() < 0.88
        turn = random.uniform(-0.35, math.pi + 0.35) if from_below else random.uniform(-2.4, -0.7)
        size = LARGER[len(chosen) - 1] * random.uniform(*SIZES)
        places.append(_stood(random, triplet, centre, turn + math.pi, size, aspect))
    return places


def _stood(
    random: np.random.Generator, triplet: int, centre: Point, angle: float, size: float, aspect: float
) -> ScenePlace:
    """How the verb has it: at the target, away from it, or before it."""
    _, verb, target = TRIPLETS[triplet]
    contact = (centre[0] + random.normal(0, 0.02), centre[1] + random.normal(0, 0.02))
    pulled = (0.0, 0.0)
    if VERBS[verb] == "retract":
        away = angle + math.pi + random.uniform(-0.4, 0.4)
        reach = PULLED + size * (1.2 if TARGETS[target] == "liver" else 0.9)
        pulled = (reach * math.cos(away), reach * math.sin(away))
        contact = (centre[0] + pulled[0], centre[1] + pulled[1])
    contact = (min(max(contact[0], MARGIN), aspect - MARGIN), min(max(contact[1], MARGIN), 1 - MARGIN))
    if VERBS[verb] == "retract":  # at the edge of the frame the target gives way, and not the tip
        centre = (contact[0] - pulled[0], contact[1] - pulled[1])
    back = SPRAY if VERBS[verb] == "irrigate" else 0.0
    tip = (contact[0] - back * math.cos(angle), contact[1] - back * math.sin(angle))
    return ScenePlace(triplet, centre, size, contact, tip, angle)


def _room(places: Sequence[ScenePlace]) -> float:
    """1 and more where all keep their distances."""
    room = [2.0]
    for one, other in itertools.permutations(places, 2):
        apart = math.dist(one.centre, other.centre) / APART
        free = min(_distance(other.tip, one), _distance(other.centre, one)) / CLEAR
        room.append(min(apart, free))
    return min(room)


def _distance(point: Point, place: ScenePlace) -> float:
    """From a point to a shaft."""
    (x, y), (dx, dy) = place.tip, (place.entry[0] - place.tip[0], place.entry[1] - place.tip[1])
    share = min(1.0, max(0.0, ((point[0] - x) * dx + (point[1] - y) * dy) / (dx * dx + dy * dy)))
    return math.hypot(point[0] - x - share * dx, point[1] - y - share * dy)


HOW_MANY = (0.3, 0.42, 0.28)  # frames with one, two and three triplets
LIKELY = np.array(weights()) / sum(weights())


@dataclass(frozen=True)
class ShownScene:
    """One instrument of a frame, in units of the frame's height."""

    triplet: int
    tip: Point
    outlines: list[list[Point]]


@dataclass(frozen=True)
class Operation:
    """Colours, lamp and camera that the frames of a video have in common."""

    colour: Colour  # of its tissue
    warmth: tuple[float, ...]  # of the lamp: factors of red, green and blue
    rim: float  # radius of the endoscope's round view, in units; large: none is seen
    wetness: float
    grain: float  # standard deviation of the camera's noise, in grey levels

    @classmethod
    def drawn(cls, seed: int, video: int) -> Operation:
        random = np.random.default_rng((seed, video))
        red, green, blue = random.uniform((150, 62, 58), (214, 122, 112))
        warmth = random.uniform((0.94, 0.92, 0.88), (1.08, 1.04, 1.06))
        rim = random.uniform(0.88, 1.3)
        wetness, grain = random.uniform((0.45, 1.0), (1.05, 3.0))
        return cls((int(red), int(green), int(blue)), tuple(warmth.tolist()), rim, float(wetness), float(grain))


def triplets_of(random: np.random.Generator) -> list[int]:
    """One to three of them, of unlike instruments and targets: one target may be acted on once."""
    count = 1 + int(random.choice(len(HOW_MANY), p=HOW_MANY))
    chosen: list[int] = []
    for number in random.choice(len(TRIPLETS), 24, p=LIKELY):
        instrument, _, target = TRIPLETS[number]
        taken = [TRIPLETS[other] for other in chosen]
        if all(instrument != i and (target != t or t == NULL_TARGET) for i, _, t in taken):
            chosen.append(int(number))
        if len(chosen) == count:
            break
    return chosen


def draw(seed: int, video: int, frame: int, height: int, width: int) -> tuple[Image.Image, list[ShownScene]]:
    """(the frame, what it shows, the lowest instrument first)."""
    operation, random = Operation.drawn(seed, video), np.random.default_rng((seed, video, frame))
    chosen = triplets_of(random)
    canvas = Canvas(height, width, random, operation.colour)
    cavity(canvas, operation.colour)
    places = placed(random, chosen, canvas.aspect)
    poses = _acted(canvas, places)
    light = (random.uniform(-0.45, 0.45), random.uniform(-0.5, 0.2))
    image = canvas.shaded(light, operation.wetness)
    _shadowed(image, canvas, poses, light)
    shown = []
    for place, pose in zip(places, poses, strict=True):
        outlines = instruments.draw(image, canvas.unit, TRIPLETS[place.triplet][0], pose)
        shown.append(ShownScene(place.triplet, pose.tip, outlines))
    for place in places:
        if over := OVER.get(TRIPLETS[place.triplet][1]):
            over(image, canvas.unit, place.tip, place.angle, random)
    _in_front(image, canvas, [place.tip for place in places], operation.colour)
    return _seen(image.reduce(FINER), operation, random), shown


def _acted(canvas: Canvas, places: Sequence[ScenePlace]) -> list[instruments.Pose]:
    """Paint the targets, the large ones below, and then what is done to them; how the instruments stand."""
    random = canvas.random
    for place in sorted(places, key=lambda place: TRIPLETS[place.triplet][2] != TARGETS.index("liver")):
        target = TRIPLETS[place.triplet][2]
        if target != NULL_TARGET:
            painter, _ = LOOKS[TARGETS[target]]
            painter(canvas, place.centre, place.size, random.uniform(-0.6, 0.6))
    poses = []
    for place in places:
        _, verb, target = TRIPLETS[place.triplet]
        if target != NULL_TARGET and (under := UNDER.get(verb)):
            _, skin = LOOKS[TARGETS[target]]
            under(canvas, place.centre, place.contact, place.angle, place.size, skin)
        opening = OPENING[VERBS[verb]] * random.uniform(0.85, 1.15)
        poses.append(instruments.Pose(place.tip, place.angle, opening, random.uniform(0.92, 1.18)))
    return poses


def _shadowed(image: Image.Image, canvas: Canvas, poses: Sequence[instruments.Pose], light: Point) -> None:
    """Dark where a shaft keeps the light away."""
    mask = Image.new("L", (canvas.width // 4, canvas.height // 4))
    ink, unit = ImageDraw.Draw(mask), canvas.unit / 4
    for pose in poses:
        x, y = pose.tip[0] - 0.07 * light[0] - 0.015, pose.tip[1] - 0.09 * light[1] + 0.03
        far = (x - 2.4 * math.cos(pose.angle), y - 2.4 * math.sin(pose.angle))
        ink.line((x * unit, y * unit, far[0] * unit, far[1] * unit), fill=150, width=round(0.1 * unit))
    soft = mask.filter(ImageFilter.GaussianBlur(0.028 * unit)).resize(image.size, Image.Resampling.BILINEAR)
    image.paste((16, 4, 6), (0, 0), soft)


def _in_front(image: Image.Image, canvas: Canvas, tips: list[Point], colour: Colour) -> None:
    """Now and then a fold of tissue before the lens, which hides a part of a shaft but no tip."""
    random = canvas.random
    if random.random() > 0.3:
        return
    corner = (float(random.choice([0.0, canvas.aspect])), float(random.choice([0.0, 1.0])))
    room = min(math.hypot(tip[0] - corner[0], tip[1] - corner[1]) for tip in tips)
    radius = min(0.42, room - 0.28)
    if radius < 0.12:
        return
    fold = canvas.pixels(blob(random, corner, radius * 1.1, radius * 0.9, 0.0, 0.08))
    mask = Image.new("L", image.size)
    ImageDraw.Draw(mask).polygon(fold, fill=255)
    soft = mask.filter(ImageFilter.GaussianBlur(0.02 * canvas.unit))
    image.paste(tuple(int(0.55 * c) for c in colour), (0, 0), soft)


def _seen(image: Image.Image, operation: Operation, random: np.random.Generator) -> Image.Image:
    """As the camera has it: smoke in the cavity, the lamp's colour and fall-off, a round view, grain."""
    wide, high = image.size
    colours: NDArray[np.floating[Any]] = np.asarray(image, np.float32)
    if random.random() < 0.3:
        small = random.uniform(0, 1, (4, 6)).astype(np.float32)
        veil = np.asarray(Image.fromarray(small).resize((wide, high), Image.Resampling.BICUBIC))
        veil = np.clip(veil * random.uniform(0.15, 0.5), 0, 0.6)[..., None]
        colours = colours * (1 - veil) + 205 * veil
    aspect = wide / high
    x = (np.arange(wide, dtype=np.float32) + 0.5)[None, :] / high - aspect / 2 - random.uniform(-0.1, 0.1)
    y = (np.arange(high, dtype=np.float32) + 0.5)[:, None] / high - 0.5 - random.uniform(-0.08, 0.08)
    radius = np.sqrt(x * x + y * y)
    bright = random.uniform(0.92, 1.22) * (1.08 - random.uniform(0.25, 0.5) * radius**2)
    bright = np.clip(bright, 0.1, None) * np.clip((operation.rim - radius) / 0.03, 0, 1)
    colours = colours * bright[..., None] * np.array(operation.warmth, np.float32)
    colours += random.standard_normal((high, wide, 1), np.float32) * operation.grain
    return Image.fromarray(np.clip(colours, 0, 255).astype(np.uint8))
