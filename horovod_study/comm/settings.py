"""The communication settings that ship with the package: set when the user has not, recorded either way.

docs/bench.md says why these: with workers on all cores, whatever polls takes the core from whatever computes.
"""

import os
from collections.abc import Collection
from typing import Any

from horovod_study.config.run import COMMUNICATION, OPTIONS, RunConfig
from horovod_study.config.variables import is_set, refuse_other_than_numbers
from horovod_study.errors import BackendError
from horovod_study.runtimes import CARRIED

_LIBRARY_DEFAULTS = {
    "HOROVOD_CYCLE_TIME": "1",  # ms, horovod/common/operations.cc
    "HOROVOD_IDLE_CYCLE_TIME": "0",  # ms; 0 means that HOROVOD_CYCLE_TIME always holds
    "HOROVOD_FUSION_THRESHOLD": str(128 * 1024 * 1024),  # bytes, the same file
    "HOROVOD_CACHE_CAPACITY": "1024",  # tensors, horovod/common/global_state.h
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
    "OMPI_MCA_mpi_yield_when_idle": "0",  # Open MPI turns it on by itself where it knows of more ranks than slots
    "OMPI_MCA_btl_vader_single_copy_mechanism": "cma",  # where the kernel permits it
}
"""What the libraries do by themselves when a variable is not set."""


def apply(runtime: str, *, config: RunConfig, unknown: Collection[str] = ()) -> dict[str, Any]:
    """Set what `config` asks for, and the shipped settings where nobody asked, before the library of `runtime` starts.

    Returns variable -> {"value", "source"} with source asked (an option of the run), user (the environment), shipped
    or library default: what this process really uses, because the libraries read these variables when they start.
    A user's variable that is empty counts as not set.
    `horovod_defaults` ships nothing. A variable in `unknown` means nothing to the library that is installed: it is
    recorded as null, "not in this build". Raises BackendError for an option that has no effect here, and for a variable
    of Horovod's that holds no number.
    """
    for name in COMMUNICATION:
        about = OPTIONS[name]
        if getattr(config, name) == about.default:
            continue
        if not about.matters(runtime):
            fault = f"has no effect on {runtime}; leave it out, or use a runtime that has it"
        elif about.hooks and not about.variable and config.reduction == "flat":
            fault = "has no effect on reduction flat; leave it out, or use --reduction hooks"
        elif about.variable in unknown:
            fault = f"was asked for, but the installed Horovod does not know {about.variable}; run `make setup`, which "
            fault += "builds one that does, or leave it out"
        else:
            continue
        raise BackendError(f"{name} {fault}")
    shipped = {} if config.horovod_defaults or runtime not in CARRIED else CARRIED[runtime][1].shipped
    effective: dict[str, Any] = {}
    refuse_other_than_numbers(os.environ)
    for option, about in OPTIONS.items():
        name = about.variable  # that the library reads
        if not name or not about.matters(runtime):
            continue
        asked = getattr(config, option)
        if not is_set(name, os.environ):
            os.environ.pop(name, None)  # an empty one ends Horovod in a C++ exception
        value, source = os.environ.get(name), "user"
        if name in unknown:
            value, source = None, "not in this build"
        elif asked is not None:
            value, source = str(int(asked)) if isinstance(asked, bool) else f"{asked:g}", "asked"
            if option == "fusion_mb":
                value = str(round(asked * 1e6))
            elif option == "single_copy":
                value = "cma" if asked else "none"
        elif value is None:
            value, source = _LIBRARY_DEFAULTS[name], "library default"
            if name in shipped:
                value, source = shipped[name], "shipped"
        if source in ("asked", "shipped"):
            os.environ[name] = str(value)
        effective[name] = {"value": value, "source": source}
    return effective
