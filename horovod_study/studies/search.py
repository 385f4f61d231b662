"""Runs a hyper-parameter search: trials proposed by Optuna, each one a run of the trainer under its launcher.

A search called NAME lives in RUNS/NAME:

    search.db               every trial: what was asked, what came of it; several commands on it share the work
    trial-0007/             the run directory of trial 7 (records/ knows its format)
    configs/trial-0007.yaml what it was asked to do
    logs/trial-0007.log     what it printed
    trials.csv, best.yaml   all trials as a table, and the configuration of the best one; written again after each trial

Optuna is asked for the next trial and told how it ended; processes, pruning and interruption are handled here, in one
thread. A trial belongs to the command that runs it, which leaves a heartbeat in the database every few seconds. The
trials of a command that was killed are put back into the queue with the same values: at once where its process can be
seen to be gone, else when it has been silent for `SILENT_S`.
"""

import errno
import fcntl
import json
import math
import os
import platform
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import optuna
import sqlalchemy
import sqlalchemy.exc
import yaml
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from horovod_study import alive
from horovod_study.cluster.process import GRACE_S, stop_marked
from horovod_study.config import available_cores
from horovod_study.errors import ConfigError, StudyError, first_line
from horovod_study.files import csv_rows, write_file, writing
from horovod_study.measure.clock import now
from horovod_study.progress import Line, duration, say
from horovod_study.records import MANIFEST, epoch_rows, facts
from horovod_study.studies.attempt import PRUNED, Attempt, CellRun, Running, Verdict, local_launch, require_launchers
from horovod_study.studies.engine import Lane, difference, sweep
from horovod_study.studies.interruption import Interruption, exit_code
from horovod_study.studies.search_file import PARTS, Choice, SearchConfig, budget_done
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural

_SIGN_OF_LIFE_S = 10
SILENT_S = 60
MAX_RESTARTS = 3  # how often a trial whose command was killed is put back: it may be what kills it
HOPELESS = 5  # so many failed trials and not one good end the search

STATES = ("done", "pruned", "failed", "interrupted", "running", "waiting")
RESULTS = ("test_mse", "g0_rmse_mpa", "a_rmse", "train_mse", "epochs", "samples_per_s")
_LISTED = 10
_TERMINAL_EVERY_S, _LOG_EVERY_S = 0.5, 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _TrialRow:
    """One trial as it stands: a row of trials.csv."""

    trial: int
    state: str  # one of STATES
    values: Mapping[str, Any]  # of the varied options
    results: Mapping[str, float | None]  # RESULTS; of a pruned trial only the last test MSE
    seconds: float | None
    reason: str = ""
    run: str = ""  # name of its run directory
    floor_mse: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the varied options among them."""
        return {
            **facts(self, "trial", "state"),
            **self.results,
            **self.values,
            **facts(self, "floor_mse", "seconds", "run", "reason"),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """Where a search stands."""

    search: SearchConfig
    directory: Path
    rows: tuple[_TrialRow, ...]
    importance: Mapping[str, float] = field(default_factory=dict)  # adds up to 1; empty when nothing can be said
    importance_note: str = ""
    interrupted: bool = False
    broken_off: str = ""

    def count(self, state: str) -> int:
        """Return how many trials are in `state`."""
        return sum(row.state == state for row in self.rows)

    @property
    def ended(self) -> int:
        """Trials that count towards the number wanted: done, pruned and failed ones."""
        return sum(row.state in ("done", "pruned", "failed") for row in self.rows)

    @property
    def best(self) -> _TrialRow | None:
        """The finished trial with the smallest test MSE, if any has finished."""
        done = [row for row in self.rows if row.state == "done"]
        return min(done, key=lambda row: (row.results["test_mse"], row.trial), default=None)

    @property
    def exit_code(self) -> int:
        """0 when all wanted trials have ended and at least one well, 130 after Ctrl-C, 143 after SIGTERM, else 1."""
        if self.interrupted:
            return exit_code()
        return 0 if self.best is not None and self.ended >= self.search.trials else 1

    def command(self, row: _TrialRow) -> str:
        """Return the command that repeats a trial."""
        return repeat_command(self.search, row.values, self.directory / "configs" / f"{_trial_name(row.trial)}.yaml")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        best = self.best
        return {
            "search": self.search.name,
            "directory": str(self.directory),
            "wanted": self.search.trials,
            "ended": self.ended,
            "counts": {state: self.count(state) for state in STATES},
            "best": None if best is None else {**best.to_dict(), "values": dict(best.values)},
            "best_config": None if best is None else str(self.directory / "best.yaml"),
            "best_command": None if best is None else self.command(best),
            "importance": dict(self.importance),
            **facts(self, "importance_note", "interrupted", "broken_off"),
            "rows": [row.to_dict() for row in self.rows],
        }


def _trial_name(number: int) -> str:
    """Return the name of a trial's run directory, configuration and log."""
    return f"trial-{number:04d}"


