"""Launch lines and the environment of a cell."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from horovod_study.cluster.launch import MARKER, cell_environment, launch_line, refuse_oversubscription
from horovod_study.config import Cell, Placement, RunConfig
from horovod_study.errors import StudyError

PYTHON = Path("/opt/venv/bin/python")
JOB = ["-m", "horovod_study.train", "--config", "/runs/cells/a b.yaml", "--out", "/runs/a b"]


def cell(runtime: str, workers: int = 2) -> Cell:
    backend, _, transport = runtime.partition("/")
    return Cell(
        config=RunConfig(backend=backend, transport=transport or "none", seconds=1),
        runtime=runtime,
        placement=Placement(workers=workers, workers_per_node=workers),
    )


def line(runtime: str, workers: int = 2, **options):
    arguments = {"environ": {"PATH": "/usr/bin"}, "which": lambda name, path: f"{path.split(':')[0]}/{name}"}
    return launch_line(
        cell(runtime, workers),
        python=PYTHON,
        config=Path("/runs/cells/a b.yaml"),
        out=Path("/runs/a b"),
        **{**arguments, **options},
    )


@pytest.mark.parametrize(
    ("runtime", "head"),
    [
        ("serial", ["/opt/venv/bin/python"]),
        ("horovod/mpi", ["/opt/venv/bin/horovodrun", "--mpi", "-np", "2", "/opt/venv/bin/python"]),
        ("horovod/gloo", ["/opt/venv/bin/horovodrun", "--gloo", "-np", "2", "/opt/venv/bin/python"]),
        ("horovod/nccl", ["/opt/venv/bin/horovodrun", "-np", "2", "/opt/venv/bin/python"]),
        ("ddp/gloo", [str(PYTHON), *"-m torch.distributed.run --standalone --nproc-per-node 2".split()]),
        ("ddp/nccl", [str(PYTHON), *"-m torch.distributed.run --standalone --nproc-per-node 2".split()]),
        (
            "mpi/mpi",
            ["/opt/venv/bin/mpirun", *"--host localhost:2 --bind-to none -np 2".split(), "/opt/venv/bin/python"],
        ),
    ],
)
def test_launch_line_of_every_runtime(runtime, head):
    assert [*head, *JOB] == list(line(runtime).argv)


def test_mpirun_is_told_to_start_for_root_only_when_it_is_root():
    assert "--allow-run-as-root" in line("mpi/mpi", root=True).argv
    assert "--allow-run-as-root" not in line("mpi/mpi", root=False).argv


@pytest.mark.parametrize(("runtime", "program"), [("horovod/mpi", "horovodrun"), ("mpi/mpi", "mpirun")])
def test_missing_launcher_is_named_with_the_remedy(runtime, program):
    with pytest.raises(StudyError) as caught:
        line(runtime, which=lambda name, path: None)

    expected = (
        f"runtime {runtime} needs the program {program}, which is neither in /opt/venv/bin nor on PATH; "
        f"run `make setup`, or leave {runtime} out of sweep.runtime"
    )
    assert expected == str(caught.value)


def test_launcher_beside_python_comes_before_one_on_path(tmp_path):
    for folder in ("site", "venv"):
        (tmp_path / folder).mkdir()
        program = tmp_path / folder / "mpirun"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    options = {
        "config": Path("c"),
        "out": Path("o"),
        "environ": {"PATH": str(tmp_path / "site")},
        "python": tmp_path / "venv/python",
    }

    assert str(tmp_path / "venv/mpirun") == launch_line(cell("mpi/mpi"), **options).argv[0]
    (tmp_path / "venv/mpirun").unlink()
    assert str(tmp_path / "site/mpirun") == launch_line(cell("mpi/mpi"), **options).argv[0]


def test_environment_finds_the_folder_of_python_first_and_is_marked():
    environment = line("serial").environment

    assert "/opt/venv/bin:/usr/bin" == environment["PATH"]
    assert "/runs/a b" == environment[MARKER]
    assert "1" == environment["PYTHONUNBUFFERED"]


def test_paths_are_absolute_for_workers_that_start_elsewhere():
    made = launch_line(cell("serial"), python=PYTHON, config=Path("cells/x.yaml"), out=Path("runs/x"), environ={})

    assert str(Path.cwd() / "cells/x.yaml") == made.argv[made.argv.index("--config") + 1]
    assert str(Path.cwd() / "runs/x") == made.argv[made.argv.index("--out") + 1] == made.environment[MARKER]


RANKS = """
    OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_UNIVERSE_SIZE OMPI_COMMAND PMIX_RANK PMIX_NAMESPACE PMI_RANK PMI_SIZE
    OMPI_MCA_orte_hnp_uri OMPI_MCA_orte_ess_num_procs OMPI_MCA_ess OMPI_MCA_ess_base_vpid OMPI_MCA_initial_wdir
    HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_CROSS_SIZE HOROVOD_GLOO_RENDEZVOUS_ADDR HOROVOD_CONTROLLER
    HOROVOD_CPU_OPERATIONS RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT
    TORCHELASTIC_RUN_ID SLURM_PROCID SLURM_LOCALID SLURM_NTASKS SLURM_STEP_ID SLURM_STEPID
""".split()
KNOBS = """
    OMPI_MCA_mpi_yield_when_idle OMPI_MCA_btl OMPI_MCA_btl_tcp_if_include HOROVOD_CYCLE_TIME HOROVOD_FUSION_THRESHOLD
    HOROVOD_GLOO_IFACE OMP_NUM_THREADS OPAL_PREFIX PMIX_INSTALL_PREFIX SLURM_JOB_ID CUDA_VISIBLE_DEVICES HOME LANG
""".split()


def test_environment_drops_the_ranks_of_an_enclosing_job_and_keeps_what_a_user_sets():
    environ = dict.fromkeys([*RANKS, *KNOBS], "7")

    kept = cell_environment(environ, path="/bin", out=Path("/o"))

    assert sorted(KNOBS) == sorted(set(kept) - {"PATH", "PYTHONUNBUFFERED", MARKER})
    assert set(RANKS) <= set(environ), "the argument is left as it was"


@pytest.mark.horovod
def test_nothing_that_mpirun_sets_for_its_workers_survives():
    """Compares with what the installed mpirun really sets, beside the settings that look like a user's."""
    mpirun = shutil.which("mpirun", path=os.pathsep.join([str(Path(os.sys.executable).parent), os.environ["PATH"]]))
    if mpirun is None:
        pytest.skip("no mpirun")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    output = subprocess.run([mpirun, *root, "-np", "1", "env"], capture_output=True, text=True, check=True).stdout
    inside = dict(each.split("=", 1) for each in output.splitlines() if "=" in each)

    left = cell_environment(inside, path="/bin", out=Path("/o"))

    added = {name for name in left if name.startswith(("OMPI_", "PMIX_", "PMI_"))} - set(os.environ)
    assert added <= {"OMPI_MCA_orte_tmpdir_base", "PMIX_INSTALL_PREFIX", "PMIX_MCA_mca_base_component_show_load_errors"}


def test_more_workers_than_cores_are_refused_with_both_numbers():
    cells = [cell("horovod/mpi", workers) for workers in (1, 2, 4)]

    refuse_oversubscription(cells, 4)
    refuse_oversubscription([], 1)
    with pytest.raises(StudyError) as caught:
        refuse_oversubscription(cells, 2)

    expected = (
        "the study asks for 4 workers, but this machine offers 2 cores; "
        "lower sweep.workers, or write `workers: cores` to use what is there"
    )
    assert expected == str(caught.value)
