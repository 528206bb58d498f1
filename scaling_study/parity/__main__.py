"""`python -m scaling_study.parity --study FILE`: the same as `scaling-study parity FILE`."""

import sys

from scaling_study import cli

if __name__ == "__main__":
    sys.exit(cli.parity())
