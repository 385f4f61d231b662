"""What `horovod-study predict` (`fit`) shows of fitted laws."""

from collections.abc import Mapping
from typing import Any

from horovod_study.text.tables import NOTHING, table_of, to_lines
from horovod_study.text.words import cut, printable, wrapped

_LIMITS = {"knee": "workers at the knee:", "peak": "workers at the peak:", "limit": "speedup is never above"}


def laws_text(name: str, one: Mapping[str, Any]) -> str:
    """Return the laws of a series: a row for each that is about its kind of scaling, the others by name, the doubts."""
    selected, told, rows = one["selected"], [], []
    reasons: dict[str, list[str]] = {}
    lines = [f"{cut(printable(name), 60) or 'all points'}: speedup relative to {one['baseline']}"]
    for law, fitted in one["laws"].items():
        known = fitted["identifiable"]
        if law != selected and not (known and fitted["applies"]):
            told.append(f"{law}: ")
        if not fitted["applies"]:
            reasons.setdefault(fitted["why_not"], []).append(law)
            told.append(f"{law} does not apply")
        if fitted["applies"] or law == selected:
            parts = [_interval(each, value, fitted["ci95"].get(each)) for each, value in fitted["params"].items()]
            aicc = NOTHING if fitted["aicc"] is None else f"{fitted['aicc']:.1f}"
            off = NOTHING if fitted["loo_error"] is None else f"{100 * fitted['loo_error']:.1f} %"
            mark = "*" if law == selected else " " if known else "?"
            rows.append((f"{mark} {law}", f"{fitted['rmse']:.3g}", aicc, off, "  ".join(parts)))
    lines += to_lines(table_of(("  law", "rmse", "AICc", "loo", "parameters"), rows, texts=(0, 4)))
    for what, label in _LIMITS.items() if selected else ():
        value = one["laws"][selected][what]
        if value is not None and value > 1:
            lines.append(f"  {_interval(label, value, one['laws'][selected].get(f'{what}_ci95'))}")
    lines += [f"  - {', '.join(laws)}: not for {one['mode']} scaling ({why})" for why, laws in reasons.items()]
    lines += [f"  assumed: {one['assumed']}"] if one["assumed"] else []
    lines += [f"  doubt: {doubt}" for doubt in one["doubts"] if not doubt.startswith(tuple(told))]
    return "\n".join(
        part for line in lines for part in ([line] if "[" in line else wrapped(line, 100, deeper="      "))
    )


def _interval(name: str, value: float, ends: Any) -> str:
    low, high = ends or (None, None)
    return f"{name} {value:.5g}" + (
        "" if low is None else f" [{low:.3g}, {'no end' if high is None else f'{high:.3g}'}]"
    )
