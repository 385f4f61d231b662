"""Loads PyTorch for a program that starts with it: a third less work of the processor, which every rank saves.

Two things are left out of `import torch`, and both matter only there. While it loads, the interpreter searches its
growing million of objects for cycles time and again, and finds none worth the search. And torch registers some 800
functions that tell the shape of a result without computing it, for its compiler and for tensors of the device "meta":
no training step asks them. Where they are wanted after all, torch says loudly that a kernel is missing, and
`load_compiler_tables` brings them.

Only programs whose every line is known start like this, never a script of somebody else (programs/script.py).
What it saves is in docs/performance.md, "The start of a rank".
"""

import gc
import importlib
import sys
from types import ModuleType

TABLES = "torch._meta_registrations"


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
    gc.freeze()


def load_compiler_tables() -> None:
    """Bring what `load_torch` has left out, before a model is compiled."""
    importlib.import_module(TABLES)
