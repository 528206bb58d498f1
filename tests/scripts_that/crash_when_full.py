"""Fills the disk by what it writes to FLOOD, if that is given, and then fails without a word."""

import os
import sys

if flood := os.environ.get("FLOOD"):
    with open(flood, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
sys.exit(1)
