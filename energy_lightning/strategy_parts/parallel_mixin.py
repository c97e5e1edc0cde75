"""How a Lightning strategy executes a model over a device mesh: mixin over the `DDPStrategy` of either package.

A model with recognised transformer blocks runs in the partition engine (`EngineExecution`); any other model runs in
DistributedDataParallel, whose buckets go through `grad_bucket_hook`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from energy_lightning.parallel.batches import check_same_batch
from energy_lightning.parallel.comm_hook import GradBucketState, grad_bucket_hook
from energy_lightning.parallel.layout import MESH_DIM_NAMES, ParallelLayout
from energy_lightning.partition import find_stacks
from energy_lightning.strategy_parts.communication import Communication
from energy_lightning.strategy_parts.engine_execution import EngineExecution
from energy_lightning.strategy_parts.settings import KareusSettings
from energy_lightning.types import StrategyError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from lightning.pytorch.strategies import DDPStrategy as _Base

    from energy_lightning.partition import PartitionEngine
else:
    _Base = object

_NUM_CHECKED_BATCHES = 3


class ParallelExecutionMixin(_Base):
    """Tensor x data parallel execution; needs `settings` to be set before the Trainer configures the launcher."""

    settings: KareusSettings
    device_mesh: DeviceMesh | None = None
    """Dimensions ("data_parallel", "tensor_parallel"); None before the processes have met."""
    _layout: ParallelLayout | None = None
    _execution: EngineExecution | None = None
    _grad_buckets: GradBucketState | None = None
    _communication: Communication | None = None
    _failed = False
    _num_checked_batches = 0

    @property
    def tensor_parallel_size(self) -> int:
        """Ranks that share the weights of the blocks."""
        return self.settings.tensor_parallel_size

    @property
    def data_parallel_size(self) -> int:
        """Replicas of the model, each with batches of its own; 1 before a Trainer has given its devices."""
        return 1 if self._layout is None else self._layout.data_parallel_size

    @property
    def engine(self) -> PartitionEngine | None:
        """The partition engine, or None where the model has no recognised blocks or is not set up."""
        return None if self._execution is None else self._execution.engine

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Tensor-parallel peers work on the same batches: a sampler knows replicas, not ranks."""
        if self._layout is None:
            return super().distributed_sampler_kwargs
        return {"num_replicas": self.data_parallel_size, "rank": self._layout.data_parallel_rank(self.global_rank)}

    def _configure_launcher(self) -> None:
        self._layout = ParallelLayout.for_devices(
            self.num_nodes * self.num_processes,
            tensor_parallel_size=self.settings.tensor_parallel_size,
            data_parallel_size=self.settings.data_parallel_size,
        )
        if self.root_device.type == "mps":
            raise StrategyError("no process group works on Apple's MPS devices: give Trainer(accelerator='cpu', ...)")
        super()._configure_launcher()

    def setup_environment(self) -> None:
        """Connect the processes and lay the device mesh over them."""
        super().setup_environment()
        if self.device_mesh is None:
            sizes = (self.data_parallel_size, self.tensor_parallel_size)
            self.device_mesh = init_device_mesh(self.root_device.type, sizes, mesh_dim_names=MESH_DIM_NAMES)

    # the model

    def setup(self, trainer: Trainer) -> None:
        """Put the engine or DDP in place, then create the optimizers."""
        self._failed = False
        self._num_checked_batches = 0
        super().setup(trainer)
        if self.tensor_parallel_size > 1 and self._execution is None:
            # validate, test or predict: nothing to reduce, but weights to share
            self._execution = self._make_execution(bucket_cap_bytes=None)
        if self._execution is not None:
            # an instance attribute: the plugin's class names its entry in checkpoints and must stay
            vars(self.precision_plugin)["clip_grad_by_norm"] = self._clip_grad_by_norm

    def configure_ddp(self) -> None:
        """Engine for recognised blocks, else DistributedDataParallel (nothing in a single process)."""
        if find_stacks(self._module()) or self.tensor_parallel_size > 1:
            self._execution = self._make_execution(bucket_cap_bytes=int(self._ddp_kwargs["bucket_cap_mb"] * 2**20))
        elif self.world_size > 1:
            super().configure_ddp()

    def _make_execution(self, *, bucket_cap_bytes: int | None) -> EngineExecution:
        module = self._module()
        if not find_stacks(module):
            raise StrategyError(
                f"tensor_parallel_size={self.tensor_parallel_size}, but no recognised transformer blocks were found "
                f"in {type(module).__name__}, so there is nothing to share between ranks. Use tensor_parallel_size=1, "
                "or a transformers BERT or Llama model inside the LightningModule."
            )
        return EngineExecution(
            module,
            mesh=self._mesh(),
            activation_checkpointing=self.settings.activation_checkpointing,
            bucket_cap_bytes=bucket_cap_bytes,
            communication=self._open_communication(),
        )

    def _register_ddp_hooks(self) -> None:
        if self._ddp_comm_hook is not None:  # the user's own
            super()._register_ddp_hooks()
        elif isinstance(self.model, DistributedDataParallel):
            self._grad_buckets = GradBucketState(self._open_communication().open("data_parallel", None))
            self.model.register_comm_hook(self._grad_buckets, grad_bucket_hook)

    def _open_communication(self) -> Communication:
        self._communication = Communication(self.settings.collectives, self.root_device)
        return self._communication

    def collectives_report(self) -> list[dict[str, Any]]:
        """Backends in use, with the SM counts that schedules asked for and those granted; empty outside a run."""
        return [] if self._communication is None else self._communication.report()

    def _module(self) -> nn.Module:
        assert self.lightning_module is not None, "Lightning connects the module before it sets the strategy up"
        return self.lightning_module

    def _mesh(self) -> DeviceMesh:
        assert self.device_mesh is not None, "Lightning sets the environment up before the strategy"
        return self.device_mesh

    # a step

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Check during the first steps that tensor-parallel peers really got the same batch."""
        super().on_train_batch_start(batch, batch_idx)
        if self.tensor_parallel_size > 1 and self._num_checked_batches < _NUM_CHECKED_BATCHES:
            self._num_checked_batches += 1
            check_same_batch(batch, group=self._mesh().get_group("tensor_parallel"), device=self.root_device)

    def pre_backward(self, closure_loss: Tensor) -> None:
        """Arrange for the reduction of this backward's gradients."""
        super().pre_backward(closure_loss)
        if self._execution is not None:
            self._execution.before_backward(closure_loss)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Accumulate gradients within it, without reducing them."""
        with super().block_backward_sync() if self._execution is None else self._execution.no_sync():
            yield

    def _clip_grad_by_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        assert self._execution is not None, "only installed beside an execution"
        self._execution.clip_grad_norm(self.precision_plugin.main_params(optimizer), clip_val)

    # checkpoints: always those of the plain model, whatever the sharding; all ranks take part

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Full weights under the plain model's keys."""
        if self._execution is None:
            return super().lightning_module_state_dict()
        return self._execution.module_state_dict()

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load full weights; a model that is sharded already keeps its parts."""
        if self._execution is None:
            super().load_model_state_dict(checkpoint, strict=strict)
        else:
            self._execution.load_module_state_dict(checkpoint["state_dict"], strict=strict)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """Full optimizer state, as the plain model's optimizer has it."""
        if self._execution is None:
            return super().optimizer_state(optimizer)
        return self._execution.optimizer_state_dict(getattr(optimizer, "_optimizer", optimizer))

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load full optimizer state; sharded parameters keep their parts of it."""
        if self._execution is None:
            super().load_optimizer_state_dict(checkpoint)
            return
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            self._execution.load_optimizer_state_dict(optimizer, state)

    # the end

    def on_exception(self, exception: BaseException) -> None:
        """Remember that the ranks may no longer be in step: no collective from here on."""
        self._failed = True
        super().on_exception(exception)

    def teardown(self) -> None:
        """Give back the plain model with full weights, unless the run failed."""
        if self._execution is not None:
            vars(self.precision_plugin).pop("clip_grad_by_norm", None)
            self._execution.close(restore=not self._failed)
            self._execution = None
        if self._communication is not None:
            self._communication.close(in_step=not self._failed)
        self._grad_buckets = self._communication = None
        super().teardown()
