"""Runs a script of somebody else as a rank of a cell, and has its training recorded: see scripted.py.

    python -m horovod_study.programs.script --config CELL.yaml --out RUN_DIR --folder FOLDER -- train.py --batch 32

The script sees itself as the program: `__main__`, sys.argv, and its own folder first on the path. With `--command` the
words are a command that starts the ranks. Both run in FOLDER, with the variables that the shell has. With `--launcher`
they are the package's own launch of ranks that run the script.
"""

import argparse
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from horovod_study.errors import StudyError
from horovod_study.variables import back_to_the_shell


def main(arguments: Sequence[str] | None = None) -> int | str | None:
    """Run the script, or the command, and return what `sys.exit` takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--own", action="append", default=[])
    parser.add_argument("--set", action="append", default=[], dest="variables")
    parser.add_argument("--steps", type=int, help="end the training after so many")
    parser.add_argument("--threads")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--rate", help="of a command: where its output says a rate")
    parser.add_argument("--command", action="store_true")
    parser.add_argument("--launcher", action="store_true")
    parser.add_argument("words", nargs="+")
    options = parser.parse_args(arguments)
    values = yaml.safe_load(options.config.read_text(encoding="utf-8"))
    asked = {name: values[name] for name in ("warmup_steps", "study", "partition", "repeat")} | {"disk_full": "go-on"}
    own = {name: str(values[name]) if isinstance(values[name], bool) else values[name] for name in options.own}
    if options.launcher:
        return _recorded(options, asked, own, values)
    back_to_the_shell(os.environ)
    os.environ.update({"OMP_NUM_THREADS": options.threads} if options.threads else {}, PWD=str(options.folder))
    os.environ.update(text.split("=", 1) for text in options.variables)
    if not options.command:
        os.environ.setdefault("OMP_NUM_THREADS", str(values["threads"]))  # as all that this package starts
    try:
        os.chdir(options.folder)
    except OSError as error:
        return f"{options.folder}: {error.strerror}; every host must see the folder of the study file"
    return _recorded(options, asked, own, values) if options.command else _script(options, values["backend"])


def _recorded(
    options: argparse.Namespace, asked: dict[str, Any], own: dict[str, Any], values: dict[str, Any]
) -> int | str | None:
    from horovod_study.recording import command

    try:
        return command.record(
            options.words,
            options.out,
            asked,
            own=own,
            requested={"batch": values["batch"], "declared": "command" if options.command else "script"},
            steps=options.steps,
            workers=options.workers,
            rate=options.rate,
            told=options.launcher,
        )
    except StudyError as error:
        return f"error: {error}"


def _script(options: argparse.Namespace, backend: str) -> int | str | None:
    from horovod_study.recording.command import asked_file
    from horovod_study.recording.rank import watch

    words = options.words
    watch.install(asked_file(options.out.absolute()).read_text(encoding="utf-8"))
    sys.argv = list(words)
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    with _joined(backend):
        try:
            runpy.run_path(words[0], run_name="__main__")
        except SystemExit as end:
            return end.code
    return 0


@contextmanager
def _joined(backend: str) -> Iterator[None]:
    """Tell the script what torchrun or horovodrun would, where mpirun or srun has started its ranks."""
    from horovod_study.comm.distributed import local_rank
    from horovod_study.comm.horovod import find_open_mpi, meeting
    from horovod_study.comm.launch import detect, meeting_point

    launch, met = detect(os.environ), meeting_point(os.environ)
    if launch.launcher not in ("mpirun", "srun"):
        yield
    elif backend == "horovod" and met and os.environ.get("HOROVOD_CONTROLLER") == "gloo":
        with meeting(*met, launch, 600.0):  # the file server of a site may be slow
            yield
    else:
        find_open_mpi()
        told = {"RANK": launch.rank, "WORLD_SIZE": launch.workers, "LOCAL_RANK": local_rank(os.environ)}
        os.environ.update({name: str(value) for name, value in told.items()} if backend == "ddp" else {})
        yield


if __name__ == "__main__":
    sys.exit(main())
