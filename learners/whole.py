"""What a learner computes from the rows of all processes of a data-parallel training at once."""

from __future__ import annotations

import torch
from torch import Tensor

from learners.distributed import Group, all_moments
from learners.normalize import merge_moments
from learners.rollout import Batch


@torch.no_grad()
def whole_batch(batch: Batch, group: Group, norm_adv: bool) -> tuple[Batch, dict[str, Tensor]]:
    """The batch, its advantages normalised over the rows of all processes if `norm_adv`, and figures of all those rows.

    Every process has the same number of rows.
    """
    columns = (batch.advantage, batch.target, batch.target - batch.value, batch.value)
    rows = torch.stack(columns, dim=1).to(torch.float64)
    variance, mean = torch.var_mean(rows, dim=0, correction=0)
    count = torch.full((), len(rows), dtype=torch.float64, device=rows.device)
    whole = (torch.zeros_like(count), torch.zeros_like(mean), torch.zeros_like(mean))
    for other_mean, other_m2 in all_moments(mean, variance * len(rows), group):
        whole = merge_moments(*whole, count, other_mean, other_m2)
    total, mean, m2 = whole
    variance = m2 / total
    if norm_adv:
        shift, scale = mean[0].to(torch.float32), (variance[0].sqrt() + 1e-8).to(torch.float32)
        batch = batch._replace(advantage=(batch.advantage - shift) / scale)
    explained = torch.where(variance[1] > 0, 1 - variance[2] / variance[1], torch.nan)
    return batch, {"explained_variance": explained.to(torch.float32), "value_mean": mean[3].to(torch.float32)}
