"""Print the size of the package, and beside it the budget that tests/test_size.py holds each folder to.

    python scripts/size.py            lines, functions, the median function, those that are too long, and the budget
    python scripts/size.py --long     ... and its longest functions, longest first
    python scripts/size.py --write    writes what is there now into the table of tests/test_size.py

A folder's files are counted with it unless they lie in a folder below it that has files too.
"""

import ast
import re
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "horovod_study"
TABLE = ROOT / "tests" / "test_size.py"
MAX_LINES, MAX_ARGUMENTS = 60, 8
TOTAL, ROOT_FILES = "total", "(root)"
_TABLE = re.compile(r"(?<=^BUDGET = )\{.*?^\}", flags=re.MULTILINE | re.DOTALL)

Size = tuple[int, int]
"""Lines and functions, methods and functions inside others among them."""


def functions(tree: ast.AST) -> list[tuple[str, int, int]]:
    """Return name, lines and number of arguments of every function in `tree`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
            found.append((node.name, (node.end_lineno or node.lineno) - node.lineno + 1, arguments))
    return found


def files(package: Path = PACKAGE) -> dict[str, tuple[int, list[tuple[str, int, int]]]]:
    """Return the lines and the functions of each file of the package, by its path in it."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found[path.relative_to(package).as_posix()] = text.count("\n"), functions(ast.parse(text))
    return found


def folders(package: Path = PACKAGE) -> dict[str, Size]:
    """Return the size of every folder that has files, those below it left out, and of all of them as `total`."""
    sizes: dict[str, Size] = {}
    for name, (lines, found) in files(package).items():
        for folder in (name.rpartition("/")[0] or ROOT_FILES, TOTAL):
            before = sizes.get(folder, (0, 0))
            sizes[folder] = before[0] + lines, before[1] + len(found)
    return dict(sorted(sizes.items(), key=lambda size: (size[0] == TOTAL, size[0])))


def budget(table: str) -> dict[str, Size]:
    """Return the table in the text of tests/test_size.py."""
    found = _TABLE.search(table)
    if found is None:
        raise ValueError(f"{TABLE.relative_to(ROOT)} has no table `BUDGET = {{ ... }}`")
    known: dict[str, Size] = ast.literal_eval(found[0])
    return known


def with_budget(table: str, sizes: Mapping[str, Size]) -> str:
    """Return the text of tests/test_size.py with these sizes in its table."""
    rows = [f'    "{folder}": ({lines}, {count}),' for folder, (lines, count) in sizes.items()]
    return _TABLE.sub("\n".join(["{", *rows, "}"]), table, count=1)


def main(arguments: list[str]) -> int:
    """Print the size of the package and its budget; with --write, write the budget: 1 where its sum would rise."""
    found = files()
    each = [(size, given, f"{PACKAGE.name}/{file}: {name}") for file in found for name, size, given in found[file][1]]
    long = sorted((one for one in each if one[0] > MAX_LINES or one[1] > MAX_ARGUMENTS), reverse=True)
    table = TABLE.read_text(encoding="utf-8")
    sizes, allowed = folders(), budget(table)[TOTAL]
    lines, count = sizes[TOTAL]
    if "--write" in arguments:
        if lines > allowed[0] or count > allowed[1]:
            print(
                f"size: {lines:,} lines, {count:,} functions are above the {allowed[0]:,} and {allowed[1]:,} of the "
                f"table; its sum only falls: take something out first",
                file=sys.stderr,
            )
            return 1
        TABLE.write_text(with_budget(table, sizes), encoding="utf-8")
        allowed = sizes[TOTAL]
    print(
        f"package: median function {statistics.median(size for size, _, _ in each):g} lines; "
        f"{len(long)} functions beyond {MAX_LINES} lines or {MAX_ARGUMENTS} arguments"
    )
    if "--long" in arguments:
        for size, given, where in long:
            print(f"  {size:4} lines {given:3} arguments  {where}")
    print(
        f"{TOTAL}: {lines:,} lines, {count:,} functions, {len(found)} files; "
        f"budget {allowed[0]:,} lines, {allowed[1]:,} functions"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
