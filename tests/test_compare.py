"""Running a comparison: the two sides, the order, parity, failures, going on; the trainer is a stand-in."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import make.records
import numpy as np
import pytest
import yaml
from fake_trainer import fake_launch
from make.waiting import PATIENCE_S
from make.wording import Golden

from horovod_study import records
from horovod_study.analysis.compare.comparison import compare
from horovod_study.cli import main
from horovod_study.cluster.launch import LaunchLine, cell_environment
from horovod_study.config import COMMUNICATION
from horovod_study.errors import ConfigError, StudyError
from horovod_study.roles import Role
from horovod_study.studies import turns
from horovod_study.studies.compare import (
    CompareResult,
    Effort,
    check_configs,
    differs_lines,
    plan_effort,
    read_arm,
    read_arms,
    run_compare,
    schedule,
    worker_counts,
)
from horovod_study.workload.options import STRAIN

# What the trainer would write is made here: a process that imports nothing starts ten times as fast.
TRAINER = """
import json, os, signal, sys, time
told = json.load(open(sys.argv[1]))
with open(told["starts"], "a") as stream:
    stream.write(told["place"] + "\\n")
if told["act"] == "fails" or (told["act"] == "fails once" and not os.path.exists(told["once"])):
    open(told["once"], "w").close()
    print("error: rank 1 lost its device")
    sys.exit(2)
