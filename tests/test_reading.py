"""Whatever a file of this package's own holds, reading it gives a value or one line that names the file."""

import ast
import copy
import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples

import horovod_study
from horovod_study.cluster import slurm as jobs
from horovod_study.config import documents
from horovod_study.errors import ConfigError, RecordError, StudyError
from horovod_study.strain import checkpoint, dataset
from horovod_study.studies import ledger

PACKAGE = Path(horovod_study.__file__).parent

READING = {
    "config/documents.py": "the door",
    "analysis/audit.py": "rows of a table that is compared, damaged ones included",
    "analysis/importers.py": "anybody's table, with its own checks by line",
    "analysis/steps/timeline.py": "Horovod's timeline, which may be cut short",
    "cluster/doctor.py": "the answers of the script that it started on a host",
    "cluster/identity.py": "what pip and `make setup` wrote",
    "cluster/remote.py": "the answer of a program that this one started on a host",
    "studies/search.py": "its own values as JSON has them",
    "comm/builds.py": "what `make setup` wrote",
    "programs/answer.py": "the plan of the program that started it",
    "programs/equality.py": "the arrays of the program that started it",
    "measure/system.py": "messages between sampler and trainer",
    "programs/script.py": "the cell of the program that started it",
    "recording/command.py": "notes of the processes of a command that this program started",
    "recording/rank/turns.py": "messages between a rank and the runner",
    "recording/inject/sitecustomize.py": "what the command that started it asks",
    "records/tables.py": "tables whose digest was compared before",
    "records/model.py": "its own values as JSON has them",
    "strain/checkpoint.py": "an archive whose digest was compared before, without objects",
    "strain/curves.py": "anybody's table, with its own checks by line",
}
"""Modules that read a format by themselves -> what of."""
_READERS = {
    *(("json", name) for name in ("load", "loads")),
    *(("yaml", name) for name in ("load", "safe_load", "load_all")),
    *(("csv", name) for name in ("reader", "DictReader")),
    *(("pd", "read_csv"), ("np", "load"), ("np", "loadtxt"), ("torch", "load")),
}


OPENING = {
    "cluster/alive.py": "facts of the system",
    "cli/": "standard input",
    "cluster/identity.py": "the source of this package and of what is installed",
    "cluster/process.py": "facts of the system",
    "comm/": "facts of the system, and what this program wrote for its ranks",
    "config/limits.py": "standard input",
    "measure/": "facts of the system, and what this program wrote for its ranks",
    "programs/": "what the program that started them wrote",
    "records/": "files that were listed as regular ones before",
    "recording/command.py": "what the command that it started prints",
    "recording/rank/": "facts of the system",
    "report/page/check.py": "files that it has written itself",
    "report/kit/files.py": "files of this package",
    "studies/attempt.py": "the log that it writes",
    "studies/study_file.py": "a file that was read through the door before",
    "strain/room.py": "facts of the system",
}
"""Modules that open files by themselves -> what they read so."""


