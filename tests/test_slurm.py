"""Job scripts: exact bytes for known partitions, sound shell for any names, refusals where a name cannot be data.

`python tests/test_slurm.py` writes the golden scripts again; look at the difference before keeping it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.wording import Golden
from rich.console import Console

from horovod_study.cluster.slurm import (
    Allocation,
    Note,
    allocate,
    directives,
    read_job,
    read_jobs,
    script,
    slurm_time,
    submit_environment,
    write_note,
)
from horovod_study.config.partitions import Partition, find_partition
from horovod_study.errors import ConfigError, StudyError
from horovod_study.strain.options import StrainConfig
from horovod_study.studies.plan import cancel_jobs, check_folder, submit_cells
from horovod_study.studies.study_file import StudyCells, StudyConfig, sweep_of

GOLDEN = Path(__file__).parent / "golden"
CLUSTER = find_partition("alpha")


def study_on(partition: Partition, *, name: str = "nccl_vs_mpi", **fields: object) -> StudyConfig:
    run = StrainConfig(study=name, partition=partition.name, seconds=60, steps=None)
    return StudyConfig(
        **{
            "name": name,
            "run": run,
            "workers": (2,),
            "runtimes": ("horovod/gloo",),
            "baselines": (),
            "repeats": 1,
            "partitions": {partition.name: partition},
            **fields,
        }
    )


def allocations_of(study: StudyConfig) -> tuple[Allocation, ...]:
    return allocate(study.cells(), study.partitions, lambda cell: 90.0, seed=study.seed)


def text_of(study: StudyConfig, *, name: str = "nccl_vs_mpi-001", **options: object) -> str:
    (allocation,) = allocations_of(study)
    (partition,) = study.partitions.values()
    values = {
        "folder": Path("/scratch/me/runs/nccl_vs_mpi/.jobs") / name,
        "python": Path("/home/me/horovod-study/.venv/bin/python"),
        "code": Path("/scratch/me/runs/nccl_vs_mpi/.code/0123456789ab"),
        "variables": {"HOROVOD_STUDY_DATA": "/scratch/me/curves"},
    }
    return script(allocation, partition, name=name, **{**values, **options})


def golden_scripts() -> dict[str, str]:
    both = ("horovod/nccl", "horovod/mpi")
    modules = ("gcc/13.3", "openmpi/4.1.6", "cuda/12.4")
    short = CLUSTER.model_copy(
        update={"time_limit_s": 900.0, "account": "p_scaling", "qos": "high", "constraint": "a100&ib"}
    )
    studies = {
        "alpha": study_on(CLUSTER.model_copy(update={"modules": modules}), workers=(10,), runtimes=both, repeats=2),
        "gpu2": study_on(find_partition("gpu2"), workers=(4,), runtimes=("horovod/nccl",)),
        "hpdlf": study_on(find_partition("hpdlf"), workers=(6,), runtimes=both),
        "archer2": study_on(find_partition("archer2"), workers=(256,), runtimes=("mpi/mpi", "ddp/gloo")),
        "array": study_on(short, workers=(16,), runtimes=both, repeats=3),
    }
    # Keys change with every new option of a run; what is golden is the script.
    return {name: re.sub(r"-[0-9a-f]{12}\b", "-0123456789ab", text_of(study)) for name, study in studies.items()}


@pytest.mark.parametrize("name", ["alpha", "gpu2", "hpdlf", "archer2", "array"])
def test_the_script_of_a_known_partition(name: str):
    assert golden_scripts()[name] == (GOLDEN / f"{name}.sh").read_text()


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.sh")), ids=lambda path: path.stem)
def test_golden_scripts_are_sound_shell(path: Path):
    subprocess.run(["bash", "-n", str(path)], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


# ---------------------------------------------------------------------------------------------------- names are data

NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/\\\0\n"), min_size=1, max_size=30
) | st.sampled_from(
    [
        "$(touch owned)",
        "`touch owned`",
        "a; touch owned",
        "'$(touch owned)'",
        '"$(touch owned)"',
        "x\rtouch owned",
        "-n",
    ]
)
VALUES = NAMES | st.sampled_from(["\\", "a\\'b", "", "'", '"$HOME"', "*", "~", "!!", "${PATH}"])


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in for Python that prints what it was started with; `module` prints what it was told, to a file."""
    folder = tmp_path_factory.mktemp("stub")
    (folder / "python").write_text(
        f"#!{sys.executable} -IS\nimport json, os, sys\n"
        "sys.stdout.buffer.write(json.dumps([[os.fsencode(a).hex() for a in sys.argv[1:]], "
        "{os.fsencode(k).hex(): os.fsencode(v).hex() for k, v in os.environ.items()}]).encode())\n"
    )
    (folder / "python").chmod(0o755)
    (folder / "modules.sh").write_text('module() { printf "%s\\0" "$@" >> "$MODULES"; }\n')
    return folder


