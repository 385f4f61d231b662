"""Hyper-parameter search: a study of Optuna, whose trials are cells that the engine runs.

docs/strain.md explains every key of its file, and what is in the folder RUNS/NAME of a search; several commands, on
several hosts, share it.

A trial is open in the journal until Optuna is told how it ended, and whoever holds its claim runs it. One whose command
was stopped or killed stays open: the next command takes it up with the same values, and only tells how it ended where
its run directory holds a finished run.
"""

import itertools
import json
import math
import os
import shlex
import warnings
from collections.abc import Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import optuna
import yaml
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage
from optuna.trial import Trial, TrialState

from horovod_study.cluster.process import stop_marked
from horovod_study.config.documents import load_yaml, read_bytes
from horovod_study.config.doors import Whole, accept, at_least
from horovod_study.config.roles import Role, named
from horovod_study.config.run import Cell, available_cores, local_cell
from horovod_study.config.study_file import SearchFile, space_form
from horovod_study.config.workload import Configuration, packaged
from horovod_study.errors import ConfigError, StudyError, first_line, refuse
from horovod_study.files import csv_rows, write_file, writing
from horovod_study.measure.clock import now
from horovod_study.records import MANIFEST, epoch_rows
from horovod_study.studies import attempt as attempts
from horovod_study.studies import lease as leases
from horovod_study.studies.attempt import Interruption, Lane, exit_code, sweep
from horovod_study.studies.lease import Held, acquire
from horovod_study.studies.ledger import goes_on
from horovod_study.text.progress import say
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import cut, plural

OPTIONS = packaged().options
_Trials = Annotated[Whole, at_least(1)]
PARTS = 20  # a trial is compared with others at twentieths of its budget

_ELSEWHERE = dict.fromkeys(named(OPTIONS, Role.RUNTIME), "runtime at the top of the file")
_ELSEWHERE |= {"study": "search at the top of the file", "partition": "the top of the file"}
_ELSEWHERE["repeat"] = "nothing: a search tries each combination once"
_SAME = "it must be the same in all trials, or their results could not be compared; put it under run"
_NOT_VARIED = {name: f"it comes from {place}" for name, place in _ELSEWHERE.items()}
_NOT_VARIED |= dict.fromkeys(named(OPTIONS, Role.DATA | Role.BUDGET | Role.GUARD | Role.TARGET), _SAME)
_NOT_VARIED |= {name: _SAME for name in named(OPTIONS, Role.RATE) if not OPTIONS[name].roles & Role.SWEEPABLE}
RESULTS = ("test_mse", "g0_rmse_mpa", "a_rmse", "train_mse", "epochs", "samples_per_s")
MAX_RESTARTS = 3  # how often a trial whose command was killed is taken up again: it may be what kills it
_ENDED = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed"}
_LISTED = 10
_LOOK_S = 5.0  # how soon it is noticed what other commands have done

_Outcome = tuple[TrialState, dict[str, Any]]  # what Optuna is told of a trial, and what is remembered of it


def ends(values: BaseDistribution) -> tuple[Any, ...]:
    """Return the values that show whether an option can be used."""
    return tuple(getattr(values, "choices", ()) or (getattr(values, name) for name in ("low", "high")))


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """A search: fixed options (`run`), varied ones (`space`), and how each trial is launched."""

    name: str
    run: Configuration
    space: Mapping[str, BaseDistribution]
    trials: int
    runtime: str
    workers: int
    seed: int
    timeout_s: float
    pruner: BasePruner

    def cell(self, values: Mapping[str, Any]) -> Cell:
        """Return the run with the varied options set to `values`; ConfigError: they do not fit together."""
        values = {**vars(self.run), **values}
        return local_cell(self.runtime, values, workers=self.workers, source=f"search {self.name}")

    def example(self) -> Cell:
        """Return one valid cell; all are launched alike."""
        for values in itertools.islice(itertools.product(*map(ends, self.space.values())), 1000):
            with suppress(ConfigError):
                return self.cell(dict(zip(self.space, values, strict=True)))
        return self.cell({name: ends(each)[0] for name, each in self.space.items()})  # it says what is wrong

    def meaning(self) -> dict[str, Any]:
        """Return what must be the same whenever the search is continued, or its trials could not be compared."""
        space = {name: vars(each) for name, each in self.space.items()}
        whole = {"run": vars(self.run), "space": space, "runtime": self.runtime, "workers": self.workers}
        return dict(json.loads(json.dumps(whole)))  # as it comes back from the journal: lists for tuples


