"""What a study says of the network it ran on: its probes, size by size, and the latency and bandwidth that fit them.

    frame.py     a row for each size, over the repeats: seconds, algorithm and bus bandwidth, intervals
    fit.py       seconds = latency + bytes / bandwidth, for every probe, collective, and cores idle or busy

    from analysis.network import fit
    fit.fit(results)[("allreduce", False)].seconds(bytes=25 << 20)

Its records are read by analysis/frames/network.py. Table and picture:
analysis/tables/network.py, figures/network.py; how a fit is made, scaling_study/stats/alpha_beta.py.
"""
