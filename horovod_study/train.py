"""Train the strain-stress CNN on one worker or on many, and record every step.

    python -m horovod_study.train                                            one worker, plain PyTorch
    horovodrun -np 2 .venv/bin/python -m horovod_study.train                 Horovod, over MPI
    horovodrun --gloo -np 2 .venv/bin/python -m horovod_study.train          Horovod, over Gloo
    mpirun -np 2 .venv/bin/python -m horovod_study.train                     Horovod, or --backend mpi
    torchrun --nproc-per-node 2 -m horovod_study.train                       torch DistributedDataParallel

Letters: B curves per worker and step, C = 3 channels, L = 201 points, P = 2 targets.
"""

import json
import math
import os
import signal
import sys
import threading
import traceback
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from horovod_study import records
from horovod_study.comm import Backend, Launch, agreed, detect, open_backend, require_parity
from horovod_study.config import LAPS, RunConfig, load_yaml, run_config
from horovod_study.errors import BackendError, ConfigError, RecordError, StudyError
from horovod_study.measure import environment
from horovod_study.measure.clock import DeviceStamps, HostStamps, LapClock, now, sleep, utc_now, utc_stamp
from horovod_study.options import Parser, add_run_options, run_values
from horovod_study.progress import Progress, say
from horovod_study.workload import dataset as data
from horovod_study.workload.allocator import keep_freed_memory
from horovod_study.workload.material import TARGET_SPAN
from horovod_study.workload.model import StressCNN, parameter_count, parameter_sha256
from horovod_study.workload.schedule import lr_factor, scaled_lr

DRAIN_STEPS = 512
DRAIN_S = 2.0
"""After so many steps or so many seconds, whatever comes first, laps are read and written: what a killed run loses."""
EVALUATION_BATCH = 2048


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    curves: torch.Tensor,
    targets: torch.Tensor,
    backend: Backend,
    clock: LapClock,
    precision: Any,
) -> torch.Tensor:
    """Make one update from one local batch, curves (B, C, L) and targets (B, P); return the local loss, shape ()."""
    backend.zero_grad(optimizer)
    with precision:
        loss = F.mse_loss(model(curves).float(), targets)
    clock.lap("forward")
    loss.backward()  # type: ignore[no-untyped-call]
    clock.lap("backward")
    backend.synchronize(optimizer)  # the gradients are averaged here, or finished here if hooks began in backward
    clock.lap("sync")
    backend.step(optimizer)
    clock.lap("update")
    return loss.detach()


def run(config: RunConfig, *, out: Path | None, launch: Launch) -> dict[str, Any]:
    """Train as `config` says and record the run in `out`; return what `--json` prints, on every rank.

    Collective: every rank of the launch must call it. Raises StudyError, on all ranks, for what the user can mend.
    """
    keep_freed_memory()
    watchdog = _StartWatchdog(config.start_timeout_s, launch)
    backend = open_backend(config, launch)
    try:
        result = _run(config, out, launch, backend, watchdog)
    finally:
        watchdog.cancel()
    backend.close()  # not after a failure: leaving is collective, and the other ranks may be gone
    return result


