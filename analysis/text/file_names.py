"""File names from what users call their models."""

from __future__ import annotations

import hashlib
import re

LONGEST = 150  # bytes; what stands before and after it has room in the 255 of a file's name


def file_name(text: str) -> str:
    """`org/model v2` -> `org-model-v2`: letters, digits, dots, dashes and underscores only, never empty or hidden.

    What is too long for a file system ends in a hash of the whole.
    """
    name = re.sub(r"[^\w.-]+", "-", text).strip("-.") or "model"
    if len(name.encode()) <= LONGEST:
        return name
    return f"{name.encode()[: LONGEST - 9].decode(errors='ignore')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
