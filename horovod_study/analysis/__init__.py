"""The analysis wing: frames in, frames or fitted values out.

    points.py       run table -> scaling points: spread over repeats, speedup and efficiency against both baselines
    breakdown.py    where the time of a step goes, and how that changes with the worker count
    boundary.py     synchronisation against workers and nodes, and the jump at each node boundary
    laws.py         scaling laws as values: linear, Amdahl, Gustafson, USL
    fitting.py      points -> fitted laws with 95 % intervals, the law selected, and every reason to doubt it
    prediction.py   points -> forecasts for other worker counts, from a weighted combination of laws
    ablation.py     blocks of steps with and without communication -> what it costs, beside the timer's answer
    convergence.py  evaluations -> learning curves, time to target (censored where it was missed), rate of convergence
    lr_range.py     losses of a learning-rate range test -> the rates that can be read off them
    network.py      measured collectives -> bandwidths, alpha and beta with intervals, the roofline
    points_file.py  text of a user's points file -> validated points
    study.py        a whole study: run table -> everything the report reads

Nothing here prints, reads or writes a file, changes its arguments, or needs torch, Horovod or MPI.
The same input gives the same output, to the last digit.
"""
