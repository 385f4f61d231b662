"""Anybody's training as a workload: a study file names its script, or the whole command that starts it.

    script: train.py --batch-size {batch} --hidden {hidden}                     launched as all cells are
    command: torchrun --nproc-per-node {workers} train.py --hidden {hidden}     launches its ranks by itself
    sweep: {workers: [1, 2], runtime: ddp/gloo, hidden: [64, 128], NCCL_ALGO: [Ring, Tree]}

What is varied is what the line has a place for, {hidden}, and variables of the environment, NCCL_ALGO. Values are put
into the words of the line, and no shell reads them. It runs in the folder of the study file, in the environment of the
shell. The training is recorded as by `horovod-study record`; with `steps` under `run` it is ended after so many.
"""

import hashlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from horovod_study.config.documents import load_yaml, read_bytes
from horovod_study.config.roles import Option, Role
from horovod_study.config.workload import SHARED, Configuration, Workload, configuration, load_workload
from horovod_study.errors import ConfigError, StudyError, refuse
from horovod_study.text.words import cut

PROGRAM = "horovod_study.programs.script"
PLACED = ("workers", "nodes", "workers_per_node", "hosts", "host", "global_batch", "repeat")
"""Has a place in the line if wanted, and is not given under `run`."""
WARMUP_STEPS = 10
"""Fewer than of our own training: scripts of others may be short, and the rest of the warm-up is found."""
PLACE = re.compile(r"(?<!\$)\{(\w+)\}")
_READ_BY_A_SHELL = re.compile(r"(?:^|\s)(~\S*|&&|[|;<>&]+)(?=\s|$)|(\$[\w({][^\s\"]*|`|[^\s\"]*\*[^\s\"]*)")
_HOROVOD = re.compile(r"^[ \t\"]*(import|from)[ \t]+horovod\b", re.MULTILINE)
_OVER_TORCH = re.compile(  # in a script whose workers meet in torch.distributed
    r"torch\.distributed|init_process_group|torchrun|accelerate launch|^[ \t\"]*(import|from)[ \t]+"
    r"(accelerate|deepspeed|lightning|pytorch_lightning|transformers)\b",
    re.MULTILINE,
)
_TORCH_LAUNCHERS = {"torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed"}
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_OF_THE_STUDY = ("workers", "nodes", "workers_per_node", "placement", "runtime", "backend", "transport", "global_batch")


def workload_at(path: Path) -> Workload:
    """Return the workload of a Python file that declares it, or of a study file that names a script or a command."""
    if path.suffix not in (".yaml", ".yml"):
        return load_workload(path)
    found = scripted(path, load_yaml(path))
    if found is None:
        raise ConfigError(f"{path}: names neither script nor command")
    return found


def scripted(path: Path, content: Mapping[str, Any]) -> Workload | None:
    """Return the workload that the study file `path` describes by `script` or `command`, None where it has neither.

    Raises ConfigError for a line without words, a place that nothing fills, and a value that has no place.
    """
    given = [name for name in ("script", "command") if name in content]
    idle = content.get("rate") is not None and "command" not in given
    refuse(
        f"{path}",
        (idle, "rate is what the output of a command says; give command, or leave rate out"),
        (given and (len(given) > 1 or "workload" in content), "give one of script, command and workload"),
    )
    if not given:
        return None
    kind, folder, line = given[0], path.parent.resolve(), str(content[given[0]])
    words = _words(path, kind, folder, line)
    places = {name for word in words for name in PLACE.findall(word)}
    rate = check_rate(f"{path}: rate", content.get("rate"))
    told = _told(content)
    factors = _factors(path, told, places)
    for missing in sorted(places - {*SHARED, *factors, *PLACED}):
        raise ConfigError(f"{path}: {kind} has a place for {missing}, which neither run nor sweep gives")
    warmup = replace(SHARED["warmup_steps"], default=WARMUP_STEPS)
    sources = list(_sources(words, folder))
    # Threads are set only where they are told, so that a default of 1 is not the same as 1.
    line_words = [Path(words[0]).name, *words[1:], *filter(None, [rate]), *(["threads"] if "threads" in told else [])]
    version = hashlib.sha256(repr((kind, line_words, sources)).encode()).hexdigest()[:12]

    def command(config: Path, directory: Path, resume: bool) -> tuple[str, ...]:
        return ("-m", PROGRAM, "--config", str(config), "--out", str(directory))

    def arguments(config: Configuration, placed: Mapping[str, Any]) -> tuple[str, ...]:
        values = {**vars(config), **placed, "global_batch": config.batch * placed["workers"]}
        own = [f"--own={name}" for name in factors if values[name] is not None]
        if kind == "script" and find_spec("torch") is None:
            raise StudyError(
                f"{path}: script is run by {sys.executable}, which has no torch; install it there, or write `command: "
                f"torchrun --nproc-per-node {{workers}} {line}`, which starts the one that is on PATH"
            )
        own += [f"--steps={config.warmup_steps + config.steps}"] if config.steps and "steps" not in places else []
        own += ["--command"] if kind == "command" else []
        own += [] if rate is None else [f"--rate={rate}"]
        own += [f"--threads={config.threads}"] if "threads" in told else []
        own += [f"--set={name}={values[name]}" for name in factors if name not in places and values[name] is not None]
        return (f"--folder={folder}", f"--workers={placed['workers']}", *own, "--", *filled(words, values))

    return Workload(
        name=Path(words[0]).stem,
        configuration=configuration("script", {**SHARED, "warmup_steps": warmup, **factors}),
        command=command,
        arguments=arguments,
        threads_of=lambda config: config.threads if kind == "script" or "threads" in told else sys.maxsize,
        starts_ranks=kind == "command",
        usual_runtime=_usual_runtime(words, sources),
        file=folder / path.name,
        folder=folder,
        note=_note(kind, words, line),
        version=version,
    )


