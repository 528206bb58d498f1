"""The six instruments: a shaft that comes in from the edge of the frame, and a tip by which they are told apart.

shaft ================[joint]< jaws     x runs along the shaft, 0 where the jaws end; y across it

grasper     bright steel, two jaws with a window and teeth         scissors    black and red, two crossing blades
bipolar     blue shaft, two thin golden tines that bow apart       clipper     thick, violet collar, two square arms
hook        black shaft, white ceramic, a wire bent to an L        irrigator   a wide tube with holes, open in front
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from PIL import Image, ImageDraw

from scaling_study.workloads.surgical_scenes.canvas import Colour, Point, curve, toned, tube, turned
from scaling_study.workloads.surgical_scenes.triplets import INSTRUMENTS

REACH = 2.4  # units that a shaft is long: out of every frame
TIP = 0.2  # units from the joint to the end of the jaws
JOINT = -0.17  # about which jaws turn
RADIUS = 0.036  # of a shaft at the joint
NEARER = 0.4  # how much wider it is a unit further up: it comes towards the camera
ROUND = (  # from, to (shares of the radius), brightness
    (-1, -0.8, 0.38),
    (-0.8, -0.5, 0.62),
    (-0.5, -0.22, 0.92),
    (-0.22, 0.02, 1.3),
    (0.02, 0.35, 0.95),
    (0.35, 0.7, 0.6),
    (0.7, 1, 0.32),
)
STEEL, DARK, GOLD = (196, 202, 208), (38, 40, 46), (222, 178, 74)


@dataclass(frozen=True)
class Pose:
    """Where an instrument is, and how far its jaws are open."""

    tip: Point
    angle: float  # from the shaft towards the tip
    opening: float = 0.1  # radians between a jaw and the axis
    size: float = 1.0


@dataclass
class Pen:
    """Draws in the instrument's own directions, and keeps the outline of all that it draws."""

    image: Image.Image
    unit: float
    pose: Pose
    outlines: list[list[Point]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ink = ImageDraw.Draw(self.image)

    def placed(self, points: Sequence[Point]) -> list[Point]:
        size = self.pose.size
        return turned([(x * size, y * size) for x, y in points], self.pose.angle, self.pose.tip)

    def fill(self, points: Sequence[Point], colour: Colour) -> None:
        """A surface of the instrument's, without an outline of its own."""
        self.ink.polygon([(x * self.unit, y * self.unit) for x, y in self.placed(points)], fill=colour)

    def part(self, points: Sequence[Point], colour: Colour, edge: Colour) -> None:
        """A part of it, which belongs to its mask."""
        self.outlines.append(self.placed(points))
        self.fill(points, colour)
        line = [(x * self.unit, y * self.unit) for x, y in self.outlines[-1]]
        self.ink.line([*line, line[0]], fill=edge, width=max(1, round(0.004 * self.unit)))

    def rod(self, start: float, end: float, radius: float, colour: Colour) -> None:
        """A round piece of the shaft, from x = start to end; the light makes it look round."""
        wide = [radius * (1 + NEARER * max(0.0, -x - TIP)) for x in (start, end)]
        self.outlines.append(self.placed([(start, -wide[0]), (end, -wide[1]), (end, wide[1]), (start, wide[0])]))
        for low, high, bright in ROUND:
            strip = [(start, low * wide[0]), (end, low * wide[1]), (end, high * wide[1]), (start, high * wide[0])]
            self.fill(strip, toned(colour, bright))

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        (px, py), r = self.placed([(x, y)])[0], radius * self.pose.size
        box = ((px - r) * self.unit, (py - r) * self.unit, (px + r) * self.unit, (py + r) * self.unit)
        self.ink.ellipse(box, fill=colour)


def grasper(pen: Pen) -> None:
    pen.rod(-REACH, -TIP, RADIUS, STEEL)
    pen.rod(-TIP - 0.01, -TIP + 0.035, RADIUS * 1.12, (150, 156, 164))
    for side in (-1, 1):
        jaw = [(0.0, 0.0), (0.004, 0.012), (-0.05, 0.034), (-0.13, 0.042), (-0.19, 0.03), (-0.19, 0.0)]
        pen.part(_jaw(jaw, side, pen.pose.opening), (206, 212, 218), (96, 102, 110))
        window = [(-0.05, 0.013), (-0.07, 0.024), (-0.12, 0.027), (-0.135, 0.018), (-0.12, 0.012), (-0.07, 0.009)]
        pen.fill(_jaw(window, side, pen.pose.opening), (70, 30, 32))
        for tooth in range(6):
            x = -0.02 - 0.026 * tooth
            pen.fill(_jaw([(x, 0.0), (x - 0.008, 0.01), (x - 0.016, 0.0)], side, pen.pose.opening), (92, 98, 106))
    pen.disc(-0.19, 0.0, 0.016, (120, 126, 134))


def bipolar(pen: Pen) -> None:
    pen.rod(-REACH, -TIP, RADIUS, (34, 84, 196))
    pen.rod(-TIP - 0.05, -TIP + 0.02, RADIUS * 0.86, (20, 26, 60))
    spread = 0.02 + 0.16 * pen.pose.opening
    for side in (-1, 1):
        line = curve(
            (-0.19, side * 0.012), (-0.09, side * (0.03 + 1.5 * spread)), (0.0, side * max(0.004, spread - 0.018))
        )
        radii = [0.014 - 0.006 * place / (len(line) - 1) for place in range(len(line))]
        pen.part(tube(line, radii), GOLD, (120, 86, 20))
        pen.fill(tube([(x, y - 0.003) for x, y in line[4:12]], 0.003), (255, 232, 160))


def hook(pen: Pen) -> None:
    pen.rod(-REACH, -TIP, RADIUS * 0.92, DARK)
    pen.rod(-TIP - 0.09, -TIP + 0.045, RADIUS * 0.8, (246, 240, 226))
    wire = [(-0.16, 0.0), (-0.03, 0.0), *curve((-0.03, 0.0), (0.0, 0.0), (0.0, -0.03), steps=5), (0.0, -0.085)]
    pen.part(tube(wire, 0.011), (210, 214, 220), (104, 108, 116))


def scissors(pen: Pen) -> None:
    pen.rod(-REACH, -TIP, RADIUS, (58, 60, 66))
    pen.rod(-TIP - 0.12, -TIP - 0.06, RADIUS * 1.05, (208, 28, 36))
    pen.rod(-TIP - 0.01, -TIP + 0.03, RADIUS * 1.05, (150, 154, 162))
    for side in (-1, 1):
        blade = [
            (0.015, 0.004),
            (-0.05, 0.034),
            (-0.12, 0.04),
            (-0.18, 0.022),
            (-0.21, -0.02),
            (-0.17, -0.02),
            (-0.1, -0.004),
        ]
        pen.part(_jaw(blade, side, pen.pose.opening), (140, 144, 152) if side < 0 else (176, 180, 188), (40, 42, 48))
        shine = [(0.0, 0.008), (-0.06, 0.028), (-0.11, 0.033), (-0.06, 0.02)]
        pen.fill(_jaw(shine, side, pen.pose.opening), (244, 246, 250))
    pen.disc(-0.155, 0.0, 0.02, GOLD)
    pen.disc(-0.155, 0.0, 0.008, (120, 86, 20))


def clipper(pen: Pen) -> None:
    pen.rod(-REACH, -TIP, RADIUS * 1.42, (222, 224, 228))
    pen.rod(-TIP - 0.17, -TIP - 0.06, RADIUS * 1.5, (136, 58, 178))
    pen.rod(-TIP - 0.01, -TIP + 0.03, RADIUS * 1.2, (140, 144, 152))
    gap = 0.014 + 0.2 * pen.pose.opening
    for side in (-1, 1):
        arm = [(-0.18, 0.008), (-0.18, 0.045), (-0.13, gap + 0.032), (0.0, gap + 0.032), (0.0, gap), (-0.12, gap)]
        pen.part([(x, side * y) for x, y in arm], (196, 200, 206), (92, 96, 104))
        clip = [(-0.09, gap + 0.002), (-0.004, gap + 0.002), (-0.004, gap - 0.011), (-0.09, gap - 0.011)]
        pen.fill([(x, side * y) for x, y in clip], (250, 250, 252))


def irrigator(pen: Pen) -> None:
    pen.rod(-REACH, -0.004, RADIUS * 1.3, (166, 196, 190))
    for x in (-0.06, -0.13, -0.2):
        for y in (-0.018, 0.02):
            pen.disc(x, y, 0.011, (24, 34, 34))
    opening = [(0.014 * math.cos(t / 4), RADIUS * 1.28 * math.sin(t / 4)) for t in range(25)]
    pen.part(opening, (208, 226, 222), (70, 90, 88))
    pen.fill([(x * 0.7, y * 0.75) for x, y in opening], (14, 20, 22))


DRAWN: Mapping[int, Callable[[Pen], None]] = {
    INSTRUMENTS.index(one.__name__): one for one in (grasper, bipolar, hook, scissors, clipper, irrigator)
}


def draw(image: Image.Image, unit: float, instrument: int, pose: Pose) -> list[list[Point]]:
    """Draw it onto an image of so many pixels a unit; the outlines of its parts, in units."""
    pen = Pen(image, unit, pose)
    DRAWN[instrument](pen)
    return pen.outlines


def _jaw(points: Sequence[Point], side: int, opening: float) -> list[Point]:
    """One of two jaws, turned open about the joint; `side` mirrors it."""
    opened = turned([(x - JOINT, y) for x, y in points], opening, (JOINT, 0.0))
    return [(x, side * y) for x, y in opened]
