"""A study as one file to publish: runs, tables, page, digests and how all of it was made, in a ZIP archive.

Unpacked anywhere, `horovod-study report DIR --check` makes every number again from the runs beside the tables: files
keep their places relative to each other. Equal studies give equal bytes.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from horovod_study import __version__
from horovod_study.analysis.study import Analysis
from horovod_study.documents import open_file, shown
from horovod_study.errors import RecordError
from horovod_study.files import PART, new_file, writing
from horovod_study.records import CHECKPOINTS
from horovod_study.report.kit.typeset import to_markdown
from horovod_study.report.page.paper import APPENDIX, MAX_COMMANDS, reproduction
from horovod_study.report.page.sentences import answer
from horovod_study.report.page.tables import tables
from horovod_study.text.numbers import THIN
from horovod_study.text.words import listed, plural

ATTEMPTS = ".attempts"
"""The one hidden folder of a study that holds runs: those that were set aside, which `report --check` looks at."""
STEPS = "steps-*.arrows"
README, _SUMS, METADATA = "README.md", "SHA256SUMS", "metadata.json"
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a ZIP archive can name."""
BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class _Archived:
    """What is in an archive: path within it -> file, and the files that were left out."""

    name: str
    table: str  # path of the folder of the tables within the archive
    files: Mapping[str, Path]
    left_out: Sequence[Path]

    def size_b(self, pattern: str = "*") -> int:
        """Return the bytes of the files whose names match, before compression."""
        return sum(path.stat().st_size for path in self.files.values() if path.match(pattern))


def gather(runs: Path, directory: Path, source: Mapping[str, Any], *, study_file: Path | None = None) -> _Archived:
    """Return what belongs to a study: everything in `runs` and `directory` but checkpoints, and what the page needs.

    `source` is records.read_source of `directory`: the networks and the other study that it names belong to it, too.
    """
    against = (source.get("report") or {}).get("against")
    others = [directory / each["path"] for each in source.get("benches") or ()]
    others += [directory / against["directory"]] if against else []
    places = [Path(os.path.abspath(each)) for each in (runs, directory, *others)]
    common = Path(os.path.commonpath([each if each.is_dir() else each.parent for each in places]))
    found: dict[str, Path] = {}
    left_out: list[Path] = []
    linked = [places[0] / name for name in source.get("run_files") or () if (places[0] / name).is_symlink()]
    for place in (*places, *linked):
        for path in _files_below(place):
            kept = path.parent.name != CHECKPOINTS
            if kept:
                found[path.relative_to(common).as_posix()] = path
            elif path not in left_out:
                left_out.append(path)
    if study_file is not None:
        found["study.yaml"] = study_file
    table = places[1].relative_to(common).as_posix()
    # Tables come last: where times of files are those of unpacking, they are not older than the runs.
    names = sorted(found, key=lambda name: (Path(name).is_relative_to(table) and table != ".", name))
    return _Archived(
        name=places[0].name or "study", table=table, files={name: found[name] for name in names}, left_out=left_out
    )


def _files_below(place: Path) -> Iterator[Path]:
    if not place.is_dir():
        yield place
        return
    for folder, below, names in os.walk(place):
        below[:] = sorted(name for name in below if not name.startswith(".") or name == ATTEMPTS)
        for path in (Path(folder) / name for name in names if not name.startswith(".") and not name.endswith(PART)):
            if path.is_file() and not path.is_symlink():
                yield path


