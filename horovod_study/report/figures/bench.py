"""What `horovod-study bench` found: tables in nccl-tests' layout, the figure of the network, and the roofline; and what
a simulation on such a network found: a table, and speedup, efficiency and parts of a step against workers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis.machine.network import WHOLE_GRADIENT, Fit, Network, bus_factor
from horovod_study.analysis.simulate.scaling import PARTS, Scenario
from horovod_study.records import facts, finite
from horovod_study.report import grammar as kit
from horovod_study.report.grammar import Curve, Figure, Guide, Panel, Points, of_bars, spread, write_files
from horovod_study.report.kit import style
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import THIN, alone, amount
from horovod_study.text.tables import NOTHING, Column, Table, filled, grouped, table_of, to_lines
from horovod_study.text.words import plural

_STEP = style.SeriesStyle(label="", color=style.LAPS["sync"].color, marker="o", filled=True, dash="none")
_LAUNCHES = {
    "eager": "one by one",
    "host": "share of the host",
    "graph": "in a CUDA graph",
    "replay": "replay of a graph",
}
_ROOF = ("bytes_per_s", "flop_per_byte", "attainable_flop_per_s")


def write_bench(network: Network, document: Mapping[str, Any], directory: Path) -> list[Path]:
    """Write bench.json, bench.csv, bench.txt and the files of the figures; return their paths.

    `document` is what was measured, conditions included; bench.json holds it whole beside what follows from it.
    """
    texts = {
        "bench.json": content(network, document),
        "bench.csv": network["points"],
        "bench.txt": text(network, document),
    }
    return [*write_result(directory, texts), *write_files(drawings_of(network), directory)]


def drawings_of(network: Network) -> list[Figure]:
    """Return the figures of a machine: its roofline where that was measured, and all-reduces against their size."""
    found = [_roofline(network, network["roofline"])] if network["roofline"] is not None else []
    return [*found, *([_allreduces(network)] if len(network["points"]) else [])]


def _roofs(network: Network) -> pd.DataFrame:
    """Return the rows of a roofline: peaks, roofs with their ridge and what is attainable, and the step."""
    roofline = network["roofline"]
    assert roofline is not None
    rows = [{"kind": "peak", "name": name, "flop_per_s": peak} for name, peak in roofline["peaks_flop_per_s"].items()]
    memory = {"way": "memory", **{name: roofline[f"memory_{name}"] for name in _ROOF}}
    for each in (memory, *roofline["networks"]):
        own = {name: each.get(name, roofline["network_flop_per_byte"]) for name in _ROOF}
        rows.append({"kind": "roof", "name": each["way"], "flop_per_s": roofline["flop_per_s"], **own})
    found = pd.DataFrame(rows, columns=["kind", "name", "flop_per_s", *_ROOF])
    return found.astype(dict.fromkeys(("flop_per_s", *_ROOF), float))


def content(network: Network, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what follows from the measurements, what was not measured and why, and the measurements themselves."""
    return {**finite(network), "unavailable": document["unavailable"], "measured": document["jobs"]}


def text(network: Network, document: Mapping[str, Any]) -> str:
    """Return everything as tables for a terminal."""
    conditions = document["jobs"][0]["conditions"]
    machine, hosts = conditions["environment"], [rank["host"] for rank in conditions["ranks"]]
    placed = ", ".join(f"{hosts.count(host)} on {host}" for host in dict.fromkeys(hosts))
    versions = [f"{name} {machine[name]}" for name in ("torch", "horovod", "mpi4py") if machine.get(name)]
    libraries = [job["conditions"]["mpi_library"] for job in document["jobs"]]
    head = (
        f"# {plural(network['workers'], 'worker')}: {placed}; {machine['cpu_model']}, {machine['cores']} cores; "
        f"{conditions['started']}, load {conditions['load_before']:g} before\n"
        f"# {', '.join([*versions, next(filter(None, libraries), machine['mpi'] or 'no MPI')])}\n"
        "# time: of the slowest worker, mean over the iterations, median over the rounds; GB = 1e9 bytes; busbw = "
        f"algbw * {bus_factor('allreduce', network['workers']):.3g}"
    )
    blocks = [head, *(allreduce_table(network, name) for name in dict.fromkeys(network["points"]["way"]))]
    blocks.append(_fit_table(network))
    if network["roofline"] is not None:
        blocks += [_machine_table(network, network["roofline"]), _roofline_table(network, network["roofline"])]
    blocks.append("\n".join(f"not measured: {name}: {why}" for name, why in document["unavailable"].items()))
    return "\n\n".join(filter(None, blocks))


