"""`run A B`: the two sides, the order, parity, failures, going on; the trainer is a stand-in."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import make.records
import numpy as np
import pytest
import yaml
from fake_trainer import fake_launch
from make.waiting import PATIENCE_S, until
from make.wording import Golden
from rich.console import Console

from horovod_study import records
from horovod_study.analysis.compare.comparison import compare
from horovod_study.cli import main
from horovod_study.cluster.launch import LaunchLine, cell_environment
from horovod_study.cluster.process import marked_processes
from horovod_study.config.roles import Role
from horovod_study.config.run import COMMUNICATION
from horovod_study.errors import ConfigError, StudyError
from horovod_study.strain.options import STRAIN
from horovod_study.studies import designs, turns
from horovod_study.studies.designs import Comparison, check_configs, pairs_of, read_side, sides_of, told
from horovod_study.studies.runner import RunOptions, StudyResult, follow

Document = dict[str, Any]

# What the trainer would write is made here: a process that imports nothing starts ten times as fast.
TRAINER = """
import json, os, sys
told = json.load(open(sys.argv[1]))
with open(told["starts"], "a") as stream:
    stream.write(told["place"] + "\\n")
if told["act"] == "fails" or (told["act"] == "fails once" and not os.path.exists(told["once"])):
    open(told["once"], "w").close()
    print("error: rank 1 lost its device")
    sys.exit(2)
