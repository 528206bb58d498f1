"""Short or long: how often each process fault is injected, and by which random moments."""

from __future__ import annotations

import os

FORM = os.environ.get("FAULTS", "short")
SEED = os.environ.get("FAULTS_SEED", "1")
if FORM not in ("short", "long"):
    raise SystemExit(f"FAULTS={FORM}: short or long")
TIMES = {"short": 1, "long": 20}[FORM]
