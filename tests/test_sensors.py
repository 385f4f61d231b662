"""What sensors say, on fake /proc, /sys and NVML, and on this process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from make.wording import Golden

from horovod_study.measure import evidence
from horovod_study.measure.clock import now, sleep
from horovod_study.measure.sensors import THREADS_PER_SAMPLE, Gpus, HostSensor, Packages, Trees, visible_uuids

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class FakeProc:
    """A /proc that holds what a test says."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def process(
        self,
        pid: int,
        *,
        cpu_s: float = 0.0,
        began: int = 1,
        pages: int = 0,
        own_kb: int = 0,
        pss_kb: int | None = None,
        moved: tuple[int, int] | None = (0, 0),
        threads: dict[int, tuple[int, int]] | None = None,
        children: str = "",
        state: str = "R",
    ) -> None:
        threads = {pid: (0, 0)} if threads is None else threads
        fields = ["0"] * 50
        fields[0], fields[11], fields[12] = state, str(round(cpu_s * TICKS)), "0"
        fields[17], fields[19], fields[21] = str(len(threads)), str(began), str(pages)
        folder = self.root / str(pid)
        for thread, (voluntary, involuntary) in threads.items():
            task = folder / "task" / str(thread)
            task.mkdir(parents=True, exist_ok=True)
            (task / "status").write_text(
                f"Name:\tpython\nvoluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t{involuntary}\n"
            )
            (task / "children").write_text(children if thread == pid else "")
        (folder / "stat").write_text(f"{pid} (py (thon) {' '.join(fields)}\n")
        (folder / "status").write_text(f"Name:\tpython\nRssAnon:\t{own_kb:>8} kB\nThreads:\t{len(threads)}\n")
        if pss_kb is not None:
            (folder / "smaps_rollup").write_text(f"[rollup]\nRss: 1 kB\nPss:{pss_kb:>12} kB\nPss_Dirty: 7 kB\n")
        if moved is not None:
            (folder / "io").write_text(f"rchar: 9\nread_bytes: {moved[0]}\nwrite_bytes: {moved[1]}\n")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_a_tree_is_summed_over_the_process_and_what_it_started(proc: FakeProc) -> None:
    proc.process(7, cpu_s=5.0, pages=100, own_kb=1000, moved=(10, 20), children="8 ", pss_kb=1000)
    proc.process(8, cpu_s=1.0, pages=50, own_kb=500, moved=(1, 2), pss_kb=500)
    trees = Trees({3: 7}, proc=proc.root)

    first = trees.read(100.0)["rank 3"]
    proc.process(
        7, cpu_s=6.0, pages=100, own_kb=1000, moved=(110, 20), threads={7: (4, 5), 70: (1, 0)}, children="8 ", pss_kb=1
    )
    proc.process(8, cpu_s=1.5, pages=60, own_kb=600, moved=(1, 52), threads={8: (10, 0)}, pss_kb=1)
    second = trees.read(102.0)["rank 3"]

    assert first == {
        "processes": 2,
        "threads": 2,
        "rss_mb": pytest.approx(150 * PAGE / 1e6),
        "own_mb": pytest.approx(1500 * 1024 / 1e6),
        "pss_mb": pytest.approx(1500 * 1024 / 1e6),
    }
    assert second == {
        "processes": 2,
        "threads": 3,
        "rss_mb": pytest.approx(160 * PAGE / 1e6),
        "own_mb": pytest.approx(1600 * 1024 / 1e6),
        "pss_mb": None,  # read every ten seconds only
        "interval_s": 2.0,
        "cpu_percent": pytest.approx(75.0),
        "read_bytes": 100,
        "written_bytes": 50,
        "switches_over_s": 2.0,
        "voluntary_switches": 15,
        "involuntary_switches": 5,
    }
    assert trees.missing == {}


