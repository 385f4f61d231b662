"""Logs of training programs as points: which number is the rate, of whom, and how many workers there were."""

import re
from pathlib import Path

import pytest
from make.wording import Golden

from horovod_study import api
from horovod_study.analysis.importers import recognised
from horovod_study.cli import main
from horovod_study.errors import DataError

HOROVOD = """[1,0]<stdout>:Model: ResNet50
[1,0]<stdout>:Batch size: 64
[1,0]<stdout>:Number of {kind}s: {n}
[1,0]<stdout>:Running benchmark...
[1,0]<stdout>:Iter #0: 301.2 img/sec per {kind}
[1,0]<stdout>:Iter #1: 299.8 img/sec per {kind}
[1,0]<stdout>:Iter #2: 300.4 img/sec per {kind}
[1,0]<stdout>:Img/sec per {kind}: 300.5 +-1.4
[1,0]<stdout>:Total img/sec on {n} {kind}(s): {total} +-5.6
"""


def horovod(n: int = 4, total: float = 1201.9, kind: str = "GPU") -> str:
    return HOROVOD.format(n=n, total=total, kind=kind)


def megatron(ms: float = 400.0, batch: int | None = 32, head: str = "", unit: str = "ms") -> str:
    """Four reports of which the first has the start-up."""
    line = "{at} iteration {i:8d}/    1000 | consumed samples: {i:8d} | elapsed time per iteration ({unit}): {time} |"
    line += (
        " learning rate: 1.0E-04 |" + (f" global batch size: {batch:5d} |" if batch else "") + " lm loss: 7.3E+00 |\n"
    )
    times = (ms * 2.25, ms, ms + 1.2, ms - 0.4)
    values = [time / (1e3 if unit == "s" else 1) for time in times]
    return head + "".join(
        line.format(at=" [2025-02-03 10:00:00]", i=10 * i, time=f"{value:.4f}", unit=unit)
        for i, value in enumerate(values, 1)
    )


