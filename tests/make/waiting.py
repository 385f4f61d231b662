"""Waiting for what happens by itself, as long as the busiest machine takes."""

import time
from collections.abc import Callable

# A quiet machine needs milliseconds to seconds for what tests wait for; beside other
# programs it may be a hundred times that.
PATIENCE_S = 300.0


def until(
    holds: Callable[[], object],
    what: str = "what the test waits for",
    *,
    alive: Callable[[], object] = lambda: True,
    told: Callable[[], object] = lambda: "",
) -> None:
    """Return once `holds()` is true; fail after `PATIENCE_S` or when `alive()` is false before."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        lives, began = alive(), time.monotonic()
        if holds():
            return
        assert lives, f"ended before {what} {told()}".rstrip()
        assert began < deadline, f"waited {PATIENCE_S:g} s for {what} {told()}".rstrip()
        time.sleep(max(0.005, 4 * (time.monotonic() - began)))  # asking takes a fifth of a core at most
