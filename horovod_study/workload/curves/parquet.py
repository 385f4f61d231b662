"""Tables in Parquet files: one row per point, or one row per curve with lists."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod_study.errors import DataError
from horovod_study.workload import room
from horovod_study.workload.curves import tables, units
from horovod_study.workload.curves.tables import Columns, RawCurves
from horovod_study.workload.curves.text_table import Cells
from horovod_study.workload.curves.values import Curve, ReadOptions, curve_of_arrays


def read_parquet(path: Path, options: ReadOptions) -> RawCurves:
    """Read a Parquet file."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet
    except ImportError:  # case 24: pyarrow is a requirement of this package, but someone may have installed without
        raise DataError(
            f"{path}: reading Parquet needs pyarrow, which is not installed; run `pip install 'pyarrow>=17'`, or save "
            "the table as CSV"
        ) from None
    try:
        file = arrow.parquet.ParquetFile(path)
        names = list(file.schema_arrow.names)
        columns = tables.find_columns(path, names, options)
        for name in (names[columns.strain], names[columns.stress]):
            if names.count(name) > 1:
                raise DataError(f"{path}: column {name!r} appears {names.count(name)} times; keep one")
        room.need_memory(path, 24 * file.metadata.num_rows, "reading it", "import fewer curves at once")
        used = [*columns.numbers, *([] if columns.specimen is None else [columns.specimen])]
        table = file.read(columns=[names[k] for k in used])
    except (OSError, arrow.ArrowException) as error:
        text = str(error).splitlines()[0][:100]
        raise DataError(
            f"{path}: is not a complete Parquet file of {path.stat().st_size:,} bytes ({text}); copy it again"
        ) from None
    declared = options.units(str(path), *(units.split(names[column])[1] for column in (columns.strain, columns.stress)))
    if table.num_rows == 0:
        raise DataError(f"{path}: has columns but no rows; one row per point or per curve was expected")
    notes = (f"columns not used: {', '.join(columns.ignored)}",) if columns.ignored else ()
    kinds = [table.schema.field(names[k]).type for k in (columns.strain, columns.stress)]
    is_list = (arrow.types.is_list, arrow.types.is_large_list, arrow.types.is_fixed_size_list)
    lists = [any(each(kind) for each in is_list) for kind in kinds]
    if lists[0] != lists[1]:
        raise DataError(f"{path}: one of strain and stress holds lists, the other numbers; both must be of one kind")
    ids: list[str] | None = None
    if columns.specimen is not None:
        ids = ["" if value is None else str(value) for value in table[names[columns.specimen]].to_pylist()]
    if lists[0]:
        curves, targets = _lists(path, table, names, columns, ids, arrow)
    else:
        cells = Cells(
            numbers={k: _numbers(path, names[k], table[names[k]], arrow) for k in columns.numbers},
            blank={},
            texts={} if columns.specimen is None or ids is None else {columns.specimen: ids},
            lines=np.arange(1, table.num_rows + 1),
            grouped=0,
        )
        curves, targets = tables.cut_long(path, cells, columns, row_word="row")
    return RawCurves(
        curves=curves,
        layout="parquet",
        units=declared,
        files=(path,),
        targets=targets,
        counts={"files": 1, "rows": table.num_rows},
        notes=notes,
    )


def _numbers(path: Path, name: str, column: Any, arrow: Any) -> NDArray[np.float64]:
    """Return a column as float64, NaN for nulls (case 20 for anything but real numbers)."""
    kind = column.type
    if not (arrow.types.is_floating(kind) or arrow.types.is_integer(kind) or arrow.types.is_decimal(kind)):
        raise DataError(
            f"{path}: column {name!r} holds {kind}, real numbers are needed; save it as float64 (re-save without "
            "pickled or text cells)"
        )
    values: NDArray[np.float64] = column.cast(arrow.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
    return values


def _lists(
    path: Path, table: Any, names: list[str], columns: Columns, ids: list[str] | None, arrow: Any
) -> tuple[tuple[Curve, ...], NDArray[np.float64] | None]:
    """Return the curves of a table with one row per curve, and their targets (N, P)."""
    if ids is not None:
        tables.check_ids(path, ids, ids, targets_needed=False)
    parts: dict[int, tuple[NDArray[np.float64], NDArray[np.int64]]] = {}
    for column in (columns.strain, columns.stress):
        chunked = table[names[column]]
        lengths = arrow.compute.fill_null(arrow.compute.list_value_length(chunked), 0)
        values = arrow.chunked_array([chunk.flatten() for chunk in chunked.chunks])
        offsets = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False).astype(np.int64))])
        parts[column] = (_numbers(path, names[column], values, arrow), offsets)
    (strain, ends), (stress, stress_ends) = parts[columns.strain], parts[columns.stress]
    curves = []
    for row in range(table.num_rows):
        x, y = strain[ends[row] : ends[row + 1]], stress[stress_ends[row] : stress_ends[row + 1]]
        curve = curve_of_arrays(path, row, ids, x, y)
        if len(x) != len(y):
            raise DataError(
                f"{path}, row {row + 1}, specimen {curve.name!r}: strain has {len(x)} values, stress has {len(y)}; "
                "every point needs both"
            )
        curves.append(curve)
    if not columns.targets:
        return tuple(curves), None
    pair = [_numbers(path, names[k], table[names[k]], arrow) for k in columns.targets]
    return tuple(curves), np.stack(pair, axis=1)
