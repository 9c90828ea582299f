"""Cut a waveform at silences while it arrives; numpy alone, since the service does it too."""

from collections.abc import Iterable, Iterator

import numpy as np


def split_at_silence(
    blocks: Iterable[np.ndarray], sample_rate: int, max_seconds: float = 20.0
) -> Iterator[np.ndarray]:
    """Yield segments (samples,) of at most `max_seconds` of a waveform in blocks (samples,).

    The segments are the waveform in order, without gap or overlap. Each cut is in the middle of the
    quietest 100 ms in the second half of the longest possible segment. A segment is yielded as soon
    as its end is known: memory holds one segment and one block, time is linear in the length.
    """
    hop, longest = sample_rate // 100, int(max_seconds * sample_rate)
    assert longest >= 40 * hop > 0, "segments must be long enough for several windows of 100 ms"
    held: list[np.ndarray] = []
    n_held = 0
    for block in blocks:
        held.append(block)
        n_held += len(block)
        while n_held > longest:
            wave = np.concatenate(held)
            cut = _quietest(wave[:longest], hop)
            yield wave[:cut]
            held, n_held = [wave[cut:]], n_held - cut
    if n_held:
        yield np.concatenate(held)


def _quietest(wave: np.ndarray, hop: int) -> int:
    """Return the middle of the quietest ten hops in the second half of a waveform (samples,)."""
    first = -(-(len(wave) // 2) // hop)
    hops = wave[first * hop : len(wave) // hop * hop].reshape(-1, hop)
    power = np.square(hops, dtype=np.float64).sum(1)
    loudness = np.convolve(power, np.ones(10), "valid")
    # Of equally quiet windows (digital silence) the last one gives the fewest segments.
    last = len(loudness) - 1
    return (first + last - int(np.argmin(loudness[::-1])) + 5) * hop
