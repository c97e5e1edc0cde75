"""What a job's groups share, what is reported of them, and how they are released."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from energy_lightning.collectives.grants import GrantLedger
from energy_lightning.strategy_parts import communication
from energy_lightning.strategy_parts.communication import Communication


class FakeCollectives:
    supports_sm_count = True

    def __init__(self, name: str, group: Any, closed: list[Any]) -> None:
        self.name, self.group, self._closed = name, group, closed
        self.grants = GrantLedger(name)

    def close(self, *, in_step: bool = True) -> None:
        self._closed.append((self.group, in_step))


@pytest.mark.parametrize("in_step", [True, False])
def test_groups_share_streams_and_are_released_once(monkeypatch: pytest.MonkeyPatch, in_step: bool) -> None:
    closed: list[Any] = []
    asked: list[Any] = []

    def select(name: str, group: Any, **options: Any) -> FakeCollectives:
        asked.append(options)
        return FakeCollectives(name, group, closed)

    monkeypatch.setattr(communication, "select_collectives", select)
    job = Communication("mscclpp", torch.device("cuda", 1))
    for role in ("tensor_parallel", "data_parallel"):
        job.open(role, role)  # type: ignore[arg-type]
    assert asked[0]["streams"] is asked[1]["streams"]
    assert [options["device"] for options in asked] == [torch.device("cuda", 1)] * 2
    job.close(in_step=in_step)
    job.close(in_step=in_step)
    assert closed == [("data_parallel", in_step), ("tensor_parallel", in_step)]
    assert job.report() == []


def test_the_report_holds_what_was_asked_and_granted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = FakeCollectives("nccl4py", None, [])
    monkeypatch.setattr(communication, "select_collectives", lambda *args, **options: made)
    job = Communication()
    job.open("data_parallel", None)
    for asked, granted in ((40, 32), (40, 32), (8, 8), (None, None)):
        made.grants.note("all_reduce", asked, granted)
    (row,) = job.report()
    assert (row["role"], row["backend"], row["supports_sm_count"]) == ("data_parallel", "nccl4py", True)
    counts = {(r["asked_sm_count"], r["granted_sm_count"]): r["count"] for r in row["sm_counts"]}
    assert counts == {(40, 32): 2, (8, 8): 1, (None, None): 1}
    assert caplog.messages == ["energy_lightning: all_reduce asked for 40 SMs, nccl4py granted 32"]
    assert made.grants.differences() == ["all_reduce asked for 40 SMs, nccl4py granted 32 (2 times)"]
    silent = GrantLedger("nccl", speaks=False)
    silent.note("all_reduce", 4, None)
    assert len(caplog.messages) == 1
    assert silent.differences() == ["all_reduce asked for 4 SMs, nccl does not take SM counts (1 times)"]
