"""Numpy files on the disk: .npy mapped, .npz opened array by array, damaged and foreign ones refused.

Nothing is unpickled.
"""

import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from horovod_study.documents import open_file
from horovod_study.errors import DataError
from horovod_study.workload import material, room

_MAGIC = b"\x93NUMPY"
MAX_BYTES = 2**50
_MAX_RATIO = 200
"""So many times smaller no compression makes measured numbers; zeros become a thousand times smaller."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _NpyHeader:
    """What the head of a .npy file promises."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    length: int  # bytes before the numbers

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


def is_npy(path: Path) -> bool:
    """Return whether a file begins as a .npy file does, whatever its name."""
    with open_file(path) as stream:
        return stream.read(len(_MAGIC)) == _MAGIC


def read_header(stream: IO[bytes], where: str) -> _NpyHeader:
    """Read the head of a .npy file; refuse versions, types and orders that are not ours (cases 20, 21)."""
    try:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise DataError(
                f"{where}: is a .npy file of version {version[0]}.{version[1]}, versions 1.0 and 2.0 are read; save it "
                "again with numpy.save"
            )
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:  # the last three: of an archive's member
        text = (str(error) or type(error).__name__).splitlines()[0][:100]
        raise DataError(f"{where}: is not a .npy file ({text}); save it again with numpy.save") from None
    sound = all(type(length) is int and 0 <= length < MAX_BYTES for length in shape)
    if not sound or math.prod(shape) * dtype.itemsize > MAX_BYTES:
        raise DataError(f"{where}: its head promises {shape} numbers of {dtype}, which nothing holds; export it again")
    if dtype.hasobject:
        raise DataError(
            f"{where}: holds Python objects, which only pickle could read and this program never does; re-save without "
            "pickle, as an array of numbers: numpy.save(file, array.astype('float32'), allow_pickle=False)"
        )
    return _NpyHeader(shape=shape, dtype=dtype, fortran=fortran, length=stream.tell())


def _real(header: _NpyHeader, where: str) -> None:
    if header.dtype.kind not in "fiu":
        what = {"c": "complex numbers", "U": "strings", "S": "strings", "b": "truth values"}.get(header.dtype.kind, "")
        raise DataError(
            f"{where}: holds {what or 'structures'} ({header.dtype}), real numbers are needed; re-save without pickle "
            "as float32 or float64"
        )


def open_npy(path: Path, *, mode: Literal["r", "c"] = "r", exact: bool = False) -> NDArray[Any]:
    """Map the numbers of a .npy file; refuse one that is cut short or, if it must be `exact`, longer than its numbers.

    Pages are read-only, or with mode "c" private to this process.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file; name a .npy file")
    with open_file(path) as stream:
        header = read_header(stream, str(path))
    _real(header, str(path))
    _whole(path, header.length + header.nbytes, path.stat().st_size, exact=exact)
    if header.nbytes == 0:
        raise DataError(f"{path}: holds an empty array {header.shape}; curves were expected, export it again")
    order = "F" if header.fortran else "C"
    return np.memmap(path, header.dtype, mode, header.length, header.shape, order)  # type: ignore[call-overload,no-any-return]


def _whole(where: object, expected: int, actual: int, *, exact: bool = False) -> None:
    if actual < expected or (exact and actual > expected):
        raise DataError(
            f"{where}: is {actual:,} bytes long, its header promises {expected:,}; it was cut short, copy it again"
        )


class Archive:
    """The arrays of a .npz file, opened one by one and never through pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise DataError(
                f"{path}: is not a complete .npz file of {path.stat().st_size:,} bytes ({error}); it was cut short "
                "or is something else, copy it again"
            ) from None
        self.names = tuple(name.removesuffix(".npy") for name in self._zip.namelist())

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def header(self, name: str, *, numbers: bool = False) -> _NpyHeader:
        """Return the head of an array; DataError where `numbers` are wanted and it holds none."""
        with self._member(name) as stream:
            header = read_header(stream, self.where(name))
        if numbers:
            _real(header, self.where(name))
        return header

    def where(self, name: str) -> str:
        """Return file and array for messages."""
        return f"{self.path}, array {name!r}"

    def open(self, name: str, *, numbers: bool = True) -> NDArray[Any]:
        """Return an array, memory-mapped where it is stored uncompressed."""
        header = self.header(name, numbers=numbers)
        entry = self._entry(name)
        _whole(self.where(name), header.length + header.nbytes, entry.file_size)
        if header.nbytes > 10_000_000 and header.nbytes > _MAX_RATIO * entry.compress_size:
            raise DataError(
                f"{self.where(name)}: {header.nbytes:,} bytes of numbers are packed into {entry.compress_size:,}, as "
                f"only repetitions can be (more than {_MAX_RATIO} times smaller); export the curves again"
            )
        if entry.compress_type == zipfile.ZIP_STORED and numbers and header.nbytes:
            with open_file(self.path) as stream:
                stream.seek(entry.header_offset + 26)
                begin = entry.header_offset + 30 + sum(int.from_bytes(stream.read(2), "little") for _ in range(2))
            _whole(self.path, begin + header.length + header.nbytes, self.path.stat().st_size)
            order = "F" if header.fortran else "C"
            return np.memmap(self.path, header.dtype, "r", begin + header.length, header.shape, order)  # type: ignore[call-overload,no-any-return]
        room.need_memory(
            self.path, header.nbytes, f"array {name!r}", "save it with numpy.savez, which is not compressed"
        )
        with self._member(name) as stream:
            try:
                array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
            except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
                raise DataError(f"{self.where(name)}: cannot be read ({error}); copy the file again") from None
        return array

    def _entry(self, name: str) -> zipfile.ZipInfo:
        for entry in (f"{name}.npy", name):
            if entry in self._zip.namelist():
                return self._zip.getinfo(entry)
        raise DataError(f"{self.path}: no array {name!r}; arrays found: {', '.join(self.names)}")

    def _member(self, name: str) -> IO[bytes]:
        entry = self._entry(name)
        try:
            return self._zip.open(entry)
        except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:  # RuntimeError: encrypted
            raise DataError(f"{self.where(name)}: cannot be read ({error}); copy the file again") from None


def read_targets(path: Path, count: int) -> NDArray[np.float64]:
    """Return the targets (N, 2) of a .npy file for `count` curves (case 19)."""
    return as_targets(open_npy(path), str(path), count)


def as_targets(array: NDArray[Any], where: str, count: int) -> NDArray[np.float64]:
    if array.ndim != 2 or array.shape[1] != material.TARGETS:
        raise DataError(f"{where}: has shape {array.shape}, targets have (N, 2): G0 in MPa and a of every curve")
    if len(array) != count:
        raise DataError(
            f"{where}: holds targets of {len(array):,} curves, there are {count:,} curves; every curve needs one pair, "
            "export both again"
        )
    return np.array(array, np.float64)
