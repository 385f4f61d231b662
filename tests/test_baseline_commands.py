"""The command for a missing baseline: what was typed, with one worker, and nothing else of it changed."""

import doctest
import math

import pytest
from make.wording import Golden

from horovod_study.analysis.series import points
from horovod_study.analysis.series.points import one_worker, remedy

LINES = {
    "torchrun --nproc-per-node 2 train.py --n 2": "torchrun --nproc-per-node 1 train.py --n 2",
    "torchrun --standalone --nproc_per_node=gpu t.py": "torchrun --standalone --nproc_per_node=1 t.py",
    "torchrun --nnodes 2 --nproc-per-node 4 -m pkg.train -n 2": (
        "torchrun --nnodes 1 --nproc-per-node 1 -m pkg.train -n 2"
    ),
    "python -m torch.distributed.run --nproc-per-node 2 t.py": (
        "python -m torch.distributed.run --nproc-per-node 1 t.py"
    ),
    "horovodrun --gloo -np 2 -H a:1,b:1 python t.py -np 2": "horovodrun --gloo -np 1 -H a:1,b:1 python t.py -np 2",
    "/x/mpirun -n 2 -x PYTHONPATH python3.11 t.py": "/x/mpirun -n 1 -x PYTHONPATH python3.11 t.py",
    "srun -N2 --ntasks=8 --ntasks-per-node 4 python t.py": "srun -N1 --ntasks=1 --ntasks-per-node 1 python t.py",
    "accelerate launch --num_processes 2 t.py": "accelerate launch --num_processes 1 t.py",
    "torchrun --nproc-per-node 2 --module pkg -n 4": "torchrun --nproc-per-node 1 --module pkg -n 4",
    "torchrun --nproc-per-node 2 --no-python ./run.sh -n 4": "torchrun --nproc-per-node 1 --no-python ./run.sh -n 4",
    "torchrun train.py": "",
    "python train.py --devices 2": "",
    "bash start.sh": "",
}


@pytest.mark.parametrize("line", LINES)
def test_a_command_is_told_one_worker_in_its_own_words(line: str) -> None:
    assert one_worker(line) == LINES[line]


def test_a_folder_that_is_taken_is_not_named_and_a_batch_that_nobody_says_is_told(golden: Golden) -> None:
    typed = "horovod-study record --out r/2w --repeat 1 --batch 8 -- torchrun --nproc-per-node 2 t.py"
    run = {"workers": 2, "batch": 8.0, "typed": typed, "typed_in": "/a"}
    text = remedy(run, batch=16, taken=["x/1w", "2w"])

    golden(text, "--batch 16 --out r/1w-2", "--nproc-per-node", "t.py")
    assert "a batch of 16" in text
    unknown = remedy({**run, "batch": math.nan}, batch=math.nan, taken=[])
    assert unknown.endswith(": horovod-study record --batch 8 --out r/1w -- torchrun --nproc-per-node 1 t.py")


@pytest.mark.parametrize(
    ("own", "batches"), [("--batch-size 8", ("16", "--batch-size 16")), ("--batch 4", ("8", "--batch 4"))]
)
def test_record_says_no_other_batch_than_the_script(own: str, batches: tuple[str, str]) -> None:
    typed = f"horovod-study record --name x.py --batch 8 -- torchrun --nproc-per-node 2 t.py {own}"
    text = remedy({"workers": 2, "batch": 8.0, "typed": typed}, batch=16, taken=[])

    head, script = batches
    assert text.endswith(f"record --name x.py --batch {head} -- torchrun --nproc-per-node 1 t.py {script}")


def test_a_script_with_lines_of_its_own_is_started_as_its_library_is() -> None:
    run = {"workers": 2, "batch": 8.0, "command": "/x/python t.py --width 4", "typed": ""}

    told = remedy({**run, "backend": "ddp", "transport": "gloo"}, batch=8, taken=[])
    assert told.endswith(": torchrun --nproc-per-node 1 t.py --width 4")
    told = remedy({**run, "backend": "horovod", "transport": "gloo"}, batch=8, taken=[])
    assert told.endswith(": horovodrun --gloo -np 1 python t.py --width 4")
    assert "t.py --width 4" in remedy({**run, "backend": "odd", "transport": "own"}, batch=8, taken=[])


def test_its_examples_hold() -> None:
    assert doctest.testmod(points).failed == 0
