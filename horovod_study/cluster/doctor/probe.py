"""The one script that tells the facts about a machine: this one, and each other one through ssh.

It reads a question, and prints the answer, each a line of JSON:

    {"ask": "facts", "runs": folder, "names": [hosts to look up], "seen": [path, content]} -> {fact: ...}
    {"ask": "reached", "port": our port, "addresses": [of another host], "to": its port} -> {address: [ours, problem]}
"""

import csv
import errno
import ipaddress
import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from horovod_study.cluster.identity import code_digest, installed
from horovod_study.cluster.pinning import other_load
from horovod_study.cluster.process import mark_of
from horovod_study.cluster.site import free_port
from horovod_study.config import available_cores
from horovod_study.files import unfinished
from horovod_study.measure.clock import sleep
from horovod_study.workload.room import available_bytes

PROC, SYSTEM, SHARED = Path("/proc"), Path("/sys"), Path("/dev/shm")
_TRIES, _APART_S, _CONNECT_S = 8, 0.5, 1.0  # of another host, which may start later than this one


def facts(runs: str = "", names: Sequence[str] = (), seen: Sequence[str] = ()) -> dict[str, Any]:
    """Return what this machine is and sees: its facts by name, and the problems with others; None: it does not tell."""
    begun_s = datetime.now(UTC).timestamp()
    packages = ("torch", "horovod", "mpi4py", "numpy")
    asks: dict[str, Callable[[], Any]] = {
        "load": lambda: other_load(sorted(os.sched_getaffinity(0)), seconds=0.3),  # first, nothing else computes yet
        "host": platform.node,
        "packages": lambda: {"Python": platform.python_version(), **{each: installed(each) for each in packages}},
        "code": code_digest,
        "addresses": lambda: {name: _addresses(name) for name in (platform.node(), *names)},
        "seen": lambda: _text(Path(seen[0])) == seen[1] if seen else None,
        "port": free_port,
        "interfaces": _interfaces,
        "InfiniBand": _infiniband,
        "gpus": _gpus,
        "cores": available_cores,
        "quota": _quota,
        "memory": available_bytes,
        "shared memory": lambda: shutil.disk_usage(SHARED).free if SHARED.is_dir() else None,
        "left over": _left_over,
        "folder": lambda: _folder(Path(runs)) if runs else None,
    }
    found: dict[str, Any] = {"problems": {}}
    for name, ask in asks.items():
        try:
            found[name] = ask()
        except Exception as error:  # whatever it is, the others go on
            found["problems"][name] = f"{type(error).__name__}: {error}"
    return {**found, "clock": [begun_s, datetime.now(UTC).timestamp()]}


def _text(path: Path) -> str | None:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return None


def _addresses(name: str) -> list[str]:
    """Return the IPv4 addresses that a name stands for here; none where it is unknown."""
    with suppress(OSError):
        entries = socket.getaddrinfo(name, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
        return sorted({str(entry[4][0]) for entry in entries})
    return []


def _interfaces() -> dict[str, dict[str, Any]]:
    """Return the interfaces that are up and lead to others, with IPv4 address and speed (0: unknown)."""
    stats = psutil.net_if_stats()
    return {
        name: {"address": each.address, "speed_mbits": int(stats[name].speed)}
        for name, addresses in sorted(psutil.net_if_addrs().items())
        for each in addresses
        if each.family == socket.AF_INET and name in stats and stats[name].isup
        if not ipaddress.ip_address(each.address).is_loopback
    }


def _infiniband() -> dict[str, Any]:
    """Return how many devices there are, the active ports (mlx5_0:1), and how much memory may be locked."""
    folder = SYSTEM / "class" / "infiniband"
    ports = [path for path in sorted(folder.glob("*/ports/*/state")) if "ACTIVE" in (_text(path) or "")]
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "devices": len(list(folder.glob("*"))),
        "ports": ", ".join(f"{path.parts[-4]}:{path.parts[-2]}" for path in ports),
        "locked": None if locked == resource.RLIM_INFINITY else locked,
    }


