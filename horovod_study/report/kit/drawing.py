"""A figure as a value that can be drawn at any width, and the files it becomes."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from horovod_study.errors import ConfigError
from horovod_study.files import csv_of, result_folder, write_file, writing
from horovod_study.report.kit.pgf import need_latex, to_pgf
from horovod_study.report.kit.style import TEXT, FigureFormat, settled, style, to_bytes

FORMATS = ("pdf", "svg", "png")


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """One figure before it is drawn."""

    name: str  # of its files
    title: str
    alt: str  # one sentence for a reader who cannot see it
    caption: str
    data: pd.DataFrame  # the rows it is drawn from
    draw: Callable[[float], Figure]  # width in inches -> figure; call it inside style()

    def save(self, path: str | os.PathLike[str], *, look: FigureFormat = TEXT) -> None:
        """Write the figure as .pdf, .svg or .png; ConfigError for another ending."""
        form = Path(path).suffix.removeprefix(".").lower()
        if form not in FORMATS:
            raise ConfigError(
                f"{path}: a figure becomes {', '.join(f'.{each}' for each in FORMATS)}; choose one of them"
            )
        write_file(Path(path), self._bytes(form, look))

    def _repr_png_(self) -> bytes:
        """Return what a notebook shows."""
        return self._bytes("png", TEXT)

    def _bytes(self, form: str, look: FigureFormat) -> bytes:
        with style(look):
            return to_bytes(settled(self.draw(look.width_in)), form)


def write_drawings(
    made: Sequence[Drawing], directory: Path, *, look: FigureFormat = TEXT, pgf: bool = False
) -> list[Path]:
    """Write the files of some figures as `write_figures` does, with the same errors; return the paths."""
    if pgf:
        need_latex()
    paths = []
    with writing(directory, "choose a writable folder"):
        result_folder(directory)
        for each in made:
            with style(look):
                figure = settled(each.draw(look.width_in))
                for form in FORMATS:
                    paths.append(directory / f"{each.name}.{form}")
                    write_file(paths[-1], to_bytes(figure, form))
                if pgf:
                    paths.append(directory / f"{each.name}.pgf")
                    write_file(paths[-1], to_pgf(figure))
            paths.append(directory / f"{each.name}.txt")
            write_file(paths[-1], each.caption + "\n")
            paths.append(directory / f"{each.name}.csv")
            write_file(paths[-1], csv_of(each.data))
    return paths
