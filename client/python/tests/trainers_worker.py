"""What trainers do with a process group beside training: checkpoints, gathered metrics, early ends. A program of
trainers_test.py: trainers_worker.py TRAINER BACKEND, in an empty folder. Rank 0 prints the result, the same with each backend."""
import os
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import bps.torch  # noqa: F401, registers the backend

BACKEND = sys.argv[2]


def data():
    """A number of samples that neither ranks nor batches divide."""
    inputs = torch.randn(101, 8, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True).tanh())


def accelerate():
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.local_sgd import LocalSGD
    from accelerate.utils import broadcast_object_list, gather_object

    dist.init_process_group(BACKEND)
    for dispatch in (False, True):
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(), batch_size=7))

        def epoch(after_step=lambda: None):
            seen = []
            for inputs, targets in loader:
                accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
                after_step()
                seen.append(accelerator.gather_for_metrics(inputs))
            return torch.cat(seen)

        assert len(epoch()) == 101
        accelerator.save_state(f"state{dispatch}")
        accelerator.wait_for_everyone()
        saved = [parameter.clone() for parameter in model.parameters()]
        epoch()
        accelerator.load_state(f"state{dispatch}")
        assert all(map(torch.equal, saved, model.parameters()))
        with accelerator.join_uneven_inputs([model]):
            epoch()
        rank = accelerator.process_index
        assert accelerator.reduce(torch.tensor(rank + 1.0), "sum") == 3
        assert gather_object([rank]) == [0, 1] and broadcast_object_list([rank]) == [0]
        assert accelerator.pad_across_processes(torch.ones(2 + rank)).shape == (3,)
        with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=2) as local:
            epoch(local.step)
        accelerator.print("result:", dispatch, [parameter.tolist() for parameter in model.parameters()])
    accelerator.end_training()


def transformers():
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    dist.init_process_group(BACKEND)
    starts = torch.randint(20, (37, 1), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": row} for row in (starts + torch.arange(12)) % 20]

    def accuracy(prediction):
        return {"accuracy": float((prediction.predictions.argmax(-1)[:, :-1] == prediction.label_ids[:, 1:]).mean())}

    def trainer(epochs):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=12, n_embd=32, n_layer=1, n_head=2))
        arguments = TrainingArguments(
            "trained", use_cpu=True, num_train_epochs=epochs, per_device_train_batch_size=4, learning_rate=0.01,
            gradient_accumulation_steps=2, save_strategy="epoch", eval_strategy="epoch", report_to="none", disable_tqdm=True)
        return Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:9], compute_metrics=accuracy)

    trainer(1).train()
    whole = trainer(3)
    whole.train(resume_from_checkpoint=True)
    evaluated = whole.evaluate()
    if whole.is_world_process_zero():
        print("result:", whole.state.global_step, evaluated["eval_loss"], evaluated["eval_accuracy"])
    dist.destroy_process_group()


def lightning():
    import lightning
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
    from lightning.pytorch.strategies import DDPStrategy

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1))
            self.unused = torch.nn.Linear(2, 2)

        def training_step(self, batch, number):
            return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def validation_step(self, batch, number):
            self.log("loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)
            assert self.all_gather(torch.tensor(self.global_rank)).tolist() == [0, 1]

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    lightning.seed_everything(0, verbose=False)
    loader, model = DataLoader(data(), batch_size=7), None
    for epochs in (3, 5):
        model = Model()
        trainer = lightning.Trainer(
            accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend=BACKEND, find_unused_parameters=True),
            max_epochs=epochs, logger=False, enable_progress_bar=False, accumulate_grad_batches=3, gradient_clip_val=0.5,
            callbacks=[ModelCheckpoint("kept", monitor="loss", save_last=True), EarlyStopping("loss", patience=5)])
        trainer.fit(model, loader, loader, ckpt_path=None if epochs == 3 else "kept/last.ckpt")
    validated = trainer.validate(model, loader, verbose=False)
    if trainer.global_rank == 0:
        print("result:", trainer.current_epoch, validated)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    if BACKEND == "gloo":  # its threads may abort a process while Python ends, which says nothing about what is compared here
        sys.stdout.flush()
        os._exit(0)
