"""What a run and a study are made from: frozen values, validated when they are made, and their YAML form.

The fields of `RunConfig` are at once the options of `train` (`--batch 75`), the keys of its YAML file (`batch: 75`)
and the names recorded as `requested` in a run directory; `options.py` derives the command line from them. What each is
to a study it declares itself (see `roles.py`); no list of them is written manually.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from horovod_study.errors import ConfigError, nearest
from horovod_study.roles import AS_SHIPPED, Role, option
from horovod_study.runtimes import PLACEMENTS
from horovod_study.workloads import (
    COMMUNICATING,
    COMPUTING,
    LEARNED,
    LENGTH,
    MEASURED,
    Configuration,
    Workload,
    load_workload,
    shared,
)

TRAINER = "horovod_study.train"
OWN_MODEL = "StressCNN"
"""What `train` trains; runs recorded of other scripts name their model."""
LAPS = ("data", "compute", "forward", "backward", "sync", "update")
"""Of a step. Steps captured in CUDA graphs have compute, where ordinary ones have forward and backward."""
ORDINARY_LAPS = ("data", "forward", "backward", "sync", "update")
KERNELS = ("torch", "fused")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
TIMER_MODES = ("off", "light", "strict")
PROFILERS = ("torch", "cprofile", "nsys", "pyspy", "sync-points")
LOADERS = ("memory", "prefetch", "device", "dataloader")
COMMUNICATION_ROLES = Role.COMMUNICATION | Role.SWEEPABLE | Role.CELL | Role.SEVERAL


def short_rate(value: float) -> str:
    """Return 4.7331e-4 for 0.00047331, and 0.05 as it is."""
    if not 0 < value < 0.01:
        return f"{value:g}"
    digits, _, power = f"{value:e}".partition("e")
    return f"{float(digits):g}e{int(power)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig(Configuration):
    """One training run as it was asked for; what it became (learning rate after scaling, ...) is recorded separately.

    Options that a study may vary are crossed in this order, and tables have their columns in it.
    """

    # What is learned, and how.
    batch: int = option(
        75,
        "curves per worker and step",
        kind=int,
        low=1,
        heading=LEARNED,
        roles=Role.LEARNING | Role.SWEEPABLE | Role.CELL | Role.APPLIED,
        title="Batch per worker",
    )
    widths: str = option(
        "15-38-197",
        "channels of the two convolutions and units of the hidden layer; 15-38-197 has 153,441 parameters",
        metavar="C-C-H",
        heading=LEARNED,
        roles=Role.LEARNING | Role.SWEEPABLE | Role.CELL | Role.APPLIED,
        words="widths {}",
        title="Widths of the network",
        short_title="widths",
    )
    dataset: str = option(
        "100000",
        "directory of a data set, or a number of curves to generate once and keep",
        metavar="PATH|SIZE",
        heading="data",
        roles=Role.DATA,
    )
    data_seed: int = option(1, "seed of a generated data set", kind=int, low=0, heading="data", roles=Role.DATA)
    input_scaling: str = option(
        "none",
        "fixed divides strain by 0.25 and stress by 120 MPa first, standard makes their means 0 and deviations 1; none "
        "trains on physical units, as the original did",
        choices=("none", "fixed", "standard"),
        heading="data",
        roles=Role.LEARNING | Role.SWEEPABLE | Role.CELL | Role.APPLIED,
        words=lambda value: "raw inputs" if value == "none" else f"{value} input scaling",
        title="Input scaling",
        short_title="input scaling",
    )
    optimizer: str = option(
        "adam",
        "update rule; sgd has Nesterov momentum 0.9",
        choices=("adam", "adamw", "sgd"),
        heading=LEARNED,
        roles=Role.LEARNING | Role.SWEEPABLE | Role.CELL,
        words="{}",
        title="Optimiser",
        short_title="optimiser",
    )
    weight_decay: float = option(
        0.0,
        "decay of the weights: added to the gradient, decoupled from it with adamw",
        kind=float,
        low=0,
        heading=LEARNED,
        roles=Role.LEARNING | Role.CELL,
        words="weight decay {:g}",
        title="Weight decay",
        short_title="weight decay",
    )
    lr: float = option(
        4.7331e-4,
        "learning rate of one worker",
        kind=float,
        above=0,
        heading=LEARNED,
        roles=Role.LEARNING | Role.RATE | Role.SWEEPABLE | Role.CELL,
        words=lambda value: f"lr {short_rate(value)}",
        title="Learning rate of one worker",
        short_title="learning rate",
    )
    lr_scaling: str = option(
        "none",
        "how the learning rate grows with the workers",
        choices=("none", "linear", "sqrt"),
        heading=LEARNED,
        roles=Role.LEARNING | Role.RATE | Role.SWEEPABLE | Role.CELL | Role.SEVERAL,
        words=lambda value: "unscaled lr" if value == "none" else f"{value} lr scaling",
        title="Learning rate against workers",
        short_title="learning-rate scaling",
    )
    lr_warmup_steps: int = option(
        0,
        "steps of linear learning-rate warm-up",
        kind=int,
        low=0,
        heading=LEARNED,
        roles=Role.LEARNING | Role.RATE | Role.SWEEPABLE | Role.CELL,
        words="lr warm-up {:g}",
        title="Steps of learning-rate warm-up",
        short_title="warm-up steps of the learning rate",
    )
    schedule: str = option(
        "constant",
        "learning rate over the run; range rises from the rate to its end and is for finding a rate",
        choices=("constant", "cosine", "step", "one-cycle", "range"),
        heading=LEARNED,
        roles=Role.LEARNING | Role.RATE | Role.SWEEPABLE | Role.CELL | Role.APPLIED,
        words="{} schedule",
        title="Schedule",
        short_title="schedule",
    )
    lr_end: float | None = option(
        None,
        "last learning rate of schedule range, and of no other",
        kind=float,
        above=0,
        heading=LEARNED,
        roles=Role.LEARNING | Role.RATE,
    )
    seed: int = shared("seed")
    # Computing.
    device: str = option(
        "auto",
        "where to compute; auto takes a GPU when there is one",
        choices=("auto", "cpu", "cuda"),
        heading=COMPUTING,
        roles=Role.APPLIED,
    )
    precision: str = option(
        "fp32",
        "arithmetic of forward and backward; tf32 and fp16 (with loss scaling) need a GPU",
        choices=PRECISIONS,
        heading=COMPUTING,
        roles=Role.SWEEPABLE | Role.CELL | Role.APPLIED,
        title="Precision",
    )
    memory_format: str = option(
        "channels-last",
        "layout of the activations: two-dimensional convolutions on channels-last, or one-dimensional ones",
        choices=("channels-last", "contiguous"),
        heading=COMPUTING,
        roles=Role.COMPUTING | Role.SWEEPABLE | Role.CELL | Role.APPLIED,
        words="{}",
        short_title="layout",
    )
    fused_optimizer: bool = option(
        True,
        "update all parameters in one operation",
        kind=bool,
        heading=COMPUTING,
        roles=Role.COMPUTING | Role.CELL,
        words=lambda value: f"{'' if value else 'un'}fused optimizer",
    )
    compile: bool = option(
        False,
        "compile forward and backward with torch.compile",
        kind=bool,
        heading=COMPUTING,
        roles=Role.COMPUTING | Role.CELL,
        words=lambda value: "compiled" if value else "not compiled",
    )
    cuda_graphs: bool = option(
        False,
        "replay whole steps as CUDA graphs, from the gathering of the batch to the update; needs a GPU",
        kind=bool,
        heading=COMPUTING,
        roles=Role.COMPUTING | Role.CELL,
        words=lambda value: f"{'' if value else 'no '}CUDA graphs",
    )
    kernels: str = option(
        "torch",
        "who computes forward and backward: PyTorch, or kernels made for this network (fused; needs cuda_graphs)",
        choices=KERNELS,
        heading=COMPUTING,
        roles=Role.COMPUTING | Role.CELL,
        words="{} kernels",
    )
    capture_sync: bool = option(
        False,
        "ddp over NCCL: the average of the gradients goes into the CUDA graph of the step, where it has no time of its "
        "own; needs cuda_graphs",
        kind=bool,
        heading=COMPUTING,
        roles=Role.COMPUTING | Role.CELL | Role.SEVERAL,
        words=lambda value: f"average {'inside' if value else 'outside'} the graph",
    )
    loader: str = option(
        "memory",
        "whole batches gathered from shared memory, the same one batch ahead in a thread (prefetch), from a copy of "
        "the whole set on the device, or by torch's DataLoader",
        choices=LOADERS,
        heading="data",
        roles=Role.COMPUTING | Role.SWEEPABLE | Role.CELL | Role.APPLIED,
        words="loader {}",
        short_title="loader",
    )
    loader_processes: int = option(
        0,
        "processes of loader dataloader; 0 loads in the trainer",
        kind=int,
        low=0,
        heading="data",
        roles=Role.COMPUTING | Role.CELL,
        words="{:g} loader processes",
    )
    pin_memory: bool = option(
        False,
        "copy batches to the GPU from page-locked memory",
        kind=bool,
        heading="data",
        roles=Role.COMPUTING | Role.CELL,
        words=lambda value: f"{'' if value else 'un'}pinned memory",
    )
    persistent_processes: bool = option(
        True,
        "keep the processes of loader dataloader from one epoch to the next",
        kind=bool,
        heading="data",
        roles=Role.COMPUTING | Role.CELL,
        words=lambda value: f"{'' if value else 'no '}persistent processes",
    )
    threads: int = shared("threads")
    # How long, and what happens on the way.
    epochs: int | None = shared("epochs")
    seconds: float | None = shared("seconds")
    steps: int | None = shared("steps")
    target_mse: float | None = option(
        None,
        "stop at the first evaluation whose test MSE is at most this",
        kind=float,
        above=0,
        heading=LENGTH,
        roles=Role.COURSE,
        quiet=None,
    )
    warmup_steps: int = shared("warmup_steps")
    evaluate_every: float = option(
        1.0,
        "epochs between two evaluations on the test set; 0.5 is twice an epoch",
        kind=float,
        above=0,
        heading=LENGTH,
        roles=Role.COURSE,
        quiet=1e6,  # at the end only
    )
    checkpoint_every: int | None = option(
        None,
        "write a checkpoint every so many steps; the newest two are kept",
        kind=int,
        low=1,
        heading=LENGTH,
        roles=Role.COURSE | Role.SWEEPABLE | Role.CELL,
        quiet=None,
        words=lambda value: "no checkpoints on the way" if value == AS_SHIPPED else f"checkpoint every {value} steps",
    )
    checkpoint_at_end: bool = option(
        True,
        "write a checkpoint when the run ends or is stopped by a signal",
        kind=bool,
        heading=LENGTH,
        roles=Role.COURSE,
        quiet=False,
    )
    # How the workers communicate.
    backend: str = shared("backend")
    transport: str = shared("transport")
    reduction: str = option(
        "auto",
        "average one flat gradient buffer after backward, or each gradient from a hook during backward",
        choices=("auto", "flat", "hooks"),
        heading="workers",
        roles=COMMUNICATION_ROLES | Role.APPLIED,
        over=("*/*",),
        tries=("flat", "hooks"),
    )
    horovod_defaults: bool = option(
        False,
        "leave Horovod's and MPI's own settings alone instead of the shipped ones",
        kind=bool,
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        attributed=True,
        over=("horovod/*", "mpi/*", "ps/*"),
    )
    horovod_build: str | None = option(
        None,
        "name of the Horovod to load where several are installed side by side (`make setup BUILDS=...`)",
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        over=("horovod/*",),
    )
    cycle_time_ms: float | None = option(
        None,
        "Horovod: milliseconds between two looks of its thread for gradients to reduce",
        kind=float,
        low=0,
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        attributed=True,
        over=("horovod/*",),
        variable="HOROVOD_CYCLE_TIME",
        tries=(0.05, 0.2, 1.0, 5.0),
        words="cycle {} ms",
    )
    idle_cycle_time_ms: float | None = option(
        None,
        "Horovod: longest sleep of its thread while there is nothing to reduce; 0 is no such sleep",
        kind=float,
        low=0,
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        attributed=True,
        over=("horovod/*",),
        variable="HOROVOD_IDLE_CYCLE_TIME",
        tries=(0.0, 1.0, 10.0),
        words="idle cycle {} ms",
    )
    fusion_mb: float | None = option(
        None,
        "Horovod: gradients are joined to messages of at most so many MB (1e6 bytes); 0 joins none",
        kind=float,
        low=0,
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        over=("horovod/*",),
        variable="HOROVOD_FUSION_THRESHOLD",
        hooks=True,
        tries=(0.0, 0.1),
        words="fusion {} MB",
    )
    cache_capacity: int | None = option(
        None,
        "Horovod: how many tensors' negotiations are remembered; 0 negotiates each time",
        kind=int,
        low=0,
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        over=("horovod/*",),
        variable="HOROVOD_CACHE_CAPACITY",
        tries=(0,),
        words="cache {}",
    )
    hierarchical: bool | None = option(
        None,
        "Horovod: all-reduce within hosts first, then between them",
        kind=bool,
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        over=("horovod/*",),
        variable="HOROVOD_HIERARCHICAL_ALLREDUCE",
        several_hosts=True,
        tries=(True,),
    )
    groups: int | None = option(
        None,
        "Horovod with hooks: reduce the gradients in so many groups, each when its last one is there",
        kind=int,
        low=1,
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        over=("horovod/*",),
        hooks=True,
        tries=(1, 2, 4),
        words="{} groups",
    )
    yield_when_idle: bool | None = option(
        None,
        "MPI: give up the core while waiting, instead of polling",
        kind=bool,
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        over=("*/mpi",),
        variable="OMPI_MCA_mpi_yield_when_idle",
        tries=(False, True),
    )
    single_copy: bool | None = option(
        None,
        "MPI on one host: read the other worker's memory in one copy (CMA) instead of through shared memory",
        kind=bool,
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        over=("*/mpi",),
        variable="OMPI_MCA_btl_vader_single_copy_mechanism",
        tries=(False, True),
    )
    thread_priority: str = option(
        "auto",
        "who gets the core when gradients arrive: communication threads by realtime or by short time slices, or "
        "whoever computes (off); auto takes what the system permits where it helps",
        choices=("auto", "realtime", "slice", "off"),
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        over=("*/gloo",),
        tries=("off", "slice", "realtime"),
    )
    bucket_mb: float | None = option(
        None,
        "hooks of ddp and mpi: gradients are sent in buckets of about so many MB (default 25)",
        kind=float,
        above=0,
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        over=("ddp/*", "mpi/*", "ps/*"),
        hooks=True,
        tries=(0.1, 0.5),
        words="buckets {} MB",
    )
    broadcast_buffers: bool = option(
        False,
        "ddp: send the network's buffers from rank 0 with every step",
        kind=bool,
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        over=("ddp/*",),
        hooks=True,
        tries=(True,),
    )
    bucket_view: bool = option(
        True,
        "ddp: gradients are views of the buckets, not copies",
        kind=bool,
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        over=("ddp/*",),
        hooks=True,
        tries=(False,),
    )
    static_graph: bool = option(
        False,
        "ddp: the same parameters are used in every step",
        kind=bool,
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        over=("ddp/*",),
        hooks=True,
        tries=(True,),
    )
    ps_servers: int = option(
        1,
        "ps: how many ranks share the parameter server's work",
        kind=int,
        low=1,
        heading=COMMUNICATING,
        roles=COMMUNICATION_ROLES,
        over=("ps/*",),
        tries=(2, 4),
        words="{} servers",
    )
    # How a run is measured.
    timer_mode: str = option(
        "light",
        "how steps are timed: light stamps the ends of laps and reads them in bulk, strict also waits for the device "
        "at each, off times the whole window only",
        choices=TIMER_MODES,
        heading=MEASURED,
        roles=Role.CLOCK | Role.CELL,
        words=lambda value: "not timed" if value == "off" else f"{value} timers",
    )
    steady: str = option(
        "found",
        "where the timed window begins: where the steps are found to be steady, at the earliest after warmup_steps, or "
        "right there (declared)",
        choices=("found", "declared"),
        heading=MEASURED,
        roles=Role.WINDOW,
    )
    system_interval_s: float = option(
        1.0,
        "seconds between two samples of processors, memory, GPU and power, one sampler per host; 0 is none",
        kind=float,
        low=0,
        heading=MEASURED,
        roles=Role.CLOCK,
    )
    disk_full: str = option(
        "end",
        "what a run does when step rows find no room: end with the message, or go on training without rows",
        choices=("end", "go-on"),
        heading=MEASURED,
        roles=Role.CLOCK,
    )
    measure_sync: bool = option(
        False,
        "measure, after the timed window, what the synchronisation is made of (read it with horovod-study explain)",
        kind=bool,
        heading=MEASURED,
        roles=Role.PROBE,
    )
    measure_ablation: bool = option(
        False,
        "after the timed window, let blocks of steps with and without communication alternate, whose difference is "
        "what communication costs; the model is put back afterwards",
        kind=bool,
        heading=MEASURED,
        roles=Role.PROBE,
    )
    profile: str | None = option(
        None,
        "after the timed window, look into some more steps with this profiler; the model is put back afterwards",
        choices=PROFILERS,
        heading=MEASURED,
        roles=Role.PROBE,
    )
    profile_steps: int = option(
        50, "how many steps `profile` looks into", kind=int, low=1, heading=MEASURED, roles=Role.PROBE
    )
    timeline_steps: int = option(
        0,
        "Horovod: after the timed window, record its timeline over so many more steps",
        kind=int,
        low=0,
        heading=MEASURED,
        roles=Role.PROBE,
    )
    ranges: str = option(
        "off",
        "name the laps for an outside profiler: NVTX ranges (nsys) or ITT ranges (VTune)",
        choices=("off", "nvtx", "itt"),
        heading=MEASURED,
        roles=Role.PROBE,
    )
    # Where it runs, and as which run of which study.
    require: str | None = option(
        None,
        "what must be true of the run, or it ends with exit code 2: asked, or facts such as "
        "transport=mpi,path=shared-memory,ranks_per_host=2",
        metavar="FACTS",
        bare="asked",
        heading="workers",
        roles=Role.GUARD,
    )
    placement: str = shared("placement")
    workers_per_node: int | None = shared("workers_per_node")
    start_timeout_s: float = option(
        120.0,
        "seconds to wait at start for all workers before giving up",
        kind=float,
        above=0,
        heading="workers",
        roles=Role.GUARD,
    )
    stall_timeout_s: float = option(
        60.0,
        "seconds without progress after which a run names the rank it waits for, and ends",
        kind=float,
        above=0,
        heading="workers",
        roles=Role.GUARD,
    )
    study: str = shared("study")
    partition: str = shared("partition")
    repeat: int = shared("repeat")

    def check_together(self) -> None:
        """Raise ConfigError for values that are right each and do not fit together."""
        Configuration.check_together(self)  # no super(): the class is made again for its slots
        if all(getattr(self, name) is None for name in self.workload.budgets):
            object.__setattr__(self, "epochs", DEFAULT_EPOCHS)
        parse_widths(self.widths)
        if self.require is not None:
            from horovod_study import requirements  # imported here: it reads the fields of this module

            requirements.parse(self.require)
        if (self.lr_end is not None) != (self.schedule == "range"):
            raise ConfigError(
                f"run: schedule is {self.schedule!r} and lr_end is {self.lr_end}; schedule range needs lr_end, and "
                "no other schedule has one"
            )
        if self.schedule == "range" and self.seconds is not None:
            raise ConfigError("run: schedule range counts steps; give steps or epochs instead of seconds")
        if self.loader != "dataloader" and self.loader_processes:
            raise ConfigError(
                f"run: loader {self.loader} has no processes, but loader_processes is {self.loader_processes}; "
                "use loader dataloader, or leave loader_processes out"
            )
        self._check_graphs()
        if self.backend in ("mpi", "ps") and self.transport not in ("auto", "mpi"):
            raise ConfigError(f"run: backend {self.backend} works over mpi only, but transport is {self.transport!r}")

    def _check_graphs(self) -> None:
        """Raise ConfigError for what cannot be captured in CUDA graphs, or needs them."""
        if not self.cuda_graphs:
            for name, asked in (("kernels fused", self.kernels == "fused"), ("capture_sync", self.capture_sync)):
                if asked:
                    raise ConfigError(f"run: {name} needs cuda_graphs; add cuda_graphs, or leave {name} out")
            return
        if self.reduction == "hooks":
            raise ConfigError(
                "run: reduction is 'hooks', and a CUDA graph captures no hooks; leave reduction out (one flat buffer "
                "is averaged between the graphs), or leave cuda_graphs out"
            )
        if self.kernels == "fused":
            if self.precision == "fp16":
                raise ConfigError(
                    "run: kernels fused computes in fp32, tf32 and bf16, but precision is 'fp16'; use precision bf16, "
                    "or kernels torch"
                )
            if self.compile:
                raise ConfigError(
                    "run: kernels fused leaves torch.compile nothing to compile; leave compile out, or use kernels "
                    "torch"
                )
        if self.capture_sync:
            if self.backend not in ("auto", "ddp") or self.transport not in ("auto", "nccl"):
                raise ConfigError(
                    f"run: capture_sync needs backend ddp over nccl, whose all-reduce a CUDA graph can hold, but "
                    f"backend is {self.backend!r} and transport {self.transport!r}; use backend ddp and transport "
                    "nccl, or leave capture_sync out"
                )
            if self.timer_mode == "strict":
                raise ConfigError(
                    "run: timer_mode strict looks between the phases of a step, and capture_sync leaves nothing "
                    "between them; use timer_mode light, or leave capture_sync out"
                )
            if self.measure_ablation:
                raise ConfigError(
                    "run: measure_ablation makes steps that average nothing, and with capture_sync the average is in "
                    "the graph of every step; leave one of the two out"
                )


def parse_widths(text: str) -> tuple[int, int, int]:
    """Return the widths meant by `15-38-197`: channels of the two convolutions, units of the hidden layer."""
    parts = text.split("-")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and 1 <= int(part) <= 65536 for part in parts):
        raise ConfigError(
            f"run: widths is {text!r}; it must be three whole numbers from 1 to 65536 such as 15-38-197: "
            "channels of the two convolutions and units of the hidden layer"
        )
    first, second, hidden = (int(part) for part in parts)
    return first, second, hidden


DEFAULT_EPOCHS = 10


def _command(config: Path, directory: Path, resume: bool) -> tuple[str, ...]:
    return ("-m", TRAINER, "--config", str(config), "--resume" if resume else "--out", str(directory))


def _samples_of_epoch(config: Configuration) -> float | None:
    size = cast(RunConfig, config).dataset
    return 0.75 * int(size) if size.isdigit() else None


STRAIN = Workload(
    name="strain",
    configuration=RunConfig,
    command=_command,
    resumable=True,
    samples="curves",
    threads_of=lambda config: config.threads + cast(RunConfig, config).loader_processes,
    samples_of_epoch=_samples_of_epoch,
    small={
        "dataset": "400",
        "batch": 16,
        "warmup_steps": 0,
        "steady": "declared",
        "system_interval_s": 0.0,
        "start_timeout_s": 60.0,
    },
)
"""The package's own training, and the workload of studies that name none."""
OPTIONS = STRAIN.options
BUDGETS = STRAIN.budgets
COMMUNICATION = STRAIN.communication
SWEEPABLE = STRAIN.sweepable
DISTINGUISHING = STRAIN.distinguishing
QUIET = STRAIN.quiet


