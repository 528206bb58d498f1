"""What an instrument does to a target: ten verbs, each by how the jaws stand, and by what it leaves on the tissue.

before the instrument is drawn: folds, tents, cuts, clips, pools      after it: light, smoke, jets
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from scaling_study.workloads.surgical_scenes.canvas import Canvas, Colour, Point, blob, curve, tube, turned
from scaling_study.workloads.surgical_scenes.triplets import VERBS

OPENING: Mapping[str, float] = {  # of the jaws, radians
    "grasp": 0.1, "retract": 0.05, "dissect": 0.5, "coagulate": 0.16, "clip": 0.06, "cut": 0.3, "aspirate": 0.1,
    "irrigate": 0.1, "pack": 0.12, "null_verb": 0.24,
}  # fmt: skip

Under = Callable[
    [Canvas, Point, Point, float, float, Colour], None
]  # canvas, centre, tip, angle, size, target's colour
Over = Callable[[Image.Image, float, Point, float, np.random.Generator], None]  # image, unit, tip, angle


def grasp(canvas: Canvas, centre: Point, tip: Point, angle: float, size: float, skin: Colour) -> None:
    """A fold of the target between the jaws, with creases towards it."""
    for turn in np.linspace(0, 2 * math.pi, 9)[:-1]:
        near, far = ((tip[0] + r * math.cos(turn), tip[1] + r * math.sin(turn)) for r in (0.04, 0.15))
        canvas.stroke([near, far], _darker(skin, 0.55), 0.009)
    canvas.paint(blob(canvas.random, tip, 0.075, 0.055, angle), _darker(skin, 1.12), bump=0.1, gloss=1.0, round_=0.025)


def retract(canvas: Canvas, centre: Point, tip: Point, angle: float, size: float, skin: Colour) -> None:
    """The target drawn out into a tent, taut up to the tip."""
    away = math.atan2(tip[1] - centre[1], tip[0] - centre[0])
    root = turned([(0.02, -0.85 * size), (0.02, 0.85 * size)], away, centre)
    middle = ((centre[0] + tip[0]) / 2, (centre[1] + tip[1]) / 2)
    waist = turned([(0.0, -0.28 * size), (0.0, 0.28 * size)], away, middle)
    ends = turned([(0.02, -0.03), (0.02, 0.03)], away, tip)
    outline = [*curve(root[0], waist[0], ends[0]), *reversed(curve(root[1], waist[1], ends[1]))]
    canvas.paint(outline, skin, bump=0.09, gloss=1.0, round_=0.035)
    for place in (3, 5, 7, 9):
        base = (
            outline[0][0] + (outline[-1][0] - outline[0][0]) * place / 12,
            (outline[0][1] + (outline[-1][1] - outline[0][1]) * place / 12),
        )
        canvas.stroke(curve(base, middle, tip), _darker(skin, 0.6), 0.007)


def dissect(canvas: Canvas, centre: Point, tip: Point, angle: float, size: float, skin: Colour) -> None:
    """A gap torn open along the tissue, spanned by fibres."""
    across = angle + math.pi / 2
    canvas.paint(
        blob(canvas.random, tip, 0.17, 0.085, across, 0.08),
        (250, 222, 168),
        gloss=0.3,
        soft=0.004,
        bump=-0.05,
        round_=0.02,
    )
    canvas.paint(
        blob(canvas.random, tip, 0.15, 0.06, across, 0.08), (92, 14, 18), gloss=0.3, soft=0.004, bump=-0.05, round_=0.02
    )
    for step in range(-4, 5):
        ends = turned([(step * 0.032, -0.075), (step * 0.03 + 0.01, 0.075)], across, tip)
        canvas.stroke(ends, (252, 226, 196), 0.007)


def coagulate(canvas: Canvas, centre: Point, tip: Point, angle: float, size: float, skin: Colour) -> None:
    """A white rim of cooked tissue around a black spot."""
    canvas.paint(blob(canvas.random, tip, 0.15, 0.12, angle), (240, 226, 204), gloss=0.1, soft=0.012)
    canvas.paint(blob(canvas.random, tip, 0.095, 0.075, angle), (84, 52, 34), gloss=0.05, soft=0.01)
    canvas.paint(blob(canvas.random, tip, 0.055, 0.045, angle), (18, 12, 10), gloss=0.05, soft=0.006, bump=-0.02)


def clip(canvas: Canvas, centre: Point, tip: Point, angle: float, size: float, skin: Colour) -> None:
    """Clips of bright metal beside the one that is being set."""
    for place in (-1, 1):
        at = turned([(0.02, place * 0.115)], angle, tip)[0]
        for shift, colour in ((0.012, (60, 62, 70)), (0.0, (232, 236, 242))):
            bar = [(-0.085, -0.016 + shift), (0.085, -0.016 + shift), (0.085, 0.016 + shift), (-0.085, 0.016 + shift)]
            canvas.paint(turned(bar, angle, at), colour, mottled=colour, gloss=1.0, soft=0.002, bump=0.02, round_=0.01)


def cut(canvas: Canvas, centre: Point, tip: Point, angle: float, size: float, skin: Colour) -> None:
    """A straight cut ahead of the tip, with red edges and drops of blood."""
    length = 0.24
    edge = turned([(-0.06, -0.034), (length, 0.0), (-0.06, 0.034)], angle, tip)
    canvas.paint(edge, (214, 20, 24), gloss=1.0, soft=0.004, bump=0.02, round_=0.01)
    slit = turned([(-0.06, -0.018), (length - 0.03, 0.0), (-0.06, 0.018)], angle, tip)
    canvas.paint(slit, (34, 2, 4), gloss=0.2, soft=0.002, bump=-0.06, round_=0.012)
    for _ in range(5):
        x, y = float(canvas.random.uniform(0.0, length)), float(canvas.random.uniform(-0.1, 0.1))
        canvas.dot(turned([(x, y)], angle, tip)[0], float(canvas.random.uniform(0.008, 0.018)), (178, 8, 14))


def aspirate(canvas: Canvas, centre: Point, tip: Point, angle: float, size: float, skin: Colour) -> None:
    """The pool turns towards the tip, and is bright where it is drawn in."""
    for arm in np.linspace(0, 2 * math.pi, 7)[:-1]:
        line = [
            (tip[0] + r * math.cos(arm + 5 * r), tip[1] + 0.75 * r * math.sin(arm + 5 * r))
            for r in np.linspace(0.03, 0.22, 10)
        ]
        canvas.stroke(line, (214, 76, 72), 0.01)
    canvas.paint(blob(canvas.random, tip, 0.05, 0.04, 0.0), (36, 0, 2), bump=-0.06, gloss=1.0, round_=0.02)


def pack(canvas: Canvas, centre: Point, tip: Point, angle: float, size: float, skin: Colour) -> None:
    """The target half inside a bag whose blue rim stands open."""
    across = angle + math.pi / 2
    at = turned([(0.55 * size, 0.0)], angle, centre)[0]
    sack = [(-0.95, 0.1), (0.95, 0.1), (0.9, -0.8), (0.4, -1.2), (-0.4, -1.2), (-0.9, -0.8)]
    canvas.paint(
        turned([(size * x, size * y) for x, y in sack], across, at),
        (224, 232, 238),
        mottled=(182, 202, 216),
        bump=0.06,
        gloss=1.0,
        opacity=0.85,
    )
    ring = turned(
        [(size * 0.98 * math.cos(t), size * 0.26 * math.sin(t) + 0.1 * size) for t in np.linspace(0, 2 * math.pi, 30)],
        across,
        at,
    )
    canvas.paint(tube(ring, 0.024), (36, 108, 204), bump=0.03, gloss=0.9, round_=0.012)


def glow(image: Image.Image, unit: float, tip: Point, angle: float, random: np.random.Generator) -> None:
    """Light of the current at the tip, sparks, and smoke that rises from it."""
    (x, y) = (tip[0] * unit, tip[1] * unit)
    _haze(image, unit, tip, random, rise=-math.pi / 2 + float(random.uniform(-0.5, 0.5)))
    light = Image.new("RGB", image.size)
    ink = ImageDraw.Draw(light)
    for radius, colour in ((0.085, (70, 60, 150)), (0.05, (190, 170, 200)), (0.024, (255, 250, 235))):
        r = radius * unit
        ink.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    for turn in random.uniform(0, 2 * math.pi, 7):
        near, far = 0.02 * unit, float(random.uniform(0.07, 0.12)) * unit
        ink.line(
            (x + near * math.cos(turn), y + near * math.sin(turn), x + far * math.cos(turn), y + far * math.sin(turn)),
            fill=(255, 236, 160),
            width=max(1, round(0.007 * unit)),
        )
    _added(image, light, (x, y), 0.2 * unit, 0.012 * unit)


def jet(image: Image.Image, unit: float, tip: Point, angle: float, random: np.random.Generator) -> None:
    """Clear water that fans out of the tip and splashes."""
    water = Image.new("RGB", image.size)
    ink = ImageDraw.Draw(water)
    for ray in np.linspace(-0.42, 0.42, 13):
        reach = float(random.uniform(0.2, 0.32))
        line = turned([(0.01, 0.0), (reach * math.cos(ray), reach * math.sin(ray))], angle, tip)
        ink.line([(px * unit, py * unit) for px, py in line], fill=(96, 150, 190), width=max(1, round(0.012 * unit)))
    for _ in range(26):
        ray, reach, r = (float(random.uniform(*span)) for span in ((-0.6, 0.6), (0.12, 0.38), (0.004, 0.012)))
        px, py = turned([(reach * math.cos(ray), reach * math.sin(ray))], angle, tip)[0]
        ink.ellipse(((px - r) * unit, (py - r) * unit, (px + r) * unit, (py + r) * unit), fill=(170, 205, 230))
    _added(image, water, (tip[0] * unit, tip[1] * unit), 0.5 * unit, 0.003 * unit)


UNDER: Mapping[int, Under] = {
    VERBS.index(one.__name__): one for one in (grasp, retract, dissect, coagulate, clip, cut, aspirate, pack)
}
OVER: Mapping[int, Over] = {VERBS.index("coagulate"): glow, VERBS.index("irrigate"): jet}


def _haze(image: Image.Image, unit: float, tip: Point, random: np.random.Generator, rise: float) -> None:
    """Puffs of grey smoke, wider and thinner the further they are."""
    mask = Image.new("L", image.size)
    ink = ImageDraw.Draw(mask)
    for step in range(7):
        reach, radius = 0.05 + 0.055 * step, 0.035 + 0.016 * step
        x = (tip[0] + reach * math.cos(rise) + float(random.normal(0, 0.02))) * unit
        y = (tip[1] + reach * math.sin(rise) + float(random.normal(0, 0.02))) * unit
        r = radius * unit
        ink.ellipse((x - r, y - r, x + r, y + r), fill=205 - 20 * step)
    box = _around((tip[0] * unit, tip[1] * unit), 0.75 * unit, image.size)
    if box:
        veil = mask.crop(box).filter(ImageFilter.GaussianBlur(0.028 * unit))
        image.paste((214, 212, 216), box, veil)


def _added(image: Image.Image, light: Image.Image, centre: Point, reach: float, blur: float) -> None:
    """Light is added to what it falls on."""
    if box := _around(centre, reach, image.size):
        there = light.crop(box).filter(ImageFilter.GaussianBlur(blur))
        image.paste(ImageChops.add(image.crop(box), there), box)


def _around(centre: Point, reach: float, size: tuple[int, int]) -> tuple[int, int, int, int] | None:
    left, upper = (max(0, int(c - reach)) for c in centre)
    right, lower = (min(most, int(c + reach)) for c, most in zip(centre, size, strict=True))
    return (left, upper, right, lower) if left < right and upper < lower else None


def _darker(colour: Colour, factor: float) -> Colour:
    red, green, blue = (min(255, int(c * factor)) for c in colour)
    return red, green, blue
