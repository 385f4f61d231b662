"""Why a cell failed, in one line, from what it and its launcher printed."""

import re
import signal
from collections.abc import Iterator

from horovod_study.comm.liveness import UNNAMED, named_ranks
from horovod_study.text.words import cut

_TAG = re.compile(r"^(?:\[\d+(?:,\d+)?\]<(?:stdout|stderr)>:|\[rank\d+\]:) ?")  # mpirun, horovodrun; torchrun
_ANY_TAG = re.compile(r"\[\d+(?:,\d+)?\](?:<\w+>)?: ?")
_USER_ERROR = re.compile(r"^(?:[\w.-]+(?: \w+)?: )?error: (?P<text>.+)")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_FOLLOW_ON = re.compile(  # of a worker that lost its peer or was told to end, and of a launcher that lost a worker
    r"HorovodInternalError|Horovod has been shut down|Horovod detected that one or more|ChildFailedError"
    rf"|(?:closed|reset) by peer|Broken pipe|ended by signal 15|{UNNAMED}"
)
_LOST_RANK = re.compile(  # said by another rank
    rf"^rank (?P<rank>\d+) on .* (?:ha(?:s|ve) died or left during step |.*(?P<unnamed>{UNNAMED}))"
)
_RULE = re.compile(r"^[-=*]{20,}$")
_KILLED = (  # rank and signal; a shell adds 128 to the signal
    re.compile(r"process rank (?P<rank>\d+) .*exited on signal (?P<signal>\d+)"),  # mpirun
    re.compile(r"^Process (?P<rank>\d+) exit with status code (?P<shell>1[2-9]\d)\b", re.M),  # horovodrun --gloo
    re.compile(r"^ *rank +: (?P<rank>\d+) .*\n *exitcode +: -(?P<signal>\d+)", re.M),  # torchrun
    re.compile(r"^srun: error: \S+: task (?P<rank>\d+): (?P<named>Killed|Aborted|Segmentation fault|Bus error)", re.M),
)
_NAMED = {"Killed": 9, "Aborted": 6, "Segmentation fault": 11, "Bus error": 7}
_OF_SRUN = re.compile(  # how tasks ended; why, they have said themselves
    r"^(?:srun: error: \S+: tasks? \d|(?:slurmstepd\S*|srun): error: \*\*\* STEP \S+ ON \S+ CANCELLED)"
)
_FIRST = re.compile(r"^Terminating remaining workers after failure of Process (?P<rank>\d+)\.", re.M)
"""Said by horovodrun --gloo, which kills the others then."""
_OURS = ("$ ", "horovod-study record: ")  # Begins what is in a log beside the output of what was started
_OF_SSH = 255  # ssh ends with when the program over there was killed, or the connection broke
_ASKED = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)


