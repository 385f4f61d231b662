"""Leases: of several processes, on several hosts that share a folder, one may go on, and the others are told who.

A claim is a small file, FOLDER/<name>.<n>, that says who holds the name and, when it was given back, how that ended.
It gets its name with link(2), which file servers do at once or not at all; many of them keep locks of open files to one
host. n counts from 1: whoever takes over a claim that was given back, or whose holder is gone, makes the next one, and
of several who try one succeeds. No claim is ever removed, so nobody can remove that of a third by mistake.

A claim is stale when its holder is gone:

    on this host           since this boot, there is no process of that number that began at that time (alive.py)
    elsewhere, in a job    the scheduler says that the job has ended (the caller knows), or it is this job, restarted
    elsewhere              nothing was heard of it for STALE_S. Holders touch their claim twice a minute; both
                           times are the file server's, so clocks of hosts may differ

A claim that looks stale and is not, because the file server's clock has jumped, is lost: `Lease.refresh` is False.
Held are the cells of a study and the study itself, in STUDY/.claims, and each run by whoever trains it, in RUN/.claims.
"""

import errno
import getpass
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Self

from horovod_study.cluster import alive
from horovod_study.config.documents import open_file, parse_json
from horovod_study.config.variables import whole_number
from horovod_study.errors import StudyError
from horovod_study.files import not_written, unfinished, write_file, writing

CLAIMS = ".claims"
"""Folder of a study's claims: one for each attempt at a cell, named by its key, and those of the study itself."""
ATTEMPTS = ".attempts"  # Folder beside runs, of those that were moved aside before they were begun again
STALE_S = 120.0  # Longer than two touches and the minute for which a client of a file server may believe old times
_RUN = "run"
_NO_LINK = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EXDEV)
_Ended = Callable[[str], bool]  # Says whether a Slurm job has ended for good; False where that is not known


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder(alive.Process):
    """Who holds a claim."""

    user: str
    job: str  # Slurm job, 12 or 12_3 of an array; "" outside of one
    restarts: int  # how often that job had been requeued

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" + (f" in job {self.job}" if self.job else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A claim file and what it says."""

    holder: Holder | None  # None: it was not signed, or is damaged
    what: str = ""
    since: str = ""  # ISO 8601, UTC, by the holder's clock
    released: str | None = None  # when it was given back; None: it is held
    state: str = ""  # how it ended, by the one who gave it back
    reason: str = ""
    path: Path = Path()
    generation: int = 0
    touched: float = field(default=0.0, compare=False)  # seconds, by the file server's clock

    def __str__(self) -> str:
        if self.holder is None:
            return f"whoever wrote {self.path}, which is incomplete (it ends {STALE_S:g} s after its last change)"
        held = f"{self.holder} since {self.since}" if self.since else str(self.holder)
        return f"{held} ({self.believed})" if self.believed else held

    @property
    def believed(self) -> str:
        """Until when its holder is believed to be there, in words; "" of one who can be asked from here."""
        if self.holder is None or self.holder.is_of_here:
            return ""
        return f"{alive.until(self.touched + STALE_S)}, unless it is heard of again"

    @property
    def request(self) -> Path:
        """The file that asks its holder, and nobody after him, to end."""
        return self.path.parent.parent / ".requests" / self.path.name

    def ask_to_end(self) -> None:
        """Ask its holder to end what he runs."""
        with writing(self.request, "make room there", error=StudyError):
            self.request.parent.mkdir(exist_ok=True)
            self.request.touch()

    @property
    def mine(self) -> bool:
        """Whether this very process holds it."""
        return self.released is None and self.holder == this_process()


class Held(StudyError):
    """Somebody else holds it: `claim` says who."""

    def __init__(self, message: str, claim: Claim) -> None:
        super().__init__(message)
        self.claim = claim


def this_process() -> Holder:
    """Describe the process that asks."""
    environ = os.environ
    job = environ.get("SLURM_JOB_ID", "")
    if "SLURM_ARRAY_JOB_ID" in environ and "SLURM_ARRAY_TASK_ID" in environ:
        job = f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in some containers
        user = str(os.getuid())
    return Holder(**alive.identity(), user=user, job=job, restarts=whole_number("SLURM_RESTART_COUNT", environ) or 0)


