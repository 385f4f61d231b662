"""CUDA and NCCL: driver, devices, toolkit, and do they fit PyTorch and the partition."""

import csv
import re

from horovod_study.cluster.doctor.finding import Area, Here, shortened
from horovod_study.cluster.doctor.software import Software
from horovod_study.cluster.partitions import Partition
from horovod_study.text.words import plural
from horovod_study.variables import visible_gpus


class GpuChecks:
    """The checks of what is NVIDIA's."""

    def __init__(self, here: Here, software: Software, *, quick: bool, partition: Partition | None = None) -> None:
        self._here, self._software, self._quick, self._partition = here, software, quick, partition

    def cuda(self, area: Area) -> None:
        """Driver, toolkit and devices, and do they fit PyTorch."""
        here = self._here
        program = here.which("nvidia-smi")
        if program is None:
            module = here.text(here.proc / "driver" / "nvidia" / "version")
            if module:
                area.warning(
                    "driver",
                    "the NVIDIA kernel module is loaded, but nvidia-smi is not on PATH",
                    "in a container, start it with GPU support (--gpus all, --nv); else put nvidia-smi on PATH",
                )
            else:
                area.ok("driver", "no NVIDIA driver on this machine: runs use its CPUs")
            if (visible := here.environ.get("CUDA_VISIBLE_DEVICES")) not in (None, "", "-1", "NoDevFiles"):
                area.warning(
                    "CUDA_VISIBLE_DEVICES", f"it is {visible!r}, but there is no GPU here", "unset CUDA_VISIBLE_DEVICES"
                )
            self._enough(area, 0)
            return
        limit_s = 2.0 if self._quick else 15.0
        asked = "--query-gpu=index,name,driver_version,memory.total,memory.used,utilization.gpu"
        answer = here.call([program, asked, "--format=csv,noheader,nounits"], timeout_s=limit_s)
        if not answer.worked:
            area.fail(
                "driver",
                f"nvidia-smi does not work: {answer.reason()}",
                "the driver and its library differ or no device is given to this container: restart the node or the "
                "container, or ask its administrator",
            )
            return
        gpus = [[cell.strip() for cell in row] for row in csv.reader(answer.output.splitlines()) if len(row) > 5]
        if not gpus:
            area.fail("driver", "nvidia-smi lists no GPU", "ask for GPUs (salloc --gres=gpu:1), or use another node")
            return
        banner = here.call([program], timeout_s=limit_s).output
        said = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", banner)
        newest = (int(said[1]), int(said[2])) if said else None
        text = f"driver {gpus[0][2]}" + (f", good for CUDA {newest[0]}.{newest[1]}" if newest else "")
        area.ok("driver", text)
        names = sorted({gpu[1] for gpu in gpus})
        area.ok("GPUs", f"{plural(len(gpus), 'GPU')}: {', '.join(names)}")
        self._enough(area, len(gpus))
        self._visible(area, len(gpus))
        if busy := [gpu[0] for gpu in gpus if gpu[5].isdigit() and int(gpu[5]) > 10]:
            area.warning(
                "others",
                f"at work already: GPU {', '.join(busy)}; runs would share with whoever uses them",
                "look with nvidia-smi who it is; wait, or hide those GPUs with CUDA_VISIBLE_DEVICES",
            )
        self._fits(area, newest)
        nvcc = here.which("nvcc")
        area.ok("toolkit", f"nvcc is {nvcc}" if nvcc else "no nvcc on PATH: only needed to build Horovod for GPUs")

    def _enough(self, area: Area, found: int) -> None:
        """Compare with a partition that is this machine; of another one, GPUs are elsewhere."""
        wanted = self._partition
        if wanted is None or not wanted.gpus_per_node:
            return
        if wanted.scheduler == "local" and wanted.gpus_per_node > found:
            area.fail(
                "partition",
                f"the file of {wanted.name} says {plural(wanted.gpus_per_node, 'GPU')}, this machine has {found}",
                f"set gpus_per_node to {found} in the file, or run on a machine that has them",
            )
        elif wanted.scheduler != "local" and not found:
            area.ok("partition", f"GPUs are on the nodes of {wanted.name}; start the doctor in a job there to see them")
            about = self._software.about_torch
            if about is not None and about["cuda"] is None:
                area.warning(
                    "PyTorch and GPUs",
                    f"the installed PyTorch is built for CPUs: runs on {wanted.name} would leave its GPUs idle",
                    'load the CUDA module of the site, then make setup TORCH=cuda BUILDS="nccl mpi"; or set '
                    "gpus_per_node to 0 in the file",
                )

    def _visible(self, area: Area, count: int) -> None:
        text = self._here.environ.get("CUDA_VISIBLE_DEVICES")
        if text is None:
            return
        names = [part.strip() for part in text.split(",")]
        named = visible_gpus(self._here.environ) or ()
        heeded = [name for name in named if not name.isdecimal() or int(name) < count]  # a UUID is believed
        ignored = [name for name in names if name not in heeded]
        if names[0] in ("", "-1", "NoDevFiles"):
            area.warning(
                "CUDA_VISIBLE_DEVICES",
                f"it is {text!r}: all {plural(count, 'GPU')} are hidden and runs use the CPUs",
                "unset CUDA_VISIBLE_DEVICES",
            )
        elif len(set(names)) < len(names):
            area.fail(
                "CUDA_VISIBLE_DEVICES", f"it is {text!r}: a GPU is named twice, which hides all", "name each once"
            )
        elif ignored:
            area.fail(
                "CUDA_VISIBLE_DEVICES",
                f"it is {text!r}, but GPUs count from 0 to {count - 1}: {ignored[0]} and all after it are ignored",
                "unset CUDA_VISIBLE_DEVICES, or name existing ones",
            )
        else:
            area.ok("CUDA_VISIBLE_DEVICES", f"{text}: {len(names)} of {plural(count, 'GPU')}")

    def _fits(self, area: Area, newest: tuple[int, int] | None) -> None:
        if self._software.about_torch is None:
            return
        built = self._software.about_torch["cuda"]
        if built is None:
            area.warning(
                "PyTorch and GPUs",
                "there are GPUs, but the installed PyTorch is built for CPUs: runs use the CPUs",
                "install a PyTorch for CUDA (docs/guide.md), then make setup BUILDS=nccl",
            )
            return
        major = int(built.split(".")[0])
        if newest and major > newest[0]:
            area.fail(
                "PyTorch and driver",
                f"PyTorch is built for CUDA {built}, the driver is good for {newest[0]}.{newest[1]}",
                f"install a PyTorch built for CUDA {newest[0]}, or have the driver updated",
            )
        elif self._software.about_torch["device_problem"]:
            area.fail(
                "PyTorch and GPUs",
                f"PyTorch cannot compute on a GPU: {shortened(self._software.about_torch['device_problem'])}",
                "look with nvidia-smi: is the GPU in exclusive use, full, or broken; try another node",
            )
        elif not self._software.about_torch["devices"]:
            area.fail(
                "PyTorch and GPUs",
                "PyTorch sees no GPU, though the driver does",
                "unset CUDA_VISIBLE_DEVICES; in a job, ask for GPUs (--gres=gpu:1)",
            )
        else:
            area.ok("PyTorch and GPUs", f"PyTorch computes on {plural(self._software.about_torch['devices'], 'GPU')}")

    def nccl(self, area: Area) -> None:
        """Which NCCL PyTorch and the builds of Horovod have, and what the environment tells it."""
        own = self._software.about_torch and self._software.about_torch["nccl"]
        if own:
            area.ok("PyTorch", f"NCCL {'.'.join(map(str, own))}")
        elif self._software.about_torch is None:
            area.ok("PyTorch", "not looked at in a quick examination")
        else:
            area.ok("PyTorch", "none: this PyTorch is for CPUs")
        environ = self._here.environ
        slow = {
            "NCCL_IB_DISABLE": "InfiniBand is switched off: nodes communicate over sockets",
            "NCCL_P2P_DISABLE": "GPUs of one node do not communicate with each other directly",
            "NCCL_SHM_DISABLE": "shared memory is switched off: ranks of one node communicate over the network",
        }
        for name, effect in slow.items():
            if environ.get(name, "0") not in ("", "0"):
                area.warning(
                    name,
                    f"it is {environ[name]}: {effect}",
                    f"unset {name}, unless this machine needs it; then put it into the partition's environment, with "
                    "the reason under `because`",
                )
