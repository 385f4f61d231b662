"""What waiting for gradients costs, against workers, nodes, batches, cycles and transports.

synchronisation.py  synchronisation against workers: per step, per epoch, its share of the step, and the law it
                    follows
boundary.py         what another node costs: synchronisation against workers and nodes, and the jump at each node
                    boundary
transports.py       two runtimes, run side by side: NCCL against MPI, and any two series that are equal in all but
                    that
cycle.py            how much of synchronisation is Horovod's cycle, from runs with different cycle times
batch_size.py       what a larger batch gives: communication overhead, epoch time, and the knee beyond which it
                    gives little more
"""
