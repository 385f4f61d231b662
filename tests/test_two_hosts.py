"""Two hosts on one machine (two_hosts.py) are what the tests of clusters take them for, and nothing is left of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import two_hosts as module
from make.waiting import PATIENCE_S, until
from two_hosts import TwoHosts, Unavailable

pytestmark = pytest.mark.cluster
SHORT = ("-o", "ConnectTimeout=1", "-o", "BatchMode=yes")


def own_network() -> str:
    """The machine's links and addresses, as far as they do not count packets."""
    return subprocess.run(["ip", "-oneline", "address"], capture_output=True, text=True, check=True).stdout


def test_each_host_has_its_own_name_network_and_shared_memory(two_hosts: TwoHosts):
    show = "hostname; ls /sys/class/net; ls /dev/shm; ip -oneline -4 address show dev eth0"

    for name, address in (("node1", "10.77.0.1"), ("node2", "10.77.0.2")):
        two_hosts.run(name, ["touch", f"/dev/shm/{name}"], check=True)
        said = two_hosts.run(name, ["sh", "-c", show], check=True).stdout.split()
        assert said[:4] == [name, "eth0", "lo", name]
        assert f"{address}/24" in said
        assert two_hosts.address(name) == address


def test_ssh_goes_from_each_to_each_without_a_question(two_hosts: TwoHosts):
    for here in two_hosts.names:
        for there in two_hosts.names:
            done = two_hosts.run(here, ["ssh", *SHORT, there, "hostname; echo $SSH_CONNECTION"], check=True)
            assert done.stdout.split()[:2] == [there, two_hosts.address(here)]
            assert done.stderr == ""


def test_the_processes_of_one_host_are_not_seen_from_the_other(two_hosts: TwoHosts):
    with two_hosts.popen("node2", ["sleep", "1234"]) as sleeper:
        until(lambda: [each.argv for each in two_hosts.processes("node2")] == [("sleep", "1234")])
        assert two_hosts.processes("node1") == []
        seen = [two_hosts.run(name, ["ps", "-eo", "args"], check=True).stdout for name in two_hosts.names]
        assert ["sleep 1234" in each for each in seen] == [False, True]
        assert two_hosts.processes("node2")[0].pid == sleeper.inner
        sleeper.terminate()
    assert sleeper.returncode == -signal.SIGTERM
    assert two_hosts.processes("node2") == []


def test_programs_get_the_folder_the_environment_and_their_exit_code(two_hosts: TwoHosts, tmp_path: Path):
    environment = {"PATH": os.environ["PATH"], "COLOUR": "blue as $(the sky)"}

    done = two_hosts.run("node1", ["sh", "-c", "pwd; echo $COLOUR; exit 7"], cwd=tmp_path, environment=environment)

    assert (done.returncode, done.stdout) == (7, f"{tmp_path}\nblue as $(the sky)\n")


def test_a_program_that_takes_too_long_is_killed(two_hosts: TwoHosts):
    with pytest.raises(subprocess.TimeoutExpired):
        two_hosts.run("node1", ["sleep", "1235"], timeout_s=0.3)

    assert two_hosts.processes("node1") == []


def test_a_host_without_its_link_is_not_reached_and_knows_it_until_it_is_mended(two_hosts: TwoHosts):
    def reached() -> bool:
        return two_hosts.run("node1", ["ssh", *SHORT, "node2", "true"]).returncode == 0

    def carrier(name: str) -> str:
        return two_hosts.run(name, ["cat", "/sys/class/net/eth0/carrier"], check=True).stdout.strip()

    two_hosts.cut("node2")
    assert not reached()
    assert [carrier(name) for name in two_hosts.names] == ["1", "0"]

    two_hosts.restore("node2")
    until(reached)
    assert [carrier(name) for name in two_hosts.names] == ["1", "1"]


def test_an_orphan_finds_a_parent(two_hosts: TwoHosts):
    two_hosts.run("node1", ["sh", "-c", "sleep 0.2 & exit 0"], stdout=subprocess.DEVNULL, check=True)

    init = psutil.Process(two_hosts.pids["node1"])
    until(lambda: not init.children())  # neither running nor a zombie


def test_the_links_are_as_fast_as_asked_for():
    receive = "import socket; s = socket.create_server(('', 5000)); print('ready', flush=True); c = s.accept()[0]\n"
    receive += "while c.recv(1 << 20): pass"
    send = "import socket; c = socket.create_connection(('10.77.0.2', 5000)); c.sendall(bytes(4_000_000))"
    with TwoHosts(rate="100mbit", sshd=False) as hosts:
        with hosts.popen("node2", [sys.executable, "-c", receive], stdout=subprocess.PIPE) as receiver:
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "ready\n"
            began = time.monotonic()
            hosts.run("node1", [sys.executable, "-c", send], check=True)
            receiver.wait(PATIENCE_S)
            took_s = time.monotonic() - began
            assert 4_000_000 < hosts.sent("node1") < 5_000_000
    # 4 MB need 0.32 s at 100 Mbit/s, less what the limit lets through at first; a link without one needs 2 ms
    assert took_s > 0.25


