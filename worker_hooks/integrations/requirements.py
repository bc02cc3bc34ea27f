"""What a module of this room says where its package is missing."""

from importlib.util import find_spec


def demand(module: str, package: str, oldest: str) -> None:
    """Raises ImportError with what to install unless `package` is there."""
    if find_spec(package) is None:
        raise ImportError(f"{module} needs {package}, which is not installed here: pip install '{package}>={oldest}'")
