"""The Debian packages that some tests need: `make hosts` installs the missing ones.

These are the tests with several hosts, with Slurm, in a browser, and with LaTeX.
Looks for the programs, so that it is quiet (and needs no apt) wherever they are, however they got there. No daemon is
started: the tests start their own, with their own settings. With `--test` (part of `make test`) nothing is installed
except where CI is "true"; what will be skipped is said in one line.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from console import Failure, Interrupted, Step, locked, raise_on_signals, telling_lines

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {  # what is looked for -> the package it comes with
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "shellcheck": "shellcheck",
    "chromium": "chromium",
    "npm": "npm",
    "pdflatex": "texlive-latex-recommended",
    "fig4latex": "texlive-pictures",
    "pdftoppm": "poppler-utils",
}
ATTEMPTS = 3
PAUSE_S = 5.0
POLICY = Path("/usr/sbin/policy-rc.d")
_MARK = "# written by scripts/debian.py"
_PURPOSE = "tests with several hosts, Slurm, a browser or LaTeX"


def main(arguments: list[str] | None = None) -> int:
    """Install what is missing; returns the exit code: 0 ready (or skipped), 2 it could not be, 128 + signal."""
    parser = argparse.ArgumentParser(prog="scripts/debian.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--test", action="store_true", help="install only where CI=true; else say what is skipped")
    only_test = parser.parse_args(arguments).test
    lacking = missing(os.environ)
    if not lacking:
        if not only_test:
            print(f"hosts: nothing to do; all that {_PURPOSE} need is there")
        return 0
    must = os.environ.get("CI") == "true"
    reason = obstacle(os.environ)
    if only_test and not must:
        how = "`make hosts` installs them" if not reason else f"{reason}: install them with {line(lacking)}"
        print(f"hosts: some {_PURPOSE} will be skipped: {' '.join(lacking)} missing; {how}")
        return 0
    try:
        if reason:
            raise Failure(f"{_PURPOSE} need {' '.join(lacking)}, but {reason}: install them with {line(lacking)}")
        with locked(ROOT / "build" / "hosts.lock", "another `make hosts` of this folder"):
            install(lacking)
        left = missing(os.environ)
        if left:
            raise Failure(f"apt-get installed {' '.join(left)}, but their programs are not on PATH or in /usr/sbin")
    except Failure as failure:
        message, *shown = failure.args
        sys.stderr.write("".join(shown) + f"hosts: {message}\n")
        return 2
    except Interrupted as stop:
        sys.stderr.write("hosts: interrupted; the next make hosts goes on from here\n")
        return 128 + stop.signum
    return 0


def line(packages: list[str]) -> str:
    """Return the command that installs `packages` by hand."""
    return f"`sudo apt-get install --no-install-recommends {' '.join(packages)}`"


def missing(environ: Mapping[str, str]) -> list[str]:
    """Return the packages whose programs are not here."""
    search = os.pathsep.join((environ.get("PATH", ""), *SYSTEM))
    return [package for program, package in PROGRAMS.items() if shutil.which(program, path=search) is None]


SYSTEM = ("/usr/sbin", "/sbin")
"""Where daemons are, also where PATH does not lead there."""


def obstacle(environ: Mapping[str, str]) -> str:
    """Return why nothing can be installed from here, "" when it can."""
    if shutil.which("apt-get", path=environ.get("PATH", "")) is None:
        return "this machine is not a Debian (no apt-get)"
    if os.geteuid() != 0:
        return "this is not root"
    return ""


def install(packages: list[str]) -> None:
    """Install `packages` and start nothing. Failure: with the reason, after some attempts where it is the network."""
    log = ROOT / "build" / "hosts.log"
    log.unlink(missing_ok=True)
    # RUNLEVEL=1: scripts of packages take the machine for one that is being repaired, and start no daemon.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", "RUNLEVEL": "1"}
    apt = ("apt-get", "-q", "-y", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=120")
    keep = ("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold")
    with Step("hosts: ", f"Debian packages {' '.join(packages)}", log=log, env=env) as step, no_daemons(POLICY):
        for attempt in range(ATTEMPTS):
            try:
                if attempt or not any(Path("/var/lib/apt/lists").glob("*_Packages*")):
                    step.run(*apt, "update")
                step.run(*apt, *keep, "install", "--no-install-recommends", *packages)
                return
            except Failure:
                if attempt + 1 == ATTEMPTS:
                    raise Failure(*explained(log, packages)) from None
                time.sleep(PAUSE_S)


def explained(log: Path, packages: list[str]) -> tuple[str, str]:
    """Return what to say about a failure: in one line, and the telling lines of the log."""
    said = log.read_text(errors="replace")
    last = said[said.rfind("$ apt-get") :]
    errors = [each.removeprefix("E: ") for each in last.splitlines() if each.startswith("E: ")]
    cause = errors[0].rstrip(".") if errors else "apt-get failed"
    shown = "".join(f"      {each}\n" for each in telling_lines(last))
    return f"{' '.join(packages)} could not be installed in {ATTEMPTS} attempts: {cause}; log: {log}", shown


@contextmanager
def no_daemons(policy: Path) -> Iterator[None]:
    """Forbid packages to start or restart daemons; put back the rule that was there."""
    before = policy.with_name(policy.name + ".before")
    if before.exists():  # from a run that was killed
        before.replace(policy)
    elif policy.exists() and _MARK in policy.read_text(errors="replace"):
        policy.unlink()
    if policy.exists():
        policy.replace(before)
    try:
        policy.parent.mkdir(parents=True, exist_ok=True)
        policy.write_text(f"#!/bin/sh\n{_MARK}: removed when the packages are installed\nexit 101\n")
        policy.chmod(0o755)
        yield
    finally:
        policy.unlink(missing_ok=True)
        if before.exists():
            before.replace(policy)


if __name__ == "__main__":
    raise_on_signals()
    sys.exit(main())
