"""Recorded runs as files of other programs: Chrome traces, TensorBoard, Weights & Biases offline, MLflow, Extra-P.

Each tracker's own package writes its files (`pip install .[export]`, or `make extras`); nothing is sent anywhere.
"""

import errno
import json
import logging
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study.analysis.series.exchange import counts_of
from horovod_study.errors import ConfigError, RecordError
from horovod_study.files import append_text, not_written, unfinished, write_file, writing
from horovod_study.records import RunRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

_ROOM_BYTES = 65_536  # where these find no room afterwards, what was written may be cut: W&B writes 32 KiB at a time


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One run as trackers want it."""

    name: str
    record: RunRecord
    history: "pd.DataFrame"  # columns of analysis/series/history.py

    @property
    def started_s(self) -> float:
        """Begin of the run in seconds since 1970, UTC."""
        return datetime.fromisoformat(self.record.started).timestamp()

    @property
    def settings(self) -> dict[str, Any]:
        """What the run was asked for and what it was, flat: `requested.batch`, `effective.lr`, `environment.torch`."""
        groups = {group: getattr(self.record, group) for group in ("requested", "effective", "environment")}
        flat = {f"{group}.{name}": value for group, told in groups.items() for name, value in told.items()}
        flat = {name: value for name, value in flat.items() if isinstance(value, str | int | float | bool | None)}
        return {"status": self.record.state(), **flat}

    @property
    def totals(self) -> dict[str, float]:
        """The numbers of the timed window as `totals/NAME`, empty before the run is done."""
        found = self.record.totals.items()
        numbers = {name: each for name, each in found if isinstance(each, int | float) and not isinstance(each, bool)}
        return {f"totals/{name}": float(each) for name, each in numbers.items() if math.isfinite(each)}


def write_trace(events: Sequence[Mapping[str, Any]], path: Path, *, about: Mapping[str, Any]) -> Path:
    """Write `events` of analysis/steps/trace.py as JSON for ui.perfetto.dev or chrome://tracing; return its path.

    `about` is stored as the trace's metadata. Raises RecordError when it cannot be written.
    """
    content = {"traceEvents": list(events), "displayTimeUnit": "ms", "metadata": dict(about)}
    with writing(path, "choose a writable --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n")
    return path


def write_extra_p(documents: Sequence[Mapping[str, Any]], directory: Path) -> list[Path]:
    """Write documents of analysis/series/exchange.py as files for Extra-P, named by worker counts; return their paths.

    Raises RecordError when they cannot be written.
    """
    paths: list[Path] = []
    with writing(directory, "choose a writable --out"):
        directory.mkdir(parents=True, exist_ok=True)
        for document in documents:
            counts = counts_of(document)
            name = f"workers-{counts[0]}-{counts[-1]}"
            taken = sum(path.stem == name or path.stem.startswith(f"{name}-part-") for path in paths)
            paths.append(directory / f"{name}{f'-part-{taken + 1}' if taken else ''}.json")
            write_file(paths[-1], json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    return paths


def write_tracker(tracker: str, runs: Sequence[Recorded], directory: Path) -> list[Path]:
    """Write `runs` as files of `tracker` (tensorboard, wandb, mlflow) into `directory`, which must be new or empty.

    Returns what was written: for each run its folder (tensorboard, wandb), or the one database (mlflow).
    Raises ConfigError if the tracker's package is not installed, RecordError if the folder is not empty or cannot be
    written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise RecordError(f"{directory}: is not empty; the same run twice would look like two, choose another --out")
    write = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}[tracker]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        written = write(runs, directory)
        with unfinished(directory / "room") as probe:  # W&B's own process says nothing of a disk that was full
            append_text(probe, " " * _ROOM_BYTES)
        return written
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"export to {tracker} needs the package {error.name}, which is not installed; run `make extras`, or "
            "pip install horovod_study[export]"
        ) from None
    except Exception as error:
        problem = error if isinstance(error, OSError) else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if problem is not error and "disk is full" not in str(error):  # SQLite's words, by way of MLflow
            raise
        raise RecordError(not_written(directory, problem, "choose a writable --out")) from None


