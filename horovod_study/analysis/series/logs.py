"""Logs of trainings as points: what programs printed in, the rows of a points file out; one log is one run.

Result logs of MLPerf Training: samples of a block (or epoch) over its time. Samples are those that the log counts, else
`train_samples` times the epochs. The first block is left out where there are more, for it holds the start-up; the
median of the others counts. `tracked_stats.throughput` differs between submitters and is not read (docs/fit.md).

Other logs: `FORMATS` says for each program which lines hold a rate, or the time of a step. What launchers put before a
line does not matter. Of reports of one step the last one counts, the first step is the start-up, of the others the
median is taken. The number of workers is that of the log, else of its name.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis.impossible import impossible
from horovod_study.analysis.series.points_file import parse_points
from horovod_study.errors import DataError
from horovod_study.text.words import plural

Given = tuple[str, bytes, Mapping[str, Any], Sequence[str]]
"""Of a log: what it is called, its content, the description of its system (systems/SYSTEM.json), names of its file and
folders that may say how many workers there were."""
_SHOWN = 5
"""Of the logs that are left out."""
_COLUMNS = ["workers", "samples_per_s", "nodes", "batch_size", "series", "repeat", "workers_per_node"]
_LOG = {"system": "", "unit": "samples/s", "nodes": math.nan, "workers_per_node": math.nan}
"""What a log that does not say it has."""


def points_of(
    given: Iterable[Given],
    *,
    placed: tuple[int, int] | None = None,
    columns: Mapping[str, str] | None = None,
    alone: bool = False,
) -> pd.DataFrame:
    """Return one row per log, with the columns of a points file and its attrs `doubts`, `read` and `unit`.

    `placed`: nodes and workers of each, where somebody said them. What is `alone` may be a table, of which `columns`
    says what its columns are. Raises DataError where nothing can be read.
    """
    logs: list[dict[str, Any]] = []
    wrong: list[str] = []
    for source, data, system, names in given:
        text = text_of(data)
        if alone and not (placed or recognised(text)):
            return _table(data, text, source, columns)
        if columns:
            raise DataError(f"{source}: is a log, which has no columns to name; leave columns out")
        try:
            read = _mlperf(source, text, system, placed) if ":::MLL" in text else _training(source, text, names, placed)
            log = {**_LOG, "source": source, **read}
            if why := impossible("rate", rate=log["samples_per_s"], workers=log["workers"], unit=log["unit"]):
                raise DataError(f"{source}: {why}")
            logs.append(log)
        except DataError as error:
            wrong.append(str(error))
    if not logs:
        raise DataError(wrong[0] + (f"; nor is {plural(len(wrong) - 1, 'more log')} read" if len(wrong) > 1 else ""))
    frame = pd.DataFrame(logs).sort_values(["series", "workers", "system", "source"]).reset_index(drop=True)
    units = frame.drop_duplicates("unit")
    if len(units) > 1:
        told = " and ".join(units["unit"] + " (" + units["source"] + ")")
        raise DataError(f"the logs have rates in {told}; keep those of one unit in a folder of their own")
    frame["series"] = _by_batch(frame)
    frame["repeat"] = frame.groupby(["series", "workers", "nodes"], dropna=False).cumcount().astype(float)
    rows: list[Any] = [*frame.itertuples()]
    doubts = [f"{row.series}, {plural(row.workers, 'worker')}: {each}" for row in rows for each in row.doubts]
    doubts += [f"left out: {each}" for each in wrong[:_SHOWN]]
    doubts += [f"left out: {len(wrong) - _SHOWN} more logs"] if len(wrong) > _SHOWN else []
    doubts += _between(frame)
    row, points = frame.iloc[0], frame[_COLUMNS].dropna(axis=1, how="all")
    one = f" of {plural(row.workers, 'worker')}: {row.samples_per_s:,.6g} {row.unit}" if len(frame) == 1 else ""
    programs, how = (" and ".join(dict.fromkeys(frame[name])) for name in ("program", "how"))
    points.attrs["read"] = (
        f"{len(frame)} {programs} log{'s' * (len(frame) > 1)}{one}, {frame['series'].nunique()} series; {how}"
    )
    points.attrs |= {"doubts": tuple(dict.fromkeys(doubts)), "unit": row.unit}
    return points


def _table(data: bytes, text: str, source: str, columns: Mapping[str, str] | None) -> pd.DataFrame:
    """Return the points of a table; DataError for anything else, which is called a log where most lines are as in logs.

    Those have values behind names, or times and hosts in brackets before.
    """
    try:
        return parse_points(data, source=source, columns=columns)
    except DataError:
        lines = [line for line in text.splitlines() if line.strip()]
        logged = sum(bool(re.search(r"^\W*\[[^\]]*\]\S* ?\w|^\W*\d{4}-\d\d-\d\d|\w[:=] *\d", line)) for line in lines)
        if text.lstrip()[:1] == "{" or logged <= max(len(lines) / 2, 1):
            raise
    programs = ", ".join(dict.fromkeys(["MLPerf Training", *(each[0] for each in FORMATS)]))
    raise DataError(f"{source}: is no table, and no log of {programs}; give a table with lines workers,samples_per_s")


def _by_batch(frame: pd.DataFrame) -> pd.Series:
    """Return the series, with the batch in its name where one count of it was run with several.

    Of the batch of a worker and the batch of all, the one with fewer values makes the series.
    """
    names = frame["series"].copy()
    for series, own in frame[frame["program"] != _MLPERF].groupby("series"):
        ways = {"batch": own["batch_size"], "global batch": own["batch_size"] * own["workers"]}
        if own.groupby("workers")["batch_size"].nunique().max() > 1:
            word, batch = min(ways.items(), key=lambda way: way[1].round(6).nunique())
            names[own.index] = [f"{series}, {word} {each:g}" for each in batch]
    return names


def _between(frame: pd.DataFrame) -> Iterator[str]:
    """Yield what is odd between the logs of a series: impossible speedups, several systems of one size."""
    for series, own in frame.groupby("series"):
        base = own.iloc[0]
        for row in own.itertuples():
            speedup, more = row.samples_per_s / base.samples_per_s, row.workers / base.workers
            if why := impossible("speedup", speedup=speedup, workers=more):
                yield f"{row.source} over {base.source}: {why}"
        for workers, same in own.groupby("workers")["system"]:
            if same.nunique() > 1:
                yield f"{series}, {workers} workers: are of several systems, {', '.join(same.unique())}"


# --- MLPerf Training --------------------------------------------------------------------------------------------------

_MLPERF = "MLPerf"
_EPOCHS: Mapping[str, tuple[int, ...]] = {
    "resnet": (1_281_167,),  # ImageNet
    "maskrcnn": (117_266, 118_287),  # COCO, with boxes and all
    "ssd": (117_266, 118_287, 1_170_301),  # COCO, or from v2.0 on OpenImages
    "retinanet": (1_170_301,),
}
"""Samples of an epoch, of benchmarks whose logs were seen to say something else."""
_FRAMEWORKS = ("tensorflow", "pytorch", "mxnet", "jax", "mindspore", "paddle", "hugectr", "popart")
_SLOWEST_STEP_S = 300.0
"""Of tokens; where samples are taken for tokens, a step seems to take hours."""
_PLACE = ("first_epoch_num", "epoch_num", "samples_count", "step")
"""What tells one block or epoch from the next."""


def _mlperf(source: str, text: str, told: Mapping[str, Any], placed: tuple[int, int] | None) -> dict[str, Any]:
    """Return what a log of MLPerf says; the folders .../ORG/results/SYSTEM/BENCHMARK of its path name the run."""
    events = [*_parsed(text.splitlines())]
    values = {key: value for key, _, _, value in reversed(events)}
    folders = source.split("/")[:-1]
    at = max((place for place, name in enumerate(folders) if name == "results"), default=None)
    named = folders[at + 1 :] if at is not None else []
    benchmark = str(values.get("submission_benchmark") or (named[1] if len(named) > 1 else "unknown"))
    counts = placed or _counts(told) or _counts(values)
    if counts is None:
        raise DataError(
            f"{source}: is a log of MLPerf Training, and how many accelerators there were stands in "
            "systems/SYSTEM.json, which is not there; give a folder as MLCommons publishes it, with "
            f"ORG/results/SYSTEM/BENCHMARK/result_0.txt and ORG/systems/SYSTEM.json, or type {source}@NODESxN"
        )
    doubts: list[str] = []
    rates = _rates(events, values, benchmark, source, doubts)
    if any(key == "run_stop" and about.get("status") == "aborted" for key, _, about, _ in events):
        doubts.append("a run was aborted: what it did until then counts")
    if (steps := _number(values.get("gradient_accumulation_steps")) or 1) > 1:
        doubts.append(f"gradients of {steps:g} batches are accumulated: batch_size is of an update")
    frameworks = [name for name in _FRAMEWORKS if name in str(told.get("framework") or "").lower()]
    names = [*(folders[:at] if at is not None else [str(values.get("submission_org") or "")]), benchmark]
    names += [str(told.get(name) or "").strip() for name in ("accelerator_model_name", "division")]
    names += frameworks if len(frameworks) == 1 else []
    return {
        "program": _MLPERF,
        "series": " ".join(name for name in names if name not in ("", ".", "..", "/")),
        "system": named[0] if named else "",
        "how": "samples of blocks (or epochs) over their time, the first left out; batch_size = global / accelerators",
        "samples_per_s": float(np.median(rates)),
        "workers": math.prod(counts),
        "nodes": float(counts[0]),
        "workers_per_node": float(counts[1]),
        "batch_size": (_number(values.get("global_batch_size")) or math.nan) / math.prod(counts),
        "doubts": doubts,
    }


def _parsed(lines: Iterable[str]) -> Iterator[tuple[str, float, dict[str, Any], Any]]:
    """Yield key, time in seconds, metadata and value of each event."""
    for line in lines:
        at = line.find(":::MLL")
        if at < 0 or (begin := line.find("{", at)) < 0:
            continue
        try:
            event, _ = json.JSONDecoder().raw_decode(line, begin)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            at_ms, told = event.get("time_ms"), event.get("metadata")
            at_s = at_ms / 1e3 if isinstance(at_ms, int | float) else math.nan
            yield str(event.get("key")), at_s, told if isinstance(told, dict) else {}, event.get("value")


def _spans(unit: str, events: Sequence[tuple[str, float, dict[str, Any], Any]]) -> list[dict[str, Any]]:
    """Return the blocks or epochs: seconds, what `first` and `last` event say, samples counted `before` and `after`."""
    found: list[dict[str, Any]] = []
    begun: dict[str, Any] | None = None
    done = 0.0
    for key, at_s, told, _ in events:
        count = told.get("samples_count") if isinstance(told.get("samples_count"), int | float) else None
        if count is not None and key.startswith(("block", "epoch", "eval", "run")):
            done = count
            if found and key != f"{unit}_stop":
                found[-1].setdefault("after", count)
        if key == f"{unit}_start":
            # Every rank may print it: the first counts, unless its end was never printed.
            if begun is None or any(begun["first"].get(name) != told.get(name) for name in _PLACE):
                known = not found or "after" in found[-1]
                begun = {"begin": at_s, "first": told, "before": done if known else None, "counts": count}
        elif begun and (key == f"{unit}_stop" or (key == "run_stop" and unit == "epoch" and "epoch_num" in told)):
            same = count is not None and begun["counts"] == count
            after = {} if count is None else {"after": count}
            found.append({**begun, **after, "same": count if same else 0, "last": told, "s": at_s - begun["begin"]})
            begun = None
        elif key == "run_stop" and found and (_number(told.get("epoch_num")) or 0) % 1:  # how far the last one came
            found[-1]["last"] = {**found[-1]["last"], "epoch_num": told["epoch_num"]}
    return [each for each in found if each["s"] > 0]


def _rates(
    events: Sequence[Any], values: Mapping[str, Any], benchmark: str, source: str, doubts: list[str]
) -> list[float]:
    """Return samples/s of the blocks after the first, or of the epochs where blocks do not say what was trained."""
    why = "has no block or epoch with begin and end; nothing says how long it trained"
    for unit in ("block", "epoch"):
        found, rates = _spans(unit, events), []
        for place, epochs in enumerate(_epochs(unit, found)):
            samples = _counted(place, found)
            if samples is None and epochs is None:
                why = f"no {unit} says how many samples or epochs it has; nothing says how much it trained"
            elif samples is None and epochs is not None:
                why = impossible("epochs", epochs=epochs)
                length, batch = (
                    _number(values.get(name)) or 0 for name in ("max_sequence_length", "global_batch_size")
                )
                steps = epochs / (length * batch or math.inf)
                if not why:
                    samples = epochs * _epoch_samples(benchmark, values, batch, source, doubts)
                elif (
                    steps > 1 and steps % 1 == 0 and found[place]["s"] / steps < _SLOWEST_STEP_S
                ):  # whole batches of tokens, which hardly any number of samples is
                    samples = epochs / length
                    doubts.append(f"its epochs are tokens: samples of max_sequence_length {length:,.0f} count")
            rates.append(samples and samples / found[place]["s"])
        if kept := [rate for rate in rates[1:] if rate]:
            return kept
        if rates and rates[0]:
            doubts.append(f"one {unit} is all that is timed: the start-up is in it")
            return [rates[0]]
    raise DataError(f"{source}: {why}")


def _counted(place: int, found: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the samples of a block by its counts: those that run on, or of one block beside a step that runs on."""
    own, ends = found[place], [each["same"] for each in found]
    if own["same"] and len(ends) > 1 and all(a < b for a, b in pairwise(ends)):  # at both ends what was done before
        return float(ends[place + 1] - ends[place]) if place + 1 < len(ends) else None
    after, before = own.get("after"), own["before"]
    if after is not None and before is not None and after > before:
        return float(after - before)
    return _number(own["last"].get("samples_count")) if "step" in {**own["first"], **own["last"]} else None


