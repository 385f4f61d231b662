"""The smoke test before a sweep: what passed is remembered, and what fails is explained before anything is started."""

import io
import sys
from dataclasses import replace

import pytest
from fake_trainer import fake_launch
from rich.console import Console
from test_runner import COMMAND, make_study, starts

from horovod_study import records
from horovod_study.cluster.launch import HERE, Site
from horovod_study.cluster.process import marked_processes
from horovod_study.config.partitions import Host
from horovod_study.config.run import Placement
from horovod_study.errors import StudyError
from horovod_study.studies import attempt, runner
from horovod_study.studies.study_file import sweep_of


def run(study, runs, behaviour=None, console=None, **options):
    console = console or Console(file=io.StringIO(), force_terminal=False)
    arguments = {"command": COMMAND, "launch": fake_launch(behaviour or {}), "cores": 2, "grace_s": 0.3}
    how = runner.RunOptions(**{**arguments, "watch_load_s": 0.0, **options})
    result = runner.run_sweep(sweep_of(study, runs), how, console=console)
    return result, console.file.getvalue().replace(str(runs), "RUNS")


def tried(runs) -> list[str]:
    return sorted(path.parent.name for path in (runs / "tiny" / ".smoke").glob("*/run.json"))


@pytest.mark.slow
def test_one_test_per_runtime_with_several_workers_and_none_again(tmp_path):
    study = make_study(repeats=1, runtimes=("horovod/gloo", "ddp/gloo"))

    _, output = run(study, tmp_path)

    assert ["ddp-gloo", "horovod-gloo"] == [name.rpartition("-")[0].rpartition("-")[0] for name in tried(tmp_path)]
    assert "smoke test: horovod/gloo, 2 workers on this machine\n  passed after " in output
    assert 5 == len(starts(tmp_path))

    _, output = run(make_study(repeats=2, runtimes=("horovod/gloo", "ddp/gloo")), tmp_path)

    assert "smoke test" not in output
    assert 2 == len(tried(tmp_path))
    assert 10 == len(starts(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(("study", "options"), [({"workers": (1,)}, {}), ({}, {"smoke": False})])
def test_nothing_is_tried_where_workers_are_alone_or_when_told_not_to(tmp_path, study, options):
    _, output = run(make_study(repeats=1, **study), tmp_path, **options)

    assert "smoke test" not in output
    assert [] == tried(tmp_path)


@pytest.mark.slow
def test_other_code_is_tried_again(tmp_path):
    run(make_study(repeats=1), tmp_path)

    _, output = run(make_study(repeats=1, identity={"local": "abcdef012345"}), tmp_path)

    assert "  passed after " in output
    assert 2 == len(list((tmp_path / "tiny" / ".smoke").glob("horovod-mpi-*passed")))


def test_failure_is_explained_and_nothing_is_started(tmp_path, golden):
    console = Console(file=io.StringIO(), force_terminal=False)

    with pytest.raises(StudyError) as caught:
        run(make_study(), tmp_path, {"horovod/mpi/2/0": "user error"}, console=console)

    log = next((tmp_path / "tiny" / ".smoke").glob("*.log"))
    assert str(caught.value) == (
        "smoke test of horovod/mpi, 2 workers on this machine failed: batch 75 is larger than the shard of 10 curves; "
        f"use a smaller --batch; see {log} and `horovod-study doctor`, or start without this test (--no-smoke)"
    )
    golden(console.file.getvalue())
    assert [] == starts(tmp_path)
    assert not list((tmp_path / "tiny" / ".smoke").glob("*passed"))


def test_test_that_hangs_ends_and_leaves_no_process(tmp_path, monkeypatch, golden):
    monkeypatch.setattr(runner, "LIMIT_S", 1.5)
    console = Console(file=io.StringIO(), force_terminal=False)

    with golden.raises(StudyError, match=r"1\.5 s"):
        run(make_study(), tmp_path, {"horovod/mpi/2/0": "hang before the record"}, console=console)

    golden(console.file.getvalue())
    assert [] == marked_processes(str(tmp_path / "tiny"))
    assert [] == starts(tmp_path)


def test_workers_of_several_hosts_are_tried_one_on_each_of_two():
    study = make_study(workers=(4,), repeats=1, baselines=())
    cell = study.cells()[0]
    placement = Placement(workers=6, workers_per_node=2)
    hosts = tuple(Host(name=f"node{number}", slots=2) for number in (1, 2, 3))
    spread = Site(hosts=hosts, interface="eth0")
    cells = [cell, replace(cell, placement=placement)]

    [(small, site)] = runner.small_cells(cells, {cell.placement: HERE, placement: spread})

    assert (2, 1, 2) == (small.placement.workers, small.placement.workers_per_node, small.placement.nodes)
    assert (Host(name="node1", slots=1), Host(name="node2", slots=1)) == site.hosts
    assert "eth0" == site.interface
    assert ("horovod", "mpi", 5) == (small.config.backend, small.config.transport, small.config.steps)


@pytest.mark.horovod
def test_two_real_workers_pass(tmp_path):
    """The trainer itself over torch's Gloo, which is the quickest to start."""
    study = make_study(repeats=1, runtimes=("ddp/gloo",), baselines=(), workers=(2,))
    plain = fake_launch({})

    def launch(cell, config, out, **options):
        real = cell.config.study == "smoke"
        return (attempt.local_launch if real else plain)(cell, config, out, **options)

    result, output = run(study, tmp_path, launch=launch)

    assert 0 == result.exit_code, output
    [out] = (path.parent for path in (tmp_path / "tiny" / ".smoke").glob("*/run.json"))
    record = records.read_run(out)
    assert ("done", 2, 5) == (record.status, len(record.effective["ranks"]), record.totals["steps"])
    assert sys.executable in out.with_suffix(".log").read_text()
