"""The proof of equality as a text that pastes into a document, as a table of values and as JSON.

What comes in is `horovod-study verify --json`: a mapping with `cases`, one for each parallel training run.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod_study.files import csv_rows, write_file, writing
from horovod_study.records import finite
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural

Case = Mapping[str, Any]
_LONGEST_LIST = 8
_FAILED = "FAILED"


def text(result: Mapping[str, Any]) -> str:
    """Return the tables, what is the same in both kinds of training, what was left out, and the verdict."""
    cases = [case for case in result["cases"] if case["tensors"]]
    parts = [_head(result), *_tables(cases, result["bounds"])]
    if cases:
        parts += [_kinds(cases, result["moved"]), _conditions(cases)]
    if failures := _failures(result["cases"]):
        parts.append(failures)
    if result["unavailable"]:
        parts.append("\n".join(f"not available: {name}: {why}" for name, why in result["unavailable"].items()))
    return "\n\n".join([*parts, summary(result)])


def summary(result: Mapping[str, Any]) -> str:
    """Return the verdict in a line, with the worst judged error of each precision."""
    cases = result["cases"]
    good = sum(case["passed"] for case in cases)
    worst = []
    for dtype, bound in result["bounds"].items():
        judged = [case for case in cases if case["dtype"] == dtype and case["judged"] and case["tensors"]]
        if judged:
            case = max(judged, key=_worst)
            where = f"{case['worst']}, {case['runtime']}, {plural(case['workers'], 'worker', ',')}"
            worst.append(f"worst in {dtype} {_number(_worst(case))} ({where}; bound {bound:g})")
    verdict = "equal" if result["passed"] else "NOT EQUAL"
    return f"{verdict}: {good} of {len(cases)} cases passed" + "".join(f"; {each}" for each in worst)


def write(result: Mapping[str, Any], out: Path) -> list[Path]:
    """Write verify.txt, verify.json and verify.csv (a row for each case and tensor) to `out`; return the paths."""
    files = {
        "verify.txt": text(result) + "\n",
        "verify.json": json.dumps(finite(dict(result)), allow_nan=False) + "\n",
        "verify.csv": _csv(result["cases"]),
    }
    with writing(out, "choose a writable --out"):
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_file(out / name, content)
    return [out / name for name in files]


def _head(result: Mapping[str, Any]) -> str:
    wrong = f"\nWrong on purpose: --break {result['broken']}." if result["broken"] else ""
    return (
        f"Parallel against sequential training, {plural(result['steps'], 'step', ',')} of at most "
        f"{plural(result['batch'], 'curve', ',')}: relative error ||p - q|| / ||q|| of every\nweight and bias p "
        f"against the sequential q, the worst of all ranks, of even and uneven shards and of the optimisers.{wrong}"
    )


def _tables(cases: Sequence[Case], bounds: Mapping[str, float]) -> list[str]:
    """Return one table for each precision: a row for each runtime, number of workers and reduction."""
    tables = []
    for dtype, bound in bounds.items():
        here = [case for case in cases if case["dtype"] == dtype]
        if not here:
            continue
        judged = [case for case in here if case["judged"]]
        groups, verdicts = (_grouped(those, "runtime", "workers", "reduction") for those in (judged or here, here))
        names = [tensor["name"] for tensor in here[0]["tensors"]]
        heads = ("runtime", "workers", "reduction", *(name.replace(".", "\n", 1) for name in names), "verdict")
        rows = []
        for key, group in groups.items():
            errors = [
                _largest(case["tensors"][place]["relative_error"] for case in group) for place in range(len(names))
            ]
            good = "equal" if judged else "reported"
            verdict = good if all(case["passed"] for case in verdicts[key]) else _FAILED
            rows.append([*map(str, key), *map(_number, errors), verdict])
        optimizers = " and ".join(dict.fromkeys(case["optimizer"] for case in judged or here))
        what = f"bound {bound:g}" if judged else "no bound"
        lines = to_lines(table_of(heads, rows, texts=(0, 2, len(heads) - 1)))
        tables.append("\n".join([f"{dtype}, {optimizers}, {what}", *lines]))
    return tables


def _kinds(cases: Sequence[Case], moved: Mapping[str, Mapping[str, float]]) -> str:
    """Return what else was measured, the worst of all cases of a precision and an optimiser."""
    heads = (
        *("", "parameters\n||p-q||/||q||", "largest\nelement", "gradient\nin step 1", "gradient\nlater"),
        *("float32 rounding\nof the gradient", "moved by\nat least", ""),
    )
    rows = []
    for (dtype, optimizer), group in _grouped(cases, "dtype", "optimizer").items():
        columns = ("relative_error", "max_error", "gradient_error", "gradient_error_later")
        tensors = [tensor for case in group for tensor in case["tensors"]]
        errors = [_number(_largest(tensor[name] for tensor in tensors)) for name in columns]
        known = group[0]["float32_rounding"] is not None
        rounding = _number(max(_float(case["float32_rounding"]) for case in group)) if known else "-"
        way = _number(min(moved[f"{dtype} {optimizer}"].values()))
        rows.append([f"{dtype} {optimizer}", *errors, rounding, way, "judged" if group[0]["judged"] else "reported"])
    return "\n".join(to_lines(table_of(heads, rows, texts=(0, 7))))


def _conditions(cases: Sequence[Case]) -> str:
    """Say of each condition in how many cases it is the same as in sequential training."""
    parts = []
    for name, words in (
        ("same_order", "same order of the curves"),
        ("same_lr", "same rate"),
        ("same_start", "same start"),
        ("same_operation", "gradients averaged"),
    ):
        held = sum(case[name] for case in cases)
        parts.append(f"{words} in {'all' if held == len(cases) else held} of {len(cases)} cases")
    factor = max((_float(case["gradient_factor"]) for case in cases), key=lambda one: _order(abs(one - 1)))
    rates = " and ".join(sorted({f"{case['lr']:g}" for case in cases}))
    return (
        f"{parts[0]}, {parts[1]} ({rates}), {parts[2]},\n{parts[3]} (the averaged gradient is the sequential one "
        f"times 1 {'+' if factor >= 1 else '-'} {abs(factor - 1):.1e} at worst)"
    )


def _failures(cases: Sequence[Case]) -> str:
    failed = _grouped([case for case in cases if not case["passed"]], "why", "worst")
    lines = []
    for (why, worst), group in list(failed.items())[:_LONGEST_LIST]:
        first = group[0]
        what = [first["runtime"], plural(first["workers"], "worker", ",")]
        what += [str(first[name]) for name in ("reduction", "dtype", "optimizer", "shards") if first[name]]
        error = f"; worst is {worst}, {_number(_worst(first))}" if worst else ""
        more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
        lines.append(f"{_FAILED} {', '.join(what)}{more}: {why}{error}")
    if len(failed) > _LONGEST_LIST:
        lines.append(f"{len(failed) - _LONGEST_LIST} other failures are in --json")
    return "\n".join(lines)


def _csv(cases: Sequence[Case]) -> str:
    keys = ("runtime", "workers", "reduction", "dtype", "shards", "batch", "steps", "optimizer", "lr")
    errors = ("relative_error", "max_error", "gradient_error", "gradient_error_later")
    rows = []
    for case in cases:
        for tensor in case["tensors"]:
            values = {name: "" if tensor[name] is None else repr(tensor[name]) for name in errors}
            about = {"tensor": tensor["name"], "passed": case["passed"]}
            rows.append({**{key: case[key] for key in keys}, **values, **about})
    return csv_rows([*keys, "tensor", *errors, "passed"], rows)


def _grouped(cases: Sequence[Case], *names: str) -> dict[tuple[Any, ...], list[Case]]:
    groups: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        groups.setdefault(tuple(case[name] for name in names), []).append(case)
    return groups


def _largest(errors: Iterable[float | None]) -> float:
    """Return the largest error, or one that is not a number where there is any."""
    return max(map(_float, errors), key=_order)


def _worst(case: Case) -> float:
    """Return the largest error of a case, infinite where one is not a number or there is none."""
    return max((_order(_float(tensor["relative_error"])) for tensor in case["tensors"]), default=math.inf)


def _float(value: float | None) -> float:
    return math.nan if value is None else value


def _order(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.1e}" if math.isfinite(value) else "no number"
