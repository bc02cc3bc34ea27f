"""What is known, read into rows (`poll`: Slurm) and out of rows (`facts`: for the decision core)."""
