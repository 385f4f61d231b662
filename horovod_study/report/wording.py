"""The analysis in words: sentences with numbers, rounded to what their intervals say they are worth."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from horovod_study.analysis.breakdown import HOLDS_SYNC
from horovod_study.analysis.cycle import AS_EXPECTED
from horovod_study.analysis.study import Analysis
from horovod_study.report.digits import THIN as THIN
from horovod_study.report.digits import alone, fixed, known, places, significant
from horovod_study.report.style import LAPS, series_labels

ENVIRONMENT = {
    "partition": "Partition",
    "host": "Host",
    "cpu_model": "Processor",
    "cores": "Cores",
    "os": "Operating system",
    "python": "Python",
    "torch": "PyTorch",
    "horovod": "Horovod",
    "mpi": "MPI",
    "package": "horovod_study",
}
"""What is said of the place where runs were recorded, by the keys of provenance.json."""


def number(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return a number with the digits that its interval leaves certain; three digits without an interval."""
    if not known(value):
        return "unknown"
    assert value is not None
    if known(low) and known(high):
        assert low is not None and high is not None
        return fixed(value, _decimals(value, low, high))
    return alone(value)


def with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """Return `1.70 [1.66, 1.75]`, or the number alone where there is no interval."""
    if not (known(value) and known(low) and known(high)):
        return number(value)
    assert value is not None and low is not None and high is not None
    decimals = _decimals(value, low, high)
    return f"{fixed(value, decimals)} [{fixed(low, decimals)}, {fixed(high, decimals)}]"


def percent(value: float | None, *, decimals: int | None = None) -> str:
    """Return a share in per cent, in whole ones unless it is below one or `decimals` says otherwise."""
    if not known(value):
        return "unknown"
    assert value is not None
    if decimals is None:
        decimals = 1 if 0 < abs(value) < 0.0095 else 0
    return f"{fixed(100 * value, decimals)}{THIN}%"


def rounded(value: float | None, digits: int = 4) -> str:
    """Return a number with so many significant digits and its thousands apart."""
    if not known(value):
        return "unknown"
    assert value is not None
    return "0" if value == 0 else fixed(value, significant(value, digits))


def scientific(value: float | None, digits: int = 2) -> str:
    """Return 6.8e-5 for 0.000068, with a true minus sign and no zero at the end."""
    if not known(value):
        return "unknown"
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    mantissa = mantissa.rstrip("0").removesuffix(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(power)}".replace("-", "\u2212")


def milliseconds(seconds: float | None, digits: int = 3) -> str:
    """Return a time in ms, without the unit."""
    if not known(seconds):
        return "unknown"
    assert seconds is not None
    if abs(seconds) < 5e-7:
        return "0.00"
    decimals = max(0, min(3, digits - 1 - math.floor(math.log10(abs(seconds * 1000)))))
    return fixed(seconds * 1000, min(decimals, 2))


def plural(count: float, noun: str) -> str:
    """Return `1 worker` or `2 workers`."""
    return f"{count:.0f} {noun}{'' if count == 1 else 's'}"


def tips(
    rows: pd.DataFrame, value: str, *, low: str = "", high: str = "", unit: str = "", scale: float = 1.0, note: str = ""
) -> list[str]:
    """Return what pointing at each row's point says: `8 workers on 2 nodes: 3.91\u00d7 [3.82, 4.00], 3 repeats`.

    `value`, `low` and `high` are columns, multiplied by `scale` into `unit`; workers, nodes and repeats are said where
    the rows have such a column, `note` last.
    """
    after = f", {note}" if note else ""
    used = [name for name in dict.fromkeys((value, low, high, "workers", "nodes", "repeats")) if name in rows.columns]
    return [f"{_tip(row, value, low, high, unit, scale)}{after}" for row in rows[used].to_dict("records")]


def _tip(row: Mapping[Any, Any], value: str, low: str, high: str, unit: str, scale: float) -> str:
    ends = [scale * row.get(name, math.nan) for name in (low, high)]
    text, bracket, interval = with_interval(scale * row[value], *ends).partition(" [")
    unit = unit if unit in ("", "\u00d7") else f"{THIN}{unit}"
    words = [f"{text}{unit}{bracket}{interval}"]
    if known(row.get("repeats")):
        words.append(plural(row["repeats"], "repeat"))
    where = [plural(row["workers"], "worker")] if known(row.get("workers")) else []
    if known(row.get("nodes")) and row["nodes"] > 1:
        where.append(f"on {plural(row['nodes'], 'node')}")
    return f"{' '.join(where)}: {', '.join(words)}" if where else ", ".join(words)


