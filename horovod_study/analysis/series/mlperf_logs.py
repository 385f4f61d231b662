"""Result logs of MLPerf Training as points: lines with :::MLLOG in, the rows of a points file out.

One log is one run. Its rate is samples over time, both from the log: the samples of an epoch (`train_samples`) times
the epochs of a block (`block_start` to `block_stop`; without blocks, of an epoch) over the time between the two.
The first block is left out where there are more, for it holds the start-up, and the median of the others counts, for
the last one may end early. `tracked_stats.throughput` is not read: what it means differs between submitters.

The rules of the benchmarks call the same things by the same names, and the logs do not always follow. Two departures
were found in published logs and are undone, with a doubt: RetinaNet on OpenImages counts batches (`train_samples` is
the images over the global batch), and Mask R-CNN of PyTorch logs 20,000 to 80,000 where COCO has 117,266 images.
docs/fit.md has the traps that only a reader can see.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.errors import DataError

_EPOCHS: Mapping[str, tuple[int, ...]] = {
    "resnet": (1_281_167,),  # ImageNet
    "maskrcnn": (117_266, 118_287),  # COCO, with boxes and all
    "ssd": (117_266, 118_287, 1_170_301),  # COCO, or from v2.0 on OpenImages
    "retinanet": (1_170_301,),
}
"""Samples of an epoch, of benchmarks whose logs were seen to say something else."""
SHOWN = 5
"""Of the logs that are left out."""
_FRAMEWORKS = ("tensorflow", "pytorch", "mxnet", "jax", "mindspore", "paddle", "hugectr", "popart")


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One run: what its log says, and the folders that name it."""

    source: str
    series: str  # the folders above the submitter's, its name and the benchmark
    system: str
    rate: float  # samples/s
    global_batch: float | None
    counts: tuple[int, int] | None  # nodes, workers of a node, where the log has them
    doubts: tuple[str, ...]  # of all logs of a system, so that they are told once


_KEPT = (
    *("submission_benchmark", "submission_org", "global_batch_size", "train_samples"),
    *("gradient_accumulation_steps", "number_of_nodes", "accelerators_per_node"),
)


def _read_log(lines: Iterable[str], *, source: str) -> Log:
    """Return what a log says; `source` is its path, of which the folders .../ORG/results/SYSTEM/BENCHMARK name the run.

    Raises DataError where it has no timed block or epoch, or no number of samples.
    """
    values, timed, aborted = _events(lines)
    folders = source.split("/")[:-1]
    at = max((place for place, name in enumerate(folders) if name == "results"), default=None)
    named = folders[at + 1 :] if at is not None else []
    benchmark = str(values.get("submission_benchmark") or (named[1] if len(named) > 1 else "unknown"))
    above = folders[:at] if at is not None else [str(values.get("submission_org") or "")]
    batch = _number(values.get("global_batch_size"))
    samples, doubts = _epoch_samples(benchmark, values.get("train_samples"), batch, source)
    unit = "block" if timed["block"] else "epoch"
    spans = [span for span in timed[unit] if span[0] > 0]
    if not spans:
        raise DataError(f"{source}: has no block or epoch with begin and end; nothing says how long it trained")
    if len(spans) == 1:
        doubts.append(f"one {unit} is all that is timed: the start-up is in it")
    if aborted:
        doubts.append("a run was aborted: what it did until then counts")
    if (steps := _number(values.get("gradient_accumulation_steps")) or 1) > 1:
        doubts.append(f"gradients of {steps:g} batches are accumulated: batch_size is of an update")
    kept = spans[1:] or spans
    return Log(
        source=source,
        series=" ".join([*(name for name in above if name not in ("", ".", "..", "/")), benchmark]),
        system=named[0] if named else "",
        rate=float(np.median([epochs * samples / seconds for seconds, epochs in kept])),
        global_batch=batch,
        counts=_counts(values),
        doubts=tuple(doubts),
    )


def read_logs(
    files: Iterable[tuple[str, Iterable[str], Mapping[str, Any]]],
) -> tuple[list[Log], dict[str, Mapping[str, Any]], list[str]]:
    """Return the logs of (source, lines, description of the system), the descriptions by source, and what was wrong."""
    logs, systems, wrong = [], {}, []
    for source, lines, system in files:
        try:
            logs.append(_read_log(lines, source=source))
        except DataError as error:
            wrong.append(str(error))
        systems[source] = system
    return logs, systems, wrong


