"""What the tracked state lacks, or holds in a way that cannot be restored: said at the first save, and strict."""
