"""The parity gate: does every framework train what one process would?                                  [torch]

    study/support.py   the trials that must be shown (pure)    measure/training.py   ParityRecorder: what ranks record
    reference.py       the same training in one process        compare.py            the two, check by check

The reference runs in a process of its own, from what the trial was asked to be, so that nothing a framework or its
script did to torch, to the trial or to the data can be in it.
"""