def load_search(path: Path, *, trials: int | None = None) -> SearchConfig:
    """Read a search file; whatever is wrong with it is a ConfigError naming the file, the key and the value.

    `trials`: of the command line, in place of the file's.
    """
    source = str(path)
    file: SearchFile = accept(SearchFile, load_yaml(path), source)
    fixed, varied = file.run or {}, file.space or {}
    faults = [
        f"run: {name} cannot be fixed here; it comes from {_ELSEWHERE[name]}" for name in fixed if name in _ELSEWHERE
    ]
    faults += [f"space: {name} cannot be searched over: {why}" for name, why in _NOT_VARIED.items() if name in varied]
    twice = [name for name in varied if name in fixed]
    faults += [f"{name} is both fixed under run and varied under space; give it once" for name in twice]
    faults += [] if varied else ["space is empty; name at least one option to vary, for instance lr"]
    if file.runtime == "serial" and file.workers > 1:
        remedy = "name a runtime such as horovod/mpi, or leave workers out"
        faults += [f"runtime serial has one worker, but workers is {file.workers}; {remedy}"]
    if faults:
        raise ConfigError(f"{source}: {faults[0]}")
    named_by = {"study": file.search, "partition": file.partition}
    run = packaged().configure({**fixed, **named_by}, source=f"{source}: run")
    options = {name: each for name, each in OPTIONS.items() if name not in _NOT_VARIED}
    space = accept(space_form(options), varied, f"{source}: space")
    search = SearchConfig(
        name=run.study,
        run=run,
        space={name: _distribution(f"{source}: space: {name}", name, values) for name, values in space.items()},
        trials=file.trials if trials is None else accept(_Trials, trials, "strain search", name="--trials"),
        pruner=_pruner(file.pruner),
        **{name: getattr(file, name) for name in ("runtime", "workers", "seed", "timeout_s")},
    )
    for name, value in ((name, value) for name, values in search.space.items() for value in ends(values)):
        try:
            replace(search, space={**search.space, name: CategoricalDistribution([value])}).example()
        except ConfigError as error:
            text = str(error).removeprefix(f"search {search.name}: ")
            raise ConfigError(f"{source}: space: {name}: {value} is never valid: {text}") from None
    return search


def _distribution(where: str, name: str, values: Any) -> BaseDistribution:
    """Return what Optuna draws from; ConfigError: values that are one, ends of a range or steps that do not fit."""
    kind: Any = IntDistribution if OPTIONS[name].kind is int else FloatDistribution
    try:
        if isinstance(values, dict):
            low, high, step = values["low"], values["high"], values.get("step")
            refuse(
                where,
                (low >= high, f"low is {low} and high is {high}; low must be below high"),
                (step and (high - low) / step > 1e15, f"step is {step}; it must be larger, or be left out"),
            )
            found: BaseDistribution = kind(**{key: value for key, value in values.items() if value is not None})
            return found
        if len(set(values)) > max(1, len(values) - 1):
            return CategoricalDistribution(values)
        problem = "give two or more different values, or put it under run"
    except ValueError as error:
        problem = first_line(error)
    raise ConfigError(f"{where}: {problem}")


def _pruner(told: Any) -> BasePruner:
    """Return Optuna's pruner, which counts in `PARTS` of a budget; a warm-up is a share of it."""
    if told.kind == "none":
        return NopPruner()
    first = max(1, math.ceil(told.warmup * PARTS - 1e-9))
    if told.kind == "hyperband":
        return HyperbandPruner(min_resource=first, max_resource=PARTS, reduction_factor=told.reduction_factor)
    return MedianPruner(n_startup_trials=told.startup_trials, n_warmup_steps=first)


def budget_done(config: Configuration, row: Mapping[str, float]) -> float:
    """Return the share of its budget, 0..1, that a run has used at an evaluation, given its row of epochs.csv."""
    if config.seconds is not None:
        return min(1.0, row["train_s"] / config.seconds)
    if config.steps is not None:
        return min(1.0, row["steps"] / (config.warmup_steps + config.steps))
    return min(1.0, row["epoch"] / (config.epochs or 1))


