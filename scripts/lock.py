"""Write requirements.lock: the newest versions that setup.cfg allows and that fit together (`make lock`).

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
# Left to torch: it names exact versions of these, other ones in each of its builds.
COMES_WITH_TORCH = re.compile(r"nvidia-|cuda-|triton")


def direct(cfg: Path) -> list[str]:
    """Return all requirements of setup.cfg, extras included, without Horovod and the project itself."""
    parser = configparser.RawConfigParser()
    parser.read(cfg)
    groups = [parser["options"]["install_requires"], *parser["options.extras_require"].values()]
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
    try:
        pins = resolve(direct(ROOT / "setup.cfg"))
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    lines = [f"{name}=={pins[name]}\n" for name in sorted(pins, key=str.lower)]
    (ROOT / "requirements.lock").write_text(HEADER + "\n" + "".join(lines))
    print(f"requirements.lock: {len(lines)} packages")


if __name__ == "__main__":
    main()
