"""The training job, its submissions, its attempts, and the last word of every agent."""

from django.db import models

from controller.decision.attempt import ATTEMPT
from controller.decision.training_job import TRAINING_JOB
from controller.models.array import JobArray
from controller.models.cluster import Cluster
from controller.models.columns import json_dict, json_list, state_check, state_column


class TrainingJob(models.Model):
    """The researcher's run, from first submission to last step: one page, one curve, one run id.

    `owner` is the Slurm user name. `owner_confirmed`: Slurm showed that user as the owner of the job. `view` is the
    Slurm job as the last good view had it (builtins of `slurm.port.JobView`), `view_at` its age. `excused_at`: when an
    expected silence of the job (suspended, queued) was last seen to be over. `array`: it is one of this array's tasks,
    and `slurm_job_id` is Slurm's spelling of the task (`36_3`). `saving`: how often it should save, and why
    (`controller.saving`). `save_asked_at`: when a person last asked for a save at once.
    """

    run_id = models.CharField(max_length=32, unique=True)
    name = models.CharField(max_length=255, blank=True, default="")
    owner = models.CharField(max_length=255)
    owner_confirmed = models.BooleanField(default=False)
    enrolled = models.BooleanField(default=True)
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="training_jobs")
    array = models.ForeignKey(JobArray, null=True, blank=True, on_delete=models.PROTECT, related_name="task_jobs")
    token_digest = models.CharField(max_length=80, blank=True, default="")
    state = state_column(TRAINING_JOB)
    state_reason = models.TextField(blank=True, default="")
    state_at = models.DateTimeField()
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    slurm_job_id = models.CharField(max_length=64, blank=True, default="", db_index=True)
    checkpoint_root = models.TextField(blank=True, default="")
    step = models.BigIntegerField(null=True, blank=True)
    step_at = models.DateTimeField(null=True, blank=True)
    total_steps = models.BigIntegerField(null=True, blank=True)
    gpus = models.PositiveIntegerField(null=True, blank=True)
    facts = json_dict()
    view = json_dict()
    view_at = models.DateTimeField(null=True, blank=True)
    excused_at = models.DateTimeField(null=True, blank=True)
    saving = json_dict()
    save_asked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [state_check(TRAINING_JOB, "training_job_state")]
        indexes = [models.Index(fields=["owner", "-created_at"]), models.Index(fields=["state"])]

    def __str__(self) -> str:
        return f"{self.name or 'training job'} {self.run_id}"


class Submission(models.Model):
    """One sbatch of a training job."""

    training_job = models.ForeignKey(TrainingJob, on_delete=models.CASCADE, related_name="submissions")
    slurm_job_id = models.CharField(max_length=64)
    submitted_at = models.DateTimeField()
    argv = json_list()
    script = models.TextField(blank=True, default="")
    script_digest = models.CharField(max_length=80, blank=True, default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["training_job", "slurm_job_id"], name="one_submission_per_job")]

    def __str__(self) -> str:
        return f"submission {self.slurm_job_id}"


class Attempt(models.Model):
    """One generation of ranks. For scripts without an agent the controller counts Slurm's restarts (`agentless`).

    `nodes` are expanded names. The event times are those of the agents, corrected to the controller's clock; each is
    null until its event was seen. `checks` holds the newest verification of each rank: {rank: {stage: {...}}}.
    `losses`: the running aggregate of rank 0's loss, and where any rank's numbers were none (`ingest.losses`).
    `saving`: what its saves were like, and which were asked for (`ingest.saves`). `early`: the script's own word why it
    ended before its last step.
    """

    training_job = models.ForeignKey(TrainingJob, on_delete=models.CASCADE, related_name="attempts")
    generation = models.PositiveIntegerField()
    agentless = models.BooleanField(default=False)
    slurm_job_id = models.CharField(max_length=64)
    restart_count = models.PositiveIntegerField(default=0)
    state = state_column(ATTEMPT)
    outcome = models.CharField(max_length=24, blank=True, default="")
    outcome_reason = models.TextField(blank=True, default="")
    nodes = json_list()
    world_size = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField()
    launched_at = models.DateTimeField(null=True, blank=True)
    rendezvous_at = models.DateTimeField(null=True, blank=True)
    loaded_at = models.DateTimeField(null=True, blank=True)
    warmed_up_at = models.DateTimeField(null=True, blank=True)
    first_step_at = models.DateTimeField(null=True, blank=True)
    first_new_step_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    start_step = models.BigIntegerField(null=True, blank=True)
    start_folder = models.CharField(max_length=255, blank=True, default="")
    step = models.BigIntegerField(null=True, blank=True)
    step_at = models.DateTimeField(null=True, blank=True)
    exits = json_list()
    checks = json_dict()
    losses = json_dict()
    saving = json_dict()
    early = models.CharField(max_length=255, blank=True, default="")
    log_tail = json_dict()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["training_job", "generation"], name="one_attempt_per_generation"),
            state_check(ATTEMPT, "attempt_state"),
        ]
        ordering = ["generation"]

    def __str__(self) -> str:
        return f"attempt {self.generation} of {self.training_job_id}"


class AgentReport(models.Model):
    """The last word of one agent: the heartbeat part of its newest message, and how far its records are committed.
    `identity`: what it said of its machine; `identity_at`: when that was taken down as its node's. `gpus`: UUIDs of the
    GPUs that the job holds there, empty where it did not say. `work`: what its ranks' own work took (`ingest.work`)."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="agents")
    node = models.CharField(max_length=255)
    last_seq = models.BigIntegerField(default=0)
    received_at = models.DateTimeField()
    sent_at = models.DateTimeField()
    clock_offset_s = models.FloatField(default=0.0)
    state = models.CharField(max_length=16)
    leader = models.BooleanField(default=False)
    boot_id = models.CharField(max_length=64, blank=True, default="")
    identity = json_dict()
    identity_at = models.DateTimeField(null=True, blank=True)
    addresses = json_dict()
    gpus = json_list()
    probe_port = models.PositiveIntegerField(null=True, blank=True)
    ranks = json_list()
    work = models.TextField(blank=True, default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "node"], name="one_report_per_node")]

    def __str__(self) -> str:
        return f"agent on {self.node}"
