"""`run STUDY --tune`: which settings of communication make the training of a study fastest, at its most workers.

Settings are arms of a race (halving.py). Libraries read theirs when they start, so that every arm is launched: it is a
cell of the study RUNS/<study>-tune, run as the cells of any other one, in turns where that is possible. What is typed
again goes on: a launch that is whole is only read.
"""

import math
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from rich.console import Console

from horovod_study.analysis.paired import Slice
from horovod_study.config import Cell, available_cores
from horovod_study.errors import ConfigError, StudyError, require_known
from horovod_study.measure.clock import now
from horovod_study.progress import duration
from horovod_study.records import RunRecord, TurnSlice, read_turns
from horovod_study.roles import TRUTH, Option, check_field, plain
from horovod_study.studies.attempt import record_in
from horovod_study.studies.halving import (
    ALONE,
    IN_TURNS,
    LEAST_ROUNDS,
    LIBRARY,
    SHIPPED,
    Candidate,
    Heat,
    Made,
    Race,
    halving,
    words,
)
from horovod_study.studies.progress import say
from horovod_study.studies.runner import RunOptions, run_sweep
from horovod_study.studies.study_file import StudyConfig, sweep_of
from horovod_study.studies.sweep import StudyCells
from horovod_study.studies.turns import SLICE_S, apart_because, rates, workers_that_fit
from horovod_study.text.tables import table_of, to_lines
from horovod_study.workloads import Configuration, Workload

SECONDS = 2.0  # of a launch that does not alternate
HOURS = {True: 3 / 60, False: 10 / 60}  # where the study has no budget; True: in turns
_START_UP_S = 90.0  # a launch that has not ended after this and ten times its seconds hangs
_RESERVED = 0.4  # of the time, at most, is kept for confirming


# ------------------------------------------------------------------------------------------------------------- arms


def knobs_of(texts: Sequence[str], workload: Workload, runtime: str) -> dict[str, tuple[Any, ...]]:
    """Return knob -> the values to try, none for the usual ones, from NAME or NAME=VALUE,...; none: all that matter.

    ConfigError for what is no knob, or has no effect over the runtime.
    """
    found: dict[str, tuple[Any, ...]] = {}
    why = {knob: why_not(workload.options[knob], runtime) for knob in workload.tuned}
    for text in texts:
        name, equals, list_ = text.partition("=")
        name = name.strip().replace("-", "_")
        require_known("run: --tune", name, workload.tuned)
        if why[name]:
            useful = ", ".join(knob for knob, reason in why.items() if not reason)
            raise ConfigError(f"run: --tune {name} {why[name]}; knobs that do something over {runtime}: {useful}")
        option, told = workload.options[name], [word.strip() for word in list_.split(",")]
        if equals and not all(told):
            raise ConfigError(f"run: --tune {text!r}; write NAME=VALUE,VALUE,... such as cycle_time_ms=0.1,1")
        values: list[Any] = [TRUTH.get(word.lower(), word) for word in told] if option.kind is bool else list(told)
        checked = [check_field("run: --tune", name, each, option, optional=False) for each in values if equals]
        found[name] = tuple(dict.fromkeys(checked))
    return found or dict.fromkeys(workload.tuned, ())


def why_not(knob: Option, runtime: str) -> str:
    """Return why a knob is not worth trying over a runtime, "" when it is."""
    if not knob.matters(runtime):
        return f"has no effect over {runtime}"
    return "means something on several hosts only, and this is one" if knob.several_hosts else ""


