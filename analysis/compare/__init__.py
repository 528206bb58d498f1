"""Two results of the same study, configuration by configuration: what became slower, what became faster, what cannot
be told; and first, whether they may be compared at all.

    python -m analysis compare results/A results/B

    pairs.py         which configuration of the one is which of the other
    origins.py       what a record says of where and with what it was measured
    missing.py       what A measured and B should hold, and does not
    differences.py   in what two results differ beside their numbers, and whether that matters
    verdicts.py      the ratio of each pair with its interval, and which changes survive correction
    failing.py       whose runs fail now, some of them
    tables.py        all of that as a table and in sentences
    report.py        for the terminal, a pull request, or a program
"""
