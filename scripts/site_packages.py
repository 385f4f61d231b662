"""Packages that a Python has already (SITE=yes): where they are, and which of the pinned ones are wanted beside them.

A virtual environment does not see the packages of another virtual environment, even with --system-site-packages. A
.pth file in it adds their folders, whatever they belong to, behind its own: what .venv has itself goes first, and
nothing is ever written there.
"""

import configparser
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from console import Failure, output

KEPT = ("torch", "numpy", "triton")
"""Never installed a second time: what the site's other packages were compiled for."""
PTH = "_packages_of_the_site.pth"


def folders() -> list[str]:
    """Return the folders with packages of the Python that runs this."""
    return [folder for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")]


def share(places_packages: Path, shared: Iterable[str]) -> None:
    """Let the environment with the site-packages folder `places_packages` see the packages in `shared`."""
    (places_packages / PTH).write_text("".join(f"import site; site.addsitedir({folder!r})\n" for folder in shared))


def signature(shared: Iterable[str]) -> str:
    """Return which packages and versions are in these folders, as one text."""
    names = [entry.name for folder in shared for entry in Path(folder).glob("*-info")]
    return " ".join(sorted(names))


def installed(python: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return {package: version} of all that a Python sees."""
    said = output([python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"], env=env)
    if said is None:
        raise Failure(f"{python} -m pip list does not work: take another Python: make setup PYTHON=...")
    return {package["name"]: package["version"] for package in json.loads(said)}


def requirements(cfg: Path) -> list[str]:
    """Return what setup.cfg asks for, the optional extras included, without the project itself."""
    parser = configparser.RawConfigParser()
    parser.read(cfg)
    groups = [parser["options"]["install_requires"], *parser["options.extras_require"].values()]
    lines = {line.strip() for group in groups for line in group.splitlines()}
    return sorted(line for line in lines if line and not line.startswith("horovod_study["))


def wanted(pins: Mapping[str, str], have: Mapping[str, str], asked: Iterable[str]) -> dict[str, str]:
    """Return those of `pins` that are to be installed where `have` is there: {package: version} both.

    A package that is there stays when its version is one that `asked`, requirements of setup.cfg, allows. Raises
    Failure where one of `KEPT` is there in another version.
    """
    from pip._vendor.packaging.requirements import Requirement  # every environment has pip
    from pip._vendor.packaging.utils import canonicalize_name

    ranges = {canonicalize_name(one.name): one.specifier for one in map(Requirement, asked)}
    there = {canonicalize_name(name): version for name, version in have.items()}
    missing = {}
    for name, version in pins.items():
        known, allowed = there.get(canonicalize_name(name)), ranges.get(canonicalize_name(name))
        if known is not None and (allowed is None or allowed.contains(known, prereleases=True)):
            continue
        if known is not None and name in KEPT:
            raise Failure(
                f"SITE=yes takes the {name} of PYTHON, which is {known}, and this project needs {name}{allowed}: take"
                " another Python (make setup PYTHON=...), or an environment of its own: make setup SITE=no"
            )
        missing[name] = version
    return missing


def main() -> int:
    """Answer the set-up, which may run in a Python without pip: {pins, have, asked} as JSON in, `wanted` out."""
    try:
        print(json.dumps(wanted(**json.load(sys.stdin))))
    except Failure as failure:
        print(json.dumps(str(failure)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
