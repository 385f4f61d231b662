"""What the sensors of a host say: process trees, the host itself, GPUs, and the energy counters of the processors.

Each sensor has `missing`, {quantity: reason} for what it cannot read, and `read(at_s)`, which returns {part: {column:
value}} in the columns of `records.system_schema`. Counts and means are over the time since the reading before, so the
first reading has none. A sensor that fails gives nothing and says why; it never raises. Nothing here needs PyTorch.
"""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from horovod_study.variables import visible_gpus

Rows = dict[str, dict[str, Any]]

_PROC = Path("/proc")
NET = Path("/sys/class/net")
_RDMA = Path("/sys/class/infiniband")
_POWERCAP = Path("/sys/class/powercap")

THREADS_PER_SAMPLE = 64
"""With more threads than this, they are looked at in every second, third, ... sample: it costs 25 us each."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class _Process:
    """What one process had used at the reading before."""

    began: int  # in ticks since the machine started: a number that is used again has another one
    cpu_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    switches: dict[int, tuple[int, int]] = field(default_factory=dict)  # of each thread
    children: list[int] = field(default_factory=list)


class Trees:
    """The processes of the ranks, each with all that it started.

    /proc is read directly: psutil looks for children in the list of all processes of the machine, and its context
    switches are those of one thread. Every thread has a file of its own, so with many of them context switches and new
    children are looked for in every few samples only.
    """

    def __init__(self, ranks: Mapping[int, int], *, proc: Path = _PROC) -> None:
        """`ranks`: {rank: number of its process}."""
        self.missing: dict[str, str] = {}
        self._ranks, self._proc = dict(ranks), str(proc)
        self._self = os.getpid()  # the sampler is a child of a rank, and no part of the training
        self._known: dict[int, _Process] = {}
        self._before_s: float | None = None
        self._shares_s: float | None = None
        self._threads_s: float | None = None
        self._until_threads = 0  # samples until threads are looked at again
        self._began = {}
        for rank, pid in self._ranks.items():
            stat = self._stat(pid)
            if stat is None:
                self.missing[f"rank {rank}"] = f"process {pid} is not to be seen from here (another container?)"
            else:
                self._began[rank] = int(stat[19])

    @property
    def alive(self) -> bool:
        """Whether any of the ranks still runs; one that never was to be seen may."""
        return any(self._is(rank) for rank in self._began) or len(self._began) < len(self._ranks)

    def _is(self, rank: int) -> bool:
        stat = self._stat(self._ranks[rank])
        return stat is not None and int(stat[19]) == self._began[rank]

    def read(self, at_s: float, *, shares: bool | None = None) -> Rows:
        """Return the rows "rank N" of those that run; `shares`: read the proportional memory (default: now and then).

        CPU and switches of a process that ended since the reading before are lost with it.
        """
        if shares is None:
            # It takes the kernel milliseconds, during which the process cannot map memory: it is read rarely.
            shares = self._shares_s is None or at_s - self._shares_s >= 10.0
        if shares:
            self._shares_s = at_s
        interval_s = None if self._before_s is None else at_s - self._before_s
        self._before_s = at_s
        threads = self._until_threads <= 0
        switches_over_s = None
        if threads:
            switches_over_s = None if self._threads_s is None else at_s - self._threads_s
            self._threads_s = at_s
        known: dict[int, _Process] = {}
        rows = {}
        for rank in self._began:
            if self._is(rank):
                row = self._tree(self._ranks[rank], known, shares=shares, threads=threads)
                rows[f"rank {rank}"] = _over(row, interval_s, switches_over_s, disk="disk" not in self.missing)
        self._known = known
        self._until_threads -= 1
        if threads:
            self._until_threads = sum(row["threads"] for row in rows.values()) // (THREADS_PER_SAMPLE + 1)
        return rows

    def _tree(self, root: int, known: dict[int, _Process], *, shares: bool, threads: bool) -> dict[str, Any]:
        """Return the sums over a process and all below it; counts are those since the reading before."""
        row: dict[str, Any] = {"processes": 0, "threads": 0, "rss_mb": 0.0, "own_mb": 0.0}
        row |= {"voluntary_switches": 0, "involuntary_switches": 0, "read_bytes": 0, "written_bytes": 0, "cpu_s": 0.0}
        pss_mb: float | None = 0.0 if shares else None
        waiting = [root]
        while waiting:
            pid = waiting.pop()
            stat = self._stat(pid)
            if stat is None or pid in known or pid == self._self:
                continue
            before = self._known.get(pid)
            if before is None or before.began != int(stat[19]):
                before = _Process(began=int(stat[19]))
            present = _Process(began=before.began, cpu_s=(int(stat[11]) + int(stat[12])) / _TICKS_PER_S)
            known[pid] = present
            row["processes"] += 1
            row["threads"] += int(stat[17])
            row["rss_mb"] += int(stat[21]) * _PAGE_BYTES / 1e6
            _, _, own = (self._text(f"{pid}/status") or "").partition("RssAnon:")  # neither of files nor shared
            row["own_mb"] += int(own.split(None, 1)[0]) * 1024 / 1e6 if own else 0.0
            row["cpu_s"] += present.cpu_s - before.cpu_s
            if threads:
                for thread in self._threads(pid):
                    if switches := _switches(self._text(f"{pid}/task/{thread}/status") or ""):
                        present.switches[thread] = switches
                        earlier = before.switches.get(thread, (0, 0))
                        row["voluntary_switches"] += switches[0] - earlier[0]
                        row["involuntary_switches"] += switches[1] - earlier[1]
                    present.children += self._children(pid, thread)
            else:
                present.switches, present.children = before.switches, before.children
            waiting += present.children
            if (moved := self._moved(pid)) is not None:
                present.read_bytes, present.written_bytes = moved
                row["read_bytes"] += moved[0] - before.read_bytes
                row["written_bytes"] += moved[1] - before.written_bytes
            if pss_mb is not None:
                share = self._share_mb(pid)
                pss_mb = None if share is None else pss_mb + share
        return {**row, "pss_mb": pss_mb}

    def _text(self, path: str) -> str | None:
        # Without Python's buffers and decoders this takes half the time, and there are hundreds of such files.
        try:
            descriptor = os.open(f"{self._proc}/{path}", os.O_RDONLY)
        except OSError:
            return None
        try:
            content = b""
            while chunk := os.read(descriptor, 65536):
                content += chunk
        except OSError:  # the process ended in between, or it may be listed but not read
            return None
        finally:
            os.close(descriptor)
        return content.decode(errors="replace")

    def _stat(self, pid: int) -> list[str] | None:
        """Return /proc/PID/stat from the state on (see proc(5), whose field n is [n - 3]), None if it has ended."""
        text = self._text(f"{pid}/stat")
        fields = None if text is None else text.rpartition(")")[2].split()
        return None if not fields or fields[0] in "ZX" else fields

    def _threads(self, pid: int) -> list[int]:
        try:
            return [int(name) for name in os.listdir(f"{self._proc}/{pid}/task")]
        except OSError:
            return []

    def _children(self, pid: int, thread: int) -> list[int]:
        text = self._text(f"{pid}/task/{thread}/children")
        if text is None and pid == thread and Path(f"{self._proc}/{pid}/stat").exists():
            self.missing["children"] = "this kernel does not list the children of a process"
        return [int(child) for child in (text or "").split()]

    def _moved(self, pid: int) -> tuple[int, int] | None:
        """Return the bytes that a process has read from and written to disks."""
        text = self._text(f"{pid}/io")
        try:
            numbers = dict(line.split(": ") for line in (text or "").splitlines())
            return int(numbers["read_bytes"]), int(numbers["write_bytes"])
        except (KeyError, ValueError):
            if self._text(f"{pid}/stat") is not None:
                self.missing["disk"] = "/proc/PID/io cannot be read"
            return None

    def _share_mb(self, pid: int) -> float | None:
        for line in (self._text(f"{pid}/smaps_rollup") or "").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
        if self._text(f"{pid}/stat") is not None:
            self.missing["pss_mb"] = "/proc/PID/smaps_rollup cannot be read"
            return None
        return 0.0  # it has ended in between


def _over(
    row: dict[str, Any], interval_s: float | None, switches_over_s: float | None, *, disk: bool
) -> dict[str, Any]:
    """Return the row of a tree without what nothing is known of: counts need a reading before."""
    cpu_s = row.pop("cpu_s")
    switches = {name: row.pop(name) for name in ("voluntary_switches", "involuntary_switches")}
    moved = {name: row.pop(name) for name in ("read_bytes", "written_bytes")}
    if interval_s:
        row |= {"interval_s": interval_s, "cpu_percent": 100 * cpu_s / interval_s, **(moved if disk else {})}
    if switches_over_s:
        row |= {"switches_over_s": switches_over_s, **switches}
    return row


def _switches(status: str) -> tuple[int, int] | None:
    """Return the voluntary and involuntary context switches of a thread from its /proc/PID/task/TID/status."""
    lines = status.splitlines()[-2:]
    try:
        return int(lines[0].split()[1]), int(lines[1].split()[1])
    except (IndexError, ValueError):
        return None


class HostSensor:
    """The host as a whole: processor time, memory, load, and what passed its network."""

    def __init__(self, *, net: Path = NET, rdma: Path = _RDMA, psutil: Any = None) -> None:
        """`psutil` stands in for the library."""
        if psutil is None:
            import psutil
        self.missing: dict[str, str] = {}
        self._psutil = psutil
        self._real = sorted(path.parent.name for path in net.glob("*/device")) if net.is_dir() else []
        self._ports = sorted(rdma.glob("*/ports/*/counters")) if rdma.is_dir() else []
        if not self._ports:
            self.missing["rdma"] = "no InfiniBand or RoCE device"
        self._before_s: float | None = None
        self._before: dict[str, float] = {}

    @property
    def interfaces(self) -> list[str]:
        """The network interfaces whose bytes are summed: those of devices, or all but loopback where none is real."""
        found = self._psutil.net_io_counters(pernic=True)
        others = [name for name in sorted(found) if name != "lo"]
        return [name for name in others if name in self._real] or others

    def read(self, at_s: float) -> Rows:
        """Return the row "host"."""
        present = self._counters()
        row: dict[str, Any] = {
            "available_mb": self._psutil.virtual_memory().available / 1e6,
            "load1": self._psutil.getloadavg()[0],
        }
        if self._before_s is not None and at_s > self._before_s:
            interval_s = at_s - self._before_s
            grown = {
                name: max(0, value - self._before[name]) for name, value in present.items() if name in self._before
            }
            row["interval_s"] = interval_s
            row["cpu_percent"] = 100 * grown.pop("cpu_s") / interval_s
            row |= {name: int(value) for name, value in grown.items()}
        self._before_s, self._before = at_s, present
        return {"host": row}

    def _counters(self) -> dict[str, float]:
        times = self._psutil.cpu_times()
        # `user` has the time of guests in it. Time that the machine below took from this one is not idle either.
        worked = ("user", "nice", "system", "irq", "softirq", "steal")
        found: dict[str, float] = {"cpu_s": sum(getattr(times, name, 0.0) for name in worked)}
        cards = self._psutil.net_io_counters(pernic=True)
        used = [cards[name] for name in self.interfaces]
        found["received_bytes"] = sum(card.bytes_recv for card in used)
        found["sent_bytes"] = sum(card.bytes_sent for card in used)
        if "lo" in cards:
            found["loopback_bytes"] = cards["lo"].bytes_sent
        if self._ports:
            with suppress(OSError, ValueError):
                # The unit of these counters is four bytes.
                for name, counter in (("rdma_received_bytes", "port_rcv_data"), ("rdma_sent_bytes", "port_xmit_data")):
                    words = sum(int((port / counter).read_text()) for port in self._ports)
                    found[name] = 4 * words
        return found


class Gpus:
    """The GPUs that the ranks of this host use, through NVIDIA's management library."""

    def __init__(self, uuids: Sequence[str], *, library: Any = None) -> None:
        """`uuids` name the GPUs, with or without their prefix "GPU-"; `library` stands in for pynvml."""
        self.missing: dict[str, str] = {}
        self.devices: dict[str, str] = {}
        self._handles: dict[str, Any] = {}
        self._first_mj: dict[str, int] = {}
        if not uuids:
            self.missing["gpu"] = "the ranks of this host use no GPU"
            return
        self._nvml, why = _begun(library)
        if why:
            self.missing["gpu"] = why
            return
        for number, uuid in enumerate(dict.fromkeys(uuids)):
            part = f"gpu {number}"
            try:
                handle = self._handle(uuid)
                self.devices[part] = _text(self._nvml.nvmlDeviceGetName(handle))
                self._handles[part] = handle
            except self._nvml.NVMLError as error:
                self.missing[part] = f"{uuid} is not to be seen from here ({error})"

    def _handle(self, uuid: str) -> Any:
        """Return the library's handle; a UUID without prefix, as PyTorch tells it, may be that of a part of a GPU."""
        names = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(names[0])
        except self._nvml.NVMLError:
            if len(names) == 1:
                raise
            with suppress(self._nvml.NVMLError):
                return self._nvml.nvmlDeviceGetHandleByUUID(names[1])
            raise

    def _asked(self, what: str, ask: Callable[[Any], Any], handle: Any) -> Any:
        """Return what the library answers, None where it refuses, which is `missing` then."""
        try:
            return ask(handle)
        except self._nvml.NVMLError as error:
            self.missing[what] = str(error)
            return None

    def bus_ids(self) -> dict[str, str]:
        """Return {part: address on the PCI bus}; "" for one that does not tell."""
        told = {
            part: self._asked(f"{part} bus", self._nvml.nvmlDeviceGetPciInfo, handle)
            for part, handle in self._handles.items()
        }
        return {part: "" if info is None else _text(info.busId) for part, info in told.items()}

    def processes(self) -> dict[str, list[int]]:
        """Return {part: numbers of the processes that compute on it}; a part that does not tell is left out.

        In a container they may be the numbers of the machine around it, or none.
        """
        told = {
            part: self._asked(f"{part} processes", self._nvml.nvmlDeviceGetComputeRunningProcesses, handle)
            for part, handle in self._handles.items()
        }
        return {part: [each.pid for each in those] for part, those in told.items() if those is not None}

    def read(self, at_s: float) -> Rows:
        """Return the rows "gpu N"; what one of them does not tell is left out, and `missing` says why."""
        del at_s
        return {part: self._one(part, handle) for part, handle in self._handles.items()}

    def _one(self, part: str, handle: Any) -> dict[str, Any]:
        nvml = self._nvml
        asked: dict[str, Callable[[Any], float]] = {
            "gpu_percent": lambda gpu: float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
            "gpu_memory_mb": lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used / 1e6,
            "power_w": lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
            "sm_mhz": lambda gpu: float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
            "memory_mhz": lambda gpu: float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)),
            "temperature_c": lambda gpu: float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
            "energy_j": lambda gpu: self._energy_j(part, gpu),
        }
        row = {name: self._asked(f"{part} {name}", ask, handle) for name, ask in asked.items()}
        return {name: value for name, value in row.items() if value is not None}

    def _energy_j(self, part: str, handle: Any) -> float:
        energy_mj = self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        return float(energy_mj - self._first_mj.setdefault(part, energy_mj)) / 1e3