def write_archive(archived: _Archived, path: Path, analysis: Analysis, source: Mapping[str, Any]) -> Path:
    """Write the archive with its README, metadata and SHA-256 of every file; return its path.

    Raises RecordError while a run of the study goes on, and where the archive cannot be written.
    """
    running = analysis.provenance["runs"].get("running", 0)
    if running:
        raise RecordError(
            f"{archived.name}: {plural(running, 'run')} of this study still running; export it at its end"
        )
    texts = {README: "\n".join(_readme(archived, analysis, source)) + "\n", METADATA: _metadata(analysis)}
    when = _when(analysis)
    with writing(path, "choose a writable --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as stream, zipfile.ZipFile(stream, "w") as packed:
            sums = {name: _pack_text(packed, _entry(archived, name, when), text) for name, text in texts.items()}
            for name, file in archived.files.items():
                sums[name] = _pack(packed, _entry(archived, name, when), file)
            lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
            _pack_text(packed, _entry(archived, _SUMS, when), lines)
    return path


def _entry(archived: _Archived, name: str, when: tuple[int, int, int, int, int, int]) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(f"{archived.name}/{name}", when)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o100644 << 16
    entry.create_system = 3  # the same bytes wherever it is written
    return entry


def _pack_text(packed: zipfile.ZipFile, entry: zipfile.ZipInfo, text: str) -> str:
    content = text.encode("utf-8", "backslashreplace")
    packed.writestr(entry, content)
    return hashlib.sha256(content).hexdigest()


def _pack(packed: zipfile.ZipFile, entry: zipfile.ZipInfo, file: Path) -> str:
    """Copy one file block by block, and return its SHA-256."""
    digest = hashlib.sha256()
    entry.file_size = file.stat().st_size
    try:
        with open_file(file) as stream, packed.open(entry, "w") as into:
            while block := stream.read(BLOCK):
                digest.update(block)
                into.write(block)
    except RuntimeError:  # it grew beyond what its head has room for
        raise RecordError(f"{shown(file)}: grew while it was read; export the study when its runs have ended") from None
    return digest.hexdigest()


def _when(analysis: Analysis) -> tuple[int, int, int, int, int, int]:
    """Return the time that all entries have: when the last run began."""
    try:
        last = datetime.fromisoformat(f"{analysis.provenance['started'][-1]}")
    except (IndexError, ValueError):
        return _FIRST_DAY
    return max(_FIRST_DAY, (last.year, last.month, last.day, last.hour, last.minute, last.second))


def size(count_b: int) -> str:
    """Return a number of bytes in kB, MB or GB (powers of ten), such as "3.4 MB"."""
    unit, name = next((each for each in ((1e9, "GB"), (1e6, "MB")) if count_b >= each[0]), (1e3, "kB"))
    return f"{count_b / unit:,.1f} {name}"


def summary(archived: _Archived, analysis: Analysis) -> list[str]:
    """Return in lines what is in an archive, and how large it is."""
    runs, steps_b = analysis.provenance["runs"]["total"], archived.size_b(STEPS)
    lines = [
        f"{plural(runs, 'run')}, {plural(len(archived.files), 'file')}, {size(archived.size_b())} before compression,"
        f" {size(steps_b)} of it the rows of single steps"
    ]
    if archived.left_out:
        left_b = sum(path.stat().st_size for path in archived.left_out)
        lines.append(f"left out: {plural(len(archived.left_out), 'checkpoint')}, {size(left_b)}, which no number needs")
    return lines


def _readme(archived: _Archived, analysis: Analysis, source: Mapping[str, Any]) -> Iterable[str]:
    yield f"# {_title(analysis)}"
    yield f"\n{_answer(analysis)}\n"
    yield from (f"{line[:1].upper()}{line[1:]}.\n" for line in summary(archived, analysis))
    yield f"""## Check it

With horovod_study {__version__} (its part for analysis needs no PyTorch and no MPI):

    sha256sum --check --quiet {_SUMS}
    horovod-study report {archived.table} --check

The second command makes every number of the tables, figures and page again from the rows of single steps. It names
doubts, too, and ends with 1 where there are any; `--allow NAME ...` accepts them.

## What is in it

| place | what |
|---|---|
| `{archived.table}/report.html` | the page: open it in a browser; it needs no network |
| `{archived.table}/` | tables (CSV, JSON), figures, tables for print; `source.json`: how they were made |
| `run.json` of each folder | one run: what was asked for, what was in effect, versions, machine, totals, digests |
| `steps-*.arrows`, `system-*.arrows` | its steps, rank by rank, and samples of the machine (Apache Arrow streams) |
| `{_SUMS}`, `{METADATA}` | digests of all files; title, description and keywords for a repository such as Zenodo |

## How it was made
"""
    told, commands = reproduction(analysis, source)
    if told:
        yield f"Analysed with {told}."
    commands = list(dict.fromkeys([*analysis.provenance["commands"], *commands]))
    yield f"Commands of the study and its runs{', such as' if len(commands) > MAX_COMMANDS else ''}:\n"
    yield from (f"    {command}" for command in commands[:MAX_COMMANDS])
    for table in (each for each in tables(analysis) if each.name in APPENDIX):
        yield f"\n{to_markdown(table)}"
    yield f"\nAuthors and licence are not known to the program: add them to `{METADATA}`, or where you publish it."


def _title(analysis: Analysis) -> str:
    return f"Scaling of {listed([f'{name}' for name in analysis.provenance['studies']] or ['a training'])}"


def _answer(analysis: Analysis) -> str:
    return " ".join(answer(analysis)).replace(THIN, " ")


def _metadata(analysis: Analysis) -> str:
    """Return the metadata of a deposit in the form that Zenodo takes, without what only people know."""
    told = {
        "title": _title(analysis),
        "upload_type": "dataset",
        "description": f"{_answer(analysis)} Runs, tables and report; every number can be made again from the runs.",
        "keywords": ["data-parallel training", "scaling", "performance measurement"],
        "notes": f"Made with horovod_study {__version__}.",
        "creators": [],
    }
    return json.dumps({"metadata": told}, indent=1, ensure_ascii=False) + "\n"
