#!/usr/bin/env python3
"""The Trainer of Hugging Face Transformers over bps: torchrun --standalone --nproc_per_node 2 with_transformers.py"""
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import bps.torch  # noqa: F401, the backend "bps"; torch 2.14 and later find it without

torch.distributed.init_process_group("bps")  # before TrainingArguments, which take gloo for CPUs otherwise
random = torch.Generator().manual_seed(1)
starts = torch.randint(20, (256, 1), generator=random)
data = [{"input_ids": row, "labels": row} for row in (starts + torch.arange(12)) % 20]
model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=12, n_embd=32, n_layer=1, n_head=2))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, use_cpu=True, num_train_epochs=4, per_device_train_batch_size=16, learning_rate=0.01,
                                  logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, log_level="error")
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:64])
    trainer.train()
    evaluated = trainer.evaluate()["eval_loss"]
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
if trainer.is_world_process_zero():
    print(f"{torch.distributed.get_backend()}: loss from {losses[0]:.4f} to {losses[-1]:.4f}, evaluated {evaluated:.4f}")
torch.distributed.destroy_process_group()
