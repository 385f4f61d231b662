"""report.html: one file that a person opens first and can send on; it needs no network and no other file.

The page is an answer and SECTIONS, all of one make: sentences, figures, tables. It is complete without its script
(page/static): figures are inline SVG.
"""

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from markupsafe import Markup

from horovod_study import __version__
from horovod_study.analysis.forecast.recommendation import FORECAST
from horovod_study.analysis.series.points import REPORTED, ratios_are
from horovod_study.analysis.study import Analysis
from horovod_study.config.workload import packaged
from horovod_study.files import csv_of, write_file, writing
from horovod_study.records import COMMAND
from horovod_study.report import against as compared
from horovod_study.report.figures import convergence
from horovod_study.report.figures.catalogue import drawings, write_figures
from horovod_study.report.grammar import Figure, css_name, inline, script_json
from horovod_study.report.kit.files import TEMPLATES, page_file, to_html
from horovod_study.report.kit.style import DARK, SCREEN_WIDTH_IN, series_labels
from horovod_study.report.page.tables import (
    headline,
    learned,
    outside,
    sentences,
    subheadline,
    tables,
    told_doubts,
    write_tables,
)
from horovod_study.text.numbers import THIN, fixed, short_rate
from horovod_study.text.tables import Column, Group, Table
from horovod_study.text.words import listed, plural

OPTIONS = packaged().options

MAX_CSV = 60_000  # letters of a figure's data for download; beyond, its button leads to figures/
MAX_ROWS = 32  # of a table in sight

SECTIONS = {
    "against": ("Against the other study", "", "against", ""),
    "scaling": ("Scaling", "speedup efficiency", "", ""),
    "step": ("Inside a step", "breakdown losses", "", "losttime breakdown"),
    "nodes": ("Across nodes", "boundary", "", "boundary"),
    "synchronisation": (
        *("Synchronisation", "synchronisation transport_ratio batch_size", ""),
        "synchronisation transports knees cycle",
    ),
    "forecast": ("Laws and forecast", "forecast", "", "forecast laws limits holdout workers"),
    "learning": ("Learning", "learning targets", "", "targets learning"),
    "resources": ("Energy and hours", "resources", "", "resources"),
    "doubts": ("Doubts", "", "doubts failed", ""),
    "points": ("All points, and how they were measured", "", "points measurement", "environment commands"),
}
"""What follows the answer, in its order, by id: title, and the names of its figures, of its tables in sight and folded.

A table of more than MAX_ROWS rows is folded, too, but for the doubts; where nothing is in sight, the first of the
others is. The last one has, folded, the figures that no section shows."""


def write_report(
    analysis: Analysis, directory: Path, *, against: Any = None, second_process: bool = False, **how: Any
) -> list[Path]:
    """Write report.html, the files of its figures (figures/) and of its tables (tables/); return the paths, page first.

    `against`: a comparison with another study (analysis/against.py) that the page shows, too. With `second_process`
    another Python writes the figures of many points meanwhile; the program must be one that can be imported without
    running. `how`: `look` as `write_figures` takes it. Raises RecordError where nothing can be written.
    """
    page, figures = directory / "report.html", directory / "figures"
    with ExitStack() as stack:
        drawn = None
        if second_process and len(analysis.points) >= 30:  # drawing then takes longer than starting a second Python
            # Not forked: other libraries' threads may hold locks at this moment.
            pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
            drawn = pool.submit(write_figures, analysis, figures, share=(0, 2), **how)
        made = tables(analysis)
        text = render(analysis, against=against, printed=made)
        files = write_tables(made, directory / "tables")
        written = write_figures(analysis, figures, share=(2, 3) if drawn else (0, 3), **how)
        written = [*(drawn.result() if drawn else ()), *written]
    with writing(page, "choose a writable folder"):
        write_file(page, text)  # last: a new page stands for new figures and tables
    return [page, *written, *files]


