"""Run directories and analysis folders with anything in them: a result, or one line that names the place."""

import copy
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.wording import Golden

from horovod_study import api, cli, records
from horovod_study.analysis.steps import timeline
from horovod_study.config import documents
from horovod_study.errors import RecordError, StudyError
from horovod_study.strain.options import STRAIN

FROZEN = Path(__file__).parent / "runs"
hostile = settings(
    max_examples=examples(12),
    derandomize=examples(100) <= 100,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**30, 10**15 + 1, 1e308, -1e308, 0.5, "", "x", "\x00", "\x1b[2J", "é" * 10),
    *([], {}, [[]], {"": None}, [None], [{}], ["x", 1]),
)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study of two runs."""
    for number in (3, 4):
        shutil.copytree(FROZEN / f"schema-{number}", tmp_path / "study" / f"run-{number}")
    return tmp_path / "study"


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where in a document something stands."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in items:
        yield (*at, name)
        yield from places(each, (*at, name))


def changed(document: Any, place: tuple[Any, ...], value: Any, *, remove: bool) -> Any:
    """Return a copy of a document with another value, or none, at a place."""
    copied = copy.deepcopy(document)
    inside = copied
    for name in place[:-1]:
        inside = inside[name]
    if remove:
        del inside[place[-1]]
    else:
        inside[place[-1]] = value
    return copied


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> str:
    """Draw the text of a document with one thing wrong: in its structure, or in its bytes."""
    place = draw(st.sampled_from(list(places(document))))
    text = json.dumps(changed(document, place, draw(st.sampled_from(VALUES)), remove=draw(st.booleans())))
    kind = draw(st.sampled_from(["whole", "whole", "whole", "cut", "twice", "surrogate", "nested"]))
    if kind == "cut":
        return text[: draw(st.integers(0, len(text)))]
    if kind == "surrogate":
        return text.replace('"vm"', '"\\udcff"')
    if kind == "nested":
        return text.replace('"vm"', "[" * 100_000 + "]" * 100_000, 1)
    return text * 2 if kind == "twice" else text


def outcome(do: Any) -> str:
    """Return the one line of the StudyError that `do` raises; empty when it gives a result."""
    try:
        do()
    except StudyError as error:
        assert "\n" not in str(error)
        return str(error)
    return ""


def look_at(root: Path) -> None:
    """Read all that the package reads of run directories."""
    table, runs = records.recorded_runs([root])
    table.to_csv()
    records.epoch_table(root).to_csv()
    for run in runs:
        records.timed_from(run.record)
        records.hosts_of(run.record, range(4))
        for columns in run.rows.values():
            assert len(columns["step"]) == len(columns["loss"])
        outcome(lambda run=run: records.run_side_files(run.directory))  # type: ignore[misc]


# -------------------------------------------------------------------------------------------------- run.json


@pytest.mark.parametrize("schema", ["schema-1", "schema-4"])
@hostile
@given(data=st.data())
def test_any_run_json_gives_a_table_or_one_line(schema: str, tmp_path: Path, data: st.DataObject) -> None:
    valid = json.loads((FROZEN / schema / "run.json").read_text())
    run = tmp_path / "runs" / "r"
    run.mkdir(parents=True, exist_ok=True)
    (run / "run.json").write_text(data.draw(mutated(valid)))

    outcome(lambda: look_at(tmp_path / "runs"))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("effective", "workers"), 10**30),
        (("effective", "workers"), 10**9),
        (("effective", "workers"), 0),
        (("effective", "workers"), True),
        (("effective", "ranks"), {"0": 1}),
        (("effective", "ranks"), [1]),
        (("requested", "epochs"), "ten"),
        (("totals", "samples_per_s"), 1e308),
        (("totals", "samples_per_s"), -1),
        (("totals", "steady"), 3),
        (("totals", "lap_medians_s"), [1]),
        (("totals", "energy"), {"per_device": [{"part": "", "host": "vm", "counter_j": 1}]}),
        (("totals", "rows_lost"), ["1"]),
        (("attempts",), [{}]),
        (("pid",), "1"),
        (("started",), 5),
        (("of_tomorrow",), 1),
    ],
)
def test_a_field_that_cannot_be_true_is_named(tmp_path: Path, place: tuple[str, ...], value: Any) -> None:
    valid = json.loads((FROZEN / "schema-4" / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(changed(valid, place, value, remove=False)))

    with pytest.raises(RecordError, match=rf"run\.json: {'.'.join(place)}"):
        records.read_run(tmp_path)


@pytest.mark.parametrize("name", STRAIN.options)
def test_every_option_that_was_asked_for_is_a_value_of_its_kind(tmp_path: Path, name: str) -> None:
    valid = json.loads((FROZEN / "schema-4" / "run.json").read_text())
    valid["requested"][name] = [[]]
    (tmp_path / "run.json").write_text(json.dumps(valid))

    with pytest.raises(RecordError, match=rf"run\.json: requested\.{name} "):
        records.read_run(tmp_path)


def test_what_a_newer_program_adds_inside_is_kept(tmp_path: Path) -> None:
    valid = json.loads((FROZEN / "schema-4" / "run.json").read_text())
    valid["requested"]["of_tomorrow"] = {"a": [1]}
    (tmp_path / "run.json").write_text(json.dumps(valid))

    assert records.read_run(tmp_path).requested["of_tomorrow"] == {"a": [1]}


# ------------------------------------------------------------------------------------------------ other files


@pytest.mark.parametrize("file", ["steps-00001.arrows", "epochs.csv"])
@hostile
@given(data=st.data())
def test_any_bytes_in_a_run_give_a_table_or_one_line(file: str, tmp_path: Path, data: st.DataObject) -> None:
    run = tmp_path / "runs" / "r"
    if not run.exists():
        shutil.copytree(FROZEN / "schema-4", run)
    content = bytearray((FROZEN / "schema-4" / file).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.sampled_from([0, 0x7F, 0xFF, 0x2C]))
    (run / file).write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) // 2, 0]))])

    outcome(lambda: look_at(tmp_path / "runs"))


@pytest.mark.parametrize("section", ["synchronisation", "ablation"])
@hostile
@given(value=st.sampled_from([*VALUES, {"workers": 10**9, "pairs": 10**9}]))
def test_any_bench_json_gives_a_section_or_one_line(section: str, tmp_path: Path, value: Any) -> None:
    (tmp_path / "bench.json").write_text(json.dumps({"schema": 1, section: value}))
    read = records.read_synchronisation if section == "synchronisation" else records.read_ablation

    assert "bench.json" in outcome(lambda: read(tmp_path))


@hostile
@given(
    st.lists(
        st.fixed_dictionaries(
            {"ph": st.sampled_from([*"MBEiX", 1, []]), "ts": st.sampled_from([1, 2.5, 10**400, "x", None])},
            optional={
                "pid": st.sampled_from([0, 1, [], {}, "x"]),
                "name": st.sampled_from(["NEGOTIATE_ALLREDUCE", "ALLREDUCE", "9" * 5000, "0", [], None]),
                "args": st.sampled_from([{}, [], {"name": []}]),
            },
        ),
        max_size=12,
    )
)
def test_any_timeline_gives_a_table_or_one_line(events: list[Any]) -> None:
    def read() -> None:
        found, doubts = timeline.parse_events(json.dumps(events), source="t")
        timeline.decompose(found, source="t", doubts=doubts)

    outcome(read)


def test_a_pipe_is_no_file_of_a_run(study: Path) -> None:
    (study / "run-4" / "steps-00000.arrows").unlink()
    os.mkfifo(study / "run-4" / "steps-00000.arrows")
    found = records.recorded_run(study / "run-4")

    assert set(found.missing) == {0}
    assert set(found.rows) == {1}


# ---------------------------------------------------------------------------------------- nothing is left unsaid


def spoil(study: Path, kind: str) -> str:
    """Put an entry beside the runs that is none, or no more; return its name."""
    entry = study / "odd"
    if kind in ("dangling", "loop"):
        entry.symlink_to("nowhere" if kind == "dangling" else "odd")
    elif kind == "again":
        entry.symlink_to("run-3")
    elif kind == "above":
        entry.symlink_to("..", target_is_directory=True)
    else:
        shutil.copytree(study / "run-4", entry)
        if kind == "evaluations":
            (entry / "epochs.csv").write_text("epoch,steps\n1,2\n")
            return "odd"
        (entry / "run.json").unlink()
        if kind == "damaged":
            (entry / "run.json").write_text("{")
        elif kind == "folder":
            (entry / "run.json").mkdir()
        elif kind == "pipe":
            os.mkfifo(entry / "run.json")
    return "odd"


@pytest.mark.parametrize(
    "kind", ["dangling", "loop", "again", "above", "rows only", "damaged", "folder", "pipe", "evaluations"]
)
def test_each_entry_is_in_the_table_or_named(study: Path, kind: str) -> None:
    name = spoil(study, kind)
    left_out: dict[str, str] = {}
    table, _ = records.recorded_runs([study], left_out=left_out)

    assert sorted(table["run"]) == ["run-3", "run-4"]
    assert list(left_out) == [name]
    assert left_out[name]


def test_a_link_to_a_run_elsewhere_is_a_run(study: Path, tmp_path: Path) -> None:
    shutil.copytree(FROZEN / "schema-2", tmp_path / "elsewhere")
    (study / "linked").symlink_to(tmp_path / "elsewhere")
    left_out: dict[str, str] = {}

    assert [path.name for path in records.run_directories(study, left_out=left_out)] == ["linked", "run-3", "run-4"]
    assert not left_out


def test_a_folder_that_may_not_be_read_is_named(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = os.listdir

    def refuse(path: Any) -> list[str]:  # tests may run as root, who may read everything
        if Path(path).name == "run-3":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    left_out: dict[str, str] = {}
    table, _ = records.recorded_runs([study], left_out=left_out)

    assert list(table["run"]) == ["run-4"]
    assert "Permission denied" in left_out["run-3"]


@pytest.mark.slow
def test_what_is_left_out_is_told_and_stands_in_the_provenance(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(study, "damaged")

    assert cli.main(["report", "--tables", str(study), "--out", str(tmp_path / "out")]) == 0
    assert "odd" in capsys.readouterr().err
    assert list(api.read_analysis(tmp_path / "out").provenance["left_out"]) == ["odd"]


def test_what_an_export_leaves_out_is_told(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    spoil(study, "dangling")

    assert cli.main(["report", str(study), "--export", "tensorboard", "--out", str(tmp_path / "out")]) == 0
    golden(capsys.readouterr().err)


def test_when_nothing_can_be_read_there_is_no_analysis(study: Path, tmp_path: Path) -> None:
    for path in study.glob("*/run.json"):
        path.write_text("{")

    assert cli.main(["report", "--tables", str(study), "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_a_name_that_is_no_utf_8_has_a_name_in_the_tables(study: Path) -> None:
    os.rename(os.fsencode(study / "run-3"), os.fsencode(study) + b"/run-\xff")
    table, runs = records.recorded_runs([study])

    assert sorted(table["run"]) == ["run-4", "run-\\xff"]
    assert len(list(runs)) == 2
    table.to_csv().encode("utf-8")


def test_json_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[" * 100_000)

    with pytest.raises(RecordError, match=r"x\.json"):
        documents.read_json(tmp_path / "x.json", again="a")
