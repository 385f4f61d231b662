"""What `horovod-study bench` found: tables in nccl-tests' layout, the figure of the network, and the roofline."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from horovod_study.analysis.machine.network import WHOLE_GRADIENT, Fit, Network, bus_factor
from horovod_study.records import finite
from horovod_study.report.grammar import Figure as Drawing
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit import style
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import amount, prefixed
from horovod_study.text.tables import table_of, to_lines

_PRECISION_NAMES = {"float32": "fp32", "tf32": "tf32", "bf16": "bf16", "fp16": "fp16"}
_MODEL = style.LAPS["sync"].color


def write_bench(network: Network, document: Mapping[str, Any], directory: Path) -> list[Path]:
    """Write bench.json, bench.csv, bench.txt and the figures (.pdf, .svg, .png, caption .txt); return their paths.

    `document` is what was measured, conditions included; bench.json holds it whole beside what follows from it.
    """
    texts = {
        "bench.json": content(network, document),
        "bench.csv": network["points"],
        "bench.txt": text(network, document),
    }
    made = drawings_of(network)
    texts |= {f"{each.name}.txt": each.caption for each in made}
    return write_result(directory, texts, {each.name: each.draw for each in made})


def drawings_of(network: Network) -> list[Drawing]:
    """Return the figures of a machine: its roofline where that was measured, and all-reduces against their size."""
    model, workers, found = network["model"], network["workers"], []
    if network["roofline"] is not None:
        found.append(
            Drawing(
                name="roofline",
                title="Roofline of the machine",
                alt="Attainable operations per second against operations per byte, with the training step on it.",
                caption=f"Roofline (Williams et al., 2009) of one of {workers} workers, all of them computing. Roofs: "
                "min(fp32 matrix peak, intensity times bandwidth), for memory (bytes read plus bytes written by a copy)"
                f" and for each network (bus bandwidth measured with {WHOLE_GRADIENT} of {model['flat_bytes']:,} bytes "
                f"in one message). Circles: the training step of batch {model['batch']} without communication, at its "
                "operations per byte of memory traffic if nothing stayed in a cache (open: the true one is to the "
                "right), and per byte that its gradients put on the network (filled). A roof supposes that moving and "
                "computing overlap wholly.",
                data=_roofs(network),
                paint=partial(_draw_roofline, network),
            )
        )
    if len(network["points"]):
        found.append(
            Drawing(
                name="network",
                title="All-reduce of the machine",
                alt="Time and bus bandwidth of an all-reduce against message size.",
                caption=f"All-reduce in place of 32-bit floats among {workers} workers, against message size. Points: "
                "time of the slowest worker, mean over the iterations, median over the rounds, with the smallest and "
                "largest round; bus bandwidth as in nccl-tests, S/t times 2(n-1)/n. Lines: t = alpha + S/beta, with "
                "95 % intervals in the legend; alpha is the time of the smallest message, beta the bandwidth S/t of "
                f"the largest. Dotted: {WHOLE_GRADIENT} of the model in one message, {model['flat_bytes']:,} bytes.",
                data=network["points"],
                paint=partial(_draw_network, network),
            )
        )
    return found


def _roofs(network: Network) -> pd.DataFrame:
    """Return the rows of a roofline: peaks, roofs with their ridge and what is attainable, and the step."""
    roofline = network["roofline"]
    assert roofline is not None
    done, peaks = roofline["flop_per_s"], roofline["peaks_flop_per_s"].items()
    memory = (
        roofline["memory_bytes_per_s"],
        roofline["memory_flop_per_byte"],
        roofline["memory_attainable_flop_per_s"],
    )
    rows = [("peak", name, peak, math.nan, math.nan, math.nan) for name, peak in peaks]
    rows.append(("roof", "memory", done, *memory))
    for each in roofline["networks"]:
        per_byte = math.nan if roofline["network_flop_per_byte"] is None else roofline["network_flop_per_byte"]
        rows.append(("roof", each["way"], done, each["bytes_per_s"], per_byte, each["attainable_flop_per_s"]))
    columns = ["kind", "name", "flop_per_s", "bytes_per_s", "flop_per_byte", "attainable_flop_per_s"]
    return pd.DataFrame(rows, columns=columns)


def content(network: Network, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what follows from the measurements, what was not measured and why, and the measurements themselves."""
    return {**finite(network), "unavailable": document["unavailable"], "measured": document["jobs"]}


