"""`horovod-study report DIR --check`: all of DIR made again from the run directories, and compared (docs/report.md).

Texts follow one rule (`audit.same_text`). Pictures are equal byte for byte where Matplotlib and everything below is the
same as when they were drawn; elsewhere they are compared with the digests that `report` kept.
"""

import html
import re
import shlex
import tempfile
from collections import Counter, namedtuple
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from difflib import SequenceMatcher
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

from horovod_study import records
from horovod_study.analysis import audit
from horovod_study.analysis.audit import RULES, Fault, Study, versions
from horovod_study.analysis.study import DOCUMENTS, TABLES, Analysis
from horovod_study.config.documents import read_bytes, read_text, shown
from horovod_study.errors import RecordError, StudyError, nearest, refuse
from horovod_study.report.kit.style import TEXT, FigureFormat
from horovod_study.report.page.html import write_report
from horovod_study.text.words import cut, plural, printable, wrapped

_PICTURES = (".pdf", ".svg", ".png")
SHOWN = 8  # findings of one kind, on the terminal
WIDE = 100
_PARTS = ("figures", "tables", "report.html")

_SUCH = "in such a run:"
NOT_COVERED: Sequence[tuple[str, str]] = (
    ("a run changed before it was analysed, with the digests in its run.json", "a digest is not a signature"),
    (f"{_SUCH} earlier evaluations, parameters before the first step", "no prediction and no first checkpoint is kept"),
    (f"{_SUCH} dates, time between steps, samples of the system and what they sum up to", "only its digests tell"),
    (f"{_SUCH} what it tells in one place only: names, versions, options, bench.json", "nothing compares with it"),
    ("data of curves, and trained parameters", "data sets and checkpoints are not read"),
)  # what a check of this kind cannot find, and why; listed in every result


def drawn_by(
    directory: Path, paths: Iterable[Path], look: FigureFormat | None, others: Collection[Path]
) -> dict[str, Any]:
    """Return what `report` keeps of what it wrote: with which Matplotlib and look, and a digest of each picture.

    `others`: files among `paths` that cannot be made again either, which get a digest, too.
    """
    pictures = {
        path.relative_to(directory).as_posix(): drawings_digest(path.read_text(encoding="utf-8"))
        if path.suffix == ".html"
        else records.digest_of(path.read_bytes())
        for path in paths
        if path.suffix in (*_PICTURES, ".html") or path in others
    }
    look = look or TEXT
    return {"matplotlib": matplotlib.__version__, "look": [f"{look.width_in!r}", look.font], "pictures": pictures}


def _look(source: Mapping[str, Any]) -> FigureFormat | None:
    """Return how pictures were drawn, where it was done with the same Matplotlib and everything below; else None."""
    reported = source.get("report") or {}
    if reported.get("matplotlib") == matplotlib.__version__ and source.get("versions") == versions():
        with suppress(KeyError, ValueError, TypeError, StudyError):
            width, font = reported["look"]
            return FigureFormat(width_in=float(width), font=font)
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
    folder = place.is_dir() and "columns" not in source and names
    why = ""
    if not (place.exists() or place.with_name(re.sub(r"@[\dx]+$", "", place.name)).is_file()):
        why = "no such directory"
    elif folder and not any((place / each / records.MANIFEST).is_file() for each in (*names, ".")):
        why = f"holds none of the {plural(len(names), 'run')} of this study"
    hint = "they were there when the study was analysed" if runs is None else "it was given as --runs"
    refuse(
        "", (why, f"{place}: {why} ({hint}); say where the run directories are now with --runs RUNS"), error=RecordError
    )
    networks = [(directory / f"{each.get('path')}", f"{each.get('named')}") for each in source.get("benches") or ()]
    return {**source, "runs": place, "networks": networks, "whole": not source or records.is_whole(source)}


