"""Where the synchronisation time goes, as a table."""

from pathlib import Path

from horovod_study.analysis.stats import Interval
from horovod_study.analysis.steps.attribution import Arm, Attribution
from horovod_study.records import finite
from horovod_study.report.kit import style
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import fixed, quoted
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural, wrapped

_ROWS = (
    ("step", "step"),
    ("sync", "synchronisation"),
    ("floor", "  transfer floor"),
    ("skew", "  skew"),
    ("runtime", "  runtime"),
    ("least", "    where nothing disturbs"),
    ("pack", "    packing, norm"),
    ("rest", "    cycle, negotiation, other"),
    ("unexplained", "  unexplained"),
)


def write_attribution(found: Attribution, directory: Path) -> list[Path]:
    """Write attribution.json and attribution.txt (the table); return the paths."""
    lines = [*table(found), "", *(f"Doubt: {text}." for text in found.doubts)]
    return write_result(directory, {"attribution.json": finite(found), "attribution.txt": lines})


def table(found: Attribution) -> list[str]:
    """Return the parts of every arm: ms per step with 95 % intervals, share of the synchronisation and of the step."""
    lines = []
    for arm in found.arms:
        hooks, rounds = ", hooks" * (arm.reduction == "hooks"), f", {plural(arm.rounds, 'round')}" * bool(arm.rounds)
        lines.append(
            f"{style.runtime_label(arm.backend, arm.transport)}{hooks}, {arm.arm} ({plural(arm.workers, 'worker')}, "
            f"batch {arm.batch}, {plural(len(arm.runs), 'run')}{rounds})"
        )
        known = [(name, words) for name, words in _ROWS if name in arm.seconds]
        rows = [(words, _told(arm.seconds[name], 1e3), *_shares(arm, name)) for name, words in known]
        lines += to_lines(table_of(("", "ms", "of sync", "of step"), rows), indent=2)
        told = [f"{name} {_told(each, 100, ' %')}" for name, each in arm.efficiency.items()]
        beside = [f"efficiency (100 %: {arm.baseline}): {', '.join(told)}"] if told else []
        if arm.over_shipped is not None:
            beside.append(f"step over that with shipped settings: {_told(arm.over_shipped, 100, ' %')}")
        if arm.slow_rank is not None:
            host = [*arm.hosts, *[""] * arm.workers][arm.slow_rank]
            late = _told(arm.seconds[f"lag {arm.slow_rank}"], 1e3)
            where = f"rank {arm.slow_rank}{f' on {host}' if host else ''}"
            beside.append(f"{where} is slow: its gradients come {late} ms after the mean worker's")
        if arm.why_not:
            left = arm.seconds.get("exposed")
            rest = f"{_told(left, 1e3)} ms are transfer and runtime that backward did not hide; " if left else ""
            beside.append(f"not decomposed: {rest}{arm.why_not}")
        lines += [line for each in beside for line in wrapped(each, 100, "  ", "    ")] + [""]
    return lines[:-1]


def _told(estimate: Interval, scale: float, unit: str = "") -> str:
    value, _, ends = quoted(*(scale * each for each in (estimate.value, estimate.low, estimate.high))).partition(" ")
    return f"{value}{unit} {ends}".rstrip()


def _shares(arm: Arm, name: str) -> list[str]:
    """Return the share of the synchronisation and of the step; of the step itself only that."""
    wholes = [arm.seconds[whole].value if whole in arm.seconds else 0.0 for whole in ("sync", "step")]
    shares = [f"{fixed(100 * arm.seconds[name].value / whole, 1)} %" if whole > 0 else "" for whole in wholes]
    return shares if name != "step" else ["", shares[1]]
