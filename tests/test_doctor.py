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


def test_a_finding_has_a_known_verdict_and_a_remedy_where_one_is_needed() -> None:
    with pytest.raises(ValueError, match="verdict is 'bad'; allowed: ok, warning, fail"):
        Finding(area="a", name="n", verdict="bad", what="w")
    with pytest.raises(ValueError, match="a, n: a warning or fail has a remedy, an ok has none"):
        Finding(area="a", name="n", verdict="fail", what="w")
    with pytest.raises(ValueError, match="a, n: a warning or fail has a remedy, an ok has none"):
        Finding(area="a", name="n", verdict="ok", what="w", remedy="r")
    with pytest.raises(ValueError, match="has an area, a name and a text"):
        Finding(area="a", name="n", verdict="ok", what="")


def test_what_is_found_is_one_line() -> None:
    assert found(lambda area: area.ok("n", "two\n  lines"))["n"] == ok("two lines")


def test_a_check_that_breaks_is_a_finding_and_the_others_go_on() -> None:
    def breaks(area: Area) -> None:
        area.ok("before", "seen")
        raise KeyError("gone")

    result = guarded([("a", "breaks", breaks), ("b", "works", lambda area: area.ok("works", "well"))], 10.0)()

    assert [(each.area, each.name, each.verdict, each.what) for each in result] == [
        ("a", "before", "ok", "seen"),
        ("a", "breaks", "warning", "could not be checked: KeyError: 'gone'"),
        ("b", "works", "ok", "well"),
    ]


def test_a_check_that_hangs_is_a_finding() -> None:
    end = threading.Event()
    checks = [
        ("a", "quick", lambda area: area.ok("quick", "well")),
        ("b", "hangs", lambda _: end.wait()),
        ("c", "later", lambda area: area.ok("later", "well")),
    ]
    result = guarded(checks, 0.3)()  # type: ignore[arg-type]
    end.set()

    assert [(each.area, each.name, each.what) for each in result] == [
        ("a", "quick", "well"),
        ("b", "hangs", "could not be checked: no answer within 0.3 s"),
        ("c", "later", "could not be checked: no answer within 0.3 s"),
    ]


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


def test_a_program_that_is_not_there_is_a_reason(place: Place) -> None:
    answer = place.here.call([place.root / "nothing"], timeout_s=5.0)

    assert answer.reason() == f"{place.root / 'nothing'} cannot be started (No such file or directory)"


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
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place.file("checkout/.venv/bin/python", "")
    monkeypatch.setattr(software.horovod_study, "__file__", str(tmp_path / "checkout/horovod_study/__init__.py"))

    own = tmp_path / "checkout" / ".venv"
    assert found(Software(place.here, quick=True).environment)["environment"] == (
        "warning",
        f"{sys.prefix} is in use, but this checkout has an environment of its own, {own}",
        f"start {own}/bin/horovod-study instead, or remove {own}",
    )
    monkeypatch.setattr(sys, "prefix", str(own))
    assert found(Software(place.here, quick=True).environment) == {"environment": ok(str(own))}


def test_packages_that_pythonpath_puts_in_front_are_named(place: Place) -> None:
    (place.root / "other" / "torch").mkdir(parents=True)
    place.environ["PYTHONPATH"] = f":{place.root / 'other'}"

    verdict, what, remedy = found(Software(place.here, quick=True).environment)["PYTHONPATH"]

    assert verdict == "warning"
    assert what == f"it puts torch from {place.root / 'other'} before what is installed in the environment"
    assert remedy.startswith("unset PYTHONPATH")


def test_missing_packages_are_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "installed", lambda name: None if name in ("torch", "psutil") else "1")

    assert found(Software(place.here, quick=True).packages)["packages"] == (
        "fail",
        "not installed: torch, psutil",
        "run `make setup`, or pip install '.[train]'",
    )


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
        (TORCH, "version", "ok", "PyTorch 2.13.0+cpu, built for CPUs"),
        ({**TORCH, "cuda": "13.0"}, "version", "ok", "PyTorch 2.13.0+cpu, built for CUDA 13.0"),
        (TORCH, "computes", "ok", "a matrix product is right; 2 threads unless a run says so"),
        ({**TORCH, "computes": False}, "computes", "fail", "a product of two matrices of ones is wrong"),
        ({**TORCH, "gloo": False}, "Gloo", "warning", "this PyTorch has no Gloo: DDP works over NCCL only"),
        ("OSError: libc10.so", "loads", "fail", "PyTorch 2.13.0+cpu does not load: OSError: libc10.so"),
    ],
)
def test_pytorch_is_loaded_in_a_process_of_its_own(
    place: Place, answer: object, name: str, verdict: str, what: str
) -> None:
    place.python(ones=answer)

    assert found(Software(place.here, quick=False).torch)[name][:2] == (verdict, what)


@pytest.mark.slow
def test_the_examination_needs_no_pytorch(tmp_path: Path) -> None:
    """It is there to say that PyTorch is missing."""
    program = "import sys; sys.modules['torch'] = None; from horovod_study import cli; sys.exit(cli.main(sys.argv[1:]))"
    words = [sys.executable, "-c", program, "doctor", "--quick", "--json"]

    told = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert told.returncode in (0, 1), told.stderr
    assert json.loads(told.stdout)["findings"]


