"""Two hosts on one machine, for tests of everything that crosses a network, and for people who want to try it.

    with TwoHosts() as hosts:
        hosts.run("node1", ["ssh", "node2", "hostname"])
        hosts.cut("node2")

Each host is a set of Linux namespaces: its own network, host name, processes (those of the other are not seen, as in
real life), shared memory, and an sshd with keys made for this pair. Files are common, as on a cluster's file server.
The hosts are joined by a bridge that lives in a namespace of its own, each behind a link of 1 Gbit/s. Nothing is
changed in the machine's own network or in /etc, and all of it lives as long as three small processes that read from
this one: when it ends, however it ends, the kernel removes everything.

Needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN), iproute2, util-linux, openssh-server and openssh-client. Manually:

    python tests/two_hosts.py up
    python tests/two_hosts.py exec node1 ssh node2 hostname
    python tests/two_hosts.py cut node2        (and: restore node2, ps node2)
    python tests/two_hosts.py down
"""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("node1", "node2")
INTERFACE = "eth0"
RATE = "1gbit"
_PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
}
_SEARCH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/bin", "/bin"))
_PREFIX = "two-hosts-"
_QUIET: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
PATIENCE_S = 300.0  # the hosts run this file alone: it imports nothing of the tests


class Unavailable(Exception):
    """Why there can be no two hosts here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A process of a host: its number as this machine sees it, what it executes, and its environment."""

    pid: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]