@given(study_name=NAMES, folder_name=NAMES, value=VALUES, reason=st.text(max_size=30), module=NAMES)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_names_are_nothing_of_them_is_executed(
    study_name: str, folder_name: str, value: str, reason: str, module: str, stub: Path, tmp_path: Path
):
    assume(not study_name.startswith("."))
    assume(not re.search(r"[\x00-\x08\x0a-\x1f\x7f]", module))  # such modules a partition refuses
    partition = Partition(
        name="there",
        scheduler="slurm",
        nodes=None,
        cores_per_node=4,
        modules=(module,),
        environment={"VALUE": value},
        because={"VALUE": reason},
    )
    folder = tmp_path / "runs" / folder_name
    text = text_of(study_on(partition, name=study_name), folder=folder, python=stub / "python", variables={})
    path, told = tmp_path / "script.sh", tmp_path / "modules"
    path.write_bytes(os.fsencode(text))
    told.unlink(missing_ok=True)

    subprocess.run(["bash", "-n", str(path)], check=True)
    environ = {
        "PATH": os.environ["PATH"],
        "BASH_ENV": str(stub / "modules.sh"),
        "MODULES": str(told),
        "OMPI_MCA_btl": "tcp",
        "HOROVOD_CYCLE_TIME": "7",
        "HOROVOD_STUDY_DATA": "kept",
    }
    done = subprocess.run(["bash", str(path)], cwd=tmp_path, env=environ, capture_output=True, check=True)

    arguments, seen = json.loads(done.stdout)
    assert [bytes.fromhex(each) for each in arguments] == [
        b"-P",
        b"-m",
        b"horovod_study.studies.job",
        os.fsencode(folder),
    ]
    variables = {bytes.fromhex(key).decode(): bytes.fromhex(each) for key, each in seen.items()}
    assert variables["VALUE"] == os.fsencode(value)
    assert variables["HOROVOD_STUDY_DATA"] == b"kept"
    assert not {"OMPI_MCA_btl", "HOROVOD_CYCLE_TIME"} & set(variables)
    assert told.read_bytes().split(b"\0")[:-1] == [b"purge", b"load", os.fsencode(module)]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["modules", "script.sh"]
    assert done.stderr == b""
    assert not any(line.startswith("#SBATCH") for line in text.partition("\n\n")[2].splitlines())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("slurm_partition", "gpu --uid=root"),
        ("account", "p'q"),
        ("qos", 'high"'),
        ("constraint", "a100 #"),
        ("account", "a\\b"),
        ("account", "größer"),
        ("gres", "gpu:{gpus} --exclusive"),
        ("account", ""),
    ],
)
def test_a_value_that_cannot_stand_in_a_directive_is_refused_by_its_key(key: str, value: str, golden: Golden):
    partition = CLUSTER.model_copy(update={key: value})
    with golden.raises(ConfigError, match=f"{key}"):
        text_of(study_on(partition))


