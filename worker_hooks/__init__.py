"""Relume's side inside a training job. `from worker_hooks import Run` imports torch; importing the package does not."""

from typing import TYPE_CHECKING, Any

from worker_hooks._version import __version__

if TYPE_CHECKING:
    from worker_hooks.training.run import Run as Run

__all__ = ["Run", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Run":
        from worker_hooks.training.run import Run

        return Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
