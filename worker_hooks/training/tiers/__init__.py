"""Tiers: checkpoints on the nodes themselves and on a partner node, beside the shared storage."""
