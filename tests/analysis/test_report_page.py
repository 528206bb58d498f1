"""The page in a real browser: no error, nothing from elsewhere, sorted and filtered, read by anybody, on any screen."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import browser as chromium
import pytest
from browser import DESKTOP, PHONE
from planted import default_study, plant, plant_gates
from planted_hostile import WORDS, results_of
from planted_large import plant_large

import analysis
from analysis.views import figures
from tests.net.examples import example

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(chromium.missing()), reason=chromium.missing()),
]
HTML = WORDS["HTML"]


def make(name: str, folder: Path) -> Path:
    if name == "default":
        planted, about = default_study()
        planted = [one for one in planted if one.model == "resnet8"]
        plant(folder, [*planted, replace(planted[0], batch_per_worker=128, status="oom", speed=None)], **about)
        plant_gates(folder, planted)
    elif name == "hostile":
        results_of(folder, HTML)
    elif name == "example":
        shutil.copytree(example("cifar10-scaling"), folder)
    elif name == "nothing":
        plant(folder, [])
    else:
        plant_large(folder, 40)
    return folder


PAGES = ("default", "hostile", "example", "nothing", "many")
WITH_ALL_FIGURES = ("hostile", "example")  # drawing takes most of the time: of the others, throughput is enough


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name -> report.html, written before a browser is started."""
    made, kinds = {}, figures.figure_kinds
    with pytest.MonkeyPatch.context() as patch:
        for name in PAGES:
            if name not in WITH_ALL_FIGURES:
                patch.setattr(figures, "figure_kinds", lambda read: [k for k in kinds(read) if k[0] == "throughput"])
            folder = make(name, tmp_path_factory.mktemp("pages") / name)
            analysis.write(folder, page=True)
            made[name] = folder / "report.html"
            patch.undo()
    return made


@pytest.fixture(scope="module")
def browser(pages: dict[str, Path]) -> Iterator[Any]:
    with chromium.started() as one:
        yield one


@pytest.mark.parametrize("name", PAGES)
def test_it_opens_without_an_error_and_asks_for_nothing(name: str, pages: dict[str, Path], browser: Any) -> None:
    chromium.complaints(browser)
    chromium.show(browser, pages[name])
    assert not chromium.complaints(browser)
    assert not chromium.unloaded(browser)
    asked = browser.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert all(address.startswith("data:") for address in asked)
    figures = {path.stem for path in (pages[name].parent / "figures").glob("*.png")}
    shown = browser.execute_script("return [...document.querySelectorAll('figure')].map((one) => one.id.slice(7))")
    assert set(shown) == figures and len(shown) == len(figures), "each figure once"


@pytest.mark.parametrize(
    ("name", "size", "dark"),
    [
        (name, size, dark)
        for name in PAGES
        for size, dark in ((DESKTOP, False), (DESKTOP, True), (PHONE, False))
        if not (dark and name == "many")  # a long list is as dark as a short one
    ],
)
def test_anybody_can_read_it(
    name: str, size: tuple[int, int], dark: bool, pages: dict[str, Path], browser: Any
) -> None:
    chromium.show(browser, pages[name], size, dark)
    assert not chromium.unsuitable(browser)
    assert not chromium.sideways(browser)


def test_words_of_others_are_shown_as_they_are(pages: dict[str, Path], browser: Any) -> None:
    chromium.show(browser, pages["hostile"])
    assert HTML in browser.execute_script("return document.querySelector('h1').textContent")
    assert HTML in browser.execute_script("return document.querySelector('main').textContent")
    scripts = browser.execute_script("return [...document.scripts].map((one) => one.type)")
    assert set(scripts) == {"", "application/json"} and scripts.count("") == 1, "ours, and data"
    assert not browser.execute_script("return document.querySelectorAll('img[src=x], [onerror]').length")


def column(browser: Any, place: int, grid: str) -> list[str]:
    """The texts of a column, of the rows that are shown."""
    cells = (
        "return [...arguments[0].querySelectorAll('tbody tr')].filter((row) => !row.hidden && !row.ariaHidden)"
        ".map((row) => row.cells[arguments[1]].textContent)"
    )
    return list(browser.execute_script(cells, find(browser, grid), place))


