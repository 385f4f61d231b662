"""`horovod-study VERB`: parse, call, print. No logic lives here.

    verbs         what a verb is made from, and what several share
    studies       run, status, doctor, predict --next; record: the training of any script as it is
    report        report, and what it exports; explain; predict (fit), predict --simulate, predict --model-parallel
    benchmarks    bench, bench loading, bench equality, bench timers
    strain        strain: data, train, search, lr-range, learning-curve

A verb is a function with its options beside it and a line in `VERBS` of its file. What needs PyTorch, pandas or
matplotlib is imported by the verb that uses it, so that help is quick and every verb works where only its own extra is
installed.
"""

import atexit
import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from horovod_study import __version__
from horovod_study.cli import benchmarks, report, strain, studies
from horovod_study.cli.verbs import Result
from horovod_study.config import limits
from horovod_study.config.options import Parser
from horovod_study.config.variables import SHELL, whole_number
from horovod_study.errors import StudyError

VERBS = (
    *studies.VERBS,
    *report.VERBS,
    *benchmarks.VERBS,
    studies.RECORD,
    *strain.VERBS,
)
EXTRAS = {"analysis": ("pandas", "scipy", "matplotlib", "jinja2"), "train": ("torch", "psutil"), "search": ("optuna",)}
"""Which extra of setup.cfg brings a package that a verb may miss."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code: 0 done, 1 a check failed or cells are missing, 2 wrong use."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    limits.install()
    if arguments is None:
        gc.set_threshold(*limits.FEW_COLLECTIONS)
        atexit.register(gc.freeze)
        signal.signal(signal.SIGTERM, _end_in_order)
        if words[:1] != ["record"]:  # figures are written and never shown, whatever is set for other programs
            os.environ |= {f"{SHELL}MPLBACKEND": os.environ.get("MPLBACKEND", ""), "MPLBACKEND": "agg"}
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name from a file that the terminal cannot show
    try:
        whole_number("SOURCE_DATE_EPOCH", os.environ)  # libraries read it while they are imported
        parser = command_line()
        if words[:2] == ["strain", "train"] and not {"-h", "--help", "--help-all"} & set(words):
            from horovod_study import train

            return train.main(words[2:])
        # What is behind `run --` is a command, whose options are no options of this program.
        end = words.index("--") if words[:1] == ["run"] and "--" in words else len(words)
        options = parser.parse_strictly(words[:end])
        options.words, options.command = words, getattr(options, "command", words[end + 1 :] if words[end:] else None)
        done = options.verb(options)
        how = {f"as_{name}": getattr(options, name, False) for name in ("json", "files")}
        code: int = done.show(**how) if isinstance(done, Result) else done
        sys.stdout.flush()  # here, where a reader that left or a full disk can still be told
        return code
    except StudyError as error:
        if limits.is_lack(error):
            limits.end(error)
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        extra = next((name for name, all_ in EXTRAS.items() if (error.name or "").split(".")[0] in all_), None)
        if extra is None:
            raise
        told = f"this verb needs {error.name}, which is not installed; run `make setup`"
        print(f"error: {told}, or pip install 'horovod_study[{extra}]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        attempt: Any = sys.modules.get("horovod_study.studies.attempt")  # not imported for this: it needs psutil
        return attempt.exit_code() if attempt else 128 + signal.SIGINT
    except OSError as error:
        return limits.refused(error)


def _end_in_order(number: int, _: Any) -> None:
    """End on SIGTERM as on Ctrl-C: what was begun is taken away. Verbs with handlers of their own replace this one."""
    for again in (signal.SIGTERM, signal.SIGINT):  # what is taken away now is not to be left half
        signal.signal(again, signal.SIG_IGN)
    print("terminated", file=sys.stderr)
    raise SystemExit(128 + number)


def command_line() -> Parser:
    """Return the parser of all verbs."""
    parser = Parser(prog="horovod-study", description="Measure, explain and predict how data-parallel training scales.")
    parser.add_argument("--version", action="version", version=f"horovod-study {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in VERBS:
        verb.add_to(verbs)
    return parser
