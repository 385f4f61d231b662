"""Clocks and probes.

clock         the only reader of time; laps that tile a training step
recorder      what one rank keeps of its steps until it is written
environment   what the run ran on
traffic       the path that the gradients really took, from the kernel's counters
evidence      what each rank really has: cores, threads, device, learning rate, settings; who else uses its cores
loading       the loaders of workload/loaders.py compared, and whether loading or computing bounds a run
collectives   all-reduce, broadcast, barrier, copies and the step alone, on every rank (`horovod-study bench`)
microbench    matrix peak of a core, floating-point operations of a step
"""