def _tensorboard(runs: Sequence[Recorded], directory: Path) -> list[Path]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import summary_v2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for run in runs:
        writer = EventFileWriter(str(directory / run.name))
        # Settings and totals become a row of TensorBoard's table of hyper-parameters.
        settings = {name: "" if value is None else value for name, value in run.settings.items()}
        hparams = summary_v2.hparams_pb(settings, trial_id=run.name, start_time_secs=run.started_s)
        writer.add_event(Event(wall_time=run.started_s, summary=hparams))
        totals = ((name, 0, 0.0, value) for name, value in run.totals.items())
        for tag, step, at_s, value in (*run.history.itertuples(index=False), *totals):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(wall_time=run.started_s + at_s, step=int(step), summary=summary))
        writer.close()
    return [directory / run.name for run in runs]


def _wandb(runs: Sequence[Recorded], directory: Path) -> list[Path]:
    import wandb

    paths = []
    # Offline, and nothing of this process or machine is looked at: it is not the one that trained.
    off = {"console": "off", "silent": True, "disable_git": True, "disable_code": True}
    off |= {"mode": "offline", "x_disable_meta": True, "x_disable_stats": True}
    for run in runs:
        settings = wandb.Settings(root_dir=str(directory), **off)
        tracked = wandb.init(project=run.record.study, name=run.name, config=run.settings, settings=settings)
        paths.append(Path(tracked.dir).parent)
        for _, values in run.history.groupby("step", sort=True):
            row = dict(zip(values["tag"], values["value"], strict=True))
            row["_timestamp"] = run.started_s + float(values["at_s"].max())
            tracked.log(row, step=int(values["step"].iloc[0]))
        tracked.summary.update(run.totals)
        tracked.finish(exit_code=0 if run.record.state() == "done" else 1)
    wandb.teardown()  # finish() may return before the process that writes the files has written the last records
    return paths


def _mlflow(runs: Sequence[Recorded], directory: Path) -> list[Path]:
    with _quiet_mlflow():
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        # MLflow's folders of plain files are in maintenance mode; a file of SQLite is what it recommends instead.
        database, artifacts = directory.resolve() / "mlflow.db", (directory / "artifacts").resolve().as_uri()
        client = MlflowClient(tracking_uri=f"sqlite:///{database}")
        studies = dict.fromkeys(run.record.study for run in runs)
        experiments = {name: client.create_experiment(name, artifact_location=artifacts) for name in studies}
        for run in runs:
            began_ms, ended = round(run.started_s * 1e3), run.record.finished
            experiment = experiments[run.record.study]
            tracked = client.create_run(experiment, start_time=began_ms, run_name=run.name).info.run_id
            totals = ((name, 0, 0.0, value) for name, value in run.totals.items())
            rows = (*run.history.itertuples(index=False), *totals)
            metrics = [Metric(tag, value, began_ms + round(at_s * 1e3), int(step)) for tag, step, at_s, value in rows]
            params = [Param(name, str(value)[:6000]) for name, value in run.settings.items()]
            for first in range(0, len(params), 100):  # MLflow takes so many in one call
                client.log_batch(tracked, params=params[first : first + 100])
            for first in range(0, len(metrics), 1000):
                client.log_batch(tracked, metrics=metrics[first : first + 1000])
            status = {"done": "FINISHED", "running": "RUNNING"}.get(run.record.state(), "FAILED")
            end_ms = round(datetime.fromisoformat(ended).timestamp() * 1e3) if ended else None
            client.set_terminated(tracked, status, end_time=end_ms)
    return [database]


@contextmanager
def _quiet_mlflow() -> "Iterator[None]":
    """Keep MLflow from sending usage statistics, and from telling of its database and of what is deprecated in it."""
    os.environ.update({"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_CONFIGURE_LOGGING": "false"})
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
