"""`python run_sweep.py STUDY`: the same as `scaling-study run STUDY`, without an installation."""

import sys

try:
    from scaling_study import cli
except ModuleNotFoundError as missing:
    sys.exit(f"{missing.name} is not installed in {sys.executable}: run `make setup`, then `. .venv/bin/activate`")
except KeyboardInterrupt:  # before anything has begun
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(cli.run_sweep())
