"""Two configurations compared block by block: which is faster, by how much, and whether the runs can tell.

A block is one run of A and one of B. Where they have trained in turns, B/A is compared within the rounds of a block
(analysis/paired.py), each block being a launch. Else they ran one right after the other; what both share, such as a
slow drift of the machine, cancels in the ratio of their throughputs, so the ratios of the blocks are analysed:

    effect      geometric mean of the block ratios B/A
    interval    Student's t on the logarithms of the ratios, 95 %. A bootstrap of ten blocks is too narrow (T.
                Hesterberg, The American Statistician 69, 2015, 371-386)
    p           sign-flip permutation test on their mean: were A and B alike, each block could as well have come out the
                other way round (R. A. Fisher, The Design of Experiments, 1935, section 21)
    Holm        p over all worker counts together (S. Holm, Scand. J. Statist. 6, 1979, 65-70)

Where single blocks are outliers (a launch that fell into a slow mode), they count in the mean as they should. What is
typical is then told beside it: the median of the ratios with its exact interval from order statistics (binomial; W.
Conover, Practical Nonparametric Statistics, 1999, section 3.2): an odd block cannot move it.

A difference is resolved when p after Holm is below ALPHA and one of the two intervals leaves out 1.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from horovod_study.analysis import stats
from horovod_study.analysis.paired import RatioEstimate, Slice, estimate, pairs
from horovod_study.analysis.stats import Floats, Interval, PairedRatio
from horovod_study.errors import AnalysisError
from horovod_study.records import finite
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural

ALIKE = 1e-4
"""Losses of the first steps that agree to this part: rounding differs between ways to add, and little else does."""

Block: TypeAlias = Mapping[str, Any]
"""As `studies/pairs.py` makes them: `workers`, `block` (its number, from 1), `first`, and under `A` and `B` the figures
of one run each: `samples_per_s`, `step_s_median`, `step_s_p90`, `test_mse`, `parameter_sha256`, `first_losses` (mean
over the workers, one per step). Where they trained in turns it has `rounds`: samples/s of A and of B, and `other_load`
in cores (None where unknown), one for each round."""


def too_few(blocks: int, tests: int) -> str:
    """Return what must be said before starting when so many blocks cannot resolve anything; empty when they can."""
    least = stats.fewest_blocks(tests)
    if blocks >= least:
        return ""
    return (
        f"{plural(blocks, 'block')} cannot resolve any difference: the smallest possible p is "
        f"{stats.smallest_p(blocks):.3g}"
        + (f", {stats.smallest_p(blocks, tests):.3g} after Holm over {tests} worker counts" if tests > 1 else "")
        + f"; {stats.ALPHA:g} needs at least {least} blocks (--blocks {least})"
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
    turns = {count: _in_turns(count, rows) if "rounds" in rows[0] else None for count, rows in by_count.items()}
    speeds = {count: _speed(rows, turns[count]) for count, rows in by_count.items()}
    adjusted = stats.holm([each.ratio.p for each in speeds.values()])
    rows = [
        _count(each, speeds[count], turns[count], p_holm, len(by_count), aim)
        for (count, each), p_holm in zip(by_count.items(), adjusted, strict=True)
    ]
    return {"workers": finite(rows), "learning": finite(_learning(blocks))}


_InTurns: TypeAlias = tuple[list[Floats], RatioEstimate]
"""The log ratios of the rounds, block by block, and B/A from them."""


def _in_turns(workers: int, rows: Sequence[Block]) -> _InTurns:
    """Return what the rounds say; AnalysisError where they say nothing."""
    slices = []
    for row in rows:
        loads = [math.nan if load is None else load for load in row["rounds"]["other_load"]]
        for arm in "AB":
            for number, (rate, load) in enumerate(zip(row["rounds"][arm], loads, strict=True)):
                slices.append(Slice(launch=f"{row['block']:03d}", round=number, cell=arm, rate=rate, other_load=load))
    found = pairs(slices, "B", "A")
    if (known := estimate(found)) is None:
        raise AnalysisError(
            f"compare: no block with {plural(workers, 'worker')} has two rounds that count; give more --seconds or "
            "--steps, or --no-turns"
        )
    return found.differences, known


def _speed(rows: Sequence[Block], in_turns: _InTurns | None) -> PairedRatio:
    if in_turns is None:
        return stats.paired_ratio(*(_values(rows, arm, "samples_per_s") for arm in "AB"))
    rounds, known = in_turns
    levels = [float(each.mean()) for each in rounds if len(each)]
    deviation = float(np.std(levels, ddof=1)) if len(levels) > 1 else None
    return PairedRatio(ratio=replace(known.ratio, n=known.launches), log_sd=deviation)


def _values(rows: Sequence[Block], arm: str, name: str) -> Floats:
    return np.array([math.nan if row[arm][name] is None else float(row[arm][name]) for row in rows])


def _count(
    rows: Sequence[Block], speed: PairedRatio, in_turns: _InTurns | None, p_holm: float, tests: int, aim: float | None
) -> dict[str, Any]:
    """Return the comparison at one worker count."""
    rounds, known = in_turns or (None, None)
    a, b = _values(rows, "A", "samples_per_s"), _values(rows, "B", "samples_per_s")
    unrest = {arm: _values(rows, arm, "step_s_p90") / _values(rows, arm, "step_s_median") for arm in "AB"}
    logs = np.log(b / a) if rounds is None else np.array([each.mean() for each in rounds if len(each)])
    typical = stats.order_interval(logs).exp()
    away, odd = np.abs(logs - np.median(logs)), []
    if 4 <= len(logs) == len(rows) and (known is None or typical.known):  # outliers, of four blocks or more
        # five usual deviations (1.4826 MAD) from the median, and 5 % at least
        far = away > max(5.0 * stats.normal_deviation(away), 0.05)
        odd = [int(row["block"]) for row, odd_one in zip(rows, far, strict=True) if odd_one]
    resolved = p_holm < stats.ALPHA and (speed.ratio.excludes(1) or typical.excludes(1))
    needed = None if known is None else _blocks_for(known, stats.OF_INTEREST)
    if known is None and speed.log_sd is not None and not odd:
        needed = stats.needed_blocks(speed.log_sd, tests=tests)
    how = {"odd": bool(odd), "resolved": resolved, "turns": known is not None}
    return {
        "workers": int(rows[0]["workers"]),
        "a_samples_per_s": stats.geometric_mean(a),
        "b_samples_per_s": stats.geometric_mean(b),
        **finite(speed),
        **({} if known is None else {"exact": False}),
        "turns": None if known is None else finite(known),
        "p_holm": p_holm,
        **{f"typical_{name.replace('value', 'ratio')}": value for name, value in finite(typical).items()},
        "odd_blocks": odd,
        "resolved": resolved,
        "ratios": np.exp(logs).tolist(),
        **{f"{arm.lower()}_p90_over_median": float(np.median(each)) for arm, each in unrest.items()},
        "p90_over_median": finite(stats.paired_ratio(unrest["A"], unrest["B"])),
        "blocks_for_one_percent": needed,
        "verdict": _verdict(speed.ratio, typical, p_holm, needed, tests, **how),
        "doubts": [*_doubts(rows, logs, odd, unrest, known, aim)],
    }


def _blocks_for(known: RatioEstimate, half_width: float) -> int | None:
    """Return how many blocks as long as these make the interval so narrow; None: more than 1000, or unknown.

    The variance of a block is that of its level and, over its rounds, theirs.
    """
    if known.launches < 2:
        return None
    variance = known.launch_sd**2 + known.launches * known.round_error**2
    for count in range(2, 1000):
        if stats.t_quantile(0.5 + stats.LEVEL / 2, count - 1.0) * math.sqrt(variance / count) <= half_width:
            return count
    return None


def _verdict(
    mean: Interval, typical: Interval, p_holm: float, needed: int | None, tests: int, *, odd: bool, **how: bool
) -> str:
    """Return what can be said of a ratio in words; `how`: whether it is `resolved`, and from `turns`."""
    p, turns = f"p = {p_holm:.2g}{' after Holm' if tests > 1 else ''}", how["turns"]
    if not mean.known:
        return f"not resolved: one block says B/A = {mean.value:.3f}, and nothing says how far that can be trusted"
    shown, usually = (typical, "typically ") if odd else (mean, "")
    resolved = how["resolved"] and shown.excludes(1)
    if not resolved and not shown.known:
        shown, usually = mean, ""
    digits = 0 if shown.width >= 0.2 else 1 if shown.width >= 0.002 else 2
    if resolved:
        word = "faster" if shown.value > 1 else "slower"
        ends = sorted((abs(shown.low - 1), abs(shown.high - 1)))
        change, least, most = (f"{100 * value:.{digits}f}" for value in (abs(shown.value - 1), *ends))
        apart = f", in the mean by a factor of {mean.value:.3g} that odd blocks leave uncertain" if odd else ""
        return f"B is {usually}{word} by {change} % ({least} - {most} %), resolved ({p}){apart}"
    low, high = (f"{100 * (end - 1):+.{digits}f} %" for end in (shown.low, shown.high))
    text = f"not resolved: the difference is {usually}between {low} and {high} ({p})"
    if odd and needed is None:
        return f"{text}; how many blocks would resolve it cannot be said while some are outliers"
    size = f"{stats.OF_INTEREST * 100:g} %"
    would = f"about {needed} blocks would {f'make it +- {size}' if turns else f'resolve {size}'}"
    if turns and needed is None:
        would = f"how many blocks would make it +- {size} cannot be said yet"
    if not turns and mean.n < (least_blocks := stats.fewest_blocks(tests)):
        return f"{text}; no difference can be with fewer than {least_blocks} blocks, and {would}"
    if max(abs(shown.low - 1), abs(shown.high - 1)) <= stats.OF_INTEREST:
        return f"{text}: A and B are no more than {size} apart"
    return f"{text}; {would}"


def _doubts(
    rows: Sequence[Block],
    logs: Floats,
    odd: Sequence[int],
    unrest: Mapping[str, Floats],
    known: RatioEstimate | None,
    aim: float | None,
) -> Iterator[str]:
    if known is not None and aim is not None and known.half_width > aim:
        width = f"+- {100 * known.half_width:.2g} %" if math.isfinite(known.half_width) else "an unknown width"
        count = _blocks_for(known, aim)
        takes = "how many blocks that takes cannot be said" if count is None else f"that takes about {count} blocks"
        yield f"B/A is known to {width}, not to the {100 * aim:.3g} % that were wanted; {takes}"
    if known is not None and known.shared:
        yield "other programs used the cores in more than three quarters of the rounds: B/A is that of a shared machine"
    own = {arm: float(np.median(_values(rows, arm, "samples_per_s"))) for arm in "AB"}
    for row, log in zip(rows, logs.tolist(), strict=True) if odd else ():
        if row["block"] in odd:  # of the two, the one that is further from its own median had something happen to it
            arm = max("AB", key=lambda arm: abs(math.log(row[arm]["samples_per_s"] / own[arm])))
            usual = math.exp(float(np.median(logs)))
            yield (
                f"block {row['block']} is an outlier (B/A = {math.exp(log):.3f}, usually {usual:.3f}): {arm} made "
                f"{row[arm]['samples_per_s']:,.0f} samples/s there against {own[arm]:,.0f} usually; it counts like "
                "the others"
            )
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
    end = "" if apart is None else f"; the test MSE at the end differs by up to {100 * apart:.2f} %"
    found = f"the losses of the first {steps} steps differ by up to {worst or 0.0:.1e} of their size"
    text = f"both learn the same: {found}{end} (rounding grows with the steps)"
    if same:
        text = "both learn the same: the parameters at the end agree bit for bit"
    elif not alike:
        text = f"they do not learn the same: {found}, more than rounding explains{end}"
    return {
        "same_parameters": same,  # bit for bit, in every block
        "alike": alike,
        "first_steps": steps,  # whose losses were compared
        "loss_difference": worst,
        **{f"{arm}_test_mse": float(of.mean()) if len(of) else None for arm, of in zip("ab", known.T, strict=True)},
        "test_mse_difference": apart,
        "text": f"losses of the first steps were not recorded{end}" if alike is None else text,
    }


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return a comparison as a table and the verdicts in words."""
    heads = ("workers", "blocks", "A samples/s", "B samples/s", "B/A", "95 % interval", "p", "p (Holm)", "p90/med A, B")
    rows, verdicts, components, doubts = [], [], [], []
    for each in found["workers"]:
        count = plural(each["workers"], "worker")
        ends = "-" if each["low"] is None else f"{each['low']:.3f} - {each['high']:.3f}"
        names = {"a_samples_per_s": ",.0f", "b_samples_per_s": ",.0f", "ratio": ".3f", "p": ".4f", "p_holm": ".4f"}
        names |= {f"{arm}_p90_over_median": ".2f" for arm in "ab"}
        said = ["-" if each[name] is None else format(each[name], form) for name, form in names.items()]
        rows.append((f"{each['workers']}", f"{each['blocks']}", *said[:3], ends, *said[3:5], ", ".join(said[5:])))
        verdicts.append(f"{count}: {each['verdict']}")
        components += [f"{count}: {_components(**each['turns'])}"] if each["turns"] else []
        doubts += [f"doubt, {count}: {doubt}" for doubt in each["doubts"]]
    table = to_lines(table_of(heads, rows, texts=()))
    return [*table, "", *verdicts, *components, found["learning"]["text"], *doubts]


def _components(*, round_sd: float, round_error: float, launch_sd: float | None, **turns: Any) -> str:
    """Return of what the interval is made, in words."""
    level = "unknown" if launch_sd is None else f"{100 * launch_sd:.2g} %"
    text = (
        f"{turns['rounds']} rounds in {plural(turns['launches'], 'block')}; a round scatters by {100 * round_sd:.2g} %"
    )
    text += f", the level of a block by {level}; standard error of rounds alone {100 * round_error:.2g} %"
    if turns["cancelled"] is not None:
        text += f"; {100 * max(turns['cancelled'], 0):.0f} % of the variance of both rates cancelled"
    aside = turns["set_aside"]
    return f"{text}; {aside} rounds beside other programs set aside" if aside else text
