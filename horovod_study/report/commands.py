"""What `horovod-study explain` says of commands in which no step was seen: times, processors, sensors."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from horovod_study.analysis.series.points import command_words, scaling_points
from horovod_study.records import COMMAND, finite, rate_unit
from horovod_study.text.numbers import THIN, known, rounded
from horovod_study.text.tables import NOTHING, table_of, to_lines
from horovod_study.text.words import plural

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS: Mapping[str, str] = {
    "command": "command",
    "workers": "workers",
    "repeats": "repeats",
    "wall_s": "s",
    "cpu_s": "CPU s",
    "cores": "cores used",
    "rate": "",  # its unit
    "speedup": "speedup",
    "rss_mb_max": "memory, MB",
    "gpu_percent": "GPUs, %",
    "gpu_memory_mb": "GPU memory, MB",
    "gpu_power_w": "GPUs, W",
    "package_power_w": "processors, W",
}
"""What is known of a command, and the head of its column; sensors only where there are any."""
_SENSORS = tuple(_COLUMNS)[8:]
_INSIDE = (
    "Where the time goes inside is not known: steps are seen of PyTorch, and three lines in the loop mark them in any "
    "Python (docs/your_script.md)."
)


def command_rows(runs: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return a row of _COLUMNS, and the unit of the rate, for each point of a run table's finished commands.

    Medians over repeats; None is unknown.
    """
    done = runs[(runs["backend"] == COMMAND) & (runs["status"] == "done")]
    rows = []
    for point in scaling_points(done).to_dict("records") if len(done) else ():
        own = done[(done["workers"] == point["workers"]) & (done["model"] == point["model"])]
        row = {"command": point["model"], "workers": point["workers"], "repeats": point["repeats"]}
        row |= {name: float(own[name].astype(float).median()) for name in ("wall_s", "cpu_s", *_SENSORS)}
        row |= {"cores": row["cpu_s"] / row["wall_s"] if row["wall_s"] else None, "speedup": point["speedup_wrapped"]}
        row |= {"rate": point["samples_per_s_median"], "unit": rate_unit(own["rate_from"].iloc[0])}
        rows.append({name: finite(value) for name, value in row.items()})
    return rows


def command_lines(runs: "pd.DataFrame") -> list[str]:
    """Return what is known of the commands of a run table, for a terminal."""
    commands = runs[runs["backend"] == COMMAND]
    states = ", ".join(f"{count} {state}" for state, count in commands["status"].value_counts().items())
    rows = command_rows(runs)
    shown = [name for name in _COLUMNS if any(row[name] is not None for row in rows)]
    heads = [_COLUMNS[name] or " or ".join(dict.fromkeys(row["unit"] for row in rows)) for name in shown]
    words = command_words(commands["rate_from"])
    table = table_of(heads, [tuple(_cell(row[name]) for name in shown) for row in rows], texts=(0,)) if rows else None
    return [
        f"{plural(len(commands), 'run')} ({states}) of {plural(commands['model'].nunique(), 'command')}: no steps seen",
        *(["", *(line.replace(THIN, ",") for line in to_lines(table)), ""] if table else []),
        f"{words[0].upper()}{words[1:]}.",
        _INSIDE,
    ]


def _cell(value: Any) -> str:
    if isinstance(value, str | int):
        return f"{value:,}" if isinstance(value, int) else value
    return rounded(value, 3) if known(value) else NOTHING
