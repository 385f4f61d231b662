"""What `horovod-study bench` found: tables in nccl-tests' layout, the figure of the network, and the roofline."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis.machine.network import WHOLE_GRADIENT, Fit, Network, bus_factor
from horovod_study.records import finite
from horovod_study.report.grammar import Curve, Figure, Guide, Panel, Points
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit import style
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import amount
from horovod_study.text.tables import table_of, to_lines

_PRECISION_NAMES = {"float32": "fp32", "tf32": "tf32", "bf16": "bf16", "fp16": "fp16"}
_STEP = style.SeriesStyle(label="", color=style.LAPS["sync"].color, marker="o", filled=True, dash="none")
_ROOF = ("bytes_per_s", "flop_per_byte", "attainable_flop_per_s")


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


def _titled(above: str, heads: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[int] = (0, 5)) -> str:
    return "\n".join([above, *to_lines(table_of(heads, rows, texts=texts))])


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
    return _titled(above, ("# size (B)", *names), rows, ())


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
    return _titled(above, heads, rows)


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
    return _titled(above, heads, rows)


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
        line = {
            "way": name,
            "bytes": along,
            "seconds_median": seconds,
            "gb_per_s_median": factor * along / seconds / 1e9,
        }
        lines.append(pd.DataFrame(line))
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
        alt="Time and bus bandwidth of an all-reduce against message size.",
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
    corners = [
        {"name": name, "intensity": at, "gflop_per_s": min(peak, at * rate) / 1e9}
        for name, rate in zip(ways, roofs["bytes_per_s"], strict=True)
        for at in (left, peak / rate, right)
    ]
    for name, rate in zip(ways, roofs["bytes_per_s"], strict=True):
        label = name if name == "memory" else _label(name)
        looks[name] = replace(looks[name], label=f"{label}: {_gb(rate / 1e9)} GB/s")
    steps = []
    for what, filled in (("memory", False), ("network", True)):
        if (at := roofline[f"{what}_flop_per_byte"]) is not None:
            done = roofline["flop_per_s"] / 1e9
            looks[f"step/{what}"] = replace(
                _STEP, filled=filled, label=f"step, {at:.3g} FLOP per byte of {what}, {done:.3g} GFLOP/s"
            )
            steps.append({"name": f"step/{what}", "intensity": at, "gflop_per_s": done})
    how: dict[str, Any] = {"x": "intensity", "y": "gflop_per_s", "by": "name"}
    peaks = [
        Guide(level=value / 1e9, held=True, label=f"matrix peak {_PRECISION_NAMES.get(name, name)}: "
              f"{value / 1e9:,.0f} GFLOP/s", how={"linestyle": (0, (3, 1 + 2 * place))})
        for place, (name, value) in enumerate(roofline["peaks_flop_per_s"].items())
    ]  # fmt: skip
    return Figure(
        name="roofline",
        title="Roofline of the machine",
        alt="Attainable operations per second against operations per byte, with the training step on it.",
        caption=f"Roofline (Williams et al., 2009) of one of {network['workers']} workers, all of them computing: "
        "min(fp32 matrix peak, intensity times bandwidth), for memory (bytes read plus bytes written by a copy) and "
        f"for each network (bus bandwidth with {WHOLE_GRADIENT} of {model['flat_bytes']:,} bytes in one message). "
        f"Circles: the training step of batch {model['batch']} without communication, per byte of memory traffic if "
        "nothing stayed in a cache, and per byte that its gradients put on the network. A roof supposes that moving "
        "and computing overlap wholly.",
        data=data,
        panels=[Panel(
            layers=[*peaks, Curve(rows=pd.DataFrame(corners), **how), Points(rows=pd.DataFrame(steps), **how)],
            y="GFLOP/s of one worker", x="Operations per byte moved / (FLOP/byte)", log="y", decades=True,
        )],
        looks=looks,
        legend=[kit.entry(looks[name], marker="none") for name in ways],
    )  # fmt: skip