def test_a_child_that_comes_counts_from_its_start_and_one_that_goes_takes_its_count_along(proc: FakeProc) -> None:
    proc.process(7, cpu_s=5.0)
    trees = Trees({0: 7}, proc=proc.root)
    trees.read(0.0)
    proc.process(7, cpu_s=5.0, children="8")
    proc.process(8, cpu_s=0.4)
    came = trees.read(1.0)["rank 0"]
    proc.process(7, cpu_s=5.1)
    gone = trees.read(2.0)["rank 0"]

    assert (came["processes"], came["cpu_percent"]) == (2, pytest.approx(40.0))
    assert (gone["processes"], gone["cpu_percent"]) == (1, pytest.approx(10.0))


def test_a_number_that_is_used_again_is_another_process(proc: FakeProc) -> None:
    proc.process(7, cpu_s=50.0, began=1, children="8")
    proc.process(8, cpu_s=30.0, began=1)
    trees = Trees({0: 7}, proc=proc.root)
    trees.read(0.0)
    proc.process(8, cpu_s=0.2, began=2)
    row = trees.read(1.0)["rank 0"]

    assert row["cpu_percent"] == pytest.approx(20.0)
    assert trees.alive
    proc.process(7, began=9)
    assert not trees.alive
    assert trees.read(2.0) == {}


def test_the_sampler_is_no_part_of_the_rank_that_started_it(proc: FakeProc) -> None:
    proc.process(7, children=f"{os.getpid()}")
    proc.process(os.getpid(), pages=10_000)
    row = Trees({0: 7}, proc=proc.root).read(0.0)["rank 0"]

    assert (row["processes"], row["rss_mb"]) == (1, 0.0)


def test_many_threads_are_looked_at_in_some_samples_only(proc: FakeProc) -> None:
    threads = {7 + number: (10, 0) for number in range(2 * THREADS_PER_SAMPLE + 10)}
    proc.process(7, threads=threads, children="999")
    proc.process(999, pages=1)
    trees = Trees({0: 7}, proc=proc.root)
    rows = []
    for second in range(7):
        proc.process(7, threads=dict.fromkeys(threads, (10 + second, 0)), children="999")
        rows.append(trees.read(float(second))["rank 0"])

    assert [row.get("switches_over_s") for row in rows] == [None, None, None, 3.0, None, None, 3.0]
    assert [row.get("voluntary_switches") for row in rows][3::3] == [3 * len(threads)] * 2
    assert {row["processes"] for row in rows} == {2}


def test_what_cannot_be_read_of_a_process_is_named_and_left_out(proc: FakeProc, golden: Golden) -> None:
    proc.process(7, moved=None)
    (proc.root / "7" / "task" / "7" / "children").unlink()
    trees = Trees({0: 7, 1: 4711}, proc=proc.root)
    trees.read(0.0)
    row = trees.read(1.0)["rank 0"]

    assert "read_bytes" not in row
    assert row["pss_mb"] is None
    golden(
        trees.missing, "rank 1", "process 4711", "children", "disk", "/proc/PID/io", "pss_mb", "/proc/PID/smaps_rollup"
    )
    assert trees.alive  # rank 1 may be


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    """A process with a thread and a child, which does nothing until it gets a line and then works for ever."""
    program = """
import subprocess, sys, threading, time
child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); import time; time.sleep(60)"],
    stdout=subprocess.PIPE)
child.stdout.readline()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("up", flush=True)
sys.stdin.readline()
until = time.perf_counter() + 60
while time.perf_counter() < until:
    pass
"""
    line = [sys.executable, "-c", program]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield process
        process.kill()
    for child in children:
        os.kill(int(child), 9)


