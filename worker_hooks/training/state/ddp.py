"""What DistributedDataParallel does to the bits, and how a resumed run gets the same.

DDP sums gradients in buckets. Its first iteration uses provisional buckets; before the second it rebuilds them in the
order in which gradients became ready. Another order of summation gives other last bits with more than two ranks. So a
checkpoint records the rebuilt order, and a resume makes DDP rebuild to exactly that order before the first step: two
discarded iterations through DDP's own forward and backward in which every gradient is zero and the gradients become
ready in the recorded order. The model itself does not run, so data, buffers, random state and hooks are untouched, and
the training script need not know.
"""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Order = list[list[int]]
_ROUNDS = 2


def replicas(models: dict[str, nn.Module]) -> dict[str, DistributedDataParallel]:
    """Every DDP instance inside the tracked models, by path."""
    found = {}
    for name, model in models.items():
        for path, module in model.named_modules():
            if isinstance(module, DistributedDataParallel):
                found[f"{name}.{path}".rstrip(".")] = module
    return found


def broadcasts_buffers(replica: DistributedDataParallel) -> bool:
    return bool(replica.broadcast_buffers)


def bucket_order(replica: DistributedDataParallel) -> Order | None:
    """The rebuilt buckets as lists of parameter numbers; None if DDP has not rebuilt or does not say.

    At a step boundary after the first backward DDP is about to rebuild; it is asked to do so now, which the next
    forward would do first thing anyway. That is a collective of DDP's own group, at the same step on every rank.
    """
    order = _logged_order(replica)
    if order is None and rebuilds(replica):
        replica.reducer._rebuild_buckets()
        replica.logger.set_runtime_stats_and_log()
        order = _logged_order(replica)
    return order


def rebuilds(replica: DistributedDataParallel) -> bool:
    """False where DDP keeps its first buckets (unused parameters) or counts uses instead (static graph)."""
    return not replica.find_unused_parameters and not replica.static_graph


def warm_up(replica: DistributedDataParallel, order: Order) -> Order | None:
    """Discarded iterations after which the buckets are rebuilt in `order`; returns the order DDP says it has now."""
    parameters = list(_reducer_parameters(replica))
    sequence = [index for bucket in order for index in bucket]
    if sorted(sequence) != list(range(len(parameters))):
        return None
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    # DDP's forward with everything around the module, without the module.
    replica._run_ddp_forward = lambda *inputs, **kwargs: None
    try:
        for _ in range(_ROUNDS):
            replica.forward()
            for index in sequence:
                torch.autograd.backward(parameters[index], torch.zeros_like(parameters[index]))
    finally:
        del replica._run_ddp_forward
    for parameter, grad in zip(parameters, kept, strict=True):
        parameter.grad = grad
    replica.logger.set_runtime_stats_and_log()
    return _logged_order(replica)


def _reducer_parameters(replica: DistributedDataParallel) -> Iterator[nn.Parameter]:
    """In the order in which the reducer numbers them."""
    parameters, _ = replica._build_params_for_reducer()
    yield from parameters


def _logged_order(replica: DistributedDataParallel) -> Order | None:
    data = replica._get_ddp_logging_data()
    text = data.get("rebuilt_per_bucket_param_indices")
    if not data.get("has_rebuilt_buckets") or not text:
        return None
    return [[int(index) for index in bucket.split()] for bucket in str(text).split(",")]
