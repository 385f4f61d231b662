"""Horovod over NCCL, MPI or Gloo.

Two ways to average, both with the wait at one visible place:

    flat     backward first, then one all-reduce of one flat buffer
    hooks    Horovod's DistributedOptimizer: each gradient leaves as soon as backward has made it, or each of `groups`
             groups of gradients when the last one of the group is there

One worker reduces nothing in either way (Horovod registers its hooks only for two and more).
"""

import importlib.util
import mmap
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from horovod_study.comm import builds, settings
from horovod_study.comm.base import FlatGradients, Optimizer, choose_reduction, gradient_bytes
from horovod_study.comm.launch import Launch
from horovod_study.comm.libmpi import cuda_aware, loaded_library, require_launchers_mpi
from horovod_study.comm.priority import NewThreads
from horovod_study.config import RunConfig
from horovod_study.errors import BackendError


class HorovodBackend:
    """The `wrapped` runs: one worker or many inside Horovod."""

    name = "horovod"
    sync_visible = True

    def __init__(self, config: RunConfig, launch: Launch) -> None:
        wanted = config.transport
        controller = "gloo" if launch.launcher == "horovodrun --gloo" else "mpi"
        on_gpu = config.device != "cpu" and torch.cuda.is_available()
        build = builds.select(config.horovod_build, transport=wanted if on_gpu else "auto")
        if controller == "mpi":
            find_open_mpi()
        try:
            import horovod.torch as hvd
        except ImportError as error:
            raise BackendError(
                f"Horovod cannot be loaded by {sys.executable} ({error}); run `make setup`, or use --backend ddp"
            ) from None
        self._hvd = hvd
        built = [name for name in ("mpi", "gloo", "nccl") if getattr(hvd, f"{name}_built")()]
        needed = {name for name in (controller, wanted) if name not in ("auto", "none")}
        for name in sorted(needed - set(built)):
            raise BackendError(
                f"Horovod was built without {name} (it has {', '.join(built)}); launch over one of these, "
                "or build Horovod again with `make setup`"
            )
        if wanted in ("mpi", "gloo") and wanted != controller:
            flag = "horovodrun --gloo" if wanted == "gloo" else "horovodrun --mpi or mpirun"
            raise BackendError(
                f"transport {wanted} was asked for, but this run was launched over {controller}; launch with {flag}, "
                f"or use --transport {controller}"
            )
        # What carries tensors on a GPU is compiled in: a build with NCCL uses nothing else for them.
        self.transport = "nccl" if on_gpu and "nccl" in built else controller
        if wanted not in ("auto", self.transport):
            why = "no GPU is visible" if wanted == "nccl" else f"this build has {', '.join(built)}"
            others = f", or one of the builds {', '.join(there)}" if (there := builds.available()) else ""
            raise BackendError(
                f"transport {wanted} was asked for, but gradients would go over {self.transport} ({why}); "
                f"use --transport {self.transport}{others}"
            )
        if config.groups is not None and config.reduction == "flat":
            raise BackendError(
                f"groups is {config.groups}, but reduction flat has one buffer for all gradients; leave groups out, or "
                "use --reduction hooks"
            )
        # Read by the libraries when Horovod starts.
        self.settings = settings.apply(f"horovod/{self.transport}", config=config, unknown=_unknown_settings())
        before = NewThreads()
        hvd.init()
        self.rank, self.workers = int(hvd.rank()), int(hvd.size())
        require_launchers_mpi(launch, self.workers, "Horovod")
        if self.transport != "nccl":
            self.transport = "mpi" if hvd.mpi_enabled() else "gloo"
        self.settings["horovod_build"] = build
        self.settings["horovod_path"] = {"value": str(Path(hvd.__file__).parents[1]), "source": "loaded"}
        self.settings["horovod_built"] = {"value": built, "source": "loaded"}
        if controller == "mpi":
            self.settings["mpi_library"] = {"value": loaded_library(), "source": "loaded"}
        if on_gpu and self.transport == "mpi" and hvd.cuda_built():
            self.settings["cuda_aware"] = cuda_aware()
            if not self.settings["cuda_aware"]["value"]:
                raise BackendError(
                    f"this build of Horovod gives MPI pointers to GPU memory, and {loaded_library()} does not take "
                    "them; use an MPI that is CUDA-aware, or another build (--horovod-build)"
                )
        self._config = config
        self.reduction = config.reduction if self.workers > 1 else "none"
        self.flat: FlatGradients | None = None
        if self.transport == "gloo":
            self.barrier()  # Gloo's threads are there when the first message has passed
            polling = self.settings["HOROVOD_CYCLE_TIME"]["value"] == "0"
            self.settings["thread_priority"] = before.prioritise(config.thread_priority, polling=polling)

    def bind(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        no_hooks = "Horovod's hooks do not go with the loss scaling of fp16" if self._config.precision == "fp16" else ""
        self.reduction, self.settings["reduction"] = choose_reduction(
            self._config,
            self.workers,
            gradient_bytes(model),
            hooks_asked=self._config.groups is not None,
            flat_because=no_hooks,
        )
        if self.reduction == "hooks":
            if no_hooks:
                raise BackendError(
                    "precision fp16 with reduction hooks does not work with Horovod: its optimizer would average a "
                    "step that the loss scaling skips; use --reduction flat"
                )
            groups = self._config.groups
            self.settings["groups"] = {"value": groups, "source": "library default" if groups is None else "asked"}
            optimizer = self._hvd.DistributedOptimizer(
                optimizer,
                named_parameters=model.named_parameters(),
                op=self._hvd.Average,
                num_groups=groups or 0,
            )
        elif self.reduction == "flat":
            self.flat = FlatGradients(model.parameters(), workers=self.workers)
        return model, optimizer

    @property
    def local_norm2(self) -> torch.Tensor | None:
        return self.flat.norm2 if self.flat else None

    def zero_grad(self, optimizer: Optimizer) -> None:
        optimizer.zero_grad()  # without arguments: Horovod's optimizer takes none

    def synchronize(self, optimizer: Optimizer) -> None:
        if self.flat is not None:
            self._hvd.allreduce_(self.flat.pack(), name="gradients", op=self._hvd.Sum)  # of shares: the mean
        elif self.reduction == "hooks":
            optimizer.synchronize()  # type: ignore[attr-defined]

    def step(self, optimizer: Optimizer) -> None:
        if self.reduction == "hooks":
            with optimizer.skip_synchronize():  # type: ignore[attr-defined]
                optimizer.step()
        else:
            optimizer.step()

    def gather(self, value: Any) -> list[Any]:
        # By default the message is named after the value's type: a text here and None there would wait for ever.
        return list(self._hvd.allgather_object(value, name="gather"))

    def barrier(self) -> None:
        self._hvd.barrier()

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(self._hvd.allreduce(torch.from_numpy(values.copy()), name="sum", op=self._hvd.Sum).numpy())

    def maximum(self, value: float) -> float:
        tensor = torch.tensor([value], dtype=torch.float64)
        return float(self._hvd.allreduce(tensor, name="maximum", op=self._hvd.Max).item())

    def close(self) -> None:
        self._hvd.shutdown()


def _unknown_settings() -> list[str]:
    """Return the settings that the installed Horovod was built without, read off its library.

    A Horovod built without this project's patches takes no notice of HOROVOD_IDLE_CYCLE_TIME, and says nothing.
    """
    found = importlib.util.find_spec("horovod")
    folders = found.submodule_search_locations if found else None
    libraries = [path for folder in folders or () for path in Path(folder).glob("torch/mpi_lib_v2*.so")]
    name = "HOROVOD_IDLE_CYCLE_TIME"
    for library in libraries:
        with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(name.encode()) >= 0:
                return []
    return [name]


def find_open_mpi() -> None:
    """Let Open MPI find its own files when a process is started without mpirun from the environment's own wheel."""
    if (Path(sys.prefix) / "bin" / "mpirun").exists() and "OMPI_COMM_WORLD_RANK" not in os.environ:
        os.environ.setdefault("OPAL_PREFIX", sys.prefix)
