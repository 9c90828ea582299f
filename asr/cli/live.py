"""`asr transcribe --live`: text of standard input while it arrives."""

import shutil
import sys
from io import BufferedReader

from asr.cli.options import escaped, note, show
from asr.errors import ConfigError


def transcribe_live(
    arguments: list[str],
    device: str,
    int8: bool,
    changes: dict[str, object],
    raw_rate: int | None,
) -> None:
    """Print a line for each segment; on a terminal the running one grows in its last line.

    `raw_rate` is the rate of raw PCM, by default the model's.
    """
    if len(arguments) != 2 or arguments[1] != "-":
        raise ConfigError("--live takes a bundle and -, which is standard input: give both")
    if sys.stdin is None or sys.stdin.isatty():
        raise ConfigError("- is standard input, which is a terminal here: give a pipe of audio")
    import asr
    from asr.audio.pcm_stream import blocks_of
    from asr.transcription.transcript import left_out

    assert isinstance(sys.stdin.buffer, BufferedReader), "standard input of a process is buffered"
    model = asr.load(arguments[0], device, int8)
    options = model.config.decoding.changed(changes)
    if warning := model.decoder.hotwords(options).warning:
        note(warning)
    blocks = blocks_of(sys.stdin.buffer, model.sample_rate, raw_rate or model.sample_rate)
    for result in model.stream(blocks, options):
        if sys.stdout.isatty():
            _rewrite("" if result.is_final else result.text)
        if result.is_final and result.segment.ended == "uncertain":
            note(left_out(result.segment))
        if result.is_final and result.text:
            show(result.text)


def _rewrite(text: str) -> None:
    """Replace the last line of the terminal by the end of a text."""
    width = shutil.get_terminal_size().columns
    end = escaped(text)[-(width // 2) :]  # a character may be two columns wide
    print(f"\r{end}\x1b[K", end="", flush=True)
