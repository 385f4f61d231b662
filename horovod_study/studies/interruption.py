"""Ctrl-C, SIGTERM and a lost terminal as a request to stop that whoever runs cells looks at."""

import signal
import threading
from types import FrameType
from typing import Self

INTERRUPTED = "interrupted"
_last: list[int] = [signal.SIGINT]


def exit_code() -> int:
    """Return what a program ends with that was told to stop: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return 128 + _last[-1]


class Interruption:
    """Remembers the first Ctrl-C, SIGTERM or lost terminal, for a good moment to act on; a second one breaks off."""

    signals: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, state: str = INTERRUPTED) -> None:
        """`state`: what the attempt that is broken off is called, such as "pre-empted"."""
        self.requested = False
        self.state = state

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()  # only there can handlers be set
        # What is ignored stays so: nohup means it.
        heeded = [number for number in self.signals if main and signal.getsignal(number) != signal.SIG_IGN]
        self._previous = {number: signal.signal(number, self._remember) for number in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        _last[:] = [number]
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
