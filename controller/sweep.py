"""One sweep: read Slurm when due, make facts from rows, decide, commit each subject. Level-triggered: it looks at
everything that is alive, so a lost or doubled wake-up costs nothing.
"""

from dataclasses import dataclass, field

import structlog
from django.db import DataError

from controller import recovery_clock, saving
from controller.clock import aware
from controller.decision.admit import Admission, admit
from controller.decision.facts import ClusterFacts, SubjectFacts
from controller.decision.hard_signs import late_signs
from controller.decision.propose import Proposal, propose
from controller.errors import SlurmError
from controller.ledger import LostRace, late, lease, stack_requests
from controller.ledger.commit import Commit, commit
from controller.ledger.machines import follow_machines
from controller.ledger.upkeep import follow_attempts, follow_exclusions, follow_holds
from controller.models import Cluster
from controller.site import Site
from controller.snapshot import poll, probing
from controller.snapshot.facts import read_facts

log = structlog.get_logger()

FORGET_EVERY_S = 60.0
GAP_FACTOR = 3.0


@dataclass
class Swept:
    """What one sweep did. `skipped` says why it did nothing."""

    skipped: str = ""
    polled: bool = False
    probed: tuple[str, ...] = ()
    opened: list[int] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def sweep(site: Site) -> Swept:
    """Never raises for anything that Slurm or another process does."""
    cluster = _cluster(site)
    if cluster is None:
        return Swept(skipped="the cluster's name is not known yet: Slurm does not answer")
    if not lease.take(cluster, site.owner, site.clock()):
        return Swept(skipped="another process decides for this cluster at the moment")
    try:
        return _sweep(cluster, site)
    finally:
        lease.give_back(cluster, site.owner)


def _cluster(site: Site) -> Cluster | None:
    """By name; the name is asked of Slurm once, when the settings do not give it."""
    name = site.cluster_name
    if not name:
        known = list(Cluster.objects.all()[:2])
        if len(known) == 1:
            return known[0]
        try:
            name = site.port.read_cluster().cluster
        except SlurmError as error:
            log.warning("cluster_name_unknown", error=str(error))
            return None
    return Cluster.objects.get_or_create(name=name)[0]


def _sweep(cluster: Cluster, site: Site) -> Swept:
    done = Swept()
    _watch(cluster, site)
    if poll.due(cluster, site.clock()):
        done.polled = poll.poll(cluster, site.port, site.clock())
    if not lease.renew(cluster, site.owner, site.clock()):
        return Swept(skipped="lost the lease while Slurm was read")
    follow_attempts(cluster, site.clock())
    follow_machines(cluster, site.clock(), polled=done.polled)
    subjects, proposals, facts = _decide(cluster, site)
    suspected = [proposal.suspicion for proposal in proposals if proposal.suspicion is not None]
    if suspected:
        done.probed = tuple(sorted({name for suspicion in suspected for name in suspicion.nodes}))
        probing.look(cluster, suspected, site)
        subjects, proposals, facts = _decide(cluster, site)
    stack_requests.ask(cluster, subjects, site.clock(), site.policy)
    _commit_all(cluster, subjects, proposals, facts, site, done)
    _follow_late(cluster, subjects, site)
    follow_holds(cluster, site.clock())
    follow_exclusions(cluster, site.clock(), site.policy)
    recovery_clock.refresh(cluster, site.clock())
    saving.refresh(cluster, site.clock(), site.policy.checkpoint)
    return done


def _watch(cluster: Cluster, site: Site) -> None:
    """After a gap in the sweeps everything looks silent: silence is judged from now on only. A slow sweep on a busy
    machine is no gap yet, or a slow controller would never see a node die; the probes are there to tell."""
    now, limit = site.clock(), site.policy.limits.agent_silent_s * GAP_FACTOR
    gap = None if cluster.swept_at is None else now - cluster.swept_at.timestamp()
    if cluster.watching_since is None or gap is None or not 0 <= gap <= limit:
        cluster.watching_since = aware(now)
    if gap is None or int(now / FORGET_EVERY_S) != int((now - gap) / FORGET_EVERY_S):
        probing.forget_old(cluster, now)
        late.forget_old(cluster, now, site.policy)
    cluster.swept_at = aware(now)
    cluster.save(update_fields=["swept_at", "watching_since"])


def _follow_late(cluster: Cluster, subjects: list[SubjectFacts], site: Site) -> None:
    """After the commits, from the ceilings that they left; a node that they hold is answered."""
    now = site.clock()
    late.append(cluster, now, site.policy.knowledge)
    if any(late_signs(subject, site.policy) for subject in subjects):
        fresh, facts = read_facts(cluster, now, site.policy)
        if lease.renew(cluster, site.owner, now):
            late.hold(fresh, facts, site.policy, now)


def _decide(cluster: Cluster, site: Site) -> tuple[list[SubjectFacts], list[Proposal], ClusterFacts]:
    now = site.clock()
    subjects, facts = read_facts(cluster, now, site.policy)
    return subjects, [propose(subject, now, site.policy) for subject in subjects], facts


def _commit_all(
    cluster: Cluster,
    subjects: list[SubjectFacts],
    proposals: list[Proposal],
    facts: ClusterFacts,
    site: Site,
    done: Swept,
) -> None:
    changing = [(s, p) for s, p in zip(subjects, proposals, strict=True) if not p.empty and p.suspicion is None]
    now = site.clock()
    admissions = admit([proposal for _, proposal in changing], facts, now, site.policy)
    for (subject, _), admission in zip(changing, admissions, strict=True):
        _commit(admission, subject, Commit(cluster, facts, site.policy, site.owner, site.clock()), done)


def _commit(admission: Admission, subject: SubjectFacts, shared: Commit, done: Swept) -> None:
    try:
        incident = commit(admission, subject, shared)
    except LostRace as lost:
        log.info("lost_race", run_id=subject.run_id, reason=str(lost))
        done.lost.append(subject.run_id)
        return
    except (DataError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        log.exception("commit_failed", run_id=subject.run_id)  # one job's odd values must not stop the others' recovery
        done.lost.append(subject.run_id)
        return
    done.committed.append(subject.run_id)
    if incident is not None and admission.proposal.verdict is not None:
        done.opened.append(incident.pk)
    log.info("decided", run_id=subject.run_id, outcome=admission.outcome, reason=admission.proposal.reason)