def test_pytorch_is_not_loaded_in_a_quick_examination(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    what = "PyTorch 2.13.0+cpu is installed (not loaded in a quick examination)"
    assert found(Software(place.here, quick=True).torch) == {"version": ok(what)}

    monkeypatch.setattr(software, "installed", lambda name: None)
    assert found(Software(place.here, quick=True).torch)["version"][:2] == (
        "fail",
        "PyTorch is not installed",
    )


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


def test_a_machine_without_gpus_is_fine(place: Place) -> None:
    assert look_at_gpus(place) == {"driver": ok("no NVIDIA driver on this machine: runs use its CPUs")}


def test_a_container_without_nvidia_smi_is_told(place: Place) -> None:
    place.file("proc/driver/nvidia/version", "NVRM version: ...")

    verdict, what, remedy = look_at_gpus(place)["driver"]

    assert (verdict, what) == ("warning", "the NVIDIA kernel module is loaded, but nvidia-smi is not on PATH")
    assert "--gpus all" in remedy


def test_gpus_that_work(place: Place) -> None:
    with_gpus(place)

    assert look_at_gpus(place, CUDA) == {
        "driver": ok("driver 550.1, good for CUDA 12.4"),
        "GPUs": ok("2 GPUs: NVIDIA H200"),
        "PyTorch and GPUs": ok("PyTorch computes on 2 GPUs"),
        "toolkit": ok("no nvcc on PATH: only needed to build Horovod for GPUs"),
    }


@pytest.mark.parametrize(
    ("torch", "name", "verdict", "what"),
    [
        (
            TORCH,
            "PyTorch and GPUs",
            "warning",
            "there are GPUs, but the installed PyTorch is built for CPUs: runs use the CPUs",
        ),
        (
            {**CUDA, "cuda": "13.0"},
            "PyTorch and driver",
            "fail",
            "PyTorch is built for CUDA 13.0, the driver is good for 12.4",
        ),
        (
            {**CUDA, "device_problem": "out of memory"},
            "PyTorch and GPUs",
            "fail",
            "PyTorch cannot compute on a GPU: out of memory",
        ),
        ({**CUDA, "devices": 0}, "PyTorch and GPUs", "fail", "PyTorch sees no GPU, though the driver does"),
    ],
)
def test_pytorch_and_gpus_are_held_against_each_other(
    place: Place, torch: dict[str, Any], name: str, verdict: str, what: str
) -> None:
    with_gpus(place)

    assert look_at_gpus(place, torch)[name][:2] == (verdict, what)


@pytest.mark.parametrize(
    ("visible", "verdict", "what"),
    [
        ("0", "ok", "0: 1 of 2 GPUs"),
        ("0,1", "ok", "0,1: 2 of 2 GPUs"),
        ("", "warning", "it is '': all 2 GPUs are hidden and runs use the CPUs"),
        ("-1", "warning", "it is '-1': all 2 GPUs are hidden and runs use the CPUs"),
        ("NoDevFiles", "warning", "it is 'NoDevFiles': all 2 GPUs are hidden and runs use the CPUs"),
        ("GPU-5f,1", "ok", "GPU-5f,1: 2 of 2 GPUs"),
        ("1,-1,0", "fail", "it is '1,-1,0', but GPUs count from 0 to 1: -1 and all after it are ignored"),
        ("one", "fail", "it is 'one', but GPUs count from 0 to 1: one and all after it are ignored"),
        ("0,5", "fail", "it is '0,5', but GPUs count from 0 to 1: 5 and all after it are ignored"),
        ("1,1", "fail", "it is '1,1': a GPU is named twice, which hides all"),
    ],
)
def test_what_cuda_visible_devices_does(place: Place, visible: str, verdict: str, what: str) -> None:
    with_gpus(place)
    place.environ["CUDA_VISIBLE_DEVICES"] = visible

    assert look_at_gpus(place)["CUDA_VISIBLE_DEVICES"][:2] == (verdict, what)


def test_cuda_visible_devices_without_gpus_is_odd(place: Place) -> None:
    place.environ["CUDA_VISIBLE_DEVICES"] = "0"

    assert look_at_gpus(place)["CUDA_VISIBLE_DEVICES"][:2] == ("warning", "it is '0', but there is no GPU here")


def test_gpus_that_are_in_use(place: Place) -> None:
    with_gpus(place, use=93)

    assert look_at_gpus(place)["others"][:2] == (
        "warning",
        "at work already: GPU 0; runs would share with whoever uses them",
    )


def test_a_driver_that_does_not_work(place: Place) -> None:
    place.program("nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch' >&2; exit 18")

    verdict, what, _ = look_at_gpus(place)["driver"]

    assert verdict == "fail"
    assert what == "nvidia-smi does not work: Failed to initialize NVML: Driver/library version mismatch"
    place.program("nvidia-smi", "true")
    assert look_at_gpus(place)["driver"][:2] == ("fail", "nvidia-smi lists no GPU")


def test_gpus_of_a_partition(place: Place) -> None:
    local = Partition(name="desk", gpus_per_node=2, cores_per_node=4)
    far = Partition(name="alpha", scheduler="slurm", gpus_per_node=8, cores_per_node=48)

    assert look_at_gpus(place, partition=local)["partition"] == (
        "fail",
        "the file of desk says 2 GPUs, this machine has 0",
        "set gpus_per_node to 0 in the file, or run on a machine that has them",
    )
    assert look_at_gpus(place, partition=far)["partition"] == ok(
        "GPUs are on the nodes of alpha; start the doctor in a job there to see them"
    )
    assert "PyTorch and GPUs" not in look_at_gpus(place, partition=far, torch=CUDA)
    assert look_at_gpus(place, partition=far, torch=TORCH)["PyTorch and GPUs"][:2] == (
        "warning",
        "the installed PyTorch is built for CPUs: runs on alpha would leave its GPUs idle",
    )
    with_gpus(place)
    assert "partition" not in look_at_gpus(place, partition=local)


def test_nccl_and_what_the_environment_tells_it(place: Place) -> None:
    place.environ |= {"NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "0"}

    result = found(GpuChecks(place.here, about(CUDA), quick=False).nccl)

    assert result["PyTorch"] == ok("NCCL 2.28.9")
    assert result["NCCL_IB_DISABLE"][:2] == (
        "warning",
        "it is 1: InfiniBand is switched off: nodes communicate over sockets",
    )
    assert "NCCL_P2P_DISABLE" not in result
    assert found(GpuChecks(place.here, about(None), quick=True).nccl)["PyTorch"] == ok(
        "not looked at in a quick examination"
    )
    assert found(GpuChecks(place.here, about(TORCH), quick=False).nccl)["PyTorch"] == ok(
        "none: this PyTorch is for CPUs"
    )


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


def test_another_mpi_first_on_path_is_told(place: Place) -> None:
    place.program("mpirun", OPEN_MPI_4, beside=True)
    other = place.program("mpirun", "echo 'HYDRA build details:'; echo '    Version: 4.2.1'")

    assert look_at_mpi(place, quick=True)["mpirun on PATH"] == (
        "warning",
        f"typed manually, `mpirun` is {other} (MPICH 4.2.1), another one than the studies use",
        f"export PATH={place.root / 'bin'}:$PATH, or unload the module it comes from",
    )


def test_a_launcher_of_another_mpi_fails(place: Place) -> None:
    used = place.program(
        "mpirun", "echo 'HYDRA build details:'; echo '    Version: 4.2.1'; [ $1 = --version ] || exit 3"
    )
    place.python(Get_library_version=MPI4PY)

    result = look_at_mpi(place)

    assert result["mpirun and mpi4py"] == (
        "fail",
        f"mpi4py loads Open MPI 4.1.8, but {used} is MPICH 4.2.1: every rank would take itself for the only one",
        "put the mpirun of Open MPI 4.1.8 first on PATH, or install for this one: make setup MPI=site",
    )
    assert result["two ranks"][:2] == (
        "fail",
        "mpirun started two, but each takes itself for the only one: it belongs to another MPI than mpi4py",
    )


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


def test_no_mpirun_and_no_mpi4py(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "installed", lambda name: None)

    result = look_at_mpi(place)

    assert result["mpirun"][:2] == (
        "warning",
        "neither beside Python nor on PATH: horovod/mpi and mpi runs cannot start",
    )
    assert result["mpicc"] == ok("none beside Python or on PATH: only needed to build Horovod and mpi4py")
    assert result["mpi4py"][:2] == ("warning", "not installed: runs of backend mpi cannot start")


def test_an_mpi4py_without_its_library(place: Place) -> None:
    place.program("mpirun", "echo unknown things", beside=True)
    place.python(Get_library_version="ImportError: libmpi.so.40: cannot open shared object file")

    result = look_at_mpi(place)

    assert result["mpirun"][1].endswith("mpirun does not say what it is: unknown things")
    assert result["mpi4py"][:2] == (
        "fail",
        "it does not load: ImportError: libmpi.so.40: cannot open shared object file",
    )
    assert "two ranks" not in result


def test_two_ranks_that_cannot_start(place: Place) -> None:
    used = place.program(
        "mpirun", f'[ "$1" = --version ] && {OPEN_MPI_4} && exit 0; echo "no slots" >&2; exit 1', beside=True
    )
    place.python(Get_library_version=MPI4PY)

    verdict, what, remedy = look_at_mpi(place)["two ranks"]

    assert (verdict, what) == ("fail", "mpirun -np 2 did not work: no slots")
    assert remedy.startswith(f"try it yourself: {used} -np 2 {place.root / 'bin' / 'python'} -c ")


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


def test_a_horovod_that_works(place: Place) -> None:
    place.program("horovodrun", "", beside=True)
    place.python(Get_library_version=MPI4PY, mpi_built=HVD, shutdown={"size": 1})

    assert look_at_horovod(place) == {
        "installed": ok("Horovod 0.28.1 with MPI, Gloo"),
        "installed and mpi4py": ok("both load the same MPI library"),
        "installed starts": ok("hvd.init() of one worker works"),
    }


def test_no_horovod_is_a_warning(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "installed", lambda name: None)

    assert look_at_horovod(place) == {
        "version": (
            "warning",
            "Horovod is not installed: only runs of serial, ddp, mpi and ps can start",
            "make setup (it builds Horovod), or leave the horovod runtimes out of sweep.runtime",
        )
    }


@pytest.mark.parametrize(
    ("built", "starts", "name", "verdict", "what"),
    [
        (
            "ImportError: mpi_lib_v2.so: undefined symbol: _ZN3c10",
            {"size": 1},
            "installed",
            "fail",
            "it does not load: ImportError: mpi_lib_v2.so: undefined symbol: _ZN3c10 (it was compiled for another "
            "PyTorch)",
        ),
        (
            "ImportError: libmpi.so.40: cannot open shared object file",
            {"size": 1},
            "installed",
            "fail",
            "it does not load: ImportError: libmpi.so.40: cannot open shared object file (the MPI it was built with "
            "is not to be found)",
        ),
        ({**HVD, "mpi": False}, {"size": 1}, "installed", "warning", "Horovod 0.28.1 with Gloo, without MPI"),
        (
            {**HVD, "mpi": False, "gloo": False},
            {"size": 1},
            "installed",
            "warning",
            "Horovod 0.28.1 with no transport at all, without MPI and Gloo",
        ),
        (
            {**HVD, "nccl": 22007},
            {"size": 1},
            "installed NCCL",
            "warning",
            "it was built with NCCL 2.20.7, PyTorch loads 2.28.9: comparisons of Horovod with DDP compare two NCCLs",
        ),
        (
            {**HVD, "library": "/usr/lib/libmpi.so.12"},
            {"size": 1},
            "installed and mpi4py",
            "fail",
            "Horovod loads /usr/lib/libmpi.so.12, mpi4py loads /env/lib/libmpi.so.40: one mpirun cannot serve both",
        ),
        (
            HVD,
            "MPI_Init failed",
            "installed starts",
            "fail",
            "hvd.init() of one worker does not work: MPI_Init failed",
        ),
        (HVD, {"size": 2}, "installed starts", "fail", "hvd.init() outside of a job sees 2 workers"),
        (
            HVD,
            {"size": 1},
            "horovodrun",
            "fail",
            "neither beside Python nor on PATH: runs of backend horovod cannot start",
        ),
    ],
)
def test_what_may_be_wrong_with_horovod(
    place: Place, built: object, starts: object, name: str, verdict: str, what: str
) -> None:
    place.python(Get_library_version=MPI4PY, mpi_built=built, shutdown=starts)

    assert look_at_horovod(place, CUDA)[name][:2] == (verdict, what)


def test_a_horovod_that_hangs_ends_with_a_finding(place: Place) -> None:
    place.program(
        "python",
        'case "$2" in *shutdown*) sleep 60;; *mpi_built*) echo ' + shlex.quote(json.dumps(HVD)) + ";; esac",
        beside=True,
    )

    verdict, what, remedy = look_at_horovod(place, patience=0.02)["installed starts"]

    assert (verdict, what) == ("fail", "hvd.init() of one worker does not work: python did not answer within 0.6 s")
    assert remedy.startswith("MPI_Init fails or hangs")


def test_builds_side_by_side(place: Place) -> None:
    for name in ("mpi", "nccl"):
        place.file(f"lib/horovod-builds/{name}/horovod/__init__.py", "")
    place.python(Get_library_version=MPI4PY, mpi_built=HVD, shutdown={"size": 1})

    result = look_at_horovod(place)

    assert result["build mpi"] == ok("Horovod 0.28.1 with MPI, Gloo")
    assert result["build nccl"] == (
        "fail",
        "Horovod 0.28.1 with MPI, Gloo: the build called nccl has no NCCL",
        'make setup BUILDS="nccl mpi"',
    )
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
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.file("packages/horovod/__init__.py", "")
    place.file("packages/horovod/metadata.json", '{"pytorch": "2.11.0+cpu"}')
    monkeypatch.setattr(sys, "path", [str(place.root / "packages")])

    assert look_at_horovod(place, quick=True)["PyTorch"][:2] == (
        "fail",
        "Horovod was built for PyTorch 2.11.0+cpu, but 2.13.0+cpu is installed: it cannot load",
    )


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


def test_only_the_loopback(place: Place) -> None:
    assert look_at_network(place, [LO], several=False)["interfaces"] == ok(
        "only the loopback is up: enough for runs on this machine"
    )
    assert look_at_network(place, [LO])["interfaces"] == (
        "fail",
        "only the loopback is up: no other host can be reached",
        "bring the network up (ip link)",
    )


def test_several_networks_ask_for_a_choice(place: Place) -> None:
    verdict, what, remedy = look_at_network(place, [LO, ETH, IB])["several networks"]

    assert (verdict, what) == ("warning", "eth0, ib0: each library chooses by itself, and not always the fast one")
    assert remedy.startswith("say which with `interface: ib0` in the partition's file")
    assert "several networks" not in look_at_network(place, [LO, ETH, IB], interface="ib0")
    assert "several networks" not in look_at_network(place, [LO, ETH, IB], several=False)


def test_networks_of_containers_are_traps(place: Place) -> None:
    result = look_at_network(place, [LO, ETH, DOCKER])

    assert result["inner networks"][:2] == (
        "warning",
        "docker0 lead to containers of this machine only; Open MPI and Gloo may try them and hang",
    )
    assert "several networks" not in result


def test_an_interface_that_is_not_there(place: Place) -> None:
    assert look_at_network(place, [LO, ETH], interface="ib0")["interface"] == (
        "fail",
        "ib0 is to be used, but it is not here, or is down, or has no IPv4 address",
        "set `interface` in the partition's file to one of: eth0",
    )


@pytest.mark.parametrize(
    ("addresses", "several", "interface", "verdict", "what"),
    [
        (["10.0.0.1"], True, None, "ok", "node1 is 10.0.0.1"),
        (
            ["127.0.1.1"],
            False,
            None,
            "ok",
            "node1 is 127.0.1.1, the loopback: right for one machine, wrong between several",
        ),
        (["127.0.1.1"], True, "eth0", "ok", "node1 is 127.0.1.1, the loopback; eth0 is used instead"),
        (
            ["127.0.1.1"],
            True,
            None,
            "warning",
            "node1 is 127.0.1.1, the loopback: Gloo would listen there, where no other host reaches it",
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
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (each, 0)) for each in addresses])
    monkeypatch.setattr(platform, "node", lambda: "node1")

    checks = NetworkChecks(place.here, several_hosts=several, interface=interface)

    assert found(checks.own_name)["own name"][:2] == (verdict, what)


@pytest.mark.parametrize(("several", "verdict"), [(True, "fail"), (False, "warning")])
def test_an_own_name_that_nobody_knows(
    place: Place, monkeypatch: pytest.MonkeyPatch, several: bool, verdict: str
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(platform, "node", lambda: "node1")

    result = found(NetworkChecks(place.here, several_hosts=several, interface=None).own_name)["own name"]

    assert result[0] == verdict
    assert result[1].startswith("node1 does not resolve (Name or service not known)")


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
    place: Place, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, verdict: str | None
) -> None:
    place.environ[variable] = value
    monkeypatch.setattr(network, "own_interfaces", lambda: [LO, ETH])

    result = found(NetworkChecks(place.here, several_hosts=True, interface=None).variables)

    assert result.get(variable, (None,))[0] == verdict
    if verdict == "fail":
        assert result[variable][1].endswith("which is not here or is down; here are eth0, lo")


def test_infiniband_that_is_left_aside(place: Place) -> None:
    fast = NetworkChecks(place.here, several_hosts=True, interface=None).fast
    assert found(fast) == {"InfiniBand": ok("none here: hosts communicate over TCP")}

    place.file("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    assert found(fast)["InfiniBand"][:2] == (
        "warning",
        "there are devices, but no port is active: libraries take TCP without a word",
    )
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
        assert list(self.place.root.glob(f"{files.SCRATCH}*")) == [], "the scratch folder is removed"
        return result


def test_two_hosts_that_work(pair: Pair) -> None:
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
    assert result["node1"] == ok("reached over ssh without a password; its shell prints nothing")
    assert result["node1 horovod_study"] == ok("0.1.0, the same source as here")
    assert result["node1 to node2"] == ok("through eth0 to 10.0.0.2")
    assert result["host names"] == ok("2 hosts, each with a name of its own")


@pytest.mark.parametrize(
    ("said", "code", "what", "remedy"),
    [
        (
            "node2: Permission denied (publickey,password).",
            255,
            "it asks for a password, or refuses the key (Permission denied (publickey,password).)",
            "ssh-keygen -t ed25519, then ssh-copy-id node2; where a cluster does not allow ssh between its nodes, use "
            "scheduler: slurm",
        ),
        (
            "Host key verification failed.",
            255,
            "its host key is not known, and nobody is there to be asked (Host key verification failed.)",
            "ssh node2 once yourself and say yes, on every host that starts others",
        ),
        (
            "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\\nHost key verification failed.",
            255,
            "its host key is another one than the known one (Host key verification failed.)",
            "if the machine was set up again: ssh-keygen -R node2, then ssh node2 once yourself",
        ),
        (
            "ssh: Could not resolve hostname node2: Name or service not known",
            255,
            "its name is unknown (Could not resolve hostname node2: Name or service not known)",
            "correct the name, or add node2 to /etc/hosts or to ~/.ssh/config",
        ),
        (
            "ssh: connect to host node2 port 22: Connection refused",
            255,
            "no ssh server listens there (connect to host node2 port 22: Connection refused)",
            "start sshd on node2, or give its port in ~/.ssh/config",
        ),
        (
            "ssh: connect to host node2 port 22: No route to host",
            255,
            "there is no way to it (connect to host node2 port 22: No route to host)",
            "is it switched on, and in a network that this machine reaches",
        ),
        (
            "ssh: connect to host node2 port 22: Connection timed out",
            255,
            "it does not answer (connect to host node2 port 22: Connection timed out)",
            "is it switched on; a firewall may drop the connection",
        ),
        (
            "Access denied by pam_slurm_adopt: you have no active jobs on this node",
            255,
            "Slurm lets nobody in who has no job there (Access denied by pam_slurm_adopt: you have no active jobs on "
            "this node)",
            "start studies inside a job (scheduler: slurm in the partition's file); ssh to nodes is not needed then",
        ),
        (
            "Permissions 0666 are too open: UNPROTECTED PRIVATE KEY FILE!\\nnode2: Permission denied (publickey).",
            255,
            "others may read the key's file, so ssh does not use it (Permission denied (publickey).)",
            "chmod 600 ~/.ssh/id_ed25519 (or whichever file it names)",
        ),
        (
            "ssh: connect to host node2 port 22: Network is unreachable",
            255,
            "there is no way to its network (connect to host node2 port 22: Network is unreachable)",
            "give the name that this machine reaches it by, or bring the network up (ip route)",
        ),
        (
            "kex_exchange_identification: Connection closed by remote host",
            255,
            "its ssh server ends the connection at once (Connection closed by remote host)",
            "it may allow fewer at a time (MaxStartups), or not you: ssh -v node2 true tells",
        ),
        ("strange", 7, "ssh does not work (strange)", "try it yourself: ssh -o BatchMode=yes node2 true"),
    ],
)
def test_why_ssh_does_not_work(pair: Pair, said: str, code: int, what: str, remedy: str) -> None:
    pair.cases["node2"] = f"printf '{said}\\n' >&2; exit {code}"

    result = pair.look("node2")

    assert result == {"node2": ("fail", what, remedy)}


def test_one_host_that_is_out_of_reach_does_not_hide_the_other(pair: Pair) -> None:
    pair.cases["node2"] = "echo 'ssh: connect to host node2 port 22: Connection refused' >&2; exit 255"

    result = pair.look()

    assert result["node2"][0] == "fail"
    assert result["node1 packages"] == ok("Python 3.11.2, and the versions of this machine")
    assert "node1 to node2" not in result


def test_an_ssh_that_hangs_ends_with_a_finding(pair: Pair) -> None:
    pair.cases["node2"] = "sleep 60"

    assert pair.look("node2", patience=0.05) == {
        "node2": (
            "fail",
            "it does not answer (ssh did not answer within 0.6 s)",
            "try it yourself: ssh node2 true",
        )
    }


def test_a_shell_that_chatters_is_a_fail(pair: Pair) -> None:
    pair.cases["node2"] = "echo 'Welcome to node2'"

    verdict, what, remedy = pair.look()["node2 shell"]

    assert verdict == "fail"
    assert what == "it prints 'Welcome to node2' without being asked: launchers read that as an answer"
    assert remedy.startswith("in ~/.bashrc")


def test_no_ssh_here(pair: Pair) -> None:
    (pair.place.root / "site" / "ssh").unlink(missing_ok=True)
    area = Area("ssh")
    Hosts(pair.place.here, [Host(name="node2", slots=1)], pair.place.root, interface=None, quick=False).check(area)

    assert area.findings[0].what == "there is no ssh program here (ssh cannot be started (No such file or directory))"


def test_this_machine_needs_no_ssh(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "this_host", lambda name: name == "node1")
    pair.place.environ["FAKE_HOST"] = "node1"
    pair.cases["node1"] = "exit 1"

    result = pair.look()

    assert result["node1"] == ok("this machine: launchers need no ssh to it")
    assert result["node1 to node2"] == ok("through eth0 to 10.0.0.2")


def test_no_python_there(pair: Pair) -> None:
    python = pair.place.root / "bin" / "python"
    pair.cases["node2"] = f'case "$*" in *python*) echo "sh: {python}: No such file or directory" >&2; exit 127;; esac'

    result = pair.look()

    assert result["node2 Python"] == (
        "fail",
        f"there is no {python} there",
        "put the project into a folder that all hosts mount, or install it at the same path on each",
    )
    pair.cases["node2"] = 'case "$*" in *python*) sleep 60;; esac'
    assert pair.look("node2", patience=0.05)["node2 Python"][1].endswith("python did not answer there within 1.5 s")


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


def test_a_folder_that_is_not_shared(pair: Pair) -> None:
    pair.stories["node2"]["scratch"] = False

    assert pair.look()["node2 runs"] == (
        "fail",
        f"it does not see what is written to {pair.place.root} here: records of its ranks would stay there",
        "give a folder that all hosts mount with --runs",
    )


def test_several_ways_between_the_hosts(pair: Pair) -> None:
    for n, other in ((1, 2), (2, 1)):
        story = pair.stories[f"node{n}"]
        story["interfaces"].append(card("ib0", f"10.1.0.{n}"))
        story["reached"].append(
            {"peer": f"node{other}", "address": f"10.1.0.{other}", "from": f"10.1.0.{n}", "problem": ""}
        )

    result = pair.look()

    assert result["node1 to node2"] == ok("through eth0 to 10.0.0.2; through ib0 to 10.1.0.2")
    assert result["several networks"][:2] == (
        "warning",
        "the hosts reach each other through eth0, ib0: each library chooses by itself",
    )
    assert "several networks" not in pair.look(interface="ib0")
    assert pair.look(interface="ib1")["node1 to node2"] == (
        "fail",
        "not through ib1, which is to be used, but through eth0, ib0",
        "set `interface` in the partition's file to eth0, or bring ib1 up",
    )


def test_a_quick_examination_only_logs_in(pair: Pair) -> None:
    assert list(pair.look(quick=True)) == ["node1", "node2"]


def test_a_host_that_is_named_twice(pair: Pair) -> None:
    result = pair.look("node1", "node1", quick=True)

    assert result["hosts"] == (
        "fail",
        "node1 is named twice",
        "name it once, with its slots added: node1:2",
    )


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


def test_no_slurm_is_fine_unless_it_is_wanted(place: Place) -> None:
    assert look_at_slurm(place) == {
        "programs": ok("not installed here, and not needed for partitions with scheduler local and ssh")
    }
    assert look_at_slurm(place, MAIN)["programs"][:2] == (
        "fail",
        "not on PATH: sinfo, squeue, sbatch, srun, scancel, but partition mine is one of Slurm",
    )
    place.program("sinfo", "")
    assert look_at_slurm(place)["programs"][:2] == ("warning", "not on PATH: squeue, sbatch, srun, scancel")


def test_a_slurm_that_is_what_the_file_says(place: Place) -> None:
    with_slurm(place)

    assert look_at_slurm(place, replace(MAIN, memory_per_core_mb=1000, srun_mpi="pmix_v4")) == {
        "allocation": ok("this shell is in no job"),
        "answers": ok("sinfo lists 2 nodes in main"),
        "partition": ok("main is up, 2 of 2 nodes usable"),
        "cores per node": ok("4, as in the file of mine"),
        "memory per node": ok("4000 MB, of which the file of mine asks for up to 4000 MB"),
        "GPUs per node": ok("2, as in the file of mine"),
        "srun --mpi": ok("pmix_v4 is there"),
        "sbatch --test-only": ok("Job 7 to start at noon"),
        "squeue": ok("answers; 2 jobs of yours there"),
        "sacct": ok("answers: the states of ended jobs come from it"),
    }


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


def test_a_partition_without_a_name_is_the_default_one(place: Place) -> None:
    with_slurm(place)

    assert look_at_slurm(place, replace(MAIN, slurm_partition=None))["partition"] == ok(
        "the default partition is up, 2 of 2 nodes usable"
    )


def test_modules_that_can_be_loaded(place: Place) -> None:
    with_slurm(place)
    place.program("bash", "exit 0")

    assert look_at_slurm(place, replace(MAIN, modules=("gcc", "openmpi/4")))["modules"] == ok(
        "gcc, openmpi/4 can be loaded"
    )
    place.program("bash", "echo 'Lmod has detected the following error: unknown: openmpi/9' >&2")
    assert look_at_slurm(place, replace(MAIN, modules=("openmpi/9",)))["modules"][:2] == (
        "fail",
        "module load openmpi/9: Lmod has detected the following error: unknown: openmpi/9",
    )


@pytest.mark.parametrize(
    ("state", "up", "verdict", "what"),
    [
        ("idle", "down", "fail", "main is down: it starts no jobs"),
        ("drained", "up", "fail", "main is up, 0 of 2 nodes usable (drained)"),
        ("mixed-", "up", "ok", "main is up, 2 of 2 nodes usable"),
        ("idle~", "up", "ok", "main is up, 2 of 2 nodes usable"),
        ("down*", "up", "fail", "main is up, 0 of 2 nodes usable (down*)"),
    ],
)
def test_states_of_a_partition(place: Place, state: str, up: str, verdict: str, what: str) -> None:
    with_slurm(place, state=state, up=up)

    assert look_at_slurm(place, MAIN)["partition"][:2] == (verdict, what)


def test_one_node_that_is_down(place: Place) -> None:
    with_slurm(place)
    rows = NODES.format(state="idle", up="up").replace("n2|4|4000|gpu:2|idle", "n2|4|4000|gpu:2|down*")
    place.program("sinfo", f"cat <<'END'\n{rows}\nEND")

    assert look_at_slurm(place, MAIN)["partition"][:2] == (
        "warning",
        "main is up, 1 of 2 nodes usable; n2 is down*",
    )


@pytest.mark.parametrize(("partition", "verdict"), [(None, "warning"), (MAIN, "fail")])
def test_a_slurm_that_does_not_answer(place: Place, partition: Partition | None, verdict: str) -> None:
    with_slurm(place)
    place.program("sinfo", "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1")

    result = look_at_slurm(place, partition)

    assert result["answers"][:2] == (verdict, "sinfo does not answer: Unable to contact slurm controller")
    assert result["answers"][2].startswith("is slurmctld up (scontrol ping), is munge running")
    assert "squeue" not in result


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("Invalid account or account/partition combination specified", "set account in the file to one of"),
        ("Invalid qos specification", "set qos in the file to one of"),
        ("Requested node configuration is not available", "lower what the file asks for per node"),
        ("Something else", "sbatch --test-only --job-name=horovod-study-doctor --partition=main "),
    ],
)
def test_a_job_that_would_be_refused(place: Place, said: str, remedy: str) -> None:
    with_slurm(place, sbatch=f"echo 'sbatch: error: {said}' >&2; exit 1")

    result = look_at_slurm(place, MAIN)["sbatch --test-only"]

    assert result[:2] == ("fail", f"a job of one full node would be refused: {said}")
    assert result[2].startswith(remedy)


