"""`report --check` against falsifications of every kind: each is an error that names its place, or declared.

One study is made, analysed and reported; each fault is planted in a copy of it. What the check makes again of the
untouched runs (analysis, figures, page) is made once and given to all checks.
"""

import copy
import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.synthetic_study import write_study
from test_audit import PAIR, SERIAL, edit, findings_of, retotal, rewrite

from horovod_study import api, records
from horovod_study.analysis import audit
from horovod_study.analysis.audit import RULES, Fault, Study, recount, same_text
from horovod_study.analysis.series.points import with_series
from horovod_study.analysis.study import DOCUMENTS, TABLES
from horovod_study.cli import main
from horovod_study.errors import RecordError
from horovod_study.records.model import own_digest
from horovod_study.report.page import check

ALLOWED = ("other-load", "few-repeats")
pytestmark = pytest.mark.slow  # the study that faults are planted in takes seconds


class Made:
    """The study that faults are planted in, and what the check makes of its untouched runs."""

    def __init__(self, runs: Path, study: Study, evaluations: pd.DataFrame) -> None:
        self.runs, self.study, self.evaluations = runs, study, evaluations

    def __repr__(self) -> str:
        """Return what hypothesis prints of it; of a dataclass it would print the records of all runs."""
        return f"Made({self.runs})"


