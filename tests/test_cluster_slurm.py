"""Studies on a real Slurm of two nodes: submitted, cancelled, failed, pre-empted, resumed, found again, reported."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import slurm_cluster
from drawn_figures import figures_only
from make.waiting import PATIENCE_S, until
from rich.console import Console
from slurm_cluster import SlurmCluster

from horovod_study import cli
from horovod_study.cluster.slurm import JobBook, job_folder, read_job, read_jobs, read_note, write_job
from horovod_study.errors import StudyError
from horovod_study.records import read_run
from horovod_study.studies.job import EXIT_STOPPED
from horovod_study.studies.ledger import Ledger, read_ledger
from horovod_study.studies.plan import submit_cells
from horovod_study.studies.runner import RunOptions, StudyResult, cancel_cells, run_sweep, show_plan
from horovod_study.studies.study_file import StudyConfig, load_study, sweep_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.horovod]

PARTITION = """\
scheduler: slurm
nodes: 2
gpus_per_node: 1
cores_per_node: 2
cores_per_worker: 1
gres: "gpu:{gpus}"
interface: eth0
slurm_partition: main
time_limit_s: 3600
"""


@pytest.fixture(scope="module")
def cluster(slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    with slurm_cluster.environment(slurm.environment):
        yield slurm


@pytest.fixture(autouse=True)
def _no_jobs_left(cluster: SlurmCluster) -> Iterator[None]:
    yield
    cluster.run("scancel", "--user=root", check=False)
    cluster.wait_for(lambda: not cluster.run("squeue", "-h"), "an empty queue")


def study_file(folder: Path, *, name: str = "sweep", partition: str = "main", seconds: int = 2, runtime: str) -> Path:
    (folder / "partitions").mkdir(exist_ok=True)
    (folder / "partitions" / "main.yaml").write_text(PARTITION)
    path = folder / "study.yaml"
    path.write_text(
        f"study: {json.dumps(name)}\n"
        f"partition: {partition}\n"
        "repeats: 1\n"
        "baselines: []\n"
        f'run: {{dataset: "400", seconds: {seconds}, evaluate_every: 1000, warmup_steps: 5}}\n'
        f"sweep: {{workers: [1, 2], runtime: [{runtime}]}}\n"
    )
    return path


def console() -> Console:
    return Console(file=StringIO(), soft_wrap=True)


def said(to: Console) -> str:
    assert isinstance(to.file, StringIO)
    return to.file.getvalue()


def status(study: StudyConfig, runs: Path) -> Ledger:
    return read_ledger(sweep_of(study, runs), jobs=JobBook(runs / study.name))


def states(ledger: Ledger) -> dict[str, tuple[str, str]]:
    return {
        f"{entry.cell.placement.partition}/{entry.cell.placement.workers}": (entry.state, entry.reason)
        for entry in ledger.entries
    }


def output_of(directory: Path) -> str:
    texts = [*directory.glob(".jobs/*/output*.log"), *directory.glob("logs/*.log")]
    return "\n".join(f"--- {path}\n{path.read_text()[-3000:]}" for path in texts)


def occupy(cluster: SlurmCluster, seconds: int) -> str:
    """Give both nodes to a job that goes before those of partition main; return its number."""
    wrap = f"--wrap=sleep {seconds}"
    line = ("sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", wrap)
    return cluster.run(*line).strip()


def test_a_study_with_a_failing_a_cancelled_and_a_pre_empted_job(cluster: SlurmCluster, tmp_path: Path):
    path = study_file(tmp_path, partition="[main, flaky]", seconds=5, runtime="ddp/gloo")
    data = tmp_path / "curves"
    data.write_text("a file where a folder belongs")  # the mistake that makes the jobs of one partition fail
    flaky = PARTITION + f"environment:\n  HOROVOD_STUDY_DATA: {{value: '{data}', because: a place of its own}}\n"
    (tmp_path / "partitions" / "flaky.yaml").write_text(flaky)
    study, runs = load_study(path), tmp_path / "runs"
    directory = runs / study.name

    def run(**options: object) -> tuple[StudyResult, str]:
        to = console()
        start = show_plan if options.pop("only_plan", False) else run_sweep
        how = RunOptions(command="horovod-study run study.yaml", yes=True, **options)
        result = start(sweep_of(study, runs), how, console=to)
        return result, said(to)

    # plan: nothing is written, nothing is submitted
    result, text = run(only_plan=True)
    assert result.planned_only and "4 jobs, one per placement" in text
    assert not directory.exists() and not cluster.run("squeue", "-h")

    # submit, while the nodes are taken: everything waits, and says for what
    blocker = occupy(cluster, 300)
    cluster.wait_for(lambda: "R" in cluster.run("squeue", "-h", "-o", "%t", "-j", blocker), "the blocker")
    result, text = run()
    assert result.exit_code == 0
    assert [job.job_id for job in read_jobs(directory)] == [str(int(blocker) + number) for number in (1, 2, 3, 4)]
    one, two, three, _ = (job.job_id for job in read_jobs(directory))
    until(lambda: "(None)" not in cluster.run("squeue", "-h", "-o", "%t(%r)").replace("R(None)", ""), "reasons")
    waiting = states(status(study, runs))
    assert {state for state, _ in waiting.values()} == {"queued"}
    assert waiting["main/1"][1].startswith(f"job {one} pending (")
    assert "Resources" in waiting["main/1"][1] or "Priority" in waiting["main/1"][1]

    # a second `run` submits nothing twice
    result, text = run()
    assert len(read_jobs(directory)) == 4 and "4 queued" in text

    # one is cancelled
    to = console()
    key = next(entry.key for entry in status(study, runs).entries if entry.state == "queued")
    assert cancel_cells(sweep_of(study, runs), which=[key], console=to) == 1
    assert f"cancelled job {one} (1 cell)" in said(to)
    assert states(status(study, runs))["main/1"][0] == "cancelled"

    # the others run; the one on two nodes is pre-empted, writes a checkpoint and is queued again
    cluster.run("scancel", blocker)
    main_2 = next(job for job in read_jobs(directory) if job.job_id == two)
    out = directory / main_2.tasks[0][0]
    until(lambda: any(out.glob("steps-*")), "the first steps", told=lambda: output_of(directory))
    assert states(status(study, runs))["main/2"][0] == "running"
    time.sleep(1.0)
    urgent = occupy(cluster, 2)
    until(
        lambda: read_run(out).status == "stopped",
        "the checkpoint of the pre-empted cell",
        told=lambda: output_of(directory),
    )
    assert read_run(out).reason.startswith("stopped by SIG")
    until(lambda: states(status(study, runs))["main/2"][0] == "queued", "the requeued job", told=cluster.logs)
    assert f"job {two} pending (started before, queued again" in states(status(study, runs))["main/2"][1]
    until(lambda: cluster.run("squeue", "-h", "-j", urgent, check=False) == "", "the end of the urgent job")

    # Slurm lets a requeued job wait for two minutes; an operator would do the same
    cluster.run("scontrol", "update", f"jobid={two}", "starttime=now")
    until(lambda: not JobBook(directory).live(), "the end of all jobs", told=lambda: output_of(directory))
    ended = states(status(study, runs))
    resumed_after = read_run(out).attempts[-1]["from_step"]
    assert ended["main/2"] == ("done", f"resumed after step {resumed_after}") and resumed_after > 0
    assert ended["main/1"][0] == "cancelled"
    assert [ended[name][0] for name in ("flaky/1", "flaky/2")] == ["failed", "failed"], output_of(directory)
    assert str(data) in ended["flaky/1"][1]
    book = JobBook(directory)
    failed = book.of(next(entry.key for entry in status(study, runs).entries if entry.state == "failed"))
    assert failed is not None and (failed.state, failed.job_id) == ("completed", three)
    assert failed.reason == "1 of 1 cell not done"
    assert cluster.run("squeue", "-h", "-t", "all", "-o", "%T", "-j", three).split() == ["FAILED"]

    # the mistake is corrected, and `run` completes what is missing, and that only
    data.unlink()
    result, text = run(wait=False)
    assert len(read_jobs(directory)) == 7
    assert not any(main_2.tasks[0][0] in task for job in read_jobs(directory)[4:] for task in job.tasks)
    until(lambda: not JobBook(directory).live(), "the end of all jobs", told=lambda: output_of(directory))
    ledger = status(study, runs)
    assert ledger.count("done") == 4, (states(ledger), output_of(directory))
    assert ledger.summary().startswith("study sweep: 4 of 4 cells done")
    result, text = run()
    assert result.exit_code == 0 and len(read_jobs(directory)) == 7

    # the records prove where the workers were, and the report is written from them
    record = read_run(out)
    assert [rank["host"] for rank in record.effective["ranks"]] == ["n1", "n2"]
    assert cli.main(["report", "--tables", str(directory), "--out", str(tmp_path / "analysis")]) == 0
    with figures_only("speedup"):
        assert cli.main(["report", str(tmp_path / "analysis")]) == 0
    assert (tmp_path / "analysis" / "report.html").exists()


def test_names_that_would_be_commands_elsewhere_are_data(cluster: SlurmCluster, tmp_path: Path):
    folder = tmp_path / "it's $(touch owned) `touch owned`;"
    folder.mkdir()
    path = study_file(folder, name="a \"b\" 'c' $(touch owned) #x", seconds=1, runtime="horovod/gloo, mpi/mpi")
    value = "$(touch owned) \"quoted\" 'and' `more`; \\"
    (folder / "partitions" / "main.yaml").write_text(PARTITION + f"environment: {{HARMLESS: {json.dumps(value)}}}\n")
    study, runs = load_study(path), folder / "runs"
    cells = [cell for cell in study.cells() if cell.placement.workers == 2]
    to = console()

    jobs = submit_cells(sweep_of(study, runs), cells, console=to)
    again = submit_cells(sweep_of(study, runs), cells, console=to)

    assert len(jobs) == 1 and again == []
    assert "not submitted again: horovod/gloo, 2 workers, 2 nodes, repeat 1 is in job" in said(to)
    until(lambda: not JobBook(runs / study.name).live(), "the job", told=lambda: output_of(runs / study.name))
    ended = {entry.key: entry.state for entry in status(study, runs).entries}
    assert [ended[cell.key] for cell in cells] == ["done", "done"], output_of(runs / study.name)
    assert not list(tmp_path.rglob("owned")) and not Path("owned").exists()


def test_before_its_time_limit_a_job_stops_with_a_checkpoint(cluster: SlurmCluster, tmp_path: Path):
    study, runs = load_study(study_file(tmp_path, seconds=60, runtime="horovod/mpi")), tmp_path / "runs"
    cell = next(cell for cell in study.cells() if cell.placement.workers == 2)
    directory = runs / study.name
    (job,) = submit_cells(sweep_of(study, directory.parent), [cell], console=console())
    out = directory / cell.key
    until(lambda: any(out.glob("steps-*")), "the first steps", told=lambda: output_of(directory))
    time.sleep(1.0)

    cluster.run("scancel", "--batch", "--signal=USR1", job.job_id)  # as `#SBATCH --signal=B:USR1@120` does

    until(lambda: not JobBook(directory).live(), "the end of the job", told=lambda: output_of(directory))
    assert read_run(out).status == "stopped" and any((out / "checkpoints").iterdir())
    entry = next(entry for entry in status(study, runs).entries if entry.key == cell.key)
    assert (entry.state, entry.reason[:16]) == ("stopped", "stopped by SIGUS"), output_of(directory)
    note = read_note(directory, job.name, 0)
    assert note is not None and (note.state, note.reason) == ("timed out", "its time limit is near")
    assert f"ExitCode={EXIT_STOPPED}:0" in cluster.run("scontrol", "show", "job", job.job_id)


def test_a_command_that_died_after_sbatch_finds_its_job_again(cluster: SlurmCluster, tmp_path: Path):
    study, runs = load_study(study_file(tmp_path, seconds=1, runtime="ddp/gloo")), tmp_path / "runs"
    directory = runs / study.name
    occupy(cluster, 300)
    jobs = submit_cells(sweep_of(study, directory.parent), study.cells(), console=console())
    for job in jobs:  # as if it had been killed before it could note the numbers
        write_job(directory, replace(job, job_id="", submitted=""))
    killed_before = replace(jobs[0], job_id="", submitted="", name="killed-before-sbatch", tasks=(("other",),))
    write_job(directory, killed_before)
    assert JobBook(directory).of("other") is None
    to = console()

    assert submit_cells(sweep_of(study, directory.parent), study.cells(), console=to) == []

    assert [job.job_id for job in read_jobs(directory) if not job.refused] == [job.job_id for job in jobs]
    assert f"found job {jobs[0].job_id} ({jobs[0].name})" in said(to)
    assert read_job(job_folder(directory, "killed-before-sbatch")).refused.startswith("the command that made it")
    assert cluster.run("squeue", "-h", "-o", "%j").split().count(jobs[0].name) == 1


def test_what_slurm_refuses_is_said_in_its_words_and_starts_nothing(cluster: SlurmCluster, tmp_path: Path):
    path = study_file(tmp_path, runtime="ddp/gloo")
    text = PARTITION.replace("slurm_partition: main", "slurm_partition: nowhere")
    (tmp_path / "partitions" / "main.yaml").write_text(text)
    study, directory = load_study(path), tmp_path / "runs" / "sweep"

    with pytest.raises(StudyError, match=r"partition main: sbatch refused the job \(.*invalid partition.*nowhere"):
        submit_cells(sweep_of(study, directory.parent), study.cells(), console=console())

    assert JobBook(directory).live() == [] and not cluster.run("squeue", "-h")


def test_a_task_of_an_array_is_cancelled_and_its_neighbour_goes_on(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("horovod_study.studies.plan.Estimate.expected", lambda *_, **__: (400.0, ""))
    path = study_file(tmp_path, seconds=1, runtime="ddp/gloo, mpi/mpi")
    (tmp_path / "partitions" / "main.yaml").write_text(PARTITION.replace("3600", "900"))
    study, runs = load_study(path), tmp_path / "runs"
    directory = runs / study.name
    cells = [cell for cell in study.cells() if cell.placement.workers == 1]
    blocker = occupy(cluster, 300)
    (job,) = submit_cells(sweep_of(study, directory.parent), cells, console=console())
    assert (
        len(job.tasks) == 2 and "#SBATCH --array=0-1\n" in (job_folder(directory, job.name) / "script.sh").read_text()
    )

    assert cancel_cells(sweep_of(study, runs), which=[job.tasks[1][0]], console=console()) == 1
    cluster.run("scancel", blocker)

    until(lambda: not JobBook(directory).live(), "the end of the array", told=lambda: output_of(directory))
    by_key = {entry.key: entry.state for entry in status(study, runs).entries}
    assert [by_key[task[0]] for task in job.tasks] == ["done", "cancelled"], output_of(directory)


def test_in_an_allocation_made_by_hand_the_cells_that_fit_are_run(cluster: SlurmCluster, tmp_path: Path):
    path, runs = study_file(tmp_path, seconds=1, runtime="ddp/gloo"), tmp_path / "runs"
    code = (
        "import sys; from pathlib import Path; from rich.console import Console; "
        "from horovod_study.studies.job import Inside, run_here; "
        "from horovod_study.studies.study_file import load_study, sweep_of; study = load_study(Path(sys.argv[1])); "
        "sys.exit(run_here(sweep_of(study, Path(sys.argv[2])), Inside(console=Console()), command='again').exit_code)"
    )
    asked = ("salloc", "--nodes=2", "--exclusive", "--gres=gpu:1", "--time=10", "--quiet")

    cluster.run(*asked, sys.executable, "-c", code, str(path), str(runs), timeout_s=PATIENCE_S)

    study = load_study(path)
    assert {entry.state for entry in status(study, runs).entries} == {"done"}, output_of(runs / study.name)
    hosts = [[rank["host"] for rank in read_run(each).effective["ranks"]] for each in (runs / study.name).glob("ddp-*")]
    assert sorted(hosts) == [["n1"], ["n1", "n2"]]


def test_a_killed_test_run_leaves_a_cluster_that_the_next_one_removes(cluster: SlurmCluster, tmp_path: Path):
    here = Path(__file__).parent
    code = (
        "import sys, os; from pathlib import Path; from slurm_cluster import SlurmCluster\n"
        f"cluster = SlurmCluster(Path({str(tmp_path / 'other')!r})); cluster.open(); print(os.getpid(), flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    environ = {**os.environ, "PYTHONPATH": str(here)}
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    name = f"hss{killed.stdout.strip()}"
    assert slurm_cluster.marked(name), killed.stderr

    slurm_cluster.remove_left_over()

    assert slurm_cluster.marked(name) == []
    assert name not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert cluster.run("sinfo", "-h").strip()  # that of this test run goes on
