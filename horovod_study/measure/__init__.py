"""Clocks and probes.

clock         the only reader of time; laps that tile a training step
recorder      what one rank keeps of its steps until it is written
precision     what the first steps of a training computed in
environment   what the run ran on
traffic       the path that the gradients really took, from the kernel's counters
evidence      what each rank really has: cores, threads, device, learning rate, settings; who else uses its cores
system        the sampler of a host, a program of its own beside the ranks, and how the trainer starts and stops it
sensors       what it reads: process trees, the host, GPUs, energy counters
loading       the loaders of workload/loaders.py compared, and whether loading or computing bounds a run
scratch       training steps after the timed window that leave no trace
synchronisation  what a synchronisation is made of, measured in a job after its window
ablation      what communication costs, measured in a job by leaving it out
collectives   all-reduce, broadcast, barrier, copies and the step alone, on every rank (`horovod-study bench`)
microbench    matrix peak of a core, floating-point operations of a step
"""
