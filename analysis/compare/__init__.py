"""Two results of one study, configuration by configuration: what became slower or faster, and what cannot be told.

python -m analysis compare results/A results/B

differences.py   how two results differ beside their numbers, and which differences forbid a comparison
verdicts.py      which configurations are the same, the ratio of each pair, and which changes are beyond chance
report.py        the comparison in words, for the terminal, a pull request, or a program
"""
