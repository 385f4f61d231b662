"""The analysis in words: sentences with numbers, rounded to what their intervals say they are worth."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from horovod_study.analysis.study import Analysis
from horovod_study.report.style import LAPS, series_labels

THIN = "\u202f"
"""A narrow space that does not break: between a number and its unit, and between thousands."""


def number(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return a number with the digits that its interval leaves certain; three digits without an interval."""
    if not _known(value):
        return "unknown"
    assert value is not None
    if _known(low) and _known(high):
        assert low is not None and high is not None
        return _fixed(value, _decimals(value, low, high))
    return _fixed(value, 2 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value)))))


def with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """Return `1.70 [1.66, 1.75]`, or the number alone where there is no interval."""
    if not (_known(value) and _known(low) and _known(high)):
        return number(value)
    assert value is not None and low is not None and high is not None
    decimals = _decimals(value, low, high)
    return f"{_fixed(value, decimals)} [{_fixed(low, decimals)}, {_fixed(high, decimals)}]"


def percent(value: float | None, *, decimals: int | None = None) -> str:
    """Return a share in per cent, in whole ones unless it is below one or `decimals` says otherwise."""
    if not _known(value):
        return "unknown"
    assert value is not None
    if decimals is None:
        decimals = 1 if 0 < abs(value) < 0.0095 else 0
    return f"{_fixed(100 * value, decimals)}{THIN}%"


def rounded(value: float | None, digits: int = 4) -> str:
    """Return a number with so many significant digits and its thousands apart."""
    if not _known(value):
        return "unknown"
    assert value is not None
    if value == 0:
        return "0"
    return _fixed(value, max(0, digits - 1 - math.floor(math.log10(abs(value)))), digits)


def scientific(value: float | None, digits: int = 2) -> str:
    """Return 6.8e-5 for 0.000068, with a true minus sign and no zero at the end."""
    if not _known(value):
        return "unknown"
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    mantissa = mantissa.rstrip("0").removesuffix(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(power)}".replace("-", "\u2212")


def milliseconds(seconds: float | None, digits: int = 3) -> str:
    """Return a time in ms, without the unit."""
    if not _known(seconds):
        return "unknown"
    assert seconds is not None
    if abs(seconds) < 5e-7:
        return "0.00"
    decimals = max(0, min(3, digits - 1 - math.floor(math.log10(abs(seconds * 1000)))))
    return _fixed(seconds * 1000, min(decimals, 2))


def plural(count: float, noun: str) -> str:
    """Return `1 worker` or `2 workers`."""
    return f"{count:.0f} {noun}{'' if count == 1 else 's'}"


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
    found = max(findings, key=lambda found: (found["workers"], found["series"][0]["speedup"] or 0))
    best = found["series"][0]
    place = _place(found, findings)
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


def sentences(analysis: Analysis) -> list[list[str]]:
    """Return what was found, per partition and setting, in plain sentences; the first one says the most."""
    labels = series_labels(analysis.points)
    findings = analysis.provenance["findings"]
    return [_sentences(found, findings, labels) for found in findings]


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
    if _known(best["floor_mse"]):
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
    known = table[(table["workers"] > 1) & table["speedup"].notna()]
    if len(known):
        known = known[known["target_mse"] == known["target_mse"].min()]
        row = known.sort_values(["workers", "speedup"], ascending=False, kind="stable").iloc[0]
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


def _place(found: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    """Return what tells this finding apart from the others, as the start of a sentence."""
    words = []
    if len({each["partition"] for each in findings}) > 1:
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
        text += "; the wait for gradients happens inside the backward pass, where it cannot be told apart"
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


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _decimals(value: float, low: float, high: float) -> int:
    """Return the decimals that an interval is worth: to the first digit of its half, to the second if that is small.

    The rule of the Particle Data Group (two digits of an uncertainty between 10 and 35), but no more than two
    decimals for numbers above one: nobody reads a third.
    """
    half = (high - low) / 2
    if half <= 0:
        return 2
    place = math.floor(math.log10(half))
    decimals = -place + (1 if half / 10**place < 3.55 else 0)
    if abs(value) < 1:
        return max(0, decimals)
    return max(1 if abs(value) < 10 else 0, min(decimals, 2))


def _fixed(value: float, decimals: int, digits: int | None = None) -> str:
    if digits is not None and decimals == 0 and abs(value) >= 10**digits:
        scale = 10 ** (math.floor(math.log10(abs(value))) + 1 - digits)
        value = round(value / scale) * scale
    text = f"{value:,.{decimals}f}".replace(",", THIN)
    return text.replace("-", "\u2212") if float(f"{value:.{decimals}f}") else text.replace("-", "")
