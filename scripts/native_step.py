"""The native training step, compiled from the C++ files of horovod_study/strain for each set of instructions.

It takes seconds, and what was built is kept in the cache of built wheels. Without a compiler for it the set-up goes on,
since the package computes with PyTorch then, and says so.
"""

import os
import platform
import shlex
import shutil
from pathlib import Path

from console import Failure, Program, Step, output
from horovod_wheel import digest
from state import Places

FOLDER = Path("horovod_study", "strain")
COMMON = "-O3 -std=c++17 -fPIC -shared -fno-exceptions -fno-math-errno -fno-trapping-math -Wall -Wextra -Werror"
FLAGS = {
    "avx512": "-DLANES=16 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512",
    "avx2": "-DLANES=8 -mavx2 -mfma",
}


def install(places: Places, step: Step) -> None:
    """Put the libraries where the package looks for them (strain/native.py), from the cache or built now."""
    if reason := _build(places, step):
        shutil.rmtree(folder(places), ignore_errors=True)
        step.note(f"native step left out: {reason}")


def folder(places: Places) -> Path:
    """Return where the libraries go."""
    return places.venv / "lib" / "horovod-study-native"


def _build(places: Places, step: Step) -> str:
    """Do it; return why it cannot be done."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"it has instructions of x86-64 only, this is {platform.machine()}"
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("g++", "c++")), "")
    if not compiler or (version := output([*shlex.split(compiler), "--version"])) is None:
        return f"no C++ compiler ({compiler or 'g++, c++'})"
    read = sorted((places.root / FOLDER).glob("*.[ch]*"))  # headers, too
    sources = [file for file in read if file.suffix == ".cpp"]
    content = [file.read_bytes() for file in read]
    programs: list[Program] = []
    files: dict[str, Path] = {}
    for name, flags in FLAGS.items():
        key = digest([*content, version.encode(), COMMON.encode(), flags.encode()])[:12]
        files[name] = kept = places.cache / "native" / f"{name}-{key}.so"
        if kept.exists():
            continue
        kept.parent.mkdir(parents=True, exist_ok=True)
        command: list[str | Path] = [*shlex.split(f"{compiler} {COMMON} {flags}"), *sources, "-o", _fresh(kept)]
        programs.append(Program(command=command, env=step.env, log=step.log.with_name(f"native-{name}.log")))
    try:
        step.run_together(programs)
    except Failure:
        return f"{compiler} cannot compile it; log: {step.log.with_name('native-*.log')}"
    for file in files.values():
        if not file.exists():
            _fresh(file).replace(file)
    folder(places).mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        target = folder(places) / f"{name}.so"
        shutil.copyfile(file, _fresh(target))
        _fresh(target).replace(target)  # a run that has loaded the old one keeps it
    step.note("native step " + ("built" if programs else "from the cache"))
    return ""


def _fresh(file: Path) -> Path:
    """Return the name under which `file` is written before it is complete."""
    return file.with_name(f"{file.name}.{os.getpid()}")
