"""Evidence rows with everything that diagnosis knows of them: one, a typical set, and two hundred."""

from datetime import datetime, timedelta
from typing import Any

from controller.models import Evidence, Incident


def sign(of: Incident, number: int, fault: datetime, after: float, **more: Any) -> Evidence:
    """A row that differs from a plain accusation of the node's sensor, `after` seconds from the fault."""
    at = fault + timedelta(seconds=after)
    plain: dict[str, Any] = {
        "layer": "kernel",
        "source": "kernel",
        "subject": "gpu-0422",
        "node": "gpu-0422",
        "origin": "sensor",
        "code": "xid.79",
        "raw": "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.",
        "observed_at": at,
        "received_at": min(at + timedelta(seconds=0.4), of.detected_at),
    }
    return Evidence(incident=of, number=number, **(plain | more))


def typical(of: Incident, fault: datetime) -> None:
    """A GPU lost: the kernel says so in a burst, NVML and the ranks agree, Slurm and a neighbour clear, the rest fell
    over; one line came when the verdict had been given, one fault was a week before."""
    rows = [
        sign(of, 1, fault, 0.2, count=1204, last_at=fault + timedelta(seconds=2.6)),
        sign(of, 2, fault, 1.0, layer="gpu", source="nvml", code="gpu.missing", raw="7 of 8 GPUs answer"),
        sign(of, 3, fault, -1.2, layer="network", source="infiniband", stance="soft", code="ib.errors",
             raw="mlx5_4/1 link_error_recovery 0 → 3 in 60 s"),
        sign(of, 4, fault, 1.4, layer="process", source="job_log", origin="job", rank=83, code="cuda.error",
             raw="[rank83]: RuntimeError: CUDA error: unspecified launch failure <script>alert(1)</script>"),
        sign(of, 5, fault, 2.0, layer="slurm", source="slurm", origin="slurm", stance="clears", code="node_state",
             node="", raw="gpu-0422 ALLOCATED, slurmd answers: not a node loss"),
        sign(of, 6, fault, 2.4, layer="communication", source="job_log", origin="job", stance="clears", node="",
             subject="all ranks", code="collective.state", raw="128 of 128 ranks agree on sequence number 1,248,311"),
        sign(of, 7, fault, 3.1, layer="progress", source="progress", origin="job", stance="accuses", node="gpu-0422",
             code="progress.stalled", raw="8 ranks made no step for 15.7 s (limit 10 × 1.57 s)"),
        sign(of, 8, fault, 3.0, layer="node", source="history", origin="controller", stance="soft",
             code="history.error", raw="job 6501: Xid 79 on the same machine",
             observed_at=fault - timedelta(days=7), received_at=fault - timedelta(days=7)),
        sign(of, 9, fault, 2.9, layer="kernel", raw="pcieport 0000:97:01.0: AER: Uncorrected (Fatal) error received",
             code="pcie.fatal", late=True, received_at=of.detected_at + timedelta(seconds=40)),
        *(sign(of, 10 + k, fault, 1.5 + k * 0.15, layer="library", source="job_log", origin="job", stance="cascade",
               node=f"gpu-04{11 + k}", rank=8 * k, code="nccl.remote_error", count=1 + k % 3,
               raw=f"[Rank {8 * k}] NCCL WARN NET/Socket : connection closed by remote peer")
          for k in range(11)),
        sign(of, 40, fault, -4.0, layer="progress", source="job_log", origin="job", stance="context", rank=0, node="",
             code="progress.step", raw="step 48,210 loss 2.063"),
    ]  # fmt: skip
    Evidence.objects.bulk_create(rows)


def two_hundred(of: Incident, fault: datetime) -> None:
    """As many marks as nobody can number: bursts in every layer, by every stance, within seconds."""
    layers = ("process", "library", "gpu", "kernel", "network", "slurm", "progress", "node")
    stances = ("accuses", "cascade", "cascade", "soft", "context", "cascade", "clears", "accuses")
    rows = [
        sign(of, k + 1, fault, (k * 37 % 200) / 12 - 3, layer=layers[k % 8], stance=stances[k // 25], rank=k,
             node=f"gpu-{410 + k % 16:04}", raw=f"sign {k} of a storm " + "x" * (k % 90))
        for k in range(200)
    ]  # fmt: skip
    Evidence.objects.bulk_create(rows)
