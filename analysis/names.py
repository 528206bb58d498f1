"""File names from what users call their models."""

from __future__ import annotations

import re


def file_name(text: str) -> str:
    """`org/model v2` -> `org-model-v2`: letters, digits, dots, dashes and underscores only, never empty or hidden."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "model"
