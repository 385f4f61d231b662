"""report.html: one file that a person opens first and can send on; it needs no network and no other file.

The page is complete without its script: figures are inline SVG, tables are tables. The script (page/static) adds
points by keyboard and touch, downloads and the choice of light or dark; it makes its buttons itself, so that none is
there without it. Every *.js and *.css of page/static becomes part of the page.
"""

import base64
import hashlib
import html
import math
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from importlib.resources import files
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from horovod_study import __version__
from horovod_study.analysis.forecast.study_forecast import FEWEST_COUNTS, FORECAST
from horovod_study.analysis.series.points import REPORTED, baseline_words
from horovod_study.analysis.series.turns import ratios_are
from horovod_study.analysis.study import Analysis
from horovod_study.config.workload import packaged
from horovod_study.files import csv_of, write_file, writing
from horovod_study.records import COMMAND
from horovod_study.report.figures import convergence, resources
from horovod_study.report.figures.catalogue import drawings, write_figures
from horovod_study.report.grammar import Figure
from horovod_study.report.kit.interactive import css_name, inline, script_json
from horovod_study.report.kit.markup import by_series, to_html
from horovod_study.report.kit.style import DARK, SCREEN_WIDTH_IN, TEXT, FigureFormat, series_labels
from horovod_study.report.page.doubts import doubt_groups
from horovod_study.report.page.sentences import (
    ENVIRONMENT,
    base_of,
    headline,
    learned,
    no_speedup,
    outside,
    sentences,
    subheadline,
)
from horovod_study.report.page.tables import tables, write_tables
from horovod_study.report.page.waits import jumped, waiting
from horovod_study.text.numbers import THIN, milliseconds, number, percent, rounded, short_rate, with_interval
from horovod_study.text.tables import NOTHING, Cell, Column, Row, Table, row_of
from horovod_study.text.words import listed, plural

OPTIONS = packaged().options

PAIRED = ("speedup", "efficiency")
"""The two plots side by side under the headline."""

_WIDE_IN = 6.3

SYNCHRONISATION = ("synchronisation", "transport_ratio", "batch_size")
LEARNING = ("learning", "targets", "sensitivity")
"""The figures of the sections on synchronisation and on learning."""

_CLAIMED = (
    *(*PAIRED, "breakdown", "throughput"),
    *("boundary", "forecast", resources.NAME, *SYNCHRONISATION, *LEARNING),
)
"""Figures that a section shows; all others are in a section of their own."""

_SHORT_CLAIMED = (*(name for name in _CLAIMED if name != "throughput"), "losses")
"""The same of the page of a study whose series have too few worker counts for a law or a forecast."""

_WIDTHS_IN = {**dict.fromkeys(PAIRED, SCREEN_WIDTH_IN), "throughput": 5.0}
"""Widths at which figures are drawn for the page, where they differ from _WIDE_IN."""

MAX_CSV, MIN_CSV = 60_000, 15_000
"""Letters of a figure's data up to which the page carries it for download; beyond, it is in figures/ alone. The smaller
number holds where all figures together have more than MUCH_CSV: the page of a thousand runs shall stay below 5 MB."""
MUCH_CSV = 2_000_000

MAX_COMPARED = 40
"""Rows of the comparison with another study up to which its table is unfolded."""

