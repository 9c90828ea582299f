"""`python -m asr.cli`, for torchrun."""

from asr.cli import main

main()
