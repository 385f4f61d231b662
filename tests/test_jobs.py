"""Submitted jobs: what Slurm's programs say of them, what is known without these, and the program inside a job."""

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import pytest
from fake_trainer import fake_launch
from make.waiting import until
from make.wording import Golden
from rich.console import Console

from horovod_study.cluster import slurm as jobs_module
from horovod_study.cluster.slurm import (
    Job,
    JobBook,
    Note,
    Row,
    ask,
    cell_of,
    cell_values,
    job_folder,
    meaning,
    note_path,
    parse_sacct,
    parse_squeue,
    read_job,
    read_jobs,
    read_note,
    write_job,
    write_note,
)
from horovod_study.config.partitions import Partition
from horovod_study.errors import BackendError, RecordError, StudyError
from horovod_study.records import read_run
from horovod_study.strain.options import StrainConfig
from horovod_study.studies import job as inside
from horovod_study.studies.job import JobSignals, main, run_here, run_job, seconds_left
from horovod_study.studies.ledger import note_attempt, read_ledger
from horovod_study.studies.study_file import StudyConfig, sweep_of


def job(name: str = "one", *, tasks: Sequence[Sequence[str]] = (("a", "b"),), **fields: object) -> Job:
    values = {"study": "s", "partition": "alpha", "nodes": 2, "time_limit_s": 900.0, "written": "2026-01-01T10:00:00"}
    return Job(**{**values, "name": name, "tasks": tuple(map(tuple, tasks)), "job_id": "7", **fields})


class Slurm:
    """Answers for squeue, sacct, scontrol and scancel: what they print, or None."""

    def __init__(self, **answers: str | None) -> None:
        self.answers, self.asked = answers, []

    def __call__(self, command: Sequence[str]) -> str | None:
        self.asked.append(tuple(command))
        return self.answers.get(command[0])

    def count(self, program: str) -> int:
        return sum(command[0] == program for command in self.asked)


# ---------------------------------------------------------------------------------------------------- texts of Slurm


def test_squeue_in_the_form_of_version_22_05():
    text = (
        "7|7|N/A|RUNNING|None|one|n[1-2]\n"
        "8_1|8|1|PENDING|Resources|array|\n"
        "8_[2-4]|8|[2-4]|PENDING|QOSMaxJobsPerUserLimit|array|\n"
        "9|9|N/A|COMPLETING|None|two|n1\n"
        "10|10|N/A|FAILED|NonZeroExitCode|three|n1\n"
        "11|11|N/A|PENDING|(launch failed requeued held)|four|\n"
        "12|12|N/A|PENDING|PartitionConfig|five|\n"
    )
    assert parse_squeue(text) == [
        Row(job_id="7", task=None, name="one", state="running", reason="on n[1-2]"),
        Row(job_id="8", task=1, name="array", state="pending", reason="Resources"),
        *(
            Row(job_id="8", task=task, name="array", state="pending", reason="QOSMaxJobsPerUserLimit")
            for task in (2, 3, 4)
        ),
        Row(job_id="9", task=None, name="two", state="running", reason="on n1"),
        Row(job_id="10", task=None, name="three", state="failed", reason=""),
        Row(job_id="11", task=None, name="four", state="pending", reason="(launch failed requeued held)"),
        Row(
            job_id="12",
            task=None,
            name="five",
            state="pending",
            reason="PartitionConfig: it will never start, the partition has too few such nodes",
        ),
    ]


def test_squeue_lines_of_another_form_are_passed_over():
    text = (
        "squeue: notice: controller is busy\n\n"
        "CLUSTER: big\n"
        "x|y|z\n"
        "12|12|0-99%4|PENDING|Priority|wide|\n"
        "13|13|N/A|R|None|short|n3\n"
    )
    assert [(row.job_id, row.task, row.state) for row in parse_squeue(text)] == [
        *(("12", task, "pending") for task in range(100)),
        ("13", None, "running"),
    ]


def test_sacct_as_version_22_05_printed_it():
    text = (
        "1|fine|COMPLETED|0:0\n"
        "2|bad|FAILED|3:0\n"
        "3|gone|CANCELLED by 0|0:0\n"
        "7|killed|FAILED|0:9\n"
        "4_1|arr|COMPLETED|0:0\n"
        "5_0|waits|RUNNING|0:0\n"
        "5_[1-3]|waits|PENDING|0:0\n"
    )
    assert [(row.job_id, row.task, row.state, row.reason) for row in parse_sacct(text)] == [
        ("1", None, "completed", ""),
        ("2", None, "failed", "exit code 3"),
        ("3", None, "cancelled", "by user 0"),
        ("7", None, "failed", "ended by signal 9"),
        ("4", 1, "completed", ""),
        ("5", 0, "running", ""),
        *(("5", task, "pending", "") for task in (1, 2, 3)),
    ]


