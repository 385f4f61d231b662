"""Runs a script of somebody else as a rank of a cell, and has its training recorded: see config/scripted.py.

    python -m horovod_study.programs.script --config CELL.yaml --out RUN_DIR --folder FOLDER -- train.py --batch 32

The script is run by this Python, in a process that has nothing of this package but the recorder. With `--command` the
words are a command that starts the ranks. Both run in FOLDER, with the variables that the shell has. With `--launcher`
they are the package's own launch of ranks that run the script.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from horovod_study.config.variables import back_to_the_shell
from horovod_study.errors import StudyError


def main(arguments: Sequence[str] | None = None) -> int | str | None:
    """Run the script, or the command, and return what `sys.exit` takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    for name in ("--config", "--out", "--folder"):
        add(name, type=Path, required=True)
    add("--own", action="append", default=[])
    add("--set", action="append", default=[], dest="variables")
    add("--steps", type=int, help="end the training after so many")
    add("--threads")
    add("--workers", type=int)
    add("--rate", help="of a command: where its output says a rate")
    for name in ("--command", "--launcher"):
        add(name, action="store_true")
    add("words", nargs="+")
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
        declared = "command" if options.command else "script"
        return command.record(
            options.words,
            options.out,
            asked,
            {"own": own, "requested": {"batch": values["batch"], "declared": declared}},
            steps=options.steps,
            workers=options.workers,
            rate=options.rate,
            told=options.launcher,
        )
    except StudyError as error:
        return f"error: {error}"


def _script(options: argparse.Namespace, backend: str) -> int:
    """Become the script; its ranks that mpirun or srun has started are told what torchrun or horovodrun would."""
    from horovod_study.comm.launch import detect, meeting_point
    from horovod_study.recording.command import asked_file, environment

    asked = json.loads(asked_file(options.out.absolute()).read_text(encoding="utf-8"))
    words = [sys.executable, *options.words]
    launch, met = detect(os.environ), meeting_point(os.environ)
    if launch.launcher in ("mpirun", "srun"):
        from horovod_study.comm.distributed import local_rank
        from horovod_study.comm.horovod import meeting
        from horovod_study.comm.launch import find_open_mpi

        if backend == "horovod" and met and os.environ.get("HOROVOD_CONTROLLER") == "gloo":
            with meeting(*met, launch, 600.0):  # the file server of a site may be slow
                code = subprocess.call(words, env=environment(asked))
                return code if code >= 0 else 128 - code
        find_open_mpi()
        told = {"RANK": launch.rank, "WORLD_SIZE": launch.workers, "LOCAL_RANK": local_rank(os.environ)}
        os.environ.update({name: str(value) for name, value in told.items()} if backend == "ddp" else {})
    os.execve(sys.executable, words, environment(asked))


if __name__ == "__main__":
    sys.exit(main())
