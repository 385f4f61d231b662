"""A section of a thesis, to be pasted and compiled: what was found, how it was measured, what threatens it.

Every number is one of the report's: sentences, tables and figures are those of the page, in LaTeX. The folder stands
alone: a document that shows it (`paper.tex`), the section, a reproducibility appendix, entries for citations, and
copies of the figures and tables that they use.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from horovod_study.analysis.study import Analysis
from horovod_study.config.documents import read_bytes
from horovod_study.files import result_folder, write_file, writing
from horovod_study.report.figures.catalogue import drawings
from horovod_study.report.grammar import Figure
from horovod_study.report.kit.style import series_labels
from horovod_study.report.kit.typeset import caption_command, latex, to_latex
from horovod_study.report.page.doubts import doubt_groups
from horovod_study.report.page.sentences import answer, learned, sentences
from horovod_study.report.page.tables import tables
from horovod_study.text.tables import Column, Group, Table
from horovod_study.text.words import listed, plural

FIGURES = ("speedup", "efficiency", "breakdown", "boundary", "transport_ratio", "forecast")
RESULTS = ("points", "transports", "laws", "forecast")
APPENDIX = ("measurement", "environment", "failed")
"""Figures and tables that are taken where the study has them, in this order."""

_FOLDER = "\\hspaperfolder"

_LIBRARIES = {"horovod": ("Horovod", "sergeev2018horovod"), "ddp": ("PyTorch DDP", "li2020pytorch")}


def write_paper(analysis: Analysis, directory: Path, source: Mapping[str, Any]) -> list[Path]:
    """Write the folder `paper` of a report in `directory`, and return the paths, the section first.

    The figures are those that the report has drawn. `source` is what is known of where the tables come from
    (`records.read_source`): digests of the files of each run, versions.
    Raises RecordError when the folder cannot be written.
    """
    drawn = {each.name: each for each in drawings(analysis)}
    figures = [drawn[name] for name in FIGURES if name in drawn]
    made = {table.name: table for table in tables(analysis)}
    digests = _digests(source.get("run_files") or {})
    shown = {name: made[name] for name in (*RESULTS, *APPENDIX) if name in made} | {digests.name: digests}
    section = "\n".join(_section(analysis, figures, [name for name in RESULTS if name in shown]))
    version = (source.get("versions") or {}).get("horovod_study", "")
    works = _template("references.bib").replace("VERSION", version).rstrip().split("\n\n")
    cited = set(re.findall(r"\\cite\{(\w+)\}", section))
    texts = {
        "section.tex": section,
        "appendix.tex": "\n".join(_appendix(analysis, [name for name in shown if name not in RESULTS], source)),
        "references.bib": "\n\n".join(work for work in works if re.split(r"[{,]", work)[1] in cited) + "\n",
        "paper.tex": _template("paper.tex"),
        **{f"tables/{name}.tex": to_latex(table) for name, table in shown.items()},
    }
    folder = directory / "paper"
    paths = [folder / name for name in texts]
    with writing(folder, "choose a writable folder"):
        for part in (folder, folder / "figures", folder / "tables"):
            result_folder(part)
        for path, text in zip(paths, texts.values(), strict=True):
            write_file(path, text)
        for each in figures:
            paths.append(folder / "figures" / f"{each.name}.pdf")
            pdf = directory / "figures" / f"{each.name}.pdf"
            write_file(paths[-1], read_bytes(pdf, again="make the report again with horovod-study report"))
    return paths


def _template(name: str) -> str:
    return files("horovod_study.report.page").joinpath("templates", name).read_text(encoding="utf-8")


def _section(analysis: Analysis, figures: Sequence[Figure], results: Sequence[str]) -> Iterable[str]:
    names = listed([f"{name}" for name in analysis.provenance["studies"]] or ["the training"])
    yield f"\\providecommand{_FOLDER}{{.}}"
    yield f"\\section{{Scaling of {latex(names)}}}\\label{{sec:scaling}}"
    yield ""
    yield latex(" ".join(answer(analysis)))
    places = [f"Table~\\ref{{tab:{name}}}" for name in results[:1]]
    places += [f"Figure~\\ref{{fig:{each.name}}}" for each in figures[:1]]
    if places:
        yield f"{' and '.join(places)} show{'s' * (len(places) == 1)} the measured points."
    yield ""
    yield "\\subsection{Method}"
    yield from _method(analysis)
    yield ""
    yield "\\subsection{Results}"
    for paragraph in (*sentences(analysis), learned(analysis)):
        if paragraph:
            yield latex(" ".join(paragraph))
            yield ""
    for name in results:
        yield f"\\input{{{_FOLDER}/tables/{name}}}"
    for each in figures:
        yield from _figure(each)
    yield ""
    yield "\\subsection{Threats to validity}"
    yield from _threats(analysis)


def _figure(drawing: Figure) -> Iterable[str]:
    command = caption_command(f"fig{drawing.name}")
    yield f"\\providecommand{command}{{{latex(drawing.caption)}}}%"
    yield "\\begin{figure}"
    yield f"\\centering\\includegraphics[width=\\linewidth]{{{_FOLDER}/figures/{drawing.name}.pdf}}"
    yield f"\\caption[{{{latex(drawing.title)}}}]{{{command}}}\\label{{fig:{drawing.name}}}"
    yield "\\end{figure}"


def _method(analysis: Analysis) -> Iterable[str]:
    """Where, with what, how often, how long, from which step on, and how a number comes from it."""
    told, runs = analysis.provenance, analysis.runs
    measured = told["measurement"]
    yield (
        f"{plural(told['runs']['done'], 'run').capitalize()} {'was' if told['runs']['done'] == 1 else 'were'} recorded"
        f" with horovod\\_study~\\cite{{horovodstudy}}{_places(told)}; Table~\\ref{{tab:environment}} has machines and"
        " software."
    )
    found = {library for library in runs["backend"].dropna().unique() if library in _LIBRARIES}
    if found:
        used = [f"{_LIBRARIES[name][0]}~\\cite{{{_LIBRARIES[name][1]}}}" for name in _LIBRARIES if name in found]
        yield f"Workers communicated through {listed(used)}."
    if measured:
        yield (
            f"Each point has {_span(measured, 'repeats', 'repeat')}, each a process of its own."
            f" Of a run the first steps were left out ({_span(measured, 'excluded_steps', 'step')}: warm-up, and what"
            f" came before the step time was steady), and {_span(measured, 'steps', 'step')} were timed"
            f" ({_span(measured, 'window_s', 's')}); Table~\\ref{{tab:measurement}} has them by series."
        )
    baseline = "one plain PyTorch worker without a communication library"
    if told["baseline"] != "plain":
        baseline = "one worker with the communication library"
    yield (
        "Throughput is samples of all workers over the seconds of the slowest worker. A point is the median over its"
        f" repeats; speedup is its throughput over that of {baseline}, with the same batch and data set, and efficiency"
        " is speedup over workers. Intervals are 95\\,\\% intervals by Student's t on the logarithms of the"
        " throughputs, in which the scatter of the baseline counts too; fewer than three repeats have none."
        " Medians stand with their intervals, as Hoefler and Belli ask for~\\cite{hoefler2015scientific}."
    )
    laws = {name for fit in analysis.fits["series"].values() for name in fit["laws"]}
    if laws & {"amdahl", "gustafson"}:
        yield (
            "Scaling laws, Amdahl's~\\cite{amdahl1967validity} and Gustafson's~\\cite{gustafson1988reevaluating} among"
            " them, were fitted to the repeats, and compared by AICc."
        )


def _places(told: Mapping[str, Any]) -> str:
    hosts = [each for each in told["environment"] if each.get("cpu_model")]
    names = sorted({f"{each['cpu_model']}" for each in hosts})
    partitions = [name for name in told["partitions"] if name != "local"]
    where = f" on partition {latex(listed([f'{name}' for name in partitions]))}" if partitions else ""
    return f"{where}{f' ({latex(listed(names))})' if names else ''}"


def _span(measured: Sequence[Mapping[str, Any]], name: str, unit: str) -> str:
    """Return from the least to the most of one measure over all series, such as "3 to 5 repeats"."""
    ends = [float(end) for each in measured for end in each.get(name) or () if end is not None]
    if not ends:
        return f"an unknown number of {unit}s" if unit != "s" else "of unknown length"
    low, high = f"{min(ends):.3g}", f"{max(ends):.3g}"
    plural_unit = unit if unit == "s" or low == high == "1" else f"{unit}s"
    return f"{low}~{plural_unit}" if low == high else f"{low} to {high}~{plural_unit}"


def _threats(analysis: Analysis) -> Iterable[str]:
    """The doubts of the analysis, and what a study of this size cannot tell."""
    told = analysis.provenance
    repeats = [end for each in told["measurement"] for end in each.get("repeats") or () if end is not None]
    items = []
    if repeats and min(repeats) < 5:
        items.append(f"Points rest on as few as {plural(int(min(repeats)), 'repeat')}; their scatter is little known.")
    hosts = analysis.runs["hosts"].dropna().nunique() if "hosts" in analysis.runs else 0
    if hosts == 1:
        items.append("All runs used the same host: others of its kind may differ.")
    if len(analysis.forecast):
        items.append("Forecasts reach beyond the measured worker counts, and assume that nothing new limits there.")
    failed = len(told["failed"])
    if failed:
        items.append(
            f"{plural(failed, 'run')} ended without a result (Table~\\ref{{tab:failed}}); no values were substituted."
        )
    for group in doubt_groups(told["doubts"], series_labels(analysis.points)):
        items += [latex(f"{len(names)} series: {text}" if names else text) for text, names in group.doubts]
    yield "\\begin{itemize}"
    yield from (f"\\item {text}" for text in items or ["The analysis found nothing to doubt."])
    yield "\\end{itemize}"


def _appendix(analysis: Analysis, names: Sequence[str], source: Mapping[str, Any]) -> Iterable[str]:
    yield f"\\providecommand{_FOLDER}{{.}}"
    yield "\\section{How to reproduce}\\label{sec:reproduce}"
    told, commands = reproduction(analysis, source)
    if told:
        yield f"The analysis was made with {latex(told)}."
    yield (
        "The digests in Table~\\ref{tab:digests} belong to the files of the runs."
        " \\texttt{horovod-study report DIR -{}-check} makes every number of the tables again from the rows of the"
        " steps and compares."
    )
    if commands:
        yield ""
        some = ", such as" if len(commands) > MAX_COMMANDS else ""
        yield f"The runs were started with {plural(len(commands), 'command')}{some}:"
        yield "\\begin{itemize}\\footnotesize\\raggedright"
        yield from (f"\\item \\texttt{{{latex(command)}}}" for command in commands[:MAX_COMMANDS])
        yield "\\end{itemize}"
    for name in names:
        yield f"\\input{{{_FOLDER}/tables/{name}}}"


MAX_COMMANDS = 8


def reproduction(analysis: Analysis, source: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return with which versions an analysis was made, in words, and the commands that its runs were started with."""
    versions, runs = [f"{name} {version}" for name, version in (source.get("versions") or {}).items()], analysis.runs
    commands = {f"{text}" for text in runs["command"].dropna() if f"{text}"} if "command" in runs else ()
    return listed(versions) if versions else "", sorted(commands)


def _digests(run_files: Mapping[str, Mapping[str, str]]) -> Table:
    rows = [(run, file, digest) for run, files in sorted(run_files.items()) for file, digest in sorted(files.items())]
    records = [row for row in rows if row[1] == "run.json"]
    return Table(
        name="digests",
        title="Digests of the runs",
        caption="Of the record of each run (run.json), as the analysis read it; source.json has those of all files.",
        columns=(Column("Run", "text", names=True), Column("Digest", "text")),
        groups=(Group(title="", rows=tuple((run, digest) for run, _, digest in records)),),
        data=pd.DataFrame(rows, columns=["run", "file", "digest"]),
    )
