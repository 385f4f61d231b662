"""PyTorch is loaded without what only its compiler needs, and that can be had afterwards."""

import gc
import subprocess
import sys

import pytest
import torch

from horovod_study import startup

PROGRAM = """
import gc, sys
from horovod_study import startup

frozen = gc.get_freeze_count()
startup.load_torch()
assert gc.isenabled() and gc.get_freeze_count() > frozen
import torch
assert startup.TABLES not in sys.modules and not hasattr(torch, "_meta_registrations")

model = torch.nn.Conv1d(3, 2, 3)
inputs = torch.ones(1, 3, 8)
model(inputs).sum().backward()
there = lambda: torch._C._dispatch_has_kernel_for_dispatch_key("aten::convolution", "Meta")
assert not there()
import torch._dynamo
assert there() and startup.TABLES in sys.modules
assert torch.equal(torch.compile(model, backend="aot_eager")(inputs), model(inputs))
"""


def test_the_tables_of_the_compiler_are_left_out_until_it_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


PARTS = """
import importlib, sys
from horovod_study import startup

startup.load_torch()
part = importlib.import_module(sys.argv[1])
assert part is sys.modules[sys.argv[1]] and part.__spec__.origin == part.__file__ and startup.TABLES in sys.modules
"""


@pytest.mark.slow
@pytest.mark.parametrize("part", [*startup.NEED_THEM, "torch.distributed.optim", "torch.distributed.tensor"])
def test_every_part_of_torch_that_needs_them_can_be_loaded_first(part: str) -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PARTS, part], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_where_torch_is_loaded_nothing_changes() -> None:
    before = dict(vars(torch)), set(sys.modules), gc.get_freeze_count()
    startup.load_torch()
    assert before == (vars(torch), set(sys.modules), gc.get_freeze_count())
    assert startup.TABLES in sys.modules


class NoTorch:
    """Finds no torch, wherever it may be."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            raise ModuleNotFoundError(name=name)


def test_a_torch_that_cannot_be_loaded_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.delitem(sys.modules, startup.TABLES)
    monkeypatch.setattr(sys, "meta_path", [NoTorch(), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError):
        startup.load_torch()
    assert startup.TABLES not in sys.modules
    assert gc.isenabled()