def test_the_job_that_is_tried_is_that_of_a_study(place: Place) -> None:
    note = place.root / "asked"
    place.environ |= {"SBATCH_ACCOUNT": "wrong", "SLURM_CONF": "/etc/x.conf", "SLURM_JOB_ID": "9"}
    with_slurm(place, sbatch=f'echo "$* $SBATCH_ACCOUNT $SLURM_CONF $SLURM_JOB_ID" > {note}')

    result = look_at_slurm(place, replace(MAIN, account="a1", qos="high", memory_per_core_mb=1000))

    asked = note.read_text()
    assert asked.startswith("--test-only --job-name=horovod-study-doctor --partition=main --account=a1 --qos=high ")
    assert "--nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --gres=gpu:2 --mem-per-cpu=1000M --exclusive" in asked
    assert "wrong" not in asked and asked.rstrip().endswith(" /etc/x.conf"), "the caller's own settings are left out"
    assert result["allocation"][1].startswith("this shell is in job 9 on unknown nodes")


def test_no_accounting_means_less_is_known(place: Place) -> None:
    with_slurm(place, sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1")

    verdict, what, remedy = look_at_slurm(place)["sacct"]

    assert (verdict, what) == ("warning", "does not work: Slurm accounting storage is disabled")
    assert remedy.startswith("nothing to do: how jobs ended is then read from squeue and the run directories")
    (place.root / "site" / "sacct").unlink()
    assert look_at_slurm(place)["sacct"][1] == "does not work: sacct is not on PATH"


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


def test_a_folder_that_works(tmp_path: Path) -> None:
    assert found(lambda area: files.works(area, tmp_path / "not" / "yet")) == {
        "writable": ok(f"{tmp_path} can be written"),
        "rename": ok("a file replaces another in one go"),
        "hard links": ok("they work, so two terminals never start the same cell"),
        "its clock": ok("that of this machine, within 2 s"),
    }
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written() -> None:
    verdict, what, remedy = found(lambda area: files.works(area, Path("/proc/runs")))["writable"]

    assert verdict == "fail"
    assert what.startswith("/proc cannot be written (")
    assert remedy == "give a folder of your own with --runs, or have its permissions changed"


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)

    assert found(lambda area: files.works(area, tmp_path))["writable"] == (
        "fail",
        f"{tmp_path}: No space left on device",
        "make room, or give another folder with --runs",
    )
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


