"""Several builds of Horovod side by side, one of which a run loads.

Whether Horovod reduces tensors on a GPU with NCCL or with MPI is fixed when it is compiled. To compare the two in one
study, each build has a folder `lib/horovod-builds/NAME` of its own in the environment, made by `make setup BUILDS="nccl
mpi"`. Without a name the Horovod that is installed in the environment itself is loaded.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from horovod_study.errors import BackendError, nearest


def builds_folder() -> Path:
    """Return the folder that holds a folder for each named build."""
    return Path(sys.prefix) / "lib" / "horovod-builds"


def available(folder: Path | None = None) -> list[str]:
    """Return the names of the builds there are, sorted."""
    found = (each.parents[1].name for each in (folder or builds_folder()).glob("*/horovod/__init__.py"))
    return sorted(name for name in found if name[0] != ".")


def gpu_allreduce(package: Path) -> str | None:
    """Return what the Horovod in the folder `package` reduces tensors on a GPU with; None where nothing was noted.

    "NCCL"; "MPI", which is handed pointers to GPU memory; "host", by way of its memory; or "none": it refuses them.
    """
    try:
        noted = json.loads((package / "metadata.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    by = noted.get("gpu_allreduce") if isinstance(noted, dict) else None
    return None if by is None else str(by)


def select(name: str | None, *, transport: str = "auto", folder: Path | None = None) -> dict[str, Any]:
    """Make `import horovod` load the build `name`; return {"value", "source"} for the record.

    Without a name it is the build that is called like `transport`, if there is one, else the installed Horovod (value
    null). Raises BackendError for an unknown name, listing the known ones, and when another Horovod is loaded already.
    """
    parent, source = folder or builds_folder(), "asked"
    names, loaded = available(parent), getattr(sys.modules.get("horovod"), "__file__", None)
    if name is None:
        if transport not in names:
            return {"value": None, "source": "installed"}
        name, source = transport, f"chosen: transport {transport} was asked for"
    site = str(parent / name)
    if name not in names:
        have = ", ".join(names) or "none"
        raise BackendError(
            f"horovod_build is {name!r}, and no such build is in {parent} (there is: {have}){nearest(name, names)}; "
            'make builds with `make setup BUILDS="nccl mpi"`, or leave horovod_build out'
        )
    if loaded is not None and not loaded.startswith(f"{site}/"):
        raise BackendError(f"horovod_build is {name!r}, but this process has loaded {loaded}; start a new process")
    if site not in sys.path:
        sys.path.insert(0, site)
        importlib.invalidate_caches()
    return {"value": name, "source": source}
