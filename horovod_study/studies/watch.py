"""`horovod-study status`: a study, or one training, as it gets on, by whomever and wherever it is run.

It is read only: what `status` reads, and the rows that the ranks have written so far. Nothing is asked of the runs, and
the reading takes a small share of one core: the cores may be those that are being measured.
"""

import glob
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from horovod_study import records
from horovod_study.analysis.stats import finite_or_none
from horovod_study.cluster.jobs import JOBS
from horovod_study.errors import RecordError, StudyError
from horovod_study.files import PART
from horovod_study.measure.clock import now, sleep
from horovod_study.recording.command import before_the_first_step, noted_steps
from horovod_study.studies import lease
from horovod_study.studies.ledger import BY_ITSELF, Entry, past_durations, read_ledger, server_time
from horovod_study.studies.plan import Estimate, TimeLeft, together
from horovod_study.studies.sweep import StudyCells
from horovod_study.text.progress import duration, show
from horovod_study.text.tables import table_of, to_lines

TROUBLE = ("failed", "timed out", "pre-empted", "cancelled", "stopped", "incomplete")
RECENT_STEPS = 200  # So many steps, the last that all ranks have, are what is shown as now


class View(NamedTuple):
    """What one look at a study or a run shows."""

    lines: Sequence[str]
    news: Sequence[str]  # what a log is told, each when it is new
    over: bool  # nothing of it runs, or is going to
    every_s: float = 2.0  # it is worth another look after so long
    document: Mapping[str, Any] = MappingProxyType({})  # what `--json` prints


def how_far(record: records.RunRecord, at: tuple[int, int, float] | None) -> tuple[float | None, str]:
    """Return how far a run is whose last row is `at` (`records.last_step`): the share of its budget, and words."""
    if at is None:
        return (None, "no steps seen") if records.is_command(record) else (0.0, "starting")
    (steps, epoch, seconds), asked = at, record.requested
    warmup = asked.get("warmup_steps") or 0
    if total := asked.get("steps"):
        return min(1.0, steps / (total + warmup)), f"{steps:,} of {total + warmup:,} steps"
    if total := asked.get("seconds"):
        return min(1.0, seconds / total), f"{duration(min(seconds, total))} of {duration(total)}"
    if total := asked.get("epochs"):
        samples, batch = record.effective.get("train_samples"), record.effective.get("global_batch")
        done = max(0, steps - warmup) * batch / samples if samples and batch else float(epoch)
        return min(1.0, done / total), f"epoch {min(int(done) + 1, math.ceil(total))} of {total:g}"
    return None, f"{steps:,} steps"


def study_view(sweep: StudyCells) -> View:
    """Return what there is to see of a study now: its cells, how far the running ones are, and the time left."""
    ledger = read_ledger(sweep)
    estimate, summary = Estimate(past_durations(ledger.directory)), ledger.summary()
    state = {each: [entry for entry in ledger.entries if entry.state == each] for each in ledger.counts()}
    going = {entry.key: _going(ledger.directory, entry, estimate) for entry in state["running"]}
    # A live process that holds anything of the study beside its cells goes on to the next one.
    claims = ledger.directory / lease.CLAIMS
    names = lease.generations(claims).keys() - {entry.key for entry in ledger.entries}
    held = [claim for name in names if (claim := lease.latest(claims, name)) is not None and claim.released is None]
    at_work = any(not lease.is_stale(each, present=server_time(ledger.directory)) for each in held)
    ahead = state["queued"] + [entry for each in BY_ITSELF if at_work for entry in state[each]]
    parts = [*(rest for _, rest in going.values()), *(estimate.of(entry.cell) for entry in ahead)]
    busy = bool(parts or at_work)
    left = str(together(parts, lanes=max(1, len(going)))) if busy else "nothing runs and nothing is queued"
    ended = ledger.count("done", "failed", "timed out", "cancelled")
    told = f"{ended} of {'at most ' * bool(ledger.reached)}{len(ledger.entries)} ended; {left}"
    lines = [*ledger.lines({key: text for key, (text, _) in going.items()}), "", summary, told]
    wrong = [f"{each.state}: {each.name}: {each.reason}" for each in ledger.entries if each.state in TROUBLE]
    news = [*wrong, summary if busy else f"{summary}; {left}"]
    every_s = 15.0 if (sweep.directory / JOBS).is_dir() else 2.0  # sites do not like their scheduler to be asked often
    return View([*lines, f"runs: {ledger.directory}"], news, not busy, every_s, ledger.document())


def _going(directory: Path, entry: Entry, estimate: Estimate) -> tuple[str, TimeLeft]:
    """Return how far a running cell is, and how long it goes on."""
    record, at, share, text = None, None, None, ""
    with suppress(RecordError):  # moved away since
        record = records.read_run(directory / entry.key) if entry.recorded else None
    if record is not None and record.status == "running":  # else it is that of the attempt before
        at = _last_step(directory / entry.key)
        share, text = how_far(record, at)
    elif entry.cell.config.workload.small is None:  # its record begins with its second step
        text = "no steps seen yet"
    text = text if share is None else f"{100 * share:.0f} %, {text}"
    if at is not None and share is not None and share > 0.05:
        return text, TimeLeft(seconds=at[2] * (1 / share - 1), guess=False)
    return text, estimate.left([entry.cell], running_s=at[2] if at else 0.0)