def test_sacct_in_the_other_forms_that_its_manual_page_tells_of():
    text = (
        "7|one|COMPLETED|0:0\n"
        "8_3|array|TIMEOUT|0:0\n"
        "8_[4-6%2]|array|PENDING|0:0\n"
        "9|two|CANCELLED by 1000|0:0\n"
        "10|three|FAILED|1:0\n"
        "11|four|FAILED|0:53\n"
        "12|five|PREEMPTED|0:0\n"
        "13|six|OUT_OF_MEMORY|0:125\n"
        "14|seven|NODE_FAIL|0:0\n"
        "15|eight|CANCELLED+|0:0\n"
        "16|nine|REQUEUED|0:0\n"
        "10.batch|batch|FAILED|1:0\n"
    )
    assert [(row.job_id, row.task, row.name, row.state, row.reason) for row in parse_sacct(text)] == [
        ("7", None, "one", "completed", ""),
        ("8", 3, "array", "timed out", ""),
        *(("8", task, "array", "pending", "") for task in (4, 5, 6)),
        ("9", None, "two", "cancelled", "by user 1000"),
        ("10", None, "three", "failed", "exit code 1"),
        ("11", None, "four", "failed", "ended by signal 53"),
        ("12", None, "five", "pre-empted", ""),
        ("13", None, "six", "out of memory", ""),
        ("14", None, "seven", "node failed", ""),
        ("15", None, "eight", "cancelled", ""),
        ("16", None, "nine", "pending", ""),
    ]


def test_a_state_that_nobody_knows_is_unknown_and_not_an_error():
    assert [meaning(text) for text in ("", "  ", "TELEPORTED", "PD", "cancelled by 5")] == [
        *("unknown", "unknown", "unknown", "pending", "cancelled")
    ]


# ---------------------------------------------------------------------------------------------------- asking


def test_where_a_job_waits_or_runs_squeue_says_in_one_question_for_all(tmp_path: Path):
    for number in range(50):
        write_job(tmp_path, job(f"job-{number}", tasks=[[f"cell-{number}"]], job_id=str(number)))
    write_job(tmp_path, job("array", tasks=[["x"], ["y", "z"]], job_id="90"))
    lines = [f"{number}|{number}|N/A|PENDING|Priority|job-{number}|" for number in range(50)]
    lines += ["90_0|90|0|RUNNING|None|array|n1", "90_1|90|1|PENDING|JobArrayTaskLimit|array|"]
    slurm = Slurm(squeue="\n".join(lines))
    book = JobBook(tmp_path, ask=slurm)

    states = [book.of(f"cell-{number}") for number in range(50)]

    assert {(state.state, state.reason, state.asked) for state in states} == {("pending", "Priority", "squeue")}
    assert [book.of(key).state for key in "xyz"] == ["running", "pending", "pending"]
    assert (book.of("x").reason, book.of("z").reason) == ("on n1", "JobArrayTaskLimit")
    assert book.of("nowhere") is None
    assert (slurm.count("squeue"), slurm.count("sacct")) == (1, 0)
    assert len(book.live()) == 52


def test_a_number_that_slurm_has_given_anew_is_another_job(tmp_path: Path):
    write_job(tmp_path, job("ours"))
    book = JobBook(tmp_path, ask=Slurm(squeue="7|7|N/A|RUNNING|None|somebody-elses|n1\n", sacct=""))
    assert book.of("a").state == "unknown"
    book = JobBook(tmp_path, ask=Slurm(squeue="8|8|N/A|RUNNING|None|ours|n1\n", sacct=""))
    assert book.of("a").state == "unknown"


def test_an_older_job_is_told_of_by_sacct(tmp_path: Path):
    write_job(tmp_path, job())
    slurm = Slurm(squeue="", sacct="7|one|OUT_OF_MEMORY|0:125\n")
    state = JobBook(tmp_path, ask=slurm).of("b")
    assert (state.state, state.asked, state.job_id, state.live) == ("out of memory", "sacct", "7", False)
    assert "--jobs=7" in slurm.asked[-1]


