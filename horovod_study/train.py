"""Train the strain-stress CNN on one worker or on many, and record every step.

    python -m horovod_study.train                                            one worker, plain PyTorch
    horovodrun -np 2 .venv/bin/python -m horovod_study.train                 Horovod, over MPI
    horovodrun --gloo -np 2 .venv/bin/python -m horovod_study.train          Horovod, over Gloo
    mpirun -np 2 .venv/bin/python -m horovod_study.train                     Horovod, or --backend mpi
    torchrun --nproc-per-node 2 -m horovod_study.train                       torch DistributedDataParallel
    ... -m horovod_study.train --resume RUN_DIR                              any of these, continued from a checkpoint

Exit codes: 0 done, 2 wrong use or bad input, 75 stopped by SIGTERM or SIGUSR1 with a checkpoint (start it again with
--resume), 130 after Ctrl-C, 143 after SIGTERM or SIGUSR1 without a checkpoint.

The training itself is strain/trainer.py; here is its command line.
"""

import gc

from horovod_study.config import limits  # isort: split

if __name__ == "__main__":
    gc.set_threshold(*limits.FEW_COLLECTIONS)
    limits.install()  # before PyTorch, which may not find room

import argparse
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

from horovod_study import records
from horovod_study.comm import Launch, detect
from horovod_study.comm.liveness import STOPPED_EXIT_CODE, LostPeer, Stopped, StopRequest, Terminated
from horovod_study.config.documents import load_yaml
from horovod_study.config.options import Parser, add_train_options, run_values
from horovod_study.config.run import LAPS
from horovod_study.errors import StudyError, refuse
from horovod_study.measure.clock import sleep
from horovod_study.strain.options import STRAIN, strain_config
from horovod_study.text.progress import say
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural

# What needs PyTorch is imported where it is used: that takes seconds, and a mistyped option is told at once.


def main(arguments: list[str] | None = None) -> int:
    """Parse, train, print; return the exit code. A StudyError becomes one line, on one rank."""
    launch = Launch(launcher="none", rank=0, workers=1, backend="serial")  # until the environment was read
    stop = StopRequest()
    stop.listen()
    try:
        launch = detect(os.environ)
        text = __doc__ or ""  # none under python -OO
        parser = Parser(
            prog="horovod_study.train",
            description=text.partition("\n")[0],
            epilog=text[text.find("Exit codes") : text.find("The training itself")],
        )
        add_train_options(parser)
        options = parser.parse_strictly(arguments)
        result = _train(options, launch, stop)
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, Stopped):
            stop.over()
        return _fail(error, launch)
    if result is None:  # nothing was left to do
        return 0
    code = 0
    if launch.rank == 0:
        try:
            print(_summary(result), file=sys.stderr if options.json else sys.stdout, flush=True)
            if options.json:
                print(json.dumps(records.finite(result), allow_nan=False), flush=True)
        except OSError as error:  # what was trained is recorded; it only cannot be determined
            code = limits.refused(error)
    # The backend is closed and everything is on the disk. What is left are threads of libraries that now and then
    # abort when the interpreter takes them down (seen with DistributedDataParallel), and fail a good run.
    return _exit(code) if launch.launcher != "none" else code


def _train(options: argparse.Namespace, launch: Launch, stop: StopRequest) -> dict[str, Any] | None:
    """Train as the options say; None where the run that is to be resumed is finished."""
    given = run_values(options)
    values = {**(load_yaml(options.config) if options.config else {}), **given}
    if any(name in given for name in STRAIN.budgets):  # a budget on the command line replaces the file's
        values = {name: value for name, value in values.items() if name not in STRAIN.budgets or name in given}
    again = options.again and (options.out is None or options.resume is not None)
    refuse(
        "train",
        (again, "--again starts over in the directory that --out names; give --out, not --resume"),
        (options.resume and options.out, "--resume continues in its own directory; leave --out out"),
    )
    how: dict[str, Any] = {"out": options.resume or options.out, "again": options.again}
    if options.resume is None:
        config = strain_config(values, source=str(options.config) if options.config else "train")
    else:
        from horovod_study.strain.resume import plan_resume

        resumption = plan_resume(options.resume, values, workers=launch.workers)
        if resumption.finished:
            if launch.rank == 0:
                from horovod_study.strain.trainer import printed

                say(f"{resumption.directory}: the run is finished: {resumption.finished}")
                if options.json:
                    there, record = resumption.directory.absolute(), resumption.record
                    print(json.dumps(printed(there, record.effective, record.totals)), flush=True)
            return None
        config, how["resumption"] = resumption.config, resumption
    from horovod_study.strain.trainer import run

    if gc.get_threshold() == limits.FEW_COLLECTIONS:
        gc.freeze()
        gc.set_threshold(700, 10, 10)  # what a step leaves in cycles may hold memory of a GPU
    return run(config, launch=launch, stop=stop, **how)


