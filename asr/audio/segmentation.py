"""Cut a waveform at silences while it arrives, with numpy alone: the service has no torch."""

from collections.abc import Iterable, Iterator

import numpy as np


class Splitter:
    """Cuts a waveform that arrives in blocks (samples,) into segments of at most `max_seconds`.

    The segments are the waveform in order, without gap or overlap. Each cut is in the middle of the
    quietest 100 ms in the second half of the longest possible segment. Memory holds one segment and
    one block, time is linear in the length.
    """

    def __init__(self, sample_rate: int, max_seconds: float = 20.0) -> None:
        self._hop, self._longest = sample_rate // 100, int(max_seconds * sample_rate)
        assert self._longest >= 40 * self._hop > 0, "segments hold several windows of 100 ms"
        self._held: list[np.ndarray] = []
        self._n_held = 0

    def add(self, block: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the segments (samples,) whose end is known by now."""
        self._held.append(block)
        self._n_held += len(block)
        if self._n_held <= self._longest:
            return
        wave = np.concatenate(self._held)
        while len(wave) > self._longest:
            cut = _quietest(wave[: self._longest], self._hop)
            segment, wave = wave[:cut], wave[cut:]
            self._held, self._n_held = [wave], len(wave)
            yield segment

    def rest(self) -> Iterator[np.ndarray]:
        """Yield the last segment, if anything is left."""
        if self._n_held:
            yield np.concatenate(self._held)


def split_at_silence(
    blocks: Iterable[np.ndarray], sample_rate: int, max_seconds: float = 20.0
) -> Iterator[np.ndarray]:
    """Yield the segments (samples,) of a waveform in blocks, each as soon as its end is known."""
    splitter = Splitter(sample_rate, max_seconds)
    for block in blocks:
        yield from splitter.add(block)
    yield from splitter.rest()


def _quietest(wave: np.ndarray, hop: int) -> int:
    """Return the middle of the quietest ten hops in the second half of a waveform (samples,)."""
    first = -(-(len(wave) // 2) // hop)
    hops = wave[first * hop : len(wave) // hop * hop].reshape(-1, hop)
    power = np.square(hops, dtype=np.float64).sum(1)
    loudness = np.convolve(power, np.ones(10), "valid")
    # Of equally quiet windows (digital silence) the last one gives the fewest segments.
    last = len(loudness) - 1
    return (first + last - int(np.argmin(loudness[::-1])) + 5) * hop
