"""report.html: one file that a person opens first and can send on; it needs no network and no other file.

The page is complete without its script: figures are inline SVG, tables are tables. The script (page/static) adds
values to point at, legend entries that hide a series, zoom, downloads and the choice of light or dark; it makes its
buttons itself, so that none is there without it. Every *.js and *.css of page/static becomes part of the page.
"""

import base64
import hashlib
import html
import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from importlib.resources import files
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from horovod_study import __version__
from horovod_study.analysis.breakdown import shown
from horovod_study.analysis.laws import LAWS
from horovod_study.analysis.study import Analysis
from horovod_study.config import OPTIONS, short_rate
from horovod_study.errors import RecordError
from horovod_study.files import csv_of, not_written, write_file
from horovod_study.report.figures import boundary, forecast, resources, synchronisation
from horovod_study.report.figures.catalogue import drawings, write_figures
from horovod_study.report.kit.drawing import Drawing
from horovod_study.report.kit.interactive import css_name, inline, script_json
from horovod_study.report.kit.style import DARK, LAPS, LAW_NAMES, SCREEN_WIDTH_IN, TEXT, Look, series_labels
from horovod_study.report.page import run_pages
from horovod_study.report.page.sentences import ENVIRONMENT, headline, learned, sentences, subheadline
from horovod_study.report.page.tables import tables, write_tables
from horovod_study.text.numbers import THIN, milliseconds, number, percent, rounded, scientific, signed, with_interval
from horovod_study.text.words import listed, plural

PAIRED = ("speedup", "efficiency")
"""The two plots side by side under the headline."""

WIDE_IN = 6.3

LEARNING = ("learning", "targets", "sensitivity")
"""The figures of the section on learning."""

CLAIMED = (
    *(*PAIRED, "breakdown", "throughput"),
    *(boundary.NAME, forecast.NAME, resources.NAME, *synchronisation.NAMES, *LEARNING),
)
"""Figures that a section shows; all others stand in a section of their own."""

WIDTHS_IN = {**dict.fromkeys(PAIRED, SCREEN_WIDTH_IN), "throughput": 5.0}
"""Widths at which figures are drawn for the page, where they differ from WIDE_IN."""

MOST_CSV, LEAST_CSV = 60_000, 15_000
"""Letters of a figure's data up to which the page carries it for download; beyond, it is in figures/ alone. The smaller
number holds where all figures together have more than MUCH_CSV: the page of a thousand runs shall stay below 5 MB."""
MUCH_CSV = 2_000_000

MOST_ACCOUNTED = 100
"""Runs whose unexplained time the page lists; of more, those that do not close and those with the largest gaps."""

MANY_POINTS = 30
"""From so many points on, drawing takes longer than starting a second Python."""

NOTHING = "\u2013"
"""In a cell that has no value: unknown is not zero."""


def write_report(
    analysis: Analysis,
    directory: Path,
    *,
    look: Look = TEXT,
    pgf: bool = False,
    against: Any = None,
    second_process: bool = False,
) -> list[Path]:
    """Write report.html, the files of its figures (figures/) and of its tables (tables/); return the paths, page first.

    `look` and `pgf` are those of `figures.write_figures`; `against` is a comparison with another study
    (analysis/study_comparison.py) that the page shows, too. With `second_process` another Python writes the figures of
    a study of many points meanwhile; the program must be one that can be imported without running (`__main__` guard).
    Raises RecordError when the directory cannot be written.
    """
    page, figures = directory / "report.html", directory / "figures"
    with ExitStack() as stack:
        drawn = None
        if second_process and len(analysis.points) >= MANY_POINTS:
            # Not forked: other libraries' threads may hold locks at this moment.
            pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
            drawn = pool.submit(write_figures, analysis, figures, look=look, pgf=pgf)
        text = render(analysis, against=against)
        tables = write_tables(analysis, directory / "tables")
        written = write_figures(analysis, figures, look=look, pgf=pgf) if drawn is None else drawn.result()
    try:
        write_file(page, text)  # last: a new page stands for new figures and tables
    except OSError as error:
        raise RecordError(not_written(page, error, "choose a writable folder")) from None
    return [page, *written, *tables]


