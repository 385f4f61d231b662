"""The study file of a command that was typed: `horovod-study run -- COMMAND` writes it, and finds it the next time."""

import itertools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import yaml

from horovod_study.cluster.partitions import Host, this_machine
from horovod_study.documents import load_yaml
from horovod_study.errors import ConfigError
from horovod_study.files import write_file, writing
from horovod_study.progress import say
from horovod_study.recording.said import said_workers
from horovod_study.scripted import PLACED, check_rate
from horovod_study.text.words import plural

_PLACE = re.compile(r"(?<!\$)\{(\w+)\}")
_FILLED = (*(name for name in PLACED if name != "global_batch"), "seed")
_PLAIN = re.compile(r"[\w@%+=:,./{}-]+")


def command_study(command: Sequence[str], *, rate: str | None = None, hosts: Sequence[Host] = ()) -> Path:
    """Return the study file, in the working directory, whose cells are `command` with its places filled.

    It is the one that was written when the same command was typed before, or a new one: worker counts 1, 2, 4, ... up
    to what this machine, or the `hosts`, take; without a place for {workers} the count that the command says. `rate`:
    the pattern of the rate in its output. Raises ConfigError for a command without words and for an unknown place.
    """
    if not command:
        raise ConfigError("run: no command; write `horovod-study run -- torchrun --nproc-per-node {workers} train.py`")
    check_rate("--rate", rate)
    places = list(dict.fromkeys(_PLACE.findall(" ".join(command))))
    if unknown := [name for name in places if name not in _FILLED]:
        raise ConfigError(
            f"run: nothing is known to put in the place of {{{unknown[0]}}}; there are {{{'}, {'.join(_FILLED)}}}, and "
            "a study file (docs/studies.md) gives others their values"
        )
    most = sum(host.slots for host in hosts) or this_machine().slots_per_node
    counts = sorted({*(2**power for power in range(most.bit_length())), most})
    if "workers" not in places:
        counts = [said_workers(command)]
        say(
            f"one worker count, {counts[0]}: the command has no place for another; write {{workers}} where it says "
            "how many, for a speedup"
        )
    line = " ".join(word if _PLAIN.fullmatch(word) else shlex.quote(word) for word in command)
    content = {"command": line, **({} if rate is None else {"rate": rate})}
    name = _name(command)
    number, path = 1, Path(f"{name}-study.yaml")
    while path.exists():
        known = load_yaml(path)
        if {key: known.get(key) for key in ("command", "rate")} == {"rate": None, **content}:
            return path
        number += 1
        path = Path(f"{name}-{number}-study.yaml")
    # Nobody knows how long a command is.
    study = {"study": path.stem.removesuffix("-study"), **content, "repeats": 3, "timeout_s": 4 * 3600}
    study |= {"sweep": {"workers": counts}, **({} if "workers" in places else {"baselines": []})}
    head = f"# {plural(len(counts), 'worker count')} x 3 repeats; `run: {{steps: 200}}` ends each run after 200 steps\n"
    with writing(path, "type the command in a folder that is writable", error=ConfigError):
        write_file(path, head + yaml.safe_dump(study, sort_keys=False, width=10**6, default_flow_style=None))
    return path


def _name(command: Sequence[str]) -> str:
    """Return what a command is called: its script, its module, else its program."""
    words = " ".join(command).split()  # also of what `bash -c` is given
    ends = r"([^/]+)\.(?:py|sh|bash|ipynb|jl|R)"
    scripts = [found[1] for word in words if (found := re.fullmatch(ends, Path(word).name))]
    modules = [word for before, word in itertools.pairwise(command) if before in ("-m", "--module")]
    name = [*scripts, *modules[-1:], Path(command[0]).name][0]
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "command"
