"""`horovod-study report DIR --check`: everything that DIR holds, made again from the run directories and compared.

Tables, documents, the files of figures and tables, captions and all texts of the page follow one rule
(`audit.same_text`): numbers are equal within a tolerance, everything else is equal. Pictures are drawn again where
Matplotlib and everything below is the same as when they were drawn; elsewhere another picture of the same numbers would
come out, and they are compared with the digests that `report` kept.

No finding hides another one: what --allow accepts are doubts, and every error stays.
"""

import csv
import re
import shlex
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from difflib import SequenceMatcher
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

from horovod_study import records
from horovod_study.analysis import audit
from horovod_study.analysis.audit import RULES, Fault, Study, versions
from horovod_study.analysis.study import DOCUMENTS, TABLES, Analysis
from horovod_study.config.documents import parse_json, read_bytes, read_text, shown
from horovod_study.errors import RecordError, StudyError, nearest, refuse
from horovod_study.files import csv_of
from horovod_study.report.figures.catalogue import drawings
from horovod_study.report.grammar import write_files
from horovod_study.report.kit.files import FORMATS
from horovod_study.report.kit.style import TEXT, FigureFormat
from horovod_study.report.page import tables
from horovod_study.report.page.html import render
from horovod_study.text.words import cut, plural, printable, wrapped

_PICTURES = (".pdf", ".svg", ".png", ".pgf")
SHOWN = 8
"""So many findings of one kind are told listed on the terminal."""
WIDE = 100


_OF_A_TABLE = ("how the numbers of the table were measured", "no run was recorded; they are compared with the table")
NOT_COVERED: Sequence[tuple[str, str]] = (
    (
        "a run that was changed before it was analysed, together with the digests in its run.json",
        "a digest is not a signature: such a change is found where it contradicts another file, rank or repeat",
    ),
    (
        "in such a run: earlier evaluations whose test_mse, g0_rmse_mpa and a_rmse were changed together",
        "the predictions are not kept",
    ),
    (
        "in such a run: dates that were all moved together",
        "no file holds a second clock; the times of files are no proof",
    ),
    (
        "in such a run: the initial parameters, where it is the only run of its seed",
        "the checkpoint at step 0 is not kept; runs of one seed are compared with each other",
    ),
    (
        "in such a run: time between steps on a GPU, of somebody's own script, or with checkpoints or resumes",
        "device and host keep two clocks, and what is between two steps is told by no row",
    ),
    (
        "in such a run: single values of system samples; their means in the window and joules within some percent",
        "only their number, maxima, means and sums are in the record as well, and a stretch of the window begins and "
        "ends some milliseconds before and after its steps",
    ),
    (
        "in such a run: a window that is longer than its steps by less than 1 % and 10 ms a stretch",
        "so much may be between the clock of the window and that of the steps",
    ),
    (
        "in such a run: what it tells in one place only, such as names of hosts and processes, machine and versions "
        "(other runs may differ: versions-differ), options that nothing is read back of, the path of its messages, "
        "bench.json",
        "there is nothing to compare it with",
    ),
    ("data of curves, and trained parameters", "data sets and checkpoints are not read"),
)
"""What a check of this kind cannot find, and why; listed in every result."""


def drawn_by(
    directory: Path, paths: Iterable[Path], look: FigureFormat | None, others: Collection[Path]
) -> dict[str, Any]:
    """Return what `report` keeps of what it wrote: with which Matplotlib and look, and a digest of each picture.

    `others`: files among `paths` that cannot be made again either, which get a digest, too.
    """
    pictures = {
        path.relative_to(directory).as_posix(): records.digest_of(path.read_bytes())
        for path in paths
        if path.suffix in _PICTURES or path in others
    }
    look = look or TEXT
    return {"matplotlib": matplotlib.__version__, "look": [f"{look.width_in!r}", look.font], "pictures": pictures}


def _look(reported: Mapping[str, Any]) -> FigureFormat | None:
    """Return the look with which pictures were drawn; None where it is not known."""
    try:
        width, font = reported["look"]
        return FigureFormat(width_in=float(width), font=font)
    except (KeyError, ValueError, TypeError, StudyError):
        return None


