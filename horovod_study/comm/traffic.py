"""The path that the gradients really took, read off the kernel's counters: no library's word is taken for it.

A few all-reduces of known size run at the start, over the way that training uses, and what has moved meanwhile says
where they passed:

    TCP             the bytes each of this process's own connections received (TCP_INFO)
    InfiniBand      port_xmit_data of every port, in units of 4 bytes, less what passes when the run is quiet
    shared memory   nothing else moved between workers of one host; a segment of MPI in /proc/self/maps confirms it

What must move: summing S bytes over n ranks takes at least 2 (n - 1) / n S received by each of them (Patarasuk and
Yuan, J. Parallel Distrib. Comput. 69, 2009). So m ranks alone on a host exchange 2 (m - 1) S among themselves, and each
of h hosts receives at least 2 (h - 1) / h S from the others. A way counts as used when it carried at least half of it.
Where there are several hosts, it depends on the order of the ranks how much of the sum is done within each: there an
eighth is enough.

NCCL chooses by itself between copies from GPU to GPU (P2P, over NVLink or PCIe), shared memory, InfiniBand and TCP,
and tells only its log (NCCL_DEBUG=INFO), whose lines tests/test_nccl_log.py has as NCCL 2.18 to 2.28 print them.
"""

import math
import os
import re
import shutil
import socket
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from horovod_study.analysis.costs import moved_share
from horovod_study.measure.clock import now, sleep

if TYPE_CHECKING:
    from horovod_study.comm import Backend

_SEGMENTS = re.compile(r"/\S*(?:vader_segment|sm_segment|osc_rdma|ucx_shm|psm[23]_shm|mpich_shm|nccl-)\S*")
_BYTES_RECEIVED = 128  # offset of tcpi_bytes_received, 8 bytes, in struct tcp_info of Linux 4.1 and later
Reading = Mapping[str, Any]
"""Counters at one moment, or what moved on a host; bytes. None: the system does not report it, or it was not read.

connections: interface -> received by this process (what moved: by all ranks of the host) over TCP, lo is this host;
infiniband: infiniband:mlx5_0 or roce:mlx5_0 -> sent by all; segments of shared memory, from MPI or NCCL.
"""


def received_by_connections() -> dict[str, int] | None:
    """Return what each interface has brought to this process's TCP connections so far, in bytes; None if unknown.

    A connection to an address of this host is counted as lo, which is where Linux sends it. What a closed connection
    had received is no longer counted.
    """
    if not hasattr(socket, "TCP_INFO") or socket.getdefaulttimeout() is not None:
        return None  # a socket object made with a default timeout would change the mode of the library's connection
    own = {each.address.split("%")[0]: name for name, known in psutil.net_if_addrs().items() for each in known}
    found: Counter[str] = Counter()
    try:
        connections = [each for each in psutil.Process().net_connections("tcp") if each.raddr]
    except (OSError, RuntimeError, psutil.Error):
        return None
    for each in connections:
        try:
            with socket.fromfd(each.fd, each.family, each.type) as connection:  # closing it leaves the library's open
                told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # closed meanwhile
            continue
        if len(told) < _BYTES_RECEIVED + 8:
            return None  # before Linux 4.1
        here, there = (end.ip.split("%")[0].removeprefix("::ffff:") for end in (each.laddr, each.raddr))
        name = "lo" if there in own or there.startswith("127.") else own.get(here, here)
        found[name] += int(struct.unpack_from("<Q", told, _BYTES_RECEIVED)[0])
    return dict(found)


def read(
    *,
    whole_host: bool,
    proc: Path = Path("/proc"),
    system: Path = Path("/sys"),
    connections: Callable[[], Mapping[str, int] | None] = received_by_connections,
) -> Reading:
    """Return this process's counters and, with `whole_host`, those that all processes of the host share."""
    ports: Counter[str] = Counter()
    found: dict[str, Any] = {"connections": connections(), "infiniband": None, "segments": []}
    with suppress(OSError):
        maps = (proc / "self" / "maps").read_text(errors="replace")
        found["segments"] = sorted({Path(name).name for name in _SEGMENTS.findall(maps)})
    if not whole_host:
        return found
    for port in sorted(system.glob("class/infiniband/*/ports/*")):
        with suppress(OSError, ValueError):
            ethernet = (port / "link_layer").read_text().strip() == "Ethernet"
            sent = 4 * int((port / "counters" / "port_xmit_data").read_text())
            ports[f"{'roce' if ethernet else 'infiniband'}:{port.parent.parent.name}"] += sent
    return {**found, "infiniband": dict(ports)}


