"""Reads a pickle that holds nothing but plain data, by an interpreter of its own that cannot do anything else.

Containers, numbers, text, bytes, booleans and None come out. Whatever could name or call code (a global, a reduction, a
persistent id, ...) is refused by name before anything of it happens: there is no instruction here that imports, calls
or sets an attribute, so no dump can run code, whatever it holds. The standard library's unpickler is not used: with
its lookups forbidden a short input can still make it allocate tens of gigabytes (memo numbers, declared lengths).

Bounded by size, by the number of instructions and by time. Protocols 0 to 5.
"""

import struct
import time
from collections.abc import Callable, Mapping

Plain = object

MAX_BYTES = 64 << 20
MAX_INSTRUCTIONS = 20_000_000
MAX_SECONDS = 20.0
_CLOCK_EVERY = 1 << 14
_MAX_DIGITS = 1000
_MARK = object()


class RefusedPickle(ValueError):
    """The input is not plain data, is broken, or exceeds a bound; the text says which."""


def read_plain(data: bytes, *, max_instructions: int = MAX_INSTRUCTIONS, max_seconds: float = MAX_SECONDS) -> Plain:
    """The value that the pickle holds. Raises RefusedPickle."""
    return run_bounded(Machine(data), max_instructions, max_seconds)


def run_bounded(machine: "Machine", max_instructions: int, max_seconds: float) -> Plain:
    """What the machine's input amounts to. Raises RefusedPickle."""
    if len(machine.data) > MAX_BYTES:
        raise RefusedPickle(f"larger than {MAX_BYTES >> 20} MiB")
    try:
        return machine.run(max_instructions, time.monotonic() + max_seconds)
    except RefusedPickle:
        raise
    except (IndexError, KeyError, ValueError, TypeError, AttributeError, struct.error, OverflowError) as error:
        raise RefusedPickle(f"broken at byte {machine.place}: {type(error).__name__}") from None


class Machine:
    """A pickle's stack, memo and place. Nesting is built without recursion; keys are flat, so hashing is too."""

    def __init__(self, data: bytes, instructions: Mapping[int, Callable[["Machine"], None]] | None = None) -> None:
        self.data = data
        self.instructions = INSTRUCTIONS if instructions is None else instructions
        self.place = 0
        self.stack: list[Plain] = []
        self.memo: dict[int, Plain] = {}

    def run(self, limit: int, deadline: float) -> Plain:
        for count in range(limit):
            if count % _CLOCK_EVERY == 0 and time.monotonic() > deadline:
                raise RefusedPickle("takes too long to read")
            code = self.data[self.place]
            self.place += 1
            if code == 0x2E:  # STOP
                return self.stack.pop()
            instruction = self.instructions.get(code)
            if instruction is None:
                raise RefusedPickle(self._refusal(code))
            instruction(self)
        raise RefusedPickle(f"more than {limit} instructions")

    # --- input ---

    def take(self, size: int) -> bytes:
        end = self.place + size
        if size < 0 or end > len(self.data):
            raise RefusedPickle("cut short")
        piece = self.data[self.place : end]
        self.place = end
        return piece

    def number(self, form: str) -> int:
        value: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def line(self, encoding: str = "utf-8") -> str:
        end = self.data.find(b"\n", self.place)
        if end < 0:
            raise RefusedPickle("cut short")
        return self.take(end + 1 - self.place)[:-1].decode(encoding, "replace")

    def text(self, size: int) -> None:
        self.push(self.take(size).decode("utf-8", "surrogatepass"))

    def _refusal(self, code: int) -> str:
        name = _REFUSED.get(code)
        if name in ("GLOBAL", "INST"):
            return f"it names code: {self.line()[:100]}.{self.line()[:100]}"
        if name == "STACK_GLOBAL":
            names = [str(item)[:100] for item in self.stack[-2:]]
            return f"it names code: {'.'.join(names)}"
        return f"it holds more than plain data ({name or f'instruction 0x{code:02x}'})"

    # --- stack ---

    def push(self, value: Plain) -> None:
        self.stack.append(value)

    def pop(self) -> Plain:
        value = self.stack.pop()
        if value is _MARK:
            raise RefusedPickle("broken: a mark where a value belongs")
        return value

    def marked(self) -> list[Plain]:
        """What lies above the last mark, which goes too."""
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                items = self.stack[place + 1 :]
                del self.stack[place:]
                return items
        raise RefusedPickle("broken: no mark")

    def top(self, kind: type) -> Plain:
        if type(self.stack[-1]) is not kind:
            raise RefusedPickle(f"broken: no {kind.__name__} to fill")
        return self.stack[-1]

    def memoize(self, index: int) -> None:
        if self.stack[-1] is _MARK:
            raise RefusedPickle("broken: a mark where a value belongs")
        self.memo[index] = self.stack[-1]


def _append(m: Machine, items: list[Plain]) -> None:
    target = m.top(list)
    assert isinstance(target, list)
    target.extend(items)


def _fill(m: Machine, items: list[Plain]) -> None:
    target = m.top(dict)
    assert isinstance(target, dict)
    if len(items) % 2:
        raise RefusedPickle("broken: a key without a value")
    for key, value in zip(items[::2], items[1::2], strict=True):
        target[_key(key)] = value


