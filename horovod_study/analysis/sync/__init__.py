"""What waiting for gradients costs, against workers, nodes, batches, cycles and transports.

synchronisation.py  synchronisation against workers: per step, per epoch, its law; over two transports; of the cycle;
                    what a larger batch gives, and the knee beyond which it gives little more
boundary.py         what another node costs: the jump at each node boundary
"""