def runs_of(directory: Path, runs: Path | None) -> dict[str, Any]:
    """Return records.read_source with `runs` as a path that exists, given or kept, and `networks` as files and names.

    RecordError, which names --runs, where there is neither.
    """
    try:
        source = records.read_source(directory, edited=True)
    except RecordError:
        if runs is None or (directory / records.SOURCE).exists():
            raise
        source = {}
    place = directory / source.get("runs", "") if runs is None else runs
    names = kept_runs(directory) or []
    if not (place.exists() or place.with_name(re.sub(r"@[\dx]+$", "", place.name)).is_file()):
        why = "no such directory"
    elif (
        place.is_dir()
        and "columns" not in source
        and names
        and not any((place / each / records.MANIFEST).is_file() for each in (*names, "."))
    ):
        why = f"holds none of the {plural(len(names), 'run')} of this study"
    else:
        why = ""
    hint = "they were there when the study was analysed" if runs is None else "it was given as --runs"
    refuse(
        "", (why, f"{place}: {why} ({hint}); say where the run directories are now with --runs RUNS"), error=RecordError
    )
    networks = [(directory / f"{each.get('path')}", f"{each.get('named')}") for each in source.get("benches") or ()]
    return {**source, "runs": place, "networks": networks, "whole": not source or records.is_whole(source)}


@dataclass(frozen=True, kw_only=True, eq=False)
class PageCheck:
    """What a check found and what it looked at."""

    directory: str
    runs: int
    findings: tuple[Fault, ...]
    accepted: tuple[Fault, ...] = ()  # told of, but not counted: --allow
    compared: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what could not be compared, and how closely the rest was
    not_covered: tuple[tuple[str, str], ...] = ()  # what this check cannot find, and why

    @property
    def exit_code(self) -> int:
        """Return 1 where anything was found that is not allowed."""
        return 1 if self.findings else 0


def document(found: PageCheck) -> dict[str, Any]:
    """Return what --json prints of a check."""
    told = {
        name: [{"severity": each.severity, **asdict(each), "remedy": RULES[each.name].remedy} for each in faults]
        for name, faults in (("findings", found.findings), ("accepted", found.accepted))
    }
    kept = {**records.facts(found, "directory", "runs", "compared"), **told, "notes": list(found.notes)}
    not_covered = [{"what": what, "why": why} for what, why in found.not_covered]
    return {**kept, "not_covered": not_covered, "exit_code": found.exit_code}


def allowed(names: Sequence[str]) -> frozenset[str]:
    """Return the names that --allow accepts; ConfigError for one that is not a doubt."""
    doubts = [name for name, rule in RULES.items() if rule.severity == "doubt"]
    error = "is an error and cannot be allowed"
    told = ((name, error if name in RULES else f"is not a finding{nearest(name, doubts)}") for name in names)
    refuse("", *((name not in doubts, f"--allow {name}: {why}; allowed: {', '.join(doubts)}") for name, why in told))
    return frozenset(names)


def kept_runs(directory: Path) -> list[str] | None:
    """Return the names of the runs that the analysis in `directory` has; None where its table cannot be read."""
    text, _ = _read(directory / "runs.csv")
    try:
        rows = audit.rows_of(text or "")
    except csv.Error:
        return None
    if not rows or "run" not in rows[0]:
        return None
    place = rows[0].index("run")
    return [row[place] for row in rows[1:] if len(row) > place]


