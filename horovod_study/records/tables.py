"""Tables: the runs of a study, one row per run and one per evaluation; and the folder of an analysis, with source.json,
which says what its tables and documents were made of: by digests, so that a table that was edited is not drawn.
"""

import io
import json
import math
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study import __version__
from horovod_study.config.documents import parse_json, read_bytes
from horovod_study.config.doors import conform
from horovod_study.config.workload import packaged
from horovod_study.errors import RecordError, refuse
from horovod_study.files import csv_of, unguarded, write_file, writing
from horovod_study.records import model, reader
from horovod_study.records.model import COMMAND, EPOCH_COLUMNS, LAP_COLUMNS, RunRecord
from horovod_study.records.reader import RecordedRun, counted_record, epoch_rows, found_runs, recorded_run
from horovod_study.text.numbers import amount

if TYPE_CHECKING:  # the run wing records without pandas
    import pandas as pd

OWN = packaged()
"""Whose options are columns of the run table, and whose model a record needs not name."""


_TOTALS = (
    *("samples_per_s", "window_s", "steps", "excluded_steps", "step_s_median", "step_s_p90"),
    *LAP_COLUMNS,
    *("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "epochs", "wall_s", "cpu_s", "rss_mb_max", "pss_mb_max"),
)
COMMANDS = "runs/s"
"""The unit of the rate of whole commands."""
OF_EVERY_RUN = (
    *("backend", "transport", "workers", "nodes", "batch", "global_batch", "train_samples", "precision", "reduction"),
)
"""What the record says of every run, whatever it trained; of what was asked for where the run ended too early."""
_BEFORE_OPTIONS = {
    name: OWN.options[name].default for name in OWN.distinguishing if name not in (*OF_EVERY_RUN, "horovod_defaults")
}
"""How runs recorded before an option existed were done: as its default does."""
_ENVIRONMENT = ("cpu_model", "cores", "os", "python", "torch", "horovod", "mpi", "package")


def recorded_runs(
    roots: Sequence[Path], only: Collection[str] | None = None, *, left_out: dict[str, str] | None = None
) -> "tuple[pd.DataFrame, Iterator[RecordedRun]]":
    """Return the run table of run directories, or folders of them, and each of these runs, read when its turn comes.

    A run that is below two roots is there once. Rows of a run are large, hence one at a time. `only`: the names of
    the run directories that count; `left_out` as for `found_runs`.
    """
    import pandas as pd

    found = found_runs(*roots, only=only, left_out=left_out)
    rows: list[dict[str, Any]] = []
    for directory, name, kept in found:
        if model.is_command(kept):  # in which no step was seen: nothing is known of its training
            told = {"backend": COMMAND, "transport": "none", "precision": "auto", "parameters": None}
            told |= {each: kept.effective.get(each) for each in ("workers", "nodes")}
            told |= {"model": kept.effective.get("model") or kept.study}
            record = replace(kept, effective={**kept.effective, **dict.fromkeys(OF_EVERY_RUN), **told})
        else:
            record = counted_record(directory, kept)
        requested, effective, totals = record.requested, record.effective, record.totals
        # What is counted for each rank is summed.
        counted: dict[str, Any] = {name: totals.get(name) for name in _TOTALS}
        counted |= {name: sum(each) for name, each in counted.items() if isinstance(each, list)}
        if None not in (counted["wall_s"], waited_s := (totals.get("turns") or {}).get("waited_s")):
            counted["wall_s"] -= waited_s  # for its turns, in which others had the machine
        of_every = {each: effective.get(each, requested.get(each)) for each in OF_EVERY_RUN}
        if of_every["backend"] == "distributed":  # which were two libraries once
            of_every["backend"] = "ddp"
        budgets = ((each, requested.get(each)) for each in OWN.budgets)
        ranks = effective.get("ranks") or ()
        rows.append(
            {
                "run": name,
                "study": record.study,
                "partition": record.partition,
                "status": record.state(),
                "reason": record.reason,
                **of_every,
                "apart": _apart(record),
                "calls": _calls(record),
                "rank_threads": max((rank.get("threads") or 0 for rank in ranks), default=0) or None,
                "horovod_defaults": bool(requested.get("horovod_defaults", False)),
                **_trained(record),
                # In words such as `10 epochs`; empty when unknown.
                "budget": " or ".join(OWN.options[each].say(told) for each, told in budgets if told is not None),
                "seed": requested.get("seed"),
                "floor_mse": effective.get("floor_mse"),
                "repeat": record.repeat,
                **counted,
                **_energy(record),
                **_sensors(record),
                "device": effective.get("device"),
                "sync_s_median": (totals.get("lap_medians_s") or {}).get("sync"),
                "per_node": model.per_node(ranks),
                "rate_from": str(totals.get("rate_from") or ""),
                "path": " and ".join(effective.get("path") or ()),
                "rows_lost": model.rows_lost(record),
                "excluded_by": model.timed_from(record)[1],
                "warmup_steps": model.declared_warmup(record),
                "steady_doubt": str((totals.get("steady") or {}).get("doubt") or ""),
                "host": record.host,
                **{each: record.environment.get(each) for each in _ENVIRONMENT},
                "started": record.started,
                "finished": record.finished,
                # In the order of the ranks; that of rank 0 where the record does not say.
                "hosts": ", ".join(dict.fromkeys(str(rank.get("host", record.host)) for rank in ranks)) or record.host,
                "launcher": effective.get("launcher"),
                "command": _command(record.environment.get("command")),
                "typed": _command(requested.get("typed")),
                **{each: str(requested.get(each) or "") for each in ("typed_in", "declared")},
            }
        )
    table = pd.DataFrame(rows)
    for column in (*_TOTALS, "energy_j", "energy_per_sample_j", "sync_s_median", "floor_mse", "warmup_steps"):
        table[column] = pd.to_numeric(table[column]).astype("float64")
    for _, commands in table[table["backend"] == COMMAND].groupby(["study", "model"]):
        if commands["rate_from"].map(rate_unit).nunique() > 1:  # what is said in different words is not compared
            whole = pd.DataFrame({"samples_per_s": 1 / commands["wall_s"], "rate_from": "whole command"})
            table.loc[commands.index, list(whole)] = whole
    return table, (recorded_run(directory, name=name, record=record) for directory, name, record in found)


def run_table(
    *roots: Path, only: Collection[str] | None = None, left_out: dict[str, str] | None = None
) -> "pd.DataFrame":
    """Return one row per run at or below `roots`; docs/metrics.md explains the columns. Unknown numbers are NaN.

    `only`: the names of the run directories that count, such as those of the present cells of a study; `left_out` as
    for `found_runs`.
    """
    return recorded_runs(roots, only, left_out=left_out)[0]


def _sensors(record: RunRecord) -> dict[str, float]:
    """Return what the totals of a run say of its hosts: means over ranks or GPUs, power in all and per GPU."""
    hosts = ((record.totals.get("system") or {}).get("hosts") or {}).values()
    found = {}
    for column, name, kind, many in (
        ("cpu_percent_per_rank", "ranks_cpu_percent", "", True),
        ("rss_mb_per_rank", "rss_mb_max", "", True),
        ("gpu_percent", "gpu_percent", "", True),
        ("gpu_memory_mb", "gpu_memory_mb_max", "", True),
        ("gpu_power_w", "power_w", "gpu ", False),
        ("gpu_power_w_per_gpu", "power_w", "gpu ", True),
        ("package_power_w", "power_w", "package ", False),
    ):
        read = [item for host in hosts for item in (host.get(name) or {}).items()]
        values = [value for part, value in read if part.startswith(kind) and value is not None]
        found[column] = math.fsum(values) / (len(values) if many else 1) if values else math.nan
    return found


def rate_unit(rate_from: str) -> str:
    """Return the unit of a rate by the record's words for where it is from; that of whole commands is runs/s."""
    if not rate_from or rate_from.startswith("whole command"):
        return COMMANDS
    unit = " ".join(re.sub(r"^(\d+ x )?[\d.e+-]+ |\d+| per GPU$", "", rate_from).split())
    return unit if "/" in unit or "per" in unit else f"{unit}, per second"


def _apart(record: RunRecord) -> str:
    """Return why the workers of a run did not train one model together: processes | none | parted; else, and where it
    is not known, ""."""
    effective, totals = record.effective, record.totals
    if (effective.get("workers") or 1) < 2:
        return ""
    if (effective.get("processes") or 1) > 1:
        return "processes"
    if effective.get("averaging") == "none":
        return "none"
    sharded = effective.get("sharded") or str(effective.get("model")).startswith("FSDP")
    # A run that was closed by its parent, and one of an older recorder, may lack digests for another reason.
    equal_once = effective.get("averaging") and effective.get("initial_parameter_sha256") and not effective.get("ended")
    unlike = "parameter_sha256" in totals and totals["parameter_sha256"] is None and not sharded
    return "parted" if effective.get("parted") is True or (equal_once and unlike) else ""


def _calls(record: RunRecord) -> str:
    """Return how a script averages tensor by tensor, more than 4 calls a step of 2 MB at most; "" where it does not."""
    calls = record.effective.get("calls") or {}
    if (record.effective.get("workers") or 1) == 1 or (calls.get("per_step") or 0) <= 4:
        return ""
    names = " and ".join(calls.get("names") or {"collective": 0})
    size = f", each of at most {amount(calls['bytes_max'])}" if calls.get("bytes_max") else ""
    return f"{calls['per_step']:.0f} calls of {names} in a step{size}" * ((calls.get("bytes_median") or 0) <= 2e6)


def _command(words: Any) -> str:
    """Return the command line of a rank as it can be typed; a text stays as it is."""
    return shlex.join(str(word) for word in words) if isinstance(words, list | tuple) else str(words or "")


def _energy(record: RunRecord) -> dict[str, Any]:
    """Return the joules of the timed window, in all and per sample, of which kinds of devices, and what to doubt.

    A kind of device (gpu, package) counts where each of them on each node has a value: half of them would look like
    half of the energy.
    """
    energy, whole = record.totals.get("energy") or {}, dict[str, list[float]]()
    total_j, per_sample_j = energy.get("total_j"), energy.get("per_sample_j")
    doubts = [energy["doubt"]] if energy.get("doubt") else []
    devices = [each for each in energy.get("per_device") or () if "part" in each and "host" in each]
    for kind in sorted({each["part"].split()[0] for each in devices}):
        own = [each for each in devices if each["part"].split()[0] == kind]
        joules = [each["integral_j"] if each["counter_j"] is None else each["counter_j"] for each in own]
        hosts = {each["host"] for each, value in zip(own, joules, strict=True) if value is not None}
        if len(hosts) >= (record.effective.get("nodes") or 1) and None not in joules:
            whole[kind] = joules
        elif hosts:
            doubts.append(f"{kind}: not all of them were read ({energy.get('reason') or 'no reason recorded'})")
    if devices and total_j:
        counted_j = math.fsum(value for each in whole.values() for value in each)
        per_sample_j = None if not whole or per_sample_j is None else per_sample_j * counted_j / total_j
        total_j = counted_j if whole else None
    return {
        "energy_j": total_j,
        "energy_per_sample_j": per_sample_j,
        "energy_of": " and ".join(whole) if total_j is not None else "",
        "energy_doubt": "; ".join(doubts),
    }


def _trained(record: RunRecord) -> dict[str, Any]:
    """Return what was trained, `model`, and with which options of training.

    Of another script's model that is the name and size, because widths differ under one name, and the options of its
    own in which its runs may differ; of those of training it has what it told.
    """
    requested, name = record.requested, record.effective.get("model")
    if name is None:
        return {"model": OWN.model, **{each: requested.get(each, before) for each, before in _BEFORE_OPTIONS.items()}}
    told = {**requested, "optimizer": record.effective.get("optimizer")}
    sized = name if model.is_command(record) else f"{name}-{record.effective['parameters']}"
    own = (f"{each} {value}" for each, value in (requested.get("options") or {}).items())
    return {"model": " ".join([sized, *own]), **{each: told.get(each) for each in _BEFORE_OPTIONS}}


def epoch_table(*roots: Path, only: Collection[str] | None = None) -> "pd.DataFrame":
    """Return one row per evaluation of the runs at or below `roots`: `run` (as in `run_table`) and EPOCH_COLUMNS.

    A run that was killed while it wrote keeps its complete rows; a run without evaluations has none. A loss that was
    not a number is NaN. `only`: as for `run_table`.
    """
    import pandas as pd

    # One table, and not one of each run: a thousand small tables take minutes.
    found = found_runs(*roots, only=only)
    rows = [{"run": name, **row} for at, name, _ in found for row in epoch_rows(at, EPOCH_COLUMNS)]
    table = pd.DataFrame(rows, columns=["run", *EPOCH_COLUMNS], dtype=object)
    return table.astype(dict.fromkeys(EPOCH_COLUMNS, "float64"))


SOURCE = "source.json"
SOURCE_SCHEMA = 2
"""Of source.json: where the runs of an analysis are and how it was made, to make it again.

2: `files` and `run_files`, digests of what an analysis wrote and read, and `digest`, of the rest of source.json itself.
"""
_TABLE = "runs.csv"  # which every analysis has, and nothing but an analysis writes


def _written(content: bytes, name: str) -> dict[str, int | str]:
    """Return by what a file of an analysis is known again: its digest, and for people the lines of a table."""
    rows: dict[str, int | str] = {"rows": content.count(b"\n") - 1} if name.endswith(".csv") else {}
    return {**rows, "digest": model.digest_of(content)}


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
            write_file(path, _json({**kept, "digest": model.own_digest(kept)}))
    return path


def earlier_report(directory: Path) -> list[str]:
    """Return the files of figures and tables that the last report of an analysis wrote, if its source.json is whole."""
    source = _known(directory)
    written = {*source.get("left", ()), *(source.get("report") or {}).get("files", ())}
    # What a file says is removed only where a report writes.
    return sorted(name for name in written if re.fullmatch(r"(?:figures|tables)/[\w-]+\.[a-z]+", name))


def is_whole(source: Mapping[str, Any]) -> bool:
    """Return whether a source.json says what was written to it; of schema 1, which has no digests, nobody knows."""
    return source.get("digest") == model.own_digest(source)


def read_source(directory: Path, *, edited: bool = False) -> dict[str, Any]:
    """Return what `write_source` kept.

    RecordError where it is missing, damaged, of a newer program, or, unless `edited` is allowed, not `is_whole`.
    """
    path = directory / SOURCE
    again = "make the analysis again with horovod-study report, or name its runs with --runs RUNS"
    missing = f"no such file, so that nobody knows where the runs are; {again}"
    content = reader.read_document(path, SOURCE_SCHEMA, again=again, missing=missing)
    conform(content, model.SOURCE_FORM, str(path), again=again)
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
    there = ((each, kind) for each in reader.run_directories(root) for kind in model.RUN_FILES)
    files = ((run, file) for run, kind in there for file in run.glob(kind))
    newer = [run for run, file in ([(root, root)] if root.is_file() else files) if file.stat().st_mtime_ns > made]
    return list(dict.fromkeys(newer))


def is_older(directory: Path, root: Path) -> bool:
    """Return whether an analysis of the runs at or below `root` is missing, or older than the runs or this package."""
    if not (directory / _TABLE).is_file():
        return True
    log = not root.exists() and re.search(r"@[\dx]+$", root.name)  # with its number of workers
    there = set() if root.is_file() or log else {model.run_name(each, root) for each in reader.run_directories(root)}
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
    import pandas as pd

    # Before pandas 3 numbers are read nearly as they were written, unless asked for.
    exact: dict[str, Any] = {"float_precision": "round_trip"} if int(pd.__version__.partition(".")[0]) < 3 else {}
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
                # Only empty cells are missing: a run named "NA" or "None" is a name.
                frame = pd.read_csv(io.BytesIO(content), keep_default_na=False, na_values=[""], **exact)
                texts = [name for name in frame.columns if frame[name].dtype.kind not in "biufM"]
                frame = frame.assign(**{name: frame[name].map(unguarded) for name in texts})
                frames[path.stem] = frame.rename(columns=unguarded)
            elif file in wanted:
                loaded[path.stem] = parse_json(content, source=str(path), again=f"{again} again")
        except ValueError as error:
            raise RecordError(f"{path}: is damaged ({error}); {again} again") from None
    return frames, loaded
