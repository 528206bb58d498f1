"""A headless Chromium, and what a person or a screen reader would object to on a page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

DESKTOP, PHONE = (1280, 900), (360, 740)  # pixels
CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))


def missing() -> str:
    """Why no page can be opened here; empty if one can."""
    lacking = [name for name, path in (("chromium", CHROMIUM), ("chromedriver", DRIVER)) if path is None]
    lacking += [name for name in ("selenium", "axe_core_python") if find_spec(name) is None]
    return f"this machine has no {' and no '.join(lacking)}" if lacking else ""


@contextmanager
def started() -> Iterator[Any]:
    """A browser that reaches nothing but files."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    quietly = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
    for word in (*quietly, "--proxy-server=127.0.0.1:9"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    try:
        yield browser
    finally:
        browser.quit()


def show(browser: Any, page: Path, size: tuple[int, int] = DESKTOP, dark: bool = False, media: str = "screen") -> None:
    """Open a page on a screen of this size."""
    width, height = size
    look = {"media": media, "features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", look)
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(page.as_uri())


def unfold(browser: Any) -> None:
    """Show everything."""
    browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")


def complaints(browser: Any) -> list[str]:
    """What the console was told, since it was last asked."""
    return [f"{entry['level']}: {entry['message']}" for entry in browser.get_log("browser")]


def unsuitable(browser: Any) -> list[str]:
    """Each rule for accessible pages that axe finds broken, and where."""
    from axe_core_python.selenium import Axe

    unfold(browser)
    found = Axe().run(browser, options={"resultTypes": ["violations"]})["violations"]
    nodes = {rule["id"]: [node["html"][:160] for node in rule["nodes"][:3]] for rule in found}
    return [f"{rule['id']}: {rule['help']}: {json.dumps(nodes[rule['id']])}" for rule in found]


def sideways(browser: Any) -> list[str]:
    """What makes the page wider than the screen."""
    wider = """
      const width = document.documentElement.clientWidth;
      if (document.documentElement.scrollWidth <= width) return [];
      return [`${document.documentElement.scrollWidth} of ${width}`, ...[...document.body.querySelectorAll('*')]
        .filter((one) => one.getBoundingClientRect().right > width + 1 && !one.closest('.scroll, nav ol, .sr'))
        .slice(0, 5).map((one) => one.outerHTML.slice(0, 120))];
    """
    return list(browser.execute_script(wider))


def unloaded(browser: Any) -> list[str]:
    """Images that show nothing."""
    none = "return [...document.images].filter((one) => !one.complete || !one.naturalWidth).map((one) => one.alt)"
    return list(browser.execute_script(none))
