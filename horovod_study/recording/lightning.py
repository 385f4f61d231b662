"""Records the steps of a Lightning Trainer: `Trainer(callbacks=[StepRecorder("runs/mine/2w")])`.

Only public hooks of Lightning's callbacks are used, and those of PyTorch that rank/watch.py uses. Lightning calls the
training step and backward from inside the optimizer's step, so data is what is between two batches, forward the
training step with its loss, and update the rest of the optimizer's step. The first optimizer is followed, and a step is
what is between two updates of it; validation belongs to none.
"""

import importlib
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from horovod_study.errors import ConfigError
from horovod_study.recording.recorder import recorder


def _installed() -> Any:
    """Return the package `lightning.pytorch` or `pytorch_lightning`: the one that is in use, or is there."""
    for name in sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda each: each not in sys.modules):
        with suppress(ModuleNotFoundError):
            return importlib.import_module(name)
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
        self._skipped = ExitStack()

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
            self._skipped.enter_context(self._record.skip())

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Go on."""
        if self._record is not None:
            self._skipped.close()
            self._record.begin()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Nothing is waited for after the last batch."""
        self._record.leave()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException | None = None) -> None:
        """Finish the record; with an exception it is that of a run that has failed."""
        record, self._record = self._record, None
        if record is not None:
            record.__exit__(exception and type(exception), exception, exception and exception.__traceback__)

    on_train_end = on_exception
