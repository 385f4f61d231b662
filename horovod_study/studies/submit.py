"""Submits the cells of a study to Slurm as few jobs, shows what would be submitted, and takes jobs back."""

import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from rich.console import Console

from horovod_study.cluster.identity import environment, remember, snapshot
from horovod_study.cluster.jobs import Ask, Job, JobBook, ask, cell_values, job_folder, write_job
from horovod_study.cluster.launch import Starting, common_site, launch_line
from horovod_study.cluster.slurm import Allocation, allocate, script, submit_environment
from horovod_study.config.partitions import Host, Partition
from horovod_study.config.run import Cell
from horovod_study.errors import StudyError, refuse
from horovod_study.files import write_file, writing
from horovod_study.measure.clock import sleep, utc_now, utc_stamp
from horovod_study.records import facts
from horovod_study.studies.lease import Held, hold_study
from horovod_study.studies.ledger import past_durations
from horovod_study.studies.plan import Estimate
from horovod_study.studies.sweep import StudyCells
from horovod_study.text.progress import duration, show
from horovod_study.text.words import plural

_TRIES = 3
_BETWEEN_TRIES_S = 5.0
_Draft = tuple[Job, Allocation, str]  # A job that is ready to be submitted, and its script


def submit_cells(
    sweep: StudyCells,
    cells: Sequence[Cell],
    *,
    console: Console,
    dry_run: bool = False,
    planned: Mapping[str, str] = MappingProxyType({}),
) -> list[Job]:
    """Submit `cells`, all of Slurm partitions, as few jobs; return these. Cells of live jobs are left out, and said so.

    `planned` says in which state each cell was when it was chosen. With `dry_run` the scripts and launch lines are
    printed, and nothing is written. Raises StudyError when Slurm does not answer or refuses a job (those submitted
    before stay), or another command submits.
    """
    directory = sweep.directory
    check_folder(directory)
    if dry_run:
        for job, allocation, text in _drafts(sweep, cells, planned, code=directory.resolve() / ".code" / "DIGEST"):
            show(console, text)
            _show(allocation, sweep.partitions[job.partition], directory.resolve(), console)
        return []
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_study(directory))
        except Held as held:
            if not held.claim.mine:
                raise
        book = JobBook(directory)
        if ask(("squeue", "--noheader", "--me", "--format=%i")) is None:
            raise StudyError(
                "squeue does not answer here, so it is not known what is submitted already; "
                "run this where squeue works (a login node), or see `horovod-study doctor`"
            )
        adopt(book, directory, console)
        live = {key: state.job_id for job, task, state in book.live() for key in job.tasks[task]}
        for cell in cells:
            if cell.key in live:
                show(console, f"not submitted again: {cell.name} is in job {live[cell.key]}")
        wanted = [cell for cell in cells if cell.key not in live]
        if not wanted:
            return []
        used = {cell.placement.partition for cell in wanted}
        remember(directory, [sweep.partitions[name] for name in sorted(used)])
        return [_submit(*draft, sweep, console) for draft in _drafts(sweep, wanted, planned, code=snapshot(directory))]


def check_folder(directory: Path) -> None:
    """Raise StudyError where jobs could not write their output below a folder of this name."""
    path = str(directory.resolve())
    if bad := set(path) & set("%\\\n"):
        told = f"Slurm takes {', '.join(sorted(map(repr, bad)))} in a path for a pattern"
        raise StudyError(f"{path!r}: {told}; choose another folder with --runs")


def adopt(book: JobBook, directory: Path, console: Console) -> None:
    """Note the numbers of jobs that were submitted by a command that died before it could do so itself.

    A job of which Slurm knows nothing was never submitted: its cells are free again.
    """
    for job in book.jobs:
        if job.job_id or job.refused:
            continue
        number = book.job_id(job.name)
        if number:
            write_job(directory, replace(job, job_id=number, submitted=job.written))
            show(console, f"found job {number} ({job.name}), submitted by a command that was broken off")
        elif all(book.of_task(job, task) is None for task in range(len(job.tasks))):
            write_job(directory, replace(job, refused="the command that made it was broken off before it submitted it"))


