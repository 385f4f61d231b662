"""Result files are whole or not there, whatever ends the writer, and nothing is written through a symbolic link."""

import ast
import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawn_figures import figures_only
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.synthetic_study import write_study
from make.waiting import PATIENCE_S
from test_crash import Killer

import horovod_study
from horovod_study import cli, files, records
from horovod_study.cluster import doctor, identity
from horovod_study.errors import StudyError
from horovod_study.recording import command
from horovod_study.report import export
from horovod_study.report.kit import files as kit_files
from horovod_study.report.kit import style
from horovod_study.report.page import html
from horovod_study.strain import checkpoint, dataset
from horovod_study.studies import lease

PACKAGE = Path(horovod_study.__file__).parent
OLD, NEW = "old\n" * 3000, "new\n" * 5000

WRITING = {
    "cluster/doctor.py": "tries what hosts see of a file, in a folder of its own",
    "cluster/identity.py": "copies the source into a hidden folder, which is renamed when it is whole",
    "recording/inject/sitecustomize.py": "a word that a Python was started, in a temporary folder of its command",
    "recording/rank/events.py": "events of a training and samples of its stack, in a temporary folder of its command",
    "recording/rank/watch.py": "how far a process has come, in a temporary folder of its command",
    "studies/runner.py": "an empty file, which asks a runner to end",
    "studies/search.py": "cuts a last line of Optuna's journal that is not whole",
    "programs/equality.py": "arrays for the ranks that are compared, in a temporary folder",
    "files.py": "the door",
    "config/limits.py": "/dev/null in place of streams that were closed",
    "studies/lease.py": "a claim, which is made with its content at once, by link or exclusively",
    "records/writer.py": "rows are appended to a stream: created exclusively, or in a hidden file that is renamed",
    "report/export.py": "packed into a stream of files.new_file",
    "report/kit/style.py": "into a stream in memory",
    "strain/checkpoint.py": "into a stream in memory",
    "strain/dataset.py": "arrays in a hidden folder, which is renamed when it is whole",
}
"""Modules that open files for writing by themselves -> why."""
_WRITERS = {
    *("write_text", "write_bytes", "savefig", "to_json", "to_parquet", "tofile", "savez", "save", "savetxt"),
    *("copyfile", "copy", "copy2", "copytree", "move", "dump", "open_memmap", "savez_compressed", "touch"),
    *("truncate", "ftruncate", "posix_fallocate", "sink", "OSFile", "to_pickle", "to_excel"),
}


_OF_MODULES = {"save": ("np", "torch"), "copy": ("shutil",), "move": ("shutil",)}
"""Names that other things have too -> the modules whose they are here."""