PageCheck = namedtuple(
    "PageCheck", "directory runs findings accepted compared notes not_covered", defaults=((), {}, (), ())
)
"""What a check found and what it looked at; `accepted`: faults that --allow names, `notes`: what could not be compared
and how closely the rest was, `not_covered`: what this check cannot find, and why."""


def document(found: PageCheck) -> dict[str, Any]:
    """Return what --json prints of a check."""
    told = {
        name: [{"severity": each.severity, **asdict(each), "remedy": RULES[each.name].remedy} for each in faults]
        for name, faults in (("findings", found.findings), ("accepted", found.accepted))
    }
    kept = {**records.facts(found, "directory", "runs", "compared"), **told, "notes": list(found.notes)}
    not_covered = [{"what": what, "why": why} for what, why in found.not_covered]
    return {**kept, "not_covered": not_covered, "exit_code": int(bool(found.findings))}


def allowed(names: Sequence[str]) -> frozenset[str]:
    """Return the names that --allow accepts; ConfigError for one that is not a doubt."""
    doubts = [name for name, rule in RULES.items() if rule.severity == "doubt"]
    error = "is an error and cannot be allowed"
    told = ((name, error if name in RULES else f"is not a finding{nearest(name, doubts)}") for name in names)
    refuse("", *((name not in doubts, f"--allow {name}: {why}; allowed: {', '.join(doubts)}") for name, why in told))
    return frozenset(names)


