"""The doctor: every check with programs and files that are put in its place, and once for real."""

import errno
import json
import os
import platform
import resource
import shlex
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from make.wording import Golden
from rich.console import Console
from slurm_cluster import SlurmCluster
from two_hosts import TwoHosts

from horovod_study.cluster import doctor
from horovod_study.cluster.doctor import examine, exit_code, files, hosts, machine, mpi, network, probe, software
from horovod_study.cluster.doctor.finding import Area, Finding, Here, ProgramResult, guarded
from horovod_study.cluster.doctor.gpus import GpuChecks
from horovod_study.cluster.doctor.hosts import Hosts
from horovod_study.cluster.doctor.machine import Load
from horovod_study.cluster.doctor.mpi import Mpi, mpi_of, nccl_version
from horovod_study.cluster.doctor.network import NetworkChecks, interfaces
from horovod_study.cluster.doctor.slurm import Slurm, gpus_in, seconds_of
from horovod_study.cluster.doctor.software import Software
from horovod_study.cluster.partitions import Host, Partition
from horovod_study.report import doctor as report


class Place:
    """A machine made of small scripts and files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("bin", "site", "proc/self", "sys", "shm"):
            (root / name).mkdir(parents=True)
        self.environ = {"PATH": f"{root / 'site'}:{root / 'tools'}", "HOME": str(root)}
        (root / "tools").mkdir()
        for name in ("sh", "cat", "sleep", "grep"):  # and nothing else of this machine
            (root / "tools" / name).symlink_to(
                next(p for p in (f"/bin/{name}", f"/usr/bin/{name}") if Path(p).exists())
            )

    def program(self, name: str, text: str, *, beside: bool = False) -> Path:
        """Put a shell script on PATH, or beside Python."""
        path = self.root / ("bin" if beside else "site") / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def python(self, **answers: object) -> None:
        """A Python that knows what to print for programs with a word in them, or fails with a text."""
        cases = []
        for word, answer in answers.items():
            if isinstance(answer, str):
                cases.append(f"*{word}*) echo {shlex.quote(answer)} >&2; exit 1 ;;")
            elif isinstance(answer, int):
                cases.append(f"*{word}*) exit {answer} ;;")
            else:
                cases.append(f"*{word}*) echo {shlex.quote(json.dumps(answer))} ;;")
        self.program("python", 'case "$2$3" in\n' + "\n".join(cases) + "\nesac", beside=True)

    def file(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    @property
    def here(self) -> Here:
        return Here(
            environ=self.environ,
            python=self.root / "bin" / "python",
            proc=self.root / "proc",
            system=self.root / "sys",
            shared_memory=self.root / "shm",
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def about(torch: dict[str, Any] | None) -> Any:
    """Return what has found this of PyTorch, None: it was not looked at."""
    return SimpleNamespace(about_torch=torch)


def found(check: Callable[[Area], None]) -> dict[str, tuple[str, str, str]]:
    """Return name -> (verdict, what, remedy) of what a check says."""
    area = Area("area")
    check(area)
    assert len({each.name for each in area.findings}) == len(area.findings), "two findings have one name"
    return {each.name: (each.verdict, each.what, each.remedy) for each in area.findings}


def ok(what: str) -> tuple[str, str, str]:
    return ("ok", what, "")


# ------------------------------------------------------------------------------------------------ findings and calls


def test_what_is_found_is_one_line() -> None:
    assert found(lambda area: area.ok("n", "two\n  lines"))["n"] == ok("two lines")


def test_a_check_that_breaks_is_a_finding_and_the_others_go_on(golden: Golden) -> None:
    def breaks(area: Area) -> None:
        area.ok("before", "seen")
        raise KeyError("gone")

    result = guarded([("a", "breaks", breaks), ("b", "works", lambda area: area.ok("works", "well"))], 10.0)()

    golden(
        [(each.area, each.name, each.verdict, each.what) for each in result],
        "before",
        "ok",
        "seen",
        "breaks",
        "warning",
        "KeyError",
        "gone",
        "works",
        "well",
    )


def test_a_check_that_hangs_is_a_finding(golden: Golden) -> None:
    end = threading.Event()
    checks = [
        ("a", "quick", lambda area: area.ok("quick", "well")),
        ("b", "hangs", lambda _: end.wait()),
        ("c", "later", lambda area: area.ok("later", "well")),
    ]
    result = guarded(checks, 0.3)()  # type: ignore[arg-type]
    end.set()

    golden([(each.area, each.name, each.what) for each in result], "quick", "well", "b", "hangs", "0.3 s", "later")


def test_a_program_that_hangs_is_killed_with_its_children(place: Place) -> None:
    note = place.root / "child"
    hangs = place.program("hangs", f"echo waiting >&2; sleep 60 & echo $! > {note}; wait")

    for limit_s in (1.0, 10.0, 100.0):  # until the shell has come so far; at once on a quiet machine
        answer = place.here.call([hangs], timeout_s=limit_s)
        if note.exists() and note.read_text().endswith("\n"):
            break

    told = f"hangs did not answer within {limit_s:g} s (waiting)"
    assert (answer.code, answer.worked, answer.problem) == (None, False, told)
    child = Path("/proc", note.read_text().strip(), "stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_a_program_that_is_not_there_is_a_reason(place: Place, golden: Golden) -> None:
    answer = place.here.call([place.root / "nothing"], timeout_s=5.0)

    golden(answer.reason(), place.root / "nothing")


@pytest.mark.parametrize(
    ("code", "output", "errors", "reason"),
    [
        (1, "", "sinfo: error: no daemon\nbye\n", "no daemon"),
        (1, "", "x\nImportError: libmpi.so.40: cannot open\n", "ImportError: libmpi.so.40: cannot open"),
        (1, "told here\n", "", "told here"),
        (3, "", "", "it ended with exit code 3 and said nothing"),
        (1, "", "y" * 500, "y" * 237 + "..."),
    ],
)
def test_why_a_program_did_not_work(code: int, output: str, errors: str, reason: str) -> None:
    assert ProgramResult(code=code, output=output, errors=errors).reason() == reason


# ------------------------------------------------------------------------------------------------------------ Python


def test_an_environment_beside_the_checkout_is_preferred(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, golden: Golden
) -> None:
    place.file("checkout/.venv/bin/python", "")
    monkeypatch.setattr(software.horovod_study, "__file__", str(tmp_path / "checkout/horovod_study/__init__.py"))

    own = tmp_path / "checkout" / ".venv"
    golden(
        found(Software(place.here, quick=True).environment)["environment"],
        "warning",
        sys.prefix,
        own,
        "/bin/horovod-study",
    )
    monkeypatch.setattr(sys, "prefix", str(own))
    assert found(Software(place.here, quick=True).environment) == {"environment": ok(str(own))}


def test_packages_that_pythonpath_puts_in_front_are_named(place: Place, golden: Golden) -> None:
    (place.root / "other" / "torch").mkdir(parents=True)
    place.environ["PYTHONPATH"] = f":{place.root / 'other'}"

    verdict, what, remedy = found(Software(place.here, quick=True).environment)["PYTHONPATH"]

    assert verdict == "warning"
    golden(what, place.root / "other")
    assert remedy.startswith("unset PYTHONPATH")


def test_missing_packages_are_named(place: Place, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(software, "installed", lambda name: None if name in ("torch", "psutil") else "1")

    golden(found(Software(place.here, quick=True).packages)["packages"], "fail")


TORCH = {
    "version": "2.13.0+cpu",
    "cuda": None,
    "threads": 2,
    "computes": True,
    "gloo": True,
    "devices": 0,
    "names": [],
    "device_problem": "",
    "nccl": None,
}


@pytest.fixture(autouse=True)
def _versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed does not depend on the machine of the test."""
    there = {"torch": "2.13.0+cpu", "horovod": "0.28.1", "mpi4py": "4.1.2", "numpy": "2.4.0", "horovod_study": "0.1.0"}
    for module in (software, mpi, hosts):
        monkeypatch.setattr(module, "installed", there.get)


@pytest.mark.parametrize(
    ("answer", "name", "verdict", "what"),
    [
        (TORCH, "version", "ok", "PyTorch 2.13.0+cpu"),
        ({**TORCH, "cuda": "13.0"}, "version", "ok", "PyTorch 2.13.0+cpu"),
        (TORCH, "computes", "ok", "2 threads"),
        ({**TORCH, "computes": False}, "computes", "fail", ""),
        ({**TORCH, "gloo": False}, "Gloo", "warning", "PyTorch"),
        ("OSError: libc10.so", "loads", "fail", "PyTorch 2.13.0+cpu"),
    ],
)
def test_pytorch_is_loaded_in_a_process_of_its_own(
    place: Place, answer: object, name: str, verdict: str, what: str, golden: Golden
) -> None:
    place.python(ones=answer)

    golden(found(Software(place.here, quick=False).torch)[name][:2], verdict, what)


@pytest.mark.slow
def test_the_examination_needs_no_pytorch(tmp_path: Path) -> None:
    """It is there to say that PyTorch is missing."""
    program = "import sys; sys.modules['torch'] = None; from horovod_study import cli; sys.exit(cli.main(sys.argv[1:]))"
    words = [sys.executable, "-c", program, "doctor", "--quick", "--json"]

    told = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert told.returncode in (0, 1), told.stderr
    assert json.loads(told.stdout)["findings"]


