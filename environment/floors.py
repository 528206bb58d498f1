"""The oldest versions that setup.cfg admits, as constraints of pip: `make test-long PART=floor` installs these."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

SETUP = Path(__file__).resolve().parents[1] / "setup.cfg"


def floors() -> dict[str, str]:
    """Return {distribution: oldest version} of all that is installed with or without an extra."""
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(SETUP)
    wanted = [setup["options"]["install_requires"], *setup["options.extras_require"].values()]
    return dict(re.findall(r"^([\w.-]+)>=([\w.]+)$", "\n".join(wanted), flags=re.MULTILINE))


if __name__ == "__main__":
    print("\n".join(f"{name}=={version}" for name, version in floors().items()))
