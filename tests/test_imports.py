"""Imports run downward: no module imports one of a layer above its own, and none of them run in a circle."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

import horovod_study

ROOT = Path(horovod_study.__file__).parent
LAYERS = (
    ("errors", "text", "measure.energy", "analysis.stats", "analysis.costs", "analysis.paired"),
    ("config.variables", "config.limits", "cluster.alive", "files"),
    ("config.doors", "config.documents", "config.roles", "runtimes"),
    ("config",),
    ("measure.clock",),
    ("records", "studies.lease", "text.progress"),
    ("measure", "analysis"),
    ("laws",),
    ("comm",),
    ("recording",),
    ("strain",),
    ("train",),
    ("cluster",),
    ("programs",),
    ("studies",),
    ("report.kit",),
    ("report.grammar",),
    ("report.figures",),
    ("report.page", "report"),
    ("api",),
    ("cli",),
)
"""Parts of the package, the lowest first; parts of one layer may import each other."""


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules of the package that each of them imports anywhere, in functions too, by dotted names.

    The package itself is left out: it holds the version, and it imports nothing before it is asked for a name.
    """
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items() if name != "__init__"}
    return {name: set(_imported(path, modules)) - {name} for name, path in modules.items()}


def _imported(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            within = name.removeprefix("horovod_study.")
            for candidate in (within, within.rpartition(".")[0]):
                if within != name and candidate in modules:
                    yield candidate
                    break


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of more than one module (Tarjan 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        path.append(name)
        for other in sorted(graph[name]):
            if other not in number:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in path:
                lowest[name] = min(lowest[name], number[other])
        if lowest[name] == number[name]:
            place = path.index(name)
            found.append(set(path[place:]))
            del path[place:]

    for name in sorted(graph):
        if name not in number:
            visit(name)
    return [each for each in found if len(each) > 1]


def part_of(module: str, layers: Sequence[Sequence[str]] = LAYERS) -> str:
    """Return the part of the package that a module belongs to, the longest name that fits."""
    parts = [part for layer in layers for part in layer if module == part or module.startswith(f"{part}.")]
    return max(parts, key=len)


def upward(graph: Mapping[str, set[str]]) -> dict[tuple[str, str], list[str]]:
    """Return the imports of a higher layer, by the two parts."""
    height = {part: place for place, layer in enumerate(LAYERS) for part in layer}
    found: dict[tuple[str, str], list[str]] = {}
    for name, others in graph.items():
        for other in others:
            parts = part_of(name), part_of(other)
            if height[parts[0]] < height[parts[1]]:
                found.setdefault(parts, []).append(f"{name} imports {other}")
    return found


def test_no_import_runs_upward() -> None:
    assert {} == upward(imports())


def test_no_imports_run_in_a_circle() -> None:
    assert [] == circles(imports())


def test_the_drawing_kit_knows_no_figure_and_no_page() -> None:
    above = ("report.figures", "report.page", "analysis.study")
    kit = {name: others for name, others in imports().items() if name.startswith(("report.kit", "report.grammar"))}

    assert len(kit) > 3
    assert [] == [f"{name} imports {other}" for name in kit for other in kit[name] if other.startswith(above)]


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": {"b"}, "b": set()}, []),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [{"a", "b"}]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}}, [{"a", "b", "c"}, {"d", "e"}]),
    ],
)
def test_circles_are_found(graph: dict[str, set[str]], expected: list[set[str]]) -> None:
    assert sorted(map(sorted, expected)) == sorted(map(sorted, circles(graph)))


def test_an_import_upward_is_found() -> None:
    graph = {"report.kit.files": {"report.figures.scaling"}, "report.figures.scaling": {"report.kit.style"}}

    assert {("report.kit", "report.figures")} == set(upward(graph))


# ------------------------------------------------------------------------------- what a package says it holds


def packages() -> list[Path]:
    return sorted(path.parent for path in ROOT.rglob("__init__.py"))


def listed(docstring: str) -> set[str]:
    """Return the names that the lines of a list begin with, `name, other   what they are`."""
    heads = re.findall(r"^ *([a-z_][a-z_0-9, ./]*?)  +\S", docstring, flags=re.M)
    names = (re.sub(r"\.py$|/$", "", name) for head in heads for name in re.split(r"[, ]+", head))
    return {name for name in names if name.isidentifier()}


@pytest.mark.parametrize("package", packages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_package_lists_what_it_holds(package: Path) -> None:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in package.glob("*.py")}
    docstring = ast.get_docstring(ast.parse(texts["__init__"])) or ""
    held = {*texts, *(path.parent.name for path in package.glob("*/__init__.py"))} - {"__init__", "__main__"}
    # Where a file that declares a law is found by itself, nobody has a list of them.
    found = "LAW" if "iter_modules" in texts["__init__"] else "$^"
    by_itself = {name for name, text in texts.items() if re.search(rf"^({found})\b", text, flags=re.M)}
    words = set(re.findall(r"\w+", docstring))

    assert held - by_itself - words == set(), "not listed"
    assert listed(docstring) - held == set(), "listed, and not there"


def test_a_list_is_read() -> None:
    assert listed(
        "Head.\n\nstats.py   one\nracing, tune    a race\nlaws/  many\n\n.claims/   not a module\nText, one blank."
    ) == {
        *("stats", "racing", "tune", "laws"),
    }