def repeat_command(search: SearchConfig, values: Mapping[str, Any], config: Path) -> str:
    """Return what a user types to repeat a trial whose configuration is in the file `config`."""
    if search.runtime == "serial":
        return shlex.join(["horovod-study", "strain", "train", "--config", str(config)])
    line = local_launch(search.cell(values), config, config)
    words = list(line.argv[: line.argv.index("--out")])
    python = Path(sys.executable)
    shorter = {str(config.absolute()): str(config)}
    if python.is_relative_to(Path.cwd()):
        shorter[sys.executable] = str(python.relative_to(Path.cwd()))
    return shlex.join([Path(words[0]).name, *(shorter.get(word, word) for word in words[1:])])


def run_search(
    search: SearchConfig, runs_dir: Path, *, command: str, jobs: int = 1, storage: str | None = None
) -> SearchResult:
    """Run trials of `search`, `jobs` at a time, until as many have ended as it wants; say how they fare.

    Trials that ended before, or meanwhile in other commands on the same storage, count. `command` is what the user
    typed; it is repeated where typing it again continues. `storage`: an SQLAlchemy URL; default is SQLite in the
    folder of the search. Raises StudyError before a trial starts when a launcher is missing, when the trials would
    have to share cores, or when the storage holds a search that asked for something else.
    """
    cores = available_cores()
    if jobs < 1:
        raise ConfigError(f"--jobs {jobs}: must be 1 or greater")
    threads = search.highest("threads") * search.workers * jobs
    if threads > cores:
        raise StudyError(
            f"{plural(jobs, 'job')} with {plural(search.workers, 'worker')} each would compute with {threads} threads, "
            f"but this machine offers {plural(cores, 'core')}; lower --jobs, or workers and threads in the file"
        )
    directory = runs_dir / search.name
    require_launchers([search.example()], local_launch)
    with writing(directory, "choose a writable folder with --runs", error=StudyError):
        directory.mkdir(parents=True, exist_ok=True)
    with Interruption() as stop, _quiet():
        database = _Database(search, directory, storage)
        trials = _Trials(search, directory, database, stop)
        try:
            broken_off = trials.run(jobs)
            importance, note = importance_of(database.study)
            result = replace(
                database.results(),
                importance=importance,
                importance_note=note,
                interrupted=stop.requested,
                broken_off=broken_off,
            )
            database.close()
        except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            said = first_line(_innermost(error))
            raise StudyError(f"{database.url}: {said}; fix it, and continue with: {command}") from None
        except OSError as error:
            raise StudyError(
                f"{error.filename or directory}: {error.strerror or error}; make room there or choose another folder "
                f"with --runs, and continue with: {command}"
            ) from error
    if broken_off:
        say(f"broken off: {broken_off}")
    if elsewhere := result.count("running"):
        say(f"{plural(elsewhere, 'trial')} still running in other commands on this search")
    if result.interrupted:
        say(f"interrupted; {result.ended} of {search.trials} trials have ended, continue with: {command}")
    return result


# ------------------------------------------------------------------------------------------------------ the database


