"""Throughput with more workers, predicted: one worker's measured step and a network, simulated at any scale.

    one worker   data, forward | backward: g g  g   g g | optimiser          inputs.py: from the study's records
    the wire                   |      [ A ][  B  ][ C ]                      network.py: seconds of each allreduce
    n workers    data, forward | backward              |...| optimiser       simulate.py: `...` is exposed

    network.py    what a person types for a network (25Gbit/host, 5us); links, hosts, allreduces in closed form
    simulate.py   which gradients travel together, the slowest of n workers, and one step event by event
    inputs.py     what a study measured: one worker's step, its network, what workers of one host cost each other
    predict.py    throughput, efficiency and exposed communication, each with its interval, and beside measurements
    meshes.py     the same of a step that is split by matrices, sequences, layers or shards, from closed forms

Only inputs.py reads records. Tables and figure: analysis/views/prediction.py and meshes.py.
"""
