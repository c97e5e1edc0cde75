"""Runs whose cost says nothing of their batch size: told at their beginning, trained, and not reported."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recurring_trainings import NEEDED, JobTrainer, Module, job

from energy_lightning.callbacks.comparable import loader_doubt, loader_fault, mark_trained, start_fault
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.recurring import BatchSizeOptimizer, Run

STORE = Path("job.sqlite")


def runs(folder: Path) -> list[Run]:
    return BatchSizeOptimizer.of_store(folder / "job.sqlite").runs()


def lines(trainer: JobTrainer) -> list[str]:
    return [line.removeprefix("energy_lightning: ") for line in trainer.lightning_module.lines]


def trained(folder: Path, module: Any = None, *, fails: Any = None, **options: Any) -> JobTrainer:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(folder, device, **options)])
    if module is not None:
        trainer.lightning_module = module
        module.lines.clear()
    trainer.fit(fails=fails)
    return trainer


@pytest.mark.parametrize("again", [lambda module: module, copy.deepcopy], ids=["itself", "a copy"])
def test_a_module_that_was_trained_before_is_trained_and_not_reported(again: Any, tmp_path: Path) -> None:
    first = trained(tmp_path)
    later = trained(tmp_path, again(first.lightning_module))
    assert len(runs(tmp_path)) == 1  # and nothing is left leased
    fault, told = (line for line in lines(later) if "report" in line)
    assert fault.startswith("this run will not be reported: this Module was trained in an earlier run of the job")
    assert told.endswith("; not reported")
    assert (later.callbacks[0].verdict, later.global_step) == ("reached", NEEDED[later.lightning_module.batch_size])


def test_one_that_is_not_compared_is_not_stopped_either(tmp_path: Path) -> None:
    known = BatchSizeOptimizer([8, 16, 32, 64], default=32, max_power_w=400.0, store=tmp_path / "job.sqlite")
    known.observe(32, energy_j=1.0, time_s=0.1, reached_target=True)
    first = trained(tmp_path, check_every_n_steps=5)
    assert first.callbacks[0].verdict == "too dear"
    later = trained(tmp_path, first.lightning_module, check_every_n_steps=5)
    assert later.callbacks[0].verdict == ("reached" if later.lightning_module.batch_size != 64 else "ended")
    assert len(runs(tmp_path)) == 2


@pytest.mark.parametrize("emulated", [False, True])
def test_one_that_is_not_compared_reports_nothing_when_memory_runs_out(emulated: bool, tmp_path: Path) -> None:
    """Nor does it matter whether it is of the kind of the store's runs."""
    first = trained(tmp_path)
    device = ScriptedDevice()
    device.emulated = emulated
    later = JobTrainer(device, [job(tmp_path, device)])
    later.lightning_module = first.lightning_module
    with pytest.raises(MemoryError):
        later.fit(fails=(5, MemoryError()))
    assert later.callbacks[0].verdict == "out of memory"
    assert len(runs(tmp_path)) == 1


def test_batches_without_an_optimizer_step_leave_the_weights_as_they_were(tmp_path: Path) -> None:
    """Of a first step that gathers gradients of several."""
    device, module = ScriptedDevice(), Module()
    trainer = JobTrainer(device, [job(tmp_path, device)])
    trainer.lightning_module = module
    for hook, arguments in (("setup", ("fit",)), ("on_train_start", ()), ("on_train_batch_start", (None, 0))):
        trainer.call(hook, *arguments)
    trainer.call("on_train_batch_end", None, None, 0)
    trainer.call("on_exception", KeyboardInterrupt())
    trained(tmp_path, module)
    assert [run.state for run in runs(tmp_path)] == ["done", "dead"]


