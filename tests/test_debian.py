"""Debian packages for tests (scripts/debian.py): what is looked for, said, installed, put back; a fake apt-get."""

import os
import subprocess
from pathlib import Path

import pytest
from make.wording import Golden

import debian

ROOT = Path(__file__).resolve().parent.parent
ALL = (
    "openssh-server openssh-client iproute2 slurmctld slurmd slurm-client munge shellcheck chromium"
    " npm texlive-latex-recommended texlive-pictures poppler-utils"
)


class Machine:
    """A machine whose programs are those in one folder, with an apt-get that notes what it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.asked, self.policy = folder / "bin", folder / "asked", folder / "policy-rc.d"
        self.bin.mkdir()

    def have(self, *programs: str) -> None:
        for name in programs:
            (self.bin / name).write_text("#!/bin/sh\n")
            (self.bin / name).chmod(0o755)

    def apt(self, text: str) -> None:
        """An apt-get that does `text` after noting its arguments, the rule for daemons and the frontend."""
        script = self.bin / "apt-get"
        note = f'echo "$DEBIAN_FRONTEND $RUNLEVEL $("{self.policy}" > /dev/null; echo $?) $*" >> "{self.asked}"'
        script.write_text(f"#!/bin/sh\nPATH=/bin:/usr/bin\n{note}\n{text}\n")
        script.chmod(0o755)

    def apt_installs(self, *programs: str) -> None:
        self.apt("\n".join(f'cp "$0" "{self.bin}/{name}"' for name in programs))

    @property
    def installs(self) -> list[str]:
        lines = self.asked.read_text().splitlines() if self.asked.exists() else []
        return [line for line in lines if " install " in line]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(debian, "SYSTEM", ())
    monkeypatch.setattr(debian, "ROOT", tmp_path)
    monkeypatch.setattr(debian, "POLICY", made.policy)
    monkeypatch.setattr(debian, "PAUSE_S", 0.0)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(made.bin))
    monkeypatch.delenv("CI", raising=False)
    return made


def test_quiet_where_all_is_there(machine: Machine, capsys: pytest.CaptureFixture[str], golden: Golden):
    machine.have(*debian.PROGRAMS)
    machine.apt("exit 1")

    assert debian.main(["--test"]) == 0
    assert capsys.readouterr() == ("", "")
    assert debian.main([]) == 0
    golden(capsys.readouterr(), "LaTeX")
    assert not machine.asked.exists()


def test_only_what_is_missing_is_installed_and_no_daemon_started(machine: Machine):
    machine.have(*(name for name in debian.PROGRAMS if name not in ("sshd", "munged")))
    machine.apt_installs("sshd", "munged")

    assert debian.main([]) == 0
    frontend, runlevel, policy, *options = machine.installs[0].split()
    assert (frontend, runlevel, policy) == ("noninteractive", "1", "101")
    assert options[options.index("install") :] == ["install", "--no-install-recommends", "openssh-server", "munge"]
    assert len(machine.installs) == 1
    assert not machine.policy.exists()


def test_the_rule_for_daemons_that_was_there_is_there_again(machine: Machine):
    machine.policy.write_text("#!/bin/sh\nexit 0\n")
    machine.policy.chmod(0o755)
    machine.apt_installs(*debian.PROGRAMS)

    assert debian.main([]) == 0
    assert machine.installs[0].split()[2] == "101"
    assert machine.policy.read_text() == "#!/bin/sh\nexit 0\n"
    assert os.access(machine.policy, os.X_OK)


@pytest.mark.parametrize("before", ["", "#!/bin/sh\nexit 0\n"])
def test_a_killed_run_leaves_no_rule_behind_for_good(machine: Machine, before: str):
    if before:
        machine.policy.write_text(before)
    killed = debian.no_daemons(machine.policy)
    killed.__enter__()

    with debian.no_daemons(machine.policy):
        assert "exit 101" in machine.policy.read_text()

    assert machine.policy.exists() == bool(before)
    assert not before or machine.policy.read_text() == before


def test_the_network_gets_three_attempts_and_then_the_reason_is_said(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
):
    machine.apt('echo "E: Failed to fetch http://deb/munge.deb  Connection timed out"; exit 100')

    assert debian.main([]) == 2
    said = capsys.readouterr().err.splitlines()
    golden(said[-1], ALL, "3 attempts", "http://deb/munge.deb", tmp_path, "/build/hosts.log")
    assert not machine.policy.exists()


def test_an_attempt_that_failed_is_made_again_with_new_lists(machine: Machine):
    machine.apt(
        f'case "$*" in *install*) [ $(grep -c install "{machine.asked}") = 2 ] || exit 100;\n'
        + "\n".join(f'cp "$0" "{machine.bin}/{name}"' for name in debian.PROGRAMS)
        + ";; esac"
    )

    assert debian.main([]) == 0
    verbs = ["install" if " install " in line else line.split()[-1] for line in machine.asked.read_text().splitlines()]
    assert verbs[-3:] == ["install", "update", "install"]


def test_packages_without_their_programs_are_an_error(
    machine: Machine, capsys: pytest.CaptureFixture[str], golden: Golden
):
    machine.apt_installs(*(name for name in debian.PROGRAMS if name != "slurmd"))

    assert debian.main([]) == 2
    golden(capsys.readouterr().err, "PATH")


@pytest.mark.parametrize(
    ("root", "apt", "reason"),
    [
        (True, True, "`make hosts` installs them"),
        (False, True, "this is not root: install them with `sudo apt-get install"),
        (True, False, "this machine is not a Debian (no apt-get): install them with"),
    ],
)
def test_make_test_says_what_is_skipped_and_installs_only_in_ci(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    root: bool,
    apt: bool,
    reason: str,
    golden: Golden,
):
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    machine.have(*(name for name in debian.PROGRAMS if name != "slurmd"))
    if apt:
        machine.apt_installs("slurmd")

    assert debian.main(["--test"]) == 0
    said = capsys.readouterr().out
    golden(said, "LaTeX", reason)
    assert said.count("\n") == 1

    monkeypatch.setenv("CI", "true")
    assert debian.main(["--test"]) == (0 if root and apt else 2)
    captured = capsys.readouterr()
    if root and apt:
        assert len(machine.installs) == 1
    else:
        golden(captured.err, "LaTeX", reason.partition(":")[0], "--no-install-recommends")


def test_make_test_asks_for_them_and_make_check_does_not():
    test = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    check = subprocess.run(["make", "-n", "check"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "scripts/debian.py --test" in test
    assert "debian.py" not in check
    assert "not cluster" in check