def _drafts(sweep: StudyCells, cells: Sequence[Cell], planned: Mapping[str, str], *, code: Path) -> list[_Draft]:
    past, drafts = Estimate(past_durations(sweep.directory)), []

    def seconds_of(cell: Cell) -> float:  # as the plan does: what was learned, a guess, or its time limit
        return past.expected(cell, at_most_s=sweep.timeout_s)[0]

    for number, allocation in enumerate(allocate(cells, sweep.partitions, seconds_of, seed=sweep.seed), start=1):
        partition = sweep.partitions[allocation.partition]
        # It is unique, sorts by time, and says nothing to a shell, to sbatch or to a file system.
        slug = re.sub(r"[^A-Za-z0-9_.]+", "-", f"{sweep.name}-{partition.name}").strip("-.")[:40]
        name = f"{slug or 'study'}-{utc_stamp()}-{number:03}-{secrets.token_hex(3)}"
        own = {each: value for each, value in sorted(os.environ.items()) if each.startswith("HOROVOD_STUDY_")}
        where: dict[str, Any] = {"folder": job_folder(sweep.directory.resolve(), name), "name": name}
        text = script(allocation, partition, **where, python=Path(sys.executable), code=code, variables=own)
        inside: dict[str, Any] = {
            "study": facts(sweep, "name", "seed", "timeout_s"),
            "partition": partition.model_dump(),
        }
        inside |= {"cells": [cell_values(cell) for cell in allocation.cells], "environment": environment(partition)}
        inside["planned"] = {cell.key: planned.get(cell.key, "missing") for cell in allocation.cells}
        named: dict[str, Any] = {"name": name, "study": sweep.name, "partition": partition.name, "inside": inside}
        named |= {"written": utc_now(), "user": os.environ.get("USER", ""), "requeue": partition.requeue}
        tasks = tuple(tuple(cell.key for cell in task) for task in allocation.tasks)
        job = Job(**named, tasks=tasks, nodes=allocation.nodes, time_limit_s=allocation.time_limit_s)
        drafts.append((job, allocation, text))
    return drafts


def _submit(job: Job, allocation: Allocation, text: str, sweep: StudyCells, console: Console) -> Job:
    """Write the folder of a job completely, give it to sbatch, and note its number."""
    directory = sweep.directory
    folder = job_folder(directory.resolve(), job.name)
    with writing(folder, "make room there or choose another folder with --runs", error=StudyError):
        folder.mkdir(parents=True)
        write_file(folder / "script.sh", os.fsencode(text))
        write_file(folder / "study.yaml", sweep.text)
        write_file(folder / "partition.yaml", yaml.safe_dump(job.inside["partition"], sort_keys=False))
        write_job(directory, job)
    as_typed = allocation.cells[0].config.workload.folder is not None
    job = replace(job, job_id=_sbatch(job, folder, directory, as_typed=as_typed), submitted=utc_now())
    write_job(directory, job)
    many, each = (f", {len(job.tasks)} tasks", " each") if len(job.tasks) > 1 else ("", "")
    text = f"submitted job {job.job_id}{many}: {plural(len(allocation.cells), 'cell')}, {plural(job.nodes, 'node')}"
    show(console, f"{text} of {job.partition}, at most {duration(job.time_limit_s)}{each}; {folder}")
    return job


