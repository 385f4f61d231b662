"""Figures and texts of one result, written into one folder."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from horovod_study.files import csv_of, result_folder, write_file, writing
from horovod_study.report.kit.pgf import need_latex, to_pgf
from horovod_study.report.kit.style import TEXT, FigureFormat, settled, style, to_bytes

FORMATS = ("pdf", "svg", "png")


def write_result(
    directory: Path,
    contents: Mapping[str, Any],
    figures: Mapping[str, Callable[[float], Figure]] | None = None,
    *,
    choose: str = "--out",
    look: FigureFormat = TEXT,
    pgf: bool = False,
) -> list[Path]:
    """Write `figures` (name -> what draws it at a width), then `contents` (by file name); return the paths.

    Figures become PDF, SVG, PNG, with `pgf` also PGF for LaTeX, in the width and letters of `look`. A content is a
    text, lines, a table (CSV) or a document (JSON). Raises RecordError, which says to choose a writable `choose`,
    and ConfigError where there is no LaTeX.
    """
    if pgf:
        need_latex()
    paths = []
    with writing(directory, f"choose a writable {choose}"):
        result_folder(directory)
        with style(look):
            for name, draw in (figures or {}).items():
                figure = settled(draw(look.width_in))
                forms = {form: partial(to_bytes, figure, form) for form in FORMATS}
                for form, content in (forms | ({"pgf": partial(to_pgf, figure)} if pgf else {})).items():
                    paths.append(directory / f"{name}.{form}")
                    write_file(paths[-1], content())
        for name, each in contents.items():
            paths.append(directory / name)
            write_file(paths[-1], _as_text(each))
    return paths


def _as_text(content: Any) -> str:
    if isinstance(content, pd.DataFrame):
        return csv_of(content)
    if isinstance(content, Mapping):
        return json.dumps(content, indent=1, allow_nan=False) + "\n"
    text = content if isinstance(content, str) else "\n".join(content)
    return text if text.endswith("\n") else f"{text}\n"


def figure_lines(paths: Iterable[Path]) -> list[str]:
    """Return for a terminal where the figures among some written files are."""
    return [f"figure: {path}" for path in paths if path.suffix == ".png"]
