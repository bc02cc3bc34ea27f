"""Where a run is in its data: positions, random numbers of each sample, and a ledger of samples."""

from worker_hooks.training.data.sample_random import PerSampleRandom
from worker_hooks.training.data.sampler import ResumableSampler

__all__ = ["PerSampleRandom", "ResumableSampler"]
