"""`horovod-study status --watch`: a study that is being run, by whomever and wherever, as it gets on.

It reads what `status` reads, and of running cells how far their step rows go. Nothing is asked of the runs themselves,
and the reading takes a small share of one core: the cores may be those that are being measured.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.text import Text

from horovod_study import lease
from horovod_study.cluster.jobs import JOBS, JobBook
from horovod_study.config import Cell
from horovod_study.errors import RecordError
from horovod_study.progress import duration
from horovod_study.records import COMMAND, RunRecord, last_step, read_run
from horovod_study.studies.estimate import Estimate, TimeLeft
from horovod_study.studies.ledger import BY_ITSELF, Entry, Ledger, past_durations, read_ledger
from horovod_study.studies.progress import EVERY_S, live_on, look_again, say
from horovod_study.studies.study_file import StudyConfig
from horovod_study.text.words import plural

# The worst first.
_TROUBLE = ("failed", "timed out", "pre-empted", "cancelled", "stopped", "incomplete")
_HEADS = {"running": "cyan", "queued": "blue", "did not end well": "red"}
_LEAST_ROWS = 3  # of each list, on the smallest terminal


@dataclass(frozen=True, kw_only=True, slots=True)
class Getting:
    """How far a running cell is: the share of its budget, None where there is none, in words, and for how long."""

    share: float | None
    text: str
    running_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _StatusView:
    """What is shown: the ledger, running cells and how far they are, and the time that is left."""

    ledger: Ledger
    running: tuple[tuple[Entry, Getting], ...]
    left: TimeLeft | None  # None: nothing is ahead, or nobody is at it
    busy: bool  # somebody runs the study, or will when the scheduler lets him


def getting_on(record: RunRecord, at: tuple[int, int, float] | None) -> Getting:
    """Return how far a run is whose last row is `at` (`records.last_step`)."""
    if at is None:
        seen = record.effective.get("measured") != COMMAND
        return Getting(share=0.0 if seen else None, text="starting" if seen else "no steps seen")
    steps, epoch, seconds = at
    asked = record.requested
    warmup = asked.get("warmup_steps") or 0
    if total := asked.get("steps"):
        made, text = steps / (total + warmup), f"{steps:,} of {total + warmup:,} steps"
    elif total := asked.get("seconds"):
        made, text = seconds / total, f"{duration(min(seconds, total))} of {duration(total)}"
    elif total := asked.get("epochs"):
        samples, batch = record.effective.get("train_samples"), record.effective.get("global_batch")
        done = max(0, steps - warmup) * batch / samples if samples and batch else float(epoch)
        made, text = done / total, f"epoch {min(int(done) + 1, math.ceil(total))} of {total:g}"
    else:
        return Getting(share=None, text=f"{steps:,} steps")
    return Getting(share=min(1.0, made), text=text)


def _running_s(record: RunRecord) -> float | None:
    """Return for how long the present attempt has been running, by two hosts' clocks; None where they disagree."""
    try:
        began = datetime.fromisoformat(str(record.attempts[-1]["started"]))
        seconds = (datetime.now(UTC) - began).total_seconds()
    except (KeyError, ValueError, TypeError):
        return None
    return seconds if seconds >= 0 else None


def _getting(directory: Path, entry: Entry) -> Getting:
    try:
        record = read_run(directory / entry.key) if entry.recorded else None
    except RecordError:  # moved away since
        record = None
    if record is None or record.status != "running":  # what is there is that of the attempt before
        foreign = entry.cell.config.workload.small is None  # its record begins with its second step
        return Getting(share=0.0, text="no steps seen yet" if foreign else "starting")
    return replace(getting_on(record, last_step(directory / entry.key)), running_s=_running_s(record))


def look(study: StudyConfig, runs_dir: Path, jobs: JobBook | None) -> _StatusView:
    """Read the state of the study now."""
    ledger = read_ledger(study, runs_dir, jobs=jobs)
    going = [(entry, _getting(ledger.directory, entry)) for entry in ledger.entries if entry.state == "running"]
    at_work = _somebody_is_at_work(ledger)
    waiting = [
        entry.cell
        for entry in ledger.entries
        if entry.state == "queued" or (at_work and entry.state in BY_ITSELF)  # a runner takes these one by one
    ]
    busy = bool(going or at_work or ledger.count("queued"))
    left = _left(Estimate(past_durations(ledger.directory)), going, waiting) if going or waiting else None
    return _StatusView(ledger=ledger, running=tuple(going), left=left, busy=busy)


def _left(estimate: Estimate, going: Sequence[tuple[Entry, Getting]], waiting: Sequence[Cell]) -> TimeLeft:
    """Estimate the time left if as many cells go on at a time as do now."""
    total_s, longest_s, guess = 0.0, 0.0, False
    for entry, getting in going:
        whole = estimate.of(entry.cell)
        if getting.running_s is not None and getting.share is not None and 0.05 < getting.share < 1.0:
            one_s = getting.running_s * (1 / getting.share - 1)
        elif whole.seconds is None:
            return whole
        else:
            one_s, guess = max(0.0, whole.seconds - (getting.running_s or 0.0)), guess or whole.guess
        total_s, longest_s = total_s + one_s, max(longest_s, one_s)
    ahead = estimate.left(waiting) if waiting else TimeLeft(seconds=0.0, guess=False)
    if ahead.seconds is None:
        return ahead
    seconds = max(longest_s, (total_s + ahead.seconds) / max(1, len(going)))
    return TimeLeft(seconds=seconds, guess=guess or ahead.guess)


