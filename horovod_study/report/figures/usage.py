"""What the machine did while it trained, for readers: use and power of GPUs and cores against workers and over time."""

from dataclasses import replace

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from horovod_study.analysis.machine.usage import SLICES
from horovod_study.analysis.study import Analysis
from horovod_study.report.grammar import Figure as Drawing
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit.style import series_styles
from horovod_study.text.numbers import rounded
from horovod_study.text.words import plural, span

NAMES = ("usage", "load")


_ON_GPUS = (
    kit.Quantity(
        "gpu_percent", "GPU use / %", "% GPU use", "GPU use: share of time in which any kernel ran, mean over the GPUs"
    ),
    kit.Quantity("gpu_power_w_per_gpu", "Power of a GPU / W", "W", "power: the GPUs' own reading, mean over them"),
    kit.Quantity(
        "cpu_percent_per_rank",
        "CPU of a rank / %",
        "% of a core",
        "CPU: processor time of a rank and all it started, in per cent of one core, mean over the ranks",
    ),
    kit.Quantity("gpu_memory_mb", "GPU memory / MB", "MB", "memory: largest of the window, mean over the GPUs"),
)
_ON_CORES = (
    _ON_GPUS[2],
    kit.Quantity(
        "rss_mb_per_rank",
        "Memory of a rank / MB",
        "MB",
        "memory: resident, with pages that ranks share, largest of the window, mean over the ranks",
    ),
    kit.Quantity("package_power_w", "Power of processors / W", "W", "power: of all processors, by their counters"),
)


def usage(analysis: Analysis) -> Drawing | None:
    table = analysis.usage
    gpus = bool(table["gpu_percent_median"].notna().any() or table["gpu_power_w_per_gpu_median"].notna().any())
    panels = [each for each in (_ON_GPUS if gpus else _ON_CORES) if table[f"{each.name}_median"].notna().any()]
    known = table[(table["mode"] != "mixed") & table[[f"{each.name}_median" for each in panels]].notna().any(axis=1)]
    parallel = known[known["workers"] > 1]
    if parallel.empty or not panels:
        return None
    settings = kit.settings_of(parallel, most=1)
    shown = known[known["setting"].isin(settings)]
    styles = series_styles(analysis.points)

    def draw(width_in: float) -> Figure:
        return kit.quantities(shown, settings, panels, styles, width_in)

    caption = (
        f"Use of the machine against the number of workers, means over the timed window of each run. "
        f"{'; '.join(panel.words for panel in panels).capitalize()}. Points: medians over repeats; bars: lowest to "
        "highest repeat; lines only guide the eye; the ring is one worker without a communication library. Dashed, "
        f"upright: further workers need another node. {kit.repeats_words(shown)}{kit.left_out(parallel, settings)}"
    )
    kept = [f"{panel.name}_{end}" for panel in panels for end in ("repeats", "median", "min", "max", "low", "high")]
    return Drawing(
        name=NAMES[0],
        title="Use and power" if any("power" in panel.name for panel in panels) else "Use of the machine",
        alt=f"{'; '.join(panel.label for panel in panels)}: against workers; the values are in its CSV file.",
        caption=caption,
        data=known[["series", "setting", "partition", "device", "workers", "nodes", "repeats", *kept]],
        paint=draw,
    )


OVER_TIME = (
    kit.Quantity("step_s", "Mean step / ms", "ms", "mean step of each stretch", 1000.0),
    kit.Quantity("gpu_percent", "GPU use / %", "% GPU use", "GPU use: mean over the GPUs"),
    kit.Quantity("gpu_power_w", "Power of all GPUs / W", "W", "power: sum over the GPUs"),
    kit.Quantity("cpu_percent_per_rank", "CPU of a rank / %", "% of a core", "CPU: mean over the ranks"),
    kit.Quantity("rss_mb_per_rank", "Memory of a rank / MB", "MB", "memory: resident, mean over the ranks"),
)


def load(analysis: Analysis) -> Drawing | None:
    table = analysis.load
    panels = [each for each in OVER_TIME if table[f"{each.name}_median"].notna().any()][:4]
    sampled = [each for each in panels if each.name != "step_s"]
    known = table[(table["mode"] != "mixed") & (table["workers"] > 1)]
    if known.empty or not sampled:
        return None
    (setting,) = kit.settings_of(known, most=1)
    own = known[known["setting"] == setting]
    top = own[own["workers"] == own.groupby("series")["workers"].transform("max")]
    top = top[top["nodes"].fillna(0) == top["nodes"].fillna(0).groupby(top["series"]).transform("max")]
    names = list(top.sort_values("workers", ascending=False, kind="stable")["series"].drop_duplicates()[:8])
    shown = top[top["series"].isin(names)]
    styles = series_styles(analysis.points)
    counts = shown.drop_duplicates("series").set_index("series")["workers"]
    looks = {
        str(series): replace(
            styles[str(series)], label=f"{styles[str(series)].label}, {plural(counts[series], 'worker')}"
        )
        for series in shown["series"].drop_duplicates()
    }

    def draw(width_in: float) -> Figure:
        figure, axes_of, _ = kit.grid(len(panels), width_in, aspect=0.6)
        for axes, panel in zip(axes_of, panels, strict=True):
            high = 0.0
            for series, each in shown.groupby("series", sort=False):
                look = looks[str(series)]
                low, middle, most = (each[f"{panel.name}_{end}"] * panel.scale for end in ("min", "median", "max"))
                kit.band_of(axes, each["at_s"], (low, most), look, alpha=0.15)
                tips = [
                    f"{at:.3g} s: {rounded(value, 3)} {panel.unit}"
                    for at, value in zip(each["at_s"], middle, strict=True)
                ]
                kit.line_of(axes, each["at_s"], middle, look, tips=tips)
                high = max(high, float(most.max()) if most.notna().any() else 0.0)
            axes.set(xlim=(0, 1.02 * float(shown["at_s"].max()) or 1), ylim=(0, 1.12 * high if high > 0 else 1))
            kit.round_values(axes, nbins=5, steps=(1, 2, 2.5, 5, 10))
            axes.set(ylabel=panel.label, xlabel="Seconds since the timed window began")
        entries = [
            Line2D([], [], color=look.color, linestyle=look.dash, linewidth=1.2, label=look.label)
            for look in looks.values()
        ]
        kit.legend(figure, entries, width_in)
        return figure

    caption = (
        f"The machine over the timed window, {setting}, at the largest worker count of each series: "
        f"{'; '.join(panel.words for panel in panels)}. The window is cut into {SLICES} stretches of equal steps. "
        "Lines: medians over repeats; bands: lowest to highest repeat. Repeats: "
        f"{span(shown['repeats'].min(), shown['repeats'].max())}. The other cells are in the CSV file."
    )
    return Drawing(
        name=NAMES[1],
        title="The machine over time",
        alt=f"{'; '.join(panel.label for panel in panels)}: over the timed window; the values are in its CSV file.",
        caption=caption,
        data=known,
        paint=draw,
    )
