"""A command whose training is recorded without a line in its script: `horovod-study record -- COMMAND`.

The command is started as it is, with two environment variables more: one puts the recorder's folder in front of
PYTHONPATH, so that every Python below it loads its sitecustomize, the other says what is asked. Its processes leave
events and facts in a folder (recording/rank); how they end does not matter. Here they become run directories: of each
training that was seen, and of the whole command where no step was.

A training is all ranks that a library connects, or processes without one that train at the same time: these are one
measurement of several processes. What trains after another training is one of its own.
"""

import fcntl
import glob
import json
import math
import os
import pty
import resource
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import termios
import tty
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import numpy as np

import horovod_study
from horovod_study import records
from horovod_study.cluster import alive
from horovod_study.comm.launch import LAUNCH_VARIABLES, detect
from horovod_study.errors import BackendError, StudyError
from horovod_study.files import PART, unfinished, write_file, writing
from horovod_study.measure import evidence, steady, system
from horovod_study.measure.clock import now, utc_now
from horovod_study.measure.environment import affinity, describe
from horovod_study.recording.rank import turns
from horovod_study.recording.said import rate_said, said_workers
from horovod_study.recording.steps import Events, NotedSteps, losses_of, stacks_of, steps_of
from horovod_study.studies import lease
from horovod_study.text.numbers import percent
from horovod_study.text.progress import say
from horovod_study.text.words import plural

VARIABLE = "HOROVOD_STUDY_RECORD"
NO_STEPS = (
    "neither optimizer steps nor backwards were seen, or fewer than two; a script in which nothing of them is "
    "PyTorch's is recorded by three lines of its own, see docs/your_script.md"
)
ENDED_WITH = "the command ended with exit code"
"""Begins the reason of a run whose command has failed; why, its output says."""
PASSED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
"""Signals that go on to the command."""
_LOOK_S = 0.5
_EVENTS = f"-events{PART}"
"""Ending of the hidden folder of a command's events, which `close_left` alone takes away when its maker was killed."""
_BY_SIGNAL = {124: "timeout", 130: "SIGINT", 137: "SIGKILL", 143: "SIGTERM"}
"""Exit codes of commands that were ended from outside: what they have trained until then is a measurement."""
MAX_TRAININGS = 8  # trainings of one process that are recorded, one after the other
_GAP_S = 0.05  # a pause between two steps that is longer begins another stretch of the window, for energy and sensors
_AT_ONCE = 65536


def training_directory(out: Path, training: int) -> Path:
    """Return the run directory of the training of this number, from 1, of processes that are recorded in `out`."""
    return out if training == 1 else out.with_name(f"{out.name}-training{training}")


class RankNotes:
    """What one process has left of one training: facts, and where its events are."""

    def __init__(self, path: Path) -> None:
        told: dict[str, list[Any]] = defaultdict(list)
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, TypeError):
                what, value = json.loads(line)
                told[what].append(value)
        self.path = path.with_suffix("")
        self.reached, self.names, self.more = told["seen"], told["name"], bool(told["more"])  # it has trained again
        self.opened: dict[str, Any] = {}
        for facts in (*told["opened"][-1:], *told["joined"][-1:]) if told["opened"] else ():
            self.opened.update(facts)
        self.ended: dict[str, Any] = told["ended"][-1] if told["ended"] else {}
        self.failed, self.stopped = ("".join(told[name][:1]) for name in ("failed", "stopped"))
        self.workers = int(self.opened.get("workers", 1))  # that its library has connected
        self.waits_seen = self.workers == 1 or bool(self.opened["waits"])  # a step without one had none
        self.seen = bool(self.opened) and self.file("events").exists()  # it has begun to train

    def file(self, ending: str) -> Path:
        """Return what it has written under this ending, or would have."""
        return self.path.with_name(f"{self.path.name}.{ending}")

    @property
    def updates(self) -> int:
        """How many updates it has made, seen or not; backwards where there is none."""
        events = self.read()
        return len(events.places("updated", "changed")) or len(events.places("backwarded"))

    def read(self) -> Events:
        """Return its events."""
        return Events.read(self.file("events"), int(self.opened["width"]))

    @cached_property
    def span_s(self) -> tuple[float, float]:
        """When its first event was, and its last, in s of the clock of all hosts."""
        wall, host = self.opened["at"]
        at = self.read().host_s
        return (wall + float(at[0]) - host, wall + float(at[-1]) - host) if len(at) else (wall, wall)


@dataclass(kw_only=True)
class RankGroup:
    """The ranks that train together, in their order; `connected`: by a library."""

    ranks: list[RankNotes]
    connected: bool
    ended: str = ""  # how it was ended from outside

    @property
    def workers(self) -> int:
        """How many workers it has, seen or not."""
        return self.ranks[0].workers if self.connected else len(self.ranks)

    @property
    def complete(self) -> bool:
        """Whether every rank was seen."""
        return len(self.ranks) == self.workers


def processes_in(meeting: Path) -> tuple[list[str], list[RankNotes]]:
    """Return how far the processes of a command came, and those that have begun to train or could not be recorded."""
    processes = [RankNotes(path) for path in sorted(meeting.glob("*.facts"))]
    seen = ["python"] if (meeting / "pythons").exists() else []
    seen += [each for process in processes for each in process.reached]
    return seen, [each for each in processes if each.opened or each.stopped]


