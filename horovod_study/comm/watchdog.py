"""Ends a rank whose peers never arrive."""

import os
import threading

from horovod_study.comm.launch import Launch
from horovod_study.progress import say


class StartWatchdog:
    """Ends this rank when the others do not arrive: a rank with another backend would leave all waiting for ever."""

    def __init__(self, timeout_s: float, launch: Launch) -> None:
        def give_up() -> None:
            addressed = launch.launcher in ("mpirun", "srun") and "MASTER_ADDR" in os.environ
            where = f" (at {os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT')})" if addressed else ""
            say(
                f"error: rank {launch.rank} of {launch.workers} waited {timeout_s:g} s for the other ranks to start"
                f"{where}; start all ranks with the same options, or raise --start-timeout-s"
            )
            os._exit(2)

        self._timer = threading.Timer(timeout_s, give_up)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Everybody has arrived; what follows fails together."""
        self._timer.cancel()
