"""The front door: python run_sweep.py sweeps.yaml"""

import sys

try:
    from scaling_study.cli import main
except ModuleNotFoundError as missing:
    sys.exit(f"{missing.name} is not installed in {sys.executable}: run `make setup`, then `. .venv/bin/activate`")
except KeyboardInterrupt:  # before anything has begun
    sys.exit(130)

if __name__ == "__main__":
    main()
