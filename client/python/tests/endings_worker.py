"""Workers of torch_test.py: many optimizers one after another, and ranks and daemons that are killed in a step; as
torch_worker.py."""
import os
import signal
import sys

import torch
import torch_models as models
from optimizer_worker import Net, set_of
from sparse_worker import Words
from torch_worker import main

import bps.torch as bps


def many(number):
    """Models and optimizers of every kind, one after another."""
    kinds = [(Net, torch.optim.SGD, {}), (Net, torch.optim.Adam, {"model": True}), (Words, torch.optim.SGD, {}),
             (Net, torch.optim.AdamW, {"mode": "async"}), (Net, torch.optim.LBFGS, {}), (Net, torch.optim.SGD, {"process_set": set_of(1)}),
             (Net, torch.optim.SGD, {"process_set": set_of(0, 1), "gradient_predivide_factor": 2.0}),
             (Net, torch.optim.SGD, {"compression": bps.Compression.fp16}), (Words, torch.optim.SGD, {"sparse_as_dense": True})]
    for one in range(int(number)):
        kind, make, options = kinds[one % len(kinds)]
        model = kind()
        optimizer = bps.DistributedOptimizer(make(model.parameters(), lr=0.01), model.named_parameters(),
                                             **{**options, **({"model": model} if "model" in options else {})})
        for step in range(2):
            def closure():
                optimizer.zero_grad()
                loss = (models.language_loss if kind is Words else models.square_loss)(model, bps.rank(), step)
                loss.backward()
                return loss

            optimizer.step(closure)
        optimizer.synchronize()
        del optimizer, model, closure
        if one in (int(number) // 4, int(number) - 1):
            print(f"model {one}", flush=True)
            sys.stdin.readline()


def killed(how):
    """Rank 1, in the middle of its fourth step; how "nobody": nobody kills itself."""
    def ending(step):
        if step == 3:
            print("middle", flush=True)
            if bps.rank() == 1 and how != "nobody":
                os.kill(os.getpid(), signal.SIGKILL)

    model = models.seeded(Words if how == "sparse" else Net)
    loss_of = models.language_loss if how == "sparse" else models.square_loss
    make = torch.optim.LBFGS if how == "lbfgs" else torch.optim.SGD
    options = {"process_set": set_of(0, 1)} if how == "set" else {}
    if how == "set" and bps.rank() == 2:
        bps.barrier()
    optimizer = bps.DistributedOptimizer(make(model.parameters(), lr=0.1), model.named_parameters(), **options)
    for step in range(100_000):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, bps.rank(), step)
            loss.backward()
            ending(step)
            return loss

        if how == "lbfgs":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


if __name__ == "__main__":
    main(globals())