def opens_for_writing(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of a module in which it writes a file without going through files.py."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        texts = [
            each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        flags = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
        modes = [each for each in texts if each and set(each) <= set("rwaxbt+") and set(each) & set("wax+")]
        if name == "open" and (modes or flags & {"O_WRONLY", "O_RDWR", "O_CREAT"}):
            yield node.lineno
        elif isinstance(node.func, ast.Attribute) and name in _WRITERS:
            of = getattr(node.func.value, "id", "")
            if name not in _OF_MODULES or of in _OF_MODULES[name]:
                yield node.lineno
        elif name == "to_csv" and node.args:
            yield node.lineno


@pytest.mark.slow
def test_every_module_writes_through_the_one_door() -> None:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        lines = list(opens_for_writing(ast.parse(path.read_text())))
        if lines:
            found[path.relative_to(PACKAGE).as_posix()] = lines

    assert sorted(set(found) - set(WRITING)) == [], found
    assert sorted(set(WRITING) - set(found)) == [], "no longer needed here"


# ------------------------------------------------------------------------------------------------ one file


def killed(work: Callable[[], Any], below: Path, k: int) -> bool:
    """Do `work` in a process that is killed right before its k-th change below a folder; whether it was."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            sys.addaudithook(Killer(below, k))
            work()
            code = 0
        except BaseException as error:
            print(f"{error!r}", file=sys.stderr)
        os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended in (0, -signal.SIGKILL), ended
    return ended != 0


def write_old(path: Path) -> None:
    path.write_text(OLD)


@pytest.mark.parametrize("before", [None, OLD])
def test_a_writer_that_is_killed_leaves_the_old_file_or_the_new_one(before: str | None, tmp_path: Path) -> None:
    path, k = tmp_path / "result.csv", 1
    while True:
        if before is not None:
            path.write_text(before)
        again = killed(lambda: files.write_file(path, NEW), tmp_path, k)
        assert (path.read_text() if path.exists() else None) == (before if again else NEW)
        assert [each.name for each in tmp_path.iterdir() if not each.name.startswith(".")] in ([path.name], [])
        if not again:
            break
        k += 1
    assert k > 3, "it was killed before each of its changes"


@pytest.mark.parametrize("name", ["write", "fsync", "replace", "chmod"])
def test_a_writer_that_finds_no_room_leaves_the_old_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.csv"
    path.write_text(OLD)

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if name == "write":
        with pytest.raises(OSError), files.new_file(path):
            full()
    else:
        monkeypatch.setattr(files.os, name, full)
        with pytest.raises(OSError):
            files.write_file(path, NEW)

    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [(path.name, OLD)]


def test_a_row_that_finds_room_in_part_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "rows.csv", os.write
    files.append_text(path, "1,2\n", head="a,b\n")

    def partly(descriptor: int, content: Any) -> int:
        if len(content) < 3:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return write(descriptor, content[:2])

    monkeypatch.setattr(files.os, "write", partly)
    with pytest.raises(OSError, match="large"):
        files.append_text(path, "3,4\n", head="a,b\n")

    assert path.read_text() == "a,b\n1,2\n"


@given(
    st.text(st.characters(codec=None), max_size=8)
    | st.sampled_from(["=1", "'=1", "''=1", "-1", "+", "@x", "\t", "a=1"])
)
@settings(max_examples=examples(200))
def test_a_name_that_looks_like_a_formula_is_guarded_and_comes_back(name: str) -> None:
    written = files.guarded(name)

    assert files.unguarded(written) == name
    assert not written.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) or float(written) is not None


def test_numbers_are_not_guarded() -> None:
    table = pd.DataFrame({"x": [-1.5, 2.0], "name": ["=1+2", "b"]})

    assert files.csv_of(table) == "x,name\n-1.5,'=1+2\n2.0,b\n"
    assert files.csv_rows(("x", "name"), [{"x": -1.5, "name": "=1+2"}]) == "x,name\n-1.5,'=1+2\n"


REPORT = ["report", "runs"]
NO_ROOM = {
    **dict.fromkeys(["runs.csv", "points.csv", "provenance.json", "source.json"], REPORT),
    **dict.fromkeys(["speedup.pdf", "speedup.svg", "speedup.csv", "points.tex", "report.html"], REPORT),
    "section.tex": [*REPORT, "--paper"],
    "against.json": [*REPORT, "--against", "runs"],
    "runs.zip": ["report", "runs", "--export", "zip"],
    "explanation.json": ["explain", "runs", "--out", "out"],
    "trace.json": ["report", "runs/RUN", "--export", "trace"],
}
"""What a file system refuses to take -> the command that writes it."""


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", NO_ROOM)
def test_a_file_of_a_result_that_finds_no_room_ends_the_command_with_2(
    name: str, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(study, "runs")
    words = [word.replace("RUN", min(study.iterdir()).name) for word in NO_ROOM[name]]
    if "runs/analysis" in words:
        assert cli.main(["report", "runs", "--tables"]) == 0
    replace = os.replace

    def full(made: Any, path: Any) -> None:
        if Path(path).name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(made, path)

    monkeypatch.setattr(files.os, "replace", full)
    code, told = cli.main(words), capsys.readouterr().err

    assert code == 2
    (error,) = [line for line in told.splitlines() if line.startswith("error: ")]
    assert f"{name}: cannot be written (No space left on device); " in error


@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_a_tracker_that_keeps_a_full_disk_to_itself_is_no_success(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def silent(runs: Any, directory: Path) -> list[Path]:
        if tracker == "mlflow":
            raise RuntimeError("(sqlite3.OperationalError) database or disk is full")
        return [directory]

    monkeypatch.setattr(export, f"_{tracker}", silent)
    if tracker == "wandb":
        monkeypatch.setattr(files.os, "write", told)

    with pytest.raises(
        StudyError, match=r"out: cannot be written \(No space left on device\); choose a writable --out"
    ):
        export.write_tracker(tracker, [], tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


READERS = [
    ["report", "runs", "--tables"],
    ["report", "runs"],
    ["report", "runs", "--against", "runs"],
    ["report", "runs", "--check"],
    ["fit", "runs"],
    ["predict", "runs", "--workers", "16"],
    ["explain", "runs"],
    ["explain", "runs", "--part", "account"],
    ["explain", "runs", "--part", "sync", "--out", "out"],
    ["report", "runs", "--export", "zip"],
    ["report", "runs", "--export", "tensorboard", "--out", "out"],
]
FOREIGN = {"other": '{"name": "of another program"}', "list": "[]", "text": "run", "empty": ""}


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_a_record_of_another_program_among_runs_is_told(
    words: list[str], study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(study, "runs")
    for name, text in FOREIGN.items():
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "run.json").write_text(text)
    if words[0] == "report" and "--tables" not in words:
        assert cli.main(["report", "runs"]) == 0
        capsys.readouterr()
    cli.main(words)
    told = capsys.readouterr().err.splitlines()

    for name in FOREIGN:
        assert [line for line in told if line.startswith(f"doubt: left out: {name}: run.json: ")], (name, told)


# ------------------------------------------------------------------------------------------------ symbolic links


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study") / "runs", workers=(1, 2), repeats=2, steps=60)


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Pictures and the page are made in no time: what is tested is where they are written."""
    with figures_only("speedup", "breakdown"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(kit_files, "without_glyph", lambda figure: "")
        for module in (style, kit_files):
            patch.setattr(module, "to_bytes", lambda figure, form: f"{form} {EDITION['number']}\n".encode() * 500)
            patch.setattr(module, "settled", lambda figure: figure)
        patch.setattr(
            html, "render", lambda analysis, *, against=None, printed=None: f"<html>{EDITION['number']}</html>\n" * 500
        )
        yield


EDITION = {"number": 1}


def report(study: Path, out: Path) -> None:
    assert cli.main(["report", "--tables", str(study), "--out", str(out)]) == 0
    assert cli.main(["report", str(out)]) == 0


def visible(folder: Path) -> list[Path]:
    return sorted(
        each
        for each in folder.rglob("*")
        if each.is_file() and not any(part.startswith(".") for part in each.relative_to(folder).parts)
    )


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_no_result_is_written_through_a_link(study: Path, tmp_path: Path) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    report(study, out)
    outside.mkdir()
    for number, path in enumerate(visible(out)):
        (outside / f"{number}").write_text("mine")
        path.unlink()
        path.symlink_to(outside / f"{number}")
    report(study, out)

    assert {each.read_text() for each in outside.iterdir()} == {"mine"}
    assert not any(each.is_symlink() for each in out.rglob("*"))


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["figures", "tables"])
def test_a_folder_of_results_that_leads_outside_is_refused(name: str, study: Path, tmp_path: Path) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    assert cli.main(["report", "--tables", str(study), "--out", str(out)]) == 0
    (out / name).symlink_to(outside)

    assert cli.main(["report", str(out)]) == 2
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["epochs.csv", "bench.json", "run.json", ".reserve"])
def test_no_file_of_a_run_is_written_through_a_link(name: str, tmp_path: Path) -> None:
    from test_records import record

    run, outside = tmp_path / "run", tmp_path / "outside"
    records.create_run(run, record())
    outside.write_text("mine")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(outside)
    for write in (
        lambda: records.append_epoch(run, {"epoch": 1}),
        lambda: records.write_bench(run, "ablation", {}),
        lambda: records.finish_run(run, record(), status="failed", finished="f", totals={}),
    ):
        try:
            write()
        except StudyError as error:
            assert name in str(error)

    assert outside.read_text() == "mine"


