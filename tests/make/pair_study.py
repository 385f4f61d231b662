"""Studies on two hosts of one machine, as the tests of clusters run them: the files, and `horovod-study` on node1."""

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from conftest import BIN
from two_hosts import INTERFACE, HostProcess, Running, TwoHosts

from horovod_study import records
from horovod_study.cluster.remote import MARKER

RUNTIMES = ("horovod/mpi", "horovod/gloo", "ddp/gloo")
RUN = {
    "dataset": "400",
    "batch": 16,
    "warmup_steps": 10,
    "steady": "declared",
    "checkpoint_at_end": False,
    "system_interval_s": 0,
}


class PairStudy:
    """A study in `folder` whose partition is node1 and node2, with two slots each."""

    def __init__(self, hosts: TwoHosts, folder: Path, *, run: dict[str, Any], **keys: Any) -> None:
        self.hosts, self.folder = hosts, folder
        partition = {
            "description": "two hosts of one machine",
            "scheduler": "ssh",
            "hosts": [f"{name}:2" for name in hosts.names],
            "cores_per_node": 2,
            "interface": INTERFACE,
        }
        study = {"study": "pair", "partition": "pair", "repeats": 1, **keys, "run": {**RUN, **run}}
        (folder / "partitions").mkdir()
        (folder / "partitions" / "pair.yaml").write_text(yaml.safe_dump(partition, sort_keys=False))
        (folder / "pair.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
        self.runs = folder / "runs" / "pair"

    def start(self, verb: str, *options: str) -> HostProcess:
        """Start `horovod-study VERB pair.yaml` on node1; its output goes to one pipe."""
        return self.hosts.popen(
            "node1",
            [BIN / "horovod-study", verb, "pair.yaml", *options],
            cwd=self.folder,
            environment={**os.environ, "COLUMNS": "200", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, verb: str, *options: str, timeout_s: float = 550) -> tuple[int, str]:
        """Return the exit code and the output of `horovod-study VERB pair.yaml`."""
        with self.start(verb, *options) as process:
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
        return process.returncode, output

    def status(self) -> dict[str, Any]:
        """Return what `status --json` tells."""
        _, output = self.run("status", "--json")
        told: dict[str, Any] = json.loads(output.splitlines()[-1])
        return told

    def records(self) -> list[records.RunRecord]:
        """Return the records of the cells' latest attempts."""
        return [records.read_run(each) for each in records.run_directories(self.runs)]

    def left(self) -> list[tuple[str, Running]]:
        """Return what the study has left running on the hosts: everything there, sessions of sshd apart."""
        return [(name, each) for name in self.hosts.names for each in self.hosts.processes(name)]


def ranks(processes: Iterable[Running]) -> list[Running]:
    """Return the trainer's ranks among some processes."""
    return [
        each
        for each in processes
        if each.argv[1:3] == ("-m", "horovod_study.train") and "python" in each.argv[0] and MARKER in each.environment
    ]
