"""`horovod-study doctor`: what is installed, built and reachable, and what to do about what is not.

    checks   the table of the checks, and the functions that look
    probe    the one script that tells the facts about a machine, this one or another

Here is who is asked when, and what the facts of other hosts say against those of this machine. Nothing is changed: what
a check writes, it removes. Every program that is started is bounded in time, and no check raises.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from horovod_study.cluster.doctor.checks import AREAS, LOAD_S, Finding, Machine, Said, findings, machine
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
}


def examine(
    *, hosts: Sequence[Host] = (), partition: Partition | None = None, runs: Path = Path("runs"), quick: bool = False
) -> list[Finding]:
    """Return what was found, area after area.

    `hosts` are looked at over ssh (those of `partition` where none are given). `quick`: what takes less than three
    seconds; nothing heavy is loaded, nothing is started on other hosts.
    """
    hosts = tuple(hosts) or (partition.hosts if partition is not None else ())
    here = Machine(environ=os.environ, runs=runs, partition=partition, several=len(hosts) > 1, quick=quick)
    if partition is not None and here.slurm is None:  # nodes of Slurm have networks and variables elsewhere
        here.environ, here.interface = {**os.environ, **partition.environment}, partition.interface
        here.workers = partition.cores_per_node if partition.scheduler == "local" else 0
    # In this order: the facts tell who computes already, here and there.
    facts, problem = _asked(here, None, ask="facts", runs=str(runs.absolute()))
    here.facts = facts or {"problems": {"this machine": problem}}
    here.limit_s = 2.0 if quick else LOAD_S
    over_ssh = findings("ssh", here, _hosts(here, hosts)) if hosts else []
    software = ("Python", "PyTorch", "CUDA", "MPI", "Horovod")  # which compare with each other, and take their time
    chains = (software, [area for area in AREAS if area not in software])
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda areas: [findings(area, here, AREAS[area](here)) for area in areas], chains))
    return [each for area in (*found[0], *found[1], over_ssh) for each in area]


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if anything fails, else 0."""
    return int(any(finding.verdict == "fail" for finding in findings))


def to_dict(findings: Sequence[Finding]) -> dict[str, object]:
    """Return the findings and their counts as plain values, for --json."""
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in ("ok", "warning", "fail")}
    return {"counts": counts, "findings": [asdict(finding) for finding in findings]}


def _asked(here: Machine, host: str | None, **question: Any) -> tuple[dict[str, Any], str]:
    """Return what the probe answers on a host, here for None, and what was wrong."""
    line = [sys.executable, "-P", "-c", "from horovod_study.cluster.doctor.probe import main; main()"]
    there = line if host is None or this_host(host) else _ssh(host, *line)
    found, problem = here.told(*there, given=json.dumps(question) + "\n")
    return (found[-1], "") if found else ({}, problem)


def _ssh(host: str, *argv: str) -> list[str]:
    """Return how to run `argv` on `host` without a person; no connection is left open, which would hold pipes."""
    program, *rest = remote_argv(host, argv)
    return [program, "-o", "ControlMaster=no", *rest]


def _hosts(here: Machine, hosts: Sequence[Host]) -> Iterator[Said]:
    """Look at all hosts at once; say what was found host after host, then what is between them."""
    named = {host.name: host for host in hosts}
    if len(named) < len(hosts):
        yield Said("hosts", False, f"of {', '.join(host.name for host in hosts)} one is named twice")
    with ThreadPoolExecutor(len(named)) as pool, ExitStack() as stack:
        logins = dict(zip(named, pool.map(lambda name: _login(here, name), named), strict=True))
        usable = [name for name in named if logins[name].passes is True or logins[name].check == "shell"]
        seen: list[str] = []
        with suppress(OSError, LookupError):  # the area of the folder says what is wrong there
            place = Path(here.facts["folder"]["place"]) / "doctor"
            folder = stack.enter_context(unfinished(place, folder=True))
            (folder / "seen").write_text(folder.name)
            seen = [str(folder / "seen"), folder.name]
        told = [] if here.quick else pool.map(lambda name: _facts(here, name, usable, seen), usable)
        facts = dict(zip(usable, told, strict=False))
        for name, said in logins.items():
            yield said
            if name in facts:
                yield from _compared(here, replace(here, facts=facts[name], workers=named[name].slots), name)
        ring = [name for name in facts if {"port", "interfaces"} <= set(facts[name])]
        if len(ring) > 1:
            called = [facts[name]["host"] for name in ring]
            twice = [name for name in ring if called.count(facts[name]["host"]) > 1]
            text = f"{', '.join(twice)} call themselves the same: Gloo and Open MPI take them for one machine"
            yield Said("host names", not twice, text if twice else ", ".join(called))
            yield from pool.map(lambda name, peer: _way(here, name, peer, facts), ring, ring[1:] + ring[:1])


