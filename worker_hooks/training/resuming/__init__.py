"""A resume: the newest checkpoint that verifies, the load, the proof that it is the same run."""
