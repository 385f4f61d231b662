"""The proof of equality as a text that pastes into a document, as a table of values and as JSON.

What comes in is `horovod-study bench equality --json`: a mapping with `cases`, one for each parallel training run.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from horovod_study.report.kit.files import write_result
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural

Case = Mapping[str, Any]
_ERRORS = ["relative_error", "max_error", "gradient_error", "gradient_error_later"]
_KEYS = ["runtime", "workers", "reduction", "dtype", "shards", "batch", "steps", "optimizer", "lr"]
_LONGEST_LIST = 8
_FAILED = "FAILED"


def _frame(cases: Sequence[Case]) -> pd.DataFrame:
    """Return a row for each case and tensor; an error that is no number is NaN."""
    about = [*_KEYS, "passed", "judged", "float32_rounding"]
    rows = [
        {**{name: case[name] for name in about}, "tensor": each["name"], **each}
        for case in cases
        for each in case["tensors"]
    ]
    return pd.DataFrame(rows, columns=[*about, "tensor", *_ERRORS]).astype(dict.fromkeys([*_ERRORS, about[-1]], float))


def text(result: Mapping[str, Any]) -> str:
    """Return the tables, what is the same in both kinds of training, what was left out, and the verdict."""
    cases = [case for case in result["cases"] if case["tensors"]]
    wrong = f"\nWrong on purpose: --break {result['broken']}." if result["broken"] else ""
    head = (
        f"Parallel against sequential training, {plural(result['steps'], 'step', ',')} of at most "
        f"{plural(result['batch'], 'curve', ',')}: relative error ||p - q|| / ||q|| of every\nweight and bias p "
        f"against the sequential q, the worst of all ranks, of even and uneven shards and of the optimisers.{wrong}"
    )
    parts = [head, *_tables(_frame(cases), result["bounds"])]
    if cases:
        parts += [_kinds(_frame(cases), result["moved"]), _conditions(cases)]
    parts += ["\n".join(_failures([case for case in result["cases"] if not case["passed"]]))]
    parts += ["\n".join(f"not available: {name}: {why}" for name, why in result["unavailable"].items())]
    return "\n\n".join([*filter(None, parts), summary(result)])


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
    rows = _frame(result["cases"])[[*_KEYS, "tensor", *_ERRORS, "passed"]]
    return write_result(out, {"verify.txt": text(result), "verify.json": result, "verify.csv": rows})


def _tables(rows: pd.DataFrame, bounds: Mapping[str, float]) -> Iterator[str]:
    """Yield one table for each precision: a row for each runtime, number of workers and reduction."""
    by = ["runtime", "workers", "reduction"]
    for dtype, bound in bounds.items():
        here = rows[rows["dtype"] == dtype]
        if here.empty:
            continue
        judged = bool(here["judged"].any())
        shown = here[here["judged"]] if judged else here
        names = list(dict.fromkeys(here["tensor"]))
        heads = ("runtime", "workers", "reduction", *(name.replace(".", "\n", 1) for name in names), "verdict")
        failed = set(here.loc[~here["passed"].astype(bool), by].itertuples(index=False, name=None))
        told = []
        for key, own in shown.groupby(by, sort=False):
            worst = own.fillna(math.inf).groupby("tensor")["relative_error"].max()
            verdict = _FAILED if key in failed else "equal" if judged else "reported"
            told.append([*map(str, key), *map(_number, worst[names]), verdict])
        what = f"bound {bound:g}" if judged else "no bound"
        lines = to_lines(table_of(heads, told, texts=(0, 2, len(heads) - 1)))
        yield "\n".join([f"{dtype}, {' and '.join(dict.fromkeys(shown['optimizer']))}, {what}", *lines])


def _kinds(rows: pd.DataFrame, moved: Mapping[str, Mapping[str, float]]) -> str:
    """Return what else was measured, the worst of all cases of a precision and an optimiser."""
    heads = (
        *("", "parameters\n||p-q||/||q||", "largest\nelement", "gradient\nin step 1", "gradient\nlater"),
        *("float32 rounding\nof the gradient", "moved by\nat least", ""),
    )
    told = []
    for (dtype, optimizer), own in rows.groupby(["dtype", "optimizer"], sort=False):
        name, rounding = f"{dtype} {optimizer}", own["float32_rounding"].max()
        errors = [
            *map(_number, own[_ERRORS].fillna(math.inf).max()),
            "-" if math.isnan(rounding) else _number(rounding),
        ]
        judged = "judged" if own["judged"].iloc[0] else "reported"
        told.append([name, *errors, _number(min(moved[name].values())), judged])
    return "\n".join(to_lines(table_of(heads, told, texts=(0, 7))))


def _conditions(cases: Sequence[Case]) -> str:
    """Say of each condition in how many cases it is the same as in sequential training."""
    told = {}
    for name in ("order", "lr", "start", "operation"):
        held = sum(case[f"same_{name}"] for case in cases)
        told[name] = f"in {'all' if held == len(cases) else held} of {len(cases)} cases"
    factors = [math.nan if case["gradient_factor"] is None else case["gradient_factor"] for case in cases]
    factor = max(factors, key=lambda one: math.inf if math.isnan(one) else abs(one - 1))
    rates = " and ".join(sorted({f"{case['lr']:g}" for case in cases}))
    return (
        f"same order of the curves {told['order']}, same rate {told['lr']} ({rates}), same start {told['start']},\n"
        f"gradients averaged {told['operation']} (the averaged gradient is the sequential one "
        f"times 1 {'+' if factor >= 1 else '-'} {abs(factor - 1):.1e} at worst)"
    )


def _failures(failed: Sequence[Case]) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[Case]] = {}
    for case in failed:
        reasons.setdefault((case["why"], case["worst"]), []).append(case)
    for (why, worst), (first, *others) in [*reasons.items()][:_LONGEST_LIST]:
        what = [first["runtime"], plural(first["workers"], "worker", ",")]
        what += [str(first[name]) for name in ("reduction", "dtype", "optimizer", "shards") if first[name]]
        error = f"; worst is {worst}, {_number(_worst(first))}" if worst else ""
        more = f" (and {len(others)} more)" if others else ""
        yield f"{_FAILED} {', '.join(what)}{more}: {why}{error}"
    if len(reasons) > _LONGEST_LIST:
        yield f"{len(reasons) - _LONGEST_LIST} other failures are in --json"


def _worst(case: Case) -> float:
    """Return the largest error of a case, infinite where one is not a number or there is none."""
    errors = [tensor["relative_error"] for tensor in case["tensors"]]
    return max((math.inf if each is None or math.isnan(each) else each for each in errors), default=math.inf)


def _number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.1e}" if math.isfinite(value) else "no number"
