"""Read the annotations that ELAN writes: XML with tiers.

The format is that of https://www.mpi.nl/tools/elan/EAFv3.0.xsd.
"""

import re
import xml.sax
from typing import NamedTuple
from urllib.parse import unquote
from xml.sax.handler import ContentHandler
from xml.sax.xmlreader import AttributesImpl, Locator

from asr.errors import DataError
from data_prep.subtitles import UNKNOWN, Part
from data_prep.tiers import Tier


def read_elan(text: str, name: str) -> list[Tier]:
    """Return the tiers of an ELAN file whose recording is called `name`.

    Raises DataError for another file, for times that are not in milliseconds, and for a recording
    with an offset.
    """
    if "<!DOCTYPE" in text:  # its entities could grow or name other files
        raise DataError("it has a DOCTYPE, which files of ELAN have not")
    document = _Document()
    try:
        xml.sax.parseString(text.strip(), document)  # noqa: S317
    except xml.sax.SAXException as error:
        raise DataError(f"it is no whole file of ELAN ({error.getMessage()})") from error
    if not document.units:
        raise DataError("it is no file of ELAN")
    if document.units != "milliseconds":
        raise DataError(f"its times are {document.units}, and not in milliseconds")
    if document.has_offset(name):
        raise DataError("its recording has an offset (TIME_ORIGIN): set it to 0 in ELAN")
    return document.tiers()


class _Annotation(NamedTuple):
    """A text of the tier with the index `tier`, and its time slots.

    Where it belongs to another annotation, `of`, it has the time slots of that one.
    """

    tier: int
    line: int
    name: str
    of: str
    slots: tuple[str, str]
    text: list[str]


class _Media(NamedTuple):
    """A recording of an ELAN file; `has_offset` tells whether time 0 is not at its start."""

    file: str
    is_video: bool
    has_offset: bool


class _Document(ContentHandler):
    """A SAX handler that collects what an ELAN file has, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.units = ""  # empty as long as it is no file of ELAN
        self._media: list[_Media] = []
        self._names: set[tuple[str, str]] = set()
        self._times: dict[str, str] = {}
        self._tiers: list[Tier] = []
        self._annotations: list[_Annotation] = []
        self._is_in_text = False
        self._place: Locator | None = None

    def has_offset(self, name: str) -> bool:
        """Tell whether time 0 is not at the start of the recording called `name`.

        The name may lack the suffix; if no recording has it, all count. A video beside a sound file
        does not count.
        """
        own = [each for each in self._media if each.file == name]
        own = own or [each for each in self._media if each.file.rpartition(".")[0] == name]
        own = own or self._media
        return any(each.has_offset for each in [one for one in own if not one.is_video] or own)

    def tiers(self) -> list[Tier]:
        """Return the tiers with their parts.

        Neighboring annotations are joined to one part where they have the same times, such as the
        words of a sentence without times, and where the time between them is not known. ELAN shows
        a guess for such a time.
        """
        slots, joined = _slots(self._annotations), list[_Annotation]()
        for each in self._annotations:
            start, end = slots[each.name]
            last = joined[-1] if joined and joined[-1].tier == each.tier else None
            if last and (last.slots == (start, end) or self._is_unknown(last.slots[1], start)):
                last.text.extend((" ", *each.text))
                joined[-1] = last._replace(slots=(last.slots[0], end))
            else:
                joined.append(each._replace(slots=(start, end)))
        for each in joined:
            if said := " ".join("".join(each.text).split()):
                start, end = (self._times.get(slot, UNKNOWN) for slot in each.slots)
                self._tiers[each.tier].parts.append(Part(each.line, start, end, said))
        return self._tiers

    def _is_unknown(self, end: str, start: str) -> bool:
        return end == start and self._times.get(end, UNKNOWN) == UNKNOWN

    def setDocumentLocator(self, locator: Locator) -> None:
        """Keep the locator, which knows the current line."""
        self._place = locator

    def startElement(self, name: str, attrs: AttributesImpl) -> None:
        """Begin an element."""
        self._is_in_text = name == "ANNOTATION_VALUE" and bool(self._annotations)
        match name:
            case "ANNOTATION_DOCUMENT":
                self.units = "milliseconds"
            case "HEADER" if self.units:
                self.units = attrs.get("TIME_UNITS") or self.units
            case "MEDIA_DESCRIPTOR":
                file = re.split(r"[/\\]", unquote(attrs.get("MEDIA_URL", "")))[-1]
                is_video = attrs.get("MIME_TYPE", "").startswith("video")
                has_offset = attrs.get("TIME_ORIGIN", "").strip() not in ("0", "")
                self._media.append(_Media(file, is_video, has_offset))
            case "TIME_SLOT":
                time = attrs.get("TIME_VALUE", "")
                seconds = f"{float(time) / 1000:.3f}" if time.isdecimal() else UNKNOWN
                self._times[self._new("time slot", attrs.get("TIME_SLOT_ID", ""))] = seconds
            case "TIER":
                names = ("TIER_ID", "PARTICIPANT", "LINGUISTIC_TYPE_REF")
                title, speaker, kind = (attrs.get(each, "").strip() for each in names)
                self._tiers.append(Tier(title, [], speaker, kind))
            case "ALIGNABLE_ANNOTATION" | "REF_ANNOTATION" if self._tiers:
                self._annotations.append(self._annotation(attrs))

    def _annotation(self, attrs: AttributesImpl) -> _Annotation:
        line = self._place.getLineNumber() if self._place else None
        slots = attrs.get("TIME_SLOT_REF1", ""), attrs.get("TIME_SLOT_REF2", "")
        own = self._new("annotation", attrs.get("ANNOTATION_ID", ""))
        of = attrs.get("ANNOTATION_REF", "")
        return _Annotation(len(self._tiers) - 1, line or 0, own, of, slots, [])

    def _new(self, kind: str, name: str) -> str:
        if (kind, name) in self._names:
            raise DataError(f"it has two {kind}s {name}")
        self._names.add((kind, name))
        return name

    def characters(self, content: str) -> None:
        """Add a part of a text."""
        if self._is_in_text:
            self._annotations[-1].text.append(content)

    def endElement(self, name: str) -> None:  # noqa: ARG002
        """End an element."""
        self._is_in_text = False


def _slots(annotations: list[_Annotation]) -> dict[str, tuple[str, str]]:
    """Return the time slots of each annotation by its name, its owner's if it has one."""
    found = {each.name: each.slots for each in annotations if not each.of}
    owners = {each.name: each.of for each in annotations if each.of}
    for name, owner in owners.items():
        path, at = [name], owner
        while at in owners and at not in found and len(path) <= len(owners):
            path.append(at)
            at = owners[at]
        found |= dict.fromkeys(path, found.get(at, ("", "")))
    return found
