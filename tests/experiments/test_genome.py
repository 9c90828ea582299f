"""recipes/genome: Table 5.1, VCF and FASTA by hand, what is wrong with them, end to end."""

import argparse
import gzip
import importlib.util
import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from asr.errors import ConfigError, DataError
from experiments.genome import simulation, tokens
from experiments.genome import vcf as reading
from experiments.genome.diplotype import CHARACTERS, HAPLOTYPE, TABLE, bases, diplotype

ROOT = Path(__file__).parents[2]

# Table 5.1 as it is printed, row by row.
PRINTED = """
A DEL-A A-C AI-C C-G CI-G  C DEL-AI A-G AI-CI C-N CI-GI  G DEL-C A-N AI-G C-T CI-N
N DEL-CI A-T AI-GI C-CI CI-NI  T DEL-G A-AI AI-N C-GI CI-T  AI DEL-GI A-CI AI-NI C-NI CI-TI
CI DEL-N A-GI AI-T C-TI G-GI  GI DEL-NI A-NI AI-TI GI-N G-N  NI DEL-T A-TI N-NI GI-NI G-NI
TI DEL-TI NI-T N-T GI-T G-T  DEL T-TI NI-TI N-TI GI-TI G-TI
"""
THESIS = dict(A="A", C="C", G="G", N="N", T="T", AI="B", CI="D", GI="H", NI="O", TI="U", DEL="X")


def test_the_table_is_the_thesiss_66() -> None:
    printed = {frozenset(each.split("-")) for each in PRINTED.split()}
    assert len(printed) == 66 and {frozenset(pair) for pair in TABLE} == printed
    assert len(TABLE) == 66 == len(set(CHARACTERS)) == len(CHARACTERS)
    assert all(TABLE[each, each] == character for each, character in THESIS.items())
    assert TABLE["C", "NI"] == "穿"
    assert unicodedata.normalize("NFKC", CHARACTERS) == CHARACTERS


def named(*pairs: str) -> str:
    """The characters of pairs such as A-CI, in either order."""
    table = {frozenset(pair): character for pair, character in TABLE.items()}
    return "".join(table[frozenset(pair.split("-"))] for pair in pairs)


def test_a_diplotype_does_not_know_which_chromosome_is_which() -> None:
    rows_2L = np.array([(i, j) for i in range(11) for j in range(11)], np.uint8).T
    assert diplotype(rows_2L) == diplotype(rows_2L[::-1])
    assert diplotype(rows_2L) == named(*(f"{HAPLOTYPE[i]}-{HAPLOTYPE[j]}" for i, j in rows_2L.T))


HEADER = "##fileformat=VCFv4.3\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\tp\tq\n"


def record(position: int | str, ref: str, alt: str, *genotypes: str, chromosome: str = "19") -> str:
    fields = [chromosome, str(position), ".", ref, alt, ".", ".", ".", "GT:DP", *genotypes]
    return "\t".join(fields) + "\n"


ALIKE = record(110, "C", "T", "0|0", "0|0")  # inside, and nobody has another allele


@pytest.fixture
def region(tmp_path: Path) -> reading.Region:
    """Ten bases, of which the first is number 101."""
    path = tmp_path / "region.fa"
    path.write_text(">19:101-110 a comment\nACGTA\ncgtac\n")
    return reading.read_reference(path)


def read(tmp_path: Path, text: str, region: reading.Region) -> list[str]:
    path = tmp_path / "cohort.vcf"
    path.write_text(text)
    return [diplotype(rows_2L) for rows_2L in reading.read_vcf(path, region).haplotypes_P2L]


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
            record(99, "TT", "T", "1|1", "1|1") + record(110, "CA", "C", "1|1", "1|1") + ALIKE,
            {},
            {},
        ),
        (record(101, "A", "G", "1|1", "1|1", chromosome="20") + ALIKE, {}, {}),
    ],
)
def test_a_genotype_becomes_the_pair_at_its_places(
    tmp_path: Path, region: reading.Region, line: str, p: dict, q: dict
) -> None:
    found = read(tmp_path, HEADER + line, region)
    for text, changes in zip(found, (p, q), strict=True):
        assert text == named(*(changes.get(i, base) for i, base in enumerate("ACGTACGTAC")))