def listed(words: Sequence[str]) -> str:
    """Return `a`, `a and b` or `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# ---------------------------------------------------------------------------------------------------- sentences


def headline(analysis: Analysis) -> str:
    """Return the one sentence that the whole study comes to."""
    findings = analysis.provenance["findings"]
    if not findings:
        best = _best(analysis)
        if best is None:
            return "No run with several workers has finished yet"
        several = analysis.learning["setting"].nunique() > 1
        return f"The smallest test MSE is {scientific(best['best_mse_median'], 3)}" + (
            f", with {best['setting']}" if several else ""
        )
    found = _largest(findings)
    best = found["series"][0]
    place = _place(found, findings, always=analysis.provenance["partitions"] not in ([], ["local"]))
    if best["speedup"] is None:
        return f"{place}{plural(found['workers'], 'worker')} process {rounded(best['samples_per_s'], 3)} samples/s"
    if found["workers"] == 1:
        return f"{place}only single workers have finished so far"
    workers, low, high = plural(found["workers"], "worker"), best["low"], best["high"]
    if low is not None and low <= 1 <= high:
        times = with_interval(best["speedup"], low, high)
        return f"{place}{workers} are not measurably faster than one: {times} times as fast"
    times = number(best["speedup"], low, high)
    if best["speedup"] < 1:
        return f"{place}{workers} are slower than one: {times} times as fast"
    return f"{place}{workers} run {times} times as fast as one"


def subheadline(analysis: Analysis) -> str:
    """Return what follows the headline: where the time is lost, and how many workers are worth it; empty if unknown."""
    findings = analysis.provenance["findings"]
    if not findings:
        return ""
    found = _largest(findings)
    clauses = [clause for clause in (_loss(analysis, found), _worth(analysis, found)) if clause]
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}" if text else ""


def _largest(findings: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the finding that the headline is about: the most workers, and there the highest speedup."""
    return max(findings, key=lambda found: (found["workers"], found["series"][0]["speedup"] or 0))


WHOLE = 1.05
"""A part that grew by so much of the loss is all of it; the others then shrank by no more than noise."""


def _loss(analysis: Analysis, found: Mapping[str, Any]) -> str:
    """Return the largest part of the time that a step lost against ideal scaling.

    Only where a loss is resolved from noise, all parts of the growth are known and none of them hides another's.
    """
    best, step = found["series"][0], found["step"]
    if found["workers"] < 2 or best["speedup"] is None or best["high"] is None or best["high"] >= found["workers"]:
        return ""
    if step is None or not known(step["grown_s"]) or step["grown_s"] <= 0 or found["mode"] not in ("weak", "strong"):
        return ""
    growth = step["growth"]
    if not all(known(part) for part in growth.values()):
        return ""
    lap, part = max(growth.items(), key=lambda each: each[1])
    if not 0.005 <= part <= WHOLE:
        return ""
    cycle = _cycle_share(analysis, best["series"], found) if lap == "sync" else None
    part = min(part, 1.0)
    if cycle is not None and 0.005 <= cycle * part:
        return f"{percent(cycle * part)} of the loss is Horovod's cycle"
    share = "nearly all" if part > 0.985 else percent(part)
    return f"{share} of the loss is {'waiting for gradients' if lap == 'sync' else LAPS[lap].label}"


def _cycle_share(analysis: Analysis, series: str, found: Mapping[str, Any]) -> float | None:
    """Return which part of the wait is Horovod's cycle, where runs with other cycle times of this very cell tell it.

    They tell it at the default cycle, so the series must be one that ran with it.
    """
    own = analysis.points[analysis.points["series"] == series].iloc[0]
    if not bool(own["horovod_defaults"]):
        return None
    table = analysis.cycle
    same = (table["partition"] == own["partition"]) & (table["workers"] == found["workers"])
    same &= (table["nodes"] == found["nodes"]) & (table["batch"] == own["batch"]) & table["horovod_defaults"].eq(True)
    same &= (table["transport"] == own["transport"]) & (table["verdict"] == AS_EXPECTED) & table["share_low"].notna()
    rows = table[same]
    return float(rows["share_at_default"].iloc[0]) if len(rows) == 1 else None


