"""Tunes how workers communicate: short training launches of this model at this placement, raced against each other.

A tune lives in a folder DIR:

    tune.json           what is tuned, and what the first launch of each runtime told about itself
    trials.csv          one row per launch, appended as it ends; the same command again goes on from here
    turns.csv           the slices of the launches that trained in turns
    runs/, configs/, logs/      the run directory of each launch, what it was asked to do, what it printed
    result.json, tune.png, ...  what came of it (report/figures/tune.py draws)

Libraries read their settings when they start, so that every candidate is launched: the usual trainer, no checkpoint,
evaluated once at its end. The candidates of a heat are launched together and train in turns (turns.py), and those that
are resolved to be slower are ended; where they cannot, launches of a few seconds follow each other. `racing.py` decides
what is launched next.
"""

import json
import math
import os
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from horovod_study.analysis.paired import MIN_ROUNDS
from horovod_study.analysis.stats import Interval
from horovod_study.config import Cell, available_cores, local_cell
from horovod_study.documents import load_yaml, parse_csv, read_json, read_text
from horovod_study.errors import ConfigError, StudyError, nearest, require_known
from horovod_study.files import append_text, csv_rows, write_file
from horovod_study.measure.clock import now, utc_now
from horovod_study.options import BY_RUNTIME, SET_BY_TUNE, refuse_set, require_workers
from horovod_study.progress import Line, duration, say
from horovod_study.records import RunRecord, TurnSlice, append_turns, read_turns
from horovod_study.roles import TRUTH, Option, Role, check_field, plain
from horovod_study.runtimes import RUNTIMES
from horovod_study.studies import engine
from horovod_study.studies.attempt import Attempt, CellRun, Launcher, local_launch
from horovod_study.studies.engine import set_aside, working_in
from horovod_study.studies.interruption import Interruption, exit_code
from horovod_study.studies.racing import (
    CONFIRM_HEATS,
    FIRST_BLOCKS,
    LEAST_ROUNDS,
    Book,
    Candidate,
    Heat,
    HeatResult,
    NextLaunch,
    Outcome,
    RoundBook,
    Trial,
    race,
    race_in_turns,
    ratio_record,
    ratio_text,
    ratio_words,
)
from horovod_study.studies.turns import SLICE_S, BlockLaunch, apart_because, rates, workers_that_fit
from horovod_study.workloads import Configuration, Workload

SECONDS = 2.0
MINUTES, TURNS_MINUTES = 10.0, 3.0
ROUNDS = 6
"""Defaults: seconds of each launch, minutes of all launches together, and rounds of the race."""

_START_UP_S = 90.0  # a launch that has not ended after this and ten times its seconds hangs
_RESERVED, _RESERVED_IN_TURNS = 0.25, 0.4  # of the time, at most, is kept for confirming the winner


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneRequest:
    """What is to be tuned: a run, where it runs, and how much may be spent on it."""

    config: Configuration
    runtimes: tuple[str, ...]
    workers: int
    minutes: float = MINUTES
    rounds: int = ROUNDS
    knobs: tuple[str, ...] = ()  # none: all that matter
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # knob -> the user's own candidates
    alone: str = ""  # why candidates are launched one after the other; "": they train in turns

    def meaning(self) -> dict[str, Any]:
        """Return what must be the same for launches to be compared; the time and the rounds may be extended."""
        identity = self.config.workload.identity
        return {
            "config": self.config.meaning(),
            **({"workload": identity} if identity else {}),
            "runtimes": list(self.runtimes),
            "workers": self.workers,
            "turns": not self.alone,
            "knobs": sorted(self.knobs),
            "values": {name: list(values) for name, values in sorted(self.values.items())},
        }

    def cell(self, candidate: Candidate) -> Cell:
        """Return the run that tries a candidate; ConfigError when its values do not fit together."""
        values = {**self.config.to_dict(), **candidate.values}
        return local_cell(
            candidate.runtime, values, workers=self.workers, source=candidate.name, workload=self.config.workload
        )