def run_now(directory: Path) -> dict[str, Any]:
    """Return what a run did in its recent steps, as `status RUN --json` prints it: seconds per step, None is unknown.

    Any run directory will do: of the package's trainer, of the recorder in a script, of `record -- COMMAND`. Raises
    RecordError where there is none, and StudyError with how far a command is that has made no step yet.
    """
    if not (directory / records.MANIFEST).exists() and (waiting := before_the_first_step(directory)):
        raise StudyError(f"{directory}: {waiting}")
    record, at = records.read_run(directory), _last_step(directory)
    written = [directory, *directory.absolute().parent.glob(f".{glob.escape(directory.name)}.*{PART}")]
    found: dict[str, Any] = {"status": record.status, "silent_s": min(map(records.silent_s, written))}
    found |= {"steps": at[0] if at else 0, "ranks": []}
    found |= dict.fromkeys(("steps_per_s", "samples_per_s", "wait_share", "slowest_rank"))
    ranks = records.step_ranks(directory)
    rows = {rank: records.read_steps(directory, rank) for rank in ranks} or noted_steps(directory)
    common = min((len(each["step_s"]) for each in rows.values()), default=0)
    if not common or len(rows) != record.effective.get("workers"):
        return found
    first = max(0, common - RECENT_STEPS)
    step, sync, begin, samples = (
        np.array([np.asarray(each[name])[first:common] for each in rows.values()], dtype=float)  # ranks x steps
        for name in ("step_s", "sync_s", "begin_s", "samples")
    )
    seconds = float(begin[0, -1] + step[0, -1] - begin[0, 0]) or math.nan
    own = np.median(step - sync, axis=1)  # all but the wait for other ranks
    late = [own[k] - np.median(np.delete(own, k)) if len(own) > 1 else math.nan for k in range(len(own))]
    for k, (rank, host) in enumerate(records.hosts_of(record, rows).items()):
        times = {"step_s": step[k].mean(), "wait_s": sync[k].mean(), "late_s": late[k]}
        found["ranks"].append({"rank": rank, "host": host} | {n: finite_or_none(each) for n, each in times.items()})
    rates = {"steps_per_s": (common - first) / seconds, "samples_per_s": samples.sum() / seconds}
    found |= {name: finite_or_none(each) for name, each in {**rates, "wait_share": sync.sum() / step.sum()}.items()}
    return found | {"slowest_rank": list(rows)[int(np.nanargmax(late))] if np.isfinite(late).any() else None}


def _last_step(directory: Path) -> tuple[int, int, float] | None:
    """Return what `records.last_step` does, also of a command whose steps are noted and no rows yet."""
    at = records.last_step(directory)
    if at is None and (rows := noted_steps(directory).get(0)) and (steps := len(rows["step_s"])):
        at = steps, int(rows["epoch"][-1]), float(rows["begin_s"][-1] + rows["step_s"][-1] - rows["begin_s"][0])
    return at


def run_view(directory: Path) -> View:
    """Return what there is to see of a run now."""
    seen, record = run_now(directory), records.read_run(directory)
    ranks = sorted(seen["ranks"], key=lambda each: -(each["late_s"] or 0.0))
    share, text = how_far(record, _last_step(directory))
    facts = [text if share is None else f"{text}, {100 * share:.0f} %"]
    if seen["steps_per_s"] is not None:
        rate = "" if seen["samples_per_s"] is None else f", {seen['samples_per_s']:,.0f} samples/s"
        waits = "unknown" if seen["wait_share"] is None else f"{100 * seen['wait_share']:.1f} % of the ranks' time"
        facts += [f"speed {seen['steps_per_s']:,.1f} steps/s{rate}", f"waiting for gradients {waits}"]
    rows = []
    for each in ranks:
        times = (each[name] for name in ("step_s", "wait_s", "late_s"))
        milliseconds = ("" if time is None else f"{round(1e3 * time, 2) + 0.0:.2f}" for time in times)  # no -0.00
        rows.append((f"{each['rank']}", *milliseconds, each["host"]))
    if seen["slowest_rank"] is not None:
        facts += [f"slowest rank {rows[0][0]} on {rows[0][4]}, {rows[0][3]} ms over the others"]
    heads = ("rank", "step ms", "wait ms", "over others ms", "host")
    table = ["", *to_lines(table_of(heads, rows, texts=(4,)))] if len(rows) > 1 else []
    silent = seen["status"] == "running" and seen["silent_s"] > 60.0
    head = f"{directory.name}: {seen['status']}" + f", nothing was written for {seen['silent_s']:.0f} s" * silent
    return View([head, *facts, *table], ["; ".join([head, *facts])], seen["status"] != "running", document=seen)


def watch(look: Callable[[], View], console: Console) -> int:
    """Show what `look` finds until it is over or Ctrl-C; return the exit code, 0.

    A terminal shows the lines, which are cut and not wrapped. Elsewhere a line is printed when something changes.
    """
    terminal, told = console.is_terminal and not console.is_dumb_terminal, list[str]()
    live = Live(console=console, auto_refresh=False, redirect_stderr=False) if terminal else None
    with suppress(KeyboardInterrupt), live or nullcontext():  # whoever watches leaves; what is watched goes on
        while True:
            began, view = now(), look()
            if live:
                live.update(Text("\n".join(view.lines), no_wrap=True, overflow="ellipsis"), refresh=True)
            for line in [] if live else [each for each in view.news if each not in told]:
                show(console, line)
            told = [*view.news]
            if view.over:
                break
            sleep(max(view.every_s, 20 * (now() - began)))  # reading takes 5 % of one core at most
    return 0