def render(analysis: Analysis, *, against: Any = None) -> str:
    """Return the page as text; equal analyses give equal pages."""
    environment = Environment(
        loader=PackageLoader("horovod_study", "report/page/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    settings = analysis.points.loc[analysis.points["mode"] != "single", "setting"].nunique()
    widths_in = dict.fromkeys(PAIRED, WIDE_IN) if settings > 1 else {}
    drawn = [(drawing, csv_of(drawing.data)) for drawing in drawings(analysis)]
    most_csv = MOST_CSV if sum(len(rows) for _, rows in drawn) <= MUCH_CSV else LEAST_CSV
    figures = {
        drawing.name: _figure(drawing, widths_in, rows if len(rows) <= most_csv else None) for drawing, rows in drawn
    }
    script = static(".js")
    labels = series_labels(analysis.points)
    provenance = analysis.provenance
    page: dict[str, Any] = dict(  # noqa: C408
        title=f"Scaling of {', '.join(provenance['studies'])}",
        eyebrow=_eyebrow(provenance),
        headline=headline(analysis),
        subheadline=subheadline(analysis),
        policy=_policy(script),
        script=Markup(script),
        sheet=Markup(static(".css")),
        findings=sentences(analysis),
        tiles=_tiles(analysis, labels),
        stacked=settings > 1,
        paired=[figures[name] for name in PAIRED if name in figures],
        breakdown=figures.get("breakdown"),
        throughput=figures.get("throughput"),
        boundary=figures.get(boundary.NAME),
        jumps=boundary.table(analysis),
        jumped=boundary.sentences(analysis),
        waiting=synchronisation.section(analysis),
        waiting_figures=[figures[name] for name in synchronisation.NAMES if name in figures],
        ahead=figures.get(forecast.NAME),
        foretold=forecast.table(analysis),
        learning=[figures[name] for name in LEARNING if name in figures],
        more=[figure for name, figure in figures.items() if name not in CLAIMED],
        learned=learned(analysis),
        learned_cells=_learned(analysis, labels),
        targets=_targets(analysis, labels),
        resources={
            "figure": figures.get(resources.NAME),
            "rows": resources.table(analysis),
            "sentences": resources.sentences(analysis),
            "units": resources.units(analysis),
        },
        common=_common(provenance),
        baseline=provenance["baseline"],
        works=_works(analysis),
        points=_points(analysis, labels),
        laps=[
            (lap, {"sync": "waiting", "compute": "compute"}.get(lap, LAPS[lap].label))
            for lap in shown(analysis.breakdown, tuple(LAPS))
        ],
        parts=_parts(analysis, labels),
        growth=[(kind, _growth(analysis, labels, kind)) for kind in ("plain", "wrapped")],
        accounts=_accounts(analysis, labels),
        closed=" ".join(each for each in (_closed(analysis), _left_out(analysis)) if each),
        fits=_fits(analysis, labels),
        doubts=_gathered(provenance["doubts"], set(analysis.points["series"])),
        failed=_failed(provenance, labels),
        runs=provenance["runs"],
        environments=_environments(provenance),
        measurement=_measurement(provenance, labels),
        commands=list(provenance["commands"]),
        tables=[(table.name, table.title) for table in tables(analysis)],
        compared=_compared(against),
        run_pages=run_pages.section(analysis),
        version=__version__,
        light=[(css_name(color), color) for color in DARK],
        dark=[(css_name(color), twin) for color, twin in DARK.items()],
        nothing=NOTHING,
    )
    text = environment.get_template("report.html.j2").render(**page, contents=_contents(page))
    # The indentation of thousands of rows is a part of the page that nobody sees.
    return re.sub(r"<table\b.*?</table>", lambda table: re.sub(r"\n\s+", "\n", table[0]), text, flags=re.DOTALL)


_CONTENTS = (
    ("compared", "against", "Against the other study"),
    ("scaling", "scaling", "Scaling"),
    ("step", "step", "Inside a step"),
    ("jumps", "nodes", "Across nodes"),
    ("waiting", "synchronisation", "Synchronisation"),
    ("foretold", "forecast", "Forecast"),
    ("learning", "learning", "Learning"),
    ("energy", "resources", "Energy and hours"),
    ("points", "points", "All points"),
    ("laws", "laws", "Fitted laws"),
    ("more", "more-figures", "More figures"),
    ("run_pages", "runs", "Runs"),
    ("doubts", "doubts", "Doubts"),
    ("method", "method", "How it was measured"),
    ("definitions", "definitions", "Definitions"),
)
"""What a section needs, its id and its title; a section without an entry for what it needs is always there."""


def _contents(page: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return ids and titles of the sections that this page has, in their order."""
    needs = {
        **{name: bool(page[name]) for name in ("compared", "jumps", "foretold", "learning", "more", "run_pages")},
        "waiting": bool(page["waiting"]["shown"]),
        "energy": bool(page["resources"]["rows"]),
    }
    return [(place, title) for need, place, title in _CONTENTS if needs.get(need, True)]


def _compared(against: Any) -> dict[str, Any] | None:
    """Return what the section on the difference to another study shows; None without one."""
    if against is None:
        return None
    from horovod_study.report.figures import against as compared

    figures = [
        _figure(drawing, {}, rows if len(rows) <= MOST_CSV else None)
        for drawing in compared.drawings(against)
        for rows in (csv_of(drawing.data),)
    ]
    return {**compared.section(against), "figures": figures}


def _policy(script: str) -> str:
    """Return the rule that this page keeps: no request to anywhere, no script but its own."""
    own = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    rules = ("default-src 'none'", "style-src 'unsafe-inline'", f"script-src 'sha256-{own}'", "img-src data:")
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _figure(drawing: Drawing, widths_in: Mapping[str, float], csv: str | None) -> dict[str, Any]:
    # The drawing is ours, but names of series stand in it: matplotlib escapes them when it writes XML.
    label = html.escape(drawing.alt, quote=True)
    made = inline(drawing, width_in={**WIDTHS_IN, **widths_in}.get(drawing.name, WIDE_IN))
    svg = made.svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return {
        "name": drawing.name,
        "title": drawing.title,
        "svg": Markup(svg),
        "caption": drawing.caption,
        "facts": script_json({**made.data, "csv": csv}),
    }


def _eyebrow(provenance: Mapping[str, Any]) -> str:
    runs = provenance["runs"]
    words = [
        plural(len(provenance["studies"]), "study").replace("studys", "studies").split(" ", 1)[1]
        + f" {', '.join(provenance['studies'])}",
        f"partition {', '.join(provenance['partitions'])}",
        f"{runs['total']} runs",
        *([_day(provenance["started"][0])] if provenance["started"] else []),
    ]
    return " \u00b7 ".join(words)


def _day(moment: str) -> str:
    """Return the day of an ISO time in words; a text that is no time stays as it is."""
    try:
        when = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return f"{when.day} {when:%B %Y}"


def _tiles(analysis: Analysis, labels: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the figures of the headline one by one, with what they are relative to."""
    findings = [found for found in analysis.provenance["findings"] if found["series"][0]["speedup"] is not None]
    if not findings:
        return None
    found = max(findings, key=lambda each: (each["workers"], each["series"][0]["speedup"]))
    best, step = found["series"][0], found["step"]
    several = len(analysis.provenance["partitions"]) > 1
    base = {"plain": "one plain worker", "wrapped": "one worker of the same library"}[found["baseline"]]
    low, high = best["low"], best["high"]
    interval = (
        f"95{THIN}% interval {with_interval(best['speedup'], low, high).split(' ', 1)[1]}"
        if low is not None
        else f"{plural(best['repeats'], 'repeat')}, no interval"
    )
    tiles = [
        ("Speedup", f"{number(best['speedup'], low, high)}\u00d7", f"over {base}; {interval}"),
        ("Efficiency", percent(best["efficiency"]), f"of {plural(found['workers'], 'ideal worker')}"),
        ("Throughput", rounded(best["samples_per_s"]), "samples/s, all workers together"),
    ]
    if step is not None and step["share"]["sync"] is not None:
        wait = (
            f"{milliseconds(step['share']['sync'] * step['step_s'])} of {milliseconds(step['step_s'])}{THIN}ms per step"
        )
        tiles.append(("Waiting for gradients", percent(step["share"]["sync"]), wait))
    what = f"{labels[best['series']]}, {plural(found['workers'], 'worker')}, {found['setting']}"
    return {"what": f"{what}, {found['partition']}" if several else what, "tiles": tiles}


def _works(analysis: Analysis) -> list[str]:
    """Return what each way of scaling in this study keeps fixed, one sentence for the settings that share it."""
    points = analysis.points[analysis.points["mode"] != "single"]
    shared = points.drop_duplicates("setting").groupby("work", sort=False)["setting"]
    return [f"{listed([str(setting) for setting in settings])}: {work}" for work, settings in shared]


# ---------------------------------------------------------------------------------------------------- tables


def _groups(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(series), rows) for series, rows in frame.groupby("series", sort=False)]


def _points(analysis: Analysis, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the table of points: one group of rows per series."""
    share = analysis.breakdown[analysis.breakdown["lap"] == "sync"].set_index(["series", "workers", "nodes"])["share"]
    groups = []
    for series, rows in _groups(analysis.points):
        lines = []
        for row in rows.to_dict("records"):
            if row["missing"]:
                lines.append({"workers": _count(row), "missing": True, "reasons": row["reasons"]})
                continue
            low, high = row["samples_per_s_ci95_low"], row["samples_per_s_ci95_high"]
            waiting = share.get((series, row["workers"], row["nodes"]), math.nan)
            lines.append(
                {
                    "workers": _count(row),
                    "missing": False,
                    "repeats": f"{row['repeats']}",
                    "failed": int(row["failed"]),
                    "throughput": rounded(row["samples_per_s_median"]),
                    "throughput_interval": _pair(low, high, lambda value: rounded(value)),
                    "spread": _pair(row["samples_per_s_min"], row["samples_per_s_max"], rounded, dash=True),
                    "step_ms": milliseconds(row["step_s_median"]),
                    "plain": _ratio(row, "speedup_plain"),
                    "wrapped": _ratio(row, "speedup_wrapped"),
                    "efficiency_plain": _share(row["efficiency_plain"]),
                    "efficiency_wrapped": _share(row["efficiency_wrapped"]),
                    "waiting": _share(waiting),
                    "karp_flatt": number(row["karp_flatt"]) if math.isfinite(row["karp_flatt"]) else NOTHING,
                }
            )
        groups.append(
            {"label": labels[series], "setting": rows.iloc[0]["setting"], "mode": rows.iloc[0]["mode"], "rows": lines}
        )
    return groups


def _count(row: Mapping[Any, Any]) -> str:
    if not math.isfinite(row["nodes"]) or row["nodes"] == 1:
        return f"{row['workers']:.0f}"
    return f"{row['workers']:.0f} on {row['nodes']:.0f} nodes"


def _pair(low: float, high: float, form: Any, *, dash: bool = False) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{form(low)} to {form(high)}" if dash else f"[{form(low)}, {form(high)}]"


def _ratio(row: Mapping[Any, Any], name: str) -> tuple[str, str]:
    """Return a speedup and its interval as two texts, so that a table can set them apart."""
    if not math.isfinite(row[name]):
        return NOTHING, ""
    if row[f"{name}_low"] == row[f"{name}_high"]:
        return f"{row[name]:.2f}", "by definition"
    text = with_interval(row[name], row[f"{name}_low"], row[f"{name}_high"])
    value, _, interval = text.partition(" ")
    return value, interval or "no interval"


def _share(value: float) -> str:
    return percent(value) if math.isfinite(value) else NOTHING


def _parts(analysis: Analysis, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the mean time of each part of a step in ms: the numbers behind the bars."""
    groups = []
    setting = analysis.points.drop_duplicates("series").set_index("series")["setting"]
    for series, rows in _groups(analysis.breakdown):
        lines = []
        for _, cell in rows.groupby(["workers", "nodes"], sort=True):
            by_lap = {row["lap"]: row for row in cell.to_dict("records")}
            lines.append(
                {
                    "workers": _count(by_lap["step"]),
                    "step": milliseconds(by_lap["step"]["mean_s"]),
                    "interval": _spread(by_lap["step"]),
                    "laps": [_lap(by_lap[lap]) for lap in shown(analysis.breakdown, tuple(LAPS))],
                }
            )
        groups.append({"label": labels[series], "setting": setting[series], "rows": lines})
    return groups


def _spread(row: Mapping[Any, Any]) -> str:
    """Return the lowest to the highest repeat of a mean in ms; empty for one run."""
    low, high = (row.get(name, math.nan) for name in ("min_s", "max_s"))
    return _pair(low, high, milliseconds, dash=True) if row["repeats"] > 1 else ""


def _lap(row: Mapping[Any, Any]) -> tuple[str, str]:
    if not math.isfinite(row["mean_s"]):
        return NOTHING, f"{row['note']}"
    return milliseconds(row["mean_s"]), percent(row["share"])


def _growth(analysis: Analysis, labels: Mapping[str, str], kind: str) -> list[dict[str, Any]]:
    """Return how much longer than its one-worker baseline each step is, in ms by part."""
    rows = analysis.breakdown[analysis.breakdown["workers"] > 1]
    groups = []
    setting = analysis.points.drop_duplicates("series").set_index("series")["setting"]
    for series, own in _groups(rows):
        lines = []
        for _, cell in own.groupby(["workers", "nodes"], sort=True):
            by_lap = {row["lap"]: row for row in cell.to_dict("records")}
            if not math.isfinite(by_lap["step"][f"minus_{kind}_s"]):
                continue
            lines.append(
                {
                    "workers": _count(by_lap["step"]),
                    "step": signed(milliseconds(by_lap["step"][f"minus_{kind}_s"])),
                    "interval": _pair(
                        by_lap["step"].get(f"minus_{kind}_low_s", math.nan),
                        by_lap["step"].get(f"minus_{kind}_high_s", math.nan),
                        lambda seconds: signed(milliseconds(seconds)),
                    ),
                    "laps": [_growth_lap(by_lap[lap], kind) for lap in shown(analysis.breakdown, tuple(LAPS))],
                }
            )
        if lines:
            groups.append({"label": labels[series], "setting": setting[series], "rows": lines})
    return groups


def _growth_lap(row: Mapping[Any, Any], kind: str) -> tuple[str, str]:
    if not math.isfinite(row[f"minus_{kind}_s"]):
        return NOTHING, f"{row['note']}" if not math.isfinite(row["mean_s"]) else ""
    part = row[f"growth_{kind}"]
    return signed(milliseconds(row[f"minus_{kind}_s"])), percent(part, decimals=0) if math.isfinite(part) else ""


def _accounts(analysis: Analysis, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what no part of a step covers, from the rows of every step: one group of rows per series."""
    whole = analysis.accounting[analysis.accounting["rank"].isna()]
    groups = []
    for series, rows in _groups(whole[_accounted(whole)]):
        lines = [
            {
                "workers": f"{row['workers']:.0f}",
                "run": f"{row['run']}".rpartition("/")[2],
                "state": "" if row["state"] == "done" else f"{row['state']}",
                "steps": f"{row['steps']:.0f}",
                "excluded": f"{row['excluded']:.0f}",
                "why_not": f"{row['why_not']}",
                "shares": [
                    _known(row[f"residual_share_{name}"], lambda value: percent(value, decimals=2))
                    for name in ("mean", "median", "p99", "worst")
                ],
                "worst": "" if row["why_not"] else f"step {row['worst_step']:.0f}, rank {row['worst_rank']:.0f}",
                "open": f"{row['open_steps']:.0f}",
            }
            for row in rows.to_dict("records")
        ]
        groups.append({"label": labels.get(series, series), "rows": lines})
    return groups


def _accounted(whole: pd.DataFrame) -> pd.Series:
    """Return which runs, one per row of `whole`, the page lists."""
    doubtful = (whole["why_not"] != "") | (whole["open_steps"] > 0)
    worth = (
        whole["residual_share_worst"].mask(doubtful, math.inf).rank(method="first", ascending=False, na_option="top")
    )
    return worth <= MOST_ACCOUNTED


def _left_out(analysis: Analysis) -> str:
    """Return in one sentence which runs the table of unexplained time leaves out."""
    runs = int(analysis.accounting["rank"].isna().sum())
    if runs <= MOST_ACCOUNTED:
        return ""
    return (
        f"Of {runs:,} runs the {MOST_ACCOUNTED} are listed that do not close or have the largest gaps; accounting.csv "
        "has all."
    )


def _closed(analysis: Analysis) -> str:
    """Return in one sentence whether the recorded steps add up."""
    table = analysis.accounting
    ranks = table[table["rank"].notna() & (table["why_not"] == "")]
    if ranks.empty:
        return ""
    steps, wrong = int(ranks["steps"].sum()), int(ranks["open_steps"].sum())
    checked = f"The parts of {plural(steps, 'recorded step')} were added up, rank by rank"
    verdict = "all of them close" if wrong == 0 else f"{wrong} do{'es' if wrong == 1 else ''} not close"
    gap = f"the largest gap between a step and its parts is {float(ranks['gap_s'].max()) * 1e6:.2g}{THIN}\u00b5s"
    return f"{checked}: {verdict}; {gap}."


_GREEK = {"alpha": "\u03b1", "beta": "\u03b2", "gamma": "\u03b3"}


def _fits(analysis: Analysis, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the table of fitted laws: one group of rows per series."""
    groups = []
    for series, fit in analysis.fits["series"].items():
        laws = []
        for name, law in fit["laws"].items():
            params = [
                f"{_GREEK.get(param, param)} = {with_interval(value, *law['ci95'][param])}"
                for param, value in law["params"].items()
            ]
            laws.append(
                {
                    "name": LAW_NAMES.get(name, name),
                    "formula": _formula(law.get("formula") or (LAWS[name].formula if name in LAWS else "")),
                    "params": params,
                    "rmse": number(law["rmse"]) if law["rmse"] is not None else NOTHING,
                    "aicc": f"{law['aicc']:.1f}".replace("-", "\u2212") if law["aicc"] is not None else NOTHING,
                    "selected": name == fit["selected"],
                }
            )
        methods = list(dict.fromkeys(law["interval_method"] for law in fit["laws"].values()))
        groups.append(
            {
                "label": labels[series],
                "baseline": fit["baseline"],
                "laws": laws,
                "doubts": list(fit["doubts"]),
                "methods": methods,
            }
        )
    return groups


def _formula(text: str) -> str:
    for name, letter in _GREEK.items():
        text = text.replace(name, letter)
    return text.replace(" - ", " \u2212 ")


# ---------------------------------------------------------------------------------------------------- learning


def _learned(analysis: Analysis, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the table of the best errors: one group of rows per series."""
    groups = []
    for series, rows in _groups(analysis.learning):
        lines = [
            {
                "workers": _count(row),
                "repeats": f"{row['repeats']}",
                "diverged": int(row["diverged"]),
                "best": _known(row["best_mse_median"], lambda value: scientific(value, 3)),
                "spread": _pair(
                    row["best_mse_min"], row["best_mse_max"], lambda value: scientific(value, 3), dash=True
                ),
                "efficiency": _share(row["efficiency"]),
                "epoch": _known(row["best_epoch"], lambda value: f"{value:.3g}"),
                "seconds": _known(row["best_train_s"], lambda value: rounded(value, 3)),
                "rate": _known(row["rate"], lambda value: f"{value:.2f}".replace("-", "\u2212")),
                "rate_interval": _pair(
                    row["rate_low"], row["rate_high"], lambda value: f"{value:.2f}".replace("-", "\u2212")
                ),
            }
            for row in rows.to_dict("records")
        ]
        groups.append({"label": labels[series], "setting": rows.iloc[0]["setting"], "rows": lines})
    return groups


def _targets(analysis: Analysis, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the table of times to target: one group of rows per series."""
    groups = []
    for series, rows in _groups(analysis.targets):
        lines = []
        for row in rows.sort_values(["target_mse", "workers"], ascending=[False, True], kind="stable").to_dict(
            "records"
        ):
            lines.append(
                {
                    "target": scientific(row["target_mse"]),
                    "workers": _count(row),
                    "reached": f"{row['reached']} of {row['repeats']}",
                    "seconds": _time(row, "train_s"),
                    "spread": _pair(row["train_s_min"], row["train_s_max"], lambda value: rounded(value, 3), dash=True),
                    "wall": _time(row, "wall_s"),
                    "samples": _time(row, "samples"),
                    **_speedup_to_target(row),
                    "throughput": _known(row["throughput_ratio"], number),
                    "statistical": _known(row["statistical_efficiency"], number),
                    "speedup_wall": _known(row["speedup_wall"], number),
                    "note": "" if row["note"] == "" else "at the first evaluation or before",
                }
            )
        groups.append({"label": labels[series], "setting": rows.iloc[0]["setting"], "rows": lines})
    return groups


def _known(value: float, form: Any) -> str:
    return f"{form(value)}" if math.isfinite(value) else NOTHING


def _time(row: Mapping[Any, Any], name: str) -> str:
    if row["censored"]:
        return f">{THIN}{rounded(row[f'{name}_at_least'], 3)}"
    return rounded(row[name], 3)


def _speedup_to_target(row: Mapping[Any, Any]) -> dict[str, str]:
    """Return the speedup to a target, or what bounds it, and its interval."""
    if math.isfinite(row["speedup_at_most"]):
        return {"speedup": f"<{THIN}{number(row['speedup_at_most'])}", "speedup_interval": "target not met"}
    if math.isfinite(row["speedup_at_least"]):
        return {"speedup": f">{THIN}{number(row['speedup_at_least'])}", "speedup_interval": "not met by the baseline"}
    value, interval = _ratio(row, "speedup")
    return {"speedup": value, "speedup_interval": interval}


def _common(provenance: Mapping[str, Any]) -> str:
    """Return the options of training that all runs share, in one line."""
    common = provenance.get("learning", {})
    return ", ".join(
        f"{each.short_title} {short_rate(common[name]) if name == 'lr' else common[name]}"
        for name, each in OPTIONS.items()
        if each.short_title and name in common
    )


# ---------------------------------------------------------------------------------------------------- provenance


SHARED = 3
"""A doubt that so many series share is said once."""


def _gathered(doubts: Sequence[str], series: set[str]) -> list[tuple[str, list[str]]]:
    """Return each doubt and the series that share it, at the place of the first; no series where it stands alone."""
    parts = []
    for doubt in doubts:
        name, _, text = doubt.partition(": ")
        parts.append((name, text) if name in series else ("", doubt))
    names: dict[str, list[str]] = {}
    for name, text in parts:
        names.setdefault(text, []).extend([name] if name else [])
    found: dict[str, tuple[str, list[str]]] = {}
    for doubt, (_, text) in zip(doubts, parts, strict=True):
        if len(names[text]) >= SHARED:
            found.setdefault(text, (text, names[text]))
        else:
            found[doubt] = (doubt, [])
    return list(found.values())


def _failed(provenance: Mapping[str, Any], labels: Mapping[str, str]) -> list[dict[str, str]]:
    return [
        {
            "run": f"{row['run']}",
            "series": labels.get(row["series"], row["series"]),
            "workers": "?" if row["workers"] is None else f"{row['workers']}",
            "repeat": f"{row['repeat']}",
            "status": f"{row['status']}",
            "reason": f"{row['reason']}",
        }
        for row in provenance["failed"]
    ]


def _environments(provenance: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "runs": plural(each["runs"], "run"),
            "facts": [
                (word, NOTHING if each.get(key) is None else f"{each[key]}") for key, word in ENVIRONMENT.items()
            ],
        }
        for each in provenance["environment"]
    ]


def _measurement(provenance: Mapping[str, Any], labels: Mapping[str, str]) -> list[dict[str, str]]:
    return [
        {
            "label": labels.get(each["series"], each["series"]),
            "train_samples": _span(each["train_samples"], 6),
            "repeats": _span(each["repeats"], 6),
            "window_s": _span(each.get("window_s"), 3),
            "steps": _span(each.get("steps"), 6),
            "excluded_steps": _span(each.get("excluded_steps"), 6),
            "precision": f"{each['precision']}",
            "reduction": f"{each['reduction']}",
            "settings": "stock" if each["stock_settings"] else "shipped",
        }
        for each in provenance["measurement"]
    ]


def _span(ends: Sequence[float | None] | None, digits: int) -> str:
    if ends is None or ends[0] is None or ends[1] is None:
        return NOTHING
    low, high = (f"{end:.0f}" if float(end).is_integer() else rounded(end, digits) for end in ends if end is not None)
    return low if low == high else f"{low} to {high}"


def static(suffix: str) -> str:
    """Return the files of page/static with this suffix as one text, in the order of their names."""
    found = [
        each for each in files("horovod_study.report.page").joinpath("static").iterdir() if each.name.endswith(suffix)
    ]
    return "\n".join(each.read_text(encoding="utf-8") for each in sorted(found, key=lambda each: each.name))
