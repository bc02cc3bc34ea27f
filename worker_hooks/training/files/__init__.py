"""Bytes on storage: written durably, read past the cache, digested. Knows nothing of ranks."""
