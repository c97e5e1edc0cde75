"""CSV files as people have them: what is read all the same, and what is said of the others."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from served_tables import command, served

from energy_lightning.app.predict_table import check_columns, energy_of, read_table
from energy_lightning.types import EnergyLightningError

PLAIN = "batch_size,energy_j\n1,8.5\n2,4.5\n"


@pytest.mark.parametrize(
    "content",
    [
        PLAIN.encode(),
        PLAIN.encode("utf-8-sig"),
        PLAIN.replace("\n", "\r\n").encode(),
        b" batch_size , energy_j \n 1 , 8.5 \n 2 , 4.5 \n",
        b"batch_size,energy_j,\n1,8.5,\n2,4.5,\n",
        b"\n" + PLAIN.encode(),
    ],
)
def test_these_are_read(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(content))
    for name in ("t.csv", "t.csv.gz"):
        table = read_table(tmp_path / name, {})
        assert table.batch_size.tolist() == [1, 2]
        assert energy_of(table, "energy_j", "J").tolist() == [8.5, 4.5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a CSV table"),
        (b"batch_size,energy_j\n", "has no rows below its header"),
        (PLAIN.replace(",", ";").encode(), "separates its columns by semicolons or tabs"),
        (b"batch_size,energy_j\n1,2,3\n1,2,3\n", "has more values in a row than its header has names"),
        (b"batch_size,energy_j\n1,2\n1,2,3\n", "Expected 2 fields in line 3, saw 3"),
        (b'batch_size,energy_j\n1,"2\n', "EOF inside string"),
        (PLAIN.encode("utf-16"), "is not a CSV table in UTF-8"),
        (b"a, a\n1,2\n", "has two columns a"),
        (PLAIN.replace("8.5", '"8,5"').replace("4.5", '"4,5"').encode(), "write them as 1234.5, without a unit"),
        (PLAIN.replace("8.5", "8.5 J").encode(), "row 0 has '8.5 J' \\(1 such rows of 2\\); drop failed runs first"),
        (b"batch_size,energy_j\n1,True\n2,False\n", "column energy_j must hold numbers, it holds truth values"),
        (b"batch_size,energy_j\n1,True\n2,\n", "column energy_j must hold numbers, it holds truth values"),
    ],
)
def test_these_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(EnergyLightningError, match=message) as raised:
        energy_of(read_table(tmp_path / "t.csv", {}), "energy_j", "J")
    assert "\n" not in str(raised.value)


def test_archives_and_folders_that_are_none_are_named(tmp_path: Path) -> None:
    for name in ("t.csv.gz", "t.csv.zip"):
        (tmp_path / name).write_text(PLAIN)
        with pytest.raises(EnergyLightningError, match=name):
            read_table(tmp_path / name, {})
    with pytest.raises(EnergyLightningError, match="is a folder; give a CSV"):
        read_table(tmp_path, {})


def test_a_column_of_another_name_is_pointed_at_as_it_is_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(PLAIN.replace("batch_size", "max_batch"))
    message = "t.csv has no column batch_size; it has max_batch, energy_j. .*: columns.batch_size=NAME"
    with pytest.raises(EnergyLightningError, match=message):
        check_columns(read_table(tmp_path / "t.csv", {}), ["batch_size"], tmp_path / "t.csv")
    check_columns(read_table(tmp_path / "t.csv", {"batch_size": "max_batch"}), ["batch_size"], tmp_path / "t.csv")


def test_a_file_of_any_name_can_be_given_in_quotes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served().to_csv(tmp_path / "é.csv", index=False)
    rest = ["kind=inference", f"output_dir={tmp_path}/out"]
    assert command("fit", f"csv={tmp_path}/é.csv", *rest) == 2
    error = capsys.readouterr().err
    quoted = f"csv='{tmp_path}/é.csv'"
    assert f'its value needs quotes that the shell leaves alone: "{quoted}"' in error
    assert len(error.splitlines()) == 1
    assert command("fit", quoted, *rest) == 0
