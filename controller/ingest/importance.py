"""How much a code says, as far as receiving it is concerned: what is kept first, and what wakes the sweep.

Only an order of keeping: what a sign means is judged anew at each decision, by the knowledge of that moment.
"""

from functools import lru_cache
from pathlib import Path

from django.conf import settings

from controller.decision.meanings import Knowledge
from controller.knowledge.load import load

HARD, STRONG, WEAK, CASCADE, CONTEXT = range(5)
ORDER = {"hard": HARD, "strong": STRONG, "weak": WEAK, "clears": WEAK, "cascade": CASCADE, "context": CONTEXT}


@lru_cache(maxsize=1)
def _knowledge() -> Knowledge:
    """Read once a process, as the policy is."""
    return load(Path(settings.RELUME_KNOWLEDGE) if settings.RELUME_KNOWLEDGE else None)


def order_of(code: str) -> int:
    """0 for codes that name somebody by themselves; what is not known may matter to a newer version."""
    meaning = _knowledge().of(code)
    return WEAK if meaning is None else ORDER[meaning.weight]
