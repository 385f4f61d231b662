"""The data set on disk: made once, checked, memory-mapped by every worker of a node, split and batched.

A data set is a directory, moved into place whole:

    curves.npy      float32 (N, 3, 201): strain, stress in MPa, flag
    targets.npy     float32 (N, 2): G0 and a, normalised to 0..1 with the bounds in dataset.json
    dataset.json    the side-car: specification, seed, sizes, bounds, SHA-256 of every block of rows

Curve i belongs to the test set if i % 4 == 3, whatever the size of the data set, so that a small and a large data set
never leak into each other. Letters: N curves, B curves in a batch, C = 3 channels, L = 201 points, P = 2 targets.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod_study.errors import DataError
from horovod_study.workload import material

CURVES, TARGETS, SIDECAR = "curves.npy", "targets.npy", "dataset.json"
BLOCK_ROWS = 25_000
"""Rows per hashed block, also the unit of work of the generating processes."""
_BYTES_PER_CURVE = 4 * (material.CHANNELS * material.POINTS + material.TARGETS)
_LARGEST_SIZE = 10**9

Tell = Callable[[int, int], None]
"""Called with (curves done, curves in all) while a long operation goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """An opened data set: arrays that live in the page cache, shared by all workers of a node."""

    path: Path
    curves: NDArray[np.float32]  # (N, C, L), memory-mapped
    targets: NDArray[np.float32]  # (N, P), memory-mapped
    sidecar: dict[str, Any]

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

    def digest(self) -> str:
        """Return a short text that differs when the content differs."""
        return hashlib.sha256(json.dumps(self.sidecar["sha256"], sort_keys=True).encode()).hexdigest()[:16]


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
            raise DataError(
                f"batch {batch} x {workers} workers = {batch * workers} curves per step, but the training set has "
                f"{train_size}; use a smaller --batch, fewer workers or a larger --dataset"
            )

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
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "horovod_study" / "data"


def cached_path(size: int, seed: int, noise_max_mpa: float = material.NOISE_MAX_MPA) -> Path:
    """Return the place of a generated data set in the cache."""
    return cache_directory() / f"{material.SPEC.replace(' ', '-')}-{size}-seed{seed}-noise{noise_max_mpa:g}"


def parse_size(text: str) -> int | None:
    """Return the number of curves meant by `text` ('100000', '1e6', '100_000'), None if it is a path."""
    try:
        size = int(text) if not any(c in text for c in ".eE") else float(text)
    except ValueError:
        return None
    if size != int(size) or not 1 <= size <= _LARGEST_SIZE:
        raise DataError(f"dataset {text}: a size must be a whole number of curves from 1 to {_LARGEST_SIZE:,}")
    return int(size)


def generate(
    path: Path,
    size: int,
    *,
    seed: int,
    noise_max_mpa: float = material.NOISE_MAX_MPA,
    processes: int = 1,
    tell: Tell | None = None,
) -> None:
    """Generate `size` curves into the directory `path`, which appears complete or not at all.

    `processes` of them fill disjoint blocks of rows of one file. Raises DataError if the directory exists, cannot be
    written, or the disk is too small.
    """
    if path.exists():
        raise DataError(f"{path}: exists already; choose another --out, or remove it first")
    needed = size * _BYTES_PER_CURVE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        if free < needed * 1.02:
            raise DataError(
                f"{path.parent}: {size:,} curves need {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free; "
                "choose a smaller --size or another folder"
            )
        making = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error}); choose another folder") from None
    try:
        making.chmod(0o755)
        _create_arrays(making, size)
        job = {"directory": str(making), "size": size, "seed": seed, "noise_max_mpa": noise_max_mpa}
        hashes = _fill_in_processes(job, processes, tell) if processes > 1 else _fill_here(job, tell)
        sidecar = {
            "spec": material.SPEC,
            "seed": seed,
            "size": size,
            "noise_max_mpa": noise_max_mpa,
            "bounds": {"g0_mpa": material.G0_MPA, "a": material.A},
            "numpy": np.__version__,
            "block_rows": BLOCK_ROWS,
            "sha256": hashes,
        }
        (making / SIDECAR).write_text(json.dumps(sidecar, indent=1) + "\n", encoding="utf-8")
        for name in (CURVES, TARGETS, SIDECAR):
            _flush_to_disk(making / name)
        making.rename(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error}); free space and try again") from None
    finally:
        shutil.rmtree(making, ignore_errors=True)


