"""VCF, FASTA and phenotypes into haplotypes and labels; what is wrong is named by file and line."""

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asr.errors import DataError
from experiments.genome.diplotype import DEL, HAPLOTYPE, bases, with_insertion

# A VCF's columns before those of its subjects.
COLUMNS = ["#CHROM", "POS", "ID", "REF", "ALT", "QUAL", "FILTER", "INFO", "FORMAT"]
_BASES = re.compile("[ACGTNacgtn]+")
_ALIGNED = re.compile("[ACGTNacgtn-]*")
_FASTA = re.compile(r"(.+)\.(fa|fasta)(\.gz)?$")
_N = HAPLOTYPE.index("N")


@dataclass
class Region:
    """A stretch of a chromosome; `start` is the coordinate of its first base, from 1."""

    chromosome: str
    start: int
    bases_L: np.ndarray


@dataclass
class Cohort:
    """Indices into HAPLOTYPE, (subject, 2, place), and who they are."""

    subjects: list[str]
    haplotypes_P2L: np.ndarray
    start: int = 1


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """A text's lines, which may be gzipped, with their numbers from 1."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield number, line.rstrip("\r\n")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as text ({error}): copy it again") from error


def read_fasta(path: Path) -> list[tuple[str, np.ndarray]]:
    """The records of a FASTA, each a name and indices into HAPLOTYPE; `-` is DEL."""
    records: list[tuple[str, list[str]]] = []
    for number, line in lines(path):
        if line.startswith(">"):
            records.append((line[1:].strip(), []))
        elif line and not records:
            raise DataError(f"{path}:{number}: a FASTA begins with a line of > and a name")
        elif not _ALIGNED.fullmatch(line):
            raise DataError(f"{path}:{number}: only A, C, G, T, N and - can be in a sequence")
        elif line:
            records[-1][1].append(line)
    if not records or any(not parts for _, parts in records):
        raise DataError(f"{path}: a record without a sequence: give each > line its bases")
    return [(name, bases("".join(parts))) for name, parts in records]


def read_reference(path: Path) -> Region:
    """The one record of a region, named CHROMOSOME or CHROMOSOME:START-END as samtools names it."""
    (name, sequence_L), *more = read_fasta(path)
    if more or DEL in sequence_L:
        raise DataError(f"{path}: a reference is one record without gaps: cut the region out first")
    found = re.fullmatch(r"(\S+?)(?::(\d+)-(\d+))?(?:\s.*)?", name)
    if not found:
        raise DataError(f"{path}: the record needs a name: > and the chromosome's")
    start, end = int(found[2] or 1), int(found[3] or len(sequence_L))
    if start < 1 or end - start + 1 != len(sequence_L):
        raise DataError(
            f"{path}: {name} is not as long as its {len(sequence_L)} bases: mend either"
        )
    return Region(found[1], start, sequence_L)


def read_haplotypes(folder: Path) -> Cohort:
    """A FASTA of two aligned haplotypes for each subject, whose name is the file's."""
    files = sorted(p for p in folder.glob("*") if _FASTA.fullmatch(p.name))
    if not files:
        raise DataError(f"{folder}: no .fa or .fasta here: give the folder of the subjects' files")
    rows: list[np.ndarray] = []
    subjects: dict[str, Path] = {}
    for path in files:
        subject = _FASTA.sub(r"\1", path.name)
        if subject in subjects:
            raise DataError(f"{path}: {subjects[subject].name} is {subject}'s too: rename either")
        subjects[subject] = path
        records = read_fasta(path)
        lengths = [len(sequence_L) for _, sequence_L in records]
        if len(records) != 2 or lengths[0] != lengths[1]:
            raise DataError(
                f"{path}: has sequences of {lengths} bases, not two of one length: align the "
                "haplotypes, with - where one has no base"
            )
        if rows and lengths[0] != rows[0].shape[1]:
            raise DataError(
                f"{path}: is {lengths[0]} places long, {files[0].name} {rows[0].shape[1]}: all "
                "subjects need the same region"
            )
        rows.append(np.stack([sequence_L for _, sequence_L in records]))
    return Cohort(list(subjects), np.stack(rows))


def read_vcf(path: Path, region: Region) -> Cohort:
    """The subjects of a VCF: the region's bases, and where a genotype has another allele, that.

    Records outside the region are passed over, unless all are. A haplotype of unknown allele is N
    at the record's places, and so is one whose allele is not spelt out (<DEL>, breakends).
    """
    cohort, n_inside = None, 0
    ends: list[str] = []  # the first record's place and the last's
    for number, line in lines(path):
        where = f"{path}:{number}"
        if line.startswith("#CHROM"):
            cohort = _empty(where, line.split("\t"), region)
        elif line and not line.startswith("#"):
            if cohort is None:
                raise DataError(f"{where}: a record before the line of #CHROM: not a whole VCF")
            fields = line.split("\t")
            n_inside += _apply(where, fields, region, cohort)
            ends = [*ends[:1], ":".join(fields[:2])]
    if cohort is None:
        raise DataError(f"{path}: no line of #CHROM: not a VCF")
    if not n_inside:
        held = f"its records go from {ends[0]} to {ends[-1]}" if ends else "it has no records"
        last = region.start + len(region.bases_L) - 1
        raise DataError(
            f"{path}: {held}, the reference is {region.chromosome}:{region.start}-{last}: give the "
            "same region of both, and name its chromosome alike"
        )
    return cohort