def test_a_later_job_with_the_same_cell_counts_and_a_refused_one_does_not(tmp_path: Path):
    write_job(tmp_path, job("first", written="2026-01-01T10:00:00", job_id="7"))
    write_job(tmp_path, job("second", written="2026-01-01T11:00:00", tasks=[["b"]], job_id="8"))
    write_job(tmp_path, job("third", written="2026-01-01T12:00:00", job_id="", refused="sbatch: no such account"))
    book = JobBook(tmp_path, ask=Slurm(squeue="8|8|N/A|PENDING|Priority|second|\n", sacct="7|first|FAILED|1:0\n"))
    assert [(book.of(key).job_id, book.of(key).state) for key in "ab"] == [("7", "failed"), ("8", "pending")]


def test_a_requeued_job_says_that_it_had_begun(tmp_path: Path):
    write_job(tmp_path, job())
    write_note(tmp_path, "one", 0, Note(job_id="7", host="n1", state="pre-empted", restarts=1))
    state = JobBook(tmp_path, ask=Slurm(squeue="7|7|N/A|PENDING|BeginTime|one|\n")).of("a")
    assert (state.state, state.reason, state.restarts) == ("pending", "started before, queued again (BeginTime)", 1)


def test_a_job_that_completed_by_its_own_word_is_not_asked_about(tmp_path: Path):
    write_job(tmp_path, job())
    write_note(tmp_path, "one", 0, Note(job_id="7", host="n1", state="completed", left_out=("b",)))
    slurm = Slurm()
    book = JobBook(tmp_path, ask=slurm)
    assert (book.of("a").state, book.of("a").asked, book.of("a").left_out) == ("completed", "run directories", False)
    assert book.of("b").left_out
    assert slurm.asked == []


def test_without_any_program_of_slurm_the_notes_of_the_job_tell(tmp_path: Path, golden: Golden):
    write_job(tmp_path, job())
    nothing = Slurm()
    state = JobBook(tmp_path, ask=nothing).of("a")
    assert (state.state, state.reason, state.live) == ("pending", "squeue does not answer here", True)

    write_note(tmp_path, "one", 0, Note(job_id="7", host="n1", state="running", cell="a"))
    state = JobBook(tmp_path, ask=nothing).of("a")
    assert (state.state, state.reason, state.asked) == ("running", "on n1", "run directories")

    note = note_path(tmp_path, "one", 0)
    note.write_text(note.read_text().replace(json.loads(note.read_text())["said"], "2026-01-01T10:00:00+00:00"))
    os.utime(note, (1.0, 1.0))
    state = JobBook(tmp_path, ask=nothing).of("a")
    assert (state.state, state.live) == ("unknown", False)
    golden(state.reason, "2026-01-01T10:00:00+00:00", "n1")

    write_note(tmp_path, "one", 0, Note(job_id="7", host="n1", state="timed out", reason="its time limit is near"))
    state = JobBook(tmp_path, ask=nothing).of("a")
    golden((state.state, state.reason), "timed out")


def test_where_squeue_answers_without_the_job_it_has_ended(tmp_path: Path, golden: Golden):
    write_job(tmp_path, job())
    state = JobBook(tmp_path, ask=Slurm(squeue="", sacct=None)).of("a")
    golden((state.state, state.reason), "unknown")
    write_note(tmp_path, "one", 0, Note(job_id="7", host="n1", state="running"))
    state = JobBook(tmp_path, ask=Slurm(squeue="", sacct=None)).of("a")
    assert state.state == "unknown" and state.reason.startswith("the job ended without saying how; its last word was")


def test_a_job_without_a_number_is_found_by_its_name_or_was_never_submitted(tmp_path: Path, golden: Golden):
    write_job(tmp_path, job(job_id=""))
    assert JobBook(tmp_path, ask=Slurm(squeue="", sacct="")).of("a") is None
    book = JobBook(tmp_path, ask=Slurm(squeue="31|31|N/A|PENDING|Priority|one|\n"))
    assert (book.of("a").state, book.job_id("one")) == ("pending", "31")
    book = JobBook(tmp_path, ask=Slurm(squeue="", sacct="32|one|COMPLETED|0:0\n"))
    assert (book.of("a").state, book.job_id("one")) == ("completed", "32")
    state = JobBook(tmp_path, ask=Slurm()).of("a")
    golden((state.state, state.reason), "pending")


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        (None, None),
        ("exit 1", None),
        ("echo said; exit 3", None),
        ("sleep 60", None),
        ("echo '7|7|N/A|RUNNING|None|one|n1'", "7|7|N/A|RUNNING|None|one|n1\n"),
        ("printf '\\377\\n'", "\ufffd\n"),
        ('echo "${SQUEUE_FORMAT-unset} $LC_ALL"', "unset C\n"),
    ],
)
def test_programs_that_are_missing_fail_or_hang_answer_nothing(program, answer, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs_module, "_ASK_TIMEOUT_S", 1.0)
    monkeypatch.setenv("SQUEUE_FORMAT", "%all")
    if program is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        (tmp_path / "squeue").write_text(f"#!/bin/bash\n{program}\n")
        (tmp_path / "squeue").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert ask(("squeue", "--noheader")) == answer


