"""What another number of ranks means for the batch and the learning rate. Numbers only; ranks: test_training_resume."""

import json
from typing import Any

import pytest
import torch

from worker_hooks.training.resuming import elastic
from worker_hooks.training.resuming.elastic import Batch, ElasticRefused, plan

pytestmark = pytest.mark.torch

SIXTEEN = Batch(16, 2, 1)


def test_without_a_policy_the_numbers_are_said() -> None:
    """R19: 16 ranks x 2, now 12."""
    with pytest.raises(ElasticRefused) as caught:
        plan(None, SIXTEEN, Batch(12, 2, 1))
    text = str(caught.value)
    assert (
        "saved with 16 ranks x micro batch 2 x accumulation 1 = global batch 32; now 12 ranks x micro batch 2" in text
    )
    assert "Global batch 32 cannot be kept with 12 ranks x micro batch 2: 24 or 48." in text
    assert "keep_global_batch" in text and "scale_lr:linear" in text


def test_a_global_batch_is_kept_by_accumulation_or_refused() -> None:
    assert plan("keep_global_batch", SIXTEEN, Batch(8, 2, 1)) == elastic.Plan(2, 1.0)
    assert plan("keep_global_batch", Batch(4, 2, 3), Batch(12, 1, 1)) == elastic.Plan(2, 1.0)
    for now, said in ((Batch(12, 2, 1), "24 or 48"), (Batch(64, 2, 1), "128")):
        with pytest.raises(ElasticRefused, match=said):
            plan("keep_global_batch", SIXTEEN, now)
    with pytest.raises(ElasticRefused, match="nobody knows"):
        plan("keep_global_batch", SIXTEEN, Batch(8, None, 1))


def test_the_learning_rate_follows_the_global_batch() -> None:
    now = Batch(12, 2, 1)
    assert plan("scale_lr:linear", SIXTEEN, now) == elastic.Plan(1, 0.75)
    assert plan("scale_lr:sqrt", SIXTEEN, now).lr_factor == pytest.approx(0.75**0.5)
    assert plan("scale_lr:linear", Batch(16, 2, 4), Batch(32, 2, 1)) == elastic.Plan(4, 2.0)
    assert plan("keep_lr", SIXTEEN, Batch(12, None, 1)) == elastic.Plan(1, 1.0)
    with pytest.raises(ElasticRefused, match="needs both global batches"):
        plan("scale_lr:linear", SIXTEEN, Batch(12, None, 1))


@pytest.mark.parametrize("wrong", [True, "keep", "scale_lr:cube", 1])
def test_a_policy_is_one_of_the_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match="keep_global_batch"):
        elastic.checked(wrong)
    assert elastic.checked(None) is None and elastic.checked(False) is None


def test_every_place_that_a_learning_rate_lives_in_is_scaled() -> None:
    """The scheduler goes on from the scaled rate, and the curve keeps its shape."""

    def rates(factor: float) -> list[float]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.4)
        kinds = torch.optim.lr_scheduler
        warm = kinds.LinearLR(optimizer, 0.1, total_iters=3)
        both = kinds.SequentialLR(optimizer, [warm, kinds.CosineAnnealingLR(optimizer, 20)], milestones=[3])
        found = []
        for step in range(12):
            if step == 5:
                elastic.scale([optimizer], [both], factor)
            optimizer.step()
            both.step()
            found.append(float(optimizer.param_groups[0]["lr"]))
        return found

    plain, scaled = rates(1.0), rates(0.5)
    assert scaled[:5] == plain[:5]
    assert scaled[5:] == pytest.approx([0.5 * rate for rate in plain[5:]])
    json.dumps(scaled)


def test_a_rate_in_a_tensor_is_scaled_in_place() -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))], lr=torch.tensor(0.4), capturable=False)
    rate = optimizer.param_groups[0]["lr"]
    elastic.scale([optimizer], [], 0.5)
    assert optimizer.param_groups[0]["lr"] is rate and float(rate) == pytest.approx(0.2)
