"""What runs in a rank: models and optimizers by name, what they compute in, the library of the workers, its place."""

from __future__ import annotations

import gc
import hashlib
import os
import platform
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parallel import DistributedDataParallel

_LIBRARIES = ("torch", "horovod", "mpi4py", "numpy")
_WRAPPERS = ("torch", "deepspeed", "accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "apex", "timm")


class LooseParameters(nn.Module):
    """Parameters that are in no module."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__()
        # A tensor that is none itself shares its values with the one that stands for it here.
        self.all = nn.ParameterList(
            each if isinstance(each, nn.Parameter) else nn.Parameter(each.detach(), requires_grad=each.requires_grad)
            for each in parameters
        )


def objects(kind: Any) -> list[Any]:
    """Return all objects of a kind, or of several, in this process that the garbage collector knows."""
    # by type(), because objects that stand in for others lie about their class, and are made to load by being asked
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]


def models_of(wanted: set[int], modules: Sequence[nn.Module] | None = None) -> list[nn.Module]:
    """Return the outermost of `modules` that hold the parameters with these ids; first the one that holds most of them.

    None: of all modules of this process.
    """
    modules = objects(nn.Module) if modules is None else modules
    inside = {id(child) for module in modules for child in module._modules.values() if child is not None}
    outermost = [(each, set(map(id, each.parameters()))) for each in modules if id(each) not in inside]
    found: list[nn.Module] = []
    left = set(wanted)
    while left and outermost:
        module, own = max(outermost, key=lambda each: (len(each[1] & left), -len(each[1] - wanted)))
        if not own & left:
            break
        found.append(module)
        left -= own
    return found


def models_with_gradients() -> list[nn.Module]:
    """Return the outermost modules whose parameters have gradients; where none has, what else has some, as one."""
    held = (each for module in objects(nn.Module) for each in module._parameters.values() if each is not None)
    wanted = {id(each) for each in held if each.grad is not None}
    leaves = (each for each in objects(torch.Tensor) if each.is_leaf and each.requires_grad and each.grad is not None)
    return models_of(wanted) or [LooseParameters(leaves)]


def averaging(model: nn.Module) -> DistributedDataParallel | None:
    """Return the DDP model that `model` is, or that holds all of its parameters inside a wrapper, as Fabric's does."""
    if isinstance(model, DistributedDataParallel):
        return model
    found = [each for each in model.modules() if isinstance(each, DistributedDataParallel)]
    same = len(found) == 1 and set(map(id, found[0].parameters())) == set(map(id, model.parameters()))
    return found[0] if same else None


def averages_in_synchronize(optimizer: object) -> bool:
    """Return whether this is Horovod's DistributedOptimizer, whose `synchronize` waits for the averages."""
    return callable(getattr(optimizer, "synchronize", None)) and hasattr(optimizer, "skip_synchronize")


def sharded(model: nn.Module) -> bool:
    """Return whether ranks hold different parts of the parameters (FSDP, `fully_shard`)."""
    return any(hasattr(each, "to_local") for each in model.parameters()) or any(
        type(each).__name__ == "FullyShardedDataParallel" for each in model.modules()
    )


def workers_of(models: Sequence[nn.Module], optimizer: object, *, on_gpu: bool) -> dict[str, Any]:
    """Return the library that the ranks train with, rank and workers by it, and where gradients are averaged.

    A DistributedDataParallel model averages over torch.distributed, a Horovod optimizer over Horovod. Where neither is
    there, the library that the script has started does; one that it has not loaded is not loaded here.
    """
    dist = torch.distributed
    horovod, mpi4py = sys.modules.get("horovod.torch"), sys.modules.get("mpi4py.MPI")
    connected = dist.is_available() and dist.is_initialized()
    wrapped = next(filter(None, map(averaging, models)), None)
    if horovod is not None and horovod.is_initialized() and wrapped is None:
        hooks = averages_in_synchronize(optimizer)
        if hooks or not connected:
            controller = "mpi" if horovod.mpi_enabled() else "gloo"
            transport = "nccl" if on_gpu and horovod.nccl_built() else controller
            return _library("horovod", transport, "synchronize" if hooks else None, horovod.rank(), horovod.size())
    if connected:
        group = None if wrapped is None else wrapped.process_group
        named, averaged = str(dist.get_backend(group)), wrapped is not None or any(map(sharded, models))
        if named not in ("nccl", "gloo", "mpi"):  # started without a name it has one library for each kind of device
            named = "nccl" if on_gpu else "gloo"
        by, ranks = "distributed" if wrapped is None else "ddp", (dist.get_rank(group), dist.get_world_size(group))
        return _library(by, named, "backward" if averaged else None, *ranks)
    mpi = None if mpi4py is None or not mpi4py.Is_initialized() or mpi4py.Is_finalized() else mpi4py.COMM_WORLD
    if mpi is not None and mpi.Get_size() > 1:
        return _library("mpi", "mpi", "unseen", mpi.Get_rank(), mpi.Get_size())
    return _library("serial", "none", None, 0, 1)


def _library(backend: str, transport: str, averaging: str | None, rank: Any, workers: Any) -> dict[str, Any]:
    place = {"rank": int(rank), "workers": int(workers)}
    return {"backend": backend, "transport": transport, "averaging": averaging, **place}


def model_name(model: nn.Module) -> str:
    """Return the name of the class that somebody has written, inside of what libraries put around it."""
    compiled = False
    while True:
        kind, own = type(model), set(map(id, model.parameters()))
        around = kind.__module__.partition(".")[0] in _WRAPPERS and not kind.__module__.startswith("torch.nn.modules.")
        inside = [each for each in model.children() if around and set(map(id, each.parameters())) == own]
        if not inside:
            return f"{kind.__name__}{' (compiled)' * compiled}"
        compiled |= kind.__name__ == "OptimizedModule"
        model = min(inside, key=lambda each: sum(1 for _ in each.modules()))


def names_of(models: Sequence[nn.Module], script: str) -> str:
    """Return the names of the models that are trained together; the script's where parameters are in no module."""
    names = [script if isinstance(each, LooseParameters) else model_name(each) for each in models]
    return " + ".join([*names[:4], *([f"{len(names) - 4} more"] if len(names) > 4 else [])])


def time_first(model: nn.Module) -> nn.Module | None:
    """Return the first layer that takes the time as first dimension and the batch as second, None: there is none."""
    kinds = (nn.RNNBase, nn.MultiheadAttention)
    return next((each for each in model.modules() if isinstance(each, kinds) and not each.batch_first), None)


def samples_of(batch: Any, *, size: int | None = None, second: bool = False) -> int:
    """Return how many samples a batch has: the first dimension of its first tensor or array, or its length; 0: unknown.

    `size`: what its loader calls the batch, `second`: the model takes the batch as second dimension. Where the first
    dimension is not `size` and the second is, it is that one.
    """
    if type(batch) is list and batch and type(batch[0]) is torch.Tensor:  # of most loaders
        shape: Any = batch[0].shape
    else:
        shape = _shape(batch)
    if len(shape) == 1 and isinstance(batch, (list, tuple)):
        tensors = [each for each in batch if isinstance(each, torch.Tensor) and each.dim()]
        if tensors and not tensors[0].is_floating_point():  # tokens, one sequence after the other, with their offsets
            lengths = [len(each) for each in tensors]
            return min(lengths, key=lambda each: (each != size, -lengths.count(each), each))
    if len(shape) > 1 and size != shape[0] and (size == shape[1] or (second and size is None)):
        return int(shape[1])
    if len(shape) or isinstance(batch, (str, bytes)) or not hasattr(batch, "__len__") or hasattr(batch, "shape"):
        return int(shape[0]) if len(shape) else 0
    return len(batch)


def _shape(batch: Any) -> Any:
    """Return the shape of the first tensor or array in what a loader gave that has dimensions, () for none."""
    if isinstance(batch, nn.utils.rnn.PackedSequence):  # its data are the steps of all sequences
        return batch.batch_sizes[:1].tolist()
    parts = batch.values() if hasattr(batch, "keys") and hasattr(batch, "values") else batch
    if hasattr(batch, "shape") or not hasattr(batch, "__len__") or isinstance(batch, (str, bytes)):
        return getattr(batch, "shape", ())
    plain = isinstance(batch, (list, tuple)) or hasattr(batch, "keys")
    return next((found for found in map(_shape, parts) if len(found)), ()) if plain else ()


def digest(models: Sequence[nn.Module]) -> str:
    """Return the SHA-256 over all parameters: equal only for models equal bit for bit. Of shards, the rank's own."""
    found = hashlib.sha256()
    for model in models:
        for parameter in model.parameters():
            own = parameter.detach()
            own = own.to_local() if hasattr(own, "to_local") else own
            flat = own.cpu().contiguous().reshape(-1).view(torch.uint8)
            try:
                values: Any = flat.numpy()
            except RuntimeError:  # there is no NumPy
                values = bytes(flat.untyped_storage()[flat.storage_offset() : flat.storage_offset() + flat.numel()])
            found.update(memoryview(values))
    return found.hexdigest()


def count(models: Sequence[nn.Module]) -> int:
    """Return the number of trained parameters."""
    return sum(each.numel() for model in models for each in model.parameters())


def of_process(device: torch.device) -> dict[str, Any]:
    """Return place, numbers and versions of this process."""
    gpu = None
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        gpu = {"name": about.name, "uuid": str(getattr(about, "uuid", "")), "processes": None}
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    environment: dict[str, Any] = {"python": platform.python_version(), "command": [sys.executable, *sys.argv]}
    environment.update({name: getattr(sys.modules.get(name), "__version__", None) for name in _LIBRARIES})
    place = {"host": os.uname().nodename, "pid": os.getpid(), "cores": sorted(cores)}
    computes = {"threads": torch.get_num_threads(), "device": str(device), "gpu": gpu}
    return {**place, **computes, "environment": environment}


def memory_mb() -> tuple[float, float | None]:
    """Return the peak of the resident memory of this process and its proportional memory, in MB (1e6 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    try:
        with open("/proc/self/smaps_rollup", encoding="ascii") as stream:
            own = next((int(line.split()[1]) for line in stream if line.startswith("Pss:")), None)
    except OSError:
        own = None
    return peak, None if own is None else own * 1024 / 1e6


NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}
_MULTIPLYING = (nn.Linear, nn.Bilinear, nn.MultiheadAttention, _ConvNd, nn.RNNBase, nn.RNNCellBase)


class PrecisionObserver:
    """Watches layers that multiply by weights until `stop`, because what these return is what they computed in.

    The type of the parameters does not say it: under autocast parameters in float32 are multiplied in bfloat16. Of no
    type are compiled models, whose layers are not called one by one, and layers with a `forward` that is not PyTorch's.
    """

    def __init__(self, model: nn.Module, safe: Callable[[Callable[..., None]], Any] = lambda call: call) -> None:
        """`safe` returns a hook that calls what it is given, and keeps what goes wrong in it from the model."""
        self._weights: dict[nn.Module, int] = {}  # layer -> weights of two or more dimensions, none of them twice
        self._types: dict[nn.Module, set[str | None]] = {}  # of what it returned
        self._handles: list[Any] = []
        inside: set[nn.Module] = set()
        for module in model.modules():
            # rows are copied, nothing is computed
            if module in inside or isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                continue
            whole = isinstance(module, nn.MultiheadAttention)  # it does not call the layer inside it
            if whole:
                inside |= set(module.modules())
            count = sum(each.numel() for each in module.parameters(recurse=whole) if each.dim() > 1)
            if count:
                self._weights[module] = count
        for module in model.modules():
            if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
                return
        for module in self._weights:
            own = type(module).forward.__module__.startswith("torch.") and "forward" not in vars(module)
            if isinstance(module, _MULTIPLYING) and own:
                self._handles.append(module.register_forward_hook(safe(self._note)))

    def _note(self, module: nn.Module, _: Any, result: Any) -> None:
        first = result[0] if isinstance(result, tuple) else result
        if isinstance(first, torch.Tensor) and first.is_floating_point() and torch.is_grad_enabled():
            self._types.setdefault(module, set()).add(_computed_in(module, first))

    def stop(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def found(self) -> str | None:
        """Return fp32, tf32, bf16, fp16 or fp64; None unless most weights were seen to compute in one of them."""
        seen: Counter[str | None] = Counter()
        for module, types in self._types.items():
            if len(types) == 1:
                seen[next(iter(types))] += self._weights[module]
        name, count = max(seen.items(), key=lambda each: each[1], default=(None, 0))
        return name if count >= 0.9 * sum(self._weights.values()) else None


def _computed_in(module: nn.Module, result: torch.Tensor) -> str | None:
    """Return the type that a layer multiplied in; None where that is the library's choice."""
    if result.dtype != torch.float32:
        return NAMES.get(result.dtype)
    on_gpu = result.device.type == "cuda"
    kinds: Any = torch.backends.cudnn if on_gpu else torch.backends.mkldnn
    if isinstance(module, _ConvNd):
        kind = kinds.conv
    elif isinstance(module, nn.RNNBase):
        kind = kinds.rnn
    else:
        kind = torch.backends.cuda.matmul if on_gpu else kinds.matmul
    rounds = kind.fp32_precision in ("tf32", "bf16")
    if on_gpu:  # TF32 is of NVIDIA's GPUs from compute capability 8 on
        rounds = rounds and not torch.version.hip and torch.cuda.get_device_capability(result.device) >= (8, 0)
        return "tf32" if rounds else "fp32"
    return None if rounds else "fp32"  # allowed, and done where the processor can
