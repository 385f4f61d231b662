"""Python and PyTorch: which, from where, and do they work.

Whatever may crash or hang is asked in a process of its own.
"""

import os
import platform
import sys
from pathlib import Path
from typing import Any

import horovod_study
from horovod_study.cluster.doctor.finding import Area, Here
from horovod_study.cluster.identity import installed
from horovod_study.text.words import plural

_ABOUT_TORCH = """
import json, torch
a = torch.ones(64, 64)
found = {
    "version": torch.__version__, "cuda": torch.version.cuda, "threads": torch.get_num_threads(),
    "computes": float((a @ a).sum()) == 64.0 ** 3,
    "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
    "devices": 0, "names": [], "device_problem": "", "nccl": None,
}
if torch.version.cuda:
    try:
        found["nccl"] = list(torch.cuda.nccl.version())
        found["devices"] = torch.cuda.device_count()
        for number in range(found["devices"]):
            found["names"].append(torch.cuda.get_device_name(number))
            b = a.to("cuda:%d" % number)
            assert float((b @ b).sum()) == 64.0 ** 3, "device %d computes wrongly" % number
    except Exception as error:
        found["device_problem"] = str(error)
print(json.dumps(found))
"""
LOAD_S = 60.0
"""How long PyTorch or Horovod may take to load: from a busy file server that is a while."""


class Software:
    """The checks of Python and PyTorch."""

    def __init__(self, here: Here, *, quick: bool) -> None:
        self._here, self._quick = here, quick
        self.about_torch: dict[str, Any] | None = None  # what later checks compare with, once it is known

    def python(self, area: Area) -> None:
        """Which Python; one that is too old does not get here."""
        area.ok("version", f"Python {platform.python_version()} ({self._here.python})")

    def environment(self, area: Area) -> None:
        """Is it the environment that belongs to this checkout, and is something put before it."""
        checkout = Path(horovod_study.__file__).resolve().parent.parent
        own, used = checkout / ".venv", Path(sys.prefix)
        if (own / "bin" / "python").exists() and own.resolve() != used.resolve():
            area.warning(
                "environment",
                f"{used} is in use, but this checkout has an environment of its own, {own}",
                f"start {own / 'bin' / 'horovod-study'} instead, or remove {own}",
            )
        elif sys.prefix == sys.base_prefix and "CONDA_PREFIX" not in self._here.environ:
            area.ok("environment", f"no virtual environment: packages come from {used}")
        else:
            area.ok("environment", f"{used}")
        hidden = [
            f"{name} from {folder}"
            for folder in self._here.environ.get("PYTHONPATH", "").split(os.pathsep)
            if folder
            for name in ("torch", "horovod", "mpi4py", "numpy")
            if Path(folder, name).is_dir()
        ]
        if hidden:
            area.warning(
                "PYTHONPATH",
                f"it puts {', '.join(hidden)} before what is installed in the environment",
                "unset PYTHONPATH, unless that is what you want (a module such as a site's Python sets it)",
            )

    def packages(self, area: Area) -> None:
        """Are the packages there that a training run needs."""
        wanted = ("numpy", "PyYAML", "rich", "pyarrow", "torch", "psutil")
        missing = [name for name in wanted if installed(name) is None]
        if missing:
            area.fail("packages", f"not installed: {', '.join(missing)}", "run `make setup`, or pip install '.[train]'")
        else:
            area.ok(
                "packages", f"horovod_study {horovod_study.__version__} and {plural(len(wanted), 'package')} it needs"
            )

    def torch(self, area: Area) -> None:
        """Does PyTorch load and compute."""
        version = installed("torch")
        if version is None:
            area.fail("version", "PyTorch is not installed", "run `make setup`, or pip install '.[train]'")
            return
        if self._quick:
            area.ok("version", f"PyTorch {version} is installed (not loaded in a quick examination)")
            return
        found, answer = self._here.ask_python(_ABOUT_TORCH, timeout_s=LOAD_S)
        if found is None:
            area.fail("loads", f"PyTorch {version} does not load: {answer.reason()}", "run `make setup` again")
            return
        self.about_torch = found
        kind = f"for CUDA {found['cuda']}" if found["cuda"] else "for CPUs"
        area.ok("version", f"PyTorch {found['version']}, built {kind}")
        if found["computes"]:
            area.ok("computes", f"a matrix product is right; {plural(found['threads'], 'thread')} unless a run says so")
        else:
            area.fail("computes", "a product of two matrices of ones is wrong", "run `make setup` again")
        if not found["gloo"]:
            area.warning(
                "Gloo", "this PyTorch has no Gloo: DDP works over NCCL only", "leave ddp/gloo out of sweep.runtime"
            )