def arms_of(
    base: Cell, knobs: Mapping[str, Sequence[Any]], effective: Mapping[str, Any], cores: int
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the arms, baselines first, and why which knob is not varied.

    `effective` is that of a run with the shipped settings: a value that they have anyway is no arm.
    """
    workload, runtime, workers = base.config.workload, base.runtime, base.placement.workers
    shipped = shipped_values(effective, workload)
    arms = [Candidate(name=SHIPPED)]
    if library := library_values(runtime, base.config):
        arms.append(Candidate(name=LIBRARY, values=library))
    left_out: dict[str, str] = {}
    for knob, own in knobs.items():
        option, why = workload.options[knob], why_not(workload.options[knob], runtime)
        if why.startswith("has no effect"):
            continue  # what belongs to another library goes without saying
        if not why and knob in shipped and shipped[knob] is None:
            why = "is not known to the Horovod that is installed"
        same, most = shipped.get(knob), {"ps_servers": workers}.get(knob)
        if knob == "threads":
            same, most = base.config.threads, cores // workers
        tries = [each for each in ([] if why else own or option.tries) if each != same and not (most and each > most)]
        if not tries:
            left_out[knob] = why or f"has no other value {'that fits the cores' if knob == 'threads' else 'to try'}"
        hooks = option.hooks and shipped.get("reduction") != "hooks"
        for value in tries:
            values = {"reduction": "hooks", knob: value} if hooks else {knob: value}
            arm = Candidate(name=f"{knob}={plain(value)}{' with hooks' if hooks else ''}", values=values, knob=knob)
            try:
                base.config.changed(**values)
            except ConfigError as error:
                left_out[knob] = f"would be refused: {str(error).partition('; ')[0]}"
            else:
                arms.append(arm)
    return arms, left_out


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


# ------------------------------------------------------------------------------------------------------------ running


def tune(study: StudyConfig, runs_dir: Path, texts: Sequence[str], options: RunOptions, console: Console) -> bool:
    """Race the settings that `texts` name (knobs_of) and print table and lines for the study file; False: interrupted.

    StudyError: there is nothing to vary, or the shipped settings do not run.
    """
    base = base_of(study)
    workload, workers = base.config.workload, base.placement.workers
    knobs = knobs_of(texts, workload, base.runtime)
    alone = apart_because([base, base])  # that two fit is the least
    if study.partitions[base.placement.partition].scheduler != "local":
        alone = "it runs on other hosts than this machine"
    hours, name = study.budget.get("hours", HOURS[not alone]), f"{study.name}-tune"
    plain_sweep = replace(sweep_of(study, runs_dir), part=True, precision=None, wanted=(), budget={})
    sweep = replace(plain_sweep, name=name, directory=runs_dir / name, turns=not alone)
    heats = _Heats(sweep, base, options, bool(alone), 3600 * hours, console)
    way = "one launch after the other: " + alone if alone else "in turns"
    what = f"{base.runtime} with {workers} workers, batch {base.config.batch}"
    say(console, f"tuning {what}, {way}, at most {duration(3600 * hours)}")
    for each in workload.options.values():
        if each.variable in os.environ and each.matters(base.runtime):
            told = f"{each.variable} is set in the environment, and holds for the shipped settings; unset it"
            say(console, f"warning: {told}")
    try:
        first = heats.first_look()
        arms, left_out = arms_of(base, knobs, first.effective, available_cores())
        if all(each.baseline for each in arms):
            reasons = "; ".join(f"{knob} {why}" for knob, why in left_out.items())
            raise StudyError(
                f"run: --tune: there is nothing to vary: {reasons}; name other knobs, or values as KNOB=V1,V2"
            )
        race = heats.race = Race(arms)
        each_mb = first.totals.get("pss_mb_max") or first.totals.get("rss_mb_max")
        room = math.inf if alone else int(workers_that_fit(each_mb) / workers)
        design = halving(race, ALONE if alone else IN_TURNS, seed=study.seed, room=room)
        made: Made = None
        with suppress(StopIteration):
            heat = next(design)
            while True:
                made = heats.run(heat)
                heat = design.send(made)
    except KeyboardInterrupt:
        say(console, f"interrupted; continue with: {options.command}")
        return False
    for line in (*_table(race, left_out), "", *run_lines(base, race.chosen)):
        say(console, line)
    return True


def base_of(study: StudyConfig) -> Cell:
    """Return the run whose settings are raced: of the first runtime, with most workers, communicating as shipped."""
    several = [cell for cell in study.cells() if cell.runtime != "serial" and cell.placement.workers > 1]
    if not several:
        raise ConfigError(
            f"{study.source or study.name}: --tune needs a run with several workers; add some to sweep.workers"
        )
    alike = [each for each in several if each.runtime == several[0].runtime]
    cell = max(alike, key=lambda each: each.placement.workers)
    config, workload = cell.config, cell.config.workload
    plain_ones = [each for each in workload.tuned if each in workload.communication]
    values = {each: workload.options[each].default for each in plain_ones}
    values |= {**dict.fromkeys(workload.budgets), "seconds": SECONDS, **workload.quiet}
    return replace(cell, config=config.changed(**values, study=f"{study.name}-tune"))


@dataclass
class _Heats:
    """Launches heats as cells of a sweep, within the time that there is."""

    sweep: StudyCells
    base: Cell
    options: RunOptions
    alone: bool
    lasts_s: float
    console: Console
    race: Race | None = None
    used_s: float = 0.0
    start_s: float = 5.0  # what an arm of a heat takes to start, as far as is known
    launches: int = 0

    def first_look(self) -> RunRecord:
        """Launch the shipped settings once, outside the race: it works, and which values are shipped anyway."""
        cell = replace(self.base, label="first look")
        result = run_sweep(replace(self.sweep, cells=(cell,)), self.options, console=self.console)
        record = record_in(self.sweep.directory / cell.key)
        if result.interrupted:
            raise KeyboardInterrupt
        if record is None or record.status != "done":
            reason = result.ledger.entries[0].reason
            raise StudyError(f"run: --tune: {self.base.runtime} does not run with its shipped settings: {reason}")
        return record

    def run(self, heat: Heat) -> Made:
        """Launch a heat that is not there yet, and return what it has made; None: there is no time for it."""
        names, cells = self._cells(heat)
        until_s, began = self._until_s(heat), now()
        todo = [cell for cell in cells if record_in(self.sweep.directory / cell.key) is None]
        if todo and self.used_s + self._cost_s(len(cells), 1, min(heat.rounds, LEAST_ROUNDS)) > until_s:
            return None
        up_s: list[float] = []

        def policy(slices: Sequence[TurnSlice], left: Mapping[str, bool]) -> Collection[str]:
            up_s.append(now() - began)
            if slices and slices[-1].round + 1 >= LEAST_ROUNDS and self.used_s + now() - began > until_s:
                return ()
            more = heat.wanted(rates(slices, names)) if slices else names.values()
            return [run for run in left if names[run] in more]

        sweep = replace(self.sweep, cells=tuple(cells), timeout_s=_START_UP_S + 10 * SECONDS)
        how = replace(self.options, policy=policy, smoke=False, watch_load_s=0.0)
        result = run_sweep(sweep, how, console=Console(quiet=True))
        if result.interrupted:
            raise KeyboardInterrupt
        if todo:
            self.used_s += now() - began
            self.launches += len(todo)
            self.start_s = (up_s[0] if up_s else now() - began) / len(cells)
        slices = self._slices(heat, names)
        failed = {names[each.key]: each.reason for each in result.ledger.entries if each.state != "done"}
        for arm in {each.name for each in heat.arms} - {each.cell for each in slices} - set(failed):
            failed[arm] = "it trained too little to be measured; give the study more seconds"
        self._report(heat, slices)
        return slices, failed

    def _cells(self, heat: Heat) -> tuple[dict[str, str], list[Cell]]:
        """Return {key: arm} and the cells of a heat: those that are all there, or new ones.

        Some that an interrupted heat has finished share no round with the others, and count for nothing.
        """
        for tries in count():
            cells = [
                replace(self.base, config=self.base.config.changed(**arm.values), label=arm.name).repeated(
                    100 * heat.number + tries
                )
                for arm in heat.arms
            ]
            there = [record_in(self.sweep.directory / cell.key) is not None for cell in cells]
            if all(there) or not any(there):
                return {cell.key: arm.name for cell, arm in zip(cells, heat.arms, strict=True)}, cells
        raise AssertionError

    def _slices(self, heat: Heat, names: Mapping[str, str]) -> list[Slice]:
        if not self.alone:
            return [
                replace(each, launch=f"{heat.launch}/{each.launch}")
                for each in rates(read_turns(self.sweep.directory), names)
            ]
        records = {arm: record_in(self.sweep.directory / key) for key, arm in names.items()}
        speeds = {arm: record.totals.get("samples_per_s") for arm, record in records.items() if record is not None}
        return [Slice(launch=heat.launch, round=0, cell=arm, rate=speed) for arm, speed in speeds.items() if speed]

    def _cost_s(self, arms: int, launches: int, rounds: int) -> float:
        """Return how long so many arms probably take: so many launches of each, with rounds."""
        return arms * launches * (self.start_s + (0.0 if self.alone else rounds * SLICE_S[0]))

    def _until_s(self, heat: Heat) -> float:
        """Return the seconds at which a heat is to be over, so that there is time to confirm what leads."""
        if heat.what != "stage" or self.race is None or self.race.leader() is self.race.arms[0]:
            return self.lasts_s
        way = ALONE if self.alone else IN_TURNS
        return self.lasts_s - min(self._cost_s(3, *way["confirm"]), self.lasts_s * _RESERVED)

    def _report(self, heat: Heat, slices: Sequence[Slice]) -> None:
        """Print a line on a heat: who leads, where that is known, and the time left."""
        race, told = self.race, ""
        if race is not None and race.slices and (best := race.leader()) is not race.arms[0]:
            told = f"; best before it: {best.name}, {words(race.gain(best))} of shipped"
        rounds = 1 + max((each.round for each in slices), default=-1)
        left = duration(max(0.0, self.lasts_s - self.used_s))
        what = f"{heat.what} {heat.number}: {len(heat.arms)} settings, {rounds} rounds"
        say(self.console, f"  {what}{told}; at most {left} left")


# ---------------------------------------------------------------------------------------------------- what came of it


def _table(race: Race, left_out: Mapping[str, str]) -> list[str]:
    """Return the lines of the table: setting, ratio to shipped with its interval, verdict; and who is chosen, why."""
    rows = []
    for arm in race.arms:
        gain = race.gain(arm)
        speeds = [each.rate for each in race.slices if each.cell == arm.name]
        verdict = (
            "faster"
            if gain.low > 1
            else "slower"
            if gain.high < 1
            else "no difference resolved"
            if gain.known
            else "too few rounds"
        )
        if arm.name == SHIPPED:
            verdict = "what the others are compared with"
        elif race.out.get(arm.name, "").startswith("failed"):
            verdict = race.out[arm.name]
        ratio = "1" if arm.name == SHIPPED else words(gain)
        rows.append(
            (
                f"{'*' if arm is race.chosen else ' '} {arm.name}",
                ratio,
                f"{median(speeds):,.0f}" if speeds else "-",
                verdict,
            )
        )
    lines = to_lines(table_of(("setting", "of shipped", "samples/s", ""), rows, texts=(0, 3)), indent=2)
    lines += [f"    {knob} was not varied: it {why}" for knob, why in left_out.items()]
    lines += ["", f"{race.text[:1].upper()}{race.text[1:]}."]
    if race.chosen is not race.arms[0]:
        lines.append(f"  over the shipped settings: {words(race.gain(race.chosen, race.confirming()))}, launched again")
    return lines


def run_lines(base: Cell, chosen: Candidate) -> list[str]:
    """Return the chosen settings as lines of a study file whose sweep has the runtime."""
    own = {name: value for name, value in base.config.to_dict().items() if name == "horovod_build" and value}
    text = yaml.safe_dump({"run": {"threads": base.config.threads, **own, **chosen.values}}, sort_keys=False)
    return [f"# for a study file with runtime: {base.runtime} in its sweep", *text.splitlines()]
