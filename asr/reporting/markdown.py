"""Tables in Markdown."""


def table(head: list[str], lines: list[list[str]]) -> str:
    """The first column at the left, figures at the right."""
    rows = [head, ["---"] + ["---:"] * (len(head) - 1), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
