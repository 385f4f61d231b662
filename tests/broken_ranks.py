"""The rank program of the benchmark with an all-reduce that is wrong on purpose: it leaves the last element out."""

import torch

from horovod_study.comm.raw import MpiRaw
from horovod_study.programs import answer, microbench

right = MpiRaw.allreduce_


def wrong(self: MpiRaw, tensor: torch.Tensor) -> None:
    right(self, tensor[:-1])


MpiRaw.allreduce_ = wrong  # type: ignore[method-assign]

if __name__ == "__main__":
    answer.serve_measurement(lambda plan, config, backend, told: microbench.measure(plan, backend))
