"""Odd values in environment variables: one line that names the variable, or a value that is ignored; nothing else."""

import ast
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import BIN
from make.launch_lines import program_line
from make.wording import Golden

import horovod_study
from horovod_study.cluster.launch import hosts_of_allocation
from horovod_study.comm import detect, open_backend
from horovod_study.comm.distributed import _LOCAL_RANKS, local_rank
from horovod_study.comm.launch import (
    _LAUNCHERS,
    Launch,
    meeting_point,
    require_connection,
    require_controller,
    require_rendezvous,
)
from horovod_study.comm.settings import apply
from horovod_study.config import variables
from horovod_study.config.partitions import gpus_here
from horovod_study.config.variables import decimal, whole_number, without_working_directory
from horovod_study.errors import BackendError, StudyError
from horovod_study.strain.dataset import cache_directory
from horovod_study.strain.options import StrainConfig
from horovod_study.studies.job import main as job_main
from horovod_study.studies.job import seconds_left

PACKAGE = Path(horovod_study.__file__).parent
ODD = ["x", "-1", "1e9", "1.5", "0x1", "1_0", "²", "9" * 5000, "\udcff", "1 2", "+1", "nan"]
SLURM = {"SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "1"}

# ---------------------------------------------------------------------------------------------------- one reader


def _reads_environment(node: ast.AST) -> bool:
    return any(
        (isinstance(each, ast.Name) and each.id in ("environ", "getenv"))
        or (isinstance(each, ast.Attribute) and each.attr in ("environ", "_environ", "getenv"))
        for each in ast.walk(node)
    )


def _assigned(tree: ast.AST) -> set[str]:
    """The names of a module that hold the text of a variable: `end = environ.get(...)`."""
    return {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call | ast.Subscript)
        for target in node.targets
        if isinstance(target, ast.Name)
        and _reads_environment(node.value.func if isinstance(node.value, ast.Call) else node.value.value)
    }


def _conversions(source: str) -> list[int]:
    """Return the lines in which a number is made of what a variable holds."""
    tree = ast.parse(source)
    texts = _assigned(tree)
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("int", "float")
        and node.args
        and (
            _reads_environment(node.args[0])
            or any(isinstance(each, ast.Name) and each.id in texts for each in ast.walk(node.args[0]))
        )
    ]


@pytest.mark.slow
def test_only_one_module_makes_numbers_of_environment_variables() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): lines
        for path in PACKAGE.rglob("*.py")
        if path.name != "variables.py" and (lines := _conversions(path.read_text()))
    }

    assert found == {}


@pytest.mark.parametrize(
    "source", ["int(os.environ['A'])", "float(environ.get('A', '0'))", "a = environ.get('A')\nb = int(a)"]
)
def test_the_search_for_other_readers_finds_them(source: str) -> None:
    assert _conversions(source)


@pytest.mark.parametrize("text", ODD)
def test_a_number_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(BackendError) as told:
        whole_number("THE_NAME", {"THE_NAME": text})

    line = str(told.value)
    assert "THE_NAME" in line and "\n" not in line and len(line) < 300
    line.encode("ascii")  # lone bytes can be printed


@pytest.mark.parametrize("text, value", [("", None), ("  ", None), ("7", 7), (" 7\n", 7), ("007", 7)])
def test_numbers_are_read(text: str, value: int | None) -> None:
    assert whole_number("A", {"A": text}) == value
    assert whole_number("A", {}) is None


def test_bounds_belong_to_the_allowed_numbers() -> None:
    assert [whole_number("A", {"A": text}, low=1, high=65535) for text in ("1", "65535")] == [1, 65535]
    for text in ("0", "65536", "99999"):
        with pytest.raises(BackendError, match="1 to 65535"):
            whole_number("A", {"A": text}, low=1, high=65535)


@pytest.mark.parametrize("text, value", [("0.05", 0.05), ("5e-2", 0.05), (".5", 0.5), ("3", 3.0), ("3.", 3.0)])
def test_decimals_are_read(text: str, value: float) -> None:
    assert decimal("A", {"A": text}) == value


@pytest.mark.parametrize("text", [*(text for text in ODD if text not in ("1e9", "1.5")), "inf", "."])
def test_decimals_that_are_none_are_refused_by_name(text: str) -> None:
    with pytest.raises(BackendError, match="THE_NAME"):
        decimal("THE_NAME", {"THE_NAME": text})