def ensure(dataset: str, *, seed: int, processes: int = 1, tell: Tell | None = None) -> Path:
    """Return the path of a data set named by path or size; one named by size is generated if it is not cached.

    Processes that want the same one wait for the first of them.
    """
    path = path_of(dataset, seed=seed)
    size = parse_size(dataset)
    if size is not None and not path.exists():
        with _lock(path):
            if not path.exists():  # another process may have made it while this one waited
                generate(path, size, seed=seed, processes=processes, tell=tell)
    return path


def path_of(dataset: str, *, seed: int) -> Path:
    """Return the path of a data set named by path or size, whether it is there or not."""
    size = parse_size(dataset)
    return Path(dataset) if size is None else cached_path(size, seed)


def is_cached(dataset: str, *, seed: int) -> bool:
    """Return whether `ensure` would find the data set without generating it."""
    return parse_size(dataset) is None or path_of(dataset, seed=seed).exists()


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = open(path.with_name(f".{path.name}.lock"), "w")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror}); set HOROVOD_STUDY_DATA to a writable folder"
        ) from None
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _create_arrays(directory: Path, size: int) -> None:
    for name, shape in (
        (CURVES, (size, material.CHANNELS, material.POINTS)),
        (TARGETS, (size, material.TARGETS)),
    ):
        np.lib.format.open_memmap(directory / name, mode="w+", dtype=np.dtype("<f4"), shape=shape).flush()


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _blocks(size: int) -> list[tuple[int, int]]:
    return [(low, min(low + BLOCK_ROWS, size)) for low in range(0, size, BLOCK_ROWS)]


def _fill_block(job: dict[str, Any], low: int, high: int) -> dict[str, str]:
    """Generate the rows low..high-1 into the files of a job; return the SHA-256 of each file's rows."""
    curves, targets = material.generate(job["seed"], low, high, noise_max_mpa=job["noise_max_mpa"])
    hashes = {}
    for name, rows in ((CURVES, curves), (TARGETS, targets)):
        # Plain writes instead of stores through a map: a full disk is an error here, not a bus error.
        with open(Path(job["directory"]) / name, "r+b") as stream:
            stream.seek(_header_bytes(stream) + low * rows[0].nbytes)
            stream.write(rows.data)
        hashes[name] = hashlib.sha256(rows.data).hexdigest()
    return hashes


def _header_bytes(stream: Any) -> int:
    version = np.lib.format.read_magic(stream)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    reader(stream)
    return int(stream.tell())


def _fill_here(job: dict[str, Any], tell: Tell | None) -> dict[str, list[str]]:
    hashes: dict[str, list[str]] = {CURVES: [], TARGETS: []}
    for low, high in _blocks(job["size"]):
        for name, digest in _fill_block(job, low, high).items():
            hashes[name].append(digest)
        if tell:
            tell(high, job["size"])
    return hashes


def _fill_in_processes(job: dict[str, Any], processes: int, tell: Tell | None) -> dict[str, list[str]]:
    """Share the blocks among fresh interpreters that import numpy only.

    Not multiprocessing: forking a process that has started MPI or CUDA is not safe, and spawning would import the
    caller's main module, PyTorch included, once more in every process.
    """
    blocks = _blocks(job["size"])
    processes = min(processes, len(blocks))
    command = [sys.executable, "-m", "horovod_study.workload.dataset"]
    workers = [
        subprocess.Popen(
            [*command, json.dumps({**job, "first": k, "stride": processes})], stdout=subprocess.PIPE, text=True
        )
        for k in range(processes)
    ]
    found: dict[int, dict[str, str]] = {}
    try:
        for line in _lines_of(workers):
            message = json.loads(line)
            found[message["block"]] = message["sha256"]
            if tell:
                tell(sum(blocks[k][1] - blocks[k][0] for k in found), job["size"])
        codes = [worker.wait() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            if worker.stdout:
                worker.stdout.close()
    if any(codes) or len(found) != len(blocks):
        raise DataError(
            f"{job['directory']}: a generating process ended early (exit codes {codes}); "
            "see its message above, then try again"
        )
    return {name: [found[k][name] for k in range(len(blocks))] for name in (CURVES, TARGETS)}


def _lines_of(workers: list[subprocess.Popen[str]]) -> Iterator[str]:
    """Yield the lines the workers print, in the order in which they come."""
    import selectors

    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
        while selector.get_map():
            for key, _ in selector.select():
                line = key.fileobj.readline()  # type: ignore[union-attr]
                if line:
                    yield line
                else:
                    selector.unregister(key.fileobj)


def _worker(argument: str) -> None:
    """Fill every stride-th block of a job and print one line per block."""
    job = json.loads(argument)
    blocks = _blocks(job["size"])
    for block in range(job["first"], len(blocks), job["stride"]):
        print(json.dumps({"block": block, "sha256": _fill_block(job, *blocks[block])}), flush=True)


# ------------------------------------------------------------------------------------------------ opening, checking


def open_dataset(path: Path) -> Dataset:
    """Open a data set without reading its rows; sizes, types and version are checked against the side-car."""
    if not path.exists():
        raise DataError(
            f"{path}: no such data set; make it with `horovod-study data generate`, or give a size instead of a path"
        )
    try:
        sidecar = json.loads((path / SIDECAR).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path}: is not a data set (no {SIDECAR}); name one made by horovod-study data generate"
        ) from None
    except NotADirectoryError:
        raise DataError(f"{path}: is a file; name the directory that horovod-study data generate made") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path / SIDECAR}: cannot be read ({error}); generate the data set again") from None
    if sidecar.get("spec") != material.SPEC:
        raise DataError(
            f"{path}: data set of version {sidecar.get('spec')!r}, this program reads {material.SPEC!r}; "
            "generate it again into another folder"
        )
    size = sidecar["size"]
    curves = _open_array(path / CURVES, (size, material.CHANNELS, material.POINTS))
    targets = _open_array(path / TARGETS, (size, material.TARGETS))
    return Dataset(path=path, curves=curves, targets=targets, sidecar=sidecar)


