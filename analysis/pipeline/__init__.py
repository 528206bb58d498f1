"""What a study says of pipelines: where their workers waited, why, and what no schedule could have helped.

    bubble.py     the share of a step in which workers did nothing, as it was measured
    theory.py     what it should be, in closed form, and how fast an unbalanced cut can be at most
    replay.py     what it would be in the order that was run, had transfers taken no time
    shares.py     each stage's share of time and of parameters
    shape.py      a pipeline's shape in words
    frame.py      all of it, a row a configuration

Timelines are read by analysis/frames/timeline.py. Table and picture: analysis/tables/pipeline.py, figures/timeline.py.
"""
