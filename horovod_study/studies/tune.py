"""Tunes how workers communicate: short training launches of this model at this placement, raced against each other.

A tune takes minutes and lives in a folder DIR: runs/, configs/, logs/ (the run directory of each launch, what it was
asked to do, what it printed), and result.json, what came of it. One that was interrupted begins again.

Libraries read their settings when they start, so that every candidate is launched: the usual trainer, no checkpoint,
evaluated once at its end. Candidates are launched together and train in turns (turns.py), or launches of a few seconds
follow each other. `racing.py` decides what is launched next.
"""

import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from horovod_study.analysis.paired import Slice
from horovod_study.analysis.stats import Interval, finite_or_none
from horovod_study.config import Cell, available_cores, local_cell
from horovod_study.documents import load_yaml
from horovod_study.errors import ConfigError, StudyError, nearest, require_known
from horovod_study.files import write_file
from horovod_study.measure.clock import now, utc_now
from horovod_study.options import BY_RUNTIME, SET_BY_TUNE, refuse_set, require_workers
from horovod_study.progress import Line, duration, say
from horovod_study.records import RunRecord, TurnSlice
from horovod_study.roles import TRUTH, Option, Role, check_field, plain
from horovod_study.runtimes import RUNTIMES
from horovod_study.studies import engine, racing
from horovod_study.studies.attempt import Attempt, CellRun, Launcher, local_launch
from horovod_study.studies.engine import set_aside, working_in
from horovod_study.studies.interruption import Interruption
from horovod_study.studies.racing import ALONE, IN_TURNS, LEAST_ROUNDS, Candidate, Race, Stage, Trial
from horovod_study.studies.turns import SLICE_S, BlockLaunch, apart_because, rates, workers_that_fit
from horovod_study.workloads import Configuration, Workload

SECONDS = 2.0
MINUTES, TURNS_MINUTES = 10.0, 3.0
ROUNDS = 6
"""Defaults: seconds of each launch, minutes of all launches together, and rounds of the race."""

