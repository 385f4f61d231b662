"""A real Slurm of two nodes on this machine, for tests: `with SlurmCluster(folder) as cluster: cluster.run("sinfo")`.

Each node is a network namespace with a host name and an address of its own, joined by a bridge, so that MPI and Gloo
take them for two machines. The controller runs outside, at the bridge's address. GPUs are character devices that no
driver is behind. Two partitions share the nodes: jobs of `urgent` take them away from jobs of `main`, which are
requeued. All that is started has names with this process' number in them, and is stopped and removed by
`close`, also when `open` fails half way; what a killed test run left behind is removed by the next `open`.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from make.waiting import until

NODES = ("n1", "n2")
PARTITIONS = ("main", "urgent")
PROGRAMS = (
    "slurmctld",
    "slurmd",
    "munged",
    "munge",
    "sbatch",
    "squeue",
    "scontrol",
    "srun",
    "ip",
    "nsenter",
    "unshare",
)
_TAG = "hss"  # names of namespaces and interfaces: hss<pid>n1, hss<pid>b; at most 15 characters
_PROC = Path("/proc")
_MARK = "SLURM_CLUSTER_OF_TESTS"


def why_not() -> str:
    """Return why there can be no such cluster here, or ""."""
    if os.geteuid() != 0:
        return "a Slurm of two nodes needs root"
    search = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    missing = [name for name in PROGRAMS if shutil.which(name, path=search) is None]
    if missing:
        return f"a Slurm of two nodes needs {', '.join(missing)} (Debian: slurm-wlm, munge, iproute2)"
    tried = subprocess.run(
        ("ip", "link", "add", f"{_TAG}probe{os.getpid()}"[:15], "type", "bridge"), capture_output=True
    )
    subprocess.run(("ip", "link", "del", f"{_TAG}probe{os.getpid()}"[:15]), capture_output=True)
    return "" if tried.returncode == 0 else "network interfaces cannot be made here"


class SlurmCluster:
    """Two nodes with `cpus` cores and `gpus` pretended GPUs each."""

    def __init__(self, folder: Path, *, cpus: int = 4, gpus: int = 2, forget_s: int = 300, grace_s: int = 20) -> None:
        """`forget_s`: how long the controller remembers ended jobs; `grace_s`: between the first signal of a
        pre-emption and the end."""
        self.folder = folder
        self._cpus, self._gpus, self._forget_s, self._grace_s = cpus, gpus, forget_s, grace_s
        self._id = f"{_TAG}{os.getpid()}"
        self._subnet = f"10.{64 + os.getpid() % 128}.{os.getpid() // 128 % 256}"
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.environment: dict[str, str] = {}

    def __enter__(self) -> "SlurmCluster":
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ up and down

    def open(self) -> None:
        """Start everything and wait until both nodes are idle."""
        remove_left_over()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._network()
        ports = free_ports(1 + len(NODES))
        (self.folder / "slurm.conf").write_text(self._slurm_conf(ports))
        (self.folder / "gres.conf").write_text(
            f"NodeName={','.join(NODES)} Name=gpu File={self.folder}/gpu[0-{self._gpus - 1}]\n"
        )
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        for number in range(self._gpus):
            os.mknod(self.folder / f"gpu{number}", 0o660 | 0o020000, os.makedev(195, number))
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        # PATH with the system's own folders only: what a person's shell has there must not matter to the daemons.
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SQUEUE"))},
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            _MARK: self._id,
        }
        self._munge()
        self._daemon("slurmctld", "-D", "-f", str(self.folder / "slurm.conf"), "-i")
        for node in NODES:
            self._daemon(*self.inside(node, "slurmd", "-D", "-N", node, "-f", str(self.folder / "slurm.conf")))
        self.wait_for(lambda: self._states() == {"idle"}, "both nodes to be idle")

    def close(self) -> None:
        """Stop and remove everything; what cannot be stopped is killed."""
        if self.environment:
            with contextlib.suppress(AssertionError, OSError, subprocess.SubprocessError):
                self.run("scancel", "--user", str(os.getuid()), check=False, timeout_s=5)
                self.wait_for(lambda: not self.run("squeue", "-h").strip(), "no job to be left")
        _end([daemon.pid for daemon in self._daemons])
        for daemon in self._daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(5)
        self._daemons.clear()
        _end(marked(self._id))
        remove_network(self._id)

    def _network(self) -> None:
        bridge = f"{self._id}b"
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{self._subnet}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        names = [f"{self.address(node)} {node}\n" for node in NODES]
        (self.folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *names]))
        for node in NODES:
            space = f"{self._id}{node}"
            _ip("netns", "add", space)
            _ip("link", "add", f"{space}v", "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", f"{space}v", "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def address(self, node: str) -> str:
        """Return the address of a node."""
        return f"{self._subnet}.{NODES.index(node) + 1}"

    def inside(self, node: str, *command: str) -> tuple[str, ...]:
        """Return `command` as it is run on a node, with the node's network and host name."""
        # Not `ip netns exec`: that mounts a new /sys, and slurmd does not start without the control groups in it.
        # Without names of its own a node finds 127.0.0.1 for its host name, and Gloo connects to that.
        script = 'mount --bind "$1" /etc/hosts; hostname "$2"; shift 2; exec "$@"'
        entered = ("nsenter", f"--net=/run/netns/{self._id}{node}", "unshare", "--uts", "--mount", "sh", "-c", script)
        return (*entered, "sh", str(self.folder / "hosts"), node, *command)

    def _munge(self) -> None:
        # munged insists on folders that others cannot write; a socket's path has at most 107 characters.
        self._munge_folder = Path("/run") / self._id
        self._munge_folder.mkdir(mode=0o755)
        key = self._munge_folder / "key"
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(128))
        names = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        paths = [f"--{option}={self._munge_folder / name}" for option, name in names.items()]
        self._daemon("munged", "--foreground", f"--key-file={key}", "--num-threads=2", *paths)
        self.wait_for((self._munge_folder / "socket").exists, "munge's socket")

    def _daemon(self, *command: str) -> None:
        with (self.folder / f"daemon-{len(self._daemons)}.log").open("wb") as log:
            path = os.pathsep.join((self.environment.get("PATH", ""), "/usr/sbin", "/sbin"))
            self._daemons.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**self.environment, "PATH": path},
                    cwd=self.folder,
                    start_new_session=True,
                )
            )

    def _slurm_conf(self, ports: list[int]) -> str:
        nodes = "\n".join(
            f"NodeName={node} NodeAddr={self.address(node)} NodeHostname={node} Port={port} CPUs={self._cpus} "
            f"RealMemory=4000 Gres=gpu:{self._gpus} State=UNKNOWN"
            for node, port in zip(NODES, ports[1:], strict=True)
        )
        return f"""\
ClusterName={self._id}
SlurmctldHost={socket.gethostname()}({self._subnet}.254)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/run/{self._id}/socket
CredType=cred/munge
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool-%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd-%n.pid
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd-%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=0,requeue_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
MinJobAge={self._forget_s}
KillWait=3
InactiveLimit=0
SlurmctldTimeout=60
SlurmdTimeout=60
GresTypes=gpu
{nodes}
PartitionName=main Nodes={",".join(NODES)} Default=YES MaxTime=60 State=UP PriorityTier=1 GraceTime={self._grace_s}
PartitionName=urgent Nodes={",".join(NODES)} MaxTime=60 State=UP PriorityTier=10 PreemptMode=off
"""

    # ------------------------------------------------------------------------------------------------ using it

    def run(self, *command: str, check: bool = True, timeout_s: float = 300) -> str:
        """Run a Slurm command as a user on a login node would; return what it printed."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=timeout_s)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def _states(self) -> set[str]:
        lines = self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split()
        return set(lines)

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait until `condition()` is true."""
        until(condition, what, told=self.logs)

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        texts = []
        for path in sorted(self.folder.glob("*.log")):
            texts.append(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}")
        return "\n".join(texts)