def test_pytorch_is_not_loaded_in_a_quick_examination(
    place: Place, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    what = "PyTorch 2.13.0+cpu is installed (not loaded in a quick examination)"
    assert found(Software(place.here, quick=True).torch) == {"version": ok(what)}

    monkeypatch.setattr(software, "installed", lambda name: None)
    golden(found(Software(place.here, quick=True).torch)["version"][:2], "fail", "PyTorch")


# -------------------------------------------------------------------------------------------------------------- GPUs

NVIDIA_SMI = """
case "$1" in
--query*) cat <<'END'
{rows}
END
;;
*) echo '| NVIDIA-SMI 550.1  Driver Version: 550.1  CUDA Version: 12.4 |' ;;
esac"""
TWO_GPUS = "0, NVIDIA H200, 550.1, 143771, 0, {use}\n1, NVIDIA H200, 550.1, 143771, 0, 0"
CUDA = {**TORCH, "version": "2.13.0+cu126", "cuda": "12.4", "devices": 2, "nccl": [2, 28, 9]}


def look_at_gpus(
    place: Place, torch: dict[str, Any] | None = None, partition: Partition | None = None
) -> dict[str, tuple[str, str, str]]:
    return found(GpuChecks(place.here, about(torch), quick=False, partition=partition).cuda)


def with_gpus(place: Place, *, use: int = 0) -> None:
    place.program("nvidia-smi", NVIDIA_SMI.format(rows=TWO_GPUS.format(use=use)))


def test_a_machine_without_gpus_is_fine(place: Place, golden: Golden) -> None:
    golden(look_at_gpus(place), "driver", "ok", "NVIDIA", "CPUs")


def test_a_container_without_nvidia_smi_is_told(place: Place, golden: Golden) -> None:
    place.file("proc/driver/nvidia/version", "NVRM version: ...")

    verdict, what, remedy = look_at_gpus(place)["driver"]

    golden((verdict, what), "warning", "NVIDIA", "PATH")
    assert "--gpus all" in remedy


def test_gpus_that_work(place: Place, golden: Golden) -> None:
    with_gpus(place)

    golden(
        look_at_gpus(place, CUDA),
        "driver",
        "ok",
        "550.1",
        "CUDA 12.4",
        "2 GPUs",
        "NVIDIA H200",
        "PyTorch",
        "toolkit",
        "PATH",
    )


@pytest.mark.parametrize(
    ("torch", "name", "verdict", "what"),
    [
        (
            TORCH,
            "PyTorch and GPUs",
            "warning",
            "PyTorch",
        ),
        (
            {**CUDA, "cuda": "13.0"},
            "PyTorch and driver",
            "fail",
            "CUDA 13.0",
        ),
        (
            {**CUDA, "device_problem": "out of memory"},
            "PyTorch and GPUs",
            "fail",
            "PyTorch",
        ),
        ({**CUDA, "devices": 0}, "PyTorch and GPUs", "fail", "PyTorch"),
    ],
)
def test_pytorch_and_gpus_are_held_against_each_other(
    place: Place, torch: dict[str, Any], name: str, verdict: str, what: str, golden: Golden
) -> None:
    with_gpus(place)

    golden(look_at_gpus(place, torch)[name][:2], verdict, what)


@pytest.mark.parametrize(
    ("visible", "verdict", "what"),
    [
        ("0", "ok", "2 GPUs"),
        ("0,1", "ok", "2 GPUs"),
        ("", "warning", "2 GPUs"),
        ("-1", "warning", "2 GPUs"),
        ("NoDevFiles", "warning", "NoDevFiles"),
        ("GPU-5f,1", "ok", "GPU-5f,1"),
        ("1,-1,0", "fail", "1,-1,0"),
        ("one", "fail", "GPUs"),
        ("0,5", "fail", "GPUs"),
        ("1,1", "fail", "1,1"),
    ],
)
def test_what_cuda_visible_devices_does(place: Place, visible: str, verdict: str, what: str, golden: Golden) -> None:
    with_gpus(place)
    place.environ["CUDA_VISIBLE_DEVICES"] = visible

    golden(look_at_gpus(place)["CUDA_VISIBLE_DEVICES"][:2], verdict, what)


def test_cuda_visible_devices_without_gpus_is_odd(place: Place, golden: Golden) -> None:
    place.environ["CUDA_VISIBLE_DEVICES"] = "0"

    golden(look_at_gpus(place)["CUDA_VISIBLE_DEVICES"][:2], "warning", "GPU")


def test_gpus_that_are_in_use(place: Place, golden: Golden) -> None:
    with_gpus(place, use=93)

    golden(look_at_gpus(place)["others"][:2], "warning", "GPU")


def test_a_driver_that_does_not_work(place: Place, golden: Golden) -> None:
    place.program("nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch' >&2; exit 18")

    verdict, what, _ = look_at_gpus(place)["driver"]

    assert verdict == "fail"
    golden(what, "NVML", "Driver/library")
    place.program("nvidia-smi", "true")
    golden(look_at_gpus(place)["driver"][:2], "fail", "GPU")


def test_gpus_of_a_partition(place: Place, golden: Golden) -> None:
    local = Partition(name="desk", gpus_per_node=2, cores_per_node=4)
    far = Partition(name="alpha", scheduler="slurm", gpus_per_node=8, cores_per_node=48)

    golden(look_at_gpus(place, partition=local)["partition"], "fail", "2 GPUs", "gpus_per_node")
    golden(look_at_gpus(place, partition=far)["partition"], "ok", "GPUs")
    assert "PyTorch and GPUs" not in look_at_gpus(place, partition=far, torch=CUDA)
    golden(look_at_gpus(place, partition=far, torch=TORCH)["PyTorch and GPUs"], "warning", "alpha", "BUILDS")
    with_gpus(place)
    assert "partition" not in look_at_gpus(place, partition=local)


def test_nccl_and_what_the_environment_tells_it(place: Place, golden: Golden) -> None:
    place.environ |= {"NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "0"}

    result = found(GpuChecks(place.here, about(CUDA), quick=False).nccl)

    assert result["PyTorch"] == ok("NCCL 2.28.9")
    golden(result["NCCL_IB_DISABLE"][:2], "warning", "InfiniBand")
    assert "NCCL_P2P_DISABLE" not in result
    golden(found(GpuChecks(place.here, about(None), quick=True).nccl)["PyTorch"], "ok")
    golden(found(GpuChecks(place.here, about(TORCH), quick=False).nccl)["PyTorch"], "ok", "PyTorch", "CPUs")


# --------------------------------------------------------------------------------------------------- MPI and Horovod

OPEN_MPI_4 = "echo 'mpirun (Open MPI) 4.1.8'"
MPI4PY = {"version": "4.1.2", "says": "Open MPI v4.1.8, package: ...", "library": "/env/lib/libmpi.so.40"}


def look_at_mpi(place: Place, *, quick: bool = False) -> dict[str, tuple[str, str, str]]:
    return found(Mpi(place.here, about(None), quick=quick).mpi)


@pytest.mark.parametrize(
    ("said", "kind", "version"),
    [
        ("mpirun (Open MPI) 4.1.8\n\nReport bugs", "Open MPI", "4.1.8"),
        ("mpirun (Open MPI) 5.0.3rc1", "Open MPI", "5.0.3rc1"),
        ("Open MPI v4.1.8, package: Open MPI root@x Distribution, ident: 4.1.8", "Open MPI", "4.1.8"),
        ("HYDRA build details:\n    Version:                                 4.2.1\n", "MPICH", "4.2.1"),
        ("MPICH Version:      4.2.1\nMPICH Release date: x", "MPICH", "4.2.1"),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.12 Build 20240213",
            "Intel MPI",
            "2021.12",
        ),
        ("Intel(R) MPI Library 2021.12 for Linux* OS", "Intel MPI", "2021.12"),
        ("MPI VERSION    : CRAY MPICH version 8.1.28.11 (ANL base 3.4a2)", "Cray MPICH", "8.1.28.11"),
        ("MVAPICH2 Version      :\t2.3.7", "MVAPICH", "2.3.7"),
        ("a program", None, ""),
        ("", None, ""),
    ],
)
def test_which_mpi_it_is(said: str, kind: str | None, version: str) -> None:
    assert mpi_of(said)[:2] == (kind, version)


@pytest.mark.parametrize(("code", "version"), [(22809, "2.28.9"), (2804, "2.8.4"), (21000, "2.10.0")])
def test_the_version_of_nccl(code: int, version: str) -> None:
    assert nccl_version(code) == version


def test_an_mpi_that_belongs_together(place: Place) -> None:
    used = place.program("mpirun", f'[ "$1" = --version ] && {OPEN_MPI_4}; exit 0', beside=True)
    compiler = place.program("mpicc", "", beside=True)
    place.python(Get_library_version=MPI4PY)

    assert look_at_mpi(place) == {
        "mpirun": ok(f"Open MPI 4.1.8 ({used}, beside Python)"),
        "mpicc": ok(str(compiler)),
        "mpi4py": ok("4.1.2 with Open MPI 4.1.8 (/env/lib/libmpi.so.40)"),
        "mpirun and mpi4py": ok("both Open MPI 4.1.8"),
        "two ranks": ok("mpirun started two, and they found each other"),
    }


def test_another_mpi_first_on_path_is_told(place: Place, golden: Golden) -> None:
    place.program("mpirun", OPEN_MPI_4, beside=True)
    other = place.program("mpirun", "echo 'HYDRA build details:'; echo '    Version: 4.2.1'")

    golden(
        look_at_mpi(place, quick=True)["mpirun on PATH"],
        "warning",
        other,
        "MPICH 4.2.1",
        "PATH=",
        place.root / "bin",
    )


def test_a_launcher_of_another_mpi_fails(place: Place, golden: Golden) -> None:
    used = place.program(
        "mpirun", "echo 'HYDRA build details:'; echo '    Version: 4.2.1'; [ $1 = --version ] || exit 3"
    )
    place.python(Get_library_version=MPI4PY)

    result = look_at_mpi(place)

    golden(result["mpirun and mpi4py"], "fail", "mpi4py", used, "MPICH 4.2.1", "MPI 4.1.8 first", "PATH", "MPI=site")
    golden(result["two ranks"][:2], "fail", "MPI", "mpi4py")


def test_open_mpi_5_cannot_be_started_by_horovodrun(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    used = place.program("mpirun", "echo 'mpirun (Open MPI) 5.0.3'")
    what = (
        f"{used} is Open MPI 5.0.3: its launcher refuses the options of horovodrun 0.28.1 (-bind-to none, single dash)"
    )

    verdict, said, remedy = look_at_mpi(place, quick=True)["mpirun"]
    assert (verdict, said) == ("fail", what)
    assert "make setup MPI=wheel" in remedy

    monkeypatch.setattr(mpi, "installed", lambda name: None)
    assert look_at_mpi(place, quick=True)["mpirun"][:2] == ("warning", what)


def test_no_mpirun_and_no_mpi4py(place: Place, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(mpi, "installed", lambda name: None)

    result = look_at_mpi(place)

    golden(result["mpirun"][:2], "warning", "PATH", "horovod/mpi")
    golden(result["mpicc"], "ok", "PATH", "mpi4py")
    golden(result["mpi4py"][:2], "warning")


def test_an_mpi4py_without_its_library(place: Place, golden: Golden) -> None:
    place.program("mpirun", "echo unknown things", beside=True)
    place.python(Get_library_version="ImportError: libmpi.so.40: cannot open shared object file")

    result = look_at_mpi(place)

    golden(result["mpirun"][1])
    golden(result["mpi4py"][:2], "fail", "ImportError", "libmpi.so.40")
    assert "two ranks" not in result


def test_two_ranks_that_cannot_start(place: Place, golden: Golden) -> None:
    used = place.program(
        "mpirun", f'[ "$1" = --version ] && {OPEN_MPI_4} && exit 0; echo "no slots" >&2; exit 1', beside=True
    )
    place.python(Get_library_version=MPI4PY)

    verdict, what, remedy = look_at_mpi(place)["two ranks"]

    golden((verdict, what), "fail", "-np 2 did")
    golden(remedy, used, "-np", place.root / "bin" / "python", "-c")


HVD = {
    "version": "0.28.1",
    "folder": "/env/horovod",
    "mpi": True,
    "gloo": True,
    "nccl": 0,
    "cuda": False,
    "library": "/env/lib/libmpi.so.40",
}


def look_at_horovod(
    place: Place, torch: dict[str, Any] | None = TORCH, *, quick: bool = False, patience: float = 1.0
) -> dict[str, tuple[str, str, str]]:
    checks = Mpi(replace(place.here, patience=patience), about(torch), quick=quick)
    checks.mpi(Area("MPI"))
    return found(checks.horovod)


def test_a_horovod_that_works(place: Place, golden: Golden) -> None:
    place.program("horovodrun", "", beside=True)
    place.python(Get_library_version=MPI4PY, mpi_built=HVD, shutdown={"size": 1})

    golden(look_at_horovod(place), "ok", "0.28.1", "MPI", "mpi4py", "installed starts", "hvd.init")


def test_no_horovod_is_a_warning(place: Place, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(mpi, "installed", lambda name: None)

    golden(look_at_horovod(place), "version", "warning", "sweep.runtime")


@pytest.mark.parametrize(
    ("built", "starts", "name", "verdict", "what"),
    [
        (
            "ImportError: mpi_lib_v2.so: undefined symbol: _ZN3c10",
            {"size": 1},
            "installed",
            "fail",
            "mpi_lib_v2.so",
        ),
        (
            "ImportError: libmpi.so.40: cannot open shared object file",
            {"size": 1},
            "installed",
            "fail",
            "libmpi.so.40",
        ),
        ({**HVD, "mpi": False}, {"size": 1}, "installed", "warning", "0.28.1"),
        (
            {**HVD, "mpi": False, "gloo": False},
            {"size": 1},
            "installed",
            "warning",
            "0.28.1",
        ),
        (
            {**HVD, "nccl": 22007},
            {"size": 1},
            "installed NCCL",
            "warning",
            "NCCL 2.20.7",
        ),
        (
            {**HVD, "library": "/usr/lib/libmpi.so.12"},
            {"size": 1},
            "installed and mpi4py",
            "fail",
            "/usr/lib/libmpi.so.12",
        ),
        (
            HVD,
            "MPI_Init failed",
            "installed starts",
            "fail",
            "hvd.init",
        ),
        (HVD, {"size": 2}, "installed starts", "fail", "2 workers"),
        (
            HVD,
            {"size": 1},
            "horovodrun",
            "fail",
            "PATH",
        ),
    ],
)
def test_what_may_be_wrong_with_horovod(
    place: Place, built: object, starts: object, name: str, verdict: str, what: str, golden: Golden
) -> None:
    place.python(Get_library_version=MPI4PY, mpi_built=built, shutdown=starts)

    golden(look_at_horovod(place, CUDA)[name][:2], verdict, what)


def test_a_horovod_that_hangs_ends_with_a_finding(place: Place, golden: Golden) -> None:
    place.program(
        "python",
        'case "$2" in *shutdown*) sleep 60;; *mpi_built*) echo ' + shlex.quote(json.dumps(HVD)) + ";; esac",
        beside=True,
    )

    verdict, what, remedy = look_at_horovod(place, patience=0.02)["installed starts"]

    golden((verdict, what), "fail", "hvd.init", "0.6 s")
    golden(remedy, "MPI_Init")


def test_builds_side_by_side(place: Place, golden: Golden) -> None:
    for name in ("mpi", "nccl"):
        place.file(f"lib/horovod-builds/{name}/horovod/__init__.py", "")
    place.python(Get_library_version=MPI4PY, mpi_built=HVD, shutdown={"size": 1})

    result = look_at_horovod(place)

    golden(result["build mpi"], "ok", "0.28.1", "MPI")
    golden(result["build nccl"], "fail", "0.28.1", "MPI", "NCCL", 'BUILDS="nccl')
    assert look_at_horovod(place, quick=True)["builds"] == ok("mpi, nccl")


@pytest.mark.parametrize(
    ("by", "name", "wanted"),
    [
        ("MPI", "mpi", ok("Horovod 0.28.1 with MPI, Gloo; GPU tensors are handed to MPI, which must be CUDA-aware")),
        ("NCCL", "nccl", ok("Horovod 0.28.1 with MPI, Gloo, NCCL 2.28.9; GPU tensors go over NCCL")),
        ("none", "cpu", ok("Horovod 0.28.1 with MPI, Gloo")),
        (
            "host",
            "mpi",
            (
                "fail",
                "Horovod 0.28.1 with MPI, Gloo; GPU tensors go through the host's memory: the build called mpi hands "
                "no GPU tensors to MPI",
                'make setup BUILDS="nccl mpi"',
            ),
        ),
    ],
)
def test_what_reduces_gpu_tensors_is_told(place: Place, by: str, name: str, wanted: tuple[str, str, str]) -> None:
    place.file(f"lib/horovod-builds/{name}/horovod/__init__.py", "")
    built = {**HVD, "gpu_allreduce": by, "nccl": 22809 if by == "NCCL" else 0}
    place.python(Get_library_version=MPI4PY, mpi_built=built, shutdown={"size": 1})

    assert look_at_horovod(place)[f"build {name}"] == wanted


def test_a_horovod_for_another_pytorch_is_seen_without_loading_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    place.file("packages/horovod/__init__.py", "")
    place.file("packages/horovod/metadata.json", '{"pytorch": "2.11.0+cpu"}')
    monkeypatch.setattr(sys, "path", [str(place.root / "packages")])

    golden(look_at_horovod(place, quick=True)["PyTorch"][:2], "fail", "PyTorch 2.11.0+cpu", "2.13.0+cpu")


# ----------------------------------------------------------------------------------------------------------- network


def card(name: str, address: str, *, speed_mbits: int = 1000, loopback: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "address": address,
        "network": f"{address}/24",
        "loopback": loopback,
        "speed_mbits": speed_mbits,
        "mtu": 1500,
    }


LO = card("lo", "127.0.0.1", loopback=True)
ETH, IB, DOCKER = card("eth0", "10.0.0.1"), card("ib0", "10.1.0.1", speed_mbits=200_000), card("docker0", "172.17.0.1")


def look_at_network(
    place: Place, cards: list[dict[str, Any]], *, several: bool = True, interface: str | None = None
) -> dict[str, tuple[str, str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "own_interfaces", lambda: cards)
        return found(NetworkChecks(place.here, several_hosts=several, interface=interface).check_interfaces)


def test_interfaces_are_those_that_are_up_and_have_an_address() -> None:
    def each(address: str, netmask: str = "255.255.255.0") -> SimpleNamespace:
        return SimpleNamespace(family=socket.AF_INET, address=address, netmask=netmask)

    addresses = {
        "lo": [each("127.0.0.1", "255.0.0.0")],
        "eth0": [each("10.77.0.1"), SimpleNamespace(family=socket.AF_INET6, address="fe80::1", netmask=None)],
        "down": [each("10.9.0.1")],
        "bare": [],
    }
    stats = {name: SimpleNamespace(isup=name != "down", speed=1000, mtu=1500) for name in addresses}

    assert [(card["name"], card["network"], card["loopback"]) for card in interfaces(addresses, stats)] == [
        ("eth0", "10.77.0.0/24", False),
        ("lo", "127.0.0.0/8", True),
    ]


def test_one_network_is_fine(place: Place) -> None:
    assert look_at_network(place, [LO, ETH]) == {"interfaces": ok("eth0 10.0.0.1 (1000 Mbit/s, MTU 1500)")}
    assert look_at_network(place, [LO, card("eth0", "10.0.0.1", speed_mbits=0)]) == {
        "interfaces": ok("eth0 10.0.0.1 (speed unknown, MTU 1500)")
    }


def test_only_the_loopback(place: Place, golden: Golden) -> None:
    golden(look_at_network(place, [LO], several=False)["interfaces"], "ok")
    golden(look_at_network(place, [LO])["interfaces"], "fail")


def test_several_networks_ask_for_a_choice(place: Place, golden: Golden) -> None:
    verdict, what, remedy = look_at_network(place, [LO, ETH, IB])["several networks"]

    golden((verdict, what), "warning", "eth0", "ib0")
    golden(remedy, "ib0")
    assert "several networks" not in look_at_network(place, [LO, ETH, IB], interface="ib0")
    assert "several networks" not in look_at_network(place, [LO, ETH, IB], several=False)


def test_networks_of_containers_are_traps(place: Place, golden: Golden) -> None:
    result = look_at_network(place, [LO, ETH, DOCKER])

    golden(result["inner networks"][:2], "warning", "docker0", "MPI")
    assert "several networks" not in result


def test_an_interface_that_is_not_there(place: Place, golden: Golden) -> None:
    golden(look_at_network(place, [LO, ETH], interface="ib0")["interface"], "fail", "ib0", "IPv4", "eth0")


@pytest.mark.parametrize(
    ("addresses", "several", "interface", "verdict", "what"),
    [
        (["10.0.0.1"], True, None, "ok", "10.0.0.1"),
        (
            ["127.0.1.1"],
            False,
            None,
            "ok",
            "127.0.1.1",
        ),
        (["127.0.1.1"], True, "eth0", "ok", "127.0.1.1"),
        (
            ["127.0.1.1"],
            True,
            None,
            "warning",
            "127.0.1.1",
        ),
    ],
)
def test_what_the_own_name_stands_for(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    addresses: list[str],
    several: bool,
    interface: str | None,
    verdict: str,
    what: str,
    golden: Golden,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (each, 0)) for each in addresses])
    monkeypatch.setattr(platform, "node", lambda: "node1")

    checks = NetworkChecks(place.here, several_hosts=several, interface=interface)

    golden(found(checks.own_name)["own name"][:2], verdict, what)


@pytest.mark.parametrize(("several", "verdict"), [(True, "fail"), (False, "warning")])
def test_an_own_name_that_nobody_knows(
    place: Place, monkeypatch: pytest.MonkeyPatch, several: bool, verdict: str, golden: Golden
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(platform, "node", lambda: "node1")

    result = found(NetworkChecks(place.here, several_hosts=several, interface=None).own_name)["own name"]

    assert result[0] == verdict
    golden(result[1], "node1")


@pytest.mark.parametrize(
    ("variable", "value", "verdict"),
    [
        ("HOROVOD_GLOO_IFACE", "eth0", "ok"),
        ("HOROVOD_GLOO_IFACE", "ib0", "fail"),
        ("NCCL_SOCKET_IFNAME", "eth", "ok"),
        ("NCCL_SOCKET_IFNAME", "=eth", "fail"),
        ("OMPI_MCA_btl_tcp_if_include", "eth0,ib0", "fail"),
        ("OMPI_MCA_btl_tcp_if_include", "10.0.0.0/24", None),
        ("NCCL_SOCKET_IFNAME", "^docker", None),
    ],
)
def test_variables_that_name_an_interface(
    place: Place, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, verdict: str | None, golden: Golden
) -> None:
    place.environ[variable] = value
    monkeypatch.setattr(network, "own_interfaces", lambda: [LO, ETH])

    result = found(NetworkChecks(place.here, several_hosts=True, interface=None).variables)

    assert result.get(variable, (None,))[0] == verdict
    if verdict == "fail":
        golden(result[variable][1], "eth0")


def test_infiniband_that_is_left_aside(place: Place, golden: Golden) -> None:
    fast = NetworkChecks(place.here, several_hosts=True, interface=None).fast
    golden(found(fast), "InfiniBand", "ok", "TCP")

    place.file("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    golden(found(fast)["InfiniBand"][:2], "warning", "TCP")
    place.file("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE")
    assert found(fast)["InfiniBand"][1].startswith("1 active port: mlx5_0:1; ")


# --------------------------------------------------------------------------------------------------------------- ssh

FAKE_SSH = """
while [ "$1" = -o ]; do shift 2; done
host=$1; shift 2
case "$host" in
{cases}
esac
FAKE_HOST=$host; export FAKE_HOST
exec sh -c "$*"
"""
FAKE_PYTHON = """#!{python} -S
import json, os, sys
host = os.environ["FAKE_HOST"]
said = json.loads(sys.stdin.readline())
assert "def main()" in said, "the probe is sent first"
story = json.load(open(os.path.join({folder!r}, host + ".json")))
def say(value): print("horovod-study-doctor:" + json.dumps(value), flush=True)
print("a module was loaded")
say({{"ready": True}})
question = json.loads(sys.stdin.readline())
say({{"utc_s": story.pop("utc_s", None) or {clock}}})
reached = story.pop("reached")
if story["scratch"]:
    story["scratch"] = open(question["scratch"]).read() == question["content"]
say(story)
line = sys.stdin.readline()
if line:
    assert json.loads(line)["peers"][0][0] in question["names"]
    say({{"reached": reached}})
"""
CLOCK = "__import__('datetime').datetime.now(__import__('datetime').timezone.utc).timestamp()"


@pytest.fixture
def pair(place: Place, monkeypatch: pytest.MonkeyPatch) -> "Pair":
    monkeypatch.setattr(hosts, "this_host", lambda name: False)
    monkeypatch.setattr(hosts, "code_digest", lambda: "abc")
    return Pair(place)


class Pair:
    """node1 and node2 behind an ssh that is a script; what they say of themselves can be changed."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.cases: dict[str, str] = {}
        self.stories = {f"node{n}": self._story(n) for n in (1, 2)}

    @staticmethod
    def _story(n: int) -> dict[str, Any]:
        other = 3 - n
        return {
            "host": f"node{n}",
            "port": 4000 + n,
            "python": "3.11.2",
            "packages": {
                "horovod_study": "0.1.0",
                "torch": "2.13.0+cpu",
                "horovod": "0.28.1",
                "mpi4py": "4.1.2",
                "numpy": "2.4.0",
            },
            "resolved": {f"node{n}": [f"10.0.0.{n}"], f"node{other}": [f"10.0.0.{other}"]},
            "scratch": True,
            "cores": 4,
            "load": 0.0,
            "boot": f"boot {n}",
            "interfaces": [LO, card("eth0", f"10.0.0.{n}")],
            "code": "abc",
            "worries": [],
            "reached": [{"peer": f"node{other}", "address": f"10.0.0.{other}", "from": f"10.0.0.{n}", "problem": ""}],
        }

    def look(
        self, *named: str, interface: str | None = None, patience: float = 1.0, quick: bool = False, slots: int = 2
    ) -> dict[str, tuple[str, str, str]]:
        cases = "\n".join(f"{host}) {action} ;;" for host, action in self.cases.items())
        self.place.program("ssh", FAKE_SSH.format(cases=cases))
        stories = self.place.root / "stories"
        stories.mkdir(exist_ok=True)
        for name, story in self.stories.items():
            (stories / f"{name}.json").write_text(json.dumps(story))
        python = self.place.root / "bin" / "python"
        if not python.exists():
            python.write_text(FAKE_PYTHON.format(python=sys.executable, folder=str(stories), clock=CLOCK))
            python.chmod(0o755)
        wanted = [Host(name=name, slots=slots) for name in named or ("node1", "node2")]
        here = replace(self.place.here, patience=patience)
        check = Hosts(here, wanted, self.place.root / "runs", interface=interface, quick=quick).check
        result = found(check)
        assert list(self.place.root.glob(".doctor.*")) == [], "the scratch folder is removed"
        return result


def test_two_hosts_that_work(pair: Pair, golden: Golden) -> None:
    result = pair.look()

    assert {name: each[0] for name, each in result.items() if each[0] != "ok"} == {}
    assert list(result) == [
        *(
            f"{host}{what}"
            for host in ("node1", "node2")
            for what in ("", " packages", " horovod_study", " runs", " clock")
        ),
        "host names",
        "node1 to node2",
        "node2 to node1",
    ]
    golden(result["node1"], "ok")
    golden(result["node1 horovod_study"], "ok", "0.1.0")
    assert result["node1 to node2"] == ok("through eth0 to 10.0.0.2")
    golden(result["host names"], "ok", "2 hosts")


@pytest.mark.parametrize(
    ("said", "code", "what", "remedy"),
    [
        (
            "node2: Permission denied (publickey,password).",
            255,
            "",
            "-t ed25519",
        ),
        (
            "Host key verification failed.",
            255,
            "",
            "node2",
        ),
        (
            "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\\nHost key verification failed.",
            255,
            "",
            "-R node2",
        ),
        (
            "ssh: Could not resolve hostname node2: Name or service not known",
            255,
            "node2",
            "~/.ssh/config",
        ),
        (
            "ssh: connect to host node2 port 22: Connection refused",
            255,
            "node2 port 22",
            "~/.ssh/config",
        ),
        (
            "ssh: connect to host node2 port 22: No route to host",
            255,
            "node2 port 22",
            "",
        ),
        (
            "ssh: connect to host node2 port 22: Connection timed out",
            255,
            "node2 port 22",
            "",
        ),
        (
            "Access denied by pam_slurm_adopt: you have no active jobs on this node",
            255,
            "pam_slurm_adopt",
            "",
        ),
        (
            "Permissions 0666 are too open: UNPROTECTED PRIVATE KEY FILE!\\nnode2: Permission denied (publickey).",
            255,
            "",
            "600 ~/.ssh/id_ed25519",
        ),
        (
            "ssh: connect to host node2 port 22: Network is unreachable",
            255,
            "node2 port 22",
            "",
        ),
        (
            "kex_exchange_identification: Connection closed by remote host",
            255,
            "",
            "MaxStartups",
        ),
        ("strange", 7, "", "-o BatchMode=yes node2"),
    ],
)
def test_why_ssh_does_not_work(pair: Pair, said: str, code: int, what: str, remedy: str, golden: Golden) -> None:
    pair.cases["node2"] = f"printf '{said}\\n' >&2; exit {code}"

    result = pair.look("node2")

    golden(result, "node2", "fail", what, remedy)


def test_one_host_that_is_out_of_reach_does_not_hide_the_other(pair: Pair, golden: Golden) -> None:
    pair.cases["node2"] = "echo 'ssh: connect to host node2 port 22: Connection refused' >&2; exit 255"

    result = pair.look()

    assert result["node2"][0] == "fail"
    golden(result["node1 packages"], "ok", "3.11.2")
    assert "node1 to node2" not in result


def test_an_ssh_that_hangs_ends_with_a_finding(pair: Pair, golden: Golden) -> None:
    pair.cases["node2"] = "sleep 60"

    golden(pair.look("node2", patience=0.05), "node2", "fail", "0.6 s")


def test_a_shell_that_chatters_is_a_fail(pair: Pair, golden: Golden) -> None:
    pair.cases["node2"] = "echo 'Welcome to node2'"

    verdict, what, remedy = pair.look()["node2 shell"]

    assert verdict == "fail"
    golden(what, "node2")
    assert remedy.startswith("in ~/.bashrc")


def test_no_ssh_here(pair: Pair, golden: Golden) -> None:
    (pair.place.root / "site" / "ssh").unlink(missing_ok=True)
    area = Area("ssh")
    Hosts(pair.place.here, [Host(name="node2", slots=1)], pair.place.root, interface=None, quick=False).check(area)

    golden(area.findings[0].what)


def test_this_machine_needs_no_ssh(pair: Pair, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(hosts, "this_host", lambda name: name == "node1")
    pair.place.environ["FAKE_HOST"] = "node1"
    pair.cases["node1"] = "exit 1"

    result = pair.look()

    golden(result["node1"], "ok")
    assert result["node1 to node2"] == ok("through eth0 to 10.0.0.2")


def test_no_python_there(pair: Pair, golden: Golden) -> None:
    python = pair.place.root / "bin" / "python"
    pair.cases["node2"] = f'case "$*" in *python*) echo "sh: {python}: No such file or directory" >&2; exit 127;; esac'

    result = pair.look()

    golden(result["node2 Python"], "fail", python)
    pair.cases["node2"] = 'case "$*" in *python*) sleep 60;; esac'
    golden(pair.look("node2", patience=0.05)["node2 Python"][1], "1.5 s")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "name", "verdict", "what"),
    [
        (
            {
                "packages": {
                    "horovod_study": "0.1.0",
                    "torch": "2.11.0",
                    "horovod": None,
                    "mpi4py": "4.1.2",
                    "numpy": "2.4.0",
                }
            },
            "node2 packages",
            "fail",
            "torch 2.11.0 there, 2.13.0+cpu here; horovod missing there, 0.28.1 here",
        ),
        ({"packages": {}}, "node2 horovod_study", "fail", "not installed there"),
        (
            {"code": "def"},
            "node2 horovod_study",
            "fail",
            "its source differs from this machine's (digest def there, abc here)",
        ),
        (
            {"code": None, "packages": {**Pair._story(2)["packages"], "horovod_study": "0.2.0"}},
            "node2 horovod_study",
            "fail",
            "0.2.0 there, 0.1.0 here",
        ),
        ({"code": None}, "node2 horovod_study", "ok", "0.1.0, the same version as here"),
        ({"utc_s": 4e9}, "node2 clock", "warning", " s ahead of this machine's"),
        ({"utc_s": 1e9}, "node2 clock", "warning", " s behind this machine's"),
        ({"cores": 1}, "node2 slots", "warning", "2 workers on 1 core: they would share cores"),
        (
            {"host": "node1"},
            "host names",
            "fail",
            "node1 and node2 all call themselves node1: Gloo and Open MPI take them for one machine",
        ),
        (
            {"resolved": {"node2": ["10.0.0.2"], "node1": []}},
            "node2 knows",
            "fail",
            "node1 is unknown there: launchers on it cannot reach the others by name",
        ),
        (
            {"resolved": {"node2": ["10.0.0.2"], "node1": ["127.0.0.1"]}},
            "node2 knows",
            "fail",
            "there node1 stands for 127.0.0.1, the loopback",
        ),
        (
            {"resolved": {"node2": ["127.0.1.1"], "node1": ["10.0.0.1"]}},
            "node2 own name",
            "warning",
            "there node2 stands for 127.0.1.1: Gloo would listen where no other host reaches it",
        ),
        (
            {"reached": [{"peer": "node1", "address": "10.0.0.1", "from": None, "problem": "timed out"}]},
            "node2 to node1",
            "fail",
            "no TCP connection to a free port (10.0.0.1: timed out)",
        ),
        (
            {"worries": [asdict(Finding(area="a", name="memory", verdict="warning", what="little", remedy="more"))]},
            "node2 memory",
            "warning",
            "little",
        ),
    ],
)
def test_what_may_be_wrong_with_a_host(pair: Pair, change: dict[str, Any], name: str, verdict: str, what: str) -> None:
    pair.stories["node2"] |= change

    result = pair.look()

    assert result[name][0] == verdict
    assert what in result[name][1]


def test_a_folder_that_is_not_shared(pair: Pair, golden: Golden) -> None:
    pair.stories["node2"]["scratch"] = False

    golden(pair.look()["node2 runs"], "fail", pair.place.root, "--runs")


def test_several_ways_between_the_hosts(pair: Pair, golden: Golden) -> None:
    for n, other in ((1, 2), (2, 1)):
        story = pair.stories[f"node{n}"]
        story["interfaces"].append(card("ib0", f"10.1.0.{n}"))
        story["reached"].append(
            {"peer": f"node{other}", "address": f"10.1.0.{other}", "from": f"10.1.0.{n}", "problem": ""}
        )

    result = pair.look()

    golden(result["node1 to node2"], "ok", "eth0", "10.0.0.2", "ib0", "10.1.0.2")
    golden(result["several networks"][:2], "warning", "eth0", "ib0")
    assert "several networks" not in pair.look(interface="ib0")
    golden(pair.look(interface="ib1")["node1 to node2"], "fail", "ib1", "eth0", "ib0")


def test_a_quick_examination_only_logs_in(pair: Pair) -> None:
    assert list(pair.look(quick=True)) == ["node1", "node2"]


def test_a_host_that_is_named_twice(pair: Pair, golden: Golden) -> None:
    result = pair.look("node1", "node1", quick=True)

    golden(result["hosts"], "fail", "node1:2")


def test_the_probe_reaches_and_does_not_talk_to_itself(tmp_path: Path) -> None:
    with socket.socket() as listener, socket.socket() as closed:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        closed.bind(("127.0.0.1", 0))
        open_port, closed_port = listener.getsockname()[1], closed.getsockname()[1]
        peers = [["a", ["127.0.0.1"], open_port], ["b", ["127.0.0.1", "10.9.9.9"], closed_port]]

        rows = probe.reached(peers, [{"address": "10.9.9.9"}])

    assert [(row["peer"], row["from"], row["problem"]) for row in rows] == [
        ("a", "127.0.0.1", ""),
        ("b", None, "Connection refused"),
    ]


def test_a_file_server_may_take_a_moment_to_show_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter((None, "older", "content"))
    monkeypatch.setattr(probe, "_content", lambda path: next(seen, None))
    monkeypatch.setattr(probe.threading.Event, "wait", lambda self, seconds: None)

    assert probe._seen("path", "content")
    assert not probe._seen("path", "content")


def test_the_probe_runs_as_it_is_sent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for real: this machine is asked in the way that another host would be."""
    monkeypatch.setattr(hosts, "this_host", lambda name: True)
    here = Here(environ=os.environ, python=Path(sys.executable))
    (place.root / "seen").write_text("content")

    with hosts.Conversation(here, "localhost") as talk:
        assert talk.hear(60.0) == {"ready": True}
        talk.say({"scratch": str(place.root / "seen"), "content": "content", "names": ["localhost"]})
        clock, facts = talk.hear(60.0), talk.hear(60.0)
        assert facts is not None and clock is not None
        talk.say({"peers": [["localhost", ["127.0.0.1"], facts["port"]]]})
        answer = talk.hear(60.0)

    assert facts["scratch"] is True
    assert facts["host"] == platform.node()
    assert facts["resolved"]["localhost"] == ["127.0.0.1"]
    assert "lo" in {each["name"] for each in facts["interfaces"]}
    assert answer == {"reached": []} or answer["reached"][0]["from"] is not None  # 127.0.0.1 is its own address
    assert facts["code"] == hosts.code_digest()
    assert isinstance(facts["worries"], list)


# ------------------------------------------------------------------------------------------------------------- Slurm

NODES = "\n".join(f"n{n}|4|4000|gpu:2|{{state}}|1:00:00|{{up}}|main*" for n in (1, 2))
MAIN = Partition(
    name="mine",
    scheduler="slurm",
    slurm_partition="main",
    nodes=2,
    cores_per_node=4,
    gpus_per_node=2,
    gres="gpu:{gpus}",
)


def with_slurm(place: Place, *, state: str = "idle", up: str = "up", sacct: str = "true", sbatch: str = "") -> None:
    nodes = NODES.format(state=state, up=up)
    place.program(
        "sinfo",
        f"case \"$*\" in *alpha*) ;; *%R*) echo main; echo urgent ;; *) cat <<'END'\n{nodes}\nEND\n;; esac",
    )
    place.program("squeue", "echo RUNNING; echo PENDING")
    place.program("sbatch", sbatch or "echo 'sbatch: Job 7 to start at noon' >&2")
    place.program(
        "srun", "printf 'MPI plugin types are...\\n\\tnone\\n\\tpmix\\nspecific versions available: pmix_v4\\n'"
    )
    place.program("scancel", "")
    place.program("sacct", sacct)


def look_at_slurm(
    place: Place, partition: Partition | None = None, *, quick: bool = False
) -> dict[str, tuple[str, str, str]]:
    return found(Slurm(place.here, partition, quick=quick).check)


def test_no_slurm_is_fine_unless_it_is_wanted(place: Place, golden: Golden) -> None:
    golden(look_at_slurm(place), "programs", "ok")
    golden(look_at_slurm(place, MAIN)["programs"][:2], "fail", "PATH")
    place.program("sinfo", "")
    golden(look_at_slurm(place)["programs"][:2], "warning", "PATH")


def test_a_slurm_that_is_what_the_file_says(place: Place, golden: Golden) -> None:
    with_slurm(place)

    golden(
        look_at_slurm(place, replace(MAIN, memory_per_core_mb=1000, srun_mpi="pmix_v4")),
        "allocation",
        "ok",
        "answers",
        "2 nodes",
        "partition",
        "4000 MB",
        "GPUs",
        "srun --mpi",
        "pmix_v4",
        "--test-only",
        "squeue",
        "2 jobs",
        "sacct",
    )


@pytest.mark.parametrize(
    ("change", "name", "verdict", "what"),
    [
        ({"slurm_partition": "alpha"}, "partition", "fail", "alpha: there is no such partition, or it has no nodes"),
        ({"cores_per_node": 8}, "cores per node", "fail", "the file of mine says 8, Slurm knows 4"),
        ({"cores_per_node": 2}, "cores per node", "warning", "the file of mine says 2, Slurm knows 4"),
        (
            {"memory_per_core_mb": 10312},
            "memory per node",
            "fail",
            "10312 MB for each of 4 cores are 41248 MB, a node has 4000 MB",
        ),
        ({"gpus_per_node": 4}, "GPUs per node", "fail", "the file of mine says 4, Slurm knows 2 (gres gpu:2)"),
        ({"gpus_per_node": 1}, "GPUs per node", "warning", "the file of mine says 1, Slurm knows 2 (gres gpu:2)"),
        (
            {"gres": None},
            "GPUs per node",
            "warning",
            "2, but the file of mine has no `gres`: jobs would not be given any",
        ),
        (
            {"time_limit_s": 7200.0},
            "time limit",
            "fail",
            "the file of mine says 7200 s, the longest job there is 3600 s",
        ),
        ({"nodes": 5}, "nodes", "warning", "the file of mine says 5, main has 2"),
        (
            {"nodes": None},
            "nodes",
            "warning",
            "the file of mine does not say how many, main has 2: a study that needs more would be submitted, and wait "
            "forever",
        ),
        ({"srun_mpi": "pmi2"}, "srun --mpi", "fail", "pmi2 is none of what this srun has: none, pmix, pmix_v4"),
        ({"modules": ("openmpi/4",)}, "modules", "fail", "module load openmpi/4: "),
    ],
)
def test_a_partition_is_held_against_its_file(
    place: Place, change: dict[str, Any], name: str, verdict: str, what: str
) -> None:
    with_slurm(place)

    result = look_at_slurm(place, replace(MAIN, **change))

    assert result[name][0] == verdict
    assert result[name][1].startswith(what)
    assert result[name][2]


def test_a_partition_without_a_name_is_the_default_one(place: Place, golden: Golden) -> None:
    with_slurm(place)

    golden(look_at_slurm(place, replace(MAIN, slurm_partition=None))["partition"], "ok", "2 nodes")


def test_modules_that_can_be_loaded(place: Place, golden: Golden) -> None:
    with_slurm(place)
    place.program("bash", "exit 0")

    golden(look_at_slurm(place, replace(MAIN, modules=("gcc", "openmpi/4")))["modules"], "ok", "openmpi/4")
    place.program("bash", "echo 'Lmod has detected the following error: unknown: openmpi/9' >&2")
    golden(look_at_slurm(place, replace(MAIN, modules=("openmpi/9",)))["modules"][:2], "fail", "openmpi/9")


@pytest.mark.parametrize(
    ("state", "up", "verdict", "what"),
    [
        ("idle", "down", "fail", ""),
        ("drained", "up", "fail", "2 nodes"),
        ("mixed-", "up", "ok", "2 nodes"),
        ("idle~", "up", "ok", "2 nodes"),
        ("down*", "up", "fail", "2 nodes"),
    ],
)
def test_states_of_a_partition(place: Place, state: str, up: str, verdict: str, what: str, golden: Golden) -> None:
    with_slurm(place, state=state, up=up)

    golden(look_at_slurm(place, MAIN)["partition"][:2], verdict, what)


def test_one_node_that_is_down(place: Place, golden: Golden) -> None:
    with_slurm(place)
    rows = NODES.format(state="idle", up="up").replace("n2|4|4000|gpu:2|idle", "n2|4|4000|gpu:2|down*")
    place.program("sinfo", f"cat <<'END'\n{rows}\nEND")

    golden(look_at_slurm(place, MAIN)["partition"][:2], "warning", "2 nodes", "n2")


@pytest.mark.parametrize(("partition", "verdict"), [(None, "warning"), (MAIN, "fail")])
def test_a_slurm_that_does_not_answer(place: Place, partition: Partition | None, verdict: str, golden: Golden) -> None:
    with_slurm(place)
    place.program("sinfo", "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1")

    result = look_at_slurm(place, partition)

    golden(result["answers"][:2], verdict)
    golden(result["answers"][2])
    assert "squeue" not in result


@pytest.mark.parametrize(
    "said",
    [
        "Invalid account or account/partition combination specified",
        "Invalid qos specification",
        "Requested node configuration is not available",
        "Something else",
    ],
)
def test_a_job_that_would_be_refused(place: Place, said: str, golden: Golden) -> None:
    with_slurm(place, sbatch=f"echo 'sbatch: error: {said}' >&2; exit 1")

    result = look_at_slurm(place, MAIN)["sbatch --test-only"]

    golden(result[:2], "fail", said)
    golden(result[2])


def test_the_job_that_is_tried_is_that_of_a_study(place: Place, golden: Golden) -> None:
    note = place.root / "asked"
    place.environ |= {"SBATCH_ACCOUNT": "wrong", "SLURM_CONF": "/etc/x.conf", "SLURM_JOB_ID": "9"}
    with_slurm(place, sbatch=f'echo "$* $SBATCH_ACCOUNT $SLURM_CONF $SLURM_JOB_ID" > {note}')

    result = look_at_slurm(place, replace(MAIN, account="a1", qos="high", memory_per_core_mb=1000))

    asked = note.read_text()
    assert asked.startswith("--test-only --job-name=horovod-study-doctor --partition=main --account=a1 --qos=high ")
    assert "--nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --gres=gpu:2 --mem-per-cpu=1000M --exclusive" in asked
    assert "wrong" not in asked and asked.rstrip().endswith(" /etc/x.conf"), "the caller's own settings are left out"
    golden(result["allocation"][1], "job 9")


def test_no_accounting_means_less_is_known(place: Place, golden: Golden) -> None:
    with_slurm(place, sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1")

    verdict, what, remedy = look_at_slurm(place)["sacct"]

    golden((verdict, what), "warning")
    golden(remedy)
    (place.root / "site" / "sacct").unlink()
    golden(look_at_slurm(place)["sacct"][1], "PATH")


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("gpu:2", 2),
        ("gpu:a100:4(S:0-1),shard:8", 4),
        ("(null)", 0),
        ("gpu:a100:2,gpu:h100:1", 3),
        ("gpu", 1),
        ("N/A", 0),
    ],
)
def test_gpus_in_gres(gres: str, count: int) -> None:
    assert gpus_in(gres) == count


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("1:00:00", 3600.0), ("30:00", 1800.0), ("2-12:00:00", 216_000.0), ("infinite", None), ("n/a", None)],
)
def test_a_time_limit_in_seconds(limit: str, seconds: float | None) -> None:
    assert seconds_of(limit) == seconds


# ------------------------------------------------------------------------------------------------------- runs folder


def test_a_folder_that_works(tmp_path: Path, golden: Golden) -> None:
    golden(
        found(lambda area: files.works(area, tmp_path / "not" / "yet")),
        "writable",
        "ok",
        tmp_path,
        "rename",
        "hard links",
        "its clock",
        "2 s",
    )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(golden: Golden) -> None:
    verdict, what, remedy = found(lambda area: files.works(area, Path("/proc/runs")))["writable"]

    assert verdict == "fail"
    golden(what, "/proc")
    golden(remedy, "--runs")


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)

    golden(found(lambda area: files.works(area, tmp_path))["writable"], "fail", tmp_path, "--runs")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("free", "verdict", "what"),
    [
        (10**12, "ok", "1 TB free at {}; a run takes up to about 50 MB"),
        (10**9, "warning", "1 GB free at {}; a run takes up to about 50 MB"),
        (10**8, "fail", "100 MB free at {}; a run takes up to about 50 MB"),
    ],
)
def test_room_for_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, verdict: str, what: str) -> None:
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))

    assert found(lambda area: files.space(area, tmp_path / "runs"))["space"][:2] == (verdict, what.format(tmp_path))


