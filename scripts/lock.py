"""Write the lock files: the newest versions that setup.cfg allows and that fit together (`make lock`).

requirements.lock is what `make setup` installs. requirements.extras.lock is what the extras in `OPTIONAL` need beside
it: half as many packages again, for few users, so only `make extras` (and `make test`) install them.
Resolved by pip without installing anything. Needs the network or a folder of wheels (PIP_FIND_LINKS).
"""

import configparser
import json
import re
import subprocess
import sys
from pathlib import Path

from state import DEVELOPMENT

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# Every package of .venv, pinned, for Python 3.11 and newer; `make lock` makes this file from setup.cfg.
#
# No hashes: the file of torch differs between sites (CPU build, CUDA builds, a site's own), and a hash list is all or
# nothing. For the same reason torch has no local tag (+cpu) here, and what comes with a CUDA build of torch is pinned
# by torch itself. Horovod is not listed: its source package is checked against a SHA-256 in scripts/horovod_wheel.py.
"""
EXTRAS_HEADER = """\
# What `make extras` adds to requirements.lock for the optional extras of setup.cfg; `make lock` makes this file.
"""
DEV_HEADER = f"""\
{DEVELOPMENT} `make setup DEV=no` leaves out what follows.
"""
OPTIONAL = ("benchmark", "browser", "docs", "export", "frameworks", "kernels", "lightning", "notebooks")
"""Extras of setup.cfg that the project works without."""
ALONE = {"extrap": "4.2.5"}
"""Pinned beside them without what they ask for, which contradicts the other pins; what they use is in an extra."""
# Left to torch: it names exact versions of these, other ones in each of its builds.
COMES_WITH_TORCH = re.compile(r"nvidia-(?!ml-py)|cuda-|triton")


def direct(cfg: Path, *, optional: bool = False, dev: bool = True) -> list[str]:
    """Return the requirements of setup.cfg without Horovod and the project itself: those of the optional extras, or
    all others, with or without the development tools."""
    parser = configparser.RawConfigParser()
    parser.read(cfg)
    extras = parser["options.extras_require"].items()
    groups = [text for name, text in extras if (name in OPTIONAL) == optional and (dev or name != "dev")]
    if not optional:
        groups.append(parser["options"]["install_requires"])
    lines = sorted({line.strip() for group in groups for line in group.splitlines() if line.strip()})
    return [line for line in lines if not line.startswith(("horovod_study[", "horovod=="))]


def resolve(requirements: list[str]) -> dict[str, str]:
    """Return {package: version} that pip would install into an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "-qq", "--report", "-"]
    report = json.loads(subprocess.run([*command, *requirements], check=True, stdout=subprocess.PIPE).stdout)
    found = {item["metadata"]["name"]: item["metadata"]["version"].split("+")[0] for item in report["install"]}
    return {name: version for name, version in found.items() if pinned(name, requirements)}


def pinned(name: str, requirements: list[str]) -> bool:
    """Return whether the package is pinned here: all but what torch pins itself, unless it is asked for by name."""
    asked = {re.split(r"[\[<>=!~; ]", line)[0] for line in requirements}
    return name in asked or not COMES_WITH_TORCH.match(name)


def main() -> None:
    """Resolve and write; an error of pip ends the program with pip's own message."""
    lock, extras = ROOT / "requirements.lock", ROOT / "requirements.extras.lock"
    try:
        pins = resolve(direct(ROOT / "setup.cfg"))
        write(lock, HEADER, pins)
        running = resolve([*direct(ROOT / "setup.cfg", dev=False), "--constraint", str(lock)])
        write(
            lock, HEADER, running, DEV_HEADER, {name: version for name, version in pins.items() if name not in running}
        )
        more = resolve([*direct(ROOT / "setup.cfg", optional=True), "--constraint", str(lock)])
        write(extras, EXTRAS_HEADER, {name: version for name, version in more.items() if name not in pins} | ALONE)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)


def write(path: Path, *parts: str | dict[str, str]) -> None:
    """Write one lock file, of headers and pins in turn, and say how many packages it names."""
    pins = [part for part in parts if isinstance(part, dict)]
    text = [part if isinstance(part, str) else listed(part) for part in parts]
    path.write_text("\n".join(text))
    print(f"{path.name}: {sum(map(len, pins))} packages")


def listed(pins: dict[str, str]) -> str:
    """Return pins as lines, in alphabetical order."""
    return "".join(f"{name}=={pins[name]}\n" for name in sorted(pins, key=str.lower))


if __name__ == "__main__":
    main()
