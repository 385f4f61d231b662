"""What NCCL says about the way it took: its log lines, captured from a file of this process and parsed.

NCCL chooses by itself between copies from GPU to GPU (P2P, over NVLink or PCIe), shared memory, InfiniBand and TCP,
and tells only its log (NCCL_DEBUG=INFO). The lines that count, as NCCL 2.18 to 2.28 print them:

    ... NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
    ... NCCL INFO NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 ...
    ... NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
    ... NCCL INFO NET/OFI Selected provider is efa, ...
    ... NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
    ... NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
    ... NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA
"""

import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_USING = re.compile(r"NET/(IB|Socket) : Using (.*)")
_MERGED = re.compile(r"\[(\d+)\]=\{([^}]*)\}")  # several ports used as one: [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB}
_PORT = re.compile(r"(?:\[(\d+)\] ?)([^\s:{}]+):\d+/(IB|RoCE)")
_VIA = re.compile(r"\bvia (P2P|SHM|NET|COLLNET)/(AWS Libfabric|[A-Za-z]\w*(?: pointer)?)(?:/(\d+))?")


def parse(text: str) -> dict[str, Any]:
    """Return {"version", "nets", "paths", "path"} of the log lines of one process or of several.

    version: e.g. 2.21.5+cuda12.4, None where no line says so. nets: what NCCL found to communicate over, e.g. IB
    mlx5_0, RoCE mlx5_1, Socket eth0, OFI efa. paths: how many channels went which way, e.g. {"NET/IB": 4, "P2P/CUMEM":
    2}. path: the same in this project's words, sorted: p2p, shared memory, infiniband:mlx5_0, roce:mlx5_1, tcp:eth0,
    ofi:efa; empty where no line tells of a channel.
    """
    version = re.search(r"NCCL version (\d[\w.+-]*)", text)
    ports: dict[int, list[tuple[str, str]]] = {}  # number of an InfiniBand device -> its ports: link and name
    interfaces: dict[int, str] = {}
    provider = ""
    for line in text.splitlines():
        if using := _USING.search(line):
            listed = using[2].split("; OOB")[0]
            if using[1] == "Socket":
                named = re.findall(r"\[(\d+)\]([^\s:{}]+):", listed)
                interfaces.update({int(number): name for number, name in named})
                continue
            for number, inside in _MERGED.findall(listed):
                ports[int(number)] = [(link, name) for _, name, link in _PORT.findall(inside)]
            for number, name, link in _PORT.findall(_MERGED.sub("", listed)):
                ports[int(number)] = [(link, name)]
        elif virtual := re.search(r"Made virtual device \[(\d+)\] name=(\S+)", line):
            links = {name: link for known in ports.values() for link, name in known}
            ports[int(virtual[1])] = [(links.get(name, "IB"), name) for name in virtual[2].split("+")]
        elif found := re.search(r"NET/OFI Selected [Pp]rovider is ([\w;-]+)", line):
            provider = found[1]
    paths: Counter[str] = Counter()
    ways: set[str] = set()
    for line in text.splitlines():
        if via := _VIA.search(line):
            kind, way, number = via[1], via[2], int(via[3]) if via[3] else None
            paths[f"{kind}/{way}".removesuffix(" pointer")] += 1
            ways |= _ways(kind, way, number, ports, interfaces, provider)
        elif re.search(r"\bvia direct shared memory", line):  # NCCL before 2.12
            paths["SHM/direct"] += 1
            ways.add("shared memory")
    nets = {f"{link} {name}": None for known in ports.values() for link, name in known}
    nets |= {f"Socket {name}": None for name in interfaces.values()}
    nets |= {f"OFI {provider}": None} if provider else {}
    found = {"version": version[1] if version else None, "nets": list(nets)}
    return {**found, "paths": dict(sorted(paths.items())), "path": sorted(ways)}


def _ways(
    kind: str,
    way: str,
    number: int | None,
    ports: Mapping[int, list[tuple[str, str]]],
    interfaces: Mapping[int, str],
    provider: str,
) -> set[str]:
    """Return one channel's way in this project's words."""
    if kind == "P2P":
        return {"p2p"}
    if kind == "SHM":
        return {"shared memory"}
    if way == "Socket":
        return {f"tcp:{interfaces[number]}" if number is not None and number in interfaces else "tcp"}
    if kind == "COLLNET":  # summed inside InfiniBand's switches; its devices have numbers of their own
        return {"infiniband"}
    if way.startswith("IB"):  # IB, and the plugins IBext, IBext_v8
        known = ports.get(-1 if number is None else number, [])
        return {f"{'roce' if link == 'RoCE' else 'infiniband'}:{name}" for link, name in known} or {"infiniband"}
    if "Libfabric" in way or way == "OFI":
        return {f"ofi:{provider}" if provider else "ofi"}
    return {way.strip()}


def _named(text: str) -> Path:
    """Return the file that NCCL writes for this process: %h is the host, %p the process."""
    return Path(text.replace("%h", os.uname().nodename).replace("%p", str(os.getpid())))


class Capture:
    """NCCL's log of this process, in a file of its own from before the library starts until it is read.

    A user who has set NCCL_DEBUG keeps it: then only a file named by NCCL_DEBUG_FILE can be read, and stays.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._folder: Path | None = None
        self._file: Path | None = None
        self._set: list[str] = []
        if not wanted:
            return
        if "NCCL_DEBUG" in os.environ:
            if name := os.environ.get("NCCL_DEBUG_FILE"):
                self._file = _named(name)
            return
        self._folder = Path(tempfile.mkdtemp(prefix="horovod_study-nccl-"))
        self._file = self._folder / "nccl.log"
        wanted_set = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(self._file)}
        for name, value in wanted_set.items():
            if name not in os.environ:
                os.environ[name] = value
                self._set.append(name)
        self._file = _named(os.environ["NCCL_DEBUG_FILE"])

    def read(self) -> dict[str, Any]:
        """Return `parse` of the log so far, with "reason" saying why "path" is empty where it is."""
        if self._file is None:
            reason = (
                "NCCL_DEBUG is set without NCCL_DEBUG_FILE, so NCCL's log went elsewhere; leave NCCL_DEBUG out, or set "
                "NCCL_DEBUG=INFO and NCCL_DEBUG_FILE=/tmp/nccl.%h.%p"
            )
            return {**parse(""), "reason": reason}
        try:
            text = self._file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return {**parse(""), "reason": f"NCCL's log {self._file} cannot be read ({error.strerror})"}
        found = parse(text)
        return {**found, "reason": "" if found["path"] else "NCCL's log names no channel; set NCCL_DEBUG=INFO"}

    def close(self) -> None:
        """Remove the file, unless it is the user's, and what was set in the environment."""
        for name in self._set:
            os.environ.pop(name, None)
        self._set = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