def text(network: Network, document: Mapping[str, Any]) -> str:
    """Return everything as tables for a terminal."""
    ways = dict.fromkeys(network["points"]["way"])
    blocks = [_head(network, document), *(allreduce_table(network, name) for name in ways)]
    blocks += [_broadcast_table(network), _fit_table(network)]
    if network["roofline"] is not None:
        blocks += [_machine_lines(network, network["roofline"]), _roofline_table(network["roofline"])]
    if document["unavailable"]:
        blocks.append("\n".join(f"not measured: {name}: {why}" for name, why in document["unavailable"].items()))
    return "\n\n".join(blocks)


def _head(network: Network, document: Mapping[str, Any]) -> str:
    conditions = document["jobs"][0]["conditions"]
    machine = conditions["environment"]
    hosts = [rank["host"] for rank in conditions["ranks"]]
    placed = ", ".join(f"{hosts.count(host)} on {host}" for host in dict.fromkeys(hosts))
    versions = [f"{name} {machine[name]}" for name in ("torch", "horovod", "mpi4py") if machine.get(name)]
    library = next(
        (job["conditions"]["mpi_library"] for job in document["jobs"] if job["conditions"]["mpi_library"]), None
    )
    return "\n".join(
        [
            f"# {network['workers']} worker{'s' * (network['workers'] > 1)}: {placed}; "
            f"{machine['cpu_model']}, {machine['cores']} cores; "
            f"{conditions['started']}, load {conditions['load_before']:g} before",
            f"# {', '.join([*versions, library or machine['mpi'] or 'no MPI'])}",
            "# time: of the slowest worker, mean over the iterations, median over the rounds; GB = 1e9 bytes; busbw = "
            f"algbw * {bus_factor('allreduce', network['workers']):.3g}",
        ]
    )


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
    barrier = network["barriers"][network["barriers"]["way"] == name]
    for row in barrier.to_dict("records"):
        lines.append(
            f"# barrier {_us(row['seconds_median'])} us ({_us(row['seconds_min'])} - {_us(row['seconds_max'])})"
        )
    return "\n".join(lines)


def _broadcast_table(network: Network) -> str:
    own = network["points"][network["points"]["operation"] == "broadcast"]
    names = list(dict.fromkeys(own["way"]))
    above = "# broadcast from worker 0: time in us (busbw in GB/s); small ones begin before the one before has arrived"
    rows = []
    for size in sorted(own["bytes"].unique()):
        here = own[own["bytes"] == size].set_index("way")
        cells = [
            f"{_us(here.loc[name, 'seconds_median'])} ({_gb(here.loc[name, 'busbw_gb_per_s'])})"
            + ("!" if here.loc[name, "wrong"] else "")
            for name in names
        ]
        rows.append((f"{size}", *cells))
    return "\n".join([above, *to_lines(table_of(("# size (B)", *names), rows, texts=()))])


def _fit_texts(fit: Fit) -> tuple[str, str]:
    """Return alpha in us and beta in GB/s, each with its interval."""
    low, high = map(_us, fit["alpha_ci95_s"])
    b_low, b_high = (_gb(value / 1e9) for value in fit["beta_ci95_bytes_per_s"])
    beta = _gb(fit["beta_bytes_per_s"] / 1e9)
    return f"{_us(fit['alpha_s'])} [{low}, {high}]", f"{beta} [{b_low}, {b_high}]"


