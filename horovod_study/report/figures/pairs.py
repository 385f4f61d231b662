"""NCCL against MPI, and any two runtimes that ran side by side: their ratio against workers, for readers.

Everything drawn is a column of the analysis (table `transports`).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from horovod_study.analysis.study import Analysis
from horovod_study.analysis.sync.transports import RESOLVED
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit.drawing import Drawing
from horovod_study.report.kit.style import QUIET, SeriesStyle, looks_in_order, series_labels, series_styles
from horovod_study.text.numbers import with_interval
from horovod_study.text.words import plural

NAME = "transport_ratio"

_TITLES = {"samples_per_s": "Throughput", "sync_s": "Waiting per step"}


def transport_ratio(analysis: Analysis) -> Drawing | None:
    """Return the figure of ratios; None where no two runtimes were paired at several worker counts."""
    table = analysis.transports
    known = table[table["ratio"].notna() & (table["workers"] > 1)]
    pairs = known.groupby(["a", "b"], sort=False)["workers"].nunique()
    pairs = pairs[pairs >= 2]  # with one worker count the table says it better
    if pairs.empty:
        return None
    chosen = list(pairs.sort_values(ascending=False, kind="stable").index[:8])
    chosen = [pair for pair in pairs.index if pair in set(chosen)]
    shown = known[[pair in set(chosen) for pair in zip(known["a"], known["b"], strict=True)]]
    looks = _looks(analysis, shown, chosen)
    panels = [name for name in _TITLES if (shown["quantity"] == name).any()]

    def draw(width_in: float) -> Figure:
        figure, axes_of, (panel_in, _) = kit.grid(len(panels), width_in, aspect=0.8)
        for axes, quantity in zip(axes_of, panels, strict=True):
            own = shown[shown["quantity"] == quantity]
            own = own.assign(at=kit.side_by_side(own, "ratio", float(own["workers"].max()), panel_in))
            for (a, b), look in looks.items():
                rows = own[(own["a"] == a) & (own["b"] == b)].sort_values(["workers", "nodes"], kind="stable")
                if len(rows):
                    kit.line_of(axes, rows["at"], rows["ratio"], look, linewidth=1.1)
                    values = [rows[column] for column in ("ratio", "ratio_low", "ratio_high")]
                    texts = [_tip(row) for row in rows.to_dict("records")]
                    kit.judged_points(axes, rows["at"], values, look, rows["verdict"] == RESOLVED, texts)
            axes.axhline(1, color=QUIET, linewidth=0.9, zorder=1)
            kit.worker_axis(axes, own["workers"], float(own["workers"].max()), panel_in)
            kit.node_boundaries(axes, own, panel_in)
            kit.round_values(axes)
            axes.set_ylabel("Ratio")
            kit.heading(
                axes, f"{_TITLES[quantity]}: {'more' if quantity == 'samples_per_s' else 'less'} is better", panel_in
            )
        kit.legend(figure, [*(kit.entry(look) for look in looks.values()), *kit.judged_handles()], width_in)
        return figure

    rest, used = len(pairs) - len(chosen), set(shown["a_transport"]) | set(shown["b_transport"])
    caption = (
        "One backend against another, against the number of workers: the value of the first over that of the "
        "second. Points: geometric mean of the ratios of runs of the same repeat, which ran side by side in one block; "
        "bars: 95 % intervals (Student's t on logarithms). Filled: resolved (p below 0.05 after Holm over the worker "
        "counts, and an interval without 1), open: not resolved. Horizontal line: no difference. Dashed vertical "
        "lines: further workers need another node. "
        f"{kit.repeats_words(shown, 'pairs')}"
        + (f" In the CSV file only: {plural(rest, 'further pair')} of series." if rest else "")
    )
    return Drawing(
        name=NAME,
        title="NCCL against MPI" if used == {"nccl", "mpi"} else "One backend against another",
        alt="Ratios of throughput and of waiting between two runtimes, against workers; the values are in the "
        "table of transports.",
        caption=caption,
        data=known,
        draw=draw,
    )


def _looks(analysis: Analysis, shown: pd.DataFrame, chosen: list[Any]) -> dict[Any, SeriesStyle]:
    """Return the look of each pair: that of its second series, named after both, unless several pairs have that one."""
    cells = analysis.synchronisation
    styles, labels = series_styles(cells), series_labels(cells)
    settings = cells.drop_duplicates("series").set_index("series")["setting"]
    several = settings[[pair[0] for pair in chosen]].nunique() > 1
    found = {}
    for a, b in chosen:
        words = f"{labels[b]} / {labels[a]}" + (f", {settings[b]}" if several else "")
        found[a, b] = replace(styles[b], label=words, filled=True, ring=False)
    if len({b for _, b in chosen}) < len(chosen):
        own = looks_in_order([look.label for look in found.values()])
        return {pair: replace(look, filled=True) for pair, look in zip(found, own, strict=True)}
    return found


def _tip(row: Mapping[Any, Any]) -> str:
    low, high = row["ratio_low"], row["ratio_high"]
    text = with_interval(row["ratio"], low, high) if math.isfinite(low) else f"{row['ratio']:.3g}"
    return f"{plural(row['workers'], 'worker')}: {text}, {row['verdict']}, {plural(row['pairs'], 'pair')}"
