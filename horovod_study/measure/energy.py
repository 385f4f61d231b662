"""Energy of the timed window, by counter and by the integral of power, from the system samples of a host.

The window is what `window_s` of the totals measures: the stretches of timed steps, without the evaluations, the
checkpoints and the warm-up in between or before. A stretch begins and ends between two samples, so counters and power
are interpolated there: linearly, which blurs each edge by at most one interval.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Stretches = Sequence[Sequence[float]]  # (begin, end) of each, in seconds on the axis of the samples

UNSEEN = 0.10
"""Share of the window without samples (gaps longer than two intervals) above which an integral is doubtful."""


def since(stretches: Stretches, from_s: float) -> list[list[float]]:
    """Return the part of the stretches after `from_s`, the begin of the first step of the window."""
    return [[max(begin, from_s), end] for begin, end in stretches if end > from_s]


def device_energy(
    name: str,
    at_s: Floats,
    energy_j: Floats,
    power_w: Floats,
    stretches: Stretches,
    *,
    interval_s: float,
    independent: bool = True,
) -> dict[str, Any]:
    """Return {"name", "counter_j", "integral_j", "reason", "doubt"} of one device; NaN in the readings is unknown.

    at_s, energy_j, power_w: shape (N,), at_s ascending. None for what cannot be determined, with the `reason`. Without
    `independent` the power was derived from the counter, and its integral would only repeat it.
    """
    reasons, doubts = [], []
    counter_j = integral_j = None
    begins, ends = np.array(stretches, dtype=np.float64).T
    window_s, known = float((ends - begins).sum()), np.isfinite(energy_j)
    if why := _useless("energy counter", at_s[known], stretches):
        reasons.append(why)
    elif (np.diff(energy_j[known]) < 0).any():
        reasons.append("its energy counter went backwards")
    else:
        grown = np.interp(ends, at_s[known], energy_j[known]) - np.interp(begins, at_s[known], energy_j[known])
        counter_j = float(grown.sum())
    known = np.isfinite(power_w)
    if not independent:
        reasons.append("its power is derived from the counter, so there is no integral beside it")
    elif why := _useless("power reading", at_s[known], stretches):
        reasons.append(why)
    else:
        at_s, power_w, integral_j = at_s[known], power_w[known], 0.0
        for begin, end in stretches:  # by the trapezoid rule over the true times
            times = np.concatenate([[begin], at_s[(at_s > begin) & (at_s < end)], [end]])
            integral_j += float(np.trapezoid(np.interp(times, at_s, power_w), times))
        wide = np.flatnonzero(np.diff(at_s) > 2 * interval_s)
        unseen = sum(_overlap_s(stretches, at_s[place], at_s[place + 1]) for place in wide) / window_s
        if unseen > UNSEEN:
            doubts.append(f"no power reading in {100 * unseen:.0f} % of the window")
    if counter_j is not None and integral_j is not None and counter_j > 0:
        gap = (integral_j - counter_j) / counter_j
        if abs(gap) > 0.10:  # then they are not both right
            doubts.append(
                f"its counter says {counter_j:.4g} J and the integral of its power {integral_j:.4g} J "
                f"({100 * gap:+.0f} %)"
            )
    told = {"reason": "; ".join(reasons), "doubt": "; ".join(doubts)}
    return {"name": name, "counter_j": counter_j, "integral_j": integral_j, **told}


def _useless(what: str, times: Floats, stretches: Stretches) -> str:
    """Return why readings at these times do not tell of the stretches, "" where they do."""
    if len(times) < 2:
        return f"no {what}"
    covered_s, window_s = _overlap_s(stretches, times[0], times[-1]), sum(end - begin for begin, end in stretches)
    # No more may be before the first or after the last sample.
    return f"its {what}s cover {covered_s:.1f} s of the window's {window_s:.1f} s" * (covered_s < 0.99 * window_s)


def _overlap_s(stretches: Stretches, first_s: float, last_s: float) -> float:
    return float(sum(max(0.0, min(end, last_s) - max(begin, first_s)) for begin, end in stretches))


def host_energy(
    columns: Mapping[str, Any], devices: Mapping[str, str], stretches: Stretches, *, host: str, interval_s: float
) -> list[dict[str, Any]]:
    """Return `device_energy` of every device of a host, from the columns of its samples, all of one length.

    Counters begin again with each attempt of a run; each stretch is in one.
    """
    found, floats = [], ("at_s", "energy_j", "power_w")
    part, attempt = np.asarray(columns["part"]), np.asarray(columns["attempt"])
    for name, device in devices.items():
        mine, independent = part == name, not name.startswith("package")
        at_s, energy_j, power_w = (np.array(columns[each], dtype=np.float64)[mine] for each in floats)
        for number in np.unique(attempt[mine])[1:]:
            before, after = attempt[mine] < number, attempt[mine] == number
            known = energy_j[before][np.isfinite(energy_j[before])]
            energy_j[after] += known[-1] if len(known) else 0.0
        how: dict[str, Any] = {"interval_s": interval_s, "independent": independent}
        told = device_energy(f"{host}: {device} ({name})", at_s, energy_j, power_w, stretches, **how)
        found.append({**told, "host": host, "part": name})
    return found


def total_energy(devices: Sequence[Mapping[str, Any]], missing: Sequence[str], *, samples: int) -> dict[str, Any]:
    """Return the `energy` of the totals, over the devices of all hosts; `missing` says what has no sensor, and why.

    `counter_j` and `integral_j` are sums where every device has one, `total_j` takes the counter where there is one and
    the integral elsewhere, and is the numerator of `per_sample_j`. Nothing known is None with the `reason`, never 0.
    """
    columns = {key: [each[key] for each in devices] for key in ("counter_j", "integral_j")}
    best = [integral if counter is None else counter for counter, integral in zip(*columns.values(), strict=True)]
    named = [each["name"] for each, value in zip(devices, best, strict=True) if value is not None]
    without = [f"{each['name']}: {each['reason']}" for each, value in zip(devices, best, strict=True) if value is None]
    total_j = math.fsum(value for value in best if value is not None) if named else None
    return {
        **{key: math.fsum(values) if values and None not in values else None for key, values in columns.items()},
        "total_j": total_j,
        "per_sample_j": total_j / samples if total_j is not None and samples else None,
        "devices": named,
        "per_device": [dict(each) for each in devices],
        "reason": "; ".join([*without, *missing]),
        "doubt": "; ".join(f"{each['name']}: {each['doubt']}" for each in devices if each["doubt"]),
    }


def host_summary(columns: Mapping[str, Any], stretches: Stretches) -> dict[str, Any]:
    """Return means over the window and maxima over the run of one host, each as {rank or part: value}.

    ranks_cpu_percent, gpu_percent and power_w (of each device with a reading) are means that weigh each sample with
    the time it stands for inside the stretches; rss_mb_max and gpu_memory_mb_max are maxima. None where unknown.
    """
    columns = {name: np.asarray(values) for name, values in columns.items()}
    of_host = {"ranks_cpu_percent": "cpu_percent", "rss_mb_max": "rss_mb", "gpu_percent": "gpu_percent"}
    of_host |= {"gpu_memory_mb_max": "gpu_memory_mb", "power_w": "power_w"}
    found: dict[str, dict[str, float | None]] = {key: {} for key in of_host}
    for name in dict.fromkeys(columns["part"].tolist()):
        mine = columns["part"] == name
        at_s = columns["at_s"][mine].astype(np.float64)
        before, over_s = np.concatenate([at_s[:1], at_s[:-1]]), np.zeros(len(at_s))  # a reading: since the one before
        for begin, end in stretches:
            over_s += np.clip(np.minimum(end, at_s) - np.maximum(begin, before), 0.0, None)
        for key, column in of_host.items():
            values = columns[column][mine]
            known = np.isfinite(values)
            if not known.any() or (key == "ranks_cpu_percent" and not name.startswith("rank ")):
                continue
            weights, value = np.where(known, over_s, 0.0), None
            if key.endswith("_max"):
                value = float(values[known].max())
            elif weights.sum() > 0:
                value = float((weights * np.nan_to_num(values)).sum() / weights.sum())
            found[key][name.removeprefix("rank ")] = value
    return dict(found)