MAX_ACCOUNTED = 100
"""Runs whose unexplained time the page lists; of more, those that do not add up and those with the largest gaps."""


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
    (analysis/against.py) that the page shows, too. With `second_process` another Python writes the
    figures of a study of many points meanwhile; the program must be one that can be imported without running
    (`__main__` guard).
    Raises RecordError when the directory cannot be written.
    """
    page, figures = directory / "report.html", directory / "figures"
    with ExitStack() as stack:
        drawn = None
        if second_process and len(analysis.points) >= 30:  # drawing then takes longer than starting a second Python
            # Not forked: other libraries' threads may hold locks at this moment.
            pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
            drawn = pool.submit(write_figures, analysis, figures, look=look, pgf=pgf)
        text = render(analysis, against=against)
        tables = write_tables(analysis, directory / "tables")
        written = write_figures(analysis, figures, look=look, pgf=pgf) if drawn is None else drawn.result()
    with writing(page, "choose a writable folder"):
        write_file(page, text)  # last: a new page stands for new figures and tables
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
    scaled = analysis.points[analysis.points["mode"] != "single"]
    settings = scaled["setting"].nunique()
    works = scaled.drop_duplicates("setting").groupby("work", sort=False)["setting"]
    # With little to say, some point of several workers and no series with a law or forecast, a page has the answer,
    # where the time goes, the points, doubts and how it was measured; the rest is folded.
    parallel = analysis.points[(analysis.points["backend"] != "serial") & ~analysis.points["missing"].astype(bool)]
    several = parallel.groupby("series")["workers"].nunique()
    single = parallel["setting"].nunique() == 1 and analysis.boundary.empty
    short = bool(len(several) and single and 1 < parallel["workers"].max() and several.max() < FEWEST_COUNTS)
    figures = _figures(drawings(analysis), dict.fromkeys(PAIRED, _WIDE_IN) if settings > 1 else {})
    script = static(".js")
    labels = series_labels(analysis.points)
    made = {table.name: table for table in tables(analysis)}
    provenance, counts = analysis.provenance, analysis.points["workers"].nunique()
    doubts = doubt_groups(provenance["doubts"], labels)
    return dict(  # noqa: C408
        title=f"Scaling of {', '.join(provenance['studies'])}",
        eyebrow=_eyebrow(provenance),
        headline=headline(analysis),
        subheadline=subheadline(analysis),
        outside=outside(analysis),
        policy=_policy(script),
        script=Markup(script),
        sheet=Markup(static(".css")),
        findings=sentences(analysis),
        ratios_are=ratios_are(analysis.points),
        tiles=_tiles(analysis, labels),
        stacked=settings > 1,
        paired=[figures[name] for name in PAIRED if name in figures],
        no_speedup=no_speedup(analysis),
        breakdown=figures.get("breakdown"),
        losses=figures.get("losses"),
        throughput=None if short else figures.get("throughput"),
        boundary=figures.get("boundary"),
        made=made,
        jumped=jumped(analysis),
        waiting=waiting(analysis),
        waiting_tables=[(title, made[name]) for name, title in _WAITING.items() if name in made],
        waiting_figures=[figures[name] for name in SYNCHRONISATION if name in figures],
        ahead=figures.get("forecast"),
        without_forecast=_without_forecast(analysis, labels),
        learning=[figures[name] for name in LEARNING if name in figures],
        more=[figure for name, figure in figures.items() if name not in (_SHORT_CLAIMED if short else _CLAIMED)],
        short=short,
        without_laws="No law is fitted and nothing is forecast: every law passes through "
        f"{plural(counts, 'point')}. With {FEWEST_COUNTS} worker counts or more (sweep: workers in the study file) "
        "both are here.",
        reported=bool((analysis.points["backend"] == REPORTED).all()),
        commanded=bool((analysis.points["backend"] == COMMAND).all()),
        flat=convergence.is_flat(analysis.convergence),
        learned=learned(analysis),
        resources={"figure": figures.get(resources.NAME), "sentences": resources.sentences(analysis)},
        common=_common(provenance),
        base=baseline_words(
            analysis.points, provenance["baseline"], plain="one plain PyTorch worker without a communication library"
        ),
        # What each way of scaling keeps fixed, one sentence for the settings that share it.
        works=[f"{listed([str(setting) for setting in own])}: {work}" for work, own in works],
        growth=[(name, made[name]) for name in ("losttime", "losttime-plain", "losttime-wrapped") if name in made],
        accounts=_accounts(analysis, labels),
        closed=_closed(analysis),
        limits=[
            {
                "label": labels[series],
                "doubts": list(fit["doubts"]),
                "methods": list(dict.fromkeys(law["interval_method"] for law in fit["laws"].values())),
            }
            for series, fit in analysis.fits["series"].items()
        ],
        doubts=doubts,
        doubted=sum(len(group.doubts) for group in doubts),
        failures=len(provenance["failed"]),
        runs=provenance["runs"],
        environments=[
            {
                "runs": plural(each["runs"], "run"),
                "facts": [
                    (word, NOTHING if each.get(key) is None else f"{each[key]}") for key, word in ENVIRONMENT.items()
                ],
            }
            for each in provenance["environment"]
        ],
        commands=list(provenance["commands"]),
        compared=_compared(against),
        version=__version__,
        light=[(css_name(color), color) for color in DARK],
        dark=[(css_name(color), twin) for color, twin in DARK.items()],
        table=to_html,
    )


def _without_forecast(analysis: Analysis, labels: Mapping[str, str]) -> list[str]:
    """Return in a sentence for each reason which series have no forecast."""
    forecast_of = set(analysis.forecast.loc[analysis.forecast["kind"] == FORECAST, "series"])
    lacking: dict[str, list[str]] = {}
    for series, scored in analysis.holdout["series"].items():
        if series not in forecast_of:
            why = scored.get("no_forecast") or scored["why_not"] or "its points do not determine one"
            lacking.setdefault(why, []).append(labels[series])
    return [f"No forecast of {listed(list(dict.fromkeys(names)))}: {why}." for why, names in lacking.items()]


def _figures(made: Iterable[Figure], widths_in: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return figures by name, as templates show them; where they are many, fewer of them carry their data."""
    drawn = [(drawing, csv_of(drawing.data)) for drawing in made]
    most_csv = MAX_CSV if sum(len(rows) for _, rows in drawn) <= MUCH_CSV else MIN_CSV
    return {
        drawing.name: _figure(drawing, widths_in, rows if len(rows) <= most_csv else None) for drawing, rows in drawn
    }


