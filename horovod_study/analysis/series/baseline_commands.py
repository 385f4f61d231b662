"""What to type for a baseline that is missing: the command that was recorded, with one worker.

A command is a list of words, and what comes out is one again, quoted for a shell where it becomes a text. What a word
means is known of the launchers below; in a script's own words only the name of an option says what it is.
"""

import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, count
from pathlib import PurePath
from typing import Any

from horovod_study.runtimes import CARRIED

# What calls a launcher: the names by which it is told of ranks (the first is added where none is given), those of
# places, which become 1 too, and those of hosts, of which one rank needs none.
_TORCHRUN = ("--nproc-per-node --nproc_per_node", "--nnodes", "")
_MPIRUN = ("-np -n --np -c", "", "--host -host -H")
_LAUNCHERS = {
    "torchrun": _TORCHRUN,
    "-m torch.distributed.run": _TORCHRUN,
    "-m torch.distributed.launch": _TORCHRUN,
    "horovodrun": ("-np --num-proc", "", "-H --hosts"),
    "mpirun": _MPIRUN,
    "mpiexec": _MPIRUN,
    "orterun": _MPIRUN,
    "srun": ("-n --ntasks", "-N --nodes --ntasks-per-node", "-w"),
    "accelerate launch": ("--num_processes --num-processes", "--num_machines --num-machines", ""),
    "deepspeed": ("--num_gpus --num-gpus", "--num_nodes --num-nodes", ""),
}
_PROGRAM = re.compile(r"\.py$|^(?:.*/)?python[^/]*$|^(?:-m|--module|--)$")  # where the words of a launcher end
_COUNTS = ("devices", "num_devices", "gpus", "num_gpus", "nproc", "nprocs", "world_size", "num_processes")
"""Options by which a script that starts its ranks itself is usually told how many; `workers` are often a loader's."""


def one_worker(words: Sequence[str], workers: int) -> list[str] | None:
    """Return a command of `workers` ranks with one rank; None where its words do not say how many it starts.

    >>> one_worker("torchrun --nproc-per-node 2 train.py --batch 2".split(), 2)
    ['torchrun', '--nproc-per-node', '1', 'train.py', '--batch', '2']
    """
    found, told = list(words), False
    for start, options in _LAUNCHERS.items():  # one may start another: srun torchrun
        ranks, places, hosts = map(str.split, options)
        if (place := _place_of(start.split(), found)) is None:
            continue
        program = (at for at in range(place, len(found)) if _PROGRAM.search(found[at]))
        end = next(program, len(found))
        own = _dropped(found[place:end], hosts)
        given = [name for name in (*ranks, *places) if _set(own, name, "1")]
        found[place:end] = own if {*given}.intersection(ranks) else [ranks[0], "1", *own]
        told = True
    for word in [*found]:  # of the script, which may be told beside its launcher
        if _plain(word).rpartition(".")[2] in _COUNTS and _value(found, word) == str(workers):
            told = _set(found, word.partition("=")[0], "1") or told
    return found if told else None


def with_batch(words: Sequence[str], old: float, new: float) -> list[str] | None:
    """Return a command whose batch per worker is `new` instead of `old`; None where no option or several say it."""
    names = [word for word in words if "batch" in _plain(word) and _value(words, word) == f"{old:.0f}"]
    if len(names) != 1:
        return None
    found = list(words)
    _set(found, names[0].partition("=")[0], f"{new:.0f}")
    return found


def remedy(run: Mapping[str, Any], *, batch: float, taken: Collection[str]) -> str:
    """Return how to come by the one-worker run of local batch `batch` that `run`, a row of a run table, lacks.

    `taken` are names of runs that there are: another run directory is named.
    """
    if run.get("declared"):
        return "the line `baselines: [wrapped]` in the study file makes it"
    notes, line = baseline_command(run, batch=batch, taken=taken)
    if not line:
        typed = run.get("typed") or run.get("command") or "unknown"
        return f"the same command with one worker makes it; it was: {typed}"
    return f"this makes it{''.join(f', {each}' for each in notes)}: {line}"