def test_no_room_for_more_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        files.os,
        "statvfs",
        lambda _: SimpleNamespace(f_files=100, f_favail=7, f_bavail=9, f_blocks=9, f_bfree=9, f_frsize=2**30),
    )

    assert found(lambda area: files.space(area, tmp_path))["files"][:2] == (
        "warning",
        f"only 7 more files can be made at {tmp_path}",
    )


def test_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(files.os, "link", refused)

    verdict, what, remedy = found(lambda area: files.works(area, tmp_path))["hard links"]

    assert verdict == "fail"
    assert what == (
        "none can be made (Operation not permitted); claims on cells are hard links, so that two terminals never start "
        "the same cell"
    )
    assert "Lustre" in remedy


def test_hard_links_that_replace_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.os, "link", lambda there, name: Path(name).write_text("copy"))

    assert found(lambda area: files.works(area, tmp_path))["hard links"][1].startswith(
        "they are not counted, or replace each other"
    )


def test_a_rename_that_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.os, "replace", lambda *_: None)
    assert found(lambda area: files.works(area, tmp_path))["rename"][:2] == (
        "fail",
        "after a file replaced another, its old content is seen: records could be torn",
    )

    def refused(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(files.os, "replace", refused)
    assert found(lambda area: files.works(area, tmp_path))["rename"][:2] == (
        "fail",
        "a file cannot replace another (Invalid cross-device link)",
    )


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


def test_slurm_nodes_may_not_see_a_local_file_system(place: Place) -> None:
    place.file("proc/self/mounts", "x / ext4 rw 0 0")

    def look(folder: Path) -> tuple[str, str, str]:
        return found(lambda area: files.kind(area, place.here, folder, several_hosts=True, slurm=True))["kind"]

    verdict, what, remedy = look(place.root / "runs")
    assert (verdict, what) == (
        "warning",
        f"{place.root}/runs is on ext4 (/): the nodes see it only if this machine exports it",
    )
    assert remedy.startswith("give a folder that the nodes mount")


@pytest.mark.parametrize(
    ("system", "several", "verdict", "what"),
    [
        ("ext4", False, "ok", "is on ext4 (/)"),
        ("ext4", True, "ok", "all hosts must see it"),
        ("nfs4", True, "ok", "changes by other hosts show up seconds late"),
        ("lustre", False, "ok", "many small files are slow there"),
        ("tmpfs", False, "warning", "what is written there is gone with the machine or the container"),
        ("overlay", False, "warning", "what is written there is gone with the machine or the container"),
    ],
)
def test_what_a_kind_of_file_system_means(place: Place, system: str, several: bool, verdict: str, what: str) -> None:
    place.file("proc/self/mounts", f"x / {system} rw 0 0")

    result = found(lambda area: files.kind(area, place.here, place.root / "runs", several_hosts=several))["kind"]

    assert result[0] == verdict
    assert what in result[1]


# ----------------------------------------------------------------------------------------------------------- machine


def stat_line(pid: int, name: str, parent: int) -> str:
    return f"{pid} ({name}) S {parent} " + "0 " * 31


def test_who_uses_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "other_load", lambda cores, seconds: "other programs use 2.0 of 4 cores (a 2.0)")
    load = Load()

    verdict, what, _ = found(load.check)["load"]
    assert verdict == "warning"
    assert what.startswith("other programs use 2.0 of 4 cores (a 2.0); load average ")
    assert found(lambda area: load.check(area, elsewhere=True))["load"][0] == "ok"
    load.told = None
    assert found(load.check)["load"][0] == "ok"
    load.problem = "no /proc"
    assert found(load.check)["load"][1] == "could not be checked: no /proc"