def _empty(where: str, names: list[str], region: Region) -> Cohort:
    subjects = names[len(COLUMNS) :]
    if names[: len(COLUMNS)] != COLUMNS or not subjects or len(set(subjects)) < len(subjects):
        raise DataError(
            f"{where}: the columns must be {' '.join(COLUMNS)} and one or more subjects of "
            "different names, with tabs between them"
        )
    rows_P2L = np.tile(region.bases_L, (len(subjects), 2, 1))
    return Cohort(subjects, rows_P2L, region.start)


def _apply(where: str, fields: list[str], region: Region, cohort: Cohort) -> bool:
    """Put a record's alleles where the subjects have them; False where it is not in the region."""
    if len(fields) != len(COLUMNS) + len(cohort.subjects):
        raise DataError(
            f"{where}: {len(fields)} columns, the line of #CHROM has "
            f"{len(COLUMNS) + len(cohort.subjects)}: the file is cut or damaged"
        )
    chromosome, position, _, ref, alt = fields[:5]
    if not re.fullmatch("[1-9][0-9]{0,17}", position):
        raise DataError(f"{where}: POS {position!r} is not a number from 1")
    if not _BASES.fullmatch(ref):
        raise DataError(f"{where}: REF {ref!r} is not of A, C, G, T and N")
    if fields[8].partition(":")[0] != "GT":
        raise DataError(f"{where}: FORMAT {fields[8]!r} does not begin with GT, the genotype")
    at = int(position) - region.start
    if chromosome != region.chromosome or at < 0 or at + len(ref) > len(region.bases_L):
        return False
    place = slice(at, at + len(ref))
    if not np.array_equal(bases(ref), region.bases_L[place]):
        raise DataError(f"{where}: REF {ref} is not what the reference has there: another build's?")
    alleles = [_allele(where, ref, each) for each in alt.split(",")]
    for subject, field in enumerate(fields[len(COLUMNS) :]):
        for haplotype, allele in enumerate(_genotype(where, field, len(alleles))):
            if allele is None:
                cohort.haplotypes_P2L[subject, haplotype, place] = _N
            elif allele and alleles[allele - 1] is not None:
                cohort.haplotypes_P2L[subject, haplotype, place] = alleles[allele - 1]
    return True


def _allele(where: str, ref: str, alt: str) -> np.ndarray | None:
    """What stands at REF's places; None for `*`, which an earlier deletion has told already."""
    if alt in ("*", "."):
        return None
    if alt.startswith("<") or "[" in alt or "]" in alt:
        return np.full(len(ref), _N, np.uint8)
    if not _BASES.fullmatch(alt):
        raise DataError(f"{where}: ALT {alt!r} is not of A, C, G, T and N")
    found = bases(alt[: len(ref)].ljust(len(ref), "-"))
    if len(alt) > len(ref):
        found[-1] = with_insertion(int(found[-1]))
    return found


def _genotype(where: str, field: str, n_alternatives: int) -> list[int | None]:
    """The two alleles of 0|1, 0/1, ./. and the like; None where unknown."""
    genotype = field.partition(":")[0]
    found = re.fullmatch(r"(\d+|\.)[/|](\d+|\.)", genotype)
    if genotype != "." and not found:
        raise DataError(f"{where}: genotype {genotype!r} is not of two alleles, as 0|1 is")
    alleles = [None if each == "." else int(each) for each in (found.groups() if found else "..")]
    if any(each is not None and each > n_alternatives for each in alleles):
        raise DataError(f"{where}: genotype {genotype!r} has an allele that ALT has not")
    return alleles


def read_phenotypes(path: Path, subjects: list[str]) -> np.ndarray:
    """0 or 1 for each subject, from lines of a name, a tab, and 0 or 1."""
    found: dict[str, int] = {}
    for number, line in lines(path):
        fields = line.split("\t")
        if len(fields) != 2 or fields[1] not in ("0", "1"):
            raise DataError(f"{path}:{number}: a line is a subject, a tab, and 0 or 1")
        if found.setdefault(fields[0], int(fields[1])) != int(fields[1]):
            raise DataError(f"{path}:{number}: {fields[0]} has both 0 and 1")
    for subject in subjects:
        if subject not in found:
            raise DataError(f"{path}: {subject}, who is in the cohort, has no line here")
    return np.array([found[subject] for subject in subjects])
