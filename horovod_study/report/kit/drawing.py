"""A figure as a value that can be drawn at any width, and the files it becomes."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from horovod_study.errors import ConfigError
from horovod_study.files import write_file, writing
from horovod_study.report.kit.files import FORMATS, write_result
from horovod_study.report.kit.style import TEXT, FigureFormat, settled, style, to_bytes


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
        """Write the figure as .pdf, .svg or .png; ConfigError for another ending, RecordError where it cannot be."""
        path = Path(path)
        form = path.suffix.removeprefix(".").lower()
        if form not in FORMATS:
            raise ConfigError(f"{path}: the ending must be one of {', '.join(f'.{each}' for each in FORMATS)}")
        with writing(path, "choose a writable folder"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, self._bytes(form, look))

    def _repr_png_(self) -> bytes:
        """Return what a notebook shows."""
        return self._bytes("png", TEXT)

    def _bytes(self, form: str, look: FigureFormat) -> bytes:
        with style(look):
            return to_bytes(settled(self.draw(look.width_in)), form)


def write_drawings(
    made: Sequence[Drawing], directory: Path, *, look: FigureFormat = TEXT, pgf: bool = False
) -> list[Path]:
    """Write the files of some figures with their captions and rows, errors as of `write_result`; return the paths."""
    contents: dict[str, Any] = {}
    for each in made:
        contents |= {f"{each.name}.txt": each.caption, f"{each.name}.csv": each.data}
    figures = {each.name: each.draw for each in made}
    return write_result(directory, contents, figures, choose="folder", look=look, pgf=pgf)
