"""What the lint of the tracked state names, and what it leaves alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.worker_hooks.conftest import HERE, World
from tests.worker_hooks.lint_stage import Average, data, nothing_left_over, sgd
from worker_hooks.protocol.generations import accepted_folders
from worker_hooks.training.data import ResumableSampler
from worker_hooks.training.lint import alive as lint_alive
from worker_hooks.training.lint import ranks as lint_ranks
from worker_hooks.training.lint import state as lint_state
from worker_hooks.training.lint.findings import CODES, MISSING, NOTE, Finding
from worker_hooks.training.state.tracked import Tracked

pytestmark = pytest.mark.torch
__all__ = ["nothing_left_over"]

schedulers = torch.optim.lr_scheduler


def tracking(**objects: Any) -> Tracked:
    tracked = Tracked()
    for name, value in objects.items():
        tracked.add(name, value)
    return tracked


def found(tracked: Tracked, level: str = MISSING) -> dict[str, str]:
    """Codes with the name they are found at."""
    findings = [*lint_state.look(tracked), *lint_alive.look(tracked), *lint_alive.early_iterators(tracked)]
    assert {finding.code for finding in findings} <= set(CODES)
    return {finding.code: finding.where for finding in findings if finding.level == level}


# --- nothing to find --------------------------------------------------------------------------------------------------


def test_an_ordinary_script_misses_nothing() -> None:
    net = nn.Linear(2, 2)
    optimizer = sgd(net)
    assert found(tracking(model=net, optimizer=optimizer)) == {}
    parts = [schedulers.ConstantLR(optimizer, total_iters=2), schedulers.CosineAnnealingLR(optimizer, 5)]
    everything = tracking(
        model=net,
        optimizer=optimizer,
        scheduler=schedulers.SequentialLR(optimizer, parts, milestones=[2]),
        scaler=torch.amp.GradScaler("cpu"),
        ema=torch.optim.swa_utils.AveragedModel(net),
        loader=DataLoader(data(), 4, sampler=ResumableSampler(data())),
    )
    assert found(everything) == {} and found(everything, NOTE) == {}


def test_what_was_thrown_away_is_not_missed() -> None:
    net = nn.Linear(2, 2)
    schedulers.ReduceLROnPlateau(sgd(net))  # a cycle with its optimizer, until the collector comes by
    assert found(tracking(model=net, optimizer=sgd(net))) == {}


def test_a_scaler_that_nothing_was_scaled_with_and_one_switched_off_have_no_state() -> None:
    idle, off = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu", enabled=False)
    off.scale(torch.ones(1))
    net = nn.Linear(2, 2)
    assert found(tracking(model=net, optimizer=sgd(net))) == {}
    idle.scale(torch.ones(1))
    assert found(tracking(model=net, optimizer=sgd(net))) == {"scaler": "scaler"}
    assert found(tracking(model=net, optimizer=sgd(net), scaler=idle)) == {}


def test_a_loader_for_validation_is_nobodys_position() -> None:
    net = nn.Linear(2, 2)
    validation = iter(DataLoader(data(), 4))
    tracked = tracking(model=net, optimizer=sgd(net), loader=DataLoader(data(), 4))
    assert found(tracked) == {}
    assert found(tracking(model=net, optimizer=sgd(net))) == {"data_position": "loader"}
    del validation
    assert found(tracking(model=net, optimizer=sgd(net)), NOTE) == {"data_position": "loader"}


# --- what is missing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda o: schedulers.StepLR(o, 3), schedulers.ReduceLROnPlateau], ids=["marked", "unmarked"]
)
def test_a_scheduler_that_nobody_tracked(make: Any) -> None:
    net = nn.Linear(2, 2)
    optimizer = sgd(net)
    scheduler = make(optimizer)
    assert found(tracking(model=net, optimizer=optimizer)) == {"scheduler": "optimizer"}
    assert found(tracking(model=net, optimizer=optimizer, my_schedule=scheduler)) == {}
    other = nn.Linear(2, 2)
    two = tracking(model=[net, other], optimizer=[optimizer, sgd(other)], scheduler=make(sgd(other)))
    assert found(two) == {"scheduler": "optimizer.0"}


def test_optimizers_and_models_belong_together() -> None:
    net, forgotten = nn.Linear(2, 2), nn.Linear(2, 2)
    both = torch.optim.SGD([*net.parameters(), *forgotten.parameters()], lr=0.1)
    (finding,) = lint_state.look(tracking(model=net, optimizer=both))
    assert finding.code == "optimizer_parameters" and "group 0, parameter 2" in finding.text
    assert found(tracking(model=net, optimizer=both, extra=forgotten)) == {}
    assert found(tracking(model={"a": net, "b": forgotten})) == {"optimizer": "model.b"}
    del both
    assert found(tracking(model=net), NOTE)["optimizer"] == "model"
    net.requires_grad_(False)
    assert "optimizer" not in found(tracking(model=net), NOTE)


def test_parameters_inside_another_tracked_object_are_saved_with_it() -> None:
    class Prompt:
        def __init__(self) -> None:
            self.values = torch.zeros(3, requires_grad=True)

        def state_dict(self) -> dict[str, Any]:
            return {"values": self.values}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.values.data.copy_(state["values"])

    prompt = Prompt()
    optimizer = torch.optim.SGD([prompt.values], lr=0.1)
    assert found(tracking(prompt=prompt, optimizer=optimizer)) == {}
    assert found(tracking(prompt=Prompt(), optimizer=optimizer)) == {"optimizer_parameters": "optimizer"}


def test_an_average_of_references() -> None:
    net = nn.Linear(2, 2)
    views = Average([parameter.detach() for parameter in net.parameters()])
    assert found(tracking(model=net, optimizer=sgd(net), ema=views)) == {"ema": "ema"}
    copies = Average([parameter.detach().clone() for parameter in net.parameters()])
    assert found(tracking(model=net, optimizer=sgd(net), ema=copies)) == {}
    assert found(tracking(model=net, optimizer=sgd(net), ema={"of_model": net})) == {"ema": "ema.of_model"}


def test_an_iterator_older_than_the_state() -> None:
    class Stateful(DataLoader[Any]):
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    net, loader = nn.Linear(2, 2), Stateful(data(), 4)
    assert found(tracking(model=net, optimizer=sgd(net), loader=loader)) == {}
    loader._iterator = iter(loader)
    assert found(tracking(model=net, optimizer=sgd(net), loader=loader)) == {"iterator": "loader"}


def test_values_and_tensors_that_cannot_be_stored() -> None:
    class Odd(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"when": object()}

        def set_extra_state(self, state: Any) -> None: ...

    odd = Odd(2, 2)
    history = Average([])
    history.values = {1, 2}  # type: ignore[assignment]
    findings = [f for f in lint_state.look(tracking(model=odd, history=history)) if f.level == MISSING]
    assert [(f.code, f.where) for f in findings] == [("value", "history"), ("value", "model/")]
    assert "history.shadow.values: a value of type builtins.set" in findings[0].text
    sparse = nn.Linear(2, 2)
    sparse.register_buffer("graph", torch.eye(3).to_sparse())
    assert found(tracking(model=sparse, optimizer=sgd(sparse))) == {"tensor": "model/graph"}
    expanded = nn.Linear(2, 2)
    expanded.register_buffer("mask", torch.ones(1, 3).expand(2, 3))
    assert found(tracking(model=expanded, optimizer=sgd(expanded))) == {"tensor": "model/mask"}
    meta = nn.Linear(2, 2, bias=False, device="meta")
    assert found(tracking(model=meta, optimizer=sgd(meta))) == {"tensor": "model/weight"}


def test_a_device_that_this_process_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Linear(2, 2, bias=False)
    monkeypatch.setattr(torch.cpu, "device_count", lambda: 0)
    assert found(tracking(model=net, optimizer=sgd(net))) == {"device": "model/weight"}


def test_what_is_only_told() -> None:
    net = nn.Linear(2, 2)
    net.register_buffer("rotary", torch.zeros(3), persistent=False)
    optimizer = sgd(net)
    tracked = tracking(model=net, optimizer=optimizer, scheduler=schedulers.LambdaLR(optimizer, lambda step: 1.0))
    assert found(tracked) == {}
    assert found(tracked, NOTE) == {
        "scheduler_function": "scheduler",
        "unsaved_buffers": "model",
        "data_position": "loader",
    }


# --- between ranks ----------------------------------------------------------------------------------------------------


def test_values_that_differ_are_named_with_their_ranks() -> None:
    alike = {"model/a": "1", "model/b": "2"}
    assert lint_ranks.compare([alike, alike, {"model/c": "9"}]) == []
    (finding,) = lint_ranks.compare([alike, {**alike, "model/b": "3"}, alike])
    assert finding.where == "model/b" and "ranks [0, 2] and ranks [1]" in finding.text
    many = [{f"k{i:03}": str(i * rank) for i in range(1, 300)} for rank in range(2)]
    assert lint_ranks.compare(many)[0].where.endswith("and 295 more")


def test_ranks_with_other_values_under_one_key_are_told_all_at_once(world: World) -> None:
    options = {"root": str(world.root), "out": str(world.folder / "out"), "diverge": 0}
    started = world.start(HERE / "programs" / "kinds.py", [json.dumps(options)], 2)
    assert started.wait() == [1, 1]
    for log in started.logs:
        text = log.read_text()
        assert "[replicas] model/" in text and "ranks [0] and ranks [1] differ" in text
    assert list(accepted_folders(world.run)) == []


# --- what is said of a finding ----------------------------------------------------------------------------------------


def test_the_codes_are_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    assert [code for code in CODES if f"`{code}`" not in text] == []


def test_a_finding_travels_as_plain_values() -> None:
    finding = Finding("ema", "ema", "text", NOTE)
    assert Finding(*json.loads(json.dumps(finding.plain()))) == finding