@pytest.mark.parametrize("name", ["folder", "python", "code"])
@pytest.mark.parametrize("character", ["\n", "\0"])
def test_a_path_with_a_line_break_is_refused(name: str, character: str, golden: Golden):
    with golden.raises(ConfigError):
        text_of(study_on(CLUSTER), **{name: Path(f"/a{character}#SBATCH --uid=0")})


@pytest.mark.parametrize("name", ["100%", "a\\b", "a\nb"])
def test_a_folder_whose_name_slurm_takes_for_a_pattern_is_refused(name: str, tmp_path: Path, golden: Golden):
    with golden.raises(StudyError):
        check_folder(tmp_path / name)


# ---------------------------------------------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1, "0:01:00"), (60, "0:01:00"), (61, "0:02:00"), (5400, "1:30:00"), (86400, "1-00:00:00"), (90061, "1-01:02:00")],
)
def test_time_limits_as_slurm_reads_them(seconds: float, text: str):
    assert slurm_time(seconds) == text


def options_of(study: StudyConfig) -> dict[str, str | None]:
    (allocation,) = allocations_of(study)
    return dict(directives(allocation, study.partitions[allocation.partition], name="job"))


def test_nodes_tasks_and_gpus_follow_the_placement():
    options = options_of(study_on(CLUSTER, workers=(10,)))
    assert [options[name] for name in ("nodes", "ntasks-per-node", "gres", "cpus-per-task", "mem-per-cpu")] == [
        *("2", "8", "gpu:8", "6", "10312M")
    ]
    options = options_of(study_on(CLUSTER, workers=(10,), workers_per_node=(5,)))
    assert [options[name] for name in ("nodes", "ntasks-per-node", "gres")] == ["2", "5", "gpu:5"]
    named = study_on(CLUSTER, workers=(4,), workers_per_node=(2,), placements=("list",), hosts=("taurusi1", "taurusi2"))
    assert options_of(named)["nodelist"] == "taurusi1,taurusi2"


def test_a_partition_decides_on_requeueing_and_sharing():
    options = options_of(study_on(CLUSTER.model_copy(update={"requeue": False, "exclusive": False})))
    assert "no-requeue" in options and "requeue" not in options and "exclusive" not in options
    assert {"requeue", "exclusive"} <= set(options_of(study_on(CLUSTER)))


def test_the_signal_before_the_end_comes_in_time_also_in_short_jobs():
    (allocation,) = allocations_of(study_on(CLUSTER))
    options = dict(directives(replace(allocation, time_limit_s=120.0), CLUSTER, name="job"))
    assert (options["time"], options["signal"]) == ("0:02:00", "B:USR1@30")
    assert options_of(study_on(CLUSTER))["signal"] == "B:USR1@120"


def test_sbatch_gets_nothing_of_the_callers_shell_but_who_and_where():
    caller = {
        "HOME": "/home/me",
        "PATH": "/usr/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JOB_ID": "7",
        "SBATCH_PARTITION": "other",
        "SBATCH_EXPORT": "NONE",
        "PYTHONPATH": "/home/me/elsewhere",
        "LD_PRELOAD": "spy.so",
        "OMPI_MCA_btl": "tcp",
        "HOROVOD_CYCLE_TIME": "5",
        "HOROVOD_STUDY_DATA": "/scratch",
        "BASH_FUNC_module%%": "() { :; }",
    }
    assert set(submit_environment(caller)) == {"HOME", "PATH", "SLURM_CONF", "HOROVOD_STUDY_DATA", "BASH_FUNC_module%%"}


def test_a_partition_survives_the_folder_of_a_job():
    for name in ("alpha", "gpu2", "archer2"):
        partition = find_partition(name)
        assert Partition(**json.loads(json.dumps(partition.model_dump()))) == partition


# ---------------------------------------------------------------------------------------------------- giving to sbatch


