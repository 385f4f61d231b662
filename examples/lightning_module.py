"""A Lightning module and Trainer, recorded through one callback.

    python examples/lightning_module.py --out runs/lightning/1w
    python examples/lightning_module.py --workers 2 --out runs/lightning/2w
    horovod-study report runs/lightning

It needs `pip install pytorch-lightning`. The callback is the only line about recording.
"""

import argparse

import pytorch_lightning as lightning
import torch
from pytorch_lightning.plugins.environments import LightningEnvironment
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from horovod_study.recording.lightning import StepRecorder


class Regression(lightning.LightningModule):
    """A small network that learns the squared length of its input: (B, 64) -> (B, 1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss of one batch, shape ()."""
        inputs, targets = batch
        return nn.functional.mse_loss(self.network(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="run directory (default: a new one below runs/)")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--warmup-steps", type=int, default=50, help="how many of them are not measured")
    parser.add_argument("--batch", type=int, default=64, help="samples per worker and step")
    parser.add_argument("--width", type=int, default=512, help="neurons of the hidden layer")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()

    lightning.seed_everything(0, verbose=False)
    inputs = torch.randn(20 * options.batch * options.workers, 64)  # an epoch has 20 steps
    data = TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True))
    trainer = lightning.Trainer(
        max_steps=options.steps,
        devices=options.workers,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        strategy="ddp" if options.workers > 1 else "auto",
        # Named, or Lightning looks for MPI and starts it where mpi4py is installed.
        plugins=[LightningEnvironment()],
        callbacks=[StepRecorder(options.out, warmup_steps=options.warmup_steps)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(options.width), DataLoader(data, batch_size=options.batch))


if __name__ == "__main__":
    main()
