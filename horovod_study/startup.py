"""Loads PyTorch for a program that starts with it: a third less work of the processor, which every rank saves.

Two things are left out of `import torch`, and both matter only there. While it loads, the interpreter searches its
growing million of objects for cycles time and again, and finds none worth the search. And torch registers some 800
functions that tell the shape of a result without computing it, for its compiler and for tensors of the device "meta":
no training step asks them. They come with whatever cannot be loaded without them, torch's compiler first of all
(DistributedDataParallel with hooks loads it too); elsewhere torch says loudly that a kernel is missing.

Only programs whose every line is known start like this, never a script of somebody else (programs/script.py).
What it saves is in docs/performance.md, "The start of a rank".
"""

import gc
import importlib
import importlib.abc
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

TABLES = "torch._meta_registrations"
NEED_THEM = (
    *("torch._dynamo", "torch._decomp.decompositions", "torch._prims", "torch._refs"),
    "torch.utils._content_store",
)
"""Parts of torch that import each other in a circle, in which only the tables can be the first."""


class _BeforeCompiler(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the tables when one of the parts that need them is about to be imported."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how to take what the tables have loaded, or None: the finders behind this one find it."""
        if fullname not in NEED_THEM:
            return None
        sys.meta_path.remove(self)
        importlib.import_module(TABLES)
        module = sys.modules.get(fullname)
        if module is None:
            return None
        # Of a module that is there, importlib takes the specification that it has.
        module.__spec__ = ModuleSpec(fullname, self, loader_state=module.__spec__)
        return module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that is loaded already."""
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it was."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def load_torch() -> None:
    """Import PyTorch without its tables for the compiler; where it is loaded already, nothing changes.

    What was loaded is left out of all later searches for cycles (`gc.freeze`), so that steps do not wait for these.
    """
    if "torch" in sys.modules:
        return
    gc.disable()
    left_out = sys.modules[TABLES] = ModuleType(TABLES)
    try:
        import torch
    finally:
        if sys.modules.get(TABLES) is left_out:
            del sys.modules[TABLES]
        gc.enable()
    if vars(torch).get("_meta_registrations") is left_out:
        del torch._meta_registrations
    sys.meta_path.insert(0, _BeforeCompiler())
    gc.freeze()
