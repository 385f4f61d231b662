"""A study as one file to publish: runs, tables and page, in a ZIP archive.

Unpacked anywhere, `horovod-study report DIR --check` makes every number again from the runs beside the tables, and
compares digests: files keep their places relative to each other. Equal studies give equal bytes.
"""

import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from horovod_study import __version__
from horovod_study.analysis.study import Analysis
from horovod_study.config.documents import open_file
from horovod_study.errors import RecordError, refuse
from horovod_study.files import PART, new_file, writing
from horovod_study.records import CHECKPOINTS
from horovod_study.report.page.paper import MAX_COMMANDS, reproduction
from horovod_study.report.page.sentences import answer
from horovod_study.text.numbers import THIN, amount
from horovod_study.text.words import listed, plural

_ATTEMPTS = ".attempts"  # the one hidden folder of a study that holds runs, which `report --check` looks at
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # the earliest time that a ZIP archive can name


class Archived(NamedTuple):
    """What is in an archive: path within it -> file, and the files that were left out."""

    name: str
    table: str  # path of the folder of the tables within the archive
    files: Mapping[str, Path]
    left_out: Sequence[Path]


def gather(runs: Path, directory: Path, source: Mapping[str, Any], *, study_file: Path | None = None) -> Archived:
    """Return what belongs to a study: everything in `runs` and `directory` but checkpoints, and what the page needs.

    `source` is records.read_source of `directory`: the networks and the other study that it names belong to it, too.
    """
    against = (source.get("report") or {}).get("against")
    others = [directory / each["path"] for each in source.get("benches") or ()]
    others += [directory / against["directory"]] if against else []
    places = [Path(os.path.abspath(each)) for each in (runs, directory, *others)]
    common = Path(os.path.commonpath([each if each.is_dir() else each.parent for each in places]))
    linked = [places[0] / name for name in source.get("run_files") or () if (places[0] / name).is_symlink()]
    there = dict.fromkeys(path for place in (*places, *linked) for path in _files_below(place))
    found = {each.relative_to(common).as_posix(): each for each in there if each.parent.name != CHECKPOINTS}
    found |= {"study.yaml": study_file} if study_file is not None else {}
    table = places[1].relative_to(common).as_posix()
    # Tables come last: where times of files are those of unpacking, they are not older than the runs.
    names = sorted(found, key=lambda name: (Path(name).is_relative_to(table) and table != ".", name))
    left_out = [each for each in there if each.parent.name == CHECKPOINTS]
    return Archived(places[0].name or "study", table, {name: found[name] for name in names}, left_out)


def _files_below(place: Path) -> Iterator[Path]:
    if not place.is_dir():
        yield place
        return
    for folder, below, names in os.walk(place):
        below[:] = sorted(name for name in below if not name.startswith(".") or name == _ATTEMPTS)
        for path in (Path(folder) / name for name in names if not name.startswith(".") and not name.endswith(PART)):
            if path.is_file() and not path.is_symlink():
                yield path


def write_archive(archived: Archived, path: Path, analysis: Analysis, source: Mapping[str, Any]) -> Path:
    """Write the archive with its README; return its path.

    Raises RecordError while a run of the study goes on, and where the archive cannot be written.
    """
    running = analysis.provenance["runs"].get("running", 0)
    told = f"{plural(running, 'run')} of this study still running; export it at its end"
    refuse("", (running, f"{archived.name}: {told}"), error=RecordError)
    when = _FIRST_DAY  # of all entries: when the last run began
    if started := analysis.provenance["started"]:
        when = max(_FIRST_DAY, datetime.fromisoformat(f"{started[-1]}").timetuple()[:6])
    readme = "\n".join([*_readme(archived, analysis, source), ""]).encode("utf-8", "backslashreplace")
    with writing(path, "choose a writable --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as stream, zipfile.ZipFile(stream, "w") as packed:
            for name in dict.fromkeys(("README.md", *archived.files)):
                entry = zipfile.ZipInfo(f"{archived.name}/{name}", when)
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
                entry.create_system = 3  # the same bytes wherever it is written
                with packed.open(entry, "w", force_zip64=True) as into:
                    if file := archived.files.get(name):
                        with open_file(file) as content:
                            shutil.copyfileobj(content, into)
                    else:
                        into.write(readme)
    return path


def summary(archived: Archived, analysis: Analysis) -> list[str]:
    """Return in lines what is in an archive, and how large it is."""
    size, left = (
        amount(sum(path.stat().st_size for path in files)) for files in (archived.files.values(), archived.left_out)
    )
    runs, files = plural(analysis.provenance["runs"]["total"], "run"), plural(len(archived.files), "file")
    told = f"left out: {plural(len(archived.left_out), 'checkpoint')}, {left}, which no number needs"
    return [f"{runs}, {files}, {size} before compression", *[told] * bool(archived.left_out)]


def _readme(archived: Archived, analysis: Analysis, source: Mapping[str, Any]) -> Iterator[str]:
    yield f"# Scaling of {listed([f'{name}' for name in analysis.provenance['studies']] or ['a training'])}"
    yield f"\n{' '.join(answer(analysis)).replace(THIN, ' ')}\n"
    yield from (f"{line[:1].upper()}{line[1:]}.\n" for line in summary(archived, analysis))
    yield f"""With horovod_study {__version__} (its part for analysis needs no PyTorch and no MPI):

    horovod-study report {archived.table} --check

makes every number of the tables, figures and page again from the rows of single steps, and compares digests. It names
doubts, too, and ends with 1 where there are any; `--allow NAME ...` accepts them. `{archived.table}/report.html` is the
page; `run.json` of each folder says of a run what was asked for and in effect; authors and licence are yours to add.
"""
    told, commands = reproduction(analysis, source)
    yield f"Made with {told}:\n" if told else "Commands:\n"
    commands = list(dict.fromkeys([*analysis.provenance["commands"], *commands]))
    yield from (f"    {command}" for command in commands[:MAX_COMMANDS])
