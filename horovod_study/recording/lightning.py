"""Records the steps of a Lightning Trainer: `Trainer(callbacks=[StepRecorder("runs/mine/2w")])`.

Only public hooks of Lightning's callbacks are used, and those of PyTorch that rank/watch.py uses. Lightning calls the
training step and backward from inside the optimizer's step, so the laps are these:

    data        from the end of one batch to the start of the next: the loader, and what Lightning does in between
    forward     the training step with its loss, and clearing the gradients
    backward    until this rank's last gradient is made
    sync        the wait inside the backward of DistributedDataParallel after that
    update      the rest of the optimizer's step
    residual    the rest

A step is what is between two updates: with `accumulate_grad_batches` it is several batches. Validation inside an
epoch belongs to no step. The first optimizer is followed.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

from horovod_study.errors import ConfigError
from horovod_study.recording.recorder import recorder


def _installed() -> Any:
    """Return the package `lightning.pytorch` or `pytorch_lightning`: the one that is in use, or is there."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in (*(each for each in names if each in sys.modules), *names):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ConfigError(
        "horovod_study.recording.lightning: Lightning is not installed; run `pip install pytorch-lightning`, or put "
        "horovod_study.recorder() around a loop of your own"
    )


_Callback: Any = _installed().Callback


class StepRecorder(_Callback):  # type: ignore[misc]
    """Records every step that the Trainer makes in `fit`; options are those of `horovod_study.recorder`."""

    def __init__(self, out: str | Path | None = None, **options: Any) -> None:
        super().__init__()
        self._out, self._options = out, options
        self._record: Any = None  # a Recording, while it is open
        self._skipped: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the record, now that the model is wrapped and on its device."""
        if not trainer.optimizers:
            raise ConfigError("StepRecorder: the module has no optimizer; return one from configure_optimizers")
        model = trainer.strategy.model
        self._record = recorder(model, trainer.optimizers[0], out=self._out, forward_hooks=False, **self._options)
        self._record.__enter__()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a loop over the batches of an epoch."""
        self._record.begin_loop(trainer.train_dataloader)
        self._record.begin()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """The batch is there."""
        self._record.fetched(batch)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """The training step is done."""
        if self._record.in_step:
            self._record.lap("forward")
            self._record.loss(loss)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Wait for the next batch; a step ends here where this one has made an update."""
        self._record.begin()
        trainer.should_stop |= self._record.ended

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Leave the validation out of all steps."""
        if self._record is not None:
            self._skipped = self._record.skip()
            self._skipped.__enter__()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Go on."""
        if self._record is not None:
            self._skipped.__exit__(None, None, None)
            self._record.begin()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Nothing is waited for after the last batch."""
        self._record.leave()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Finish the record."""
        self.on_exception(trainer, pl_module, None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException | None) -> None:
        """Mark the run as failed, with the reason; without one it is done."""
        record, self._record = self._record, None
        if record is not None:
            record.__exit__(exception and type(exception), exception, exception and exception.__traceback__)
