"""An option of a run: what it may be, and what it is to a study.

Every list of options that the package needs (what may be swept, what belongs to the library that workers communicate
through, what two compared runs may differ in, the headings of `--help`, ...) is derived from what options declare of
themselves.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Flag, auto
from fnmatch import fnmatchcase
from functools import cache, cached_property
from typing import Any, get_args


class Role(Flag):
    """What an option is to a study; most have one or two of these."""

    NONE = 0
    RUNTIME = auto()  # the library and what carries its messages: experiments name runtimes, not these two
    COMMUNICATION = auto()  # how the workers communicate, beside the runtime; `Option.over` says where it has an effect
    PLACEMENT = auto()  # on which nodes the workers sit
    COMPUTING = auto()  # how one worker does the same work
    GUARD = auto()  # ends a run that is not what it should be
    CLOCK = auto()  # how steps are timed and their rows are kept
    WINDOW = auto()  # where the timed window is
    PROBE = auto()  # looks into further steps of one run, after its timed window
    DATA = auto()  # what is learned from
    LEARNING = auto()  # what is learned, and how
    MODEL = auto()  # the shape of what is trained: settings are tuned for one of them
    RATE = auto()  # the learning rate over a run, which no step takes longer for
    BUDGET = auto()  # how long a run is; it has one of these
    COURSE = auto()  # what happens on the way: evaluations, checkpoints, an early end
    TARGET = auto()  # ends a run that has learned enough
    NAMING = auto()  # which run of which study it is
    SWEEPABLE = auto()  # a study may vary it
    CELL = auto()  # runs that differ in it are different experiments, never repeats of each other
    SEVERAL = auto()  # means nothing to one worker alone
    APPLIED = auto()  # the record has it as it was applied, among `effective` under its own name

    MAY_DIFFER = RUNTIME | COMMUNICATION | PLACEMENT | COMPUTING | GUARD | CLOCK
    """How the work is done. Whatever else an option says is what is done: the same on both sides of a comparison."""


AS_SHIPPED = "shipped"
TRUTH = {
    **dict.fromkeys(("true", "on", "yes", "1"), True),
    **dict.fromkeys(("false", "off", "no", "0"), False),
}
"""What words on a command line mean where an option is a boolean."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: a field of a configuration, an option of the command line, a key of YAML files."""

    name: str = ""
    default: Any = None
    help: str = ""
    kind: type = str  # bool, int, float or str
    choices: Sequence[str] | None = None
    low: float | None = None  # the least value
    above: float | None = None  # what a value must exceed
    heading: str = ""  # of --help
    metavar: str = ""
    bare: str | None = None  # what the option stands for on a command line without a value
    roles: Role = Role.NONE
    over: tuple[str, ...] = ("*",)  # patterns of the runtimes on which it has any effect
    variable: str = ""  # of the environment, which its library reads
    parse: Callable[[str], Any] | None = None  # what a text means, by which values are sorted; ConfigError: nothing
    hooks: bool = False  # does something only where gradients are reduced from hooks
    several_hosts: bool = False  # means something on several hosts only
    attributed: bool = False  # the experiment of `attribute` varies it
    tries: tuple[Any, ...] = ()  # values that `run --tune` tries; none: it is not tuned
    later: bool = False  # it came after cells had names: with its default it is in none, so that old studies go on
    quiet: Any = ...  # its value in runs that are made only to be timed; default: as it is
    words: str | Callable[[Any], str] = ""  # names a value, where it distinguishes series: with {} in its place
    short_title: str = ""  # in a list of what all runs share

    @cached_property
    def form(self) -> Any:
        """The pydantic type of its values; null is one where nobody needs to say it."""
        from horovod_study.config.doors import checked  # pydantic, which --help does without

        form = checked(self.kind, low=self.low, above=self.above, choices=self.choices, parse=self.parse)
        return form | None if self.default is None else form

    def check(self, owner: str, value: Any) -> Any:
        """Return `value` as what this option must be, or raise ConfigError that begins with `owner`."""
        from horovod_study.config.doors import accept

        return accept(self.form, value, owner, name=self.name)

    def say(self, value: Any) -> str:
        """Name a value where it distinguishes runs; AS_SHIPPED stands for that nobody chose one."""
        if not isinstance(self.words, str):
            return self.words(value)
        plain = self.name.removesuffix("_ms").removesuffix("_mb").replace("_", " ")
        return f"{plain} as shipped" if value == AS_SHIPPED else (self.words or plain + " {}").format(value)

    def matters(self, runtime: str) -> bool:
        """Return whether it has any effect on runs over `runtime`."""
        return _any_matches(self.over, runtime)


@cache
def _any_matches(patterns: tuple[str, ...], runtime: str) -> bool:
    return any(fnmatchcase(runtime, pattern) for pattern in patterns)


def option(default: Any, text: str = "", **about: Any) -> Any:
    """Declare one field of a configuration: its default, its help if HELP has none, and what else an Option holds."""
    return declared(Option(default=default, help=text, **about))


def declared(each: Option) -> Any:
    """Return a field of a configuration for an option."""
    return field(default=each.default, metadata={"option": each})


def options_of(configuration: type) -> dict[str, Option]:
    """Return the options that a configuration declares, by name, in their order; of the kind of an annotated field."""
    found, helped = {}, getattr(configuration, "HELP", {})
    for each in fields(configuration):
        known = {} if each.type is Any else {"kind": next(iter(get_args(each.type)), each.type)}  # int of int | None
        told = replace(each.metadata["option"], name=each.name, **known)
        found[each.name] = replace(told, help=told.help or helped.get(each.name, ""))
    return found


def named(options: Mapping[str, Option], *roles: Role) -> tuple[str, ...]:
    """Return the names of the options that have one of `roles`, in their order."""
    return tuple(name for name, each in options.items() if any(each.roles & role for role in roles))


def plain(value: Any) -> str:
    """Return a value as it is written in YAML and on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return " and ".join(map(str, value))
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
