"""Recorded runs for others: Chrome traces, TensorBoard, Weights & Biases offline, MLflow, Extra-P, ZIP, a thesis.

Each tracker's own package writes its files; nothing is sent anywhere. Equal studies give equal bytes. Archive and paper
stand alone: the first is checked by `report --check` wherever it is unpacked, the second compiles.
"""

import errno
import io
import json
import logging
import math
import os
import re
import shutil
import sys
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from horovod_study import __version__, records
from horovod_study.analysis.series.exchange import history
from horovod_study.analysis.steps.timeline import events
from horovod_study.analysis.study import Analysis
from horovod_study.config.documents import open_file, read_bytes
from horovod_study.errors import ConfigError, RecordError, refuse
from horovod_study.files import PART, append_text, new_file, not_written, result_folder, unfinished, write_file, writing
from horovod_study.report.figures.catalogue import drawings
from horovod_study.report.grammar import Figure
from horovod_study.report.kit.files import TEX, caption_command, latex, page_file, to_latex
from horovod_study.report.page.tables import answer, learned, sentences, tables, told_doubts
from horovod_study.text.numbers import THIN, amount
from horovod_study.text.words import listed, plural

if TYPE_CHECKING:
    import pandas as pd

_WRITABLE = "choose a writable --out"
_ROOM_BYTES = 65_536  # where these find no room afterwards, what was written may be cut: W&B writes 32 KiB at a time
_ATTEMPTS = ".attempts"  # the one hidden folder of a study that holds runs, which `report --check` looks at
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # the earliest time that a ZIP archive can name


def rows_between(directory: Path, steps: tuple[int, int] | None = None) -> "dict[int, pd.DataFrame]":
    """Return the rows of the steps from steps[0] to before steps[1] as {rank: frame}, also of an unfinished run."""
    first, last = steps or (0, sys.maxsize)
    found = {rank: records.read_steps(directory, rank).to_pandas() for rank in records.step_ranks(directory)}
    found = {rank: rows[rows["step"].between(first, last - 1)].reset_index(drop=True) for rank, rows in found.items()}
    if not any(map(len, found.values())):
        asked = f" from {first} to before {last}" if steps else ""
        raise RecordError(f"{directory}: no rank recorded steps{asked}; name a run with step rows, or other steps")
    return found


def write_trace(directory: Path, out: Path | None, steps: tuple[int, int] | None) -> Path:
    """Write the steps of a run as JSON for ui.perfetto.dev or chrome://tracing; return its path."""
    record, rows, path = records.read_run(directory), rows_between(directory, steps), out or directory / "trace.json"
    marks, first = records.epoch_rows(directory), records.timed_from(record)[0]
    found = events(rows, records.hosts_of(record, rows), evaluations=marks, warmup_steps=first)
    about: dict[str, Any] = {"run": str(directory), "study": record.study, "steps": steps}
    about["clock"] = "time since the first step of the run; there the ranks of all hosts waited at a barrier"
    content = {"traceEvents": found, "displayTimeUnit": "ms", "metadata": about}
    with writing(path, _WRITABLE):
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_file(path, json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n")


def write_extra_p(documents: Mapping[tuple[int, ...], Mapping[str, Any]], directory: Path) -> list[Path]:
    """Write documents of analysis/series/exchange.py as files for Extra-P, named by worker counts; return their paths.

    Raises RecordError when they cannot be written.
    """
    paths: list[Path] = []
    with writing(directory, _WRITABLE):
        directory.mkdir(parents=True, exist_ok=True)
        for counts, document in documents.items():
            name = f"workers-{counts[0]}-{counts[-1]}"
            taken = sum(path.stem == name or path.stem.startswith(f"{name}-part-") for path in paths)
            paths.append(directory / f"{name}{f'-part-{taken + 1}' if taken else ''}.json")
            write_file(paths[-1], json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    return paths


def _run_of(directory: Path, name: str, record: records.RunRecord) -> SimpleNamespace:
    """Return one run as trackers want it: `settings` such as `requested.batch`; `rows` of tag, step, seconds since 1970
    and value, the numbers of the timed window at step 0."""
    groups = {group: getattr(record, group) for group in ("requested", "effective", "environment")}
    flat = {f"{group}.{name}": value for group, told in groups.items() for name, value in told.items()}
    flat = {name: value for name, value in flat.items() if isinstance(value, str | int | float | bool | None)}
    began, ended = (datetime.fromisoformat(at).timestamp() if at else None for at in (record.started, record.finished))
    began = began or 0.0
    numbers = {name: value for name, value in record.totals.items() if type(value) in (int, float)}
    curves = history(rows_between(directory), records.epoch_rows(directory)).itertuples(index=False)
    rows = [(tag, int(step), began + at_s, value) for tag, step, at_s, value in curves]
    rows += [(f"totals/{name}", 0, began, float(value)) for name, value in numbers.items() if math.isfinite(value)]
    told = {"name": name, "study": record.study, "state": record.state(), "rows": rows}
    return SimpleNamespace(**told, began_s=began, ended_s=ended, settings={"status": record.state(), **flat})


def write_tracker(tracker: str, runs: Sequence[tuple[Path, str, records.RunRecord]], directory: Path) -> list[Path]:
    """Write `runs` (of records.found_runs) as files of `tracker` (tensorboard, wandb, mlflow) into a new `directory`.

    Returns what was written: for each run its folder (tensorboard, wandb), or the one database (mlflow).
    Raises ConfigError if the tracker's package is not installed, RecordError if the folder is not empty or cannot be
    written.
    """
    taken = directory.exists() and (not directory.is_dir() or any(directory.iterdir()))
    twice = f"{directory}: is not empty; the same run twice would look like two, choose another --out"
    refuse("", (taken, twice), error=RecordError)
    write = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}[tracker]
    made = [_run_of(*run) for run in runs]
    os.environ.update({"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_CONFIGURE_LOGGING": "false"})
    logging.disable(logging.WARNING)  # MLflow tells of its database and of what is deprecated in it
    try:
        with writing(directory, _WRITABLE), warnings.catch_warnings():
            directory.mkdir(parents=True, exist_ok=True)
            warnings.simplefilter("ignore")
            written = write(made, directory)
            with unfinished(directory / "room") as probe:  # W&B's own process says nothing of a disk that was full
                append_text(probe, " " * _ROOM_BYTES)
        return written
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"export to {tracker} needs the package {error.name}, which is not installed; run `make extras`, or "
            "pip install horovod_study[export]"
        ) from None
    except Exception as error:
        if "disk is full" not in str(error):  # SQLite's words, by way of MLflow
            raise
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise RecordError(not_written(directory, full, _WRITABLE)) from None
    finally:
        logging.disable(logging.NOTSET)


