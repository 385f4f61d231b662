"""The analysis in words: sentences with numbers, rounded to what their intervals say they are worth."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from horovod_study.analysis.series.culprits import WORTH
from horovod_study.analysis.study import Analysis
from horovod_study.analysis.sync.synchronisation import DIRECT, INDIRECT, RESOLVED
from horovod_study.records import COMMAND
from horovod_study.report.kit.style import LAPS, series_labels
from horovod_study.report.page.tables import place, tables, told_doubts
from horovod_study.text.numbers import (
    THIN,
    known,
    milliseconds,
    number,
    percent,
    rounded,
    scientific,
    signed,
    with_interval,
    with_unit,
)
from horovod_study.text.tables import to_lines, with_columns
from horovod_study.text.words import listed, plural

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
        return f"The smallest test MSE is {scientific(best['best_mse_median'], 3)}, with {best['setting']}"
    found = _largest(analysis)
    best = found["series"][0]
    labels, low, high = series_labels(analysis.points), best["low"], best["high"]
    start = _start(found, findings, labels)
    if found.get("apart"):
        return f"{start} train models of their own: no speedup"
    if best["speedup"] is None:
        why = f"; no speedup: {found['withheld']}" if found.get("withheld") else ""
        return f"{start}: {rounded(best['samples_per_s'])} {analysis.rate_unit}{why}"
    if found["workers"] == 1:
        return f"{start}: no run with several workers has finished yet"
    start += _way(found, best, labels)
    one = base_of(found) if base_of(found) == _BASES["plain"] else "one"
    if low is not None and low <= 1 <= high:
        times = with_interval(best["speedup"], low, high)
        return f"{start} are not measurably faster than {one}: {times} times as fast"
    slower = ", which is slower" if best["speedup"] < 1 else ""
    return f"{start} run {number(best['speedup'], low, high)} times as fast as {one}{slower}"


def _way(found: Mapping[str, Any], best: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Return over which library and transport a series of a finding ran; of a table, and of a command, nothing."""
    label = labels[best["series"]]
    return f" over {label}" if label != found["partition"] and found["mode"] != COMMAND else ""


