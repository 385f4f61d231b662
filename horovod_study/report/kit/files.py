"""Figures and texts of one result, written into one folder."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from horovod_study.files import write_file, writing
from horovod_study.report.kit.style import TEXT, FigureFormat, settled, style, to_bytes

FORMATS = ("pdf", "svg", "png")


def write_result(
    directory: Path,
    *,
    figures: Mapping[str, Callable[[], Figure]],
    texts: Mapping[str, str],
    what: str = "figure",
    choose: str = "--out",
    make: bool = True,
    look: FigureFormat = TEXT,
    **looks: Any,
) -> list[Path]:
    """Write `figures` (name -> what draws it) as PDF, SVG and PNG, then `texts` (file -> content); return the paths.

    Letters are those of `look`, whose width the functions draw for; `looks` are settings of matplotlib with two
    underscores for each dot. Raises RecordError, which says that `what`
    cannot be written and to choose a writable `choose`; without `make` also where the folder does not exist.
    """
    paths = []
    with writing(directory, f"choose a writable {choose}"):
        if make:
            directory.mkdir(parents=True, exist_ok=True)
        with style(look, **looks):
            for name, draw in figures.items():
                figure = settled(draw())
                for form in FORMATS:
                    paths.append(directory / f"{name}.{form}")
                    write_file(paths[-1], to_bytes(figure, form))
        for name, text in texts.items():
            paths.append(directory / name)
            write_file(paths[-1], text)
    return paths
