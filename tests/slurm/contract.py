"""What every adapter of the port must do, as tests that run on the in-memory Slurm and on a real one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from controller.errors import RefusalKind
from tests.slurm.bench import Bench, expect_refusal
from tests.slurm.contract_jobs import JobContract


class SlurmContract(JobContract):
    """Each test starts from an idle cluster without jobs; the subclass provides `bench`."""

    # reading

    def test_a_quiet_cluster(self, bench: Bench) -> None:
        view = bench.port.read_cluster()
        assert set(view.nodes) == set(bench.nodes)
        assert all(node.state.usable and node.state.base == "IDLE" for node in view.nodes.values())
        assert all(node.address and node.port and node.partitions for node in view.nodes.values())
        assert view.cluster and view.version.year >= 22 and view.next_job_id is not None
        assert view.nodes_at.tzinfo is not None and view.jobs_at >= view.nodes_at
        assert view.private_data == ()
        assert bench.port.ping() and bench.port.version() == view.version

    def test_a_running_job(self, bench: Bench) -> None:
        job = bench.running(2)
        view = bench.port.read_cluster()
        assert view.job(job.job_id) == view.jobs[job.job_id]
        assert len(job.nodes) == job.num_nodes == 2 and job.batch_host == job.nodes[0]
        assert job.requeue and job.batch and job.restarts == 0 and not job.held and job.state.live
        assert job.submit_time is not None and job.submit_time.tzinfo is UTC
        assert [found.job_id for found in view.jobs_on(job.nodes[1])] == [job.job_id]
        assert view.nodes[job.nodes[0]].occupied

    def test_unknown_is_none_only_when_slurm_says_so(self, bench: Bench) -> None:
        assert bench.port.read_job("99999") is None
        assert bench.port.read_job("99999_1") is None
        assert bench.port.read_array("99999") == []
        assert bench.port.read_node("nosuch") is None

    def test_partitions_and_no_accounting(self, bench: Bench) -> None:
        partitions = bench.port.read_cluster().partitions
        (name,) = {name for node in bench.port.read_cluster().nodes.values() for name in node.partitions}
        assert set(partitions[name].nodes) == set(bench.nodes) and partitions[name].starts_jobs
        since = datetime.fromtimestamp(0, UTC)
        expect_refusal(RefusalKind.DISABLED, lambda: bench.port.read_history("1", user="ada", since=since))

    # nodes

    def test_drain_keeps_the_job_and_resume_clears_it(self, bench: Bench) -> None:
        job = bench.running(1)
        name = job.nodes[0]
        bench.port.drain_node(name, 'relume: Xid=79, "fallen off" [inc 12]')
        node = bench.node(name)
        assert node.state.draining and not node.state.usable
        assert node.reason == 'relume: Xid=79, "fallen off" [inc 12]'
        assert node.reason_user and node.reason_at is not None
        assert bench.job(job.job_id).state.running
        bench.port.cancel_job(job.job_id)
        bench.until(lambda: bench.node(name).state.drained)
        bench.port.resume_node(name)
        bench.until(lambda: bench.node(name).state.usable)
        # 25.11 keeps the old reason on a node that is back (22.05 clears it): it says nothing about the state.
        assert bench.node(name).reason in ("", node.reason) and not bench.node(name).state.drain

    def test_a_second_reason_replaces_the_first(self, bench: Bench) -> None:
        """Why the policy must look first: the port overwrites somebody else's drain without a word."""
        name = bench.nodes[0]
        bench.port.drain_node(name, "somebody: cable")
        bench.port.drain_node(name, "relume: probe")
        assert bench.node(name).reason == "relume: probe"

    def test_nodes_refused(self, bench: Bench) -> None:
        expect_refusal(RefusalKind.BAD_NODES, lambda: bench.port.drain_node("nosuch", "x"))
        expect_refusal(RefusalKind.BAD_NODES, lambda: bench.port.resume_node("nosuch"))
        expect_refusal(RefusalKind.BAD_REQUEST, lambda: bench.port.resume_node(bench.nodes[0]))
        expect_refusal(RefusalKind.NOT_PERMITTED, lambda: bench.owner_port.drain_node(bench.nodes[0], "x"))
        assert bench.node(bench.nodes[0]).state.usable

    def test_down_requeues_ours_and_kills_the_neighbour(self, bench: Bench) -> None:
        name = bench.nodes[1]
        ours = bench.running(1, on=name, shared=True)
        neighbour = bench.running(1, on=name, shared=True, requeue=False)
        bench.port.drain_node(name, "relume: lost")
        bench.port.down_node(name, "relume: lost, now down")
        bench.until(lambda: bench.job(neighbour.job_id).state.terminal)
        assert bench.job(neighbour.job_id).state.base == "NODE_FAIL"
        assert bench.job(neighbour.job_id).state.blame == "infra"
        again = bench.idle_again(ours.job_id)
        assert again.state.pending and again.restarts == 1 and again.nodes == ()
        assert bench.node(name).state.drain
        assert bench.node(name).reason == "relume: lost, now down"

    def test_a_drain_outlives_the_return_of_the_node(self, bench: Bench) -> None:
        """With ReturnToService=2 a live slurmd undoes DOWN at once; DRAIN stays."""
        name = bench.nodes[2]
        bench.port.drain_node(name, "relume: lost")
        bench.port.down_node(name, "relume: lost")
        bench.pass_time(2.0)
        assert bench.node(name).state.drain and not bench.node(name).state.usable

    # reservations

    def test_nodes_reserved_for_the_owner_and_given_back(self, bench: Bench) -> None:
        """A pending job in a reservation starts there, and keeps the reservation from being deleted."""
        owner = bench.job(bench.submit(held=True)).user
        name, kept = "relume-contract", bench.nodes[2:]
        bench.port.reserve_nodes(name, kept, user=owner, minutes=5)
        found = bench.port.read_reservation(name)
        assert found is not None and found == bench.port.read_cluster().reservations[name]
        assert set(found.nodes) == set(kept) and found.users == (owner,) and found.active
        assert {"IGNORE_JOBS", "FLEX"} <= found.flags and found.end_time is not None and found.start_time is not None
        assert (found.end_time - found.start_time).total_seconds() == 300
        job_id = bench.submit(2, held=True)
        bench.port.set_reservation(job_id, name)
        assert bench.job(job_id).reservation == name
        expect_refusal(RefusalKind.IN_USE, lambda: bench.port.delete_reservation(name))
        bench.port.release_job(job_id)
        bench.until(lambda: bench.job(job_id).state.running)
        assert set(bench.job(job_id).nodes) == set(kept)
        bench.port.cancel_job(job_id)
        bench.idle_again(job_id)
        bench.port.delete_reservation(name)
        assert bench.port.read_reservation(name) is None

    def test_reservations_refused(self, bench: Bench) -> None:
        held = bench.submit(held=True)
        user, (first, second, *_) = bench.job(held).user, bench.nodes
        reserve = bench.port.reserve_nodes
        reserve("relume-taken", [first], user=user, minutes=5)
        for nodes, kind in (([first], RefusalKind.EXISTS), ([second], RefusalKind.EXISTS)):
            expect_refusal(kind, lambda nodes=nodes: reserve("relume-taken", nodes, user=user, minutes=5))  # type: ignore[misc]
        expect_refusal(RefusalKind.OVERLAPS, lambda: reserve("relume-2", [first, second], user=user, minutes=5))
        expect_refusal(RefusalKind.BAD_NODES, lambda: reserve("relume-3", [second, "nosuch"], user=user, minutes=5))
        assert set(bench.port.read_cluster().reservations) == {"relume-taken"}
        invalid = RefusalKind.INVALID_RESERVATION
        expect_refusal(invalid, lambda: bench.port.delete_reservation("nosuch"))
        expect_refusal(invalid, lambda: bench.port.set_reservation(held, "nosuch"))
        mine = bench.owner_port
        expect_refusal(RefusalKind.NOT_PERMITTED, lambda: mine.reserve_nodes("r", [second], user=user, minutes=5))
        expect_refusal(RefusalKind.NOT_PERMITTED, lambda: mine.delete_reservation("relume-taken"))
        bench.port.set_reservation(held, "relume-taken")
        bench.port.set_reservation(held, "")
        assert bench.job(held).reservation == ""
        bench.port.delete_reservation("relume-taken")

    # arguments

    @pytest.mark.parametrize("bad", ["1.batch", "7;scancel", "1 2", "", "1\n2", "--help"])
    def test_what_is_no_job_id_never_reaches_slurm(self, bench: Bench, bad: str) -> None:
        for call in (bench.port.hold_job, bench.port.release_job, bench.port.cancel_job, bench.port.read_job):
            with pytest.raises(ValueError):
                call(bad)

    @pytest.mark.parametrize("bad", ["gpu[1-2]", "gpu1,gpu2", "", "ALL x", "gpu1\n", "-a b"])
    def test_what_is_no_node_name_never_reaches_slurm(self, bench: Bench, bad: str) -> None:
        with pytest.raises(ValueError):
            bench.port.drain_node(bad, "x")
        with pytest.raises(ValueError):
            bench.port.exclude_nodes("1", [bad])

    def test_a_reason_is_one_line_and_never_empty(self, bench: Bench) -> None:
        for bad in ("", "  ", "a\nb", "a\x1b[31m"):
            with pytest.raises(ValueError):
                bench.port.drain_node(bench.nodes[0], bad)
        assert not bench.node(bench.nodes[0]).state.drain
