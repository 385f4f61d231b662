"""The command line made from configuration values: one option per field, and errors that help.

Options that are not given leave no trace in the parsed namespace, so that option > YAML file > default holds.
"""

import argparse
import re
from typing import Any, NoReturn

from horovod_study.config import RUN_FIELDS
from horovod_study.errors import ConfigError, nearest


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ConfigErrors with the nearest known option."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Formatter, **kwargs})

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice:
            allowed = [word.strip(" '") for word in choice[2].split(",")]
            message = f"{choice[1]!r} is not known{nearest(choice[1], allowed)}; allowed: {', '.join(allowed)}"
        raise ConfigError(f"{self.prog}: {message}; see {self.prog} --help")

    def parse_strictly(self, arguments: list[str] | None = None) -> argparse.Namespace:
        """Parse everything; an option nobody declared is refused with the nearest one that exists."""
        namespace, unknown = self.parse_known_args(arguments)
        if unknown:
            parser = getattr(namespace, "parser", self)
            known = [option for action in parser._actions for option in action.option_strings]
            word = unknown[0].split("=", 1)[0]
            raise ConfigError(
                f"{parser.prog}: unknown argument {word!r}{nearest(word, known)}; see {parser.prog} --help"
            )
        return namespace


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)


GROUPS = {
    "data": (
        *("dataset", "data_seed", "input_scaling"),
        *("loader", "loader_processes", "pin_memory", "persistent_processes"),
    ),
    "how long": (
        *("epochs", "seconds", "steps", "target_mse", "warmup_steps", "evaluate_every"),
        *("checkpoint_every", "checkpoint_at_end"),
    ),
    "what is learned, and how": (
        *("batch", "widths", "optimizer", "weight_decay"),
        *("lr", "lr_scaling", "lr_warmup_steps", "schedule", "lr_end", "seed"),
    ),
    "workers": ("backend", "transport", "reduction", "horovod_defaults", "start_timeout_s"),
    "computing": (
        *("device", "threads", "precision", "memory_format"),
        *("fused_optimizer", "compile", "cuda_graphs"),
    ),
    "naming": ("study", "partition", "repeat"),
}
"""The fields of RunConfig under the headings of `--help`."""


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Declare one option per field of RunConfig, under the headings of GROUPS."""
    for heading, names in GROUPS.items():
        group = parser.add_argument_group(heading)
        for name in names:
            _add_option(group, name)


def _add_option(group: Any, name: str) -> None:
    each = RUN_FIELDS[name]
    kind, default = each.metadata["kind"], each.default
    shown = "on" if default is True else default
    text = each.metadata["help"] + ("" if shown is None or shown is False else f" (default {shown})")
    flag = "--" + name.replace("_", "-")
    if kind is bool:
        group.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
        return
    # Values are checked by RunConfig, which says what is allowed in one voice for options and YAML alike.
    metavar = "|".join(each.metadata["choices"]) if each.metadata["choices"] else _metavar(name, kind)
    group.add_argument(flag, dest=name, default=argparse.SUPPRESS, metavar=metavar, help=text.replace("%", "%%"))


def _metavar(name: str, kind: type) -> str:
    special = {"dataset": "PATH|SIZE", "widths": "C-C-H"}
    if name in special:
        return special[name]
    return {int: "N", float: "X", str: "NAME"}[kind]


def run_values(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the run options that were given on the command line."""
    return {name: value for name, value in vars(namespace).items() if name in RUN_FIELDS}