def test_a_damaged_job_names_its_file_and_what_to_do(tmp_path: Path, golden: Golden):
    write_job(tmp_path, job())
    assert read_jobs(tmp_path) == [job()]
    (job_folder(tmp_path, "one") / "job.json").write_text('{"name": "one"')
    with golden.raises(RecordError, match=r"job\.json.*JSON"):
        JobBook(tmp_path, ask=Slurm())
    with golden.raises(RecordError, match=r"job\.json"):
        read_job(tmp_path / "nothing")


# ---------------------------------------------------------------------------------------------------- inside a job


def study_of(*, nodes: int = 1, **fields: object) -> StudyConfig:
    there = Partition(name="there", scheduler="slurm", nodes=None, cores_per_node=4, slurm_partition="main")
    run = StrainConfig(study="s", partition="there", steps=5)
    values = {"runtimes": ("horovod/mpi",), "workers": (nodes,), "workers_per_node": (1,), "repeats": 3}
    return StudyConfig(**{"name": "s", "run": run, "baselines": (), "partitions": {"there": there}, **values, **fields})


def submitted(directory: Path, study: StudyConfig, **fields: object) -> Job:
    cells = study.cells()
    (partition,) = study.partitions.values()
    made = job(
        "one",
        tasks=[[cell.key for cell in cells]],
        nodes=cells[0].placement.nodes,
        inside={
            "study": {"name": study.name, "seed": study.seed, "timeout_s": study.timeout_s},
            "partition": partition.model_dump(),
            "cells": [cell_values(cell) for cell in cells],
            "planned": {cell.key: "missing" for cell in cells},
            "environment": {"torch": "2.13.0"},
        },
        **fields,
    )
    write_job(directory, made)
    return read_job(job_folder(directory, "one"))


HERE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1", "SLURM_TASKS_PER_NODE": "1"}


def run_inside(made: Job, directory: Path, slurm: Slurm, behaviour: dict[str, str], **options: object):
    to = Console(file=StringIO(), soft_wrap=True, width=200)
    launch = fake_launch(behaviour)

    def at_any_site(cell, config, out, *, resume=False, site=None):
        return launch(cell, config, out, resume=resume)

    environ = {**HERE, **options.pop("environ", {})}
    around = inside.Inside(console=to, environ=environ, ask=slurm, launch=at_any_site)
    code = run_job(made, directory, 0, around, until_killed_s=0.0, **options)
    return code, to.file.getvalue()


@pytest.mark.slow
def test_a_job_runs_its_cells_and_says_so_in_its_note(tmp_path: Path, golden: Golden):
    study = study_of()
    made = submitted(tmp_path / "s", study)

    code, text = run_inside(made, tmp_path / "s", Slurm(), {"horovod/mpi/1/1": "own reason"})

    assert code == 1
    golden.line(text, "job 7", "n1", "3 cells", "15 min")
    note = read_note(tmp_path / "s", "one", 0)
    golden((note.state, note.reason, note.host, note.cell), "completed", "3 cells", "n1")
    ledger = read_ledger(sweep_of(study, tmp_path), jobs=JobBook(tmp_path / "s", ask=Slurm()))
    assert [entry.state for entry in ledger.entries] == ["done", "failed", "done"]
    code, _ = run_inside(made, tmp_path / "s", Slurm(), {})
    assert code == 0


