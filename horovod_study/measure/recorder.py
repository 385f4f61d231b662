"""What one rank records of its steps: laps and losses, read from the clock and the device in bulk.

The host of a GPU runs hundreds of steps ahead of it. Reading to the end would stop the host until the device has
nothing left to do, so in the loop only those steps are read that the device has made; the rest at the end of a stretch.
"""

import math
from array import array
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from horovod_study.errors import RecordError
from horovod_study.measure.clock import LapClock, Milestones, now
from horovod_study.records import StepWriter, lap_summary, read_step_column
from horovod_study.text.progress import say

if TYPE_CHECKING:
    import pyarrow as pa

DRAIN_STEPS = 512
DRAIN_S = 2.0
"""After so many steps or so many seconds, whatever comes first, laps are read and written: what a killed run loses.

Reading 512 steps takes a few milliseconds. The host of a GPU is ahead of it by what the driver's queue holds, about
1,000 launches and stamps, some 300 captured steps: 30 ms of work at 0.1 ms a step, so that the device has enough to do
meanwhile. Both together are far less than MAX_PENDING.
"""
MAX_PENDING = 2048
"""Steps that wait to be read at most: losses of captured steps stay valid for twice as many (graphs.RING)."""


class Recorder:
    """Keeps losses and laps of this rank until they are written, and reads them back from the file for the summary.

    What it keeps in memory does not grow with the number of steps.
    """

    def __init__(self, writer: StepWriter, batch: int, *, rank: int = 0, disk_full: str = "end") -> None:
        """`disk_full`: end raises when rows cannot be written; go-on says so and keeps no rows from there on."""
        self._writer, self._batch, self._rank, self._disk_full = writer, batch, rank, disk_full
        # Pending steps. Numbers are in arrays, which nobody has to search for garbage.
        self._steps, self._epochs = array("q"), array("q")
        self._losses: list[torch.Tensor] = []
        self._norms2: list[torch.Tensor] = []  # for every step or for none: what a backend with hooks has is nothing
        self._added = 0  # steps so far, those that were written included
        self._milestones: Milestones | None = None  # of a device that works while the host goes on
        self._reader: torch.cuda.Stream | None = None
        self._recent: deque[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = deque(maxlen=3)
        self.broken_step: int | None = None  # the first whose loss or own gradient was not finite, once it was read
        self.lost_from: int | None = None  # the first step whose row found no room
        self.rows_lost = 0
        self._loss_sum, self._loss_count, self._loss_epoch = 0.0, 0, -1
        self.recent_step_s = math.nan
        self.drained, self._drained_at = now(), 0  # the moment, and how many steps there were

    def __len__(self) -> int:
        """Return the number of steps that are not written yet."""
        return len(self._losses)

    def take_up(self, rows: "pa.Table") -> None:
        """Go on after the step rows of earlier attempts at this run, which the writer has kept."""
        if len(rows):
            epochs = rows.column("epoch").to_numpy()
            self._loss_epoch = int(epochs[-1])
            losses = rows.column("loss").to_numpy()[epochs == self._loss_epoch]
            self._loss_sum, self._loss_count = float(losses.sum(dtype=np.float64)), len(losses)

    def add(
        self,
        step: int,
        epoch: int,
        loss: torch.Tensor,
        norm2: torch.Tensor | None = None,
    ) -> None:
        """Keep the loss of one step, shape (), without reading it: that would wait for the device.

        `norm2`, shape (), is the squared norm of this rank's gradient before it is averaged, where that is known.
        """
        self._steps.append(step)
        self._epochs.append(epoch)
        self._losses.append(loss)
        if norm2 is not None:
            self._norms2.append(norm2)
        self._added += 1
        if self._milestones is not None:
            self._milestones.given(self._added)

    def follow(self, device: torch.device, milestones: Milestones | None = None) -> None:
        """Know from now on which steps `device` has made; a CPU has made a step when the call returns."""
        if device.type == "cuda":
            self._reader = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            milestones = milestones or Milestones()
        self._milestones = milestones

    def looks_broken(self) -> bool:
        """Return whether the newest loss is not finite, or one before. It waits for the device of that loss.

        A gradient that is not finite spoils the parameters of all ranks, and with them all losses from then on.
        """
        newest = self._losses[-1] if self._losses else None
        return self.broken_step is not None or bool(newest is not None and not math.isfinite(newest.item()))

    def state_at(self, step: int) -> tuple[float, bool, float]:
        """Return the loss of a recent step, whether the own gradient was finite, and the smallest loss before it.

        NaN where a loss is not known (any more); a gradient that is not known counts as finite.
        """
        steps = np.concatenate([part[0] for part in self._recent])
        losses = np.concatenate([part[1] for part in self._recent])
        here = np.flatnonzero(steps == step)
        before = losses[(steps < step) & np.isfinite(losses)]
        finite = True
        for part, _, norms2 in self._recent:
            if norms2 is not None and step in part:
                finite = bool(np.isfinite(norms2[part == step]).all())
        loss = float(losses[here[0]]) if len(here) else math.nan
        return loss, finite, float(before.min()) if len(before) else math.nan

    def drain_made(self, clock: LapClock) -> None:
        """Read the laps of the pending steps that the device has made, without waiting for it, and append them.

        It is waited for where too many would be pending.
        """
        pending = len(self)
        if self._milestones is None:
            self.drain(clock)
            return
        made = self._milestones.done(at_least=self._added - MAX_PENDING)
        self.drain(clock, keep=min(pending, self._added - made))

    def drain(self, clock: LapClock, keep: int = 0) -> None:
        """Read the laps of the pending steps, but for the newest `keep`, and append them to the file.

        On a GPU that waits for the last of those steps. With `keep` it must have been made already.
        """
        columns = clock.drain(keep)
        self.drained = now()
        count = len(self) - keep
        if count <= 0:
            return
        steps, epochs = np.array(self._steps[:count]), np.array(self._epochs[:count])
        complete = len(self._norms2) == len(self)
        # On a stream of its own, or the copies would wait behind the steps that the device was given since.
        with torch.cuda.stream(self._reader) if keep and self._reader is not None else nullcontext():
            losses = torch.stack(self._losses[:count]).float().cpu().numpy()
            norms2 = torch.stack(self._norms2[:count]).float().cpu().numpy() if complete else None
        for each in (self._steps, self._epochs, self._losses, self._norms2):
            del each[:count]
        self._recent.append((steps, losses, norms2))
        if self.broken_step is None:
            broken = ~np.isfinite(losses)
            if norms2 is not None:
                broken |= ~np.isfinite(norms2)
            if broken.any():
                self.broken_step = int(steps[broken.argmax()])
        samples = np.full(count, self._batch)
        self._append({"step": steps, "epoch": epochs, **columns, "samples": samples, "loss": losses})
        if epochs[-1] != self._loss_epoch:
            self._loss_sum, self._loss_count, self._loss_epoch = 0.0, 0, int(epochs[-1])
        newest = losses[epochs == epochs[-1]]
        self._loss_sum += float(newest.sum(dtype=np.float64))
        self._loss_count += len(newest)
        step_s = columns.get("step_s")
        if step_s is not None:
            self.recent_step_s = float(np.median(step_s))
        else:  # nothing was stamped: the span is that of the steps given since the last drain
            self.recent_step_s = clock.span_s / max(1, self._added - self._drained_at)
        self._drained_at = self._added

    def _append(self, columns: dict[str, np.ndarray]) -> None:
        if self.lost_from is None:
            try:
                self._writer.append(columns)
                return
            except RecordError as error:
                if self._disk_full == "end":
                    raise
                first = int(columns["step"][0])
                text = str(error).rpartition(";")[0]
                say(f"warning: rank {self._rank}: {text}; training goes on, the rows from step {first:,} on are lost")
                self.stop_rows(first)
        self.rows_lost += len(columns["step"])

    def stop_rows(self, step: int) -> None:
        """Keep no rows from `step` on."""
        self.lost_from = step if self.lost_from is None else self.lost_from

    def epoch_loss(self) -> float:
        """Return the mean training loss of this rank over the steps of the current epoch."""
        return self._loss_sum / self._loss_count

    def samples_per_s(self, workers: int) -> float:
        """Return the recent speed of all workers, as seen from this rank; NaN before the first reading."""
        return self._batch * workers / self.recent_step_s

    def timed(self, name: str) -> np.ndarray:
        """Return a column of the step rows of this rank, earlier attempts included, read back from its file.

        Shape (rows,); row k is that of step k, null is NaN. Rows are missing only at the end, where they found no room.
        """
        return read_step_column(self._writer.path, name)

    def summary(self, from_step: int) -> dict[str, Any]:
        """Return `lap_summary` of the rows of this rank from a step on, and how many these are.

        Columns are read one by one.
        """
        steps = self.timed("step")
        first, rows = int(np.searchsorted(steps, from_step)), len(steps)
        del steps
        return {**lap_summary(lambda name: self.timed(name)[first:]), "rows": rows - first}
