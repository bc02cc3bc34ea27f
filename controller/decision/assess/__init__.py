"""The diagnosis: evidence of every layer -> one verdict with the lines that carry it. Pure.

`view` orders the evidence once and says on which node each piece was read; the judges (`judges`, a table) each look for
one kind of fault; `merge` takes the first that applies, keeps what accuses other nodes, and obeys what no judge may
decide alone: trust, and nodes that are out already. `law` says what a drain needs.
"""

from controller.decision.assess.assess import assess

__all__ = ["assess"]
