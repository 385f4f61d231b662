"""What a simulation found: a table for the terminal, CSV, JSON, and speedup, efficiency and parts against workers.

It computes nothing: everything shown is a column of the table that analysis/simulate/scaling.py made.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis.simulate.scaling import PARTS, Scenario
from horovod_study.records import facts, finite
from horovod_study.report.grammar import Figure, Guide, Panel, Points, of_bars, spread
from horovod_study.report.kit import style
from horovod_study.text.numbers import alone, amount, known
from horovod_study.text.tables import NOTHING, table_of, to_lines
from horovod_study.text.words import plural

NAME = "simulation"
LOOKS = {
    "compute": style.LapStyle(label="computing", color="#8fa5b8", ink=style.INK),
    "slowest": style.LapStyle(label="waiting for the slowest", color="#6e8b74", ink=style.INK),
    "cycle": style.LapStyle(label="waiting for the cycle", color="#e69f00", ink=style.INK),
    "runtime": style.LapStyle(label="runtime and negotiation", color="#d4ba6e", ink=style.INK),
    "latency": style.LapStyle(label="latency of the all-reduce", color="#cc79a7", ink=style.INK),
    "transfer": style.LapStyle(label="transfer of the gradients", color="#b3305f", ink=style.INK),
}


def content(table: pd.DataFrame, calibration: Scenario, doubts: Sequence[str]) -> dict[str, Any]:
    """Return everything as plain values, None for what is not known: constants, scenarios -> rows, doubts."""
    rows = table.groupby("scenario", sort=False)
    return {
        "constants": constants(calibration),
        "sources": dict(calibration.sources),
        "scenarios": {f"{name}": finite(own.drop(columns="scenario")) for name, own in rows},
        "doubts": list(doubts),
    }


def constants(calibration: Scenario) -> dict[str, Any]:
    """Return the constants of the baseline as plain values."""
    it = calibration
    return {
        **facts(it, "scaling", "batch"),
        "compute_s": it.compute.mean_s,
        "compute_steps": it.compute.steps,
        "compute_cv": it.compute.cv
        if it.compute.times_s is None
        else float(np.std(it.compute.times_s) / it.compute.mean_s),
        "beside": it.beside,
        "crowding": {str(k): factor for k, factor in it.crowding.items()},
        "compute_fixed_share": it.fixed_share if it.batch_measured else None,
        **facts(it, "gradient_bytes", "buckets", "backward_share", "algorithm"),
        "workers_per_node": it.network.workers_per_node,
        **{
            kind: {"alpha_s": float(link.alpha_s), "bytes_per_s": float(link.bytes_per_s)}
            for kind, link in (("intra", it.network.intra), ("inter", it.network.inter))
        },
        "levels": finite(it.network.levels),
        "overhead_s": float(it.runtime.overhead_s),
        **facts(it.runtime, "cycle_s", "negotiation", "fusion_bytes"),
        "relative_standard_errors": {name: it.spread.get(name) for name in ("compute", "alpha", "bandwidth")},
    }


def text(table: pd.DataFrame, calibration: Scenario) -> str:
    """Return the constants and a table per scenario for a terminal."""
    blocks, heads = [_constant_lines(calibration, several=bool((table["nodes"] > 1).any()))], set[str]()
    for place, (name, own) in enumerate(table.groupby("scenario", sort=False)):
        rows = [_cells(row, baseline=place == 0) for row in own.to_dict("records")]
        told = [column for column in rows[0] if {row[column] for row in rows} - {NOTHING, "0"}]
        columns = [column.strip() for column in told]
        heads |= {*columns}
        cells = [[row[each] for each in told] for row in rows]
        blocks.append([f"{name}", *to_lines(table_of(columns, cells, texts=()))])
    parts = "".join(f"; {part}: {LOOKS[part].label}" for part in PARTS[1:] if part in heads)
    hidden = ["hidden: communication behind backward, not part of the step"] * ("hidden" in heads)
    of_one = f"efficiency: of one worker that computes alone{'; [95 % interval]' * ('95 %' in heads)}"
    blocks.append([f"ms of a step: parts add up to it{parts}", of_one, *hidden])
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _constant_lines(calibration: Scenario, *, several: bool) -> list[str]:
    """Return what the simulation begins with; `several`: some of it is on several nodes."""
    it, sources = calibration, calibration.sources
    scatter = f"{it.compute.steps:,} times" if it.compute.steps else f"cv {it.compute.cv:g}"
    sent = "after backward" if it.buckets == 1 else f"in {it.buckets} buckets during backward"
    inside, between = (
        f"{float(link.alpha_s) * 1e6:.3g} us, {float(link.bytes_per_s) / 1e9:.3g} GB/s"
        for link in (it.network.intra, it.network.inter)
    )
    runtime = f"{_ms(float(it.runtime.overhead_s))} ms a message, cycle {it.runtime.cycle_s * 1e3:g} ms, "
    words = {
        "computing": (f"{_ms(it.compute.mean_s)} ms ({scatter})", sources.get("computing", "as given")),
        "on one node": (sources.get("crowding", ""),),
        "batch": (sources.get("batch", ""),),
        "gradients": (f"{amount(it.gradient_bytes)} {sent}, {it.algorithm}", sources.get("gradients", "")),
        "in a node": (inside,),
        "between nodes": (between if several else "", sources.get("network", "")),
        "runtime": (f"{runtime}negotiation {it.runtime.negotiation}", sources.get("overhead", "as given")),
    }
    told = [(name, "; ".join(filter(None, each))) for name, each in words.items() if each[0]]
    per_node = plural(it.network.workers_per_node, "worker")
    return [
        f"{it.scaling} scaling, computing known with batch {it.batch} per worker, {per_node} per node",
        *to_lines(table_of(("", ""), told, texts=(0, 1)), indent=2),
    ]


def _cells(row: Mapping[Any, Any], *, baseline: bool) -> dict[str, str]:
    """Return the text of each column; a blank before a head tells it from another of the same name."""
    ratio = {"x baseline": alone(row["of_baseline"]), "95 %  ": _range(row, "of_baseline_{}", alone)}
    return {
        **{name: f"{row[name]:,}" for name in ("workers", "nodes", "batch")},
        "step ms": _ms(row["step_s"]),
        "95 %": _range(row, "step_{}_s", _ms),
        "samples/s": alone(row["samples_per_s"]),
        "efficiency": f"{alone(100 * row['efficiency'])} %",
        **{part: _ms(row[f"{part}_s"]) for part in PARTS},
        "all-reduce 95 %": _range(row, "allreduce_{}_s", _ms),
        "hidden": _ms(row["hidden_s"]),
        **(ratio if not baseline else {}),
    }


def _ms(seconds: float) -> str:
    return alone(seconds * 1e3) if abs(seconds) > 1e-9 else "0"


def _range(row: Mapping[Any, Any], name: str, write: Callable[[float], str]) -> str:
    low, high = (row[name.format(end)] for end in ("low", "high"))
    return f"[{write(low)}, {write(high)}]" if known(low) and known(high) else NOTHING


def drawing(table: pd.DataFrame, calibration: Scenario) -> Figure:
    """Return speedup, efficiency and the parts of the step against workers."""
    it, sources = calibration, calibration.sources
    names = list(map(str, dict.fromkeys(table["scenario"])))
    looks = {
        name: replace(look, dash=style.EXTRAPOLATED_DASH if place and look.dash == "-" else look.dash)
        for place, (name, look) in enumerate(zip(names, style.looks_in_order(names), strict=True))
    }
    first = table[table["scenario"] == names[0]].assign(setting="", series=names[0], nodes=1)
    parts = pd.concat([first.assign(part=part, seconds=first[f"{part}_s"]) for part in PARTS])
    bars = of_bars(parts, "seconds", "Mean ms per step", most=10, parts=LOOKS, scale=1e3, unit="ms")
    how: dict[str, Any] = {"rows": table, "by": "scenario", "line": True}
    speedup = Points(y="speedup", unit="\u00d7", **how)
    share = Points(scale=100, unit="%", **spread("efficiency", "", "_low", "_high"), **how)
    return Figure(
        name=NAME,
        title="Simulated scaling",
        alt="Speedup, efficiency and parts of the step against workers; the values are in its CSV file.",
        caption=f"Simulated, not measured: {it.scaling} scaling, computing known with {it.batch} samples per worker, "
        f"{plural(it.network.workers_per_node, 'worker')} per node, gradients of {it.gradient_bytes:,.0f} bytes. "
        "Speedup is over one worker that computes alone; efficiency with the 95 % intervals of the table. Bars: the "
        f"mean step of the first scenario. Computing from {sources.get('computing', 'given constants')}; network from "
        f"{sources.get('network', 'given constants')}.",
        data=table,
        panels=[
            Panel(layers=[Guide(slope=1.0), speedup], y="Speedup", log="xy"),
            Panel(layers=[share], y="Efficiency / %", log="x"),
            *bars["panels"],
        ],
        looks=looks,
        shape=(3, 0.9, 0.5),
    )
