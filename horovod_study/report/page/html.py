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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from importlib.resources import files
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from horovod_study import __version__
from horovod_study.analysis.breakdown import shown
from horovod_study.analysis.laws import LAWS, law_label
from horovod_study.analysis.study import Analysis
from horovod_study.errors import RecordError
from horovod_study.files import csv_of, not_written, write_file
from horovod_study.report.figures import boundary, forecast, resources, synchronisation
from horovod_study.report.figures.catalogue import drawings, write_figures
from horovod_study.report.kit.drawing import Drawing
from horovod_study.report.kit.interactive import css_name, inline, script_json
from horovod_study.report.kit.markup import against_baseline, by_series, to_html
from horovod_study.report.kit.style import DARK, LAPS, SCREEN_WIDTH_IN, TEXT, FigureFormat, series_labels
from horovod_study.report.page import run_pages
from horovod_study.report.page.sentences import ENVIRONMENT, headline, learned, sentences, subheadline
from horovod_study.report.page.tables import tables, write_tables
from horovod_study.text.numbers import (
    MINUS,
    THIN,
    milliseconds,
    number,
    percent,
    rounded,
    scientific,
    short_rate,
    signed,
    with_interval,
)
from horovod_study.text.tables import NOTHING, Cell, Column, Group, Row, Table, row_of
from horovod_study.text.words import listed, plural
from horovod_study.workloads import packaged

OPTIONS = packaged().options

PAIRED = ("speedup", "efficiency")
"""The two plots side by side under the headline."""

WIDE_IN = 6.3

LEARNING = ("learning", "targets", "sensitivity")
"""The figures of the section on learning."""

CLAIMED = (
    *(*PAIRED, "breakdown", "throughput"),
    *(boundary.NAME, forecast.NAME, resources.NAME, *synchronisation.NAMES, *LEARNING),
)
"""Figures that a section shows; all others are in a section of their own."""

WIDTHS_IN = {**dict.fromkeys(PAIRED, SCREEN_WIDTH_IN), "throughput": 5.0}
"""Widths at which figures are drawn for the page, where they differ from WIDE_IN."""

MAX_CSV, MIN_CSV = 60_000, 15_000
"""Letters of a figure's data up to which the page carries it for download; beyond, it is in figures/ alone. The smaller
number holds where all figures together have more than MUCH_CSV: the page of a thousand runs shall stay below 5 MB."""
MUCH_CSV = 2_000_000

MAX_ACCOUNTED = 100
"""Runs whose unexplained time the page lists; of more, those that do not add up and those with the largest gaps."""

MANY_POINTS = 30
"""From so many points on, drawing takes longer than starting a second Python."""

"""In a cell that has no value: unknown is not zero."""


def write_report(
    analysis: Analysis,
    directory: Path,
    *,
    look: FigureFormat = TEXT,
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
    page = _page(analysis, against)
    text = environment.get_template("report.html.j2").render(**page, contents=_contents(page))
    # The indentation of thousands of rows is a part of the page that nobody sees.
    return re.sub(r"<table\b.*?</table>", lambda table: re.sub(r"\n\s+", "\n", table[0]), text, flags=re.DOTALL)


def _page(analysis: Analysis, against: Any) -> dict[str, Any]:
    """Return what the template shows, by the names that it uses: one entry each, which is why this is long."""
    settings = analysis.points.loc[analysis.points["mode"] != "single", "setting"].nunique()
    figures = _figures(analysis, dict.fromkeys(PAIRED, WIDE_IN) if settings > 1 else {})
    script = static(".js")
    labels = series_labels(analysis.points)
    heading = _heading(analysis, labels)
    provenance = analysis.provenance
    return dict(  # noqa: C408
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
            "table": resources.table(analysis),
            "sentences": resources.sentences(analysis),
        },
        common=_common(provenance),
        baseline=provenance["baseline"],
        works=_works(analysis),
        points=_points(analysis, labels),
        parts=_parts(analysis, heading),
        growth=[(kind, _growth(analysis, heading, kind)) for kind in ("plain", "wrapped")],
        accounts=_accounts(analysis, labels),
        closed=" ".join(each for each in (_closed(analysis), _left_out(analysis)) if each),
        fits=_fits(analysis, labels),
        limits=_limits(analysis, labels),
        doubts=_gathered(provenance["doubts"], set(analysis.points["series"])),
        failed=_failed(provenance, labels),
        failures=len(provenance["failed"]),
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
        table=to_html,
    )