def moved(before: Mapping[str, int] | None, after: Mapping[str, int] | None) -> dict[str, int] | None:
    """Return what counters grew by; one that was larger before began again, as that of a new connection."""
    if before is None or after is None:
        return None
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    return {name: after[name] if value < 0 else value for name, value in grown.items()}


def without_background(
    total: Mapping[str, int] | None, quiet: Mapping[str, int] | None, *, total_s: float, quiet_s: float
) -> dict[str, int] | None:
    """Return `total`, less what passes in `total_s` at the rate of the `quiet_s` before."""
    if total is None or quiet is None:
        return None
    return {name: max(0, round(value - quiet.get(name, 0) * total_s / quiet_s)) for name, value in total.items()}


class Need(NamedTuple):
    """What the ranks of one host must receive, in bytes."""

    within: float  # from each other, when each host sums up its own first
    between: float  # from other hosts, at the least
    total: float  # from anybody, at the least


def must_move(hosts: Sequence[str], host: str, payload_bytes: float) -> Need:
    """Return what the ranks of `host` must receive.

    `hosts` is the host of each rank, `payload_bytes` the sum of the sizes that were summed over all ranks.
    """
    ranks, count = list(hosts).count(host), len(set(hosts))
    return Need(
        within=2 * (ranks - 1) * payload_bytes,
        between=moved_share(count) * payload_bytes,
        total=2 * ranks * (len(hosts) - 1) / len(hosts) * payload_bytes,
    )


def judge(found: Reading, need: Need) -> tuple[list[str] | None, str]:
    """Return the path on one host, sorted, or None and the reason.

    "shared memory" is confirmed by a segment; "memory" is not, and may also be direct copies from process to process.
    """
    if (tcp := found["connections"]) is None:
        return None, "the system does not show this process's connections"
    ports, loopback, path = dict(found["infiniband"] or {}), {"tcp:lo": tcp.get("lo", 0)}, list[str]()
    came = loopback["tcp:lo"]
    if need.between > 0:
        outside = {f"tcp:{name}": value for name, value in tcp.items() if name != "lo"}
        both, enough = {**outside, **ports}, need.between / 2
        # TCP first: over an InfiniBand interface (ib0) it moves the counters of the port as well.
        path += _used(outside, enough) or _used(ports, enough)
        if not path:
            most = max(both.items(), key=lambda item: item[1], default=("nothing", 0))
            return None, (
                f"{need.between / 1e6:.1f} MB had to pass between the hosts, and no connection or port moved half of "
                f"it (most: {most[0]}, {most[1] / 1e6:.1f} MB)"
            )
        came += sum(both[name] for name in path)
    if need.within > 0:
        enough = need.within / (2 if need.between == 0 else 8)
        used = _used(loopback, enough) or (_used(ports, enough) if need.between == 0 else [])
        if not used and need.total - came >= enough:  # so much came on no way that counts bytes
            used = ["shared memory" if found["segments"] else "memory"]
        path += used
    return sorted(set(path)), ""


def _used(candidates: Mapping[str, int], enough: float) -> list[str]:
    """Return the ways if together they carried enough bytes, without those that hardly took part."""
    total = sum(candidates.values())
    return [name for name, value in candidates.items() if value > total / 8] if total >= enough else []


