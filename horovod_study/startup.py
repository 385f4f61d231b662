"""Loads PyTorch for a program that starts with it: a third less work of the processor, which every rank saves.

Two things are left out of `import torch`, and both matter only there. While it loads, the interpreter searches its
growing million of objects for cycles time and again, and finds none worth the search. And torch registers some 800
functions that tell the shape of a result without computing it, for its compiler and for tensors of the device "meta":
no training step asks them. They come with the compiler, torch._dynamo, which cannot be loaded without them
(DistributedDataParallel with hooks loads it too); elsewhere torch says loudly that a kernel is missing.

Only programs whose every line is known start like this, never a script of somebody else (programs/script.py).
What it saves is in docs/performance.md, "The start of a rank".
"""

import gc
import importlib
import sys
from types import ModuleType

TABLES = "torch._meta_registrations"
COMPILER = "torch._dynamo"


class _BeforeCompiler:
    """Finds nothing, but loads the tables when torch's compiler is about to be imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Return None: the finders behind it find the compiler."""
        if name == COMPILER:
            sys.meta_path.remove(self)
            importlib.import_module(TABLES)


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
