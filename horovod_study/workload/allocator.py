"""Tell the C library to keep freed memory instead of giving it back after every step."""

import ctypes
import ctypes.util
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_KEEP_BYTES = 1 << 30


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
