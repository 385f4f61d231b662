"""Points: the cells of a run table, and the forms in which other programs read them.

points.py       run table in, scaling points out: throughput, speedup and efficiency of every cell with its spread
                over repeats
baselines.py    what a speedup is over: for laws, forecasts and pages of a table; and what among points cannot be
baseline_commands.py
                what to type for a baseline that is missing: the recorded command, with one worker
culprits.py     what makes a number mean something else than it seems: rules over the points of a study
reported.py     somebody's table of points as a run table, so that a report can be made of it
turns.py        speedups of a study whose cells alternated: ratios within rounds in place of ratios of medians
exchange.py     finished runs as points, JSON for Extra-P, and curves of a run for an experiment tracker
"""