def free_ports(count: int) -> list[int]:
    """Return TCP ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def _ip(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(("ip", *arguments), capture_output=True, text=True)
    if check and done.returncode:
        raise AssertionError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def marked(name: str) -> list[int]:
    """Return the processes that were started by the cluster `name` or by its jobs."""
    found = []
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            if f"{_MARK}={name}".encode() in variables or f"SLURM_CLUSTER_NAME={name}".encode() in variables:
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def _end(pids: list[int]) -> None:
    """Ask processes to end, and kill what is left after three seconds."""
    for number, patience_s in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 1.0)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + patience_s
        while (pids := [pid for pid in pids if _alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def remove_network(name: str) -> None:
    """Remove the namespaces, interfaces and folders of the cluster `name`."""
    for node in NODES:
        _ip("netns", "del", f"{name}{node}", check=False)
        _ip("link", "del", f"{name}{node}v", check=False)
    _ip("link", "del", f"{name}b", check=False)
    shutil.rmtree(Path("/run", name), ignore_errors=True)


def remove_left_over() -> None:
    """Remove what killed test runs left behind: clusters whose process is gone."""
    names = set(re.findall(rf"\b({_TAG}\d+)(?:b\b|n\dv?\b)", _ip("-br", "link") + _ip("netns", "list")))
    names |= {path.name for path in Path("/run").glob(f"{_TAG}[0-9]*")}
    for name in names:
        if not _alive(int(name.removeprefix(_TAG))):
            _end(marked(name))
            remove_network(name)


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Have `os.environ` be exactly `values` for a while."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":  # manually: python tests/slurm_cluster.py FOLDER, until Ctrl-C or `kill`
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell lets what it starts in the background ignore the first
        signal.signal(number, signal.default_int_handler)
    with SlurmCluster(Path(sys.argv[1]).resolve()) as cluster:
        print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
