"""What single verbs measure: `bench`, `bench timers`, `bench equality`, `explain --part sync --measure`, `lr-range`.

What trains is a cell of a study (`runner.py`); `run_ranks` is for everything else that needs ranks, the proof of
equality (docs/bench.md) included. Raw MPI and Gloo alternate with Horovod over MPI in one launch, so that a slow moment
of the machine hits all of them. Started under a launcher, `bench` measures in that launch and starts none.

Arms of `explain --part sync --measure`: the shipped settings, the libraries' defaults, and for Horovod two cycle times,
one ten times the other, with everything else alike. In these two the thread's idle sleep is off: with it new gradients
end the sleep at once, and the cycle would not count. Beside them one worker alone, which says what an efficiency of 1
is.
"""

import importlib.util
import itertools
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from horovod_study.cluster.identity import code_digest
from horovod_study.config.documents import load_yaml, read_json, read_text
from horovod_study.config.doors import Options, at_least, one_of
from horovod_study.config.options import BY_RUNTIME, SET_BY_ATTRIBUTION, SET_BY_RANGE_TEST, refuse_set, require_workers
from horovod_study.config.partitions import this_machine
from horovod_study.config.roles import Role, named, plain
from horovod_study.config.run import COMMUNICATION, Cell, available_cores, local_cell
from horovod_study.config.workload import packaged
from horovod_study.errors import ConfigError, StudyError, refuse
from horovod_study.files import write_file, writing
from horovod_study.programs.answer import ANSWER, ROWS, Told, leave, leaving_together
from horovod_study.records import RunRecord, read_steps, step_ranks
from horovod_study.runtimes import RUNTIMES
from horovod_study.strain import dataset as data
from horovod_study.strain.options import STRAIN, StrainConfig, lr_factor, scaled_lr, strain_config
from horovod_study.studies.attempt import TIMED_OUT, Interruption, RankRun, attempt, record_in
from horovod_study.studies.runner import RunOptions, run_all
from horovod_study.studies.study_file import StudyCells
from horovod_study.text.progress import Line, say
from horovod_study.text.words import plural

Plain = Mapping[str, Any]  # Plain values by name, as JSON has them
Names = Sequence[str] | None  # Asked for by name; None: whatever is there

RANK_PROGRAM = "horovod_study.programs.microbench"
_RAW = ("mpi", "gloo", "nccl")
_MEASURABLE = tuple(name for name in RUNTIMES if name.partition("/")[0] in ("horovod", "ddp", "mpi"))
"""Runtimes with an all-reduce of their own; mpi/mpi is the raw one as the trainer calls it."""
_MPI_JOBS = ("horovod/mpi", "mpi/mpi", "ddp/mpi")  # whose ranks MPI knows
_LAUNCHED_BY = {"horovodrun --gloo": ("horovod/gloo",), "torchrun": ("ddp/gloo", "ddp/nccl", "ddp/mpi")}
_MPI_JOBS_HERE = ("horovod/mpi", "horovod/nccl", "mpi/mpi")


def run_ranks(
    module: str,
    runtime: str,
    workers: int,
    folder: Path,
    content: Any,
    *,
    timeout_s: float,
    on_progress: Told = lambda text: None,
    **variables: str,
) -> dict[str, Any]:
    """Run a program on its ranks and return what rank 0 answered; `content` is written into `folder`, and they read it.

    `variables`: of their environment; each rank has one thread where nothing says otherwise. `on_progress` hears the
    last line that was printed, about four times a second. Raises StudyError with the reason in one line when it fails
    or takes too long, and KeyboardInterrupt after Ctrl-C; no process is left either way.

    What was answered to the same plan stays in `folder` until `measured` is told that all of it is done: one that was
    interrupted goes on.
    """
    plan, log, asked = folder / "plan.json", folder / "output.log", folder / "asked.json"
    planned, again = json.dumps(content, indent=1), f"see {log}"
    question = json.dumps({"code": code_digest(), "variables": variables, "plan": content})
    with suppress(StudyError):  # nothing stands there, or no text
        kept = read_text(asked, error=StudyError, again=again)
        if kept == question and (folder / ANSWER).exists():
            return dict(read_json(folder / ANSWER, dict[str, Any], again=again, error=StudyError))
    how: dict[str, Any] = {"runtime": runtime, "workers": workers, "program": ("-m", module, str(plan.absolute()))}
    how["variables"] = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), **variables}
    how["watch"] = lambda running: on_progress(running.last_line() or "starting")
    run = RankRun(out=folder, log=log, timeout_s=timeout_s, **how)
    with writing(folder, "choose a writable folder", error=StudyError):
        folder.mkdir(parents=True, exist_ok=True)
        write_file(plan, planned)
        write_file(asked, question)
        (folder / ANSWER).unlink(missing_ok=True)
        with Interruption() as stop:
            ended = attempt(run, stop)
    late, silent = ended.state == TIMED_OUT, not ended.done or not (folder / ANSWER).exists()
    said = f"gave no answer within {timeout_s:g} s" if late else f"failed: {ended.reason or ended.said}"
    if late or silent:
        raise StudyError(f"{runtime} with {plural(workers, 'worker')} {said}; {again}")
    answered: dict[str, Any] = read_json(folder / ANSWER, dict[str, Any], again=again, error=StudyError)
    return answered


