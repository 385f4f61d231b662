"""Memory and disk: whether what is about to be read or written finds room, and memory that is kept once it was had."""

import ctypes
import os
import shutil
from pathlib import Path

from horovod_study.errors import DataError

MEMINFO = Path("/proc/meminfo")
_GROUPS = {  # by controllers, of version 2 and 1: where, the limit, what is used, and what of it can be had back
    "": ("/sys/fs/cgroup", "memory.max", "memory.current", "file "),
    "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache "),
}
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_KEEP_BYTES = 1 << 30


def available_bytes() -> int | None:
    """Return the bytes of memory this process may still fill, None if unknown.

    The page cache counts as free. A batch system's limit on the job (its control group) counts as well as the machine.
    """
    try:
        meminfo = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
        found = [int(meminfo["MemAvailable"].split()[0]) * 1024]
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except (OSError, KeyError, ValueError):
        return None
    for _, controllers, group in groups:
        if controllers not in _GROUPS:
            continue
        root, limit, usage, cached = _GROUPS[controllers]
        inner = Path(root) / group.strip("/")
        for folder in (inner, *inner.parents):
            try:
                most = int((folder / limit).read_text())
                used = int((folder / usage).read_text())
                lines = (folder / "memory.stat").read_text().splitlines()
            except (OSError, ValueError):  # no limit here: the file is missing or says "max"
                continue
            reclaimable = next((int(line.split()[1]) for line in lines if line.startswith(cached)), 0)
            found.append(max(0, most - used + reclaimable))
    return min(found)


def need_memory(path: Path, needed: int, what: str, remedy: str) -> None:
    """Raise DataError if `what` of `path` does not find room in memory."""
    _need(f"{path}: {what}", needed, available_bytes(), "of memory", remedy)


def need_disk(folder: Path, needed: int, what: str) -> None:
    """Raise DataError if `what` does not find room on the disk of `folder`, which may not exist yet."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    remedy = "choose another --out (or HOROVOD_STUDY_DATA), or fewer curves"
    _need(f"{folder}: {what}", needed, shutil.disk_usage(there).free, "on disk", remedy)


def _need(what: str, needed: int, free: int | None, where: str, remedy: str) -> None:
    if free is not None and needed > free:
        raise DataError(f"{what} needs {needed:,} bytes {where}, {free:,} are free; {remedy}")


def worker_memory(workers_here: int) -> tuple[float, str] | None:
    """Return the bytes for each of so many workers and where the number is from, None if unknown.

    With a GPU driver it is the memory of the first GPU, shared where there are more workers than GPUs; else what is
    free on the machine, divided by the workers. PyTorch is imported only where there is a GPU driver.
    """
    if Path("/dev/nvidiactl").exists():
        import torch

        from horovod_study.comm import gpus

        if torch.cuda.is_available():
            sharing = -(-workers_here // gpus.visible())
            total = torch.cuda.get_device_properties(0).total_memory
            shared = f", shared by {sharing} workers" if sharing > 1 else ""
            return total / sharing, f"{torch.cuda.get_device_name(0)}{shared}"
    free = available_bytes()
    if free is None:
        return None
    return free / workers_here, f"free on this machine, divided by {workers_here}"


def keep_freed_memory() -> bool:
    """Raise glibc's thresholds for returning memory to 1 GiB; return whether that was done.

    Each training step frees and takes the same activations: at batch 1024 that costs thousands of page faults per step
    otherwise. The user's own MALLOC_* settings win; other C libraries are left alone.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES))