def _figures(analysis: Analysis, widths_in: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return the figures of the study by name; where they are many, fewer of them carry their data."""
    drawn = [(drawing, csv_of(drawing.data)) for drawing in drawings(analysis)]
    most_csv = MAX_CSV if sum(len(rows) for _, rows in drawn) <= MUCH_CSV else MIN_CSV
    return {
        drawing.name: _figure(drawing, widths_in, rows if len(rows) <= most_csv else None) for drawing, rows in drawn
    }


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
        **{name: bool(page[name]) for name in ("compared", "learning", "more", "run_pages")},
        **{name: bool(page[name].groups) for name in ("jumps", "foretold")},
        "waiting": bool(page["waiting"]["shown"]),
        "energy": bool(page["resources"]["table"].groups),
    }
    return [(place, title) for need, place, title in _CONTENTS if needs.get(need, True)]


def _compared(against: Any) -> dict[str, Any] | None:
    """Return what the section on the difference to another study shows; None without one."""
    if against is None:
        return None
    from horovod_study.report.figures import against as compared

    figures = [
        _figure(drawing, {}, rows if len(rows) <= MAX_CSV else None)
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
    # The drawing is ours, but names of series are in it: matplotlib escapes them when it writes XML.
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


def _heading(analysis: Analysis, labels: Mapping[str, str]) -> Callable[[str, pd.DataFrame], Cell]:
    """Return what makes the title of a series: its label, and below it its setting."""
    setting = analysis.points.drop_duplicates("series").set_index("series")["setting"]
    return lambda series, _: Cell(labels[series], f"{setting[series]}")


def _points(analysis: Analysis, labels: Mapping[str, str]) -> Table:
    """Return the table of points: one group of rows per series."""
    share = analysis.breakdown[analysis.breakdown["lap"] == "sync"].set_index(["series", "workers", "nodes"])["share"]

    def repeats(row: Row) -> str:
        return Cell(f"{row['repeats']}", doubts=[f"{row['failed']:.0f} failed"] if row["failed"] else ())

    def throughput(row: Row) -> str:
        interval = _pair(row["samples_per_s_ci95_low"], row["samples_per_s_ci95_high"], rounded)
        spread = _pair(row["samples_per_s_min"], row["samples_per_s_max"], rounded, dash=True)
        return Cell(rounded(row["samples_per_s_median"]), interval, spread)

    columns = (
        _WORKERS,
        Column(head="Repeats", cell=repeats),
        Column(head="Throughput", unit="samples/s", strong=True, cell=throughput),
        Column(head="Step, median", unit="ms", cell=lambda row: milliseconds(row["step_s_median"])),
        Column(head="Speedup\nover plain", strong=True, cell=lambda row: _ratio(row, "speedup_plain")),
        Column(head="Speedup\nover wrapped", cell=lambda row: _ratio(row, "speedup_wrapped")),
        Column(
            head="Efficiency\nplain / wrapped",
            cell=lambda row: Cell(_share(row["efficiency_plain"]), _share(row["efficiency_wrapped"])),
        ),
        Column(
            head="Waiting,\nshare of step",
            cell=lambda row: _share(share.get((row["series"], row["workers"], row["nodes"]), math.nan)),
        ),
        Column(head="Karp-Flatt\nfraction", cell=lambda row: _known(row["karp_flatt"], number)),
    )

    def cells(row: Row) -> tuple[str, ...]:
        if not row["missing"]:
            return row_of(columns, row)
        return _count(row), Cell(f"no result: {row['reasons']}", columns=len(columns) - 1, warning=True)

    def heading(series: str, rows: pd.DataFrame) -> Cell:
        first = rows.iloc[0]
        mode = "" if first["mode"] == "single" else f", {first['mode']} scaling"
        return Cell(labels[series], f"{first['setting']}{mode}")

    return Table(
        name="points",
        caption="Medians over repeats; below them the 95 % interval, and for the throughput also slowest to fastest "
        "repeat",
        columns=columns,
        groups=by_series(analysis.points, cells, heading),
    )


def _count(row: Row) -> str:
    if not math.isfinite(row["nodes"]) or row["nodes"] == 1:
        return f"{row['workers']:.0f}"
    return f"{row['workers']:.0f} on {row['nodes']:.0f} nodes"


_WORKERS = Column(head="Workers", names=True, cell=_count)


def _pair(low: float, high: float, form: Callable[[float], str], *, dash: bool = False) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{form(low)} to {form(high)}" if dash else f"[{form(low)}, {form(high)}]"


def _ratio(row: Row, name: str) -> Cell:
    return against_baseline(*(row[f"{name}{end}"] for end in ("", "_low", "_high")))


def _share(value: float) -> str:
    return percent(value) if math.isfinite(value) else NOTHING


def _laps(
    analysis: Analysis,
    heading: Callable[[str, pd.DataFrame], Cell],
    *,
    name: str,
    caption: str,
    head: str,
    whole: Callable[[Row], str],
    part: Callable[[Row], str],
    least: int = 1,
) -> Table:
    """Return a table of the step and its parts in ms; cells without a number for the step are left out."""
    laps = shown(analysis.breakdown, tuple(LAPS))
    words = [{"sync": "waiting", "compute": "compute"}.get(lap, LAPS[lap].label) for lap in laps]
    groups = []
    for series, own in analysis.breakdown[analysis.breakdown["workers"] >= least].groupby("series", sort=False):
        rows = []
        for _, cell in own.groupby(["workers", "nodes"], sort=True):
            by_lap = {row["lap"]: row for row in cell.to_dict("records")}
            if step := whole(by_lap["step"]):
                rows.append((_count(by_lap["step"]), step, *(part(by_lap[lap]) for lap in laps)))
        if rows:
            groups.append(Group(title=heading(f"{series}", own), rows=tuple(rows)))
    columns = (
        _WORKERS,
        Column(head=head, unit="ms", strong=True),
        *(Column(head=each, unit="ms") for each in words),
    )
    return Table(name=name, caption=caption, columns=columns, groups=tuple(groups))


def _parts(analysis: Analysis, heading: Callable[[str, pd.DataFrame], Cell]) -> Table:
    """Return the mean time of each part of a step in ms: the numbers behind the bars."""

    def whole(row: Row) -> str:
        low, high = (row.get(name, math.nan) for name in ("min_s", "max_s"))
        return Cell(
            milliseconds(row["mean_s"]), _pair(low, high, milliseconds, dash=True) if row["repeats"] > 1 else ""
        )

    def part(row: Row) -> str:
        if not math.isfinite(row["mean_s"]):
            return Cell(NOTHING, f"{row['note']}")
        return Cell(milliseconds(row["mean_s"]), percent(row["share"]))

    return _laps(
        analysis,
        heading,
        name="parts",
        caption="Mean time per step by part, over the timed window, all workers and all repeats; below the step its "
        "lowest and highest repeat",
        head="Step",
        whole=whole,
        part=part,
    )


def _growth(analysis: Analysis, heading: Callable[[str, pd.DataFrame], Cell], kind: str) -> Table:
    """Return how much longer than its one-worker baseline each step is, in ms by part."""

    def form(seconds: float) -> str:
        return signed(milliseconds(seconds))

    def whole(row: Row) -> str:
        if not math.isfinite(row[f"minus_{kind}_s"]):
            return ""
        low, high = (row.get(f"minus_{kind}_{end}_s", math.nan) for end in ("low", "high"))
        return Cell(form(row[f"minus_{kind}_s"]), _pair(low, high, form))

    def part(row: Row) -> str:
        if not math.isfinite(row[f"minus_{kind}_s"]):
            return Cell(NOTHING, f"{row['note']}" if not math.isfinite(row["mean_s"]) else "")
        share = row[f"growth_{kind}"]
        return Cell(form(row[f"minus_{kind}_s"]), percent(share, decimals=0) if math.isfinite(share) else "")

    return _laps(
        analysis,
        heading,
        name=f"growth-{kind}",
        caption=f"What more workers add to a step, over one {kind} worker: T(N) \u2212 T(1), and the share of each "
        "part in it",
        head="Together",
        whole=whole,
        part=part,
        least=2,
    )


def _accounts(analysis: Analysis, labels: Mapping[str, str]) -> Table:
    """Return what no part of a step covers, from the rows of every step: one group of rows per series."""
    whole = analysis.accounting[analysis.accounting["rank"].isna()]

    def share(row: Row, name: str) -> str:
        return _known(row[f"residual_share_{name}"], lambda value: percent(value, decimals=2))

    columns = (
        Column(head="Workers", names=True, cell=lambda row: f"{row['workers']:.0f}"),
        Column(
            head="Run",
            number=False,
            cell=lambda row: Cell(
                f"{row['run']}".rpartition("/")[2],
                doubts=[] if row["state"] == "done" else [f"{row['state']}"],
                code=True,
            ),
        ),
        Column(head="Steps", cell=lambda row: f"{row['steps']:.0f}"),
        Column(head="Left out", cell=lambda row: f"{row['excluded']:.0f}"),
        Column(head="Mean", cell=lambda row: share(row, "mean")),
        Column(head="Median", cell=lambda row: share(row, "median")),
        Column(head="99 %", cell=lambda row: share(row, "p99")),
        Column(
            head="Worst",
            cell=lambda row: Cell(share(row, "worst"), f"step {row['worst_step']:.0f}, rank {row['worst_rank']:.0f}"),
        ),
        Column(head="Not\nclosed", cell=lambda row: f"{row['open_steps']:.0f}"),
    )

    def cells(row: Row) -> tuple[str, ...]:
        if not row["why_not"]:
            return row_of(columns, row)
        return *row_of(columns[:4], row), Cell(f"{row['why_not']}", columns=len(columns) - 4, warning=True)

    return Table(
        name="account",
        caption="Unexplained share of the step: all of it over all time, then of single steps: median, 99 % quantile, "
        "worst. Steps before the timed window are left out here and kept in the rows",
        columns=columns,
        groups=by_series(whole[_accounted(whole)], cells, lambda series, _: Cell(labels.get(series, series))),
    )


def _accounted(whole: pd.DataFrame) -> pd.Series:
    """Return which runs, one per row of `whole`, the page lists."""
    doubtful = (whole["why_not"] != "") | (whole["open_steps"] > 0)
    worth = (
        whole["residual_share_worst"].mask(doubtful, math.inf).rank(method="first", ascending=False, na_option="top")
    )
    return worth <= MAX_ACCOUNTED


def _left_out(analysis: Analysis) -> str:
    """Return in one sentence which runs the table of unexplained time leaves out."""
    runs = int(analysis.accounting["rank"].isna().sum())
    if runs <= MAX_ACCOUNTED:
        return ""
    return (
        f"Of {runs:,} runs the {MAX_ACCOUNTED} are listed that do not add up or have the largest gaps; accounting.csv "
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
    verdict = "all of them add up" if wrong == 0 else f"{wrong} do{'es' if wrong == 1 else ''} not add up"
    gap = f"the largest gap between a step and its parts is {float(ranks['gap_s'].max()) * 1e6:.2g}{THIN}\u00b5s"
    return f"{checked}: {verdict}; {gap}."


_GREEK = {"alpha": "\u03b1", "beta": "\u03b2", "gamma": "\u03b3"}


def _fits(analysis: Analysis, labels: Mapping[str, str]) -> Table:
    """Return the table of fitted laws: one group of rows per series."""
    groups = []
    for series, fit in analysis.fits["series"].items():
        rows = []
        for name, law in fit["laws"].items():
            params = [
                f"{_GREEK.get(param, param)} = {with_interval(value, *law['ci95'][param])}"
                for param, value in law["params"].items()
            ]
            formula = _formula(law.get("formula") or (LAWS[name].formula if name in LAWS else ""))
            rows.append(
                (
                    Cell(law_label(name), formula, tag="selected" if name == fit["selected"] else ""),
                    "\n".join(params),
                    number(law["rmse"]) if law["rmse"] is not None else NOTHING,
                    f"{law['aicc']:.1f}".replace("-", MINUS) if law["aicc"] is not None else NOTHING,
                )
            )
        groups.append(Group(title=Cell(labels[series], fit["baseline"]), rows=tuple(rows)))
    return Table(
        name="laws",
        caption="Parameters with 95 % intervals",
        columns=(
            Column(head="Law", number=False, names=True),
            Column(head="Parameters", number=False),
            Column(head="RMSE"),
            Column(head="AICc"),
        ),
        groups=tuple(groups),
    )


def _limits(analysis: Analysis, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return of each series what limits its fits, and how their intervals were made."""
    return [
        {
            "label": labels[series],
            "doubts": list(fit["doubts"]),
            "methods": list(dict.fromkeys(law["interval_method"] for law in fit["laws"].values())),
        }
        for series, fit in analysis.fits["series"].items()
    ]


def _formula(text: str) -> str:
    for name, letter in _GREEK.items():
        text = text.replace(name, letter)
    return text.replace(" - ", " \u2212 ")


# ---------------------------------------------------------------------------------------------------- learning


def _learned(analysis: Analysis, labels: Mapping[str, str]) -> Table:
    """Return the table of the best errors: one group of rows per series."""

    def error(value: float) -> str:
        return scientific(value, 3)

    def exponent(value: float) -> str:
        return f"{value:.2f}".replace("-", MINUS)

    columns = (
        _WORKERS,
        Column(
            head="Repeats",
            cell=lambda row: Cell(
                f"{row['repeats']}", doubts=[f"{row['diverged']:.0f} diverged"] if row["diverged"] else ()
            ),
        ),
        Column(
            head="Best\ntest MSE",
            strong=True,
            cell=lambda row: Cell(
                _known(row["best_mse_median"], error),
                _pair(row["best_mse_min"], row["best_mse_max"], error, dash=True),
            ),
        ),
        Column(head="Efficiency", cell=lambda row: _share(row["efficiency"])),
        Column(head="After\nepochs", cell=lambda row: _known(row["best_epoch"], lambda value: f"{value:.3g}")),
        Column(head="After training", unit="s", cell=lambda row: _known(row["best_train_s"], _three)),
        Column(
            head="Rate",
            cell=lambda row: Cell(_known(row["rate"], exponent), _pair(row["rate_low"], row["rate_high"], exponent)),
        ),
    )
    return Table(
        name="learned",
        caption="Best test MSE: the median run, and lowest to highest repeat. Efficiency = statistical floor / MSE. "
        "Rate r: test MSE falls as samples to the power \u2212r, with its 95 % interval",
        columns=columns,
        groups=by_series(analysis.learning, partial(row_of, columns), _own_setting(labels)),
    )


def _targets(analysis: Analysis, labels: Mapping[str, str]) -> Table:
    """Return the table of times to target: one group of rows per series."""

    def seconds(row: Row) -> str:
        spread = _pair(row["train_s_min"], row["train_s_max"], _three, dash=True)
        return Cell(_time(row, "train_s"), "at the first evaluation or before" if row["note"] else spread)

    columns = (
        Column(head="Target\ntest MSE", names=True, cell=lambda row: scientific(row["target_mse"])),
        Column(head="Workers", cell=_count),
        Column(head="Met by\nrepeats", cell=lambda row: f"{row['reached']} of {row['repeats']}"),
        Column(head="Training", unit="s", strong=True, cell=seconds),
        Column(head="With evaluation", unit="s", cell=lambda row: _time(row, "wall_s")),
        Column(head="Samples", cell=lambda row: _time(row, "samples")),
        Column(head="Speedup\nto target", strong=True, cell=_speedup_to_target),
        Column(head="Throughput\nratio", cell=lambda row: _known(row["throughput_ratio"], number)),
        Column(head="Statistical\nefficiency", cell=lambda row: _known(row["statistical_efficiency"], number)),
        Column(head="Speedup\nwith evaluation", cell=lambda row: _known(row["speedup_wall"], number)),
    )
    # The order of the series is that of the table, in which a series has its targets in any order.
    place = analysis.targets["series"].map({each: at for at, each in enumerate(analysis.targets["series"].unique())})
    rows = analysis.targets.assign(place=place).sort_values(
        ["place", "target_mse", "workers"], ascending=[True, False, True], kind="stable"
    )
    return Table(
        name="targets",
        caption="Time to target: the median run. Speedup = throughput ratio \u00d7 statistical efficiency, all over "
        f"one {analysis.provenance['baseline']} worker; > and < are before bounds from targets that were not met",
        columns=columns,
        groups=by_series(rows, partial(row_of, columns), _own_setting(labels)),
    )


def _own_setting(labels: Mapping[str, str]) -> Callable[[str, pd.DataFrame], Cell]:
    return lambda series, rows: Cell(labels[series], f"{rows.iloc[0]['setting']}")


def _three(value: float) -> str:
    return rounded(value, 3)


def _known(value: float, form: Callable[[float], str]) -> str:
    return form(value) if math.isfinite(value) else NOTHING


def _time(row: Row, name: str) -> str:
    if row["censored"]:
        return f">{THIN}{_three(row[f'{name}_at_least'])}"
    return _three(row[name])


def _speedup_to_target(row: Row) -> str:
    """Return the speedup to a target, or what bounds it, with its interval below it."""
    if math.isfinite(row["speedup_at_most"]):
        return Cell(f"<{THIN}{number(row['speedup_at_most'])}", "target not met")
    if math.isfinite(row["speedup_at_least"]):
        return Cell(f">{THIN}{number(row['speedup_at_least'])}", "not met by the baseline")
    return _ratio(row, "speedup")


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


def _failed(provenance: Mapping[str, Any], labels: Mapping[str, str]) -> Table:
    columns = (
        Column(head="Run", number=False, names=True, cell=lambda row: Cell(f"{row['run']}", code=True)),
        Column(head="Series", number=False, cell=lambda row: labels.get(row["series"], row["series"])),
        Column(head="Workers", cell=lambda row: "?" if row["workers"] is None else f"{row['workers']}"),
        Column(head="Repeat", cell=lambda row: f"{row['repeat']}"),
        Column(head="Status", number=False, cell=lambda row: f"{row['status']}"),
        Column(head="Reason", number=False, cell=lambda row: f"{row['reason']}"),
    )
    rows = tuple(row_of(columns, row) for row in provenance["failed"])
    caption = "No values were substituted"
    return Table(name="failed", caption=caption, columns=columns, groups=(Group(title="", rows=rows),) if rows else ())


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


def _measurement(provenance: Mapping[str, Any], labels: Mapping[str, str]) -> Table:
    columns = (
        Column(head="Series", number=False, names=True, cell=lambda row: labels.get(row["series"], row["series"])),
        Column(head="Precision", number=False, cell=lambda row: f"{row['precision']}"),
        Column(head="Gradients", number=False, cell=lambda row: f"{row['reduction']}"),
        Column(
            head="Communication settings",
            number=False,
            cell=lambda row: "stock" if row["stock_settings"] else "shipped",
        ),
        Column(head="Training set", unit="samples", cell=lambda row: _span(row["train_samples"], 6)),
        Column(head="Repeats\nper point", cell=lambda row: _span(row["repeats"], 6)),
        Column(head="Timed window", unit="s", cell=lambda row: _span(row.get("window_s"), 3)),
        Column(head="Timed\nsteps", cell=lambda row: _span(row.get("steps"), 6)),
        Column(head="Steps left out\nbefore it", cell=lambda row: _span(row.get("excluded_steps"), 6)),
    )
    rows = tuple(row_of(columns, row) for row in provenance["measurement"])
    caption = "Per series, smallest to largest value over its runs"
    return Table(name="measurement", caption=caption, columns=columns, groups=(Group(title="", rows=rows),))


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
