"""What more workers would give: one worker's measured step and a network, simulated at any scale.

    one worker   data, forward | backward: g g  g   g g | optimiser          measured.py: from the study's records
    the wire                   |      [ A ][  B  ][ C ]                      collectives.py: seconds of each allreduce
    n workers    data, forward | backward              |...| optimiser       simulate.py: `...` is exposed

    quantities.py    25Gbit, 5us, 64MiB, 4,8,512: what a person types
    network.py       links and hosts: latency (alpha) and seconds a byte (beta), given or measured
    collectives.py   ring, double binary tree, halving and doubling, hierarchical: closed forms
    fusion.py        which gradients travel together: Horovod's cycles, DDP's buckets, all when backward is over
    simulate.py      one step, event by event
    stragglers.py    the slowest of n workers
    measured.py      a study's one-worker steps, and how much they vary
    targets.py       whose steps, and how their gradients would be shared
    probed.py        the network as the study's own probes measured it
    contention.py    what the workers of one host do to each other's computing
    predict.py       throughput, efficiency, exposed communication, each with its interval
    against.py       predictions beside what was measured
    forecast.py      all of it for one study; frame.py: a row each

Pure but for measured.py, which reads records. Table and picture: analysis/views/prediction.py, figures/prediction.py.
"""
