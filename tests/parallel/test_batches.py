from dataclasses import dataclass

import torch

from energy_lightning.parallel.batches import fingerprint, token_shape


@dataclass
class Pair:
    tokens: torch.Tensor
    labels: torch.Tensor


def test_token_shape_prefers_input_ids_whatever_comes_first() -> None:
    batch = {"token_type_ids": torch.zeros(9, 9, dtype=torch.long), "input_ids": torch.zeros(4, 7, dtype=torch.long)}
    assert token_shape(batch) == (4, 7)
    assert token_shape([{"x": batch}]) == (4, 7)


def test_token_shape_of_other_containers_and_of_no_tokens() -> None:
    tokens = torch.zeros(2, 5, dtype=torch.int32)
    assert token_shape(Pair(tokens, torch.zeros(2))) == (2, 5)
    assert token_shape((torch.zeros(3, 4), tokens)) == (2, 5)  # floats of two dimensions are no tokens
    assert token_shape({"image": torch.zeros(2, 3, 8, 8)}) is None


def test_fingerprint_sees_content_shape_and_name_only() -> None:
    base = {"input_ids": torch.arange(6).reshape(2, 3)}
    assert torch.equal(fingerprint(base), fingerprint({"input_ids": torch.arange(6).reshape(2, 3).clone()}))
    for other in (
        {"input_ids": torch.arange(6).reshape(3, 2)},
        {"input_ids": torch.arange(6).reshape(2, 3).to(torch.int32)},
        {"labels": torch.arange(6).reshape(2, 3)},
        {"input_ids": torch.arange(6).reshape(2, 3).flip(0)},
    ):
        assert not torch.equal(fingerprint(base), fingerprint(other))


def test_fingerprint_of_bfloat16_and_of_a_transposed_view() -> None:
    values = torch.arange(6.0).reshape(2, 3).to(torch.bfloat16)
    assert torch.equal(fingerprint(values.t()), fingerprint(values.t().contiguous()))
