"""`python -m analysis COMMAND`: the same as `scaling-study COMMAND`, of the commands that read results.

python -m analysis RESULTS                  tables in the terminal; tables and figures on disk
python -m analysis report RESULTS           report.html, the page that explains them
python -m analysis compare A B              which configurations became slower or faster
python -m analysis predict RESULTS ...      what more workers would give
python -m analysis estimate MODEL ...       what of a Llama would fit on GPUs, with nothing run
python -m analysis export RESULTS ...       the numbers for other tools
python -m analysis references               published speeds, with their sources
python -m analysis pack RESULTS             the records and maps as one file, which all of these take
python -m analysis unpack X.study.zip       the folder of such a file (scaling_study/commands/pack.py)
"""

import sys

from scaling_study.cli import analysis as main

if __name__ == "__main__":
    sys.exit(main())