def trainings_of(processes: Sequence[RankNotes]) -> list[RankGroup]:
    """Return the trainings of a command, in the order in which they began."""
    found: list[RankGroup] = []
    for process in sorted((each for each in processes if each.seen), key=lambda each: each.span_s):
        connected = process.workers > 1
        same = _is_of if connected else _at_the_same_time
        training = next((each for each in found if each.connected == connected and same(process, each)), None)
        if training is None:
            found.append(training := RankGroup(ranks=[], connected=connected))
        training.ranks.append(process)
    for training in found:
        training.ranks.sort(key=lambda each: (int(each.opened["rank"]), each.span_s))
    return found


def _is_of(process: RankNotes, training: RankGroup) -> bool:
    """Return whether a process has the launch of a training, averages as it does, and a rank that is free in it."""

    def launch(of: RankNotes) -> tuple[Any, ...]:
        names = [name for name in LAUNCH_VARIABLES if "RANK" not in name and "PROCID" not in name]
        return of.workers, of.opened["averaging"], [of.opened["environ"].get(name) for name in names]

    taken = {each.opened["rank"] for each in training.ranks}
    return launch(process) == launch(training.ranks[0]) and process.opened["rank"] not in taken


def _at_the_same_time(one: RankNotes, training: RankGroup) -> bool:
    """Return whether a process trains at the same time as the first of a training, for most of the longer one."""
    other = training.ranks[0]
    if one.path.name.rpartition("-")[0] == other.path.name.rpartition("-")[0]:
        return False  # of one process, one after the other
    (begin, end), (first, last) = one.span_s, other.span_s
    return min(end, last) - max(begin, first) > 0.5 * max(end - begin, last - first)


def worth_keeping(trainings: Sequence[RankGroup], warmup: int) -> list[RankGroup]:
    """Return the trainings that have steps behind a warm-up on all ranks, the longest first; where none has, all.

    What a command tries before its training, such as a learning rate or a batch that fits, is none beside it. Those
    behind the MAX_TRAININGS longest come last.
    """
    made = {id(each): min(rank.updates for rank in each.ranks) for each in trainings}
    kept = [each for each in trainings if each.complete and made[id(each)] > warmup] or list(trainings)
    longest = [id(each) for each in sorted(kept, key=lambda each: -made[id(each)])[:MAX_TRAININGS]]
    return sorted(kept, key=lambda each: (id(each) not in longest, id(each) != longest[0]))


def new_record(out: Path, options: Mapping[str, Any], **known: Any) -> records.RunRecord:
    """Return the record of a run that this process begins in `out`."""
    named = {name: options[name] for name in ("study", "repeat", "partition")}
    return records.RunRecord(**named, key=out.name, status="running", process=alive.identity(), **known)


def end_run(out: Path, status: str, totals: Mapping[str, Any], reason: str = "") -> None:
    """Write into the record of a run that has begun how it has ended."""
    begun = records.read_run(out)
    records.finish_run(out, begun, status=status, finished=utc_now(), totals=totals, reason=reason)


def described(
    ranks: Sequence[Mapping[str, Any]],
    busy: Mapping[str, float | None],
    holders: Mapping[str, int | None],
    **known: Any,
) -> tuple[dict[str, Any], list[str]]:
    """Return what `effective` says of the ranks of any run, and what makes its times worth less.

    Of each host, `busy`: cores that others use, `holders`: their processes on GPUs; `known`: workers, lr, device.
    """
    hosts = Counter(each["host"] for each in ranks)
    shared = evidence.oversubscribed(ranks)
    doubts = (shared, evidence.disturbed(busy, ranks), evidence.shared_gpu(ranks), evidence.held(holders))
    told: dict[str, Any] = {"workers": known["workers"], "nodes": len(hosts), **known}
    told |= {"ranks_per_host": list(hosts.values()), "shared_cores": shared is not None}
    told |= {"other_programs_cores": busy, "other_gpu_processes": holders, "ranks": list(ranks)}
    return told, [each for each in doubts if each]


def window_totals(
    ranks: Sequence[Mapping[str, Any]],
    found: steady.Steady,
    rate: float,
    window_s: float,
    waited: tuple[list[int], float],
) -> dict[str, Any]:
    """Return what `totals` says of the timed window of any run, which begins at the step that was `found`.

    `ranks`: of each its `steps`, `summary`, `rows_lost`, and `memory`, resident and proportional; `waited`: the steps
    before which it waited for its turn, and how long.
    """
    made = min(each["steps"] for each in ranks)
    totals = {"samples_per_s": rate, "window_s": window_s, "steps": made - found.step, "excluded_steps": found.step}
    totals |= {"steady": asdict(found), **records.step_totals([each["summary"] for each in ranks])}
    totals |= {"rows_lost": [each["rows_lost"] for each in ranks]}
    totals |= {"turns": {"before": waited[0], "waited_s": waited[1]}} if waited[0] else {}
    for name, own in zip(
        ("rss_mb_max", "pss_mb_max"), zip(*(each["memory"] for each in ranks), strict=True), strict=True
    ):
        totals[name] = records.over_ranks(own, largest=True)
    return totals


