"""Two configurations compared block by block: which is faster, by how much, and whether the runs can tell.

A block is one run of A and one of B. Where they have trained in turns, B/A is compared within the rounds of a block
(analysis/paired.py), each block being a launch. Else they ran one right after the other; what both share, such as a
slow drift of the machine, cancels in the ratio of their throughputs, so the ratios of the blocks are analysed: their
geometric mean, Student's t on their logarithms (a bootstrap of ten blocks is too narrow: T. Hesterberg, The American
Statistician 69, 2015, 371-386), a sign-flip permutation test (R. A. Fisher, The Design of Experiments, 1935), and p
after Holm over all worker counts. Of outliers (a launch that fell into a slow mode), which count in the mean as they
should, the verdict is that of the median with its exact interval (W. Conover, Practical Nonparametric
Statistics, 1999).

A difference is resolved when p after Holm is below ALPHA and one of the two intervals leaves out 1.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from horovod_study.analysis import stats
from horovod_study.analysis.paired import RatioEstimate, Slice, estimate, pairs
from horovod_study.analysis.stats import Floats, Interval, PairedRatio, half_width, trimmed_mean
from horovod_study.errors import AnalysisError
from horovod_study.records import finite
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural

ALIKE = 1e-4
"""Losses of the first steps that agree to this part: rounding differs between ways to add, and little else does."""

Block: TypeAlias = Mapping[str, Any]
"""As `studies/designs.py` has them: `workers`, `block` (its number, from 1), `first`, and under `A` and `B` the figures
of one run each: `samples_per_s`, `step_s_median`, `step_s_p90`, `test_mse`, `parameter_sha256`, `first_losses` (mean
over the workers, one per step). Where they trained in turns it has `rounds`: samples/s of A and of B, and `other_load`
in cores (None where unknown), one for each round."""


def too_few(blocks: int, tests: int) -> str:
    """Return what must be said before starting when so many blocks cannot resolve anything; empty when they can."""
    least, p = stats.fewest_blocks(tests), stats.smallest_p(blocks, tests)
    if blocks >= least:
        return ""
    over = f" after Holm over {plural(tests, 'worker count')}"
    return (
        f"{plural(blocks, 'block')} cannot resolve any difference: the smallest possible p{over} is {p:.3g}; "
        f"{stats.ALPHA:g} needs at least {least} blocks (--blocks {least})"
    )


def compare(blocks: Sequence[Block], *, aim: float | None = None) -> dict[str, Any]:
    """Return the comparison of B with A: `workers`, a row for each worker count, and `learning`; plain values.

    `aim`: the half width that was wanted, relative. Raises AnalysisError when there is no block, or none with two
    rounds.
    """
    if not blocks:
        raise AnalysisError("compare: no block has both its runs; run the command again to go on")
    by_count: dict[int, list[Block]] = {}
    for block in sorted(blocks, key=lambda block: (block["workers"], block["block"])):
        by_count.setdefault(int(block["workers"]), []).append(block)
    speeds = [_speed(rows) for rows in by_count.values()]
    told = zip(by_count.values(), speeds, stats.holm([speed.ratio.p for speed, *_ in speeds]), strict=True)
    rows = [_count(own, found, p, len(by_count), aim) for own, found, p in told]
    return {"workers": finite(rows), "learning": finite(_learning(blocks))}


_Speed: TypeAlias = tuple[PairedRatio, RatioEstimate | None, Floats]


def _speed(rows: Sequence[Block]) -> _Speed:
    """Return B/A at a worker count, of what it is made where A and B trained in turns, and its logarithm in each block.

    AnalysisError where the rounds say nothing.
    """
    a, b = (_values(rows, arm, "samples_per_s") for arm in "AB")
    if "rounds" not in rows[0]:
        return stats.paired_ratio(a, b), None, np.log(b / a)
    slices = []
    for row in rows:
        loads = [math.nan if load is None else load for load in row["rounds"]["other_load"]]
        for arm in "AB":
            for number, (rate, load) in enumerate(zip(row["rounds"][arm], loads, strict=True)):
                slices.append(Slice(launch=f"{row['block']:03d}", round=number, cell=arm, rate=rate, other_load=load))
    found = pairs(slices, "B", "A")
    if (known := estimate(found)) is None:
        raise AnalysisError(
            f"compare: no block with {plural(rows[0]['workers'], 'worker')} has two rounds that count; give more "
            "--seconds or --steps, or --no-turns"
        )
    levels = np.array([each.mean() for each in found.differences if len(each)])
    deviation = float(np.std(levels, ddof=1)) if len(levels) > 1 else None
    return PairedRatio(ratio=replace(known.ratio, n=known.launches), log_sd=deviation), known, levels


def _values(rows: Sequence[Block], arm: str, name: str) -> Floats:
    return np.array([math.nan if row[arm][name] is None else float(row[arm][name]) for row in rows])


def _count(rows: Sequence[Block], found: _Speed, p_holm: float, tests: int, aim: float | None) -> dict[str, Any]:
    """Return the comparison at one worker count."""
    speed, known, logs = found
    unrest = {arm: _values(rows, arm, "step_s_p90") / _values(rows, arm, "step_s_median") for arm in "AB"}
    typical = stats.order_interval(logs).exp()
    away, odd = np.abs(logs - np.median(logs)), []
    if 4 <= len(logs) == len(rows) and (known is None or typical.known):  # outliers, of four blocks or more
        # five usual deviations (1.4826 MAD) from the median, and 5 % at least
        far = away > max(5.0 * stats.normal_deviation(away), 0.05)
        odd = [int(row["block"]) for row, odd_one in zip(rows, far, strict=True) if odd_one]
    needed = None if known is None else _blocks_for(known, stats.OF_INTEREST)
    if known is None and speed.log_sd is not None and not odd:
        needed = stats.needed_blocks(speed.log_sd, tests=tests)
    shown = typical if odd and typical.known else speed.ratio
    rates = {f"{arm.lower()}_samples_per_s": stats.geometric_mean(_values(rows, arm, "samples_per_s")) for arm in "AB"}
    told = {"workers": int(rows[0]["workers"]), **rates, **finite(speed)}
    told |= {"turns": None} if known is None else {"exact": False, "turns": finite(known)}
    told |= {"p_holm": p_holm, "odd_blocks": odd, "ratios": np.exp(logs).tolist(), "blocks_for_one_percent": needed}
    told |= {f"typical_{name.replace('value', 'ratio')}": value for name, value in finite(typical).items()}
    told |= {"resolved": p_holm < stats.ALPHA and (speed.ratio.excludes(1) or typical.excludes(1))}
    told |= {f"{arm.lower()}_p90_over_median": float(np.median(each)) for arm, each in unrest.items()}
    told |= {"p90_over_median": finite(stats.paired_ratio(unrest["A"], unrest["B"]))}
    told["verdict"] = _verdict(shown, p_holm, needed, usually="typically " if shown is typical else "")
    return {**told, "doubts": [*_doubts(rows, found, odd, unrest, aim)]}


def _blocks_for(known: RatioEstimate, half_width: float) -> int | None:
    """Return how many blocks as long as these make the interval so narrow; None: more than 1000, or unknown.

    The variance of a block is that of its level and, over its rounds, theirs.
    """
    variance = known.launch_sd**2 + known.launches * known.round_error**2
    for count in range(2, 1000 if known.launches > 1 else 0):
        if stats.t_quantile(0.5 + stats.LEVEL / 2, count - 1.0) * math.sqrt(variance / count) <= half_width:
            return count
    return None


def _verdict(shown: Interval, p_holm: float, needed: int | None, *, usually: str) -> str:
    """Return what can be said of a ratio in words; `usually`: that of the blocks that are no outliers."""
    if not shown.known:
        return f"not resolved: one block says B/A = {shown.value:.3f}, and nothing says how far that can be trusted"
    digits = 0 if shown.width >= 0.2 else 1 if shown.width >= 0.002 else 2
    change, low, high = (f"{100 * (each - 1):+.{digits}f} %" for each in (shown.value, shown.low, shown.high))
    if p_holm < stats.ALPHA and shown.excludes(1):
        word = "faster" if shown.value > 1 else "slower"
        return f"B is {usually}{word}: {change} ({low} to {high}), resolved (p = {p_holm:.2g})"
    size = f"{stats.OF_INTEREST * 100:g} %"
    would = (
        "how many blocks would tell cannot be said" if needed is None else f"about {needed} blocks would resolve {size}"
    )
    if max(abs(shown.low - 1), abs(shown.high - 1)) <= stats.OF_INTEREST:
        would = f"A and B are no more than {size} apart"
    return f"not resolved: the difference is {usually}between {low} and {high} (p = {p_holm:.2g}); {would}"


def _doubts(
    rows: Sequence[Block], found: _Speed, odd: Sequence[int], unrest: Mapping[str, Floats], aim: float | None
) -> Iterator[str]:
    _, known, logs = found
    if known is not None and aim is not None and known.half_width > aim:
        count, width = _blocks_for(known, aim) or "unknown", 100 * known.half_width
        yield f"B/A is known to +- {width:.2g} %, not to {100 * aim:.3g} %; blocks that this takes: {count}"
    if known is not None and known.shared:
        yield "other programs used the cores in more than three quarters of the rounds: B/A is that of a shared machine"
    usual = math.exp(float(np.median(logs)))
    for row, log in zip(rows, logs.tolist(), strict=True) if odd else ():
        if row["block"] in odd:
            ratio = f"B/A = {math.exp(log):.3f}, usually {usual:.3f}"
            yield f"block {row['block']} is an outlier ({ratio}); it counts like the others"
    for arm in "AB":
        if (restless := float(np.median(unrest[arm]))) > 1.5:
            yield f"{arm} is unsteady: one step in ten takes at least {restless:.1f} times the median step"
    firsts = {str(row.get("first", "")) for row in rows}
    if len(rows) > 1 and firsts in ({"A"}, {"B"}):
        yield f"{firsts.pop()} came first in every block; give more blocks"


def _learning(blocks: Sequence[Block]) -> dict[str, Any]:
    """Return whether A and B learned the same; `alike` and the differences are None where nothing was recorded."""
    tests = np.array([[block[arm]["test_mse"] or math.nan for arm in "AB"] for block in blocks], dtype=float)  # (n, 2)
    differences, steps = [], 0
    for block in blocks:
        a, b = (np.asarray(block[arm].get("first_losses") or [], dtype=float) for arm in "AB")
        if shared := min(len(a), len(b)):
            steps = max(steps, shared)
            size = np.maximum(np.abs(a[:shared]), np.abs(b[:shared]))
            gap = np.abs(a[:shared] - b[:shared]) / np.where(size > 0, size, 1.0)
            differences.append(float(np.max(np.where(np.isfinite(gap), gap, 1.0))))
    known = tests[np.isfinite(tests).all(axis=1)]
    same = all(block["A"]["parameter_sha256"] == block["B"]["parameter_sha256"] is not None for block in blocks)
    worst = max(differences, default=None)  # relative, over the first steps
    alike = True if same else None if worst is None else worst <= ALIKE
    apart = float(np.max(np.abs(np.diff(known, axis=1)[:, 0]) / known.max(axis=1))) if len(known) else None
    how = "bit for bit" if same else "up to rounding"
    text = f"both learn the same, {how}" if alike else "they do not learn the same"
    text = "losses of the first steps were not recorded" if alike is None else text
    if worst is not None:
        text += f"; the losses of the first {steps} steps differ by up to {worst:.1e} of their size"
    if apart is not None:
        text += f"; the test MSE at the end differs by up to {100 * apart:.2f} %"
    told = {f"{arm}_test_mse": float(of.mean()) if len(of) else None for arm, of in zip("ab", known.T, strict=True)}
    # same_parameters: bit for bit, in every block; first_steps: how many had their losses compared
    told |= {"same_parameters": same, "alike": alike, "first_steps": steps, "loss_difference": worst}
    return {**told, "test_mse_difference": apart, "text": text}


_COLUMNS = {"blocks": "", "a_samples_per_s": ",.0f", "b_samples_per_s": ",.0f", "ratio": ".3f", "low": ".3f"}
_COLUMNS |= {"high": ".3f", "p": ".4f", "p_holm": ".4f", "a_p90_over_median": ".2f", "b_p90_over_median": ".2f"}


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return a comparison as a table and the verdicts in words."""
    heads = ("workers", "blocks", "A samples/s", "B samples/s", "B/A", "from", "to", "p", "p (Holm)", "p90/med A", "B")
    rows, said = [], []
    for each in found["workers"]:
        cells = ("-" if each[name] is None else format(each[name], form) for name, form in _COLUMNS.items())
        rows.append((f"{each['workers']}", *cells))
        count, turns = plural(each["workers"], "worker"), each["turns"]
        said.append(f"{count}: {each['verdict']}")
        if turns:
            parts = {"scatter of a round": turns["round_sd"], "of a block": turns["launch_sd"]}
            parts |= {"error of the rounds": turns["round_error"], "variance that cancelled": turns["cancelled"]}
            told = (f"{name} {100 * share:.2g} %" for name, share in parts.items() if share is not None)
            of = f"{turns['rounds']} rounds in {turns['launches']} blocks, {turns['set_aside']} more set aside"
            said.append(f"{count}: {', '.join((of, *told))}")
        said += [f"doubt, {count}: {doubt}" for doubt in each["doubts"]]
    return [*to_lines(table_of(heads, rows, texts=())), "", *said, found["learning"]["text"]]


