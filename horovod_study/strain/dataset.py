"""The data set on disk: made once, checked, memory-mapped by every worker of a node, split and batched.

A data set is a directory, moved into place whole:

    curves.npy      float32 (N, 3, 201): strain, stress in MPa, flag
    targets.npy     float32 (N, 2): G0 and a, normalised to 0..1 with the bounds in dataset.json
    dataset.json    the side-car: kind, specification, size, bounds of the targets, statistical floor of the test
                    curves, SHA-256 of every block of rows; the seed if generated, the provenance if imported

Curve i belongs to the test set if i % 4 == 3, whatever the size of the data set, so that a small and a large data set
never leak into each other. Letters: N curves, B curves in a batch, C = 3 channels, L = 201 points, P = 2 targets.
"""

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from horovod_study.config.documents import open_file, read_json
from horovod_study.config.doors import Form, accept, wrong
from horovod_study.config.run import available_cores
from horovod_study.errors import DataError, first_line, refuse
from horovod_study.files import unfinished, write_file, writing
from horovod_study.strain import material, room
from horovod_study.text.numbers import amount
from horovod_study.text.tables import table_of, to_lines

CURVES, TARGETS, SIDECAR = "curves.npy", "targets.npy", "dataset.json"
IMPORTED = "imported v1"  # the specification of an imported set
BLOCK_ROWS = 25_000
"""Rows per hashed block, also the unit of work of a thread."""
_ROWS = {CURVES: (material.CHANNELS, material.POINTS), TARGETS: (material.TARGETS,)}  # shape of one row of each file
_PIECE_ROWS = 256  # rows made, hashed and written at a time: they stay in the processor's cache
BYTES_PER_CURVE = 4 * (material.CHANNELS * material.POINTS + material.TARGETS)
_LARGEST_SIZE = 10**9
_AGAIN = "generate or import it again into another folder"

_Piece = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float64]]
"""Curves (B, 3, 201) and targets (B, 2), contiguous, and the sum of the test curves' Cramer-Rao bounds (2,)."""
_Rows = Callable[[int, int], _Piece]  # the rows low..high-1
_Found = TypeVar("_Found")
OnProgress = Callable[[int, int], None]
"""Called with (curves done, curves in all) while a long operation goes on."""


# -------------------------------------------------------------------------------------------------- the side-car


_Size = Annotated[int, Field(ge=1, le=_LARGEST_SIZE)]
_Mean = Annotated[float, Field(ge=0, le=1e12)]


class _Floor(Form):
    """What material.floor returns."""

    mse: _Mean
    g0_mse: _Mean
    a_mse: _Mean
    g0_rmse_mpa: _Mean
    a_rmse: _Mean
    estimated: bool = False


