"""A Lightning module and its Trainer, which starts the second rank itself.

horovod-study record --out runs/lightning/2w -- python examples/unchanged/lightning_trainer.py --devices 2
"""

import argparse

import pytorch_lightning as lightning
import torch
from pytorch_lightning.plugins.environments import LightningEnvironment
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=32, help="samples of a step on one worker")
parser.add_argument("--devices", type=int, default=2, help="ranks")
options = parser.parse_args()


class Regression(lightning.LightningModule):
    """A small network that learns the squared length of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.layers(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


if __name__ == "__main__":
    torch.set_num_threads(1)
    inputs = torch.randn(options.devices * options.steps * options.batch, 64)
    data = TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=options.devices,
        strategy="ddp" if options.devices > 1 else "auto",
        plugins=[LightningEnvironment()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), DataLoader(data, batch_size=options.batch))
