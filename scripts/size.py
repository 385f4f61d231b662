"""Print the size of the package: lines, functions, the median function, and those that are too long."""

import ast
import statistics
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "horovod_study"
MAX_LINES, MAX_ARGUMENTS = 60, 8


def functions(tree: ast.AST) -> list[tuple[str, int, int]]:
    """Return name, lines and number of arguments of every function in `tree`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
            found.append((node.name, (node.end_lineno or node.lineno) - node.lineno + 1, arguments))
    return found


def main(arguments: list[str]) -> int:
    """Print the size of the package; with --long also its longest functions, longest first."""
    lines, found = 0, []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines += text.count("\n")
        file = path.relative_to(PACKAGE.parent)
        found += [(size, given, f"{file}: {name}") for name, size, given in functions(ast.parse(text))]
    long = sorted((each for each in found if each[0] > MAX_LINES or each[1] > MAX_ARGUMENTS), reverse=True)
    middle = statistics.median(size for size, _, _ in found)
    print(
        f"package: {lines:,} lines in {len(found):,} functions (median {middle:g} lines); "
        f"{len(long)} beyond {MAX_LINES} lines or {MAX_ARGUMENTS} arguments"
    )
    if "--long" in arguments:
        for size, given, where in long:
            print(f"  {size:4} lines {given:3} arguments  {where}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
