"""What a number cannot be, whoever gave it: one table, which files of others, fits, forecasts and pages go through.

Each rule says in one sentence what was found and why it cannot be. The caller stops the number: it leaves the row or
the file out, puts nothing in its place, or selects no law, and hands the sentence on. A rule is broken beyond doubt
only: its bounds are far outside of what good measurements reach.
"""

from collections.abc import Callable
from typing import Any

MOST_PER_WORKER = 1e9  # samples or tokens per second; the fastest small models reach some 1e8
MOST_EPOCHS = 5000.0
MOST_STEP_S = 300.0  # of one update
MOST_BYTES_PER_S = 2e13  # of a reduction; links of a GPU have some 1e12
FAR_ABOVE = 2.0  # times the workers; caches and slow baselines explain less

RULES: dict[str, tuple[Callable[..., bool], str]] = {  # when it is broken, and the sentence, both of values by name
    "rate": (
        lambda rate, workers, **_: rate > MOST_PER_WORKER * workers,
        "{rate} {unit} with {workers} workers: no worker does more than 1e9 a second",
    ),
    "speedup": (
        lambda speedup, workers, **_: speedup > FAR_ABOVE * workers,
        "a speedup of {speedup} with {workers} workers: more than twice the workers is no scaling",
    ),
    "epochs": (
        lambda epochs, **_: epochs > MOST_EPOCHS,
        "{epochs} epochs: no training has as many; samples or tokens?",
    ),
    "step": (lambda step, **_: step > MOST_STEP_S, "{step} {unit} of a step: no training waits so long"),
    "part": (
        lambda part, whole, **_: part > 1.05 * whole,
        "{what} of {part} {unit} is a part of {of}, of which there are {whole} {unit}: one of the two is unknown",
    ),
    "device step": (
        lambda step, busy, **_: busy > 2.0 * step,
        "a step of {step} {unit} with {busy} {unit} of kernels: the step is not that of the device",
    ),
    "behind": (
        lambda step, behind, **_: behind > step,
        "kernels end {behind} {unit} after the host's last step of {step} {unit}: they ran later than what launched "
        "them",
    ),
    "limit": (
        lambda limit, measured, **_: limit < measured,
        "{law} never exceeds {limit}, and {measured} was measured",
    ),
    "peak": (
        lambda peak, limit, workers, measured, **_: peak < workers and limit < measured,
        "{law} has its peak, {limit}, at {peak} workers, and {measured} was measured at {workers}",
    ),
    "bandwidth": (
        lambda bandwidth, **_: bandwidth > MOST_BYTES_PER_S,
        "{bandwidth} bytes/s: no network or memory moves as much",
    ),
}


def impossible(rule: str, **values: Any) -> str:
    """Return why values cannot be, by the rule of this name; "" where they can, and where one of them is NaN.

    Numbers are in the unit that the text `unit` says, `what` and `of` are the words for a part and its whole.
    """
    broken, says = RULES[rule]
    if not broken(**values):
        return ""
    numbers = {value for value in values.values() if not isinstance(value, str)}
    apart = (digits for digits in (4, 6, 9) if len({f"{each:.{digits}g}" for each in numbers}) == len(numbers))
    form = f".{next(apart, 12)}g"
    texts = {name: value if isinstance(value, str) else format(value, form) for name, value in values.items()}
    return says.format_map({"unit": "s", **texts}).replace(" 1 workers", " 1 worker")