def test_a_real_process_is_seen_with_its_child_and_its_work(worker: "subprocess.Popen[str]") -> None:
    trees = Trees({0: worker.pid})
    began = now()
    idle = trees.read(began)["rank 0"]
    assert worker.stdin is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    busy: dict[str, Any] = {"cpu_percent": 0.0}
    while busy["cpu_percent"] < 5.0 and now() - began < 30.0:  # on a busy machine it gets its core late
        sleep(0.5)
        busy = trees.read(now(), shares=True)["rank 0"]

    assert (idle["processes"], idle["threads"]) == (2, 3)
    assert idle["rss_mb"] > 5.0
    assert 0.0 < busy["own_mb"] < busy["rss_mb"]
    assert 0.0 < busy["pss_mb"] < busy["rss_mb"]
    assert busy["cpu_percent"] >= 5.0
    worker.kill()
    worker.wait()
    assert not trees.alive


# ------------------------------------------------------------------------------------------------------------- host


class FakePsutil:
    def __init__(self) -> None:
        self.busy_s, self.cards = 0.0, {"lo": (0, 0), "eth0": (0, 0), "docker0": (0, 0)}

    def cpu_times(self) -> SimpleNamespace:
        return SimpleNamespace(user=self.busy_s, nice=0.0, system=1.0, idle=999.0, iowait=99.0, guest=self.busy_s)

    def virtual_memory(self) -> SimpleNamespace:
        return SimpleNamespace(available=3_000_000_000)

    def getloadavg(self) -> tuple[float, float, float]:
        return 1.5, 0.0, 0.0

    def net_io_counters(self, *, pernic: bool) -> dict[str, SimpleNamespace]:
        assert pernic
        return {name: SimpleNamespace(bytes_recv=r, bytes_sent=s) for name, (r, s) in self.cards.items()}


def test_the_host_sums_its_real_interfaces_and_keeps_loopback_apart(tmp_path: Path) -> None:
    (tmp_path / "net" / "eth0" / "device").mkdir(parents=True)
    ports = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1" / "counters"
    ports.mkdir(parents=True)
    (ports / "port_rcv_data").write_text("100\n")
    (ports / "port_xmit_data").write_text("1000\n")
    psutil = FakePsutil()
    host = HostSensor(net=tmp_path / "net", rdma=tmp_path / "infiniband", psutil=psutil)

    first = host.read(10.0)["host"]
    psutil.busy_s, psutil.cards = 3.0, {"lo": (7, 7), "eth0": (500, 600), "docker0": (9, 9)}
    (ports / "port_rcv_data").write_text("150\n")
    second = host.read(12.0)["host"]

    assert first == {"available_mb": 3000.0, "load1": 1.5}
    assert second == {
        "available_mb": 3000.0,
        "load1": 1.5,
        "interval_s": 2.0,
        "cpu_percent": 150.0,
        "received_bytes": 500,
        "sent_bytes": 600,
        "loopback_bytes": 7,
        "rdma_received_bytes": 200,  # the counter's unit is four bytes
        "rdma_sent_bytes": 0,
    }
    assert host.missing == {}


def test_without_real_interfaces_all_but_loopback_count(tmp_path: Path, golden: Golden) -> None:
    host = HostSensor(net=tmp_path, rdma=tmp_path / "none", psutil=FakePsutil())

    assert host.interfaces == ["docker0", "eth0"]
    golden(host.missing, "rdma", "InfiniBand", "RoCE")


def test_this_host_can_be_read() -> None:
    host = HostSensor()
    host.read(0.0)
    row = host.read(1.0)["host"]

    assert row["available_mb"] > 1.0
    assert row["cpu_percent"] >= 0.0


# ------------------------------------------------------------------------------------------------------------- GPUs


