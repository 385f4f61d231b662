"""Loaded by every Python that is started below `horovod-study record`, before its script.

It waits for `import torch`, and installs the hooks of `recording.rank` then; a Python that never imports torch leaves a
word that it was started, and no more. Only this file is in its folder, which is put in front of PYTHONPATH; it takes
that folder out of the path and loads the sitecustomize that it hides. The package is loaded from its file. What is here
is in words that every Python reads, also 2.7.
"""

import json
import os
import sys

VARIABLE = "HOROVOD_STUDY_RECORD"
OLDEST = (3, 9)
"""The oldest Python whose trainings are recorded; one before it is left alone."""


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
        import importlib.util

        self._asks_others = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asks_others = False
        loader = None if spec is None else spec.loader
        if loader is not None:
            import_torch = loader.exec_module

            def exec_module(module):  # type: ignore[no-untyped-def]
                del loader.exec_module
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                import_torch(module)
                install_hooks()  # type: ignore[no-untyped-call]

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install_hooks():  # type: ignore[no-untyped-def]
    """Have the hooks of the package see what torch does from now on."""
    try:
        asked = json.loads(os.environ[VARIABLE])
        load_package(asked["package"])  # type: ignore[no-untyped-call]
        from horovod_study.recording.rank import watch

        watch.Watcher(asked).install()
    except Exception as error:  # the script comes first, whatever is wrong with its recorder
        sys.stderr.write("horovod-study record: cannot record: " + type(error).__name__ + ": " + str(error) + "\n")


def load_package(folder):  # type: ignore[no-untyped-def]
    """Load the package of the command line, unless this Python has loaded one already."""
    if "horovod_study" not in sys.modules:
        import importlib.util

        start = os.path.join(folder, "__init__.py")
        spec = importlib.util.spec_from_file_location("horovod_study", start, submodule_search_locations=[folder])
        sys.modules["horovod_study"] = module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        spec.loader.exec_module(module)  # type: ignore[union-attr]


def load_hidden():  # type: ignore[no-untyped-def]
    """Run the sitecustomize that this one hides, of a distribution or of a site."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != here]
    own = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own


def tell_started():  # type: ignore[no-untyped-def]
    """Leave a word for `horovod-study record` that a Python has loaded this file."""
    try:
        with open(os.path.join(json.loads(os.environ[VARIABLE])["meeting"], "pythons"), "a") as told:
            told.write(str(os.getpid()) + "\n")
    except (OSError, ValueError, KeyError):
        pass


if VARIABLE in os.environ and sys.version_info >= OLDEST:
    tell_started()  # type: ignore[no-untyped-call]
    sys.meta_path.insert(0, AfterTorch())  # type: ignore[no-untyped-call]
load_hidden()  # type: ignore[no-untyped-call]