class _SideCar(Form):
    """What dataset.json says: of a generated set what its curves depend on, of an imported one where they are from."""

    kind: Literal["generated", "imported"] = "generated"  # the first ones had no kind
    spec: Literal["shear-exp v1", "imported v1"]
    size: _Size
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    noise_max_mpa: Annotated[float, Field(ge=0, le=1e9)] | None = None
    provenance: dict[str, Any] | None = None
    target_bounds: list[list[float]] = material.TARGET_BOUNDS.tolist()
    bounds: Any = None  # how the first ones said it
    floor: _Floor | None = None
    numpy: str = ""
    block_rows: _Size
    sha256: dict[str, list[str]]

    @model_validator(mode="after")
    def _agrees(self) -> "_SideCar":
        generated, bounds, blocks = self.kind == "generated", self.target_bounds, -(-self.size // self.block_rows)
        missing = {"seed", "noise_max_mpa"} if generated else {"provenance"}
        foreign = {"seed", "noise_max_mpa", "provenance"} - missing
        of_the_law, made_by = material.TARGET_BOUNDS.tolist(), {"generated": material.SPEC, "imported": IMPORTED}
        for broken, text in (
            (self.spec != made_by[self.kind], f"spec is {self.spec}; {self.kind} sets have {made_by[self.kind]}"),
            *((getattr(self, name) is None, f"{name} is missing") for name in sorted(missing)),
            *((getattr(self, name) is not None, f"{self.kind} sets have no {name}") for name in sorted(foreign)),
            (
                [len(each) for each in bounds] != [2, 2] or any(low >= high for low, high in bounds),
                f"target_bounds is {bounds}; it must be [[low, high] of G0 in MPa, [low, high] of a] with low < high",
            ),
            (generated and bounds != of_the_law, f"target_bounds is {bounds}; those of {self.spec} are {of_the_law}"),
            *(
                (len(self.sha256.get(name, ())) != blocks, f"sha256 must hold {blocks} hashes of {name}")
                for name in _ROWS
            ),
        ):
            if broken:
                raise wrong(text)
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """An opened data set: arrays that live in the page cache, shared by all workers of a node."""

    path: Path
    curves: NDArray[np.float32]  # (N, C, L), memory-mapped
    targets: NDArray[np.float32]  # (N, P), memory-mapped
    sidecar: _SideCar

    @property
    def size(self) -> int:
        """Number of curves N."""
        return len(self.curves)

    @property
    def train_size(self) -> int:
        """Number of training curves: those with i % 4 != 3."""
        return self.size - self.test_size

    @property
    def test_size(self) -> int:
        """Number of test curves: those with i % 4 == 3."""
        return self.size // 4

    @property
    def target_bounds(self) -> NDArray[np.float64]:
        """Return the physical values of each target's 0 and 1, shape (P, 2): G0 in MPa, a."""
        return np.array(self.sidecar.target_bounds)

    @property
    def target_span(self) -> NDArray[np.float64]:
        """Return physical units per unit of each normalised target, shape (P,): MPa for G0."""
        low, high = self.target_bounds.T
        return np.asarray(high - low)

    @property
    def floor(self) -> dict[str, Any] | None:
        """Return the mean Cramer-Rao bound over the test curves (material.floor), None if it is not known."""
        found = self.sidecar.floor
        return None if found is None else found.model_dump(exclude_defaults=True)

    def digest(self) -> str:
        """Return a short text that differs when the content differs."""
        content: dict[str, Any] = self.sidecar.sha256
        if self.sidecar.kind == "imported":  # there the same numbers can mean other targets
            content = {**content, "target_bounds": self.sidecar.target_bounds}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def train_rows(k: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers i of the k-th training curves: 0 1 2 4 5 6 8 ..."""
    return 4 * (k // 3) + k % 3


def test_rows(k: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers i of the k-th test curves: 3 7 11 ..."""
    return 4 * k + 3


class Batches:
    """The share of one worker in the batches of an epoch, the same global batch for every number of workers.

    Epoch e visits the training curves in a random order that depends on (seed, e) only. Global batch k is the k-th
    run of B * workers curves in that order; worker r takes the r-th run of B inside it. So two workers with B = 75
    see the same global batches as one worker with B = 150, and all workers make the same number of steps. The curves
    left over at the end of an epoch, fewer than a global batch, are other ones in each epoch.
    """

    def __init__(self, train_size: int, *, batch: int, rank: int, workers: int, seed: int) -> None:
        self._train_size, self._batch, self._rank, self._workers, self._seed = train_size, batch, rank, workers, seed
        self.steps_per_epoch = train_size // (batch * workers)
        if self.steps_per_epoch == 0:
            wanted = f"batch {batch} x {workers} workers = {batch * workers} curves per step"
            remedy = "use a smaller --batch, fewer workers or a larger --dataset"
            raise DataError(f"{wanted}, but the training set has {train_size}; {remedy}")

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """Return the curve numbers of this worker's batches in order, shape (steps_per_epoch, B)."""
        order = np.random.Generator(np.random.Philox(key=[self._seed, epoch])).permutation(self._train_size)
        used = order[: self.steps_per_epoch * self._batch * self._workers]
        mine = used.reshape(self.steps_per_epoch, self._workers, self._batch)[:, self._rank]
        return train_rows(mine)


# ------------------------------------------------------------------------------------------------ finding, making


def cache_directory() -> Path:
    """Return where generated data sets are kept: $HOROVOD_STUDY_DATA, else the user's cache directory."""
    chosen = os.environ.get("HOROVOD_STUDY_DATA")
    if chosen:
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "horovod_study" / "data"
    except RuntimeError:  # no HOME, and no such user either
        raise DataError("environment variable HOME is not set; set it, or HOROVOD_STUDY_DATA to a folder") from None


def cached_path(size: int, seed: int, noise_max_mpa: float = material.NOISE_MAX_MPA) -> Path:
    """Return the place of a generated data set in the cache."""
    return cache_directory() / f"{material.SPEC.replace(' ', '-')}-{size}-seed{seed}-noise{noise_max_mpa:.15g}"


def parse_size(text: str) -> int | None:
    """Return the number of curves meant by `text` ('100000', '1e6', '100_000'), None if it is a path."""
    try:
        size = int(text) if not any(c in text for c in ".eE") else float(text)
    except ValueError:
        return None
    if not 1 <= size <= _LARGEST_SIZE or size != int(size):
        raise DataError(f"dataset {text}: a size must be a whole number of curves from 1 to {_LARGEST_SIZE:,}")
    return int(size)


def generate(
    path: Path,
    size: int,
    *,
    seed: int,
    noise_max_mpa: float = material.NOISE_MAX_MPA,
    threads: int = 1,
    on_progress: OnProgress | None = None,
) -> None:
    """Generate `size` curves into the directory `path`, which appears complete or not at all.

    `threads` fill disjoint blocks of rows of one file. Raises DataError if the directory exists, cannot be written, or
    the disk is too small.
    """
    drawn = f"data set: seed {seed}, noise_max_mpa {noise_max_mpa}"
    allowed = "a seed is a whole number from 0 to 2**64 - 1, a noise 0 to 1e9 MPa"
    refuse("", (not (0 <= seed < 2**64 and 0 <= noise_max_mpa <= 1e9), f"{drawn}; {allowed}"), error=DataError)
    threads = min(threads, -(-size // BLOCK_ROWS))

    def rows(first: int, last: int) -> _Piece:
        curves = np.empty((last - first, material.CHANNELS, material.POINTS), np.float32)
        targets = np.empty((last - first, material.TARGETS), np.float32)
        levels_mpa = material.fill(seed, first, curves, targets, noise_max_mpa=noise_max_mpa)
        return curves, targets, _floor_sums(first, curves, targets, levels_mpa)

    content = {"kind": "generated", "spec": material.SPEC, "size": size, "seed": seed, "noise_max_mpa": noise_max_mpa}
    _make(path, {**content, "target_bounds": material.TARGET_BOUNDS.tolist()}, rows, threads, on_progress)


def write_imported(
    path: Path,
    curves: Callable[[int, int], NDArray[np.float32]],
    targets: NDArray[np.float32],
    *,
    target_bounds: NDArray[np.float64],
    provenance: dict[str, Any],
    floor: dict[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> None:
    """Write somebody's own curves as the data set directory `path`, which appears complete or not at all.

    `curves(low, high)` are those with numbers low..high-1, (B, 3, 201) each, `targets` (N, 2) normalised with
    `target_bounds` (2, 2). `provenance` (JSON values) says where they come from; `floor` is what material.floor returns
    if the noise is known or estimated. Raises DataError for rows that break the layout, naming the first of them, and
    as `generate` does.
    """

    def rows(first: int, last: int) -> _Piece:
        piece, labels = curves(first, last), np.ascontiguousarray(targets[first:last], dtype="<f4")
        if problem := _wrong_row(first, piece, labels, bounded=False):
            raise DataError(f"{path}/{problem}; correct it and import again")
        return piece, labels, np.zeros(material.TARGETS)

    content = {"kind": "imported", "spec": IMPORTED, "size": len(targets), "target_bounds": target_bounds.tolist()}
    _make(path, {**content, "floor": floor, "provenance": provenance}, rows, 1, on_progress)


def require_new(path: Path) -> None:
    """Raise DataError where there is something at the place of a data set to be made."""
    if path.exists():
        raise DataError(f"{path}: exists already; choose another --out, or remove it first")


def _make(path: Path, content: dict[str, Any], rows: _Rows, threads: int, on_progress: OnProgress | None) -> None:
    """Write `rows` into a folder beside `path`, and the side-car, `content` and hashes; then move the folder there."""
    require_new(path)
    size = content["size"]
    with writing(path, "free space there, or choose another folder", error=DataError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(path, folder=True) as making:
            room.need_disk(path.parent, int(size * BYTES_PER_CURVE * 1.02), f"a data set of {size:,} curves")
            for name, row in _ROWS.items():
                np.lib.format.open_memmap(making / name, mode="w+", dtype=np.dtype("<f4"), shape=(size, *row)).flush()
            blocks = _of_blocks(partial(_write_block, making, rows), size, BLOCK_ROWS, threads, on_progress)
            hashes, sums = zip(*blocks, strict=True)
            content.setdefault("floor", material.floor(np.sum(sums, axis=0), size // 4))
            content |= {"numpy": np.__version__, "block_rows": BLOCK_ROWS}
            content["sha256"] = {name: [block[name] for block in hashes] for name in _ROWS}
            accept(_SideCar, content, str(path / SIDECAR), error=DataError)
            write_file(making / SIDECAR, json.dumps(content, indent=1, allow_nan=False) + "\n")
            for name in (CURVES, TARGETS, SIDECAR):
                with open_file(making / name) as stream:
                    os.fsync(stream.fileno())
            making.rename(path)


def _write_block(directory: Path, rows: _Rows, low: int, high: int) -> tuple[dict[str, str], NDArray[np.float64]]:
    """Write the rows low..high-1 into the two files; return the SHA-256 of each file's, and the sum of their bounds.

    Plain writes instead of stores through a map: a full disk is an error here, not a bus error.
    """
    hashes, sums = {name: hashlib.sha256() for name in _ROWS}, np.zeros(material.TARGETS)
    with ExitStack() as files:
        streams = {name: files.enter_context(open(directory / name, "r+b")) for name in _ROWS}
        for name, row in _ROWS.items():
            streams[name].seek(open_npy(directory / name).offset + 4 * math.prod(row) * low)
        for first in range(low, high, _PIECE_ROWS):
            *piece, more = rows(first, min(first + _PIECE_ROWS, high))
            sums += more
            for name, values in zip(_ROWS, piece, strict=True):
                hashes[name].update(values.data)
                streams[name].write(values.data)
    return {name: each.hexdigest() for name, each in hashes.items()}, sums


def _floor_sums(
    first: int, curves: NDArray[np.float32], targets: NDArray[np.float32], levels_mpa: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the sum of the Cramer-Rao bounds (P,) of the test curves among the curves from number `first` on."""
    test = slice((3 - first) % 4, None, 4)
    found: NDArray[np.float64] = material.bounds(curves[test, 0], targets[test], levels_mpa[test]).sum(axis=0)
    return found


def _of_blocks(
    work: Callable[[int, int], _Found], size: int, rows: int, threads: int, on_progress: OnProgress | None
) -> Iterator[_Found]:
    """Yield what `work` returns of each block of rows, in order; `threads` of them are worked on at once."""
    with ThreadPoolExecutor(threads) as pool:  # generating, hashing and checking let go of the interpreter
        ends = [min(low + rows, size) for low in range(0, size, rows)]
        found = [pool.submit(work, place * rows, high) for place, high in enumerate(ends)]
        try:
            for high, each in zip(ends, found, strict=True):
                yield each.result()
                if on_progress:
                    on_progress(high, size)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # nothing more is done after the first complaint


def page_cache_doubt(size: int) -> str | None:
    """Return a warning if `size` curves do not fit the memory in which all workers of a node share them."""
    needed, available = size * BYTES_PER_CURVE, room.available_bytes()
    if available is None or needed <= available:
        return None
    return (
        f"{size:,} curves are {amount(needed)}, {amount(available)} of memory are free: workers on this "
        "machine will read from disk again in every epoch; use a smaller size, or a machine with more memory"
    )


def ensure(dataset: str, *, seed: int, threads: int = 1, on_progress: OnProgress | None = None) -> Path:
    """Return the path of a data set named by path or size; one named by size is generated if it is not cached.

    Processes that want the same one wait for the first of them, which makes it with `threads`.
    """
    path = path_of(dataset, seed=seed)
    size = parse_size(dataset)
    if size is not None and not path.exists():
        with writing(path, "set HOROVOD_STUDY_DATA to a writable folder", error=DataError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = open(path.with_name(f".{path.name}.lock"), "w")
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():  # another process may have made it while this one waited
                generate(path, size, seed=seed, threads=threads, on_progress=on_progress)
    return path


def path_of(dataset: str, *, seed: int, noise_max_mpa: float = material.NOISE_MAX_MPA) -> Path:
    """Return the path of a data set named by path or size, whether it is there or not."""
    size = parse_size(dataset)
    return Path(dataset) if size is None else cached_path(size, seed, noise_max_mpa)


# ------------------------------------------------------------------------------------------------ opening, checking


def open_dataset(path: Path) -> Dataset:
    """Open a data set without reading its rows; sizes, types and version are checked against the side-car."""
    missing = "no such data set; make it with `horovod-study strain data generate`, or give a size instead of a path"
    sidecar = read_json(path / SIDECAR, _SideCar, error=DataError, again=_AGAIN, missing=missing)
    arrays = {}
    for name, row in _ROWS.items():  # pages are private, but never written
        arrays[name] = open_npy(path / name, mode="c", holds=(np.dtype("<f4"), (sidecar.size, *row)))
    return Dataset(path=path, curves=arrays[CURVES], targets=arrays[TARGETS], sidecar=sidecar)


def open_npy(path: Path, *, mode: Literal["r", "c"] = "r", holds: tuple[Any, ...] = ()) -> np.memmap[Any, Any]:
    """Map the real numbers of a .npy file without unpickling; DataError unless they are all there.

    Pages are read-only, or with mode "c" private to this process. `holds`: the type and shape that they must have.
    """
    remedy = _AGAIN if holds else "copy it again, or save it by numpy.save(file, array, allow_pickle=False)"
    try:
        open_file(path).close()
        found: np.memmap[Any, Any] = np.lib.format.open_memmap(path, mode=mode)
    except Exception as error:  # numpy's reader of heads raises whatever Python's parser does
        held = f" in {path.stat().st_size:,} bytes" if path.is_file() else ""
        why = f"is no whole .npy file of numbers{held} ({first_line(error)[:100]})"
        raise DataError(f"{path}: {why}; {remedy}") from None
    is_now, expected = (found.dtype, found.shape), holds or ("real numbers", "of any shape")
    wrong = found.dtype.kind not in "fiu" or not found.size or holds not in ((), is_now)
    holds_now = f"holds {found.dtype} {found.shape}, expected are {' '.join(map(str, expected))}"
    size, told = path.stat().st_size, found.offset + found.nbytes
    other = f"has {size:,} bytes, its head tells of {told:,}; {remedy}"
    refuse(str(path), (wrong, f"{holds_now}; {remedy}"), (size != told, other), error=DataError)
    return found


def check(path: Path, *, threads: int | None = None, on_progress: OnProgress | None = None) -> dict[str, Any]:
    """Read the whole data set and return what was verified; raise DataError at the first thing that is wrong.

    Checked: sizes against headers, every block's SHA-256, targets inside 0..1 (imported: finite), flags and padding,
    strictly increasing strain, bounds of the targets. The Cramer-Rao floor of a generated set is computed again, from
    the strain and the targets on disk and the noise levels of the seed, and compared with the side-car's; an imported
    set's noise is not known, so that its floor can only be repeated. `threads` (default: the cores) check blocks at
    once.
    """
    dataset = open_dataset(path)
    sidecar, generated = dataset.sidecar, dataset.sidecar.kind == "generated"
    work, threads = partial(_check_block, dataset), threads or available_cores()
    sums = list(_of_blocks(work, dataset.size, sidecar.block_rows, threads, on_progress))
    computed = material.floor(np.sum(sums, axis=0), dataset.test_size) if generated else dataset.floor
    if generated and dataset.floor and computed:
        for name, value in computed.items():
            if not np.isclose(dataset.floor[name], value, rtol=1e-6, atol=0):  # another machine's exp
                found = f"floor {name} is {dataset.floor[name]}, the test curves on disk have {value:.6g}"
                raise DataError(f"{path / SIDECAR}: {found}; the side-car was changed, {_AGAIN}")
    return {
        "path": str(path),
        "kind": sidecar.kind,
        **{name: getattr(sidecar, name) for name in ("spec", "seed", "noise_max_mpa", "provenance")},
        "size": dataset.size,
        "train": dataset.train_size,
        "test": dataset.test_size,
        "bytes": dataset.size * BYTES_PER_CURVE,
        "blocks": len(sums),
        "target_bounds": dataset.target_bounds.tolist(),
        "floor": computed,
        "floor_recomputed": generated,
        "floor_in_sidecar": dataset.floor is not None,
        "digest": dataset.digest(),
    }


def lines(facts: Mapping[str, Any]) -> list[str]:
    """Return what `check` found, as lines."""
    (g0_low, g0_high), (a_low, a_high) = facts["target_bounds"]
    generated, floor, train, test = facts["kind"] == "generated", facts["floor"], facts["train"], facts["test"]
    if generated:
        made = f"{facts['spec']}, seed {facts['seed']}, noise up to {facts['noise_max_mpa']:g} MPa"
    else:
        known = {name: value for name, value in facts["provenance"].items() if name not in ("ids", "files", "warnings")}
        made = f"import of {json.dumps(known)}"
    rows = [
        ("made by", made),
        ("split", f"{facts['size']:,} curves: {train:,} for training, {test:,} for testing (every fourth)"),
        ("files", f"{amount(facts['bytes'])}; SHA-256 of all {facts['blocks']} blocks agree"),
        ("layout", "flags, padding and increasing strain agree with the specification"),
        (
            "targets",
            f"G0 {g0_low:g} to {g0_high:g} MPa, a {a_low:g} to {a_high:g}; all {'inside' if generated else 'finite'}",
        ),
        ("floor", "not known: nothing says how noisy the test curves are, or there are none"),
        ("digest", facts["digest"]),
    ]
    if floor is not None:
        source = "from the test curves on disk" if generated else "estimated at the import"
        rows[5:6] = [
            ("floor", f"test MSE {floor['mse']:.3e} (Cramer-Rao bound {source})"),
            ("", f"  G0 {floor['g0_mse']:.3e}, root {floor['g0_rmse_mpa']:.2f} MPa"),
            ("", f"  a  {floor['a_mse']:.3e}, root {floor['a_rmse']:.3f}"),
        ]
    return [f"{facts['path']}: good", *to_lines(table_of(("", ""), rows, texts=(0, 1)), indent=2)]


def _check_block(dataset: Dataset, low: int, high: int) -> NDArray[np.float64]:
    """Check the rows low..high-1 piece by piece; return the sum of their test curves' Cramer-Rao bounds, (P,)."""
    hashes = {name: hashlib.sha256() for name in _ROWS}
    sidecar, sums, problem = dataset.sidecar, np.zeros(material.TARGETS), ""
    for first in range(low, high, _PIECE_ROWS):
        last = min(first + _PIECE_ROWS, high)
        # Copies: plain memory is faster to go over several times than a map.
        curves, targets = np.array(dataset.curves[first:last]), np.array(dataset.targets[first:last])
        hashes[CURVES].update(curves.data)
        hashes[TARGETS].update(targets.data)
        problem = problem or _wrong_row(first, curves, targets, bounded=sidecar.kind == "generated")
        if sidecar.seed is not None and sidecar.noise_max_mpa is not None and not problem:
            levels = material.noise_levels_mpa(sidecar.seed, first, last, noise_max_mpa=sidecar.noise_max_mpa)
            sums += _floor_sums(first, curves, targets, levels)
    for name, digest in hashes.items():
        if digest.hexdigest() != sidecar.sha256[name][low // sidecar.block_rows]:  # which explains a wrong row
            changed = f"curves {low}..{high - 1} are not what was {sidecar.kind} (SHA-256 differs)"
            problem = f"{name}: {changed}; the file was changed or damaged"
            break
    if problem:
        raise DataError(f"{dataset.path}/{problem}; {_AGAIN}")
    return sums


def _wrong_row(first: int, curves: NDArray[np.float32], targets: NDArray[np.float32], *, bounded: bool) -> str:
    """Return in words which row breaks the layout first, and how, "" for none.

    Targets are `bounded` by 0 and 1 if they were generated; imported ones may have the training curves' bounds, and
    then a test curve may be outside.
    """
    strain, stress, flag = curves[:, 0], curves[:, 1], curves[:, 2]
    data = flag == 1
    rules = {
        "a target outside 0..1": bounded & ~((targets >= 0) & (targets <= 1)).all(axis=1),
        "a target that is not finite": ~np.isfinite(targets).all(axis=1),
        "a flag that is not 0 or 1": ~((flag == 0) | data).all(axis=1),
        "padding that is not at the left": (np.diff(flag, axis=1) < 0).any(axis=1),
        "values under the padding": (~data & ((strain != 0) | (stress != 0))).any(axis=1),
        "a value that is not finite": ~np.isfinite(curves).all(axis=(1, 2)),
        "strain that does not increase": (data[:, :-1] & (np.diff(strain, axis=1) <= 0)).any(axis=1),
    }
    wrong = ((what, rows) for what, rows in rules.items() if rows.any())
    return next((f"{CURVES}: curve {first + int(rows.argmax())} has {what}" for what, rows in wrong), "")
