"""The cavity that targets lie in, and what they are made of: folds, vessels, rings, rounded outlines."""

from __future__ import annotations

import math

from scaling_study.workloads.surgical_scenes.canvas import Canvas, Colour, Point, blob, curve, turned


def cavity(canvas: Canvas, base: Colour) -> None:
    """Folds of tissue out of focus, in the colours of this operation, and their vessels."""
    random, wide = canvas.random, canvas.aspect
    rough = canvas.coarser(base)
    for _ in range(int(random.integers(5, 9))):
        tone = float(random.uniform(0.62, 1.12))
        colour = toned(base, tone, float(random.uniform(-9, 9)))
        centre = (float(random.uniform(0, wide)), float(random.uniform(0, 1)))
        half, other, angle = (float(value) for value in random.uniform((0.2, 0.2, 0), (0.5, 0.5, 3)))
        shape = blob(random, centre, half, other, angle)
        rough.paint(shape, colour, bump=0.05, gloss=0.3, soft=0.03, round_=0.1, opacity=0.8)
    canvas.lie_on(rough)
    for _ in range(int(random.integers(1, 4))):
        start = (float(random.uniform(0, wide)), float(random.uniform(0, 1)))
        line = winding(canvas, start, float(random.uniform(0, 6.3)), 0.35, 0.1)
        canvas.stroke(line, toned(base, 0.72), 0.006)


def bed(canvas: Canvas, centre: Point, size: float, angle: float) -> None:
    """The fat and tissue around a tube."""
    canvas.paint(
        blob(canvas.random, centre, size * 1.2, size * 0.75, angle, 0.1),
        (176, 76, 62),
        mottled=(198, 116, 82),
        bump=0.03,
        gloss=0.4,
        soft=0.03,
    )


def across(canvas: Canvas, centre: Point, reach: float, angle: float, bend: float) -> list[Point]:
    """A bent line through the centre."""
    bent = reach * bend * float(canvas.random.uniform(-1, 1))
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
        heading += float(canvas.random.normal(0, 4 * unrest))
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
