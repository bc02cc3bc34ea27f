"""A save: shares, staging, the writer in the background, the commit, the reading back, retention."""
