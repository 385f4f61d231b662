"""Clocks and probes.

clock         the only reader of time; laps that tile a training step
steady        from which step on a run is steady
ranges        laps as named ranges, for profilers
recorder      what one rank keeps of its steps until it is written
environment   what the run ran on
evidence      what each rank really has: cores, threads, device, learning rate, settings; who else uses its cores
system        the sampler of a host, a program of its own beside the ranks, and how the trainer starts and stops it
energy        of the timed window, by counter and by the integral of power
sensors       what it reads: process trees, the host, GPUs, energy counters
"""
