"""Figures and the page a study ends in: they draw and write what the analysis found, and compute nothing.

    style      fonts, sizes, the colour, marker and dash of every series and of every part of a step
    figures    each figure as a value that can be drawn at any width; PDF, SVG, PNG, caption and data on disk
    wording    the analysis in words: sentences with numbers, rounded to what they are worth
    html       report.html, one file that needs nothing else
    boundary       synchronisation against workers with the node boundaries, and what they add
    synchronisation  waiting per step and per epoch, between transports, against the batch, and Horovod's cycle
    forecast       throughput beyond the measured counts with its band, the errors of the method, worker counts
    convergence    learning curves with the floor of the data, time to a target, sensitivity to one option
    resources      energy per sample and worker hours against workers
    lr_range       the loss of a learning-rate range test, with the rates that were read off it
    bench          tables of collectives in nccl-tests' layout, the figure of the network, the roofline
    search         the trials of a hyper-parameter search
    identified     measured curves with the law's parameters, by a network and by least squares: table, CSV, plot

matplotlib is imported here and nowhere else.
"""
