"""Every link of a document leads somewhere; what it names is there; its commands have the options that it gives."""

from __future__ import annotations

import ast
import functools
import html
import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks import claims
from scaling_study import cli
from scaling_study.settings import CHECKOUT
from tests.faults import ledger

ROOT = CHECKOUT.resolve()
PAGES = sorted((ROOT / "docs").rglob("*.md"))
POINTER = re.compile(r"(# .+\n+)?(<a .+?</a>)*Moved to \[.+\n")  # what is left of a page that moved
MOVED = {page for page in PAGES if POINTER.fullmatch(page.read_text(encoding="utf-8"))}
FOLDERS = (".", "environment", "benchmarks", "benchmarks/results", "examples", "examples/results")
BESIDE = [path for folder in FOLDERS for path in (ROOT / folder).glob("*.md")]
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in (*PAGES, *BESIDE))
SOURCES = [
    str(path.relative_to(ROOT))
    for pattern in ("{}/**/*.py", "{}/**/*.yaml", "{}/**/*.jinja")
    for folder in ("scaling_study", "analysis", "benchmarks", "environment", "tests", "studies", "machines")
    for path in ROOT.glob(pattern.format(folder))
] + ["Makefile", ".ci/run", "setup.cfg", "constraints.txt", "run_sweep.py", "sweeps.yaml"]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PAGE = re.compile(r"\b((?:docs|environment|benchmarks)/[\w/-]+\.md)(?:#([\w-]+))?")
FILE = re.compile(
    r"(?<![\w/.-])((?:scaling_study|analysis|tests|studies|docs|examples|machines|data_parallel|horovod_runs|fsdp|pipeline)"
    r"/[\w./-]*\w)"
)
TO_BE_MADE = {"data_parallel/torch_zero1.py", "machines/NAME.yaml", "docs/reliability/faults.json"}  # by who reads on
FORMER_WORDS = ("in rounds", "takes turns", "sentinel", "canary", "half-width", "knee", "samples a second", "tied")
WEB = ("https://", "http://", "mailto:")


@functools.cache
def anchors(path: Path) -> frozenset[str]:
    """Those of a Markdown file: its headings as GitHub writes them, and `<a id=...>`."""
    text = path.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#{1,6} +(.+?)\s*$", prose, re.MULTILINE)
    slugs: list[str] = []
    for heading in headings:
        plain = html.unescape(LINK.sub(lambda link: link[0][1 : link[0].index("]")], heading))
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        slugs.append(slug if slug not in slugs else f"{slug}-{slugs.count(slug)}")
    return frozenset(slugs) | frozenset(re.findall(r'<a id="([\w-]+)"', text))


def wrong(document: Path, target: str) -> str:
    """What is wrong with a link of a document; empty: nothing."""
    if target.startswith(WEB):
        return ""
    name, _, anchor = target.partition("#")
    path = (document.parent / name).resolve() if name else document
    if not path.exists():
        return f"{target}: no such file"
    if name and path in MOVED:
        return f"{target}: that page has moved"
    if anchor and (path.suffix != ".md" or anchor not in anchors(path)):
        return f"{target}: no such heading"
    return ""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_of_a_document_leads_somewhere(name: str) -> None:
    document = ROOT / name
    text = document.read_text(encoding="utf-8")
    assert not [fault for target in LINK.findall(text) if (fault := wrong(document, target))]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_modules_and_tests_that_a_document_names_are_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    files = {path for path in FILE.findall(text) if path not in TO_BE_MADE}
    assert not [path for path in files if not (ROOT / path).exists()]
    for module in re.findall(r"python3? -m ((?:scaling_study|analysis|benchmarks|environment)[\w.]*\w)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    assert set(re.findall(r"`(test_\w+)`", text)) <= names_of_tests()


@functools.cache
def names_of_tests() -> frozenset[str]:
    return frozenset(
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    )


def test_every_page_that_code_names_is_there() -> None:
    for name in SOURCES:
        for page, anchor in PAGE.findall((ROOT / name).read_text(encoding="utf-8")):
            assert (ROOT / page).exists() and ROOT / page not in MOVED, f"{name} names {page}"
            assert not anchor or anchor in anchors(ROOT / page), f"{name} names {page}#{anchor}"


def test_every_page_can_be_reached_from_the_first_one() -> None:
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        document = ahead.pop()
        if document not in seen:
            seen.add(document)
            targets = {target.partition("#")[0] for target in LINK.findall(document.read_text(encoding="utf-8"))}
            ahead += [(document.parent / target).resolve() for target in targets if target.endswith(".md")]
    assert {*PAGES} - MOVED <= seen


def test_links_that_lead_nowhere_would_be_found() -> None:
    page = ROOT / "docs" / "methodology.md"
    assert wrong(page, "nothere.md") == "nothere.md: no such file"
    assert wrong(page, "measurement.md#epochs") == "measurement.md#epochs: that page has moved"
    there = "internals/how-sure.md"
    assert wrong(page, f"{there}#nothere") == f"{there}#nothere: no such heading"
    assert not any(wrong(page, link) for link in (f"{there}#within-a-run", "#parity", "https://x.org"))


def test_anchors_of_the_page_that_was_divided_still_lead_somewhere() -> None:
    """Reports and notes written before the division link to them."""
    divided = anchors(ROOT / "docs" / "methodology.md")
    assert {"parity", "pipelines", "the-network", "epochs", "prediction", "why", "what-next", "between-runs"} <= divided
    assert "flaws-of-published-studies-and-how-each-is-met" in divided


# --- commands of every page


DOORS: dict[str, Callable[[Sequence[str]], int]] = {
    "python run_sweep.py": cli.run_sweep,
    "python -m scaling_study.parity": cli.parity,
    "scaling-study": cli.main,
    "python -m analysis": cli.analysis,
}
COMMANDS = sorted(
    {
        line.strip().partition("  ")[0].partition(" #")[0]
        for page in [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *PAGES]
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("    ") and line.strip().startswith(tuple(DOORS))
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_every_page_have_the_options_that_they_name(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their options are parsed, and then asked for help, so that nothing is run."""
    (door,) = [door for door in DOORS if command.startswith(door)]
    words = shlex.split(command.removeprefix(door))
    assert DOORS[door]([*words, "--help"]) == 0
    shown = capsys.readouterr()
    assert "Usage" in shown.out and not shown.err


def test_an_option_that_is_none_would_be_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_sweep(["sweeps.yaml", "--dry", "--help"]) == 2
    assert "--dry" in capsys.readouterr().err


def test_pages_that_are_made_of_data_say_what_their_data_say() -> None:
    text = claims.PAGE.read_text(encoding="utf-8")
    assert text == claims.page(text), "python -m benchmarks.claims"
    counted = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "docs/reliability").glob("*.json")]
    said = ledger.joined(counted)
    assert ledger.COUNTS.read_text(encoding="utf-8") == ledger.table(said), ledger.__doc__
    assert ledger.summary(said) in ledger.PAGE.read_text(encoding="utf-8")


def test_pages_use_one_word_for_one_thing() -> None:
    """The right column of CONTRIBUTING.md's table of words, but for those that have another meaning too."""
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Words")[2]
    assert not [word for word in FORMER_WORDS if word not in table]
    for page in {ROOT / "README.md", ROOT / "examples/README.md", *PAGES} - MOVED:
        prose = re.sub(r"`[^`]*`|^> .*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert not re.findall(rf"\b(?:{'|'.join(FORMER_WORDS)})\b", prose), page