# ----------------------------------------------------------------------------------------------- what measuring costs


def timer_cost(case: Mapping[str, Any], *, limit_percent: float = 0.5) -> dict[str, Any]:
    """Return what `programs.timers.measure` found in one launch as overheads of mode off's step, as plain values.

    Only blocks of one round are compared, by the logarithm of the ratio of a way's seconds to those of mode off. The
    typical ratio is the mean without the smallest and the largest fifth, with Tukey and McLaughlin's 95 % interval
    (`stats.trimmed_mean`): disturbances are as long as a block. Writing rows is rare and timed by itself; what it takes
    per step is added, for mode off as well as for the others.

    `control` is mode off again, `variants` the other ways. Each has its `step_s`, the median over the rounds with
    writing; `percent` of the step with mode off and the ends `low` and `high` of its interval, None with fewer than 5
    rounds; `writing_percent` of it; `calls_us`, microseconds a step that the calls take alone.
    """
    steps = case["steps"]
    blocks = {name: np.asarray(values, dtype=np.float64) / steps[name] for name, values in case["block_s"].items()}
    off, nothing = blocks["off"], (0.0, 0.0, 0.0)
    base_s = math.exp(trimmed_mean(np.log(off))[0])
    writing = {name: trimmed_mean([s / rows for rows, s in found]) for name, found in case["drains"].items()}

    def overhead(name: str) -> dict[str, Any]:
        logs = np.log(blocks[name] / off)
        mean, error, freedom = trimmed_mean(logs)
        written, ours = writing.get(name, nothing), writing.get("off", nothing)
        more = (written[0] - ours[0]) / base_s
        center = math.expm1(mean) + more
        # The writing's own scatter is added in square: it is timed apart from the blocks.
        spread = math.hypot(math.exp(mean) * error, written[1] / base_s, ours[1] / base_s)
        half = half_width(spread, freedom) if len(logs) >= 5 else None
        low, high = (None if half is None else 100 * (center + side * half) for side in (-1, 1))
        calls_us = 1e6 * case["calls_s"][name] if name in case["calls_s"] else None
        told = {"way": name, "step_s": float(np.median(blocks[name])) + written[0], "percent": 100 * center}
        return {**told, "low": low, "high": high, "writing_percent": 100 * more, "calls_us": calls_us}

    control = overhead("control")
    half = None if control["low"] is None else (control["high"] - control["low"]) / 2
    cost = {name: case[name] for name in ("runtime", "workers", "batch", "device", "seconds")}
    cost |= {"rounds": len(off), "steps_per_block": steps["off"], "limit_percent": limit_percent, "control": control}
    cost |= {"off_step_s": float(np.median(off)) + writing.get("off", nothing)[0], "resolution_percent": half}
    cost["variants"] = [overhead(name) for name in case["ways"] if name not in ("off", "control")]
    return {**cost, "doubts": list(_cost_doubts(case, cost)), "verdict": _cost_verdict(cost)}


