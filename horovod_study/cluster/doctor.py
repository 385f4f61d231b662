"""`horovod-study doctor`: what is installed, built and reachable, and what to do about what is not.

The checks are rows of `checks.yaml`: commands of a shell, whose exit code and output say whether all is well. One
script of the standard library runs them: here, by ssh on other hosts, by srun on the nodes of a job. Each is bounded in
time. Nothing is changed: what a check writes, it removes.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from random import SystemRandom
from types import MappingProxyType
from typing import Any, NamedTuple

from horovod_study.cluster.launch import PORTS, cell_environment, hosts_of_allocation
from horovod_study.cluster.remote import Answer, run_on, this_host
from horovod_study.cluster.slurm import Allocation, directives
from horovod_study.config.documents import load_yaml
from horovod_study.config.partitions import Host, Partition
from horovod_study.config.run import Cell, Placement
from horovod_study.config.workload import packaged
from horovod_study.files import unfinished
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import cut, plural

LOAD_S = 60.0  # for a check: from a busy file server PyTorch loads slowly
_SCRIPT = """
import json, os, signal, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor

def made(row):
    name, command = row
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(
        ["sh", "-c", command], stdin=subprocess.DEVNULL, text=True, errors="replace", start_new_session=True, **pipes
    )
    try:
        return [name, *process.communicate(timeout=limit_s), process.returncode]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return [name, "", "it did not answer within %g s" % limit_s, -1]

begun_s, (rows, limit_s, variables) = time.time(), json.loads(sys.argv[1])
path = os.environ.get("PATH", os.defpath)
os.environ.update(variables, PATH=os.pathsep.join((os.path.dirname(variables["PYTHON"]), path)))
os.environ.pop("OMP_NUM_THREADS", None)  # nproc counts it for cores
with ThreadPoolExecutor(8) as pool:
    said = [*map(made, rows[:1]), *pool.map(made, rows[1:])]
print(json.dumps({"said": said, "clock": [begun_s, time.time()], "host": os.uname().nodename}))
"""


class Check(NamedTuple):
    """A row of the table; see there."""

    area: str
    name: str
    where: str
    otherwise: str
    remedy: str
    command: str = ""
    passes: str = ""
    wrong: str = ""
    remedies: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the diagnosis; a warning or a fail says what to do about it."""

    area: str
    name: str
    verdict: str  # ok | warning | fail
    what: str
    remedy: str = ""  # "" of an ok


@dataclass(kw_only=True)
class Machine:
    """A machine, and what it is to be used for."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    runs: Path = Path("runs")
    partition: Partition | None = None
    interface: str | None = None  # to be used between the hosts
    several: bool = False  # hosts
    workers: int = 0  # to be taken by this machine, as far as that is known
    quick: bool = False
    limit_s: float = LOAD_S  # of each check
    python: str = sys.executable

    @property
    def slurm(self) -> Partition | None:
        """The partition, where it is one of Slurm."""
        return self.partition if self.partition is not None and self.partition.scheduler == "slurm" else None

    @property
    def in_job(self) -> bool:
        """Whether this is a node of a job in that partition."""
        return self.slurm is not None and "SLURM_JOB_ID" in self.environ


@cache
def table() -> tuple[Check, ...]:
    """Return the checks, area by area."""
    areas = load_yaml(Path(__file__).with_name("checks.yaml"))
    return tuple(Check(area=area, **row) for area, rows in areas.items() for row in rows)


def _fits(text: str, here: Machine) -> str:
    """Hold what the partition's file says against what Slurm knows of its nodes, the smallest of each."""
    wanted = here.partition
    assert wanted is not None
    rows = [row for row in (line.split("|") for line in text.splitlines()) if len(row) == 7]
    rows = [row for row in rows if wanted.slurm_partition or row[6].endswith("*")]
    if not rows:
        return "no such partition, or no nodes"
    cores, memory_mb = (min(int(re.sub(r"\D.*", "", row[column]) or 0) for row in rows) for column in (0, 1))
    knows: dict[str, int | None] = {
        "cores_per_node": cores,
        "memory_per_core_mb": memory_mb // max(1, min(cores, wanted.cores_per_node)),
        "gpus_per_node": min(gpus_in(row[2]) for row in rows),
        "time_limit_s": seconds_of(rows[0][4]),
        "nodes": len(rows),
    }
    says = {key: getattr(wanted, key) for key in knows}
    more = [key for key, most in knows.items() if most is not None and says[key] is not None and says[key] > most]
    found = [f"{key} in the file of {wanted.name} is {says[key]}, Slurm knows {knows[key]}" for key in more]
    if knows["gpus_per_node"] and wanted.gpus_per_node and wanted.gres is None:
        found.append(f"the file of {wanted.name} has no `gres` (gpu:{{gpus}}): jobs would not be given any GPU")
    good = "idle mixed allocated completing reserved planned powered_down powering_up".split()
    usable = [row for row in rows if row[5] == "up" and row[3].rstrip("*~#!%$@^-+").lower() in good]
    return "; ".join([*found, *["none of its nodes is usable"] * (not usable)])


