"""Changes inputs in the ways that break parsers: bits, numbers, lines, tokens, repeats, nesting."""

import random
import re
from collections.abc import Callable, Iterator, Sequence

MAX_BYTES = 2**16

_NUMBERS = [
    b"0", b"-1", b"1", b"0.5", b"-0.0", b"255", b"65536", b"2147483647", b"2147483648",
    b"4294967295", b"9223372036854775808", b"1e308", b"1e400", b"-1e400", b"nan", b"inf", b"1e-400",
    b"9" * 320, b"0" * 320 + b"1", b"0x7f", b"1_000", b"", "٣".encode(), "²".encode(),
]  # fmt: skip
_TOKENS = [
    b"\0", b"\n", b"\r\n", b"\r", b"\t", b" ", b'"', b"'", b"\\", b"/", b"..", b":", b";", b",",
    b"(", b")", b"[", b"]", b"{", b"}", b"<", b">", b"null", b"true", b"\xef\xbb\xbf", b"\xff",
    b"\xc0\x80", b"\xed\xa0\x80", b"\\ud800", "\u202e".encode(), "\u0301".encode(), "\x85".encode(),
    "\u2028".encode(), "İßŉ".encode(), "㍿".encode(), "ﷺ".encode(), "𠀀".encode(), b"pipe:true",
]  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_WORDS = [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62]
_WORDS += [2**63 - 1, 2**63, 2**64 - 1]


class Mutator:
    """Endless mutations of seeds; the same seed of the generator gives the same inputs."""

    def __init__(self, seeds: Sequence[bytes], tokens: Sequence[bytes], rng: random.Random) -> None:
        self.seeds, self.tokens, self.rng = seeds, [*_TOKENS, *tokens, *tokens, *tokens], rng
        self.changes: list[Callable[[bytes], bytes]] = [
            self.bit, self.byte, self.word, self.number, self.number, self.token, self.token,
            self.delete, self.copy, self.repeat, self.line, self.splice, self.cut,
        ]  # fmt: skip

    def __iter__(self) -> Iterator[bytes]:
        while True:
            data = self.rng.choice(self.seeds)
            for _ in range(1 + min(int(self.rng.expovariate(0.8)), 12)):
                data = self.rng.choice(self.changes)(data)[:MAX_BYTES]
            yield data

    def place(self, data: bytes, longest: int = 64) -> tuple[int, int]:
        """Return where a part begins and ends; one of two lies in the first 256 bytes."""
        end = min(len(data), 256) if self.rng.random() < 0.5 else len(data)
        start = self.rng.randint(0, end)
        return start, min(len(data), start + self.rng.randint(0, longest))

    def bit(self, data: bytes) -> bytes:
        """Flip a bit."""
        at, _ = self.place(data)
        return (
            data[:at]
            + bytes(c ^ 1 << self.rng.randrange(8) for c in data[at : at + 1])
            + (data[at + 1 :])
        )

    def byte(self, data: bytes) -> bytes:
        """Set a byte."""
        at, _ = self.place(data)
        return data[:at] + self.rng.randbytes(1) + data[at + 1 :]

    def word(self, data: bytes) -> bytes:
        """Set 2, 4 or 8 bytes to a number at the edge of a type, in either order of bytes."""
        at, _ = self.place(data)
        size = self.rng.choice((2, 4, 8))
        value = self.rng.choice(_WORDS) % 2 ** (8 * size)
        return (
            data[:at]
            + value.to_bytes(size, self.rng.choice(("little", "big")))
            + (data[at + size :])
        )

    def number(self, data: bytes) -> bytes:
        """Replace a number in a text."""
        found = list(_NUMBER.finditer(data, 0, 4096))
        if not found:
            return self.word(data)
        match = self.rng.choice(found)
        return data[: match.start()] + self.rng.choice(_NUMBERS) + data[match.end() :]

    def token(self, data: bytes) -> bytes:
        """Insert a token, or put it in place of a part."""
        start, end = self.place(data, 8)
        end = self.rng.choice((start, end))
        return data[:start] + self.rng.choice(self.tokens) + data[end:]

    def delete(self, data: bytes) -> bytes:
        """Delete a part."""
        start, end = self.place(data)
        return data[:start] + data[end:]

    def copy(self, data: bytes) -> bytes:
        """Copy a part to another place."""
        start, end = self.place(data, 256)
        at, _ = self.place(data)
        return data[:at] + data[start:end] + data[at:]

    def repeat(self, data: bytes) -> bytes:
        """Repeat a token or a part often: what is nested or quadratic shows."""
        start, end = self.place(data, 16)
        what = self.rng.choice((data[start:end], self.rng.choice(self.tokens)))
        n = int(2 ** self.rng.uniform(1, 13 if self.rng.random() < 0.1 else 6))
        return data[:start] + what * n + data[start:]

    def line(self, data: bytes) -> bytes:
        """Double, drop or move a line."""
        lines = data.split(b"\n")
        line = lines.pop(self.rng.randrange(len(lines)))
        for _ in range(self.rng.randrange(3)):
            lines.insert(self.rng.randint(0, len(lines)), line)
        return b"\n".join(lines)

    def splice(self, data: bytes) -> bytes:
        """Continue with the end of another seed."""
        other = self.rng.choice(self.seeds)
        return data[: self.place(data)[0]] + other[self.place(other)[0] :]

    def cut(self, data: bytes) -> bytes:
        """Cut the end off."""
        return data[: self.place(data)[1]]
