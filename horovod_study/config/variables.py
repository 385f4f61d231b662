"""Environment variables: the one reader of numbers in them, and the environment of the Pythons that the package starts.

What others set (launchers, Slurm, a shell) is input like any other: a variable that is empty counts as not set, and one
that is not a number is refused by its name.
"""

import importlib.metadata
import itertools
import os
import re
import site
import sysconfig
from collections.abc import Mapping, MutableMapping
from functools import cache
from pathlib import Path

from horovod_study.errors import BackendError

_DIGITS = "[0-9]{1,18}"  # longer texts are no number of anything; beyond 4,300 digits Python itself refuses to read one
_DECIMAL = ("CYCLE_TIME", "IDLE_CYCLE_TIME", "AUTOTUNE_GAUSSIAN_PROCESS_NOISE")
OF_HOROVOD = (
    *_DECIMAL,
    *"""
    FUSION_THRESHOLD CACHE_CAPACITY GLOO_TIMEOUT_SECONDS STALL_CHECK_TIME_SECONDS STALL_SHUTDOWN_TIME_SECONDS
    STALL_CHECK_DISABLE HIERARCHICAL_ALLREDUCE HIERARCHICAL_ALLGATHER TORUS_ALLREDUCE BATCH_D2D_MEMCOPIES
    DISABLE_GROUP_FUSION ENABLE_ASYNC_COMPLETION DYNAMIC_PROCESS_SETS MPI_THREADS_DISABLE NUM_NCCL_STREAMS
    ADASUM_MPI_CHUNK_SIZE TIMELINE_MARK_CYCLES LOG_HIDE_TIME AUTOTUNE AUTOTUNE_WARMUP_SAMPLES
    AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_BAYES_OPT_MAX_SAMPLES
    """.split(),
)  # variables of Horovod, without HOROVOD_, that hold numbers; it takes anything else for 0, or ends in an exception


def refuse_other_than_numbers(environ: Mapping[str, str]) -> None:
    """Raise BackendError for a variable of Horovod's that should hold a number and does not."""
    for name in OF_HOROVOD:
        (decimal if name in _DECIMAL else whole_number)(f"HOROVOD_{name}", environ)


def is_set(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether a variable holds anything but blanks."""
    return bool(environ.get(name, "").strip())


def whole_number(name: str, environ: Mapping[str, str], *, low: int = 0, high: int | None = None) -> int | None:
    """Return the whole number that a variable holds, None where it is not set.

    Raises BackendError where it holds something else, or a number below `low` or above `high`.
    """
    text = environ.get(name, "").strip()
    if not text:
        return None
    if re.fullmatch(_DIGITS, text) and low <= int(text) and (high is None or int(text) <= high):
        return int(text)
    allowed = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise _refused(name, text, f"a whole number {allowed}")


def decimal(name: str, environ: Mapping[str, str]) -> float | None:
    """Return the number of 0 or more that a variable holds, such as 0.05 or 5e-2, None where it is not set.

    Raises BackendError where it holds something else.
    """
    text = environ.get(name, "").strip()
    if not text:
        return None
    if re.fullmatch(rf"({_DIGITS}\.?|({_DIGITS})?\.{_DIGITS})([eE][+-]?[0-9]{{1,2}})?", text):
        return float(text)
    raise _refused(name, text, "a number of at least 0, such as 0.5")


def visible_gpus(environ: Mapping[str, str]) -> list[str] | None:
    """Return what CUDA_VISIBLE_DEVICES names, as CUDA reads it: numbers, and UUIDs that begin with GPU- or MIG-.

    None where it is not set. What comes after the first name that is neither is not seen, and nothing where a name
    comes twice. Whether there are such GPUs is not looked at.
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    names = list(itertools.takewhile(lambda name: re.fullmatch(rf"{_DIGITS}|(GPU|MIG)-\S+", name), parts))
    return names if len(set(names)) == len(names) else []


def _refused(name: str, text: str, allowed: str) -> BackendError:
    short = text if len(text) <= 60 else f"{text[:60]}..."
    told = f"environment variable {name} is {short!a}; allowed: {allowed}"
    return BackendError(f"{told}; `unset {name}`, or let the launcher set it")


def without_working_directory(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` for a Python that imports nothing from its working directory.

    What is there, such as a file numpy.py, belongs to the user and not to the package. Folders that PYTHONPATH names
    stay; an empty entry, which a trailing colon makes, means the working directory and goes. A package that is not
    installed, but used from its folder, is found there.
    """
    kept = {**environ, "PYTHONSAFEPATH": "1"}
    if "PYTHONPATH" in kept:
        kept["PYTHONPATH"] = os.pathsep.join(part for part in kept["PYTHONPATH"].split(os.pathsep) if part)
    folder = str(Path(__file__).resolve().parents[2])
    if not _installed() and folder not in kept.get("PYTHONPATH", "").split(os.pathsep):
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [kept.get("PYTHONPATH"), folder]))
    return kept


SHELL = "HOROVOD_SHELL_"
"""Begins the names of copies of what the shell has in variables that are set for the package's own Pythons."""
_OURS = ("PATH", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "MPLBACKEND")


def keeping_the_shell(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with these copies."""
    return {**{f"{SHELL}{name}": environ.get(name, "") for name in _OURS}, **environ}


def back_to_the_shell(environ: MutableMapping[str, str]) -> None:
    """Put the copies back, for a training that is no part of the package; without copies nothing changes."""
    for name in _OURS:
        before = environ.pop(f"{SHELL}{name}", None)
        if before is not None:  # Python takes a variable that is empty for none
            environ.pop(name, None)
            environ.update({name: before} if before else {})


@cache
def _installed() -> bool:
    """Return whether this Python has the package, editable or not, in a folder that it looks into by itself."""
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()]
    return any(importlib.metadata.distributions(name="horovod_study", path=folders))
