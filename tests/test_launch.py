"""Launch lines and the environment of a cell."""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make.launch_lines import launch_line, program_line
from make.waiting import PATIENCE_S
from slurm_cluster import SlurmCluster

from horovod_study.cluster.launch import MARKER, PORTS, Site, cell_environment
from horovod_study.config.partitions import Host
from horovod_study.config.run import Cell, Placement
from horovod_study.errors import StudyError
from horovod_study.runtimes import RUNTIMES
from horovod_study.strain.options import StrainConfig

PYTHON = Path("/opt/venv/bin/python")
JOB = ["-m", "horovod_study.train", "--config", "/runs/cells/a b.yaml", "--out", "/runs/a b"]


def cell(runtime: str, workers: int = 2) -> Cell:
    backend, _, transport = runtime.partition("/")
    return Cell(
        config=StrainConfig(backend=backend, transport=transport or "none", seconds=1),
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
    OMPI_MCA_mpi_yield_when_idle OMPI_MCA_btl OMPI_MCA_btl_tcp_if_include OMPI_ALLOW_RUN_AS_ROOT HOROVOD_CYCLE_TIME
    HOROVOD_FUSION_THRESHOLD
    HOROVOD_GLOO_IFACE OMP_NUM_THREADS OPAL_PREFIX PMIX_INSTALL_PREFIX SLURM_JOB_ID CUDA_VISIBLE_DEVICES HOME LANG
""".split()


def test_environment_drops_the_ranks_of_an_enclosing_job_and_keeps_what_a_user_sets():
    environ = dict.fromkeys([*RANKS, *KNOBS], "7")

    kept = cell_environment(environ, path="/bin", out=Path("/o"))

    assert sorted(KNOBS) == sorted(set(kept) - {"PATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", MARKER})
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


# ---------------------------------------------------------------------- over ssh

PAIR = (Host(name="a", slots=2), Host(name="b", slots=1))
SSH_ARGS = "-o BatchMode=yes -o ConnectTimeout=5 -o ServerAliveInterval=5 -o ServerAliveCountMax=3"
KEEPALIVE = "--mca oob_tcp_keepalive_time 10 --mca oob_tcp_keepalive_intvl 5 --mca oob_tcp_keepalive_probes 3".split()
TCP = "--mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0".split()


def over_ssh(**options) -> Site:
    return Site(**{"hosts": PAIR, "interface": "eth0", "port": 23456, **options})


def in_job(**options) -> Site:
    return over_ssh(allocation=True, **options)


JOB_ENVIRON = {
    "PATH": "/usr/bin",
    "SLURM_JOB_ID": "7",
    "SLURM_JOBID": "7",
    "SLURM_JOB_NODELIST": "a,b",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_TASKS_PER_NODE": "8(x2)",
}


def test_horovodrun_gets_hosts_and_interface():
    made = line("horovod/gloo", 3, site=over_ssh())

    head = "/opt/venv/bin/horovodrun --gloo -np 3 -H a:2,b:1 --disable-cache --network-interface eth0".split()
    assert [*head, str(PYTHON), *JOB] == list(made.argv)
    assert ("a", "b") == made.remote and not made.allocation


def test_horovodrun_over_mpi_hands_the_options_of_daemons_to_mpirun():
    made = line("horovod/mpi", 3, site=over_ssh())

    head = "/opt/venv/bin/horovodrun --mpi -np 3 -H a:1,a:1,b:1 --disable-cache --network-interface eth0".split()
    head += ["--binding-args=-bind-to none -map-by seq"]
    assert head == list(made.argv[: len(head)])
    assert [str(PYTHON), *JOB] == list(made.argv[len(head) + 1 :])
    # btl_tcp_if_include is not among them: horovodrun gives it itself, and mpirun refuses it twice.
    between = ["--prefix", "/opt/venv", *KEEPALIVE, "--mca", "oob_tcp_if_include", "eth0"]
    between += ["--mca", "plm_rsh_args", SSH_ARGS]
    assert between == shlex.split(made.argv[len(head)].removeprefix("--mpi-args="))


def test_nccl_starts_over_mpi_or_gloo_so_no_host_is_repeated():
    argv = line("horovod/nccl", 3, site=over_ssh()).argv

    assert ["-np", "3", "-H", "a:2,b:1"] == list(argv[1:5])
    assert not [each for each in argv if "seq" in each]


@pytest.mark.parametrize("runtime", ["mpi/mpi", "ps/mpi", "ddp/mpi"])
def test_mpirun_starts_each_rank_on_its_host_and_hands_on_the_environment(runtime):
    environ = {"PATH": "/usr/bin", "OMP_NUM_THREADS": "1", "HOME": "/root", "HOROVOD_STUDY_DATA": "/d"}
    site = over_ssh(environment={"SITE_VARIABLE": "a b"})

    made = line(runtime, 3, environ=environ, site=site)

    head = ["/opt/venv/bin/mpirun", *"--host a,a,b --bind-to none --map-by seq --prefix /opt/venv".split()]
    names = "HOROVOD_STUDY_CELL HOROVOD_STUDY_DATA OMP_NUM_THREADS PATH PYTHONSAFEPATH PYTHONUNBUFFERED".split()
    names.append("SITE_VARIABLE")
    passed = [part for name in names for part in ("-x", name)]
    wanted = [*head, *KEEPALIVE, *TCP, "--mca", "plm_rsh_args", SSH_ARGS, *passed, "-np", "3", str(PYTHON), *JOB]
    assert wanted == list(made.argv)
    assert "a b" == made.environment["SITE_VARIABLE"]


def test_what_the_user_has_set_for_mpi_is_not_said_again():
    environ = {"PATH": "/usr/bin", "OMPI_MCA_btl_tcp_if_include": "ib0", "OMPI_MCA_plm_rsh_args": "-p 2222"}

    argv = line("mpi/mpi", 3, environ=environ, site=over_ssh()).argv

    assert "btl_tcp_if_include" not in argv and "plm_rsh_args" not in argv and "oob_tcp_if_include" in argv


def test_a_sites_own_mpi_is_not_given_the_environments_prefix():
    assert "--prefix" not in line("mpi/mpi", 3, site=over_ssh(), which=lambda name, path: f"/usr/bin/{name}").argv


@pytest.mark.parametrize(
    ("runtime", "variable"), [("ddp/gloo", "GLOO_SOCKET_IFNAME"), ("ddp/nccl", "NCCL_SOCKET_IFNAME")]
)
def test_ranks_of_torch_meet_at_the_first_host(runtime, variable):
    made = line(runtime, 3, site=over_ssh())

    assert "/opt/venv/bin/mpirun" == made.argv[0]
    found = {name: made.environment.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", variable)}
    assert {"MASTER_ADDR": "a", "MASTER_PORT": "23456", variable: "eth0"} == found
    assert set(found) <= set(made.argv), "handed on by mpirun"
    assert "HOROVOD_CONTROLLER" not in made.environment

    chosen = line(runtime, 3, site=over_ssh(port=None)).environment["MASTER_PORT"]
    assert PORTS[0] <= int(chosen) <= PORTS[1]


def test_a_variable_of_the_user_comes_before_the_interface_of_the_partition():
    environ = {"PATH": "/usr/bin", "GLOO_SOCKET_IFNAME": "ib1"}

    assert "ib1" == line("ddp/gloo", 3, environ=environ, site=over_ssh()).environment["GLOO_SOCKET_IFNAME"]


def test_one_worker_on_another_host_is_started_there():
    there = over_ssh(hosts=(Host(name="b", slots=1),))

    serial = line("serial", 1, site=there)
    assert ["/opt/venv/bin/mpirun", "--host", "b"] == list(serial.argv[:3])
    assert ("b",) == serial.remote and "MASTER_ADDR" not in serial.environment
    assert "/usr/bin/srun" not in line("serial", 1, site=there).argv

    here = line("serial", 1, site=over_ssh(hosts=(Host(name="b", slots=1),), here=True))
    assert [str(PYTHON), *JOB] == list(here.argv)
    assert () == here.remote


def test_a_launcher_that_was_asked_for_is_used_where_it_can_start_the_runtime(golden):
    def starter(runtime: str, site: Site, workers: int = 3) -> str:
        return Path(line(runtime, workers, site=site).argv[0]).name

    by_mpirun = over_ssh(launcher="mpirun")
    assert ["mpirun"] * 3 == [starter(each, by_mpirun) for each in ("horovod/mpi", "horovod/gloo", "ddp/gloo")]
    made = line("horovod/gloo", 3, site=by_mpirun)
    assert ("gloo", "a", "eth0") == tuple(
        made.environment[name] for name in ("HOROVOD_CONTROLLER", "MASTER_ADDR", "HOROVOD_GLOO_IFACE")
    )
    by_horovodrun = over_ssh(launcher="horovodrun")
    assert ["horovodrun", "mpirun"] == [starter(each, by_horovodrun) for each in ("horovod/mpi", "mpi/mpi")]
    alone = Site(launcher="mpirun")
    assert ["mpirun", "mpirun"] == [starter(each, alone, 2) for each in ("horovod/mpi", "ddp/gloo")]
    assert "localhost" == line("ddp/gloo", 2, site=alone).environment["MASTER_ADDR"]
    with golden.raises(StudyError):
        line("mpi/mpi", 3, site=over_ssh(launcher="srun"))


@given(
    runtime=st.sampled_from([each for each in RUNTIMES if each != "serial"]),
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    launcher=st.sampled_from(["auto", "horovodrun", "mpirun", "torchrun"]),
    allocation=st.booleans(),
    srun_mpi=st.sampled_from([None, "pmix"]),
)
def test_every_runtime_can_be_started_on_every_site(runtime, counts, launcher, allocation, srun_mpi):
    hosts = tuple(Host(name=f"h{number}", slots=count) for number, count in enumerate(counts))
    site = Site(hosts=hosts, launcher=launcher, allocation=allocation, srun_mpi=srun_mpi)

    made = line(runtime, sum(counts), site=site)

    assert [str(PYTHON), *JOB] == list(made.argv[-len(JOB) - 1 :])
    assert Path(made.argv[0]).name in ("srun", "mpirun", "horovodrun")
    assert all(isinstance(each, str) for each in (*made.argv, *made.environment.values()))


def test_workers_that_do_not_add_up_are_refused(golden):
    with golden.raises(StudyError, match="4 workers"):
        line("mpi/mpi", 4, site=over_ssh())


HAIRY = "a b $(touch x)'\"`;|&\n*"


def test_text_is_handed_on_as_it_is():
    """argv are lists; where a shell is in between, what it reads is the same text again."""
    environ = {"PATH": "/usr/bin", "HOROVOD_STUDY_X": HAIRY, "OMPI_MCA_x": "it's a 'b c'"}
    for runtime in RUNTIMES:
        count = 1 if runtime == "serial" else 3
        hosts = (Host(name="b", slots=1),) if count == 1 else PAIR
        made = program_line(
            runtime,
            count,
            ("-m", HAIRY),
            python=PYTHON,
            out=Path("/o") / HAIRY,
            environ=environ,
            which=lambda name, path: f"/opt/venv/bin/{name}",
            site=over_ssh(hosts=hosts),
        )
        assert ["-m", HAIRY] == list(made.argv[-2:])
        assert (HAIRY, f"/o/{HAIRY}") == (made.environment["HOROVOD_STUDY_X"], made.environment[MARKER])


@pytest.mark.parametrize("text", ["$(touch x)", "`x`", 'a"b', "a\\b", "a\nb"])
def test_what_a_launcher_would_let_a_shell_read_is_refused(text, monkeypatch, tmp_path, golden):
    environ = {"PATH": "/usr/bin", "OMPI_MCA_x": text}
    for runtime in ("mpi/mpi", "horovod/mpi", "horovod/gloo"):
        with golden.raises(StudyError, match="OMPI_MCA_x"):
            line(runtime, 3, environ=environ, site=over_ssh())
    line("mpi/mpi", 2, environ=environ)  # nothing is started elsewhere
    line("mpi/mpi", 3, environ={**JOB_ENVIRON, **environ}, site=in_job())  # srun starts no shell

    with golden.raises(StudyError, match="/opt/my"):
        line_of = Path("/opt/my venv/bin/python")
        program_line(
            "mpi/mpi",
            3,
            (),
            python=line_of,
            out=Path("/o"),
            environ={},
            which=lambda name, path: f"/opt/my venv/bin/{name}",
            site=over_ssh(),
        )

    (tmp_path / "a b").mkdir()
    monkeypatch.chdir(tmp_path / "a b")
    line("mpi/mpi", 3, site=over_ssh())
    with golden.raises(StudyError):
        line("horovod/gloo", 3, site=over_ssh())


def test_functions_of_a_shell_do_not_go_to_other_hosts():
    environ = {"PATH": "/usr/bin", "BASH_FUNC_module%%": "() { x; }", "A-B": "1"}

    assert {"BASH_FUNC_module%%", "A-B"} <= set(line("mpi/mpi", environ=environ).environment)
    assert not {"BASH_FUNC_module%%", "A-B"} & set(line("mpi/mpi", 3, environ=environ, site=over_ssh()).environment)


# ---------------------------------------------------------------------- in a Slurm job


@pytest.mark.parametrize("runtime", ["horovod/gloo", "ddp/gloo", "ddp/nccl"])
def test_srun_starts_ranks_that_meet_by_themselves(runtime):
    made = line(runtime, 3, environ=JOB_ENVIRON, site=in_job(cores_per_worker=6))

    step = "--nodes=2 --ntasks=3 --distribution=arbitrary --nodelist=a,a,b --cpus-per-task=6 --mpi=none --export=ALL"
    head = ["/opt/venv/bin/srun", *step.split(), "--input=none", "--kill-on-bad-exit=1", "--wait=60"]
    assert [*head, str(PYTHON), *JOB] == list(made.argv)
    assert ("a", "23456") == (made.environment["MASTER_ADDR"], made.environment["MASTER_PORT"])
    assert ("gloo" if runtime == "horovod/gloo" else None) == made.environment.get("HOROVOD_CONTROLLER")
    assert ("a", "b") == made.remote and made.allocation
    assert "SLURM_CPU_BIND" not in made.environment


@pytest.mark.parametrize("runtime", ["horovod/mpi", "horovod/nccl", "mpi/mpi", "ps/mpi"])
def test_mpi_in_a_job_is_started_by_mpirun_or_by_srun_with_its_connection(runtime):
    made = line(runtime, 3, environ=JOB_ENVIRON, site=in_job())

    assert ["/opt/venv/bin/mpirun", "--host", "a,a,b"] == list(made.argv[:3])
    assert "plm_rsh_args" not in made.argv, "its daemons are started by srun"
    assert ("2(x2)", "none") == (made.environment["SLURM_TASKS_PER_NODE"], made.environment["SLURM_CPU_BIND"])

    made = line(runtime, 3, environ=JOB_ENVIRON, site=in_job(srun_mpi="pmix"))
    assert "/opt/venv/bin/srun" == made.argv[0] and "--mpi=pmix" in made.argv
    assert "MASTER_ADDR" not in made.environment


def test_nccl_with_srun_and_no_connection_for_mpi_meets_over_gloo():
    made = line("horovod/nccl", 3, environ=JOB_ENVIRON, site=in_job(launcher="srun"))

    assert "--mpi=none" in made.argv
    assert ("gloo", "eth0") == (made.environment["HOROVOD_CONTROLLER"], made.environment["NCCL_SOCKET_IFNAME"])


ENCLOSING = """
    SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE SLURM_CPUS_PER_TASK SLURM_MEM_PER_CPU SLURM_MEM_PER_NODE
    SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEP_ID SLURM_STEPID SLURM_STEP_NODELIST SLURM_STEP_NUM_TASKS
    SLURM_EXPORT_ENV SLURM_DISTRIBUTION SLURM_GPUS_PER_TASK SLURM_HINT SLURM_CPU_BIND SLURM_HOSTFILE SLURM_TASK_PID
    SRUN_CPUS_PER_TASK SBATCH_ACCOUNT SBATCH_PARTITION SALLOC_PARTITION SLURM_THREADS_PER_CORE
""".split()
OF_THE_JOB = "SLURM_JOB_ID SLURM_JOBID SLURM_JOB_NODELIST SLURM_NODELIST SLURM_NNODES SLURM_JOB_NUM_NODES".split()


def test_a_job_leaves_what_starts_steps_and_nothing_that_changes_their_options():
    environ = {**dict.fromkeys([*ENCLOSING, *OF_THE_JOB, "SLURM_CONF"], "2"), "SLURM_TASKS_PER_NODE": "8(x2)"}

    kept = cell_environment(environ, path="/bin", out=Path("/o"), site=in_job())
    assert {*OF_THE_JOB, "SLURM_CONF", "SLURM_TASKS_PER_NODE"} == {name for name in kept if name.startswith("S")}

    # Nothing is started elsewhere: an mpirun that saw the job would start its daemons by srun.
    for site in (Site(), Site(hosts=PAIR[:1], here=True, allocation=True), over_ssh()):
        kept = cell_environment(environ, path="/bin", out=Path("/o"), site=site)
        assert {"SLURM_JOB_ID", "SLURM_CONF"} == {name for name in kept if name.startswith("S")}


def test_srun_really_gets_the_list(tmp_path, monkeypatch):
    """A stand-in for srun writes down what it was given."""
    stand_in = tmp_path / "srun"
    told = tmp_path / "told.json"
    stand_in.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "json.dump([sys.argv[1:], dict(os.environ)], open(os.environ['HOROVOD_STUDY_TOLD'], 'w'))\n"
    )
    stand_in.chmod(0o755)
    environ = {**JOB_ENVIRON, "PATH": str(tmp_path), "HOROVOD_STUDY_TOLD": str(told), "HOROVOD_STUDY_X": HAIRY}
    made = program_line(
        "ddp/gloo", 3, ("-c", HAIRY), python=PYTHON, out=Path("/o") / HAIRY, environ=environ, site=in_job()
    )

    subprocess.run(made.argv, env=dict(made.environment), check=True, timeout=PATIENCE_S)

    arguments, environment = json.loads(told.read_text())
    assert ["--wait=60", str(PYTHON), "-c", HAIRY] == arguments[-4:]
    assert (HAIRY, f"/o/{HAIRY}", "a") == tuple(
        environment[name] for name in ("HOROVOD_STUDY_X", MARKER, "MASTER_ADDR")
    )


CASES = {  # name -> runtime, hosts in the order of the ranks, launcher, what that becomes
    "mpi": ("mpi/mpi", ("n2:2", "n1:1"), "auto", "mpirun"),
    "gloo": ("horovod/gloo", ("n2:2", "n1:1"), "auto", "srun"),
    "ddp": ("ddp/gloo", ("n1:1", "n2:2"), "mpirun", "mpirun"),
    "serial": ("serial", ("n2:1",), "auto", "srun"),
}


def start_cases(folder: Path) -> None:
    """Start a program for each of CASES; called inside a job."""
    code = (
        "import json, os, sys; d = os.environ; by = 'mpirun' if 'OMPI_COMM_WORLD_RANK' in d else 'srun'; "
        "names = {'mpirun': ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE'), "
        "'srun': ('SLURM_PROCID', 'SLURM_STEP_NUM_TASKS')}[by]; rank, workers = (int(d[name]) for name in names); "
        "told = [os.uname().nodename, by, workers, d['HOROVOD_STUDY_X'], sys.argv[1]]; "
        "open(f'{sys.argv[2]}-{rank}', 'w').write(json.dumps(told))"
    )
    for name, (runtime, hosts, launcher, _) in CASES.items():
        placed = tuple(Host(name=each[:2], slots=int(each[3:])) for each in hosts)
        made = program_line(
            runtime,
            sum(host.slots for host in placed),
            ("-c", code, HAIRY, str(folder / name)),
            python=Path(sys.executable),
            out=folder / HAIRY,
            environ={**os.environ, "HOROVOD_STUDY_X": HAIRY},
            root=os.geteuid() == 0,
            site=Site(hosts=placed, launcher=launcher, interface="eth0", allocation=True),
        )
        subprocess.run(made.argv, env=dict(made.environment), check=True, timeout=PATIENCE_S)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.horovod
def test_ranks_in_a_real_job_are_where_they_should_be(slurm: SlurmCluster, tmp_path):
    """Also where the job was asked for without a word on tasks, and its nodes are in another order."""
    script = tmp_path / "job.sh"
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from pathlib import Path; "
    code += f"import test_launch; test_launch.start_cases(Path({str(tmp_path)!r}))"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -c {shlex.quote(code)}\n")
    output = tmp_path / "output"
    asked = ("--wait", "--nodes=2", "--exclusive", f"--output={output}")
    slurm.run("sbatch", *asked, str(script), check=False, timeout_s=150)

    for name, (_, hosts, _, launcher) in CASES.items():
        wanted = [each[:2] for each in hosts for _ in range(int(each[3:]))]
        for rank, host in enumerate(wanted):
            path = tmp_path / f"{name}-{rank}"
            assert path.exists(), output.read_text()
            assert [host, launcher, len(wanted), HAIRY, HAIRY] == json.loads(path.read_text())


# ---------------------------------------------------------------------- ranks that meet by themselves


def started(runtime: str, tmp_path: Path, *, site: Site, environ: dict[str, str] | None = None):
    """Train a few steps on two ranks of this machine that mpirun starts, and return what came of it."""
    backend, _, transport = runtime.partition("/")
    config = StrainConfig(backend=backend, transport=transport, steps=3, dataset="400", batch=8, start_timeout_s=40)
    (tmp_path / "cell.yaml").write_text(json.dumps(vars(config)))
    made = launch_line(
        Cell(config=config, runtime=runtime, placement=Placement(workers=2, workers_per_node=2)),
        python=Path(sys.executable),
        config=tmp_path / "cell.yaml",
        out=tmp_path / "run",
        environ={**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})},
        root=os.geteuid() == 0,
        site=site,
    )
    if not Path(made.argv[0]).exists():
        pytest.skip("no mpirun")
    assert made.argv[0].endswith("mpirun")
    return subprocess.run(made.argv, env=dict(made.environment), capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("runtime", ["horovod/gloo", "ddp/gloo"])
def test_ranks_of_mpirun_meet_at_a_port(runtime, tmp_path):
    done = started(runtime, tmp_path, site=Site(launcher="mpirun"))

    assert 0 == done.returncode, done.stdout + done.stderr
    effective = json.loads((tmp_path / "run" / "run.json").read_text())["effective"]
    assert (2, "gloo", "mpirun") == tuple(effective[name] for name in ("workers", "transport", "launcher"))
    assert [0, 1] == [rank["local_rank"] for rank in effective["ranks"]]


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("runtime", ["horovod/gloo", "ddp/gloo"])
def test_a_port_that_is_taken_ends_the_run_with_the_reason(runtime, tmp_path):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        done = started(runtime, tmp_path, site=Site(launcher="mpirun", port=port))

    assert 0 != done.returncode
    expected = (
        f"error: port {port} of localhost is taken by another program, so the ranks cannot meet there; start again, or "
        "set MASTER_PORT to a free port"
    )
    assert expected in done.stderr.splitlines()