class SearchResult(NamedTuple):
    """Where a search stands: what --json prints, Optuna's study, and what the command ends with."""

    document: dict[str, Any]
    study: optuna.Study
    exit_code: int  # 0: as many as wanted have ended, at least one of them well


def run_search(search: SearchConfig, runs_dir: Path, *, command: str, jobs: int = 1) -> SearchResult:
    """Run trials of `search`, `jobs` at a time, until as many have ended as it wants; say how they fare.

    Trials that ended before, or meanwhile in other commands on the same folder, count. `command` is what the user
    typed; it is repeated where typing it again continues. Raises StudyError before a trial starts when a launcher is
    missing, when the trials would have to share cores, or when the folder holds a search that asked for something else.
    """
    most = max(ends(search.space["threads"])) if "threads" in search.space else vars(search.run)["threads"]
    threads, cores = most * search.workers * jobs, available_cores()
    many = f"{plural(jobs, 'job')} with {plural(search.workers, 'worker')} each would compute with {threads} threads, "
    few = f"but this machine offers {plural(cores, 'core')}; lower --jobs, or workers and threads in the file"
    one = f"--jobs {jobs}: must be 1 or greater"
    refuse("", (jobs < 1, one), (threads > cores, many + few), error=StudyError)
    directory = runs_dir / search.name
    attempts.require_launchers([search.example()], attempts.local_launch)
    again = f"make room there or choose another folder with --runs, and continue with: {command}"
    with writing(directory, again, error=StudyError), Interruption() as stop, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna's notes to programmers
        directory.mkdir(parents=True, exist_ok=True)
        return _Search(search, directory, stop).run(jobs, command)


