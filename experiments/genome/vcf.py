"""Read VCF, FASTA and phenotypes into haplotypes and labels.

All readers raise DataError that names the file, and the line where there is one.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asr.errors import DataError
from experiments.genome.diplotype import DEL, WITH_INSERTION, N, encode_bases

# The columns of a VCF before those of its subjects.
COLUMNS = ["#CHROM", "POS", "ID", "REF", "ALT", "QUAL", "FILTER", "INFO", "FORMAT"]
_BASES = re.compile("[ACGTNacgtn]+")
_ALIGNED = re.compile("[ACGTNacgtn-]*")
_FASTA = re.compile(r"(.+)\.(fa|fasta)(\.gz)?$")


@dataclass
class Region:
    """A stretch of a chromosome; `start` is the coordinate of its first base, from 1."""

    chromosome: str
    start: int
    bases_L: np.ndarray


@dataclass
class Cohort:
    """Subjects, and their haplotypes (subjects, 2, positions) as indices into HAPLOTYPE."""

    subjects: list[str]
    haplotypes_P2L: np.ndarray
    start: int = 1


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text, which may be gzipped, with their numbers from 1."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield number, line.rstrip("\r\n")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as text ({error}): copy it again") from error


def read_fasta(path: Path) -> list[tuple[str, np.ndarray]]:
    """Return the names and sequences, as indices into HAPLOTYPE, of a FASTA; `-` is DEL."""
    records: list[tuple[str, list[str]]] = []
    for number, line in read_lines(path):
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
    return [(name, encode_bases("".join(parts))) for name, parts in records]


def read_reference(path: Path) -> Region:
    """Read the one record, named CHROMOSOME or, as by `samtools faidx`, CHROMOSOME:START-END."""
    (name, bases_L), *more = read_fasta(path)
    if more or DEL in bases_L:
        raise DataError(f"{path}: a reference is one record without gaps: cut the region out first")
    match = re.fullmatch(r"(\S+?)(?::(\d+)-(\d+))?(?:\s.*)?", name)
    if not match:
        raise DataError(f"{path}: the record needs a name: > and the chromosome's")
    start, end = int(match[2] or 1), int(match[3] or len(bases_L))
    if start < 1 or end - start + 1 != len(bases_L):
        raise DataError(f"{path}: {name} is not as long as its {len(bases_L)} bases: fix either")
    return Region(match[1], start, bases_L)


def read_haplotypes(folder: Path) -> Cohort:
    """Read a FASTA of two aligned haplotypes for each subject, named as the file."""
    files = sorted(p for p in folder.glob("*") if _FASTA.fullmatch(p.name))
    if not files:
        raise DataError(f"{folder}: no .fa or .fasta here: give the folder of the subjects' files")
    subjects, rows = list[str](), list[np.ndarray]()
    for path in files:
        subject, records = _FASTA.sub(r"\1", path.name), read_fasta(path)
        if subject in subjects:
            raise DataError(f"{path}: another file is of {subject}, too: rename either")
        lengths = [len(bases_L) for _, bases_L in records]
        if len(lengths) != 2 or len({*lengths, len(rows[0][0]) if rows else lengths[0]}) > 1:
            raise DataError(f"{path}: lengths {lengths}: align two haplotypes of the same region")
        subjects.append(subject)
        rows.append(np.stack([bases_L for _, bases_L in records]))
    return Cohort(subjects, np.stack(rows))


def read_vcf(path: Path, region: Region) -> Cohort:
    """Apply the genotypes of a VCF to the region's bases.

    Records outside the region are skipped. Unknown and symbolic alleles (<DEL>, breakends) are N.
    """
    cohort, is_inside, last = None, False, "none"
    for number, line in read_lines(path):
        where, fields = f"{path}:{number}", line.split("\t")
        if line.startswith("#CHROM"):
            subjects = fields[len(COLUMNS) :]
            if fields[: len(COLUMNS)] != COLUMNS or not 0 < len(subjects) == len(set(subjects)):
                raise DataError(f"{where}: give columns {COLUMNS} and different subjects")
            rows_P2L = np.tile(region.bases_L, (len(subjects), 2, 1))
            cohort = Cohort(subjects, rows_P2L, region.start)
        elif line and not line.startswith("#"):
            if cohort is None:
                raise DataError(f"{where}: a record before the line of #CHROM: not a whole VCF")
            is_inside |= _apply_record(where, fields, region, cohort)
            last = ":".join(fields[:2])
    if cohort is None:
        raise DataError(f"{path}: no line of #CHROM: not a VCF")
    if not is_inside:
        span = f"{region.chromosome}:{region.start}-{region.start + len(region.bases_L) - 1}"
        raise DataError(f"{path}: no record is in the reference's {span}, the last is {last}")
    return cohort


def _apply_record(where: str, fields: list[str], region: Region, cohort: Cohort) -> bool:
    """Write a record's alleles into the haplotypes; return False if it is outside the region."""
    if len(fields) != (n := len(COLUMNS) + len(cohort.subjects)):
        raise DataError(f"{where}: {len(fields)} columns, #CHROM has {n}: copy it again")
    chromosome, position, _, ref, alt = fields[:5]
    if not re.fullmatch("[1-9][0-9]{0,17}", position):
        raise DataError(f"{where}: POS {position!r} is not a number from 1")
    if not _BASES.fullmatch(ref):
        raise DataError(f"{where}: REF {ref!r} is not of A, C, G, T and N")
    if fields[8].partition(":")[0] != "GT":
        raise DataError(f"{where}: FORMAT {fields[8]!r} does not begin with GT, the genotype")
    start = int(position) - region.start
    span = slice(start, start + len(ref))
    if chromosome != region.chromosome or start < 0 or span.stop > len(region.bases_L):
        return False
    if not np.array_equal(encode_bases(ref), region.bases_L[span]):
        raise DataError(f"{where}: REF {ref} is not what the reference has there: another build's?")
    alleles = {str(i): _encode_allele(where, ref, each) for i, each in enumerate(alt.split(","), 1)}
    alleles |= {"0": None, ".": np.full(len(ref), N, np.uint8)}
    for haplotypes_2L, field in zip(cohort.haplotypes_P2L, fields[len(COLUMNS) :], strict=True):
        genotype = field.partition(":")[0]
        match = re.fullmatch(r"(\d+|\.)[/|](\d+|\.)", "./." if genotype == "." else genotype)
        if not match:
            raise DataError(f"{where}: genotype {genotype!r} is not of two alleles, as 0|1 is")
        for haplotype_L, name in zip(haplotypes_2L, match.groups(), strict=True):
            if name not in alleles:
                raise DataError(f"{where}: genotype {genotype!r} has an allele that ALT has not")
            if (allele_L := alleles[name]) is not None:
                haplotype_L[span] = allele_L
    return True