def tune_request(
    path: Path | None,
    given: Mapping[str, Any],
    *,
    runtimes: Sequence[str] = (),
    workers: int | None = None,
    minutes: float | None = None,
    rounds: int = ROUNDS,
    knobs: Sequence[str] = (),
    values: Sequence[str] = (),
    cores: int | None = None,
    turns: bool = True,
    workload: Workload,
) -> TuneRequest:
    """Return the request that options make; `given` are options of the run, `values` texts such as groups=1,2.

    ConfigError in one line for what is wrong: an unknown knob or runtime, one that has no effect, too many workers.
    """
    cores = available_cores() if cores is None else cores
    varied = "it is varied; use --knob {}=VALUE,... to say among which values"
    instead = {**{name: varied.format(name) for name in workload.tuned}, **BY_RUNTIME}
    refuse_set("tune", given, SET_BY_TUNE, instead)
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise ConfigError(f"tune: --minutes is {minutes:g}; it must be greater than 0")
    if rounds < 1:
        raise ConfigError(f"tune: --rounds is {rounds}; it must be at least 1")
    runtimes = tuple(dict.fromkeys(runtimes)) or ("horovod/mpi",)
    tunable = [runtime for runtime in RUNTIMES if runtime != "serial"]
    for runtime in runtimes:
        if runtime not in tunable:
            raise ConfigError(
                f"tune: --runtime {runtime!r} {'does not communicate' if runtime == 'serial' else 'is not known'}"
                f"{nearest(runtime, tunable)}; allowed: {', '.join(tunable)}"
            )
    file = load_yaml(path) if path else {}
    kept = {name: value for name, value in file.items() if name not in SET_BY_TUNE or name not in workload.options}
    kept.pop("seconds", None)
    config = workload.configure(
        {"seconds": SECONDS, **kept, **given, **workload.quiet, "study": "tune"}, source=str(path) if path else "tune"
    )
    workers = cores // config.threads if workers is None else workers
    require_workers("tune", workers, cores, least=2, threads=config.threads)
    own = dict(_own_values(text, workload) for text in values)
    knobs = tuple(name.replace("-", "_") for name in knobs)
    for name in (*knobs, *own):
        _require_effect(name, runtimes, workload)
    alone = "as asked for"
    if turns:  # that two of them fit is the least; how many do is found from the first launch
        alone = apart_because(
            [local_cell(runtimes[0], config.to_dict(), workers=workers, source="tune", workload=workload)] * 2
        )
    return TuneRequest(
        config=config,
        runtimes=runtimes,
        workers=workers,
        alone=alone,
        minutes=(MINUTES if alone else TURNS_MINUTES) if minutes is None else minutes,
        rounds=rounds,
        knobs=tuple(dict.fromkeys(knobs)),
        values=own,
    )


def _own_values(text: str, workload: Workload) -> tuple[str, tuple[Any, ...]]:
    """Return knob and values meant by `cycle_time_ms=0.1,1`."""
    name, equals, list_ = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not list_.strip(" ,"):
        raise ConfigError(f"tune: --knob {text!r}; write NAME=VALUE,VALUE,... such as cycle_time_ms=0.1,1")
    require_known("tune: knob", name, workload.tuned)
    option, values = workload.options[name], []
    for word in list_.split(","):
        value: Any = word.strip()
        if option.kind is bool:
            value = TRUTH.get(value.lower(), value)
        values.append(check_field("tune: --knob", name, value, option, optional=False))
    return name, tuple(dict.fromkeys(values))


def _require_effect(name: str, runtimes: Sequence[str], workload: Workload) -> None:
    require_known("tune: knob", name, workload.tuned)
    why = {knob: [why_not(workload.options[knob], runtime) for runtime in runtimes] for knob in workload.tuned}
    if all(why[name]):
        useful = [knob for knob, reasons in why.items() if not all(reasons)]
        raise ConfigError(
            f"tune: knob {name} {why[name][0]}; knobs that do something over {', '.join(runtimes)}: {', '.join(useful)}"
        )


def why_not(knob: Option, runtime: str) -> str:
    """Return why a knob is not worth trying over a runtime, "" when it is."""
    if not knob.matters(runtime):
        return f"has no effect over {runtime}"
    if knob.several_hosts:
        return "means something on several hosts only, and this is one"
    return ""


# ------------------------------------------------------------------------------------------------------ the space


