"""The run directory: the only file that knows its format, and the only place where the two wings meet.

    runs/<study>/<key>/
      run.json               what was asked for, what ran, where, and how it ended; written before the first step
      steps-00000.arrows     one row per step and rank: an Arrow stream, readable to its last batch after a crash
      epochs.csv             one row per evaluation: losses and errors against epochs, samples and seconds

History of the schema number in run.json:
    1   first form
"""

import csv
import json
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study.config import LAPS
from horovod_study.errors import RecordError

if TYPE_CHECKING:  # the run wing records without pandas
    import pandas as pd
    import pyarrow as pa

SCHEMA = 1
MANIFEST = "run.json"
STATUSES = ("running", "done", "failed")
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
    status: str  # running | done | failed; a dead run that still says running is shown as incomplete
    started: str  # ISO 8601, UTC
    host: str
    pid: int
    requested: Mapping[str, Any]
    effective: Mapping[str, Any]  # read back from the live objects, see train.py
    environment: Mapping[str, Any]
    reason: str = ""
    finished: str | None = None
    totals: Mapping[str, Any] = field(default_factory=dict)  # of the timed window; empty until done
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise RecordError(f"run record: status is {self.status!r}; allowed: {', '.join(STATUSES)}")

    def state(self) -> str:
        """Return the status as it is now: a run that says running but whose process is gone is incomplete."""
        if self.status != "running":
            return self.status
        if self.finished is not None:  # interrupted: ended by the study runner, neither done nor failed
            return "incomplete"
        if self.host == platform.node():
            return "running" if _alive(self.pid) else "incomplete"
        return "running"


def _alive(pid: int) -> bool:
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


def finish_run(
    directory: Path, record: RunRecord, *, status: str, finished: str, totals: Mapping[str, Any], reason: str = ""
) -> RunRecord:
    """Replace run.json by its final form and return it."""
    final = replace(record, status=status, finished=finished, totals=totals, reason=reason)
    try:
        atomic_write(directory / MANIFEST, _to_json(final))
    except OSError as error:
        raise RecordError(
            f"{directory}: the end of the run cannot be written ({error.strerror or error}); free space and run again"
        ) from None
    return final


def _to_json(record: RunRecord) -> str:
    return json.dumps(asdict(record), indent=1, allow_nan=False) + "\n"


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

    def __init__(self, directory: Path, rank: int) -> None:
        import pyarrow as pa

        self._schema = step_schema()
        self._path = directory / f"steps-{rank:05d}.arrows"
        try:
            self._file = open(self._path, "xb")
        except OSError as error:
            raise RecordError(f"{self._path}: cannot be created ({error.strerror}); choose a writable --out") from None
        self._writer = pa.ipc.new_stream(self._file, self._schema)

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


# ---------------------------------------------------------------------------------------------------- reading


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
        return RunRecord(**content)
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


def step_ranks(directory: Path) -> list[int]:
    """Return the ranks that recorded steps."""
    return sorted(int(path.stem.split("-")[1]) for path in directory.glob("steps-*.arrows"))


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
_ENVIRONMENT = ("cpu_model", "cores", "os", "python", "torch", "horovod", "mpi", "package")


def run_table(root: Path) -> "pd.DataFrame":
    """Return one row per run at or below `root`; docs/metrics.md explains the columns. Unknown numbers are NaN."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for directory in run_directories(root):
        record = read_run(directory)
        name = directory.relative_to(root).as_posix()
        rows.append(
            {
                "run": directory.name if name == "." else name,
                "study": record.study,
                "partition": record.partition,
                "status": record.state(),
                "reason": record.reason,
                **{name: record.effective.get(name, record.requested.get(name)) for name in _EFFECTIVE},
                "horovod_defaults": bool(record.requested.get("horovod_defaults", False)),
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
    for column in _TOTALS:
        table[column] = pd.to_numeric(table[column]).astype("float64")
    return table


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