def _begun(library: Any) -> tuple[Any, str]:
    """Return NVIDIA's management library, ready to be asked, and "" or why it cannot be."""
    try:
        if library is None:
            library = importlib.import_module("pynvml")
        library.nvmlInit()
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    except library.NVMLError as error:
        return None, f"no NVIDIA driver ({error})"
    return library, ""


def visible_uuids(environ: Mapping[str, str], *, library: Any = None) -> list[str]:
    """Return the UUIDs of the GPUs that a program sees, in their order on the bus, which is CUDA's for equal ones.

    [] where nobody tells. `library` stands in for pynvml. Parts of a GPU (MIG) are left out.
    """
    nvml, why = _begun(library)
    if why:
        return []
    handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    names = visible_gpus(environ)
    if names is None:
        return uuids
    known = dict(enumerate(uuids))
    found = [
        known.get(int(name), "") if name.isdecimal() else next((each for each in uuids if each.startswith(name)), "")
        for name in names
    ]
    return [uuid for uuid in found if uuid]


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


class Packages:
    """The processors' own energy counters (RAPL), which Linux shows below /sys/class/powercap.

    A package is a processor with all its cores, whoever runs on them; memory modules are not in it.
    """

    def __init__(self, *, root: Path = _POWERCAP) -> None:
        self.missing: dict[str, str] = {}
        self.devices: dict[str, str] = {}
        self._folders: dict[str, tuple[Path, int]] = {}
        self._before: dict[str, tuple[float, int]] = {}
        self._total_uj: dict[str, int] = {}
        if not root.is_dir():
            self.missing["package"] = "this kernel shows no energy counters (no powercap)"
            return
        for folder in sorted(root.glob("intel-rapl:*")):
            if folder.name.count(":") > 1:  # a part of a package
                continue
            try:
                name = (folder / "name").read_text().strip()
                if not name.startswith("package"):  # psys is the whole board, packages included
                    continue
                around_uj = int((folder / "max_energy_range_uj").read_text())
                int((folder / "energy_uj").read_text())
            except PermissionError:
                self.missing["package"] = (
                    f"permission denied on {folder / 'energy_uj'}; the administrator can make it readable"
                )
                continue
            except (OSError, ValueError) as error:
                self.missing["package"] = f"{folder / 'energy_uj'} cannot be read ({error})"
                continue
            part = f"package {len(self._folders)}"
            self.devices[part] = f"processor {name}"
            self._folders[part] = folder, around_uj
        if not self._folders:
            self.missing.setdefault("package", "this processor has no energy counter")

    def read(self, at_s: float) -> Rows:
        """Return the rows "package N": energy, and the mean power since the reading before."""
        rows: Rows = {}
        for part, (folder, around_uj) in self._folders.items():
            try:
                energy_uj = int((folder / "energy_uj").read_text())
            except (OSError, ValueError) as error:
                self.missing[part] = f"{folder / 'energy_uj'} cannot be read any more ({error})"
                continue
            row: dict[str, Any] = {}
            if part in self._before:
                before_s, before_uj = self._before[part]
                used_uj = energy_uj - before_uj
                if used_uj < 0:  # the counter went round
                    used_uj += around_uj
                self._total_uj[part] += used_uj
                if at_s > before_s:
                    row["interval_s"] = at_s - before_s
                    row["power_w"] = used_uj / 1e6 / (at_s - before_s)
            else:
                self._total_uj[part] = 0
            self._before[part] = at_s, energy_uj
            row["energy_j"] = self._total_uj[part] / 1e6
            rows[part] = row
        return rows