TF = """TensorFlow:  1.14
Model:       resnet101
Batch size:  128 global
             64 per device
Devices:     ['{device}:0', '{device}:1']
Step\tImg/sec\ttotal_loss
1\timages/sec: 128.0 +/- 0.0 (jitter = 0.0)\t9.1
1\timages/sec: 127.8 +/- 0.0 (jitter = 0.0)\t9.1
10\timages/sec: 132.2 +/- 0.2 (jitter = 0.1)\t9.1
10\timages/sec: 132.2 +/- 0.2 (jitter = 0.1)\t9.0
"""
TITAN = """[rank0]:[titan] 2025-07-21 15:57:40,774 - root - INFO - {mesh}
[rank0]:[titan] 2025-07-21 15:57:40,838 - root - INFO - Trainer is initialized with local batch size 8, global batch \
size 64, gradient accumulation steps 1, sequence length 2048, total steps 10 (warmup 2)
[rank0]:[titan] 2025-07-21 15:57:42,774 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.0 \
 memory: 1GiB  \x1b[34mtps: 31  \x1b[36mtflops: 3.15  mfu: 0.3%\x1b[39m
[rank1]:[titan] 2025-07-21 15:57:42,774 - root - INFO - step:  1  loss:  8.0  memory: 1GiB  tps: 31  tflops: 3.15
[rank0]:[titan] 2025-07-21 15:57:43,242 - root - INFO - step: 10  loss:  4.6  memory: 1GiB  tps: 5,432  tflops: 3.59
[rank1]:[titan] 2025-07-21 15:57:43,242 - root - INFO - step: 10  loss:  4.6  memory: 1GiB  tps: 5,431  tflops: 3.59
[rank0]:[titan] 2025-07-21 15:57:43,713 - root - INFO - step: 20  loss:  4.4  memory: 1GiB  tps: 5,433  tflops: 3.57
"""
MESH = {
    "Building 1-D device mesh with ['dp_shard'], [8]": 8,
    "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]": 8,
    "Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=8, cp=1, tp=1, ep=4, etp=1": 16,
}
DEEPSPEED = """[2024-07-17 19:53:00,000] [INFO] [launch.py:247:main] dist_world_size={n}
[2024-07-17 19:53:10,000] [INFO] [timer.py:258:stop] epoch=0/micro_step=40/global_step=10, \
RunningAvgSamplesPerSec=9.1, CurrSamplesPerSec=8.5, MemAllocated=0.02GB, MaxMemAllocated=0.97GB
[2024-07-17 19:53:24,981] [INFO] [timer.py:258:stop] epoch=0/micro_step=80/global_step=20, \
RunningAvgSamplesPerSec=16.124955167964504, CurrSamplesPerSec=16.8, MemAllocated=0.02GB, MaxMemAllocated=0.97GB
[2024-07-17 19:53:34,981] [INFO] [timer.py:258:stop] epoch=0/micro_step=120/global_step=30, \
RunningAvgSamplesPerSec=16.2, CurrSamplesPerSec=16.6, MemAllocated=0.02GB, MaxMemAllocated=0.97GB
"""
OLD_DEEPSPEED = """[2022-03-11 02:06:58,985] [INFO] [timer.py:189:stop] 0/40, SamplesPerSec=83.4, MemAllocated=0.26GB
[2022-03-11 02:07:14,130] [INFO] [timer.py:189:stop] 0/50, SamplesPerSec=83.7, MemAllocated=0.26GB
"""
MAXTEXT = """Num_devices: 4, shape (1, 1, 4, 1)
completed step: 0, seconds: 45.0, TFLOP/s/device: 16.9, Tokens/s/device: 1092.267, total_weights: 196608, loss: 10.9
completed step: 1, seconds: 5.667, TFLOP/s/device: 134.924, Tokens/s/device: 8672.758, total_weights: 196608, loss: 10.4
completed step: 2, seconds: 5.667, TFLOP/s/device: 134.924, Tokens/s/device: 8672.758, total_weights: 196608, loss: 10.3
"""
LIGHTNING = (
    "All distributed processes registered. Starting with 2 processes\n"
    + "\rEpoch 0:   0%|          | 0/18 [00:00<?, ?it/s]\rEpoch 0:  50%|█    | 9/18 [00:09<00:09,  1.00it/s, v_num=3]"
    + "".join(
        f"\rEpoch {epoch}: 100%|██████| 18/18 [00:09<00:00,  {rate}, loss=1.2, v_num=3]\n"
        for epoch, rate in enumerate(("1.20it/s", "2.00it/s", "2.10it/s", "1.90it/s"))
    )
)
RICH = "\n".join(
    f"Epoch {e}/3 ━━━━━━━━ 100/100 0:00:10 • 0:00:00 {r}it/s v_num: 0.000" for e, r in enumerate((5, 9.8, 9.8))
)
NEMO = "".join(
    f"0: Training epoch 0, iteration {i}/99 | lr: 5.6e-06 | global_batch_size: 32 | global_step: {i} | "
    f"reduced_train_loss: 2.778 | train_step_timing in s: {s} | consumed_samples: 928\n"
    for i, s in enumerate((5.0, 0.16, 0.16))
)
NEOX = " samples/sec: {} | iteration {:8d}/   10000 | elapsed time per iteration (ms): 4103.1 | lm_loss: 1.1E+01 |\n"
TIMM = "Process 0, total 8, device cuda:0.\n" + "".join(
    f"Train: 0 [{i:4d}/1251 ( {i}%)]  Loss: 6.9 (6.9)  Time: 0.306s, {r}/s  (0.432s, 2370.92/s)  LR: 1.0e-04\n"
    for i, r in enumerate((900.1, 3345.5, 3345.5))
)
VISION = "Namespace(amp=False, rank=0, world_size=2)\n" + "".join(
    f"Epoch: [0]  [{i:3d}/313]  eta: 0:12:14  lr: 0.1  img/s: {r}  loss: 7.1 (7.1)  time: 0.2\n"
    for i, r in enumerate((12.5, 250.0, 250.0))
)
HF = "{'train_runtime': 71.5487, 'train_samples_per_second': 6.709, 'train_steps_per_second': 0.839, 'epoch': 4.64}\n"


