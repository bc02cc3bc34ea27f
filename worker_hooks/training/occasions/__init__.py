"""When a save or a stop is due, and the step at which all ranks take it."""