if told["act"] == "interrupts":
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)
os.rename(told["made"], told["out"])
"""


def fake(told: dict[str, str] | None = None):
    """Return a launch function whose runs make 1000 samples/s per worker; B 100 more, and each block 10 more."""

    def launch(cell, config: Path, out: Path, **options) -> LaunchLine:
        place = f"{out.parent.name}/{out.name}"
        act = (told or {}).get(place, (told or {}).get(out.name, ""))
        order = {
            "act": act,
            "place": place,
            "out": str(out),
            "made": str(out.parent / f".made-{out.name}"),
            "once": str(out.parent / f"failed-{out.name}"),
            "starts": str(out.parents[1] / "starts.txt"),
        }
        letter = out.parent / f".order-{out.name}"
        if out.name in ("A", "B"):
            finished_run(cell, Path(order["made"]), out.name, act)
            letter.write_text(json.dumps(order))
        environment = cell_environment(os.environ, path=os.environ["PATH"], out=out)
        return LaunchLine(argv=(sys.executable, "-S", "-E", "-c", TRAINER, str(letter)), environment=environment)

    return launch


def finished_run(cell, folder: Path, name: str, act: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    config, workers = cell.config, cell.placement.workers
    batch = 50 if act == "other batch" else config.batch
    record = make.records.record(
        study="compare",
        key=name,
        repeat=config.repeat,
        host="h",
        requested=config.to_dict(),
        environment={"torch": "2"},
        effective={
            "backend": config.backend,
            "reduction": config.reduction,
            "workers": workers,
            "batch": batch,
            "global_batch": batch * workers,
            "initial_parameter_sha256": "f00" if act == "other start" else "abc",
            "settings": {"CYCLE": {"value": "5" if name == "B" else "1"}},
        },
    )
    records.create_run(folder, record)
    columns = {name: np.zeros(3) for name in records.step_schema().names}
    make.records.write_rows(folder, {0: {**columns, "loss": np.array([0.3, 0.2, 0.1])}})
    totals = {
        "samples_per_s": 1000.0 * workers + (100 if name == "B" else 0) + 10 * config.repeat,
        "step_s_median": 0.01,
        "step_s_p90": 0.011,
        "test_mse": 0.5,
        "parameter_sha256": "abc",
        "steps": config.steps or 7,
        "excluded_steps": config.warmup_steps,
    }
    records.finish_run(folder, record, status="done", finished="now", totals=totals)


def start(out: Path, told: dict[str, str] | None = None, *, a: str = "horovod/mpi", b: str = "mpi/mpi", **options):
    arms, seconds = read_arms(a, b, options.pop("given", {"steps": "20"}), STRAIN)
    workers = options.pop("workers", (1,))
    effort = plan_effort(arms, workers, **{"blocks": 2, "seconds": seconds, "turns": False, **options})
    return run_compare(arms, out, command="again", workers=workers, effort=effort, launch=fake(told), cores=2)


# -------------------------------------------------------------------------------------------------------- the sides


def test_a_side_from_a_short_text() -> None:
    arm = read_arm(
        "B", "horovod/gloo,thread_priority=off, cycle-time-ms=0.2,hierarchical=off,fusion_mb=shipped", {}, STRAIN
    )

    assert arm.runtime == "horovod/gloo"
    assert (arm.config.backend, arm.config.transport) == ("horovod", "gloo")
    assert (arm.config.thread_priority, arm.config.cycle_time_ms, arm.config.hierarchical) == ("off", 0.2, False)
    assert arm.config.fusion_mb is None
    assert read_arm("A", "serial", {"batch": "50"}, STRAIN).config.batch == 50
    assert read_arm("A", "mpi/mpi,batch=60", {"batch": "50"}, STRAIN).config.batch == 60, "the side's own word counts"


def test_a_side_from_a_file(tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("runtime: ddp/gloo\nbucket_mb: 5\nbatch: 30\nepochs: 7\nstudy: mine\n")
    arm = read_arm("A", str(path), {"batch": "40"}, STRAIN)

    assert (arm.runtime, arm.config.bucket_mb, arm.config.batch) == ("ddp/gloo", 5.0, 40)
    path.write_text("backend: horovod\ntransport: gloo\n")
    assert read_arm("A", str(path), {}, STRAIN).runtime == "horovod/gloo"
    path.write_text("backend: mpi\n")
    assert read_arm("A", str(path), {}, STRAIN).runtime == "mpi/mpi", "mpi works over mpi only"
    path.write_text("batch: 30\n")
    with golden.raises(ConfigError, match=r"mine\.yaml"):
        read_arm("A", str(path), {}, STRAIN)


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        (
            "horovod/mpii",
            {},
            r"A: runtime 'horovod/mpii' is not known \(did you mean 'horovod/mpi'\?\); allowed: serial",
        ),
        (
            "cycle_time_ms=1",
            {},
            "A is 'cycle_time_ms=1', which names no runtime; begin with one of serial, horovod/mpi",
        ),
        ("", {}, "A is '', which names no runtime"),
        ("horovod/mpi,cyle_time_ms=1", {}, r"unknown option 'cyle_time_ms' \(did you mean 'cycle_time_ms'\?\)"),
        ("horovod/mpi,cycle_time_ms", {}, r"A: 'cycle_time_ms' is not option=value"),
        ("horovod/mpi,cycle_time_ms=fast", {}, "A: cycle_time_ms is 'fast'; it must be a number"),
        ("ddp/gloo,bucket_view=perhaps", {}, "A: bucket_view is 'perhaps'; it must be true or false"),
        ("mpi/mpi,fusion_mb=1", {}, "A: fusion_mb has no effect on mpi/mpi; leave it out"),
        ("ddp/gloo,bucket_mb=1,bucket_mb=2", {}, "A: bucket_mb is given twice"),
        ("ddp/gloo,steps=3", {}, "A: steps has no place here; it is the same for both sides"),
        ("nowhere.yaml", {}, "nowhere.yaml: no such file"),
        ("mpi/mpi", {"backend": "ddp"}, "--backend has no place here; A and B each name a runtime"),
        ("mpi/mpi", {"epochs": "2"}, "--epochs has no place here; give --steps, or --seconds per run"),
        ("mpi/mpi", {"target_mse": "2"}, "--target-mse has no place here; leave it out"),
    ],
)
def test_a_side_that_cannot_be_read_is_one_line(text: str, given: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_arm("A", text, given, STRAIN)


def test_unequal_work_is_refused_with_the_name_and_both_values(golden: Golden) -> None:
    with golden.raises(ConfigError, match="75.*50"):
        check_configs(read_arm("A", "horovod/mpi", {}, STRAIN), read_arm("B", "horovod/mpi,batch=50", {}, STRAIN))
    with golden.raises(ConfigError):
        check_configs(read_arm("A", "serial", {}, STRAIN), read_arm("B", "serial,seed=2", {}, STRAIN))


def test_every_option_is_either_work_or_the_way_it_is_done() -> None:
    work = {
        *("dataset", "data_seed", "input_scaling", "batch", "widths", "optimizer", "weight_decay", "precision", "seed"),
        *("epsilon", "lr", "lr_scaling", "lr_warmup_steps", "schedule", "lr_end", "warmup_steps", "steady", "device"),
    }
    told = {"epochs", "seconds", "steps", "target_mse", "evaluate_every", "checkpoint_every", "checkpoint_at_end"}
    told |= {"measure_sync", "measure_ablation", "profile", "profile_steps", "timeline_steps", "ranges"}

    may_differ = STRAIN.named(Role.MAY_DIFFER)
    assert set(STRAIN.options) == {*work, *told, *may_differ, "study", "partition", "repeat"}, (
        "a new option must be sorted in"
    )
    assert set(COMMUNICATION) <= set(may_differ)


def test_a_against_a_says_so(golden: Golden) -> None:
    assert check_configs(read_arm("A", "mpi/mpi", {}, STRAIN), read_arm("B", "mpi/mpi", {}, STRAIN)) == {}
    golden(differs_lines({})[0], "A/A")
    assert differs_lines({"reduction": ("auto", None), "x": (True, 3)})[1:] == [
        "  reduction  auto | shipped",
        "  x          on | 3",
    ]


# -------------------------------------------------------------------------------------------------------- the order


def test_the_order_is_balanced_random_and_continues() -> None:
    turns = schedule([1, 2], 10, seed=1)

    assert len(turns) == 20
    for count in (1, 2):
        first = [turn.order[0] for turn in turns if turn.workers == count]
        assert [first[place] != first[place + 1] for place in range(0, 10, 2)] == [True] * 5, "one each of two"
        assert [turn.block for turn in turns if turn.workers == count] == list(range(1, 11))
    assert [turn.block for turn in turns] == sorted(turn.block for turn in turns), "worker counts are interleaved"
    assert schedule([2, 1], 4, seed=1) == turns[:8]
    orders = {tuple(turn.order[0] for turn in schedule([2], 8, seed=seed)) for seed in range(20)}
    assert len(orders) > 5
    assert {schedule([1, 2], 1, seed=seed)[0].workers for seed in range(20)} == {1, 2}


def test_default_worker_counts() -> None:
    serial, mpi = read_arm("A", "serial", {}, STRAIN), read_arm("B", "mpi/mpi", {}, STRAIN)

    assert worker_counts((serial, mpi), None) == (1,)
    assert worker_counts((mpi, mpi), [2, 1, 2]) == (1, 2)
    assert worker_counts((mpi, mpi), None)[0] >= 1


# ------------------------------------------------------------------------------------------------------ in turns


def in_turns(out: Path, told: dict[str, str], *, given: dict[str, str] | None = None, **options) -> CompareResult:
    arms, seconds = read_arms("horovod/mpi", "mpi/mpi", {"device": "cpu", **(given or {})}, STRAIN)
    effort = plan_effort(arms, (1,), **{"seconds": seconds, **options})
    return run_compare(arms, out, command="again", workers=(1,), effort=effort, launch=fake_launch(told), cores=2)


@pytest.mark.slow
def test_both_sides_of_a_block_train_in_turns_until_the_interval_is_narrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    monkeypatch.setattr(turns, "WARM_S", 0.05)
    monkeypatch.setattr(turns, "SLICE_S", (0.03, 0.03))
    told = {"horovod/mpi/1/0": "turns", "mpi/mpi/1/0": "turns, slow", "*": "turns"}
    found = in_turns(tmp_path, told, precision=0.9)

    assert [block["block"] for block in found.blocks] == [1, 2, 3], "three launches at least"
    assert re.search(r"3/\d+\] block 3, 1 worker: B/A .* rounds; \+- .* at most, aim 90 %", capsys.readouterr().err)
    for block in found.blocks:
        assert block["A"]["steps"] == block["B"]["steps"] > 200
        assert len(block["rounds"]["A"]) == len(block["rounds"]["B"]) >= 3
    rates = found.blocks[0]["rounds"]
    assert np.median(np.divide(rates["B"], rates["A"])) < 0.9
    assert found.to_dict()["in_turns"] is True and found.steps[1] > 200
    starts = (tmp_path / "blocks" / "1w-01" / "starts.txt").read_text()
    assert in_turns(tmp_path, told, precision=0.9).blocks == found.blocks, "read back"
    assert (tmp_path / "blocks" / "1w-01" / "starts.txt").read_text() == starts
    with golden.raises(StudyError):
        in_turns(tmp_path, told, turns=False)
    with golden.raises(StudyError, match="block 1.*1 worker.*ValueError"):
        in_turns(tmp_path / "fails", {"*": "turns", "mpi/mpi/1/0": "turns, fails"}, blocks=1)


def test_what_cannot_alternate_runs_one_after_the_other_and_says_why(golden: Golden) -> None:
    arms, _ = read_arms("serial", "serial", {"device": "cpu"}, STRAIN)
    with_steps, _ = read_arms("serial", "serial", {"device": "cpu", "steps": "60"}, STRAIN)
    decays, _ = read_arms("serial", "serial", {"device": "cpu", "schedule": "cosine"}, STRAIN)

    assert plan_effort(arms, [1]) == Effort(blocks=5, seconds=5.0)
    assert plan_effort(arms, [1], turns=False) == Effort(blocks=10, seconds=2.0, alone="as asked for")
    assert "give --steps" in plan_effort(decays, [1]).alone
    assert "MB of memory" in plan_effort(arms, [10**6]).alone
    with golden.raises(ConfigError, match="--until"):
        plan_effort(arms, [1], turns=False, precision=0.02)
    with pytest.raises(ConfigError, match="--steps ends before"):
        plan_effort(with_steps, [1], precision=0.02)


# --------------------------------------------------------------------------------------------------------- the runs


def test_blocks_are_run_and_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    found = start(tmp_path, workers=(1, 2))

    assert len(found.blocks) == 4
    assert found.exit_code == 0
    assert found.steps == {1: 20, 2: 20}
    one = next(block for block in found.blocks if (block["workers"], block["block"]) == (2, 1))
    assert (one["A"]["samples_per_s"], one["B"]["samples_per_s"]) == (2000.0, 2100.0)
    assert one["A"]["first_losses"] == pytest.approx([0.3, 0.2, 0.1])
    assert found.differs["backend"] == ("horovod", "mpi")
    assert found.differs["CYCLE"] == ("1", "5")
    starts = (tmp_path / "blocks" / "starts.txt").read_text().split()
    assert len(starts) == 8
    config = yaml.safe_load((tmp_path / "blocks" / "2w-01" / "B.yaml").read_text())
    assert (config["steps"], config["seconds"], config["epochs"]) == (20, None, None)
    assert (config["evaluate_every"], config["checkpoint_at_end"]) == (1e6, False)
    said = capsys.readouterr().err
    assert "block 1, 2 workers: A 2,000, B 2,100 samples/s" in said
    assert "left" in said

    again = start(tmp_path, workers=(1, 2), blocks=3)  # the same command with more blocks goes on
    assert len((tmp_path / "blocks" / "starts.txt").read_text().split()) == 12
    assert [block for block in again.blocks if block["block"] < 3] == list(found.blocks)
    assert compare(again.blocks).counts[1].speed.ratio.n == 3
    with golden.raises(StudyError, match="cycle_time_ms"):
        start(tmp_path, a="horovod/mpi,cycle_time_ms=0.5")
    with golden.raises(StudyError, match="20 steps.*1 worker.*30.*--out"):
        start(tmp_path, given={"steps": "30"})


def test_a_pilot_chooses_the_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    found = start(tmp_path, given={"seconds": "6", "batch": "10"}, blocks=1)

    # 100 and 110 steps/s for 6 s: 6 x sqrt(11000) = 629
    assert found.steps == {1: 630}
    golden.line(capsys.readouterr().err, "1 worker", "630 steps", "100", "110 (B", "steps/s")
    assert start(tmp_path, given={"seconds": "1", "batch": "10"}, blocks=1).steps == {1: 630}, "as in the plan"


def test_a_run_that_fails_once_is_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    found = start(tmp_path, {"1w-01/B": "fails once"})

    assert (len(found.blocks), found.dropped) == (2, ())
    golden.line(capsys.readouterr().err, "block 1", "1 worker", "rank 1")


def test_a_block_that_fails_twice_is_dropped_and_told(tmp_path: Path, golden: Golden) -> None:
    found = start(tmp_path, {"1w-02/A": "fails"}, blocks=3)

    assert [block["block"] for block in found.blocks] == [1, 3]
    golden(found.dropped, "block 2", "1 worker", "rank 1")
    assert found.exit_code == 1
    golden("\n".join(found.lines()), "block 2", "1 worker")
    assert start(tmp_path, blocks=3).exit_code == 0, "tried again by the same command"


def test_what_never_works_ends_early(tmp_path: Path, golden: Golden) -> None:
    with golden.raises(StudyError, match="2 blocks.*1 worker.*block 2"):
        start(tmp_path, {"B": "fails"}, blocks=10)
    with golden.raises(StudyError, match="mpi/mpi.*1 worker.*rank 1"):
        start(tmp_path / "pilot", {"B": "fails"}, given={})


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ("other batch", "75.*50"),
        ("other start", "f00"),
    ],
)
def test_records_of_unequal_work_are_refused(tmp_path: Path, told: str, message: str, golden: Golden) -> None:
    with golden.raises(StudyError, match=message):
        start(tmp_path, {"1w-02/B": told})
    with golden.raises(StudyError, match=message):
        start(tmp_path / "pilot", {"B": told}, given={})


def test_an_altered_record_is_refused(tmp_path: Path, golden: Golden) -> None:
    start(tmp_path)
    path = tmp_path / "blocks" / "1w-02" / "A" / records.MANIFEST
    content = json.loads(path.read_text())
    content["effective"]["global_batch"] = 150
    path.write_text(json.dumps(content))

    with golden.raises(StudyError, match="block 2.*1 worker.*75"):
        start(tmp_path)


def test_half_a_block_is_run_again_whole(tmp_path: Path) -> None:
    start(tmp_path, blocks=1)
    folder = tmp_path / "blocks" / "1w-01"
    (folder / "B").rename(tmp_path / "gone")
    start(tmp_path, blocks=1)

    assert (folder / ".attempts" / "A-1" / records.MANIFEST).exists(), "kept, not counted"
    assert len((tmp_path / "blocks" / "starts.txt").read_text().split()) == 4
    assert [path.name for path in records.run_directories(folder)] == ["A", "B"]


def test_the_left_half_of_a_block_never_meets_a_later_one(tmp_path: Path) -> None:
    start(tmp_path)
    turn = next(turn for turn in schedule([1], 2, seed=1) if turn.order[0] == "B")
    folder = tmp_path / "blocks" / f"1w-{turn.block:02d}"
    (folder / "B").rename(tmp_path / "gone")
    start(tmp_path, {f"1w-{turn.block:02d}/B": "fails"})

    assert not (folder / "A").exists(), "or a B of tomorrow would be compared with it"


INTERRUPTED = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_compare import start
try:
    found = start(Path({out!r}), {{"1w-02/A": "interrupts", "1w-02/B": "interrupts"}})
    print("blocks", len(found.blocks), "exit", found.exit_code)
except KeyboardInterrupt:
    print("nothing finished")
"""