def way(cost: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what was found of the way of this name."""
    return next(each for each in cost["variants"] if each["way"] == name)


def exceeds(cost: Mapping[str, Any], percent: float) -> bool:
    """Return whether mode light certainly costs more than `percent`: its whole interval is above."""
    light = way(cost, "light")
    return bool((light["percent"] if light["low"] is None else light["low"]) > percent)


def interval(found: Mapping[str, Any]) -> str:
    """Return `0.05 % [-0.10, 0.20]`."""
    ends = "" if found["low"] is None else f" [{found['low']:.2f}, {found['high']:.2f}]"
    return f"{found['percent']:.2f} %{ends}"


def _cost_verdict(cost: Mapping[str, Any]) -> str:
    light, limit = way(cost, "light"), cost["limit_percent"]
    answer, more = "not resolved", ""
    if light["low"] is not None:
        answer = "yes" if light["high"] < limit else "no" if light["low"] > limit else answer
        share = (light["high"] - light["low"]) / limit  # half the limit is wanted as half the interval
        seconds = cost["seconds"] * max(1.5, share**2)
        more = f" (with this noise it takes about {seconds:,.0f} s)" if answer == "not resolved" else ""
    calls_us = light["calls_us"]
    return (
        f"light costs {interval(light)} of a step; below {limit:g} %: {answer}{more}; the calls alone take "
        f"{calls_us:.1f} us, {calls_us / cost['off_step_s'] / 1e4:.2f} %"
    )


def _cost_doubts(case: Mapping[str, Any], cost: Mapping[str, Any]) -> Iterator[str]:
    control, half = cost["control"], cost["resolution_percent"]
    others, fewest = case["other_cores"], min(len(case["drains"].get(name, ())) for name in ("off", "light"))
    if cost["rounds"] < 20:
        yield f"only {cost['rounds']} rounds: the intervals are poorly supported; give it more --seconds"
    if half is not None and not control["low"] <= 0 <= control["high"]:
        by_chance = "by chance once in twenty times, else the machine was disturbed; measure again when it is quiet"
        yield f"the control, mode off against itself, differs by {interval(control)}: {by_chance}"
    if half is not None and half > cost["limit_percent"]:
        yield f"differences below {half:.2g} % are not seen here; give it more --seconds, or a quieter machine"
    if others is not None and others > 0.1:  # None: the system does not report
        yield f"other programs used {others:.2g} cores meanwhile: measure again when the machine is quiet"
    if fewest < 3:
        yield f"writing was timed {plural(fewest, 'time')} per mode: its share is rough"