def test_a_new_module_another_job_and_one_that_took_no_step_are_reported(tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        trained(tmp_path, module := Module(), fails=(0, MemoryError()))
    first = trained(tmp_path, module)  # its weights are as they were
    trained(tmp_path)
    (tmp_path / "other").mkdir()
    trained(tmp_path / "other", first.lightning_module)
    assert [run.state for run in runs(tmp_path)] == ["done"] * 3
    assert [run.state for run in runs(tmp_path / "other")] == ["done"]


def test_a_trainer_that_goes_on_is_not_reported_and_neither_is_what_resumes_that(tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)])
    trainer.global_step = 3
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(save_at=20, fails=(25, KeyboardInterrupt()))
    assert "this run will not be reported: it goes on from step 3, and what was spent" in lines(trainer)[1]
    device = ScriptedDevice()
    later = JobTrainer(device, [job(tmp_path, device)])
    later.fit(resumed=trainer.checkpoint)
    assert later.callbacks[0].verdict == "reached"
    assert "this run will not be reported: it goes on from step 3, and what was spent" in lines(later)[1]
    assert runs(tmp_path) == []


def test_a_module_that_resumes_its_own_run_is_reported(tmp_path: Path) -> None:
    device, module = ScriptedDevice(), Module()
    trainer = JobTrainer(device, [job(tmp_path, device)])
    trainer.lightning_module = module
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(save_at=20, fails=(25, KeyboardInterrupt()))
    device = ScriptedDevice()
    later = JobTrainer(device, [job(tmp_path, device)])
    later.lightning_module = module
    later.fit(resumed=trainer.checkpoint)
    assert [(run.state, run.reached_target) for run in runs(tmp_path)] == [("done", True)]


