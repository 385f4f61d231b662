"""Rows in Arrow streams: read up to the last batch that is complete, and numbers to and from NumPy without pandas."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study.documents import shown
from horovod_study.errors import RecordError

if TYPE_CHECKING:  # the run wing records without pandas
    import numpy as np
    import pyarrow as pa


def arrow_array(values: Any, kind: "pa.DataType") -> "pa.Array[Any]":
    """Return numbers or texts, None where unknown, as an Arrow array of type `kind`.

    `pyarrow.array` imports pandas when it is first called, which takes longer than a short training.
    """
    import numpy as np
    import pyarrow as pa

    known = None
    if isinstance(values, np.ma.MaskedArray):
        known, values = ~np.ma.getmaskarray(values), values.filled(0)
    elif not isinstance(values, np.ndarray):
        known = np.array([value is not None for value in values], dtype=bool)
    if pa.types.is_string(kind):
        texts = [(value or "").encode() for value in values]
        ends = np.cumsum([0, *(len(text) for text in texts)], dtype=np.int32)
        content = [pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
    else:
        number = np.dtype(f"{'f' if pa.types.is_floating(kind) else 'i'}{kind.bit_width // 8}")
        plain = values if isinstance(values, np.ndarray) else [0 if value is None else value for value in values]
        content = [pa.py_buffer(np.ascontiguousarray(plain, dtype=number))]
    bits = None if known is None or known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bits, *content])


def numpy_column(column: "pa.Array[Any]") -> "np.ndarray":
    """Return a column of numbers as NumPy array, where null is NaN, or one of texts as array of objects.

    A copy of its own. Arrow's `to_numpy` imports pandas, see `arrow_array`.
    """
    import numpy as np
    import pyarrow as pa

    if pa.types.is_string(column.type):
        return np.array(column.to_pylist(), dtype=object)
    kind = f"{'f' if pa.types.is_floating(column.type) else 'i'}{column.type.bit_width // 8}"
    present, content = column.buffers()
    if content is None:
        return np.empty(0, dtype=kind)
    values = np.frombuffer(content, dtype=kind)[column.offset : column.offset + len(column)].copy()
    if present is None or not column.null_count:
        return values
    bits = np.unpackbits(np.frombuffer(present, dtype=np.uint8), bitorder="little")
    unknown = bits[column.offset : column.offset + len(column)] == 0
    if values.dtype.kind != "f":
        values = values.astype(np.float64)
    values[unknown] = np.nan
    return values


def require_types(table: "pa.Table", schema: "pa.Schema", path: Path) -> None:
    """Refuse a table that has a column twice, or one of another type than in `schema`."""
    for each in schema:
        found = [kind for name, kind in zip(table.column_names, table.schema.types, strict=True) if name == each.name]
        if found not in ([], [each.type]):
            raise RecordError(
                f"{shown(path)}: column {each.name} is {' and '.join(map(str, found))}, not {each.type}; "
                "move the directory away"
            )


def whole_batches(path: Path, *, mapped: bool = False) -> "pa.Table":
    """Return an Arrow stream up to its last complete batch: what comes after it was torn when its writer was killed, or
    found no room. Raises OSError and ArrowInvalid where not even its schema can be read."""
    import pyarrow as pa

    with open_rows(path, mapped=mapped) as reader, suppress(*stream_errors()):
        return _checked(reader.read_all())
    batches: list[pa.RecordBatch] = []
    with open_rows(path, mapped=mapped) as reader:
        with suppress(*stream_errors()):
            for batch in reader:
                batches.append(batch)
        return _checked(pa.Table.from_batches(batches, schema=reader.schema))


def _checked(table: "pa.Table") -> "pa.Table":
    """Return a table whose buffers are as long as its rows need; ArrowInvalid for one that is damaged."""
    import pyarrow as pa

    table.validate(full=any(pa.types.is_string(each.type) for each in table.schema))
    return table


@contextmanager
def open_rows(path: Path, *, mapped: bool = False) -> "Iterator[pa.ipc.RecordBatchStreamReader]":
    """Give the reader of an Arrow stream; raises `stream_errors` also where the file is a pipe."""
    import pyarrow as pa

    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "is no regular file")
    with (pa.memory_map if mapped else pa.OSFile)(str(path)) as stream, pa.ipc.open_stream(stream) as reader:
        yield reader


def stream_errors() -> tuple[type[Exception], ...]:
    """Return what reading a torn or damaged Arrow stream raises; MemoryError is of a length that is no length."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, MemoryError, ValueError)
