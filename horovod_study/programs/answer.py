"""What programs of several ranks have in common: the file in which rank 0 answers, and the end of all of them at once.

The answer is not on standard output: launchers put marks of their own into long lines.
"""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from horovod_study.cluster.remote import MARKER
from horovod_study.files import write_file
from horovod_study.progress import say

ANSWER = "answer.json"
"""In the folder of the program."""
ROWS = "rows"
"""Where the ranks of `bench timers` write their rows, below that folder."""


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