def _opens_to_read(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("read_text", "read_bytes"):
        return getattr(node.func.value, "id", "") != "tables"  # a module
    is_open = isinstance(node.func, ast.Name) and node.func.id == "open"
    is_path_open = isinstance(node.func, ast.Attribute) and node.func.attr == "open"
    modes = [each.value for each in (*node.args, *(each.value for each in node.keywords)) if _is_mode(each)]
    if is_path_open and not modes and not any(each.arg in ("encoding", "newline") for each in node.keywords):
        return False  # of an archive, a sampler, ...
    return (is_open or is_path_open) and not any(set("wax+") & set(mode) for mode in modes)


def _is_mode(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and set(node.value) <= set("rwaxbt+")


def test_a_file_of_somebody_else_is_opened_by_the_one_door() -> None:
    """`documents.open_file` refuses pipes, sockets and devices, which would be waited for without end."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        nodes = ast.walk(ast.parse(path.read_text()))
        if name != "config/documents.py" and any(_opens_to_read(node) for node in nodes):
            found.add(name)
    known = {name for name in found if any(name.startswith(each) for each in OPENING)}

    assert found == known
    assert [each for each in OPENING if not any(name.startswith(each) for name in found)] == []


def test_every_module_reads_through_the_one_door() -> None:
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if (getattr(node.func.value, "id", ""), node.func.attr) in _READERS:
                    found.add(path.relative_to(PACKAGE).as_posix())

    assert found == set(READING)


# ------------------------------------------------------------------------------------------------ JSON, YAML, CSV


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[" * 100_000, '{"a":' * 100_000, "NaN", '{"a": Infinity}', '{"a": -1e999}', '"\\ud800"', "\x00"),
        *(b"\xff\xfe", b'"\xff"', "9" * 5000, '{"a": 1%s}' % ("0" * 30), "[" * 70 + "]" * 70, "[1,]", "{'a': 1}"),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_json_that_is_none_is_one_line(text: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(RecordError, match=r"x\.json") as raised:
        documents.read_json(path, again="do that")

    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400 + len(str(path))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(VALUES)
@settings(max_examples=examples(40))
def test_json_that_python_writes_is_read_as_it_was(value: Any) -> None:
    assert documents.parse_json(json.dumps(value), source="x", again="y") == value
    assert repr(documents.parse_json(json.dumps(value), source="x", again="y")) == repr(value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        *("a: " + "9" * 5000, "a: 2026-13-45", "a: !!python/object:os.system x", "a: &a [*a]", "? [1]\n: 2", "- 1"),
        *("a: 1\na: 2", "a: " + "[" * 5000, "a: .nan", "a: \x01", "a: !!int x", "a: !!timestamp x", "<<: 1", "%x"),
        "a: &a [1,2,3,4,5,6,7,8,9]\n"
        + "".join(f"{chr(98 + k)}: &{chr(98 + k)} [{','.join([f'*{chr(97 + k)}'] * 9)}]\n" for k in range(9)),
    ],
    ids=lambda text: repr(text[:16]),
)
def test_yaml_that_is_no_file_of_settings_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"x\.yaml") as raised:
        documents.load_yaml(path)

    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400 + len(str(path))


@pytest.mark.parametrize(
    "text, line",
    [("a,b\n1,2,3\n", 2), ("a,b\n1\n", 2), ('a,b\n"1,2\n', 2), ("a,a\n1,2\n", 0), ("b\n1\n", 0), ("", 0), ("a,b", 0)],
)
def test_csv_that_is_no_table_names_its_line(text: str, line: int) -> None:
    with pytest.raises(RecordError, match=f"x line {line}" if line else "x: column") as raised:
        documents.parse_csv(text, source="x", columns=("a",), again="do that")

    assert "\n" not in str(raised.value)


def test_a_row_that_was_not_written_to_its_end_is_left_out() -> None:
    assert documents.parse_csv("a,b\n1,2\n3,", source="x", again="y") == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize("kind", ["folder", "pipe", "missing", "large", "link to itself", "below a file"])
def test_what_is_no_regular_file_is_refused_without_waiting(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "large":
            path.write_bytes(b"x" * 101)
        case "link to itself":
            path.symlink_to(path)
        case "below a file":
            (tmp_path / "file").write_text("")
            path = tmp_path / "file" / "x"
    with pytest.raises(RecordError, match="x: "):
        documents.read_bytes(path, again="do that", max_bytes=100)


def test_a_path_that_is_no_unicode_can_be_shown(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json"))
    with pytest.raises(RecordError) as raised:
        documents.read_json(path, again="do that")

    str(raised.value).encode("utf-8")


# ------------------------------------------------------------------------------------------------ documents of studies


def mutations(value: Any) -> Iterator[Any]:
    """Yield a document with one of its parts missing, of another type, or far too large."""
    odd = (None, -1, 10**18, 1e308, "", "x", [], {}, [[[]]], True, {"": None})
    yield from odd
    if isinstance(value, dict):
        for name in value:
            yield {key: each for key, each in value.items() if key != name}
            for other in (*odd, *_inside(value[name])):
                yield {**copy.deepcopy(value), name: other}


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [{**value, name: other} for name in list(value)[:6] for other in (None, -1, "x", [])]
    if isinstance(value, list):
        return [[*value, other] for other in (None, -1, "x", {})] + [value[:-1]]
    return []


JOB = jobs.Job(name="n", study="s", partition="p", tasks=(("k",),), nodes=1, time_limit_s=60.0, written="w")


def read_notes(folder: Path) -> Any:
    return jobs.read_note(folder, "n", 0)


def read_cache(folder: Path) -> Any:
    return documents.read_json(folder / ledger._CACHE, ledger._Finished, again="").runs


DOCUMENTS: dict[str, tuple[Callable[[Path], Any], str, Any]] = {
    "job": (jobs.read_job, jobs.JOB_FILE, json.loads(json.dumps(asdict(JOB)))),
    "note": (read_notes, "jobs/n/note-0.json", {"job_id": "1", "host": "h", "state": "running", "left_out": ["k"]}),
    "ledger": (read_cache, ledger._CACHE, {"schema": 1, "runs": {"k": [1, 2, 3.0, "r"]}}),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_of_a_study_that_was_changed_is_read_or_named(name: str, tmp_path: Path) -> None:
    read, place, value = DOCUMENTS[name]
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    read(tmp_path)
    texts = [json.dumps(each).encode() for each in mutations(value)]
    whole = json.dumps(value).encode()
    for text in [*texts, *(whole[:k] for k in range(0, len(whole), 7)), b"\xff", b"[" * 10_000]:
        path.write_bytes(text)
        try:
            read(tmp_path)
        except StudyError as error:
            assert path.name in str(error) and "\n" not in str(error)


def test_damaged_lines_of_the_attempts_are_passed_over(tmp_path: Path) -> None:
    good = "w,k,serial,1,done,2.5,0,\n"
    head = ",".join(ledger.ATTEMPT_COLUMNS) + "\n"
    for bad in (
        "x\n",
        "w,k,serial,one,done,2.5,0,\n",
        "w,k,serial,1,done,x,0,\n",
        '"\n',
        f"w,k,serial,{'9' * 5000},done,1,0,\n",
    ):
        (tmp_path / "attempts.csv").write_text(head + good + bad)
        assert ledger.past_durations(tmp_path) in ([("serial", 1, 2.5)], [])
    (tmp_path / "attempts.csv").write_text(head + good)
    assert ledger.past_durations(tmp_path) == [("serial", 1, 2.5)]


# ------------------------------------------------------------------------------------------------ data sets


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "set"
    dataset.generate(path, 40, seed=1)
    return path


def test_a_side_car_that_was_changed_is_read_or_named(data: Path) -> None:
    path = data / dataset.SIDECAR
    good = path.read_text()
    try:
        for value in mutations(json.loads(good)):
            path.write_text(json.dumps(value))
            try:
                dataset.check(data)
            except StudyError as error:
                assert str(data) in str(error) and "\n" not in str(error)
    finally:
        path.write_text(good)
    dataset.check(data)


# ------------------------------------------------------------------------------------------------ checkpoints


def state(**changes: Any) -> checkpoint.Checkpoint:
    progress = {
        "window_s": 1.0,
        "wall_s": 2.0,
        "evaluated": 3,
        "evaluation": {},
        "budget": [1.0, 2.0, 3.0],
        "target_reached": False,
    }
    values: dict[str, Any] = {
        "step": 3,
        "epoch": 0,
        "model": {"w": torch.ones(2)},
        "optimizer": {},
        "progress": progress,
        "config": {},
        "target_bounds": ((0.0, 1.0), (0.0, 1.0)),
        "input_scaling": "none",
        "widths": "15,38,197",
    }
    return checkpoint.Checkpoint(**{**values, **changes})


def test_a_checkpoint_comes_back() -> None:
    assert checkpoint.decode(checkpoint.encode(state()), "x").step == 3


@pytest.mark.parametrize("field", [*checkpoint._FIELDS, "window_s", "wall_s", "evaluated", "evaluation", "budget"])
@pytest.mark.parametrize("value", [None, "x", [], {}, {"a": "b"}, [1, 2], -1.5], ids=repr)
def test_a_checkpoint_with_a_right_digest_and_a_wrong_field_is_one_line(field: str, value: Any) -> None:
    good = state()
    if field not in checkpoint._FIELDS:
        field, value = "progress", {**good.progress, field: value}
    made = good.model_copy(update={field: value})
    try:
        found = checkpoint.decode(checkpoint.encode(made), "the file")
    except RecordError as error:
        assert str(error).startswith("the file: ") and "\n" not in str(error)
    else:
        assert isinstance(getattr(found, field), type(getattr(good, field)))


def test_a_pickle_in_a_checkpoint_is_refused_in_our_own_words() -> None:
    stream = io.BytesIO()
    torch.save({"schema": 1, "x": print}, stream)
    archive = stream.getvalue()
    body = archive[:-2] + (len(checkpoint._MARK) + checkpoint._DIGITS).to_bytes(2, "little") + checkpoint._MARK
    import hashlib

    with pytest.raises(RecordError) as raised:
        checkpoint.decode(body + hashlib.sha256(body).hexdigest().encode(), "the file")

    assert "weights_only" not in str(raised.value) and "\n" not in str(raised.value)
