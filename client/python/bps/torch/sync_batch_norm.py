"""Batch normalisation over the batches of all ranks."""
from typing import Any, Optional

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .._abi import Op
from ..errors import invalid
from .operations import allreduce
from .world import size


class SyncBatchNorm(_BatchNorm):
    """As torch.nn.BatchNorm1d, 2d and 3d of one process that has the batches of all ranks, which may differ in length. On CPUs and
    GPUs. In training all ranks call it, in the same order, and let a gradient flow back, or none does."""

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002: torch's name
        if input.dim() < 2:
            raise invalid(f"SyncBatchNorm is given a tensor of {input.dim()} dimensions", "give at least two: (N, C, ...)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        self._check_input_dim(input)
        uses_batch = self.training or self.running_mean is None
        if not uses_batch or size() == 1:
            return self._alone(input)
        factor = self._count_batch()
        weight, bias = self.weight, self.bias
        result: torch.Tensor = _Normalised.apply(  # type: ignore[no-untyped-call]
            input, weight, bias, self.running_mean if self.training else None, self.running_var if self.training else None,
            factor, self.eps)
        return result

    def _alone(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        uses_batch = self.training or self.running_mean is None
        factor = self._count_batch() if uses_batch else 0.0
        return torch.nn.functional.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, uses_batch,
                                              factor, self.eps)

    def _count_batch(self) -> float:
        """How much this batch counts in the running averages."""
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                return 1.0 / float(self.num_batches_tracked)
        return 0.0 if self.momentum is None else self.momentum


class _Normalised(torch.autograd.Function):
    """Mean and variance of all ranks, in two passes, because a difference of squares loses digits. In f32 at least."""

    @staticmethod
    def forward(context: Any, given: torch.Tensor, weight: Optional[torch.Tensor], bias: Optional[torch.Tensor],
                running_mean: Optional[torch.Tensor], running_var: Optional[torch.Tensor], factor: float,
                eps: float) -> torch.Tensor:
        wide = given.to(torch.promote_types(given.dtype, torch.float32))
        own = wide.numel() // wide.shape[1]
        sums = allreduce(torch.cat([_per_channel(wide), wide.new_tensor([float(own)])]), op=Op.SUM)
        count, mean = sums[-1], sums[:-1] / sums[-1]
        if float(count) < 2 and running_var is not None:
            raise invalid("SyncBatchNorm is given one value of each channel on all ranks together", "give larger batches")
        centred = wide - _spread(mean, wide)
        variance = allreduce(_per_channel(centred * centred), op=Op.SUM) / count
        deviation = torch.rsqrt(variance + eps)
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), factor)
            running_var.lerp_((variance * count / (count - 1)).to(running_var.dtype), factor)
        normal = centred * _spread(deviation, wide)
        context.save_for_backward(normal, deviation, weight, count)
        result = normal if weight is None else normal * _spread(weight.to(wide.dtype), wide)
        return (result if bias is None else result + _spread(bias.to(wide.dtype), wide)).to(given.dtype)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        normal, deviation, weight, count = context.saved_tensors
        wide = gradient.to(normal.dtype)
        sum_of, sum_with = _per_channel(wide), _per_channel(wide * normal)
        of_given = None
        if context.needs_input_grad[0]:
            means = allreduce(torch.cat([sum_of, sum_with]), op=Op.SUM) / count
            channels = normal.shape[1]
            of_normal = wide - _spread(means[:channels], wide) - normal * _spread(means[channels:], wide)
            scale = deviation if weight is None else deviation * weight.to(wide.dtype)
            of_given = (of_normal * _spread(scale, wide)).to(gradient.dtype)
        of_weight = sum_with.to(weight.dtype) if context.needs_input_grad[1] else None
        of_bias = sum_of.to(gradient.dtype if weight is None else weight.dtype) if context.needs_input_grad[2] else None
        return of_given, of_weight, of_bias, None, None, None, None


def _per_channel(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.sum([dimension for dimension in range(tensor.dim()) if dimension != 1])


def _spread(channels: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return channels.reshape([1, -1] + [1] * (like.dim() - 2))