def watch(
    backend: "Backend",
    synchronise: Callable[[], None],
    *,
    hosts: Sequence[str],
    payload_bytes: int,
    servers: int | None = None,
    counters: Callable[..., Reading] = read,
) -> dict[str, Any]:
    """Run a few all-reduces and return the path they took; collective, the same on every rank.

    `synchronise` averages `payload_bytes` of gradients once, over the way that training uses, and returns when they
    are there. `hosts` is the host of each rank, `servers` how many ranks are parameter servers, where there are any.
    Returns {"path": sorted list or None, "reason": why it is None, "ranks": path of each rank's host, "evidence"}.
    """
    if backend.workers == 1:
        return {"path": [], "reason": "", "ranks": [[]], "evidence": {}}
    # all-reduces are repeated until 4 MB has been summed, but not more often than 32 times
    rounds = min(32, max(1, math.ceil(4_000_000 / payload_bytes)))
    total_bytes = rounds * payload_bytes
    first = hosts.index(hosts[backend.rank]) == backend.rank
    synchronise()  # connections are opened, and messages agreed on, by the first one
    backend.barrier()
    quiet_at, start = now(), counters(whole_host=first)
    sleep(0.02)
    quiet = counters(whole_host=first)
    quiet_s = now() - quiet_at
    backend.barrier()
    began = now()
    for _ in range(rounds):
        synchronise()
    backend.barrier()
    end = counters(whole_host=first)
    before, idle, after = (each["infiniband"] for each in (start, quiet, end))
    ports = without_background(moved(idle, after), moved(before, idle), total_s=now() - began, quiet_s=quiet_s)
    connections = moved(quiet["connections"], end["connections"])
    everybody = backend.gather({"connections": connections, "infiniband": ports, "segments": end["segments"]})
    paths, reason, needed = dict[str, list[str] | None](), "", dict[str, Any]()
    for host in dict.fromkeys(hosts):
        ranks = [number for number, name in enumerate(hosts) if name == host]
        need = must_move(hosts, host, total_bytes)
        if servers is not None and min(ranks) >= servers:
            need = need._replace(within=0.0)  # its ranks communicate with servers elsewhere only
        parts, sums = [everybody[number]["connections"] for number in ranks], Counter[str]()
        for part in parts:
            sums.update(part)
        segments = sorted({name for number in ranks for name in everybody[number]["segments"]})
        found = {"connections": None if None in parts else dict(sums), "segments": segments}
        found["infiniband"] = everybody[ranks[0]]["infiniband"]
        paths[host], why = judge(found, need)
        if total_bytes < 64_000:
            few = "are too few to be distinguished from a library's own messages"
            paths[host], why = None, f"gradients of {payload_bytes} bytes {few}"
        reason = reason or (f"{host}: {why}" if why else "")
        needed[host] = {"within_bytes": round(need.within), "between_bytes": round(need.between), **found}
    known = [path for path in paths.values() if path is not None]
    together = sorted({way for path in known for way in path}) if len(known) == len(paths) else None
    evidence = {"all_reduces": rounds, "payload_bytes": payload_bytes, "hosts": needed}
    return {"path": together, "reason": reason, "ranks": [paths[host] for host in hosts], "evidence": evidence}


