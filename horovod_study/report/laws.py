"""What `horovod-study predict` (`fit`) shows of fitted laws."""

import textwrap
from collections.abc import Mapping
from typing import Any

from horovod_study.text.words import cut, printable


def laws_text(name: str, one: Mapping[str, Any]) -> str:
    """Return the fitted laws of a series: those that fit, then the names of those that do not, then the doubts."""
    lines = [f"{cut(printable(name), 60) or 'all points'}: speedup relative to {one['baseline']}"]
    if one["assumed"]:
        lines.append(f"  assumed: {one['assumed']}")
    unknown, refused, told = [], [], set()
    for law, fitted in one["laws"].items():
        if not fitted["applies"]:
            refused.append(law)
            if law != one["selected"]:
                continue
        if not fitted["identifiable"] and law != one["selected"]:
            unknown.append(law)
            told |= {f"{law}: {doubt}" for doubt in fitted["doubts"]}
        lines += _law_text(law, fitted, selected=law == one["selected"])
    if unknown:
        lines.append(f"  ? not identifiable from these points: {', '.join(unknown)}")
    reasons: dict[str, list[str]] = {}
    for law in refused:
        reasons.setdefault(one["laws"][law]["why_not"], []).append(law)
        told.add(f"{law} does not apply to {one['mode']} scaling: {one['laws'][law]['why_not']}")
    lines += [f"  - {', '.join(laws)}: not for {one['mode']} scaling ({why})" for why, laws in reasons.items()]
    lines += [f"  doubt: {doubt}" for doubt in one["doubts"] if doubt not in told]
    return "\n".join(
        part for line in lines for part in textwrap.wrap(line, 100, subsequent_indent="      ", break_long_words=False)
    )


def _law_text(law: str, fitted: dict[str, Any], *, selected: bool) -> list[str]:
    parts = []
    for parameter, value in fitted["params"].items():
        low, high = fitted["ci95"].get(parameter) or (None, None)
        interval = "" if low is None or high is None else f" [{low:.3g}, {high:.3g}]"
        parts.append(f"{parameter} {value:.5g}{interval}")
    mark = "*" if selected else " " if fitted["identifiable"] else "?"
    quality = [f"rmse {fitted['rmse']:.3g}"]
    quality += [] if fitted["aicc"] is None else [f"AICc {fitted['aicc']:.1f}"]
    quality += [] if fitted["loo_error"] is None else [f"loo {100 * fitted['loo_error']:.1f} %"]
    for what in ("knee", "peak") if selected else ():
        if (fitted[what] or 0) > 1:
            low, high = fitted[f"{what}_ci95"] or (None, None)
            interval = "" if low is None else f" [{low:.3g}, {'no end' if high is None else format(high, '.3g')}]"
            quality.append(f"{what} at {fitted[what]:.4g}{interval} workers")
    quality += [] if fitted["limit"] is None or not selected else [f"never above {fitted['limit']:.4g}"]
    return [f"{mark} {law:<10} {'  '.join(parts)}; {', '.join(quality)}"]
