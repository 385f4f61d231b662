"""Pythons that this Debian does not have: that of another release, unpacked into a folder that the cache keeps.

The wheel is tested in it (tests/test_package.py). apt-get chooses, downloads and verifies the packages as it does for
this machine: from the machine's own mirror and with its settings, but from another release and as if nothing were
installed. They are only unpacked: no script of a package runs, nothing is mounted, and nothing of this machine changes.
"""

import os
import platform
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

import debian
from console import Failure, Step, locked, output
from horovod_wheel import digest
from state import Places

RELEASES = {"3.13": "trixie"}
"""Version of Python -> the release of Debian that has it."""
PACKAGES = (
    "base-files",  # the links from /lib to /usr/lib
    "libstdc++6",  # wheels with C++ expect it, and each Debian has it, for apt
)
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
"""By which releases of Debian, and no others, are signed."""


def obstacle(environ: Mapping[str, str]) -> str:
    """Return why no other Python can be had here, "" when it can."""
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {}
    if system.get("ID") != "debian" or "VERSION_CODENAME" not in system:
        return "this machine is not a Debian release"
    return debian.obstacle(environ)


def kept(version: str, places: Places) -> Path:
    """Return the folder in the cache with the Python of this version, made now if there is none.

    Nothing may be changed in it: see `copied`. Failure: it could not be made, with the log.
    """
    key = digest(text.encode() for text in (RELEASES[version], *PACKAGES))[:12]
    folder = places.cache / "pythons" / f"{version}-{RELEASES[version]}-{platform.machine()}-{key}"
    log = places.root / "build" / "pythons.log"
    new = folder.with_name(f"{folder.name}.new")  # beside it, so that one move completes it
    with locked(folder.with_name(f"{folder.name}.lock"), f"another test that makes Python {version}"):
        if folder.exists():
            return folder
        log.unlink(missing_ok=True)
        shutil.rmtree(new, ignore_errors=True)  # of a run that was killed
        try:
            with Step(
                "pythons: ", f"Python {version} of Debian {RELEASES[version]}", log=log, env=environment()
            ) as step:
                unpack(download(version, new, step), new / "root", step)
                (new / "root").rename(folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return folder


def environment() -> dict[str, str]:
    """Return the environment of apt-get: the user's, with messages in English."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def download(version: str, work: Path, step: Step) -> list[Path]:
    """Let apt-get download this Python with all that it depends on into `work`, and return the packages."""
    codename = platform.freedesktop_os_release()["VERSION_CODENAME"]
    found = mirrors(output(["apt-get", "--print-uris", "update"], env=environment()) or "", codename)
    if not found:
        raise Failure(f"no source of apt has the release of this machine, {codename}")
    architecture = output(["dpkg", "--print-architecture"])
    apt = ("apt-get", "-q", "-y", "-c", settings(work))
    for number, mirror in enumerate(found):
        source = f"deb [arch={architecture} signed-by={KEYRING}] {mirror} {RELEASES[version]} main\n"
        (work / "sources.list").write_text(source)
        try:
            step.run(*apt, "update")
            break
        except Failure:  # also where it is somebody else's, which Debian has not signed
            if number + 1 == len(found):
                raise
    step.run(*apt, "install", "--download-only", *PACKAGES, f"python{version}-venv")
    return sorted((work / "cache" / "archives").glob("*.deb"))


def mirrors(said: str, codename: str) -> list[str]:
    """Return where this machine's packages come from: of what `apt-get --print-uris update` said, the sources with
    its release. There may be others that use its name."""
    return list(dict.fromkeys(re.findall(rf"^'(\S+)/dists/{re.escape(codename)}/InRelease'", said, re.MULTILINE)))


def settings(work: Path) -> Path:
    """Write what apt-get does otherwise than for this machine; its proxies and the like stay. Returns the file."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    values = {
        "Dir::State": work / "state",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Default-Release": "",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",  # the other one cannot enter a cache below the home of root
        "APT::Update::Error-Mode": "any",  # a source that does not answer is no warning here
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    # What a machine runs after an update is meant for its own packages.
    hooks = ("APT::Update::Post-Invoke", "APT::Update::Post-Invoke-Success")
    lines = [*(f"#clear {hook};" for hook in hooks), *(f'{name} "{value}";' for name, value in values.items())]
    file = work / "apt.conf"
    file.write_text("\n".join(lines) + "\n")
    return file


def unpack(packages: list[Path], root: Path, step: Step) -> None:
    """Unpack the packages below `root`, those first that others need there, and make the file of certificates."""
    for package in sorted(packages, key=lambda path: not path.name.startswith("base-files_")):
        step.run("dpkg-deb", "--extract", package, root)
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))  # pip does not start without them
    together = root / "etc/ssl/certs/ca-certificates.crt"
    together.write_bytes(b"".join(certificate.read_bytes() for certificate in certificates))
    step.note(f"{len(packages)} packages; kept in the cache")


def copied(version: str, places: Places, root: Path) -> None:
    """Make `root` a copy of the folder that is kept, and see that its Python starts. Failure: it does not."""
    shutil.copytree(kept(version, places), root, symlinks=True)
    null = root / "dev" / "null"
    try:
        os.mknod(null, stat.S_IFCHR, os.makedev(1, 3))
    except OSError as error:
        raise Failure(f"no device can be made here ({error}): a container needs the capability MKNOD") from None
    null.chmod(0o666)
    command = inside(root, "/", f"/usr/bin/python{version}", "-c", "open('/dev/null', 'w')")
    tried = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if tried.returncode:
        raise Failure(f"Python {version} does not start with {root} as its root: {tried.stderr.strip()}")


def inside(root: Path, folder: str, *command: str) -> list[str]:
    """Return the command that runs `command` with `root` as its root and `folder`, below it, as its working directory.

    It becomes that program, and starts no other: to end the one is to end the other.
    """
    return ["unshare", f"--root={root}", f"--wd={folder}", *command]
