"""The ranks of a script that records itself: they agree as they enter, and what they have noted becomes one run.

Whatever is collective here goes through the library that the script has started; nothing is started or ended.
"""

import functools
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from horovod_study import records
from horovod_study.comm import detect, fail_together, require_parity
from horovod_study.errors import BackendError, StudyError, error_line
from horovod_study.files import unfinished, writing
from horovod_study.measure import environment, evidence
from horovod_study.measure.clock import utc_now, utc_stamp
from horovod_study.recording.rank import facts, turns
from horovod_study.recording.session import RecordOptions
from horovod_study.recording.trainings import CommandRun, processes_in, trainings_of
from horovod_study.text.progress import say
from horovod_study.text.words import plural

PATIENCE_S = 30.0
"""After so long somebody who waits for other ranks to enter or leave is told what for."""
_LEAVE = "every rank must leave the recorder; one that still trains makes more steps than this one"


class Ranks:
    """All ranks that train a model, from one of them. All methods but `close` are collective."""

    directory: Path  # of the run, from `meet` on

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, options: RecordOptions, about: Mapping[str, Any]
    ) -> None:
        """`about`: what else the record says: batch, model_name and own, the options of the script."""
        self._model, self._options, self._about = model, options, about
        on_gpu = any(each.is_cuda for each in model.parameters())
        self._library = facts.workers_of([model], optimizer, on_gpu=on_gpu)
        self.rank, self.workers = self._library["rank"], self._library["workers"]
        self.gather = gathering(self._library["backend"], model)
        self._run: CommandRun | None = None  # on rank 0
        self.held = ExitStack()  # what is given back at the end

    def meet(self, out: Path | None) -> Path:
        """Agree on what runs and where it is written; return the folder for what ranks note."""
        with waiting("every rank must enter `with horovod_study.recorder(...)`"):
            self.gather(None)
        options, library, host = asdict(self._options), self._library, os.uname().nodename
        equal = {**options, "batch": self._about["batch"], "model": facts.names_of([self._model], "")}
        equal |= {"backend": library["backend"], "averaging": library["averaging"]}
        package = environment.describe_package()
        require_parity(self, {**equal, "parameters": facts.count([self._model]), "package version": package})
        places = self.gather((host, environment.affinity()))
        cores = {core for name, own in places if name == host for core in own}
        loads = self.gather(None if turns.wanted() else evidence.OtherLoad(sorted(cores)).sample(at_least_s=0.2))
        name = f"{utc_stamp()}-{library['backend']}-{self.workers}w-{os.getpid()}"
        directory, meeting = (out or Path("runs") / self._options.study / name).absolute(), Path()
        with fail_together(self):
            if self.rank == 0:
                records.require_no_run(directory)
                with writing(directory, "choose a writable --out"):
                    directory.parent.mkdir(parents=True, exist_ok=True)
                    meeting = self.held.enter_context(unfinished(directory, folder=True))
                self._run = CommandRun(directory, meeting, options, self._about, loads=loads)
                self.held.callback(self._run.close)
        self.directory, self._meeting = map(Path, self.gather((str(directory), str(meeting)))[0])
        return self._meeting

    def begin(self, watch: Callable[[], None]) -> None:
        """Have every rank `watch` its training, and begin the record."""
        with fail_together(self), writing(self._meeting, "all ranks must see and write the folder of --out"):
            watch()
        with fail_together(self):
            if self._run is None:
                return
            self._run.started(os.getpid())
            (training,) = trainings_of(processes_in(self._meeting)[1])
            found, opened = self._run.begin(training).effective, [each.opened for each in training.ranks]
            way = f" ({found['backend']} over {found['transport']})" if self.workers > 1 else ""
            say(
                f"recording {plural(self.workers, 'worker')}{way}, {found['model']} with {found['parameters']:,} "
                f"parameters, into {os.path.relpath(self.directory)}"
            )
            if len({each["initial_sha256"] for each in opened}) > 1 and not opened[0]["sharded"]:
                say(
                    "warning: the ranks begin with different parameters; broadcast those of rank 0 before the recorder "
                    "(Horovod: broadcast_parameters), or they train different models"
                )

    def finish(self, wrong: str, failure: str) -> None:
        """Make the run directory when all ranks have left, and raise what was `wrong` in the use of the recorder.

        What was trained is worth more than the record: where that cannot be kept, `failure` of a rank's own included,
        the script goes on.
        """
        with waiting(_LEAVE):
            everybody = self.gather((wrong, failure))
        lost = self.gather("" if self._run is None else self.close())[0]
        for rank, (text, failed) in enumerate(everybody):
            who = f"rank {rank}: " if self.workers > 1 and not wrong else ""
            if text:
                raise StudyError(f"{self.directory}: {who}{wrong or text}")
            lost = lost or (f"{who}{failed}" if failed else "")
        if lost and self._options.disk_full == "end":
            raise StudyError(f"{self.directory}: the recording failed: {lost}")
        if lost and self._run is not None and not failure:
            say(f"error: the recording failed, and the training goes on without it: {lost}")

    def close(self) -> str:
        """Make the run directory of what the ranks have noted, the first that comes; return why it cannot be made."""
        try:
            (self._meeting / "closing").mkdir()
        except OSError:
            return ""
        try:
            options = asdict(self._options)
            run = self._run or CommandRun(self.directory, self._meeting, options, self._about, over=True)
            (training,) = trainings_of(processes_in(self._meeting)[1])
            run.ended()
            run.write(training, 1, failed="")
            if self._run is None:  # rank 0 may have been killed
                shutil.rmtree(self._meeting, ignore_errors=True)
            return records.read_run(self.directory).reason
        except Exception as error:  # of the training one may be on its way
            with suppress(Exception):
                begun, reason = records.read_run(self.directory), error_line(error)
                records.finish_run(self.directory, begun, status="failed", finished=utc_now(), totals={}, reason=reason)
            return error_line(error)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say after a while that this rank waits for others, who may never come, and end nothing."""
    timer = threading.Timer(PATIENCE_S, say, [f"still waiting for the other ranks: {what}"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def gathering(library: str, model: nn.Module) -> Callable[[Any], list[Any]]:
    """Return what gathers small, plain values over the library that a script has started: on every rank those of all.

    Raises BackendError where a launcher started several processes and the script has not connected them yet.
    """
    if library == "horovod":
        # Named, or it would bear the name of its type: a text here and None there would wait for ever.
        gather = functools.partial(sys.modules["horovod.torch"].allgather_object, name="horovod_study.recorder")
        return lambda value: list(gather(value))
    if library == "mpi":
        return lambda value: list(sys.modules["mpi4py.MPI"].COMM_WORLD.allgather(value))
    if library in ("ddp", "distributed"):
        wrapped, dist = facts.averaging(model), torch.distributed
        group = None if wrapped is None else wrapped.process_group

        def gather_objects(value: Any) -> list[Any]:
            values: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(values, value, group=group)
            return values

        return gather_objects
    launcher = detect(os.environ)
    if launcher.workers > 1:
        raise BackendError(
            f"{launcher.launcher} started {launcher.workers} processes, but this script has not connected them; call "
            "hvd.init() or torch.distributed.init_process_group() before the first step"
        )
    return lambda value: [value]
