"""ssh to each host: can it be used without a person, is it the same installation, and do the hosts reach each other."""

import inspect
import json
import os
import platform
import queue
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import horovod_study
from horovod_study.cluster.doctor import probe
from horovod_study.cluster.doctor.files import nearest_folder
from horovod_study.cluster.doctor.finding import Area, Finding, Here, ProgramResult, shortened
from horovod_study.cluster.identity import code_digest, installed
from horovod_study.cluster.partitions import Host
from horovod_study.cluster.remote import remote_argv, this_host
from horovod_study.files import unfinished
from horovod_study.measure.clock import now
from horovod_study.text.words import plural
from horovod_study.variables import without_working_directory

_LOGIN_S, _FACTS_S = 12.0, 30.0
_CLOCKS_APART_S = 1.0


class Hosts:
    """The checks of all hosts; their findings come host after host, in the order given."""

    def __init__(self, here: Here, hosts: Sequence[Host], runs: Path, *, interface: str | None, quick: bool) -> None:
        self._here, self._hosts, self._runs = here, list(hosts), runs
        self._interface, self._quick = interface, quick
        self._code: str | None = None

    def check(self, area: Area) -> None:
        """Look at all hosts at once."""
        names = [host.name for host in self._hosts]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            area.fail("hosts", f"{twice[0]} is named twice", f"name it once, with its slots added: {twice[0]}:2")
            self._hosts = list({host.name: host for host in self._hosts}.values())
        with ThreadPoolExecutor(16) as pool:
            logins = list(pool.map(self._login, self._hosts))
        usable = [host for host, (good, _) in zip(self._hosts, logins, strict=True) if good]
        known: dict[str, list[Finding]] = {}
        between = Area(area.name)
        if usable and not self._quick:
            with suppress(Exception):  # then versions are compared
                self._code = code_digest()
            known = self._converse(usable, between)
        for host, (_, findings) in zip(self._hosts, logins, strict=True):
            area.findings += findings + known.get(host.name, [])
        area.findings += between.findings

    # -------------------------------------------------------------------------------------------------------- login

    def _login(self, host: Host) -> tuple[bool, list[Finding]]:
        """Try `ssh HOST true`; return whether it worked, and what there is to say."""
        area = Area("ssh")
        if this_host(host.name):
            area.ok(host.name, "this machine: launchers need no ssh to it")
            return True, area.findings
        line = _ssh_line(host.name, "true")
        answer = self._here.call(line, timeout_s=2.0 if self._quick else _LOGIN_S)
        if not answer.worked:
            what, remedy = explained(host.name, answer)
            area.fail(host.name, what, remedy)
            return False, area.findings
        if answer.output.strip():
            area.fail(
                f"{host.name} shell",
                f"it prints {shortened(answer.output, 60)!r} without being asked: launchers read that as an answer",
                "in ~/.bashrc (or ~/.cshrc) there, print only in interactive shells: [ -t 1 ] && echo ...",
            )
        else:
            area.ok(host.name, "reached over ssh without a password; its shell prints nothing")
        return True, area.findings

    # -------------------------------------------------------------------------------------------------------- facts

    def _converse(self, hosts: Sequence[Host], between: Area) -> dict[str, list[Finding]]:
        """Ask every host for its facts, then let neighbours connect to each other while all listen."""
        found: dict[str, list[Finding]] = {}
        with ExitStack() as stack:
            question = {"scratch": "", "content": "", "names": [host.name for host in hosts]}
            with suppress(OSError):  # the area of the file system says what is wrong there
                seen = stack.enter_context(unfinished(nearest_folder(self._runs) / "doctor", folder=True)) / "seen"
                content = f"{os.getpid()} {now()!r}"
                seen.write_text(content)
                question |= {"scratch": str(seen), "content": content}
            conversations = {host.name: stack.enter_context(Conversation(self._here, host.name)) for host in hosts}

            def ask(host: Host) -> tuple[dict[str, Any] | None, float]:
                """Return the facts of a host, and how far its clock is ahead at least (s), negative: behind."""
                conversation, limit_s = conversations[host.name], _FACTS_S * self._here.patience
                if conversation.hear(limit_s) is None:  # Python has not started there
                    return None, 0.0
                asked_s = datetime.now(UTC).timestamp()
                conversation.say(question)
                clock = conversation.hear(limit_s)
                heard_s = datetime.now(UTC).timestamp()
                facts = conversation.hear(limit_s)
                if clock is None or facts is None:
                    return None, 0.0
                late_s, early_s = clock["utc_s"] - heard_s, clock["utc_s"] - asked_s
                return facts, max(0.0, late_s) or min(0.0, early_s)

            with ThreadPoolExecutor(len(hosts)) as pool:
                answers = dict(zip([host.name for host in hosts], pool.map(ask, hosts), strict=True))
            facts = {name: each for name, (each, _) in answers.items() if each is not None}
            for host in hosts:
                area = Area("ssh")
                each, ahead_s = answers[host.name]
                if each is None:
                    self._no_python(area, host, conversations[host.name])
                else:
                    self._facts(area, host, each, ahead_s, scratch=bool(question["scratch"]))
                found[host.name] = area.findings
            self._together(between, hosts, facts)
            self._connect(between, [host.name for host in hosts if host.name in facts], facts, conversations)
        return found

    def _no_python(self, area: Area, host: Host, conversation: "Conversation") -> None:
        said = conversation.complaint()
        python = self._here.python
        if "no such file" in said.lower() or "not found" in said.lower():
            area.fail(
                f"{host.name} Python",
                f"there is no {python} there",
                "put the project into a folder that all hosts mount, or install it at the same path on each",
            )
        else:
            area.fail(
                f"{host.name} Python",
                f"{python} did not answer there within {_FACTS_S * self._here.patience:g} s"
                + (f": {said}" if said else ""),
                f"try it yourself: ssh {shlex.quote(host.name)} {shlex.quote(str(python))} --version",
            )

    def _facts(self, area: Area, host: Host, facts: Mapping[str, Any], ahead_s: float, *, scratch: bool) -> None:
        """Compare one host with this machine."""
        name = host.name
        versions = {package: installed(package) for package in ("torch", "horovod", "mpi4py", "numpy")}
        other = [
            f"{package} {facts['packages'].get(package) or 'missing'} there, {version or 'missing'} here"
            for package, version in versions.items()
            if facts["packages"].get(package) != version
        ]
        if other:
            area.fail(f"{name} packages", "; ".join(other), f"make setup on {name}, or use one folder for all hosts")
        else:
            area.ok(f"{name} packages", f"Python {facts['python']}, and the versions of this machine")
        self._same_code(area, name, facts)
        if not scratch:
            area.warning(
                f"{name} runs", "whether it sees the folder could not be checked", "first make the folder writable here"
            )
        elif facts["scratch"]:
            area.ok(f"{name} runs", f"it sees {self._runs}")
        else:
            area.fail(
                f"{name} runs",
                f"it does not see what is written to {nearest_folder(self._runs)} here: records of its ranks would "
                "stay there",
                "give a folder that all hosts mount with --runs",
            )
        if abs(ahead_s) > _CLOCKS_APART_S:
            area.warning(
                f"{name} clock",
                f"it is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's",
                "have one time server keep all clocks right (chronyd): timelines of several hosts do not fit together",
            )
        else:
            area.ok(f"{name} clock", f"that of this machine, within {_CLOCKS_APART_S:g} s")
        if host.slots > facts["cores"]:
            area.warning(
                f"{name} slots",
                f"{plural(host.slots, 'worker')} on {plural(facts['cores'], 'core')}: they would share cores",
                f"write {name}:{facts['cores']}, or fewer",
            )
        same = facts["host"] == platform.node() and facts["boot"] == self._here.text(
            Path("/proc/sys/kernel/random/boot_id")
        )
        for worry in () if same else facts["worries"] or ():  # those of this machine have an area of their own
            remedy = f"on {name}: {worry['remedy']}"
            note = area.fail if worry["verdict"] == "fail" else area.warning
            note(f"{name} {worry['name']}", worry["what"], remedy)

    def _same_code(self, area: Area, name: str, facts: Mapping[str, Any]) -> None:
        here, there = self._code, facts.get("code")
        version = facts["packages"].get("horovod_study")
        remedy = f"bring {name} to the same state (git pull, make setup), or use one folder for all hosts"
        if version is None:
            area.fail(f"{name} horovod_study", "not installed there", f"make setup on {name}")
        elif here is not None and there is not None and here != there:
            area.fail(
                f"{name} horovod_study",
                f"its source differs from this machine's (digest {there[:12]} there, {here[:12]} here)",
                remedy,
            )
        elif version != installed("horovod_study"):
            area.fail(
                f"{name} horovod_study",
                f"{version} there, {installed('horovod_study') or horovod_study.__version__} here",
                remedy,
            )
        else:
            same = "the same source" if here is not None and there is not None else "the same version"
            area.ok(f"{name} horovod_study", f"{version}, {same} as here")

    # ------------------------------------------------------------------------------------------------ between hosts

    def _together(self, area: Area, hosts: Sequence[Host], facts: Mapping[str, dict[str, Any]]) -> None:
        """Compare the hosts with each other: their names, and the networks they have in common."""
        called: dict[str, list[str]] = {}
        for host in hosts:
            if host.name in facts:
                called.setdefault(facts[host.name]["host"], []).append(host.name)
        for own, names in called.items():
            if len(names) > 1:
                area.fail(
                    "host names",
                    f"{' and '.join(names)} all call themselves {own}: Gloo and Open MPI take them for one machine",
                    "name each machine once, or give each a name of its own (hostnamectl set-hostname)",
                )
        if len(facts) > 1 and len(called) == len(facts):
            area.ok("host names", f"{plural(len(called), 'host')}, each with a name of its own")
        for name, each in facts.items():
            if len(facts) > 1:
                self._lookups(area, name, each, [other for other in facts if other != name])

    def _lookups(self, area: Area, name: str, facts: Mapping[str, Any], others: Sequence[str]) -> None:
        unknown = [other for other in others if not facts["resolved"].get(other)]
        looped = [
            other for other in others if any(each.startswith("127.") for each in facts["resolved"].get(other, ()))
        ]
        own = facts["resolved"].get(facts["host"], [])
        if unknown:
            area.fail(
                f"{name} knows",
                f"{unknown[0]} is unknown there: launchers on it cannot reach the others by name",
                f"add the addresses of all hosts to /etc/hosts of {name}, or use names that its DNS knows",
            )
        elif looped:
            area.fail(
                f"{name} knows",
                f"there {looped[0]} stands for {facts['resolved'][looped[0]][0]}, the loopback",
                f"correct /etc/hosts of {name}",
            )
        if own and all(each.startswith("127.") for each in own) and self._interface is None:
            area.warning(
                f"{name} own name",
                f"there {facts['host']} stands for {', '.join(own)}: Gloo would listen where no other host reaches it",
                f"give `interface: NAME` in the partition's file, or correct /etc/hosts of {name}",
            )

    def _connect(
        self,
        area: Area,
        names: Sequence[str],
        facts: Mapping[str, dict[str, Any]],
        conversations: Mapping[str, "Conversation"],
    ) -> None:
        """Let each host connect to the next one, in a ring, at every address that one has."""
        if len(names) < 2:
            return
        following = {name: names[(number + 1) % len(names)] for number, name in enumerate(names)}

        def try_next(name: str) -> list[dict[str, Any]] | None:
            peer = following[name]
            addresses = [each["address"] for each in facts[peer]["interfaces"] or () if not each["loopback"]]
            addresses = addresses or facts[name]["resolved"].get(peer, [])
            conversations[name].say({"peers": [[peer, addresses, facts[peer]["port"]]]})
            answer = conversations[name].hear((probe.CONNECT_S * len(addresses) + 5.0) * self._here.patience)
            return None if answer is None else list(answer["reached"])

        with ThreadPoolExecutor(len(names)) as pool:
            tried = dict(zip(names, pool.map(try_next, names), strict=True))
        used: set[str] = set()
        for name, rows in tried.items():
            used |= self._way(area, name, following[name], rows, facts[name])
        if len(used) > 1 and self._interface is None:
            area.warning(
                "several networks",
                f"the hosts reach each other through {', '.join(sorted(used))}: each library chooses by itself",
                "say which with `interface: NAME` in the partition's file, and check it in the run records with "
                "--require path=tcp:NAME",
            )

    def _way(
        self, area: Area, name: str, peer: str, rows: list[dict[str, Any]] | None, facts: Mapping[str, Any]
    ) -> set[str]:
        """Say how a host reaches the next one; return the interfaces it can use for that."""
        title = f"{name} to {peer}"
        if rows is None:
            area.unchecked(title, f"{name} did not answer any more")
            return set()
        interfaces = {each["address"]: each["name"] for each in facts["interfaces"] or ()}
        good = [row for row in rows if row["from"] is not None]
        ways = [(interfaces.get(row["from"], "an interface"), row["address"]) for row in good]
        if not good:
            why = "; ".join(f"{row['address']}: {row['problem']}" for row in rows) or "it has no address of its own"
            area.fail(
                title,
                f"no TCP connection to a free port ({why})",
                "a firewall between the hosts, or no network in common: open all ports between them, or ask the "
                "administrator",
            )
        elif self._interface is not None and self._interface not in {way for way, _ in ways}:
            area.fail(
                title,
                f"not through {self._interface}, which is to be used, but through {', '.join(way for way, _ in ways)}",
                f"set `interface` in the partition's file to {ways[0][0]}, or bring {self._interface} up",
            )
        else:
            area.ok(title, "; ".join(f"through {way} to {address}" for way, address in ways))
        return {way for way, _ in ways}