_START_UP_S = 90.0  # a launch that has not ended after this and ten times its seconds hangs
_RESERVED = {True: 0.25, False: 0.4}  # of the time, at most, is kept for confirming; True: one after the other


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What is to be tuned: a run, where it runs, and how much may be spent on it."""

    config: Configuration
    runtime: str
    workers: int
    cores: int
    minutes: float
    rounds: int
    knobs: tuple[str, ...]  # none: all that matter
    values: Mapping[str, tuple[Any, ...]]  # knob -> the user's own candidates
    alone: str  # why candidates are launched one after the other; "": they train in turns

    def cell(self, candidate: Candidate) -> Cell:
        """Return the run that tries a candidate; ConfigError when its values do not fit together."""
        values = {**self.config.to_dict(), **candidate.values}
        return local_cell(
            self.runtime, values, workers=self.workers, source=candidate.name, workload=self.config.workload
        )


def tune_request(
    path: Path | None,
    given: Mapping[str, Any],
    *,
    runtime: str = "horovod/mpi",
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
    varied = {name: f"it is varied; use --knob {name}=VALUE,... to say among which values" for name in workload.tuned}
    refuse_set("tune", given, SET_BY_TUNE, {**varied, **BY_RUNTIME})
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise ConfigError(f"tune: --minutes is {minutes:g}; it must be greater than 0")
    if rounds < 1:
        raise ConfigError(f"tune: --rounds is {rounds}; it must be at least 1")
    tunable = [each for each in RUNTIMES if each != "serial"]
    if runtime not in tunable:
        why = "does not communicate" if runtime == "serial" else f"is not known{nearest(runtime, tunable)}"
        raise ConfigError(f"tune: --runtime {runtime!r} {why}; allowed: {', '.join(tunable)}")
    file = load_yaml(path) if path else {}
    ours = {"seconds", *(name for name in SET_BY_TUNE if name in workload.options)}
    kept = {name: value for name, value in file.items() if name not in ours}
    config = workload.configure(
        {"seconds": SECONDS, **kept, **given, **workload.quiet, "study": "tune"}, source=str(path or "tune")
    )
    workers = cores // config.threads if workers is None else workers
    require_workers("tune", workers, cores, least=2, threads=config.threads)
    own = dict(_own_values(text, workload) for text in values)
    knobs = tuple(dict.fromkeys(name.replace("-", "_") for name in knobs))
    for name in (*knobs, *own):
        _require_effect(name, runtime, workload)
    two = [local_cell(runtime, config.to_dict(), workers=workers, source="tune", workload=workload)] * 2
    alone = apart_because(two) if turns else "as asked for"  # that two fit is the least
    minutes = minutes or (MINUTES if alone else TURNS_MINUTES)
    return TuneRequest(config, runtime, workers, cores, minutes, rounds, knobs, own, alone)


def _own_values(text: str, workload: Workload) -> tuple[str, tuple[Any, ...]]:
    """Return knob and values meant by `cycle_time_ms=0.1,1`."""
    name, equals, list_ = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not list_.strip(" ,"):
        raise ConfigError(f"tune: --knob {text!r}; write NAME=VALUE,VALUE,... such as cycle_time_ms=0.1,1")
    require_known("tune: knob", name, workload.tuned)
    option, words = workload.options[name], [word.strip() for word in list_.split(",")]
    told: list[Any] = [TRUTH.get(word.lower(), word) for word in words] if option.kind is bool else words
    values = [check_field("tune: --knob", name, each, option, optional=False) for each in told]
    return name, tuple(dict.fromkeys(values))


def _require_effect(name: str, runtime: str, workload: Workload) -> None:
    require_known("tune: knob", name, workload.tuned)
    why = {knob: why_not(workload.options[knob], runtime) for knob in workload.tuned}
    if why[name]:
        useful = ", ".join(knob for knob, reason in why.items() if not reason)
        raise ConfigError(f"tune: knob {name} {why[name]}; knobs that do something over {runtime}: {useful}")


def why_not(knob: Option, runtime: str) -> str:
    """Return why a knob is not worth trying over a runtime, "" when it is."""
    if not knob.matters(runtime):
        return f"has no effect over {runtime}"
    return "means something on several hosts only, and this is one" if knob.several_hosts else ""


def space(request: TuneRequest, effective: Mapping[str, Any]) -> tuple[list[Candidate], dict[str, str]]:
    """Return the candidates, baselines first, and why which knob is not varied.

    `effective` is that of a run with the shipped settings: a value that they have anyway is no candidate.
    """
    workload, runtime = request.config.workload, request.runtime
    shipped = shipped_values(effective, workload)
    candidates = [Candidate(name="shipped settings", kind="shipped")]
    if library := library_values(runtime, request.config):
        candidates.append(Candidate(name="library defaults", kind="library", values=library))
    left_out: dict[str, str] = {}
    for knob in request.knobs or workload.tuned:
        option, why = workload.options[knob], why_not(workload.options[knob], runtime)
        if why.startswith("has no effect") and not request.knobs:
            continue  # what belongs to another library goes without saying
        if not why and knob in shipped and shipped[knob] is None:
            why = "is not known to the Horovod that is installed"
        same, most = shipped.get(knob), {"ps_servers": request.workers}.get(knob)
        if knob == "threads":
            same, most = request.config.threads, request.cores // request.workers
        tries = [] if why else request.values.get(knob, option.tries)
        tries = [each for each in tries if each != same and not (most and each > most)]
        if not tries:
            left_out[knob] = (
                why or f"has no other value {'that fits the cores' if knob == 'threads' else 'to be tried'}"
            )
        hooks = option.hooks and shipped.get("reduction") != "hooks"
        for value in tries:
            text = plain(value) + (" with hooks" if hooks else "")
            told = {"name": f"{knob}={text}", "knob": knob, "value": text}
            values = {"reduction": "hooks", knob: value} if hooks else {knob: value}
            candidate = Candidate(kind="effect", values=values, **told)
            try:
                request.cell(candidate)
            except ConfigError as error:
                refused = str(error).removeprefix(f"{candidate.name}: ")
                left_out[knob] = f"would be refused: {refused.partition('; ')[0]}"
            else:
                candidates.append(candidate)
    return candidates, left_out


def library_values(runtime: str, config: Configuration) -> dict[str, Any]:
    """Return the options that make a run communicate as its library does when nobody sets anything.

    Captured steps average one flat buffer whatever the library would do: a CUDA graph holds no hooks.
    """
    options = config.workload.options
    hooks = runtime.startswith(("horovod/", "ddp/")) and config.no_hooks is None
    of_hooks = {"reduction": "hooks", "broadcast_buffers": True, "bucket_view": False} if hooks else {}
    values: dict[str, Any] = {"horovod_defaults": True, "thread_priority": "off", **of_hooks}
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
        if value is None:
            found |= {knob: None} if entry.get("source") == "not in this build" else {}
            continue
        with suppress(TypeError, ValueError):  # an unusual text in the environment is no value of ours
            if knob == "single_copy":
                found[knob] = value != "none"
            elif knob == "fusion_mb":
                found[knob] = float(value) / 1e6
            else:
                found[knob] = str(value).lower() in ("1", "true") if kind is bool else kind(value)
    return found


def run_tune(
    request: TuneRequest,
    directory: Path,
    *,
    command: str,
    launch: Launcher = local_launch,
    attempt: Callable[[CellRun, Interruption], Attempt] = engine.attempt,
) -> dict[str, Any]:
    """Race settings against each other until the best is known or the time is used up; return the result.

    It is empty where the tune was interrupted. `command` is what the user typed, to be repeated. StudyError when the
    shipped settings do not run.
    """
    with working_in(directory, "tune", command=command) as stop:
        tuning = _Tuning(request, directory, launch, stop, attempt)
        try:
            race = tuning.run()
        except KeyboardInterrupt:
            say(f"interrupted after {len(tuning.trials)} launches; begin again with: {command}")
            return {}
        finally:
            tuning.line.close()
        document = _result(tuning, race) | {"command": command, "directory": str(directory)}
        write_file(directory / "result.json", json.dumps(document, indent=1, allow_nan=False) + "\n")
    return document


@dataclass
class _Tuning:
    request: TuneRequest
    directory: Path
    start: Launcher
    stop: Interruption
    attempt: Callable[[CellRun, Interruption], Attempt]
    race: Race | None = None
    start_s: float = 5.0  # what a candidate of a heat takes to start, as far as is known
    trials: list[Trial] = field(default_factory=list)
    record: RunRecord | None = None  # of the first launch
    left_out: dict[str, str] = field(default_factory=dict)
    line: Line = field(default_factory=Line)

    @property
    def way(self) -> racing.Way:
        """How candidates are measured."""
        return ALONE if self.request.alone else IN_TURNS

    @property
    def used_s(self) -> float:
        """Seconds of all launches so far."""
        return sum(trial.seconds for trial in self.trials)

    def run(self) -> Race:
        """Launch what the race asks for, as long as there is time; KeyboardInterrupt after a request to stop."""
        request, candidates, room = self.request, self._begin(), math.inf
        if not request.alone:
            used = self.record.totals if self.record else {}
            room = int(workers_that_fit(used.get("pss_mb_max") or used.get("rss_mb_max")) / request.workers)
        # The shipped settings come first: they are what is to be beaten.
        race = self.race = Race(candidates, self.way, seed=request.config.seed, rounds=request.rounds, room=room)
        for stage in race.run():
            for group in [[each] for each in stage.candidates] if request.alone else [stage.candidates]:
                least_s = self._cost_s(len(group), 1, min(stage.rounds, LEAST_ROUNDS))
                if self.used_s + least_s > self._until_s(stage):
                    break
                self._launch(stage, group, alone=bool(request.alone))
                trials = self.trials[-len(group) :]
                for trial in trials:
                    race.add(trial)
                self._report(stage, trials)
        return race

    def _begin(self) -> list[Candidate]:
        """Launch the shipped settings once, outside the race, and return what is tried."""
        request = self.request
        say(
            f"tuning {request.runtime} with {request.workers} workers, batch {request.config.batch}, "
            f"{f'{request.config.seconds:g} s per launch' if request.alone else 'in turns'}, "
            f"at most {duration(60 * request.minutes)}"
        )
        for each in request.config.workload.options.values():
            if each.variable in os.environ and each.matters(request.runtime):
                say(f"warning: {each.variable} is set in the environment, and holds for the shipped settings; unset it")
        if request.alone and request.alone != "as asked for":
            say(f"one launch after the other: {request.alone}")
        shipped = Candidate(name="shipped settings", kind="shipped")
        stage = Stage(what="first look", number=0, candidates=(shipped,), rounds=1)
        records = [each.record for each in self._launch(stage, stage.candidates, alone=True) if each.done]
        if not records or (record := records[0]) is None:
            reason = self.trials[-1].reason
            raise StudyError(f"tune: {request.runtime} does not run with its shipped settings: {reason}")
        self.record = record
        self._report(stage, self.trials[-1:])
        candidates, self.left_out = space(request, record.effective)
        if all(each.baseline for each in candidates):
            reasons = "; ".join(f"{knob} {why}" for knob, why in self.left_out.items())
            raise StudyError(f"tune: there is nothing to vary: {reasons}; name other --knobs, or values with --knob")
        return candidates

    def _cost_s(self, count: int, launches: int, rounds: int) -> float:
        """Return how long so many candidates probably take: so many launches of each, with rounds."""
        each_s = self.start_s + rounds * SLICE_S[0]
        if self.request.alone:
            each_s = median(trial.seconds for trial in self.trials)
        return count * launches * each_s

    def _until_s(self, stage: Stage) -> float:
        """Return the seconds at which a stage is to be over, so that there is time to confirm what leads."""
        budget_s = 60 * self.request.minutes
        if stage.what != "race" or self.race is None or self.race.leader() is self.race.candidates[0]:
            return budget_s
        return budget_s - min(self._cost_s(3, *self.way["confirm"]), budget_s * _RESERVED[bool(self.request.alone)])

    def _launch(self, stage: Stage, group: Sequence[Candidate], *, alone: bool) -> list[Attempt]:
        """Launch candidates, one or together in turns, and keep what came of them; return how they have ended."""
        began, number = now(), len(self.trials)
        names = {f"launch-{number + place:04d}": each for place, each in enumerate(group, 1)}
        runs: dict[str, CellRun] = {}
        why: dict[str, str] = {}
        for name, candidate in names.items():
            try:
                runs[name] = self._run(self.request.cell(candidate), name)
            except StudyError as error:  # values that do not go together
                why[name] = str(error)
        ended: dict[str, Attempt] = {}
        slices: list[Slice] = []
        if alone:
            self.line.now_and_then(f"  launch {number + 1}: {group[0].name}")
            ended = {name: self.attempt(run, self.stop) for name, run in runs.items()}
            slices = [
                Slice(launch="", round=0, cell=names[name].name, rate=speed)
                for name, each in ended.items()
                if each.record and (speed := each.record.totals.get("samples_per_s"))
            ]
        elif runs:
            ended, slices = self._in_turns(stage, runs, {name: each.name for name, each in names.items()})
        why |= {name: f"{each.reason}; see {each.log}" for name, each in ended.items() if not each.done}
        for name, candidate in names.items():
            attempt = ended.get(name)
            steps = attempt.record.totals if attempt and attempt.record else {}
            middle, p90 = steps.get("step_s_median"), steps.get("step_s_p90")
            own = {each.round: each for each in slices if each.cell == candidate.name}  # of one made again the last
            if not own:
                why.setdefault(name, "it trained too little to be measured; let it train longer, or give --no-turns")
            rounds = [(number, each.rate, finite_or_none(each.other_load)) for number, each in own.items()]
            seconds = (attempt.seconds if attempt else 0.0) if alone else (now() - began) / len(names)
            self.trials.append(
                Trial(
                    launch=stage.launch,
                    candidate=candidate.name,
                    rounds=() if name in why else tuple(rounds),
                    step_spread=p90 / middle if middle and p90 else None,
                    seconds=round(seconds, 3),
                    reason=" ".join(why.get(name, "").split()),
                )
            )
        return list(ended.values())

    def _run(self, cell: Cell, name: str) -> CellRun:
        out = self.directory / "runs" / name
        set_aside(out)  # what a command that was interrupted has left
        return CellRun(
            cell=cell,
            out=out,
            config=self.directory / "configs" / f"{name}.yaml",
            log=self.directory / "logs" / f"{name}.log",
            launch=self.start,
            timeout_s=_START_UP_S + 10 * (cell.config.seconds or SECONDS),
        )

    def _in_turns(
        self, stage: Stage, runs: Mapping[str, CellRun], keys: Mapping[str, str]
    ) -> tuple[dict[str, Attempt], list[Slice]]:
        """Let candidates train in turns; return how they have ended, and their slices."""
        began, used_s, until_s = now(), self.used_s, self._until_s(stage)
        up_s: list[float] = []

        def policy(slices: Sequence[TurnSlice], left: Mapping[str, bool]) -> Collection[str]:
            up_s.append(now() - began)
            if slices and slices[-1].round + 1 >= LEAST_ROUNDS and used_s + now() - began > until_s:
                return ()
            more = racing.wanted(stage, rates(slices, keys)) if slices else keys.values()
            return [name for name in left if keys[name] in more]

        launch = BlockLaunch(block=stage.what, launch=stage.number, seed=self.request.config.seed, policy=policy)
        ended, made = launch.run(
            runs, self.stop, self.line, lambda it: f"{len(it.left())} settings in turns, round {it.rounds}"
        )
        if self.stop.requested:
            raise KeyboardInterrupt
        if up_s:
            self.start_s = up_s[0] / len(runs)
        return ended, rates(made, keys)

    def _report(self, stage: Stage, trials: Sequence[Trial]) -> None:
        """Keep one line on how launches ended, who leads, where that is known, and the time left."""
        race, one = self.race, trials[0]
        told = f"{len(trials)} settings, {max(len(each.rounds) for each in trials)} rounds"
        if len(trials) == 1:
            told = f"{one.candidate}  " + (
                f"{one.samples_per_s:,.0f} samples/s" if one.rounds else f"failed: {one.reason}"
            )
        if race is not None and race.launches(shipped := race.candidates[0]):
            best = race.leader()
            ratio = (
                ""
                if best is shipped
                else f", {racing.words(racing.ratio_of(race.slices(), best.name, shipped.name))} of shipped"
            )
            told += f"; best: {best.name}{ratio}"
        left_s = max(0.0, 60 * self.request.minutes - self.used_s)
        what = f"{stage.what} {stage.number or ''}".strip()
        self.line.keep(f"[{len(self.trials):>3}] {what}: {told}; at most {duration(left_s)} left")


def _result(tuning: _Tuning, race: Race) -> dict[str, Any]:
    """Return the result as plain values: what report/tune.py prints, and `--json`."""
    request, chosen = tuning.request, race.chosen
    base = {each.kind: each for each in race.candidates if each.baseline}
    measured = race.slices("confirm" if race.confirmed else "")
    gains = {
        kind: _record(racing.ratio_of(measured, chosen.name, other.name))
        for kind in ("shipped", "library")
        if (other := base.get(kind)) not in (None, chosen)
    }
    asked, record = request.config.to_dict(), tuning.record
    effective, environment = (record.effective, record.environment) if record else ({}, {})
    backend, _, transport = request.runtime.partition("/")
    return {
        "verdict": race.text,
        "stop": race.stop,
        "resolved": race.stop == "resolved",
        "chosen": chosen.name,
        "runtime": request.runtime,
        "gain_over_shipped": gains.get("shipped"),
        "gain_over_library": gains.get("library"),
        "gains_confirmed": race.confirmed,
        "settings": {
            "backend": backend,
            "transport": transport,
            "threads": request.config.threads,
            **{name: asked[name] for name in ("horovod_build",) if asked.get(name) is not None},
            **chosen.values,
        },
        "for": {
            "parameters": effective.get("parameters"),
            **{name: asked.get(name) for name in request.config.workload.named(Role.MODEL)},
            "batch": request.config.batch,
            "workers": request.workers,
            "nodes": effective.get("nodes", 1),
            "runtime": request.runtime,
            **{name: environment.get(name) for name in ("cpu_model", "package", "torch", "horovod", "mpi")},
        },
        "launches": len(tuning.trials),
        "in_turns": not request.alone,
        "not_in_turns_because": request.alone or None,
        "used_s": tuning.used_s,
        "seconds": request.config.seconds,
        "minutes": request.minutes,
        "when": utc_now(),
        "left_out": tuning.left_out,
        "candidates": [_row(race, each, base["shipped"]) for each in race.candidates],
    }


def _record(ratio: Interval) -> dict[str, Any]:
    ends = ratio.to_dict()
    return {"ratio": ends["value"], "low": ends["low"], "high": ends["high"], "blocks": ratio.n}


def _row(race: Race, candidate: Candidate, shipped: Candidate) -> dict[str, Any]:
    """Return what came of one candidate as plain values."""
    launches, slow, failed = race.launches(candidate), race.slow()[candidate.name], race.failed.get(candidate.name)
    ratio, verdict = racing.ratio_of(race.slices(), candidate.name, shipped.name), "too few launches to tell"
    if candidate is shipped:
        ratio, verdict = Interval(value=1.0, low=1.0, high=1.0), "what the others are compared with"
    elif ratio.known:
        verdict = "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else "no difference resolved"
    if slow or failed:
        unstable = f"unstable: {slow} of {len(launches)} launches at half the speed"
        verdict = f"failed: {failed}" if failed else unstable
    spreads = [each.step_spread for each in launches if each.step_spread]
    return {
        **{name: getattr(candidate, name) for name in ("name", "kind", "knob", "value")},
        "values": dict(candidate.values),
        **_record(ratio),
        "samples_per_s": median(each.samples_per_s for each in launches) if launches else None,
        "step_spread": median(spreads) if spreads else None,
        "launches": len(launches),
        "slow_launches": slow,
        "failed": failed,
        "state": race.states[candidate.name],
        "verdict": verdict,
        "chosen": candidate is race.chosen,
    }
