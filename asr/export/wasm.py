"""Assemble a module from WebAssembly's text format, as far as `page/gemm.wat` needs it.

It needs one imported memory, one exported function, folded instructions, and blocks without results
(WebAssembly specification, version 2.0, chapters 5 and 6).
"""

import re
from collections.abc import Iterable
from itertools import groupby

Expression = list["str | Expression"]

_TYPES = {"i32": b"\x7f", "v128": b"\x7b"}
_PLAIN = {
    "br": b"\x0c", "br_if": b"\x0d", "local.get": b"\x20", "local.set": b"\x21",
    "local.tee": b"\x22", "i32.const": b"\x41", "i32.eqz": b"\x45", "i32.lt_u": b"\x49",
    "i32.add": b"\x6a", "i32.sub": b"\x6b", "i32.shl": b"\x74",
    "f32x4.add": b"\xfd\xe4\x01", "f32x4.mul": b"\xfd\xe6\x01",
}  # fmt: skip
_MEMORY = {"v128.load": (0, 4), "v128.load32_splat": (9, 2), "v128.store": (11, 4)}  # log2(align)
_BLOCKS = {"block": b"\x02", "loop": b"\x03"}
_NO_RESULT, _END = b"\x40", b"\x0b"
_HEADER = b"\0asm\1\0\0\0"
_WORD = re.compile(r';;[^\n]*|[()]|"[^"]*"|[^\s()";]+')


def assemble(text: str) -> bytes:
    """Return the binary module of a text."""
    module = _parse(text)
    (imported,) = (part for part in module[1:] if part[0] == "import")
    (function,) = (part for part in module[1:] if part[0] == "func")
    names, memory = imported[1:3], imported[3]
    of = {kind: [p for p in function[1:] if p[0] == kind] for kind in ("export", "param", "local")}
    types = {kind: [_TYPES[str(p[2])] for p in of[kind]] for kind in ("param", "local")}
    places = {str(p[1]): i for i, p in enumerate(of["param"] + of["local"])}
    body = b"".join(_code(p, places, []) for p in function[1:] if p[0] not in of)
    runs = [(len(list(same)), kind) for kind, same in groupby(types["local"])]
    locals_ = _vector(_number(n) + kind for n, kind in runs)
    code = locals_ + body + _END
    sections = {
        1: _vector([b"\x60" + _vector(types["param"]) + _vector([])]),
        2: _vector([b"".join(map(_name, names)) + b"\x02\x00" + _number(int(str(memory[1])))]),
        3: _vector([_number(0)]),
        7: _vector([_name(of["export"][0][1]) + b"\x00" + _number(0)]),
        10: _vector([_number(len(code)) + code]),
    }
    parts = (bytes([id]) + _number(len(content)) + content for id, content in sections.items())
    return _HEADER + b"".join(parts)


def _parse(text: str) -> Expression:
    """Return the first expression of a text, as lists of words and lists."""
    stack: list[Expression] = [[]]
    for word in _WORD.findall(text):
        if word == "(":
            stack.append([])
        elif word == ")":
            done = stack.pop()
            stack[-1].append(done)
        elif not word.startswith(";;"):
            stack[-1].append(word)
    (only,) = stack[0]
    assert isinstance(only, list), "a module is an expression"
    return only


def _code(part: "str | Expression", places: dict[str, int], labels: list[str]) -> bytes:
    """Return the code of a folded instruction: that of its operands, then its own."""
    assert isinstance(part, list), f"{part} is no instruction"
    name, words = str(part[0]), [word for word in part[1:] if isinstance(word, str)]
    operands = [operand for operand in part[1:] if isinstance(operand, list)]
    if name in _BLOCKS:
        inside = b"".join(_code(operand, places, [words[0], *labels]) for operand in operands)
        return _BLOCKS[name] + _NO_RESULT + inside + _END
    before = b"".join(_code(operand, places, labels) for operand in operands)
    if name in _MEMORY:
        opcode, alignment = _MEMORY[name]
        offset = int(words[0].removeprefix("offset=")) if words else 0
        return before + b"\xfd" + _number(opcode) + _number(alignment) + _number(offset)
    own = _PLAIN[name]
    if name.startswith("br"):
        own += _number(labels.index(words[0]))
    elif name.startswith("local"):
        own += _number(places[words[0]])
    elif words:
        own += _signed(int(words[0]))
    return before + own


def _number(value: int) -> bytes:
    """Return an unsigned number in LEB128."""
    found = bytearray()
    while value >= 128:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _signed(value: int) -> bytes:
    """Return a signed number in LEB128."""
    found = bytearray()
    while not -64 <= value < 64:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value & 127])


def _vector(parts: Iterable[bytes]) -> bytes:
    items = list(parts)
    return _number(len(items)) + b"".join(items)


def _name(quoted: "str | Expression") -> bytes:
    name = str(quoted).strip('"').encode()
    return _number(len(name)) + name
