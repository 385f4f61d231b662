"""What the sensors of a host say: process trees, the host itself, GPUs, and the energy counters of the processors.

Each sensor has `missing`, {quantity: reason} for what it cannot read, and `read(at_s)`, which returns {part: {column:
value}} in the columns of `records.system_schema`. Counts and means are over the time since the reading before, so the
first reading has none. A sensor that fails gives nothing and says why; it never raises. Nothing here needs PyTorch.
"""

import importlib
import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from horovod_study.config.variables import visible_gpus

Rows = dict[str, dict[str, Any]]

_PROC = Path("/proc")
NET = Path("/sys/class/net")
_RDMA = Path("/sys/class/infiniband")
_POWERCAP = Path("/sys/class/powercap")

THREADS_PER_SAMPLE = 64
"""With more threads than this, they are looked at in every second, third, ... sample: it costs 25 us each."""
_SWITCHES = ("voluntary_switches", "involuntary_switches")
_MOVED = ("read_bytes", "written_bytes")


class Trees:
    """The processes of the ranks, each with all that it started.

    /proc is read directly: psutil looks for children in the list of all processes of the machine, and its context
    switches are those of one thread. Every thread has a file of its own, so with many of them context switches and new
    children are looked for in every few samples only.
    """

    def __init__(self, ranks: Mapping[int, int], *, proc: Path = _PROC) -> None:
        """`ranks`: {rank: number of its process}."""
        self._ranks, self._proc = dict(ranks), str(proc)
        self._counts: dict[tuple[int, str, int, str], float] = {}  # by process, when it began, thread, and what
        self._children: dict[tuple[int, str], list[int]] = {}
        self._at_s: dict[str, float] = {}  # of the last sample, and the last ones with shares and with threads
        self._until_threads = 0  # samples until threads are looked at again
        stats = {rank: self._stat(pid) for rank, pid in self._ranks.items()}
        # When a process began: a number that is used again has another time.
        self._began = {rank: stat[19] for rank, stat in stats.items() if stat}
        why = "is not to be seen from here (another container?)"
        self.missing = {f"rank {n}": f"process {pid} {why}" for n, pid in self._ranks.items() if n not in self._began}

    @property
    def alive(self) -> bool:
        """Whether any of the ranks still runs; one that never was to be seen may."""
        return any(self._is(rank) for rank in self._began) or len(self._began) < len(self._ranks)

    def _is(self, rank: int) -> bool:
        return self._stat(self._ranks[rank])[19:20] == [self._began[rank]]

    def read(self, at_s: float, *, shares: bool | None = None) -> Rows:
        """Return the rows "rank N" of those that run; `shares`: read the proportional memory (default: now and then).

        CPU and switches of a process that ended since the reading before are lost with it.
        """
        if shares is None:
            # It takes the kernel milliseconds, during which the process cannot map memory: it is read rarely.
            shares = at_s - self._at_s.get("shares", -math.inf) >= 10.0
        threads = self._until_threads <= 0
        since = {name: at_s - before_s for name, before_s in self._at_s.items() if before_s != at_s}
        looked = {"sample": True, "shares": shares, "threads": threads}
        self._at_s |= {name: at_s for name, done in looked.items() if done}
        counts: dict[tuple[int, str, int, str], float] = {}
        rows = {}
        for rank in filter(self._is, self._began):
            row, grown = self._tree(self._ranks[rank], counts, shares=shares, threads=threads)
            if interval_s := since.get("sample"):
                row |= {"interval_s": interval_s, "cpu_percent": 100 * grown["cpu_s"] / interval_s}
                row |= {} if "disk" in self.missing else {name: grown[name] for name in _MOVED}
            if threads and "threads" in since:
                row |= {"switches_over_s": since["threads"], **{name: grown[name] for name in _SWITCHES}}
            rows[f"rank {rank}"] = row
        if not threads:
            counts |= {key: value for key, value in self._counts.items() if key[3] in _SWITCHES}
        self._counts, self._until_threads = counts, self._until_threads - 1
        if threads:
            self._until_threads = sum(row["threads"] for row in rows.values()) // (THREADS_PER_SAMPLE + 1)
        return rows

    def _tree(
        self, root: int, counts: dict[tuple[int, str, int, str], float], *, shares: bool, threads: bool
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """Return the sums over a process and all below it, and by how much its counts have grown; fill `counts`."""
        row: dict[str, Any] = {"processes": 0, "threads": 0, "rss_mb": 0.0, "own_mb": 0.0}
        row["pss_mb"] = 0.0 if shares else None
        grown: dict[str, float] = defaultdict(float)
        waiting, seen = [root], {os.getpid()}  # the sampler is a child of a rank, and no part of the training
        while waiting:
            pid = waiting.pop()
            if pid in seen or not (stat := self._stat(pid)):
                continue
            seen.add(pid)
            row["processes"] += 1
            row["threads"] += int(stat[17])
            row["rss_mb"] += int(stat[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6
            row["own_mb"] += _kb(self._text(f"{pid}/status"), "RssAnon:") / 1e3  # neither of files nor shared
            if shares and row["pss_mb"] is not None:
                rollup = self._text(f"{pid}/smaps_rollup")
                lacks = self._lacks(pid, "pss_mb", rollup, "smaps_rollup")
                row["pss_mb"] = None if lacks else row["pss_mb"] + _kb(rollup, "Pss:") / 1e3
            ticks = int(stat[11]) + int(stat[12])
            found: dict[tuple[int, str], float] = {(0, "cpu_s"): ticks / os.sysconf("SC_CLK_TCK")}
            io = self._text(f"{pid}/io")
            if not self._lacks(pid, "disk", io, "io"):
                found |= {(0, _MOVED[0]): _kb(io, "read_bytes:", 1), (0, _MOVED[1]): _kb(io, "write_bytes:", 1)}
            if threads:
                self._children[pid, stat[19]] = []
                tasks: list[str] = []
                with suppress(OSError):
                    tasks = os.listdir(f"{self._proc}/{pid}/task")
                for thread in map(int, tasks):
                    with suppress(ValueError):  # it has ended
                        *_, voluntary, _, involuntary = self._text(f"{pid}/task/{thread}/status").split()
                        found |= {(thread, _SWITCHES[0]): int(voluntary), (thread, _SWITCHES[1]): int(involuntary)}
                    self._children[pid, stat[19]] += map(int, self._text(f"{pid}/task/{thread}/children").split())
                if not os.path.exists(f"{self._proc}/{pid}/task/{pid}/children") and self._stat(pid):
                    self.missing["children"] = "this kernel does not list the children of a process"
            for (thread, name), value in found.items():
                counts[pid, stat[19], thread, name] = value
                grown[name] += value - self._counts.get((pid, stat[19], thread, name), 0)
            waiting += self._children.get((pid, stat[19]), [])
        return row, grown

    def _text(self, path: str) -> str:
        """Return what a file says, "" of a process that has ended, or that may be listed but not read."""
        # Without Python's buffers and decoders this takes half the time, and there are hundreds of such files.
        with suppress(OSError), open(f"{self._proc}/{path}", "rb", buffering=0) as file:
            return file.readall().decode(errors="replace")
        return ""

    def _lacks(self, pid: int, what: str, text: str, file: str) -> bool:
        """Return whether a process that runs does not show a file, which is `missing` then."""
        if text or not self._stat(pid):
            return False
        self.missing[what] = f"/proc/PID/{file} cannot be read"
        return True

    def _stat(self, pid: int) -> list[str]:
        """Return /proc/PID/stat from the state on (see proc(5), whose field n is [n - 3]), [] if it has ended."""
        fields = self._text(f"{pid}/stat").rpartition(")")[2].split()
        return [] if fields[:1] in (["Z"], ["X"]) else fields


def _kb(text: str, key: str, unit: float = 1.024) -> float:
    """Return the number behind a key of a file of /proc, which counts in 1024 bytes unless said; 0 without it."""
    _, _, rest = text.partition(key)
    return int(rest.split(None, 1)[0]) * unit if rest else 0.0


class HostSensor:
    """The host as a whole: processor time, memory, load, and what passed its network."""

    def __init__(self, *, net: Path = NET, rdma: Path = _RDMA, psutil: Any = None) -> None:
        """`psutil` stands in for the library."""
        self._psutil = psutil or importlib.import_module("psutil")
        self._real = {path.parent.name for path in net.glob("*/device")}
        self._ports = sorted(rdma.glob("*/ports/*/counters"))
        self.missing = {} if self._ports else {"rdma": "no InfiniBand or RoCE device"}
        self._before: dict[str, float] = {}

    @property
    def interfaces(self) -> list[str]:
        """The network interfaces whose bytes are summed: those of devices, or all but loopback where none is real."""
        others = [name for name in sorted(self._psutil.net_io_counters(pernic=True)) if name != "lo"]
        return [name for name in others if name in self._real] or others

    def read(self, at_s: float) -> Rows:
        """Return the row "host"."""
        asked, before = self._psutil, self._before
        times, cards = asked.cpu_times(), asked.net_io_counters(pernic=True)
        # `user` has the time of guests in it. Time that the machine below took from this one is not idle either.
        worked = ("user", "nice", "system", "irq", "softirq", "steal")
        found = {"interval_s": at_s, "cpu_s": sum(getattr(times, name, 0.0) for name in worked)}
        used = [cards[name] for name in self.interfaces if name in cards]
        found["received_bytes"] = sum(each.bytes_recv for each in used)
        found["sent_bytes"] = sum(each.bytes_sent for each in used)
        found |= {"loopback_bytes": cards["lo"].bytes_sent} if "lo" in cards else {}
        with suppress(OSError, ValueError):
            for name, counter in (("rdma_received_bytes", "port_rcv_data"), ("rdma_sent_bytes", "port_xmit_data")):
                if words := [int((port / counter).read_text()) for port in self._ports]:
                    found[name] = 4 * sum(words)  # the unit of these counters is four bytes
        self._before = found
        row = {"available_mb": asked.virtual_memory().available / 1e6, "load1": asked.getloadavg()[0]}
        grown = {name: max(0, value - before[name]) for name, value in found.items() if name in before}
        if interval_s := grown.pop("interval_s", 0.0):
            row |= {"interval_s": interval_s, "cpu_percent": 100 * grown.pop("cpu_s") / interval_s}
            row |= {name: int(value) for name, value in grown.items()}
        return {"host": row}


class Gpus:
    """The GPUs that the ranks of this host use, through NVIDIA's management library."""

    def __init__(self, uuids: Sequence[str], *, library: Any = None) -> None:
        """`uuids` name the GPUs, with or without their prefix "GPU-"; `library` stands in for pynvml."""
        self.missing, self.devices = dict[str, str](), dict[str, str]()
        self._handles, self._first_j = dict[str, Any](), dict[str, float]()
        self._nvml: Any
        self._nvml, why = _begun(library) if uuids else (None, "the ranks of this host use no GPU")
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
        asked, whole = self._nvml.nvmlDeviceGetHandleByUUID, uuid.startswith(("GPU-", "MIG-"))
        try:
            return asked(uuid if whole else f"GPU-{uuid}")
        except self._nvml.NVMLError:
            with suppress(self._nvml.NVMLError):
                if not whole:
                    return asked(f"MIG-{uuid}")
            raise

    def _asked(self, what: str, ask: Callable[[Any], Any], handle: Any) -> Any:
        """Return what the library answers, None where it refuses, which is `missing` then."""
        try:
            return ask(handle)
        except self._nvml.NVMLError as error:
            self.missing[what] = str(error)
            return None

    def _all(self, what: str, name: str) -> dict[str, Any]:
        return {
            part: self._asked(f"{part} {what}", getattr(self._nvml, name), each) for part, each in self._handles.items()
        }

    def bus_ids(self) -> dict[str, str]:
        """Return {part: address on the PCI bus}; "" for one that does not tell."""
        told = self._all("bus", "nvmlDeviceGetPciInfo")
        return {part: "" if info is None else _text(info.busId) for part, info in told.items()}

    def processes(self) -> dict[str, list[int]]:
        """Return {part: numbers of the processes that compute on it}; a part that does not tell is left out.

        In a container they may be the numbers of the machine around it, or none.
        """
        told = self._all("processes", "nvmlDeviceGetComputeRunningProcesses")
        return {part: [each.pid for each in those] for part, those in told.items() if those is not None}

    def read(self, at_s: float) -> Rows:
        """Return the rows "gpu N"; what one of them does not tell is left out, and `missing` says why."""
        del at_s
        nvml = self._nvml
        asked: dict[str, Callable[[Any], float]] = {
            "gpu_percent": lambda gpu: float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
            "gpu_memory_mb": lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used / 1e6,
            "power_w": lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
            "sm_mhz": lambda gpu: float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
            "memory_mhz": lambda gpu: float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)),
            "temperature_c": lambda gpu: float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
            "energy_j": lambda gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3,
        }
        rows: Rows = {}
        for part, handle in self._handles.items():
            told = {name: self._asked(f"{part} {name}", ask, handle) for name, ask in asked.items()}
            rows[part] = {name: value for name, value in told.items() if value is not None}
            if "energy_j" in rows[part]:
                rows[part]["energy_j"] -= self._first_j.setdefault(part, rows[part]["energy_j"])
        return rows


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
    if (names := visible_gpus(environ)) is None:
        return uuids
    named = [[each for n, each in enumerate(uuids) if name == str(n) or each.startswith(name)] for name in names]
    return [found[0] for found in named if found]


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


class Packages:
    """The processors' own energy counters (RAPL), which Linux shows below /sys/class/powercap.

    A package is a processor with all its cores, whoever runs on them; memory modules are not in it.
    """

    def __init__(self, *, root: Path = _POWERCAP) -> None:
        self.missing, self.devices = dict[str, str](), dict[str, str]()
        self._counters = dict[str, tuple[Path, int]]()  # each with the value at which it begins again
        self._before = dict[str, tuple[float, int, int]]()  # when, the counter, and all since the first reading
        for folder in sorted(root.glob("intel-rapl:*")):
            counter = folder / "energy_uj"
            try:
                # A second colon is a part of a package, and psys the whole board, packages included.
                if folder.name.count(":") > 1 or not (name := (folder / "name").read_text().strip()).startswith(
                    "package"
                ):
                    continue
                counter.read_text()
                around_uj = int((folder / "max_energy_range_uj").read_text())
                part = f"package {len(self._counters)}"
            except (OSError, ValueError) as error:
                denied = f"permission denied on {counter}; the administrator can make it readable"
                broken = not isinstance(error, PermissionError)
                self.missing["package"] = f"{counter} cannot be read ({error})" if broken else denied
                continue
            self.devices[part], self._counters[part] = f"processor {name}", (counter, around_uj)
        if not self._counters:
            why = "this processor has no energy counter"
            why = why if root.is_dir() else "this kernel shows no energy counters (no powercap)"
            self.missing.setdefault("package", why)

    def read(self, at_s: float) -> Rows:
        """Return the rows "package N": energy, and the mean power since the reading before."""
        rows: Rows = {}
        for part, (counter, around_uj) in self._counters.items():
            try:
                energy_uj = int(counter.read_text())
            except (OSError, ValueError) as error:
                self.missing[part] = f"{counter} cannot be read any more ({error})"
                continue
            before_s, before_uj, total_uj = self._before.get(part, (at_s, energy_uj, 0))
            used_uj = energy_uj - before_uj + around_uj * (energy_uj < before_uj)  # it goes round
            self._before[part] = at_s, energy_uj, total_uj + used_uj
            rows[part] = {"energy_j": (total_uj + used_uj) / 1e6}
            if at_s > before_s:
                rows[part] |= {"interval_s": at_s - before_s, "power_w": used_uj / 1e6 / (at_s - before_s)}
        return rows