os.rename(told["made"], told["out"])
"""


def fake(acts: Mapping[str, str]) -> Any:
    """Return a launch function whose runs make 1000 samples/s per worker; B 100 more, and each block 10 more.

    `acts`: what happens to "A/2/0", the run of A with 2 workers in the first block, or to "A", all of its runs.
    """

    def launch(cell: Any, config: Path, out: Path, **_: object) -> LaunchLine:
        place = f"{cell.arm}/{cell.placement.workers}/{cell.config.repeat}"
        act = acts.get(place, acts.get(cell.arm, ""))
        order = {"act": act, "place": place, "out": str(out), "starts": str(out.parent / "starts.txt")}
        order |= {"made": str(out.parent / f".made-{out.name}"), "once": str(out.parent / f".failed-{place[0]}")}
        told = out.parent / f".order-{out.name}"
        if out.name == cell.key:  # else it is only asked for its program
            finished_run(cell, Path(order["made"]), out.name, act)
            told.write_text(json.dumps(order))
        environment = cell_environment(os.environ, path=os.environ["PATH"], out=out)
        return LaunchLine(argv=(sys.executable, "-S", "-E", "-c", TRAINER, str(told)), environment=environment)

    return launch


def finished_run(cell: Any, folder: Path, key: str, act: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    config, workers = cell.config, cell.placement.workers
    batch = 50 if act == "other batch" else config.batch
    settings = {"CYCLE": {"value": "5" if cell.arm == "B" else "1"}}
    record = make.records.record(
        study=config.study,
        key=key,
        repeat=config.repeat,
        requested={**vars(config), "workers": workers},
        environment={"torch": "2"},
        effective={
            "backend": config.backend,
            "reduction": config.reduction,
            "workers": workers,
            "settings": settings,
            "batch": batch,
            "global_batch": batch * workers,
            "warmup_steps": config.warmup_steps,
            "initial_parameter_sha256": "f00" if act == "other start" else "abc",
        },
    )
    records.create_run(folder, record)
    columns = {name: np.zeros(3) for name in records.step_schema().names}
    make.records.write_rows(folder, {0: {**columns, "loss": np.array([0.3, 0.2, 0.1])}})
    totals = {
        "samples_per_s": 1000.0 * workers + (100 if cell.arm == "B" else 0) + 10 * config.repeat,
        "step_s_median": 0.01,
        "step_s_p90": 0.011,
        "test_mse": 0.5,
        "parameter_sha256": "abc",
        "steps": config.steps or 70,
        "excluded_steps": config.warmup_steps,
    }
    records.finish_run(folder, record, status="done", finished="now", totals=totals)


def followed(found: Comparison, launch: Any) -> tuple[Document, StudyResult | None, str]:
    """Run a comparison; return its document, how it ended, and what was printed."""
    console = Console(file=io.StringIO(), force_terminal=False)
    quick: dict[str, Any] = {"smoke": False, "watch_load_s": 0.0, "grace_s": 0.3, "cores": 2}
    how = RunOptions(command="again", launch=launch, policy=found.policy, **quick)
    result = follow(found.design(), how, console)
    return found.document(result), result, console.file.getvalue()  # type: ignore[attr-defined]


def start(out: Path, acts: Mapping[str, str] | None = None, **options: Any) -> Document:
    """Compare with the stand-in, one run after the other, and return the document."""
    return followed(made(out, **options), fake(acts or {}))[0]


def made(out: Path, *, a: str = "horovod/mpi", b: str = "mpi/mpi", **options: Any) -> Comparison:
    given = options.pop("given", {"steps": "20"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(designs, "available_cores", lambda: 2)
        return pairs_of((a, b), given, STRAIN, out, **{"workers": (1,), "blocks": 2, "turns": False, **options})


def starts(out: Path) -> list[str]:
    return (out / "starts.txt").read_text().split()


def side(text: str, **common: str) -> designs.Side:
    return read_side("A", text, common, STRAIN)


# -------------------------------------------------------------------------------------------------------- the sides


def test_a_side_from_a_short_text() -> None:
    text = "horovod/gloo,thread_priority=off, cycle-time-ms=0.2,hierarchical=off,fusion_mb=shipped"
    config = side(text).config

    assert (config.backend, config.transport) == ("horovod", "gloo")
    known = ("thread_priority", "cycle_time_ms", "hierarchical", "fusion_mb")
    assert [getattr(config, name) for name in known] == ["off", 0.2, False, None]
    assert side("serial", batch="50").config.batch == 50
    assert side("mpi/mpi,batch=60", batch="50").config.batch == 60, "the side's own word counts"


def test_a_side_from_a_file(tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("runtime: ddp/gloo\nbucket_mb: 5\nbatch: 30\nepochs: 7\nstudy: mine\n")
    found = side(str(path), batch="40")

    assert (found.runtime, vars(found.config)["bucket_mb"], found.config.batch) == ("ddp/gloo", 5.0, 40)
    path.write_text("batch: 30\n")
    with golden.raises(ConfigError, match=r"mine\.yaml"):
        side(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("horovod/mpii", r"A: runtime is 'horovod/mpii' \(did you mean 'horovod/mpi'\?\); allowed: serial"),
        ("cycle_time_ms=1", "A: runtime is 'cycle_time_ms=1'; allowed: serial"),
        ("horovod/mpi,cyle_time_ms=1", r"unknown option 'cyle_time_ms' \(did you mean 'cycle_time_ms'\?\)"),
        ("horovod/mpi,cycle_time_ms", r"A: 'cycle_time_ms' is not option=value"),
        ("horovod/mpi,cycle_time_ms=fast", "A: cycle_time_ms is 'fast'; it must be a number"),
        ("ddp/gloo,bucket_view=perhaps", "A: bucket_view is 'perhaps'; it must be true or false"),
        ("mpi/mpi,fusion_mb=1", "A: fusion_mb has no effect on mpi/mpi; leave it out"),
        ("ddp/gloo,bucket_mb=1,bucket_mb=2", "A: bucket_mb is given twice"),
        ("ddp/gloo,steps=3", "A: steps has no place here; it is the same for both sides"),
        ("nowhere.yaml", "nowhere.yaml: no such file"),
    ],
)
def test_a_side_that_cannot_be_read_is_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        side(text)


def test_two_sides_are_told_from_a_study_file(tmp_path: Path, golden: Golden) -> None:
    study, options = tmp_path / "study.yaml", tmp_path / "options.yaml"
    study.write_text("study: mine\nsweep: {workers: [1]}\n")
    options.write_text("study: mine\nruntime: mpi/mpi\n")

    assert sides_of(["serial", "mpi/mpi,batch=3"]) == ("serial", "mpi/mpi,batch=3")
    assert sides_of([str(options), "serial"]) == (str(options), "serial")
    assert sides_of([str(study)]) == sides_of([]) == sides_of([str(study), "horovod/mpi, 2 workers"]) == ()
    for words in (["mpi/mpi", str(study)], ["mpi/mpi", "nowhere.yaml"], ["mpi/mpi"]):
        with golden.raises(ConfigError):
            sides_of(words)


def test_unequal_work_is_refused_with_the_name_and_both_values(golden: Golden) -> None:
    with golden.raises(ConfigError, match=r"75.*50"):
        check_configs(side("horovod/mpi"), side("horovod/mpi,batch=50"))
    with golden.raises(ConfigError):
        check_configs(side("serial"), side("serial,seed=2"))


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


# -------------------------------------------------------------------------------------------------------- the order


def test_the_order_is_balanced_random_and_continues(tmp_path: Path) -> None:
    def order(count: int, *, seed: int = 1, workers: tuple[int, ...] = (1, 2)) -> list[tuple[int, int, str]]:
        found = made(tmp_path, given={"steps": "20", "seed": f"{seed}"}, workers=workers)
        return [(cell.placement.workers, cell.config.repeat, cell.arm) for cell in found._cells(count)]

    cells = order(10)
    assert len(cells) == len(set(cells)) == 40
    for count in (1, 2):
        first = [arm for workers, _, arm in cells if workers == count][::2]
        assert [first[place] != first[place + 1] for place in range(0, 10, 2)] == [True] * 5, "one each of two"
    assert [repeat for _, repeat, _ in cells] == sorted(repeat for _, repeat, _ in cells), "counts are interleaved"
    assert all(one[:2] == other[:2] for one, other in zip(cells[::2], cells[1::2], strict=True)), "pairs stay together"
    assert order(4) == cells[:16]
    assert len({tuple(order(8, seed=seed, workers=(2,))) for seed in range(20)}) > 5
    assert {order(1, seed=seed)[0][0] for seed in range(20)} == {1, 2}


def test_the_sides_of_an_a_against_a_comparison_are_cells_of_their_own(tmp_path: Path) -> None:
    found = made(tmp_path, a="serial", b="serial")
    one, other = found._block(1, 0)

    assert one.key != other.key and one.config == other.config and found.differs == {}
    assert [cell.key[0] for cell in (one, other)] == [one.arm, other.arm]


def test_default_worker_counts(tmp_path: Path) -> None:
    assert made(tmp_path, a="serial", workers=None).workers == (1,)
    assert made(tmp_path, workers=[2, 1, 2]).workers == (1, 2)
    assert made(tmp_path, workers=None).workers == (2,)


# ------------------------------------------------------------------------------------------------------ in turns


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "WARM_S", 0.05)
    monkeypatch.setattr(turns, "SLICE_S", (0.03, 0.03))


def in_turns(out: Path, acts: dict[str, str], **options: Any) -> tuple[Document, str]:
    usual: dict[str, Any] = {"given": {"device": "cpu"}, "turns": True, "blocks": None}
    document, _, said = followed(made(out, **{**usual, **options}), fake_launch(acts))
    return document, said


@pytest.mark.slow
def test_both_sides_of_a_block_train_in_turns_until_the_interval_is_narrow(tmp_path: Path, short: None) -> None:
    acts = {"horovod/mpi/1/0": "turns", "mpi/mpi/1/0": "turns, slow", "*": "turns"}
    found, said = in_turns(tmp_path / "out", acts, precision=0.9)

    assert [block["block"] for block in found["blocks"]] == [1, 2, 3], "three launches at least"
    assert re.search(r"B: mpi/mpi, 1 worker / A: horovod/mpi, 1 worker: \d.* 90 % is reached", said, re.DOTALL)
    for block in found["blocks"]:
        assert block["A"]["steps"] == block["B"]["steps"] > 200
        assert len(block["rounds"]["A"]) == len(block["rounds"]["B"]) >= 3
    rates = found["blocks"][0]["rounds"]
    assert np.median(np.divide(rates["B"], rates["A"])) < 0.9
    assert found["in_turns"] is True and found["steps"]["1"] > 200
    before = starts(tmp_path / "out")
    assert in_turns(tmp_path / "out", acts, precision=0.9)[0]["blocks"] == found["blocks"], "read back"
    assert starts(tmp_path / "out") == before


def test_a_side_that_always_fails_ends_it_early(tmp_path: Path, short: None, golden: Golden) -> None:
    with golden.raises(StudyError, match=r"B: mpi/mpi, 1 worker.*ValueError"):
        in_turns(tmp_path / "fails", {"*": "turns", "mpi/mpi/1/0": "turns, fails", "mpi/mpi/1/1": "turns, fails"})
    assert len(starts(tmp_path / "fails")) == 4, "one block, and one in its place"


def test_what_cannot_alternate_runs_one_after_the_other_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def how(**given: str) -> tuple[int, float, str]:
        found = made(tmp_path, a="serial", b="serial", given={"device": "cpu", **given}, blocks=None, turns=True)
        return found.blocks, found.seconds, found.alone

    assert how() == (5, 5.0, "")
    assert made(tmp_path, blocks=None).alone == "as asked for"
    with golden.raises(ConfigError, match="schedule.*give --steps"):
        how(schedule="cosine")
    with golden.raises(ConfigError, match="give --steps"):
        made(tmp_path, given={})
    monkeypatch.setattr(turns, "WORKER_MB", 1e9)
    blocks, _, why = how(steps="20")
    assert blocks == 10 and "MB of memory" in why
    with golden.raises(ConfigError, match="--until"):
        made(tmp_path, given={}, precision=0.02)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="--steps ends before"):
        made(tmp_path, given={"device": "cpu", "steps": "60"}, turns=True, precision=0.02)


PROGRAM = """
import os, sys
sys.path.insert(0, {tests!r})
from horovod_study.studies import runner
from test_pairs import *

