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
    with golden.raises(DataError, match=r"box2/resnet/result_0\.txt.*1 others"):
        api.read_points(tmp_path)
    once = log(samples=1_281_167, batch=8, block_s=1, blocks=1).replace("success", "aborted")
    submitted(tmp_path, 1, once + event(0, "gradient_accumulation_steps", 2), repeats=1)
    submitted(tmp_path, 3, event(0, "global_batch_size", 8), repeats=1)
    doubts = "\n".join(api.read_points(tmp_path).attrs["doubts"])
    for words in (
        "one block is all",
        "was aborted",
        "of 2 batches are accumulated",
        r"left out: 2 logs of no known",
        "box3.*has no train_samples",
    ):
        assert re.search(words, doubts), words