class Conversation:
    """A probe on another host, with which JSON objects are exchanged line by line; leaving the block ends it."""

    def __init__(self, here: Here, name: str) -> None:
        self._here, self._name = here, name
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []

    def __enter__(self) -> Self:
        line = [str(self._here.python), "-c", "import sys, json; exec(json.loads(sys.stdin.readline()))"]
        self._process = subprocess.Popen(
            line if this_host(self._name) else _ssh_line(self._name, *line),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=without_working_directory(self._here.environ),
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._complaints = threading.Thread(target=self._read_errors, daemon=True)
        self._complaints.start()
        self.say(inspect.getsource(probe))
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for reader, stream in ((self._reader, self._process.stdout), (self._complaints, self._process.stderr)):
            reader.join(1.0)
            if stream is not None and not reader.is_alive():  # somebody else may hold the pipe
                stream.close()

    def say(self, value: Any) -> None:
        """Send one line; nothing happens when the other side is gone."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()

    def hear(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next object; None when there is none within the time, or the other side has ended."""
        until = now() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - now()))
            except queue.Empty:
                return None
            if line is None:
                return None
            if line.startswith(probe.MARK):
                with suppress(ValueError):
                    found = json.loads(line.removeprefix(probe.MARK))
                    if isinstance(found, dict):
                        return found

    def complaint(self) -> str:
        """Return what it said last on standard error, in one line."""
        self._complaints.join(0.5)
        return shortened(self._errors[-1], 160) if self._errors else ""

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.strip():
                self._errors.append(line.strip())


