"""What a pickle would make, without making it: the plain data, and in place of every object a note of what it is.

For checkpoints that others wrote (`torch.save`, Lightning, the metadata of torch.distributed.checkpoint): which keys
they hold can be told although their values name code. Built on `plain_pickle`'s interpreter, which has no instruction
that imports, calls or sets an attribute; here a name of code becomes a text, a call a note, and nothing else happens.
"""

from collections.abc import Callable
from dataclasses import dataclass

from worker_hooks.signs.plain_pickle import INSTRUCTIONS, Machine, Plain, RefusedPickle, run_bounded

MAX_INSTRUCTIONS = 6_000_000
MAX_SECONDS = 10.0
_DICTS = ("collections.OrderedDict", "collections.defaultdict", "builtins.dict")


@dataclass(eq=False, slots=True)
class Opaque:
    """An object or a name of code that was not made. `state` is what would have been put into it, if that came."""

    name: str
    args: Plain = ()
    state: Plain = None
    items: dict[Plain, Plain] | None = None


def read_outline(data: bytes, *, max_instructions: int = MAX_INSTRUCTIONS, max_seconds: float = MAX_SECONDS) -> Plain:
    """The value with `Opaque` in place of every object. Raises RefusedPickle."""
    return run_bounded(Machine(data, _OUTLINE), max_instructions, max_seconds)


def _global(m: Machine) -> None:
    module = m.line()
    m.push(Opaque(f"{module}.{m.line()}"))


def _stack_global(m: Machine) -> None:
    name, module = m.pop(), m.pop()
    m.push(Opaque(f"{module}.{name}" if isinstance(name, str) and isinstance(module, str) else "?"))


def _call(m: Machine) -> None:
    """A dict of a known kind is a dict, so that its keys can be told; any other call is a note."""
    args, called = m.pop(), m.pop()
    name = called.name if isinstance(called, Opaque) else "?"
    m.push({} if name in _DICTS else Opaque(name, args))


def _call_with_names(m: Machine) -> None:
    m.pop()
    _call(m)


def _call_marked(m: Machine) -> None:
    items = m.marked()
    name = items[0].name if items and isinstance(items[0], Opaque) else "?"
    m.push(Opaque(name, tuple(items[1:])))


def _instance(m: Machine) -> None:
    module = m.line()
    m.push(Opaque(f"{module}.{m.line()}", tuple(m.marked())))


def _build(m: Machine) -> None:
    """What a dict carries besides its items is nobody's key."""
    state, target = m.pop(), m.stack[-1]
    if isinstance(target, Opaque):
        target.state = state


def _persistent(m: Machine) -> None:
    m.push(Opaque("storage", m.pop()))


def _persistent_line(m: Machine) -> None:
    m.push(Opaque("storage", m.line()[:1000]))


def _extension(form: str) -> Callable[[Machine], None]:
    def push(m: Machine) -> None:
        m.push(Opaque(f"extension {m.number(form)}"))

    return push


def _fill(m: Machine, items: list[Plain]) -> None:
    target = m.stack[-1]
    if isinstance(target, Opaque):
        target.items = target.items or {}
        target = target.items
    kept = target
    if not isinstance(kept, dict) or len(items) % 2:
        raise RefusedPickle("broken: keys and values of no dict")
    for key, value in zip(items[::2], items[1::2], strict=True):
        kept[_key(key)] = value


def _key(value: Plain) -> Plain:
    """An object as a key is told from others by being itself; a tuple of scalars stays one."""
    if value is None or type(value) in (str, int, float, bool, bytes, Opaque):
        return value
    if type(value) is tuple and all(item is None or type(item) in (str, int, float, bool, bytes) for item in value):
        return value
    return Opaque(type(value).__name__, value)


def _append(m: Machine, items: list[Plain]) -> None:
    target = m.stack[-1]
    if type(target) is list:
        target.extend(items)
    elif not isinstance(target, Opaque):
        raise RefusedPickle("broken: no list to fill")


def _add(m: Machine, items: list[Plain]) -> None:
    target = m.stack[-1]
    if type(target) is set:
        target.update(_key(item) for item in items)
    elif not isinstance(target, Opaque):
        raise RefusedPickle("broken: no set to fill")


def _set_item(m: Machine) -> None:
    value = m.pop()
    key = m.pop()
    _fill(m, [key, value])


def _dict_of(m: Machine) -> None:
    items = m.marked()
    m.push({})
    _fill(m, items)


def _frozen(m: Machine) -> None:
    m.push(frozenset(_key(item) for item in m.marked()))


_OUTLINE: dict[int, Callable[[Machine], None]] = {
    **INSTRUCTIONS,
    ord("c"): _global,
    0x93: _stack_global,
    ord("R"): _call,
    0x81: _call,
    0x92: _call_with_names,
    ord("o"): _call_marked,
    ord("i"): _instance,
    ord("b"): _build,
    ord("P"): _persistent_line,
    ord("Q"): _persistent,
    0x82: _extension("<B"),
    0x83: _extension("<H"),
    0x84: _extension("<i"),
    ord("s"): _set_item,
    ord("u"): lambda m: _fill(m, m.marked()),
    ord("d"): _dict_of,
    ord("a"): lambda m: _append(m, [m.pop()]),
    ord("e"): lambda m: _append(m, m.marked()),
    0x90: lambda m: _add(m, m.marked()),
    0x91: _frozen,
}