class CommandRun:
    """The run directories of one command while it goes on: the sampler of its host, and the first record."""

    def __init__(
        self, out: Path, meeting: Path, options: Mapping[str, Any], about: Mapping[str, Any], *, over: bool = False
    ) -> None:
        """`about`: what else is known of it: batch, model_name, own (options of the script), requested (of a study).

        Where its ranks tell, also `loads`: what each has seen of other programs; else command, workers and rate, as
        `record` has them. `over`: somebody else has begun it.
        """
        self.out, self.meeting, self.options = out, meeting, options
        self.printed: Callable[[], str] = lambda: ""  # what the command has printed
        self._batch, self._about, self._host = about["batch"], about, os.uname().nodename
        self._held = ExitStack()
        self._record = records.read_run(out) if over and (out / records.MANIFEST).exists() else None
        self._began, self._began_at = now(), utc_now()
        # cells that start beside it are no other programs
        alone = not (turns.wanted() or "loads" in about or over)
        self._load = evidence.OtherLoad(affinity()).sample(at_least_s=0.2) if alone else None
        self._interval_s = 0.0 if over else options.get("system_interval_s", 1.0)
        self._sampler = system.Sampler(self._host) if self._interval_s else None
        self._environment = describe()
        self._wall_s, self._cpu_s = 0.0, sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])

    def started(self, pid: int) -> None:
        """The command runs."""
        self._began, self._began_at = now(), utc_now()
        self._watch([{"host": self._host, "pid": pid, "gpu": None}])

    def _watch(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        if self._sampler is not None:
            self._sampler.watch(self.out, ranks, interval_s=self._interval_s)

    def look(self) -> bool:
        """Begin the record when all ranks of the first training are seen; return whether that is still to come."""
        complete = [each for each in trainings_of(processes_in(self.meeting)[1]) if each.complete]
        with suppress(StudyError, OSError):  # told at the end
            for each in complete[:1]:
                self.begin(each)
        return not complete

    def begin(self, training: RankGroup) -> records.RunRecord:
        """Begin the record of the first training."""
        self._record = self._create(self._document(self.out, training))
        if self._sampler is not None:
            self._sampler.wait_ready()
        self._watch(self._record.effective["ranks"])
        return self._record

    def ended(self) -> None:
        """The command has ended."""
        self._wall_s = now() - self._began
        self._cpu_s = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - self._cpu_s

    def close(self) -> None:
        """Give everything back."""
        self._held.close()
        if self._sampler is not None:
            self._sampler.close()

    # ------------------------------------------------------------------------------------------------ the record

    def _document(self, out: Path, training: RankGroup, steps: Sequence[NotedSteps] = ()) -> records.RunRecord:
        """Return run.json of a training, as its ranks opened it; with its `steps` once it has ended."""
        first, effective = training.ranks[0].opened, self._effective(training)
        effective |= self._learnt(training, steps) if steps else {}
        asked = {"batch": self._batch, "script": first["script"], "workers": training.workers}
        return self._record_of(out, asked, effective, first["environment"])

    def _record_of(
        self, out: Path, asked: Mapping[str, Any], effective: Mapping[str, Any], environment: Mapping[str, Any]
    ) -> records.RunRecord:
        """Return run.json of what runs here, or, where somebody has begun it, of that with what is known now.

        requested: options, what a study has asked, and `asked`: script or command, workers; environment: that of this
        process, and of rank 0; started, host, pid: of this process.
        """
        own = {"options": dict(self._about["own"])} if self._about["own"] else {}
        requested = {**self.options, **asked, **self._about.get("requested", {}), "out": str(out), **own}
        known: dict[str, Any] = {"effective": effective, "environment": {**self._environment, **environment}}
        if self._record is not None and out == self.out:
            return replace(self._record, requested={**self._record.requested, **requested}, **known)
        process = {"started": self._began_at, "host": self._host, "pid": os.getpid()}
        return new_record(out, self.options, **process, requested=requested, **known)

    def _create(self, record: records.RunRecord) -> records.RunRecord:
        out = self.out.with_name(record.key)
        with ExitStack() as begun:  # one that could not be begun is held by nobody
            begun.callback(lease.hold_run(out).give_back)
            records.create_run(out, record)
            self._held.push(begun.pop_all())
        return record

    def _effective(self, training: RankGroup) -> dict[str, Any]:
        """Return what ran, as it was before the first step."""
        first, hosts = training.ranks[0].opened, [each.opened["host"] for each in training.ranks]
        named = ("host", "pid", "cores", "threads", "device", "gpu", "lr")
        ranks = [{name: each.opened[name] for name in named} for each in training.ranks]
        for at, each in enumerate(ranks):
            each |= {"local_rank": hosts[:at].count(hosts[at]), "communication": {}}
        mine = [self._load if host == self._host else None for host in hosts]
        busy = evidence.other_cores(self._about.get("loads", mine), ranks)
        device = first["gpu"]["name"] if first["gpu"] else first["device"]
        told, self._doubts = described(ranks, busy, {}, workers=training.workers, lr=first["lr"], device=device)
        try:
            launcher = detect(first["environ"]).launcher
        except BackendError:
            launcher = "none"
        reduction = "hooks" if first["averaging"] in ("backward", "synchronize") else "own"
        told |= {name: first[name] for name in ("backend", "parameters", "transport", "optimizer")}
        told |= {"launcher": launcher, "reduction": "none" if training.workers == 1 else reduction}
        told |= {"model": self._about["model_name"] or first["model"], "warmup_steps": self.options["warmup_steps"]}
        told |= {"timer_mode": {"value": self.options.get("timer_mode", "light"), "note": ""}, "batch": self._batch}
        told |= {"global_batch": None if self._batch is None else self._batch * training.workers}
        return {**told, "initial_parameter_sha256": first["initial_sha256"], "precision": None, "train_samples": None}

    # ------------------------------------------------------------------------------------------------ the end

    def write(self, training: RankGroup, number: int, *, failed: str) -> str:
        """Write the run of a training that has ended, and say what it holds; return what leaves nothing to measure."""
        out = training_directory(self.out, number)
        if number > 1:
            say(f"horovod-study record: training {number} of this command is recorded in {os.path.relpath(out)}")
        try:
            if number > 1 or self._record is None:
                self._create(self._document(out, training))
            record, totals, wrong = self._measured(out, training, first=number == 1)
            stopped = next((f"the recorder stopped {each.stopped}" for each in training.ranks if each.stopped), "")
            reason = stopped or wrong or failed
            status = "failed" if reason else "done"
            records.finish_run(out, record, status=status, finished=utc_now(), totals=totals, reason=reason)
        except StudyError as error:
            say(f"error: {out}: the recording failed: {error}")
            with suppress(StudyError, OSError):
                end_run(out, "failed", {}, str(error))
            return ""
        where = os.path.relpath(out)
        if reason:
            say(f"horovod-study record: {where} is {'incomplete:' if wrong else 'complete, but'} {reason}")
        if totals:
            outside, step = totals["outside"], totals["step_s_median"]
            beside = f"{percent(outside['share'], decimals=0)} of the time is outside of steps"
            say(
                f"recorded {totals['steps']:,} steps after {totals['excluded_steps']:,} of warm-up: "
                f"{totals['samples_per_s']:,.0f} samples/s with {plural(training.workers, 'worker')}"
                + ("" if step is None else f", step {step * 1e3:.2f} ms (median)")
                + (f"; {beside}, {outside['samples_per_s']:,.0f} samples/s with it" * (outside["share"] >= 0.02))
                + f"; horovod-study explain {shlex.quote(where)}"
            )
        return "" if stopped or _why_failed(training) else wrong

    def _measured(
        self, out: Path, training: RankGroup, *, first: bool
    ) -> tuple[records.RunRecord, dict[str, Any], str]:
        """Write the rows of a training; return its record, its totals, and why it has failed."""
        events = [each.read() for each in training.ranks]
        steps = [
            steps_of(each, batch=self._batch, waits_seen=own.waits_seen, told=own.opened["told"])
            for own, each in zip(training.ranks, events, strict=True)
        ]
        for each in training.ranks:
            each.file("events").unlink()  # which makes room for the rows
        off = self.options.get("timer_mode") == "off"
        zero: dict[str, float] = defaultdict(lambda: math.inf)  # host -> when the first of its ranks began a step
        for process, own in zip(training.ranks, steps, strict=True):
            host = process.opened["host"]
            zero[host] = min([zero[host], *own.columns["begin_s"][:1].tolist()])
        for rank, (process, own) in enumerate(zip(training.ranks, steps, strict=True)):
            if (losses := process.file("losses")).exists():
                own.columns["loss"] = losses_of(losses, events[rank], own)
            columns = {**own.columns, "begin_s": own.columns["begin_s"] - zero[process.opened["host"]]}
            columns |= {"step": np.arange(len(own))}
            if off:
                columns = {name: columns[name] for name in ("step", "epoch", "samples", "loss") if name in columns}
            with closing(records.StepWriter(out, rank)) as writer:
                for at in range(0, len(own), _AT_ONCE):
                    writer.append({name: each[at : at + _AT_ONCE] for name, each in columns.items()})
        record = self._document(out, training, steps)
        if wrong := _why_failed(training) or _too_few(training, self.options["warmup_steps"], steps):
            return record, {}, wrong
        found = self._steady(steps, record.effective)
        lead = training.ranks[0]
        totals, samples = _totals(training, steps, found, off=off)
        stretches, totals["outside"] = _outside(steps[0], found.step, totals["samples_per_s"])
        stretches = [[at - zero[lead.opened["host"]] for at in each] for each in stretches]
        totals |= self._sensors(zero.get(self._host, self._began) if first else None, stretches, samples)
        totals["wall_s"] = self._wall_s or float(np.ptp(events[0].host_s))
        totals["stacks"] = stacks_of(lead.file("stacks"), lead.names, events[0], steps[0], found.step)
        return record, totals, ""

    def _sensors(self, zero: float | None, stretches: list[list[float]], samples: int) -> dict[str, Any]:
        """Return totals of the sensors in `stretches`, of a run whose times begin at `zero`; None: it has none."""
        told = None
        if self._sampler is not None and zero is not None:
            self._sampler.wait_ready()
            self._sampler.begin(zero)
            told = system.told(self.out, self._sampler, stretches)
        return system.totals([told], samples=samples)

    def _learnt(self, training: RankGroup, steps: Sequence[NotedSteps]) -> dict[str, Any]:
        """Return what is only known at the end of what ran."""
        ranks, lead, first = training.ranks, training.ranks[0], steps[0]
        usual = [int(np.median(each.columns["samples"])) for each in steps if len(each)]
        whole = sum(usual) if len(usual) == len(steps) else None  # samples of a step of all ranks
        ends, begun = {each.ended.get("sha256") for each in ranks}, {each.opened["initial_sha256"] for each in ranks}
        sharded = any(each.opened["sharded"] for each in ranks)
        parts = len({each.opened["parameters"] for each in ranks}) > 1
        averaging = lead.opened["averaging"]
        if training.workers > 1 and averaging is None:
            # A metric that is reduced has some bytes; gradients, however compressed, half a byte for each parameter.
            most = max(each.averaged_bytes for each in steps)
            averaging = "calls" if most >= 0.5 * lead.opened["parameters"] else "none"
        # Who averages by calls may do so every few updates, and end between two of them, or share other things than
        # gradients. From one start, and with calls in each step, the models are the same, if it was gradients.
        own_way = averaging == "calls" and (len(begun) > 1 or (first.calls or {}).get("per_step", 0.0) < 1)
        apart = None not in ends and len(ends) > 1 and not (sharded or parts or own_way)
        data = lead.ended.get("data", lead.opened["data"])
        samples = None if first.data is None or first.data >= len(data) else data[first.data]
        alike = None not in ends and len(ends) == 1 and not ends & {lead.opened["initial_sha256"]}
        if averaging == "none" and alike and samples and first.epoch_steps:
            if first.epoch_steps * sum(usual) < 1.5 * samples:
                averaging = None  # other data, and yet the same parameters: by means that were not seen
        turns_made = sum((each.turns for each in steps), Counter())
        more: dict[str, Any] = {"processes": 0 if training.connected or len(ranks) == 1 else len(ranks), "parts": parts}
        more |= {"parted": apart and training.workers > 1, "sharded": sharded}
        more |= {"ended": training.ended or ("" if all(each.ended for each in ranks) else "before Python's own end")}
        return {
            "batch": None if whole is None else round(whole / len(steps)),
            "global_batch": whole,
            "train_samples": samples,
            "precision": _common([each.ended.get("precision") for each in ranks]),
            "turns_per_update": turns_made.most_common(1)[0][0] if turns_made and first.by != "turns" else None,
            "averaging": None if averaging == "unseen" else averaging,
            "calls": first.calls if training.workers > 1 else None,
            "epoch_steps": first.epoch_steps,
            "loader_thread": any(each.ended.get("elsewhere", 0) for each in ranks),
            **{name: value for name, value in more.items() if value},
        }

    def _steady(self, steps: Sequence[NotedSteps], effective: Mapping[str, Any]) -> steady.Steady:
        first, made = steps[0], min(map(len, steps))
        found, wanted = steady.declared(self.options["warmup_steps"]), self.options.get("steady") != "declared"
        if wanted and self.options.get("timer_mode") == "off":
            found = replace(found, doubt="with timer_mode off no steady steps are looked for")
        elif wanted:
            found = steady.find_steady(first.columns["step_s"][:made], found.declared)
        by, processes, parts = first.by, effective.get("processes"), effective.get("parts")
        none = not processes and effective.get("averaging") == "none" and effective["workers"] > 1
        total = sum(first.turns.values())
        usual, count = first.turns.most_common(1)[0] if first.turns else (1, 0)
        # a loss scaler skips some
        irregular = by in ("updates", "changes") and total - count > 0.05 * total
        rules = {
            "no optimizer stepped: a step is from one backward to the next, and the update is in no lap, unless "
            "record.lap('update') marks it (docs/your_script.md)": by == "backwards",
            f"{total:,} of {total:,} steps made no update that was seen: they are turns of the loop": by == "turns",
            f"{total - count:,} of {total:,} steps took another number of turns than {usual}: updates come "
            "irregularly": irregular,
            "samples were not seen: each step counts as one, and samples/s are steps/s": first.uncounted,
            "the ranks train models of different size, parts of one perhaps: the count is that of rank 0": parts,
            "the ranks end with different parameters: they have trained different models, and their gradients were "
            "not averaged alike": "parted" in effective,
            f"{processes} processes trained at the same time, and no library connects them: this is one measurement of "
            "several processes, and no speedup": processes,
            "no call was seen by which the ranks average: each trains a model of its own": none,
        }
        doubts = [text for text, holds in rules.items() if holds]
        if first.from_calls and not first.uncounted:
            say(
                "note: samples are the first dimension of what the model was called with (the second, where its layers "
                "take time first), because no loader was looped over; where that is not the batch, --batch N says it"
            )
        counts = {len(each) for each in steps}
        if len(counts) > 1:
            say(f"warning: the ranks made {min(counts)} to {max(counts)} steps; shares and sums of them are not equal")
        if (turns_made := effective.get("turns_per_update")) not in (None, 1):
            say(f"note: the optimizer stepped every {turns_made} turns of the loop: steps are counted by updates")
        found = replace(found, doubt="; ".join(filter(None, (*doubts, found.doubt))))
        for doubt in (*self._doubts, *([found.doubt] if doubts else [])):
            say(f"warning: {doubt.replace('--threads 1', 'torch.set_num_threads(1)')}")
        return found

    # ------------------------------------------------------------------------------------------------ no steps

    def write_command(self, code: int, why: str, ended: str) -> None:
        """Write the run of a command in which no step was seen: whole times, and the rate that its output says.

        `ended`: what has ended it from outside, and is no failure.
        """
        command: list[str] = self._about["command"]
        count = self._about["workers"] or said_workers(command)
        said = None if code else rate_said(self.printed(), self._about["rate"], count)
        per_s, source = said or (1 / self._wall_s, "whole command: 1 / seconds")
        scripts = [word for word in command if word.endswith((".py", ".sh", ".ipynb"))]
        ran: dict[str, Any] = {"workers": count, "nodes": 1, "transport": "none", "ranks": [], "warmup_steps": 0}
        ran |= {"measured": "command", "model": self._about["model_name"] or Path([*scripts, command[0]][0]).stem}
        ran |= {"backend": "serial" if count == 1 else "command", "reduction": "none" if count == 1 else "own"}
        ran |= {"batch": self._batch, **({"ended": f"by {ended}"} if ended else {})}
        record = self._create(self._record_of(self.out, {"workers": count, "command": command}, ran, {}))
        totals: dict[str, Any] = dict.fromkeys(("wall_s", "window_s", "train_s"), self._wall_s)
        totals |= {"cpu_s": self._cpu_s, "steps": 0, "samples_per_s": per_s, "rate_from": source}
        totals |= self._sensors(self._began, [[0.0, self._wall_s]], max(1, round(per_s * self._wall_s)))
        status, reason = ("failed", f"{ENDED_WITH} {code}") if code else ("done", "")
        records.finish_run(self.out, record, status=status, finished=utc_now(), totals=totals, reason=reason)
        say(
            f"horovod-study record: no steps were seen: {why}; recorded as a whole: {self._wall_s:.2f} s, "
            f"{self._cpu_s:.2f} s of processor time"
            + (f", {per_s:,.6g} a second by its output ({source})" if said else "")
            + f", in {os.path.relpath(self.out)}"
        )


def _why_failed(training: RankGroup) -> str:
    gone = [str(each.opened["rank"]) for each in training.ranks if not (each.ended or each.failed or each.stopped)]
    for number, each in enumerate(training.ranks):
        if each.failed:
            who = f"rank {each.opened['rank'] if training.connected else number}: " if training.workers > 1 else ""
            # where some are gone the others fail because of it
            return (f"rank {', '.join(gone)} ended without a word; " if gone else who) + each.failed
    if not training.complete:
        missing = sorted(set(range(training.workers)) - {int(each.opened["rank"]) for each in training.ranks})
        return f"no step of rank {missing[0]} was seen: it made fewer than two, or its process was not recorded"
    return ""


def _too_few(training: RankGroup, warmup: int, steps: Sequence[NotedSteps]) -> str:
    """Return what leaves nothing to measure, "" where there is something."""
    made, rank = min((len(own), number) for number, own in enumerate(steps))
    unequal = len({len(own) for own in steps}) > 1
    who, told = f"rank {rank}: " if unequal else "", training.ranks[0].opened["told"]
    if made > warmup:
        return ""
    if told and not made:
        return (
            f"{who}not a single step was recorded; loop over record.steps(loader) and give the optimizer that is "
            "stepped, or mark updates of your own with record.lap('update')"
        )
    text = f"all {made} steps belong to the warm-up of {warmup}" if made else "not a single step was recorded"
    below = f", or set {'warmup_steps=' if told else '--warmup-steps'} below {made}" if made > 1 else ""
    return f"{who}{text}, and none is left to measure; make more steps{below}"


def _common(values: Sequence[str | None]) -> str | None:
    return values[0] if len(set(values)) == 1 else None


def _totals(
    training: RankGroup, steps: Sequence[NotedSteps], found: steady.Steady, *, off: bool
) -> tuple[dict[str, Any], int]:
    """Return the totals of the window, from step `found.step` on, and its samples; `off`: laps were not timed."""
    first, ranks = found.step, training.ranks
    windows = [float(each.columns["step_s"][first:].sum()) for each in steps]
    samples = [int(each.columns["samples"][first:].sum()) for each in steps]
    rates = [each / own for each, own in zip(samples, windows, strict=True)]
    rate = sum(samples) / max(windows) if training.connected else sum(rates)
    everybody = []
    for each, own in zip(steps, ranks, strict=True):
        timed = {} if off else {name: values[first:].copy() for name, values in each.columns.items()}
        summary = records.lap_summary(defaultdict(partial(np.empty, 0), timed).__getitem__)
        memory = (own.ended.get("rss_mb"), own.ended.get("pss_mb"))
        everybody.append({"steps": len(each), "summary": summary, "rows_lost": 0, "memory": memory})
    return {
        **window_totals(everybody, found, rate, max(windows), (steps[0].waits, steps[0].waited_s)),
        "epochs": int(steps[0].columns["epoch"][-1]) + 1,
        **dict.fromkeys(("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "target_reached")),
        "train_s": max(windows),
        "parameter_sha256": _common([each.ended.get("sha256") for each in ranks]),
    }, sum(samples)


def _outside(steps: NotedSteps, first: int, rate: float) -> tuple[list[list[float]], dict[str, Any]]:
    """Return begin and end of each stretch of steps without a pause, from step `first` on, and what is outside.

    That is the time between these steps, and of what is evaluated behind them, and the rate with it.
    """
    begin, length = steps.columns["begin_s"][first:], steps.columns["step_s"][first:]
    ends = begin + length
    gaps = np.maximum(begin[1:] - ends[:-1], 0.0)
    breaks = np.flatnonzero(gaps > _GAP_S)
    stretches = np.transpose([begin[[0, *(breaks + 1)]], ends[[*breaks, -1]]]).tolist()
    gaps = np.append(gaps, steps.after_s)
    inside, outside = float(length.sum()), max(0.0, float(gaps.sum()) - steps.waited_s)
    whole = inside + outside
    found = {"seconds": outside, "share": outside / whole, "samples_per_s": rate * inside / whole}
    found |= {"longest_s": float(gaps.max(initial=0.0)), "gaps": int((gaps > _GAP_S).sum())}
    return stretches, {**found, "after_s": steps.after_s}


def asked_file(out: Path) -> Path:
    """Return the file that tells ranks which this package has started itself what is asked of them."""
    return out.with_name(f".{out.name}.asked")


def environment(asked: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a command whose training is recorded as `asked`."""
    inject = str(Path(__file__).parent / "inject")
    kept = os.environ.get("PYTHONPATH")
    path = inject if not kept else os.pathsep.join([inject, kept])  # an empty part of it is the working directory
    return {**os.environ, "PYTHONPATH": path, VARIABLE: json.dumps(asked)}


def record(
    command: Sequence[str],
    out: Path,
    options: Mapping[str, Any],
    about: Mapping[str, Any] = MappingProxyType({}),
    *,
    steps: int | None = None,
    workers: int | None = None,
    rate: str | None = None,
    told: bool = False,
) -> int:
    """Run `command`, have its training recorded in the run directory `out`, and return the exit code to end with.

    The code is the command's, also where nothing could be recorded. `about`: what else is known of it: batch,
    model_name, own (options of the script in which runs differ), requested (what else a study asked for); `steps`: the
    training is ended after so many; `workers`: how many a study has started; `rate`: a regular expression, whose first
    group is the rate in the output of a command without steps; `told`: its ranks read what is asked from `asked_file`.
    A command that cannot be started is a StudyError.
    """
    out = out.absolute()
    known = {"command": list(command), "workers": workers, "rate": rate}
    about = {"batch": None, "model_name": None, "own": {}, "requested": {}, **about, **known}
    one_training = "declared" in about["requested"]  # a cell: what a killed runner leaves of it is made again
    if not one_training:
        close_left(out.parent)
    for training in range(1, 2 if one_training else MAX_TRAININGS + 1):  # those of an earlier command, too
        records.require_no_run(training_directory(out, training))
    with ExitStack() as held:
        with writing(out, "choose a writable --out, with some room"):
            out.parent.mkdir(parents=True, exist_ok=True)
            made = held.enter_context(unfinished(out, folder=True))
            meeting = made if one_training else made.with_name(f"{made.name.removesuffix(PART)}{_EVENTS}")
            package = Path(horovod_study.__file__).parent
            asked: dict[str, Any] = {"out": str(out), "meeting": str(meeting), "package": str(package), "steps": steps}
            asked |= {"options": dict(options), "variables": LAUNCH_VARIABLES}
            me = {"about": about, "host": os.uname().nodename, "pid": os.getpid()}
            write_file(made / "asked.json", json.dumps({**asked, **me}))
            held.callback(shutil.rmtree, made.rename(meeting), ignore_errors=True)
            if told:
                write_file(asked_file(out), json.dumps(asked))
                held.callback(asked_file(out).unlink, missing_ok=True)
        run = CommandRun(out, meeting, options, about)
        held.callback(run.close)
        code = _run(command, os.environ if told else environment(asked), run)
        try:
            _close(run, code, cell=one_training)
        except (StudyError, OSError) as error:  # the command has run, and how it ended is what counts
            say(f"error: not recorded: {error}")
        return code


def close_left(folder: Path) -> None:
    """Make run directories of what commands in `folder` have left whose recorder was killed, once they have ended."""
    for meeting in folder.glob(f".*{_EVENTS}"):
        try:
            asked = json.loads((meeting / "asked.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        _, processes = processes_in(meeting)
        where = [asked, *(each.opened for each in processes if each.opened)]
        if any(each["host"] != os.uname().nodename or alive.runs(each["pid"]) for each in where):
            continue
        out = Path(asked["out"])
        trainings = worth_keeping(trainings_of(processes), asked["options"]["warmup_steps"])
        with suppress(StudyError, OSError):
            if (out / records.MANIFEST).exists() and records.read_run(out).state() != "incomplete":
                trainings = []
            if trainings:
                say(f"horovod-study record: {out} was left by a recorder that was killed, and is closed")
                run = CommandRun(out, meeting, asked["options"], asked["about"], over=True)
                for number, training in enumerate(trainings[:MAX_TRAININGS], 1):
                    training.ended = "without its recorder, which was killed"
                    run.write(training, number, failed="")
        shutil.rmtree(meeting, ignore_errors=True)


_KEPT = 1_000_000  # so many of the last bytes are kept


class Output:
    """The standard output and error of a command, as `subprocess.Popen` takes them: passed on as they come, and kept.

    A file that it writes to directly stays its own; a pipe and a terminal get another one of their kind between them,
    so that the command finds what it would find without a recorder.
    """

    def __init__(self, given: ExitStack) -> None:
        """`given` closes what the command is given, once it has it."""
        self._kept: dict[int, bytearray] = {}  # descriptor that is read -> what came last
        self._to: dict[int, int] = {}  # descriptor that is read -> that of ours
        self._files: dict[Path, int] = {}  # what the command writes to by itself, and where it begins
        sys.stdout.flush()
        self.stdout = self._between(1, given)
        same = os.path.sameopenfile(1, 2) and self.stdout is not None
        self.stderr = self.stdout if same else self._between(2, given)

    def _between(self, own: int, given: ExitStack) -> int | None:
        """Return the descriptor that the command is given for one of ours, None for ours."""
        kind = os.fstat(own).st_mode
        if os.isatty(own):
            read, write = pty.openpty()
            with suppress(OSError, termios.error):
                fcntl.ioctl(write, termios.TIOCSWINSZ, fcntl.ioctl(own, termios.TIOCGWINSZ, b"\0" * 8))
                tty.setraw(write)  # the terminal itself does what is to be done with line ends
        elif stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            read, write = os.pipe()
        else:
            if stat.S_ISREG(kind):
                self._files[Path(f"/proc/{os.getpid()}/fd/{own}").resolve()] = os.fstat(own).st_size
            return None
        given.callback(os.close, write)
        self._kept[read], self._to[read] = bytearray(), own
        return write

    def follow(self, process: "subprocess.Popen[bytes]", look: Callable[[], bool]) -> None:
        """Pass on what the command prints until it has ended; `look` is called meanwhile until it returns False."""
        ended, looking = os.pidfd_open(process.pid), True
        try:
            while ended not in self._pass_on(ended, within_s=_LOOK_S if looking else None):
                looking = looking and look()
        finally:
            os.close(ended)
        while self._to and self._pass_on(within_s=0.0):
            pass

    def _pass_on(self, *also: int, within_s: float | None = None) -> list[int]:
        """Wait for what the command prints, and pass it on; return what can be read, of `also` too."""
        ready = select.select([*also, *self._to], [], [], within_s)[0]
        for read in [each for each in ready if each in self._to]:
            data = b""
            with suppress(OSError):  # how a terminal ends
                data = os.read(read, 65536)
            kept = self._kept[read]
            kept += data
            if len(kept) > 2 * _KEPT:
                del kept[:-_KEPT]
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(self._to[read], view) :]
            except OSError:  # nobody reads it any more: the command is to learn that, too
                data = b""
            if not data:
                os.close(read)
                del self._to[read]
        return ready

    def text(self) -> str:
        """Return the last of what the command has printed."""
        parts = [bytes(each) for each in self._kept.values()]
        for path, begin in self._files.items():
            with suppress(OSError), path.open("rb") as stream:
                stream.seek(max(begin, path.stat().st_size - _KEPT))
                parts.append(stream.read())
        return b"\n".join(parts).decode(errors="replace")

    def close(self) -> None:
        """Read no more; where processes that the command has left print on, a process of its own passes that on."""
        if self._to and os.fork() == 0:
            with suppress(BaseException):
                os.setsid()
                while self._to:
                    self._pass_on()
            os._exit(0)
        for each in self._to:
            os.close(each)
        self._to = {}


def _run(command: Sequence[str], environ: Mapping[str, str], run: CommandRun) -> int:
    with ExitStack() as given:
        output = Output(given)
        run.printed = output.text
        try:
            process = subprocess.Popen(list(command), env=dict(environ), stdout=output.stdout, stderr=output.stderr)
        except OSError as error:
            words = "" if "/" in command[0] else "; is it on PATH?"
            if " " in command[0]:
                words = "; give the words of the command without quotes around them"
            raise StudyError(f"{command[0]}: cannot be started ({error.strerror}){words}") from None
    run.started(process.pid)

    def pass_on(number: int, _: FrameType | None) -> None:
        # Ctrl-C reaches the command from the terminal: it ends, then this program.
        mine = any(os.isatty(each) and os.tcgetpgrp(each) == os.getpgrp() for each in (0, 1, 2))
        if number != signal.SIGINT or not mine:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED}
    try:
        output.follow(process, run.look)
        code = process.wait()
    finally:
        output.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    run.ended()
    return code if code >= 0 else 128 - code


def _close(run: CommandRun, code: int, *, cell: bool) -> None:
    """Write what was seen, and say what is to be known of it."""
    seen, processes = processes_in(run.meeting)
    if not run.meeting.is_dir():
        raise StudyError(f"{run.meeting.parent}: what was noted there was removed while the command ran")
    trainings = worth_keeping(trainings_of(processes), run.options["warmup_steps"])
    refused = next((f"no run was recorded: {each.stopped}" for each in processes if each.stopped and not each.seen), "")
    if "own recorder" in seen:
        refused = "the script records itself; start it without `horovod-study record --`"
    if refused:
        say(f"horovod-study record: {refused}")
        return
    if not trainings:
        why = NO_STEPS if "torch" in seen else "no Python of it imports torch" if "python" in seen else _UNSEEN
        ended = "" if cell else _BY_SIGNAL.get(code, "")
        run.write_command(0 if ended else code, why, ended)
        return
    kept = trainings[: 1 if cell else MAX_TRAININGS]
    if cell and len(trainings) > 1:
        say(f"note: the longest of {len(trainings)} trainings of this command is measured, and the others are not")
    elif len(trainings) > len(kept) or any(each.more for each in processes):
        say(f"horovod-study record: this command has trained more than {len(kept)} times; the longest are recorded")
    for number, training in enumerate(kept, 1):
        outside = code in _BY_SIGNAL and not cell
        if outside and not all(each.ended for each in training.ranks):
            training.ended = f"by {_BY_SIGNAL[code]}"
        run.write(training, number, failed=f"{ENDED_WITH} {code} after its training" if code and not outside else "")


_UNSEEN = (
    "no Python of it has loaded the recorder; one before 3.9 is not recorded, python -I, -E and -S hide it, and so "
    "does what empties the environment or sets another PYTHONPATH (env -i, sudo), or a launcher that keeps it back "
    f"(mpirun -x PYTHONPATH -x {VARIABLE})"
)


def before_the_first_step(out: Path) -> str:
    """Return how far a command has come whose run `out` has no record yet; "" where none is being recorded there."""
    meetings = _meetings(out)
    if not meetings or (out / records.MANIFEST).exists():
        return ""
    seen, _ = processes_in(meetings[-1])
    if not (count := seen.count("torch")):
        return "no steps seen yet: no process of the command has imported torch"
    return (
        f"no steps seen yet: {count} process{'es' * (count > 1)} of the command imported torch, and the record "
        f"begins with the second step. If this stays so: {NO_STEPS}"
    )


def noted_steps(out: Path) -> dict[int, Mapping[str, Any]]:
    """Return the steps that the ranks of a run that goes on have noted so far: rank -> columns as those of its rows."""
    trainings = trainings_of(processes_in(_meetings(out)[-1])[1]) if _meetings(out) else []
    if not trainings or not trainings[0].complete:
        return {}
    noted = [steps_of(each.read(), waits_seen=each.waits_seen) for each in trainings[0].ranks]
    return {rank: {"sync_s": np.full(len(own), np.nan), **own.columns} for rank, own in enumerate(noted)}


def _meetings(out: Path) -> list[Path]:
    return sorted(out.absolute().parent.glob(f".{glob.escape(out.name)}.*{PART}"))
