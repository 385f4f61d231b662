"""Answers of the package that no refactoring may change: compare them with tests/golden/results, or write them.

    python scripts/goldens.py                      compares every part; 1 where one differs, and what
    python scripts/goldens.py synthetic launch     ... these parts
    python scripts/goldens.py --write              writes them again: where an answer was meant to change

Everything is asked through the command line (in this process) and benchmarks/. What depends on the machine or the hour
is left out: paths, versions, digests of files. Numbers are kept with eight digits and compared within 1e-6 of their
value, because libraries may differ; all else must be equal. A table of more rows than ROWS is kept as one summary a
column: how many values, their mean, least and largest, and a mean in which later rows count more.
"""

import argparse
import csv
import io
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "tests" / "golden" / "results"
PUBLISHED = ROOT / "benchmarks" / "published"
sys.path.append(str(ROOT / "tests"))

from make.synthetic_study import Cell, write_study  # noqa: E402

from horovod_study import cli  # noqa: E402

ROWS = 70
DIGITS = 8
CLOSE, NEAR_ZERO = 1e-6, 1e-12
SHOWN = 25
OTHERWISE = ("source.json",)
"""Of an analysis: where its runs are, versions, digests of files."""
NOT_KEPT = ("commands", "formula", "interval_method", "question", "loo_error_rms")
SMALL_TABLES = ("paddlespeech", "thetagpu")
TABLES = (
    *("deepmd", "dell-p100", "extradeep", "flagperf", "fleetx", "keras-multi-gpu", "maxtext", "mosaicml"),
    *("mosaicml-diffusion", "mxnet", "nvidia", "octotiger", "paddle-perf", "reports", "tensorpack", "tf_cnn"),
)
"""Tables of benchmarks/published that are fitted and forecast whole; the part `forecast` scores all of them."""
SCORED = ("deepmd", "dell-p100", "flagperf", "keras-multi-gpu", "mosaicml-diffusion", "octotiger", "tensorpack")
GPU_RUNTIMES = "[horovod/nccl, horovod/mpi, horovod/gloo, ddp/nccl, ddp/gloo, mpi/mpi, ps/mpi]"
CPU_RUNTIMES = "[horovod/mpi, horovod/gloo, ddp/gloo, ddp/mpi, mpi/mpi, ps/mpi]"


# --- asking -----------------------------------------------------------------------------------------------------------


def said(*arguments: object) -> str:
    """Return what `horovod-study ARGUMENTS` prints, or the line in which it refuses."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = cli.main([str(each) for each in arguments])
    return out.getvalue() if code == 0 else f"exit code {code}: {errors.getvalue()}"


def asked(*arguments: object) -> Any:
    """Return the JSON document that `horovod-study ARGUMENTS --json` prints."""
    text = said(*arguments, "--json")
    return json.loads(text) if text.startswith("{") else text


def analysis(runs: Path, scratch: Path, *options: object) -> dict[str, Any]:
    """Return every table and document that `horovod-study report --tables` makes of runs."""
    out = scratch / "analysis"
    said("report", "--tables", runs, "--out", out, *options)
    found: dict[str, Any] = {}
    for path in sorted(out.iterdir()):
        if path.suffix == ".csv":
            found[path.name] = table(path.read_text(encoding="utf-8"))
        elif path.name not in OTHERWISE:
            found[path.name] = json.loads(path.read_text(encoding="utf-8"))
    return found


def table(text: str) -> dict[str, Any]:
    """Return the columns of a CSV: a value that is the same in all rows, all values (texts with how often in a row)."""
    rows = list(csv.reader(io.StringIO(text)))
    columns = {name: [cell(row[place]) for row in rows[1:]] for place, name in enumerate(rows[0])}
    empty = [name for name, values in columns.items() if not any(value is not None for value in values)]
    full = {name: column(values) for name, values in columns.items() if name not in empty}
    return {"rows": len(rows) - 1, "empty": " ".join(empty), **full}


def cell(text: str) -> Any:
    """Return the value of a cell: nothing, a number or a text."""
    try:
        return float(text) if text else None
    except ValueError:
        return text


def column(values: Sequence[Any]) -> Any:
    """Return what is kept of a column or of any other list of values."""
    if len(set(values)) == 1:
        return values[0]
    if len(values) <= ROWS and any(isinstance(value, str) for value in values):
        return [f"{len(list(same))} x {value}" for value, same in groupby(values)]
    if len(values) <= ROWS:
        return list(values)
    known = [value for value in values if value is not None]
    if all(isinstance(value, int | float) for value in known):
        return summary(known)
    counts = Counter(str(value) for value in values)
    return dict(sorted(counts.items())) if len(counts) <= 10 else {"values": len(counts), "first": str(values[0])}


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return how many values there are, their mean, least and largest, and the mean in which later ones count more."""
    if not values:
        return {"count": 0}
    weights = range(1, len(values) + 1)
    later = math.fsum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)
    mean = math.fsum(values) / len(values)
    return {"count": len(values), "mean": mean, "later": later, "least": min(values), "most": max(values)}