def test_no_room_for_more_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(
        files.os,
        "statvfs",
        lambda _: SimpleNamespace(f_files=100, f_favail=7, f_bavail=9, f_blocks=9, f_bfree=9, f_frsize=2**30),
    )

    golden(found(lambda area: files.space(area, tmp_path))["files"][:2], "warning", "7 more", tmp_path)


def test_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(files.os, "link", refused)

    verdict, what, remedy = found(lambda area: files.works(area, tmp_path))["hard links"]

    assert verdict == "fail"
    golden(what)
    assert "Lustre" in remedy


def test_hard_links_that_replace_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(files.os, "link", lambda there, name: Path(name).write_text("copy"))

    golden(found(lambda area: files.works(area, tmp_path))["hard links"][1])


def test_a_rename_that_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(files.os, "replace", lambda *_: None)
    golden(found(lambda area: files.works(area, tmp_path))["rename"][:2], "fail")

    def refused(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(files.os, "replace", refused)
    golden(found(lambda area: files.works(area, tmp_path))["rename"][:2], "fail")


@pytest.mark.parametrize(("apart_s", "what"), [(90.0, "90.0 s in the future"), (-90.0, "90.0 s in the past")])
def test_a_file_server_with_another_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart_s: float, what: str
) -> None:
    area = Area("files")
    files._clock(area, files.datetime.now(files.UTC).timestamp() + apart_s)

    assert area.findings[0].verdict == "warning"
    assert what in area.findings[0].what