def fake_programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Put shell programs of these names first on PATH."""
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def sweep_in(directory: Path, study: StudyConfig) -> StudyCells:
    return replace(sweep_of(study, directory), directory=directory)


def submitted(study: StudyConfig, directory: Path, **options: object) -> tuple[list, str]:
    to = Console(file=StringIO(), soft_wrap=True)
    jobs = submit_cells(sweep_in(directory, study), study.cells(), console=to, **options)
    return jobs, to.file.getvalue()


def test_the_folder_of_a_job_is_complete_before_sbatch_hears_of_it(tmp_path, monkeypatch):
    seen = 'ls > "$HOME/seen"; env > "$HOME/environment"; printf "%s\\n" "$PWD" "$@" > "$HOME/arguments"; echo "12;big"'
    fake_programs(tmp_path / "bin", monkeypatch, sbatch=seen, squeue="exit 0", sacct="exit 1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SBATCH_QOS", "callers")
    study = study_on(CLUSTER, text="study: nccl_vs_mpi\n")

    (job,), text = submitted(study, tmp_path / "runs" / "s")

    assert "submitted job 12: 1 cell, 1 node of alpha, at most 15 min" in text
    assert (tmp_path / "seen").read_text().split() == ["job.json", "partition.yaml", "script.sh", "study.yaml"]
    folder = tmp_path / "runs" / "s" / ".jobs" / job.name
    assert (tmp_path / "arguments").read_text().splitlines() == [str(folder), "--parsable", "script.sh"]
    assert "SBATCH_" not in (tmp_path / "environment").read_text()
    assert json.dumps(asdict(read_job(folder))) == json.dumps(asdict(job))
    assert job.job_id == "12" and job.tasks == ((study.cells()[0].key,),)
    assert f"\n#SBATCH --job-name={job.name}\n" in (folder / "script.sh").read_text()


def test_an_answer_of_sbatch_that_was_lost_is_looked_up_by_the_name_of_the_job(tmp_path, monkeypatch):
    monkeypatch.setattr("horovod_study.studies.plan._BETWEEN_TRIES_S", 0.0)
    told = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    lost = f'cp script.sh "$HOME/taken"; echo "{told}" >&2; exit 1'
    knows = (
        '[ -e "$HOME/taken" ] || exit 0\n'
        'name=$(sed -n "s/^#SBATCH --job-name=//p" "$HOME/taken"); echo "77|77|N/A|PENDING|Priority|$name|"'
    )
    fake_programs(tmp_path / "bin", monkeypatch, sbatch=lost, squeue=knows, sacct="exit 1")
    monkeypatch.setenv("HOME", str(tmp_path))

    (job,), _ = submitted(study_on(CLUSTER), tmp_path / "runs" / "s")

    assert job.job_id == "77"


def test_what_sbatch_refuses_is_told_in_its_words_and_remembered(tmp_path, monkeypatch, golden):
    told = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
    refuses = f'echo "{told}" >&2; exit 1'
    fake_programs(tmp_path / "bin", monkeypatch, sbatch=refuses, squeue="exit 0", sacct="exit 1")
    directory = tmp_path / "runs" / "s"

    with pytest.raises(StudyError, match=r"partition alpha: sbatch refused the job \(Batch job .* Invalid account"):
        submitted(study_on(CLUSTER), directory)

    (job,) = read_jobs(directory)
    golden(job.refused)


def test_without_slurm_nothing_is_submitted_and_the_reason_said(tmp_path, monkeypatch, golden):
    monkeypatch.setenv("PATH", str(tmp_path))
    with golden.raises(StudyError):
        submitted(study_on(CLUSTER), tmp_path / "runs" / "s")
    assert read_jobs(tmp_path / "runs" / "s") == []


def test_a_controller_that_is_down_is_no_fault_of_the_study(tmp_path, monkeypatch, golden):
    monkeypatch.setattr("horovod_study.studies.plan._BETWEEN_TRIES_S", 0.0)
    down = 'case "$*" in *--version*) exit 0;; *) exit 1;; esac'
    fake_programs(tmp_path / "bin", monkeypatch, sbatch="echo 5", squeue=down, sacct="exit 1")
    with golden.raises(StudyError):
        submitted(study_on(CLUSTER), tmp_path / "runs" / "s")
    assert read_jobs(tmp_path / "runs" / "s") == []

    told = "Batch job submission failed: Unable to contact slurm controller (connect failure)"
    gone = f'echo "sbatch: error: {told}" >&2; exit 1'
    fake_programs(tmp_path / "bin2", monkeypatch, sbatch=gone, squeue="exit 0", sacct="exit 1")
    with golden.raises(StudyError, match="3 times"):
        submitted(study_on(CLUSTER), tmp_path / "runs" / "s")


def test_where_squeue_does_not_answer_nothing_is_said_to_be_taken_back(tmp_path, monkeypatch, golden):
    fake_programs(tmp_path / "bin", monkeypatch, sbatch="echo 5", squeue="exit 0", sacct="exit 1")
    directory = tmp_path / "runs" / "s"
    to = Console(file=StringIO())
    (job,) = submit_cells(sweep_in(directory, study_on(CLUSTER)), study_on(CLUSTER).cells(), console=to)

    def cancel(**options: object) -> list[str]:
        return cancel_jobs(directory, console=to, ask=lambda command: None, **options)

    for state in ("", "running", "pre-empted"):  # a pre-empted job is queued again
        if state:
            write_note(directory, job.name, 0, Note(job_id="5", host="n1", state=state))
        with golden.raises(StudyError):
            cancel()
    assert cancel(keys=["another"]) == []
    write_note(directory, job.name, 0, Note(job_id="5", host="n1", state="cancelled"))
    assert cancel() == []


def test_a_dry_run_prints_scripts_and_launch_lines_and_writes_nothing(tmp_path, monkeypatch, golden):
    monkeypatch.setenv("PATH", "/usr/bin")
    study = study_on(CLUSTER, workers=(10,), runtimes=("horovod/mpi", "ddp/nccl"))
    jobs, text = submitted(study, tmp_path / "runs" / "s", dry_run=True)
    assert jobs == [] and not (tmp_path / "runs").exists()
    assert "#SBATCH --nodes=2\n" in text
    golden.line(text, "--host node1", "node2", "-m horovod_study.train")
    assert "srun --nodes=2 --ntasks=10 " in text


def test_only_tasks_whose_cells_are_all_meant_are_cancelled_and_only_ones_own(tmp_path, monkeypatch, golden):
    asked: list[tuple[str, ...]] = []
    fake_programs(tmp_path / "bin", monkeypatch, sbatch="echo 5", squeue="exit 0", sacct="exit 1")
    monkeypatch.setenv("USER", "me")
    directory = tmp_path / "runs" / "s"
    study = study_on(
        CLUSTER.model_copy(update={"time_limit_s": 900.0}), runtimes=("horovod/mpi", "ddp/nccl"), repeats=2
    )
    to = Console(file=StringIO())
    monkeypatch.setattr("horovod_study.studies.plan.Estimate.expected", lambda *_, **__: (190.0, ""))
    (job,) = submit_cells(sweep_in(directory, study), study.cells(), console=to)
    assert [len(task) for task in job.tasks] == [2, 2]

    def ask(command):
        asked.append(tuple(command))
        rows = [f"5_{task}|5|{task}|PENDING|Priority|{job.name}|" for task in (0, 1)]
        return "\n".join(rows) if command[0] == "squeue" else ""

    def cancel(*keys: str) -> list[str]:
        asked.clear()
        cancel_jobs(directory, keys=keys or None, console=to, ask=ask)
        return [" ".join(command) for command in asked if command[0] == "scancel"]

    assert cancel(job.tasks[1][0]) == []  # its neighbour goes on; that it is not wanted, its claim says
    assert cancel(*job.tasks[1]) == ["scancel 5_1"]
    assert cancel() == ["scancel 5_0", "scancel 5_1"]
    monkeypatch.setenv("USER", "you")
    with golden.raises(StudyError, match="5_0"):
        cancel()


if __name__ == "__main__":
    for name, text in golden_scripts().items():
        (GOLDEN / f"{name}.sh").write_text(text)
