"""How much memory a worker on this machine can have."""

from pathlib import Path

from horovod_study.workload.room import available_bytes

_GPU_DRIVER = Path("/dev/nvidiactl")


def worker_memory(workers_here: int) -> tuple[float, str] | None:
    """Return the bytes for each of so many workers and where the number is from, None if unknown.

    With a GPU driver it is the memory of the first GPU, shared where there are more workers than GPUs; else what is
    free on the machine, divided by the workers. PyTorch is imported only where there is a GPU driver.
    """
    if _GPU_DRIVER.exists():
        import torch

        if torch.cuda.is_available():
            sharing = -(-workers_here // torch.cuda.device_count())
            total = torch.cuda.get_device_properties(0).total_memory
            shared = f", shared by {sharing} workers" if sharing > 1 else ""
            return total / sharing, f"{torch.cuda.get_device_name(0)}{shared}"
    free = available_bytes()
    if free is None:
        return None
    return free / workers_here, f"free on this machine, divided by {workers_here}"
