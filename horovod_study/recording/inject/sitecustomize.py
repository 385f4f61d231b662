"""Loaded by every Python that is started below `horovod-study record`, before its script.

It waits for `import torch`, and installs the hooks of `recording.rank` then; a Python that never imports torch leaves a
word that it was started, and no more. Only this file is in its folder, which is put in front of PYTHONPATH, and it
loads the sitecustomize that it hides. The package is loaded from its file: the folders that this Python looks into stay
what they are.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys

VARIABLE = "HOROVOD_STUDY_RECORD"


class AfterTorch:
    """Finds torch through the other finders, and has the hooks installed when it is imported.

    Until then it stays: many a library first asks whether there is a torch, and imports it later, or never.
    """

    def __init__(self):  # type: ignore[no-untyped-def]
        self._asks_others = False

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Return the specification of torch with a loader that goes on to the hooks."""
        if name != "torch" or self._asks_others:
            return None
        self._asks_others = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asks_others = False
        if spec is not None and spec.loader is not None:
            spec.loader = HookingLoader(spec.loader, self)  # type: ignore[no-untyped-call,assignment]
        return spec


class HookingLoader:
    """A loader like another one, that installs the hooks behind it."""

    def __init__(self, loader, finder):  # type: ignore[no-untyped-def]
        self._loader, self._finder = loader, finder

    def __getattr__(self, name):  # type: ignore[no-untyped-def]
        return getattr(self._loader, name)

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        """Return what the other loader makes."""
        return self._loader.create_module(spec)

    def exec_module(self, module):  # type: ignore[no-untyped-def]
        """Import torch, then the hooks."""
        module.__spec__.loader = module.__loader__ = self._loader
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        self._loader.exec_module(module)
        asked = os.environ[VARIABLE]
        try:
            load_package(json.loads(asked)["package"])
            from horovod_study.recording.rank import watch

            watch.install(asked)
        except Exception as error:  # the script comes first, whatever is wrong with its recorder
            print(f"horovod-study record: cannot record: {type(error).__name__}: {error}", file=sys.stderr)


def load_package(folder: str) -> None:
    """Load the package of the command line, unless this Python has loaded one already."""
    if "horovod_study" not in sys.modules:
        start = os.path.join(folder, "__init__.py")
        spec = importlib.util.spec_from_file_location("horovod_study", start, submodule_search_locations=[folder])
        assert spec is not None and spec.loader is not None
        sys.modules["horovod_study"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def load_hidden() -> None:
    """Run the sitecustomize that this one hides, of a distribution or of a site."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def tell_started() -> None:
    """Leave a word for `horovod-study record` that a Python has loaded this file."""
    try:
        with open(os.path.join(json.loads(os.environ[VARIABLE])["meeting"], "pythons"), "a", encoding="utf-8") as told:
            told.write(f"{os.getpid()}\n")
    except (OSError, ValueError, KeyError):
        pass


if VARIABLE in os.environ:
    tell_started()
    sys.meta_path.insert(0, AfterTorch())  # type: ignore[no-untyped-call]
load_hidden()
