"""One run in detail, as text and as JSON: its steps, and its ranks beside each other."""

import math
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from horovod_study.analysis.machine.system import PHASES, UsagePanel, panels, phases, summary
from horovod_study.analysis.steps.inspection import Inspection, RankLaps
from horovod_study.analysis.steps.pauses import MOST, Pause
from horovod_study.analysis.steps.rank_steps import PARTS
from horovod_study.analysis.steps.stragglers import CAUSES, Lateness
from horovod_study.records import RecordedRun, RunSideFiles, SystemSamples, finite
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit import style
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import milliseconds, percent, quoted
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import listed, plural, wrapped

NAME = "inspect"

_HEADS = {**{lap: lap for lap in PARTS}, "residual": "unexplained"}
_WIDE = 110
_MOST_RANKS = 16  # so many ranks are printed and drawn; beyond that those that differ most from the others


def write_inspection(
    found: Inspection, run: RecordedRun, beside: RunSideFiles, directory: Path, *, look: style.FigureFormat = style.TEXT
) -> list[Path]:
    """Write inspect.json and inspect.txt, and the figures of the hosts; return the paths."""
    texts = {f"{NAME}.json": finite(found), f"{NAME}.txt": result_lines(found)}
    return write_result(directory, texts) + write_system_of(run, beside, directory, look=look)


def write_system_of(
    run: RecordedRun, beside: RunSideFiles, directory: Path, *, look: style.FigureFormat = style.TEXT
) -> list[Path]:
    """Write the figures of the hosts of a run, where there are samples; return the paths."""
    if not beside.system:
        return []
    steps = pd.DataFrame(dict(run.rows[min(run.rows)]))
    return write_system(directory, beside.system, steps, beside.evaluations, first_timed=run.first_step, look=look)


def result_lines(found: Inspection) -> list[str]:
    """Return what the command prints."""
    lines = wrapped(headline(found), _WIDE)
    lines += [line for text in (_window(found), _closure(found)) for line in wrapped(text, _WIDE, "  ")]
    lines += ["", *table(found)]
    texts = _straggler_sentences(found)
    if (pop := found.pop) is not None:
        texts.append(
            f"Parallel efficiency {pop.parallel:.2f} = load balance {pop.load_balance:.2f} x communication efficiency "
            f"{pop.communication:.2f} (POP; useful is all that is not sync)."
        )
    lines += [*_paragraphs(texts), "", *_pause_lines(found)]
    if found.ablation is not None:
        lines += _paragraphs([f"Communication by leaving it out: {found.ablation.sentence.rstrip('.')}."])
    return [
        *lines,
        *system_lines(found),
        *_paragraphs([*_file_lines(found), *(f"Doubt: {each}." for each in found.doubts)]),
    ]


def _paragraphs(texts: Sequence[str]) -> list[str]:
    return [line for text in texts for line in ("", *wrapped(text, _WIDE))]


def headline(found: Inspection) -> str:
    """Return in one line what ran."""
    facts = found.facts
    words = [f"{found.name}: {found.state}", plural(facts["workers"], "worker")]
    if facts["backend"]:
        reduction = f" ({facts['reduction']})" if facts["workers"] > 1 and facts["reduction"] else ""
        words.append(f"{style.runtime_label(str(facts['backend']), str(facts['transport'] or ''))}{reduction}")
    hosts = facts["hosts"]
    words.append(f"on {hosts[0]}" if len(hosts) == 1 else f"on {len(hosts)} hosts")
    if facts["batch"]:
        words.append(f"batch {facts['batch']} each")
    if facts["device"]:
        words.append(str(facts["device"]))
    if facts["samples_per_s"]:
        words.append(f"{facts['samples_per_s']:,.0f} samples/s")
    words.append(f"started {facts['started']}")
    return ", ".join(words)


def _window(found: Inspection) -> str:
    last = f"{plural(found.steps, 'step', ',')} from step {found.first_step:,} on are looked at"
    if not found.excluded:
        return f"{last}; none before them is excluded."
    return f"{last}; {found.excluded:,} before them are excluded ({found.first_step_by})."