def is_stale(claim: Claim, *, present: float, ended: _Ended = lambda job: False) -> bool:
    """Return whether the holder of a claim is gone. `present`: seconds, the file server's clock (`server_time`)."""
    holder = claim.holder
    if claim.released is not None:
        return True
    if holder is not None:
        here = this_process()
        # A job that was requeued has the same number, and its earlier processes are gone wherever they were.
        if holder.job and (ended(holder.job) or (holder.job == here.job and holder.restarts < here.restarts)):
            return True
        # Two machines may both be called localhost: one that was restarted is told from those by its silence alone.
        if holder.is_of_here:
            return holder.has_ended()
    return present - claim.touched > STALE_S


def generations(folder: Path) -> dict[str, int]:
    """Return {name: number of its latest claim} of a folder of claims; empty where there is none."""
    found: dict[str, int] = {}
    with suppress(FileNotFoundError, NotADirectoryError):
        for each in os.listdir(folder):
            name, _, number = each.rpartition(".")
            if number.isdecimal() and not name.startswith("."):
                found[name] = max(found.get(name, 0), int(number))
    return found


def read_claim(folder: Path, name: str, generation: int) -> Claim | None:
    """Return what a claim file says, None when there is none; a torn one has no holder."""
    path = folder / f"{name}.{generation}"
    try:
        with open_file(path) as stream:  # opened, because a client of a file server asks it again only then
            touched, text = os.fstat(stream.fileno()).st_mtime, stream.read(100_000)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror}); make it readable") from None
    from horovod_study.config.doors import conform  # a mere reader can do without pydantic

    found = Claim(holder=None)
    with suppress(StudyError):
        found = conform(parse_json(text, source=str(path), again=""), Claim, str(path))
    return replace(found, path=path, generation=generation, touched=touched)


def latest(folder: Path, name: str) -> Claim | None:
    """Return the latest claim on `name`, None when there was none."""
    generation = 0
    while (folder / f"{name}.{generation + 1}").exists():  # none is ever removed, so none is missing in between
        generation += 1
    return read_claim(folder, name, generation) if generation else None


def server_time(folder: Path) -> float:
    """Return the time of the clock by which the files of `folder` are stamped, in seconds."""
    with unfinished(folder / "now") as probe:
        return probe.stat().st_mtime


def touching(touch: Callable[[], object], every_s: float) -> threading.Event:
    """Call `touch` so often, from a thread that sleeps in the kernel meanwhile, until the event returned is set."""
    ending = threading.Event()

    def go_on() -> None:
        while not ending.wait(every_s):
            with suppress(OSError):
                touch()

    threading.Thread(target=go_on, daemon=True, name="touching").start()
    return ending


class Lease:
    """A name that this process holds, until `release` or the end of a `with` block; it is touched by itself."""

    def __init__(self, claim: Claim, *, refresh_s: float) -> None:
        self.claim = claim
        # One file is touched twice a minute: nothing that a measured worker would notice.
        self._ending = touching(self.refresh, refresh_s)

    def refresh(self) -> bool:
        """Tell the others that this process is alive; False when one of them has taken over meanwhile."""
        if self.claim.path.with_suffix(f".{self.claim.generation + 1}").exists():
            return False
        with suppress(OSError):  # the server may be away for a while; the others cannot see it either
            os.utime(self.claim.path)  # without times: the server sets them, by its clock
        return True

    def moved(self, folder: Path) -> None:
        """Tell it that its folder of claims is `folder` now."""
        self.claim = replace(self.claim, path=folder / self.claim.path.name)

    def release(self, state: str = "", reason: str = "") -> None:
        """Give it back and say how it ended; only the first call counts. StudyError: that cannot be written."""
        from horovod_study.measure.clock import utc_now  # it imports numpy, which a mere reader can do without

        if not self._ending.is_set():
            self._ending.set()
            with writing(self.claim.path, "make room there; the claim ends with this process anyway", error=StudyError):
                write_file(self.claim.path, _text(self.claim, utc_now(), state, " ".join(reason.split())))

    def give_back(self) -> None:
        """Release it if that can be written; otherwise it ends with this process."""
        with suppress(StudyError):
            self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def acquire(
    folder: Path,
    name: str,
    *,
    what: str,
    ended: _Ended = lambda job: False,
    present: Callable[[Path], float] = server_time,
    refresh_s: float = 30.0,
    option: str = "runs",
) -> Lease:
    """Take `name` in `folder`, which is made if need be. What was true before may not be any more: look again then.

    `what` is named to the others: "the study", or a cell. Raises Held when somebody has it, and StudyError when the
    folder cannot be written. `ended` knows about Slurm jobs; `present` is the clock of the folder's file system.
    """
    from horovod_study.measure.clock import utc_now

    holder, since = this_process(), utc_now()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            found = latest(folder, name)
            if found is not None and not is_stale(found, present=present(folder), ended=ended):
                told = f"{what} is being run by {'this process' if found.mine else found}"
                raise Held(f"{folder.parent}: {told}; wait for it, or stop it and run again", found)
            number = found.generation + 1 if found else 1
            path = folder / f"{name}.{number}"
            claim = Claim(holder=holder, what=what, since=since, path=path, generation=number)
            if _create(path, _text(claim)):
                return Lease(claim, refresh_s=refresh_s)
    except OSError as error:
        text = not_written(folder.parent, error, f"choose a writable folder with --{option}")
        if isinstance(error, FileExistsError | NotADirectoryError):
            path = next(each for each in (folder, *folder.parents) if each.is_symlink() or each.exists())
            text = f"{path}: is no folder, but one belongs there; move it away, or choose another folder with "
            text += f"--{option}"
        raise StudyError(text) from None