def gpus_in(gres: str) -> int:
    """Return how many GPUs a node has from what sinfo says, such as gpu:a100:4(S:0-1),shard:8."""
    parts = [part.split(":") for part in re.sub(r"\([^)]*\)", "", gres).split(",")]
    return sum(int(part[-1]) if part[-1].isdigit() else 1 for part in parts if part[0] == "gpu")


def seconds_of(limit: str) -> int | None:
    """Return a time limit of Slurm, days-hours:minutes:seconds, in seconds; None where there is no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit.strip())
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0, 0)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds if found else None


def _finding(check: Check, wrong: str | None, what: str, remedy: str = "", *, host: str = "") -> Finding:
    """Return the finding of a check; `wrong`: what it means that it did not pass, None where it did."""
    text, name = cut(" ".join(what.split()), 400), f"{host} {check.name}".strip()
    if wrong is None:
        return Finding(area=check.area, name=name, verdict="ok", what=text)
    text = ": ".join(filter(None, (text, wrong)))
    return Finding(area=check.area, name=name, verdict=check.otherwise, what=text, remedy=remedy or check.remedy)


def _last(text: str) -> str:
    """Return the line of an output that says what was wrong, without the name of who says it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if re.search("error|fatal", line, re.IGNORECASE)] or lines
    return re.sub(r"^[a-z][\w-]*: (?:error: |fatal: )?(?=\S)", "", said[-1]) if said else ""


def _judged(check: Check, output: str, errors: str, code: int, *, here: Machine, host: str = "") -> Finding:
    """Return what the output and the exit code of a check's command say."""
    what = "; ".join(output.split("\n")).strip("; ")
    if code:
        what = "; ".join(filter(None, (what, _last(errors))))
        return _finding(check, check.wrong, what or ("" if check.wrong else f"exit code {code}"), host=host)
    if check.passes == "partition":
        return _finding(check, _fits(output, here) or None, what, host=host)
    passes = re.search(check.passes, output.strip(), re.DOTALL)
    return _finding(check, None if passes else check.wrong, what, host=host)


def _run(here: Machine, host: str, argv: Sequence[str], sent: str = "") -> Answer:
    """Return what `argv` comes to on `host`; "": here, in the environment of a cell."""
    cell = cell_environment(here.environ, path=here.environ.get("PATH", os.defpath), out=Path(os.devnull))
    host, limit_s = "" if host and this_host(host) else host, 2 * here.limit_s + 10
    environ = here.environ if host else cell
    return run_on(host, argv, timeout_s=limit_s, sent=sent, allocation=here.in_job and bool(host), environ=environ)


def _asked(here: Machine, host: str, checks: Iterable[Check], variables: Mapping[str, str]) -> dict[str, Any]:
    """Return what the script says on a host, with how far its clock is ahead at least (s; negative: behind)."""
    question = json.dumps([[(each.name, each.command) for each in checks], here.limit_s, variables])
    asked_s = datetime.now(UTC).timestamp()
    answer = _run(here, host, (sys.executable, "-", question), _SCRIPT)
    heard_s = datetime.now(UTC).timestamp()
    try:
        told: dict[str, Any] = json.loads(answer.output.splitlines()[-1])
    except (ValueError, IndexError):
        return {"problem": f"{sys.executable} does not run there: {_last(answer.problem) or answer.output}"}
    first_s, last_s = told["clock"]
    return {**told, "ahead": max(0.0, last_s - heard_s) or min(0.0, first_s - asked_s)}