def _closure(found: Inspection) -> str:
    known = [each for each in found.ranks if each.gap is not None]
    if not known:
        return "Laps: the steps of this run have none, so that they cannot be added up."
    worst = max(known, key=lambda each: each.gap or 0.0)
    assert worst.gap is not None
    unexplained = max(known, key=_unexplained)
    adds = (
        "the laps add up to the step on every rank"
        if worst.gap <= 1e-6
        else f"the laps miss the step by up to {100 * worst.gap:.2g} % (rank {worst.rank}): do not quote their shares"
    )
    return f"Closure: {adds}; up to {100 * _unexplained(unexplained):.1f} % of it are outside all laps (unexplained)."


def _unexplained(rank: RankLaps) -> float:
    value = rank.laps_s["residual"]
    return 0.0 if value is None else value / rank.step_s


def table(found: Inspection) -> list[str]:
    """Return the mean step of each rank in ms as a table."""
    chosen = _chosen(found)
    own = any(each.own_s is not None for each in chosen)
    captured = any(each.laps_s["compute"] is not None for each in chosen)
    order = [
        lap
        for lap in PARTS
        if (lap == "sync" or any(each.laps_s[lap] is not None for each in chosen) if captured else lap != "compute")
    ]
    heads = ["rank", "host", *(_HEADS[lap] for lap in order), "step", *(("own", "wait for last") if own else ())]
    rows = []
    for each in chosen:
        values = [each.laps_s[lap] for lap in order] + [each.step_s] + ([each.own_s, each.wait_s] if own else [])
        rows.append([str(each.rank), each.host or "not known", *(_ms(value) for value in values)])
    lines = ["ms per step, means", *to_lines(table_of(heads, rows, texts=(0, 1)), indent=2)]
    if len(chosen) < len(found.ranks):
        lines.append(
            f"  the {len(chosen)} of {len(found.ranks)} ranks that are later or earlier than the others by most"
        )
    if found.facts["workers"] > 1 and any(each.laps_s["sync"] is None for each in found.ranks):
        lines.append("  -  the wait for the others is not visible here: it is inside another lap")
    return lines


def _chosen(found: Inspection) -> list[RankLaps]:
    """Return the ranks to show, in their order."""
    if len(found.ranks) <= _MOST_RANKS:
        return list(found.ranks)
    late = {each.rank: abs(each.value_s) for each in found.stragglers.ranks}
    some = sorted(found.ranks, key=lambda each: (-late.get(each.rank, 0.0), each.rank))[:_MOST_RANKS]
    return sorted(some, key=lambda each: each.rank)


def _straggler_sentences(found: Inspection) -> list[str]:
    """Return who is slow, by how much and where, or why that cannot be determined."""
    late = found.stragglers
    if late.verdict == "unknown":
        return [f"Stragglers: {late.why_not}."]
    assert late.skew_s is not None
    skew = (
        f"A rank waits {_ms(late.skew_s['mean'])} ms per step for the last one on average (skew; median "
        f"{_ms(late.skew_s['median'])}, 90 % of the steps below {_ms(late.skew_s['p90'])}), "
        f"{100 * late.skew_share:.1f} % of the step; the first rank of a step waits {_ms(late.spread_s)} ms."
    )
    if late.verdict == "none":
        often = max(late.ranks, key=lambda each: each.last_share)
        return [
            f"Stragglers: no rank is slower than the others (resolution {_ms(late.resolution_s)} ms). {skew} Rank "
            f"{often.rank} is the last one most often, in {100 * often.last_share:.0f} % of the steps "
            f"({100 / len(late.ranks):.0f} % by chance).",
            *([balance_words(late.balanced, 1 / len(late.ranks))] if late.balanced else []),
        ]
    sentences = [late_words(each, 1 / len(late.ranks)) for each in late.named[:4]]
    if len(late.named) > 4:
        others = ", ".join(str(each.rank) for each in late.named[4 : 4 + _MOST_RANKS])
        sentences.append(f"So are ranks {others}{' and more' if len(late.named) > 4 + _MOST_RANKS else ''}.")
    together = _whole_hosts(found)
    method = (
        f"(Time of each rank from the end of a synchronisation to its gradients being ready: {', '.join(late.laps)}; "
        f"{late.steps:,} steps; 95 % intervals from blocks of {late.block_steps} steps.)"
    )
    return [f"Stragglers: {' '.join([*sentences, *together])}", skew, method]


