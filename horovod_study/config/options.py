"""The command line made from configuration values: one option per field, and errors that help.

Options that are not given leave no trace in the parsed namespace, so that option > YAML file > default holds.
"""

import argparse
import re
import sys
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from horovod_study.config.roles import Option, Role, named
from horovod_study.config.workload import HEADINGS, packaged
from horovod_study.errors import ConfigError, nearest, refuse

_BUDGETS, OPTIONS = packaged().budgets, packaged().options
_FORMATTER = partial(argparse.HelpFormatter, max_help_position=26, width=80)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ConfigErrors with the nearest known option, and whose help fits a screen.

    It is called to declare an option; those with `more` are shown by --help-all alone. A verb named `verb --flag` is
    the form that `verb` has where that flag is given.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _FORMATTER, "add_help": False, **kwargs})
        self._more: list[argparse.Action] = []
        self.add_argument("-h", "--help", action="help", help="show this")
        self.add_argument("--help-all", action=_HelpAll, nargs=0, help="... and the options that few need")

    def add_argument(self, *names: Any, more: bool = False, within: Any = None, **how: Any) -> argparse.Action:
        """Declare an option, of the group `within`; few need it where `more` is set."""
        action = super().add_argument(*names, **how) if within is None else within.add_argument(*names, **how)
        if more:
            self._more.append(action)
        return action

    __call__ = add_argument

    def format_help(self, *, whole: bool = False) -> str:
        """Return the help: what most need, which fits a screen, or the whole of it."""
        placed, options = self._get_positional_actions(), self._get_optional_actions()
        groups = [(each.title, each._group_actions) for each in self._action_groups]
        if not whole:
            idle = [*self._more, *([] if self._more else [self._option_string_actions["--help-all"]])]
            groups = [each for each in groups if {*each[1]} & {*placed}]
            groups += [("options", [each for each in options if each not in idle])]
        formatter = self._get_formatter()
        command = [each for each in placed if each.nargs == argparse.REMAINDER]  # what follows it is the command's own
        first = [_positional(each) for each in placed if each not in command]
        usage = " ".join([self.prog, *first, "[options]", *map(_positional, command)])
        formatter.add_usage(usage, self._actions, ())
        formatter.add_text(self.description)
        for title, actions in groups:
            formatter.start_section(title)
            for each in actions:
                verbs: Any = getattr(each, "_get_subactions", None)
                formatter.add_arguments([each] if verbs is None else verbs())
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice:
            allowed = [each for word in choice[2].split(",") if " " not in (each := word.strip(" '"))]
            message = f"{choice[1]!r} is not known{nearest(choice[1], allowed)}; allowed: {', '.join(allowed)}"
        raise ConfigError(f"{self.prog}: {message}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or version; argparse says nothing where that cannot be written."""
        if file is not None:
            file.write(message)
            file.flush()

    def parse_known_args(  # type: ignore[override]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        # Before a verb an unknown option would leave its value behind, to be taken for the verb.
        verbs: Any = next((each for each in self._actions if isinstance(each, argparse._SubParsersAction)), None)
        args = list(sys.argv[1:] if args is None else args)
        for place, word in enumerate(args if verbs else ()):
            flag = word.split("=", 1)[0]
            if word in verbs.choices:
                forms = (f"{word} {each.split('=', 1)[0]}" for each in args[place + 1 :])
                args[place] = next((form for form in forms if form in verbs.choices), word)
                break
            if flag.startswith("--") and flag != "--" and flag not in self._option_string_actions:
                self.error(f"unknown argument {flag!r}{nearest(flag, self._option_string_actions)}")
        return super().parse_known_args(args, namespace)

    def parse_strictly(self, arguments: list[str] | None = None) -> argparse.Namespace:
        """Parse everything; an option nobody declared is refused with the nearest one that exists."""
        namespace, unknown = self.parse_known_args(arguments)
        if unknown:
            parser = getattr(namespace, "parser", self)
            known = [option for action in parser._actions for option in action.option_strings]
            word = unknown[0].split("=", 1)[0]
            raise ConfigError(
                f"{parser.prog}: unknown argument {word!r}{nearest(word, known)}; see {parser.prog} --help-all"
            )
        return namespace


class _HelpAll(argparse.Action):
    def __call__(self, parser: Any, *_: Any) -> NoReturn:
        parser._print_message(parser.format_help(whole=True), sys.stdout)
        raise SystemExit(0)


def _positional(action: argparse.Action) -> str:
    """Return how a usage line shows an argument that has no flag."""
    name = f"{action.metavar or action.dest}{' ...' * (action.nargs in ('*', '+', argparse.PARSER))}"
    return f"[{name}]" if action.nargs in ("?", "*") or not action.required else name


SET_BY_RANGE_TEST = (
    *named(OPTIONS, Role.RUNTIME | Role.PROBE | Role.TARGET),
    *(name for name in named(OPTIONS, Role.RATE) if not OPTIONS[name].roles & Role.SEVERAL),
    "seconds",
)  # options of a run that have no place in a learning-rate range test

_COURSE = named(OPTIONS, Role.RUNTIME | Role.COURSE | Role.NAMING | Role.PROBE)
SET_BY_COMPARE = (*(name for name in _COURSE if name != "partition"), "epochs")
"""Options of a run that have no place in a comparison."""

SET_BY_ATTRIBUTION = (
    *SET_BY_COMPARE,
    *(name for name in _BUDGETS if name not in ("epochs", "steps")),
    *(name for name, each in OPTIONS.items() if each.attributed),
)  # options of a run that the experiment of `attribute` sets itself

BY_RUNTIME = dict.fromkeys(named(OPTIONS, Role.RUNTIME), "use --runtime")
"""What to use instead of the options that name a runtime."""


def refuse_set(verb: str, given: Collection[str], names: Collection[str], instead: Mapping[str, str]) -> None:
    """Raise ConfigError for one of the options `names`, which `verb` sets itself; `instead`: what to do, by option."""
    told = {name: instead.get(name, "leave it out") for name in names if name in given}
    refuse(verb, *((True, f"--{name.replace('_', '-')} has no place here; {use}") for name, use in told.items()))


def require_workers(verb: str, workers: int, cores: int, *, least: int = 1, threads: int = 1) -> None:
    """Raise ConfigError for fewer than `least` workers, and for more threads of all of them than `cores`."""
    each = f" with {threads} threads each" if threads > 1 else ""
    offered = f"this machine offers {cores} core{'s' * (cores > 1)}; workers that share a core measure how it is shared"
    refuse(
        verb,
        (workers < least, f"--workers is {workers}; it must be at least {least}"),
        (workers * threads > cores, f"--workers is {workers}{each}, but {offered}, so lower --workers"),
    )


def add_run_options(
    parser: Parser, *, hidden: Collection[str] = (), shown: Collection[str] = (), without: Collection[str] = ()
) -> None:
    """Declare each option of the package's own workload but those `without`, under its heading.

    All but `shown` are for --help-all; `hidden` ones are taken, to be refused with a reason, and in no help.
    """
    for heading in HEADINGS:
        group = parser.add_argument_group(heading)
        for each in OPTIONS.values():
            if each.heading == heading and each.name not in without:
                _add_option(parser, group, each, hidden=each.name in hidden, more=each.name not in shown)


def add_train_options(add: Parser) -> None:
    """Declare the options of `train`: those of a run, and where to write."""
    add_run_options(add, shown=(*named(OPTIONS, Role.DATA), *_BUDGETS, "batch", "lr"))
    add("--config", type=Path, metavar="FILE.yaml", help="read options from a YAML file first")
    add("--out", type=Path, metavar="DIR", help="the run directory (default: below runs/)")
    resume = "continue the run in this directory from its newest checkpoint, bit for bit, with as many workers; "
    resume += "options come from its run.json, and only the budget may be extended"
    add("--resume", type=Path, metavar="DIR", help=resume, more=True)
    again = "start over where --out holds a run that has ended; it is kept in .attempts beside DIR"
    add("--again", action="store_true", help=again, more=True)
    add("--json", action="store_true", help="end with one line of JSON on standard output")


def _add_option(parser: Parser, group: Any, each: Option, *, hidden: bool, more: bool) -> None:
    default = each.default
    shown = "on" if default is True else f"{default:g}" if isinstance(default, float) else default
    text = each.help + ("" if shown is None or shown is False else f" (default {shown})")
    text = argparse.SUPPRESS if hidden else text.replace("%", "%%")
    flag = "--" + each.name.replace("_", "-")
    how: dict[str, Any] = {"dest": each.name, "default": argparse.SUPPRESS, "help": text}
    if each.kind is bool:
        how["action"] = argparse.BooleanOptionalAction
    else:
        # Values are checked by the configuration, which says what is allowed in one voice for options and YAML alike.
        how["metavar"] = "|".join(each.choices or ()) or each.metavar or {int: "N", float: "X", str: "NAME"}[each.kind]
        how |= {} if each.bare is None else {"nargs": "?", "const": each.bare}
    parser.add_argument(flag, within=group, more=more, **how)


def run_values(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the run options that were given on the command line."""
    return {name: value for name, value in vars(namespace).items() if name in OPTIONS}
