"""`horovod-study doctor`: what is installed, built and reachable, and what to do about what is not.

`checks` has the table and what looks; here is who is asked, and what hosts say against each other. Nothing is changed:
what a check writes, it removes. Every program that is started is bounded in time, and no check raises.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from horovod_study.cluster.doctor.checks import LOAD_S, Finding, Machine, Wrong, look
from horovod_study.cluster.partitions import Host, Partition
from horovod_study.cluster.remote import remote_argv, this_host
from horovod_study.files import unfinished

__all__ = ["Finding", "examine", "exit_code", "to_dict"]

_SSH = {  # what it says: what to do
    "pam_slurm": "start studies inside a job (scheduler: slurm in the partition's file), which needs no ssh",
    "IDENTIFICATION HAS CHANGED": "if the machine was set up again: ssh-keygen -R {0}, then ssh {0} once yourself",
    "Host key verification failed": "ssh {0} once yourself and say yes, on every host that starts others",
    "UNPROTECTED PRIVATE KEY": "chmod 600 the file of the key: ssh does not use one that others may read",
    "Permission denied": "ssh-keygen -t ed25519, then ssh-copy-id {0}; or scheduler: slurm, which needs no ssh",
    "Could not resolve": "correct the name, or add {0} to /etc/hosts or to ~/.ssh/config",
    "Connection refused": "start sshd on {0}, or give its port in ~/.ssh/config",
    "onnection closed": "its sshd may allow fewer at a time (MaxStartups), or not you: ssh -v {0} true tells",
    "cannot be started": "install the OpenSSH client (openssh-client)",
    "route|unreachable|timed out|did not answer": "is it switched on, and in a network that this machine reaches",
    "without being asked": "in ~/.bashrc there, print in interactive shells only: [ -t 1 ]",
    "": "try it yourself: ssh -v {0} true",
}
_SAME = "one folder for all hosts, or make setup there at the same path, in the same state as here"
_NAMES = "give each a name of its own (hostnamectl set-hostname), which DNS or /etc/hosts there knows"
_WAYS = "a firewall, or no network in common: open all ports between them"


def examine(
    *, hosts: Sequence[Host] = (), partition: Partition | None = None, runs: Path = Path("runs"), quick: bool = False
) -> list[Finding]:
    """Return what was found, area after area.

    `hosts` are looked at over ssh (those of `partition` where none are given). `quick`: what takes less than three
    seconds; nothing heavy is loaded, nothing is started on other hosts.
    """
    hosts = tuple(hosts) or (partition.hosts if partition is not None else ())
    limit_s = 2.0 if quick else LOAD_S
    here = Machine(
        environ=os.environ, runs=runs, partition=partition, several=len(hosts) > 1, quick=quick, limit_s=limit_s
    )
    if partition is not None and here.slurm is None:  # nodes of Slurm have networks and variables elsewhere
        here.environ, here.interface = {**os.environ, **partition.environment}, partition.interface
        here.workers = partition.cores_per_node if partition.scheduler == "local" else 0
    return [*look(here), *(_hosts(here, {host.name: host.slots for host in hosts}) if hosts else ())]


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if anything fails, else 0."""
    return int(any(finding.verdict == "fail" for finding in findings))


def to_dict(findings: Sequence[Finding]) -> dict[str, object]:
    """Return the findings and their counts as plain values, for --json."""
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in ("ok", "warning", "fail")}
    return {"counts": counts, "findings": [asdict(finding) for finding in findings]}


def _found(name: str, good: bool | str, what: str, remedy: str = "") -> Finding:
    verdict = good if isinstance(good, str) else "ok" if good else "fail"
    return Finding(area="ssh", name=name, verdict=verdict, what=what, remedy=remedy if verdict != "ok" else "")


def _ssh(here: Machine, host: str, *argv: str, given: str = "") -> str:
    """Return what `argv` prints on `host`; no connection is left open, which would hold pipes."""
    program, *rest = remote_argv(host, argv)
    return here.call(*(argv if this_host(host) else (program, "-o", "ControlMaster=no", *rest)), given=given)


