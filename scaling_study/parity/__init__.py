"""The parity gate: does every framework train what one process would?                                  [torch]

    gates.py (pure)      which trials must be shown          measure/parity_recorder.py   what their ranks record
    reference.py         the same training in one process    compare.py           the two, check by check
    compare.py           `python -m scaling_study.parity.compare FOLDER` also judges one finished trial
    __main__.py          `python -m scaling_study.parity --study FILE`: all gates of a study

The reference runs in a process of its own, from what the trial was asked to be, so that nothing a framework or its
script did to torch, to the trial or to the data can be in it.
"""