def test_a_gzipped_vcf_is_the_same(tmp_path: Path, region: reading.Region) -> None:
    text = HEADER + record(101, "A", "G", "0|1", "1|1") + record(103, "G", "GA", "0|1", "0|0")
    plain = read(tmp_path, text, region)
    path = tmp_path / "cohort.vcf.gz"
    path.write_bytes(gzip.compress(text.encode()))
    cohort = reading.read_vcf(path, region)
    assert [diplotype(each) for each in cohort.haplotypes_P2L] == plain
    assert cohort.subjects == ["p", "q"] and cohort.start == 101
    whole = path.read_bytes()
    for damaged in (whole[:-20], whole[:10] + b"\xff" * 20 + whole[30:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"cohort.vcf.gz: cannot be read as text"):
            reading.read_vcf(path, region)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cohort.vcf: no line of #CHROM"),
        (record(101, "A", "G", "0|1", "1|1"), "cohort.vcf:1: a record before the line of #CHROM"),
        (HEADER.replace("\tp\tq", ""), "cohort.vcf:2: the columns must be #CHROM POS"),
        (HEADER.replace("\tp\tq", "\tp\tp"), "different names"),
        (HEADER + record(101, "A", "G", "0|1"), "cohort.vcf:3: 10 columns, the line of #CHROM has"),
        (HEADER + record("x", "A", "G", "0|1", "0|0"), "cohort.vcf:3: POS 'x'"),
        (HEADER + record("9" * 30, "A", "G", "0|1", "0|0"), "is not a number from 1"),
        (HEADER + record(101, "", "G", "0|1", "0|0"), "cohort.vcf:3: REF ''"),
        (HEADER + record(101, "A", "G?", "0|1", "0|0"), "cohort.vcf:3: ALT 'G?'"),
        (HEADER + record(101, "T", "G", "0|1", "0|0"), "cohort.vcf:3: REF T is not what the ref"),
        (HEADER + record(101, "A", "G", "0|2", "0|0"), "has an allele that ALT has not"),
        (HEADER + record(101, "A", "G", "1", "0|0"), "genotype '1' is not of two alleles"),
        (HEADER + record(101, "A", "G", "0|1", "0|0").replace("GT:DP", "DP:GT"), "with GT"),
        (
            HEADER,
            "cohort.vcf: it has no records, the reference is 19:101-110: give the same region",
        ),
        (
            HEADER + record(101, "A", "G", "0|1", "0|0", chromosome="chr19"),
            "cohort.vcf: its records go from chr19:101 to chr19:101, the reference is 19:101-110",
        ),
        (
            HEADER + "".join(record(at, "A", "G", "0|1", "0|0") for at in (7, 90, 100, 111)),
            "cohort.vcf: its records go from 19:7 to 19:111, the reference is 19:101-110",
        ),
    ],
)
def test_a_bad_line_of_a_vcf_is_named(
    tmp_path: Path, region: reading.Region, text: str, says: str
) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, text, region)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_two_haplotypes_of_a_fasta(tmp_path: Path) -> None:
    (tmp_path / "one.fa").write_text(">maternal\nACGT\nAC\n>paternal\nAG-T\nnC\n")
    (tmp_path / "two.fasta").write_text(">a\nACGTAC\n>b\nACGTAC\n")
    cohort = reading.read_haplotypes(tmp_path)
    assert cohort.subjects == ["one", "two"] and cohort.start == 1
    first, second = (diplotype(each) for each in cohort.haplotypes_P2L)
    assert first == named("A", "C-G", "G-DEL", "T", "A-N", "C") and second == "ACGTAC"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (">a\nACGT\n>b\nACG\n", "one.fa: has sequences of [4, 3] bases"),
        (">a\nACGT\n", "has sequences of [4] bases, not two of one length"),
        (">a\nACGT\n>b\nACET\n", "one.fa:4: only A, C, G, T, N and -"),
        ("ACGT\n", "one.fa:1: a FASTA begins with"),
        (">a\n>b\nACGT\n", "one.fa: a record without a sequence"),
        ("", "one.fa: a record without a sequence"),
    ],
)
def test_a_bad_fasta_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "one.fa").write_text(text)
    with pytest.raises(DataError) as caught:
        reading.read_haplotypes(tmp_path)
    assert says in str(caught.value)


def test_a_subject_is_named_as_its_file_and_has_one(tmp_path: Path) -> None:
    text = ">a\nACGT\n>b\nACGT\n"
    for name in ("family.fam1.fa", "family.fam2.fa", "x.fasta"):
        (tmp_path / name).write_text(text)
    for name in ("y.fa.gz", "z.fasta.gz"):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    found = reading.read_haplotypes(tmp_path).subjects
    assert found == ["family.fam1", "family.fam2", "x", "y", "z"]
    (tmp_path / "x.fa").write_text(text)
    with pytest.raises(DataError, match=r"x.fasta: x.fa is x's too: rename either"):
        reading.read_haplotypes(tmp_path)