def _asked(here: Machine, host: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the checks on a host answer, with how far its clock is ahead at least (s; negative: behind)."""
    line = [sys.executable, "-P", "-c", "from horovod_study.cluster.doctor.checks import main; main()"]
    asked_s = datetime.now(UTC).timestamp()
    try:
        told: dict[str, Any] = json.loads(_ssh(here, host, *line, given=json.dumps(question) + "\n").splitlines()[-1])
    except (Wrong, ValueError, IndexError) as error:
        return {"problem": f"{sys.executable} does not run there: {error}"}
    heard_s = datetime.now(UTC).timestamp()
    first_s, last_s = told.get("clock", (asked_s, heard_s))
    return {**told, "ahead": max(0.0, last_s - heard_s) or min(0.0, first_s - asked_s)}


def _hosts(here: Machine, slots: Mapping[str, int]) -> Iterator[Finding]:
    """Look at all hosts at once; say what was found host after host, then what is between them."""
    own = {each.name: each.what for each in look(here, on=("host",))} if not here.quick else {}
    with ThreadPoolExecutor(len(slots)) as pool, ExitStack() as stack:
        logins = list(pool.map(partial(_login, here), slots))
        usable = [] if here.quick else [each.name for each in logins if each.verdict == "ok"]
        seen = ["", ""]
        with suppress(OSError):  # the area of the folder says what is wrong there
            place = next(each for each in (here.runs.absolute(), *here.runs.absolute().parents) if each.is_dir())
            folder = stack.enter_context(unfinished(place / "doctor", folder=True))
            (folder / "seen").write_text(folder.name)
            seen = [str(folder / "seen"), folder.name]
        asks = [{"workers": slots[name], "names": usable, "seen": seen} for name in usable]
        told = dict(zip(usable, pool.map(partial(_asked, here), usable, asks), strict=True))
        for login in logins:
            yield login
            if login.name in told:
                yield from _compared(here, login.name, told, own)
        ring = [name for name in told if "port" in told[name]]
        if len(ring) > 1:
            yield from pool.map(lambda name, peer: _way(here, name, peer, told), ring, ring[1:] + ring[:1])


def _login(here: Machine, name: str) -> Finding:
    if this_host(name):
        return _found(name, True, "this machine: launchers need no ssh to it")
    try:
        if said := _ssh(here, name, "true").strip():
            raise Wrong(f"it prints {said[:60]!r} without being asked: launchers read that as an answer")
    except Wrong as error:
        remedy = next(text for sign, text in _SSH.items() if re.search(sign, error.printed))
        return _found(name, False, f"{error}", remedy.format(shlex.quote(name)))
    return _found(name, True, "reached over ssh without a password; its shell prints nothing")


def _compared(
    here: Machine, name: str, told: Mapping[str, dict[str, Any]], own: Mapping[str, str]
) -> Iterator[Finding]:
    """Hold what one host says against this machine and the others."""
    there = told[name]
    if "problem" in there:
        yield _found(f"{name} Python", False, there["problem"], _SAME)
        return
    for check, verdict, what, remedy in there["findings"]:
        if check == "packages":
            same = what == own["packages"]
            text = "the versions and the source of this machine" if same else f"{what} there, {own['packages']} here"
            yield _found(f"{name} packages", same, text, _SAME)
        elif verdict != "ok" and (check == "cores" or not this_host(name)):
            yield _found(f"{name} {check}", verdict, what, f"on {name}: {remedy}")
    text = f"{'it sees' if there['seen'] else 'it does not see'} what is written to {here.runs} here"
    yield _found(f"{name} runs", there["seen"], text, "give a folder that all hosts mount with --runs")
    ahead_s = there["ahead"]
    text = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    good = "ok" if abs(ahead_s) <= 1 else "warning"
    yield _found(f"{name} clock", good, text if ahead_s else "that of this machine", "have chronyd keep all clocks")
    alike = [each for each in told if told[each].get("host") == there["host"]]
    wrong = [f"{', '.join(alike)} call themselves {there['host']}"] if len(alike) > 1 else []
    for known, addresses in there["names"].items():
        if all(each.startswith("127.") for each in addresses) and not (known == name and here.interface is not None):
            wrong.append(f"{known} is {', '.join(addresses) or 'unknown'} there: it is not reached by that name")
    yield _found(f"{name} names", not wrong, "; ".join(wrong) or "it knows itself and the others by name", _NAMES)


def _way(here: Machine, name: str, peer: str, told: Mapping[str, dict[str, Any]]) -> Finding:
    """Let a host connect to the next one at every address that it has, while all do so."""
    own = {address: card for card, address in told[name]["cards"].items()}
    addresses = [each for each in told[peer]["cards"].values() if each not in own]
    to = {"port": told[name]["port"], "addresses": addresses, "to": told[peer]["port"]}
    rows = {each: way for each, way in _asked(here, name, {"reached": to}).items() if each in addresses}
    ways = {own.get(source, "an interface"): address for address, (source, _) in rows.items() if source}
    text = "; ".join(f"through {card} to {address}" for card, address in ways.items())
    if not ways:
        why = "; ".join(f"{address}: {each}" for address, (_, each) in rows.items())
        text = f"no TCP connection to a free port ({why or 'it has no address of its own'})"
    elif here.interface is not None and here.interface not in ways:
        text, ways = f"{text}, not through {here.interface}, which is to be used", {}
    return _found(f"{name} to {peer}", bool(ways), text, _WAYS)