def _somebody_is_at_work(ledger: Ledger) -> bool:
    """Return whether a live process holds anything of the study beside its cells: it will go on to the next one."""
    folder = ledger.directory / lease.CLAIMS
    cells = {entry.key for entry in ledger.entries}
    for name, generation in lease.generations(folder).items():
        claim = None if name in cells else lease.read_claim(folder, name, generation)
        if claim is not None and claim.released is None:
            try:
                present = lease.server_time(folder)
            except OSError:  # a reader that may not write
                present = claim.touched
            if not lease.is_stale(claim, present=present):
                return True
    return False


def page(view: _StatusView, *, height: int) -> RenderableType:
    """Return what a terminal of `height` lines shows; a line that is too long for it is cut at its end."""
    ledger, found = view.ledger, view.ledger.counts()
    ended = sum(found[state] for state in ("done", "failed", "timed out", "cancelled"))
    whole = len(ledger.entries)
    bar = ProgressBar(total=max(1, whole), completed=ended, width=20)
    queues = Counter(entry.reason for entry in ledger.entries if entry.state == "queued")
    sections = {
        "running": [f"{_percent(each)}{entry.name}: {_facts(entry, each)}" for entry, each in view.running],
        "queued": [f"{plural(count, 'cell')}: {reason}" for reason, count in queues.most_common()],
        "did not end well": [
            f"{entry.state}: {entry.name}: {entry.reason}"
            for state in _TROUBLE
            for entry in ledger.entries
            if entry.state == state
        ],
    }
    parts: list[RenderableType] = [
        Text(f"study {ledger.study}", style="bold"),
        Text("   ".join(f"{count} {state}" for state, count in found.items() if count)),
        Columns([bar, _line(f"{ended} of {whole} ended{'' if view.left is None else f', {view.left}'}")]),
    ]
    shown = {head: texts for head, texts in sections.items() if texts}
    # Beside the lists: the lines above, and for each an empty line, a headline, "and 7 more"; and the cursor's line.
    room = height - 6 - 3 * len(shown)
    for place, (head, texts) in enumerate(shown.items()):
        rows = max(_LEAST_ROWS, room - _LEAST_ROWS * (len(shown) - place - 1))
        room -= min(rows, len(texts))
        parts += [Text(), Text(head, style=f"bold {_HEADS[head]}"), *(_line(f"  {text}") for text in texts[:rows])]
        parts += [Text(f"  and {len(texts) - rows} more", style="dim")] if len(texts) > rows else []
    return Group(*parts)


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _percent(getting: Getting) -> str:
    return "" if getting.share is None else f"{100 * getting.share:3.0f} %  "


def _facts(entry: Entry, getting: Getting) -> str:
    return ", ".join(filter(None, (getting.text, entry.host, f"job {entry.job}" if entry.job else "")))


def lines(view: _StatusView, before: _StatusView | None) -> list[str]:
    """Return what a log shows: how many cells are in each state when that has changed, and what went wrong since."""
    ledger = view.ledger
    told = {entry.key: entry.state for entry in before.ledger.entries} if before else {}
    found = [
        f"{entry.state}: {entry.name}: {entry.reason}"
        for entry in ledger.entries
        if entry.state in _TROUBLE and told.get(entry.key) != entry.state
    ]
    if before is None or before.ledger.counts() != ledger.counts():
        found.append(ledger.summary() + (f"; {view.left}" if view.left is not None else ""))
    return found


def watch(study: StudyConfig, runs_dir: Path, console: Console | None = None, *, every_s: float = EVERY_S) -> int:
    """Show the study until nothing of it runs or waits in a queue, or until Ctrl-C; return the exit code, 0.

    On a terminal the page is redrawn every `every_s` seconds, and less often where reading takes long. Elsewhere a line
    is printed when something has changed.
    """
    console = console or Console()
    live, directory = live_on(console), runs_dir / study.name
    before: _StatusView | None = None
    book: JobBook | None = None
    asked = -math.inf

    def show(began: float) -> bool:
        nonlocal before, book, asked
        if began - asked >= 15.0:  # sites do not like their scheduler to be asked all the time
            book = JobBook(directory) if (directory / JOBS).is_dir() else None  # else none was ever submitted
            asked = began
        view = look(study, runs_dir, book)
        if live:
            live.update(page(view, height=console.height), refresh=True)
        else:
            for each in lines(view, before):
                say(console, each)
        before = view
        return not view.busy

    look_again(live, show, every_s=every_s)
    if before is not None and not before.busy:
        say(console, before.ledger.summary() if live else "nothing runs and nothing is queued")
    return 0
