"""Verbs of the release before this one: which words took their place. They work once more, and say what to type."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from horovod_study.options import Parser


@dataclass(frozen=True)
class Now:
    """What to type instead of an old verb."""

    words: str
    alone: str = ""
    """Instead of `words`, where the old line names no run."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options that have another name now."""


OLD = {
    "account": Now("explain --part account"),
    "advise": Now("simulate model-parallel", options={"--network": "--bench"}),
    "analyze": Now("report --tables"),
    "attribute": Now("explain --part sync", alone="explain --measure"),
    "data": Now("strain data"),
    "inspect": Now("explain --part steps"),
    "learning-curve": Now("strain learning-curve"),
    "lr-range": Now("strain lr-range"),
    "retry": Now("run --retry"),
    "search": Now("strain search"),
    "timeline": Now("explain --part timeline"),
    "train": Now("strain train"),
}


def renewed(words: Sequence[str], parser: Parser) -> list[str]:
    """Return a line with today's verb in place of an old one, which is told on standard error; others as they are."""
    if not words or words[0] not in OLD:
        return list(words)
    now, rest = OLD[words[0]], words[1:]
    for old, new in now.options.items():
        rest = [new + word[len(old) :] if word.partition("=")[0] == old else word for word in rest]
    line = [*now.words.split(), *rest]
    if now.alone and not {"-h", "--help"} & set(rest) and not parser.parse_known_args(line)[0].places:
        line = [*now.alone.split(), *rest]
    print(f"note: the verb {words[0]} will go; type: {shlex.join(['horovod-study', *line])}", file=sys.stderr)
    return line
