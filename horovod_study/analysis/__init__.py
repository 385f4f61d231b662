"""The analysis wing: frames in, frames or fitted values out.

    stats.py    the one interval, tests and estimates; a kit, which the run wing uses too
    paired.py   ratios of cells that alternate in slices, and when enough was measured; a kit as well
    costs.py    what messages cost, alpha and beta; a kit as well
    series/     run table -> scaling points; points for other programs
    laws/       scaling laws as values, a file each
    fit/        points -> fitted laws with 95 % intervals, the law selected, and every reason to doubt it
    forecast/   points -> throughput of other worker counts, scored forecasts, recommended worker counts
    steps/      where the time of a step goes: accounts, stragglers, stalls, what synchronisation is made of
    sync/       waiting against workers, nodes, batches, cycles and transports
    learning/   learning curves, time to target, the learning-rate range test
    machine/    network, sensors, energy, and whether a model should be split
    compare/    two configurations, and whether the runs can tell
    against.py  two studies cell by cell: what is faster or slower after a change or on another cluster
    simulate/   a step on other workers, another network, or with other settings
    study.py    a whole study: run table -> everything the report reads
    importers.py   what others measured: tables of points, logs of trainings, network benchmarks in, frames out
    audit.py    whether a study's numbers are what its raw rows give

Nothing here prints, reads or writes a file, changes its arguments, or needs torch, Horovod or MPI.
The same input gives the same output, to the last digit.
"""
