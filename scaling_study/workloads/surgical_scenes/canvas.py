"""Wet tissue on which light falls: colours and heights that shapes are painted into, and shaded once at the end.

    paint, stroke      colour (albedo), height (relief) and gloss of each shape, twice as fine as the frame
    shaded             light from the endoscope: what faces it is bright, and shines where it is wet

Lengths are in units of the frame's height: (0, 0) is the upper left corner, (width / height, 1) the lower right one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from scipy.ndimage import gaussian_filter

Point = tuple[float, float]
Colour = tuple[int, int, int]
Floats = NDArray[np.float32]
FINER = 2  # pixels of the canvas along one of the frame
COARSER = 4  # pixels of the frame along one of a canvas for what has no edges


class Canvas:
    """One frame in the making."""

    def __init__(self, height: int, width: int, random: np.random.Generator, colour: Colour) -> None:
        """`height`, `width`: of the frame, in pixels."""
        self.height, self.width, self.random = height * FINER, width * FINER, random
        self.unit = float(self.height)  # pixels of the canvas
        self.aspect = width / height
        self.albedo = Image.new("RGB", (self.width, self.height), colour)
        # In pixels of the frame: what is shaded is smooth.
        self.relief: Floats = np.zeros((height, width), np.float32)
        self.gloss: Floats = np.full((height, width), 0.35, np.float32)
        self.coarse, self.middle, self.fine = (self.noise(cells, width, height) for cells in (4, 13, 44))
        mottling = Image.fromarray(0.5 * self.middle + 0.35 * self.coarse + 0.3 * self.fine)
        self.mottling: Floats = np.asarray(mottling.resize((self.width, self.height), Image.Resampling.BILINEAR))

    def noise(self, cells: int, width: int, height: int) -> Floats:
        """(height, width), smooth, between -1 and 1, with so many waves from top to bottom."""
        small = self.random.uniform(-1, 1, (cells + 2, round(cells * self.aspect) + 2)).astype(np.float32)
        return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))

    def pixels(self, points: Sequence[Point]) -> list[Point]:
        return [(x * self.unit, y * self.unit) for x, y in points]

    def box(self, points: Sequence[Point], margin: float) -> tuple[int, int, int, int] | None:
        """Left, upper, right and lower edge around points in pixels, in whole ones of the frame; None outside of it."""
        xs, ys = zip(*points, strict=True)
        left, upper = (max(0, int(min(values) - margin)) // FINER * FINER for values in (xs, ys))
        right, lower = (
            min(most, -(-int(max(values) + margin) // FINER) * FINER)
            for values, most in ((xs, self.width), (ys, self.height))
        )
        return (left, upper, right, lower) if left < right and upper < lower else None

    def paint(
        self,
        points: Sequence[Point],
        colour: Colour,
        *,
        mottled: Colour | None = None,
        bump: float = 0.0,
        gloss: float = 0.5,
        soft: float = 0.006,
        opacity: float = 1.0,
        round_: float = 0.06,
        grain: float = 0.6,
    ) -> None:
        """Fill a polygon. `mottled`: a second colour, in patches as strong as `grain`; `bump`: how high it stands out,
        over an edge as wide as `round_`; `soft`: how far its edge fades."""
        outline = self.pixels(points)
        edge, slope = soft * self.unit, round_ * self.unit
        box = self.box(outline, 2.5 * max(edge, slope) if bump else 2.5 * edge)
        if box is None:
            return
        left, upper, right, lower = box
        mask = Image.new("L", (right - left, lower - upper))
        ImageDraw.Draw(mask).polygon([(x - left, y - upper) for x, y in outline], fill=255)
        faded = mask.filter(ImageFilter.GaussianBlur(edge)) if edge > 0.5 else mask
        share = np.asarray(faded, np.float32) * (opacity / 255)
        window = (slice(upper, lower), slice(left, right))
        blend = np.clip(0.5 + grain * self.mottling[window], 0, 1)[..., None]
        second = np.array(mottled or tuple(int(0.82 * c) for c in colour), np.float32)
        patch = np.array(colour, np.float32) * (1 - blend) + second * blend
        ink = Image.fromarray(patch.astype(np.uint8))
        self.albedo.paste(ink, (left, upper), Image.fromarray((share * 255).astype(np.uint8)))
        coarse = (slice(upper // FINER, lower // FINER), slice(left // FINER, right // FINER))
        self.gloss[coarse] += share[::FINER, ::FINER] * (gloss - self.gloss[coarse])
        if bump:
            inside = np.asarray(mask.reduce(FINER), np.float32) * (bump * self.unit / FINER / 255)
            self.relief[coarse] += gaussian_filter(inside, slope / FINER, truncate=2.5)

    def lump(
        self,
        centre: Point,
        across: float,
        along: float,
        angle: float,
        colour: Colour,
        wobble: float = 0.12,
        **look: Any,
    ) -> None:
        """Fill an uneven ellipse; `look` as of paint()."""
        self.paint(blob(self.random, centre, across, along, angle, wobble), colour, **look)

    def pipe(self, line: Sequence[Point], radius: float | Sequence[float], colour: Colour, **look: Any) -> None:
        """Fill a tube along a line; `look` as of paint()."""
        self.paint(tube(line, radius), colour, **look)

    def stroke(self, points: Sequence[Point], colour: Colour, width: float) -> None:
        """A thin line on the surface, that is no higher than it."""
        pen = max(1, round(width * self.unit))
        ImageDraw.Draw(self.albedo).line(self.pixels(points), fill=colour, width=pen, joint="curve")

    def dot(self, centre: Point, radius: float, colour: Colour) -> None:
        (x, y), r = self.pixels([centre])[0], radius * self.unit
        ImageDraw.Draw(self.albedo).ellipse((x - r, y - r, x + r, y + r), fill=colour)

    def coarser(self, colour: Colour) -> Canvas:
        return Canvas(self.height // FINER // COARSER, self.width // FINER // COARSER, self.random, colour)

    def lie_on(self, rough: Canvas) -> None:
        """Begin with what is on another canvas, of whatever number of pixels, and mottle it."""
        size = (self.width, self.height)
        smooth = np.asarray(rough.albedo.resize(size, Image.Resampling.BICUBIC), np.float32)
        colours = smooth * (1 + 0.16 * self.mottling[..., None])
        self.albedo = Image.fromarray(np.clip(colours, 0, 255).astype(np.uint8))
        higher = Image.fromarray(rough.relief * (self.height / rough.height))
        frame = (self.relief.shape[1], self.relief.shape[0])
        self.relief += np.asarray(higher.resize(frame, Image.Resampling.BICUBIC))

    def shaded(self, light: Point, wetness: float) -> Image.Image:
        """`light`: how far to the right and down it stands of the camera, -0.5 to 0.5; `wetness`: of highlights."""
        relief = self.relief + self.unit / FINER * (0.0011 * self.fine + 0.006 * self.middle + 0.012 * self.coarse)
        down, right = np.gradient(relief)
        norm = 1 / np.sqrt(1 + down * down + right * right)
        across, along = light
        up = math.sqrt(max(0.05, 1 - across * across - along * along))
        facing = np.clip((up - right * across - down * along) * norm, 0, 1)
        # Halfway between the light and the camera, as Blinn has it (SIGGRAPH 1977).
        length = math.sqrt(across * across + along * along + (up + 1) ** 2)
        half = np.clip(((up + 1) - right * across - down * along) * norm / length, 0, 1)
        flat = (up + 1) / length  # what lies flat does not shine: only what is curved mirrors the lamp
        shine = (np.clip(half**90 - flat**90, 0, 1) + 0.12 * half**20) * self.gloss * wetness
        colours = np.asarray(self.albedo.reduce(FINER), np.float32)
        lit = colours * (0.2 + 0.88 * facing)[..., None] + (235 * shine)[..., None]
        frame = Image.fromarray(np.clip(lit, 0, 255).astype(np.uint8))
        return frame.resize((self.width, self.height), Image.Resampling.BICUBIC)


def blob(
    random: np.random.Generator,
    centre: Point,
    across: float,
    along: float,
    angle: float = 0.0,
    wobble: float = 0.12,
    corners: int = 32,
) -> list[Point]:
    """An uneven ellipse with these half-axes, turned by `angle`."""
    turn = np.linspace(0, 2 * math.pi, corners, endpoint=False)
    radius = 1 + sum(
        random.normal(0, wobble / k) * np.cos(k * turn + random.uniform(0, 2 * math.pi)) for k in (2, 3, 4, 5)
    )
    x, y = across * radius * np.cos(turn), along * radius * np.sin(turn)
    return turned(list(zip(x.tolist(), y.tolist(), strict=True)), angle, centre)


def turned(points: Sequence[Point], angle: float, centre: Point) -> list[Point]:
    """Turned about (0, 0), then moved there."""
    cos, sin = math.cos(angle), math.sin(angle)
    return [(centre[0] + x * cos - y * sin, centre[1] + x * sin + y * cos) for x, y in points]


def curve(start: Point, middle: Point, end: Point, *, steps: int = 14) -> list[Point]:
    shares = [step / steps for step in range(steps + 1)]
    return [
        (
            (1 - t) ** 2 * start[0] + 2 * t * (1 - t) * middle[0] + t * t * end[0],
            (1 - t) ** 2 * start[1] + 2 * t * (1 - t) * middle[1] + t * t * end[1],
        )
        for t in shares
    ]


def tube(line: Sequence[Point], radius: float | Sequence[float]) -> list[Point]:
    """The outline of a tube along a line; `radius` may change from point to point."""
    radii = [radius] * len(line) if isinstance(radius, float) else list(radius)
    xy = np.array(line)
    step = np.gradient(xy, axis=0)
    step /= np.maximum(np.hypot(step[:, 0], step[:, 1]), 1e-9)[:, None]
    off = np.stack([-step[:, 1], step[:, 0]], 1) * np.array(radii)[:, None]
    return [(float(x), float(y)) for x, y in np.concatenate([xy + off, (xy - off)[::-1]])]


def cavity(canvas: Canvas, base: Colour) -> None:
    """Folds of tissue out of focus, in the colours of this operation, and their vessels."""
    random, wide = canvas.random, canvas.aspect
    rough = canvas.coarser(base)
    for _ in range(int(random.integers(5, 9))):
        tone = random.uniform(0.62, 1.12)
        colour = toned(base, tone, random.uniform(-9, 9))
        centre = (random.uniform(0, wide), random.uniform(0, 1))
        half, other, angle = random.uniform((0.2, 0.2, 0), (0.5, 0.5, 3)).tolist()
        shape = blob(random, centre, half, other, angle)
        rough.paint(shape, colour, bump=0.05, gloss=0.3, soft=0.03, round_=0.1, opacity=0.8)
    canvas.lie_on(rough)
    for _ in range(int(random.integers(1, 4))):
        start = (random.uniform(0, wide), random.uniform(0, 1))
        line = winding(canvas, start, random.uniform(0, 6.3), 0.35, 0.1)
        canvas.stroke(line, toned(base, 0.72), 0.006)


def bed(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """The fat and tissue around a tube."""
    fat = {"mottled": (198, 116, 82), "bump": 0.03, "gloss": 0.4, "soft": 0.03}
    canvas.lump(centre, size * 1.2, size * 0.75, angle, (176, 76, 62), wobble=0.1, **fat)


def across(canvas: Canvas, centre: Point, reach: float, angle: float, bend: float) -> list[Point]:
    bent = reach * bend * canvas.random.uniform(-1, 1)
    return curve(*turned([(-reach, bent), (0.0, -bent), (reach, bent)], angle, centre))


def rings(canvas: Canvas, line: list[Point], radius: float, colour: Colour, every: int = 2) -> None:
    """Creases across a tube."""
    for place in range(1, len(line) - 1, every):
        (x0, y0), (x1, y1), (x, y) = line[place - 1], line[place + 1], line[place]
        length = math.hypot(x1 - x0, y1 - y0) or 1.0
        across = (-(y1 - y0) / length * radius * 0.8, (x1 - x0) / length * radius * 0.8)
        canvas.stroke([(x - across[0], y - across[1]), (x + across[0], y + across[1])], colour, 0.007)


def winding(canvas: Canvas, start: Point, heading: float, length: float, unrest: float) -> list[Point]:
    """A line that changes its heading as it goes."""
    line, steps = [start], 12
    for _ in range(steps):
        heading += canvas.random.normal(0, 4 * unrest)
        x, y = line[-1]
        line.append((x + length / steps * math.cos(heading), y + length / steps * math.sin(heading)))
    return line


def rounded(corners: list[Point]) -> list[Point]:
    """A closed outline through the middles of its sides, with its corners cut smoothly."""
    outline: list[Point] = []
    for place, corner in enumerate(corners):
        before, after = corners[place - 1], corners[(place + 1) % len(corners)]
        start = ((before[0] + corner[0]) / 2, (before[1] + corner[1]) / 2)
        end = ((corner[0] + after[0]) / 2, (corner[1] + after[1]) / 2)
        outline += curve(start, corner, end, steps=5)[:-1]
    return outline


def toned(colour: Colour, tone: float, warmer: float = 0.0) -> Colour:
    """Brighter or darker by a factor, and further towards yellow."""
    red, green, blue = (min(255, max(0, int(c * tone))) for c in colour)
    return red, min(255, max(0, int(green + warmer))), blue
