"""What one rank records of its steps: laps and losses, read from the clock and the device in bulk."""

import math
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from horovod_study.measure.clock import LapClock, now
from horovod_study.records import StepWriter

if TYPE_CHECKING:
    import pyarrow as pa


class Recorder:
    """Keeps losses and laps of this rank until they are written, and the timed steps' laps until the summary."""

    def __init__(self, writer: StepWriter, batch: int, warmup_steps: int, sync_visible: bool) -> None:
        self._writer, self._batch, self._warmup_steps, self._sync_visible = writer, batch, warmup_steps, sync_visible
        self._pending: list[tuple[int, int, torch.Tensor]] = []
        self._norms2: list[torch.Tensor] = []
        self._recent: deque[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = deque(maxlen=2)
        self.broken_step: int | None = None  # the first whose loss or own gradient was not finite, once it was read
        self._timed: list[dict[str, np.ndarray]] = []
        self._loss_sum, self._loss_count, self._loss_epoch = 0.0, 0, -1
        self.recent_step_s = math.nan
        self.drained = now()

    def __len__(self) -> int:
        """Return the number of steps that are not written yet."""
        return len(self._pending)

    def take_up(self, rows: "pa.Table") -> None:
        """Count the step rows of earlier attempts at this run as recorded here."""
        columns = {name: rows.column(name).to_numpy() for name in rows.column_names}
        laps = [name for name in columns if name.endswith("_s") and (name != "sync_s" or self._sync_visible)]
        timed = columns["step"] >= self._warmup_steps
        if timed.any():
            self._timed.append({name: columns[name][timed] for name in laps})
        if len(rows):
            self._loss_epoch = int(columns["epoch"][-1])
            losses = columns["loss"][columns["epoch"] == self._loss_epoch]
            self._loss_sum, self._loss_count = float(losses.sum(dtype=np.float64)), len(losses)

    def add(self, step: int, epoch: int, loss: torch.Tensor, norm2: torch.Tensor | None = None) -> None:
        """Keep the loss of one step, shape (), without reading it: that would wait for the device.

        `norm2`, shape (), is the squared norm of this rank's gradient before it is averaged, where that is known.
        """
        self._pending.append((step, epoch, loss))
        if norm2 is not None:
            self._norms2.append(norm2)

    def looks_broken(self) -> bool:
        """Return whether the newest loss is not finite, or one before. It waits for the device of that loss.

        A gradient that is not finite spoils the parameters of all ranks, and with them all losses from then on.
        """
        return self.broken_step is not None or bool(self._pending and not math.isfinite(self._pending[-1][2].item()))

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

    def drain(self, clock: LapClock) -> None:
        """Read the laps of the pending steps and append them to the file."""
        columns = clock.drain()
        self.drained = now()
        if not self._pending:
            return
        hidden: dict[str, None] = {}
        if not self._sync_visible:
            # The call was empty and says nothing about the wait; its nanoseconds belong to the residual.
            columns["residual_s"] = columns["residual_s"] + columns.pop("sync_s")
            hidden = {"sync_s": None}
        steps = np.array([step for step, _, _ in self._pending])
        epochs = np.array([epoch for _, epoch, _ in self._pending])
        losses = torch.stack([loss for _, _, loss in self._pending]).float().cpu().numpy()
        # Kept for every step or for none: what a backend with hooks has is nothing.
        norms2 = torch.stack(self._norms2).float().cpu().numpy() if len(self._norms2) == len(steps) else None
        self._norms2 = []
        self._recent.append((steps, losses, norms2))
        if self.broken_step is None:
            broken = ~np.isfinite(losses) if norms2 is None else ~(np.isfinite(losses) & np.isfinite(norms2))
            if broken.any():
                self.broken_step = int(steps[broken.argmax()])
        samples = np.full(len(steps), self._batch)
        self._writer.append({"step": steps, "epoch": epochs, **columns, **hidden, "samples": samples, "loss": losses})
        self._pending = []
        if epochs[-1] != self._loss_epoch:
            self._loss_sum, self._loss_count, self._loss_epoch = 0.0, 0, int(epochs[-1])
        self._loss_sum += float(losses.sum(dtype=np.float64))
        self._loss_count += len(losses)
        self.recent_step_s = float(np.median(columns["step_s"]))
        timed = steps >= self._warmup_steps
        if timed.any():
            self._timed.append({name: lap[timed] for name, lap in columns.items()})

    def epoch_loss(self) -> float:
        """Return the mean training loss of this rank over the steps of the current epoch."""
        return self._loss_sum / self._loss_count

    def samples_per_s(self, workers: int) -> float:
        """Return the recent speed of all workers, as seen from this rank; NaN before the first reading."""
        return self._batch * workers / self.recent_step_s

    def summary(self) -> dict[str, Any]:
        """Return means and medians of each lap over the timed steps of this rank; None where sync is not visible."""
        joined = {name: np.concatenate([part[name] for part in self._timed]) for name in self._timed[0]}
        hidden = {} if self._sync_visible else {"sync_s": None}
        return {
            "mean": {**{name: float(lap.mean()) for name, lap in joined.items()}, **hidden},
            "median": {**{name: float(np.median(lap)) for name, lap in joined.items()}, **hidden},
            "step_s_p90": float(np.quantile(joined["step_s"], 0.9)),
        }
