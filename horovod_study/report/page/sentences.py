"""The analysis in words: sentences with numbers, rounded to what their intervals say they are worth."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from horovod_study.analysis.series.culprits import WORTH
from horovod_study.analysis.steps.breakdown import HOLDS_SYNC
from horovod_study.analysis.study import Analysis
from horovod_study.analysis.sync.cycle import AS_EXPECTED
from horovod_study.analysis.sync.transports import RESOLVED
from horovod_study.records import COMMAND
from horovod_study.report.kit.style import LAPS, series_labels
from horovod_study.text.numbers import THIN, known, milliseconds, number, percent, rounded, scientific, with_interval
from horovod_study.text.words import listed, plural

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


_BASES = {"plain": "one plain worker", "wrapped": "one worker of the same library"}


def base_of(found: Mapping[str, Any]) -> str:
    """Return what the speedups of a finding are over, in words."""
    return f"{found.get('base') or _BASES[found['baseline']]}"


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
    found = _largest(analysis)
    best = found["series"][0]
    place = _place(found, findings, always=analysis.provenance["partitions"] not in ([], ["local"]))
    if found.get("apart"):
        return f"{place}{plural(found['workers'], 'worker')} train models of their own: no speedup"
    if best["speedup"] is None:
        rate = f"{rounded(best['samples_per_s'])} {analysis.rate_unit}"
        why = f"; no speedup: {found['withheld']}" if found.get("withheld") else ""
        return f"{place}{plural(found['workers'], 'worker')} {_verb(found, 'process')} {rate}{why}"
    if found["workers"] == 1:
        return f"{place}{'only' if place else 'Only'} single workers have finished so far"
    workers, low, high = plural(found["workers"], "worker"), best["low"], best["high"]
    if low is not None and low <= 1 <= high:
        times = with_interval(best["speedup"], low, high)
        return f"{place}{workers} are not measurably faster than one: {times} times as fast"
    times = number(best["speedup"], low, high)
    if best["speedup"] < 1:
        return f"{place}{workers} are slower than one: {times} times as fast"
    return f"{place}{workers} run {times} times as fast as one"


def _verb(found: Mapping[str, Any], verb: str) -> str:
    return verb if found["workers"] > 1 else f"{verb}{'es' if verb.endswith('s') else 's'}"


def no_speedup(analysis: Analysis) -> str:
    """Return why there is no speedup to draw."""
    why = [found["withheld"] for found in analysis.provenance["findings"] if found.get("withheld")]
    return f"No speedup is drawn: {why[0] if why else 'there is no point of several workers with a baseline'}."


def subheadline(analysis: Analysis) -> str:
    """Return what follows the headline: where the time is lost, and how many workers are worth it; empty if unknown."""
    findings = analysis.provenance["findings"]
    if not findings:
        return ""
    found = _largest(analysis)
    clauses = [*found.get("culprits", ()), *filter(None, (_loss(analysis, found), _worth(analysis, found)))]
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}" if text else ""


def outside(analysis: Analysis) -> str:
    """Return how much time is outside of steps where the headline is about, and the rate with it; empty if unknown, and
    where it rounds to nothing."""
    told = (_largest(analysis) if analysis.provenance["findings"] else {}).get("outside") or {}
    if (told.get("share") or 0.0) < 5e-4:
        return ""
    text = f"{percent(told['share'])} of the training's time is outside of steps (evaluation, checkpoints, waiting)"
    if told["share"] < WORTH or told["samples_per_s"] is None:
        return text
    job = "" if told["speedup"] is None else f", {rounded(told['speedup'], 3)} times as many as one worker"
    return f"{text}: the whole job makes {rounded(told['samples_per_s'])} {analysis.rate_unit}{job}"


def answer(analysis: Analysis) -> list[str]:
    """Return headline, subheadline and the time outside of steps as sentences, those that there are."""
    return [f"{text.rstrip('.')}." for make in (headline, subheadline, outside) if (text := make(analysis))]


def _largest(analysis: Analysis) -> Mapping[str, Any]:
    """Return the finding that the headline is about: the most workers, and there the highest speedup.

    What was run at one count says nothing of scaling, and leads only where all was.
    """
    counts = analysis.points.groupby(["partition", "setting"])["workers"].nunique()

    def size(found: Mapping[str, Any]) -> tuple[bool, int, float]:
        several = bool(counts.get((found["partition"], found["setting"]), 0) > 1)
        return several, found["workers"], found["series"][0]["speedup"] or 0

    return max(analysis.provenance["findings"], key=size)


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
    beyond = f"{knee['workers']} workers are beyond the"  # said as "by forecast"
    if any(not doubt.startswith(beyond) for doubt in knee["doubts"]):
        return ""
    told = "by forecast, " if knee["workers"] > found["workers"] else ""
    count = plural(knee["workers"], "worker")
    return f"{told}more than {count} cost more than they give [{knee['low']:.0f}, {knee['high']:.0f}]"


def sentences(analysis: Analysis) -> list[list[str]]:
    """Return what was found, per partition and setting, in plain sentences; the first one says the most."""
    labels = series_labels(analysis.points)
    findings = analysis.provenance["findings"]
    first = _largest(analysis) if findings else None
    told = sorted(findings, key=lambda each: each is not first)
    made = (_sentences(found, findings, labels, analysis.transports, analysis.rate_unit, first) for found in told)
    return [each for each in made if each]  # the headline has said all of some


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
        base = _BASES[row["base"]]
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
    """Return what distinguishes this finding from the others as the start of a sentence; `always` its partition too."""
    words = []
    if always or len({each["partition"] for each in findings}) > 1:
        words.append(f"on {found['partition']}")
    if len({each["setting"] for each in findings}) > 1:
        words.append(f"with {found['setting']}")
    text = " ".join(words)
    return f"{text[0].upper()}{text[1:]}, " if text else ""


def _sentences(
    found: Mapping[str, Any],
    findings: Sequence[Mapping[str, Any]],
    labels: Mapping[str, str],
    pairs: pd.DataFrame,
    unit: str,
    first: Mapping[str, Any] | None,
) -> list[str]:
    best, *others = found["series"]
    workers = plural(found["workers"], "worker")
    label = labels[best["series"]]
    # Of a table, and of a command, there is no more to be said.
    over = "" if label == found["partition"] or found["mode"] == COMMAND else f" over {label}"
    text: list[str] = []
    if found.get("withheld") and not found.get("apart") and found is first:
        pass  # the headline
    elif best["speedup"] is None:
        speed = f"{rounded(best['samples_per_s'])} {unit}"
        why = f"no speedup: {found['withheld']}" if found.get("withheld") else "there is no baseline"
        text.append(f"{_place(found, findings)}{workers} {_verb(found, 'process')} {speed}{over}; {why}.")
    else:
        sentence = (
            f"{_place(found, findings)}{workers}{over} {_verb(found, 'run')} {_speedup(best)} times as fast as "
            f"{base_of(found)}, an efficiency of {percent(best['efficiency'])}"
        )
        rest = [
            f"over {labels[other['series']]} {_speedup(other)} times"
            for other in others
            if other["speedup"] is not None
        ]
        text.append(f"{sentence}; {listed(rest)}." if rest else f"{sentence}.")
    text += _differences([_paired(each, found["workers"], pairs) for each in found["comparisons"]], labels)
    text += _step(found, label)
    text += _overheads(found["overheads"], labels)
    return text


def _speedup(result: Mapping[str, Any]) -> str:
    value = with_interval(result["speedup"], result["low"], result["high"])
    return value if result["low"] is not None else f"{value} [{plural(result['repeats'], 'repeat')}, no interval]"


_FEWEST_PAIRS = 3
"""As many as the repeats that an interval takes everywhere on the page."""


def _paired(comparison: Mapping[str, Any], workers: int, pairs: pd.DataFrame) -> Mapping[str, Any]:
    """Return a comparison with the ratio of the table of pairs, where repeats make pairs: one ratio, one value.

    `pairs`: analysis.transports. Pairs leave out what disturbed both, so their ratio need not be that of the medians.
    """
    ends = {comparison["faster"], comparison["slower"]}
    same = (pairs["quantity"] == "samples_per_s") & (pairs["workers"] == workers) & pairs["ratio_low"].notna()
    same &= pairs["pairs"] >= _FEWEST_PAIRS
    for row in pairs[same].to_dict("records"):
        if {row["a"], row["b"]} == ends:
            fast, slow = row["b"], row["a"]
            ratio, low, high = (float(row[name]) for name in ("ratio", "ratio_low", "ratio_high"))
            if ratio < 1:
                fast, slow, ratio, low, high = slow, fast, 1 / ratio, 1 / high, 1 / low
            resolved = row["verdict"] == RESOLVED
            return {"faster": fast, "slower": slow, "ratio": ratio, "low": low, "high": high, "resolved": resolved}
    return comparison


def _differences(comparisons: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> list[str]:
    text = []
    for each in comparisons:
        fast, slow = labels[each["faster"]], labels[each["slower"]]
        ratio = with_interval(each["ratio"], each["low"], each["high"])
        if each["resolved"] is None:
            text.append(f"Whether {fast} is really faster than {slow} is open: too few repeats for an interval.")
        elif each["resolved"]:
            text.append(f"{fast} is {ratio} times as fast as {slow}.")
        else:
            text.append(f"{fast} and {slow} are not measurably different (ratio {ratio}).")
    return text


def _step(found: Mapping[str, Any], label: str) -> list[str]:
    step = found["step"]
    if step is None or found["workers"] == 1:
        return []
    share, growth, grown = step["share"], step["growth"], step["grown_s"]
    text = f"A step with {plural(found['workers'], 'worker')} over {label} takes {milliseconds(step['step_s'])}{THIN}ms"
    if share["sync"] is None:
        where = "CUDA graph" if HOLDS_SYNC.get(step["note"]) == "compute" else "backward pass"
        text += f"; the wait for gradients happens inside the {where}, where it cannot be separated"
    else:
        text += f", of which {percent(share['sync'])} is waiting for gradients"
    told = [value is not None for value in growth.values() if share["sync"] is not None]
    if grown is not None and all(told) and any(value is not None for value in growth.values()):
        lap, part = max(((lap, value) for lap, value in growth.items() if value is not None), key=lambda each: each[1])
        than = {"weak": "than the step of the baseline", "strong": "than an ideal share of the baseline's step"}.get(
            found["mode"], "than the step of the baseline"
        )
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
        if low is None:  # one measurement: nobody can say
            continue
        if low <= 1 <= high:
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
        text.append(f"One worker inside {listed(ties)} is not measurably different from plain PyTorch.")
    return text