def test_nothing_is_left_and_the_machines_own_network_was_never_touched():
    before, spaces = own_network(), os.listdir("/etc/netns") if Path("/etc/netns").exists() else None
    with TwoHosts() as hosts:
        pids = [*hosts.pids.values(), *(process.pid for process in hosts._inits.values())]
        with hosts.popen("node2", ["sleep", "1236"]) as sleeper:
            assert sleeper.inner is not None
            pids.append(sleeper.inner)
            during = own_network()
            hosts.close()
            assert sleeper.wait(PATIENCE_S) == -signal.SIGKILL
    assert (before, before) == (during, own_network())
    assert (os.listdir("/etc/netns") if Path("/etc/netns").exists() else None) == spaces
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []
    assert not hosts.folder.exists()


def test_two_pairs_do_not_meet(two_hosts: TwoHosts):
    with TwoHosts() as other, two_hosts.popen("node1", ["sleep", "1237"]) as sleeper:
        until(lambda: len(two_hosts.processes("node1")) == 1)
        assert other.processes("node1") == []
        other.cut("node2")
        assert two_hosts.run("node1", ["ssh", *SHORT, "node2", "true"]).returncode == 0
        sleeper.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_hosts_end_with_the_process_that_made_them_however_it_ends(number: signal.Signals, tmp_path: Path):
    script = (
        "import signal, sys; sys.path.insert(0, sys.argv[1]); from two_hosts import TwoHosts\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with TwoHosts() as hosts:\n"
        "    sleeper = hosts.popen('node2', ['sleep', '1238'], start_new_session=True)\n"
        "    print(hosts.folder, *hosts.pids.values(), hosts._switch, sleeper.inner, flush=True)\n"
        "    signal.pause()\n"
    )
    maker = subprocess.Popen(
        [sys.executable, "-c", script, str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with maker:
        assert maker.stdout is not None
        folder, *pids = maker.stdout.readline().split()
        maker.send_signal(number)
    until(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids))

    if number != signal.SIGINT:  # only files can be left, and the next pair takes them away
        assert Path(folder).exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))
        module._remove_left_behind()
    assert not Path(folder).exists()


def test_a_pair_that_cannot_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))

    with pytest.raises(Unavailable) as caught:
        TwoHosts(rate="fast")

    assert 'illegal value for "rate": "fast"' in str(caught.value).replace("\\", "").lower() or "rate" in str(
        caught.value
    )
    assert list(tmp_path.iterdir()) == []


def test_missing_rights_and_programs_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert module.missing() == ""

    unshare = tmp_path / "unshare"
    unshare.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2; exit 1\n")
    unshare.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_SEARCH", f"{tmp_path}{os.pathsep}{module._SEARCH}")
        assert module.missing() == (
            "no network namespaces here (unshare: unshare failed: Operation not permitted): a container needs the "
            "capabilities SYS_ADMIN and NET_ADMIN, such as `docker run --privileged`"
        )
    with monkeypatch.context() as patch:
        patch.setattr(module, "_SEARCH", str(tmp_path))
        assert module.missing() == (
            "two hosts on one machine need the packages iproute2 mount openssh-client openssh-server util-linux: "
            "`make hosts` as root installs them"
        )
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        assert module.missing() == "two hosts on one machine need root, for network namespaces"


def test_by_hand(tmp_path: Path):
    def verb(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, module.__file__, *words],
            capture_output=True,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )

    assert verb("exec", "node1", "true").stderr == "two hosts are not up: python tests/two_hosts.py up\n"
    try:
        up = verb("up")
        assert (up.returncode, up.stdout) == (0, "node1 and node2 are up\n")
        assert verb("up").stderr == "two hosts are up already; `down` removes them\n"
        assert verb("exec", "node1", "ssh", *SHORT, "node2", "hostname").stdout == "node2\n"
        verb("cut", "node2")
        assert verb("exec", "node1", "ssh", *SHORT, "node2", "hostname").returncode == 255
        verb("restore", "node2")
        until(lambda: verb("exec", "node1", "ssh", *SHORT, "node2", "hostname").stdout == "node2\n")
    finally:
        down = verb("down")
    assert down.returncode == 0
    assert verb("down").returncode == 2
    until(lambda: list(tmp_path.iterdir()) == [])
    assert "up" in verb("sideways").stdout
