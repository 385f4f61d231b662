"""Who holds up the others: a side channel beside the training's communication, on which ranks answer for themselves.

A rank that waits in a collective cannot be determined why: its thread is inside a library, and the rank it waits for
may be computing, stopped, or dead. So each rank has one more thread with a datagram socket. It wakes once a second,
looks whether its own training thread has moved on, and answers what the others ask; nothing is sent while all move. A
rank that has stood still for a while asks the others, finds who holds it up, says so in one line, and ends the run.

Sockets without connections, and no server: a rank that is stopped or dead cannot hold up the thread of another, and no
rank's death takes the channel away.

All ranks make the same collective calls in the same order. Their number, counted where they are entered, tells who has
not come: the rank with fewer of them than this one.
"""

import json
import math
import os
import re
import secrets
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod_study import alive
from horovod_study.comm.base import Backend
from horovod_study.comm.stop import LostPeer
from horovod_study.measure.clock import now, sleep
from horovod_study.progress import say

WAKE_S = 1.0
SILENT_S = 3.0
"""Three questions without an answer: less is a busy machine."""
GONE_S = 5.0
"""For so long a process may be gone before the run is ended for it: launchers and libraries notice first."""
REACH_S = 5.0
"""Whoever has not answered so long after the start cannot be reached."""
PATIENCE = 10.0
"""Between the stretches of steps (evaluation, checkpoint, preparation) a rank may take this many times the timeout."""
EXIT_CODE = 2

