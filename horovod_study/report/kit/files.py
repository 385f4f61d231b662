"""Figures and texts of one result, written into one folder."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from horovod_study.files import result_folder, write_file, writing
from horovod_study.report.kit.pgf import need_latex, to_pgf
from horovod_study.report.kit.style import TEXT, FigureFormat, settled, style, to_bytes

FORMATS = ("pdf", "svg", "png")


def write_result(
    directory: Path,
    *,
    figures: Mapping[str, Callable[[], Figure]],
    texts: Mapping[str, str],
    choose: str = "--out",
    look: FigureFormat = TEXT,
    pgf: bool = False,
    **looks: Any,
) -> list[Path]:
    """Write `figures` (name -> what draws it) as PDF, SVG and PNG, then `texts` (file -> content); return the paths.

    Letters are those of `look`, whose width the functions draw for; `looks` are settings of matplotlib with two
    underscores for each dot; `pgf`: for LaTeX, too. Raises RecordError, which says to choose a writable `choose`, and
    ConfigError where there is no LaTeX.
    """
    if pgf:
        need_latex()
    paths = []
    with writing(directory, f"choose a writable {choose}"):
        result_folder(directory)
        with style(look, **looks):
            for name, draw in figures.items():
                figure = settled(draw())
                contents = {form: partial(to_bytes, figure, form) for form in FORMATS}
                for form, content in (contents | ({"pgf": partial(to_pgf, figure)} if pgf else {})).items():
                    paths.append(directory / f"{name}.{form}")
                    write_file(paths[-1], content())
        for name, text in texts.items():
            paths.append(directory / name)
            write_file(paths[-1], text)
    return paths
