"""The split of single words by which new words are measured."""

from benchmarks.new_words import split

WORDS = [a + b for a in "天地人水火" for b in "山川日月風雨"] * 10


def test_words_of_the_test_are_new_and_their_characters_are_not() -> None:
    texts = [*WORDS, "獨", "一一"]
    found = split(texts, seed=1)
    by_name = {
        name: [t for t, own in zip(texts, found, strict=True) if own == name] for name in set(found)
    }
    assert len(by_name["test"]) == len(texts) // 10
    known = set("".join(by_name["train"]))
    assert set("".join(by_name["test"] + by_name.get("dev", []))) <= known
    assert {"獨", "一一"} <= set(by_name["train"])


def test_a_seed_gives_one_split() -> None:
    assert split(WORDS, 1) == split(WORDS, 1) != split(WORDS, 2)
