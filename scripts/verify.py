"""Run by the set-up in the new environment: does all of it load, and does it belong together? Prints one line.

The first argument is "yes" or "no": is Horovod to be there. Any exception here means that the set-up has failed.
"""

import platform
import sys
from pathlib import Path

import mpi4py
import torch

mpi4py.rc.initialize = False  # the version of the library can be asked without starting MPI
from mpi4py import MPI  # noqa: E402

found = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
if sys.argv[1] == "yes":
    import horovod
    import horovod.torch as hvd

    missing = [name for name, built in (("MPI", hvd.mpi_built()), ("Gloo", hvd.gloo_built())) if not built]
    assert not missing, f"Horovod was built without {' and '.join(missing)}"
    found.append(f"Horovod {horovod.__version__} (MPI, Gloo)")
found.append(" ".join(MPI.Get_library_version().split()[:3]).strip(","))

maps = Path("/proc/self/maps")
loaded = (
    {line.split()[-1] for line in maps.read_text().splitlines() if "/libmpi.so" in line} if maps.exists() else set()
)
assert len(loaded) <= 1, f"Horovod and mpi4py have loaded different MPI libraries: {' and '.join(sorted(loaded))}"
print(", ".join(found))