def _login(here: Machine, name: str) -> Said:
    if this_host(name):
        return Said("login", True, "this machine: launchers need no ssh to it", name=name)
    answer = here.call(*_ssh(name, "true"))
    if answer.code != 0:
        known = (text for sign, text in _SSH.items() if re.search(sign, answer.errors + answer.output))
        return Said("login", False, answer.reason, next(known, "").format(shlex.quote(name)), name)
    if said := answer.output.strip():
        text = f"it prints {said[:60]!r} without being asked: launchers read that as an answer"
        return Said("shell", False, text, name=f"{name} shell")
    return Said("login", True, "reached over ssh without a password; its shell prints nothing", name=name)


def _facts(here: Machine, name: str, names: Sequence[str], seen: Sequence[str]) -> dict[str, Any]:
    """Return the facts of a host, with how far its clock is ahead at least (s; negative: behind)."""
    asked_s = datetime.now(UTC).timestamp()
    facts, problem = _asked(here, name, ask="facts", names=names, seen=seen)
    heard_s = datetime.now(UTC).timestamp()
    first_s, last_s = facts.get("clock", (asked_s, heard_s))
    return {**facts, "problem": problem, "ahead": max(0.0, last_s - heard_s) or min(0.0, first_s - asked_s)}


def _compared(here: Machine, there: Machine, name: str) -> Iterator[Said]:
    """Hold the facts of one host against those of this machine."""
    facts, own = there.facts, here.facts
    if facts["problem"]:
        yield Said("Python", False, f"{sys.executable} does not run there: {facts['problem']}", name=f"{name} Python")
        return
    pairs = [(each, facts["packages"][each], version) for each, version in own["packages"].items()]
    text = "; ".join(f"{each} {a or 'missing'} there, {b or 'missing'} here" for each, a, b in pairs if a != b)
    yield Said("packages", not text, text or "the versions of this machine", name=f"{name} packages")
    theirs, code = facts.get("code"), own.get("code")
    text = "the same source as here" if theirs == code else f"another source: {theirs} there, {code} here"
    yield Said("horovod_study", theirs == code, text, name=f"{name} horovod_study")
    if facts["seen"] is not None:
        text = f"{'it sees' if facts['seen'] else 'it does not see'} what is written to {here.runs} here"
        yield Said("runs", facts["seen"], text, name=f"{name} runs")
    ahead_s = facts["ahead"]
    text = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    yield Said("clock", abs(ahead_s) <= 1, text if ahead_s else "that of this machine", name=f"{name} clock")
    for known, addresses in facts.get("addresses", {}).items():
        own_name, lost = known in (name, facts["host"]), all(each.startswith("127.") for each in addresses)
        if lost and not (own_name and (here.interface is not None or not here.several)):
            text = f"{known} is {', '.join(addresses) or 'unknown'} there: it is not reached by that name"
            yield Said("knows", "warning" if own_name else "fail", text, name=f"{name} knows {known}")
    for finding in (said.finding("machine") for said in machine(there)):
        if finding.verdict != "ok" and (finding.name == "cores" or not this_host(name)):
            remedy = f"on {name}: {finding.remedy}"
            yield Said("worry", finding.verdict, finding.what, remedy, f"{name} {finding.name}")


def _way(here: Machine, name: str, peer: str, facts: Mapping[str, Any]) -> Said:
    """Let a host connect to the next one at every address that it has, while all do so."""
    own = {each["address"]: card for card, each in facts[name]["interfaces"].items()}
    addresses = [each["address"] for each in facts[peer]["interfaces"].values() if each["address"] not in own]
    to = {"port": facts[name]["port"], "addresses": addresses, "to": facts[peer]["port"]}
    rows, problem = _asked(here, name, ask="reached", **to)
    ways = {own.get(source, "an interface"): address for address, (source, _) in rows.items() if source}
    text = "; ".join(f"through {card} to {address}" for card, address in ways.items())
    if not ways:
        why = [f"{address}: {each}" for address, (_, each) in rows.items()]
        text = f"no TCP connection to a free port ({'; '.join(why) or problem or 'it has no address of its own'})"
    elif here.interface is not None and here.interface not in ways:
        text, ways = f"{text}, not through {here.interface}, which is to be used", {}
    return Said("to", bool(ways), text, name=f"{name} to {peer}")
