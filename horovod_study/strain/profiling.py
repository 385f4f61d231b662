"""Profilers, switched on for some steps after the timed window.

    torch         torch.profiler: a trace of every operator and lap, and a table by operator
    cprofile      Python's own profiler: a table by function, and a file for snakeviz or pstats
    nsys          opens the window in which NVIDIA's nsys records, which was started outside
    pyspy         py-spy, attached to this process from outside: a flame graph, and the stacks for speedscope
    sync-points   calls at which the host waits for the device, with their source lines; on a CPU, where nothing waits,
                  they are seen by their operation, and "would wait on a GPU"

The steps are scratch steps: model and optimiser are put back afterwards. Every rank profiles itself and writes its own
files, because the slow rank is the interesting one. A profiler that fails is a warning: the training is done, and must
not be lost for it.
"""

import cProfile
import ctypes
import linecache
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import IO, Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from horovod_study import records
from horovod_study.comm.base import Backend, fail_together
from horovod_study.comm.horovod import HorovodBackend
from horovod_study.config.run import LAPS, RunConfig
from horovod_study.errors import BackendError, RecordError, StudyError, error_line, refuse
from horovod_study.files import csv_rows, result_folder, write_file, writing
from horovod_study.measure import ranges
from horovod_study.measure.clock import now, open_clock, sleep
from horovod_study.strain.scratch import Scratch
from horovod_study.text.numbers import amount
from horovod_study.text.words import plural

SETTLING_STEPS = 5  # before a profiler begins: what was measured before them has left the caches
_SPY_START_S = 20.0
_FREE = "free space and run again"
_Place = Callable[[str], Path]  # the ending of a file's name -> its path


def require_possible(config: RunConfig, backend: Backend, device: torch.device) -> None:
    """Raise BackendError before training for a profiler, ranges or a timeline that cannot work here."""
    unclear, timeline = ranges.why_not(config.ranges), config.timeline_steps
    # variables that nsys gives to what it starts
    given = {"NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"} & os.environ.keys()
    spy = _spy_hindrance() if config.profile == "pyspy" else ""
    refuse(
        "",
        (unclear, f"ranges {config.ranges} cannot be made: {unclear}; leave ranges out, or use the other kind"),
        (
            timeline and (backend.name != "horovod" or backend.workers == 1),
            f"run: timeline_steps is {timeline}, and the timeline is Horovod's own, of two workers or more: this is "
            f"backend {backend.name} with {plural(backend.workers, 'worker')}; leave timeline_steps out, or use "
            "--backend horovod",
        ),
        (
            config.profile == "nsys" and not (given and device.type == "cuda"),
            "profile nsys needs a GPU, and a process that nsys started: nsys profile --capture-range=cudaProfilerApi "
            "--capture-range-end=stop --trace=cuda,nvtx,osrt -o NAME <the command that starts the run>; or use "
            "--profile torch, pyspy or cprofile",
        ),
        (spy, f"profile pyspy{spy}"),
        error=BackendError,
    )


def profile_path(directory: Path, kind: str, rank: int, ending: str) -> Path:
    """Return the file of one rank's profile, and make its folder; RecordError where that cannot be made."""
    folder = directory / records.PROFILE
    with writing(folder, "make the run directory writable"):
        result_folder(folder)
    return folder / f"{kind}-{rank:05d}.{ending}"


