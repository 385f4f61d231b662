"""Start the trainer with one rank that sleeps before each batch: `slow_rank.py RANK SECONDS FILE [train options]`.

How long each sleep really was, in s, goes to FILE as JSON: on a busy machine it is longer than asked for.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from horovod_study import train
from horovod_study.comm import detect
from horovod_study.strain import trainer
from horovod_study.strain.loaders import Batch, Loader


class SlowLoader:
    """Hands on the batches of a loader, each a little later."""

    def __init__(self, loader: Loader, delay_s: float, told: Path) -> None:
        self._loader, self._delay_s, self._told, self.note = loader, delay_s, told, loader.note
        self._slept_s: list[float] = []

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        for batch in self._loader.epoch(epoch, first):
            began = time.perf_counter()
            time.sleep(self._delay_s)
            self._slept_s.append(time.perf_counter() - began)
            yield batch

    def close(self) -> None:
        self._loader.close()
        self._told.write_text(json.dumps(self._slept_s))


def main() -> int:
    slow, delay_s, told, *options = sys.argv[1:]
    open_loader = trainer.open_loader

    def open_slow_loader(config: Any, dataset: Any, batches: Any, device: Any) -> Any:
        loader = open_loader(config, dataset, batches, device)
        return SlowLoader(loader, float(delay_s), Path(told)) if detect(os.environ).rank == int(slow) else loader

    trainer.open_loader = open_slow_loader
    return train.main(options)


if __name__ == "__main__":
    sys.exit(main())