@pytest.mark.parametrize(
    ("text", "name", "workers", "rate", "unit", "batch"),
    [
        (horovod(), "a.log", 4, 1201.9, "samples/s", 64),
        (horovod(kind="CPU"), "a.log", 4, 1201.9, "samples/s", 64),
        (horovod().rpartition("[1,0]<stdout>:Total")[0], "a.log", 4, 4 * 300.4, "samples/s", 64),
        (horovod().replace("[1,0]<stdout>:", "0: "), "4gpus.log", 4, 1201.9, "samples/s", 64),
        (TF.format(device="horovod/gpu") + "total images/sec: 264.11\n" * 2, "a.log", 2, 264.11, "samples/s", 64),
        (TF.format(device="horovod/gpu"), "a.log", 2, 264.4, "samples/s", 64),
        (TF.format(device="/gpu"), "a.log", 2, 132.2, "samples/s", 64),
        (TF.format(device="/job:worker/task:0/gpu") + "total images/sec: 48.05\n", "n8.txt", 8, 48.05, "samples/s", 64),
        (megatron(), "8gpus.log", 8, 80, "samples/s", 4),
        (megatron(unit="s"), "n8.txt", 8, 80, "samples/s", 4),
        (
            megatron(head="using world size: 16, data-parallel size: 4, tensor-model-parallel size: 4\n"),
            "a.log",
            16,
            80,
            "samples/s",
            2,
        ),
        (
            megatron(head="  global_batch_size ......... 64\n  world_size ....... 4\n", batch=None),
            "a",
            4,
            160,
            "samples/s",
            16,
        ),
        (
            megatron(400) + megatron(200, batch=64).replace("iteration       ", "iteration      9"),
            "np4.out",
            4,
            319.05,
            "samples/s",
            16,
        ),
        (megatron(batch=None), "x4.log", 4, 10, "batches/s", None),
        ("".join(NEOX.format(r, i) for i, r in enumerate((1.1, 7.8, 7.8))), "x4.log", 4, 7.8, "samples/s", None),
        (DEEPSPEED.format(n=8), "a.log", 8, 16.7, "samples/s", None),
        (OLD_DEEPSPEED, "8ranks.log", 8, 83.7, "samples/s", None),
        (MAXTEXT, "a.log", 4, 4 * 8672.758, "tokens/s", None),
        (re.sub("Tokens[^,]*, total[^,]*, ", "", MAXTEXT), "a.log", 4, 4 / 5.667, "batches/s", None),
        (MAXTEXT.replace("Tokens", "Samples/s/device: 0.5, Tokens"), "a.log", 4, 2, "samples/s", None),
        *[(TITAN.format(mesh=mesh), "a.log", n, n * 5432, "tokens/s", 64 * 2048 / n) for mesh, n in MESH.items()],
        (TITAN.format(mesh="").replace("tps", "wps"), "titan_8gpus.txt", 8, 8 * 5432, "tokens/s", 16384),
        (LIGHTNING, "a.log", 2, 4.0, "batches/s", None),
        (LIGHTNING.replace("2.00it/s", "1.00s/it").replace("2.10it/s", "1.00s/it"), "a", 2, 2.0, "batches/s", None),
        (RICH, "gpus-4.log", 4, 39.2, "batches/s", None),
        (NEMO, "16gcds.log", 16, 200, "samples/s", 2),
        (TIMM, "a.log", 8, 3345.5, "samples/s", None),
        (VISION, "a.log", 2, 500, "samples/s", None),
        (HF, "2gpus.log", 2, 6.709, "samples/s", None),
        (HF.replace("6.709", "'6.709'"), "2gpus.log", 2, 6.709, "samples/s", None),
        ("***** train metrics *****\n  train_samples_per_second =      6.709\n", "2gpus", 2, 6.709, "samples/s", None),
    ],
)
def test_a_log_is_a_point(
    tmp_path: Path, text: str, name: str, workers: int, rate: float, unit: str, batch: float | None
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    read = api.read_points(path)
    point = read.iloc[0]

    assert len(read) == 1 and (point["workers"], read.attrs["unit"]) == (workers, unit)
    assert point["samples_per_s"] == pytest.approx(rate, rel=1e-3)
    assert point.get("batch_size") == (None if batch is None else pytest.approx(batch))
    assert f"{rate:,.6g}"[:4] in read.attrs["read"]
    assert api.read_points(f"{path}@{workers}").equals(read)


@pytest.mark.parametrize(
    "before", ["[1,3]<stderr>:", "[rank7]:", " 3: ", "node1: ", "\x1b[32mINFO|2024-12-07T13:55:20|x.py|27|\x1b[0m "]
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\nother words: 7\n\n"])
def test_what_launchers_put_before_a_line_does_not_matter(tmp_path: Path, before: str, end: str) -> None:
    texts = (
        horovod(),
        TF.format(device="horovod/gpu"),
        megatron(),
        NEOX.format(5.0, 1),
        DEEPSPEED.format(n=8),
        MAXTEXT,
    )
    for place, text in enumerate((*texts, TITAN.format(mesh=next(iter(MESH))), NEMO, TIMM, VISION, RICH, LIGHTNING)):
        plain, other = tmp_path / f"{place}/8gpus.log", tmp_path / f"{place}-{place}/8gpus.log"
        for path in (plain, other):
            path.parent.mkdir()
        plain.write_text(text, encoding="utf-8")
        lines = text.replace("\r", "\n").splitlines()
        other.write_bytes("".join(f"{before}{line}{end}" for line in lines).encode())
        assert api.read_points(other).equals(api.read_points(plain)), text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (megatron(), "megatron.txt"),
        (megatron(), "rank3.log"),
        (megatron(), "gpu0.log"),
        (megatron(), "2nodes_8gpus.log"),
        (megatron(), "slurm-12345.out"),
        (megatron(), "n8_n16.log"),
        (megatron(), "n2_g4.log"),
        (megatron(), "n2-gpu4.log"),
        (megatron(), "12345/out.log"),
        (megatron(), "2024/out.log"),
        (megatron(), "0/out.log"),
        (megatron(), "n0.log"),
        (megatron(), "007/out.log"),
        (TITAN.format(mesh=""), "titan.log"),
        (LIGHTNING.partition("\n")[2], "lightning.log"),
        (horovod(2) + horovod(4), "two.log"),
    ],
)
def test_how_many_workers_there_were_is_asked(tmp_path: Path, text: str, name: str, golden: Golden) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    with golden.raises(DataError, match=re.escape(name)):
        api.read_points(tmp_path if "/" in name else path)
    placed = api.read_points(f"{path}@2x4" if name != "two.log" else f"{path}@4").iloc[0]
    assert placed["workers"] == (8 if name != "two.log" else 4) and placed.get("nodes", 2) == 2


