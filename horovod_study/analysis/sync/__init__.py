"""What waiting for gradients costs, against workers, nodes, batches, cycles and transports."""
