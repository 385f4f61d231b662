"""The figures, one file for each family: each is a value that can be drawn at any width (report.grammar).

Everything drawn is a column of the analysis: nothing is computed here.

    catalogue        the figures of a study, in the order of its report

of a study:
    scaling          speedup, efficiency, throughput, epoch time, weak scaling, regression lines, forecast; what
                     figures against workers share
    waiting          waiting per step and per epoch against workers, and what another node adds; what can be chosen:
                     one backend against another; the batch of a worker with its knee and its overhead
    convergence      learning curves with the floor of the data, time to a target; range test and search of the strain
    causes           what takes the time: parts of a step, what they grew by, roofline, network; energy per sample and
                     worker hours against workers; what processors and GPUs did

of one verb:
    bench, inspection (with the hosts over time), simulation
"""