def run_config(values: Mapping[str, Any], *, source: str = "run") -> RunConfig:
    """Make a RunConfig from option or YAML values; an unknown name is refused with the nearest known one."""
    return cast(RunConfig, STRAIN.configure(values, source=source))


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where the workers of one cell sit: on how many nodes of which partition, and how many on each."""

    partition: str = "local"
    workers: int = 1
    workers_per_node: int = 1  # at most
    layout: str = "fill"  # one of PLACEMENTS
    hosts: tuple[str, ...] = ()  # of layout list: the names of the nodes, in the order of the ranks

    def __post_init__(self) -> None:
        if self.workers < 1 or self.workers_per_node < 1:
            raise ConfigError(
                f"placement: workers is {self.workers} and workers_per_node {self.workers_per_node}; both at least 1"
            )
        if self.layout not in PLACEMENTS:
            raise ConfigError(
                f"placement: {self.layout!r}{nearest(self.layout, PLACEMENTS)}; allowed: {', '.join(PLACEMENTS)}"
            )
        if bool(self.hosts) != (self.layout == "list"):
            raise ConfigError("placement: list needs the names of its nodes, and only list has any")
        if self.hosts and len(self.hosts) < self.nodes:
            raise ConfigError(
                f"placement: {self.workers} workers at {self.workers_per_node} per node need {self.nodes} nodes, but "
                f"{len(self.hosts)} are named: {', '.join(self.hosts)}"
            )

    @property
    def nodes(self) -> int:
        """Number of nodes used."""
        return math.ceil(self.workers / self.workers_per_node)

    @property
    def per_node(self) -> tuple[int, ...]:
        """Workers on each node, in the order of the ranks; together `workers`."""
        if self.layout == "spread":
            least, more = divmod(self.workers, self.nodes)
            return (least + 1,) * more + (least,) * (self.nodes - more)
        full, rest = divmod(self.workers, self.workers_per_node)
        return (self.workers_per_node,) * full + ((rest,) if rest else ())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; what is at its default and was not thought of before is left out."""
        values: dict[str, Any] = {name: getattr(self, name) for name in ("partition", "workers", "workers_per_node")}
        if self.layout != "fill":
            values["layout"] = self.layout
        if self.hosts:
            values["hosts"] = list(self.hosts)
        return values