def titan(rate: float, steps: range) -> str:
    return "".join(f"step: {step}  loss: 2.1  tps: {rate if step > steps[0] else 30}\n" for step in steps)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (horovod(4, 1200.0) + horovod(4, 800.0), "800 and with 1,200"),
        (megatron(400.0) + megatron(800.0), "40 and with 80"),
        (titan(5000, range(1, 20)) + titan(2500, range(1, 9)), "2,500 and with 5,000"),
        (titan(5000, range(1, 20)) + titan(2500, range(12, 30)), "2,500 and with 5,000"),
        (OLD_DEEPSPEED + OLD_DEEPSPEED.replace("=8", "=6"), "63.7 and with 83.7"),
        (HF + HF.replace("6.709", "9.1"), "6.709 and with 9.1"),
    ],
)
def test_two_runs_in_one_log_are_refused(tmp_path: Path, text: str, values: str) -> None:
    (tmp_path / "4gpus.log").write_text(text)
    with pytest.raises(DataError, match=f"several runs.*{values} a second; give each run a log of its own"):
        api.read_points(tmp_path / "4gpus.log")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        (titan(5000, range(1, 20)) + titan(5100, range(12, 30)), 4 * 5100),  # resumed
        ("".join(line * 2 for line in titan(5000, range(1, 20)).splitlines(keepends=True)), 4 * 5000),  # of two ranks
        (titan(5000, range(1, 20)) * 2, 4 * 5000),  # one rank after the other
        (VISION + VISION.replace("[0] ", "[1] ").replace("250.0", "400.0"), 2 * 400),  # epochs
        (horovod(4, 1200.0) + horovod(4, 1210.0), 1205),
    ],
)
def test_a_run_that_reports_again_is_one(tmp_path: Path, text: str, rate: float) -> None:
    (tmp_path / "4gpus.log").write_text(text)
    assert api.read_points(tmp_path / "4gpus.log")["samples_per_s"].tolist() == [pytest.approx(rate)]


