"""One run in detail, as text and as JSON: its steps, its ranks beside each other, its hosts over time."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from horovod_study.analysis.machine import resources
from horovod_study.analysis.steps.accounting import FAR
from horovod_study.analysis.steps.explanation import Inspection, stall_words
from horovod_study.analysis.steps.rank_steps import CAUSES, PARTS, Lateness, Stragglers
from horovod_study.records import RecordedRun, RunSideFiles
from horovod_study.report.grammar import Curve, Figure, Looks, Panel, write_files
from horovod_study.report.kit import style
from horovod_study.text.numbers import milliseconds, percent, quoted
from horovod_study.text.tables import NOTHING, table_of, to_lines
from horovod_study.text.words import plural, wrapped

_WIDE = 110
_MOST = 16  # so many ranks are printed; beyond that those that differ most from the others


def result_lines(found: Inspection) -> list[str]:
    """Return what the command prints."""
    window = f"{plural(found.window['steps'], 'step', ',')} from step {found.window['first_step']:,} on are looked at"
    left_out = f"{found.window['excluded']:,} before them are excluded ({found.window['by']})"
    texts = [headline(found), f"{window}; {left_out}."]
    gaps = [(each.gap, each.rank) for each in found.ranks if each.gap is not None]
    if gaps:
        gap, rank = max(gaps)
        unexplained = max((each.laps_s["residual"] or 0.0) / each.step_s for each in found.ranks)
        never = ": do not quote their shares" * (gap > 1e-6)
        texts.append(
            f"Closure: the laps miss the step by at most {100 * gap:.1f} % (rank {rank}){never}; up to "
            f"{100 * unexplained:.1f} % of it are outside all laps (unexplained)."
        )
    else:
        texts.append("Closure: the steps have no laps that could be added up.")
    texts += ["", *table(found), "", *_straggler_lines(found.stragglers)]
    if (pop := found.pop) is not None:
        texts.append(
            f"Parallel efficiency {pop.parallel:.2f} = load balance {pop.load_balance:.2f} x communication efficiency "
            f"{pop.communication:.2f} (POP; useful is all that is not sync)."
        )
    if found.stalls is not None:
        texts.append(f"Stalls, steps of more than {FAR:g} times the median: {stall_words(found.stalls)}.")
    if found.ablation is not None:
        texts.append(f"Communication by leaving it out: {found.ablation.sentence.rstrip('.')}.")
    texts += system_lines(found)
    if "timeline" in found.recorded_beside:
        command = f"horovod-study explain --part timeline {shlex.quote(found.directory)}"
        texts.append(f"Horovod timeline: {found.recorded_beside['timeline'][0]}; read it with `{command}`.")
    texts += [f"Profile: {path}" for path in found.recorded_beside.get("profile", ())]
    texts += [f"Doubt: {each}." for each in found.doubts]
    return [line for text in texts for line in ([text] if text[:1] in ("", " ") else wrapped(text, _WIDE, deeper="  "))]


def headline(found: Inspection) -> str:
    """Return in one line what ran."""
    facts, hosts = found.facts, found.facts["hosts"]
    library = style.runtime_label(f"{facts['backend'] or ''}", f"{facts['transport'] or ''}")
    reduction = f" ({facts['reduction']})" if facts["workers"] > 1 and facts["reduction"] else ""
    words = [
        *(f"{found.name}: {found.state}", plural(facts["workers"], "worker"), f"{library}{reduction}"),
        f"on {hosts[0] if len(hosts) == 1 else plural(len(hosts), 'host')}",
        f"batch {facts['batch']} each" if facts["batch"] else "",
        f"{facts['device'] or ''}",
        f"{facts['samples_per_s']:,.0f} samples/s" if facts["samples_per_s"] else "",
        f"started {facts['started']}",
    ]
    return ", ".join(filter(None, words))


def table(found: Inspection) -> list[str]:
    """Return the mean step of each rank in ms as a table: of many, the ranks that differ most from the others."""
    late = {each.rank: abs(each.value_s) for each in found.stragglers.ranks}
    far = sorted(found.ranks, key=lambda each: (-late.get(each.rank, 0.0), each.rank))[:_MOST]
    chosen = sorted(far, key=lambda each: each.rank)
    values = [{**{lap: rank.laps_s[lap] for lap in PARTS}, "step": rank.step_s, "own": rank.own_s, "wait": rank.wait_s}
              for rank in chosen]  # fmt: skip
    heads = [name for name in values[0] if name == "sync" or any(each[name] is not None for each in values)]
    rows = [
        (f"{rank.rank}", rank.host or NOTHING, *(_ms(each[name]) for name in heads))
        for rank, each in zip(chosen, values, strict=True)
    ]
    left_out = f"; the {len(rows)} of {len(found.ranks)} ranks that differ most" if len(rows) < len(found.ranks) else ""
    about = f"ms per step, means{left_out}; wait: for the last rank; sync {NOTHING}: inside another lap, not visible"
    named = ("unexplained" if head == "residual" else head for head in heads)
    return [about, *to_lines(table_of(("rank", "host", *named), rows, texts=(0, 1)), indent=2)]


def _straggler_lines(late: Stragglers) -> list[str]:
    """Return who is slow, by how much and where, or why that cannot be determined."""
    if late.skew_s is None:
        return [f"Stragglers: {late.why_not}."]
    chance = 1 / len(late.ranks)
    who = [late_words(each, chance) for each in late.named[:_MOST]]
    if not who:
        who = [f"No rank is slower than the others (resolution {_ms(late.resolution_s)} ms)."]
        who += [balance_words(late.balanced, chance)] if late.balanced else []
    skew = ", ".join(f"{name} {_ms(value)} ms" for name, value in late.skew_s.items())
    return [
        f"Stragglers: {who[0]}",
        *who[1:],
        f"Skew, the wait of a rank for the last one: {skew}; {100 * late.skew_share:.1f} % of the step; that of the "
        f"first rank {_ms(late.spread_s)} ms ({', '.join(late.laps)}; {late.steps:,} steps; 95 % intervals from blocks "
        f"of {late.block_steps} steps).",
    ]


def balance_words(balanced: Sequence[Lateness], chance: float) -> str:
    """Return which ranks are longer in one lap and shorter in others; of data alone, only where no other lap is.

    `chance`: the share of steps in which a rank is the last one by chance, 0.5 for one of two.
    """
    words = []
    for each in ([each for each in balanced if each.cause != "data"] or balanced)[: 1 if chance == 0.5 else 3]:
        lap, less = min(each.laps_s.items(), key=lambda lap: lap[1])
        words.append(
            f"{_rank(each)} takes {_late(each, 'cause_')} ms longer per step {CAUSES[each.cause]}, and "
            f"{milliseconds(-less)} ms less {CAUSES[lap]}."
        )
    return " ".join(words)


def late_words(late: Lateness, chance: float) -> str:
    """Return by how much a rank is late, in which lap, and in how many steps it is the last one."""
    quick = late.quickest_s < 0.2 * late.cause_s  # of its lateness, it is as quick as the others itself
    apart = abs(late.value_s - late.cause_s) > 0.1 * late.cause_s  # else one number tells both
    return (
        f"{_rank(late)} is {_late(late, 'cause_')} ms late per step {CAUSES[late.cause]}"
        f"{f' (over all laps {_late(late)} ms)' * apart}, and is the last one in {percent(late.last_share)} of the "
        f"steps (by chance: {percent(chance)})."
        f"{' Its quickest steps are not late: at times something holds it up, such as another program.' * quick}"
    )


def _rank(late: Lateness) -> str:
    return f"Rank {late.rank}{f' on {late.host}' if late.host else ''}"


def _late(late: Lateness, part: str = "") -> str:
    names = [f"{part}s" if part else "value_s", f"{part}low_s", f"{part}high_s"]
    return quoted(*(1e3 * getattr(late, name) for name in names))


_SYSTEM = ("cpu_percent", "rss_mb", "pss_mb", "gpu_percent", "gpu_memory_mb", "power_w")


def system_lines(found: Inspection) -> list[str]:
    """Return the use of processors, memory and power as a table."""
    rows = [
        (row["host"], row["part"], row["quantity"], f"{row['mean']:,.0f}", f"{row['max']:,.0f}")
        for row in found.system["rows"]
        if row["quantity"] in _SYSTEM
    ]
    table = table_of(("host", "part", "quantity", "mean", "largest"), rows[: 6 * _MOST], texts=(0, 1, 2))
    return ["System, over the timed steps", *to_lines(table, indent=2)] if rows else []


def _ms(seconds: float | None) -> str:
    """Return a time in ms with three digits, without its unit."""
    if seconds is None:
        return NOTHING
    value = 1e3 * seconds
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"


_SHADES = {"start-up": style.SHADE, "warm-up": style.GRID, "timed steps": "none", "evaluation": "#f4e4bf"}
_SHADES |= {"break": "#e9cdd8", "end": "#d8e3ea"}
_MOST_PANELS = 6


@dataclass(frozen=True)
class _Phases:
    """The phases of a run, shaded behind a panel."""

    rows: pd.DataFrame

    def draw(self, axes: Axes, looks: Looks, last: float, panel_in: float) -> None:
        for each in self.rows.to_dict("records"):
            axes.axvspan(each["begin_s"], each["end_s"], facecolor=_SHADES[each["phase"]], linewidth=0, zorder=0)


def write_system_of(
    run: RecordedRun, beside: RunSideFiles, directory: Path, *, look: style.FigureFormat = style.TEXT
) -> list[Path]:
    """Write the figure of each host of a run that was sampled: system-HOST.pdf, .svg, .png, .txt, .csv."""
    steps = pd.DataFrame(dict(run.rows[min(run.rows)]))
    made = [drawing(samples, steps, beside.evaluations, run.first_step) for samples in beside.system.values()]
    made = [each for each in made if each.panels]
    return write_files(made, directory, look=look) if made else []


def drawing(samples: Any, steps: pd.DataFrame, evaluations: Sequence[Mapping[str, float]], first: int) -> Figure:
    """Return one host over time, the phases of the run shaded; `first`: the first timed step.

    `samples`: of `records.read_system`; `steps`: rows of one rank. The CSV has means and maxima of the timed steps.
    """
    begin_s, end_s = float(samples.rows["at_s"].min()), float(samples.rows["at_s"].max())
    table = resources.phases(steps, evaluations, first_timed=first, first_s=begin_s, last_s=end_s)
    rows = resources.over_time(samples)
    rows["at_s"] -= begin_s
    shades = _Phases(table.assign(begin_s=table["begin_s"] - begin_s, end_s=table["end_s"] - begin_s))
    looks = style.looks_in_order(list(rows["line"].unique()))
    panels = []
    for label, own in list(rows.groupby("panel", sort=False))[:_MOST_PANELS]:
        how = {"marker": ".", "markersize": 2, "drawstyle": "steps-pre"}  # of the time since the sample before
        panels.append(Panel(
            layers=[shades, Curve(rows=own, y="value", x="at_s", by="line", how=how, marked=True)],
            y=f"{label}", x="Seconds since the first sample",
        ))  # fmt: skip
    missing = "; ".join(f"{name}: {reason}" for name, reason in samples.meta["missing"].items())
    return Figure(
        name=f"system-{samples.host}",
        title=f"Host {samples.host} over time",
        alt=f"{'; '.join(panel.y for panel in panels)}: over the run; means and maxima are in its CSV file.",
        caption=f"Host {samples.host} during the run, sampled every {float(samples.meta['interval_s']):g} s: the "
        f"process trees of {plural(len(samples.meta['ranks']), 'rank')} and the host as a whole. Shaded: phases of the "
        f"run; its first step began at {0.0 - begin_s:.3g} s. MB are 1e6 bytes."
        + f" Without a sensor: {missing}."
        * bool(missing),
        data=resources.summary({samples.host: samples}, table),
        panels=panels,
        looks={look.label: look for look in looks},
        legend=[
            Patch(facecolor=_SHADES[phase], edgecolor=style.QUIET, linewidth=0.5, label=phase)
            for phase in resources.PHASES
            if phase in set(table["phase"])
        ],
        shape=(2, 0.5, 0.4),
    )
