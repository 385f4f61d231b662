"""Commands on other hosts: quoting, ends in time, and processes that are found by their mark."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from make.launch_lines import program_line
from make.waiting import PATIENCE_S
from two_hosts import TwoHosts

from horovod_study.cluster import remote
from horovod_study.cluster.launch import MARKER, Site
from horovod_study.cluster.remote import other_hosts, remote_argv, run_on, stop_marked_on, this_host
from horovod_study.config.partitions import Host
from horovod_study.errors import StudyError

HAIRY = "a b $(touch pwned)'\"`touch pwned`;|&\n*"
SHOW = "import json, sys; print(json.dumps([sys.argv[1:], sys.stdin.read()]))"


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """An ssh and an srun that do on this machine what the real ones do elsewhere, as far as quoting goes."""
    (tmp_path / "bin").mkdir()
    # ssh: the words after the host are joined and read by the login shell there.
    ssh = 'while [ "$1" = -o ]; do shift 2; done\n[ "$1" = dead ] && exec sleep 60\n'
    ssh += '[ "$1" = refused ] && { echo "ssh: connect to host refused: No route to host" >&2; exit 255; }\n'
    ssh += 'shift; [ "$1" = -- ] && shift; exec sh -c "$*"\n'
    srun = 'while case "$1" in --*) true;; *) false;; esac; do shift; done\nexec "$@"\n'
    for name, text in (("ssh", ssh), ("srun", srun)):
        program = tmp_path / "bin" / name
        program.write_text("#!/bin/sh\n" + text)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)


def test_ssh_never_asks_and_gives_up():
    expected = [
        *"ssh -o ControlMaster=no -o BatchMode=yes -o ConnectTimeout=5 -o ServerAliveInterval=5".split(),
        *"-o ServerAliveCountMax=3 node2 --".split(),
        "echo 'a b'",
    ]
    assert expected == list(remote_argv("node2", ("echo", "a b")))


def test_in_a_job_srun_goes_beside_what_runs_there():
    expected = "srun --nodes=1 --ntasks=1 --nodelist=n2 --overlap --mpi=none --export=ALL --quiet echo".split()

    assert [*expected, "a b"] == list(remote_argv("n2", ("echo", "a b"), allocation=True))


@pytest.mark.parametrize("host", ["", "-oProxyCommand=touch pwned"])
def test_what_ssh_would_take_for_an_option_is_no_host(host, golden):
    with golden.raises(StudyError):
        remote_argv(host, ("true",))


@pytest.mark.parametrize("allocation", [False, True])
def test_arguments_arrive_as_they_are(stand_ins, allocation, tmp_path):
    answer = run_on("node2", (sys.executable, "-c", SHOW, HAIRY, ""), sent="text\n", allocation=allocation)

    assert (0, "") == (answer.exit_code, answer.problem)
    assert [[HAIRY, ""], "text\n"] == json.loads(answer.output)
    assert not (tmp_path / "pwned").exists()


def test_options_of_the_job_are_not_those_of_a_step_beside_it(stand_ins, monkeypatch):
    for name in ("SLURM_NTASKS_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_STEP_ID", "SRUN_CPUS_PER_TASK", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "7")
    show = "import os; print(sorted(name for name in os.environ if name.startswith('S') and 'R' in name[:5]))"

    assert "['SLURM_JOB_ID']" == run_on("n2", (sys.executable, "-c", show), allocation=True).output.strip()


def test_what_fails_is_said_in_one_line(stand_ins, monkeypatch, golden):
    assert "ssh: connect to host refused: No route to host" == run_on("refused", ("true",)).problem
    assert "false ended with 1" == run_on("node2", ("false",)).problem
    late = run_on("dead", ("true",), timeout_s=0.2)
    assert (None, "no answer within 0.2 s") == (late.exit_code, late.problem)
    monkeypatch.setenv("PATH", "/nowhere")
    golden(run_on("node2", ("true",)).problem)


def marked_sleep(marker: str, *, stubborn: bool = False) -> subprocess.Popen[str]:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if stubborn else ""
    code = f"import signal, time; {ignore}print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, MARKER: marker}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return process


@pytest.mark.slow
@pytest.mark.parametrize("allocation", [False, True])
def test_marked_processes_are_ended_and_others_are_not(stand_ins, tmp_path, allocation):
    marker = str(tmp_path / HAIRY.replace("/", "").replace("\n", ""))
    ours = [
        marked_sleep(marker),
        marked_sleep(f"{marker}/cell", stubborn=True),
        marked_sleep(marker + "2"),
        marked_sleep(str(tmp_path)),
    ]
    try:
        stopped = stop_marked_on(["node2"], marker, grace_s=0.3, allocation=allocation)

        assert stopped == (2, "")
        assert (-signal.SIGTERM, -signal.SIGKILL) == (ours[0].wait(PATIENCE_S), ours[1].wait(PATIENCE_S))
        assert [None, None] == [each.poll() for each in ours[2:]]
        assert stop_marked_on(["node2"], marker, grace_s=0.3) == (0, "")
    finally:
        for each in ours:
            each.kill()
            each.communicate()


def test_hosts_that_cannot_be_asked_are_named_and_cost_their_time_once(stand_ins, tmp_path, monkeypatch, golden):
    monkeypatch.setattr(remote, "_ANSWER_S", 2.9)
    began = time.monotonic()
    found, problem = stop_marked_on(["dead", "refused", "node2"], str(tmp_path / "x"), grace_s=0.1)

    assert found == 0 and "node2" not in problem
    golden(problem, "dead: ", "refused: ", "3 s")
    assert time.monotonic() - began < 30, "one time limit after the other is not what it takes"
    assert (0, "") == stop_marked_on([], "x")


def test_an_answer_that_is_none_counts_as_not_reached(stand_ins, tmp_path, golden):
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "bin" / "python3").chmod(0o755)

    golden(stop_marked_on(["node2"], "x", grace_s=0.1)[1], "node2")


def test_this_machine_is_known_by_its_names_and_addresses():
    this_host.cache_clear()
    own = os.uname().nodename

    assert this_host("localhost") and this_host("127.0.0.1") and this_host(own) and this_host(own.upper())
    assert not this_host("192.0.2.1"), "an address for documentation is nobody's"
    assert ["192.0.2.1"] == other_hosts(["localhost", "192.0.2.1", own, "192.0.2.1"])


# ---------------------------------------------------------------------- two real hosts


@pytest.mark.cluster
def test_each_host_knows_itself_and_the_other(two_hosts: TwoHosts):
    code = "from horovod_study.cluster.remote import this_host as t; print(t('node1'), t('node2'), t('10.77.0.1'))"

    for name, expected in (("node1", "True False True"), ("node2", "False True False")):
        assert expected == two_hosts.run(name, [sys.executable, "-c", code], check=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.horovod
@pytest.mark.parametrize("runtime", ["horovod/gloo", "horovod/mpi", "mpi/mpi"])
def test_text_reaches_ranks_on_both_hosts_as_it_is(two_hosts: TwoHosts, tmp_path, runtime):
    """Through horovodrun, mpirun, their shells and ssh: arguments, values and the folder of the run."""
    out = tmp_path / HAIRY.replace("/", "").replace("\n", "")
    out.mkdir()
    told = "d = os.environ; open(sys.argv[2] + '/' + os.uname().nodename, 'w').write(json.dumps("
    told += f"[sys.argv[1:], d['HOROVOD_STUDY_X'], d['{MARKER}'], d['SITE_X'], "
    told += "d.get('HOROVOD_RANK', d.get('OMPI_COMM_WORLD_RANK'))]))"
    made = program_line(
        runtime,
        2,
        ("-c", f"import json, os, sys; {told}", HAIRY, str(out)),
        python=Path(sys.executable),
        out=out,
        environ={**os.environ, "HOROVOD_STUDY_X": HAIRY},
        root=True,
        site=Site(
            hosts=(Host(name="node2", slots=1), Host(name="node1", slots=1)),  # not the order that mpirun likes
            interface="eth0",
            environment={"SITE_X": "$(touch pwned)"},
        ),
    )

    done = two_hosts.run("node1", made.argv, environment=made.environment, cwd=tmp_path)

    assert 0 == done.returncode, done.stdout + done.stderr
    for name, rank in (("node2", "0"), ("node1", "1")):
        assert [[HAIRY, str(out)], HAIRY, str(out), "$(touch pwned)", rank] == json.loads((out / name).read_text())
    assert not list(tmp_path.rglob("pwned")) and not Path("pwned").exists()


@pytest.mark.cluster
def test_processes_on_the_other_host_are_ended_over_ssh(two_hosts: TwoHosts, tmp_path):
    marker = str(tmp_path / "a b $(touch pwned)")
    ask = (
        "import sys; from horovod_study.cluster.remote import stop_marked_on as stop; "
        "print(stop(['node1', 'node2'], sys.argv[1], grace_s=0.5))"
    )
    with (
        two_hosts.popen("node2", ["sleep", "1234"], environment={**os.environ, MARKER: marker}) as theirs,
        two_hosts.popen("node2", ["sleep", "1235"]) as other,
    ):
        try:
            done = two_hosts.run("node1", [sys.executable, "-c", ask, marker], check=True)

            assert "(1, '')" == done.stdout.strip()
            assert theirs.wait(PATIENCE_S) != 0 and other.poll() is None
        finally:
            theirs.kill()
            other.kill()

    two_hosts.cut("node2")
    try:
        done = two_hosts.run("node1", [sys.executable, "-c", ask, marker], check=True)
    finally:
        two_hosts.restore("node2")
    told = "(0, 'processes may be left on hosts that could not be asked (node2: ssh: connect to host node2 port 22: "
    assert done.stdout.startswith(told)


def test_the_sent_program_is_quoted_for_a_shell_that_reads_it():
    """The words that ssh joins are the same ones again after the shell has split them."""
    words = ("python3", "-", f"{MARKER}={HAIRY}", "5")

    assert list(words) == shlex.split(remote_argv("node2", words)[-1])