def render(analysis: Analysis, *, against: Any = None, printed: Sequence[Table] | None = None) -> str:
    """Return the page as text; equal analyses give equal pages. `printed`: its tables, where they are made already."""
    labels, printed = series_labels(analysis.points), tables(analysis) if printed is None else printed
    figures = {each.name: _figure(each) for each in drawings(analysis)}
    made = {each.name: each for each in (*printed, *_own_tables(analysis, labels, against)) if each.groups}
    script, provenance = page_file("static/report.js"), analysis.provenance
    own = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    # No request to anywhere, no script but its own.
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{own}'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    text = TEMPLATES.get_template("report.html.j2").render(
        title=f"Scaling of {', '.join(provenance['studies'])}",
        eyebrow=[
            f"{plural(provenance['runs']['total'], 'run')} of {', '.join(provenance['studies'])}",
            f"on {', '.join(provenance['partitions'])}",
            *(f"{moment:.10}" for moment in provenance["started"][:1]),
        ],
        headline=headline(analysis),
        under=[text for text in (subheadline(analysis), outside(analysis)) if text],
        findings=sentences(analysis),
        ratios_are=ratios_are(analysis.points),
        doubts=len(told_doubts(analysis)),
        failures=len(provenance["failed"]),
        sections=_sections(analysis, figures, made, _leads(analysis, figures, made, labels, against)),
        most=4,
        files=[(table.name, table.title) for table in printed],
        policy=policy,
        script=Markup(script),
        sheet=Markup(page_file("static/report.css")),
        version=__version__,
        light=[(css_name(color), color) for color in DARK],
        dark=[(css_name(color), twin) for color, twin in DARK.items()],
    )
    # The indentation of thousands of rows is a part of the page that nobody sees.
    return re.sub(r"<table\b.*?</table>", lambda table: re.sub(r"\n\s+", "\n", table[0]), text, flags=re.DOTALL)


