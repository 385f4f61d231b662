"""Measure, explain, predict and write up how data-parallel training scales.

A map of the package:

    train       `python -m horovod_study.train`: the training job that is measured, a loop to read top to bottom
    cli         `horovod-study VERB`: every other command
    config      the values a run and a study are made from, validated when they are made
    records     the run directory, the only place where the two wings meet
    errors      what a user can do wrong

    run wing        workload (what is trained), comm (how workers talk), measure (clocks and probes),
                    cluster (where it runs)
    analysis wing   analysis (tables in, tables and fitted laws out), report (figures and pages)

The run wing writes run directories, the analysis wing reads them, and neither imports the other.
Importing the package or its analysis wing needs neither PyTorch nor Horovod nor MPI.
"""

__version__ = "0.1.0"