def test_what_was_said_of_the_workers_is_compared(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "8gpus.log").write_text(horovod(4))
    with golden.raises(DataError, match="4 workers.*8 were given"):
        api.read_points(f"{tmp_path / '8gpus.log'}@8")
    golden(api.read_points(tmp_path / "8gpus.log").attrs["doubts"])


def test_a_folder_of_logs_is_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    rates = {1: 310.0, 2: 610.0, 4: 1180.0, 8: 2200.0}
    for n, rate in rates.items():
        (tmp_path / f"logs/{n}").mkdir(parents=True)
        (tmp_path / f"logs/{n}/train.log").write_text(horovod(n, rate))
    (tmp_path / "logs/notes.txt").write_text("nothing\n")
    read = api.read_points(tmp_path / "logs")
    assert dict(zip(read["workers"], read["samples_per_s"], strict=True)) == rates
    golden([read.attrs["read"], *read.attrs["doubts"]])

    assert main(["fit", str(tmp_path / "logs")]) == 0
    assert "Horovod's synthetic benchmark ResNet50" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "logs"), "--tables", "--out", str(tmp_path / "out")]) == 0
    assert "2200" in (tmp_path / "out/runs.csv").read_text()


def test_folders_whose_numbers_are_counts(tmp_path: Path) -> None:
    for name in ("8", "1024", "rerun/64"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "out.log").write_text(megatron())
    read = api.read_points(tmp_path)
    assert read["workers"].tolist() == [8, 64, 1024]
    assert [doubt.split(":")[0] for doubt in read.attrs["doubts"]] == [f"Megatron-LM, {n} workers" for n in (64, 1024)]
    assert "a batch of 0.5 for each worker" in read.attrs["doubts"][0]


@pytest.mark.parametrize(
    ("names", "rows", "told"),
    [
        (("rank0", "rank1", "rank2"), 1, ("2 logs not used: of further ranks or streams of a run",)),
        (("run1/worker_0", "run1/worker_1", "run2/worker_0"), 2, ("1 log not used",)),
        (("stdout", "stderr"), 1, ("1 log not used",)),
        (("run1", "run2", "about"), 3, ()),
    ],
)
def test_logs_of_the_ranks_are_one_run(tmp_path: Path, names: tuple[str, ...], rows: int, told: tuple[str]) -> None:
    for place, name in enumerate(names):
        path = tmp_path / f"8/{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(megatron(400.0 + place / 10))
    read = api.read_points(tmp_path)
    assert read["workers"].tolist() == [8] * rows and read["repeat"].tolist() == [*range(rows)]
    assert len(told) == len(read.attrs["doubts"]) and all(map(str.startswith, read.attrs["doubts"], told))


