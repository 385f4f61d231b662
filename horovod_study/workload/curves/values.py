"""What a reading of curve files is asked for, and what it gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod_study.errors import DataError, require_known
from horovod_study.workload.curves import units

LAYOUTS = ("auto", "long", "folder", "wide", "machine", "npz", "npy", "parquet")
DELIMITERS = MappingProxyType({"comma": ",", "semicolon": ";", "tab": "\t", "space": " ", "pipe": "|", "\\t": "\t"})
"""Words for the delimiters that are hard to type in a shell."""

OnProgress = Callable[[str, int, int], None]
"""Called with (what is done, done, in all) while a long operation goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """How to read curve files; the defaults guess nothing and repair nothing."""

    layout: str = "auto"
    decimal: str | None = None  # None: found from the rows
    delimiter: str | None = None
    strain_column: str | None = None
    stress_column: str | None = None
    strain_unit: str | None = None  # None: must be in the file
    stress_unit: str | None = None
    drop_nonfinite: bool = False
    on_nonmonotonic: str = "error"
    flip_sign: bool = False
    any_modulus: bool = False
    cut_at_peak: bool = False
    strict: bool = False
    reduce: str = "pick"
    targets: Path | None = None

    def __post_init__(self) -> None:
        require_known("--layout", self.layout, LAYOUTS, error=DataError)
        require_known("--on-nonmonotonic", self.on_nonmonotonic, ("error", "drop", "sort"), error=DataError)
        require_known("--reduce", self.reduce, ("pick", "mean"), error=DataError)
        if self.decimal is not None:
            require_known("--decimal", self.decimal, (".", ","), error=DataError)
        if self.delimiter is not None:
            delimiter = DELIMITERS.get(self.delimiter, self.delimiter)
            if delimiter not in DELIMITERS.values():
                raise DataError(
                    f"--delimiter {self.delimiter!r}: allowed are , ; | and the words {', '.join(list(DELIMITERS)[:5])}"
                )
            object.__setattr__(self, "delimiter", delimiter)
        if self.strain_unit is not None:
            object.__setattr__(self, "strain_unit", units.required("--strain-unit", self.strain_unit, "strain"))
        if self.stress_unit is not None:
            object.__setattr__(self, "stress_unit", units.required("--stress-unit", self.stress_unit, "stress"))

    def units(self, where: str, strain: str | None = None, stress: str | None = None) -> dict[str, str]:
        """Return the units of both channels, as `units.settle` does, from their texts in the file `where`."""
        return {
            "strain": units.settle(where, "strain", strain, self.strain_unit),
            "stress": units.settle(where, "stress", stress, self.stress_unit),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the options that differ from the defaults, as JSON takes them."""
        plain = ReadOptions()
        values = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) != getattr(plain, name)}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One test as it is in a file; strain and stress are in the units of the file until `checks.in_units`."""

    name: str
    file: str
    strain: NDArray[np.float64]  # (n,)
    stress: NDArray[np.float64]  # (n,)
    rows: NDArray[np.int64]  # (n,) where each point stands: line, row or position
    row_word: str = "line"
    kind: str = "specimen"  # or "curve", where the file numbers its curves
    time: NDArray[np.float64] | None = None  # (n,)

    @property
    def who(self) -> str:
        """Specimen or curve, as warnings call it."""
        return f"{self.kind} {self.name if self.kind == 'curve' else repr(self.name)}"

    @property
    def where(self) -> str:
        """File and specimen, the beginning of every message about this curve."""
        return f"{self.file}, {self.who}"

    def at(self, point: int) -> str:
        """Return file, specimen and the place of a point."""
        return f"{self.where}, {self.row_word} {self.rows[point]}"


def curve_of_arrays(
    file: Path, number: int, names: Sequence[str] | None, strain: NDArray[np.float64], stress: NDArray[np.float64]
) -> Curve:
    """Return a curve whose points are known by their position; it has a `number` where the file has no `names`."""
    return Curve(
        name=str(number) if names is None else names[number],
        file=str(file),
        strain=strain,
        stress=stress,
        rows=np.arange(len(strain)),
        row_word="position",
        kind="curve" if names is None else "specimen",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveSet:
    """Checked curves of one source, strain as a ratio and stress in MPa; letters: N curves, n points, P = 2 targets."""

    ids: tuple[str, ...]
    strain: tuple[NDArray[np.float64], ...]  # N of (n,), strictly increasing
    stress: tuple[NDArray[np.float64], ...]  # N of (n,), MPa
    targets: NDArray[np.float64] | None  # (N, P): G0 in MPa and a; or None
    source: str
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # those of the warnings that only say what was left out, no doubt about the curves
    layout: str = "long"
    units: dict[str, str] = field(default_factory=dict)  # as declared: strain, stress
    counts: dict[str, int] = field(default_factory=dict)  # what was read, left out and repaired
    files: tuple[Path, ...] = ()
    target_bounds: NDArray[np.float64] | None = None  # (P, 2), where the file gives them

    @property
    def size(self) -> int:
        """Number of curves N."""
        return len(self.ids)