MOUNTS = "\n".join(
    (
        "/dev/vda / ext4 rw 0 0",
        "server:/home /home nfs4 rw 0 0",
        "mds:/scratch /home/my\\040scratch lustre rw 0 0",
        "tmpfs /run tmpfs rw 0 0",
    )
)


@pytest.mark.parametrize(
    ("place_", "kind"),
    [
        ("/data/runs", ("ext4", "/")),
        ("/home/me/runs", ("nfs4", "/home")),
        ("/home/my scratch/runs", ("lustre", "/home/my scratch")),
        ("/homes", ("ext4", "/")),
    ],
)
def test_the_file_system_of_a_folder(place_: str, kind: tuple[str, str]) -> None:
    assert files.file_system(Path(place_), MOUNTS) == kind
    assert files.file_system(Path(place_), "") is None


def test_slurm_nodes_may_not_see_a_local_file_system(place: Place, golden: Golden) -> None:
    place.file("proc/self/mounts", "x / ext4 rw 0 0")

    def look(folder: Path) -> tuple[str, str, str]:
        return found(lambda area: files.kind(area, place.here, folder, several_hosts=True, slurm=True))["kind"]

    verdict, what, remedy = look(place.root / "runs")
    golden((verdict, what), "warning", place.root, "/runs", "ext4")
    golden(remedy)


