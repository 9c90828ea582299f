"""Serve the few requests of S3 that preparing a corpus and a shared job make.

    python -m benchmarks.light_s3 RECORDINGS LATENCY

The server prints its port. Bucket `corpus` holds the recordings, all the same silent one under
names of their own. What is written to any bucket is kept in memory. Each answer comes LATENCY
seconds late, without a thread that waits. So the server takes little of the processors that the
benchmark measures, a tenth of what moto's server takes for a request. No key is checked.
"""

import asyncio
import re
import sys
from bisect import bisect_left, bisect_right, insort
from io import BytesIO
from itertools import islice
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np
import soundfile as sf

SPEAKERS, SECONDS = 400, 0.2
_PAGE = 1000  # names in an answer to LIST
_THERE_IS_ONE = (
    b"<Error><Code>PreconditionFailed</Code><Condition>If-None-Match</Condition></Error>"
)
_DATE = "Mon, 23 Nov 2026 06:00:00 GMT"


def names(n: int) -> list[str]:
    """Return the names of so many recordings, by some speakers."""
    return [f"S{i % SPEAKERS:03}/{i:06}.wav" for i in range(n)]


class _Storage:
    """Objects by bucket and name."""

    def __init__(self, n: int) -> None:
        sound = BytesIO()
        sf.write(sound, np.zeros(int(16000 * SECONDS), np.int16), 16000, format="WAV")
        keys = [f"corpus/{name}" for name in names(n)]
        self._objects, self._keys = dict.fromkeys(keys, sound.getvalue()), sorted(keys)
        self._versions, self._n_written = dict[str, int](), 0

    def answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, str, bytes]:
        """Return status, headers and body of the answer to a request."""
        url = urlsplit(target)
        key = unquote(url.path).strip("/")
        if "/" not in key:  # a bucket
            is_list = method == "GET"
            return 200, "", self._list(f"{key}/", parse_qs(url.query)) if is_list else b""
        if method == "PUT":
            if key in self._objects and "if-none-match" in headers:
                return 412, "", _THERE_IS_ONE
            self._write(key, body)
            return 200, self._about(key), b""
        if key not in self._objects:
            return 404, "", b"<Error><Code>NoSuchKey</Code></Error>"
        content = self._objects[key]
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", "")):
            first, last = int(found[1]), min(int(found[2] or len(content)), len(content) - 1)
            place = f"Content-Range: bytes {first}-{last}/{len(content)}\r\n"
            return 206, self._about(key) + place, content[first : last + 1]
        return 200, self._about(key), content

    def _write(self, key: str, content: bytes) -> None:
        if key not in self._objects:
            insort(self._keys, key)
        self._n_written += 1
        self._objects[key], self._versions[key] = content, self._n_written

    def _about(self, key: str) -> str:
        return f'ETag: "{self._versions.get(key, 0)}"\r\nLast-Modified: {_DATE}\r\n'

    def _list(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        """Return a page of the objects below a prefix; with a delimiter, of the folders too."""
        prefix = bucket + query.get("prefix", [""])[0]
        items, folders, last, n = "", dict[str, None](), "", 0
        first = bisect_left(self._keys, prefix)
        if "continuation-token" in query:
            first = bisect_right(self._keys, bucket + query["continuation-token"][0])
        for key in islice(self._keys, first, None):
            if not key.startswith(prefix) or n == _PAGE:
                break
            folder, slash, _ = key.removeprefix(prefix).partition("/")
            if slash and "delimiter" in query:
                folders[f"{prefix}{folder}/"] = None
            else:
                items += (
                    f"<Contents><Key>{escape(key.removeprefix(bucket))}</Key>"
                    f"<Size>{len(self._objects[key])}</Size>"
                    "<LastModified>2026-11-23T06:00:00.000Z</LastModified>"
                    f"<ETag>{self._versions.get(key, 0)}</ETag></Contents>"
                )
            last, n = key.removeprefix(bucket), n + 1
        for name in folders:
            key = escape(name.removeprefix(bucket))
            items += f"<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>"
        is_cut = n == _PAGE
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" * is_cut
        return (
            f"<ListBucketResult><IsTruncated>{str(is_cut).lower()}</IsTruncated>{token}"
            f"<KeyCount>{n}</KeyCount>{items}</ListBucketResult>"
        ).encode()


class _Connection(asyncio.Protocol):
    """One client's requests, one after another."""

    def __init__(self, storage: _Storage, latency: float) -> None:
        self._storage, self._latency, self._got = storage, latency, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, to which answers are written."""
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
        found = self._storage.answer(method, target, headers, body)
        asyncio.get_running_loop().call_later(self._latency, self._write, method, *found)

    def _write(self, method: str, status: int, headers: str, body: bytes) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode()
        self._transport.write(head + (b"" if method == "HEAD" else body))


async def _serve(n: int, latency: float) -> None:
    storage = _Storage(n)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(storage, latency), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
