"""Runtimes: pairs of a library that averages gradients and what carries its messages; and where workers are put.

A library declares itself in a file here, and its code is below comm/: two files, and nobody else has a list of them.
"""

from importlib import import_module
from pkgutil import iter_modules

from horovod_study.runtimes.library import Library, Transport

LIBRARIES = {
    each.name: each
    for each in sorted(
        (
            import_module(f"{__name__}.{module.name}").LIBRARY
            for module in iter_modules(__path__)
            if module.name != "library"
        ),
        key=lambda library: library.place,
    )
}
CARRIED: dict[str, tuple[Library, Transport]] = {
    library.runtime(transport): (library, transport)
    for library in LIBRARIES.values()
    for transport in library.transports
}
"""runtime -> its library and its transport."""
BACKENDS = tuple(LIBRARIES)
RUNTIMES = tuple(CARRIED)
"""backend/transport pairs that a study can sweep over."""
TRANSPORTS = tuple(dict.fromkeys(("none", "nccl", "mpi", "gloo", *(each.name for _, each in CARRIED.values()))))
PLACEMENTS = ("fill", "spread", "list")
"""How workers are put on nodes: a node is filled before the next, all nodes get alike many, or the nodes are named."""
