"""A section of a thesis, to be pasted and compiled: what was found, how it was measured, what threatens it.

Every number is one of the report's: sentences, tables and figures are those of the page, in LaTeX. The folder stands
alone: a document that shows it (`paper.tex`), the section, a reproducibility appendix, entries for citations, and
copies of the figures and tables that they use.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from horovod_study.analysis.study import Analysis
from horovod_study.config.documents import read_bytes
from horovod_study.files import result_folder, write_file, writing
from horovod_study.report.figures.catalogue import drawings
from horovod_study.report.grammar import Figure
from horovod_study.report.kit.files import caption_command, latex, to_latex
from horovod_study.report.page.sentences import answer, learned, sentences
from horovod_study.report.page.tables import tables, told_doubts
from horovod_study.text.tables import table_of
from horovod_study.text.words import listed, plural

FIGURES = ("speedup", "efficiency", "breakdown", "boundary", "transport_ratio", "forecast")
RESULTS = ("points", "transports", "laws", "forecast")
APPENDIX = ("measurement", "environment", "failed")
"""Figures and tables that are taken where the study has them, in this order."""

_LIBRARIES = {"horovod": "Horovod~\\cite{sergeev2018horovod}", "ddp": "PyTorch DDP~\\cite{li2020pytorch}"}
_BASELINES = {
    "plain": "one plain PyTorch worker without a communication library",
    "wrapped": "one worker with the communication library",
}


def write_paper(analysis: Analysis, directory: Path, source: Mapping[str, Any]) -> list[Path]:
    """Write the folder `paper` of a report in `directory`, and return the paths, the section first.

    The figures are those that the report has drawn. `source` is what is known of where the tables come from
    (`records.read_source`): digests of the files of each run, versions.
    Raises RecordError when the folder cannot be written.
    """
    drawn = {each.name: each for each in drawings(analysis)}
    figures = [drawn[name] for name in FIGURES if name in drawn]
    run_files = sorted((source.get("run_files") or {}).items())
    digests = replace(
        table_of(("Run", "Digest"), [(run, of["run.json"]) for run, of in run_files if "run.json" in of], texts=(0, 1)),
        name="digests",
        title="Digests of the runs",
        caption="Of the record of each run (run.json), as the analysis read it; source.json has those of all files.",
    )
    made = {table.name: table for table in (*tables(analysis), digests)}
    results, appendix = ([name for name in names if name in made] for names in (RESULTS, (*APPENDIX, "digests")))
    section = "\n".join(_section(analysis, figures, results))
    version = (source.get("versions") or {}).get("horovod_study", "")
    works = _template("references.bib").replace("VERSION", version).rstrip().split("\n\n")
    cited = set(re.findall(r"\\cite\{(\w+)\}", section))
    texts = {
        "section.tex": section,
        "appendix.tex": "\n".join(_appendix(analysis, appendix, source)),
        "references.bib": "\n\n".join(work for work in works if re.split(r"[{,]", work)[1] in cited) + "\n",
        "paper.tex": _template("paper.tex"),
        **{f"tables/{name}.tex": to_latex(made[name]) for name in (*results, *appendix)},
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
    yield f"\\providecommand\\hspaperfolder{{.}}\n\\section{{Scaling of {latex(names)}}}\\label{{sec:scaling}}\n"
    yield latex(" ".join(answer(analysis)))
    yield "\n\\subsection{Method}"
    yield from _method(analysis)
    yield "\n\\subsection{Results}"
    for paragraph in filter(None, (*sentences(analysis), learned(analysis))):
        yield f"{latex(' '.join(paragraph))}\n"
    yield from (f"\\input{{\\hspaperfolder/tables/{name}}}" for name in results)
    for each in figures:
        command = caption_command(f"fig{each.name}")
        yield f"\\providecommand{command}{{{latex(each.caption)}}}%"
        yield "\\begin{figure}"
        yield f"\\centering\\includegraphics[width=\\linewidth]{{\\hspaperfolder/figures/{each.name}.pdf}}"
        yield f"\\caption[{{{latex(each.title)}}}]{{{command}}}\\label{{fig:{each.name}}}"
        yield "\\end{figure}"
    yield "\n\\subsection{Threats to validity}"
    items = [latex(each.text) for each in told_doubts(analysis)] or ["The analysis found nothing to doubt."]
    if "hosts" in analysis.runs and analysis.runs["hosts"].dropna().nunique() == 1:
        items.append("All runs used the same host: others of its kind may differ.")
    if len(analysis.forecast):
        items.append("Forecasts reach beyond the measured worker counts, and assume that nothing new limits there.")
    yield from _itemized(items)


def _itemized(items: Sequence[str], look: str = "") -> Iterable[str]:
    return (f"\\begin{{itemize}}{look}", *(f"\\item {text}" for text in items), "\\end{itemize}")


def _method(analysis: Analysis) -> Iterable[str]:
    """Yield where, with what, how often, how long, from which step on, and how a number comes from it."""
    told = analysis.provenance
    yield (
        f"Of {plural(told['runs']['total'], 'run')} on {latex(listed([f'{name}' for name in told['partitions']]))},"
        f" {plural(told['runs']['done'], 'run')} were recorded with horovod\\_study~\\cite{{horovodstudy}}"
        " (Table~\\ref{tab:environment})."
    )
    if libraries := [words for name, words in _LIBRARIES.items() if name in set(analysis.runs["backend"])]:
        yield f"Workers communicated through {listed(libraries)}."
    if measured := told["measurement"]:
        spans = (_span(measured, name) for name in ("repeats", "excluded_steps", "steps", "window_s"))
        yield (
            "Each point has {} repeats, each a process of its own. Of a run the first steps were left out ({}: warm-up,"
            " and what came before the step time was steady), and {} steps were timed ({}~s);"
            " Table~\\ref{{tab:measurement}} has them by series."
        ).format(*spans)
    yield (
        "Throughput is samples of all workers over the seconds of the slowest worker. A point is the median over its"
        f" repeats; speedup is its throughput over that of {_BASELINES[told['baseline']]}, with the same batch and data"
        " set, and efficiency is speedup over workers. Intervals are 95\\,\\% intervals by Student's t on the"
        " logarithms of the throughputs, in which the scatter of the baseline counts too; fewer than three repeats have"
        " none. Medians stand with their intervals, as Hoefler and Belli ask for~\\cite{hoefler2015scientific}."
    )
    if {"amdahl", "gustafson"} & {name for fit in analysis.fits["series"].values() for name in fit["laws"]}:
        yield (
            "Scaling laws, Amdahl's~\\cite{amdahl1967validity} and Gustafson's~\\cite{gustafson1988reevaluating} among"
            " them, were fitted to the repeats, and compared by AICc."
        )


def _span(measured: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return from the least to the most of one measure over all series, such as "3 to 5"."""
    ends = [float(end) for each in measured for end in each.get(name) or () if end is not None]
    return " to ".join(dict.fromkeys(f"{end:.3g}" for end in (min(ends), max(ends)))) if ends else "unknown"


