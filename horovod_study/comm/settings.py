"""The communication settings that ship with the package: set when the user has not, recorded either way.

Why these: with workers on all cores, whatever polls takes the core from whatever computes. Horovod wakes a background
thread every cycle (default 1 ms, a third of a step of the small model) and Open MPI spins while it waits. A short cycle
with a yielding MPI removes both; over Gloo, whose threads do not yield, a short cycle makes things worse. The figures
are in docs/performance.md.
"""

import os
from collections.abc import MutableMapping
from typing import Any

SHIPPED: dict[str, dict[str, str]] = {
    "horovod/mpi": {
        "HOROVOD_CYCLE_TIME": "0.05",  # ms
        "OMPI_MCA_mpi_yield_when_idle": "1",
    },
    "horovod/gloo": {},
    "horovod/nccl": {"HOROVOD_CYCLE_TIME": "0.1"},
    "mpi/mpi": {"OMPI_MCA_mpi_yield_when_idle": "1"},
}
"""runtime -> what is set where the user has set nothing."""

LIBRARY_DEFAULTS = {
    "HOROVOD_CYCLE_TIME": "1",  # ms, horovod/common/operations.cc
    "HOROVOD_FUSION_THRESHOLD": str(128 * 1024 * 1024),  # bytes, the same file
    "OMPI_MCA_mpi_yield_when_idle": "0",  # Open MPI turns it on by itself where it knows of more ranks than slots
}
"""What the libraries do by themselves when a variable is not set."""


def apply(runtime: str, *, library_defaults: bool, environ: MutableMapping[str, str] = os.environ) -> dict[str, Any]:
    """Set the shipped settings for `runtime` where the user set nothing, before the library starts.

    Returns name -> {"value", "source"} with source user, shipped or library default: what this process really uses,
    because the libraries read these variables when they start. `library_defaults` sets nothing.
    """
    shipped = {} if library_defaults else SHIPPED[runtime]
    library, _, transport = runtime.partition("/")
    effective: dict[str, Any] = {}
    for name, default in LIBRARY_DEFAULTS.items():
        matters = library == "horovod" if name.startswith("HOROVOD") else transport == "mpi"
        if not matters:
            continue
        if name in environ:
            effective[name] = {"value": environ[name], "source": "user"}
        elif name in shipped:
            environ[name] = shipped[name]
            effective[name] = {"value": shipped[name], "source": "shipped"}
        else:
            effective[name] = {"value": default, "source": "library default"}
    return effective
