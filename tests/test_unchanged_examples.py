"""The scripts of examples/unchanged, which know nothing of this package: two ranks over Gloo, and what is recorded."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from horovod_study import records

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "examples" / "unchanged"
BIN = Path(sys.executable).parent
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
LAPS = ("data", "forward", "backward", "sync", "update")
STEPS, WATCHED = 16, 2
"""Steps that a script makes; with the first ones the training is found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What is recorded of a script; `samples` are those of a step on one worker."""

    launcher: tuple[str, ...] = TORCHRUN
    needs: str = ""
    more: tuple[str, ...] = ()
    backend: str = "ddp"
    workers: int = 2
    model: str = "Sequential"
    optimizer: str = "Adam"
    samples: int = 8
    data: int | None = 2 * STEPS * 8
    turns: int = 1
    unseen: frozenset[str] = frozenset()


EXPECTED = {
    "plain_loop.py": Expected(launcher=("python",), backend="serial", workers=1, data=STEPS * 8),
    "ddp_loop.py": Expected(),
    "horovod_loop.py": Expected(launcher=("horovodrun", "--gloo", "-np", "2", "python"), backend="horovod"),
    "accelerate_loop.py": Expected(needs="accelerate"),
    "trainer.py": Expected(needs="transformers", model="GPT2LMHeadModel", optimizer="AdamW", data=10_000),
    "lightning_trainer.py": Expected(
        launcher=("python",), needs="pytorch_lightning", more=("--devices", "2"), model="Regression"
    ),
    "fabric_loop.py": Expected(needs="lightning_fabric"),
    "fsdp2.py": Expected(backend="distributed", model="FSDPSequential", data=None, unseen=frozenset({"data"})),
    "gan.py": Expected(model="Sequential + Sequential", optimizer="Adam + Adam", data=STEPS * 8),
    "accumulation.py": Expected(samples=4 * 8, data=4 * STEPS * 8, turns=4),
    "streaming.py": Expected(data=None),
}


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("name", EXPECTED)
def test_a_script_without_a_line_of_ours_is_recorded(name: str, tmp_path: Path) -> None:
    how = EXPECTED[name]
    if how.needs and find_spec(how.needs) is None:
        pytest.skip(f"{how.needs} is not installed; `make extras` installs it")
    out = tmp_path / "run"
    options = ("--system-interval-s", "0", "--warmup-steps", "4")
    script = (str(SCRIPTS / name), "--steps", str(STEPS), "--batch", "8", *how.more)
    done = subprocess.run(
        [BIN / "horovod-study", "record", "--out", out, *options, "--", *how.launcher, *script],
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    run = records.read_run(out)
    found = run.effective
    assert (run.status, found["workers"], found["backend"]) == ("done", how.workers, how.backend)
    assert (found["model"], found["optimizer"]) == (how.model, how.optimizer)
    assert (found["batch"], found["train_samples"]) == (how.samples, how.data)
    assert found["turns_per_update"] == how.turns
    for rank in range(how.workers):
        rows = records.read_steps(out, rank)
        values = {lap: rows.column(f"{lap}_s").to_numpy(zero_copy_only=False) for lap in (*LAPS, "step", "residual")}
        assert STEPS - WATCHED - 1 <= len(rows) < STEPS, "Horovod steps before the loop, to broadcast the state"
        assert set(rows.column("samples").to_pylist()[1:]) == {how.samples}
        assert {lap for lap in LAPS if not np.isfinite(values[lap][2:]).all()} == how.unseen
        assert all((values[lap][2:] > 0).any() for lap in LAPS if lap not in {*how.unseen, "sync"})
        assert (values["sync"][2:] > 0).all() == (how.workers > 1)
        assert sum(np.nan_to_num(values[lap]) for lap in (*LAPS, "residual")) == pytest.approx(values["step"])


def test_every_script_is_tried_and_says_how_it_is_recorded() -> None:
    assert {path.name for path in SCRIPTS.glob("*.py")} == set(EXPECTED)
    listed = (ROOT / "examples" / "README.md").read_text()
    for name in EXPECTED:
        text = (SCRIPTS / name).read_text()
        assert "horovod_study" not in text, "not a line of ours"
        assert re.search(rf"horovod-study record --out \S+ -- [^\n]*examples/unchanged/{name}", text)
        assert f"unchanged/{name}" in listed
        assert len(text.splitlines()) <= 60