def _run(
    config: RunConfig, out: Path | None, launch: Launch, backend: Backend, watchdog: "_StartWatchdog"
) -> dict[str, Any]:
    rank, workers, leads = backend.rank, backend.workers, backend.rank == 0

    # ------------------------------------------------------------------ the same start on every rank
    places = backend.gather((os.uname().nodename, environment.affinity()))
    require_parity(
        backend,
        {
            **{name: value for name, value in config.to_dict().items() if name not in ("threads", "start_timeout_s")},
            "backend": backend.name,
            "package version": environment.describe_package(),
        },
    )
    watchdog.cancel()  # everybody has arrived; what follows fails together
    hosts = [host for host, _ in places]
    torch.set_num_threads(config.threads)
    device = _device(config, local_rank=hosts[:rank].count(hosts[rank]))

    with agreed(backend):
        if hosts.index(hosts[rank]) == rank:  # the first rank of each host
            _ensure_dataset(config, threads=len(places[rank][1]))
    with agreed(backend):
        dataset = data.open_dataset(Path(backend.gather(str(data.path_of(config.dataset, seed=config.data_seed)))[0]))
        batches = data.Batches(dataset.train_size, batch=config.batch, rank=rank, workers=workers, seed=config.seed)
        _last_step(config, batches.steps_per_epoch)  # for its complaint, before anything is written
    require_parity(backend, {"data set": dataset.digest(), "steps per epoch": batches.steps_per_epoch})

    torch.manual_seed(config.seed)
    model: nn.Module = StressCNN().to(device)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=scaled_lr(config, workers), fused=True)
    parameters, initial_sha256 = parameter_count(model), parameter_sha256(model)
    require_parity(backend, {"initial parameters": initial_sha256})
    bare_model = model
    model, optimizer = backend.bind(model, optimizer)

    # ------------------------------------------------------------------ the record, before the first step
    directory = Path(backend.gather(str((out or _default_out(config, backend)).absolute()))[0])
    record = records.RunRecord(
        study=config.study,
        key=directory.name,
        repeat=config.repeat,
        partition=config.partition,
        status="running",
        started=utc_now(),
        host=hosts[0],
        pid=os.getpid(),
        requested={**config.to_dict(), "workers": launch.workers},
        effective={
            "backend": backend.name,
            "transport": backend.transport,
            "reduction": backend.reduction,
            "launcher": launch.launcher,
            "settings": backend.settings,
            "workers": workers,
            "nodes": len(set(hosts)),
            "batch": config.batch,
            "global_batch": config.batch * workers,
            "lr": optimizer.param_groups[0]["lr"],
            "optimizer": "Adam, fused",
            "precision": config.precision,
            "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
            "parameters": parameters,
            "initial_parameter_sha256": initial_sha256,
            "dataset": str(dataset.path),
            "dataset_digest": dataset.digest(),
            "train_samples": dataset.train_size,
            "test_samples": dataset.test_size,
            "steps_per_epoch": batches.steps_per_epoch,
            "warmup_steps": config.warmup_steps,
            "ranks": backend.gather(
                {"host": hosts[rank], "cores": places[rank][1], "threads": torch.get_num_threads(), "pid": os.getpid()}
            ),
        },
        environment=environment.describe(),
    )
    with agreed(backend):
        if leads:
            records.create_run(directory, record)
    with agreed(backend):
        writer = records.StepWriter(directory, rank)
    if leads:
        say(
            f"{workers} worker{'s' * (workers > 1)} ({backend.name}"
            + (f" over {backend.transport}, {backend.reduction} reduction" if workers > 1 else "")
            + f"), batch {config.batch} each, {dataset.train_size:,} training curves, {parameters:,} parameters"
        )

    try:
        result = _train(config, backend, dataset, batches, model, bare_model, optimizer, device, directory, writer)
        writer.close()
    except BaseException as error:
        with suppress(RecordError):  # a full disk may be the error itself, and is the one to tell
            writer.close()
        if leads:
            reason = str(error) or type(error).__name__
            with suppress(RecordError):
                records.finish_run(directory, record, status="failed", finished=utc_now(), totals={}, reason=reason)
        raise
    if leads:
        records.finish_run(directory, record, status="done", finished=utc_now(), totals=result)
    backend.barrier()
    return {
        "run_dir": str(directory),
        "backend": backend.name,
        "transport": backend.transport,
        "workers": workers,
        "nodes": len(set(hosts)),
        "batch": config.batch,
        "parameters": parameters,
        "samples_per_s": result["samples_per_s"],
        "step_ms_median": result["step_s_median"] * 1e3,
        "step_ms_p90": result["step_s_p90"] * 1e3,
        "sync_ms_median": _ms(result["lap_medians_s"]["sync"]),
        "laps_ms": {name: _ms(value) for name, value in result["lap_medians_s"].items()},
        "laps_share": {
            name: None if result[f"{name}_s"] is None else result[f"{name}_s"] / result["step_s"]
            for name in (*LAPS, "residual")
        },
        **{name: result[name] for name in ("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "epochs", "steps")},
        **{name: result[name] for name in ("window_s", "rss_mb_max", "pss_mb_max", "parameter_sha256")},
    }


def _train(
    config: RunConfig,
    backend: Backend,
    dataset: data.Dataset,
    batches: data.Batches,
    model: nn.Module,
    bare_model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    directory: Path,
    writer: records.StepWriter,
) -> dict[str, Any]:
    """Train to the end of the budget; return the totals of the timed window."""
    workers, leads = backend.workers, backend.rank == 0
    per_epoch = batches.steps_per_epoch
    last_step = _last_step(config, per_epoch)
    curves_all, targets_all = torch.from_numpy(dataset.curves), torch.from_numpy(dataset.targets)
    clock = LapClock(DeviceStamps() if device.type == "cuda" else HostStamps())
    precision = torch.autocast(device.type, torch.bfloat16) if config.precision == "bf16" else nullcontext()
    base_lrs = [group["lr"] for group in optimizer.param_groups]
    moving_lr = config.schedule != "constant" or config.lr_warmup_steps > 0
    recorder = _Recorder(writer, config.batch, config.warmup_steps, backend.sync_visible)
    progress = Progress(enabled=leads)

    step = epoch = 0
    window_s = 0.0
    out_of_time = False
    evaluation: dict[str, Any] = {}
    started = now()
    # One turn is a stretch of steps without interruption: to the end of the warm-up, of the epoch, or of the budget.
    # The clock stands between stretches, so that evaluation is outside the timed window.
    while step < last_step and not out_of_time:
        timed = step >= config.warmup_steps
        end = min(last_step, (epoch + 1) * per_epoch, math.inf if timed else config.warmup_steps)
        rows = torch.from_numpy(batches.epoch(epoch))  # (steps per epoch, B)
        check_every = _steps_between_checks(backend, recorder, config)
        _wait_for_device(device)
        backend.barrier()
        opened = now()
        clock.start()
        while step < end:
            clock.begin()
            batch_rows = rows[step - epoch * per_epoch]
            curves = curves_all.index_select(0, batch_rows).to(device, non_blocking=True)  # (B, C, L)
            targets = targets_all.index_select(0, batch_rows).to(device, non_blocking=True)  # (B, P)
            clock.lap("data")
            loss = train_step(model, optimizer, curves, targets, backend, clock, precision)
            recorder.add(step, epoch, loss)
            step += 1
            if moving_lr:
                done = (window_s + now() - opened) / config.seconds if config.seconds else step / last_step
                for group, base_lr in zip(optimizer.param_groups, base_lrs, strict=True):
                    group["lr"] = base_lr * lr_factor(config, step, done)
            if step % check_every == 0:
                if len(recorder) >= DRAIN_STEPS or now() - recorder.drained > DRAIN_S:
                    recorder.drain(clock)
                if timed and config.seconds:
                    out_of_time = backend.maximum(window_s + now() - opened) >= config.seconds
                    if out_of_time:
                        break
                progress.update(
                    step, last_step, epoch, config, window_s + now() - opened, recorder.samples_per_s(workers)
                )
        _wait_for_device(device)
        if timed:
            window_s += now() - opened
        recorder.drain(clock)

        epoch_ended = step == (epoch + 1) * per_epoch
        if epoch_ended or step >= last_step or out_of_time:
            evaluation = {
                "epoch": epoch + 1 if epoch_ended else step / per_epoch,
                "steps": step,
                "samples": step * config.batch * workers,
                "train_s": window_s,
                "wall_s": now() - started,
                "train_mse": float(backend.sum(np.array([recorder.epoch_loss()]))[0]) / workers,
                **evaluate(bare_model, dataset, backend, device),
                "lr": optimizer.param_groups[0]["lr"],
            }
            if leads:
                records.append_epoch(directory, evaluation)
                progress.epoch(evaluation)
        epoch += epoch_ended
    progress.close()

    hashes = backend.gather(parameter_sha256(bare_model))
    if len(set(hashes)) > 1:
        other = next(rank for rank, digest in enumerate(hashes) if digest != hashes[0])
        raise BackendError(
            f"rank {other} ends with other parameters than rank 0: the gradients were not averaged alike; "
            "do not use this run, and report its settings"
        )
    slowest_s = backend.maximum(window_s)
    summaries = backend.gather(recorder.summary())
    memory = backend.gather((environment.peak_rss_mb(), environment.pss_mb()))
    shares = [pss for _, pss in memory if pss is not None]
    steps = step - min(config.warmup_steps, step)
    return {
        "samples_per_s": steps * config.batch * workers / slowest_s,
        "window_s": slowest_s,
        "steps": steps,
        "excluded_steps": step - steps,
        "step_s_median": max(each["median"]["step_s"] for each in summaries),
        "step_s_p90": max(each["step_s_p90"] for each in summaries),
        **{f"{lap}_s": _mean([each["mean"][f"{lap}_s"] for each in summaries]) for lap in (*LAPS, "residual", "step")},
        "lap_medians_s": {
            lap: _mean([each["median"][f"{lap}_s"] for each in summaries]) for lap in (*LAPS, "residual")
        },
        "epochs": step / per_epoch,
        **{name: evaluation[name] for name in ("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse")},
        "rss_mb_max": max(rss for rss, _ in memory),
        "pss_mb_max": max(shares) if shares else None,
        "parameter_sha256": hashes[0],
    }


def evaluate(model: nn.Module, dataset: data.Dataset, backend: Backend, device: torch.device) -> dict[str, float]:
    """Return the test MSE (mean over both normalised targets) and the root mean square errors of G0 (MPa) and a.

    Each worker takes every workers-th test curve; the sums of squares are added up in float64.
    """
    rows = torch.from_numpy(data.test_rows(np.arange(backend.rank, dataset.test_size, backend.workers)))
    curves, targets = torch.from_numpy(dataset.curves), torch.from_numpy(dataset.targets)
    squares = np.zeros(2)
    with torch.inference_mode():
        for part in torch.split(rows, EVALUATION_BATCH):
            errors = model(curves.index_select(0, part).to(device)).cpu() - targets.index_select(0, part)
            squares += errors.double().square().sum(dim=0).numpy()
    mean_squares = backend.sum(squares) / dataset.test_size
    g0_rmse_mpa, a_rmse = np.sqrt(mean_squares) * TARGET_SPAN
    return {"test_mse": float(mean_squares.mean()), "g0_rmse_mpa": float(g0_rmse_mpa), "a_rmse": float(a_rmse)}


class _Recorder:
    """Keeps losses and laps of this rank until they are written, and the timed steps' laps until the summary."""

    def __init__(self, writer: records.StepWriter, batch: int, warmup_steps: int, sync_visible: bool) -> None:
        self._writer, self._batch, self._warmup_steps, self._sync_visible = writer, batch, warmup_steps, sync_visible
        self._pending: list[tuple[int, int, torch.Tensor]] = []
        self._timed: list[dict[str, np.ndarray]] = []
        self._loss_sum, self._loss_count, self._loss_epoch = 0.0, 0, -1
        self.recent_step_s = math.nan
        self.drained = now()

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, step: int, epoch: int, loss: torch.Tensor) -> None:
        self._pending.append((step, epoch, loss))

    def drain(self, clock: LapClock) -> None:
        """Read the laps of the pending steps and append them to the file."""
        columns = clock.drain()
        self.drained = now()
        if not self._pending:
            return
        hidden: dict[str, None] = {}
        if not self._sync_visible:
            # The call was empty and says nothing about the wait; its nanoseconds belong to the residual.
            columns["residual_s"] = columns["residual_s"] + columns.pop("sync_s")
            hidden = {"sync_s": None}
        steps = np.array([step for step, _, _ in self._pending])
        epochs = np.array([epoch for _, epoch, _ in self._pending])
        losses = torch.stack([loss for _, _, loss in self._pending]).float().cpu().numpy()
        samples = np.full(len(steps), self._batch)
        self._writer.append({"step": steps, "epoch": epochs, **columns, **hidden, "samples": samples, "loss": losses})
        self._pending = []
        if epochs[-1] != self._loss_epoch:
            self._loss_sum, self._loss_count, self._loss_epoch = 0.0, 0, int(epochs[-1])
        self._loss_sum += float(losses.sum(dtype=np.float64))
        self._loss_count += len(losses)
        self.recent_step_s = float(np.median(columns["step_s"]))
        timed = steps >= self._warmup_steps
        if timed.any():
            self._timed.append({name: lap[timed] for name, lap in columns.items()})

    def epoch_loss(self) -> float:
        """Return the mean training loss of this rank over the steps of the current epoch."""
        return self._loss_sum / self._loss_count

    def samples_per_s(self, workers: int) -> float:
        """Return the recent speed of all workers, as seen from this rank; NaN before the first reading."""
        return self._batch * workers / self.recent_step_s

    def summary(self) -> dict[str, Any]:
        """Return means and medians of each lap over the timed steps of this rank; None where sync is not visible."""
        joined = {name: np.concatenate([part[name] for part in self._timed]) for name in self._timed[0]}
        hidden = {} if self._sync_visible else {"sync_s": None}
        return {
            "mean": {**{name: float(lap.mean()) for name, lap in joined.items()}, **hidden},
            "median": {**{name: float(np.median(lap)) for name, lap in joined.items()}, **hidden},
            "step_s_p90": float(np.quantile(joined["step_s"], 0.9)),
        }


class _StartWatchdog:
    """Ends this rank when the others do not arrive: a rank with another backend would leave all waiting for ever."""

    def __init__(self, timeout_s: float, launch: Launch) -> None:
        def give_up() -> None:
            say(
                f"error: rank {launch.rank} of {launch.workers} waited {timeout_s:g} s for the other ranks to start; "
                "start all ranks with the same options, or raise --start-timeout-s"
            )
            os._exit(2)

        self._timer = threading.Timer(timeout_s, give_up)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()


def _device(config: RunConfig, *, local_rank: int) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise BackendError("device cuda was asked for, but PyTorch sees no GPU; use --device cpu or auto")
    if config.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _wait_for_device(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _ensure_dataset(config: RunConfig, *, threads: int) -> None:
    """Generate a data set that was named by its size and is not there yet, and say so."""
    if data.is_cached(config.dataset, seed=config.data_seed):
        return
    path = data.path_of(config.dataset, seed=config.data_seed)
    say(f"generating {data.parse_size(config.dataset):,} curves (seed {config.data_seed}) into {path}, once")
    began = now()
    data.ensure(config.dataset, seed=config.data_seed, processes=threads)
    say(f"generated in {now() - began:.1f} s")


def _default_out(config: RunConfig, backend: Backend) -> Path:
    runtime = backend.name if backend.transport == "none" else f"{backend.name}-{backend.transport}"
    return Path("runs") / config.study / f"{utc_stamp()}-{runtime}-{backend.workers}w-b{config.batch}-{os.getpid()}"


def _last_step(config: RunConfig, per_epoch: int) -> float:
    """Return the number of steps to make, warm-up included; infinite for a budget of seconds."""
    if config.epochs is not None:
        steps = config.epochs * per_epoch
        if steps <= config.warmup_steps:
            raise ConfigError(
                f"warmup_steps {config.warmup_steps} leaves nothing of {config.epochs} epochs x {per_epoch} steps; "
                "use fewer warm-up steps or more epochs"
            )
        return steps
    return math.inf if config.steps is None else config.warmup_steps + config.steps


def _steps_between_checks(backend: Backend, recorder: _Recorder, config: RunConfig) -> int:
    """Return how many steps make about a quarter of a second, the same number on all ranks."""
    step_s = backend.maximum(0.0 if math.isnan(recorder.recent_step_s) else recorder.recent_step_s)
    limit = config.seconds / 8 if config.seconds else math.inf
    return max(1, min(DRAIN_STEPS, round(min(0.25, limit) / step_s))) if step_s else 10


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


# ------------------------------------------------------------------------------------------------ command line


def add_options(parser: Any) -> None:
    """Declare the options of `train`: those of RunConfig, and where to write."""
    add_run_options(parser)
    parser.add_argument("--config", type=Path, metavar="FILE.yaml", help="read options from a YAML file first")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the run directory (default: a new one below runs/)")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON on standard output")


def main(arguments: list[str] | None = None) -> int:
    """Parse, train, print; return the exit code. A StudyError becomes one line, on one rank."""
    launch = detect(os.environ)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        parser = Parser(prog="horovod_study.train", description=__doc__.splitlines()[0])
        add_options(parser)
        options = parser.parse_strictly(arguments)
        values = {**(load_yaml(options.config) if options.config else {}), **run_values(options)}
        budgets = {"epochs", "seconds", "steps"}
        if budgets & set(run_values(options)):  # a budget on the command line replaces the file's
            values = {name: v for name, v in values.items() if name not in budgets or name in run_values(options)}
        config = run_config(values, source=str(options.config) if options.config else "train")
        result = run(config, out=options.out, launch=launch)
    except _Terminated as error:
        if launch.rank > 0:
            os._exit(143)  # the launcher ends all ranks when one has failed; rank 0 speaks for them
        return _fail(f"error: {error}", launch, code=143)
    except StudyError as error:
        return _fail(f"error: {error}", launch, code=2)
    except KeyboardInterrupt:
        return _fail("interrupted; the run is marked failed", launch, code=130)
    except Exception:
        if launch.workers == 1:
            raise
        # A bug on one rank: end at once, so that the launcher ends the ranks that wait for this one.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    if launch.rank == 0:
        print(summary(result), file=sys.stderr if options.json else sys.stdout, flush=True)
        if options.json:
            print(json.dumps(result), flush=True)
    if launch.launcher != "none":
        # The backend is closed and everything is on the disk. What is left are threads of libraries that now and then
        # abort when the interpreter takes them down (seen with DistributedDataParallel), and fail a good run.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


class _Terminated(StudyError):
    """SIGTERM: the launcher, the batch system or the user ends the run."""


def _terminate(number: int, frame: Any) -> NoReturn:
    raise _Terminated(f"ended by signal {number} ({signal.Signals(number).name}); start it again")


def _fail(message: str, launch: Launch, code: int) -> int:
    """Print `message` once. Ranks that share an error end when rank 0 does; one that is alone speaks a little later."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the launcher's signal to the remaining ranks is no second failure
    if launch.rank > 0:
        sleep(2.0)
    say(message)
    # Not sys.exit: a library's exit handler may wait for ranks that are gone.
    sys.stdout.flush()
    if launch.workers > 1:
        os._exit(code)
    return code


def summary(result: dict[str, Any]) -> str:
    """Return the closing table of a run as text."""
    shares = result["laps_share"]
    names = {**{lap: lap for lap in LAPS}, "residual": "unexplained"}
    cells = [(names[name], "inside backward" if value is None else f"{value:.1%}") for name, value in shares.items()]
    width = [max(len(head), len(text)) for head, text in cells]
    heads = "  ".join(head.rjust(w) for (head, _), w in zip(cells, width, strict=True))
    texts = "  ".join(text.rjust(w) for (_, text), w in zip(cells, width, strict=True))
    return "\n".join(
        [
            "",
            f"  test MSE {result['test_mse']:.3e} after {result['epochs']:.3g} epochs"
            f"   (error of G0 {result['g0_rmse_mpa']:.1f} MPa, of a {result['a_rmse']:.2f}, root mean square)",
            f"  {result['samples_per_s']:,.0f} samples/s with {result['workers']} worker{'s' * (result['workers'] > 1)}"
            f"   step {result['step_ms_median']:.2f} ms (median), {result['step_ms_p90']:.2f} ms (p90)"
            f"   {result['steps']:,} steps in {result['window_s']:.1f} s",
            "",
            f"  share of the step   {heads}",
            f"                      {texts}",
            "",
            f"  recorded in {os.path.relpath(result['run_dir'])}",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
