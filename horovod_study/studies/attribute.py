"""The experiment of `horovod-study explain --measure`: runs with --measure-sync, again and again of the same arms.

Arms of a runtime: the shipped settings, the libraries' defaults, and for Horovod two cycle times, one ten times the
other, with everything else alike. In these two the thread's idle sleep is off: with it new gradients end the sleep at
once, and the cycle would not count. Beside them one worker alone, which says what an efficiency of 1 is.

The arms of a launch are started together and train in turns (turns.py), as many as fit into memory; each measures
what its synchronisation is made of when it has trained, while the others wait. What cannot alternate runs one after the
other, in another order each time.

Below the folder of the experiment: `runs/NUMBER-ARM` are run directories, `runs/turns.csv` has their slices, `logs`
holds what the trainers printed, `cells` their configurations. What is done is not run again, so that an interrupted
experiment goes on; a launch in turns that was broken off is made again as a whole.
"""

import random
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from horovod_study.config import COMMUNICATION, Cell, available_cores, local_cell
from horovod_study.errors import ConfigError, RecordError, StudyError, require_known
from horovod_study.measure.clock import now
from horovod_study.options import BY_RUNTIME, SET_BY_ATTRIBUTION, refuse_set, require_workers
from horovod_study.progress import Line, duration, say
from horovod_study.records import append_turns, read_turns
from horovod_study.roles import Role, named
from horovod_study.runtimes import RUNTIMES
from horovod_study.studies.attempt import Attempt, CellRun, local_launch, record_in
from horovod_study.studies.engine import attempt, set_aside, set_aside_unless_done, working_in
from horovod_study.studies.interruption import Interruption
from horovod_study.studies.turns import (
    BlockLaunch,
    apart_because,
    that_fit,
    until_asked_for,
    worker_mb,
    workers_that_fit,
)
from horovod_study.text.words import plural
from horovod_study.workloads import Configuration, packaged

OPTIONS, QUIET = packaged().options, packaged().quiet

DEFAULT_RUNTIMES = ("horovod/mpi", "horovod/gloo", "mpi/mpi")
STEPS = 1000
ROUNDS = 5
ALONE = "one-worker"
_LEAST_STEPS = 5
"""Steps of a slice: the first one, which workers do not begin together, says nothing of their synchronisation."""


def arms_of(runtime: str) -> list[dict[str, Any]]:
    """Return what the arms of a runtime set, beside the options of all."""
    arms: list[dict[str, Any]] = [{}]
    if OPTIONS["horovod_defaults"].matters(runtime):
        arms.append({"horovod_defaults": True})
    if runtime.startswith("horovod/"):
        # Horovod's default, and ten times that.
        arms += [{"cycle_time_ms": cycle_ms, "idle_cycle_time_ms": 0.0} for cycle_ms in (1.0, 10.0)]
    return arms


def plan(
    given: Mapping[str, Any], *, runtimes: Sequence[str], workers: int, rounds: int, cores: int
) -> list[list[tuple[str, Cell]]]:
    """Return the rounds of the experiment: for each its cells with their names, in a random but fixed order.

    `given`: the run options of the command line. Raises ConfigError for what cannot be run.
    """
    budgets = dict.fromkeys(named(OPTIONS, Role.BUDGET), "use --steps")
    refuse_set("explain --measure", given, SET_BY_ATTRIBUTION, {**budgets, **BY_RUNTIME})
    for runtime in runtimes:
        require_known("explain --measure: --runtime", runtime, [name for name in RUNTIMES if name != "serial"])
    require_workers("explain --measure", workers, cores, least=2)
    if rounds < 1:
        raise ConfigError(f"explain --measure: --rounds is {rounds}; it must be at least 1")
    base = packaged().configure(
        {"steps": STEPS, **given, **QUIET, "study": "attribution", "measure_sync": True}, source="explain --measure"
    )
    cells = [(ALONE, _cell(base, "serial", 1, {}))]
    for runtime in dict.fromkeys(runtimes):
        for arm in arms_of(runtime):
            words = ["defaults" if name == "horovod_defaults" else f"{name}-{v:g}" for name, v in arm.items()]
            name = re.sub(r"[^a-z0-9.]+", "-", "-".join([runtime, *(words or ["shipped"])]))
            cells.append((name, _cell(base, runtime, workers, arm)))
    dice = random.Random(base.seed)
    return [
        [
            (f"{number}-{name}", replace(cell, config=cell.config.changed(repeat=number)))
            for name, cell in dice.sample(cells, len(cells))
        ]
        for number in range(rounds)
    ]


def _cell(base: Configuration, runtime: str, workers: int, arm: Mapping[str, Any]) -> Cell:
    if runtime == "serial":  # alone, what says how workers communicate means nothing, and would be refused
        arm = {name: OPTIONS[name].default for name in COMMUNICATION}
    return local_cell(runtime, {**base.to_dict(), **arm}, workers=workers, source="explain --measure")