def _encode_allele(where: str, ref: str, alt: str) -> np.ndarray | None:
    """Return an allele's symbols at REF's positions, None if it changes none.

    That is so for `.` (no other allele) and `*` (deleted by another record).
    """
    if alt in ("*", "."):
        return None
    if alt.startswith("<") or "[" in alt or "]" in alt:
        return np.full(len(ref), N, np.uint8)
    if not _BASES.fullmatch(alt):
        raise DataError(f"{where}: ALT {alt!r} is not of A, C, G, T and N")
    symbols_L = encode_bases(alt[: len(ref)].ljust(len(ref), "-"))
    if len(alt) > len(ref):
        symbols_L[-1] = WITH_INSERTION[symbols_L[-1]]
    return symbols_L


def read_phenotypes(path: Path, subjects: list[str]) -> np.ndarray:
    """Return 0 or 1 for each subject, from lines of a name, a tab, and 0 or 1."""
    labels: dict[str, int] = {}
    for number, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) != 2 or fields[1] not in ("0", "1"):
            raise DataError(f"{path}:{number}: a line is a subject, a tab, and 0 or 1")
        if labels.setdefault(fields[0], int(fields[1])) != int(fields[1]):
            raise DataError(f"{path}:{number}: {fields[0]} has both 0 and 1")
    missing = [subject for subject in subjects if subject not in labels]
    if missing:
        raise DataError(f"{path}: {missing[0]}, who is in the cohort, has no line here")
    return np.array([labels[subject] for subject in subjects])