class _Database:
    """The storage of one search, shared with other commands, and what this project keeps in it beside Optuna."""

    def __init__(self, search: SearchConfig, directory: Path, storage: str | None) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path = (directory / "search.db").resolve()
        try:
            url = sqlalchemy.make_url(storage) if storage else sqlalchemy.URL.create("sqlite", database=str(path))
        except sqlalchemy.exc.ArgumentError as error:
            raise _storage_error(storage or str(path), error) from None
        self.url = url.render_as_string(hide_password=True)
        self._search, self._directory = search, directory
        with self.alone():  # two commands that start together would both create the tables
            try:
                self._storage = optuna.storages.RDBStorage(
                    url.render_as_string(hide_password=False),
                    # SQLite takes one writer at a time; the others wait instead of failing.
                    engine_kwargs={"connect_args": {"timeout": 60}} if url.get_backend_name() == "sqlite" else None,
                    heartbeat_interval=_SIGN_OF_LIFE_S,
                    grace_period=SILENT_S,
                    heartbeat_stale_trial_callback=self._put_back,
                )
                self.study = optuna.create_study(
                    storage=self._storage, study_name=search.name, pruner=_pruner(search), load_if_exists=True
                )
            except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.OptunaError, ValueError, ImportError) as error:
                raise _storage_error(self.url, error) from None
            self._check_same()

    def close(self) -> None:
        """Give the connections back."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep the other commands on this search out for a moment."""
        path = self._directory / ".lock"
        with path.open("a") as stream:
            try:
                fcntl.lockf(stream, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL):
                    raise
                # A file system without locks: two commands may start one trial too many.
            yield

    def results(self) -> "SearchResult":
        """Return where the search stands, and write it; alone, or what another command wrote since would be lost."""
        with self.alone():
            result = result_of(self._search, self._directory, self.study)
            _write_results(result)
        return result

    def _check_same(self) -> None:
        """Raise StudyError when the storage or the folder holds another search under this name."""
        # As JSON, because that is how it comes back: tuples as lists, whole floats as they were written.
        meaning = json.loads(json.dumps(self._search.meaning()))
        known = self.study.user_attrs.get("meaning")
        if known is None:
            runs = sorted(self._directory.glob(f"trial-*/{MANIFEST}"))
            if runs or self.study.get_trials(deepcopy=False):
                raise StudyError(
                    f"{self._directory}: holds trials of a search that {self.url} does not know; "
                    "move the folder away, or give the search another name in its file"
                )
            self.study.set_user_attr("meaning", meaning)
            return
        if told := difference(known, meaning):
            raise StudyError(
                f"search {self._search.name} was begun as another one ({told}), so its trials cannot be compared with "
                "new ones; give the search another name in its file, or undo the change"
            )

    def next_trial(self) -> "optuna.Trial | None":
        """Return a new trial of this command, or None when the ended and running ones are as many as wanted."""
        with self.alone():
            self._recover()
            trials = self.study.get_trials(deepcopy=False)
            if sum(_counts(trial) or trial.state == TrialState.RUNNING for trial in trials) >= self._search.trials:
                return None
            trial = self.study.ask()
            trial.set_user_attr("host", platform.node())
            trial.set_user_attr("pid", os.getpid())
            trial.set_user_attr("process", alive.identity())
            self.alive(trial)
            # The seed depends on the trial and not on who runs it: commands that start together do not draw the same.
            self.study.sampler = optuna.samplers.TPESampler(seed=self._search.seed * 1_000_003 + trial.number)
            _suggest(self._search, trial)
        return trial

    def alive(self, trial: optuna.Trial) -> None:
        """Leave a heartbeat, so that no other command takes the trial for abandoned."""
        self._storage.record_heartbeat(trial._trial_id)

    def put_back(self, trial: optuna.Trial, reason: str) -> None:
        """Mark a running trial of this command as interrupted and queue its values again."""
        trial.set_user_attr("interrupted", reason)
        self._put_back(self.study, self.study.tell(trial, state=TrialState.FAIL))

    def _recover(self) -> None:
        """Put the trials of commands that are gone back into the queue."""
        optuna.storages.fail_stale_trials(self.study)
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            told = trial.user_attrs
            host, pid, started = str(told.get("host")), told.get("pid"), trial.datetime_start
            began = started.astimezone().isoformat() if started else ""
            running = isinstance(pid, int) and alive.is_running(told.get("process"), pid=pid, host=host, started=began)
            if host == platform.node() and not running:
                self._put_back(self.study, self.study.tell(trial.number, state=TrialState.FAIL))

    def _put_back(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Queue the values of a trial that did not end by itself, and end what is left of its processes here."""
        if trial.user_attrs.get("host", platform.node()) == platform.node():
            stop_marked(str((self._directory / _trial_name(trial.number)).resolve()), grace_s=GRACE_S)
        killed = trial.user_attrs.get("killed_before", 0) + ("interrupted" not in trial.user_attrs)
        if killed <= MAX_RESTARTS and trial.params:
            study.add_trial(
                optuna.create_trial(
                    state=TrialState.WAITING,
                    params=trial.params,
                    distributions=trial.distributions,
                    user_attrs={"retry_of": trial.number, "killed_before": killed},
                )
            )


def _counts(trial: FrozenTrial) -> bool:
    """Return whether a trial came to an end of its own: one that was interrupted or killed is done again."""
    if trial.state == TrialState.FAIL:
        return "failed" in trial.user_attrs
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED)


def _suggest(search: SearchConfig, trial: optuna.Trial) -> None:
    for name, each in search.space.items():
        if isinstance(each, Choice):
            trial.suggest_categorical(name, each.values)
        elif each.whole:
            trial.suggest_int(name, int(each.low), int(each.high), step=int(each.step or 1), log=each.log)
        else:
            trial.suggest_float(name, each.low, each.high, step=each.step, log=each.log)


def _pruner(search: SearchConfig) -> optuna.pruners.BasePruner:
    told = search.pruner
    first = max(1, math.ceil(told.warmup * PARTS - 1e-9))
    if told.kind == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=told.startup_trials, n_warmup_steps=first)
    if told.kind == "hyperband":
        return optuna.pruners.HyperbandPruner(
            min_resource=first, max_resource=PARTS, reduction_factor=told.reduction_factor
        )
    return optuna.pruners.NopPruner()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna's notes to programmers (a part of it is marked experimental, ...) from the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.simplefilter("ignore", UserWarning)
        yield


def _storage_error(url: str, error: Exception) -> StudyError:
    return StudyError(
        f"--storage {url}: cannot be opened ({first_line(error)}); "
        "give an SQLAlchemy URL such as sqlite:////path/to/search.db, or leave it out"
    )


def _innermost(error: BaseException) -> BaseException:
    """Return what the lowest library said, such as "database or disk is full"; Optuna only guesses what it was."""
    return error if error.__cause__ is None else _innermost(error.__cause__)


# ------------------------------------------------------------------------------------------------------ running trials


class _Open:
    """A trial that was taken up, and what its evaluations have told so far."""

    def __init__(self, trial: optuna.Trial, run: CellRun) -> None:
        self.trial, self.run = trial, run
        self.began = self.signed = now()
        self.seen = 0  # rows of epochs.csv
        self.part = -1  # of the budget, the last that Optuna knows of
        self.done = 0.0  # share of the budget at the last evaluation
        self.test_mse: float | None = None


class _Trials:
    """The lanes of a search: each takes up one trial after the other, and tells Optuna how they end."""

    def __init__(self, search: SearchConfig, directory: Path, database: _Database, stop: Interruption) -> None:
        self._search, self._directory, self._database, self._stop = search, directory, database, stop
        self._open: list[_Open] = []
        self._failures, self._jobs = 0, 1
        self._line = Line()
        self._shown = now()
        self._looked = -math.inf
        self._result = result_of(search, directory, database.study)
        self._reported: set[int] = {row.trial for row in self._result.rows if row.state not in ("running", "waiting")}
        self._said = self._result.ended  # of the trials that count, how many the user knows of
        self._best = self._result.best

    def run(self, jobs: int) -> str:
        """Run until enough trials have ended or a stop is requested; return why it was broken off otherwise."""
        result, self._jobs = self._result, jobs
        say(
            f"search {self._search.name}: {result.ended} of {self._search.trials} trials have ended; records in "
            f"{self._directory}, trials kept in {self._database.url}"
        )
        if result.best is not None:
            say(f"best so far: {_trial_text(result.best).removeprefix('done').strip()}")
        with closing(self._line):
            sweep([self._lane() for _ in range(jobs)], self._stop)
        if self._stop.requested or not self._all_failed():
            return ""
        failed = [row for row in self._result.rows if row.state == "failed"]
        return f"{self._failures} trials have failed and none has ended well; the last one: {failed[-1].reason}"

    def _all_failed(self) -> bool:
        ended_well = any(row.state in ("done", "pruned") for row in self._result.rows)
        return self._failures >= HOPELESS and not ended_well

    def _lane(self) -> Lane:
        while not (self._stop.requested or self._all_failed()):
            trial = self._next()
            if trial is None:
                yield None
                continue
            try:
                run = self._run(trial)
            except StudyError as error:  # values that do not fit together
                self._failed(trial, str(error), log=None)
                continue
            each = _Open(trial, replace(run, watch=self._watch))
            self._open.append(each)
            told = False
            try:
                attempt: Attempt = yield each.run
                self._open.remove(each)
                told = attempt.done or not self._stop.requested
                if told:
                    self._ended(each, attempt)
            except UpdateFinishedTrialError:
                # This command stood still for so long (a suspended laptop) that another one put the trial back.
                told = True
                self._line.keep(f"trial {trial.number} was given to another command meanwhile; dropped here")
            finally:
                self._open = [other for other in self._open if other is not each]
                if not told:
                    with suppress(ValueError, UpdateFinishedTrialError):  # another command has put it back itself
                        self._database.put_back(trial, "the command was stopped")

    def _next(self) -> "optuna.Trial | None":
        """Return a trial to be run, None when none is wanted now."""
        if self._open and now() - self._looked < 5.0:  # since a look at what other commands have done
            return None
        trial = self._database.next_trial()
        if trial is None:
            self._looked = now()
        return trial

    def _run(self, trial: optuna.Trial) -> CellRun:
        name = _trial_name(trial.number)
        return CellRun(
            cell=self._search.cell(trial.params),
            out=self._directory.resolve() / name,
            config=self._directory / "configs" / f"{name}.yaml",
            log=self._directory / "logs" / f"{name}.log",
            launch=local_launch,
            timeout_s=self._search.timeout_s,
            grace_s=GRACE_S,
        )

    def _watch(self, running: Running) -> Verdict | None:
        """Leave a heartbeat, deal with new evaluations and show how things stand."""
        each = next(each for each in self._open if each.run is running.run)
        if now() - each.signed >= _SIGN_OF_LIFE_S:
            each.signed = now()
            self._database.alive(each.trial)
        self._show()
        hopeless = self._judge(each)
        return Verdict(PRUNED, f"pruned: {hopeless}") if hopeless else None

    def _judge(self, each: _Open) -> str:
        """Report new evaluations to Optuna; return why the trial should end early, or ""."""
        hopeless = ""
        rows, seen = epoch_rows(each.run.out), each.seen
        each.seen = len(rows)
        for row in rows[seen:]:
            each.done, each.test_mse = budget_done(each.run.cell.config, row), row["test_mse"]
            part = math.floor(each.done * PARTS + 1e-9)
            finite = math.isfinite(each.test_mse)
            if hopeless or (part == each.part and finite):
                continue  # of several evaluations in one part the first is compared, with the first of other trials
            each.part = max(part, each.part + 1)
            each.trial.report(each.test_mse, each.part)
            if not finite:
                hopeless = f"diverged: test MSE {each.test_mse} after {100 * each.done:.0f} % of the budget"
            elif part < PARTS and each.trial.should_prune():
                hopeless = f"test MSE {each.test_mse:.3e} after {100 * each.done:.0f} % of the budget"
        return hopeless

    def _ended(self, each: _Open, attempt: Attempt) -> None:
        """Record in the database how a trial ended, and say so."""
        self._looked = -math.inf  # there is room for another one
        self._judge(each)  # other trials are compared with these evaluations, too late for this one as they are
        trial, record = each.trial, attempt.record
        test_mse = record.totals.get("test_mse") if record is not None else None
        floor = record.effective.get("floor_mse") if record is not None else None
        if floor is not None:
            trial.set_user_attr("floor_mse", floor)
        if attempt.state == PRUNED:
            trial.set_user_attr("pruned", attempt.reason.removeprefix("pruned: "))
            trial.set_user_attr("last_test_mse", each.test_mse)
            self._database.study.tell(trial, state=TrialState.PRUNED)
        elif attempt.done and record is not None and test_mse is not None and math.isfinite(test_mse):
            trial.set_user_attr("results", {name: record.totals.get(name) for name in RESULTS})
            self._database.study.tell(trial, test_mse)
        elif attempt.done or (each.test_mse is not None and not math.isfinite(each.test_mse)):
            # Not a failure: the values were tried and are bad, which the sampler should know.
            trial.report(math.nan, max(PARTS, each.part + 1))
            trial.set_user_attr("pruned", "diverged: the test MSE is not finite")
            self._database.study.tell(trial, state=TrialState.PRUNED)
        else:
            self._failed(trial, attempt.reason, log=attempt.log)
            return
        self._report()

    def _failed(self, trial: optuna.Trial, reason: str, *, log: Path | None) -> None:
        trial.set_user_attr("failed", reason if log is None else f"{reason}; see {log}")
        self._database.study.tell(trial, state=TrialState.FAIL)
        self._failures += 1
        self._report()

    # -------------------------------------------------------------------------------------------------- what is said

    def _report(self) -> None:
        """Say how trials ended, those of other commands included, and write the results again."""
        self._result = result = self._database.results()
        best, width = result.best, len(str(self._search.trials))
        for row in result.rows:
            if row.state in ("running", "waiting") or row.trial in self._reported:
                continue
            self._reported.add(row.trial)
            self._said += row.state != "interrupted"
            count = f"[{self._said:>{width}}/{self._search.trials}]"
            if row.state == "interrupted":
                count = " " * len(count)
            self._line.keep(f"{count} {_trial_text(row)}")
        if best is not None and (self._best is None or best.trial != self._best.trial):
            self._best = best
            self._line.keep(f"{'':>{2 * width + 4}}best so far; repeat it with: {result.command(best)}")

    def _show(self) -> None:
        every_s = _TERMINAL_EVERY_S if sys.stderr.isatty() else _LOG_EVERY_S
        if now() - self._shown < every_s:
            return
        self._shown = now()
        parts = []
        for each in self._open:
            text = f"trial {each.trial.number} for {duration(now() - each.began)}"
            parts.append(
                text if each.test_mse is None else f"{text} ({100 * each.done:.0f} %, test MSE {each.test_mse:.2e})"
            )
        text = f"  {self._result.ended} of {self._search.trials} ended; running {', '.join(parts)}"
        seconds = [row.seconds for row in self._result.rows if row.seconds and row.state in ("done", "pruned")]
        if seconds:
            open_s = sum(max(0.0, median(seconds) - (now() - each.began)) for each in self._open)
            ahead = max(0, self._search.trials - self._result.ended - len(self._open))
            text += f"; about {duration((open_s + ahead * median(seconds)) / self._jobs)} left"
        self._line.show(text)


# ------------------------------------------------------------------------------------------------------------ results


def result_of(search: SearchConfig, directory: Path, study: optuna.Study) -> SearchResult:
    """Return where the search stands by its database, trials in the order of their numbers."""
    rows = tuple(_row(search, trial) for trial in study.get_trials(deepcopy=False))
    return SearchResult(search=search, directory=directory, rows=rows)


def _row(search: SearchConfig, trial: FrozenTrial) -> _TrialRow:
    attrs = trial.user_attrs
    results: dict[str, float | None] = dict.fromkeys(RESULTS)
    reason = ""
    if trial.state == TrialState.COMPLETE:
        state = "done"
        results |= attrs.get("results", {"test_mse": trial.value})
    elif trial.state == TrialState.PRUNED:
        state, reason = "pruned", attrs.get("pruned", "")
        last = attrs.get("last_test_mse")
        results["test_mse"] = last if last is not None and math.isfinite(last) else None
    elif trial.state == TrialState.FAIL:
        state = "failed" if "failed" in attrs else "interrupted"
        reason = attrs.get("failed") or attrs.get("interrupted") or "its command was killed; its values are tried again"
    else:
        state = trial.state.name.lower()
        if state == "running":
            reason = f"process {attrs.get('pid')} on {attrs.get('host')}"
    if "retry_of" in attrs and not reason:
        reason = f"the values of trial {attrs['retry_of']} again"
    return _TrialRow(
        trial=trial.number,
        state=state,
        values={name: trial.params[name] for name in search.space if name in trial.params},
        results=results,
        seconds=trial.duration.total_seconds() if trial.duration else None,
        reason=reason,
        run="" if state == "waiting" else _trial_name(trial.number),
        floor_mse=attrs.get("floor_mse"),
    )


def importance_of(study: optuna.Study) -> tuple[dict[str, float], str]:
    """Return the share of each option in reaching a good test MSE, and how far to trust it.

    PED-ANOVA (Watanabe, Bansal, Hutter, 2023): how much the distribution of an option's values among the best trials
    differs from that among all finished ones. The best are a tenth of them, at least five.
    """
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(done) < 10:
        return {}, f"{len(done)} finished trials; at least 10 are needed to say which options matter"
    quantile = min(0.5, max(0.1, 5 / len(done)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shares = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.PedAnovaImportanceEvaluator(target_quantile=quantile)
        )
    best = math.ceil(quantile * len(done))
    rough = "; a rough guess below 50 finished trials" if len(done) < 50 else ""
    return shares, f"from the best {best} of {len(done)} finished trials{rough}"


def _write_results(result: SearchResult) -> None:
    """Write trials.csv, and best.yaml when a trial has finished; OSError: no room, or not writable."""
    rows = [row.to_dict() for row in result.rows]
    columns = ("trial", "state", *RESULTS, *result.search.space, "floor_mse", "seconds", "run", "reason")
    write_file(result.directory / "trials.csv", csv_rows(columns, rows))
    best = result.best
    if best is None:
        return
    # Repeats of the best are runs of their own and not trials of the search.
    values = {**result.search.cell(best.values).config.to_dict(), "study": f"{result.search.name}-best"}
    path = result.directory / "best.yaml"
    head = (
        f"# The best of {result.count('done')} finished trials of search {result.search.name}: "
        f"trial {best.trial}, test MSE {best.results['test_mse']:.4e}.\n"
        f"#   {repeat_command(result.search, best.values, path)}\n"
        "# It was chosen by its test MSE, so that number is a little better than what other test curves would give.\n\n"
    )
    write_file(path, head + yaml.safe_dump(values, sort_keys=False))


def result_lines(result: SearchResult) -> list[str]:
    """Return the closing table: the best trials, what did not end well, which options matter, where things are."""
    counts = ", ".join(f"{result.count(state)} {state}" for state in STATES if result.count(state))
    lines = ["", f"search {result.search.name}: {result.ended} of {result.search.trials} trials ended ({counts})"]
    done = sorted(
        (row for row in result.rows if row.state == "done"), key=lambda row: (row.results["test_mse"], row.trial)
    )
    if done:
        head = ["trial", "test MSE", "G0 / MPa", "a", "seconds", *result.search.space]
        rows = [_cells(row, result.search.space) for row in done[:_LISTED]]
        lines += ["", *to_lines(table_of(head, rows, texts=()), indent=2)]
        if len(done) > _LISTED:
            lines.append(f"  ... and {len(done) - _LISTED} more in {result.directory / 'trials.csv'}")
        if floor := done[0].floor_mse:
            lines.append(f"  (the best possible test MSE on these curves is {floor:.3e}, from their noise)")
    failed = [row for row in result.rows if row.state == "failed"]
    lines += ["", *(f"  failed: trial {row.trial}: {row.reason}" for row in failed[-_LISTED:])] if failed else []
    mattered = result.importance_note
    if result.importance:
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in result.importance.items())
        mattered = f"{shares} ({mattered})"
    lines += ["", f"  what mattered: {mattered}"]
    if result.best is not None:
        path = result.directory / "best.yaml"
        lines += [f"  the best again: {repeat_command(result.search, result.best.values, path)}"]
    lines.append(f"  all trials: {result.directory / 'trials.csv'}")
    return lines


def _cells(row: _TrialRow, names: Mapping[str, Any]) -> list[str]:
    numbers = [row.results.get(name) for name in ("test_mse", "g0_rmse_mpa", "a_rmse")]
    forms = ("{:.3e}", "{:.1f}", "{:.2f}")
    texts = ["" if number is None else form.format(number) for number, form in zip(numbers, forms, strict=True)]
    seconds = "" if row.seconds is None else f"{row.seconds:.0f}"
    return [str(row.trial), *texts, seconds, *(_value_text(row.values.get(name)) for name in names)]


def _value_text(value: Any) -> str:
    """Return the value of an option as people write it: three digits of a float are enough to recognise it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _trial_text(row: _TrialRow) -> str:
    values = " ".join(f"{name}={_value_text(value)}" for name, value in row.values.items())
    took = "" if row.seconds is None else f"  {duration(row.seconds)}"
    what = f"test MSE {row.results['test_mse']:.3e}" if row.state == "done" else row.reason
    return f"{row.state:<7} trial {row.trial}  {what}{took}  {values}"