def _variables(here: Machine, folder: Path | None, place: Path) -> dict[str, str]:
    """Return what the commands of checks are given."""
    found = {"PYTHON": here.python, "PLACE": str(place), "FOLDER": str(folder or place / "nothing")}
    found |= {"WORKERS": str(here.workers or ""), "IFACE": here.interface or "", "SEVERAL": "1" * here.several}
    found |= {"SEEN": folder.name if folder else "", "ASKED": "", "WHERE": "", "LOGIN": ""}
    if (wanted := here.slurm) is not None:
        workers, limit_s = wanted.slots_per_node, wanted.time_limit_s or 600.0
        placement = Placement(partition=wanted.name, workers=workers, workers_per_node=workers)
        cell = Cell(config=packaged().configuration(), runtime="serial", placement=placement)
        node = Allocation(partition=wanted.name, nodes=1, tasks=((cell,),), seconds=limit_s, time_limit_s=limit_s)
        asked = directives(node, wanted, name="horovod-study-doctor")
        found["ASKED"] = " ".join(f"--{option}" + ("" if value is None else f"={value}") for option, value in asked)
        found["WHERE"] = f"-p {wanted.slurm_partition}" if wanted.slurm_partition else ""
        found["LOGIN"] = "" if here.in_job else "1"
    return found


def _hosts(here: Machine, slots: Mapping[str, int], variables: Mapping[str, str], own: str) -> Iterator[Finding]:
    """Look at all hosts at once; `own`: what the packages of this machine are."""
    row = {each.name: each for each in table() if each.where == "login"}
    checks = [each for each in table() if each.where in ("host", "hosts")]
    port = str(SystemRandom().randint(*PORTS))
    with ThreadPoolExecutor(len(slots)) as pool:
        logins = dict(zip(slots, pool.map(partial(_login, here, row[""]), slots), strict=True))
        usable = [] if here.quick else [name for name, login in logins.items() if login.verdict == "ok"]

        def ask(name: str) -> dict[str, Any]:
            peers = " ".join(each for each in usable if each != name)
            more = {"NAMES": " ".join(usable), "SELF": name, "PEERS": peers, "PORT": port, "WORKERS": str(slots[name])}
            return _asked(here, name, checks, {**variables, **more, "LOGIN": ""})

        told = dict(zip(usable, pool.map(ask, usable), strict=True))
    for name, login in logins.items():
        yield login
        if (there := told.get(name)) is None:
            continue
        if "problem" in there:
            yield _finding(row["Python"], "", there["problem"], host=name)
            continue
        for check, said in zip(checks, there["said"], strict=True):
            found = _judged(check._replace(area="ssh"), *said[1:], here=here, host=name)
            if check.where == "hosts" or (found.verdict != "ok" and (check.name == "cores" or not this_host(name))):
                yield found
            if check.name == "packages" and found.verdict == "ok":
                text = (
                    "the versions and the source of this machine" if found.what == own else f"{found.what}; here {own}"
                )
                yield _finding(row["packages"], None if found.what == own else "", text, host=name)
        behind = f"{abs(there['ahead']):.1f} s {'ahead of' if there['ahead'] > 0 else 'behind'} this machine's"
        text = behind if there["ahead"] else "that of this machine"
        yield _finding(row["clock"], "" if abs(there["ahead"]) > 1 else None, text, host=name)
        alike = [each for each in told if told[each].get("host") == there["host"]]
        if len(alike) > 1:
            yield _finding(row["host name"], "", f"{', '.join(alike)} call themselves {there['host']}", host=name)