_GRACE_S = 3.0  # before a rank speaks that is not the first to do so
_CALLS = {
    "exchange": "the synchronisation",
    "backward": "the synchronisation",
    "barrier": "the barrier",
    "bind": "the exchange of the parameters",
}
_LOST = re.compile(
    r"HorovodInternalError|Horovod has been shut down|(?:closed|reset) by peer|Broken pipe|Connection closed"
    r"|Connection refused|Socket closed|Timed out waiting|Application timeout caused|ncclRemoteError|ncclInternalError"
    r"|MPI_ERR_PROC_FAILED"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Peer:
    """Where a rank runs, and how to ask it."""

    rank: int
    host: str
    pid: int
    born: int | None  # start of the process in the system's clock ticks: a number may be given to another process
    port: int

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (pid {self.pid})"


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What is known of a rank. Seconds are those of the asking rank's thread, and stand while it is stopped itself."""

    rank: int
    calls: int = 0  # collective calls entered so far, the same sequence on all ranks
    waiting: bool = False  # inside the last of these calls
    still_s: float = 0.0  # it has not moved for so long, by its own word
    silent_s: float = 0.0  # it was asked and has not answered for so long
    gone: bool = False  # its process has ended
    ended: bool = False  # it has said that it ends, and speaks for itself
    patience: float = 1.0  # it may stand still for so many times the timeout


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingRanks:
    """The ranks that hold up this one, and how."""

    ranks: tuple[int, ...]
    how: str  # died | silent | ended | computes | elsewhere | stuck


def find_late(mine: State, others: Sequence[State], timeout_s: float) -> MissingRanks | None:
    """Return who holds up this rank when that has lasted for `timeout_s`; None as long as it may still end well.

    A process that has ended is found sooner, and a silent rank goes before those that wait for it.
    """
    watched = [each for each in others if not each.ended]
    gone = tuple(each.rank for each in watched if each.gone)
    if gone and mine.still_s >= min(GONE_S, timeout_s):
        return MissingRanks(ranks=gone, how="died")
    if mine.still_s < timeout_s:
        return None
    silent = tuple(each.rank for each in watched if each.silent_s >= max(SILENT_S, timeout_s / 2))
    if silent:
        return MissingRanks(ranks=silent, how="silent")
    if len(watched) < len(others):
        return MissingRanks(ranks=tuple(each.rank for each in others if each.ended), how="ended")
    fewest = min((each.calls for each in watched), default=mine.calls)
    if fewest < mine.calls:
        last = [each for each in watched if each.calls == fewest]
        if any(each.still_s < timeout_s * each.patience for each in last):
            return None
        computing = tuple(each.rank for each in last if not each.waiting)
        return MissingRanks(
            ranks=computing or tuple(each.rank for each in last), how="computes" if computing else "elsewhere"
        )
    together = [each for each in (mine, *watched) if each.calls == mine.calls and each.waiting]
    if len(together) == len(others) + 1 and min(each.still_s for each in together) >= 2 * timeout_s:
        return MissingRanks(ranks=(), how="stuck")
    return None


def is_lost_peer(error: BaseException) -> bool:
    """Return whether an error of a communication library says no more than that another rank is not there."""
    return isinstance(error, Exception) and bool(_LOST.search(f"{type(error).__name__}: {error}"))


class Liveness:
    """What this rank tells of itself, and the thread that answers and asks.

    The training thread writes `step` and `patience` as plain attributes, and its collective calls are counted by
    `watch`; it never waits for the other thread.
    """

    def __init__(self, backend: Backend, timeout_s: float) -> None:
        """Learn where the others are, and start answering. Collective. A worker alone has nobody to watch."""
        self.step, self.patience = 0, PATIENCE
        self.held = False  # it waits for its turn, by number of steps like all others, and for none of them
        self.calls, self.call, self.waiting = 0, "", False
        self.fail: Callable[[str], None] = lambda reason: None  # writes the reason into the record
        self._rank, self._timeout_s = backend.rank, timeout_s
        self._watching = self._closed = False
        self._ended: set[int] = set()
        self._unexplained: BaseException | None = None
        self._told = False  # another rank has said why the run ends
        if backend.workers == 1:
            return
        hosts = backend.gather(os.uname().nodename)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1" if len(set(hosts)) == 1 else "", 0))
        self._socket.setblocking(False)
        port = self._socket.getsockname()[1]
        born = alive.began(os.getpid())
        facts = backend.gather([os.getpid(), born, port, secrets.token_hex(8)])
        self._token = facts[0][3]  # datagrams of anybody else are passed over
        self.peers = [
            _Peer(rank=rank, host=hosts[rank], pid=pid, born=start, port=place)
            for rank, (pid, start, place, _) in enumerate(facts)
        ]
        self._others = [peer for peer in self.peers if peer.rank != backend.rank]
        # Equal names may belong to two containers: here is who can be seen from here.
        self._here = {peer.rank for peer in self._others if peer.host == hosts[backend.rank] and _runs(peer)}
        found = {host: _address(host) for host in {peer.host for peer in self._others if peer.rank not in self._here}}
        self._addresses = {
            peer.rank: ("127.0.0.1" if peer.rank in self._here else found[peer.host], peer.port)
            for peer in self._others
        }
        self._answers: dict[int, dict[str, Any]] = {}
        self._heard_s: dict[int, float] = {}
        # The thread's own time: it stands while this process is stopped, or a job that was suspended as a whole would
        # wake up with ranks that seem to have been silent for hours.
        self._time_s, self._woken = 0.0, now()
        self._moved, self._moved_s = (-1, -1), 0.0
        self._asking_since_s: float | None = None
        self._told_s = math.inf
        self._watching = True
        for name in ("bind", "exchange", "gather", "barrier", "sum", "maximum"):
            self.watch(backend, name)
        threading.Thread(target=self._serve, daemon=True, name="liveness").start()

    # ------------------------------------------------------------------------------- for the training thread

    def watch(self, owner: object, name: str) -> None:
        """Count the calls of a collective method of `owner`, and note when this rank is inside of one."""
        if not self._watching:
            return
        call = getattr(owner, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            outer = self.waiting
            self.calls += 1
            self.call, self.waiting = name, True
            try:
                return call(*arguments, **named)
            finally:
                self.waiting = outer

        setattr(owner, name, counted)

    @contextmanager
    def patient(self, patience: float) -> Iterator[None]:
        """Let this rank take `patience` times the timeout for what is inside; the others still notice its silence."""
        before, self.patience = self.patience, patience
        try:
            yield
        finally:
            self.patience = before

    def end(self) -> None:
        """Tell the others that this rank ends and says itself why."""
        if self._watching:
            self._send(self._others, "end")

    def close(self) -> None:
        """End the watch: the run is over, and ranks may leave one after the other."""
        self.end()
        self._watching, self._closed = False, True

    def explain(self, error: BaseException) -> BaseException:
        """Return what to raise in place of `error`: who is gone, where the error says only that somebody is.

        Takes up to 3 s, and as long as that a signal of the launcher, which has noticed too, is not followed.
        """
        if not self._watching or error is self._unexplained or not is_lost_peer(error):
            return error
        with suppress(ValueError):  # not in the main thread, where no signal arrives anyway
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        finding = self._ask_around(3.0)
        if self._told or (self._ended and (finding is None or finding.how == "ended")):
            return LostPeer("another rank has ended, see there", speaks=False)
        if finding is None:
            self._unexplained = error
            return error  # all are there and in the same place: not a lost rank, and not for one line
        speaker = min(each.rank for each in self.peers if each.rank not in {*finding.ranks, *self._ended})
        reason = self._reason(finding)
        if speaker != self._rank:
            return LostPeer(reason, speaks=False)
        self._send(self._others, "told")
        return LostPeer(reason, speaks=True)

    def _ask_around(self, patience_s: float) -> MissingRanks | None:
        """Ask until a process is seen to have ended, or for `patience_s`; return who is gone, silent or late."""
        began = now()
        self._answers.clear()
        silent_s = math.inf
        while now() - began < patience_s:
            self._send(self._others, "ask")
            sleep(0.05)
            if self._told or any(not _runs(peer) for peer in self._others if peer.rank in self._here):
                sleep(0.1)  # for what it may have said before it ended, which is in the socket already
                silent_s = 0.0  # who has not answered yet would have
                break
            there = all(peer.rank in {*self._answers, *self._ended} for peer in self._others)
            if there and now() - began > 1.0:  # a process that ends closes its connections before all else
                break
        states = [self._state(peer, 0.0 if peer.rank in self._answers else silent_s) for peer in self._others]
        mine = State(rank=self._rank, calls=self.calls, waiting=self.waiting, still_s=math.inf)
        return find_late(mine, states, 0.001)

    # ------------------------------------------------------------------------------------------- the thread

    def _serve(self) -> None:
        while not self._closed:
            with suppress(OSError):
                select.select([self._socket], [], [], WAKE_S)
            self._receive()
            gap_s = now() - self._woken
            if gap_s >= 0.9 * WAKE_S:
                self._woken += gap_s
                self._time_s += min(gap_s, 2 * WAKE_S)
                self._look()
        self._socket.close()

    def _receive(self) -> None:
        while True:
            try:
                data, source = self._socket.recvfrom(4096)
                message = json.loads(data)
                if message["token"] != self._token:
                    continue
                rank, kind = int(message["rank"]), message["kind"]
                self._addresses[rank] = source  # the way it came is a way back, whatever its host is called here
                self._heard_s[rank] = self._time_s + min(now() - self._woken, WAKE_S)
                self._answers[rank] = message
            except BlockingIOError:
                return
            except (OSError, ValueError, LookupError, TypeError, RecursionError):  # a closed port, or not from us
                continue
            if kind == "ask":
                self._send([self.peers[rank]], "answer")
            elif kind in ("end", "told"):
                self._ended.add(rank)
                if kind == "told" and not self._told:
                    self._told, self._told_s = True, self._time_s

    def _send(self, peers: Sequence[_Peer], kind: str) -> None:
        message = {
            "token": self._token,
            "rank": self._rank,
            "kind": kind,
            "calls": self.calls,
            "waiting": self.waiting,
            "still_s": self._time_s - self._moved_s if (self.calls, self.step) == self._moved else 0.0,
            "patience": min(self.patience, 1e9),
        }
        data = json.dumps(message).encode()
        for peer in peers:
            host, port = self._addresses[peer.rank]
            if host is not None:
                with suppress(OSError):  # no way there, or nobody: that is for silence to tell
                    self._socket.sendto(data, (host, port))

    def _look(self) -> None:
        """See whether this rank has moved; if not, ask, and judge what is known."""
        time_s = self._time_s
        if time_s - self._told_s > 2 * _GRACE_S:  # told why the run ends, and no launcher has ended this rank
            self._kill([peer for peer in self._others if peer.rank in self._here and _state_letter(peer) == "T"])
            os._exit(EXIT_CODE)
        unheard = [peer for peer in self._others if peer.rank not in self._heard_s]
        if unheard and time_s <= REACH_S:
            self._send(unheard, "ask")
        elif self._watching and (far := [peer for peer in unheard if peer.rank not in self._here]):
            self._watching = False
            if self._rank == 0:
                more = f" and {len(far) - 1} more" if len(far) > 1 else ""
                say(
                    f"note: {far[0]}{more} cannot be reached from {self.peers[0].host} (UDP port {far[0].port}): "
                    "a rank that stalls will not be named"
                )
        moved = (self.calls, self.step)
        if moved != self._moved or self.held or not self._watching:
            self._moved, self._moved_s, self._asking_since_s = moved, time_s, None
            return
        still_s = time_s - self._moved_s
        if still_s < min(2.0, self._timeout_s / 4):  # a wait of 2 s is unusual
            return
        if self._asking_since_s is None:
            self._asking_since_s = time_s
        mine = State(rank=self._rank, calls=self.calls, waiting=self.waiting, still_s=still_s)
        states = [
            self._state(peer, time_s - max(self._heard_s.get(peer.rank, 0.0), self._asking_since_s))
            for peer in self._others
        ]
        finding = find_late(mine, states, self._timeout_s)
        if finding is None or self._told:
            self._send(self._others, "ask")
            return
        first = min(set(range(len(self.peers))) - {*finding.ranks, *self._ended})
        due_s = min(GONE_S, self._timeout_s) if finding.how == "died" else self._timeout_s
        if self._rank == first or still_s >= due_s + _GRACE_S:
            self._end_run(finding)

    def _state(self, peer: _Peer, silent_s: float) -> State:
        answer = self._answers.get(peer.rank, {})
        told = {name: answer[name] for name in ("calls", "waiting", "still_s", "patience") if name in answer}
        gone = peer.rank in self._here and not _runs(peer)
        return State(rank=peer.rank, silent_s=silent_s, gone=gone, ended=peer.rank in self._ended, **told)

    def _end_run(self, finding: MissingRanks) -> None:
        """Say who holds up the run, record it, and end this process: its training thread cannot be interrupted.

        What does not answer on this host is ended too: a stopped process takes no notice of a launcher's SIGTERM.
        """
        ended = [
            self.peers[rank] for rank in finding.ranks
            if finding.how == "silent" and rank in self._here and self.peers[rank].born is not None
            and _runs(self.peers[rank])
        ]  # fmt: skip
        reason = self._reason(finding)
        if ended:
            reason += f", and so {'is' if len(ended) == 1 else 'are'} {_names([f'pid {peer.pid}' for peer in ended])}"
        say(f"error: {reason}")
        self._send(self._others, "told")
        writer = threading.Thread(target=self.fail, args=(reason,), daemon=True)
        writer.start()
        writer.join(GONE_S)  # a file system that does not answer may be what all wait for
        self._kill(ended)
        if finding.how == "silent" and any(rank not in self._here for rank in finding.ranks):
            _end_daemon(os.getppid())
        sys.stdout.flush()
        os._exit(EXIT_CODE)

    def _kill(self, peers: Sequence[_Peer]) -> None:
        for peer in peers:
            if peer.born is not None and _runs(peer):
                with suppress(OSError):
                    os.kill(peer.pid, signal.SIGKILL)

    # --------------------------------------------------------------------------------------------- the words

    def _reason(self, finding: MissingRanks) -> str:
        peers = [self.peers[rank] for rank in finding.ranks]
        one = len(peers) == 1
        names, has = _names([str(peer) for peer in peers]), "has" if one else "have"
        place = f"{_CALLS.get(self.call, 'the exchange')} of step {self.step:,}"
        still_s = min(self._time_s - self._moved_s, self._time_s)
        lasted = f" for {still_s:.0f} s" if still_s >= WAKE_S else ""
        if finding.how == "died":
            return (
                f"{names} {has} died or left during step {self.step:,}; look for {'its' if one else 'their'} last "
                "lines above, or in the system's log for a process ended for lack of memory"
            )
        if finding.how == "ended":
            return (
                f"{names} {has} ended before {place}, and this rank still waits; look for the reason in what "
                f"{'it' if one else 'they'} said before; the run ends"
            )
        if finding.how == "stuck":
            return (
                f"all ranks have come to {place}, and nothing has moved{lasted}: what carries their messages is "
                "stuck; look at the network, or use another --transport; the run ends"
            )
        how, next_step = {
            "silent": (
                f"{'it is' if one else 'they are'} stopped"
                if all(_state_letter(peer) in ("T", "t") for peer in peers if peer.rank in self._here)
                and all(peer.rank in self._here for peer in peers)
                else f"{'it has' if one else 'they have'} stopped answering",
                f"look at {'this process' if one else 'these processes'} and {'its host' if one else 'their hosts'}",
            ),
            "computes": (
                f"{'it still computes' if one else 'they still compute'}",
                "look at what it does, or raise --stall-timeout-s if it may take so long",
            ),
            "elsewhere": (
                f"{'it waits' if one else 'they wait'} in another exchange",
                "the ranks do not do the same; report their settings",
            ),
        }[finding.how]
        return f"{names} {has} not come to {place}{lasted}: {how}; {next_step}; the run ends"


def _address(host: str) -> str | None:
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_DGRAM)[0][4][0])
    except (OSError, UnicodeError):
        return None  # until that host asks, and so shows where it is


def _names(texts: Sequence[str]) -> str:
    if len(texts) > 3:
        texts = [*texts[:2], f"{len(texts) - 2} more"]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _state_letter(peer: _Peer) -> str:
    return (alive.stat_fields(peer.pid) or ["?"])[0]


def _end_daemon(pid: int) -> None:
    """End Open MPI's daemon on this host, if `pid` is one: behind a cut link no mpirun tells it to."""
    with suppress(OSError):
        if Path(f"/proc/{pid}/comm").read_text().strip() == "orted":
            os.kill(pid, signal.SIGTERM)


def _runs(peer: _Peer) -> bool:
    """Return whether the process of a rank on this host still runs, and is the one it was at the start."""
    return alive.runs(peer.pid, peer.born)
