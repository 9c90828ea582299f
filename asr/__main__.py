"""Run the command line as `python -m asr`."""

from asr.cli import main

main()