def _login(here: Machine, check: Check, name: str) -> Finding:
    if this_host(name):
        return _finding(check, None, "this machine: launchers need no ssh to it", host=name)
    answer = _run(replace(here, limit_s=min(here.limit_s, 10.0)), name, ("true",))
    problem = answer.problem
    if said := answer.output.strip():
        problem = f"it prints {said[:60]!r} without being asked: launchers read that as an answer"
    if not problem:
        return _finding(check, None, "reached over ssh without a password; its shell prints nothing", host=name)
    remedy = next(text for sign, text in check.remedies.items() if re.search(sign, f"{problem}\n{answer.errors}"))
    return _finding(check, "", _last(problem), remedy.format(shlex.quote(name)), host=name)


def examine(
    *, hosts: Sequence[Host] = (), partition: Partition | None = None, runs: Path = Path("runs"), quick: bool = False
) -> list[Finding]:
    """Return what was found, area after area.

    `hosts` are looked at over ssh (those of `partition` where none are given), the nodes of a job of Slurm by srun.
    `quick`: what takes less than three seconds; nothing heavy is loaded, nothing is started on other hosts.
    """
    here = Machine(runs=runs, partition=partition, quick=quick, limit_s=2.0 if quick else LOAD_S)
    hosts = tuple(hosts) or (partition.hosts if partition is not None else ())
    hosts = hosts or (hosts_of_allocation(os.environ) if here.in_job else ())
    here.several = len(hosts) > 1
    if partition is not None and here.slurm is None:  # nodes of Slurm have networks and variables elsewhere
        here.environ, here.interface = {**os.environ, **partition.environment}, partition.interface
        here.workers = partition.cores_per_node if partition.scheduler == "local" else 0
    return diagnosis(here, {host.name: host.slots for host in hosts})


def diagnosis(here: Machine, slots: Mapping[str, int]) -> list[Finding]:
    """Return what was found on this machine and on the hosts {name: workers}."""
    place = next(each for each in (here.runs.absolute(), *here.runs.absolute().parents) if each.is_dir())
    with ExitStack() as stack:
        folder = None
        with suppress(OSError):  # the area of the folder says what is wrong there
            folder = stack.enter_context(unfinished(place / "doctor", folder=True))
            (folder / "seen").write_text(folder.name)
        variables = _variables(here, folder, place)
        wanted = {"host", "here", *([] if here.quick else ["slow"])}
        wanted |= set() if here.slurm is None else {"slurm", *([] if here.quick else ["try"])}
        checks = [each for each in table() if each.where in wanted]  # of this machine
        told = _asked(here, "", checks, variables)
        found = [_finding(checks[0], "", told["problem"])] if "problem" in told else []
        for check, said in zip(checks, told.get("said", ()), strict=False):
            one = _judged(check, *said[1:], here=here)
            # What a command has said once is not said again where all is well.
            found += [one] * bool(one.what and (one.verdict != "ok" or one.what not in {each.what for each in found}))
        own = next((each.what for each in found if each.name == "packages"), "")
        return [*found, *(_hosts(here, slots, variables, own) if slots else ())]


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if anything fails, else 0."""
    return int(any(finding.verdict == "fail" for finding in findings))


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings and their counts, for --json."""
    counts = {verdict: sum(each.verdict == verdict for each in findings) for verdict in ("ok", "warning", "fail")}
    return {"counts": counts, "findings": [asdict(finding) for finding in findings]}


def lines(findings: Sequence[Finding]) -> list[str]:
    """Return the findings for a terminal, area after area, each with its remedy below it."""
    found = list[str]()
    for area in dict.fromkeys(each.area for each in findings):
        rows = []
        for each in (each for each in findings if each.area == area):
            rows += [(each.verdict, each.name, each.what), *[("", "", f"-> {each.remedy}")] * bool(each.remedy)]
        found += [area, *to_lines(table_of(("", "", ""), rows, texts=(0, 1, 2)), indent=2)]
    counts = document(findings)["counts"].items()
    told = [f"{count} {word}{'s' * (word != 'ok' and count > 1)}" for word, count in counts if count]
    return [*found, "", f"{plural(len(findings), 'check')}: {', '.join(told)}"]