def test_subjects_of_other_regions_and_a_folder_of_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no .fa or .fasta here"):
        reading.read_haplotypes(tmp_path)
    (tmp_path / "one.fa").write_text(">a\nACGT\n>b\nACGT\n")
    (tmp_path / "two.fa").write_text(">a\nACG\n>b\nACG\n")
    with pytest.raises(DataError, match=r"two.fa: is 3 places long, one.fa 4"):
        reading.read_haplotypes(tmp_path)


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
        reading.read_reference(tmp_path / "region.fa")


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
    assert reading.read_phenotypes(path, ["p", "q"]).tolist() == [1, 0]
    path.write_text(text)
    with pytest.raises(DataError, match=says):
        reading.read_phenotypes(path, ["p", "q"])


def test_the_simulation_has_all_kinds_of_sites_and_a_risk(tmp_path: Path) -> None:
    places = simulation.simulate(tmp_path / "a", 6000, 300, 20, seed=3)
    simulation.simulate(tmp_path / "b", 6000, 300, 20, seed=3)
    for name in ("reference.fa", "cohort.vcf", "panel.vcf", "phenotypes.tsv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    region = reading.read_reference(tmp_path / "a" / "reference.fa")
    cohort = reading.read_vcf(tmp_path / "a" / "cohort.vcf", region)
    kinds = np.bincount(cohort.haplotypes_P2L.ravel(), minlength=len(HAPLOTYPE))
    assert kinds[HAPLOTYPE.index("DEL")] and kinds[HAPLOTYPE.index("AI")] and not kinds[4]
    assert places == [3001, 3181]
    labels = reading.read_phenotypes(tmp_path / "a" / "phenotypes.tsv", cohort.subjects)
    at_risk = [int(share * 6000) for share, _ in simulation.RISK]
    others_PR = cohort.haplotypes_P2L[:, :, at_risk] != region.bases_L[at_risk]
    risk_P = others_PR.sum(1) @ [effect for _, effect in simulation.RISK]
    assert risk_P[labels == 1].mean() > risk_P[labels == 0].mean() + 0.5


def test_every_diplotype_is_made_of_known_tokens() -> None:
    rng = np.random.default_rng(0)
    sequence = diplotype(np.tile(bases("".join(rng.choice(list("ACGT"), 900))), (2, 1)))
    model = tokens.learn([sequence], 120, seed=1)
    found = tokens.encode([sequence, CHARACTERS], model)
    assert tokens.UNK not in torch_list(found) and len(found[0]) < 600
    assert model == tokens.learn([sequence], 120, seed=1)


def test_a_vocabulary_that_does_not_fit_is_told_what_does() -> None:
    for vocab, says in ((20, "68 at least"), (84, "83 at most")):
        with pytest.raises(DataError, match=f"--vocab {vocab} .*: make it {says}$"):
            tokens.learn(["ACGTAC" * 20], vocab, seed=1)
    assert tokens.learn(["ACGTAC" * 20], 68, seed=1) and tokens.learn(["ACGTAC" * 20], 83, seed=1)


def torch_list(found: list) -> list[int]:
    return [token for each in found for token in each.tolist()]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("genome_run", ROOT / "recipes/genome/run.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pretraining_is_done_anew_for_what_it_was_not_done_for(
    tmp_path: Path, recipe: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"tokens": 50, "vocab": 100, "seed": 1, "pretraining_epochs": 1, "out": tmp_path}
    panel = [torch.arange(2, 40), torch.arange(30, 60)]
    trained: list[dict] = []

    def fit(_what: str, model: torch.nn.Module, *_: object, **settings: object) -> torch.nn.Module:
        trained.append(settings)
        torch.nn.init.constant_(model.special, len(trained))
        return model

    monkeypatch.setattr(recipe, "fit", fit)

    def number(panel: list[torch.Tensor], **changes: int) -> float:
        """Of the training whose weights these are."""
        model = recipe.pretrained(argparse.Namespace(**{**options, **changes}), panel)
        assert model.embed.num_embeddings == {**options, **changes}["vocab"]
        return float(model.special.detach().mean())

    assert number(panel) == 1 == number(panel)
    changes = [{"vocab": 101}, {"seed": 2}, {"pretraining_epochs": 2}, {"tokens": 60}]
    assert [number(panel, **each) for each in changes] == [2, 3, 4, 5]
    assert number([panel[0].flip(0), panel[1]]) == 6 and number(panel[:1]) == 7
    assert number(panel) == 1 and number(panel, seed=2) == 3 and len(trained) == 7


def test_a_token_more_in_front_changes_little_of_what_an_untrained_model_says(
    recipe: ModuleType,
) -> None:
    options = argparse.Namespace(tokens=1024, vocab=100, seed=1)
    torch.manual_seed(0)
    tokens_BS = torch.randint(2, 100, (16, 1000))
    moved_BS = tokens_BS.roll(1, 1)

    def change(model: torch.nn.Module) -> float:
        model.eval()
        with torch.inference_mode():
            said, then = (model(x_BS, x_BS > 0) for x_BS in (tokens_BS, moved_BS))
        return float((said - then).norm(dim=1).mean() / (said - said.mean(0)).norm(dim=1).mean())

    assert change(recipe.fresh(options)) < 0.3
    assert change(recipe.shape(options).build()) > 0.6


def run(*options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "recipes" / "genome" / "run.py", *options]
    paths = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return subprocess.run(
        command, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip


def test_from_genotypes_to_the_table_and_on_where_it_was(tmp_path: Path) -> None:
    options = ("--out", tmp_path, "--simulated-subjects", "60", "--simulated-length", "1200",
               "--tokens", "300", "--vocab", "300", "--epochs", "1",
               "--pretraining-epochs", "1")  # fmt: skip
    result = run(*options)
    assert result.returncode == 0, result.stderr
    assert "SIMULATED" in result.stderr and "simulated cohort" in result.stdout
    lines = result.stdout.splitlines()
    models = ["logistic baseline", "Linformer, not pre-trained", "Linformer"]
    assert [line.split("|")[1].strip() for line in lines[2:]] == models
    path = tmp_path / "results.json"
    found = json.loads(path.read_text())
    assert [(row["split"], row["model"]) for row in found["rows"]] == [
        (split, model) for split in range(5) for model in models
    ]
    assert all(0 <= row[key] <= 100 for row in found["rows"] for key in ("AUC", "F1"))
    (pretrained,) = tmp_path.glob("pretrained-*.safetensors")
    when = pretrained.stat().st_mtime_ns
    for row in found["rows"]:
        row["AUC"] = 12.5
    last = found["rows"].pop()
    path.write_text(json.dumps(found))
    again = run(*options)
    assert "| logistic baseline | 12.50 ± 0.00" in again.stdout, again.stderr
    rows = json.loads(path.read_text())["rows"]
    assert rows[:-1] == found["rows"] and rows[-1]["model"] == last["model"]
    assert list(tmp_path.glob("pretrained*")) == [pretrained]
    assert pretrained.stat().st_mtime_ns == when


def test_a_wrong_command_is_one_sentence(tmp_path: Path) -> None:
    result = run("--fasta", tmp_path, "--phenotypes", tmp_path / "y", "--baseline", "1",
                 "--out", tmp_path / "out")  # fmt: skip
    assert result.returncode == 3 and "no .fa or .fasta here" in result.stderr
    assert "Traceback" not in result.stderr and not result.stdout
    assert not (
        tmp_path / "out" / "results.json"
    ).exists()  # which would keep the right command out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--simulated-subjects 0", "--simulated-subjects 0: give a number from 20 to"),
        ("--seed 99999999999", "--seed 99999999999: give a number from 0 to 2147483647"),
        ("--vocab -1", "--vocab -1: give a number from 68 to"),
        ("--vocab 99999999999", "--vocab 99999999999: give a number from 68 to"),
        ("--panel p.vcf", "--panel goes with --vcf"),
        ("--fasta f --phenotypes y --baseline 1 --panel p.vcf", "--panel goes with --vcf"),
        ("--phenotypes y", "give --phenotypes and --baseline with --vcf or --fasta"),
        ("--baseline 1,2", "give --phenotypes and --baseline with --vcf or --fasta"),
        ("--fasta f --phenotypes y", "give --phenotypes and --baseline with --vcf or --fasta"),
    ],
)
def test_options_that_cannot_be_obeyed_are_named(
    recipe: ModuleType, monkeypatch: pytest.MonkeyPatch, options: str, says: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", *options.split()])
    with pytest.raises(ConfigError) as caught:
        recipe.arguments()
    assert str(caught.value).startswith(says)
