"""The analysis wing: frames in, frames or fitted values out.

    stats.py        the one interval, tests and estimates; a kit, which the run wing uses too
    costs.py        what messages cost, alpha and beta; a kit as well
    points.py       run table -> scaling points: spread over repeats, speedup and efficiency against both baselines
    breakdown.py    where the time of a step goes, and how that changes with the worker count
    boundary.py     synchronisation against workers and nodes, and the jump at each node boundary
    synchronisation.py  waiting per step and per epoch against workers, and the law it follows
    transports.py   two runtimes, compared by pairs of runs
    batch_size.py   overhead and epoch time against the batch, and its knee
    cycle.py        how much of the waiting is Horovod's cycle
    laws/           scaling laws as values, a file each: linear, Amdahl, Gustafson, USL ...
    fit/            points -> fitted laws with 95 % intervals, the law selected, and every reason to doubt it
    prediction.py   points -> forecasts for other worker counts, from a weighted combination of laws
    holdout.py      those forecasts scored: the largest counts hidden, errors and coverage of each law
    recommendation.py  points -> recommended worker counts: knee, deadline, budget, time to target
    forecast.py     a study's forecasts with their scores and recommendations, as a table and a document
    ablation.py     blocks of steps with and without communication -> what it costs, beside the timer's answer
    convergence.py  evaluations -> learning curves, time to target (censored where it was missed), rate of convergence
    resources.py    run table -> energy per sample and worker hours, and laws of these and of samples and time to target
    lr_range.py     losses of a learning-rate range test -> the rates that can be read off them
    network.py      measured collectives -> bandwidths, alpha and beta with intervals, the roofline
    points_file.py  text of a user's points file -> validated points
    study.py        a whole study: run table -> everything the report reads

Nothing here prints, reads or writes a file, changes its arguments, or needs torch, Horovod or MPI.
The same input gives the same output, to the last digit.
"""
