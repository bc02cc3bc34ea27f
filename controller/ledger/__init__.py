"""The only writer of state columns: compare-and-set, with the event row in the same transaction.

`moves` changes one row, `commit` one decided subject, `records` adds what an incident carries.
"""

from controller.ledger.moves import LostRace, move

__all__ = ["LostRace", "move"]
