"""What waiting for gradients costs, against workers, nodes, batches, cycles and transports.

synchronisation.py  synchronisation against workers: per step, per epoch, its share of the step, and its law
boundary.py         what another node costs: the jump at each node boundary
transports.py       two runtimes, run side by side: any two series that are equal in all but that
cycle.py            how much of synchronisation is Horovod's cycle, from runs with different cycle times
batch_size.py       what a larger batch gives, and the knee beyond which it gives little more
"""
