"""Points: the cells of a run table, and the forms in which other programs read them.

points.py       run table in, scaling points out: throughput, speedup and efficiency of every cell with its spread
                over repeats, or within rounds where cells alternated; what to type for a baseline that is missing
culprits.py     what makes a number mean something else than it seems, what a speedup is over, and what cannot be
exchange.py     points of other programs: finished runs as points, for Extra-P, for a tracker; a table as runs
"""
