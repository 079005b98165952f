#!/usr/bin/env python3
"""Hugging Face Accelerate over bps: torchrun --standalone --nproc_per_node 2 with_accelerate.py"""
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import bps.torch  # noqa: F401, the backend "bps"; torch 2.14 and later find it without

torch.distributed.init_process_group("bps")  # before the Accelerator, which takes gloo for CPUs otherwise
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
inputs = torch.randn(512, 8)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True).tanh()), batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

losses = []
for _ in range(4):
    for batch, target in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(batch), target)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
accelerator.print(f"{torch.distributed.get_backend()}: loss from {losses[0]:.4f} to {losses[-1]:.4f}")
accelerator.end_training()
