"""What is said while something long goes on: one updating line on a terminal, plain lines in a log."""

import math
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from horovod_study.measure.clock import now
from horovod_study.workloads import Configuration


def say(text: str) -> None:
    """Print one line on standard error at once."""
    print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return e.g. '45 s', '3 min 20 s', '2 h 5 min'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{hours} h" + (f" {minutes} min" if minutes else "")


class Line:
    """One line that is rewritten on a terminal and appended now and then in a log."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._terminal = sys.stderr.isatty()
        self._every_s = 0.2 if self._terminal else 10.0
        self._last = now()
        self._open = False

    def due(self) -> bool:
        """Return whether it is time for a new text."""
        return self._enabled and now() - self._last >= self._every_s

    def now_and_then(self, text: str) -> None:
        """Show `text` if it is time for a new one."""
        if self.due():
            self.show(text)

    def show(self, text: str) -> None:
        """Show `text`, in place of the text before it on a terminal."""
        self._last = now()
        if self._terminal:
            print(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
            self._open = bool(text)
        else:
            say(text)

    def keep(self, text: str) -> None:
        """Show `text` for good, and go on below it."""
        if self._enabled:
            self.close()
            say(text)

    def close(self) -> None:
        """Remove the updating line."""
        if self._open:
            self.show("")


class Progress(Line):
    """The progress of a training run."""

    def update(
        self, step: int, last_step: float, epoch: int, config: Configuration, window_s: float, samples_per_s: float
    ) -> None:
        """Show where the run stands, if it is time to."""
        if not self.due():
            return
        if config.seconds:
            done, where = min(1.0, window_s / config.seconds), f"{window_s:.0f}/{config.seconds:g} s"
        else:
            done, where = step / last_step, f"step {step:,}/{last_step:,.0f}"
        left_s = window_s / done - window_s if done > 0 and window_s > 0 else math.nan
        speed = "" if math.isnan(samples_per_s) else f"  {samples_per_s:,.0f} samples/s"
        left = "" if math.isnan(left_s) else f"  {left_s:.0f} s left"
        self.show(f"  epoch {epoch + 1}  {where}  {100 * done:4.0f} %{speed}{left}")

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Keep one line per evaluation."""
        self.keep(
            f"  epoch {row['epoch']:<6.3g} train MSE {row['train_mse']:.3e}  test MSE {row['test_mse']:.3e}  "
            f"G0 {row['g0_rmse_mpa']:6.1f} MPa  a {row['a_rmse']:5.2f}  {row['train_s']:6.1f} s"
        )