def test_a_cell_that_would_not_end_in_time_is_left_for_the_next_job(tmp_path: Path, golden: Golden):
    study = study_of()
    made = submitted(tmp_path / "s", study)
    for cell in study.cells():
        note_attempt(tmp_path / "s", cell, started="now", state="done", seconds=1000.0, exit_code=0, reason="")

    code, text = run_inside(made, tmp_path / "s", Slurm(), {})

    assert code == 1
    golden.line(text, "horovod/mpi", "1 worker", "repeat 2", "16 min 40 s")
    note = read_note(tmp_path / "s", "one", 0)
    golden(note.reason)
    assert note.left_out == made.tasks[0][1:]
    ledger = read_ledger(sweep_of(study, tmp_path), jobs=JobBook(tmp_path / "s", ask=Slurm()))
    assert [entry.state for entry in ledger.entries] == ["done", "missing", "missing"]


def test_in_another_environment_all_cells_fail_and_say_what_differs(tmp_path: Path, monkeypatch, golden):
    study = study_of(identity={"there": "0123456789ab"})
    made = submitted(tmp_path / "s", study)
    monkeypatch.setattr(inside, "environment", lambda partition: {"torch": "2.12.0"})

    with golden.raises(StudyError, match=r"n1.*2\.13\.0.*2\.12\.0"):
        run_inside(made, tmp_path / "s", Slurm(), {})

    ledger = read_ledger(sweep_of(study, tmp_path), jobs=JobBook(tmp_path / "s", ask=Slurm()))
    assert {entry.state for entry in ledger.entries} == {"failed"}
    assert "torch 2.13.0 -> 2.12.0" in ledger.entries[0].reason
    assert not (tmp_path / "s" / "starts.txt").exists()
    assert read_note(tmp_path / "s", "one", 0).state == "failed"


def test_on_fewer_nodes_than_asked_for_all_cells_fail(tmp_path: Path, golden: Golden):
    study = study_of(nodes=2)
    made = submitted(tmp_path / "s", study)
    with golden.raises(StudyError, match="1 nodes.*n1"):
        run_inside(made, tmp_path / "s", Slurm(), {})
    assert {read_run(tmp_path / "s" / key).status for key in made.tasks[0]} == {"failed"}


PRE_EMPTED = "JobId=7 JobName=one JobState=RUNNING Restarts=0 PreemptTime=2026-01-01T10:00:00 EndTime=Unknown\n"


def test_workers_stopped_in_the_grace_time_of_a_pre_emption_make_the_job_hand_its_nodes_back(tmp_path: Path):
    study = study_of()
    made = submitted(tmp_path / "s", study)
    slurm = Slurm(scontrol=PRE_EMPTED)

    code, text = run_inside(made, tmp_path / "s", slurm, {"*": "stopped, checkpoint"})

    assert code == 75
    assert ("scontrol", "requeue", "7") in slurm.asked
    assert "ended: pre-empted (Slurm takes the nodes away)" in text
    assert len((tmp_path / "s" / "starts.txt").read_text().splitlines()) == 1
    book = JobBook(tmp_path / "s", ask=Slurm(squeue="7|7|N/A|PENDING|BeginTime|one|\n"))
    ledger = read_ledger(sweep_of(study, tmp_path), jobs=book)
    assert {entry.state for entry in ledger.entries} == {"queued"}


def test_a_job_that_the_version_before_submitted_is_read(tmp_path: Path):
    """Its cells have no labels, and more is told of its study than is asked for."""
    made = submitted(tmp_path / "s", study_of())
    cells = [{name: value for name, value in each.items() if name != "label"} for each in made.inside["cells"]]
    more = {**made.inside["study"], "varied": {}, "repeats": 3, "partitions": ["there"], "run": {}}
    older = replace(made, inside={**made.inside, "cells": cells, "study": more})

    code, text = run_inside(older, tmp_path / "s", Slurm(), {})

    assert code == 0 and "horovod/mpi, 1 worker, repeat 3" in text


