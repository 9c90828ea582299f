"""What the verbs share: the program and its group, consoles, options that several take."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

app = typer.Typer(
    help="Small, fast speech recognition with the Low-Rank Transformer. Any verb takes --debug: "
    "a traceback in place of the one-sentence error.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip
out, err = Console(), Console(stderr=True)

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Int8 = Annotated[
    bool, typer.Option("--int8", help="The decoder's larger weights in 8 bits: faster on a CPU.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes; default: all cores.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe's value.")
]
Beam = Annotated[int | None, typer.Option(min=1, help="Beam size; default: the recipe's.")]
Method = Annotated[
    Literal["joint", "ctc_greedy", "ctc_beam", "rescore"] | None,
    typer.Option(help="How texts are looked for; default: the recipe's."),
]
Lm = Annotated[Path | None, typer.Option(help="A language model: ARPA, or `asr train-lm`'s.")]
LmWeight = Annotated[float | None, typer.Option(min=0, help="Its weight, as `asr tune` finds it.")]
Bundle = Annotated[Path, typer.Argument(help="A model bundle's folder, as `asr train` makes it.")]
Format = Annotated[Literal["table", "json"], typer.Option()]