# --- parts ------------------------------------------------------------------------------------------------------------


def schemas(scratch: Path) -> dict[str, Any]:
    """The analysis of the frozen runs of every schema."""
    return analysis(ROOT / "tests" / "runs", scratch)


def synthetic(scratch: Path) -> dict[str, Any]:
    """The analysis of the synthetic study: two partitions and batches, a failed run, a missing one, a target."""
    serial, nccl, mpi, ddp = ("serial", "none"), ("horovod", "nccl"), ("horovod", "mpi"), ("ddp", "nccl")
    runs = scratch / "synthetic"
    sizes: dict[str, Any] = {"workers": (1, 2, 4, 8, 16), "steps": 120}
    failed: dict[Cell, str] = {("alpha", *nccl, 16, 300, 2): "rank 3 ended with code 1"}
    missing: list[Cell] = [("alpha", *mpi, 8, 300, 1)]
    more: dict[str, Any] = {**sizes, "failed": failed, "missing": missing}
    write_study(runs, partitions=("alpha",), ways=(serial, nccl, mpi), batches=(75, 300), **more)
    write_study(runs, partitions=("gpu2",), ways=(serial, nccl, ddp), repeats=2, seed=2, **sizes)
    found = analysis(runs, scratch, "--target", "2e-3")
    for document in ("fits.json", "sync_fits.json", "quantities.json"):
        fits = found[document].get("fits") or found[document]["series"].values()
        for one in fits:
            one["laws"] = {law: fitted(fit, speedup=document == "fits.json") for law, fit in one["laws"].items()}
    return found


def fitted(fit: Mapping[str, Any], *, speedup: bool) -> list[Any]:
    """Return the numbers of a fitted law: parameters, how well it fits; of a speedup intervals and ends too."""
    found = [*fit["params"].values(), *(fit[name] for name in ("rmse", "aicc", "loo_error"))]
    if not speedup:
        return found
    intervals = [side for each in fit["ci95"].values() for side in each or ()]
    return [*found, *intervals, *(fit[name] for name in ("knee", "peak", "limit", "applies", "identifiable"))]


