"""Which cores a cell gets, and who else uses them: the same cell the same cores, and other load told with its names."""

import math
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_sensors import FakeNvml

from horovod_study.cluster import process
from horovod_study.config.run import Cell, Placement
from horovod_study.measure import evidence
from horovod_study.measure.environment import numbers_of
from horovod_study.strain.options import StrainConfig

only_linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot pin processes")


def make_cell(workers: int, **options) -> Cell:
    placement = Placement(workers=workers, workers_per_node=workers)
    return Cell(config=StrainConfig(**options), runtime="horovod/mpi", placement=placement)


def test_physical_cores_come_before_their_second_threads(tmp_path):
    """Four cores with two threads each, numbered as most systems do: 0-3, and again 4-7."""
    for core in range(8):
        (tmp_path / f"cpu{core}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{core}" / "topology" / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")

    assert [0, 1, 2, 3, 4, 5, 6, 7] == process.cores_in_order(range(8), system=tmp_path)
    assert [1, 2, 3, 4, 5] == process.cores_in_order([1, 2, 3, 4, 5], system=tmp_path), (
        "4 is the first of its core here"
    )


def test_threads_numbered_side_by_side_are_taken_apart(tmp_path):
    for core in range(4):
        (tmp_path / f"cpu{core}" / "topology").mkdir(parents=True)
        pair = core // 2 * 2
        (tmp_path / f"cpu{core}" / "topology" / "thread_siblings_list").write_text(f"{pair}-{pair + 1}\n")

    assert [0, 2, 1, 3] == process.cores_in_order(range(4), system=tmp_path)


def test_unreadable_topology_gives_the_order_of_the_numbers(tmp_path):
    assert [0, 1, 3] == process.cores_in_order([3, 0, 1], system=tmp_path)


@given(workers=st.integers(1, 12), per_worker=st.integers(1, 4), threads=st.integers(1, 4), offered=st.integers(1, 64))
def test_cell_gets_as_many_cores_as_it_needs_always_the_same_ones(workers, per_worker, threads, offered):
    cell = make_cell(workers, threads=threads)
    available = list(range(offered))

    cores = process.cell_cores(cell, cores_per_worker=per_worker, available=available)

    needed = workers * max(per_worker, threads)
    assert (None if needed >= offered else tuple(range(needed))) == cores
    assert cores == process.cell_cores(cell, cores_per_worker=per_worker, available=available)


def test_loader_processes_get_cores_of_their_own():
    cell = make_cell(2, loader="dataloader", loader_processes=2)

    assert tuple(range(6)) == process.cell_cores(cell, cores_per_worker=1, available=range(8))


class Nvml(FakeNvml):
    """NVML of four GPUs, two on each processor."""

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid

    def nvmlDeviceGetPciInfo(self, handle):
        number = int(handle[-1])
        return SimpleNamespace(busId=f"0000000{number // 2}:{('0A', '1b', '2C', '3d')[number]}:00.0")


@pytest.fixture
def bus(tmp_path):
    """/sys/bus/pci/devices of two processors of eight cores."""
    for place, cores in {"0000:0a": "0-7", "0000:1b": "0-7", "0001:2c": "8-15", "0001:3d": "8-11,12-15"}.items():
        (tmp_path / f"{place}:00.0").mkdir()
        (tmp_path / f"{place}:00.0" / "local_cpulist").write_text(f"{cores}\n")
    return tmp_path


def test_cores_near_each_gpu_are_those_of_its_numa_node(bus, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    first, second = list(range(8)), list(range(8, 16))

    assert process.cores_near_gpus(library=Nvml(), pci=bus) == [first, first, second, second]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-d3,0")
    assert process.cores_near_gpus(library=Nvml(), pci=bus) == [second, first]
    assert process.cores_near_gpus(library=Nvml(), pci=bus / "none") == [[], []]


@pytest.mark.parametrize(
    ("workers", "per_worker", "near", "cores"),
    [
        (1, 1, ["8-15"], "8-11"),
        (2, 1, ["0-7", "8-15"], "0-3,8-11"),
        (2, 6, ["0-7", "8-15"], "0-5,8-13"),
        (3, 4, ["0-7", "0-7", "8-15"], "0-11"),
        (3, 4, ["8-15", "8-15", "8-15"], "0-3,8-15"),  # the third finds no room there
        (2, 4, ["", ""], "0-7"),
        (4, 4, ["0-7", "0-7", "8-15", "8-15"], None),  # all there are
    ],
)
def test_workers_with_gpus_get_the_cores_near_them(workers, per_worker, near, cores):
    lists = [numbers_of(each) if each else [] for each in near]
    cell = make_cell(workers)
    found = process.cell_cores(cell, cores_per_worker=per_worker, available=range(16), near=lists)

    assert found == (None if cores is None else tuple(numbers_of(cores)))


@only_linux
def test_what_is_started_in_the_block_is_pinned_and_nothing_after_it():
    before = os.sched_getaffinity(0)
    code = "import os; print(*sorted(os.sched_getaffinity(0)))"
    last = max(before)

    with process.pinned((last,)):
        inside = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert f"{last}\n" == inside
    assert before == os.sched_getaffinity(0)


def watched(monkeypatch, *, seconds: float, busy_s: float, own_s: float, programs: dict) -> process.OtherPrograms:
    """Return what OtherPrograms would have seen: processor seconds after `seconds`, from nothing before."""
    clock, busy, own, used = [0.0], [0.0], [0.0], [{}]
    for module in (process, evidence):
        monkeypatch.setattr(module, "now", lambda: clock[0])
    monkeypatch.setattr(evidence, "own_cpu_s", lambda: own[0])
    monkeypatch.setattr(process, "_by_process", lambda: used[0])
    monkeypatch.setattr(evidence, "busy_s", lambda cores, **_: busy[0])
    others = process.OtherPrograms([0, 1])
    clock[0], busy[0], own[0], used[0] = seconds, busy_s, own_s, programs
    return others


def test_other_programs_are_told_with_their_number_and_names(monkeypatch, golden):
    programs = {(10, "matlab"): 8.0, (11, "matlab"): 4.0, (12, "firefox"): 3.0, (os.getpid(), "python"): 10.0}
    others = watched(monkeypatch, seconds=10.0, busy_s=25.0, own_s=10.0, programs=programs)

    golden(others.told(), "1.5", "2 cores", "1.2", "0.3")


def test_own_cells_and_small_things_are_no_disturbance(monkeypatch):
    others = watched(monkeypatch, seconds=10.0, busy_s=20.0, own_s=18.0, programs={})

    assert others.told() is None


def test_too_short_a_look_tells_nothing(monkeypatch):
    others = watched(monkeypatch, seconds=0.1, busy_s=0.2, own_s=0.0, programs={})

    assert others.told() is None


def test_look_at_this_machine_gives_a_line_or_nothing(monkeypatch):
    monkeypatch.setattr(process, "BUSY_CORES", -math.inf)
    told = process.OtherPrograms(sorted(os.sched_getaffinity(0))).told(after_s=0.4)

    assert re.fullmatch(r"other programs use -?[0-9.]+ of [0-9]+ cores?( \(.*\))?", told)
