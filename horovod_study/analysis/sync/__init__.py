"""What waiting for gradients costs, against workers, nodes, batches, cycles and transports.

synchronisation.py  its law and share; jumps at node boundaries; transports; the cycle; the knee of the batch
"""