_WAITING = {
    "synchronisation": "Per step, per epoch, and its share",
    "transports": "Backends compared, pair by pair",
    "knees": "Batch-size knees",
    "cycle": "How much of it is Horovod's cycle",
}
"""Tables of the section on synchronisation, with what opens them."""

_CONTENTS = (
    ("compared", "against", "Against the other study"),
    ("scaling", "scaling", "Scaling"),
    ("step", "step", "Inside a step"),
    ("boundary", "nodes", "Across nodes"),
    ("waiting", "synchronisation", "Synchronisation"),
    ("ahead", "forecast", "Forecast"),
    ("learning", "learning", "Learning"),
    ("resources", "resources", "Energy and hours"),
    ("points", "points", "All points"),
    ("laws", "laws", "Fitted laws"),
    ("more", "more-figures", "More figures"),
    ("doubts", "doubts", "Doubts"),
    ("method", "method", "How it was measured"),
    ("definitions", "definitions", "Definitions"),
    ("further", "further", "Further"),
)
"""What a section needs, its id and its title; a section without an entry for what it needs is always there."""


def _contents(page: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return ids and titles of the sections that this page has, in their order."""
    needs = {
        **{name: bool(page[name]) for name in ("compared", "learning", "more")},
        "boundary": "boundary" in page["made"],
        "resources": page["resources"]["figure"] is not None,
        "waiting": bool(page["waiting_tables"]),
        "ahead": "forecast" in page["made"] or "holdout" in page["made"] or bool(page["without_forecast"]),
        "further": page["short"],
    }
    if page["short"]:
        needs |= dict.fromkeys(("waiting", "ahead", "laws", "more", "definitions"), False)
    return [(place, title) for need, place, title in _CONTENTS if needs.get(need, True)]


def _compared(against: Any) -> dict[str, Any] | None:
    """Return what the section on the difference to another study shows; None without one."""
    if against is None:
        return None
    from horovod_study.report import against as compared

    told = {"headline": compared.headline(against), "texts": compared.texts(against), "doubts": against.doubts}
    short = len(against.differences) <= MAX_COMPARED
    figure = _figure(compared.figure(against), {}, None)
    return {**told, "before": against.names[1], "table": compared.table(against), "short": short, "figure": figure}


def _policy(script: str) -> str:
    """Return the rule that this page keeps: no request to anywhere, no script but its own."""
    own = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    rules = ("default-src 'none'", "style-src 'unsafe-inline'", f"script-src 'sha256-{own}'", "img-src data:")
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _figure(drawing: Figure, widths_in: Mapping[str, float], csv: str | None) -> dict[str, Any]:
    # The drawing is ours, but names of series are in it: matplotlib escapes them when it writes XML.
    label = html.escape(drawing.alt, quote=True)
    made = inline(drawing, width_in={**_WIDTHS_IN, **widths_in}.get(drawing.name, _WIDE_IN))
    svg = made.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return {
        "name": drawing.name,
        "title": drawing.title,
        "svg": Markup(svg),
        "caption": drawing.caption,
        "csv": None if csv is None else script_json(csv),
    }


def _eyebrow(provenance: Mapping[str, Any]) -> str:
    runs = plural(provenance["runs"]["total"], "run")
    words = [f"{runs} of {', '.join(provenance['studies'])}", f"on {', '.join(provenance['partitions'])}"]
    for moment in provenance["started"][:1]:
        try:
            when = datetime.fromisoformat(moment)
            words.append(f"{when.day} {when:%B %Y}")
        except ValueError:
            words.append(moment)
    return " \u00b7 ".join(words)


def _tiles(analysis: Analysis, labels: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the figures of the headline one by one, with what they are relative to."""
    findings = [found for found in analysis.provenance["findings"] if found["series"][0]["speedup"] is not None]
    if not findings:
        return None
    found = max(findings, key=lambda each: (each["workers"], each["series"][0]["speedup"]))
    best, step = found["series"][0], found["step"]
    several = len(analysis.provenance["partitions"]) > 1
    low, high = best["low"], best["high"]
    interval = (
        f"95{THIN}% interval {with_interval(best['speedup'], low, high).split(' ', 1)[1]}"
        if low is not None
        else f"{plural(best['repeats'], 'repeat')}, no interval"
    )
    tiles = [
        ("Speedup", f"{number(best['speedup'], low, high)}\u00d7", f"over {base_of(found)}; {interval}"),
        ("Efficiency", percent(best["efficiency"]), f"of {plural(found['workers'], 'ideal worker')}"),
        ("Throughput", rounded(best["samples_per_s"]), f"{analysis.rate_unit}, all workers together"),
    ]
    if step is not None and step["share"]["sync"] is not None:
        wait = (
            f"{milliseconds(step['share']['sync'] * step['step_s'])} of {milliseconds(step['step_s'])}{THIN}ms per step"
        )
        tiles.append(("Waiting for gradients", percent(step["share"]["sync"]), wait))
    what = f"{labels[best['series']]}, {plural(found['workers'], 'worker')}, {found['setting']}"
    told = several and found["partition"] != labels[best["series"]]  # of a table both are the name of the curve
    return {"what": f"{what}, {found['partition']}" if told else what, "tiles": tiles}


def _accounts(analysis: Analysis, labels: Mapping[str, str]) -> Table:
    """Return what no part of a step covers, from the rows of every step: one group of rows per series."""
    whole = analysis.accounting[analysis.accounting["rank"].isna()]
    doubtful = (whole["why_not"] != "") | (whole["open_steps"] > 0)
    worst = whole["residual_share_worst"].mask(doubtful, math.inf)
    worth = worst.rank(method="first", ascending=False, na_option="top")

    def share(row: Row, name: str) -> str:
        value = row[f"residual_share_{name}"]
        return percent(value, decimals=2) if math.isfinite(value) else NOTHING

    def run(row: Row) -> Cell:
        doubts = [] if row["state"] == "done" else [f"{row['state']}"]
        return Cell(f"{row['run']}".rpartition("/")[2], doubts=doubts, code=True)

    columns = (
        Column(head="Workers", names=True, cell=lambda row: f"{row['workers']:.0f}"),
        Column(head="Run", number=False, cell=run),
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
        groups=by_series(whole[worth <= MAX_ACCOUNTED], cells, lambda series, _: Cell(labels.get(series, series))),
    )


def _closed(analysis: Analysis) -> str:
    """Return in sentences whether the recorded steps add up, and which runs the table of them leaves out."""
    table = analysis.accounting
    ranks, runs = table[table["rank"].notna() & (table["why_not"] == "")], int(table["rank"].isna().sum())
    rest = (
        f" Of {runs:,} runs the {MAX_ACCOUNTED} are listed that do not add up or have the largest gaps; accounting.csv "
        "has all."
        if runs > MAX_ACCOUNTED
        else ""
    )
    if ranks.empty:
        return rest.strip()
    steps, wrong = int(ranks["steps"].sum()), int(ranks["open_steps"].sum())
    checked = f"The parts of {plural(steps, 'recorded step')} were added up, rank by rank"
    verdict = "all of them add up" if wrong == 0 else f"{wrong} do{'es' if wrong == 1 else ''} not add up"
    gap = f"the largest gap between a step and its parts is {float(ranks['gap_s'].max()) * 1e6:.2g}{THIN}\u00b5s"
    return f"{checked}: {verdict}; {gap}.{rest}"


def _common(provenance: Mapping[str, Any]) -> str:
    """Return the options of training that all runs share, in one line."""
    common = provenance.get("learning", {})
    return ", ".join(
        f"{each.short_title} {short_rate(common[name]) if name == 'lr' else common[name]}"
        for name, each in OPTIONS.items()
        if each.short_title and name in common
    )


def static(suffix: str) -> str:
    """Return the files of page/static with this suffix as one text, in the order of their names."""
    found = [
        each for each in files("horovod_study.report.page").joinpath("static").iterdir() if each.name.endswith(suffix)
    ]
    return "\n".join(each.read_text(encoding="utf-8") for each in sorted(found, key=lambda each: each.name))
