"""What a test needs besides the port: to submit jobs as an ordinary user, to let time pass, to lose an answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal

import pytest

from controller.errors import RefusalKind, SlurmRefused
from controller.slurm.port import SlurmPort
from controller.slurm.views import JobView, NodeView


class Bench(ABC):
    """Four idle nodes of 8 CPUs. `port` has the rights of SlurmUser, `owner_port` those of the jobs' owner."""

    port: SlurmPort
    owner_port: SlurmPort
    nodes: tuple[str, str, str, str]

    @abstractmethod
    def submit(
        self,
        nodes: int = 1,
        *,
        on: str = "",
        shared: bool = False,
        requeue: bool = True,
        held: bool = False,
        leaves: Literal["at once", "slowly", "by itself"] = "at once",
    ) -> str:
        """A batch job that runs until it is killed (`slowly`: and needs some seconds to go), or fails with code 3
        `by itself`. `on` is a node it must have; `shared` leaves room on its nodes for others."""

    @abstractmethod
    def submit_array(self, tasks: list[int]) -> list[str]: ...

    @abstractmethod
    def pass_time(self, seconds: float) -> None: ...

    @abstractmethod
    def lost_answer(self, call: str) -> AbstractContextManager[None]:
        """Inside, `call` times out; it takes effect after the block."""

    def until(self, true: Callable[[], object], seconds: float = 40) -> None:
        for _ in range(int(seconds / 0.25)):
            if true():
                return
            self.pass_time(0.25)
        raise AssertionError(f"not within {seconds} s")

    def job(self, job_id: str) -> JobView:
        job = self.port.read_job(job_id)
        assert job is not None
        return job

    def node(self, name: str) -> NodeView:
        node = self.port.read_node(name)
        assert node is not None
        return node

    def running(self, nodes: int = 1, **wishes: object) -> JobView:
        """A job that has been running for some seconds: killing one in its first moment shows other things."""
        job_id = self.submit(nodes, **wishes)  # type: ignore[arg-type]
        self.until(lambda: self.job(job_id).state.running)
        self.pass_time(1.0)
        return self.job(job_id)

    def idle_again(self, job_id: str) -> JobView:
        """The job once it has left COMPLETING."""
        self.until(lambda: not self.job(job_id).state.completing)
        return self.job(job_id)


def expect_refusal(kind: RefusalKind, call: Callable[[], None]) -> None:
    with pytest.raises(SlurmRefused) as caught:
        call()
    assert caught.value.kind is kind, caught.value.text
    assert caught.value.text
