"""A slim SVG shows what the whole one did."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from planted import plant_default

from analysis.frames import results
from analysis.report.rendering import slim
from analysis.views import figures

SHOWN = ("d", "x", "y", "width", "height", "clip-path", "{http://www.w3.org/1999/xlink}href", "transform")


def drawn(svg: bytes) -> list[tuple[object, ...]]:
    """Everything that is seen: kind, text, place and style of each element, in order."""
    tree = ElementTree.fromstring(svg)
    rules = dict(re.findall(r"\.(s\d+)\{([^}]*)\}", svg.decode()))
    found: list[tuple[object, ...]] = []
    for one in tree.iter():
        kind = one.tag.rsplit("}", 1)[-1]
        if kind in ("g", "svg", "style", "metadata") or "purl.org" in one.tag or "creativecommons" in one.tag:
            continue
        style = (one.get("style") or rules.get(one.get("class") or "", "")).replace(": ", ":")
        place = [" ".join((one.get(name) or "").split()) for name in SHOWN]
        place[-1] = "" if place[-1].startswith("rotate(-0 ") else place[-1]
        found.append((kind, (one.text or "").strip(), style, *place))
    return found


@pytest.mark.slow
def test_it_draws_the_same_in_far_fewer_bytes(tmp_path: Path) -> None:
    read = results.read(plant_default(tmp_path / "study"))
    for one in figures.write(read, tmp_path):
        whole = one.paths[1].read_bytes()
        assert drawn(slim(whole)) == drawn(whole), one.name
        assert len(slim(whole)) < 0.7 * len(whole), one.name
        referred = set(re.findall(rb'(?:url\(|href=")#(\w+)', slim(whole)))
        assert referred <= set(re.findall(rb'id="(\w+)"', slim(whole)))


def test_words_are_nobodys_style() -> None:
    """What stands in a figure is text, whatever it looks like."""
    words = b' style="fill" transform="rotate(-0 1 2)" d="0.123456" '
    svg = b'<svg>\n<style type="text/css">*{a: b}</style>\n<text style="fill: red">' + words + b"</text></svg>"
    assert slim(svg).endswith(b'<text class="s0">' + words + b"</text></svg>")
    assert b".s0{fill:red}" in slim(svg)


def test_an_svg_without_styles_stays_whole() -> None:
    assert slim(b'<svg><path style="fill: red" d="M 0 0"/></svg>') == b'<svg><path style="fill: red" d="M 0 0"/></svg>'
