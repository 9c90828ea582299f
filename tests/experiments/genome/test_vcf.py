"""VCF, FASTA and phenotypes, and the messages about wrong ones."""

import gzip
from pathlib import Path

import pytest

from asr.errors import DataError
from experiments.genome import vcf
from experiments.genome.diplotype import TABLE, encode_diplotype


def named(*pairs: str) -> str:
    """The characters of pairs such as A-CI, in either order."""
    table = {frozenset(pair): character for pair, character in TABLE.items()}
    return "".join(table[frozenset(pair.split("-"))] for pair in pairs)


HEADER = "##fileformat=VCFv4.3\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\tp\tq\n"


def record(position: int | str, ref: str, alt: str, *genotypes: str, chromosome: str = "19") -> str:
    fields = [chromosome, str(position), ".", ref, alt, ".", ".", ".", "GT:DP", *genotypes]
    return "\t".join(fields) + "\n"


SAME = record(110, "C", "T", "0|0", "0|0")  # inside the region


@pytest.fixture
def region(tmp_path: Path) -> vcf.Region:
    """Ten bases, of which the first is number 101."""
    path = tmp_path / "region.fa"
    path.write_text(">19:101-110 a comment\nACGTA\ncgtac\n")
    return vcf.read_reference(path)


def read(tmp_path: Path, text: str, region: vcf.Region) -> list[str]:
    path = tmp_path / "cohort.vcf"
    path.write_text(text)
    return [encode_diplotype(rows_2L) for rows_2L in vcf.read_vcf(path, region).haplotypes_P2L]


@pytest.mark.parametrize(
    ("line", "p", "q"),
    [
        (record(101, "A", "G", "0|1:9", "1/1:9"), {0: "A-G"}, {0: "G"}),
        (record(102, "C", "CTT", "1|0", "1|1"), {1: "C-CI"}, {1: "CI"}),
        (record(102, "CGT", "C", "0/1", "1|1"), {2: "DEL-G", 3: "DEL-T"}, {2: "DEL", 3: "DEL"}),
        (record(104, "T", "A,TG", "1|2", "2/0"), {3: "A-TI"}, {3: "T-TI"}),
        (record(105, "A", "C", "./.", ".|1"), {4: "N"}, {4: "N-C"}),
        (record(105, "A", "C", ".", "0/0"), {4: "N"}, {}),
        (record(105, "AC", "TG", "0|1", "0|0"), {4: "A-T", 5: "C-G"}, {}),
        (record(106, "C", "<DEL>,*", "0|1", "2|2"), {5: "C-N"}, {}),
        (record(106, "C", "NA", "0|1", "0|0"), {5: "C-NI"}, {}),
        (
            record(99, "TT", "T", "1|1", "1|1") + record(110, "CA", "C", "1|1", "1|1") + SAME,
            {},
            {},
        ),
        (record(101, "A", "G", "1|1", "1|1", chromosome="20") + SAME, {}, {}),
    ],
)
def test_a_genotype_becomes_the_pair_at_its_positions(
    tmp_path: Path, region: vcf.Region, line: str, p: dict, q: dict
) -> None:
    found = read(tmp_path, HEADER + line, region)
    for text, changes in zip(found, (p, q), strict=True):
        assert text == named(*(changes.get(i, base) for i, base in enumerate("ACGTACGTAC")))


