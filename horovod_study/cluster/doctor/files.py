"""The file system that runs are written to: does it do what run directories and leases rely on."""

import errno
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

from horovod_study.cluster.doctor.finding import Area, Here
from horovod_study.files import unfinished
from horovod_study.text.numbers import amount

_A_RUN_BYTES = 50 * 10**6  # records and two checkpoints of a run of the shipped model, generously
_CLOCKS_APART_S = 2.0
_SHARED = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "9p", "afs"),
    *("fuse.sshfs", "fuse.glusterfs"),
)


def nearest_folder(runs: Path) -> Path:
    """Return `runs`, or the first folder above it that exists."""
    absolute = runs.absolute()
    return next(place for place in (absolute, *absolute.parents) if place.is_dir())


def kind(area: Area, here: Here, runs: Path, *, several_hosts: bool, slurm: bool = False) -> None:
    """Say what kind of file system it is, and what that means."""
    place = nearest_folder(runs)
    found = file_system(place, here.text(here.proc / "self" / "mounts") or "")
    where = f"{runs} is on {found[0]} ({found[1]})" if found else f"{runs} is on a file system that is not told"
    name = found[0] if found else ""
    if name in ("tmpfs", "ramfs", "overlay"):
        area.warning(
            "kind",
            f"{where}: what is written there is gone with the machine or the container",
            "give a lasting folder with --runs",
        )
    elif name in _SHARED:
        hint = {
            "lustre": ": many small files are slow there, thousands of cells take their time to plan",
            "nfs": ": changes by other hosts show up seconds late, which leases allow for",
            "nfs4": ": changes by other hosts show up seconds late, which leases allow for",
        }.get(name, "")
        area.ok("kind", f"{where}, which several hosts can share{hint}")
    elif slurm and name:
        area.warning(
            "kind",
            f"{where}: the nodes see it only if this machine exports it",
            "give a folder that the nodes mount with --runs (on many clusters below /work or /scratch); srun ls FOLDER "
            "tells whether they do",
        )
    elif several_hosts and name:
        area.ok("kind", f"{where}; all hosts must see it")
    else:
        area.ok("kind", where)


def file_system(place: Path, mounts: str) -> tuple[str, str] | None:
    """Return kind and mount point of the file system that `place` is on, from the text of /proc/mounts."""
    best: tuple[str, str] | None = None
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        if place.resolve().is_relative_to(point) and (best is None or len(point) >= len(best[1])):
            best = fields[2], point
    return best


def space(area: Area, runs: Path) -> None:
    """Is there room for runs."""
    place = nearest_folder(runs)
    free = shutil.disk_usage(place).free
    text = f"{amount(free)} free at {place}; a run takes up to about {amount(_A_RUN_BYTES)}"
    remedy = "make room, or give a folder on another disk with --runs"
    if free < 4 * _A_RUN_BYTES:
        area.fail("space", text, remedy)
    elif free < 40 * _A_RUN_BYTES:
        area.warning("space", text, remedy)
    else:
        area.ok("space", text)
    there = os.statvfs(place)
    if there.f_files and there.f_favail < 10_000:
        area.warning("files", f"only {there.f_favail} more files can be made at {place}", remedy)


def works(area: Area, runs: Path) -> None:
    """Write, rename, link: does it do what run directories and leases rely on, and is its clock ours."""
    place = nearest_folder(runs)
    try:
        with unfinished(place / "doctor", folder=True) as folder:
            one, two, three = (folder / name for name in ("one", "two", "three"))
            one.write_bytes(b"1" * 2**20)
            area.ok("writable", f"{place} can be written")
            modified_s = one.stat().st_mtime
            _rename(area, one, two)
            _link(area, two, three)
            _clock(area, modified_s)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            area.fail("writable", f"{place}: {error.strerror}", "make room, or give another folder with --runs")
        else:
            area.fail(
                "writable",
                f"{place} cannot be written ({error.strerror})",
                "give a folder of your own with --runs, or have its permissions changed",
            )


def _rename(area: Area, one: Path, two: Path) -> None:
    two.write_text("old")
    try:
        os.replace(one, two)
        good = two.stat().st_size == 2**20 and not one.exists()
    except OSError as error:
        area.fail("rename", f"a file cannot replace another ({error.strerror})", "give another folder with --runs")
        return
    if good:
        area.ok("rename", "a file replaces another in one go")
    else:
        area.fail(
            "rename",
            "after a file replaced another, its old content is seen: records could be torn",
            "give a folder on another file system with --runs",
        )


def _link(area: Area, there: Path, name: Path) -> None:
    remedy = "give a folder on another file system with --runs (Linux's own, NFS, Lustre and GPFS have hard links)"
    why = "claims on cells are hard links, so that two terminals never start the same cell"
    try:
        os.link(there, name)
        links = there.stat().st_nlink
    except OSError as error:
        area.fail("hard links", f"none can be made ({error.strerror}); {why}", remedy)
        return
    try:
        os.link(there, name)
        second = True
    except FileExistsError:
        second = False
    if links != 2 or second:
        area.fail("hard links", f"they are not counted, or replace each other; {why}", remedy)
    else:
        area.ok("hard links", "they work, so two terminals never start the same cell")


def _clock(area: Area, modified_s: float) -> None:
    apart_s = modified_s - datetime.now(UTC).timestamp()
    if abs(apart_s) > _CLOCKS_APART_S:
        area.warning(
            "its clock",
            f"new files are dated {abs(apart_s):.1f} s in the {'future' if apart_s > 0 else 'past'}: the file server's "
            "clock differs from this machine's",
            "have one time server keep both right (chronyd); leases go by the file server's clock and still work",
        )
    else:
        area.ok("its clock", f"that of this machine, within {_CLOCKS_APART_S:g} s")
