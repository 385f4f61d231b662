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
OPTIONAL = ("benchmark", "browser", "docs", "export", "lightning", "notebooks")
"""Extras of setup.cfg that the project works without."""
ALONE = {"extrap": "4.2.5"}
"""Pinned beside them without what they ask for, which contradicts the other pins; what they use is in an extra."""
# Left to torch: it names exact versions of these, other ones in each of its builds.
COMES_WITH_TORCH = re.compile(r"nvidia-(?!ml-py)|cuda-|triton")


def direct(cfg: Path, *, optional: bool = False) -> list[str]:
    """Return the requirements of setup.cfg without Horovod and the project itself: those of the optional extras, or
    all others."""
    parser = configparser.RawConfigParser()
    parser.read(cfg)
    extras = parser["options.extras_require"].items()
    groups = [text for name, text in extras if (name in OPTIONAL) == optional]
    if not optional:
        groups.append(parser["options"]["install_requires"])
    lines = sorted({line.strip() for group in groups for line in group.splitlines() if line.strip()})
    return [line for line in lines if not line.startswith(("horovod_study[", "horovod=="))]


def resolve(requirements: list[str]) -> dict[str, str]:
    """Return {package: version} that pip would install into an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "-qq", "--report", "-"]
    report = json.loads(subprocess.run([*command, *requirements], check=True, stdout=subprocess.PIPE).stdout)
    found = {item["metadata"]["name"]: item["metadata"]["version"].split("+")[0] for item in report["install"]}
    return {name: version for name, version in found.items() if not COMES_WITH_TORCH.match(name)}


def main() -> None:
    """Resolve and write; an error of pip ends the program with pip's own message."""
    lock, extras = ROOT / "requirements.lock", ROOT / "requirements.extras.lock"
    try:
        pins = resolve(direct(ROOT / "setup.cfg"))
        write(lock, HEADER, pins)
        more = resolve([*direct(ROOT / "setup.cfg", optional=True), "--constraint", str(lock)])
        write(extras, EXTRAS_HEADER, {name: version for name, version in more.items() if name not in pins} | ALONE)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)


def write(path: Path, header: str, pins: dict[str, str]) -> None:
    """Write one lock file and say how many packages it names."""
    lines = [f"{name}=={pins[name]}\n" for name in sorted(pins, key=str.lower)]
    path.write_text(header + "\n" + "".join(lines))
    print(f"{path.name}: {len(lines)} packages")


if __name__ == "__main__":
    main()
