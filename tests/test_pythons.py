"""Pythons of other Debian releases (scripts/pythons.py): what apt is asked, what is kept; a fake apt-get and dpkg."""

import os
import platform
from pathlib import Path

import pytest
from make.wording import Golden

import pythons
from console import Failure
from state import Places

APT = """\
case "$*" in
  *--print-uris*)
    echo "'https://somebody/debian/dists/bookworm/InRelease' somebody_InRelease 0"
    echo "'http://mirror/debian/dists/bookworm/InRelease' mirror_InRelease 0"
    echo "'http://mirror/debian/dists/bookworm-updates/InRelease' updates_InRelease 0"
    echo "'http://mirror/debian/dists/bookworm/main/binary-amd64/Packages.xz' mirror_Packages 0" ;;
  *update)
    cat "$(dirname "$4")/sources.list" >> "$ASKED"
    grep -q somebody "$(dirname "$4")/sources.list" && { echo "E: not signed"; exit 100; } ;;
  *install*)
    echo "$*" >> "$ASKED"
    for name in abc base-files_13 ca-certificates; do touch "$(dirname "$4")/cache/archives/$name.deb"; done ;;
esac
exit 0
"""
UNPACK = """\
echo "$(basename "$2")" >> "$ASKED"
mkdir -p "$3/etc/ssl/certs" "$3/usr/share/ca-certificates/some"
echo one > "$3/usr/share/ca-certificates/some/one.crt"
echo two > "$3/usr/share/ca-certificates/some/two.crt"
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"apt-get": APT, "dpkg-deb": UNPACK, "dpkg": "echo amd64\n"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.defpath}")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    system = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: system)
    return Places(root=tmp_path / "project", cache=tmp_path / "cache")


def test_another_python_comes_from_the_mirror_of_this_debian_and_is_made_once(
    places: Places, tmp_path: Path, golden: Golden
):
    folder = pythons.kept("3.13", places)

    signed = f"deb [arch=amd64 signed-by={pythons.KEYRING}]"
    sources = [f"{signed} https://somebody/debian trixie main", f"{signed} http://mirror/debian trixie main"]
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[:2] == sources, "who signed is what tells Debian from others with releases of its names"
    golden(asked[2], "--download-only", "libstdc++6 python3.13-venv")
    assert asked[3:] == ["base-files_13.deb", "abc.deb", "ca-certificates.deb"]
    assert (folder / "etc/ssl/certs/ca-certificates.crt").read_text() == "one\ntwo\n"
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]

    assert pythons.kept("3.13", places) == folder
    assert (tmp_path / "asked").read_text().splitlines() == asked


def test_what_could_not_be_made_leaves_nothing_in_the_cache(places: Places, tmp_path: Path):
    (tmp_path / "bin" / "dpkg-deb").write_text("#!/bin/sh\nexit 2\n")
    left = places.cache / "pythons"
    with pytest.raises(Failure, match=r"dpkg-deb.*pythons\.log"):
        pythons.kept("3.13", places)
    assert [path.suffix for path in left.iterdir()] == [".lock"]


def test_why_there_is_no_other_python(places: Places, monkeypatch: pytest.MonkeyPatch):
    assert pythons.obstacle(os.environ) == ""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in pythons.obstacle(os.environ)
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "ubuntu", "VERSION_CODENAME": "noble"})
    assert "Debian" in pythons.obstacle(os.environ)
