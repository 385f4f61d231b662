"""Horovod over NCCL, MPI or Gloo, with the wait at one visible place.

flat     backward first, then one all-reduce of one flat buffer
hooks    Horovod's DistributedOptimizer: gradients, or each of `groups` groups of them, leave as soon as they are made
"""

import math
import mmap
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from horovod_study.comm import builds, gpus, settings
from horovod_study.comm.base import Averaging, FlatGradients, Optimizer
from horovod_study.comm.launch import (
    Launch,
    cuda_aware,
    find_open_mpi,
    load_mpi,
    loaded_library,
    meeting_at,
    meeting_point,
    own_library,
    require_connection,
    require_controller,
    require_interfaces,
    require_launchers_mpi,
    require_rendezvous,
)
from horovod_study.comm.priority import NewThreads, busiest_thread
from horovod_study.config.run import RunConfig
from horovod_study.errors import BackendError


class HorovodBackend(Averaging):
    """The `wrapped` runs: one worker or many inside Horovod."""

    name = "horovod"

    def __init__(self, config: RunConfig, launch: Launch) -> None:
        wanted = config.transport
        point = None if launch.launcher == "horovodrun --gloo" else meeting_point(os.environ)
        met = point if wanted == "gloo" or os.environ.get("HOROVOD_CONTROLLER") == "gloo" else None
        controller = "gloo" if met or launch.launcher == "horovodrun --gloo" else "mpi"
        on_gpu = config.device != "cpu" and torch.cuda.is_available()
        # The build mpi hands GPU memory to MPI: for an MPI that does not take it the installed one copies to the host.
        by_name = on_gpu and (wanted != "mpi" or not (own := own_library()) or cuda_aware(own)["value"])
        build = builds.select(config.horovod_build, transport=wanted if by_name else "auto")
        require_controller(os.environ, controller)
        if controller == "mpi":
            require_connection(launch)
            find_open_mpi()
        else:
            require_interfaces(os.environ, "HOROVOD_GLOO_IFACE")
            if launch.launcher == "horovodrun --gloo":
                require_rendezvous(os.environ)
        try:
            import horovod.torch as hvd
        except ImportError as error:
            raise BackendError(
                f"Horovod cannot be loaded by {sys.executable} ({error}); run `make setup`, or use --backend ddp"
            ) from None
        self._hvd = hvd
        built = [name for name in ("mpi", "gloo", "nccl") if getattr(hvd, f"{name}_built")()]
        # What carries tensors on a GPU is compiled in: a build with NCCL uses nothing else for them.
        self.transport = "nccl" if on_gpu and "nccl" in built else controller
        if problem := _why_not(wanted, controller, built, self.transport):
            raise BackendError(problem)
        # Read by the libraries when Horovod starts. Without this project's patches it takes no notice of one of them.
        known = any(_mentions(library, _IDLE) for library in Path(hvd.__file__).parent.glob("mpi_lib_v2*.so"))
        self.settings = settings.apply(f"horovod/{self.transport}", config=config, unknown=() if known else (_IDLE,))
        self._mpi = kept_mpi(controller) if config.timeline_steps else None
        # Its stall inspector names who is missing after up to four of these, before liveness.py ends the run.
        os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", f"{min(60, max(1, config.stall_timeout_s // 5)):.0f}")
        before = NewThreads()
        with nullcontext() if met is None else meeting(*met, launch, config.start_timeout_s):
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
        if on_gpu:
            self._check_gpu_tensors()
        self._config = config
        self.reduction = config.reduction if self.workers > 1 else "none"
        if self.transport == "gloo":
            self.barrier()  # Gloo's threads are there when the first message has passed
            self.settings["thread_priority"] = before.prioritise(config.thread_priority, polling=self._polling())

    def _check_gpu_tensors(self) -> None:
        """Raise BackendError where the loaded Horovod could not average tensors on a GPU in this run."""
        hvd, problem = self._hvd, ""
        by = builds.gpu_allreduce(Path(hvd.__file__).parents[1])
        if by is None and not hvd.nccl_built():  # somebody's own build
            by = "MPI" if hvd.cuda_built() else "none"
        self.settings["gpu_allreduce"] = {"value": by, "source": "loaded"}
        if by == "none":
            problem = (
                "takes no tensors on a GPU, it was compiled without CUDA; load the CUDA toolkit of PyTorch's CUDA "
                "version and run `make setup` again, or use --backend mpi or ddp, or --device cpu"
            )
        elif by == "MPI" and self.transport == "gloo":
            problem = (
                "gives tensors on a GPU to MPI alone, but this run was launched over Gloo; launch with horovodrun "
                "--mpi or mpirun, or leave --horovod-build out"
            )
        elif by == "MPI":
            self.settings["cuda_aware"] = cuda_aware()
            if not self.settings["cuda_aware"]["value"]:
                problem = (
                    f"gives MPI pointers to GPU memory, and {loaded_library()} does not take them; leave "
                    "--horovod-build and --transport out (the installed Horovod copies to the host), or install for an "
                    "MPI that is CUDA-aware: make setup MPI=site"
                )
        if problem:
            raise BackendError(f"this build of Horovod {problem}")

    def bind(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        if self.transport == "nccl" and next(model.parameters()).is_cuda:
            gpus.require_own(self, instead="--backend mpi")
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        no_hooks = "Horovod's hooks do not go with the loss scaling of fp16" if self._config.loss_scaled else ""
        self.choose(model, hooks_asked=self._config.groups is not None, flat_because=no_hooks)
        if self.reduction == "hooks":
            if no_hooks:
                raise BackendError(
                    "precision fp16 with reduction hooks does not work with Horovod: its optimizer would average a "
                    "step that the loss scaling skips; use --reduction flat"
                )
            groups = self._config.groups
            self.settings["groups"] = {"value": groups, "source": "library default" if groups is None else "asked"}
            optimizer = self._hvd.DistributedOptimizer(
                optimizer, named_parameters=model.named_parameters(), op=self._hvd.Average, num_groups=groups or 0
            )
            self._bound = optimizer
        elif self.reduction == "flat":
            self.flat = FlatGradients(model.parameters(), workers=self.workers)
        return model, optimizer

    def exchange(self) -> None:
        hooks: Any = self._bound if self.reduction == "hooks" else None
        if self.silent:
            if hooks is not None:
                # Nothing is under way: its hooks have noted each gradient as not sent, and zero_grad refuses that.
                hooks._handles.clear()
            return
        if self.flat is not None:
            # It waits for what the current stream was given before, and that stream waits for it.
            self._hvd.allreduce_(self.flat.buffer, name="gradients", op=self._hvd.Sum)  # of shares: the mean
        elif hooks is not None:
            hooks.synchronize()

    def step(self, optimizer: Optimizer) -> None:
        if self.reduction == "hooks":
            with optimizer.skip_synchronize():  # type: ignore[attr-defined]
                optimizer.step()
        else:
            optimizer.step()

    def _silence(self, silent: bool) -> None:
        super()._silence(silent)
        if self.reduction == "hooks":  # they count down to the pass after which to send
            bound: Any = self._bound
            bound.set_backward_passes_per_step(sys.maxsize if silent else 1)

    def gather(self, value: Any) -> list[Any]:
        # By default the message is named after the value's type: a text here and None there would wait for ever.
        return list(self._hvd.allgather_object(value, name="gather"))

    def barrier(self) -> None:
        self._hvd.barrier()

    def maximum(self, value: float) -> float:
        tensor = torch.tensor([value], dtype=torch.float64)
        return float(self._hvd.allreduce(tensor, name="maximum", op=self._hvd.Max).item())

    def close(self) -> None:
        self._hvd.shutdown()
        if self._mpi is not None:
            self._mpi.Finalize()

    def restart_with_timeline(self) -> None:
        """Stop Horovod on all ranks and start it again, ready to write a timeline. Collective.

        Only for a run with `timeline_steps`. From then on rank 0 has one more thread, which never sleeps.
        """
        with self._met_again():
            self._hvd.shutdown()
            os.environ[_TIMELINE] = "DYNAMIC"
            before = NewThreads()
            self._hvd.init()
            del os.environ[_TIMELINE]
            self.barrier()
        if self.transport == "gloo":
            # A thread that never sleeps must not go before the others: it would keep its core.
            writer = busiest_thread() if self.rank == 0 else None
            spare = () if writer is None else (writer,)
            if self.rank > 0 or spare:
                before.prioritise(self._config.thread_priority, polling=self._polling(), spare=spare)
            self.barrier()

    def start_timeline(self, path: Path) -> None:
        """Begin to write the timeline, on rank 0; returns when the file is open."""
        self._hvd.start_timeline(str(path), mark_cycles=True)

    def stop_timeline(self) -> None:
        """End the timeline, on rank 0; returns when the file is complete."""
        self._hvd.stop_timeline()

    @contextmanager
    def _met_again(self) -> Iterator[None]:
        """Let the ranks find each other at a server of rank 0, where Horovod uses one and starts inside.

        That of the launcher still holds where they could be found before: horovodrun 0.28.1 forgets to forget it when
        two groups of ranks have met at the same time.
        """
        if _RENDEZVOUS[0] not in os.environ:
            self.barrier()
            yield
            return
        here = os.uname().nodename
        with socket.create_server(("", 0)) as free:
            host, port = self.gather((here, free.getsockname()[1]))[0]
        launch = Launch(launcher="none", rank=self.rank, workers=self.workers, backend=self.name)
        with meeting("127.0.0.1" if host == here else host, port, launch, self._config.start_timeout_s):
            yield

    def _polling(self) -> bool:
        return bool(self.settings["HOROVOD_CYCLE_TIME"]["value"] == "0")


def _why_not(wanted: str, controller: str, built: Sequence[str], transport: str) -> str:
    """Return why Horovod cannot use the `wanted` transport, and what to do; "" where it can."""
    have = ", ".join(built)
    missing = sorted({controller, wanted} - {"auto", "none", *built})
    if missing:
        again = 'make setup BUILDS="nccl mpi"' if missing[0] == "nccl" else "make setup"
        return (
            f"Horovod was built without {missing[0]} (it has {have}); launch over one of these, or build Horovod again "
            f"with `{again}`"
        )
    asked = f"transport {wanted} was asked for, but"
    if wanted in ("mpi", "gloo") and wanted != controller:
        flag = "horovodrun --gloo" if wanted == "gloo" else "horovodrun --mpi or mpirun"
        return f"{asked} this run was launched over {controller}; launch with {flag}, or use --transport {controller}"
    if wanted not in ("auto", transport):
        why = "no GPU is visible" if wanted == "nccl" else f"this build has {have}"
        others = f", or one of the builds {', '.join(there)}" if (there := builds.available()) else ""
        return f"{asked} gradients would go over {transport} ({why}); use --transport {transport}{others}"
    return ""


@contextmanager
def meeting(host: str, port: int, launch: Launch, timeout_s: float) -> Iterator[None]:
    """Do for ranks that mpirun or srun started what horovodrun does: say who is where, and serve while they connect.

    Rank 0 listens at `host` and `port`, where all tell their host's name; the server of Horovod is another one, of
    rank 0 as well, on a port of its own.
    """
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousServer
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    rank, workers, here = launch.rank, launch.workers, os.uname().nodename
    with meeting_at(host, port, rank):
        store = TCPStore(
            host, port, workers, is_master=rank == 0, timeout=timedelta(seconds=max(1, math.ceil(timeout_s)))
        )
        store.set(f"host of {rank}", here)
        hosts = [store.get(f"host of {each}").decode() for each in range(workers)]
        places = [SlotInfo(**place) for place in horovod_places(hosts)]
        server = None
        if rank == 0:
            server = RendezvousServer()
            served = server.start()
            server.init(places)
            store.set("port", str(served))
        address = "127.0.0.1" if here == hosts[0] else socket.gethostbyname(host)
        os.environ[_RENDEZVOUS[0]] = address
        os.environ[_RENDEZVOUS[1]] = store.get("port").decode()
    own = places[rank]
    os.environ["HOROVOD_HOSTNAME"] = own.hostname
    for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
        os.environ[f"HOROVOD_{name.upper()}"] = str(getattr(own, name))
    os.environ.update(HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo")
    yield
    with meeting_at(host, port, rank):  # the servers are needed until the last rank has what it came for
        store.set(f"connected {rank}", "")
        if server is not None:
            for each in range(workers):
                store.get(f"connected {each}")
            server.stop()


def horovod_places(hosts: Sequence[str]) -> list[dict[str, Any]]:
    """Return what Horovod calls each rank's place: `hosts` are their hosts' names.

    local: among the ranks of the same host; cross: among the ranks with the same number on their hosts, by host.
    """
    order = list(dict.fromkeys(hosts))
    sizes = {host: hosts.count(host) for host in order}
    places = []
    for rank, host in enumerate(hosts):
        local_rank = hosts[:rank].count(host)
        peers = [each for each in order if sizes[each] > local_rank]
        place = {"hostname": host, "rank": rank, "size": len(hosts)}
        place |= {"local_rank": local_rank, "local_size": sizes[host]}
        places.append({**place, "cross_rank": peers.index(host), "cross_size": len(peers)})
    return places


def _mentions(library: Path, variable: str) -> bool:
    with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(variable.encode()) >= 0


_IDLE, _TIMELINE = "HOROVOD_IDLE_CYCLE_TIME", "HOROVOD_TIMELINE"
_RENDEZVOUS = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")


def kept_mpi(controller: str) -> Any:
    """Return MPI, started by mpi4py so that it outlives a restart of Horovod; None where Horovod does not use it.

    MPI cannot be started twice in a process, and Horovod stops it at its own end if it has started it.
    """
    if _TIMELINE in os.environ:
        raise BackendError(
            f"{_TIMELINE} is set, so Horovod would write a timeline in the timed steps too; unset it, timeline_steps "
            "does what it takes"
        )
    return load_mpi("launch over Gloo") if controller == "mpi" else None
