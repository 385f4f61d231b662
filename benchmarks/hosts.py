"""`make bench BENCH=hosts`: what a node boundary adds to each step, on two hosts made on this machine. Needs root.

Two hosts in namespaces of their own, with an ssh server each and a link of 1 Gbit/s between them (tests/two_hosts.py),
run a study as a user would: two workers on one host against one on each, over three runtimes. The tables and the figure
of the report go to benchmarks/results/hosts/, with what the plan, `run` and `status` printed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from two_hosts import INTERFACE, TwoHosts  # noqa: E402

KEPT = ("boundary.csv", "nodes.csv", "figures/boundary.png", "figures/boundary.txt")
TERMINAL = "terminal.txt"


def write_study(folder: Path, *, seconds: float, repeats: int, dataset: str) -> None:
    """Write the study and its partition into `folder`."""
    partition = {
        "description": "two hosts of one machine, in namespaces of their own, 1 Gbit/s between them",
        "scheduler": "ssh",
        "hosts": ["node1:2", "node2:2"],
        "cores_per_node": 2,
        "cores_per_worker": 1,
        "interface": INTERFACE,
    }
    study = {
        "study": "hosts",
        "partition": "pair",
        "run": {"dataset": dataset, "batch": 75, "seconds": seconds},
        "sweep": {
            "runtime": ["horovod/mpi", "horovod/gloo", "ddp/gloo"],
            "zip": {"workers": [1, 2, 2], "placement": ["fill", "fill", "spread"]},
        },
        "baselines": ["plain"],
        "repeats": repeats,
    }
    (folder / "partitions").mkdir()
    (folder / "partitions" / "pair.yaml").write_text(yaml.safe_dump(partition, sort_keys=False))
    (folder / "hosts.yaml").write_text(yaml.safe_dump(study, sort_keys=False))


def main() -> int:
    """Run the study and keep what it found; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of timed training in each cell (default 3)")
    parser.add_argument("--repeats", type=int, default=3, help="of each cell (default 3)")
    parser.add_argument("--dataset", default="100000", help="size of the data set (default 100000)")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "hosts")
    options = parser.parse_args()
    program = Path(sys.executable).parent / "horovod-study"
    environment = {**os.environ, "COLUMNS": "110", "LC_ALL": "C.UTF-8"}
    said = []
    with tempfile.TemporaryDirectory() as name, TwoHosts() as hosts:
        folder = Path(name)
        write_study(folder, seconds=options.seconds, repeats=options.repeats, dataset=options.dataset)
        for words in (["run", "hosts.yaml", "--plan"], ["run", "hosts.yaml"], ["status", "hosts.yaml"]):
            said.append(f"$ horovod-study {' '.join(words)}\n")
            print(said[-1], end="", flush=True)
            with hosts.popen(
                "node1",
                [program, *words],
                cwd=folder,
                environment=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            ) as process:
                for line in process.stdout or ():
                    said.append(line)
                    print(line, end="", flush=True)
                code = process.wait()
            if code:
                return int(code)
        options.out.mkdir(parents=True, exist_ok=True)
        for each in KEPT:
            shutil.copy(folder / "runs" / "hosts" / "analysis" / each, options.out / Path(each).name)
        (options.out / TERMINAL).write_text("".join(said), encoding="utf-8")
    print(f"written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
