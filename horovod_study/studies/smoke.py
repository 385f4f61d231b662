"""The smoke test: before a sweep, two workers train for a few steps over each runtime that the sweep will use.

What can go wrong between workers (a launcher that does not start, an interface that leads nowhere, hosts that do not
see the same files) then costs seconds, and not the first hours of a night. What passed is remembered in the study's
folder, so that it is tried once per runtime, hosts, code and environment.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from rich.console import Console

from horovod_study.cluster.launch import Site
from horovod_study.cluster.remote import other_hosts, run_on
from horovod_study.config.partitions import Host
from horovod_study.config.roles import Role
from horovod_study.config.run import Cell, Placement
from horovod_study.config.workload import Configuration
from horovod_study.errors import StudyError
from horovod_study.files import write_file, writing
from horovod_study.measure.clock import utc_stamp
from horovod_study.studies.attempt import TIMED_OUT, CellPlaces, CellRun
from horovod_study.studies.engine import attempt
from horovod_study.studies.interruption import Interruption
from horovod_study.studies.progress import say
from horovod_study.studies.sweep import StudyCells
from horovod_study.text.progress import duration

FOLDER = ".smoke"
LIMIT_S = 90.0
"""It takes about 10 s; a machine that is loaded or starts Python from a slow file server takes several times that."""
STEPS = 5


def smoke_test(
    cells: Sequence[Cell],
    sweep: StudyCells,
    places: CellPlaces,
    sites: Mapping[Placement, Site],
    *,
    console: Console,
    stop: Interruption,
) -> None:
    """Train two workers for a few steps over each runtime of `cells` that has several, where they will run.

    Nothing is done for what has passed before. StudyError: they cannot; what `doctor` finds is printed first.
    """
    folder = sweep.directory / FOLDER
    _refuse_unreachable(cells, sweep, sites, console)
    with writing(folder, "choose another folder with --runs", error=StudyError), suppress(KeyboardInterrupt):
        for cell, site in small_cells(cells, sites):
            foreign, names = cell.config.workload.starts_ranks, [host.name for host in site.hosts] or ["this machine"]
            told = f"2 workers on {names[0]}" if len(names) == 1 else f"1 worker each on {' and '.join(names)}"
            told = told if foreign else f"{cell.runtime}, {told}"
            name = "command" if foreign else cell.runtime.replace("/", "-")
            passed = folder / "-".join([name, cell.identity, *(host.name for host in site.hosts), "passed"])
            if passed.exists():
                continue
            say(console, f"smoke test: {told}")
            out = folder.resolve() / f"{name}-{utc_stamp()}"
            while out.exists():
                out = out.with_name(f"{out.name}+")
            ended = attempt(
                CellRun(
                    cell=cell,
                    out=out,
                    config=folder / f"{out.name}.yaml",
                    log=folder / f"{out.name}.log",
                    site=site,
                    launch=places.launch,
                    # Other trainings may read their data for minutes before the first step.
                    timeout_s=LIMIT_S if foreign or cell.config.workload.small is not None else 600.0,
                    grace_s=places.grace_s,
                ),
                stop,
            )
            if ended.unreached:
                say(console, f"warning: {ended.unreached}")
            # A command of which no step is seen cannot be ended after some: that it does not fail so soon is enough.
            slow = foreign and ended.state == TIMED_OUT
            if not ended.done and not slow:
                if site.hosts or not foreign:  # else it has said itself what is wrong
                    _diagnose(site.hosts, cell, sweep, console)
                reason = f"{ended.reason} ({ended.said})" if ended.state == TIMED_OUT else ended.reason
                raise StudyError(
                    f"smoke test of {told} failed: {reason}; see {ended.log}, fix it, or start without this test "
                    "(--no-smoke)"
                )
            say(console, f"  {'no failure in' if slow else 'passed after'} {duration(ended.seconds)}")
            write_file(passed, "")


def _refuse_unreachable(
    cells: Sequence[Cell], sweep: StudyCells, sites: Mapping[Placement, Site], console: Console
) -> None:
    """Raise a StudyError when a host does not answer, also one that answered yesterday; launchers take long to say."""
    used = [site for cell in cells if not (site := sites[cell.placement]).allocation]
    hosts = {host.name: host for site in used for host in site.hosts}
    if not (away := other_hosts(list(hosts))):
        return
    with ThreadPoolExecutor(max_workers=min(len(away), 16)) as pool:
        answers = list(pool.map(lambda name: run_on(name, ("true",), timeout_s=15.0), away))
    if lost := [f"{name}: {each.problem}" for name, each in zip(away, answers, strict=True) if each.problem]:
        _diagnose(tuple(hosts.values()), cells[0], sweep, console)
        raise StudyError(
            f"{len(lost)} of {len(hosts)} hosts cannot be used ({'; '.join(lost)}); nothing was started: fix that, or "
            "leave them out (--hosts)"
        )


def _small_config(config: Configuration) -> Configuration:
    """Return a run of a few steps that communicates as `config` does; how well it learns does not matter here."""
    workload = config.workload
    values = dict(vars(config))
    if workload.small is None:
        values["warmup_steps"] = 0
    else:
        communication = workload.named(Role.RUNTIME | Role.COMMUNICATION)
        values = {**{name: values[name] for name in (*communication, "device")}, **workload.small}
    length = {**dict.fromkeys(workload.budgets), "steps": STEPS}
    return workload.configure({**values, **workload.quiet, **length, "study": "smoke", "partition": config.partition})


def small_cells(cells: Sequence[Cell], sites: Mapping[Placement, Site]) -> list[tuple[Cell, Site]]:
    """Return one cell of two workers for each runtime and partition among `cells` that has several, with its site.

    Where cells are spread over hosts, one worker goes to each of the first two.
    """
    found: dict[tuple[str, str, str], tuple[Cell, Site]] = {}
    # The cell with most hosts says most about whether workers can communicate with each other.
    for cell in sorted(cells, key=lambda each: -each.placement.nodes):
        placement, case = cell.placement, (cell.runtime, cell.placement.partition, cell.identity)
        if placement.workers == 1 or case in found:
            continue
        site, per_node = sites[placement], 1 if placement.nodes > 1 else 2
        hosts = tuple(Host(name=host.name, slots=per_node) for host in site.hosts[: 2 // per_node])
        small = Placement(partition=placement.partition, workers=2, workers_per_node=per_node)
        tried = replace(cell, config=_small_config(cell.config), placement=small, arm="", label="")
        found[case] = (tried, replace(site, hosts=hosts))
    return list(found.values())


def _diagnose(hosts: Sequence[Host], cell: Cell, sweep: StudyCells, console: Console) -> None:
    """Print what `doctor` finds wrong where a cell goes, with the remedies."""
    from horovod_study.cluster.doctor import examine  # a long list of imports that a good day does without

    say(console, "looking for the cause (horovod-study doctor):")
    partition = sweep.partitions.get(cell.placement.partition)
    found = examine(hosts=hosts, partition=partition, runs=sweep.directory.parent)
    slurm = partition is not None and partition.scheduler == "slurm"
    wrong = [each for each in found if each.verdict != "ok" and (slurm or each.area != "Slurm")]
    for line in [f"{each.verdict}: {each.name}: {each.what}; {each.remedy}" for each in wrong] or ["it found no fault"]:
        say(console, f"  {line}")
