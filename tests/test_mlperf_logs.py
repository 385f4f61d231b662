"""Result logs of MLPerf Training as points: rates from time stamps, and logs that count something else."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from make.wording import Golden

from horovod_study import api
from horovod_study.cli import main
from horovod_study.errors import DataError


def event(at_s: float, key: str, value: Any = None, **metadata: Any) -> str:
    said = {"namespace": "", "time_ms": round(1e3 * at_s), "key": key, "value": value, "metadata": metadata}
    return f"0: :::MLLOG {json.dumps(said)} trailing words\n"


def log(
    *, samples: int, batch: int, block_s: float, epochs: int = 4, blocks: int = 4, benchmark: str = "resnet"
) -> str:
    """A log whose first block takes twice as long, and whose last one ends early though it declares all epochs."""
    lines = [event(0, "submission_benchmark", benchmark), event(1, "global_batch_size", batch), "no event\n"]
    lines += [event(2, "train_samples", samples), event(2, "tracked_stats", {"throughput": 7.0}, step=1)]
    at = 10.0
    for block in range(blocks):
        took = block_s * (2.0 if block == 0 else 0.1 if block == blocks - 1 else 1.0)
        begin = event(at, "block_start", first_epoch_num=1 + epochs * block, epoch_count=epochs)
        lines += [begin, begin, event(at + 0.5, "epoch_start", epoch_num=1), event(at + 1, "epoch_stop", epoch_num=1)]
        at += took
        lines += [event(at, "block_stop", first_epoch_num=1 + epochs * block), event(at, "eval_start")]
        at += 5.0
    return "".join([*lines, event(at, "run_stop", status="success")])


def submitted(root: Path, nodes: int, text: str, *, repeats: int = 2, benchmark: str = "resnet", **told: Any) -> None:
    system = {"number_of_nodes": str(nodes), "accelerators_per_node": "8", "accelerator_model_name": "A100", **told}
    (root / "Org/systems").mkdir(parents=True, exist_ok=True)
    (root / f"Org/systems/box{nodes}.json").write_text(json.dumps({"framework": "MXNet 1", **system}))
    folder = root / f"Org/results/box{nodes}/{benchmark}"
    folder.mkdir(parents=True)
    for repeat in range(repeats):
        (folder / f"result_{repeat}.txt").write_bytes(text.encode() + b"\xe2 no UTF-8\n")


def test_a_folder_of_logs_is_a_points_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    for nodes in (1, 2, 4):
        submitted(tmp_path, nodes, log(samples=1_281_167, batch=3264, block_s=100 / nodes**0.9))
    points = api.read_points(tmp_path)

    assert list(points["workers"]) == [8, 8, 16, 16, 32, 32] and list(points["repeat"]) == [0, 1] * 3
    assert list(points["samples_per_s"]) == pytest.approx(
        [1_281_167 * 4 / 100 * n**0.9 for n in (1, 1, 2, 2, 4, 4)], rel=1e-4
    )
    assert list(points["batch_size"]) == [408, 408, 204, 204, 102, 102] and set(points["workers_per_node"]) == {8}
    assert set(points["series"]) == {"Org resnet A100 mxnet"} and points.attrs["doubts"] == ()
    assert list(api.read_points(tmp_path / "Org/results/box2")["nodes"]) == [2, 2]
    assert points.attrs["read"].startswith("6 MLPerf logs, 1 series")
    assert main(["report", str(tmp_path), "--tables", "--out", str(tmp_path / "out")]) == 0
    assert "Org resnet A100 mxnet" in (tmp_path / "out/points.csv").read_text()
    assert main(["fit", str(tmp_path), "--columns", "workers=GPUs"]) == 2
    golden(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("benchmark", "samples", "batch", "counted", "words"),
    [
        ("ssd", 4572, 256, 4572 * 256, "train_samples 4,572 counts batches, of 256 samples"),
        ("maskrcnn", 20_000, 272, 117_266, "train_samples 20,000 is no epoch of COCO: 117,266 images are taken"),
        ("resnet", 5000, 272, 5000, "train_samples 5,000 is none of the known data sets, 1281167"),
        ("bert", 3_151_872, 3072, 3_151_872, ""),
    ],
)
def test_what_is_not_a_number_of_samples_is_seen(
    tmp_path: Path, benchmark: str, samples: int, batch: int, counted: int, words: str
) -> None:
    submitted(tmp_path, 1, log(samples=samples, batch=batch, block_s=50, benchmark=benchmark), benchmark=benchmark)
    points = api.read_points(tmp_path)

    assert points["samples_per_s"].iloc[0] == pytest.approx(counted * 4 / 50, rel=1e-4)
    assert [words in doubt for doubt in points.attrs["doubts"]] == ([True] if words else [])


def test_logs_that_cannot_count_are_named_and_left_out(tmp_path: Path, golden: Golden) -> None:
    with golden.raises(DataError, match=r"result_\*"):
        api.read_points(tmp_path)
    submitted(tmp_path, 2, log(samples=10, batch=1, block_s=1), accelerators_per_node="0")
    with golden.raises(DataError, match=r"box2/resnet/result_0\.txt.*1 more log"):
        api.read_points(tmp_path)
    once = log(samples=1_281_167, batch=8, block_s=1, blocks=1).replace("success", "aborted")
    submitted(tmp_path, 1, once + event(0, "gradient_accumulation_steps", 2), repeats=1)
    submitted(tmp_path, 3, event(0, "global_batch_size", 8), repeats=1)
    doubts = "\n".join(api.read_points(tmp_path).attrs["doubts"])
    for words in (
        "one block is all",
        "was aborted",
        "of 2 batches are accumulated",
        "left out: .*box2/resnet/result_1.txt: .*how many accelerators",
        "box3.*has no block or epoch",
    ):
        assert re.search(words, doubts), words


def run(benchmark: str, batch: int, *events: tuple[float, str, dict[str, Any]], **values: Any) -> str:
    """A log of a run: what it says once, then its events at their seconds."""
    said = {"submission_benchmark": benchmark, "global_batch_size": batch, **values}
    lines = [event(0, key, value) for key, value in said.items()]
    return "".join([*lines, *(event(10 + at, key, **metadata) for at, key, metadata in events)])


def blocks(
    *ends: tuple[float, dict[str, Any], dict[str, Any]], unit: str = "block", wait: float = 5.0, after: Any = None
) -> list[tuple[float, str, dict[str, Any]]]:
    """Blocks of (seconds, what the start says, what the stop says), with evaluations between, which say `after`."""
    at, events = 0.0, []
    for place, (seconds, start, stop) in enumerate(ends):
        told = {} if after is None else {"samples_count": after[place]}
        events += [(at, f"{unit}_start", start), (at + seconds, f"{unit}_stop", stop)]
        events += [(at + seconds, "eval_start", told), (at + seconds + wait, "eval_stop", told)]
        at += seconds + wait
    return events


def n(count: float, **more: Any) -> dict[str, Any]:
    return {"samples_count": count, **more}


def e(number: float) -> dict[str, Any]:
    return {"epoch_num": number}


RUNS_ON = [(840.0, n(0), n(1600)), (200.0, n(1600), n(2000)), (200.0, n(2000), n(2400))]
OF_BLOCK = [
    (840.0, n(1600, step=0), n(1600, step=200)),
    *[(200.0, n(400, step=s), n(400, step=s + 50)) for s in (200, 250)],
]
NOTHING: list[tuple[float, dict[str, Any], dict[str, Any]]] = [(840.0, {}, {}), (200.0, {}, {}), (200.0, {}, {})]
STOP = (2000.0, "run_stop")
T = 2048 * 512 * 25
"""Tokens of 25 steps."""
OF_TOKENS: list[tuple[float, dict[str, Any], dict[str, Any]]] = [
    (seconds, {"epoch_count": T}, {}) for seconds in (200.0, 125.0, 125.0)
]


def epochs(*ends: tuple[float, float, float]) -> list[tuple[float, str, dict[str, Any]]]:
    return blocks(*((seconds, e(start), e(stop)) for seconds, start, stop in ends), unit="epoch", wait=0)


def gnn(*events: tuple[float, str, dict[str, Any]]) -> str:
    return run("gnn", 8, *events, train_samples=9_000_000)


def evaluated(unit: str, start: dict[str, Any], stop: dict[str, Any], *ends: tuple[float, float]) -> Any:
    """One block or epoch of 600 s with evaluations at (second, epoch) in it."""
    at = [(second, key, e(number)) for second, number in ends for key in ("eval_start", "eval_stop")]
    return (0.0, f"{unit}_start", start), *at, (600.0, f"{unit}_stop", stop)


def of_ranks(ranks: int, seconds: float = 10.0, late: float = 0.1) -> list[tuple[float, str, dict[str, Any]]]:
    """Blocks of which other ranks print their stop when the next one has begun."""
    events = []
    for place in range(5):
        about, at = {"first_epoch_num": place, "epoch_count": 1}, place * seconds
        events += [(at, "block_start", about), (at + seconds, "block_stop", {"first_epoch_num": place})]
        for rank in range(1, ranks):
            events += [(at + late * rank, "block_start", about)]
            events += [(at + seconds + late * rank, "block_stop", {"first_epoch_num": place})]
    return sorted(events, key=lambda each: each[0])


def of_runs(*slower: float) -> list[tuple[float, str, dict[str, Any]]]:
    """Runs in one log, of which every step takes so many times as long."""
    events: list[tuple[float, str, dict[str, Any]]] = []
    for place, times in enumerate(slower):
        at, own = 1000.0 * place, of_ranks(1, seconds=10 * times)
        events += [(at, "run_start", {}), *((at + second, key, told) for second, key, told in own)]
        events += [(at + 900, "run_stop", {})] * 2
    return events


ONCE = {"epoch_count": 1}
IN_BERT = evaluated("block", ONCE, {}, *((150.0 * i, 600_000.0 * i) for i in (1, 2, 3, 4)))


@pytest.mark.parametrize(
    ("text", "rate", "doubt"),
    [
        # samples are counted: on and on, of each block, at the begin alone or the end, in evaluations, as runs end
        (run("lora", 8, *blocks(*RUNS_ON), train_samples=4000), 2.0, ""),
        (run("lora", 8, *blocks(*OF_BLOCK), train_samples=4000), 2.0, ""),
        (run("lora", 8, *blocks(*((s, {"step": a["step"]}, b) for s, a, b in OF_BLOCK))), 2.0, ""),
        (run("lora", 8, *blocks(*NOTHING, after=(1600, 2000, 2400)), train_samples=4000), 2.0, ""),
        (run("lora", 8, *blocks(*((s, a, {}) for s, a, _ in RUNS_ON)), (*STOP, n(2400))), 2.0, ""),
        (run("lora", 8, *blocks(*((s, {}, b) for s, _, b in RUNS_ON))), 2.0, ""),
        (run("lora", 8, *blocks(*((s, a, a) for s, a, _ in RUNS_ON)), (*STOP, n(2400))), 2.0, ""),
        (run("lora", 8, *blocks(NOTHING[1]), (*STOP, n(400))), 2.0, "one block is all"),
        # epochs: whole ones by any name, and parts
        (gnn(*epochs((72, 1, 0.8))), 100_000, "one epoch is all"),
        (gnn(*epochs((72, 0, 0.8))), 100_000, "one epoch is all"),
        (gnn(*epochs((15, 1, 1.0), (3, 2, 1.2))), 600_000, ""),
        (gnn(*epochs((15, 0, 0), (3, 1, 1.2))), 600_000, ""),
        (gnn(*epochs((15, 0, 1), (15, 1, 2))), 600_000, ""),
        (gnn(*epochs((20, 0, 0), (15, 1, 1), (15, 2, 2), (15, 3, 3))), 600_000, ""),
        (gnn(*epochs((20, 5, 5), (3, 6, 5.2))), 600_000, ""),
        (gnn(*epochs((15, 1, 1), (3, 2, 2)), (*STOP, e(1.2))), 600_000, ""),
        (gnn(*epochs((15, 1, 1)), (15, "epoch_start", e(2)), (18, "run_stop", e(1.2))), 600_000, ""),
        (run("gnn", 8, *blocks((9, {"epoch_count": 0.5}, {})), train_samples=9000), 500, "one block"),
        (gnn(*blocks((15, {"epoch_count": 1}, {}), (3, {"epoch_count": 1}, e(1.2)))), 600_000, ""),
        (gnn(*blocks((15, {"epoch_count": 1}, {}), (3, {"epoch_count": 1}, {})), (*STOP, e(1.2))), 600_000, ""),
        # a run that ended early is known by its evaluations
        (run("unet3d", 8, *blocks((200, {"epoch_count": 2}, {}), (50, {"epoch_count": 2}, {})),
             (260, "eval_start", e(2.5)), train_samples=168), 1.68, "at epoch 2.5"),
        (gnn(*evaluated("epoch", e(1), e(1), (60, 0.2), (195, 0.65), (600, 0.8))), 12_000, "at epoch 0.8|one epoch"),
        (gnn(*evaluated("epoch", e(0), e(0), (60, 0.2), (300, 0.4))), 12_000, "at epoch 0.4|one epoch"),
        (gnn(*evaluated("epoch", e(0), e(0), (300, 0.5), (600, 1))), 15_000, "one epoch is all"),
        (gnn(*evaluated("block", {"epoch_count": 20}, {}, (60, 1), (600, 10))), 150_000, "at epoch 10|one block"),
        (gnn(*evaluated("block", {"epoch_count": 20}, {}, (60, 2), (570, 19))), 300_000, "one block is all"),
        (gnn(*blocks(*[(60, {"epoch_count": 4}, {})] * 2), (70, "eval_start", e(1))), 600_000, ""),
        (run("dlrm", 8, *evaluated("epoch", e(0), n(6000, **e(0)), (300, 0.4))), 10, "one epoch"),
        # BERT counts samples
        (run("bert", 448, *IN_BERT, train_samples=156_725_653), 4000, "2,400,000|are samples|one block"),
        (run("bert", 448, *blocks(*[(60, {"epoch_count": 458_752}, {})] * 2), max_sequence_length=512), 7645.87,
         "epochs are samples"),
        (run("bert", 448, *blocks(*[(60, {"epoch_count": 500_000}, {})] * 2), max_sequence_length=512), 8333.33,
         "epochs are samples"),
        # ranks that are late
        (gnn(*of_ranks(4)), 900_000, ""),
        (gnn(*of_runs(1.0, 1.0)), 900_000, ""),
        # tokens are called samples, and are not
        (run("llm", 16, *blocks(*((200, n(i * 400 * 8192), n((i + 1) * 400 * 8192)) for i in range(3))),
             max_sequence_length=8192), 2, "its samples are tokens"),
        (run("llm", 1152, *blocks(*((200, n(i * 46080), n((i + 1) * 46080)) for i in range(3))),
             max_sequence_length=8192), 230.4, ""),
        # tokens are called epochs
        (run("gpt3", 512, *blocks(*OF_TOKENS), max_sequence_length=2048), 102.4, "2,048"),
        (run("llm", 512, *epochs((200, 0, T), (125, T, 2 * T)), max_sequence_length=2048), 102.4, "2,048"),
    ],
)  # fmt: skip
def test_what_a_block_trained(tmp_path: Path, text: str, rate: float, doubt: str) -> None:
    submitted(tmp_path, 1, text, repeats=1)
    points = api.read_points(tmp_path)
    assert points["samples_per_s"].iloc[0] == pytest.approx(rate, rel=1e-4)
    words = doubt.split("|") if doubt else []
    assert len(words) == len(points.attrs["doubts"])
    assert all(word in each for word, each in zip(words, points.attrs["doubts"], strict=True))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (run("lora", 8, *blocks(*NOTHING), train_samples=4000), "no block says how many samples or epochs"),
        (run("lora", 8, *blocks(*((s, a, a) for s, a, _ in RUNS_ON[:1])), train_samples=4000), "no block says"),
        (run("lora", 8, *blocks((200.0, n(400), n(400))), train_samples=4000), "no block says"),
        (run("lora", 8, *blocks(*NOTHING), (*STOP, n(2400)), train_samples=4000), "no block says"),
        (run("gpt3", 512, *epochs((9, 0, T)), train_samples=T), "no training has as many"),
        (run("gpt3", 512, *epochs((9, 0, T + 7)), max_sequence_length=2048), "no training has as many"),
        (
            run("llm", 8, *blocks((9e3, {"epoch_count": 2**18}, {})), max_sequence_length=8192),
            "no training has as many",
        ),
        (gnn(*of_runs(1.0, 2.0)), "is of several runs, with 900,000 and with 450,000 a second; give each"),
        (run("llm", 8, *IN_BERT, train_samples=10**6), "no training has as many"),
        (
            run("llm", 8, *blocks((900, n(0), n(2**18))), max_sequence_length=2048),
            "262,144 may be samples or tokens",
        ),
        (run("gpt3", 8, *epochs((9, 0, 4000)), train_samples=10**9), "no worker does more than 1e9"),
        (run("gnn", 8, *epochs((9, 0, 0.5))), "has no train_samples"),
        (run("gnn", 8, (1, "eval_start", e(0))), "no block or epoch with begin and end"),
    ],
)
def test_a_log_that_does_not_say_what_it_trained_is_left_out(tmp_path: Path, text: str, words: str) -> None:
    submitted(tmp_path, 2, text, repeats=1)
    with pytest.raises(DataError, match=words):
        api.read_points(tmp_path)
    submitted(tmp_path, 1, run("lora", 8, *blocks(*RUNS_ON)), repeats=1)
    left_out = api.read_points(tmp_path).attrs["doubts"]
    assert len(left_out) == 1 and words in left_out[0] and "box2" in left_out[0]


def test_a_speedup_that_cannot_be_names_the_logs(tmp_path: Path, golden: Golden) -> None:
    for nodes, seconds in ((1, 72.0), (8, 1.0)):
        submitted(tmp_path, nodes, gnn(*epochs((seconds, 0, 0.8))), repeats=1)
    golden(api.read_points(tmp_path).attrs["doubts"][-1], "box8", "box1")


def test_one_log_is_asked_for_its_accelerators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    text = run("resnet", 3264, *epochs((30, 0, 0), (28, 1, 1), (28, 2, 2)), train_samples=1_281_167)
    rate = 1_281_167 / 28
    (tmp_path / "result_0.txt").write_text(text)
    monkeypatch.chdir(tmp_path)
    with golden.raises(DataError, match="MLPerf Training.*systems/SYSTEM.json.*MLCommons"):
        api.read_points("result_0.txt")
    point = api.read_points("result_0.txt@2x8").iloc[0]
    assert (point["workers"], point["nodes"], point["samples_per_s"]) == (16, 2, pytest.approx(rate))
    counts = event(1, "number_of_nodes", 2) + event(1, "accelerators_per_node", 4)
    (tmp_path / "other.log").write_text(counts + text)
    assert api.read_points("other.log")["workers"].tolist() == [8]
    submitted(tmp_path, 4, text, repeats=1)
    assert api.read_points("Org/results/box4/resnet/result_0.txt")["workers"].tolist() == [32]
