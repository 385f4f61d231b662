"""What the tests share: small data sets, launchers, and the rule that nothing is skipped where everything is there."""

import gc
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slurm_cluster
from make.waiting import PATIENCE_S
from slurm_cluster import SlurmCluster
from two_hosts import TwoHosts, missing

pytest_plugins = ["make.wording"]
# While tests are collected, everything is imported: searches for cycles would find nothing and take a quarter of that.
gc.disable()
# Threads of OpenMP that have nothing to do sleep, here and in all programs that the tests start, in place of turning.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
BIN = Path(sys.executable).parent
# A shell's background job ignores Ctrl-C, and so would all programs that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and under nohup they would ignore the end of the terminal
if importlib.util.find_spec("hypothesis") is not None:  # a machine may have only what running needs
    from hypothesis import HealthCheck, settings

    # Neither an example nor making it may be bound to a time: the machine may be busy.
    no_clock = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("suite", no_clock, max_examples=40)
    settings.register_profile("thorough", no_clock, max_examples=1000)
    settings.load_profile("suite")
REQUIRE_ALL = os.environ.get("HOROVOD_STUDY_REQUIRE_ALL") == "1"


@pytest.fixture(scope="session", autouse=True)
def _own_data_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Generated data sets go to a folder of the test session, for this process and its children."""
    before = os.environ.get("HOROVOD_STUDY_DATA")
    os.environ["HOROVOD_STUDY_DATA"] = str(tmp_path_factory.mktemp("data"))
    yield
    if before is None:
        del os.environ["HOROVOD_STUDY_DATA"]
    else:
        os.environ["HOROVOD_STUDY_DATA"] = before


@pytest.fixture(autouse=True)
def _pytorch_defaults() -> Iterator[None]:
    """How PyTorch computes in float32 is a setting of the process: what a training in it set ends with its test."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_flush_denormal(False)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know the settings of pytest-timeout where it is not installed: a machine may have only what running needs."""
    if importlib.util.find_spec("pytest_timeout") is None:
        parser.addini("timeout", "pytest-timeout is not installed, so this does nothing")


def pytest_configure(config: pytest.Config) -> None:
    """Know its marker too."""
    if importlib.util.find_spec("pytest_timeout") is None:
        config.addinivalue_line("markers", "timeout(seconds): pytest-timeout is not installed, so this does nothing")


def has_gpu() -> bool:
    """Whether PyTorch sees a GPU; it is imported only for tests that ask."""
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests for a GPU where there is none; those with Slurm come last: its network stays until the end."""
    items.sort(key=lambda item: "slurm" in getattr(item, "fixturenames", ()))
    for_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if for_gpu and not has_gpu():
        for item in for_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def pytest_collection_finish() -> None:
    """Leave what is imported by now out of the search for cycles, which would go through all of it time and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Where HOROVOD_STUDY_REQUIRE_ALL is 1 (CI), a skipped test is a failed one, unless a GPU is what it lacks."""
    report = yield
    excused = item.get_closest_marker("gpu") is not None and not has_gpu()
    if REQUIRE_ALL and report.skipped and not excused and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: skipped although HOROVOD_STUDY_REQUIRE_ALL=1: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def two_hosts() -> Iterator[TwoHosts]:
    """Two hosts, node1 and node2, on this machine (two_hosts.py); all tests share them, and restore what they cut."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with TwoHosts() as hosts:
        yield hosts


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A Slurm of two nodes on this machine (slurm_cluster.py); all tests share it, and leave no job in it."""
    if reason := slurm_cluster.why_not():
        pytest.skip(reason)
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def no_figures() -> Iterator[None]:
    """Pages and reports of this test hold no figures."""
    from drawn_figures import figures_only  # as torch, matplotlib is imported only for tests that ask

    with figures_only():
        yield


Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def launch() -> Launch:
    """Start the trainer under a launcher and return what came of it.

    launch("horovodrun --mpi", 2, "--steps", "5") - the launcher is one of the keys of LAUNCHERS.
    """

    def start(
        launcher: str, workers: int, *options: str, timeout_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        line = [str(part).format(workers=workers) for part in LAUNCHERS[launcher]]
        missing = not (BIN / Path(line[0]).name).exists()
        if missing:
            pytest.skip(f"{Path(line[0]).name} is not installed beside {sys.executable}")
        environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [*line, "-m", "horovod_study.train", *options],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment,
        )

    return start


_ROOT = ("--allow-run-as-root",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
LAUNCHERS = {
    "none": (sys.executable,),
    "horovodrun --mpi": (BIN / "horovodrun", "--mpi", "-np", "{workers}", sys.executable),
    "horovodrun --gloo": (BIN / "horovodrun", "--gloo", "-np", "{workers}", sys.executable),
    "mpirun": (BIN / "mpirun", *_ROOT, "--bind-to", "none", "-np", "{workers}", sys.executable),
    "torchrun": (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{workers}"),
}