def misplaced(config: RunConfig, hosts: Sequence[str]) -> str:
    """Say how ranks on `hosts`, one name per rank, sit otherwise than the configuration asks; "" where they do not."""
    counts = {host: hosts.count(host) for host in dict.fromkeys(hosts)}
    found, most, spread = tuple(counts.values()), config.workers_per_node, config.placement == "spread"
    if most is not None:
        layout = "spread" if spread else "fill"
        wanted = Placement(workers=len(hosts), workers_per_node=most, layout=layout).per_node
        right = tuple(sorted(found, reverse=True)) == wanted  # which node comes first is nobody's wish
        asked = f"--workers-per-node {most}{' and --placement spread' if spread else ''}"
        rule = "+".join(str(count) for count in wanted[:4]) + ("+..." if len(wanted) > 4 else "")
        rule += f" on {len(wanted)} node{'' if len(wanted) == 1 else 's'}"
    else:
        right = not spread or max(found) - min(found) <= 1
        asked, rule = "--placement spread", "equally many on each node, but for one"
    if right:
        return ""
    where = [
        f"{count}{'' if at else ' workers are' if count > 1 else ' worker is'} on {host}"
        for at, (host, count) in enumerate(counts.items())
    ]
    told = " and ".join(where) if len(where) <= 4 else f"{', '.join(where[:3])} and so on over {len(where)} nodes"
    return f"{told}, but {asked} means {rule}; place them so when launching, or leave the option out"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One run of a study: a configuration, a runtime and a placement, done `repeat` times.

    `identity`: digest of the code and of the environment it is run with, "" where these do not distinguish cells.
    """

    config: Configuration
    runtime: str
    placement: Placement
    identity: str = ""
    _key: list[str] = field(default_factory=list, init=False, repr=False, compare=False)  # once it was asked for

    @property
    def key(self) -> str:
        """Readable and unique name of the cell's directory; equal for equal content, repeats apart."""
        if not self._key:
            self._key.append(self._digested())
        return self._key[0]

    def _digested(self) -> str:
        content = {"config": self.config.to_dict(), "runtime": self.runtime, "placement": self.placement.to_dict()}
        if self.identity:
            content["identity"] = self.identity
        if told := self.config.workload.identity:
            content["workload"] = told
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
        runtime = self.runtime.replace("/", "-")
        return f"{runtime}-{self.placement.workers}w-b{self.config.batch}-r{self.config.repeat}-{digest}"


def local_cell(
    runtime: str, values: Mapping[str, Any], *, workers: int, source: str, workload: Workload = STRAIN
) -> Cell:
    """Return the cell of `workers` over `runtime` on this machine; ConfigError when its values do not fit together."""
    backend, _, transport = runtime.partition("/")
    config = workload.configure({**values, "backend": backend, "transport": transport or "none"}, source=source)
    return Cell(
        config=config,
        runtime=runtime,
        placement=Placement(partition=config.partition, workers=workers, workers_per_node=workers),
    )


def find_workload(name: str | None, *, beside: Path = Path()) -> Workload:
    """Return the workload called `name`: a Python file in the folder `beside`, or the package's own (None)."""
    return STRAIN if name in (None, STRAIN.name) else load_workload(beside / str(name))


def available_cores() -> int:
    """Cores this process may run on (a container or a batch system may allow fewer than the machine has)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