def _fit_table(network: Network) -> str:
    rows = []
    size = network["model"]["flat_bytes"]
    whole = network["points"].query("operation == 'allreduce' and place == 'in' and bytes == @size")
    measured = whole.set_index("way")["seconds_median"].to_dict()
    for name, fit in network["fits"].items():
        seen = f", {_us(measured[name])} us" if name in measured else ""
        gradients = f"{_us(fit['alpha_s'] + size / fit['beta_bytes_per_s'])} us{seen}"
        scatter = f"{100 * fit['rms_relative']:.0f} %"
        rows.append((name, *_fit_texts(fit), amount(fit["half_bytes"]), scatter, gradients))
    heads = ("# way", "alpha (us)", "beta (GB/s)", "half at", "scatter", "all gradients: line, measured")
    above = "# t(S) = alpha + S / beta of all-reduces in place, with 95 % intervals"
    return "\n".join([above, *to_lines(table_of(heads, rows, texts=(0, 5)))])


def _machine_lines(network: Network, roofline: Mapping[str, Any]) -> str:
    rows = [
        (f"matrix peak {_PRECISION_NAMES.get(name, name)}", f"{peak / 1e9:,.1f}", "GFLOP/s")
        for name, peak in roofline["peaks_flop_per_s"].items()
    ]
    for row in network["copies"].to_dict("records"):
        if isinstance(row["reason"], float) or not row["reason"]:
            span = f"GB/s ({row['gb_per_s_min']:,.2f} - {row['gb_per_s_max']:,.2f})"
            rows.append((f"copy, {row['name']}", f"{row['gb_per_s_median']:,.2f}", span))
        else:
            rows.append((f"copy, {row['name']}", "-", f"({row['reason']})"))
    model = network["model"]
    what = (
        f"ms without communication, {model['batch'] / roofline['step_s']:,.0f} samples/s, "
        f"{roofline['flop_per_s'] / 1e9:.1f} GFLOP/s "
        f"({100 * (roofline['flop_per_s'] / roofline['peak_flop_per_s']):.0f} % of the fp32 peak)"
    )
    rows.append((f"training step, batch {model['batch']}", f"{roofline['step_s'] * 1e3:.3f}", what))
    if (launch := network["launch"]) is not None:
        what = (
            f"us one by one ({_us(launch['host_s'])} us of the host), {_us(launch['graph_s'])} us in a CUDA graph, "
            f"{_us(launch['replay_s'])} us to replay a graph"
        )
        rows.append(("launch of a kernel", _us(launch["eager_s"]), what))
    lines = ["# what a worker can do while all workers do the same"]
    lines += to_lines(table_of(("", "", ""), rows, texts=(0, 2)), indent=2)
    if (step := network["step_roofline"]) is not None:
        parts = [
            "launching not known (no profiler may look)"
            if step["launching_s"] is None
            else f"{step['launches']} launches {_us(step['launching_s'])} us",
            f"{step['bytes'] / 1e6:.1f} MB of memory {_us(step['moving_s'])} us",
            f"{step['operations'] / 1e6:.0f} MFLOP {_us(step['computing_s'])} us",
        ]
        lines.append(
            f"  of the step's {_us(step['step_s'])} us: {', '.join(parts)}; "
            f"{step['bound']} explains {100 * step['share']:.0f} %"
        )
    return "\n".join(lines)


