"""The shipped example studies as results folders. Nothing is ever written into them."""

from __future__ import annotations

from pathlib import Path

from scaling_study.settings import CHECKOUT

EXAMPLES = CHECKOUT / "examples" / "results"


def studies() -> list[str]:
    """Names of all shipped example studies."""
    return sorted(path.parent.name for path in EXAMPLES.glob("*/study.json"))


def example(study: str) -> Path:
    """The results folder of a shipped study, to be read only."""
    return EXAMPLES / study
