"""`python -m tests.net` writes the regression net anew, and prints what changed in it.

A change to the net is a commit of its own that names each changed column and why.
"""

from __future__ import annotations

import sys

from tests.net import frozen

before = frozen.held() if frozen.PATH.exists() else {}
after = frozen.made()
changes = 0
for part in ("examples", "folders", "plans"):
    old, new = before.get(part, {}), after[part]
    for name in sorted(old.keys() | new.keys()):
        for line in frozen.differences(name, old.get(name, {}), new.get(name, {})):
            changes += 1
            print(line)
frozen.write(after)
print(f"{frozen.NET}: {changes} changes, {frozen.PATH.stat().st_size:,} bytes", file=sys.stderr)