def _roofline_table(roofline: Mapping[str, Any]) -> str:
    heads = ("# ", "FLOP/byte", "GB/s", "ridge", "attainable GFLOP/s", "step / (step + all-reduce)")
    rate, ridge = roofline["memory_bytes_per_s"], roofline["peak_flop_per_s"] / roofline["memory_bytes_per_s"]
    roofs = [("memory", roofline["memory_flop_per_byte"], rate, ridge, roofline["memory_attainable_flop_per_s"], "")]
    for each in roofline["networks"]:
        share = "" if each["share_without_overlap"] is None else f"{100 * each['share_without_overlap']:.1f} %"
        what = (each["way"], roofline["network_flop_per_byte"] or 0.0)
        roofs.append((*what, each["bytes_per_s"], each["ridge_flop_per_byte"], each["attainable_flop_per_s"], share))
    rows = [
        (name, f"{per_byte:.1f}", _gb(rate / 1e9), f"{ridge:.1f}", f"{attainable / 1e9:,.1f}", share)
        for name, per_byte, rate, ridge, attainable, share in roofs
    ]
    above = "# roofline of the step per worker: attainable = min(peak, intensity * bandwidth)"
    return "\n".join([above, *to_lines(table_of(heads, rows, texts=(0, 5)))])


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


def _draw_network(network: Network, width_in: float) -> Figure:
    """Return time and bus bandwidth against message size; call it inside style()."""
    points = network["points"][(network["points"]["operation"] == "allreduce") & (network["points"]["place"] == "in")]
    factor = bus_factor("allreduce", network["workers"])
    if not factor:  # one worker alone puts nothing on a bus
        factor = 1.0
        rates = {name: points["bytes"] / points[f"seconds_{name}"] / 1e9 for name in ("median", "min", "max")}
        points = points.assign(
            busbw_gb_per_s=rates["median"], busbw_min_gb_per_s=rates["max"], busbw_max_gb_per_s=rates["min"]
        )
    names = list(dict.fromkeys(points["way"]))
    styles = _styles(names)
    lines = {name: ": alpha {} µs, beta {} GB/s".format(*_fit_texts(fit)) for name, fit in network["fits"].items()}
    looks = {name: replace(styles[name], label=f"{_label(name)}{lines.get(name, '')}") for name in names}
    narrow = width_in < style.NARROW_IN
    tall_in = (1.5 if narrow else 0.5) * width_in
    figure = Figure(figsize=(width_in, tall_in + 0.5), layout="constrained")
    left, right = figure.subplots(*((2, 1) if narrow else (1, 2)))
    columns = {left: ("seconds_median", "seconds_min", "seconds_max", 1e6)}
    columns[right] = ("busbw_gb_per_s", "busbw_min_gb_per_s", "busbw_max_gb_per_s", 1e9)
    for name in names:
        own, look, fit = points[points["way"] == name].sort_values("bytes"), looks[name], network["fits"].get(name)
        for axes, (middle, low, high, unit) in columns.items():
            kit.point_bars(axes, own["bytes"], [own[column] * unit for column in (middle, low, high)], look)
        if fit is not None:
            along = np.geomspace(fit["low_bytes"], fit["high_bytes"], 200)
            seconds = fit["alpha_s"] + along / fit["beta_bytes_per_s"]
            kit.line_of(left, along, seconds * 1e6, look, linewidth=1.0)
            kit.line_of(right, along, along / seconds * factor, look, linewidth=1.0)
    flat = network["model"]["flat_bytes"]
    bandwidth = "Bus bandwidth" if network["workers"] > 1 else "Bandwidth S/t"
    for axes, title in ((left, "Time of an all-reduce (µs)"), (right, f"{bandwidth} (bytes/s)")):
        axes.set(xscale="log", yscale="log")
        axes.axvline(flat, color=_MODEL, linewidth=0.9, linestyle=(0, (1.2, 1.2)), zorder=1)
        axes.set(title=title, xlabel="Message (bytes)")
        _ticks(axes)
    text, where = f"{WHOLE_GRADIENT}\n{amount(flat)}", ("data", "axes fraction")
    kit.note_at(left, text, (flat, 1.0), (-4, -2), xycoords=where, ha="right", va="top", color=_MODEL)
    kit.legend(figure, [kit.entry(look, linewidth=1.0) for look in looks.values()], width_in)
    return figure