def test_workers_stopped_by_anybody_else_do_not_end_the_job(tmp_path: Path):
    made = submitted(tmp_path / "s", study_of())
    slurm = Slurm(scontrol=PRE_EMPTED.replace("2026-01-01T10:00:00", "None"))
    code, _ = run_inside(made, tmp_path / "s", slurm, {"horovod/mpi/1/0": "stopped"})
    assert code == 1
    assert ("scontrol", "requeue", "7") not in slurm.asked
    assert len((tmp_path / "s" / "starts.txt").read_text().splitlines()) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "told", "state"),
    [
        (signal.SIGUSR1, "JobState=RUNNING PreemptTime=None", "timed out"),
        (signal.SIGUSR1, PRE_EMPTED, "pre-empted"),
        (signal.SIGTERM, PRE_EMPTED, "pre-empted"),
        (signal.SIGTERM, "JobState=COMPLETING Restarts=1 PreemptTime=None", "pre-empted"),
        (signal.SIGTERM, "JobState=COMPLETING Restarts=0 PreemptTime=None", "cancelled"),
    ],
)
def test_a_signal_of_slurm_stops_the_cell_with_a_checkpoint(number, told, state, tmp_path: Path, golden):
    study = study_of()
    made = submitted(tmp_path / "s", study)
    first = tmp_path / "s" / made.tasks[0][0]
    before = signal.getsignal(signal.SIGUSR1)

    def signal_when_it_runs() -> None:
        until((first / "ready").exists, "the cell runs")
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=signal_when_it_runs)
    sender.start()
    code, _ = run_inside(made, tmp_path / "s", Slurm(scontrol=told), {"*": "stops when asked"})
    sender.join()

    assert code == 75
    note = read_note(tmp_path / "s", "one", 0)
    golden((note.state, note.reason), state)
    assert read_run(first).status == "stopped"
    assert len((tmp_path / "s" / "starts.txt").read_text().splitlines()) == 1
    assert signal.getsignal(signal.SIGUSR1) == before


def test_without_a_word_from_slurm_a_signal_near_the_end_is_the_time_limit():
    for ends, state in ((time.time() + 10, "interrupted"), (time.time() + 5000, "pre-empted")):
        stop = JobSignals("7", restarts=0, ends=ends, ask=Slurm())
        assert stop.state == "interrupted"
        stop.requested, stop.number = True, signal.SIGTERM
        assert stop.state == state


def test_the_time_left_is_slurms_word_else_the_limit_of_the_job():
    assert seconds_left({"SLURM_JOB_END_TIME": "1000"}, 900.0, present=lambda: 400.0) == 600.0
    assert seconds_left({"SLURM_JOB_END_TIME": "1000"}, 900.0, present=lambda: 4000.0) == 0.0
    with pytest.raises(BackendError, match="SLURM_JOB_END_TIME"):
        seconds_left({"SLURM_JOB_END_TIME": "never"}, 900.0)
    assert seconds_left({}, 900.0) == 900.0


def test_the_program_needs_the_folder_of_a_job(tmp_path: Path, capsys, golden):
    assert main([]) == 2
    assert main([str(tmp_path)]) == 2
    golden(capsys.readouterr().err)
    made = submitted(tmp_path / "s", study_of())
    assert main([str(job_folder(tmp_path / "s", made.name))], environ={**HERE, "SLURM_ARRAY_TASK_ID": "3"}) == 2
    golden(capsys.readouterr().err)


def test_a_cell_survives_the_folder_of_a_job_and_another_one_is_refused(golden):
    for cell in study_of(placements=("list",), hosts=("n1", "n2"), nodes=2).cells():
        values = json.loads(json.dumps(cell_values(cell)))
        assert cell_of(values) == cell
        with golden.raises(RecordError):
            cell_of({**values, "identity": "other"})


# ---------------------------------------------------------------------------------------------------- in an allocation


def test_in_an_allocation_of_ones_own_what_fits_is_run(tmp_path: Path, golden: Golden):
    study = study_of(workers=(1, 2), repeats=1)
    to = Console(file=StringIO(), soft_wrap=True)
    launch = fake_launch({})

    def at_any_site(cell, config, out, *, resume=False, site=None):
        return launch(cell, config, out)

    around = inside.Inside(console=to, environ=HERE, ask=Slurm(), launch=at_any_site)

    result = run_here(sweep_of(study, tmp_path), around, command="again")

    assert [entry.state for entry in result.ledger.entries] == ["done", "missing"]
    golden.line(to.file.getvalue(), "n1", "1 do")
    with golden.raises(StudyError, match="job 7.*1 node.*2 nodes"):
        run_here(sweep_of(study, tmp_path), around, command="again")
    with golden.raises(StudyError):
        run_here(sweep_of(study, tmp_path), replace(around, environ={}), command="again")


def test_jobs_of_older_versions_are_read(tmp_path: Path):
    values = {**asdict(job()), "colour": "blue"}
    job_folder(tmp_path, "one").mkdir(parents=True)
    (job_folder(tmp_path, "one") / "job.json").write_text(json.dumps(values))
    assert read_jobs(tmp_path) == [job()]