def _open_study(search: SearchConfig, directory: Path) -> optuna.Study:
    """Return the study in the folder; StudyError where that holds another one."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = (directory / "search.journal").resolve()
    others = "give the search another name in its file, or move the folder away"
    old = not path.exists() and ((directory / "search.db").exists() or any(directory.glob(f"trial-*/{MANIFEST}")))
    without = f"holds trials without a {path.name}, as of an earlier version; {others}"
    refuse(str(directory), (old, without), error=StudyError)
    lock = JournalFileOpenLock(str(path))
    backend = JournalFileBackend(str(path), lock)
    lock.acquire()
    try:  # what is appended to a line that a full disk or a lost machine cut short would be lost too
        os.truncate(path, read_bytes(path, again=others).rfind(b"\n") + 1)
    finally:
        lock.release()
    how: dict[str, Any] = {"study_name": search.name, "pruner": search.pruner, "load_if_exists": True}
    try:
        study = optuna.create_study(storage=JournalStorage(backend), **how)
    except (ValueError, LookupError) as error:
        raise StudyError(f"{path}: is damaged ({first_line(error)}); {others}") from None
    meaning = search.meaning()
    before, new = _flat(study.user_attrs.get("meaning", meaning)), _flat(meaning)
    other = [name for name in {**new, **before} if before.get(name) != new.get(name)]
    name, was, now_is = (*other, "")[0], *(cut(str(each.get((*other, "")[0])), 60) for each in (before, new))
    begun = f"search {search.name} was begun as another one ({name} was {was}, now {now_is}), so its trials cannot be "
    undo = "compared with new ones; give the search another name in its file, or undo the change"
    refuse("", (other, begun + undo), error=StudyError)
    study.set_user_attr("meaning", meaning)
    return study


def _flat(values: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    inner = {f"{head}{name}": value for name, value in values.items()}
    deeper = (_flat(value, f"{name} ") if isinstance(value, dict) else {name: value} for name, value in inner.items())
    return {name: value for each in deeper for name, value in each.items()}


class _Search:
    """The lanes of a search: each takes up one trial after the other, and tells Optuna how they end."""

    def __init__(self, search: SearchConfig, directory: Path, stop: Interruption) -> None:
        self._search, self._directory, self._stop = search, directory, stop
        self._study, self._claims = _open_study(search, directory), directory / leases.CLAIMS
        self._columns = ("trial", "state", *RESULTS, *search.space, "floor_mse", "seconds", "run", "reason")
        self._looked = -math.inf
        self._document = self._written()

    def run(self, jobs: int, command: str) -> SearchResult:
        """Run until enough trials have ended or a stop is requested, and say how they fare."""
        of = f"of {self._search.trials} trials have ended"
        say(f"search {self._search.name}: {self._document['ended']} {of}; records in {self._directory}")
        sweep([self._lane() for _ in range(jobs)], self._stop)
        document, stopped = self._written(), self._stop.requested
        document["importance"], document["importance_note"] = importance_of(self._study)
        document["interrupted"] = stopped
        if elsewhere := document["counts"]["running"]:
            say(f"{plural(elsewhere, 'trial')} still running in other commands on this search")
        if stopped:
            say(f"interrupted; {document['ended']} {of}, continue with: {command}")
        good = document["best"] is not None and document["ended"] >= self._search.trials
        return SearchResult(document, self._study, exit_code() if stopped else int(not good))

    def _lane(self) -> Lane:
        while not self._stop.requested:
            if (taken := self._take()) is None:
                yield None
                continue
            trial, lease = taken
            state, reason = self._stop.state, ""
            try:
                outcome = yield from self._run(trial, lease)
                if outcome is not None and lease.refresh():
                    state, reason = self._ended(trial, *outcome)
            finally:
                lease.release(state, reason)

    def _take(self) -> tuple[Trial, leases.Lease] | None:
        """Return a trial to be run, under its claim: one that was left open, or a new one; None: none is wanted now."""
        if now() - self._looked < _LOOK_S:
            return None
        while True:
            trials = self._study.get_trials(deepcopy=False)
            for trial in trials[: self._search.trials]:
                if not trial.state.is_finished() and (lease := self._claim(trial.number)) is not None:
                    return Trial(self._study, trial._trial_id), lease
            if len(trials) >= self._search.trials:
                self._looked = now()
                return None
            self._study.ask()  # only opened: the next round claims it, here or in another command

    def _claim(self, number: int) -> leases.Lease | None:
        """Return the claim on a trial; None where another command runs it, or has ended it meanwhile."""
        out = self._directory.resolve() / _name(number)
        try:
            lease = acquire(self._claims, out.name, what=out.name)
        except Held:
            return None
        stop_marked(str(out))  # of a command that was killed
        if self._study.get_trials(deepcopy=False)[number].state.is_finished() or leases.holder_of_run(out) is not None:
            lease.release()
            return None
        return lease

    def _run(self, trial: Trial, lease: leases.Lease) -> Generator[attempts.RankRun, Any, _Outcome | None]:
        """Run a trial, unless its run has ended before, and return how it ended; None: it is left open."""
        name = _name(trial.number)
        # The seed depends on the trial and not on who runs it: commands that start together do not draw the same.
        self._study.sampler = optuna.samplers.TPESampler(seed=self._search.seed * 1_000_003 + trial.number)
        values = {option: trial._suggest(option, each) for option, each in self._search.space.items()}
        earlier = (leases.read_claim(self._claims, name, each) for each in range(1, lease.claim.generation))
        if (killed := sum(claim is not None and claim.released is None for claim in earlier)) > MAX_RESTARTS:
            return TrialState.FAIL, {"reason": f"its command was killed {killed} times"}
        try:
            cell = self._search.cell(values)
        except ConfigError as error:  # values that do not fit together
            return TrialState.FAIL, {"reason": str(error)}
        out, folder, ended = self._directory.resolve() / name, self._directory, None
        record, seen, test_mse = attempts.record_in(out), 0, 0.0  # rows of epochs.csv, and the last one's

        def judge() -> str:
            """Report new evaluations to Optuna; return why the trial should end early, or ""."""
            nonlocal seen, test_mse
            hopeless = ""
            for row in epoch_rows(out)[seen:]:
                done, test_mse, seen = budget_done(cell.config, row), row["test_mse"], seen + 1
                part, after = math.floor(done * PARTS + 1e-9), f"after {100 * done:.0f} % of the budget"
                trial.report(test_mse, part)  # of several in one part Optuna keeps the first
                if not math.isfinite(test_mse):
                    hopeless = hopeless or f"diverged: test MSE {test_mse} {after}"
                elif not hopeless and part < PARTS and trial.should_prune():
                    hopeless = f"pruned: test MSE {test_mse:.3e} {after}"
            return hopeless

        def watch(running: attempts.Running) -> attempts.Verdict | None:
            if not lease.refresh():
                return (attempts.TAKEN_OVER, "another command took it over")
            return (attempts.PRUNED, hopeless) if (hopeless := judge()) else None

        try:
            if record is None or record.status != "done":
                if not (resume := record is not None and goes_on(record, out)) and out.exists():
                    leases.move_run(out, folder / leases.ATTEMPTS)
                paths = {"config": folder / "configs" / f"{name}.yaml", "log": folder / f"logs/{name}.log"}
                how: dict[str, Any] = {"launch": attempts.local_launch, "timeout_s": self._search.timeout_s, **paths}
                ended = yield attempts.RankRun(cell=cell, out=out, resume=resume, watch=watch, **how)
        except Held:  # somebody trains in its directory who runs no search
            return None
        if ended is not None and ended.state in (self._stop.state, "stopped", attempts.TAKEN_OVER):
            return None
        judge()  # other trials are compared with these evaluations, too late for this one as they are
        record = attempts.record_in(out) if ended is None else ended.record
        totals, effective = ({}, {}) if record is None else (record.totals, record.effective)
        told: dict[str, Any] = {"seconds": ended and ended.seconds, "floor_mse": effective.get("floor_mse")}
        done, finite = ended is None or ended.done, math.isfinite(test_mse)
        if ended is not None and ended.state == attempts.PRUNED:
            return TrialState.PRUNED, {**told, "test_mse": test_mse if finite else None, "reason": ended.reason}
        if ended is not None and not done and finite:
            return TrialState.FAIL, {**told, "reason": f"{ended.reason}; see {ended.log}"}
        if done and math.isfinite(totals.get("test_mse") or math.nan):
            return TrialState.COMPLETE, {**told, **{name: totals.get(name) for name in RESULTS}}
        # Not a failure: the values were tried and are bad, which the sampler should know.
        trial.report(math.nan, PARTS + 1)
        return TrialState.PRUNED, {**told, "reason": "diverged: the test MSE is not finite"}

    def _ended(self, trial: Trial, state: TrialState, told: dict[str, Any]) -> tuple[str, str]:
        """Tell Optuna and the user how a trial ended, write the results again, and return state and reason."""
        for name, value in told.items():
            trial.set_user_attr(name, value)
        self._study.tell(trial, told["test_mse"] if state == TrialState.COMPLETE else None, state=state)
        self._looked = -math.inf  # there is room for another one
        self._document = self._written()
        ended, what = _ENDED[state.name], told.get("reason") or f"test MSE {told['test_mse']:.3e}"
        values = " ".join(f"{name}={_plain(value)}" for name, value in trial.params.items())
        say(f"[{self._document['ended']}/{self._search.trials}] {ended} trial {trial.number}: {what}; {values}")
        if (best := self._document["best"]) and best["trial"] == trial.number:
            say(f"  best so far; repeat it with: {self._document['best_command']}")
        return ended, told.get("reason", "")

    def _written(self) -> dict[str, Any]:
        """Write trials.csv and best.yaml, and return the document of the search."""
        name, path = self._search.name, self._directory / "best.yaml"
        while True:
            rows = self._rows()
            states = (*_ENDED.values(), "interrupted", "running", "waiting")
            counts = {state: sum(row["state"] == state for row in rows) for state in states}
            document: dict[str, Any] = {"search": name, "directory": str(self._directory)}
            document |= {"wanted": self._search.trials, "ended": _ended_of(rows), "counts": counts}
            document |= {**dict.fromkeys(("best", "best_config", "best_command")), "rows": rows}
            write_file(self._directory / "trials.csv", csv_rows(self._columns, rows))
            if done := [row for row in rows if row["state"] == "done"]:
                best = min(done, key=lambda row: (row["test_mse"], row["trial"]))
                values = {option: best[option] for option in self._search.space}
                command = repeat_command(self._search, values, path)
                document |= {"best": {**best, "values": values}, "best_config": str(path), "best_command": command}
                head = f"# The best of {len(done)} finished trials of search {name}: trial {best['trial']}, test MSE "
                head += f"{best['test_mse']:.4e}.\n#   {command}\n# It was chosen by its test MSE, so that number is a "
                head += "little better than what other test curves would give."
                # Repeats of the best are runs of their own and not trials of the search.
                again = {**vars(self._search.cell(values).config), "study": f"{name}-best"}
                write_file(path, f"{head}\n\n{yaml.safe_dump(again, sort_keys=False)}")
            if _ended_of(self._rows()) == document["ended"]:  # else another command may have written more in between
                return document

    def _rows(self) -> list[dict[str, Any]]:
        """Return a row per trial, with the columns of trials.csv."""
        rows = []
        for trial in self._study.get_trials(deepcopy=False):
            name, state, told = _name(trial.number), _ENDED.get(trial.state.name), {**trial.params, **trial.user_attrs}
            if state is None:
                claim = leases.latest(self._claims, name)
                if claim is None and trial.number >= self._search.trials:
                    continue  # opened at once with the last one of another command; it waits until more are wanted
                gone = claim is not None and leases.is_stale(claim, present=leases.server_time(self._claims))
                state = "waiting" if claim is None else "interrupted" if gone else "running"
                told["reason"] = "its values are tried again" if gone else str(claim.holder) if claim else ""
            row = {"reason": "", **told, "trial": trial.number, "state": state, "run": name}
            known = {column: row.get(column) for column in self._columns}
            rows.append({column: None if value != value else value for column, value in known.items()})  # NaN
        return rows


def _ended_of(rows: Iterable[Mapping[str, Any]]) -> int:
    return sum(row["state"] in _ENDED.values() for row in rows)


def _name(number: int) -> str:
    """Return the name of a trial's run directory, claim, configuration and log."""
    return f"trial-{number:04d}"


