"""The sampler of a host: its program, its file, what is made of it, and energy of the timed window."""

import errno
import io
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import BIN, LAUNCHERS, Launch
from make.wording import Golden
from test_sensors import FakeNvml

from horovod_study import records
from horovod_study.analysis.machine import resources as analysis
from horovod_study.cluster import alive
from horovod_study.errors import RecordError
from horovod_study.measure import energy, system
from horovod_study.measure.clock import now, sleep
from horovod_study.measure.sensors import Gpus
from horovod_study.records import SystemSamples, writer
from horovod_study.report.figures import causes as report
from horovod_study.report.grammar import write_files

# ----------------------------------------------------------------------------------------------------------- energy


def gpu_readings(
    times: np.ndarray, power_w: Callable[[np.ndarray], np.ndarray], energy_j: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return times, energy_j(times), power_w(times)


def constant(times: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A GPU that draws 100 W, sampled at `times` (N,)."""
    return gpu_readings(times, lambda at: np.full(len(at), 100.0), lambda at: 100.0 * (at - times[0]))


def test_100_w_for_10_s_are_1000_j_by_counter_and_by_integral() -> None:
    found = energy.device_energy("gpu", *constant(np.arange(-3.0, 14.0)), [(0.4, 10.4)], interval_s=1.0)

    assert found == {
        "name": "gpu",
        "counter_j": pytest.approx(1000.0),
        "integral_j": pytest.approx(1000.0),
        "reason": "",
        "doubt": "",
    }


@pytest.mark.parametrize("kept", [range(11), (0, 1, 3, 4, 6, 9, 10)], ids=["all", "30 % dropped"])
def test_a_gpu_of_100_w_read_through_nvml_uses_1000_j_in_10_s(kept: Sequence[int]) -> None:
    nvml = FakeNvml(power_w=100.0)
    gpus = Gpus(["abc"], library=nvml)
    rows = []
    for at in kept:
        nvml.at_s = float(at)
        rows.append(gpus.read(nvml.at_s)["gpu 0"])
    columns = {
        "part": np.array(["gpu 0"] * len(rows), dtype=object),
        "attempt": np.zeros(len(rows)),
        "at_s": np.array(list(kept), dtype=float),
        **{name: np.array([row[name] for row in rows]) for name in ("energy_j", "power_w")},
    }
    [found] = energy.host_energy(columns, gpus.devices, [(0.0, 10.0)], host="n1", interval_s=1.0)

    assert found["counter_j"] == pytest.approx(1000.0)
    assert found["integral_j"] == pytest.approx(1000.0, rel=0.02)


def test_a_third_of_the_samples_may_be_missing() -> None:
    """Power that rises and falls slowly, 30 % of the samples dropped at random: the integral stays within 2 %."""
    times = np.arange(0.0, 121.0)
    kept = np.sort(np.random.default_rng(5).choice(times[1:-1], size=83, replace=False))
    kept = np.concatenate([times[:1], kept, times[-1:]])

    def power(at: np.ndarray) -> np.ndarray:
        return 300.0 + 100.0 * np.sin(2 * np.pi * at / 30.0)

    def joules(at: np.ndarray) -> np.ndarray:
        return 300.0 * at + 100.0 * 30.0 / (2 * np.pi) * (1.0 - np.cos(2 * np.pi * at / 30.0))

    whole = energy.device_energy("gpu", *gpu_readings(times, power, joules), [(5.3, 113.7)], interval_s=1.0)
    dropped = energy.device_energy("gpu", *gpu_readings(kept, power, joules), [(5.3, 113.7)], interval_s=1.0)
    true_j = float(np.diff(joules(np.array([5.3, 113.7])))[0])

    for found in (whole, dropped):
        assert found["integral_j"] == pytest.approx(true_j, rel=0.02)
        assert found["counter_j"] == pytest.approx(true_j, rel=0.02)
        assert "counter says" not in found["doubt"]


@pytest.mark.parametrize(("factor", "doubted"), [(1.09, False), (0.91, False), (1.12, True), (0.88, True)])
def test_counter_and_integral_that_disagree_by_more_than_a_tenth_are_doubted(factor: float, doubted: bool) -> None:
    times, counter_j, power_w = constant(np.arange(0.0, 21.0))
    found = energy.device_energy("gpu", times, counter_j, factor * power_w, [(0.0, 20.0)], interval_s=1.0)

    expected = (
        f"its counter says 2000 J and the integral of its power {2000 * factor:.4g} J ({100 * factor - 100:+.0f} %)"
    )
    assert found["doubt"] == (expected if doubted else "")


def test_evaluations_between_the_stretches_do_not_count() -> None:
    """100 W in the stretches [0, 10] and [15, 20], 40 W between them."""
    times = np.arange(0.0, 20.5, 0.5)
    power_w = np.where((times > 10.0) & (times < 15.0), 40.0, 100.0)
    counter_j = np.concatenate([[0.0], np.cumsum((power_w[1:] + power_w[:-1]) / 2 * 0.5)])
    found = energy.device_energy("gpu", times, counter_j, power_w, [(0.0, 10.0), (15.0, 20.0)], interval_s=0.5)

    assert (found["counter_j"], found["integral_j"]) == (pytest.approx(1500.0), pytest.approx(1500.0))


def test_what_is_not_known_is_null_with_a_reason() -> None:
    times, counter_j, power_w = constant(np.arange(0.0, 11.0))
    unknown = np.full(11, np.nan)

    def reasons(counter: np.ndarray, power: np.ndarray, end_s: float, **more: Any) -> tuple[Any, Any, str]:
        found = energy.device_energy("gpu", times, counter, power, [(0.0, end_s)], interval_s=1.0, **more)
        return found["counter_j"], found["integral_j"], found["reason"]

    assert reasons(unknown, unknown, 10.0) == (None, None, "no energy counter; no power reading")
    assert reasons(unknown, power_w, 10.0) == (None, pytest.approx(1000.0), "no energy counter")
    assert reasons(counter_j[::-1], power_w, 10.0)[::2] == (None, "its energy counter went backwards")
    assert reasons(counter_j, power_w, 20.0) == (
        None,
        None,
        "its energy counters cover 10.0 s of the window's 20.0 s; "
        "its power readings cover 10.0 s of the window's 20.0 s",
    )
    derived = "its power is derived from the counter, so there is no integral beside it"
    assert reasons(counter_j, power_w, 10.0, independent=False) == (pytest.approx(1000.0), None, derived)


def test_an_integral_over_long_gaps_is_doubted(golden: Golden) -> None:
    times, counter_j, power_w = constant(np.array([0.0, 1.0, 2.0, 7.0, 8.0, 9.0, 10.0]))

    found = energy.device_energy("gpu", times, counter_j, power_w, [(0.0, 10.0)], interval_s=1.0)

    golden(found["doubt"], "50 %")


def test_counters_that_began_anew_with_a_resumed_run_are_joined() -> None:
    """Attempt 0 samples until 5 s, attempt 1 goes on at 5 s with a counter that is 0 again."""
    columns = {
        "part": np.array(["gpu 0"] * 12, dtype=object),
        "attempt": np.repeat([0, 1], 6),
        "at_s": np.concatenate([np.arange(6.0), np.arange(5.0, 11.0)]),
        "energy_j": np.concatenate([np.arange(6.0), np.arange(6.0)]) * 100.0,
        "power_w": np.full(12, 100.0),
    }
    [found] = energy.host_energy(columns, {"gpu 0": "Fake 9000"}, [(0.0, 5.0), (5.0, 10.0)], host="n1", interval_s=1.0)

    assert (found["name"], found["counter_j"], found["integral_j"]) == ("n1: Fake 9000 (gpu 0)", 1000.0, 1000.0)


def device(name: str, counter_j: float | None, integral_j: float | None, **more: str) -> dict[str, Any]:
    return {"name": name, "counter_j": counter_j, "integral_j": integral_j, "reason": "", "doubt": "", **more}


def test_the_total_names_its_devices_and_prefers_counters() -> None:
    gpu, old_gpu = device("gpu 0", 1000.0, 1010.0), device("gpu 1", None, 500.0, reason="no energy counter")
    package = device("package 0", 300.0, None, reason="derived")
    lost = device("gpu 2", None, None, reason="fell off the bus", doubt="odd")

    found = energy.total_energy([gpu, old_gpu, package, lost], ["n2: no NVIDIA driver"], samples=3600)

    assert {name: value for name, value in found.items() if name != "per_device"} == {
        "counter_j": None,
        "integral_j": None,
        "total_j": 1800.0,
        "per_sample_j": 0.5,
        "devices": ["gpu 0", "gpu 1", "package 0"],
        "reason": "gpu 2: fell off the bus; n2: no NVIDIA driver",
        "doubt": "gpu 2: odd",
    }
    assert energy.total_energy([gpu, gpu], [], samples=10)["counter_j"] == 2000.0


def test_energy_without_any_sensor_is_null_and_not_nothing() -> None:
    found = energy.total_energy([], ["n1: package: no powercap"], samples=100)

    assert (found["total_j"], found["per_sample_j"], found["counter_j"]) == (None, None, None)
    assert found["reason"] == "n1: package: no powercap"


def test_the_window_begins_where_the_steady_state_was_found() -> None:
    assert energy.since([(1.0, 2.0), (3.0, 5.0), (6.0, 7.0)], 4.0) == [[4.0, 5.0], [6.0, 7.0]]


def test_means_of_a_host_are_those_of_the_window() -> None:
    columns = {
        "part": np.array(["rank 0", "rank 0", "rank 0", "host", "gpu 0", "gpu 0"], dtype=object),
        "at_s": np.array([0.0, 1.0, 3.0, 3.0, 0.0, 3.0]),
        "cpu_percent": np.array([np.nan, 100.0, 40.0, 200.0, np.nan, np.nan]),
        "rss_mb": np.array([10.0, 30.0, 20.0, np.nan, np.nan, np.nan]),
        "gpu_percent": np.array([np.nan] * 4 + [10.0, 50.0]),
        "gpu_memory_mb": np.array([np.nan] * 4 + [100.0, 90.0]),
        "power_w": np.full(6, np.nan),
    }

    assert energy.host_summary(columns, [(0.5, 2.5)]) == {
        "ranks_cpu_percent": {"0": pytest.approx((0.5 * 100 + 1.5 * 40) / 2)},
        "rss_mb_max": {"0": 30.0},
        "gpu_percent": {"gpu 0": 50.0},
        "gpu_memory_mb_max": {"gpu 0": 100.0},
        "power_w": {},
    }


# ------------------------------------------------------------------------------------------- the inside of the program


class FakeSensors:
    """One rank, the host and a GPU of 100 W whose counter follows the time."""

    def __init__(self) -> None:
        self.missing = {"package": "none in this test"}
        self.devices = {"gpu 0": "Fake 9000"}
        self.began: float | None = None

    def read(self, at_s: float) -> dict[str, dict[str, Any]]:
        self.began = at_s if self.began is None else self.began
        return {
            "rank 0": {"rss_mb": 1.0, "processes": 1},
            "host": {"load1": 0.5},
            "gpu 0": {"power_w": 100.0, "energy_j": 100.0 * (at_s - self.began)},
        }


def sampling(directory: Path, *, resumed: bool = False) -> system.Sampling:
    told = {"directory": directory, "host": "n1", "ranks": {"0": os.getpid()}, "gpus": [], "interval_s": 0.1}
    return system.Sampling({**told, "resumed": resumed}, sensors=[FakeSensors()])


def test_samples_go_to_the_file_of_the_host_and_count_from_the_zero(tmp_path: Path) -> None:
    probe = sampling(tmp_path)
    before = now()
    probe.sample()
    probe.open(now())
    sleep(0.05)
    probe.sample()
    answer = probe.close()
    found = records.read_system(tmp_path)

    assert list(found) == ["n1"]
    rows, meta = found["n1"].rows, found["n1"].meta
    assert list(rows["part"]) == ["rank 0", "host", "gpu 0"] * 2
    assert (rows["at_s"][:3] <= 0.0).all()
    assert (rows["at_s"][:3] >= before - now()).all()
    assert (rows["at_s"][3:] >= 0.05).all()
    assert rows["pss_mb"].isna().all()
    assert {name: meta[name] for name in ("interval_s", "devices", "missing", "attempt")} == {
        "interval_s": 0.1,
        "devices": {"gpu 0": "Fake 9000"},
        "missing": {"package": "none in this test"},
        "attempt": 0,
    }
    assert answer["samples"] == 2
    assert answer["ended"] == ""
    assert answer["cost_of_sampling"]["wall_s"] >= 0.05
    assert answer["cost_of_sampling"]["cpu_s"] >= 0.0


def test_energy_from_the_file_is_that_of_the_device(tmp_path: Path) -> None:
    """A fake GPU of 100 W, read in real time, through the file: counter and integral are 100 W times the window."""
    probe = sampling(tmp_path)
    probe.open(now())
    for _ in range(6):
        probe.sample()
        sleep(0.1)
    probe.close()
    columns, meta = records.system_columns(tmp_path, "n1")
    first, last = float(columns["at_s"].min()), float(columns["at_s"].max())
    stretch = (first + 0.05, last - 0.05)
    [found] = energy.host_energy(columns, meta["devices"], [stretch], host="n1", interval_s=0.1)

    assert found["counter_j"] == pytest.approx(100.0 * (stretch[1] - stretch[0]))
    assert found["integral_j"] == pytest.approx(100.0 * (stretch[1] - stretch[0]))


def test_a_resumed_run_keeps_the_samples_before_it(tmp_path: Path) -> None:
    first = sampling(tmp_path)
    first.open(now())
    for _ in range(3):
        first.sample()
        sleep(0.05)
    first.close()
    kept_s = records.read_system(tmp_path)["n1"].rows["at_s"].unique()[1]
    second = sampling(tmp_path, resumed=True)
    second.sample()
    second.open(now() - kept_s - 0.01)  # the checkpoint was at kept_s + 0.01
    second.close()
    rows = records.read_system(tmp_path)["n1"].rows

    assert list(rows["attempt"]) == [0] * 6 + [1] * 3
    assert rows["at_s"].is_monotonic_increasing


class Full(io.BytesIO):
    """A file that takes the begin of a stream and then has no room."""

    def write(self, data: Any) -> int:
        if self.tell() > 4000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_full_disk_ends_the_sampling_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def full(path: Path, mode: str) -> Full:
        path.touch()
        return Full()

    monkeypatch.setattr(writer, "open", full, raising=False)
    probe = sampling(tmp_path)
    probe.open(now())
    for _ in range(8):
        probe.sample()
        probe.flush()
    answer = probe.close()

    golden(answer["ended"], tmp_path / "system-n1.arrows")
    assert 1 <= answer["samples"] < 8


def test_the_last_room_on_a_disk_is_left_to_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    probe = sampling(tmp_path)
    probe.sample()
    probe.open(now())
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=255, f_frsize=4096))
    probe.sample()
    answer = probe.close()

    golden(answer["ended"], tmp_path / "system-n1.arrows")
    assert len(records.read_system(tmp_path)["n1"].rows) == 3


def test_a_file_that_cannot_be_begun_is_said_too(tmp_path: Path, golden: Golden) -> None:
    probe = sampling(tmp_path / "nowhere")
    probe.sample()
    probe.open(now())
    probe.sample()

    golden(probe.close()["ended"], tmp_path / "nowhere" / "system-n1.arrows")


def test_a_torn_file_is_read_to_its_last_whole_batch(tmp_path: Path, golden: Golden) -> None:
    probe = sampling(tmp_path)
    probe.open(now())
    for _ in range(2):
        probe.sample()
        probe.flush()
    probe.close()
    path = tmp_path / "system-n1.arrows"
    content = path.read_bytes()
    path.write_bytes(content[:-100])

    assert len(records.read_system(tmp_path)["n1"].rows) == 3
    path.write_bytes(b"no samples")
    with golden.raises(RecordError):
        records.read_system(tmp_path)
    path.unlink()
    assert records.read_system(tmp_path) == {}
    with golden.raises(RecordError, match="n1"):
        records.read_system_rows(tmp_path, "n1")


# --------------------------------------------------------------------------------------------------- the program itself


def sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])


def gone(pid: int, *, within_s: float = 20.0) -> bool:
    """Return whether the process ends in time."""
    until = now() + within_s
    while alive.runs(pid) and now() < until:
        sleep(0.05)
    return not alive.runs(pid)


def started(directory: Path, *pids: int, interval_s: float = 0.1) -> system.Sampler:
    sampler = system.Sampler("n1")
    sampler.watch(directory, [{"host": "n1", "pid": pid, "gpu": None} for pid in pids], interval_s=interval_s)
    sampler.wait_ready()
    assert sampler.reason == ""
    return sampler


def test_the_program_samples_all_ranks_of_the_host_until_it_is_stopped(tmp_path: Path, golden: Golden) -> None:
    other = sleeper()
    try:
        sampler = started(tmp_path, os.getpid(), other.pid)
        pid = sampler.pid
        sampler.begin(now())
        sleep(1.0)
        answer = sampler.stop()
        assert sampler.stop() == answer
    finally:
        other.kill()
        other.wait()
    rows = records.read_system(tmp_path)["n1"].rows

    assert set(rows["part"]) >= {"rank 0", "rank 1", "host"}
    assert answer["samples"] >= 4
    golden(answer["missing"]["gpu"], "GPU")
    assert (rows.loc[rows["part"] == "rank 0", "rss_mb"] > 10.0).all()
    assert 0.0 < answer["cost_of_sampling"]["cpu_s"] < answer["cost_of_sampling"]["wall_s"]
    assert pid is not None
    assert gone(pid)


def test_signals_that_end_a_job_do_not_end_the_sampler(tmp_path: Path) -> None:
    sampler = started(tmp_path, os.getpid())
    assert sampler.pid is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(sampler.pid, number)
    sampler.begin(now())

    assert sampler.stop()["samples"] >= 2


def test_without_ranks_it_takes_no_samples_and_tells_of_those_before(tmp_path: Path) -> None:
    rank = sleeper()
    sampler = started(tmp_path, rank.pid)
    sampler.begin(now())
    rank.kill()
    rank.wait()
    sleep(2.0)  # of 20 samples and more
    found = sampler.stop()

    assert 1 <= found["samples"] < 10 and not found.get("reason")


def test_it_ends_with_the_process_that_started_it_even_if_that_is_killed(tmp_path: Path) -> None:
    """The parent also leaves a child behind that keeps the pipe open."""
    program = f"""
import os, sys, time
from pathlib import Path
from horovod_study.measure import system
from horovod_study.measure.clock import now
sampler = system.Sampler("n1")
sampler.watch(Path({str(tmp_path)!r}), [{{"host": "n1", "pid": {os.getpid()}, "gpu": None}}], interval_s=0.1)
sampler.wait_ready()
sampler.begin(now())
child = os.fork()
if not child:
    time.sleep(60)
print(sampler.pid, child, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, child = (int(word) for word in parent.stdout.readline().split())
        sleep(0.3)
        parent.kill()
        parent.wait()
        assert gone(pid)
        os.kill(child, signal.SIGKILL)

    assert len(records.read_system(tmp_path)["n1"].rows) >= 2  # what was sampled is written at the end


def test_a_sampler_that_was_killed_is_a_reason_and_no_error(tmp_path: Path) -> None:
    sampler = started(tmp_path, os.getpid())
    sampler.begin(now())
    assert sampler.pid is not None
    os.kill(sampler.pid, signal.SIGKILL)
    told = system.told(tmp_path / "nothing there", sampler, [(0.0, 1.0)])
    totals = system.totals([told, None], samples=100)

    reason = "the sampler did not live to the end (exit code -9)"
    assert told["reason"] == reason
    assert totals["system"]["reason"] == f"n1: {reason}"
    assert (totals["energy"]["total_j"], totals["energy"]["reason"]) == (None, f"n1: {reason}")


def test_a_sampler_that_cannot_start_is_a_reason_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    absent = system.Sampler("n1")
    absent.watch(tmp_path, [{"host": "n1", "pid": 1, "gpu": None}], interval_s=1.0)
    absent.wait_ready()
    absent.begin(0.0)

    golden(absent.stop(), "reason")
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named psutil'\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    without = system.Sampler("n1")
    without.wait_ready()

    golden(without.stop(), "reason", "ModuleNotFoundError")


def test_the_sampler_imports_only_what_it_needs() -> None:
    program = """
import sys
from pathlib import Path
from horovod_study import records
from horovod_study.measure import system
import tempfile, os
with tempfile.TemporaryDirectory() as folder:
    told = {"directory": folder, "host": "n1", "ranks": {"0": os.getpid()}, "gpus": [], "interval_s": 1.0}
    sampling = system.Sampling({**told, "resumed": False})
    sampling.sample()
    sampling.open(0.0)
    sampling.close()
    again = system.Sampling({**told, "resumed": True})
    again.open(1.0)
    again.close()
    records.system_columns(Path(folder), "n1")
print(sorted({"torch", "pandas", "matplotlib", "horovod", "mpi4py", "pynvml"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_totals_without_a_sampler_say_so(golden: Golden) -> None:
    totals = system.totals([None, None], samples=10)

    assert totals["system"] == {"hosts": {}, "reason": "nothing was sampled: system_interval_s is 0"}
    assert totals["energy"]["total_j"] is None
    golden(totals["energy"]["reason"], "system_interval_s")


# --------------------------------------------------------------------------------------------------------- analysis


def samples_of(rows: list[dict[str, Any]], *, interval_s: float = 1.0, **meta: Any) -> SystemSamples:
    names = records.system_schema().names
    frame = pd.DataFrame([{name: row.get(name, 0 if name == "attempt" else None) for name in names} for row in rows])
    for name in names:
        if name != "part":
            frame[name] = frame[name].astype("float64")
    told = {"interval_s": interval_s, "ranks": {"0": 1}, "devices": {}, "missing": {}, **meta}
    return SystemSamples(host="n1", rows=frame, meta=told)


def every_second(
    count: int, *, cpu: float = 100.0, host: float = 105.0, own_mb: Callable[[int], float] = lambda at: 200.0
) -> list[dict[str, Any]]:
    """A rank and its host, sampled at 0, 1, ... seconds; the first sample has no counts."""
    rows: list[dict[str, Any]] = []
    for at in range(count):
        over = {} if at == 0 else {"interval_s": 1.0}
        rank = {} if at == 0 else {"cpu_percent": cpu, "switches_over_s": 1.0, "voluntary_switches": 30}
        whole = {} if at == 0 else {"cpu_percent": host, "received_bytes": 2_000_000, "sampler_cpu_percent": 0.5}
        rows.append({"at_s": float(at), "part": "rank 0", "rss_mb": 300.0, "own_mb": own_mb(at), **over, **rank})
        rows.append({"at_s": float(at), "part": "host", "load1": 1.0, **over, **whole})
    return rows


NO_PHASES = pd.DataFrame({"phase": [], "begin_s": [], "end_s": []})


def step_rows(begins: list[float], step_s: float, *, two_clocks: bool = False) -> pd.DataFrame:
    count = len(begins)
    return pd.DataFrame(
        {
            "step": range(count),
            "begin_s": begins,
            "step_s": step_s,
            "residual_s": 0.0,
            "sync_host_s": 0.001 if two_clocks else math.nan,
        }
    )


def test_phases_of_a_run_on_a_cpu() -> None:
    """Ten steps of 1 s: three of warm-up, a checkpoint of 0.5 s after step 5, an evaluation of 2 s after step 7."""
    begins = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.5, 7.5, 10.5, 11.5]
    table = analysis.phases(
        step_rows(begins, 1.0),
        [{"steps": 8, "wall_s": 8.5}, {"steps": 10, "wall_s": 12.5}],
        first_timed=3,
        first_s=-0.5,
        last_s=14.0,
    )

    assert table.to_dict("split")["data"] == [
        ["start-up", -0.5, 0.0],
        ["warm-up", 0.0, 3.0],
        ["timed steps", 3.0, 6.0],
        ["break", 6.0, 6.5],
        ["timed steps", 6.5, 8.5],
        ["evaluation", 8.5, 10.5],
        ["timed steps", 10.5, 12.5],
        ["end", 12.5, 14.0],
    ]


def test_on_an_accelerator_a_host_that_runs_ahead_makes_no_break() -> None:
    """Ten steps of 0.1 s on the device: the host had given them all after 10 ms and then waited."""
    begins = [0.0, 0.002, 0.004, 0.006, 0.008, 0.5, 0.502, 0.504, 0.506, 0.508]
    table = analysis.phases(
        step_rows(begins, 0.1, two_clocks=True),
        [{"steps": 10, "wall_s": 1.0}],
        first_timed=0,
        first_s=0.0,
        last_s=1.5,
    )

    assert table.to_dict("split")["data"] == [["timed steps", 0.0, 1.0], ["end", 1.0, 1.5]]


def test_a_run_without_steps_was_starting_up() -> None:
    table = analysis.phases(step_rows([], 1.0), [], first_timed=0, first_s=-1.0, last_s=3.0)

    assert table.to_dict("split")["data"] == [["start-up", -1.0, 3.0]]


def test_without_step_times_there_are_no_phases() -> None:
    steps, evaluations = step_rows([math.nan, math.nan], math.nan), [{"steps": 2, "wall_s": 2.0}]

    assert analysis.phases(steps, evaluations, first_timed=0, first_s=-1.0, last_s=3.0).empty


def test_the_summary_is_that_of_the_timed_steps() -> None:
    rows = every_second(11)
    for row in rows:
        if row["at_s"] <= 5.0 and row["part"] == "rank 0" and "cpu_percent" in row:
            row["cpu_percent"] = 10.0  # before the timed steps
    table = pd.DataFrame({"phase": ["warm-up", "timed steps"], "begin_s": [0.0, 5.0], "end_s": [5.0, 10.0]})
    samples = samples_of(rows)
    before = samples.rows.copy(deep=True)

    found = analysis.summary({"n1": samples}, table).set_index(["part", "quantity"])

    assert found.loc[("rank 0", "cpu_percent"), ["mean", "median", "max", "samples"]].tolist() == [100, 100, 100, 5]
    assert found.loc[("rank 0", "voluntary_per_s"), "mean"] == 30.0
    assert found.loc[("host", "received_mb_per_s"), "mean"] == 2.0
    assert ("host", "gpu_percent") not in found.index
    pd.testing.assert_frame_equal(samples.rows, before)
    everything = analysis.summary({"n1": samples}, NO_PHASES).set_index(["part", "quantity"])
    assert everything.loc[("rank 0", "cpu_percent"), "mean"] == pytest.approx(55.0)


def test_counts_over_a_moment_are_no_rate() -> None:
    rows = [*every_second(3), {"at_s": 2.01, "part": "rank 0", "interval_s": 0.01, "cpu_percent": 900.0}]
    found = analysis.quantities(samples_of(rows).rows, 1.0)

    assert found["cpu_percent"].max() == 105.0


def test_missed_samples_are_counted() -> None:
    rows = [row for row in every_second(21) if row["at_s"] not in (3.0, 4.0, 5.0, 9.0, 10.0)]

    assert any("2 gaps" in each and "7.0 s" in each for each in doubts(rows))


def doubts(rows: list[dict[str, Any]], totals: Mapping[str, Any] | None = None, **meta: Any) -> list[str]:
    return analysis.sensor_doubts({"n1": samples_of(rows, **meta)}, NO_PHASES, totals or {})


def test_a_quiet_run_raises_no_doubt() -> None:
    assert doubts(every_second(20)) == []


def test_another_load_on_the_host_is_doubted(golden: Golden) -> None:
    golden(doubts(every_second(20, host=180.0)), "n1", "0.8 cores")
    assert doubts(every_second(20, host=180.0), missing={"rank 1": "not to be seen"}) == []  # whose load is it?
    assert doubts(every_second(5, host=180.0)) == []  # too few samples
    assert doubts(every_second(20, host=180.0), {"turns": {"before": [0]}}) == []  # other cells had their turns


def test_memory_that_is_taken_once_and_kept_is_not_doubted() -> None:
    assert doubts(every_second(20, own_mb=lambda at: 200.0 if at < 9 else 260.0)) == []


def test_growing_memory_is_doubted(golden: Golden) -> None:
    golden(doubts(every_second(20, own_mb=lambda at: 200.0 + 5.0 * at)), "n1", "rank 0", "210", "285 MB")
    assert doubts(every_second(20, own_mb=lambda at: 200.0 + 0.5 * at)) == []


def test_a_costly_sampler_missed_samples_and_unsure_energy_are_doubted(golden: Golden) -> None:
    rows = [
        {**row, **({"sampler_cpu_percent": 3.0} if "sampler_cpu_percent" in row else {})} for row in every_second(20)
    ]
    rows = [row for row in rows if not 10.0 <= row["at_s"] <= 13.0]
    totals = {
        "energy": {"doubt": "gpu 0: its counter says 1 J"},
        "system": {"hosts": {"n1": {"ended": "no space left"}, "n2": {"reason": "it was killed"}, "n3": {"ended": ""}}},
    }

    golden(doubts(rows), "n1", "3.0 %", "--system-interval-s", "1 gap", "5.0 s")
    golden(analysis.told_doubts(totals), "n1", "n2", "1 J")


def test_what_is_drawn_over_time_is_what_there_is() -> None:
    rows = [row for row in every_second(12) if not 4.0 <= row["at_s"] <= 6.0]
    rows += [{"at_s": float(at), "part": "gpu 0", "power_w": 100.0, "gpu_percent": 0.0} for at in range(12)]
    rows += [{"at_s": float(at), "part": "gpu 1", "power_w": 50.0} for at in range(12)]
    found = analysis.over_time(samples_of(rows, devices={"gpu 0": "Fake"}))
    lines = {
        panel.split(" / ")[0]: dict(list(own.groupby("line", sort=False)))
        for panel, own in found.groupby("panel", sort=False)
    }

    assert {panel: list(own) for panel, own in lines.items()} == {
        "CPU": ["rank 0", "other programs"],
        "Memory": ["rank 0"],
        "Power": ["gpu 0", "gpu 1"],
        "Network": ["received"],
        "Context switches": ["voluntary"],
    }
    assert lines["CPU"]["other programs"]["value"].tolist() == [4.5] * 8
    memory = lines["Memory"]["rank 0"]
    assert memory.loc[memory["value"].isna(), "at_s"].tolist() == [6.0]  # broken where samples are missing
    assert lines["CPU"]["rank 0"]["value"].notna().all()  # what was counted is the mean over the gap


# ----------------------------------------------------------------------------------------------------------- report


@pytest.mark.slow
def test_the_figure_has_what_it_draws_and_the_caption_names_what_is_missing(tmp_path: Path, golden: Golden) -> None:
    missing = {"gpu": "no NVIDIA driver", "package": "no powercap", "rdma": "no powercap"}
    samples = samples_of(every_second(12), missing=missing)
    drawn = report.host_over_time(samples)
    paths = write_files([drawn], tmp_path)

    assert [panel.y for panel in drawn.panels] == [
        "CPU / % of a core", "Memory / MB", "Network / (MB/s)", "Context switches / (1/s)",
    ]  # fmt: skip
    assert [path.name for path in paths] == [f"system-n1.{end}" for end in ("pdf", "svg", "png", "txt", "csv")]
    golden(
        (tmp_path / "system-n1.txt").read_text(),
        "n1",
        "1 s",
        "1 rank",
        "1e6",
        "gpu: no NVIDIA driver",
    )
    assert "CPU / % of a core,rank 0,1.0,100.0" in (tmp_path / "system-n1.csv").read_text().replace("\r", "")


# -------------------------------------------------------------------------------------------------------- real runs


def samplers_of(mark: str) -> list[int]:
    """Return the samplers alive among the processes that were started with `mark` in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"horovod_study.measure.system" in path.read_bytes() and mark in (path.parent / "environ").read_text():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return [pid for pid in found if alive.runs(pid)]


@pytest.mark.slow
@pytest.mark.horovod
def test_two_workers_are_sampled_by_one_sampler(
    tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARK_OF_TEST", str(tmp_path))
    done = launch(
        "mpirun", 2, *("--dataset", "400", "--batch", "10", "--seconds", "2", "--warmup-steps", "5"),
        *("--evaluate-every", "50", "--system-interval-s", "0.2", "--out", f"{tmp_path / 'run'}"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [samples] = records.read_system(tmp_path / "run").values()
    record = records.read_run(tmp_path / "run")
    [told] = record.totals["system"]["hosts"].values()
    steps = records.read_steps(tmp_path / "run", 0).to_pandas()
    table = analysis.phases(
        steps, records.epoch_rows(tmp_path / "run"), first_timed=5, first_s=-1.0, last_s=samples.rows["at_s"].max()
    )

    assert set(samples.rows["part"]) == {"rank 0", "rank 1", "host"}
    assert samples.meta["ranks"] == {str(n): rank["pid"] for n, rank in enumerate(record.effective["ranks"])}
    assert told["samples"] >= 5
    assert all(0.0 < percent < 300.0 for percent in told["ranks_cpu_percent"].values())
    assert set(told["rss_mb_max"]) == {"0", "1"}
    assert 0.0 < told["cost_of_sampling"]["share_of_core"] < 0.2  # the true cost is measured on a quiet machine
    assert record.totals["energy"]["total_j"] is None or record.totals["energy"]["total_j"] > 0
    assert record.totals["energy"]["reason"] or record.totals["energy"]["devices"]
    assert {"start-up", "warm-up", "timed steps"} <= set(table["phase"])
    assert float(samples.rows["at_s"].max()) >= float(table.loc[table["phase"] == "timed steps", "end_s"].max())
    assert samplers_of(f"MARK_OF_TEST={tmp_path}") == []


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("victim", [0, 1])
def test_no_sampler_is_left_when_a_rank_is_killed(tmp_path: Path, victim: int) -> None:
    directory = tmp_path / "run"
    line = [str(part).format(workers=2) for part in LAUNCHERS["horovodrun --mpi"]]
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    environment["MARK_OF_TEST"] = str(tmp_path)
    options = (
        "--dataset",
        "400",
        "--batch",
        "10",
        "--seconds",
        "60",
        "--warmup-steps",
        "5",
        "--system-interval-s",
        "0.2",
    )
    with subprocess.Popen(
        [*line, "-m", "horovod_study.train", *options, "--out", str(directory)],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as job:  # fmt: skip
        until = now() + 90.0
        while not list(directory.glob("system-*.arrows")) and now() < until:
            sleep(0.1)
        sleep(0.5)
        assert len(samplers_of(f"MARK_OF_TEST={tmp_path}")) == 1
        os.kill(records.read_run(directory).effective["ranks"][victim]["pid"], signal.SIGKILL)
        assert job.wait(120) != 0
    until = now() + 20.0
    while samplers_of(f"MARK_OF_TEST={tmp_path}") and now() < until:
        sleep(0.1)

    assert samplers_of(f"MARK_OF_TEST={tmp_path}") == []
    assert len(next(iter(records.read_system(directory).values())).rows) > 0


@pytest.mark.slow
def test_a_run_goes_on_when_its_sampler_dies_and_says_so(tmp_path: Path) -> None:
    """The sampler is killed in mid-run; training ends well, and the record has the reason."""
    directory = tmp_path / "run"
    options = ("--dataset", "400", "--batch", "10", "--seconds", "1.5", "--warmup-steps", "5", "--evaluate-every", "99")
    with subprocess.Popen(
        [sys.executable, "-m", "horovod_study.train", *options, "--out", str(directory), "--json"],
        env={**os.environ, "MARK_OF_TEST": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as job:  # fmt: skip
        until = now() + 60.0
        while not list(directory.glob("system-*.arrows")) and now() < until:
            sleep(0.02)
        [pid] = samplers_of(f"MARK_OF_TEST={tmp_path}")
        os.kill(pid, signal.SIGKILL)
        printed = job.communicate(timeout=120)[0]
    totals = records.read_run(directory).totals

    assert job.returncode == 0
    assert json.loads(printed)["steps"] > 0
    assert totals["system"]["reason"].endswith("the sampler did not live to the end (exit code -9)")


def test_a_run_without_sampler_has_no_samples_and_says_why(tmp_path: Path, golden: Golden) -> None:
    from horovod_study.train import main

    options = ("--dataset", "400", "--batch", "10", "--steps", "3", "--warmup-steps", "0", "--system-interval-s", "0")
    code = main([*options, "--out", str(tmp_path / "run")])
    totals = records.read_run(tmp_path / "run").totals

    assert code == 0
    assert records.read_system(tmp_path / "run") == {}
    golden(totals["system"]["reason"], "system_interval_s")