def _tensorboard(runs: Sequence[SimpleNamespace], directory: Path) -> list[Path]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import summary_v2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for run in runs:
        writer = EventFileWriter(str(directory / run.name))
        # Settings and totals become a row of TensorBoard's table of hyper-parameters.
        settings = {name: "" if value is None else value for name, value in run.settings.items()}
        hparams = summary_v2.hparams_pb(settings, trial_id=run.name, start_time_secs=run.began_s)
        writer.add_event(Event(wall_time=run.began_s, summary=hparams))
        for tag, step, at_s, value in run.rows:
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(wall_time=at_s, step=step, summary=summary))
        writer.close()
    return [directory / run.name for run in runs]


def _wandb(runs: Sequence[SimpleNamespace], directory: Path) -> list[Path]:
    import wandb

    paths = []
    # Offline, and nothing of this process or machine is looked at: it is not the one that trained.
    off = {"console": "off", "silent": True, "disable_git": True, "disable_code": True}
    off |= {"mode": "offline", "x_disable_meta": True, "x_disable_stats": True}
    for run in runs:
        settings = wandb.Settings(root_dir=str(directory), **off)
        tracked = wandb.init(project=run.study, name=run.name, config=dict(run.settings), settings=settings)
        paths.append(Path(tracked.dir).parent)
        for step in sorted({row[1] for row in run.rows}):
            own = [row for row in run.rows if row[1] == step]
            tracked.log({"_timestamp": max(row[2] for row in own), **{row[0]: row[3] for row in own}}, step=step)
        tracked.finish(exit_code=0 if run.state == "done" else 1)
    wandb.teardown()  # finish() may return before the process that writes the files has written the last records
    return paths


