"""The demonstration: a real Slurm, a real training job, a killed node, and the recovery, told as it happens."""