def space(
    request: TuneRequest, runtime: str, effective: Mapping[str, Any], *, cores: int
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the candidates of a runtime, baselines first, and why which knob is not varied.

    `effective` is that of a run with the shipped settings: a value that they have anyway is no candidate.
    """
    workload = request.config.workload
    shipped = shipped_values(effective, workload)
    candidates = [Candidate(name="shipped settings", runtime=runtime, kind="shipped")]
    if library := library_values(runtime, request.config):
        candidates.append(Candidate(name="library defaults", runtime=runtime, kind="library", values=library))
    left_out: dict[str, str] = {}
    for knob in request.knobs or workload.tuned:
        option = workload.options[knob]
        why = why_not(option, runtime)
        if not why and knob in shipped and shipped[knob] is None:
            why = "is not known to the Horovod that is installed"
        if why:
            if request.knobs or not why.startswith(
                "has no effect"
            ):  # what belongs to another library goes without saying
                left_out[knob] = why
            continue
        tried = 0
        for value in request.values.get(knob, option.tries):
            if knob == "threads":
                if value == request.config.threads or value * request.workers > cores:
                    continue
            elif knob == "ps_servers" and value > request.workers:
                continue
            elif knob in shipped and shipped[knob] == value:
                continue
            needs = {"reduction": "hooks"} if option.hooks and shipped.get("reduction") != "hooks" else {}
            candidate = Candidate(
                name=f"{knob}={plain(value)}" + (" with hooks" if needs else ""),
                runtime=runtime,
                kind="effect",
                values={**needs, knob: value},
                knob=knob,
                value=plain(value) + (" with hooks" if needs else ""),
            )
            try:
                request.cell(candidate)
            except ConfigError as error:
                said = str(error).removeprefix(f"{candidate.name}: ")
                left_out[knob] = f"would be refused: {said.partition('; ')[0]}"
                continue
            candidates.append(candidate)
            tried += 1
        if not tried and knob not in left_out:
            left_out[knob] = (
                "has no other value that fits the cores" if knob == "threads" else "has no other value to be tried"
            )
    return candidates, left_out


def library_values(runtime: str, config: Configuration) -> dict[str, Any]:
    """Return the options that make a run communicate as its library does when nobody sets anything.

    Captured steps average one flat buffer whatever the library would do: a CUDA graph holds no hooks.
    """
    options = config.workload.options
    hooks = runtime.startswith(("horovod/", "ddp/")) and config.no_hooks is None
    values: dict[str, Any] = {"horovod_defaults": True, "thread_priority": "off"}
    if hooks:
        values |= {"reduction": "hooks", "broadcast_buffers": True, "bucket_view": False}
    return {name: value for name, value in values.items() if name in options and options[name].matters(runtime)}


def shipped_values(effective: Mapping[str, Any], workload: Workload) -> dict[str, Any]:
    """Return knob -> value that a run with shipped settings really used; None: its library does not know the knob.

    A knob that the record says nothing about is missing, or has the default of its option.
    """
    recorded = effective.get("settings", {})
    found: dict[str, Any] = {"reduction": effective.get("reduction")}
    for knob in workload.tuned:
        option = workload.options[knob]
        entry = recorded.get(option.variable or knob)
        if not isinstance(entry, Mapping):
            if knob in workload.communication and option.default not in (None, "auto"):
                found[knob] = option.default
            continue
        value, kind = entry.get("value"), option.kind
        with suppress(TypeError, ValueError):  # an unusual text in the environment is no value of ours
            if value is None:
                if entry.get("source") == "not in this build":
                    found[knob] = None
            elif knob == "single_copy":
                found[knob] = value != "none"
            elif knob == "fusion_mb":
                found[knob] = float(value) / 1e6
            elif kind is bool:
                found[knob] = str(value).lower() in ("1", "true")
            else:
                found[knob] = kind(value)
    return found


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


# ------------------------------------------------------------------------------------------------------ the record

COLUMNS = (
    *("launch", "stage", "block", "runtime", "candidate", "samples_per_s", "step_ms_median", "step_ms_p90"),
    *("seconds", "reason", "ended", "values"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _State:
    """The form of tune.json."""

    meaning: dict[str, Any]
    facts: dict[str, dict[str, Any]]


class _Ledger:
    def __init__(self, directory: Path, request: TuneRequest) -> None:
        self._path, self._state = directory / "trials.csv", directory / "tune.json"
        self.facts: dict[str, dict[str, Any]] = {}  # runtime -> effective, environment of its first launch
        self.trials: dict[tuple[str, int, str], Trial] = {}
        self.order: list[Trial] = []
        self.start_s = 5.0  # what a candidate of a heat takes to start, as far as is known
        self._meaning = json.loads(json.dumps(request.meaning()))
        try:
            self._open()
        except OSError as error:
            raise StudyError(
                f"{error.filename or directory}: cannot be read or written ({error.strerror}); choose another --out"
            ) from None

    def _open(self) -> None:
        if self._state.exists():
            again = "move the folder away, or choose another --out"
            state: _State = read_json(self._state, _State, error=StudyError, again=again)
            self.facts = state.facts
            if told := engine.difference({"turns": False, **state.meaning}, self._meaning):
                raise StudyError(
                    f"{self._state.parent}: holds the tuning of something else ({told}), whose launches cannot be "
                    "compared with new ones; choose another --out"
                )
        elif self._path.exists():
            raise StudyError(f"{self._path}: its tune.json is missing; move the folder away, or choose another --out")
        else:
            self.save()
        if self._path.exists():
            text = read_text(self._path, error=StudyError, again="choose another --out")
            whole = text[: text.rfind("\n") + 1]
            if whole != text:  # torn: the command was killed while it wrote
                write_file(self._path, whole)
            again = "remove that row, or choose another --out"
            for row in parse_csv(whole, source=str(self._path), columns=COLUMNS, error=StudyError, again=again):
                self._note(_trial(row, self._path))

    def _note(self, trial: Trial) -> None:
        self.trials[(trial.stage, trial.block, trial.candidate)] = trial
        self.order.append(trial)

    @property
    def used_s(self) -> float:
        """Seconds of all launches so far."""
        return sum(trial.seconds for trial in self.order)

    @property
    def launch_s(self) -> float:
        """How long a launch takes, as far as is known."""
        return median(trial.seconds for trial in self.order) if self.order else 0.0

    def heat(self, heat: Heat) -> HeatResult | None:
        """Return what came of a heat, None while it has not been run to its end."""
        trials = [self.trials.get((heat.stage, heat.number, each.key)) for each in heat.candidates]
        whole = [each for each in trials if each is not None]
        if len(whole) < len(trials):
            return None
        names = {f"launch-{number:04d}": trial.candidate for number, trial in enumerate(self.order, 1)}
        # Of a heat that was run again, because the command was killed while it wrote, the last slices count.
        made = {(each.block, each.launch, each.round, each.run): each for each in read_turns(self._path.parent)}
        return HeatResult(
            trials=whole, slices=[each for each in rates(made.values(), names) if each.launch == heat.launch]
        )

    def save(self) -> None:
        """Write tune.json."""
        write_file(self._state, json.dumps({"meaning": self._meaning, "facts": self.facts}, indent=1) + "\n")

    def add(self, trial: Trial, candidate: Candidate) -> None:
        """Append a launch; it is on the disk when this returns."""
        self._note(trial)
        row = {
            **{name: getattr(trial, name) for name in _KEPT},
            "launch": len(self.order),
            "runtime": candidate.runtime,
            "candidate": candidate.name,
            "seconds": f"{trial.seconds:.3f}",
            "reason": " ".join(trial.reason.split()),
            "ended": utc_now(),
            "values": json.dumps(dict(candidate.values)),
        }
        append_text(self._path, csv_rows(COLUMNS, [row], head=False), head=csv_rows(COLUMNS, []))


def _trial_of(
    stage: str, block: int, candidate: Candidate, attempt: Attempt | None, *, speed: float | None, seconds: float
) -> Trial:
    """Return what came of one candidate, of which `attempt` is None where it was not started."""
    reason = "" if attempt is None or attempt.done else f"{attempt.reason}; see {attempt.log}"
    totals = attempt.record.totals if attempt is not None and attempt.record is not None and not reason else {}
    return Trial(
        stage=stage,
        block=block,
        candidate=candidate.key,
        samples_per_s=None if reason else speed,
        step_ms_median=_ms(totals.get("step_s_median")),
        step_ms_p90=_ms(totals.get("step_s_p90")),
        seconds=round(seconds, 3),
        reason=reason,
    )


def _trial(row: Mapping[str, str], path: Path) -> Trial:
    try:
        values = {name: read(row[name]) for name, read in _KEPT.items()}
    except ValueError as error:
        raise StudyError(
            f"{path}: row {row.get('launch')} is damaged ({error}); remove that row, or choose another --out"
        ) from None
    return Trial(candidate=f"{row['runtime']} {row['candidate']}", **values)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


_KEPT: Mapping[str, Callable[[str], Any]] = {
    "stage": str,
    "block": int,
    "seconds": _finite,
    "reason": str,
    **dict.fromkeys(("samples_per_s", "step_ms_median", "step_ms_p90"), lambda text: _finite(text) if text else None),
}
"""Fields of a trial that are columns of trials.csv under their names, and how they are read."""


# ------------------------------------------------------------------------------------------------------ the tune


@dataclass(frozen=True, kw_only=True, slots=True)
class _TuneResult:
    """What came of a tune: `document` is empty when it was interrupted."""

    directory: Path
    document: Mapping[str, Any]
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0, also when nothing was resolved; 130 after Ctrl-C, 143 after SIGTERM."""
        return exit_code() if self.interrupted else 0


def run_tune(
    request: TuneRequest,
    directory: Path,
    *,
    command: str,
    launch: Launcher = local_launch,
    cores: int | None = None,
    attempt: Callable[[CellRun, Interruption], Attempt] = engine.attempt,
) -> _TuneResult:
    """Race settings against each other until the best is known or the time is used up.

    Launches of an earlier command in `directory` count, in the result and in the time. `command` is what the user
    typed; it is repeated where typing it again continues. StudyError when the shipped settings do not run.
    """
    cores = available_cores() if cores is None else cores
    with working_in(directory, "tune", command=command) as stop:
        ledger = _Ledger(directory, request)
        tuning = _Tuning(request, directory, ledger, launch, cores, stop, attempt)
        try:
            outcome = tuning.run()
        except KeyboardInterrupt:
            say(f"interrupted; {len(ledger.order)} launches are kept, continue with: {command}")
            return _TuneResult(directory=directory, document={}, interrupted=True)
        finally:
            tuning.line.close()
        document = result_of(request, outcome, ledger, tuning.left_out, command=command)
        document = {**document, "directory": str(directory)}
        write_file(directory / "result.json", json.dumps(document, indent=1, allow_nan=False) + "\n")
    return _TuneResult(directory=directory, document=document)


class _Tuning:
    def __init__(
        self,
        request: TuneRequest,
        directory: Path,
        ledger: _Ledger,
        launch: Launcher,
        cores: int,
        stop: Interruption,
        attempt: Callable[[CellRun, Interruption], Attempt],
    ) -> None:
        self._request, self._directory, self._ledger = request, directory, ledger
        self._start, self._cores, self._stop, self._attempt = launch, cores, stop, attempt
        self.left_out: dict[str, dict[str, str]] = {}
        self.line = Line()
        self._book, self._rounds = Book(), RoundBook()
        self._candidates: dict[str, Candidate] = {}
        self._shipped: dict[str, Candidate] = {}

    def run(self) -> Outcome:
        """Launch what the race asks for, as long as there is time; KeyboardInterrupt after a request to stop."""
        request, candidates = self._request, self._begin()
        contest: Generator[Any, Any, Outcome]
        # The shipped settings of the first runtime come first: they are what is to be beaten.
        if request.alone:
            first_s = FIRST_BLOCKS * len(candidates) * self._ledger.launch_s
            if first_s > 60 * request.minutes:
                say(
                    f"warning: a launch takes {self._ledger.launch_s:.0f} s, so that the first round of "
                    f"{len(candidates)} settings alone takes {duration(first_s)}; give more --minutes, or fewer --knobs"
                )
            contest = race(candidates, seed=request.config.seed, rounds=request.rounds)
        else:
            contest = race_in_turns(candidates, seed=request.config.seed, rounds=request.rounds, room=self._room())
        reply: Any = None
        while True:
            try:
                wanted = contest.send(reply)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome
            reply = self._heat(wanted) if isinstance(wanted, Heat) else self._single(wanted)

    def _single(self, launch: NextLaunch) -> Trial | None:
        """Return what came of a launch, which is made if that was not done before and there is time."""
        self._candidates.setdefault(launch.candidate.key, launch.candidate)
        trial = self._ledger.trials.get(launch.key)
        if trial is None and self._time_for(launch):
            self._launch(launch)
            trial = self._ledger.order[-1]
            self._report(launch, trial)
        if trial is not None:
            self._book.add(trial)
        return trial

    def _heat(self, heat: Heat) -> HeatResult | None:
        """Return what came of a heat, which is run if that was not done before and there is time."""
        for each in heat.candidates:
            self._candidates.setdefault(each.key, each)
        if (found := self._ledger.heat(heat)) is not None:
            return found
        ends_s = self._ledger.used_s + self._heat_s(len(heat.candidates), LEAST_ROUNDS)
        return self._run_heat(heat) if ends_s <= self._until_s(heat) else None

    def _room(self) -> int:
        """Return how many candidates fit into memory together; the same when the tune goes on."""
        facts = self._ledger.facts[self._request.runtimes[0]]
        if "room" not in facts:
            facts["room"] = int(workers_that_fit(facts.get("worker_mb")) / self._request.workers)
            self._ledger.save()
        return int(facts["room"])

    def _until_s(self, heat: Heat) -> float:
        """Return the seconds at which a heat is to be over, so that there is time to confirm what leads."""
        budget_s = 60 * self._request.minutes
        if not heat.confirms:
            return budget_s
        return budget_s - min(CONFIRM_HEATS * self._heat_s(3, MIN_ROUNDS), _RESERVED_IN_TURNS * budget_s)

    def _heat_s(self, count: int, rounds: int) -> float:
        """Return how long a heat probably takes: so many starts, and rounds of slices."""
        return count * (self._ledger.start_s + rounds * SLICE_S[0])

    def _run_heat(self, heat: Heat) -> HeatResult:
        """Let the candidates of a heat train in turns, and keep what came of it."""
        began, number = now(), len(self._ledger.order)
        runs: dict[str, CellRun] = {}
        keys: dict[str, str] = {}
        impossible: dict[str, str] = {}
        for place, candidate in enumerate(heat.candidates, 1):
            name = f"launch-{number + place:04d}"
            keys[name] = candidate.key
            try:
                cell = self._request.cell(candidate)
            except StudyError as error:  # values that do not go together
                impossible[name] = str(error)
                continue
            set_aside(self._directory / "runs" / name)
            runs[name] = self._run(cell, name)
        used_s, until_s, first_s = self._ledger.used_s, self._until_s(heat), math.nan

        def policy(slices: Sequence[TurnSlice], left: Mapping[str, bool]) -> Collection[str]:
            nonlocal first_s
            if math.isnan(first_s):
                first_s = now() - began
            rounds = 1 + slices[-1].round if slices else 0
            if rounds >= LEAST_ROUNDS and used_s + now() - began > until_s:
                return ()
            wanted = heat.wanted(rates(slices, keys)) if slices else keys.values()
            return [name for name in left if keys[name] in wanted]

        launch = BlockLaunch(block=heat.stage, launch=heat.number, seed=self._request.config.seed, policy=policy)
        what = "confirming" if heat.stage == "confirm" else f"heat {heat.number}"
        ended, made = launch.run(
            runs, self._stop, self.line, lambda it: f"{what}: {len(it.left())} settings in turns, round {it.rounds}"
        )
        if self._stop.requested:
            raise KeyboardInterrupt
        took_s = now() - began
        append_turns(self._directory, made)
        for name, candidate in zip(keys, heat.candidates, strict=True):
            own = [each for each in made if each.run == name]
            speed = sum(each.samples for each in own) / sum(each.end_s - each.begin_s for each in own) if own else None
            trial = _trial_of(
                heat.stage, heat.number, candidate, ended.get(name), speed=speed, seconds=took_s / len(keys)
            )
            why = "" if own else "it ended before its first slice; let it train longer, or give --no-turns"
            self._ledger.add(replace(trial, reason=impossible.get(name, "") or trial.reason or why), candidate)
        if not math.isnan(first_s):
            self._ledger.start_s = first_s / len(keys)
        result = self._ledger.heat(heat)
        assert result is not None
        self._report_heat(heat, result)
        return result

    def _report_heat(self, heat: Heat, result: HeatResult) -> None:
        """Keep one line on how a heat ended, who leads, and how much time is left."""
        self._rounds.take(result.trials, result.slices)
        rounds = 1 + max((each.round for each in result.slices), default=-1)
        last = {each.cell for each in result.slices if each.round == rounds - 1}
        failed = [each for each in result.trials if each.samples_per_s is None]
        what = "confirming" if heat.stage == "confirm" else f"heat {heat.number}"
        text = f"{what}: {len(heat.candidates)} settings, {rounds} rounds, {len(last)} to the end"
        text += f", {len(failed)} failed" if failed else ""
        self.line.keep(f"{text}{self._standing(self._rounds)}")

    def _begin(self) -> list[Candidate]:
        """Launch the shipped settings of each runtime once, and return what is tried."""
        request = self._request
        kept = len(self._ledger.order)
        say(
            f"tuning {', '.join(request.runtimes)} with {request.workers} workers, batch {request.config.batch}, "
            f"{f'{request.config.seconds:g} s per launch' if request.alone else 'in turns'}, "
            f"at most {duration(60 * request.minutes)}" + (f"; {kept} launches of before count" if kept else "")
        )
        for each in request.config.workload.options.values():
            if each.variable in os.environ and any(each.matters(runtime) for runtime in request.runtimes):
                say(f"warning: {each.variable} is set in the environment, and holds for the shipped settings; unset it")
        if request.alone and request.alone != "as asked for":
            say(f"one launch after the other: {request.alone}")
        candidates = [each for runtime in request.runtimes for each in self._space(runtime)]
        if all(each.baseline for each in candidates):
            reasons = "; ".join(f"{knob} {why}" for each in self.left_out.values() for knob, why in each.items())
            raise StudyError(f"tune: there is nothing to vary: {reasons}; name other --knobs, or values with --knob")
        return candidates

    def _space(self, runtime: str) -> list[Candidate]:
        """Launch the shipped settings once, outside the race, and return what can be varied."""
        shipped = Candidate(name="shipped settings", runtime=runtime, kind="shipped")
        self._shipped[runtime] = shipped
        if runtime not in self._ledger.facts:
            launch = NextLaunch(stage="pilot", block=0, candidate=shipped)
            record = self._launch(launch)
            if record is None:
                why = self._ledger.order[-1].reason
                raise StudyError(f"tune: {runtime} does not run with its shipped settings: {why}")
            facts: dict[str, Any] = {"effective": dict(record.effective), "environment": dict(record.environment)}
            facts["worker_mb"] = record.totals.get("pss_mb_max") or record.totals.get("rss_mb_max")
            self._ledger.facts[runtime] = json.loads(json.dumps(facts, default=str))
            self._ledger.save()
            self._report(launch, self._ledger.order[-1])
        candidates, self.left_out[runtime] = space(
            self._request, runtime, self._ledger.facts[runtime]["effective"], cores=self._cores
        )
        return candidates

    def _time_for(self, launch: NextLaunch) -> bool:
        budget_s, launch_s = 60 * self._request.minutes, self._ledger.launch_s
        if launch.stage == "race" and launch.confirms:
            budget_s -= min(15 * launch_s, _RESERVED * budget_s)
        return self._ledger.used_s + launch_s <= budget_s

    def _launch(self, launch: NextLaunch) -> RunRecord | None:
        """Try a candidate and keep what came of it; return its record, None when it failed."""
        candidate, ended, impossible = launch.candidate, None, ""
        number = len(self._ledger.order) + 1
        if self.line.due():
            self.line.show(f"  launch {number}: {self._name(candidate)}")
        try:
            cell = self._request.cell(candidate)
        except StudyError as error:  # values that do not go together
            impossible = str(error)
        else:
            ended = self._attempt(self._run(cell, f"launch-{number:04d}"), self._stop)
        record = ended.record if ended is not None and ended.done else None
        speed = None if record is None else record.totals.get("samples_per_s")
        seconds = 0.0 if ended is None else ended.seconds
        trial = _trial_of(launch.stage, launch.block, candidate, ended, speed=speed, seconds=seconds)
        self._ledger.add(replace(trial, reason=impossible or trial.reason), candidate)
        return record

    def _run(self, cell: Cell, name: str) -> CellRun:
        out, number = self._directory / "runs" / name, 1
        while out.exists():  # of a command that was interrupted
            number += 1
            out = out.with_name(f"{name}-{number}")
        return CellRun(
            cell=cell,
            out=out,
            config=self._directory / "configs" / f"{out.name}.yaml",
            log=self._directory / "logs" / f"{out.name}.log",
            launch=self._start,
            timeout_s=_START_UP_S + 10 * (cell.config.seconds or SECONDS),
        )

    def _name(self, candidate: Candidate) -> str:
        return candidate.name if len(self._request.runtimes) == 1 else candidate.key

    def _report(self, launch: NextLaunch, trial: Trial) -> None:
        """Keep one line on how a launch ended, who leads, and how much time is left."""
        name = self._name(launch.candidate)
        stage = {"pilot": "first look", "race": f"block {launch.block}", "confirm": "confirming"}[launch.stage]
        speed = trial.samples_per_s
        what = f"failed: {trial.reason}" if speed is None else f"{speed:,.0f} samples/s"
        book = Book([*self._book.trials, trial]) if launch.stage != "pilot" else Book()
        self.line.keep(f"[{len(self._ledger.order):>3}] {stage}: {name}  {what}{self._standing(book)}")

    def _standing(self, book: Book) -> str:
        """Return who leads, where that is known, and the time left."""
        reference = next(iter(self._shipped.values())).key
        left = f"; at most {duration(max(0.0, 60 * self._request.minutes - self._ledger.used_s))} left"
        if not book.launches(reference):
            return left
        best, ratio = reference, Interval(value=math.nan)
        for key in self._candidates:
            one = book.ratio(key, reference)
            if key != reference and key not in book.failed and not book.unstable(key) and one.value > 1:
                if best == reference or one.value > ratio.value:
                    best, ratio = key, one
        if best == reference:
            return f"; best: shipped settings{left}"
        return f"; best: {self._name(self._candidates[best])}, {ratio_text(ratio)} of shipped{left}"


def result_of(
    request: TuneRequest,
    outcome: Outcome,
    ledger: _Ledger,
    left_out: Mapping[str, Mapping[str, str]],
    *,
    command: str = "",
) -> dict[str, Any]:
    """Return the result as plain values: what report/figures/tune.py draws and `--json` prints."""
    book, chosen = outcome.book, outcome.chosen
    shipped = {each.runtime: each for each in outcome.candidates if each.kind == "shipped"}
    library = {each.runtime: each for each in outcome.candidates if each.kind == "library"}
    rows = []
    for each in outcome.candidates:
        launches, slow, failed = book.launches(each.key), book.slow_launches(each.key), book.failed.get(each.key)
        if each.kind == "shipped":
            ratio, verdict = Interval(value=1.0, low=1.0, high=1.0, n=launches), "what the others are compared with"
        else:
            ratio = book.ratio(each.key, shipped[each.runtime].key)
            verdict = ratio_words(ratio)
        if failed:
            verdict = f"failed: {failed}"
        elif slow:
            verdict = f"unstable: {slow} of {launches} launches at half the speed"
        rows.append(
            {
                "runtime": each.runtime,
                "name": each.name,
                "kind": each.kind,
                "knob": each.knob,
                "value": each.value,
                "values": dict(each.values),
                **ratio_record(ratio),
                "samples_per_s": book.samples_per_s(each.key),
                "step_spread": book.step_spread(each.key),
                "launches": launches,
                "slow_launches": slow,
                "failed": failed,
                "state": outcome.states.get(each.key, ""),
                "verdict": verdict,
                "chosen": each.key == chosen.key,
            }
        )
    source = outcome.confirmation if outcome.confirmed else book
    gains: dict[str, Any] = {}
    for name, base in (("shipped", shipped[chosen.runtime]), ("library", library.get(chosen.runtime))):
        gain = None if base is None or base.key == chosen.key else source.ratio(chosen.key, base.key)
        gains[name] = None if gain is None else ratio_record(gain) | {"words": ratio_words(gain)}
    facts, asked = ledger.facts[chosen.runtime], request.config.to_dict()
    effective, environment = facts["effective"], facts["environment"]
    backend, _, transport = chosen.runtime.partition("/")
    noise = book.noise()
    return {
        "command": command,
        "verdict": outcome.text,
        "stop": outcome.stop,
        "resolved": outcome.resolved,
        "chosen": chosen.name,
        "runtime": chosen.runtime,
        "gain_over_shipped": gains["shipped"],
        "gain_over_library": gains["library"],
        "gains_confirmed": outcome.confirmed,
        "settings": {
            "backend": backend,
            "transport": transport,
            "threads": request.config.threads,
            **({} if asked.get("horovod_build") is None else {"horovod_build": asked["horovod_build"]}),
            **chosen.values,
        },
        "for": {
            "parameters": effective.get("parameters"),
            **{name: asked.get(name) for name in request.config.workload.named(Role.MODEL)},
            "batch": request.config.batch,
            "workers": request.workers,
            "nodes": effective.get("nodes", 1),
            "runtime": chosen.runtime,
            **{name: environment.get(name) for name in ("cpu_model", "package", "torch", "horovod", "mpi")},
        },
        "launches": len(ledger.order),
        "in_turns": not request.alone,
        "not_in_turns_because": request.alone or None,
        "used_s": ledger.used_s,
        "seconds": request.config.seconds,
        "minutes": request.minutes,
        "noise": None if math.isnan(noise) else noise,
        "when": utc_now(),
        "left_out": {runtime: dict(each) for runtime, each in left_out.items()},
        "candidates": rows,
    }
