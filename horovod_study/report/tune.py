"""What came of a tune: the effect of each setting as a table, and the lines of a study file. It computes nothing."""

from collections.abc import Mapping
from typing import Any

import yaml

from horovod_study.report.kit.style import runtime_label
from horovod_study.text.tables import table_of, to_lines

_HEADS = ("setting", "of shipped", "95 % interval", "samples/s", "p90/median", "launches", "")


def table(document: Mapping[str, Any]) -> list[str]:
    """Return the lines of the table: setting, ratio to shipped with interval, spread of the step, verdict."""
    tuned = document["for"]
    lines = [f"{runtime_label(*document['runtime'].split('/'))}, {tuned['workers']} workers, batch {tuned['batch']}"]
    lines += to_lines(table_of(_HEADS, map(_cells, document["candidates"]), texts=(0, 6)), indent=2)
    lines += [f"    {knob} was not varied: it {why}" for knob, why in document["left_out"].items()]
    lines.append("")
    lines.append(f"{document['verdict'][:1].upper()}{document['verdict'][1:]}.")
    where = "measured again" if document["gains_confirmed"] else "in the launches it led in, so a little flattering"
    for key, words in (("gain_over_shipped", "shipped settings"), ("gain_over_library", "library defaults")):
        if (gain := document[key]) and gain["ratio"] is not None:
            lines.append(f"  over the {words}: {gain['ratio']:.3f} {_interval(gain)}".rstrip() + f", {where}")
    return lines


def _interval(row: Mapping[str, Any]) -> str:
    return "" if row["low"] is None else f"[{row['low']:.3f}, {row['high']:.3f}]"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    known = row["ratio"] is not None and row["launches"]
    return (
        ("* " if row["chosen"] else "  ") + row["name"],
        f"{row['ratio']:.3f}" if known else "-",
        _interval(row) if known and row["kind"] != "shipped" else "",
        f"{row['samples_per_s']:,.0f}" if row["samples_per_s"] else "-",
        f"{row['step_spread']:.2f}" if row["step_spread"] else "-",
        str(row["launches"]),
        row["verdict"],
    )


def run_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the chosen settings as lines of a study file, whose sweep names the runtime."""
    values = {name: value for name, value in document["settings"].items() if name not in ("backend", "transport")}
    text = yaml.safe_dump({"run": values}, sort_keys=False)
    return [f"# for a study file with runtime: {document['runtime']} in its sweep", *text.splitlines()]
