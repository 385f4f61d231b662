"""What programs of several ranks have in common: the work that a file plans, the file in which rank 0 answers, and the
end of all of them at once.

The answer is not on standard output: launchers put marks of their own into long lines.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from horovod_study.cluster.remote import MARKER
from horovod_study.errors import StudyError
from horovod_study.files import write_file
from horovod_study.measure.clock import now, sleep
from horovod_study.records import finite
from horovod_study.text.progress import say

if TYPE_CHECKING:  # PyTorch is for the ranks
    from horovod_study.comm import Backend, Launch
    from horovod_study.strain.options import StrainConfig

Told = Callable[[str], None]  # What is called with how far it is
ANSWER = "answer.json"  # In the folder of the program
ROWS = "rows"  # Where the ranks of `bench timers` write their rows, below that folder


def answer(value: Mapping[str, Any]) -> None:
    """Give the answer of a program that `run_ranks` has started; called by its rank 0 alone."""
    write_file(Path(os.environ[MARKER]) / ANSWER, json.dumps(value, allow_nan=False))


def leave(code: int, text: str = "") -> NoReturn:
    """End this process at once, after printing `text` on standard error."""
    if text:
        say(text)
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


@contextmanager
def leaving_together(rank: int) -> Iterator[None]:
    """End this process when something is raised: the launcher ends all ranks when one has failed."""
    try:
        yield
    except StudyError as error:
        if rank:
            sleep(2.0)  # rank 0 speaks for all
        leave(2, f"error: {error}")
    except Exception:
        leave(1, traceback.format_exc())  # or the ranks that wait for this one would wait for ever


def serve(work: Callable[[Mapping[str, Any], "Launch", Told], Mapping[str, Any]]) -> NoReturn:
    """Do the work that the file on the command line plans; rank 0 answers and says how far it is.

    `work` gets what the file says, the launch and what to tell; its answer is equal on all ranks.
    """
    from horovod_study.comm import detect

    launch, last = detect(os.environ), now() - 1.0

    def on_progress(text: str) -> None:
        nonlocal last
        if launch.rank == 0 and now() - last > 0.2:
            last = now()
            say(text)

    with leaving_together(launch.rank):
        result = work(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), launch, on_progress)
        if launch.rank == 0:
            answer(finite(result))
    leave(0)  # libraries' exit handlers wait for ranks that are gone, and now and then abort a good run


def serve_measurement(
    measure: Callable[[Mapping[str, Any], "StrainConfig", "Backend", Told], Mapping[str, Any]],
) -> NoReturn:
    """Serve a `plan` that is measured over one backend, that of the `config` beside it."""

    def work(content: Mapping[str, Any], launch: "Launch", on_progress: Told) -> Mapping[str, Any]:
        from horovod_study.comm import open_backend
        from horovod_study.strain.options import strain_config

        config = strain_config(content["config"], source="bench")
        backend = open_backend(config, launch)
        result = measure(content["plan"], config, backend, on_progress)
        backend.close()
        return result

    serve(work)