class FakeNvml:
    """NVML of one GPU that draws a constant power; `at_s` is its time."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, *, power_w: float = 100.0, broken: tuple[str, ...] = ()) -> None:
        self.power_w, self.at_s, self._broken = power_w, 0.0, broken

    def _check(self, name: str) -> None:
        if name in self._broken:
            raise self.NVMLError("Not Supported")

    def nvmlInit(self) -> None:
        self._check("init")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-abc":
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:
        return f"GPU-{'abcd'[number]}{number}"

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return handle.encode()

    def nvmlDeviceGetPciInfo(self, handle: str) -> SimpleNamespace:
        self._check("bus")
        return SimpleNamespace(busId="00000000:3B:00.0")

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"Fake 9000"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(gpu=87, memory=10)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(used=2_000_000_000)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return int(1000 * self.power_w)

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return {1: 1410, 2: 1593}[kind]

    def nvmlDeviceGetTemperature(self, handle: str, kind: int) -> int:
        return 55

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        self._check("processes")
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in (7, 4711)]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        self._check("energy")
        return int(1000 * (77_000 + self.power_w * self.at_s))


def test_a_gpu_says_use_memory_power_clocks_and_energy_since_the_start() -> None:
    nvml = FakeNvml()
    gpus = Gpus(["abc", "abc"], library=nvml)  # two ranks on one GPU; PyTorch leaves the prefix out
    gpus.read(0.0)
    nvml.at_s = 10.0

    assert gpus.devices == {"gpu 0": "Fake 9000"}
    assert gpus.read(10.0) == {
        "gpu 0": {
            "gpu_percent": 87.0,
            "gpu_memory_mb": 2000.0,
            "power_w": 100.0,
            "sm_mhz": 1410.0,
            "memory_mhz": 1593.0,
            "temperature_c": 55.0,
            "energy_j": 1000.0,
        }
    }
    assert gpus.missing == {}


def test_what_a_gpu_does_not_tell_is_left_out_with_its_reason(golden: Golden) -> None:
    gpus = Gpus(["GPU-abc", "GPU-other"], library=FakeNvml(broken=("energy",)))

    assert "energy_j" not in gpus.read(0.0)["gpu 0"]
    golden(gpus.missing, "gpu 0 energy_j", "Not Supported", "gpu 1", "GPU-other")


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, "a0 b1 c2 d3"),
        ("2,0", "c2 a0"),
        ("GPU-b1", "b1"),
        ("GPU-d,1", "d3 b1"),  # the beginning is enough
        ("3,-1,0", "d3"),
        ("MIG-12", ""),
        ("", ""),
        ("1,1", ""),
    ],
)
def test_the_gpus_that_a_program_sees(visible: str | None, uuids: str) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_uuids(environ, library=FakeNvml()) == [f"GPU-{name}" for name in uuids.split()]
    assert visible_uuids(environ, library=FakeNvml(broken=("init",))) == []


def test_the_place_of_a_gpu_on_the_bus() -> None:
    assert Gpus(["abc"], library=FakeNvml()).bus_ids() == {"gpu 0": "00000000:3B:00.0"}
    assert Gpus(["abc"], library=FakeNvml(broken=("bus",))).bus_ids() == {"gpu 0": ""}


def test_who_computes_on_a_gpu() -> None:
    assert Gpus(["abc"], library=FakeNvml()).processes() == {"gpu 0": [7, 4711]}
    silent = Gpus(["abc"], library=FakeNvml(broken=("processes",)))
    assert (silent.processes(), silent.missing) == ({}, {"gpu 0 processes": "Not Supported"})


@pytest.mark.parametrize(
    ("ranks", "holders"),
    [
        ([{"gpu": None}], {}),
        ([(7, "abc", [7, 4711])], {"n1": 1}),
        ([(7, "abc", [7])], {"n1": 0}),
        ([(7, "abc", [1007])], {"n1": 0}),  # a container sees the numbers of the machine, also of its own
        ([(7, "abc", [1007, 1008])], {"n1": 1}),
        ([(7, "abc", [])], {"n1": 0}),
        ([(7, "abc", None)], {"n1": None}),
        ([(7, "abc", [7]), (8, "abc", [7, 8])], {"n1": 0}),  # they share it, and the first looked first
        ([(7, "abc", [7]), (8, "def", [8, 1, 2])], {"n1": 2}),
        ([(7, "abc", None), (8, "def", [8, 1])], {"n1": 1}),
    ],
)
def test_processes_of_others_on_the_gpus_of_a_run(ranks: list[Any], holders: dict[str, int | None]) -> None:
    told = [
        {"host": "n1", "pid": rank[0], "gpu": {"uuid": rank[1], "processes": rank[2]}} if len(rank) == 3 else rank
        for rank in ranks
    ]
    assert evidence.gpu_holders(told) == holders
    assert (evidence.held(holders) is None) == (not any(holders.values()))
    uuids = [rank["gpu"] and rank["gpu"]["uuid"] for rank in told]
    assert (evidence.shared_gpu(told) is None) == (len(set(uuids)) == len(uuids))


def test_a_uuid_without_prefix_may_be_that_of_a_part_of_a_gpu(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """PyTorch tells 12345678-..., and the library knows GPU-... or MIG-...."""
    library, asked = FakeNvml(), []

    def handle(uuid: str) -> str:
        asked.append(uuid)
        if not uuid.startswith("MIG-"):
            raise FakeNvml.NVMLError("Not Found")
        return uuid

    monkeypatch.setattr(library, "nvmlDeviceGetHandleByUUID", handle)
    found = Gpus(["12-34"], library=library)

    assert asked == ["GPU-12-34", "MIG-12-34"]
    assert list(found.devices) == ["gpu 0"] and found.missing == {}
    golden(Gpus(["GPU-12-34"], library=library).missing, "gpu 0", "GPU-12-34")


def test_without_gpu_or_driver_the_reason_is_said(golden: Golden) -> None:
    golden(Gpus([], library=FakeNvml()).missing, "gpu", "GPU")
    without = Gpus(["abc"], library=FakeNvml(broken=("init",)))

    golden(without.missing, "gpu", "NVIDIA")
    assert without.read(0.0) == {}


# --------------------------------------------------------------------------------------------------------- packages


def package(root: Path, name: str, energy_uj: int, *, around_uj: int = 1_000_000_000, kind: str = "package-0") -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(f"{kind}\n")
    (folder / "max_energy_range_uj").write_text(f"{around_uj}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    return folder / "energy_uj"


def test_the_energy_counter_of_a_processor_may_go_round(tmp_path: Path, golden: Golden) -> None:
    counter = package(tmp_path, "intel-rapl:0", 900_000_000)
    package(tmp_path, "intel-rapl:0:0", 5, kind="dram")  # a part of it
    package(tmp_path, "intel-rapl:1", 5, kind="psys")  # the whole board, packages included
    packages = Packages(root=tmp_path)
    rows = [packages.read(0.0)]
    counter.write_text("950000000\n")
    rows.append(packages.read(1.0))
    counter.write_text("50000000\n")
    rows.append(packages.read(3.0))

    assert packages.devices == {"package 0": "processor package-0"}
    assert rows == [
        {"package 0": {"energy_j": 0.0}},
        {"package 0": {"interval_s": 1.0, "power_w": 50.0, "energy_j": 50.0}},
        {"package 0": {"interval_s": 2.0, "power_w": 50.0, "energy_j": 150.0}},
    ]
    counter.unlink()
    assert packages.read(4.0) == {}
    golden(packages.missing["package 0"], counter)


def test_why_there_is_no_energy_counter_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    (tmp_path / "empty").mkdir()
    counter = package(tmp_path / "locked", "intel-rapl:0", 5)
    read_text = Path.read_text

    def denied(path: Path, *args: Any, **kwargs: Any) -> str:
        if path == counter:  # as root, a file cannot be locked
            raise PermissionError(13, "Permission denied")
        return read_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", denied)

    golden([Packages(root=tmp_path / name).missing["package"] for name in ("none", "empty", "locked")], counter)
