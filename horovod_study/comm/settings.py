"""The communication settings that ship with the package: set when the user has not, recorded either way.

Why these: with workers on all cores, whatever polls takes the core from whatever computes. Horovod's background thread
wakes every cycle (default 1 ms, a third of a step of the small model) to ask whether there is work, and Open MPI spins
while it waits. This project's build of Horovod can sleep until there is work (patches/0006): HOROVOD_IDLE_CYCLE_TIME
bounds that sleep, and the short cycle then counts only between the first gradient and the last. A yielding MPI removes
the spinning. The figures are in docs/performance.md.
"""

import os
from collections.abc import Collection, MutableMapping
from typing import Any

SHIPPED: dict[str, dict[str, str]] = {
    "horovod/mpi": {
        "HOROVOD_IDLE_CYCLE_TIME": "10",  # ms
        "HOROVOD_CYCLE_TIME": "0.05",  # ms
        "OMPI_MCA_mpi_yield_when_idle": "1",
    },
    # Gloo's threads do not yield: a short cycle makes it slower.
    "horovod/gloo": {"HOROVOD_IDLE_CYCLE_TIME": "10"},
    "horovod/nccl": {"HOROVOD_IDLE_CYCLE_TIME": "10", "HOROVOD_CYCLE_TIME": "0.1"},
    "mpi/mpi": {"OMPI_MCA_mpi_yield_when_idle": "1"},
}
"""runtime -> what is set where the user has set nothing."""

LIBRARY_DEFAULTS = {
    "HOROVOD_CYCLE_TIME": "1",  # ms, horovod/common/operations.cc
    "HOROVOD_IDLE_CYCLE_TIME": "0",  # ms; 0 means that HOROVOD_CYCLE_TIME always holds
    "HOROVOD_FUSION_THRESHOLD": str(128 * 1024 * 1024),  # bytes, the same file
    "OMPI_MCA_mpi_yield_when_idle": "0",  # Open MPI turns it on by itself where it knows of more ranks than slots
}
"""What the libraries do by themselves when a variable is not set."""


def apply(
    runtime: str,
    *,
    library_defaults: bool,
    unknown: Collection[str] = (),
    environ: MutableMapping[str, str] = os.environ,
) -> dict[str, Any]:
    """Set the shipped settings for `runtime` where the user set nothing, before the library starts.

    Returns name -> {"value", "source"} with source user, shipped or library default: what this process really uses,
    because the libraries read these variables when they start. `library_defaults` sets nothing. A variable in `unknown`
    means nothing to the library that is installed: it is left alone and recorded as null, "not in this build".
    """
    shipped = {} if library_defaults else SHIPPED[runtime]
    library, _, transport = runtime.partition("/")
    effective: dict[str, Any] = {}
    for name, default in LIBRARY_DEFAULTS.items():
        matters = library == "horovod" if name.startswith("HOROVOD") else transport == "mpi"
        if not matters:
            continue
        if name in unknown:
            effective[name] = {"value": None, "source": "not in this build"}
        elif name in environ:
            effective[name] = {"value": environ[name], "source": "user"}
        elif name in shipped:
            environ[name] = shipped[name]
            effective[name] = {"value": shipped[name], "source": "shipped"}
        else:
            effective[name] = {"value": default, "source": "library default"}
    return effective