def test_logs_of_different_batches_and_programs_are_series(tmp_path: Path) -> None:
    for n in (2, 4):
        for batch in (32, 64):
            text = megatron(400.0 * batch / n, batch=batch, head=f"using world size: {n}\n")
            (tmp_path / f"a{n}-{batch}.log").write_text(text)
        (tmp_path / f"h{n}.log").write_text(horovod(n, 300.0 * n))
    found = api.read_points(tmp_path).groupby("series")["workers"].apply(list).to_dict()
    assert found == {
        "Horovod's synthetic benchmark ResNet50": [2, 4],
        **{f"Megatron-LM, global batch {batch}": [2, 4] for batch in (32, 64)},
    }


def test_a_folder_of_texts_that_are_no_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in range(4):
        (tmp_path / f"{place}.txt").write_text("nothing\n")
    for verb in ("fit", "report"):
        assert main([verb, str(tmp_path)]) == 2
        assert re.search("0.txt: is no log that is read; nor are 3 more logs read", capsys.readouterr().err)


def test_odd_logs_in_a_folder(tmp_path: Path, golden: Golden) -> None:
    for n, rate in ((1, 10.0), (4, 300.0)):
        (tmp_path / f"{n}.log").write_text(horovod(n, rate))
    (tmp_path / "huge.txt").write_text(horovod(2, 1e13))
    (tmp_path / "unknown.out").write_text(megatron())
    (tmp_path / "8").mkdir()
    (tmp_path / "8/train.log").write_text(horovod(8, 80.0).replace("Number of", "Kind of").replace("on 8", "on all"))
    golden(api.read_points(tmp_path).attrs["doubts"])
    (tmp_path / "titan.log").write_text(TITAN.format(mesh=next(iter(MESH))))
    with golden.raises(DataError, match="tokens/s"):
        api.read_points(tmp_path)


TABLES = (
    "workers,samples_per_s\n1,100\n2,190\n",
    "GPUs,img/sec per GPU\n1,301.2\n4,299\n",
    "GPUs;total images/sec\n1;301.2\n4;1200\n",
    '[{"world_size": 1, "train_samples_per_second": 6.7}, {"world_size": 2, "train_samples_per_second": 13}]',
    "| GPUs | tokens/s |\n|---|---|\n| 1 | 100 |\n| 2 | 190 |\n",
)


@pytest.mark.parametrize("text", TABLES)
def test_a_table_is_no_log(text: str, tmp_path: Path) -> None:
    assert recognised(text) is None


@pytest.mark.parametrize("name", ["times.csv", "times.log"])
def test_a_table_with_times_is_told_what_is_wrong_in_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(
        "GPUs,img/s,started,run:1\n1,x,2025-02-03 10:00:00,a:1\n2,190,2025-02-03 11:00:00,a:2\n"
    )
    with pytest.raises(DataError, match=r"line 2.*'x'") as raised:
        api.read_points(tmp_path / name)
    assert ("nor is it a log" in str(raised.value)) == name.endswith(".log")


@pytest.mark.parametrize(
    "text",
    [
        "[2025-02-03 10:00:00] step 10: loss 3.2\n[2025-02-03 10:00:01] step 20: loss 3.1\n",
        "epoch: 1 loss: 2.3 time: 3.2\nepoch: 2 loss: 2.2 time: 3.1\n",
    ],
)
def test_a_log_of_something_else_is_refused(text: str, tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / "own.log"
    path.write_text(text)
    with golden.raises(DataError, match="Megatron-LM"):
        api.read_points(path)


def test_doors_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    path = tmp_path / "m.log"
    path.write_bytes(b"\xff\xfe" + megatron().encode("utf-16-le"))
    assert main(["fit", str(path)]) == 2
    assert main(["fit", f"{path}@8"]) == 2  # one count is no curve
    assert main(["fit", f"{path}@8", "--columns", "workers=GPUs"]) == 2
    golden(capsys.readouterr().err)
    assert main(["report", f"{path}@8", "--tables"]) == 0
    assert ",80" in (tmp_path / "m-report/runs.csv").read_text()
