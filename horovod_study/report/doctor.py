"""The doctor's findings as lines of text, area after area, with the remedy below what is not well."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

_STYLES = {"ok": "green", "warning": "yellow", "fail": "bold red"}


def summary(findings: Sequence[Any]) -> str:
    """Return '38 checks: 35 ok, 2 warnings, 1 fail'; findings are horovod_study.cluster.doctor.Finding."""
    count = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in _STYLES}
    parts = [f"{count['ok']} ok"]
    parts += [f"{count[word]} {word}{'' if count[word] == 1 else 's'}" for word in ("warning", "fail") if count[word]]
    return f"{len(findings)} check{'' if len(findings) == 1 else 's'}: {', '.join(parts)}"


def lines(findings: Sequence[Any]) -> Iterator[Text]:
    """Yield the lines, verdicts in their colours; areas that come twice are put together."""
    width = min(22, max((len(finding.name) for finding in findings), default=0))
    areas = list(dict.fromkeys(finding.area for finding in findings))
    for area, own in groupby(sorted(findings, key=lambda each: areas.index(each.area)), lambda each: str(each.area)):
        yield Text(area, style="bold")
        for each in own:
            yield Text.assemble(
                "  ", (f"{each.verdict:<7}", _STYLES[each.verdict]), f"  {each.name:<{width}}  {each.what}"
            )
            if each.remedy:
                yield Text(f"{' ' * 11}-> {each.remedy}")
    yield Text("")
    yield Text(summary(findings))


def show(findings: Sequence[Any], console: Console) -> None:
    """Print the findings: in a file one line each, on a terminal folded below their verdict."""
    for text in lines(findings):
        if console.is_terminal and text.cell_len > console.width:
            first, *rest = text.wrap(console, console.width)
            console.print(first, highlight=False)
            console.print(Padding(Text(" ").join(rest), (0, 0, 0, 14)), highlight=False)
        else:
            console.print(text, soft_wrap=True, highlight=False)