def repeat_command(search: SearchConfig, values: Mapping[str, Any], config: Path) -> str:
    """Return what a user types to repeat a trial whose configuration is in the file `config`."""
    if search.runtime == "serial":
        return shlex.join(["horovod-study", "strain", "train", "--config", str(config)])
    program, *words = attempts.local_launch(search.cell(values), config, config).argv
    shorter = {str(config.absolute()): str(config)}
    return shlex.join([Path(program).name, *(shorter.get(word, word) for word in words[: words.index("--out")])])


def importance_of(study: optuna.Study) -> tuple[dict[str, float], str]:
    """Return the share of each option in reaching a good test MSE, and how far to trust it.

    PED-ANOVA (Watanabe, Bansal, Hutter, 2023): how much the distribution of an option's values among the best trials
    differs from that among all finished ones. The best are a tenth of them, at least five.
    """
    done = len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
    if done < 10:
        return {}, f"{done} finished trials; at least 10 are needed to say which options matter"
    quantile = min(0.5, max(0.1, 5 / done))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=quantile)
    rough = "; a rough guess below 50 finished trials" if done < 50 else ""
    note = f"from the best {math.ceil(quantile * done)} of {done} finished trials{rough}"
    return optuna.importance.get_param_importances(study, evaluator=evaluator), note