def experiments(scratch: Path) -> dict[str, Any]:
    """The plan of every study file in experiments/ on a machine of four cores: cells in their order, jobs, hours."""
    (scratch / "partitions").mkdir()
    (scratch / "partitions" / "local.yaml").write_text(
        "description: four cores\nscheduler: local\ncores_per_node: 4\ngpus_per_node: 0\n"
    )
    found: dict[str, Any] = {}
    for path in sorted((ROOT / "experiments").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"^sweep:", text, flags=re.MULTILINE):
            continue  # a search, which has trials in place of cells
        copy = scratch / path.name
        copy.write_text(re.sub(r"workers: cores.*", "workers: [1, 2, 4]", text), encoding="utf-8")
        plan = asked("run", "--plan", copy, "--runs", scratch / "runs")
        cells = sorted(plan["cells"], key=lambda each: each["place"])
        kept = ("scaling", "counts", "to_do", "seconds", "gpu_hours", "core_hours", "guessed", "budget", "over_budget")
        found[path.name] = {
            **{name: plan[name] for name in kept},
            "cells": [without_digest(each["cell"]) for each in cells],
            "names": [each["name"] for each in cells[:: max(1, len(cells) // 8)]],
            "workers_on_nodes": dict(Counter("+".join(map(str, each["placement"]["per_node"])) for each in cells)),
            "jobs": [
                [
                    job["partition"],
                    job["nodes"],
                    job["per_node"],
                    len(job["tasks"]),
                    job["seconds"],
                    job["time_limit_s"],
                ]
                for job in plan["jobs"]
            ],
            "turns": [len(block) for block in plan["turns"]["blocks"]],
        }
    return found


def launch(scratch: Path) -> dict[str, Any]:
    """Scripts of jobs and launch lines of every runtime on every partition that ships, on this machine and over ssh."""
    (scratch / "partitions").mkdir()
    generic = (ROOT / "jobs" / "partitions" / "generic.yaml").read_text(encoding="utf-8")
    (scratch / "partitions" / "told.yaml").write_text(
        f"{generic}\nmodules: [gcc/13.3, openmpi/4.1.6]\nsrun_mpi: pmix\ninterface: ib0\ntime_limit_s: 600\n"
        "environment: {NCCL_DEBUG: WARN}\n"
    )
    (scratch / "partitions" / "local.yaml").write_text(
        "description: four cores\nscheduler: local\ncores_per_node: 4\ngpus_per_node: 0\n"
    )
    names = sorted(path.stem for path in (ROOT / "jobs" / "partitions").glob("*.yaml"))
    found = {}
    for name in [*names, "told"]:
        gpus = "gres:" in said_of(scratch, name)
        found[name] = dry_run(scratch, name, GPU_RUNTIMES if gpus else CPU_RUNTIMES)
    found["local over ssh"] = dry_run(scratch, "local", CPU_RUNTIMES, "--hosts", "node1:2,node2:2", workers="[3]")
    return found


def without_digest(text: str) -> str:
    """Return a text without the digest that ends the key of a cell: any edit of the package makes another one."""
    return re.sub(r"(-r\d+)-[0-9a-f]{12}\b", r"\1", text)


def said_of(scratch: Path, partition: str) -> str:
    """Return the text of a partition's file."""
    own = scratch / "partitions" / f"{partition}.yaml"
    shipped = ROOT / "jobs" / "partitions" / f"{partition}.yaml"
    return (own if own.exists() else shipped).read_text(encoding="utf-8")


def dry_run(scratch: Path, partition: str, runtimes: str, *options: str, workers: str = "") -> list[str]:
    """Return what `run --dry-run` prints of a study on a partition, with placeholders for what is not always the same.

    Nothing of this shell's environment is handed on. What is left out is the plan, which `experiments` has.
    """
    found = re.search(r"^(?:gpus|cores)_per_node: *(?!0)(\d+)", said_of(scratch, partition), flags=re.MULTILINE)
    full = int(found[1]) if found else 4
    counts = workers or ("[2]" if partition == "local" else f"[{full}, {full + 2}]")
    file = scratch / f"on-{partition}.yaml"
    file.write_text(
        f"study: launched\npartition: {partition}\nrun: {{dataset: 1000, seconds: 60}}\nbaselines: [plain]\n"
        f"repeats: 2\nsweep:\n  workers: {counts}\n  runtime: {runtimes}\n"
    )
    bare = {"PATH": os.environ["PATH"], "HOME": str(scratch), "COLUMNS": "200"}
    with patch.dict(os.environ, bare, clear=True):
        text = said("run", file, "--runs", scratch / "runs", "--dry-run", "--oversubscribe", *options)
    if "#" not in text:
        raise RuntimeError(f"{partition}: {text}")
    text = re.sub(r"-\d{8}-\d{6}-(\d{3})-[0-9a-f]{6}", r"-TIME-\1", text[text.find("#") :])
    for path, shown in ((scratch, "SCRATCH"), (sys.prefix, "VENV"), (ROOT, "ROOT"), (" --allow-run-as-root", "")):
        text = text.replace(str(path), shown)
    text = re.sub(r"--config \S*/cells/(\S+)\.yaml --out \S*/launched/\1$", "--config CELL --out RUN", text, flags=re.M)
    text = without_digest(text)
    text = re.sub(r"(node\d+)(?:,\1)+", lambda same: f"{same[1]}(x{same[0].count(',') + 1})", text)
    return [line for line in text.splitlines() if line]


def small(scratch: Path) -> dict[str, Any]:
    """`fit --json` and `predict --json` of the smallest published tables, with every fit."""
    return {name: {**published(name, scratch), "fits": asked("fit", scratch / f"{name}.csv")} for name in SMALL_TABLES}


def tables(scratch: Path) -> dict[str, Any]:
    """`fit --json` and `predict --json` of more published tables."""
    return {name: published(name, scratch) for name in TABLES}


def published(name: str, scratch: Path) -> dict[str, Any]:
    """Return laws, forecasts, their scores and recommendations for the known rows of a published table.

    They are left as NAME.csv in `scratch`.
    """
    text = (PUBLISHED / f"{name}.csv").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(io.StringIO(text)) if row["role"] == "known"]
    used = [key for key in rows[0] if key not in ("task", "role", "repeat") and any(row[key] for row in rows)]
    path = scratch / f"{name}.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([["series", *used], *([row["task"], *(row[key] for key in used)] for row in rows)])
    largest = max(int(row["workers"]) for row in rows)
    fits = asked("fit", path)["series"]
    found: dict[str, Any] = {
        "selected": {each: one["selected"] for each, one in fits.items()},
        "laws": by_law(fits.values()),
    }
    questions = {"forecast": ("--workers", 2 * largest, 8 * largest), "holdout": ("--holdout",)}
    for question, options in {**questions, "recommendation": ("--recommend",)}.items():
        told = asked("predict", path, *options)
        found[question] = told.replace(str(scratch), "") if isinstance(told, str) else SHORT[question](told)
    return found


def values_of(*names: str) -> Callable[[Mapping[str, Any]], list[Any]]:
    """Return a function that takes these values out of a mapping."""
    return lambda found: [found[name] for name in names]


FORECAST = values_of("workers", "samples_per_s", "low", "high", "law")
SCORE = values_of("targets", "median_ape", "worst_ape", "bias", "coverage", "median_width")
ANSWER = values_of("workers", "low", "high", "samples_per_s")
SHORT: Mapping[str, Callable[[Any], Any]] = {
    "forecast": lambda told: {name: [FORECAST(one) for one in each] for name, each in told["series"].items()},
    "holdout": lambda told: {law: SCORE(each) for law, each in scores_by_law(told).items()},
    "recommendation": lambda told: {
        name: {question: ANSWER(answer) for question, answer in (each["answers"] or {}).items()}
        for name, each in told["series"].items()
    },
}
"""What is kept of the documents of `predict`, by what was asked for."""


def scores_by_law(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of each law over all series."""
    return dict(told["summary"] or next(iter(told["series"].values()))["laws"])


def by_law(fits: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what each law was fitted with over all series: how many values, their mean, least and largest.

    Parameters that the points do not identify run along a ridge until rounding stops them: these are no answer.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for one in fits:
        for law, fitted in one["laws"].items():
            values = {key: fitted[key] for key in ("rmse", "aicc", "loo_error", "knee", "peak")}
            values |= fitted["params"] if fitted["identifiable"] else {}
            values |= {"applies": float(fitted["applies"]), "identifiable": float(fitted["identifiable"])}
            for key, value in values.items():
                if value is not None:
                    found.setdefault(law, {}).setdefault(key, []).append(value)
    return {
        law: {key: [len(each), math.fsum(each) / len(each), min(each), max(each)] for key, each in values.items()}
        for law, values in found.items()
    }


def scores(scratch: Path, *options: str) -> dict[str, Any]:
    """Return the scores of benchmarks/forecast.py; Extra-P, which not everybody has, is left out."""
    benchmark("forecast", scratch, *options)
    result = json.loads((scratch / "forecast.json").read_text(encoding="utf-8"))
    groups = {
        group: {
            kind: {method: _score(method, one) for method, one in found.items() if not method.startswith("Extra-P")}
            for kind, found in each.items()
        }
        for group, each in result["groups"].items()
    }
    return {**{name: result[name] for name in ("sources", "series", "tasks", "targets")}, "groups": groups}


def _score(method: str, one: dict[str, Any]) -> dict[str, Any]:
    """Return a score; of a single law, which the points may not identify, without the width of its intervals."""
    return {name: value for name, value in one.items() if name != "median_width" or method in ("forecast", "selected")}


def some_scores(scratch: Path) -> dict[str, Any]:
    """Scores of the forecast over a few published tables."""
    return scores(scratch, "--only", *SCORED)


def forecast(scratch: Path) -> dict[str, Any]:
    """Scores of the forecast over all published tables."""
    return scores(scratch)


def simulation(scratch: Path) -> dict[str, Any]:
    """Scores of the simulator over the published all-reduces, and over the published trainings."""
    found: dict[str, Any] = {}
    for name in ("allreduce", "mlperf"):
        benchmark(name, scratch)
        page = (scratch / f"{name}.md").read_text(encoding="utf-8").splitlines()
        found[name] = {"page": [line for line in page if line], **table((scratch / f"{name}.csv").read_text())}
    return found


def benchmark(name: str, scratch: Path, *options: str) -> None:
    """Run a program of benchmarks/, which leaves its results in `scratch`."""
    program = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--out", str(scratch), *options]
    done = subprocess.run(program, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"benchmarks/{name}.py: {done.stderr}")


FAST: tuple[Callable[[Path], dict[str, Any]], ...] = (experiments, launch, small)
SLOW = (schemas, synthetic, tables, some_scores, simulation)
BY_COMMAND = (forecast,)
PARTS = {part.__name__: part for part in (*FAST, *SLOW, *BY_COMMAND)}
"""Parts that `make check` has, those that `make test` has too, and those of minutes, which this command alone has."""


# --- comparing --------------------------------------------------------------------------------------------------------


def kept(value: Any) -> Any:
    """Return what is written of a value: numbers with eight digits, nothing of what is unknown or empty."""
    if isinstance(value, Mapping):
        known = {str(key): kept(each) for key, each in value.items() if key not in NOT_KEPT}
        return {key: each for key, each in known.items() if each not in (None, "", [], {})}
    if isinstance(value, list | tuple):
        return [kept(each) for each in value]
    if isinstance(value, float):
        short = float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
        return int(short) if short is not None and short == int(short) and abs(short) < 1e15 else short
    return value


def differences(known: Any, now: Any, where: str = "") -> Iterator[str]:
    """Yield what differs, each as `place: kept, now`."""
    if isinstance(known, dict) and isinstance(now, dict):
        for key in [*known, *(each for each in now if each not in known)]:
            if key not in now or key not in known:
                yield f"{where}/{key}: {'is gone' if key in known else 'is new'}"
            else:
                yield from differences(known[key], now[key], f"{where}/{key}")
    elif isinstance(known, list) and isinstance(now, list) and len(known) == len(now):
        for place, (one, other) in enumerate(zip(known, now, strict=True)):
            yield from differences(one, other, f"{where}[{place}]")
    elif _number(known) and _number(now):
        if not math.isclose(known, now, rel_tol=CLOSE, abs_tol=NEAR_ZERO):
            share = f" ({now / known - 1:+.2e})" if known else ""
            yield f"{where}: {known!r}, now {now!r}{share}"
    elif type(known) is not type(now) or known != now:
        yield f"{where}: {_cut(known)}, now {_cut(now)}"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cut(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def made(part: str) -> Any:
    """Return what the package answers now, as it is kept."""
    with tempfile.TemporaryDirectory(prefix="goldens-") as folder:
        return kept(PARTS[part](Path(folder)))


def compared(part: str) -> list[str]:
    """Return how the answers of a part differ from those that are kept."""
    known = json.loads((RESULTS / f"{part}.json").read_text(encoding="utf-8"))
    return list(differences(known, made(part), part))


def lines(value: Any, depth: int = 2, indent: str = "") -> str:
    """Return JSON with a line for each value in the upper levels, so that a difference is read line by line."""
    inner = indent + " "
    if isinstance(value, dict) and value and depth:
        rows = [f"{inner}{json.dumps(key)}: {lines(each, depth - 1, inner)}" for key, each in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], str) and len(value) > 3:
        return "[\n" + ",\n".join(inner + json.dumps(each) for each in value) + f"\n{indent}]"
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def main() -> int:
    """Compare or write the parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--write", action="store_true", help="write them in place of comparing")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    different = 0
    for part in options.parts or PARTS:
        if options.write:
            RESULTS.mkdir(parents=True, exist_ok=True)
            text = lines(made(part)) + "\n"
            (RESULTS / f"{part}.json").write_text(text, encoding="utf-8")
            print(f"{part}: written, {len(text.encode()) / 1e3:.0f} kB", flush=True)
            continue
        found = compared(part)
        different += bool(found)
        print(f"{part}: {f'{len(found)} differences' if found else 'as kept'}", flush=True)
        print(*(f"  {each}" for each in found[:SHOWN]), sep="\n", end="\n" if found else "")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