def _worth(analysis: Analysis, found: Mapping[str, Any]) -> str:
    """Return the worker count from which on another one costs more than it gives, with its interval; empty if open."""
    document = analysis.holdout["series"].get(found["series"][0]["series"])
    if document is None or document["recommendation"] is None:
        return ""
    knee = document["recommendation"]["answers"].get("knee")
    if knee is None or knee["why_not"] or not all(known(knee[name]) for name in ("workers", "low", "high")):
        return ""
    beyond = f"{knee['workers']} workers lie beyond the"  # said as "by forecast"
    if any(not doubt.startswith(beyond) for doubt in knee["doubts"]):
        return ""
    told = "by forecast, " if knee["workers"] > found["workers"] else ""
    count = plural(knee["workers"], "worker")
    return f"{told}more than {count} cost more than they give [{knee['low']:.0f}, {knee['high']:.0f}]"


def sentences(analysis: Analysis) -> list[list[str]]:
    """Return what was found, per partition and setting, in plain sentences; the first one says the most."""
    labels = series_labels(analysis.points)
    findings = analysis.provenance["findings"]
    first = _largest(findings) if findings else None
    return [_sentences(found, findings, labels) for found in sorted(findings, key=lambda each: each is not first)]


def learned(analysis: Analysis) -> list[str]:
    """Return what was learned and how soon, in plain sentences."""
    best = _best(analysis)
    if best is None:
        return []
    labels = series_labels(analysis.points)
    several = analysis.learning["setting"].nunique() > 1
    text = (
        f"The smallest test MSE is {scientific(best['best_mse_median'], 3)}, reached by "
        f"{_who(best, labels, several=several)} after {best['best_epoch']:.3g} epochs and "
        f"{rounded(best['best_train_s'], 3)}{THIN}s of training"
    )
    if known(best["floor_mse"]):
        text += (
            f"; the statistical floor of the test curves is {scientific(best['floor_mse'])}, which makes an efficiency "
            f"of {percent(best['efficiency'])}"
        )
    return [f"{text}.", *_to_target(analysis, labels, several=several)]


def _best(analysis: Analysis) -> Any:
    """Return the row of the smallest test MSE, or None."""
    table = analysis.learning[analysis.learning["best_mse_median"].notna()]
    if table.empty:
        return None
    return table.sort_values(["best_mse_median", "best_train_s"], kind="stable").iloc[0]


def _to_target(analysis: Analysis, labels: Mapping[str, str], *, several: bool) -> list[str]:
    table = analysis.targets
    text = []
    met = table[(table["workers"] > 1) & table["speedup"].notna()]
    if len(met):
        met = met[met["target_mse"] == met["target_mse"].min()]
        row = met.sort_values(["workers", "speedup"], ascending=False, kind="stable").iloc[0]
        base = {"plain": "one plain worker", "wrapped": "one worker of the same library"}[row["base"]]
        text.append(
            f"A test MSE of {scientific(row['target_mse'])} takes {_who(row, labels, several=several)} "
            f"{rounded(row['train_s'], 3)}{THIN}s, "
            f"{with_interval(row['speedup'], row['speedup_low'], row['speedup_high'])} times as fast as {base}: the "
            f"throughput is {number(row['throughput_ratio'])} times as high, and the statistical efficiency "
            f"{number(row['statistical_efficiency'])}."
        )
    open_ = table[table["censored"].astype(bool)]
    if len(open_):
        text.append(
            f"{len(open_)} of {len(table)} times to target are lower bounds only: the target was not met in the time "
            "that was given."
        )
    return text


def _who(row: Any, labels: Mapping[str, str], *, several: bool) -> str:
    words = labels[row["series"]]
    if row["backend"] != "serial":
        words = f"{plural(row['workers'], 'worker')} over {words}"
    return f"{words} ({row['setting']})" if several else words


def _place(found: Mapping[str, Any], findings: Sequence[Mapping[str, Any]], *, always: bool = False) -> str:
    """Return what tells this finding apart from the others, as the start of a sentence; its partition also `always`."""
    words = []
    if always or len({each["partition"] for each in findings}) > 1:
        words.append(f"on {found['partition']}")
    if len({each["setting"] for each in findings}) > 1:
        words.append(f"with {found['setting']}")
    text = " ".join(words)
    return f"{text[0].upper()}{text[1:]}, " if text else ""