# ---------------------------------------------------------------------------------------------------- who reads them


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("launcher, rank, workers, mark", _LAUNCHERS)
def test_ranks_and_numbers_of_workers_are_refused_by_name(
    launcher: str, rank: str, workers: str, mark: str | None, value: str
) -> None:
    for wrong, right in ((rank, workers), (workers, rank)):
        with pytest.raises(BackendError, match=wrong):
            detect({wrong: value, right: "2" if right == workers else "0", **({mark: "id"} if mark else {})})


@pytest.mark.parametrize("launcher, rank, workers, mark", _LAUNCHERS)
def test_an_empty_rank_is_none_and_half_a_launcher_is_refused(
    launcher: str, rank: str, workers: str, mark: str | None, golden: Golden
) -> None:
    more = {mark: "id"} if mark else {}
    assert detect({rank: "", workers: " ", **more}).launcher == "none"
    for empty, given, text in ((rank, workers, "2"), (workers, rank, "1")):
        with golden.raises(BackendError, match=f"{rank} and {workers}.*'{text}'"):
            detect({empty: "", given: text, **more})


@pytest.mark.parametrize("rank, workers, wrong", [("2", "2", "RANK"), ("0", "0", "WORLD_SIZE")])
def test_a_rank_is_below_the_number_of_workers(rank: str, workers: str, wrong: str) -> None:
    with pytest.raises(BackendError, match=f"variable {wrong} "):
        detect({"RANK": rank, "WORLD_SIZE": workers})


@pytest.mark.parametrize("controller", ["mpi", "gloo"])
@pytest.mark.parametrize("value", [*ODD, "mpi", "gloo", "GLOO", "ccl", "", " "])
@pytest.mark.parametrize("name", ["HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"])
def test_horovod_is_not_loaded_with_another_controller_than_the_launch_has(
    name: str, value: str, controller: str
) -> None:
    environ = {name: value, "KEPT": ""}
    if value.lower() == controller or (value, name) == ("ccl", "HOROVOD_CPU_OPERATIONS"):
        require_controller(environ, controller)
        assert environ == {name: value, "KEPT": ""}
    elif not value.strip():
        require_controller(environ, controller)
        assert environ == {"KEPT": ""}
    else:
        with pytest.raises(BackendError, match=f"{name} .*{controller}") as told:
            require_controller(environ, controller)
        str(told.value).encode("ascii")


@pytest.mark.parametrize("launcher, rank, workers, mark", _LAUNCHERS)
def test_who_refuses_a_launch_names_the_variables_that_told_of_it(
    launcher: str, rank: str, workers: str, mark: str | None
) -> None:
    """They may be left of another program, which nobody remembers."""
    launch = detect({rank: "0", workers: "2", **({mark: "id"} if mark else {})})

    assert launch.named == f"{launcher} ({rank}, {workers})"
    with pytest.raises(BackendError, match=rf"{rank}, {workers}\) started 2"):
        open_backend(StrainConfig(backend="serial"), launch)


@pytest.mark.parametrize("value", [*ODD, "0", "65536", "99999"])
def test_a_port_is_refused_by_name(value: str) -> None:
    with pytest.raises(BackendError, match="MASTER_PORT"):
        meeting_point({"MASTER_ADDR": "n1", "MASTER_PORT": value})


@pytest.mark.parametrize("name", _LOCAL_RANKS)
def testlocal_ranks_are_refused_by_name(name: str) -> None:
    assert local_rank({name: "3"}) == 3
    assert local_rank({name: ""}) == 0
    with pytest.raises(BackendError, match=name):
        local_rank({name: "x"})


def started(environ: dict[str, str]) -> Mapping[str, str]:
    """The environment of two workers that a shell with these variables starts."""
    python, out = Path(sys.executable), Path("out")
    line = program_line(
        "horovod/gloo", 2, ["x"], python=python, out=out, environ=environ, which=lambda name, path: name
    )
    return line.environment


@pytest.mark.parametrize("name", [f"HOROVOD_{name}" for name in variables.OF_HOROVOD])
def test_numbers_of_horovod_are_looked_at_before_workers_are_started(name: str) -> None:
    """Horovod takes most of them for 0, and ends with others: every cell would fail, or measure another thing."""
    for text in ("abc", "-1", "true"):
        with pytest.raises(StudyError, match=f"environment variable {name} is '{text}'; allowed: .*; `unset {name}`"):
            started({name: text})
    assert started({name: "3"})[name] == "3"
    assert name not in started({name: " "})


