"""Set-up of the project's virtual environment, with nothing but the standard library.

`python3 -m environment.bootstrap` is what `make setup` runs (README.md beside this file says what it does).

Only this module has to be readable by an ancient interpreter: it turns "SyntaxError" into a sentence.
"""

import sys

OLDEST_PYTHON = (3, 11)

if sys.version_info < OLDEST_PYTHON:
    sys.stderr.write(
        "Python %d.%d or newer is needed, and %s is %d.%d: install python3.11 with its headers and venv module "
        "(Debian, Ubuntu: apt install python3.11-dev python3.11-venv; Fedora: dnf install python3.11-devel), "
        "then name it: make PYTHON=python3.11 ...\n" % (OLDEST_PYTHON + (sys.executable,) + sys.version_info[:2])
    )
    sys.exit(2)