def _sentences(found: Mapping[str, Any], findings: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> list[str]:
    best, *others = found["series"]
    workers = plural(found["workers"], "worker")
    label = labels[best["series"]]
    base = {"plain": "one plain worker", "wrapped": "one worker of the same library"}[found["baseline"]]
    text = []
    if best["speedup"] is None:
        speed = rounded(best["samples_per_s"])
        text.append(f"{_place(found, findings)}{workers} process {speed} samples/s over {label}; there is no baseline.")
    else:
        sentence = (
            f"{_place(found, findings)}{workers} over {label} run {_speedup(best)} times as fast as {base}, "
            f"an efficiency of {percent(best['efficiency'])}"
        )
        rest = [
            f"over {labels[other['series']]} {_speedup(other)} times"
            for other in others
            if other["speedup"] is not None
        ]
        text.append(f"{sentence}; {listed(rest)}." if rest else f"{sentence}.")
    text += _differences(found["comparisons"], labels)
    text += _step(found, label)
    text += _overheads(found["overheads"], labels)
    return text


def _speedup(result: Mapping[str, Any]) -> str:
    value = with_interval(result["speedup"], result["low"], result["high"])
    return value if result["low"] is not None else f"{value} [{plural(result['repeats'], 'repeat')}, no interval]"


def _differences(comparisons: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> list[str]:
    text = []
    for each in comparisons:
        fast, slow = labels[each["faster"]], labels[each["slower"]]
        if each["resolved"] is None:
            text.append(f"Whether {fast} is really faster than {slow} is open: too few repeats for an interval.")
        elif each["resolved"]:
            ratio = with_interval(each["ratio"], each["low"], each["high"])
            text.append(f"{fast} is {ratio} times as fast as {slow}.")
        else:
            ratio = with_interval(each["ratio"], each["low"], each["high"])
            text.append(f"The difference between {fast} and {slow} is not resolved (ratio {ratio}).")
    return text


def _step(found: Mapping[str, Any], label: str) -> list[str]:
    step = found["step"]
    if step is None or found["workers"] == 1:
        return []
    share, growth, grown = step["share"], step["growth"], step["grown_s"]
    text = f"A step with {plural(found['workers'], 'worker')} over {label} takes {milliseconds(step['step_s'])}{THIN}ms"
    if share["sync"] is None:
        where = "CUDA graph" if HOLDS_SYNC.get(step["note"]) == "compute" else "backward pass"
        text += f"; the wait for gradients happens inside the {where}, where it cannot be told apart"
    else:
        text += f", of which {percent(share['sync'])} is waiting for gradients"
    if grown is not None and all(value is not None for value in growth.values() if share["sync"] is not None):
        lap, part = max(((lap, value) for lap, value in growth.items() if value is not None), key=lambda each: each[1])
        than = {
            "weak": "than the step of the baseline",
            "strong": "than an ideal share of the baseline's step",
        }.get(found["mode"], "than the step of the baseline")
        name = "waiting for gradients" if lap == "sync" else LAPS[lap].label
        if grown > 0:
            text += f". That is {milliseconds(grown)}{THIN}ms longer {than}"
            if part > 1:
                text += f": {name} alone adds {milliseconds(part * grown)}{THIN}ms, while other parts got shorter"
            else:
                text += f", and {percent(part)} of the difference is {name}"
    return [f"{text}."]


def _overheads(overheads: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> list[str]:
    costs, ties = [], []
    for each in overheads:
        label, low, high = labels[each["series"]], each["low"], each["high"]
        if low is None or low <= 1 <= high:
            ties.append(label)
        else:
            side = "slower" if each["speedup"] < 1 else "faster"
            costs.append(
                f"{percent(abs(1 - each['speedup']), decimals=1 if high - low < 0.02 else 0)} {side} inside {label}"
            )
    text = []
    if costs:
        text.append(f"One worker alone is {listed(costs)} than without any communication library.")
    if ties:
        text.append(f"For one worker alone, no difference to plain PyTorch is resolved inside {listed(ties)}.")
    return text


# ---------------------------------------------------------------------------------------------------- digits


def _decimals(value: float, low: float, high: float) -> int:
    """Return the decimals that an interval is worth, but at most two above one: in a sentence nobody reads a third."""
    decimals = places(value, low, high)
    return decimals if abs(value) < 1 else min(decimals, 2)
