"""Rows in Arrow streams: read up to the last batch that is complete, and numbers to and from NumPy without pandas.

What comes after the last complete batch was torn when its writer was killed, or found no room.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study.config.documents import open_file, shown
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

    is_text = pa.types.is_string(kind)
    if not isinstance(values, np.ndarray):
        unknown = [value is None for value in values]
        values = np.ma.array([("" if is_text else 0) if value is None else value for value in values], mask=unknown)
    if is_text:
        texts = [text.encode() for text in np.ma.getdata(values).tolist()]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        content = [pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
    else:
        content = [pa.py_buffer(np.ascontiguousarray(np.ma.filled(values, 0), dtype=_number_type(kind)))]
    known = ~np.ma.getmaskarray(values)
    bits = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bits, *content])


def numpy_column(column: "pa.Array[Any]") -> "np.ndarray":
    """Return a column of numbers as NumPy array, where null is NaN, or one of texts as array of objects.

    A copy of its own. Arrow's `to_numpy` imports pandas, see `arrow_array`.
    """
    import numpy as np
    import pyarrow as pa

    if pa.types.is_string(column.type):
        return np.array(column.to_pylist(), dtype=object)
    rows, kind = slice(column.offset, column.offset + len(column)), _number_type(column.type)
    present, content = column.buffers()
    values = np.empty(0, dtype=kind) if content is None else np.frombuffer(content, dtype=kind)[rows]
    if not column.null_count:
        return values.copy()
    known = np.unpackbits(np.frombuffer(present, dtype=np.uint8), bitorder="little")[rows]
    return np.where(known == 1, values, np.nan)


def _number_type(kind: "pa.DataType") -> str:
    import pyarrow as pa

    return f"{'f' if pa.types.is_floating(kind) else 'i'}{kind.bit_width // 8}"


@contextmanager
def open_rows(path: Path, *, mapped: bool = False) -> "Iterator[pa.ipc.RecordBatchStreamReader]":
    """Give the reader of an Arrow stream; raises `stream_errors` also where the file is a pipe."""
    import pyarrow as pa

    open_file(path).close()
    with (pa.memory_map if mapped else pa.OSFile)(str(path)) as stream, pa.ipc.open_stream(stream) as reader:
        yield reader


def whole_batches(reader: "pa.ipc.RecordBatchStreamReader") -> "Iterator[pa.RecordBatch]":
    """Yield the batches of a stream that are complete."""
    with suppress(*stream_errors()):
        yield from reader


def read_rows(path: Path, schema: "pa.Schema", what: str, missing: str, *, mapped: bool = False) -> "pa.Table":
    """Return the complete batches of a file; a column of `schema` that it does not have is null.

    RecordError for a file that is damaged or has a column twice or of another type, and where there is none: `missing`,
    what that means.
    """
    import pyarrow as pa

    why = ""
    try:
        with open_rows(path, mapped=mapped) as reader:
            table = pa.Table.from_batches(whole_batches(reader), schema=reader.schema)
        # Buffers are as long as the rows need.
        table.validate(full=any(pa.types.is_string(each.type) for each in table.schema))
    except FileNotFoundError:
        why = f"no such file; {missing}"
    except stream_errors() as error:
        why = f"holds no readable {what} ({error}); move it away, or record the run again"
    for each in () if why else schema:
        found = [of.type for of in table.schema if of.name == each.name]
        if not found:  # rows of an older program
            table = table.append_column(each, pa.nulls(len(table), each.type))
        elif found != [each.type]:
            why = f"column {each.name} is {' and '.join(map(str, found))}, not {each.type}; move the directory away"
    if why:
        raise RecordError(f"{shown(path)}: {why}")
    return table.select(schema.names)


def stream_errors() -> tuple[type[Exception], ...]:
    """Return what reading a torn or damaged Arrow stream raises; MemoryError is of a length that is no length."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, MemoryError, ValueError)
