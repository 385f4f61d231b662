"""`horovod-study record -- COMMAND`: record a training whose script has no line of this package."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from horovod_study.cli.verbs import COUNT, DIR, SEVERAL, Verb, option_name, whole
from horovod_study.config.options import Parser
from horovod_study.config.roles import Role, named
from horovod_study.config.scripted import WARMUP_STEPS
from horovod_study.config.workload import packaged
from horovod_study.errors import refuse


def _record_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what starts the training")
    add("--out", **DIR, help="the run directory (default: a new one below runs/STUDY)")
    add("--study", default="script", metavar="NAME", help="the study that the run belongs to")
    add("--repeats", type=whole(1), metavar="N", default=1, help="run it so often, into DIR, DIR-2, ... (default 1)")
    add("--rate", metavar="REGEX", help="where the output says a rate, if no step is seen")
    add("--batch", **COUNT, help="samples of a step on one worker (default: counted)")
    add("--warmup-steps", **COUNT, default=WARMUP_STEPS, help=f"first steps, not measured (default {WARMUP_STEPS})")
    add("--steps", **COUNT, help="end the training after so many steps")
    option = "an option of the script in which runs differ; runs are repeats only where these are equal"
    add("--option", **SEVERAL, metavar="NAME=VALUE", help=option)
    add("--partition", default="local", metavar="NAME", help="the partition that it runs on", more=True)
    add("--repeat", **COUNT, default=0, help="which repeat it is (default 0)", more=True)
    add("--model-name", metavar="NAME", help="what tables call the model (default: its class)", more=True)
    add("--timer-mode", default="light", metavar="light|strict|off", help="how steps are timed", more=True)
    interval = "how often the host is sampled; 0: never"
    add("--system-interval-s", type=float, default=1.0, metavar="S", help=interval, more=True)


def record(options: argparse.Namespace) -> int:
    """Record the training of any PyTorch script as it is."""
    from horovod_study import records
    from horovod_study.config.doors import accept
    from horovod_study.config.partitions import FolderName
    from horovod_study.config.scripted import check_rate
    from horovod_study.measure.clock import utc_stamp
    from horovod_study.recording import command as recorded

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    steps, first = options.steps, options.warmup_steps
    named_options = [text.partition("=") for text in options.option]
    none_left = f"--steps {steps}: no more than --warmup-steps {first}, and none is left to measure"
    refuse(
        "",
        (steps is not None and steps <= first, none_left),
        (not command, "record: no command; write `horovod-study record -- python train.py`"),
        *((not (name and equals), f"--option {name}: is not NAME=VALUE") for name, equals, _ in named_options),
    )
    check_rate("--rate", options.rate)
    measured = named(packaged().options, Role.WINDOW | Role.CLOCK | Role.NAMING)
    common = {name: value for name, value in vars(options).items() if name in measured}
    for name, value in {**common, **({} if options.batch is None else {"batch": options.batch})}.items():
        form = FolderName if name in ("study", "partition") else packaged().options[name].form
        accept(form, value, "record", name=option_name(name))
    common["disk_full"] = "go-on"
    out = options.out or Path("runs") / options.study / f"{utc_stamp()}-{Path(command[0]).name}"
    places = [out, *(out.with_name(f"{out.name}-{number}") for number in range(2, options.repeats + 1))]
    recorded.close_left(out.absolute().parent)
    for place in places:
        records.require_no_run(place)
    own = {name: value for name, _, value in named_options}
    asked = {"typed": typed(options, command), "typed_in": os.getcwd()}
    for repeat, place in enumerate(places, options.repeat):
        code = recorded.record(
            command,
            place,
            {**common, "repeat": repeat},
            {"batch": options.batch, "model_name": options.model_name, "own": own, "requested": asked},
            steps=steps,
            rate=options.rate,
        )
        if code:  # what has failed once is not run again, nor after Ctrl-C
            break
    return code


def typed(options: argparse.Namespace, command: Sequence[str]) -> list[str]:
    """Return the words of this recording as they can be typed again, without options that have their defaults."""
    parser = Parser()
    _record_arguments(parser)
    words = ["horovod-study", "record"]
    for name, default in vars(parser.parse_args([])).items():
        value = getattr(options, name)
        if name not in ("command", "option") and value != default:
            words += [option_name(name), str(value)]
    words += [word for each in options.option for word in ("--option", each)]
    return [*words, "--", *command]


VERBS = (Verb("record", record, _record_arguments),)