turns.WARM_S, turns.SLICE_S = 0.05, (0.03, 0.03)
moments = []

def counted(what, function):
    def call(*words, **how):
        moments.append(what)
        if f"{{what}} {{moments.count(what)}}" == sys.argv[2]:
            os.kill(os.getpid(), int(sys.argv[3]))
        return function(*words, **how)
    return call

runner.run_sweep = counted("run", runner.run_sweep)
turns.Conductor.give_turns = counted("block", turns.Conductor.give_turns)
found, _ = in_turns(Path(sys.argv[1]), {{"*": "turns"}}, blocks=3, given={{"device": "cpu", "steps": "500"}})
print(len(found["blocks"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_whenever_it_is_interrupted_the_same_command_goes_on(tmp_path: Path, number: int) -> None:
    """Before the first block has ended, between two blocks, and in a block; each time it is begun again."""
    folder = tmp_path / "out"

    def go(moment: str = "") -> tuple[int, str]:
        program = PROGRAM.format(tests=str(Path(__file__).parent))
        words = [sys.executable, "-c", program, str(folder), moment, str(int(number))]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
        until(lambda: marked_processes(str(folder)) == [], "the end of all ranks")
        return ended.returncode, ended.stdout.strip()

    def done() -> dict[str, str]:
        paths = [path for path in folder.glob("*/run.json") if records.read_run(path.parent).status == "done"]
        return {path.parent.name: path.read_text() for path in paths}

    go("block 1")
    assert done() == {} and not records.read_turns(folder)
    go("run 2")  # the first block is run, then all
    first = done()
    assert len(first) == 2
    go("block 1")
    assert done() == first
    assert go() == (0, "3")
    assert first.items() <= done().items() and len(done()) == 6
    launches = {(each.block, each.launch): each.run[-15:-13] for each in records.read_turns(folder)}
    assert sorted(launches.values()) == ["r0", "r1", "r2"], "each block alternated in one launch"


# --------------------------------------------------------------------------------------------------------- the runs


def test_blocks_are_run_and_read_back(tmp_path: Path) -> None:
    out = tmp_path / "out"
    found, result, said = followed(made(out, workers=(1, 2)), fake({}))

    assert result is not None and result.exit_code == 0
    assert len(found["blocks"]) == 4 and found["steps"] == {"1": 20, "2": 20}
    one = next(block for block in found["blocks"] if (block["workers"], block["block"]) == (2, 1))
    assert (one["A"]["samples_per_s"], one["B"]["samples_per_s"]) == (2000.0, 2100.0)
    assert one["A"]["first_losses"] == pytest.approx([0.3, 0.2, 0.1])
    assert found["differs"]["backend"] == ["horovod", "mpi"] and found["differs"]["CYCLE"] == ["1", "5"]
    assert len(starts(out)) == 8 and "[8/8] done" in said
    config = yaml.safe_load((out / "cells" / f"{Path(one['B']['run']).name}.yaml").read_text())
    assert (config["steps"], config["seconds"], config["epochs"], config["seed"]) == (20, None, None, 1)
    assert (config["evaluate_every"], config["checkpoint_at_end"]) == (1e6, False)

    again = start(out, workers=(1, 2), blocks=3)  # the same command with more blocks goes on
    assert len(starts(out)) == 12
    assert [block for block in again["blocks"] if block["block"] < 3] == found["blocks"]
    assert compare(again["blocks"])["workers"][1]["blocks"] == 3
    other = start(out, a="horovod/mpi,cycle_time_ms=0.5")  # another comparison in the same folder has other cells
    assert len(other["blocks"]) == 2 and len(starts(out)) == 16


def test_of_a_block_of_which_one_run_fails_both_are_run_again(tmp_path: Path, golden: Golden) -> None:
    found = start(tmp_path / "once", {"B/1/1": "fails once"}, blocks=3)
    assert [block["block"] for block in found["blocks"]] == [1, 2, 3] and found["dropped"] == []
    assert starts(tmp_path / "once").count("A/1/1") == starts(tmp_path / "once").count("B/1/1") == 2

    twice = {"A/1/1": "fails"}
    found, result, _ = followed(made(tmp_path / "twice", blocks=3), fake(twice))
    assert [block["block"] for block in found["blocks"]] == [1, 3]
    assert result is not None and result.exit_code == 1
    golden(found["dropped"], "rank 1", "1 worker", "repeat 2")
    golden("\n".join(told(found)), "1 worker", "repeat 2")
    assert len(start(tmp_path / "twice", blocks=3)["blocks"]) == 3, "tried again by the same command"


def test_half_a_block_counts_no_more(tmp_path: Path) -> None:
    """Or a run of today would be compared with one of tomorrow."""
    found = start(tmp_path / "out")
    shutil.move(found["blocks"][1]["B"]["run"], tmp_path / "gone")

    assert [block["block"] for block in start(tmp_path / "out")["blocks"]] == [1, 2]
    assert starts(tmp_path / "out").count("A/1/1") == 2 and starts(tmp_path / "out").count("A/1/0") == 1


def test_what_never_works_ends_early(tmp_path: Path, golden: Golden) -> None:
    with golden.raises(StudyError, match=r"mpi/mpi.*1 worker.*rank 1"):
        start(tmp_path / "out", {"B": "fails"}, blocks=10)


@pytest.mark.parametrize(("act", "message"), [("other batch", r"75.*50"), ("other start", "f00")])
def test_records_of_unequal_work_are_refused(tmp_path: Path, act: str, message: str, golden: Golden) -> None:
    with golden.raises(StudyError, match=message):
        start(tmp_path / "out", {"B": act}, blocks=5)
    assert len(starts(tmp_path / "out")) == 2, "before hours are spent"
    with golden.raises(StudyError, match=message):
        start(tmp_path / "later", {"B/1/1": act})


def test_an_altered_record_is_refused(tmp_path: Path, golden: Golden) -> None:
    path = Path(start(tmp_path / "out")["blocks"][1]["A"]["run"]) / records.MANIFEST
    content = json.loads(path.read_text())
    content["effective"]["global_batch"] = 150
    path.write_text(json.dumps(content))

    with golden.raises(StudyError, match=r"block 2.*1 worker.*75"):
        start(tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": (3,)}, "--workers is 3, but this machine offers 2 cores; workers that share a core"),
        ({"workers": (0,)}, "--workers is 0; it must be at least 1"),
        ({"workers": (1, 2), "a": "serial"}, "serial has one worker, but --workers is 2; use 1"),
        ({"blocks": 0}, "--blocks is 0; it must be at least 1"),
        ({"given": {"seconds": "0"}}, "run: --seconds is 0; it must be greater than 0"),
        ({"b": "mpi/mpi,widths=4-7-31"}, "widths is 15-38-197 for A and 4-7-31 for B"),
    ],
)
def test_what_cannot_work_is_refused_before_a_run(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_against_a_says_so(tmp_path: Path, golden: Golden) -> None:
    found = start(tmp_path / "out", a="mpi/mpi")
    golden("\n".join(told({**found, "differs": {}})), "A/A")
    assert "  x          on | 3" in told({**found, "differs": {"reduction": ["auto", None], "x": [True, 3]}})


def test_the_verb_refuses_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "study.yaml").write_text("study: mine\nsweep: {workers: [1]}\n")
    for words in (
        ["mpi/mpi", "mpi/mpi,batch=3"],
        ["mpi/mpi", "mpi/mpi", "--blokcs", "3"],
        ["mpi/mpi", "mpi/mpi", "--hosts", "a,b"],
        [str(tmp_path / "study.yaml"), "mpi/mpi"],
        [str(tmp_path / "study.yaml"), "--batch", "50"],
        [str(tmp_path / "study.yaml"), "--blocks", "5"],
    ):
        assert main(["run", *words]) == 2
        golden(capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.horovod
def test_a_real_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "horovod/mpi", "mpi/mpi", "--workers", "2", "--blocks", "2", "--steps", "900"]
    words += ["--warmup-steps", "3", "--dataset", "4000", "--out", str(tmp_path / "out"), "--json"]

    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differs"]["backend"] == ["horovod", "mpi"]
    assert found["learning"]["alike"] is True
    (count,) = found["workers"]
    assert len(found["blocks"]) == 2
    assert count["ratio"] > 0
    assert found["in_turns"] and count["turns"]["rounds"] >= 2 and count["turns"]["launches"] == count["blocks"] <= 2
    assert [block[side]["steps"] for block in found["blocks"] for side in "AB"] == [903] * 4
    assert (tmp_path / "out" / "comparison.txt").read_text().startswith("A  ")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
