"""`horovod-study status --watch`: a study that is being run, by whomever and wherever, as it gets on.

It reads what `status` reads, and of running cells how far their step rows go. Nothing is asked of the runs themselves,
and the reading takes a small share of one core: the cores may be those that are being measured.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
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

_COLOURS = {
    "done": "green",
    "running": "cyan",
    "queued": "blue",
    **dict.fromkeys(("failed", "timed out"), "red"),
    **dict.fromkeys(("pre-empted", "cancelled", "stopped", "incomplete"), "yellow"),
}
# The worst first.
_TROUBLE = ("failed", "timed out", "pre-empted", "cancelled", "stopped", "incomplete")
_LEAST_ROWS = 3  # of running cells, and of those in trouble, on the smallest terminal


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
    if asked.get("steps"):
        total = asked["steps"] + warmup
        return Getting(share=min(1.0, steps / total), text=f"{steps:,} of {total:,} steps")
    if asked.get("seconds"):
        total_s = asked["seconds"]
        text = f"{duration(min(seconds, total_s))} of {duration(total_s)}"
        return Getting(share=min(1.0, seconds / total_s), text=text)
    if asked.get("epochs"):
        samples, batch = record.effective.get("train_samples"), record.effective.get("global_batch")
        done = max(0, steps - warmup) * batch / samples if samples and batch else float(epoch)
        text = f"epoch {min(int(done) + 1, math.ceil(asked['epochs']))} of {asked['epochs']:g}"
        return Getting(share=min(1.0, done / asked["epochs"]), text=text)
    return Getting(share=None, text=f"{steps:,} steps")


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


def page(view: _StatusView, *, width: int, height: int) -> RenderableType:
    """Return what a terminal of `width` columns and `height` lines shows."""
    ledger, narrow = view.ledger, width < 100
    found = ledger.counts()
    counts = _counts(found, width)
    ended = sum(found[state] for state in ("done", "failed", "timed out", "cancelled"))
    bar_width = 20 if narrow else 30
    line = Table.grid(padding=(0, 2))
    line.add_column(width=bar_width)
    line.add_column(no_wrap=True, overflow="ellipsis")
    line.add_column(no_wrap=True, overflow="ellipsis")
    line.add_row(
        ProgressBar(total=max(1, len(ledger.entries)), completed=ended, width=bar_width),
        Text(f"{ended} of {len(ledger.entries)} ended"),
        Text("" if view.left is None else str(view.left), style="bold"),
    )
    parts: list[RenderableType] = [Text(f"study {ledger.study}", style="bold"), *counts, line]
    trouble = [entry for state in _TROUBLE for entry in ledger.entries if entry.state == state]
    queues = Counter(entry.reason for entry in ledger.entries if entry.state == "queued")
    # Beside the lists: the lines above, an empty line, a headline and "and 7 more" for each, and the cursor's own line.
    room = max(2 * _LEAST_ROWS, height - 3 - len(counts) - 3 * sum(map(bool, (view.running, trouble, queues))))
    queue_rows, each = min(len(queues), _LEAST_ROWS), 2 if narrow else 1
    rows = max(_LEAST_ROWS, min(len(view.running), room - queue_rows - each * min(len(trouble), _LEAST_ROWS)))
    if view.running:
        parts += [Text(), Text("running", style="bold cyan"), _running(view.running[:rows], narrow)]
        parts += _more(len(view.running) - rows)
    if queues:
        parts += [Text(), Text("queued", style="bold blue")]
        for reason, count in queues.most_common(queue_rows):
            parts.append(Text(f"  {plural(count, 'cell')}: {reason}", no_wrap=True, overflow="ellipsis"))
        parts += _more(len(queues) - queue_rows, "reasons")
    if trouble:
        rows = max(_LEAST_ROWS, (room - queue_rows - min(len(view.running), rows)) // each)
        parts += [Text(), Text("did not end well", style="bold red")]
        parts += _troubled_narrowly(trouble[:rows]) if narrow else [_troubled(trouble[:rows])]
        parts += _more(len(trouble) - rows)
    return Group(*parts)


def _counts(found: Mapping[str, int], width: int) -> list[Text]:
    """Return "12 done   3 running   ...", broken between states only."""
    broken = [Text()]
    for state, count in found.items():
        text = f"{count} {state}"
        if count and len(broken[-1]) + 3 + len(text) > width:
            broken.append(Text())
        if count:
            broken[-1].append("   " if broken[-1] else "").append(text, style=_COLOURS.get(state, "default"))
    return broken


def _more(count: int, what: str = "") -> list[RenderableType]:
    return [Text(f"  and {count} more{f' {what}' if what else ''}", style="dim")] if count > 0 else []


def _running(cells: Sequence[tuple[Entry, Getting]], narrow: bool) -> Table:
    """Return a line for each: the cell, how far it is, and where it runs; names are the last to be cut."""
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(width=8 if narrow else 12)
    table.add_column(no_wrap=True, justify="right" if narrow else "left")
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for entry, getting in cells:
        bar: RenderableType = Text("")
        if getting.share is not None:
            bar = ProgressBar(total=1.0, completed=getting.share, width=8 if narrow else 12)
        text = f"{100 * getting.share:3.0f} %" if narrow and getting.share is not None else getting.text
        where = ", ".join(part for part in (entry.host, f"job {entry.job}" if entry.job else "") if part)
        table.add_row(Text(f"  {entry.name}"), bar, Text(text), Text(where, style="dim"))
    return table


def _troubled_narrowly(entries: Sequence[Entry]) -> list[RenderableType]:
    """Return two lines for each: state and cell, and below them the reason."""
    found: list[RenderableType] = []
    for entry in entries:
        head = Text(f"  {entry.state:<10}", style=_COLOURS[entry.state], no_wrap=True, overflow="ellipsis")
        found.append(head.append(f"  {entry.name}", style="default"))
        found.append(Text(f"      {entry.reason}", style="dim", no_wrap=True, overflow="ellipsis"))
    return found


def _troubled(entries: Sequence[Entry]) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for entry in entries:
        table.add_row(
            Text(f"  {entry.state}", style=_COLOURS[entry.state]), Text(entry.name), Text(entry.reason, style="dim")
        )
    return table


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
            live.update(page(view, width=console.width, height=console.height), refresh=True)
        else:
            for each in lines(view, before):
                say(console, each)
        before = view
        return not view.busy

    look_again(live, show, every_s=every_s)
    if before is not None and not before.busy:
        say(console, before.ledger.summary() if live else "nothing runs and nothing is queued")
    return 0