def _appendix(analysis: Analysis, names: Sequence[str], source: Mapping[str, Any]) -> Iterable[str]:
    yield "\\providecommand\\hspaperfolder{.}\n\\section{How to reproduce}\\label{sec:reproduce}"
    told, commands = reproduction(analysis, source)
    if told:
        yield f"The analysis was made with {latex(told)}."
    yield (
        "The digests in Table~\\ref{tab:digests} belong to the files of the runs."
        " \\texttt{horovod-study report DIR -{}-check} makes every number of the tables again from the rows of the"
        " steps and compares."
    )
    if commands:
        yield f"\nThe runs were started with {plural(len(commands), 'command')}, the first of them:"
        typed = [f"\\texttt{{{latex(command)}}}" for command in commands[:MAX_COMMANDS]]
        yield from _itemized(typed, "\\footnotesize\\raggedright")
    yield from (f"\\input{{\\hspaperfolder/tables/{name}}}" for name in names)


MAX_COMMANDS = 8


def reproduction(analysis: Analysis, source: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return with which versions an analysis was made, in words, and the commands that its runs were started with."""
    versions, runs = [f"{name} {version}" for name, version in (source.get("versions") or {}).items()], analysis.runs
    commands = {f"{text}" for text in runs["command"].dropna() if f"{text}"} if "command" in runs else ()
    return listed(versions) if versions else "", sorted(commands)