def told_by_nccl(found: Mapping[str, Any], logs: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> dict[str, Any]:
    """Return what `watch` found with the paths in NCCL's logs of all ranks, see `Capture`, in their place.

    Copies between GPUs move no counter of the kernel, so here the library has to be asked.
    """
    silent = next((number for number, log in enumerate(logs) if not log["path"]), None)
    ranks = [list(log["path"]) or None for log in logs]
    together = sorted({way for log in logs for way in log["path"]}) if silent is None else None
    reason = "" if silent is None else f"rank {silent} on {hosts[silent]}: {logs[silent]['reason']}"
    return {"path": together, "reason": reason, "ranks": ranks, "evidence": {**found["evidence"], "nccl": list(logs)}}


_USING = re.compile(r"NET/(IB|Socket) : Using (.*?)(?:; OOB.*)?$", re.MULTILINE)
# several ports may be one: [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB}
_DEVICE = re.compile(r"\[(\d+)\](?:=\{([^}]*)\}|(\S+))")
_VIA = re.compile(r"\bvia (P2P|SHM|NET|COLLNET)/(AWS Libfabric|[A-Za-z]\w*(?: pointer)?)(?:/(\d+))?")


def parse(text: str) -> dict[str, Any]:
    """Return {"version", "nets", "paths", "path"} of the log lines of one process or of several.

    version: e.g. 2.21.5+cuda12.4, None where no line says so. nets: what NCCL found to communicate over, e.g. IB
    mlx5_0, RoCE mlx5_1, Socket eth0, OFI efa. paths: how many channels went which way, e.g. {"NET/IB": 4, "P2P/CUMEM":
    2}. path: the same in this project's words, sorted: p2p, shared memory, infiniband:mlx5_0, roce:mlx5_1, tcp:eth0,
    ofi:efa; empty where no line tells of a channel.
    """
    version = re.search(r"NCCL version (\d[\w.+-]*)", text)
    ports: dict[str, list[str]] = {}  # number of an InfiniBand device -> its ports
    links: dict[str, str] = {}  # port -> IB or RoCE
    interfaces: dict[str, str] = {}
    for kind, listed in _USING.findall(text):
        for number, several, one in _DEVICE.findall(listed):
            if kind == "Socket":
                interfaces[number] = one.split(":")[0]
            else:
                found = re.findall(r"([^\s:]+):\d+/(IB|RoCE)", several or one)
                ports[number] = [name for name, _ in found]
                links |= dict(found)
    for number, names in re.findall(r"Made virtual device \[(\d+)\] name=(\S+)", text):
        ports[number] = names.split("+")
    provider = "".join(re.findall(r"NET/OFI Selected [Pp]rovider is ([\w;-]+)", text)[-1:])

    paths: Counter[str] = Counter()
    ways: set[str] = set()
    for kind, way, number in _VIA.findall(text):
        paths[f"{kind}/{way}".removesuffix(" pointer")] += 1
        if kind in ("P2P", "SHM"):
            ways.add({"P2P": "p2p", "SHM": "shared memory"}[kind])
        elif kind == "NET" and way.startswith("IB"):  # IB, and the plugins IBext, IBext_v8
            named = {
                f"{'roce' if links.get(port) == 'RoCE' else 'infiniband'}:{port}" for port in ports.get(number, [])
            }
            ways |= named or {"infiniband"}
        elif way == "Socket":
            ways.add(f"tcp:{interfaces[number]}" if number in interfaces else "tcp")
        elif kind == "COLLNET":  # summed in InfiniBand's switches, which have numbers of their own
            ways.add("infiniband")
        elif way == "OFI" or "Libfabric" in way:
            ways.add(f"ofi:{provider}" if provider else "ofi")
        else:
            ways.add(way)
    nets = [f"{links.get(port, 'IB')} {port}" for known in ports.values() for port in known]
    nets += [f"Socket {name}" for name in interfaces.values()] + [f"OFI {provider}"] * bool(provider)
    told = {"version": version[1] if version else None, "nets": list(dict.fromkeys(nets))}
    return {**told, "paths": dict(sorted(paths.items())), "path": sorted(ways)}


class Capture:
    """NCCL's log of this process, in a file of its own from before the library starts until it is read.

    A user who has set NCCL_DEBUG keeps it: then only a file named by NCCL_DEBUG_FILE can be read, and stays.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._folder: Path | None = None
        self._set: list[str] = []
        if wanted and "NCCL_DEBUG" not in os.environ:
            self._folder = Path(tempfile.mkdtemp(prefix="horovod_study-nccl-"))
            file = self._folder / "nccl.log"
            missing = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(file)}
            self._set = [name for name in missing if name not in os.environ]
            os.environ.update({name: missing[name] for name in self._set})
        named = os.environ.get("NCCL_DEBUG_FILE", "") if wanted else ""  # %h is the host, %p the process
        self._file = named.replace("%h", os.uname().nodename).replace("%p", str(os.getpid()))

    def read(self) -> dict[str, Any]:
        """Return `parse` of the log so far, with "reason" saying why "path" is empty where it is."""
        text, reason = "", "NCCL's log names no channel; set NCCL_DEBUG=INFO"
        try:
            text = Path(self._file).read_text(encoding="utf-8", errors="replace") if self._file else ""
        except OSError as error:
            reason = f"NCCL's log {self._file} cannot be read ({error.strerror})"
        if not self._file:
            reason = "NCCL_DEBUG is set without NCCL_DEBUG_FILE; leave NCCL_DEBUG out, or set NCCL_DEBUG=INFO and "
            reason += "NCCL_DEBUG_FILE=/tmp/nccl.%h.%p"
        found = parse(text)
        return {**found, "reason": "" if found["path"] else reason}

    def close(self) -> None:
        """Remove the file, unless it is the user's, and what was set in the environment."""
        for name in self._set:
            os.environ.pop(name, None)
        self._set = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
