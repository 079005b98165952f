#!/usr/bin/env python3
"""Lightning over bps: torchrun --standalone --nproc_per_node 2 with_lightning.py, or without torchrun: it starts the ranks."""
import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset

import bps.torch  # noqa: F401, the backend "bps"; torch 2.14 and later find it without


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.losses = []

    def training_step(self, batch, number):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        self.losses.append(loss.item())
        return loss

    def on_train_end(self):
        if self.global_rank == 0:
            print(f"{torch.distributed.get_backend()}: loss from {self.losses[0]:.4f} to {self.losses[-1]:.4f}")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


if __name__ == "__main__":
    lightning.seed_everything(0, verbose=False)
    inputs = torch.randn(512, 8)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True).tanh()), batch_size=16, shuffle=True)
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="bps"), max_epochs=4,
                                gradient_clip_val=1.0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                enable_model_summary=False)
    trainer.fit(Model(), loader)