def balance_words(balanced: Sequence[Lateness], chance: float) -> str:
    """Return which ranks are longer in one lap and shorter in others; of data alone, only where no other lap is.

    `chance`: the share of steps in which a rank is the last one by chance, 0.5 for one of two.
    """
    told = [each for each in balanced if each.cause != "data"] or balanced
    words = []
    others = "other rank" if chance == 0.5 else "others"
    for each in told[: 1 if chance == 0.5 else 3]:
        host = f" on {each.host}" if each.host else ""
        there = quoted(1e3 * each.cause_s, 1e3 * each.cause_low_s, 1e3 * each.cause_high_s)
        lap, less = min(each.laps_s.items(), key=lambda lap: lap[1])
        loads = ": who comes to its loader later waits less for it" if lap == "data" else ""
        words.append(
            f"Rank {each.rank}{host} takes {there} ms longer than the {others} per step {CAUSES[each.cause]}, and "
            f"{milliseconds(-less)} ms less {CAUSES[lap]}{loads}."
        )
    return " ".join(words)


def late_words(late: Lateness, chance: float) -> str:
    """Return by how much a rank is late, in which lap, and in how many steps it is the last one."""
    host = f" on {late.host}" if late.host else ""
    there = quoted(1e3 * late.cause_s, 1e3 * late.cause_low_s, 1e3 * late.cause_high_s)
    in_all = held_up = ""
    if abs(late.value_s - late.cause_s) > 0.1 * late.cause_s:  # else one number tells both
        whole = quoted(1e3 * late.value_s, 1e3 * late.low_s, 1e3 * late.high_s)
        in_all = f" (over all laps {whole} ms{', which scatter more than that' * (late.low_s <= 0 <= late.high_s)})"
    if late.quickest_s < 0.2 * late.cause_s:  # of its lateness, it is as quick as the others itself
        held_up = (
            " Its quickest steps are not late: at times something holds it up, such as another program on its core."
        )
    return (
        f"Rank {late.rank}{host} is {there} ms late per step {CAUSES[late.cause]}{in_all}, and is the last one in "
        f"{percent(late.last_share)} of the steps (by chance: {percent(chance)}).{held_up}"
    )


def _whole_hosts(found: Inspection) -> list[str]:
    """Return whether all ranks of a host are slow, and no rank of another."""
    late = found.stragglers
    slow = set(late.slow)
    hosts: dict[str, set[int]] = {}
    for each in late.ranks:
        hosts.setdefault(each.host, set()).add(each.rank)
    whole = [host for host, ranks in hosts.items() if host and len(ranks) > 1 and ranks <= slow]
    if not whole or len(whole) == len(hosts):
        return []
    return [f"All ranks of {listed(whole)} are slow: look at the host rather than at one process."]


def _pause_lines(found: Inspection) -> list[str]:
    pauses = found.pauses
    if pauses.why_not:
        return [f"Pauses: {pauses.why_not}."]
    above = f"more than {_ms(pauses.threshold_s)} ms above the steps around it"
    if not pauses.count:
        lines = [f"Pauses: no step took {above} (a step: {_ms(pauses.level_s)} ms)."]
    else:
        text = (
            f"Pauses: {plural(pauses.count, 'step', ',')} took {above} (a step: {_ms(pauses.level_s)} ms), "
            f"{1e3 * pauses.total_s:,.1f} ms in all, {100 * pauses.share:.2g} % of the time."
        )
        lines = wrapped(text, _WIDE)
    lines += [f"  They come every {pauses.every_steps:,} steps."] if pauses.every_steps else []
    shown = pauses.longest[:10]
    if shown:
        rest = f" (the {len(shown)} longest; inspect.json has up to {MOST})" if pauses.count > len(shown) else ""
        lines.append(f"  step: ms above the others{rest}")
        lines += [f"  {each.step:>10,}: {_pause_words(each)}" for each in shown]
    return lines


def _pause_words(pause: Pause) -> str:
    """Return one pause without its step: size, lap, ranks, time."""
    size = f"{1e3 * pause.size_s:.2f} ms"
    several = f" over {pause.steps} steps" if pause.steps > 1 else ""
    at = "" if pause.at_s is None else f", {pause.at_s:.1f} s into the run"
    return f"{size}{several}, {_where(pause.lap, pause.ranks, pause.everywhere)}{at}"