def find(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def typed(browser: Any, grid: str, words: str) -> str:
    """Filter a table; what it then says of its rows."""
    field = find(browser, f"{grid} input")
    field.clear()
    field.send_keys(words)
    return str(find(browser, f"{grid} .count").text)


def header(browser: Any, grid: str, name: str) -> tuple[Any, int]:
    """The header cell of this name, and which it is."""
    cells = browser.find_elements("css selector", f"{grid} thead th")
    names = [cell.get_attribute("textContent") for cell in cells]
    return cells[names.index(name)], names.index(name)


CONFIGURATIONS, TRIALS = ('.listing[data-name="configurations"]', '.listing[data-name="trials"]')


def test_a_table_is_sorted_by_a_click_and_back(pages: dict[str, Path], browser: Any) -> None:
    chromium.show(browser, pages["default"])
    chromium.unfold(browser)
    grid = "#tables .grid:not(.listing)"
    before = column(browser, 0, grid)
    cell, place = header(browser, grid, "horovod, 2 workers, fp32")
    for order, reverse in (("ascending", False), ("descending", True)):
        browser.execute_script("arguments[0].click()", cell.find_element("tag name", "button"))
        assert cell.get_attribute("aria-sort") == order
        numbers = [
            float(text.split()[0].replace(",", "")) for text in column(browser, place, grid) if text[:1].isdigit()
        ]
        assert len(numbers) > 1 and numbers == sorted(numbers, reverse=reverse)
    assert sorted(column(browser, 0, grid)) == sorted(before), "no row is lost"


def test_a_list_is_filtered_by_words_and_by_columns(pages: dict[str, Path], browser: Any) -> None:
    chromium.show(browser, pages["default"])
    chromium.unfold(browser)
    every = int(str(find(browser, f"{CONFIGURATIONS} .count").text).split()[0])
    assert every == 9
    assert typed(browser, CONFIGURATIONS, "resnet8 fp16") == "2 of 9 rows"
    assert typed(browser, CONFIGURATIONS, "workers=2 model=resnet8") == "4 of 9 rows"
    assert typed(browser, CONFIGURATIONS, "status=oom") == "1 of 9 rows"
    assert typed(browser, CONFIGURATIONS, "no such thing") == "0 of 9 rows"
    assert typed(browser, CONFIGURATIONS, "resnet") == "9 rows"


def test_of_a_long_list_only_what_is_in_sight_is_there(pages: dict[str, Path], browser: Any) -> None:
    chromium.show(browser, pages["many"])
    chromium.unfold(browser)
    rows = "return arguments[0].querySelectorAll('tbody tr').length"
    view = find(browser, f"{TRIALS} .view")
    assert find(browser, f"{TRIALS} .count").text == "160 rows"
    assert browser.execute_script(rows, view) < 80
    height = browser.execute_script("return arguments[0].scrollHeight", view)
    assert height > 160 * 29, "the scroll bar says how long it is"
    drawn = (
        "const [view, done] = arguments; view.scrollTop = view.scrollHeight;"
        "setTimeout(() => done([...view.querySelectorAll('tbody tr')].map((row) => row.ariaRowIndex)), 200)"
    )
    assert browser.execute_async_script(drawn, view)[-1] == "161", "the last one, under a header"
    cell, place = header(browser, TRIALS, "samples/s")
    for reverse in (False, True):
        browser.execute_script("arguments[0].click()", cell.find_element("tag name", "button"))
        top = [float(text.replace(",", "")) for text in column(browser, place, TRIALS) if text]
        assert len(top) > 10 and top == sorted(top, reverse=reverse)
    assert typed(browser, TRIALS, "horovod status=ok batch=16").endswith(" of 160 rows")
    assert set(column(browser, header(browser, TRIALS, "batch")[1], TRIALS)) == {"16"}


def test_what_is_shown_can_be_saved_as_csv(pages: dict[str, Path], browser: Any) -> None:
    chromium.show(browser, pages["default"])
    chromium.unfold(browser)
    typed(browser, CONFIGURATIONS, "status=oom")
    saved = (
        "const [button, done] = arguments; const make = URL.createObjectURL;"
        "URL.createObjectURL = (blob) => { blob.text().then(done); return make(blob); }; button.click();"
    )
    text = browser.execute_async_script(saved, find(browser, f"{CONFIGURATIONS} button.file"))
    lines = text.splitlines()
    assert lines[0].startswith("model,configuration,batch,workers,status") and len(lines) == 2 and ",oom," in lines[1]
    behind = find(browser, "#tables .grid:not(.listing) a.file")
    assert behind.get_attribute("download") == "throughput-resnet8.csv"
    assert behind.get_attribute("href").startswith("data:text/csv;charset=utf-8,batch_per_worker,single,")


def test_on_paper_everything_is_unfolded_and_nothing_is_left_to_click(pages: dict[str, Path], browser: Any) -> None:
    chromium.show(browser, pages["default"], media="print")
    hidden = browser.execute_script(
        "return ['nav', '.tools', '.view'].flatMap((name) => [...document.querySelectorAll(name)])"
        ".filter((one) => getComputedStyle(one).display !== 'none').length"
    )
    assert hidden == 0
    open_ones = (
        "const all = [...document.querySelectorAll('details')], open = () => all.filter((one) => one.open).length;"
        "const before = open(); dispatchEvent(new Event('beforeprint'));"
        "const opened = open(); dispatchEvent(new Event('afterprint'));"
        "return [all.length, before, opened, open()]"
    )
    count, before, opened, after = browser.execute_script(open_ones)
    assert count == opened > before == after > 0, "speed-ups and the gain of 16 bits are unfolded from the beginning"


def test_without_its_script_it_can_still_be_read(pages: dict[str, Path], browser: Any) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        chromium.show(browser, pages["default"])
        for fold in browser.find_elements("css selector", "#tables > details:not([open]) > summary"):
            fold.send_keys("\n")  # a click would miss what is still scrolling smoothly
        assert find(browser, "#tables table caption").is_displayed()
        assert not find(browser, "#tables .tools input").is_displayed(), "nothing that would do nothing"
        assert find(browser, ".listing .paper").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
