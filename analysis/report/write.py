"""A report on disk: report.html, report.md, and the raw samples beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis.execution import atomic_files
from analysis.execution.lost_parts import NOTHING, Salvage
from analysis.figures.drawing import Drawn
from analysis.frames.results import Results
from analysis.report.assemble import report
from analysis.report.content import Picture
from analysis.report.html import html
from analysis.report.markdown import markdown
from analysis.report.material import Material
from analysis.report.origins import SAMPLES, Origins

PAGE, WORDS = "report.html", "report.md"
FONT, WIDE_FONTS = b"font-family: 'DejaVu Sans'", b"font-family: 'DejaVu Sans', Verdana, sans-serif"  # as wide
MOST_SVG_BYTES = 600_000  # beyond, a figure of thousands of points is smaller, and shown sooner, as PNG


def write(
    results: Results,
    origins: Origins,
    folder: Path,
    drawn: Sequence[Drawn],
    salvage: Salvage = NOTHING,
    named: str | None = None,
) -> list[Path]:
    """`origins`: collected while `results` were read; `drawn`: the figures whose files are in `folder`/figures;
    `salvage`: what could not be made so far; `named`: the results on the command line. Returns the paths. Raises
    OSError."""
    samples = atomic_files.replaced(folder / SAMPLES, origins.write_samples)
    pictures = {figure.name: Picture(figure.name, figure.title, figure.text) for figure in drawn}
    material = Material(results, named or str(folder), pictures, origins, salvage)
    content = report(material)
    images = {name: image(folder / "figures", name) for name in pictures}
    page = atomic_files.write_text(folder / PAGE, html(content, images))
    return [samples, page, atomic_files.write_text(folder / WORDS, markdown(content))]


def image(folder: Path, name: str) -> bytes:
    """Lines where there are not too many of them, else pixels if those are fewer bytes."""
    svg, png = (folder / f"{name}.{kind}" for kind in ("svg", "png"))
    if svg.stat().st_size <= max(MOST_SVG_BYTES, png.stat().st_size):
        return svg.read_bytes().replace(FONT, WIDE_FONTS)
    return png.read_bytes()