def _add(m: Machine, items: list[Plain]) -> None:
    target = m.top(set)
    assert isinstance(target, set)
    target.update(_key(item) for item in items)


def _key(value: Plain) -> Plain:
    """Keys are scalars: the hash of a deeply nested tuple would overflow the C stack."""
    if value is None or type(value) in (str, int, float, bool, bytes):
        return value
    raise RefusedPickle(f"a key of type {type(value).__name__}")


def _tuple(m: Machine, size: int) -> None:
    if size > len(m.stack):
        raise RefusedPickle("broken: too few values")
    items = tuple(m.pop() for _ in range(size))
    m.push(items[::-1])


def _dict_of(m: Machine) -> None:
    items = m.marked()
    m.push({})
    _fill(m, items)


def _integer(m: Machine) -> None:
    """Protocol 0 writes booleans as the integers 00 and 01."""
    text = m.line().rstrip("L")
    if len(text) > _MAX_DIGITS:
        raise RefusedPickle("a number of too many digits")
    m.push(text == "01" if text in ("00", "01") else int(text))


def _long(m: Machine, size: int) -> None:
    if size > _MAX_DIGITS:
        raise RefusedPickle("a number of too many digits")
    m.push(int.from_bytes(m.take(size), "little", signed=True))


def _pair(m: Machine, use: Callable[[Machine, list[Plain]], None]) -> None:
    value = m.pop()
    key = m.pop()
    use(m, [key, value])


def _one(m: Machine) -> None:
    value = m.pop()
    _append(m, [value])


def _drop(m: Machine) -> None:
    m.stack.pop()


def _drop_marked(m: Machine) -> None:
    m.marked()


def _protocol(m: Machine) -> None:
    m.take(1)


def _frame(m: Machine) -> None:
    m.take(8)  # its length is only a hint for buffers


def _quoted(m: Machine) -> None:
    m.push(m.line().strip("'\""))


INSTRUCTIONS: dict[int, Callable[[Machine], None]] = {
    ord("("): lambda m: m.push(_MARK),
    ord("0"): _drop,
    ord("1"): _drop_marked,
    ord("2"): lambda m: m.push(m.stack[-1]),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("I"): _integer,
    ord("L"): _integer,
    ord("J"): lambda m: m.push(m.number("<i")),
    ord("K"): lambda m: m.push(m.number("<B")),
    ord("M"): lambda m: m.push(m.number("<H")),
    0x8A: lambda m: _long(m, m.number("<B")),
    0x8B: lambda m: _long(m, m.number("<i")),
    ord("F"): lambda m: m.push(float(m.line()[:_MAX_DIGITS])),
    ord("G"): lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    ord("S"): _quoted,
    ord("V"): lambda m: m.push(m.line("raw_unicode_escape")),
    ord("T"): lambda m: m.text(m.number("<i")),
    ord("U"): lambda m: m.text(m.number("<B")),
    ord("X"): lambda m: m.text(m.number("<I")),
    0x8C: lambda m: m.text(m.number("<B")),
    0x8D: lambda m: m.text(m.number("<Q")),
    ord("B"): lambda m: m.push(m.take(m.number("<I"))),
    ord("C"): lambda m: m.push(m.take(m.number("<B"))),
    0x8E: lambda m: m.push(m.take(m.number("<Q"))),
    0x96: lambda m: m.push(m.take(m.number("<Q"))),
    ord("]"): lambda m: m.push([]),
    ord("a"): _one,
    ord("e"): lambda m: _append(m, m.marked()),
    ord("l"): lambda m: m.push(m.marked()),
    ord(")"): lambda m: m.push(()),
    ord("t"): lambda m: m.push(tuple(m.marked())),
    0x85: lambda m: _tuple(m, 1),
    0x86: lambda m: _tuple(m, 2),
    0x87: lambda m: _tuple(m, 3),
    ord("}"): lambda m: m.push({}),
    ord("d"): _dict_of,
    ord("s"): lambda m: _pair(m, _fill),
    ord("u"): lambda m: _fill(m, m.marked()),
    0x8F: lambda m: m.push(set()),
    0x90: lambda m: _add(m, m.marked()),
    0x91: lambda m: m.push(frozenset(_key(item) for item in m.marked())),
    ord("p"): lambda m: m.memoize(int(m.line()[:20])),
    ord("q"): lambda m: m.memoize(m.number("<B")),
    ord("r"): lambda m: m.memoize(m.number("<I")),
    0x94: lambda m: m.memoize(len(m.memo)),
    ord("g"): lambda m: m.push(m.memo[int(m.line()[:20])]),
    ord("h"): lambda m: m.push(m.memo[m.number("<B")]),
    ord("j"): lambda m: m.push(m.memo[m.number("<I")]),
    0x80: _protocol,
    0x95: _frame,
}

# What is refused has a name, so that people see what the dump wanted.
_REFUSED = {
    ord("c"): "GLOBAL",
    ord("i"): "INST",
    0x93: "STACK_GLOBAL",
    ord("R"): "REDUCE",
    ord("b"): "BUILD",
    ord("o"): "OBJ",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    ord("P"): "PERSID",
    ord("Q"): "BINPERSID",
    0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER",
}
