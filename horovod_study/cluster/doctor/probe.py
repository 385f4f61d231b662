"""What the doctor runs on another host, sent there through ssh: facts about it, and whether it reaches the others.

It stands alone: its source goes through ssh into that host's Python, which may know no horovod_study. Each side says
one JSON object per line; lines of ours begin with MARK, because shells and modules print whatever they like.

    <- {"ready": true}
    -> {"scratch": a file's path, "content": what is in it, "names": [hosts to look up]}
    <- {"utc_s": its clock}, then facts
    -> {"peers": [[name, [addresses], port], ...]}
    <- {"reached": [...]}
"""

import dataclasses
import json
import os
import platform
import socket
import sys
import threading
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

MARK = "horovod-study-doctor:"
CONNECT_S = 2.0


def facts(question: dict[str, Any], listener: socket.socket) -> dict[str, Any]:
    """Return what this host is and sees."""
    listener.bind(("0.0.0.0", 0))  # the port is open for seconds, and nothing is read from it
    listener.listen(64)
    found: dict[str, Any] = {
        "host": platform.node(),
        "port": listener.getsockname()[1],
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("horovod_study", "torch", "horovod", "mpi4py", "numpy")},
        "resolved": {name: _resolved(name) for name in {*question["names"], platform.node()}},
        "scratch": _seen(question["scratch"], question["content"]),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0],
        "boot": _content("/proc/sys/kernel/random/boot_id"),
    }
    for name, ask in (("interfaces", _interfaces), ("code", _code), ("worries", _worries)):
        try:
            found[name] = ask()
        except Exception as error:  # no psutil, another version of the package, no package at all
            found[name] = None
            found[name + "_problem"] = "%s: %s" % (type(error).__name__, error)  # noqa: UP031
    return found


def _version(package: str) -> Any:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _resolved(name: str) -> list[str]:
    try:
        entries = socket.getaddrinfo(name, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(entry[4][0]) for entry in entries})


def _seen(path: str, content: str) -> bool:
    """Whether the file is seen here; a file server may take a moment to show what another host wrote."""
    for _ in range(4):
        if _content(path) == content:
            return True
        threading.Event().wait(0.5)
    return False


def _content(path: str) -> Any:
    with suppress(OSError), open(path, encoding="utf-8") as stream:
        return stream.read().strip()
    return None


def _interfaces() -> Any:
    from horovod_study.cluster.doctor.network import own_interfaces

    return own_interfaces()


def _code() -> Any:
    from horovod_study.cluster.identity import code_digest

    return code_digest()


def _worries() -> Any:
    from horovod_study.cluster.doctor.machine import worries

    return [dataclasses.asdict(finding) for finding in worries()]


def reached(peers: list[Any], interfaces: Any) -> list[dict[str, Any]]:
    """Try each address of each peer; return which of them answer, and from which of our addresses."""
    own = {each["address"] for each in interfaces or ()}
    found = []
    for name, addresses, port in peers:
        for address in addresses:
            if address in own:  # of a network inside each host: we would communicate with ourselves
                continue
            row = {"peer": name, "address": address, "from": None, "problem": ""}
            try:
                with socket.create_connection((address, port), timeout=CONNECT_S) as link:
                    row["from"] = link.getsockname()[0]
            except OSError as error:
                row["problem"] = str(error.strerror or error)
            found.append(row)
    return found


def main() -> None:
    """Hold the conversation."""
    with socket.socket() as listener:
        print(MARK + json.dumps({"ready": True}), flush=True)
        question = json.loads(sys.stdin.readline())
        utc_s = datetime.now(timezone.utc).timestamp()  # noqa: UP017 - also in an older Python
        print(MARK + json.dumps({"utc_s": utc_s}), flush=True)
        own = facts(question, listener)
        print(MARK + json.dumps(own), flush=True)
        line = sys.stdin.readline()
        if line:
            peers = json.loads(line)["peers"]
            print(MARK + json.dumps({"reached": reached(peers, own["interfaces"])}), flush=True)
            sys.stdin.readline()  # others may still want to reach us


if __name__ == "__main__":
    main()