def _made(runs: Path) -> Made:
    recounts: dict[str, Any] = {}

    def beside(run: records.RecordedRun) -> None:
        recounts[run.name] = recount(run, records.run_side_files(run.directory))

    how: dict[str, Any] = {"commands": None, "targets": (), "only": None, "threads": 1, "networks": []}
    table, evaluations, accounting, analysis = api._analysed(runs, beside=beside, **how)
    study = Study(
        runs=with_series(table),
        analysis=analysis,
        accounting=accounting,
        recounts=[recounts[name] for name in table["run"]],
        records={name: record for _, name, record in records.found_runs(runs)},
    )
    return Made(runs=runs, study=study, evaluations=evaluations)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Two repeats of which one ran beside another program: doubts are on the cells that are falsified."""
    runs = write_study(
        tmp_path_factory.mktemp("planted") / "runs",
        ways=(("serial", "none"), ("horovod", "nccl")),
        workers=(1, 2),
        steps=110,
        evaluations=3,
        repeats=2,
    )
    for name in PAIR[:2]:
        for path in (runs / name).glob("system-*"):
            path.unlink()
        edit(runs / name, lambda content: content["effective"].update(other_programs_cores={"node1": 2.0}))
        edit(runs / name, lambda content: content["totals"]["system"].update(hosts={}))
        edit(runs / name, lambda content: content["totals"].update(energy={}))
    assert main(["report", "--tables", str(runs), "--out", str(runs / "analysis")]) == 0
    assert main(["report", str(runs / "analysis")]) == 0
    return _made(runs)


@pytest.fixture(scope="module")
def patched(made: Made) -> Iterator[Made]:
    """The same with what is drawn of it kept: every check of this module draws the same figures and page."""
    drawn: dict[Any, list[Path]] = {}
    real = check.write_report
    found = audit.lint(made.study)

    def write_report(analysis: Any, directory: Path, *, look: Any, against: Any) -> list[Path]:
        kept = made.runs.parent / f"drawn-{look}"
        if look not in drawn:
            drawn[look] = real(analysis, kept, look=look, against=against)
        shutil.copytree(kept, directory, dirs_exist_ok=True, copy_function=os.link)
        return [directory / path.relative_to(kept) for path in drawn[look]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "write_report", write_report)
        patch.setattr(audit, "lint", lambda _: found)
        patch.setattr(check, "page_parts", cache(check.page_parts))
        yield made


@pytest.fixture
def planted(patched: Made, tmp_path: Path) -> Path:
    """A copy of the study as hard links; `put` breaks those of the files that it changes."""
    return Path(shutil.copytree(patched.runs, tmp_path / "runs", copy_function=os.link))


def put(path: Path, content: str | bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def checked(made: Made, runs: Path, *allow: str) -> check.PageCheck:
    directory = runs / "analysis"
    source = check.runs_of(directory, None)
    states = {name: record.state() for _, name, record in records.found_runs(source["runs"])}
    return check.check(directory, made.study, made.evaluations, source, runs=states, allow=allow)


def errors(found: check.PageCheck) -> list[Fault]:
    assert not any(each.severity == "error" for each in found.accepted)
    return [each for each in found.findings if each.severity == "error"]


# ------------------------------------------------------------------------------------------------------- the rule

TEXTS = st.sampled_from(["points.csv", "runs.csv"])
FINDINGS = st.builds(
    Fault,
    name=st.sampled_from(sorted(RULES)),
    text=st.sampled_from(["a", "b"]),
    where=TEXTS,
    series=st.sampled_from(["", "s"]),
    workers=st.sampled_from([None, 2]),
    column=st.sampled_from(["", "c"]),
)


@settings(max_examples=examples(60))
@given(found=st.lists(FINDINGS, max_size=12), allow=st.sets(st.sampled_from(sorted(RULES))))
def test_no_finding_and_no_allowance_hides_an_error(found: list[Fault], allow: set[str], made: Made) -> None:
    """Whatever is found together, and even if the name of an error is allowed: every error is told and counts."""
    study = copy.copy(made.study)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "lint", lambda _: found)
        patch.setattr(check, "_compared", lambda *_: [])
        patch.setattr(check, "_drawn", lambda *_: ([], []))
        patch.setattr(check, "_loaded", lambda _: study.analysis)
        source = {"runs": made.runs}
        patch.setattr(check, "_changed", lambda *_: [])
        told = check.check(made.runs / "analysis", study, made.evaluations, source, runs={}, allow=allow)
    wanted = {(each.name, each.text, each.where, each.column) for each in found if each.severity == "error"}

    assert wanted <= {(each.name, each.text, each.where, each.column) for each in told.findings}
    assert told.findings or not wanted
    assert all(RULES[each.name].severity == "doubt" for each in told.accepted)


@settings(max_examples=examples(300))
@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1e-13, 1e-13),
    st.sampled_from(["{}", "a {} b", "1,{}|x"]),
)
def test_numbers_that_writing_changes_are_equal_wherever_they_stand(value: float, part: float, frame: str) -> None:
    other = value * (1 + part)
    assert same_text(frame.format(value), frame.format(other)) or not np.isfinite(other)


@settings(max_examples=examples(300))
@given(st.integers(-(10**15), 10**15), st.integers(0, 6), st.sampled_from(["{}", "a {} b", "1,{}|x"]))
def test_a_change_of_the_last_digit_shown_is_found(digits: int, places: int, frame: str) -> None:
    """571 is not 572, and 5.71 not 5.72, as long as fewer digits are shown than a number of double precision has."""
    digits = digits if places == 0 else digits % 10**9
    one, other = (f"{value / 10**places:.{places}f}" if places else f"{value}" for value in (digits, digits + 1))
    assert not same_text(frame.format(one), frame.format(other))


def test_words_and_names_are_compared_to_the_letter() -> None:
    assert not same_text("run 039f251d", "run 039f251e")
    assert not same_text("1.0 s", "1.0 ms")
    assert not same_text("True", "False")
    assert same_text("53,969.64759560581 samples/s", "53,969.64759560571 samples/s")
    assert not same_text("53,969.6", "53,969.7")
    assert not same_text("1 2", "12")
    assert not same_text("12345678901234567", "12345678901234568")


# ---------------------------------------------------------------------------------------------- untouched, doubts


def test_an_untouched_study_has_no_error_and_says_what_is_not_covered(patched: Made) -> None:
    found = checked(patched, patched.runs, *ALLOWED)

    assert errors(found) == [] and not found.findings
    assert {each.name for each in found.accepted} == set(ALLOWED)
    assert found.compared["pictures"] >= 9
    told = check.document(found)["not_covered"]
    assert len(told) >= len(check.NOT_COVERED) and all(each["what"] and each["why"] for each in told)
    assert sum(line.startswith("not covered: ") for line in check.lines(found)) == len(told)
    assert checked(patched, patched.runs).findings


# ------------------------------------------------------------------------------------------------- files of analyze


def _change_number(text: str, change: Callable[[float], float] = lambda value: value * 1.001 + 1) -> str:
    """Change the last number with a point of a CSV text that is not one of its names."""
    rows = list(csv.reader(io.StringIO(text)))
    for row in reversed(rows[1:]):
        for place in reversed(range(len(row))):
            if re.fullmatch(r"-?\d+(\.\d+)?(e[-+]\d+)?", row[place]):
                row[place] = repr(change(float(row[place])))
                stream = io.StringIO()
                csv.writer(stream, lineterminator="\n").writerows(rows)
                return stream.getvalue()
    return ""


@pytest.mark.parametrize("name", [*TABLES, "evaluations"])
def test_a_changed_cell_of_any_table_is_found(patched: Made, planted: Path, name: str) -> None:
    path = planted / "analysis" / f"{name}.csv"
    text = path.read_text()
    changed = _change_number(text) or f"{text.rstrip()}\n{','.join('1' for _ in text.splitlines()[0].split(','))}\n"
    put(path, changed)
    found = errors(checked(patched, planted, *ALLOWED))

    assert {each.where for each in found} == {path.name}
    assert all(each.column or "row" in each.text for each in found)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_changed_value_of_any_document_is_found(patched: Made, planted: Path, name: str) -> None:
    path = planted / "analysis" / f"{name}.json"
    text = path.read_text()
    changed = re.sub(
        r"(: |\[|\s)(-?\d+\.\d+)(?=[,\n])", lambda hit: f"{hit[1]}{float(hit[2]) * 1.01 + 1}", text, count=1
    )
    put(path, changed if changed != text else text.replace("{", '{"invented": 1, ', 1).replace(", }", "}"))
    (found,) = errors(checked(patched, planted, *ALLOWED))

    assert found.where == path.name and found.column


def _points(column: str, change: Callable[[float], Any]) -> Callable[[Path], tuple[str, str]]:
    def plant(runs: Path) -> tuple[str, str]:
        path = runs / "analysis" / "points.csv"
        table = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype=object)
        row = table.index[(table["backend"] == "horovod") & (table["workers"] == "2")][0]
        table.loc[row, column] = change(float(table.loc[row, column]))
        put(path, table.to_csv(index=False, lineterminator="\n"))
        return path.name, column

    return plant


def _text(file: str, change: Callable[[str], str], column: str = "") -> Callable[[Path], tuple[str, str]]:
    def plant(runs: Path) -> tuple[str, str]:
        path = runs / "analysis" / file
        text = path.read_text()
        changed = change(text)
        assert changed != text
        put(path, changed)
        return file, column

    return plant


def _gone(file: str) -> Callable[[Path], tuple[str, str]]:
    def plant(runs: Path) -> tuple[str, str]:
        path = runs / "analysis" / file
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return f"{file}/" if "." not in file else file, ""

    return plant


def _source(change: Callable[[dict[str, Any]], None], *, consistent: bool = False) -> Callable[[Path], tuple[str, str]]:
    def plant(runs: Path) -> tuple[str, str]:
        path = runs / "analysis" / records.SOURCE
        content = json.loads(path.read_text())
        change(content)
        if consistent:
            content["digest"] = own_digest(content)
        put(path, json.dumps(content))
        return path.name, ""

    return plant


def _svg_with_its_digests(runs: Path) -> tuple[str, str]:
    """The picture, its digest in source.json, and the digest of source.json: all of them consistent."""
    path = runs / "analysis" / "figures" / "throughput.svg"
    put(path, path.read_text().replace("</svg>", "<g/></svg>"))
    digest = records.digest_of(path.read_bytes())
    _source(lambda content: content["report"]["pictures"].update({"figures/throughput.svg": digest}), consistent=True)(
        runs
    )
    return "figures/throughput.svg", ""


def _half(text: str) -> str:
    return text[: len(text) // 2]


def _without_last_row(text: str) -> str:
    return text.rstrip("\n").rpartition("\n")[0] + "\n"


def _without(pattern: str, instead: str = "") -> Callable[[str], str]:
    return lambda text: re.sub(pattern, instead, text, count=1, flags=re.S)


def _digit(pattern: str, flags: int = 0) -> Callable[[str], str]:
    """Change the first digit of what `pattern` matches first, in its last group."""

    def change(text: str) -> str:
        hit = re.search(pattern, text, flags)
        assert hit is not None, pattern
        place = hit.start(hit.lastindex or 0)
        place += next(k for k, letter in enumerate(text[place:]) if letter.isdigit())
        return f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}"

    return change


FAULTS: dict[str, Callable[[Path], tuple[str, str]]] = {
    "median times 10": _points("samples_per_s_median", lambda value: value * 10),
    "median in its tenth digit": _points("samples_per_s_median", lambda value: value * (1 + 1e-10)),
    "best of n": _points("samples_per_s_median", lambda value: value * 1.02),
    "more repeats": _points("repeats", lambda value: int(value) + 1),
    "a speedup": _points("speedup_plain", lambda value: value + 0.01),
    "an efficiency": _points("efficiency_plain", lambda value: 1.0),
    "a count as text": _points("samples_per_s_median", lambda value: "about 5"),
    "an emptied cell": _points("samples_per_s_median", lambda value: ""),
    "half of runs.csv": _text("runs.csv", _half),
    "half of curves.csv": _text("curves.csv", _half),
    "half of accounting.csv": _text("accounting.csv", _half),
    "half of fits.json": _text("fits.json", _half),
    "half of evaluations.csv": _text("evaluations.csv", _half),
    "one row less": _text("accounting.csv", _without_last_row),
    "one row twice": _text("evaluations.csv", lambda text: f"{text}{text.splitlines()[-1]}\n"),
    "another name of a column": _text("points.csv", lambda text: text.replace("speedup_plain,", "speed,", 1)),
    "an empty table": _text("points.csv", lambda text: ""),
    "a table that is gone": _gone("breakdown.csv"),
    "a document that is gone": _gone("provenance.json"),
    "a document nested endlessly": _text("fits.json", lambda text: "[" * 200_000),
    "a doubt that is gone": _text("provenance.json", _without(r'(?<="doubts": )\[[^\]]+\]', "[]")),
    "figure data": _text("figures/throughput.csv", _digit(r"\n.*?(\d+\.\d+)")),
    "half of a figure's data": _text("figures/speedup.csv", _half),
    "a byte-order mark": _text("points.csv", lambda text: f"\ufeff{text}"),
    "a blank line": _text("points.csv", lambda text: f"{text}\n"),
    "a byte-order mark of a table for print": _text("tables/points.csv", lambda text: f"\ufeff{text}"),
    "a blank line in figure data": _text("figures/throughput.csv", lambda text: text.replace("\n", "\n\n", 1)),
    "a caption": _text("figures/throughput.txt", lambda text: text.replace(" ", " not ", 1)),
    "a caption that is gone": _gone("figures/throughput.txt"),
    "figures that are gone": _gone("figures"),
    "tables that are gone": _gone("tables"),
    "a LaTeX table": _text("tables/points.tex", _digit(r"&\s*([\d.,]+)")),
    "a CSV table": _text("tables/points.csv", _digit(r"\n.*?(\d+\.\d+)")),
    "a picture": _text("figures/throughput.svg", lambda text: text.replace("</svg>", "<g/></svg>")),
    "a picture with its digests": _svg_with_its_digests,
    "an empty picture": _text("figures/speedup.svg", lambda text: ""),
    "a picture that is gone": _gone("figures/speedup.pdf"),
    "the headline": _text("report.html", _digit(r"<h1[^>]*>[^<]*?(\d)")),
    "a cell of the page": _text("report.html", _digit(r"<td[^>]*>\s*(\d+\.\d+)")),
    "a caption of the page": _text("report.html", lambda text: text.replace("<figcaption>", "<figcaption>Not: ", 1)),
    "a row of the page": _text("report.html", _without(r"(?<=<tbody>)\s*<tr.*?</tr>")),
    "a tip of the page": _text("report.html", _digit(r'class="spot"[^>]*><title>[^<]*?(\d+\.\d+)')),
    "data inside the page": _text("report.html", _digit(r'application/json">"[^<]*?\\n[^<]*?(\d+\.\d+)')),
    "a style of the page": _text("report.html", lambda text: text.replace("<style>", "<style>td{display:none}", 1)),
    "a script in the page": _text("report.html", lambda text: text.replace("</body>", "<script>1</script></body>", 1)),
    "a drawing in the page": _text("report.html", _digit(r"<path d=\"M ?(\d+)")),
    "half of the page": _text("report.html", _half),
    "a page that is gone": _gone("report.html"),
    "runs that were chosen": _source(lambda content: content.update(targets=[0.5])),
    "a digest that was taken out": _source(lambda content: content["files"].pop("points.csv")),
    "digests that were taken out": _source(lambda content: content.pop("digest")),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_an_error_at_its_place(patched: Made, planted: Path, fault: str) -> None:
    where, column = FAULTS[fault](planted)
    for allow in ((), ALLOWED) if where == "points.csv" else (ALLOWED,):
        found = checked(patched, planted, *allow)

        assert found.findings
        assert [each for each in errors(found) if each.where == where and (not column or each.column == column)]


# ---------------------------------------------------------------------------------------------- files of the runs


def total(name: str, change: Callable[[Any], Any] = lambda value: value * 1.01 + 1) -> Callable[[Path], str]:
    def plant(runs: Path) -> str:
        edit(runs / PAIR[1], lambda content: content["totals"].update({name: change(content["totals"][name])}))
        return f"{PAIR[1]}/run.json"

    return plant


def ran(change: Callable[[dict[str, Any]], None], name: str = PAIR[1]) -> Callable[[Path], str]:
    def plant(runs: Path) -> str:
        edit(runs / name, lambda content: change(content["effective"]))
        return f"{name}/run.json"

    return plant


def row(column: str, place: int = 0) -> Callable[[Path], str]:
    """One value of a row of epochs.csv, the first by default."""

    def plant(runs: Path) -> str:
        path = runs / PAIR[1] / "epochs.csv"
        table = pd.read_csv(path)
        table[column] = table[column].astype(float)
        table.loc[table.index[place], column] *= 0.9
        table.to_csv(path, index=False, lineterminator="\n")
        return f"{PAIR[1]}/epochs.csv"

    return plant


def steps(change: Callable[[pd.DataFrame], Any], *, totals: bool = True) -> Callable[[Path], str]:
    """Step rows of both ranks, and totals that go with them."""

    def plant(runs: Path) -> str:
        for rank in (0, 1):
            rewrite(runs / PAIR[1], rank, change)
        if totals:
            retotal(runs / PAIR[1])
        return f"{PAIR[1]}/steps-00000.arrows"

    return plant


def _smooth(frame: pd.DataFrame) -> None:
    frame["step_s"] = frame["step_s"].clip(upper=frame["step_s"].median())


def sampled(*path: Any) -> Callable[[Path], str]:
    """One number of the totals that samples gave, 1.2 times as large."""

    def plant(runs: Path) -> str:
        def change(content: dict[str, Any]) -> None:
            place = content["totals"]
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] *= 1.2

        edit(runs / SERIAL[1], change)
        return f"{SERIAL[1]}/run.json"

    return plant


def _scaled_copy(runs: Path) -> str:
    """Another run's steps, each 1.0001 times as long, under this run's name."""
    for rank in (0, 1):
        other = records.read_steps(runs / PAIR[0], rank).to_pandas()
        times = [name for name in other.columns if name.endswith("_s")]
        other[times] *= 1.0001

        def change(frame: pd.DataFrame, other: pd.DataFrame = other) -> pd.DataFrame:
            return other

        rewrite(runs / PAIR[1], rank, change)
    retotal(runs / PAIR[1])
    return f"{PAIR[1]}/steps-00000.arrows"


RUN_FAULTS: dict[str, tuple[Callable[[Path], str], str]] = {
    **{
        f"total {name}": (total(name), "total-differs")
        for name in ("samples_per_s", "step_s_median", "step_s_p90", "forward_s", "sync_s", "test_mse", "train_mse")
    },
    "window": (total("window_s", lambda value: value * 0.9), "steps-do-not-tile"),
    "left out": (total("excluded_steps", lambda value: value + 5), "total-differs"),
    "cycle time": (ran(lambda each: each["settings"]["HOROVOD_CYCLE_TIME"].update(value="5")), "logged-unlike-applied"),
    "cycle time of a rank": (
        ran(lambda each: each["ranks"][1]["communication"].update(cycle_time_ms=5.0)), "logged-unlike-applied",
    ),
    "learning rate": (ran(lambda each: each.update(lr=1.0)), "logged-unlike-applied"),
    "precision": (ran(lambda each: each.update(precision="bf16")), "logged-unlike-applied"),
    "optimizer": (ran(lambda each: each.update(optimizer="SGD")), "logged-unlike-applied"),
    "parameters": (ran(lambda each: each.update(parameters=7)), "logged-unlike-applied"),
    "initial parameters": (ran(lambda each: each.update(initial_parameter_sha256="f" * 64)), "logged-unlike-applied"),
    "earlier train_mse": (row("train_mse"), "total-differs"),
    "last test_mse": (row("test_mse", -1), "total-differs"),
    "faster steps": (steps(lambda frame: frame.__setitem__("step_s", frame["step_s"] * 0.9)), "steps-do-not-tile"),
    "steps taken out": (steps(lambda frame: frame[(frame["step"] < 50) | (frame["step"] > 60)]), "steps-do-not-tile"),
    "a slow step hidden": (steps(_smooth, totals=False), "total-differs"),
    **{
        f"total {'.'.join(map(str, path))}": (sampled(*path), "total-differs")
        for path in (
            ("energy", "total_j"),
            ("energy", "per_sample_j"),
            ("energy", "per_device", 0, "counter_j"),
        )
    },
    "a scaled copy": (_scaled_copy, "duplicated-run"),
}  # fmt: skip


@pytest.mark.parametrize("fault", RUN_FAULTS)
def test_a_run_that_was_changed_before_it_was_analysed_contradicts_itself(
    made: Made, tmp_path: Path, fault: str
) -> None:
    plant, name = RUN_FAULTS[fault]
    runs = Path(shutil.copytree(made.runs, tmp_path / "runs", ignore=shutil.ignore_patterns("analysis")))
    run = plant(runs).partition("/")[0]
    found = [each for each in findings_of(runs) if each.severity == "error"]

    assert [each for each in found if each.name == name and run in (*each.runs, each.where.partition("/")[0])]


@pytest.mark.parametrize("fault", RUN_FAULTS)
def test_a_run_that_was_changed_after_it_was_analysed_is_named(made: Made, tmp_path: Path, fault: str) -> None:
    runs = Path(shutil.copytree(made.runs, tmp_path / "runs"))
    where = RUN_FAULTS[fault][0](runs)
    found = list(check._changed(check.runs_of(runs / "analysis", None), {}))

    assert where in {each.where for each in found}
    assert {(each.name, each.severity, each.runs) for each in found} == {
        ("run-changed", "error", (where.partition("/")[0],))
    }


def test_a_change_after_the_analysis_fails_the_check(patched: Made, tmp_path: Path) -> None:
    runs = Path(shutil.copytree(patched.runs, tmp_path / "runs"))
    where = RUN_FAULTS["faster steps"][0](runs)

    assert where in {each.where for each in errors(checked(patched, runs, *ALLOWED)) if each.name == "run-changed"}


# ----------------------------------------------------------------------------- a run by the digests that it wrote


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict | list) and value:
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*path, key))
    else:
        yield path, value


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) else 1.5 if value is None else type(value)() if value else [1]


def test_any_value_of_a_record_that_is_changed_before_it_is_analysed_is_found(made: Made, tmp_path: Path) -> None:
    """Though nothing contradicts it: where a run was, when, with which versions, over which path."""
    run = Path(shutil.copytree(made.runs / PAIR[1], tmp_path / "runs" / PAIR[1]))
    path, known = run / "run.json", json.loads((run / "run.json").read_text())
    assert (
        list(check._changed({"runs": run.parent}, {name: record for _, name, record in records.found_runs(run.parent)}))
        == []
    )
    refused = 0
    for keys, value in leaves(known):
        content = copy.deepcopy(known)
        place = content
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = other(value)
        path.write_text(json.dumps(content))
        try:
            record = records.read_run(run)
        except RecordError:
            refused += 1
            continue
        found = list(check._changed({"runs": run.parent}, {PAIR[1]: record}))
        assert [(each.name, each.where) for each in found][:1] == [("run-changed", f"{PAIR[1]}/run.json")], keys

    assert refused < 20


@pytest.mark.parametrize("gone", [False, True], ids=["changed", "gone"])
def test_any_file_of_a_run_that_is_changed_before_it_is_analysed_is_found(
    made: Made, tmp_path: Path, gone: bool
) -> None:
    known = {(run, name) for run in (PAIR[0], SERIAL[0]) for name in records.run_files(made.runs / run)}
    assert {"bench.json", "epochs.csv", "run.json", "steps-00001.arrows", "system-node1.arrows"} <= {
        name for _, name in known
    }
    for run, name in known - {(PAIR[0], "run.json"), (SERIAL[0], "run.json")}:
        runs = tmp_path / run / name
        path = Path(shutil.copytree(made.runs / run, runs / run)) / name
        content = path.read_bytes()
        if gone:
            path.unlink()
        else:
            path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        found = list(check._changed({"runs": runs}, {name: record for _, name, record in records.found_runs(runs)}))

        assert [(each.name, each.where, each.runs) for each in found] == [("run-changed", f"{run}/{name}", (run,))]


def test_a_run_without_digests_is_declared(made: Made) -> None:
    study = copy.copy(made.study)
    bare = replace(study.records[PAIR[0]], digest="")
    object.__setattr__(study, "records", {**study.records, PAIR[0]: bare})

    assert not any(PAIR[0] in what for what, _ in check._not_covered(made.study, {}))
    assert any(PAIR[0] in what for what, _ in check._not_covered(study, {}))


def test_a_run_that_goes_on_or_ends_otherwise_has_no_digests_of_before(made: Made, tmp_path: Path) -> None:
    run = Path(shutil.copytree(made.runs / PAIR[0], tmp_path / PAIR[0]))
    record = records.read_run(run)
    assert record.digest and record.files
    begun = records.resume_run(run, record, from_step=10, began="2026-03-14T10:00:00+00:00")
    assert (begun.digest, begun.files) == ("", {}) and records.read_run(run) == begun
    failed = records.finish_run(run, record, status="failed", finished="2026-03-14T11:00:00+00:00", totals={})
    assert (failed.digest, failed.files) == ("", {})
    done = records.finish_run(run, failed, status="done", finished=record.finished or "", totals=record.totals)
    assert not [*check._changed({"runs": run.parent}, {run.name: done})] and done.digest


# ------------------------------------------------------------------------------------------------ the same bytes


@pytest.mark.parametrize(
    "environment",
    [
        {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "1"},
        {"OMP_NUM_THREADS": "7", "OPENBLAS_NUM_THREADS": "7", "PYTHONHASHSEED": "2", "MALLOC_MMAP_THRESHOLD_": "64"},
    ],
    ids=["one thread", "seven threads"],
)
def test_another_process_makes_the_same_bytes(made: Made, tmp_path: Path, environment: dict[str, str]) -> None:
    """Threads of the linear algebra and of analyze, the order of sets, and where memory is do not matter."""
    out, threads = made.runs / f"again-{tmp_path.name}", environment["OMP_NUM_THREADS"]
    words = ["report", "--tables", str(made.runs), "--out", str(out), "--threads", threads]
    program = "import sys; from horovod_study.cli import main; sys.exit(main(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", program, *words], check=True, timeout=300, env={**os.environ, **environment})
    try:
        names = [*(f"{name}.csv" for name in (*TABLES, "evaluations")), *(f"{name}.json" for name in DOCUMENTS)]
        differ = [each for each in names if (out / each).read_bytes() != (made.runs / "analysis" / each).read_bytes()]
        assert differ == []
        sources = [records.read_source(each) for each in (out, made.runs / "analysis")]
        assert sources[0]["files"] == sources[1]["files"] and sources[0]["run_files"] == sources[1]["run_files"]
    finally:
        shutil.rmtree(out)


def test_last_digits_of_another_processor_are_no_fault(
    patched: Made, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its linear algebra adds in another order: fitted numbers differ by 1e-11, in tables as in the page."""
    again = {**audit.versions(), "processor": "another"}
    monkeypatch.setattr(check, "versions", lambda: again)
    for name in ("points", "losses"):
        path = planted / "analysis" / f"{name}.csv"
        put(path, _change_number(path.read_text(), lambda value: value * (1 + 1e-9)))
    page = planted / "analysis" / "report.html"
    text = page.read_text()
    hit = re.search(r'application/json">"[^<]*?\\n[^<]*?(\d+\.\d{10,})', text)
    assert hit is not None
    put(page, f"{text[: hit.start(1)]}{float(hit[1]) * (1 + 1e-9)!r}{text[hit.end(1) :]}")
    found = checked(patched, planted, *ALLOWED)

    assert errors(found) == []
    assert any("processor another" in note for note in found.notes)