def write_table(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Write a table of a profile as CSV, with a head also where it has no rows; columns are those of the first row."""
    with writing(path, _FREE):
        write_file(path, csv_rows(columns or (list(rows[0]) if rows else []), rows))


def profile(scratch: Scratch, *, kind: str, steps: int, directory: Path, timed_step_s: float) -> list[str]:
    """Make `steps` scratch steps under the profiler `kind` on every rank; return what there is to say.

    Files are those of `profile_path`. `timed_step_s` is the median timed step of this rank, which the
    profiled ones are compared with. Collective.
    """
    step_s: list[float] = []
    notes: list[str] = []
    problem, place = "", partial(profile_path, directory, kind, scratch.backend.rank)
    with scratch.kept():
        scratch.timed(SETTLING_STEPS, open_clock("light", scratch.device))
        for marked, manager in _windows(kind, scratch.device, steps, place, notes):
            clock = open_clock("light", scratch.device)
            watched = ranges.Ranged(clock, marked, scratch.laps) if marked else clock
            scratch.backend.barrier()
            failed = _tried(manager.__enter__)
            watched.start()
            scratch.steps(steps, watched)
            scratch.settle()
            problem = problem or failed or _tried(manager.__exit__, None, None, None)
            step_s.extend(watched.drain()["step_s"].tolist())
    files = [] if problem else sorted(map(str, place("*").parent.glob(place("*").name)))
    found = {"median_s": statistics.median(step_s), "timed_s": timed_step_s, "notes": notes, "problem": problem}
    found["files"] = [(path, os.path.getsize(path)) for path in files]
    return _lines(kind, steps, scratch.backend.gather(found))


def _tried(call: Callable[..., object], *arguments: Any) -> str:
    """Call; return what stood in the way, empty if nothing did."""
    try:
        call(*arguments)
    except (OSError, StudyError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        return error_line(error)
    return ""


def _windows(
    kind: str, device: torch.device, steps: int, place: _Place, notes: list[str]
) -> Iterator[tuple[ranges.Marker | None, AbstractContextManager[None]]]:
    """Yield each stretch of steps that the profiler takes: where laps are shown as ranges, and what is switched on."""
    if kind == "torch":
        yield ranges.recorded(), _torch(device, steps, place)
    elif kind == "cprofile":
        yield None, _cprofile(steps, place)
    elif kind == "nsys":
        yield (torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop), _nsys(notes)
    elif kind == "sync-points":
        finder = Finder()
        yield (finder.not_in_data if device.type == "cpu" else None), _sync_points(finder, device, steps, place, notes)
    else:  # one format for each time that py-spy is attached
        yield None, _spy("flamegraph", place("svg"))
        yield None, _spy("speedscope", place("json"))


def _told(what: str, steps: int, everybody: list[dict[str, Any]]) -> str:
    """Return how slow the steps of the slowest rank were, beside its timed ones."""
    slow_s, timed_s = max((each["median_s"], each["timed_s"]) for each in everybody)
    who = " of the slowest rank" * (len(everybody) > 1)
    compared = f", {slow_s / timed_s:.2f} times the {timed_s * 1e3:.2f} ms of timed ones" if timed_s > 0 else ""
    window = f"{steps} scratch steps after the timed window, {slow_s * 1e3:.2f} ms (median{who}){compared}"
    return f"{what}: {window}; these steps are not the timed ones"


def _lines(kind: str, steps: int, everybody: list[dict[str, Any]]) -> list[str]:
    lines = [_told(f"profile {kind}", steps, everybody)]
    for rank, each in enumerate(everybody):
        rank_is = f"rank {rank}: " * (len(everybody) > 1)
        if each["problem"]:
            lines.append(f"warning: {rank_is}profile {kind} wrote nothing: {each['problem']}")
        lines += [f"  {rank_is}{note}" for note in each["notes"]]
    written = [each["files"] for each in everybody if each["files"]]
    if written:
        names = ", ".join(f"{path} ({amount(size)})" for path, size in written[0])
        lines.append(f"  wrote {names}" + " and those of the other ranks" * (len(written) > 1))
    return lines


@contextmanager
def _torch(device: torch.device, steps: int, place: _Place) -> Iterator[None]:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or its library prints lines that say nothing
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    profiler = torch.profiler.profile(activities=activities, acc_events=True)  # without it, torch warns of other uses
    profiler.start()
    try:
        yield
    finally:
        profiler.stop()
    profiler.export_chrome_trace(str(place("json.gz")))
    rows = []
    for each in profiler.key_averages():
        row = {"operator": each.key, "calls": each.count, "calls_per_step": each.count / steps}
        row |= {"self_host_s": each.self_cpu_time_total / 1e6, "total_host_s": each.cpu_time_total / 1e6}
        if device.type == "cuda":
            row |= {"self_device_s": each.self_device_time_total / 1e6, "total_device_s": each.device_time_total / 1e6}
        rows.append(row)
    by = "self_device_s" if device.type == "cuda" else "self_host_s"
    write_table(place("csv"), sorted(rows, key=lambda row: (-row[by], row["operator"])))


@contextmanager
def _cprofile(steps: int, place: _Place) -> Iterator[None]:
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        yield
    finally:
        profiler.disable()
    rows = []
    for each in profiler.getstats():
        code: Any = each.code
        builtin = isinstance(code, str)
        where = (code.strip("<>"), "", 0) if builtin else (code.co_qualname, code.co_filename, code.co_firstlineno)
        row = dict(zip(("function", "file", "line"), where, strict=True))
        row |= {"calls": each.callcount, "calls_per_step": each.callcount / steps}
        rows.append({**row, "self_s": each.inlinetime, "total_s": each.totaltime})
    rows.sort(key=lambda row: (-row["self_s"], row["function"], row["file"], row["line"]))
    write_table(place("csv"), rows)
    with writing(place("prof"), _FREE):
        profiler.dump_stats(place("prof"))  # nothing here reads it


@contextmanager
def _nsys(notes: list[str]) -> Iterator[None]:
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
    notes.append("nsys writes its report when it ends; open it with nsys-ui, or read it with nsys stats")


@contextmanager
def _sync_points(finder: "Finder", device: torch.device, steps: int, place: _Place, notes: list[str]) -> Iterator[None]:
    with finder.watching(device):
        yield
    points = finder.points()
    columns = ("operation", "file", "line", "function", "count", "per_step", "source")
    rows = [{**each._asdict(), "count": each.number, "per_step": each.number / steps} for each in points]
    write_table(place("csv"), rows, columns)
    waits = "waits for the device" if device.type == "cuda" else "would wait on a GPU"
    if not points:
        notes.append(f"no call in a step {waits}")
    for each in points[:10]:  # the file holds all
        notes.append(f"{each.number / steps:.3g} per step: {each} ({waits})")
    if len(points) > 10:
        notes.append(f"and {len(points) - 10} more places")


def _spy_program() -> str | None:
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _spy_hindrance() -> str:
    """Return why py-spy is not there, or may not look into this process, which is tried; or ""."""
    other = "use --profile cprofile"
    if (program := _spy_program()) is None:
        return f" needs py-spy, which is not installed; pip install 'horovod_study[probes]', or {other}"
    line = [program, "dump", "--pid", str(os.getpid())]
    try:
        with _looking_permitted():
            tried = subprocess.run(line, capture_output=True, text=True, timeout=_SPY_START_S)
    except (OSError, subprocess.SubprocessError) as error:
        return f": {program} does not start ({error_line(error)}); install it again"
    why = next((text.strip() for text in reversed(tried.stderr.splitlines()) if text.strip()), "no reason given")
    remedy = f"run as root, in a container with --cap-add SYS_PTRACE, or {other}"
    return f": py-spy may not look into this process ({why}); {remedy}" if tried.returncode else ""


@contextmanager
def _looking_permitted() -> Iterator[None]:
    """Let py-spy, a child, look at this process where the system lets only parents look at their children (Yama)."""
    prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: None)
    set_ptracer = 0x59616D61  # linux/prctl.h
    prctl(set_ptracer, ctypes.c_ulong(-1), 0, 0, 0)  # any process
    try:
        yield
    finally:
        prctl(set_ptracer, 0, 0, 0, 0)


@contextmanager
def _spy(form: str, path: Path) -> Iterator[None]:
    """Attach py-spy for the time of the block."""
    with _looking_permitted():
        line = [_spy_program() or "py-spy", "record", "--pid", str(os.getpid()), "--rate", "500"]
        line += ["--format", form, "--output", str(path)]
        spy = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        assert spy.stdout is not None
        try:
            told = _wait_until_sampling(spy, spy.stdout)
            yield
            spy.send_signal(signal.SIGINT)
            told += spy.communicate(timeout=60)[0].decode(errors="replace")
        finally:
            if spy.poll() is None:
                spy.kill()
                spy.wait()
            spy.stdout.close()
    if spy.returncode or not path.exists():
        raise RecordError(f"py-spy wrote nothing ({' '.join(told.split()) or spy.returncode}); make more steps")


def _wait_until_sampling(spy: "subprocess.Popen[bytes]", output: IO[bytes]) -> str:
    """Return what py-spy said until it samples; raise RecordError if it ends before, or takes too long."""
    os.set_blocking(output.fileno(), False)
    told, began = "", now()
    while "Sampling process" not in told:
        ended = spy.poll() is not None  # asked before the read: what it said last is in the pipe then
        told += (output.read() or b"").decode(errors="replace")
        if ended or now() - began > _SPY_START_S:
            raise RecordError(f"py-spy did not begin ({' '.join(told.split())}); use --profile cprofile")
        sleep(0.002)
    os.set_blocking(output.fileno(), True)
    return told


_WAITING = {
    "_local_scalar_dense": "item",
    "_unique2": "unique",
    "unique_dim": "unique",
    **{name: name for name in ("nonzero", "masked_select", "unique_consecutive", "equal", "allclose", "bincount")},
    "repeat_interleave": "repeat_interleave",
}
"""Operation of ATen -> what it is called in Python. The host needs their result, or the size of it, to go on."""

_CUDA_WARNING = "called a synchronizing CUDA operation"
_TORCH = os.path.dirname(torch.__file__) + os.sep
_STANDARD = (sysconfig.get_paths()["stdlib"] + os.sep, "<frozen ")
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class SyncPoint(NamedTuple):
    """One source line that makes the host wait, and how often it did."""

    operation: str
    file: str
    line: int
    function: str
    source: str  # the text of the line
    number: int  # how often

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.operation} in {self.function}: {self.source}"


class Finder:
    """Collects the calls that wait while its `watching` is entered."""

    def __init__(self) -> None:
        self._found: Counter[tuple[str, str, int, str]] = Counter()
        self.paused = False

    def note(self, operation: str, frame: FrameType | None) -> None:
        """Count one call, made below `frame`."""
        if not self.paused:
            user = _users_frame(frame)
            where = (user.f_code.co_filename, user.f_lineno, user.f_code.co_qualname) if user else ("?", 0, "?")
            self._found[operation, *where] += 1

    def points(self) -> list[SyncPoint]:
        """Return what was found, the most frequent first, then by place."""
        here = os.getcwd() + os.sep
        rows = sorted(self._found.items(), key=lambda each: (-each[1], each[0][1:3], each[0][0]))
        return [
            SyncPoint(operation, file.removeprefix(here), line, function, linecache.getline(file, line).strip(), count)
            for (operation, file, line, function), count in rows
        ]

    @contextmanager
    def watching(self, device: torch.device) -> Iterator[None]:
        """Note the waiting calls that are made inside, in the way of the device that computes."""
        if device.type == "cuda":
            with self._warned():
                yield
        else:
            with _ToHost() as methods, _Waiting() as operations:  # type: ignore[no-untyped-call]
                methods.note = operations.note = self.note
                yield

    @property
    def not_in_data(self) -> tuple[Callable[[str], object], Callable[[], object]]:
        """Ranges in which the lap data is passed over: on a CPU batches are made from tensors of the host anywhere."""

        def push(name: str) -> None:
            self.paused = name == LAPS[0]

        return push, lambda: None

    @contextmanager
    def _warned(self) -> Iterator[None]:
        def show(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
            if _CUDA_WARNING in str(message):
                self.note("CUDA call", sys._getframe(1))
            else:
                shown(message, category, *rest, **named)

        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            shown = warnings.showwarning
            warnings.filterwarnings("always", message=f".*{_CUDA_WARNING}")
            # PyTorch says so when it is switched on
            warnings.filterwarnings("ignore", message=".*Synchronization debug mode is a prototype feature")
            warnings.showwarning = show  # the place that a warning names is a line of PyTorch where that made the call
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode(before)


class _Waiting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation that really runs, backward and hooks included."""

    note: Callable[[str, FrameType | None], None]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        operation = _WAITING.get(name, "")
        indices = args[1] if name in ("index", "index_put", "index_put_") and len(args) > 1 else ()
        if any(isinstance(each, torch.Tensor) and each.dtype in (torch.bool, torch.uint8) for each in indices):
            operation = "indexing by a mask"
        if name == "repeat_interleave" and (kwargs or {}).get("output_size") is not None:
            operation = ""
        # Optimisers keep their step counts on the host on a GPU too, and read them there.
        frames = walk_stack(sys._getframe(1)) if operation == "item" else ()
        if operation and not any(each.f_code.co_filename.startswith(f"{_TORCH}optim{os.sep}") for each, _ in frames):
            self.note(operation, sys._getframe(1))
        return func(*args, **(kwargs or {}))


class _ToHost(TorchFunctionMode):
    """Sees the methods that are no operation on a CPU, because the tensor is there already."""

    note: Callable[[str, FrameType | None], None]

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        # Tensor.numpy is none of them: on a GPU it fails instead of waiting.
        if name in ("cpu", "tolist") and args and isinstance(args[0], torch.Tensor):
            self.note(name, sys._getframe(1))
        return func(*args, **(kwargs or {}))


def _users_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of no installed package, else the innermost of another package than PyTorch."""
    candidate = None
    for each, _ in walk_stack(frame):
        file = each.f_code.co_filename
        installed = any(part in file for part in _PACKAGES)
        if file == __file__ or file.startswith(_TORCH) or (file.startswith(_STANDARD) and not installed):
            continue
        if not installed:
            return each
        candidate = candidate or each
    return candidate


_LIMIT_BYTES = 64_000_000  # recording ends early when the file has so many bytes


def horovod_timeline(scratch: Scratch, *, steps: int, directory: Path, timed_step_s: float) -> list[str]:
    """Write Horovod's timeline of `steps` scratch steps into the run directory; return what there is to say.

    Horovod writes it from a thread of rank 0 that never sleeps, from the moment it is told at its start that there may
    be a timeline. So it is stopped after the timed window and started once more, and nothing is to be measured after.
    Collective. `timed_step_s` is the median timed step of this rank. Raises RecordError, on all ranks, if Horovod wrote
    no file.
    """
    backend = scratch.backend
    assert isinstance(backend, HorovodBackend)
    path = directory.absolute() / records.TIMELINE
    writes = backend.rank == 0
    ended_at: list[int] = []

    def watch_size(step: int) -> None:
        if writes and not ended_at and path.exists() and path.stat().st_size > _LIMIT_BYTES:
            backend.stop_timeline()
            ended_at.append(step)

    with fail_together(backend):
        if writes:  # that of an earlier attempt would be taken for this one's
            with writing(path, "move it away"):
                path.unlink(missing_ok=True)
    with scratch.kept():
        backend.restart_with_timeline()
        clock = open_clock("light", scratch.device)
        scratch.timed(10, clock)  # Horovod remembers what it negotiated
        backend.barrier()
        if writes:
            backend.start_timeline(path)
        backend.barrier()
        step_s = statistics.median(scratch.timed(steps, clock, watch_size)["step_s"].tolist())
        if writes and not ended_at:
            backend.stop_timeline()
    with fail_together(backend):
        if writes and not path.exists():
            raise RecordError(f"{path}: Horovod wrote no timeline; make the run directory writable for rank 0")
    made, size = ended_at[0] if ended_at else steps, path.stat().st_size if writes else 0
    told = [_told("timeline", made, backend.gather({"median_s": step_s, "timed_s": timed_step_s}))]
    if ended_at:
        told.append(f"warning: the timeline ends after {made} of {steps} steps, at {amount(_LIMIT_BYTES)}")
    how = f"read it with horovod-study explain --part timeline {shlex.quote(str(directory))}"
    return [*told, f"  wrote {path} ({amount(size)}); {how}"]