def _gpus() -> dict[str, Any]:
    """Return [index, name, driver, use in %] of each GPU, the newest CUDA of the driver, and what is wrong with it."""
    if shutil.which("nvidia-smi") is None:
        loaded = (PROC / "driver/nvidia/version").exists()
        return {
            "rows": [],
            "cuda": "",
            "problem": "its module is loaded, but nvidia-smi is not on PATH" if loaded else "",
        }
    asked = ["--query-gpu=index,name,driver_version,utilization.gpu", "--format=csv,noheader,nounits"]
    listed = subprocess.run(["nvidia-smi", *asked], capture_output=True, text=True, timeout=4, check=False)
    about = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=4, check=False)
    rows = [row for row in csv.reader(listed.stdout.splitlines(), skipinitialspace=True) if len(row) == 4]
    said = (listed.stderr or listed.stdout).strip() or "nvidia-smi lists no GPU"
    cuda = re.search(r"CUDA Version:\s*(\d+\.\d+)", about.stdout)
    return {"rows": rows, "cuda": cuda[1] if cuda else "", "problem": "" if rows else said.splitlines()[-1]}


def _quota() -> float | None:
    """Return how many cores' worth of time the control group gives, None where it sets no limit."""
    found = []
    for line in (_text(PROC / "self/cgroup") or "").splitlines():
        _, controllers, group = line.split(":", 2)
        root, names = SYSTEM / "fs/cgroup", ["cpu.max"]
        if "cpu" in controllers.split(","):  # of version 1
            root, names = root / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        inner = root / group.strip("/")
        for folder in (inner, *(each for each in inner.parents if each.is_relative_to(root))):
            words = " ".join(_text(folder / name) or "" for name in names).split()
            if len(words) == 2 and all(word.isdigit() for word in words):
                found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


def _left_over() -> list[tuple[int, str]]:
    """Return (pid, run directory) of processes of runs that init has adopted."""
    found = []
    for entry in PROC.glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile, or another user's
            head, _, rest = (entry / "stat").read_text(errors="replace").rpartition(")")
            # mpirun's daemon on another host leaves its parent by itself.
            adopted = rest.split()[1] == "1" and not head.endswith(("(orted", "(prted"))
            if adopted and (folder := mark_of(entry)) is not None:
                found.append((int(entry.name), os.fsencode(folder).decode(errors="replace")))
    return sorted(found)


def _folder(runs: Path) -> dict[str, Any]:
    """Return kind and room of the file system, and what it does not do that run directories and leases rely on."""
    place = next(each for each in (runs.absolute(), *runs.absolute().parents) if each.is_dir())
    mounts = {fields[1]: fields[2] for fields in map(str.split, (_text(PROC / "self/mounts") or "").splitlines())}
    above = [point for point in mounts if place.resolve().is_relative_to(point.replace("\\040", " "))]
    free, there = shutil.disk_usage(place).free, os.statvfs(place)
    files = there.f_favail if there.f_files else None
    found = {"place": str(place), "kind": mounts[max(above, key=len)] if above else "", "free": free, "files": files}
    doing, problems = "writable", {}
    try:
        with unfinished(place / "doctor", folder=True) as folder:
            one, two, three = (folder / name for name in ("one", "two", "three"))
            one.write_bytes(b"1" * 2**20)
            two.write_text("old")
            os.replace(one, two)
            if two.stat().st_size != 2**20:
                problems[doing] = "after a file replaced another, its old content is seen"
            doing = "hard links"
            os.link(two, three)
            with suppress(FileExistsError):
                os.link(two, three)
                problems[doing] = "they replace each other"
    except OSError as error:
        full = "; make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        problems[doing] = f"{error.strerror}{full}"
    return {**found, "problems": problems}


def reached(port: int, addresses: Sequence[str], to: int) -> dict[str, tuple[str, str]]:
    """Try each address of another host, which does the same at the time: which of ours leads there, or the problem."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))  # nothing is read from it
        listener.listen(64)
        found = dict.fromkeys(addresses, ("", "not tried"))
        for _ in range(_TRIES):  # also when all are reached: others may want to reach us
            for address in [each for each, (source, _) in found.items() if not source]:
                try:
                    with socket.create_connection((address, to), timeout=_CONNECT_S) as link:
                        found[address] = (str(link.getsockname()[0]), "")
                except OSError as error:
                    found[address] = ("", str(error.strerror or error))
            sleep(_APART_S)
    return found


def main() -> None:
    """Answer one question."""
    question = json.loads(sys.stdin.readline())
    asks: dict[str, Callable[..., Any]] = {"facts": facts, "reached": reached}
    print(json.dumps(asks[question.pop("ask")](**question)), flush=True)
