"""The folder of an analysis: its tables and documents, and in source.json what they were made of.

Files are known again by their digests, so that a table that was edited is not drawn.
"""

import io
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study import __version__
from horovod_study.config.documents import parse_json, read_bytes
from horovod_study.config.doors import conform
from horovod_study.errors import RecordError, refuse
from horovod_study.files import csv_of, unguarded, write_file, writing
from horovod_study.records.model import RUN_FILES, SOURCE_FORM, digest_of, own_digest, run_name
from horovod_study.records.reader import read_document, run_directories

if TYPE_CHECKING:  # the run wing records without pandas
    import pandas as pd

SOURCE = "source.json"
SOURCE_SCHEMA = 2
"""Of source.json: where the runs of an analysis are and how it was made, to make it again.

2: `files` and `run_files`, digests of what an analysis wrote and read, and `digest`, of the rest of source.json itself.
"""
_TABLE = "runs.csv"  # which every analysis has, and nothing but an analysis writes


def _written(content: bytes, name: str) -> dict[str, int | str]:
    """Return by what a file of an analysis is known again: its digest, and for people the lines of a table."""
    rows: dict[str, int | str] = {"rows": content.count(b"\n") - 1} if name.endswith(".csv") else {}
    return {**rows, "digest": digest_of(content)}


def _json(document: Any) -> str:
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_source(directory: Path, runs: Path | None = None, *, files: Iterable[Path] = (), **content: Any) -> Path:
    """Keep what an analysis was made of, or with `runs` None what was made of it, beside what is known already.

    `runs` is written relative to `directory`, so that both can move together; `files` are what the analysis consists
    of. Keys of `content`: those of SOURCE_FORM in model.py.
    """
    path = directory / SOURCE
    with writing(path, "choose a writable folder"):
        known = _known(directory)
        if runs is not None:
            known = {"schema": SOURCE_SCHEMA, "runs": Path(os.path.relpath(runs, directory)).as_posix()}
            known["files"] = {each.name: _written(each.read_bytes(), each.name) for each in files}
            known["left"] = earlier_report(directory)
        if known:  # else nobody knows what it was made of
            kept = {**known, **content}
            write_file(path, _json({**kept, "digest": own_digest(kept)}))
    return path


def earlier_report(directory: Path) -> list[str]:
    """Return the files of figures and tables that the last report of an analysis wrote, if its source.json is whole."""
    source = _known(directory)
    written = {*source.get("left", ()), *(source.get("report") or {}).get("files", ())}
    # What a file says is removed only where a report writes.
    return sorted(name for name in written if re.fullmatch(r"(?:figures|tables)/[\w-]+\.[a-z]+", name))


def is_whole(source: Mapping[str, Any]) -> bool:
    """Return whether a source.json says what was written to it; of schema 1, which has no digests, nobody knows."""
    return source.get("digest") == own_digest(source)


def read_source(directory: Path, *, edited: bool = False) -> dict[str, Any]:
    """Return what `write_source` kept.

    RecordError where it is missing, damaged, of a newer program, or, unless `edited` is allowed, not `is_whole`.
    """
    path = directory / SOURCE
    again = "make the analysis again with horovod-study report, or name its runs with --runs RUNS"
    missing = f"no such file, so that nobody knows where the runs are; {again}"
    content = read_document(path, SOURCE_SCHEMA, again=again, missing=missing)
    conform(content, SOURCE_FORM, str(path), again=again)
    root = (directory / content["runs"]).resolve() == Path(directory.resolve().anchor)
    refuse("", (root, f"{path}: runs is the whole file system; {again}"), error=RecordError)
    if not (edited or is_whole(content)):
        raise RecordError(f"{path}: is not what report wrote; report again")
    return content


def _known(directory: Path) -> dict[str, Any]:
    """Return what `read_source` does, and nothing where it raises: nobody draws what an analysis did not leave so."""
    with suppress(RecordError):
        return read_source(directory)
    return {}


def holds_tables(directory: Path) -> bool:
    """Return whether a directory is that of an analysis."""
    return any((directory / name).is_file() for name in (_TABLE, SOURCE))


def _newer(directory: Path, root: Path) -> list[Path]:
    """Return the runs at or below `root` that were written after the analysis in `directory`; or `root`, a table."""
    made = (directory / _TABLE).stat().st_mtime_ns
    files = ((run, file) for run in run_directories(root) for pattern in RUN_FILES for file in run.glob(pattern))
    newer = [run for run, file in ([(root, root)] if root.is_file() else files) if file.stat().st_mtime_ns > made]
    return list(dict.fromkeys(newer))