def allreduce_table(network: Network, name: str) -> str:
    """Return the all-reduces of one way in the layout of nccl-tests, which its users' scripts read: no Table."""
    own = network["points"][(network["points"]["way"] == name) & (network["points"]["operation"] == "allreduce")]
    sides = {place: own[own["place"] == place].set_index("bytes") for place in ("out", "in")}
    lines = [
        f"# all-reduce, {_label(name)} ({name})",
        f"#{'out-of-place':>67}{'in-place':>36}",
        f"#{'size':>11}{'count':>12}{'type':>8}{'redop':>7}"
        + f"{'time':>10}{'algbw':>8}{'busbw':>8}{'#wrong':>8}  " * 2,
        f"#{'(B)':>11}{'(elements)':>12}{'':>15}" + f"{'(us)':>10}{'(GB/s)':>8}{'(GB/s)':>8}{'':>8}  " * 2,
    ]
    for size in sorted(own["bytes"].unique()):
        line = f" {size:>11}{size // 4:>12}{'float':>8}{'sum':>7}"
        for place in ("out", "in"):
            row = sides[place].loc[size]
            line += f"{_us(row['seconds_median']):>10}{_gb(row['algbw_gb_per_s']):>8}{_gb(row['busbw_gb_per_s']):>8}"
            line += f"{row['wrong']:>8}  "
        lines.append((line + sides["in"].loc[size]["of_model"]).rstrip())
    lines = [line.rstrip() for line in lines]
    for row in network["barriers"][network["barriers"]["way"] == name].to_dict("records"):
        median, low, high = (_us(row[f"seconds_{each}"]) for each in ("median", "min", "max"))
        lines.append(f"# barrier {median} us ({low} - {high})")
    return "\n".join(lines)


def _titled(above: str, heads: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[int] = (0, 5)) -> str:
    return "\n".join([above, *to_lines(table_of(heads, rows, texts=texts))])


def _fit_texts(fit: Fit) -> tuple[str, str]:
    """Return alpha in us and beta in GB/s, each with its interval."""
    low, high = map(_us, fit["alpha_ci95_s"])
    b_low, b_high = (_gb(value / 1e9) for value in fit["beta_ci95_bytes_per_s"])
    beta = _gb(fit["beta_bytes_per_s"] / 1e9)
    return f"{_us(fit['alpha_s'])} [{low}, {high}]", f"{beta} [{b_low}, {b_high}]"


def _fit_table(network: Network) -> str:
    size = network["model"]["flat_bytes"]
    whole = network["points"].query("operation == 'allreduce' and place == 'in' and bytes == @size")
    measured = whole.set_index("way")["seconds_median"].to_dict()
    rows = [
        (name, *_fit_texts(fit), amount(fit["half_bytes"]), f"{100 * fit['rms_relative']:.0f} %",
         f"{_us(fit['alpha_s'] + size / fit['beta_bytes_per_s'])} us"
         + (f", {_us(measured[name])} us" if name in measured else ""))
        for name, fit in network["fits"].items()
    ]  # fmt: skip
    heads = ("# way", "alpha (us)", "beta (GB/s)", "half at", "scatter", "all gradients: line, measured")
    return _titled("# t(S) = alpha + S / beta of all-reduces in place, with 95 % intervals", heads, rows)


def _machine_table(network: Network, roofline: Mapping[str, Any]) -> str:
    rows = [
        (f"matrix peak {name.replace('float32', 'fp32')}", f"{peak / 1e9:,.1f}", "GFLOP/s")
        for name, peak in roofline["peaks_flop_per_s"].items()
    ]
    for row in network["copies"].to_dict("records"):
        told = ("-", f"({row['reason']})")
        if isinstance(row["reason"], float) or not row["reason"]:
            median, low, high = (f"{row[f'gb_per_s_{each}']:,.2f}" for each in ("median", "min", "max"))
            told = (median, f"GB/s ({low} - {high})")
        rows.append((f"copy, {row['name']}", *told))
    batch, step_s, rate = network["model"]["batch"], roofline["step_s"], roofline["flop_per_s"]
    what = (
        f"ms without communication, {batch / step_s:,.0f} samples/s, {rate / 1e9:.1f} GFLOP/s "
        f"({100 * (rate / roofline['peak_flop_per_s']):.0f} % of the fp32 peak)"
    )
    rows.append((f"training step, batch {batch}", f"{step_s * 1e3:.3f}", what))
    for name, of in _LAUNCHES.items() if network["launch"] is not None else ():
        rows.append((f"launch of a kernel, {of}", _us(network["launch"][f"{name}_s"]), "us"))
    if (step := network["step_roofline"]) is not None:
        memory, done = f"{step['bytes'] / 1e6:.1f} MB of memory", f"{step['operations'] / 1e6:.0f} MFLOP"
        of_step = {"launching": f"{step['launches']} launches", "moving": memory, "computing": done}
        for name, of in of_step.items():
            seconds = step[f"{name}_s"]
            rows.append((f"of the step: {of}", NOTHING if seconds is None else _us(seconds), "us"))
        rows.append(
            ("the whole step", _us(step["step_s"]), f"us; {step['bound']} explains {100 * step['share']:.0f} %")
        )
    return _titled("# what a worker can do while all workers do the same", ("", "", ""), rows, (0, 2))


