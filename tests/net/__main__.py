"""`python -m tests.net` writes the regression net anew, and prints what changed in it.

A change to the net is a commit of its own that names each changed column and why.
"""

from __future__ import annotations

import sys

from tests.net import frozen

before = frozen.held() if frozen.PATH.exists() else {"examples": {}, "plans": {}}
after = frozen.made()
changes = 0
for part in ("examples", "plans"):
    for name in sorted(before[part].keys() | after[part].keys()):
        for line in frozen.differences(name, before[part].get(name, {}), after[part].get(name, {})):
            changes += 1
            print(line)
frozen.write(after)
print(f"{frozen.NET}: {changes} changes, {frozen.PATH.stat().st_size:,} bytes", file=sys.stderr)