@pytest.mark.slow
def test_ctrl_c_keeps_finished_blocks(tmp_path: Path, golden: Golden) -> None:
    code = INTERRUPTED.format(tests=str(Path(__file__).parent), out=str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)

    assert ended.stdout.strip() == "blocks 1 exit 130"
    golden.line(ended.stderr, "1 complete")
    assert len(start(tmp_path).blocks) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": (3,)}, "--workers is 3, but this machine offers 2 cores; workers that share a core"),
        ({"workers": (0,)}, "--workers is 0; it must be at least 1"),
        ({"workers": (1, 2), "a": "serial"}, "A is serial, which has one worker, but --workers is 2; use --workers 1"),
        ({"blocks": 0}, "--blocks is 0; it must be at least 1"),
        ({"given": {"seconds": "0"}}, "compare: --seconds is 0.0; it must be greater than 0"),
        ({"b": "mpi/mpi,widths=4-7-31"}, "widths is 15-38-197 for A and 4-7-31 for B"),
    ],
)
def test_what_cannot_work_is_refused_before_a_run(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        start(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_more_threads_than_cores_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    found = start(tmp_path, workers=(2,), blocks=1, b="mpi/mpi,threads=2")

    assert isinstance(found, CompareResult)
    golden.line(capsys.readouterr().err, "4 threads", "2 cores")


def test_the_verb_refuses_in_one_line(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    assert main(["compare", "mpi/mpi", "mpi/mpi,batch=3"]) == 2
    golden(capsys.readouterr().err, "75")
    assert main(["compare", "mpi/mpi", "mpi/mpi", "--blokcs", "3"]) == 2
    golden(capsys.readouterr().err, "--blokcs", "--blocks")


@pytest.mark.slow
@pytest.mark.horovod
def test_a_real_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "horovod/mpi", "mpi/mpi", "--workers", "2", "--blocks", "2", "--steps", "900"]
    words += ["--warmup-steps", "3", "--dataset", "4000", "--out", str(tmp_path / "out"), "--json"]

    assert main(words) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["differs"]["backend"] == ["horovod", "mpi"]
    assert found["learning"]["alike"] is True
    (count,) = found["workers"]
    assert len(found["blocks"]) == 2
    assert count["ratio"] > 0
    assert found["in_turns"] and count["turns"]["rounds"] >= 2 and count["turns"]["launches"] == count["blocks"] <= 2
    assert [block[side]["steps"] for block in found["blocks"] for side in "AB"] == [903] * 4
    assert (tmp_path / "out" / "comparison.png").stat().st_size > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
