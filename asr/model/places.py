"""The places of linear maps in the network, so that projections may differ by place.

A map's path names the parts that it is in, from the outside to the inside, and the map, such as
encoder.attention.self_attention.query. A place is one or more names of a path in this order:
attention, encoder.feed_forward, decoder.cross_attention.query. A place means every map whose path
has these names.
"""

from asr.model.projection import ProjectionConfig

_ATTENTION, _PAIR = ("query", "key", "value", "output"), ("inner", "outer")
PATHS = (
    ("frontend",),
    *(("encoder", "attention", "self_attention", name) for name in _ATTENTION),
    *(("encoder", "convolution", name) for name in _PAIR),
    *(("encoder", "feed_forward", name) for name in _PAIR),
    *(("decoder", "attention", "self_attention", name) for name in _ATTENTION),
    *(("decoder", "attention", "cross_attention", name) for name in _ATTENTION),
    *(("decoder", "feed_forward", name) for name in _PAIR),
)


def _is_within(names: list[str], path: tuple[str, ...]) -> bool:
    """Tell whether all names are in a path, in its order."""
    rest = iter(path)
    return all(name in rest for name in names)


def paths_of(place: str) -> list[tuple[str, ...]]:
    """Return the paths of `PATHS` that a place means."""
    names = place.split(".")
    return [path for path in PATHS if _is_within(names, path)]


def place_problem(place: str) -> str | None:
    """Return what is wrong with the name of a place, None if the network has maps there."""
    if paths_of(place):
        return None
    names = dict.fromkeys(name for path in PATHS for name in path)
    return (
        f"projections names {place!r:.60}, where the network has no linear map: join names of "
        f"{', '.join(names)} by dots from the outside to the inside, as in encoder.attention"
    )


def enter(
    name: str, default: ProjectionConfig, by_place: dict[str, ProjectionConfig]
) -> tuple[ProjectionConfig, dict[str, ProjectionConfig]]:
    """Return the default projection, and those by place, within the part of this name.

    Entering all names of a map's path gives the map's own projection. It is that of the place whose
    last name is innermost. Among several such places, the names before the last decide in this way.
    """
    start = f"{name}."
    within = {p.removeprefix(start): c for p, c in by_place.items() if p.startswith(start)}
    return by_place.get(name, default), by_place | within