def test_cores_and_quota(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_cores", lambda: 4)
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 8)

    def look(workers: int = 0) -> dict[str, tuple[str, str, str]]:
        return found(lambda area: machine.cores(area, place.here, workers))

    assert look() == {"cores": ok("4 cores of 8 of this machine")}
    assert look(5)["cores"][:2] == (
        "warning",
        "5 workers are asked for on 4 cores of 8 of this machine: they would share, which is slower and measures the "
        "sharing",
    )
    place.file("proc/self/cgroup", "0::/job/step")
    place.file("sys/fs/cgroup/job/cpu.max", "150000 100000")
    place.file("sys/fs/cgroup/job/step/cpu.max", "max 100000")
    assert machine.quota_cores(place.here) == 1.5
    place.file("sys/fs/cgroup/job/step/cpu.max", "250000 100000")  # the one around it is tighter
    verdict, what, remedy = look()["processor quota"]
    assert verdict == "warning"
    assert what.startswith("the control group allows the time of 1.5 cores, though 4 cores may be used")
    assert remedy.startswith("run no more than 1 workers")
    place.file("proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x")
    place.file("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "-1")
    place.file("sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000")
    assert "processor quota" not in look()
    place.file("sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us", "50000")
    place.file("sys/fs/cgroup/cpu/docker/cpu.cfs_period_us", "100000")
    assert machine.quota_cores(place.here) == 0.5
    monkeypatch.setattr(machine, "available_cores", lambda: 1)
    assert look()["cores"][:2] == (
        "warning",
        "only 1 core of 8 of this machine may be used: all workers would run on it",
    )


@pytest.mark.parametrize(
    ("free", "verdict", "what"),
    [
        (None, "ok", "this system does not report how much is free"),
        (8 * 10**9, "ok", "8 GB free for this process"),
        (10**8, "warning", "100 MB are free for this process, a worker takes about 500 MB"),
    ],
)
def test_memory(monkeypatch: pytest.MonkeyPatch, free: int | None, verdict: str, what: str) -> None:
    monkeypatch.setattr(machine.room, "available_bytes", lambda: free)

    assert found(machine.memory)["memory"][:2] == (verdict, what)


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


def test_limits(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {resource.RLIMIT_NOFILE: 256, resource.RLIMIT_MEMLOCK: 8 * 2**20}
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (values[which], values[which]))

    def look() -> dict[str, tuple[str, str, str]]:
        return found(lambda area: machine.limits(area, place.here))

    assert look() == {
        "open files": ("warning", "at most 256 per process", "ulimit -n 4096"),
        "locked memory": ok("no InfiniBand here that needs it"),
    }
    place.file("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE")
    values[resource.RLIMIT_NOFILE] = resource.RLIM_INFINITY
    assert look()["open files"] == ok("unlimited")
    assert look()["locked memory"][:2] == (
        "warning",
        "at most 8.39 MB per process, and there is InfiniBand (mlx5_0:1): MPI and NCCL cannot register buffers and "
        "fall back to TCP, or fail",
    )
    values[resource.RLIMIT_MEMLOCK] = resource.RLIM_INFINITY
    assert look()["locked memory"] == ok("unlimited, as InfiniBand needs it")


@pytest.mark.parametrize(
    ("state", "several", "verdict", "what"),
    [
        (True, True, "ok", "kept right by a time server"),
        (None, True, "ok", "whether a time server keeps it right is not told here"),
        (False, False, "ok", "no time server keeps it right, which does not matter on one machine"),
        (False, True, "warning", "no time server keeps it right: times of several hosts drift apart"),
    ],
)
def test_the_clock(
    place: Place, monkeypatch: pytest.MonkeyPatch, state: bool | None, several: bool, verdict: str, what: str
) -> None:
    monkeypatch.setattr(machine, "synchronised", lambda: state)

    result = found(lambda area: machine.clock(area, place.here, several_hosts=several))

    assert result["time server"][:2] == (verdict, what)
    assert result["clock source"] == ok("not reported by this system; monotonic")


def test_a_clock_that_is_slow_to_read(place: Place) -> None:
    place.file("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet")

    result = found(lambda area: machine.clock(area, place.here, several_hosts=False))

    assert result["clock source"][:2] == (
        "warning",
        "the kernel reads time from hpet, which takes microseconds: laps become less certain",
    )


@pytest.mark.parametrize(
    ("code", "release", "what"),
    [
        (0, "5.1.0", "permitted: thread_priority auto uses it for Gloo's threads"),
        (1, "6.12.3-x", "not permitted: thread_priority auto uses short time slices instead"),
        (1, "5.15.0", "not permitted, and no short time slices before Linux 6.12: Gloo goes without"),
    ],
)
def test_what_thread_priority_may_use(
    place: Place, monkeypatch: pytest.MonkeyPatch, code: int, release: str, what: str
) -> None:
    place.program("python", f"exit {code}", beside=True)
    monkeypatch.setattr(platform, "release", lambda: release)

    assert found(lambda area: machine.priority(area, place.here)) == {"real-time priority": ok(what)}


def test_the_data_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_STUDY_DATA", str(tmp_path / "data"))

    def look(free: int) -> tuple[str, str, str]:
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
        return found(machine.data_cache)["data cache"]

    assert look(10**11) == ok(f"{tmp_path / 'data'}: 100 GB free")
    assert look(10**9)[:2] == ("warning", f"{tmp_path / 'data'}: 1 GB free; a million curves take 2.42 GB")
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert look(10**11)[:2] == (
        "fail",
        f"{tmp_path / 'data'} cannot be written: generated data sets find no place",
    )


def test_processes_that_earlier_runs_left(place: Place) -> None:
    def process(pid: int, name: str, parent: int, run: str = "") -> None:
        place.file(f"proc/{pid}/stat", stat_line(pid, name, parent))
        place.file(f"proc/{pid}/environ", f"A=1\0HOROVOD_STUDY_CELL={run}\0B=2" if run else "A=1")

    process(10, "horovod-study", 1)
    process(11, "mpirun", 10, "/runs/s/alive")
    process(12, "python", 11, "/runs/s/alive")
    process(20, "orted", 1, "/runs/s/remote")
    process(21, "python", 20, "/runs/s/remote")
    assert found(lambda area: machine.leftovers(area, place.here)) == {"earlier runs": ok("left no processes behind")}

    process(30, "python", 1, "/runs/s/dead")
    assert found(lambda area: machine.leftovers(area, place.here))["earlier runs"] == (
        "warning",
        "1 process of /runs/s/dead still runs, though its launcher is gone",
        "kill 30 (`horovod-study run` of the same study ends it itself)",
    )
    process(31, "python", 30, "/runs/s/dead")
    assert found(lambda area: machine.leftovers(area, place.here))["earlier runs"] == (
        "warning",
        "2 processes of /runs/s/dead still run, though their launcher is gone",
        "kill 30 31 (`horovod-study run` of the same study ends them itself)",
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


def test_the_environment_of_the_partition_is_what_is_looked_at(place: Place) -> None:
    partition = Partition(name="desk", environment={"CUDA_VISIBLE_DEVICES": "3"})

    result = examine(partition=partition, runs=place.root, here=place.here, quick=True)

    assert "it is '3', but there is no GPU here" in [each.what for each in result]


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


def test_plain_values_and_the_exit_code() -> None:
    plain = doctor.to_dict(SAMPLE)

    assert plain["counts"] == {"ok": 2, "warning": 1, "fail": 1}
    assert json.loads(json.dumps(plain))["findings"][1] == {
        "area": "ssh",
        "name": "node2",
        "verdict": "fail",
        "what": "it refuses the key",
        "remedy": "ssh-copy-id node2",
    }
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