def check(
    directory: Path,
    study: Study,
    evaluations: pd.DataFrame,
    source: Mapping[str, Any],
    *,
    runs: Mapping[str, str],
    against: Callable[[Analysis], Any] = lambda _: None,
    allow: Collection[str] = (),
    on_progress: Callable[[str], None] = lambda _: None,
) -> PageCheck:
    """Compare everything below `directory` with `study`, and look for what makes it weak.

    `study` and `evaluations` are made again from the runs that the analysis has. `runs`: name -> state of all runs that
    are there. `source` is what report kept (records.read_source), `against` makes the comparison
    that the page shows, if any. `on_progress` is called with what comes next. Writes nothing but temporary files.
    """
    notes: list[str] = []
    kept = kept_runs(directory) if study.records else list(runs)
    gone = sorted(set(kept or ()) - set(runs))
    new = sorted(set(runs) - set(kept)) if kept is not None else []
    left_out = {name: f"is {runs[name]} and is not in the tables" for name in new}
    found = [
        Fault(name="run-left-out", text=text, where="runs.csv", column="run", runs=(name,))
        for name, text in left_out.items()
    ]
    found += [Fault(name="run-gone", text="has no run directory", where="runs.csv", runs=(name,)) for name in gone]
    found += _changed(source, study.records)
    compared = {
        "runs": len(study.runs),
        "rows": sum(each.rows for each in study.recounts),
        "totals": sum(each.totals for each in study.recounts),
    }
    on_progress("looking for faults")
    found += audit.lint(study)
    if gone:
        notes.append("tables, figures and page were not compared: they count runs that are gone")
    else:
        same, (texts, reloaded) = _same_libraries(source), _again(study.analysis, evaluations)
        tolerance = audit.TEXT_TOLERANCE if same else audit.LIBRARY_TOLERANCE
        if not same:
            notes.append(
                f"analysed with {_named(source.get('versions') or {})}, checked with {_named(versions())}: numbers "
                f"count as equal within {tolerance:g} of their size"
            )
        on_progress("comparing tables")
        made, cells = _compared(directory, texts, tolerance)
        found += made
        compared |= {"tables": len(texts), "cells": cells}
        # Pictures of numbers in which a last digit differs have other bytes; `report` drew those that are kept.
        analysis = reloaded if made else _kept(directory) or reloaded
        on_progress("comparing figures")
        more, done = _drawn(directory, analysis, source, tolerance, notes)
        found += more
        compared |= done
        on_progress("comparing the page")
        more, parts = _page(directory, analysis, against, source, tolerance, notes)
        found += more
        compared["page"] = parts
    ordered = audit.in_order(audit.placed(found, study.runs), study.analysis)
    accepted = tuple(each for each in ordered if each.severity == "doubt" and each.name in allow)
    return PageCheck(
        directory=str(directory),
        runs=len(study.runs),
        findings=tuple(each for each in ordered if each not in accepted),
        accepted=accepted,
        compared=compared,
        notes=tuple(notes),
        not_covered=(
            *NOT_COVERED,
            *(() if study.records else (_OF_A_TABLE,)),
            *_not_recounted(study),
            *_not_kept(source),
        ),
    )


def _changed(source: Mapping[str, Any], recorded: Mapping[str, records.RunRecord]) -> Iterable[Fault]:
    """Yield what is not what the analysis read, what report wrote down, or what the runs wrote: by their digests."""
    if not source.get("whole", True):
        yield Fault(name="source-changed", text="its digest is that of another text", where=records.SOURCE)
    alternated = source.get("turns_files")
    if alternated is not None:
        for place, text in _unlike(alternated, records.turns_files(source["runs"])).items():
            yield Fault(name="run-changed", text=text, where=(Path(place) / records.TURNS_FILE).as_posix())
    analysed = source.get("run_files") or {}
    for name in dict.fromkeys([*analysed, *recorded]):
        directory = source["runs"] / name
        if not directory.is_dir() and source["runs"].resolve().name == name:
            directory = source["runs"]
        if not (directory / records.MANIFEST).is_file():
            continue  # it is told as gone, where the tables have it
        there = records.run_files(directory)
        files = analysed.get(name, there)
        wrong = _unlike(files, there)
        if name in recorded:
            wrong = _unlike_written(recorded[name], there) | wrong
        for file, text in wrong.items():
            yield Fault(name="run-changed", text=text, where=f"{name}/{file}", runs=(name,))


