"""`horovod-study status RUN --watch`: one training while it goes on, by the rows that its ranks have written so far.

Any run directory will do: of the package's trainer, of the recorder in a script, of `record -- COMMAND`. It is read
only, up to the last complete batch of rows, and a small share of one core is used for it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from horovod_study.errors import StudyError
from horovod_study.recording.command import before_the_first_step, noted_steps
from horovod_study.records import MANIFEST, RunRecord, hosts_of, last_step, read_run, read_steps, silent_s, step_ranks
from horovod_study.studies.progress import live_on, look_again, say
from horovod_study.studies.watch import Getting, getting_on

RECENT_STEPS = 200
"""So many steps, the last that all ranks have, are what is shown as now."""
SILENT_S = 60.0
"""A run of which nothing was heard for so long is shown with that."""
_MOST_RANKS = 16  # rows on a screen: the slowest


@dataclass(frozen=True, kw_only=True, slots=True)
class _RankNow:
    """One rank over the recent steps, seconds per step; None where its record does not know it."""

    rank: int
    host: str
    step_s: float
    wait_s: float | None  # for other ranks
    late_s: float | None  # median of its own work (all but the wait) over that of the other ranks' median


@dataclass(frozen=True, kw_only=True, slots=True)
class _RunNow:
    """A run over its recent steps."""

    record: RunRecord
    silent_s: float  # since anything was written
    getting: Getting
    steps: int  # since the first one, by rank 0
    steps_per_s: float | None = None
    samples_per_s: float | None = None  # of all ranks
    wait_share: float | None = None  # of the ranks' time
    ranks: tuple[_RankNow, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return what is known as plain values."""
        slowest = self.slowest
        return {
            "status": self.record.status,
            "silent_s": self.silent_s,
            "steps": self.steps,
            "steps_per_s": self.steps_per_s,
            "samples_per_s": self.samples_per_s,
            "wait_share": self.wait_share,
            "slowest_rank": None if slowest is None else slowest.rank,
            "ranks": [asdict(each) for each in self.ranks],
        }

    @property
    def slowest(self) -> _RankNow | None:
        """The rank that the others wait for, None where nobody knows of waits, or there is one rank."""
        known = [each for each in self.ranks if each.late_s is not None]
        return max(known, key=lambda each: each.late_s or 0.0, default=None) if len(known) > 1 else None


def look(directory: Path) -> _RunNow:
    """Read the state of a run now; RecordError where there is none."""
    if not (directory / MANIFEST).exists() and (waiting := before_the_first_step(directory)):
        raise StudyError(f"{directory}: {waiting}")
    record = read_run(directory)
    at = last_step(directory)
    known = _RunNow(
        record=record, silent_s=silent_s(directory), getting=getting_on(record, at), steps=at[0] if at else 0
    )
    rows = {rank: read_steps(directory, rank) for rank in step_ranks(directory)} or noted_steps(directory)
    workers = record.effective.get("workers")
    if not rows or len(rows) != workers or not (common := min(map(len, rows.values()))):
        return known
    first = max(0, common - RECENT_STEPS)

    def recent(name: str) -> np.ndarray:
        """Return a column as ranks x steps."""
        return np.array(
            [np.asarray(each[name])[first:common] for each in rows.values()],
            dtype=float,
        )

    step, sync, begin = recent("step_s"), recent("sync_s"), recent("begin_s")
    seconds = float(begin[0, -1] + step[0, -1] - begin[0, 0])
    own = np.median(step - sync, axis=1)
    late = [own[place] - np.median(np.delete(own, place)) if len(own) > 1 else np.nan for place in range(len(own))]
    hosts = hosts_of(record, rows)
    return replace(
        known,
        steps_per_s=_known((common - first) / seconds if seconds > 0 else np.nan),
        samples_per_s=_known(recent("samples").sum() / seconds if seconds > 0 else np.nan),
        wait_share=_known(sync.sum() / step.sum()),
        ranks=tuple(
            _RankNow(
                rank=rank,
                host=hosts[rank],
                step_s=float(step[place].mean()),
                wait_s=_known(sync[place].mean()),
                late_s=_known(late[place]),
            )
            for place, rank in enumerate(rows)
        ),
    )


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def page(view: _RunNow, directory: Path, *, width: int) -> RenderableType:
    """Return what a terminal of `width` columns shows."""
    record, getting = view.record, view.getting
    head = Text(f"{directory.name}  ", style="bold")
    head.append(record.status, style="cyan" if record.status == "running" else "yellow")
    if record.status == "running" and view.silent_s > SILENT_S:
        head.append(f"  nothing was written for {view.silent_s:.0f} s", style="red")
    facts = Table.grid(padding=(0, 2))
    if getting.share is not None:
        facts.add_row("progress", ProgressBar(total=1.0, completed=getting.share, width=min(40, width // 2)))
    for name, text in summary(view).items():
        facts.add_row(Text(name, style="dim"), Text(text))
    parts: list[RenderableType] = [head, facts]
    if len(view.ranks) > 1:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        for column in ("rank", "step ms", "wait ms", "own work over\nthe others' ms"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("host", no_wrap=True, overflow="ellipsis")
        slowest = view.slowest
        for each in sorted(view.ranks, key=lambda rank: -(rank.late_s or 0.0))[:_MOST_RANKS]:
            late = "" if each.late_s is None else f"{1e3 * each.late_s:+.2f}"
            style = "bold yellow" if each is slowest else ""
            table.add_row(str(each.rank), _ms(each.step_s), _ms(each.wait_s), late, each.host, style=style)
        parts += [Text(), table]
        if len(view.ranks) > _MOST_RANKS:
            parts.append(Text(f"and {len(view.ranks) - _MOST_RANKS} more ranks", style="dim"))
    return Group(*parts)


def summary(view: _RunNow) -> Mapping[str, str]:
    """Return what is known of a run now, in words."""
    found = {"steps": view.getting.text}
    if view.steps_per_s is None:
        return found
    found["speed"] = f"{view.steps_per_s:,.1f} steps/s" + (
        "" if view.samples_per_s is None else f", {view.samples_per_s:,.0f} samples/s"
    )
    found["waiting for gradients"] = (
        "unknown" if view.wait_share is None else f"{100 * view.wait_share:.1f} % of the ranks' time"
    )
    if (slowest := view.slowest) is not None:
        found["slowest rank"] = f"{slowest.rank} on {slowest.host}, {_ms(slowest.late_s)} ms over the others"
    return found


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.2f}"


def line(view: _RunNow) -> str:
    """Return the same for a log."""
    told = "; ".join(f"{name} {text}" for name, text in summary(view).items())
    return f"{view.record.status}: {told}"


def watch_run(directory: Path, console: Console | None = None, *, once: bool = False) -> int:
    """Show a run until it has ended, or until Ctrl-C; return the exit code, 0. `once`: look once."""
    console = console or Console()
    live = None if once else live_on(console)
    told = ""

    def show(began: float) -> bool:
        nonlocal told
        view = look(directory)
        if live:
            live.update(page(view, directory, width=console.width), refresh=True)
        elif once:
            console.print(page(view, directory, width=console.width))
        elif (text := line(view)) != told:
            say(console, text)
            told = text
        return once or view.record.status != "running"

    look_again(live, show)
    return 0