def points_of(logs: Sequence[Log], systems: Mapping[str, Mapping[str, Any]], wrong: Sequence[str] = ()) -> pd.DataFrame:
    """Return one row per log, with the columns of a points file (importers.COLUMNS) and its attrs.

    `systems` maps the source of a log to the description of its system (systems/SYSTEM.json), where there is one. Runs
    of one submitter, benchmark, accelerator, division and framework are a series. `wrong` says of other logs why they
    are left out. Raises DataError where nothing is left.
    """
    rows, doubts, unknown = [], [], []
    for log in sorted(logs, key=lambda each: each.source):
        told = systems.get(log.source, {})
        counts = _counts(told) or log.counts
        if counts is None:
            unknown.append(log)
            continue
        nodes, per_node = counts
        kind = str(told.get("accelerator_model_name") or "").strip()
        framework = str(told.get("framework") or "").lower()
        frameworks = [name for name in _FRAMEWORKS if name in framework]
        names = [log.series, kind, str(told.get("division") or ""), frameworks[0] if len(frameworks) == 1 else ""]
        series = " ".join(name for name in names if name)
        workers = nodes * per_node
        batch = math.nan if log.global_batch is None else log.global_batch / workers
        rows.append((workers, log.rate, float(nodes), batch, series, float(per_node), log.system))
        doubts += [f"{series}, {workers} workers: {doubt}" for doubt in log.doubts]
    if not rows:
        if not unknown:
            raise DataError(wrong[0] if wrong else "no result log; name a folder that holds some")
        raise DataError(
            f"{unknown[0].source}: nothing says how many accelerators it ran on, nor of the {len(unknown) - 1} others; "
            "keep systems/SYSTEM.json beside results/SYSTEM"
        )
    if unknown:
        doubts.append(f"left out: {len(unknown)} logs of no known number of accelerators, as {unknown[0].source}")
    doubts += [f"left out: {each}" for each in wrong[:SHOWN]]
    doubts += [f"left out: {len(wrong) - SHOWN} more logs"] if len(wrong) > SHOWN else []
    names = ["workers", "samples_per_s", "nodes", "batch_size", "series", "workers_per_node", "system"]
    frame = pd.DataFrame(rows, columns=names).sort_values(["series", "workers", "system"], kind="stable")
    frame.insert(5, "repeat", frame.groupby(["series", "workers", "nodes"]).cumcount().astype(float))
    for (name, workers_of), each in frame.groupby(["series", "workers"]):
        if each["system"].nunique() > 1:
            doubts.append(f"{name}, {workers_of} workers: are of several systems, {', '.join(each['system'].unique())}")
    frame = frame.drop(columns="system").reset_index(drop=True)
    frame.attrs["doubts"] = tuple(dict.fromkeys(doubts))
    count = frame["series"].nunique()
    frame.attrs["read"] = (
        f"{len(frame)} MLPerf logs, {count} series; samples of an epoch over the median time of blocks (or epochs) "
        "after the first; batch_size = global_batch_size / accelerators"
    )
    return frame


def _events(lines: Iterable[str]) -> tuple[dict[str, Any], dict[str, list[tuple[float, float]]], bool]:
    """Return what a log says by name, seconds and epochs of each timed block and epoch, whether it was aborted."""
    values: dict[str, Any] = {}
    spans: dict[str, list[tuple[float, float]]] = {"block": [], "epoch": []}
    aborted = False
    begun: dict[str, tuple[float, Mapping[str, Any]]] = {}
    for event in _parsed(lines):
        key, value = str(event.get("key")), event.get("value")
        told = event.get("metadata")
        told = told if isinstance(told, dict) else {}
        unit, _, end = key.partition("_")
        at = event.get("time_ms")
        if key in _KEPT:
            values.setdefault(key, value)
        elif key == "run_stop":
            aborted = aborted or told.get("status") == "aborted"
        elif unit in spans and isinstance(at, int | float) and end == "start":
            # Every rank may print it: the first counts, unless its end was never printed.
            if unit not in begun or begun[unit][1].get(_FIRST[unit]) != told.get(_FIRST[unit]):
                begun[unit] = (at / 1e3, told)
        elif unit in begun and isinstance(at, int | float) and end == "stop":
            start_s, before = begun.pop(unit)
            epochs = 1.0
            if unit == "block":
                epochs = _number(before.get("epoch_count")) or _number(told.get("epoch_count")) or 1.0
            spans[unit].append((at / 1e3 - start_s, epochs))
    return values, spans, aborted


_FIRST = {"block": "first_epoch_num", "epoch": "epoch_num"}


def _parsed(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        at = line.find(":::MLL")
        if at < 0 or (begin := line.find("{", at)) < 0:
            continue
        try:
            event, _ = json.JSONDecoder().raw_decode(line, begin)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def _epoch_samples(benchmark: str, logged: Any, batch: float | None, source: str) -> tuple[float, list[str]]:
    """Return the samples of an epoch, and what is to be said of them."""
    samples = _number(logged)
    if samples is None:
        raise DataError(f"{source}: has no train_samples; nothing says how much it trained")
    known = _EPOCHS.get(benchmark, ())
    # epochs padded to whole batches differ by less
    if not known or any(abs(samples / each - 1) < 0.02 for each in known):
        return samples, []
    if batch and any(samples == math.ceil(each / batch) for each in known):
        return samples * batch, [f"train_samples {samples:,.0f} counts batches, of {batch:,.0f} samples"]
    if benchmark == "maskrcnn":
        return float(known[0]), [f"train_samples {samples:,.0f} is no epoch of COCO: {known[0]:,} images are taken"]
    return samples, [f"train_samples {samples:,.0f} is none of the known data sets, {', '.join(map(str, known))}"]


def _counts(system: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return nodes and accelerators of a node; None where a log or description has none (processors only)."""
    nodes, each = (_number(system.get(name)) for name in ("number_of_nodes", "accelerators_per_node"))
    return (int(nodes), int(each)) if nodes and each else None


def _number(value: Any) -> float | None:
    """Return a positive finite number, also of a text that is one; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number > 0 else None
