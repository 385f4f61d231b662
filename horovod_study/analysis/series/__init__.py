"""Points: the cells of a run table, a user's own, and the forms in which other programs read them.

points.py       run table in, scaling points out: throughput, speedup and efficiency of every cell with its spread
                over repeats
baselines.py    what a speedup is over: for laws, forecasts and pages of a table; and what among points cannot be
baseline_commands.py
                what to type for a baseline that is missing: the recorded command, with one worker
points_file.py  a user's own points: the text of a table in, a validated frame out
column_names.py
                what the columns of somebody's table are: a quantity, a unit, and whether it is of one worker or of all
logs.py         logs of trainings as points: what MLPerf, Horovod's benchmark, Megatron ... printed in, rows out
reported.py     somebody's table of points as a run table, so that a report can be made of it
turns.py        speedups of a study whose cells alternated: ratios within rounds in place of ratios of medians
exchange.py     measured points in the forms that other programs read: a points file (CSV), and JSON for Extra-P
history.py      what a run did over time, as curves for an experiment tracker: tag, step, seconds, value
"""