def kept_runs(directory: Path) -> list[str] | None:
    """Return the names of the runs that the analysis in `directory` has; None where its table cannot be read."""
    with suppress(ValueError, KeyError, RecordError):
        return list(audit.table_of(read_text(directory / "runs.csv", again=""))["run"])
    return None


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
    found = [Fault(name="run-gone", text="has no run directory", where="runs.csv", runs=(name,)) for name in gone]
    for name in sorted(set(runs) - set(runs if kept is None else kept)):
        text = f"is {runs[name]} and is not in the tables"
        found.append(Fault(name="run-left-out", text=text, where="runs.csv", column="run", runs=(name,)))
    found += [*_changed(source, study.records), *audit.lint(study)]
    compared = Counter(runs=len(study.runs))
    for each in study.recounts:
        compared.update(rows=each.rows, totals=each.totals)
    if gone:
        notes.append("tables, figures and page were not compared: they count runs that are gone")
    else:
        tolerance = audit.TEXT_TOLERANCE
        if source.get("versions") != versions():
            tolerance = audit.LIBRARY_TOLERANCE
            makers = [sorted((each or {}).items()) for each in (source.get("versions"), versions())]
            before, now = (", ".join(f"{name} {version}" for name, version in each) for each in makers)
            near = f"numbers count as equal within {tolerance:g} of their size"
            notes.append(f"analysed with {before or 'unknown versions'}, checked with {now}: {near}")
        with tempfile.TemporaryDirectory() as folder:
            on_progress("comparing tables")
            tables = {"evaluations": evaluations, **study.analysis.tables()}
            made = records.save_tables(Path(folder), tables, study.analysis.documents())
            faults = _compared(directory, {path.name: path for path in made}, source, tolerance, compared)
            # Pictures of numbers in which a last digit differs have other bytes; `report` drew those that are kept.
            analysis = _loaded(Path(folder))
            if not faults:
                with suppress(StudyError):  # which it would refuse
                    records.read_source(directory)
                    analysis = _loaded(directory)
            on_progress("comparing figures and page")
            more, told = _drawn(directory, analysis, against, source, tolerance, compared)
            found, notes = [*found, *faults, *more], [*notes, *told]
    ordered = audit.in_order(found, study)
    accepted = tuple(each for each in ordered if each.severity == "doubt" and each.name in allow)
    return PageCheck(
        directory=str(directory),
        runs=len(study.runs),
        findings=tuple(each for each in ordered if each not in accepted),
        accepted=accepted,
        compared=dict(compared),
        notes=tuple(notes),
        not_covered=tuple(_not_covered(study, source)),
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
        record, wrong = recorded.get(name), dict[str, str]()
        if record is not None and record.digest:  # what is not as the run itself wrote it down when it was done
            if record.digest != records.digest_of_record(record):
                wrong = {records.MANIFEST: "its digest is that of another text"}
            # Of a file that another host wrote and rank 0 did not see yet, the run says nothing.
            wrong |= _unlike(record.files, {file: there[file] for file in record.files if file in there})
        for file, text in (wrong | _unlike(analysed.get(name, there), there)).items():
            yield Fault(name="run-changed", text=text, where=f"{name}/{file}", runs=(name,))


def _unlike(files: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    """Return what is wrong with each file whose digest is not the one that it had."""
    return {
        file: "is not there" if file not in there else "is new" if file not in files else "has another digest"
        for file in sorted({*files, *there})
        if files.get(file) != there.get(file)
    }


def _not_covered(study: Study, source: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what of this study no kept row tells, and what report did not keep by what it is known again."""
    names = sorted({name for each in study.recounts if each.totals for name in each.not_recounted})
    without = [each.run for each in study.recounts if not each.totals]
    bare = [name for name, each in study.records.items() if each.state() == "done" and not each.digest]
    few = [f"{plural(len(each), 'run')}: {', '.join(each[:3])}{', ...' * (len(each) > 3)}" for each in (bare, without)]
    reported, unkept, undrawn = not study.records, not source.get("run_files"), _look(source) is None
    cases = (
        (bare, f"changes before it was analysed of {few[0]}", "an older program wrote no digests of it"),
        (names, ", ".join(names), "no kept row tells it"),
        (without, f"totals of {few[1]}", "no step was seen, or they did not end well"),
        (reported, "how the numbers of the table were measured", "no run was recorded; the table is all there is"),
        (unkept, "runs changed after the analysis", "source.json holds no digests of them"),
        (undrawn, "pictures changed together with source.json", "another program drew them"),
    )
    return [*NOT_COVERED, *((what, why) for those, what, why in cases if those)]


def _loaded(directory: Path) -> Analysis:
    frames, documents = records.load_tables(directory, TABLES, DOCUMENTS)
    return Analysis(**{**frames, **documents})


def _drawn(
    directory: Path, analysis: Analysis, against: Callable[[Analysis], Any], source: Mapping[str, Any], *how: Any
) -> tuple[list[Fault], list[str]]:
    """Compare figures, tables for print and the page with those that are drawn of `analysis`."""
    reported = source.get("report") or {}
    found, notes = list[Fault](), list[str]()
    parts = [name for name in _PARTS if (directory / name).exists()]
    for name in sorted({*_PARTS} - {*parts}):
        if reported:
            where = name if "." in name else f"{name}/"
            found.append(Fault(name="file-missing", text="is not there", where=where))
        else:
            notes.append(f"{name} is not there; horovod-study report {shlex.quote(str(directory))} makes it")
    if not parts:
        return found, notes
    other = None
    try:
        other = against(analysis)
    except RecordError as error:  # the study that it was compared with is not there any more
        parts = [name for name in parts if name != "report.html"]
        found.append(Fault(name="file-missing", text=f"cannot be compared ({error})", where="report.html"))
    digests = dict.fromkeys(reported.get("pictures") or {})
    with tempfile.TemporaryDirectory() as folder:
        paths = write_report(analysis, Path(folder), look=_look(source) or TEXT, against=other)
        made = {**digests, **{path.relative_to(folder).as_posix(): path for path in paths}}
        there = {name: path for name, path in made.items() if name.partition("/")[0] not in {*_PARTS} - {*parts}}
        found += _compared(directory, there, source, *how)
    known = {*made, *(reported.get("files") or ())}
    for path in sorted(each for name in _PARTS[:2] for each in (directory / name).rglob("*") if each.is_file()):
        name = path.relative_to(directory).as_posix()
        if name not in known and not path.name.startswith("."):
            text = "belongs to no figure or table of this analysis"
            found.append(Fault(name="file-left-over", text=text, where=name))
    return found, notes


def _compared(
    directory: Path,
    made: Mapping[str, Path | None],
    source: Mapping[str, Any],
    tolerance: float,
    compared: Counter[str],
) -> list[Fault]:
    """Compare files below `directory` with those made again, by name; None for what only its digest is known of.

    Counts in `compared` what was.
    """
    digests, drawn_alike = (source.get("report") or {}).get("pictures") or {}, _look(source) is not None
    found: list[Fault] = []
    for name, path in made.items():
        place, suffix = directory / name, Path(name).suffix
        wanted = {digests[name]} if name in digests else set()
        try:
            content = read_bytes(place, again="", missing="is not there")
            if suffix in _PICTURES or path is None:
                refuse("", (not content, "is not there"), error=RecordError)
                wanted |= {records.digest_of(path.read_bytes())} if path is not None and drawn_alike else set()
                changed = wanted - {records.digest_of(content)}
                text = "is not the picture that report drew, or not what the runs give"
                found += [Fault(name="picture-changed", text=text, where=name)] * bool(changed)
                compared["pictures"] += bool(wanted)
                continue
            again = path.read_text(encoding="utf-8")
            faults, count = _contents(name, place, again, tolerance)
            page, text = suffix == ".html", content.decode("utf-8")
            alike = audit.same_text(text, again, tolerance) if not page else not wanted - {drawings_digest(text)}
            if not faults and content != path.read_bytes() and (drawn_alike or not alike):
                told = (
                    "its texts and numbers are right, its bytes (marks, blank lines, drawings) are not those of report"
                )
                faults = [Fault(name="picture-changed" if page else "cell-differs", text=told, where=name)]
        except RecordError as error:
            text = f"{error}".removeprefix(f"{shown(place)}: ").removesuffix("; ")
            faults, count = [Fault(name="file-missing", text=text, where=name)], 0
        found += faults
        if suffix == ".html":
            compared["page"] += count
        elif "/" not in name:
            compared.update(tables=1, cells=count)
        elif suffix == ".csv":
            compared["print_tables" if name.startswith("tables") else "figures"] += 1
    return found


def _contents(name: str, place: Path, again: str, tolerance: float) -> tuple[list[Fault], int]:
    """Compare a file with the text made again; return the findings, and how many parts were compared."""
    kept = read_text(place, again="", missing="is not there")
    if place.suffix == ".csv":
        return audit.compare_tables(name, kept, again, tolerance)
    parts_of = page_parts if place.suffix == ".html" else _numbered
    new = parts_of(again)
    return _texts(name, parts_of(kept), new, tolerance), len(new)


def _numbered(text: str) -> list[tuple[str, str]]:
    return [(f"line {number}", line) for number, line in enumerate(text.split("\n"), 1)]


_UNREAD = re.compile(r"(?s)<(style|script(?![^>]*json)|svg)\b.*?(?:</\1>|\Z)")  # of a page


def drawings_digest(page: str) -> str:
    """Return a digest of what `page_parts` does not read of a page: drawings, styles and scripts."""
    return records.digest_of("".join(hit[0] for hit in _UNREAD.finditer(page)).encode("utf-8"))


def page_parts(text: str) -> list[tuple[str, str]]:
    """Return the headings and texts that a reader sees of a page, in order; of drawings what pointing at them says."""

    def tips(hit: re.Match[str]) -> str:
        return "".join(re.findall(r"<title>[^<]*", hit[0]))

    # Places in a drawing depend on who draws.
    seen = _UNREAD.sub(tips, text)
    section, parts = "", []
    for tag, words in re.findall(r"(<[^>]*>?)([^<]*)", f"<>{seen}"):
        for each in (*re.findall(r'\b(?:aria-label|alt|title)="([^"]*)"', tag), words):
            if shown_text := " ".join(html.unescape(each).split()):
                section = shown_text if re.match("<h[1-3]", tag) else section
                parts.append((section, shown_text))
    return parts


def _texts(where: str, old: Sequence[Any], new: Sequence[Any], tolerance: float) -> list[Fault]:
    """Compare the texts of two files, each after its place; what stands for each other is found by difflib."""
    pairs: list[Any] = [*zip_longest(old, new)]
    if len(old) != len(new):
        blocks = SequenceMatcher(None, [text for _, text in old], [text for _, text in new]).get_opcodes()
        pairs = [pair for _, i, j, k, m in blocks for pair in zip_longest(old[i:j], new[k:m])]
    found = []
    for ours, theirs in pairs:
        kept, again = (each and each[1] for each in (ours, theirs))
        if kept is None or again is None or not audit.same_text(kept, again, tolerance):
            alike = [*takewhile(lambda pair: pair[0] == pair[1], zip(kept or "", again or "", strict=False))][24:]
            one, other = ("nothing" if each is None else repr(cut(each[len(alike) :], 70)) for each in (kept, again))
            text, place = f"says {one}; the runs give {other}", (ours or theirs)[0]
            found.append(Fault(name="cell-differs", text=text, where=where, column=place, kept=kept, again=again))
    return found


_COUNTED = {"rows": "step rows", "print_tables": "tables for print", "page": "texts of the page"}


def lines(found: PageCheck) -> list[str]:
    """Return the check for a terminal, at most WIDE columns: what was compared, the findings by kind, the verdict."""
    counts = {"runs": found.runs, **found.compared}
    what = ", ".join(f"{count:,} {_COUNTED.get(name, name)}" for name, count in counts.items() if count)
    shown = _wrap(f"{found.directory}: compared with the raw rows: {what}.")
    for title, findings in (("", found.findings), ("accepted: ", found.accepted)):
        for name in dict.fromkeys(each.name for each in findings):
            same, rule = [each for each in findings if each.name == name], RULES[name]
            shown += ["", *_wrap(f"{title}{rule.severity} {name}: {rule.title} ({len(same):,})")]
            shown += [line for each in same[:SHOWN] for line in _wrap(_line(each), indent="  ")]
            if len(same) > SHOWN:
                shown += _wrap(f"and {len(same) - SHOWN:,} more; --json lists all", indent="  ")
            shown += _wrap(f"-> {rule.remedy}", indent="  ")
    shown.append("")
    shown += [line for note in found.notes for line in _wrap(f"note: {note}")]
    shown += [line for what, why in found.not_covered for line in _wrap(f"not covered: {what} ({why})")]
    errors = sum(each.severity == "error" for each in found.findings)
    counts = {"error": errors, "doubt": len(found.findings) - errors}
    if found.findings:
        told = ", ".join(plural(count, word) for word, count in counts.items() if count)
        return shown + _wrap(f"{plural(len(found.findings), 'finding')} ({told}): the check failed.")
    return shown + _wrap("0 findings: every number that was compared is what the raw rows give.")


def _line(each: Fault) -> str:
    """Return one finding: where, which cell, what, which runs."""
    workers = "" if each.workers is None else plural(each.workers, "worker")
    nodes = "" if each.nodes in (None, 1) else plural(each.nodes or 0, "node")
    place = ", ".join(text for text in (each.series, workers, nodes, each.row) if text)
    where = f"{each.where} {each.column}".strip() + (f" ({place})" if place else "")
    more = f" and {len(each.runs) - 3} more" if len(each.runs) > 3 else ""
    return printable(f"{where}: {each.text}" + (f" [{', '.join(each.runs[:3])}{more}]" if each.runs else ""))


def _wrap(text: str, indent: str = "") -> list[str]:
    return wrapped(text, WIDE, indent, f"{indent}  ")
