"""Runs a script of somebody else as a rank of a cell, and has its training recorded: see scripted.py.

    python -m horovod_study.programs.script --config CELL.yaml --out RUN_DIR -- train.py --batch-size 32

The script sees itself as the program: `__main__`, sys.argv, and its own folder first on the path. With `--command` the
words are a command that starts the ranks.
"""

import argparse
import json
import os
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from horovod_study.files import PART, SEVERAL


def main(arguments: Sequence[str] | None = None) -> int | str | None:
    """Run the script, or the command, and return what `sys.exit` takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--own", action="append", default=[])
    parser.add_argument("--set", action="append", default=[], dest="variables")
    parser.add_argument("--steps", type=int, help="end the training after so many")
    parser.add_argument("--rate", help="of a command: where its output says a rate")
    parser.add_argument("--command", action="store_true")
    parser.add_argument("words", nargs="+")
    options = parser.parse_args(arguments)
    values = yaml.safe_load(options.config.read_text(encoding="utf-8"))
    asked = {name: values[name] for name in ("warmup_steps", "study", "partition", "repeat")} | {"disk_full": "go-on"}
    own = {name: str(values[name]) if isinstance(values[name], bool) else values[name] for name in options.own}
    os.environ.update(text.split("=", 1) for text in options.variables)
    os.environ.setdefault("OMP_NUM_THREADS", str(values["threads"]))
    if options.command:
        from horovod_study.cluster import recorded

        requested = {"batch": values["batch"], "declared": "command", "rate": options.rate}
        return recorded.record(options.words, options.out, asked, own=own, requested=requested, steps=options.steps)
    return _script(options, asked, own, values)


def _script(
    options: argparse.Namespace, asked: Mapping[str, Any], own: Mapping[str, Any], values: Mapping[str, Any]
) -> int | str | None:
    import torch  # in the environment of the cell

    from horovod_study.cluster.recorded import NO_STEPS
    from horovod_study.recording import automatic

    words, out = options.words, options.out.absolute()
    torch.set_num_threads(values["threads"])
    # One launch has one folder in which its ranks meet: its configuration is written again for each, and seen by all.
    launch = options.config.stat().st_mtime_ns
    watcher = automatic.install(
        json.dumps(
            {
                "out": str(out),
                "meeting": str(out.parent / f".{out.name}.{SEVERAL}.{launch}{PART}"),
                "options": asked,
                "batch": None,
                "model_name": None,
                "own": own,
                "requested": {"batch": values["batch"], "declared": "script"},
                "steps": options.steps,
                "remove_meeting": True,
                "one_training": True,
            }
        )
    )
    sys.argv = list(words)
    sys.path[0] = str(Path(words[0]).parent)
    code: Any = 0
    with _joined(values["backend"]):
        try:
            runpy.run_path(words[0], run_name="__main__")
        except SystemExit as end:
            code = end.code
    return code if code or watcher.began else f"no run was recorded: {NO_STEPS}"


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
