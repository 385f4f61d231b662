"""The figures, one file for each family: each is a value that can be drawn at any width (kit.drawing).

Everything drawn is a column of the analysis: nothing is computed here.

    catalogue        the figures of a study, in the order of its report

of a study:
    workers          speedup, efficiency and throughput against workers
    breakdown        where the time of a step goes
    boundary         synchronisation against workers with the node boundaries, and what they add
    synchronisation  waiting per step and per epoch, between transports, against the batch, and Horovod's cycle
    forecast         throughput beyond the measured counts with its band, the errors of the method, worker counts
    convergence      learning curves with the floor of the data, time to a target, sensitivity to one option
    resources        energy per sample and worker hours against workers
    epochs           epoch time, weak scaling
    regression       regression lines, Karp-Flatt fraction
    pairs            one transport against another
    batches          epoch time and overhead against the batch
    causes           what takes the time: losses, stragglers, attribution, roofline, network
    usage            what processors and GPUs did

of one verb:
    accounting, attribution, bench, comparison, inspection (with system), lr_range, search,
    simulation, timeline
"""
