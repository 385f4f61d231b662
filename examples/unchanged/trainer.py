"""The Trainer of HuggingFace Transformers, with a small GPT that starts from nothing: no download.

horovod-study record --out runs/trainer/2w -- torchrun --nproc-per-node 2 examples/unchanged/trainer.py
"""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch", type=int, default=4, help="samples of a step on one worker")
options = parser.parse_args()


class Tokens(Dataset):
    """Made-up sequences of 32 tokens out of 64."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 64, (32,), generator=torch.Generator().manual_seed(place))
        return {"input_ids": tokens, "labels": tokens}


torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as folder:
    how = TrainingArguments(
        folder,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2))
    Trainer(model=model, args=how, train_dataset=Tokens()).train()