def failure_reason(log: str, exit_code: int | None) -> str:
    """Return the one line of `log` that says most about why the run ended, with how it ended when that adds something.

    In this order: the message of a user error; the end of the first traceback that is not about a lost peer; the line
    in which another rank names the one that died, with the signal that killed it; a worker killed by a signal; the
    launcher itself (or a run without one) killed by a signal; what a launcher says between its rules; any other
    traceback; the last line.
    """
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", log) if not line.startswith(_OURS)]
    # torchrun's ranks say what they say without a tag, PyTorch in them with one.
    workers = [_TAG.sub("", line) for line in lines if _TAG.match(line) and not line.startswith("[rank")]
    lost: re.Match[str] | None = None
    for line in workers or lines:
        if (match := _USER_ERROR.match(line)) and not _OF_SRUN.match(line):
            if named := _LOST_RANK.match(match["text"]):
                lost = lost or named  # what that rank itself has said is better
            elif not is_follow_on(line):
                return _one_line(match["text"])
    ended = _ended(exit_code)
    tracebacks = list(_tracebacks(lines))
    for line in tracebacks:
        if not is_follow_on(line):
            return _one_line(f"{line} ({ended})")
    whole = "\n".join(lines)
    first = match["rank"] if (match := _FIRST.search(whole)) else None
    for pattern in _KILLED:
        if match := next((each for each in pattern.finditer(whole) if first in (None, each["rank"])), None):
            found = match.groupdict()
            number = int(found.get("signal", 0)) or _NAMED.get(found.get("named", "")) or int(found["shell"]) - 128
            if lost and lost["rank"] == found["rank"]:
                return _one_line(f"{lost.string} (it was killed by {_signal_name(number)})")
            if not lost or (lost["unnamed"] and number != signal.SIGTERM):
                return f"rank {found['rank']} was killed by {_signal_name(number)}"
    if lost and not lost["unnamed"]:
        return _one_line(lost.string)
    if first is not None and f"\nProcess {first} exit with status code {_OF_SSH}." in f"\n{whole}":
        return f"rank {first} was killed on its host, or the connection to it broke (exit code {_OF_SSH} of ssh)"
    if lost:
        ranks = named_ranks("\n".join(_TAG.sub("", line) for line in lines))
        missing = f"rank {', '.join(map(str, ranks))} is missing, as the library has printed: " if ranks else ""
        return _one_line(missing + lost.string)
    said = [line for line in workers or lines if line.strip() and not _RULE.match(line)]
    if exit_code is not None and exit_code < 0:
        return _one_line(f"{ended}; the last line was: {said[-1]}" if said else f"{ended}, having printed nothing")
    for candidate in (*list(_paragraphs(lines))[:1], *tracebacks[-1:], *said[-1:]):
        return _one_line(f"{candidate} ({ended})")
    return f"{ended}, having printed nothing"


def is_follow_on(reason: str) -> bool:
    """Return whether `reason` only says that something else had gone wrong before."""
    return _FOLLOW_ON.search(reason) is not None


def without_tags(line: str) -> str:
    """Return a line without what launchers write before those of their ranks."""
    return _ANY_TAG.sub("", line)


def told_to_end(reason: str, exit_code: int | None, *, begun: bool) -> bool:
    """Return whether a signal ended a run from outside, which says nothing against its going on.

    `begun`: it trained, and SIGKILL, which a lack of memory also sends, counts as a failure.
    """
    code = exit_code or 0
    number = -code if code < 0 else code - 128
    numbers = _ASKED if begun else (*_ASKED, signal.SIGKILL)
    return number in numbers or any(re.search(rf"\b{signal.Signals(each).name}\b", reason) for each in numbers)


def _tracebacks(lines: list[str]) -> Iterator[str]:
    """Yield the last line of every chain of tracebacks, ranks kept apart, in the order in which they end."""
    inside: dict[str, bool] = {}
    final: dict[str, str] = {}
    for line in lines:
        match = _TAG.match(line)
        tag = match[0] if match else ""
        text = line[len(tag) :]
        if text.startswith("Traceback (most recent call last)"):
            if not inside.get(tag) and tag in final:
                yield final.pop(tag)
            inside[tag] = True
        elif text.startswith(_CHAINED):
            final.pop(tag, None)
            inside[tag] = True
        elif inside.get(tag) and text.strip() and not text[0].isspace():
            final[tag], inside[tag] = text, False
    yield from final.values()


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Yield the first paragraph of every message that a launcher put between rules, its own summaries left out."""
    block: list[str] | None = None
    for line in lines:
        if not _RULE.match(line):
            if block is not None and line.strip():
                block.append(line.strip())
            continue
        text = " ".join(block or ())
        if text and not re.search(r"Primary job +terminated normally|exited on signal|non-zero status", text):
            yield text
        block = [] if block is None else None


def _ended(exit_code: int | None) -> str:
    if exit_code is None or exit_code < 0:
        return "it was stopped" if exit_code is None else f"ended by {_signal_name(-exit_code)}"
    return f"exit code {exit_code}" if exit_code else "exit code 0 without a finished record"


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"


def _one_line(text: str) -> str:
    return cut(" ".join(text.split()), 300)
