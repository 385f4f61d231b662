"""What `horovod-study bench timers` found, as tables for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural

_NAMES = {"control": "off again (control)", "nothing": "nothing kept, not even losses"}
_HEADS = ("", "step, ms", "overhead", "95 % interval", "writing", "calls, us", "")


def text(costs: Sequence[Mapping[str, Any]], cases: Sequence[Mapping[str, Any]]) -> str:
    """Return everything as tables, and the verdicts; `costs`: of `timer_cost`, `cases`: what was measured."""
    machine = cases[0]["environment"]
    head = (
        f"# {machine['cpu_model']}, {machine['cores']} cores, PyTorch {machine['torch']}; {cases[0]['measured']}\n"
        "# overhead: against mode off in blocks of steps that alternated, trimmed mean over the rounds with its 95 % "
        "interval;\n"
        "# writing: the part of it that rows take; calls: what they take alone, everything in the cache"
    )
    verdicts = [f"batch {each['batch']}, {plural(each['workers'], 'worker')}: {each['verdict']}" for each in costs]
    return "\n\n".join([head, *map(_table, costs), "\n".join(verdicts)])


def _table(cost: Mapping[str, Any]) -> str:
    head = (
        f"batch {cost['batch']}, {plural(cost['workers'], 'worker')} ({cost['runtime']}), {cost['device']}: "
        f"{cost['rounds']} rounds of {cost['steps_per_block']} steps each, {cost['seconds']:.0f} s"
    )
    rows = [("off", f"{cost['off_step_s'] * 1e3:.3f}", *[""] * 5)]
    for each in (cost["control"], *cost["variants"]):
        ends = "" if each["low"] is None else f"[{each['low']:+.2f}, {each['high']:+.2f}]"
        calls = "" if each["calls_us"] is None else f"{each['calls_us']:.1f}"
        edges = ""
        if each["edges_percent"] is not None and each["edges_percent"] - each["percent"] > 0.5:
            edges = f"{each['edges_percent']:+.2f} % with start and stop every {each['edges_steps']} steps"
        shares = f"{each['percent']:+.2f} %", ends, f"{each['writing_percent']:+.2f} %"
        rows.append((_NAMES.get(each["way"], each["way"]), f"{each['step_s'] * 1e3:.3f}", *shares, calls, edges))
    return "\n".join([head, *to_lines(table_of(_HEADS, rows, texts=(0, 6)))])