def test_a_checkpoint_is_not_written_through_a_link_to_a_folder(tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    outside.mkdir()
    (run / records.CHECKPOINTS).symlink_to(outside)
    empty: dict[str, Any] = {name: {} for name in ("model", "optimizer", "progress", "config")}
    state = checkpoint.Checkpoint(
        step=1, epoch=0, **empty, target_bounds=((0.0, 1.0), (0.0, 1.0)), input_scaling="none", widths="15,38,197"
    )
    with pytest.raises(StudyError, match="checkpoints"):
        checkpoint.save(run, state)

    assert list(outside.iterdir()) == []


# ------------------------------------------------------------------------------------------------ killed anywhere


class Watcher(Killer):
    """Notes what every visible file of a folder holds right before each change below it: what a kill then would leave.

    A kill between two changes leaves the same, because no visible file is ever opened for writing: that is noted too.
    """

    def __init__(self, below: Path) -> None:
        super().__init__(below, -1)  # it counts changes, and never gets to zero
        self.seen: dict[str, Any] = {"opened": [], "contents": {}, "states": []}
        self._known: dict[tuple[int, ...], str] = {}  # a file is read again only when it is another one or has changed

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        before = self.left
        super().__call__(event, arguments)
        if self.left == before:
            return
        if event == "open" and not Path(arguments[0]).name.startswith("."):
            self.seen["opened"].append(str(arguments[0]))
        state = {}
        for path in visible(Path(self.runs)):
            facts = path.stat()
            known = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
            if known not in self._known:
                content = path.read_bytes()
                self._known[known] = hashlib.sha256(content).hexdigest()
                self.seen["contents"][self._known[known]] = content.decode("latin-1")
            state[path.relative_to(self.runs).as_posix()] = self._known[known]
        self.seen["states"].append(state)


def watched(work: Callable[[], Any], below: Path, notes: Path) -> tuple[list[str], list[dict[str, bytes]]]:
    """Do `work` in a process of its own, because no audit hook can be removed.

    Return the visible files that it opened for writing, and {name: content} of all visible ones before each change.
    """
    pid = os.fork()
    if pid == 0:
        watcher = Watcher(below)
        try:
            sys.addaudithook(watcher)
            work()
        except BaseException as error:
            watcher.seen["opened"].append(repr(error))
        notes.write_text(json.dumps(watcher.seen))
        os._exit(0)
    os.waitpid(pid, 0)
    seen = json.loads(notes.read_text())
    contents = {digest: text.encode("latin-1") for digest, text in seen["contents"].items()}
    return seen["opened"], [{name: contents[digest] for name, digest in each.items()} for each in seen["states"]]


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_analyze_and_report_leave_whole_files_wherever_they_are_killed(study: Path, tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    shutil.copytree(study, runs)
    report(runs, out)
    old = {path.relative_to(out).as_posix(): path.read_bytes() for path in visible(out)}
    shutil.rmtree(next(path for path in sorted(runs.iterdir()) if path.name.endswith("-r1")))
    EDITION["number"] += 1
    opened, states = watched(lambda: report(runs, out), out, tmp_path / "notes.json")
    new = {path.relative_to(out).as_posix(): path.read_bytes() for path in visible(out)}

    assert opened == []
    assert len(states) > 3 * len(new), "every file is made under another name, given its mode, and renamed"
    assert sorted(old) == sorted(new)
    assert [name for name in ("points.csv", "report.html", "figures/speedup.pdf") if old[name] == new[name]] == []
    for state in states:
        assert sorted(state) == sorted(old)
        torn = [name for name, content in state.items() if content not in (old[name], new[name])]
        assert torn in ([], [records.SOURCE]), "that one is written by both"
        assert json.loads(state[records.SOURCE])["schema"] == records.SOURCE_SCHEMA
        # The page comes last: a new one never is beside old figures.
        if state["report.html"] != old["report.html"]:
            assert all(state[name] == new[name] for name in new if name.startswith(("figures", "tables")))


@pytest.mark.slow
def test_data_generate_that_is_killed_anywhere_leaves_a_whole_set_or_none(tmp_path: Path) -> None:
    def work() -> None:
        dataset.generate(tmp_path / "set", 400, seed=1)

    for k in range(1, 100):
        again = killed(work, tmp_path, k)
        assert [each.name for each in tmp_path.iterdir() if not each.name.startswith(".")] == ([] if again else ["set"])
        if not again:
            break
    assert k > 4
    assert len(dataset.open_dataset(tmp_path / "set").curves) == 400


# ------------------------------------------------------------------------------------------------ what is left


def import_curves(below: Path) -> None:
    curves = np.zeros((40, 3, 201), np.float32)
    dataset.write_imported(
        below / "set",
        lambda low, high: curves[low:high],
        np.full((40, 2), 0.5, np.float32),
        target_bounds=np.array([[0.0, 1.0], [0.0, 1.0]]),
        provenance={},
    )


def resume_rows(below: Path) -> None:
    from test_records import columns, record

    if not (below / "run.json").exists():
        records.create_run(below, record())
        writer = records.StepWriter(below, 0)
        writer.append(columns(40))
        writer.close()
    records.StepWriter(below, 0, resume_at=30).close()


OPTIONS = {"study": "s", "partition": "p", "repeat": 0, "warmup_steps": 1, "system_interval_s": 0}
MAKERS: dict[str, Callable[[Path], object]] = {
    "report": lambda below: cli.main(["report", str(below / "runs")]),
    "archive": lambda below: cli.main(["report", str(below / "runs"), "--export", "zip"]),
    "generate": lambda below: dataset.generate(below / "set", 400, seed=1),
    "import": import_curves,
    "claim": lambda below: lease.acquire(below, "run", what="the run").release(),
    "rows": resume_rows,
    "samples": lambda below: records.SystemWriter(below, "a", {}, keep_before_s=None).close(),
    "record": lambda below: command.record([sys.executable, "-c", "pass"], below / f"run-{os.getpid()}", OPTIONS),
    "source": lambda below: identity.snapshot(below),
    "doctor": lambda below: doctor.diagnosis(doctor.Machine(runs=below, quick=True), {}),
}
"""What makes files and folders that are not complete for a while, in the folder that it is given."""


def left(below: Path) -> list[Path]:
    return list(below.rglob(f".*{files.PART}"))


def ended(work: Callable[[], Any], below: Path, number: int) -> int:
    """Do `work` in a process that gets a signal while its first thing below a folder is unfinished; return its pid."""
    if (pid := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            sys.addaudithook(Killer(below, 2, number, files.PART))
            work()
        os._exit(0)
    status = os.waitpid(pid, os.WUNTRACED)[1]
    assert number in (os.WSTOPSIG(status), os.WTERMSIG(status)), "it was in the middle"
    return pid


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_what_a_killed_maker_left_is_taken_away_by_the_next_one(name: str, study: Path, tmp_path: Path) -> None:
    def work() -> None:
        MAKERS[name](tmp_path)

    def once_more() -> list[Path]:
        for made in ("set", identity.CODE):  # these are made once
            for done in (tmp_path / made).glob("[!.]*"):
                shutil.rmtree(done) if done.is_dir() else done.unlink()
            with contextlib.suppress(OSError):
                (tmp_path / made).rmdir()
        return left(tmp_path)

    shutil.copytree(study, tmp_path / "runs")
    if name in ("rows", "archive"):  # of what must be there already
        assert not killed(work, tmp_path, 1_000_000)
    ended(work, tmp_path, signal.SIGKILL)
    (torn,) = once_more()
    live = ended(work, tmp_path, signal.SIGSTOP)
    assert {torn} < set(once_more()), "both have something unfinished there"

    assert not killed(work, tmp_path, 1_000_000)
    (own,) = once_more()
    assert own != torn, "what is left is of the one that lives"
    os.kill(live, signal.SIGKILL)
    os.waitpid(live, 0)
    assert not killed(work, tmp_path, 1_000_000)
    assert once_more() == []


def test_what_another_host_makes_is_left_until_nothing_has_changed_in_it_for_a_day(tmp_path: Path) -> None:
    there = tmp_path / ".set.0badcafe-17-1234.abcdefgh.part"
    mine = [tmp_path / name for name in (".other.part", ".set.part", ".x.0badcafe-1-1.part")]
    (there / "below").mkdir(parents=True)
    for path in (*mine, there / "below" / "curves.npy"):
        path.touch()
        os.utime(path, (0, 0))
    for path, age_s in ((there, 2), (there / "below", 1)):
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age_s * files.FORGOTTEN_S))

    os.utime(there / "below")
    with files.unfinished(tmp_path / "set", folder=True):
        assert there.exists()
    os.utime(there / "below", (0, 0))
    with files.unfinished(tmp_path / "set", folder=True):
        assert not there.exists()
    assert sorted(tmp_path.iterdir()) == sorted(mine), "names of others"


def test_every_unfinished_thing_beside_results_is_made_by_the_one_door() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        # Without a folder it is the system's for such files, and whatever is left there the system's to take away.
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("tempfile.")
        if len(node.args) > 2 or "dir" in {each.arg for each in node.keywords}
    }

    assert found == {"files.py"}