def _words(path: Path, kind: str, folder: Path, line: str) -> list[str]:
    """Return the words of a line; the script, which is the first, with its folder. ConfigError: there is none."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"{path}: {kind}: {error}; quote as for a shell") from None
    refuse(f"{path}", (not words, f"{kind} is empty; write e.g. train.py --batch-size {{batch}}"))
    if kind == "script":
        words[0] = str(folder / words[0])
        none = Path(words[0]).suffix not in (".py", "") or not os.path.isfile(words[0])
        beside = f"script {cut(words[0], 200)} is no Python file; it is looked for beside the study file, and anything"
        refuse(
            f"{path}",
            (none, f"{beside} else is a command: `command: bash train.sh`, `command: python -m project.train`"),
        )
    return words


def _note(kind: str, words: Sequence[str], line: str) -> str:
    """Return in one line what of a line a shell would have read, "" for nothing; one in it reads what is in quotes."""
    found = _READ_BY_A_SHELL.search(re.sub(r"'[^']*'", "''", line))
    if found is None or (Path(words[0]).name.endswith("sh") and "-c" in words):
        return ""
    told = f"note: {kind}: {found[1] or found[2]} is handed on as it is, since no shell reads the line"
    return f"{told}; bash -c 'the line in quotes' starts one"


def check_rate(source: str, value: Any) -> str | None:
    """Return a pattern whose first group is the rate that a line of output says; ConfigError where it is none."""
    if value is None:
        return None
    try:
        groups, why = re.compile(f"{value}").groups, "has no group; put the number in one: 'speed: ([0-9.]+)'"
    except re.error as error:
        groups, why = 0, f"is no regular expression ({error})"
    refuse(source, (not groups, f"{value} {why}"))
    return f"{value}"


def filled(words: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Return the words of a line with values in their places."""
    return [PLACE.sub(lambda place: str(values.get(place[1], place[0])), word) for word in words]


def _told(content: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values that the file gives options and variables, by their names."""
    given: dict[str, list[Any]] = {}
    run, sweep = (content.get(name) for name in ("run", "sweep"))
    rows = sweep.get("zip") if isinstance(sweep, Mapping) else None
    for source in (run, sweep, *(rows if isinstance(rows, list) else [rows])):
        for name, values in source.items() if isinstance(source, Mapping) else ():
            if name != "zip" and name not in _OF_THE_STUDY:
                given.setdefault(str(name), []).extend(values if isinstance(values, list) else [values])
    return given


def _factors(path: Path, given: Mapping[str, list[Any]], places: set[str]) -> dict[str, Option]:
    """Return the options of the script that are `given` values, by name; ConfigError where one has no place."""
    factors = {}
    for name, values in given.items():
        # The program itself applies threads and both counts of steps.
        place = name in places or name in ("threads", "warmup_steps", "steps") or _VARIABLE.fullmatch(name)
        none = f"{name} has a value, but the line has no place for it: write {{{name}}} where it goes; variables of the"
        refuse(f"{path}", (not place, f"{none} environment are in capitals"))
        # A length that the script is told is an option of its own: the program may still end it after some steps.
        if name not in SHARED or (name in places and SHARED[name].roles & Role.BUDGET):
            kinds = {type(value) for value in values}
            kind = next((each for each in (bool, int) if kinds == {each}), float if kinds <= {int, float} else str)
            roles = Role.SWEEPABLE | Role.CELL | (Role.LEARNING if name in places else Role.COMPUTING)
            factors[name] = Option(name=name, kind=kind, help=f"{{{name}}} of the line", roles=roles)
    return factors


def _sources(words: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield the text of each file that says what a line does: scripts, notebooks, modules, a Makefile."""
    for before, word in zip(("", *words), words, strict=False):
        names = [word] if word.endswith((".py", ".sh", ".ipynb")) else []
        names += [f"{word.replace('.', '/')}{end}" for end in (".py", "/__main__.py") if before == "-m"]
        names += ["Makefile"] if Path(word).name == "make" else []
        for path in (folder / name for name in names if (folder / name).is_file()):
            yield read_bytes(path, error=ConfigError, again="the line of the study names it").decode(errors="replace")


def _usual_runtime(words: Sequence[str], sources: Sequence[str]) -> str:
    """Return the runtime that a line is taken to use, by its launcher and by what the files in it import."""
    launchers = {Path(word).name for word in words}
    if "horovodrun" in launchers:
        return "horovod/gloo" if "--gloo" in words else "horovod/mpi"
    text = "\n".join(sources)
    over_torch = launchers & _TORCH_LAUNCHERS or _OVER_TORCH.search(text)
    return "ddp/gloo" if over_torch and not _HOROVOD.search(text) else "horovod/mpi"