def _open_array(path: Path, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Map a .npy file after checking its header and its length; pages are private but never written."""
    try:
        with path.open("rb") as stream:
            header = _header_bytes(stream)
        actual = path.stat().st_size
        expected = header + 4 * int(np.prod(shape))
        if actual != expected:
            raise DataError(
                f"{path}: is {actual:,} bytes long, its header promises {expected:,}; it was cut short, "
                "generate it again"
            )
        array: NDArray[np.float32] = np.load(path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; generate the data set again") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: is not a readable .npy file ({error}); generate the data set again") from None
    if array.shape != shape or array.dtype != np.dtype("<f4"):
        raise DataError(
            f"{path}: holds {array.dtype} {array.shape}, the side-car says float32 {shape}; generate it again"
        )
    return array


def check(path: Path, *, tell: Tell | None = None) -> dict[str, Any]:
    """Read the whole data set and return what was verified; raise DataError at the first thing that is wrong.

    Checked: sizes against headers, every block's SHA-256, targets inside 0..1, flags and padding, strictly
    increasing strain. The result holds size, split, and the largest deviation of the targets' mean from 1/2.
    """
    dataset = open_dataset(path)
    rows = dataset.sidecar["block_rows"]
    for block, low in enumerate(range(0, dataset.size, rows)):
        high = min(low + rows, dataset.size)
        for name, array in ((CURVES, dataset.curves), (TARGETS, dataset.targets)):
            digest = hashlib.sha256(np.ascontiguousarray(array[low:high]).data).hexdigest()
            if digest != dataset.sidecar["sha256"][name][block]:
                raise DataError(
                    f"{path / name}: curves {low}..{high - 1} are not what was generated (SHA-256 differs); "
                    "the file was changed or damaged, generate it again"
                )
        _check_rows(path, low, dataset.curves[low:high], dataset.targets[low:high])
        if tell:
            tell(high, dataset.size)
    return {
        "path": str(path),
        "spec": dataset.sidecar["spec"],
        "seed": dataset.sidecar["seed"],
        "noise_max_mpa": dataset.sidecar["noise_max_mpa"],
        "size": dataset.size,
        "train": dataset.train_size,
        "test": dataset.test_size,
        "bytes": dataset.size * _BYTES_PER_CURVE,
        "digest": dataset.digest(),
    }


def _check_rows(path: Path, first: int, curves: NDArray[np.float32], targets: NDArray[np.float32]) -> None:
    strain, stress, flag = curves[:, 0], curves[:, 1], curves[:, 2]
    data = flag == 1
    complaints = {
        "a target outside 0..1": ~((targets >= 0) & (targets <= 1)).all(axis=1),
        "a flag that is not 0 or 1": ~((flag == 0) | data).all(axis=1),
        "padding that is not at the left": (np.diff(flag, axis=1) < 0).any(axis=1),
        "values under the padding": (~data & ((strain != 0) | (stress != 0))).any(axis=1),
        "a value that is not finite": ~np.isfinite(curves).all(axis=(1, 2)),
        "strain that does not increase": (data[:, :-1] & (np.diff(strain, axis=1) <= 0)).any(axis=1),
    }
    for what, wrong in complaints.items():
        if wrong.any():
            raise DataError(f"{path / CURVES}: curve {first + int(wrong.argmax())} has {what}; generate it again")


if __name__ == "__main__":
    _worker(sys.argv[1])