def result_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the closing table: the best trials, what did not end well, which options matter, where things are."""
    counts = ", ".join(f"{count} {state}" for state, count in document["counts"].items() if count)
    ended = f"{document['ended']} of {document['wanted']} trials ended ({counts})"
    lines = ["", f"search {document['search']}: {ended}", ""]
    if best := document["best"]:
        names = ("trial", "test_mse", "g0_rmse_mpa", "a_rmse", "seconds", *best["values"])
        done = sorted((row for row in document["rows"] if row["state"] == "done"), key=lambda row: row["test_mse"])
        rows = [[_plain(row[name]) for name in names] for row in done[:_LISTED]]
        lines += [*to_lines(table_of(names, rows, texts=()), indent=2), ""]
    failed = [row for row in document["rows"] if row["state"] == "failed"]
    lines += [f"  failed: trial {row['trial']}: {row['reason']}" for row in failed[-_LISTED:]]
    shares = "".join(f"{name} {100 * share:.0f} %, " for name, share in document["importance"].items())
    lines += [f"  what mattered: {shares}{document['importance_note']}"]
    lines += [f"  the best again: {document['best_command']}"] if best else []
    return [*lines, f"  all trials: {Path(document['directory']) / 'trials.csv'}"]


def _plain(value: Any) -> str:
    """Return a value as people write it: four digits of a float are enough to recognise it."""
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
