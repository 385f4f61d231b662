"""What looks into further steps of a training job, after its timed window; the model is put back afterwards.

scratch          steps that leave no trace
synchronisation  what a synchronisation is made of, and what a step takes without it
profiling        steps under a profiler, operations that wait for the device, and Horovod's own timeline
"""
