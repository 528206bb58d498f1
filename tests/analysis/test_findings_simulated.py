"""False alarms: sound studies, simulated. Detectors that count are silent on all of them; those that compare speeds are
wrong in at most 5 % of studies each, also where everything is at the very edge of what is sound.

    pytest tests/analysis/test_findings_simulated.py                        quick: 32 studies of each kind
    STATISTICS=long pytest -s tests/analysis/test_findings_simulated.py     long: 1,000, each planted anew
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from simulated_studies import KINDS, Template, drawn, sound
from simulations import LONG, Seen, times

from analysis.findings import Evidence
from analysis.views import catalog, noise

STATISTICAL = {"superlinear", "F4", "drift", "noise", "F1", "slowing"}
STUDIES, DRAWS = times(32, 1000), times(4, 1)  # in all; of each that was planted
ALLOWED = 0.05  # of studies, by each detector
# Whichever test is the first has all studies simulated.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200 if LONG else 300)]


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Template]]:
    """Sound studies, and as many at the edge of what is sound."""
    rng = np.random.default_rng(7)
    return {
        name: [sound(tmp_path_factory.mktemp(name), rng, name == "edge") for _ in range(STUDIES // DRAWS)]
        for name in ("sound", "edge")
    }


@pytest.fixture(scope="module")
def alarms(templates: dict[str, list[Template]]) -> dict[str, Counter[str]]:
    """Flaw -> how many of STUDIES raise it."""
    rng = np.random.default_rng(11)
    counted: dict[str, Counter[str]] = {}
    for name, made in templates.items():
        each = ({found.flaw for found in catalog.all_findings(drawn(one, rng))} for one in made for _ in range(DRAWS))
        counted[name] = Counter(flaw for flaws in each for flaw in flaws)
        print(f"\n{name}: {dict(counted[name])} of {STUDIES}")
    return counted


@pytest.mark.parametrize("which", ["sound", "edge"])
def test_sound_studies_raise_no_deterministic_alarm(which: str, alarms: dict[str, Counter[str]]) -> None:
    assert set(alarms[which]) <= STATISTICAL, alarms[which]


@pytest.mark.parametrize("flaw", sorted(STATISTICAL))
@pytest.mark.parametrize("which", ["sound", "edge"])
def test_statistical_alarms_are_false_in_at_most_5_percent_of_studies(
    which: str, flaw: str, alarms: dict[str, Counter[str]]
) -> None:
    seen = Seen(alarms[which][flaw], STUDIES)
    assert seen.keeps(most=ALLOWED), f"{flaw}: {seen}"


def test_every_template_is_a_study_that_detectors_look_at(templates: dict[str, list[Template]]) -> None:
    """A detector that saw nothing to look at would be silent too."""
    looked = [Evidence(one.results) for one in templates["sound"]]
    assert all(evidence.pairs and len(evidence.rows) > 1 for evidence in looked)
    assert all(evidence.fact(row, "learning_rate") for evidence in looked for row in evidence.rows)
    assert all(noise.drift(noise.table(evidence.results)) for evidence in looked if len(evidence.rows) > 5)
    assert any(evidence.fact(row, "training") for evidence in looked for row in evidence.rows)
    details = [evidence.results.details for evidence in looked]
    assert all(any(len(getattr(one, name)) for one in details) for name in ("events", "stages", "epochs"))
    assert any(evidence.results.study.sentinel for evidence in looked)
    assert any(
        evidence.fact(row, "communicator") == ["nccl"] * int(row["n"]) for evidence in looked for row in evidence.rows
    )
    assert {str(row["precision"]) for evidence in looked for row in evidence.rows} == {"fp32", "bf16"}
    assert len(KINDS) == 4
    # Those of maps have no template here: test_maps.py plants them, and test_efficiency.py that of the critical batch;
    # test_findings.py the two of commands, and launch/test_reports_of_commands.py has how often a like rank is named;
    # test_utilisation.py slow compute of GPUs, and test_noise_levels.py launches of unequal length.
    assert sum(len(view.detectors) for view in catalog.VIEWS) == 37


def test_what_is_planted_in_a_simulated_study_is_found(templates: dict[str, list[Template]]) -> None:
    """The same studies with six times the speed on several workers: the other half of "silent"."""
    rng = np.random.default_rng(3)
    for one in templates["sound"][:10]:
        fast = {name: speed * (1 if name.startswith("single-") else 6) for name, speed in one.truth.items()}
        assert "superlinear" in {found.flaw for found in catalog.all_findings(drawn(replace(one, truth=fast), rng))}