@pytest.mark.slow
@pytest.mark.parametrize("between_s", [0.0, 0.02])
def test_a_second_sigterm_does_not_stop_the_clearing_away(between_s: float, tmp_path: Path) -> None:
    words = ["strain", "data", "generate", "--size", "400000", "--processes", "2", "--out", "set"]
    process = subprocess.Popen(
        [sys.executable, "-m", "horovod_study.cli", *words], cwd=tmp_path, stdout=subprocess.PIPE
    )
    while not list(tmp_path.glob(".set.*/curves.npy")) and process.poll() is None:
        time.sleep(0.01)

    process.send_signal(signal.SIGTERM)
    time.sleep(between_s)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 143
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".set") and each.is_dir()] == []
    assert not (tmp_path / "set").exists()


@pytest.mark.slow
def test_rows_that_are_cut_for_a_resume_are_whole_wherever_it_is_killed(tmp_path: Path) -> None:
    from test_records import columns, record

    run = tmp_path / "run"
    records.create_run(run, record())
    writer = records.StepWriter(run, 0)
    writer.append(columns(40))
    writer.close()
    for steps in (10, 20, 30, 40):
        records.append_epoch(run, {**dict.fromkeys(records.EPOCH_COLUMNS, 0.5), "epoch": steps / 10, "steps": steps})

    def resume() -> None:
        records.truncate_epochs(run, 30)
        records.resume_run(run, records.read_run(run), from_step=30, began="now")
        going_on = records.StepWriter(run, 0, resume_at=30)
        going_on.append(columns(5, first=30))
        going_on.close()

    for k in range(1, 100):
        again = killed(resume, run, k)
        assert len(records.read_steps(run, 0)) in ((30, 35, 40) if again else (35,)), k
        assert [row["steps"] for row in records.epoch_rows(run)] in ([10, 20, 30, 40], [10, 20, 30]), k
        assert records.read_run(run).status == "running"
        if not again:
            break
    assert k > 8


@pytest.mark.parametrize("letter", ["a", "\u00e9", "\u8a9e", "\U0001f600"])
def test_a_name_of_as_many_bytes_as_a_file_may_have_is_written(letter: str, tmp_path: Path) -> None:
    path = tmp_path / (letter * (255 // len(letter.encode())))

    assert files.write_file(path, "x").read_text() == "x"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
