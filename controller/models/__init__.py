"""All tables. State columns are written by `controller.ledger` only."""

from controller.models.access import ApiToken, AuditEntry
from controller.models.action import Action
from controller.models.array import JobArray
from controller.models.checkpoint import Checkpoint
from controller.models.cluster import Cluster
from controller.models.incident import Decision, Evidence, Incident, Recovery, StateChange
from controller.models.metric import MetricChunk
from controller.models.node import Exclusion, Machine, Node, NodeCheck, NodeEvent, NodeHold
from controller.models.sign import NodeSensor, Sign
from controller.models.stack import StackRequest
from controller.models.training_job import AgentReport, Attempt, Submission, TrainingJob

__all__ = [
    "Action",
    "AgentReport",
    "ApiToken",
    "Attempt",
    "AuditEntry",
    "Checkpoint",
    "Cluster",
    "Decision",
    "Evidence",
    "Exclusion",
    "Incident",
    "JobArray",
    "Machine",
    "MetricChunk",
    "Node",
    "NodeCheck",
    "NodeEvent",
    "NodeHold",
    "NodeSensor",
    "Recovery",
    "Sign",
    "StackRequest",
    "StateChange",
    "Submission",
    "TrainingJob",
]