def _sbatch(job: Job, folder: Path, directory: Path, *, as_typed: bool) -> str:
    """Return the number that sbatch gives; when its answer was lost on the way, Slurm is asked for the job's name."""
    command, environ = ("sbatch", "--parsable", "script.sh"), submit_environment(os.environ, as_typed=as_typed)
    how: dict[str, Any] = {"cwd": folder, "env": environ, "stdin": subprocess.DEVNULL, "capture_output": True}
    told, lost = "", True
    for attempt in range(_TRIES):
        if attempt:
            sleep(_BETWEEN_TRIES_S)
        try:
            done: subprocess.CompletedProcess[bytes] = subprocess.run(command, timeout=120.0, **how)
        except FileNotFoundError:
            absent = "sbatch is not on PATH; submit from a login node of the cluster, or choose a partition that is not"
            raise StudyError(f"{absent} of scheduler slurm") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            told = f"sbatch did not answer ({type(error).__name__})"
        else:
            number = done.stdout.decode(errors="replace").strip().splitlines()
            if done.returncode == 0 and number and number[-1].partition(";")[0].isdigit():
                return number[-1].partition(";")[0]  # `123;cluster` where there are several
            said = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
            told = "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in said[-2:])
            told = told or f"exit code {done.returncode}"
            lost = any(word in told for word in ("timed out", "Unable to contact", "temporarily", "Connection"))
        if not lost:
            break
        if number_there := JobBook(directory).job_id(job.name):
            return number_there
    write_job(directory, replace(job, refused=f"sbatch: {told}"))
    what = f"sbatch refused the job ({told}); correct the partition's file or the study, and run it again; "
    what += f"the script is {folder / 'script.sh'}"
    if lost:
        what = f"Slurm does not take jobs now ({told}, {_TRIES} times); nothing is wrong with the study, "
        what += "run it again later"
    raise StudyError(f"partition {job.partition}: {what}")


def _show(allocation: Allocation, partition: Partition, directory: Path, console: Console) -> None:
    """Print how the cells of a job will be launched, the nodes called node1, node2, ..."""
    show(console, "# The program in it will start its cells like this:")
    shown: dict[Any, Cell] = {}
    for cell in allocation.cells:
        shown.setdefault((cell.runtime, cell.placement), cell)
    for cell in shown.values():
        many = cell.placement.nodes
        hosts = cell.placement.hosts or tuple(f"node{number + 1}" for number in range(many))
        slots = zip(hosts, cell.placement.per_node, strict=False)
        there = tuple(Host(name=name, slots=count) for name, count in slots)
        site = replace(common_site(partition), hosts=there, allocation=True, port=20000, here=many == 1)
        path = {name: value for name, value in os.environ.items() if name == "PATH"}
        start = Starting(python=Path(sys.executable), environ=path, which=lambda name, path: name, site=site)
        config = directory / "cells" / f"{cell.key}.yaml"
        line = launch_line(cell, start, config=config, out=directory / cell.key)
        show(console, f"# {cell.name}\n{shlex.join(line.argv)}\n")


def cancel_jobs(directory: Path, *, keys: Collection[str] | None = None, console: Console, ask: Ask = ask) -> list[str]:
    """Take back the jobs, or tasks of jobs, all of whose cells are in `keys` (None: all of the study's that live).

    Returns their numbers in Slurm. Jobs that also have other cells go on; which of their cells are not wanted any more
    they see from the claims. StudyError: scancel refused one, it is another user's, or squeue does not answer and one
    may wait or run still.
    """
    book, user, ended = JobBook(directory, ask=ask), os.environ.get("USER", ""), []

    def meant(job: Job, task: int) -> bool:
        return keys is None or set(job.tasks[task]) <= set(keys)

    if silent := [job.job_id or job.name for job, task in book.unheard() if meant(job, task)]:
        raise StudyError(
            f"squeue does not answer here, so no job was taken back, and {', '.join(dict.fromkeys(silent))} may wait "
            "or run still; cancel again where squeue works (a login node)"
        )
    for job, task, state in [each for each in book.live() if each[2].job_id and meant(each[0], each[1])]:
        number = f"{state.job_id}_{task}" if len(job.tasks) > 1 else state.job_id
        foreign = bool(job.user and user and job.user != user)
        # By number alone: with a filter such as --name, scancel ends the whole array instead of a task that waits.
        failed = not foreign and ask(("scancel", number)) is None
        refuse(
            "",
            (foreign, f"job {number} was submitted by {job.user}; only {job.user} can cancel it"),
            (failed, f"scancel {number} failed; try it manually to see why"),
            error=StudyError,
        )
        ended.append(number)
        show(console, f"cancelled job {number} ({plural(len(job.tasks[task]), 'cell')})")
    return ended