def _roofline_table(network: Network, roofline: Mapping[str, Any]) -> str:
    shares = {each["way"]: each["share_without_overlap"] for each in roofline["networks"]}
    rows = [
        (row["name"], f"{row['flop_per_byte']:.1f}", _gb(row["bytes_per_s"] / 1e9),
         f"{roofline['peak_flop_per_s'] / row['bytes_per_s']:.1f}", f"{row['attainable_flop_per_s'] / 1e9:,.1f}",
         f"{100 * share:.1f} %" if (share := shares.get(row["name"])) is not None else "")
        for row in _roofs(network).query("kind == 'roof'").to_dict("records")
    ]  # fmt: skip
    heads = ("# ", "FLOP/byte", "GB/s", "ridge", "attainable GFLOP/s", "step / (step + all-reduce)")
    return _titled("# roofline of the step per worker: attainable = min(peak, intensity * bandwidth)", heads, rows)


def _us(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 1e4 else f"{value:.0f}"


def _gb(value: float) -> str:
    return f"{value:.2f}" if value < 1000 else f"{value:.0f}"


def _label(name: str) -> str:
    backend, _, transport = name.partition("/")
    return style.runtime_label(backend, transport) if transport else f"{style.TRANSPORTS.get(name, name)} alone"


def _styles(names: list[str]) -> dict[str, style.SeriesStyle]:
    """Return the style of every way: the colours that the same ways have in the figures of training runs."""
    rows = []
    for name in names:
        backend, _, transport = name.partition("/")
        # MPI alone is what the direct backend does; raw Gloo and NCCL have no run of their own.
        pair = (backend, transport) if transport else ("mpi", "mpi") if name == "mpi" else ("raw", name)
        fixed = {"partition": "", "setting": "", "horovod_defaults": False, "reduction": name}
        rows.append({"series": name, "backend": pair[0], "transport": pair[1], **fixed})
    return style.series_styles(pd.DataFrame(rows)) if rows else {}


def _allreduces(network: Network) -> Figure:
    """Return time and bus bandwidth against message size."""
    points = network["points"][(network["points"]["operation"] == "allreduce") & (network["points"]["place"] == "in")]
    factor = bus_factor("allreduce", network["workers"]) or 1.0  # one worker alone puts nothing on a bus
    # The bandwidth is lowest where the time is largest.
    for name, other in (("median", "median"), ("min", "max"), ("max", "min")):
        points = points.assign(**{f"gb_per_s_{name}": factor * points["bytes"] / points[f"seconds_{other}"] / 1e9})
    looks, lines = _styles(list(dict.fromkeys(points["way"]))), []
    for name, fit in network["fits"].items():
        along = np.geomspace(fit["low_bytes"], fit["high_bytes"], 200)
        seconds = fit["alpha_s"] + along / fit["beta_bytes_per_s"]
        rate = factor * along / seconds / 1e9
        lines.append(pd.DataFrame({"way": name, "bytes": along, "seconds_median": seconds, "gb_per_s_median": rate}))
        label = "{}: alpha {} \u00b5s, beta {} GB/s".format(_label(name), *_fit_texts(fit))
        looks[name] = replace(looks[name], label=label)
    flat = network["model"]["flat_bytes"]
    whole = Guide(label=f"{WHOLE_GRADIENT}, {amount(flat)}", x=(flat, flat), y=(1e-12, 1e12), how={"linestyle": ":"})

    def panel(name: str, label: str, unit: str, scale: float = 1.0) -> Panel:
        how: dict[str, Any] = {"x": "bytes", "by": "way", "scale": scale, "unit": unit}
        fitted = [Curve(rows=pd.concat(lines), y=f"{name}_median", how={"linewidth": 1.0}, **how)] if lines else []
        seen = Points(rows=points, y=f"{name}_median", low=f"{name}_min", high=f"{name}_max", **how)
        return Panel(layers=[whole, *fitted, seen], y=f"{label} / {unit}", x="Message / bytes", log="y", decades=True)

    bandwidth = "Bus bandwidth" if network["workers"] > 1 else "Bandwidth S/t"
    return Figure(
        name="network",
        title="All-reduce of the machine",
        caption=f"All-reduce in place of 32-bit floats among {network['workers']} workers. Points: time of the slowest "
        "worker, mean over the iterations, median over the rounds; bars: smallest and largest round; bus bandwidth as "
        "in nccl-tests, S/t times 2(n-1)/n. Lines: t = alpha + S/beta, with 95 % intervals in the legend.",
        data=network["points"],
        panels=[panel("seconds", "All-reduce", "\u00b5s", 1e6), panel("gb_per_s", bandwidth, "(GB/s)")],
        looks=looks,
    )


def _roofline(network: Network, roofline: Mapping[str, Any]) -> Figure:
    """Return the roofs of memory and networks with the model's step under them."""
    data, model = _roofs(network), network["model"]
    roofs, peak = data[data["kind"] == "roof"], roofline["peak_flop_per_s"]
    left = min(roofline["memory_flop_per_byte"], peak / roofs["bytes_per_s"].max()) / 8
    right = max(roofs["flop_per_byte"].max(), peak / roofs["bytes_per_s"].min()) * 8
    ways = list(roofs["name"])
    looks = {"memory": replace(_STEP, color=style.INK, dash="-"), **_styles(ways[1:])}
    corners, steps = [], []
    for name, rate in zip(ways, roofs["bytes_per_s"], strict=True):
        corners += [(name, at, min(peak, at * rate) / 1e9) for at in (left, peak / rate, right)]
        label = name if name == "memory" else _label(name)
        looks[name] = replace(looks[name], label=f"{label}: {_gb(rate / 1e9)} GB/s")
    done = roofline["flop_per_s"] / 1e9
    for what in ("memory", "network"):
        if (at := roofline[f"{what}_flop_per_byte"]) is not None:
            label = f"step, {at:.3g} FLOP per byte of {what}, {done:.3g} GFLOP/s"
            looks[f"step/{what}"] = replace(_STEP, filled=what == "network", label=label)
            steps.append((f"step/{what}", at, done))
    columns = ["name", "intensity", "gflop_per_s"]
    how: dict[str, Any] = {"x": "intensity", "y": "gflop_per_s", "by": "name"}
    peaks = [
        Guide(level=value / 1e9, held=True, label=f"matrix peak {name.replace('float32', 'fp32')}: "
              f"{value / 1e9:,.0f} GFLOP/s", how={"linestyle": (0, (3, 1 + 2 * place))})
        for place, (name, value) in enumerate(roofline["peaks_flop_per_s"].items())
    ]  # fmt: skip
    return Figure(
        name="roofline",
        title="Roofline of the machine",
        caption=f"Roofline (Williams et al., 2009) of one of {network['workers']} workers, all of them computing: "
        "min(fp32 matrix peak, intensity times bandwidth), for memory (bytes read plus bytes written by a copy) and "
        f"for each network (bus bandwidth with {WHOLE_GRADIENT} of {model['flat_bytes']:,} bytes in one message). "
        f"Circles: the training step of batch {model['batch']} without communication, per byte of memory traffic if "
        "nothing stayed in a cache, and per byte that its gradients put on the network.",
        data=data,
        panels=[Panel(
            layers=[*peaks, Curve(rows=pd.DataFrame(corners, columns=columns), **how),
                    Points(rows=pd.DataFrame(steps, columns=columns), **how)],
            y="GFLOP/s of one worker", x="Operations per byte moved / (FLOP/byte)", log="y", decades=True,
        )],
        looks=looks,
        legend=[kit.entry(looks[name], marker="none") for name in ways],
    )  # fmt: skip


_SIMULATED = {
    "compute": style.LapStyle(label="computing", color="#8fa5b8", ink=style.INK),
    "slowest": style.LapStyle(label="waiting for the slowest", color="#6e8b74", ink=style.INK),
    "cycle": style.LapStyle(label="waiting for the cycle", color="#e69f00", ink=style.INK),
    "runtime": style.LapStyle(label="runtime and negotiation", color="#d4ba6e", ink=style.INK),
    "latency": style.LapStyle(label="latency of the all-reduce", color="#cc79a7", ink=style.INK),
    "transfer": style.LapStyle(label="transfer of the gradients", color="#b3305f", ink=style.INK),
}


def simulation_content(table: pd.DataFrame, calibration: Scenario, doubts: Sequence[str]) -> dict[str, Any]:
    """Return everything as plain values, None for what is not known: constants, scenarios -> rows, doubts."""
    rows = table.groupby("scenario", sort=False)
    return {
        "constants": _constants(calibration),
        "sources": dict(calibration.sources),
        "scenarios": {f"{name}": finite(own.drop(columns="scenario")) for name, own in rows},
        "doubts": list(doubts),
    }


def _constants(calibration: Scenario) -> dict[str, Any]:
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


def simulation_text(table: pd.DataFrame, calibration: Scenario) -> str:
    """Return the constants and a table per scenario for a terminal."""
    columns = (
        *(Column(name, "count", name) for name in ("workers", "nodes", "batch")),
        Column("step", "interval", "step_s step_low_s step_high_s", "ms"),
        Column("throughput", "number", "samples_per_s", "samples/s"),
        Column("efficiency", "number", "efficiency", "%"),
        *(Column(part, "number", f"{part}_s", "ms", usual="0.00") for part in PARTS),
        Column("all-reduce", "interval", "allreduce_s allreduce_low_s allreduce_high_s", "ms"),
        Column("hidden", "number", "hidden_s", "ms", usual="0.00"),
        Column("x baseline", "interval", "of_baseline of_baseline_low of_baseline_high"),
    )
    blocks, heads = [_constant_lines(calibration, several=bool((table["nodes"] > 1).any()))], set[str]()
    rows = table.assign(
        allreduce_s=table["allreduce_s"].where(table["allreduce_low_s"].notna()),
        of_baseline=table["of_baseline"].where(table["scenario"] != table["scenario"].iloc[0]),
        **{f"{part}_s": table[f"{part}_s"].where(table[f"{part}_s"].abs() > 1e-9, 0.0) for part in PARTS},
    )
    for name, own in rows.groupby("scenario", sort=False):
        made = filled(Table(columns=columns, groups=grouped(columns, [("", own.to_dict("records"))])))
        heads |= {column.head for column in made.columns}
        blocks.append([f"{name}", *to_lines(made)])
    parts = "".join(f"; {part}: {_SIMULATED[part].label}" for part in PARTS[1:] if part in heads)
    hidden = ["hidden: communication behind backward, not part of the step"] * ("hidden" in heads)
    ends = "; [95 % interval]" * any("[" in line for _, *lines in blocks[1:] for line in lines)
    of_one = f"efficiency: of one worker that computes alone{ends}"
    blocks.append([f"parts of a step add up to it{parts}", of_one, *hidden])
    return "\n\n".join("\n".join(lines) for lines in blocks).replace(THIN, ",")


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


def _ms(seconds: float) -> str:
    return alone(seconds * 1e3) if abs(seconds) > 1e-9 else "0"


def simulation_drawing(table: pd.DataFrame, calibration: Scenario) -> Figure:
    """Return speedup, efficiency and the parts of the step against workers."""
    it, sources = calibration, calibration.sources
    names = list(map(str, dict.fromkeys(table["scenario"])))
    looks = {
        name: replace(look, dash=style.EXTRAPOLATED_DASH if place and look.dash == "-" else look.dash)
        for place, (name, look) in enumerate(zip(names, style.looks_in_order(names), strict=True))
    }
    first = table[table["scenario"] == names[0]].assign(setting="", series=names[0], nodes=1)
    parts = pd.concat([first.assign(part=part, seconds=first[f"{part}_s"]) for part in PARTS])
    bars = of_bars(parts, "seconds", "Mean ms per step", most=10, parts=_SIMULATED, scale=1e3, unit="ms")
    how: dict[str, Any] = {"rows": table, "by": "scenario", "line": True}
    speedup = Points(y="speedup", unit="\u00d7", **how)
    share = Points(scale=100, unit="%", **spread("efficiency", "", "_low", "_high"), **how)
    return Figure(
        name="simulation",
        title="Simulated scaling",
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
