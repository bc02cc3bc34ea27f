"""The complete state of a run and what identifies it: names, tensors, random numbers, layout, fingerprint."""
