"""A storage of many recordings, with the few requests of S3 that preparing a corpus makes.

    python -m benchmarks.silent_s3 RECORDINGS LATENCY

It prints its port. Bucket `corpus` holds the recordings, all the same silent one under names of
their own; what is written is kept in memory. Each answer comes LATENCY seconds late, without a
thread that waits. So it takes little of the processors that the benchmark measures, a tenth of what
moto's server takes for a request. No key is checked.
"""

import asyncio
import re
import sys
from bisect import bisect_right
from io import BytesIO
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np
import soundfile as sf

SPEAKERS, SECONDS = 400, 0.2
_PAGE = 1000  # names in an answer to LIST
_TAIL = 'ETag: "0"\r\nLast-Modified: Mon, 23 Nov 2026 06:00:00 GMT\r\n'


def names(n: int) -> list[str]:
    """Return the names of so many recordings, by some speakers."""
    return [f"S{i % SPEAKERS:03}/{i:06}.wav" for i in range(n)]


class _Bucket:
    """Objects by name."""

    def __init__(self, n: int) -> None:
        sound = BytesIO()
        sf.write(sound, np.zeros(int(16000 * SECONDS), np.int16), 16000, format="WAV")
        self.objects = dict.fromkeys(names(n), sound.getvalue())
        self._names = sorted(self.objects)

    def answer(self, method: str, target: str, span: str, body: bytes) -> tuple[int, str, bytes]:
        """Return status, headers and body."""
        url = urlsplit(target)
        key = unquote(url.path).removeprefix("/corpus").strip("/")
        if method == "PUT":
            if key:
                self.objects[key] = body
                self._names = sorted(self.objects)
            return 200, _TAIL, b""
        if not key:
            return 200, "", self._list(parse_qs(url.query)) if method == "GET" else b""
        if key not in self.objects:
            return 404, "", b"<Error><Code>NoSuchKey</Code></Error>"
        content = self.objects[key]
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", span):
            first, last = int(found[1]), min(int(found[2] or len(content)), len(content) - 1)
            place = f"Content-Range: bytes {first}-{last}/{len(content)}\r\n"
            return 206, _TAIL + place, content[first : last + 1]
        return 200, _TAIL, content

    def _list(self, query: dict[str, list[str]]) -> bytes:
        """Return a page of names; folders are not told apart."""
        prefix = query.get("prefix", [""])[0]
        first = bisect_right(self._names, query.get("continuation-token", [prefix])[0])
        found = self._names[first : first + _PAGE + 1]
        page = [name for name in found[:_PAGE] if name.startswith(prefix)]
        items = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(self.objects[name])}</Size>"
            "<LastModified>2026-11-23T06:00:00.000Z</LastModified><ETag>0</ETag></Contents>"
            for name in page
        )
        is_cut = len(page) == _PAGE < len(found)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" * is_cut
        return (
            f"<ListBucketResult><IsTruncated>{str(is_cut).lower()}</IsTruncated>{token}"
            f"<KeyCount>{len(page)}</KeyCount>{items}</ListBucketResult>"
        ).encode()


class _Connection(asyncio.Protocol):
    """One client's requests, one after another."""

    def __init__(self, bucket: _Bucket, latency: float) -> None:
        self._bucket, self._latency, self._got = bucket, latency, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what answers are written to."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer a request once it is whole."""
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        if not end:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
        if headers.get("expect") and not body:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if len(body) < int(headers.get("content-length", 0)):
            return
        self._got = b""
        method, target, _ = first.split(" ")
        found = self._bucket.answer(method, target, headers.get("range", ""), body)
        asyncio.get_running_loop().call_later(self._latency, self._write, method, *found)

    def _write(self, method: str, status: int, headers: str, body: bytes) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode()
        self._transport.write(head + (b"" if method == "HEAD" else body))


async def _serve(n: int, latency: float) -> None:
    bucket = _Bucket(n)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(bucket, latency), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
