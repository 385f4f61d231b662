"""A study on two hosts over ssh, by the commands a user types: every cell, on the right hosts, over the right network.

The link between the hosts carries 1 Gbit/s. Averaging gradients of 614 kB over it takes each rank 4 ms at least (less
what the limit lets through at once), where within a host it takes a fraction of that.
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from make.pair_study import RUNTIMES, PairStudy
from two_hosts import TwoHosts

from horovod_study import records

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.horovod]
WITHIN = {"horovod/mpi": ["shared memory"], "horovod/gloo": ["tcp:lo"], "ddp/gloo": ["tcp:lo"]}


@pytest.fixture(scope="module")
def finished(two_hosts: TwoHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PairStudy, str, str]]:
    """The study, and what `plan` and `run` said."""
    study = PairStudy(
        two_hosts,
        tmp_path_factory.mktemp("pair"),
        run={"steps": 60, "stall_timeout_s": 30},
        sweep={
            "runtime": list(RUNTIMES),
            "zip": {"workers": [1, 2, 2], "placement": ["fill", "fill", "spread"]},
        },
        baselines=["plain"],
        timeout_s=150,
    )
    code, plan = study.run("run", "--plan")
    assert code == 0, plan
    code, output = study.run("run")
    assert code == 0, output
    yield study, plan, output


def test_all_cells_are_done_and_nothing_is_left(finished: tuple[PairStudy, str, str]):
    study, plan, output = finished

    counted = study.status()["counts"]
    assert {name: count for name, count in counted.items() if count} == {"done": len(study.records())}
    assert "2 on 2 nodes (1+1)" in plan
    assert "smoke test: horovod/mpi, 1 worker each on node1 and node2" in output
    assert study.left() == []
    code, again = study.run("run")
    assert code == 0
    assert "smoke test" not in again


def test_records_prove_hosts_and_way(finished: tuple[PairStudy, str, str]):
    study, _, _ = finished
    seen = {}
    for record in study.records():
        backend, transport, workers = (record.effective[name] for name in ("backend", "transport", "workers"))
        if workers == 2:
            hosts = [rank["host"] for rank in record.effective["ranks"]]
            seen[f"{backend}/{transport}", record.requested["placement"]] = (
                hosts,
                record.effective["nodes"],
                record.effective["ranks_per_host"],
                record.effective["path"],
            )
            between = [facts["between_bytes"] for facts in record.effective["path_evidence"]["hosts"].values()]
            assert all(between) == (record.effective["nodes"] == 2)

    assert seen == {
        (runtime, placement): (
            (["node1", "node1"], 1, [2], WITHIN[runtime])
            if placement == "fill"
            else (["node1", "node2"], 2, [1, 1], ["tcp:eth0"])
        )
        for runtime in RUNTIMES
        for placement in ("fill", "spread")
    }


def test_there_are_baselines_on_one_host(finished: tuple[PairStudy, str, str]):
    study, _, _ = finished

    alone = [record.effective for record in study.records() if record.effective["workers"] == 1]
    assert {f"{each['backend']}/{each['transport']}" for each in alone} == {"serial/none", *RUNTIMES}
    assert {each["nodes"] for each in alone} == {1}


def test_synchronising_jumps_at_the_node_boundary(finished: tuple[PairStudy, str, str]):
    study, _, _ = finished

    quickest: dict[tuple[str, int], float] = {}  # the quickest twentieth of the steps: other programs disturb the rest
    for directory in records.run_directories(study.runs):
        record = records.read_run(directory)
        if record.effective["workers"] == 2:
            steps = records.read_steps(directory, 0).to_pandas()
            runtime = f"{record.effective['backend']}/{record.effective['transport']}"
            quickest[runtime, record.effective["nodes"]] = float(steps["sync_s"].quantile(0.05))
    for runtime in RUNTIMES:
        assert quickest[runtime, 2] > 0.003, quickest
        assert quickest[runtime, 2] > 1.3 * quickest[runtime, 1], quickest


def test_the_report_says_the_node_boundary(finished: tuple[PairStudy, str, str]):
    study, _, output = finished

    rows = pd.read_csv(study.runs / "analysis" / "boundary.csv").set_index(["backend", "transport"])
    assert set(rows.index) == {tuple(runtime.split("/")) for runtime in RUNTIMES}
    assert set(rows["kind"]) == {"direct"}
    assert set(rows["more_path"]) == {"tcp:eth0"}
    assert (rows["more_nodes"] == 2).all() and (rows["fewer_nodes"] == 1).all()
    report = next(Path(study.runs).glob("**/*.html")).read_text()
    assert "node" in report
    assert "report" in output
