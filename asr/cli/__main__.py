"""Run the command line as `python -m asr.cli`, as torchrun needs it."""

from asr.cli import main

main()