def test_a_gzipped_vcf_is_the_same(tmp_path: Path, region: vcf.Region) -> None:
    text = HEADER + record(101, "A", "G", "0|1", "1|1") + record(103, "G", "GA", "0|1", "0|0")
    plain = read(tmp_path, text, region)
    path = tmp_path / "cohort.vcf.gz"
    path.write_bytes(gzip.compress(text.encode()))
    cohort = vcf.read_vcf(path, region)
    assert [encode_diplotype(each) for each in cohort.haplotypes_P2L] == plain
    assert cohort.subjects == ["p", "q"] and cohort.start == 101
    whole = path.read_bytes()
    for damaged in (whole[:-20], whole[:10] + b"\xff" * 20 + whole[30:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"cohort.vcf.gz: cannot be read as text"):
            vcf.read_vcf(path, region)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cohort.vcf: no line of #CHROM"),
        (record(101, "A", "G", "0|1", "1|1"), "cohort.vcf:1: a record before the line of #CHROM"),
        (HEADER.replace("\tp\tq", ""), "cohort.vcf:2: give columns ['#CHROM', 'POS'"),
        (HEADER.replace("\tp\tq", "\tp\tp"), "and different subjects"),
        (HEADER + record(101, "A", "G", "0|1"), "cohort.vcf:3: 10 columns, #CHROM has 11"),
        (HEADER + record("x", "A", "G", "0|1", "0|0"), "cohort.vcf:3: POS 'x'"),
        (HEADER + record("9" * 30, "A", "G", "0|1", "0|0"), "is not a number from 1"),
        (HEADER + record(101, "", "G", "0|1", "0|0"), "cohort.vcf:3: REF ''"),
        (HEADER + record(101, "A", "G?", "0|1", "0|0"), "cohort.vcf:3: ALT 'G?'"),
        (HEADER + record(101, "T", "G", "0|1", "0|0"), "cohort.vcf:3: REF T is not what the ref"),
        (HEADER + record(101, "A", "G", "0|2", "0|0"), "has an allele that ALT has not"),
        (HEADER + record(101, "A", "G", "1", "0|0"), "genotype '1' is not of two alleles"),
        (HEADER + record(101, "A", "G", "0|1", "0|0").replace("GT:DP", "DP:GT"), "with GT"),
        (HEADER, "cohort.vcf: no record is in the reference's 19:101-110, the last is none"),
        (
            HEADER + record(101, "A", "G", "0|1", "0|0", chromosome="chr19"),
            "cohort.vcf: no record is in the reference's 19:101-110, the last is chr19:101",
        ),
        (
            HEADER + "".join(record(at, "A", "G", "0|1", "0|0") for at in (7, 90, 100, 111)),
            "cohort.vcf: no record is in the reference's 19:101-110, the last is 19:111",
        ),
    ],
)
def test_a_bad_line_of_a_vcf_is_named(
    tmp_path: Path, region: vcf.Region, text: str, says: str
) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, text, region)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_two_haplotypes_of_a_fasta(tmp_path: Path) -> None:
    (tmp_path / "one.fa").write_text(">maternal\nACGT\nAC\n>paternal\nAG-T\nnC\n")
    (tmp_path / "two.fasta").write_text(">a\nACGTAC\n>b\nACGTAC\n")
    cohort = vcf.read_haplotypes(tmp_path)
    assert cohort.subjects == ["one", "two"] and cohort.start == 1
    first, second = (encode_diplotype(each) for each in cohort.haplotypes_P2L)
    assert first == named("A", "C-G", "G-DEL", "T", "A-N", "C") and second == "ACGTAC"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (">a\nACGT\n>b\nACG\n", "one.fa: lengths [4, 3]: align two haplotypes"),
        (">a\nACGT\n", "one.fa: lengths [4]: align two haplotypes"),
        (">a\nACGT\n>b\nACET\n", "one.fa:4: only A, C, G, T, N and -"),
        ("ACGT\n", "one.fa:1: a FASTA begins with"),
        (">a\n>b\nACGT\n", "one.fa: a record without a sequence"),
        ("", "one.fa: a record without a sequence"),
    ],
)
def test_a_bad_fasta_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "one.fa").write_text(text)
    with pytest.raises(DataError) as caught:
        vcf.read_haplotypes(tmp_path)
    assert says in str(caught.value)


def test_a_subject_is_named_as_its_file_and_has_one(tmp_path: Path) -> None:
    text = ">a\nACGT\n>b\nACGT\n"
    for name in ("family.fam1.fa", "family.fam2.fa", "x.fasta"):
        (tmp_path / name).write_text(text)
    for name in ("y.fa.gz", "z.fasta.gz"):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    found = vcf.read_haplotypes(tmp_path).subjects
    assert found == ["family.fam1", "family.fam2", "x", "y", "z"]
    (tmp_path / "x.fa").write_text(text)
    with pytest.raises(DataError, match=r"x.fasta: another file is of x, too: rename either"):
        vcf.read_haplotypes(tmp_path)


def test_subjects_of_other_regions_and_a_folder_of_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no .fa or .fasta here"):
        vcf.read_haplotypes(tmp_path)
    (tmp_path / "one.fa").write_text(">a\nACGT\n>b\nACGT\n")
    (tmp_path / "two.fa").write_text(">a\nACG\n>b\nACG\n")
    with pytest.raises(
        DataError, match=r"two.fa: lengths \[3, 3\]: align two haplotypes of the same region"
    ):
        vcf.read_haplotypes(tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (">19:101-111\nACGT\n", "is not as long as its 4 bases"),
        (">19\nAC-T\n", "one record without gaps"),
        (">19\nACGT\n>20\nACGT\n", "one record without gaps"),
        (">\nACGT\n", "needs a name"),
    ],
)
def test_a_bad_reference_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "region.fa").write_text(text)
    with pytest.raises(DataError, match=says):
        vcf.read_reference(tmp_path / "region.fa")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("p\t1\n", "labels.tsv: q, who is in the cohort, has no line"),
        ("p\t1\nq 0\n", "labels.tsv:2: a line is a subject, a tab"),
        ("p\t1\np\t0\n", "labels.tsv:2: p has both"),
        ("p\t2\n", "labels.tsv:1: a line is"),
    ],
)
def test_bad_phenotypes_are_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "labels.tsv"
    path.write_text("q\t0\np\t1\n")
    assert vcf.read_phenotypes(path, ["p", "q"]).tolist() == [1, 0]
    path.write_text(text)
    with pytest.raises(DataError, match=says):
        vcf.read_phenotypes(path, ["p", "q"])
