"""The proof of equality as a text that pastes into a document, as a table of values and as JSON.

What comes in is `horovod-study bench equality --json`: a mapping with `cases`, one for each parallel training run.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from horovod_study.report.kit.files import write_result
from horovod_study.text.tables import NOTHING, table_of, to_lines
from horovod_study.text.words import plural

Case = Mapping[str, Any]
_ERRORS = ["relative_error", "max_error", "gradient_error", "gradient_error_later"]
_KEYS = ["runtime", "workers", "reduction", "dtype", "shards", "batch", "steps", "optimizer", "lr"]
_HEADS = (
    *("", "parameters\n||p-q||/||q||", "largest\nelement", "gradient\nin step 1", "gradient\nlater"),
    *("float32 rounding\nof the gradient", "moved by\nat least", ""),
)
_MOST = 8  # failures of one reason each


def _frame(cases: Sequence[Case]) -> pd.DataFrame:
    """Return a row for each case and tensor; an error that is no number is NaN."""
    about = [*_KEYS, "passed", "judged", "float32_rounding"]
    rows = [{**case, **each, "tensor": each["name"]} for case in cases for each in case["tensors"]]
    return pd.DataFrame(rows, columns=[*about, "tensor", *_ERRORS]).astype(dict.fromkeys([*_ERRORS, about[-1]], float))


def text(result: Mapping[str, Any]) -> str:
    """Return the tables, what is the same in both kinds of training, what was left out, and the verdict."""
    cases = [case for case in result["cases"] if case["tensors"]]
    rows = _frame(cases)
    parts = [
        f"Parallel against sequential training, {plural(result['steps'], 'step', ',')} of at most "
        f"{plural(result['batch'], 'curve', ',')}: relative error ||p - q|| / ||q|| of every\nweight and bias p "
        "against the sequential q, the worst of all ranks, of even and uneven shards and of the optimisers."
        + (f"\nWrong on purpose: --break {result['broken']}." if result["broken"] else "")
    ]
    parts += [_tensors(rows[rows["dtype"] == dtype], bound) for dtype, bound in result["bounds"].items()]
    if cases:
        parts += [_kinds(rows, result["moved"]), _conditions(cases)]
    parts.append("\n".join(_failures([case for case in result["cases"] if not case["passed"]])))
    parts.append("\n".join(f"not available: {name}: {why}" for name, why in result["unavailable"].items()))
    return "\n\n".join([*filter(None, parts), summary(result)])


def summary(result: Mapping[str, Any]) -> str:
    """Return the verdict in a line, with the worst judged error of each precision."""
    cases = result["cases"]
    verdict = "equal" if result["passed"] else "NOT EQUAL"
    worst = [f"{verdict}: {sum(case['passed'] for case in cases)} of {len(cases)} cases passed"]
    for dtype, bound in result["bounds"].items():
        judged = [case for case in cases if case["dtype"] == dtype and case["judged"] and case["tensors"]]
        if judged:
            case = max(judged, key=_worst)
            where = f"{case['worst']}, {case['runtime']}, {plural(case['workers'], 'worker', ',')}"
            worst.append(f"worst in {dtype} {_number(_worst(case))} ({where}; bound {bound:g})")
    return "; ".join(worst)


def write(result: Mapping[str, Any], out: Path) -> list[Path]:
    """Write verify.txt, verify.json and verify.csv (a row for each case and tensor) to `out`; return the paths."""
    rows = _frame(result["cases"])[[*_KEYS, "tensor", *_ERRORS, "passed"]]
    return write_result(out, {"verify.txt": text(result), "verify.json": result, "verify.csv": rows})


def _tensors(here: pd.DataFrame, bound: float) -> str:
    """Return the table of one precision: a row for each runtime, number of workers and reduction."""
    if here.empty:
        return ""
    judged = bool(here["judged"].any())
    names, told = list(dict.fromkeys(here["tensor"])), []
    shown = here[here["judged"]] if judged else here
    by = ["runtime", "workers", "reduction"]
    passed = here.groupby(by)["passed"].all().to_dict()
    for key, own in shown.groupby(by, sort=False):
        worst = own.fillna(math.inf).groupby("tensor")["relative_error"].max()
        verdict = "FAILED" if not passed[key] else "equal" if judged else "reported"
        told.append([*map(str, key), *map(_number, worst[names]), verdict])
    heads = ("runtime", "workers", "reduction", *(name.replace(".", "\n", 1) for name in names), "verdict")
    about = f"{here['dtype'].iloc[0]}, {' and '.join(dict.fromkeys(shown['optimizer']))}"
    lines = to_lines(table_of(heads, told, texts=(0, 2, len(heads) - 1)))
    return "\n".join([f"{about}, {f'bound {bound:g}' if judged else 'no bound'}", *lines])


def _kinds(rows: pd.DataFrame, moved: Mapping[str, Mapping[str, float]]) -> str:
    """Return what else was measured, the worst of all cases of a precision and an optimiser."""
    told = []
    for (dtype, optimizer), own in rows.groupby(["dtype", "optimizer"], sort=False):
        name, rounding = f"{dtype} {optimizer}", own["float32_rounding"].max()
        errors = [*own[_ERRORS].fillna(math.inf).max(), rounding, min(moved[name].values())]
        told.append([name, *map(_number, errors), "judged" if own["judged"].iloc[0] else "reported"])
    return "\n".join(to_lines(table_of(_HEADS, told, texts=(0, 7))))


def _conditions(cases: Sequence[Case]) -> str:
    """Say of each condition in how many cases it is the same as in sequential training."""
    held = [sum(case[f"same_{name}"] for case in cases) for name in ("order", "lr", "start", "operation")]
    factors = [math.inf if case["gradient_factor"] is None else abs(case["gradient_factor"] - 1) for case in cases]
    rates = " and ".join(sorted({f"{case['lr']:g}" for case in cases}))
    return (
        "the same in {} of {n} cases: order of the curves; in {}: rate ({rates}); in {}: start; in {}: average of the "
        "gradients (times 1 +- {off} at worst)"
    ).format(*held, n=len(cases), rates=rates, off=_number(max(factors)))


def _failures(failed: Sequence[Case]) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[Case]] = {}
    for case in failed:
        reasons.setdefault((case["why"], case["worst"]), []).append(case)
    for (why, worst), (first, *others) in [*reasons.items()][:_MOST]:
        what = [first["runtime"], plural(first["workers"], "worker", ",")]
        what += [str(first[name]) for name in ("reduction", "dtype", "optimizer", "shards") if first[name]]
        error = f"; worst is {worst}, {_number(_worst(first))}" if worst else ""
        yield f"FAILED {', '.join(what)}{f' (and {len(others)} more)' if others else ''}: {why}{error}"
    if len(reasons) > _MOST:
        yield f"{len(reasons) - _MOST} other failures are in --json"


def _worst(case: Case) -> float:
    """Return the largest error of a case, infinite where one is not a number or there is none."""
    errors = [tensor["relative_error"] for tensor in case["tensors"]]
    return max((math.inf if each is None or math.isnan(each) else each for each in errors), default=math.inf)


def _number(value: float) -> str:
    if math.isnan(value) or value == 0:
        return NOTHING if value else "0"
    return f"{value:.1e}" if math.isfinite(value) else "no number"
