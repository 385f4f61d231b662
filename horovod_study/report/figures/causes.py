"""What takes the time: the parts of a step, what more workers add to them, and what the machine could do."""

from dataclasses import replace
from typing import Any

from horovod_study.analysis.machine.network import restored
from horovod_study.analysis.series.points import baseline_words
from horovod_study.analysis.steps.breakdown import HOLDS_SYNC, IDEAL, MEASURED, hiding
from horovod_study.analysis.study import Analysis
from horovod_study.report.figures.bench import drawings_of
from horovod_study.report.grammar import Figure, of_bars
from horovod_study.report.kit.style import INK, LAPS, LapStyle, series_styles
from horovod_study.text.numbers import MINUS

_HIDDEN = {"hatch": "\\\\\\\\\\\\", "ink": LAPS["sync"].color, "edge": LAPS["sync"].color}
_LAPS = {
    name: each
    for lap, look in LAPS.items()
    for name, each in (
        (lap, look),
        (f"{lap} and sync", replace(look, label=f"{lap} with hidden sync", **_HIDDEN)),
    )
}
GROWTH = {
    "computing": LapStyle(label="slower computing", color="#d4ba6e", ink=INK),
    "hidden": LapStyle(label="computing with hidden sync", color="#c9a3b4", ink=INK),
    "skew": LapStyle(label="skew (last worker)", color="#e69f00", ink=INK),
    "transfer": LapStyle(label="transfer", color="#56b4e9", ink=INK),
    "packing": LapStyle(label="packing, norm", color="#e3a6be", ink=INK),
    "runtime": LapStyle(label="cycle, negotiation", color="#b3305f", ink="#ffffff"),
    "exchange": LapStyle(label="transfer and runtime", color="#b3305f", ink="#ffffff"),
    "waiting": LapStyle(label="waiting", color="#b3305f", ink="#ffffff"),
    "other": LapStyle(label="rest of sync", color="#ffffff", ink=INK, hatch="\\\\\\\\"),
    "unexplained": LapStyle(label="unexplained", color="#ffffff", ink=INK, hatch="//////"),
}
"""What more workers add to a step, from the bottom of a bar to its top."""


def breakdown(analysis: Analysis) -> Figure | None:
    parts, styles = analysis.breakdown, series_styles(analysis.points)
    if parts.empty:
        return None
    settings = analysis.points.drop_duplicates("series").set_index("series")["setting"]
    rows = parts[parts["lap"] != "step"].assign(setting=parts["series"].map(settings))
    if (analysis.points["backend"] == "serial").all() and settings.is_unique:  # then settings stand side by side
        rows = rows.assign(series=rows["setting"], setting="")
    several = parts[(parts["lap"] == "sync") & (parts["workers"] > 1)].set_index(["series", "workers", "nodes"])
    holders = several["note"].map(HOLDS_SYNC)
    held = holders.reindex(rows.set_index(["series", "workers", "nodes"]).index).to_numpy() == rows["lap"]
    rows = rows.assign(part=rows["lap"].where(~held, rows["lap"] + " and sync"))
    caption = (
        "Mean ms per step over the timed window, all workers and all repeats. Waiting: from the end of a worker's own "
        "backward pass to the averaged gradients; unexplained: what no part covers."
    )
    for lap in hiding(parts):
        names = ", ".join(styles[series].label for series in holders[holders == lap].index.unique("series"))
        caption += f" {names}: communication runs inside {lap} and cannot be separated (hatched)."
    return Figure(
        name="breakdown",
        title="Where the time of a step goes",
        alt="Stacked bars of the mean time per step by part and number of workers; the values are in the table below.",
        caption=f"{caption} What has no room is in the CSV file.",
        data=parts[["series", "workers", "nodes", "repeats", "lap", "mean_s", "share", "note"]],
        looks=styles,
        **of_bars(rows, "mean_s", "Mean ms per step", parts=_LAPS, loud="sync", scale=1e3, unit="ms"),
    )


def losses(analysis: Analysis) -> Figure | None:
    table, kind = analysis.losses, analysis.provenance["baseline"]
    if table.empty:
        return None
    step = analysis.breakdown[analysis.breakdown["lap"] == "step"].set_index(["series", "workers", "nodes"])
    ends: dict[str, Any] = {"low": f"minus_{kind}_low_s", "high": f"minus_{kind}_high_s"}
    rows = table[~table["part"].isin([IDEAL, MEASURED])].join(step[[*ends.values()]], on=["series", "workers", "nodes"])
    parts, base = set(rows["part"]), baseline_words(analysis.points, kind, plain="one plain PyTorch worker")
    apart = " Transfer and runtime were not measured separately in these runs." * bool(parts - {"hidden"})
    if "runtime" in parts:
        apart = (
            " Skew: waiting for the last worker. Transfer: one raw all-reduce of the gradients in the same job (10 % "
            "quantile); runtime: the same through the library with aligned ranks, less it."
        )
    return Figure(
        name="losses",
        title="What more workers add to a step",
        alt="Stacked bars of what each part of a step grew by; the values are in its CSV file.",
        caption=f"T(N) {MINUS} T(1) by part, means per step over the timed window, ranks and repeats; T(1): the step "
        f"of {base} (for a fixed global batch divided by the workers). Numbers: sums of all parts; strokes: their "
        f"95 % intervals, where there are three repeats.{apart}",
        data=table,
        looks=series_styles(analysis.points),
        **of_bars(rows, "seconds", f"T(N) {MINUS} T(1) / ms", parts=GROWTH, scale=1e3, unit="ms", **ends),
    )


def machines(analysis: Analysis) -> list[Figure]:
    """Return roofline and network of each machine whose bench.json the analysis was given."""
    found = [drawings_of(restored(each, source="network.json")) for each in analysis.network["machines"]]
    return [
        replace(each, name=f"{each.name}-{place}") if len(found) > 1 else each
        for place, own in enumerate(found, 1)
        for each in own
    ]