def _sections(
    analysis: Analysis, drawn: Mapping[str, Any], made: Mapping[str, Table], leads: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Return the sections that this study has, as the template shows them."""
    rest, found = set(drawn).difference(*(figures.split() for _, figures, *_ in SECTIONS.values())), []
    for place, (title, *names) in SECTIONS.items():
        own_figures, in_front, folded = (each.split() for each in names)
        figures, more = ([drawn[name] for name in drawn if name in own] for own in (own_figures, rest))
        tables = [made[name] for name in (*in_front, *folded) if name in made]
        lead = leads.get(place, ())
        if figures or ((tables or lead) and place not in ("learning", "resources")):
            first = [] if figures or any(table.name in in_front for table in tables) else tables[:1]
            shown = []  # what each table is folded under, empty where it is in sight, and the table
            for table in tables:
                rows = sum(len(group.rows) for group in table.groups)
                kind = "broad" if any(group.title for group in table.groups) else "flat"
                heading = {"against": "Metric", "environment": "Runs"}.get(table.name, "Series")
                in_sight = (table.name in in_front or table in first) and (rows <= MAX_ROWS or table.name == "doubts")
                shown.append(("" if in_sight else table.title, to_html(table, groups=heading, kind=kind)))
            told = {"lead": lead, "figures": figures, "more": more if place == "points" else [], "tables": shown}
            found.append({"place": place, "title": title, **told})
    return found


def _figure(drawing: Figure) -> dict[str, Any]:
    """Return a figure as the template shows it."""
    # The drawing is ours, but names of series are in it: matplotlib escapes them when it writes XML.
    label, rows = html.escape(drawing.alt, quote=True), csv_of(drawing.data)
    longest = max((len(look.label) for look in drawing.looks.values()), default=0)
    svg = inline(drawing, width_in=SCREEN_WIDTH_IN if longest <= 60 else 6.3)  # beyond, the legend needs the page
    return {
        "name": drawing.name,
        "title": drawing.title,
        "svg": Markup(svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)),
        "caption": drawing.caption,
        "csv": script_json(rows) if len(rows) <= MAX_CSV else None,
    }


def _leads(
    analysis: Analysis, drawn: Mapping[str, Any], made: Mapping[str, Table], labels: Mapping[str, str], against: Any
) -> dict[str, Sequence[str]]:
    """Return what each section says first, by its id."""
    passed = "All checks passed: three repeats, spreads of 10 % at most, baselines, no failed runs, steps that add up."
    backends, counts = set(analysis.points["backend"]), analysis.provenance["runs"]
    states = [f"{count} of {counts['total']} runs {state}" for state, count in counts.items() if state != "total"]
    method = [f"{_HOW.get(backends.pop() if len(backends) == 1 else '', _HOW[''])} {', '.join(states)}."]
    if convergence.is_flat(analysis.convergence):
        said = "Learning curves are left out: no test error fell by a third; longer runs (seconds, epochs) have some."
        method.append(said)
    common = analysis.provenance.get("learning", {})
    same = ", ".join(
        f"{each.short_title} {short_rate(common[name]) if name == 'lr' else common[name]}"
        for name, each in OPTIONS.items()
        if each.short_title and name in common
    )
    # Whether the recorded steps add up, and for each reason which series have no forecast.
    ranks = analysis.accounting[analysis.accounting["rank"].notna() & (analysis.accounting["why_not"] == "")]
    step = ["The parts of a step add up to it; what no part covers is shown as unexplained."]
    step = step if len(analysis.accounting) else ["No finished run recorded the parts of its steps."]
    if len(ranks):
        step.append(
            f"Of {fixed(ranks['steps'].sum(), 0)} recorded steps, added up rank by rank, "
            f"{ranks['open_steps'].sum():.0f} do not add up; the largest gap between a step and its parts is "
            f"{1e6 * ranks['gap_s'].max():.2g}{THIN}\u00b5s. Run by run: accounting.csv."
        )
    told, lacking = set(analysis.forecast.loc[analysis.forecast["kind"] == FORECAST, "series"]), dict[str, list[str]]()
    for series, scored in analysis.holdout["series"].items():
        if series not in told:
            why = scored.get("no_forecast") or scored["why_not"] or "its points do not determine one"
            lacking.setdefault(why, []).append(labels[series])
    withheld = [each["withheld"] for each in analysis.provenance["findings"] if each.get("withheld")]
    alone = "there is no point of several workers with a baseline"
    found: dict[str, Sequence[str]] = {
        "scaling": [] if "speedup" in drawn else [f"No speedup is drawn: {[*withheld, alone][0]}."],
        "step": step,
        "forecast": [f"No forecast of {listed([*dict.fromkeys(of)])}: {why}." for why, of in lacking.items()],
        "learning": [*learned(analysis), *([f"The same in all runs: {same}."] if same else [])],
        "doubts": [] if "doubts" in made else [passed],
        "points": method,
    }
    if against is not None:
        found["against"] = [f"{compared.headline(against)}.", *against.doubts, *compared.texts(against)]
    return found


_HOW = {
    REPORTED: "No run was recorded: the numbers are those of a table, which does not say how they were measured.",
    COMMAND: "Each run is a whole command, from its start to its end; no step was seen in it.",
    "": "Every worker trains on batches of its own. Warm-up steps, tests and writing are outside the timed window.",
}


def _own_tables(analysis: Analysis, labels: Mapping[str, str], against: Any) -> Iterable[Table]:
    """Yield the tables that only the page has: they are made of words, or of what other files hold."""
    if against is not None:
        yield compared.table(against)
    limits = []
    for series, fit in analysis.fits["series"].items():
        methods = dict.fromkeys(f"Intervals: {law['interval_method']}" for law in fit["laws"].values())
        limits.append(Group(title=labels[series], rows=tuple((told,) for told in (*fit["doubts"], *methods))))
    limited = Table(columns=(Column("To know", "text"),), groups=tuple(limits))
    yield replace(limited, name="limits", title="What limits the fits, and how their intervals were made")
    commands = tuple((f"{command}",) for command in analysis.provenance["commands"])
    typed = (Column("Command", "text", code=True),)
    yield Table(
        name="commands",
        title="Commands to repeat it",
        columns=typed,
        groups=(Group(title="", rows=commands),) * bool(commands),
    )