def test_a_loader_of_other_batches_is_not_reported(tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer: Any = JobTrainer(device, [job(tmp_path, device)])
    trainer.train_dataloader, trainer.accumulate_grad_batches = SimpleNamespace(batch_size=5), 1
    trainer.fit()
    assert runs(tmp_path) == []
    assert lines(trainer)[1].startswith("this run will not be reported: the training loader makes batches of 5, not of")


def test_a_doubt_is_no_news_in_a_later_run_of_the_size(tmp_path: Path) -> None:
    """It was told night for night to whoever counts the batches of all processes."""
    known = BatchSizeOptimizer([8, 16, 32, 64], default=32, max_power_w=400.0, store=tmp_path / "job.sqlite")
    known.observe(8, energy_j=2410.0, time_s=10.0, reached_target=True, num_evaluations=6)
    sizes, doubts = [], []
    for _ in range(5):
        device = ScriptedDevice()
        trainer: Any = JobTrainer(device, [job(tmp_path, device, target=2.0)])
        trainer.num_devices, trainer.accumulate_grad_batches = 2, 1

        class Loader:
            batch_size = property(lambda _, trainer=trainer: trainer.lightning_module.batch_size // 2)

        trainer.train_dataloader = Loader()
        trainer.fit()
        sizes.append(trainer.lightning_module.batch_size)
        doubts.append([("makes batches of" in line, "the first look at" in line) for line in lines(trainer)])
    first = [size not in sizes[:index] for index, size in enumerate(sizes)]
    assert 8 in sizes
    assert 1 < sum(first) < 5
    assert [any(loader for loader, _ in told) for told in doubts] == [
        new and size != 8 for new, size in zip(first, sizes, strict=True)
    ]
    assert [any(look for _, look in told) for told in doubts] == first


def test_batches_of_one_are_doubted_where_they_are_reported(tmp_path: Path) -> None:
    module, doubts = Module(), []
    for _ in range(2):  # the second run is not reported
        module.lines.clear()
        device = ScriptedDevice()
        trainer: Any = JobTrainer(device, [job(tmp_path, device)])
        trainer.lightning_module, trainer.accumulate_grad_batches = module, 1
        trainer.train_dataloader = SimpleNamespace(batch_size=1)
        trainer.fit()
        doubts.append([line for line in lines(trainer) if "makes batches of 1: unless its data set" in line])
    assert [len(told) for told in doubts] == [1, 0]
    assert len(runs(tmp_path)) == 1


@pytest.mark.parametrize("module", [Module(), object.__new__(Module)])
def test_a_run_begins_as_others_do_unless_something_tells(module: Any) -> None:
    new, going = SimpleNamespace(global_step=0), SimpleNamespace(global_step=7)
    assert start_fault(new, module, STORE, resumed=False) is None
    assert start_fault(going, module, STORE, resumed=True) is None
    assert "from step 7" in str(start_fault(going, module, STORE, resumed=False))
    mark_trained(module, STORE)
    mark_trained(module, Path("other.sqlite"))
    assert "trained in an earlier run" in str(start_fault(new, module, STORE, resumed=False))
    assert start_fault(new, module, STORE, resumed=True) is None
    assert start_fault(new, module, Path("third.sqlite"), resumed=False) is None


@pytest.mark.parametrize(
    ("loader", "num_ranks", "num_devices", "num_batches", "fault"),
    [
        (SimpleNamespace(batch_size=32), 1, 1, 1, False),
        (SimpleNamespace(batch_size=4), 1, 1, 1, True),
        (SimpleNamespace(batch_size=16), 2, 2, 1, False),  # 32 are of all processes together
        (SimpleNamespace(batch_size=16), 4, 2, 1, False),  # of a node
        (SimpleNamespace(batch_size=8), 1, 1, 4, False),  # of an optimizer step
        (SimpleNamespace(batch_size=4), 2, 2, 4, False),
        (SimpleNamespace(batch_size=8), 2, 2, 1, True),
        (SimpleNamespace(batch_size=64), 2, 2, 1, False),  # the loader's are divided among processes
        (SimpleNamespace(batch_size=64), 1, 1, 1, True),
        (SimpleNamespace(batch_size=10), 3, 3, 1, False),  # rounded down
        (SimpleNamespace(batch_size=11), 3, 3, 1, False),  # rounded up
        (SimpleNamespace(batch_size=12), 3, 3, 1, True),
        (SimpleNamespace(batch_size=1), 1, 1, 1, False),  # the data set may make the batches
        (SimpleNamespace(batch_size=None), 1, 1, 1, False),  # a batch sampler knows
        ([1, 2], 1, 1, 1, False),
        (None, 1, 1, 1, False),
    ],
)
def test_which_loaders_follow_the_attribute(
    loader: Any, num_ranks: int, num_devices: int, num_batches: int, fault: bool
) -> None:
    trainer = SimpleNamespace(
        train_dataloader=loader, world_size=num_ranks, num_devices=num_devices, accumulate_grad_batches=num_batches
    )
    said, doubt = loader_fault(trainer, 32), loader_doubt(trainer, 32)
    assert (doubt is not None) is (not fault and getattr(loader, "batch_size", None) not in (None, 32))
    assert (said is not None) is fault
    if said is not None:
        assert f"makes batches of {loader.batch_size}, not of 32" in said


@pytest.mark.parametrize(("loaded", "share"), [(16, "2 batches together"), (64, "one of the 2 parts of a batch")])
def test_a_size_that_is_taken_for_that_of_all_ranks_is_told_and_reported(
    loaded: int, share: str, tmp_path: Path
) -> None:
    """A loader that is always of 16 rows looked as if it followed the attribute."""
    device = ScriptedDevice()
    trainer: Any = JobTrainer(device, [job(tmp_path, device)])
    trainer.train_dataloader, trainer.accumulate_grad_batches = SimpleNamespace(batch_size=loaded), 1
    trainer.num_devices = 2
    trainer.fit()
    assert len(runs(tmp_path)) == 1
    (told,) = [line for line in lines(trainer) if line.startswith("the training loader")]
    assert f"makes batches of {loaded}, so batch size 32 is taken to be that of {share} (" in told


def test_ranks_that_share_a_model_share_its_batches() -> None:
    """Eight ranks, of which two at a time train on the same rows: 32 may be of all of them, 8 of each."""
    trainer = SimpleNamespace(world_size=8, accumulate_grad_batches=1, distributed_sampler_kwargs={"num_replicas": 4})
    faults = {}
    for loaded in (2, 4, 8, 16, 32):
        trainer.train_dataloader = SimpleNamespace(batch_size=loaded)
        faults[loaded] = loader_fault(trainer, 32) is not None
    assert faults == {2: True, 4: False, 8: False, 16: True, 32: False}
