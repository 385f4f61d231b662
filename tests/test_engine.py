"""The engine: what lanes ask for is run, and told to them; nothing else starts ranks or says why they failed."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_trainer import fake_launch
from make.wording import Golden

import horovod_study
from horovod_study.cluster.process import marked_processes
from horovod_study.config.run import Cell, local_cell
from horovod_study.records import read_run
from horovod_study.strain.options import StrainConfig
from horovod_study.studies.attempt import PRUNED, Attempt, Interruption, Lane, RankRun, Running, attempt, sweep

ROOT = Path(horovod_study.__file__).parent
ONE_PLACE = {
    "CellProcess": {"attempt.py"},
    "failure_reason": {"attempt.py"},
    "is_follow_on": {"attempt.py"},
    "told_to_end": {"attempt.py", "ledger.py"},  # the ledger of records that a killed runner left
    "launch_line": {"attempt.py", "plan.py"},  # plan.py shows the lines of a dry run
    "program_line": {"attempt.py", "launch.py"},
    "Running": {"attempt.py"},
}
"""What may be called where: whoever else wants ranks asks the engine for them."""


def calls() -> Iterator[tuple[str, str]]:
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                yield path.name, name


@pytest.mark.slow
def test_only_one_place_starts_ranks_and_says_why_they_failed() -> None:
    found: dict[str, set[str]] = {name: set() for name in ONE_PLACE}
    for file, name in calls():
        if name in found:
            found[name].add(file)

    assert found == ONE_PLACE


def test_only_one_place_knows_the_exit_codes_of_signals() -> None:
    codes = {
        (path.relative_to(ROOT).as_posix(), node.value)
        for part in ("studies", "cli")
        for path in (ROOT / part).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in (128, 129, 130, 143)
    }

    assert codes == {("studies/attempt.py", 128), ("cli/__init__.py", 128)}


def cell(repeat: int = 0) -> Cell:
    return local_cell("serial", vars(StrainConfig(repeat=repeat, seconds=1)), workers=1, source="test")


def run_of(folder: Path, told: str = "done", **changes: object) -> RankRun:
    values = {"out": folder / "run", "config": folder / "run.yaml", "log": folder / "run.log", "grace_s": 0.3}
    return RankRun(**{"cell": cell(), "launch": fake_launch({"*": told}), **values, **changes})


def test_a_lane_hears_how_its_runs_ended_and_decides_what_comes_next(tmp_path: Path, golden: Golden) -> None:
    heard: list[str] = []

    def lane() -> Lane:
        for name, told in (("a", "done"), ("b", "traceback"), ("c", "own reason"), ("d", "no launcher")):
            ended: Attempt = yield run_of(tmp_path / name, told)
            heard.append(f"{ended.state}: {ended.reason}")

    with Interruption() as stop:
        sweep([lane()], stop)

    assert heard[0] == "done: "
    golden(heard[1:3], "ValueError", "code 1", "step 7")
    golden(heard[3], "/nonexistent/launcher")
    assert [read_run(tmp_path / name / "run").status for name in "abcd"] == ["done", "failed", "failed", "failed"]


def test_lanes_run_at_the_same_time_and_one_that_waits_is_asked_again(tmp_path: Path) -> None:
    order: list[str] = []
    ready: list[str] = []

    def first() -> Lane:
        order.append("begins")
        yield run_of(tmp_path / "a")
        ready.append("now")

    def second() -> Lane:
        while not ready:
            yield None
        order.append("follows")
        yield run_of(tmp_path / "b")
        order.append("ended")

    with Interruption() as stop:
        sweep([first(), second()], stop)

    assert order == ["begins", "follows", "ended"]


def test_after_a_wish_to_stop_what_runs_is_ended_and_nothing_is_started(tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []
    stop = Interruption("pre-empted")

    def ask(running: Running) -> None:
        stop.requested = True

    def lane(name: str) -> Lane:
        try:
            ended: Attempt = yield run_of(tmp_path / name, "hang", watch=ask)
            heard.append((name, ended.state))
            yield run_of(tmp_path / f"{name}-next")
        finally:
            heard.append((name, "left"))

    sweep([lane("a"), lane("b")], stop)

    assert sorted(heard) == [("a", "left"), ("a", "pre-empted"), ("b", "left"), ("b", "pre-empted")]
    assert not list(tmp_path.glob("*-next"))
    assert marked_processes(str(tmp_path)) == []
    with pytest.raises(KeyboardInterrupt):
        attempt(run_of(tmp_path / "c"), stop)


def test_what_goes_wrong_with_a_run_is_raised_in_its_lane(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("in the way")
    heard: list[str] = []

    def lane() -> Lane:
        try:
            yield run_of(tmp_path / "a")
        except OSError as error:
            heard.append(type(error).__name__)
        ended: Attempt = yield run_of(tmp_path / "b")
        heard.append(ended.state)

    with Interruption() as stop:
        sweep([lane()], stop)

    assert heard == ["FileExistsError", "done"]


def test_an_error_of_one_lane_ends_the_others_and_they_are_told(tmp_path: Path) -> None:
    heard: list[str] = []

    def faulty() -> Lane:
        yield run_of(tmp_path / "a")
        raise ValueError("a fault")

    def other() -> Lane:
        ended: Attempt = yield run_of(tmp_path / "b", "hang")
        heard.append(ended.state)

    with Interruption() as stop, pytest.raises(ValueError, match="a fault"):
        sweep([faulty(), other()], stop)

    assert heard == ["interrupted"]
    assert marked_processes(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("told", "changes", "state", "status"),
    [
        ("hang", {"timeout_s": 0.5}, "timed out", "failed"),
        ("hang", {"watch": lambda running: (PRUNED, "pruned: bad")}, PRUNED, "running"),
        ("stopped", {}, "stopped", "stopped"),
    ],
)
def test_the_record_tells_why_a_run_was_broken_off(
    tmp_path: Path, told: str, changes: dict, state: str, status: str
) -> None:
    if "watch" in changes:
        verdict = changes["watch"](None)
        ready = tmp_path / "run" / "run.json"
        changes = {"watch": lambda running: verdict if ready.exists() else None}
    with Interruption() as stop:
        ended = attempt(run_of(tmp_path, told, **changes), stop)

    record = read_run(tmp_path / "run")
    assert (ended.state, record.status) == (state, status)
    assert record.reason == ended.reason != ""
    assert ended.record == record


def test_a_follow_on_in_the_record_is_replaced_by_the_cause(tmp_path: Path) -> None:
    """A rank that lost its peer wrote into the record; what the peer printed says why."""
    code = (
        "import sys; from fake_trainer import main, records; from pathlib import Path; import os;"
        "os.environ['FAKE_TRAINER'] = 'own reason';"
        "finish = records.finish_run;"
        "records.finish_run = lambda out, record, **how: finish(out, record, **{**how, 'reason': 'reset by peer'});"
        "main(); print('error: the disk is full; make room'); sys.exit(1)"
    )

    def launch(cell: Cell, config: Path, out: Path, **options: object) -> object:
        from horovod_study.cluster.launch import LaunchLine

        line = fake_launch({})(cell, config, out)
        here = {"PYTHONPATH": str(Path(__file__).parent)}
        argv = (line.argv[0], "-c", code, *line.argv[2:])
        return LaunchLine(argv=argv, environment={**line.environment, **here})

    with Interruption() as stop:
        ended = attempt(run_of(tmp_path, launch=launch), stop)

    assert (ended.state, ended.reason) == ("failed", "the disk is full; make room")
    assert read_run(tmp_path / "run").reason == ended.reason