def baseline_command(run: Mapping[str, Any], *, batch: float, taken: Collection[str]) -> tuple[list[str], str]:
    """Return the line for the one-worker run that `remedy` speaks of, and notes on it; "" where it is not known."""
    words = shlex.split(str(run.get("typed") or ""))
    recorded = "--" in words
    line = words[words.index("--") + 1 :] if recorded else shlex.split(str(run.get("command") or ""))
    single = one_worker(line, int(run["workers"])) if recorded else None
    way = CARRIED.get(f"{run['backend']}/{run['transport']}") if not recorded else None
    if way is not None and len(line) > 1:  # a script that records itself: `line` is the command of one of its ranks
        start = way[1].start.split()
        single = [*start, "1", *([] if start[0] == "torchrun" else ["python"]), *line[1:]]
    if single is None:
        return [], ""
    notes = [f"in {run['typed_in']}"] if run.get("typed_in") else []
    if batch != run["batch"] and math.isfinite(batch):
        changed = with_batch(single, run["batch"], batch)
        notes += [] if changed else [f"told to take a batch of {batch:.0f}"]
        single = changed or single
    head = [*_with_out(words[: words.index("--")], taken), "--"] if recorded else []
    if math.isfinite(batch):
        _set(head, "--batch", f"{batch:.0f}")
    notes += [] if recorded else ["with a run directory of its own"]
    return notes, shlex.join([*head, *single])


def again(run: Mapping[str, Any], taken: Collection[str]) -> str:
    """Return the line that recorded `run`, a row of a run table, with a run directory that is not `taken`; "" where it
    is not known."""
    words = shlex.split(str(run.get("typed") or ""))
    if "--" not in words:
        return ""
    place = words.index("--")
    name = PurePath(_value(words[:place], "--out") or "1w").name
    return shlex.join([*_with_out(words[:place], taken, name), *words[place:]])


def _with_out(words: Sequence[str], taken: Collection[str], name: str = "1w") -> list[str]:
    """Return the words of `record` for another run: beside the one that they name, where they name one."""
    found = _dropped(words, ("--repeat",))
    given = _value(found, "--out") or next((each[6:] for each in found if each.startswith("--out=")), "")
    if given:
        names = {each.rpartition("/")[2] for each in taken}
        free = next(each for each in chain((name,), (f"{name}-{number}" for number in count(2))) if each not in names)
        _set(found, "--out", str(PurePath(given).with_name(free)))
    return found


def _place_of(start: Sequence[str], words: Sequence[str]) -> int | None:
    """Return the place behind the words that call a launcher, None where they do not."""
    bare = [PurePath(word).name if word[:1] != "-" else word for word in words]
    for place in range(len(words) - len(start) + 1):
        if bare[place : place + len(start)] == list(start):
            return place + len(start)
        if words[place].endswith(".py"):
            break
    return None


def _set(words: list[str], name: str, value: str) -> bool:
    """Give an option another value where it has one, in any of its forms: `-n 2`, `-n2`, `--np=2`."""
    found = False
    for place, word in enumerate(words):
        if word == name and place + 1 < len(words):
            words[place + 1], found = value, True
        elif word.startswith(f"{name}="):
            words[place], found = f"{name}={value}", True
        elif len(name) == 2 and re.fullmatch(f"{name}\\d+", word):
            words[place], found = f"{name}{value}", True
    return found


def _dropped(words: Sequence[str], names: Collection[str]) -> list[str]:
    """Return words without some options and their values."""
    found, left = [], iter(words)
    for word in left:
        if word in names:
            next(left, "")
        elif word.partition("=")[0] not in names:
            found.append(word)
    return found


def _value(words: Sequence[str], option: str) -> str | None:
    """Return what a word gives to an option: behind its `=`, or as the next word."""
    name, equals, value = option.partition("=")
    if equals:
        return value
    place = words.index(name) if name in words else -1
    return words[place + 1] if 0 <= place < len(words) - 1 else None


def _plain(word: str) -> str:
    """Return the name of an option without dashes and value, "" for any other word."""
    return word.partition("=")[0].lstrip("-").replace("-", "_").lower() if word.startswith("-") else ""