def _where(lap: str, ranks: tuple[int, ...], everywhere: bool) -> str:
    name = {"sync": "in sync", "residual": "outside all laps (residual)", "step": "in the step"}.get(lap, f"in {lap}")
    if everywhere:
        return f"{name} on {'all ranks at once' if len(ranks) > 1 else f'rank {ranks[0]}'}"
    return f"{name} on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}{' ...' * (len(ranks) > 8)}"


_SYSTEM = {
    "cpu_percent": ("CPU, % of a core", "mean"),
    "rss_mb": ("resident MB, most", "max"),
    "pss_mb": ("proportional MB, most", "max"),
    "gpu_percent": ("GPU, %", "mean"),
    "gpu_memory_mb": ("GPU MB, most", "max"),
    "power_w": ("power, W", "mean"),
}


def system_lines(found: Inspection) -> list[str]:
    """Return the use of processors, memory and power as a table."""
    parts: dict[tuple[str, str], dict[str, float]] = {}
    for row in found.system.rows:
        if row["quantity"] in _SYSTEM:
            value = row[_SYSTEM[row["quantity"]][1]]
            parts.setdefault((row["host"], row["part"]), {})[row["quantity"]] = value
    if not parts:
        return []
    shown = [name for name in _SYSTEM if any(name in values for values in parts.values())]
    heads, cells = ("host", "part", *(_SYSTEM[name][0] for name in shown)), []
    for (host, part), values in list(parts.items())[: 2 * _MOST_RANKS]:
        cells.append([host, part, *(f"{values[name]:,.0f}" if name in values else "-" for name in shown)])
    return ["", "System, over the timed steps", *to_lines(table_of(heads, cells, texts=(0, 1)), indent=2)]


def _file_lines(found: Inspection) -> list[str]:
    lines = []
    if "timeline" in found.files:
        command = f"horovod-study explain --part timeline {shlex.quote(found.directory)}"
        lines.append(f"Horovod timeline: {found.files['timeline'][0]}; read it with `{command}`.")
    if "profile" in found.files:
        paths = [Path(path) for path in found.files["profile"]]
        names = ", ".join(path.name for path in paths[:6]) + (", ..." if len(paths) > 6 else "")
        lines.append(f"Profile: {plural(len(paths), 'file')} in {paths[0].parent}: {names}.")
    return lines


def _ms(seconds: float | None) -> str:
    """Return a time in ms with three digits, without its unit; `-` where it is not known."""
    if seconds is None:
        return "-"
    value = 1e3 * seconds
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"


# ----------------------------------------------------------------------------------------- the hosts over time

_SHADES = {
    "start-up": (style.SHADE, ""),
    "warm-up": (style.GRID, ""),
    "timed steps": ("none", ""),
    "evaluation": ("#f4e4bf", ""),
    "break": ("#e9cdd8", ""),
    "end": (style.SHADE, "////"),
}
_LEGEND_ROWS = 5