@pytest.mark.parametrize(
    ("system", "several", "verdict"),
    [
        ("ext4", False, "ok"),
        ("ext4", True, "ok"),
        ("nfs4", True, "ok"),
        ("lustre", False, "ok"),
        ("tmpfs", False, "warning"),
        ("overlay", False, "warning"),
    ],
)
def test_what_a_kind_of_file_system_means(
    place: Place, system: str, several: bool, verdict: str, golden: Golden
) -> None:
    place.file("proc/self/mounts", f"x / {system} rw 0 0")

    result = found(lambda area: files.kind(area, place.here, place.root / "runs", several_hosts=several))["kind"]

    assert result[0] == verdict
    golden(result[1])


# ----------------------------------------------------------------------------------------------------------- machine


def stat_line(pid: int, name: str, parent: int) -> str:
    return f"{pid} ({name}) S {parent} " + "0 " * 31


def test_who_uses_the_processors(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(machine, "other_load", lambda cores, seconds: "other programs use 2.0 of 4 cores (a 2.0)")
    load = Load()

    verdict, what, _ = found(load.check)["load"]
    assert verdict == "warning"
    golden(what.rpartition(" ")[0], "2.0", "4 cores")
    assert found(lambda area: load.check(area, elsewhere=True))["load"][0] == "ok"
    load.told = None
    assert found(load.check)["load"][0] == "ok"
    load.problem = "no /proc"
    golden(found(load.check)["load"][1], "/proc")


def test_cores_and_quota(place: Place, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(machine, "available_cores", lambda: 4)
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 8)

    def look(workers: int = 0) -> dict[str, tuple[str, str, str]]:
        return found(lambda area: machine.cores(area, place.here, workers))

    golden(look(), "ok", "4 cores")
    golden(look(5)["cores"][:2], "warning", "5 workers", "4 cores")
    place.file("proc/self/cgroup", "0::/job/step")
    place.file("sys/fs/cgroup/job/cpu.max", "150000 100000")
    place.file("sys/fs/cgroup/job/step/cpu.max", "max 100000")
    assert machine.quota_cores(place.here) == 1.5
    place.file("sys/fs/cgroup/job/step/cpu.max", "250000 100000")  # the one around it is tighter
    verdict, what, remedy = look()["processor quota"]
    assert verdict == "warning"
    golden(what, "1.5 cores", "4 cores")
    golden(remedy, "1 workers")
    place.file("proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x")
    place.file("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "-1")
    place.file("sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000")
    assert "processor quota" not in look()
    place.file("sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us", "50000")
    place.file("sys/fs/cgroup/cpu/docker/cpu.cfs_period_us", "100000")
    assert machine.quota_cores(place.here) == 0.5
    monkeypatch.setattr(machine, "available_cores", lambda: 1)
    golden(look()["cores"][:2], "warning", "1 core")


@pytest.mark.parametrize(
    ("free", "verdict", "what"),
    [
        (None, "ok", ""),
        (8 * 10**9, "ok", "8 GB"),
        (10**8, "warning", "100 MB"),
    ],
)
def test_memory(monkeypatch: pytest.MonkeyPatch, free: int | None, verdict: str, what: str, golden: Golden) -> None:
    monkeypatch.setattr(machine.room, "available_bytes", lambda: free)

    golden(found(machine.memory)["memory"][:2], verdict, what)


def test_shared_memory(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(free: int) -> tuple[str, str, str]:
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: (2**36, 0, free * 2**20))
        return found(lambda area: machine.shared_memory(area, place.here))["shared memory"]

    shm = place.root / "shm"
    assert look(2**15) == ok(f"{shm}: 34.4 GB of 68.7 GB free")
    verdict, what, remedy = look(64)
    assert (verdict, what.partition(":")[0]) == ("warning", str(shm))
    assert "docker run --shm-size=1g" in remedy
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert look(2**15)[:2] == ("fail", f"{shm} cannot be written")
    shm.rmdir()
    assert look(2**15)[:2] == ("warning", f"there is no {shm}")


def test_limits(place: Place, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    values = {resource.RLIMIT_NOFILE: 256, resource.RLIMIT_MEMLOCK: 8 * 2**20}
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (values[which], values[which]))

    def look() -> dict[str, tuple[str, str, str]]:
        return found(lambda area: machine.limits(area, place.here))

    golden(look(), "open files", "warning", "256 per", "ulimit -n 4096", "locked memory", "ok", "InfiniBand")
    place.file("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE")
    values[resource.RLIMIT_NOFILE] = resource.RLIM_INFINITY
    assert look()["open files"] == ok("unlimited")
    golden(look()["locked memory"][:2], "warning", "8.39 MB", "InfiniBand", "mlx5_0:1", "MPI", "NCCL", "TCP")
    values[resource.RLIMIT_MEMLOCK] = resource.RLIM_INFINITY
    golden(look()["locked memory"], "ok", "InfiniBand")


@pytest.mark.parametrize(
    ("state", "several", "verdict"),
    [
        (True, True, "ok"),
        (None, True, "ok"),
        (False, False, "ok"),
        (False, True, "warning"),
    ],
)
def test_the_clock(
    place: Place, monkeypatch: pytest.MonkeyPatch, state: bool | None, several: bool, verdict: str, golden: Golden
) -> None:
    monkeypatch.setattr(machine, "synchronised", lambda: state)

    result = found(lambda area: machine.clock(area, place.here, several_hosts=several))

    golden(result["time server"][:2], verdict)
    golden(result["clock source"], "ok")


def test_a_clock_that_is_slow_to_read(place: Place, golden: Golden) -> None:
    place.file("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet")

    result = found(lambda area: machine.clock(area, place.here, several_hosts=False))

    golden(result["clock source"][:2], "warning")


@pytest.mark.parametrize(
    ("code", "release", "what"),
    [
        (0, "5.1.0", "thread_priority"),
        (1, "6.12.3-x", "thread_priority"),
        (1, "5.15.0", "6.12"),
    ],
)
def test_what_thread_priority_may_use(
    place: Place, monkeypatch: pytest.MonkeyPatch, code: int, release: str, what: str, golden: Golden
) -> None:
    place.program("python", f"exit {code}", beside=True)
    monkeypatch.setattr(platform, "release", lambda: release)

    golden(found(lambda area: machine.priority(area, place.here)), "ok", what)


def test_the_data_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setenv("HOROVOD_STUDY_DATA", str(tmp_path / "data"))

    def look(free: int) -> tuple[str, str, str]:
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
        return found(machine.data_cache)["data cache"]

    assert look(10**11) == ok(f"{tmp_path / 'data'}: 100 GB free")
    golden(look(10**9)[:2], "warning", tmp_path / "data", "1 GB", "2.42 GB")
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    golden(look(10**11)[:2], "fail", tmp_path / "data")


def test_processes_that_earlier_runs_left(place: Place, golden: Golden) -> None:
    def process(pid: int, name: str, parent: int, run: str = "") -> None:
        place.file(f"proc/{pid}/stat", stat_line(pid, name, parent))
        place.file(f"proc/{pid}/environ", f"A=1\0HOROVOD_STUDY_CELL={run}\0B=2" if run else "A=1")

    process(10, "horovod-study", 1)
    process(11, "mpirun", 10, "/runs/s/alive")
    process(12, "python", 11, "/runs/s/alive")
    process(20, "orted", 1, "/runs/s/remote")
    process(21, "python", 20, "/runs/s/remote")
    golden(found(lambda area: machine.leftovers(area, place.here)), "earlier runs", "ok")

    process(30, "python", 1, "/runs/s/dead")
    golden(
        found(lambda area: machine.leftovers(area, place.here))["earlier runs"],
        "warning",
        "1 process",
        "/runs/s/dead",
        "30",
    )
    process(31, "python", 30, "/runs/s/dead")
    golden(
        found(lambda area: machine.leftovers(area, place.here))["earlier runs"],
        "warning",
        "2 processes",
        "/runs/s/dead",
        "30 31",
    )


# -------------------------------------------------------------------------------------------------------- altogether


def test_everything_hangs_and_the_doctor_still_answers(place: Place) -> None:
    for name in ("nvidia-smi", "mpirun", "sinfo", "squeue", "sbatch", "srun", "scancel", "ssh"):
        place.program(name, "sleep 60")
    place.program("python", "sleep 60", beside=True)
    here = replace(place.here, patience=0.1)

    result = examine(hosts=[Host(name="node9", slots=1)], runs=place.root / "runs", here=here, quick=True)

    text = {(each.area, each.name): each.what for each in result}
    # On a busy machine the time of all is over before that of one is noticed: then its area says so in one line.
    for area, name, what in (
        ("CUDA", "driver", "nvidia-smi did not answer within 0.2 s"),
        ("Slurm", "answers", "did not answer within 0.2 s"),
        ("ssh", "node9", "it does not answer"),
    ):
        unanswered = any("no answer within" in told for (of, _), told in text.items() if of == area)
        assert what in text.get((area, name), "") or unanswered, (area, text)
    assert exit_code(result) == 1


def test_a_quick_examination_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real versions

    result = examine(runs=tmp_path, quick=True)

    assert [each for each in result if each.verdict == "fail"] == []
    areas = list(dict.fromkeys(each.area for each in result))
    assert areas == [
        "Python",
        "PyTorch",
        "CUDA",
        "NCCL",
        "MPI",
        "Horovod",
        "network",
        "Slurm",
        "runs folder",
        "machine",
    ]
    assert list(tmp_path.iterdir()) == []
    assert exit_code(result) == 0


@pytest.mark.horovod
def test_a_full_examination_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real versions

    result = examine(runs=tmp_path)

    assert [each for each in result if each.verdict == "fail"] == []
    told = {(each.area, each.name): each.what for each in result}
    assert told["MPI", "two ranks"] == "mpirun started two, and they found each other"
    assert told["Horovod", "installed starts"] == "hvd.init() of one worker works"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
def test_two_real_hosts_and_one_that_is_cut_off(two_hosts: TwoHosts, tmp_path: Path) -> None:
    ssh_alone = f"""
import json
from pathlib import Path
from horovod_study.cluster.doctor.finding import Area, Here
from horovod_study.cluster.doctor.hosts import Hosts
from horovod_study.cluster.partitions import Host
area, pair = Area("ssh"), [Host(name=name, slots=1) for name in ("node1", "node2")]
Hosts(Here(), pair, Path({str(tmp_path)!r}), interface=None, quick=False).check(area)
print(json.dumps({{each.name: (each.verdict, each.what) for each in area.findings}}))
"""
    told = json.loads(two_hosts.run("node1", [sys.executable, "-c", ssh_alone], check=True).stdout)
    told = {name: tuple(each) for name, each in told.items()}
    assert told["node1"] == ("ok", "this machine: launchers need no ssh to it")
    assert told["node2"] == ("ok", "reached over ssh without a password; its shell prints nothing")
    assert told["node2 runs"] == ("ok", f"it sees {tmp_path}")
    assert told["node2 horovod_study"][1].endswith("the same source as here")
    assert told["node1 to node2"] == ("ok", "through eth0 to 10.77.0.2")
    assert told["node2 to node1"] == ("ok", "through eth0 to 10.77.0.1")
    assert [each for each in told if told[each][0] == "fail"] == []

    program = Path(sys.executable).parent / "horovod-study"
    line = [program, "doctor", "--hosts", "node1:1,node2:1", "--runs", tmp_path, "--quick", "--json"]
    two_hosts.cut("node2")
    try:
        done = two_hosts.run("node1", line)
    finally:
        two_hosts.restore("node2")
    after = {each["name"]: each for each in json.loads(done.stdout)["findings"] if each["area"] == "ssh"}
    assert (done.returncode, after["node2"]["verdict"]) == (1, "fail")
    assert after["node2"]["what"].startswith(("it does not answer (", "there is no way to it ("))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
def test_a_real_slurm_and_files_that_do_not_fit_it(slurm: SlurmCluster) -> None:
    here = Here(environ=slurm.environment, python=Path(sys.executable))
    good = found(Slurm(here, MAIN, quick=False).check)
    bad = found(Slurm(here, replace(MAIN, gpus_per_node=3, cores_per_node=48, srun_mpi="pmix9"), quick=False).check)
    unknown = found(Slurm(here, replace(MAIN, slurm_partition="alpha"), quick=False).check)
    none = found(Slurm(here, None, quick=False).check)

    assert {name for name, each in good.items() if each[0] != "ok"} == {"sacct"}
    assert good["partition"] == ok("main is up, 2 of 2 nodes usable")
    assert good["sbatch --test-only"][1].endswith("using 4 processors on nodes n1 in partition main")
    assert good["sacct"][1] == "does not work: Slurm accounting storage is disabled"
    assert {name for name, each in bad.items() if each[0] == "fail"} == {
        "cores per node",
        "GPUs per node",
        "srun --mpi",
        "sbatch --test-only",
    }
    assert bad["srun --mpi"][1].startswith("pmix9 is none of what this srun has: ")
    assert unknown["partition"][2] == "set slurm_partition of mine to one of: main, urgent"
    assert unknown["sbatch --test-only"][1].endswith("invalid partition specified: alpha")
    assert none["squeue"] == ok("answers; 0 jobs of yours there")


def test_hosts_come_from_the_partition_where_none_are_given(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(Hosts, "check", lambda self, area: asked.append(tuple(each.name for each in self._hosts)))
    both = Partition(name="pair", scheduler="ssh", hosts=(Host(name="a", slots=1), Host(name="b", slots=1)))

    examine(partition=both, runs=place.root, here=place.here, quick=True)
    examine(partition=both, hosts=[Host(name="c", slots=1)], runs=place.root, here=place.here, quick=True)

    assert asked == [("a", "b"), ("c",)]


def test_the_environment_of_the_partition_is_what_is_looked_at(place: Place, golden: Golden) -> None:
    partition = Partition(name="desk", environment={"CUDA_VISIBLE_DEVICES": "3"})

    result = examine(partition=partition, runs=place.root, here=place.here, quick=True)

    golden.line([each.what for each in result], "GPU")


def test_worries_are_what_is_not_well_with_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.room, "available_bytes", lambda: 10)

    assert "memory" in {each.name for each in machine.worries()}
    assert "ok" not in {each.verdict for each in machine.worries()}


SAMPLE = [
    Finding(area="Python", name="version", verdict="ok", what="Python 3.11.2"),
    Finding(area="ssh", name="node2", verdict="fail", what="it refuses the key", remedy="ssh-copy-id node2"),
    Finding(area="ssh", name="node2 clock", verdict="warning", what="it is 3.0 s behind", remedy="start chronyd"),
    Finding(area="Python", name="packages", verdict="ok", what="all there"),
]


def test_plain_values_and_the_exit_code(golden: Golden) -> None:
    plain = doctor.to_dict(SAMPLE)

    assert plain["counts"] == {"ok": 2, "warning": 1, "fail": 1}
    golden(
        json.loads(json.dumps(plain))["findings"][1],
        "area",
        "ssh",
        "name",
        "node2",
        "verdict",
        "fail",
        "what",
        "remedy",
    )
    assert (exit_code(SAMPLE), exit_code(SAMPLE[:1]), exit_code([])) == (1, 0, 0)


def test_lines_are_grouped_and_aligned() -> None:
    assert [text.plain for text, _ in report._rows(SAMPLE)] == [
        "Python",
        "  ok       version      Python 3.11.2",
        "  ok       packages     all there",
        "ssh",
        "  fail     node2        it refuses the key",
        "           -> ssh-copy-id node2",
        "  warning  node2 clock  it is 3.0 s behind",
        "           -> start chronyd",
        "",
        "4 checks: 2 ok, 1 warning, 1 fail",
    ]
    assert report.summary(SAMPLE[:1]) == "1 check: 1 ok"
    assert report.summary([SAMPLE[1]] * 2 + [SAMPLE[2]] * 2) == "4 checks: 0 ok, 2 warnings, 2 fails"
    assert report.summary([]) == "0 checks: 0 ok"


def test_colours_are_for_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    long = [replace(SAMPLE[1], what=" ".join(["word"] * 40), remedy="[try] this")]
    report.show(long, Console(width=60))
    plain = capsys.readouterr().out
    report.show(long, Console(width=60, force_terminal=True, color_system="standard"))
    coloured = capsys.readouterr().out

    assert plain.splitlines()[1] == "  fail     node2  " + " ".join(["word"] * 40)
    assert "\x1b[" not in plain and "-> [try] this" in plain
    assert "\x1b[1;31mfail" in coloured
    wrapped = [line for line in coloured.splitlines() if "word" in line]
    assert len(wrapped) > 2
    assert all(line.startswith(" " * 18 + "word") for line in wrapped[1:])
    assert max(map(len, wrapped[1:])) <= 60