BY_ANOTHER = (
    *("best of n", "a byte-order mark", "a blank line in figure data", "figure data", "a CSV table", "a LaTeX table"),
    *("a style of the page", "a script in the page", "a drawing in the page", "a cell of the page"),
)


@pytest.mark.parametrize("fault", BY_ANOTHER)
def test_a_fault_in_what_another_numpy_made_is_found(
    patched: Made, planted: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    again = {**audit.versions(), "numpy": "another"}
    monkeypatch.setattr(check, "versions", lambda: again)
    where, column = FAULTS[fault](planted)
    found = errors(checked(patched, planted, *ALLOWED))

    assert any(each.where == where and column in (each.column, "") for each in found)


# -------------------------------------------------------------------------------------------------- report refuses


@pytest.mark.parametrize(
    "name", ["runs.csv", "curves.csv", "accounting.csv", "evaluations.csv", "fits.json", "source.json"]
)
@pytest.mark.parametrize("change", [_half, _without_last_row, _change_number], ids=["half", "shorter", "edited"])
def test_report_refuses_what_analyze_did_not_write(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, change: Callable[[str], str]
) -> None:
    directory = Path(shutil.copytree(made.runs / "analysis", tmp_path / "analysis"))
    path = directory / name
    text = path.read_text()
    changed = change(text) if name.endswith(".csv") or change is not _change_number else text.replace('"', "' ", 1)
    put(path, changed if changed != text else text + " ")
    page = (directory / "report.html").read_bytes()
    capsys.readouterr()

    assert main(["report", str(directory)]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and str(path) in told.err
    assert (directory / "report.html").read_bytes() == page


def test_an_analysis_without_digests_is_refused(made: Made, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(made.runs / "analysis", tmp_path / "analysis"))
    source = json.loads((directory / "source.json").read_text())
    for name in ("files", "run_files", "digest"):
        del source[name]
    put(directory / "source.json", json.dumps({**source, "schema": 1}))

    with pytest.raises(RecordError, match=r"source\.json"):
        api.read_analysis(directory)
    (directory / "source.json").unlink()
    with pytest.raises(RecordError, match=r"source\.json"):
        api.read_analysis(directory)


def test_source_json_is_recognised_whole(made: Made, tmp_path: Path) -> None:
    text = (made.runs / "analysis" / "source.json").read_text()
    for place in range(10, len(text) - 2, max(1, len(text) // 40)):
        (tmp_path / "source.json").write_text(text[:place])
        with pytest.raises(RecordError, match=re.escape("source.json")):
            records.read_source(tmp_path)
