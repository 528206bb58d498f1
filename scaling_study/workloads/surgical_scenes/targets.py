"""Targets that are operated on, and what instruments do to them: fourteen painters of targets, ten of verbs.

Each target looks like no other. It is painted around a centre, about `size` wide to either side, in units of the
frame's height. A verb is seen by how the jaws stand, and by what it leaves on the tissue: folds, tents, cuts, clips and
pools are painted before the instrument is drawn; light, smoke and jets after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from scaling_study.workloads.surgical_scenes.canvas import (
    Canvas,
    Colour,
    Point,
    across,
    bed,
    curve,
    rings,
    rounded,
    toned,
    turned,
    winding,
)
from scaling_study.workloads.surgical_scenes.triplets import VERBS

Painter = Callable[[Canvas, Point, float, float], None]  # canvas, centre, size, angle


def gallbladder(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """A smooth greenish sac, shaped like a pear."""
    pear = [(-1.15, 0.0), (-0.95, -0.24), (-0.4, -0.36), (0.15, -0.56), (0.7, -0.62), (1.1, -0.36), (1.2, 0.0)]
    pear += [(x, -y) for x, y in reversed(pear[1:-1])]
    outline = turned([(size * x, size * y * 1.05) for x, y in rounded(pear)], angle, centre)
    canvas.paint(outline, (126, 156, 112), mottled=(92, 128, 96), bump=0.17, gloss=1.0, round_=0.08, grain=0.4)
    for _ in range(3):
        start = turned([(size * canvas.random.uniform(-0.7, 0.7), 0.0)], angle, centre)[0]
        canvas.stroke(winding(canvas, start, canvas.random.uniform(0, 6.3), size * 0.7, 0.05), (142, 92, 78), 0.005)


def cystic_plate(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """A pale sheet of fibres that cross, on the raw bed of the liver."""
    canvas.lump(centre, size * 1.1, size * 0.85, angle, (122, 44, 38), bump=0.04, gloss=0.5)
    sheet = {"mottled": (204, 150, 142), "bump": 0.03, "gloss": 0.6, "soft": 0.012}
    canvas.lump(centre, size * 0.92, size * 0.62, angle, (232, 206, 196), wobble=0.08, **sheet)
    for step in range(-5, 6):
        for slant in (0.5, -0.5):
            x, reach = step * 0.15 * size, 0.55 * math.sqrt(1 - (step / 6) ** 2) * size
            ends = [(x - slant * 0.4 * reach, -reach), (x + slant * 0.4 * reach, reach)]
            canvas.stroke(turned(ends, angle, centre), (248, 234, 226), 0.004)


def cystic_duct(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """One tube, pale green and yellow, with rings."""
    bed(canvas, centre, size, angle)
    line = across(canvas, centre, size * 1.3, angle, 0.12)
    canvas.pipe(line, 0.17 * size + 0.02, (192, 196, 122), mottled=(164, 172, 96), bump=0.08, gloss=0.9, round_=0.03)
    rings(canvas, line, 0.17 * size + 0.02, (148, 156, 84))


def cystic_artery(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """A thin bright red tube that forks."""
    bed(canvas, centre, size, angle)
    line = across(canvas, centre, size * 1.3, angle, 0.3)
    branch = curve(line[8], *turned([(0.4 * size, -0.4 * size), (1.0 * size, -0.75 * size)], angle, centre))
    for path, radius in ((branch, 0.06 * size), (line, 0.1 * size)):
        canvas.pipe(path, radius + 0.006, (222, 30, 34), mottled=(196, 18, 26), bump=0.05, gloss=1.0, round_=0.02)
        canvas.stroke(path, (250, 118, 108), 0.006)


def cystic_pedicle(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """Duct and artery side by side, half wrapped in fat."""
    canvas.lump(centre, size * 1.2, size * 0.62, angle, (226, 188, 110), wobble=0.1, mottled=(204, 152, 92), bump=0.05)
    for offset, colour, radius in ((-0.24, (192, 196, 122), 0.16), (0.22, (214, 34, 36), 0.12)):
        at = turned([(0.0, offset * size)], angle, centre)[0]
        line = across(canvas, at, size * 1.25, angle, 0.06)
        canvas.pipe(line, radius * size + 0.008, colour, bump=0.06, gloss=0.9, round_=0.025)
    for x in (-0.75, 0.8):
        at = turned([(x * size, 0.0)], angle, centre)[0]
        canvas.lump(at, size * 0.3, size * 0.5, angle, (232, 196, 116), bump=0.05, round_=0.03)


def blood_vessel(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """A thick vein, blue and violet, that forks into two."""
    bed(canvas, centre, size, angle)
    trunk = curve(*turned([(-1.3 * size, 0.1 * size), (-0.5 * size, -0.05 * size), (0.15 * size, 0.0)], angle, centre))
    for side in (-1, 1):
        ends = [(-0.1 * size, 0.0), (0.5 * size, side * 0.12 * size), (1.15 * size, side * 0.62 * size)]
        canvas.pipe(curve(*turned(ends, angle, centre)), 0.15 * size, (74, 66, 138), bump=0.07, gloss=0.9, round_=0.03)
    canvas.pipe(trunk, 0.24 * size, (84, 72, 148), mottled=(66, 54, 122), bump=0.09, gloss=0.9, round_=0.035)


def fluid(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """A pool of blood, smooth and glossy, with bubbles."""
    random = canvas.random
    pool = {"mottled": (88, 2, 8), "bump": -0.04, "gloss": 1.0, "soft": 0.01, "round_": 0.02, "grain": 0.2}
    canvas.lump(centre, size * 1.25, size * 0.85, angle, (112, 6, 12), wobble=0.2, **pool)
    for _ in range(9):
        x, y = (random.uniform(-0.8, 0.8, 2) * size).tolist()
        at = turned([(x, 0.7 * y)], angle, centre)[0]
        radius = random.uniform(0.008, 0.026)
        canvas.dot(at, radius, (206, 110, 104))
        canvas.dot(at, radius * 0.72, (138, 22, 26))
        canvas.dot((at[0] - radius * 0.3, at[1] - radius * 0.3), radius * 0.25, (255, 236, 230))


def abdominal_wall_cavity(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """Muscle of the wall: pale and dark stripes, side by side."""
    wall = {"mottled": (222, 148, 128), "bump": 0.03, "gloss": 0.35, "soft": 0.03}
    canvas.lump(centre, size * 1.25, size * 0.95, angle, (240, 176, 150), wobble=0.07, **wall)
    for step in range(-4, 5):
        y = step * 0.18 * size
        reach = 1.1 * size * math.sqrt(1 - (step / 5) ** 2)
        line = curve(*turned([(-reach, y), (0.0, y + 0.07 * size), (reach, y)], angle, centre))
        canvas.stroke(line, (178, 84, 76), 0.013)
        canvas.stroke([(x, y + 0.011) for x, y in line], (252, 208, 184), 0.006)


def liver(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """A large brown lobe with a sharp edge."""
    at = turned([(0.0, -0.25 * size)], angle, centre)[0]
    lobe = {"mottled": (78, 26, 22), "bump": 0.13, "gloss": 0.75, "soft": 0.004, "round_": 0.07, "grain": 0.9}
    canvas.lump(at, size * 1.35, size * 1.05, angle, (104, 40, 30), wobble=0.06, **lobe)


def adhesion(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """A web of white strands between two folds."""
    random = canvas.random
    canvas.lump(centre, size * 1.0, size * 0.62, angle, (96, 28, 30), wobble=0.1, gloss=0.3, soft=0.02)
    for side in (-1, 1):
        at = turned([(0.0, side * 0.62 * size)], angle, centre)[0]
        canvas.lump(at, size * 1.15, size * 0.3, angle, (196, 98, 88), bump=0.07, round_=0.03)
    for _ in range(11):
        (x, y), bend = (random.uniform(-0.85, 0.85, 2) * size).tolist(), random.uniform(-0.2, 0.2)
        ends = [(x, -0.48 * size), (bend * size, 0.0), (y, 0.48 * size)]
        canvas.stroke(curve(*turned(ends, angle, centre)), (250, 238, 230), random.uniform(0.005, 0.013))


def omentum(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """Yellow fat in lumps, with fine vessels."""
    random = canvas.random
    for _ in range(13):
        turn, reach = random.uniform(0, 6.3), random.uniform(0, 0.85)
        at = turned([(reach * size * math.cos(turn) * 1.15, reach * size * math.sin(turn) * 0.8)], angle, centre)[0]
        wide, high = (random.uniform(0.26, 0.42, 2) * size).tolist()
        canvas.lump(at, wide, high, turn, (246, 206, 82), mottled=(228, 168, 58), bump=0.06, gloss=0.6, round_=0.025)
    for _ in range(3):
        canvas.stroke(winding(canvas, centre, random.uniform(0, 6.3), size, 0.08), (198, 64, 48), 0.005)


def peritoneum(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """A thin bluish film, half transparent, in parallel folds."""
    film = {"mottled": (214, 196, 210), "bump": 0.03, "gloss": 1.0, "opacity": 0.78, "soft": 0.012}
    canvas.lump(centre, size * 1.25, size * 0.85, angle, (186, 196, 222), wobble=0.1, **film)
    for step in range(-3, 4):
        x = step * 0.28 * size
        ends = [(x - 0.1 * size, -0.75 * size), (x + 0.14 * size, 0.0), (x - 0.06 * size, 0.75 * size)]
        line = curve(*turned(ends, angle, centre))
        canvas.pipe(line, 0.02, (226, 232, 248), bump=0.03, gloss=1.0, opacity=0.6, round_=0.015)


def gut(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """A loop of bowel: a thick pink tube in segments."""
    line = curve(
        *turned([(-1.2 * size, 0.45 * size), (0.0, -0.75 * size), (1.2 * size, 0.45 * size)], angle, centre), steps=18
    )
    radii = [0.38 * size * (1 + 0.1 * math.cos(place * 2.1)) for place in range(len(line))]
    canvas.pipe(line, radii, (244, 168, 164), mottled=(228, 140, 144), bump=0.12, gloss=0.9, round_=0.06, grain=0.4)
    rings(canvas, line, 0.36 * size, (206, 112, 118), every=3)


def specimen_bag(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """A bag of clear foil with a blue rim."""
    sack = [(-0.95, -0.55), (0.95, -0.55), (1.05, 0.1), (0.7, 0.75), (0.0, 0.95), (-0.7, 0.75), (-1.05, 0.1)]
    foil: dict[str, Any] = {"mottled": (180, 200, 214), "bump": 0.07, "gloss": 1.0, "opacity": 0.92}
    canvas.paint(turned([(size * x, size * y) for x, y in rounded(sack)], angle, centre), (222, 230, 234), **foil)
    for x in (-0.6, -0.25, 0.1, 0.5):
        ends = [(x * size, -0.4 * size), ((x + 0.12) * size, 0.1 * size), (x * 0.6 * size, 0.7 * size)]
        canvas.stroke(curve(*turned(ends, angle, centre)), (250, 252, 255), 0.008)
        canvas.stroke(curve(*turned([(px + 0.02, py) for px, py in ends], angle, centre)), (150, 172, 190), 0.006)
    rim = curve(*turned([(-1.0 * size, -0.5 * size), (0.0, -0.78 * size), (1.0 * size, -0.5 * size)], angle, centre))
    canvas.pipe(rim, 0.028, (40, 110, 200), bump=0.03, gloss=0.8, round_=0.015)


# Of each target: what paints it, and the colour of what is lifted off it.
LOOKS: Mapping[str, tuple[Painter, Colour]] = {
    "gallbladder": (gallbladder, (126, 156, 112)),
    "cystic_plate": (cystic_plate, (232, 206, 196)),
    "cystic_duct": (cystic_duct, (192, 196, 122)),
    "cystic_artery": (cystic_artery, (222, 30, 34)),
    "cystic_pedicle": (cystic_pedicle, (226, 188, 110)),
    "blood_vessel": (blood_vessel, (84, 72, 148)),
    "fluid": (fluid, (112, 6, 12)),
    "abdominal_wall_cavity": (abdominal_wall_cavity, (240, 176, 150)),
    "liver": (liver, (104, 40, 30)),
    "adhesion": (adhesion, (240, 224, 216)),
    "omentum": (omentum, (246, 206, 82)),
    "peritoneum": (peritoneum, (196, 204, 226)),
    "gut": (gut, (244, 168, 164)),
    "specimen_bag": (specimen_bag, (222, 230, 234)),
}


OPENING: Mapping[str, float] = {  # of the jaws, radians
    "grasp": 0.1,
    "retract": 0.05,
    "dissect": 0.5,
    "coagulate": 0.16,
    "clip": 0.06,
    "cut": 0.3,
    "aspirate": 0.1,
    "irrigate": 0.1,
    "pack": 0.12,
    "null_verb": 0.24,
}

# Canvas, centre, tip, angle, size, target's colour.
Under = Callable[[Canvas, Point, Point, float, float, Colour], None]
Over = Callable[[Image.Image, float, Point, float, np.random.Generator], None]  # image, unit, tip, angle


def grasp(canvas: Canvas, centre: Point, tip: Point, angle: float, size: float, skin: Colour) -> None:
    """A fold of the target between the jaws, with creases towards it."""
    for turn in np.linspace(0, 2 * math.pi, 9)[:-1]:
        near, far = ((tip[0] + r * math.cos(turn), tip[1] + r * math.sin(turn)) for r in (0.04, 0.15))
        canvas.stroke([near, far], toned(skin, 0.55), 0.009)
    canvas.lump(tip, 0.075, 0.055, angle, toned(skin, 1.12), bump=0.1, gloss=1.0, round_=0.025)


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
        canvas.stroke(curve(base, middle, tip), toned(skin, 0.6), 0.007)


def dissect(canvas: Canvas, centre: Point, tip: Point, angle: float, size: float, skin: Colour) -> None:
    """A gap torn open along the tissue, spanned by fibres."""
    sideways = angle + math.pi / 2
    canvas.lump(
        tip, 0.17, 0.085, sideways, (250, 222, 168), wobble=0.08, gloss=0.3, soft=0.004, bump=-0.05, round_=0.02
    )
    canvas.lump(tip, 0.15, 0.06, sideways, (92, 14, 18), wobble=0.08, gloss=0.3, soft=0.004, bump=-0.05, round_=0.02)
    for step in range(-4, 5):
        ends = turned([(step * 0.032, -0.075), (step * 0.03 + 0.01, 0.075)], sideways, tip)
        canvas.stroke(ends, (252, 226, 196), 0.007)


def coagulate(canvas: Canvas, centre: Point, tip: Point, angle: float, size: float, skin: Colour) -> None:
    """A white rim of cooked tissue around a black spot."""
    canvas.lump(tip, 0.15, 0.12, angle, (240, 226, 204), gloss=0.1, soft=0.012)
    canvas.lump(tip, 0.095, 0.075, angle, (84, 52, 34), gloss=0.05, soft=0.01)
    canvas.lump(tip, 0.055, 0.045, angle, (18, 12, 10), gloss=0.05, soft=0.006, bump=-0.02)


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
        x, y = canvas.random.uniform(0.0, length), canvas.random.uniform(-0.1, 0.1)
        canvas.dot(turned([(x, y)], angle, tip)[0], canvas.random.uniform(0.008, 0.018), (178, 8, 14))


def aspirate(canvas: Canvas, centre: Point, tip: Point, angle: float, size: float, skin: Colour) -> None:
    """The pool turns towards the tip, and is bright where it is drawn in."""
    for arm in np.linspace(0, 2 * math.pi, 7)[:-1]:
        line = [
            (tip[0] + r * math.cos(arm + 5 * r), tip[1] + 0.75 * r * math.sin(arm + 5 * r))
            for r in np.linspace(0.03, 0.22, 10)
        ]
        canvas.stroke(line, (214, 76, 72), 0.01)
    canvas.lump(tip, 0.05, 0.04, 0.0, (36, 0, 2), bump=-0.06, gloss=1.0, round_=0.02)


def pack(canvas: Canvas, centre: Point, tip: Point, angle: float, size: float, skin: Colour) -> None:
    """The target half inside a bag whose blue rim stands open."""
    sideways = angle + math.pi / 2
    at = turned([(0.55 * size, 0.0)], angle, centre)[0]
    sack = [(-0.95, 0.1), (0.95, 0.1), (0.9, -0.8), (0.4, -1.2), (-0.4, -1.2), (-0.9, -0.8)]
    foil: dict[str, Any] = {"mottled": (182, 202, 216), "bump": 0.06, "gloss": 1.0, "opacity": 0.85}
    canvas.paint(turned([(size * x, size * y) for x, y in sack], sideways, at), (224, 232, 238), **foil)
    ring = turned(
        [(size * 0.98 * math.cos(t), size * 0.26 * math.sin(t) + 0.1 * size) for t in np.linspace(0, 2 * math.pi, 30)],
        sideways,
        at,
    )
    canvas.pipe(ring, 0.024, (36, 108, 204), bump=0.03, gloss=0.9, round_=0.012)


def glow(image: Image.Image, unit: float, tip: Point, angle: float, random: np.random.Generator) -> None:
    """Light of the current at the tip, sparks, and smoke that rises from it."""
    (x, y) = (tip[0] * unit, tip[1] * unit)
    _haze(image, unit, tip, random, rise=-math.pi / 2 + random.uniform(-0.5, 0.5))
    light = Image.new("RGB", image.size)
    ink = ImageDraw.Draw(light)
    for radius, colour in ((0.085, (70, 60, 150)), (0.05, (190, 170, 200)), (0.024, (255, 250, 235))):
        r = radius * unit
        ink.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    for turn in random.uniform(0, 2 * math.pi, 7):
        near, far = 0.02 * unit, random.uniform(0.07, 0.12) * unit
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
        reach = random.uniform(0.2, 0.32)
        line = turned([(0.01, 0.0), (reach * math.cos(ray), reach * math.sin(ray))], angle, tip)
        ink.line([(px * unit, py * unit) for px, py in line], fill=(96, 150, 190), width=max(1, round(0.012 * unit)))
    for _ in range(26):
        ray, reach, r = (random.uniform(*span) for span in ((-0.6, 0.6), (0.12, 0.38), (0.004, 0.012)))
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
        x = (tip[0] + reach * math.cos(rise) + random.normal(0, 0.02)) * unit
        y = (tip[1] + reach * math.sin(rise) + random.normal(0, 0.02)) * unit
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