def _summary(result: dict[str, Any]) -> str:
    """Return the closing table of a run as text."""
    lost = ", ".join(f"{rows:,} of rank {rank}" for rank, rows in enumerate(result["rows_lost"] or []) if rows)
    count, seconds, size = (result[name] for name in ("checkpoints", "checkpoint_s", "checkpoint_bytes"))
    kept, found, later = f"{count} checkpoint{'s' * (count > 1)}", result["steady"], ""
    if found and found["step"] != found["declared"]:
        more = plural(found["step"] - found["declared"], "step", ",")
        later = f"{more} more than the declared {found['declared']:,} are outside the window"
    return "\n".join(
        [
            "",
            f"  test MSE {result['test_mse']:.3e} after {result['epochs']:.3g} epochs"
            f"   (error of G0 {result['g0_rmse_mpa']:.1f} MPa, of a {result['a_rmse']:.2f}, root mean square)",
            *([f"  {result['floor_text']}"] if result["floor_text"] else []),
            f"  {result['samples_per_s']:,.0f} samples/s with {result['workers']} worker{'s' * (result['workers'] > 1)}"
            + (
                "   steps were not timed"
                if result["step_ms_median"] is None
                else f"   step {result['step_ms_median']:.2f} ms (median), {result['step_ms_p90']:.2f} ms (p90)"
            )
            + f"   {result['steps']:,} steps in {result['window_s']:.1f} s",
            *([f"  steady from step {found['step']:,} on: {later}"] if later else []),
            "",
            *_lap_lines(result["laps_share"], workers=result["workers"]),
            *([f"  step rows lost to a full disk: {lost}; times are those of the rows there are"] if lost else []),
            *([f"  {kept}, {size / 1e6:.1f} MB, took {seconds:.3f} s beside the timed window"] if count else []),
            f"  recorded in {os.path.relpath(result['run_dir'])}",
        ]
    )


def _lap_lines(shares: Mapping[str, float | None], *, workers: int) -> list[str]:
    if all(value is None for value in shares.values()):
        return []
    # What a step has not is left out. What it has and nobody sees is the wait for other workers.
    shares = {lap: share for lap, share in shares.items() if share is not None or (lap == "sync" and workers > 1)}
    names = {**{lap: lap for lap in LAPS}, "residual": "unexplained"}
    cells = [(names[name], "not known" if value is None else f"{100 * value:.1f} %") for name, value in shares.items()]
    heads, texts = zip(("share of the step", ""), *cells, strict=True)
    return [*to_lines(table_of(heads, [texts]), indent=2), ""]


def _fail(error: BaseException, launch: Launch) -> int:
    """Say why the run has ended, on one rank, and return the exit code, or end this process where others wait.

    Ranks that share an error end when rank 0 does; one that is alone speaks a little later. Not by sys.exit: a
    library's exit handler may wait for ranks that are gone.
    """
    if isinstance(error, LostPeer):
        if error.speaks:
            say(f"error: {error}")
        else:
            sleep(5.0)  # another rank says it, and the launcher ends this one
        return _exit(2)
    if isinstance(error, Terminated) and launch.rank > 0:
        return _exit(143)  # the launcher ends all ranks when one has failed; rank 0 speaks for them
    if isinstance(error, Stopped):
        if launch.rank == 0:
            say(f"{error}; continue with --resume, everything else as before")
        code = STOPPED_EXIT_CODE
    elif not isinstance(error, KeyboardInterrupt) and limits.is_lack(error):
        limits.end(error)
    elif isinstance(error, StudyError | KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the launcher's signal to the other ranks is no second failure
        if launch.rank > 0:
            sleep(5.0)
        interrupted = isinstance(error, KeyboardInterrupt)
        say("interrupted; the run is marked failed" if interrupted else f"error: {error}")
        code = 130 if interrupted else 143 if isinstance(error, Terminated) else 2
    elif launch.workers == 1:
        if isinstance(error, OSError):
            return limits.refused(error)
        raise error
    else:
        # A bug on one rank: end at once, so that the launcher ends the ranks that wait for this one.
        traceback.print_exc()
        code = 1
    return _exit(code) if launch.workers > 1 else code


def _exit(code: int) -> NoReturn:
    """End this process without what libraries do at the end of the interpreter."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
