"""A study of 10,000 trials of 200 steps: read in 6 s, tables and figures in 40 s, a page of at most 15 MB.

Claimed: (1) outputs.read_folder takes at most 6 s; (2) every table and figure is worked out and written in at most
40 s more, by one process; (3) report.html is at most 15 MB; (4) where there is a Chromium, the
page answers a filter over all 10,000 rows, and a sort of them, within 0.2 s each.

Measured: on planted records of the program's own form (tests/analysis/planted_large.py: 10 models, 2,500
configurations, 4 repeats), each time in a fresh process, with the files in the page cache, as they are after a sweep.

Not shown: a disk that is asked for the first time; a study whose families have four worker counts, each of which gets
scaling laws (docs/guide/read-a-report.md).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.options import Options
from benchmarks.paired import NOT_COMPARED, Bar, Finding, verdict, within
from scaling_study.settings import CHECKOUT
from scaling_study.stats.intervals import Interval, between_repeats

PLANTER = CHECKOUT / "tests" / "analysis" / "planted_large.py"
QUICK_CONFIGURATIONS = 60
MEASURED = """
import json, sys, time
from pathlib import Path
from analysis import outputs
from analysis import execution
from analysis.report import sections
from analysis.views import figures
folder, times = Path(sys.argv[1]), [time.perf_counter()]
read, origins = outputs.read_folder(folder)
times.append(time.perf_counter())
execution.write_csv(folder / "results.csv", read.trials)
outputs.write_tables(read, folder / "tables")
drawn = figures.write(read, folder / "figures")
times.append(time.perf_counter())
sections.write(read, origins, folder, drawn, execution.NOTHING, str(folder), False)
times.append(time.perf_counter())
load, made, page = (after - before for before, after in zip(times, times[1:]))
print(json.dumps({"trials": len(read.trials), "load": load, "made": made, "page": page}))
"""
BROWSED = """
const grid = document.querySelector('.listing[data-name="trials"]'), done = arguments[0];
const settled = (act) => new Promise((said) => {
  const start = performance.now();
  act();
  requestAnimationFrame(() => setTimeout(() => said((performance.now() - start) / 1000), 0));
});
const input = grid.querySelector('input');
(async () => {
  const sort = await settled(() => grid.querySelectorAll('thead button')[5].click());
  input.value = 'horovod workers=2';
  const first = await settled(() => input.dispatchEvent(new Event('input')));
  input.value = 'model3';
  const filter = await settled(() => input.dispatchEvent(new Event('input')));
  done({sort, first, filter, rows: grid.querySelectorAll('tbody tr').length});
})();
"""


def run(options: Options) -> list[Finding]:
    times = 1 if options.quick else options.asked_pairs or 5
    with tempfile.TemporaryDirectory(prefix="large-") as made:
        folder = Path(made) / "large"
        most = [str(QUICK_CONFIGURATIONS)] if options.quick else []
        said = _python(str(PLANTER), str(folder), *most)
        print(f"  planted: {said.strip()}", flush=True)
        if not options.quick:
            _python("-c", MEASURED, str(folder))  # once for the page cache, and for matplotlib's own
        taken: list[dict[str, float]] = [json.loads(_python("-c", MEASURED, str(folder))) for _ in range(times)]
        size = (folder / "report.html").stat().st_size / 1e6
        browsed = _browsed(folder / "report.html", times)
    evidence = {"times": taken, "page_megabytes": size, "browser": browsed, "load_after": os.getloadavg()[0]}
    at_most, trials = Bar(high=15.0), f"{taken[0]['trials']:,.0f} trials"
    findings = [
        _at_most(f"reading {trials} of 200 steps", [one["load"] for one in taken], 6.0, evidence),
        _at_most(f"every table and figure of {trials}", [one["made"] for one in taken], 40.0),
        _at_most(f"the page and its samples, of {trials}", [one["page"] for one in taken], None),
        Finding(f"report.html of {trials}", Interval(size, size, size, 1), at_most, "MB",
                within(size, at_most), control=NOT_COMPARED),
    ]  # fmt: skip
    for what in ("filter", "sort") if browsed else ():
        findings.append(_at_most(f"{what} {trials} in the page", [one[what] for one in browsed], 0.2))
    return findings


def _at_most(claim: str, seconds: list[float], most: float | None, evidence: dict[str, Any] | None = None) -> Finding:
    """Of whole runs, of which there are few: what is judged is the interval of their mean."""
    bar = None if most is None else Bar(high=most)
    figure = between_repeats(seconds)
    return Finding(claim, figure, bar, "s", verdict(figure, bar, fewest=3), evidence or {}, NOT_COMPARED)


def _python(*arguments: str) -> str:
    path = os.pathsep.join([str(CHECKOUT), str(PLANTER.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def _browsed(page: Path, times: int) -> list[dict[str, float]]:
    """What a browser takes; nothing where there is none."""
    try:
        from selenium import webdriver
    except ImportError:
        return []
    binary, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if binary is None or driver is None:
        return []
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"):
        options.add_argument(word)
    found = []
    for _ in range(times):
        browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
        try:
            start = time.monotonic()
            browser.get(page.as_uri())
            opened = time.monotonic() - start
            browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
            found.append({"open": opened, **browser.execute_async_script(BROWSED)})
        finally:
            browser.quit()
    return found
