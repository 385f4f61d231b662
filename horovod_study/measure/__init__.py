"""Clocks and probes.

clock         the only reader of time; laps that tile a training step
recorder      what one rank keeps of its steps until it is written
environment   what the run ran on
loading       the loaders of workload/loaders.py compared, and whether loading or computing bounds a run
microbench    matrix peak of a core, floating-point operations of a step
"""
