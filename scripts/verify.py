"""Run by the set-up in the new environment: does all of it load, and does it belong together? Prints one line.

The first argument is "yes" or "no": is Horovod to be there. A second one is the folder of another build of it, named
after what it reduces GPU tensors with. Any exception here means that the set-up has failed.
"""

import json
import platform
import sys
from pathlib import Path

import mpi4py
import torch

mpi4py.rc.initialize = False  # the version of the library can be asked without starting MPI
from mpi4py import MPI  # noqa: E402

found = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
if sys.argv[1] == "yes":
    sys.path[:0] = sys.argv[2:]
    import horovod
    import horovod.torch as hvd

    missing = [name for name, built in (("MPI", hvd.mpi_built()), ("Gloo", hvd.gloo_built())) if not built]
    assert not missing, f"Horovod was built without {' and '.join(missing)}"
    if len(sys.argv) > 2:
        build = Path(sys.argv[2])
        assert Path(horovod.__file__).is_relative_to(build), f"{horovod.__file__} is loaded instead of {build}"
        by = json.loads((build / "horovod" / "metadata.json").read_text())["gpu_allreduce"]
        assert by.lower() in {"cpu": ("none", "host")}.get(build.name, (build.name,)), (
            f"the build {build.name} is not what its name says: its GPU tensors go by {by}"
        )
        assert hvd.nccl_built() or build.name != "nccl", "the build nccl was made without NCCL"
    found.append(f"Horovod {horovod.__version__} (MPI, Gloo)")
found.append(" ".join(MPI.Get_library_version().split()[:3]).strip(","))

maps = Path("/proc/self/maps")
loaded = (
    {line.split()[-1] for line in maps.read_text().splitlines() if "/libmpi.so" in line} if maps.exists() else set()
)
assert len(loaded) <= 1, f"Horovod and mpi4py have loaded different MPI libraries: {' and '.join(sorted(loaded))}"
print(", ".join(found))