def hold_study(directory: Path, *, option: str = "runs") -> Lease:
    """Hold the study in `directory`, which an option names: a second command on it gets a Held that names the first."""
    return acquire(directory / CLAIMS, "study", what="the study", option=option)


def hold_run(directory: Path) -> Lease:
    """Hold the run in `directory`, before anything is written there; Held when somebody else trains it."""
    return acquire(directory / CLAIMS, _RUN, what="the run", option="out")


def move_run(current: Path, attempts: Path) -> Path:
    """Move a run directory into `attempts`, as NAME-1 or the next number; Held when somebody trains in it."""
    with hold_run(current) as held:
        attempts.mkdir(exist_ok=True)
        names = (attempts / f"{current.name}-{number}" for number in count(1))
        kept = next(each for each in names if not each.exists())
        os.rename(current, kept)
        held.moved(kept / CLAIMS)
    return kept


def end_run_claim(directory: Path) -> None:
    """Give back the claim on the run in `directory` for a trainer on another host that the caller has ended there."""
    if (claim := holder_of_run(directory)) is not None and claim.holder is not None and not claim.holder.is_of_here:
        with suppress(OSError):  # then it ends STALE_S after its last change
            write_file(claim.path, _text(claim, claim.since, "ended", "its processes were ended"))


def holder_of_run(directory: Path) -> Claim | None:
    """Return the claim of whoever trains the run in `directory` now; None when nobody does."""
    claim = latest(directory / CLAIMS, _RUN)
    if claim is None or claim.released is not None:
        return None
    try:
        present = server_time(directory / CLAIMS)
    except OSError:  # a reader that may not write takes nobody for dead because of silence
        present = claim.touched
    return None if is_stale(claim, present=present) else claim


def require_free(directory: Path) -> None:
    """Raise Held when somebody trains in a run directory, with or without a claim on its cell."""
    if (claim := holder_of_run(directory)) is not None:
        raise Held(f"{directory}: the run is being run by {claim}; wait for it, or stop it", claim)


def _text(claim: Claim, released: str | None = None, state: str = "", reason: str = "") -> str:
    content = {name: asdict(claim)[name] for name in ("holder", "what", "since")}
    content |= {} if released is None else {"released": released, "state": state, "reason": reason}
    return json.dumps(content) + "\n"


def _create(path: Path, text: str) -> bool:
    """Make a file with its content at once; False when somebody else has made it."""
    with unfinished(path) as made:
        _write(os.open(made, os.O_WRONLY), text)
        try:
            os.link(made, path)
            return True
        except OSError as error:
            # The answer of a file server can be lost, and the question repeated: the count of links tells the truth.
            if error.errno not in _NO_LINK:
                if os.stat(made).st_nlink == 2:
                    return True
                if isinstance(error, FileExistsError):
                    return False
                raise
    # Without links (exFAT, some parallel and user-space file systems) a file is created once, too, but without its
    # content: whoever reads it in between takes it for held by somebody until it is STALE_S old.
    try:
        _write(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644), text)
    except FileExistsError:
        return False
    return True


def _write(descriptor: int, text: str) -> None:
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