def measured(folder: Path) -> None:
    """Note that all that was asked below `folder` is done: the same question is measured again from now on."""
    for each in folder.glob(f"*/{ANSWER}"):
        each.unlink(missing_ok=True)


def _config(runtime: str, source: str = "bench", *, transport: str = "auto", **options: Any) -> StrainConfig:
    backend, _, own = runtime.partition("/")
    return strain_config({**options, "backend": backend, "transport": own or transport}, source=source)


class BenchJob(NamedTuple):
    """One launch: the runtime that starts it, the raw transports measured in it, and whether the runtime itself is."""

    runtime: str
    transports: tuple[str, ...] = ()
    itself: bool = True
    asked: bool = True  # by the user: it must not fail


def byte_count(text: str) -> int:
    """Return the bytes meant by `4`, `64K`, `1M` or `1G`, in powers of 1024 as nccl-tests has them; else ValueError."""
    match = re.fullmatch(r"(\d{1,18})([KMG]?)B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError("sizes are whole numbers of bytes such as 4, 64K, 1M or 1G")
    return int(match[1]) << 10 * " KMG".index(match[2].upper() or " ")


_Bytes = Annotated[int, BeforeValidator(byte_count)]
_Runtime = Annotated[str, one_of(_MEASURABLE)]
_Positive = Annotated[int, at_least(1)]
_Seconds = Annotated[float, at_least(1e-3), Field(le=1e6)]


class _BenchOptions(Options):
    """Options of `bench`; None: whatever is there."""

    transport: list[Annotated[str, one_of(_RAW)]] | None
    runtime: list[_Runtime] | None
    sizes: list[_Bytes] | None
    min_bytes: _Bytes
    max_bytes: _Bytes | None
    factor: Annotated[int, at_least(2)]
    rounds: _Positive
    seconds: _Seconds


class _ArmOptions(Options):
    runtime: list[Annotated[str, one_of(name for name in RUNTIMES if name != "serial")]]
    rounds: _Positive


class _RangeOptions(Options):
    runtime: Annotated[str, one_of(RUNTIMES)]


class _TimerOptions(Options):
    rounds: Annotated[int, at_least(3), Field(le=20_000)] | None
    steps_per_block: Annotated[int, at_least(1), Field(le=20_000)] | None
    seconds: _Seconds
    over: Annotated[str, one_of(name for name in RUNTIMES if name != "serial")]


def message_sizes(
    sizes: Sequence[int] | None, *, min_bytes: int, max_bytes: int | None, factor: int, workers: int, model: Plain
) -> tuple[int, ...]:
    """Return the sizes to measure in bytes, ascending: the user's list, or a geometric row, and always the model's own.

    The model's own are those of its gradients one by one and of all of them together. Without `max_bytes` the row
    ends at 256 MB, or before where `workers` on this machine have no room for that.
    """
    own = {*model["gradients"].values(), model["flat_bytes"]}
    high = 2**28 if max_bytes is None else max_bytes
    while max_bytes is None and high > 2**20 and 8 * high * workers > psutil.virtual_memory().available:
        high //= 4
    powers = range(64 if 0 < min_bytes <= high else 0)
    row = [size for n in powers if (size := min_bytes * factor**n) <= high] if sizes is None else sizes
    odd = [size for size in row if size < 4 or size % 4]
    wrong = f"size {odd[0]} bytes; sizes are multiples of 4 bytes (32-bit floats), at least 4" if odd else ""
    ends = f"--min-bytes is {min_bytes} and --max-bytes {high}; min-bytes must be the smaller one"
    refuse("bench", (sizes is None and not row, ends), (odd, wrong))
    return tuple(sorted({*row, *own}))


def plan_jobs(transports: Names, runtimes: Names) -> list[BenchJob]:
    """Return the launches that measure the raw `transports` and the `runtimes`; None is whatever is there."""
    raw = list(dict.fromkeys(_RAW if transports is None else transports))
    gpu = _has_gpu()
    usual = ["horovod/mpi", "horovod/gloo", *(["horovod/nccl"] if gpu else [])]
    usual = [*(usual if importlib.util.find_spec("horovod") else []), "ddp/gloo", *(["ddp/nccl"] if gpu else [])]
    wanted = list(dict.fromkeys(usual if runtimes is None else runtimes))
    jobs = [BenchJob(name, asked=runtimes is not None) for name in wanted]
    if not raw:
        refuse("bench", (not jobs, "neither a transport nor a runtime is left to measure; name one"))
        return jobs
    host = next((job for job in jobs if job.runtime in _MPI_JOBS), None)
    if host is None and ("mpi" in raw or not jobs):
        # Raw Gloo and NCCL need no MPI; where it is not wanted, torchrun will do.
        host = BenchJob("mpi/mpi" if "mpi" in raw else "ddp/gloo", itself=False, asked=transports is not None)
        jobs.insert(0, host)
    host = host or jobs[0]
    return [job._replace(transports=tuple(raw)) if job is host else job for job in jobs]


def _has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


def worker_count(asked: int | None, cores: int) -> int:
    """Return how many workers to start on this machine: as many as asked for, else one for each core.

    One alone is for a GPU: what NCCL takes when there is nobody to communicate with, and what the GPU can do.
    """
    if asked == 1 and _has_gpu():
        return 1
    alone = "this machine offers 1 core, and an all-reduce needs 2 workers with a core each; "
    refuse("bench", (cores < 2, f"{alone}start it under mpirun or srun on several hosts"))
    count = cores if asked is None else asked
    require_workers("bench", count, cores, least=2)
    return count


def run_bench(
    jobs: Sequence[BenchJob], plan: Plain, model: Plain, out: Path, *, workers: int, on_progress: Told, keep: Told
) -> dict[str, Any]:
    """Start every job, one after the other, and return the document: workers, model, jobs, and what was not measured.

    `plan`: of programs/microbench.py; its seconds are shared by the jobs. A job that nobody asked for by name may fail
    and is left out with its reason. `on_progress` gets what is being done, `keep` what remains to be read. Everything
    the ranks print is kept below `out`.
    """
    ways = [[*job.transports, *([job.runtime] if job.itself else [])] for job in jobs]
    document: dict[str, Any] = {"workers": workers, "model": dict(model), "jobs": [], "unavailable": {}}
    for number, (job, names) in enumerate(zip(jobs, ways, strict=True), 1):
        seconds = plan["seconds"] * len(names) / sum(map(len, ways))
        share = {**plan, "seconds": seconds, "transports": job.transports, "runtime": job.itself}
        share["machine"] = not document["jobs"]  # the first that works measures it
        keep(f"job {number} of {len(jobs)}, {workers} workers over {job.runtime}: {', '.join(names)}")
        config = _config(job.runtime, batch=plan["batch"], widths=plan["widths"])
        content = {"plan": share, "config": vars(config)}
        folder = out / "jobs" / job.runtime.replace("/", "-")
        how: dict[str, Any] = {"timeout_s": 600.0 + 10 * seconds, "on_progress": on_progress}
        try:
            found = run_ranks(RANK_PROGRAM, job.runtime, workers, folder, content, **how)
        except StudyError as error:
            if job.asked:
                raise
            document["unavailable"][job.runtime] = str(error)
            keep(f"{job.runtime} was not measured: {error}")
            continue
        document["jobs"].append(found)
        document["unavailable"].update(found["missing"])
    if not document["jobs"]:
        reasons = "; ".join(f"{name}: {why}" for name, why in document["unavailable"].items())
        raise StudyError(f"bench: nothing could be measured ({reasons}); run `make setup`")
    measured(out / "jobs")
    return document


def bench_document(
    *, workers: int | None, transport: Names, runtime: Names, sizes: Plain, plan: Plain, out: Path
) -> dict[str, Any]:
    """Measure as the options of `horovod-study bench` say, in jobs of its own or in the launch that is under way.

    `sizes`: the options that `message_sizes` takes; `plan`: seconds, rounds, batch and widths. Returns the document:
    workers, model, jobs, unavailable. In a launch only rank 0 returns; the others end here, and so does rank 0 after a
    StudyError, having printed it.
    """
    from horovod_study.comm import detect, open_backend
    from horovod_study.programs.microbench import measure, model_facts

    launch = detect(os.environ)
    launched = launch.workers > 1

    def on_progress(text: str) -> None:
        line.now_and_then(f"  {text}")

    with leaving_together(launch.rank) if launched else nullcontext(), closing(Line(enabled=launch.rank == 0)) as line:
        asked = _BenchOptions.of("bench", {"transport": transport, "runtime": runtime, **sizes, **plan})
        jobs, fitting = plan_jobs(transport, runtime), _LAUNCHED_BY.get(launch.launcher, _MPI_JOBS_HERE)
        count = launch.workers if launched else worker_count(workers, available_cores())
        other = f"--runtime {' '.join(runtime or ())}, but {launch.named} started these ranks, and they can measure one"
        other += f" of {', '.join(fitting)}; start `horovod-study bench` without a launcher for the others"
        told = f"--workers is {workers}, but {launch.named} started {count}; leave --workers out"
        one = not runtime or (len(runtime) == 1 and runtime[0] in fitting)
        refuse("bench", (launched and workers not in (None, count), told), (launched and not one, other))
        _config("serial", batch=plan["batch"], widths=plan["widths"])  # for its complaints
        model = model_facts(plan["widths"], plan["batch"])
        row = {name: getattr(asked, name) for name in ("sizes", "min_bytes", "max_bytes", "factor")}
        plan = {"sizes": message_sizes(**row, workers=count, model=model), "insist": transport is not None, **plan}
        if not launched:
            return run_bench(jobs, plan, model, out, workers=count, keep=line.keep, on_progress=on_progress)
        # In the launch that this process is a rank of: its own runtime, and all transports that it can carry.
        backend = open_backend(
            _config((*(runtime or ()), "auto")[0], batch=plan["batch"], widths=plan["widths"]), launch
        )
        plan |= {"transports": _RAW if transport is None else transport, "runtime": True, "machine": True}
        found = measure(plan, backend, on_progress=on_progress)
        backend.close()
        if launch.rank:
            leave(0)
        return {"workers": count, "model": model, "jobs": [found], "unavailable": found["missing"]}


def finish(code: int) -> int:
    """Return `code`; in a launch, end with it at once, because exit handlers wait for ranks that are gone."""
    if "horovod_study.comm" in sys.modules:
        from horovod_study.comm import detect

        if detect(os.environ).workers > 1:
            leave(code)
    return code


def measure_timers(
    out: Path, plan: Plain, *, batch: Sequence[int], workers: Sequence[int], over: str, options: Plain, told: Told
) -> list[dict[str, Any]]:
    """Return what `programs.timers.measure` found in each launch, with its `runtime`.

    There is one for each number of workers and each batch size; one worker trains without a library, several over the
    runtime `over`. `plan`: see there; `options`: of the runs, such as widths and device. What the ranks print is kept
    below `out`. Raises ConfigError for what cannot be measured here, before anything is started.
    """
    from horovod_study.comm import detect  # loads PyTorch

    launch = detect(os.environ)
    others = f"{launch.named} started {launch.workers} ranks of it, but it starts its own"
    refuse("bench timers", (launch.workers > 1, f"{others}; start it alone, with --workers"))
    _TimerOptions.of("bench timers", {"rounds": None, "steps_per_block": None, **plan, "over": over})
    for count in workers:
        require_workers("bench timers", count, available_cores())
    launches, found = [], []
    for count, each in itertools.product(workers, batch):
        runtime = over if count > 1 else "serial"
        launches.append((runtime, count, _config(runtime, "bench timers", **options, batch=each)))
    for runtime, count, config in launches:
        folder = out / "jobs" / f"{count}w-b{config.batch}"
        shutil.rmtree(folder / ROWS, ignore_errors=True)
        what = f"batch {config.batch}, {plural(count, 'worker')}"
        how: dict[str, Any] = {"timeout_s": 600.0 + 10 * plan["seconds"]}
        how["on_progress"] = lambda last, what=what: told(f"{what}: {last}")
        how["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(config.threads))
        how["KINETO_LOG_LEVEL"] = "99"  # else torch.profiler says that it starts and stops
        content = {"plan": plan, "config": vars(config)}
        answered = run_ranks("horovod_study.programs.timers", runtime, count, folder, content, **how)
        shutil.rmtree(folder / ROWS, ignore_errors=True)  # they were written to see what that takes
        found.append({"runtime": runtime, **answered})
    measured(out / "jobs")
    return found


DEFAULT_RUNTIMES = ("horovod/mpi", "horovod/gloo", "mpi/mpi")
STEPS = 1000
ROUNDS = 5
_LEAST_STEPS = 5
"""Steps of a slice: the first one, which workers do not begin together, says nothing of their synchronisation."""


def arms_of(runtime: str) -> list[dict[str, Any]]:
    """Return what the arms of a runtime set, beside the options of all."""
    defaults = [{"horovod_defaults": True}] if packaged().options["horovod_defaults"].matters(runtime) else []
    cycles_ms = (1.0, 10.0) if runtime.startswith("horovod/") else ()  # Horovod's default, and ten times that
    return [{}, *defaults, *({"cycle_time_ms": each, "idle_cycle_time_ms": 0.0} for each in cycles_ms)]


def cells_of(
    given: Mapping[str, Any], name: str, *, runtimes: Sequence[str], workers: int, rounds: int, cores: int
) -> list[Cell]:
    """Return the cells of the experiment: the worker alone, then arm by arm, `rounds` of each.

    `given`: the run options of the command line. Raises ConfigError for what cannot be run.
    """
    options = packaged().options
    budgets = dict.fromkeys(named(options, Role.BUDGET), "use --steps")
    refuse_set("explain --measure", given, SET_BY_ATTRIBUTION, {**budgets, **BY_RUNTIME})
    _ArmOptions.of("explain --measure", {"runtime": list(runtimes), "rounds": rounds})
    require_workers("explain --measure", workers, cores, least=2)
    values = {"steps": STEPS, **given, **packaged().quiet, "study": name, "measure_sync": True}
    # Alone, what says how workers communicate means nothing, and would be refused.
    means_nothing = {each: options[each].default for each in COMMUNICATION}
    arms = [("serial", 1, means_nothing, "1 worker alone")]
    for runtime in dict.fromkeys(runtimes):
        for arm in arms_of(runtime):
            told = ", ".join(f"{each} {plain(value)}" for each, value in arm.items())
            arms.append((runtime, workers, arm, f"{runtime}, {told or 'shipped settings'}"))
    cells = []
    for runtime, count, arm, label in arms:
        cell = local_cell(runtime, {**values, **arm}, workers=count, source="explain --measure")
        cells += [replace(cell, label=label).repeated(number) for number in range(rounds)]
    return cells


def run_experiment(
    given: Mapping[str, Any],
    out: Path,
    *,
    runtimes: Sequence[str] = DEFAULT_RUNTIMES,
    workers: int | None = None,
    rounds: int | None = None,
    turns: bool = True,
    command: str = "",
) -> list[Path]:
    """Run what is missing of the experiment in the folder `out`; return its run directories, arm by arm.

    Raises StudyError with the reason of a run that fails, and KeyboardInterrupt after Ctrl-C.
    """
    cores, rounds = available_cores(), ROUNDS if rounds is None else rounds
    how: dict[str, Any] = {"runtimes": runtimes, "workers": workers or cores, "rounds": rounds, "cores": cores}
    cells = tuple(cells_of(given, out.name, **how))
    of_turns: dict[str, Any] = {"turns": turns, "equal_steps": True, "least_steps": _LEAST_STEPS}
    of_turns["partitions"] = {"local": this_machine("local")}
    sweep = StudyCells(name=out.name, directory=out, cells=cells, **of_turns)
    return run_all(sweep, RunOptions(command=command, smoke=False, yes=True))


_ENDS = dict.fromkeys(("lr", "lr_end"), "use --low and --high")


def range_config(path: Path | None, given: Mapping[str, Any], *, low: float, high: float) -> StrainConfig:
    """Return the run of a range test from `low` to `high`: the options of a file, then those of the command line.

    Of a file for a long run its length, its rate and its schedule are left out; a length on the command line (steps or
    epochs) holds, else it is 1000 steps.
    """
    refuse_set("lr-range", given, SET_BY_RANGE_TEST, {**BY_RUNTIME, **_ENDS, "seconds": "use --steps or --epochs"})
    file = load_yaml(path) if path else {}
    kept = {name: value for name, value in file.items() if name not in (*STRAIN.budgets, *SET_BY_RANGE_TEST)}
    length = {} if {"steps", "epochs"} & set(given) else {"steps": 1000}
    values = {"study": "lr-range", **kept, **length, **given, **STRAIN.quiet}
    config = strain_config(values, source=str(path) if path else "lr-range")
    between = f"--low is {low:g} and --high is {high:g}; it must be 0 < low < high"
    few = f"--steps is {config.steps}; a range test needs at least 50"  # what the analysis can read
    short = config.steps is not None and config.steps < 50
    refuse("lr-range", (not 0 < low < high < math.inf, between), (short, few))
    return config.changed(schedule="range", lr=low, lr_end=high, warmup_steps=0)


def run_range(
    config: StrainConfig, out: Path, *, workers: int = 1, runtime: str | None = None, command: str = ""
) -> tuple[NDArray[np.float64], NDArray[np.float64], RunRecord]:
    """Train as `config` says below `out`; return rate and loss of every step, both (S,), and the run's record.

    The rate is the option `lr`, before it is scaled by the number of workers; the loss is the mean over the workers.
    A run that ended because its loss was no number any more is a result and not a failure. One that has ended is read
    again. StudyError: the run failed; `command` is what the user typed.
    """
    runtime = runtime or ("serial" if workers == 1 else "horovod/mpi")
    _RangeOptions.of("lr-range", {"runtime": runtime})
    require_workers("lr-range", workers, available_cores())
    one = f"--workers is {workers}, but --runtime serial has one worker; name another runtime"
    refuse("lr-range", (workers > 1 and runtime == "serial", one))
    cell = replace(local_cell(runtime, vars(config), workers=workers, source="lr-range"), label="range test")
    if (curve := _curve(out / cell.key)) is None:
        length = f"{config.steps} steps" if config.steps else f"{config.epochs} epochs"
        say(f"range test: {length} while the rate rises from {config.lr:g} to {config.lr_end:g}")
        here = {config.partition: this_machine(config.partition)}
        a_week = 7 * 86400.0  # whoever watches ends it before
        how: dict[str, Any] = {"part": True, "equal_steps": True, "timeout_s": a_week}
        sweep = StudyCells(name=out.name, directory=out, cells=(cell,), partitions=here, **how)
        try:
            run_all(sweep, RunOptions(command=command, smoke=False, yes=True))
        except StudyError:
            if _curve(out / cell.key) is None:
                raise
        curve = _curve(out / cell.key)
    assert curve is not None, "a run that is done has steps"
    steps, losses, record = curve
    total = config.steps or (config.epochs or 1) * int(record.effective["steps_per_epoch"])
    return np.array([config.lr * lr_factor(config, int(step), step / total) for step in steps]), losses, record


def _curve(run: Path) -> tuple[NDArray[Any], NDArray[np.float64], RunRecord] | None:
    """Return steps, losses and record of a run that is done or has diverged, None of any other."""
    if (record := record_in(run)) is None or record.status not in ("done", "failed"):
        return None
    tables = [read_steps(run, rank) for rank in step_ranks(run)]
    if not tables:
        return None
    rows = min(table.num_rows for table in tables)  # a rank that was ended first has fewer
    losses = np.array([table.column("loss").to_numpy()[:rows].astype(np.float64) for table in tables]).mean(axis=0)
    if record.status == "failed" and (not rows or np.isfinite(losses[-1])):
        return None
    return tables[0].column("step").to_numpy()[:rows], losses, record


BOUNDS = {"float32": 1e-6, "float64": 1e-14}  # The largest relative error of a tensor that passes
_UNJUDGED = ("float32", "adam")
"""Precision and optimiser whose errors are shown but held to no bound: Adam divides a gradient near 0 by its own size,
so its rounding goes into the parameter undiminished. Order, rate, start and operation are judged, and float64."""
PARALLEL = tuple(runtime for runtime in RUNTIMES if runtime != "serial")
_RANKS_PER_CORE = 8  # more ranks than cores prove as much as few, but slowly
_SAME = ("order", "lr", "start", "operation")
_KNOWN = "runtime transport workers reduction dtype shards batch steps optimizer order_sha256".split()
_NEAR = 1e-3  # so near a factor of the gradient must be to N to be called a sum over N workers


class _ProofOptions(Options):
    workers: list[Annotated[int, at_least(1)]]
    steps: Annotated[int, at_least(1)]
    seed: Annotated[int, at_least(0)]


class Question(NamedTuple):
    """What is to be proven, under the names of the options; `runtime` None: whatever is available on this machine."""

    runtime: Sequence[str] | None = None
    workers: Sequence[int] = (2,)
    reduction: Sequence[str] = ("flat", "hooks")
    dtype: Sequence[str] = tuple(BOUNDS)
    optimizer: Sequence[str] = ("adam", "sgd")
    steps: int = 10
    batch: int = 300  # of all workers together
    dataset: str = "4000"
    lr_scaling: str = "none"
    input_scaling: str = "standard"
    kernels: str = "torch"  # of the parallel runs; the reference is always computed by torch's
    seed: int = 1
    broken: str | None = None  # sum, shard, lr or start

    def check(self, cores: int) -> None:
        """Raise ConfigError for what cannot be proven on so many cores."""
        _ProofOptions.of("bench equality", self._asdict())
        most, limit = max(self.workers), _RANKS_PER_CORE * cores
        least, native = 2 * most if most > 1 else 1, self.kernels == "native"
        what = "--kernels native computes in float32 and averages one flat buffer; add --dtype float32 --reduction flat"
        many = f"--workers {most} are more ranks than this machine has slots: {plural(cores, 'core')}, at most "
        small = f"--batch {self.batch} is too small for {plural(most, 'worker')}: uneven shards need at least "
        refuse(
            "bench equality",
            (native and [*self.reduction, *self.dtype] != ["flat", "float32"], f"{what}, or leave --kernels out"),
            (most > limit, f"{many}{_RANKS_PER_CORE} ranks on each; use --workers {limit} or fewer"),
            (self.batch < least, f"{small}{plural(least, 'curve')}; use a larger --batch or fewer --workers"),
            (self.broken and min(self.workers) < 2, f"--break {self.broken} needs two ranks; use --workers 2"),
        )

    def trials(self, workers: int, device: str = "cpu", *, alone: bool = False) -> list[dict[str, Any]]:
        """Return what is trained with so many workers: each with its sequential counterpart's rate and file.

        `alone`: those counterparts, whole batches at the rate that `workers` workers should have.
        """
        base = StrainConfig(lr_scaling=self.lr_scaling)
        rate = scaled_lr(base, workers)
        found: list[dict[str, Any]] = []
        each = (sorted({*self.dtype}), sorted({*self.optimizer}), shares(self.batch, workers).items())
        for dtype, optimizer, (shards, batch) in itertools.product(*each):
            named = f"{device}-{dtype}-{optimizer}-b{batch}-lr{rate!r}.npz"
            own = {"shards": "even" if alone else shards, "lr": rate if alone else base.lr, "reference": named}
            found.append({"dtype": dtype, "optimizer": optimizer, "batch": batch, **own})
        return found


def shares(batch: int, workers: int) -> dict[str, int]:
    """Return the global batches for even and for uneven shards: the largest not above `batch` of each kind."""
    if workers == 1:
        return {"even": batch}
    return {"even": batch - batch % workers, "uneven": batch if batch % workers else batch - 1}


def verify(question: Question, out: Path | None = None, *, on_progress: Callable[[str], None] = say) -> dict[str, Any]:
    """Train sequentially, then with every runtime and worker count; return all cases with their verdicts, for JSON.

    Logs of the launches are kept below `out`/logs, or without `out` in a temporary folder as long as one failed. With
    `out` a proof that was interrupted goes on.
    Raises StudyError for a runtime that was asked for and cannot be used here, or does not run.
    """
    logs = Path(tempfile.mkdtemp(prefix="horovod-study-verify-")) if out is None else (out / "logs").absolute()
    scratch, keep = logs / "references", False
    with writing(scratch, "choose a writable --out", error=StudyError):
        scratch.mkdir(parents=True, exist_ok=True)
    try:
        result = _verify(question, scratch, logs, on_progress)
        keep = not all(case["tensors"] for case in result["cases"])
        measured(logs)
        shutil.rmtree(scratch, ignore_errors=True)
        return result
    except StudyError:
        keep = any(logs.glob("*/output.log"))
        raise
    finally:
        if out is None:
            shutil.rmtree(scratch if keep else logs, ignore_errors=True)


def _verify(question: Question, scratch: Path, logs: Path, on_progress: Callable[[str], None]) -> dict[str, Any]:
    cores, counts = available_cores(), sorted({*question.workers})
    question.check(cores)
    dataset = data.open_dataset(data.ensure(question.dataset, seed=StrainConfig().data_seed, threads=cores))
    batches = [trial["batch"] for count in counts for trial in question.trials(count)]
    data.Batches(dataset.train_size, batch=max(batches), rank=0, workers=1, seed=question.seed)  # for its complaint
    shared = {"dataset": str(dataset.path.absolute()), **{name: getattr(question, name) for name in ("steps", "seed")}}
    shared["input_scaling"] = question.input_scaling
    scaling = question.lr_scaling
    if question.broken == "lr":
        scaling = "none" if scaling == "linear" else "linear"
    references: dict[str, dict[str, Any]] = {}

    def launched(
        runtime: str, workers: int, trials: Sequence[Any], reductions: Sequence[str], device: str, **how: Any
    ) -> dict[str, Any]:
        config = _config(runtime, "run", transport="none", device=device, **shared, **how)
        job = {"trials": trials, "reductions": reductions, "folder": str(scratch), "write": runtime == "serial"}
        return _launched(runtime, workers, {**job, "break": question.broken, "config": vars(config)}, logs)

    def train_alone(device: str) -> dict[str, Any]:
        trials = {one["reference"]: one for count in counts for one in question.trials(count, device, alone=True)}
        on_progress(f"sequential training, the reference: {question.steps} steps, {len(trials)} runs on {device}")
        alone = launched("serial", 1, list(trials.values()), ["auto"], device)
        references.update({one["reference"]: {**trials[one["reference"]], **one} for one in alone["references"]})
        return alone

    there = train_alone("cpu")
    runtimes, unavailable = usable(question.runtime, counts, there["runtimes"], gpus=there["gpus"])
    if any(_device(runtime) == "cuda" for runtime, _ in runtimes):
        train_alone("cuda")
    cases: list[dict[str, Any]] = []
    launches: list[tuple[str, int, list[str]]] = []
    for runtime, count in runtimes:  # starting takes longer than training, but torch starts one reduction per process
        one_by_one = [[each] for each in question.reduction]
        together = one_by_one if runtime.startswith("ddp/") else [[*question.reduction]]
        launches += [(runtime, count, each) for each in ([["auto"]] if count == 1 else together)]
    for number, (runtime, count, reductions) in enumerate(launches, start=1):
        known = {"runtime": runtime, "workers": count, "steps": question.steps}
        words = "" if {*reductions} >= {*question.reduction} or count == 1 else f", {reductions[0]}"
        head = f"[{number}/{len(launches)}] {runtime}, {plural(count, 'worker')}{words}"
        device = _device(runtime)
        how = {"lr_scaling": scaling, "kernels": question.kernels}
        try:
            found = launched(runtime, count, question.trials(count, device), reductions, device, **how)["cases"]
        except StudyError as error:
            if question.runtime is not None:
                raise
            unknown = dict.fromkeys((*_KNOWN, "lr", "gradient_factor", "float32_rounding", "worst"))
            told = {"tensors": [], "judged": True, "passed": False, "why": f"did not run: {error}"}
            cases.append({**unknown, **known, **dict.fromkeys((f"same_{name}" for name in _SAME), False), **told})
            on_progress(f"{head}: {error}")
            continue
        judged = [judge({**known, **case}, references[case["reference"]]) for case in found]
        cases += judged
        on_progress(f"{head}: {_short(judged)}")
    asked = ("steps", "batch", "dataset", "seed", "lr_scaling", "input_scaling", "kernels", "broken")
    moved: dict[str, dict[str, float]] = {}  # how far sequential runs moved each tensor, the least of all runs
    for one in references.values():
        least = moved.setdefault(f"{one['dtype']} {one['optimizer']}", {})
        least.update({name: min(share, least.get(name, share)) for name, share in one["moved"].items()})
    result: dict[str, Any] = {"passed": bool(cases) and all(case["passed"] for case in cases), "cases": cases}
    result["unavailable"] = unavailable  # runtime -> why it was left out
    result["bounds"] = {dtype: bound for dtype, bound in BOUNDS.items() if dtype in question.dtype}
    # moved: "float32 adam" -> tensor -> ||q - q0|| / ||q0||, sequential
    return {**result, **{name: getattr(question, name) for name in asked}, "moved": moved}


def _launched(runtime: str, workers: int, job: Mapping[str, Any], logs: Path) -> dict[str, Any]:
    runs = len(job["trials"]) * len(job["reductions"]) * job["config"]["steps"]
    folder = logs / "-".join([runtime.replace("/", "-"), f"{workers}w", *job["reductions"]])
    limit_s = 120.0 + 2.0 * runs  # slow machines and many ranks per core included
    program = "horovod_study.programs.equality"
    return run_ranks(program, runtime, workers, folder, job, timeout_s=limit_s, OMP_NUM_THREADS="1")


def usable(
    wanted: Sequence[str] | None, counts: Sequence[int], missing: Mapping[str, str | None], *, gpus: int
) -> tuple[list[tuple[str, int]], dict[str, str]]:
    """Return what to prove as (runtime, workers), and what not with the reason; `missing` is None for what is there.

    Raises ConfigError for what is missing although it was asked for.
    """
    chosen, reasons = [], {}
    few = f"NCCL needs a GPU for each worker, and there {'is' if gpus == 1 else 'are'} {gpus}"
    for runtime in PARALLEL if wanted is None else dict.fromkeys(wanted):
        for count in counts:
            if reason := missing[runtime]:
                reasons[runtime] = reason
            elif _device(runtime) == "cuda" and count > gpus:
                reasons[f"{runtime} with {count} workers"] = few
            else:
                chosen.append((runtime, count))
    if reasons and wanted is not None:
        name, reason = next(iter(reasons.items()))
        have = ", ".join(runtime for runtime in PARALLEL if not missing[runtime]) or "none"
        raise ConfigError(f"bench equality: --runtime {name} is not available here: {reason}; available: {have}")
    return chosen, reasons


def _device(runtime: str) -> str:
    return "cuda" if runtime.endswith("/nccl") else "cpu"


def judge(case: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case of the rank program with its verdict: passed, the worst tensor, and in words why it failed.

    An error that is not a number, None in the case, passes nothing.
    """
    bound, factor, tensors = BOUNDS[case["dtype"]], case["factor"], case["tensors"]
    worst = max(tensors, key=lambda tensor: _size(tensor["relative_error"]))
    judged = (case["dtype"], case["optimizer"]) != _UNJUDGED
    same = {"same_order": case["order_sha256"] == reference["order_sha256"]}
    same["same_lr"] = all(rates == reference["rates"] for rates in case["rates"])
    same["same_start"] = all(apart == 0 for apart in case["starts"])
    same["same_operation"] = abs(_size(factor) - 1) <= bound
    finite = all(None not in tensor.values() for tensor in tensors)
    within = finite and (not judged or worst["relative_error"] <= bound)
    why = "; ".join(_differences(case, reference, same))
    if not finite:
        why += f"{'; ' * bool(why)}an error is not a finite number: the training diverged"
    elif not within and not why:
        # Order, rate, start and operation agree: it is rounding, amplified by training.
        first, rounding = max(float(tensor["gradient_error"]) for tensor in tensors), reference["rounding"]
        own = "" if rounding is None else f", where float32 alone leaves {rounding:.1e} in the sequential one"
        why = f"{worst['name']} differs though order, rate, start and operation agree: the first averaged gradient "
        why += f"differs by {first:.1e}{own}; {case['steps']} steps have amplified it, try fewer --steps"
    passed = within and all(same.values()) and all(case["ends_alike"])
    found = {name: case[name] for name in _KNOWN} | same | {"lr": case["rates"][0][0], "gradient_factor": factor}
    found |= {"float32_rounding": reference["rounding"], "tensors": tensors, "worst": worst["name"]}
    return {**found, "judged": judged, "passed": passed, "why": why}


def _differences(case: Mapping[str, Any], reference: Mapping[str, Any], same: Mapping[str, bool]) -> Iterator[str]:
    if not same["same_order"]:
        yield f"order differs: {case['order_difference']}"
    if not same["same_lr"]:
        ours, known = case["rates"], reference["rates"]
        rank, step = next((n, k) for n, rates in enumerate(ours) for k, rate in enumerate(rates) if rate != known[k])
        where = "on all ranks" if all(each == ours[rank] for each in ours) else f"on rank {rank}"
        rate, wanted = ours[rank][step], known[step]
        told = f"{rate:g} instead of {wanted:g} in step {step + 1} {where}, {rate / wanted:.6g} times as large"
        yield f"rate differs: {told}"
    if not same["same_start"]:
        ranks = [str(rank) for rank, apart in enumerate(case["starts"]) if apart != 0]
        one = len(ranks) == 1
        yield f"start differs: rank{'s' * (not one)} {', '.join(ranks)} begin{'s' * one} with other parameters"
    if not same["same_operation"] and same["same_order"] and same["same_start"]:  # else it is another gradient anyway
        factor, workers, meant = case["factor"], case["workers"], ""
        told = "the averaged gradient is not finite"
        if factor is not None:
            if abs(factor / workers - 1) < _NEAR:
                meant = f", a sum over the {workers} workers in the place of their mean"
            elif abs(factor * workers - 1) < _NEAR:
                meant = f", divided by the {workers} workers twice"
            size = f"{factor:.6g} times too large" if factor > 1 else f"only {factor:.6g} times the sequential one"
            told = f"the averaged gradient is {size}{meant}"
        yield f"operation differs: {told}"
    if not all(case["ends_alike"]):
        yield f"rank {case['ends_alike'].index(False)} ends with other parameters than rank 0"


def _size(error: float | None) -> float:
    return math.inf if error is None else error


def _short(cases: Sequence[Mapping[str, Any]]) -> str:
    """Return what one launch found, in a line: the worst error, or the first failure."""
    failed = [case for case in cases if not case["passed"]]
    if failed:
        return f"{len(failed)} of {len(cases)} cases failed: {failed[0]['why']}"
    worst = max((_size(tensor["relative_error"]) for case in cases for tensor in case["tensors"]), default=0.0)
    return f"{len(cases)} cases passed, largest error {worst:.1e}"