def run_experiment(
    given: Mapping[str, Any],
    out: Path,
    *,
    runtimes: Sequence[str] = DEFAULT_RUNTIMES,
    workers: int | None = None,
    rounds: int = ROUNDS,
    turns: bool = True,
) -> list[Path]:
    """Run the experiment below `out` and return its run directories: the worker alone, then arm by arm.

    `rounds`: launches of all arms. Raises StudyError with the reason of a run that fails, and KeyboardInterrupt after
    Ctrl-C; no process is left.
    """
    cores = available_cores()
    order = plan(given, runtimes=runtimes, workers=workers or cores, rounds=rounds, cores=cores)
    largest = max((cell for _, cell in order[0]), key=lambda cell: cell.placement.workers)
    used_mb = worker_mb(out / "runs")
    alone = apart_because([largest] * 2, worker_mb=used_mb) if turns else "as asked for"
    how = f"one after the other: {alone}" if alone else "in turns"
    what = f"{len(order[0])} arms of {largest.config.steps} steps"
    say(f"attribution: {what}, {how}, launches: {rounds}; records in {out}")
    with working_in(out, "attribution") as stop:
        arms = _Arms(out, stop, left=sum(map(len, order)))
        with closing(arms.line):
            for number, cells in enumerate(order):
                boxes = [{name: cell} for name, cell in cells]
                if not alone:
                    boxes = that_fit(dict(sorted(cells)), workers_that_fit(used_mb))
                for place, box in enumerate(boxes, 1):
                    if len(box) == 1:
                        arms.one(*next(iter(box.items())))
                    else:
                        arms.in_turns(
                            box, "arms" if place == 1 else f"arms-{place}", f"launch {number + 1} of {rounds}"
                        )
    in_order = sorted(
        (each for cells in order for each in cells),
        key=lambda each: (
            -1 if each[1].runtime == "serial" else list(runtimes).index(each[1].runtime),
            *(value or 0.0 for name, value in each[1].config.to_dict().items() if OPTIONS[name].attributed),
            each[1].config.repeat,
        ),
    )
    return [out / "runs" / name for name, _ in in_order]


class _Arms:
    """The runs of one experiment, with what they need at hand."""

    def __init__(self, out: Path, stop: Interruption, *, left: int) -> None:
        self._out, self._stop, self._left = out, stop, left
        self.line, self._began, self._ran = Line(), now(), 0

    def one(self, name: str, cell: Cell) -> None:
        """Run an arm alone unless it is done; StudyError: it fails."""
        self._left -= 1
        _require_same(self._directory(name), cell)
        if not set_aside_unless_done(self._directory(name)):
            self.line.show(f"  {name}{self._time_left(1)}")
            self._require_done({name: attempt(self._run(name, cell), self._stop)})

    def in_turns(self, cells: Mapping[str, Cell], block: str, what: str) -> None:
        """Launch arms together, unless all of them are done: one that ran at another time is no partner."""
        runs = self._out / "runs"
        self._left -= len(cells)
        for name, cell in cells.items():
            _require_same(self._directory(name), cell)
        done = {name for name in cells if set_aside_unless_done(self._directory(name))}
        if len(done) == len(cells):
            return
        if done:
            say(f"  {what} is made again: its arms are to train side by side")
        for name in done:
            set_aside(self._directory(name))
        launch = BlockLaunch(
            block=block,
            launch=1 + max((each.launch for each in read_turns(runs) if each.block == block), default=-1),
            seed=next(iter(cells.values())).config.seed,
            policy=until_asked_for,
            equal_steps=True,
            least_steps=_LEAST_STEPS,
        )
        left = self._time_left(len(cells))
        ended, made = launch.run(
            {name: self._run(name, cell) for name, cell in cells.items()},
            self._stop,
            self.line,
            lambda it: f"{what}: {len(it.left())} in turns, round {it.rounds}{left}",
        )
        if self._stop.requested:
            raise KeyboardInterrupt
        self._require_done(ended)
        append_turns(runs, made)
        rounds = 1 + max((each.round for each in made), default=-1)
        self.line.keep(f"  {what}: {len(cells)} arms, {plural(rounds, 'round')}{self._time_left(0)}")

    def _run(self, name: str, cell: Cell) -> CellRun:
        return CellRun(
            cell=cell,
            out=self._directory(name),
            config=self._out / "cells" / f"{name}.yaml",
            log=self._out / "logs" / f"{name}.log",
            launch=local_launch,
            timeout_s=900.0,
        )

    def _require_done(self, ended: Mapping[str, Attempt]) -> None:
        """Count runs that have ended; StudyError: one of them has failed."""
        for name, each in ended.items():
            if not each.done:
                raise StudyError(f"{name} failed: {each.reason}; see {each.log}")
        self._ran += len(ended)

    def _time_left(self, running: int) -> str:
        left = self._left + running
        return f", about {duration((now() - self._began) / self._ran * left)} left" if self._ran and left else ""

    def _directory(self, name: str) -> Path:
        return self._out / "runs" / name


def _require_same(directory: Path, cell: Cell) -> None:
    """Raise RecordError when a run directory holds another run than that of `cell`."""
    if (record := record_in(directory)) is None:
        return
    wanted = {**cell.config.to_dict(), "workers": cell.placement.workers}
    if other := next((name for name, value in wanted.items() if record.requested.get(name) != value), ""):
        raise RecordError(
            f"{directory}: was run with another {other.replace('_', ' ')}; choose another --out, or move it away"
        )
