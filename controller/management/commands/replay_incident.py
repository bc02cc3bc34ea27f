"""manage.py replay_incident ID: today's code and policy on the facts of an old decision."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controller.decision.admit import admit
from controller.decision.codec import cluster_from_json, subject_from_json
from controller.decision.propose import propose
from controller.models import Decision
from controller.wiring import policy


class Command(BaseCommand):
    help = "Decides an old incident again from its stored facts and says whether the outcome would be another one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("incident", type=int)

    def handle(self, *args: Any, **options: Any) -> None:
        decision = Decision.objects.filter(incident=options["incident"]).order_by("pk").first()
        if decision is None:
            raise CommandError(f"incident {options['incident']} has no decision")
        outcome, reason, plans = self._again(decision)
        self.stdout.write(f"then ({decision.code_version}, {decision.policy_digest}):")
        self.stdout.write(f"  {decision.outcome}: {decision.reason}")
        self.stdout.write(f"now ({policy().digest()}):")
        self.stdout.write(f"  {outcome}: {reason}")
        for plan in plans:
            self.stdout.write(f"  - {plan}")
        same = (outcome, reason) == (decision.outcome, decision.reason)
        self.stdout.write("same decision" if same else "ANOTHER decision")

    def _again(self, decision: Decision) -> tuple[str, str, list[str]]:
        now = decision.at.timestamp()
        proposal = propose(subject_from_json(decision.facts), now, policy())
        admission = admit([proposal], cluster_from_json(decision.cluster_facts), now, policy())[0]
        return admission.outcome, proposal.reason, [f"{p.kind} {p.target}" for p in admission.proposal.plans]