def _unlike_written(record: records.RunRecord, there: Mapping[str, str]) -> dict[str, str]:
    """Return {file: what is wrong} of what is not as the run itself wrote it down when it was done.

    `there`: `run_files` of its directory as it is now. A run without `digest` says nothing, nor does a run of a file
    that another host wrote and rank 0 did not see yet.
    """
    if not record.digest:
        return {}
    own = record.digest == records.digest_of_record(record)
    found = {} if own else {records.MANIFEST: "its digest is that of another text"}
    for name, digest in record.files.items():
        if there.get(name) != digest:
            found[name] = "is not the file that the run wrote" if name in there else "the run wrote it, and it is gone"
    return found


def _unlike(files: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    """Return what is wrong with each file whose digest is not the one that it had."""
    return {
        file: "is not there" if file not in there else "is new" if file not in files else "has another digest"
        for file in sorted({*files, *there})
        if files.get(file) != there.get(file)
    }


def _not_recounted(study: Study) -> list[tuple[str, str]]:
    """Return which totals of these runs no kept row tells, and of which runs all."""
    names = {name for each in study.recounts if each.totals for name in each.not_recounted}
    whole = [name for name, each in study.records.items() if records.is_command(each)]
    without = [each.run for each in study.recounts if not each.totals and each.run not in whole]
    bare = [name for name, each in study.records.items() if each.state() == "done" and not each.digest]
    cases = (
        (bare, f"changes before it was analysed of {_some(bare)}", "an older program wrote no digests of it"),
        (names, ", ".join(sorted(names)), "no kept row tells it"),
        (whole, f"totals of {_some(whole)}", "no step was seen, so that no row tells them"),
        (without, f"totals of {_some(without)}", "have no totals"),
    )
    return [(what, why) for those, what, why in cases if those]


def _some(names: Sequence[str]) -> str:
    return f"{plural(len(names), 'run')}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"


def _not_kept(source: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what cannot be looked at because report did not keep by what it is known again."""
    drawn = _same_program(source) and _look(source.get("report") or {})
    cases = (
        (source.get("run_files"), "runs changed after the analysis", "source.json holds no digests of them"),
        (drawn, "pictures changed together with source.json", "another program drew them"),
    )
    return [(what, why) for kept, what, why in cases if not kept]


# ------------------------------------------------------------------------------------------------------- files


def _same_libraries(source: Mapping[str, Any]) -> bool:
    return bool((source.get("versions") or {}) == versions())


def _same_program(source: Mapping[str, Any]) -> bool:
    """Return whether Matplotlib and everything below is the same as when the pictures were drawn."""
    reported = source.get("report") or {}
    return bool(reported.get("matplotlib") == matplotlib.__version__) and _same_libraries(source)


def _named(made_by: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(made_by.items())) or "unknown versions"


def _read(path: Path) -> tuple[str | None, str]:
    """Return the text of a file, or None with the reason."""
    try:
        return read_text(path, again="", missing="is not there"), ""
    except RecordError as error:
        return None, f"{error}".removeprefix(f"{shown(path)}: ").removesuffix("; ")


def _again(analysis: Analysis, evaluations: pd.DataFrame) -> tuple[dict[str, str], Analysis]:
    """Return the files of the analysis as texts, as records.save_tables writes them, and as `report` reads them."""
    with tempfile.TemporaryDirectory() as folder:
        written = {"evaluations": evaluations, **analysis.tables()}
        paths = records.save_tables(Path(folder), written, analysis.documents())
        return {path.name: path.read_text(encoding="utf-8") for path in paths}, _loaded(Path(folder))


def _loaded(directory: Path) -> Analysis:
    frames, documents = records.load_tables(directory, TABLES, DOCUMENTS)
    return Analysis(**{**frames, **documents})


def _kept(directory: Path) -> Analysis | None:
    """Return the analysis that `report` drew from; None where it would refuse it."""
    try:
        records.read_source(directory)
        return _loaded(directory)
    except StudyError:
        return None


def _compared(directory: Path, texts: Mapping[str, str], tolerance: float) -> tuple[list[Fault], int]:
    """Compare files with what they should hold: tables and documents cell by cell, other texts line by line."""
    found: list[Fault] = []
    cells = 0
    for name, again in texts.items():
        kept, why = _read(directory / name)
        try:
            document = parse_json(kept, source=name, again="") if kept is not None and name.endswith(".json") else None
        except RecordError as error:
            kept, why = None, f"{error}".removeprefix(f"{name}: ").removesuffix("; ")
        if kept is None:
            found.append(Fault(name="file-missing", text=why, where=name))
        elif name.endswith((".csv", ".json")):
            made, count = (
                audit.compare_tables(name, kept, again, tolerance)
                if name.endswith(".csv")
                else audit.compare_documents(name, document, parse_json(again, source=name, again=""), tolerance)
            )
            found += made
            cells += count
        else:
            found += _compare_lines(name, kept, again, tolerance)
    return found, cells


def _drawn(
    directory: Path, analysis: Analysis, source: Mapping[str, Any], tolerance: float, notes: list[str]
) -> tuple[list[Fault], dict[str, int]]:
    """Compare the data and the captions of the figures, the tables for print, and the pictures."""
    reported = source.get("report") or {}
    folders = [name for name in ("figures", "tables") if (directory / name).is_dir()]
    found: list[Fault] = []
    for name in sorted({"figures", "tables"} - set(folders)):
        if reported:
            found.append(Fault(name="file-missing", text="is not there", where=f"{name}/"))
        else:
            notes.append(f"{name}/ is not there; horovod-study report {shlex.quote(str(directory))} makes it")
    look = _look(reported)
    again = look if _same_program(source) else None
    expected, pictures = _made(analysis, folders, again)
    done = {"figures": 0, "print_tables": 0, "pictures": 0}
    found += _compared(directory, expected, tolerance)[0]
    for name in expected:
        done["figures" if name.startswith("figures/") else "print_tables"] += name.endswith(".csv")
    digests = reported.get("pictures") or {}
    for name in sorted({*pictures, *digests}):
        made, count = _picture(directory, name, digests.get(name), pictures.get(name))
        found += made
        done["pictures"] += count
    known = {*expected, *pictures, *digests, *(reported.get("files") or ())}
    for folder in folders:
        for path in sorted((directory / folder).rglob("*")):
            name = path.relative_to(directory).as_posix()
            if path.is_file() and name not in known and not path.name.startswith("."):
                text = "belongs to no figure or table of this analysis"
                found.append(Fault(name="file-left-over", text=text, where=name))
    return found, done


def _made(
    analysis: Analysis, folders: Sequence[str], look: FigureFormat | None
) -> tuple[dict[str, str], dict[str, str | None]]:
    """Return the texts of the figures and tables that belong into `folders`, and the digests of the pictures.

    Without `look` pictures are not drawn, and their digests are None.
    """
    expected: dict[str, str] = {}
    pictures: dict[str, str | None] = {}
    drawn = drawings(analysis) if "figures" in folders else []
    for each in drawn:
        expected[f"figures/{each.name}.csv"] = csv_of(each.data)
        expected[f"figures/{each.name}.txt"] = each.caption + "\n"
        pictures |= {f"figures/{each.name}.{form}": None for form in FORMATS}
    with tempfile.TemporaryDirectory() as folder:
        for path in tables.write_tables(analysis, Path(folder)) if "tables" in folders else ():
            expected[f"tables/{path.name}"] = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for path in write_files(drawn, Path(folder), look=look) if look is not None else ():
            if path.suffix in _PICTURES:
                pictures[f"figures/{path.name}"] = records.digest_of(path.read_bytes())
    return expected, pictures


def _picture(directory: Path, name: str, kept: str | None, again: str | None) -> tuple[list[Fault], int]:
    """Compare one picture with the digest that report kept of it, and with that of the one drawn again."""
    try:
        content = read_bytes(directory / name, again="")
    except RecordError:
        content = b""
    if not content:
        return [Fault(name="file-missing", text="is not there", where=name)], 0
    digest = records.digest_of(content)
    if kept is not None and digest != kept:
        text = "was changed after it was drawn"
    elif again is not None and digest != again:
        text = "is not the picture that the runs give, though source.json says so"
    else:
        return [], int(kept is not None or again is not None)
    return [Fault(name="picture-changed", text=text, where=name)], 1


def _compare_lines(where: str, kept: str, again: str, tolerance: float) -> list[Fault]:
    """Compare a text line by line; a row of a LaTeX table names its first cells."""
    if kept == again:
        return []
    found = []
    between = "&" * where.endswith(".tex")
    heads: list[str] = []
    for ours, theirs in _pairs(kept.split("\n"), again.split("\n")):
        if ours is None or theirs is None:
            found.append(_differing(where, ours, theirs))
            continue
        cells = [[each.strip() for each in line.split(between)] if between else [line] for line in (ours, theirs)]
        if len(cells[1]) > 2 and not heads:
            heads = cells[1]
        if audit.same_text(ours, theirs, tolerance):
            continue
        if between and len(cells[0]) == len(cells[1]) > 1:
            for place, (a, b) in enumerate(zip(*cells, strict=True)):
                if not audit.same_text(a, b, tolerance):
                    column = heads[place] if place < len(heads) else ""
                    row = ", ".join(each for each in cells[1][:3] if each)
                    text = f"is {a or 'empty'}; the runs give {b or 'nothing'}"
                    found.append(replace(_differing(where, a, b, column=column, row=row), text=text))
        else:
            found.append(_differing(where, ours, theirs))
    return found


def _differing(where: str, ours: str | None, theirs: str | None, *, column: str = "", row: str = "") -> Fault:
    """Return the fault of a text: `ours` is what the report says, `theirs` what the runs give, None for nothing."""
    if ours is None:
        text = f"{_short(theirs or '')!r} is not there"
    elif theirs is None:
        text = f"nothing in the runs gives {_short(ours)!r}"
    else:
        one, other = _around(ours, theirs)
        text = f"says {one!r}; the runs give {other!r}"
    return Fault(name="cell-differs", text=text, where=where, column=column, row=row, kept=ours, again=theirs)


def _pairs(old: Sequence[str], new: Sequence[str]) -> Iterable[tuple[str | None, str | None]]:
    """Yield what stands for each other in two lists of texts, None where one has nothing."""
    if len(old) == len(new):
        yield from zip(old, new, strict=True)
        return
    first, last = _alike(old, new)
    yield from zip(old[:first], new[:first], strict=True)
    a, b = old[first : len(old) - last], new[first : len(new) - last]
    for kind, i, j, k, m in SequenceMatcher(None, a, b, autojunk=len(a) * len(b) > 10_000_000).get_opcodes():
        if kind == "equal" or j - i == m - k:
            yield from zip(a[i:j], b[k:m], strict=True)
        else:
            yield from ((each, None) for each in a[i:j])
            yield from ((None, each) for each in b[k:m])
    yield from zip(old[len(old) - last :], new[len(new) - last :], strict=True)


def _around(one: str, other: str) -> tuple[str, str]:
    """Return the parts of two texts that differ, with some of what stands around them."""
    first, last = _alike(one, other)
    begin, more = max(0, first - 24), max(0, last - 24)
    return _short(one[begin : len(one) - more]), _short(other[begin : len(other) - more])


def _alike(one: Sequence[str], other: Sequence[str]) -> tuple[int, int]:
    """Return how many entries of two sequences are the same at their beginning, and of the rest at their end."""
    shorter = min(len(one), len(other))
    first = next((place for place in range(shorter) if one[place] != other[place]), shorter)
    return first, next(
        (place for place in range(shorter - first) if one[-1 - place] != other[-1 - place]), shorter - first
    )


def _short(text: str) -> str:
    return cut(" ".join(text.split()), 70)


# -------------------------------------------------------------------------------------------------------- the page


def _page(
    directory: Path,
    analysis: Analysis,
    against: Callable[[Analysis], Any],
    source: Mapping[str, Any],
    tolerance: float,
    notes: list[str],
) -> tuple[list[Fault], int]:
    """Compare report.html by what a reader sees of it: headings, sentences, cells, and what pointing at a mark says."""
    path = directory / "report.html"
    kept, why = _read(path)
    if kept is None:
        if path.exists() or source.get("report"):
            return [Fault(name="file-missing", text=why, where=path.name)], 0
        notes.append(f"{path.name} is not there; horovod-study report {shlex.quote(str(directory))} makes it")
        return [], 0
    try:
        again = render(analysis, against=against(analysis))
    except RecordError as error:  # the study that it was compared with is not there any more
        return [Fault(name="file-missing", text=f"cannot be compared ({error})", where=path.name)], 0
    parts = page_parts(again)
    if kept == again:
        return [], len(parts)
    old = page_parts(kept)
    found = []
    for ours, theirs in _pairs([f"{a}\n{b}" for a, b in old], [f"{a}\n{b}" for a, b in parts]):
        if ours == theirs or (ours and theirs and audit.same_text(ours, theirs, tolerance)):
            continue
        (place, a), (_, b) = ((each or "\n").split("\n", 1) if each else ("", "") for each in (ours, theirs))
        place = place or (theirs or "\n").split("\n", 1)[0]
        section, _, cell = place.partition(" / ")
        told = (a if ours is not None else None, b if theirs is not None else None)
        found.append(_differing(path.name, *told, column=cell, row=section))
    if not found and _same_program(source):
        text = "its texts and tables are right, its drawings or styles are not those that report makes"
        found.append(Fault(name="picture-changed", text=text, where=path.name))
    return found, len(parts)


def page_parts(text: str) -> list[tuple[str, str]]:
    """Return the texts of a page in order, each with where it stands: `Section / column, row` in a table."""
    reader = _PageReader()
    reader.feed(text)
    reader.close()
    reader.flush()
    return reader.parts


_BREAKS = frozenset(
    "h1 h2 h3 h4 p li dt dd td th figcaption summary caption div section header footer nav title pre ul ol dl table tr "
    "tbody thead figure details main article button label option small br style svg script".split()
)


class _PageReader(HTMLParser):
    """Collects the texts of a page by their blocks; cells of a table with the head of their column."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[tuple[str, str]] = []
        self._text: list[str] = []
        self._section = self._skip = self._script = ""
        self._heading = self._in_head = self._tip = False
        self._cell: list[str] | None = None  # its texts
        self._spans = (1, 1)  # columns and rows of it
        self._heads: list[str] = []
        self._row: list[str] = []
        self._over: list[str] = []  # the first cell of further rows, where one spans them

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self._tip = tag == "title" and self._skip == "svg"
        if self._skip:
            return
        if tag in _BREAKS:
            self.flush()
        if tag == "script" and "json" in (values.get("type") or ""):
            self._script = values.get("id") or "data"
        elif tag in ("style", "svg", "script"):
            self._skip = tag
        elif tag == "table":
            self._heads, self._over = [], []
        elif tag == "thead":
            self._in_head = True
        elif tag == "tr":
            self._row = [self._over.pop()] if self._over else []
        elif tag in ("td", "th"):
            self._cell, self._spans = [], (_span(values.get("colspan")), _span(values.get("rowspan")))
        elif tag in ("h1", "h2", "h3"):
            self._heading = True
        for name in ("aria-label", "alt", "title"):
            if values.get(name) and tag != "svg":
                self.parts.append((self._section, f"{name}: {values[name]}"))

    def handle_endtag(self, tag: str) -> None:
        self._tip = False
        if self._skip:
            self._skip = "" if tag == self._skip else self._skip
            return
        if tag == "script":
            self._json("".join(self._text))
            self._text, self._script = [], ""
            return
        if tag in _BREAKS:
            self.flush()
        if tag in ("td", "th") and self._cell is not None:
            self._end_cell(" ".join(self._cell))
        elif tag == "thead":
            self._in_head = False
        elif tag in ("h1", "h2", "h3"):
            self._heading = False

    def handle_data(self, data: str) -> None:
        if self._tip:  # places in a drawing depend on who draws, what pointing at them says does not
            self.parts.append((f"{self._section} / tip", data))
        elif not self._skip:
            self._text.append(data)

    def flush(self) -> None:
        """End the block that is open."""
        text = " ".join("".join(self._text).split())
        self._text = []
        if not text or self._script:
            return
        if self._cell is not None:
            self._cell.append(text)
            return
        if self._heading:
            self._section = text
        self.parts.append((self._section, text))

    def _end_cell(self, text: str) -> None:
        self._cell, (columns, rows) = None, self._spans
        if self._in_head:
            self._heads.append(text)
            self.parts.append((self._section, text))
            return
        head = next(iter(self._heads[len(self._row) :]), "")
        names = ", ".join(each for each in self._row[:2] if each)
        self.parts.append((f"{self._section} / {head}{f' ({names})' if names else ''}", text))
        self._row += [text] * columns
        self._over = [text] * (rows - 1) or self._over

    def _json(self, text: str) -> None:
        """Take the table behind a figure from the data of the page's script."""
        with suppress(RecordError):  # else the text itself is compared
            text = f"{parse_json(text, source='the page', again='')}"
        self.parts.append((f"{self._section} / {self._script}", text))


def _span(text: str | None) -> int:
    return min(1000, int(text)) if text and text.isdecimal() and int(text) > 0 else 1


# ----------------------------------------------------------------------------------------------------- terminal


def lines(found: PageCheck) -> list[str]:
    """Return the check for a terminal, at most WIDE columns: what was compared, the findings by kind, the verdict."""
    done = found.compared
    what = [
        f"{plural(found.runs, 'run')}",
        f"{done.get('rows', 0):,} step rows",
        f"{done.get('totals', 0):,} totals",
        *([f"{done['cells']:,} cells of {done['tables']} tables"] if "cells" in done else []),
        *([f"{done['figures']} figures"] if done.get("figures") else []),
        *([f"{done['print_tables']} tables for print"] if done.get("print_tables") else []),
        *([f"a page of {done['page']:,} texts"] if done.get("page") else []),
    ]
    shown = _wrap(f"{found.directory}: {', '.join(what)} compared with the raw rows.")
    for title, findings in (("", found.findings), ("accepted: ", found.accepted)):
        for name in dict.fromkeys(each.name for each in findings):
            same = [each for each in findings if each.name == name]
            rule = RULES[name]
            shown += ["", *_wrap(f"{title}{rule.severity} {name}: {rule.title} ({len(same):,})")]
            for each in same[:SHOWN]:
                shown += _wrap(_line(each), indent="  ")
            if len(same) > SHOWN:
                files = list(dict.fromkeys(each.where for each in same[SHOWN:]))
                where = f" in {', '.join(files[:4])}{' and others' if len(files) > 4 else ''}"
                shown += _wrap(f"and {len(same) - SHOWN:,} more{where}; --json lists all", indent="  ")
            shown += _wrap(f"-> {rule.remedy}", indent="  ")
    shown.append("")
    shown += [line for note in found.notes for line in _wrap(f"note: {note}")]
    shown += [line for what, why in found.not_covered for line in _wrap(f"not covered: {what} ({why})")]
    errors = sum(each.severity == "error" for each in found.findings)
    doubts = len(found.findings) - errors
    if found.findings:
        counts = [plural(count, word) for count, word in ((errors, "error"), (doubts, "doubt")) if count]
        shown += _wrap(f"{plural(len(found.findings), 'finding')} ({', '.join(counts)}): the check failed.")
    else:
        shown += _wrap("0 findings: every number that was compared is what the raw rows give.")
    return shown


def _line(each: Fault) -> str:
    """Return one finding: where, which cell, what, which runs."""
    cell = [
        each.series,
        "" if each.workers is None else plural(each.workers, "worker"),
        "" if each.nodes in (None, 1) else plural(each.nodes or 0, "node"),
        each.row,
    ]
    place = ", ".join(printable(text) for text in cell if text)
    column = f" {printable(each.column)}" if each.column else ""
    names = [printable(name) for name in each.runs]
    runs = f" [{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}]" if names else ""
    return f"{printable(each.where)}{column}{f' ({place})' if place else ''}: {printable(each.text)}{runs}"


def _wrap(text: str, indent: str = "") -> list[str]:
    return wrapped(text, WIDE, indent, f"{indent}  ")