def _ssh_line(host: str, *argv: str) -> list[str]:
    """Return how to run `argv` on `host` without a person; no connection is left open, which would hold pipes."""
    program, *rest = remote_argv(host, argv)
    return [program, "-o", "ControlMaster=no", *rest]


def explained(host: str, answer: ProgramResult) -> tuple[str, str]:
    """Return why ssh did not work, and what to do about it."""
    said = f"{answer.errors} {answer.problem}"
    quoted = shlex.quote(host)
    reasons: tuple[tuple[str, str, str], ...] = (
        (
            "pam_slurm",
            "Slurm lets nobody in who has no job there",
            "start studies inside a job (scheduler: slurm in the partition's file); ssh to nodes is not needed then",
        ),
        (
            "IDENTIFICATION HAS CHANGED",
            "its host key is another one than the known one",
            f"if the machine was set up again: ssh-keygen -R {quoted}, then ssh {quoted} once yourself",
        ),
        (
            "Host key verification failed",
            "its host key is not known, and nobody is there to be asked",
            f"ssh {quoted} once yourself and say yes, on every host that starts others",
        ),
        (
            "UNPROTECTED PRIVATE KEY",
            "others may read the key's file, so ssh does not use it",
            "chmod 600 ~/.ssh/id_ed25519 (or whichever file it names)",
        ),
        (
            "Permission denied",
            "it asks for a password, or refuses the key",
            f"ssh-keygen -t ed25519, then ssh-copy-id {quoted}; where a cluster does not allow ssh between its nodes, "
            "use scheduler: slurm",
        ),
        (
            "Could not resolve",
            "its name is unknown",
            f"correct the name, or add {quoted} to /etc/hosts or to ~/.ssh/config",
        ),
        (
            "Connection refused",
            "no ssh server listens there",
            f"start sshd on {quoted}, or give its port in ~/.ssh/config",
        ),
        ("No route to host", "there is no way to it", "is it switched on, and in a network that this machine reaches"),
        (
            "Network is unreachable",
            "there is no way to its network",
            "give the name that this machine reaches it by, or bring the network up (ip route)",
        ),
        (
            "onnection closed",
            "its ssh server ends the connection at once",
            f"it may allow fewer at a time (MaxStartups), or not you: ssh -v {quoted} true tells",
        ),
        ("timed out", "it does not answer", "is it switched on; a firewall may drop the connection"),
        ("did not answer within", "it does not answer", f"try it yourself: ssh {quoted} true"),
        ("cannot be started", "there is no ssh program here", "install the OpenSSH client (openssh-client)"),
    )
    for sign, what, remedy in reasons:
        if sign in said:
            return f"{what} ({answer.reason()})", remedy
    return f"ssh does not work ({answer.reason()})", f"try it yourself: ssh -o BatchMode=yes {quoted} true"