def _start(found: Mapping[str, Any], findings: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> str:
    """Return what distinguishes this finding from the others, and its workers, as the start of a sentence."""
    workers, place = plural(found["workers"], "worker"), found["partition"]
    words = [f"on {place}"] if {each["partition"] for each in findings} != {"local"} else []
    if labels[found["series"][0]["series"]] == place:  # of a table, which names series and no place
        words, workers = [], f"{workers} of {place}"
    if len({each["setting"] for each in findings}) > 1:
        words.append(f"with {found['setting']}")
    text = ", ".join(filter(None, (" ".join(words), workers)))
    return f"{text[0].upper()}{text[1:]}"


def subheadline(analysis: Analysis) -> str:
    """Return what follows the headline: where the time is lost, and how many workers are worth it; empty if unknown."""
    findings = analysis.provenance["findings"]
    if not findings:
        return ""
    found = _largest(analysis)
    clauses = [*found.get("culprits", ()), *filter(None, (_loss(found), _worth(analysis, found)))]
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


def _loss(found: Mapping[str, Any]) -> str:
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
    if not 0.005 <= part <= 1.05:  # all of it, where the others shrank by no more than noise
        return ""
    return f"{percent(min(part, 1.0))} of the loss is {LAPS[lap].label.removesuffix(' (sync)')}"


def _worth(analysis: Analysis, found: Mapping[str, Any]) -> str:
    """Return the knee, from which on one more worker gains little, with its interval; empty if open."""
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
    ends = f"[{knee['low']:.0f}, {knee['high']:.0f}]"
    return f"{told}from {count} on {ends} one more gains less than half of the mean worker"


def learned(analysis: Analysis) -> list[str]:
    """Return what was learned and how soon, in plain sentences."""
    best, labels, text = _best(analysis), series_labels(analysis.points), []
    if best is None:
        return []
    numbers = scientific(best["floor_mse"]), percent(best["efficiency"])
    floor = "; the statistical floor of the test curves is {}, an efficiency of {}".format(*numbers)
    floor *= known(best["floor_mse"])
    text.append(
        f"The smallest test MSE is {scientific(best['best_mse_median'], 3)}, reached by {_who(best, labels)} after "
        f"{best['best_epoch']:.3g} epochs and {rounded(best['best_train_s'], 3)}{THIN}s of training{floor}."
    )
    table = analysis.targets
    met = table[(table["workers"] > 1) & table["speedup"].notna()]
    if len(met):
        met = met[met["target_mse"] == met["target_mse"].min()]
        row = met.sort_values(["workers", "speedup"], ascending=False, kind="stable").iloc[0]
        text.append(
            f"A test MSE of {scientific(row['target_mse'])} takes {_who(row, labels)} "
            f"{rounded(row['train_s'], 3)}{THIN}s, "
            f"{with_interval(row['speedup'], row['speedup_low'], row['speedup_high'])} times as fast as "
            f"{_BASES[row['base']]}: {number(row['throughput_ratio'])} times the throughput, and a statistical "
            f"efficiency of {number(row['statistical_efficiency'])}."
        )
    if censored := int(table["censored"].astype(bool).sum()):
        text.append(f"{censored} of {len(table)} times to target are lower bounds only: the target was not met.")
    return text


def _best(analysis: Analysis) -> Any:
    """Return the row of the smallest test MSE, or None."""
    table = analysis.learning[analysis.learning["best_mse_median"].notna()]
    if table.empty:
        return None
    return table.sort_values(["best_mse_median", "best_train_s"], kind="stable").iloc[0]


def _who(row: Any, labels: Mapping[str, str]) -> str:
    return f"{labels[row['series']]}, {plural(row['workers'], 'worker')} ({row['setting']})"


def sentences(analysis: Analysis) -> list[list[str]]:
    """Return what was found, per partition and setting, in plain sentences; the first one says the most."""
    labels, findings = series_labels(analysis.points), analysis.provenance["findings"]
    first = _largest(analysis) if findings else {}
    made = []
    for found in sorted(findings, key=lambda each: each is not first):
        text = [] if found is first and found.get("withheld") and not found.get("apart") else [_fast(analysis, found)]
        text += [_difference(each, found["workers"], analysis.transports, labels) for each in found["comparisons"]]
        text += _step(found, labels)
        alone = [
            f"inside {labels[each['series']]} {_times(each)}"
            + " (not measurably different)" * (each["low"] <= 1 <= each["high"])
            for each in found["overheads"]
            if each["low"] is not None
        ]
        if alone:
            text.append(f"One worker alone runs {listed(alone)} times as fast as without a library.")
        made.append(text)
    return [each for each in made if each]  # the headline has said all of some


def _fast(analysis: Analysis, found: Mapping[str, Any]) -> str:
    """Return how fast the series of a finding are."""
    best, *others = found["series"]
    labels = series_labels(analysis.points)
    start = _start(found, analysis.provenance["findings"], labels) + _way(found, best, labels)
    run = "runs" if found["workers"] == 1 else "run"
    if best["speedup"] is None:
        why = f"no speedup: {found['withheld']}" if found.get("withheld") else "there is no baseline"
        return f"{start}: {rounded(best['samples_per_s'])} {analysis.rate_unit}; {why}."
    rest = [f"over {labels[each['series']]} {_times(each)} times" for each in others if each["speedup"] is not None]
    return (
        f"{start} {run} {_times(best)} times as fast as {base_of(found)}, an efficiency of "
        f"{percent(best['efficiency'])}, at {rounded(best['samples_per_s'])} {analysis.rate_unit}"
        f"{'; ' * bool(rest)}{listed(rest) if rest else ''}."
    )


def _times(result: Mapping[str, Any]) -> str:
    if result["low"] is None or result.get("repeats") == 1:  # of one run over itself, whose ends are both 1
        return f"{number(result['speedup'])} [{plural(result['repeats'], 'repeat')}, no interval]"
    return with_interval(result["speedup"], result["low"], result["high"])


def _difference(found: Mapping[str, Any], workers: int, pairs: pd.DataFrame, labels: Mapping[str, str]) -> str:
    """Return how two series differ, by the ratio of the table of pairs where repeats make pairs: one ratio, one value.

    `pairs`: analysis.transports. Pairs leave out what disturbed both, so their ratio need not be that of the medians.
    """
    fast, slow, resolved = found["faster"], found["slower"], found["resolved"]
    ratio, low, high = found["ratio"], found["low"], found["high"]
    same = (pairs["quantity"] == "samples_per_s") & (pairs["workers"] == workers) & pairs["ratio_low"].notna()
    same &= (pairs["pairs"] >= 3) & pairs["a"].isin([fast, slow]) & pairs["b"].isin([fast, slow])
    for row in pairs[same].to_dict("records"):
        ratio, low, high = (float(row[name]) for name in ("ratio", "ratio_low", "ratio_high"))
        fast, slow, resolved = row["b"], row["a"], row["verdict"] == RESOLVED
        if ratio < 1:
            fast, slow, ratio, low, high = slow, fast, 1 / ratio, 1 / high, 1 / low
    fast, slow, told = labels[fast], labels[slow], with_interval(ratio, low, high)
    if resolved:
        return f"{fast} is {told} times as fast as {slow}."
    if resolved is None:
        return f"Whether {fast} is faster than {slow} is open: too few repeats (ratio {told})."
    return f"{fast} and {slow} are not measurably different (ratio {told})."


def _step(found: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    step = found["step"]
    if step is None or found["workers"] == 1:
        return []
    share, grown = step["share"]["sync"], step["grown_s"]
    growth = {lap: part for lap, part in step["growth"].items() if part is not None}
    wait = (
        "the wait for gradients cannot be separated" if share is None else f"{percent(share)} of it waits for gradients"
    )
    text = (
        f"A step with {plural(found['workers'], 'worker')} over {labels[found['series'][0]['series']]} takes "
        f"{milliseconds(step['step_s'])}{THIN}ms; {wait}"
    )
    if growth and grown is not None and grown > 0:
        lap, part = max(growth.items(), key=lambda each: each[1])
        than = "an ideal share of the baseline's step" if found["mode"] == "strong" else "the step of the baseline"
        text += (
            f". That is {milliseconds(grown)}{THIN}ms longer than {than}; what grew most is "
            f"{LAPS[lap].label.removesuffix(' (sync)')}, by {milliseconds(part * grown)}{THIN}ms"
        )
    return [f"{text}."]


def waiting(analysis: Analysis) -> list[str]:
    """Return what waiting takes at their largest counts in the three series that it takes the most of."""
    cells, labels = analysis.synchronisation, series_labels(analysis.synchronisation)
    cells = cells[cells["sync_s_median"].notna() & (cells["workers"] > 1)]
    largest = cells.sort_values("workers", kind="stable").drop_duplicates("series", keep="last").sort_index()
    largest = largest.sort_values("share_median", ascending=False, kind="stable").head(3)
    found = []
    for row in largest.to_dict("records"):
        wait, epoch = (
            [row[f"{name}_{end}"] for end in ("median", "low", "high")] for name in ("sync_s", "sync_per_epoch_s")
        )
        told = with_unit(*(1000 * each for each in wait), unit="ms")
        text = (
            f"{named(labels, row)}, {plural(row['workers'], 'worker')}: in the median repeat waiting for gradients "
            f"takes {told} of a mean step, {percent(row['share_median'])}"
        )
        if math.isfinite(epoch[0]):
            text += f", and {with_unit(*epoch, unit='s')} of an epoch of {row['batches_per_epoch']:.0f} batches"
        found.append(f"{text}.")
    return found


def named(labels: Mapping[str, str], row: Mapping[Any, Any]) -> str:
    """Return the name of a row's series, with its setting."""
    return ", ".join(filter(None, (labels[row["series"]], row["setting"])))


def jumped(analysis: Analysis) -> list[str]:
    """Return what the first node boundary of each series adds to a step, one sentence per series."""
    labels = series_labels(analysis.nodes)
    found = []
    for _, rows in analysis.boundary.groupby("series", sort=False):
        first = rows[rows["fewer_nodes"] == rows["fewer_nodes"].min()]
        direct = first[first["kind"] == DIRECT]
        row = (direct if len(direct) else first).to_dict("records")[-1]
        hidden = not math.isfinite(row["jump_s"])  # then it is the whole step
        start, part = ("step_", "step") if hidden else ("", "sync")
        what = "step, in which synchronisation is hidden," if hidden else "wait for gradients per step"
        jump, low, high = (1000 * row[f"{start}{each}_s"] for each in ("jump", "low", "high"))
        fewer, more = (
            place(*(row[f"{side}_{name}"] for name in ("workers", "nodes", "per_node")))
            + (f" over {row[f'{side}_path']}" if row[f"{side}_path"] else "")
            for side in ("fewer", "more")
        )
        before, after = (milliseconds(row[f"{side}_{part}_s"]) for side in ("fewer", "more"))
        resolved = row[f"{start}resolved"]
        verdict = "too few repeats to tell" if pd.isna(resolved) else "resolved" if resolved else "not resolved"
        mixed = "; part of it is due to the further workers" if row["kind"] == INDIRECT else ""
        found.append(
            f"{named(labels, row)}: from {fewer} to {more} the {row['per_step']} {what} goes from {before}{THIN}ms to "
            f"{after}{THIN}ms, by {signed(with_unit(jump, low, high, unit='ms'))} ({verdict}){mixed}."
        )
    return found


def answer_lines(analysis: Analysis) -> list[str]:
    """Return headline, points, doubts and cost, with the numbers of the page."""
    lines = answer(analysis)
    for points in tables(analysis, "points"):
        shown = ("Workers", "Nodes", "Throughput", "Speedup", "Efficiency", "Outside")
        kept = [place for place, column in enumerate(points.columns) if column.head in shown]
        lines += ["", *to_lines(with_columns(points, kept)), ""]
    if doubts := told_doubts(analysis):
        lines.append(f"{plural(len(doubts), 'doubt')}: see the page")
    # Rows of a table do not say how long they took.
    if "wall_s" in analysis.runs and analysis.runs["wall_s"].notna().any():
        runs = analysis.runs[analysis.runs["wall_s"].notna()]
        hours = float((runs["wall_s"] * runs["workers"]).sum()) / 3600
        unit = "GPU hours" if (runs["device"] == "cuda").all() else "worker hours"
        minutes = float(runs["wall_s"].sum()) / 60
        lines.append(f"cost: {plural(len(runs), 'run')}, {minutes:,.1f} min of training, {hours:,.3g} {unit}")
    return [line.replace(THIN, " ") for line in lines]