def figure(samples: SystemSamples, table: pd.DataFrame, width_in: float) -> Figure:
    """Return the figure of one host over time, phases of the run (`analysis.system.phases`) shaded; inside style()."""
    drawn = panels(samples)
    narrow = width_in < style.NARROW_IN
    # On a narrow figure name and legend of a panel are above it.
    lines = [1 + math.ceil(len(panel.traces) / _columns(panel, width_in)) for panel in drawn if narrow]
    height_in = max(1, len(drawn)) * 0.78 + sum(1.4 * style.small() / 72 * each for each in lines) + 0.5
    canvas = Figure(figsize=(width_in, height_in), layout="constrained")
    rows = canvas.subplots(max(1, len(drawn)), 1, sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(rows, drawn, strict=False):
        _draw(axes, panel, table, width_in)
    times = [samples.rows["at_s"].min(), samples.rows["at_s"].max(), table["begin_s"].min(), table["end_s"].max()]
    seen = [float(each) for each in times if np.isfinite(each)] or [0.0]
    rows[-1].set_xlim(min(seen), max(seen) if max(seen) > min(seen) else min(seen) + 1.0)
    rows[-1].set_xlabel("Seconds since the first step")
    present = [phase for phase in PHASES if (table["phase"] == phase).any()]
    if present:
        edge: dict[str, Any] = {"edgecolor": style.QUIET, "linewidth": 0.5}
        shades = [(phase, *_SHADES[phase]) for phase in present]
        kit.legend(
            canvas,
            [Patch(facecolor=color, hatch=hatch, **edge, label=phase) for phase, color, hatch in shades],
            width_in,
        )
    canvas.align_ylabels(list(rows))
    return canvas


def _draw(axes: Axes, panel: UsagePanel, table: pd.DataFrame, width_in: float) -> None:
    for each in table.to_dict("records"):
        color, hatch = _SHADES[each["phase"]]
        if color != "none":
            how: dict[str, Any] = {"facecolor": color, "edgecolor": style.GRID, "linewidth": 0, "hatch": hatch}
            axes.axvspan(each["begin_s"], each["end_s"], **how, zorder=0)
    loud = [trace for trace in panel.traces if not trace.quiet]
    looks = {look.label: look for look in style.looks_in_order([trace.label for trace in loud])}
    for trace in panel.traces:
        look = looks.get(trace.label)
        single = int(np.isfinite(trace.values).sum()) == 1
        axes.plot(
            trace.at_s,
            trace.values,
            drawstyle="steps-pre" if trace.over_interval else "default",
            color=style.QUIET if look is None else look.color,
            linestyle=(0, (1.2, 1.2)) if look is None else look.dash,
            linewidth=1.0 if look is None else 1.3,
            marker="." if single else None,
            label=trace.label,
            zorder=2 if look is None else 3,
        )
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="y", nbins=3)
    if width_in < style.NARROW_IN:  # names and legend above the panel, or they would leave it no room
        place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.1}
        how = {"title": panel.label.replace("\n", " "), "alignment": "left", "handlelength": 1.2}
        axes.legend(**place, **how, ncols=_columns(panel, width_in), columnspacing=0.8, labelcolor=style.INK)
        return
    axes.set_ylabel(panel.label, rotation=0, ha="right", va="center")
    crowd = len(panel.traces) > _LEGEND_ROWS
    axes.legend(
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        handlelength=1.2 if crowd else 1.6,
        ncols=1 + (len(panel.traces) - 1) // _LEGEND_ROWS,
        columnspacing=0.8,
        labelcolor=style.INK,
    )


def _columns(panel: UsagePanel, width_in: float) -> int:
    wide_in = max((style.text_in(trace.label) for trace in panel.traces), default=0.0) + 0.32
    return max(1, min(len(panel.traces), int(0.8 * width_in / wide_in)))


def caption(samples: SystemSamples) -> str:
    """Return what a reader of the figure must know: where from, how often, and which sensors are missing and why."""
    meta = samples.meta
    ranks, interval_s = len(meta["ranks"]), float(meta["interval_s"])
    reasons: dict[str, list[str]] = {}
    for name, reason in meta["missing"].items():
        reasons.setdefault(str(reason), []).append(_WORDS.get(name, name))
    missing = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
    devices = ", ".join(f"{part}: {name}" for part, name in meta["devices"].items())
    return " ".join(
        [
            f"Host {samples.host} during the run, sampled every {interval_s:g} s: the process trees of {ranks} "
            f"rank{'s' * (ranks != 1)} and the host as a whole. CPU is in per cent of one core, MB are 1e6 bytes. "
            "Stepped lines are means since the sample before, straight ones readings of a moment.",
            *([f"Devices: {devices}."] if devices else []),
            *([f"Not shown, for lack of a sensor: {missing}."] if missing else []),
        ]
    )


_WORDS = {
    "rdma": "InfiniBand traffic",
    "gpu": "GPU use, memory, power and clocks",
    "package": "energy and power of the processors",
    "pss_mb": "proportional memory",
    "disk": "disk bytes",
    "children": "child processes",
}


def write_system(
    directory: Path,
    samples: Mapping[str, SystemSamples],
    steps: pd.DataFrame,
    evaluations: Sequence[Mapping[str, float]],
    *,
    first_timed: int,
    look: style.FigureFormat = style.TEXT,
) -> list[Path]:
    """Write one figure per host (system-HOST.pdf, .svg, .png), its caption (.txt) and the table of all (system.csv)."""
    paths = []
    for host, each in samples.items():
        at_s = each.rows["at_s"]
        table = phases(steps, evaluations, first_timed=first_timed, first_s=float(at_s.min()), last_s=float(at_s.max()))
        name = f"system-{host}"
        texts = {f"{name}.txt": caption(each), f"{name}.csv": summary({host: each}, table)}
        paths += write_result(directory, texts, {name: partial(figure, each, table)}, look=look)
    return paths