@pytest.mark.parametrize(
    "name", ["HOROVOD_CYCLE_TIME", "HOROVOD_IDLE_CYCLE_TIME", "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CACHE_CAPACITY"]
)
def test_settings_of_horovod_are_refused_by_name_and_empty_ones_are_not_set(
    name: str, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    def applied(**environ: str) -> tuple[dict[str, Any], dict[str, str]]:
        monkeypatch.setattr(os, "environ", environ)
        return apply("horovod/mpi", config=StrainConfig()), environ

    with golden.raises(BackendError, match=name):
        applied(**{name: "abc"})
    assert applied(**{name: ""}) == applied()


@pytest.mark.parametrize("name", ["SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "SLURM_JOB_END_TIME"])
@pytest.mark.parametrize("value", ["x", "²", "9" * 5000])
def test_numbers_of_slurm_are_refused_by_name(
    name: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    if name == "SLURM_ARRAY_TASK_ID":
        assert job_main([str(tmp_path)], environ={name: value}) == 2
        golden(capsys.readouterr().err, name)
    elif name == "SLURM_JOB_END_TIME":
        with golden.raises(BackendError, match=name):
            seconds_left({name: value}, 60.0)


@pytest.mark.parametrize(
    "name, value",
    [
        *(("SLURM_TASKS_PER_NODE", each) for each in ("x", "1(x999999999999)", "9" * 5000, "²", "-1", "1(x)")),
        *(("SLURM_JOB_NODELIST", each) for each in ("n[1-999999999999]", "n[", "n[²]", "n[1-" + "9" * 5000 + "]")),
    ],
)
def test_what_slurm_says_of_nodes_is_bounded(name: str, value: str) -> None:
    with pytest.raises(StudyError):
        hosts_of_allocation({**SLURM, name: value})


@pytest.mark.parametrize("value", ["", "x", "-1", "0,x", "9" * 5000, "GPU-abc"])
def test_visible_gpus_are_counted_whatever_is_written(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)

    assert gpus_here() >= 0


def test_a_home_that_nobody_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("HOROVOD_STUDY_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(StudyError, match="HOME"):
        cache_directory()


# ---------------------------------------------------------------------------------------------------- left behind

MPIRUN = Launch(launcher="mpirun", rank=0, workers=1, backend="mpi")


def test_variables_that_an_ended_mpirun_left_are_refused(tmp_path: Path) -> None:
    ours = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    alive = {**ours, "PMIX_RANK": "0", "PMIX_SERVER_TMPDIR": str(tmp_path)}
    require_connection(MPIRUN, alive)
    for left in (ours, {**alive, "PMIX_SERVER_TMPDIR": str(tmp_path / "gone")}):
        with pytest.raises(BackendError, match="OMPI_COMM_WORLD_RANK"):
            require_connection(MPIRUN, left)


def test_variables_that_an_ended_horovodrun_left_are_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        environ = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": port}
        require_rendezvous(environ)
    for left in (environ, {}):
        with pytest.raises(BackendError, match="HOROVOD_RANK"):
            require_rendezvous(left)


# ---------------------------------------------------------------------------------------------------- whole programs


def _ended(words: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "HOROVOD_"))}
    return subprocess.run(
        [sys.executable, "-P", "-m", *words],
        cwd=folder,
        env={**kept, **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "x", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": "", "RANK": "0"},
        {"SLURM_STEP_NUM_TASKS": "x", "SLURM_PROCID": "0"},
        {"MASTER_PORT": "99999", "MASTER_ADDR": "localhost", "RANK": "0", "WORLD_SIZE": "1"},
    ],
    ids=lambda variables: next(iter(variables)),
)
@pytest.mark.slow
def test_a_training_names_the_variable_in_one_line(variables: dict[str, str], tmp_path: Path) -> None:
    ended = _ended(["horovod_study.train", "--dataset", "1000", "--steps", "1", "--out", "run"], tmp_path, **variables)

    assert ended.returncode == 2
    (line,) = [each for each in (ended.stdout + ended.stderr).splitlines() if each]
    assert line.startswith("error: ") and next(iter(variables)) in line
    assert not (tmp_path / "run").exists()


@pytest.mark.horovod
@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"},
        {"HOROVOD_CYCLE_TIME": "abc"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_horovod_is_not_started_with_what_makes_it_abort(variables: dict[str, str], tmp_path: Path) -> None:
    words = ["horovod_study.train", "--dataset", "1000", "--steps", "1", "--backend", "horovod", "--out", "run"]
    ended = _ended(words, tmp_path, **variables)

    assert ended.returncode == 2
    (line,) = [each for each in (ended.stdout + ended.stderr).splitlines() if "error: " in each]
    assert next(iter(variables)) in line


@pytest.mark.parametrize("module", ["horovod_study.train", "horovod_study.cli"])
@pytest.mark.slow
def test_programs_help_without_docstrings(module: str, tmp_path: Path) -> None:
    ended = _ended([module, "--help"], tmp_path, PYTHONOPTIMIZE="2")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "--help" in ended.stdout


# ---------------------------------------------------------------------------------------------------- safe path


def test_pythons_that_are_started_do_not_import_from_the_working_directory(tmp_path: Path) -> None:
    for name in ("numpy", "torch", "yaml", "json", "horovod_study"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported ' + __name__)")
    program = "import json, numpy, yaml, horovod_study; print(horovod_study.__file__)"
    for path in ({}, {"PYTHONPATH": os.pathsep}, {"PYTHONPATH": f"{os.pathsep}{PACKAGE.parent}"}):
        environ = without_working_directory({**os.environ, **path})
        ended = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True
        )
        assert ended.stderr == ""
        assert Path(ended.stdout.strip()).parent == PACKAGE


@pytest.mark.parametrize("program", [[str(BIN / "horovod-study")], [sys.executable, "-m", "horovod_study.cli"]])
@pytest.mark.slow
def test_what_pythonpath_names_is_for_trainings_and_not_for_the_program(program: list[str], tmp_path: Path) -> None:
    """A NumPy of another Python, a typing.py of an old one, a damaged package; in the working directory, too."""
    theirs = {
        "numpy": "MINE = 'theirs'",
        "typing": "raise ImportError",
        "pydantic/__init__": "print 1",
        "yaml": "1 / 0",
    }
    for name, text in theirs.items():
        (tmp_path / f"{name}.py").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    path = os.pathsep.join((str(tmp_path), str(PACKAGE.parent)))  # behind it the folder of this package
    training = "import numpy, os; print(numpy.MINE, os.environ['PYTHONPATH'])"
    ended = subprocess.run(
        [*program, "record", "--out", "run", "--", sys.executable, "-c", training],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("theirs ") and ended.stdout.endswith(f"{os.pathsep}{path}\n")


def test_a_package_that_is_not_installed_is_found_by_the_pythons_that_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "PYTHONPATH" not in without_working_directory({}), "it is installed here"
    monkeypatch.setattr(variables, "_installed", lambda: False)

    assert without_working_directory({})["PYTHONPATH"] == str(PACKAGE.parent)
    paths = without_working_directory({"PYTHONPATH": f"/a{os.pathsep}{PACKAGE.parent}"})["PYTHONPATH"]
    assert paths.split(os.pathsep) == ["/a", str(PACKAGE.parent)]


@pytest.mark.parametrize("runtime", ["serial", "horovod/mpi", "horovod/gloo", "ddp/gloo", "mpi/mpi"])
def test_every_cell_has_the_safe_path(runtime: str, tmp_path: Path) -> None:
    workers = 1 if runtime == "serial" else 2
    line = program_line(
        runtime,
        workers,
        ["-m", "x"],
        python=Path(sys.executable),
        out=tmp_path,
        environ={"PYTHONPATH": f"/a{os.pathsep}", "PATH": "/bin"},
        which=lambda name, path: f"/bin/{name}",
    )

    assert line.environment["PYTHONSAFEPATH"] == "1"
    assert line.environment["PYTHONPATH"] == "/a"


@pytest.mark.slow
def test_the_package_starts_no_python_without_the_safe_path() -> None:
    """Whoever names an interpreter and starts a process hands it an environment of `without_working_directory`."""
    bare = []
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("subprocess.Popen", "subprocess.run"):
                environments = [ast.unparse(each.value) for each in node.keywords if each.arg == "env"]
                safe = any("without_working_directory" in each or "line.environment" in each for each in environments)
                if not safe and ("sys.executable" in source or "here.python" in source):
                    bare.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    # None of these starts a Python: py-spy with the process that it looks at, git.
    others = ("strain/profiling.py", "measure/environment.py")
    assert [each for each in bare if not each.startswith(others)] == []


@pytest.mark.parametrize("name, code", [("MPLBACKEND", 0), ("SOURCE_DATE_EPOCH", 2)])
@pytest.mark.slow
def test_what_libraries_read_while_they_are_imported_is_one_line_or_without_effect(
    name: str, code: int, tmp_path: Path
) -> None:
    words = ["predict", "--simulate", "--workers", "4", "--compute-ms", "1", "--batch", "75", "--gradient-mb", "1"]
    network = ["--alpha-us", "5", "--gb-per-s", "1", "--out", str(tmp_path / "out")]
    ended = subprocess.run(
        [sys.executable, "-m", "horovod_study.cli", *words, *network],
        env={**os.environ, name: "rubbish"},
        capture_output=True,
        text=True,
    )

    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    assert (name in ended.stderr) == (code == 2)
