"""Make the documentation a site of plain files (`make docs`): build/site/index.html, which reads without a network.

The pages of docs/ link to pages and files that stand elsewhere in the project, and work so on a code host. A site has
one folder of pages: `gather` puts the pages of docs/ into it, beside them what they lead to, and points the links at
where things are now. MkDocs (mkdocs.yml) then makes the site, and any warning of it fails.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
CODE_OR_LINK = re.compile(
    r"(?P<code>^( *)(```+|~~~+).*?^\2\3 *$|(?<!`)(`+)(?!`).*?(?<!`)\4(?!`))"
    r"|(?P<before>\]\(<?|^\[[^\]]+\]: *)(?P<link>[^)\s>#]+)",
    flags=re.MULTILINE | re.DOTALL,
)
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|/", flags=re.IGNORECASE)


def place(path: PurePosixPath) -> PurePosixPath:
    """Return where a file of the project stands in the site: docs/ is its top, README.md its start page."""
    if path == PurePosixPath("README.md"):
        return PurePosixPath("index.md")
    return path.relative_to("docs") if path.parts[0] == "docs" else path


def gather(root: Path, target: Path) -> list[PurePosixPath]:
    """Copy the pages of `root`/docs and all that they lead to within `root` into `target`; return the places.

    A link to a folder leads to its README.md. A link that leads nowhere stays as it is: MkDocs names it.
    """
    shutil.rmtree(target, ignore_errors=True)
    ahead = sorted(path for path in (root / "docs").rglob("*") if path.is_file())
    found: dict[Path, PurePosixPath] = {}

    def rewritten(match: re.Match[str], page: Path) -> str:
        link = match["link"]
        if match["code"] is not None or ELSEWHERE.match(link):
            return match[0]
        linked = (page.parent / link).resolve()
        linked = linked / "README.md" if linked.is_dir() else linked
        if not (linked.is_file() and linked.is_relative_to(root)):
            return match[0]
        if linked != root / "README.md":
            ahead.append(linked)
        there, here = place(PurePosixPath(linked.relative_to(root))), found[page].parent
        return match["before"] + os.path.relpath(there, here)

    while ahead:
        path = ahead.pop()
        if path in found:
            continue
        found[path] = place(PurePosixPath(path.relative_to(root)))
        copy = target / found[path]
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = path.read_text(encoding="utf-8")
            copy.write_text(CODE_OR_LINK.sub(partial(rewritten, page=path), text), encoding="utf-8")
        else:
            shutil.copyfile(path, copy)
    return sorted(found.values())


def main(words: list[str] | None = None) -> int:
    """Build the site; the exit code is that of MkDocs, 1 for any warning."""
    parser = argparse.ArgumentParser(description="Build the documentation as a site of plain files.")
    parser.add_argument("--into", type=Path, default=ROOT / "build", metavar="DIR", help="receives docs/ and site/")
    into = parser.parse_args(words).into.resolve()
    gather(ROOT, into / "docs")
    # The theme's notice about another major version of MkDocs is no warning of ours; versions are pinned.
    environment = {**os.environ, "DOCS_DIR": str(into / "docs"), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(into / "site")]
    # Not --quiet: it would hide warnings from --strict as well.
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        print(f"open {into / 'site' / 'index.html'}")
    else:
        print(*(line for line in done.stderr.splitlines() if not line.startswith("INFO")), sep="\n", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
