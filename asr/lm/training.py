"""Estimate an n-gram over a recognizer's tokens: sources, their mixture, the ARPA file."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from asr.config import Config
from asr.data.manifest import load_cuts, text_of
from asr.errors import ConfigError, DataError
from asr.lm.backoff import Backoff, Counts, count, writable
from asr.lm.estimation import end_share, estimate, estimate_list
from asr.lm.mixture import fit, mix, perplexity
from asr.lm.texts import Collector, read_texts, read_words
from asr.runtime.files import open_regular, write_atomically
from asr.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_MOST_SOURCES = 16  # each has its tables in memory
_LINES = 1000  # between reports of progress
_BEGIN = b"\\data\\"
# How much the end of a list's entry may count as evidence that what follows is not in the list. The
# end of a word shows that the word does not go on; the end of a phrase shows nothing.
_END_SHARES = (1.0, 0.3, 0.1)

Item = TypeVar("Item")
OnLines = Callable[[float], None]


def train_ngram(
    config: Config,
    tokenizer: Tokenizer,
    texts: list[Path],
    words: list[Path],
    out: Path,
    order: int,
    on_lines: OnLines = lambda _: None,
) -> None:
    """Write an n-gram of texts and lists of words, or else of the transcripts, as an ARPA file.

    `texts` are files with a sentence per line, or manifests. The entries of the lists `words` stand
    within sentences. Without `texts` each entry is a whole sentence, and hardly anything else is
    expected. Without both, the recognizer's training transcripts are taken. Each file is a source.
    The weights of several sources make the dev transcripts most likely. `on_lines` gets the number
    of lines that were read. Raises DataError where a source has no text, ConfigError for too many
    sources, or where `out` is a file that must not be replaced.
    """
    if len(texts) + len(words) > _MOST_SOURCES:
        raise ConfigError(
            f"{len(texts) + len(words)} files of text: each is weighted by itself, {_MOST_SOURCES} "
            "at most: join those of one kind (cat A B > C)"
        )
    _check_replaceable(out)
    reader = _Reader(tokenizer, order, on_lines)
    if not texts and not words:
        log.info("the transcripts are those of %s", config.data.train_names)
    # A bundle may be a stranger's. So the files that it names are opened as manifests only.
    sources = [*texts] if texts or words else [*config.data.train]
    of_texts = [reader.texts(path) for path in texts]
    of_texts += [reader.transcripts(path) for path in sources[len(texts) :]]
    of_words = [reader.words(path, is_whole=not of_texts) for path in words]
    dev = reader.dev(config.data.dev)
    models = [estimate(counts, reader.is_token_V) for counts in of_texts]
    for counts in of_words:
        if of_texts:
            tried = (
                estimate(counts.with_ends(share), reader.is_token_V, end_share(of_texts))
                for share in _END_SHARES
            )
            models.append(_likeliest(tried, models[: len(of_texts)], dev))
        else:
            models.append(estimate_list(counts, reader.is_token_V))
    model = models[0] if len(models) == 1 else _mixed(models, dev, [*sources, *words])
    if dev:
        log.info("perplexity of the dev transcripts per token: %.1f", perplexity(model, dev))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, lambda temporary: model.write(temporary, reader.names))


@dataclass
class _Reader:
    """Reads sources and counts their n-grams; `on_lines` sees how many lines were read."""

    tokenizer: Tokenizer
    order: int
    on_lines: OnLines
    n_lines: int = 0

    def __post_init__(self) -> None:
        self.names = self.tokenizer.tokens()
        self.is_token_V = writable(self.names)

    def texts(self, path: Path | str) -> Counts:
        """Count the n-grams of a file of sentences."""
        return self._sentences(path, read_texts(path))

    def transcripts(self, manifest: Path | str) -> Counts:
        """Count the n-grams of a manifest's transcripts."""
        return self._sentences(manifest, map(text_of, load_cuts(manifest)))

    def words(self, path: Path, *, is_whole: bool) -> Counts:
        """Count the n-grams of a list of words, which are whole sentences or parts of them."""
        collector = Collector(self.tokenizer)
        for word, times in self._counted(read_words(path)):
            collector.add_word(word, times, is_whole=is_whole)
        left_out = collector.n_left_out
        kind = "words" + f", {left_out:,} others are left out" * bool(left_out)
        return self._counts(path, collector, kind, has_ends=not is_whole)

    def dev(self, manifest: Path | str) -> Counts | None:
        """Count the n-grams of the dev transcripts; None where there is no such manifest here."""
        if isinstance(manifest, str) or not manifest.exists():
            log.warning("%s: there is no such manifest here: nothing is measured", manifest)
            return None
        return self.transcripts(manifest)

    def _sentences(self, path: Path | str, texts: Iterable[str]) -> Counts:
        collector = Collector(self.tokenizer)
        for text in self._counted(texts):
            collector.add_text(text)
        return self._counts(path, collector, "sentences", has_ends=False)

    def _counted(self, lines: Iterable[Item]) -> Iterator[Item]:
        for line in lines:
            self.n_lines += 1
            if self.n_lines % _LINES == 0:
                self.on_lines(self.n_lines)
            yield line

    def _counts(
        self, path: Path | str, collector: Collector, kind: str, *, has_ends: bool
    ) -> Counts:
        unknown = collector.unknown
        if not collector.n_texts:
            raise DataError(
                f"{path}: holds no text of this model's tokens: give a UTF-8 file with a sentence "
                "or word per line"
            )
        if unknown:
            most = ", ".join(f"{c} {n:,}" for c, n in unknown.most_common(5))
            kind += f": {unknown.total():,} characters are no tokens of the model ({most})"
        log.info("%s: %s %s", path, f"{collector.n_texts:,}", kind)
        return count(collector.fragments(has_ends=has_ends), self.order, len(self.names))


def _likeliest(tried: Iterator[Backoff], texts: list[Backoff], dev: Counts | None) -> Backoff:
    """Return the model of a list that makes dev most likely, mixed with the models of the texts.

    Without dev transcripts it is the first.
    """
    return min(tried, key=lambda model: fit([*texts, model], dev)[1]) if dev else next(tried)


def _mixed(models: list[Backoff], dev: Counts | None, names: list[Path]) -> Backoff:
    """Return the mixture that makes the dev transcripts most likely; without dev, equal parts."""
    shares_MK = fit(models, dev)[0] if dev else np.full((len(models), 1), 1 / len(models))
    listed = ", ".join(
        f"{name} {' '.join(f'{share:.3f}' for share in shares_K)}"
        for name, shares_K in zip(names, shares_MK, strict=True)
    )
    why = f", after 0, 1, … tokens that {names[0]} knows" if dev else ", equal without dev"
    log.info("weights of the sources%s: %s", why, listed)
    return mix(models, shares_MK)


def _check_replaceable(out: Path) -> None:
    """Raise ConfigError where `out` is anything but a new file or an ARPA file."""
    try:
        with open_regular(out) as file:
            is_free = file.read(len(_BEGIN)) == _BEGIN
    except FileNotFoundError:
        is_free = True
    except OSError:
        is_free = False
    if not is_free:
        raise ConfigError(
            f"{out}: is there and no ARPA file, which could be replaced: give another --out FILE"
        )