def _draw_roofline(network: Network, width_in: float) -> Figure:
    """Return the roofline of memory and networks with the model's step on it; call it inside style()."""
    roofline = network["roofline"]
    assert roofline is not None
    looks = _styles([each["way"] for each in roofline["networks"]])
    figure = Figure(
        figsize=(width_in, (0.85 if width_in < style.NARROW_IN else 0.56) * width_in + 0.75), layout="constrained"
    )
    axes = figure.subplots()
    peak = roofline["peak_flop_per_s"]
    highest = max(roofline["peaks_flop_per_s"].values())
    bandwidths = [roofline["memory_bytes_per_s"], *(each["bytes_per_s"] for each in roofline["networks"])]
    left = min(roofline["memory_flop_per_byte"], peak / max(bandwidths)) / 8
    right = max(roofline["network_flop_per_byte"] or 0.0, highest / min(bandwidths)) * 8
    bottom = min(roofline["flop_per_s"], roofline["memory_bytes_per_s"] * left) / 3
    along = np.geomspace(left, right, 400)
    handles = []
    roofs: list[tuple[str, float, str, float, Any]] = [("memory", roofline["memory_bytes_per_s"], style.INK, 1.4, "-")]
    for each in roofline["networks"]:
        look = looks[each["way"]]
        roofs.append((_label(each["way"]), each["bytes_per_s"], look.color, 1.2, look.dash))
    for label, bandwidth, color, width, dash in roofs:
        rising = along[along <= peak / bandwidth]
        axes.plot(rising, rising * bandwidth / 1e9, color=color, linewidth=width, linestyle=dash, zorder=2)
        entry = f"{label}: {_gb(bandwidth / 1e9)} GB/s"
        handles.append(Line2D([], [], color=color, linewidth=width, linestyle=dash, label=entry))
    axes.plot([peak / max(bandwidths), right], [peak / 1e9] * 2, color=style.INK, linewidth=1.4, zorder=2)
    for name, value in roofline["peaks_flop_per_s"].items():
        color = style.INK if value == peak else style.QUIET
        axes.axhline(value / 1e9, color=color, linewidth=0.8, linestyle=(0, (3, 2)), zorder=1)
        text = f"matrix peak {_PRECISION_NAMES.get(name, name)}  {value / 1e9:,.0f} GFLOP/s"
        kit.note_at(axes, text, (left, value / 1e9), (3, 2), color=color)
    done = roofline["flop_per_s"] / 1e9
    for x, filled, words in (
        (roofline["memory_flop_per_byte"], False, "step, per byte of memory"),
        (roofline["network_flop_per_byte"], True, "step, per byte on the network"),
    ):
        if x is None:
            continue
        axes.plot(x, done, "o", markersize=6, color=_MODEL, markerfacecolor=_MODEL if filled else style.PAPER, zorder=4)
        text, behind = f"{words}\n{x:.3g} FLOP/byte, {done:.3g} GFLOP/s", kit.paper_behind(1.0, 0.8)
        # Both are at one height: a narrow figure has no room for them beside each other.
        below = -32 if filled and width_in < style.NARROW_IN else -8
        kit.note_at(axes, text, (x, done), (0, below), ha="center", va="top", color=_MODEL, bbox=behind, zorder=3)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom / 1e9, highest / 1e9 * 2))
    axes.set(xlabel="Operations per byte moved (FLOP/byte)", ylabel="GFLOP/s of one worker")
    _ticks(axes)
    title = f"Bandwidth of copies in memory, and of all-reduces of {amount(network['model']['flat_bytes'])}"
    kit.legend(figure, handles, width_in, title=style.folded(title, width_in - 0.2), alignment="left")
    return figure


def _ticks(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        kit.label_decades(axis, 9, partial(prefixed, gap=""))
    axes.tick_params(axis="x", which="minor", size=0)
    axes.tick_params(axis="y", which="minor", size=0)
    axes.grid(axis="x", color=style.GRID, linewidth=0.4)
