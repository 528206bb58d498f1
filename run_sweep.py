"""The front door: python run_sweep.py sweeps.yaml"""

from scaling_study.cli import main

if __name__ == "__main__":
    main()