class HostProcess(subprocess.Popen[str]):
    """A program on a host. Signals go to the program itself, not to what brought it there."""

    def __init__(self, enter: Sequence[str], argv: Sequence[str], **options: Any) -> None:
        self._sent = 0
        super().__init__([*enter, *argv], text=True, **options)

    @property
    def inner(self) -> int | None:
        """The program's process as this machine numbers it; None when it has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while self.poll() is None and time.monotonic() < deadline:
            for pid in _pids():
                if _parent(pid) == self.pid:
                    return pid
            time.sleep(0.01)
        return None

    def send_signal(self, sig: int) -> None:
        inner = self.inner
        if inner is not None:
            with suppress(ProcessLookupError):
                os.kill(inner, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class TwoHosts:
    """Hosts called `names`, joined by links of `rate` (as `tc` writes it; None: not limited)."""

    def __init__(self, names: Sequence[str] = NAMES, *, rate: str | None = RATE, sshd: bool = True) -> None:
        """Start them; `close` or the end of a `with` block removes them. Unavailable: why that cannot be done here."""
        reason = missing()
        if reason:
            raise Unavailable(reason)
        self.names, self.rate = tuple(names), rate
        _remove_left_behind()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-{_started(os.getpid())}-"))
        self._inits: dict[str, subprocess.Popen[str]] = {}
        self.pids: dict[str, int] = {}  # name -> its process 1, as this machine numbers it
        try:
            self._write_files()
            self._switch = self._hold("switch", ["unshare", "--net"], [])
            for name in self.names:
                flags = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
                self.pids[name] = self._hold(name, ["unshare", *flags], [name, str(self.folder)])
            self._join()
            if sshd:
                self._start_sshd()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---------------------------------------------------------------------------------------------------- use

    def address(self, name: str) -> str:
        """Return the IPv4 address of a host."""
        return f"10.77.0.{self.names.index(name) + 1}"

    def popen(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        cwd: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> HostProcess:
        """Start a program on a host, in `cwd` (default: this one), with `environment` (default: this process')."""
        return HostProcess(enter(self.pids[name], cwd or Path.cwd()), list(map(str, argv)), env=environment, **options)

    def run(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        timeout_s: float = PATIENCE_S,
        check: bool = False,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on a host to its end and return what came of it; it is killed after `timeout_s`."""
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        with self.popen(name, argv, **options) as process:
            try:
                output, errors = process.communicate(timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
            done = subprocess.CompletedProcess(list(map(str, argv)), process.returncode, output, errors)
        if check and done.returncode:
            raise subprocess.CalledProcessError(done.returncode, done.args, output, errors)
        return done

    def cut(self, name: str) -> None:
        """Take the link of a host down at the bridge: it loses its network, the others hear nothing of it any more."""
        self._in_switch("ip", "link", "set", self._port(name), "down")

    def restore(self, name: str) -> None:
        """Take the link of a host up again."""
        self._in_switch("ip", "link", "set", self._port(name), "up")

    def limit(self, rate: str) -> None:
        """Let all links carry `rate` from now on; they must have had a limit before."""
        for name in self.names:
            self._limit(name, "change", rate)

    def sent(self, name: str) -> int:
        """Return how many bytes a host has sent to the others, as its interface counts them."""
        rows = Path(f"/proc/{self.pids[name]}/net/dev").read_text().splitlines()
        counts = next(row.partition(":")[2].split() for row in rows if row.strip().startswith(f"{INTERFACE}:"))
        return int(counts[8])

    def processes(self, name: str, *, sessions: bool = False) -> list[Running]:
        """Return what runs on a host, but for its process 1 and its sshd; `sessions`: sshd's open sessions too."""
        return processes(self.pids[name], sessions=sessions)

    # ------------------------------------------------------------------------------------------------ building

    def _hold(self, name: str, unshare: Sequence[str], arguments: Sequence[str]) -> int:
        """Start a process that keeps namespaces alive until its standard input ends; return its number."""
        python = [sys.executable, "-I", "-S", __file__, "_hold", *arguments]
        process = subprocess.Popen(
            [_find(unshare[0]), *unshare[1:], *python],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests, which then close in good order
        )
        self._inits[name] = process
        assert process.stdout is not None and process.stderr is not None
        if process.stdout.readline() != "ready\n":
            process.wait(PATIENCE_S)
            raise Unavailable(f"{name} cannot be made: {process.stderr.read().strip()}")
        if "--fork" not in unshare:
            return process.pid
        return next(pid for pid in _pids() if _parent(pid) == process.pid)

    def _write_files(self) -> None:
        """Write what the hosts see in place of some files in /etc."""
        key, host_key = self.folder / "user", self.folder / "host"
        for path in (key, host_key):
            _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "two hosts for tests", "-f", str(path))
        known = host_key.with_suffix(".pub").read_text()
        hosts = ["127.0.0.1 localhost", *(f"{self.address(name)} {name}" for name in self.names)]
        (self.folder / "hosts").write_text("\n".join(hosts) + "\n")
        # A locked account (most containers') may not log in where sshd runs without PAM; `*` is no password at all.
        (self.folder / "shadow").write_text("root:*:19000:0:99999:7:::\n")
        (self.folder / "shadow").chmod(0o600)
        ssh = self.folder / "ssh"
        ssh.mkdir()
        (ssh / "ssh_config").write_text(
            f"Host *\n  IdentityFile {key}\n  IdentitiesOnly yes\n  UserKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n  LogLevel ERROR\n"
        )
        names = ",".join([*self.names, *map(self.address, self.names), "localhost", "127.0.0.1"])
        (ssh / "ssh_known_hosts").write_text(f"{names} {known}")
        (self.folder / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
        (self.folder / "empty").mkdir()
        (self.folder / "sshd_config").write_text(
            f"Port 22\nHostKey {host_key}\nAuthorizedKeysFile {self.folder}/authorized_keys\nStrictModes no\n"
            "PermitRootLogin prohibit-password\nUsePAM no\nPidFile none\nUseDNS no\nMaxStartups 100\nPrintMotd no\n"
            "Subsystem sftp internal-sftp\n"
        )

    def _join(self) -> None:
        self._in_switch("ip", "link", "add", "bridge", "type", "bridge")
        self._in_switch("ip", "link", "set", "bridge", "up")
        for name in self.names:
            port, pid = self._port(name), str(self.pids[name])
            peer = ("type", "veth", "peer", "name", INTERFACE, "netns", pid)
            self._in_switch("ip", "link", "add", port, *peer)
            self._in_switch("ip", "link", "set", port, "master", "bridge", "up")
            inside = (_find("nsenter"), "--target", pid, "--net")
            _do(*inside, _find("ip"), "address", "add", f"{self.address(name)}/24", "dev", INTERFACE)
            for link in ("lo", INTERFACE):
                _do(*inside, _find("ip"), "link", "set", link, "up")
            if self.rate is not None:
                self._limit(name, "add", self.rate)

    def _limit(self, name: str, verb: str, rate: str) -> None:
        shape = ("dev", INTERFACE, "root", "tbf", "rate", rate, "burst", "128kb", "latency", "10ms")
        _do(_find("nsenter"), "--target", str(self.pids[name]), "--net", _find("tc"), "qdisc", verb, *shape)

    def _start_sshd(self) -> None:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # what the package's service would make
        for name in self.names:
            log = self.folder / f"sshd-{name}.log"
            argv: list[str | Path] = [_find("sshd"), "-D", "-f", self.folder / "sshd_config", "-E", log]
            process = self.popen(name, argv, cwd="/", start_new_session=True, **_QUIET)
            self._inits[f"sshd of {name}"] = process
            deadline = time.monotonic() + PATIENCE_S
            while not (log.exists() and "Server listening" in log.read_text()):
                if process.poll() is not None or time.monotonic() > deadline:
                    said = log.read_text().strip() if log.exists() else ""
                    raise Unavailable(f"sshd of {name} does not start: {said}")
                time.sleep(0.02)

    def close(self) -> None:
        """Remove the hosts with all that runs on them. Does no harm twice."""
        for process in self._inits.values():
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()
        for process in self._inits.values():
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(PATIENCE_S)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self._inits.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _port(self, name: str) -> str:
        return f"port{self.names.index(name) + 1}"

    def _in_switch(self, *command: str) -> None:
        _do(_find("nsenter"), "--target", str(self._switch), "--net", _find(command[0]), *command[1:])


def enter(pid: int, cwd: str | Path) -> list[str]:
    """Return the words that, before a command, bring it to the host whose process 1 is `pid`."""
    spaces = ("--net", "--uts", "--ipc", "--mount", "--pid")
    return [_find("nsenter"), "--target", str(pid), *spaces, "env", f"--chdir={cwd}"]


def processes(init: int, *, sessions: bool = False) -> list[Running]:
    """Return what runs in the process namespace of `init`, but for itself and its sshd."""
    space = _space(init)
    found = []
    for pid in _pids():
        if pid == init or space is None or _space(pid) != space:
            continue
        with suppress(OSError):
            argv = tuple(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0"))
            pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
            environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            if argv == ("",):  # it has ended, and waits to be noticed
                continue
            if argv[0].startswith("sshd:") and (not sessions or "[listener]" in argv[0]):
                continue
            found.append(Running(pid=pid, argv=argv, environment=environment))
    return found


def missing() -> str:
    """Return why there can be no two hosts on this machine, with the remedy, or "" where they can be."""
    if sys.platform != "linux":
        return "two hosts on one machine need Linux"
    lacking = sorted({package for name, package in _PROGRAMS.items() if not shutil.which(name, path=_SEARCH)})
    if lacking:
        return f"two hosts on one machine need the packages {' '.join(lacking)}: `make hosts` as root installs them"
    if os.geteuid() != 0:
        return "two hosts on one machine need root, for network namespaces"
    flags = ("--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc")
    tried = subprocess.run(
        [_find("unshare"), *flags, _find("ip"), "link", "add", "v1", "type", "veth", "peer", "name", "v2"],
        capture_output=True,
        text=True,
    )
    if tried.returncode:
        return (
            f"no network namespaces here ({tried.stderr.strip()}): a container needs the capabilities SYS_ADMIN and "
            "NET_ADMIN, such as `docker run --privileged`"
        )
    return ""


def _find(program: str) -> str:
    """Return the path of a program, also of one that only root has on PATH; its name where there is none."""
    return shutil.which(program, path=_SEARCH) or program


def _do(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")


def _pids() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _stat(pid: int) -> list[str]:
    """Return the fields of a process behind its name, [] when it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _parent(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def _started(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _space(pid: int) -> str | None:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return None


def _remove_left_behind() -> None:
    """Remove the folders of pairs whose process was killed; the hosts themselves have ended with it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*-*"):
        pid, started = folder.name.removeprefix(_PREFIX).split("-")[:2]
        if pid.isdigit() and str(_started(int(pid))) != started:
            shutil.rmtree(folder, ignore_errors=True)


def _hold(arguments: Sequence[str]) -> None:
    """Be process 1 of a host: set it up, take care of orphans, and end with standard input.

    Without a name, as the switch, keep only the network namespace.
    """
    if arguments:
        name, folder = arguments[0], Path(arguments[1])
        socket.sethostname(name)
        for source, target in (("hosts", "/etc/hosts"), ("shadow", "/etc/shadow"), ("ssh", "/etc/ssh")):
            _do(_find("mount"), "--bind", str(folder / source), target)
        settings = Path.home() / ".ssh"
        if settings.is_dir():
            _do(_find("mount"), "--bind", str(folder / "empty"), str(settings))
        _do(_find("mount"), "-t", "tmpfs", "tmpfs", "/dev/shm")
        # /sys/class/net is that of the namespace in which /sys was mounted
        groups = Path("/sys/fs/cgroup")
        if groups.is_dir():
            _do(_find("mount"), "--rbind", str(groups), str(folder / "empty"))
        _do(_find("mount"), "-t", "sysfs", "sysfs", "/sys")
        if groups.is_dir():
            _do(_find("mount"), "--rbind", str(folder / "empty"), str(groups))
            _do(_find("umount"), "--recursive", "--lazy", str(folder / "empty"))
    signal.signal(signal.SIGCHLD, lambda number, frame: _reap())
    print("ready", flush=True)
    while True:
        with suppress(InterruptedError):
            readable, _, _ = select.select([sys.stdin], [], [])
            if readable and not os.read(sys.stdin.fileno(), 1024):
                return


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


# --------------------------------------------------------------------------------------------------- manually


def _state() -> Path:
    return Path(tempfile.gettempdir()) / "two-hosts.json"


def _known() -> dict[str, Any] | None:
    """Return what is known of the pair that `up` made, None when there is none."""
    with suppress(OSError, ValueError):
        known: dict[str, Any] = json.loads(_state().read_text())
        if _state().stat().st_uid == os.geteuid() and _started(known["keeper"]) == known["started"]:
            return known
    return None


def _keep(ready: int) -> None:
    """Have two hosts until SIGTERM; tell `up` through the pipe `ready` that they are there, or why they are not."""
    try:
        hosts = TwoHosts()
    except Unavailable as error:
        os.write(ready, str(error).encode())
        return
    with hosts:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        facts = {"keeper": os.getpid(), "started": _started(os.getpid()), "pids": hosts.pids, "switch": hosts._switch}
        _state().write_text(json.dumps(facts))
        os.close(ready)
        try:
            while True:
                signal.pause()
        finally:
            _state().unlink(missing_ok=True)


def _up() -> str:
    """Start the process that has the two hosts; return "" or why not."""
    reason = missing()
    if reason:
        return reason
    if _known():
        return "two hosts are up already; `down` removes them"
    reader, writer = os.pipe()
    subprocess.Popen(
        [sys.executable, __file__, "_keep", str(writer)], pass_fds=[writer], start_new_session=True, **_QUIET
    )
    os.close(writer)
    with os.fdopen(reader) as pipe:
        problem = pipe.read()
    return problem or ("" if _known() else "two hosts could not be made")


def main(arguments: Sequence[str]) -> int:
    """The verbs for people: up, exec NODE COMMAND..., cut NODE, restore NODE, ps NODE, down."""
    verb, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    if verb == "_hold":
        _hold(rest)
        return 0
    if verb == "_keep":
        _keep(int(rest[0]))
        return 0
    if verb == "up" and not rest:
        problem = _up()
        print(problem or "node1 and node2 are up", file=sys.stderr if problem else sys.stdout)
        return 2 if problem else 0
    known = _known()
    takes_node = verb in ("exec", "cut", "restore", "ps")
    if not (verb == "down" or takes_node) or (takes_node and (not rest or rest[0] not in NAMES)):
        print(__doc__)
        return 2
    if known is None:
        print("two hosts are not up: python tests/two_hosts.py up", file=sys.stderr)
        return 2
    if verb == "down":
        os.kill(known["keeper"], signal.SIGTERM)
        while _known():
            time.sleep(0.05)
        return 0
    pid = known["pids"][rest[0]]
    if verb == "exec":
        command = [*enter(pid, Path.cwd()), *(rest[1:] or [os.environ.get("SHELL", "/bin/sh")])]
        os.execv(command[0], command)
    if verb == "ps":
        for each in processes(pid, sessions=True):
            print(each.pid, *each.argv)
        return 0
    port = f"port{NAMES.index(rest[0]) + 1}"
    state = {"cut": "down", "restore": "up"}[verb]
    _do(_find("nsenter"), "--target", str(known["switch"]), "--net", _find("ip"), "link", "set", port, state)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