def _mlflow(runs: Sequence[SimpleNamespace], directory: Path) -> list[Path]:
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    # MLflow's folders of plain files are in maintenance mode; a file of SQLite is what it recommends instead.
    database, artifacts = directory.resolve() / "mlflow.db", (directory / "artifacts").resolve().as_uri()
    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    studies = dict.fromkeys(run.study for run in runs)
    experiments = {name: client.create_experiment(name, artifact_location=artifacts) for name in studies}
    for run in runs:
        began_ms, ended_ms = round(run.began_s * 1e3), None if run.ended_s is None else round(run.ended_s * 1e3)
        tracked = client.create_run(experiments[run.study], start_time=began_ms, run_name=run.name).info.run_id
        metrics = [Metric(tag, value, round(at_s * 1e3), step) for tag, step, at_s, value in run.rows]
        params = [Param(name, str(value)[:6000]) for name, value in run.settings.items()]
        for part in range(1 + max(len(metrics) // 900, len(params) // 100)):  # MLflow takes 1,000 in one call
            own = metrics[900 * part : 900 * (part + 1)], params[100 * part : 100 * (part + 1)]
            client.log_batch(tracked, metrics=own[0], params=own[1])
        status = {"done": "FINISHED", "running": "RUNNING"}.get(run.state, "FAILED")
        client.set_terminated(tracked, status, end_time=ended_ms)
    return [database]


def write_archive(
    directory: Path, analysis: Analysis, path: Path | None = None, *, study_file: Path | None = None
) -> tuple[Path, int, list[str]]:
    """Write what belongs to a study, with a README, as a ZIP; return its path, what is left out, its size in words.

    All runs and the tables in `directory`, without checkpoints; the networks and the other study that the page needs.
    RecordError while a run of the study goes on, and where the archive cannot be written.
    """
    source, counts = records.read_source(directory), analysis.provenance["runs"]
    runs, going = (directory / source["runs"]).resolve(), counts.get("running", 0)
    told = f"{plural(going, 'run')} of this study still running; export it at its end"
    refuse("", (going, f"{runs.name}: {told}"), error=RecordError)
    files, left_out, table = _belongs(directory, source)
    files |= {"study.yaml": study_file} if study_file is not None else {}
    sizes = [amount(sum(each.stat().st_size for each in own)) for own in (files.values(), left_out)]
    lines = [f"{plural(counts['total'], 'run')}, {plural(len(files), 'file')}, {sizes[0]} before compression"]
    lines += [f"left out: {plural(len(left_out), 'checkpoint')}, {sizes[1]}, which no number needs"] * bool(left_out)
    made_with, commands = reproduction(analysis, source)
    commands = list(dict.fromkeys([*analysis.provenance["commands"], *commands]))[:MAX_COMMANDS]
    readme = (
        page_file("templates/readme.md")
        .format(
            studies=listed([f"{each}" for each in analysis.provenance["studies"]] or ["a training"]),
            answer=" ".join(answer(analysis)).replace(THIN, " "),
            size="; ".join(lines),
            version=__version__,
            table=table,
            made_with=made_with or "the commands",
            commands="\n    ".join(commands),
        )
        .encode("utf-8", "backslashreplace")
    )
    began = [datetime.fromisoformat(f"{each}").timetuple()[:6] for each in analysis.provenance["started"][-1:]]
    path = path or runs.with_name(f"{runs.name}.zip")
    with writing(path, _WRITABLE):
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as stream, zipfile.ZipFile(stream, "w") as packed:
            # Tables come last: where times of files are those of unpacking, they are not older than the runs.
            for within in ("README.md", *sorted(files, key=lambda file: (file.startswith(f"{table}/"), file))):
                entry = zipfile.ZipInfo(f"{runs.name or 'study'}/{within}", max([_FIRST_DAY, *began]))
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
                content = io.BytesIO(readme) if within == "README.md" else open_file(files[within])
                with packed.open(entry, "w", force_zip64=True) as into, content as read:
                    shutil.copyfileobj(read, into)
    return path, len(left_out), lines


def _belongs(directory: Path, source: Mapping[str, Any]) -> tuple[dict[str, Path], list[Path], str]:
    """Return the files of a study by their names in an archive, the checkpoints left out, the name of its tables."""
    against = (source.get("report") or {}).get("against")
    needed = [source["runs"], ".", *(each["path"] for each in source.get("benches") or ())]
    needed += [against["directory"]] if against else []
    places = [Path(os.path.abspath(directory / each)) for each in needed]
    common = Path(os.path.commonpath([each if each.is_dir() else each.parent for each in places]))
    places += [places[0] / run for run in source.get("run_files") or () if (places[0] / run).is_symlink()]
    there = dict.fromkeys(path for place in places for path in ([place] if place.is_file() else place.rglob("*")))
    files, left_out = dict[str, Path](), list[Path]()
    for each in (each for each in there if each.is_file() and not each.is_symlink()):
        within = each.relative_to(common).as_posix()
        hidden = any(part.startswith(".") and part != _ATTEMPTS for part in within.split("/"))
        if each.parent.name == records.CHECKPOINTS:
            left_out.append(each)
        elif not hidden and not within.endswith(PART):
            files[within] = each
    return files, left_out, places[1].relative_to(common).as_posix()


FIGURES = ("speedup", "efficiency", "breakdown", "boundary", "transport_ratio", "forecast")
RESULTS = ("points", "boundary", "transports", "laws", "forecast", "targets")
APPENDIX = ("measurement", "environment", "failed")
"""Figures and tables that are taken where the study has them, in this order."""

_LIBRARIES = {"horovod": "Horovod~\\cite{sergeev2018horovod}", "ddp": "PyTorch DDP~\\cite{li2020pytorch}"}


def write_paper(analysis: Analysis, directory: Path, source: Mapping[str, Any]) -> list[Path]:
    """Write the folder `paper` of a report in `directory`, and return the paths, the section first.

    The figures are those that the report has drawn. `source` is what is known of where the tables come from
    (`records.read_source`): digests of the files of each run, versions.
    Raises RecordError when the folder cannot be written.
    """
    drawn = {each.name: each for each in drawings(analysis)}
    figures = [drawn[name] for name in FIGURES if name in drawn]
    made = {table.name: table for table in tables(analysis)}
    results, appendix = ([name for name in names if name in made] for names in (RESULTS, APPENDIX))
    said = {**_texts(analysis, figures, source), "results": results, "appendix": appendix}
    section = TEX.get_template("section.tex.j2").render(said)
    version = (source.get("versions") or {}).get("horovod_study", "")
    works = page_file("templates/references.bib").replace("VERSION", version).rstrip().split("\n\n")
    cited = set(re.findall(r"\\cite\{(\w+)\}", section))
    texts = {
        "section.tex": section,
        "appendix.tex": TEX.get_template("appendix.tex.j2").render(said),
        "references.bib": "\n\n".join(work for work in works if re.split(r"[{,]", work)[1] in cited) + "\n",
        "paper.tex": page_file("templates/paper.tex"),
        **{f"tables/{name}.tex": to_latex(made[name]) for name in (*results, *appendix)},
    }
    folder = directory / "paper"
    paths = [folder / name for name in texts]
    with writing(folder, "choose a writable folder"):
        for part in (folder, folder / "figures", folder / "tables"):
            result_folder(part)
        for path, text in zip(paths, texts.values(), strict=True):
            write_file(path, text)
        for each in figures:
            paths.append(folder / "figures" / f"{each.name}.pdf")
            pdf = directory / "figures" / f"{each.name}.pdf"
            write_file(paths[-1], read_bytes(pdf, again="make the report again with horovod-study report"))
    return paths


def _texts(analysis: Analysis, figures: Sequence[Figure], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return what section and appendix say, as LaTeX, for their templates."""
    told, (made_with, commands) = analysis.provenance, reproduction(analysis, source)
    of = ("studies", "partitions")
    names = {each: latex(listed([f"{name}" for name in told[each]] or ["the training"])) for each in of}
    threats = [each.text for each in told_doubts(analysis)] or ["The analysis found nothing to doubt."]
    if "hosts" in analysis.runs and analysis.runs["hosts"].dropna().nunique() == 1:
        threats.append("All runs used the same host: others of its kind may differ.")
    if len(analysis.forecast):
        threats.append("Forecasts reach beyond the measured worker counts, and assume that nothing new limits there.")
    libraries = [words for name, words in _LIBRARIES.items() if name in set(analysis.runs["backend"])]
    return {
        **names,
        "answer": latex(" ".join(answer(analysis))),
        "counts": told["runs"],
        "libraries": listed(libraries) if libraries else "",
        "measured": bool(told["measurement"]),
        "baseline": told["baseline"],
        "laws": {"amdahl", "gustafson"} & {name for fit in analysis.fits["series"].values() for name in fit["laws"]},
        "paragraphs": [latex(" ".join(each)) for each in (*sentences(analysis), learned(analysis)) if each],
        "figures": [
            {"name": each.name, "command": caption_command(f"fig{each.name}"), "caption": latex(each.caption)}
            | {"title": latex(each.title)}
            for each in figures
        ],
        "threats": list(map(latex, threats)),
        "made_with": latex(made_with),
        "commands": list(map(latex, commands)),
        "most": MAX_COMMANDS,
    }


MAX_COMMANDS = 8


def reproduction(analysis: Analysis, source: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return with which versions an analysis was made, in words, and the commands that its runs were started with."""
    versions, runs = [f"{name} {version}" for name, version in (source.get("versions") or {}).items()], analysis.runs
    commands = {f"{text}" for text in runs["command"].dropna() if f"{text}"} if "command" in runs else ()
    return listed(versions) if versions else "", sorted(commands)