def is_older(directory: Path, root: Path) -> bool:
    """Return whether an analysis of the runs at or below `root` is missing, or older than the runs or this package."""
    if not (directory / _TABLE).is_file():
        return True
    log = not root.exists() and re.search(r"@[\dx]+$", root.name)  # with its number of workers
    there = set() if root.is_file() or log else {run_name(each, root) for each in run_directories(root)}
    if not there and not root.is_file():  # other files than runs, of which nobody here knows
        return True
    source = _known(directory)
    made_with = (source.get("versions") or {}).get("horovod_study", __version__)
    same = source and made_with == __version__ and there.issuperset(source.get("run_files") or ())
    return not same or bool(_newer(directory, root))


def analysis_options(directory: Path, root: Path) -> dict[str, Any]:
    """Return how the runs at or below `root` were analysed before: targets, benches, precision, which of them (only).

    Empty where nothing says so. What was left out then stays out, what was written since comes in.
    """
    source = _known(directory)
    if not source:
        return {}
    only, benches = source.get("only"), [Path(each["named"]) for each in source.get("benches") or ()]
    return {
        **{name: source.get(name) or () for name in ("targets", "planned")},
        **{name: source.get(name) for name in ("commands", "precision", "columns")},
        "benches": benches if benches and all(path.is_file() for path in benches) else None,
        "only": only if only is None else sorted({*only, *(each.name for each in _newer(directory, root))}),
    }


def save_tables(directory: Path, tables: Mapping[str, "pd.DataFrame"], documents: Mapping[str, Any]) -> list[Path]:
    """Write NAME.csv and NAME.json files, byte-identical for equal content; return the paths."""
    texts = {f"{name}.csv": csv_of(table) for name, table in tables.items()}
    texts |= {f"{name}.json": _json(document) for name, document in documents.items()}
    with writing(directory, "choose a writable folder"):
        directory.mkdir(parents=True, exist_ok=True)
        return [write_file(directory / name, text) for name, text in texts.items()]


def load_tables(
    directory: Path, tables: Sequence[str], documents: Sequence[str]
) -> tuple[dict[str, "pd.DataFrame"], dict[str, Any]]:
    """Read back what `save_tables` wrote.

    RecordError where a file is missing, damaged, or, as far as source.json says, not the one that an analysis wrote;
    that holds for every file of the analysis, wanted or not.
    """
    known = read_source(directory).get("files", {}) if (directory / SOURCE).exists() else {}
    again = f"run `horovod-study report RUNS --out {shlex.quote(str(directory))}`"
    frames: dict[str, pd.DataFrame] = {}
    loaded: dict[str, Any] = {}
    wanted = [*(f"{name}.csv" for name in tables), *(f"{name}.json" for name in documents)]
    for file in dict.fromkeys([*wanted, *known]):
        path = directory / file
        content = read_bytes(path, again=f"{again} again", missing=f"no such file; {again} first")
        found, was = _written(content, file), known.get(file, {})
        try:
            if was.get("digest") not in (None, found["digest"]):
                rows = [each.get("rows") for each in (found, was)]
                what = f" ({rows[0]:,} rows instead of {rows[1]:,})" if rows[0] != rows[1] else ""
                why = f"is not what report wrote{what}; {again} again, or ask report {directory} --check why"
                raise RecordError(f"{path}: {why}")
            if file in wanted and path.suffix == ".csv":
                frames[path.stem] = _frame(content)
            elif file in wanted:
                loaded[path.stem] = parse_json(content, source=str(path), again=f"{again} again")
        except ValueError as error:
            raise RecordError(f"{path}: is damaged ({error}); {again} again") from None
    return frames, loaded


def _frame(content: bytes) -> "pd.DataFrame":
    import pandas as pd

    # Before pandas 3 numbers are read nearly as they were written, unless asked for.
    exact: dict[str, Any] = {"float_precision": "round_trip"} if int(pd.__version__.partition(".")[0]) < 3 else {}
    # Only empty cells are missing: a run named "NA" or "None" is a name.
    frame: pd.DataFrame = pd.read_csv(io.BytesIO(content), keep_default_na=False, na_values=[""], **exact)
    texts = [column for column in frame.columns if frame[column].dtype.kind not in "biufM"]
    return frame.assign(**{column: frame[column].map(unguarded) for column in texts}).rename(columns=unguarded)
