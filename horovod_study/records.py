"""The run directory: the only file that knows its format, and the only place where the two wings meet.

    runs/<study>/<key>/
      run.json               what was asked for, what ran, where, and how it ended; written before the first step
      steps-00000.arrows     one row per step and rank: an Arrow stream, readable to its last batch after a crash
      epochs.csv             one row per evaluation: losses and errors against epochs, samples and seconds
      bench.json             with --measure-sync: what the synchronisation is made of, see measure/synchronisation.py
      checkpoints/           the newest two states of the run, see workload/checkpoint.py

History of the schema number in run.json:
    1   first form
    2   `attempts` lists every start of the run, because a run can be stopped and resumed; new status `stopped`.
        A program that knows only 1 would count a stopped run as damaged, hence the new number; 1 is still read.
"""

import csv
import json
import math
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study.config import LAPS, OPTIONS, RUN_FIELDS
from horovod_study.errors import RecordError

if TYPE_CHECKING:  # the run wing records without pandas
    import pandas as pd
    import pyarrow as pa

SCHEMA = 2
MANIFEST = "run.json"
BENCH = "bench.json"
BENCH_SCHEMA = 1
CHECKPOINTS = "checkpoints"
STATUSES = ("running", "done", "failed", "stopped")
EPOCH_COLUMNS = (
    "epoch",
    "steps",
    "samples",
    "train_s",
    "wall_s",
    "train_mse",
    "test_mse",
    "g0_rmse_mpa",
    "a_rmse",
    "lr",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """The content of run.json: one training run, described so that it can be repeated and doubted."""

    study: str
    key: str
    repeat: int
    partition: str
    status: str  # running | done | failed | stopped (by a signal, with a checkpoint, to be resumed)
    started: str  # ISO 8601, UTC; of the first attempt
    host: str  # of rank 0, as is pid; of the latest attempt
    pid: int
    requested: Mapping[str, Any]
    effective: Mapping[str, Any]  # read back from the live objects, see train.py
    environment: Mapping[str, Any]
    reason: str = ""
    finished: str | None = None
    totals: Mapping[str, Any] = field(default_factory=dict)  # of the timed window; empty until done
    attempts: Sequence[Mapping[str, Any]] = ()  # every start of the run, in order; see _attempt
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise RecordError(f"run record: status is {self.status!r}; allowed: {', '.join(STATUSES)}")
        object.__setattr__(self, "attempts", tuple(self.attempts) or (self._attempt(self.started, from_step=0),))

    def _attempt(self, began: str, *, from_step: int) -> dict[str, Any]:
        return {
            "started": began,
            "finished": self.finished,
            "status": self.status,
            "reason": self.reason,
            "from_step": from_step,
            "host": self.host,
            "pid": self.pid,
        }

    def state(self) -> str:
        """Return the status as it is now: a run that says running but whose process is gone is incomplete.

        A run that says running on another host is believed: processes there cannot be seen from here.
        """
        if self.status != "running":
            return self.status
        if self.finished is not None:  # interrupted: ended by the study runner, neither done nor failed
            return "incomplete"
        if self.host == platform.node():
            return "running" if process_alive(self.pid) else "incomplete"
        return "running"


def process_alive(pid: int) -> bool:
    """Return whether a process of this host still runs; one that has ended and waits for its parent does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:  # a process that has ended keeps its number until its parent takes notice, in some containers for ever
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return True


# ---------------------------------------------------------------------------------------------------- writing


def atomic_write(path: Path, text: str) -> None:
    """Write `text` so that a reader sees the old file or the new one, never a part."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def create_run(directory: Path, record: RunRecord) -> None:
    """Make the run directory and write its first run.json; an existing run is never overwritten."""
    manifest = directory / MANIFEST
    if manifest.exists():
        state = read_run(directory).state()
        raise RecordError(
            f"{directory}: already holds a run ({state}); nothing was overwritten, choose another --out or move it away"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        atomic_write(manifest, _to_json(record))
    except OSError as error:
        raise RecordError(
            f"{directory}: cannot be written ({error.strerror or error}); choose a writable --out"
        ) from None


def resume_run(directory: Path, record: RunRecord, *, from_step: int, began: str) -> RunRecord:
    """Replace run.json by that of a run that goes on from `from_step` and return it.

    `record` describes the new attempt (its host, processes and environment) and holds the `started` and `attempts` of
    the run; of the attempt before, what its own record could not say is filled in: it was killed.
    """
    *before, last = record.attempts
    if last["status"] == "running":
        last = {**last, "status": "incomplete", "reason": last["reason"] or "its process was gone"}
    begun = replace(record, status="running", finished=None, totals={}, reason="")
    going_on = replace(begun, attempts=(*before, last, begun._attempt(began, from_step=from_step)))
    try:
        atomic_write(directory / MANIFEST, _to_json(going_on))
    except OSError as error:
        raise RecordError(f"{directory}: cannot be written ({error.strerror or error}); make it writable") from None
    return going_on


def silent_s(directory: Path) -> float:
    """Return for how long nothing was written into a run directory, by the clock of its file system.

    A run writes at least every few seconds, except during a long evaluation or while its first batch is made.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".now.") as probe:
            present = os.fstat(probe.fileno()).st_mtime
            written = [path.stat().st_mtime for path in directory.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise RecordError(f"{directory}: cannot be written ({error.strerror or error}); make it writable") from None
    return present - max(written, default=present)


def finish_run(
    directory: Path, record: RunRecord, *, status: str, finished: str, totals: Mapping[str, Any], reason: str = ""
) -> RunRecord:
    """Replace run.json by its final form and return it."""
    final = replace(record, status=status, finished=finished, totals=totals, reason=reason)
    *before, last = record.attempts
    last = {**last, "finished": finished, "status": status, "reason": reason}
    final = replace(final, attempts=(*before, last))
    try:
        atomic_write(directory / MANIFEST, _to_json(final))
    except OSError as error:
        raise RecordError(
            f"{directory}: the end of the run cannot be written ({error.strerror or error}); free space and run again"
        ) from None
    return final


def _to_json(record: RunRecord) -> str:
    # A run that diverged has totals that are no numbers; JSON has none of those, and unknown is null.
    return json.dumps(finite(asdict(record)), indent=1, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """Return plain values with None for what is no finite number."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def step_schema() -> "pa.Schema":
    """Return the columns of a step row: 68 bytes and a loss."""
    import pyarrow as pa

    return pa.schema(
        [("step", pa.int32()), ("epoch", pa.int32())]
        + [(f"{lap}_s", pa.float64()) for lap in (*LAPS, "residual", "step")]
        + [("samples", pa.int32()), ("loss", pa.float32())]
    )


class StepWriter:
    """Appends step rows of one rank to its Arrow stream; what was appended survives a crash of the process."""

    def __init__(self, directory: Path, rank: int, *, resume_at: int | None = None) -> None:
        """Begin the stream of `rank`; with `resume_at`, keep the rows of the steps before that one and go on after.

        The kept rows are written to a new file that takes the place of the old one whole, so that a crash in between
        leaves the old one. RecordError when a row before `resume_at` is missing.
        """
        import pyarrow as pa

        self._schema = step_schema()
        self._path = directory / f"steps-{rank:05d}.arrows"
        self.kept: pa.Table | None = None  # rows of earlier attempts
        if resume_at is not None:
            self._resume(directory, rank, resume_at)
            return
        try:
            self._file = open(self._path, "xb")
        except OSError as error:
            raise RecordError(f"{self._path}: cannot be created ({error.strerror}); choose a writable --out") from None
        self._writer = pa.ipc.new_stream(self._file, self._schema)

    def _resume(self, directory: Path, rank: int, step: int) -> None:
        import pyarrow as pa

        rows = read_steps(directory, rank)
        kept = rows.slice(0, step)
        steps = kept.column("step").to_numpy()
        if len(steps) < step or steps[-1:].tolist() not in ([], [step - 1]):
            raise RecordError(
                f"{self._path}: holds rows up to step {rows.num_rows}, but the checkpoint is at step {step}; "
                "rows were lost, start the run anew with another --out"
            )
        temporary = ""
        try:
            descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=f".{self._path.name}.")
            self._file = os.fdopen(descriptor, "wb")
            self._writer = pa.ipc.new_stream(self._file, self._schema)
            if step:
                self._writer.write_table(kept)
            self.sync()
            os.chmod(temporary, 0o644)
            os.replace(temporary, self._path)
            self.kept = kept
        except (OSError, RecordError) as error:
            if temporary:
                Path(temporary).unlink(missing_ok=True)
            text = getattr(error, "strerror", None) or error
            raise RecordError(
                f"{self._path}: cannot be cut to step {step} ({text}); free space, resume again"
            ) from None

    def sync(self) -> None:
        """Return when what was appended is on the disk, not only on its way there."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RecordError(
                f"{self._path}: step rows cannot be written ({error.strerror}); free space and run again"
            ) from None

    def append(self, columns: Mapping[str, Any]) -> None:
        """Append rows given as columns of equal length; a column of None is stored as null."""
        import pyarrow as pa

        rows = len(columns["step"])
        arrays = [
            pa.nulls(rows, each.type) if columns[each.name] is None else pa.array(columns[each.name], each.type)
            for each in self._schema
        ]
        try:
            self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
            self._file.flush()
        except OSError as error:
            raise RecordError(
                f"{self._path}: step rows cannot be written ({error.strerror}); free space and run again"
            ) from None

    def close(self) -> None:
        """End the stream; the file is closed even if its last rows find no room."""
        try:
            self._writer.close()
            self._file.close()
        except OSError as error:
            raise RecordError(
                f"{self._path}: the last step rows cannot be written ({error.strerror}); free space and run again"
            ) from None
        finally:
            with suppress(OSError):
                self._file.close()


def append_epoch(directory: Path, row: Mapping[str, Any]) -> None:
    """Append one row to epochs.csv, with the header when it is the first."""
    path = directory / "epochs.csv"
    new = not path.exists()
    try:
        with path.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, EPOCH_COLUMNS, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(row)
    except OSError as error:
        raise RecordError(f"{path}: cannot be written ({error.strerror}); free space and run again") from None


def write_synchronisation(directory: Path, found: Mapping[str, Any]) -> None:
    """Write bench.json: what measure/synchronisation.py found in this job."""
    path = directory / BENCH
    try:
        atomic_write(path, json.dumps({"schema": BENCH_SCHEMA, "synchronisation": found}, allow_nan=False) + "\n")
    except OSError as error:
        raise RecordError(f"{path}: cannot be written ({error.strerror or error}); free space and run again") from None


def cut_epochs(directory: Path, steps: int) -> None:
    """Remove the rows of epochs.csv after step `steps`, as if the run had been there when it was stopped."""
    path = directory / "epochs.csv"
    if not path.exists():
        return
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        head, rows = lines[:1], [line for line in lines[1:] if line.endswith("\n")]  # a torn last row is dropped
        column = EPOCH_COLUMNS.index("steps")
        atomic_write(path, "".join(head + [row for row in rows if int(row.split(",")[column]) <= steps]))
    except (OSError, ValueError, IndexError) as error:
        text = getattr(error, "strerror", None) or error
        raise RecordError(f"{path}: cannot be cut to step {steps} ({text}); start the run anew") from None


# ---------------------------------------------------------------------------------------------------- reading


def epoch_rows(directory: Path) -> list[dict[str, float]]:
    """Return the evaluations of a run so far, also while it is running: a row that is not whole yet is left out."""
    try:
        text = (directory / "epochs.csv").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise RecordError(f"{directory / 'epochs.csv'}: cannot be read ({error}); move the directory away") from None
    rows = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
    try:
        return [{name: float(value or "nan") for name, value in row.items()} for row in rows]
    except (TypeError, ValueError) as error:
        raise RecordError(
            f"{directory / 'epochs.csv'}: holds a damaged row ({error}); move the directory away"
        ) from None


def read_run(directory: Path) -> RunRecord:
    """Read run.json; a damaged or foreign one is a RecordError naming the file and the field."""
    path = directory / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}); name a run directory") from None
    except ValueError as error:
        raise RecordError(f"{path}: is not valid JSON ({error}); move the directory away") from None
    if not isinstance(content, dict) or not isinstance(content.get("schema"), int):
        raise RecordError(f"{path}: has no schema number; it was not written by horovod_study, move it away")
    if content["schema"] > SCHEMA:
        raise RecordError(
            f"{path}: has schema {content['schema']}, newer than this program's {SCHEMA}; update horovod_study"
        )
    try:
        # In memory every record has the newest form: one of schema 1 had one attempt, which its other fields describe.
        return RunRecord(**{**content, "schema": SCHEMA})
    except TypeError as error:
        raise RecordError(f"{path}: a field is missing or unknown ({error}); move the directory away") from None


def run_directories(root: Path) -> Iterator[Path]:
    """Yield the run directories at or below `root`, in the order of their paths."""
    if not root.is_dir():
        raise RecordError(f"{root}: no such directory; name the directory that holds the runs")
    for manifest in sorted(root.rglob(MANIFEST)):
        # Below a folder such as .attempts lies what was tried before: kept, but not counted.
        if not any(part.startswith(".") for part in manifest.relative_to(root).parts):
            yield manifest.parent


def read_steps(directory: Path, rank: int) -> "pa.Table":
    """Return the step rows of one rank, up to the last whole batch if the run was killed."""
    import pyarrow as pa

    path = directory / f"steps-{rank:05d}.arrows"
    batches: list[pa.RecordBatch] = []
    if path.exists() and path.stat().st_size == 0:
        return step_schema().empty_table()  # the process died before the first batch
    try:
        with pa.OSFile(str(path)) as stream, pa.ipc.open_stream(stream) as reader:
            schema = reader.schema
            try:
                for batch in reader:
                    batches.append(batch)
            except (pa.ArrowInvalid, OSError):
                pass  # the last batch is torn: the process died while it was written
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file; rank {rank} recorded no steps") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise RecordError(f"{path}: holds no readable step rows ({error}); move the directory away") from None
    return pa.Table.from_batches(batches, schema=schema)


def read_synchronisation(directory: Path) -> dict[str, Any]:
    """Return what `write_synchronisation` wrote; RecordError where it is missing, damaged or of a newer program."""
    path = directory / BENCH
    again = "record the run again with --measure-sync"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(
            f"{directory}: has no {BENCH}, so what its synchronisation is made of was not measured; {again}"
        ) from None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}); make it readable") from None
    except ValueError as error:
        raise RecordError(f"{path}: is not valid JSON ({error}); {again}") from None
    if not isinstance(content, dict) or not isinstance(content.get("schema"), int):
        raise RecordError(f"{path}: has no schema number; it was not written by horovod_study, {again}")
    if content["schema"] > BENCH_SCHEMA:
        raise RecordError(
            f"{path}: has schema {content['schema']}, newer than this program's {BENCH_SCHEMA}; update horovod_study"
        )
    found = content.get("synchronisation")
    if not isinstance(found, dict):
        raise RecordError(f"{path}: holds no synchronisation; {again}")
    for name in ("transport", "reduction", "workers", "gradient_bytes", "block", "clock", "why_not_through"):
        if name not in found:
            raise RecordError(f"{path}: synchronisation: {name} is missing; {again}")
    if not isinstance(found["block"], int) or found["block"] < 1:
        raise RecordError(f"{path}: synchronisation: block is {found['block']!r}, not a count of steps; {again}")
    for name in ("floor_s", "pack_s", "through_s"):
        values = found.get(name)
        if values is None and name != "floor_s" and found["why_not_through"]:
            continue
        if not isinstance(values, list) or len(values) < 2:
            raise RecordError(f"{path}: synchronisation: {name} must be a list of at least two times; {again}")
        if not all(isinstance(each, int | float) and math.isfinite(each) for each in values):
            raise RecordError(f"{path}: synchronisation: {name} holds what is no finite number; {again}")
    return found


def synchronised_run(directory: Path) -> "tuple[RunRecord, list[dict[str, Any]], dict[str, Any] | None]":
    """Return a finished run for analysis/attribution.py: its record, for each rank the columns of its timed steps, and
    bench.json (None for a worker alone, who synchronises with nobody).

    Raises RecordError for a run that is not done, that has fewer step rows than ranks, or without bench.json.
    """
    record = read_run(directory)
    if record.state() != "done":
        raise RecordError(
            f"{directory}: the run is {record.state()}, and only finished runs can be taken apart; run it again"
        )
    workers = int(record.effective["workers"])
    bench = read_synchronisation(directory) if workers > 1 else None
    tables = [read_steps(directory, rank) for rank in range(workers)]
    columns = [{name: table.column(name).to_numpy() for name in table.column_names} for table in tables]
    timed = [rows["step"] >= record.effective["warmup_steps"] for rows in columns]
    if len({int(each.sum()) for each in timed}) > 1:
        raise RecordError(f"{directory}: its ranks recorded different numbers of steps; run it again")
    return record, [{n: v[kept] for n, v in rows.items()} for rows, kept in zip(columns, timed, strict=True)], bench


def step_ranks(directory: Path) -> list[int]:
    """Return the ranks that recorded steps."""
    return sorted(int(path.stem.split("-")[1]) for path in directory.glob("steps-*.arrows"))


def checkpoint_paths(directory: Path) -> list[Path]:
    """Return the checkpoint files of a run, newest first; whether they are intact is not looked at."""
    found = [path for path in (directory / CHECKPOINTS).glob("step-*.pt") if path.stem[5:].isdecimal()]
    return sorted(found, key=checkpoint_step, reverse=True)


def checkpoint_step(path: Path) -> int:
    """Return the number of steps that a checkpoint file says, by its name, to have been made."""
    return int(path.stem[5:])


_TOTALS = (
    "samples_per_s",
    "window_s",
    "steps",
    "excluded_steps",
    "step_s_median",
    "step_s_p90",
    *(f"{lap}_s" for lap in (*LAPS, "residual", "step")),
    "train_mse",
    "test_mse",
    "g0_rmse_mpa",
    "a_rmse",
    "epochs",
    "rss_mb_max",
    "pss_mb_max",
)
_EFFECTIVE = (
    "backend",
    "transport",
    "workers",
    "nodes",
    "batch",
    "global_batch",
    "train_samples",
    "precision",
    "reduction",
)
_OPTIONS = tuple(name for name in OPTIONS if name not in (*_EFFECTIVE, "horovod_defaults"))
_BEFORE_OPTIONS = {name: RUN_FIELDS[name].default for name in _OPTIONS}
"""How runs recorded before an option existed were done: as its default does."""

_ENVIRONMENT = ("cpu_model", "cores", "os", "python", "torch", "horovod", "mpi", "package")


def run_table(root: Path) -> "pd.DataFrame":
    """Return one row per run at or below `root`; docs/metrics.md explains the columns. Unknown numbers are NaN."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for directory in run_directories(root):
        record = read_run(directory)
        rows.append(
            {
                "run": run_name(directory, root),
                "study": record.study,
                "partition": record.partition,
                "status": record.state(),
                "reason": record.reason,
                **{name: record.effective.get(name, record.requested.get(name)) for name in _EFFECTIVE},
                "horovod_defaults": bool(record.requested.get("horovod_defaults", False)),
                **{name: record.requested.get(name, before) for name, before in _BEFORE_OPTIONS.items()},
                "budget": _budget(record.requested),
                "seed": record.requested.get("seed"),
                "floor_mse": record.effective.get("floor_mse"),
                "repeat": record.repeat,
                **{name: record.totals.get(name) for name in _TOTALS},
                "host": record.host,
                **{name: record.environment.get(name) for name in _ENVIRONMENT},
                "started": record.started,
            }
        )
    if not rows:
        raise RecordError(f"{root}: holds no runs; run a study first (horovod-study run experiments/laptop.yaml)")
    table = pd.DataFrame(rows)
    for column in (*_TOTALS, "floor_mse"):
        table[column] = pd.to_numeric(table[column]).astype("float64")
    return table


def _budget(requested: Mapping[str, Any]) -> str:
    """Return how long a run was to train, in words such as `10 epochs`; empty when unknown."""
    units = {"epochs": "epochs", "seconds": "s", "steps": "steps"}
    given = [f"{requested[name]:g} {unit}" for name, unit in units.items() if requested.get(name) is not None]
    return " or ".join(given)


def epoch_table(root: Path) -> "pd.DataFrame":
    """Return one row per evaluation of the runs at or below `root`: `run` (as in `run_table`) and EPOCH_COLUMNS.

    A run that was killed while it wrote keeps its whole rows; a run without evaluations has none. A loss that was
    not a number is NaN.
    """
    import pandas as pd

    frames = []
    for directory in run_directories(root):
        path = directory / "epochs.csv"
        if not path.exists() or path.stat().st_size == 0:
            continue
        try:
            frame = pd.read_csv(path, on_bad_lines="error")
        except (OSError, ValueError) as error:
            raise RecordError(f"{path}: cannot be read ({error}); move the run directory away") from None
        missing = [name for name in EPOCH_COLUMNS if name not in frame.columns]
        if missing:
            raise RecordError(f"{path}: column {missing[0]} is missing; move the run directory away")
        frame = frame[list(EPOCH_COLUMNS)].apply(pd.to_numeric, errors="coerce").astype("float64")
        torn = frame["lr"].isna()  # the last column: the process died while it wrote the row
        frame.insert(0, "run", run_name(directory, root))
        frames.append(frame[~torn])
    if not frames:
        frames = [pd.DataFrame(columns=["run", *EPOCH_COLUMNS]).astype(dict.fromkeys(EPOCH_COLUMNS, "float64"))]
    table: pd.DataFrame = pd.concat(frames, ignore_index=True)
    return table


def joined_tables(roots: Sequence[Path]) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """Return `run_table` and `epoch_table` of several run directories, or folders of them, as one pair of tables."""
    import pandas as pd

    runs: list[pd.DataFrame] = []
    evaluations: list[pd.DataFrame] = []
    for root in dict.fromkeys(roots):
        for table, kept in ((run_table(root), runs), (epoch_table(root), evaluations)):
            # Two roots may hold runs of one name.
            kept.append(table.assign(run=[f"{root}/{name}" for name in table["run"]]) if len(roots) > 1 else table)
    return pd.concat(runs, ignore_index=True), pd.concat(evaluations, ignore_index=True)


def run_name(directory: Path, root: Path) -> str:
    """Return the name of a run in the tables: its path below `root`, or its own name when it is `root`."""
    name = directory.relative_to(root).as_posix()
    return directory.resolve().name if name == "." else name


def save_tables(directory: Path, tables: Mapping[str, "pd.DataFrame"], documents: Mapping[str, Any]) -> list[Path]:
    """Write NAME.csv and NAME.json files, byte-identical for equal content; return the paths."""
    paths = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            paths.append(directory / f"{name}.csv")
            atomic_write(paths[-1], table.to_csv(index=False, lineterminator="\n"))
        for name, document in documents.items():
            paths.append(directory / f"{name}.json")
            atomic_write(paths[-1], json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    except OSError as error:
        raise RecordError(
            f"{directory}: cannot be written ({error.strerror or error}); choose a writable folder"
        ) from None
    return paths


def load_tables(
    directory: Path, tables: Sequence[str], documents: Sequence[str]
) -> tuple[dict[str, "pd.DataFrame"], dict[str, Any]]:
    """Read back what `save_tables` wrote; a missing file is a RecordError saying which command makes it."""
    import pandas as pd

    frames: dict[str, pd.DataFrame] = {}
    loaded: dict[str, Any] = {}
    for name in (*tables, *documents):
        path = directory / f"{name}.{'csv' if name in tables else 'json'}"
        try:
            if name in tables:
                # Only empty cells are missing: a run named "NA" or "None" is a name.
                frames[name] = pd.read_csv(path, keep_default_na=False, na_values=[""])
            else:
                loaded[name] = json.loads(path.read_text(encoding="utf-8"))
        except OSError:
            raise RecordError(
                f"{path}: no such file; run `horovod-study analyze RUNS --out {directory}` first"
            ) from None
        except ValueError as error:
            raise RecordError(f"{path}: is damaged ({error}); run `horovod-study analyze` again") from None
    return frames, loaded
