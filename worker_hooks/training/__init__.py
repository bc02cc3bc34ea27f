"""What runs inside the ranks: progress, complete state, checkpoints, resume, verification. The only room with torch."""
