"""What a study says of the network it ran on: its probes, size by size, and the latency and bandwidth that fit them.

    rows.py      a probe's record as rows: the slowest rank of every call
    table.py     a row for each size, over the repeats: seconds, algorithm and bus bandwidth, intervals
    fit.py       seconds = latency + bytes / bandwidth, for every probe, collective, and cores idle or busy
    listing.py   it said to a person

    from analysis.network import fit
    fit.fit(results)[("allreduce", False)].seconds(bytes=25 << 20)

The picture is analysis/figures/network.py; how a fit is made, scaling_study/stats/alpha_beta.py.
"""