def _epochs(unit: str, found: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Return the epochs of each span: declared by a block, else the number at its stop less what was done before.

    An epoch that has one number at begin and end is whole, whether they are called 0, 1, 2 or 1, 2, 3.
    """
    epochs: list[float | None] = []
    done = 0.0
    for each in found:
        first, last = each["first"], each["last"]
        begin, end = (_number(told.get("epoch_num")) or 0.0 for told in (first, last))
        if unit == "block":
            number = _number(first.get("epoch_count")) or _number(last.get("epoch_count")) or 0.0
            number = end - done if end % 1 and 0 < end - done < number else number
        else:
            if not epochs and begin > 1:  # of a run that was resumed
                done = begin - (begin >= end)
            number = 1.0 if "epoch_num" not in last or (end == begin and end % 1 == 0) else end - done
        epochs.append(number if number > 0 else None)
        done += max(number, 0.0)
    return epochs


def _epoch_samples(benchmark: str, values: Mapping[str, Any], batch: float, source: str, doubts: list[str]) -> float:
    """Return the samples of an epoch, and add to `doubts` what is to be said of them."""
    samples = _number(values.get("train_samples"))
    if samples is None:
        raise DataError(f"{source}: has no train_samples; nothing says how much it trained")
    known = _EPOCHS.get(benchmark, ())
    # epochs padded to whole batches differ by less
    if not known or any(abs(samples / each - 1) < 0.02 for each in known):
        return samples
    if batch and any(samples == math.ceil(each / batch) for each in known):
        doubts.append(f"train_samples {samples:,.0f} counts batches, of {batch:,.0f} samples")
        return samples * batch
    if benchmark == "maskrcnn":
        doubts.append(f"train_samples {samples:,.0f} is no epoch of COCO: {known[0]:,} images are taken")
        return float(known[0])
    doubts.append(f"train_samples {samples:,.0f} is none of the known data sets, {', '.join(map(str, known))}")
    return samples


def _counts(system: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return nodes and accelerators of a node; None where a log or description has none (processors only)."""
    nodes, each = (_number(system.get(name)) for name in ("number_of_nodes", "accelerators_per_node"))
    return (int(nodes), int(each)) if nodes and each else None


def _number(value: Any) -> float | None:
    """Return a positive finite number, also of a text that is one; None for anything else."""
    try:
        number = float(value.replace(",", "") if isinstance(value, str) else value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number > 0 else None


# --- other programs ---------------------------------------------------------------------------------------------------

_HOROVOD, _TF, _DEEPSPEED = "Horovod's synthetic benchmark", "tf_cnn_benchmarks", "DeepSpeed"
FORMATS = (
    (_HOROVOD, "steady", r"Total img/sec on {workers} [A-Z]+\(s\): {rate}"),
    (_HOROVOD, "steady", r"Iter #{step}: {each} img/sec per [A-Z]"),
    (_TF, "steady", r"\btotal images/sec: {rate}"),
    (_TF, "mean", r"\b{step}\s+images/sec: {each} \+/-", r"Devices:\s+\['horovod/"),
    (_TF, "mean", r"\b{step}\s+images/sec: {rate} \+/-", r"Devices:\s+\['/[^j]"),
    ("GPT-NeoX", "each", r"samples/sec: {rate} \| iteration +{step}/ *\d+ \| elapsed time per iteration"),
    ("Megatron-LM", "each", r"\biteration +{step}/ *\d+ \|...elapsed time per iteration \({milli}s\): *{step_s}{gbs}"),
    ("NeMo", "each", r"\biteration {step}/\d+ \|...global_batch_size: {global_batch} ...timing in s: {step_s}"),
    (_DEEPSPEED, "each", r"/(?:global_step=)?{step}, RunningAvgSamplesPerSec=\S+ CurrSamplesPerSec={rate}"),
    (_DEEPSPEED, "mean", r"/(?:global_step=)?{step}, (?:RunningAvg)?SamplesPerSec={rate}"),
    ("MaxText", "each", r"completed step: {step}, ...Samples/s/device: {each}"),
    ("MaxText", "each", r"completed step: {step}, ...Tokens/s/device: {tokens_each}"),
    ("MaxText", "each", r"completed step: {step}, seconds: {step_s}"),
    ("torchtitan", "each", r"\bstep: *{step} +loss: ...\b[tw]ps: {tokens_each}"),
    ("timm", "each", r"\bTrain: \d+ \[ *{step}/...Time: [\d.]+s, +{rate}/s"),
    ("torchvision", "each", r"\bEpoch: \[\d+\] +\[ *{step}/...img/s: {each}"),
    ("transformers", "whole", r"'train_samples_per_second': {rate}"),
    ("Lightning (tqdm)", "each", r"\bEpoch {step}[:/]...\b\d+/\d+ ...(?:{steps_per_s} ?it/s|{step_s} ?s/it)"),
)
"""Program, what its reports are, and their lines by a regular expression in which {NAME} is a number and ... what is
between: `rate` of all workers, `each` of one, the time of a step. The first that a text has counts, if it has the
fourth, too. Reports are of the steps since the last one, and `each` but the first counts; are `steady` from the first
on; are a `mean` of all before, of which the last counts; or of the `whole` training, start-up included."""
_FACTS = (
    (_HOROVOD, r"\bModel: {model}|\bBatch size: {batch}|\bNumber of [A-Z]+s: {workers}"),
    (_TF, r"\bModel:\s+{model}|\b{batch} per device|\bDevices:\s+\[(?P<devices>'(?!/job:)[^\]]*)\]"),
    ("Megatron-LM", r"\bglobal_batch_size \.+ {global_batch}"),
    ("MaxText", r"\bNum_devices: {workers}, shape"),
    ("torchtitan", r"device mesh with \[[^\]]*\], \[(?P<product>[\d, ]+)\]"),
    ("torchtitan", r"device mesh with parallelism: (?P<product>pp=\d+(?:, (?:dp_replicate|dp_shard|cp|tp)=\d+)*)"),
    ("torchtitan", r"global batch size {global_batch}, ...sequence length {sequence}"),
    ("timm", r"\bProcess \d+, total {workers}, device"),
    ("Lightning (tqdm)", r"\bStarting with {workers} processes"),
    ("", r"(?i)(?:(?<=using )|(?<![a-z_])(?<![a-z_] ))(?:dist_)?world[ _]size['\"]?[ .:=]+{workers}"),
)
"""Program, or "" for any, and what its lines say of workers, batch of a worker or of all, and model."""
_BY_NAME = re.compile(
    r"(?<![a-z0-9.])(?:(?:n|np|x|nproc|ngpus?|gpus|ranks|workers|procs|devices|tpus|world|ws)[_=-]?(\d{1,7})"
    r"|(\d{1,7})[_-]?(?:x|np|gpus?|ranks?|workers?|procs?|devices?|tpus?|gcds?|accelerators?))(?![a-z0-9]|\.\d)"
)
"""Not rank3 or gpu0, which are one of several."""


def _finder(pattern: str) -> re.Pattern[str]:
    pattern = pattern.replace("{gbs}", "(?:...global batch size: *{global_batch})?").replace("{milli}", "(?P<milli>m?)")
    pattern = pattern.replace("{model}", r"(?P<model>\S+)").replace("...", r"[^\n]{0,300}?")  # bounded, as is time
    number = r"\\d[\\d,]{0,20}(?:\\.\\d{1,20})?(?:[eE][+-]?\\d\\d?)?"
    return re.compile(re.sub(r"\{([a-z_]+)\}", rf"(?P<\1>{number})", pattern))


def recognised(text: str) -> tuple[str, str, list[dict[str, str]]] | None:
    """Return program and reports of the first of FORMATS that a text has, and what its lines say; None where none."""
    if ":::MLL" in text:
        return _MLPERF, "", []
    for program, reports, pattern, *needed in FORMATS:
        literal = max(map(str.strip, re.split(r"\\.|\{\w+\}|\[[^\]]*\]|[.*+?()|]+", pattern)), key=len)
        found = [each.groupdict() for each in _finder(pattern).finditer(text)] if literal in text else []
        if found and (not needed or re.search(needed[0], text)):
            return program, reports, found
    return None


def text_of(data: bytes) -> str:
    """Return the text of a log without colours and without lines that no program logs, whatever is among its bytes."""
    text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", errors="replace")
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text).replace("\r\n", "\n").replace("\r", "\n")
    return text if ":::MLL" in text else re.sub(r"[^\n]{4000,}", "", text)


def _training(source: str, text: str, names: Sequence[str], placed: tuple[int, int] | None) -> dict[str, Any]:
    """Return what the log of a training program says."""
    known = recognised(text)
    if known is None:
        raise DataError(f"{source}: is no log that is read")
    program, reports, found = known
    facts: dict[str, list[Any]] = {"workers": []}
    told = (_finder(pattern).finditer(text) for name, pattern in _FACTS if name in ("", program))
    groups = [*(each.groupdict() for matches in told for each in matches), *found]
    for name, value in ((name, value) for each in groups for name, value in each.items() if value):
        if name == "product":
            facts["workers"].append(math.prod(map(int, re.findall(r"\d+", value))))
        elif name == "devices":
            facts["workers"].append(value.count("'") // 2)
        elif fact := value if name == "model" else _number(value):
            facts.setdefault(name, []).append(fact)
    doubts: list[str] = []
    workers = _workers(source, names, {int(each) for each in facts["workers"]}, placed, doubts)
    found = [got for got in found if "workers" not in got or _number(got["workers"]) == workers]
    rate, whose, how = _rate(source, reports, found, facts, doubts)
    how += "" if placed or facts["workers"] else "; workers as in its name"
    unit = {"batches": "batches/s", "tokens_each": "tokens/s"}.get(whose, "samples/s")
    if workers is None:
        of = "all workers together" if whose == "rate" else "each worker"
        raise DataError(
            f"{source}: is a training log of {program} with {rate:,.6g} {unit} of {of}, and does not say how many "
            f"workers there were; for 8, name it 8gpus.log or type {source}@8, or give a table with lines "
            "workers,samples_per_s"
        )
    batch, length = facts.get("batch", [math.nan])[-1], facts.get("sequence", [math.nan])[-1]
    batch = facts["global_batch"][-1] / workers if "global_batch" in facts else batch
    return {
        "program": program,
        "series": " ".join([program, *dict.fromkeys(facts.get("model", ()))]),
        "how": how,
        "samples_per_s": rate if whose == "rate" else rate * workers,
        "unit": unit,
        "workers": workers,
        "batch_size": batch * length if unit == "tokens/s" else batch,
        "doubts": doubts,
        **(
            dict(zip(("nodes", "workers_per_node"), map(float, placed), strict=True))
            if placed and placed[0] > 1
            else {}
        ),
    }


def _rate(
    source: str, reports: str, found: Sequence[Mapping[str, str]], facts: Mapping[str, Sequence[Any]], doubts: list[str]
) -> tuple[float, str, str]:
    """Return the rate of a log, whose it is (`rate` of all, of `each` worker, `batches` of each), and how it is known.

    Where the batch grows while a run goes on, the steps with the last one count.
    """
    steps: dict[Any, tuple[float, str, float]] = {}
    for place, got in enumerate(found):
        number = {name: known for name, value in got.items() if (known := _number(value))}
        whose = next((name for name in ("rate", "each", "tokens_each") if name in number), "")
        steps_per_s = number.get("steps_per_s", (1e3 if got.get("milli") else 1) / number.get("step_s", math.inf))
        batch = number.get("global_batch") or facts.get("global_batch", [0.0])[-1]
        report = (
            (number[whose], whose, 0.0)
            if whose
            else (steps_per_s * (batch or 1), "rate" if batch else "batches", batch)
        )
        if report[0]:
            steps[got.get("step") or place] = report
    if not steps:
        raise DataError(f"{source}: has no rate above 0")
    kept = [*steps.values()]
    kept = (kept[1:] or kept) if reports == "each" else kept[-1:] if reports in ("mean", "whole") else kept
    _, whose, batch = kept[-1]
    if reports == "whole" or (reports == "each" and len(steps) == 1):
        doubts.append("the start-up is in its rate")
    if whose == "batches":
        doubts.append("its batch is unknown: one batch of each worker in a step is counted, the same at every count")
    left_out = ", the first left out" if reports == "each" and len(steps) > 1 else ""
    how = "the last mean" if reports in ("mean", "whole") else f"median of the reports{left_out}"
    return float(np.median([value for value, _, own in kept if own == batch])), whose, how


def _workers(
    source: str, names: Sequence[str], said: set[int], placed: tuple[int, int] | None, doubts: list[str]
) -> int | None:
    """Return how many workers a log is of: as the caller says, as the log says, or its name, or a folder 8 of it."""
    given = placed[0] * placed[1] if placed else None
    told = " and ".join(map(str, sorted(said)))
    if given and said and given not in said:
        raise DataError(f"{source}: says that there were {told} workers, and {given} were given; leave the number out")
    if len(said) > 1 and not given:
        raise DataError(f"{source}: says that there were {told} workers; keep one run in a log, or type {source}@N")
    counts, named = set(), None
    for name in () if given else map(str.lower, reversed(names)):
        counts = {int(one or other) for one, other in _BY_NAME.findall(name)} | (
            {int(name)} if name.isdecimal() else set()
        )
        if counts or "node" in name:
            named = max(counts) if len(counts) == 1 and "node" not in name else None
            break
    if named and said and named not in said:
        doubts.append(f"its name {names[-1]} says {named} workers, and the log {told}, which count")
    return given or next(iter(said), None) or named
